"""What filling the catalogues of a language must not do: replace, lose or overwrite what is there."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hf_multisource.cli import localize as command
from hf_multisource.cli.app import main
from hf_multisource.data.catalogue_entries import DAMAGED, ambiguous
from hf_multisource.data.catalogue_files import fill_catalogue, read_catalogue
from hf_multisource.data.catalogue_places import read_place
from hf_multisource.evaluation import localization_run
from hf_multisource.evaluation.localization import Places, Plan, make_plan
from hf_multisource.evaluation.localization_answers import Options
from hf_multisource.evaluation.localization_report import describe_counts, preview
from hf_multisource.evaluation.localization_run import localize
from kills import Killed
from quoting_translator import QuotingTranslator


def write(place: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, "utf-8")


def plan_of(place: Path, files: Mapping[str, str], spoken: Sequence[str] = ("en", "de"), **changes: Any) -> Plan:
    """The plan for places named after languages, of which `dsb` is the target."""
    write(place, files)
    found = {one.stem: one for one in sorted(place.iterdir()) if one.stem in ("en", "de", "dsb")}
    target = found.pop("dsb", None)
    return make_plan(Places(**{"target": "dsb", "sources": found, "target_path": target, **changes}), spoken)


def everything(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def run(plan: Plan, out: Path, kill_at: int = 0) -> None:
    localize(plan, out, {"x": 1}, lambda: (QuotingTranslator(kill_at=kill_at), None), Options())


ENGLISH = {"en/a.properties": "a=Text one\nb=Text two\n"}


def test_a_key_that_occurs_several_times_is_refused_before_a_model_is_asked(tmp_path: Path) -> None:
    unit = '<trans-unit id="a"><source>A</source>{}</trans-unit>'
    text = '<xliff version="1.2"><file source-language="en"><body>{}</body></file></xliff>'
    translated = text.format(unit.format("<target>HUMAN</target>") + unit.format(""))
    plan = plan_of(tmp_path, {"de.xlf": text.format(unit.format("<target>D</target>")), "dsb.xlf": translated})
    assert [one.reason for one in plan.missing] == [ambiguous(2)]


def test_a_work_folder_of_somebody_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "in", ENGLISH)
    write(tmp_path, {"out.work/notes.txt": "mine", "out.work/translations.jsonl": "mine"})
    before = everything(tmp_path)
    with pytest.raises(
        FileExistsError, match=r"out\.work exists and has notes\.txt, which is not written by this command"
    ):
        run(plan, tmp_path / "out")
    assert everything(tmp_path) == before
    (tmp_path / "out.work/notes.txt").unlink()
    (tmp_path / "out.work/translations.jsonl").unlink()
    run(plan, tmp_path / "out")
    assert not (tmp_path / "out.work").exists()
    write(tmp_path, {"out.work/notes.txt": "mine"})
    with pytest.raises(FileExistsError, match=r"out\.work exists and has notes\.txt"):
        run(plan, tmp_path / "out")
    assert (tmp_path / "out.work/notes.txt").read_text() == "mine"


def test_what_is_put_into_the_work_folder_during_the_work_stays(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "in", ENGLISH)

    def put(text: str) -> str:
        write(tmp_path, {"out.work/notes.txt": "mine"})
        return f"«{text}»"

    localize(plan, tmp_path / "out", {}, lambda: (QuotingTranslator(change=put), None), Options())
    assert everything(tmp_path / "out.work") == {"notes.txt": b"mine"}
    assert (tmp_path / "out/a.properties").exists()


def test_a_journal_of_other_texts_is_named_though_all_settings_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may read other texts from the same files."""
    monkeypatch.setattr(localization_run, "WINDOW", 1)
    with pytest.raises(Killed):
        run(plan_of(tmp_path / "in", ENGLISH), tmp_path / "out", kill_at=2)
    other = plan_of(tmp_path / "other", {"en/a.properties": "a=Text three\nb=Text two\n"})
    with pytest.raises(ValueError, match="out was begun with other settings: the contents of requests have changed"):
        run(other, tmp_path / "out")
    run(plan_of(tmp_path / "in", {}), tmp_path / "out")
    assert "\\u00abText one\\u00bb" in (tmp_path / "out/a.properties").read_text("utf-8")


