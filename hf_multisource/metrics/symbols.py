"""Metrics of sequences of symbols, as proto-form reconstruction reports them: edit distances, B-cubed F and others.

A symbol is what white space separates: a sound of a segmented word, a word of plain text. The definitions are those of
Kim et al. 2023 (https://arxiv.org/abs/2307.01896), who compute B-cubed F with LingRex.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_multisource.metrics.counted import edit_rate
from hf_multisource.metrics.measurement import Counts, mean_of

SIGNATURE = "nrefs:1|tok:blanks|{}version:1"  # the version of the definitions below
GAP = "-"  # what a symbol is aligned with if it has no partner, as in LingPy


def exact_match(hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> Counts:
    """Share of the sentences whose symbols are all right.

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
    """Mean number of symbols to insert, delete or replace in a sentence (Levenshtein).

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
        references: One per sentence; an empty one counts as one symbol.
        sources: Not used.

    Returns:
        The measurement; 0 is best, and a hypothesis longer than its reference can exceed 1.
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

    List 2019 ("Beyond edit distances") proposes it for reconstructed words. Reference and hypothesis are aligned. All
    aligned pairs of the test set are the items of two clusterings: by the symbol of the reference, and by that of
    the hypothesis. A system that replaces one sound by another that it writes nowhere else scores 1; inconsistent
    errors cost more than consistent ones.

    Args:
        hypotheses: One per sentence; an empty one counts as the symbol "?", as in LingRex.
        references: As the hypotheses.
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
    """A [`Measurement`] of aligned symbols: B-cubed F of those of the chosen sentences.

    Args:
        sentences: (A,) number of the sentence of each aligned pair.
        pairs: (A,) number of the kind of each aligned pair, one of P kinds.
        by_reference: (P,) number of the reference's symbol in each kind of pair.
        by_hypothesis: (P,) number of the hypothesis's symbol in each kind of pair.
        size: Number of sentences.
        signature: As [`Measurement`] has it.
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
        Pairs of symbols, one of which may be `GAP`. Of several best alignments, the one that, from the end on, prefers
        gaps in the reference to pairs, and pairs to gaps in the hypothesis.
    """
    return [
        (GAP if i is None else reference[i], GAP if j is None else hypothesis[j])
        for i, j in _align(reference, hypothesis, match=1)
    ]


def _align(reference: Sequence[str], hypothesis: Sequence[str], match: int) -> list[tuple[int | None, int | None]]:
    """Align as `align_symbols` does, where equal symbols score `match`; with 0, with as few edits as possible.

    Returns pairs of places, one of which is None for a gap.
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
    """Errors of hypotheses by the symbols of the references.

    Args:
        symbols: How often each symbol stands in the references.
        confusions: How often a symbol (first) is replaced by another one (second). The second one is "" where the first
            one is left out; the first one is "" where the second one is inserted.
        thirds: Numbers of errors and of symbols of the references in the first, middle and last third of the words. A
            symbol lies in the third in which its middle lies, an insertion in the one in which it was made.
    """

    symbols: Counter[str]
    confusions: Counter[tuple[str, str]]
    thirds: list[tuple[int, int]]

    def rate(self, symbol: str) -> float:
        """Return how often a symbol is replaced or left out.

        Args:
            symbol: A symbol of the references.

        Returns:
            Percent.
        """
        return 100 * sum(n for (one, _), n in self.confusions.items() if one == symbol) / self.symbols[symbol]


def count_symbol_errors(hypotheses: Sequence[str], references: Sequence[str]) -> SymbolErrors:
    """Count which symbols of the references are replaced or left out, and where in the word.

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
        before = 0  # symbols of the reference before the pair
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
    """Edit distance and number of the reference's symbols, for each sentence."""
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
