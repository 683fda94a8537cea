"""Bootstrap over the sentences of a test set: confidence intervals and paired tests of two systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hf_multisource.data.checks import check_at_least, check_choice
from hf_multisource.metrics.measurement import Counts, Measurement
from hf_multisource.metrics.table import DEFAULT, METRICS, Sources

LEAST_RESAMPLES = 40  # minimum number of resamples: a 95 % interval leaves out 1 of 40 at each end
SEED = 12345  # default seed of sacrebleu


def resampled_scores(
    measurement: Measurement, n_samples: int, seed: int = SEED, rows: np.ndarray | None = None
) -> np.ndarray:
    """Score bootstrap resamples, test sets that are drawn from the sentences with replacement.

    Args:
        measurement: Measurement of the metric on the sentences.
        n_samples: Number of resamples.
        seed: Seed of the draws; the same seed gives the same draws as in sacrebleu.
        rows: Indices of the sentences to draw from; None: all.

    Returns:
        (n_samples,) scores, in the order of the draws.
    """
    size = len(measurement) if rows is None else len(rows)
    draws = np.random.default_rng(seed).choice(size, size=(n_samples, size), replace=True)
    selections = draws if rows is None else np.asarray(rows)[draws]
    if isinstance(measurement, Counts):
        return measurement.scores(selections)
    return np.array([measurement.score(selection) for selection in selections])


def interval(replicas: np.ndarray, least: int = LEAST_RESAMPLES) -> tuple[float, float]:
    """Return a confidence interval of resampled scores, with the same quantile positions as sacrebleu.

    Args:
        replicas: Scores, or differences of scores.
        least: 1 / `least` of the resamples lie beyond each end: 40 for a 95 % interval, 20 for a 90 % interval.

    Returns:
        Lower and upper end of the interval.
    """
    ordered, cut = np.sort(replicas), len(replicas) // least
    return float(ordered[cut]), float(ordered[-cut - 1])


def score_with_interval(
    measurement: Measurement, n_bootstrap: int = 1000, seed: int = SEED, rows: np.ndarray | None = None
) -> dict[str, float]:
    """Return the score of a selection of sentences with its confidence interval.

    Args:
        measurement: Measurement of the metric on the sentences.
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
    """Score a test set with a bootstrap confidence interval.

    Args:
        name: One of `METRICS`.
        predictions: One hypothesis per sentence.
        references: One reference per sentence.
        sources: One dict of sources per sentence, for metrics that read them.
        n_bootstrap: Number of bootstrap resamples.
        seed: Seed of the resampling; the default is sacrebleu's own.
        options: Further keyword arguments of the metric, for instance of `sacrebleu.metrics.BLEU`.

    Returns:
        The output of `score_with_interval`, and `signature`, the metric's signature with the number of resamples and
        the seed.

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

    The p-value is the share of resamples whose absolute difference exceeds the mean absolute difference over all
    resamples by more than the observed absolute difference (Koehn 2004, https://aclanthology.org/W04-3250, as in
    sacrebleu and Moses). It is that of a one-sided test: between systems of equal quality it lies below 0.05 in about
    10 % of the comparisons. The 95 % interval and `approximate_randomization` are two-sided.

    Args:
        hypotheses: The system's output, one per sentence.
        baseline: The other system's output.
        references: One reference per sentence.
        sources: One dict of sources per sentence, for metrics that read them.
        metrics: Names of metrics.
        n_samples: Number of resamples.
        seed: Seed of the resampling; the default is sacrebleu's own.

    Returns:
        The output of `pooled_bootstrap` for one seed per system.

    Raises:
        ValueError: If hypotheses, baseline and references differ in length, a metric is unknown, or `n_samples` is
            below `LEAST_RESAMPLES`.
    """
    return pooled_bootstrap(
        [hypotheses], [baseline], references, sources, metrics=metrics, n_samples=n_samples, seed=seed
    )


