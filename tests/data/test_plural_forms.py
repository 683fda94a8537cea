"""Plural rules of CLDR, formulas of gettext, and texts whose plural forms are aligned by category."""

from __future__ import annotations

import gettext
import sys

import pytest

from hf_multisource.data.catalogue_files import read_catalogue
from hf_multisource.data.catalogue_views import is_language, messages_of, view_of
from hf_multisource.data.plural_forms import QT_FORMULAS, forms_of_header, plural_rule, qt_formula

NUMBERS = [*range(220), 1000]


@pytest.mark.parametrize(
    ("language", "categories", "variants"),
    [
        ("dsb", "one two few other", "one two few other"),
        ("cs", "one few other", "one few other"),
        ("pl", "one few many", "one few many other"),
        ("ja", "other", "other"),
        ("pt_BR", "one other", "one other"),
        ("ar", "zero one two few many other", "zero one two few many other"),
    ],
)
def test_the_categories_of_whole_numbers_and_of_selectors(language: str, categories: str, variants: str) -> None:
    rule = plural_rule(language)
    assert rule is not None
    assert " ".join(rule.categories) == categories
    assert " ".join(rule.variants) == variants


@pytest.mark.parametrize(
    ("language", "repeated"),
    [("en", "other"), ("fr", "other"), ("cs", "few other"), ("dsb", "one two few other"), ("lv", "zero one other")],
)
def test_categories_of_several_numbers_are_known(language: str, repeated: str) -> None:
    rule = plural_rule(language)
    assert rule is not None
    assert " ".join(rule.repeated) == repeated


@pytest.mark.parametrize(
    "language", ["dsb", "hsb", "cs", "pl", "ru", "sr@latin", "lv", "lt", "ga", "cy", "br", "ar", "he", "is", "mk", "ja"]
)
def test_the_formula_gives_the_form_with_the_category_of_the_number(language: str) -> None:
    rule = plural_rule(language)
    assert rule is not None
    number, formula = rule.formula.removesuffix(";").split("; plural=")
    form_of = gettext.c2py(formula)
    assert number == f"nplurals={len(rule.categories)}"
    assert [rule.categories[form_of(n)] for n in NUMBERS] == [rule.category(n) for n in NUMBERS]
    assert forms_of_header(f"Language: x\nPlural-Forms: {rule.formula}\n", rule) == rule.categories


@pytest.mark.parametrize(
    ("header", "forms"),
    [
        ("Plural-Forms: nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;\n", ("one", "few", "other")),
        ("Plural-Forms: nplurals=3; plural=(n>4 || n==0) ? 0 : (n==1) ? 2 : 1\n", ("other", "few", "one")),
        ("Plural-Forms: nplurals=1; plural=0;\n", ("other",)),
        ("Plural-Forms: nplurals=2; plural=n==1 ? 0 : 2;\n", None),  # there is no form 2
        ("Plural-Forms: nplurals=2; plural=n % 0;\n", None),
        ("Plural-Forms: nplurals=2; plural=__import__('os');\n", None),
        ("Plural-Forms: nplurals=2; plural=" + "(" * 500 + "n;\n", None),
        ("Language: cs\n", None),
    ],
)
def test_the_categories_of_the_forms_of_a_file(header: str, forms: tuple[str, ...] | None) -> None:
    rule = plural_rule("cs")
    assert rule is not None
    assert forms_of_header(header, rule) == forms


@pytest.mark.parametrize(
    ("language", "formula", "forms"),
    [
        ("cy", "nplurals=4; plural=(n==1) ? 0 : (n==2) ? 1 : (n != 8 && n != 11) ? 2 : 3;", "one two other other"),
        ("br", "nplurals=2; plural=(n > 1);", "one other"),
        ("fil", "nplurals=2; plural=(n > 1);", "one other"),
        ("lv", "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);", "one other zero"),
    ],
)
def test_a_form_has_the_category_of_many_of_its_numbers(language: str, formula: str, forms: str) -> None:
    rule = plural_rule(language)
    assert rule is not None
    assert forms_of_header(f"Language: x\nPlural-Forms: {formula}\n", rule) == tuple(forms.split())


def test_a_language_that_cldr_does_not_know_has_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plural_rule("xx") is None
    assert plural_rule("") is None
    assert plural_rule("de-XX") == plural_rule("de-XX") is not None
    plural_rule.cache_clear()
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(ImportError, match=r'babel: run pip install "\.\[localization\]" in a clone'):
        plural_rule("de")


ONE_OR_MORE, POLISH = (
    "nplurals=2; plural=n>1;",
    "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2);",
)


