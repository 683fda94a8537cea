"""Source dropout for sources that are joined into one text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hf_multisource.data.encoding import Example
from hf_multisource.data.store import StoredExamples
from hf_multisource.recipes.schema import DataRecipe, source_marker
from hf_multisource.source_kinds import MASK


def drop_joined(data: DataRecipe, examples: StoredExamples, tokenizer: Any, seed: int) -> JoinedDropout:
    """Apply source dropout with the probability `data.joined_dropout` to joined texts.

    Args:
        data: Data section with the sources and the probability.
        examples: Encoded examples of marked joined texts.
        tokenizer: The tokenizer that encoded the texts.
        seed: Seed of the training.

    Returns:
        The examples, from which sources are dropped whenever they are read.
    """
    markers = tokenizer.convert_tokens_to_ids([source_marker(name) for name in data.sources])
    return JoinedDropout(examples, markers, data.joined_dropout, [tokenizer.eos_token_id], seed)


class JoinedDropout(Sequence[Example]):
    """Training examples of joined texts from which the texts of random sources are dropped in each epoch.

    This is the counterpart of the configuration's `source_dropout`, which drops sources with separate encoders. Each
    text is dropped independently with the same probability. If all texts of an example would be dropped, one of them,
    chosen uniformly, is kept. The random numbers depend on the seed, the epoch and the row alone, so that a resumed
    training, several processes and workers of a DataLoader drop the same texts as an uninterrupted training in one
    process.

    Args:
        examples: Encoded examples. Their `input_ids` are a joined text: for each present source, its marker followed by
            its tokens.
        markers: Token ids of the markers.
        probability: Probability of dropping a source's text, in [0, 1).
        ends: Ids of tokens at the end of the joined text, such as `</s>`; they are always kept.
        seed: Seed of the random numbers.

    Attributes:
        text_lengths: Number of tokens of each row's whole joined text, before dropout.
        label_lengths: Number of tokens of each row's target.
    """

    def __init__(
        self, examples: StoredExamples, markers: Sequence[int], probability: float, ends: Sequence[int], seed: int
    ) -> None:
        self.examples = examples
        self.markers = frozenset(markers)
        self.probability = probability
        self.ends = frozenset(ends)
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # persistent workers see it change
        self.text_lengths = examples.text_lengths
        self.label_lengths = examples.label_lengths

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the sources that are dropped.

        Args:
            epoch: Index of the epoch, from 0.
        """
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.__getitems__(list(range(*index.indices(len(self)))))
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Return the examples of a batch; a DataLoader calls this method to fetch a whole batch.

        Args:
            indices: Indices of the rows.

        Returns:
            One dict per row, without the attention mask, which would have the length of the whole text.
        """
        return [
            {key: value for key, value in one.items() if key != MASK}
            | {"input_ids": self._drop(one["input_ids"], index)}
            for index, one in zip(indices, self.examples.__getitems__(indices), strict=True)
        ]

    def _drop(self, ids: Sequence[int] | None, index: int) -> Sequence[int] | None:
        """Return the joined text without randomly dropped sources; None is returned unchanged."""
        if ids is None:
            return None
        begins = [place for place, token in enumerate(ids) if token in self.markers]
        if not begins:
            return ids
        end = len(ids)
        while ids[end - 1] in self.ends:
            end -= 1
        parts = [ids[a:b] for a, b in zip(begins, [*begins[1:], end], strict=True)]
        draws = np.random.default_rng((self.seed, int(self._epoch), index))
        kept = draws.random(len(parts)) >= self.probability
        if not kept.any():
            kept[draws.integers(len(parts))] = True
        stay = [part for part, stays in zip(parts, kept.tolist(), strict=True) if stays]
        return [*ids[: begins[0]], *(token for part in stay for token in part), *ids[end:]]
