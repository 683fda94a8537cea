"""Comparisons of systems that were trained with several seeds: bootstrap, randomization, equivalence."""

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hf_multisource.metrics.bootstrap import equivalence, paired_bootstrap, pooled_bootstrap
from hf_multisource.metrics.randomization import approximate_randomization
from hf_multisource.metrics.table import METRICS
from scored import REFERENCES, spoilt

EIGHT = [f"a b {i}" for i in range(8)]
SYMBOLS = ["exact_match", "edit_distance", "normalized_edit_distance", "symbol_error_rate", "bcubed_f", "bleu"]


def right(*numbers: int) -> list[str]:
    """Outputs for `EIGHT` of which these are right, the others wrong in the last symbol."""
    return [text if i in numbers else f"{text} x" for i, text in enumerate(EIGHT)]


def score(name: str, runs: Sequence[Sequence[str]], rows: Sequence[int] | None = None) -> float:
    """Mean score of several runs on some of the eight sentences."""
    chosen = list(range(8)) if rows is None else list(rows)
    references = [EIGHT[i] for i in chosen]
    return statistics.fmean(METRICS[name].measure([run[i] for i in chosen], references).score() for run in runs)


@pytest.mark.parametrize("name", SYMBOLS)
def test_with_one_seed_each_the_pooled_bootstrap_is_the_paired_one(name: str) -> None:
    good, bad = spoilt(REFERENCES, 1), spoilt(REFERENCES, 3)
    options: dict[str, Any] = {"metrics": [name], "n_samples": 60}
    assert pooled_bootstrap([good], [bad], REFERENCES, **options) == paired_bootstrap(good, bad, REFERENCES, **options)
    twice = pooled_bootstrap([good, good], [bad] * 3, REFERENCES, **options)[name]
    assert twice == pytest.approx(paired_bootstrap(good, bad, REFERENCES, **options)[name])


@pytest.mark.parametrize("name", ["exact_match", "symbol_error_rate"])
def test_the_pooled_bootstrap_compares_the_means_over_the_seeds_of_each_resample(name: str) -> None:
    ours, theirs = [right(0, 1, 2, 3), right(0, 1, 4)], [right(0), right(5, 6), right(0, 7)]
    found = pooled_bootstrap(ours, theirs, EIGHT, metrics=[name], n_samples=80)[name]
    draws = np.random.default_rng(12345).choice(8, size=(80, 8), replace=True)
    differences = sorted(score(name, ours, draw) - score(name, theirs, draw) for draw in draws)
    assert found["difference"] == pytest.approx(score(name, ours) - score(name, theirs))
    assert (found["difference_low"], found["difference_high"]) == pytest.approx((differences[2], differences[-3]))
    assert (found["difference_low_90"], found["difference_high_90"]) == pytest.approx((differences[4], differences[-5]))
    sizes = np.abs(differences)
    assert found["p_value"] == ((sizes - sizes.mean() > abs(found["difference"])).sum() + 1) / 81


def test_a_pooled_difference_can_be_computed_by_hand() -> None:
    ours, theirs = [right(0, 1, 2, 3), right(0, 1)], [right()]
    found = pooled_bootstrap(ours, theirs, EIGHT, metrics=["exact_match"], n_samples=40)["exact_match"]
    assert found["difference"] == (50 + 25) / 2


@pytest.mark.parametrize("name", SYMBOLS)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([right(0, 1, 2, 3, 4)], [right(5)]),
        ([right(0, 1, 2), right(0, 1, 4)], [right(0), right(5, 6)]),
        ([right(0, 1, 2), right(0, 1, 4)], [right(0), right(5, 6), right()]),
    ],
)
def test_randomization_approximates_the_test_over_all_exchanges(
    name: str, ours: list[list[str]], theirs: list[list[str]]
) -> None:
    def difference(swap: Sequence[bool]) -> float:
        def pooled(runs: list[list[str]], others: list[list[str]]) -> float:
            """Score of one test set of all outputs, each run as often as makes the two sides equally long."""
            texts, references = [], []
            for i, other in enumerate(swap):
                side = others * len(runs) if other else runs * len(others)
                texts += [run[i] for run in side]
                references += [EIGHT[i]] * len(side)
            return METRICS[name].measure(texts, references).score()

        return abs(pooled(ours, theirs) - pooled(theirs, ours))

    observed = difference([False] * 8)
    exact = statistics.fmean(difference(swap) >= observed - 1e-9 for swap in itertools.product([False, True], repeat=8))
    found = approximate_randomization(ours, theirs, EIGHT, metrics=[name], n_samples=3000)[name]
    assert found == pytest.approx(exact, abs=0.03)


