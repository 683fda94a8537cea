"""Read the texts of a split row by row, so that a corpus need not fit into memory.

Plain text and JSON Lines are read in chunks, and Parquet in batches. The text of a CSV or TSV file, and a Hub dataset,
are kept in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hf_multisource.data.files import parse_lines, stream_lines
from hf_multisource.data.rows import HUB_ID, find_texts, named_values, parse_cell, read_split, stream_parquet
from hf_multisource.data.tables import find_delimiter, stream_table
from hf_multisource.source_kinds import is_absent

TextRow = dict[str, str | None]  # column -> text; None = absent


def stream_rows(data: str, split: str, names: Sequence[str], optional: Collection[str] = ()) -> Iterator[TextRow]:
    """Read the columns of a split row by row.

    Args:
        data: A folder or the id of a Hub dataset.
        split: Name of the split.
        names: Names of the columns, which contain text.
        optional: Names of the columns that may be missing in the split. They are absent in every row then.

    Yields:
        The text of each column, by name in the order of `names`.

    Raises:
        FileNotFoundError: If the data or the split is not found.
        ValueError: If a column is missing, files of plain text differ in length, or a file is damaged. In JSON Lines, a
            missing column is detected after the last row.
    """
    if not Path(data).is_dir():
        if not HUB_ID.fullmatch(data):
            raise FileNotFoundError(
                f"no folder {data}, and that is no id of a Hub dataset (org/name or org/name:config)"
            )
        yield from read_split(data, split, names, None, keep_all=True, optional=optional).rows
        return
    found = find_texts(Path(data), split, names, optional)
    rows: Iterable[dict[str, Any]]
    if isinstance(found, dict):
        rows = _aligned(found)
    elif find_delimiter(found):
        there, cells = stream_table(found, names, optional)
        rows = (dict(zip(there, row, strict=True)) for row in cells)
    else:
        rows = _objects(found, names, optional)
    for row in rows:
        values = {name: row.get(name) for name in names}
        yield {name: None if is_absent(value) else value for name, value in values.items()}


def _aligned(paths: dict[str, Path]) -> Iterator[dict[str, str]]:
    """Yield the rows of line-aligned files, which must have the same number of lines."""
    streams = {name: stream_lines(path) for name, path in paths.items()}
    for number, texts in enumerate(zip_longest(*streams.values())):
        if None in texts:
            lengths = {
                paths[name].name: number + (text is not None) + sum(1 for _ in stream)
                for (name, stream), text in zip(streams.items(), texts, strict=True)
            }
            listed = ", ".join(f"{place} has {length} lines" for place, length in lengths.items())
            short = min(lengths, key=lengths.__getitem__)
            raise ValueError(
                f"files in {next(iter(paths.values())).parent} differ in length: {listed}; line {lengths[short] + 1} "
                f"has no partner in {short}"
            )
        yield dict(zip(paths, texts, strict=True))


def _objects(path: Path, names: Sequence[str], optional: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of JSON Lines or Parquet."""
    rows: Iterable[object]
    there, rows = (
        stream_parquet(path, names) if path.suffix == ".parquet" else ([], parse_lines(stream_lines(path), path))
    )
    found = dict.fromkeys(there)
    for number, values in enumerate(rows, 1):
        row = named_values(values, f"{path}, row {number}")
        found.update(dict.fromkeys(row))
        yield {name: parse_cell(row.get(name), "text", f"{path}, row {number}: {name!r}") for name in names}
    if unknown := [name for name in names if name not in found and name not in optional]:
        raise ValueError(f"unknown source or target {unknown[0]!r}: the rows of {path} have only {', '.join(found)}")
