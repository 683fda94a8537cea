"""Words that are masked, and all that stays as it was."""

from __future__ import annotations

import gzip
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_multisource.cli.degrade import main
from hf_multisource.data.degrade import COLORS, Masking, degrade, words_of

LINES = ["A girl in a red coat, with a dark-green bag.", "Two dogs run.", "", "The white-haired man's Blue car is new."]


def masked(how: str, lines: list[str] = LINES, **settings: Any) -> list[str]:
    masking = Masking(how, **settings)
    return [masking(line, number)[0] for number, line in enumerate(lines)]


def test_colors_are_masked_in_any_case_and_within_compounds_and_nothing_else_is() -> None:
    assert masked("colors", words=words_of("colors", "en")) == [
        "A girl in a [v] coat, with a dark-[v] bag.",
        "Two dogs run.",
        "",
        "The [v]-haired man's [v] car is new.",
    ]


def test_people_are_masked_without_their_possessive() -> None:
    line = "The [v]'s dog greets two [v] and a [v]."
    words = words_of("people", "en")
    assert masked("people", ["The man's dog greets two women and a Child."], words=words) == [line]


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        ("de", "Ein hellblaues Auto neben roten Rosen und einem schwarz-weißen Hund.", "Ein [v] Auto neben [v] Rosen"),
        ("fr", "Des robes blanches, un chat noir et une porte verte.", "Des robes [v], un chat [v] et une porte [v]."),
        ("cs", "Muž v černém kabátě s tmavě modrou taškou a bílými botami.", "Muž v [v] kabátě s tmavě [v] taškou a"),
    ],
)
def test_inflected_colors_are_found(language: str, line: str, expected: str) -> None:
    assert masked("colors", [line], words=words_of("colors", language))[0].startswith(expected)


@pytest.mark.parametrize(
    ("language", "common"),
    [
        ("en", "a the and in on or as to one man"),
        ("de", "die der das und ein es im am er ist"),
        ("fr", "un le la et ou or sur dans est des"),
        ("cs", "a se na v je s ve za do ze"),
    ],
)
def test_no_color_is_a_common_word_of_its_language(language: str, common: str) -> None:
    assert COLORS[language].isdisjoint(common.split())


def test_a_list_of_ones_own_adds_to_the_built_in_one_or_stands_alone() -> None:
    assert {"red", "puce"} <= words_of("colors", "en", [" Puce ", ""])
    assert words_of("words", "en", ["Puce"]) == words_of("people", "xx", ["puce"]) == {"puce"}
    with pytest.raises(ValueError, match=r"no list of people for 'de'; there is one for en: give --words FILE"):
        words_of("people", "de")


def test_an_entry_with_a_hyphen_or_an_apostrophe_is_masked_as_a_whole_and_other_words_by_their_parts() -> None:
    words = words_of("words", "en", ["T-shirt", "man's", "ice-cream", "red"])
    line = "The man’s t-shirt and the Man's red-haired friend’s ICE-CREAM; his shirt, my cream."
    text = "The [v] [v] and the [v] [v]-haired friend’s [v]; his shirt, my cream."
    assert Masking("words", words=words)(line, 0) == (text, 15, 5)


@pytest.mark.parametrize("entry", ["dark blue", "C++", "'tis", "t--shirt", "♥"])
def test_an_entry_that_is_not_one_word_is_refused_by_name_and_nothing_is_written(entry: str, tmp_path: Path) -> None:
    data, words = make_data(tmp_path), tmp_path / "words"
    words.write_text(f"red\n\n {entry} \n", encoding="utf-8")
    options = ["--source", "en", "--how", "colors", "--words", str(words), "--out", str(tmp_path / "out")]
    message = f"hf-multisource degrade: --words has {entry!r}, which can never match, because it is not one word"
    with pytest.raises(SystemExit, match=f"^{re.escape(message)}"):
        main([str(data), *options])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "keep", "expected", "words"),
    [
        ("हिन्दी में यह वाक्य है", 2, "हिन्दी में [v] [v] [v]", 5),  # vowel signs are combining marks
        ("یک کتاب می\u200cخواهم.", 2, "یک کتاب [v].", 3),  # a zero-width non-joiner in a word
        ("I ❤\ufe0f 👩\u200d🚀 Zoe\u0308!", 1, "I ❤\ufe0f 👩\u200d🚀 [v]!", 2),  # emoji are no words
        ("10 m² ½", 2, "10 m² [v]", 3),
    ],
)
def test_combining_marks_and_joiners_belong_to_their_word(line: str, keep: int, expected: str, words: int) -> None:
    assert Masking("progressive", keep=keep)(line, 0) == (expected, words, words - keep)


