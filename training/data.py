"""Read multi-source text and turn it into token ids.

The text of a split has one column per source and one for the target; row i is line i of every column. It may lie as
    DATA/<split>.<name>, DATA/<split>.<name>.gz       line-aligned plain text, one file a column
    DATA/<split>.jsonl, DATA/<split>.jsonl.gz         one JSON object a line
    DATA/<split>.parquet                              needs pyarrow
    org/name, org/name:config                         a dataset of the Hugging Face Hub, needs datasets
In the last three a row holds the columns themselves or, as many translation sets do, one `translation` object of them.
An empty or white line, a null and a missing key all mean the same: that source is absent in this row.
"""

import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

Row = dict[str, str | None]
Columns = dict[str, Sequence[str | None]]

TABLES = (".jsonl", ".jsonl.gz", ".parquet")
HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(:[\w.-]+)?")
ROWS_PER_CALL = 1000


@dataclass(frozen=True)
class Split:
    """The rows of one split and what was counted while reading them.

    Attributes:
        rows: One dict per row with the sources in order, then the target; None = absent.
        kept: Line of each row in the data, counted from 0; where nothing was dropped, 0, 1, 2, …
        report: Counts: `lines` read, `rows` kept, `dropped_empty_target`, `dropped_no_source`, and per column
            `absent.<name>`, the kept rows without it.
    """

    rows: list[Row]
    kept: list[int]
    report: dict[str, int]


class Processor(Protocol):
    """What `encode_rows` asks of a `MultiSourceProcessor`."""

    @property
    def source_names(self) -> Sequence[str]:
        """The sources in the model's order."""

    def __call__(self, **text: Any) -> Mapping[str, Any]:
        """Encode lists of text to one list of token ids per key and row, neither padded nor truncated."""


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


def read_split(
    data: str,
    split: str,
    sources: Sequence[str],
    target: str | None,
    *,
    keep_all: bool = False,
    limit: int | None = None,
) -> Split:
    """Read the sources and the target of one split.

    Rows to learn from need a target and at least one source: others are dropped and counted (a row that lacks both
    counts as one without target). Decoding must answer every line: `keep_all` keeps every row.

    Args:
        data: A folder or the id of a Hub dataset.
        split: Name of the split, such as `train`.
        sources: Names of the sources, in order.
        target: Name of the target, or None to read sources only.
        keep_all: Drop nothing; `rows[i]` is line i.
        limit: Look at no more than the first so many lines.

    Returns:
        The rows, their lines and the counts.

    Raises:
        ValueError: If names or text are bad; the message names the file, line or column.
        FileNotFoundError: If the data or the split is not there; the message says what was looked for.
    """
    names = [*sources] if target is None else [*sources, target]
    if not sources:
        raise ValueError("sources is empty: name at least one source")
    if len(set(names)) < len(names):
        raise ValueError(f"sources and target must all differ, but are {', '.join(names)}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, but must be at least 1 (or None for all lines)")
    if Path(data).is_dir():
        columns = _read_folder(Path(data), split, names)
    elif HUB_ID.fullmatch(data):
        columns = _read_hub(data, split, names)
    else:
        raise FileNotFoundError(f"no folder {data}, and that is no id of a Hub dataset (org/name or org/name:config)")

    rows: list[Row] = []
    kept: list[int] = []
    report = dict.fromkeys(("lines", "rows", "dropped_empty_target", "dropped_no_source"), 0)
    for line, values in enumerate(islice(zip(*(columns[name] for name in names), strict=True), limit)):
        row = {name: value if value and value.strip() else None for name, value in zip(names, values, strict=True)}
        report["lines"] += 1
        if not keep_all and target is not None and row[target] is None:
            report["dropped_empty_target"] += 1
        elif not keep_all and all(row[name] is None for name in sources):
            report["dropped_no_source"] += 1
        else:
            rows.append(row)
            kept.append(line)
    report["rows"] = len(rows)
    report |= {f"absent.{name}": sum(row[name] is None for row in rows) for name in names}
    if not rows:
        raise ValueError(
            f"split {split!r} of {data}: no row is left of {report['lines']}; {report['dropped_empty_target']} have no "
            f"target ({target}), {report['dropped_no_source']} no source ({', '.join(sources)})"
        )
    return Split(rows, kept, report)


def encode_rows(
    processor: Processor, rows: Sequence[Row], target: str | None, max_length: int
) -> tuple[list[dict[str, list[int]]], dict[str, int]]:
    """Turn rows into token ids, shorten what is too long and count it.

    A sequence is cut here and not by the tokenizer, so that every cut is counted and the final token, which ends
    the sentence, stays.

    Args:
        processor: Encodes the sources and the target.
        rows: Rows of `read_split`.
        target: Name of the target in the rows, or None where they have none.
        max_length: Most tokens of a source or the target, the end of the sentence included.

    Returns:
        One dict per row with the keys of the processor (`input_ids`, `attention_mask`, `de_input_ids`, …, `labels`),
        and the counts `truncated.<name>` for every source and the target.

    Raises:
        ValueError: If `max_length` leaves no room for a token and the end of the sentence.
    """
    if max_length < 2:
        raise ValueError(f"max_length is {max_length}, but must be at least 2 (a token and the end of the sentence)")
    key_names = {f"{name}_input_ids" if i else "input_ids": name for i, name in enumerate(processor.source_names)}
    if target is not None:
        key_names["labels"] = target
    report = {f"truncated.{name}": 0 for name in key_names.values()}
    examples: list[dict[str, list[int]]] = []
    for start in range(0, len(rows), ROWS_PER_CALL):
        chunk = rows[start : start + ROWS_PER_CALL]
        text = {"text_target" if name == target else name: [row[name] for row in chunk] for name in chunk[0]}
        encoded = processor(**text)
        for i in range(len(chunk)):
            example = {key: list(values[i]) for key, values in encoded.items()}
            for key, values in example.items():
                if len(values) > max_length:
                    example[key] = values[: max_length - 1] + values[-1:]  # right for a mask of ones, too
                    if key in key_names:
                        report[f"truncated.{key_names[key]}"] += 1
            examples.append(example)
    return examples, report


