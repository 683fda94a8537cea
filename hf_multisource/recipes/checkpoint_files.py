"""Write checkpoints atomically and verify them before loading, so that a killed process leaves no invalid checkpoint.

A checkpoint is written to `unfinished/checkpoint-N` in the run's folder. The marker `complete.json`, which is written
last, lists the size and the SHA-256 of every file. Then the folder is renamed to `checkpoint-N`. Neither this package
nor the Trainer of Transformers therefore finds a checkpoint that is still being written.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

from hf_multisource.data.files import write_json
from hf_multisource.json_files import JsonObject, read_json

MARKER = "complete.json"
UNFINISHED = "unfinished"  # subfolder of the run folder in which checkpoints are written
BLOCK = 1 << 20  # number of bytes per read when a hash is computed


def find_checkpoints(folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """Find a run's checkpoints, judging their completeness by the names and sizes of their files.

    Args:
        folder: The run's folder.

    Returns:
        The complete checkpoints in the order of their updates, and a description of the fault of each other checkpoint.
    """
    named = [path for path in folder.glob("checkpoint-*") if path.is_dir() and _update(path).isdigit()]
    named.sort(key=lambda path: int(_update(path)))
    faults = {path: fault for path in named if (fault := find_fault(path)) is not None}
    for path in sorted(folder.glob(f"{UNFINISHED}/checkpoint-*")):
        faults[path] = "it was not written to its end"
    return [path for path in named if path not in faults], faults


def find_fault(checkpoint: Path) -> str | None:
    """Describe the fault of a checkpoint, judging by the names and sizes of its files.

    Args:
        checkpoint: The checkpoint's folder.

    Returns:
        A sentence that names the file; None if all files exist in their full size.
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
    """Describe the first file of a checkpoint whose SHA-256 differs from the recorded one.

    Args:
        checkpoint: The checkpoint's folder. Checkpoints of earlier versions have no hashes and are accepted.

    Returns:
        A sentence that names the file; None if no file differs.
    """
    for name, digest in _read_marker(checkpoint).get("sha256", {}).items():
        if hash_file(checkpoint / name) != digest:
            return f"{name} has changed since it was written: its SHA-256 does not match"
    return None


def check_best(checkpoint: Path) -> None:
    """Check the best checkpoint of a run, which is recorded in the state of another checkpoint.

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


def resume_point(folder: Path, best: bool) -> Path | None:
    """Find the checkpoint from which to continue, and print its name.

    Args:
        folder: The run's folder.
        best: Whether the best checkpoint is loaded at the end of the training.

    Returns:
        The last complete checkpoint whose files match their hashes; None if there is none.

    Raises:
        ValueError: If the best checkpoint is needed and is damaged or missing.
    """
    whole, faults = find_checkpoints(folder)
    while whole and (change := find_change(whole[-1])) is not None:
        faults[whole.pop()] = change
    if whole and best:
        check_best(whole[-1])
    lines = [f"resume: {path.name} is skipped: {fault}" for path, fault in faults.items()]
    start = (
        f"going on from {whole[-1].name}"
        if whole
        else f"no complete checkpoint in {folder}, starting from the beginning"
    )
    lines.append(f"resume: {start}")
    print("\n".join(lines), flush=True)
    return whole[-1] if whole else None


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file block by block, without loading the whole file.

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
    """Delete a checkpoint; if the deletion is interrupted, the rest does not count as a complete checkpoint.

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
    """Manager of a run's checkpoints: completes them, deletes superfluous ones, and counts the training seconds.

    This class implements `save_total_limit` in place of the Trainer, which would delete the last complete checkpoint
    before the next one is complete. Damaged and unfinished checkpoints are also deleted as soon as there is a complete
    one.

    Args:
        limit: Number of checkpoints to keep; the newest and the best one are always kept. None: all are kept.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.began = time.time()

    def start(self, checkpoint: Path | None) -> None:
        """Start counting the training seconds.

        Args:
            checkpoint: The checkpoint from which training continues, whose seconds are included; None: a new training.
        """
        self.began = time.time() - (_read_marker(checkpoint)["seconds"] if checkpoint else 0.0)

    @property
    def seconds(self) -> float:
        """Seconds of training over all starts, without the time after a checkpoint that was lost in an interruption."""
        return round(time.time() - self.began, 1)

    def complete(self, checkpoint: Path, best: str | None) -> None:
        """Write the marker of a checkpoint, rename the checkpoint to its final name, and delete superfluous ones.

        Args:
            checkpoint: The checkpoint's folder within `unfinished`.
            best: Path of the best checkpoint, of which only the name is used; None: there is none.
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
        self.tidy(folder, checkpoint.name, best)

    def tidy(self, folder: Path, newest: str, best: str | None) -> None:
        """Delete incomplete checkpoints, and complete ones beyond the limit.

        Args:
            folder: The run's folder.
            newest: Name of the checkpoint with the state of the training, which is never deleted. A checkpoint with a
                higher number is one that a resumed training has skipped, because its content is damaged.
            best: Path of the best checkpoint, of which only the name is used; None: there is none. The best checkpoint
                is never deleted, even if it is damaged.
        """
        whole, faults = find_checkpoints(folder)
        protected = (newest, best and Path(best).name)
        surplus = len(whole) - self.limit if self.limit else 0
        superfluous = [path for path in whole if path.name not in protected]
        damaged = [path for path in faults if path.name != protected[1] or path.parent != folder]
        for path in [*damaged, *superfluous[: max(surplus, 0)]]:
            remove(path)
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)


def _read_marker(checkpoint: Path) -> JsonObject:
    return read_json(checkpoint / MARKER)


def _number(checkpoint: Path) -> int:
    return int(_update(checkpoint)) if _update(checkpoint).isdigit() else -1


def _update(path: Path) -> str:
    return path.name.rpartition("-")[2]