def pooled_bootstrap(
    systems: Sequence[Sequence[str]],
    baselines: Sequence[Sequence[str]],
    references: Sequence[str],
    sources: Sources | None = None,
    *,
    metrics: Sequence[str] = DEFAULT,
    n_samples: int = 1000,
    seed: int = SEED,
) -> dict[str, dict[str, float]]:
    """Compare two systems, each trained with one or more seeds, by a paired bootstrap test.

    Each resample of the sentences is applied to all seeds of both systems. Its statistic is the mean score over the
    seeds of the system minus the mean score over the seeds of the baseline. The interval and the p-value describe the
    variation over test sentences. The variation over training seeds is described by the standard deviation over the
    seeds.

    Args:
        systems: The outputs of each seed of the system, one per sentence.
        baselines: The outputs of each seed of the baseline; their number may differ.
        references: One reference per sentence.
        sources: One dict of sources per sentence, for metrics that read them.
        metrics: Names of metrics.
        n_samples: Number of resamples.
        seed: Seed of the resampling; the default is sacrebleu's own.

    Returns:
        For each metric: `difference` (system minus baseline), `difference_low` and `difference_high` (95 % interval of
        the replicas), `difference_low_90` and `difference_high_90` (90 % interval) and `p_value`.

    Raises:
        ValueError: If there is no seed, the texts differ in number, a metric is unknown, or `n_samples` is below
            `LEAST_RESAMPLES`.
    """
    check_paired(systems, baselines, references, metrics, n_samples, LEAST_RESAMPLES)
    compared = {}
    for name in metrics:
        ours, theirs = (
            [METRICS[name].measure(texts, references, sources) for texts in side] for side in (systems, baselines)
        )
        difference = _mean([one.score() for one in ours]) - _mean([one.score() for one in theirs])
        differences = _mean([resampled_scores(one, n_samples, seed) for one in ours])
        differences = differences - _mean([resampled_scores(one, n_samples, seed) for one in theirs])
        (low, high), (low_90, high_90) = interval(differences), interval(differences, LEAST_RESAMPLES // 2)
        sizes = np.abs(differences)
        larger = int((sizes - sizes.mean() > abs(difference)).sum())
        compared[name] = {
            "difference": difference,
            "difference_low": low,
            "difference_high": high,
            "difference_low_90": low_90,
            "difference_high_90": high_90,
            # Adding 1 counts the observed test set as a resample. A difference of exactly 0 gets the p-value 1, because
            # it would be significant if no resample differed.
            "p_value": (larger + 1) / (n_samples + 1) if difference else 1.0,
        }
    return compared


def check_paired(
    systems: Sequence[Sequence[str]],
    baselines: Sequence[Sequence[str]],
    references: Sequence[str],
    metrics: Sequence[str],
    n_samples: int,
    least: int,
) -> None:
    """Check that two systems were applied to the same number of sentences, and the settings of the comparison.

    Args:
        systems: The outputs of each seed of the system.
        baselines: The outputs of each seed of the baseline.
        references: One reference per sentence.
        metrics: Names of metrics.
        n_samples: Number of samples.
        least: The smallest allowed number of samples.

    Raises:
        ValueError: If there is no seed, the texts differ in number, a metric is unknown, or there are too few samples.
    """
    check_at_least(least, n_samples=n_samples)
    for name in metrics:
        check_choice(tuple(METRICS), metrics=name)
    if not systems or not baselines:
        raise ValueError(
            f"got {len(systems)} seeds of the system and {len(baselines)} of the baseline; give one or more"
        )
    for ours, theirs in ((one, other) for one in systems for other in baselines):
        if not len(ours) == len(theirs) == len(references):
            raise ValueError(
                f"paired comparison needs equally many sentences: {len(ours)} hypotheses, "
                f"{len(theirs)} of the baseline, {len(references)} references"
            )


def equivalence(compared: Mapping[str, float], margin: float) -> str:
    """Decide whether two systems are different, equivalent within a margin, or neither is shown.

    Systems are equivalent ("level") if the 90 % interval of the difference lies between minus and plus the margin. This
    corresponds to two one-sided tests at 5 % (Schuirmann 1987, https://doi.org/10.1007/BF01068419). The absence of a
    significant difference does not show equivalence, because it may be due to a small test set.

    Args:
        compared: Output of `pooled_bootstrap` for one metric.
        margin: Smallest difference that matters, in the unit of the metric.

    Returns:
        "level" if the difference is shown to be smaller than the margin, even if it is significant; otherwise
        "different" if the 95 % interval excludes 0, and "undecided" if it includes 0.

    Raises:
        ValueError: If the margin is not above 0.
    """
    if not margin > 0:
        raise ValueError(f"margin is {margin}; it must be above 0")
    if -margin < compared["difference_low_90"] and compared["difference_high_90"] < margin:
        return "level"
    return "undecided" if compared["difference_low"] <= 0 <= compared["difference_high"] else "different"


def _mean(values: Sequence[Any]) -> Any:
    """Return the mean of numbers or arrays; a single value is returned unchanged."""
    return sum(values[1:], start=values[0]) / len(values)
