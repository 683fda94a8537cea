"""Fill the catalogues of a language, first from the translation memory and then with a model.

The model's translations are written to a journal, window by window, until the output is complete. If the process is
killed, at most one window is lost. The output is created atomically. `OUT.json` beside it records the origin of each
text, and the reason of each refusal.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from hf_multisource.data.catalogue_files import fill_catalogue, find_format
from hf_multisource.data.files import check_folder, named_errors, write_json
from hf_multisource.evaluation.localization import Places, Plan
from hf_multisource.evaluation.localization_answers import (
    CANDIDATES,
    Answer,
    Options,
    Probability,
    Request,
    answer_from_memory,
    choose_access_keys,
    open_requests,
    take_proposals,
)
from hf_multisource.evaluation.localization_report import count_answers
from hf_multisource.evaluation.shards import ShardedFile
from hf_multisource.evaluation.text_translator import Candidate, Translation, Translator
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.messages import shown_key

# Texts that the model translates between two writes to the journal; if the process is killed, at most this many are
# lost
WINDOW = 64
LOCK, JOURNAL, OUTPUT, RECORD = "lock", "translations.jsonl", "output", "record.json"  # names in the folder OUT.work
DIGEST = "_sha256"  # end of the names of settings that are digests of contents


def translate_requests(
    requests: Sequence[Request], translator: Translator, options: Options, journal: ShardedFile
) -> list[Translation]:
    """Translate texts window by window, skipping windows that are already in the journal.

    Args:
        requests: Source texts with the syntax of their placeholders.
        translator: The model.
        options: Options of the translation.
        journal: File with one line of JSON per request.

    Returns:
        The translations of each request.
    """
    rows = journal.begin(WINDOW)
    if rows is not None:
        starts = journal.starts(rows)
        missing = [first for first in starts if journal.read_shard(first, min(rows, len(requests) - first)) is None]
        left = sum(min(rows, len(requests) - first) for first in missing)
        with tqdm(
            total=len(requests), initial=len(requests) - left, desc="translating", unit="text", dynamic_ncols=True
        ) as bar:
            for first in missing:
                began = time.perf_counter()
                window = requests[first : first + rows]
                lines = [json.dumps(one, ensure_ascii=False) + "\n" for one in _translate(window, translator, options)]
                seconds = time.perf_counter() - began
                journal.write_shard(first, {"lines": lines, "seconds": seconds, "counts": {}})
                bar.update(len(window))
        journal.join(rows, {})
    found = []
    for line in journal.path.read_text("utf-8").split("\n")[:-1]:
        content = json.loads(line)
        found.append(Translation(tuple(Candidate(*one) for one in content["candidates"]), content["refused"]))
    return found


def _translate(window: Sequence[Request], translator: Translator, options: Options) -> list[JsonObject]:
    """Translate the requests of a window; return the translations as JSON objects."""
    found: list[JsonObject] = [{}] * len(window)
    for syntax in dict.fromkeys(syntax for _, syntax in window):
        places = [i for i, (_, other) in enumerate(window) if other == syntax]
        translations = translator.translate(
            [dict(window[i][0]) for i in places],
            n_best=min(CANDIDATES, options.num_beams),
            num_beams=options.num_beams,
            max_new_tokens=options.max_new_tokens,
            syntax=syntax,
        )
        for i, one in zip(places, translations, strict=True):
            candidates = [[candidate.text, candidate.score] for candidate in one.candidates]
            found[i] = {"candidates": candidates, "refused": one.refused}
    return found


def fill_files(plan: Plan, answers: Sequence[Answer]) -> dict[str, bytes]:
    """Fill the answers into the catalogues; answers that a catalogue cannot hold are refused with a reason.

    Args:
        plan: The plan.
        answers: The answers.

    Returns:
        Path -> content of the file.
    """
    contents = {}
    by_file: dict[str, list[Answer]] = {}
    for answer in answers:
        by_file.setdefault(answer.missing.file, []).append(answer)
    for file in plan.files:
        writable = {one.missing.identity: one for one in by_file.get(file.path, ()) if one.text and not one.reason}
        contents[file.path] = file.catalogue.content
        if writable:
            texts = {identity: answer.text for identity, answer in writable.items()}
            filled = fill_catalogue(file.catalogue, texts, file.reference, _notes(writable.values()))
            contents[file.path] = filled.content
            for identity, reason in filled.refused.items():
                writable[identity].reason = reason
    return contents


def _notes(answers: Iterable[Answer]) -> dict[str, str]:
    """Return a note for each message, by key: the origins of its texts and the lowest confidence of the model."""
    by_key: dict[str, list[Answer]] = {}
    for answer in answers:
        by_key.setdefault(answer.missing.key, []).append(answer)
    notes = {}
    for key, group in by_key.items():
        known = [answer.confidence for answer in group if answer.confidence is not None]
        origins = dict.fromkeys(answer.origin for answer in group)
        notes[key] = f"From: {', '.join(origins)}{f' (confidence {min(known):.2f})' if known else ''}"
    return notes


def localize(
    plan: Plan,
    out: Path,
    settings: JsonObject,
    load: Callable[[], tuple[Translator, Probability | None]],
    options: Options,
) -> JsonObject:
    """Fill catalogues and write them.

    A later call continues an interrupted one, and does nothing once the output is complete.

    Args:
        plan: The plan.
        out: File or folder to write. `OUT.json` beside it records the origin of each text; the folder `OUT.work` holds
            the journal until the output is complete.
        settings: Everything that determines the output.
        load: Function that returns the translator and the confidence; called only if texts remain for the model.
        options: Options of the translation.

    Returns:
        The content of `OUT.json`.

    Raises:
        OSError: If the output cannot be written, exists but was not written by this function, or another process is
            writing it.
        ValueError: If the output was begun with other settings or inputs, or was changed since; the message says so.
    """
    check_output(plan, out)
    work, sidecar = out.with_name(f"{out.name}.work"), out.with_name(f"{out.name}.json")
    if (record := _finished(out, sidecar, settings)) is not None:
        _delete_work(work)
        return record
    with named_errors(out), _alone(out, work):
        return _fill(plan, out, settings, load, options, work, sidecar)


def _fill(
    plan: Plan,
    out: Path,
    settings: JsonObject,
    load: Callable[[], tuple[Translator, Probability | None]],
    options: Options,
    work: Path,
    sidecar: Path,
) -> JsonObject:
    """Do the work of [`localize`] for an output that does not exist yet."""
    answers = answer_from_memory(plan)
    waiting = open_requests(answers)
    if waiting:
        requests = json.dumps(
            [*waiting], ensure_ascii=False
        )  # another version of this package may find other texts in the same files
        digest = hashlib.sha256(requests.encode("utf-8", "surrogatepass")).hexdigest()
        journal = ShardedFile(work / JOURNAL, {**settings, "requests_sha256": digest}, len(waiting), 1)
        _check_begun(out, journal)
        translator, confidence = load()
        proposals = translate_requests([*waiting], translator, options, journal)
        take_proposals(plan, waiting, proposals, options, confidence)
    choose_access_keys(plan, answers)
    contents = fill_files(plan, answers)
    if plan.single:
        contents = {".": contents[plan.files[0].path]}  # a single output file has the relative path "."
    record = {
        "synthetic": True,
        "settings": settings,
        "sha256": _digest(contents),
        "counts": count_answers(plan, answers),
        "texts": [answer.describe() for answer in answers],
    }
    _publish(contents, record, out, sidecar, work)
    return record


@contextmanager
def _alone(out: Path, work: Path) -> Iterator[None]:
    """Create the work folder and lock it against other processes; delete it on exit if it holds no journal."""
    work.mkdir(parents=True, exist_ok=True)
    lock = FileLock(work / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise BlockingIOError(
            f"another process writes {out}: wait until it has ended, or give another --out"
        ) from error
    try:
        yield
    finally:
        if work.exists() and all(path.name == LOCK for path in work.iterdir()):
            _delete_work(work)
        lock.release()


def _publish(contents: Mapping[str, bytes], record: JsonObject, out: Path, sidecar: Path, work: Path) -> None:
    """Write the output and its record, each atomically by renaming it from the work folder.

    If the process is killed between the two steps, the journal remains, from which both are made again. Unfinished
    files exist only in the work folder.
    """
    shutil.rmtree(work / OUTPUT, ignore_errors=True)
    for path, content in contents.items():
        place = work / OUTPUT / path
        place = work / OUTPUT / out.name if path == "." else place
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    write_json(work / RECORD, record)
    os.replace(work / RECORD, sidecar)
    if "." in contents:
        os.replace(work / OUTPUT / out.name, out)
    else:
        if out.exists():  # `_finished` has checked that the folder is empty
            out.rmdir()
        (work / OUTPUT).rename(out)
    _delete_work(work)


def _is_own(name: str) -> bool:
    """Return whether this module writes files of this name into the work folder."""
    return name in (LOCK, OUTPUT) or name.startswith((JOURNAL, RECORD))


def _delete_work(work: Path) -> None:
    """Delete this module's files in the work folder, and the folder if it is empty then."""
    if work.is_symlink() or not work.is_dir():
        return
    for path in [*work.iterdir()]:
        if path.is_dir() and not path.is_symlink() and _is_own(path.name):
            shutil.rmtree(path, ignore_errors=True)
        elif _is_own(path.name):
            path.unlink(missing_ok=True)
    if not any(work.iterdir()):
        work.rmdir()