def test_words_are_compared_in_composed_form_and_the_rest_stays_byte_for_byte() -> None:
    line = unicodedata.normalize("NFD", "Ein GRÜNER Ball für Zoë.")
    expected = unicodedata.normalize("NFD", "Ein [v] Ball für Zoë.")
    assert Masking("colors", words=words_of("colors", "de"))(line, 0) == (expected, 5, 1)
    entry = unicodedata.normalize("NFD", "Grüner")
    assert masked("words", ["Ein grüner Ball"], words=words_of("words", "de", [entry])) == ["Ein [v] Ball"]


@pytest.mark.parametrize("keep", [0, 2, 100])
def test_progressive_masking_keeps_the_beginning(keep: int) -> None:
    line = "A man's t-shirt (red), two dogs."
    words = ["A", "man's", "t-shirt", "red", "two", "dogs"]
    expected = words[:keep] + ["[v]"] * (len(words) - keep)
    text = masked("progressive", [line], keep=keep)[0]
    assert text == "{} {} {} ({}), {} {}.".format(*expected)


def test_a_share_of_none_masks_nothing_and_of_all_everything() -> None:
    assert masked("share", share=0.0) == LINES
    assert masked("share", share=1.0)[1] == "[v] [v] [v]."


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_a_larger_share_masks_what_a_smaller_one_does(one: float, other: float, seed: int) -> None:
    smaller, larger = sorted([one, other])
    for few, many in zip(
        masked("share", share=smaller, seed=seed), masked("share", share=larger, seed=seed), strict=True
    ):
        for word, instead in zip(few.split(), many.split(), strict=True):
            assert instead == word or "[v]" in instead


def test_a_share_depends_on_seed_and_line_alone_and_is_about_that_share() -> None:
    lines = ["one two three four five six seven eight nine ten"] * 300
    text = masked("share", lines, share=0.3, seed=1)
    assert text == masked("share", lines, share=0.3, seed=1)
    assert text[7] == Masking("share", share=0.3, seed=1)(lines[0], 7)[0]
    assert text != masked("share", lines, share=0.3, seed=2)
    assert len(set(text)) > 100
    assert sum(line.count("[v]") for line in text) / 3000 == pytest.approx(0.3, abs=0.03)


