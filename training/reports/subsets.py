"""Compare one checkpoint on every subset of its sources with models that were trained on one subset each.

    python training/reports/subsets.py multi30k dropout [serial ...]

The first named row is the checkpoint: `hf-multisource results row ... --dedicated RUN ...` writes it from scores with
--absent and --only. The rows of the dedicated models are in the same table. Further named rows, of models with the same
sources, are shown next to the first. The command writes docs/results/<table>_subsets.md from these rows and from
docs/results/<table>_subsets/notes.md, which explains the results and whose first paragraph opens the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_multisource.evaluation.results import (
    RESULTS,
    SPREAD,
    format_score,
    how_made,
    length_rule,
    read_result,
    signatures_of,
    sources_left,
    split_notes,
    title,
    unfinished_rule,
)
from hf_multisource.evaluation.tables import format_table
from hf_multisource.metrics.table import METRICS, Metric, metrics_of

LIMIT = 1.0  # points of the first metric by which a checkpoint may be worse than a dedicated model and count as equal


def by_subset(row: dict[str, Any]) -> dict[frozenset[str], str]:
    """Return the condition in which a model was scored on each subset of its sources."""
    conditions = {frozenset(sources_left(name, row["sources"])): name for name in reversed(list(row["scores"]))}
    return {subset: name for subset, name in conditions.items() if subset}


def verdict(compared: dict[str, float], metric: Metric) -> str:
    """Return in words whether a model is at most `LIMIT` points worse than another.

    Args:
        compared: `difference`, `difference_low` and `difference_high`.
        metric: The metric.

    Returns:
        "yes" or "no", according to the difference, with "not certain" if the interval also allows the other answer.
    """
    sign = 1 if metric.higher_is_better else -1
    worst, best = sorted(sign * compared[f"difference_{end}"] for end in ("low", "high"))
    near = sign * compared["difference"] >= -LIMIT
    certain = worst >= -LIMIT if near else best < -LIMIT
    return f"{'yes' if near else 'no'}{'' if certain else ', not certain'}"


def pick(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Find the rows that a page is about.

    Args:
        rows: All rows of the table.
        names: Names of the rows to show, beginning with the row of the checkpoint.

    Returns:
        The rows to show, and the rows of the models with which the first row is compared.

    Raises:
        ValueError: If a row is missing, or the rows were scored in different ways.
    """
    named, runs = {row["name"]: row for row in rows}, {row["run"]: row for row in rows}
    if unknown := [name for name in names if name not in named]:
        raise ValueError(f"there is no row {', '.join(unknown)}; there are {', '.join(named)}")
    asked = [named[name] for name in dict.fromkeys(names)]
    if "dedicated" not in asked[0]:
        raise ValueError(
            f"row {names[0]} is compared with no dedicated model; `hf-multisource results row --dedicated RUN` does it"
        )
    compared = [entry["run"] for entry in asked[0]["dedicated"].values()]
    if unknown := [run for run in compared if run not in runs]:
        raise ValueError(f"the table has no row of {', '.join(unknown)}; `hf-multisource results row` writes it")
    dedicated = [runs[run] for run in compared]
    ways = {(row["split"], row["search"]["num_beams"], length_rule(row["search"])) for row in (*asked, *dedicated)}
    if len(ways) > 1:
        raise ValueError(f"the rows were not scored alike: {sorted(ways)}")
    return asked, dedicated


