"""Cyrillic letters of Russian and Kazakh become Latin ones, in texts and in tokenizers, and Cyrillic again."""

from __future__ import annotations

import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_multisource.cli.tokenizer import main
from hf_multisource.data.romanization import CYRILLIC, ROMANIZATION, deromanize, romanize
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.tokenization import SUBWORDS, joint_text, train_tokenizer

RUSSIAN = "абвгдеёжзийклмнопрстуфхцчшщъыьэюя"
KAZAKH = "аәбвгғдеёжзийкқлмнңоөпрстуұүфхһцчшщъыіьэюя"
LETTERS = sorted({*RUSSIAN, *KAZAKH, *RUSSIAN.upper(), *KAZAKH.upper()})
TEXTS = ["Бір ауылда қойшы болыпты.", "Жил-был в деревне пастух.", "There was a shepherd in a village."]


def test_all_letters_of_both_alphabets_have_a_spelling_of_their_own() -> None:
    assert sorted(ROMANIZATION) == LETTERS and len(LETTERS) == 84
    assert len(set(ROMANIZATION.values())) == len(ROMANIZATION)
    for spelling in ROMANIZATION.values():
        assert unicodedata.normalize("NFC", spelling) == spelling


@pytest.mark.parametrize(
    ("cyrillic", "latin"),
    [
        ("Щука съела объявление", "Ŝuka sʺela obʺâvlenie"),
        ("ЭТО ЮЖНЫЙ ПОДЪЕЗД", "ÈTO ÛŽNYJ PODʺ̱EZD"),
        ("Қазақ тілі, әңгіме, үй, ұлт, өмір, қаһарман", "Ķazaķ tìlì, a̋ņgìme, ùj, u̇lt, ômìr, ķaḥarman"),
        ("и\u0306од", "jod"),  # the letter й in two characters
    ],
)
def test_spelling_follows_iso_9(cyrillic: str, latin: str) -> None:
    assert romanize(cyrillic) == unicodedata.normalize("NFC", latin)
    assert deromanize(latin) == unicodedata.normalize("NFC", cyrillic)


@given(st.text(st.sampled_from([*LETTERS, *" ,.-0123\u0301\u0308"])))
def test_text_without_latin_letters_comes_back(text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    if not any(unicodedata.name(letter).startswith("LATIN") for letter in composed):
        assert deromanize(romanize(text)) == composed


MIXED = st.lists(st.sampled_from([*LETTERS, *CYRILLIC, *"qwx -"])).map("".join)


@given(MIXED)
def test_latin_spelling_survives_a_detour_through_cyrillic(text: str) -> None:
    """What a model has written in Cyrillic letters is read as if it had never left the Latin ones."""
    assert romanize(deromanize(romanize(text))) == romanize(text)


@pytest.mark.parametrize("kind", SUBWORDS)
def test_a_tokenizer_reads_cyrillic_letters_as_latin_ones(kind: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, kind, 320, romanize=True)
    tokenizer.save_pretrained(tmp_path)
    for own in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        for text in [*TEXTS, "Съёмка ҚҰҢ 12 %"]:
            ids = own(text)["input_ids"]
            assert ids == own(romanize(text))["input_ids"]
            assert own.decode(ids, skip_special_tokens=True) == romanize(text)


def test_a_tokenizer_of_a_target_in_cyrillic_writes_cyrillic() -> None:
    tokenizer = train_tokenizer(TEXTS, "bpe", 320, romanize=True, decode_cyrillic=True)
    for text in (*TEXTS[:2], "Съёмка ҚҰҢ 12 %"):
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


@cache
def normalizer() -> Any:
    return train_tokenizer(TEXTS, "bpe", 262, romanize=True).backend_tokenizer.normalizer


@given(MIXED)
def test_tokenizer_and_function_agree(text: str) -> None:
    assert normalizer().normalize_str(text).strip() == romanize(text).strip()


def test_smaller_languages_are_repeated_until_all_count_alike() -> None:
    columns: list[list[str | None]] = [["abcdef", None, "gh"], ["i", "", "jk"], []]
    assert joint_text(columns, balance=False) == ["abcdef", "gh", "i", "jk"]
    assert joint_text(columns, balance=True) == ["abcdef", "gh", "i", "jk", "i", "jk", "i"]


def test_the_command_romanizes_the_named_languages(tmp_path: Path) -> None:
    for name, text in zip(("kk", "ru", "en"), TEXTS, strict=True):
        (tmp_path / f"train.{name}").write_text(text + "\n", encoding="utf-8")
    options = ["--sources", "kk", "en", "--target", "ru", "--vocab_size", "300", "--romanize", "kk", "ru"]
    main([str(tmp_path), *options, "--balance", "--out", str(tmp_path / "joint")])
    joint = AutoTokenizer.from_pretrained(tmp_path / "joint")
    assert joint.decode(joint(TEXTS[1])["input_ids"], skip_special_tokens=True) == TEXTS[1]
    main([str(tmp_path), *options, "--separate", "--out", str(tmp_path / "separate")])
    own = {name: (tmp_path / "separate" / name / "tokenizer.json") for name in ("kk", "en", "target")}
    rules = {name: path.read_text(encoding="utf-8").count('"Replace"') for name, path in own.items()}
    assert rules == {"kk": len(ROMANIZATION), "en": 0, "target": 2 * len(ROMANIZATION)}
    for bad, message in {
        ("--romanize", "de"): "romanize is 'de'; allowed are kk, en, ru",
        ("--balance", "--separate"): "balance is set, but with --separate every language has a tokenizer of its own",
    }.items():
        with pytest.raises(SystemExit, match=message):
            main([str(tmp_path), *options[:5], *bad, "--out", str(tmp_path / "bad")])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"romanize": ["kk"]}, "tokenizer.romanize: unknown language 'kk'; the languages are "),
        ({"romanize": ["en"], "tokenizer.kind": "symbols"}, "tokenizer.romanize is for the kinds bpe, wordpiece, "),
        ({"romanize": ["en"], "tokenizer.load": "tok"}, "tokenizer.romanize is for a tokenizer that is trained; "),
        ({"balance": True, "tokenizer.load": "tok"}, "tokenizer.balance is for a tokenizer that is trained; "),
        ({"balance": True, "separate": True}, "tokenizer.balance is for one tokenizer of all languages; "),
    ],
)
def test_settings_without_effect_are_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe("multi30k_en_de_fr_cs", overrides)
