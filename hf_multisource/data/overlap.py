"""Find training texts that share a sequence of words with held-out texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hf_multisource.data.checks import check_at_least
from hf_multisource.data.normalization import plain_punctuation

Words = tuple[str, ...]


def word_sequences(words: Sequence[str], n: int) -> Iterator[Words]:
    """Return the sequences of n words in a text.

    Args:
        words: Words of the text.
        n: Number of words in a sequence.

    Returns:
        All sequences in order; a text with fewer than n words has no sequences.
    """
    return zip(*(words[i:] for i in range(n)), strict=False)


class Overlap:
    """Index of the word sequences of held-out texts in one language.

    Words are separated by white space. Typographic punctuation is normalized, so that copies with other quotation marks
    are found. A text with fewer than n words is compared as a whole.

    Args:
        texts: The held-out texts.
        n: Number of words that two texts must share in a row.

    Raises:
        ValueError: If `n` is below 1.
    """

    def __init__(self, texts: Iterable[str], n: int) -> None:
        check_at_least(1, n=n)
        self.n = n
        self.sequences: set[Words] = set()
        self.short: set[Words] = set()
        for text in texts:
            words = plain_punctuation(text).split()
            if len(words) < n:
                self.short.add(tuple(words))
            else:
                self.sequences.update(word_sequences(words, n))

    def find(self, text: str) -> str | None:
        """Return the kind of overlap between a text and the held-out texts.

        Args:
            text: The text.

        Returns:
            "sequence" if they share n words in a row; "whole" if the text has fewer than n words and is among the
            held-out texts; None if there is no overlap.
        """
        words = plain_punctuation(text).split()
        if len(words) < self.n:
            return "whole" if tuple(words) in self.short else None
        return None if self.sequences.isdisjoint(word_sequences(words, self.n)) else "sequence"