def make_data(folder: Path) -> Path:
    data = folder / "data"
    (data / "images").mkdir(parents=True)
    (data / "train.en.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES).encode()))
    (data / "test.en").write_text("A red dog.\n", encoding="utf-8")
    (data / "train.de").write_text("Ein rotes Auto.\n" * 4, encoding="utf-8")
    (data / "images" / "1.jpg").write_bytes(b"picture")
    return data


def test_a_folder_is_masked_in_one_source_and_the_same_in_all_else(tmp_path: Path) -> None:
    data, out = make_data(tmp_path), tmp_path / "out"
    main([str(data), "--out", str(out), "--source", "en", "--how", "colors", "--mask", "<c>"])
    assert sorted(path.name for path in out.iterdir()) == ["degrade.json", "images", "test.en", "train.de", "train.en"]
    assert (out / "train.en").read_text("utf-8").splitlines()[0] == "A girl in a <c> coat, with a dark-<c> bag."
    assert (out / "test.en").read_text("utf-8") == "A <c> dog.\n"
    assert (out / "train.de").read_bytes() == (data / "train.de").read_bytes()
    assert (out / "images" / "1.jpg").read_bytes() == b"picture"
    report = json.loads((out / "degrade.json").read_text("utf-8"))
    assert report["files"]["train.en"] == {"lines": 4, "masked_lines": 2, "words": 23, "masked_words": 4}
    assert (report["how"], report["source"], report["mask"]) == ("colors", "en", "<c>")


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    data, masking = make_data(tmp_path), Masking("share", share=0.5)
    with pytest.raises(FileNotFoundError, match=r"no <split>\.fr or <split>\.fr\.gz in"):
        degrade(data, tmp_path / "out", "fr", masking)
    with pytest.raises(FileExistsError, match="is not empty"):
        degrade(data, data, "en", masking)
    with pytest.raises(ValueError, match=r"share is 1\.5, but is a probability"):
        Masking("share", share=1.5)
    with pytest.raises(ValueError, match="keep is -1"):
        Masking("progressive", keep=-1)
    with pytest.raises(ValueError, match="how is 'nouns'; allowed are colors, people, progressive, share, words"):
        Masking("nouns")
    with pytest.raises(ValueError, match="mask is empty"):
        Masking("share", mask=" ")
    for options in (["--how", "share"], ["--how", "colors", "--share", "0.5"]):
        with pytest.raises(SystemExit, match=r"degrade: --how (share needs|colors does not take) --share"):
            main([str(data), "--out", str(tmp_path / "out"), "--source", "en", *options])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--how", "colors", "--mask", "a\nb"], r"mask is 'a\nb'; it must be on one line"),
        (["--how", "colors", "--source", "en-US", "--language", "en"], "source name 'en-US' must be an identifier"),
        (["--how", "words", "--words", "data/empty"], "data/empty holds no word"),
        (["--how", "progressive", "--keep", "2", "--words", "data/test.en"], "--how progressive does not take --words"),
        (["--how", "share", "--share", "0.5", "--words", "data/test.en"], "--how share does not take --words"),
        (["--how", "colors", "--out", "data/empty"], "data/empty is a file, not a folder"),
        (["--how", "colors", "--out", "data/empty/out"], "data/empty is a file, not a folder"),
    ],
)
def test_bad_options_are_named_and_nothing_is_written(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (make_data(tmp_path) / "empty").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"^hf-multisource degrade: .*{re.escape(message)}"):
        main(["data", "--out", "out", "--source", "en", *options])
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.en", b"\xff", "test.en, line 1: not UTF-8"),
        ("test.en", b"", "test.en is empty"),
        ("test.en.gz", gzip.compress(b"a red dog\n", mtime=0)[:-9], "test.en.gz: damaged gzip file"),
        ("train.en", b"a red dog\n", "holds both train.en and train.en.gz: keep one"),
    ],
)
def test_text_that_cannot_be_masked_is_named_and_nothing_is_written(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    data = make_data(tmp_path)
    if name == "test.en.gz":
        (data / "test.en").unlink()
    (data / name).write_bytes(content)
    with pytest.raises(SystemExit, match=f"^hf-multisource degrade: .*{re.escape(message)}"):
        main([str(data), "--out", str(tmp_path / "out"), "--source", "en", "--how", "colors"])
    assert not (tmp_path / "out").exists()


def test_what_is_masked_twice_has_a_report_of_each_time(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.en").write_text("a red man\n", encoding="utf-8")
    for data, out, how in (("data", "one", "colors"), ("one", "two", "people")):
        main([str(tmp_path / data), "--out", str(tmp_path / out), "--source", "en", "--how", how])
    assert (tmp_path / "two" / "train.en").read_text(encoding="utf-8") == "a [v] [v]\n"
    reports = [json.loads((tmp_path / out / "degrade.json").read_text(encoding="utf-8")) for out in ("one", "two")]
    assert [report["how"] for report in reports] == ["colors", "people"]
