"""What filling a catalogue must not do: replace a person's text, approve a machine's, or write what programs refuse."""

from __future__ import annotations

import pytest

from hf_multisource.data.catalogue_entries import FUZZY, OBSOLETE, TRANSLATED
from hf_multisource.data.catalogue_files import fill_catalogue, read_catalogue
from hf_multisource.data.new_catalogues import new_catalogue

XLIFF_HEAD = '<xliff version="1.2"><file original="a" source-language="en"><body>'
XLIFF_TAIL = "</body></file></xliff>"
EMPTY = '<trans-unit id="a"><source>A</source></trans-unit>'
HUMAN = '<trans-unit id="a"><source>A</source><target state="final">HUMAN</target></trans-unit>'
QT_EMPTY = '<message><source>A</source><translation type="unfinished"></translation></message>'
QT_HUMAN = "<message><source>A</source><translation>HUMAN</translation></message>"


def xliff(*units: str) -> str:
    return f"{XLIFF_HEAD}{''.join(units)}{XLIFF_TAIL}"


def qt(*messages: str) -> str:
    return f"<TS><context><name>C</name>{''.join(messages)}</context></TS>"


@pytest.mark.parametrize(
    ("path", "text", "key"),
    [
        ("a.xlf", xliff(EMPTY, HUMAN), "a"),
        ("a.xlf", xliff(HUMAN, EMPTY), "a"),
        ("a.xlf", xliff(EMPTY, EMPTY), "a"),
        (
            "a.xlf",
            '<xliff version="2.0" srcLang="en"><file id="f"><unit id="a"><segment id="1"><source>A</source>'
            "<target>HUMAN</target></segment><segment><source>B</source></segment></unit></file></xliff>",
            "a",
        ),
        ("a.ts", qt(QT_EMPTY, QT_HUMAN), "C\x04A"),
        ("a.ts", qt(QT_HUMAN, QT_EMPTY), "C\x04A"),
        ("a.po", 'msgid "a"\nmsgstr ""\n\nmsgid "a"\nmsgstr "HUMAN"\n', "a"),
    ],
    ids=["empty first", "translated first", "two empty", "segments", "Qt", "Qt, translated first", "gettext"],
)
def test_a_key_that_occurs_several_times_is_refused(path: str, text: str, key: str) -> None:
    catalogue = read_catalogue(path, text.encode())
    part = next(entry.part for entry in catalogue.entries if entry.text in ("HUMAN", ""))
    filled = fill_catalogue(catalogue, {(key, part): "MACHINE"})
    assert filled.content == text.encode()
    assert list(filled.refused.values()) == [
        "the file has 2 entries with this key, and which one is meant is not known"
    ]


@pytest.mark.parametrize(
    "text",
    [
        qt('<message><source>A</source><translation type="vanished">OLD</translation></message>', QT_EMPTY),
        qt(QT_EMPTY, '<message><source>A</source><translation type="vanished">OLD</translation></message>'),
    ],
)
def test_an_obsolete_entry_with_the_same_key_stays_and_the_other_one_is_filled(text: str) -> None:
    filled = fill_catalogue(read_catalogue("a.ts", text.encode()), {("C\x04A", ""): "MACHINE"})
    found = {(entry.text, entry.state) for entry in read_catalogue("a.ts", filled.content).entries}
    assert found == {("OLD", OBSOLETE), ("MACHINE", FUZZY)}


def test_units_without_a_source_are_not_taken_for_the_one_to_fill() -> None:
    text = xliff('<trans-unit id="a"><note>x</note></trans-unit>', EMPTY)
    filled = fill_catalogue(read_catalogue("a.xlf", text.encode()), {("a", ""): "MACHINE"})
    assert [(entry.text, entry.state) for entry in read_catalogue("a.xlf", filled.content).entries] == [
        ("MACHINE", FUZZY)
    ]


def test_a_machine_translation_in_xliff_is_not_approved() -> None:
    approved = EMPTY.replace('id="a"', 'id="a" approved="yes"')
    filled = fill_catalogue(read_catalogue("a.xlf", xliff(approved).encode()), {("a", ""): "MACHINE"})
    assert 'id="a" approved="no"' in filled.content.decode()
    other = HUMAN.replace('id="a"', 'approved = "yes" id="b"')
    catalogue = read_catalogue("a.xlf", xliff(other, EMPTY).encode())
    filled = fill_catalogue(catalogue, {("a", ""): "MACHINE"})
    assert other in filled.content.decode()
    new = new_catalogue(catalogue, "b.xlf", "dsb")
    assert 'approved="no" id="b"' in new.text
    assert "yes" not in new.text
    assert TRANSLATED not in {entry.state for entry in new.entries}
