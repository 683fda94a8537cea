"""Fill the catalogues of a language: from the translation memory first, then by a model; a kill loses one window.

What the model has translated is kept in a journal, window by window, until the output is complete. The output appears
as a whole. `OUT.json` beside it says where each text is from, and what was refused for which reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tqdm import tqdm

from hf_multisource.data.access_keys import choose_access_key
from hf_multisource.data.catalogue_entries import FUZZY, TRANSLATED, Identity
from hf_multisource.data.catalogue_files import fill_catalogue, find_format
from hf_multisource.data.checks import check_at_least
from hf_multisource.data.files import check_folder, write_json
from hf_multisource.data.placeholders import broken_placeholders, find_placeholders
from hf_multisource.data.prepare import new_folder
from hf_multisource.data.translation_memory import Match
from hf_multisource.evaluation.localization import MissingText, Plan, count_sources
from hf_multisource.evaluation.shards import ShardedFile
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.messages import shown_key

WINDOW = 64  # texts that the model translates between two entries of the journal; a kill loses at most so many
CANDIDATES = 3  # translations that the model is asked for; the review page shows all of them
JOURNAL = "translations.jsonl"
SHOWN = 3  # examples of texts that were refused for the same reason

MEMORY, MODEL, COPY, ACCESS_KEY = "memory", "model", "copy", "access key"
ORIGINS = (MEMORY, MODEL, COPY, ACCESS_KEY)
NO_LABEL = "no label is found that the access key belongs to"
NO_LABEL_TEXT = "the label of the access key is not translated"
NO_LETTER = "the label of the access key has no letter"

Request = tuple[tuple[tuple[str, str], ...], str]  # the texts of the sources, and the syntax of their placeholders


class ScoredText(Protocol):
    """A translation and its score."""

    @property
    def text(self) -> str:
        """The translation."""

    @property
    def score(self) -> float:
        """Its score in beam search."""


class ScoredTranslation(Protocol):
    """What a translator returns for one row."""

    @property
    def candidates(self) -> Sequence[ScoredText]:
        """The translations, best first; none if the row is refused."""

    @property
    def refused(self) -> str:
        """Why the row has no translation."""


class Translator(Protocol):
    """Translates rows of texts; a translation whose placeholders are broken is refused."""

    def translate(
        self,
        rows: Sequence[Mapping[str, str | None]],
        *,
        n_best: int = 1,
        num_beams: int = 5,
        max_new_tokens: int | None = None,
        syntax: str | None = None,
    ) -> Sequence[ScoredTranslation]:
        """Translate rows."""


class Probability(Protocol):
    """Tells how likely a translation is what a person would write."""

    def probability(self, row: Mapping[str, str | None], translation: ScoredTranslation) -> float:
        """Return the probability for the best candidate."""


@dataclass(frozen=True)
class Proposal:
    """A translation of the model.

    Args:
        text: The text.
        score: Its score in beam search.
    """

    text: str
    score: float


@dataclass(frozen=True)
class Proposals:
    """The translations of one row, as the journal keeps them.

    Args:
        candidates: The translations, best first.
        refused: Why there are none.
    """

    candidates: tuple[Proposal, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Options:
    """How texts are translated.

    Args:
        num_beams: Beam width.
        max_new_tokens: Longest translation, in tokens; None: what the translator allows.
        min_confidence: Translations of the model with a lower confidence are not written; None: all are.
    """

    num_beams: int = 5
    max_new_tokens: int | None = None
    min_confidence: float | None = None

    def __post_init__(self) -> None:
        check_at_least(CANDIDATES, num_beams=self.num_beams)
        check_at_least(1, max_new_tokens=self.max_new_tokens)
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise ValueError(f"min_confidence is {self.min_confidence}; it must be from 0 to 1")


@dataclass
class Answer:
    """What becomes of a missing text.

    Args:
        missing: The text.
        origin: One of `ORIGINS`; "" as long as nothing has answered.
        text: What is proposed; "" if nothing is.
        confidence: Probability that a person would write the same; None if it is not known.
        reason: Why the text is not written; "": it is.
        times: Of the memory: how many entries have this translation.
        total: Of the memory: how many entries have these sources.
        others: Further translations, best first.
    """

    missing: MissingText
    origin: str = ""
    text: str = ""
    confidence: float | None = None
    reason: str = ""
    times: int = 0
    total: int = 0
    others: tuple[str, ...] = field(default=())

    def describe(self) -> JsonObject:
        """Return the answer as JSON.

        Returns:
            Values by name.
        """
        return {
            "file": self.missing.file,
            "key": self.missing.key,
            "part": self.missing.part,
            "sources": dict(self.missing.sources),
            "state": "refused" if self.reason else "filled",
            "origin": self.origin,
            "text": self.text,
            "confidence": self.confidence,
            "reason": self.reason,
            "memory": [self.times, self.total],
            "others": list(self.others),
        }


def answer_from_memory(plan: Plan) -> list[Answer]:
    """Answer what needs no model: texts that the memory has, and texts without words.

    Args:
        plan: The plan.

    Returns:
        An answer for each missing text of the plan, in its order. Those for the model and access keys are still open.
    """
    answers = []
    for missing in plan.missing:
        answer = Answer(missing, reason=missing.reason)
        if not missing.reason and not missing.labels:
            first = next(iter(missing.sources.values()))
            found = [
                match
                for match in plan.memory.find(missing.sources, f"{missing.key}\x04{missing.part}")
                if not broken_placeholders(first, match.text, missing.syntax)
            ]
            if found:
                _take_match(answer, found)
            elif not _words(first, missing.syntax) and set(missing.sources.values()) == {first}:
                answer.origin, answer.text = COPY, first
        answers.append(answer)
    return answers


def _take_match(answer: Answer, found: Sequence[Match]) -> None:
    best = found[0]
    answer.origin, answer.text, answer.times, answer.total = MEMORY, best.text, best.times, best.total
    answer.others = tuple(match.text for match in found[1:CANDIDATES])


def _words(text: str, syntax: str) -> bool:
    """Whether a text has letters beside its placeholders."""
    hidden = {i for one in find_placeholders(text, syntax) for i in range(one.start, one.end)}
    return any(letter.isalpha() for i, letter in enumerate(text) if i not in hidden)


def open_requests(answers: Sequence[Answer]) -> dict[Request, list[Answer]]:
    """Collect the texts that the model has to translate.

    Args:
        answers: All answers.

    Returns:
        What the model is asked, each once, sorted by syntax -> the answers that wait for it.
    """
    waiting: dict[Request, list[Answer]] = {}
    for answer in answers:
        if not (answer.origin or answer.reason or answer.missing.labels):
            request = (tuple(answer.missing.sources.items()), answer.missing.syntax)
            waiting.setdefault(request, []).append(answer)
    return dict(sorted(waiting.items(), key=lambda item: item[0][1]))


def translate_requests(
    requests: Sequence[Request], translator: Translator, options: Options, journal: ShardedFile
) -> list[Proposals]:
    """Translate texts window by window; those that the journal has are not translated again.

    Args:
        requests: The texts.
        translator: The model.
        options: How to translate.
        journal: Holds a line of JSON for each request.

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
        found.append(Proposals(tuple(Proposal(*one) for one in content["candidates"]), content["refused"]))
    return found


