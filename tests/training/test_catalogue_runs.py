"""Runs that read localization catalogues: their rows lie in the run, and are those of the command."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_multisource.data.catalogues import Selection, split_of, write_catalogue_rows
from hf_multisource.evaluation.scoring import Scoring, score
from hf_multisource.publishing.scan import training_lines
from hf_multisource.recipes.averaging import average_checkpoints
from hf_multisource.recipes.training import train
from hf_multisource.recipes.training_data import write_rows
from runs import WORDS, files_of, make_folder, read_json, recipe_of

CHANGES: dict[str, Any] = {
    "data.kind": "catalogues",
    "catalogues": {"codes": {"en": "en-GB"}, "dev": 0.2, "test": 0.2},
    "vocab_size": 420,
    "placeholders": "any",
}
NAMES = [f"f{i}.ftl" for i in range(100)]
FILES = [
    file
    for split, number in {"train": 5, "dev": 1, "test": 1}.items()
    for file in [name for name in NAMES if split_of(name, 0.2, 0.2) == split][:number]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, and catalogues of three languages."""
    folder = make_folder(tmp_path_factory.mktemp("catalogues"))
    for code, name in {"en-GB": "en", "de": "de", "cs": "cs"}.items():
        (folder / "l10n" / code).mkdir(parents=True)
        for i, file in enumerate(FILES):
            lines = [f"key{k} = {WORDS[name][k]} {WORDS[name][i]} {{ $n{i} }}" for k in range(8)]
            (folder / "l10n" / code / file).write_text("\n".join([*lines, ""]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train(recipe_of_catalogues(folder))
    return folder / "run"


def recipe_of_catalogues(folder: Path, **changes: Any) -> Any:
    places = {"path": str(folder / "l10n" / "{lang}")}
    return recipe_of(folder, **{**CHANGES, **places, **changes})


def test_the_rows_of_the_run_are_those_of_the_command(folder: Path, run: Path, tmp_path: Path) -> None:
    selection = Selection(["en", "de", "cs"], {"en": "en-GB"}, target="cs", dev=0.2, test=0.2)
    counts = write_catalogue_rows(str(folder / "l10n" / "{lang}"), tmp_path / "rows", selection)
    assert files_of(run / "catalogues") == files_of(tmp_path / "rows")
    assert counts.rows["train"] == read_json(run / "fingerprint.json")["data"]["train"]["rows"]
    assert read_json(run / "catalogues" / "counts.json")["rows"]["train"] == counts.rows["train"]
    assert any("Junge" in line for line in (run / "catalogues" / "train.de").read_text("utf-8").splitlines())


def test_score_reads_the_test_split_of_the_run(folder: Path, run: Path, tmp_path: Path) -> None:
    options: Any = {"num_beams": 1, "max_new_tokens": 4, "device": "cpu", "out": tmp_path}
    score(Scoring(str(run), **options), "score")
    expected = (run / "catalogues" / "test.cs").read_text(encoding="utf-8")
    assert (tmp_path / "test.reference.txt").read_text(encoding="utf-8") == expected
    shutil.move(run / "catalogues", run / "moved")
    try:
        with pytest.raises(FileNotFoundError, match="catalogues is missing, which holds the rows"):
            score(Scoring(str(run), **options), "score")
        named = Scoring(str(run), **{**options, "data": str(run / "moved"), "out": tmp_path / "other"})
        assert score(named, "score")["data"]["lines"] == len(expected.splitlines())
    finally:
        shutil.move(run / "moved", run / "catalogues")


def test_the_average_of_its_checkpoints_is_scored_on_the_rows_of_the_run(run: Path, tmp_path: Path) -> None:
    average_checkpoints([run], tmp_path / "average")
    for name in ("placeholders.json", "catalogues/test.cs", "catalogues/counts.json"):
        assert (tmp_path / "average" / name).read_bytes() == (run / name).read_bytes()
    options: Any = {"num_beams": 1, "max_new_tokens": 4, "device": "cpu"}
    result = score(Scoring(str(tmp_path / "average"), **options), "score")
    assert result["data"]["lines"] == len((run / "catalogues" / "test.cs").read_text("utf-8").splitlines())


def test_a_resumed_run_reads_its_own_rows(folder: Path, run: Path) -> None:
    before = files_of(run / "catalogues")
    (folder / "l10n").rename(folder / "gone")
    try:
        assert train(recipe_of_catalogues(folder), resume=True)["resumed"]
    finally:
        (folder / "gone").rename(folder / "l10n")
    assert files_of(run / "catalogues") == before
    with pytest.raises(ValueError, match=r"data\.catalogues was .*, is "):
        train(recipe_of_catalogues(folder, catalogues={"codes": {"en": "en-GB"}}), resume=True)


def test_a_start_that_did_not_get_to_training_leaves_rows_that_are_read_again(folder: Path, tmp_path: Path) -> None:
    run: Any = SimpleNamespace(recipe=recipe_of_catalogues(folder), folder=tmp_path, say=lambda *_: None)
    write_rows(run)
    before = files_of(tmp_path)
    (tmp_path / "catalogues" / "train.en").unlink()
    write_rows(run)
    assert files_of(tmp_path) == before


def test_the_training_text_of_the_run_is_known_when_it_is_published(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_multisource.publishing.scan.LONG_LINE", 5)
    assert any("Junge" in line for line in training_lines(run / "recipe.yaml"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.kind": "po"}, r"data\.kind must be one of text, catalogues; got 'po'"),
        ({"data.kind": "text"}, r"data\.catalogues is given, but data\.kind is text"),
        (
            {"catalogues": {"languages": ["en"]}},
            r"data\.catalogues: unknown key 'languages'; did you mean min_languages, source_language",
        ),
        ({"catalogues": {"dev": 1.5}}, r"data\.catalogues\.dev must be .*; got 1\.5"),
        ({"catalogues": {"codes": {"fr": "fr"}}}, r"data\.catalogues: codes has 'fr'; the languages are en, de, cs"),
        ({"train": [{"path": "web"}]}, r"data\.train is a list of corpora, but data\.kind is catalogues"),
    ],
)
def test_what_catalogues_cannot_be_is_refused_by_name(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe_of_catalogues(folder, **changes)


def test_a_kind_without_a_section_is_that_of_the_tokenizer(folder: Path) -> None:
    assert recipe_of(folder, kind="unigram").tokenizer.kind == "unigram"
