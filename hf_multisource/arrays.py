"""Conversion, validation and padding of NumPy arrays. This module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def pad_rows(
    rows: Sequence[Sequence[int]], value: int, *, to: int | None = None, multiple_of: int = 1
) -> list[list[int]]:
    """Pad rows on the right to a common length of at least 1.

    Args:
        rows: Token ids or attention masks.
        value: Padding value.
        to: Smallest length of the padded rows; None: the length of the longest row.
        multiple_of: The length is rounded up to a multiple of this number.

    Returns:
        Rows of equal length.
    """
    length = max([to or 1, *map(len, rows)])
    length = -(-length // multiple_of) * multiple_of
    return [[*row, *[value] * (length - len(row))] for row in rows]


def to_array(row: Any) -> np.ndarray:
    """Convert a sequence of numbers to a NumPy array; arrays and memory maps are returned without copying.

    Args:
        row: An array, a tensor or nested lists.

    Returns:
        The array.
    """
    if hasattr(row, "detach"):  # a torch tensor, recognized without importing torch
        row = row.detach().cpu()
        return (row.float() if str(row.dtype) == "torch.bfloat16" else row).numpy()
    return np.asarray(row)


def check_finite(array: np.ndarray, place: str) -> None:
    """Check that all numbers are finite in single precision, the data type of batches.

    Args:
        array: The numbers.
        place: Description of the array, for the error message.

    Raises:
        ValueError: If a number is not finite; the message gives the number and its index.
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
    """Stack arrays into a batch, padded at the end of their first axis.

    Args:
        name: Name of the source, for error messages.
        rows: One array per example; None if the example lacks the source, whose batch row is then padding only.
        value: Padding value.
        multiple_of: The padded length is rounded up to a multiple of this number.
        same_shape: Whether the first axis must also have the same length in all arrays.
        dtype: Data type of the batch.

    Shape:
        rows (S, ...), where S may differ. Returns (B, longest S, ...); (B, 0) if all rows are None.

    Returns:
        The batch.

    Raises:
        ValueError: If the shapes of the arrays do not match; the message gives two examples and their shapes.
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
