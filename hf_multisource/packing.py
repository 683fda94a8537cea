"""Padding that is not computed: what acts on every position by itself sees the real positions of a batch only."""

from __future__ import annotations

import torch
from torch import Tensor


class Packing:
    """The real positions of a padded batch, one after the other.

    Args:
        mask: True = real.

    Shape:
        mask (B, S) bool, of which N are True.
    """

    def __init__(self, mask: Tensor) -> None:
        self.shape = mask.shape
        self.index = mask.flatten().nonzero().squeeze(1)

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
            States of all positions, zero at padding.
        """
        whole = states.new_zeros(self.shape.numel(), states.shape[-1])
        return whole.index_copy(0, self.index, states).unflatten(0, self.shape)


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
    """Pack a batch that has padding.

    Args:
        mask: True = real.

    Shape:
        (B, S) bool.

    Returns:
        The packing; None if there is no padding.
    """
    return None if bool(mask.all()) else Packing(mask)
