"""What filling a catalogue must not do: replace a person's text, approve a machine's, or write what programs refuse."""

from __future__ import annotations

from dataclasses import replace
from xml.parsers import expat

import pytest

from hf_multisource.data import catalogue_files
from hf_multisource.data.catalogue_entries import FUZZY, OBSOLETE, TRANSLATED, UNTRANSLATED, Catalogue
from hf_multisource.data.catalogue_files import ANDROID, Filled, fill_catalogue, read_catalogue
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


OLD_NOTE = "From: memory, model (confidence 0.91)"


@pytest.mark.parametrize(
    ("comments", "kept"),
    [
        ([OLD_NOTE], []),
        (["From Jana"], ["From Jana"]),
        ([OLD_NOTE, "Jana &amp; Jan", "From: copy"], ["Jana &amp; Jan"]),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_note_of_an_earlier_run_is_replaced(comments: list[str], kept: list[str], newline: str) -> None:
    source, empty = "<source>A</source>", '<translation type="unfinished"></translation>'
    for path, before, after, tail in (
        (
            "a.ts",
            f"<translatorcomment>{newline.join(comments)}</translatorcomment>{empty}",
            f"<translatorcomment>{newline.join([*kept, 'From: copy'])}</translatorcomment>",
            empty.replace("><", ">MACHINE<"),
        ),
        (
            "a.xlf",
            f"<target/>{''.join(f'{newline}<note>{comment}</note>' for comment in comments)}",
            f'<target state="needs-review-translation">MACHINE</target>{newline}<note>From: copy</note>',
            "".join(f"{newline}<note>{comment}</note>" for comment in kept),
        ),
    ):
        wrap, key = (qt, "C\x04A") if path == "a.ts" else (xliff, "a")
        start, end = ("<message>", "</message>") if path == "a.ts" else ('<trans-unit id="a">', "</trans-unit>")
        old = wrap(f"{start}{newline}{source}{before}{end}")
        filled = fill_catalogue(read_catalogue(path, old.encode()), {(key, ""): "MACHINE"}, notes={key: "From: copy"})
        assert filled.content.decode() == wrap(f"{start}{newline}{source}{after}{tail}{end}")


def test_a_note_of_an_earlier_run_goes_even_if_there_is_no_new_one() -> None:
    old = QT_EMPTY.replace("<translation ", f"<translatorcomment>{OLD_NOTE}</translatorcomment><translation ")
    filled = fill_catalogue(read_catalogue("a.ts", qt(old).encode()), {("C\x04A", ""): "MACHINE"})
    assert filled.content.decode() == qt(QT_EMPTY).replace("></translation>", ">MACHINE</translation>")


def test_a_new_file_has_no_notes_on_the_translation_that_it_is_made_from() -> None:
    comment = f"<translatorcomment>von Jana\n{OLD_NOTE}</translatorcomment>"
    message = QT_HUMAN.replace("<translation>", f"<extracomment>menu</extracomment>{comment}<translation>")
    new = new_catalogue(read_catalogue("de.ts", qt(message).encode()), "pl.ts", "pl")
    assert "<extracomment>menu</extracomment><translation " in new.text
    unit = HUMAN.replace("</trans-unit>", f"<note>menu</note><note>{OLD_NOTE}</note></trans-unit>")
    assert new_catalogue(read_catalogue("de.xlf", xliff(unit).encode()), "pl.xlf", "pl").text == xliff(
        EMPTY.replace("</trans-unit>", "<note>menu</note></trans-unit>")
    ).replace('source-language="en"', 'source-language="en" target-language="pl"')


def test_a_new_xliff_file_has_no_states() -> None:
    old = (
        '<xliff version="2.0" srcLang="en" trgLang="de"><file id="f"><unit id="a"><segment{}><source>A</source>'
        "</segment></unit></file></xliff>"
    )
    german = read_catalogue("de.xlf", old.format(' state="final" subState="x:y"').encode())
    assert new_catalogue(german, "pl.xlf", "pl").text == old.format("").replace('"de"', '"pl"')


def test_a_filled_xliff_target_has_no_qualifier_of_the_former_state() -> None:
    old = EMPTY.replace("</source>", '</source><target state="final" state-qualifier="exact-match"/>')
    filled = fill_catalogue(read_catalogue("a.xlf", xliff(old).encode()), {("a", ""): "MACHINE"})
    assert '<target state="needs-review-translation">MACHINE</target>' in filled.content.decode()


XLIFF_2 = '<xliff version="2.0" srcLang="en"{}><file id="f"><unit id="a">{}</unit></file></xliff>'
DSB = ' trgLang="dsb"'


@pytest.mark.parametrize(
    ("attributes", "target", "state"),
    [
        (' state="new"', "A", UNTRANSLATED),
        (' state="new"', " ", UNTRANSLATED),
        (' state="new"', "HUMAN", FUZZY),
        (' state="needs-translation"', "HUMAN", FUZZY),
        ("", "HUMAN", TRANSLATED),
        ("", "A", TRANSLATED),
    ],
)
def test_a_draft_of_a_person_in_xliff_1_is_kept(attributes: str, target: str, state: str) -> None:
    text = xliff(EMPTY.replace("</source>", f"</source><target{attributes}>{target}</target>"))
    catalogue = read_catalogue("a.xlf", text.encode())
    assert [entry.state for entry in catalogue.entries] == [state]
    assert (fill_catalogue(catalogue, {("a", ""): "MACHINE"}).refused == {}) is (state == UNTRANSLATED)


@pytest.mark.parametrize(
    ("source", "target", "state"),
    [
        ("Hello\n          world", " Hello\n     world ", UNTRANSLATED),
        ('Hi <x id="A" equiv-text="{{a}}"/>', 'Hi <x id="A" equiv-text="{{a}}" />', UNTRANSLATED),
        ("Version 2", "Version\N{NO-BREAK SPACE}2", FUZZY),
        ("Hello world", "Helloworld", FUZZY),
    ],
)
def test_a_copy_of_the_source_in_other_white_space_is_untranslated(source: str, target: str, state: str) -> None:
    unit = f'<trans-unit id="a"><source>{source}</source><target state="new">{target}</target></trans-unit>'
    assert [entry.state for entry in read_catalogue("a.xlf", xliff(unit).encode()).entries] == [state]


@pytest.mark.parametrize(
    ("attributes", "target", "state"),
    [
        (' state="initial"', "A", UNTRANSLATED),
        (' state="initial"', "HUMAN", FUZZY),
        (' state="initial" subState="x:y"', "HUMAN", FUZZY),
        ("", "HUMAN", TRANSLATED),
        ("", "A", TRANSLATED),
    ],
)
def test_a_draft_of_a_person_in_xliff_2_is_kept(attributes: str, target: str, state: str) -> None:
    segment = f"<segment{attributes}><source>A</source><target>{target}</target></segment>"
    catalogue = read_catalogue("a.xlf", XLIFF_2.format(DSB, segment).encode())
    assert [entry.state for entry in catalogue.entries] == [state]
    assert (fill_catalogue(catalogue, {("a", ""): "MACHINE"}).refused == {}) is (state == UNTRANSLATED)


def test_a_filled_xliff_file_names_its_language() -> None:
    two = XLIFF_2.format("{}", "<segment><source>A</source></segment>")
    for text, name, key in ((two, "trgLang", "a"), (xliff(EMPTY), "target-language", "a")):
        catalogue = replace(read_catalogue("a.xlf", text.replace("{}", "").encode()), language="dsb")
        filled = fill_catalogue(catalogue, {(key, ""): "MACHINE"})
        assert read_catalogue("a.xlf", filled.content).language == "dsb"
        assert filled.content.count(f'{name}="dsb"'.encode()) == 1
        assert fill_catalogue(catalogue, {}).content == catalogue.content
    # Only <file> elements with a filled unit change, and no language that is there.
    files = [f'<file original="{one}"{language}>' for one, language in (("a", ""), ("b", ' target-language="x"'))]
    units = [f"{file}<body>{EMPTY}</body></file>" for file in (*files, '<file original="c">')]
    catalogue = read_catalogue("a.xlf", f'<xliff version="1.2">{"".join(units)}</xliff>'.encode())
    assert catalogue.language == "x"
    texts = {("a\x04a", ""): "MACHINE", ("b\x04a", ""): "MACHINE"}
    filled = fill_catalogue(replace(catalogue, language="dsb"), texts)
    for start in ('<file original="a" target-language="dsb">', files[1], '<file original="c">'):
        assert start in filled.content.decode()


def test_the_name_of_a_file_begins_keys_only_in_documents_of_several_files() -> None:
    file = '<file id="{}"{}><unit id="a"><segment><source>A</source></segment></unit></file>'
    keys = {
        (): [],
        (file.format("messages.fr", ""),): ["a"],
        (file.format("messages.fr", ""), file.format("f", "")): ["messages.fr\x04a", "f\x04a"],
        (file.format("1", ' original="x"'), file.format("2", "")): ["x\x04a", "2\x04a"],
        (file.format("1", ' original="x"'),): ["a"],
    }
    for files, expected in keys.items():
        text = f'<xliff version="2.0" srcLang="en">{"".join(files)}</xliff>'
        assert [entry.key for entry in read_catalogue("a.xlf", text.encode()).entries] == expected


def test_translations_without_a_language_are_refused_in_xliff_2() -> None:
    catalogue = read_catalogue("a.xlf", XLIFF_2.format("", "<segment><source>A</source></segment>").encode())
    filled = fill_catalogue(catalogue, {("a", ""): "MACHINE"})
    assert [*filled.refused.values()] == [
        "the file has no trgLang, without which XLIFF 2 allows no translations: add it to <xliff>"
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_of_texts_in_xml_are_those_of_the_file(newline: str) -> None:
    source = f"A <x/>{newline}B"
    for path, key, old in (
        ("a.xlf", "a", xliff(f'{newline}<trans-unit id="a"><source>A</source></trans-unit>')),
        ("a.xlf", "a", xliff(f'{newline}<trans-unit id="a"><source>{source}</source></trans-unit>')),
        ("a.ts", "C\x04A", qt(f"{newline}{QT_EMPTY}")),
    ):
        catalogue = read_catalogue(path, old.encode())
        (entry,) = catalogue.entries
        assert entry.source == ("A <x/>\nB" if entry.markup else "A")
        text = "M <x/>\nN\n" if entry.markup else "M\nN\n"
        filled = fill_catalogue(catalogue, {(key, ""): text})
        assert text.replace("\n", newline).encode() in filled.content
        assert filled.content.count(b"\n") == filled.content.count(newline.encode()) == 3 + (entry.markup and 1)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_carriage_returns_of_a_text_are_escaped_in_xml(newline: str) -> None:
    for path, key, old in (("a.xlf", "a", xliff(EMPTY)), ("a.ts", "C\x04A", qt(QT_EMPTY))):
        filled = fill_catalogue(read_catalogue(path, f"{newline}{old}".encode()), {(key, ""): "M\rN\r\n"})
        assert f">M&#13;N&#13;{newline}</".encode() in filled.content


VARIANTS = "<lengthvariant>Long</lengthvariant><lengthvariant>S</lengthvariant>"


@pytest.mark.parametrize(
    "message",
    [
        QT_EMPTY.replace('"unfinished"', '"unfinished" variants="yes"'),
        '<message numerus="yes"><source>A</source><translation type="unfinished">'
        '<numerusform variants="yes"></numerusform></translation></message>',
    ],
)
def test_qt_messages_with_variants_by_length_are_not_filled(message: str) -> None:
    # lrelease refuses a file in which such an element contains a text without <lengthvariant>.
    catalogue = read_catalogue("a.ts", qt(message).encode())
    assert [entry.text for entry in catalogue.entries] == []
    assert [one.partition(": ")[2] for one in catalogue.unhandled] == ["variants by length"]


def test_a_new_qt_file_has_no_variants_by_length() -> None:
    plural = f'<numerusform variants="yes">{VARIANTS}</numerusform>'
    old = qt(
        f'<message><source>A</source><translation variants="yes">{VARIANTS}</translation></message>',
        f'<message numerus="yes"><source>B</source><translation>{plural}</translation></message>',
    )
    new = new_catalogue(read_catalogue("de.ts", old.encode()), "pl.ts", "pl")
    assert "variant" not in new.text
    assert [entry.identity for entry in new.entries] == [("C\x04A", ""), *(("C\x04B", f"[{i}]") for i in range(3))]


# Android

TO_XLIFF = 'xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2"'


def android(*strings: str, attributes: str = "") -> str:
    lines = "".join(f"    {one}\n" for one in strings)
    return f"<resources{attributes}>\n{lines}</resources>\n"


def filled_android(reference: str, texts: dict[str, str], target: str = android()) -> Filled:
    """Fill strings, and read the result as a parser does that knows namespaces."""
    catalogue = read_catalogue("values-dsb/strings.xml", target.encode())
    english = read_catalogue("values/strings.xml", reference.encode())
    filled = fill_catalogue(catalogue, {(key, ""): text for key, text in texts.items()}, english)
    expat.ParserCreate(namespace_separator=" ").Parse(filled.content, True)
    return filled


def test_android_texts_with_elements_are_read_without_escapes_and_written_with_them() -> None:
    reference = android(
        """<string name="a">Can\\'t\\n  open <b title="it's">x  y</b> \\"now\\" &amp; \\u003c \\&quot;</string>""",
        """<string name="b">"  two  "<b> blanks</b>"  "</string>""",
        """<string name="c">\\@<b>x</b></string>""",
    )
    texts = {entry.key: entry.text for entry in read_catalogue("strings.xml", reference.encode()).entries}
    assert texts == {
        "a": """Can't\n open <b title="it's">x y</b> "now" &amp; &lt; &quot;""",
        "b": "  two  <b> blanks</b>  ",
        "c": "@<b>x</b>",
    }
    filled = filled_android(
        reference, {"a": """L'<b title="it's">app</b> "x" \\ &quot;\n""", "b": texts["b"], "c": texts["c"]}
    )
    assert filled.refused == {}
    lines = [line.strip() for line in filled.content.decode().splitlines() if "<string" in line]
    assert lines == [
        """<string name="a">L\\'<b title="it's">app</b> \\"x\\" \\\\ \\&quot;\\n</string>""",
        """<string name="b">"  two  "<b> blanks</b>"  "</string>""",
        """<string name="c">\\@<b>x</b></string>""",
    ]


def test_android_strings_keep_the_attributes_that_the_compiler_reads() -> None:
    reference = android(
        '<string name="a" formatted="false" translatable="true">%d of %d</string>',
        '<plurals name="p"><item quantity="other">x</item></plurals>',
        '<string name="t" product="default">x</string>',
        '<string name="several" product="tablet">x</string>',
        '<string name="several" product="default">y</string>',
    )
    filled = filled_android(reference, {"a": "%d z %d", "t": "t", "several": "z"})
    assert '<string name="a" formatted="false">%d z %d</string>' in filled.content.decode()
    assert '<string name="t" product="default">t</string>' in filled.content.decode()
    assert list(filled.refused.values()) == ["the reference has this name several times, for several products"]


def test_android_prefixes_are_declared_where_the_target_does_not_declare_them() -> None:
    text = '<xliff:g id="x">%s</xliff:g> jo'
    reference = android(f'<string name="a">{text}</string>', '<string name="b">x</string>', attributes=f" {TO_XLIFF}")
    filled = filled_android(reference, {"a": text, "b": "<none:g>"})
    assert f'<string name="a" {TO_XLIFF}>{text}</string>' in filled.content.decode()
    assert "&lt;none:g" in filled.content.decode()
    declared = filled_android(reference, {"a": text}, android(attributes=f" {TO_XLIFF}"))
    assert f'<string name="a">{text}</string>' in declared.content.decode()
    refused = filled_android(reference, {"a": f'<b other:y="1">{text}</b>'})
    assert list(refused.refused.values()) == ["no file declares the prefix other"]


# DTD


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A & B", "not well-formed"),
        ("A < B", "not well-formed"),
        ("A <b>B", "asynchronous entity"),
        ("A &#38; B", "not well-formed"),
        ("A &own; B", "recursive entity reference"),
    ],
)
def test_a_dtd_text_that_would_break_every_page_is_refused(text: str, reason: str) -> None:
    filled = fill_catalogue(read_catalogue("a.dtd", b""), {("own", ""): text, ("other", ""): "x"})
    assert [*filled.refused] == [("own", "")]
    assert filled.refused["own", ""].startswith(f"the text is not well-formed XML ({reason}")


def test_dtd_texts_may_hold_references_and_elements() -> None:
    text = "&brandShortName; &amp; <a href='&x.y;'>&#228;</a><br/> > &#38;#60; &lt;"
    filled = fill_catalogue(read_catalogue("a.dtd", b""), {("own", ""): text})
    assert filled.refused == {}


INCLUSION = '<!ENTITY % brandDTD SYSTEM "chrome://branding/locale/brand.dtd">\n%brandDTD;\n'


def test_files_that_a_dtd_includes_are_included_in_a_new_one() -> None:
    public = """<!ENTITY % other PUBLIC "-//O//" 'o.dtd' >%other;"""
    rest = f'<!-- %no; <!ENTITY % no SYSTEM "no.dtd"> -->\n<!ENTITY a "100 %no; &brandShortName;">\n{public}\n'
    old = read_catalogue("a.dtd", f"<!-- License -->\n\n{INCLUSION}{rest}".encode())
    assert ([entry.key for entry in old.entries], old.unhandled) == (["a"], ())
    new = new_catalogue(old, "a.dtd", "dsb")
    head = f"<!-- License -->\n\n{INCLUSION}{public.removesuffix('%other;')}\n%other;\n"
    assert new.text == head
    filled = fill_catalogue(new, {("a", ""): "&brandShortName;"}, old)
    assert filled.content.decode().startswith(f"{head}\n<!-- ")
    assert [entry.text for entry in read_catalogue("a.dtd", filled.content).entries] == ["&brandShortName;"]


# Character sets and flags


def test_a_file_whose_characters_have_several_encodings_is_not_filled() -> None:
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=CP932\\n"\n\nmsgid "a"\nmsgstr ""\n'
    catalogue = read_catalogue("a.po", head.encode() + b'\nmsgid "b"\nmsgstr "\x87\x90"\n')
    filled = fill_catalogue(catalogue, {("a", ""): "x"})
    assert filled.content == catalogue.content
    assert list(filled.refused.values()) == [
        "the file would change elsewhere, because cp932 has several bytes for one character: convert the file to UTF-8"
    ]
    plain = read_catalogue("a.po", head.encode())
    assert fill_catalogue(plain, {("a", ""): "x"}).refused == {}


@pytest.mark.parametrize(
    ("target", "reference", "written"),
    [
        (b"", b"a=\\u00e4\nb=b\n", b"b=\\u010d"),
        (b"a=a\n", "a=ä\nb=b\n".encode("latin-1"), b"b=\\u010d"),
        (b"", "a=ä\nb=b\n".encode(), "b=č".encode()),
        ("a=č\n".encode(), b"a=\\u00e4\nb=b\n", "b=č".encode()),
        (b"", "a=\\u00e4 č\nb=b\n".encode(), "b=č".encode()),
        (b"a=a\n", b"a=a\nb=b\n", b"b=\\u010d"),
        ("# ©\na=\\u00e4\n".encode(), "a=ä\nb=b\n".encode(), b"b=\\u010d"),  # comments do not count
        ("# ©\na=a\n".encode(), "# ©\na=a\n".encode(), b"b=\\u010d"),
        (b"a=\\u0020a\n", "a=ä\nb=b\n".encode(), "b=č".encode()),  # an escape of ASCII shows nothing
    ],
)
def test_a_properties_file_without_such_characters_is_written_like_its_reference(
    target: bytes, reference: bytes, written: bytes
) -> None:
    catalogues = (read_catalogue("a.properties", content) for content in (target, reference))
    assert written in fill_catalogue(next(catalogues), {("b", ""): "č"}, next(catalogues)).content


def test_all_lines_with_flags_count_in_gettext_files() -> None:
    text = '#, fuzzy\n#, c-format\nmsgid "%d"\nmsgstr "x %d"\n\n#, c-format\n#, no-wrap\nmsgid "b"\nmsgstr ""\n'
    catalogue = read_catalogue("a.po", text.encode())
    assert [entry.state for entry in catalogue.entries] == [FUZZY, "untranslated"]
    filled = fill_catalogue(catalogue, {("b", ""): "B"}).content.decode()
    assert filled.endswith('\n#, fuzzy, c-format\n#, no-wrap\nmsgid "b"\nmsgstr "B"\n')
    new = new_catalogue(catalogue, "b.po", "cs").text
    assert "fuzzy" not in new
    assert new.count("c-format") == 2


# Time


@pytest.mark.parametrize(
    ("bad", "reason", "most"),
    [
        ("x<b>y", "the file cannot hold this text", 60),
        ("<b>x\x01</b>", "the file cannot hold this text: U+0001 is no character of XML", 1),
        ("<b>x\uffff</b>", "the file cannot hold this text: U+FFFF is no character of XML", 1),
    ],
    ids=["an open tag", "a control character", "a noncharacter"],
)
def test_a_text_that_makes_a_file_unreadable_is_found_in_few_steps(
    bad: str, reason: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def read(path: str, content: bytes) -> Catalogue:
        reads.append(path)
        return ANDROID.read(path, content)

    reference = android(*(f'<string name="k{i}">a <b>b</b></string>' for i in range(300)))
    target, english = (read_catalogue("strings.xml", text.encode()) for text in (android(), reference))
    texts = {(f"k{i}", ""): f"{i} <b>b</b>" for i in range(300)} | {
        ("k7", ""): bad,
        ("k150", ""): bad,
        ("k151", ""): bad,
    }
    monkeypatch.setattr(catalogue_files, "ANDROID", replace(ANDROID, read=read))
    filled = fill_catalogue(target, texts, english)
    assert filled.refused == {(f"k{i}", ""): reason for i in (7, 150, 151)}
    assert len(filled.filled) == 297
    assert len(reads) <= most
