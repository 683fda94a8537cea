"""Reading and filling localization catalogues: the entries of each format, and the lines that filling changes."""

from __future__ import annotations

import difflib
import io
import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import polib
import pytest
from compare_locales.parser import getParser
from hypothesis import given
from hypothesis import strategies as st

from catalogue_samples import ANDROID, DTD, FLUENT, PO, PROPERTIES, QT, SAMPLES, XLIFF_1, XLIFF_2, Sample
from cpu_time import cpu_seconds
from hf_multisource.data.catalogue_entries import FUZZY, REVIEW, UNTRANSLATED, Catalogue
from hf_multisource.data.catalogue_files import fill_catalogue, find_format, read_catalogue
from hf_multisource.data.xml_places import MAX_DEPTH

NAMED = [pytest.param(sample, id=sample.path) for sample in SAMPLES]
FORMS = {"lf": ("", "\n"), "crlf": ("", "\r\n"), "byte order mark": ("\ufeff", "\n")}


def read(sample: Sample, form: str = "lf") -> Catalogue:
    return read_catalogue(sample.path, written(sample.text, form))


def reference(sample: Sample) -> Catalogue | None:
    return read_catalogue(f"en/{sample.path}", sample.reference.encode()) if sample.reference else None


def written(text: str, form: str) -> bytes:
    mark, newline = FORMS[form]
    return (mark + text.replace("\n", newline)).encode()


def texts_of(catalogue: Catalogue) -> dict[tuple[str, str], tuple[str, str]]:
    return {entry.identity: (entry.text, entry.state) for entry in catalogue.entries}


def changed(before: bytes, after: bytes) -> tuple[list[bytes], list[bytes]]:
    """The lines that are gone and those that are new."""
    old, now = (io.StringIO(content.decode("latin-1"), newline="").readlines() for content in (before, after))
    lines = difflib.ndiff(old, now)
    gone, new = [], []
    for line in lines:
        if line.startswith("- "):
            gone.append(line[2:].encode("latin-1"))
        elif line.startswith("+ "):
            new.append(line[2:].encode("latin-1"))
    return gone, new


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sample", NAMED)
def test_entries_are_read(sample: Sample, form: str) -> None:
    assert texts_of(read(sample, form)) == sample.entries
    assert len(read(sample, form).unhandled) == (sample is FLUENT)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sample", NAMED)
def test_filling_nothing_gives_the_same_bytes(sample: Sample, form: str) -> None:
    catalogue = read(sample, form)
    filled = fill_catalogue(catalogue, {}, reference(sample))
    assert filled.content == catalogue.content
    assert (filled.filled, filled.refused) == ((), {})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sample", NAMED)
def test_all_new_texts_are_filled_and_need_a_review(sample: Sample, form: str) -> None:
    catalogue = read(sample, form)
    filled = fill_catalogue(catalogue, sample.new, reference(sample))
    assert filled.refused == {}
    assert set(filled.filled) == set(sample.new)
    again = texts_of(read_catalogue(sample.path, filled.content))
    assert again == {**sample.entries, **{identity: (text, FUZZY) for identity, text in sample.new.items()}}
    newline = FORMS[form][1].encode()
    assert filled.content.count(b"\n") == filled.content.count(newline)
    assert (
        fill_catalogue(read_catalogue(sample.path, filled.content), sample.new).filled == ()
    )  # nothing is missing now


@pytest.mark.parametrize("sample", NAMED)
def test_notes_become_comments_and_change_nothing_else(sample: Sample) -> None:
    catalogue = read(sample)
    notes = {key: f"From: memory, model ({number}%)" for number, (key, _) in enumerate(sample.new)}
    plain = fill_catalogue(catalogue, sample.new, reference(sample))
    filled = fill_catalogue(catalogue, sample.new, reference(sample), notes)
    assert (filled.filled, filled.refused) == (plain.filled, {})
    assert texts_of(read_catalogue(sample.path, filled.content)) == texts_of(read_catalogue(sample.path, plain.content))
    if sample is not XLIFF_2:
        lines = [line for line in filled.content.decode().splitlines() if "From: memory, model (" in line]
        assert [note for note in notes.values() if not any(note in line for line in lines)] == []
        entries = read_catalogue(sample.path, filled.content).entries
        assert all(notes[e.key] in e.comment for e in entries if e.identity in sample.new)
    with pytest.raises(ValueError, match="the note on x is '-->'; it must be of A-Z"):
        fill_catalogue(catalogue, sample.new, reference(sample), {"x": "-->"})


