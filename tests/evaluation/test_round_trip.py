"""The round trip: strings of a small package are removed, filled in again, compared and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polib
import pytest

from archive_files import debian, tarred, zipped
from hf_multisource.data.catalogue_files import read_catalogue
from hf_multisource.json_files import read_json
from reports.round_trip import check_gettext, is_undisturbed, main
from runs import write_lines
from small_run import save_run

LANGUAGES = {"en": "en-GB", "de": "de", "dsb": "dsb"}
TEST, TRAIN = [f"test{i}" for i in range(8)], [f"train{i}" for i in range(12)]


def text_of(key: str, language: str) -> str:
    return f"{key} of {{ $name }} in {language}"


@pytest.fixture
def packages(tmp_path: Path) -> list[str]:
    """Packages of three languages with a file of the test split and one of the training split, as arguments."""
    for language, code in LANGUAGES.items():
        files = {
            f"browser/{code}/{name}.ftl": "# License\n\n"
            + "".join(f"# on {key}\n{key} = {text_of(key, language)}\n" for key in keys)
            for name, keys in (("a", TRAIN), ("b", TEST))
        }
        inner = zipped({**{name: text.encode() for name, text in files.items()}, f"{code}.properties": b"one=%S\n"})
        (tmp_path / f"{language}.deb").write_bytes(debian(tarred({f"./usr/lib/{code}@x.xpi": inner}), "data.tar"))
    sources = [f"{name}={tmp_path}/{name}.deb" for name in ("en", "de")]
    return ["--target", f"dsb={tmp_path}/dsb.deb", "--source", *sources, "--codes", "en=en-GB"]


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A model that has learned nothing, with the rows of a training, which have one text of the test file."""
    (tmp_path / "rows").mkdir()
    for language in LANGUAGES:
        for split, keys in {"train": [*TRAIN, TEST[0]], "dev": ["dev"], "test": TEST}.items():
            write_lines(tmp_path / f"rows/{split}.{language}", [text_of(key, language) for key in keys])
    folder = save_run(tmp_path / "run")
    recipe = f"data: {{path: {tmp_path}/rows, sources: [en, de], target: dsb}}\ntraining: {{output_dir: x}}\n"
    (tmp_path / "run/recipe.yaml").write_text(recipe, "utf-8")
    return folder


def results(out: Path, arguments: list[str]) -> Any:
    main([*arguments, "--out", str(out)])
    return read_json(out)


def test_a_run_fills_what_is_removed_from_files_of_the_test_split(
    packages: list[str], run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--share", "0.3", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out.json")]
    main([run, *packages, *options, "--", "--device", "cpu", "--num_beams", "2", "--max_new_tokens", "24"])
    found = read_json(tmp_path / "out.json")["firefox"]
    assert found["messages"] == {"all": 21, "drawn_from": 8, "removed": 6, "of_files": 1}
    assert found["files"] == {"all": 3, "train": 1, "test": 1, "unknown": 1}
    (cut,) = (tmp_path / "work/cut").rglob("b.ftl")
    (original,) = (tmp_path / "work/original").rglob("b.ftl")
    kept = cut.read_text("utf-8").splitlines()
    assert len(kept) == 2 + 2 * 2 and set(kept) < set(original.read_text("utf-8").splitlines())
    gone = [key for key in TEST if f"{key} =" not in cut.read_text("utf-8")]
    assert found["texts"] == {"all": 21, "removed": 6, "seen_in_training": int(TEST[0] in gone)}
    assert found["restored"] == {"texts": 6, "refused": 0, "examples": [], "disturbed": []}
    result = found["result"]
    assert result["missing"] == 6 and result["removed_and_not_missing"] == 0
    assert result["by_origin"]["all"]["texts"] == 6 and set(result["by_origin"]) <= {
        "all",
        "model",
        "refused",
        "seen",
        "unseen",
    }
    assert sum(one["texts"] for one in result["refused"].values()) == 6 - result["by_origin"]["all"]["filled"]
    assert found["checker"] == "compare-locales" and found["check"]["before"] == found["check"]["after"] == 0
    assert "6 of 21 messages removed from 1 of 3 files: 6 texts\n" in capsys.readouterr().out


def test_copies_of_a_source_are_compared_and_checked(packages: list[str], tmp_path: Path) -> None:
    found = results(tmp_path / "out.json", ["--copy", "de", *packages, "--share", "1", "--name", "copies"])["copies"]
    by_origin = found["result"]["by_origin"]
    assert by_origin["model"] == {"texts": 20, "filled": 20, "right": 0}
    assert by_origin["copy"] == {"texts": 1, "filled": 1, "right": 1}  # "%S" has no words
    assert found["result"]["right_share"] == pytest.approx(1 / 21) and found["result"]["filled_share"] == 1
    assert found["check"]["new"] == 0 and found["texts"]["seen_in_training"] is None and found["drawn_from"] == "all"


