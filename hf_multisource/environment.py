"""Error messages for environments in which Transformers cannot be imported."""

from __future__ import annotations

import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

COMMAND = "hf-multisource"


def broken_torchvision() -> str | None:
    """Return an error message if torchvision does not fit torch, because most of Transformers then fails to import.

    Returns:
        The message, in one line; None if torchvision is not installed or can be imported.
    """
    if find_spec("torchvision") is None:
        return None
    try:
        import torchvision  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: F401
    except Exception as error:  # its compiled extension can raise any error
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
    """Abort the import of the package with a one-line message.

    Args:
        message: Description of the problem and its solution.
        error: The error that occurred.

    Raises:
        ImportError: With the message.
        SystemExit: Instead of ImportError if the process is the command of this package, which prints the message only.
    """
    if is_command(sys.orig_argv):
        sys.exit(f"{COMMAND}: {message}")
    raise ImportError(message) from error
