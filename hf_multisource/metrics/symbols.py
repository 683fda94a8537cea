"""Metrics of symbol sequences that are used in proto-form reconstruction: edit distances, B-cubed F and others.

Symbols are separated by white space: sounds in a segmented word, or words in plain text. The definitions follow Kim et
al. 2023 (https://arxiv.org/abs/2307.01896), who compute B-cubed F with LingRex.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_multisource.metrics.counted import edit_rate
from hf_multisource.metrics.measurement import Counts, mean_of

SIGNATURE = "nrefs:1|tok:blanks|{}version:1"  # version: of the definitions in this module
GAP = "-"  # gap symbol of alignments, as in LingPy


def exact_match(hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> Counts:
    """Percentage of sentences whose symbols are all correct.

    Args:
        hypotheses: One per sentence.
        references: One per sentence.
        sources: Not used.

    Returns:
        The measurement, 0 to 100.
    """
    pairs = zip(hypotheses, references, strict=True)
    return mean_of([100.0 * (text.split() == other.split()) for text, other in pairs], SIGNATURE.format(""))


def edit_distance(hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> Counts:
    """Mean Levenshtein distance: number of symbols to insert, delete or replace per sentence.

    Args:
        hypotheses: One per sentence.
        references: One per sentence.
        sources: Not used.

    Returns:
        The measurement; 0 is best.
    """
    return mean_of([float(edits) for edits, _ in _edits(hypotheses, references)], SIGNATURE.format(""))


def normalized_edit_distance(hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> Counts:
    """Mean over the sentences of the edit distance divided by the number of symbols of the reference.

    Args:
        hypotheses: One per sentence.
        references: One per sentence; the length of an empty reference counts as 1.
        sources: Not used.

    Returns:
        The measurement; 0 is best. The distance of a hypothesis that is longer than its reference can exceed 1.
    """
    rates = [edits / max(length, 1) for edits, length in _edits(hypotheses, references)]
    return mean_of(rates, SIGNATURE.format("norm:reference|"))


def symbol_error_rate(hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> Counts:
    """Sum of the edit distances divided by the number of symbols of all references.

    On plain text this is the word error rate.

    Args:
        hypotheses: One per sentence.
        references: One per sentence.
        sources: Not used.

    Returns:
        The measurement: edits per 100 symbols of the references; 0 is best.
    """
    return Counts(np.array(_edits(hypotheses, references)), edit_rate, SIGNATURE.format(""))


def bcubed_f(hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> AlignedSymbols:
    """B-cubed F of aligned symbols (Amigó et al. 2009, https://doi.org/10.1007/s10791-008-9066-8).

    List 2019 ("Beyond edit distances") proposes this metric for reconstructed words. Reference and hypothesis are
    aligned. All aligned pairs of the test set are items that are clustered twice: by the symbol of the reference, and
    by the symbol of the hypothesis. A system that consistently replaces a sound by a symbol that it uses nowhere else
    scores 1; inconsistent errors lower the score more than consistent errors.

    Args:
        hypotheses: One per sentence; an empty one counts as the symbol "?", as in LingRex.
        references: One per sentence; an empty one counts as the symbol "?".
        sources: Not used.

    Returns:
        The measurement, 0 to 1. It is a score of the whole test set, not a mean over its sentences.
    """
    aligned = [
        align_symbols(other.split() or ["?"], text.split() or ["?"])
        for text, other in zip(hypotheses, references, strict=True)
    ]
    numbers: dict[tuple[str, str], int] = {}
    pairs = [numbers.setdefault(pair, len(numbers)) for one in aligned for pair in one]
    sentences = np.repeat(np.arange(len(aligned)), [len(one) for one in aligned])
    clusters = [np.unique(np.array(symbols), return_inverse=True)[1] for symbols in zip(*numbers, strict=True)]
    return AlignedSymbols(sentences, np.array(pairs), clusters[0], clusters[1], len(aligned))


@dataclass(frozen=True, eq=False)
class AlignedSymbols:
    """[`Measurement`] of B-cubed F over the aligned symbols of the selected sentences.

    Args:
        sentences: (A,) index of the sentence of each aligned pair.
        pairs: (A,) index of the kind of each aligned pair; there are P kinds, the distinct pairs of symbols.
        by_reference: (P,) index of the reference's symbol in each kind of pair.
        by_hypothesis: (P,) index of the hypothesis's symbol in each kind of pair.
        size: Number of sentences.
        signature: See [`Measurement`].
    """

    sentences: np.ndarray
    pairs: np.ndarray
    by_reference: np.ndarray
    by_hypothesis: np.ndarray
    size: int
    signature: str = SIGNATURE.format("align:needleman-wunsch|")

    def __len__(self) -> int:
        return self.size

    def score(self, rows: np.ndarray | None = None) -> float:
        times = np.ones(self.size) if rows is None else np.bincount(rows, minlength=self.size)
        joint = np.bincount(self.pairs, times[self.sentences], len(self.by_reference))
        shares = []
        for clusters in (self.by_reference, self.by_hypothesis):
            sizes = np.bincount(clusters, joint)[clusters]
            shares.append((joint**2 / np.maximum(sizes, 1)).sum() / joint.sum())
        return float(2 * shares[0] * shares[1] / (shares[0] + shares[1]))


def align_symbols(reference: Sequence[str], hypothesis: Sequence[str]) -> list[tuple[str, str]]:
    """Align two sequences as LingPy does (Needleman & Wunsch 1970): equal symbols score 1, others and gaps -1.

    Args:
        reference: Symbols.
        hypothesis: Symbols.

    Returns:
        Pairs of symbols, one of which may be `GAP`. Ties between alignments are resolved from the end backward: gaps in
        the reference are preferred to pairs, and pairs to gaps in the hypothesis.
    """
    return [
        (GAP if i is None else reference[i], GAP if j is None else hypothesis[j])
        for i, j in _align(reference, hypothesis, match=1)
    ]


def _align(reference: Sequence[str], hypothesis: Sequence[str], match: int) -> list[tuple[int | None, int | None]]:
    """Align two sequences like `align_symbols`, with the score `match` for equal symbols; 0 minimizes the edits.

    Returns pairs of indices into the two sequences; None stands for a gap.
    """
    best = [[-j for j in range(len(hypothesis) + 1)]]
    for i, symbol in enumerate(reference):
        row = [-i - 1]
        for j, other in enumerate(hypothesis):
            row.append(max(best[i][j] + (match if symbol == other else -1), best[i][j + 1] - 1, row[j] - 1))
        best.append(row)
    places: list[tuple[int | None, int | None]] = []
    i, j = len(reference), len(hypothesis)
    while i or j:
        if j and best[i][j] == best[i][j - 1] - 1:
            j -= 1
            places.append((None, j))
        elif i and j and best[i][j] == best[i - 1][j - 1] + (match if reference[i - 1] == hypothesis[j - 1] else -1):
            i, j = i - 1, j - 1
            places.append((i, j))
        else:
            i -= 1
            places.append((i, None))
    return places[::-1]


@dataclass(frozen=True)
class SymbolErrors:
    """Counts of the errors of hypotheses, by symbol of the references.

    Args:
        symbols: Number of occurrences of each symbol in the references.
        confusions: Number of replacements of a symbol (first) by another symbol (second). A deletion has "" as second
            symbol, an insertion has "" as first symbol.
        thirds: Numbers of errors and of reference symbols in the first, middle and last third of the words. A symbol
            belongs to the third that contains its center, an insertion to the third of its position.
    """

    symbols: Counter[str]
    confusions: Counter[tuple[str, str]]
    thirds: list[tuple[int, int]]

    def rate(self, symbol: str) -> float:
        """Return the error rate of a symbol: the share of its occurrences that are replaced or deleted.

        Args:
            symbol: A symbol of the references.

        Returns:
            The rate in percent.
        """
        return 100 * sum(n for (one, _), n in self.confusions.items() if one == symbol) / self.symbols[symbol]


def count_symbol_errors(hypotheses: Sequence[str], references: Sequence[str]) -> SymbolErrors:
    """Count errors by reference symbol (replaced or deleted), and by position in the word.

    Hypothesis and reference are aligned with as few edits as possible, so that the errors sum to the edit distances.

    Args:
        hypotheses: One per sentence.
        references: One per sentence.

    Returns:
        The counts.
    """
    symbols, confusions = Counter[str](), Counter[tuple[str, str]]()
    errors, counts = [0, 0, 0], [0, 0, 0]
    for text, other in zip(hypotheses, references, strict=True):
        written, wanted = text.split(), other.split()
        before = 0  # number of reference symbols before the current pair
        for i, j in _align(wanted, written, match=0):
            pair = ("" if i is None else wanted[i], "" if j is None else written[j])
            middle = before if i is None else before + 0.5
            third = min(int(3 * middle / max(len(wanted), 1)), 2)
            if i is not None:
                before += 1
                symbols[pair[0]] += 1
                counts[third] += 1
            if pair[0] != pair[1]:
                confusions[pair] += 1
                errors[third] += 1
    return SymbolErrors(symbols, confusions, list(zip(errors, counts, strict=True)))


def _edits(hypotheses: Sequence[str], references: Sequence[str]) -> list[tuple[int, int]]:
    """Return edit distance and number of reference symbols for each sentence."""
    pairs = ((text.split(), other.split()) for text, other in zip(hypotheses, references, strict=True))
    return [(_levenshtein(ours, theirs), len(theirs)) for ours, theirs in pairs]


def _levenshtein(one: Sequence[str], other: Sequence[str]) -> int:
    distances = list(range(len(other) + 1))
    for i, symbol in enumerate(one):
        row = [i + 1]
        for j, theirs in enumerate(other):
            row.append(min(distances[j] + (symbol != theirs), distances[j + 1] + 1, row[j] + 1))
        distances = row
    return distances[-1]
