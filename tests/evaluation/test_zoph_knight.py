"""The page of the LSTM rows: published figures, claims and verdicts, from made-up rows."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from reports import zoph_knight
from scored import cells_of, figures, made_up_row


def row(name: str, bleu: float, baseline: str | None = None, gain: tuple[float, float, float] = (0.0, 1.0, 0.5)) -> Any:
    """A row with BLEU, and its gain over a baseline: difference, half of the interval, p."""
    scores = {"all": figures(bleu)}
    difference, half, p = gain
    found = {"difference": difference, "difference_low": difference - half, "difference_high": difference + half}
    compared = None if baseline is None else {"run": baseline, "bleu": {**found, "p_value": p}}
    return made_up_row(name, "fr de", target="en", scores=scores, baseline=compared, perplexity=12.34, combiner="basic")


def page_of(tmp_path: Path, *rows: Any) -> str:
    folder = tmp_path / zoph_knight.TABLE
    folder.mkdir(exist_ok=True)
    for one in rows:
        (folder / f"{one['name']}.json").write_text(json.dumps(one))
    zoph_knight.main(["--results", str(tmp_path)])
    return (tmp_path / "zoph_knight.md").read_text("utf-8")


def test_rows_stand_beside_the_published_ones(tmp_path: Path) -> None:
    (tmp_path / "zoph_knight").mkdir()
    (tmp_path / "zoph_knight" / "notes.md").write_text("It works.\n\nMore or less.\n")
    (tmp_path / zoph_knight.TABLE).mkdir()
    (tmp_path / zoph_knight.TABLE / "basic.png").write_bytes(b"a plot")
    page = page_of(tmp_path, row("another", 1.0), row("fr", 10.04), row("basic", 12.0, "fr", (2.0, 0.5, 0.01)))
    lines = cells_of(page)
    assert lines[2][:6] == ["fr", "fr + de → en", "basic", "12.3", "10.0 ± 0.8", "21.0"]
    assert lines[3][:6] == ["basic", "fr + de → en", "basic", "12.3", "12.0 ± 0.8", "23.2"]
    assert lines[6:] == [["two sources help", "basic to fr", "+2.0 [+1.5, +2.5]", "0.010", "yes"]]
    assert page.splitlines()[3] == "It works."
    assert "## What they show\n\nMore or less.\n" in page
    assert "no row here yet, with their BLEU: *fr_float32* 21.0, *de* 17.3, *child_sum* 22.5" in page
    assert "*to_de_en* 13.4" in page
    assert "![What basic attends to](news_and_help/basic.png)" in page
    assert "**basic**" in page and "another" not in page


@pytest.mark.parametrize(
    ("name", "gain", "verdict"),
    [
        ("child_sum", (1.0, 0.5, 0.049), "yes"),
        ("child_sum", (1.0, 1.5, 0.05), "not certain"),
        ("child_sum", (-1.0, 0.5, 0.01), "no"),
        ("child_sum", (0.2, 0.7, 0.4), "no"),
        ("fr_fr", (1.0, 0.5, 0.049), "no"),
        ("fr_fr", (0.6, 0.8, 0.07), "not certain"),  # a difference that is not significant proves nothing
        ("fr_fr", (0.2, 0.9, 0.4), "not certain"),
        ("fr_fr", (0.2, 0.7, 0.4), "yes"),  # a gain of practical size is excluded
        ("fr_fr", (-1.0, 0.5, 0.01), "yes"),
    ],
)
def test_a_claim_holds_if_the_whole_interval_says_so(name: str, gain: tuple[float, float, float], verdict: str) -> None:
    [line] = zoph_knight.claims({name: row(name, 10.0, "fr", gain)})
    assert line[-1] == verdict
    assert line[0] == ("two sources help" if name == "child_sum" else "two copies of one do not")


@pytest.mark.parametrize(("far", "verdict"), [(4.0, "yes"), (2.0, "not certain"), (-1.0, "no")])
def test_gains_on_two_test_sets_are_compared_with_both_errors(far: float, verdict: str) -> None:
    rows = {
        "basic": row("basic", 10.0, "fr", (far, 1.0, 0.01)),
        "to_de_basic": row("to_de_basic", 10.0, "to_de_en", (1.0, 1.0, 0.2)),
    }
    line = zoph_knight.claims(rows)[-1]
    assert line[1] == "gain of basic to that of to_de_basic"
    low, high = far - 1.0 - sqrt(2), far - 1.0 + sqrt(2)
    assert line[0] == "more distant sources help more"
    assert line[2:] == [f"{far - 1.0:+.1f} [{low:+.1f}, {high:+.1f}]", "", verdict]


def test_what_is_lacking_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"zoph_knight\.py: no row of news_and_help is there"):
        zoph_knight.main(["--results", str(tmp_path)])
    with pytest.raises(ValueError, match="row basic has no baseline; `hf-multisource results row --baseline RUN`"):
        zoph_knight.claims({"basic": row("basic", 10.0)})


def test_another_language_is_set_against_a_copy_of_the_first() -> None:
    rows = {"child_sum": row("child_sum", 15.0, "fr", (5.0, 1.0, 0.01)), "fr_fr": row("fr_fr", 11.0, "fr")}
    line = zoph_knight.claims(rows)[-1]
    assert line[:2] == ["another language helps more than a copy", "gain of child_sum to that of fr_fr"]
    assert (line[2], line[-1]) == ("+5.0 [+3.6, +6.4]", "yes")


def test_no_verdict_stands_on_an_unfinished_row() -> None:
    rows = {"fr": row("fr", 10.0), "basic": row("basic", 12.0, "fr", (2.0, 0.5, 0.01))}
    assert zoph_knight.claims(rows)[0][-1] == "yes"
    for name in rows:  # the row itself, or what it is compared with
        unfinished = {**rows, name: {**rows[name], "finished": False}}
        assert zoph_knight.claims(unfinished)[0][-1] == "open (unfinished)"
