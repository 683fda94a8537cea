"""Texts that Android's files and gettext's headers lack, and the reasons that a person is told."""

from __future__ import annotations

from pathlib import Path

import pytest

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