@pytest.mark.parametrize("sample", NAMED)
def test_filling_one_entry_changes_only_its_lines(sample: Sample) -> None:
    catalogue = read(sample)
    for key in dict.fromkeys(key for key, _ in sample.new):
        new = {identity: text for identity, text in sample.new.items() if identity[0] == key}
        filled = fill_catalogue(catalogue, new, reference(sample))
        assert set(filled.filled) == set(new)
        gone, lines = changed(catalogue.content, filled.content)
        # Lines that go are those of the empty entry, of its flags or its state, and an end of the file without LF.
        last = catalogue.content.splitlines(keepends=True)[-1]
        for line in gone:
            ours = any(
                mark in line
                for mark in (b"msgstr", b"#, c-format", b"<target", b"<translation", b"<numerusform", b"<trans-unit")
            )
            assert ours or b"<segment" in line or line == last, line
        assert len(gone) <= 4
        assert b"license" not in b"".join([*gone, *lines])
        assert len(lines) <= 4 + 4 * len(new)


@pytest.mark.parametrize(
    "sample", [one for one in NAMED if isinstance(one.values[0], Sample) and one.values[0].reference]
)
def test_new_messages_stand_where_the_reference_has_them(sample: Sample) -> None:
    filled = fill_catalogue(read(sample), sample.new, reference(sample))
    model = reference(sample)
    assert model is not None
    order = list(dict.fromkeys(entry.key for entry in model.entries))
    keys = list(dict.fromkeys(e.key for e in read_catalogue(sample.path, filled.content).entries))
    both = [key for key in keys if key in order]
    assert both == sorted(both, key=order.index)
    assert filled.content.decode().count(REVIEW) == len({key for key, _ in sample.new})


def test_the_result_is_as_a_person_would_write_it() -> None:
    def new_lines(sample: Sample, *keys: str) -> str:
        new = {identity: text for identity, text in sample.new.items() if identity[0] in keys}
        catalogue = read(sample)
        return b"".join(
            changed(catalogue.content, fill_catalogue(catalogue, new, reference(sample)).content)[1]
        ).decode()

    assert new_lines(FLUENT, "tabs", "open") == (
        f"# {REVIEW}: .title\n    .title = Titel\n"
        f"# {REVIEW}\ntabs =\n    {{ $n ->\n        [one] {{ $n }} rejtarik\n        [two] {{ $n }} rejtarika\n"
        "       *[other] { $n } rejtarikow\n    }\n"
    )
    assert new_lines(PROPERTIES, "first") == f"# {REVIEW}\nfirst=prědny\n"
    assert new_lines(DTD, "close.label") == (
        f"<!-- {REVIEW} -->\n<!ENTITY close.label 'Zacyniś \"to\" &brandShortName;'>\n"
    )
    assert new_lines(ANDROID, "end") == f'    <!-- {REVIEW} -->\n    <string name="end">" kóńc "</string>\n'
    quantities = re.findall(r'quantity="(\w+)"', new_lines(ANDROID, "tabs"))
    assert quantities == ["one", "few", "other"]
    assert new_lines(PO, "close %d") == '#, fuzzy, c-format\nmsgstr "zacyniś %d \\"\\\\\\""\n'
    assert new_lines(PO, "menu\x04save", "lines\nmore") == (
        '#, fuzzy\nmsgstr "składowaś"\n#, fuzzy\n"smužki\\n"\n"\\n"\n"wěcej"\n'
    )
    assert new_lines(XLIFF_1, "close") == (
        '        <target state="needs-review-translation">Zacyniś <g id="1">to</g> &amp; hyś</target>\n'
    )
    assert new_lines(QT, "Menu\x04Close") == '        <translation type="unfinished">Zacyniś</translation>\n'


PIECES = [b"{", b"}", b"<", b"/>", b'"', b"\\", b"\n", b"\r", b"#", b"->", b"*[a]", b"\xef\xbb\xbf", b"<!--", b"msgid "]
HARD = st.text(st.sampled_from("ab\\\"' \n\t{}<>&%=:#!@?[]*.;$\r\u00e4\u0107\u2028\U0001f600-_"), max_size=12)


@given(HARD, HARD, st.sampled_from(SAMPLES))
def test_any_text_comes_back_or_is_refused(one: str, other: str, sample: Sample) -> None:
    catalogue = read(sample)
    new = dict(zip(sample.new, (one, other), strict=False))
    filled = fill_catalogue(catalogue, new, reference(sample))
    assert set(filled.filled) | set(filled.refused) == set(new)
    assert set(filled.filled) & set(filled.refused) == set()
    again = texts_of(read_catalogue(sample.path, filled.content))
    assert again == {**sample.entries, **{identity: (new[identity], FUZZY) for identity in filled.filled}}
    if not filled.filled:
        assert filled.content == catalogue.content


