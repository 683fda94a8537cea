"""Checkpoints that a kill cannot spoil: which are complete, and which are kept.

The trainer writes a checkpoint file by file, on every process. `complete.json` comes last, in one step, and tells the
sizes of all others: a checkpoint without it, or with a file that is shorter or missing, was cut short.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from accelerate.state import PartialState
from transformers.trainer_callback import TrainerCallback

from hf_multisource.data.files import write_json

MARKER = "complete.json"


def find_checkpoints(folder: Path) -> tuple[list[Path], list[Path]]:
    """Look for a run's checkpoints.

    Args:
        folder: The run's folder.

    Returns:
        The complete ones and those that were cut short, each in the order of their updates.
    """
    paths = [path for path in folder.glob("checkpoint-*") if path.is_dir() and _update(path).isdigit()]
    paths.sort(key=lambda path: int(_update(path)))
    whole = [path for path in paths if is_complete(path)]
    return whole, [path for path in paths if path not in whole]


def is_complete(checkpoint: Path) -> bool:
    """Tell whether a checkpoint was written to its end and nothing has been lost since.

    Args:
        checkpoint: The checkpoint's folder.

    Returns:
        Whether its marker is there and all that it lists.
    """
    marker = checkpoint / MARKER
    if not marker.is_file():
        return False
    sizes = json.loads(marker.read_text(encoding="utf-8"))["files"]
    return bool(sizes == {name: size for name, size in _sizes(checkpoint).items() if name in sizes})


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint so that, killed at it, it is taken for what it is.

    Args:
        checkpoint: The checkpoint's folder.
    """
    (checkpoint / MARKER).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


class Keeper(TrainerCallback):
    """Marks every checkpoint once it is complete, and only then removes others; counts the seconds of all starts.

    It takes over `save_total_limit` from the trainer, which would remove the last complete checkpoint before the next
    one is. What was cut short goes, too: by then it is of no use.

    Args:
        limit: How many checkpoints to keep; the newest and the best stay in any case. None: all.
        checkpoint: The checkpoint that training goes on from, if any.
    """

    def __init__(self, limit: int | None, checkpoint: Path | None) -> None:
        self.limit = limit
        earlier = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))["seconds"] if checkpoint else 0.0
        self.began = time.time() - earlier

    @property
    def seconds(self) -> float:
        """Seconds so far, as far as checkpoints remember them."""
        return round(time.time() - self.began, 1)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the checkpoint that has just been written, and remove what it makes superfluous."""
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            folder = Path(args.output_dir)
            newest = folder / f"checkpoint-{state.global_step}"
            write_json(newest / MARKER, {"seconds": self.seconds, "files": _sizes(newest)})
            self.tidy(folder, state.best_model_checkpoint)

    def tidy(self, folder: Path, best: str | None) -> None:
        """Remove what was cut short and what is more than the limit.

        Args:
            folder: The run's folder, with a complete checkpoint in it.
            best: The best checkpoint, if any; only its name counts.
        """
        whole, cut_short = find_checkpoints(folder)
        protected = (whole[-1].name, best and Path(best).name)
        surplus = len(whole) - self.limit if self.limit else 0
        superfluous = [path for path in whole if path.name not in protected]
        for path in cut_short + superfluous[: max(surplus, 0)]:
            remove(path)


def _update(path: Path) -> str:
    return path.name.rpartition("-")[2]


def _sizes(checkpoint: Path) -> dict[str, int]:
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.name != MARKER]
    return {str(path.relative_to(checkpoint)): path.stat().st_size for path in files}
