"""Sample translations so that every line has random numbers of its own, whatever batch or process it is decoded in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


def draw_uniform(seed: int, line: int, count: int) -> list[float]:
    """Return random numbers that depend on a seed and a line alone.

    Args:
        seed: The seed of the whole input, 0 or more.
        line: Number of the line in the whole input, counted from 0.
        count: How many numbers.

    Returns:
        Numbers in [0, 1). More of them begin with the same ones.
    """
    numbers: list[float] = np.random.Generator(np.random.Philox(key=[seed, line])).random(count).tolist()
    return numbers


class LineSampling(LogitsProcessor):
    """Samples the next token of each batch row with the random numbers of its line, for greedy search.

    The token is where the cumulative distribution passes the random number. Greedy search then finds one token with
    the score 0 among others of minus infinity.

    Args:
        numbers: (B, T) float64 in [0, 1): of each batch row, one for each step.
        temperature: What logits are divided by.
        top_k: Number of tokens that may be drawn; 0: all.
        top_p: Probability of the smallest set of likeliest tokens that may be drawn; 1: all.
    """

    def __init__(self, numbers: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> None:
        self.numbers = numbers
        self.filters = LogitsProcessorList()
        if temperature != 1:
            self.filters.append(TemperatureLogitsWarper(temperature))
        if top_k:
            self.filters.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            self.filters.append(TopPLogitsWarper(top_p))
        self.step = 0

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        """Draw the next token of every row.

        Args:
            input_ids: (B, t) the tokens so far.
            scores: (B, V) the logits of the next token.

        Returns:
            (B, V) 0 at the token that was drawn, and minus infinity elsewhere.
        """
        filtered: Tensor = self.filters(input_ids, scores)
        cumulative = torch.softmax(filtered.double(), dim=-1).cumsum(dim=-1)
        threshold = self.numbers[:, self.step, None] * cumulative[:, -1:]  # the sum differs from 1 by rounding
        drawn = torch.searchsorted(cumulative, threshold, right=True)  # right: a token without probability never comes
        self.step += 1
        chosen = torch.full_like(scores, float("-inf"))
        return chosen.scatter_(1, drawn.clamp_(max=scores.shape[-1] - 1), 0.0)  # type: ignore[return-value]


def line_sampling(
    lines: Sequence[int], steps: int, device: torch.device, seed: int, temperature: float, top_k: int, top_p: float
) -> LogitsProcessorList:
    """Return what makes greedy search sample.

    Args:
        lines: Numbers of the lines in the whole input, one for each batch row.
        steps: Largest number of tokens.
        device: Device of the model.
        seed: As [`draw_uniform`] has it.
        temperature: As [`LineSampling`] has it.
        top_k: As [`LineSampling`] has it.
        top_p: As [`LineSampling`] has it.

    Returns:
        A list with one [`LineSampling`].
    """
    numbers = torch.tensor([draw_uniform(seed, line, steps) for line in lines], dtype=torch.float64).to(device)
    return LogitsProcessorList([LineSampling(numbers, temperature, top_k, top_p)])