def _check_work(work: Path) -> None:
    """Raise an error if the work folder holds files that this module does not write."""
    if work.is_symlink() or (work.exists() and not work.is_dir()):
        raise FileExistsError(f"{work} exists, and is no folder of this command: give another --out")
    names = sorted(path.name for path in work.iterdir()) if work.exists() else []
    if foreign := [name for name in names if not _is_own(name)]:
        raise FileExistsError(
            f"{work} exists and has {shown_key(foreign[0])}, which is not written by this command: give another --out, "
            "or put it elsewhere"
        )


def describe_settings(places: Places, plan: Plan, options: Options, model: JsonObject) -> JsonObject:
    """Return everything that determines the output.

    Args:
        places: The catalogues.
        plan: The plan, whose memory is complete.
        options: Options of the translation.
        model: Settings and digests that identify the model.

    Returns:
        Settings and digests by name.
    """
    return {
        "target": places.target,
        "sources": list(places.sources),
        "codes": dict(places.codes),
        "source_language": places.source_language,
        **asdict(options),
        **{f"{language}_sha256": digest for language, digest in plan.digests.items()},
        "memory_sha256": plan.memory.digest(),
        **model,
    }


def check_output(plan: Plan, out: Path) -> None:
    """Check that an output can be written, without creating anything.

    Args:
        plan: The plan.
        out: The file or folder.

    Raises:
        OSError: If the parent folder is not writable, the output is a folder instead of a file or vice versa, or the
            record or the work folder beside it was not written by this command.
        ValueError: If the suffix of the output does not match the format of the file that is written.
    """
    check_folder(out.parent)
    sidecar = out.with_name(f"{out.name}.json")
    if sidecar.exists() and "texts" not in read_json(sidecar):
        raise FileExistsError(f"{sidecar} exists, and is no record of this command: give another --out")
    _check_work(out.with_name(f"{out.name}.work"))
    if plan.single:
        (file,) = plan.files
        if out.is_dir():
            raise IsADirectoryError(f"{out} is a folder; the catalogues are one file each, so name a file")
        if find_format(out.name) != find_format(file.path):
            raise ValueError(
                f"{out} is not named as {file.path}, whose format it has; name it like {Path(file.path).name}"
            )
    elif out.is_file():
        raise NotADirectoryError(f"{out} is a file; the catalogues are several files, so name a folder")


