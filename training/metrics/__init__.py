"""Scores of translations: what `score.py`, `train.py` and `results.py` share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

METRICS = ("bleu", "chrf")


def load_metric(name: str) -> Any:
    """Load the local `evaluate` module that computes one metric with bootstrap confidence.

    Args:
        name: One of `METRICS`.

    Returns:
        An `evaluate.Metric`; `compute(predictions=, references=)` gives `score`, `ci_low`, `ci_high`, `sd` and
        `signature`.
    """
    import evaluate  # slow to import, and `results.py` does not need it

    return evaluate.load(str(Path(__file__).parent / "translation_score"), name, keep_in_memory=True)


def paired_bootstrap(
    hypotheses: Sequence[str], baseline: Sequence[str], references: Sequence[str], n_samples: int = 1000
) -> dict[str, dict[str, float]]:
    """Compare two systems on one test set by sacrebleu's paired bootstrap.

    The p-value is the share of resamples in which the difference exceeds its own mean by the observed difference
    (Koehn 2004, as in sacrebleu and Moses); seeded by `SACREBLEU_SEED`, by default 12345.

    Args:
        hypotheses: The system's output, one per sentence.
        baseline: The other system's output.
        references: One reference per sentence.
        n_samples: Number of resamples.

    Returns:
        For each of `METRICS`: `difference` (system minus baseline, points) and `p_value`.

    Raises:
        ValueError: If the three differ in length.
    """
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.significance import PairedTest

    if not len(hypotheses) == len(baseline) == len(references):
        raise ValueError(
            f"paired comparison needs equally many sentences: {len(hypotheses)} hypotheses, "
            f"{len(baseline)} of the baseline, {len(references)} references"
        )
    systems = [("baseline", baseline), ("system", hypotheses)]
    test = PairedTest(systems, {"BLEU": BLEU(), "chrF": CHRF()}, [references], test_type="bs", n_samples=n_samples)
    _, results = test()
    compared: list[Any] = [pair for key, pair in results.items() if key != "System"]  # in the order of METRICS
    differences = [system.score - base.score for base, system in compared]
    return {
        # Where no resample differs at all, sacrebleu calls a difference of exactly 0 significant.
        name: {"difference": difference, "p_value": system.p_value if difference else 1.0}
        for name, difference, (_, system) in zip(METRICS, differences, compared, strict=True)
    }
