"""Approximate randomization: a paired test of two systems that exchanges their outputs sentence by sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hf_multisource.metrics.bootstrap import SEED, check_paired
from hf_multisource.metrics.measurement import Measurement
from hf_multisource.metrics.table import DEFAULT, METRICS, Sources

TOLERANCE = 1e-9  # relative; the same difference summed in another order differs by rounding only


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

    If the systems did not differ, it would not matter which of them wrote an output. Each sample exchanges the outputs
    of sentences that are drawn with probability 0.5. The outputs of all seeds of a system are exchanged together, and
    are scored as one test set in which each sentence stands once for each seed. Where the systems have unequal numbers
    of seeds, each of their outputs stands there as often as it takes to make them equal.

    Args:
        systems: The outputs of each seed of the system, one per sentence.
        baselines: The outputs of each seed of the baseline; their number may differ.
        references: One reference per sentence.
        sources: One dict of sources per sentence, for metrics that read them.
        metrics: Names of metrics.
        n_samples: Number of samples.
        seed: Seed of the samples.

    Returns:
        For each metric, the two-sided p-value: the share of samples whose difference is at least as large as the
        observed one, which counts as one sample more.

    Raises:
        ValueError: If there is no seed, or the texts differ in number.
    """
    check_paired(systems, baselines, references)
    size, runs = len(references), [*systems, *baselines]
    copies = math.lcm(len(systems), len(baselines))
    rows = np.arange(len(runs) * size).reshape(len(runs), size)  # of all outputs, one run after the other
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
    """Size of the difference between the scores of two selections of outputs."""
    return abs(measured.score(ours.ravel()) - measured.score(theirs.ravel()))
