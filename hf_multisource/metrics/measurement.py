"""What a metric measured on a test set: a score of the whole, and of any selection of its sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

MAX_COUNTS = 2**20  # counts that `Counts.scores` holds in memory at a time: 8 MiB


class Measurement(Protocol):
    """A metric, applied to the sentences of one test set."""

    @property
    def signature(self) -> str:
        """How the metric was computed, in sacrebleu's form: `nrefs:1|…|version:…`."""

    def __len__(self) -> int:
        """Return the number of sentences."""

    def score(self, rows: np.ndarray | None = None) -> float:
        """Return the score of a selection of the sentences.

        Args:
            rows: Indices of sentences, which may repeat; None: every sentence once.

        Returns:
            The score, in the unit of the metric.
        """


@dataclass(frozen=True, eq=False)
class Counts:
    """A [`Measurement`] whose score follows from counts that add up over the sentences, as BLEU's n-grams do.

    Args:
        sentences: (N, K), K counts of each of N sentences.
        formula: The score of (K,) sums.
        signature: As [`Measurement`] has it.
    """

    sentences: np.ndarray
    formula: Callable[[np.ndarray], float]
    signature: str

    def __len__(self) -> int:
        return len(self.sentences)

    def score(self, rows: np.ndarray | None = None) -> float:
        chosen = self.sentences if rows is None else self.sentences[rows]
        return float(self.formula(chosen.sum(axis=0)))

    def scores(self, selections: np.ndarray) -> np.ndarray:
        """Return the scores of several selections of equally many sentences.

        Args:
            selections: (R, n) indices of sentences.

        Returns:
            (R,) what `score` gives for each selection.
        """
        at_once = max(1, MAX_COUNTS // (selections.shape[1] * self.sentences.shape[1]))
        parts = [selections[i : i + at_once] for i in range(0, len(selections), at_once)]
        return np.array([self.formula(sums) for part in parts for sums in self.sentences[part].sum(axis=1)], float)


def mean_of(scores: Sequence[float], signature: str) -> Counts:
    """Return the measurement of a metric that scores sentences, and a test set by their mean, as COMET does.

    Args:
        scores: One a sentence.
        signature: As [`Measurement`] has it.

    Returns:
        The measurement.
    """
    column = np.asarray(scores, dtype=float)[:, None]
    return Counts(np.concatenate([column, np.ones_like(column)], axis=1), _ratio, signature)


def _ratio(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1])
