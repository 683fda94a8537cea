"""Exact match, edit distances and B-cubed F of sequences of symbols, against their definitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_multisource.metrics.bootstrap import measure_metric, paired_bootstrap
from hf_multisource.metrics.symbols import GAP, align_symbols, count_symbol_errors
from hf_multisource.metrics.table import METRICS
from reference import alignments, bcubed_f, edit_distance

SYMBOL_METRICS = ("exact_match", "edit_distance", "normalized_edit_distance", "symbol_error_rate", "bcubed_f")
REFERENCES = ["k a t͡ʃ", "a", "i n oː a", "k a"]
HYPOTHESES = ["k a t͡ʃ", "", "i m oː a u", "a"]
WORD = st.lists(st.sampled_from(["a", "t͡ʃ", "oː", "n"]), max_size=4)


def naive_bcubed(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    pairs = zip(references, hypotheses, strict=True)
    return bcubed_f(
        [pair for one, other in pairs for pair in align_symbols(one.split() or ["?"], other.split() or "?")]
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exact_match", 100 / 4),
        ("edit_distance", (0 + 1 + 2 + 1) / 4),
        ("normalized_edit_distance", (0 + 1 + 2 / 4 + 1 / 2) / 4),
        ("symbol_error_rate", 100 * 4 / 10),
        ("bcubed_f", naive_bcubed(HYPOTHESES, REFERENCES)),
    ],
)
def test_a_small_test_set_has_the_score_that_a_person_can_compute(name: str, expected: float) -> None:
    found = measure_metric(name, HYPOTHESES, REFERENCES, n_bootstrap=40)
    assert found["score"] == pytest.approx(expected)
    assert float(found["ci_low"]) <= float(found["score"]) <= float(found["ci_high"])
    assert str(found["signature"]).startswith("nrefs:1|bs:40|seed:12345|tok:blanks|")


@given(words=st.lists(st.tuples(WORD, WORD), min_size=1, max_size=5), seed=st.integers(0, 9))
def test_every_selection_of_sentences_has_the_score_of_the_definitions(
    words: list[tuple[list[str], list[str]]], seed: int
) -> None:
    chosen = np.random.default_rng(seed).integers(0, len(words), len(words))
    texts = [(" ".join(ours), " ".join(theirs)) for ours, theirs in words]
    for rows in (None, chosen):
        picked = [words[i] for i in (range(len(words)) if rows is None else rows)]
        edits = [edit_distance(ours, theirs) for ours, theirs in picked]
        lengths = [len(theirs) for _, theirs in picked]
        expected = {
            "exact_match": 100 * np.mean([ours == theirs for ours, theirs in picked]),
            "edit_distance": np.mean(edits),
            "normalized_edit_distance": np.mean([n / max(size, 1) for n, size in zip(edits, lengths, strict=True)]),
            "symbol_error_rate": 100 * (sum(edits) / sum(lengths) if sum(lengths) else sum(edits) > 0),
            "bcubed_f": naive_bcubed(*zip(*((" ".join(one), " ".join(other)) for one, other in picked), strict=True)),
        }
        for name, score in expected.items():
            measured = METRICS[name].measure(*map(list, zip(*texts, strict=True)))
            assert measured.score(rows) == pytest.approx(score, rel=1e-9), name


@given(one=WORD, other=WORD)
def test_an_alignment_is_a_best_one(one: list[str], other: list[str]) -> None:
    def score(pairs: Sequence[tuple[str, str]]) -> int:
        return sum(1 if left == right else -1 for left, right in pairs)

    every = alignments(one, other, GAP)
    found = align_symbols(one, other)
    assert found in every
    assert score(found) == max(map(score, every))


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [  # as LingPy 2.6 aligns them
        ("a b c", "x b c d", "a/x b/b c/c -/d"),
        ("a b", "b a", "a/- b/b -/a"),
        ("a a b", "a b", "a/- a/a b/b"),
        ("?", "a b c", "?/a -/b -/c"),
    ],
)
def test_of_several_best_alignments_lingpys_is_taken(reference: str, hypothesis: str, expected: str) -> None:
    assert align_symbols(reference.split(), hypothesis.split()) == [tuple(pair.split("/")) for pair in expected.split()]


def test_consistent_errors_cost_nothing_in_bcubed_f_and_inconsistent_ones_do() -> None:
    references = ["a b", "a c", "a d"]
    scores = {
        text: METRICS["bcubed_f"].measure([f"{text[i]} {last}" for i, last in enumerate("bcd")], references).score()
        for text in ("aaa", "xxx", "xya")
    }
    assert scores["aaa"] == scores["xxx"] == 1.0
    assert scores["xya"] < 0.9


def test_blanks_are_not_counted_and_plain_text_is_counted_in_words() -> None:
    for name in SYMBOL_METRICS:
        best = METRICS[name].measure(["the  cat sat"], ["the cat sat "]).score()
        assert best == {"exact_match": 100, "bcubed_f": 1}.get(name, 0)
    assert METRICS["edit_distance"].measure(["the dog sat"], ["the cat sat"]).score() == 1


@pytest.mark.parametrize("name", SYMBOL_METRICS)
def test_better_output_is_better_by_the_tables_own_direction_and_beyond_chance(name: str) -> None:
    references = [" ".join("abcdef"[i % 6] for i in range(k, k + 4 + k % 3)) for k in range(60)]
    good = [f"{text} q" if k % 6 == 0 else text for k, text in enumerate(references)]
    bad = [text.replace("a", "xyz"[k % 3]) for k, text in enumerate(references)]
    found = paired_bootstrap(good, bad, references, metrics=[name], n_samples=100)[name]
    assert (found["difference"] > 0) is METRICS[name].higher_is_better
    assert found["p_value"] < 0.05


def test_errors_are_counted_by_symbol_by_confusion_and_by_third() -> None:
    #             replaced   left out    inserted at the end   all right, "-" is a symbol like any other
    references = ["n o k t", "l a k t", "a k u", "- a"]
    found = count_symbol_errors(["n u k t", "l a t", "a k u m", "- a"], references)
    assert found.symbols == {"n": 1, "o": 1, "k": 3, "t": 2, "l": 1, "a": 3, "u": 1, "-": 1}
    assert found.confusions == {("o", "u"): 1, ("k", ""): 1, ("", "m"): 1}
    assert found.rate("o") == 100 and found.rate("k") == pytest.approx(100 / 3) and found.rate("-") == 0
    # Symbols of the four words by thirds: 1 2 1, 1 2 1, 1 1 1, 1 0 1.
    assert found.thirds == [(0, 4), (2, 5), (1, 4)]


@pytest.mark.parametrize(
    ("hypothesis", "reference", "thirds"),
    [
        ("x a b c", "a b c", [1, 0, 0]),
        ("a x b c", "a b c", [0, 1, 0]),
        ("a b c x", "a b c", [0, 0, 1]),
        ("", "a", [0, 1, 0]),
        ("", "a b", [1, 0, 1]),
        ("", "a b c d e f g", [2, 3, 2]),
        ("x y", "", [2, 0, 0]),
    ],
)
def test_an_error_lies_in_the_third_of_its_symbol(hypothesis: str, reference: str, thirds: list[int]) -> None:
    assert [errors for errors, _ in count_symbol_errors([hypothesis], [reference]).thirds] == thirds


@given(st.lists(st.tuples(st.text("ab- ", max_size=12), st.text("ab- ", max_size=12)), min_size=1, max_size=5))
def test_symbol_errors_sum_to_the_edit_distance(pairs: list[tuple[str, str]]) -> None:
    hypotheses, references = ([*texts] for texts in zip(*pairs, strict=True))
    found = count_symbol_errors(hypotheses, references)
    edits = METRICS["edit_distance"].measure(hypotheses, references).score() * len(pairs)
    assert sum(found.confusions.values()) == pytest.approx(edits)
    assert sum(errors for errors, _ in found.thirds) == pytest.approx(edits)
    assert sum(count for _, count in found.thirds) == sum(found.symbols.values()) == len(" ".join(references).split())
    assert all(one != other for one, other in found.confusions)
    for symbol, count in found.symbols.items():
        wrong = sum(times for (one, _), times in found.confusions.items() if one == symbol)
        assert found.rate(symbol) == pytest.approx(100 * wrong / count)
