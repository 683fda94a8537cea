"""Read text files line by line with limits on their size, and write text and JSON files atomically."""

from __future__ import annotations

import errno
import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hf_multisource.json_files import parse_json
from hf_multisource.regular_files import open_regular, open_regular_or_pipe

CHUNK = 2**20  # bytes that are read at once
MAX_LINE = 2**26  # bytes of a line; a JSON line may contain a feature map as numbers
# Limits of decompressed data: this many bytes, or this many times the size of the file if that is more. Text grows 3 to
# 10 times, a decompression bomb 1000 times.
EXPANDED_FREELY, MAX_EXPANSION = 2**26, 50
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # error numbers of a full disk and an exhausted quota
DAMAGED = (OSError, EOFError, zlib.error)  # exceptions that damaged gzip data causes


@contextmanager
def named_errors(place: str | Path) -> Iterator[None]:
    """Context manager that adds a place to the error of a full disk, which names no file.

    Args:
        place: File or folder that is written.

    Yields:
        Nothing.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in NO_SPACE:
            error.filename = str(place)
        raise


def check_expansion(place: str | Path, expanded: int, size: int, remedy: str) -> None:
    """Raise ValueError for compressed data that expand too much, as in a decompression bomb.

    Args:
        place: The file.
        expanded: Size of the decompressed data in bytes.
        size: Size of the file in bytes.
        remedy: Alternative to the compressed file, for the error message.

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

    Only "\n" ends a line (`str.splitlines` would also break at rare Unicode separators inside a sentence). A "\r"
    before the "\n" and a byte order mark are dropped.

    Args:
        path: See [`read_text`].
        pipes: See [`read_text`].

    Returns:
        The lines without their line ends. An empty file has no lines.
    """
    lines = read_text(path, pipes=pipes).split("\n")
    if lines[-1] == "":
        lines.pop()  # a line end at the end of the file does not start another line
    return [line.removesuffix("\r") for line in lines]


def read_text(path: str | Path, *, pipes: bool = False) -> str:
    """Read UTF-8 text, plain or gzipped, without its byte order mark.

    Args:
        path: A file, gzipped if its name ends in `.gz`, or `-` for standard input.
        pipes: Whether the file may also be a pipe, such as `<(zcat x.gz)` in the shell.

    Returns:
        The text with unchanged line ends.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file.
        ValueError: If the gzip data is damaged or expands more than `check_expansion` allows, or if a line is longer
            than `MAX_LINE` bytes or is not UTF-8. The message gives file, line and byte.
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
    r"""Read UTF-8 text, plain or gzipped, line by line, keeping only one chunk of the file in memory.

    Lines and limits are defined as in [`read_lines`].

    Args:
        path: A regular file, gzipped if its name ends in `.gz`.

    Yields:
        The lines without their line ends.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file.
        ValueError: Under the conditions of [`read_text`].
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
    """Decode a line of a file."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(_not_utf8(name, number, error.start + 1, line[error.start], error.reason)) from error
    return (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\r")


def _not_utf8(name: str, line: int, place: int, byte: int, reason: str) -> str:
    """Return the error message for a byte of a file that is not UTF-8."""
    return f"{name}, line {line}: not UTF-8: byte {place} of the line is 0x{byte:02x} ({reason})"


def parse_lines(lines: Iterable[str], place: str | Path) -> Iterator[object]:
    """Parse JSON lines.

    Args:
        lines: Lines with one JSON value each.
        place: Name of the file in error messages.

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
    """Replace the line ends in a text by blanks, for files with one text per line.

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
    """Yield the decompressed chunks of a gzipped file."""
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
    """Join the chunks of a text; raise ValueError as soon as a line is too long."""
    content, begun = bytearray(), 0  # `begun`: bytes of the incomplete last line
    for chunk in chunks:
        end = chunk.find(b"\n")
        if begun + (len(chunk) if end < 0 else end) > MAX_LINE:
            line = content.count(b"\n") + 1
            raise ValueError(f"{name}, line {line}: longer than {MAX_LINE:,} bytes")
        begun = begun + len(chunk) if end < 0 else len(chunk) - chunk.rfind(b"\n") - 1
        content += chunk
    return content


def check_folder(path: Path) -> None:
    """Check that files can be written to a folder, which need not exist; the folder is not created.

    Args:
        path: The folder.

    Raises:
        NotADirectoryError: If the folder or one of its parents is a file.
        PermissionError: If the folder, or its closest existing parent, is not writable.
    """
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise NotADirectoryError(f"{there} is a file, not a folder: name another place for the output")
    if not os.access(there, os.W_OK):
        raise PermissionError(f"{there} cannot be written to: name another place for the output")


def check_new_folder(path: Path) -> None:
    """Check that a folder is empty or new, and can be written to.

    Args:
        path: The folder that a command will write.

    Raises:
        OSError: If the folder is not empty, or under the conditions of [`check_folder`].
    """
    check_folder(path)
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(f"{path} is not empty: name another folder")


def write_text(path: Path, content: str) -> None:
    r"""Write a UTF-8 text file atomically: if the process is killed, the file has the old or the new content.

    Lines end in "\n" on every system.

    Args:
        path: The file.
        content: The whole text.
    """
    partial = path.with_name(path.name + ".partial")
    partial.write_text(content, encoding="utf-8", newline="\n")
    os.replace(partial, path)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically, see [`write_text`]."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