def _translate(window: Sequence[Request], translator: Translator, options: Options) -> list[JsonObject]:
    """The translations of a window, as JSON."""
    found: list[JsonObject] = [{}] * len(window)
    for syntax in dict.fromkeys(syntax for _, syntax in window):
        places = [i for i, (_, other) in enumerate(window) if other == syntax]
        translations = translator.translate(
            [dict(window[i][0]) for i in places],
            n_best=CANDIDATES,
            num_beams=options.num_beams,
            max_new_tokens=options.max_new_tokens,
            syntax=syntax,
        )
        for i, one in zip(places, translations, strict=True):
            candidates = [[candidate.text, candidate.score] for candidate in one.candidates]
            found[i] = {"candidates": candidates, "refused": one.refused}
    return found


def take_proposals(
    waiting: Mapping[Request, Sequence[Answer]],
    proposals: Sequence[Proposals],
    options: Options,
    confidence: Probability | None,
) -> None:
    """Enter the model's translations into the answers that wait for them.

    Args:
        waiting: What the model was asked -> answers.
        proposals: The translations, in the same order.
        options: The least confidence.
        confidence: Gives the probability of a translation; None: it is not known.
    """
    for ((sources, _), answers), found in zip(waiting.items(), proposals, strict=True):
        probability = confidence.probability(dict(sources), found) if confidence and found.candidates else None
        for answer in answers:
            answer.origin = MODEL
            if not found.candidates:
                answer.reason = found.refused or "the model gave no translation"
                continue
            answer.text, answer.confidence = found.candidates[0].text, probability
            answer.others = tuple(one.text for one in found.candidates[1:])
            if options.min_confidence is not None and (probability or 0) < options.min_confidence:
                answer.reason = f"its confidence is below {options.min_confidence:g}"


