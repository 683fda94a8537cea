"""Naive combiners, the oracles of `test_combiners.py`: the papers' equations, one number at a time.

Libovický et al. 2018, https://doi.org/10.18653/v1/W18-6326: attention (1)-(3), parallel (4), flat (5)(6), hierarchical
(7)(8); serial is its section 3. The paper leaves out norm, dropout and biases; their places follow the authors' code,
https://github.com/ufal/neuralmonkey, `neuralmonkey/attention/transformer_cross_layer.py`.

A strategy is written for one query position of one example: x (D,) and, for every present source, its real states, each
(D,). Masked states and absent sources are never seen, so no mask can be wrong here. `combine` loops over examples and
positions. It is all plain arithmetic, and nothing of the package is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
"""Parameters by name, for instance `en.q_proj.weight` (D, D), `layer_norm.bias` (D,)."""
Answer = tuple[Tensor, Tensor, Tensor | None]
"""Output (D,), weights (H, S) over the given states, and weights (H_hier, n) over the given sources."""


def unchanged(x: Tensor) -> Tensor:
    """Dropout in evaluation."""
    return x


@dataclass(frozen=True)
class Setting:
    """What the strategies are told besides the weights.

    Args:
        heads: H.
        hierarchical_heads: Heads of the attention over sources.
        pre_norm: x + D(f(LN x)) if True, else LN(x + D(f(x))).
        query_norm: "shared": one norm for all queries; "per_source": one for each source (pre-norm only).
        eps: Added to the variance in the layer norm.
        dropout: D, applied wherever the residual dropout belongs.
        attention_dropout: Applied to the weights over states, after the softmax.
    """

    heads: int
    hierarchical_heads: int
    pre_norm: bool
    query_norm: str = "shared"
    eps: float = 1e-5
    dropout: Callable[[Tensor], Tensor] = unchanged
    attention_dropout: Callable[[Tensor], Tensor] = unchanged


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    """Give W x, plus b where there is one."""
    y = weights[f"{name}.weight"] @ x
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def layer_norm(x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
    """Normalise x (D,) with the biased variance, then scale and shift."""
    centred = x - x.sum() / len(x)
    deviation = torch.sqrt((centred * centred).sum() / len(x) + eps)
    return weights[f"{name}.weight"] * centred / deviation + weights[f"{name}.bias"]


def attention(
    query: Tensor,
    states: list[Tensor],
    weights: Weights,
    name: str,
    heads: int,
    dropout: Callable[[Tensor], Tensor] = unchanged,
) -> tuple[Tensor, Tensor]:
    """Attend from one query to states: (1)-(3), with the scale sqrt(D / H) of the code (the paper prints sqrt(D)).

    Args:
        query: (D,).
        states: S tensors (D,), all of them real.
        weights: Holds the four maps `<name>.{q,k,v,out}_proj`.
        name: Their prefix.
        heads: H.
        dropout: Applied to each head's weights.

    Returns:
        Context vector (D,) and the weights before dropout (H, S).
    """
    q = linear(query, weights, f"{name}.q_proj")
    keys = [linear(state, weights, f"{name}.k_proj") for state in states]
    values = [linear(state, weights, f"{name}.v_proj") for state in states]
    width = len(q) // heads
    contexts, attended = [], []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = torch.stack([(q[part] * key[part]).sum() / math.sqrt(width) for key in keys])
        exponentials = torch.exp(scores - scores.max())
        attended.append(exponentials / exponentials.sum())
        dropped = dropout(attended[-1])
        contexts.append(torch.stack([dropped[j] * value[part] for j, value in enumerate(values)]).sum(0))
    return linear(torch.cat(contexts), weights, f"{name}.out_proj"), torch.stack(attended)


def serial(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """Section 3, Fig. 1a: x_i = x_{i-1} + D(A_i(LN_i(x_{i-1}), E_i)).

    Post-norm: x_i = LN_i(x_{i-1} + D(A_i(x_{i-1}, E_i))).
    """
    attended = []
    for name, states in sources.items():
        query = layer_norm(x, weights, f"{name}.layer_norm", setting.eps) if setting.pre_norm else x
        context, source_attended = attention(query, states, weights, name, setting.heads, setting.attention_dropout)
        x = x + setting.dropout(context)
        x = x if setting.pre_norm else layer_norm(x, weights, f"{name}.layer_norm", setting.eps)
        attended.append(source_attended)
    return x, torch.cat(attended, dim=1), None


def contexts_of(
    x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting
) -> tuple[list[Tensor], Tensor]:
    """The part that parallel and hierarchical share: D(A_i(LN x, E_i)) of every source, and the weights (H, S)."""
    contexts, attended = [], []
    for name, states in sources.items():
        norm = f"{name}.layer_norm" if setting.query_norm == "per_source" else "layer_norm"
        query = layer_norm(x, weights, norm, setting.eps) if setting.pre_norm else x
        context, source_attended = attention(query, states, weights, name, setting.heads, setting.attention_dropout)
        contexts.append(setting.dropout(context))
        attended.append(source_attended)
    return contexts, torch.cat(attended, dim=1)


def parallel(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """(4): x + sum over i of D(A_i(LN x, E_i)); post-norm: LN of x plus that sum, with x itself as the query."""
    contexts, attended = contexts_of(x, sources, weights, setting)
    for context in contexts:
        x = x + context
    return x if setting.pre_norm else layer_norm(x, weights, "layer_norm", setting.eps), attended, None


def flat(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """(5)(6): x + D(A(LN x, [E_1; ...; E_n])), one attention over all states; post-norm: LN(x + D(A(x, ...)))."""
    joined = [state for states in sources.values() for state in states]
    query = layer_norm(x, weights, "layer_norm", setting.eps) if setting.pre_norm else x
    context, attended = attention(query, joined, weights, "joint", setting.heads, setting.attention_dropout)
    x = x + setting.dropout(context)
    return x if setting.pre_norm else layer_norm(x, weights, "layer_norm", setting.eps), attended, None


def hierarchical(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """(7)(8): c_i = D(A_i(LN x, E_i)), then x + D(A_h(LN x, [c_1; ...; c_n])); post-norm: x as query, LN last.

    As in the code, the contexts are not normalised, and the weights over sources are dropped with the residual dropout.
    """
    contexts, attended = contexts_of(x, sources, weights, setting)
    query = layer_norm(x, weights, "layer_norm", setting.eps) if setting.pre_norm else x
    z, source_attended = attention(query, contexts, weights, "hierarchy", setting.hierarchical_heads, setting.dropout)
    x = x + setting.dropout(z)
    return x if setting.pre_norm else layer_norm(x, weights, "layer_norm", setting.eps), attended, source_attended


REFERENCES = {"serial": serial, "parallel": parallel, "flat": flat, "hierarchical": hierarchical}


def combine(
    strategy: str,
    hidden_states: Tensor,
    states: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    weights: Weights,
    setting: Setting,
) -> Answer:
    """Run a strategy on every position of every example, telling it only of what is there.

    Args:
        strategy: Key of `REFERENCES`.
        hidden_states: (B, T, D).
        states: Per source, in order, (B, S_i, D).
        masks: Per source, in order, (B, S_i) bool, True = real.
        weights: Parameters by name.
        setting: See `Setting`.

    Returns:
        Output (B, T, D), weights (B, H, T, S), and for hierarchical weights over sources (B, H_hier, T, n), else None.
        Weights of what is not there are 0.
    """
    batch, length, _ = hidden_states.shape
    joined = torch.cat(list(masks.values()), dim=1)
    present = torch.stack([mask.any(1) for mask in masks.values()], dim=1)
    output = hidden_states.clone()
    attended = hidden_states.new_zeros(batch, setting.heads, length, joined.shape[1])
    source_attended = hidden_states.new_zeros(batch, setting.hierarchical_heads, length, len(masks))
    for b in range(batch):
        sources = {name: list(states[name][b][mask[b]]) for name, mask in masks.items() if mask[b].any()}
        # With no source there is no step at all: not even post-norm's LN(x), which is not x.
        for t in range(length if sources else 0):
            answer = REFERENCES[strategy](hidden_states[b, t], sources, weights, setting)
            output[b, t], over_states, over_sources = answer
            attended[b][:, t][:, joined[b]] = over_states
            if over_sources is not None:
                source_attended[b][:, t][:, present[b]] = over_sources
    return output, attended, source_attended if strategy == "hierarchical" else None
