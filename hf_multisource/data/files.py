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


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file in one step: a kill leaves the old file or the new one, never half of one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)