@pytest.mark.parametrize(
    ("language", "formula", "categories", "same_as"),
    [
        ("oc", ONE_OR_MORE, "one other", "fr"),
        ("oc_FR", "nplurals=2; plural=(n != 1);", "one other", "en"),
        ("szl", POLISH, "one few many", "pl"),
        ("xx", "nplurals=1; plural=0;", "other", "ja"),
        ("xx", "nplurals=2; plural=(n == 1 ? 1 : 0);", "one other", "en"),  # the order of the forms is another one
        ("oc", "nplurals=2; plural=n==7;", None, ""),  # no language has these forms
        ("oc", "nplurals=2; plural=n==1 ? 0 : 2;", None, ""),
        ("oc", "", None, ""),
        ("de", "nplurals=1; plural=0;", "one other", "en"),  # CLDR comes first
    ],
)
def test_a_language_without_a_rule_has_that_of_a_language_with_the_same_formula(
    language: str, formula: str, categories: str | None, same_as: str
) -> None:
    rule = plural_rule(language, f"Language: x\nPlural-Forms: {formula}\n")
    if categories is None:
        assert rule is None
    else:
        assert rule is not None
        other = plural_rule(same_as)
        assert other is not None
        assert (rule.language, " ".join(rule.categories)) == (language[:3].strip("_"), categories)
        assert [*map(rule.category, NUMBERS)] == [*map(other.category, NUMBERS)]


def test_the_forms_of_a_language_that_cldr_has_without_a_rule_are_told_by_its_file() -> None:
    text = 'msgid ""\nmsgstr "Plural-Forms: {}\\n"\n\nmsgid "tab"\nmsgid_plural "tabs"\nmsgstr[0] "a"\nmsgstr[1] "b"\n'
    found = view_of(read_catalogue("oc.po", text.format(ONE_OR_MORE).encode()), "oc")
    assert {part: entry.text for part, entry in found.entries["tab"].items()} == {"[one]": "a", "[other]": "b"}
    assert found.rule is not None and found.rule.category(0) == "one"


CZECH = """\
msgid ""
msgstr "Plural-Forms: nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;\\n"

msgid "%d tab"
msgid_plural "%d tabs"
msgstr[0] "%d panel"
msgstr[1] "%d panely"
msgstr[2] "%d panelů"

msgid "open"
msgstr "otevřít"
"""


def test_forms_are_found_by_category_and_else_by_the_form_other() -> None:
    view = view_of(read_catalogue("cs.po", CZECH.encode()), "cs")
    found = {part: entry and entry.text for part in ("[one]", "[two]", "[few]", "[many]", "[other]", "[2]", "")
             for entry in [view.find("%d tab", part)]}  # fmt: skip
    assert found == {
        **{"[one]": "%d panel", "[few]": "%d panely", "[2]": "%d panely"},
        **dict.fromkeys(("[two]", "[many]", "[other]", ""), "%d panelů"),
    }
    assert (entry := view.find("open", "[few]")) is not None
    assert entry.text == "otevřít"
    assert view.find("absent", "") is None


@pytest.mark.parametrize(
    ("language", "forms"),
    [
        ("de", "one other"),
        ("cs", "one few other"),
        ("ru", "one few many"),
        ("pt_BR", "one other"),
        ("lv", "one other zero"),
        ("lv_LV", "one other zero"),
        ("lt", "one few other"),
        ("mk", "one other other"),
        ("ga", "one two other"),
        ("gd", "one two few other"),
        ("mt", "one few many other"),
        ("sl", "one two few other"),
        ("cy", "zero one two many other"),
        ("ar", "zero one two few many other"),
        ("he", "one other"),
        ("br", "one other"),
        ("fil", "one other"),
        ("is", "one other"),
        ("tr", "other"),
        ("ja", "other"),
        ("dsb", "other"),
        ("dsb", "one two few other"),  # other tools write the forms of CLDR
        ("ga", "one two few many other"),
        ("dsb", None),  # neither Qt nor CLDR has three forms
        ("cs", None),
        ("ksh", None),
    ],
)
def test_the_forms_of_qt_are_those_of_its_tools(language: str, forms: str | None) -> None:
    number = len(forms.split()) if forms else {"dsb": 3, "cs": 1, "ksh": 3}[language]
    text = "<TS><message numerus='yes' id='a'><source>%n</source><translation>{}</translation></message></TS>"
    content = text.format("".join(f"<numerusform>{i}</numerusform>" for i in range(number))).encode()
    found = view_of(read_catalogue("a.ts", content), language).entries["a"]
    expected = dict[str, str]()
    for i, form in enumerate(forms.split() if forms else map(str, range(number))):
        expected.setdefault(f"[{form}]", str(i))
    assert {part: entry.text for part, entry in found.items()} == expected


