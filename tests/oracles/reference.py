"""Naive combiners, the oracles of `test_combiners.py`: the papers' equations, one number at a time.

Also naive searches, and naive metrics of symbols.

Libovický et al. 2018, https://doi.org/10.18653/v1/W18-6326: attention (1)-(3), parallel (4), flat (5)(6), hierarchical
(7)(8); serial is its section 3. The paper leaves out norm, dropout and biases; their places follow the authors' code,
https://github.com/ufal/neuralmonkey, `neuralmonkey/attention/transformer_cross_layer.py`. The other strategies name
their own papers.

A strategy is written for one query position of one example: x (D,) and, for every present source, its real states, each
(D,). Masked states and absent sources are never seen, so no mask can be wrong here. `combine` loops over examples and
positions. It is all plain arithmetic, and nothing of the package is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
"""Parameters by name, for instance `en.q_proj.weight` (D, D), `layer_norm.bias` (D,)."""
Answer = tuple[Tensor, Tensor, Tensor | None]
"""Output (D,), weights (H, S) over the given states, and weights (`heads_over_sources`, n) over the given sources."""


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
    """Normalize x (D,) with the biased variance, then scale and shift."""
    centerd = x - x.sum() / len(x)
    deviation = torch.sqrt((centerd * centerd).sum() / len(x) + eps)
    return weights[f"{name}.weight"] * centerd / deviation + weights[f"{name}.bias"]


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
    """What all but serial and flat begin with: A_i(LN x, E_i) of every source, and the weights (H, S)."""
    contexts, attended = [], []
    for name, states in sources.items():
        norm = f"{name}.layer_norm" if setting.query_norm == "per_source" else "layer_norm"
        query = layer_norm(x, weights, norm, setting.eps) if setting.pre_norm else x
        context, source_attended = attention(query, states, weights, name, setting.heads, setting.attention_dropout)
        contexts.append(context)
        attended.append(source_attended)
    return contexts, torch.cat(attended, dim=1)


def parallel(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """(4): x + sum over i of D(A_i(LN x, E_i)); post-norm: LN of x plus that sum, with x itself as the query."""
    contexts, attended = contexts_of(x, sources, weights, setting)
    for context in contexts:
        x = x + setting.dropout(context)
    return x if setting.pre_norm else layer_norm(x, weights, "layer_norm", setting.eps), attended, None


def gated_serial(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """Flamingo, section 2.2: serial, but for sources with a gate x_i = x_{i-1} + tanh(a_i) D(A_i(LN_i(x_{i-1}), E_i)).

    With post-norm that is as it is with pre-norm; the other sources are as in serial.
    """
    attended = []
    for name, states in sources.items():
        gated = f"{name}.gate.bias" in weights
        pre_norm = setting.pre_norm or gated
        query = layer_norm(x, weights, f"{name}.layer_norm", setting.eps) if pre_norm else x
        context, source_attended = attention(query, states, weights, name, setting.heads, setting.attention_dropout)
        x = x + setting.dropout(context) * (torch.tanh(weights[f"{name}.gate.bias"]) if gated else 1)
        x = x if pre_norm else layer_norm(x, weights, f"{name}.layer_norm", setting.eps)
        attended.append(source_attended)
    return x, torch.cat(attended, dim=1), None


def flat(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """(5)(6): x + D(A(LN x, [E_1; ...; E_n])), one attention over all states; post-norm: LN(x + D(A(x, ...)))."""
    joined = [state for states in sources.values() for state in states]
    query = layer_norm(x, weights, "layer_norm", setting.eps) if setting.pre_norm else x
    context, attended = attention(query, joined, weights, "joint", setting.heads, setting.attention_dropout)
    return close(x, context, weights, setting), attended, None


def flat_normed(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """As flat, over [LN_1(E_1); ...; LN_n(E_n)]."""
    normed = {
        name: [layer_norm(state, weights, f"{name}.states_layer_norm", setting.eps) for state in states]
        for name, states in sources.items()
    }
    return flat(x, normed, weights, setting)


def hierarchical(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """(7)(8): c_i = D(A_i(LN x, E_i)), then x + D(A_h(LN x, [c_1; ...; c_n])); post-norm: x as query, LN last.

    As in the code, the contexts are not normalized, and the weights over sources are dropped with the residual dropout.
    """
    contexts, attended = contexts_of(x, sources, weights, setting)
    contexts = [setting.dropout(context) for context in contexts]
    query = layer_norm(x, weights, "layer_norm", setting.eps) if setting.pre_norm else x
    z, source_attended = attention(query, contexts, weights, "hierarchy", setting.hierarchical_heads, setting.dropout)
    return close(x, z, weights, setting), attended, source_attended


def close(x: Tensor, z: Tensor, weights: Weights, setting: Setting) -> Tensor:
    """End a sub-layer: x + D(z), or with post-norm LN(x + D(z))."""
    x = x + setting.dropout(z)
    return x if setting.pre_norm else layer_norm(x, weights, "layer_norm", setting.eps)


def projection(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """Littell et al. 2019, (5): z = W [c_1; ...; c_n] + b, with one long vector and one wide matrix."""
    contexts, attended = contexts_of(x, sources, weights, setting)
    matrix = torch.cat([weights[f"{name}.projection.weight"] for name in sources], dim=1)
    z = matrix @ torch.cat(contexts) + weights["projection.bias"]
    return close(x, z, weights, setting), attended, None


def tanh_concat(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """Zoph & Knight 2016, (14): z = tanh(W [q; c_1; ...; c_n] + b), with one long vector and one wide matrix."""
    contexts, attended = contexts_of(x, sources, weights, setting)
    query = layer_norm(x, weights, "layer_norm", setting.eps) if setting.pre_norm else x
    names = ["projection", *(f"{name}.projection" for name in sources)]
    matrix = torch.cat([weights[f"{name}.weight"] for name in names], dim=1)
    z = torch.tanh(matrix @ torch.cat([query, *contexts]) + weights["projection.bias"])
    return close(x, z, weights, setting), attended, None


def mean(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """z = (c_1 + ... + c_n) / n."""
    contexts, attended = contexts_of(x, sources, weights, setting)
    z = sum(contexts[1:], contexts[0]) / len(contexts)
    return close(x, z, weights, setting), attended, x.new_full((1, len(contexts)), 1 / len(contexts))


def weighted_sum(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """z = sum_i exp(w_i) c_i / sum_i exp(w_i)."""
    contexts, attended = contexts_of(x, sources, weights, setting)
    exponentials = torch.exp(torch.cat([weights[f"{name}.gate.bias"] for name in sources]))
    shares = exponentials / exponentials.sum()
    z = torch.stack([share * context for share, context in zip(shares, contexts, strict=True)]).sum(0)
    return close(x, z, weights, setting), attended, shares[None]


def context_gate(x: Tensor, sources: Mapping[str, list[Tensor]], weights: Weights, setting: Setting) -> Answer:
    """Voita et al. 2018, section 3, for any n: z = sum_i g_i * c_i, g the softmax over i of U_i c_i + b_i."""
    contexts, attended = contexts_of(x, sources, weights, setting)
    logits = [linear(context, weights, f"{name}.gate") for name, context in zip(sources, contexts, strict=True)]
    exponentials = torch.exp(torch.stack(logits))
    gates = exponentials / exponentials.sum(0)  # (n, D)
    z = torch.stack([gate * context for gate, context in zip(gates, contexts, strict=True)]).sum(0)
    width = len(x) // setting.heads
    by_head = [gates[:, head * width : (head + 1) * width].sum(1) / width for head in range(setting.heads)]
    return close(x, z, weights, setting), attended, torch.stack(by_head)


REFERENCES = {
    "serial": serial,
    "parallel": parallel,
    "flat": flat,
    "hierarchical": hierarchical,
    "gated_serial": gated_serial,
    "projection": projection,
    "tanh_concat": tanh_concat,
    "mean": mean,
    "weighted_sum": weighted_sum,
    "context_gate": context_gate,
    "flat_normed": flat_normed,
}


def heads_over_sources(strategy: str, setting: Setting) -> int | None:
    """How many rows of weights over the sources a strategy gives; None: it gives none."""
    rows = {"hierarchical": setting.hierarchical_heads, "mean": 1, "weighted_sum": 1, "context_gate": setting.heads}
    return rows.get(strategy)


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
        Output (B, T, D), weights (B, H, T, S), and weights over sources (B, `heads_over_sources`, T, n) or None.
        Weights of what is not there are 0.
    """
    batch, length, _ = hidden_states.shape
    joined = torch.cat(list(masks.values()), dim=1)
    present = torch.stack([mask.any(1) for mask in masks.values()], dim=1)
    output = hidden_states.clone()
    attended = hidden_states.new_zeros(batch, setting.heads, length, joined.shape[1])
    rows = heads_over_sources(strategy, setting)
    source_attended = hidden_states.new_zeros(batch, rows or 0, length, len(masks))
    for b in range(batch):
        sources = {name: list(states[name][b][mask[b]]) for name, mask in masks.items() if mask[b].any()}
        # With no source there is no step at all: not even post-norm's LN(x), which is not x.
        for t in range(length if sources else 0):
            answer = REFERENCES[strategy](hidden_states[b, t], sources, weights, setting)
            output[b, t], over_states, over_sources = answer
            attended[b][:, t][:, joined[b]] = over_states
            if over_sources is not None:
                source_attended[b][:, t][:, present[b]] = over_sources
    return output, attended, None if rows is None else source_attended


