"""Render the page of an experiment, docs/results/<experiment>.md, from the folder docs/results/<experiment>.

The folder holds a JSON file for each row, `experiment.yaml` with the description of the rows, and optionally `notes.md`
with notes. The first paragraph of the notes opens the page. All figures of the tables come from the JSON files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_multisource.data.files import write_text
from hf_multisource.data.privacy import publishable
from hf_multisource.evaluation.experiment_figures import WORDS, draw_figures
from hf_multisource.evaluation.results import (
    by_condition,
    learning_curves,
    length_rule,
    read_result,
    signatures_of,
    split_notes,
    unfinished_rule,
)
from hf_multisource.evaluation.row_analysis import source_sections, symbol_section, word_section
from hf_multisource.evaluation.tables import format_table
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.bootstrap import equivalence
from hf_multisource.metrics.table import METRICS, Metric, metrics_of
from hf_multisource.recipes.experiments import LOOKED_UP, Experiment
from hf_multisource.recipes.reading import read_yaml

EXPERIMENT = "experiment.yaml"
UNKNOWN = 10  # maximum number of unknown symbols that are listed per column
QUICK = (
    "**This is a quick run: few rows, one seed, few epochs. Training has not leveled off, so the figures show that "
    "everything works, not how good the rows are.**\n\n"
)


def describe_experiment(experiment: Experiment) -> str:
    """Describe an experiment in YAML, as the page needs it.

    Args:
        experiment: The experiment.

    Returns:
        The content of `EXPERIMENT`.
    """
    shown = {
        name: {
            "label": row.label,
            row.kind: row.settings,
            **({"parameters_as": row.parameters_as} if row.parameters_as else {}),
            **({"against": row.against} if row.against else {}),
        }
        for name, row in experiment.rows.items()
        if row.shown
    }
    keys = ("recipe", "sources", "target", "train", "score", "baseline", "analyzed", "command", "margin")
    facts = {key: getattr(experiment, key) for key in keys}
    facts |= {"quick": experiment.is_quick, "rows": shown}
    return yaml.safe_dump(
        publishable({**facts, "published": experiment.published}), sort_keys=False, allow_unicode=True
    )


def write_page(name: str, results: Path) -> Path:
    """Write the page of an experiment from its folder.

    Args:
        name: Name of the experiment.
        results: Folder of all tables.

    Returns:
        The page.
    """
    folder = results / name
    experiment, notes = read_yaml(folder / EXPERIMENT), folder / "notes.md"
    rows = [read_result(path) for row in experiment["rows"] if (path := folder / f"{row}.json").exists()]
    page = results / f"{name}.md"
    said = notes.read_text(encoding="utf-8") if notes.exists() else ""
    write_text(page, render(name, experiment, rows, said, draw_figures(name, experiment, rows, results)))
    return page


def render(
    name: str, experiment: Mapping[str, Any], rows: Sequence[JsonObject], notes: str = "", figures: Sequence[str] = ()
) -> str:
    """Return the page of an experiment.

    Args:
        name: Name of the experiment.
        experiment: Content of `EXPERIMENT`.
        rows: Rows as `make_row` returns them, in order; at least one.
        notes: Interpretation of the rows, in Markdown; the first paragraph opens the page.
        figures: Paths of the figures, as `draw_figures` returns them.

    Returns:
        Markdown.
    """
    opening, rest = split_notes(notes)
    lead = (f"{opening}\n\n" if opening else "") + (QUICK if experiment["quick"] else "")
    if f"{name}.png" in figures:
        lead += f"![Scores by number of sources present]({name}.png)\n\n"
    rows = [{**row, "label": experiment["rows"][row["name"]]["label"]} for row in rows]
    metrics = list(dict.fromkeys(metric for row in rows for metric in metrics_of(row["scores"]["all"])))
    head = METRICS[metrics[0]]
    published = experiment["published"]
    masked = ["placeholders", "empty"] if any("placeholders" in row for row in rows) else []
    lines = [
        [
            row["label"],
            _seeds(experiment, row),
            *(_score(row["scores"]["all"].get(metric), metric) for metric in metrics),
            *(_placeholders(row) if masked else []),
            *_training(experiment, row),
        ]
        for row in rows
    ]
    labels = [METRICS[metric].label for metric in metrics]
    header = ["row", "seeds", *labels, *masked, "leveled off", "updates", "minutes", "parameters"]
    for other in published:
        known = [f"*{other['label']}*", "", *(str(other["scores"].get(metric, "")) for metric in metrics)]
        lines.append([*known, *[""] * (len(header) - len(known))])
    remarks = [f"- *{row['label']}*: {_choice(row['choice'])}\n" for row in rows if row.get("choice")]
    remarks += [f"- *{row['label']}*: {_memory(row)}\n" for row in rows if row.get("memory")]
    remarks += [f"- *{other['label']}*: {other['citation']}\n" for other in published]
    sections = [
        f"""\
