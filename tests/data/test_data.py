import gzip
import io
import json
import os
import runpy
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_multisource.data import encoding, files, rows
from hf_multisource.data.encoding import encode_rows
from hf_multisource.data.files import read_lines, stream_lines
from hf_multisource.data.rows import Row, read_split
from hf_multisource.json_files import read_json
from hf_multisource.source_kinds import FORMS, SourceKind

# The second row has no English, the third no target, the fourth no source, the fifth white space for German.
COLUMNS = {
    "en": ["A boy plays.", "", "Lost.", "", "The end."],
    "de": ["Ein Junge spielt.", "Zwei Hunde.", "Verloren.", "", " \t "],
    "cs": ["Chlapec si hraje.", "Dva psi.", "", "Nic.", "Konec."],
}
KEPT: list[Row] = [
    {"en": "A boy plays.", "de": "Ein Junge spielt.", "cs": "Chlapec si hraje."},
    {"en": None, "de": "Zwei Hunde.", "cs": "Dva psi."},
    {"en": "The end.", "de": None, "cs": "Konec."},
]


def write(path: Path, content: str | bytes) -> None:
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_plain(folder: Path, columns: Mapping[str, list[str]], end: str = "") -> None:
    for name, lines in columns.items():
        write(folder / f"train.{name}{end}", "".join(f"{line}\n" for line in lines))


