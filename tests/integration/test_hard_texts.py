"""Texts that are hard to localise: each is filled whole or refused by name, and nothing else in the files changes."""

from __future__ import annotations

import json
from pathlib import Path

from hf_multisource.cli.app import main
from hf_multisource.data.catalogue_entries import FUZZY, TRANSLATED
from hf_multisource.data.catalogue_files import read_catalogue
from hf_multisource.data.placeholders import broken_placeholders
from hf_multisource.evaluation.localization import EMPTY
from small_run import save_run

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
    "quote": ('"It\'s" <em>%S</em>', "„Es“ <em>%S</em>"),
}
OLD = {
    "menu.ftl": "\ufeff# Licence\r\n\r\nown = Swójski\r\n",
    "menu.properties": "! Licence\n\n  own : Swój\\\n   ski\n",
}
REFUSED = {"many", "mixed", "inner", "long", "empty", "spaces", "y.accesskey"}
FILLED = {"twice", "only", "emoji", "plural", "platform", "keyed", "attributes", "printf", "x.label", "x.accesskey"}


def write_language(place: Path, column: int) -> None:
    place.mkdir(parents=True)
    for name, texts, sign in (("menu.ftl", FLUENT, " = "), ("menu.properties", PROPERTIES, "=")):
        lines = [f"{key}{sign}{texts[column]}\n" for key, texts in texts.items() if texts[column] is not None]
        (place / name).write_text("".join(lines), "utf-8")


def test_hard_texts_are_filled_whole_or_refused_and_nothing_else_changes(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    for column, language in enumerate(("en", "de")):
        write_language(tmp_path / language, column)
    (tmp_path / "dsb").mkdir()
    for name, text in OLD.items():
        (tmp_path / "dsb" / name).write_bytes(text.encode())
    places = [f"--target=dsb={tmp_path}/dsb", "--source", f"en={tmp_path}/en", f"de={tmp_path}/de"]
    main(["localize", run, *places, "--out", f"{tmp_path}/out", "--max_new_tokens", "40", "--device", "cpu"])
    record = json.loads((tmp_path / "out.json").read_text("utf-8"))
    texts = {(text["file"], text["key"], text["part"]): text for text in record["texts"]}
    written = set()
    for name, old in OLD.items():
        content = (tmp_path / "out" / name).read_bytes()
        rest = iter(content.decode().splitlines(keepends=True))
        assert all(line in rest for line in old.splitlines(keepends=True))  # in this order
        assert (b"\r\n" in content) == ("\r\n" in old)
        assert content.count(b"\n") == content.count(b"\r\n") or "\r\n" not in old
        for entry in read_catalogue(name, content).entries:
            if entry.key == "own":
                assert entry.state == TRANSLATED
                continue
            found = texts[name, entry.key, entry.part]
            assert (found["state"], found["text"], entry.state) == ("filled", entry.text, FUZZY)
            if found["origin"] != "access key":
                first = next(iter(found["sources"].values()))
                syntax = "fluent" if name == "menu.ftl" else "properties"
                assert broken_placeholders(first, entry.text, syntax) == []
            written.add((name, entry.key, entry.part))
    refused = texts.keys() - written
    assert all(texts[place]["state"] == "refused" and texts[place]["reason"] for place in refused)
    english = {*FLUENT, *(key.replace("\\", "") for key in PROPERTIES)} - {"only-german"}
    assert {key for _, key, _ in texts} == english
    assert {key for _, key, _ in refused} >= REFUSED
    assert {key for _, key, _ in written} >= FILLED
    assert texts["menu.properties", "empty", ""]["reason"] == EMPTY
