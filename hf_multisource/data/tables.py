"""Read CSV and TSV: a header that names the columns, then one row after the other."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from hf_multisource.data.files import read_text

DELIMITERS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}


def find_delimiter(path: str | Path) -> str | None:
    """Return the delimiter of a table by the name of its file.

    Args:
        path: The file.

    Returns:
        A comma or a tab; None: the name is not that of a table.
    """
    return next((delimiter for end, delimiter in DELIMITERS.items() if str(path).endswith(end)), None)


def read_cells(path: str | Path, *, pipes: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Read a table in UTF-8, plain or gzipped, row by row.

    A cell that holds a delimiter, a quote or a line end stands in double quotes, with each quote in it doubled. All
    other characters, blanks too, belong to the cells. A row ends at a newline, with or without a carriage return.

    Args:
        path: A file whose name ends in one of `DELIMITERS`.
        pipes: As `read_text` has it.

    Yields:
        The line in which a row begins, counted from 1, and its cells; of an empty line, one empty cell.

    Raises:
        ValueError: If quotes are wrong or a cell has more characters than `csv.field_size_limit`; the message gives
            file and line. As `read_text` has it, too.
    """
    # `newline` splits at "\n" alone and changes no character; the reader joins the lines that a quoted cell spans.
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
        path: As `read_cells` has it.
        names: The columns to read; the table may have others.
        optional: Those of the names that the table may lack.
        pipes: As `read_text` has it.

    Returns:
        By name in the order of `names`, the cells from the first row to the last; no entry for a column that the table
        lacks.

    Raises:
        ValueError: If the file is empty, a column is missing or stands in the header twice, or a row has more or fewer
            cells than the header; the message gives file and line. As `read_cells` has it, too.
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
        path: As `read_table` has it.
        names: As `read_table` has it.
        optional: As `read_table` has it.
        pipes: As `read_table` has it.

    Returns:
        The names of the columns that the table has, in the order of `names`; and the cells of each row in that order.

    Raises:
        ValueError: As `read_table` has it.
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
    """The cells of each row at some places; rows have as many cells as the header."""
    for line, cells in rows:
        if len(cells) != len(header):
            raise ValueError(
                f"{path}, line {line}: a row of {len(cells)} cells; the header has {len(header)} ({', '.join(header)})"
            )
        yield [cells[place] for place in places]
