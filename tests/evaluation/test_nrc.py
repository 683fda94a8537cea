"""The page of the replica of Littell et al. 2019: what is kept of invented seeds, comparisons, verdict and gaps."""

from __future__ import annotations

import json
import random
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from hf_multisource.metrics.bootstrap import pooled_bootstrap
from hf_multisource.metrics.table import DEFAULT, METRICS
from hf_multisource.recipes.reading import read_yaml
from reports import nrc
from runs import files_of, read_json, write_lines
from scored import REFERENCES, cells_of, spoilt

# Words of each sentence that are wrong: by score step, and by a changed condition of rows 4 and 5.
WRONG = {"score1": 3, "score2": 2, "score3": 2, "score4": 2, "score5": 0, "pivot": 1}
WRONG |= {"score5-parallel": 0, "score5-hierarchical": 1, "score5-true": 0}


@pytest.fixture(autouse=True, scope="module")
def few_samples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nrc, "SAMPLES", 60)
        yield


def hypotheses(words: int, seed: int, draw: int = 0) -> list[str]:
    """Outputs of a system: the references, of which every other line or so has wrong words at its end."""
    rng = random.Random(f"{seed} {draw}")
    return [spoilt([text], words)[0] if words and rng.random() < 0.6 else text for text in REFERENCES]


def write_scores(folder: Path, step: str, seed: int, words: int, conditions: Sequence[str] = ("all",)) -> None:
    """Write the folder of a score step as `hf-multisource score` leaves it."""
    (folder / step).mkdir(parents=True)
    entries: dict[str, Any] = {}
    draws: list[dict[str, Any]]
    for condition in conditions:
        names = (
            [f"test.{condition}-{i}.txt" for i in range(2)] if condition[:5] == "wrong" else [f"test.{condition}.txt"]
        )
        draws = []
        for i, name in enumerate(names):
            texts = hypotheses(words + (condition != "all"), seed, i)
            write_lines(folder / step / name, texts)
            scores = {m: {"score": one.score(), "signature": f"{m}:x"} for m, one in measured(texts).items()}
            draws.append({"hypotheses": name, **scores})
        means = {m: {"score": sum(d[m]["score"] for d in draws) / len(draws)} for m in DEFAULT}
        entries[condition] = {**means, "draws": draws}
    write_lines(folder / step / "test.reference.txt", REFERENCES)
    search = {"num_beams": 4, "length_penalty": 1.0, "length_penalty_formula": "sum / length"}
    facts = {"hardware": "a slide rule", "threads": 1, "search": search, "versions": {"torch": "2.13"}}
    content = {"conditions": entries, **facts, "date": f"2026-11-{20 + seed}"}
    (folder / step / "test.json").write_text(json.dumps(content))


def measured(texts: Sequence[str]) -> dict[str, Any]:
    return {name: METRICS[name].measure(texts, REFERENCES) for name in DEFAULT}


def write_training(folder: Path, name: str, seed: int, *, leveled_off: bool = True) -> None:
    (folder / name).mkdir(parents=True)
    summary = {"updates": 1000, "seconds": 90.0, "parameters": 1_300_000, "hardware": "an abacus", "threads": 2}
    (folder / name / "train_summary.json").write_text(json.dumps({**summary, "seed": seed, "command": "x"}))
    gains = [0.0] * 10 if leveled_off else [float(i) for i in range(10)]
    history = [{"step": 100 * (i + 1), "eval_bleu": 20.0 + seed + gain} for i, gain in enumerate(gains)]
    (folder / name / "trainer_state.json").write_text(json.dumps({"log_history": history}))


def write_seed(run: Path, seed: int, wrong: Mapping[str, int] = WRONG) -> Path:
    """Write the folder of a finished graph."""
    folder = run / f"seed-{seed}"
    for step, words in wrong.items():
        write_scores(folder, step, seed, words, nrc.CONDITIONS[step])
    for name in nrc.trainings_of(read_yaml(nrc.GRAPH)):
        write_training(folder, name, seed)
    for name, read in {"cs_en": 30, "back_cs": 40 + seed}.items():
        (folder / f"{name}-guarded").mkdir()
        counts = {"languages": ["cs", "en"], "ngram": 6, "read": read, "kept": 20, "rules": {"held_out": {"rows": 7}}}
        (folder / f"{name}-guarded" / "counts.json").write_text(json.dumps(counts))
    return folder


def page_of(results: Path) -> str:
    nrc.main(["--results", str(results)])
    return (results / "nrc.md").read_text("utf-8")


def flowing(page: str) -> str:
    """A page without line ends."""
    return " ".join(page.split())


