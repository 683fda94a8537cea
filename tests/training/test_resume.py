import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from transformers.trainer_utils import get_last_checkpoint

from builders import PAPER_COMBINERS, one_by_default
from hf_multisource.recipes.checkpoint_files import (
    MARKER,
    UNFINISHED,
    Keeper,
    find_change,
    find_checkpoints,
    find_fault,
)
from hf_multisource.recipes.training import train
from kills import (
    die_within_a_checkpoint,
    kill_at,
    kill_at_marking,
    kill_at_publishing,
    kill_in,
    kill_within_marking,
    killed,
    quietly,
)
from runs import EVALUATED, SAVED, STEPS, fake_bleu, losses_of, make_folder, recipe_of, same, train_at, weights_of

THREE = ["en", "de", "fr"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing kills; the data are the same in every test."""
    return train_at(make_folder(tmp_path_factory.mktemp("undisturbed")), eval_strategy="steps", eval_steps=SAVED)


def names(paths: Iterable[Path]) -> list[str]:
    return [path.name for path in paths]


def found(run: Path) -> tuple[list[str], list[str]]:
    """Complete checkpoints and others, by name."""
    whole, cut_short = find_checkpoints(run)
    return names(whole), names(cut_short)


KILLS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], int]] = {
    "right after a checkpoint": (lambda patch: kill_at_publishing(patch, SAVED), SAVED),
    "two updates after a checkpoint": (lambda patch: kill_at(patch, "training_step", SAVED + 2, after=False), SAVED),
    "before any checkpoint": (lambda patch: kill_at(patch, "training_step", 1, after=False), 0),
    "while writing the first checkpoint": (lambda patch: kill_at(patch, "_save_rng_state", SAVED, after=False), 0),
    "while writing a checkpoint": (
        lambda patch: kill_at(patch, "_save_optimizer_and_scheduler", STEPS, after=False),
        SAVED,
    ),
    "at the end of writing a checkpoint": (lambda patch: kill_at(patch, "_save_checkpoint", STEPS, after=True), SAVED),
    "right before the marker": (lambda patch: kill_at_marking(patch, STEPS, after=False), SAVED),
    "while writing the first marker": (lambda patch: kill_within_marking(patch, SAVED), 0),
    "between the marker and the renaming": (lambda patch: kill_at_marking(patch, STEPS, after=True), SAVED),
    "right after the last checkpoint": (lambda patch: kill_at_publishing(patch, STEPS), STEPS),
}
ALIKE = (  # others of the default run meet the same code
    "two updates after a checkpoint",
    "while writing the first checkpoint",
    "at the end of writing a checkpoint",
    "right after the last checkpoint",
)


@pytest.mark.parametrize(
    ("kill", "last"),
    [pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in ALIKE else []) for name, case in KILLS.items()],
)
def test_a_killed_run_resumes_from_its_last_complete_checkpoint_to_the_same_weights(
    kill: Callable[[pytest.MonkeyPatch], None],
    last: int,
    folder: Path,
    undisturbed: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": SAVED}
    killed(folder, kill, **changes)
    run = folder / "run"
    assert not (run / "model.safetensors").exists()
    cut_short = found(run)[1]
    capsys.readouterr()
    summary = train(recipe_of(folder, **changes), resume=True)
    said = capsys.readouterr().out
    for name in cut_short:
        assert f"resume: {name} is skipped: it was not written to its end" in said
    assert said.count("is skipped") == len(cut_short)
    start = f"going on from checkpoint-{last}\n" if last else f"no complete checkpoint in {run}, starting from the be"
    assert f"resume: {start}" in said
    assert summary["resumed"] and summary["updates"] == STEPS
    assert same(weights_of(run), weights_of(undisturbed))
    assert losses_of(run) == losses_of(undisturbed) and len(losses_of(undisturbed)) == STEPS
    assert found(run) == (["checkpoint-4", "checkpoint-8"], [])


def test_a_run_killed_at_the_end_of_an_epoch_resumes_to_the_same_weights(folder: Path) -> None:
    whole = train_at(folder, "whole", save_steps=3)
    killed(folder, lambda patch: kill_at_publishing(patch, 3), save_steps=3)
    train(recipe_of(folder, save_steps=3), resume=True)
    assert same(weights_of(folder / "run"), weights_of(whole))


@pytest.mark.parametrize(
    ("kill", "left", "broken"),
    [
        (lambda patch: kill_at(patch, "_save_checkpoint", 4, after=True), ["checkpoint-2"], ["checkpoint-4"]),
        pytest.param(
            lambda patch: kill_at_publishing(patch, 4), ["checkpoint-2", "checkpoint-4"], [], marks=pytest.mark.slow
        ),
        (
            lambda patch: kill_in(patch, shutil, "rmtree", when=lambda path: path.name == "checkpoint-2", after=False),
            ["checkpoint-4"],
            ["checkpoint-2"],
        ),
        pytest.param(
            lambda patch: kill_in(patch, shutil, "rmtree", when=lambda path: path.name == "checkpoint-6", after=False),
            ["checkpoint-8"],
            ["checkpoint-6"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["before the marker", "after the marker", "while the older one is removed", "likewise, at the end"],
)
def test_the_last_complete_checkpoint_goes_only_when_the_next_one_is_complete(
    kill: Callable[[pytest.MonkeyPatch], None], left: list[str], broken: list[str], folder: Path
) -> None:
    changes: dict[str, Any] = {"save_steps": 2, "save_total_limit": 1}
    whole = train_at(folder, "whole", **changes)
    killed(folder, kill, **changes)
    assert found(folder / "run") == (left, broken)
    train(recipe_of(folder, **changes), resume=True)
    assert same(weights_of(folder / "run"), weights_of(whole))
    assert found(folder / "run") == (["checkpoint-8"], [])


def test_what_was_cut_short_stays_until_another_checkpoint_is_complete(folder: Path) -> None:
    killed(folder, lambda patch: kill_at(patch, "_save_checkpoint", SAVED, after=True))
    assert found(folder / "run") == ([], ["checkpoint-4"])
    killed(folder, lambda patch: kill_at(patch, "training_step", 1, after=False), resume=True)
    assert found(folder / "run") == ([], ["checkpoint-4"])
    train(recipe_of(folder), resume=True)
    assert found(folder / "run") == (["checkpoint-4", "checkpoint-8"], [])


@pytest.mark.parametrize(
    ("limit", "best", "left"),
    [
        (None, None, [2, 4, 10, 12]),
        (3, None, [4, 10, 12]),
        (1, None, [12]),
        (1, 4, [4, 12]),
        (2, 4, [4, 12]),
        (3, 2, [2, 10, 12]),
        (9, 2, [2, 4, 10, 12]),
    ],
)
def test_the_newest_the_best_and_no_more_than_the_limit_are_kept(
    limit: int | None, best: int | None, left: list[int], tmp_path: Path
) -> None:
    (tmp_path / "checkpoint-notes").mkdir()  # a user's
    keeper = Keeper(None)
    for step in (2, 4, 10, 12):
        unfinished = tmp_path / UNFINISHED / f"checkpoint-{step}"
        unfinished.mkdir(parents=True)
        (unfinished / "weights").write_text("1")
        if step == 12:  # the newest: before it, some are damaged
            (tmp_path / "checkpoint-14").mkdir()
            keeper.limit = limit
        keeper.complete(unfinished, f"some/other/way/to/checkpoint-{best}" if best else None)
    assert found(tmp_path) == ([f"checkpoint-{step}" for step in left], [])
    assert (tmp_path / "checkpoint-notes").is_dir()
    assert not (tmp_path / UNFINISHED).exists()


def test_a_checkpoint_that_was_skipped_goes_rather_than_the_one_just_written(tmp_path: Path) -> None:
    """A resumed training has skipped checkpoint 300, whose content is damaged, and writes checkpoint 200 again."""
    keeper = Keeper(None)
    for step in (100, 300, 200):
        unfinished = tmp_path / UNFINISHED / f"checkpoint-{step}"
        unfinished.mkdir(parents=True)
        (unfinished / "weights").write_text("1")
        keeper.limit = 1 if step == 200 else None
        keeper.complete(unfinished, None)
    assert found(tmp_path) == (["checkpoint-200"], [])


def test_a_checkpoint_that_is_being_written_is_found_neither_here_nor_by_the_stock_trainer(folder: Path) -> None:
    killed(folder, lambda patch: kill_at_marking(patch, SAVED, after=True))
    run = folder / "run"
    assert (run / UNFINISHED / f"checkpoint-{SAVED}" / "model.safetensors").exists()
    assert find_checkpoints(run)[0] == [] and get_last_checkpoint(str(run)) is None


def test_a_checkpoint_that_has_lost_something_is_not_complete(folder: Path) -> None:
    checkpoint = train_at(folder, max_steps=SAVED) / f"checkpoint-{SAVED}"
    assert find_fault(checkpoint) is None
    marker = json.loads((checkpoint / MARKER).read_text())
    (checkpoint / MARKER).write_text(json.dumps({key: value for key, value in marker.items() if key != "seconds"}))
    assert find_fault(checkpoint) == f"{MARKER} cannot be read"
    (checkpoint / MARKER).write_text(json.dumps(marker))
    (checkpoint / "note").write_text("a user's file more does no harm")
    assert find_fault(checkpoint) is find_change(checkpoint) is None
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", MARKER):
        content = (checkpoint / name).read_bytes()
        (checkpoint / name).unlink()
        assert find_fault(checkpoint) == f"{name} is missing"
        (checkpoint / name).write_bytes(content[:-1] if name != MARKER else content[:-9])
        fault = f"{len(content) - 1} bytes instead of {len(content)}" if name != MARKER else "cannot be read"
        assert (find_fault(checkpoint) or "").startswith(name) and fault in (find_fault(checkpoint) or "")
        if name != MARKER:
            (checkpoint / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            assert find_fault(checkpoint) is None
            assert (find_change(checkpoint) or "").startswith(f"{name} has changed")
        (checkpoint / name).write_bytes(content)
        assert find_fault(checkpoint) is find_change(checkpoint) is None


@pytest.mark.parametrize(
    "name", ["model.safetensors", *(pytest.param(name, marks=pytest.mark.slow) for name in ("optimizer.pt", MARKER))]
)
def test_a_damaged_checkpoint_is_skipped_and_named_and_the_one_before_is_used(
    name: str, folder: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": SAVED}
    killed(folder, lambda patch: kill_at_publishing(patch, STEPS), **changes)
    damaged = folder / "run" / f"checkpoint-{STEPS}" / name
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content if name != MARKER else content[: len(content) // 2])
    train(recipe_of(folder, **changes), resume=True)
    said = capsys.readouterr().out
    assert f"resume: checkpoint-8 is skipped: {name}" in said and "going on from checkpoint-4" in said
    assert same(weights_of(folder / "run"), weights_of(undisturbed))
    assert found(folder / "run") == (["checkpoint-4", "checkpoint-8"], [])


def test_the_best_model_is_kept_over_a_kill(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bleu(monkeypatch, 30.0, 20.0)
    killed(folder, lambda patch: kill_at(patch, "training_step", SAVED + 1, after=False), **EVALUATED)
    summary = train(recipe_of(folder, **EVALUATED), resume=True)
    assert (summary["best_checkpoint"], summary["best_metric"]) == (f"checkpoint-{SAVED}", 30.0)
    assert same(weights_of(folder / "run"), weights_of(folder / "run" / f"checkpoint-{SAVED}"))


def test_a_best_checkpoint_that_was_cut_short_is_not_the_best(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {**EVALUATED, "eval_steps": 2, "save_steps": 2, "save_total_limit": 1}
    fake_bleu(monkeypatch, 20.0, 30.0, 25.0, 10.0, 15.0)
    killed(folder, lambda patch: kill_at(patch, "_save_checkpoint", 4, after=True), **changes)
    assert found(folder / "run") == (["checkpoint-2"], ["checkpoint-4"])
    summary = train(recipe_of(folder, **changes), resume=True)
    assert (summary["best_checkpoint"], summary["best_metric"]) == ("checkpoint-4", 25.0)
    assert found(folder / "run") == (["checkpoint-4", "checkpoint-8"], [])
    assert same(weights_of(folder / "run"), weights_of(folder / "run" / "checkpoint-4"))


BEST_AT_2: dict[str, Any] = {**EVALUATED, "eval_steps": 2, "save_steps": 2}


def spoil(path: Path, cut: bool) -> bytes:
    """Cut a file or change one bit of it; return its former content."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] if cut else content[:-1] + bytes([content[-1] ^ 1]))
    return content


@pytest.mark.parametrize("cut", [False, True])
def test_a_run_whose_best_checkpoint_is_damaged_is_not_resumed(
    cut: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bleu(monkeypatch, 30.0, 20.0, 20.0, 20.0)
    killed(folder, lambda patch: kill_at_publishing(patch, 6), **BEST_AT_2)
    run = folder / "run"
    weights = run / "checkpoint-2" / "model.safetensors"
    content = spoil(weights, cut)
    before = sorted(run.rglob("*"))
    told = (
        r"checkpoint-2 has the best model .*\(model\.safetensors .*delete checkpoint-2, checkpoint-4, checkpoint-6 to"
    )
    with pytest.raises(ValueError, match=told):
        train(recipe_of(folder, **BEST_AT_2), resume=True)
    assert sorted(run.rglob("*")) == before
    weights.write_bytes(content)
    assert train(recipe_of(folder, **BEST_AT_2), resume=True)["best_checkpoint"] == "checkpoint-2"
    assert same(weights_of(run), weights_of(run / "checkpoint-2"))


@pytest.mark.parametrize("cut", [False, True])
def test_a_best_checkpoint_that_is_damaged_during_training_is_not_exported(
    cut: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder / "run"
    weights = run / "checkpoint-2" / "model.safetensors"
    contents: list[bytes] = []

    def spoil_once() -> None:
        if weights.exists() and not contents:
            contents.append(spoil(weights, cut))

    fake_bleu(monkeypatch, 30.0, 20.0, 20.0, 20.0, before=spoil_once)
    with pytest.raises(ValueError, match=r"checkpoint-2 has the best model .* no model has been saved"):
        train(recipe_of(folder, **BEST_AT_2))
    assert not (run / "model.safetensors").exists() and not (run / "train_summary.json").exists()
    weights.write_bytes(contents[0])
    train(recipe_of(folder, **BEST_AT_2), resume=True)
    assert same(weights_of(run), weights_of(run / "checkpoint-2"))


def test_the_time_of_a_killed_run_counts_its_first_start_too(folder: Path) -> None:
    killed(folder, lambda patch: kill_at(patch, "training_step", SAVED + 1, after=False))
    marker = folder / "run" / f"checkpoint-{SAVED}" / MARKER
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "seconds": 1000.0}))
    assert 1000 < train(recipe_of(folder), resume=True)["seconds"] < 1300
    assert 1000 < train(recipe_of(folder), resume=True)["seconds"] < 1300


