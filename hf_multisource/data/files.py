"""Text and JSON files, read and written so that nothing half-written is ever taken for whole."""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any


def read_lines(path: str | Path) -> list[str]:
    r"""Read UTF-8 text, plain or gzipped, as lines.

    Only "\n" ends a line (`str.splitlines` would also break at rare Unicode separators inside a sentence), a "\r"
    before it is dropped, and so is a byte order mark.

    Args:
        path: A file, gzipped if its name ends in `.gz`, or `-` for standard input.

    Returns:
        The lines without their ends; none for an empty file.

    Raises:
        ValueError: If the gzip data is damaged or a line is not UTF-8; the message gives file, line and byte.
    """
    name = "standard input" if str(path) == "-" else str(path)
    content = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
    if name.endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{name}: damaged gzip file: {error}") from error
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = error.start - content.rfind(b"\n", 0, error.start)
        found = f"byte {byte} of the line is 0x{content[error.start]:02x} ({error.reason})"
        raise ValueError(f"{name}, line {line}: not UTF-8: {found}") from error
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[-1] == "":
        lines.pop()  # the last line has its end, as it should: nothing follows it
    return [line.removesuffix("\r") for line in lines]


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Args:
        path: The file.

    Returns:
        The object.

    Raises:
        ValueError: If the file holds something else, for instance because it is cut off; the message gives the file.
    """
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:  # also UnicodeDecodeError
        raise ValueError(f"{path} holds no valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, but holds {str(content)[:40]}")
    return content


def check_folder(path: Path) -> None:
    """Check that files can be written in a folder, which need not be there yet; make nothing.

    Args:
        path: The folder.

    Raises:
        NotADirectoryError: If the folder, or one above it, is a file.
        PermissionError: If the folder, or the lowest one above it that is there, cannot be written to.
    """
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise NotADirectoryError(f"{there} is a file, not a folder: name another place for the output")
    if not os.access(there, os.W_OK):
        raise PermissionError(f"{there} cannot be written to: name another place for the output")


def check_new_folder(path: Path) -> None:
    """Refuse a folder in which there is something already.

    Args:
        path: The folder that a command is to write.

    Raises:
        OSError: If it is a folder that is not empty, or as [`check_folder`] has it.
    """
    check_folder(path)
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(f"{path} is not empty: name another folder")


def write_text(path: Path, content: str) -> None:
    """Write a UTF-8 text file in one step: a kill leaves the old file or the new one, never half of one.

    Args:
        path: The file.
        content: The whole text.
    """
    partial = path.with_name(path.name + ".partial")
    partial.write_text(content, encoding="utf-8")
    os.replace(partial, path)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file in one step, as [`write_text`] does."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
