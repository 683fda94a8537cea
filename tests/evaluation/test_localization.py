"""Filling the catalogues of a language: what is missing, from where it is filled, and what a kill leaves."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from archive_files import zipped
from hf_multisource.cli import localize as command
from hf_multisource.cli.app import main
from hf_multisource.data.catalogue_entries import REVIEW
from hf_multisource.data.catalogue_files import read_catalogue
from hf_multisource.data.plural_forms import plural_rule
from hf_multisource.evaluation import localization_run
from hf_multisource.evaluation.localization import Places, Plan, make_plan
from hf_multisource.evaluation.localization_answers import (
    NO_LABEL,
    NO_LABEL_TEXT,
    Options,
    answer_from_memory,
    open_requests,
    take_proposals,
)
from hf_multisource.evaluation.localization_report import describe_counts, preview
from hf_multisource.evaluation.localization_run import localize
from hf_multisource.evaluation.missing_texts import NO_SOURCE, PARTLY
from hf_multisource.evaluation.text_translator import Candidate, Translation
from hf_multisource.json_files import JsonObject
from hf_multisource.recipes.recipe import load_recipe
from kills import Killed, kill_in
from quoting_translator import QuotingTranslator

FOUR_FORMS = "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);"
ENGLISH = {
    "en/menu.ftl": """\
# License of the file

open = Open { $name }
    .label = Open
    .accesskey = O
save = Save
again = Save
tabs = { $n ->
    [one] { $n } tab
   *[other] { $n } tabs
}
place = { $x }: https://a.b
""",
    "en/new/sync.properties": "# License of the other file\n\non=Sync is on\noff=Sync is off\n",
}
GERMAN = {
    "de/menu.ftl": """\
open = { $name } öffnen
    .label = Öffnen
    .accesskey = f
save = Sichern
again = Sichern
tabs = { $n ->
    [one] Ein Tab von { $n }
   *[other] { $n } Tabs
}
""",
    "de/new/sync.properties": "on=Sync ist an\n",
}
SORBIAN = {"dsb/menu.ftl": "# Mine\n\n### ours\nsave = Składowaś\n", "dsb/more/own.ftl": "own = naš\n"}


CATEGORIES = ("one", "two", "few", "other")  # of Lower Sorbian


def write(place: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, "utf-8")


def plan_of(place: Path, *files: Mapping[str, str], spoken: Sequence[str] = ("en", "de"), **changes: Any) -> Plan:
    """The plan for trees `en`, `de` and, if there is one, `dsb`."""
    for one in files:
        write(place, one)
    sources = {name: place / name for name in ("en", "de") if (place / name).exists()}
    target = place / "dsb" if (place / "dsb").exists() else None
    return make_plan(Places(**{"target": "dsb", "sources": sources, "target_path": target, **changes}), spoken)


def filled(
    plan: Plan, out: Path, translator: QuotingTranslator | None = None, confidence: Any = None, **options: Any
) -> tuple[dict[str, str], dict[str, JsonObject]]:
    """Localize: path -> text of each file, and key with part -> what the record says."""
    record = localize(plan, out, {"x": 1}, lambda: (translator or QuotingTranslator(), confidence), Options(**options))
    files = {path.relative_to(out).as_posix(): path.read_text("utf-8") for path in out.rglob("*.*")}
    return files, {f"{text['key']}{text['part']}": text for text in record["texts"]}


def origins(texts: Mapping[str, JsonObject]) -> dict[str, str]:
    return {name: text["reason"] or text["origin"] for name, text in texts.items()}


def test_what_is_missing_is_filled_and_all_else_stays(tmp_path: Path) -> None:
    translator = QuotingTranslator()
    files, texts = filled(plan_of(tmp_path, ENGLISH, GERMAN, SORBIAN), tmp_path / "out", translator)
    assert files == {
        "menu.ftl": f"""\
# Mine

### ours
# {REVIEW}
# From: model, access key
open = «Open {{ $name }}»
    .label = «Open»
    .accesskey = O
save = Składowaś
# {REVIEW}
# From: memory
again = Składowaś
# {REVIEW}
# From: model
tabs =
    {{ $n ->
        [one] «{{ $n }} tab»
        [two] «{{ $n }} tabs»
        [few] «{{ $n }} tabs»
       *[other] «{{ $n }} tabs»
    }}
# {REVIEW}
# From: copy
place = {{ $x }}: https://a.b
""",
        "more/own.ftl": "own = naš\n",
        "new/sync.properties": f"""\
# License of the other file

# {REVIEW}
# From: model
on=\\u00abSync is on\\u00bb
# {REVIEW}
# From: model
off=\\u00abSync is off\\u00bb
""",
    }
    assert origins(texts) == {
        **dict.fromkeys(("open", "open.label"), "model"),
        **{"open.accesskey": "access key", "again": "memory", "place": "copy"},
        **{f"tabs[{name}]": "model" for name in CATEGORIES},
        **dict.fromkeys(("on", "off"), "model"),
    }
    asked = {(row["en"], row.get("de"), syntax) for row, syntax in translator.asked}
    assert len(translator.asked) == 6  # what is the same in all sources is asked once
    assert ("{ $n } tab", "Ein Tab von { $n }", "fluent") in asked
    assert ("{ $n } tabs", "{ $n } Tabs", "fluent") in asked
    assert ("Sync is off", None, "properties") in asked
    assert texts["again"]["memory"] == [1, 1]
    assert texts["on"]["others"] == ["«Sync is on»?"]


def test_a_language_without_catalogues_gets_the_files_of_the_first_source(tmp_path: Path) -> None:
    more = {"de/only.ftl": "only = Nur\n"}
    files, texts = filled(plan_of(tmp_path, ENGLISH, GERMAN, more), tmp_path / "out")
    assert sorted(files) == ["menu.ftl", "new/sync.properties"]
    assert files["menu.ftl"].startswith(f"# License of the file\n\n# {REVIEW}\n# From: model, access key\nopen = ")
    assert origins(texts)["save"] == "model"
    counts = json.loads((tmp_path / "out.json").read_text("utf-8"))["counts"]
    assert counts["sources"] == {"2": 10, "1": 2}


def test_the_codes_of_languages_are_replaced_in_new_paths_and_archives_become_trees(tmp_path: Path) -> None:
    english, german = (
        {f"locale/{code}/a.ftl": text.encode()} for code, text in (("en-GB", "a = A b\n"), ("de", "a = A c\n"))
    )
    (tmp_path / "en.xpi").write_bytes(zipped(english))
    (tmp_path / "de.zip").write_bytes(zipped(german))
    sources = {"en": tmp_path / "en.xpi", "de": tmp_path / "de.zip"}
    plan = plan_of(tmp_path, sources=sources, codes={"en": "en-GB", "dsb": "dsb-DE"})
    files, _ = filled(plan, tmp_path / "out")
    assert files == {"locale/dsb-DE/a.ftl": f"# {REVIEW}\n# From: model\na = «A b»\n"}


PO = """\
# License
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: {}\\n"

