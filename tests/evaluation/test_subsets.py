"""The page of one checkpoint on every subset of its sources, from made-up runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_multisource.cli.results import main as results_main
from hf_multisource.evaluation import results
from hf_multisource.evaluation.conditions import measure, summarize
from hf_multisource.evaluation.decoding import Decoded, Hypothesis
from hf_multisource.metrics.table import METRICS
from reports import subsets
from scored import REFERENCES, cells_of, compared, spoilt

SEARCH = {"num_beams": 4, "length_penalty": 1.0, "length_penalty_formula": "sum / length"}
# Words that a run gets wrong in every sentence, in each condition.
WRONG = {
    "dropout": {"all": 1, "absent-en": 2, "absent-de": 1, "absent-fr": 1, "only-en": 2, "only-de": 3, "only-fr": 1},
    "serial": {"all": 1, "wrong-en": 3, "absent-en": 3, "only-en": 3},
    "en": {"all": 1},
    "de": {"all": 3},
}
SOURCES = {"en": ["en"], "de": ["de"]}
Rows = dict[str, dict[str, Any]]


def make_run(folder: Path, name: str, gain: float = 0.0, num_beams: int = 4) -> Path:
    """A run folder with all that a row is made from; `gain`: dev BLEU that the last fifth of the updates brought."""
    run, sources = folder / name, SOURCES.get(name, ["en", "de", "fr"])
    (run / "scores").mkdir(parents=True)
    conditions = {}
    for condition, words in WRONG[name].items():
        texts = spoilt(REFERENCES, words)
        decoded = Decoded([[Hypothesis(text, 0.0)] for text in texts], 1.0)
        conditions[condition] = summarize(
            [measure(decoded, [{"cs": text} for text in REFERENCES], "cs", ["bleu", "chrf"], None)]
        )
        (run / "scores" / f"test.{condition}.txt").write_text("".join(f"{text}\n" for text in texts))
    (run / "scores" / "test.reference.txt").write_text("".join(f"{text}\n" for text in REFERENCES))
    report: dict[str, Any] = {
        "sources": sources,
        "target": "cs",
        "split": "test",
        "conditions": conditions,
        "hardware": "an abacus",
    }
    report |= {"threads": 1, "search": {**SEARCH, "num_beams": num_beams}, "date": "2026-11-21", "versions": {}}
    history = [{"step": 100 * i, "eval_bleu": 20.0 + gain * (i == 10)} for i in range(1, 11)]
    summary = {"updates": 1000, "seconds": 9.0, "parameters": 5e6, "hardware": "an abacus", "threads": 1, "seed": 7}
    files: dict[str, dict[str, Any]] = {
        "scores/test.json": {**report, "commands": [f"python training/score.py runs/{name}"]},
        "config.json": {"combiner": "serial", "sources": sources},
        "trainer_state.json": {"log_history": history},
        "train_summary.json": {**summary, "command": f"python training/train.py {name}.yaml"},
    }
    for path, content in files.items():
        (run / path).write_text(json.dumps(content))
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: make_run(folder, name) for name in WRONG}


@pytest.fixture(scope="module")
def rows(runs: dict[str, Path]) -> Rows:
    dedicated = [runs[name] for name in ("en", "de", "serial")]
    made = {name: results.make_row(run, "tiny", name) for name, run in runs.items()}
    return {**made, "dropout": results.make_row(runs["dropout"], "tiny", "dropout", dedicated=dedicated)}


def test_a_condition_leaves_the_sources_that_its_name_says() -> None:
    sources = ["en", "de", "fr"]
    left = {name: results.sources_left(name, sources) for name in ("all", "absent-de", "only-fr", "wrong-en")}
    assert left == {"all": ("en", "de", "fr"), "absent-de": ("en", "fr"), "only-fr": ("fr",), "wrong-en": ()}


def test_a_row_compares_each_subset_with_the_model_trained_on_it(rows: Rows) -> None:
    pairs = {"only-en": ("en", 2, 1), "only-de": ("de", 3, 3), "all": ("serial", 1, 1)}
    assert rows["dropout"]["dedicated"] == {
        condition: compared(run, spoilt(REFERENCES, own), spoilt(REFERENCES, its), REFERENCES)
        for condition, (run, own, its) in pairs.items()
    }
    assert "dedicated" not in rows["en"]


def test_a_model_of_a_subset_that_was_not_scored_is_refused(runs: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"serial has no score with just de left to compare with .*de$"):
        results.make_row(runs["serial"], "tiny", "serial", dedicated=[runs["de"]])
    with pytest.raises(ValueError, match="no score with just en left"):
        results.make_row(runs["dropout"], "tiny", "dropout", dedicated=[runs["en"], runs["en"]])


def test_the_page_has_every_subset_beside_its_dedicated_model(rows: Rows) -> None:
    page = subsets.render("tiny", list(rows.values()), ["dropout", "serial"], "Words.\n\nMore words.\n")
    cells = cells_of(page)
    assert cells[0] == [
        *("sources", "dropout", "serial", "dedicated model", "difference", "p", "at most 1 BLEU lost")
    ]  # fmt: skip
    table = {line[0]: line[1:] for line in cells[2:9]}
    assert list(table) == ["en", "de", "fr", "en de", "en fr", "de fr", "en de fr"]

    def bleu(name: str, condition: str) -> str:
        return results.format_score(rows[name]["scores"][condition], "bleu")

    lost = rows["dropout"]["dedicated"]["only-en"]["bleu"]
    assert lost["difference"] < lost["difference_high"] < -1
    interval = f"{lost['difference']:+.1f} [{lost['difference_low']:+.1f}, {lost['difference_high']:+.1f}]"
    own = [bleu("dropout", "only-en"), bleu("serial", "only-en"), f"{bleu('en', 'all')} (en)"]
    assert table["en"] == [*own, interval, f"{lost['p_value']:.3f}", "no"]
    assert table["de"][1:] == ["", f"{bleu('de', 'all')} (de)", "+0.0 [+0.0, +0.0]", "1.000", "yes"]
    assert table["de fr"] == [bleu("dropout", "absent-en"), bleu("serial", "absent-en"), "", "", "", ""]
    assert table["en de fr"][2] == f"{bleu('serial', 'all')} (serial)"
    assert page.splitlines()[3] == "Words."
    assert "## What they show\n\nMore words.\n" in page
    details = cells_of(page.split("## Every score")[1])
    score = rows["en"]["scores"]["all"]["bleu"]
    shown = [f"{score['score']:.2f} ± {score['sd']:.2f}", f"[{score['ci_low']:.2f}, {score['ci_high']:.2f}]"]
    assert [line[2:4] for line in details if line[:2] == ["en", "en"]] == [shown]
    assert [line[1] for line in details if line[0] == "en de fr"] == ["dropout", "serial"]
    for name in WRONG:
        assert f"      python training/train.py {name}.yaml\n" in page


@pytest.mark.parametrize(
    ("low", "difference", "high", "expected"),
    [
        (-1.0, -0.2, 0.4, "yes"),
        (-1.1, -0.2, 0.4, "yes, not certain"),
        (-2.0, -1.1, -1.0, "no, not certain"),
        (-2.0, -1.5, -1.1, "no"),
        (1.0, 2.0, 3.0, "yes"),  # to be better is no loss
    ],
)
def test_the_verdict_says_what_the_interval_allows(low: float, difference: float, high: float, expected: str) -> None:
    bleu = {"difference": difference, "difference_low": low, "difference_high": high}
    assert subsets.verdict(bleu, METRICS["bleu"]) == expected
    turned = {"difference": -difference, "difference_low": -high, "difference_high": -low}
    assert subsets.verdict(turned, METRICS["ter"]) == expected


def test_no_verdict_stands_on_an_unfinished_model(rows: Rows, tmp_path: Path) -> None:
    unfinished = results.make_row(make_run(tmp_path, "de", gain=1.0), "tiny", "de")
    page = subsets.render("tiny", list({**rows, "de": unfinished}.values()), ["dropout"])
    line = {line[0]: line for line in cells_of(page)[2:9]}["de"]
    assert line[2].endswith("(de (unfinished))")
    assert line[-1] == "open (unfinished)"
    own = {**rows, "dropout": {**rows["dropout"], "finished": False}}
    page = subsets.render("tiny", list(own.values()), ["dropout"])
    verdicts = {line[0]: line[-1] for line in cells_of(page)[2:9]}
    assert [verdicts[name] for name in ("en", "de", "fr")] == ["open (unfinished)"] * 2 + [""]


def test_rows_that_do_not_go_together_are_refused(rows: Rows, tmp_path: Path) -> None:
    other = results.make_row(make_run(tmp_path, "de", num_beams=5), "tiny", "de")
    without = [row for name, row in rows.items() if name != "en"]
    for given, name, message in [
        (list(rows.values()), "nothing", "there is no row nothing; there are dropout, serial, en, de"),
        (
            list(rows.values()),
            "serial",
            "row serial is compared with no dedicated model; `hf-multisource results row --dedicated RUN`",
        ),
        (without, "dropout", "the table has no row of en; `hf-multisource results row` writes it"),
        (list({**rows, "de": other}.values()), "dropout", "the rows were not scored alike"),
    ]:
        with pytest.raises(ValueError, match=message):
            subsets.render("tiny", given, [name])


def test_the_commands_write_rows_and_page(runs: dict[str, Path], rows: Rows, tmp_path: Path) -> None:
    out = ["--results", str(tmp_path)]
    for name in ("en", "de", "serial"):
        results_main(["row", str(runs[name]), "--table", "tiny", "--name", name, *out])
    dedicated = [str(runs[name]) for name in ("en", "de", "serial")]
    row = ["row", str(runs["dropout"]), "--table", "tiny", "--name", "dropout", "--dedicated", *dedicated]
    results_main([*row, *out])
    assert json.loads((tmp_path / "tiny" / "dropout.json").read_text()) == json.loads(json.dumps(rows["dropout"]))
    (tmp_path / "tiny_subsets").mkdir()
    (tmp_path / "tiny_subsets" / "notes.md").write_text("Words.\n")
    subsets.main(["tiny", "dropout", "serial", *out])
    page = (tmp_path / "tiny_subsets.md").read_text("utf-8")
    assert page == subsets.render("tiny", list(rows.values()), ["dropout", "serial"], "Words.\n")
    with pytest.raises(SystemExit, match=r"subsets\.py: there is no row nothing"):
        subsets.main(["tiny", "nothing", *out])