# The rules that `lrelease` 5.15 writes into a .qm file: for each form but the last, tests of "n" or of "n" modulo 10 or
# 100 (16, 32 in the low byte), negated (8), by = (1), < (2), <= (3) or between (4), joined by and (253) and or (254).
COMPILED_RULES = {
    "de": "0101", "fr": "0301", "is": "1101fd290b", "ro": "0101ff0100fe240113", "ga": "0101ff0102",
    "cs": "0101ff040204", "pl": "0101ff140204fd2c0a13", "lv": "1101fd290bff0900",
    "ru": "1101fd290bff140204fd2c0a13", "pt_BR": "0301", "lt": "1101fd290bff1900fd2c0a13", "mk": "1101ff1102",
    "gd": "0101fe010bff0102fe010cff040313", "cs_CZ": "0101ff040204", "mt": "0101ff0100fe24010aff240b13",
    "sl": "2101ff2102ff240304", "cy": "0100ff0101ff040205ff0106", "dsb": "",
    "ar": "0100ff0101ff0102ff24030aff2a0b", "tr": "", "pt": "0101", "pt-PT": "0101",
    "hr": "1101fd290bff140204fd2c0a13",
}  # fmt: skip


def compiled_form(rules: bytes, number: int) -> int:
    """The form that the rules of a .qm file give a number, by their byte code."""
    form, place, met, joined = 0, 0, True, 253
    while place < len(rules):
        if (code := rules[place]) >= 253:
            place += 1
            if code < 255:
                joined = code
                continue
            if met:
                return form
            form, met, joined = form + 1, True, 253
            continue
        value = number % 10 if code & 16 else number % 100 if code & 32 else number
        low, high = rules[place + 1], rules[place + 2] if code & 7 == 4 else 0
        test = (value == low, value < low, value <= low, low <= value <= high)[(code & 7) - 1] != bool(code & 8)
        met = (met and test) if joined == 253 else (met or test)
        place += 3 if code & 7 == 4 else 2
    return form if met or not rules else form + 1


@pytest.mark.parametrize("language", COMPILED_RULES)
def test_the_formula_of_qt_is_the_rule_that_its_tools_compile(language: str) -> None:
    rules = bytes.fromhex(COMPILED_RULES[language])
    number, formula = qt_formula(language).removesuffix(";").split("; plural=")
    form_of = gettext.c2py(formula)
    assert int(number.removeprefix("nplurals=")) == (rules.count(255) + 2 if rules else 1)
    assert [form_of(n) for n in NUMBERS] == [compiled_form(rules, n) for n in NUMBERS]


def test_no_language_has_two_formulas_of_qt() -> None:
    names = " ".join(QT_FORMULAS.values()).split()
    assert len(names) == len({*names})


def test_of_an_array_no_item_stands_for_another_one() -> None:
    text = '<resources><string-array name="days"><item>Mo</item></string-array></resources>'
    view = view_of(read_catalogue("strings.xml", text.encode()), "de")
    assert view.find("days", "[0]") is not None
    assert view.find("days", "[1]") is None


@pytest.mark.parametrize(
    ("named", "code", "same"),
    [
        *[(named, code, True) for named, code in (("nb", "no"), ("iw", "he"), ("in", "id"), ("no_NO", "nb-NO"))],
        *[(named, code, True) for named, code in (("sr@latin", "sr"), ("ca@valencia", "ca"), ("de_DE.UTF-8", "de"))],
        *[(named, code, True) for named, code in (("zh-Hant", "zh_TW"), ("DSB-de", "dsb"), (None, "dsb"))],
        *[(named, code, False) for named, code in (("nn", "nb"), ("de", "dsb"), ("hsb", "dsb"), ("i", "id"))],
    ],
)
def test_codes_of_a_language_are_the_same_up_to_territory_and_modifier(
    named: str | None, code: str, same: bool
) -> None:
    assert is_language(named, code) is same
    assert named is None or is_language(code, named) is same


def test_messages_of_the_source_language_are_in_files_of_other_languages() -> None:
    catalogue = read_catalogue("cs.po", CZECH.encode())
    found = messages_of([catalogue], "en")
    assert {part: entry.text for part, entry in found["%d tab"].items()} == {"[one]": "%d tab", "[other]": "%d tabs"}
    qt = '<TS sourcelanguage="en_US"><message id="a"><source>A</source><translation>B</translation></message></TS>'
    english = [read_catalogue("a.ts", qt.encode())]
    assert messages_of(english, "en").keys() == messages_of(english, "en-GB").keys() == {"a"}
    assert messages_of(english, "de") == {}
