"""Parsing of JSON and reading of JSON files of bounded size, with one-line error messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .messages import shown
from .regular_files import read_regular

JsonObject = dict[str, Any]  # content of a JSON file with an object at the top level
MAX_JSON = 2**28  # maximum size of a JSON file in bytes; the largest known tokenizer files have 2**25


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Args:
        text: The JSON text.

    Returns:
        The parsed value.

    Raises:
        ValueError: If the text is not valid JSON, is nested too deeply for Python, or contains an integer with more
            digits than Python parses; the message has one line.
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
        The parsed value.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
        ValueError: If the file does not contain valid JSON, for instance because it is truncated, or has more than
            `MAX_JSON` bytes; the message names the file.
    """
    content = read_regular(path, MAX_JSON)
    try:
        return parse_json(content)
    except ValueError as error:  # also UnicodeDecodeError
        raise ValueError(f"{path} holds no valid JSON: {error}") from error


def read_json(path: str | Path) -> JsonObject:
    """Read a JSON file that contains an object.

    Args:
        path: The file.

    Returns:
        The object.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
        ValueError: If the file does not contain a JSON object; the message names the file.
    """
    content = load_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, but holds {shown(content)}")
    return content


__all__ = ["JsonObject", "load_json", "parse_json", "read_json"]
