"""The rows of Zoph & Knight 2016 beside the published ones, and whether what the paper claims of them holds.

    python training/zoph_knight.py

From docs/results/news_and_help/, rows written by `results.py row ... --table news_and_help`, each with the row of one
source as its baseline, and from docs/results/zoph_knight/notes.md, what they show in words, it writes
docs/results/zoph_knight.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from math import hypot
from pathlib import Path
from typing import Any

from hf_multisource.evaluation.results import FLAT_GAIN, RESULTS, how_made, read_json
from hf_multisource.evaluation.tables import format_table

TABLE = "news_and_help"
PAGE = "zoph_knight"
Rows = Mapping[str, dict[str, Any]]

# BLEU of the paper's Figure 4, where we have it: its models have four layers of 1000, its test set 1,503 lines of WMT.
PUBLISHED = {
    "fr": None,
    "fr_float32": None,
    "de": None,
    "basic": 23.2,
    "child_sum": 22.5,
    "fr_fr": 20.7,
    "fr_attention": 25.2,
    "fr_child_sum_attention": None,
    "basic_attention": 30.0,
    "child_sum_attention": 29.6,
    "fr_fr_attention": None,
    "to_de_en": None,
    "to_de_basic": 14.5,
    "to_de_child_sum": 14.4,
    "to_de_en_attention": 17.6,
    "to_de_en_child_sum_attention": None,
    "to_de_basic_attention": 18.6,
    "to_de_child_sum_attention": 18.2,
}
HELPED = ("basic", "child_sum", "basic_attention", "child_sum_attention", "to_de_child_sum_attention")
COPIES = ("fr_fr", "fr_fr_attention")
# Claim, row whose gain should be the larger, row whose should be the smaller.
LARGER = (
    ("another language helps more than a copy", "child_sum", "fr_fr"),
    ("another language helps more than a copy", "child_sum_attention", "fr_fr_attention"),
    ("more distant sources help more", "basic", "to_de_basic"),
    ("more distant sources help more", "basic_attention", "to_de_basic_attention"),
    ("more distant sources help more", "child_sum_attention", "to_de_child_sum_attention"),
)
LEVEL = 0.05


def gain(row: Mapping[str, Any]) -> dict[str, Any]:
    """BLEU of a row over that of its baseline: `difference`, `difference_low`, `difference_high`, `p_value`.

    Args:
        row: The row.

    Returns:
        The comparison.

    Raises:
        ValueError: If the row has no baseline.
    """
    if row["baseline"] is None:
        raise ValueError(f"row {row['name']} has no baseline; `results.py row --baseline RUN` compares it with one")
    comparison: dict[str, Any] = row["baseline"]["bleu"]
    return comparison


def difference_of_gains(large: Mapping[str, Any], small: Mapping[str, Any]) -> tuple[float, float]:
    """By how much one gain is larger than another.

    Args:
        large: A gain.
        small: Another.

    Returns:
        The difference, and half of its 95 % interval, as if their errors were independent and normal; on one test set
        they are not, and the interval is too wide.
    """
    halves = [(one["difference_high"] - one["difference_low"]) / 2 for one in (large, small)]
    return large["difference"] - small["difference"], hypot(*halves)


def claims(rows: Rows) -> list[list[str]]:
    """What the paper claims, what was measured, and whether it holds here.

    Args:
        rows: By name; claims about rows that are not there are left out.

    Returns:
        One line a comparison: the claim, the rows, the BLEU gained, p, the verdict.
    """
    lines = []
    unfinished = {row["run"] for row in rows.values() if not row["finished"]}

    def mark(verdict: str, *compared: Mapping[str, Any]) -> str:
        runs = {run for row in compared for run in (row["run"], row["baseline"]["run"])}
        return f"{verdict} (unfinished)" if runs & unfinished else verdict

    helped, copied = (
        ((name, "two sources help") for name in HELPED),
        ((name, "two copies of one do not") for name in COPIES),
    )
    for name, claim in (*helped, *copied):
        if name in rows:
            found = gain(rows[name])
            certain = found["p_value"] < LEVEL
            helps, harms = certain and found["difference"] > 0, certain and found["difference"] < 0
            verdict = "yes" if helps else "no" if harms else "not certain"
            if name in COPIES:
                verdict = "no" if helps else "yes"
            baseline = rows[name]["baseline"]["run"]
            cells = f"{found['difference']:+.1f} [{found['difference_low']:+.1f}, {found['difference_high']:+.1f}]"
            p = f"{found['p_value']:.3f}"
            lines.append([claim, f"{name} to {baseline}", cells, p, mark(verdict, rows[name])])
    for claim, large, small in LARGER:
        if large in rows and small in rows:
            more, half = difference_of_gains(gain(rows[large]), gain(rows[small]))
            verdict = "yes" if more > half else "no" if more < -half else "not certain"
            cells = f"{more:+.1f} [{more - half:+.1f}, {more + half:+.1f}]"
            marked = mark(verdict, rows[large], rows[small])
            lines.append([claim, f"gain of {large} to that of {small}", cells, "", marked])
    return lines


def render(rows: Rows, notes: str = "", drawn: Sequence[str] = ()) -> str:
    """The page.

    Args:
        rows: By name; those that `PUBLISHED` names are shown.
        notes: What they show, in Markdown.
        drawn: Names of the rows that have a plot of their attention.

    Returns:
        Markdown.

    Raises:
        ValueError: If none of them is there.
    """
    shown = [rows[name] for name in PUBLISHED if name in rows]
    if not shown:
        raise ValueError(f"no row of {TABLE} is there; `results.py row RUN --table {TABLE}` writes one")
    lines = []
    for row in shown:
        bleu, published = row["scores"]["all"]["bleu"], PUBLISHED[row["name"]]
        lines.append(
            [
                row["name"] if row["finished"] else f"{row['name']} (unfinished)",
                f"{' + '.join(row['sources'])} → {row['target']}",
                row["combiner"],
                f"{row['perplexity']:.1f}",
                f"{bleu['score']:.1f} ± {bleu['sd']:.1f}",
                "" if published is None else f"{published:.1f}",
                f"{row['updates']:,}",
                f"{row['parameters'] / 1e6:.1f} M",
            ]
        )
    header = ["name", "languages", "strategy", "perplexity", "BLEU ± sd", "published BLEU", "updates", "parameters"]
    plots = "".join(f"![What {name} attends to]({TABLE}/{name}.png)\n\n" for name in drawn)
    if plots:
        plots = f"## Attention\n\nAs in the paper's Figure 5, of a sentence of our own.\n\n{plots}"
    said = f"## What they show\n\n{notes.strip()}\n\n" if notes else ""
    signature = shown[0]["scores"]["all"]["bleu"]["signature"]
    return f"""\
