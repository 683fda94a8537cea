"""Helpers that format values and hints in error messages."""

from __future__ import annotations

LONGEST = 100  # maximum number of characters of a value in a message


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message.

    Args:
        error: The error; messages of Transformers can have many lines.

    Returns:
        The line; the name of the error's class if the error has no message.
    """
    return next(iter(str(error).splitlines()), type(error).__name__)


def shown(value: object) -> str:
    """Format a value for an error message, in one short line.

    Args:
        value: Any value, for instance from a damaged or hostile file.

    Returns:
        The shortened `repr` of the value; the size of a very long integer; the name of the type if `repr` fails.
    """
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):  # nested too deeply, or an integer with too many digits
        return type(value).__name__
    return _shorten(text, LONGEST)


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def shown_key(key: object) -> str:
    """Format a key of a mapping for an error message, in one short line without quotation marks.

    Args:
        key: The key, for instance from a damaged or hostile file.

    Returns:
        The shortened key.
    """
    return _shorten(" ".join(repr(str(key))[1:-1].split()), LONGEST - 2)


def install_hint(extra: str) -> str:
    """Return the hint of an error message on how to install the packages of an extra.

    Args:
        extra: Name of the extra in `pyproject.toml`.

    Returns:
        The command and the folder to run it in, because the package is on no package index.
    """
    return f'run pip install ".[{extra}]" in a clone of the repository'


__all__ = ["first_line", "install_hint", "shown", "shown_key"]
