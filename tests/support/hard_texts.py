"""Texts that are hard to localise, in English and German, and catalogues of the target that lack them."""

from __future__ import annotations

LONG = "A long text, word by word. " * 75  # 2,000 characters
FLUENT = {  # key -> English and German; None: absent
    "nested": ('<a data-l10n-name="x">Open <b>{ $n }</b> now</a>', '<a data-l10n-name="x"><b>{ $n }</b> öffnen</a>'),
    "twice": ("{ $n } and { $n }", "{ $n } und { $n }"),
    "only": ("{ $n }{ $m }", "{ $n }{ $m }"),
    "reordered": ("{ $n } of { $m }", "Von { $m } die { $n }"),
    "term": ('{ -brand(case: "gen") } is new', "{ -brand } ist neu"),
    "function": ('{ NUMBER($n, style: "percent") } done', "{ NUMBER($n) } fertig"),
    "message": ("See { other.label }", "Siehe { other.label }"),
    "literal": ('{ "" }   indented { "{" }x{ "}" }', '{ "" }   eingerückt { "{" }x{ "}" }'),
    "lines": ("\n    one\n\n    two { $n }", "\n    eins\n\n    zwei { $n }"),
    "broken-in-one": ("<b>Open</b>", "<b>Öffnen"),
    "lost-in-one": ("Open { $n }", "Öffnen"),
    "only-german": (None, "Nur { $n }"),
    "right-to-left": ("\u2067{ $n } \u05e9\u05dc\u05d5\u05dd\u2069", "Hallo { $n }"),
    "emoji": ("👩‍👩‍👧 { $n } ✅", "👩‍👩‍👧 { $n } ✅"),
    "combining": ("e\u0301 Z\u030c { $n }", "é Ž { $n }"),
    "long": (LONG.strip(), "Ein langer Text"),
    "url": ("See https://a.b/c?d=%S&e=1#f or a@b.org", "Siehe https://a.b/c?d=%S&e=1#f oder a@b.org"),
    "entities": ("A &amp; B &lt;C&gt; &nbsp;", "A &amp; B &lt;C&gt; &nbsp;"),
    "comment": ("A <!-- b --> c", "A <!-- b --> c"),
    "many": (" ".join(f"{{ $a{i} }}" for i in range(17)), "viele"),
    "token": ("Write <ph1> and <open1>", "Schreibe <ph1> und <open1>"),
    "same": ("OK", "OK"),
    "plural": ("{ $n ->\n        [one] Tab\n       *[other] { $n } tabs\n    }", "{ $n } Tabs"),
    "platform": ("{ PLATFORM() ->\n        [macos] Mac\n       *[other] PC\n    }", "Rechner"),
    "mixed": ("Have { $n ->\n        [one] a\n       *[other] b\n    } tabs", "x"),
    "inner": ("{ $n ->\n       *[other] { $m ->\n           *[other] x\n        }\n    }", "x"),
    "attributes": ("Value\n    .label = Label { $n }\n    .accesskey = q", "Wert\n    .label = Text { $n }"),
    "keyed": ("\n    .label = { -brand }\n    .accesskey = b", "\n    .label = { -brand }\n    .accesskey = b"),
}
PROPERTIES = {
    "printf": ("Open %1$S in %2$S", "In %2$S %1$S öffnen"),
    "ordered": ("%S of %S", "%S von %S"),
    "escaped": ("100%% of %S\\n\\u00e9", "100%% von %S\\n\\u00e9"),
    "blank": ("\\ %S ", "\\ %S "),
    "mustache": ("{{page}} / {{pages}}", "{{page}} / {{pages}}"),
    "hash": ("#1 file;#1 files", "#1 Datei;#1 Dateien"),
    "empty": ("", "etwas"),
    "spaces": ("\\u0020\\u0020", "\\u0020"),
    "x.label": ("Save", "Sichern"),
    "x.accesskey": ("Q", "Q"),
    "y.accesskey": ("Q", "Q"),
    "a\\ key\\:\\=": ("Value #1", "Wert #1"),
    "format": ("{0} files in ''{1,number,#}''", "{0} Dateien in ''{1,number,#}''"),
    "choice": ("{0,choice,0#none|1#one|1<many}", "{0,choice,0#keine|1#eine|1<viele}"),
    "choice-only": ("{0,choice,0#none|1#one}", "{0,choice,0#none|1#one}"),
    "apostrophe": ("Can''t open {0}", "{0} geht''s nicht"),
    "open.commandkey": ("o", "f"),
    "open.width": ("32em", "40em"),
    "quote": ('"It\'s" <em>%S</em>', "„Es“ <em>%S</em>"),
}
OLD = {
    "menu.ftl": "\ufeff# Licence\r\n\r\nown = Swójski\r\n",
    "menu.properties": "! Licence\n\n  own : Swój\\\n   ski\n",
}
GETTEXT = {  # name -> a message, and its German translation
    "po-printf": ('msgid "%d of %s"', 'msgstr "%d von %s"'),
    "po-percent": ('#, c-format\nmsgid "100%% of %s\\n"', 'msgstr "100%% von %s\\n"'),
    "po-context": ('msgctxt "menu"\nmsgid "_Open"', 'msgstr "_Öffnen"'),
    "po-quotes": ('msgid "A \\"b\\" \\\\ c\\td"', 'msgstr "Ein \\"b\\" \\\\ c\\td"'),
    "po-python": ('#, python-format\nmsgid "%(n)s and %(n)s"', 'msgstr "%(n)s und %(n)s"'),
    "po-plural": ('msgid "%d file"\nmsgid_plural "%d files"', 'msgstr[0] "%d Datei"\nmsgstr[1] "%d Dateien"'),
}
XML = {  # name -> file name, and the entry in English and German
    "android-quotes": (
        "strings.xml",
        '<string name="a">It\\\'s \\"%1$s\\"</string>',
        '<string name="a">„%1$s“</string>',
    ),
    "android-tags": (
        "strings.xml",
        '<string name="a">A <b>%s</b> &amp; c</string>',
        '<string name="a"><b>%s</b></string>',
    ),
    "android-cdata": ("strings.xml", '<string name="a"><![CDATA[<b>x</b>]]></string>', '<string name="a">x</string>'),
    "android-plural": (
        "strings.xml",
        '<plurals name="a"><item quantity="one">%d day</item><item quantity="other">%d days</item></plurals>',
        '<plurals name="a"><item quantity="one">%d Tag</item><item quantity="other">%d Tage</item></plurals>',
    ),
    "dtd-entity": ("a.dtd", '<!ENTITY a "See &brand; &amp; x">', '<!ENTITY a "Siehe &brand; &amp; x">'),
    "dtd-quotes": ("a.dtd", "<!ENTITY a 'A \"b\" c'>", "<!ENTITY a 'Ein \"b\" c'>"),
}


