"""Rows of numbers as arrays, checked and padded to a batch. No torch in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


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
    if hasattr(row, "detach"):  # a tensor of torch, which this module need not import
        row = row.detach().cpu()
        return (row.float() if str(row.dtype) == "torch.bfloat16" else row).numpy()
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
    name: str,
    rows: Sequence[Any],
    *,
    value: float = 0.0,
    multiple_of: int = 1,
    same_shape: bool = False,
    dtype: Any = np.float32,
) -> np.ndarray:
    """Join the arrays of a batch, padded at the end of their first axis.

    Args:
        name: The source's, for messages.
        rows: Arrays; None where the source is absent: padding all through.
        value: What to pad with.
        multiple_of: Make the length a multiple of this.
        same_shape: Whether the first axis, too, must be equally long in all of them.
        dtype: Type of the numbers of the batch.

    Shape:
        Rows (S, ...), whatever S of each. Returns (B, longest S, ...); (B, 0) if all rows are None.

    Returns:
        One array.

    Raises:
        ValueError: If the arrays do not fit together; the message gives two of them and their shapes.
    """
    arrays = {i: to_array(row) for i, row in enumerate(rows) if row is not None}
    if not arrays:
        return np.zeros((len(rows), 0), dtype)
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
    batch = np.full((len(rows), length, *arrays[first].shape[1:]), value, dtype)
    for i, array in arrays.items():
        batch[i, : len(array)] = array
    return batch


__all__ = ["check_finite", "pad_arrays", "pad_rows", "to_array"]
