"""A translation memory over several sources: what is found by all texts together, and what is only similar."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hf_multisource.data.translation_memory import LONGEST_HINT, Match, TranslationMemory


def memory_of(*rows: tuple[dict[str, str], str]) -> TranslationMemory:
    memory = TranslationMemory()
    for sources, text in rows:
        memory.add(sources, text)
    return memory


def test_all_sources_must_be_the_same_and_there_are_no_further_ones() -> None:
    memory = memory_of(({"en": "Open", "de": "Öffnen"}, "Wócyniś"), ({"en": "Open", "de": "Offen"}, "Wócynjony"))
    assert memory.find({"en": "Open", "de": "Offen"}) == [Match("Wócynjony", 1, 1)]
    assert memory.find({"en": "Open"}) == []
    assert [match.text for match in memory.find({"en": "Open"}, languages=["en"])] == ["Wócyniś", "Wócynjony"]
    assert memory.find({"en": "Open"}, languages=["en", "cs"]) != [] == memory.find({"en": "Open"}, languages=["de"])
    assert memory.find({"en": "Open", "de": "Auf"}) == []
    assert memory.find({"en": "Open", "cs": "Otevřít"}) == []
    assert memory.find({}) == memory.find({"en": " "}) == []


def test_the_same_key_comes_first_then_the_most_frequent_translation() -> None:
    memory = TranslationMemory()
    for text, key in (("a", "x"), ("b", "y"), ("b", "z")):
        memory.add({"en": "Open"}, text, key=key)
    assert memory.find({"en": "Open"}) == [Match("b", 2, 3), Match("a", 1, 3)]
    assert memory.find({"en": "Open"}, "x")[0] == Match("a", 1, 3)


def test_outer_white_space_and_line_breaks_are_those_of_the_text() -> None:
    memory = TranslationMemory()
    memory.add({"en": "Open:\nnow"}, " Wócyniś:\nněto")
    memory.add({"en": "One\\nTwo"}, "Jaden\\nDwa", from_line=True)
    memory.add({"en": "End %s\\n"}, "Kóńc %s\\n", from_line=True)
    assert memory.find({"en": "Open:\nnow \n"})[0].text == "Wócyniś:\nněto \n"
    assert memory.find({"en": "End %s\n\n"})[0].text == "Kóńc %s\n\n"
    assert memory.find({"en": "End %s"})[0].text == "Kóńc %s"
    assert memory.find({"en": "One\nTwo"})[0].text == "Jaden\nDwa"
    assert memory.find({"en": "One\\nTwo"})[0].text == "Jaden\\nDwa"


def test_an_answer_has_the_placeholders_and_the_outer_white_space_of_the_guide() -> None:
    memory = memory_of(({"en": "Open %S"}, "Wócyniś"), ({"en": "Open %S"}, "%S wócyniś"), ({"en": "Quit"}, "%S"))
    assert memory.answer({"en": "Open %S"}, " Open %S\n", "any") == [Match(" %S wócyniś\n", 1, 2)]
    assert [match.text for match in memory.answer({"en": "Open %S"}, "Open %S", None)] == ["Wócyniś", "%S wócyniś"]
    assert memory.answer({"en": "Quit"}, "Quit", "any") == []


def test_training_rows_are_read_and_others_stay_unseen(tmp_path: Path) -> None:
    for name, text in {
        "train.en": "Open\nSave\n",
        "train.dsb": "Wócyniś\n\n",
        "dev.en": "x\n",
        "dev.dsb": "y\n",
    }.items():
        (tmp_path / name).write_text(text, "utf-8")
    memory = TranslationMemory()
    assert memory.read(str(tmp_path), ["en", "de"], "dsb") == 1
    assert memory.find({"en": "Open"})[0].text == "Wócyniś"
    assert memory.find({"en": "x"}) == []
    with pytest.raises(ValueError, match="'hsb'"):
        memory.read(str(tmp_path), ["en"], "hsb")


def test_a_hint_is_the_translation_of_the_most_similar_text(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of(({"en": "Open the file"}, "Wócyniś dataju"), ({"en": "Quit"}, "Skóńcyś"))
    hint = memory.similar({"de": "Datei öffnen", "en": "Open a file"})
    assert hint is not None
    assert (hint.language, hint.source, hint.text) == ("en", "Open the file", "Wócyniś dataju")
    assert 0.7 < hint.similarity < 1
    assert memory.similar({"en": "Something else"}) is None
    assert memory.similar({"de": "Datei"}) is None
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(ImportError, match=r'rapidfuzz: run pip install "\.\[localization\]" in a clone'):
        memory.similar({"en": "Open"})


def test_how_similar_and_how_long_a_text_with_a_hint_is() -> None:
    memory = memory_of(({"en": "0123456789"}, "first"), ({"en": "0123456789", "de": "x"}, "second"))
    for text, similarity in (("0123456xyz", 0.7), ("0123456XYZ", 0.7), ("012345wxyz", None)):
        hint = memory.similar({"en": text})
        assert (hint and hint.similarity) == similarity
        assert hint is None or hint.text == "first"  # of equal texts, the one that was added first
    memory = memory_of(({"en": "a" * LONGEST_HINT}, "long"))
    assert memory.similar({"en": "a" * LONGEST_HINT}) is not None
    assert memory.similar({"en": "a" * (LONGEST_HINT + 1)}) is None


def test_rows_are_added_by_add_alone() -> None:
    """Rows that are given in another way would not be found."""
    with pytest.raises(TypeError):
        TranslationMemory(rows=[])  # type: ignore[call-arg]


def test_a_hint_is_looked_for_in_all_sources() -> None:
    both = {"en": "Open the file", "de": "Datei öffnen"}
    memory = memory_of((both, "Wócyniś dataju"), ({"en": "Open a window", "de": "Fenster"}, "Wócyniś wokno"))
    hint = memory.similar({"en": "Click here", "de": "Dateien öffnen"})  # the first source has no similar text
    assert hint is not None and (hint.language, hint.text) == ("de", "Wócyniś dataju")
    hint = memory.similar({"en": "Open a file", "de": "Fenster"})  # the second source is more similar
    assert hint is not None and (hint.language, hint.text, hint.similarity) == ("de", "Wócyniś wokno", 1.0)
    hint = memory.similar({"en": "Open a window", "de": "Datei öffnen"})  # both are equally similar
    assert hint is not None and (hint.language, hint.text) == ("en", "Wócyniś wokno")


def test_the_digest_changes_with_a_row() -> None:
    one, other = memory_of(({"en": "a"}, "b")), memory_of(({"en": "a"}, "c"))
    assert one.digest() == memory_of(({"en": "a"}, "b")).digest() != other.digest()
