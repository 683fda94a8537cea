"""The report of the Kazakh demonstration: the files that it keeps of an invented run, and the page."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hf_multisource.metrics.bootstrap import pooled_bootstrap
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.reading import read_yaml
from reports import kk_ru_en as report
from runs import read_json, write_lines
from scored import REFERENCES, spoilt

WRONG = {"score-kk": 3, "score-ru": 2, "score-kk-ru": 0, "score-kk-made": 1, "news-kk": 3, "news-kk-made": 2}


def hypotheses(words: int) -> list[str]:
    return [spoilt([text], words)[0] if words and i % 2 else text for i, text in enumerate(REFERENCES)]


def write_scores(run: Path, step: str) -> None:
    split, words = report.STEPS[step][0], WRONG[step]
    (run / step).mkdir(parents=True)
    conditions: dict[str, Any] = {}
    for name in ("all", *(report.CHANGED if step in ("score-kk-ru", "score-kk-made") else ())):
        texts = hypotheses(words + (name != "all"))
        write_lines(run / step / f"{split}.{name}.txt", texts)
        scores = {m: {"score": METRICS[m].measure(texts, REFERENCES).score(), "signature": m} for m in report.SHOWN}
        conditions[name] = {**scores, "draws": [{"hypotheses": f"{split}.{name}.txt", **scores}]}
    write_lines(run / step / f"{split}.reference.txt", REFERENCES)
    search = {"num_beams": 4, "length_penalty": 1.0, "length_penalty_formula": "sum / length"}
    facts = {"hardware": "a slide rule", "threads": 1, "search": search, "versions": {"torch": "2.13"}}
    content = {"conditions": conditions, **facts, "date": "2026-11-24"}
    (run / step / f"{split}.json").write_text(json.dumps(content))


def write_training(run: Path, name: str) -> None:
    (run / name).mkdir()
    summary = {"updates": 1000, "seconds": 90.0, "parameters": 1_300_000, "hardware": "an abacus", "threads": 2}
    (run / name / "train_summary.json").write_text(json.dumps({**summary, "seed": 1, "command": "x"}))
    history = [{"step": 100 * i, "eval_chrf": 20.0 + i} for i in range(1, 11)]
    (run / name / "trainer_state.json").write_text(json.dumps({"log_history": history}))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kk_ru_en") / "run"
    for step in WRONG:
        write_scores(folder, step)
    for name in ("kk-ru-a", "kk"):
        write_training(folder, name)
    return folder


def test_all_score_steps_of_the_graph_are_read() -> None:
    steps = read_yaml(report.GRAPH)["steps"]
    assert set(report.STEPS) == {name for name, step in steps.items() if "score" in step}
    assert {step["score"] for step in steps.values() if "score" in step} == set(report.SYSTEMS)


def test_scores_and_comparisons_are_kept_and_shown(run: Path, tmp_path: Path) -> None:
    report.main(["--results", str(tmp_path), "keep", str(run)])
    kept = read_json(tmp_path / report.KEPT / report.SCORES)
    expected = pooled_bootstrap([hypotheses(0)], [hypotheses(3)], REFERENCES, metrics=report.SHOWN)
    assert kept["comparisons"]["score-kk-ru score-kk"] == expected
    with zipfile.ZipFile(tmp_path / report.KEPT / report.HYPOTHESES) as archive:
        assert archive.read("news-kk.txt").decode().split("\n")[:-1] == hypotheses(3)
    (tmp_path / report.PAGE / "notes.md").write_text("The answer.\n\nMore about it.\n", encoding="utf-8")

    report.main(["--results", str(tmp_path)])
    page = (tmp_path / "kk_ru_en.md").read_text("utf-8")
    assert page.index("The answer.") < page.index("| sources") < page.index("More about it.")
    shown = {
        cells[0]: cells[1:]
        for line in page.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
    }
    score = {
        words: [METRICS[m].show(METRICS[m].measure(hypotheses(words), REFERENCES).score()) for m in report.SHOWN]
        for words in range(4)
    }
    assert shown["Kazakh alone"] == [*score[3], *score[3]]
    assert shown["Kazakh and synthetic Russian"] == [*score[1], *score[2]]
    assert shown["Russian alone"] == [*score[2], "", ""]
    assert "python training/prepare/kk_ru_en.py data/kk_ru_en" in page
    assert "A training has not leveled off while the last fifth" in page and "| leveled off |" in page


def test_a_run_without_scores_and_other_references_are_errors(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no scores; `hf-multisource graph kk_ru_en\.yaml` writes them"):
        report.main(["--results", str(tmp_path), "keep", str(tmp_path)])
    for step in ("score-kk", "score-ru"):
        write_scores(tmp_path / "other", step)
    write_lines(tmp_path / "other" / "score-ru" / "test.reference.txt", REFERENCES[::-1])
    with pytest.raises(SystemExit, match="score-ru has other references than the steps before it"):
        report.main(["--results", str(tmp_path), "keep", str(tmp_path / "other")])