msgid "%d tab"
msgid_plural "%d tabs"
{}
msgid "open"
msgstr "{}"
"""
FORMS = {
    "cs": ("nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;", ["%d panel", "%d panely", "%d panelů"]),
    "dsb": ("nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);", [""] * 4),
}


def po(language: str, text: str, forms: Sequence[str] | None = None) -> str:
    header, own = FORMS[language]
    lines = "".join(f'msgstr[{i}] "{form}"\n' for i, form in enumerate(forms or own))
    return PO.format(header, lines, text)


def test_messages_of_gettext_are_compared_with_the_memory_like_the_text_of_a_file(
    tmp_path: Path, translator: QuotingTranslator
) -> None:
    """There is no English catalogue: the English texts are the message ids, and a column of the memory."""
    rows = {"en": "Open\nSave\nQuit\n", "de": "Öffnen\nSichern\nZu\n", "dsb": "Wócyniś\nSkładowaś\nSkóńcyś\n"}
    write(tmp_path, {f"rows/train.{name}": text for name, text in rows.items()})
    catalogue = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n'
    texts = {"Open": "Öffnen", "Save": "Speichern"}
    for language in ("de", "dsb"):
        entries = [f'\nmsgid "{en}"\nmsgstr "{de if language == "de" else ""}"\n' for en, de in texts.items()]
        write(tmp_path, {f"{language}/a.po": catalogue + "".join(entries)})
    write(tmp_path, {"de/b.properties": "open=Öffnen\nquit=Zu\nsave=Speichern\n"})
    line = ["localize", "run", "--target", f"dsb={tmp_path}/dsb", "--source", f"de={tmp_path}/de"]
    main([*line, "--memory", f"{tmp_path}/rows", "--out", f"{tmp_path}/out"])
    found = json.loads((tmp_path / "out.json").read_text("utf-8"))["texts"]
    assert [(one["key"], one["text"], one["origin"]) for one in found] == [
        ("Open", "Wócyniś", "memory"),
        ("Save", "«Save»", "model"),  # the German text is another one
        ("open", "Wócyniś", "memory"),
        ("quit", "Skóńcyś", "memory"),
        ("save", "«Speichern»", "model"),
    ]


def test_the_flags_of_gettext_name_the_syntax_of_placeholders(tmp_path: Path) -> None:
    flags = {
        "a": "fuzzy, c-format",
        "b": "python-format, no-wrap",
        "c": "kde-format",
        "d": "no-c-format",
        "e": "python-format, python-brace-format",
        "f": "",
    }
    entries = [f'{f"#, {flag}" if flag else "#"}\nmsgid "{key}"\nmsgstr ""\n' for key, flag in flags.items()]
    write(tmp_path, {"dsb.po": "\n".join(entries), "cs.po": "\n".join(entries)})
    plan = make_plan(Places("dsb", {"cs": tmp_path / "cs.po"}, tmp_path / "dsb.po"), ["en", "cs"])
    found = {one.key: one.syntax for one in plan.missing}
    assert found == dict(zip("abcdef", ["c-format", "python-format", "qt", "any", "any", "any"], strict=True))


@pytest.mark.parametrize("new", [False, True])
def test_plural_forms_of_gettext_are_translated_from_the_forms_of_their_category(tmp_path: Path, new: bool) -> None:
    write(tmp_path, {"cs.po": po("cs", "otevřít"), "dsb.po": po("dsb", "wócyniś")})
    places = Places("dsb", {"cs": tmp_path / "cs.po"}, None if new else tmp_path / "dsb.po")
    plan = make_plan(places, ["en", "cs"])
    translator = QuotingTranslator(["en", "cs"])
    localize(plan, tmp_path / "out.po", {}, lambda: (translator, None), Options())
    found = read_catalogue("out.po", (tmp_path / "out.po").read_bytes())
    assert [row for row, _ in translator.asked][:4] == [
        {"en": "%d tab", "cs": "%d panel"},
        {"en": "%d tabs", "cs": "%d panelů"},
        {"en": "%d tabs", "cs": "%d panely"},
        *([{"en": "open", "cs": "otevřít"}] if new else []),
    ]
    assert [(entry.part, entry.text, entry.state) for entry in found.entries if entry.part] == [
        ("[0]", "«%d tab»", "fuzzy"),
        *((f"[{i}]", "«%d tabs»", "fuzzy") for i in (1, 2, 3)),
    ]
    assert "nplurals=4" in found.header
    if not new:
        old = (tmp_path / "dsb.po").read_text("utf-8")
        assert (tmp_path / "out.po").read_text("utf-8").split('msgid "open"')[1] == old.split('msgid "open"')[1]


def test_plural_forms_of_a_language_without_a_rule_in_cldr_are_told_by_its_file(tmp_path: Path) -> None:
    lines = {
        one: f'msgstr[0] "{first}"\nmsgstr[1] "{last}"\n' for one, first, last in (("fr", "un", "des"), ("oc", "", ""))
    }
    write(tmp_path, {f"{one}.po": PO.format("nplurals=2; plural=(n > 1);", forms, "") for one, forms in lines.items()})
    plan = make_plan(Places("oc", {"fr": tmp_path / "fr.po"}, tmp_path / "oc.po"), ["en", "fr"])
    assert [(one.part, one.sources) for one in plan.missing if one.part] == [
        ("[0]", {"en": "%d tab", "fr": "un"}),
        ("[1]", {"en": "%d tabs", "fr": "des"}),
    ]


def test_the_files_of_all_languages_may_be_in_one_place_with_their_template(tmp_path: Path) -> None:
    files = {"cs.po": po("cs", "otevřít"), "dsb.po": po("dsb", ""), "app.pot": po("cs", "", ["", "", ""])}
    files["cs@latin.po"] = files["en_CS.po"] = files["cs.po"]  # of other languages: no dsb@latin.po is made
    write(tmp_path / "po", files)
    plan = make_plan(Places("dsb", {"cs": tmp_path / "po"}, tmp_path / "po"), ["cs"])
    assert [file.path for file in plan.files] == ["dsb.po"]
    write(tmp_path, {"en/app.pot": files["app.pot"], "cs/app.po": files["cs.po"]})
    plan = make_plan(Places("dsb", {"en": tmp_path / "en", "cs": tmp_path / "cs"}), ["en", "cs"])
    assert [(file.path, next(iter(plan.missing)).sources) for file in plan.files] == [
        ("app.po", {"en": "%d tab", "cs": "%d panel"})
    ]
    write(tmp_path, {"dsb/app.pot": files["app.pot"]})
    with pytest.raises(ValueError, match="dsb has no catalogue of 'dsb'"):
        make_plan(Places("dsb", {"en": tmp_path / "en"}, tmp_path / "dsb"), ["en", "cs"])


def test_messages_of_gettext_are_no_catalogue_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "po", {"cs.po": po("cs", "otevřít"), "dsb.po": po("dsb", "")})
    sources = dict.fromkeys(("en", "cs"), tmp_path / "po")
    with pytest.raises(
        ValueError, match=r"no catalogue of 'en' .*; leave this source out if its texts are the messages"
    ):
        make_plan(Places("dsb", sources, tmp_path / "po"), ["en", "cs"])
    del sources["en"]
    plan = make_plan(Places("dsb", sources, tmp_path / "po"), ["en", "cs"])
    assert {"en", "cs"} <= next(iter(plan.missing)).sources.keys()


def test_what_cannot_be_filled_is_reported_with_key_and_reason_and_changes_nothing(tmp_path: Path) -> None:
    forms = po("dsb", "", ["jadna", "", "", ""])
    write(tmp_path, {"cs.po": po("cs", "otevřít"), "dsb.po": forms})
    plan = make_plan(Places("dsb", {"cs": tmp_path / "cs.po"}, tmp_path / "dsb.po"), ["cs"])
    refused = QuotingTranslator(["cs"], {"otevřít": "<b> is missing"})
    record = localize(plan, tmp_path / "out.po", {}, lambda: (refused, None), Options())
    assert (tmp_path / "out.po").read_text("utf-8") == forms
    assert {f"{text['key']}{text['part']}": text["reason"] for text in record["texts"]} == {
        **{f"%d tab[{i}]": PARTLY for i in (1, 2, 3)},
        "open": "<b> is missing",
    }
    unknown = make_plan(Places("dsb", {"cs": tmp_path / "cs.po"}, tmp_path / "dsb.po", {"dsb": "xx"}), ["cs"])
    assert {one.reason for one in unknown.missing if one.part} == {PARTLY}
    write(tmp_path, {"dsb.po": po("dsb", "").replace("plural=(", "plural=EXPRESSION(")})
    unknown = make_plan(Places("dsb", {"cs": tmp_path / "cs.po"}, tmp_path / "dsb.po", {"dsb": "xx"}), ["cs"])
    assert {one.reason for one in unknown.missing if one.part} == {
        "the plural forms of xx are known neither from CLDR nor from the header of the file"
    }


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("dsb.po", "PO", "has no line Plural-Forms; for dsb it may be: Plural-Forms: nplurals=4; plural=(n % 100 == 1"),
        ("dsb.po", "Plural-Forms: nplurals=2; plural=(n!=n;", "has an invalid line Plural-Forms; for dsb it may be"),
        (
            "dsb.po",
            "Plural-Forms: nplurals=2; plural=n!=1;",
            "more plural forms than the header of the file, which has 2",
        ),
        (
            "dsb.po",
            f"Plural-Forms: {FOUR_FORMS}",
            "the message has 3 plural forms, and the file has 4: update the file",
        ),
        ("dsb.ts", "", "is not that of Qt for dsb, nplurals=1; plural=0;: update the file with lupdate"),
    ],
)
def test_what_is_wrong_with_the_plural_forms_is_said(tmp_path: Path, name: str, text: str, reason: str) -> None:
    message = 'msgid "%d tab"\nmsgid_plural "%d tabs"\n'
    message += "".join(f'msgstr[{i}] ""\n' for i in range(3))
    content = f'msgid ""\nmsgstr "{text}\\n"\n\n{message}'
    if name.endswith(".ts"):
        forms = "<numerusform></numerusform>" * 3
        content = "<TS><context><name>A</name><message numerus='yes'><source>%d tab</source>"
        content += f"<translation type='unfinished'>{forms}</translation></message></context></TS>"
    write(tmp_path, {name: content, f"en{name[3:]}": content})
    plan = make_plan(Places("dsb", {"en": tmp_path / f"en{name[3:]}"}, tmp_path / name), ["en"])
    if "update the file" in reason:  # another message has all forms
        message = message.replace("tab", "file") + 'msgstr[3] ""\n'
        write(tmp_path, {name: f"{content}\n{message}"} if name.endswith(".po") else {})
        plan = make_plan(Places("dsb", {"en": tmp_path / f"en{name[3:]}"}, tmp_path / name), ["en"])
    reasons = [one.reason for one in plan.missing if one.part == "[2]" and "tab" in one.key]
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_of_a_message_that_cannot_be_written_whole_nothing_is_written(tmp_path: Path) -> None:
    mixed = 'mixed = Have { $n ->\n   *[other] a\n} tab\nempty = { $x ->\n   *[other] { "" }\n}\n'
    files = {"en/a.ftl": f"a = A x\n    .label = L x\n    .accesskey = L\nb = B x\n{mixed}", "dsb/a.ftl": "c = C\n"}
    translator = QuotingTranslator(["en"], {"L x": "a reason"})
    found, texts = filled(plan_of(tmp_path, files, spoken=["en"]), tmp_path / "out", translator)
    empty = "".join(f'       {mark}[{name}] {{ "" }}\n' for mark, name in zip("   *", CATEGORIES, strict=True))
    assert found["a.ftl"] == (
        f"c = C\n\n# {REVIEW}\n# From: model\nb = «B x»\n"
        f"# {REVIEW}\n# From: copy\nempty =\n    {{ $x ->\n{empty}    }}\n"
    )
    reasons = {name: text["reason"] for name, text in texts.items() if text["reason"]}
    assert reasons.pop("mixed").endswith("a selector inside a text or another selector")
    assert reasons == {
        "a": ".label, .accesskey of the message would be missing",
        "a.label": "a reason",
        "a.accesskey": NO_LABEL_TEXT,
    }
    assert texts["a"]["text"] == "«A x»"


def test_access_keys_belong_to_labels_that_may_be_translated_already(tmp_path: Path) -> None:
    files = {
        "en/a.properties": "b.label=Big x\nb.accesskey=x\nc.accesskey=c\nd.accesskey=Ctrl\ne.label=%S\ne.accesskey=S\n",
        "dsb/a.properties": "b.label=Wjelike\n",
    }
    _, texts = filled(plan_of(tmp_path, files, spoken=["en"]), tmp_path / "out")
    assert {name: text["text"] or text["reason"] for name, text in texts.items()} == {
        "b.accesskey": "W",
        "c.accesskey": NO_LABEL,
        "d.accesskey": "«Ctrl»",
        "e.label": "%S",
        "e.accesskey": "S",
    }


def test_shortcuts_and_sizes_are_copied_from_the_guide(tmp_path: Path) -> None:
    text = "save =\n    .key = S\n    .keycode = VK_F1\n    .style = width: {}em; height: 20em\nx = S\n"
    files = {"en/a.ftl": text.format(32), "de/a.ftl": text.format(40), "dsb/a.ftl": "c = C\n"}
    plan = plan_of(tmp_path, files)
    plan.memory.add({"en": "S", "de": "S"}, "K")  # another entry
    found, texts = filled(plan, tmp_path / "out")
    assert origins(texts) == {**{f"save{part}": "copy" for part in (".key", ".keycode", ".style")}, "x": "memory"}
    assert ".key = S\n    .keycode = VK_F1\n    .style = width: 32em; height: 20em\n" in found["a.ftl"]


def test_a_mnemonic_is_a_letter_of_its_label(tmp_path: Path) -> None:
    files = {
        "en/a.properties": "save=Save\nsave.mnemonic=S\nopen.mnemonic=79\nenterMnemonic=Enter it\nagain=Enter it\n",
        "de/a.properties": "save=Sichern\nsave.mnemonic=I\nopen.mnemonic=70\nenterMnemonic=Ein\nagain=Ein\n",
        "dsb/a.properties": "save=Chowac\nenterMnemonic=Zapodaj\n",
    }
    _, texts = filled(plan_of(tmp_path, files), tmp_path / "out")
    assert {name: text["text"] for name, text in texts.items()} == {
        "save.mnemonic": "C",
        "open.mnemonic": "79",
        "again": "Zapodaj",
    }


def test_an_access_key_is_in_all_variants_of_its_label(tmp_path: Path) -> None:
    text = "tabs =\n    .label = { $n ->\n        [1] Close Tab\n        [one] Kill it\n       *[other] Kill all\n"
    files = {"en/a.ftl": f"{text}    }}\n    .accesskey = C\n"}
    found, texts = filled(plan_of(tmp_path, files, spoken=["en"]), tmp_path / "out", QuotingTranslator(["en"]))
    assert [name for name in texts if "label" in name] == [f"tabs.label[{one}]" for one in ("1", *CATEGORIES)]
    assert texts["tabs.accesskey"]["text"] == "l"
    assert "    .accesskey = l\n" in found["a.ftl"]


def test_a_translation_of_the_memory_must_have_the_placeholders(tmp_path: Path) -> None:
    files = {"en/a.properties": "a=Open %S\nb=Quit\n", "dsb/a.properties": "c=x\n"}
    plan = plan_of(tmp_path, files, spoken=["en"])
    plan.memory.add({"en": "Open %S"}, "Wócyniś", from_line=True)
    plan.memory.add({"en": "Quit"}, "Skóńcyś", from_line=True)
    _, texts = filled(plan, tmp_path / "out", QuotingTranslator(["en"]))
    assert {name: text["text"] for name, text in texts.items()} == {"a": "«Open %S»", "b": "Skóńcyś"}


def test_a_translation_of_the_memory_keeps_its_apostrophes(tmp_path: Path) -> None:
    files = {
        "en/a.properties": "a=Object {0}\nb=Object {0}\nc=Path {0}\nd=Can''t {0}\n",
        "de/a.properties": "a=Objekt {0}\nb=Objekt {0}\nc=Geht's {0}\nd=Nie {0}\n",
        "dsb/a.properties": "a=Ob'ekt {0}\n",
    }
    plan = plan_of(tmp_path, files)
    plan.memory.add({"en": "Can''t {0}", "de": "Nie {0}"}, "Im'e {0}", from_line=True)
    _, texts = filled(plan, tmp_path / "out", QuotingTranslator())
    assert {name: text["text"] for name, text in texts.items()} == {
        "b": "Ob'ekt {0}",
        "c": "«Path {0}»",
        "d": "Im'e {0}",
    }


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ("x=Can''t read {0}\ny=Don't\n", "L''open {0}"),  # y has no argument, so that it shows nothing
        ("x=Can't read {0}\n", "L'open {0}"),
        ("x=Can't read {0}\ny=Can''t open {0}\n", "L'open {0}"),  # contradictory
        ("x=Read {0}\n", "L'open {0}"),
        ("x=Read {0}\n|x=Can''t read {0}\n", "L''open {0}"),
        ("x=Can't read {0}\n|x=Can''t read {0}\n", "L'open {0}"),
    ],
)
def test_a_file_or_the_project_shows_whether_the_apostrophes_of_new_texts_are_doubled(
    other: str, expected: str, tmp_path: Path
) -> None:
    first, _, second = other.partition("|")  # the files of the project
    files = {"en/a.properties": f"a=Open {{0}}\n{first}", "dsb/a.properties": "x=X\ny=Y\n"}
    files |= {"en/b.properties": second, "dsb/b.properties": "x=X\n"} if second else {}
    plan = plan_of(tmp_path, files, spoken=["en"])
    answers = answer_from_memory(plan)
    waiting = open_requests(answers)
    take_proposals(plan, waiting, [Translation((Candidate("L'open {0}", -1.0),))], Options(), None)
    assert [(answer.text, answer.reason) for answer in answers] == [(expected, "")]


def test_variants_of_a_text_are_refused_although_no_words_stand_outside_of_placeholders(tmp_path: Path) -> None:
    plural = "{VAR_PLURAL, plural, =0 {just now} other {later}}"
    choice = "{0,choice,0#no files|1#one file|1<{0} files}"
    files = {"en/a.properties": f"a={plural}\nb={choice}\nc={choice}s\n", "dsb/a.properties": "x=x\n"}
    plan = plan_of(tmp_path, files, spoken=["en"])
    plan.memory.add({"en": f"{choice}s"}, "{0,choice,0#žedna|1#jadna}", from_line=True)
    translator = QuotingTranslator(["en"])
    found, texts = filled(plan, tmp_path / "out", translator)
    assert translator.asked == []
    assert {name: text["reason"].partition("… ")[2] for name, text in texts.items()} == {
        **dict.fromkeys("ab", "contains a plural or a choice, whose variants must be translated separately"),
        "c": "",
    }
    assert found["a.properties"] == f"x=x\n\n# {REVIEW}\n# From: memory\nc={{0,choice,0#\\u017eedna|1#jadna}}\n"


@pytest.mark.parametrize("drop_copies", [False, True])
def test_the_memory_can_leave_out_what_nobody_has_translated(tmp_path: Path, drop_copies: bool) -> None:
    files = {"en/a.properties": "a=Open\nb=Open\n", "de/a.properties": "a=Auf\nb=Auf\n", "dsb/a.properties": "a=Open\n"}
    _, texts = filled(plan_of(tmp_path, files, drop_copies=drop_copies), tmp_path / "out")
    assert origins(texts) == {"b": "model" if drop_copies else "memory"}


def test_a_translation_of_fewer_sources_than_the_memory_has_is_none_of_the_memory(tmp_path: Path) -> None:
    files = {"en/a.properties": "a=Open\nb=Quit\n", "de/a.properties": "b=Beenden\n"}
    plan = plan_of(tmp_path, files)
    plan.memory.add({"en": "Open", "de": "Offen"}, "Wócynjony", from_line=True)
    plan.memory.add({"en": "Quit", "de": "Beenden"}, "Skóńcyś", from_line=True)
    _, texts = filled(plan, tmp_path / "out")
    assert origins(texts) == {"a": "model", "b": "memory"}


def test_the_guide_decides_the_placeholders_whatever_the_order_of_the_model(tmp_path: Path) -> None:
    files = {
        "en/a.ftl": "a = Open { $n }\nb = Save { $n }\nc = { $n }\nd = Quit %s\nx =\n    .accesskey = Q\n",
        "de/a.ftl": "a = Öffnen\nb = {$n} sichern\nc = { $m }\nd = Ende\nx =\n    .accesskey = E\n",
    }
    translator = QuotingTranslator(["de", "en"])
    _, texts = filled(plan_of(tmp_path, files, spoken=["de", "en"]), tmp_path / "out", translator)
    assert [row for row, _ in translator.asked] == [
        {"en": "Open { $n }"},
        {"de": "{$n} sichern", "en": "Save { $n }"},
        {"en": "{ $n }"},
        {"de": "Ende", "en": "Quit %s"},  # no placeholder of Fluent
    ]
    assert {name: text["left_out"] for name, text in texts.items() if text["left_out"]} == {"a": ["de"], "c": ["de"]}
    assert texts["a"]["sources"] == {"de": "Öffnen", "en": "Open { $n }"}
    assert [*texts["x.accesskey"]["sources"]] == ["en", "de"]
    later = QuotingTranslator(["en", "de"])
    filled(plan_of(tmp_path, files), tmp_path / "later", later)
    assert later.asked[0][0] == {"en": "Open { $n }", "de": "Öffnen"}
    broken = QuotingTranslator(["en", "de"], change=lambda text: text.replace("{ $n }", "x"))
    _, texts = filled(plan_of(tmp_path, files), tmp_path / "broken", broken)
    assert texts["a"]["reason"] == "{ $n } is missing."


def test_the_message_of_a_gettext_entry_decides_its_placeholders(tmp_path: Path) -> None:
    old, new = (f'#, c-format\nmsgid "Open %d "\nmsgstr "{text}"\n' for text in ("Otevřít", ""))
    key = 'msgid "open-it"\nmsgstr "{}"\n'
    write(tmp_path, {"cs.po": f"{old}\n{key.format('%s otevřít')}", "dsb.po": f"{new}\n{key.format('')}"})
    plan = make_plan(Places("dsb", {"cs": tmp_path / "cs.po"}, tmp_path / "dsb.po"), ["cs", "en"])
    opened, named = plan.missing
    assert (opened.guide, opened.left_out) == ("Open %d ", ("cs",))
    assert opened.read == {"en": "Open %d "}
    assert named.guide == "%s otevřít"
    alone = make_plan(Places("dsb", {"cs": tmp_path / "cs.po"}, tmp_path / "dsb.po"), ["cs"])
    assert [one.reason for one in alone.missing] == ["no source has the placeholders of the message", ""]
    translator = QuotingTranslator(["cs", "en"])
    localize(plan, tmp_path / "out.po", {}, lambda: (translator, None), Options())
    assert 'msgstr "«Open %d » "' in (tmp_path / "out.po").read_text("utf-8")


@pytest.mark.parametrize(("target", "asked"), [("dsb", "Close { $n } tabs?"), ("cs", "Close tab?")])
def test_a_plural_form_of_several_numbers_is_translated_from_one_with_a_number(
    tmp_path: Path, target: str, asked: str
) -> None:
    text = "close = { $n ->\n    [one] Close tab?\n   *[other] Close { $n } tabs?\n}\n"
    german = text.replace("Close tab?", "{ $n } Tab schließen?").replace("Close { $n } tabs?", "{ $n } Tabs schließen?")
    plan = plan_of(tmp_path, {"en/a.ftl": text, "de/a.ftl": german}, target=target)
    found = {one.part: one for one in plan.missing}
    assert found["[one]"].sources == {"en": asked, "de": "{ $n } Tab schließen?"}
    assert found["[few]"].sources == {"en": "Close { $n } tabs?", "de": "{ $n } Tabs schließen?"}


def test_the_first_form_of_gettext_is_translated_from_one_with_a_number(tmp_path: Path) -> None:
    forms = FORMS["dsb"][0]
    text = f'msgid ""\nmsgstr "Plural-Forms: {forms}\\n"\n\n#, c-format\nmsgid "Close"\nmsgid_plural "Close %d tabs"\n'
    write(tmp_path, {"dsb.po": text + "".join(f'msgstr[{i}] ""\n' for i in range(4)), "cs.po": po("cs", "x")})
    plan = make_plan(Places("dsb", {"cs": tmp_path / "cs.po"}, tmp_path / "dsb.po"), ["en", "cs"])
    assert {(one.part, one.guide, one.sources["en"]) for one in plan.missing if one.key == "Close"} == {
        (f"[{i}]", "Close %d tabs", "Close %d tabs") for i in range(4)
    }


@pytest.mark.parametrize("target", ["ja", "he", "ar", "cy"])
def test_only_the_form_one_of_gettext_is_translated_from_the_singular(tmp_path: Path, target: str) -> None:
    rule = plural_rule(target)
    assert rule is not None
    head = f'msgid ""\nmsgstr "Plural-Forms: {rule.formula}\\n"\n\n#, c-format\n'
    forms = "".join(f'msgstr[{i}] ""\n' for i in range(len(rule.categories)))
    message = 'msgid "Last month"\nmsgid_plural "%d months ago"\n'
    write(tmp_path, {f"{target}.po": head + message + forms, "en.pot": head + message + 'msgstr[0] ""\nmsgstr[1] ""\n'})
    plan = make_plan(Places(target, {"en": tmp_path / "en.pot"}, tmp_path / f"{target}.po"), ["en"])
    expected = ["Last month" if name == "one" else "%d months ago" for name in rule.categories]
    assert [one.sources["en"] for one in plan.missing] == [one.guide for one in plan.missing] == expected
    assert not any(one.reason for one in plan.missing)


class Half:
    """Finds every second translation likely."""

    def probability(self, row: Mapping[str, str | None], translation: Translation) -> float:
        return 0.9 if "Sync is on" in str(row["en"]) else 0.25


def test_translations_below_the_least_confidence_are_not_written(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"en/a.properties": ENGLISH["en/new/sync.properties"]})
    found, texts = filled(plan, tmp_path / "out", confidence=Half(), min_confidence=0.5)
    assert found["a.properties"].count("\\u00ab") == 1
    assert f"# {REVIEW}\n# From: model (confidence 0.90)\non=" in found["a.properties"]
    assert (texts["on"]["confidence"], texts["on"]["state"]) == (0.9, "filled")
    assert (texts["off"]["confidence"], texts["off"]["reason"]) == (0.25, "its confidence is below 0.5")
    assert texts["off"]["text"] == "«Sync is off»"


def test_two_beams_give_two_candidates(tmp_path: Path) -> None:
    asked = []

    class Two(QuotingTranslator):
        def translate(self, rows: Any, *, n_best: int = 1, num_beams: int = 5, **options: Any) -> list[Translation]:
            asked.append((n_best, num_beams))
            return super().translate(rows, n_best=n_best, num_beams=num_beams, **options)

    plan = plan_of(tmp_path, {"en/a.properties": ENGLISH["en/new/sync.properties"]})
    filled(plan, tmp_path / "two", Two(), num_beams=2)
    filled(plan, tmp_path / "five", Two())
    assert asked == [(2, 2), (3, 5)]


def test_texts_without_any_source_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"cs.po": po("cs", ""), "dsb.po": po("dsb", "")})
    plan = make_plan(Places("dsb", {"cs": tmp_path / "cs.po"}, tmp_path / "dsb.po"), ["cs"])
    assert [one.reason for one in plan.missing] == [""] * 4 + [NO_SOURCE]


def test_the_table_says_how_many_texts_are_from_where(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ENGLISH, GERMAN, SORBIAN)
    assert describe_counts(preview(plan)).splitlines() == [
        "file                 kept  unreviewed  missing  memory  model  copy  access key  refused",
        "menu.ftl                1           0        9       1      6     1           1        0",
        "new/sync.properties     0           0        2       0      2     0           0        0",
        "all 3 files             2           0       11       1      8     1           1        0",
        "sources of the missing texts: 9 from 2, 2 from 1",
    ]
    lacking = plan_of(tmp_path / "other", {"en/a.ftl": "a = A\nb = x { $n ->\n   *[other] y\n}\n"})
    assert "refused, 1: the first source cannot be read here:" in describe_counts(preview(lacking))


# Interruptions


def everything(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of nine texts, which are five windows."""
    monkeypatch.setattr(localization_run, "WINDOW", 2)
    texts = "".join(f"key{i}=Text number {i}\n" for i in range(9))
    write(tmp_path, {"in/en/a.properties": texts, "in/dsb/b.properties": "b=B\n"})
    return tmp_path


