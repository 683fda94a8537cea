"""Checkpoints that stay valid when the process is killed: renamed when complete, verified before they are loaded.

A checkpoint is written to `unfinished/checkpoint-N` in the run's folder. `complete.json`, written last, lists the size
and the SHA-256 of every file. Then the folder is renamed to `checkpoint-N`: neither this package nor the stock Trainer
ever finds a checkpoint that is still being written.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object

from hf_multisource import MultiSourceTrainer
from hf_multisource.data.files import write_json
from hf_multisource.json_files import read_json
from hf_multisource.recipes.processes import together

MARKER = "complete.json"
UNFINISHED = "unfinished"  # in the run's folder: where a checkpoint is written
BLOCK = 1 << 20  # bytes read at once to compute a hash


def find_checkpoints(folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """Find a run's checkpoints, by their names and the sizes of their files.

    Args:
        folder: The run's folder.

    Returns:
        The complete checkpoints in the order of their updates; and what is wrong with each other one.
    """
    named = [path for path in folder.glob("checkpoint-*") if path.is_dir() and _update(path).isdigit()]
    named.sort(key=lambda path: int(_update(path)))
    faults = {path: fault for path in named if (fault := find_fault(path)) is not None}
    for path in sorted(folder.glob(f"{UNFINISHED}/checkpoint-*")):
        faults[path] = "it was not written to its end"
    return [path for path in named if path not in faults], faults


def find_fault(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint, as far as names and sizes of files show.

    Args:
        checkpoint: The checkpoint's folder.

    Returns:
        A sentence that names the file; None if all files are there in their full size.
    """
    if not (checkpoint / MARKER).is_file():
        return f"{MARKER} is missing"
    try:
        marker = _read_marker(checkpoint)
        expected = marker["files"].items()
        float(marker["seconds"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MARKER} cannot be read"
    for name, size in expected:
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return None


def find_change(checkpoint: Path) -> str | None:
    """Return a message that names the first file whose SHA-256 differs from the recorded one.

    Args:
        checkpoint: The checkpoint's folder. Checkpoints of earlier versions carry no hashes: they pass.

    Returns:
        A sentence that names the file; None if there is no such file.
    """
    for name, digest in _read_marker(checkpoint).get("sha256", {}).items():
        if hash_file(checkpoint / name) != digest:
            return f"{name} has changed since it was written: its SHA-256 does not match"
    return None


def check_best(checkpoint: Path) -> None:
    """Check the best checkpoint that a checkpoint names; it may be another one.

    Args:
        checkpoint: A complete checkpoint in the run's folder.

    Raises:
        ValueError: If the best checkpoint is damaged or missing; the message says how to continue.
    """
    name = read_json(checkpoint / "trainer_state.json").get("best_model_checkpoint")
    if name is None:
        return
    best = checkpoint.parent / Path(name).name
    if (fault := find_fault(best) or find_change(best)) is not None:
        later = [
            path.name for path in sorted(best.parent.glob("checkpoint-*"), key=_number) if _number(path) > _number(best)
        ]
        raise ValueError(
            f"{best} has the best model of the run, but is damaged ({fault}): restore it from a copy, or delete "
            f"{', '.join([best.name, *later])} to train again from the checkpoint before"
        )


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file without loading the whole of it.

    Args:
        path: The file.

    Returns:
        The hash, in hexadecimal digits.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint so that it does not count as complete if the deletion is interrupted.

    Args:
        checkpoint: The checkpoint's folder.
    """
    (checkpoint / MARKER).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def publish(source: Path, target: Path) -> None:
    """Rename a complete checkpoint to its final name, replacing a damaged one of that name.

    Args:
        source: The checkpoint's folder.
        target: The final name, on the same file system.
    """
    if target.exists():
        remove(target)
    source.rename(target)


class Keeper:
    """Completes checkpoints, deletes superfluous ones, and counts the seconds of all starts of a run.

    It takes over `save_total_limit` from the trainer, which would delete the last complete checkpoint before the next
    one is complete. Damaged and unfinished checkpoints are deleted, too, as soon as a complete one is there.

    Args:
        limit: Number of checkpoints to keep; the newest and the best are kept in any case. None: all.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.began = time.time()

    def start(self, checkpoint: Path | None) -> None:
        """Start to count the seconds.

        Args:
            checkpoint: The checkpoint from which training continues, whose seconds count, too; None: there is none.
        """
        self.began = time.time() - (_read_marker(checkpoint)["seconds"] if checkpoint else 0.0)

    @property
    def seconds(self) -> float:
        """Seconds of training, without those lost after the checkpoints from which it was resumed."""
        return round(time.time() - self.began, 1)

    def complete(self, checkpoint: Path, best: str | None) -> None:
        """Write the marker of a checkpoint, give the checkpoint its final name, and delete superfluous ones.

        Args:
            checkpoint: The checkpoint's folder within `unfinished`.
            best: The best checkpoint, if any; only its name counts.
        """
        paths = {str(path.relative_to(checkpoint)): path for path in sorted(checkpoint.rglob("*")) if path.is_file()}
        marker = {
            "seconds": self.seconds,
            "files": {name: path.stat().st_size for name, path in paths.items()},
            "sha256": {name: hash_file(path) for name, path in paths.items()},
        }
        write_json(checkpoint / MARKER, marker)
        folder = checkpoint.parent.parent
        publish(checkpoint, folder / checkpoint.name)
        self.tidy(folder, best)

    def tidy(self, folder: Path, best: str | None) -> None:
        """Delete incomplete checkpoints, and complete ones beyond the limit.

        Args:
            folder: The run's folder, with a complete checkpoint in it.
            best: The best checkpoint, if any; only its name counts. It is never deleted, even if it is damaged.
        """
        whole, faults = find_checkpoints(folder)
        protected = (whole[-1].name, best and Path(best).name)
        surplus = len(whole) - self.limit if self.limit else 0
        superfluous = [path for path in whole if path.name not in protected]
        damaged = [path for path in faults if path.name != protected[1] or path.parent != folder]
        for path in [*damaged, *superfluous[: max(surplus, 0)]]:
            remove(path)
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)


