"""How many test words the models of an experiment agree about, from made-up hypotheses."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import yaml

from reports import agreement

WORDS = ["a b", "c", "d e", "f"]
HYPOTHESES = {
    "serial.seed-1": ["a b", "c", "d e", "x"],
    "serial.seed-2": ["a b", "c", "x", "x"],
    "flat.seed-1": ["a b", "x", "x", "x"],
}


@pytest.fixture
def line(tmp_path: Path) -> list[str]:
    folder = tmp_path / "results" / "west"
    (folder / "cells").mkdir(parents=True)
    (folder / "experiment.yaml").write_text(yaml.safe_dump({"sources": ["s"], "target": "old"}), encoding="utf-8")
    for name, lines in HYPOTHESES.items():
        with zipfile.ZipFile(folder / "cells" / f"{name}.zip", "w") as archive:
            archive.writestr("scores/test.all.txt", "".join(f"{one}\n" for one in lines))
    for name, lines in {"s": ["s"] * len(WORDS), "old": WORDS}.items():
        (tmp_path / f"test.{name}").write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    return ["west", "--path", str(tmp_path), "--results", str(tmp_path / "results"), "--rows"]


def test_words_are_counted_that_all_most_and_some_models_have_right(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    agreement.main([*line, "serial", "flat"])
    expected = "3 models, 4 words: all right 25.0%, more than half 50.0%, at least one 75.0%\n"
    assert capsys.readouterr().out == expected
    agreement.main([*line, "serial"])  # of two models, one is no majority
    assert "2 models, 4 words: all right 50.0%, more than half 50.0%, at least one 75.0%" in capsys.readouterr().out


def test_a_row_without_cells_and_other_words_are_named(line: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"agreement\.py: .*cells has no cell of the row 'mean'"):
        agreement.main([*line, "mean"])
    (tmp_path / "test.old").write_text("a\n" * 5, encoding="utf-8")
    (tmp_path / "test.s").write_text("s\n" * 5, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"serial\.seed-1 has 4 hypotheses, but there are 5 references"):
        agreement.main([*line, "serial"])
