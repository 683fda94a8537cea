"""Sample translations with a separate random stream per line, independent of batches and processes."""

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
    """Return random numbers that depend only on a seed and a line number.

    Args:
        seed: The seed of the whole input, 0 or more.
        line: Number of the line in the whole input, counted from 0.
        count: Number of random numbers.

    Returns:
        Numbers in [0, 1). A larger `count` only appends further numbers.
    """
    numbers: list[float] = np.random.Generator(np.random.Philox(key=[seed, line])).random(count).tolist()
    return numbers


class LineSampling(LogitsProcessor):
    """Logits processor that samples the next token of each batch row with the random numbers of its line.

    The sampled token is the one at which the cumulative distribution exceeds the random number. It gets the score 0 and
    all other tokens minus infinity, so that greedy search selects it.

    Args:
        numbers: (B, T) float64 in [0, 1): one random number for each batch row and step.
        temperature: Temperature by which the logits are divided.
        top_k: Number of most likely tokens to sample from; 0: all.
        top_p: Sample from the smallest set of most likely tokens with this total probability; 1: all.
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
            input_ids: (B, t) the tokens generated so far.
            scores: (B, V) the logits of the next token.

        Returns:
            (B, V) scores: 0 for the sampled token, minus infinity for all others.
        """
        filtered: Tensor = self.filters(input_ids, scores)
        cumulative = torch.softmax(filtered.double(), dim=-1).cumsum(dim=-1)
        threshold = self.numbers[:, self.step, None] * cumulative[:, -1:]  # the total differs from 1 by rounding errors
        drawn = torch.searchsorted(cumulative, threshold, right=True)  # right=True: never draw a token of probability 0
        self.step += 1
        chosen = torch.full_like(scores, float("-inf"))
        return chosen.scatter_(1, drawn.clamp_(max=scores.shape[-1] - 1), 0.0)  # type: ignore[return-value]


def line_sampling(
    lines: Sequence[int], steps: int, device: torch.device, seed: int, temperature: float, top_k: int, top_p: float
) -> LogitsProcessorList:
    """Return the logits processors with which greedy search samples.

    Args:
        lines: Line number in the whole input of each batch row.
        steps: Maximum number of generated tokens.
        device: Device of the model.
        seed: See [`draw_uniform`].
        temperature: See [`LineSampling`].
        top_k: See [`LineSampling`].
        top_p: See [`LineSampling`].

    Returns:
        A list with one [`LineSampling`].
    """
    numbers = torch.tensor([draw_uniform(seed, line, steps) for line in lines], dtype=torch.float64).to(device)
    return LogitsProcessorList([LineSampling(numbers, temperature, top_k, top_p)])