class RunTrainer(MultiSourceTrainer):
    """[`MultiSourceTrainer`] of a run: its checkpoints appear when they are complete, and divergence stops it.

    Args:
        *args: As [`MultiSourceTrainer`].
        **kwargs: As [`MultiSourceTrainer`].
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.keeper = Keeper(self.args.save_total_limit)
        self.args.save_total_limit = None  # or stock code would delete checkpoints, too
        self._saving = False  # whether a checkpoint is being written

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on one batch, and raise an error if the loss is not finite on any process.

        The stock trainer hides such a loss in its log.

        Args:
            *args: As stock.
            **kwargs: As stock.

        Returns:
            The loss.

        Raises:
            FloatingPointError: If the loss is nan or infinite.
        """
        loss = super().training_step(*args, **kwargs)
        spoiled = (~torch.isfinite(loss)).float()
        if self.args.world_size > 1:  # or the other processes would wait for one that has stopped
            everywhere: Any = self.accelerator.reduce(spoiled, "sum")
            spoiled = everywhere
        if spoiled:
            value = "not finite on another process" if torch.isfinite(loss) else loss.item()
            raise self._divergence(f"the loss of update {self.state.global_step + 1} is {value}")
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As stock.

        Args:
            logs: The values to log.
            start_time: When training started, in seconds.

        Raises:
            FloatingPointError: If the loss of all updates since the last call is 0.
        """
        super().log(logs, start_time)
        if logs.get("loss") == 0.0:
            raise self._divergence(f"the loss is exactly 0 up to update {self.state.global_step}")

    def check_weights(self) -> None:
        """Make sure that the weights can be saved.

        Raises:
            FloatingPointError: If a weight is nan or infinite.
        """
        model: Any = self.model
        spoiled = []
        for name, weight in model.named_parameters():
            own = weight.to_local() if hasattr(weight, "to_local") else weight  # of FSDP, the part of this process
            if not torch.isfinite(own).all():
                spoiled = [name]
                break
        if self.args.world_size > 1:
            spoiled = gather_object(spoiled)
        if spoiled:
            raise self._divergence(f"weights of {spoiled[0]} are not finite after update {self.state.global_step}")

    def create_optimizer(self, model: Any = None) -> Any:
        """Create the optimizer; an error names the keys of the recipe.

        Args:
            model: The model to train, if it is not the trainer's own.

        Returns:
            The optimizer.

        Raises:
            ValueError: If the options do not fit the optimizer.
        """
        with _named("optimizer", "training.optim and training.optim_args"):
            return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Create the schedule of the learning rate; an error names the keys of the recipe.

        Args:
            num_training_steps: Updates of the whole training.
            optimizer: The optimizer, if it is not the trainer's own.

        Returns:
            The schedule.

        Raises:
            ValueError: If the options do not fit the schedule.
        """
        with _named("schedule", "training.lr_scheduler_type and training.lr_scheduler_kwargs"):
            return super().create_scheduler(num_training_steps, optimizer)

    def _load_best_model(self) -> None:
        best = Path(str(self.state.best_model_checkpoint))

        def check() -> None:
            if (fault := find_fault(best) or find_change(best)) is not None:
                raise ValueError(
                    f"{best} has the best model of the run, but is damaged ({fault}): restore it from a copy and start "
                    "again with --resume; no model has been saved"
                )

        together(self.args, check)
        super()._load_best_model()

    def _divergence(self, what: str) -> FloatingPointError:
        return FloatingPointError(
            f"training diverged: {what}; start again in another output_dir with a lower learning_rate or noam_scale "
            f"(the highest learning rate was {self.args.learning_rate:g})"
        )

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / UNFINISHED) if self._saving else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.check_weights()
        folder, name = Path(super()._get_output_dir(trial)), f"checkpoint-{self.state.global_step}"
        if self.args.should_save:  # files of an earlier start may lie there
            shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._saving = False
        if self.state.best_global_step:  # stock code looked for the best checkpoint in the temporary folder
            best = folder / f"checkpoint-{self.state.best_global_step}"
            if best.name == name or best.exists():
                self.state.best_model_checkpoint = str(best)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.state.save_to_json(str(folder / UNFINISHED / name / "trainer_state.json"))
            self.keeper.complete(folder / UNFINISHED / name, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            super()._push_from_checkpoint(str(folder / name))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Do nothing: a checkpoint is pushed under its final name."""


@contextmanager
def _named(what: str, keys: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"the {what} cannot be made from {keys}: {reason}") from error


def _read_marker(checkpoint: Path) -> dict[str, Any]:
    return read_json(checkpoint / MARKER)


def _number(checkpoint: Path) -> int:
    return int(_update(checkpoint)) if _update(checkpoint).isdigit() else -1


def _update(path: Path) -> str:
    return path.name.rpartition("-")[2]
