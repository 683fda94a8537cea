"""A metric is one entry of the table: training, scores, rows, tables and cards take it from there."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER

from hf_multisource.cli.card import main as card_main
from hf_multisource.cli.results import main as results_main
from hf_multisource.cli.score import main as score_main
from hf_multisource.metrics import counted, measurement
from hf_multisource.metrics.bootstrap import measure_metric, paired_bootstrap
from hf_multisource.metrics.measurement import Counts, mean_of
from hf_multisource.metrics.table import METRICS, Metric
from hf_multisource.recipes.schema import data_keys
from runs import EVALUATED, make_folder, read_json, recipe_of, train_at
from scored import OPTIONS as SEARCH
from scored import cells_of, make_run

WORDS = ["the", "a", "cat,", "dog.", "(sat)", "on", "mat!", "x's", "Kočka", "spí", "12.5", "—", "«ano»"]
OPTIONS: list[tuple[Callable[..., Counts], Any, dict[str, Any]]] = [
    (counted.bleu, BLEU, {"tokenize": "none", "lowercase": True, "smooth_method": "add-k"}),
    (counted.bleu, BLEU, {"smooth_method": "floor", "effective_order": True}),
    (counted.bleu, BLEU, {"max_ngram_order": 2}),
    (counted.chrf, CHRF, {"word_order": 2}),
    (counted.chrf, CHRF, {"word_order": 1, "eps_smoothing": True, "lowercase": True, "whitespace": True, "beta": 3}),
    (counted.ter, TER, {"normalized": True, "case_sensitive": True}),
    *((getattr(counted, name), oracle, {}) for name, oracle in (("bleu", BLEU), ("chrf", CHRF), ("ter", TER))),
]


@pytest.mark.parametrize(("compute", "oracle", "options"), OPTIONS)
@pytest.mark.parametrize("size", [1, 4, 40])
def test_counts_of_sentences_add_up_to_sacrebleus_score(
    compute: Callable[..., Counts], oracle: Any, options: dict[str, Any], size: int
) -> None:
    rng = np.random.default_rng(size)
    references = [" ".join(rng.choice(WORDS, rng.integers(0, 12))) for _ in range(size)]
    hypotheses = [" ".join(word for word in text.split() if rng.random() < 0.8) for text in references]
    rows = rng.integers(0, size, size)
    measured = compute(hypotheses, references, **options)
    for chosen in (None, rows):
        texts = [[one[i] for i in (range(size) if chosen is None else chosen)] for one in (hypotheses, references)]
        metric = oracle(**options)
        assert measured.score(chosen) == pytest.approx(metric.corpus_score(texts[0], [texts[1]]).score)
        assert measured.signature == str(metric.get_signature())


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if not metric.needs_sources])
def test_texts_are_compared_in_their_composed_form(name: str) -> None:
    """Tokenizers compose texts: a model whose references are decomposed cannot write them."""
    composed = [unicodedata.normalize("NFC", text) for text in ("žluťoučký kůň", "příliš žluťoučký kůň úpěl", "é")]
    decomposed = [unicodedata.normalize("NFD", text) for text in composed]
    assert composed != decomposed
    whole = METRICS[name].measure(composed, composed).score()
    assert METRICS[name].measure(composed, decomposed).score() == whole
    assert METRICS[name].measure(decomposed, composed).score() == whole


def share_of_words(hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> Counts:
    """A toy metric that reads the sources: the share of the English words that the hypothesis repeats."""
    scores = []
    for text, source in zip(hypotheses, sources, strict=True):
        words = (source["en"] or "").split()
        scores.append(sum(word in text for word in words) / max(len(words), 1))
    return mean_of(scores, "nrefs:0|version:1")


TOY = Metric("toy COMET", share_of_words, needs_sources=True, decimals=3)


@pytest.fixture
def toy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METRICS, "toy", TOY)
        data_keys.cache_clear()  # they name all metrics
        yield
    data_keys.cache_clear()


@pytest.mark.usefixtures("toy")
def test_a_metric_that_reads_the_sources_is_given_them() -> None:
    sources = [{"en": "a b"}, {"en": "c d"}]
    found = measure_metric("toy", ["a b", "c x"], ["", ""], sources, n_bootstrap=40)
    assert found["score"] == 0.75
    assert found["signature"] == "nrefs:0|bs:40|seed:12345|version:1"
    compared = paired_bootstrap(["a b", "c x"], ["", ""], ["", ""], sources, metrics=["toy"], n_samples=40)
    assert compared["toy"]["difference"] == 0.75


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("sources", [None, [{"en": "a"}]])
def test_a_metric_that_reads_the_sources_refuses_to_go_without(sources: Sequence[Mapping[str, Any]] | None) -> None:
    with pytest.raises(ValueError, match=r"^toy COMET needs the sources of 2 sentences; got (no|1) sources$"):
        measure_metric("toy", ["a", "b"], ["a", "b"], sources, n_bootstrap=40)


@pytest.mark.usefixtures("toy")
def test_entries_of_the_table_reach_scores_rows_tables_and_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").mkdir()
    run = make_run(Path("run"), Path("text"))
    history = [{"step": 100 * i, "eval_ter": 90.0 - 5 * i, "eval_loss": 1.0} for i in range(1, 11)]
    (run / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    score_main([str(run), "--absent", "--metrics", "ter", "toy", "chrf", *SEARCH])
    header, _, first, *_ = cells_of(capsys.readouterr().out)
    assert header[1:7:2] == ["TER", "toy COMET", "chrF"]
    assert header[8] == "p to all (TER)"
    scores = read_json(run / "scores" / "test.json")["conditions"]["all"]
    assert first[3] == f"{scores['toy']['score']:.4f}"
    results_main(["row", str(run), "--table", "mine", "--name", "one", "--results", "results"])
    row = read_json(Path("results/mine/one.json"))
    assert row["curve"][0] == [100, 85.0]
    assert not row["finished"]
    page = Path("results/mine.md").read_text(encoding="utf-8")
    header, _, line = cells_of(page)[:3]
    assert header[3:7] == ["TER", "toy COMET", "chrF", "TER to baseline"]
    assert line[4] == f"{scores['toy']['score']:.3f} ± {row['scores']['all']['toy']['sd']:.3f}"
    assert "still lowered the best dev TER by 0.3 or more" in page
    card_main([str(run)])
    card = (run / "README.md").read_text(encoding="utf-8")
    assert "Best TER on the development set: 40.0." in card
    assert f"| toy COMET | {scores['toy']['score']:.3f} |" in card


def test_training_keeps_the_checkpoint_with_the_smallest_ter(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    best = {**EVALUATED, "metric_for_best_model": "ter", "greater_is_better": None, "save_total_limit": None}
    run = train_at(folder, metrics=["ter", "chrf"], **best)
    history = read_json(run / "trainer_state.json")["log_history"]
    measured = {entry["step"]: entry["eval_ter"] for entry in history if "eval_ter" in entry}
    summary = read_json(run / "train_summary.json")
    assert summary["best_metric"] == min(measured.values())
    assert measured[int(summary["best_checkpoint"].partition("-")[2])] == min(measured.values())
    assert "eval_chrf" in history[-2] or "eval_chrf" in history[-1]
    assert not any("eval_bleu" in entry for entry in history)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": ["comet"]}, f"data.metrics must be a list of some of {', '.join(METRICS)}; got ['comet']"),
        ({"metrics": []}, f"data.metrics must be a list of some of {', '.join(METRICS)}; got []"),
        (
            {**EVALUATED, "metrics": ["ter"]},
            "training.metric_for_best_model is bleu, which is not measured; data.metrics has ter",
        ),
        (
            {**EVALUATED, "metrics": ["ter"], "metric_for_best_model": "ter"},
            "training.greater_is_better must be false: a smaller TER is better (metric_for_best_model is ter)",
        ),
    ],
)
def test_a_recipe_names_metrics_of_the_table(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        recipe_of(make_folder(tmp_path), **changes)


@pytest.mark.parametrize("at_once", [1, 50, 2**20])
def test_selections_are_scored_together_as_one_by_one(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "MAX_COUNTS", at_once)
    selections = np.random.default_rng(0).integers(0, 12, (9, 7))
    texts = [" ".join("abcdefg"[i % 3 :]) for i in range(12)]
    for measured in (METRICS["bleu"].measure(texts, texts[::-1]), mean_of([0.1 * i for i in range(12)], "")):
        assert isinstance(measured, Counts)
        assert measured.scores(selections).tolist() == [measured.score(rows) for rows in selections]
