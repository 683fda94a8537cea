"""Read the rows of multi-source data from folders and from the Hugging Face Hub.

A split has one column per source and one for the target; row i is line i of every column. Formats of text:
    DATA/<split>.<name>, DATA/<split>.<name>.gz       line-aligned plain text, one file a column
    DATA/<split>.csv, .csv.gz, .tsv, .tsv.gz          a table whose header names the columns
    DATA/<split>.jsonl, DATA/<split>.jsonl.gz         one JSON object a line
    DATA/<split>.parquet                              needs pyarrow
    org/name, org/name:config                         a dataset of the Hugging Face Hub, needs datasets
In the last three formats, a row contains the columns, or one object `translation` with the columns, as in many
translation data sets. For pictures and sound, the column contains paths of files relative to DATA. In Parquet and Hub
datasets, it may also contain the pictures and sound themselves, as bytes or as values of `datasets.Image` and
`datasets.Audio`, which are all kept in memory. Features are stored in separate files, whose row i belongs to line i.
They are read on access (training reads all of them once when it starts) and, except for .npz, not kept in memory:
    DATA/<split>.<name>.npy                           an array (N, S, F), or maps (N, F, H, W); a row of zeros = absent
    DATA/<split>.<name>.npz                           one such array, in memory
    DATA/<split>.<name>/                              a folder of such files, joined in the order of their names
A source is absent in a row if its line or cell is empty or only white space, its value is null or its key is missing.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from hf_multisource import MultiSourceConfig
from hf_multisource.data.files import parse_lines, read_lines
from hf_multisource.data.media import find_features, find_unreadable, read_features
from hf_multisource.data.tables import DELIMITERS, find_delimiter, read_table
from hf_multisource.messages import shown
from hf_multisource.source_kinds import FORMS, is_absent

Row = dict[str, Any]  # column -> text, or a value of another form (see `media`); None = absent
Columns = dict[str, Sequence[Any]]

TABLES = (".jsonl", ".jsonl.gz", *DELIMITERS, ".parquet")
HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(:[\w.-]+)?")
SHOWN = 10  # number of unreadable files that messages list


@dataclass(frozen=True)
class Split:
    """The rows of one split, with the counts of kept and dropped lines.

    Attributes:
        rows: One dict per row with the sources in order, then the target; None = absent.
        kept: Line number of each row in the data, counted from 0. It is 0, 1, 2, … if no row was dropped.
        report: Counts: `lines` read, `rows` kept, `dropped_empty_target`, `dropped_no_source`, and for each column
            `absent.<name>` (kept rows that lack the column) and, if there are any, `unreadable.<name>` files.
    """

    rows: list[Row]
    kept: list[int]
    report: dict[str, int]


def read_split(
    data: str,
    split: str,
    sources: Sequence[str],
    target: str | None,
    *,
    keep_all: bool = False,
    limit: int | None = None,
    forms: Mapping[str, str] | None = None,
    optional: Collection[str] = (),
) -> Split:
    """Read the sources and the target of one split.

    Training needs a target and at least one source. Other rows are dropped and counted; a row that lacks both counts as
    a row without target. Decoding needs a translation for every line, so `keep_all` keeps every row.

    Args:
        data: A folder or the id of a Hub dataset.
        split: Name of the split, such as `train`.
        sources: Names of the sources, in order.
        target: Name of the target, or None to read sources only.
        keep_all: Whether to keep every row, so that `rows[i]` is line i.
        limit: Largest number of lines to read.
        forms: Forms of the sources that are not text, see `media`.
        optional: Names of text sources whose column may be missing in the split. They are absent in every row then.

    Returns:
        The rows, their lines and the counts.

    Raises:
        ValueError: If names or texts are invalid; the message names the file, line or column.
        FileNotFoundError: If the data or the split is not found; the message lists the expected files.
    """
    names = [*sources] if target is None else [*sources, target]
    if not sources:
        raise ValueError("sources is empty: name at least one source")
    if len(set(names)) < len(names):
        raise ValueError(f"sources and target must all differ, but are {', '.join(names)}")
    MultiSourceConfig.check_source_names(sources)
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, but must be at least 1 (or None for all lines)")
    forms = {name: (forms or {}).get(name, "text") for name in names}
    if Path(data).is_dir():
        columns = _read_folder(Path(data), split, forms, optional)
    elif HUB_ID.fullmatch(data):
        columns = _read_hub(data, split, forms, optional)
    else:
        raise FileNotFoundError(f"no folder {data}, and that is no id of a Hub dataset (org/name or org/name:config)")

    if all(name not in columns for name in sources):
        raise ValueError(f"split {split!r} of {data} has no column of the sources {', '.join(sources)}")
    length = len(next(iter(columns.values())))
    columns = {name: columns.get(name, [None] * length) for name in names}
    rows: list[Row] = []
    kept: list[int] = []
    report = dict.fromkeys(("lines", "rows", "dropped_empty_target", "dropped_no_source"), 0)
    for line, values in enumerate(islice(zip(*columns.values(), strict=True), limit)):
        row = {name: None if is_absent(value) else value for name, value in zip(names, values, strict=True)}
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


def take_away(split: Split, lines: Mapping[str, Sequence[int]], sources: Sequence[str]) -> Split:
    """Mark unreadable files as absent, and drop rows without a remaining source.

    Args:
        split: The split.
        lines: Source -> lines (counted from 0, as in `split.kept`) whose file cannot be read.
        sources: All sources.

    Returns:
        The remaining rows. The report counts `unreadable.<name>`.

    Raises:
        ValueError: If no row is left.
    """
    gone = {name: set(numbers) for name, numbers in lines.items()}
    rows = [
        {name: None if line in gone.get(name, ()) else value for name, value in row.items()}
        for line, row in zip(split.kept, split.rows, strict=True)
    ]
    left = [i for i, row in enumerate(rows) if any(row[name] is not None for name in sources)]
    if not left:
        raise ValueError(f"no row is left of {len(rows)}: their only sources cannot be read")
    report = {
        **split.report,
        "rows": len(left),
        "dropped_no_source": split.report["dropped_no_source"] + len(rows) - len(left),
        **{f"absent.{name}": sum(rows[i][name] is None for i in left) for name in rows[0]},
        **{f"unreadable.{name}": len(numbers) for name, numbers in gone.items()},
    }
    return replace(split, rows=[rows[i] for i in left], kept=[split.kept[i] for i in left], report=report)


def describe_unreadable(reasons: Sequence[str], remark: str) -> str:
    """Describe the number of unreadable files, and the reasons for the first files.

    Args:
        reasons: Place and reason of each file.
        remark: Remark on the treatment of the files.

    Returns:
        One line.
    """
    listed = "; ".join(reasons[:SHOWN]) + ("; …" if len(reasons) > SHOWN else "")
    return f"{len(reasons)} files cannot be read ({remark}): {listed}"


def check_files(
    split: Split,
    name: str,
    sources: Sequence[str],
    forms: Mapping[str, str],
    unreadable: str,
    parts: Mapping[str, Any] | None = None,
) -> tuple[Split, dict[str, list[int]]]:
    """Check that every picture and every recording can be read, by reading each of them once.

    Args:
        split: The split.
        name: Name of the split.
        sources: All sources.
        forms: Forms of the sources.
        unreadable: Treatment of unreadable files: "error" or "absent".
        parts: Source -> part of the processor. A recording counts as unreadable if its sampling rate differs from that
            of the feature extractor.

    Returns:
        The split without the unreadable files, and for each source the lines of these files, counted from 0.

    Raises:
        ValueError: If a file cannot be read and `unreadable` is "error"; the message gives lines and reasons.
    """
    found = find_unreadable(split.rows, forms, name, parts)
    reasons = [
        f"{name}, line {split.kept[i] + 1}, {source}: {reason}"
        for source, rows in found.items()
        for i, reason in rows.items()
    ]
    if reasons and unreadable == "error":
        raise ValueError(describe_unreadable(reasons, "unreadable: absent treats them as absent"))
    lines = {source: [split.kept[i] for i in rows] for source, rows in found.items()}
    return (take_away(split, lines, sources) if lines else split), lines


def _read_folder(folder: Path, split: str, forms: Mapping[str, str], optional: Collection[str] = ()) -> Columns:
    """Read a split from a folder, including the features in separate files."""
    features = {
        name: find_features(folder, split, name) for name, form in forms.items() if FORMS[form].column == "arrays"
    }
    others = [name for name in forms if name not in features]
    columns, places = (
        _read_texts(folder, split, {name: forms[name] for name in others}, optional) if others else ({}, {})
    )
    columns |= {name: read_features(path) for name, path in features.items()}
    places |= {name: path.name for name, path in features.items()}
    lengths = {places[name]: len(column) for name, column in columns.items()}
    if empty := [place for place, length in lengths.items() if length == 0]:
        raise ValueError(f"{folder / empty[0]} is empty")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{place} has {length} lines" for place, length in lengths.items())
        short = min(lengths, key=lengths.__getitem__)
        raise ValueError(
            f"files in {folder} differ in length: {listed}; line {lengths[short] + 1} has no partner in {short}"
        )
    return columns


def find_texts(
    folder: Path, split: str, names: Sequence[str], optional: Collection[str] = ()
) -> Path | dict[str, Path]:
    """Find the files with the texts of a split.

    Args:
        folder: The folder of the data.
        split: Name of the split.
        names: Names of the columns.
        optional: Names of the columns that may be missing.

    Returns:
        The file of a table with all columns, or the file of each existing column.

    Raises:
        FileNotFoundError: If there is no such split.
        ValueError: If a column is missing, or the split exists in several formats.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    plain = {name: [path for path in files if path.name.removesuffix(".gz") == f"{split}.{name}"] for name in names}
    tables = [path for path in files if path.name in {split + end for end in TABLES}]
    text = [path for paths in plain.values() for path in paths]
    if len(tables) + bool(text) > 1 or any(len(paths) > 1 for paths in plain.values()):
        twice = ", ".join(path.name for path in text + tables)
        raise ValueError(f"split {split!r} lies in {folder} in more than one form ({twice}): keep one")
    if tables:
        return tables[0]
    missing = [name for name in names if not plain[name] and (name not in optional or not text)]
    if missing:
        stems = [path.name.removesuffix(".gz") for path in files]
        if found := sorted({stem.removeprefix(f"{split}.") for stem in stems if stem.startswith(f"{split}.")}):
            raise ValueError(
                f"unknown source or target {missing[0]!r}: no {split}.{missing[0]}[.gz] in {folder}; "
                f"split {split!r} has {', '.join(found)}"
            )
        ends = (f"{names[0]}[.gz]", "jsonl[.gz]", "csv[.gz]", "tsv[.gz]", "parquet")
        looked = ", ".join(f"{split}.{end}" for end in ends)
        known = {*names, *(end[1:] for end in TABLES)}
        splits = {stem.rpartition(".")[0] for stem in stems if stem.rpartition(".")[2] in known}
        found_splits = ", ".join(sorted(splits)) or "none"
        raise FileNotFoundError(f"no split {split!r} in {folder}: looked for {looked}; splits found: {found_splits}")
    return {name: paths[0] for name, paths in plain.items() if paths}


