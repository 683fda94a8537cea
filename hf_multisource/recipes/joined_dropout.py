"""Source dropout for sources that are joined into one text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hf_multisource.data.encoding import Example
from hf_multisource.data.store import StoredExamples
from hf_multisource.recipes.schema import DataRecipe, source_marker
from hf_multisource.source_kinds import MASK


def drop_joined(data: DataRecipe, examples: StoredExamples, tokenizer: Any) -> JoinedDropout:
    """Leave sources out of joined texts in training, as `data.joined_dropout` says.

    Args:
        data: Names the sources and the probability.
        examples: Encoded examples of marked joined texts.
        tokenizer: The tokenizer that encoded the texts.

    Returns:
        The examples.
    """
    markers = tokenizer.convert_tokens_to_ids([source_marker(name) for name in data.sources])
    return JoinedDropout(examples, markers, data.joined_dropout, [tokenizer.eos_token_id])


class JoinedDropout(Sequence[Example]):
    """Training examples of joined texts, in which the texts of some sources are left out, drawn anew at each reading.

    It is to joined texts what `source_dropout` of the model's configuration is to sources with encoders of their own:
    each text is left out with the same probability, and an example that would lose all keeps one of them, any with the
    same probability. The random numbers are torch's.

    Args:
        examples: Encoded examples, whose `input_ids` are a joined text: the tokens of each source that is present,
            behind the marker of the source.
        markers: Ids of the markers.
        probability: Of leaving a source's text out, in [0, 1).
        ends: Ids of tokens that end the joined text, such as that of `</s>`; they stay.

    Attributes:
        text_lengths: Of each row, the tokens of the whole joined text, before any of it is left out.
        label_lengths: Of each row, the tokens of its target.
    """

    def __init__(
        self, examples: StoredExamples, markers: Sequence[int], probability: float, ends: Sequence[int]
    ) -> None:
        self.examples = examples
        self.markers = frozenset(markers)
        self.probability = probability
        self.ends = frozenset(ends)
        self.text_lengths = examples.text_lengths
        self.label_lengths = examples.label_lengths

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.__getitems__(list(range(*index.indices(len(self)))))
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Return the examples of a batch at once; a DataLoader calls this.

        Args:
            indices: Numbers of rows.

        Returns:
            One dict per row, without the attention mask, which is that of the whole text.
        """
        return [
            {key: value for key, value in one.items() if key != MASK} | {"input_ids": self._drop(one["input_ids"])}
            for one in self.examples.__getitems__(indices)
        ]

    def _drop(self, ids: Sequence[int] | None) -> Sequence[int] | None:
        """The joined text without those sources that are drawn; None stays None."""
        if ids is None:
            return None
        begins = [place for place, token in enumerate(ids) if token in self.markers]
        if not begins:
            return ids
        end = len(ids)
        while ids[end - 1] in self.ends:
            end -= 1
        parts = [ids[a:b] for a, b in zip(begins, [*begins[1:], end], strict=True)]
        kept = torch.rand(len(parts)) >= self.probability
        if not kept.any():
            kept[torch.randint(len(parts), ())] = True
        stay = [part for part, stays in zip(parts, kept.tolist(), strict=True) if stays]
        return [*ids[: begins[0]], *(token for part in stay for token in part), *ids[end:]]
