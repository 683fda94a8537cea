"""Placeholders and markup of user-interface strings: found, replaced by tokens, restored, and compared."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import END
from cpu_time import cpu_seconds
from hf_multisource.data.placeholders import (
    KINDS,
    LIMIT,
    MASK_TOKENS,
    MESSAGE_FORMATS,
    SYNTAXES,
    PlaceholderTable,
    add_mask_tokens,
    broken_placeholders,
    differing_languages,
    double_apostrophes,
    find_placeholders,
    is_message_format,
    mask_texts,
    restore_text,
    variants_refusal,
)
from hf_multisource.recipes.tokenization import MIN_VOCAB_SIZE, SUBWORDS, train_tokenizer

each_syntax = pytest.mark.parametrize("syntax", SYNTAXES)
PIECES = [
    *("%S", "%1$S", "%2$s", "%(name)s", "%d", "%%", "% d", "%1", "%L1", "%n", "#1", "%@", "%5.*f", "%<PRIu64>"),
    *("{ $name }", "{0}", "{name}", "{ -brand-short-name }", '{ -brand(case: "gen") }', "{{pages}}", "${x}", "{}"),
    *('{ "" }', "{0, number}", "{n, plural, one {# file} other {# files}}", "{ $n ->", "{", "}", "'{'"),
    *('<a data-l10n-name="x">', "</a>", "<a href='%s'>", "<b>", "</b>", "<br/>", "<br>", "<Enter>", "<x id=1/>"),
    *('<ph id="1">', "</ph>", '<bpt id="1">*</bpt>', '<ept id="1">*</ept>', '<sc id="1"/>', '<ec startRef="1"/>'),
    *('<x id="START_A"/>', '<x id="CLOSE_A"/>', '<mrk translate="no">', "</mrk>"),
    *("&brandShortName;", "&amp;", "&#160;", "&File", "_File", "E_xit", "&&", "__", "&", "_", "<", ">", "%"),
    *(
        "\\n",
        "\\u00e9",
        '\\"',
        "\n",
        "\r\n",
        "\t",
        " ",
        "\u00a0",
        "\u2028",
        "https://a.b/c?d=1&e=2",
        "a.b@c.org",
        "www.a.b",
    ),
    *("<ph1>", "<open1>", "</open1>", "<close1>", "<char16>", "<ph99>", "<ph٣>", "<ph", "1>", "h1>", "word", "Ž"),
]
TAGS = [
    *(
        "<b>",
        "</b>",
        "<b/>",
        '<a name="x">',
        '<a name="x"/>',
        '<a href="y">',
        "</a>",
        '<g id="1">',
        '<g id="2"/>',
        "</g>",
    ),
    *('<bx id="1"/>', '<ex id="1"/>', '<x id="START_A"/>', '<x id="START_A_1"/>', '<x id="CLOSE_A"/>', "<br>", "x"),
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)


def found(text: str, syntax: str = "any") -> list[str]:
    return [placeholder.text for placeholder in find_placeholders(text, syntax)]


def kinds(text: str, syntax: str = "any") -> list[str]:
    return [placeholder.kind for placeholder in find_placeholders(text, syntax)]


def masked(*texts: str | None, syntax: str = "any") -> list[str | None]:
    return [*mask_texts({str(i): text for i, text in enumerate(texts)}, syntax).texts.values()]


# What is found


@pytest.mark.parametrize(
    ("syntax", "text", "expected"),
    [
        ("fluent", '{ $name } { -brand(case: "gen") } { msg.title } {$x} %S', ["{ $name }", '{ -brand(case: "gen") }']),
        ("fluent", '{ $name } { -brand(case: "gen") } { msg.title } {$x} %S', ["{ msg.title }", "{$x}"]),
        (
            "fluent",
            '{ NUMBER($n, style: "percent") }{ "}" } {not this}',
            ['{ NUMBER($n, style: "percent") }', '{ "}" }'],
        ),
        ("printf", "%s %-5.2f %1$s %% %lu %<PRIu64> % d", ["%s", "%-5.2f", "%1$s", "%%", "%lu", "%<PRIu64>", "% d"]),
        ("python", "%(name)s %(n)5d %% {name}", ["%(name)s", "%(n)5d", "%%"]),
        ("python-brace", "{} {0} {name!r:>5} {a.b[0]} {{x}}", ["{}", "{0}", "{name!r:>5}", "{a.b[0]}", "{{", "}}"]),
        ("icu", "{name} {0, number, integer} '{x}' it''s # {a b}", ["{name}", "{0, number, integer}", "'{x}'"]),
        ("icu-variant", "# of {total}", ["#", "{total}"]),
        ("java", r"{0} %1$s %tY %n \u00e9", ["{0}", "%1$s", "%tY", "%n", r"\u00e9"]),
        ("qt", "%1 %L2 %n &File && <b>x</b>", ["%1", "%L2", "%n", "&", "&&", "<b>", "</b>"]),
        ("gtk", "E_xit __ %s", ["_", "__", "%s"]),
        ("gtk", "file_name_x", []),
        ("android", r"%1$s \n \' <xliff:g id=\"x\">%2$d</xliff:g> 100 % sure", ["%1$s", r"\n", r"\'"]),
        (
            "properties",
            "%min%-%max% %dx%d %s%s %ld%% %S-%S",
            ["%min%", "%max%", *["%d", "%d", "%s", "%s", "%ld", "%%", "%S", "%S"]],
        ),
        ("any", "%host% 50%off %d%% <%S> <%2$S/> </%1$S>", ["%host%", "%d", "%%", "<%S>", "<%2$S/>", "</%1$S>"]),
        ("properties", r"%S %1$S %% \n {{pages}} #1 {x}", ["%S", "%1$S", "%%", r"\n", "{{pages}}", "#1", "{x}"]),
        (
            "c-format",
            "_Save %<PRIu64> %.3e %*d % d %'d %o {x} 5%",
            ["_", "%<PRIu64>", "%.3e", "%*d", "% d", "%'d", "%o", "{x}"],
        ),
        ("python-format", "&All %(a)s % d {x}", ["&", "%(a)s", "% d", "{x}"]),
        ("python-brace-format", "_All {} {a!r} {{ %s", ["_", "{}", "{a!r}", "{{"]),
        ("java-format", "&All ''{0}'' '{x}' %s", ["&", "{0}", "'{x}'"]),
        ("properties", "File ''{0}'' of '{1,number}' { not }", ["{0}", "{1,number}"]),
        ("properties", r"DOMAIN\{0} \\{1}", ["{0}", r"\\", "{1}"]),
        ("any", r"DOMAIN\{0} \\{1}", ["{0}", r"\\", "{1}"]),
        ("java-format", r"DOMAIN\{0} \\{1}", ["{0}", r"\\", "{1}"]),
        ("java", "File ''{0}'' of '{1}'", ["{0}", "'{1}'"]),
        ("html", "<b>x</b> <br/> <!-- c --> &amp; &x; %S", ["<b>", "</b>", "<br/>", "<!-- c -->", "&amp;", "&x;"]),
        ("html", "<a href='x>y' title=\"a\">z</a> <x:y/>", ["<a href='x>y' title=\"a\">", "</a>", "<x:y/>"]),
        (
            "any",
            '<ph id="1">[USER]</ph> <it id="2" pos="open">*</it>',
            ['<ph id="1">[USER]</ph>', '<it id="2" pos="open">*</it>'],
        ),
        ("any", '<bpt id="1">*</bpt>a<ept id="1">*</ept>', ['<bpt id="1">*</bpt>', '<ept id="1">*</ept>']),
        ("any", '<mrk mtype="protected">A <x id="1"/></mrk> b', ['<mrk mtype="protected">A <x id="1"/></mrk>']),
        ("any", "<mrk id='1' translate='no'>A</mrk> b", ["<mrk id='1' translate='no'>A</mrk>"]),
        ("any", '<mrk id="1" type="term">A</mrk>', ['<mrk id="1" type="term">', "</mrk>"]),
        ("any", '<ph id="1">a <sub>text</sub></ph>', ['<ph id="1">', "<sub>", "</sub>", "</ph>"]),  # <sub> is text
        ("html", "<ph>x</ph>", ["<ph>", "</ph>"]),  # elements of XLIFF have an id
        ("html", "See https://a.b/c_(d), www.a.b. or me@a.org.", ["https://a.b/c_", "www.a.b", "me@a.org"]),
        ("any", "Print _Colors, 100 % safe, R&D, file_name", ["_"]),
        ("any", "Do&n’t Save", ["&"]),
        ("any", "~Open $(ARG1) in %PRODUCTNAME %1", ["~", "$(ARG1)", "%PRODUCTNAME", "%1"]),
        ("any", "Pa~ste", ["~"]),
        ("any", "~/home, about ~5, 100%SAFE, a ~ b, %CPU, $(1)", []),
        ("any", "%50 indirim, %2,5 faiz, Cannot open %1.", ["%1"]),
        ("any", "%1%2%3: %4, %L5", ["%1", "%2", "%3", "%4", "%L5"]),
        ("qt", "Move %10 to %1", ["%10", "%1"]),
        ("any", "Yesterday %-l:%M %p, %OB %_H", ["%-l", "%M", "%p", "%OB", "%_H"]),
        ("any", "100 %Aussage, 5%H, %Ha", []),
        ("any", "50%discount, PKCS #11, a {brace here}", []),
    ],
)
def test_each_syntax_finds_its_own(syntax: str, text: str, expected: list[str]) -> None:
    places = [found(text, syntax).index(one) for one in expected]
    assert places == sorted(places)
    assert expected or not found(text, syntax)


def test_any_finds_all_of_them() -> None:
    text = (
        "%S %1$S %(name)s %d %% { $name } {0} {name} { -brand-short-name } "
        '<a data-l10n-name="x">y</a> <br/> &brandShortName; &amp; \\n https://a.org me@a.org'
    )
    plain = text
    for placeholder in reversed(find_placeholders(text)):
        plain = plain[: placeholder.start] + plain[placeholder.end :]
    assert plain.split() == ["y"]
    assert set(kinds(text)) == {*KINDS} - {"key"}


def test_a_number_in_braces_is_a_literal_of_fluent_and_an_argument_elsewhere() -> None:
    assert kinds("{0}") == kinds("{0}", "icu") == kinds("{0}", "python-brace") == ["ph"]
    assert kinds('{ "x" } { 0 }', "fluent") == ["char", "char"]


def test_what_only_looks_like_a_tag_is_text() -> None:
    assert found("Press <Enter> if 1 < 2 and 3 > 2") == []
    assert kinds("<Enter>x</Enter>") == ["open", "close"]  # a pair is markup
    assert kinds("<p>one<p>two") == ["tag", "tag"]


def test_tags_are_paired_by_name_from_the_inside() -> None:
    assert kinds("</b><b><i></b></i>") == ["tag", "open", "tag", "close", "tag"]


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ('<sc id="1"/>', '<ec startRef="1"/>'),
        ('<bx id="4" rid="1"/>', '<ex id="5" rid="1"/>'),
        ('<bx id="1"/>', '<ex id="1"/>'),
        ('<bpt id="1">*</bpt>', '<ept id="1">*</ept>'),
        ('<bpt id="1" rid="2"/>', '<ept id="3" rid="2"/>'),
        ('<x id="START_TAG_STRONG" ctype="x"/>', '<x id="CLOSE_TAG_STRONG" ctype="x"/>'),
        ('<x id="START_LINK_1"/>', '<x id="CLOSE_LINK"/>'),
    ],
)
def test_codes_that_begin_and_end_a_span_are_paired(opening: str, closing: str) -> None:
    assert kinds(f"{opening}a{closing}") == ["open", "close"]
    assert kinds(f"<b>{opening}</b>{closing}") == ["open", "tag", "close", "tag"]
    assert kinds(f"{closing}a{opening}") == ["tag", "tag"]
    assert masked(f"{opening}a{closing} <b>c</b>", f"<b>c</b>{opening}a{closing}") == [
        "<open1>a<close1> <open2>c<close2>",
        "<open2>c<close2><open1>a<close1>",
    ]
    assert broken_placeholders(f"{opening}a{closing}", f"x {opening}a{closing}") == []
    assert broken_placeholders(f"{opening}a{closing}", f"{closing}a{opening}") == [
        f"{closing} stands before its opening tag."
    ]


@pytest.mark.parametrize(
    "text",
    [
        '<sc id="1"/>a<ec startRef="2"/>',
        '<sc id="1"/>a<ec/>',
        '<x id="START_A"/>a<x id="CLOSE_B"/>',
        '<x id="1"/><x id="2"/>',
    ],
)
def test_codes_of_different_spans_stand_alone(text: str) -> None:
    assert kinds(text) == ["tag", "tag"]


def test_a_marker_of_an_access_key_is_one_only_if_it_is_the_only_one() -> None:
    assert kinds("&File") == ["key"]
    assert kinds("&File &Edit") == []


def test_arguments_that_are_taken_in_order_are_counted() -> None:
    listed = find_placeholders('%s <a href="%s">%*d</a> %2$s %%', "printf")
    assert [placeholder.arguments for placeholder in listed] == [(1,), (2,), (3, 4), (), (), ()]


# Masks


def test_equal_placeholders_have_equal_tokens_in_all_languages_whatever_the_order() -> None:
    assert masked("%1$S of %2$S, %1$S", "%2$S: %S", None) == ["<ph1> of <ph2>, <ph1>", "<ph2>: <ph1>", None]
    assert masked('<a id="x">A</a> <b>B</b>', "<b>B</b> <a id='x'>A</a>") == [
        "<open1>A<close1> <open2>B<close2>",
        "<open2>B<close2> <open1>A<close1>",
    ]
    assert masked("{ -brand } { $n }", '{ NUMBER($n, a: 1) } { -brand(case: "gen") }') == ["<ph1> <ph2>", "<ph2> <ph1>"]
    assert masked("%s %d", "%2$d %1$s", syntax="printf") == ["<ph1> <ph2>", "<ph2> <ph1>"]
    assert masked("{} {}", "{1} {0}", syntax="python-brace") == ["<ph1> <ph2>", "<ph2> <ph1>"]


def test_a_placeholder_that_only_one_language_has_gets_a_token_of_its_own() -> None:
    row = mask_texts({"en": "%1$S", "de": "%1$S %2$S", "cs": "%1$S"})
    assert row.texts["de"] == "<ph1> <ph2>"
    assert row.differing == ["de"]
    assert differing_languages({"en": "a", "de": "%S", "cs": None}) == ["de"]
    assert differing_languages({"en": "a &amp; b", "de": "a und b"}) == []


def test_escape_sequences_are_masked_if_all_texts_have_them() -> None:
    assert masked("a\\nb &amp;", "c\\nd und") == ["a<char1>b &amp;", "c<char1>d und"]


def test_a_translation_may_leave_escape_sequences_out_but_not_repeat_them() -> None:
    table = mask_texts({"en": "a &amp; b: %S", "de": "&amp;%S"}).tables["en"]
    assert restore_text("a abo b: <ph1>", table) == "a abo b: %S"
    assert restore_text("<ph1> <char1>", table) == "%S &amp;"
    with pytest.raises(ValueError, match="<char1> occurs 2 times in the text; it must occur at most once"):
        restore_text("<ph1> <char1><char1>", table)


def test_white_space_at_the_ends_is_kept_apart() -> None:
    row = mask_texts({"en": " \n%S\u00a0", "de": "%S"})
    assert row.texts == {"en": "<ph1>", "de": "<ph1>"}
    assert restore_text("x <ph1>", row.tables["en"]) == " \nx %S\u00a0"


def test_the_tokens_whose_order_is_fixed_are_a_chain() -> None:
    row = mask_texts({"en": "%s %2$s <a href='%s'>%d</a> %%"}, "printf")
    assert row.texts["en"] == "<ph1> <ph2> <open1><ph3><close1> <char1>"
    assert row.tables["en"].chain == ("<ph1>", "<open1>", "<ph3>")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{n, plural, one {# file} other {# files}}", "whose variants must be translated separately"),
        (
            '{ NUMBER($n, type: "ordinal") ->\n   *[other] { $n } files\n}',
            "whose variants must be translated separately",
        ),
        (" ".join(f"%{i}$S <ph1>" for i in range(1, LIMIT + 2)), f"more than {LIMIT} different"),
    ],
)
def test_a_row_that_cannot_be_masked_says_why_and_stays_as_it_is(text: str, reason: str) -> None:
    row = mask_texts({"en": text, "de": "x"})
    assert row.texts == {"en": text, "de": "x"}
    assert reason in (row.refused or "")
    assert restore_text(text, row.tables["en"]) == text


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="msgfmt of gettext is not installed")
def test_msgfmt_finds_the_same_c_formats_broken(tmp_path: Path) -> None:
    texts = [
        "%<PRIu64> x",
        "%.3e",
        "%*d",
        "% d x",
        "%'d",
        "%o",
        "%s and %d",
        "%d and %s",
        "%2$d and %1$s",
        "100 %%",
        "x",
    ]
    pairs = [*itertools.product(texts, repeat=2)]
    lines = [f'#, c-format\nmsgctxt "{i}"\nmsgid "{one}"\nmsgstr "{other}"' for i, (one, other) in enumerate(pairs)]
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"'
    (tmp_path / "a.po").write_text("\n".join([header, *lines]), "utf-8")
    command = ["msgfmt", "--check-format", "-o", "/dev/null", "a.po"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stderr
    wrong = {int(line.split(":")[1]) // 4 - 1 for line in said.splitlines() if line.startswith("a.po:")}
    ours = {i for i, (one, other) in enumerate(pairs) if broken_placeholders(one, other, "c-format")}
    assert len(wrong) > len(texts)
    assert wrong - ours == set()


@given(text=texts, others=st.lists(texts | st.none(), max_size=2), syntax=st.sampled_from([*SYNTAXES]))
@example(text="<ph<ph1>1>%S", others=[], syntax="printf")
@example(text="<ph%S1>", others=["%S"], syntax="any")
@example(text="{" * 50 + "}" * 50, others=[], syntax="any")
def test_what_is_masked_is_restored_byte_for_byte(text: str, others: list[str | None], syntax: str) -> None:
    given_texts: dict[str, str | None] = {"0": text, **{str(i): one for i, one in enumerate(others, 1)}}
    row = mask_texts(given_texts, syntax)
    for language, one in given_texts.items():
        if one is None:
            assert row.texts[language] is None and language not in row.tables
        else:
            assert restore_text(row.texts[language] or "", row.tables[language]) == one


@given(text=texts, syntax=st.sampled_from([*SYNTAXES]))
def test_placeholders_do_not_overlap_and_opening_tags_have_closing_ones(text: str, syntax: str) -> None:
    end, opened = 0, []
    for one in find_placeholders(text, syntax):
        assert end <= one.start < one.end and text[one.start : one.end] == one.text
        end = one.end
        if one.kind == "open":
            opened.append(one.key)
        elif one.kind == "close":
            assert opened.pop() == one.key
    assert not opened


def paired(tags: list[str]) -> list[int | None]:
    """Return the partner of each tag: a closing tag takes the last open tag with its name, and opened ones after it."""
    partners: list[int | None] = [None] * len(tags)
    opened: list[int] = []
    for i, tag in enumerate(tags):
        if not tag.startswith("</"):
            opened.append(i)
        elif places := [place for place in opened if tags[place][1:] == tag[2:]]:
            partners[places[-1]], partners[i] = i, places[-1]
            opened = [place for place in opened if place < places[-1]]
    return partners


@given(tags=st.lists(st.sampled_from(["<b>", "</b>", "<i>", "</i>", "<em>", "</em>", "<x>", "</x>"]), max_size=30))
@example(tags=["<b>", "<i>", "</b>", "</i>", "<i>", "</i>"])
def test_a_closing_tag_belongs_to_the_last_open_tag_of_its_name(tags: list[str]) -> None:
    expected = []
    for tag, partner in zip(tags, paired(tags), strict=True):
        name = tag.strip("</>")
        if partner is not None:
            expected.append((tag, "close" if tag.startswith("</") else "open", name))
        elif name != "x":  # which is no element of HTML
            expected.append((tag, "tag", tag.strip("<>")))
    assert [(one.text, one.kind, one.key) for one in find_placeholders("".join(tags))] == expected


@pytest.mark.parametrize(
    ("text", "key", "is_selector"),
    [
        ("{ $n -> [one] a *[other] b }", "$n ->", True),
        ("{NUMBER($n)\n  -> [one] a}", "NUMBER($n) ->", True),
        ("{ n , plural, one {a} other {b}}", "n ->", True),
        ("{ NUMBER  ( $n ) }", "$n", False),
        ("{ -brand  (case: 1) }", "-brand", False),
        ("{ msg.title }", "msg.title", False),
    ],
)
def test_blanks_in_braces_are_not_part_of_the_key(text: str, key: str, is_selector: bool) -> None:
    (one,) = find_placeholders(text)
    assert (one.text, one.key, one.is_selector) == (text, key, is_selector)


@given(text=texts | st.lists(st.sampled_from(TAGS), max_size=8).map("".join), syntax=st.sampled_from([*SYNTAXES]))
@example(text='<g id="1">a</g> <g id="2"/>', syntax="any")
@example(text='<a name="x"/> <a href="y">z</a>', syntax="any")
@example(text="<b/> <b>x</b>", syntax="any")
@example(text='<x id="START_LINK"/>a<x id="CLOSE_LINK"/> <x id="START_LINK_1"/>b', syntax="any")
@example(text='<bx id="1"/>a<bx id="1"/>b<ex id="1"/>', syntax="any")
def test_a_text_is_no_broken_translation_of_itself(text: str, syntax: str) -> None:
    assert broken_placeholders(text, text, syntax) == []


@pytest.mark.parametrize("masked_text", ["", "<ph1> <ph1>", "<ph1> <ph2>", "<ph1> <ph99>"])
def test_a_text_with_other_tokens_is_not_restored(masked_text: str) -> None:
    with pytest.raises(ValueError, match=r"<ph\d+> occurs .* in the text; it must occur"):
        restore_text(masked_text, PlaceholderTable({"<ph1>": ("%S",)}))


LONG = 5000  # characters, as many as the service accepts
REPEATED = [
    *("{", "%", "&", "<", "<a ", "'{", "{ $", "<!--", "aaa@", "x://", "{}", "<b>", "</b>", "<i></b>", "%S", "<ph1>"),
    *(
        '<ph id="1">',
        '<ph id="',
        "<ph a=\"<ph id='\" b='",
        '<mrk translate="no">',
        '<x id="START_A"/>',
        '<ept id="1">*</ept>',
    ),
    *("%A", "%(", '{"', "${", "{{", "{a(", "{a ", "&amp;", "\n", '<a b="', "<x>"),
]
LONG_TEXTS = {
    **{piece: (piece * LONG)[:LONG] for piece in REPEATED},
    "unmatched": "<i>" * 833 + "</b>" * 625,
    "nested": "{" * (LONG // 2) + "}" * (LONG // 2),
    "blank": "{" + " " * 1000 + "}",  # the time was cubic
    "blanks before a bracket": "{a" + "\n" * 2 * LONG + "!}",
    "zeros": "%" + "0" * 2 * LONG,
    "zeros after a name": "%(a)" + "0" * LONG,
    "capitals": "%" + "A" * 4 * LONG + "_",
}


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_masking_a_long_text_takes_no_long_time(name: str) -> None:
    for syntax in ("any", "python-format", "java"):
        texts = {"en": LONG_TEXTS[name], "de": LONG_TEXTS[name]}
        assert cpu_seconds(partial(mask_texts, texts, syntax), 0.8) < 0.8


def test_comparing_long_texts_takes_no_long_time() -> None:
    assert len(broken_placeholders("<b></b>", "<b>" * 8000)) == 8002
    assert cpu_seconds(lambda: broken_placeholders("<b></b>", "<b>" * 8000), 1) < 1


def test_an_unknown_syntax_is_refused() -> None:
    with pytest.raises(ValueError, match=r"syntax is 'po'; allowed are html, fluent, .*, any"):
        mask_texts({"en": "x"}, "po")


# Tokenizers


@pytest.mark.parametrize("kind", SUBWORDS)
def test_a_tokenizer_keeps_the_tokens_and_all_blanks(kind: str) -> None:
    size = MIN_VOCAB_SIZE + len(MASK_TOKENS) + 20
    tokenizer: Any = train_tokenizer(["ein Hund rennt", "a <ph1> runs"] * 3, kind, size, mask_tokens=True)
    ids = add_mask_tokens(tokenizer)  # again: nothing is added
    assert ids == [*range(len(tokenizer) - len(MASK_TOKENS), len(tokenizer))]
    assert len(tokenizer) <= size
    for text in ("a<ph1>dog", "<open1>a <ph16><close1>, <char1> dog", " <ph1>  <ph1> ", "<ph17> <tag2>", "Hund. "):
        encoded = tokenizer(text).input_ids
        assert encoded[-1] == END
        assert sum(token in ids for token in encoded) == sum(text.count(token) for token in MASK_TOKENS)
        assert tokenizer.decode(encoded, skip_special_tokens=True) == text


def test_the_letters_of_mask_tokens_are_not_learned() -> None:
    size = MIN_VOCAB_SIZE + len(MASK_TOKENS) + 20
    tokenizer = train_tokenizer(["<open1>x y<close1>"] * 9, "bpe", size, mask_tokens=True)
    assert not {"open", "close", "op", "cl"} & {*tokenizer.get_vocab()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "symbols"}, "mask_tokens is not allowed with kind symbols"),
        ({"romanize": True, "decode_cyrillic": True}, "mask_tokens is not allowed with decode_cyrillic"),
        ({"vocab_size": MIN_VOCAB_SIZE}, f"4 special tokens, {len(MASK_TOKENS)} mask tokens, 256 bytes and one more"),
    ],
)
def test_options_that_do_not_go_with_mask_tokens_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_tokenizer(["a"], **{"kind": "bpe", "vocab_size": 1000, **options}, mask_tokens=True)


# What would break

SINGLE = "A single apostrophe must be doubled ('') in a pattern of MessageFormat, which drops it."


FAULTS: list[tuple[str, str, str, list[str]]] = [
    ("any", "%S has %1$S", "%S", ["%1$S occurs once, but must occur 2 times."]),
    ("any", "{ $n } files", "dataje", ["{ $n } is missing."]),
    ("any", "files", "{ $n } dataje", ["{ $n } is not in the source."]),
    ("any", "%1$S", "%2$S", ["%1$S is missing.", "%2$S is not in the source."]),
    ("printf", "%s: %d", "%d: %s", ["The order of %d, %s must be that of the source: %s, %d."]),
    ("printf", "%s: %d", "%2$d: %1$s", []),
    ("printf", "100%% safe", "100 % safe", ["% s is not in the source."]),
    ("html", "<b>x</b>", "x</b><b>", ["</b> stands before its opening tag."]),
    ("html", "<b>x</b>", "<b>x", ["</b> is missing.", "<b> is not closed."]),
    ("html", "<b>x</b>", "x</b>", ["<b> is missing.", "</b> has no opening tag."]),
    ("html", "<b>x</b>", "<b><i>x</b>", ["<i> is not in the source."]),
    ("html", "<a href='x'>y</a>", '<a  href="x">z</a>', []),
    ("html", "a &amp; b<br>c", "a und b<br>c", []),
    ("qt", "&File", "Dataja", ['The marker "&" of the access key is missing.']),
    ("qt", "&File", "Dataja&", ['The marker "&" of the access key is missing.']),
    ("qt", "&File", "&Dataja", []),
    ("fluent", "{ $n } files", "{ $n } files }", ['A brace "}" stands without its partner.']),
    ("icu", "{0}", "{0} {", ['A brace "{" stands without its partner.']),
    ("properties", r"Log in as DOMAIN\{0}", "Pśizjawiś", ["{0} is missing."]),
    (
        "any",
        '<ph id="1">[USER]</ph> x',
        '<ph id="1">[WUZYWAR]</ph> x',
        ['<ph id="1">[USER]</ph> is missing.', '<ph id="1">[WUZYWAR]</ph> is not in the source.'],
    ),
    (
        "any",
        '<bpt id="1">*</bpt>a<ept id="1">*</ept>',
        '<bpt id="1">*</bpt>a<ept id="1"></ept>',
        ['<ept id="1">*</ept> is missing.', '<ept id="1"></ept> is not in the source.'],
    ),
    ("any", '<bpt id="1">*</bpt>a<ept id="1">*</ept>', "<bpt  id='1'>*</bpt>x<ept id='1' >*</ept>", []),
    (
        "any",
        '<ph id="1">%s</ph> <ph id="2">%d</ph>',
        '<ph id="2">%d</ph> <ph id="1">%s</ph>',
        [
            'The order of <ph id="2">%d</ph>, <ph id="1">%s</ph> must be that of the source: '
            '<ph id="1">%s</ph>, <ph id="2">%d</ph>.'
        ],
    ),
    ("properties", "Open {0}", "L'open {0}", []),  # nothing shows whether it is a pattern
    ("properties", "Can''t open {0}", "L'open {0}", [SINGLE]),
    ("properties", "Can''t open {0}", "L''open ''{0}''", []),
    ("properties", "Can''t open {0}, don't", "L'open {0}", []),
    ("properties", "Can''t open {0,number}", "Can't open {0,number}", [SINGLE]),
    ("java-format", "Can''t open {0}", "Can't open {0}", [SINGLE]),
    ("java-format", "Don''t use '{x}' and {0}", "'{x}' ''a'' {0}", []),
    ("properties", "Don''t use '{'x'}' and {0}", "{0}, '{'x'}', '", [SINGLE]),
    ("properties", "Can't open {0}", "L'open {0}", []),  # another function formats the text
    ("properties", "Open '{0}'", "L'open '{0}'", []),
    ("properties", "Don''t", "Don't", []),  # without arguments
    ("properties", "Open {name} %S", "L'open {name} %S", []),
    ("any", "Open {0}", "L'open {0}", []),
    ("html", "x ", "x", ["The white space at the beginning and the end must be '' and ' '; it is '' and ''."]),
    (
        "any",
        "https://a.org/en",
        "https://a.org/de",
        ["https://a.org/en is missing.", "https://a.org/de is not in the source."],
    ),
    ("any", '<g id="1">a</g> <g id="2"/>', '<g id="2"/> <g id="1">x</g>', []),
    ("any", '<a name="x"> <a href="y">z</a>', '<a href="y">z</a> <a name="x">', []),
    ("any", "<b> <b>x</b>", "</b> <b> <b>x", ["</b> stands before its opening tag."]),
    ("any", '<a id="1"/> <a id="2">x</a>', '<a id="1"/> </a>x<a id="2">', ["</a> stands before its opening tag."]),
    ("properties", r"Set \{", "Set {", [r"\{ is missing."]),
    ("properties", "Set {", r"Set \{", [r"\{ is not in the source."]),
    ("properties", r"a \{0} b", "a {0} b", [r"\{ is missing."]),
    ("properties", r"a \{0\} \{1} b", r"a \{0\} {1} b", [r"\{ occurs once, but must occur 2 times."]),
    ("properties", r"a \{0\} b", r"\{0\} a", []),
    ("html", r"a \{", "a {", []),
]


@pytest.mark.parametrize(("syntax", "source", "text", "faults"), FAULTS)
def test_a_fault_is_said_in_words(syntax: str, source: str, text: str, faults: list[str]) -> None:
    assert broken_placeholders(source, text, syntax) == faults
    for one in (source, text):
        assert broken_placeholders(one, one, syntax) == []


@pytest.mark.parametrize(
    ("sources", "file", "expected"),
    [
        (["Can''t open {0}", "Open {0}"], None, True),
        (["Open {0}", "Can''t open {0}"], None, True),
        (["Открыть {0}", "Can't open {0}"], None, False),
        (["Can''t open {0}", "L'open {0}"], None, False),  # contradictory
        (["Open {0}", "Use '{' and {0}"], None, False),  # nothing shows it
        (["Open {0}", "Use '{' and {0}"], True, True),
        (["Open {0}"], False, False),
        (["Can''t open {0}"], False, True),  # the own sources decide first
        (["Can't open {0}"], True, False),
        (["Don''t"], True, False),  # without an argument
        ([], True, False),
    ],
)
def test_the_sources_show_whether_a_text_is_a_message_format(
    sources: list[str], file: bool | None, expected: bool
) -> None:
    for syntax in MESSAGE_FORMATS:
        assert is_message_format(sources, syntax, file) == expected
    assert not is_message_format(sources, "any", file)


@each_syntax
def test_an_arrow_in_braces_is_a_selector_only_in_syntaxes_of_fluent(syntax: str) -> None:
    is_fluent = syntax in ("fluent", "any", "c-format", "python-format")
    for text in ("Map: {key -> value}", "function() {return a->b}"):
        assert bool(variants_refusal(text, syntax)) == (is_fluent and "brace" in SYNTAXES[syntax])


def test_a_caller_can_decide_whether_apostrophes_must_be_doubled() -> None:
    assert broken_placeholders("Can''t {0}", "L'open {0}", "properties", message_format=False) == []
    assert broken_placeholders("Open {0}", "L'open {0}", "properties", message_format=True) == [SINGLE]


@given(text=st.text("' ax", max_size=9), syntax=st.sampled_from(["properties", "java-format"]))
@example(text="a'''x'", syntax="properties")
def test_doubled_apostrophes_are_accepted_in_a_message_format(text: str, syntax: str) -> None:
    doubled = double_apostrophes(text, syntax)
    assert double_apostrophes(doubled, syntax) == doubled
    assert broken_placeholders("x'' {0}", f"x {doubled} {{0}}", syntax) == []


def test_quoted_braces_doubled_apostrophes_and_placeholders_stay_as_they_are() -> None:
    text = "l'un '{' a '{x y}' ''b'' '<ph1>' '{0}' <a href='x'>{0,choice,0#it''s}</a>"
    assert double_apostrophes(text, "properties") == (
        "l''un '{' a '{x y}' ''b'' ''<ph1>'' ''{0}'' <a href='x'>{0,choice,0#it''s}</a>"
    )


def test_an_access_key_must_be_in_the_text_outside_of_placeholders() -> None:
    assert broken_placeholders("File { $x }", "Dataja { $x }", access_key="d") == []
    assert broken_placeholders("File { $x }", "Dataja { $x }", access_key="X") == [
        'The access key "X" is not in the text.'
    ]
