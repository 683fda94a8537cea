"""A closer look at one row of an experiment: its sources, its symbols, single words; and the figures of the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import tiny_config
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.evaluation import experiment_figures
from hf_multisource.evaluation.experiment_figures import (
    Line,
    draw_figures,
    lines_of,
    numbers_of,
    score_figure,
    spread,
    word_figure,
)
from hf_multisource.evaluation.row_analysis import (
    mean_words,
    measure_sources,
    measure_symbols,
    measure_words,
    source_sections,
    symbol_section,
    word_section,
)
from hf_multisource.metrics.bootstrap import pooled_bootstrap
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.recipe import DataRecipe, Recipe
from hf_multisource.recipes.tokenization import train_tokenizer
from runs import write_lines
from scored import cells_of

SOURCES = ["north", "south"]
ROWS: list[Any] = [
    {"north": "a", "south": "b"},
    {"north": "a", "south": None},
    {"north": None, "south": "b"},
    {"north": "b", "south": "a"},
]
REFERENCES = ["a b", "a c", "b b", "c -"]
WRITTEN = {  # by seed and condition
    1: {
        "all": ["a b", "a c", "b b", "c -"],
        "absent-north": ["b", "", "b b", "c -"],
        "absent-south": ["a b", "a c", "", "c"],
    },
    2: {
        "all": ["a b", "a", "b b", "c"],
        "absent-north": ["b", "", "b b", "c"],
        "absent-south": ["a b", "a", "", "c c"],
    },
}


def write_scores(folder: Path, seeds: Sequence[int] = (1, 2)) -> Path:
    """A folder of seeds that were scored; with two sources, each is alone where the other one is absent."""
    for seed in seeds:
        texts = {
            **WRITTEN[seed],
            "only-south": WRITTEN[seed]["absent-north"],
            "only-north": WRITTEN[seed]["absent-south"],
        }
        scores = folder / f"seed-{seed}" / "scores"
        scores.mkdir(parents=True)
        for condition, lines in {**texts, "reference": REFERENCES}.items():
            write_lines(scores / f"test.{condition}.txt", lines)
        (scores / "test.json").write_text(json.dumps({"conditions": dict.fromkeys(texts)}))
    return folder


def test_sources_are_left_out_on_the_rows_that_have_another_one(tmp_path: Path) -> None:
    folder = write_scores(tmp_path / "serial")
    found = measure_sources(folder, "test", ROWS, SOURCES, ["exact_match", "edit_distance"])
    assert {source: entry["n"] for source, entry in found.items()} == {"north": 2, "south": 2}  # rows 0 and 3
    north, south = found["north"], found["south"]
    assert [north[kind]["exact_match"]["score"] for kind in ("all", "absent", "only")] == [75, 25, 50]
    assert [south[kind]["edit_distance"]["score"] for kind in ("all", "absent", "only")] == [0.25, 0.5, 0.75]
    seeds = [WRITTEN[seed] for seed in (1, 2)]
    ours, theirs = ([[own[name][i] for i in (0, 3)] for own in seeds] for name in ("absent-north", "all"))
    expected = pooled_bootstrap(ours, theirs, ["a b", "c -"], metrics=["exact_match"])["exact_match"]
    assert north["absent"]["exact_match"] == {"score": 25, **expected}
    page = source_sections({"label": "in turn", "left_out": found})
    line = next(cells for cells in cells_of(page) if cells[0] == "north")
    assert line[:5] == ["north", "2", "75.0", "25.0", "-50.0"] and "Exact match:" in page and "Edit distance:" in page


def test_seeds_that_were_not_scored_without_a_source_do_not_count(tmp_path: Path) -> None:
    folder = write_scores(tmp_path / "serial")
    report = folder / "seed-2" / "scores" / "test.json"
    report.write_text(json.dumps({"conditions": {"all": {}, "absent-north": {}}}))
    found = measure_sources(folder, "test", ROWS, SOURCES, ["exact_match"])
    assert found["north"]["all"]["exact_match"]["score"] == 100  # seed 1 alone
    (folder / "seed-1" / "scores" / "test.json").write_text(json.dumps({"conditions": {"all": {}}}))
    assert measure_sources(folder, "test", ROWS, SOURCES, ["exact_match"]) == {}
    assert source_sections({"label": "x", "left_out": {}}) == ""


def test_wrong_symbols_are_means_over_the_seeds(tmp_path: Path) -> None:
    found = measure_symbols(write_scores(tmp_path / "serial"), "test")
    assert (found["errors"], found["symbols"]) == (1, 8)
    assert found["confusions"] == [
        {"reference": "-", "hypothesis": "", "count": 0.5},
        {"reference": "c", "hypothesis": "", "count": 0.5},
    ]
    assert found["frequent"]["c"] == {"count": 2, "rate": 25} and found["frequent"]["a"]["rate"] == 0
    assert found["thirds"] == [
        {"errors": 0, "symbols": 4},
        {"errors": 0, "symbols": 0},
        {"errors": 1, "symbols": 4},
    ]
    tables = cells_of(symbol_section({"label": "in turn", "symbols": found}))
    assert ["-", "(nothing)", "0.5", "50.0 %"] in tables and ["last third", "1", "25.0"] in tables
    order = [cells[0] for cells in tables if len(cells) == 3]
    assert order.index("-") < order.index("c") < order.index("a")  # the worst first
    assert symbol_section({"label": "x", "symbols": {**found, "errors": 0}}) == ""


@pytest.mark.parametrize("concatenate", [False, True])
def test_a_source_matters_as_much_as_the_target_is_less_likely_without_it(tmp_path: Path, concatenate: bool) -> None:
    texts = ["a b c", "b c", "c"]
    for seed in (1, 2):
        folder = tmp_path / "serial" / f"seed-{seed}"
        recipe = Recipe(DataRecipe("words", SOURCES, "old", max_length=16, concatenate=concatenate))
        recipe.training["output_dir"] = str(folder)
        names = recipe.data.model_sources
        torch.manual_seed(seed)
        processor = MultiSourceProcessor(train_tokenizer(texts, "symbols", 20), names)
        config = tiny_config("serial", names, vocab_size=len(processor.tokenizer), initializer="normal", init_std=1.0)
        MultiSourceForConditionalGeneration(config).save_pretrained(folder)
        processor.save_pretrained(folder)
        recipe.save(folder / "recipe.yaml")
    words = [{"old": "a b", "north": "c b", "south": "a"}, {"old": "c", "south": "c"}]
    found = mean_words([measure_words(tmp_path / "serial" / f"seed-{seed}", words, SOURCES, "old") for seed in (1, 2)])
    assert [word["target"] for word in found] == ["a b", "c"]
    assert found[1]["sources"] == {"south": "c"} and found[1]["drops"] == {}

    def log_probability(**sources: str) -> float:
        """By the definition, one token after the other, mean over the seeds."""
        values = []
        for seed in (1, 2):
            folder = tmp_path / "serial" / f"seed-{seed}"
            model = MultiSourceForConditionalGeneration.from_pretrained(folder).eval()
            own = {"all": " | ".join(sources.values())} if concatenate else {**dict.fromkeys(SOURCES), **sources}
            inputs = MultiSourceProcessor.from_pretrained(folder)(**own, text_target="a b", return_tensors="pt")
            with torch.no_grad():
                shares = model(**inputs).logits[0].log_softmax(-1)
            values.append(sum(float(shares[i, token]) for i, token in enumerate(inputs["labels"][0])))
        return sum(values) / 2

    full = log_probability(north="c b", south="a")
    assert found[0]["log_probability"] == pytest.approx(full, rel=1e-4)
    drops = {"north": full - log_probability(south="a"), "south": full - log_probability(north="c b")}
    assert found[0]["drops"] == pytest.approx(drops, rel=1e-3, abs=1e-4)


def made_up_rows(scale: float = 1.0) -> list[dict[str, Any]]:
    def entry(mean: float) -> dict[str, Any]:
        return {"exact_match": {"score": mean * scale, "seeds_sd": 1.5, "seeds": []}}

    def row(name: str, mean: float, *scores: float) -> dict[str, Any]:
        groups = {str(i + 1): {"n": (40, 19, 30)[i], **entry(score)} for i, score in enumerate(scores)}
        return {"name": name, "sources": SOURCES, "scores": {"all": entry(mean)}, "presence": {"number": groups}}

    words = [
        {
            "target": "a b",
            "sources": {"north": "a", "south": "b"},
            "log_probability": -1.0,
            "drops": {"north": 2.0, "south": -0.04},
        },
        {"target": "c", "sources": {"south": "c"}, "log_probability": -2.0, "drops": {}},
    ]
    return [
        row("single", 20, 10, 15, 30),
        row("joined", 25, 15, 20, 35),
        row("serial", 40, 30, 35, 50),
        {**row("best", 45, 33, 40, 55), "words": words},
    ]


EXPERIMENT: dict[str, Any] = {
    "baseline": "joined",
    "analyzed": "best",
    "rows": {
        "single": {"label": "best single", "best_source": {}},
        "joined": {"label": "joined", "train": {}},
        "serial": {"label": "in turn", "train": {}},
        "best": {"label": "best of all", "train": {}},
    },
    "published": [
        {"label": "Curve", "scores": {"exact_match": "41.4 ± 0.3"}, "number": {1: 24.4, 3: 53.9}},
        {"label": "Mean", "scores": {"exact_match": 42}},
        {"label": "Other", "scores": {"edit_distance": 1}},
    ],
}


def test_the_figure_has_the_rows_that_tell_the_story() -> None:
    lines = lines_of(EXPERIMENT, made_up_rows(), "exact_match")
    assert [(line.label, line.style) for line in lines] == [
        ("best single", "best_source"),
        ("joined", "baseline"),
        ("best of all", "analyzed"),
        ("published: Curve", "published"),
        ("published: Mean", "published"),
    ]
    assert lines[2].points == {1: (33, 1.5), 2: (40, 1.5), 3: (55, 1.5)} and lines[2].mean == (45, 1.5)
    assert lines[3].points == {1: (24.4, 0), 3: (53.9, 0)} and lines[3].mean == (41.4, 0)
    counts = numbers_of(made_up_rows())
    assert counts == {1: 40, 3: 30}  # too few sentences have 2 sources
    left, right = score_figure(lines, counts, METRICS["exact_match"]).axes
    assert [list(line.get_ydata()) for line in left.lines] == [[10, 30], [15, 35], [33, 55], [24.4, 53.9], []]
    assert len({line.get_color() for line in left.lines[:4]}) == 4
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["1\n40", "3\n30"]
    assert len(left.collections) == 3  # a band for each row with several seeds
    said = [" ".join(text.get_text().split()) for text in right.texts]
    assert said == [
        "20.0 best single",
        "25.0 joined",
        "41.4 published: Curve",
        "42.0 published: Mean",
        "45.0 best of all",
    ]


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_no_text_of_a_figure_lies_on_another_one(scale: float) -> None:
    lines = lines_of(EXPERIMENT, made_up_rows(scale), "exact_match")
    lines += [Line("close to others " * 3, "published", {}, (45.0 * scale + i / 10, 0.0)) for i in range(3)]
    figure = score_figure(lines, {1: 40, 3: 30}, METRICS["exact_match"])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[1].texts]
    assert all(one.y1 <= other.y0 for one, other in pairwise(sorted(boxes, key=lambda box: box.y0)))
    whole = figure.bbox
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(0.1, 3)), min_size=1, max_size=7))
def test_labels_are_moved_apart_and_only_if_they_must(labels: list[tuple[float, float]]) -> None:
    values, gaps = sorted(value for value, _ in labels), [gap for _, gap in labels[1:]]
    found = spread(values, gaps, -100, 100)
    assert all(two - one >= gap - 1e-9 for (one, two), gap in zip(pairwise(found), gaps, strict=True))
    if all(two - one > gap for (one, two), gap in zip(pairwise(values), gaps, strict=True)):
        assert found == pytest.approx(values)
    assert sum(found) == pytest.approx(sum(values), abs=1e-6)


def test_labels_are_kept_between_the_ends() -> None:
    assert spread([0, 1, 9], [2, 2], 1, 8) == [1, 3, 8]


def test_the_figure_of_words_has_a_cell_for_each_source() -> None:
    words = made_up_rows()[3]["words"]
    (panel,) = word_figure(words, SOURCES).axes
    assert [text.get_text() for text in panel.texts] == ["a\n+2.0", "b\n+0.0", "absent", "c"]
    assert [tick.get_text() for tick in panel.get_yticklabels()] == ["a b (0.37)", "c (0.14)"]
    assert panel.collections[0].get_clim() == (-2, 2)  # white is 0
    assert panel.get_ylim() == (2, 0)
    page = word_section({"label": "in turn", "words": words}, "toy/words.png")
    assert "![Drop of the log-probability of 2 words without each source](toy/words.png)" in page


def test_figures_are_drawn_if_there_are_data_and_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "toy").mkdir()
    rows = made_up_rows()
    assert draw_figures("toy", EXPERIMENT, rows, tmp_path) == ["toy.png", "toy/words.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("toy.png", "toy/words.png"))
    assert draw_figures("toy", EXPERIMENT, rows[:3], tmp_path) == []  # the row is not there yet
    few = [{**row, "presence": {}, "words": []} for row in rows]
    assert draw_figures("toy", EXPERIMENT, few, tmp_path) == []
    monkeypatch.setattr(experiment_figures, "find_spec", lambda name: None)
    assert draw_figures("toy", EXPERIMENT, few, tmp_path) == [] and not caplog.records
    assert draw_figures("toy", EXPERIMENT, rows, tmp_path) == []
    assert 'run pip install ".[plots]" in a clone' in caplog.text
