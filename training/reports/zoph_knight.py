"""Compare our rows for Zoph & Knight 2016 with the published rows, and check the claims of the paper.

    python training/reports/zoph_knight.py

The command writes docs/results/zoph_knight.md from the rows in docs/results/news_and_help/, which
`hf-multisource results row ... --table news_and_help` writes, each with the run of one source as its baseline, and from
docs/results/zoph_knight/notes.md, which explains the results and whose first paragraph opens the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from math import hypot
from pathlib import Path
from typing import Any

from hf_multisource.evaluation.results import (
    RESULTS,
    SPREAD,
    format_score,
    how_made,
    read_result,
    split_notes,
    unfinished_rule,
)
from hf_multisource.evaluation.tables import format_table
from hf_multisource.metrics.table import METRICS

TABLE = "news_and_help"
PAGE = "zoph_knight"
Rows = Mapping[str, dict[str, Any]]

# BLEU in the paper's Figure 4; None if the paper has no such row. The paper's models have four layers of 1000 units,
# and its test set has 1,503 lines of WMT.
PUBLISHED = {
    "fr": 21.0,
    "fr_float32": 21.0,
    "de": 17.3,
    "basic": 23.2,
    "child_sum": 22.5,
    "fr_fr": 20.7,
    "fr_attention": 25.2,
    "fr_child_sum_attention": None,
    "basic_attention": 30.0,
    "child_sum_attention": 29.6,
    "fr_fr_attention": None,
    "to_de_en": 13.4,
    "to_de_basic": 14.5,
    "to_de_child_sum": 14.4,
    "to_de_en_attention": 17.6,
    "to_de_en_child_sum_attention": None,
    "to_de_basic_attention": 18.6,
    "to_de_child_sum_attention": 18.2,
}
HELPED = ("basic", "child_sum", "basic_attention", "child_sum_attention", "to_de_child_sum_attention")
COPIES = ("fr_fr", "fr_fr_attention")
# Claim, row with the larger gain and row with the smaller gain according to the claim.
LARGER = (
    ("another language helps more than a copy", "child_sum", "fr_fr"),
    ("another language helps more than a copy", "child_sum_attention", "fr_fr_attention"),
    ("more distant sources help more", "basic", "to_de_basic"),
    ("more distant sources help more", "basic_attention", "to_de_basic_attention"),
    ("more distant sources help more", "child_sum_attention", "to_de_child_sum_attention"),
)
LEVEL = 0.05  # significance level of p values
MARGIN = 1.0  # BLEU points; a smaller gain has no practical relevance


def gain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the BLEU of a row minus that of its baseline, with its interval and p.

    Args:
        row: The row.

    Returns:
        `difference`, `difference_low`, `difference_high` and `p_value`.

    Raises:
        ValueError: If the row has no baseline.
    """
    if row["baseline"] is None:
        raise ValueError(f"row {row['name']} has no baseline; `hf-multisource results row --baseline RUN` compares it")
    comparison: dict[str, Any] = row["baseline"]["bleu"]
    return comparison


