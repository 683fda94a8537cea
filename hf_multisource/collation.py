"""From a list of encoded examples to one padded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

LABEL_PADDING = -100  # what the loss ignores


def source_key(index: int, name: str, key: str) -> str:
    """The keyword of a source's tensor: bare for source 0, with the name in front for the others.

    Args:
        index: The source's place in the order of sources.
        name: Its name.
        key: What it is, such as "input_ids".

    Returns:
        The keyword.
    """
    return key if index == 0 else f"{name}_{key}"


def pad_rows(
    rows: Sequence[Sequence[int]], value: int, *, to: int | None = None, multiple_of: int = 1
) -> list[list[int]]:
    """Pad rows on the right to a common length, at least 1.

    Args:
        rows: Ids, or a mask.
        value: What to pad with.
        to: Pad to this length; None: to the longest row.
        multiple_of: Make the length a multiple of this.

    Returns:
        Rows of one length.
    """
    length = max([to or 1, *map(len, rows)])
    length = -(-length // multiple_of) * multiple_of
    return [[*row, *[value] * (length - len(row))] for row in rows]


def _integers(row: Any) -> list[int]:
    """A row of ids as a list, whether it was a list, an array, a tensor or None."""
    return [] if row is None else [int(token) for token in row]


class DataCollatorForMultiSource:
    """Pads each source on its own; an absent source becomes padding with a mask of zeros.

    Every source's tensors are in every batch: a key that is missing on one process only would break gathering.

    Args:
        processor: The [`MultiSourceProcessor`] that encoded the examples; tells source names and padding ids.
        model: If given, `decoder_input_ids` are made from the labels (what Trainer's `label_smoothing_factor` needs).
        pad_to_multiple_of: Make every length a multiple of this.
    """

    def __init__(self, processor: Any, model: Any = None, pad_to_multiple_of: int = 1) -> None:
        self.processor = processor
        self.model = model
        self.pad_to_multiple_of = pad_to_multiple_of

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Collate.

        Args:
            examples: What the processor returned for single examples: `input_ids`, `de_input_ids`, ..., `labels`. Keys
                that are no source's (ids, lengths) are left out.

        Shape:
            Returns `<source>_input_ids` and `<source>_attention_mask` (B, S_i), labels (B, T), -100 at padding.

        Returns:
            The batch.

        Raises:
            ValueError: If no example has the ids of a source, an example has no source at all, or some have labels and
                some have none; the message gives the place in the batch.
        """
        batch: dict[str, list[list[int]]] = {}
        present = [False] * len(examples)
        for i, name in enumerate(self.processor.source_names):
            ids, mask = source_key(i, name, "input_ids"), source_key(i, name, "attention_mask")
            if not any(ids in example for example in examples):
                raise ValueError(
                    f"no example has {ids!r} (the processor gives it even where a source is absent); "
                    "a stock Trainer needs remove_unused_columns=False."
                )
            rows = [_integers(example.get(ids)) for example in examples]
            masks = [
                _integers(example.get(mask)) or [1] * len(row) for example, row in zip(examples, rows, strict=True)
            ]
            present = [seen or any(row) for seen, row in zip(present, masks, strict=True)]
            padding = self.processor.get_tokenizer(name).pad_token_id
            batch[ids] = pad_rows(rows, padding, multiple_of=self.pad_to_multiple_of)
            batch[mask] = pad_rows(masks, 0, multiple_of=self.pad_to_multiple_of)
        if not all(present):
            raise ValueError(f"example {present.index(False)} of the batch has no source at all.")
        labels: list[Any] = [example.get("labels") for example in examples]
        if any(row is not None for row in labels):
            if None in labels:
                raise ValueError(f"example {labels.index(None)} of the batch has no labels, others have.")
            batch["labels"] = pad_rows(list(map(_integers, labels)), LABEL_PADDING, multiple_of=self.pad_to_multiple_of)
        tensors = {key: torch.tensor(rows) for key, rows in batch.items()}
        if self.model is not None and "labels" in tensors:
            tensors["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(tensors["labels"])
        return tensors