<!-- Made by `hf-multisource reproduce` from what lies in {name}/. Do not edit. -->
# {name}

{lead}{_introduction(experiment, rows, metrics)}

{format_table(header, lines)}

{"".join(remarks)}"""
    ]
    sections += [
        part
        for part in (
            *differences(experiment, rows, metrics[0]),
            by_number(rows, metrics[0], published),
            by_source(rows, metrics[0]),
            *(source_sections(row) for row in rows if "left_out" in row),
            by_condition([{**row, "name": row["label"]} for row in rows if "left_out" not in row], metrics[0]),
            *(symbol_section(row) for row in rows if "symbols" in row),
            *(word_section(row, f"{name}/{WORDS}") for row in rows if f"{name}/{WORDS}" in figures and "words" in row),
            f"## What they show\n\n{rest}\n" if rest else "",
            curves(experiment, rows, head),
            how_made(name, experiment, rows, metrics),
        )
        if part
    ]
    return "\n".join(sections)


def _introduction(experiment: Mapping[str, Any], rows: Sequence[JsonObject], metrics: Sequence[str]) -> str:
    """Return the text that explains the columns of the main table."""
    head = METRICS[metrics[0]]
    numbers = rows[0].get("presence", {}).get("number", {})
    size = f"{sum(own['n'] for own in numbers.values()):,} examples of the split" if numbers else "the split"
    several = any("runs" in row for row in rows)
    spread = "Scores are mean ± standard deviation over the seeds." if several else "Every row has one seed."
    better = [
        f"{words} is better: {', '.join(METRICS[name].label for name in found)}."
        for words, higher in (("Higher", True), ("Lower", False))
        if (found := [name for name in metrics if METRICS[name].higher_is_better == higher])
    ]
    lines = [
        f"Test set: {size} `{rows[0]['split']}`, with target {rows[0]['target']} and sources "
        f"{', '.join(experiment['sources'])}. {spread} {' '.join(better)}",
        "*leveled off*: number of seeds whose training no longer improved at the end. A training has not leveled off "
        f"while {unfinished_rule(head, 'the')}; more updates may then raise the scores of the row.",
        "*minutes*: training time of one seed. For a row made of several models, minutes and parameters are sums.",
    ]
    if any("placeholders" in row for row in rows):
        lines.append(
            "*placeholders*: share of the hypotheses that are not empty in which every placeholder and all markup of "
            "the source is whole. The source is the first one that the row reads and the example has. *empty*: "
            "number of examples without a hypothesis."
        )
    if any(_is_looked_up(experiment, row) for row in rows):
        lines.append("A row without seeds needs no model and is not trained.")
    if unknown := _unknown(rows):
        lines.append(f"Symbols of the test split that never occur in the training split: {unknown}.")
    if experiment["published"]:
        lines.append("Rows in italics are published figures.")
    return "\n".join(lines)


def _unknown(rows: Sequence[JsonObject]) -> str:
    """Return the unknown symbols by column, in words, from the row that distinguishes the most columns."""
    found: Mapping[str, Mapping[str, int]] = max((row.get("unknown", {}) for row in rows), key=len)
    return "; ".join(
        f"{name}: {', '.join(list(counts)[:UNKNOWN])}"
        + (f" and {len(counts) - UNKNOWN} more" if len(counts) > UNKNOWN else "")
        for name, counts in found.items()
    )


def _choice(choice: Mapping[str, Any]) -> str:
    """Return in words how the source of a row of the kind `best_source` was chosen."""
    metric = METRICS[choice["metric"]]
    scores = ", ".join(f"{source} {metric.show(score)}" for source, score in choice["scores"].items())
    return (
        f"{choice['source']}, the best on the dev split with seed {choice['seed']} ({metric.label}: {scores}). An "
        "example without the source counts as wrong."
    )


def _memory(row: Mapping[str, Any]) -> str:
    """Return in words how many examples the translation memory answers."""
    found = row["memory"]
    return (
        f"the memory is the training split. It answers {found['answered']:,} of {found['rows']:,} examples, "
        f"{found['right']:,} of them exactly as the reference; it is asked with {', '.join(found['sources'])}."
    )


def _is_looked_up(experiment: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Return whether the hypotheses of a row are looked up, without a model."""
    return bool(set(LOOKED_UP) & set(experiment["rows"][row["name"]]))


