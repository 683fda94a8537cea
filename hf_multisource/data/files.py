"""Read text files line by line within bounds, and write text and JSON files in one step."""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from hf_multisource.json_files import parse_json
from hf_multisource.regular_files import open_regular, open_regular_or_pipe

CHUNK = 2**20  # bytes that are read at once
MAX_LINE = 2**26  # bytes of a line: a JSON line may hold a map of features written out in numbers
# What is compressed may grow to this many bytes, or to this many times the bytes of its file if that is more. Text
# grows 3 to 10 times, a bomb 1000 times.
EXPANDED_FREELY, MAX_EXPANSION = 2**26, 50
DAMAGED = (OSError, EOFError, zlib.error)  # what reading damaged gzip data raises


def check_expansion(place: str | Path, expanded: int, size: int, remedy: str) -> None:
    """Refuse compressed data that grow out of all proportion to the file that holds them.

    Args:
        place: The file.
        expanded: Bytes that the data have without compression.
        size: Bytes of the file.
        remedy: What else the file could be, for the message.

    Raises:
        ValueError: If the data are larger than `EXPANDED_FREELY` and than `MAX_EXPANSION` times the file.
    """
    if expanded > max(EXPANDED_FREELY, MAX_EXPANSION * size):
        raise ValueError(
            f"{place} has {size:,} bytes and would grow to {expanded:,} or more; at most {EXPANDED_FREELY:,}, or "
            f"{MAX_EXPANSION} times the file, are read: {remedy}"
        )


def read_lines(path: str | Path, *, pipes: bool = False) -> list[str]:
    r"""Read UTF-8 text, plain or gzipped, as lines.

    Only "\n" ends a line (`str.splitlines` would also break at rare Unicode separators inside a sentence), a "\r"
    before it is dropped, and so is a byte order mark.

    Args:
        path: As [`read_text`] has it.
        pipes: As [`read_text`] has it.

    Returns:
        The lines without their ends; none for an empty file.
    """
    lines = read_text(path, pipes=pipes).split("\n")
    if lines[-1] == "":
        lines.pop()  # the last line has its end, as it should: nothing follows it
    return [line.removesuffix("\r") for line in lines]


def read_text(path: str | Path, *, pipes: bool = False) -> str:
    """Read UTF-8 text, plain or gzipped, without its byte order mark.

    Args:
        path: A file, gzipped if its name ends in `.gz`, or `-` for standard input.
        pipes: Whether the file may also be a pipe, such as `<(zcat x.gz)` in the shell.

    Returns:
        The text with its line ends as they are.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file.
        ValueError: If the gzip data is damaged or grows more than `check_expansion` allows, a line is longer than
            `MAX_LINE` bytes, or is not UTF-8; the message gives the file, and line and byte.
    """
    name = "standard input" if str(path) == "-" else str(path)
    if str(path) == "-":
        content = _join_lines(_chunks(sys.stdin.buffer), name)
    else:
        with (open_regular_or_pipe if pipes else open_regular)(path) as file:
            content = _join_lines(_gunzipped(file, name) if name.endswith(".gz") else _chunks(file), name)
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        place = error.start - content.rfind(b"\n", 0, error.start)
        raise ValueError(_not_utf8(name, line, place, content[error.start], error.reason)) from error


def stream_lines(path: str | Path) -> Iterator[str]:
    r"""Read UTF-8 text, plain or gzipped, line by line, without keeping more than a chunk of it in memory.

    Lines, line ends and bounds are those of [`read_lines`].

    Args:
        path: A regular file, gzipped if its name ends in `.gz`.

    Yields:
        The lines without their ends.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file.
        ValueError: As [`read_text`] has it.
    """
    name, number, rest = str(path), 0, bytearray()
    with open_regular(path) as file:
        for chunk in _gunzipped(file, name) if name.endswith(".gz") else _chunks(file):
            first, *others = chunk.split(b"\n")
            rest += first
            if len(rest) > MAX_LINE:
                raise ValueError(f"{name}, line {number + 1}: longer than {MAX_LINE:,} bytes")
            if others:
                for line in (bytes(rest), *others[:-1]):
                    number += 1
                    yield _decoded(line, name, number)
                rest = bytearray(others[-1])
    if rest:
        yield _decoded(bytes(rest), name, number + 1)


def _decoded(line: bytes, name: str, number: int) -> str:
    """The text of a line of a file."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(_not_utf8(name, number, error.start + 1, line[error.start], error.reason)) from error
    return (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\r")


def _not_utf8(name: str, line: int, place: int, byte: int, reason: str) -> str:
    """Say where a file is not UTF-8."""
    return f"{name}, line {line}: not UTF-8: byte {place} of the line is 0x{byte:02x} ({reason})"


def parse_lines(lines: Iterable[str], place: str | Path) -> Iterator[object]:
    """Parse JSON lines.

    Args:
        lines: One JSON value each.
        place: What to call their file in errors.

    Yields:
        The values.

    Raises:
        ValueError: If a line is not JSON; the message gives file and line.
    """
    for number, line in enumerate(lines, 1):
        try:
            yield parse_json(line)
        except ValueError as error:
            raise ValueError(f"{place}, line {number}: not JSON: {error}") from error


def single_line(text: str) -> str:
    """Replace the line ends in a text by blanks, so that a file can hold one text a line.

    Args:
        text: The text.

    Returns:
        The text in one line.
    """
    return text.replace("\r", " ").replace("\n", " ")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def _gunzipped(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The chunks of a gzipped file."""
    size, expanded = os.fstat(file.fileno()).st_size, 0
    with gzip.GzipFile(fileobj=file) as content:
        while True:
            try:
                chunk = content.read(CHUNK)
            except DAMAGED as error:
                raise ValueError(f"{name}: damaged gzip file: {error}") from error
            if not chunk:
                return
            expanded += len(chunk)
            check_expansion(name, expanded, size, "unpack it")
            yield chunk


def _join_lines(chunks: Iterator[bytes], name: str) -> bytearray:
    """Join the chunks of a text; a line that is too long ends the reading."""
    content, begun = bytearray(), 0  # `begun`: bytes of the line that the chunks so far end in
    for chunk in chunks:
        end = chunk.find(b"\n")
        if begun + (len(chunk) if end < 0 else end) > MAX_LINE:
            line = content.count(b"\n") + 1
            raise ValueError(f"{name}, line {line}: longer than {MAX_LINE:,} bytes")
        begun = begun + len(chunk) if end < 0 else len(chunk) - chunk.rfind(b"\n") - 1
        content += chunk
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


def write_json(path: Path, content: object) -> None:
    """Write a JSON file in one step, as [`write_text`] does."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
