"""Kazakh, Russian and English text cut into two disjoint halves."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_multisource.cli import graph as graph_command
from hf_multisource.data.files import read_lines
from prepare import kk_ru_en
from runs import write_lines

GRAPH = Path(__file__).resolve().parents[2] / "training" / "graphs" / "kk_ru_en.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data of 40 rows, of which the last ten repeat the Kazakh of the first ten."""
    for name in ("data", "news"):
        (tmp_path / name).mkdir()
    for split, count in {"train": 40, "dev": 3, "test": 2}.items():
        for language in kk_ru_en.LANGUAGES:
            numbers = [i % 30 if language == "kk" else i for i in range(count)]
            write_lines(tmp_path / "data" / f"{split}.{language}", [f"{language} {split} {i}" for i in numbers])
    for language in ("kk", "en"):
        write_lines(tmp_path / "news" / f"newstest2019-enkk.{language}", [f"{language} news {i}" for i in range(4)])
    return tmp_path


def test_each_row_is_in_one_half_and_equal_kazakh_in_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kk_ru_en.main([str(folder / "data"), str(folder / "news"), str(folder / "out")])
    halves = {half: read_lines(folder / "out" / half / "train.kk") for half in "ab"}
    assert sum(map(len, halves.values())) == 40 and not {*halves["a"]} & {*halves["b"]}
    assert min(map(len, halves.values())) > 8
    english = {line for half in "ab" for line in read_lines(folder / "out" / half / "train.en")}
    assert english == {f"en train {i}" for i in range(40)}
    for half, kazakh in halves.items():
        others = [read_lines(folder / "out" / half / f"train.{language}") for language in ("ru", "en")]
        rows = [[int(line.split()[-1]) for line in lines] for lines in (kazakh, *others)]
        assert all(kk == ru % 30 and ru == en for kk, ru, en in zip(*rows, strict=True))
    held = folder / "out" / "held"
    assert read_lines(held / "test.ru") == ["ru test 0", "ru test 1"]
    assert read_lines(held / "newstest2019.en") == [f"en news {i}" for i in range(4)]
    assert not (held / "newstest2019.ru").exists()
    said = capsys.readouterr().out.splitlines()
    assert said[2:] == ["held, dev: 3 lines", "held, test: 2 lines", "held, newstest2019: 4 lines"]


def test_data_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(SystemExit, match=r"^kk_ru_en\.py: .*nowhere"):
        kk_ru_en.main([str(folder / "nowhere"), str(folder / "news"), str(folder / "out")])
    assert not (folder / "out").exists()


def test_nothing_is_overwritten_and_no_half_is_left_without_the_other(folder: Path) -> None:
    (folder / "news" / "newstest2019-enkk.en").unlink()
    with pytest.raises(SystemExit, match=r"^kk_ru_en\.py: "):
        kk_ru_en.main([str(folder / "data"), str(folder / "news"), str(folder / "out")])
    assert not (folder / "out").exists()
    (folder / "out").mkdir()
    (folder / "out" / "mine").touch()
    with pytest.raises(SystemExit, match=r"^kk_ru_en\.py: .*out is not empty"):
        kk_ru_en.main([str(folder / "data"), str(folder / "news"), str(folder / "out")])
    assert [path.name for path in (folder / "out").iterdir()] == ["mine"]


def test_the_graph_reads_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kk_ru_en.main([str(folder / "data"), str(folder / "news"), str(folder / "data" / "kk_ru_en_halves")])
    monkeypatch.chdir(folder)
    for name in ("latin", "cyrillic"):
        tokenizer = folder / "runs" / "kk_ru_en_tokenizers" / name
        tokenizer.mkdir(parents=True)
        (tokenizer / "tokenizer_config.json").write_text("{}")
    graph_command.main([str(GRAPH), "--dry_run"])
    said = capsys.readouterr().out
    assert all(row in said for row in ("| score-kk-made ", "| news-kk-made ", "| made_a-guarded "))
