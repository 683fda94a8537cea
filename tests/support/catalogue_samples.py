"""Small invented catalogues of every format, with what is in them."""

from __future__ import annotations

from dataclasses import dataclass

Texts = dict[tuple[str, str], str]


@dataclass(frozen=True)
class Sample:
    """A catalogue of a target language, and its reference.

    Args:
        path: Name of the file.
        text: The file.
        entries: Its entries: (key, part) -> (text, state).
        new: Texts that can be filled, each alone or all together.
        reference: The same file in English, in formats whose files hold one language.
    """

    path: str
    text: str
    entries: dict[tuple[str, str], tuple[str, str]]
    new: Texts
    reference: str = ""


FLUENT = Sample(
    "menu.ftl",
    """\
# License: the license of this file

## Menus

# a comment
open = Wočiniś { $name }
    .label = Wócyń
    .accesskey = W
-brand = Lisk

windows = { $n ->
    [one] { $n } wokno
   *[other] { $n } woknow
}
long =
    první
      druhý

    třetí
mixed = Mam { $n ->
    [one] jadno
   *[other] wjele
} woknow
last = kóńc""",
    {
        ("open", ""): ("Wočiniś { $name }", "translated"),
        ("open", ".label"): ("Wócyń", "translated"),
        ("open", ".accesskey"): ("W", "translated"),
        ("-brand", ""): ("Lisk", "translated"),
        ("windows", "[one]"): ("{ $n } wokno", "translated"),
        ("windows", "[other]"): ("{ $n } woknow", "translated"),
        ("long", ""): ("první\n  druhý\n\ntřetí", "translated"),
        ("last", ""): ("kóńc", "translated"),
    },
    {
        ("open", ".title"): "Titel",
        ("close", ""): 'Zacyniś { -brand } <a data-l10n-name="x">{ $x }</a>',
        ("close", ".label"): "Zacyń",
        ("quit", ".label"): "Kónc",
        ("tabs", "[one]"): "{ $n } rejtarik",
        ("tabs", "[two]"): "{ $n } rejtarika",
        ("tabs", "[other]"): "{ $n } rejtarikow",
        ("help", ""): "prědny\n\n  drugi",
        ("first", ""): "prědny",
        ("end", ""): "kóńc",
    },
    """\
first = first
open = Open { $name }
    .label = Open
    .accesskey = O
    .title = Title
close = Close { -brand } <a data-l10n-name="x">{ $x }</a>
    .label = Close
quit =
    .label = Quit
windows = { $n ->
    [one] { $n } window
   *[other] { $n } windows
}
tabs = { $n ->
    [one] { $n } tab
   *[other] { $n } tabs
}
help = first
last = last
end = end
""",
)

PROPERTIES = Sample(
    "menu.properties",
    """\
# License: the license of this file

# a comment
open=Wočiniś %S
! another
  save : Składowaś\\
     \\tten\\u00e4
with\\ blank Wót \\
  \\ zacynjeny
empty=
last = \\u010d a \\\\ a \\n, C:""",
    {
        ("open", ""): ("Wočiniś %S", "translated"),
        ("save", ""): ("Składowaś\ttenä", "translated"),
        ("with blank", ""): ("Wót  zacynjeny", "translated"),
        ("empty", ""): ("", "translated"),
        ("last", ""): ("č a \\ a \n, C:", "translated"),
    },
    {
        ("first", ""): "prědny",
        ("close", ""): " zacyniś = \\ : #\tž\nnowa smužka ",
        ("a key: =x", ""): "č",
        ("end", ""): "kóńc😀",
    },
    "first=first\nopen=Open %S\nsave=Save\nclose=Close\nlast=last\nend=end\na\\ key\\:\\ \\=x=c\n",
)

DTD = Sample(
    "menu.dtd",
    """\
<!-- License: the license of this file -->

<!-- a comment -->
<!ENTITY open.label "Wočiniś &brandShortName; &quot;x&quot;">
<!ENTITY  say 'pšajo "jo"' >
<!ENTITY last
   "kóńc">""",
    {
        ("open.label", ""): ("Wočiniś &brandShortName; &quot;x&quot;", "translated"),
        ("say", ""): ('pšajo "jo"', "translated"),
        ("last", ""): ("kóńc", "translated"),
    },
    {("first", ""): "prědny", ("close.label", ""): 'Zacyniś "to" &brandShortName;', ("end", ""): "it's"},
    '<!ENTITY first "a">\n<!ENTITY open.label "a">\n<!ENTITY close.label "b">\n<!ENTITY last "c">\n<!ENTITY end "c">\n',
)