# Files that hold the English messages: name of a case -> the message and its German translation, or both German plural
# forms. `AS_THEY_ARE` has whole entries, in German and in the target.
def xliff_1(text: str, translation: str | None, attributes: str = 'id="a"') -> str:
    target = "" if translation is None else f"<target>{translation}</target>\n"
    return f"<trans-unit {attributes}>\n<source>{text}</source>\n{target}<note>a note</note>\n</trans-unit>\n"


def xliff_2(text: str, translation: str | None, attributes: str = "") -> str:
    target = "" if translation is None else f"<target>{translation}</target>\n"
    return f"<segment{attributes}>\n<source>{text}</source>\n{target}</segment>\n"


def qt(text: str, translation: str | None, attributes: str = "") -> str:
    kind = ' type="unfinished"' if translation is None else ""
    body = f"<source>{text}</source>\n<translation{kind}>{translation or ''}</translation>\n"
    return f"<message{attributes}>\n{body}</message>\n"


def qt_forms(text: str, translations: list[str]) -> str:
    kind = ' type="unfinished"' if not any(translations) else ""
    forms = "".join(f"<numerusform>{one}</numerusform>\n" for one in translations)
    body = f"<source>{text}</source>\n<translation{kind}>\n{forms}</translation>\n"
    return f'<message numerus="yes">\n{body}</message>\n'


