"""Table of metrics, on which training, scores, result pages and model cards are based."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_multisource.data.normalization import compose
from hf_multisource.metrics import counted, symbols
from hf_multisource.metrics.measurement import Measurement

Sources = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Metric:
    """Definition of a metric.

    Args:
        label: Name of the metric in tables.
        compute: Function that takes hypotheses, references and sources, one per sentence, and returns the measurement.
            Sources are dicts by name with None for absent sources; they are only passed if `needs_sources` is true.
            Further keyword arguments are options of the metric.
        higher_is_better: Whether larger scores are better.
        needs_sources: Whether the sources are read. Such a metric cannot be used during training, which evaluates
            without the sources.
        flat_gain: Training counts as leveled off if its last fifth improved the score on the development set by less
            than this.
        decimals: Number of decimals of a score in tables.
    """

    label: str
    compute: Callable[..., Measurement]
    higher_is_better: bool = True
    needs_sources: bool = False
    flat_gain: float = 0.3
    decimals: int = 1

    def measure(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sources | None = None, **options: Any
    ) -> Measurement:
        """Apply the metric to a test set, with all texts in Unicode's composed form (NFC).

        Tokenizers compose texts, so that a translation never equals a decomposed reference otherwise.

        Args:
            hypotheses: One per sentence.
            references: One per sentence.
            sources: One dict per sentence; only required if `needs_sources` is true.
            **options: Options of the metric.

        Returns:
            The measurement.

        Raises:
            ValueError: If there is no sentence, the arguments differ in length, or required sources are missing.
        """
        if len(hypotheses) != len(references):
            raise ValueError(f"there are {len(hypotheses)} predictions and {len(references)} references")
        if not hypotheses:
            raise ValueError("predictions is empty: there is nothing to score")
        if self.needs_sources and (sources is None or len(sources) != len(hypotheses)):
            given = "no sources" if sources is None else f"{len(sources)} sources"
            raise ValueError(f"{self.label} needs the sources of {len(hypotheses)} sentences; got {given}")
        return self.compute([*map(compose, hypotheses)], [*map(compose, references)], sources, **options)

    def show(self, score: float, *, sign: bool = False, more: int = 0) -> str:
        """Format a score, or a difference of scores.

        Args:
            score: The score.
            sign: Whether a plus sign is written.
            more: Number of decimals in addition to those of tables.

        Returns:
            The number, such as "27.4".
        """
        return f"{score:{'+' if sign else ''}.{self.decimals + more}f}"


METRICS: dict[str, Metric] = {
    "bleu": Metric("BLEU", counted.bleu),
    "chrf": Metric("chrF", counted.chrf),
    "ter": Metric("TER", counted.ter, higher_is_better=False),
    "exact_match": Metric("exact match", symbols.exact_match),
    "edit_distance": Metric("edit distance", symbols.edit_distance, higher_is_better=False, flat_gain=0.01, decimals=3),
    "normalized_edit_distance": Metric(
        "normalized edit distance",
        symbols.normalized_edit_distance,
        higher_is_better=False,
        flat_gain=0.002,
        decimals=3,
    ),
    "symbol_error_rate": Metric("symbol error rate", symbols.symbol_error_rate, higher_is_better=False),
    "bcubed_f": Metric("B-cubed F", symbols.bcubed_f, flat_gain=0.002, decimals=3),
}
DEFAULT = ("bleu", "chrf")


def metrics_of(scores: Mapping[str, object]) -> list[str]:
    """Return the names of the metrics for which a report holds scores.

    Args:
        scores: Scores of one condition, by metric.

    Returns:
        The names, in the order of the report.
    """
    return [name for name in scores if name in METRICS]
