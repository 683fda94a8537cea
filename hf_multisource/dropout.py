"""Dropout that is faster on CPUs, because it draws fewer random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 1 << 16  # number of values of a 16-bit random integer; dropout probabilities are multiples of 1 / LEVELS


def dropout(states: Tensor, p: float, training: bool) -> Tensor:
    """Apply dropout in training mode; otherwise return the states unchanged without calling PyTorch.

    On a CPU, PyTorch draws one 64-bit random number for each element, which takes longer than many layers; here four
    elements share one number. The probability is rounded to a multiple of 2^-16, and the remaining elements are scaled
    by the inverse of the rounded probability of keeping them.

    Args:
        states: Hidden states.
        p: Probability of zeroing an element.
        training: Whether to apply dropout.

    Returns:
        The states after dropout.
    """
    if not (training and p):
        return states
    cut = round(p * LEVELS)
    if states.device.type != "cpu" or torch.compiler.is_compiling() or cut in (0, LEVELS):
        return torch.nn.functional.dropout(states, p)
    numbers = torch.empty(-(-states.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    numbers = numbers.view(torch.int16)[: states.numel()].view(states.shape)
    kept = torch.empty(states.shape, dtype=states.dtype)
    torch.ge(numbers, cut - LEVELS // 2, out=kept)  # avoids a boolean tensor and its conversion
    return states * kept.mul_(LEVELS / (LEVELS - cut))
