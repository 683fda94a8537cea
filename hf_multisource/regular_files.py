"""Safe opening and reading of regular files of bounded size; devices and named pipes, which can block, are rejected."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading; reject folders, devices, sockets and named pipes without blocking.

    Args:
        path: The file.

    Returns:
        The open file.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file; the message names it.
        ValueError: If the path is not a valid file name.
    """
    # Without O_NONBLOCK, opening a named pipe blocks until there is a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_regular_or_pipe(path: str | Path) -> BinaryIO:
    """Open a regular file or a pipe for reading; opening a named pipe blocks until there is a writer.

    Args:
        path: The file, such as `/dev/fd/63`, which shells pass for `<(command)`.

    Returns:
        The open file.

    Raises:
        OSError: If the file cannot be opened, or is neither a regular file nor a pipe; the message names the file.
        ValueError: If the path is not a valid file name.
    """
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return open_regular(path)
    return open(path, "rb")


def read_regular(path: str | Path, limit: int) -> bytes:
    """Read a regular file of bounded size.

    Args:
        path: The file.
        limit: Maximum size, in bytes; a larger file is not read.

    Returns:
        Content of the file.

    Raises:
        OSError: If the file cannot be read, or is not a regular file; the message names the file.
        ValueError: If the file is larger than `limit`, or the path is not a valid file name; the message names it.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(limit + 1) if size <= limit else b""  # files can grow, and files of /proc have size 0
    if size > limit or len(content) > limit:
        raise ValueError(f"{path} has {max(size, len(content)):,} bytes; at most {limit:,} are read")
    return content


__all__ = ["open_regular", "open_regular_or_pipe", "read_regular"]
