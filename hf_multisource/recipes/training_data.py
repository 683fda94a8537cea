"""Read the training and dev splits of a run, check that they have not changed since it began, and encode them."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from hf_multisource import MultiSourceProcessor
from hf_multisource.data import masking, placeholders
from hf_multisource.data.catalogues import COUNTS, write_catalogue_rows
from hf_multisource.data.encoding import Example, MixedExamples, has_others
from hf_multisource.data.files import write_json
from hf_multisource.data.interfaces import Preprocessor
from hf_multisource.data.masking import TABLE, mask_split
from hf_multisource.data.rows import Row, Split, check_files, read_split, take_away
from hf_multisource.data.store import place_of, read_report, store_rows, stored_rows
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.recipes.joined_dropout import drop_joined
from hf_multisource.recipes.mixture import read_mixture
from hf_multisource.recipes.processor import contents_of
from hf_multisource.recipes.run_folder import check_data, data_fingerprint, place_of_rows
from hf_multisource.recipes.schema import CATALOGUES, DROP
from hf_multisource.recipes.tokenization import find_unknown, unknown_note
from hf_multisource.recipes.training_run import TrainingRun
from hf_multisource.recipes.written_sources import add_written_sources
from hf_multisource.source_kinds import FORMS

PLACEHOLDERS = "placeholders.json"  # file in the run folder: counts of masking the texts
UNREADABLE_FILES = "unreadable.json"  # file in the run folder: lines with unreadable media


def read_data(run: TrainingRun, parts: dict[str, Preprocessor]) -> tuple[dict[str, list[Row]], JsonObject]:
    """Read the training and dev splits, and check that they have not changed since the run began.

    If all sources are texts, only one process per machine reads the splits; the other processes read the encoded rows.

    Args:
        run: The run.
        parts: Preprocessors of wrapped encoders by source, from `wrapped_parts`.

    Returns:
        Rows of the model's sources by role ("train" and "dev"), empty on processes that do not need them; and the
        fingerprints of the data by role. With `data.placeholders`, the rows are masked, and the counts are written to
        `placeholders.json` in the folder of a new run.
    """
    forms, data = run.recipe.forms(), run.recipe.data
    if data.kind == CATALOGUES and not run.begun:
        run.together(lambda: write_rows(run))
    path = place_of_rows(data, run.folder)
    names = {"train": data.train_described, "dev": data.dev}
    reports: dict[str, JsonObject] = {}  # counts of each corpus of a mixture

    def read() -> dict[str, Split]:
        dev = read_split(path, data.dev, data.sources, data.target, forms=forms)
        if not needed:
            return {"dev": dev}
        if isinstance(data.train, str):
            train = read_split(path, data.train, data.sources, data.target, limit=data.limit, forms=forms)
            if data.placeholders is not None:
                train = mask_split(train, data.sources, data.target, data.placeholders)
        else:
            train, found = read_mixture(data, run.args.seed)
            reports.update(found)
        return {"train": train, "dev": dev}

    needed = run.args.local_process_index == 0 or not all(FORMS[form].has_vocabulary for form in forms.values())
    # With masked texts, every process needs the dev split to restore the placeholders of its hypotheses.
    splits = run.together(lambda: read() if needed or data.placeholders is not None else {}, everywhere=True)

    def compare() -> JsonObject:
        now = {role: data_fingerprint(split.rows, forms) for role, split in splits.items()}
        check_data(run.recorded().get("data", {}), now, names)
        return now

    prints = run.together(compare)
    if any(FORMS[form].column == "files" for form in forms.values()):
        if not run.begun:
            run.together(lambda: note_unreadable(run, splits, parts))
        splits = run.together(lambda: without_unreadable(run, splits), everywhere=True)
    for place, report in {**reports, **{role: split.report for role, split in splits.items()}}.items():
        run.say(place, report)
    arrange = {"train": data.arrange_rows, "dev": data.model_rows}  # the training rows are already masked
    columns = {role: split.rows for role, split in splits.items()}
    if data.write_sources and "train" in columns:
        columns["train"] = add_written_sources(columns["train"], data)
        run.say("train", {"rows_that_write_a_source": len(columns["train"]) - len(splits["train"].rows)})
    rows = {role: arrange[role](own) for role, own in columns.items()}
    if data.placeholders is not None:
        refused = sum(row[TABLE].refused is not None for row in rows["dev"])
        run.say(f"dev, placeholders {data.placeholders}", {"rows_that_cannot_be_masked": refused})
        if not run.begun:
            counts = reports or {"train": splits["train"].report} if needed else {}
            facts = {"syntax": data.placeholders, **counts, "dev": {"rows_that_cannot_be_masked": refused}}
            run.together(lambda: write_json(run.folder / PLACEHOLDERS, facts))
    return rows, prints


def write_rows(run: TrainingRun) -> None:
    """Read the catalogues of a new run, write their rows into its folder, and print the counts.

    Args:
        run: The run.
    """
    data, folder = run.recipe.data, run.folder / CATALOGUES
    if (folder / COUNTS).is_file():  # left by a start that did not reach the training
        shutil.rmtree(folder)
    run.say("catalogues", {"from": data.path})
    print(write_catalogue_rows(data.path, folder, data.selection()).describe(), flush=True)


def note_unreadable(run: TrainingRun, splits: dict[str, Split], parts: dict[str, Preprocessor]) -> None:
    """Check all pictures and recordings (readable, sampling rate of the encoder), and record those that fail.

    Args:
        run: The run, whose `unreadable.json` receives the lines, counted from 0, that cannot be read.
        splits: The splits by role.
        parts: Preprocessors of wrapped encoders by source, from `wrapped_parts`.

    Raises:
        ValueError: If a file cannot be read and `data.unreadable` is "error"; the message gives the lines.
    """
    forms, data = run.recipe.forms(), run.recipe.data
    lines = {
        role: check_files(split, getattr(data, role), data.sources, forms, data.unreadable, parts)[1]
        for role, split in splits.items()
    }
    write_json(run.folder / UNREADABLE_FILES, lines)


def without_unreadable(run: TrainingRun, splits: dict[str, Split]) -> dict[str, Split]:
    """Make the pictures and recordings that are listed in `unreadable.json` absent.

    Args:
        run: The run.
        splits: The splits by role.

    Returns:
        The splits by role, without these pictures and recordings.

    Raises:
        ValueError: If the file is damaged; the message names it.
    """
    path = run.folder / UNREADABLE_FILES
    lines = read_json(path)
    if missing := [role for role in splits if not isinstance(lines.get(role), dict)]:
        raise ValueError(f"{path} is damaged: the lines of {missing[0]!r} are missing")
    return {
        role: take_away(split, lines[role], run.recipe.data.sources) if lines[role] else split
        for role, split in splits.items()
    }


def encode_data(
    run: TrainingRun,
    rows: Mapping[str, list[Row]],
    fingerprints: Mapping[str, JsonObject],
    processor: MultiSourceProcessor,
) -> dict[str, Sequence[Example]]:
    """Encode the texts of the rows, unless an earlier run has encoded them.

    The numbers of texts that are too long and of unknown symbols are printed.

    Args:
        run: The run.
        rows: Rows of the model's sources, by role.
        fingerprints: Fingerprints of the data, by role.
        processor: The run's processor, which is already saved in the run's folder.

    Returns:
        Examples for the collator, by role.

    Raises:
        ValueError: If all training rows would be dropped because of their length.
    """
    data = run.recipe.data
    parts = contents_of(run.folder, processor)
    form: list[Any] = [data.concatenate, data.mark_sources, data.reverse, *(["write"] if data.write_sources else [])]
    if data.placeholders is not None:
        form += [data.placeholders, inspect.getsource(placeholders), inspect.getsource(masking)]
    drops = {role: role == "train" and data.too_long == DROP for role in fingerprints}
    places = {
        role: place_of([now, parts, data.sources, data.target, *form, data.max_length, drops[role]])
        for role, now in fingerprints.items()
    }

    def encode() -> None:
        for role, place in places.items():
            store_rows(place, processor, rows[role], data.model_target, data.max_length, drop=drops[role])
            if (read_report(place) or {}).get("dropped_too_long") == len(rows[role]):
                raise ValueError(
                    f"data.too_long is drop, and all {len(rows[role])} training rows have a text of more than "
                    f"data.max_length ({data.max_length}) tokens"
                )

    run.together(lambda: encode() if run.args.local_process_index == 0 else None, everywhere=True)
    if run.args.process_index == 0:
        note = unknown_note(data.dev, find_unknown(processor, rows["dev"], data.model_target))
        if note:
            print(note, flush=True)
    examples: dict[str, Sequence[Example]] = {}
    for role, place in places.items():
        run.say(f"{role}, tokens", read_report(place) or {})
        stored = stored_rows(processor, place)
        examples[role] = MixedExamples(processor, rows[role], stored) if has_others(processor) else stored
        if role == "train" and data.joined_dropout:
            examples[role] = drop_joined(data, stored, processor.get_tokenizer("all"), run.args.seed)
    return examples