def test_plain_texts_are_never_refused() -> None:
    for sample in SAMPLES:
        plain = dict.fromkeys(sample.new, "Ně, to jo 2 % a »x«")
        if sample is PO:
            plain["lines\nmore", ""] = "a\nb"
        if sample is DTD:
            plain = dict.fromkeys(sample.new, "Ně, to jo »x«")
        filled = fill_catalogue(read(sample), plain, reference(sample))
        assert (set(filled.filled), filled.refused) == (set(plain), {}), sample.path


@pytest.mark.parametrize(
    ("sample", "texts", "reason"),
    [
        (FLUENT, {("open", ""): "x"}, "has a translation already"),
        (FLUENT, {("open", ".new[one]"): "x"}, "only attributes without variants"),
        (FLUENT, {("close", ""): "x"}, ".label of the message would be missing"),
        (FLUENT, {("quit", ""): "x"}, ".label of the message would be missing"),
        (FLUENT, {("tabs", "[one]"): "x"}, "the default variant [other] would be missing"),
        (FLUENT, {("help", "[one]"): "x"}, "the value has no variants in the reference"),
        (FLUENT, {("unknown", "[one]"): "x"}, "variants need a reference file"),
        (FLUENT, {("first", ""): "{ $x"}, "it does not come back"),
        (FLUENT, {("first", ""): " x"}, "it comes back as 'x', fuzzy"),
        (FLUENT, {("first", ""): "a\n.b = c"}, "it comes back as 'a', fuzzy"),
        (PROPERTIES, {("open", ""): "x"}, "has a translation already"),
        (PROPERTIES, {("new", "[one]"): "x"}, "properties have no parts"),
        (DTD, {("open.label", ""): "x"}, "has a translation already"),
        (DTD, {("new", ".a"): "x"}, "entities have no parts"),
        (DTD, {("new", ""): "100 %"}, "an entity cannot hold % or both kinds"),
        (DTD, {("new", ""): '"it\'s"'}, "an entity cannot hold % or both kinds"),
        (DTD, {("two words", ""): "x"}, "the file cannot hold this text"),
        (ANDROID, {("open", ""): "x"}, "has a translation already"),
        (ANDROID, {("tabs", "[one]"): "x"}, "[other] would be missing"),
        (ANDROID, {("months", "[0]"): "x"}, "[1] would be missing"),
        (ANDROID, {("first", "[0]"): "x"}, "[0] does not fit <string>"),
        (ANDROID, {("link", ""): "<a>x"}, "the file cannot hold"),
        (ANDROID, {("link", ""): 'x <a href="x">y</a>\u0001'}, "the file cannot hold"),
        (PO, {("unknown", ""): "x"}, "add it with msgmerge first"),
        (PO, {("save", ""): "x"}, "has a translation already"),
        (PO, {("%d file", "[2]"): "%d"}, "some plural forms are translated already"),
        (PO, {("%d tab", "[0]"): "%d"}, "msgstr[1], msgstr[2] of the entry would stay empty"),
        (PO, {("%d tab", "[7]"): "%d"}, "the entry has no msgstr[7]; it has msgstr[0], msgstr[1], msgstr[2]"),
        (PO, {("close %d", ""): ""}, "the text is empty"),
        (PO, {("close %d", ""): "x\n"}, "must both begin or end with a line break"),
        (XLIFF_1, {("unknown", ""): "x"}, "the file has no such unit"),
        (XLIFF_1, {("no", ""): "x"}, "the file has no such unit"),
        (XLIFF_1, {("open", ""): "x"}, "has a translation already"),
        (XLIFF_1, {("close", ""): "<g>x"}, "the file cannot hold"),
        (QT, {("unknown", ""): "x"}, "the file has no such message"),
        (QT, {("Menu\x04Save", ""): "x"}, "has a translation already"),
        (QT, {("Menu\x04Close", "[0]"): "x"}, "the message has"),
        (QT, {("Menu\x04%n file(s)", "[0]"): "x"}, "[1] of the message would stay empty"),
        (QT, {("Menu\x04Close", ""): ""}, "it comes back as '', untranslated"),
    ],
)
def test_what_cannot_be_filled_is_refused_and_the_rest_is_filled(
    sample: Sample, texts: Mapping[tuple[str, str], str], reason: str
) -> None:
    catalogue = read(sample)
    filled = fill_catalogue(catalogue, texts, reference(sample))
    assert [text for text in filled.refused.values() if reason not in text] == []
    assert set(filled.refused) == set(texts)
    assert filled.content == catalogue.content
    others = {one: text for one, text in sample.new.items() if one[0] not in {key for key, _ in texts}}
    together = fill_catalogue(catalogue, {**texts, **others}, reference(sample))
    assert set(together.filled) == set(others)
    assert together.content == fill_catalogue(catalogue, others, reference(sample)).content


