"""Tables with delimiters: what a cell may hold, and what is refused, by file and line."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_multisource.data import files
from hf_multisource.data.rows import read_split
from hf_multisource.data.tables import read_table

HARD = [
    *("two\nlines", "two\r\nlines", 'say "hello"', '"', '""', "a,b\tc", " blanks ", "'", "\\", "žluťoučký kůň"),
    *("\u2028", "\x85 \x0b \x0c \x1c", "", "NaN", "null", "-1.50", "😀", "\ufeffmark", "\r", "a\rb", "\n", "-"),
]


def write(path: Path, content: str | bytes) -> Path:
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def save(path: Path, columns: dict[str, list[str]], end: str = "\r\n") -> Path:
    """Write a table with Python's own writer, which decides what needs quotes."""
    plain = path.with_name("plain")
    with plain.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if ".tsv" in path.name else ",", lineterminator=end)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return write(path, plain.read_bytes())


@pytest.mark.parametrize("name", ["train.csv", "train.tsv", "train.csv.gz", "train.tsv.gz"])
def test_hard_cells_come_back_as_they_were_written(name: str, tmp_path: Path) -> None:
    columns = {"en": HARD, "unused": HARD[1:] + HARD[:1], "de": HARD[::-1]}
    path = save(tmp_path / name, columns)
    assert read_table(path, ["de", "en"]) == {"de": HARD[::-1], "en": HARD}
    split = read_split(str(tmp_path), "train", ["de", "en"], None, keep_all=True)
    assert [row["en"] for row in split.rows] == [text if text.strip() else None for text in HARD]


@given(
    columns=st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8), max_size=4),
            min_size=width,
            max_size=width,
        )
    ),
    tabs=st.booleans(),
)
def test_every_table_comes_back(columns: list[list[str]], tabs: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    length = min(map(len, columns))
    table = {f"c{i}": column[:length] for i, column in enumerate(columns)}
    path = save(tmp_path_factory.mktemp("table") / f"x.{'tsv' if tabs else 'csv'}", table)
    assert read_table(path, list(table)) == table


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_both_line_ends_and_a_byte_order_mark_are_no_part_of_the_table(end: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", end.join(["\ufeffen,de", 'a,"b', 'c"', "d,"]))
    assert read_table(path, ["en", "de"]) == {"en": ["a", "d"], "de": [f"b{end}c", ""]}


def test_an_empty_line_is_an_empty_cell_where_there_is_one_column(tmp_path: Path) -> None:
    assert read_table(write(tmp_path / "x.csv", "en\na\n\nb\n"), ["en"]) == {"en": ["a", "", "b"]}


def test_a_table_without_rows_has_empty_columns(tmp_path: Path) -> None:
    assert read_table(write(tmp_path / "x.csv", "en,de\n"), ["de"]) == {"de": []}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "x.csv is empty"),
        ("en,cs\na,b\n", "x.csv, line 1: no column 'de'; its columns are en, cs"),
        ("en;de\na;b\n", "x.csv, line 1: no column 'en'; its columns are en;de"),
        ("en,de,en\na,b,c\n", "x.csv, line 1: column 'en' stands there 2 times; its columns are en, de, en"),
        ('en,de\na,"b\n\nc"\nd\n', "x.csv, line 5: a row of 1 cells; the header has 2 (en, de)"),
        ("en,de\na,b\n\n", "x.csv, line 3: a row of 1 cells; the header has 2"),
        ("en,de\na,b,c\n", "x.csv, line 2: a row of 3 cells; the header has 2"),
        ('en,de\na,b\nc,"d\ne\n', "x.csv, line 3: not CSV: unexpected end of data"),
        ('en,de\na,"b"c\n', "x.csv, line 2: not CSV: ',' expected after '\"'"),
        ("en,de\na,b\rc,d\n", "x.csv, line 2: not CSV: new-line character seen in unquoted field"),
        ("en,de\ra,b\r", "x.csv, line 1: not CSV: new-line character seen in unquoted field"),
        (b"en,de\na,b\nc,\xff\n", "x.csv, line 3: not UTF-8: byte 3 of the line is 0xff (invalid start byte)"),
        ("en,de\na,b\nc," + "d" * 200_000, "x.csv, line 3: not CSV: field larger than field limit (131072)"),
        ('en,de\na,"' + "d\n" * 100_000, "x.csv, line 2: not CSV: field larger than field limit (131072)"),
    ],
)
def test_a_bad_table_is_refused_by_file_and_line(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", content)
    with pytest.raises(ValueError) as error:
        read_table(path, ["en", "de"])
    assert str(error.value).startswith(f"{tmp_path}/{message}")
    assert "\n" not in str(error.value)
    compressed = write(tmp_path / "x.csv.gz", content)
    with pytest.raises(ValueError, match=r"x\.csv\.gz"):
        read_table(compressed, ["en", "de"])


def test_the_bounds_of_text_files_hold_for_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "EXPANDED_FREELY", 2**10)
    path = write(tmp_path / "x.csv.gz", "en\n" + "\n" * 2**20)
    with pytest.raises(ValueError, match=r"x\.csv\.gz has \d,\d+ bytes and would grow to"):
        read_table(path, ["en"])
    path.write_bytes(gzip.compress(b"en\na\n")[:-9])
    with pytest.raises(ValueError, match=r"x\.csv\.gz: damaged gzip file"):
        read_table(path, ["en"])
    monkeypatch.setattr(files, "MAX_LINE", 5)
    monkeypatch.setattr(files, "CHUNK", 3)
    with pytest.raises(ValueError, match=r"x\.csv, line 2: longer than 5 bytes"):
        read_table(write(tmp_path / "x.csv", "en\n123456\n"), ["en"])
