"""Scores by the number of sources that are present, and by which: in the report, as typed, in rows and on pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpu_time import cpu_seconds
from hf_multisource.cli import results, score
from hf_multisource.data.files import read_lines
from hf_multisource.data.rows import Row
from hf_multisource.evaluation import presence
from hf_multisource.evaluation.presence import groups_by_presence, measure_presence
from hf_multisource.evaluation.results import render
from hf_multisource.metrics.bootstrap import measure_metric
from hf_multisource.metrics.table import METRICS
from runs import read_json, write_lines
from scored import COLUMNS, OPTIONS, cells_of, made_up_row, make_run

SOURCES = ["x", "y", "z"]


def rows_with(*present: str) -> list[Row]:
    """Rows that have the sources whose letters are given, and the text of their place as target."""
    return [
        {**{name: f"{name}{i}" if name in own else None for name in SOURCES}, "t": str(i)}
        for i, own in enumerate(present)
    ]


def test_rows_are_grouped_by_number_by_source_and_by_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "LEAST_ROWS", 2)
    groups = groups_by_presence(rows_with("xy", "x", "xyz", "x", "yx", "xz"), SOURCES)
    assert groups == {
        "number": {"1": [1, 3], "2": [0, 4, 5], "3": [2]},
        "with": {"y": [0, 2, 4], "z": [2, 5]},
        "without": {"y": [1, 3, 5], "z": [0, 1, 3, 4]},
        "exactly": {"x": [1, 3], "x y": [0, 4]},
    }


def test_the_order_of_subsets_is_that_of_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "LEAST_ROWS", 1)
    groups = groups_by_presence(rows_with("zy", "z", "xz", "yx", "y", ""), SOURCES)
    assert list(groups["exactly"]) == ["", "y", "z", "x y", "x z", "y z"]


def test_the_time_is_linear_if_each_row_has_other_sources() -> None:
    sources = [f"s{k}" for k in range(12)]
    rows = [{name: "a" if i >> k & 1 else None for k, name in enumerate(sources)} for i in range(4096)]

    def seconds(count: int) -> float:
        return cpu_seconds(lambda: groups_by_presence(rows[:count], sources))

    assert seconds(4096) < 9 * seconds(1024), "4 times if linear, 16 times if quadratic"


def test_a_subset_needs_enough_rows_and_one_number_of_sources_is_no_group() -> None:
    rows = rows_with(*["x"] * presence.LEAST_ROWS, "y")
    groups = groups_by_presence(rows, SOURCES)
    assert list(groups) == ["with", "without", "exactly"]
    assert {label: len(found) for label, found in groups["exactly"].items()} == {"x": presence.LEAST_ROWS}


@pytest.mark.parametrize("present", [["xyz"] * 30, ["xz"] * 30, []])
def test_rows_that_all_have_the_same_sources_are_not_grouped(present: list[str]) -> None:
    assert groups_by_presence(rows_with(*present), SOURCES) == {}


def test_white_text_is_an_absent_source() -> None:
    rows: list[Row] = [{"x": "a", "y": " ", "z": ""}, {"x": "a", "y": "b", "z": None}]
    assert groups_by_presence(rows, SOURCES)["number"] == {"1": [0], "2": [1]}


@given(st.lists(st.sampled_from(["x", "y", "xy", "yz", "xyz"]), min_size=2, max_size=12), st.integers(0, 9))
def test_a_group_has_the_score_and_the_interval_of_a_test_set_of_its_rows(present: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rows_with(*present)
    references = [" ".join(rng.choice(["a", "b", "c"], 3)) for _ in rows]
    hypotheses = [" ".join(rng.choice(["a", "b", "c"], 3)) for _ in rows]
    names = ["exact_match", "bcubed_f", "ter"]
    found = measure_presence(hypotheses, references, rows, SOURCES, names, n_bootstrap=40)
    groups = groups_by_presence(rows, SOURCES)
    assert {kind: list(entries) for kind, entries in found.items()} == {kind: list(own) for kind, own in groups.items()}
    for kind, entries in groups.items():
        for label, chosen in entries.items():
            entry = found[kind][label]
            assert entry["n"] == len(chosen)
            for name in names:
                ours, theirs = ([texts[i] for i in chosen] for texts in (hypotheses, references))
                whole = measure_metric(name, ours, theirs, n_bootstrap=40)
                assert entry[name] == {key: pytest.approx(value) for key, value in whole.items() if key != "signature"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose test set lacks German in every third line, and English in one of the others."""
    run = make_run(tmp_path / "run", tmp_path)
    write_lines(tmp_path / "test.de", ["" if i % 3 == 0 else text for i, text in enumerate(COLUMNS["de"])])
    write_lines(tmp_path / "test.en", ["" if i == 1 else text for i, text in enumerate(COLUMNS["en"])])
    return run