<!-- Made by `python training/zoph_knight.py` from rows in {TABLE}/. Do not edit. -->
# Zoph & Knight 2016: two sources, two LSTM encoders

Rows of Figure 4 of [the paper](https://doi.org/10.18653/v1/N16-1004), trained small, on little text. Only differences
between rows can be set beside the published ones: test set, size of the models and units of text are others.
*perplexity*: of the test set's references, a token. sd: standard deviation of the bootstrap replicas. A model is
*unfinished* while the last fifth of its updates still raised the best dev BLEU by {FLAT_GAIN} or more.

{format_table(header, lines)}

- BLEU: `{signature}`

## What the paper claims

BLEU gained, with its 95 % interval, and p, by paired bootstrap. Of two gains that are compared, the errors count as
independent. *unfinished*: so is a row in it, and longer training may turn the answer round.

{format_table(["claim", "rows", "gain", "p", "holds here"], claims(rows))}

{said}{plots}{how_made(shown)}"""


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    args = parser.parse_args(argv)
    page, notes = args.results / f"{PAGE}.md", args.results / PAGE / "notes.md"
    try:
        rows = [read_json(path) for path in sorted((args.results / TABLE).glob("*.json"))]
        said = notes.read_text(encoding="utf-8") if notes.exists() else ""
        drawn = [path.stem for path in sorted((args.results / TABLE).glob("*.png"))]
        page.write_text(render({row["name"]: row for row in rows}, said, drawn), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SystemExit(f"zoph_knight.py: {error}") from error
    print(page)


if __name__ == "__main__":
    main()
