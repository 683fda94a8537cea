"""Packing of padded batches, so that position-wise layers compute the real positions only.

The libraries for matrix products generate code for each new shape, which takes longer than a small product. The numbers
of positions and examples are therefore rounded up, so that some padding is computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

POSITIONS = 64  # the number of packed positions is rounded up to a multiple of this, to limit the number of shapes
EXAMPLES = 8  # the number of selected examples is rounded up to a multiple of this, to limit the number of shapes
PADDING = 0.25  # smallest share of padding for which packing is faster, given the time of packing and unpacking


def indices_of(wanted: Tensor, multiple: int) -> Tensor:
    """Return the indices of True elements, followed by indices of other elements up to a multiple of a number.

    Args:
        wanted: True at wanted elements.
        multiple: The number of indices is rounded up to a multiple of this number, but is at most N.

    Shape:
        (N,) bool to (M,).

    Returns:
        The indices: first those of the wanted elements, in order, then those of other elements.
    """
    found = wanted.nonzero().squeeze(1)
    missing = -len(found) % multiple
    return torch.cat([found, (~wanted).nonzero().squeeze(1)[:missing]]) if missing else found


def examples_with(present: Tensor) -> Tensor | None:
    """Return the indices of the examples that have a source, with further examples up to a multiple of `EXAMPLES`.

    Args:
        present: Whether each example has the source.

    Shape:
        (B,) bool to (M,).

    Returns:
        The indices; None if the result would contain all examples or no example has the source.
    """
    examples = indices_of(present, EXAMPLES)
    return examples if 0 < len(examples) < len(present) else None


class Packing:
    """Index of the real positions of a padded batch, which packs and unpacks states.

    Args:
        mask: True at real positions.

    Shape:
        mask (B, S) bool. N is the number of True elements, rounded up to a multiple of `POSITIONS`.
    """

    def __init__(self, mask: Tensor) -> None:
        self.shape = mask.shape
        self.index = indices_of(mask.flatten(), POSITIONS)

    def pack(self, states: Tensor) -> Tensor:
        """Select the states of the real positions of a batch.

        Args:
            states: States of all positions.

        Shape:
            (B, S, D) to (N, D).

        Returns:
            States of the real positions.
        """
        return states.flatten(0, 1).index_select(0, self.index)

    def unpack(self, states: Tensor) -> Tensor:
        """Scatter the states of the real positions to a padded batch.

        Args:
            states: States of the real positions.

        Shape:
            (N, D) to (B, S, D).

        Returns:
            States of all positions; arbitrary at padding.
        """
        whole = states.new_zeros(self.shape.numel(), states.shape[-1])
        return whole.index_copy_(0, self.index, states).unflatten(0, self.shape)


def packing_pays(states: Tensor, training: bool) -> bool:
    """Return whether removing padding is faster: in training on a CPU, where time is proportional to positions.

    On CUDA devices, reading the number of real positions requires a synchronization; in compiled and exported graphs,
    shapes must not depend on values.

    Args:
        states: The states that will be computed.
        training: Whether the model is in training mode.

    Returns:
        Whether padding should be removed.
    """
    return training and states.device.type == "cpu" and not torch.compiler.is_compiling()


def pack_if_padded(mask: Tensor) -> Packing | None:
    """Create the packing of a batch if its share of padding is at least `PADDING`.

    Args:
        mask: True at real positions.

    Shape:
        (B, S) bool.

    Returns:
        The packing; None if the share of padding is less than `PADDING`, or 0.
    """
    padding = mask.numel() - int(mask.sum())
    return Packing(mask) if padding > 0 and padding >= PADDING * mask.numel() else None
