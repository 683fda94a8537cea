"""Analyze one row of an experiment: effect of each source, errors by symbol, and single words.

Sources and symbols are analyzed on the hypotheses of all seeds; words are scored by the models with teacher forcing.
The JSON values that the functions return are stored in the row, and the sections of the page are made from them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_multisource.data.files import read_lines
from hf_multisource.data.normalization import compose
from hf_multisource.data.rows import Row
from hf_multisource.evaluation.decoding import load_model
from hf_multisource.evaluation.likelihood import log_probabilities
from hf_multisource.evaluation.perturbations import make_absent
from hf_multisource.evaluation.results import read_result, runs_of
from hf_multisource.evaluation.tables import format_table
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.bootstrap import pooled_bootstrap
from hf_multisource.metrics.symbols import count_symbol_errors
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.shipped import RECIPE
from hf_multisource.source_kinds import is_absent

CONFUSIONS = 10  # number of most frequent confusions that a page shows
FREQUENT = 0.01  # minimum share among all symbols for a symbol's error rate to be shown
THIRDS = ("first third", "middle third", "last third")


def measure_sources(
    folder: Path, split: str, rows: Sequence[Row], sources: Sequence[str], metrics: Sequence[str]
) -> JsonObject:
    """Compare the scores without each source, and with each source alone, with the scores of all sources.

    Args:
        folder: Run folder or folder of seeds; only runs that were scored with each source absent and alone are used.
        split: Name of the test split.
        rows: Rows of the split.
        sources: Names of the sources.
        metrics: Names of metrics that compare texts with references alone.

    Returns:
        For each source that occurs in a row together with another source: `n`, the number of such rows, on which all
        figures are computed; and `all`, `absent` and `only`, the mean scores over the seeds by metric. `absent` and
        `only` also hold the difference to `all`, as `pooled_bootstrap` returns it.
    """
    conditions = {f"{kind}-{source}" for source in sources for kind in ("absent", "only")}
    runs = [run for run in runs_of(folder) if conditions <= _conditions(run, split)]
    if not runs:
        return {}
    references = read_lines(runs[0] / "scores" / f"{split}.reference.txt")
    measured: JsonObject = {}
    for source in sources:
        chosen = [
            i
            for i, row in enumerate(rows)
            if not is_absent(row[source]) and any(not is_absent(row[name]) for name in sources if name != source)
        ]
        if not chosen:
            continue
        targets = [references[i] for i in chosen]
        texts = {}
        for kind, condition in (("all", "all"), ("absent", f"absent-{source}"), ("only", f"only-{source}")):
            written = (read_lines(run / "scores" / f"{split}.{condition}.txt") for run in runs)
            texts[kind] = [[lines[i] for i in chosen] for lines in written]
        entry: JsonObject = {"n": len(chosen)}
        for kind, own in texts.items():
            compared = {} if kind == "all" else pooled_bootstrap(own, texts["all"], targets, metrics=metrics)
            entry[kind] = {
                name: {
                    "score": statistics.fmean(METRICS[name].measure(seed, targets).score() for seed in own),
                    **compared.get(name, {}),
                }
                for name in metrics
            }
        measured[source] = entry
    return measured


def _conditions(run: Path, split: str) -> set[str]:
    """Return the names of the conditions in which a run was scored completely."""
    return set(read_result(run / "scores" / f"{split}.json")["conditions"])


def measure_symbols(folder: Path, split: str) -> JsonObject:
    """Count the most frequent errors of the hypotheses of all seeds.

    Args:
        folder: Run folder or folder of seeds with scores.
        split: Name of the test split.

    Returns:
        Means over the seeds: `errors` and `symbols`, the numbers of errors and symbols; `confusions`, the most frequent
        confusions; `frequent`, the `count` and error `rate` of each frequent symbol; `thirds`, the numbers of errors
        and symbols in each third of the words.
    """
    runs = runs_of(folder)
    hypotheses, references = (
        [compose(text) for run in runs for text in read_lines(run / "scores" / f"{split}.{name}.txt")]
        for name in ("all", "reference")
    )
    found = count_symbol_errors(hypotheses, references)
    total = found.symbols.total()
    ordered = sorted(found.confusions.items(), key=lambda item: (-item[1], item[0]))
    frequent = {symbol: count for symbol, count in sorted(found.symbols.items()) if count >= FREQUENT * total}
    return {
        "errors": found.confusions.total() / len(runs),
        "symbols": total / len(runs),
        "confusions": [
            {"reference": one, "hypothesis": other, "count": count / len(runs)}
            for (one, other), count in ordered[:CONFUSIONS]
        ],
        "frequent": {
            symbol: {"count": count / len(runs), "rate": found.rate(symbol)} for symbol, count in frequent.items()
        },
        "thirds": [{"errors": errors / len(runs), "symbols": count / len(runs)} for errors, count in found.thirds],
    }


def measure_words(
    run: Path, words: Sequence[Mapping[str, str]], sources: Sequence[str], target: str
) -> list[JsonObject]:
    """Measure the effect of each source on the log-probability of target words, for a model with any combiner.

    Args:
        run: Run folder.
        words: For each word, its texts in the target and the present sources, by name.
        sources: Names of the sources.
        target: Name of the target.

    Returns:
        For each word: `target`; `sources`, the texts by source; `log_probability` of the target given all sources, in
        nats; and `drops`, the decrease of this log-probability without each source. The only source of a word has no
        drop.
    """
    rows: list[Row] = [{name: word.get(name) for name in (*sources, target)} for word in words]
    without = [
        (i, name, make_absent([row], [name])[0])
        for i, row in enumerate(rows)
        for name in sources
        if row[name] and sum(row[other] is not None for other in sources) > 1
    ]
    model, processor = load_model(str(run))
    data = load_recipe(run / RECIPE).data
    read = data.model_rows([*rows, *(row for _, _, row in without)])
    values = log_probabilities(model, processor, read, target, data.max_length)
    found: list[JsonObject] = [
        {
            "target": row[target],
            "sources": {name: row[name] for name in sources if row[name] is not None},
            "log_probability": value,
            "drops": {},
        }
        for row, value in zip(rows, values, strict=False)
    ]
    for (i, name, _), value in zip(without, values[len(rows) :], strict=True):
        found[i]["drops"][name] = values[i] - value
    return found


def mean_words(measured: Sequence[Sequence[Mapping[str, Any]]]) -> list[JsonObject]:
    """Average the output of `measure_words` over seeds.

    Args:
        measured: Output of `measure_words` for each seed, for the same words.

    Returns:
        The same with means of `log_probability` and `drops`.
    """
    return [
        {
            **seeds[0],
            "log_probability": statistics.fmean(word["log_probability"] for word in seeds),
            "drops": {name: statistics.fmean(word["drops"][name] for word in seeds) for name in seeds[0]["drops"]},
        }
        for seeds in zip(*measured, strict=True)
    ]


def source_sections(row: Mapping[str, Any]) -> str:
    """Render the section on the effect of each source on the same sentences.

    Args:
        row: The row, with its label, and the output of `measure_sources` as `left_out`.

    Returns:
        Markdown; empty if no row has a source beside another one.
    """
    measured = row["left_out"]
    if not measured:
        return ""
    tables = []
    for metric in next(iter(measured.values()))["all"]:
        show = METRICS[metric].show
        lines = []
        for source, entry in measured.items():
            line = [source, str(entry["n"]), show(entry["all"][metric]["score"])]
            for kind in ("absent", "only"):
                own = entry[kind][metric]
                low, high = (show(own[f"difference_{end}"], sign=True) for end in ("low", "high"))
                line += [show(own["score"]), show(own["difference"], sign=True), f"[{low}, {high}]"]
            lines.append(line)
        header = ["source", "examples", "all sources", "without it", "difference", "95 %"]
        label = METRICS[metric].label
        tables.append(
            f"{label[0].upper()}{label[1:]}:\n\n{format_table([*header, 'alone', 'difference', '95 %'], lines)}\n"
        )
    return f"""\
