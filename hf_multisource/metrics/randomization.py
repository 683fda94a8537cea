"""Approximate randomization: a paired test of two systems that exchanges their outputs sentence by sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hf_multisource.metrics.bootstrap import SEED, check_paired
from hf_multisource.metrics.measurement import Measurement
from hf_multisource.metrics.table import DEFAULT, METRICS, Sources

# Relative tolerance for comparing differences, which vary by rounding errors with the order of summation
TOLERANCE = 1e-9


def approximate_randomization(
    systems: Sequence[Sequence[str]],
    baselines: Sequence[Sequence[str]],
    references: Sequence[str],
    sources: Sources | None = None,
    *,
    metrics: Sequence[str] = DEFAULT,
    n_samples: int = 1000,
    seed: int = SEED,
) -> dict[str, float]:
    """Test whether two systems, each trained with one or more seeds, differ (Noreen 1989; Riezler & Maxwell 2005).

    Under the null hypothesis, the outputs of the two systems are exchangeable. Each sample draws every sentence with
    probability 0.5 and exchanges its outputs. For a drawn sentence, the outputs of all seeds are exchanged together.
    The outputs of a system are scored as one test set that contains each sentence once per seed. If the numbers of
    seeds differ, the outputs are repeated up to the least common multiple of the numbers.

    Args:
        systems: The outputs of each seed of the system, one per sentence.
        baselines: The outputs of each seed of the baseline; their number may differ.
        references: One reference per sentence.
        sources: One dict of sources per sentence, for metrics that read them.
        metrics: Names of metrics.
        n_samples: Number of samples.
        seed: Seed of the samples.

    Returns:
        For each metric, the two-sided p-value: the share of samples whose absolute difference is at least as large as
        the observed one. The observed difference is counted as an additional sample.

    Raises:
        ValueError: If there is no seed, the texts differ in number, a metric is unknown, or `n_samples` is below 1.
    """
    check_paired(systems, baselines, references, metrics, n_samples, 1)
    size, runs = len(references), [*systems, *baselines]
    copies = math.lcm(len(systems), len(baselines))
    rows = np.arange(len(runs) * size).reshape(len(runs), size)  # output indices, all runs concatenated
    ours = np.repeat(rows[: len(systems)], copies // len(systems), axis=0)
    theirs = np.repeat(rows[len(systems) :], copies // len(baselines), axis=0)
    swaps = np.random.default_rng(seed).random((n_samples, size)) < 0.5
    repeated = None if sources is None else list(sources) * len(runs)
    p_values = {}
    for name in metrics:
        measured = METRICS[name].measure([text for run in runs for text in run], list(references) * len(runs), repeated)
        observed = _difference(measured, ours, theirs)
        drawn = (_difference(measured, np.where(swap, theirs, ours), np.where(swap, ours, theirs)) for swap in swaps)
        larger = sum(difference >= observed * (1 - TOLERANCE) for difference in drawn)
        p_values[name] = (larger + 1) / (n_samples + 1)
    return p_values


def _difference(measured: Measurement, ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the absolute difference between the scores of two selections of outputs."""
    return abs(measured.score(ours.ravel()) - measured.score(theirs.ravel()))
