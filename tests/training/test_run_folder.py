"""What a run's folder is protected from: other trainings, other data, other batches, damage, and sudden ends."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import Trainer

from hf_multisource import MultiSourceTrainer
from hf_multisource.cli.command import make_main
from hf_multisource.cli.train import main
from hf_multisource.data.rows import Split
from hf_multisource.recipes.checkpoint_files import find_checkpoints
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.run_folder import (
    OWNER,
    check_batch,
    data_fingerprint,
    free_keys,
    how_to_continue,
    is_finished,
    locked,
    next_start,
)
from hf_multisource.recipes.training import train
from hf_multisource.recipes.training_data import without_unreadable
from hf_multisource.recipes.training_run import TrainingRun
from kills import kill_at, killed
from runs import SAVED, STEPS, files_of, make_folder, read_json, recipe_of, train_at

RUN = Path("run")
TEXT = Path("text")


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data, and a run that was killed after its first checkpoint."""
    folder = make_folder(tmp_path_factory.mktemp("killed"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        killed(Path(), lambda patch: kill_at(patch, "training_step", SAVED + 1, after=False))
    return folder


@pytest.fixture
def begun(killed_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the current folder."""
    shutil.copytree(killed_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data and a recipe in the current folder, and no run yet."""
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(message: str, *arguments: str, resume: bool = True) -> None:
    """Train; the command must end with this message in one line, and change nothing in the run's folder."""
    before = files_of(RUN) if RUN.is_dir() else None
    with pytest.raises(SystemExit) as caught:
        main(["recipe.yaml", *(["--resume"] if resume else []), *arguments])
    said = str(caught.value.code)
    assert said.startswith("hf-multisource train: ") and "\n" not in said
    assert re.search(message, said), said
    assert before is None or {**files_of(RUN), OWNER: b""} == {**before, OWNER: b""}


def resumed() -> dict[str, Any]:
    return train(load_recipe("recipe.yaml"), resume=True)


# One training at a time.


def test_a_training_beside_a_live_one_is_refused_at_once_and_names_its_process(begun: Path) -> None:
    with locked(RUN):
        before = time.monotonic()
        refused(rf"run is in use by another training \(process {os.getpid()}\)")
        refused("run is in use by another training", resume=False)
        assert time.monotonic() - before < 5
        assert (RUN / OWNER).read_text() == str(os.getpid()), "the live one keeps its mark"
    assert resumed()["updates"] == STEPS
    assert not (RUN / OWNER).exists()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:  # pragma: no cover
        with locked(tmp_path / "run"):
            os.write(writing, b".")
            time.sleep(60)
            os._exit(0)
    assert os.read(reading, 1) == b"."
    try:
        with pytest.raises(BlockingIOError, match=f"process {child}"), locked(tmp_path / "run"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with locked(tmp_path / "run"):
        pass


def test_only_the_main_process_locks(new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("recipe.yaml")
    args = recipe.training_arguments()
    monkeypatch.setattr(type(args), "process_index", 1)
    monkeypatch.setattr(type(recipe), "training_arguments", lambda _: args)
    # As the second process, it looks for the processor that no main process has made here.
    with locked(RUN), pytest.raises(ValueError, match=r"^run: the processor of the run cannot be loaded"):
        train(recipe)


def test_a_failed_start_leaves_no_folder(new: Path) -> None:
    (TEXT / "dev.cs").unlink()
    refused("no dev.cs", resume=False)
    assert not RUN.exists()


def test_a_file_in_place_of_the_folder_is_named(new: Path) -> None:
    RUN.write_text("notes")
    refused(r"training\.output_dir is run, which is a file", resume=False)
    assert RUN.read_text() == "notes"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "pytorch_model.bin", "checkpoint-500/x"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_model_that_is_not_of_a_run_is_not_overwritten(name: str, resume: bool, new: Path) -> None:
    (RUN / name).parent.mkdir(parents=True)
    (RUN / name).write_text("precious")
    refused(rf"run holds a model \({name.partition('/')[0]}\) but no recipe\.yaml", resume=resume)


# The same data.


def reorder(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line}\n" for line in [*lines[1:], lines[0]]), encoding="utf-8")


def shorten(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line}\n" for line in lines[:-3]), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "files", "message"),
    [
        (reorder, "train.*", "split 'train' .*: as many rows \\(40\\), but other content or another order"),
        (reorder, "train.de", "split 'train' .*: as many rows \\(40\\), but other content or another order"),
        (shorten, "train.*", "split 'train' .*: 40 rows then, 37 now"),
        (shorten, "dev.*", "split 'dev' .*: 20 rows then, 17 now"),
        (lambda path: path.write_text(path.read_text() + "x\n"), "dev.*", "split 'dev' .*: 20 rows then, 21 now"),
    ],
    ids=["another order", "one file in another order", "shorter", "shorter dev", "longer dev"],
)
def test_resuming_with_other_data_is_refused_and_the_split_is_named(
    change: Callable[[Path], None], files: str, message: str, begun: Path
) -> None:
    for path in TEXT.glob(files):
        change(path)
    refused(message)


def test_columns_that_the_run_does_not_use_may_change(begun: Path) -> None:
    reorder(TEXT / "train.fr")
    assert resumed()["updates"] == STEPS


def test_the_fingerprint_of_data_covers_features_bytes_and_the_sizes_of_files(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"123")
    forms = {"image": "picture", "regions": "features", "speech": "sound"}

    def rows() -> list[dict[str, Any]]:
        sound = {"bytes": b"12", "path": None}
        return [{"image": str(picture), "regions": torch.ones(2, 2).numpy(), "speech": sound, "cs": "a"}]

    whole = data_fingerprint(rows(), forms)
    assert whole == data_fingerprint(rows(), forms)
    other = rows()
    other[0]["regions"][1, 1] = 0
    assert data_fingerprint(other, forms) != whole
    other = rows()
    other[0]["speech"]["bytes"] = b"13"
    assert data_fingerprint(other, forms) != whole
    picture.write_bytes(b"1234")
    assert data_fingerprint(rows(), forms) != whole


# Batches of the same size.


def test_resuming_with_another_batch_size_is_refused_and_says_what_would_keep_it(begun: Path) -> None:
    now = "per_device_train_batch_size 8 x processes 1 x gradient_accumulation_steps 1 = 8"
    refused(
        f"began with .* = 16, now it is {now}; to keep it, add --gradient_accumulation_steps 2 or "
        "--per_device_train_batch_size 16",
        "--per_device_train_batch_size",
        "8",
    )


def test_the_same_batch_size_made_in_another_way_is_resumed(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipe.yaml", "--resume", "--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "2"])
    assert "resume: the batch size of an update stays" in capsys.readouterr().out
    assert load_recipe(RUN / "recipe.yaml").training["per_device_train_batch_size"] == 8
    assert read_json(RUN / "train_summary.json")["updates"] == STEPS


def batch(size: int, devices: int, accumulation: int, key: str = "per_device_train_batch_size") -> dict[str, Any]:
    return {"key": key, "size": size, "devices": devices, "accumulation": accumulation}


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (batch(16, 2, 1), "to keep it, add --per_device_train_batch_size 8$"),
        (batch(8, 1, 1), "add --gradient_accumulation_steps 2 or --per_device_train_batch_size 16$"),
        (batch(16, 4, 3), "add --per_device_train_batch_size 4 --gradient_accumulation_steps 1$"),
        (batch(16, 3, 1), "use a number of processes that divides 16$"),
        (batch(16, 1, 1, "max_tokens_per_batch"), "use per_device_train_batch_size 16 again$"),
    ],
)
def test_every_way_to_keep_the_batch_size_is_given(now: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_batch(batch(16, 1, 1), now)


def test_two_processes_with_half_of_the_batch_each_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    check_batch(batch(16, 1, 1), batch(8, 2, 1))
    assert "x processes 2 x gradient_accumulation_steps 1 = 16 from now on\n" in capsys.readouterr().out
    tokens = [batch(96, 1, 1, "max_tokens_per_batch"), batch(48, 2, 1, "max_tokens_per_batch")]
    check_batch(*tokens)
    assert "from now on; in the current epoch, some examples may be repeated" in capsys.readouterr().out


# Damaged files.


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda: (RUN / "recipe.yaml").write_text(""), r"run/recipe\.yaml"),
        (lambda: (RUN / "recipe.yaml").write_bytes("# für\n".encode("latin-1")), r"run/recipe\.yaml.* cannot be read"),
        (lambda: (RUN / "fingerprint.json").write_text('{"data": '), r"run/fingerprint\.json cannot be read"),
        (lambda: (RUN / "tokenizer.json").unlink(), r"run/tokenizer\.json is missing"),
        (lambda: (RUN / "processor_config.json").unlink(), r"run/processor_config\.json is missing"),
        (lambda: (RUN / "tokenizer.json").write_text(""), r"run: the processor of the run cannot be loaded"),
        (lambda: (RUN / "processor_config.json").write_text("{"), r"run: the processor of the run cannot be loaded"),
    ],
    ids=[
        "empty recipe",
        "Latin-1 recipe",
        "cut fingerprint",
        "tokenizer",
        "processor",
        "empty tokenizer",
        "cut config",
    ],
)
def test_a_damaged_file_is_named_in_one_line(spoil: Callable[[], Any], message: str, begun: Path) -> None:
    spoil()
    refused(message)