@pytest.mark.parametrize("path", ["a.ftl", "a.properties"])
@pytest.mark.parametrize("header", ["", "# License", "# License\n", "# License\n\n", "# License\r\n"])
def test_a_license_does_not_become_the_comment_of_a_new_message(path: str, header: str) -> None:
    filled = fill_catalogue(read_catalogue(path, header.encode()), {("a", ""): "b", ("c", ""): "d"})
    assert [entry.comment for entry in read_catalogue(path, filled.content).entries] == [REVIEW, REVIEW]
    assert filled.content.decode().startswith(header)
    assert "\n\n\n" not in filled.content.decode()


@pytest.mark.parametrize(
    ("path", "text"),
    [("a.ftl", "# License\nb = b\n"), ("a.properties", "! License\nb=b\n"), ("a.dtd", '<!-- L --><!ENTITY b "b">\n')],
)
def test_a_license_stays_first(path: str, text: str) -> None:
    model = '<!ENTITY a "a"><!ENTITY b "b">' if path.endswith(".dtd") else "a = a\nb = b\n"
    catalogue = read_catalogue(path, text.encode())
    filled = fill_catalogue(catalogue, {("a", ""): "b"}, read_catalogue(path, model.encode()))
    assert filled.filled == (("a", ""),)
    assert filled.content.decode().startswith(text.rstrip())


def test_a_properties_file_in_latin_1_stays_in_it() -> None:
    catalogue = read_catalogue("a.properties", "a=ä\n".encode("latin-1"))
    assert [entry.text for entry in catalogue.entries] == ["ä"]
    content = fill_catalogue(catalogue, {("b", ""): "äč😀"}).content
    assert content == f"a=ä\n\n# {REVIEW}\nb=\\u00e4\\u010d\\ud83d\\ude00\n".encode("latin-1")
    escapes = read_catalogue("a.properties", b"a=\\u00e4\n")
    assert fill_catalogue(escapes, {("b", ""): "č"}).content.endswith(b"\nb=\\u010d\n")
    assert read_catalogue("a.properties", b"a=\\ud83dx\nb=c\n").unhandled == ("line 1: \\u gives half a character",)


def test_a_po_file_in_latin_2_stays_in_it() -> None:
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-2\\n"\n\nmsgid "a"\nmsgstr ""\n'
    catalogue = read_catalogue("a.po", header.encode())
    assert fill_catalogue(catalogue, {("a", ""): "č"}).content.endswith(
        '\n#, fuzzy\nmsgid "a"\nmsgstr "č"\n'.encode("iso-8859-2")
    )
    assert list(fill_catalogue(catalogue, {("a", ""): "ж"}).refused.values()) == [
        "'ж' is not in the file's character set, iso-8859-2"
    ]


@pytest.mark.parametrize("charset", ["ISO-8859-1", "windows-1251", "cp850", "KOI8-R", "US-ASCII"])
def test_utf_8_under_a_header_with_another_character_set_is_refused(charset: str) -> None:
    po = f'msgid ""\nmsgstr "Content-Type: text/plain; charset={charset}\\n"\n\nmsgid "a"\nmsgstr "wočiniś"\n'
    with pytest.raises(
        ValueError, match=rf"^a\.po: the header says charset={charset.lower()}, but the texts are UTF-8"
    ):
        read_catalogue("a.po", po.encode())


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("ISO-8859-1", "öffnen"),
        ("windows-1251", "Открыть"),
        ("KOI8-R", "её файл"),
        ("GB2312", "联通"),
        ("cp866", "раб т"),
    ],
)
def test_texts_in_the_character_set_of_the_header_are_read(charset: str, text: str) -> None:
    po = f'msgid ""\nmsgstr "Content-Type: text/plain; charset={charset}\\n"\n\nmsgid "a"\nmsgstr "{text}"\n'
    assert [entry.text for entry in read_catalogue("a.po", po.encode(charset)).entries] == [text]


