"""Paired bootstrap tests between two systems on one test set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def paired_bootstrap(
    hypotheses: Sequence[str], baseline: Sequence[str], references: Sequence[str], n_samples: int = 1000
) -> dict[str, dict[str, float]]:
    """Compare two systems on one test set by sacrebleu's paired bootstrap.

    The p-value is the share of resamples in which the size of the difference exceeds its own mean by the observed one
    (Koehn 2004, as in sacrebleu and Moses); seeded by `SACREBLEU_SEED`, by default 12345.

    Args:
        hypotheses: The system's output, one per sentence.
        baseline: The other system's output.
        references: One reference per sentence.
        n_samples: Number of resamples.

    Returns:
        For each of `METRICS`: `difference` (system minus baseline, points), `difference_low` and `difference_high`
        (95 % interval of the replicas) and `p_value`.

    Raises:
        ValueError: If the three differ in length.
    """
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.significance import _bootstrap_resample, _compute_p_value

    if not len(hypotheses) == len(baseline) == len(references):
        raise ValueError(
            f"paired comparison needs equally many sentences: {len(hypotheses)} hypotheses, "
            f"{len(baseline)} of the baseline, {len(references)} references"
        )
    metrics: dict[str, BLEU | CHRF] = {"bleu": BLEU(), "chrf": CHRF()}
    compared = {}
    for name, metric in metrics.items():
        stats = [metric._extract_corpus_statistics(texts, [references]) for texts in (hypotheses, baseline)]
        score, other = (metric._aggregate_and_compute(stat).score for stat in stats)
        # What sacrebleu's `PairedTest` does, in the same steps, on the same resamples; it throws the differences away.
        replicas, others = (
            np.array([replica.score for replica in _bootstrap_resample(stat, metric, n_samples)[1]]) for stat in stats
        )
        differences = np.sort(replicas - others)
        sizes = np.abs(differences)
        cut = n_samples // 40  # 2.5 % at each end
        compared[name] = {
            "difference": score - other,
            "difference_low": float(differences[cut]),
            "difference_high": float(differences[-cut - 1]),
            # Where no resample differs at all, sacrebleu calls a difference of exactly 0 significant.
            "p_value": _compute_p_value(sizes - sizes.mean(), abs(score - other)) if score != other else 1.0,
        }
    return compared
