"""BLEU, chrF and TER with the definitions of sacrebleu, computed from counts of each sentence.

sacrebleu's public functions return scores of whole test sets with half the width of a confidence interval. The ends of
an interval, and the interval of a difference, need the counts of each sentence. For BLEU and TER, the counts are part
of sacrebleu's sentence scores. For chrF, they are computed here from the n-grams that sacrebleu extracts.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_word_ngrams

from hf_multisource.metrics.measurement import Counts


def bleu(hypotheses: Sequence[str], references: Sequence[str], sources: object = None, **options: Any) -> Counts:
    """Corpus BLEU (Papineni et al. 2002, https://doi.org/10.3115/1073083.1073135).

    Args:
        hypotheses: One per sentence.
        references: One per sentence.
        sources: Not used.
        **options: Further keyword arguments of `sacrebleu.metrics.BLEU`, such as `tokenize`.

    Returns:
        The measurement, 0 to 100.
    """
    metric = BLEU(**options)
    # The counts are read from unsmoothed sentence scores, because smoothing changes the counts.
    counter = BLEU(**{**options, "smooth_method": "none", "smooth_value": None, "effective_order": True})
    order = metric.max_ngram_order

    def formula(sums: np.ndarray) -> float:
        hypothesis_length, reference_length = (int(length) for length in sums[:2])
        return BLEU.compute_bleu(
            sums[2 : 2 + order].tolist(),
            sums[2 + order :].tolist(),
            hypothesis_length,
            reference_length,
            smooth_method=metric.smooth_method,
            smooth_value=metric.smooth_value,
            effective_order=metric.effective_order,
            max_ngram_order=order,
        ).score

    found = (counter.sentence_score(text, [other]) for text, other in zip(hypotheses, references, strict=True))
    counts = [[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in found]
    return Counts(np.array(counts), formula, _signature(metric))


def chrf(hypotheses: Sequence[str], references: Sequence[str], sources: object = None, **options: Any) -> Counts:
    """Corpus chrF, or chrF++ with `word_order=2` (Popović 2015, 2017, https://doi.org/10.18653/v1/W17-4770).

    Args:
        hypotheses: One per sentence.
        references: One per sentence.
        sources: Not used.
        **options: Further keyword arguments of `sacrebleu.metrics.CHRF`, such as `word_order`.

    Returns:
        The measurement, 0 to 100.
    """
    metric = CHRF(**options)
    counts = [_overlaps(metric, text, other) for text, other in zip(hypotheses, references, strict=True)]
    formula = partial(_f_score, beta=metric.beta, smooth=metric.eps_smoothing)
    return Counts(np.array(counts), formula, _signature(metric))


def ter(hypotheses: Sequence[str], references: Sequence[str], sources: object = None, **options: Any) -> Counts:
    """Translation edit rate (Snover et al. 2006, https://aclanthology.org/2006.amta-papers.25).

    Args:
        hypotheses: One per sentence.
        references: One per sentence.
        sources: Not used.
        **options: Further keyword arguments of `sacrebleu.metrics.TER`, such as `normalized`.

    Returns:
        The measurement: edits per 100 words of the reference; 0 is best.
    """
    metric = TER(**options)
    found = (metric.sentence_score(text, [other]) for text, other in zip(hypotheses, references, strict=True))
    return Counts(np.array([[one.num_edits, one.ref_length] for one in found]), edit_rate, _signature(metric))


def _signature(metric: BLEU | CHRF | TER) -> str:
    metric.corpus_score(["x"], [["x"]])  # the signature needs the number of references, which is known after scoring
    return str(metric.get_signature())


def edit_rate(sums: np.ndarray) -> float:
    """Return the number of edits per 100 words or symbols of the references.

    Args:
        sums: (2,) edits, and length of the references.

    Returns:
        The rate; 100 if there are edits and the references are empty.
    """
    edits, length = sums
    return 100 * float(edits / length if length else edits > 0)


def _overlaps(metric: CHRF, hypothesis: str, reference: str) -> list[int]:
    """Return the numbers of n-grams of the hypothesis, of the reference, and shared by both, for each order."""
    counts = []
    for ours, theirs in zip(_n_grams(metric, hypothesis), _n_grams(metric, reference), strict=True):
        # n-grams of the hypothesis count only for orders at which the reference has n-grams, as in sacrebleu.
        counts += [ours.total() if theirs else 0, theirs.total(), (ours & theirs).total()]
    return counts


def _n_grams(metric: CHRF, text: str) -> list[Counter[str]]:
    text = text.lower() if metric.lowercase else text
    words = _separate_punctuation(text) if metric.word_order else []
    of_words = [extract_word_ngrams(words, n + 1) for n in range(metric.word_order)]
    return [*extract_all_char_ngrams(text, metric.char_order, metric.whitespace), *of_words]


def _separate_punctuation(text: str) -> list[str]:
    """Split a text into words as chrF++ does: one punctuation mark per word is split off, preferably at the end."""
    words = []
    for word in text.split():
        if len(word) > 1 and word[-1] in string.punctuation:
            words += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in string.punctuation:
            words += [word[0], word[1:]]
        else:
            words.append(word)
    return words


def _f_score(sums: np.ndarray, beta: int, smooth: bool) -> float:
    """Compute F-beta from mean precision and recall over the orders of both texts; smoothed, the mean F over orders."""
    ours, theirs, both = sums.reshape(-1, 3).T
    if smooth:
        precision, recall = (np.where(n > 0, both / np.maximum(n, 1), 1e-16) for n in (ours, theirs))
        return float(100 * _f_beta(precision, recall, beta).mean())
    counted = (ours > 0) & (theirs > 0)
    if not both[counted].any():
        return 0.0
    precision, recall = ((both[counted] / n[counted]).mean() for n in (ours, theirs))
    return float(100 * _f_beta(precision, recall, beta))


def _f_beta(precision: np.ndarray, recall: np.ndarray, beta: int) -> np.ndarray:
    denominator = beta**2 * precision + recall
    return np.where(denominator > 0, (1 + beta**2) * precision * recall / np.maximum(denominator, 1e-300), 1e-16)
