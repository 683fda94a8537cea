"""`hf-multisource reproduce`: experiments of two made-up languages with tiny models, end to end."""

import random
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from filelock import FileLock

from hf_multisource.cli.reproduce import main
from hf_multisource.evaluation import experiment as experiment_module
from hf_multisource.evaluation import experiment_page, experiment_rows
from hf_multisource.evaluation.experiment import Run
from hf_multisource.evaluation.experiment_cells import cells_of
from hf_multisource.evaluation.experiment_rows import RowWriter
from hf_multisource.evaluation.experiment_store import CellStore
from hf_multisource.evaluation.results import compare
from hf_multisource.evaluation.scoring import Scoring, score
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes import widths
from hf_multisource.recipes.experiments import load_experiment, merge, shipped_experiments
from hf_multisource.recipes.reading import parse_overrides
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.training import train
from kills import Killed, kill_at
from runs import read_json, write_lines
from scored import cells_of as cells_of_page

RECIPE: dict[str, Any] = {
    "data": {
        "path": "words",
        "sources": ["north", "south"],
        "target": "old",
        "metrics": ["exact_match", "edit_distance"],
    },
    "tokenizer": {"kind": "symbols"},
    "model": {
        **{"d_model": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 8},
        **{"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8},
    },
    "training": {
        **{
            "output_dir": "run",
            "max_steps": 4,
            "per_device_train_batch_size": 8,
            "learning_rate": 0.01,
            "use_cpu": True,
        },
        **{"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "disable_tqdm": True},
        **{"load_best_model_at_end": True, "metric_for_best_model": "exact_match", "generation_max_length": 6},
    },
}
TOY: dict[str, Any] = {
    "recipe": "recipe.yaml",
    "path": "words",
    "sources": ["north", "south"],
    "target": "old",
    "seeds": [1, 2],
    "score": {"num_beams": 2, "max_new_tokens": 6},
    "baseline": "joined",
    "margin": 5.0,
    "rows": {
        "joined": {"label": "all joined", "train": {"data.concatenate": True}},
        "serial": {"label": "in turn", "train": {"combiner": "serial"}},
    },
    "published": [
        {"label": "A guess", "citation": "Nobody 1999", "scores": {"exact_match": 12.5}, "number": {1: 7.5, 2: 17.5}}
    ],
    "quick": {"rows": ["serial"], "seeds": [1], "train": {"max_steps": 2}},
}
EAST = {"baseline": None}  # of an experiment whose rows are others
ONE_ROW = {**TOY, "seeds": [1], "rows": {"joined": TOY["rows"]["joined"]}}


def write_words(folder: Path, names: tuple[str, str, str], seed: int = 0) -> None:
    """Words of two languages that each keep some of the sounds of an old one; either may lack a word."""
    rng = random.Random(seed)
    folder.mkdir()
    for split, count in {"train": 24, "dev": 12, "test": 12}.items():
        old = [rng.choices("abc", k=rng.randint(1, 3)) for _ in range(count)]
        words = ["" if i % 4 == 1 else " ".join(word) for i, word in enumerate(old)]
        others = ["" if i % 4 == 2 else " ".join(word[::-1]) for i, word in enumerate(old)]
        for name, lines in zip(names, (words, others, [" ".join(word) for word in old]), strict=True):
            write_lines(folder / f"{split}.{name}", lines)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_words(tmp_path / "words", ("north", "south", "old"))
    write("recipe", RECIPE)
    return write("toy", TOY)


def write(name: str, content: Any) -> Path:
    path = Path(f"{name}.yaml")
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def states(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    capsys.readouterr()
    main(["toy.yaml", "--dry_run", *arguments])
    return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())


def started(said: str) -> list[str]:
    return [line for line in said.splitlines() if "/seed-" in line and " " not in line]


def test_an_experiment_is_run_seed_by_seed_resumed_after_a_kill_and_shown_on_a_page(
    toy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(states(capsys).values()) == {"not begun"} and not Path("runs").exists()
    with pytest.MonkeyPatch.context() as patch:
        calls = iter(range(99))
        patch.setattr(
            experiment_module, "train", lambda *args, **keys: train(*args, **keys) if next(calls) < 2 else dying()
        )

        def dying() -> None:
            raise Killed

        with pytest.raises(Killed):
            main([str(toy)])
    said = capsys.readouterr().out
    assert started(said) == ["joined/seed-1", "serial/seed-1", "joined/seed-2"] and "resume" not in said
    page = Path("docs/results/toy.md").read_text("utf-8")
    assert "| all joined | 1 " in page and "| in turn    | 1 " in page
    assert states(capsys) == {
        **{"joined/seed-1": "done", "serial/seed-1": "done", "joined/seed-2": "not begun", "serial/seed-2": "not begun"}
    }
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, "_save_checkpoint", 4, after=False)
        main([str(toy)])
    assert states(capsys)["joined/seed-2"] == "begun"
    before = {path: path.stat().st_mtime_ns for path in Path("runs/toy/joined/seed-1").rglob("*.safetensors")}
    main([str(toy)])
    assert started(capsys.readouterr().out) == ["joined/seed-2", "serial/seed-2"]
    assert read_json(Path("runs/toy/joined/seed-2/train_summary.json"))["resumed"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert set(states(capsys).values()) == {"done"}
    check_rows_and_page()
    Path("docs/results/toy/serial.json").unlink()
    main([str(toy)])
    assert started(capsys.readouterr().out) == []
    check_rows_and_page()


def check_rows_and_page() -> None:
    rows = {name: read_json(Path(f"docs/results/toy/{name}.json")) for name in ("joined", "serial")}
    assert rows["joined"]["baseline"] is None and rows["joined"]["combiner"] == "concatenated"
    found = compare(Path("runs/toy/serial"), Path("runs/toy/joined"), "test", metrics=["exact_match", "edit_distance"])
    assert rows["serial"]["baseline"] == found
    assert [run["seed"] for run in rows["serial"]["runs"]] == [1, 2]
    page = Path("docs/results/toy.md").read_text("utf-8")
    tables = cells_of_page(page)
    entry = rows["serial"]["scores"]["all"]["edit_distance"]
    line = next(cells for cells in tables if cells[0] == "in turn")
    assert line[1] == "2" and line[3] == f"{entry['score']:.3f} ± {entry['seeds_sd']:.3f}" and line[4].endswith(" of 2")
    assert ["*A guess*", "", "12.5", "", "", "", "", ""] in tables and ["*A guess*", "7.5", "17.5"] in tables
    assert "## Differences to all joined" in page and "- *A guess*: Nobody 1999" in page
    label = next(cells for cells in tables if "1 source (" in cells[1])
    assert label == ["row", "1 source (6)", "2 sources (6)"]
    assert "without south (3)" in page and "quick" not in page
    for words in (
        "Test set: 12 examples of the split `test`, with target old and sources north, south. Scores are mean ±",
        "Higher is better: exact match. Lower is better: edit distance.",
        "`{train: {combiner: serial}}`.",
        "All rows: sources north south; trained on ",
        "recipe recipe.yaml. The commands",
    ):
        assert words in " ".join(page.split())


def test_a_row_is_analyzed_and_its_scores_stay_when_it_is_chosen_later(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(toy)])
    report = Path("runs/toy/serial/seed-1/scores/test.json")
    before = read_json(report)["conditions"]["all"]["draws"][0]
    words = [{"old": "a b", "north": "a b", "south": "b a"}, {"old": "c", "south": "c"}]
    write("toy", {**TOY, "analyzed": "serial", "words": words})
    assert states(capsys)["serial/seed-2"] == "trained" and states(capsys)["joined/seed-2"] == "done"
    main([str(toy)])
    assert started(capsys.readouterr().out) == ["serial/seed-1", "serial/seed-2"]
    assert read_json(report)["conditions"]["all"]["draws"][0] == before  # its seconds, too: not decoded again
    row = read_json(Path("docs/results/toy/serial.json"))
    assert set(row["scores"]) == {"all", "absent-north", "absent-south", "only-north", "only-south"}
    assert row["left_out"]["north"]["n"] == 6 and set(row["left_out"]["south"]["only"]) == {
        "exact_match",
        "edit_distance",
    }
    assert row["symbols"]["errors"] / 12 == pytest.approx(row["scores"]["all"]["edit_distance"]["score"])
    assert set(row["words"][0]["drops"]) == {"north", "south"} and row["words"][1]["drops"] == {}
    assert "left_out" not in read_json(Path("docs/results/toy/joined.json"))
    page = Path("docs/results/toy.md").read_text("utf-8")
    for heading in ("What each source gives", "Which symbols are wrong", "How much each source matters for single"):
        assert f"## {heading}" in page
    assert "(toy/words.png)" in page and Path("docs/results/toy/words.png").exists()
    assert "(toy.png)" not in page  # too few sentences have any number of sources
    assert "Sources taken away" not in page and states(capsys)["serial/seed-2"] == "done"


def test_an_experiment_goes_on_from_its_results_where_its_runs_are_not(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [{"old": "a b", "north": "a b", "south": "b a"}]
    everything = {**TOY, "analyzed": "serial", "words": words}
    write("toy", everything)
    main([str(toy)])
    results = Path("docs/results")
    before = {path: path.read_bytes() for path in sorted(results.rglob("*")) if path.is_file()}
    shutil.rmtree(results)
    main([str(toy)])  # the other way round: the results are made again from the runs
    assert {path: path.read_bytes() for path in sorted(results.rglob("*")) if path.is_file()} == before
    kept = sorted(path.name for path in (results / "toy/cells").glob("*.zip"))
    assert kept == [f"{row}.seed-{seed}.zip" for row in ("joined", "serial") for seed in (1, 2)]
    with zipfile.ZipFile(results / "toy/cells/serial.seed-1.zip") as archive:
        names = archive.namelist()
    assert {"cell.json", "recipe.yaml", "train_summary.json", "words.json", "scores/test.all.txt"} <= set(names)
    assert not any(name.endswith((".reference.txt", ".safetensors", ".py")) for name in names)  # no data, no weights

    reference = Path("runs/toy/serial/seed-1/scores/test.reference.txt").read_bytes()
    shutil.rmtree("runs")
    capsys.readouterr()
    assert states(capsys)["serial/seed-1"] == f"kept in {results / 'toy/cells/serial.seed-1.zip'}"
    for path in results.glob("toy/*.json"):
        path.unlink()
    main([str(toy)])
    assert started(capsys.readouterr().out) == []  # nothing is trained again
    assert {path: path.read_bytes() for path in sorted(results.rglob("*")) if path.is_file()} == before
    assert Path("runs/toy/serial/seed-1/scores/test.reference.txt").read_bytes() == reference

    main([str(toy), "--seeds", "3", "--rows", "serial"])  # one more seed beside those that were restored
    assert read_json(results / "toy/serial.json")["seed"] == [1, 2, 3]
    together = {**everything["rows"], "both": {"label": "both", "ensemble": {"of": "serial"}}}
    write("toy", {**everything, "rows": together})
    with pytest.raises(SystemExit, match=r"both/seeds-1-2: runs/toy/serial/seed-1 was restored without its weights"):
        main([str(toy)])


def test_the_page_is_written_again_where_no_cell_is_left_to_run(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("toy", ONE_ROW)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match="1 cell failed: joined/seed-1"):
        patch.setattr(experiment_module, "train", lambda *_, **__: [][0])
        main([str(toy)])
    page = Path("docs/results/toy.md")
    assert not page.exists()  # without a row there is nothing to show
    main([str(toy)])
    before = page.read_text("utf-8")
    Path("docs/results/toy/notes.md").write_text("Joined words are easy.\n", "utf-8")
    capsys.readouterr()
    main([str(toy)])
    said = capsys.readouterr().out
    assert started(said) == [] and said.splitlines()[-1] == str(page)
    assert page.read_text("utf-8").replace("Joined words are easy.\n\n", "") == before != page.read_text("utf-8")
    page.unlink()
    main([str(toy)])
    assert "Joined words are easy." in page.read_text("utf-8")


def test_a_row_whose_runs_and_archives_are_gone_keeps_its_scores_but_no_comparison(toy: Path) -> None:
    write("toy", {**TOY, "seeds": [1]})
    main([str(toy)])
    row = Path("docs/results/toy/serial.json")
    before = read_json(row)
    assert before["baseline"]["run"] == "joined"
    shutil.rmtree("runs")
    shutil.rmtree("docs/results/toy/cells")
    Path("runs/toy/serial/seed-1").mkdir(parents=True)  # begun
    main([str(toy), "--rows", "joined"])  # the baseline, with which it cannot be compared any more
    assert read_json(row) == {**before, "baseline": None}
    assert cells_of_page(Path("docs/results/toy.md").read_text("utf-8"))


def test_kept_cells_of_other_settings_or_data_are_not_used(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("toy", ONE_ROW)
    main([str(toy)])
    capsys.readouterr()
    archive = Path("docs/results/toy/cells/joined.seed-1.zip")
    shutil.rmtree("runs")
    write("toy", {**ONE_ROW, "score": {"num_beams": 1, "max_new_tokens": 6}})
    main([str(toy)])
    said = capsys.readouterr().out
    assert f"{archive}: not used, the settings are other ones" in said and started(said) == ["joined/seed-1"]
    shutil.rmtree("runs")
    shutil.rmtree("words")
    write_words(Path("words"), ("north", "south", "old"), seed=1)
    main([str(toy)])
    said = capsys.readouterr().out
    assert f"{archive.parent}: not used, these cells read other data" in said and started(said) == ["joined/seed-1"]
    shutil.rmtree("runs")
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(SystemExit, match=r"joined\.seed-1\.zip is damaged .*: remove it, and the cell"):
        main([str(toy)])


def test_a_failed_cell_is_reported_and_the_others_go_on(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("toy", merge(ONE_ROW, {"rows": {"bad": {"train": {"combiner": "none"}}, "serial": TOY["rows"]["serial"]}}))
    with pytest.raises(SystemExit, match=r"^hf-multisource reproduce: 1 cell failed: bad/seed-1: .*combiner") as end:
        main([str(toy)])
    assert isinstance(end.value.code, str)  # exit status 1
    assert set(states(capsys).items()) >= {
        ("joined/seed-1", "done"),
        ("serial/seed-1", "done"),
        ("bad/seed-1", "not begun"),
    }


def test_a_row_that_cannot_be_written_is_reported_and_the_others_go_on(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("toy", ONE_ROW)
    main([str(toy)])
    Path("docs/results/toy/joined.json").unlink()
    write("toy", merge(ONE_ROW, {"rows": {"serial": TOY["rows"]["serial"]}}))

    def fail(self: RowWriter, row: Any) -> None:
        if row.name == "joined":
            raise ValueError("no space")
        write_row(self, row)

    write_row = RowWriter.write_row
    monkeypatch.setattr(RowWriter, "write_row", fail)
    with pytest.raises(SystemExit, match="1 cell failed: joined: no space"):
        main([str(toy)])
    assert Path("docs/results/toy/serial.json").exists()


def test_the_analyses_of_an_experiment_read_the_rows_that_were_scored(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data have features in a separate file, and the experiment a limit."""
    seen: list[Any] = []
    data = {"path": "words", "sources": ["north", "map"], "target": "old"}
    model = {**RECIPE["model"], "sources": [{"name": "map", "kind": "features", "feature_size": 2}]}
    write("recipe", {**RECIPE, "data": {**RECIPE["data"], **data}, "model": model})
    for split, count in {"train": 24, "dev": 12, "test": 12}.items():
        np.save(f"words/{split}.map.npy", np.ones((count, 3, 2), np.float32))
    write("toy", {**TOY, **data, "analyzed": "serial", "score": {**TOY["score"], "limit": 7}})
    run = Run(load_experiment("toy.yaml"), tmp_path / "runs", tmp_path / "results")
    monkeypatch.setattr(experiment_rows, "measure_sources", lambda folder, split, rows, *_: seen.extend(rows))
    monkeypatch.setattr(experiment_rows, "measure_symbols", lambda *_: None)
    run.rows.analyze(tmp_path, {"name": "serial", "split": "test", "scores": {"all": {"exact_match": {}}}})
    assert [row["old"] for row in seen] == lines_of(Path("words/test.old"))[:7]
    assert all(row["map"].shape == (3, 2) for row in seen)


def test_a_cell_that_another_process_works_on_is_left_to_it(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/toy/locks").mkdir(parents=True)
    with FileLock("runs/toy/locks/joined.seed-1.lock"):
        assert states(capsys)["joined/seed-1"] == "in work"
        main([str(toy), "--seeds", "1"])
    said = capsys.readouterr().out
    assert started(said) == ["serial/seed-1"] and "joined/seed-1: in work" in said
    assert read_json(Path("docs/results/toy/serial.json"))["baseline"] is None
    main([str(toy), "--seeds", "1", "--rows", "joined"])  # the lock is free; the other row is compared now
    assert read_json(Path("docs/results/toy/serial.json"))["baseline"]["run"] == "joined"


def test_the_quick_form_of_an_experiment_on_other_data_needs_the_names_alone(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_words(Path("far"), ("east", "west", "proto"), seed=1)
    main([str(toy), "--data", "far", "--sources", "east", "west", "--target", "proto", "--quick"])
    said = capsys.readouterr().out
    assert "training has not leveled off" in said and started(said) == ["serial/seed-1"]
    run = Path("runs/toy-quick-far/serial/seed-1")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text("utf-8"))
    assert (recipe["data"]["sources"], recipe["data"]["target"]) == (["east", "west"], "proto")
    assert recipe["training"]["max_steps"] == 2
    page = Path("docs/results/toy-quick-far.md").read_text("utf-8")
    assert "This is a quick run" in page and "A guess" not in page and "target proto and sources east, west" in page
    assert "`hf-multisource reproduce toy.yaml --data far --sources east west --target proto --quick`: recipe" in page


def test_the_best_single_source_is_chosen_on_dev_and_scored_on_all_lines(toy: Path) -> None:
    rows = {"joined": TOY["rows"]["joined"], "single": {"label": "best single source", "best_source": {}}}
    write("toy", {**TOY, "seeds": [1], "rows": rows})
    main([str(toy)])
    run = Run(load_experiment(toy), Path("runs"), Path("docs/results"))
    cells = [cell for cell in cells_of(run.experiment, run.data.root) if cell.source]
    assert [cell.name for cell in cells] == ["single-north/seed-1", "single-south/seed-1"]
    values = {}
    for cell in cells:
        # dev: 12 lines, 3 of which lack the source
        alone = read_json(cell.folder / "train_summary.json")["best_metric"]
        values[cell.folder.parent] = run.cells.dev_score(cell.folder, str(cell.source))[1]
        assert values[cell.folder.parent] == pytest.approx(alone * 9 / 12)
    best = max(values, key=lambda folder: values[folder])
    row = read_json(Path("docs/results/toy/single.json"))
    assert row["sources"] == [best.name.removeprefix("single-")] and row["baseline"]["run"] == "joined"
    assert len((cells[0].folder / "scores" / "test.all.txt").read_text("utf-8").splitlines()) == 12
    assert row["presence"]["with"]["north"]["n"] == 9


def test_the_source_is_chosen_with_the_first_seed_and_only_the_chosen_one_has_the_others(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"joined": TOY["rows"]["joined"], "single": {"label": "best single source", "best_source": {}}}
    write("toy", {**TOY, "rows": rows})
    scores = {"north": 30.0, "south": 20.0}
    monkeypatch.setattr(CellStore, "dev_score", lambda self, folder, source: ("exact_match", scores[source]))
    assert states(capsys)["single/seed-2"] == "waiting for single-north/seed-1, single-south/seed-1"
    main([str(toy), "--rows", "single"])
    assert started(capsys.readouterr().out) == ["single-north/seed-1", "single-south/seed-1", "single-north/seed-2"]
    row = read_json(Path("docs/results/toy/single.json"))
    assert row["choice"] == {"source": "north", "seed": 1, "metric": "exact_match", "scores": scores}
    assert [run["seed"] for run in row["runs"]] == [1, 2]
    page = " ".join(Path("docs/results/toy.md").read_text("utf-8").split())
    assert (
        "*best single source*: north, the best on the dev split with seed 1 (exact match: north 30.0, south 20.0)"
        in page
    )
    assert set(states(capsys, "--rows", "single", "--seeds", "3")) == {"single-north/seed-3"}  # stays chosen
    monkeypatch.setitem(METRICS, "exact_match", METRICS["edit_distance"])
    run = Run(load_experiment(toy), Path("runs"), Path("docs/results"))
    assert run.rows.folder_of(run.experiment.rows["single"]) == run.data.root / "single-south"  # the lower, the better


def test_a_source_that_dev_lacks_is_no_single_source(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(Path("words/dev.north"), [""] * 12)
    rows = {"joined": TOY["rows"]["joined"], "single": {"label": "best single source", "best_source": {}}}
    write("toy", {**TOY, "seeds": [1], "rows": rows})
    main([str(toy)])
    said = capsys.readouterr().out
    assert sorted(started(said)) == ["joined/seed-1", "single-south/seed-1"]
    assert "north: no model of this source alone" in said
    assert read_json(Path("docs/results/toy/single.json"))["sources"] == ["south"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "no folder nowhere"),
        (["--sources", "north", "east"], "unknown source or target 'east': .*'train' has north, old, south"),
        (["--sources", "north", "so-uth"], "data.sources: source name 'so-uth' must be an identifier"),
        (["--sources", "north", "old"], "sources and target must all differ, but are north, old, old"),
        (["--rows", "none"], "rows is 'none'; allowed are joined, serial"),
    ],
)
def test_wrong_data_are_refused_before_anything_is_trained(toy: Path, arguments: list[str], message: str) -> None:
    for more in ([], ["--dry_run"]):
        with pytest.raises(SystemExit, match=message):
            main([str(toy), *arguments, *more])
    assert not Path("runs").exists() and not Path("docs").exists()


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("dev.old", [], r"dev.old is empty"),
        ("dev.old", [""] * 12, r"split 'dev' of words: no row is left of 12; 12 have no target"),
        ("test.south", ["a"] * 11, r"differ in length: .*test.south has 11 lines"),
        ("test.north", None, r"unknown source or target 'north': no test.north"),
    ],
)
def test_wrong_files_are_refused_before_anything_is_trained(
    toy: Path, name: str, lines: list[str] | None, message: str
) -> None:
    Path("words", name).unlink()
    if lines is not None:
        write_lines(Path("words", name), lines)
    with pytest.raises(SystemExit, match=message):
        main([str(toy)])
    assert not Path("runs").exists() and not Path("docs").exists()


def test_runs_on_other_data_are_not_continued(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("toy", ONE_ROW)
    main([str(toy)])
    shutil.move("words", "elsewhere")
    main([str(toy), "--data", "elsewhere"])  # the same data
    assert "joined/seed-1" not in capsys.readouterr().out.splitlines()[-2:]
    write_words(Path("words"), ("north", "south", "old"), seed=5)
    with pytest.raises(SystemExit, match=r"runs.toy holds runs on other data: train, dev, test of words differ"):
        main([str(toy)])
    assert states(capsys, "--data", "elsewhere")["joined/seed-1"] == "done"


def test_the_page_names_symbols_that_the_training_split_lacks(toy: Path) -> None:
    write("toy", ONE_ROW)
    lines = [f"{line} z".strip() for line in Path("words/test.old").read_text("utf-8").splitlines()]
    write_lines(Path("words/test.old"), lines)
    main([str(toy)])
    assert "never occur in the training split: old: z.\n" in Path("docs/results/toy.md").read_text("utf-8")


def test_cells_that_fail_for_one_reason_are_listed_with_it_once(toy: Path) -> None:
    bad = {"train": {"combiner": "none"}}
    write("toy", {**TOY, "baseline": "bad", "rows": {"bad": bad}})
    with pytest.raises(
        SystemExit, match=r"2 cells failed: bad/seed-1, bad/seed-2: model.combiner must be one of .*; got 'none'$"
    ):
        main([str(toy)])


def test_the_name_of_an_experiment_on_other_data_has_no_blank(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def name_of(file: Path, data: str) -> str:
        return load_experiment(file, data=data, sources=["a", "b"], target="c").name

    Path("My (new) family").mkdir()
    assert name_of(toy, "My (new) family") == "toy-My_new_family"
    assert name_of(toy, "org/name:part") == "toy-name_part"
    monkeypatch.chdir("My (new) family")
    assert name_of(Path("../toy.yaml"), ".") == "toy-My_new_family"


def test_the_cells_come_seed_by_seed_and_the_ensemble_last(toy: Path) -> None:
    rows = {
        "ensemble": {"ensemble": {"of": "serial"}},
        "both": {"ensemble": {"of": "serial", "reverse": "back"}},
        "reranked": {"rerank": {"of": "serial", "reverse": "back"}},
        "serial": TOY["rows"]["serial"],
        "back": {"shown": False, "train": {}},
    }
    write("toy", {**TOY, "baseline": "serial", "rows": rows})
    loaded = load_experiment(toy)
    cells = {cell.name: cell for cell in cells_of(loaded, Path("r"))}
    first = ["reranked/seed-1", "serial/seed-1", "back/seed-1"]
    together = ["ensemble/seeds-1-2", "both/seeds-1-2"]
    assert list(cells) == [*first, *(name.replace("1", "2") for name in first), *together]
    assert cells["reranked/seed-2"].needs == (Path("r/serial/seed-2"), Path("r/back/seed-2"))
    members = (Path("r/serial/seed-1"), Path("r/serial/seed-2"))
    assert cells["ensemble/seeds-1-2"].needs == members
    assert cells["both/seeds-1-2"].needs == (*members, Path("r/back/seed-1"))
    states_of_cells = Run(loaded, Path("runs"), Path("x")).cells.states()
    assert states_of_cells["reranked/seed-1"] == "waiting for serial/seed-1, back/seed-1"
    assert [cell.name for cell in cells_of(load_experiment(toy, rows=["reranked"], seeds=[7]), Path("r"))] == [
        "reranked/seed-7",
        "serial/seed-7",
        "back/seed-7",
    ]


def test_a_reranked_row_has_the_scores_of_the_reranked_hypotheses(toy: Path) -> None:
    rows = {
        "serial": TOY["rows"]["serial"],
        "back": {"shown": False, "train": {"reverse": True}},
        "reranked": {"rerank": {"of": "serial", "reverse": "back"}},
    }
    write("toy", {**TOY, "seeds": [1], "baseline": "serial", "rows": rows})
    main([str(toy)])
    cell = Path("runs/toy/reranked/seed-1")
    report = read_json(cell / "reranking" / "test.json")["conditions"]["reranked"]
    row = read_json(Path("docs/results/toy/reranked.json"))
    assert row["scores"]["all"]["edit_distance"]["score"] == report["edit_distance"]["score"]
    texts = [(cell / name).read_text("utf-8") for name in ("scores/test.all.txt", "reranking/test.reranked.txt")]
    assert texts[0] == texts[1] and row["baseline"]["run"] == "serial"
    curves = Path("docs/results/toy.md").read_text("utf-8").partition("## Learning curves")[2]
    assert "| updates | in turn |\n" in curves  # not a second time for the reranked row
    parameters = [
        read_json(Path(f"runs/toy/{name}/seed-1/train_summary.json"))["parameters"] for name in ("serial", "back")
    ]
    assert row["parameters"] == sum(parameters)
    assert not Path("docs/results/toy/back.json").exists()


def test_a_row_may_begin_with_the_weights_of_another_one(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gates = [{"name": "south", "gated": True}, {"name": "north", "gated": False}]
    rows = {
        "north": {"train": {"sources": ["north"]}},
        "both": {
            "begins_with": "north",
            "train": {"combiner": "gated_serial", "model.sources": gates, "sources": ["south", "north"]},
        },
        "first": {"memory_first": {"of": "both"}},
    }
    write("toy", {**TOY, "seeds": [1], "baseline": "north", "rows": rows})
    assert load_experiment(toy, rows=["first"]).chosen == ["north", "both", "first"]
    main([str(toy), "--rows", "both"])
    said = capsys.readouterr().out
    assert "initial weights: from runs/toy/north/seed-1, parameters" in said
    assert read_json(Path("runs/toy/both/seed-1/cell.json"))["begins_with"] == "north"
    assert "--model.init_from runs/toy/north/seed-1" in Path("docs/results/toy/both.json").read_text("utf-8")
    main([str(toy), "--rows", "both", "--dry_run"])
    assert re.search(r"both/seed-1 +done", capsys.readouterr().out)
    shutil.rmtree("runs/toy")  # the weights are gone, the cells are kept
    Path("docs/results/toy/cells/both.seed-1.zip").unlink()
    with pytest.raises(SystemExit):
        main([str(toy), "--rows", "both"])
    assert "north/seed-1 was restored without its weights, which both/seed-1 needs" in capsys.readouterr().out


def test_a_row_finds_the_smallest_width_that_has_the_parameters_of_another_one(toy: Path) -> None:
    wide = {"label": "wide", "train": {"data.concatenate": True}, "parameters_as": "serial"}
    write("toy", {**TOY, "seeds": [1], "rows": {**TOY["rows"], "wide": wide}})
    main([str(toy)])
    rows = {name: read_json(Path(f"docs/results/toy/{name}.json")) for name in ("joined", "serial", "wide")}
    widths = rows["wide"]["widths"]
    assert widths["d_model"] > 8 and widths["encoder_ffn_dim"] == widths["decoder_ffn_dim"] == widths["d_model"]
    assert rows["wide"]["parameters"] >= rows["serial"]["parameters"] > rows["joined"]["parameters"]
    assert f"parameters_as: serial}}`; found d_model {widths['d_model']}, enc" in Path("docs/results/toy.md").read_text(
        "utf-8"
    )
    narrower = {name: value - 2 for name, value in widths.items()}  # 2 heads
    write("toy", {**TOY, "seeds": [1], "rows": {**TOY["rows"], "narrow": merge(wide, {"train": narrower})}})
    main([str(toy), "--rows", "narrow"])  # widths that are given are kept
    assert read_json(Path("docs/results/toy/narrow.json"))["parameters"] < rows["serial"]["parameters"]


def test_an_ensemble_row_decodes_with_all_seeds_of_another_row(toy: Path) -> None:
    rows = {
        "serial": TOY["rows"]["serial"],
        "all": {"ensemble": {"of": "serial"}},
        "back": {"shown": False, "train": {"reverse": True}},
        "both": {"ensemble": {"of": "serial", "reverse": "back"}},
    }
    write("toy", {**TOY, "baseline": "serial", "rows": rows})
    main([str(toy)])
    row, serial = (read_json(Path(f"docs/results/toy/{name}.json")) for name in ("all", "serial"))
    assert row["run"] == "seeds-1-2" and row["parameters"] == 2 * serial["parameters"]
    line = next(cells for cells in cells_of_page(Path("docs/results/toy.md").read_text("utf-8")) if cells[0] == "all")
    assert line[1] == "2 together" and line[4] == ""  # `leveled off` is that of the row `serial`
    report = read_json(Path("runs/toy/all/seeds-1-2/scores/test.json"))
    assert report["ensemble"] == ["seed-2"]
    assert row["scores"]["all"]["exact_match"]["score"] == report["conditions"]["all"]["exact_match"]["score"]
    assert row["baseline"]["run"] == "serial"
    cell = Path("runs/toy/both/seeds-1-2")
    reranked, both = read_json(cell / "reranking/test.json"), read_json(Path("docs/results/toy/both.json"))
    assert reranked["ensemble"] == ["seed-2"]
    assert reranked["conditions"]["all"]["exact_match"] == report["conditions"]["all"]["exact_match"]
    texts = [(cell / name).read_text("utf-8") for name in ("scores/test.all.txt", "reranking/test.reranked.txt")]
    assert texts[0] == texts[1] and read_json(cell / "made_of.json")["with"] == ["../../back/seed-1"]
    assert (
        both["parameters"]
        == row["parameters"] + read_json(Path("runs/toy/back/seed-1/train_summary.json"))["parameters"]
    )


def test_the_widest_width_that_is_allowed_is_tried(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("toy", merge(TOY, {"rows": {"wide": {"train": {"data.concatenate": True}, "parameters_as": "serial"}}}))
    run = Run(load_experiment(toy), Path("runs"), Path("results"))
    found = run.cells.widths(run.experiment.rows["wide"])
    monkeypatch.setattr(widths, "MAX_WIDTH", found["d_model"])
    again = Run(load_experiment(toy), Path("runs"), Path("results"))
    assert again.cells.widths(again.experiment.rows["wide"]) == found
    monkeypatch.setattr(widths, "MAX_WIDTH", found["d_model"] - 1)
    narrow = Run(load_experiment(toy), Path("runs"), Path("results"))
    with pytest.raises(ValueError, match="no width up to"):
        narrow.cells.widths(narrow.experiment.rows["wide"])


def test_an_ensemble_of_several_rows_has_a_score_for_each_seed(toy: Path) -> None:
    rows = {
        "serial": TOY["rows"]["serial"],
        "flat": {"train": {"combiner": "flat"}},
        "back": {"shown": False, "train": {"reverse": True}},
        "mixed": {"label": "serial and flat", "ensemble": {"of": ["serial", "flat"]}},
        "both": {"ensemble": {"of": ["serial", "flat"], "reverse": "back"}},
    }
    write("toy", {**TOY, "baseline": "serial", "rows": rows})
    loaded = load_experiment(toy, rows=["both"])
    assert loaded.chosen == ["serial", "flat", "back", "both"]
    cells = {cell.name: cell for cell in cells_of(loaded, Path("runs/toy"))}
    needed = [Path(f"runs/toy/{name}/seed-2") for name in ("serial", "flat", "back")]
    assert cells["both/seed-2"].needs == tuple(needed)
    main([str(toy)])
    row = read_json(Path("docs/results/toy/mixed.json"))
    parts = [read_json(Path(f"docs/results/toy/{name}.json")) for name in ("serial", "flat")]
    assert row["combiner"] == "serial, flat" and row["parameters"] == sum(part["parameters"] for part in parts)
    assert [one["seed"] for one in row["runs"]] == [1, 2]
    report = read_json(Path("runs/toy/mixed/seed-2/scores/test.json"))
    members: dict[str, Any] = {"run": "runs/toy/serial/seed-2", "ensemble": ["runs/toy/flat/seed-2"]}
    direct = score(Scoring(**members, **TOY["score"], out=Path("direct")), "")
    assert report["conditions"]["all"]["exact_match"] == direct["conditions"]["all"]["exact_match"]
    page = cells_of_page(Path("docs/results/toy.md").read_text("utf-8"))
    assert next(line for line in page if line[0] == "serial and flat")[1] == "2 × 2 together"
    assert read_json(Path("runs/toy/both/seed-2/made_of.json"))["with"] == ["../../back/seed-2"]


@pytest.mark.parametrize("name", ["localization-dsb", "protoform-romance", "protoform-wikihan"])
def test_every_row_of_a_shipped_experiment_is_a_recipe(name: str) -> None:
    loaded = load_experiment(name, seeds=[1])
    for cell in cells_of(loaded, Path("r")):
        if cell.is_trained:
            recipe, command = loaded.load_recipe(cell.row, cell.folder, 1, cell.source)
            assert recipe.training["output_dir"] == str(cell.folder)
            read = [cell.source] if cell.source else loaded.sources_of(cell.row)
            assert recipe.data.sources == read and f"--sources {' '.join(read)} --target" in command
    if "joined_wide" not in loaded.rows:
        assert loaded.sources_of(loaded.rows["en_de_cs"]) == ["en", "de", "cs"]
        return
    assert loaded.rows["joined_wide"].parameters_as is None and loaded.rows["joined_wide"].settings["d_model"] > 192


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": {}}, "rows must be a mapping"),
        ({"color": 1}, "key is 'color'; allowed are recipe, path"),
        ({"rows": {"a": {"label": "x"}}}, "rows.a must have one of train, best_source, rerank, ensemble, copy, memory"),
        (
            {"rows": {"a": {"train": {}, "hue": 1}}},
            "rows.a: key is 'hue'; allowed are label, shown, against, parameters_as, begins_with, train",
        ),
        (
            {"rows": {"a": {"train": {}, "begins_with": "b"}, "b": {"train": {}}}},
            "rows.a.begins_with is 'b'; allowed are $",
        ),
        ({"rows": {"a": {"copy": {"source": "north"}, "begins_with": "b"}}}, "key is 'begins_with'; allowed are label"),
        ({"rows": {"a": {"ensemble": {"of": "b"}}}}, "rows.a.ensemble is 'b'; allowed are "),
        ({"rows": {"a": {"rerank": {"of": "b"}}}}, "rows.a.rerank must have of and reverse"),
        ({"rows": {"a": {"ensemble": {"of": ["b"]}}}}, r"rows.a.ensemble.of must be the name of a row, or several th"),
        ({"rows": {"a": {"ensemble": {"of": ["b", "b"]}}}}, r"several that differ; got \['b', 'b'\]"),
        (
            {**EAST, "rows": {"a": {"ensemble": {"of": ["b", "c"]}}, "b": {"train": {}}}},
            "rows.a.ensemble is 'c'; allow",
        ),
        (
            {"rows": {"a": {"rerank": {"of": ["b", "c"], "reverse": "d"}}}},
            "rows.a.rerank.of must be the name of a row; got",
        ),
        (
            {
                **EAST,
                "rows": {
                    "a": {"ensemble": {"of": ["b", "c"]}},
                    "b": {"train": {"sources": ["north"]}},
                    "c": {"train": {}},
                },
            },
            "rows.a.ensemble: the rows must have the same sources; b has north, c has north, south",
        ),
        ({**EAST, "rows": {"a": {"train": {}, "against": "a"}, "b": {"train": {}}}}, "a.against is 'a'; allowed are b"),
        ({"rows": {"a": {"copy": {}}}}, "rows.a.copy must have source; got {}"),
        ({"rows": {"a": {"memory": {"similar": True}}}}, "memory must have sources, and may have similar; got"),
        (
            {"rows": {"a": {"memory": {"sources": ["north"], "similar": "yes"}}}},
            "rows.a.memory.similar must be true or false; got 'yes'",
        ),
        ({"rows": {"a": {"memory_first": {"of": "b"}}}}, "rows.a.memory_first is 'b'; allowed are "),
        (
            {"rows": {"a": {"memory_first": {"of": "b"}}, "b": {"shown": False, "train": {}}}},
            "rows.a.memory_first is 'b', which is not scored because it has `shown: false`",
        ),
        ({**EAST, "rows": {"a": {"copy": {"source": "east"}}}}, "rows.a.copy.source is 'east'; allowed are north, s"),
        ({**EAST, "rows": {"a": {"train": {"sources": ["east"]}}}}, "rows.a.train.sources is 'east'; allowed are n"),
        ({**EAST, "rows": {"a": {"train": {"data.sources": "north"}}}}, "train.data.sources must be a list of differ"),
        ({**EAST, "rows": {"a": {"memory": {"sources": ["south"] * 2}}}}, "memory.sources must be a list of different"),
        (
            {**EAST, "rows": {"a": {"memory_first": {"of": "b", "sources": ["east"]}}, "b": {"train": {}}}},
            "rows.a.memory_first.sources is 'east'; allowed are north, south",
        ),
        ({**EAST, "rows": {"a": {"best_source": {"sources": ["north"]}}}}, "rows.a.best_source.sources must be left"),
        (
            {
                **EAST,
                "rows": {
                    "a": {"rerank": {"of": "b", "reverse": "c"}},
                    "b": {"train": {"sources": ["north"]}},
                    "c": {"train": {"reverse": True}},
                },
            },
            "rows.a.rerank: the rows must have the same sources; b has north, c has north, south",
        ),
        (
            {
                **EAST,
                "rows": {
                    "a": {"ensemble": {"of": "b", "reverse": "c"}},
                    "b": {"train": {"sources": ["north"]}},
                    "c": {"train": {"reverse": True}},
                },
            },
            "rows.a.ensemble: the rows must have the same sources; b has north, c has north, south",
        ),
        ({"rows": {"a": {"train": {}, "parameters_as": "b"}}}, "rows.a.parameters_as is 'b'; allowed are "),
        ({"baseline": "none"}, "baseline is 'none'; allowed are joined, serial"),
        ({"seeds": [1, 1]}, "seeds must all differ"),
        ({"sources": "north"}, "sources must be a list"),
        ({"target": None}, "target is missing; give --target"),
        ({"analyzed": "none"}, "analyzed is 'none'; allowed are joined, serial"),
        ({"words": [{"old": "a", "north": "a"}]}, "words needs analyzed"),
        ({"analyzed": "serial", "words": ["a"]}, "words must be a list of mappings"),
        ({"analyzed": "serial", "words": [{"old": "a"}]}, "words: each needs old and a source"),
        ({"analyzed": "serial", "words": [{"old": "a", "east": "a"}]}, "words: name is 'east'; allowed are north"),
        ({"quick": None}, "quick is missing, so it has no quick form"),
    ],
)
def test_errors_of_an_experiment_name_the_key(toy: Path, changes: dict[str, Any], message: str) -> None:
    write("toy", {**TOY, **changes})
    with pytest.raises(ValueError, match=message):
        load_experiment(toy, quick="quick" in changes)
    with pytest.raises(ValueError, match="rows is 'none'; allowed are joined, serial"):
        load_experiment(write("good", TOY), rows=["none"])


def test_rows_may_read_some_of_the_sources_and_a_memory_may_come_first(
    toy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment_page, "draw_figures", lambda *given: [])  # they take long
    for split in ("train", "dev", "test"):
        lines = Path(f"words/{split}.old").read_text("utf-8").splitlines()
        write_lines(Path(f"words/{split}.east"), [line if i % 3 else "" for i, line in enumerate(lines)])
    rows = {
        "joined": TOY["rows"]["joined"],
        "pair": {"label": "two", "train": {"combiner": "serial", "sources": ["north", "east"]}},
        "first": {"label": "memory, then two", "memory_first": {"of": "pair"}},
        "other": {"label": "memory of north", "memory_first": {"of": "pair", "sources": ["north"]}},
    }
    changes = {"sources": ["north", "south", "east"], "seeds": [1], "analyzed": "pair"}
    words = [{"old": "a b", "north": "a b", "south": "b a", "east": "a b"}]
    content = {**TOY, **changes, "rows": rows, "words": words}
    write("toy", content)
    main([str(toy)])
    run = Path("runs/toy/pair/seed-1")
    assert load_recipe(run / "recipe.yaml").data.sources == ["north", "east"]
    written = {name: lines_of(Path(f"runs/toy/{name}/seed-1/scores/test.all.txt")) for name in rows}
    rest = {name: read_json(Path(f"docs/results/toy/{name}.json")) for name in rows}
    assert {len(lines) for lines in written.values()} == {12}  # of which one has neither north nor east
    silent = [i for i in range(12) if i % 4 == 1 and i % 3 == 0]
    assert [written["pair"][i] for i in silent] == [""] and rest["pair"]["sources"] == ["north", "east"]
    assert rest["pair"]["baseline"]["run"] == "joined" and rest["pair"]["presence"]["number"]["3"]["n"] > 0
    assert rest["pair"]["presence"]["number"].keys() == rest["joined"]["presence"]["number"].keys()
    assert set(rest["pair"]["scores"]) == {"all", "absent-north", "absent-east", "only-north", "only-east"}
    assert set(rest["pair"]["left_out"]) == set(rest["pair"]["words"][0]["drops"]) == {"north", "east"}

    memory: dict[tuple[str, ...], list[str]] = {}
    columns = [lines_of(Path(f"words/train.{name}")) for name in ("north", "east", "old")]
    for north, east, old in zip(*columns, strict=True):
        memory.setdefault((north, east), []).append(old)
    asked = list(zip(*(lines_of(Path(f"words/test.{name}")) for name in ("north", "east")), strict=True))
    known = [i for i, pair in enumerate(asked) if all(pair) and pair in memory]
    assert known and all(written["first"][i] in memory[asked[i]] for i in known)
    answered = rest["first"]["memory"]["answered"]
    assert len(known) <= answered < 12 and rest["first"]["made_of"] == ["pair/seed-1"]
    different = [i for i in range(12) if written["first"][i] != written["pair"][i]]
    assert len(different) <= answered and rest["first"]["minutes"] == rest["pair"]["minutes"]
    assert rest["other"]["memory"]["answered"] >= len(known) and rest["other"]["sources"] == ["north", "east"]
    page = " ".join(Path("docs/results/toy.md").read_text("utf-8").split())
    assert "is asked with north." in page
    assert f"*memory, then two*: the memory is the training split. It answers {answered} of 12 examples, " in page
    assert "is asked with north, east." in page and "All rows that a model has written: trained on " in page
    assert "A row with some of the sources is scored on the dev examples that have any of them." in page

    before = {path: path.read_bytes() for path in Path("docs/results").rglob("*") if path.is_file()}
    shutil.rmtree("runs")
    for path in Path("docs/results/toy").glob("*.json"):
        path.unlink()
    capsys.readouterr()
    main([str(toy)])
    assert started(capsys.readouterr().out) == []  # all cells are restored
    assert {path: path.read_bytes() for path in before} == before
    write("toy", {**content, "sources": ["north", "south"], "words": []})
    with pytest.raises(SystemExit, match=r"rows\.pair\.train\.sources is 'east'; allowed are north, south"):
        main([str(toy)])
    assert load_experiment(toy, rows=["joined"]).chosen == ["joined"]


def lines_of(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


SHORTCUTS = {  # rows of a recipe with placeholders that need no model
    "copied": {"label": "copy of north", "copy": {"source": "north"}},
    "known": {"label": "memory", "memory": {"sources": ["north", "south"]}},
    "near": {
        "label": "memory, similar",
        "against": "known",
        "memory": {"sources": ["north", "south"], "similar": True},
    },
}
LINES = {
    "train": {
        "north": ["open %S", "close", "close", "close", "", "gone %S", "it is \\n here", "keep the window open"],
        "south": ["open %S", "close", "close", "close", "sud", "gone %S", "it is \\n here", "keep the window open"],
        "old": ["otevri %S", "shut", "zavri", "zavri", "jih", "pryc", "zde \\n je", "nech okno"],
    },
    "test": {
        "north": ["open %S", "close", "", "gone %S", "it is \\n here", "keep the window open!", "new"],
        "south": ["open %S", "close", "sud", "gone %S", "", "keep the window open", "new"],
        "old": ["otevri %S", "zavri", "jih", "pryc %S", "zde \\n je", "nech okno", "novy"],
    },
}


def test_rows_that_need_no_model_copy_a_source_or_ask_a_memory(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, columns in {**LINES, "dev": LINES["test"]}.items():
        for name, lines in columns.items():
            write_lines(Path(f"words/{split}.{name}"), lines)
    changed = {"data": {"placeholders": "any", "metrics": ["exact_match"]}, "tokenizer": {"kind": "bpe"}}
    write("recipe", merge(RECIPE, changed))
    write("toy", {**TOY, "baseline": "copied", "rows": SHORTCUTS})
    assert set(states(capsys).items()) == {(f"{name}/once", "not begun") for name in SHORTCUTS}
    main([str(toy)])
    written = {name: lines_of(Path(f"runs/toy/{name}/once/scores/test.all.txt")) for name in SHORTCUTS}
    assert written["copied"] == LINES["test"]["north"]
    # The most frequent translation; none of other or further sources, and none that lost its placeholder
    assert written["known"] == ["otevri %S", "zavri", "jih", "", "", "", ""]
    assert written["near"] == ["otevri %S", "zavri", "jih", "pryc", "zde \\n je", "nech okno", ""]
    rows = {name: read_json(Path(f"docs/results/toy/{name}.json")) for name in SHORTCUTS}
    assert rows["copied"]["baseline"] is None and "memory" not in rows["copied"]
    assert rows["known"]["baseline"]["run"] == "copied" and rows["known"]["baseline"]["exact_match"]["difference"] > 40
    assert rows["near"]["baseline"]["run"] == "known" and 0 < rows["near"]["baseline"]["exact_match"]["difference"] < 50
    assert rows["known"]["memory"] == {"sources": ["north", "south"], "rows": 7, "answered": 3, "right": 3}
    assert rows["near"]["placeholders"] == {"syntax": "any", "rows": 7, "written": 6, "whole": 5}
    assert rows["known"]["scores"]["all"]["exact_match"]["score"] == pytest.approx(300 / 7)
    assert all(row["made_of"] == [] for row in rows.values())  # so that they have no cards
    tables = cells_of_page(Path("docs/results/toy.md").read_text("utf-8"))
    labels = ["exact match", "placeholders", "empty", "leveled off", "updates", "minutes", "parameters"]
    assert ["row", "seeds", *labels] in tables
    assert ["copy of north", "", "0.0", "100.0 %", "1", "", "", "", ""] in tables
    assert ["memory, similar", "", "71.4", "83.3 %", "1", "", "", "", ""] in tables
    page = " ".join(Path("docs/results/toy.md").read_text("utf-8").split())
    assert "*leveled off*: number of seeds whose training no longer improved at the end" in page
    first, _, second = page.partition("## Differences to memory ")
    assert "## Differences to copy of north " in first and "| memory, similar | +" in second
    assert "A row without seeds needs no model and is not trained." in page and "Learning curves" not in page
    assert "`{memory: {sources: [north, south], similar: true}, against: known}`; sources north" in page

    shutil.rmtree("runs")
    capsys.readouterr()
    main([str(toy), "--seeds", "7"])  # they do not depend on seeds
    assert "/once" not in capsys.readouterr().out.replace("/once.zip", "") and set(states(capsys).values()) == {"done"}
    write("recipe", merge(RECIPE, merge(changed, {"data": {"placeholders": None}})))
    assert set(states(capsys).values()) == {"begun"}  # scored by other rules
    main([str(toy)])
    assert lines_of(Path("runs/toy/known/once/scores/test.all.txt"))[3] == "pryc"
    assert "placeholders" not in read_json(Path("docs/results/toy/known.json"))


def test_an_experiment_may_extend_another_one(toy: Path) -> None:
    path = write(
        "other", {"extends": "toy", "seeds": [5], "rows": {"joined": {"train": {"dropout": 0.5}}, "x": {"train": {}}}}
    )
    loaded = load_experiment(path)
    assert (loaded.name, loaded.seeds, loaded.baseline) == ("other", [5], "joined")
    assert loaded.rows["joined"].settings == {"data.concatenate": True, "dropout": 0.5}
    assert list(loaded.rows) == ["joined", "serial", "x"] and loaded.rows["joined"].label == "all joined"


def test_the_command_that_is_recorded_trains_the_same_recipe(toy: Path) -> None:
    loaded = load_experiment(toy, sources=["south", "north"])
    recipe, command = loaded.load_recipe(loaded.rows["joined"], Path("runs/x"), 3)
    words = command.split()
    assert words[:3] == ["hf-multisource", "train", "recipe.yaml"]
    assert load_recipe(words[2], parse_overrides(words[3:])) == recipe
    assert recipe.training["seed"] == 3 and recipe.data.sources == ["south", "north"]


def test_the_shipped_experiments_are_listed_and_each_has_a_quick_form(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list"])
    said = capsys.readouterr().out
    for name in shipped_experiments():
        assert f"\n{name} " in f"\n{said}"
        given: dict[str, Any] = {} if name != "protoform" else {"data": "x", "sources": ["a", "b"], "target": "c"}
        loaded = load_experiment(name, quick=True, **given)
        assert loaded.chosen and loaded.name.startswith(f"{name}-quick")
    with pytest.raises(SystemExit, match="no file proto, and no shipped experiment of that name; these are local"):
        main(["proto"])