# Kills from outside: processes forked from one that has imported everything already, since importing takes longest.


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Any:
    # The server does not get sys.path otherwise.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], *sys.path]))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kills"])
    return context


def command(folder: Path, run: str, **changes: Any) -> list[str]:
    settings = {"path": folder / "text", "output_dir": folder / run, **changes}
    pairs: list[str] = [str(folder / "recipe.yaml")]
    for key, value in settings.items():
        pairs += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    return pairs


def finish(process: Any) -> int:
    process.join(300)
    code: int = process.exitcode
    return code


def wait_for(process: Any, path: Path) -> None:
    """Wait until a file appears or the process has ended."""
    while process.is_alive() and not path.exists():
        time.sleep(0.001)


@pytest.mark.feature("Training", "Resume after kill -9, also within a checkpoint write")
@pytest.mark.parametrize("combiner", one_by_default("hierarchical"))
def test_a_run_killed_twice_from_outside_ends_with_the_same_weights(
    combiner: str, folder: Path, processes: Any
) -> None:
    changes: dict[str, Any] = {"sources": THREE, "combiner": combiner, "save_total_limit": 1}
    arguments = command(folder, "run", **changes)
    whole = train_at(folder, "whole", **changes)
    first = processes.Process(target=die_within_a_checkpoint, args=(arguments, STEPS))
    first.start()
    assert finish(first) == -signal.SIGKILL
    run = folder / "run"
    assert found(run) == (["checkpoint-4"], ["checkpoint-8"])
    assert {"model.safetensors"} == {path.name for path in (run / UNFINISHED / "checkpoint-8").glob("*.[so]*t*")}
    second = processes.Process(target=quietly, args=([*arguments, "--resume"],))
    second.start()
    second.join(random.Random(1).uniform(0, 2))
    second.kill()
    finish(second)
    train(recipe_of(folder, **changes), resume=True)
    assert same(weights_of(run), weights_of(whole))
    assert found(run) == (["checkpoint-8"], [])