XLIFF_1 = {
    "nested": ('A <g id="1">b <g id="2">c</g></g> &amp; <x id="3"/>', '<g id="1">b <g id="2">c</g></g> <x id="3"/> A'),
    "twice": ("%s and %s", "%s und %s"),
    "escaped": ("&lt;b&gt; &amp;amp; &quot;q&quot; ]]&gt;", "&lt;b&gt; &amp;amp; „q“ ]]&gt;"),
    "cdata": ("<![CDATA[<b>x</b> & y]]>", "<![CDATA[<b>x</b> & y]]>"),
    "blanks": (" %1$s ", " %1$s "),
    "only": ('<x id="1"/>', '<x id="1"/>'),
    "lost-in-one": ('Open <x id="1"/>', "Öffnen"),
    "code": (
        'Hi <ph id="1">[USER]</ph>, <bpt id="2">*</bpt>b<ept id="2">*</ept>',
        '<bpt id="2">*</bpt>b<ept id="2">*</ept> <ph id="1">[USER]</ph>',
    ),
    "protected": ('Use <mrk mtype="protected">Foo Bar</mrk>', '<mrk mtype="protected">Foo Bar</mrk> nutzen'),
    "angular": ('A <x id="START_LINK"/>b<x id="CLOSE_LINK"/>', '<x id="START_LINK"/>b<x id="CLOSE_LINK"/> A'),
    "plural": ("{VAR_PLURAL, plural, =0 {none} other {some}}", "{VAR_PLURAL, plural, =0 {keine} other {einige}}"),
    "right-to-left": ("\u2067{0} \u05e9\u05dc\u05d5\u05dd\u2069", "Hallo {0}"),
    "long": (LONG.strip(), "Ein langer Text"),
    "empty": ("", "etwas"),
}
XLIFF_2 = {
    "codes": ('Press <ph id="1"/> or <pc id="2">Esc</pc>', '<ph id="1"/> oder <pc id="2">Esc</pc>'),
    "mark": ('<mrk id="m" type="term">Term</mrk> {0}', '<mrk id="m" type="term">Begriff</mrk> {0}'),
    "split-code": ('<sc id="1"/>Bold<ec startRef="1"/>', '<sc id="1"/>Fett<ec startRef="1"/>'),
    "character": ('A <cp hex="0001"/> b', 'A <cp hex="0001"/> b'),
    "lines": ("One\nTwo %s", "Eins\nZwei %s"),
}
QT = {
    "menu": ("&amp;Open %1…", "%1 &amp;öffnen…"),
    "ordered": ("%2 of %1 (%L3)", "%2 von %1 (%L3)"),
    "rich": ("&lt;b&gt;%1&lt;/b&gt; &amp;amp; x", "&lt;b&gt;%1&lt;/b&gt; &amp;amp; x"),
    "percent": ("100 % of %1", "100 % von %1"),
    "byte": ('A<byte value="x7"/> b', 'A<byte value="x7"/> b'),
    "same": ("%1", "%1"),
}
QT_FORMS = {"plural": ("%n file(s) in %1", ["%n Datei in %1", "%n Dateien in %1"])}
AS_THEY_ARE = {  # name -> the kind of file, and the entry in German and in the target
    "xliff1-same-id": ("a.xlf", xliff_1("One", "Eins") * 2, xliff_1("One", None) * 2),
    "xliff1-fixed": ("a.xlf", *[xliff_1("One", text, 'id="a" translate="no"') for text in ("Eins", None)]),
    "xliff1-new": (
        "a.xlf",
        xliff_1("One", "Eins"),
        xliff_1("One", "").replace("<target>", '<target state="new">'),
    ),
    "xliff2-segments": (
        "a.xliff",
        f"{xliff_2('One. ', 'Eins. ')}<ignorable>\n<source> </source>\n</ignorable>\n{xliff_2('Two %s', 'Zwei %s')}",
        f"{xliff_2('One. ', None)}<ignorable>\n<source> </source>\n</ignorable>\n{xliff_2('Two %s', None)}",
    ),
    "xliff2-initial": ("a.xliff", xliff_2("One", "Eins"), xliff_2("One", "", ' state="initial"')),
    "qt-comment": (
        "a.ts",
        *[
            "".join(qt("Open", text and f"{text} {i}").replace("<tr", f"<comment>{i}</comment>\n<tr") for i in (1, 2))
            for text in ("Auf", None)
        ],
    ),
    "qt-variants": (
        "a.ts",
        qt("Open", "<lengthvariant>Öffnen</lengthvariant>"),
        qt("Open", None).replace("></tr", "><lengthvariant></lengthvariant></tr"),
    ),
    "qt-vanished": (
        "a.ts",
        qt("Open", "Öffnen"),
        qt("Open", "Wócyniś").replace("<translation>", '<translation type="vanished">'),
    ),
}
AROUND = {  # kind of file -> what is around an entry
    "a.xlf": '<xliff version="1.2">\n<file original="a" source-language="en" target-language="{}">\n<body>\n{}</body>\n'
    "</file>\n</xliff>\n",
    "a.xliff": '<xliff version="2.0" srcLang="en" trgLang="{}">\n<file id="f">\n<unit id="a">\n{}</unit>\n</file>\n'
    "</xliff>\n",
    "a.ts": '<!DOCTYPE TS>\n<TS version="2.1" language="{}" sourcelanguage="en">\n<context>\n<name>C</name>\n{}'
    "</context>\n</TS>\n",
}