def json_rows(columns: Mapping[str, list[str]]) -> list[dict[str, str]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def write_json(path: Path, rows: list[Any]) -> None:
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def lay_plain(folder: Path) -> None:
    write_plain(folder, COLUMNS)


def lay_gzipped(folder: Path) -> None:
    write_plain(folder, COLUMNS, ".gz")


def lay_json(folder: Path) -> None:
    write_json(folder / "train.jsonl", json_rows(COLUMNS))


def lay_gzipped_json(folder: Path) -> None:
    write_json(folder / "train.jsonl.gz", json_rows(COLUMNS))


def lay_nested_json(folder: Path) -> None:
    write_json(folder / "train.jsonl", [{"id": "7", "translation": row} for row in json_rows(COLUMNS)])


def lay_parquet(folder: Path) -> None:
    parquet.write_table(arrow.table({"id": list(range(5)), **COLUMNS}), folder / "train.parquet")


def lay_nested_parquet(folder: Path) -> None:
    parquet.write_table(arrow.table({"translation": json_rows(COLUMNS)}), folder / "train.parquet")


def lay_table(name: str, folder: Path) -> None:
    rows = [["id", *COLUMNS], *zip("12345", *COLUMNS.values(), strict=True)]
    delimiter = "\t" if ".tsv" in name else ","
    write(folder / name, "".join(delimiter.join(f'"{cell}"' for cell in row) + "\n" for row in rows))


LAY_TABLES = [partial(lay_table, f"train.{end}") for end in ("csv", "tsv", "csv.gz", "tsv.gz")]


@pytest.mark.parametrize(
    "lay",
    [
        *(lay_plain, lay_gzipped, lay_json, lay_gzipped_json, lay_nested_json, lay_parquet, lay_nested_parquet),
        *LAY_TABLES,
    ],
)
def test_every_form_gives_the_same_rows_and_counts(lay: Any, tmp_path: Path) -> None:
    lay(tmp_path)
    split = read_split(str(tmp_path), "train", ["en", "de"], "cs")
    assert split.rows == KEPT
    assert split.kept == [0, 1, 4]
    assert split.report == {
        "lines": 5,
        "rows": 3,
        "dropped_empty_target": 1,
        "dropped_no_source": 1,
        "absent.en": 1,
        "absent.de": 1,
        "absent.cs": 0,
    }


def test_keep_all_answers_every_line(tmp_path: Path) -> None:
    lay_plain(tmp_path)
    split = read_split(str(tmp_path), "train", ["en", "de"], "cs", keep_all=True)
    assert [row["cs"] for row in split.rows] == ["Chlapec si hraje.", "Dva psi.", None, "Nic.", "Konec."]
    assert split.kept == [0, 1, 2, 3, 4]
    assert split.rows[3] == {"en": None, "de": None, "cs": "Nic."}
    assert split.report["dropped_empty_target"] == split.report["dropped_no_source"] == 0


def test_sources_come_in_the_order_asked_for_and_the_target_may_be_left_out(tmp_path: Path) -> None:
    lay_plain(tmp_path)
    split = read_split(str(tmp_path), "train", ["de", "en"], None)
    assert [list(row) for row in split.rows] == [["de", "en"]] * 4
    assert split.kept == [0, 1, 2, 4]


def test_limit_looks_at_the_first_lines_only(tmp_path: Path) -> None:
    lay_plain(tmp_path)
    split = read_split(str(tmp_path), "train", ["en", "de"], "cs", limit=3)
    assert split.rows == KEPT[:2]
    assert split.report["lines"] == 3
    with pytest.raises(ValueError, match="limit is 0, but must be at least 1"):
        read_split(str(tmp_path), "train", ["en", "de"], "cs", limit=0)


def test_a_key_that_some_json_rows_lack_is_an_absent_source(tmp_path: Path) -> None:
    write_json(tmp_path / "train.jsonl", [{"en": "One.", "cs": "Jedna."}, {"en": "Two.", "de": None, "cs": "Dvě."}])
    assert [row["de"] for row in read_split(str(tmp_path), "train", ["en", "de"], "cs").rows] == [None, None]


def test_plain_text_json_and_csv_need_neither_datasets_nor_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_gzipped(tmp_path)
    write_json(tmp_path / "dev.jsonl", json_rows(COLUMNS))
    lay_table("test.csv", tmp_path)
    for name in ("datasets", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    read = runpy.run_path(str(Path(rows.__file__)))["read_split"]  # imports anew what the module imports
    assert [len(read(str(tmp_path), split, ["en", "de"], "cs").rows) for split in ("train", "dev", "test")] == [3] * 3
    with pytest.raises(ImportError, match="no folder org/name; reading a Hub dataset needs datasets: pip install"):
        read("org/name", "train", ["en", "de"], "cs")


@pytest.mark.parametrize("name", ["en-US", "1st", "decoder_en", "labels", ""])
def test_a_name_that_no_source_can_have_is_refused_with_the_rule(name: str, tmp_path: Path) -> None:
    (tmp_path / f"train.{name}").write_text("a\n")
    (tmp_path / "train.cs").write_text("b\n")
    with pytest.raises(ValueError, match=f"^source name '{name}' (must be an identifier|is reserved; names must not)"):
        read_split(str(tmp_path), "train", [name], "cs")


@pytest.mark.parametrize("nested", [False, True])
def test_a_hub_dataset_is_asked_for_with_its_configuration(nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, str]] = []

    def load_dataset(path: str, name: str | None, split: str) -> datasets.Dataset:
        asked.append((path, name, split))
        return datasets.Dataset.from_dict(
            {"translation": json_rows(COLUMNS)} if nested else {"id": [*"abcde"], **COLUMNS}
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_split("org/name", "train", ["en", "de"], "cs").rows == KEPT
    assert read_split("org/name:en-cs", "dev", ["en", "de"], "cs").rows == KEPT
    assert asked == [("org/name", None, "train"), ("org/name", "en-cs", "dev")]
    with pytest.raises(
        ValueError, match=r"unknown source or target 'fi': org/name, split 'train', rows 1 to 5 have only"
    ):
        read_split("org/name", "train", ["fi"], "cs")


def test_data_that_is_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder org/none, and no such Hub dataset \(split 'train'\): "):
        read_split("org/none", "train", ["en"], "cs")
    with pytest.raises(FileNotFoundError, match=r"no folder .*/nowhere, and that is no id of a Hub dataset"):
        read_split(f"{tmp_path}/nowhere", "train", ["en"], "cs")


def test_a_missing_split_names_what_was_looked_for_and_the_splits_there(tmp_path: Path) -> None:
    for name in ("dev.en", "test_2016.cs.gz", "val.jsonl", "all.tsv.gz", "README.md"):
        write(tmp_path / name, "text\n")
    looked = (
        r"looked for train\.en\[\.gz\], train\.jsonl\[\.gz\], train\.csv\[\.gz\], train\.tsv\[\.gz\], train\.parquet"
    )
    with pytest.raises(
        FileNotFoundError, match=rf"no split 'train' in .*: {looked}; splits found: all, dev, test_2016, val$"
    ):
        read_split(str(tmp_path), "train", ["en"], "cs")


@pytest.mark.parametrize(("sources", "target", "culprit"), [(["en", "fi"], "cs", "fi"), (["en"], "sk", "sk")])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(
    sources: list[str], target: str, culprit: str, tmp_path: Path
) -> None:
    (tmp_path / "json").mkdir()
    lay_gzipped(tmp_path)
    lay_json(tmp_path / "json")
    message = rf"unknown source or target '{culprit}': no train\.{culprit}\[\.gz\] in .*; split 'train' has cs, de, en$"
    with pytest.raises(ValueError, match=message):
        read_split(str(tmp_path), "train", sources, target)
    message = rf"unknown source or target '{culprit}': .*train\.jsonl, lines 1 to 5 have only en, de, cs$"
    with pytest.raises(ValueError, match=message):
        read_split(str(tmp_path / "json"), "train", sources, target)


def test_names_must_be_given_and_differ(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sources is empty: name at least one source"):
        read_split(str(tmp_path), "train", [], "cs")
    with pytest.raises(ValueError, match="sources and target must all differ, but are en, cs, cs"):
        read_split(str(tmp_path), "train", ["en", "cs"], "cs")


@pytest.mark.parametrize("other", ["train.en.gz", "train.jsonl", "train.csv", "train.tsv.gz", "train.parquet"])
def test_a_split_in_two_forms_is_an_error(other: str, tmp_path: Path) -> None:
    lay_plain(tmp_path)
    write(tmp_path / other, "text\n")
    with pytest.raises(ValueError, match=rf"split 'train' lies in .* in more than one form \(.*{other}.*\): keep one"):
        read_split(str(tmp_path), "train", ["en", "de"], "cs")


def test_files_of_different_length_are_named_with_the_first_lonely_line(tmp_path: Path) -> None:
    write_plain(tmp_path, {**COLUMNS, "de": COLUMNS["de"][:3]})
    lengths = r"train\.en has 5 lines, train\.de has 3 lines, train\.cs has 5 lines"
    with pytest.raises(ValueError, match=rf"{lengths}; line 4 has no partner in train\.de"):
        read_split(str(tmp_path), "train", ["en", "de"], "cs")


@pytest.mark.parametrize("name", ["train.de", "train.de.gz", "train.jsonl", "train.csv"])
def test_an_empty_file_is_an_error(name: str, tmp_path: Path) -> None:
    if name not in ("train.jsonl", "train.csv"):
        write_plain(tmp_path, {key: COLUMNS[key] for key in ("en", "cs")})
    write(tmp_path / name, "")
    with pytest.raises(ValueError, match=rf"{name} is empty"):
        read_split(str(tmp_path), "train", ["en", "de"], "cs")


def test_a_split_of_which_nothing_is_left_is_an_error(tmp_path: Path) -> None:
    write_plain(tmp_path, {"en": ["", "", "One."], "cs": ["Jedna.", "Dvě.", ""]})
    message = r"no row is left of 3; 1 have no target \(cs\), 2 no source \(en\)"
    with pytest.raises(ValueError, match=message):
        read_split(str(tmp_path), "train", ["en"], "cs")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"one\ntw\xff\n", r"line 2: not UTF-8: byte 3 of the line is 0xff \(invalid start byte\)"),
        (b"\xe4\n", r"line 1: not UTF-8: byte 1 of the line is 0xe4 "),
        ("žluťoučký\nkůň".encode()[:-1], r"line 2: not UTF-8: byte 4 of the line is 0xc5 \(unexpected end of data\)"),
        ("one\n".encode("utf-16"), r"line 1: not UTF-8: byte 1 of the line is 0xff"),
    ],
)
@pytest.mark.parametrize("name", ["train.en", "train.en.gz"])
def test_invalid_utf8_is_placed_by_file_line_and_byte(name: str, content: bytes, place: str, tmp_path: Path) -> None:
    write(tmp_path / name, content)
    with pytest.raises(ValueError, match=rf"{name}, {place}"):
        read_split(str(tmp_path), "train", ["en"], None)


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"no gzip", lambda b: b[:12] + b"\xff" * 8 + b[20:]])
def test_a_damaged_gzip_file_is_named(damage: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.en.gz"
    path.write_bytes(damage(gzip.compress(b"A long enough line of text.\n" * 9)))
    with pytest.raises(ValueError, match=r"train\.en\.gz: damaged gzip file: "):
        read_lines(path)


def test_gzip_data_may_not_grow_out_of_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.en.gz"
    path.write_bytes(gzip.compress(b"\n" * 2**21))
    assert len(read_lines(path)) == 2**21, "small files may hold anything"
    monkeypatch.setattr(files, "EXPANDED_FREELY", 2**20)
    message = r"train\.en\.gz has 2,\d+ bytes and would grow to 2,097,152 or more; at most 1,048,576, or 50 times"
    with pytest.raises(ValueError, match=message):
        read_lines(path)


def test_a_line_may_not_be_endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = files.MAX_LINE
    assert longest == 2**26
    with (tmp_path / "text").open("wb") as file:
        file.write(b"one\n")
        file.truncate(2**40)  # zeros, which take no room on the disk
    with pytest.raises(ValueError, match="text, line 2: longer than 67,108,864 bytes"):
        read_lines(tmp_path / "text")
    with Path("/dev/zero").open() as zeros, pytest.raises(ValueError, match="standard input, line 1: longer than"):
        monkeypatch.setattr(sys, "stdin", zeros)
        read_lines("-")
    monkeypatch.setattr(files, "MAX_LINE", 5)
    monkeypatch.setattr(files, "CHUNK", 3)
    write(tmp_path / "text", "12345\n\n12345")
    assert read_lines(tmp_path / "text") == ["12345", "", "12345"]
    for text in ("123456", "12\n123456\n", "12\n3\n123456"):
        write(tmp_path / "text", text)
        with pytest.raises(ValueError, match=f"line {text.count(chr(10), 0, -1) + 1}: longer than 5 bytes"):
            read_lines(tmp_path / "text")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_read_and_none_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_lines, read_json):
        for path in (tmp_path / "pipe", Path("/dev/zero")):
            with pytest.raises(OSError, match=f"{path} is not a regular file"):
                read(path)