def test_a_randomization_p_value_can_be_computed_by_hand() -> None:
    # Eight sentences are better and none is worse: as large a difference has only the sample that exchanges none and
    # the one that exchanges all, 2 of 256.
    found = approximate_randomization([right(*range(8))], [right()], EIGHT, metrics=["exact_match"], n_samples=20_000)
    assert found["exact_match"] == pytest.approx(2 / 256, abs=0.002)
    same = approximate_randomization([right(1)], [right(1)], EIGHT, metrics=["exact_match", "bcubed_f"], n_samples=50)
    assert same == {"exact_match": 1.0, "bcubed_f": 1.0}
    least = approximate_randomization([REFERENCES], [spoilt(REFERENCES, 3)], REFERENCES, n_samples=99)
    assert least == {"bleu": 0.01, "chrf": 0.01}


@pytest.mark.parametrize("test", [pooled_bootstrap, approximate_randomization])
def test_what_cannot_be_compared_is_refused(test: object) -> None:
    assert callable(test)
    with pytest.raises(ValueError, match="got 0 seeds of the system and 1 of the baseline"):
        test([], [EIGHT], EIGHT)
    with pytest.raises(ValueError, match="needs equally many sentences: 8 hypotheses, 7 of the baseline, 8 references"):
        test([EIGHT], [EIGHT, EIGHT[1:]], EIGHT)
    least = {pooled_bootstrap: 40, approximate_randomization: 1}[test]
    with pytest.raises(ValueError, match=f"n_samples is {least - 1}; it must be at least {least}"):
        test([EIGHT], [EIGHT], EIGHT, n_samples=least - 1)
    with pytest.raises(ValueError, match="foo"):
        test([EIGHT], [EIGHT], EIGHT, metrics=["foo"])


def test_the_bootstrap_p_value_is_one_sided_and_the_interval_and_randomization_are_not() -> None:
    """Pairs of systems of equal quality: how often each of the three says that they differ."""
    rng = np.random.default_rng(7)
    found = np.zeros(3)
    for _ in range(150):
        ours, theirs = (["a" if right else "b" for right in rng.random(100) < 0.5] for _ in range(2))
        one = pooled_bootstrap([ours], [theirs], ["a"] * 100, metrics=["exact_match"], n_samples=200)["exact_match"]
        p = approximate_randomization([ours], [theirs], ["a"] * 100, metrics=["exact_match"], n_samples=200)
        excluded = one["difference_low"] > 0 or one["difference_high"] < 0
        found += [one["p_value"] < 0.05, excluded, p["exact_match"] < 0.05]
    assert 0.07 < found[0] / 150 < 0.15
    assert all(0.02 < share / 150 < 0.085 for share in found[1:])


@pytest.mark.parametrize(
    ("ends", "ends_90", "verdict"),
    [
        ((-0.9, 0.8), (-0.7, 0.6), "level"),
        ((-1.2, 0.8), (-0.99, 0.6), "level"),  # the 90 % interval decides
        ((0.1, 0.9), (0.2, 0.8), "level"),  # significant, and shown to be too small to matter
        ((-1.2, 0.8), (-1.0, 0.6), "undecided"),
        ((-3.0, 3.0), (-2.0, 2.0), "undecided"),
        ((0.0, 3.0), (0.1, 2.0), "undecided"),
        ((0.1, 3.0), (0.2, 2.0), "different"),
        ((-3.0, -0.1), (-2.0, -0.2), "different"),
    ],
)
def test_no_difference_is_said_only_of_intervals_within_the_margin(
    ends: tuple[float, float], ends_90: tuple[float, float], verdict: str
) -> None:
    names = ("difference_low", "difference_high", "difference_low_90", "difference_high_90")
    assert equivalence(dict(zip(names, (*ends, *ends_90), strict=True)), 1.0) == verdict


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan")])
def test_a_margin_must_be_above_0(margin: float) -> None:
    with pytest.raises(ValueError, match=f"margin is {margin}; it must be above 0"):
        equivalence({}, margin)
