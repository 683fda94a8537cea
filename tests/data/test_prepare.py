"""Rules that prepare parallel text: what each changes or drops, in which order, and what is written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_multisource.cli.app import main
from hf_multisource.data.normalization import compose, plain_punctuation, remove_controls
from hf_multisource.data.overlap import Overlap
from hf_multisource.data.prepare import prepare_corpus
from hf_multisource.data.rules import Rules, apply_rules
from runs import files_of, write_lines

LANGUAGES = ["kk", "en"]
ROWS = [["бір екі үш", "one two three"], ["төрт", "four"], ["", "only English"], ["тек қазақша", ""]]


def folder_of(place: Path, rows: Sequence[Sequence[str]], split: str = "train") -> Path:
    place.mkdir(exist_ok=True)
    for i, language in enumerate(LANGUAGES):
        write_lines(place / f"{split}.{language}", [row[i] for row in rows])
    return place


def kept(rows: Sequence[Sequence[str | None]], overlaps: dict[str, Overlap] | None = None, **settings: Any) -> Any:
    """The numbers of the rows that some settings keep, and the counts of the rules that did anything."""
    texts = [dict(zip(LANGUAGES, row, strict=True)) for row in rows]
    left, counts = apply_rules(texts, Rules(**settings), overlaps or {})
    # Rows that are kept come in order; a text that is changed keeps its digits.
    numbers = [row["en"] or row["kk"] for row in left]
    return numbers, {name: dict(found) for name, found in counts.rules.items() if found["rows"]}


def test_text_is_composed() -> None:
    assert compose("и\u0306") == "й"
    assert kept([["и\u0306", "a"]])[1] == {"nfc": {"rows": 1, "kk": 1}}


def test_control_characters_go_and_white_space_becomes_single_blanks() -> None:
    assert remove_controls(" a\tb\u00a0\u2009c\x07\u200b\u00ad\u202ed\ufeff ") == "a b cd"
    assert remove_controls("می\u200cخواهم") == "می\u200cخواهم"


def test_punctuation_becomes_that_of_ascii() -> None:
    assert plain_punctuation("«Да» – “yes”, ‘it’s’… −1") == '"Да" - "yes", \'it\'s\'... -1'
    assert kept([["«а»", "“a”"]], keep_punctuation=True) == (["“a”"], {})


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_normalizing_twice_is_normalizing_once(text: str) -> None:
    def normalize(text: str) -> str:
        return plain_punctuation(compose(remove_controls(text)))

    assert normalize(normalize(text)) == normalize(text)


def test_a_text_of_which_nothing_is_left_is_absent_and_a_row_without_text_is_dropped() -> None:
    assert kept([["\u200b", "a"], ["\u200b", " "]]) == (
        ["a"],
        {"controls": {"rows": 2, "kk": 2, "en": 1}, "required": {"rows": 1, "no text": 1}},
    )


def test_absent_texts_pass_every_rule_unless_their_language_is_required() -> None:
    strict: dict[str, Any] = {"min_words": 2, "max_words": 3, "max_ratio": 1, "scripts": {"kk": "Cyrillic"}}
    assert kept(ROWS, **strict) == (
        ["one two three", "only English", "тек қазақша"],
        {"length": {"rows": 1, "kk": 1, "en": 1}},
    )
    assert kept(ROWS, require=["en"])[1] == {"required": {"rows": 1, "en": 1}}


def test_rows_are_dropped_by_length_and_ratio() -> None:
    rows = [["а б", "1 2 3 4"], ["а б", "1 2 3 4 5"], ["а б в г д", "1 2"], ["а б в г д е", "1 2 3 4 5 6"]]
    assert kept(rows, max_ratio=2, max_words=5) == (
        ["1 2 3 4"],
        {"length": {"rows": 1, "kk": 1, "en": 1}, "ratio": {"rows": 2, "en/kk": 1, "kk/en": 1}},
    )


def test_rows_are_dropped_by_the_share_of_letters_of_a_script() -> None:
    rows = [["ә a", "one"], ["ә ab", "two"], ["12 %", "12 %"], ["үш", "үш"]]
    assert kept(rows, scripts={"kk": "Cyrillic", "en": "Latin"}) == (
        ["one", "12 %"],
        {"script": {"rows": 2, "kk": 1, "en": 1}},
    )
    assert kept(rows, scripts={"kk": "Cyrillic"}, min_script=0.3)[0] == ["one", "two", "12 %", "үш"]


def test_rows_are_dropped_whose_texts_have_different_placeholders() -> None:
    rows: list[list[str | None]] = [
        ["%S үш", "1 %S"],
        ["%d бір", "2"],
        [None, "3 <b>x</b>"],
        ["а &amp; б", "4"],
        ["{0}", "5 {0} %S"],
    ]
    assert kept(rows) == (["1 %S", "2", "3 <b>x</b>", "4", "5 {0} %S"], {})
    assert kept(rows, placeholders="any") == (["1 %S", "3 <b>x</b>", "4"], {"placeholders": {"rows": 2, "en": 2}})
    assert kept(rows, placeholders="fluent")[0] == ["1 %S", "2", "3 <b>x</b>", "4", "5 {0} %S"]


def test_the_first_of_alike_rows_stays() -> None:
    rows: list[list[str | None]] = [["а", "x"], ["а", "x"], ["а", "y"], [None, "x"], [None, "z"]]
    assert kept(rows)[0] == ["x", "y", "x", "z"]
    assert kept(rows, duplicates="kk")[0] == ["x", "x", "z"]
    assert kept(rows, duplicates="none")[0] == ["x", "x", "y", "x", "z"]


def test_texts_that_share_words_in_a_row_with_held_out_texts_are_dropped_and_short_ones_are_compared_whole() -> None:
    overlaps = {"en": Overlap(["a b c d", "e f"], 3)}
    rows = [["", "x b c d y"], ["", "b c x d"], ["", "e f"], ["", "e f g"], ["a b c d", "f e"]]
    assert kept(rows, overlaps, ngram=3) == (
        ["b c x d", "e f g", "f e"],
        {"held_out": {"rows": 2, "en 3 words": 1, "en whole": 1}},
    )


def test_texts_are_compared_in_plain_punctuation_and_written_as_they_are() -> None:
    overlaps = {"en": Overlap(["a \u201cb\u201d c d", "e\u2026"], 3)}
    rows = [["", 'a "b" c x'], ["", "e..."], ["", "\u00aba\u00bb x"]]
    assert kept(rows, overlaps, ngram=3, keep_punctuation=True) == (
        ["\u00aba\u00bb x"],
        {"held_out": {"rows": 2, "en 3 words": 1, "en whole": 1}},
    )


@given(
    st.lists(st.lists(st.sampled_from("abc"), max_size=6), max_size=4),
    st.lists(st.sampled_from("abc"), max_size=6),
    st.integers(1, 4),
)
def test_overlaps_are_those_of_a_plain_search(held_out: list[list[str]], words: list[str], n: int) -> None:
    def places(text: list[str]) -> list[list[str]]:
        return [text] if len(text) < n else [text[i : i + n] for i in range(len(text) - n + 1)]

    expected = any(part in places(text) for text in held_out for part in places(words))
    assert (Overlap(map(" ".join, held_out), n).find(" ".join(words)) is not None) == expected


def test_the_command_writes_aligned_files_and_the_counts_that_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = folder_of(tmp_path / "corpus", [*ROWS, ["«үш»  төрт бес", "new"], ["тест", "a b c test"], ROWS[0]])
    folder_of(corpus, [["", "“a” b c"]], "test")
    far = tmp_path / "far"
    far.mkdir()
    (far / "news.en.gz").write_bytes(gzip.compress(b"four\n"))  # a set that lacks Kazakh
    out = tmp_path / "new" / "clean"
    places = [f"{corpus}:test", f"{far}:news"]
    settings = ["--ngram", "3", "--max-words", "4", "--scripts", "kk=Cyrillic", "en=Latin", "--held_out", *places]
    main(["prepare", str(corpus), "--languages", *LANGUAGES, "--out", str(out), *settings])
    printed = capsys.readouterr().out.splitlines()
    assert printed[:-1] == [
        "read: 7 rows",
        "controls: 1 rows changed (kk 1)",
        "nfc: 0 rows changed",
        "punctuation: 1 rows changed (kk 1)",
        "required: 0 rows dropped",
        "length: 0 rows dropped",
        "script: 0 rows dropped",
        "duplicates: 1 rows dropped (all languages 1)",
        "held_out: 1 rows dropped (en whole 1)",
        "kept: 5 rows",
    ]
    assert "rows/s" in printed[-1]
    assert (out / "train.kk").read_text("utf-8").splitlines() == [
        "бір екі үш",
        "",
        "тек қазақша",
        '"үш" төрт бес',
        "тест",
    ]
    assert (out / "train.en").read_text("utf-8").split("\n") == [
        "one two three",
        "only English",
        "",
        "new",
        "a b c test",
        "",
    ]
    counts = json.loads((out / "counts.json").read_text("utf-8"))
    assert (counts["read"], counts["kept"], counts["ngram"], counts["held_out"]) == (7, 5, 3, places)
    assert counts["rules"]["held_out"] == {"rows": 1, "en whole": 1}
    assert sorted(path.name for path in out.parent.iterdir()) == ["clean"]
    again = tmp_path / "again"
    again.mkdir()
    rules = Rules(ngram=3, max_words=4, scripts={"kk": "Cyrillic", "en": "Latin"})
    prepare_corpus(str(corpus), again, LANGUAGES, rules, held_out=places)
    assert files_of(again) == files_of(out)


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv.gz", "parquet"])
def test_every_form_of_data_gives_the_same(form: str, tmp_path: Path) -> None:
    plain, other = folder_of(tmp_path / "plain", ROWS), tmp_path / "other"
    other.mkdir()
    if form == "jsonl":
        lines = [json.dumps(dict(zip(LANGUAGES, row, strict=True))) for row in ROWS]
        write_lines(other / "train.jsonl", lines)
    elif form == "parquet":
        from datasets import Dataset

        Dataset.from_list([dict(zip(LANGUAGES, row, strict=True)) for row in ROWS]).to_parquet(other / "train.parquet")
    else:
        delimiter = "\t" if form.startswith("tsv") else ","
        content = "".join(delimiter.join(row) + "\n" for row in [LANGUAGES, *ROWS]).encode()
        (other / f"train.{form}").write_bytes(gzip.compress(content) if form.endswith(".gz") else content)
    for data in (plain, other):
        prepare_corpus(str(data), tmp_path / f"{data.name}-out", LANGUAGES, Rules())
    read = [files_of(tmp_path / f"{data.name}-out") for data in (plain, other)]
    assert [read[0][name] for name in ("train.kk", "train.en")] == [read[1][name] for name in ("train.kk", "train.en")]


def test_line_ends_in_a_cell_become_blanks(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/train.csv").write_text('kk,en\n"\na \n\n b\r\n"," c "\n', "utf-8", newline="")
    prepare_corpus(str(tmp_path / "in"), tmp_path / "out", ["kk", "en"], Rules())
    assert (tmp_path / "out/train.kk").read_bytes() == b"a b\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--languages", "kk", "xx"], "unknown source or target 'xx': no train.xx[.gz] in"),
        (["--languages", "kk", "kk"], "languages is kk, kk; name one or more, each once"),
        (["--split", "dev"], "no split 'dev' in"),
        (["--held_out", "CORPUS:train"], "CORPUS:train is the corpus itself"),
        (["--held_out", "CORPUS/../CORPUS:train"], "is the corpus itself"),
        (["--held_out", "CORPUS"], "'CORPUS' must be FOLDER:SPLIT"),
        (["--held_out", "missing:test"], "no folder missing"),
        (["--held_out", "EMPTY:test"], "EMPTY:test has no text in kk, en"),
        (["--scripts", "kk"], "--scripts kk: write LANGUAGE=SCRIPT"),
        (["--scripts", "de=Latin"], "scripts: unknown language 'de'; the languages are kk, en"),
        (["--scripts", "kk=Kazakh"], "scripts: unknown script 'Kazakh'"),
        (["--require", "de"], "require: unknown language 'de'; the languages are kk, en"),
        (["--duplicates", "all"], "duplicates is 'all'; allowed are row, none, kk, en"),
        (["--min_words", "0"], "min_words is 0; it must be at least 1"),
        (["--min_words", "3", "--max_words", "2"], "max_words is 2; it must be at least 3"),
        (["--max_ratio", "0.5"], "max_ratio is 0.5; it must be at least 1"),
        (["--placeholders", "po"], "placeholders is 'po'; allowed are html, "),
        (["--min_script", "2"], "min_script is 2.0; it must be a share from 0 to 1"),
        (["--ngram", "0"], "ngram is 0; it must be at least 1"),
        (["--min_words", "9"], "no row of split 'train' of CORPUS is left: read: 4 rows"),
        (["--split", "bad"], "bad.kk has 3 lines, bad.en has 5 lines; line 4 has no partner in bad.kk"),
        (["--out", "CORPUS"], "CORPUS is not empty"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder_of(Path("CORPUS"), ROWS)
    folder_of(Path("EMPTY"), [["", ""]], "test")
    write_lines(Path("CORPUS/bad.kk"), ["а"] * 3)
    write_lines(Path("CORPUS/bad.en"), ["a"] * 5)
    before = files_of(tmp_path)
    given = {"--languages": LANGUAGES, "--out": ["out"]}
    for option in arguments:
        given.pop(option, None)
    defaults = [word for option, values in given.items() for word in (option, *values)]
    with pytest.raises(SystemExit) as error:
        main(["prepare", "CORPUS", *defaults, *arguments])
    assert message in str(error.value)
    assert files_of(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CORPUS", "EMPTY"]
