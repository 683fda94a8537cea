"""What to tell a user whose environment cannot import Transformers."""

from __future__ import annotations

import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

COMMAND = "hf-multisource"


def broken_torchvision() -> str | None:
    """Say what to do about a torchvision that does not fit torch: most of Transformers cannot be imported beside one.

    Returns:
        One line; None if torchvision is absent or can be imported.
    """
    if find_spec("torchvision") is None:
        return None
    try:
        import torchvision  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: F401
    except Exception as error:  # whatever its compiled part raises
        reason = " ".join(str(error).split())
        return (
            f"torchvision {version('torchvision')} does not fit torch {version('torch')} ({reason}), and "
            "Transformers cannot be imported beside it: run `pip uninstall torchvision`, or install the torchvision "
            "build of this torch"
        )
    return None


def is_command(arguments: list[str]) -> bool:
    """Return whether a process is the command of this package.

    Args:
        arguments: `sys.orig_argv`: the interpreter, its options, and the script.

    Returns:
        True for `hf-multisource …` and `python -m hf_multisource…`.
    """
    if "-m" in arguments:
        return "".join(arguments[arguments.index("-m") + 1 :][:1]).split(".")[0] == "hf_multisource"
    return len(arguments) > 1 and Path(arguments[1]).name == COMMAND


def refuse(message: str, error: Exception) -> None:
    """Stop the import of the package with one line.

    Args:
        message: What is wrong and what to do.
        error: The error that was met.

    Raises:
        ImportError: With the message.
        SystemExit: In its place if the process is the command of this package, which shows the message alone.
    """
    if is_command(sys.orig_argv):
        sys.exit(f"{COMMAND}: {message}")
    raise ImportError(message) from error