def difference_of_gains(large: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """Return the difference of two gains.

    The interval is computed as if the errors of the two gains were independent and normal. On one test set they are
    not independent, and the interval is too wide.

    Args:
        large: A gain.
        small: Another gain.

    Returns:
        The fields of `gain` without `p_value`.
    """
    half = hypot(*((one["difference_high"] - one["difference_low"]) / 2 for one in (large, small)))
    more = large["difference"] - small["difference"]
    return {"difference": more, "difference_low": more - half, "difference_high": more + half}


def verdict(found: Mapping[str, Any], *, helps: bool) -> str:
    """Return whether a claim about a gain holds.

    There is a gain if its whole interval is above 0 and p, if it is given, is below `LEVEL`. There is no gain of
    practical relevance if the interval includes 0 and is completely below `MARGIN`. A gain that is not significant is
    not evidence of no gain: if the interval allows both, the answer is open.

    Args:
        found: The result of `gain` or `difference_of_gains`.
        helps: Whether the claim is that there is a gain; otherwise the claim is that there is none.

    Returns:
        "yes", "no" or "not certain".
    """
    gained = found["difference_low"] > 0 and found.get("p_value", 0.0) < LEVEL
    nothing = found["difference_low"] <= 0 and found["difference_high"] < MARGIN
    if not gained and not nothing:
        return "not certain"
    return "yes" if gained == helps else "no"


def claims(rows: Rows) -> list[list[str]]:
    """Return the claims of the paper with our measurements and verdicts.

    Args:
        rows: Name -> row. Claims about missing rows are left out.

    Returns:
        One line per comparison: the claim, the rows, the BLEU gained, p, the verdict. The verdict is open if a row in
        the comparison is unfinished.
    """
    lines = []
    unfinished = {row["run"] for row in rows.values() if not row["finished"]}

    def line(claim: str, label: str, found: Mapping[str, Any], helps: bool, *compared: Mapping[str, Any]) -> list[str]:
        runs = {run for row in compared for run in (row["run"], row["baseline"]["run"])}
        answer = "open (unfinished)" if runs & unfinished else verdict(found, helps=helps)
        cells = f"{found['difference']:+.1f} [{found['difference_low']:+.1f}, {found['difference_high']:+.1f}]"
        return [claim, label, cells, f"{found['p_value']:.3f}" if "p_value" in found else "", answer]

    for names, claim, helps in ((HELPED, "two sources help", True), (COPIES, "two copies of one do not", False)):
        for row in (rows[name] for name in names if name in rows):
            found = gain(row)
            lines.append(line(claim, f"{row['name']} to {row['baseline']['run']}", found, helps, row))
    for claim, large, small in LARGER:
        if large in rows and small in rows:
            found = difference_of_gains(gain(rows[large]), gain(rows[small]))
            label = f"gain of {large} to that of {small}"
            lines.append(line(claim, label, found, True, rows[large], rows[small]))
    return lines


def render(rows: Rows, notes: str = "", drawn: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        rows: Name -> row. The rows that `PUBLISHED` names are shown.
        notes: Explanation of the results in Markdown; the first paragraph opens the page.
        drawn: Names of the rows with an attention plot.

    Returns:
        Markdown.

    Raises:
        ValueError: If there is no row to show.
    """
    shown = [rows[name] for name in PUBLISHED if name in rows]
    if not shown:
        raise ValueError(f"no row of {TABLE} is there; `hf-multisource results row RUN --table {TABLE}` writes one")
    lines = []
    for row in shown:
        scores, published = row["scores"]["all"], PUBLISHED[row["name"]]
        lines.append(
            [
                row["name"] if row["finished"] else f"{row['name']} (unfinished)",
                f"{' + '.join(row['sources'])} → {row['target']}",
                row["combiner"],
                f"{row['perplexity']:.1f}",
                format_score(scores, "bleu"),
                "" if published is None else f"{published:.1f}",
                f"{row['updates']:,}",
                f"{row['parameters'] / 1e6:.1f} M",
            ]
        )
    header = ["name", "languages", "strategy", "perplexity", "BLEU", "published BLEU", "updates", "parameters"]
    plots = "".join(f"![What {name} attends to]({TABLE}/{name}.png)\n\n" for name in drawn)
    if plots:
        plots = f"## Attention\n\nAs in the paper's Figure 5, of a sentence of our own.\n\n{plots}"
    opening, rest = split_notes(notes)
    lead = f"{opening}\n\n" if opening else ""
    said = f"## What they show\n\n{rest}\n\n" if rest else ""
    lacking = [f"*{name}* {bleu:.1f}" for name, bleu in PUBLISHED.items() if bleu is not None and name not in rows]
    without = f"Published rows that have no row here yet, with their BLEU: {', '.join(lacking)}.\n\n" if lacking else ""
    signature = shown[0]["scores"]["all"]["bleu"]["signature"]
    return f"""\
<!-- Made by `python training/reports/zoph_knight.py` from rows in {TABLE}/. Do not edit. -->
# Zoph & Knight 2016: two sources, two LSTM encoders

{lead}The table has rows of Figure 4 of [the paper](https://doi.org/10.18653/v1/N16-1004), trained in a
small size on little text. Only differences between rows can be compared with differences between published rows,
because test set, size of the models and units of text are not those of the paper. *perplexity*: perplexity of the test
set's references, per token of a sub-word vocabulary; the paper's perplexities, which are per word, are not reproduced
here.
{SPREAD}
A model is *unfinished* while {unfinished_rule(METRICS["bleu"])}.

{format_table(header, lines)}

{without}- BLEU: `{signature}`

## What the paper claims

*gain*: BLEU gained, with its 95 % interval in brackets and p by paired bootstrap; where two gains are compared, their
errors count as independent. There is a gain if the whole interval is above 0, and none of practical size if the
interval reaches 0 and is below {MARGIN:.0f} BLEU as a whole; otherwise the verdict is *not certain*.
*open (unfinished)*: a row in the comparison is unfinished, and longer training may change the answer.

{format_table(["claim", "rows", "gain", "p", "holds here"], claims(rows))}

{said}{plots}{how_made(shown)}"""


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    args = parser.parse_args(argv)
    page, notes = args.results / f"{PAGE}.md", args.results / PAGE / "notes.md"
    try:
        rows = [read_result(path) for path in sorted((args.results / TABLE).glob("*.json"))]
        said = notes.read_text(encoding="utf-8") if notes.exists() else ""
        drawn = [path.stem for path in sorted((args.results / TABLE).glob("*.png"))]
        page.write_text(render({row["name"]: row for row in rows}, said, drawn), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SystemExit(f"zoph_knight.py: {error}") from error
    print(page)


if __name__ == "__main__":
    main()
