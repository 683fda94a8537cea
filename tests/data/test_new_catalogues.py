"""New catalogues: a source's file without its texts, with the license, and with the plural forms of the language."""

from __future__ import annotations

import struct

import pytest

from catalogue_samples import ANDROID, DTD, FLUENT, PO, PROPERTIES, QT, XLIFF_1, XLIFF_2, Sample
from hf_multisource.data.access_keys import choose_access_key, is_access_key, labels_of
from hf_multisource.data.catalogue_entries import REVIEW, TRANSLATED, UNTRANSLATED
from hf_multisource.data.catalogue_files import fill_catalogue, read_catalogue
from hf_multisource.data.catalogue_gettext import decompiled, empty_po, read_po
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


def test_a_compiled_catalogue_in_utf_8_whose_header_has_another_character_set_is_read_as_utf_8() -> None:
    # gettext-tools.mo in Norwegian, of gettext 0.21, is such a file.
    old = read_catalogue("a.mo", compiled({"": "Content-Type: text/plain; charset=ISO-8859-1\n", "Café": "ø"}))
    assert [(entry.key, entry.text) for entry in old.entries] == [("Café", "ø")]
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


def test_a_new_properties_file_keeps_the_encoding_of_its_reference_and_has_escapes() -> None:
    license_line = "# Copyright © 2020 Foo\n".encode("latin-1")
    reference = read_catalogue("en/a.properties", license_line + b"\ntitle=Hello\n")
    filled = fill_catalogue(new_catalogue(reference, "dsb/a.properties", "dsb"), {("title", ""): "Šó"}, reference)
    assert filled.content == license_line + f"\n# {REVIEW}\ntitle=\\u0160\\u00f3\n".encode()


def test_gettext_has_the_plural_forms_of_cldr_and_no_marks_of_the_old_language() -> None:
    new = new_catalogue(read_catalogue("de.po", PO.text.encode()), "x.pot", "cs")
    assert new.path == "x.po"
    assert "Plural-Forms: nplurals=3; plural=(n == 1 ? 0 : (n >= 2 && n <= 4) ? 1 : 2);\n" in new.header
    assert [entry.part for entry in new.entries if entry.key == "%d file"] == ["[0]", "[1]", "[2]"]
    assert "#, c-format" in new.text
    assert not any(mark in new.text for mark in ("fuzzy", "#~", "#|", "dataja"))


