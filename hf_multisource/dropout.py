"""Dropout whose random numbers cost little on CPUs."""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 1 << 16  # probabilities are multiples of 1 / LEVELS


def dropout(states: Tensor, p: float, training: bool) -> Tensor:
    """Zero some states in training, and scale up the others; otherwise nothing is called, which is faster.

    On a CPU torch draws one random number of 64 bits for each state, which takes longer than many a layer; here four
    states share one. The probability is rounded to a multiple of 2^-16, and the scale is exact for what is left.

    Args:
        states: Any states.
        p: Probability of zeroing.
        training: Whether to.

    Returns:
        The states.
    """
    if not (training and p):
        return states
    cut = round(p * LEVELS)
    if states.device.type != "cpu" or torch.compiler.is_compiling() or cut in (0, LEVELS):
        return torch.nn.functional.dropout(states, p)
    numbers = torch.empty(-(-states.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    numbers = numbers.view(torch.int16)[: states.numel()].view(states.shape)
    kept = torch.empty(states.shape, dtype=states.dtype)
    torch.ge(numbers, cut - LEVELS // 2, out=kept)  # without `out`, truth values, whose conversion takes longer
    return states * kept.mul_(LEVELS / (LEVELS - cut))
