"""Scores with confidence, wrong and absent sources, committed rows and tables; score.py and translate.py as typed."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from builders import tiny_config
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.cli import results, score, translate
from hf_multisource.data.files import read_lines
from hf_multisource.data.rows import Row
from hf_multisource.evaluation import scoring, translating
from hf_multisource.evaluation.decoding import Search, decode, load_model
from hf_multisource.evaluation.likelihood import cross_entropy
from hf_multisource.evaluation.perturbations import derangement, make_absent, make_wrong
from hf_multisource.evaluation.results import leveled_off, make_row, render
from hf_multisource.evaluation.tables import format_table
from hf_multisource.metrics.bootstrap import measure_metric, paired_bootstrap
from hf_multisource.metrics.table import METRICS
from runs import write_lines
from scored import COLUMNS, OPTIONS, REFERENCES, cells_of, compared, figures, made_up_row, make_run, spoilt

ROOT = Path(__file__).resolve().parents[2]
SACREBLEU = {"bleu": BLEU, "chrf": CHRF, "ter": TER}
GOOD, BAD = spoilt(REFERENCES, 1), spoilt(REFERENCES, 3)

# The metric modules.


@pytest.mark.parametrize("name", list(SACREBLEU))
def test_the_module_loads_from_its_path_and_agrees_with_sacrebleu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    metric = evaluate.load("hf_multisource/evaluation/translation_score", name)
    found = metric.compute(predictions=GOOD, references=REFERENCES, n_bootstrap=200)
    oracle = SACREBLEU[name]()
    expected = oracle.corpus_score(GOOD, [REFERENCES], n_bootstrap=200)
    assert found["score"] == expected.score
    assert found["signature"] == str(oracle.get_signature())
    assert (found["ci_high"] - found["ci_low"]) / 2 == pytest.approx(
        expected._ci, rel=1e-4
    )  # sacrebleu adds in float32


@pytest.mark.parametrize("name", list(SACREBLEU))
def test_the_interval_is_that_of_test_sets_drawn_with_replacement(name: str) -> None:
    found = measure_metric(name, GOOD, REFERENCES, n_bootstrap=80, seed=3)
    draws = np.random.default_rng(3).choice(40, size=(80, 40), replace=True)
    replicas = sorted(
        SACREBLEU[name]().corpus_score([GOOD[i] for i in draw], [[REFERENCES[i] for i in draw]]).score for draw in draws
    )
    assert found["ci_low"] == pytest.approx(replicas[2])  # 2.5 % of 80 are left out at each end
    assert found["ci_high"] == pytest.approx(replicas[-3])
    assert found["sd"] == pytest.approx(np.std(replicas, ddof=1))


def test_the_seed_moves_the_interval_and_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    first, again, other = (measure_metric("bleu", GOOD, REFERENCES, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert (first["score"], first["ci_low"]) != (other["score"], other["ci_low"])
    assert first["score"] == other["score"]
    assert os.environ["SACREBLEU_SEED"] == "77"


def test_options_reach_sacrebleu_and_show_in_the_signature() -> None:
    options = {"tokenize": "none", "lowercase": True}
    found = measure_metric("bleu", GOOD, REFERENCES, options=options)
    assert "case:lc|eff:no|tok:none" in str(found["signature"])


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="metric is 'comet'; allowed are bleu, chrf, ter, exact_match"):
        measure_metric("comet", GOOD, REFERENCES)


@pytest.mark.parametrize(
    ("texts", "resamples", "message"),
    [(GOOD, 39, "n_bootstrap is 39; a 95 % interval needs at least 40"), ([], 40, "predictions is empty")],
)
def test_what_cannot_be_scored_is_refused(texts: list[str], resamples: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure_metric("bleu", texts, REFERENCES[: len(texts)], n_bootstrap=resamples)


def test_the_paired_test_is_that_of_sacrebleu() -> None:
    found = paired_bootstrap(GOOD, BAD, REFERENCES, metrics=list(SACREBLEU), n_samples=100)
    systems: list[tuple[str, Sequence[str]]] = [("bad", BAD), ("good", GOOD)]
    metrics = {"BLEU": BLEU(), "chrF": CHRF(), "TER": TER()}
    _, table = PairedTest(systems, metrics, [REFERENCES], test_type="bs", n_samples=100)()
    for name, key in (("bleu", "BLEU"), ("chrf", "chrF2"), ("ter", "TER")):
        bad, good = table[key]
        assert not isinstance(bad, str) and not isinstance(good, str)
        assert found[name]["difference"] == pytest.approx(good.score - bad.score)
        assert (good.score > bad.score) is METRICS[name].higher_is_better
        assert good.p_value == found[name]["p_value"] < 0.05


@pytest.mark.parametrize("name", list(SACREBLEU))
def test_the_interval_of_a_difference_is_that_of_test_sets_drawn_with_replacement(name: str) -> None:
    found = paired_bootstrap(GOOD, BAD, REFERENCES, metrics=[name], n_samples=80)[name]
    draws = np.random.default_rng(12345).choice(40, size=(80, 40), replace=True)

    def score_of(texts: Sequence[str], draw: Any) -> float:
        return SACREBLEU[name]().corpus_score([texts[i] for i in draw], [[REFERENCES[i] for i in draw]]).score

    differences = sorted(score_of(GOOD, draw) - score_of(BAD, draw) for draw in draws)
    assert found["difference_low"] == pytest.approx(differences[2])  # 2.5 % of 80 are left out at each end
    assert found["difference_high"] == pytest.approx(differences[-3])
    turned = paired_bootstrap(BAD, GOOD, REFERENCES, metrics=[name], n_samples=80)[name]
    assert (turned["difference_low"], turned["p_value"]) == (-found["difference_high"], found["p_value"])


def test_no_difference_is_never_significant() -> None:
    ends = [f"difference_{end}" for end in ("low", "high", "low_90", "high_90")]
    none = {"difference": 0.0, **dict.fromkeys(ends, 0.0), "p_value": 1.0}
    assert paired_bootstrap(GOOD, GOOD, REFERENCES)["bleu"] == none
    assert paired_bootstrap(["y"] * 40, ["z"] * 40, REFERENCES)["bleu"]["p_value"] == 1.0


def test_a_comparison_of_different_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="40 hypotheses, 39 of the baseline, 40 references"):
        paired_bootstrap(GOOD, BAD[1:], REFERENCES)


# Wrong and absent sources.


@given(texts=st.lists(st.sampled_from("aaabcdefgh"), min_size=2, max_size=12), seed=st.integers(0, 99))
def test_a_derangement_moves_everybody_and_meets_an_equal_text_only_where_it_must(texts: list[str], seed: int) -> None:
    permutation = derangement(texts, random.Random(seed))
    assert sorted(permutation) == list(range(len(texts)))
    assert all(place != origin for place, origin in enumerate(permutation))
    unchanged = sum(texts[place] == texts[origin] for place, origin in enumerate(permutation))
    assert unchanged == max(0, 2 * max(Counter(texts).values()) - len(texts))


def test_derangements_differ_by_seed_draw_and_source_and_repeat() -> None:
    rows: list[Row] = [{"en": f"e{i}", "de": f"d{i}"} for i in range(20)]

    def order(source: str, seed: int, draw: int) -> list[int]:
        return [int((row[source] or "")[1:]) for row in make_wrong(rows, source, seed, draw)]

    assert order("de", 0, 0) == order("de", 0, 0)
    assert len({tuple(order(*key)) for key in (("de", 0, 0), ("de", 0, 1), ("de", 1, 0), ("en", 0, 0))}) == 4


def test_every_derangement_of_three_is_drawn() -> None:
    drawn = {tuple(derangement("abc", random.Random(seed))) for seed in range(50)}
    assert drawn == {(1, 2, 0), (2, 0, 1)}


def test_a_wrong_source_leaves_other_sources_target_and_absence_as_they_are() -> None:
    rows: list[Row] = [{"en": str(i), "de": None if i % 3 == 0 else f"d{i}", "cs": f"c{i}"} for i in range(10)]
    wrong = make_wrong(rows, "de", 0, 0)
    assert [(row["en"], row["cs"], row["de"] is None) for row in wrong] == [
        (row["en"], row["cs"], row["de"] is None) for row in rows
    ]
    assert {row["de"] for row in wrong} == {row["de"] for row in rows}
    assert all(new["de"] != old["de"] for new, old in zip(wrong, rows, strict=True) if old["de"])
    assert rows[1]["de"] == "d1"


@pytest.mark.parametrize("present", [0, 1])
def test_a_source_too_rare_to_be_shuffled_is_named(present: int) -> None:
    rows: list[Row] = [{"en": "a", "de": "b" if i < present else None} for i in range(3)]
    with pytest.raises(ValueError, match=rf"source 'de' cannot be made wrong: .* at least 2 .*; there are {present}"):
        make_wrong(rows, "de", 0, 0)


def test_an_absent_source_is_none_in_every_row() -> None:
    assert make_absent([{"en": "a", "de": "b", "cs": "c"}], ["de"]) == [{"en": "a", "de": None, "cs": "c"}]


# Rows and tables.


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([(200, 10.0), (400, 20.0), (600, 24.0), (800, 25.0), (1000, 25.2)], True),
        ([(200, 10.0), (400, 20.0), (600, 24.0), (800, 25.0), (1000, 25.3)], False),
        ([(400, 20.0), (790, 25.0), (900, 25.4), (1000, 25.1)], False),  # the best one counts, not the last
        ([(400, 26.0), (800, 25.0), (1000, 26.1)], True),
        ([(500, 20.0), (1000, 10.0)], True),
        ([(1000, 30.0)], False),
        ([], False),
    ],
)
def test_a_curve_has_leveled_off_if_the_last_fifth_brought_under_0_3_bleu(
    curve: list[tuple[int, float]], expected: bool
) -> None:
    assert leveled_off(curve, METRICS["bleu"]) is expected
    turned = [(step, -score) for step, score in curve]
    assert leveled_off(turned, METRICS["ter"]) is expected


def test_a_curve_that_stays_at_0_has_not_leveled_off() -> None:
    curve = [(200, 0.0), (400, 0.0), (1000, 0.0)]
    assert not leveled_off(curve, METRICS["exact_match"]) and leveled_off(curve, METRICS["edit_distance"])


def test_a_bar_in_a_cell_of_a_table_is_escaped() -> None:
    assert format_table(["symbol"], [["|a"]]) == "| symbol |\n| ------ |\n| \\|a    |"


def test_tables_align_as_plain_text() -> None:
    assert format_table(["a", "long"], [["xyz", "1"]]) == "| a   | long |\n| --- | ---- |\n| xyz | 1    |"


def test_a_page_shows_the_learning_curves_and_says_what_the_rows_show(tmp_path: Path) -> None:
    rows = [
        made_up_row("serial", "en de", curve=[[100, 20.04], [200, 21.0]]),
        made_up_row("english", "en", curve=[[200, 5.0]]),
    ]
    (tmp_path / "tiny").mkdir()
    for row in rows:
        (tmp_path / "tiny" / f"{row['name']}.json").write_text(json.dumps(row))
    (tmp_path / "tiny" / "notes.md").write_text("English is slow.\n\n- More.\n")
    results.main(["table", "tiny", "--results", str(tmp_path)])
    page = (tmp_path / "tiny.md").read_text("utf-8")
    curves = page.split("## Learning curves")[1]
    assert cells_of(curves)[0] == ["updates", "english", "serial"]
    assert cells_of(curves)[2:] == [["100", "", "20.0"], ["200", "5.0", "21.0"]]
    assert page.startswith("<!-- Made by `hf-multisource results table tiny` from what lies in tiny/. Do not edit. -->")
    assert page.splitlines()[3] == "English is slow."  # the answer comes first
    assert "## What they show\n\n- More.\n" in page
    assert "## Sources taken away" not in page


def test_a_table_shows_every_row_and_marks_the_unfinished_which_it_does_not_compare() -> None:
    several = {"all": figures(27.0), "wrong-de": figures(21.0, draws=5), "absent-en": figures(9.0)}
    baseline = {"run": "english", "bleu": {"difference": 2.0, "p_value": 0.004}}
    page = render(
        "multi30k",
        [
            made_up_row("serial", "en de", scores=several, baseline=baseline, finished=False),
            made_up_row("english", "en", combiner="", dev_loss=1.2346),
            made_up_row("parallel", "en de", baseline=baseline),
            made_up_row("flat", "en de", baseline={**baseline, "run": "serial"}),
        ],
    )
    cells = cells_of(page)
    assert cells[0] == [
        *("name", "combiner", "sources", "BLEU", "chrF", "BLEU to baseline", "dev loss"),
        *("updates", "minutes", "parameters"),
    ]
    assert cells[2] == ["english", "", "en", "25.0 ± 0.8", "50.0 ± 0.8", "", "1.235", "4,500", "61.5", "1.2 M"]
    assert cells[6:] == [
        ["name", "all", "absent-en", "wrong-de"],
        ["-" * 19, "-" * 10, "-" * 9, "-" * 22],
        ["serial (unfinished)", "27.0 ± 0.8", "9.0 ± 0.8", "21.0 (5 draws, sd 0.2)"],
    ]
    assert {row[0]: row[5] for row in cells[3:6]} == {
        "flat": "",  # its baseline is unfinished
        "parallel": "+2.0 (p = 0.004) to english",
        "serial (unfinished)": "",
    }
    assert cells[5][1:5] == ["serial", "en de", "27.0 ± 0.8", "50.0 ± 0.8"]
    assert "      python training/score.py runs/x\n" in page
    assert "trained on an abacus, 2 threads; decoded on a slide rule, 1 threads, beam 4" in page


def test_a_table_has_perplexities_where_rows_have_them() -> None:
    page = render("t", [made_up_row("a", "en", perplexity=12.345), made_up_row("b", "en")])
    header, _, *rows = cells_of(page)
    place = header.index("perplexity")
    assert [row[place] for row in rows] == ["12.3", ""]
    assert "*perplexity*: perplexity of the test set's references" in page


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"hf-multisource results table: .*multi30k holds no row"):
        results.main(["table", "multi30k", "--results", str(tmp_path)])


# The scripts as typed, with a tiny random model.
@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", tmp_path)


def give_input(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Make a text the standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_score_writes_every_condition_and_the_table(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    score.main([str(run), *OPTIONS, "--adversarial", "--draws", "2", "--absent", "--only"])
    shown, noted = capfd.readouterr()
    names = ["all", "wrong-en", "absent-en", "only-en", "wrong-de", "absent-de", "only-de"]
    conditions, _, _ = shown.partition("\n\n")
    assert [line.split()[1] for line in conditions.splitlines()] == ["condition", "---------", *names]
    report = json.loads((run / "scores" / "test.json").read_text("utf-8"))
    assert list(report["conditions"]) == names
    assert report["search"]["length_penalty_formula"] == "transformers: sum(log p) / length**length_penalty"
    assert (report["search"]["max_length"], report["data"]["absent.de"]) == (16, 1)
    for condition, entry in report["conditions"].items():
        assert len(entry["draws"]) == (2 if condition.startswith("wrong") else 1)
        for draw in entry["draws"]:
            hypotheses = read_lines(run / "scores" / draw["hypotheses"])
            assert len(hypotheses) == 12
            assert draw["chrf"]["score"] == pytest.approx(CHRF().corpus_score(hypotheses, [COLUMNS["cs"]]).score)
            assert ("p_value" in draw["bleu"]) == (condition != "all")
            whole = report["conditions"]["all"]["draws"][0]["perplexity"]["tokens"]
            lacking = condition in ("only-de", "absent-en")  # a row has no German
            assert (draw["perplexity"]["tokens"] < whole) == lacking
    nats = [report["conditions"][name]["draws"][0]["perplexity"]["cross_entropy"] for name in names]
    assert len(set(nats)) == len(nats) - 2  # the same two pairs
    texts = {path.stem: path.read_bytes() for path in (run / "scores").glob("test.*.txt")}
    assert texts["test.absent-de"] == texts["test.only-en"]
    assert len(set(texts.values())) == len(texts) - 2  # absent-de and only-en, absent-en and only-de
    assert "both `max_new_tokens`" not in noted.lower()


@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_perplexity_is_that_of_each_reference_token_by_token(run: Path, batch_size: int) -> None:
    model, processor = load_model(str(run), "cpu")
    rows: list[Row] = [{name: column[i] or None for name, column in COLUMNS.items()} for i in range(12)]
    rows.append({"en": None, "de": None, "cs": "nobody said this"})
    nats = []
    for row in rows[:-1]:
        inputs = processor(en=[row["en"]], de=[row["de"]], text_target=[row["cs"]], return_tensors="pt")
        labels = inputs.pop("labels")[0].tolist()
        for i, token in enumerate(labels):
            prefix = torch.tensor([[model.config.decoder_start_token_id, *labels[:i]]])
            with torch.no_grad():
                logits = model(**inputs, decoder_input_ids=prefix).logits[0, -1]
            nats.append(-logits.log_softmax(dim=-1)[token].item())
    found = cross_entropy(model, processor, rows, "cs", 64, batch_size)
    mean = sum(nats) / len(nats)
    assert found == {
        "score": pytest.approx(math.exp(mean), rel=1e-4),
        "cross_entropy": pytest.approx(mean, rel=1e-5),
        "tokens": len(nats),
    }
    nothing = {"score": None, "cross_entropy": None, "tokens": 0}
    assert cross_entropy(model, processor, rows[-1:], "cs", 16) == nothing


def test_the_report_and_its_row_say_which_rule_of_length_was_used(run: Path) -> None:
    score.main([str(run), *OPTIONS, "--length_normalization", "0.8"])
    search = json.loads((run / "scores" / "test.json").read_text("utf-8"))["search"]
    assert search["length_normalization"] == 0.8 and "length_penalty" not in search
    page = render("made-up", [make_row(run, "made-up", "serial")])
    assert "beam 2, length normalization 0.8 (Wu et al. 2016, at every step: sum(log p) / ((5 + length) / 6)" in page
    with pytest.raises(SystemExit, match=r"length_penalty was None, is 1\.0"):
        score.main([str(run), *OPTIONS])
    with pytest.raises(SystemExit, match=r"length_normalization is 0\.8 with num_beams 2 and length_penalty 0\.6"):
        score.main([str(run), *OPTIONS, "--length_normalization", "0.8", "--length_penalty", "0.6"])


def test_an_interrupted_score_goes_on_and_finished_conditions_stay(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    score.main([str(run), *OPTIONS, "--absent"])
    report = json.loads((run / "scores" / "test.json").read_text("utf-8"))
    texts = {path: path.read_bytes() for path in (run / "scores").glob("*.txt")}
    torn = run / "scores" / "test.absent-de.txt"
    torn.write_bytes(texts[torn][:-3])
    (run / "scores" / "test.json").unlink()
    generated = []
    generate = MultiSourceForConditionalGeneration.generate

    def counting(self: Any, **inputs: Any) -> Any:
        generated.append(len(inputs["input_ids"]))
        return generate(self, **inputs)

    monkeypatch.setattr(MultiSourceForConditionalGeneration, "generate", counting)
    score.main([str(run), *OPTIONS, "--absent"])
    assert generated == [1]
    assert {path: path.read_bytes() for path in (run / "scores").glob("*.txt")} == texts
    again = json.loads((run / "scores" / "test.json").read_text("utf-8"))
    for condition in report["conditions"]:
        for name in ("bleu", "chrf"):
            assert again["conditions"][condition][name] == report["conditions"][condition][name]

    score.main([str(run), *OPTIONS])  # asked for less: what is known stays, and the commands of both are kept
    report = json.loads((run / "scores" / "test.json").read_text("utf-8"))
    assert list(report["conditions"]) == ["all", "absent-en", "absent-de"]
    assert len(report["commands"]) == 2
    assert "| absent-de |" in capsys.readouterr().out


def test_conditions_of_other_references_do_not_stay(run: Path, tmp_path: Path) -> None:
    score.main([str(run), *OPTIONS, "--absent"])
    texts = {path: path.read_bytes() for path in (run / "scores").glob("test.a*.txt")}
    write_lines(tmp_path / "test.cs", [*COLUMNS["cs"][1:], COLUMNS["cs"][0]])
    score.main([str(run), *OPTIONS])
    assert list(json.loads((run / "scores" / "test.json").read_text("utf-8"))["conditions"]) == ["all"]
    assert {path: path.read_bytes() for path in texts} == texts


def test_a_perplexity_of_some_tokens_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score.main([str(run), *OPTIONS, "--absent"])
    draws = json.loads((run / "scores" / "test.json").read_text("utf-8"))["conditions"]
    tokens = {name: entry["draws"][0]["perplexity"]["tokens"] for name, entry in draws.items()}
    header, _, *lines = cells_of(capsys.readouterr().out.partition("\n\n")[0])
    shown = {line[0]: line[header.index("perplexity")] for line in lines}
    assert tokens["absent-en"] < tokens["absent-de"] == tokens["all"], "one row has no German"
    assert shown["absent-en"].endswith(f" ({tokens['absent-en']} of {tokens['all']} tokens)")
    assert "tokens" not in shown["all"] + shown["absent-de"]


def test_scoring_another_way_into_the_same_folder_is_refused_and_changes_nothing(run: Path) -> None:
    score.main([str(run), *OPTIONS])
    before = {path.name: path.read_bytes() for path in (run / "scores").iterdir()}
    with pytest.raises(SystemExit, match=r"^hf-multisource score: .*test\.all\.txt was begun with .*: rows was 12, is"):
        score.main([str(run), *OPTIONS, "--limit", "5"])
    assert {path.name: path.read_bytes() for path in (run / "scores").iterdir()} == before


def test_a_model_without_recipe_needs_to_be_told_the_data(run: Path, tmp_path: Path) -> None:
    (run / "recipe.yaml").unlink()
    with pytest.raises(SystemExit, match=r"has no recipe\.yaml, so give --data, --target, --split"):
        score.main([str(run), *OPTIONS])
    told = ("--data", str(tmp_path), "--target", "cs", "--split", "test", "--out", str(tmp_path / "out"))
    score.main([str(run), *OPTIONS, *told])
    assert len(read_lines(tmp_path / "out" / "test.all.txt")) == 12


def test_a_concatenation_model_is_examined_by_the_sources_it_joins(run: Path, tmp_path: Path) -> None:
    joined = make_run(tmp_path / "joined", tmp_path, concatenate=True)
    score.main([str(joined), *OPTIONS, "--absent"])
    report = json.loads((joined / "scores" / "test.json").read_text("utf-8"))
    assert report["sources"] == ["en", "de"]
    texts = {path.stem: path.read_bytes() for path in (joined / "scores").glob("test.a*.txt")}
    assert len(set(texts.values())) == len(texts) == 3
    assert make_row(joined, "t", "joined")["combiner"] == "concatenated"


def test_results_makes_a_row_from_a_run_and_the_table_from_the_row(run: Path, tmp_path: Path) -> None:
    baseline = make_run(tmp_path / "english", tmp_path, concatenate=True)
    for folder in (run, baseline):
        score.main([str(folder), *OPTIONS])
    out = tmp_path / "results"
    arguments = ["row", str(run), "--table", "tiny", "--name", "serial", "--results", str(out)]
    results.main([*arguments, "--baseline", str(baseline)])
    row = json.loads((out / "tiny" / "serial.json").read_text("utf-8"))
    assert (row["combiner"], row["sources"], row["updates"], row["minutes"]) == ("serial", ["en", "de"], 1000, 1.5)
    assert (row["seed"], row["finished"], row["curve"][0]) == (7, True, [100, 20.0])
    hypotheses, others = (read_lines(folder / "scores" / "test.all.txt") for folder in (run, baseline))
    assert row["baseline"] == compared("english", hypotheses, others, COLUMNS["cs"])
    assert row["scores"]["all"]["bleu"]["score"] == BLEU().corpus_score(hypotheses, [COLUMNS["cs"]]).score
    assert str(tmp_path) not in json.dumps({**row, "commands": []})
    report = json.loads((run / "scores" / "test.json").read_text("utf-8"))
    assert row["perplexity"] == report["conditions"]["all"]["draws"][0]["perplexity"]["score"] > 1
    assert not (out / "tiny" / "serial.png").exists()
    (tmp_path / "plot.png").write_bytes(b"a plot")
    results.main([*arguments, "--baseline", str(baseline), "--plot", str(tmp_path / "plot.png")])
    assert (out / "tiny" / "serial.png").read_bytes() == b"a plot"
    (tmp_path / "s.attention-0.png").write_bytes(b"another")
    (tmp_path / "s.json").write_text('{"commands": ["python training/score.py run --attention-plot 0"]}')
    results.main([*arguments, "--baseline", str(baseline), "--plot", str(tmp_path / "s.attention-0.png")])
    commands = json.loads((out / "tiny" / "serial.json").read_text("utf-8"))["commands"]
    assert commands == [*row["commands"], "python training/score.py run --attention-plot 0"]
    assert commands[0] == "python training/train.py x.yaml"
    page = (out / "tiny.md").read_text("utf-8")
    assert "| serial | serial   | en de" in page
    assert "      python training/score.py run --attention-plot 0\n" in page
    (out / "tiny.md").unlink()
    results.main(["table", "tiny", "--results", str(out)])
    assert (out / "tiny.md").read_text("utf-8") == page


def test_a_row_of_an_unfinished_run_says_what_is_lacking(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds scores of no split; name one with --split"):
        make_row(run, "t", "x")
    with pytest.raises(FileNotFoundError, match=r"test\.json is not there; `hf-multisource score` writes it"):
        make_row(run, "t", "x", split="test")
    score.main([str(run), *OPTIONS])
    with pytest.raises(FileNotFoundError, match=r"baseline/scores/test\.reference\.txt.* not there"):
        make_row(run, "t", "x", baseline=tmp_path / "baseline")
    (run / "train_summary.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"train_summary\.json is not there; `hf-multisource train` writes it"):
        make_row(run, "t", "x")


def test_runs_scored_on_other_references_are_not_compared(run: Path, tmp_path: Path) -> None:
    score.main([str(run), *OPTIONS])
    other = make_run(tmp_path / "other", tmp_path)
    write_lines(tmp_path / "test.cs", [f"{text}!" for text in COLUMNS["cs"]])
    score.main([str(other), *OPTIONS])
    with pytest.raises(ValueError, match="were scored on different references of test"):
        make_row(run, "t", "x", baseline=other)


def test_translate_gives_the_hypotheses_of_score_from_files_and_from_a_table(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    score.main([str(run), *OPTIONS])
    expected = read_lines(run / "scores" / "test.all.txt")
    out = tmp_path / "out.txt"
    cut = ("--max_length", "16")  # as in the recipe
    files = ("--de", str(tmp_path / "test.de"), "--en", str(tmp_path / "test.en"))
    capsys.readouterr()
    translate.main([str(run), *files, *OPTIONS, *cut, "--out", str(out)])
    shown, noted = capsys.readouterr()
    assert shown == ""
    assert "12/12" in noted
    assert read_lines(out) == expected
    table = "".join(f"{en}\t{de}\n" for en, de in zip(COLUMNS["en"], COLUMNS["de"], strict=True))
    give_input(monkeypatch, table)
    translate.main([str(run), *OPTIONS, *cut])
    assert capsys.readouterr().out.split("\n") == [*expected, ""]


@pytest.mark.parametrize("end", ["csv", "tsv.gz"])
def test_score_and_translate_read_tables_with_a_header(
    run: Path, tmp_path: Path, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    score.main([str(run), *OPTIONS])
    scores = run / "scores"
    expected = {name: read_lines(scores / f"test.{name}.txt") for name in ("all", "reference")}
    for name in COLUMNS:
        (tmp_path / f"test.{name}").unlink()
    shutil.rmtree(scores)
    order = ["cs", "de", "en"]  # by name, not by place
    rows = [order, *zip(*(COLUMNS[name] for name in order), strict=True)]
    text = "".join(("," if end == "csv" else "\t").join(row) + "\r\n" for row in rows)
    text = text.replace(COLUMNS["cs"][0], f'"{COLUMNS["cs"][0].replace(" ", chr(10), 1)}"')
    path = tmp_path / f"test.{end}"
    path.write_bytes(gzip.compress(text.encode()) if end.endswith("gz") else text.encode())
    score.main([str(run), *OPTIONS])
    assert {name: read_lines(scores / f"test.{name}.txt") for name in expected} == expected
    capsys.readouterr()
    translate.main([str(run), "--input", str(path), *OPTIONS, "--max_length", "16"])
    assert capsys.readouterr().out.split("\n") == [*expected["all"], ""]


def test_translate_names_the_column_that_a_table_lacks(run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a small dog\tein Hund\n", "utf-8")
    with pytest.raises(SystemExit, match=r"x\.tsv, line 1: no column 'en'; its columns are a small dog, ein Hund"):
        translate.main([str(run), "--input", str(tmp_path / "x.tsv"), *OPTIONS])


def test_translate_joins_the_sources_of_a_run_that_joined_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = make_run(tmp_path / "joined", tmp_path, concatenate=True)
    (tmp_path / "en.txt").write_text("a small dog\n\n")
    (tmp_path / "de.txt").write_text("zwei Hunde\nzwei Hunde\n")
    files = ("--en", str(tmp_path / "en.txt"), "--de", str(tmp_path / "de.txt"))
    translate.main([str(joined), *files, *OPTIONS])
    model, processor = load_model(str(joined), "cpu")
    search = Search(num_beams=2, max_new_tokens=6)
    rows: list[Row] = [{"all": "a small dog | zwei Hunde"}, {"all": "zwei Hunde"}]
    expected = decode(model, processor, rows, tmp_path / "out.txt", search, batch_size=4).best
    assert capsys.readouterr().out.split("\n") == [*expected, ""]


def test_translate_writes_the_n_best_with_falling_scores(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "input.jsonl"
    path.write_text('{"en": "a small dog"}\n{}\n{"de": "two old cats"}\n')
    arguments = (
        str(run),
        "--input",
        str(path),
        "--jsonl",
        "--num_beams",
        "4",
        "--max_new_tokens",
        "6",
        "--n_best",
        "3",
    )
    translate.main(arguments)
    lines = [line.split("\t", 2) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [line[0] for line in lines] == [*"000111222"]
    assert [line[1:] for line in lines[3:6]] == [["nan", ""]] * 3
    for first in (0, 6):
        scores = [float(line[1]) for line in lines[first : first + 3]]
        assert scores == sorted(scores, reverse=True)
        assert len({line[2] for line in lines[first : first + 3]}) == 3


def test_translate_refuses_what_is_wrong_with_its_command_line(run: Path) -> None:
    for arguments, message in [
        ([str(run), "--en", "x", "--jsonl"], "give one file per source (--en) or a table"),
        ([str(run.parent / "nothing"), "--en", "x"], "nothing is no folder of a model"),
        ([str(run), "--n_best", "3", "--num_beams", "2"], "n_best is 3 with num_beams 2"),
        ([str(run), "--en", str(run / "no.txt")], "no.txt"),
        (["--en", "x"], "the model comes first"),
        ([str(run), "--fr", "x"], "unknown option --fr; the options of this model's sources are --en, --de"),
    ]:
        with pytest.raises(SystemExit) as stopped:
            translate.main(arguments)
        assert message in str(stopped.value)


# What is refused before any work, and what is reported.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch_size", "-1"], "batch_size is -1; it must be at least 1"),
        (["--batch_size", "0"], "batch_size is 0; it must be at least 1"),
        (["--num_beams", "0"], "num_beams is 0; it must be at least 1"),
        (["--n_best", "-2"], "n_best is -2; it must be at least 0"),
        (["--max_new_tokens", "0"], "max_new_tokens is 0; it must be at least 1"),
        (["--max_length", "1"], "max_length is 1; it must be at least 2"),
        (["--length_penalty", "nan"], "length_penalty is nan; it must be a finite number"),
        (["--optimize", "wrong"], "optimize is 'wrong'; allowed are best, int8"),
        (["--unreadable", "maybe"], "unreadable is 'maybe'; allowed are error, absent"),
        (["--device", "abacus"], "device is 'abacus'; what PyTorch can use here is cpu"),
        (["--en", "again"], "--en is given twice: sentences and again"),
        (["--out", "folder"], "folder is a folder: name a file"),
        (["--out", "sentences/out.txt"], "sentences is a file, not a folder"),
    ],
)
def test_translate_names_a_bad_option_before_the_model_is_loaded(
    options: list[str], message: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(translating, "load_members", None)
    (tmp_path / "folder").mkdir()
    (tmp_path / "sentences").write_text("a small dog\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match=f"^hf-multisource translate: .*{re.escape(message)}"):
        translate.main([str(run), "--en", "sentences", *options])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num_beams", "0"], "num_beams is 0; it must be at least 1"),
        (["--batch_size", "0"], "batch_size is 0; it must be at least 1"),
        (["--max_length", "1"], "max_length is 1; it must be at least 2"),
        (["--draws", "0"], "draws is 0; it must be at least 1"),
        (["--optimize", "wrong"], "optimize is 'wrong'; allowed are best, int8"),
        (["--device", "abacus"], "device is 'abacus'; what PyTorch can use here is cpu"),
        (["--attention_plot", "12"], "--attention_plot 12: there are 12 sentences, numbered from 0"),
        (["--adversarial", "--limit", "1"], "source 'en' cannot be made wrong"),
        (["--split", "dev"], "no split 'dev' in"),
    ],
)
def test_a_refused_score_writes_nothing_and_blocks_no_later_one(
    options: list[str], message: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "load_members", None)
        with pytest.raises(SystemExit, match=f"^hf-multisource score: .*{re.escape(message)}"):
            score.main([str(run), *OPTIONS, *options])
    assert not (run / "scores").exists()


def test_a_score_that_fails_in_its_first_batch_blocks_no_other_settings(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, **inputs: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(MultiSourceForConditionalGeneration, "generate", fail)
        with pytest.raises(MemoryError):
            score.main([str(run), *OPTIONS, "--num_beams", "3"])
    score.main([str(run), *OPTIONS])
    assert len(read_lines(run / "scores" / "test.all.txt")) == 12


def test_scored_translations_have_tokens_of_the_shortlist_alone(run: Path, tmp_path: Path) -> None:
    listed = tmp_path / "words.txt"
    write_lines(listed, REFERENCES[:1])
    score.main([str(run), *OPTIONS, "--out", str(tmp_path / "all")])
    score.main([str(run), *OPTIONS, "--out", str(tmp_path / "few"), "--shortlist", str(listed)])
    every, few = ("".join(read_lines(tmp_path / name / "test.all.txt")) for name in ("all", "few"))
    assert {*few} <= {*REFERENCES[0]} and not {*every} <= {*REFERENCES[0]}
    report = json.loads((tmp_path / "few" / "test.json").read_text())
    assert report["search"]["shortlist"] == str(listed)


@pytest.mark.parametrize(
    ("recipe", "longest"), [(True, 16), (False, 1024)], ids=["a run folder", "a model without recipe"]
)
def test_translate_cuts_a_source_at_the_recipes_length_and_counts_it(
    recipe: bool, longest: int, run: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not recipe:
        (run / "recipe.yaml").unlink()
    read: list[int] = []
    generate = MultiSourceForConditionalGeneration.generate

    def watching(self: Any, **inputs: Any) -> Any:
        read.append(inputs["input_ids"].shape[1])
        return generate(self, **inputs)

    monkeypatch.setattr(MultiSourceForConditionalGeneration, "generate", watching)
    give_input(monkeypatch, "dog " * 20_000 + "\tcats\n")
    translate.main([str(run), "--num_beams", "1", "--max_new_tokens", "2", "--device", "cpu"])
    assert read == [longest]
    assert caplog.messages == [f"decoding: sources longer than {longest} tokens were cut (max_length): en in 1 rows"]
    give_input(monkeypatch, "dog " * 20_000 + "\tcats\n")
    translate.main([str(run), "--num_beams", "1", "--max_new_tokens", "2", "--device", "cpu", "--max_length", "9"])
    assert read == [longest, 9]


def test_a_learned_position_table_limits_the_length_of_a_source(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tmp_path)
    (run / "recipe.yaml").unlink()
    processor = MultiSourceProcessor.from_pretrained(run)
    sources: list[Any] = ["en", {"name": "de", "position_embedding": "learned", "max_position_embeddings": 40}]
    config = tiny_config("serial", sources, vocab_size=280)
    assert translating.source_limit(str(run), config, processor) == 40
    processor.get_tokenizer("de").model_max_length = 30
    assert translating.source_limit(str(run), config, processor) == 30


def test_translate_keeps_to_the_positions_of_all_members_and_of_the_decoder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    learned: dict[str, Any] = {"position_embedding": "learned", "max_position_embeddings": 8}
    other = shutil.copytree(run, tmp_path / "other")
    sources: list[Any] = [{"name": "en", **learned}, "de"]
    MultiSourceForConditionalGeneration(tiny_config(sources=sources, vocab_size=280)).save_pretrained(other)
    command = [str(run), "--num_beams", "1", "--device", "cpu", "--ensemble", str(other)]
    give_input(monkeypatch, "dog " * 50 + "\tcats\n")
    translate.main([*command, "--max_new_tokens", "2"])
    assert caplog.messages == ["decoding: sources longer than 8 tokens were cut (max_length): en in 1 rows"]
    MultiSourceForConditionalGeneration(tiny_config(vocab_size=280, **learned)).save_pretrained(other)
    give_input(monkeypatch, "dog\tcats\n")
    with pytest.raises(SystemExit, match=r"max_new_tokens is 9, but the decoder of .*other has 8 positions"):
        translate.main([*command, "--max_new_tokens", "9"])


def test_score_reports_the_lines_that_it_leaves_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "test.cs", ["", "", *COLUMNS["cs"][2:]])
    write_lines(tmp_path / "test.en", [*COLUMNS["en"][:3], "", *COLUMNS["en"][4:]])  # nor is there German in line 4
    score.main([str(run), *OPTIONS])
    shown = capsys.readouterr().out
    assert "2 of the 12 lines of split 'test' are not scored: they have no reference\n" in shown
    assert "1 of the 12 lines of split 'test' are not scored: they have no source\n" in shown
    counts = json.loads((run / "scores" / "test.json").read_text("utf-8"))["data"]
    assert (counts["dropped_empty_target"], counts["dropped_no_source"], counts["rows"]) == (2, 1, 9)


def test_score_needs_no_cache_of_the_hub(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`evaluate` and `datasets` make folders in HF_HOME, which may be read-only; scoring imports neither."""
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file" / "cache"))
    for name in ("evaluate", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    score.main([str(run), *OPTIONS, "--limit", "3"])
    assert (run / "scores" / "test.json").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("tokenizer.json", Path.unlink, "run is no complete folder of a tokenizer: it has no tokenizer.json"),
        ("tokenizer.json", cut, "run/tokenizer.json holds no valid JSON"),
        ("tokenizer_config.json", Path.unlink, "run is no complete folder of a model: it has no tokenizer_config.json"),
        ("tokenizer_config.json", cut, "run/tokenizer_config.json holds no valid JSON"),
        ("processor_config.json", Path.unlink, "run is no complete folder of a model: it has no processor_config.json"),
        ("processor_config.json", cut, "run/processor_config.json holds no valid JSON"),
        ("config.json", Path.unlink, "run is no folder of a model: it has no config.json"),
        ("config.json", cut, "run/config.json holds no valid JSON"),
        ("generation_config.json", cut, "run/generation_config.json holds no valid JSON"),
        ("model.safetensors", Path.unlink, "the weights of {run} cannot be loaded: .*model.safetensors"),
        ("model.safetensors", cut, "the weights of {run} cannot be loaded: .*run"),
    ],
)
def test_a_missing_or_cut_file_of_a_model_is_named(
    name: str, damage: Callable[[Path], None], message: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(run / name)
    give_input(monkeypatch, "a\tb\n")
    for command, options in ((translate, []), (score, ["--num_beams", "2"])):
        with pytest.raises(SystemExit, match=message.format(run=re.escape(str(run)))) as stopped:
            command.main([str(run), *options, "--device", "cpu"])
        assert "\n" not in str(stopped.value)
    assert not (run / "scores").exists()


def test_a_model_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(SystemExit, match="holds a model of type 'bert', which does not have several sources"):
        translate.main([str(tmp_path), "--en", "x"])


def test_a_damaged_report_is_named(run: Path) -> None:
    (run / "scores").mkdir()
    (run / "scores" / "test.json").write_text('{"conditions":')
    with pytest.raises(SystemExit, match=r"scores/test\.json holds no valid JSON"):
        score.main([str(run), *OPTIONS])
