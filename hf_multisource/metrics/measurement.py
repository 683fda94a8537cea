"""Measurements of a metric on a test set, which score the whole test set or any selection of its sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

MAX_COUNTS = 2**20  # maximum number of counts that `Counts.scores` holds in memory at a time (8 MiB)


class Measurement(Protocol):
    """Result of applying a metric to the sentences of one test set."""

    @property
    def signature(self) -> str:
        """Signature of the metric's computation in the format of sacrebleu: `nrefs:1|…|version:…`."""

    def __len__(self) -> int:
        """Return the number of sentences."""

    def score(self, rows: np.ndarray | None = None) -> float:
        """Return the score of a selection of the sentences.

        Args:
            rows: Indices of sentences, possibly with repetitions; None: every sentence once.

        Returns:
            The score, in the unit of the metric.
        """


@dataclass(frozen=True, eq=False)
class Counts:
    """[`Measurement`] whose score is a function of counts that are summed over the sentences, such as BLEU's n-grams.

    Args:
        sentences: (N, K) K counts of each of N sentences.
        formula: Function that computes the score from (K,) sums of the counts.
        signature: See [`Measurement`].
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
        """Return the scores of several selections with the same number of sentences.

        Args:
            selections: (R, n) indices of sentences.

        Returns:
            (R,) score of each selection.
        """
        at_once = max(1, MAX_COUNTS // (selections.shape[1] * self.sentences.shape[1]))
        parts = [selections[i : i + at_once] for i in range(0, len(selections), at_once)]
        return np.array([self.formula(sums) for part in parts for sums in self.sentences[part].sum(axis=1)], float)


def mean_of(scores: Sequence[float], signature: str) -> Counts:
    """Return the measurement of a metric that averages sentence scores over the test set, such as COMET.

    Args:
        scores: One score per sentence.
        signature: See [`Measurement`].

    Returns:
        The measurement.
    """
    column = np.asarray(scores, dtype=float)[:, None]
    return Counts(np.concatenate([column, np.ones_like(column)], axis=1), _ratio, signature)


def _ratio(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1])