def keep(run: Path, results: Path) -> None:
    nrc.main(["--results", str(results), "keep", str(run)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of three finished seeds, and what was kept of it."""
    folder = tmp_path_factory.mktemp("nrc")
    for seed in (1, 2, 10):
        write_seed(folder / "run", seed)
    keep(folder / "run", folder / "results")
    return folder


@pytest.fixture
def three(finished: Path, tmp_path: Path) -> Path:
    """Return a folder with a copy of three kept seeds, beside the run that they were kept from."""
    return shutil.copytree(finished, tmp_path, dirs_exist_ok=True) / "results"


def test_three_seeds_give_means_differences_and_an_answer(three: Path) -> None:
    compared = read_json(three / nrc.KEPT / "comparisons.json")
    assert set(compared) == {*nrc.PAIRS, nrc.BEST}
    assert compared["pivot"]["seeds"] == [1, 2, 10]
    sides = [[hypotheses(WRONG[step], seed) for seed in (1, 2, 10)] for step in ("score5", "pivot")]
    expected = pooled_bootstrap(sides[0], sides[1], REFERENCES, n_samples=60)["bleu"]
    assert compared["pivot"]["bleu"].items() >= expected.items()
    both = [[hypotheses(1, seed, draw) for seed in (1, 2, 10) for draw in (0, 1)], sides[0]]
    expected = pooled_bootstrap(both[0], both[1], REFERENCES, n_samples=60)["chrf"]
    assert compared["wrong-de"]["chrf"].items() >= expected.items(), "all draws of a wrong source"
    assert compared[nrc.BEST]["baseline"] == ["score3", "all"] or compared[nrc.BEST]["baseline"] == ["score2", "all"]

    (three / "nrc" / "notes.md").write_text("It helps.\n\nMore or less.\n")
    page = page_of(three)
    assert page.splitlines()[3] == "It helps." and "## What they show\n\nMore or less.\n" in page
    assert "There are 3 seeds: 1, 2, 10." in page and "Not there yet" not in page and "missing" not in page
    rows = {cells[0]: cells for cells in cells_of(page)[2:11]}
    assert list(rows) == [row.name for row in nrc.ROWS.values()]
    scores = [measured(hypotheses(WRONG["pivot"], seed))["bleu"].score() for seed in (1, 2, 10)]
    assert rows["pivot"][2:4] == ["20.8", f"{fmean(scores):.1f} ± {stdev(scores):.1f} (3 seeds)"]
    assert rows["4"][2] == rows["5"][2] == "24.2 (row 4 or 5)" and rows["1"][2] == ""
    assert "Whether it is row 4 or row 5 was not known" in flowing(page)
    assert "upper bound" in rows["5, true German"][1]
    assert "help? **Yes**: row 5 minus pivot is +" in flowing(page) and "Still improving" not in page
    assert "a gain of 3.4" in page and "from which 14.8 BLEU of the baseline are derived" in flowing(page)
    assert ["cs_en", "cs, en", "30", "7", "20"] in cells_of(page)
    assert ["back_cs", "cs, en", "41 / 42 / 50", "7", "20"] in cells_of(page)
    assert ["100", *["24.3"] * 7] in cells_of(page), "the mean curve of the rows"
    assert page.count("graph training/graphs/nrc_multi30k.yaml --seed ") == 3
    assert "trained in 0.3 hours on an abacus, 2 threads" in page
    assert (three / "nrc.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_kept_holds_no_reference_and_is_the_same_again(three: Path, tmp_path: Path) -> None:
    before = files_of(three / nrc.KEPT)
    assert set(before) == {"comparisons.json"} | {f"seed-{n}.{end}" for n in (1, 2, 10) for end in ("json", "zip")}
    with zipfile.ZipFile(three / nrc.KEPT / "seed-1.zip") as archive:
        names = archive.namelist()
        assert archive.read("pivot/test.all.txt").decode().splitlines() == hypotheses(WRONG["pivot"], 1)
    assert "score5/test.wrong-de-1.txt" in names and not any("reference" in name for name in names)
    keep(tmp_path / "run", three)
    assert files_of(three / nrc.KEPT) == before


def test_older_seeds_come_from_their_archives(three: Path, tmp_path: Path) -> None:
    before = (three / nrc.KEPT / "comparisons.json").read_bytes()
    for seed in (1, 10):
        shutil.rmtree(tmp_path / "run" / f"seed-{seed}")
    keep(tmp_path / "run", three)
    assert (three / nrc.KEPT / "comparisons.json").read_bytes() == before
    path = tmp_path / "run" / "seed-2" / "pivot" / "test.reference.txt"
    for step in nrc.ROWS:
        write_lines(path.parent.parent / step / path.name, ["other", *REFERENCES[1:]])
    with pytest.raises(SystemExit, match=r"seed-1\.json was made with other references than those of the run"):
        keep(tmp_path / "run", three)


def test_one_seed_is_called_one_seed_and_gives_no_answer(tmp_path: Path) -> None:
    write_seed(tmp_path / "run", 4)
    shutil.rmtree(tmp_path / "run" / "seed-4" / "row5")
    write_training(tmp_path / "run" / "seed-4", "row5", 4, leveled_off=False)
    keep(tmp_path / "run", tmp_path)
    page = flowing(page_of(tmp_path))
    assert "There is **one seed** (4)" in page
    assert "**Undecided**" in page and "only 1 seed has been scored, and so far the answer would be yes" in page
    assert "Still improving at the end of the training: row5 (seed 4). Longer" in page
    assert "(1 seed)" in page and "(1 seeds)" not in page and "0 of 1" in page
    assert "| leveled off |" in page and "*leveled off*: how many seeds" in page


def test_no_seed_gives_a_page_without_results(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert "No seed has been scored yet" in page and "**Undecided**" in page and ".png" not in page
    assert "24.2" in page and "--seed 3" in page and "No two rows can be compared yet." in page
    assert not (tmp_path / "nrc").exists()


def test_an_unfinished_graph_is_shown_with_its_gaps(tmp_path: Path) -> None:
    write_seed(tmp_path / "run", 1)
    second = tmp_path / "run" / "seed-2"
    for step in ("score1", "score5"):
        write_scores(second, step, 2, WRONG[step], ("all", "absent-cs")[: 1 + (step == "score5")])
    (tmp_path / "run" / "seed-3" / "cs-de").mkdir(parents=True)  # a training that has begun
    keep(tmp_path / "run", tmp_path)
    page = page_of(tmp_path)
    gaps = re.search(r"^- seed 2: (.*)$", page, re.MULTILINE)
    assert gaps is not None and "seed 1:" not in page and "seed 3" not in page
    assert gaps[1].startswith("row 2; row 3; row 4; row 5 with Czech wrong; row 5 with German absent")
    compared = read_json(tmp_path / nrc.KEPT / "comparisons.json")
    assert compared["pivot"]["seeds"] == [1] and compared["absent-cs"]["seeds"] == [1, 2]
    shutil.rmtree(tmp_path / "run" / "seed-1" / "pivot")
    before = files_of(tmp_path / nrc.KEPT)
    with pytest.raises(SystemExit, match=r"seed-1 has no score of pivot \(all\), which .*seed-1\.json has; move that"):
        keep(tmp_path / "run", tmp_path)
    assert files_of(tmp_path / nrc.KEPT) == before


@pytest.mark.parametrize(
    ("pivot", "p", "one_way", "seeds", "answer"),
    [
        (1.0, 0.049, 2.0, 3, "yes"),
        (0.9, 0.001, 9.0, 3, "no"),
        (1.0, 0.05, 9.0, 3, "no"),
        (9.0, 0.001, 1.9, 3, "no"),
        (9.0, 0.001, 9.0, 2, "undecided"),
    ],
)
def test_the_answer_keeps_to_its_limits(pivot: float, p: float, one_way: float, seeds: int, answer: str) -> None:
    def entry(difference: float, p_value: float) -> dict[str, Any]:
        ends = {"difference_low": difference - 1, "difference_high": difference + 1}
        return {"seeds": list(range(seeds)), "bleu": {"difference": difference, **ends, "p_value": p_value}}

    assert nrc.verdict({"pivot": entry(pivot, p), "one-way": entry(one_way, 0.9)})[0] == answer


def test_the_drawing_leads_from_the_corpora_to_the_last_row() -> None:
    drawing = nrc.draw_graph(read_yaml(nrc.GRAPH))
    names = dict(re.findall(r'^  (n\d+)[\[(]+"([\w-]+)', drawing, re.MULTILINE))
    edges = [(names[a], arrow, names[b]) for a, arrow, b in re.findall(r"(n\d+) (-->|-\.->) (n\d+)", drawing)]
    nodes = {name for one, _, other in edges for name in (one, other)}
    assert nodes == set(names.values())
    assert ("cs-de", "-.->", "cross_cs_en") in edges and ("row5_text", "-->", "row5") in edges
    assert not nodes & {"score5", "test", "cross_test", "row5-parallel"}


@pytest.mark.parametrize("damage", ["other references", "lines", "archive", "nothing scored", "no seed"])
def test_what_cannot_be_kept_is_named(damage: str, tmp_path: Path) -> None:
    run, message = tmp_path / "run", ""
    if damage in ("no seed", "nothing scored"):
        (run / "seed-1" / "row1").mkdir(parents=True)
        message = "no score step of .*seed-1 has been run yet"
        if damage == "no seed":
            shutil.rmtree(run / "seed-1")
            message = r"run has no folder seed-N; `hf-multisource graph FILE --seed N` writes it"
    else:
        for seed in (1, 2):
            for step in ("score5", "pivot"):
                write_scores(run / f"seed-{seed}", step, seed, WRONG[step])
    if damage == "other references":
        write_lines(run / "seed-2" / "pivot" / "test.reference.txt", REFERENCES[1:])
        message = "seed-2/pivot has other references than the steps before it"
    elif damage == "lines":
        write_lines(run / "seed-2" / "pivot" / "test.all.txt", REFERENCES[1:])
        message = r"pivot/test\.all\.txt has other lines than the 40 references"
    elif damage == "archive":
        keep(run, tmp_path)
        shutil.rmtree(run / "seed-1")
        (tmp_path / nrc.KEPT / "seed-1.zip").write_bytes(b"x")
        message = r"seed-1\.zip is damaged"
    with pytest.raises(SystemExit, match=rf"^nrc\.py: .*{message}"):
        keep(run, tmp_path)