GERMAN = """\
# German translation of app.
# Copyright (C) 2020 The authors of app <app@example.org>
# This file is distributed under the same license as the app package.
# Jana Nowak <jana@example.org>, 2020, 2021.
# Jan Nowak, 2019.
#
#, fuzzy
msgid ""
msgstr ""
"Project-Id-Version: app 1.0\\n"
"POT-Creation-Date: 2020-01-02 10:00+0000\\n"
"PO-Revision-Date: 2021-03-04 10:00+0000\\n"
"Last-Translator: Jana <jana@example.org>\\n"
"Language-Team: German <de@example.org>\\n"
"Language: de\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"
"X-Generator: Poedit 2.0\\n"
"X-Poedit-Basepath: .\\n"

# Name des Menüs
#: a.c:1
#. Name of the menu
#, fuzzy, c-format
#, no-wrap, c-format
#| msgid "opn %d"
msgctxt "menu"
msgid ""
"open "
"%d"
msgstr "öffnen %d"

# Alter Kommentar
#. old comment
#: old.c:1
#, c-format
#~ msgid "gone %d"
#~ msgstr "weg %d"

#: a.c:2
msgid "50 %deductible"
msgstr "50 % absetzbar"

# Noch ein Kommentar
#, fuzzy
#~ msgid "old"
#~ msgstr "alt"

# zum Schluss
"""
CZECH = """\
# Copyright (C) 2020 The authors of app <app@example.org>
# This file is distributed under the same license as the app package.
msgid ""
msgstr ""
"Project-Id-Version: app 1.0\\n"
"POT-Creation-Date: 2020-01-02 10:00+0000\\n"
"X-Poedit-Basepath: .\\n"
"PO-Revision-Date: 2020-01-02 10:00+0000\\n"
"Last-Translator: Automatically generated\\n"
"Language-Team: none\\n"
"Language: cs\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Plural-Forms: nplurals=3; plural=(n == 1 ? 0 : (n >= 2 && n <= 4) ? 1 : 2);\\n"

{}#. Name of the menu
#: a.c:1
#, c-format, no-wrap
msgctxt "menu"
msgid ""
"open "
"%d"
msgstr ""

#: a.c:2
msgid "50 %deductible"
msgstr ""
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("license", ["# License\n\n", "\n \n! License\n# of the file\n\n", "#a\n\n", "#a\n", ""])
def test_a_new_properties_file_has_no_text_whatever_the_line_ends(license: str, newline: str) -> None:
    content = f"{license}a=A\nb=B\n".replace("\n", newline).encode()
    new = new_catalogue(read_catalogue("a.properties", content), "a.properties", "cs")
    assert new.text == (license.lstrip() if license != "#a\n" else "").replace("\n", newline)
    assert new.entries == ()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_new_gettext_file_has_nothing_of_the_translation_that_it_is_made_from(mark: str, newline: str) -> None:
    content = (mark + GERMAN).replace("\n", newline).encode()
    assert new_catalogue(read_catalogue("de.po", content), "a.po", "cs").text == CZECH.format("").replace("\n", newline)
    template = new_catalogue(read_catalogue("a.pot", content), "a.po", "cs")  # its comments are not by a translator
    assert template.text == CZECH.format("# Name des Menüs\n").replace("\n", newline)


def test_a_new_gettext_file_has_a_header_even_if_the_old_one_has_none() -> None:
    new = new_catalogue(read_catalogue("de.po", b'# Copyright: X\nmsgid "a"\nmsgstr "b"\n'), "a.po", "cs")
    assert new.text.startswith('# Copyright: X\nmsgid ""\nmsgstr ""\n"PO-Revision-Date: \\n"\n"Last-Translator: ')
    assert new.text.endswith('plural=(n == 1 ? 0 : (n >= 2 && n <= 4) ? 1 : 2);\\n"\n\nmsgid "a"\nmsgstr ""\n')
    assert new_catalogue(read_catalogue("de.po", b""), "a.po", "cs").entries == ()


@pytest.mark.parametrize(
    ("comment", "kept"),
    [
        ("Título\n\nThis Source Code Form is subject to the terms of the\nMozilla Public License, v. 2.0.\n", [2, 3]),
        ("SOME DESCRIPTIVE TITLE.\nCopyright (C) YEAR X\nFIRST AUTHOR <EMAIL@ADDRESS>, YEAR.\n\n", [1]),
        ("Title\nJana <a at b.org>\n", []),
        ("SPDX-License-Identifier: MIT\nJana Nowak <a@b.org>\nCopyright 2020 Jan <b@b.org>, 2020.", [0, 2]),
        ("Copyright (C) 2020 A <a@b.org>,\n  B <b@b.org>\n\nSee <https://b.org/>.\nBoston, MA 02110", [0, 1, 2, 3, 4]),
    ],
)
def test_of_the_comment_on_a_gettext_file_copyright_and_license_are_kept(comment: str, kept: list[int]) -> None:
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    text = "\n".join([*lines, 'msgid ""', 'msgstr "Language: de\\n"', ""])
    new = new_catalogue(read_catalogue("de.po", text.encode()), "a.po", "cs").text
    assert new.partition("msgid")[0].splitlines() == [lines[i] for i in kept]


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
        ("save.mnemonic", "", ("save", "")),
        ("save.mnemonic", "", ("save.label", "")),
        ("save_mnemonic", "", ("save", "")),
        ("CTL_SaveMnemonic", "", ("CTL_Save", "")),
    ],
)
def test_the_label_of_an_access_key_follows_from_its_name(key: str, part: str, label: tuple[str, str]) -> None:
    assert is_access_key(key, part)
    assert label in labels_of(key, part)


def test_an_access_key_is_a_letter_of_the_label() -> None:
    assert not is_access_key("open", ".label")
    assert not is_access_key("mnemonic.words", "")
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


def test_ranges_of_numbers_stay_whole_among_the_flags_of_a_new_gettext_file() -> None:
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n'
    entry = '#, fuzzy, c-format, range: 0..10\nmsgid "%d"\nmsgid_plural "%ds"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    content = f"{header}\n{entry}"
    catalogue = read_po("a.po", content.encode())
    assert "\n#, c-format, range: 0..10\n" in empty_po(catalogue, "dsb", "nplurals=4; plural=(n%4);")


@pytest.mark.parametrize(
    ("comment", "kept"),
    [
        (
            "# Copyright (C) 2003, 2004\n# Free Software Foundation, 2005.\n# Jan <a@b.c>, 2004.",
            "# Copyright (C) 2003, 2004\n# Free Software Foundation, 2005.\n",
        ),
        ("# Copyright (C) 2020 Us\n#\n# Translators:\n# Ann <a@b.c>, 2020", "# Copyright (C) 2020 Us\n"),
        ("# German translation of LicenseManager.\n# Ann <a@b.c>, 2020", ""),
    ],
)
def test_the_holder_of_the_copyright_is_kept_and_no_translator(comment: str, kept: str) -> None:
    content = f'{comment}\nmsgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "a"\nmsgstr "b"\n'
    made = empty_po(read_po("a.po", content.encode()), "dsb", "nplurals=4; plural=(n%4);")
    assert made.startswith(f'{kept}msgid ""\n')