def _training(experiment: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Return the table cells about training; they are empty for a row without a model."""
    if _is_looked_up(experiment, row):
        return [""] * 4
    parameters = f"{row['parameters'] / 1e6:.{2 if row['parameters'] >= 1e5 else 4}f} M"
    return [_leveled_off(experiment, row), f"{row['updates']:,}", f"{row['minutes']:.1f}", parameters]


def _placeholders(row: Mapping[str, Any]) -> list[str]:
    """Return the share of hypotheses with intact placeholders and the number of empty ones, averaged over the seeds."""
    if (found := row.get("placeholders")) is None:
        return ["", ""]
    share = f"{100 * found['whole'] / found['written']:.1f} %" if found["written"] else ""
    return [share, f"{found['rows'] - found['written']:,.1f}".removesuffix(".0")]


def _capitalized(label: str) -> str:
    """Return the label of a metric, capitalized for the beginning of a sentence."""
    return label[0].upper() + label[1:]


def _score(entry: Mapping[str, Any] | None, metric: str) -> str:
    """Format mean and standard deviation over the seeds; for one seed, only the score."""
    if entry is None:
        return ""
    show = METRICS[metric].show
    return f"{show(entry['score'])} ± {show(entry['seeds_sd'])}" if "seeds" in entry else show(entry["score"])


def _leveled_off(experiment: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return in words for how many seeds the training has leveled off; empty for an ensemble, which is not trained."""
    if "ensemble" in experiment["rows"][row["name"]]:
        return ""
    seeds = row.get("runs", [row])
    return f"{sum(seed['finished'] for seed in seeds)} of {len(seeds)}"


def _seeds(experiment: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return the number of seeds; for an ensemble, also the number of models that decode together."""
    if _is_looked_up(experiment, row):
        return ""
    if "ensemble" in experiment["rows"][row["name"]]:
        models = f"{len(row.get('made_of', [row]))} together"
        return f"{len(row['runs'])} × {models}" if "runs" in row else models
    return str(len(row.get("runs", [row])))


def differences(experiment: Mapping[str, Any], rows: Sequence[JsonObject], metric: str) -> list[str]:
    """Render the sections with the differences to the baseline row and to other reference rows.

    Args:
        experiment: Content of `EXPERIMENT`.
        rows: The rows, with labels.
        metric: The metric.

    Returns:
        Markdown of each section; empty if no row was compared.
    """
    compared: dict[str, list[tuple[str, Mapping[str, float]]]] = {experiment["baseline"]: []}
    for row in rows:
        if row["baseline"] and metric in row["baseline"]:
            reference = experiment["rows"][row["name"]].get("against", experiment["baseline"])
            compared.setdefault(reference, []).append((row["label"], row["baseline"][metric]))
    return [_differences(experiment, name, found, metric) for name, found in compared.items() if found]


def _differences(
    experiment: Mapping[str, Any], reference: str, compared: Sequence[tuple[str, Mapping[str, float]]], metric: str
) -> str:
    """Render the section with the differences to one reference row."""
    show, margin = METRICS[metric].show, experiment["margin"]
    lines = [
        [
            label,
            show(found["difference"], sign=True),
            f"[{show(found['difference_low'], sign=True)}, {show(found['difference_high'], sign=True)}]",
            f"{found['p_value']:.3f}",
            f"{found['p_randomization']:.3f}",
            *([_verdict(equivalence(found, margin), margin)] if margin else []),
        ]
        for label, found in compared
    ]
    whose = "the baseline" if reference == experiment["baseline"] else "this one"
    header = ["row", "difference", "95 %", "p (bootstrap)", "p (randomization)", *(["in words"] if margin else [])]
    words = (
        f' "different": the 95 % interval excludes 0. "level within {margin}": the 90 % interval lies inside '
        f'±{margin}, so a larger difference is excluded. "undecided": neither.'
        if margin
        else ""
    )
    return f"""\
## Differences to {experiment["rows"][reference]["label"]}

{_capitalized(METRICS[metric].label)} of the row minus that of {whose}, each the mean over its seeds. The interval
and *p (bootstrap)* come from a paired bootstrap over the test examples, *p (randomization)* from approximate
randomization. *p (bootstrap)* is computed as in sacreBLEU and is one-sided; the interval and *p (randomization)* are
two-sided. Both tests draw examples, not seeds: they do not say whether other seeds give the same difference.{words}

{format_table(header, lines)}
"""


def _verdict(verdict: str, margin: float) -> str:
    """Return the verdict of `equivalence` in words."""
    return f"level within {margin}" if verdict == "level" else verdict


def by_number(rows: Sequence[JsonObject], metric: str, published: Sequence[Mapping[str, Any]]) -> str:
    """Render the scores by number of present sources; empty if all sentences have the same number.

    Args:
        rows: The rows, with labels.
        metric: The metric.
        published: Published figures of other systems; `number` maps the number of sources to their scores.

    Returns:
        Markdown.
    """
    groups: dict[str, int] = {}
    for row in rows:
        groups |= {label: own["n"] for label, own in row.get("presence", {}).get("number", {}).items()}
    if not groups:
        return ""
    order = sorted(groups, key=int)
    lines = [_present(row, "number", order, metric) for row in rows]
    lines += [
        [f"*{other['label']}*", *(str(other["number"].get(int(label), "")) for label in order)]
        for other in published
        if "number" in other
    ]
    header = ["row", *(f"{label} source{'s' * (label != '1')} ({groups[label]})" for label in order)]
    return f"""\
## By number of sources present

{_capitalized(METRICS[metric].label)} of the test examples with this number of sources. In parentheses: the number of
these examples.

{format_table(header, lines)}
"""


def by_source(rows: Sequence[JsonObject], metric: str) -> str:
    """Render the scores of the sentences with and without each source; empty if no source is ever absent.

    Args:
        rows: The rows, with labels.
        metric: The metric.

    Returns:
        Markdown.
    """
    header, columns = ["row"], [[row["label"] for row in rows]]
    for kind in ("with", "without"):
        for label, own in rows[0].get("presence", {}).get(kind, {}).items():
            header.append(f"{kind} {label} ({own['n']})")
            columns.append([_present(row, kind, [label], metric)[1] for row in rows])
    if len(header) == 1:
        return ""
    lines = [list(line) for line in zip(*columns, strict=True)]
    return f"""\
## With and without each source

{_capitalized(METRICS[metric].label)} of the test examples that have a source, and of those that lack it; their numbers
are in parentheses. The two groups are different examples, so the difference between them is not the effect of the
source.

{format_table(header, lines)}
"""


def _present(row: JsonObject, kind: str, labels: Sequence[str], metric: str) -> list[str]:
    """Return the table cells of a row for the groups of one kind."""
    found = row.get("presence", {}).get(kind, {})
    return [row["label"], *(_score(found.get(label, {}).get(metric), metric) for label in labels)]


def curves(experiment: Mapping[str, Any], rows: Sequence[JsonObject], metric: Metric) -> str:
    """Render the section with the learning curves of the trained rows; empty if no row was trained.

    Args:
        experiment: Content of `EXPERIMENT`.
        rows: The rows, with labels.
        metric: The metric.

    Returns:
        Markdown.
    """
    kinds = experiment["rows"]
    trained = [row for row in rows if {"train", "best_source"} & set(kinds[row["name"]]) and row["curve"]]
    if not trained:
        return ""
    fewer = {len(row["sources"]) for row in trained if len(row["sources"]) < len(experiment["sources"])}
    some = " A row with some of the sources is scored on the dev examples that have any of them." if fewer else ""
    alone = " A row with a single source is scored on the dev examples that have it."
    return f"""\
## Learning curves

{_capitalized(metric.label)} of greedy search on the dev split, mean over the seeds.\
{alone if fewer == {1} else some}

{learning_curves([{**row, "name": row["label"]} for row in trained], metric)}
"""


def how_made(name: str, experiment: Mapping[str, Any], rows: Sequence[JsonObject], metrics: Sequence[str]) -> str:
    """Render the section on the provenance of each row: commands, date and hardware.

    Args:
        name: Name of the experiment.
        experiment: Content of `EXPERIMENT`.
        rows: The rows, with labels.
        metrics: Metrics whose signatures are listed.

    Returns:
        Markdown.
    """
    facts = [_facts(row) for row in rows]
    written = [own for row, own in zip(rows, facts, strict=True) if row["search"] is not None] or facts
    common = [fact for fact in written[0] if all(fact in own for own in written)]
    parts = []
    for row, own in zip(rows, facts, strict=True):
        settings = {key: value for key, value in experiment["rows"][row["name"]].items() if key != "label"}
        said = [f"`{_flow(settings)}`"]
        if "widths" in row:
            said.append("found " + ", ".join(f"{key} {value}" for key, value in row["widths"].items()))
        seeds = ", ".join(str(seed["seed"]) for seed in row.get("runs", [row]))
        if "ensemble" in settings:
            said.append(f"made of {', '.join(row.get('made_of', []))}")
        said += [fact for fact in own if fact not in common]
        number = "" if _is_looked_up(experiment, row) else f"; seed{'s' * (',' in seeds)} {seeds}"
        parts.append(f"- **{row['label']}** ({row['name']}; {row['date']}{number}): {'; '.join(said)}.\n")
    changed = f", changed in all rows by `{_flow(experiment['train'])}`" if experiment["train"] else ""
    which = "All rows" if len(written) == len(facts) else "All rows that a model has written"
    shared = f" {which}: {'; '.join(common)}." if common else ""
    return f"""\
## How the rows were made

`{experiment["command"]}`: recipe {experiment["recipe"]}{changed}. The commands of every run are in the JSON files in
{name}/.{shared}

{"".join(parts)}
How the metrics were computed:

{signatures_of(rows, metrics)}"""


def _flow(settings: Mapping[str, Any]) -> str:
    """Format settings as YAML in one line."""
    return str(
        yaml.safe_dump(dict(settings), default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    ).strip()


def _facts(row: Mapping[str, Any]) -> list[str]:
    """Return in words from which runs and with which settings a row was made."""
    packages = ", ".join(f"{package} {number}" for package, number in row["versions"].items())
    if row["search"] is None:
        return [f"sources {' '.join(row['sources'])}", packages]
    return [
        f"sources {' '.join(row['sources'])}",
        f"trained on {row['hardware']}, {row['threads']} thread{'s' * (row['threads'] != 1)}",
        f"beam {row['search']['num_beams']}, {length_rule(row['search'])}",
        packages,
    ]