def choose_access_keys(plan: Plan, answers: Sequence[Answer]) -> None:
    """Choose the access keys, each a letter of its label.

    Args:
        plan: The plan.
        answers: The answers; texts are there already.
    """
    new = {(one.missing.file, one.missing.identity): one.text for one in answers if one.text and not one.reason}
    there: dict[tuple[str, Identity], str] = {}
    for file in plan.files:
        for entry in file.catalogue.entries:
            if entry.state in (TRANSLATED, FUZZY) and entry.text.strip():
                there.setdefault((file.path, entry.identity), entry.text)
    known = {(one.missing.file, one.missing.identity) for one in answers} | there.keys()
    for answer in answers:
        missing = answer.missing
        if not missing.labels or answer.reason:
            continue
        answer.origin = ACCESS_KEY
        places = [(missing.file, label) for label in missing.labels]
        label = next((new.get(place, there.get(place, "")) for place in places if place in known), None)
        if not label:
            answer.reason = NO_LABEL if label is None else NO_LABEL_TEXT
        elif letter := choose_access_key(label, missing.sources, missing.syntax):
            answer.text = letter
        else:
            answer.reason = NO_LETTER


def fill_files(plan: Plan, answers: Sequence[Answer]) -> dict[str, bytes]:
    """Write the answers into the files. Answers that a file cannot hold are refused with the reason.

    Args:
        plan: The plan.
        answers: The answers.

    Returns:
        Path -> the content of each file.
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
            filled = fill_catalogue(file.catalogue, texts, file.reference)
            contents[file.path] = filled.content
            for identity, reason in filled.refused.items():
                writable[identity].reason = reason
    return contents


def localize(
    plan: Plan,
    out: Path,
    settings: JsonObject,
    load: Callable[[], tuple[Translator, Probability | None]],
    options: Options,
) -> JsonObject:
    """Fill catalogues and write them. Called again after an interruption, go on; called again afterwards, do nothing.

    Args:
        plan: The plan.
        out: File or folder to write. `OUT.json` beside it says where each text is from; the folder `OUT.work` holds the
            journal until the output is there.
        settings: Everything that decides the output.
        load: Returns the translator and the confidence; called only if there is something to translate.
        options: How to translate.

    Returns:
        The content of `OUT.json`.

    Raises:
        OSError: If the output cannot be written, or is there but was not written by this function.
        ValueError: If the output was begun with other settings or inputs, or was changed since; the message says so.
    """
    check_output(plan, out)
    work, sidecar = out.with_name(f"{out.name}.work"), out.with_name(f"{out.name}.json")
    if (record := _finished(out, sidecar, settings)) is not None:
        shutil.rmtree(work, ignore_errors=True)
        return record
    answers = answer_from_memory(plan)
    waiting = open_requests(answers)
    if waiting:
        journal = ShardedFile(work / JOURNAL, settings, len(waiting), 1)
        _check_begun(out, journal)
        translator, confidence = load()
        take_proposals(waiting, translate_requests([*waiting], translator, options, journal), options, confidence)
    choose_access_keys(plan, answers)
    contents = fill_files(plan, answers)
    record = {
        "synthetic": True,
        "settings": settings,
        "sha256": _digest(contents),
        "counts": _counts(plan, answers),
        "texts": [answer.describe() for answer in answers],
    }
    write_json(sidecar, record)  # a kill between this and the output leaves the journal, from which both are made again
    if plan.single:
        (content,) = contents.values()
        partial = out.with_name(f"{out.name}.partial")
        partial.write_bytes(content)
        os.replace(partial, out)
    else:
        with new_folder(out) as folder:
            for path, content in contents.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
    shutil.rmtree(work, ignore_errors=True)
    return record


def check_output(plan: Plan, out: Path) -> None:
    """Check that an output can be written; make nothing.

    Args:
        plan: The plan.
        out: The file or folder.

    Raises:
        OSError: If its folder cannot be written to, or it is a folder in place of a file or the other way round.
        ValueError: If its name is of another format than the file that is written.
    """
    check_folder(out.parent)
    if plan.single:
        (file,) = plan.files
        if out.is_dir():
            raise IsADirectoryError(f"{out} is a folder; the catalogues are one file each, so name a file")
        if find_format(out.name) != find_format(file.path):
            raise ValueError(f"{out} is not named as {file.path}, whose format it has; choose the same suffix")
    elif out.is_file():
        raise NotADirectoryError(f"{out} is a file; the catalogues are several files, so name a folder")


def _check_begun(out: Path, journal: ShardedFile) -> None:
    """Refuse to go on with another begun output; a journal without any translation is thrown away."""
    stored = read_json(journal.sidecar) if journal.sidecar.exists() else {}
    if not journal.path.exists() and not any(journal.parts.glob("*.json")):
        shutil.rmtree(journal.path.parent, ignore_errors=True)
    elif changed := _changed(stored.get("settings", {}), journal.settings):
        raise ValueError(
            f"{out} was begun with other settings: {changed}. Nothing is changed; go back to those settings, give "
            f"another --out, or delete {journal.path.parent}"
        )


def _finished(out: Path, sidecar: Path, settings: JsonObject) -> JsonObject | None:
    """The record of an output that is there; None if there is none yet."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not sidecar.exists():
        raise FileExistsError(f"{out} exists, but {sidecar.name} is missing, so it is no output: give another --out")
    record = read_json(sidecar)
    if changed := _changed(record.get("settings", {}), settings):
        raise ValueError(
            f"{out} was made with other settings: {changed}. It is unchanged; give another --out, or delete it"
        )
    paths = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
    names = {path: next(iter(record["counts"]["files"]), "") if path == out else "" for path in paths}
    contents = {names[path] or path.relative_to(out).as_posix(): path.read_bytes() for path in paths}
    if _digest(contents) != record.get("sha256"):
        raise ValueError(
            f"{out} was changed since it was made. It is not touched; give another --out, or delete it and "
            f"{sidecar.name}"
        )
    return record


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Name the settings that differ."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return "; ".join(f"{name} was {_short(before.get(name))}, is {_short(after.get(name))}" for name in names)


