"""Label-smoothed cross-entropy of a linear output layer that never materializes the logits of a whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Minimum number of rows of a block on CPUs, because every block reads and writes the gradient of the whole weight.
CPU_ROWS = 128
# Number of logits of a block: on CPUs 4 MiB in float32, which fit in the processor's caches (but at least `CPU_ROWS`
# rows); on other devices enough to use all cores.
CPU_BLOCK = 2**20
BLOCK = 2**26
# Number of blocks in a compiled graph, which must not depend on the number of rows: each number would be a new graph.
COMPILED_BLOCKS = 4


def linear_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Compute the summed cross-entropy, in nats, between smoothed labels and the predictions of a linear layer.

    The result is equal to `cross_entropy(linear(states, weight, bias).float(), labels, label_smoothing=smoothing,
    reduction="sum", ignore_index=-100)` of torch, which stores several copies of all logits. This function computes
    logits and gradients block by block, as Liger Kernel does (Hsu et al. 2024, sec. 3.2). Under autocast, matrix
    products are computed in autocast's data type, everything else at least in float32.

    Args:
        states: Last hidden states of the decoder.
        weight: Weight of the output layer.
        bias: Bias added to the logits, which gets no gradient; None: no bias.
        labels: Token ids; rows with the label -100 are ignored.
        smoothing: Probability mass spread evenly over the vocabulary (Szegedy et al. 2016).

    Shape:
        states (N, D), weight (V, D), bias (V,), labels (N,) to ().

    Returns:
        The sum over the rows.
    """
    # Within `forward`, gradients are always disabled, and `ctx.needs_input_grad` is True also under `torch.no_grad`.
    loss: Tensor = _LinearCrossEntropy.apply(states, weight, bias, labels, smoothing, torch.is_grad_enabled())
    return loss


def _blocks(rows: int, tokens: int, device: str) -> list[slice]:
    """Divide rows of logits into blocks."""
    if torch.compiler.is_compiling():
        return [slice(rows * i // COMPILED_BLOCKS, rows * (i + 1) // COMPILED_BLOCKS) for i in range(COMPILED_BLOCKS)]
    size = max(CPU_ROWS, CPU_BLOCK // tokens) if device == "cpu" else max(1, BLOCK // tokens)
    return [slice(start, start + size) for start in range(0, rows, size)]


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, train: bool
    ) -> Tensor:
        device, dtype = states.device.type, states.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        wide = torch.promote_types(dtype, torch.float32)
        # In float16 the smoothed probability of one token, about 1e-6, would underflow.
        narrow = wide if dtype == torch.float16 else dtype
        of_states, of_weight = (train and needed for needed in ctx.needs_input_grad[:2])
        with torch.autocast(device, enabled=False):
            # Masked rows are set to zero here and their gradients below, so that both are finite for any states.
            masked = (labels == -100)[:, None]
            inputs, table = states.to(dtype).masked_fill(masked, 0.0), weight.to(dtype)
            grad_states = torch.empty_like(states) if of_states else None
            grad_weight = torch.zeros_like(weight, dtype=wide) if of_weight else None
            narrow_table = table.to(narrow)
            total = torch.zeros((), dtype=wide, device=states.device)
            for rows in _blocks(len(labels), len(weight), device):
                block, at = inputs[rows], labels[rows, None].clamp(min=0)
                scores = block @ table.T
                if bias is None:
                    scores = scores.to(wide)
                else:
                    added = bias.to(scores.device, wide)
                    scores = scores.add_(added) if scores.dtype == wide else scores + added  # promotes them in one pass
                loss = (1.0 - smoothing) * scores.gather(1, at)
                if smoothing:
                    loss += smoothing * scores.mean(dim=1, keepdim=True)
                gradient = scores.softmax(dim=1)
                # Logarithm of the sum of exponentials, derived from the result of `softmax`.
                log_norm = scores.amax(dim=1, keepdim=True) - gradient.amax(dim=1, keepdim=True).log()
                total += (log_norm - loss).masked_fill(masked[rows], 0.0).sum()
                if grad_states is None and grad_weight is None:
                    continue
                # Gradient of the logits: softmax - (1 - smoothing) at the label - smoothing / V everywhere
                spread = smoothing / len(weight)
                at_label = gradient.gather(1, at) - spread - (1.0 - smoothing)
                if smoothing:
                    out = gradient if narrow == wide else torch.empty_like(gradient, dtype=narrow)
                    gradient = torch.sub(gradient, spread, out=out)
                else:
                    gradient = gradient.to(narrow)
                gradient.scatter_(1, at, at_label.to(narrow))
                if grad_states is not None:
                    grad_states[rows] = gradient @ narrow_table
                if grad_weight is None:
                    continue
                if narrow == wide:
                    grad_weight.addmm_(gradient.T, block.to(narrow))
                else:
                    grad_weight += gradient.T @ block.to(narrow)
            if grad_states is not None:
                grad_states.masked_fill_(masked, 0.0)
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        states, weight = ctx.saved_tensors
        if states is not None:
            states = states * grads[0].to(states.dtype)
        if weight is not None:
            weight = (weight * grads[0]).to(ctx.weight_dtype)
        return states, weight, None, None, None, None
