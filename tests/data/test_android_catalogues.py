"""Android's strings.xml: references, comments, blanks beside tags, and the folders of languages and of qualifiers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from cpu_time import cpu_seconds
from hf_multisource.data.catalogue_entries import REVIEW
from hf_multisource.data.catalogue_files import Filled, fill_catalogue, read_catalogue
from hf_multisource.data.catalogue_places import ANOTHER, BASE, OF_SOURCE, Place, neutral_path, read_place, read_places

TO_XLIFF = 'xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2"'


def android(*lines: str) -> str:
    inner = "".join(f"    {line}\n" for line in lines)
    return f"<resources {TO_XLIFF}>\n{inner}</resources>\n"


def texts_of(text: str) -> dict[str, str]:
    return {f"{one.key}{one.part}": one.text for one in read_catalogue("strings.xml", text.encode()).entries}


def fill(target: str, texts: Mapping[tuple[str, str], str], reference: str) -> Filled:
    catalogues = (read_catalogue("strings.xml", text.encode()) for text in (target, reference))
    return fill_catalogue(next(catalogues), texts, next(catalogues))


def written(target: str, texts: Mapping[tuple[str, str], str], reference: str) -> str:
    """The filled file, without the comments that ask for a review."""
    filled = fill(target, texts, reference)
    assert filled.refused == {}
    return filled.content.decode().replace(f"    <!-- {REVIEW} -->\n", "")


# References


REFERENCES = [
    "@string/title_main",
    "  @string/title_main\n",
    "@com.example.lib:string/title_main",
    "@android:string/ok",
    "@*android:string/ok",
    "@+id/menu",
    "@null",
    "@empty",
    "?attr/actionLabel",
    "?android:attr/textColor",
    "?android:textColor",
    "&#64;string/title_main",
    "<![CDATA[@string/title_main]]>",
]


@pytest.mark.parametrize("text", REFERENCES)
def test_a_reference_is_not_a_text(text: str) -> None:
    catalogue = read_catalogue("strings.xml", android(f'<string name="a">{text}</string>').encode())
    assert (catalogue.entries, catalogue.unhandled) == ((), ())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@home", "@home"),
        ("@you/me", "@you/me"),
        ("@", "@"),
        ("? a/b", "? a/b"),
        ("?b/c", "?b/c"),
        ("@string/", "@string/"),
        ("@string/a and more", "@string/a and more"),
        ("\\@string/a", "@string/a"),
        ('"@string/a"', "@string/a"),
        ("@string/<b>a</b>", "@string/<b>a</b>"),
    ],
)
def test_texts_that_look_like_references_are_texts(text: str, found: str) -> None:
    assert texts_of(android(f'<string name="a">{text}</string>')) == {"a": found}


def test_the_references_of_an_array_are_taken_over() -> None:
    items = "<item>Main</item><item> @string/title_main</item><item>Last</item><item>@null</item>"
    reference = android(f'<string-array name="a">{items}</string-array>')
    assert texts_of(reference) == {"a[0]": "Main", "a[2]": "Last"}
    content = written(android(), {("a", "[2]"): "Poslednja", ("a", "[0]"): "Głowna"}, reference)
    assert content == android(
        '<string-array name="a">',
        *(f"    <item>{text}</item>" for text in ("Głowna", "@string/title_main", "Poslednja", "@null")),
        "</string-array>",
    )


def test_plurals_with_a_reference_are_reported() -> None:
    item = '<item quantity="{}">{}</item>'
    one = item.format("one", "@string/a")
    catalogue = read_catalogue(
        "strings.xml",
        android(
            f'<plurals name="all">{one}{item.format("other", "@string/b")}</plurals>',
            f'<plurals name="some">{one}{item.format("other", "%d files")}</plurals>',
        ).encode(),
    )
    assert catalogue.entries == ()
    assert catalogue.unhandled == ("some: a plural form is a reference to another resource",)


# White space in texts. The expected values are what aapt2, Android's resource compiler, makes of these texts.


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (" <b>lead</b> trail ", " <b>lead</b> trail "),
        ("\n       <b>a</b> b\n    ", " <b>a</b> b "),
        ('"a  <b>b  c</b> d  e"', "a  <b>b c</b> d e"),
        ('"a  "<b>"b  c"</b>" d  e"', "a  <b>b  c</b> d  e"),
        (" <xliff:g>x</xliff:g> y ", "<xliff:g>x</xliff:g> y"),
        ("a <xliff:g> x</xliff:g> b", "a <xliff:g>x</xliff:g> b"),
        ("<xliff:g> x</xliff:g>", "<xliff:g>x</xliff:g>"),
        ('a "  " <b>b</b>', "a    <b>b</b>"),
        ('"a  <xliff:g>x  y</xliff:g>  b"', "a  <xliff:g>x  y</xliff:g>  b"),
        ('<b>q</b>"a  <xliff:g>x  y</xliff:g>  b"', "<b>q</b>a  <xliff:g>x  y</xliff:g>  b"),
    ],
)
def test_a_tag_without_a_prefix_ends_a_quotation_and_keeps_outer_blanks(text: str, found: str) -> None:
    assert texts_of(android(f'<string name="a">{text}</string>')) == {"a": found}


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ('<b>bold</b> and "quoted  it\'s" x', '<b>bold</b>" and \\"quoted  it\\\'s\\" x"'),
        (" <b>lead</b> trail ", '" "<b>lead</b>" trail "'),
        ("a <b> b </b> c", "a <b> b </b> c"),
        ("a  <b>b  c</b> d", '"a  "<b>"b  c"</b> d'),
        ("a  <xliff:g>x  y</xliff:g> b", '"a  <xliff:g>x  y</xliff:g> b"'),
        (" <xliff:g>x</xliff:g>", '" <xliff:g>x</xliff:g>"'),
        ("<xliff:g> x</xliff:g>", '"<xliff:g> x</xliff:g>"'),
        ("a <xliff:g> x</xliff:g>", '"a <xliff:g> x</xliff:g>"'),
        ('a <xliff:g id="a  b">x</xliff:g>', 'a <xliff:g id="a  b">x</xliff:g>'),
        ("<xliff:g>?b</xliff:g> c", "<xliff:g>\\?b</xliff:g> c"),
    ],
)
def test_the_texts_between_tags_are_quoted_separately(text: str, escaped: str) -> None:
    reference = android('<string name="a">a <b>b</b></string>')
    assert written(android(), {("a", ""): text}, reference) == android(f'<string name="a">{escaped}</string>')


# Comments


def string(name: str, end: str = "") -> str:
    return f'<string name="{name}">{name}</string>{end}'


@pytest.mark.parametrize(
    "above",
    [
        ["<!-- the owner is b -->"],
        [f"<!-- {REVIEW} -->", "<!-- From: model -->"],
        ["<!-- two", "         lines -->", "<!-- one --> <!-- more -->"],
    ],
)
def test_a_new_first_string_goes_before_the_comments_of_the_next_string(above: list[str]) -> None:
    target = android(*above, string("b"), string("c"))
    filled = fill(target, {("new", ""): "new"}, android(string("new"), string("b"), string("c")))
    assert filled.refused == {}
    assert filled.content.decode() == android(f"<!-- {REVIEW} -->", string("new"), *above, string("b"), string("c"))


def test_a_comment_of_a_section_stays_at_the_beginning() -> None:
    target = android("<!-- Section -->", "", string("b"))
    assert written(target, {("new", ""): "new"}, android(string("new"), string("b"))) == android(
        "<!-- Section -->", "", string("new"), string("b")
    )


def test_a_comment_at_the_end_of_a_line_stays_with_the_string_of_the_line() -> None:
    target = android(string("b", " <!-- limit 10 --> <!-- more -->"), "<!-- the owner is c -->", string("c"))
    reference = android(string("b"), string("new"), string("c"))
    assert written(target, {("new", ""): "new"}, reference) == android(
        string("b", " <!-- limit 10 --> <!-- more -->"), string("new"), "<!-- the owner is c -->", string("c")
    )
    first = android(string("own", " <!-- limit 10 -->"), string("b"))
    assert written(first, {("new", ""): "new"}, android(string("new"), string("b"))) == android(
        string("own", " <!-- limit 10 -->"), string("new"), string("b")
    )


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_comment_at_the_end_of_a_line_of_a_dtd_stays_with_the_entity_of_the_line(newline: str) -> None:
    lines = ['<!ENTITY a "a"> <!-- limit 10 -->', '<!ENTITY c "c">', ""]
    catalogue = read_catalogue("a.dtd", newline.join(lines).encode())
    new = [f"<!-- {REVIEW} -->", '<!ENTITY b "b">']
    for names in ("abc", "bc"):  # `b` follows `a`, or precedes `c`
        reference = read_catalogue("a.dtd", "".join(f'<!ENTITY {name} "x">\n' for name in names).encode())
        filled = fill_catalogue(catalogue, {("b", ""): "b"}, reference)
        assert filled.content.decode() == newline.join([lines[0], *new, *lines[1:]])


def test_all_comments_above_an_entity_of_a_dtd_stay_with_it() -> None:
    lines = ['<!ENTITY own "x">', "<!-- the owner is b -->", f"<!-- {REVIEW} -->", '<!ENTITY b "b">', ""]
    catalogue = read_catalogue("a.dtd", "\n".join(lines).encode())
    reference = read_catalogue("a.dtd", b'<!ENTITY new "x">\n<!ENTITY b "x">\n')
    filled = fill_catalogue(catalogue, {("new", ""): "n"}, reference)
    new = [f"<!-- {REVIEW} -->", '<!ENTITY new "n">']
    assert filled.content.decode() == "\n".join([lines[0], *new, *lines[1:]])


@pytest.mark.parametrize("comment", ["<!-- a", "<!---->\n", "<!---->", "\n<!---->x"])
def test_comments_take_linear_time(comment: str) -> None:
    text = f'<!ENTITY b "b">\n{comment * 100_000}'
    reference = read_catalogue("a.dtd", "".join(f'<!ENTITY n{i} "x">\n' for i in range(300)).encode())
    texts = {(f"n{i}", ""): "n" for i in range(300)}
    catalogue = read_catalogue("a.dtd", text.encode())
    assert cpu_seconds(lambda: fill_catalogue(catalogue, texts, reference), 15) < 15


def test_a_line_of_a_text_that_looks_like_a_comment_is_no_comment() -> None:
    catalogue = read_catalogue("a.ftl", b"own =\n    x\n    <!-- c -->\nb = b\n")
    filled = fill_catalogue(catalogue, {("new", ""): "n"}, read_catalogue("a.ftl", b"new = n\nb = b\n"))
    assert filled.content.decode() == f"own =\n    x\n    <!-- c -->\n# {REVIEW}\nnew = n\nb = b\n"


# Folders


def write_folders(place: Path, folders: Mapping[str, list[str]]) -> Path:
    for folder, keys in folders.items():
        (place / folder).mkdir(parents=True)
        strings = [f'<string name="{key}">{folder} {key}</string>' for key in keys]
        (place / folder / "strings.xml").write_text(android(*strings), "utf-8")
    return place


FOLDERS = {
    "values": ["a", "b", "c", "d"],
    "values-night": ["a"],
    "values-mcc310-sw600dp-v21": ["a"],
    "values-car": ["a"],
    "values-de": ["a", "b", "x", "y", "z"],
    "values-de-rAT": ["x", "y", "a"],
    "values-de-night": ["x"],
    "values-b+sr+Latn": ["x"],
    "values-szl": ["a", "x", "y"],
}


def first_texts(files: Mapping[str, object]) -> dict[str, str]:
    return {path.removesuffix("/strings.xml"): one.entries[0].text for path, one in files.items()}  # type: ignore[attr-defined]


def test_the_folder_of_a_source_without_a_code_has_no_texts_of_other_languages(tmp_path: Path) -> None:
    place = write_folders(tmp_path, FOLDERS)
    unread: dict[str, str] = {}
    assert first_texts(read_place(place, "en", "en", unread=unread)) == {
        "values-{lang}": "values a",
        "values-{lang}-night": "values-night a",
        "values-mcc310-{lang}-sw600dp-v21": "values-mcc310-sw600dp-v21 a",
        "values-{lang}-car": "values-car a",
    }
    others = ["values-de", "values-de-rAT", "values-de-night", "values-b+sr+Latn", "values-szl"]
    assert unread == {f"{one}/strings.xml": ANOTHER for one in others}


def test_a_language_with_folders_of_its_own_reads_no_others(tmp_path: Path) -> None:
    place = write_folders(tmp_path, FOLDERS)
    unread: dict[str, str] = {}
    assert first_texts(read_place(place, "de", "de", unread=unread, source_language="en")) == {
        "values-{lang}": "values-de a",
        "values-{lang}-night": "values-de-night x",
    }
    base, of_source = ["values", "values-night"], ["values-mcc310-sw600dp-v21", "values-car"]
    others = ["values-de-rAT", "values-b+sr+Latn", "values-szl"]
    expected = {**dict.fromkeys(base, BASE), **dict.fromkeys(of_source, OF_SOURCE), **dict.fromkeys(others, ANOTHER)}
    assert unread == {f"{one}/strings.xml": reason for one, reason in expected.items()}


def test_folders_with_qualifiers_are_aligned_in_a_place_of_several_languages(tmp_path: Path) -> None:
    place = write_folders(tmp_path, FOLDERS)
    found, _ = read_places({one: Place(place, one, shared=True) for one in ("en", "de", "szl")}, "en")
    assert {language: sorted(first_texts(files)) for language, files in found.items()} == {
        "en": ["values-mcc310-{lang}-sw600dp-v21", "values-{lang}", "values-{lang}-car", "values-{lang}-night"],
        "de": ["values-{lang}", "values-{lang}-night"],
        "szl": ["values-{lang}"],
    }


@pytest.mark.parametrize(
    ("folder", "code", "neutral"),
    [
        ("values-de-night", "de", "values-{lang}-night"),
        ("values-pt-rBR-sw600dp-land-v21", "pt-BR", "values-{lang}-sw600dp-land-v21"),
        ("values-mcc310-mnc004-b+sr+Latn-xhdpi", "sr-Latn", "values-mcc310-mnc004-{lang}-xhdpi"),
        ("values-de-rAT-night", "de", "values-de-rAT-night"),
        ("values-de-other", "de", "values-de-other"),
    ],
)
def test_the_language_of_an_android_folder_is_before_other_qualifiers(folder: str, code: str, neutral: str) -> None:
    assert neutral_path(f"res/{folder}/strings.xml", code) == f"res/{neutral}/strings.xml"


def strings(place: Path, **files: str) -> None:
    for folder, names in files.items():
        path = place / folder.replace("__", "/").replace("_", "-") / "strings.xml"
        path.parent.mkdir(parents=True)
        texts = "".join(f'<string name="{one}">{one}</string>' for one in names)
        path.write_text(f"<resources>{texts}</resources>", "utf-8")


def test_folders_of_the_source_language_without_a_code_are_read_where_none_has_its_code(tmp_path: Path) -> None:
    strings(tmp_path, m1__values="ab", m2__values="cd", m2__values_en="cd", m2__values_en_night="c")
    unread: dict[str, str] = {}
    assert sorted(read_place(tmp_path, "en", "en", unread=unread)) == [
        "m1/values-{lang}/strings.xml",
        "m2/values-{lang}-night/strings.xml",
        "m2/values-{lang}/strings.xml",
    ]
    assert unread == {"m2/values/strings.xml": BASE}


def test_folders_without_a_code_are_not_of_another_language_than_the_source_language(tmp_path: Path) -> None:
    strings(tmp_path, values="ab", values_night="a", values_de="ab", values_szl="a")
    unread: dict[str, str] = {}
    read = read_place(tmp_path, "szl", "szl", unread=unread, source_language="en")
    assert sorted(read) == ["values-{lang}/strings.xml"]
    assert unread == {
        "values/strings.xml": BASE,
        "values-night/strings.xml": OF_SOURCE,
        "values-de/strings.xml": ANOTHER,
    }
    assert read_place(tmp_path, "pl", "pl", unread={}, source_language="en") == {}