DEEP = "[" * 100_000
DIGITS = "1" * 10_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (DEEP, "holds no valid JSON: nested too deeply"),
        (f'{{"a": {DIGITS}}}', r"holds no valid JSON: .*4300"),
        (f"{'[' * 900}{']' * 900}", "must hold a JSON object, but holds"),
        ('{\n"a": }', "holds no valid JSON: Expecting value at line 2, character 6"),
    ],
)
def test_json_that_python_cannot_hold_is_an_error_of_one_line(content: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "config.json", content)
    with pytest.raises(ValueError, match=rf"config\.json {message}"):
        read_json(tmp_path / "config.json")


def test_the_size_of_a_json_file_is_limited(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"a\.json has 1,099,511,627,776 bytes; at most 268,435,456 are read"):
        read_json(tmp_path / "a.json")


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", "this is no table")
    with pytest.raises(ValueError, match=r"train\.parquet: damaged Parquet file: "):
        read_split(str(tmp_path), "train", ["en"], None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"en": "Two."', r"line 2: not JSON: .* at character 14"),
        ("", r"line 2: not JSON: .* at character 1"),
        ('["Two."]', r"line 2: must be an object of named text, but is \['Two\.'\]"),
        ('{"en": ["Two."]}', r"line 2: 'en' must be text or null, but is \['Two\.'\]"),
        ('{"en": 2}', r"line 2: 'en' must be text or null, but is 2"),
        ('{"translation": {"en": false}}', r"line 2: 'en' must be text or null, but is False"),
        ('{"en": "\\ud83d"}', r"line 2: 'en' holds half a surrogate pair"),
        (DEEP, "line 2: not JSON: nested too deeply"),
        ("[" * 900 + "]" * 900, "line 2: must be an object of named text, but is"),
        (f'{{"en": {"[" * 900}{"]" * 900}}}', "line 2: 'en' must be text or null, but is"),
        (f'{{"en": {DIGITS}}}', "line 2: not JSON: .*4300"),
    ],
)
def test_a_bad_json_line_is_placed_by_file_and_number(line: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", f'{{"en": "One."}}\n{line}\n{{"en": "Three."}}\n')
    with pytest.raises(ValueError, match=rf"train\.jsonl, {message}"):
        read_split(str(tmp_path), "train", ["en"], None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[[1, 2], [3]]", "must be lists of numbers of one length, but is"),
        ('[["a"]]', "must be lists of numbers of one length, but is"),
        (f"[[{'9' * 400}]]", "must be lists of numbers of one length, but is"),
        ("[" * 90 + "1" + "]" * 90, "must be lists of numbers of one length, but is"),
        ("[1, 2]", r"must be \(S, F\) or a map \(F, H, W\), but has the shape \(2,\)"),
        ("[[], []]", r"must be \(S, F\) or a map \(F, H, W\), but has the shape \(2, 0\)"),
        ("[[1, NaN]]", "holds a number that is not finite, or too large for single precision"),
        ("[[1, -Infinity]]", "holds a number that is not finite, or too large for single precision"),
        ("[[1, 1e300]]", "holds a number that is not finite, or too large for single precision"),
    ],
)
def test_bad_features_in_a_table_are_placed_by_number(value: str, message: str) -> None:
    given = [{"a": [[1]]}, {"a": []}, {"a": json.loads(value)}]
    with warnings.catch_warnings(), pytest.raises(ValueError, match=f"^org/name, row 3: 'a' {message}"):
        warnings.simplefilter("error")
        rows._columns(given, {"a": "features"}, "org/name, row")
    column = rows._columns(given[:2], {"a": "features"}, "org/name, row")["a"]
    assert column[0].tolist() == [[1]] and column[1] is None, "an array of no rows is absent"