def test_score_reports_and_prints_what_the_sources_give(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = ["exact_match", "chrf"]
    score.main([str(run), *OPTIONS, "--metrics", *metrics])
    found = read_json(run / "scores" / "test.json")["presence"]
    assert {kind: {label: entry["n"] for label, entry in own.items()} for kind, own in found.items()} == {
        "number": {"1": 5, "2": 7},
        "with": {"en": 11, "de": 8},
        "without": {"en": 1, "de": 4},
    }
    hypotheses = read_lines(run / "scores" / "test.all.txt")
    lacking = [i for i in range(12) if i % 3 == 0]
    expected = METRICS["chrf"].measure([hypotheses[i] for i in lacking], [COLUMNS["cs"][i] for i in lacking])
    assert found["without"]["de"]["chrf"]["score"] == pytest.approx(expected.score())
    cells = cells_of(capsys.readouterr().out.split("\n\n")[1])
    assert cells[0] == ["sources present", "sentences", "exact match", "95 %", "chrF", "95 %"]
    assert [line[:2] for line in cells[2:]] == [
        ["1 source", "5"],
        ["2 sources", "7"],
        ["with en", "11"],
        ["with de", "8"],
        ["without en", "1"],
        ["without de", "4"],
    ]
    entry = found["number"]["2"]["chrf"]
    assert cells[3][4:] == [f"{entry['score']:.2f}", f"[{entry['ci_low']:.2f}, {entry['ci_high']:.2f}]"]


def test_no_table_is_made_where_all_rows_have_all_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", tmp_path)
    write_lines(tmp_path / "test.de", ["wir"] * 12)
    write_lines(tmp_path / "test.en", ["we"] * 12)
    score.main([str(run), *OPTIONS, "--absent"])
    assert read_json(run / "scores" / "test.json")["presence"] == {}
    assert "sources present" not in capsys.readouterr().out


def test_rows_and_pages_show_what_the_sources_give(run: Path, tmp_path: Path) -> None:
    score.main([str(run), *OPTIONS, "--metrics", "exact_match"])
    results.main(["row", str(run), "--table", "mine", "--name", "one", "--results", str(tmp_path / "results")])
    row = read_json(tmp_path / "results" / "mine" / "one.json")
    whole = read_json(run / "scores" / "test.json")["presence"]
    assert row["presence"] == {kind: entries for kind, entries in whole.items() if kind != "exactly"}
    page = (tmp_path / "results" / "mine.md").read_text("utf-8")
    section = page.split("## By the sources that are present")[1]
    assert cells_of(section)[0] == ["sources present", "one (unfinished)"]
    assert cells_of(section)[2] == ["1 source", "0.0 ± 0.0 (5)"]


def test_models_stand_side_by_side_on_a_page_and_other_rows_are_left_out() -> None:
    def entry(value: float, n: int) -> dict[str, Any]:
        return {"n": n, "bleu": {"score": value, "ci_low": 0.0, "ci_high": 9.0, "sd": 0.5}}

    one = made_up_row("one", "en de", presence={"number": {"1": entry(20.0, 7), "2": entry(30.0, 5)}})
    two = made_up_row("two", "en de", finished=False, presence={"number": {"2": entry(31.0, 5)}})
    page = render("t", [one, two, made_up_row("three", "en")])
    section = page.split("## By the sources that are present")[1].split("##")[0]
    assert cells_of(section) == [
        ["sources present", "one", "two (unfinished)"],
        ["-" * 15, "-" * 14, "-" * 16],
        ["1 source", "20.0 ± 0.5 (7)", ""],
        ["2 sources", "30.0 ± 0.5 (5)", "31.0 ± 0.5 (5)"],
    ]
    assert "BLEU" in section
    assert "## By the sources" not in render("t", [made_up_row("three", "en")])
