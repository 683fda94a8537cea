"""The page of an experiment: docs/results/<experiment>.md, made from the folder docs/results/<experiment>.

The folder holds a JSON file for each row, `experiment.yaml`, which says what the rows are, and `notes.md`, if somebody
has written notes. The first paragraph of the notes opens the page. No figure of a table is typed by hand.
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
from hf_multisource.metrics.table import METRICS, metrics_of
from hf_multisource.recipes.experiments import Experiment
from hf_multisource.recipes.reading import read_yaml

EXPERIMENT = "experiment.yaml"
QUICK = (
    "**This is a quick run: few rows, one seed, few epochs. Training is not flat, so the figures show that everything "
    "works, not how good the rows are.**\n\n"
)


def describe_experiment(experiment: Experiment) -> str:
    """Return what the page needs to know of an experiment.

    Args:
        experiment: The experiment.

    Returns:
        YAML.
    """
    shown = {name: {"label": row.label, row.kind: row.settings} for name, row in experiment.rows.items() if row.shown}
    keys = ("recipe", "sources", "target", "train", "score", "baseline", "analysed", "command", "margin")
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
        experiment: What `EXPERIMENT` holds.
        rows: Rows as `make_row` gives them, in order, one or more.
        notes: What they show, in Markdown; the first paragraph opens the page.
        figures: Those that were drawn, as `draw_figures` returns them.

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
    lines = [
        [
            row["label"],
            str(len(row.get("runs", [row]))),
            *(_score(row["scores"]["all"].get(metric), metric) for metric in metrics),
            _flat(row),
            f"{row['updates']:,}",
            f"{row['minutes']:.1f}",
            f"{row['parameters'] / 1e6:.2f} M",
        ]
        for row in rows
    ]
    lines += [
        [f"*{other['label']}*", "", *(str(other["scores"].get(metric, "")) for metric in metrics), "", "", "", ""]
        for other in published
    ]
    labels = [METRICS[metric].label for metric in metrics]
    header = ["row", "seeds", *labels, "flat", "updates", "minutes", "parameters"]
    cited = "".join(f"- *{other['label']}*: {other['citation']}\n" for other in published)
    sections = [
        f"""\
<!-- Made by `hf-multisource reproduce` from what lies in {name}/. Do not edit. -->
# {name}

{lead}Test set: {rows[0]["split"]} ({rows[0]["target"]}, from {", ".join(experiment["sources"])}). Scores are mean ±
standard deviation over the seeds. *flat*: seeds whose training is flat; it is not while
{unfinished_rule(head)}. *minutes*: of training, for one seed.\
{" In italics: published figures." if published else ""}

{format_table(header, lines)}

{signatures_of(rows, metrics)}{cited}"""
    ]
    sections += [
        part
        for part in (
            differences(experiment, rows, metrics[0]),
            by_number(rows, metrics[0], published),
            by_source(rows, metrics[0]),
            *(source_sections(row) for row in rows if "left_out" in row),
            by_condition([{**row, "name": row["label"]} for row in rows if "left_out" not in row], metrics[0]),
            *(symbol_section(row) for row in rows if "symbols" in row),
            *(word_section(row, f"{name}/{WORDS}") for row in rows if f"{name}/{WORDS}" in figures and "words" in row),
            f"## What they show\n\n{rest}\n" if rest else "",
            f"## Learning curves\n\n{head.label} of greedy search on the dev set, mean over the seeds. A model of one "
            "source is scored here on the sentences that have it.\n\n"
            f"{learning_curves([{**row, 'name': row['label']} for row in rows], head)}\n",
            how_made(name, experiment, rows),
        )
        if part
    ]
    return "\n".join(sections)


def _score(entry: Mapping[str, Any] | None, metric: str) -> str:
    """Mean and standard deviation over the seeds, of one seed the score alone."""
    if entry is None:
        return ""
    show = METRICS[metric].show
    return f"{show(entry['score'])} ± {show(entry['seeds_sd'])}" if "seeds" in entry else show(entry["score"])


def _flat(row: Mapping[str, Any]) -> str:
    """How many of the seeds have flat learning curves."""
    seeds = row.get("runs", [row])
    return f"{sum(seed['finished'] for seed in seeds)} of {len(seeds)}"


def differences(experiment: Mapping[str, Any], rows: Sequence[JsonObject], metric: str) -> str:
    """The section with the differences to the baseline row; empty if no row was compared.

    Args:
        experiment: What `EXPERIMENT` holds.
        rows: The rows, with labels.
        metric: The metric.

    Returns:
        Markdown.
    """
    compared = [
        (row["label"], row["baseline"][metric]) for row in rows if row["baseline"] and metric in row["baseline"]
    ]
    if not compared:
        return ""
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
    header = ["row", "difference", "95 %", "p (bootstrap)", "p (randomization)", *(["in words"] if margin else [])]
    words = (
        f' "Level within {margin}": the 90 % interval lies inside ±{margin}, so a larger difference is excluded.'
        if margin
        else ""
    )
    return f"""\
