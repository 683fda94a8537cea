"""Scores, rows and pages of folders of seeds."""

import json
import shutil
import statistics
from pathlib import Path

import pytest

from hf_multisource.cli import results, score
from hf_multisource.data.files import read_lines
from hf_multisource.evaluation.results import make_row
from hf_multisource.metrics.bootstrap import pooled_bootstrap
from hf_multisource.metrics.randomization import approximate_randomization
from runs import read_json, write_lines
from scored import COLUMNS, OPTIONS, cells_of, make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of two seeds: the second one writes the references, and still learns."""
    make_run(tmp_path / "runs" / "seed-2", tmp_path)
    shutil.copytree(tmp_path / "runs" / "seed-2", tmp_path / "runs" / "seed-10")
    return tmp_path / "runs"


@pytest.fixture
def scored(run: Path) -> Path:
    score.main([str(run), *OPTIONS])
    better = run / "seed-10"
    write_lines(better / "scores" / "test.all.txt", [f"{text} x" for text in COLUMNS["cs"]])
    report = read_json(better / "scores" / "test.json")
    report["conditions"]["all"]["bleu"]["score"] = 80.0
    (better / "scores" / "test.json").write_text(json.dumps(report))
    history = [{"step": 100 * i, "eval_bleu": 2.0 * i, "eval_loss": 2.0} for i in range(1, 11)]
    (better / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    summary = read_json(better / "train_summary.json")
    (better / "train_summary.json").write_text(json.dumps({**summary, "seed": 10, "seconds": 150.0}))
    return run


def test_score_scores_each_seed_and_prints_the_mean(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score.main([str(run), *OPTIONS])
    said = capsys.readouterr().out
    assert said.index(f"{run / 'seed-2'}:") < said.index(f"{run / 'seed-10'}:")
    value = read_json(run / "seed-2" / "scores" / "test.json")["conditions"]["all"]["bleu"]["score"]
    assert said.splitlines()[-1].startswith(f"mean of 2 seeds: BLEU {value:.2f} ± 0.00, chrF ")
    with pytest.raises(SystemExit, match=r"--out x: .*runs is a folder of seeds"):
        score.main([str(run), *OPTIONS, "--out", "x"])


def test_lines_without_the_sources_of_the_model_can_be_scored_with_empty_hypotheses(run: Path, tmp_path: Path) -> None:
    """As those of other models that have a source there."""
    own = run / "seed-2"
    write_lines(tmp_path / "test.de", ["", *COLUMNS["de"][1:]])
    write_lines(tmp_path / "test.en", ["", *COLUMNS["en"][1:]])
    write_lines(tmp_path / "test.fr", COLUMNS["cs"])
    score.main([str(own), *OPTIONS, "--out", str(tmp_path / "some")])
    score.main([str(own), *OPTIONS, "--out", str(tmp_path / "all"), "--sources", "en", "de", "fr"])
    some, full = (read_lines(tmp_path / name / "test.all.txt") for name in ("some", "all"))
    assert len(some) == 11 and full == ["", *some]
    report = read_json(tmp_path / "all" / "test.json")
    assert report["sources"] == ["en", "de"] and report["presence"]["number"]["1"]["n"] == 1
    with pytest.raises(SystemExit, match="--sources en fr: de is missing, which the model reads"):
        score.main([str(own), *OPTIONS, "--out", str(tmp_path / "bad"), "--sources", "en", "fr"])


def test_the_row_of_a_folder_of_seeds_holds_all_seeds(scored: Path, tmp_path: Path) -> None:
    one, other = (make_row(scored / name, "t", "x") for name in ("seed-2", "seed-10"))
    row = make_row(scored, "t", "x")
    scores = [one["scores"]["all"]["bleu"]["score"], 80.0]
    bleu = row["scores"]["all"]["bleu"]
    assert (row["run"], row["seed"], row["minutes"], row["finished"]) == ("runs", [7, 10], 2.0, False)
    assert bleu["seeds"] == scores
    assert (bleu["score"], bleu["seeds_sd"]) == (statistics.fmean(scores), statistics.stdev(scores))
    assert [(seed["seed"], seed["last"], seed["finished"]) for seed in row["runs"]] == [
        (7, 20.0, True),
        (10, 20.0, False),
    ]
    assert row["runs"][1]["scores"]["bleu"] == 80.0 and row["dev_loss"] == 1.5
    assert row["curve"][0] == (100, 11.0) and len(row["curve"]) == 10
    assert row["presence"]["with"]["de"]["n"] == other["presence"]["with"]["de"]["n"]
    assert "seeds" in row["presence"]["with"]["de"]["bleu"]


def test_folders_of_seeds_are_compared_by_the_pooled_tests(scored: Path, tmp_path: Path) -> None:
    baseline = make_run(tmp_path / "joined", tmp_path, concatenate=True)
    score.main([str(baseline), *OPTIONS])
    found = make_row(scored, "t", "x", baseline=baseline)["baseline"]
    ours = [read_lines(scored / name / "scores" / "test.all.txt") for name in ("seed-2", "seed-10")]
    sides = (ours, [read_lines(baseline / "scores" / "test.all.txt")], COLUMNS["cs"])
    pooled, p_values = pooled_bootstrap(*sides), approximate_randomization(*sides)
    assert found == {"run": "joined"} | {
        name: {**pooled[name], "p_randomization": p_values[name]} for name in ("bleu", "chrf")
    }


def test_runs_that_are_no_seeds_of_one_recipe_are_refused(scored: Path) -> None:
    summary = read_json(scored / "seed-10" / "train_summary.json")
    (scored / "seed-10" / "train_summary.json").write_text(json.dumps({**summary, "parameters": 6000}))
    with pytest.raises(ValueError, match="runs: the runs are no seeds of one recipe: parameters is 5000 and 6000"):
        make_row(scored, "t", "x")


def test_seeds_that_were_scored_differently_are_refused(scored: Path) -> None:
    path = scored / "seed-10" / "scores" / "test.json"
    report = read_json(path)
    path.write_text(json.dumps({**report, "search": {**report["search"], "batch_size": 9}}))
    make_row(scored, "t", "x")  # the hypotheses do not depend on the batch size
    path.write_text(json.dumps({**report, "search": {**report["search"], "num_beams": 3}}))
    with pytest.raises(ValueError, match=r"scored differently: search is .*'num_beams': 2.* and .*'num_beams': 3"):
        make_row(scored, "t", "x")
    report["conditions"]["all"].pop("chrf")
    path.write_text(json.dumps(report))
    with pytest.raises(
        ValueError, match=r"runs: the seeds .*: metrics is \['bleu', 'chrf'\] and \['bleu'\]; score them"
    ):
        make_row(scored, "t", "x")


def test_conditions_and_counts_that_one_seed_lacks_are_left_out(run: Path) -> None:
    score.main([str(run), *OPTIONS, "--absent"])
    path = run / "seed-2" / "scores" / "test.json"
    report = read_json(path)
    report["conditions"]["absent-en"].pop("chrf")
    path.write_text(json.dumps({**report, "placeholders": {"syntax": "any", "rows": 1, "written": 1, "whole": 1}}))
    row = make_row(run, "t", "x")
    assert "chrf" not in row["scores"]["absent-en"] and "bleu" in row["scores"]["absent-en"]
    assert "placeholders" not in row


def test_the_page_shows_mean_and_deviation_and_one_seed_as_before(scored: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    shutil.copytree(scored / "seed-2", tmp_path / "few" / "seed-2")
    for folder, name in ((scored, "two"), (tmp_path / "few", "one"), (scored / "seed-2", "plain")):
        results.main(["row", str(folder), "--table", "tiny", "--name", name, "--results", str(out)])
    page = (out / "tiny.md").read_text("utf-8")
    lines = {cells[0]: cells for cells in cells_of(page) if cells[0] in ("two (unfinished)", "one", "plain")}
    row = read_json(out / "tiny" / "two.json")["scores"]["all"]["bleu"]
    assert lines["two (unfinished)"][3] == f"{row['score']:.1f} ± {row['seeds_sd']:.1f} (2 seeds)"
    assert lines["one"][1:] == lines["plain"][1:]
    assert "Of several seeds: mean ± standard deviation over the seeds." in page
    assert "seeds 7, 10; commands of the first): trained on an abacus" in page