ANDROID = Sample(
    "values-dsb/strings.xml",
    """\
<?xml version="1.0" encoding="utf-8"?>
<!-- License: the license of this file -->
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2">
    <!-- a comment -->
    <string name="open">Wočiniś   &amp;\\n\\'%1$s\\' \\u010d</string>
    <string name="bold">To <b>tučne</b> &amp; \\'to\\'</string>
    <string name="id" translatable="false">x</string>
    <string name="quoted">"  a  "</string>
    <plurals name="windows">
        <item quantity="one">%d wokno</item>
        <item quantity="other">%d woknow</item>
    </plurals>
    <string-array name="days"><item>pón</item><item>wał</item></string-array>
    <string name="none"/>
</resources>
""",
    {
        ("open", ""): ("Wočiniś &\n'%1$s' č", "translated"),
        ("bold", ""): ("To <b>tučne</b> &amp; 'to'", "translated"),
        ("quoted", ""): ("  a  ", "translated"),
        ("windows", "[one]"): ("%d wokno", "translated"),
        ("windows", "[other]"): ("%d woknow", "translated"),
        ("days", "[0]"): ("pón", "translated"),
        ("days", "[1]"): ("wał", "translated"),
        ("none", ""): ("", "translated"),
    },
    {
        ("first", ""): "@prědny  \"a\" & <b> 'c' \\ \n\t",
        ("link", ""): 'Glědaj <a href="x">how</a> &amp; tam',
        ("tabs", "[one]"): "%d rejtarik",
        ("tabs", "[few]"): "%d rejtariki",
        ("tabs", "[other]"): "%d rejtarikow",
        ("months", "[0]"): "jan",
        ("months", "[1]"): "feb",
        ("end", ""): " kóńc ",
    },
    """\
<resources>
  <string name="first">a</string>
  <string name="open">b</string>
  <string name="link">See <a href="x">here</a></string>
  <plurals name="tabs"><item quantity="one">%d tab</item><item quantity="other">%d tabs</item></plurals>
  <string-array name="months"><item>Jan</item><item>Feb</item></string-array>
  <string name="none">n</string>
  <string name="end">e</string>
</resources>
""",
)

PO = Sample(
    "dsb.po",
    """\
# License: the license of this file
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=0;\\n"

#. for translators
#: a.c:1
msgid "open %s"
msgstr "wočiniś %s"

#  translator's
#: a.c:2
#, c-format
#| msgid "old"
msgid "close %d"
msgstr ""

#, fuzzy
msgid "save"
msgstr "składowaś?"

msgctxt "menu"
msgid "save"
msgstr ""

#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d dataja"
msgstr[1] "%d dataji"
msgstr[2] ""
msgid "%d tab"
msgid_plural "%d tabs"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

msgid ""
"first\\n"
"second \\"quoted\\"\\t\\\\"
msgstr ""
"prědny\\n"
"drugi \\"x\\"\\t\\\\"

msgid "lines\\nmore"
msgstr ""

#~ msgid "gone"
#~ msgstr "preč"
""",
    {
        ("open %s", ""): ("wočiniś %s", "translated"),
        ("close %d", ""): ("", "untranslated"),
        ("save", ""): ("składowaś?", "fuzzy"),
        ("menu\x04save", ""): ("", "untranslated"),
        ("%d file", "[0]"): ("%d dataja", "translated"),
        ("%d file", "[1]"): ("%d dataji", "translated"),
        ("%d file", "[2]"): ("", "untranslated"),
        ("%d tab", "[0]"): ("", "untranslated"),
        ("%d tab", "[1]"): ("", "untranslated"),
        ("%d tab", "[2]"): ("", "untranslated"),
        ('first\nsecond "quoted"\t\\', ""): ('prědny\ndrugi "x"\t\\', "translated"),
        ("lines\nmore", ""): ("", "untranslated"),
        ("gone", ""): ("preč", "obsolete"),
    },
    {
        ("close %d", ""): 'zacyniś %d "\\"',
        ("menu\x04save", ""): "składowaś",
        ("%d tab", "[0]"): "%d rejtarik",
        ("%d tab", "[1]"): "%d rejtarika",
        ("%d tab", "[2]"): "%d rejtarikow",
        ("lines\nmore", ""): "smužki\n\nwěcej",
    },
)