## Differences to {experiment["rows"][experiment["baseline"]]["label"]}

{METRICS[metric].label}, mean over the seeds of both rows. The interval and the first *p* are of a paired bootstrap over
the test sentences, the second *p* of approximate randomization. Neither is about other seeds.{words}

{format_table(header, lines)}
"""


def _verdict(verdict: str, margin: float) -> str:
    """What `equivalence` says, in words."""
    return f"level within {margin}" if verdict == "level" else verdict


def by_number(rows: Sequence[JsonObject], metric: str, published: Sequence[Mapping[str, Any]]) -> str:
    """The section with the scores by number of sources present; empty if all sentences have equally many.

    Args:
        rows: The rows, with labels.
        metric: The metric.
        published: Figures of others; `number` has their scores by number of sources.

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

{METRICS[metric].label} of the sentences that have so many sources. In parentheses: the number of these sentences.

{format_table(header, lines)}
"""


def by_source(rows: Sequence[JsonObject], metric: str) -> str:
    """The section with the scores of the sentences with and without each source; empty if none is ever absent.

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

{METRICS[metric].label} of the sentences that have a source, and of those that do not. They differ in more than this
source: what a source gives to the same sentences, only a model that is scored without it can show.

{format_table(header, lines)}
"""


def _present(row: JsonObject, kind: str, labels: Sequence[str], metric: str) -> list[str]:
    """The cells of a row by the groups of one kind."""
    found = row.get("presence", {}).get(kind, {})
    return [row["label"], *(_score(found.get(label, {}).get(metric), metric) for label in labels)]


def how_made(name: str, experiment: Mapping[str, Any], rows: Sequence[JsonObject]) -> str:
    """The section that says how, when and on what each row was made.

    Args:
        name: Name of the experiment.
        experiment: What `EXPERIMENT` holds.
        rows: The rows, with labels.

    Returns:
        Markdown.
    """
    parts = []
    for row in rows:
        settings = {key: value for key, value in experiment["rows"][row["name"]].items() if key != "label"}
        seeds = ", ".join(str(seed["seed"]) for seed in row.get("runs", [row]))
        versions = ", ".join(f"{package} {number}" for package, number in row["versions"].items())
        parts.append(
            f"- **{row['label']}** ({row['name']}; {row['date']}; seeds {seeds}): `{settings}`; sources "
            f"{' '.join(row['sources'])}; trained on {row['hardware']}, {row['threads']} threads; beam "
            f"{row['search']['num_beams']}, {length_rule(row['search'])}; {versions}.\n"
        )
    return f"""\
## How the rows were made

`{experiment["command"]}`: recipe {experiment["recipe"]}, changed in all rows by `{experiment["train"]}`. The
commands of every run are in the JSON files.

{"".join(parts)}"""