def test_what_a_checker_says_is_compared_with_the_original(tmp_path: Path) -> None:
    texts = {"en": "a=See %1$S\nb=x\n", "de": "a=Siehe %1$S, %2$S\nb=y\n", "dsb": "a=%1$S a %2$S\nb=z\n"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.properties").write_text(text, "utf-8")
    places = ["--target", f"dsb={tmp_path}/dsb", "--source", *(f"{name}={tmp_path}/{name}" for name in ("en", "de"))]
    first = results(tmp_path / "out.json", ["--copy", "en", *places, "--share", "0.5"])["firefox"]
    assert first["check"]["before"] == 1 and first["check"]["new"] == 0  # an argument too many
    whole = results(tmp_path / "out.json", ["--copy", "de", *places, "--share", "1", "--name", "other"])
    assert whole["firefox"] == first  # other entries stay
    (reason,) = whole["other"]["result"]["refused"]  # the German text has an argument too many, too
    assert "%2$S" in reason and whole["other"]["check"]["after"] == 0


def test_compiled_gettext_files_become_catalogues_that_msgfmt_checks(tmp_path: Path) -> None:
    for language in ("de", "dsb"):
        file = polib.POFile()
        fields = ("Project-Id-Version", "PO-Revision-Date", "Last-Translator", "Language-Team", "MIME-Version")
        file.metadata = dict.fromkeys(fields, "x") | {"Language": language}
        file.metadata |= {"Content-Type": "text/plain; charset=UTF-8", "Content-Transfer-Encoding": "8bit"}
        for i in range(6):
            file.append(polib.POEntry(msgid=f"Open {i}\n", msgstr=f"{language} {i}\n", msgctxt="menu" if i else None))
        file.save_as_mofile(str(tmp_path / f"{language}.mo"))
    line = ["--copy", "de", "--source", f"de={tmp_path}/de.mo", "--name", "gettext", "--share", "0.5"]
    found = results(tmp_path / "out.json", [*line, "--target", f"dsb={tmp_path}/dsb.mo"])["gettext"]
    assert found["messages"]["removed"] == 3 and found["checker"] == "msgfmt --check --use-fuzzy"
    assert found["result"]["by_origin"]["model"] == {"texts": 3, "filled": 3, "right": 0}
    assert found["restored"]["refused"] == 0 and found["check"] == {"before": 0, "after": 0, "new": 0, "examples": []}
    assert set(found["result"]["by_origin"]) == {"all", "model"} and found["disturbed"] == []
    found = results(tmp_path / "out.json", [*line, "--target", "dsb"])["gettext"]
    assert found["result"]["missing"] == 6 and found["result"]["right_share"] is None
    assert found["texts"] == {"all": 0, "removed": 0, "seen_in_training": None} and found["check"]["after"] == 0


HEADER = """\
# License of the file
msgid ""
msgstr ""
"Project-Id-Version: x\\n"
"PO-Revision-Date: x\\n"
"Last-Translator: x\\n"
"Language-Team: x\\n"
"Language: {0}\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Plural-Forms: nplurals=2; plural=n>1;\\n"

"""
ENTRIES = """\
# of a translator
#. of a developer
#: src/a.c:1 src/b.c:2
#, c-format
msgctxt "menu"
msgid ""
"Copy %s to "
"%s"
msgstr "{0}: "
"%s, %s"

#, c-format, no-wrap
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "{0} %d file"
msgstr[1] ""
"{0} %d files"

msgid "same"
msgstr "{0} same"

msgctxt "other"
msgid "same"
msgstr   "{0} same"

#, fuzzy
#| msgid "before"
msgid "now"
msgstr "{0} before"

msgid "last"
msgstr "{0} last"

#, fuzzy
#~ msgid "gone"
#~ msgstr "{0} gone"
"""


def test_of_a_gettext_file_nothing_but_what_is_filled_changes(tmp_path: Path) -> None:
    for one in ("fr", "oc"):
        write_lines(tmp_path / f"{one}.po", (HEADER + ENTRIES).format(one).splitlines())
    line = ["--copy", "fr", "--source", f"fr={tmp_path}/fr.po", "--target", f"oc={tmp_path}/oc.po", "--share", "1"]
    found = results(tmp_path / "out.json", [*line, "--work", str(tmp_path / "work")])["firefox"]
    assert found["messages"]["removed"] == 5 and found["texts"]["removed"] == 6
    assert found["result"]["by_origin"]["all"] == {"texts": 6, "filled": 6, "right": 0}
    assert found["restored"] == {"texts": 6, "refused": 0, "examples": [], "disturbed": []}
    assert found["disturbed"] == [] and found["check"]["after"] == 0
    assert 0 < found["result"]["chrf_of_filled"]["all"] < 100
    (cut,) = (tmp_path / "work/cut").rglob("*.po")
    assert cut.read_text("utf-8") == (HEADER + ENTRIES).format("oc").replace('"oc: "\n"%s, %s"', '""').replace(
        '"oc %d file"', '""'
    ).replace('""\n"oc %d files"', '""').replace('   "oc same"', ' ""').replace('"oc same"', '""').replace(
        '"oc last"', '""'
    )


def test_a_change_beside_what_is_filled_is_found(tmp_path: Path) -> None:
    cut = (HEADER + ENTRIES.replace("{0} same", "")).format("oc")
    filled = cut.replace('msgid "same"\nmsgstr ""', '# From: copy\n#, fuzzy\nmsgid "same"\nmsgstr "x"')
    catalogue = read_catalogue("oc.po", cut.encode())
    assert is_undisturbed(catalogue, filled.encode(), {"same"})
    assert not is_undisturbed(catalogue, filled.encode(), set())
    assert not is_undisturbed(catalogue, filled.replace("no-wrap", "wrap").encode(), {"same"})
    assert not is_undisturbed(catalogue, filled.replace("# License", "#  License").encode(), {"same"})


def test_what_is_filled_is_checked_though_it_is_fuzzy(tmp_path: Path) -> None:
    (tmp_path / "oc.po").write_text((HEADER + '#, fuzzy, c-format\nmsgid "%d"\nmsgstr "%s"\n').format("oc"), "utf-8")
    assert any("format specifications" in line for line in check_gettext(tmp_path))


def test_what_is_wrong_is_said(tmp_path: Path, packages: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(packages)
    assert "give either a run or --copy LANGUAGE" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"nothing is removed: 21 messages can be \(--files all, --share 0\.001\)"):
        main(["--copy", "de", *packages, "--share", "0.001", "--out", str(tmp_path / "out.json")])
    assert not (tmp_path / "out.json").exists()