XLIFF_1 = Sample(
    "dsb.xlf",
    """\
<?xml version="1.0"?>
<!-- License: the license of this file -->
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file original="a.txt" source-language="en" target-language="dsb" datatype="plaintext">
    <body>
      <trans-unit id="open">
        <source>Open &amp; go</source>
        <target state="translated">Wočiniś &amp; hyś</target>
        <note>a comment</note>
      </trans-unit>
      <trans-unit id="close" approved="no">
        <source>Close <g id="1">it</g> &amp; go</source>
        <note>a comment</note>
      </trans-unit>
      <group id="g">
        <trans-unit id="new"><source>New</source><target state="new">New</target></trans-unit>
        <trans-unit id="empty"><source>Empty</source><target x="y" /></trans-unit>
        <trans-unit id="review"><source>R</source><target state="needs-review-translation">r</target></trans-unit>
        <trans-unit id="no" translate="no"><source>x</source></trans-unit>
        <trans-unit id="alt"><source>Alt</source>
          <alt-trans><target>not this</target></alt-trans>
        </trans-unit>
      </group>
    </body>
  </file>
</xliff>
""",
    {
        ("open", ""): ("Wočiniś & hyś", "translated"),
        ("close", ""): ("", "untranslated"),
        ("new", ""): ("New", "untranslated"),
        ("empty", ""): ("", "untranslated"),
        ("review", ""): ("r", "fuzzy"),
        ("alt", ""): ("", "untranslated"),
    },
    {
        ("close", ""): 'Zacyniś <g id="1">to</g> &amp; hyś',
        ("new", ""): "Nowy < stary & druge > ]]>",
        ("empty", ""): "Prozny",
        ("alt", ""): "Alternatiwa",
    },
)

XLIFF_2 = Sample(
    "dsb.xliff",
    """\
<xliff version="2.1" srcLang="en" trgLang="dsb" xmlns="urn:oasis:names:tc:xliff:document:2.0">
  <!-- License: the license of this file -->
  <file id="f1">
    <unit id="open">
      <segment state="final">
        <source>Open</source>
        <target>Wočiniś</target>
      </segment>
    </unit>
    <unit id="close">
      <segment>
        <source>Close <ph id="1"/></source>
      </segment>
    </unit>
    <unit id="two">
      <segment id="a" state="initial">
        <source>One.</source>
        <target>One.</target>
      </segment>
      <segment subState="x:needs-review-a" state="translated"><source>Two.</source><target>Dwa.</target></segment>
    </unit>
    <unit id="no" translate="no"><segment><source>x</source></segment></unit>
  </file>
</xliff>
""",
    {
        ("open", ""): ("Wočiniś", "translated"),
        ("close", ""): ("", "untranslated"),
        ("two", "[a]"): ("One.", "untranslated"),
        ("two", "[1]"): ("Dwa.", "fuzzy"),
    },
    {("close", ""): 'Zacyniś <ph id="1"/>', ("two", "[a]"): "Jaden."},
)

QT = Sample(
    "app_dsb.ts",
    """\
<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<!-- License: the license of this file -->
<TS version="2.1" language="dsb" sourcelanguage="en_US">
<context>
    <name>Menu</name>
    <message>
        <location filename="a.cpp" line="1"/>
        <source>&amp;Open</source>
        <extracomment>a comment</extracomment>
        <translation>&amp;Wočiniś</translation>
    </message>
    <message>
        <source>Close</source>
        <comment>tab</comment>
        <translation type="unfinished"></translation>
    </message>
    <message>
        <source>Close</source>
        <translation type="unfinished" />
    </message>
    <message>
        <source>Save</source>
        <translation type="unfinished">Składowaś?</translation>
    </message>
    <message numerus="yes">
        <source>%n file(s)</source>
        <translation type="unfinished">
            <numerusform></numerusform>
            <numerusform></numerusform>
        </translation>
    </message>
    <message>
        <source>Gone</source>
        <translation type="vanished">Preč</translation>
    </message>
</context>
</TS>
""",
    {
        ("Menu\x04&Open", ""): ("&Wočiniś", "translated"),
        ("Menu\x04Close\x04tab", ""): ("", "untranslated"),
        ("Menu\x04Close", ""): ("", "untranslated"),
        ("Menu\x04Save", ""): ("Składowaś?", "fuzzy"),
        ("Menu\x04%n file(s)", "[0]"): ("", "untranslated"),
        ("Menu\x04%n file(s)", "[1]"): ("", "untranslated"),
        ("Menu\x04Gone", ""): ("Preč", "obsolete"),
    },
    {
        ("Menu\x04Close\x04tab", ""): "Zacyniś & <b>",
        ("Menu\x04Close", ""): "Zacyniś",
        ("Menu\x04%n file(s)", "[0]"): "%n dataja",
        ("Menu\x04%n file(s)", "[1]"): "%n dataje",
    },
)

SAMPLES = [FLUENT, PROPERTIES, DTD, ANDROID, PO, XLIFF_1, XLIFF_2, QT]