def test_a_full_disk_names_the_output_and_the_work_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path / "in", ENGLISH)

    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"No space left on device: '.*out'"):
        patch.setattr(Path, "write_bytes", full)
        run(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    run(plan, tmp_path / "out")
    assert "Text one" in (tmp_path / "out/a.properties").read_text("utf-8")


# The page for reviewers


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line without `--review`; a translator stands in place of the run."""
    monkeypatch.setattr(command, "source_options", lambda run: ["en", "de"])
    monkeypatch.setattr(command, "load_run", lambda *_: command.Loaded(QuotingTranslator(), None, 5, {}))
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        {**ENGLISH, "dsb/b.properties": "b=B\n", "notes.html": "<html>mine", "de.po": 'msgid "a"\nmsgstr ""\n'},
    )
    return ["localize", "run", "--target", "dsb=dsb", "--source", "en=en", "--out", "out"]


@pytest.mark.parametrize(
    ("review", "reason"),
    [
        ("out.json", "is what --out writes"),
        ("out/review.html", "is what --out writes"),
        ("out.work/review.html", "is what --out writes"),
        ("en/review.html", "is in en, where the catalogues of 'en' are"),
        ("dsb/new/review.html", "is in dsb, where the catalogues of 'dsb' are"),
        ("notes.html", "exists, and is no review page of this command"),
        ("de.po", "exists, and is no review page of this command"),
        ("en", "is in en"),
        (".", "is a folder"),
    ],
)
def test_a_review_page_replaces_nothing(line: list[str], review: str, reason: str, tmp_path: Path) -> None:
    before = everything(tmp_path)
    with pytest.raises(SystemExit, match=f"--review {review} {reason}".replace(".", r"\.")):
        main([*line, "--review", review])
    assert everything(tmp_path) == before
    main(line)
    with pytest.raises(SystemExit, match=f"--review {review} {reason}".replace(".", r"\.")):
        main([*line, "--review", review])


def test_a_review_page_is_written_into_a_new_folder_and_replaces_an_older_one(line: list[str], tmp_path: Path) -> None:
    main([*line, "--review", "new/review.html"])
    page = (tmp_path / "new/review.html").read_bytes()
    main([*line, "--review", "new/review.html"])
    assert (tmp_path / "new/review.html").read_bytes() == page


# What cannot be read


def test_a_link_in_the_place_of_the_target_is_named_and_its_file_is_not_made_anew(tmp_path: Path) -> None:
    write(tmp_path, {"elsewhere/a.properties": "a=HUMAN\n", "elsewhere/more/c.properties": "c=HUMAN\n"})
    write(
        tmp_path / "in", {**ENGLISH, "en/more/c.properties": "c=Text\n", "en/d.properties": "d=Text\n", "dsb/b.txt": ""}
    )
    (tmp_path / "in/dsb/a.properties").symlink_to(tmp_path / "elsewhere/a.properties")
    (tmp_path / "in/dsb/more").symlink_to(tmp_path / "elsewhere/more")
    (tmp_path / "in/dsb/other.txt").symlink_to(tmp_path / "elsewhere/a.properties")
    (tmp_path / "in/de").mkdir()
    write(tmp_path / "in", {"de/d.properties": "d=Text\n"})
    (tmp_path / "in/de/a.properties").symlink_to(tmp_path / "elsewhere/a.properties")
    write(tmp_path / "in", {"dsb/e.properties": "e=E\n"})
    plan = plan_of(tmp_path / "in", {})
    assert [file.path for file in plan.files] == ["d.properties", "e.properties"]
    table = describe_counts(preview(plan)).splitlines()
    assert (
        "not read of 'dsb', 2: more/: a link, which is not followed; a.properties: a link, which is not followed"
        in table
    )
    assert "not read of 'de', 1: a.properties: a link, which is not followed" in table
    assert not [line for line in table if "other.txt" in line]


XLIFF = '<xliff version="1.2">{}</xliff>'
XLIFF_FILE = '<file original="{}" source-language="en"{}><trans-unit id="1"><source>Text</source>{}</trans-unit></file>'
QT_MESSAGE = '<message><source>Text</source><translation type="unfinished"/></message>'
QT = f"<TS{{}}><context><name>A</name>{QT_MESSAGE}</context></TS>"


@pytest.mark.parametrize("named", ["fr", "de_DE", "d", "dsb", "DSB_de", None])
def test_a_file_that_names_another_language_is_named(named: str | None, tmp_path: Path) -> None:
    write(tmp_path, {"en/c.properties": "c=Text\n"})
    files = {
        "a.xlf": XLIFF.format(XLIFF_FILE.format("a", f' target-language="{named}"' if named else "", "")),
        "b.ts": QT.format(f' language="{named}"' if named else ""),
    }
    plan = plan_of(tmp_path, {f"dsb/{name}": text for name, text in files.items()})
    remark = f"the file names the language {named!r}, and the target is 'dsb'"
    warned = [line for line in describe_counts(preview(plan)).splitlines() if line.startswith("warnings")]
    other = named in ("fr", "de_DE", "d")
    assert warned == ([f"warnings, 2: a.xlf: {remark}; b.ts: {remark}"] if other else [])


def test_an_xliff_file_without_the_target_language_gets_it(tmp_path: Path) -> None:
    text = (
        '<xliff version="2.0" srcLang="en"><file id="f"><unit id="1"><segment><source>Text</source></segment></unit>'
        "</file></xliff>"
    )
    plan = plan_of(tmp_path, {"en/c.properties": "c=Text\n", "dsb/a.xlf": text})
    run(plan, tmp_path / "out")
    assert b'<xliff version="2.0" srcLang="en" trgLang="dsb">' in (tmp_path / "out/a.xlf").read_bytes()


def test_units_of_xliff_files_are_found_whatever_the_number_of_their_files(tmp_path: Path) -> None:
    german = XLIFF.format(XLIFF_FILE.format("b", "", "<target>Wort</target>"))
    sorbian = XLIFF.format("".join(XLIFF_FILE.format(one, "", "") for one in "bc"))
    plan = plan_of(tmp_path, {"de/a.xlf": german, "dsb/a.xlf": sorbian}, spoken=["de"])
    assert {one.key: dict(one.sources) for one in plan.missing} == {"b\x041": {"de": "Wort"}, "c\x041": {}}
    assert "refused, 1: no source has a text, for example a.xlf: c | 1" in describe_counts(preview(plan))


def test_an_xliff_file_of_one_file_finds_its_units_in_documents_of_several_files(tmp_path: Path) -> None:
    german = XLIFF.format("".join(XLIFF_FILE.format(one, "", f"<target>{one}</target>") for one in "bc"))
    plan = plan_of(tmp_path, {"de/a.xlf": german, "dsb/a.xlf": XLIFF.format(XLIFF_FILE.format("c", "", ""))}, ["de"])
    assert {one.key: dict(one.sources) for one in plan.missing} == {"1": {"de": "c"}}


def test_units_of_xliff_files_are_found_if_each_file_names_the_file_that_it_was_converted_from(tmp_path: Path) -> None:
    german = XLIFF.format(XLIFF_FILE.format("de.po", "", "<target>Wort</target>"))
    plan = plan_of(tmp_path, {"de.xlf": german, "dsb.xlf": XLIFF.format(XLIFF_FILE.format("dsb.po", "", ""))}, ["de"])
    assert {one.key: dict(one.sources) for one in plan.missing} == {"1": {"de": "Wort"}}


def test_a_message_with_an_error_is_not_missing_and_no_second_one_is_written(tmp_path: Path) -> None:
    english = "a = Text one\n    .label = L\nb = Text two\nc = Text three\nd = Text four\n"
    own = "a = HUMAN {\nb = HUMAN\n    .label =\n-c = { $x\nd = { $x }\n"
    plan = plan_of(tmp_path, {"en/a.ftl": english, "dsb/a.ftl": own})
    reasons = {f"{one.key}{one.part}": one.reason for one in plan.missing}
    assert reasons == {**dict.fromkeys(("a", "a.label", "b"), DAMAGED), "c": ""}
    unread = [line for line in describe_counts(preview(plan)).splitlines() if line.startswith("not read of 'dsb', 3: ")]
    assert "a.ftl: line 1: not Fluent" in unread[0]
    catalogue = read_catalogue("a.ftl", own.encode())
    filled = fill_catalogue(catalogue, {("a", ""): "MACHINE", ("b", ".label"): "MACHINE"})
    assert filled.content == own.encode()
    assert set(filled.refused.values()) == {DAMAGED}


def test_a_property_with_half_a_character_is_not_missing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {**ENGLISH, "dsb/a.properties": "a=\\ud83d\n"})
    assert {one.key: one.reason for one in plan.missing} == {"a": DAMAGED, "b": ""}


def test_files_that_are_named_like_catalogues_are_named_and_the_others_are_filled(tmp_path: Path) -> None:
    po = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "a"\nmsgstr "A"\n'
    mo = struct.pack("<7I", 0x950412DE, 0, 0, 28, 28, 0, 0)
    files = {"a.po": po, "index.ts": 'export const x = "y";\n', "strings-config.xml": "<config/>", "b.ts": "<x/>"}
    write(
        tmp_path,
        {f"en/{name}": text for name, text in {**files, **{"c.properties": "c=Text\n", "d.xlf": "<y/>"}}.items()},
    )
    (tmp_path / "en/a.mo").write_bytes(mo)
    (tmp_path / "en/alone.mo").write_bytes(mo)
    plan = plan_of(tmp_path, {"dsb/a.po": po, "dsb/index.ts": "let x = 1;\n"})
    assert [file.path for file in plan.files] == ["a.po", "alone.po", "c.properties"]
    assert sorted(plan.unread["en"]) == [
        "a.mo: it is made from a.po, which is read",
        "b.ts: the root must be <TS>; it is <x>",
        "d.xlf: the root must be <xliff>; it is <y>",
        "index.ts: it does not begin as XML",
        "strings-config.xml: the root must be <resources>; it is <config>",
    ]
    assert plan.unread["dsb"] == ("index.ts: it does not begin as XML",)
    with pytest.raises(ValueError, match=r"index\.ts: it does not begin as XML"):
        make_plan(Places("dsb", {"en": tmp_path / "en/index.ts"}), ["en"])


# Names of files


def test_a_file_whose_name_is_not_utf_8_is_named_and_the_others_are_filled(tmp_path: Path) -> None:
    write(tmp_path, ENGLISH)
    (tmp_path / "en" / os.fsdecode(b"b\xff.properties")).write_text("b=B\n")
    plan = plan_of(tmp_path, {"dsb/c.properties": "c=C\n"})
    assert plan.unread["en"] == (r"b\udcff.properties: its name is not UTF-8",)
    assert [file.path for file in plan.files] == ["a.properties", "c.properties"]
    run(plan, tmp_path / "out")
    with pytest.raises(ValueError, match=r"b\\udcff\.properties: its name is not UTF-8"):
        read_place(tmp_path / "en", "en", "en")


def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"en/a\x1b[2J.properties": "a=Text\n"})
    assert describe_counts(preview(plan)).splitlines()[1].startswith(r"a\x1b[2J.properties  ")


@pytest.mark.parametrize(
    ("code", "folder"),
    [
        ("pt-BR", "values-pt-rBR"),
        ("pt_br", "values-pt-rBR"),
        ("es-419", "values-es-r419"),
        ("pt-rBR", "values-pt-rBR"),
        ("sr-Latn-RS", "values-b+sr+Latn+RS"),
        ("dsb", "values-dsb"),
    ],
)
def test_folders_of_android_are_named_as_android_names_them(tmp_path: Path, code: str, folder: str) -> None:
    strings = '<resources>\n    <string name="a">Text</string>\n</resources>\n'
    files = {"en/values-en/strings.xml": strings, "en/values-en/b.properties": "a=Text\n"}
    plan = plan_of(tmp_path, files, codes={"dsb": code})
    assert {file.path for file in plan.files} == {f"{folder}/strings.xml", f"values-{code}/b.properties"}
    again = plan_of(tmp_path, {f"dsb/{folder}/strings.xml": strings}, codes={"dsb": code})
    assert {file.path: file.kept for file in again.files}[f"{folder}/strings.xml"] == 1


def test_single_files_of_two_formats_are_refused(tmp_path: Path) -> None:
    po = 'msgid "a"\nmsgstr "A"\n'
    with pytest.raises(
        ValueError, match=r"de\.ftl is Fluent, and .*dsb\.po is gettext: files of one text must have one"
    ):
        plan_of(tmp_path / "a", {"de.ftl": "a = A\n", "dsb.po": po})
    with pytest.raises(ValueError, match=r"de\.properties is Java properties, and .*en\.po is gettext"):
        plan_of(tmp_path / "b", {"de.properties": "a = A\n", "en.po": po})
    assert plan_of(tmp_path / "c", {"en.pot": po, "dsb.po": po.replace('"A"', '""')}).single
