"""Data collator that pads encoded examples to a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arrays import pad_rows, to_array
from .source_kinds import MASK, integers, source_key

LABEL_PADDING = -100  # label that cross-entropy ignores (its default `ignore_index`)


class DataCollatorForMultiSource:
    """Data collator that pads each source separately; an absent source becomes padding with a mask of zeros.

    Every batch contains the tensors of all sources, because gathering across processes fails if a key is missing on one
    process.

    Args:
        processor: The [`MultiSourceProcessor`] that encoded the examples; provides source names and padding ids.
        model: If given, `decoder_input_ids` are made from the labels; required by `compute_loss_func` of Trainer, and
            by `label_smoothing_factor` of a stock Trainer.
        pad_to_multiple_of: Lengths of token ids and features are rounded up to a multiple of this number; pictures and
            speech are not affected. None is 1.

    Raises:
        TypeError: If `processor` has no names of sources.
        ValueError: If `pad_to_multiple_of` is less than 1.
    """

    def __init__(self, processor: Any, model: Any = None, pad_to_multiple_of: int | None = None) -> None:
        if pad_to_multiple_of is not None and pad_to_multiple_of < 1:
            raise ValueError(f"pad_to_multiple_of must be 1 or more, or None; got {pad_to_multiple_of!r}.")
        if not hasattr(processor, "source_names"):
            raise TypeError(f"processor must be a MultiSourceProcessor; got a {type(processor).__name__}.")
        self.processor = processor
        self.model = model
        self.pad_to_multiple_of = pad_to_multiple_of or 1

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Pad examples to a batch.

        Args:
            examples: Outputs of the processor for single examples: `input_ids`, `de_input_ids`, ..., `labels`. Keys
                that belong to no source (ids, lengths) are dropped.

        Shape:
            Returns for each source, by kind: `input_ids` (B, S_i); `input_features` (B, S_i, F_i); `input_values`
            (B, samples); `pixel_values` (B, C, H, W); and `attention_mask` (B, S_i), for pictures (B, 1). A source that
            no example of the batch has is one masked id per row if it is text, and (B, 0) otherwise. labels (B, T),
            -100 at padding.

        Returns:
            The batch. Ids and masks are integers; all other tensors are converted to float32.

        Raises:
            ValueError: If `examples` is one dict, no example has the key of a source, the shapes of a source's arrays
                do not match, an example has no source, or only some examples have labels; the message gives the index
                in the batch.
        """
        if isinstance(examples, Mapping):
            raise ValueError("examples must be a list of encoded examples; got one dict: put it in a list, [example].")
        batch: dict[str, Any] = {}
        present = [False] * len(examples)
        for i, name in enumerate(self.processor.source_names):
            kind, part = self.processor.kind_of(name), self.processor.part_of(name)
            main, mask = source_key(i, name, kind.main_input(part)), source_key(i, name, MASK)
            if not any(main in example for example in examples):
                raise ValueError(
                    f"no example has {main!r}, which the processor gives even where a source is absent: encode the "
                    "rows with the processor first; and if they were encoded, a stock Trainer has removed the column: "
                    "give it remove_unused_columns=False."
                )
            rows: list[Any] = [None] * len(examples)
            masks: list[Any] = [None] * len(examples)
            for place, example in enumerate(examples):
                row, known = example.get(main), example.get(mask)
                if row is not None and len(row):
                    if kind.has_vocabulary:
                        _check_row(main, place, row)
                    rows[place] = row
                    masks[place] = kind.mask(row) if known is None or not len(known) else known
                    present[place] = present[place] or bool(np.any(to_array(masks[place])))
            batch[main], batch[mask] = kind.pad(
                rows, masks, name=name, part=part, to=None, multiple_of=self.pad_to_multiple_of
            )
        if not all(present):
            raise ValueError(f"example {present.index(False)} of the batch has no source at all.")
        labels: list[Any] = [example.get("labels") for example in examples]
        unlabeled = [i for i, row in enumerate(labels) if row is None]
        if len(unlabeled) < len(labels):
            if unlabeled:
                raise ValueError(f"example {unlabeled[0]} of the batch has no labels, others have.")
            for place, row in enumerate(labels):
                _check_row("labels", place, row)
            batch["labels"] = pad_rows(list(map(integers, labels)), LABEL_PADDING, multiple_of=self.pad_to_multiple_of)
        tensors = {key: _to_tensor(rows) for key, rows in batch.items()}
        if self.model is not None and "labels" in tensors:
            tensors["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(tensors["labels"])
        return tensors


def _to_tensor(rows: Any) -> torch.Tensor:
    """Convert padded rows; nested lists of integers by way of an array, since PyTorch reads them slowly."""
    first = rows[0] if isinstance(rows, list) and rows else None
    of_integers = isinstance(first, list) and bool(first) and isinstance(first[0], int)
    return torch.as_tensor(np.asarray(rows) if of_integers else rows)


def _check_row(key: str, place: int, row: Any) -> None:
    """Raise ValueError if the ids of an example are a batch, as the processor returns them with `return_tensors`."""
    if (isinstance(row, list) and row and isinstance(row[0], list)) or len(getattr(row, "shape", "1")) != 1:
        raise ValueError(
            f"{key} of example {place} is a batch, and must be one list of ids; encode single examples without "
            "return_tensors."
        )
