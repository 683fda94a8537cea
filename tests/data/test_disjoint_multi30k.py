"""Multi30k cut into disjoint corpora."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from hf_multisource.data.files import read_lines
from hf_multisource.data.rows import read_split
from hf_multisource.recipes.graph import load_graph
from prepare import disjoint_multi30k
from runs import write_lines

GRAPH = Path(__file__).resolve().parents[2] / "training" / "graphs" / "nrc_multi30k.yaml"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for split, count in {"train": 21, "val": 3, "test_2016_flickr": 2}.items():
        for language in disjoint_multi30k.LANGUAGES:
            write_lines(tmp_path / "data" / f"{split}.{language}", [f"{language} {split} {i}" for i in range(count)])
    return tmp_path / "data"


def numbers(path: Path) -> list[int]:
    return [int(line.split()[-1]) for line in read_lines(path)]


def test_no_line_is_in_two_corpora(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    disjoint_multi30k.main([str(data), str(out), "--scarce", "5"])
    said = ["cs_en: 5 lines", "cs_de: 8 lines", "de_en: 8 lines", "en: 8 lines", "all: 29 lines"]
    assert capsys.readouterr().out.splitlines() == [*said, "held, dev: 3 lines", "held, test: 2 lines"]
    assert sorted(path.name for path in (out / "cs_de").iterdir()) == ["train.cs", "train.de"]
    parts = [numbers(out / name / f"train.{name[:2]}") for name in ("cs_en", "cs_de", "de_en")]
    assert sorted(chain(*parts)) == list(range(21)) and all(part == sorted(part) for part in parts)
    assert numbers(out / "cs_en" / "train.en") == parts[0] and numbers(out / "en" / "train.en") == parts[1]
    assert read_lines(out / "cs_de" / "train.de") == [f"de train {i}" for i in parts[1]]
    assert read_lines(out / "held" / "test.cs") == ["cs test_2016_flickr 0", "cs test_2016_flickr 1"]
    assert read_lines(out / "held_cs" / "test.de") == ["", ""]
    assert read_lines(out / "held_cs" / "test.en") == read_lines(out / "held" / "test.en")
    joint = read_split(str(out / "all"), "train", ["cs", "de"], "en", keep_all=True).rows
    present = [{name for name, text in row.items() if text} for row in joint]
    assert present == [{"cs", "en"}] * 5 + [{"cs", "de"}] * 8 + [{"de", "en"}] * 8 + [{"en"}] * 8
    disjoint_multi30k.main([str(data), str(tmp_path / "other"), "--scarce", "5", "--seed", "2"])
    assert numbers(tmp_path / "other" / "cs_en" / "train.en") != parts[0]


def test_the_graph_of_the_nrcs_system_reads_them(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    disjoint_multi30k.main([str(data), "data/disjoint_multi30k", "--scarce", "5"])
    graph = load_graph(GRAPH)
    trained = [name for name, step in graph.steps.items() if step.kind == "train"]
    assert [name for name in trained if name.startswith("row")] == [
        *(f"row{i}" for i in (1, 2, 3, 4, 5)),
        *("row5-parallel", "row5-hierarchical"),
    ]
    assert sum(line.strip() != "" for line in GRAPH.read_text(encoding="utf-8").splitlines()) < 100


@pytest.mark.parametrize("scarce", ["0", "20"])
def test_too_large_a_part_is_refused(data: Path, tmp_path: Path, scarce: str) -> None:
    with pytest.raises(SystemExit, match=rf"--scarce is {scarce}, but must be above 0 and less than 20"):
        disjoint_multi30k.main([str(data), str(tmp_path / "out"), "--scarce", scarce])
    assert not (tmp_path / "out").exists()