@pytest.mark.slow
@pytest.mark.feature("Training", "Resume after kill -9, also within a checkpoint write")
def test_twenty_kills_at_random_moments_change_no_bit(folder: Path, processes: Any) -> None:
    """Five kills of each training, about half of them within the writing of a checkpoint."""
    changes: dict[str, Any] = {"sources": THREE, "max_steps": 16, "save_steps": 2, "save_total_limit": 2}
    kinds = PAPER_COMBINERS

    def start(run: str, combiner: str, *flags: str) -> Any:
        settings = command(folder, run, **changes, combiner=combiner)
        process = processes.Process(target=quietly, args=([*settings, *flags],))
        process.start()
        return process

    expected, seconds = {}, {}
    for kind in kinds:
        whole = start(f"whole_{kind}", kind)
        wait_for(whole, folder / f"whole_{kind}" / "recipe.yaml")
        began = time.monotonic()
        assert finish(whole) == 0
        seconds[kind] = time.monotonic() - began
        expected[kind] = weights_of(folder / f"whole_{kind}")
    cut_short, resumed = 0, 0
    rng = random.Random(7)
    for number in range(20):
        kind, run = kinds[number % len(kinds)], folder / f"run{number}"
        within_a_write = number // len(kinds) % 2 == 0
        awaited = run / (f"{UNFINISHED}/checkpoint-{2 * rng.randint(2, 8)}" if within_a_write else "recipe.yaml")
        delay = rng.uniform(0, 0.02 if within_a_write else seconds[kind])
        while True:
            process = start(run.name, kind)
            wait_for(process, awaited)
            process.join(delay)
            process.kill()
            if finish(process) == -signal.SIGKILL:
                break
            shutil.rmtree(run)  # too late
            delay /= 2
        whole_ones, broken = find_checkpoints(run)
        cut_short += bool(broken)
        resumed += bool(whole_ones)
        assert finish(start(run.name, kind, "--resume")) == 0
        assert same(weights_of(run), expected[kind]), f"kill {number}, {kind}"
        assert found(run) == (["checkpoint-14", "checkpoint-16"], [])
    print(f"20 kills: {resumed} left a complete checkpoint, {cut_short} one that was cut short")
    assert cut_short >= 5 and resumed >= 10, "kills must come within checkpoint writes and between them"
