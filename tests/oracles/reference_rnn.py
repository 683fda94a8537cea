"""A naive LSTM family, the oracle of `test_modeling_rnn.py`: one example, one token, one source state at a time.

Zoph & Knight 2016, https://doi.org/10.18653/v1/N16-1004, with what the paper leaves out taken from the authors' code,
https://github.com/isi-nlp/Zoph_RNN (`encoder_multi_source.hpp`, `tree_LSTM.hpp`, `attention_node.hpp`): biases, the
window that is cut before the softmax, the Gaussian that is not normalized. Sources are lists of token ids without
padding, and absent ones are not given. Nothing of the package is imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
State = tuple[Tensor, Tensor]
"""Hidden state and cell of one layer, (D,) each."""


@dataclass(frozen=True)
class Setting:
    """What the model is told besides the weights; as in `MultiSourceRNNConfig`."""

    layers: int
    combination: str
    attention: str
    window: int
    input_feeding: bool
    reverse_sources: bool
    cell_clip: float | None = None


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cell(x: Tensor, state: State, weights: Weights, name: str) -> State:
    """One LSTM cell; `name` is that of a layer's weights, with {} for the kind."""
    hidden, memory = state
    summed = weights[name.format("weight_ih")] @ x + weights[name.format("bias_ih")]
    summed = summed + weights[name.format("weight_hh")] @ hidden + weights[name.format("bias_hh")]
    width = len(hidden)
    new_hidden, new_memory = torch.zeros_like(hidden), torch.zeros_like(memory)
    for k in range(width):
        enter, forget, update, leave = (summed[gate * width + k].item() for gate in range(4))  # as torch orders them
        kept = sigmoid(forget) * memory[k].item() + sigmoid(enter) * math.tanh(update)
        new_memory[k] = kept
        new_hidden[k] = sigmoid(leave) * math.tanh(kept)
    return new_hidden, new_memory


def step(x: Tensor, states: list[State], weights: Weights, prefix: str) -> list[State]:
    """All layers, the lowest first; each reads the hidden state of the one below."""
    new: list[State] = []
    for layer, state in enumerate(states):
        new.append(cell(x, state, weights, f"{prefix}.{{}}_l{layer}"))
        x = new[-1][0]
    return new


def encode(ids: Sequence[int], weights: Weights, prefix: str, setting: Setting) -> tuple[list[Tensor], list[State]]:
    """States of the last layer in the order of the text, and the last state of every layer."""
    table = weights[f"{prefix}.embeddings.tokens.weight"]
    zero = torch.zeros(table.shape[1], dtype=table.dtype)
    states = [(zero, zero)] * setting.layers
    read = list(reversed(range(len(ids)))) if setting.reverse_sources else list(range(len(ids)))
    tops: dict[int, Tensor] = {}
    for position in read:
        states = step(table[ids[position]], states, weights, f"{prefix}.lstm")
        tops[position] = states[-1][0]
    return [tops[position] for position in range(len(ids))], states


def combine(final: Mapping[str, State], weights: Weights, prefix: str, setting: Setting) -> State:
    """The decoder's first state in one layer: (1)(2), or (3)-(8)."""
    if setting.combination == "none":
        (state,) = final.values()
        return state
    width = len(next(iter(final.values()))[0])
    mapped = {name: weights[f"{prefix}.sources.{name}.weight"] @ hidden for name, (hidden, _) in final.items()}
    shared = weights[f"{prefix}.joint.bias"]
    hidden, memory = (torch.zeros(width, dtype=shared.dtype) for _ in range(2))
    for k in range(width):
        if setting.combination == "basic":
            hidden[k] = math.tanh(sum(mapped[name][k].item() for name in final) + shared[k].item())
            memory[k] = sum(own[k].item() for _, own in final.values())
            continue
        enter, leave, update = (
            sum(mapped[name][gate * width + k].item() for name in final) + shared[gate * width + k].item()
            for gate in range(3)
        )
        kept = sigmoid(enter) * math.tanh(update)
        for name, (_, own) in final.items():
            forget = mapped[name][3 * width + k] + weights[f"{prefix}.forget.bias"][k]
            kept += sigmoid(forget.item()) * own[k].item()
        if setting.cell_clip is not None:
            kept = min(max(kept, -setting.cell_clip), setting.cell_clip)
        memory[k], hidden[k] = kept, sigmoid(leave) * math.tanh(kept)
    return hidden, memory


def attend(
    hidden: Tensor, states: list[Tensor], weights: Weights, prefix: str, setting: Setting
) -> tuple[Tensor, list[float]]:
    """Context vector of one source, and the weights over its states."""
    first, last, gaussian = 0, len(states) - 1, [1.0] * len(states)
    if setting.attention == "local_p":
        mapped = weights[f"{prefix}.position_proj.weight"] @ hidden
        score = sum(
            v.item() * math.tanh(m.item())
            for v, m in zip(weights[f"{prefix}.position_score.weight"], mapped, strict=True)
        )
        center = len(states) * sigmoid(score)
        first = max(first, math.trunc(center) - setting.window)
        last = min(last, math.trunc(center) + setting.window)
        deviation = setting.window / 2
        gaussian = [math.exp(-((s - center) ** 2) / (2 * deviation**2)) for s in range(len(states))]
    query = hidden if setting.attention == "dot" else weights[f"{prefix}.query_proj.weight"] @ hidden
    scores = [sum(a.item() * b.item() for a, b in zip(query, state, strict=True)) for state in states]
    inside = range(first, last + 1)
    total = sum(math.exp(scores[s]) for s in inside)
    found = [math.exp(scores[s]) / total * gaussian[s] if s in inside else 0.0 for s in range(len(states))]
    context = torch.zeros_like(hidden)
    for weight, state in zip(found, states, strict=True):
        context = context + weight * state
    return context, found


def decode(
    sources: Mapping[str, Sequence[int]], target: Sequence[int], weights: Weights, setting: Setting
) -> tuple[list[Tensor], list[dict[str, list[float]]]]:
    """Read a target: after each token the logits (V,), and the attention to every source."""
    encoded = {name: encode(ids, weights, f"model.encoder.sources.{name}", setting) for name, ids in sources.items()}
    state = [
        combine(
            {name: final[layer] for name, (_, final) in encoded.items()},
            weights,
            f"model.encoder.combination.{layer}",
            setting,
        )
        for layer in range(setting.layers)
    ]
    table = weights["model.decoder.embeddings.tokens.weight"]
    vector = torch.zeros(table.shape[1], dtype=table.dtype)
    logits, attention = [], []
    for token in target:
        x = torch.cat([table[token], vector]) if setting.input_feeding else table[token]
        state = step(x, state, weights, "model.decoder.lstm")
        vector = state[-1][0]
        attention.append(dict[str, list[float]]())
        if setting.attention != "none":
            prefix = "model.decoder.attention"
            total = weights[f"{prefix}.projection.weight"] @ vector + weights[f"{prefix}.projection.bias"]
            for name, (states, _) in encoded.items():
                context, attention[-1][name] = attend(vector, states, weights, f"{prefix}.sources.{name}", setting)
                total = total + weights[f"{prefix}.sources.{name}.projection.weight"] @ context
            vector = torch.tanh(total)
        logits.append(weights["lm_head.weight"] @ vector)
    return logits, attention