def test_a_damaged_list_of_unreadable_files_is_named(tmp_path: Path, new: Path) -> None:
    recipe = load_recipe("recipe.yaml", {"output_dir": str(tmp_path)})
    run = TrainingRun(recipe, recipe.training_arguments(), begun=True)
    for content, message in {
        "": r"unreadable\.json holds no valid JSON",
        '{"train": {}}': r"unreadable\.json is damaged: the lines of 'dev' are missing",
    }.items():
        (tmp_path / "unreadable.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            without_unreadable(run, {"train": Split([], [], {}), "dev": Split([], [], {})})


def test_a_run_of_a_version_without_fingerprints_resumes(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (RUN / "fingerprint.json").unlink()
    marker = RUN / f"checkpoint-{SAVED}" / "complete.json"
    marker.write_text(json.dumps({key: value for key, value in read_json(marker).items() if key != "sha256"}))
    refused(r"training\.per_device_train_batch_size was 16, is 8", "--per_device_train_batch_size", "8")
    assert resumed()["updates"] == STEPS
    told = "resume: run was begun by an earlier version: its data and number of processes are not compared"
    assert told in capsys.readouterr().out
    assert set(read_json(RUN / "fingerprint.json")) == {"data", "batch", "processor"}
    reorder(TEXT / "train.de")
    refused("split 'train' of the data")


def test_a_run_whose_checkpoints_hold_no_optimizer_is_not_resumed(begun: Path) -> None:
    recipe = load_recipe("recipe.yaml", {"save_only_model": True})
    recipe.save(RUN / "recipe.yaml")
    refused(r"run cannot be resumed: training\.save_only_model is true", "--save_only_model", "true")


# Options that fail late.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optim_args", "foo"], r"optimizer cannot be made from training\.optim and training\.optim_args: "),
        (
            ["--lr_scheduler_kwargs", "{a: 1}", "--noam_scale", "null"],
            r"schedule .* training\.lr_scheduler_kwargs: .*'a'",
        ),
        (["--torch_compile_mode", "foo"], r"training\.torch_compile_mode, .*: Unrecognized mode=foo"),
        (["--source_learning_rates", "{xx: 1}"], r"training\.source_learning_rates: .*'xx'; the sources are en, de"),
    ],
    ids=["optimizer", "schedule", "compilation", "rates"],
)
def test_an_option_that_fails_leaves_no_run_behind(
    arguments: list[str], message: str, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_DYNAMO_MODE"):  # transformers sets them
        monkeypatch.setenv(name, "no")
    refused(message, *arguments, resume=False)
    assert not {"recipe.yaml", "fingerprint.json", "training.lock"} & set(files_of(RUN) if RUN.exists() else ())
    if "--optim_args" in arguments:
        main(["recipe.yaml", "--max_steps", "1"])
        assert read_json(RUN / "train_summary.json")["updates"] == 1


# Ends before the end.


def fail_at(monkeypatch: pytest.MonkeyPatch, method: str, step: int, fail: Callable[[], Any]) -> None:
    """Have a method of the trainer fail after so many updates."""
    run: Any = getattr(MultiSourceTrainer, method)

    def failing(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == step:
            fail()
        return run(self, *args, **kwargs)

    monkeypatch.setattr(MultiSourceTrainer, method, failing)


def raising(error: BaseException) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    return fail


ENDS: dict[str, tuple[Callable[[], Any], str, int]] = {
    "Ctrl-C": (lambda: os.kill(os.getpid(), signal.SIGINT), "interrupted", 130),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), "terminated", 143),
}


