"""Trainings that are killed at a chosen place: by an exception in this process, or by signal 9 in one of its own."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_multisource import MultiSourceTrainer
from hf_multisource.cli.train import main
from hf_multisource.data.files import write_json
from hf_multisource.recipes import checkpoint_files
from hf_multisource.recipes.training import train
from runs import recipe_of


class Killed(BaseException):
    """As from outside: nothing in the program waits for it."""


def kill_in(patch: pytest.MonkeyPatch, owner: Any, name: str, *, when: Callable[..., bool], after: bool) -> None:
    """Have the program die before or after a call, if `when` says so of the call's arguments."""
    run: Callable[..., Any] = getattr(owner, name)

    def dying(*args: Any, **kwargs: Any) -> Any:
        if not after and when(*args):
            raise Killed
        result = run(*args, **kwargs)
        if after and when(*args):
            raise Killed
        return result

    patch.setattr(owner, name, dying)


def kill_at(patch: pytest.MonkeyPatch, method: str, step: int, *, after: bool) -> None:
    """Have the trainer die before or after a method at the given number of finished updates."""
    kill_in(patch, MultiSourceTrainer, method, when=lambda self, *_: self.state.global_step == step, after=after)


def kill_at_marking(patch: pytest.MonkeyPatch, step: int, *, after: bool) -> None:
    """Have the program die before or after the marker of a checkpoint is written."""
    name = f"checkpoint-{step}"
    kill_in(patch, checkpoint_files, "write_json", when=lambda path, *_: path.parent.name == name, after=after)


def kill_within_marking(patch: pytest.MonkeyPatch, step: int) -> None:
    """Have the program die when half of a checkpoint's marker is written, under its temporary name."""

    def dying(path: Path, content: Any) -> None:
        if path.parent.name != f"checkpoint-{step}":
            write_json(path, content)
            return
        path.with_name(path.name + ".partial").write_text('{"files": {"model.s', encoding="utf-8")
        raise Killed

    patch.setattr(checkpoint_files, "write_json", dying)


def kill_at_publishing(patch: pytest.MonkeyPatch, step: int) -> None:
    """Have the program die right after a checkpoint has received its final name."""
    kill_in(patch, checkpoint_files, "publish", when=lambda _, target: target.name == f"checkpoint-{step}", after=True)


def killed(folder: Path, kill: Callable[[pytest.MonkeyPatch], None], *, resume: bool = False, **changes: Any) -> None:
    """Train until the kill."""
    with pytest.MonkeyPatch.context() as patch:
        kill(patch)
        with pytest.raises(Killed):
            train(recipe_of(folder, **changes), resume=resume)


def die_within_a_checkpoint(arguments: list[str], step: int) -> None:
    """Train; at the given update kill the process when the checkpoint holds the model, but not yet the optimizer."""
    write: Any = MultiSourceTrainer._save_optimizer_and_scheduler

    def dying(self: MultiSourceTrainer, *args: Any) -> None:
        if self.state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, *args)

    MultiSourceTrainer._save_optimizer_and_scheduler = dying  # type: ignore[method-assign, assignment]
    main(arguments)


def quietly(arguments: list[str]) -> None:
    """Run `hf-multisource train` without its output."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    main(arguments)