def test_templates_hold_the_source_side_alone() -> None:
    entries = read_catalogue("a.pot", PO.text.replace("charset=UTF-8", "charset=CHARSET").encode()).entries
    assert {entry.source for entry in entries if entry.key == "%d tab"} == {"%d tab", "%d tabs"}
    assert next(entry.source for entry in entries if entry.key == "menu\x04save") == "save"


@pytest.mark.parametrize("sample", [PO, PROPERTIES, DTD], ids=lambda sample: sample.path)
def test_another_reader_reads_the_same(sample: Sample, tmp_path: Path) -> None:
    if sample is PO:
        found: dict[tuple[str, str], str] = {}
        for entry in polib.pofile(sample.text):
            key = f"{entry.msgctxt}\x04{entry.msgid}" if entry.msgctxt else entry.msgid
            forms = {f"[{i}]": text for i, text in entry.msgstr_plural.items()} or {"": entry.msgstr}
            found |= {(key, part): text for part, text in forms.items()}
    else:
        parser = getParser(sample.path)
        text = sample.text.replace("with\\ blank Wót", "with blank = Wót").replace("\\\n  \\ zacynjeny", " zacynjeny")
        parser.readUnicode(text)
        found = {(one.key, ""): one.raw_val if sample is DTD else one.val for one in parser}
    assert found == {identity: text for identity, (text, _) in sample.entries.items()}


PREVIOUS = """\
#. developer's
#: a.c:1
#| msgctxt "menu"
#| msgid "Open the folder"
msgid "Open the folder now"
msgstr ""
"""
REVIEWED = """\
# translator's
#. developer's
#: a.c:1
{}#, {}c-format
#| msgid "old"
msgid "open %d"
msgstr ""
"""


def filled_po(text: str, key: str, note: str = "From: memory") -> str:
    filled = fill_catalogue(read_catalogue("a.po", text.encode()), {(key, ""): "nowy"}, notes={key: note})
    assert filled.refused == {}
    return filled.content.decode()


def test_flags_and_notes_stand_before_the_previous_message() -> None:
    # gettext does not parse a file with other comments between `#|` and `msgid`.
    assert filled_po(PREVIOUS, "Open the folder now") == (
        "# From: memory\n#. developer's\n#: a.c:1\n#, fuzzy\n"
        '#| msgctxt "menu"\n#| msgid "Open the folder"\nmsgid "Open the folder now"\nmsgstr "nowy"\n'
    )


@pytest.mark.parametrize("old", ["", "# From: model (confidence 0.83)\n", "# From: memory, model\n# From: copy\n"])
def test_an_entry_that_a_reviewer_emptied_is_filled_again_without_a_trace_of_the_first_time(old: str) -> None:
    expected = "# translator's\n# From: memory\n" + REVIEWED.partition("\n")[2].format("", "fuzzy, ")
    expected = expected.replace('msgstr ""', 'msgstr "nowy"')
    for flag in ("", "fuzzy, "):
        text = REVIEWED.format(old, flag)
        assert filled_po(text, "open %d") == expected
        again = filled_po(text, "open %d", "From: model (confidence 0.91)").replace('"nowy"', '""')
        assert filled_po(again, "open %d") == expected


def test_a_note_of_a_person_that_looks_like_a_note_of_origin_stays() -> None:
    text = '# From: the model of Jana\n#: a.c:1\nmsgid "a"\nmsgstr ""\n'
    assert filled_po(text, "a") == (
        '# From: the model of Jana\n# From: memory\n#: a.c:1\n#, fuzzy\nmsgid "a"\nmsgstr "nowy"\n'
    )


@pytest.mark.parametrize(
    ("path", "mark"), [("a.ftl", "##"), ("a.ftl", "###"), ("a.ftl", "#"), ("a.properties", "#"), ("a.properties", "!")]
)
def test_new_messages_stand_in_their_section_of_the_reference(path: str, mark: str) -> None:
    first, second, third = (f"{mark} {name}\n\n" for name in ("Menu", "Dialog", "End"))
    english = f"{first}a = A\n\n{second}b1 = B\nb2 = B\n# Note\nc = C\nd = D\n\n{third}e = E\n"
    target = f"{first}a = A\n\n{second}# Note\nc = C\n"
    new = {(key, ""): "x" for key in ("b1", "b2", "d", "e")}
    filled = fill_catalogue(read_catalogue(path, target.encode()), new, read_catalogue(path, english.encode()))
    equals = "=" if path.endswith(".properties") else " = "
    b1, b2, d, e = (f"# {REVIEW}\n{key}{equals}x\n" for key, _ in new)
    assert filled.content.decode() == f"{first}a = A\n\n{second}{b1}{b2}# Note\nc = C\n{d}{e}"