@pytest.mark.parametrize("step", [0, SAVED + 1])
@pytest.mark.parametrize(("end", "word", "status"), ENDS.values(), ids=ENDS)
def test_a_signal_ends_in_one_line_that_says_how_to_continue(
    end: Callable[[], Any],
    word: str,
    status: int,
    step: int,
    new: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        fail_at(patch, "training_step", step, end)
        with pytest.raises(SystemExit) as caught:
            main(["recipe.yaml", "--seed", "7"])
    assert caught.value.code == status
    assert signal.getsignal(signal.SIGTERM) == before
    start = "to continue from checkpoint-4" if step else "no checkpoint is complete yet; to start again"
    told = f"hf-multisource train: {word}; {start}, run: hf-multisource train recipe.yaml --seed 7 --resume"
    assert capsys.readouterr().err.strip().splitlines()[-1] == told
    main(["recipe.yaml", "--seed", "7", "--resume"])
    assert read_json(RUN / "train_summary.json")["updates"] == STEPS


@pytest.mark.parametrize(
    ("processes", "only_model", "command", "told"),
    [
        (1, False, "hf-multisource train r --resume", "to start again, run: hf-multisource train r --resume"),
        (2, False, "hf-multisource train r", "to start again, start the same command again with --resume"),
        (1, False, None, "to start again, call train(recipe, resume=True)"),
        (1, True, "hf-multisource train r", "cannot be resumed: start again with another --output_dir"),
    ],
)
def test_the_advice_fits_how_the_training_was_started(
    processes: int, only_model: bool, command: str | None, told: str
) -> None:
    args: Any = SimpleNamespace(world_size=processes, save_only_model=only_model)
    assert how_to_continue(RUN, next_start(args, command)).endswith(told)


def test_only_the_main_process_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("bad")

    def interrupt() -> None:
        raise KeyboardInterrupt("to continue")

    for rank, failed, stopped in (
        ("0", "hf-multisource fail: bad", "hf-multisource stop: interrupted; to continue\n"),
        ("1", "^1$", ""),
    ):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit, match=failed):
            make_main("fail", fail)([])
        with pytest.raises(SystemExit, match="130"):
            make_main("stop", interrupt)([])
        assert capsys.readouterr().err == stopped


