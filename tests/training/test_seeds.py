"""`train --seeds`: one run folder a seed, resumable as a whole."""

import shutil
from pathlib import Path

import pytest
import yaml

from hf_multisource.cli.train import main
from hf_multisource.recipes.seeds import describe_seeds, seed_folders, train_seeds
from kills import Killed, kill_at
from runs import EVALUATED, RECIPE, make_folder, read_json, same, train_at, weights_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_folder(tmp_path)
    content = {**RECIPE, "training": {**RECIPE["training"], **EVALUATED}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_seed_is_trained_as_if_alone_and_the_dev_metric_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["recipe.yaml", "--seeds", "3", "4", "--combiner", "flat", "--output_dir", "both"])
    said = capsys.readouterr().out
    alone = train_at(folder, "alone", seed=4, combiner="flat")
    assert seed_folders(folder / "both") == [folder / "both" / "seed-3", folder / "both" / "seed-4"]
    assert same(weights_of(folder / "both" / "seed-4"), weights_of(alone))
    assert not same(weights_of(folder / "both" / "seed-3"), weights_of(alone))
    summaries = [read_json(run / "train_summary.json") for run in seed_folders(folder / "both")]
    assert summaries[1]["command"] == (
        "hf-multisource train recipe.yaml --combiner flat --seed 4 --output_dir both/seed-4"
    )
    assert said.splitlines()[-1] == describe_seeds(summaries)


def test_an_interrupted_training_of_seeds_goes_on_where_it_was(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, "_save_checkpoint", 8, after=False)
        with pytest.raises(Killed):
            main(["recipe.yaml", "--seeds", "1", "2"])
    assert not (folder / "run" / "seed-2").exists()
    main(["recipe.yaml", "--seeds", "1", "2", "--resume"])
    assert read_json(folder / "run" / "seed-1" / "train_summary.json")["resumed"]
    before = {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*")}
    main(["recipe.yaml", "--seeds", "1", "2", "--resume"])
    assert {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*")} == before
    with pytest.raises(SystemExit, match=r"holds a run of another recipe.*model\.dropout was 0\.2, is 0\.1"):
        main(["recipe.yaml", "--seeds", "1", "2", "--resume", "--model.dropout", "0.1"])


def test_seeds_given_twice_are_refused(folder: Path) -> None:
    with pytest.raises(SystemExit, match="--seed and --seeds were both given"):
        main(["recipe.yaml", "--seeds", "1", "2", "--seed", "1"])
    with pytest.raises(ValueError, match="--seeds must all differ; got 1 1"):
        train_seeds("recipe.yaml", {}, [1, 1])
    assert not (folder / "run").exists()


def test_all_seeds_are_checked_before_the_first_is_trained(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"training\.seed must be .*-3"):
        train_seeds("recipe.yaml", {}, [1, -3])
    shutil.copytree(train_at(folder, "other", dropout=0.1), folder / "run" / "seed-2")
    with pytest.raises(FileExistsError, match="seed-2 already holds a run"):
        train_seeds("recipe.yaml", {}, [1, 2])
    with pytest.raises(ValueError, match="seed-2 holds a run of another recipe"):
        train_seeds("recipe.yaml", {}, [1, 2], resume=True)
    assert not (folder / "run" / "seed-1").exists()


def test_the_report_has_mean_and_deviation() -> None:
    def summaries(*scores: float | None, metric: str = "exact_match") -> list[dict[str, object]]:
        return [{"metric_for_best_model": metric, "best_metric": score} for score in scores]

    assert describe_seeds(summaries(1.0, 2.0, 6.0)) == "exact_match on dev: 3.0 ± 2.6 (3 seeds: 1.0, 2.0, 6.0)"
    assert describe_seeds(summaries(2.0)) == "exact_match on dev: 2.0 (1 seed: 2.0)"
    assert describe_seeds(summaries(0.5, metric="loss")) == "loss on dev: 0.500 (1 seed: 0.500)"
    assert describe_seeds(summaries(None, None)) == "2 seeds trained"
