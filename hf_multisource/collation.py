"""From a list of encoded examples to one padded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
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


def to_array(row: Any) -> np.ndarray:
    """A row of numbers as an array; what is an array already, a view of a file too, is not copied.

    Args:
        row: An array, a tensor or nested lists.

    Returns:
        The array.
    """
    if isinstance(row, Tensor):
        row = row.detach().cpu()
        return row.float().numpy() if row.dtype == torch.bfloat16 else row.numpy()
    return np.asarray(row)


def check_finite(array: np.ndarray, place: str) -> None:
    """Check that all numbers are finite, also in single precision, which batches have.

    Args:
        array: The numbers.
        place: What they are, for the message.

    Raises:
        ValueError: If one is not; the message gives it and its place in the array.
    """
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(array if array.itemsize <= 4 else array.astype(np.float32))
    if not finite.all():
        index = np.unravel_index(int(finite.argmin()), array.shape)
        where = ", ".join(str(int(i)) for i in index)
        raise ValueError(f"{place} holds {array[index]} at [{where}]; all numbers must be finite in single precision.")


def pad_arrays(
    name: str, rows: Sequence[Any], *, value: float = 0.0, multiple_of: int = 1, same_shape: bool = False
) -> np.ndarray:
    """Join the arrays of a batch, padded at the end of their first axis.

    Args:
        name: The source's, for messages.
        rows: Arrays; None where the source is absent: padding all through.
        value: What to pad with.
        multiple_of: Make the length a multiple of this.
        same_shape: Whether the first axis, too, must be equally long in all of them.

    Shape:
        Rows (S, ...), whatever S of each. Returns (B, longest S, ...), in float32; (B, 0) if all rows are None.

    Returns:
        One array.

    Raises:
        ValueError: If the arrays do not fit together; the message gives two of them and their shapes.
    """
    arrays = {i: to_array(row) for i, row in enumerate(rows) if row is not None}
    if not arrays:
        return np.zeros((len(rows), 0), np.float32)
    first = min(arrays)
    fixed = slice(0 if same_shape else 1, None)
    for i, array in arrays.items():
        if array.ndim != arrays[first].ndim or array.shape[fixed] != arrays[first].shape[fixed]:
            rule = "all must have one shape" if same_shape else "only the first number may differ"
            raise ValueError(
                f"source {name!r} has shape {arrays[first].shape} in example {first} of the batch and {array.shape} "
                f"in example {i}: {rule}."
            )
    length = max(len(array) for array in arrays.values())
    length = -(-length // multiple_of) * multiple_of
    batch = np.full((len(rows), length, *arrays[first].shape[1:]), value, np.float32)
    for i, array in arrays.items():
        batch[i, : len(array)] = array
    return batch


def pad_source(
    processor: Any, name: str, rows: Sequence[Any], masks: Sequence[Any], *, to: int | None = None, multiple_of: int = 1
) -> tuple[Any, Any]:
    """Pad what one source gives for a batch, each kind of source in its own way.

    Args:
        processor: The [`MultiSourceProcessor`].
        name: The source's.
        rows: Ids, features, samples or pixels of every example; None where the source is absent.
        masks: Their masks, zeros or nothing where the source is absent.
        to: Pad ids to this length.
        multiple_of: Make the lengths of ids and of features a multiple of this. What a feature extractor or an image
            processor made keeps its length: the encoder may need just that.

    Returns:
        Rows and masks of one length: lists of ids, arrays of all else.
    """
    key = processor.main_input(name)
    if key == "input_ids":
        padding = processor.get_tokenizer(name).pad_token_id
        ids = pad_rows([_integers(row) for row in rows], padding, to=to, multiple_of=multiple_of)
        return ids, pad_rows([_integers(mask) for mask in masks], 0, to=to, multiple_of=multiple_of)
    part = processor.source_processors.get(name)
    if part is not None:
        multiple_of = 1
    value = getattr(part, "padding_value", 0.0)
    batch = pad_arrays(name, rows, value=value, multiple_of=multiple_of, same_shape=key == "pixel_values")
    known = [None if row is None else mask for row, mask in zip(rows, masks, strict=True)]
    return batch, pad_arrays(name, known, multiple_of=multiple_of).astype(np.int64)


def _integers(row: Any) -> list[int]:
    """A row of ids as a list, whether it was a list, an array, a tensor or None."""
    return [] if row is None else [int(token) for token in row]


def _given(row: Any) -> Any:
    """The row, or None for an empty one."""
    return None if row is None or not len(row) else row


def _mask(row: Any, mask: Any, key: str) -> Any:
    """The mask of a row: none if there is no row, and one of ones if none is given."""
    if row is None:
        return []
    return [1] * (1 if key == "pixel_values" else len(row)) if _given(mask) is None else mask


class DataCollatorForMultiSource:
    """Pads each source on its own, as its kind wants it; an absent source becomes padding with a mask of zeros.

    Every source's tensors are in every batch: a key that is missing on one process only would break gathering.

    Args:
        processor: The [`MultiSourceProcessor`] that encoded the examples; tells source names and padding ids.
        model: If given, `decoder_input_ids` are made from the labels (what Trainer's `label_smoothing_factor` needs).
        pad_to_multiple_of: Make every length of ids and of features a multiple of this; not of pictures and speech.
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
            Returns for each source, by kind: `input_ids` (B, S_i); `input_features` (B, S_i, F_i); `input_values`
            (B, samples); `pixel_values` (B, C, H, W); and `attention_mask` (B, S_i), of pictures (B, 1). What no
            example of the batch has is one masked id of a text, and (B, 0) of all else. labels (B, T), -100 at padding.

        Returns:
            The batch. Ids and masks are integers, all else is float32, whatever it was before.

        Raises:
            ValueError: If no example has the key of a source, arrays of a source do not fit together, an example has no
                source at all, or some have labels and some have none; the message gives the place in the batch.
        """
        batch: dict[str, Any] = {}
        present = [False] * len(examples)
        for i, name in enumerate(self.processor.source_names):
            key = self.processor.main_input(name)
            main, mask = source_key(i, name, key), source_key(i, name, "attention_mask")
            if not any(main in example for example in examples):
                raise ValueError(
                    f"no example has {main!r} (the processor gives it even where a source is absent); "
                    "a stock Trainer needs remove_unused_columns=False."
                )
            rows = [_given(example.get(main)) for example in examples]
            masks = [_mask(row, example.get(mask), key) for row, example in zip(rows, examples, strict=True)]
            present = [seen or bool(np.any(to_array(row))) for seen, row in zip(present, masks, strict=True)]
            batch[main], batch[mask] = pad_source(
                self.processor, name, rows, masks, multiple_of=self.pad_to_multiple_of
            )
        if not all(present):
            raise ValueError(f"example {present.index(False)} of the batch has no source at all.")
        labels: list[Any] = [example.get("labels") for example in examples]
        unlabelled = [i for i, row in enumerate(labels) if row is None]
        if len(unlabelled) < len(labels):
            if unlabelled:
                raise ValueError(f"example {unlabelled[0]} of the batch has no labels, others have.")
            batch["labels"] = pad_rows(list(map(_integers, labels)), LABEL_PADDING, multiple_of=self.pad_to_multiple_of)
        tensors = {key: torch.as_tensor(rows) for key, rows in batch.items()}
        if self.model is not None and "labels" in tensors:
            tensors["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(tensors["labels"])
        return tensors