def test_after_a_kill_the_same_call_goes_on_and_writes_the_same_files(many: Path) -> None:
    def run(out: str, kill_at: int = 0) -> QuotingTranslator:
        translator = QuotingTranslator(["en"], kill_at=kill_at)
        plan = plan_of(many / "in", spoken=["en"])
        (many / out).mkdir(exist_ok=True)
        filled(plan, many / out / "dsb", translator)
        return translator

    whole = len(run("whole").asked)
    for kill_at in (1, 3, 5):
        with pytest.raises(Killed):
            run(f"killed {kill_at}", kill_at)
        assert not (many / f"killed {kill_at}" / "dsb").exists()
        assert len(run(f"killed {kill_at}").asked) == whole - 2 * (kill_at - 1)
        assert everything(many / f"killed {kill_at}") == everything(many / "whole")
    assert run("whole").calls == 0  # the output is there
    assert everything(many / "whole").keys() == {"dsb/a.properties", "dsb/b.properties", "dsb.json"}


@pytest.mark.parametrize(("owner", "name"), [("os", "replace"), ("shutil", "rmtree"), ("ShardedFile", "join")])
def test_a_kill_while_files_are_written_loses_nothing(
    many: Path, owner: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (many / "whole").mkdir()
    filled(plan_of(many / "in", spoken=["en"]), many / "whole/dsb", QuotingTranslator(["en"]))
    for after in (False, True):
        (place := many / f"killed {after}").mkdir()
        with monkeypatch.context() as patch:
            kill_in(
                patch,
                getattr(localization_run, owner),
                name,
                when=lambda *_: (
                    (place / "dsb.work/translations.jsonl.parts/0000000008.json").exists()
                    or (place / "dsb.work/translations.jsonl").exists()
                ),
                after=after,
            )
            with pytest.raises(Killed):
                filled(plan_of(many / "in", spoken=["en"]), place / "dsb", QuotingTranslator(["en"]))
        again = QuotingTranslator(["en"])
        filled(plan_of(many / "in", spoken=["en"]), place / "dsb", again)
        assert again.asked == []
        assert everything(place) == everything(many / "whole")


def test_an_output_of_other_settings_or_inputs_is_named_and_left_as_it_is(many: Path) -> None:
    plan, out = plan_of(many / "in", spoken=["en"]), many / "dsb"

    def run(settings: JsonObject, kill_at: int = 0) -> None:
        localize(plan, out, settings, lambda: (QuotingTranslator(["en"], kill_at=kill_at), None), Options())

    with pytest.raises(Killed):
        run({"num_beams": 5, "de_sha256": "a" * 64}, 2)
    begun = everything(many)
    with pytest.raises(
        ValueError,
        match=r"dsb was begun with other settings: num_beams was 5, is 6; the contents of de have changed\.",
    ):
        run({"num_beams": 6, "de_sha256": "b" * 64})
    assert everything(many) == begun
    run({"num_beams": 5, "de_sha256": "a" * 64})
    with pytest.raises(ValueError, match=r"dsb was made with other settings: num_beams was 5, is 6\. It is unchanged"):
        run({"num_beams": 6, "de_sha256": "a" * 64})
    (out / "a.properties").write_text("reviewed", "utf-8")
    with pytest.raises(ValueError, match="dsb was changed since it was made"):
        run({"num_beams": 5, "de_sha256": "a" * 64})
    (many / "dsb.json").unlink()
    with pytest.raises(FileExistsError, match=r"dsb exists, but dsb\.json is missing"):
        run({})


def test_two_processes_do_not_write_the_same_output(many: Path) -> None:
    plan = plan_of(many / "in", spoken=["en"])

    def run() -> None:
        localize(plan, many / "dsb", {}, lambda: (QuotingTranslator(["en"], change=again), None), Options())

    def again(text: str) -> str:
        with pytest.raises(BlockingIOError, match=r"another process writes .*dsb: wait"):
            run()
        return text

    run()
    assert (many / "dsb").exists()


# The command


@pytest.fixture
def translator(monkeypatch: pytest.MonkeyPatch) -> QuotingTranslator:
    """In place of a run."""
    fake = QuotingTranslator()
    monkeypatch.setattr(command, "source_options", lambda run: ["en", "de"])
    monkeypatch.setattr(command, "load_run", lambda *_: command.Loaded(fake, None, 5, {"weights_sha256": "0"}))
    return fake


def test_the_command_fills_prints_the_table_and_does_nothing_twice(
    tmp_path: Path, translator: QuotingTranslator, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"en": "Sync is on", "de": "Sync ist an", "dsb": "Sync jo zašaltowany"}
    lines = {f"rows/train.{name}": f"{text}\n" for name, text in rows.items()}
    write(tmp_path, {**ENGLISH, **GERMAN, **SORBIAN, **lines})
    sources = ["--source", f"en={tmp_path}/en", f"de={tmp_path}/de", "--memory", f"{tmp_path}/rows"]
    line = ["localize", "run", "--target", f"dsb={tmp_path}/dsb", *sources, "--out", f"{tmp_path}/out"]
    main([*line, "--dry_run"])
    table = capsys.readouterr().out
    assert table.splitlines()[3].split()[-6:] == ["11", "2", "7", "1", "1", "0"]
    assert not (tmp_path / "out").exists()
    main(line)
    printed = capsys.readouterr().out
    assert printed.startswith(table)
    main([*line, "--review", f"{tmp_path}/review.html"])
    page = (tmp_path / "review.html").read_text("utf-8")
    assert page.count("<article") == 11
    assert "Sync jo zašaltowany" in page
    assert printed.endswith(f"{tmp_path}/out is written; out.json says where each text is from\n")
    calls = translator.calls
    main(line)
    assert translator.calls == calls > 0
    (tmp_path / "de/menu.ftl").write_text("save = Speichern\n", "utf-8")
    with pytest.raises(SystemExit, match="out was made with other settings: the contents of de, memory have changed"):
        main(line)


def test_lists_of_plural_forms_are_not_filled(tmp_path: Path) -> None:
    texts = {
        "a": "#1 file;#1 files",
        "b": "One file;#1 files",
        "c": "#1 of #2 &amp; more",
        "d": "Yes; or no",
        "e": "#1;",
        "f": "Bug #1; fixed",
        "g": "Tab #1 &amp; more; done",
    }
    write(tmp_path, {"en.properties": "".join(f"{key}={text}\n" for key, text in texts.items())})
    plan = make_plan(Places("dsb", {"en": tmp_path / "en.properties"}), ["en"])
    assert {one.key: one.reason for one in plan.missing} == {
        **dict.fromkeys("ab", "the text is a list of plural forms, whose number depends on the language"),
        **dict.fromkeys("cdefg", ""),
    }


def test_new_files_spell_the_code_as_the_files_that_are_there(tmp_path: Path) -> None:
    files = [f"res/{path}/strings.xml" for path in ("a/values", "a/values-pt-rBR", "b/values")]
    texts = dict.fromkeys(files, "<resources><string name='a'>A b</string></resources>")
    text = 'msgid "Old text"\nmsgstr ""\n'
    write(tmp_path, texts | {f"l10n/{name}.po": text for name in ("x_en", "x_pt_BR", "y_en")})
    (res, l10n) = (tmp_path / "res", tmp_path / "l10n")
    found = make_plan(Places("pt-BR", {"en": res}, res), ["en"])
    assert [file.path for file in found.files] == ["a/values-pt-rBR/strings.xml", "b/values-pt-rBR/strings.xml"]
    found = make_plan(Places("pt-BR", {"en": l10n}, l10n), ["en"])
    assert [file.path for file in found.files] == ["x_pt_BR.po", "y_pt_BR.po"]


@pytest.mark.parametrize(
    ("target", "source", "made"),
    [
        (
            ["a/pt-BR/q.properties", "x/messages_pt_BR.properties"],
            "y/messages_en.properties",
            "y/messages_pt_BR.properties",
        ),
        (["x/m_pt_BR.properties", "y/q_pt-BR.properties"], "y/m_en.properties", "y/m_pt_BR.properties"),
        (["pt_BR/LC_MESSAGES/o.po"], "en/LC_MESSAGES/b.po", "pt_BR/LC_MESSAGES/b.po"),
        (["pt/q.properties"], "y/messages_en.properties", "y/messages_pt_BR.properties"),
        ([], "y/messages_en.properties", "y/messages_pt_BR.properties"),
        ([], "app_en.ts", "app_pt_BR.ts"),
        ([], "en/b.po", "pt-BR/b.po"),
    ],
)
def test_new_files_are_named_like_the_most_similar_one(
    tmp_path: Path, target: list[str], source: str, made: str
) -> None:
    qt = "<TS><context><name>A</name><message><source>A b</source><translation></translation></message></context></TS>"
    text = qt if source.endswith(".ts") else 'msgid "Old text"\nmsgstr ""\n' if source.endswith(".po") else "a=A b\n"
    write(tmp_path, dict.fromkeys([f"source/{source}", *(f"target/{one}" for one in target)], text))
    place = tmp_path / "target" if target else None
    plan = make_plan(Places("pt-BR", {"en": tmp_path / "source"}, place), ["en"])
    assert [file.path for file in plan.files if file.kept + len(file.missing) and file.path not in target] == [made]


def test_a_compiled_source_fills_the_file_that_it_was_made_from(tmp_path: Path) -> None:
    header = b"Content-Type: text/plain; charset=UTF-8\n"
    pairs = [(b"", header), (b"Open it", "Öffne es".encode())]
    start, tables, blob = 28 + 32, [b"", b""], b""
    for side in range(2):
        for pair in pairs:
            tables[side] += struct.pack("<2I", len(pair[side]), start + len(blob))
            blob += pair[side] + b"\0"
    compiled = struct.pack("<7I", 0x950412DE, 0, 2, 28, 44, 0, 0) + tables[0] + tables[1] + blob
    write(tmp_path, {"dsb/a.po": 'msgid "Open it"\nmsgstr ""\n', "de/none.po": 'msgid "x"\nmsgstr "y"\n'})
    (tmp_path / "de/a.mo").write_bytes(compiled)
    plan = make_plan(Places("dsb", {"de": tmp_path / "de"}, tmp_path / "dsb"), ["de"])
    assert [(one.file, one.sources) for one in plan.missing][:1] == [("a.po", {"de": "Öffne es"})]
    assert [file.path for file in plan.files] == ["a.po", "none.po"]


def test_a_run_fills_the_language_that_it_writes_only(tmp_path: Path, translator: QuotingTranslator) -> None:
    write(tmp_path, ENGLISH)
    (tmp_path / "run").mkdir()
    recipe = load_recipe("text", {"data.path": "rows", "data.sources": ["en", "de"], "data.target": "hsb"})
    recipe.save(tmp_path / "run/recipe.yaml")
    line = [f"{tmp_path}/run", "--source", f"en={tmp_path}/en", "--out", f"{tmp_path}/out", "--target"]
    expected = r"--target is 'dsb', and .*run translates into 'hsb'; .* write --target hsb --codes hsb=CODE"
    with pytest.raises(SystemExit, match=expected):
        main(["localize", *line, "dsb"])
    assert translator.calls == 0
    main(["localize", *line, "hsb", "--codes", "hsb=dsb"])
    assert (tmp_path / "out.json").exists()


def test_packages_that_are_missing_are_named_before_the_work(
    tmp_path: Path, translator: QuotingTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, ENGLISH)
    line = ["localize", "run", "--target", "dsb", "--source", f"en={tmp_path}/en", "--out", f"{tmp_path}/out"]
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(SystemExit, match=r'rapidfuzz: run pip install "\.\[localization\]" in a clone'):
        main([*line, "--review", f"{tmp_path}/review.html"])
    assert translator.calls == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "dsb=", "--source", "en=en", "--out", "x"], "--target dsb=: write LANGUAGE or LANGUAGE=PATH"),
        (
            ["--target", "dsb", "--source", "en", "--out", "x"],
            "--source en: write LANGUAGE=PATH, such as en=l10n/en, once for each language",
        ),
        (["--target", "en", "--source", "en=en", "--out", "x"], "target is 'en', which is a source, too"),
        (["--target", "dsb", "--source", "cs=en", "--out", "x"], "the source 'cs' is unknown to the model"),
        (["--target", "dsb", "--source", "en=nothing", "--out", "x"], "nothing is not there"),
        (["--target", "dsb", "--source", "en=empty", "--out", "x"], "empty has no catalogue of 'en'"),
        (
            ["--target", "dsb", "--source", "en=en", "--out", "en/x"],
            "--out en/x is in en, where the catalogues of 'en'",
        ),
        (["--target", "dsb", "--source", "en=en", "--out", "file"], "file is a file; the catalogues are several"),
        (["--target", "dsb", "--source", "en=en", "--out", "x", "--codes", "fr=x"], "codes has 'fr'; the languages"),
        (["--target", "dsb", "--source", "en=en", "--out", "x", "--codes", "en=../x"], "the code of 'en' is '../x'"),
        (["--target", "dsb", "--source", "en=en/a.po", "--out", "x.ftl"], "x.ftl is not named as a.po"),
        (
            ["--target", "dsb", "--source", "en=en/a.po", "--out", "x.ftl", "--dry_run"],
            "x.ftl is not named as a.po, whose format it has; name it like a.po",
        ),
        (["--target", "dsb", "--source", "en=en", "--out", "x", "--min_confidence", "2"], "min_confidence is 2.0"),
        (["--target", "dsb", "--source", "en=en", "--out", "x", "--num_beams", "1"], "num_beams is 1; it must be at"),
        (["--target", "dsb", "--source", "en=en", "--out", "x", "--num_beams", "0"], "num_beams is 0; it must be at"),
        (["--target", "dsb=en/a.po", "--source", "en=en", "--out", "x"], "en/a.po is one file, so each source"),
    ],
)
def test_bad_options_are_named(
    arguments: list[str], message: str, tmp_path: Path, translator: QuotingTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"en/a.po": po("cs", "x"), "file": "", "empty/a.txt": ""})
    monkeypatch.chdir(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(SystemExit, match=message.replace("(", r"\(").replace("..", r"\.\.")):
        main(["localize", "run", *arguments])
    assert everything(tmp_path) == before
    assert translator.calls == 0


UMLAUT, ESCAPED, LATIN = "a=ä\n".encode(), b"a=\\u00e4\n", "a=ä\n".encode("latin-1")


@pytest.mark.parametrize(
    ("others", "escapes"),
    [
        ({}, True),  # Java 8 does not read UTF-8
        ({"de/a.properties": ESCAPED}, True),
        ({"de/a.properties": LATIN}, True),
        ({"de/a.properties": UMLAUT}, False),
        ({"de/b.properties": UMLAUT}, False),
        ({"dsb/b.properties": UMLAUT}, False),
        ({"de/b.properties": ESCAPED}, True),
        ({"de/a.properties": ESCAPED, "de/b.properties": UMLAUT}, True),  # the same file comes first
        ({"de/b.properties": LATIN, "dsb/b.properties": UMLAUT}, True),
        ({"dsb/a.properties": ESCAPED, "de/a.properties": UMLAUT}, True),  # the file itself comes first
        ({"dsb/a.properties": UMLAUT, "de/a.properties": ESCAPED}, False),
    ],
)
@pytest.mark.parametrize("new", [False, True])
def test_properties_files_are_written_with_escapes_unless_the_project_has_utf_8(
    tmp_path: Path, others: Mapping[str, bytes], escapes: bool, new: bool
) -> None:
    files = {"en/a.properties": b"title=Hello\n", "de/c.properties": b"c=c\n", "dsb/c.properties": b"c=c\n", **others}
    if not new:
        files = {"dsb/a.properties": b"a=a\n", **files}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found, _ = filled(plan_of(tmp_path), tmp_path / "out")
    assert ("title=\\u00abHello\\u00bb" if escapes else "title=«Hello»") in found["a.properties"]
