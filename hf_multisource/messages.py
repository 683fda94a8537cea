"""Parts of error messages."""

from __future__ import annotations

LONGEST = 100  # characters of a value that a message shows


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message.

    Args:
        error: The error; those of Transformers explain themselves in many lines.

    Returns:
        The line; the name of the error's class if there is no message.
    """
    return next(iter(str(error).splitlines()), type(error).__name__)


def shown(value: object) -> str:
    """Return a value as an error message shows it: in one short line.

    Args:
        value: Any value, for instance one that was read from a damaged or hostile file.

    Returns:
        Its `repr`, shortened; of a very long integer, its size; of a value without a `repr`, the name of its type.
    """
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):  # nested too deeply; an integer of more digits than Python writes
        return type(value).__name__
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def shown_key(key: object) -> str:
    """Return a key of a mapping as an error message shows it: in one short line, without quotation marks.

    Args:
        key: The key, for instance of a damaged or hostile file.

    Returns:
        The key, shortened.
    """
    return shown(str(key))[1:-1]


def install_hint(extra: str) -> str:
    """Return how to install the packages of an extra, as an error message says it.

    Args:
        extra: Name of the extra in `pyproject.toml`.

    Returns:
        The command, and where to run it; no package index has this package.
    """
    return f'run pip install ".[{extra}]" in a clone of the repository'


__all__ = ["first_line", "install_hint", "shown", "shown_key"]
