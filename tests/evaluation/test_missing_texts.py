"""Texts that files of Android and Fluent lack, and the reasons that a person is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_multisource.data.catalogue_entries import REVIEW
from hf_multisource.data.catalogue_files import fill_catalogue, read_catalogue
from hf_multisource.evaluation.localization import Places, Plan, make_plan
from hf_multisource.evaluation.missing_texts import PARTLY


def plan_of(place: Path, source: str, target: str, language: str = "pl", name: str = "strings.xml") -> Plan:
    for folder, text in (("en", source), (language, target)):
        (place / folder).mkdir()
        (place / folder / name).write_text(text, "utf-8")
    return make_plan(Places(language, {"en": place / "en"}, place / language), ["en"])


def resources(*lines: str) -> str:
    return "\n".join(["<resources>", *lines, "</resources>", ""])


def array(name: str, *items: str) -> str:
    return f'<string-array name="{name}">{"".join(f"<item>{item}</item>" for item in items)}</string-array>'


def plurals(name: str, **items: str) -> str:
    inner = "".join(f'<item quantity="{one}">{text}</item>' for one, text in items.items())
    return f'<plurals name="{name}">{inner}</plurals>'


def reasons(plan: Plan) -> dict[str, str]:
    return {f"{one.key}{one.part}": one.reason for one in plan.missing}


def test_an_array_with_fewer_items_than_the_first_source_is_refused(tmp_path: Path) -> None:
    source = resources(array("sizes", "Small", "Large", "Huge"), array("same", "A", "@string/x"), array("new", "N"))
    target = resources(array("sizes", "Mały", "Wielki"), array("same", "@string/y", "B"))
    plan = plan_of(tmp_path, source, target)
    assert reasons(plan) == {"sizes[2]": "the array has 2 items, that of the first source 3", "new[0]": ""}


@pytest.mark.parametrize(
    ("language", "own", "lacking"),
    [
        ("pl", ("one", "other"), ("few", "many")),
        ("pl", ("one", "few", "many"), ()),  # `other` is for fractions
        ("ja", ("other",), ()),
        ("szl", ("other",), ("one",)),  # CLDR has no rule: the forms of the first source
    ],
)
def test_plural_forms_that_the_language_needs_are_reported(
    tmp_path: Path, language: str, own: tuple[str, ...], lacking: tuple[str, ...]
) -> None:
    source = resources(plurals("days", one="%d day", other="%d days"))
    plan = plan_of(tmp_path, source, resources(plurals("days", **dict.fromkeys(own, "%d"))), language)
    assert reasons(plan) == {f"days[{one}]": PARTLY for one in lacking}


def test_a_reference_of_the_target_is_not_missing(tmp_path: Path) -> None:
    source = resources('<string name="a">A</string>', '<string name="b">@string/a</string>')
    assert reasons(plan_of(tmp_path, source, resources('<string name="a">@string/c</string>'))) == {}


def test_a_single_folder_of_android_makes_files_of_the_target_only(tmp_path: Path) -> None:
    for folder, keys in {"values": "abc", "values-de": "axyz", "values-de-rAT": "xy", "values-night": "a"}.items():
        (tmp_path / folder).mkdir()
        strings = [f'<string name="{key}">{folder}</string>' for key in keys]
        (tmp_path / folder / "strings.xml").write_text(resources(*strings), "utf-8")
    plan = make_plan(Places("szl", {"en": tmp_path}), ["en"])
    found = {file.path: [one.sources["en"] for one in file.missing] for file in plan.files}
    assert found == {
        "values-szl-night/strings.xml": ["values-night"],
        "values-szl/strings.xml": ["values"] * 3,
    }
    assert [one.partition(":")[0] for one in plan.unread["en"]] == [
        "values-de/strings.xml",
        "values-de-rAT/strings.xml",
    ]


def test_an_android_file_of_the_target_keeps_its_folder(tmp_path: Path) -> None:
    source, target = (resources(f'<string name="{name}">A</string>') for name in "ab")
    for folder, text in {"en/values": source, "en/values-night": source, "szl/values": target}.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "strings.xml").write_text(text, "utf-8")
    plan = make_plan(Places("szl", {"en": tmp_path / "en"}, tmp_path / "szl"), ["en"])
    assert [(file.path, file.kept, len(file.missing)) for file in plan.files] == [
        ("values-szl-night/strings.xml", 0, 1),
        ("values/strings.xml", 1, 1),
    ]


def test_a_header_with_too_few_plural_forms_is_to_be_corrected(tmp_path: Path) -> None:
    forms = "".join(f'msgstr[{i}] ""\n' for i in range(3))
    head = 'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=n!=1;\\n"\n\n'
    content = f'{head}msgid "%d tab"\nmsgid_plural "%d tabs"\n{forms}'
    plan = plan_of(tmp_path, content, content, "dsb", "a.po")
    found = reasons(plan)
    assert set(found) == {"%d tab[0]", "%d tab[1]", "%d tab[2]"}
    for reason in found.values():
        assert reason.startswith(
            "the message has more plural forms than the header of the file, which has 2: correct the line Plural-Forms "
            "in the header; for dsb it may be: Plural-Forms: nplurals=4; plural=("
        )


def test_a_target_whose_files_no_source_has_is_named(tmp_path: Path) -> None:
    for folder in ("values", "values-szl"):
        (tmp_path / "res" / folder).mkdir(parents=True)
        (tmp_path / "res" / folder / "strings.xml").write_text(resources('<string name="a">A</string>'), "utf-8")
    places = Places("szl", {"en": tmp_path / "res"}, tmp_path / "res" / "values-szl")
    (line,) = make_plan(places, ["en"]).unread["szl"]
    assert line.startswith("strings.xml: no source has a file of this path; name folders in which")
    fitting = Places("szl", {"en": tmp_path / "res"}, tmp_path / "res")
    assert make_plan(fitting, ["en"]).unread.get("szl", ()) == ()


# Selectors of Fluent

KART = "tabs = { $n ->\n    [one] { $n } karta\n    [few] { $n } karty\n   *[many] { $n } kart\n}\n"
KARET = "tabs = { $n ->\n    [one] { $n } karta\n    [few] { $n } karty\n   *[other] { $n } karet\n}\n"
ORDINALS = """\
place = { NUMBER($n, type: "ordinal") ->
    [one] { $n }st
    [two] { $n }nd
    [few] { $n }rd
   *[other] { $n }th
}
"""


def fluent_variants(place: Path, target: str, **sources: str) -> dict[str, str]:
    """Fill an empty Fluent file with the texts of the first source: variant, with `*` if it is the default -> text."""
    for folder, text in {**sources, target: "x = x\n"}.items():
        (place / folder).mkdir()
        (place / folder / "a.ftl").write_text(text, "utf-8")
    (file,) = make_plan(Places(target, {name: place / name for name in sources}, place / target), [*sources]).files
    texts = {one.identity: next(iter(one.sources.values())) for one in file.missing}
    filled = fill_catalogue(file.catalogue, texts, file.reference)
    assert filled.refused == {}
    lines = (line.strip().partition("] ") for line in filled.content.decode().split("\n") if "] " in line)
    return {name.replace("[", ""): text for name, _, text in lines}


@pytest.mark.parametrize(
    ("target", "sources", "variants"),
    [
        ("dsb", {"pl": KART, "cs": KARET}, "one two few *other"),
        ("dsb", {"pl": KART}, "one two few *other"),
        ("kk", {"ru": KART}, "one *other"),
        ("uk", {"ru": KART}, "one few *many other"),
        ("ja", {"pl": KART}, "*other"),
        ("szl", {"pl": KART}, "one few *many"),  # CLDR has no rule
    ],
)
def test_plurals_whose_default_is_many_get_the_categories_of_the_target(
    tmp_path: Path, target: str, sources: dict[str, str], variants: str
) -> None:
    found = fluent_variants(tmp_path, target, **sources)
    assert " ".join(found) == variants
    assert found.get("*other", "{ $n } kart") == "{ $n } kart"


def test_a_category_without_a_source_form_is_filled_from_the_default_variant(tmp_path: Path) -> None:
    text = "tabs = { $n ->\n   *[many] { $n } kart\n    [one] { $n } karta\n    [few] { $n } karty\n}\n"
    assert fluent_variants(tmp_path, "kk", pl=text) == {"one": "{ $n } karta", "*other": "{ $n } kart"}


@pytest.mark.parametrize(
    ("target", "variants"),
    [
        ("ca", {"one": "{ $n }st", "two": "{ $n }nd", "few": "{ $n }rd", "*other": "{ $n }th"}),
        ("sv", {"one": "{ $n }st", "*other": "{ $n }th"}),
        ("dsb", {"*other": "{ $n }th"}),
        ("szl", {"one": "{ $n }st", "two": "{ $n }nd", "few": "{ $n }rd", "*other": "{ $n }th"}),  # CLDR has no rule
    ],
)
def test_ordinal_numbers_get_the_ordinal_categories_of_the_target(
    tmp_path: Path, target: str, variants: dict[str, str]
) -> None:
    assert fluent_variants(tmp_path, target, en=ORDINALS) == variants


@pytest.mark.parametrize(
    ("selector", "variants"),
    [
        ("$n", "one two few *other"),
        ("NUMBER($n)", "one two few *other"),
        ("NUMBER($n, minimumFractionDigits: 1)", "one two few *other"),
        ('NUMBER($n, type: "cardinal")', "one two few *other"),
        ("PLATFORM()", "*other"),
        ('DATETIME($n, month: "long")', "*other"),
        ("-brand.gender", "*other"),
    ],
)
def test_only_selectors_of_numbers_get_plural_categories(tmp_path: Path, selector: str, variants: str) -> None:
    found = fluent_variants(tmp_path, "dsb", en=f"a = {{ {selector} ->\n   *[other] Options\n}}\n")
    assert " ".join(found) == variants


def test_attributes_of_terms_belong_to_their_language(tmp_path: Path) -> None:
    terms = "-brand = Firefox\n    .gender = masculine\n-account = Konto\n    .gender = neuter\n"
    for folder, text in (("de", f"{terms}open = A\n    .label = L\n"), ("dsb", "-brand = Firefox\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.ftl").write_text(text, "utf-8")
    plan = make_plan(Places("dsb", {"de": tmp_path / "de"}, tmp_path / "dsb"), ["de"])
    assert reasons(plan) == {"-account": "", "open": "", "open.label": ""}
    (file,) = plan.files
    filled = fill_catalogue(file.catalogue, {("-account", ""): "Konto"}, file.reference)
    assert filled.content.decode() == f"-brand = Firefox\n# {REVIEW}\n-account = Konto\n"


def test_a_singular_without_the_number_of_the_message_is_replaced_by_the_general_form(tmp_path: Path) -> None:
    def qt(language: str, *forms: str) -> str:
        inner = "".join(f"<numerusform>{form}</numerusform>" for form in forms)
        state = "" if any(forms) else ' type="unfinished"'
        message = f"<source>%n day(s)</source><translation{state}>{inner}</translation>"
        context = f'<context><name>A</name><message numerus="yes">{message}</message></context>'
        return f'<TS language="{language}" sourcelanguage="en">{context}</TS>'

    (tmp_path / "de.ts").write_text(qt("de", "Ein Tag", "%n Tage"), "utf-8")
    (tmp_path / "pl.ts").write_text(qt("pl", "", "", ""), "utf-8")
    plan = make_plan(Places("pl", {"de": tmp_path / "de.ts"}, tmp_path / "pl.ts"), ["de"])
    assert [(one.part, one.read, one.reason) for one in plan.missing] == [
        (f"[{i}]", {"de": "%n Tage"}, "") for i in range(3)
    ]
    with_english = make_plan(Places("pl", {"de": tmp_path / "de.ts"}, tmp_path / "pl.ts"), ["de", "en"])
    assert next(with_english.missing).sources == {"de": "Ein Tag", "en": "%n day(s)"}


@pytest.mark.parametrize(
    ("name", "text", "refused"),
    [
        ("a.properties", "a=One\nb=Two\na=Three\nc=Four\nc=Five\n", {"a": "", "c": ""}),
        ("a.ftl", "a = One\nb = Two\na = Three\n    .x = y\nc = Four\nc = Five\n", {"a": "", "a.x": "", "c": ""}),
        ("a.dtd", '<!ENTITY a "One"><!ENTITY b "Two"><!ENTITY a "Three">', {"a": ""}),
    ],
)
def test_keys_that_the_first_source_repeats_are_refused(
    tmp_path: Path, name: str, text: str, refused: dict[str, str]
) -> None:
    target = {"a.properties": "c=C\n", "a.ftl": "c = C\n", "a.dtd": '<!ENTITY c "C">'}[name]
    found = reasons(plan_of(tmp_path, text, target, "dsb", name))
    reason = "the file of the first source has 2 entries with this key, and which one is meant is not known"
    assert found == {**dict.fromkeys([one for one in refused if one != "c"], reason), "b": ""}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.properties", "a=One\nb=Two\na=One\n"),
        ("a.ftl", "a = One\nb = Two\na = One\n"),
        ("a.dtd", '<!ENTITY a "One"><!ENTITY b "Two"><!ENTITY a "One">'),
    ],
)
def test_keys_that_the_first_source_repeats_with_the_same_text_are_filled(tmp_path: Path, name: str, text: str) -> None:
    plan = plan_of(tmp_path, text, "", "dsb", name)
    assert reasons(plan) == {"a": "", "b": ""}
    file = plan.files[0]
    filled = fill_catalogue(file.catalogue, {("a", ""): "x", ("b", ""): "y"}, file.reference)
    assert [(one.key, one.text) for one in read_catalogue(name, filled.content).entries] == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize("other", ["One", "Two"])
def test_strings_of_several_products_are_refused(tmp_path: Path, other: str) -> None:
    products = [f'<string name="a" product="{key}">{text}</string>' for key, text in (("tablet", "One"), ("x", other))]
    found = reasons(plan_of(tmp_path, resources(*products), resources(), "dsb"))
    assert found == {
        "a": "the file of the first source has 2 entries with this key, and which one is meant is not known"
    }
