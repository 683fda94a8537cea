"""New catalogues: a source's file without its texts, with the license, and with the plural forms of the language."""

from __future__ import annotations

import struct

import pytest

from catalogue_samples import ANDROID, DTD, FLUENT, PO, PROPERTIES, QT, XLIFF_1, XLIFF_2, Sample
from hf_multisource.data.access_keys import choose_access_key, is_access_key, labels_of
from hf_multisource.data.catalogue_entries import TRANSLATED, UNTRANSLATED
from hf_multisource.data.catalogue_files import fill_catalogue, read_catalogue
from hf_multisource.data.catalogue_gettext import decompiled
from hf_multisource.data.new_catalogues import new_catalogue

SAMPLES = {one.path: one for one in (ANDROID, DTD, FLUENT, PO, PROPERTIES, QT, XLIFF_1, XLIFF_2)}
OF_SEVERAL = (PO, QT, XLIFF_1, XLIFF_2)  # formats that hold the messages of the source language


def compiled(texts: dict[str, str], encoding: str = "utf-8") -> bytes:
    """A .mo file with these messages and translations."""
    pairs = [(key.encode(encoding), text.encode(encoding)) for key, text in sorted(texts.items())]
    start, tables, blob = 28 + 16 * len(pairs), [b"", b""], b""
    for side in range(2):
        for pair in pairs:
            tables[side] += struct.pack("<2I", len(pair[side]), start + len(blob))
            blob += pair[side] + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return head + tables[0] + tables[1] + blob


def test_a_compiled_catalogue_in_another_character_set_gives_utf_8() -> None:
    header = "Content-Type: text/plain; charset=ISO-8859-1\nPlural-Forms: nplurals=2; plural=n!=1;\n"
    old = read_catalogue("a.mo", compiled({"": header, "Café": "Kaffee"}, "latin-1"))
    assert [entry.key for entry in new_catalogue(old, "a.po", "cs").entries] == ["Café"]


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_new_catalogue_has_the_license_and_no_text_of_the_old_one(sample: Sample) -> None:
    old = read_catalogue(sample.path, sample.text.encode())
    new = new_catalogue(old, sample.path, "cs")
    assert "License: the license of this file" in new.text
    assert {entry.state for entry in new.entries} == ({UNTRANSLATED} if sample in OF_SEVERAL else set())
    assert not [entry.text for entry in old.entries if entry.state == TRANSLATED and f">{entry.text}<" in new.text]
    assert sample in OF_SEVERAL or "open" not in new.text
    if sample in OF_SEVERAL:
        keys = [entry.key for entry in old.entries if entry.state != "obsolete"]
        assert list(dict.fromkeys(entry.key for entry in new.entries)) == list(dict.fromkeys(keys))


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_new_catalogue_can_be_filled(sample: Sample) -> None:
    old = read_catalogue(sample.path, (sample.reference or sample.text).encode())
    new = new_catalogue(old, sample.path, "pl")
    plain = [entry for entry in old.entries if not entry.part and entry.state != "obsolete" and not entry.markup][:2]
    texts = {entry.identity: "nowy\n" if "\n" in entry.key else "nowy" for entry in plain}
    texts = {identity: text for identity, text in texts.items() if not text.endswith("\n")}
    keys = {key for key, part in texts if not any(e.key == key and e.part != part for e in old.entries)}
    texts = {identity: text for identity, text in texts.items() if identity[0] in keys}
    filled = fill_catalogue(new, texts, old)
    assert texts
    assert filled.filled == tuple(texts)


def test_gettext_has_the_plural_forms_of_cldr_and_no_marks_of_the_old_language() -> None:
    new = new_catalogue(read_catalogue("de.po", PO.text.encode()), "x.pot", "cs")
    assert new.path == "x.po"
    assert "Plural-Forms: nplurals=3; plural=(n == 1 ? 0 : (n >= 2 && n <= 4) ? 1 : 2);\n" in new.header
    assert [entry.part for entry in new.entries if entry.key == "%d file"] == ["[0]", "[1]", "[2]"]
    assert "#, c-format" in new.text
    assert not any(mark in new.text for mark in ("fuzzy", "#~", "#|", "dataja"))


def test_a_comment_on_a_message_is_no_comment_on_the_file() -> None:
    text = "# about open\nopen = Open\n"
    assert new_catalogue(read_catalogue("a.ftl", text.encode()), "a.ftl", "cs").text == ""


def test_a_compiled_catalogue_gives_a_new_catalogue_with_its_messages() -> None:
    header = "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=n!=1;\n"
    texts = {"": header, "Quit": "Beenden", 'verb\x04Open "x"\nnow': "Öffnen", "%d tab\0%d tabs": "%d Tab\0%d Tabs"}
    old = read_catalogue("de/a.mo", compiled(texts))
    new = new_catalogue(old, "cs/a.mo", "cs_CZ")
    assert new.path == "cs/a.po"
    assert {(entry.key, entry.part, entry.text, entry.state) for entry in new.entries} == {
        ("Quit", "", "", UNTRANSLATED),
        ('verb\x04Open "x"\nnow', "", "", UNTRANSLATED),
        *(("%d tab", f"[{i}]", "", UNTRANSLATED) for i in range(3)),
    }
    assert {entry.sources for entry in new.entries if entry.part} == {("%d tab", "%d tabs")}
    assert "Language: cs_CZ\n" in new.header
    again = read_catalogue("de/a.po", decompiled(old).content)
    assert [(entry.identity, entry.text) for entry in again.entries] == [
        (entry.identity, entry.text) for entry in old.entries
    ]


@pytest.mark.parametrize(
    ("key", "part", "label"),
    [
        ("open", ".accesskey", ("open", ".label")),
        ("dialog", ".buttonaccesskeyaccept", ("dialog", ".buttonlabelaccept")),
        ("file.accesskey", "", ("file.label", "")),
        ("fileAccessKey", "", ("fileLabel", "")),
        ("menu-file-accesskey", "", ("menu-file", "")),
    ],
)
def test_the_label_of_an_access_key_follows_from_its_name(key: str, part: str, label: tuple[str, str]) -> None:
    assert is_access_key(key, part)
    assert label in labels_of(key, part)


def test_an_access_key_is_a_letter_of_the_label() -> None:
    assert not is_access_key("open", ".label")
    assert choose_access_key(["Wócyniś"], {"en": "O", "hsb": "N"}) == "n"
    assert choose_access_key(["nowa Nowosć"], {"en": "N"}) == "N"
    assert choose_access_key(["Wócyniś"], {"en": "X"}) == "W"
    assert choose_access_key(["{ $x } %S Tab"], {"en": "x"}, "fluent") == "S"
    assert choose_access_key(["サーバー"], {"en": "F", "de": "D"}) == "F"
    assert choose_access_key(["파일", "Tab 파일"], {"en": "F"}) == "F"
    assert choose_access_key(["打开 URL"], {"en": "O"}) == "U"
    assert choose_access_key(["Файл"], {"en": "F"}) == "Ф"
    assert choose_access_key(["{ $x }…"], {"en": "x"}, "fluent") == "x"
    assert choose_access_key(["Jadno wokno", "Okna", "Wokna"], {"en": "W", "de": "a"}) == "a"
    assert choose_access_key(["Jadno wokno", "Okna", "Wokna"], {"en": "W"}) == "a"
