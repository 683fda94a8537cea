"""Label-smoothed cross-entropy of a linear output layer, without ever holding the logits of a whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Least number of rows of a block on CPUs: every block reads and writes the gradient of the whole table.
CPU_ROWS = 128
# Number of logits of a block, if the rows above are no more: on CPUs 4 MiB in float32, which stay in the processor's
# caches; elsewhere as many as keep the device busy.
CPU_BLOCK = 2**20
BLOCK = 2**25


def linear_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Sum of the cross-entropies, in nats, between smoothed labels and what a linear layer predicts.

    Equal to `cross_entropy(linear(states, weight, bias).float(), labels, label_smoothing=smoothing, reduction="sum",
    ignore_index=-100)` of torch, which holds several copies of all logits. Here they are made block by block, and
    with them the gradient, as Liger Kernel does (Hsu et al. 2024, sec. 3.2). Under autocast the products are computed
    in its type, the rest in float32 at least.

    Args:
        states: Last states of the decoder.
        weight: Of the output layer.
        bias: Added to the logits, if there is one; gets no gradient.
        labels: Token ids; rows of -100 count for nothing.
        smoothing: Probability mass spread evenly over the vocabulary (Szegedy et al. 2016).

    Shape:
        states (N, D), weight (V, D), bias (V,), labels (N,) to ().

    Returns:
        The sum over the rows.
    """
    loss: Tensor = _LinearCrossEntropy.apply(states, weight, bias, labels, smoothing)
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
    ) -> Tensor:
        device, dtype = states.device.type, states.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        wide = torch.promote_types(dtype, torch.float32)
        # In half precision the smoothed mass of one token, 1e-6 or so, would be lost.
        narrow = wide if dtype == torch.float16 else dtype
        train = any(ctx.needs_input_grad)
        with torch.autocast(device, enabled=False):
            # A masked row is zero here, and so is its gradient below: finite whatever its states are.
            masked = (labels == -100)[:, None]
            inputs, table = states.to(dtype).masked_fill(masked, 0.0), weight.to(dtype)
            grad_states = torch.empty_like(states) if train else None
            grad_weight = torch.zeros_like(weight, dtype=wide) if train else None
            size = max(CPU_ROWS, CPU_BLOCK // len(weight)) if device == "cpu" else max(1, BLOCK // len(weight))
            total = torch.zeros((), dtype=wide, device=states.device)
            for start in range(0, len(labels), size):
                rows = slice(start, start + size)
                block, at = inputs[rows], labels[rows, None].clamp(min=0)
                scores = (block @ table.T).to(wide)
                if bias is not None:
                    scores += bias
                loss = (1.0 - smoothing) * scores.gather(1, at)
                if smoothing:
                    loss += smoothing * scores.mean(dim=1, keepdim=True)
                gradient = scores.softmax(dim=1)
                # The log of the sum of the exponentials, of what `softmax` has computed already.
                log_norm = scores.amax(dim=1, keepdim=True) - gradient.amax(dim=1, keepdim=True).log()
                total += (log_norm - loss).masked_fill(masked[rows], 0.0).sum()
                if grad_states is None or grad_weight is None:
                    continue
                # by the logits: softmax - (1 - smoothing) at the label - smoothing / V everywhere
                if smoothing:
                    gradient.sub_(smoothing / len(weight))
                gradient.scatter_(1, at, gradient.gather(1, at) - (1.0 - smoothing))
                gradient = gradient.to(narrow)
                grad_states[rows] = gradient @ table.to(narrow)
                if narrow == wide:
                    grad_weight.addmm_(gradient.T, block.to(narrow))
                else:
                    grad_weight += gradient.T @ block.to(narrow)
            if grad_states is not None:
                grad_states.masked_fill_(masked, 0.0)
        if train:
            ctx.save_for_backward(grad_states, grad_weight)
            ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        states, weight = ctx.saved_tensors
        return states * grads[0].to(states.dtype), (weight * grads[0]).to(ctx.weight_dtype), None, None, None
