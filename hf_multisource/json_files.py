"""Parse JSON and read JSON files, within bounds and with errors of one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .messages import shown
from .regular_files import read_regular

JsonObject = dict[str, Any]  # what a JSON file holds that begins with a brace
MAX_JSON = 2**28  # bytes of a JSON file; the largest known tokenizers have 2**25


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Args:
        text: The JSON.

    Returns:
        What it holds.

    Raises:
        ValueError: If it is not JSON, is nested too deeply for Python, or holds a whole number of more digits than
            Python reads; the message says so in one line.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"{error.msg} at {line}character {error.colno}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def load_json(path: str | Path) -> Any:
    """Read a JSON file.

    Args:
        path: The file.

    Returns:
        What it holds.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
        ValueError: If the file holds something else, for instance because it is cut off, or has more than `MAX_JSON`
            bytes; the message gives the file.
    """
    content = read_regular(path, MAX_JSON)
    try:
        return parse_json(content)
    except ValueError as error:  # also UnicodeDecodeError
        raise ValueError(f"{path} holds no valid JSON: {error}") from error


def read_json(path: str | Path) -> JsonObject:
    """Read a JSON file that holds an object.

    Args:
        path: The file.

    Returns:
        The object.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
        ValueError: If the file holds something else; the message gives the file.
    """
    content = load_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, but holds {shown(content)}")
    return content


__all__ = ["JsonObject", "load_json", "parse_json", "read_json"]