def _read_texts(
    folder: Path, split: str, forms: Mapping[str, str], optional: Collection[str] = ()
) -> tuple[Columns, dict[str, str]]:
    """Read the texts and paths of a split in a folder; also return the name of the file of each column."""
    found = find_texts(folder, split, list(forms), optional)
    columns: Columns
    if isinstance(found, dict):
        columns = {name: read_lines(path) for name, path in found.items()}
        places = {name: path.name for name, path in found.items()}
    else:
        if find_delimiter(found):
            columns = {**read_table(found, list(forms), optional)}
        elif found.suffix == ".parquet":
            columns = _read_parquet(found, forms, optional)
        else:
            columns = _columns(parse_lines(read_lines(found), found), forms, f"{found}, line", optional=optional)
        places = dict.fromkeys(columns, found.name)
    return _within(folder, columns, forms), places


def _within(folder: Path, columns: Columns, forms: Mapping[str, str]) -> Columns:
    """Join the paths in the columns with the folder."""
    return {
        name: [place_of_file(folder, value) for value in column] if FORMS[forms[name]].column == "files" else column
        for name, column in columns.items()
    }


def place_of_file(folder: Path, value: Any) -> Any:
    """Return the value of a column of pictures or recordings, with the path that it names joined with a folder.

    Args:
        folder: Folder to which the path is relative.
        value: The value: a path, or a dict of `datasets.Image` or `datasets.Audio` with `path` or `bytes`.

    Returns:
        The joined path. An absent value, and a dict with `bytes`, are returned unchanged.
    """
    if isinstance(value, str) and not is_absent(value):
        return str(folder / value)
    if isinstance(value, Mapping) and value.get("bytes") is None and value.get("path"):
        return str(folder / value["path"])
    return value


