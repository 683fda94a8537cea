"""Corpus BLEU and chrF with bootstrap confidence intervals."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hf_multisource.data.checks import check_choice

METRICS = ("bleu", "chrf")
LEAST_RESAMPLES = 40  # with fewer, a 95 % interval would leave out no resample at its ends


def measure_metric(
    name: str,
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    n_bootstrap: int = 1000,
    seed: int = 12345,
    options: Mapping[str, Any] | None = None,
) -> dict[str, float | str]:
    """Score translations with sacrebleu, and resample the sentences for a confidence interval.

    Args:
        name: One of `METRICS`.
        predictions: One hypothesis per sentence.
        references: One reference per sentence.
        n_bootstrap: Number of bootstrap resamples.
        seed: Seed of the resampling; the default is sacrebleu's own.
        options: Further keywords of `sacrebleu.metrics.BLEU` or `CHRF`, such as `tokenize` or `word_order`.

    Returns:
        `score` (0 to 100), `ci_low` and `ci_high` (95 % interval of the replicas), `sd` (standard deviation of the
        replicas), and `signature` (sacrebleu's, with the number of resamples and the seed).

    Raises:
        ValueError: If the metric is unknown, there is no sentence, the lists differ in length, or `n_bootstrap` is too
            small.
    """
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.significance import _bootstrap_resample

    check_choice(METRICS, metric=name)
    if len(predictions) != len(references):
        raise ValueError(f"there are {len(predictions)} predictions and {len(references)} references")
    if not predictions:
        raise ValueError("predictions is empty: there is nothing to score")
    if n_bootstrap < LEAST_RESAMPLES:
        raise ValueError(f"n_bootstrap is {n_bootstrap}; a 95 % interval needs at least {LEAST_RESAMPLES} resamples")
    metric: BLEU | CHRF = {"bleu": BLEU, "chrf": CHRF}[name](**(options or {}))
    # These are the steps of `corpus_score(..., n_bootstrap=)`. That method returns only half the width of the interval,
    # so neither its ends nor the standard deviation can be computed from its result.
    stats = metric._extract_corpus_statistics(list(predictions), [list(references)])
    score = metric._aggregate_and_compute(stats).score
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)  # sacrebleu reads its seed from nowhere else
    try:
        metric.seed, resampled = _bootstrap_resample(stats, metric, n_bootstrap)
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
    metric.n_bootstrap = n_bootstrap  # the signature contains it
    replicas = np.sort([replica.score for replica in resampled])
    cut = n_bootstrap // LEAST_RESAMPLES  # 2.5 % at each end, the same places as sacrebleu's
    return {
        "score": score,
        "ci_low": float(replicas[cut]),
        "ci_high": float(replicas[-cut - 1]),
        "sd": float(replicas.std(ddof=1)),
        "signature": str(metric.get_signature()),
    }
