"""Scores of translations: what `score.py`, `train.py` and `results.py` share."""

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
