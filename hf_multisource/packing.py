"""Padding that is not computed: what acts on every position by itself sees the real positions of a batch only.

The libraries behind matrix products prepare code for each shape that they meet, which takes longer than a small
product. The number of positions, and that of examples, is therefore rounded up: some padding is computed, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

POSITIONS = 64  # packed positions are a multiple of it, if there are as many
EXAMPLES = 8  # the same for examples
PADDING = 0.25  # share of padding from which on packing pays: packing and unpacking take time, too


def indices_of(wanted: Tensor, multiple: int) -> Tensor:
    """Find what is wanted, and as many others as make the number a multiple.

    Args:
        wanted: True = wanted.
        multiple: The number, at most that of all, that the result's length is a multiple of.

    Shape:
        (N,) bool to (M,).

    Returns:
        The indices: first of the wanted ones, in order, then of others.
    """
    found = wanted.nonzero().squeeze(1)
    missing = -len(found) % multiple
    return torch.cat([found, (~wanted).nonzero().squeeze(1)[:missing]]) if missing else found


def examples_with(present: Tensor) -> Tensor | None:
    """Find the examples that have something, rounded up.

    Args:
        present: True = has it.

    Shape:
        (B,) bool to (M,).

    Returns:
        Their indices; None if all examples are to be computed, or none has it.
    """
    examples = indices_of(present, EXAMPLES)
    return examples if 0 < len(examples) < len(present) else None


class Packing:
    """The real positions of a padded batch, one after the other, and some of the others.

    Args:
        mask: True = real.

    Shape:
        mask (B, S) bool, of which N are True, rounded up to a multiple of `POSITIONS`.
    """

    def __init__(self, mask: Tensor) -> None:
        self.shape = mask.shape
        self.index = indices_of(mask.flatten(), POSITIONS)

    def pack(self, states: Tensor) -> Tensor:
        """Take the real positions out of a batch.

        Args:
            states: Of all positions.

        Shape:
            (B, S, D) to (N, D).

        Returns:
            Those of the real ones.
        """
        return states.flatten(0, 1).index_select(0, self.index)

    def unpack(self, states: Tensor) -> Tensor:
        """Put the real positions back into the batch.

        Args:
            states: Of the real positions.

        Shape:
            (N, D) to (B, S, D).

        Returns:
            States of all positions; those of padding mean nothing.
        """
        whole = states.new_zeros(self.shape.numel(), states.shape[-1])
        return whole.index_copy_(0, self.index, states).unflatten(0, self.shape)


def packing_pays(states: Tensor, training: bool) -> bool:
    """Return whether padding should be taken out: in training on a CPU, where time goes with the number of positions.

    Elsewhere the number of real positions would have to be waited for (CUDA), or must not matter (compiling, export).

    Args:
        states: What is computed on.
        training: Whether the model trains.

    Returns:
        Whether to.
    """
    return training and states.device.type == "cpu" and not torch.compiler.is_compiling()


def pack_if_padded(mask: Tensor) -> Packing | None:
    """Pack a batch that has enough padding for packing to pay.

    Args:
        mask: True = real.

    Shape:
        (B, S) bool.

    Returns:
        The packing; None if the share of padding is less than `PADDING`, or 0.
    """
    padding = mask.numel() - int(mask.sum())
    return Packing(mask) if padding > 0 and padding >= PADDING * mask.numel() else None
