"""Count filled and refused texts by origin, and format the counts as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hf_multisource.data.catalogues import path_tail, shown_place
from hf_multisource.evaluation.localization import Plan, count_sources
from hf_multisource.evaluation.localization_answers import ACCESS_KEY, MODEL, ORIGINS, Answer, answer_from_memory
from hf_multisource.json_files import JsonObject
from hf_multisource.messages import shown_key

SHOWN = 3  # maximum number of examples that are listed per reason of refusal


def count_answers(plan: Plan, answers: Sequence[Answer]) -> JsonObject:
    """Count texts by file, by number of sources and by reason of refusal.

    Args:
        plan: The plan.
        answers: An answer for each missing text.

    Returns:
        `files`: path -> number of texts by outcome; `sources`: number of sources -> number of missing texts; `refused`:
        reason -> number of texts, and examples; `unread`: language -> number of files and messages that could not be
        read, and examples; `warnings`: number of files with a warning, and examples.
    """
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
            key = missing.key.replace("\x04", " | ")
            reasons.setdefault(answer.reason, []).append(f"{missing.file}: {key}{missing.part}")
    refused = {reason: {"texts": len(places), "examples": places[:SHOWN]} for reason, places in reasons.items()}
    by_sources = {str(number): count for number, count in count_sources(plan.missing).items()}
    unread = {name: {"number": len(found), "examples": [*found[:SHOWN]]} for name, found in plan.unread.items()}
    warnings = [f"{file.path}: {file.warning}" for file in plan.files if file.warning]
    return {
        "files": files,
        "sources": by_sources,
        "refused": refused,
        "unread": unread,
        "warnings": {"number": len(warnings), "examples": warnings[:SHOWN]},
    }


def preview(plan: Plan) -> JsonObject:
    """Count how many texts each origin would fill, without loading a model.

    Args:
        plan: The plan.

    Returns:
        The counts of `OUT.json`; texts for the model have the origin `model`.
    """
    answers = answer_from_memory(plan)
    for answer in answers:
        if not (answer.origin or answer.reason):
            answer.origin = ACCESS_KEY if answer.missing.labels else MODEL
    return count_answers(plan, answers)


def describe_counts(counts: JsonObject) -> str:
    """Return the counts as a table.

    Args:
        counts: The counts of `OUT.json`.

    Returns:
        A line for each file in which texts are missing, a sum, the numbers of sources, why texts are refused, what
        could not be read, and warnings.
    """
    names = ["kept", "unreviewed", "missing", *ORIGINS, "refused"]
    rows = {path: [found.get(name, 0) for name in names] for path, found in counts["files"].items()}
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    lines = {path: numbers for path, numbers in rows.items() if numbers[names.index("missing")]}
    cells = [["file", *names], *([shown_key(path_tail(path)), *map(str, row)] for path, row in lines.items())]
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
        examples = "; ".join(shown_key(path_tail(one)) for one in found["examples"])
        table.append(f"refused, {found['texts']}: {reason}, for example {examples}")
    for language, found in counts.get("unread", {}).items():
        examples = "; ".join(map(shown_place, found["examples"]))
        table.append(f"not read of {language!r}, {found['number']}: {examples}")
    if (warnings := counts.get("warnings", {})).get("number"):
        table.append(f"warnings, {warnings['number']}: {'; '.join(map(shown_place, warnings['examples']))}")
    return "\n".join(table)


__all__ = ["count_answers", "describe_counts", "preview"]
