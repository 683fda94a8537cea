"""Read CSV and TSV files whose first row is a header with the names of the columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from hf_multisource.data.files import read_text

DELIMITERS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}


def find_delimiter(path: str | Path) -> str | None:
    """Return the delimiter of a table from the suffix of its file name.

    Args:
        path: The file.

    Returns:
        A comma or a tab; None if the suffix is not that of a table.
    """
    return next((delimiter for end, delimiter in DELIMITERS.items() if str(path).endswith(end)), None)


def read_cells(path: str | Path, *, pipes: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Read a table in UTF-8, plain or gzipped, row by row.

    A cell that contains a delimiter, a quote or a line end is enclosed in double quotes, and each quote in it is
    doubled. All other characters, including blanks, belong to the cells. A row ends at a newline, with or without a
    carriage return.

    Args:
        path: A file whose name ends in one of `DELIMITERS`.
        pipes: See `read_text`.

    Yields:
        Number of the first line of a row, counted from 1, and its cells. An empty line is a row with one empty cell.

    Raises:
        ValueError: If quotes are wrong, a cell has more characters than `csv.field_size_limit`, or under the conditions
            of `read_text`. The message gives file and line.
    """
    # `newline="\n"` splits only at "\n" and changes no character; the reader joins the lines of a quoted cell.
    lines = io.StringIO(read_text(path, pipes=pipes), newline="\n")
    reader = csv.reader(lines, delimiter=find_delimiter(path) or ",", strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            reason = str(error).partition(" - ")[0]
            raise ValueError(
                f"{path}, line {line}: not CSV: {reason} (a cell with a delimiter, a quote or a line end stands in "
                "quotes, and quotes in it are doubled)"
            ) from error
        yield line, cells or [""]


def read_table(
    path: str | Path, names: Sequence[str], optional: Collection[str] = (), *, pipes: bool = False
) -> dict[str, list[str]]:
    """Read columns of a table whose first row is a header with the names of its columns.

    Args:
        path: See `read_cells`.
        names: The columns to read; the table may have others.
        optional: Names of the columns that may be missing in the table.
        pipes: See `read_text`.

    Returns:
        Name -> cells from the first row to the last, in the order of `names`. Missing columns have no entry.

    Raises:
        ValueError: If the file is empty, a column is missing or occurs twice in the header, a row has more or fewer
            cells than the header, or under the conditions of `read_cells`. The message gives file and line.
    """
    names, rows = stream_table(path, names, optional, pipes=pipes)
    columns: dict[str, list[str]] = {name: [] for name in names}
    for cells in rows:
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    return columns


def stream_table(
    path: str | Path, names: Sequence[str], optional: Collection[str] = (), *, pipes: bool = False
) -> tuple[list[str], Iterator[list[str]]]:
    """Read columns of a table row by row.

    Args:
        path: See `read_table`.
        names: See `read_table`.
        optional: See `read_table`.
        pipes: See `read_table`.

    Returns:
        The names of the columns that the table has, in the order of `names`; and the cells of each row in that order.

    Raises:
        ValueError: Under the conditions of `read_table`.
    """
    rows = read_cells(path, pipes=pipes)
    _, header = next(rows, (1, None))
    if header is None:
        raise ValueError(f"{path} is empty: a table begins with the names of its columns")
    there = [name for name in names if name in header or name not in optional]
    for name in there:
        if (count := header.count(name)) != 1:
            found = f"column {name!r} stands there {count} times" if count else f"no column {name!r}"
            raise ValueError(f"{path}, line 1: {found}; its columns are {', '.join(header)}")
    return there, _chosen_cells(path, rows, header, [header.index(name) for name in there])


def _chosen_cells(
    path: str | Path, rows: Iterator[tuple[int, list[str]]], header: Sequence[str], places: Sequence[int]
) -> Iterator[list[str]]:
    """Yield the cells of each row at the given places; each row must have as many cells as the header."""
    for line, cells in rows:
        if len(cells) != len(header):
            raise ValueError(
                f"{path}, line {line}: a row of {len(cells)} cells; the header has {len(header)} ({', '.join(header)})"
            )
        yield [cells[place] for place in places]