def _check_begun(out: Path, journal: ShardedFile) -> None:
    """Raise an error if the journal was begun with other settings; delete a journal without translations."""
    stored = read_json(journal.sidecar) if journal.sidecar.exists() else {}
    if not journal.path.exists() and not any(journal.parts.glob("*.json")):
        shutil.rmtree(journal.parts, ignore_errors=True)
        journal.sidecar.unlink(missing_ok=True)
    elif changed := _changed(stored.get("settings", {}), journal.settings):
        raise ValueError(
            f"{out} was begun with other settings: {changed}. Nothing is changed; go back to those settings, give "
            f"another --out, or delete {journal.path.parent}"
        )


def _finished(out: Path, sidecar: Path, settings: JsonObject) -> JsonObject | None:
    """Return the record of a finished output; None if there is no output yet."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not sidecar.exists():
        raise FileExistsError(f"{out} exists, but {sidecar.name} is missing, so it is no output: give another --out")
    record = read_json(sidecar)
    if changed := _changed(record.get("settings", {}), settings):
        raise ValueError(
            f"{out} was made with other settings: {changed}. It is unchanged; give another --out, or delete it"
        )
    paths = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
    if _digest({path.relative_to(out).as_posix(): path.read_bytes() for path in paths}) != record.get("sha256"):
        raise ValueError(
            f"{out} was changed since it was made. It is not touched; give another --out, or delete it and "
            f"{sidecar.name}"
        )
    return record


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Return in words which settings differ."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    contents = [name.removesuffix(DIGEST) for name in names if name.endswith(DIGEST)]
    values = [f"{name} was {shown_key(before.get(name))}, is {shown_key(after.get(name))}" for name in names]
    found = [value for name, value in zip(names, values, strict=True) if not name.endswith(DIGEST)]
    return "; ".join(found + ([f"the contents of {', '.join(contents)} have changed"] if contents else []))


def _digest(contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, content in sorted(contents.items()):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


__all__ = ["describe_settings", "fill_files", "localize"]