def test_a_new_first_property_stands_after_the_byte_order_mark() -> None:
    reference = read_catalogue("en/a.properties", b"\xef\xbb\xbfa=A\nb=B\n")
    filled = fill_catalogue(read_catalogue("a.properties", b"\xef\xbb\xbfb=B\n"), {("a", ""): "x"}, reference)
    assert filled.content.decode() == f"\ufeff# {REVIEW}\na=x\nb=B\n"
    assert filled.refused == {}


@pytest.mark.parametrize("path", ["a.properties", "a.ftl"])
def test_the_first_message_after_a_lone_byte_order_mark_stands_in_the_first_line(path: str) -> None:
    filled = fill_catalogue(read_catalogue(path, b"\xef\xbb\xbf"), {("a", ""): "x"}, read_catalogue(path, b"a = x\n"))
    assert filled.content.decode().startswith(f"\ufeff# {REVIEW}\na")


def test_properties_files_may_have_line_ends_of_cr() -> None:
    text = "# License\r\ra=one \\\r  line\r# note\rb=two\r"
    catalogue = read_catalogue("a.properties", text.encode())
    assert [(one.key, one.text, one.comment) for one in catalogue.entries] == [
        ("a", "one line", ""),
        ("b", "two", "note"),
    ]
    reference = read_catalogue("a.properties", b"a=x\rn=x\rb=x\r")
    filled = fill_catalogue(catalogue, {("n", ""): "new", ("m", ""): "last"}, reference, {"n": "From: model"})
    new = f"# {REVIEW}\r# From: model\rn=new\r"
    assert filled.content.decode() == text.replace("# note\r", f"{new}# note\r") + f"# {REVIEW}\rm=last\r"
    alone = fill_catalogue(read_catalogue("a.properties", b"# License\r"), {("m", ""): "x"})
    assert alone.content.decode() == f"# License\r\r# {REVIEW}\rm=x\r"


def test_a_byte_order_mark_stays_first() -> None:
    assert filled_po('\ufeffmsgid "a"\nmsgstr ""\n', "a") == (
        '\ufeff# From: memory\n#, fuzzy\nmsgid "a"\nmsgstr "nowy"\n'
    )


def test_too_few_plural_forms_in_the_header_are_named_as_the_cause() -> None:
    text = 'msgid ""\nmsgstr "Plural-Forms: nplurals={}; plural=0;\\n"\n\nmsgid "a"\nmsgid_plural "b"\n'
    text += "".join(f'msgstr[{i}] ""\n' for i in range(3))
    reason = "msgstr[1], msgstr[2] of the entry would stay empty"
    for number, cause in {
        1: ", and the header has nplurals=1: correct the line Plural-Forms in the header",
        3: "",
    }.items():
        filled = fill_catalogue(read_catalogue("a.po", text.format(number).encode()), {("a", "[0]"): "x"})
        assert filled.refused == {("a", "[0]"): reason + cause}


def test_a_compiled_file_has_the_translated_entries_of_its_source(tmp_path: Path) -> None:
    whole = PO.text.replace('msgstr[2] ""', 'msgstr[2] "%d datajow"', 1)
    polib.pofile(whole).save_as_mofile(str(tmp_path / "a.mo"))
    content = (tmp_path / "a.mo").read_bytes()
    entries = read_catalogue("a.mo", content).entries
    expected = {key: text for key, (text, state) in PO.entries.items() if state == "translated"}
    expected["%d file", "[2]"] = "%d datajow"
    assert {entry.identity: entry.text for entry in entries} == expected
    assert {entry.source for entry in entries if entry.key == "%d file"} == {"%d file", "%d files"}
    numbers = struct.unpack(f"<{len(content[:28]) // 4}I", content[:28])
    swapped = struct.pack(">7I", *numbers) + content[28:]
    for table in numbers[3:5]:
        values = struct.unpack_from(f"<{2 * numbers[2]}I", content, table)
        swapped = swapped[:table] + struct.pack(f">{len(values)}I", *values) + swapped[table + 4 * len(values) :]
    assert read_catalogue("a.mo", swapped).entries == entries
    with pytest.raises(ValueError, match=r"a\.mo cannot be filled: fill the file that it is made from"):
        fill_catalogue(read_catalogue("a.mo", content), {})