## What each source gives

Row: {row["label"]}. Its models, without further training, are scored without one source and with this source alone, on
the test examples that have it and at least one other source. Differences are to the scores with all sources, means over
the seeds; the intervals come from a paired bootstrap over these examples.

{chr(10).join(tables)}"""


def _count(mean: float) -> str:
    """Format a number that may be a mean over seeds."""
    return f"{mean:,.1f}".removesuffix(".0")


def symbol_section(row: Mapping[str, Any]) -> str:
    """Render the section on errors by symbol.

    Args:
        row: The row, with its label, and the output of `measure_symbols` as `symbols`.

    Returns:
        Markdown; empty if there is no error.
    """
    found = row["symbols"]
    if not found["errors"]:
        return ""
    confusions = [
        [
            one["reference"] or "(nothing)",
            one["hypothesis"] or "(nothing)",
            _count(one["count"]),
            f"{100 * one['count'] / found['errors']:.1f} %",
        ]
        for one in found["confusions"]
    ]
    ordered = sorted(found["frequent"].items(), key=lambda item: -item[1]["rate"])
    rates = [[symbol, _count(own["count"]), f"{own['rate']:.1f} %"] for symbol, own in ordered]
    thirds = [
        [name, _count(own["errors"]), f"{100 * own['errors'] / max(own['symbols'], 1):.1f}"]
        for name, own in zip(THIRDS, found["thirds"], strict=True)
    ]
    return f"""\
## Which symbols are wrong

{row["label"]}: {_count(found["errors"])} errors in {_count(found["symbols"])} symbols of the test split, means over the
seeds. References and hypotheses are aligned with as few edits as possible. The most frequent errors:

{format_table(["reference", "hypothesis", "times", "of all errors"], confusions)}

How often each symbol is replaced or left out, for the symbols that make up {100 * FREQUENT:.0f} % of the references or
more:

{format_table(["symbol", "times", "wrong"], rates)}

Where in the word the errors are:

{format_table(["part of the word", "errors", "per 100 symbols"], thirds)}
"""


def word_section(row: Mapping[str, Any], figure: str) -> str:
    """Render the section with the figure of the words.

    Args:
        row: The row, with its label, and the output of `mean_words` as `words`.
        figure: Path of the figure, relative to the page.

    Returns:
        Markdown.
    """
    return f"""\
## How much each source matters for single words

Row: {row["label"]}. The number below a word is the drop of the log-probability of the target, in nats, when this source
is taken away. It is negative if the target becomes more likely, and small if other sources hold the same information.
Beside the target: its probability given all sources (geometric mean over the seeds). The words were chosen by hand and
may be in the training split.

![Drop of the log-probability of {len(row["words"])} words without each source]({figure})
"""