NextScores = Callable[[tuple[int, ...]], Sequence[float]]
"""From a text to the log-probabilities of what may follow, token by token."""
Scored = tuple[tuple[int, ...], float]
"""A text and its score."""


def beam_search(
    next_scores: NextScores, width: int, penalty: float, longest: int, ends: Container[int]
) -> list[Scored]:
    """Beam search as Transformers defines it, with early stopping, for one example; of width 1 it is greedy.

    Of the 2k best continuations those among the k best that end are finished; the k best that do not end go on. The
    search stops as soon as k are finished.

    Args:
        next_scores: The model.
        width: k.
        penalty: A finished text of L tokens is worth its sum of log-probabilities over L**penalty.
        longest: Tokens; then every text is finished.
        ends: Tokens that finish a text.

    Returns:
        The finished texts with their scores, best first.
    """
    running: list[Scored] = [((), 0.0)]
    finished: list[Scored] = []
    for length in range(1, longest + 1):
        grown = [
            ((*text, token), total + score)
            for text, total in running
            for token, score in enumerate(next_scores(text))
            if score > -math.inf
        ]
        best = sorted(grown, key=value, reverse=True)[: 2 * width]
        done = [text[-1] in ends or length == longest for text, _ in best]
        finished += [
            (text, total / length**penalty)
            for (text, total), is_done in zip(best[:width], done, strict=False)
            if is_done
        ]
        finished = sorted(finished, key=value, reverse=True)[:width]
        running = [entry for entry, is_done in zip(best, done, strict=True) if not is_done][:width]
        if len(finished) == width:
            break
    return finished


