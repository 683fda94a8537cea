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
