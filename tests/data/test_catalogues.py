"""Rows from catalogues: how languages are aligned, which rules count what, how files are split, what is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from archive_files import debian, tarred, zipped
from catalogue_samples import PO
from hf_multisource.cli.app import main
from hf_multisource.data.catalogue_places import ANOTHER, neutral_path, read_place
from hf_multisource.data.catalogues import SPLITS, Selection, split_of, write_catalogue_rows
from hf_multisource.data.plural_forms import plural_rule
from hf_multisource.data.rows import read_split

LANGUAGES = ["en", "de", "dsb"]


def write_tree(place: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, "utf-8")
    return place


def files_in(split: str, number: int) -> list[str]:
    """Paths that fall into a split, with shares of a tenth for dev and test."""
    return [f"f{i}.ftl" for i in range(200) if split_of(f"f{i}.ftl", 0.1, 0.1) == split][:number]


def l10n(place: Path) -> Path:
    """A folder of three languages: eight files with a message each."""
    for language in LANGUAGES:
        for split, number in {"train": 5, "dev": 1, "test": 2}.items():
            for i, name in enumerate(files_in(split, number)):
                write_tree(place, {f"{language}/{name}": f"key = {split} {i} {language}\n"})
    return place


def rows_of(out: Path, languages: list[str]) -> dict[str, list[tuple[str, ...]]]:
    """Split -> the rows of its files, read naively."""
    found = {}
    for split in SPLITS:
        if (out / f"{split}.{languages[0]}").exists():
            columns = [(out / f"{split}.{name}").read_text("utf-8").split("\n")[:-1] for name in languages]
            found[split] = list(zip(*columns, strict=True))
    return found


def make(pattern: object, out: Path, **settings: Any) -> dict[str, list[tuple[str, ...]]]:
    selection = Selection(**{"languages": LANGUAGES, "dev": 0.0, "test": 0.0, **settings})
    write_catalogue_rows(str(pattern), out, selection)
    return rows_of(out, [*selection.languages])


def counts(out: Path) -> dict[str, Any]:
    found = json.loads((out / "counts.json").read_text("utf-8"))
    return {**found["entries"], **found["rows"]}


def test_the_command_writes_splits_that_other_commands_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, out = l10n(tmp_path / "l10n"), tmp_path / "out"
    main(["catalogues", f"{place}/{{lang}}", "--languages", *LANGUAGES, "--target", "dsb", "--out", str(out)])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"{out} is written"
    assert {"files: en 8, de 8, dsb 8", "train: 5 rows from 5 files", "dev: 1 rows from 1 files"} <= set(printed)
    rows = rows_of(out, LANGUAGES)
    assert {split: len(found) for split, found in rows.items()} == {"train": 5, "dev": 1, "test": 2}
    assert all(
        row == tuple(f"{split} {row[0].split()[1]} {x}" for x in LANGUAGES) for split in rows for row in rows[split]
    )
    keys = json.loads((out / "keys.json").read_text("utf-8"))
    assert {split: sorted(path for path, *_ in found) for split, found in keys.items()} == {
        "train": sorted(files_in("train", 5)),
        "dev": files_in("dev", 1),
        "test": sorted(files_in("test", 2)),
    }
    assert {(key, part) for found in keys.values() for _, key, part in found} == {("key", "")}
    split = read_split(str(out), "train", ["en", "de"], "dsb")
    assert [tuple(row.values()) for row in split.rows] == rows["train"]


def test_a_file_falls_into_one_split_by_its_path_alone(tmp_path: Path) -> None:
    place = l10n(tmp_path / "l10n")
    before = make(f"{place}/{{lang}}", tmp_path / "a", dev=0.1, test=0.1)
    write_tree(place, {f"en/{name}": "other = x\n" for name in files_in("train", 40)[5:]})
    write_tree(place, {f"de/{name}": "other = y\n" for name in files_in("train", 40)[5:]})
    after = make(f"{place}/{{lang}}", tmp_path / "b", dev=0.1, test=0.1)
    assert (after["dev"], after["test"]) == (before["dev"], before["test"])
    shares = [split_of(f"folder/{i}.po", 0.2, 0.3) for i in range(3000)]
    assert [
        abs(shares.count(name) / 3000 - share) < 0.03 for name, share in zip(SPLITS, (0.5, 0.2, 0.3), strict=True)
    ] == [True] * 3
    assert {split_of("x", 0.0, 0.0), split_of("y", 0.0, 0.0)} == {"train"}


def test_rows_are_aligned_by_file_and_key_and_what_is_missing_is_absent(tmp_path: Path) -> None:
    place = write_tree(
        tmp_path / "l10n",
        {
            "en/a.ftl": "one = 1\n    .label = L\ntwo = 2\n",
            "en/b.ftl": "one = other\n",
            "de/a.ftl": "two = zwei\nmore = mehr\none = eins\n    .label = E\n",
            "dsb/a.ftl": "one = jaden\n",
            "dsb/b.ftl": "one = druga\n",
            "dsb/README": "no catalogue",
        },
    )
    rows = make(f"{place}/{{lang}}", tmp_path / "out", min_languages=1)
    assert rows == {
        "train": [
            ("1", "eins", "jaden"),
            ("L", "E", ""),
            ("2", "zwei", ""),
            ("", "mehr", ""),
            ("other", "", "druga"),
        ]
    }
    keys = [["a.ftl", "one", ""], ["a.ftl", "one", ".label"], ["a.ftl", "two", ""], ["a.ftl", "more", ""]]
    assert json.loads((tmp_path / "out/keys.json").read_text("utf-8")) == {"train": [*keys, ["b.ftl", "one", ""]]}


PLURALS = {
    "de": "nplurals=2; plural=(n != 1);",
    "cs": "nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;",
    "dsb": "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);",
    "ja": "nplurals=1; plural=0;",
    "sl": "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);",  # not in CLDR's order
}


def plural_po(header: str, *forms: str) -> str:
    """A gettext file with one message in the plural."""
    lines = [f'msgstr[{i}] "{form}"' for i, form in enumerate(forms)]
    settings = f'msgid ""\nmsgstr "Plural-Forms: {header}\\n"\n\n'
    return f'{settings}#, c-format\nmsgid "%d file"\nmsgid_plural "%d files"\n' + "\n".join([*lines, ""])


def test_plural_forms_are_aligned_by_their_categories(tmp_path: Path) -> None:
    numbers = {"de": 2, "cs": 3, "dsb": 4, "ja": 1, "sl": 4}
    texts = {f"{one}.po": plural_po(PLURALS[one], *(f"{one} {i}" for i in range(n))) for one, n in numbers.items()}
    place = write_tree(tmp_path / "l10n", texts)
    languages = ["en", "de", "cs", "dsb", "ja", "sl"]
    assert make(f"{place}/{{lang}}.po", tmp_path / "out", languages=languages)["train"] == [
        ("%d file", "de 0", "cs 0", "dsb 0", "ja 0", "sl 1"),
        ("%d files", "de 1", "cs 2", "dsb 3", "ja 0", "sl 0"),
        ("%d files", "de 1", "cs 1", "dsb 2", "ja 0", "sl 3"),
        ("%d files", "de 1", "cs 2", "dsb 1", "ja 0", "sl 2"),
    ]
    keys = json.loads((tmp_path / "out/keys.json").read_text("utf-8"))["train"]
    assert [part for _, _, part in keys] == ["[one]", "[other]", "[few]", "[two]"]


def test_the_source_text_of_a_plural_form_is_that_of_its_category_not_of_its_number(tmp_path: Path) -> None:
    arabic = plural_rule("ar")
    assert arabic is not None
    headers = {"ja": (PLURALS["ja"], 1), "ar": (arabic.formula, 6)}
    texts = {f"{one}.po": plural_po(header, *map(str, range(number))) for one, (header, number) in headers.items()}
    place = write_tree(tmp_path / "l10n", texts)
    assert make(f"{place}/{{lang}}.po", tmp_path / "ja", languages=["en", "ja"])["train"] == [("%d files", "0")]
    rows = make(f"{place}/{{lang}}.po", tmp_path / "ar", languages=["en", "ar"])["train"]
    assert rows == [("%d files", "0"), ("%d file", "1"), *(("%d files", f"{i}") for i in range(2, 6))]


def test_plural_forms_of_a_language_without_a_rule_in_cldr_are_aligned_by_their_formula(tmp_path: Path) -> None:
    polish = "nplurals=3; plural=n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2;"
    headers = {"cs": PLURALS["cs"], "szl": polish}
    texts = {f"{one}.po": plural_po(headers[one], *(f"{one} {i}" for i in range(3))) for one in headers}
    place = write_tree(tmp_path / "l10n", texts)
    assert make(f"{place}/{{lang}}.po", tmp_path / "out", languages=["en", "cs", "szl"])["train"] == [
        ("%d file", "cs 0", "szl 0"),
        ("%d files", "cs 1", "szl 1"),
        ("%d files", "cs 2", "szl 2"),
    ]


def test_a_form_that_is_not_translated_is_absent_and_not_another_form(tmp_path: Path) -> None:
    cs = plural_po(PLURALS["cs"], "jeden", "", "mnoho")
    place = write_tree(tmp_path / "l10n", {"cs.po": cs, "dsb.po": plural_po(PLURALS["dsb"], "a", "b", "c", "d")})
    rows = make(f"{place}/{{lang}}.po", tmp_path / "out", languages=["en", "cs", "dsb"])["train"]
    expected = {
        ("%d file", "jeden", "a"),
        ("%d files", "mnoho", "b"),
        ("%d files", "", "c"),
        ("%d files", "mnoho", "d"),
    }
    assert {*rows} == expected


def test_plural_forms_of_qt_are_aligned_by_their_categories(tmp_path: Path) -> None:
    for language, number in {"de": 2, "cs": 3, "dsb": 4}.items():
        forms = "".join(f"<numerusform>{language} {i}</numerusform>" for i in range(number))
        message = f"<message numerus='yes'><source>%n files</source><translation>{forms}</translation></message>"
        text = f"<TS version='2.1'><context><name>Menu</name>{message}</context></TS>\n"
        write_tree(tmp_path / "l10n", {f"app_{language}.ts": text})
    rows = make(f"{tmp_path}/l10n/app_{{lang}}.ts", tmp_path / "out", languages=["en", "de", "cs", "dsb"])["train"]
    assert rows == [
        ("%n files", "de 0", "cs 0", "dsb 0"),
        ("%n files", "de 1", "cs 2", "dsb 3"),
        ("%n files", "de 1", "cs 1", "dsb 2"),
        ("%n files", "de 1", "cs 2", "dsb 1"),
    ]


def test_where_no_file_says_its_categories_plural_forms_are_aligned_by_number(tmp_path: Path) -> None:
    texts = {f"{one}.po": plural_po("nplurals=2; plural=EXPRESSION;", f"{one} 0", f"{one} 1") for one in ("de", "dsb")}
    place = write_tree(tmp_path / "l10n", texts)
    by_number = [("%d file", "de 0", "dsb 0"), ("%d files", "de 1", "dsb 1")]
    assert make(f"{place}/{{lang}}.po", tmp_path / "a") == {"train": by_number}
    write_tree(place, {"dsb.po": plural_po(PLURALS["dsb"], "a", "b", "c", "d")})
    rows = make(f"{place}/{{lang}}.po", tmp_path / "b")["train"]
    assert rows == [("%d file", "", "a"), ("%d files", "", "b"), ("%d files", "", "c"), ("%d files", "", "d")]
    assert counts(tmp_path / "b")["plural forms of unknown categories (absent)"] == {"de": 2}


def test_each_rule_counts(tmp_path: Path) -> None:
    empty = (
        PO.text.replace('"wočiniś %s"', '"open %s"').replace('"drugi \\"x\\"\\t\\\\"', '"  "').replace("prědny\\n", "")
    )
    place = write_tree(
        tmp_path,
        {
            "dsb.po": empty,
            "de.po": 'msgid "open %s"\nmsgstr "öffne %s"\n\nmsgid "close %d"\nmsgstr "schließe %d"\n\n'
            'msgctxt "x"\nmsgid "close %d"\nmsgstr "schließe %d"\n\nmsgid "close %d"\nmsgstr "zu"\n',
        },
    )
    rows = make(f"{place}/{{lang}}.po", tmp_path / "out", min_languages=2)
    plural = [("%d file", "", "%d dataja"), ("%d files", "", "%d dataji")]
    assert rows == {"train": [("open %s", "öffne %s", "open %s"), ("close %d", "schließe %d", ""), *plural]}
    found = counts(tmp_path / "out")
    assert found["files"] == {"de": 1, "dsb": 1}
    assert found["entries"] == {"de": 4, "dsb": 13}
    assert found["obsolete (dropped)"] == {"dsb": 1}
    assert found["untranslated (absent)"] == {"dsb": 7}
    assert found["fuzzy (absent)"] == {"dsb": 1}
    assert found["empty (absent)"] == {"dsb": 1}
    assert found["repeated key (the first is kept)"] == {"de": 1}
    assert found["texts from the source side of other languages' files"] == {"en": 13}
    assert found["equal to en (kept)"] == {"dsb": 1}
    assert found["duplicates (dropped)"] == 1
    assert found["too few languages (dropped)"] == 8
    assert found["train"] == 4
    make(f"{place}/{{lang}}.po", tmp_path / "target", target="dsb")
    assert counts(tmp_path / "target")["without the target (dropped)"] == 10


def test_texts_that_only_the_target_has_in_english_are_counted_and_can_be_dropped(tmp_path: Path) -> None:
    texts = {  # English, German, Sorbian
        "copy": ("Messages", "Nachrichten", "Messages"),
        "name": ("Firefox", "Firefox", "Firefox"),
        "own": ("Open", "Öffnen", "Wócyniś"),
        "alone": ("Quit", None, "Quit"),
    }
    for i, language in enumerate(LANGUAGES):
        lines = [f"{key} = {row[i]}\n" for key, row in texts.items() if row[i] is not None]
        write_tree(tmp_path, {f"l10n/{language}/a.ftl": "".join(lines)})
    place = tmp_path / "l10n/{lang}"
    rows = make(place, tmp_path / "kept", target="dsb")["train"]
    assert len(rows) == 4
    equal = {"equal to en (kept)": {"de": 1, "dsb": 3}}
    hint = "of these, where all other languages have other texts (kept)"
    assert {**equal, hint: {"de": 0, "dsb": 1}}.items() <= counts(tmp_path / "kept").items()
    assert make(place, tmp_path / "dropped", target="dsb", drop_copies=True)["train"] == rows[1:]
    dropped = {"equal to en, where all other languages have other texts (absent)": {"dsb": 1}}
    assert {**dropped, "equal to en (kept)": {"de": 1, "dsb": 2}}.items() <= counts(tmp_path / "dropped").items()
    assert make(place, tmp_path / "other", target="de", drop_copies=True)["train"] == rows[:3]  # not of a source


def test_the_source_side_is_a_language_if_it_has_no_file_of_its_own(tmp_path: Path) -> None:
    unit = (
        '<file original="a" source-language="{}"><trans-unit id="1">'
        "<source>{}</source><target>{}</target></trans-unit></file>"
    )
    place = write_tree(
        tmp_path,
        {
            f"{code}.xlf": f'<xliff version="1.2">{unit.format(source, text, translation)}</xliff>'
            for code, source, text, translation in [
                ("de", "en-US", "Open", "Öffnen"),
                ("dsb", "cs", "Otevřít", "Wočiniś"),
            ]
        },
    )
    pattern = f"{place}/{{lang}}.xlf"
    assert make(pattern, tmp_path / "a") == {"train": [("Open", "Öffnen", "Wočiniś")]}
    languages = ["cs", "de", "dsb"]
    assert rows_of_source(pattern, tmp_path / "b", languages, "cs") == {"train": [("Otevřít", "Öffnen", "Wočiniś")]}
    write_tree(place, {"en.xlf": f'<xliff version="1.2">{unit.format("en", "Open", "Open!")}</xliff>'})
    assert make(pattern, tmp_path / "c") == {"train": [("Open!", "Öffnen", "Wočiniś")]}


def test_units_of_xliff_files_are_aligned_whatever_the_number_of_their_files(tmp_path: Path) -> None:
    unit = '<trans-unit id="1"><source>Word</source><target>{}</target></trans-unit>'
    file = f'<file original="{{}}" source-language="en">{unit}</file>'
    german, sorbian = file.format("b", "Wort"), file.format("b", "Słowo")
    several = f"{sorbian}{file.format('c', 'Druge')}"
    # Documents of one file are aligned by the ids of their units, because `original` may name the converted file.
    for i, other in enumerate((several, file.format("b.po", "Słowo"))):
        files = {"de.xlf": german, "dsb.xlf": other}
        tree = {name: f'<xliff version="1.2">{text}</xliff>' for name, text in files.items()}
        rows = make(write_tree(tmp_path / f"in{i}", tree), tmp_path / f"out{i}", languages=["de", "dsb"])
        assert rows["train"] == [("Wort", "Słowo")]


def rows_of_source(pattern: str, out: Path, languages: list[str], source: str) -> dict[str, list[tuple[str, ...]]]:
    return make(pattern, out, languages=languages, source_language=source)


def test_texts_stand_in_one_line(tmp_path: Path) -> None:
    text = 'msgid "a\\n\\tb\\r\\nc\u2028d \\n"\nmsgstr "x\\n"\n'
    write_tree(tmp_path, {"de.po": text})
    rows = make(f"{tmp_path}/{{lang}}.po", tmp_path / "out", languages=["en", "de"])
    assert rows == {"train": [("a\\n b\\nc d \\n", "x\\n")]}


@pytest.mark.parametrize(
    ("path", "code", "neutral"),
    [
        ("de.po", "de", "{lang}.po"),
        ("browser/de/menu.ftl", "de", "browser/{lang}/menu.ftl"),
        ("values-de/strings.xml", "de", "values-{lang}/strings.xml"),
        ("values-pt-rBR/strings.xml", "pt-BR", "values-{lang}/strings.xml"),
        ("values-b+sr+Latn/strings.xml", "sr-Latn", "values-{lang}/strings.xml"),
        ("values-b+sr+latn+RS/strings.xml", "sr_Latn_RS", "values-{lang}/strings.xml"),
        ("values-b+dsb/strings.xml", "dsb", "values-{lang}/strings.xml"),
        ("values-b+de+AT/strings.xml", "de", "values-b+de+AT/strings.xml"),
        ("pt_BR/LC_MESSAGES/a.mo", "pt-BR", "{lang}/LC_MESSAGES/a.mo"),
        (
            "langpack-en-GB@firefox.mozilla.org.xpi/en-gb/x.ftl",
            "en-GB",
            "langpack-{lang}@firefox.mozilla.org.xpi/{lang}/x.ftl",
        ),
        ("app_de.ts", "de", "app_{lang}.ts"),
        ("messages.de.xlf", "de", "messages.{lang}.xlf"),
        ("de-AT/a.po", "de", "de-AT/a.po"),
        ("model/a.de_x.po", "de", "model/a.de_x.po"),
        ("what-it-is.ftl", "it", "what-it-is.ftl"),
        ("DE/a.dtd", "de", "{lang}/a.dtd"),
        ("locale/en_CA/LC_MESSAGES/a.mo", "ca", "locale/en_CA/LC_MESSAGES/a.mo"),
        ("po/pt_BR.po", "br", "po/pt_BR.po"),
        ("app.en-de.xlf", "de", "app.en-{lang}.xlf"),
        ("po/pt-br/a.po", "br", "po/pt-br/a.po"),
        ("sv_se.ts", "se", "sv_se.ts"),
        ("qt_de.ts", "de", "qt_{lang}.ts"),
        ("po/se.po", "se", "po/{lang}.po"),
        ("app_DE.ts", "DE", "app_{lang}.ts"),
        ("values-DE/strings.xml", "de", "values-{lang}/strings.xml"),
        ("po/ca@valencia.po", "ca", "po/ca@valencia.po"),
        ("po/ca@valencia.po", "ca@valencia", "po/{lang}.po"),
        ("locale/sr@latin/LC_MESSAGES/a.mo", "sr", "locale/sr@latin/LC_MESSAGES/a.mo"),
        ("langpack-de@firefox.mozilla.org/de/x.ftl", "de", "langpack-{lang}@firefox.mozilla.org/{lang}/x.ftl"),
    ],
)
def test_paths_lose_the_code_of_their_language(path: str, code: str, neutral: str) -> None:
    assert neutral_path(path, code) == neutral


def test_catalogues_are_found_wherever_they_are(tmp_path: Path) -> None:
    text = {"en": "open = Open\n", "de": "open = Öffnen\n", "dsb": "open = Wočiniś\n"}
    expected = {"train": [("Open", "Öffnen", "Wočiniś")]}
    codes = {"en": "en-GB"}
    for language, one in text.items():
        code = codes.get(language, language)
        inner = zipped({f"browser/{code}/menu.ftl": one.encode(), "manifest.json": b"{}"})
        (tmp_path / f"langpack-{code}.xpi").write_bytes(inner)
        data = tarred({f"./usr/lib/langpack-{code}@x.org.xpi": inner})
        (tmp_path / f"l10n-{code.lower()}_1.0.deb").write_bytes(debian(data, "data.tar"))
        write_tree(tmp_path / "tree", {f"x/{code}/menu.ftl": one})
    for i, pattern in enumerate(["langpack-{lang}.xpi", "l10n-{lang}_*.deb", "tree/x/{lang}", "tree"]):
        assert make(tmp_path / pattern, tmp_path / f"out{i}", codes=codes) == expected, pattern
    paths = {"en": str(tmp_path / "langpack-en-GB.xpi")}
    assert make(tmp_path / "langpack-{lang}.xpi", tmp_path / "out", codes=codes, paths=paths) == expected


BASE = {
    "properties": ("messages.properties", "messages_{}.properties", "a = {} a\n"),
    "android": (
        "res/values/strings.xml",
        "res/values-{}/strings.xml",
        "<resources><string name='a'>{} a</string></resources>",
    ),
}


@pytest.mark.parametrize("form", BASE)
def test_files_without_a_code_are_those_of_the_source_language(tmp_path: Path, form: str) -> None:
    base, other, text = BASE[form]
    files = {base: text.format("en")} | {other.format(one): text.format(one) for one in ("de", "dsb", "fr")}
    place = write_tree(tmp_path / "l10n", {**files, "res/raw/notes.properties": "b = c\n"})
    expected = {"train": [("en a", "de a", "dsb a")]}
    assert make(str(place), tmp_path / "shared", languages=["en", "de", "dsb"]) == expected
    found = counts(tmp_path / "shared")["entries"]
    assert found == {"en": 1, "de": 1, "dsb": 1}
    pattern, paths = f"{place}/{other.format('{lang}')}", {"en": f"{place}/{base}"}
    assert make(pattern, tmp_path / "named", languages=["en", "de", "dsb"], paths=paths) == expected
    with pytest.raises(ValueError, match="has no catalogue of 'frr'"):  # no language is guessed
        make(str(place), tmp_path / "none", languages=["en", "de", "frr"])
    german = make(str(place), tmp_path / "base", languages=["dsb", "nds"], source_language="nds")
    assert german == {"train": [("dsb a", "en a")]}


def test_files_named_after_two_languages_are_translations_or_territories(tmp_path: Path) -> None:
    place = write_tree(tmp_path / "pairs", {f"en-{one}.properties": f"a = {one}\n" for one in ("de", "fr", "cs")})
    expected = {"train": [("de", "cs")]}
    assert make(f"{place}/en-{{lang}}.properties", tmp_path / "a", languages=["de", "cs"]) == expected
    assert make(str(place), tmp_path / "b", languages=["de", "cs"]) == expected
    names = ("po/ar.po", "po/es.po", "po/es-ar.po", "po/pt-br.po", "po/en.po", "po/en-de.po", "x/es-ar.po")
    write_tree(tmp_path / "all", dict.fromkeys(names, PO.text))
    read = {code: sorted(read_place(tmp_path / "all", code, code, shared=True)) for code in ("ar", "es", "br", "de")}
    assert read == {
        "ar": ["po/{lang}.po", "x/es-{lang}.po"],
        "es": ["po/{lang}.po"],
        "br": [],
        "de": ["po/en-{lang}.po"],
    }


def test_the_messages_of_one_file_are_split_by_themselves_and_forms_of_a_message_stay_together(tmp_path: Path) -> None:
    forms = "".join(
        f'<plurals name="p{i}"><item quantity="one">{{0}} p{i}</item>'
        + f'<item quantity="other">{{0}}s p{i}</item></plurals>'
        for i in range(40)
    )
    for code in ("en", "de"):
        write_tree(tmp_path, {f"{code}.xml.d/strings.xml": f"<resources>{forms.replace('{0}', code)}</resources>"})
    rows = make(
        f"{tmp_path}/{{lang}}.xml.d", tmp_path / "out", languages=["en", "de"], split_by="messages", dev=0.2, test=0.2
    )
    assert set(rows) == {"train", "dev", "test"} and sum(map(len, rows.values())) == 80
    places = {split: {row[0].split()[1] for row in found} for split, found in rows.items()}
    assert sum(map(len, places.values())) == 40, "both forms of a message are in the same split"
    assert json.loads((tmp_path / "out/counts.json").read_text("utf-8"))["split_by"] == "messages"


def test_a_file_without_a_code_gives_way_to_one_with_texts(tmp_path: Path) -> None:
    files = {
        "m.properties": "a = base\n",
        "m_de.properties": "a = de\n",
        "m_en.properties": "",
        "s/en/x.properties": "b = en\n",
    }
    place = write_tree(tmp_path / "l10n", {**files, "s/de/x.properties": "b = de\n"})
    both = [("en", "de"), ("base", "de")]
    assert sorted(make(str(place), tmp_path / "a", languages=["en", "de"])["train"]) == sorted(both)
    write_tree(place, {"m_en.properties": "a = coded\n"})
    assert sorted(make(str(place), tmp_path / "b", languages=["en", "de"])["train"]) == [("coded", "de"), ("en", "de")]
    assert json.loads((tmp_path / "b/counts.json").read_text("utf-8"))["not_read"]["en"] == [
        "m.properties: a file without a code, in place of which the language has one with its code"
    ]


def test_a_code_in_the_name_of_a_file_of_one_language_changes_no_other_language(tmp_path: Path) -> None:
    folders = {one: {"print.ftl": f"a = {one}\n", "print-it.ftl": f"b = {one}\n"} for one in ("en", "it", "fr")}
    write_tree(tmp_path, {f"{one}/{name}": text for one, files in folders.items() for name, text in files.items()})
    rows = make(f"{tmp_path}/{{lang}}", tmp_path / "out", languages=["en", "it", "fr"])["train"]
    assert sorted(rows) == [("en", "", "fr"), ("en", "it", "fr")]
    names = {"en": "docs", "de": "docs-de", "fr": "docs-fr"}
    texts = {f"x/{folder}/i.properties": f"a = {one}\n" for one, folder in names.items()}
    place = write_tree(
        tmp_path / "docs", {**texts, "x/docs/api/de.properties": "b = de\n", "x/docs/api/fr.properties": "b = fr\n"}
    )
    rows = make(str(place), tmp_path / "docs.out", languages=["en", "de", "fr"])["train"]
    assert sorted(rows) == [("", "de", "fr"), ("en", "de", "fr")]


@pytest.mark.parametrize("base", ["values/strings.xml", "messages.properties"])
def test_in_the_place_of_one_language_files_of_others_are_told_by_their_keys(tmp_path: Path, base: str) -> None:
    android = base.endswith(".xml")
    text = "<resources><string name='a'>{}</string></resources>" if android else "a = {}\n"
    other = "values-{}/strings.xml" if android else "messages_{}.properties"
    files = {base: "en", other.format("de"): "de", other.format("b+sr+Latn" if android else "sr_Latn"): "sr"}
    write_tree(tmp_path, {path: text.format(one) for path, one in files.items()})
    write_tree(
        tmp_path, {"about.properties": "c = x\n", "about-us.properties": "d = x\n", "about-gtk.properties": "c = y\n"}
    )
    unread: dict[str, str] = {}
    read = read_place(tmp_path, "en", "en", unread=unread)
    assert sorted(read) == sorted(
        ["about-gtk.properties", "about-us.properties", "about.properties", other.format("{lang}")]
    )
    assert [entry.text for entry in read[other.format("{lang}")].entries] == ["en"]
    assert unread == dict.fromkeys([path for path, one in files.items() if one != "en"], ANOTHER)


@pytest.mark.parametrize("name", ["pt_BR", "pt-BR", "pt-br", "pt_br", "pt-rBR", "b+pt+BR"])
@pytest.mark.parametrize("code", ["pt_BR", "pt-BR"])
def test_the_place_of_a_language_is_found_in_any_spelling_of_its_code(tmp_path: Path, name: str, code: str) -> None:
    place = write_tree(tmp_path / "l10n", {f"{one}/a.properties": f"a = {one}\n" for one in ("de", name)})
    rows = make(f"{place}/{{lang}}", tmp_path / "out", languages=["de", code])
    assert rows == {"train": [("de", name)]}


def test_files_of_other_languages_in_the_place_of_a_language_are_counted_and_not_read(tmp_path: Path) -> None:
    one, two = (f'msgid "Open"\nmsgstr "{text}"\n' for text in ("one", "two"))
    write_tree(tmp_path, {"a/po/sr.po": one, "a/po/sr@latin.po": two, "a/po/be.po": two, "a/menu.ftl": "k = v\n"})
    write_tree(tmp_path, {"b/sr/a.ftl": "k = one\n", "b/de_AT/a.ftl": "k = two\n", "b/other/a.ftl": "k = own\n"})
    write_tree(tmp_path, {"c/a_sr.properties": "k=one\n", "c/a.properties": "k=two\n", "c/b.properties": "k=own\n"})
    for name, read, others in (
        ("a", ["menu.ftl", "po/{lang}.po"], ["po/be.po", "po/sr@latin.po"]),
        ("b", ["other/a.ftl", "{lang}/a.ftl"], ["de_AT/a.ftl"]),
        ("c", ["a_{lang}.properties", "b.properties"], ["a.properties"]),
    ):
        unread: dict[str, str] = {}
        assert sorted(read_place(tmp_path / name, "sr", "sr", unread=unread)) == read
        assert unread == dict.fromkeys(others, ANOTHER)


def test_a_language_without_a_text_in_any_row_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path, {"de.ftl": "k = v\n", "dsb.ftl": "k = w\n"})
    with pytest.raises(ValueError, match=r"^no row has a text of 'en' \(code en\), and no catalogue of it was"):
        make(f"{tmp_path}/{{lang}}.ftl", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_places_of_languages_can_be_named(tmp_path: Path) -> None:
    string = '<resources><string name="a">{}</string></resources>'
    write_tree(tmp_path, {f"res/values{x}/strings.xml": string.format(f"text{x}") for x in ("", "-de", "-dsb")})
    out = tmp_path / "out"
    command = ["catalogues", f"{tmp_path}/res/values-{{lang}}", "--languages", *LANGUAGES, "--dev", "0", "--test", "0"]
    main([*command, "--paths", f"en={tmp_path}/res/values", "--out", str(out)])
    assert rows_of(out, LANGUAGES) == {"train": [("text", "text-de", "text-dsb")]}
    write_tree(tmp_path, {"res/values-b+sr+Latn/strings.xml": string.format("tekst")})
    rows = make(tmp_path / "res/values-{lang}", tmp_path / "sr", languages=["sr", "de"], codes={"sr": "sr-Latn"})
    assert rows == {"train": [("tekst", "text-de")]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"languages": ["en", "en"]}, "languages is en, en; name one or more, each once"),
        ({"codes": {"fr": "fr"}}, r"codes has 'fr'; the languages are en, de, dsb"),
        ({"paths": {"fr": "fr"}}, r"paths has 'fr'; the languages are en, de, dsb"),
        ({"codes": {"en": "../en"}}, r"the code of 'en' is '\.\./en'; it must be like de or pt-BR"),
        ({"target": "fr"}, r"target is 'fr'; the languages are en, de, dsb"),
        ({"drop_copies": True}, "drop_copies is true, and there is no target, whose texts would be dropped: name it"),
        ({"min_languages": 4}, r"min_languages is 4; it must be from 1 to 3"),
        ({"dev": 0.5, "test": 0.5}, r"dev is 0\.5 and test is 0\.5; both must be 0 or more, their sum below 1"),
        ({"dev": -0.1}, r"dev is -0\.1 and test is"),
        ({"dev": float("nan")}, r"dev is nan and test is"),
        ({"languages": ["en", "fr"]}, r"l10n/fr is not there; name another code .languages: fr=CODE. or the place"),
        ({"paths": {"de": "absent"}}, r"absent, the place of 'de', is not there"),
        ({"paths": {"de": "l10n/*"}}, r"3 places fit the language 'de': .*; name one"),
        ({"paths": {"de": "bare"}}, r"bare has no catalogue of 'de' \(code de\); catalogues are \.ftl, \.po"),
        ({"paths": {"de": "twice"}}, r"de/a\.ftl and .*DE/a\.ftl are the same file of 'de'"),
        ({"paths": {"de": "broken"}}, r"broken/a\.po, line 1: not gettext"),
        (
            {
                "dev": 0.0,
                "test": 0.0,
                "min_languages": 3,
                "target": "en",
                "languages": ["en", "de", "dsb"],
                "paths": {"de": "other"},
            },
            r"the split train gets no row \(files: 9, rows: 0\): all rows were dropped\n",
        ),
        (
            {"dev": 1e-9},
            r"the split dev gets no row .* set split_by to messages, name more files, or change the shares ",
        ),
        ({"dev": 1e-9, "split_by": "messages"}, r"rows: \d+\): change the shares dev \(1e-09\) and test \(0\.1\)"),
        ({"split_by": "rows"}, r"split_by is 'rows'; it must be files or messages"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    l10n(tmp_path / "l10n")
    write_tree(tmp_path, {"bare/README": "", "broken/a.po": "msgid x", "other/x.ftl": "a = b\n"})
    write_tree(tmp_path, {"twice/de/a.ftl": "a = b\n", "twice/DE/a.ftl": "a = b\n"})
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((ValueError, OSError), match=message):
        write_catalogue_rows(
            "l10n/{lang}", tmp_path / "out", Selection(**{"languages": LANGUAGES, "dev": 0.1, "test": 0.1, **settings})
        )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--languages", "en=", "de"], "--languages en=: write LANGUAGE or LANGUAGE=CODE, such as en=en-GB"),
        (["--languages", "en", "--paths", "en"], "--paths en: write LANGUAGE=PATH, such as en=res/values"),
        (["--languages", "en", "--paths", "en=a", "en=b"], "--paths en=b: write LANGUAGE=PATH"),
    ],
)
def test_options_are_checked(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match="^hf-multisource catalogues: " + message):
        main(["catalogues", "x", *arguments, "--out", str(tmp_path / "out")])


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    write_tree(tmp_path, {"out/x": "mine"})
    with pytest.raises(FileExistsError, match="out is not empty"):
        make(l10n(tmp_path / "l10n"), tmp_path / "out")


def test_texts_that_are_not_handled_are_counted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = "".join(f"m{i} = a {{ $n ->\n   *[a] b\n}}\n" for i in range(9))
    deep = "/".join(["folder"] * 20)
    write_tree(tmp_path, {f"en/{deep}/a.ftl": "k = v\n", f"de/{deep}/a.ftl": f"k = w\n{mixed}"})
    command = ["catalogues", f"{tmp_path}/{{lang}}", "--languages", "en", "de", "--dev", "0", "--test", "0"]
    main([*command, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "\nnot handled: de 9\n" in printed
    assert (
        printed.count("/folder/folder/a.ftl: m") == printed.count("a selector inside a text or another selector") == 5
    )
    assert "…" in printed and str(tmp_path / "de") not in printed


def test_files_that_only_have_the_name_of_a_catalogue_are_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "<!doctype html>\n<html><body>Not found &nbsp;<br></body></html>\n"
    files = {"a.ftl": "k = v\n", "b.po": page, "strings.xml": page, "index.ts": "let x = 1;\n", "d.xlf": "<y/>"}
    write_tree(tmp_path, {**{f"de/{name}": text for name, text in files.items()}, "en/a.ftl": "k = w\n"})
    write_tree(tmp_path, {"de/e\x1b.mo": "MO music", "elsewhere/f.ftl": "k = x\n"})
    (tmp_path / "en/f.ftl").symlink_to(tmp_path / "elsewhere/f.ftl")
    (tmp_path / "en/more").symlink_to(tmp_path / "elsewhere")
    command = ["catalogues", f"{tmp_path}/{{lang}}", "--languages", "en", "de", "--dev", "0", "--test", "0"]
    main([*command, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    unread = {
        "en": ["more/: a link, which is not followed", "f.ftl: a link, which is not followed"],
        "de": [
            "b.po: no line begins with msgid, so it is no file of gettext",
            "d.xlf: the root must be <xliff>; it is <y>",
            "e\x1b.mo: it begins with 4d4f206d, so it is no .mo file of gettext",
            "index.ts: it does not begin as XML",
            "strings.xml: the root must be <resources>; it is <html>",
        ],
    }
    assert rows_of(tmp_path / "out", ["en", "de"]) == {"train": [("w", "v")]}
    assert "\nfiles: en 1, de 1\nfiles that are not read: en 2, de 5\n" in f"\n{printed}"
    assert f"\nnot read, en, for example: {'; '.join(unread['en'])}\n" in printed
    assert f"\nnot read, de, for example: {'; '.join(unread['de'])}\n".replace("\x1b", r"\x1b") in printed
    assert json.loads((tmp_path / "out/counts.json").read_text("utf-8"))["not_read"] == unread


def test_a_place_with_other_files_only_is_refused_and_a_file_is_not_passed_over(tmp_path: Path) -> None:
    write_tree(tmp_path, {"en/a.po": PO.text, "de/a.po": "<html>", "dsb/a.po": PO.text})
    reason = "a.po: no line begins with msgid, so it is no file of gettext"
    with pytest.raises(ValueError, match=rf"de has no catalogue of 'de' .*; not read: {reason}$"):
        make(tmp_path / "{lang}", tmp_path / "out")
    with pytest.raises(ValueError, match=f"de/{reason}$"):
        make(tmp_path / "{lang}/a.po", tmp_path / "out")