def render(table: str, rows: Sequence[dict[str, Any]], names: Sequence[str], notes: str = "") -> str:
    """Return the page.

    Args:
        table: Name of the table.
        rows: All rows of the table.
        names: Names of the rows to show, beginning with the row of the checkpoint.
        notes: Explanation of the results in Markdown; the first paragraph opens the page.

    Returns:
        Markdown.
    """
    asked, dedicated = pick(rows, names)
    one, conditions = asked[0], [by_subset(row) for row in asked]
    metrics = metrics_of(one["scores"]["all"])
    head = metrics[0]
    metric = METRICS[head]
    models = list({row["name"]: row for row in (*asked, *dedicated)}.values())
    trained = {frozenset(row["sources"]): row for row in dedicated}
    order = one["sources"].index
    subsets = sorted(conditions[0], key=lambda subset: (len(subset), sorted(map(order, subset))))
    lines, details = [], []
    for subset in subsets:
        label = " ".join(sorted(subset, key=order))
        line = [label]
        for row, condition in zip(asked, conditions, strict=True):
            line.append(format_score(row["scores"][condition[subset]], head) if subset in condition else "")
            if subset in condition:
                details.append([label, title(row), *in_full(row["scores"][condition[subset]], metrics)])
        if subset in trained:
            other, compared = trained[subset], one["dedicated"][conditions[0][subset]][head]
            line.append(f"{format_score(other['scores']['all'], head)} ({title(other)})")
            middle, low, high = (
                metric.show(compared[key], sign=True) for key in ("difference", "difference_low", "difference_high")
            )
            line.append(f"{middle} [{low}, {high}]")
            finished = one["finished"] and other["finished"]
            line += [f"{compared['p_value']:.3f}", verdict(compared, metric) if finished else "open (unfinished)"]
            if other not in asked:
                details.append([label, title(other), *in_full(other["scores"]["all"], metrics)])
        else:
            line += [""] * 4
        lines.append(line)
    header = [
        "sources",
        *map(title, asked),
        "dedicated model",
        "difference",
        "p",
        f"at most {LIMIT:.0f} {metric.label} lost",
    ]
    facts = [
        [
            title(row),
            row["combiner"],
            " ".join(row["sources"]),
            f"{row['updates']:,}",
            f"{row['parameters'] / 1e6:.1f} M",
        ]
        for row in models
    ]
    columns = [column for name in metrics for column in (METRICS[name].label, "95 % interval")]
    opening, rest = split_notes(notes)
    lead = f"{opening}\n\n" if opening else ""
    said = f"## What they show\n\n{rest}\n\n" if rest else ""
    return f"""\
<!-- Made by `python training/reports/subsets.py {table} {" ".join(names)}` from rows in {table}/. Do not edit. -->
# {table}: one checkpoint, any subset

{lead}Test set: {one["split"]} ({one["target"]}). The table shows {metric.label} of *{one["name"]}*, one model that is
given all its sources or some of them. *dedicated model*: trained and scored on just these sources. *difference*:
{one["name"]} minus the dedicated model, with its 95 % interval in brackets and p by paired bootstrap.
*at most {LIMIT:.0f} {metric.label} lost*: whether it is so; *not certain* if the interval allows
both answers, *open* if a model is unfinished.
{SPREAD}
A model is *unfinished* while {unfinished_rule(metric)}:
longer training may change its figures.

{format_table(header, lines)}

{signatures_of([one], metrics)}
{said}## The models

{format_table(["name", "combiner", "trained on", "updates", "parameters"], facts)}

## Every score

In brackets: the 95 % bootstrap interval.

{format_table(["sources", "name", *columns], details)}

{how_made(models)}"""


def in_full(scores: dict[str, Any], metrics: Sequence[str]) -> list[str]:
    """Return every score with its standard deviation and its interval."""
    cells = []
    for name in metrics:
        score, sd, low, high = (
            METRICS[name].show(scores[name][key], more=1) for key in ("score", "sd", "ci_low", "ci_high")
        )
        cells += [f"{score} ± {sd}", f"[{low}, {high}]"]
    return cells


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="folder of rows")
    parser.add_argument("names", nargs="+", metavar="name", help="rows to show, the one checkpoint's first")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    args = parser.parse_args(argv)
    page, notes = args.results / f"{args.table}_subsets.md", args.results / f"{args.table}_subsets" / "notes.md"
    try:
        rows = [read_result(path) for path in sorted((args.results / args.table).glob("*.json"))]
        said = notes.read_text(encoding="utf-8") if notes.exists() else ""
        page.write_text(render(args.table, rows, args.names, said), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SystemExit(f"subsets.py: {error}") from error
    print(page)


if __name__ == "__main__":
    main()
