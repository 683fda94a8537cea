"""Faster output layers for large vocabularies: only the most probable tokens, or only the tokens of a shortlist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .inference import KINDS, output_logits, takes_bias

# Maximum number of logits in memory on CPUs (16 MiB in float32); larger tensors are allocated from and returned to the
# system in every step.
LOGITS_AT_ONCE = 2**22
LOGITS_AT_ONCE_ON_DEVICE = 2**27  # maximum number of logits in memory on other devices (512 MiB in float32)
LOGITS_IN_CACHE = 2**18  # logits that fit in a CPU's cache (1 MiB in float32), so that further passes are fast
ID_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # allowed data types of shortlists
BLOCK = 64  # tokens per block; the top-k search first selects blocks by their maxima


@torch.no_grad()
def best_tokens(
    head: Callable[..., Tensor], bias: Tensor | None, states: Tensor, count: int, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Find the most probable tokens of an output layer.

    In beam search with K beams and one end token, the best 2 K continuations are always among the 2 K most probable
    tokens of each beam. For all other tokens, the function returns only the sum of their probabilities. The results
    have no gradients.

    Args:
        head: The output layer.
        bias: Bias added to the logits; None: no bias.
        states: Last hidden states of the decoder.
        count: Number of tokens, C; at most V tokens are returned.
        vocab_size: Number of outputs of the output layer, V.

    Shape:
        bias (V,), states (R, D).

    Returns:
        Log-probabilities (R, C + 1) in float32, highest first, with the log-probability of all other tokens together in
        the last column; and the ids of the C tokens (R, C).
    """
    at_once = LOGITS_AT_ONCE if states.device.type == "cpu" else LOGITS_AT_ONCE_ON_DEVICE
    parts = -(-len(states) * vocab_size // at_once)
    found = []
    adds = takes_bias(head)
    for block in states.chunk(parts):
        logits = head(block, bias) if adds else output_logits(head, block)
        found.append(_best(logits.float(), None if adds else bias, min(count, vocab_size)))
    values, ids = zip(*found, strict=True)
    return torch.cat(values), torch.cat(ids)


def _best(logits: Tensor, bias: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest log-probabilities and their ids; the logits are overwritten on CPUs."""
    on_cpu = logits.device.type == "cpu"
    rows = max(1, LOGITS_IN_CACHE // logits.shape[1]) if on_cpu else len(logits)
    log_probs = logits if on_cpu else torch.empty_like(logits)
    maxima = []
    # Process parts of the logits that fit in the processor's cache.
    for part, found in zip(logits.split(rows), log_probs.split(rows), strict=True):
        if bias is not None:
            part += bias.to(part.device)
        torch.log_softmax(part, dim=1, out=found)
        maxima.append(block_maxima(found))
    values, ids = highest(log_probs, torch.cat(maxima), count)
    rest = (1.0 - values.exp().sum(dim=1, keepdim=True)).clamp(min=0.0).log()
    return torch.cat([values, rest], dim=1), ids


def block_maxima(values: Tensor) -> Tensor:
    """Return the maximum of every 64 columns, and of the remaining columns.

    Args:
        values: Rows of values.

    Shape:
        (R, V) to (R, ceil(V / 64)).

    Returns:
        The maxima.
    """
    whole = values.shape[1] // BLOCK * BLOCK
    found = values[:, :whole].unflatten(1, (whole // BLOCK, BLOCK)).amax(dim=2)
    return found if whole == values.shape[1] else torch.cat([found, values[:, whole:].amax(dim=1, keepdim=True)], dim=1)


def highest(values: Tensor, maxima: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest values of each row, like `topk`, but faster, by searching only the blocks with high maxima.

    Args:
        values: Rows of values.
        maxima: Result of `block_maxima` for `values`.
        count: Number of values per row, C.

    Shape:
        values (R, V), maxima (R, ceil(V / 64)) to two of (R, C).

    Returns:
        The values, highest first, and their column indices.
    """
    blocks = values.shape[1] // BLOCK
    if blocks < 2 * count:
        return torch.topk(values, count)
    whole = values[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    # These blocks and the remaining columns contain the highest values.
    chosen = maxima[:, :blocks].topk(count, sorted=False).indices
    inside = whole.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
    places = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK, device=values.device)).flatten(1)
    behind = torch.arange(blocks * BLOCK, values.shape[1], device=values.device).expand(len(values), -1)
    best, at = torch.cat([inside, values[:, blocks * BLOCK :]], dim=1).topk(count)
    return best, torch.cat([places, behind], dim=1).gather(1, at)


class Shortlist:
    """Output layer for a subset of the vocabulary.

    Args:
        ids: Ids of the tokens.
        layer: The complete output layer.
        bias: Bias added to the logits of the complete output layer; None: no bias.

    Shape:
        ids (V',), bias (V,).

    Raises:
        ValueError: If `ids` are not distinct token ids of the layer; the message describes the problem.
        TypeError: If the output layer is not a linear layer, for example because it is quantized or wrapped.
    """

    def __init__(self, ids: Tensor, layer: Any, bias: Tensor | None) -> None:
        if type(layer) not in (nn.Linear, *KINDS):
            raise TypeError(f"a shortlist takes rows of the output layer, which is a {type(layer).__name__}.")
        if not isinstance(ids, Tensor) or ids.dim() != 1 or ids.dtype not in ID_DTYPES or len(ids) == 0:
            raise ValueError("shortlist must be a tensor of token ids, of one dimension.")
        ids = ids.to(layer.weight.device, torch.long)
        if not 0 <= ids.min() <= ids.max() < layer.out_features or len(ids.unique()) < len(ids):
            raise ValueError(
                f"shortlist must hold ids from 0 to {layer.out_features - 1}, each once; it holds {len(ids)} from "
                f"{ids.min()} to {ids.max()}, {len(ids.unique())} of them different."
            )
        self.ids = ids
        self.vocab_size = layer.out_features
        self.bias = None if bias is None else bias.to(ids.device)[ids]
        short: Any = nn.Linear(layer.in_features, len(ids), bias=False, device="meta")
        short.weight = nn.Parameter(layer.weight.detach()[ids], requires_grad=False)
        if isinstance(layer, KINDS):  # use the same kernel as the complete layer
            short.__class__, short.rows = type(layer), layer.rows
        self.layer = short

    def logits(self, states: Tensor) -> Tensor:
        """Compute logits of the whole vocabulary, which are minus infinity for tokens outside the list.

        Args:
            states: Last hidden states of the decoder.

        Shape:
            (..., D) to (..., V).

        Returns:
            The logits.
        """
        found = self.layer(states)
        if self.bias is not None:
            found = found + self.bias  # with autocast, the sum has another data type
        whole = found.new_full((*found.shape[:-1], self.vocab_size), -torch.inf)
        whole[..., self.ids] = found
        return whole

    def best_tokens(self, states: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Find the most probable tokens of the list, as [`best_tokens`] does for the whole vocabulary.

        Args:
            states: Last hidden states of the decoder.
            count: Number of tokens, C.

        Shape:
            (R, D) to (R, C + 1) and (R, C).

        Returns:
            Log-probabilities and ids.
        """
        scores, places = best_tokens(self.layer, self.bias, states, count, len(self.ids))
        return scores, self.ids[places]
