"""Score baselines without a model: copies of a source and answers of a translation memory.

The memory holds the rows of the training split. As in `hf-multisource localize`, it answers a row if one of its rows
has exactly the same sources with the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from hf_multisource.data.catalogues import one_line
from hf_multisource.data.files import single_line, write_json, write_text
from hf_multisource.data.rows import Row, Split
from hf_multisource.data.translation_memory import TranslationMemory
from hf_multisource.evaluation.conditions import count_whole, measure, summarize
from hf_multisource.evaluation.decoding import Decoded, Hypothesis
from hf_multisource.evaluation.presence import measure_presence
from hf_multisource.evaluation.scoring import PACKAGES
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.provenance import hardware
from hf_multisource.recipes.recipe import DataRecipe
from hf_multisource.source_kinds import is_absent


def remembered_texts(
    memory: Sequence[Row],
    rows: Sequence[Row],
    sources: Sequence[str],
    target: str,
    *,
    syntax: str | None = None,
    similar: bool = False,
) -> list[str | None]:
    """Look up rows in a translation memory.

    Args:
        memory: The rows that the memory holds.
        rows: The rows to translate; their targets are not read.
        sources: Names of the sources that are compared.
        target: Name of the target.
        syntax: Syntax of the placeholders. A translation is rejected if its placeholders differ from those of the first
            present source. None: placeholders are not checked.
        similar: Whether a row without an exact match gets the translation of the text that is most similar to one
            of its sources, if there is a similar one. The placeholders of this translation are not checked.

    Returns:
        The translation of each row (the most frequent one if there are several); None if the memory has no answer.

    Raises:
        ImportError: If `similar` is true and the package rapidfuzz is not installed.
    """
    known = TranslationMemory()
    for row in memory:
        known.add(_present(row, sources), row[target] or "", from_line=True)
    answers: list[str | None] = []
    for row in rows:
        present = _present(row, sources)
        texts = {name: text.replace("\\n", "\n") for name, text in present.items()}
        found = known.answer(texts, next(iter(texts.values()), ""), syntax)
        answer = one_line(found[0].text) if found else None
        if answer is None and similar and (hint := known.similar(texts)):
            answer = hint.text
        answers.append(answer)
    return answers


def _present(row: Row, sources: Sequence[str]) -> dict[str, str]:
    """Return the texts of the sources that are present in a row."""
    return {name: row[name] for name in sources if not is_absent(row[name])}


def describe_answers(answers: Sequence[str | None], references: Sequence[str]) -> JsonObject:
    """Count the rows that a memory answers, and the correct answers.

    Args:
        answers: The answer for each row; None: no answer.
        references: The reference of each row.

    Returns:
        The numbers of `rows`, of `answered` rows and of `right` answers, which have the same words as the reference.
    """
    pairs = [(text, other) for text, other in zip(answers, references, strict=True) if text is not None]
    right = METRICS["exact_match"].measure(*map(list, zip(*pairs, strict=True))).score() if pairs else 0.0
    return {"rows": len(answers), "answered": len(pairs), "right": round(right * len(pairs) / 100)}


def score_texts(
    folder: Path,
    texts: Sequence[str],
    split: Split,
    data: DataRecipe,
    *,
    sources: Sequence[str],
    command: str,
    memory: Mapping[str, Any] | None = None,
) -> JsonObject:
    """Score hypotheses and write the files that `score` writes for a run, except for those that need a model.

    Args:
        folder: Folder to write to.
        texts: The hypothesis of each row.
        split: The rows, with all sources of the experiment.
        data: The data section: target, metrics, syntax of the placeholders, and name of the test split.
        sources: Names of the sources from which the hypotheses were made.
        command: The command line, for the report.
        memory: Facts about the memory for the report; None if no memory was used.

    Returns:
        The report.
    """
    name, references = data.test, [row[data.target] or "" for row in split.rows]
    lines = [single_line(text) for text in texts]
    decoded = Decoded([[Hypothesis(line, None)] for line in lines], 0.0)
    figures = {
        "hypotheses": f"{name}.all.txt",
        **measure(decoded, split.rows, data.target, data.metrics, None),
    }
    report: JsonObject = {
        "run": folder.parent.name,
        "split": name,
        "sources": list(sources),
        "target": data.target,
        "data": split.report,
        "unknown": {},
        "search": None,
        "hardware": hardware(torch.device("cpu")),
        "threads": torch.get_num_threads(),
        "versions": {package: version(package) for package in PACKAGES},
        "commands": [command],
        "date": datetime.now(timezone.utc).date().isoformat(),
        "conditions": {"all": summarize([figures])},
        "presence": measure_presence(lines, references, split.rows, data.sources, data.metrics),
    }
    if data.placeholders is not None:
        report["placeholders"] = count_whole(lines, split.rows, sources, data.placeholders)
    if memory is not None:
        report["memory"] = dict(memory)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.all.txt", "".join(f"{line}\n" for line in lines))
    write_text(folder / f"{name}.reference.txt", "".join(f"{single_line(line)}\n" for line in references))
    write_json(folder / f"{name}.json", report)
    return report