XLIFF_HEAD = '<xliff version="1.2"><file original="a"><body>'
BOMB = '<!DOCTYPE r [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><resources><string>&b;</string></resources>'
OUTSIDE = '<!DOCTYPE r [<!ENTITY a SYSTEM "file:///etc/passwd">]><resources><string name="x">&a;</string></resources>'


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt is no catalogue; allowed are \.ftl, \.po"),
        ("a.ftl", b"a = b\nc = \xff", r"a\.ftl, line 2: not utf-8: byte 0xff"),
        ("a.ftl", b"a = " + b"{" * 5000, r"a\.ftl: placeables are nested too deeply"),
        ("a.dtd", b"\xff", r"a\.dtd, line 1: not utf-8"),
        ("a.po", b'msgid "a"\nmsgstr "\xff"', r"a\.po, line 2: not utf-8"),
        ("a.po", b'msgid "a"\nmsgstr a', r"a\.po, line 2: not gettext: a line is a comment \(#\), empty, or msgctxt"),
        ("a.po", b'msgstr "a"\nmsgid "b"', r"a\.po, line 1: msgstr is out of place"),
        ("a.po", b'"a"\nmsgid "b"', r"a\.po, line 1: a text is out of place"),
        ("a.po", b'msgid "a"\nmsgid "b"', r"a\.po, line 2: msgid is out of place"),
        ("a.po", b'msgid "a"\n# c\nmsgstr "b"', r"a\.po, line 2: a comment inside an entry"),
        ("a.po", b'\nmsgid "a"\n', r"a\.po: the entry that begins at line \d has no msgstr"),
        ("a.po", b'msgid ""\nmsgstr "charset=punycode\\n"', r"a\.po: charset is punycode; it must be UTF-8 or another"),
        ("a.po", b'msgid ""\nmsgstr "charset=cp9999\\n"', r"a\.po: charset cp9999 is unknown to Python"),
        ("a.mo", b"abcd", r"a\.mo: it begins with 61626364, so it is no \.mo file of gettext"),
        ("a.mo", b"\xde\x12\x04\x95", r"a\.mo: damaged: it has 4 bytes, fewer than the header"),
        ("a.mo", struct.pack("<7I", 0x950412DE, 0, 2**32 - 1, 28, 28, 0, 0), r"a\.mo: damaged: a table of 4,294"),
        ("a.mo", struct.pack("<9I", 0x950412DE, 0, 1, 28, 28, 0, 0, 9, 28), r"a\.mo: damaged: text 0 is longer"),
        ("strings.xml", b"<resources>", r"strings\.xml, line 1: not XML: no element found"),
        ("strings.xml", b"<a/>", r"strings\.xml: the root must be <resources>; it is <a>"),
        ("strings.xml", BOMB.encode(), r"strings\.xml, line 1: entities are declared or used"),
        ("strings.xml", OUTSIDE.encode(), r"strings\.xml, line 1: entities are declared or used"),
        (
            "strings.xml",
            b'<!DOCTYPE r SYSTEM "http://x/r.dtd"><resources>&a;</resources>',
            "entities are declared or used",
        ),
        ("strings.xml", b'<!DOCTYPE r [<!ENTITY % p SYSTEM "p"> %p;]><resources/>', "entities are declared or used"),
        ("strings.xml", b"<resources>" * (MAX_DEPTH + 1), f"elements are nested more than {MAX_DEPTH} deep"),
        ("strings.xml", b'<?xml version="1.0" encoding="latin-1"?><resources/>', "the encoding is latin-1; convert"),
        ("strings.xml", "<resources/>".encode("utf-16"), r"strings\.xml, line 1: not utf-8"),
        ("a.xlf", b'<xliff version="3.0"/>', r"must be <xliff> of version 1\.x or 2\.x; it is <xliff> of version 3\.0"),
        ("a.xlf", f"{XLIFF_HEAD}<trans-unit>".encode(), r"a\.xlf, line 1: not XML"),
        ("a.properties", "a=b\n".encode("utf-16"), r"a\.properties, line 1: not UTF-8 or ISO 8859-1: byte 0x00"),
        ("a.ts", b"<ts/>", r"a\.ts: the root must be <TS>; it is <ts>"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(path: str, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_catalogue(path, content)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_multisource.data.catalogue_files.MAX_FILE", 10)
    with pytest.raises(ValueError, match=r"a\.po has 11 bytes; at most 10 are read"):
        read_catalogue("a.po", b"\n" * 11)


def test_what_is_not_handled_is_named() -> None:
    found = {
        path: read_catalogue(path, content.encode()).unhandled
        for path, content in {
            "a.ftl": "a = b\n???\nc = { $n ->\n   *[a] { $m ->\n       *[b] c\n    }\n}\n",
            "a.dtd": '<!ENTITY a "b">\n<!ELEMENT x ANY>\n<!ENTITY b "c',
            "strings.xml": "<resources><string>x</string><string name='y'>\\ud83d</string></resources>",
            "a.ts": "<TS><context><name>C</name><message><source>a</source></message><message><source>b</source>"
            "<translation><lengthvariant>b</lengthvariant></translation></message></context></TS>",
        }.items()
    }
    assert [reason.partition(":")[0] for reason in found["a.ftl"]] == ["line 2", "c"]
    assert found["a.dtd"] == ('line 2: not <!ENTITY key "text">', 'line 3: not <!ENTITY key "text">')
    assert found["strings.xml"] == ("<string> without a name", "y: \\u gives half a character")
    assert found["a.ts"] == ("C | a: no source or no translation", "C | b: variants by length")


@given(st.data())
def test_damaged_files_are_read_or_refused_in_one_line(data: st.DataObject) -> None:
    sample = data.draw(st.sampled_from(SAMPLES))
    content = bytearray(sample.text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(place, min(len(content), place + 20)))
        content[place:end] = data.draw(st.binary(max_size=4) | st.sampled_from(PIECES))
    try:
        catalogue = read_catalogue(sample.path, bytes(content))
    except ValueError as error:
        assert str(error).startswith(sample.path)
        assert len(str(error).splitlines()) == 1
        return
    filled = fill_catalogue(catalogue, sample.new, reference(sample))
    assert set(filled.filled) | set(filled.refused) == set(sample.new)


# Files of 1 MB, for which a quadratic reader would need minutes or hours.
LONG = 1 << 19
HOSTILE = {
    "blanks.properties": "a" + " " * LONG,
    "backslashes.properties": "\\" * LONG,
    "lines.properties": "\\\n" * LONG,
    "open.dtd": "<!ENTITY a '" * (LONG // 12),
    "bad.dtd": "<!x>" * (LONG // 4),
    "comments.dtd": "<!--" * (LONG // 4),
    "texts.po": 'msgid "a"\nmsgstr ""\n' + '"a"\n' * (LONG // 4),
    "quotes.po": 'msgid "' + '\\"' * LONG,
    "strings.xml": "<resources><string name='a'>" + "a\n" * LONG + "</string></resources>",
    "strings-many.xml": "<resources>" + "<a/>" * (LONG // 4) + "</resources>",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_take_linear_time(name: str) -> None:
    def read() -> None:
        try:
            read_catalogue(name, HOSTILE[name].encode())
        except ValueError as error:
            assert str(error).startswith(name)

    assert cpu_seconds(read, 15) < 15


def test_fluent_files_name_the_package_that_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fluent.syntax", None)
    with pytest.raises(
        ImportError, match=r'a\.ftl: reading \.ftl needs .* run pip install "\.\[localization\]" in a clone'
    ):
        read_catalogue("a.ftl", b"a = b\n")
    assert read_catalogue("a.properties", b"a = b\n").entries


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("x/values-de/strings.xml", "Android"),
        ("strings_menu.xml", "Android"),
        ("a.XLF", "XLIFF"),
        ("other.xml", None),
        ("a.ftl.orig", None),
        ("ftl", None),
    ],
)
def test_the_format_follows_from_the_name(path: str, name: str | None) -> None:
    form = find_format(path)
    assert (form.name if form else None) == name


def test_machine_translations_that_are_not_reviewed_are_fuzzy() -> None:
    states = {
        entry.identity: entry.state
        for entry in read_catalogue("a.ftl", f"# {REVIEW}: .b\na = a\n .b = b\n# {REVIEW}\nc = c\n".encode()).entries
    }
    assert states == {("a", ""): "translated", ("a", ".b"): FUZZY, ("c", ""): FUZZY}
    assert UNTRANSLATED not in states.values()


def test_an_entry_with_a_comment_after_its_previous_message_is_read_and_not_filled() -> None:
    """gettext cannot read such a file; others of the same language can still be filled."""
    catalogue = read_catalogue("a.po", b'#| msgid "a"\n#, fuzzy\nmsgid "b"\nmsgstr ""\n\nmsgid "c"\nmsgstr ""\n')
    filled = fill_catalogue(catalogue, {("b", ""): "B", ("c", ""): "C"})
    assert list(filled.refused) == [("b", "")]
    assert "follows its previous message" in filled.refused["b", ""]