def _read_parquet(path: Path, forms: Mapping[str, str], optional: Collection[str] = ()) -> Columns:
    """Read the requested columns of a Parquet file."""
    there, rows = stream_parquet(path, list(forms))
    return _columns(rows, forms, f"{path}, row", there, optional)


def stream_parquet(path: Path, names: Sequence[str]) -> tuple[list[str], Iterator[object]]:
    """Read columns of a Parquet file in batches of rows.

    Args:
        path: The file.
        names: The columns to read. Missing columns are skipped.

    Returns:
        The names of all columns of the file, and its rows.

    Raises:
        ImportError: If pyarrow is not installed.
        ValueError: If the file is damaged.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from error
    try:
        table = parquet.ParquetFile(path)
    except ValueError as error:  # pyarrow.ArrowInvalid
        raise ValueError(f"{path}: damaged Parquet file: {error}") from error
    there = table.schema_arrow.names
    batches = table.iter_batches(columns=[name for name in (*names, "translation") if name in there])
    return there, (row for batch in batches for row in batch.to_pylist())


def _read_hub(data: str, split: str, forms: Mapping[str, str], optional: Collection[str] = ()) -> Columns:
    """Read the requested columns of a Hub dataset."""
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
    dataset = dataset.select_columns([name for name in (*forms, "translation") if name in there])
    for name, feature in dataset.features.items():
        if isinstance(feature, datasets.Image | datasets.Audio):  # do not decode: bytes or a path
            dataset = dataset.cast_column(name, replace(feature, decode=False))
    return _columns(dataset, forms, f"{data}, split {split!r}, row", there, optional)


def _columns(
    rows: Iterable[object],
    forms: Mapping[str, str],
    place: str,
    there: Iterable[str] = (),
    optional: Collection[str] = (),
) -> Columns:
    """Convert rows into columns; messages locate a row by `place` and a number; `there` contains existing names."""
    columns: dict[str, list[Any]] = {name: [] for name in forms}
    found = dict.fromkeys(there)
    number = 0
    for number, row in enumerate(rows, 1):
        found.update(dict.fromkeys(values := named_values(row, f"{place} {number}")))
        for name, column in columns.items():
            column.append(parse_cell(values.get(name), forms[name], f"{place} {number}: {name!r}"))
    if number == 0:
        raise ValueError(f"{place.rpartition(',')[0]} is empty")
    if unknown := [name for name in forms if name not in found and name not in optional]:
        has = ", ".join(found)
        raise ValueError(f"unknown source or target {unknown[0]!r}: {place}s 1 to {number} have only {has}")
    return {name: column for name, column in columns.items() if name in found}


def named_values(row: object, place: str) -> Mapping[str, Any]:
    """Return the columns of a row of JSON Lines, Parquet or a Hub dataset.

    Args:
        row: The row, whose columns may also be in the key `translation`.
        place: Name of the row in error messages.

    Returns:
        Name -> value.

    Raises:
        ValueError: If the row is not a mapping.
    """
    if isinstance(row, Mapping) and isinstance(row.get("translation"), Mapping):
        row = row["translation"]
    if not isinstance(row, Mapping):
        raise ValueError(f"{place}: must be an object of named text, but is {shown(row)}")
    return row


def parse_cell(value: Any, form: str, place: str) -> Any:
    """Check a value of a row, and convert it to the form of its source.

    Args:
        value: The value.
        form: A name of `source_kinds.FORMS`.
        place: Name of the value in error messages.

    Returns:
        The value; None if it is absent.

    Raises:
        ValueError: If the type of the value does not fit the form, or a text cannot be encoded in UTF-8.
    """
    kind = FORMS[form]
    if value is not None and not isinstance(value, kind.row_types):
        raise ValueError(f"{place} must be {kind.row_types_named} or null, but is {shown(value)}")
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise ValueError(f"{place} holds half a surrogate pair, which is no character")
    absent = is_absent(value) and not isinstance(value, str)  # an empty text is kept, it may be a target
    return None if absent else kind.parse_row(value, place)