@pytest.mark.parametrize("value", ['{"path": 3}', '{"bytes": "a"}', '{"bytes": {"bytes": null}}'])
def test_a_dict_that_holds_no_file_is_placed_by_file_and_number(value: str, tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", f'{{"a": {value}}}\n')
    for form in ("picture", "sound"):
        with pytest.raises(ValueError, match=r"train\.jsonl, line 1: 'a' must have bytes or a path, but is"):
            read_split(str(tmp_path), "train", ["a"], None, forms={"a": form})


def test_a_parquet_column_of_numbers_is_an_error(tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"en": [1, 2]}), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train\.parquet, row 1: 'en' must be text or null, but is 1"):
        read_split(str(tmp_path), "train", ["en"], None)


@given(lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"))), data=st.data())
def test_lines_end_at_newlines_and_nowhere_else(
    lines: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    start, end = data.draw(st.sampled_from(["", "\ufeff"])), data.draw(st.sampled_from(["\n", "\r\n"]))
    path = tmp_path_factory.mktemp("lines") / data.draw(st.sampled_from(["text", "text.gz"]))
    write(path, start + "".join(line + end for line in lines))
    assert read_lines(path) == lines


def test_separators_inside_a_line_and_a_missing_last_newline_are_kept_apart(tmp_path: Path) -> None:
    write(tmp_path / "text", "a\u2028b\x85c\x0cd\re\n\nlast")
    assert read_lines(tmp_path / "text") == ["a\u2028b\x85c\x0cd\re", "", "last"]


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Můj\n\nkůň\n".encode())))
    assert read_lines("-") == ["Můj", "", "kůň"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff\n")))
    with pytest.raises(ValueError, match=r"standard input, line 2: not UTF-8: byte 1"):
        read_lines("-")


class LetterProcessor:
    """Gives every letter its code as id, then 1 as the end of the sentence; an absent source is None."""

    source_names = ("en", "de")

    def __init__(self) -> None:
        self.calls: list[int] = []

    def main_input(self, name: str) -> str:
        return "input_ids"

    def kind_of(self, name: str) -> SourceKind:
        return FORMS["text"]

    def tokenizer(self, text_target: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[*map(ord, text), 1] for text in text_target]}

    def __call__(self, **text: Any) -> dict[str, list[Any]]:
        self.calls.append(len(text["en"]))
        ids = {name: [[*map(ord, value), 1] if value else None for value in text[name]] for name in self.source_names}
        masks = {name: [row and [1] * len(row) for row in values] for name, values in ids.items()}
        return {
            "input_ids": ids["en"],
            "attention_mask": masks["en"],
            "de_input_ids": ids["de"],
            "de_attention_mask": masks["de"],
        }


def test_long_sequences_are_cut_before_their_end_and_counted_by_name() -> None:
    rows: list[Row] = [{"en": "abcd", "de": None, "cs": "xyz"}, {"en": "abc", "de": "abcdefgh", "cs": "x"}]
    examples, report = encode_rows(LetterProcessor(), rows, "cs", 4)
    a, b, c, x, y, z = map(ord, "abcxyz")
    assert examples == [
        {
            "input_ids": [a, b, c, 1],
            "attention_mask": [1, 1, 1, 1],
            "de_input_ids": None,
            "de_attention_mask": None,
            "labels": [x, y, z, 1],
        },
        {
            "input_ids": [a, b, c, 1],
            "attention_mask": [1, 1, 1, 1],
            "de_input_ids": [a, b, c, 1],
            "de_attention_mask": [1, 1, 1, 1],
            "labels": [x, 1],
        },
    ]
    assert report == {"truncated.en": 1, "truncated.de": 1, "truncated.cs": 0}


def test_encoding_in_parts_keeps_the_order_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "ROWS_PER_CALL", 2)
    processor = LetterProcessor()
    rows: list[Row] = [{"en": letter, "cs": letter} for letter in "abcde"]
    examples, _ = encode_rows(processor, rows, "cs", 4)
    assert [example["input_ids"] for example in examples] == [[ord(letter), 1] for letter in "abcde"]
    assert processor.calls == [2, 2, 1]


def test_a_max_length_without_room_for_a_token_is_an_error() -> None:
    with pytest.raises(ValueError, match="max_length is 1, but must be at least 2"):
        encode_rows(LetterProcessor(), [], "cs", 1)


@given(
    lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r")), max_size=6),
    end=st.sampled_from(["\n", "\r\n"]),
    ended=st.booleans(),
    chunk=st.integers(1, 7),
)
def test_streamed_lines_are_those_that_are_read_at_once(
    lines: list[str], end: str, ended: bool, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.gz"
    path.write_bytes(gzip.compress((end.join(lines) + end * ended).encode()))
    with mock.patch.object(files, "CHUNK", chunk):
        assert list(stream_lines(path)) == read_lines(path)


@pytest.mark.parametrize(
    "content", [b"one\ntw\xffo\n", b"one\n" + b"x" * 40, gzip.compress(b"one\n" * 9, mtime=0)[:-12]]
)
def test_streamed_lines_are_refused_in_the_words_of_those_that_are_read_at_once(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 30)
    monkeypatch.setattr(files, "CHUNK", 8)
    path = tmp_path / ("x.gz" if content.startswith(b"\x1f") else "x")
    path.write_bytes(content)
    messages = []
    for read in (read_lines, stream_lines):
        with pytest.raises(ValueError) as error:
            list(read(path))
        messages.append(str(error.value))
    assert messages[0] == messages[1]