def test_a_signal_ends_every_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def wait() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    with pytest.raises(SystemExit, match="143"):
        make_main("wait", wait)([])
    assert capsys.readouterr().err == "hf-multisource wait: terminated\n"


FULL: dict[str, BaseException] = {
    "Python": OSError(errno.ENOSPC, "No space left on device", "x"),
    "quota": OSError(errno.EDQUOT, "Disk quota exceeded", "x"),
    "safetensors": SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    "PyTorch": RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
}


@pytest.mark.parametrize(
    "error", [pytest.param(FULL[name], id=name, marks=[] if name == "PyTorch" else pytest.mark.slow) for name in FULL]
)
def test_a_full_disk_ends_in_one_line_that_says_how_to_continue(
    error: BaseException, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    with monkeypatch.context() as patch:
        fail_at(patch, "_save_optimizer_and_scheduler", STEPS, raising(error))
        with pytest.raises(SystemExit) as caught:
            main(["recipe.yaml", "--resume"])
    assert caught.value.code == (
        "hf-multisource train: no space is left on the disk of run; to continue from checkpoint-4, run: "
        "hf-multisource train recipe.yaml --resume"
    )
    assert resumed()["updates"] == STEPS


def test_other_errors_of_pytorch_are_not_taken_for_a_full_disk(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, "training_step", SAVED, raising(RuntimeError("shapes do not fit")))
    with pytest.raises(RuntimeError, match=r"^shapes"):
        resumed()


def loss_of(monkeypatch: pytest.MonkeyPatch, value: float, step: int) -> None:
    """Have the loss be a certain value after so many updates."""
    stock: Any = Trainer.compute_loss

    def compute(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = stock(self, *args, **kwargs)
        return loss * 0 + value if self.state.global_step >= step else loss

    monkeypatch.setattr(Trainer, "compute_loss", compute)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "the loss of update 6 is nan"),
        (float("inf"), "the loss of update 6 is inf"),
        (0.0, "the loss is exactly 0 up to update 6"),
    ],
)
def test_divergence_stops_the_run_and_saves_no_model(
    value: float, message: str, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss_of(monkeypatch, value, SAVED + 1)
    with pytest.raises(SystemExit) as caught:
        main(["recipe.yaml", "--resume"])
    told = f"^hf-multisource train: training diverged: {message}; start again .* with a lower learning_rate"
    assert re.search(told, str(caught.value.code))
    assert not (RUN / "model.safetensors").exists() and not (RUN / "train_summary.json").exists()
    assert [path.name for path in find_checkpoints(RUN)[0]] == [f"checkpoint-{SAVED}"]


@pytest.mark.parametrize("save_steps", ["1", "4"])
def test_weights_that_the_last_update_spoils_are_not_saved(
    save_steps: str, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = MultiSourceTrainer._maybe_log_save_evaluate

    def spoil(self: Any, *args: Any, **kwargs: Any) -> None:
        self.model.lm_head.weight.data[3, 3] = float("nan")
        run(self, *args, **kwargs)

    monkeypatch.setattr(MultiSourceTrainer, "_maybe_log_save_evaluate", spoil)
    with pytest.raises(SystemExit, match=r"diverged: weights of .* are not finite after update 1"):
        main(["recipe.yaml", "--max_steps", "1", "--save_steps", save_steps])
    assert not (RUN / "model.safetensors").exists() and find_checkpoints(RUN)[0] == []


# Tied weights.


@pytest.mark.parametrize("best", [False, True])
def test_no_weights_are_called_missing_when_a_checkpoint_is_loaded(
    best: bool, new: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": SAVED, "load_best_model_at_end": best}
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    train_at(new, max_steps=SAVED, **changes)
    train(
        load_recipe("recipe.yaml", {"path": str(TEXT.resolve()), "output_dir": str(RUN.resolve()), **changes}),
        resume=True,
    )
    assert "missing keys" not in caplog.text


def test_weights_that_are_missing_are_still_named(
    begun: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = RUN / f"checkpoint-{SAVED}" / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("norm.weight"))
    save_file({key: tensor for key, tensor in weights.items() if key != name}, path)
    (path.parent / "complete.json").write_text(json.dumps({"seconds": 1, "files": {}}))
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    resumed()
    assert f"missing keys in the checkpoint model loaded: ['{name}']" in caplog.text


# Keys of a recipe that a resumed run may change, and keys that it may not.


def test_a_run_resumes_from_another_place_under_other_paths_with_keys_that_do_not_change_the_weights(
    begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.move(RUN, "moved")
    shutil.move("text", "elsewhere")
    places = ["--output_dir", str(begun / "moved") + "/", "--path", str(begun / "elsewhere")]
    main(["recipe.yaml", "--resume", *places, "--logging_steps", "2", "--per_device_eval_batch_size", "3"])
    assert f"going on from checkpoint-{SAVED}" in capsys.readouterr().out
    assert read_json(begun / "moved" / "train_summary.json")["updates"] == STEPS


def test_a_key_that_changes_the_run_is_named_with_both_values(begun: Path) -> None:
    refused("run of another recipe, which cannot be resumed: training.seed was not given, is 7", "--seed", "7")
    refused("model.dropout was 0.2, is 0.1", "--dropout", "0.1")


def test_logging_steps_that_are_also_those_of_the_evaluations_may_not_change(begun: Path) -> None:
    changes: dict[str, Any] = {"eval_strategy": "steps", "logging_steps": 2}
    for eval_steps, kept in ((None, False), (2, True)):
        one = recipe_of(begun, **changes, eval_steps=eval_steps)
        assert ("training.logging_steps" in free_keys(one)) == kept
    assert "training.logging_steps" in free_keys(recipe_of(begun, logging_steps=2))
    run = train_at(begun, "evaluated", **changes)
    assert is_finished(run, recipe_of(begun, "evaluated", **changes))
    assert not is_finished(run, recipe_of(begun, "evaluated", **{**changes, "logging_steps": 4}))


def test_the_folder_of_the_data_does_not_become_a_runs(new: Path) -> None:
    before = files_of(Path("text"))
    with pytest.raises(SystemExit, match="output_dir is text, the folder of the data: give another --output_dir"):
        main(["recipe.yaml", "--output_dir", "text"])
    assert files_of(Path("text")) == before
