"""Bootstrap over the sentences of a test set: confidence intervals, and paired tests of two systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hf_multisource.data.checks import check_choice
from hf_multisource.metrics.measurement import Measurement
from hf_multisource.metrics.table import DEFAULT, METRICS, Sources

LEAST_RESAMPLES = 40  # with fewer, a 95 % interval would leave out no resample at its ends
SEED = 12345  # sacrebleu's


def resampled_scores(
    measurement: Measurement, n_samples: int, seed: int = SEED, rows: np.ndarray | None = None
) -> np.ndarray:
    """Score test sets that are drawn from the sentences with replacement.

    Args:
        measurement: Of the sentences.
        n_samples: Number of resamples.
        seed: Of the draws, which are the same as sacrebleu's for the same seed.
        rows: Indices of the sentences to draw from; None: all.

    Returns:
        (n_samples,) scores, in the order of the draws.
    """
    size = len(measurement) if rows is None else len(rows)
    draws = np.random.default_rng(seed).choice(size, size=(n_samples, size), replace=True)
    return np.array([measurement.score(draw if rows is None else rows[draw]) for draw in draws])


def interval(replicas: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of resampled scores, at the same places as sacrebleu's.

    Args:
        replicas: Scores, or differences of scores.

    Returns:
        Its ends.
    """
    ordered, cut = np.sort(replicas), len(replicas) // LEAST_RESAMPLES  # 2.5 % at each end
    return float(ordered[cut]), float(ordered[-cut - 1])


def score_with_interval(
    measurement: Measurement, n_bootstrap: int = 1000, seed: int = SEED, rows: np.ndarray | None = None
) -> dict[str, float]:
    """Return the score of a selection of the sentences with its confidence interval.

    Args:
        measurement: Of the sentences.
        n_bootstrap: Number of bootstrap resamples.
        seed: Seed of the resampling.
        rows: Indices of the sentences; None: all.

    Returns:
        `score`, `ci_low` and `ci_high` (95 % interval of the replicas) and `sd` (standard deviation of the replicas).
    """
    replicas = resampled_scores(measurement, n_bootstrap, seed, rows)
    low, high = interval(replicas)
    return {"score": measurement.score(rows), "ci_low": low, "ci_high": high, "sd": float(replicas.std(ddof=1))}


def measure_metric(
    name: str,
    predictions: Sequence[str],
    references: Sequence[str],
    sources: Sources | None = None,
    *,
    n_bootstrap: int = 1000,
    seed: int = SEED,
    options: Mapping[str, Any] | None = None,
) -> dict[str, float | str]:
    """Score a test set, and resample its sentences for a confidence interval.

    Args:
        name: One of `METRICS`.
        predictions: One hypothesis per sentence.
        references: One reference per sentence.
        sources: One dict of sources per sentence, for metrics that read them.
        n_bootstrap: Number of bootstrap resamples.
        seed: Seed of the resampling; the default is sacrebleu's own.
        options: Further keywords of the metric, for instance of `sacrebleu.metrics.BLEU`.

    Returns:
        What `score_with_interval` gives, and `signature` (the metric's, with the number of resamples and the seed).

    Raises:
        ValueError: If the metric is unknown, there is no sentence, the lists differ in length, or `n_bootstrap` is too
            small.
    """
    check_choice(tuple(METRICS), metric=name)
    if n_bootstrap < LEAST_RESAMPLES:
        raise ValueError(f"n_bootstrap is {n_bootstrap}; a 95 % interval needs at least {LEAST_RESAMPLES} resamples")
    measurement = METRICS[name].measure(predictions, references, sources, **(options or {}))
    first, _, rest = measurement.signature.partition("|")
    signature = f"{first}|bs:{n_bootstrap}|seed:{seed}|{rest}"
    return {**score_with_interval(measurement, n_bootstrap, seed), "signature": signature}


def paired_bootstrap(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    sources: Sources | None = None,
    *,
    metrics: Sequence[str] = DEFAULT,
    n_samples: int = 1000,
    seed: int = SEED,
) -> dict[str, dict[str, float]]:
    """Compare two systems on one test set by a paired bootstrap test.

    The p-value is the share of resamples in which the size of the difference exceeds its own mean by the observed one
    (Koehn 2004, https://aclanthology.org/W04-3250, as in sacrebleu and Moses).

    Args:
        hypotheses: The system's output, one per sentence.
        baseline: The other system's output.
        references: One reference per sentence.
        sources: One dict of sources per sentence, for metrics that read them.
        metrics: Names of metrics.
        n_samples: Number of resamples.
        seed: Seed of the resampling; the default is sacrebleu's own.

    Returns:
        For each metric: `difference` (system minus baseline), `difference_low` and `difference_high` (95 % interval of
        the replicas) and `p_value`.

    Raises:
        ValueError: If the three differ in length.
    """
    if not len(hypotheses) == len(baseline) == len(references):
        raise ValueError(
            f"paired comparison needs equally many sentences: {len(hypotheses)} hypotheses, "
            f"{len(baseline)} of the baseline, {len(references)} references"
        )
    compared = {}
    for name in metrics:
        ours, theirs = (METRICS[name].measure(texts, references, sources) for texts in (hypotheses, baseline))
        difference = ours.score() - theirs.score()
        differences = resampled_scores(ours, n_samples, seed) - resampled_scores(theirs, n_samples, seed)
        low, high = interval(differences)
        sizes = np.abs(differences)
        larger = int((sizes - sizes.mean() > abs(difference)).sum())
        compared[name] = {
            "difference": difference,
            "difference_low": low,
            "difference_high": high,
            # Adding 1 keeps the share of false alarms below the level of the test. Where no resample differs at all,
            # a difference of exactly 0 would be significant.
            "p_value": (larger + 1) / (n_samples + 1) if difference else 1.0,
        }
    return compared