def _read_folder(folder: Path, split: str, names: Sequence[str]) -> Columns:
    """Find out in which form the split lies in the folder, and read it."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    plain = {name: [path for path in files if path.name.removesuffix(".gz") == f"{split}.{name}"] for name in names}
    tables = [path for path in files if path.name in {split + end for end in TABLES}]
    text = [path for paths in plain.values() for path in paths]
    if len(tables) + bool(text) > 1 or any(len(paths) > 1 for paths in plain.values()):
        twice = ", ".join(path.name for path in text + tables)
        raise ValueError(f"split {split!r} lies in {folder} in more than one form ({twice}): keep one")
    if tables and tables[0].suffix == ".parquet":
        return _read_parquet(tables[0], names)
    if tables:
        return _columns(_parse_json(tables[0]), names, f"{tables[0]}, line")

    stems = [path.name.removesuffix(".gz") for path in files]
    if missing := [name for name in names if not plain[name]]:
        if found := sorted({stem.removeprefix(f"{split}.") for stem in stems if stem.startswith(f"{split}.")}):
            raise ValueError(
                f"unknown source or target {missing[0]!r}: no {split}.{missing[0]}[.gz] in {folder}; "
                f"split {split!r} has {', '.join(found)}"
            )
        looked = ", ".join([f"{split}.{names[0]}[.gz]", f"{split}.jsonl[.gz]", f"{split}.parquet"])
        splits = {stem.rpartition(".")[0] for stem in stems if stem.rpartition(".")[2] in (*names, "jsonl", "parquet")}
        found_splits = ", ".join(sorted(splits)) or "none"
        raise FileNotFoundError(f"no split {split!r} in {folder}: looked for {looked}; splits found: {found_splits}")

    columns = {name: read_lines(plain[name][0]) for name in names}
    lengths = {plain[name][0].name: len(column) for name, column in columns.items()}
    if empty := [name for name, length in lengths.items() if length == 0]:
        raise ValueError(f"{folder / empty[0]} is empty")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length} lines" for name, length in lengths.items())
        short = min(lengths, key=lengths.__getitem__)
        raise ValueError(
            f"files in {folder} differ in length: {listed}; line {lengths[short] + 1} has no partner in {short}"
        )
    return dict(columns)


def _parse_json(path: Path) -> Iterator[object]:
    """Parse one JSON value a line."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON: {error.msg} at character {error.colno}") from error


def _read_parquet(path: Path, names: Sequence[str]) -> Columns:
    """Read the columns that are wanted from a Parquet file."""
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from error
    try:
        table = parquet.ParquetFile(path)
    except ValueError as error:  # pyarrow.ArrowInvalid
        raise ValueError(f"{path}: damaged Parquet file: {error}") from error
    there = table.schema_arrow.names
    batches = table.iter_batches(columns=[name for name in (*names, "translation") if name in there])
    return _columns((row for batch in batches for row in batch.to_pylist()), names, f"{path}, row", there)


def _read_hub(data: str, split: str, names: Sequence[str]) -> Columns:
    """Read the columns that are wanted from a dataset of the Hub."""
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"no folder {data}; reading a Hub dataset needs datasets: pip install datasets") from error
    hub_id, _, config = data.partition(":")
    try:
        dataset = datasets.load_dataset(hub_id, name=config or None, split=split)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"no folder {data}, and no such Hub dataset (split {split!r}): {error}") from error
    there = dataset.column_names
    dataset = dataset.select_columns([name for name in (*names, "translation") if name in there])
    return _columns(dataset, names, f"{data}, split {split!r}, row", there)


def _columns(rows: Iterable[object], names: Sequence[str], place: str, there: Iterable[str] = ()) -> Columns:
    """Turn rows of named text into columns; `place` and a number say where a row is, `there` which names exist."""
    columns: dict[str, list[str | None]] = {name: [] for name in names}
    found = dict.fromkeys(there)
    number = 0
    for number, row in enumerate(rows, 1):
        if isinstance(row, Mapping) and isinstance(row.get("translation"), Mapping):
            row = row["translation"]
        if not isinstance(row, Mapping):
            raise ValueError(f"{place} {number}: must be an object of named text, but is {row!r:.40}")
        found.update(dict.fromkeys(row))
        for name, column in columns.items():
            value = row.get(name)
            if not isinstance(value, str | None):
                raise ValueError(f"{place} {number}: {name!r} must be text or null, but is {value!r:.40}")
            if value is not None and re.search("[\ud800-\udfff]", value):
                raise ValueError(f"{place} {number}: {name!r} holds half a surrogate pair, which is no character")
            column.append(value)
    if number == 0:
        raise ValueError(f"{place.rpartition(',')[0]} is empty")
    if unknown := [name for name in names if name not in found]:
        has = ", ".join(found)
        raise ValueError(f"unknown source or target {unknown[0]!r}: {place}s 1 to {number} have only {has}")
    return dict(columns)