def _short(value: object) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else shown_key(value)


def _digest(contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, content in sorted(contents.items()):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _counts(plan: Plan, answers: Sequence[Answer]) -> JsonObject:
    """Count texts by file, by number of sources, and by reason of a refusal."""
    by_file: dict[str, list[Answer]] = {file.path: [] for file in plan.files}
    for answer in answers:
        by_file[answer.missing.file].append(answer)
    files = {}
    for file in plan.files:
        origins = Counter(answer.origin if not answer.reason else "refused" for answer in by_file[file.path])
        files[file.path] = {
            "kept": file.kept,
            "unreviewed": file.unreviewed,
            "missing": len(file.missing),
            **{name: origins[name] for name in (*ORIGINS, "", "refused") if origins[name]},
        }
    reasons: dict[str, list[str]] = {}
    for answer in answers:
        if answer.reason:
            missing = answer.missing
            reasons.setdefault(answer.reason, []).append(f"{missing.file}: {missing.key}{missing.part}")
    refused = {reason: {"texts": len(places), "examples": places[:SHOWN]} for reason, places in reasons.items()}
    by_sources = {str(number): count for number, count in count_sources(plan.missing).items()}
    return {"files": files, "sources": by_sources, "refused": refused}


def preview(plan: Plan) -> JsonObject:
    """Count what would be filled from where, without a model.

    Args:
        plan: The plan.

    Returns:
        The counts of `OUT.json`; texts for the model have the origin `model`.
    """
    answers = answer_from_memory(plan)
    for answer in answers:
        if not (answer.origin or answer.reason):
            answer.origin = ACCESS_KEY if answer.missing.labels else MODEL
    return _counts(plan, answers)


def describe_counts(counts: JsonObject) -> str:
    """Return the counts as a table.

    Args:
        counts: The counts of `OUT.json`.

    Returns:
        A line for each file in which texts are missing, a sum, the numbers of sources, and why texts are refused.
    """
    names = ["kept", "unreviewed", "missing", *ORIGINS, "refused"]
    rows = {path: [found.get(name, 0) for name in names] for path, found in counts["files"].items()}
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    lines = {path: numbers for path, numbers in rows.items() if numbers[names.index("missing")]}
    cells = [["file", *names], *([path, *map(str, row)] for path, row in lines.items())]
    cells.append([f"all {len(rows)} files", *map(str, total)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    table = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    sources = ", ".join(f"{count} from {number}" for number, count in counts["sources"].items())
    table.append(f"sources of the missing texts: {sources or 'none is missing'}")
    for reason, found in counts["refused"].items():
        table.append(f"refused, {found['texts']}: {reason}, for example {'; '.join(map(shown_key, found['examples']))}")
    return "\n".join(table)


__all__ = ["Options", "Probability", "Translator", "describe_counts", "localize", "preview"]