def value(entry: Scored) -> float:
    """The score of a text."""
    return entry[1]


def normalized_beam(
    next_scores: NextScores, width: int, alpha: float, longest: int, ends: Container[int]
) -> list[Scored]:
    """Beam search as in Neural Monkey's `decoders/beam_search_decoder.py`, for one example.

    The beam holds the `width` best texts, finished or not; a finished one stays what it is, at no cost. The search
    stops when all of them are finished.

    Args:
        next_scores: The model.
        width: Texts in the beam.
        alpha: A text of L tokens is worth its sum of log-probabilities over `normalizer(L, alpha)`.
        longest: Tokens; then the search stops.
        ends: Tokens that finish a text.

    Returns:
        The last beam with normalized scores, best first.
    """
    beam: list[Scored] = [((), 0.0)]  # with sums of log-probabilities
    for _ in range(longest):
        grown: list[Scored] = []
        for text, total in beam:
            if text and text[-1] in ends:
                grown.append((text, total))
            else:
                grown += [((*text, token), total + score) for token, score in enumerate(next_scores(text))]
        possible = [entry for entry in grown if entry[1] > -math.inf]
        beam = sorted(possible, key=lambda entry: entry[1] / normalizer(len(entry[0]), alpha), reverse=True)[:width]
        if all(text[-1] in ends for text, _ in beam):
            break
    return [(text, total / normalizer(len(text), alpha)) for text, total in beam]


def normalizer(length: int, alpha: float) -> float:
    """Wu et al. 2016, https://arxiv.org/abs/1609.08144, Eq. 14: lp(Y)."""
    return ((5 + length) / (5 + 1)) ** alpha


def mean_distribution(members: Sequence[Sequence[float]]) -> list[float]:
    """Average log-probabilities token by token, and normalize: the geometric mean of distributions.

    Args:
        members: Log-probabilities of each member.

    Returns:
        Log-probabilities.
    """
    means = [sum(logs) / len(members) for logs in zip(*members, strict=True)]
    total = math.log(sum(math.exp(mean) for mean in means))
    return [mean - total for mean in means]


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Levenshtein's distance, by its recursive definition."""
    if not one or not other:
        return len(one) + len(other)
    return min(
        edit_distance(one[1:], other[1:]) + (one[0] != other[0]),
        edit_distance(one[1:], other) + 1,
        edit_distance(one, other[1:]) + 1,
    )


def alignments(one: Sequence[str], other: Sequence[str], gap: str) -> list[list[tuple[str, str]]]:
    """All alignments of two sequences: lists of pairs, in which one symbol may be a gap."""
    if not one and not other:
        return [[]]
    found = []
    if one and other:
        found += [[(one[0], other[0]), *rest] for rest in alignments(one[1:], other[1:], gap)]
    if one:
        found += [[(one[0], gap), *rest] for rest in alignments(one[1:], other, gap)]
    if other:
        found += [[(gap, other[0]), *rest] for rest in alignments(one, other[1:], gap)]
    return found


def bcubed_f(items: Sequence[tuple[str, str]]) -> float:
    """B-cubed F of two clusterings, item by item (Amigó et al. 2009, https://doi.org/10.1007/s10791-008-9066-8).

    Args:
        items: Of each item, its cluster in the one clustering and in the other.
    """

    def mean_share(own: int) -> float:
        shares = []
        for item in items:
            together = [other for other in items if other[own] == item[own]]
            shares.append(sum(other[1 - own] == item[1 - own] for other in together) / len(together))
        return sum(shares) / len(shares)

    precision, recall = mean_share(1), mean_share(0)
    return 2 * precision * recall / (precision + recall)
