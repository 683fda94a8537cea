"""Decoder step of generation that computes the layers without calling their modules.

With the few rows of a single sentence, half the time of a step is spent on module calls, attribute lookups and
reshaping. Everything that does not change between steps is therefore bound once, in closures: packed weights, keys and
values of the sources, masks, and which sources are present. The operations are the same as those of the modules.

The modules are called in all other cases: hooks, wrapped, replaced or quantized layers, attention implementations other
than `sdpa`, gradients, autocast, compilation, and requested outputs of single layers. Every combiner of this package
has an entry in `BINDERS`. Combiners without one, and those with `query_norm="per_source"`, are called as modules
between the bound parts of their layer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention import AttentionMask, MultiHeadAttention, SourceMemory, attention_implementation, version_of
from .beam_cache import BeamCache
from .combiners import (
    Combiner,
    ContextGateCombiner,
    FlatCombiner,
    FlatNormedCombiner,
    GatedSerialCombiner,
    HierarchicalCombiner,
    MeanCombiner,
    ParallelCombiner,
    ProjectionCombiner,
    SerialCombiner,
    TanhConcatCombiner,
    WeightedSumCombiner,
)
from .inference import KINDS, is_bare
from .layers import Bias, FeedForward

#: Function of states (B * K, D).
Function = Callable[[Tensor], Tensor]
#: Function of states (B * K, D), the attention mask of the beams, the memory and the cache.
LayerFunction = Callable[[Tensor, Tensor | None, SourceMemory, Any], Tensor]


class UnusualModuleError(Exception):
    """Raised if a module has been changed and must therefore be called instead of bound."""


class DecoderStep:
    """The layers of a decoder, bound to the rows of one batch and to the keys and values of its sources.

    The bound weights are those at the time of binding. The cache holds this object, which refers neither to the cache
    nor to the memory.

    Args:
        functions: One function per layer; None: the modules must be called.
        mask: The mask of the memory to which the layers are bound.
        rows: Number of decoder rows.
    """

    def __init__(self, functions: list[LayerFunction] | None, mask: Tensor, rows: int) -> None:
        self.functions = functions
        self.mask, self.mask_version = mask, version_of(mask)
        self.rows = rows

    def is_for(self, states: Tensor, memory: SourceMemory) -> bool:
        """Return whether the layers are bound to this batch.

        Args:
            states: States of the new positions.
            memory: The encoded sources.

        Returns:
            Whether the layers are bound to this memory and number of rows.
        """
        unchanged = self.mask is memory.mask and self.mask_version == version_of(self.mask)
        return unchanged and self.rows == states.shape[0]


def run_layers(
    decoder: Any, states: Tensor, mask: AttentionMask, memory: SourceMemory, past_key_values: Any, cache: BeamCache
) -> Tensor | None:
    """Run the layers of a decoder for one new position of each beam.

    Args:
        decoder: The decoder.
        states: The embedded tokens.
        mask: Attention mask from `BeamCache.mask`; with one beam, the causal mask, or None if there is no padding.
        memory: The encoded sources.
        past_key_values: The whole cache, which already contains the keys and values of the sources.
        cache: The self-attention part of the cache.

    Shape:
        states (B * K, 1, D). Returns (B * K, 1, D).

    Returns:
        The states of the last layer; None if the modules must be called.
    """
    if not (mask is None or isinstance(mask, Tensor)) or states.shape[1] != 1 or not _is_usual(states):
        return None
    step = cache.step
    if step is None or not step.is_for(states, memory):
        step = cache.step = _bind(decoder, states, memory, past_key_values, cache)
    if step.functions is None:
        return None
    states = states[:, 0]  # two dimensions, because products of three dimensions are reshaped before and after
    for function in step.functions:
        states = function(states, mask, memory, past_key_values)
    return states[:, None]


def is_bound(cache: BeamCache, tokens: Tensor, memory: SourceMemory) -> bool:
    """Return whether `run_layers` can compute the layers for new tokens, because it did in the previous step.

    Args:
        cache: The self-attention part of the cache.
        tokens: The new tokens.
        memory: The encoded sources.

    Shape:
        tokens (B * K, 1).

    Returns:
        Whether `run_layers` will return states instead of None.
    """
    step = cache.step
    return step is not None and step.functions is not None and step.is_for(tokens, memory) and _is_usual(tokens)


def _is_usual(tensor: Tensor) -> bool:
    return not (
        torch.compiler.is_compiling() or torch.is_grad_enabled() or torch.is_autocast_enabled(tensor.device.type)
    )


def _bind(decoder: Any, states: Tensor, memory: SourceMemory, past_key_values: Any, cache: BeamCache) -> DecoderStep:
    config = decoder.config
    functions: list[LayerFunction] | None = None
    if (
        attention_implementation(config) == "sdpa"
        and ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward  # not replaced by the user
        and not any(module.training for module in decoder.modules())  # such as dropout in a single layer
        and not (config.output_attentions or config.output_hidden_states)
        and not nn.modules.module._has_any_global_hook()
        and all(past_key_values.is_updated.get(i) for i in range(len(decoder.layers)))
    ):
        with suppress(UnusualModuleError):
            functions = [
                _bind_layer(layer, decoder.layer_type, states, memory, past_key_values, cache)
                for layer in decoder.layers
            ]
    return DecoderStep(functions, memory.mask, states.shape[0])


def _has_stock_methods(module: nn.Module) -> bool:
    """Return whether calling a module only runs `forward`, and none of its `METHODS` has been replaced."""
    methods = METHODS.get(type(module), {})
    return is_bare(module) and all(
        name not in module.__dict__ and getattr(type(module), name) is method for name, method in methods.items()
    )


def _check(module: nn.Module, *types: type[nn.Module]) -> None:
    """Raise UnusualModuleError unless a module is exactly of one of these types, with its own methods."""
    if type(module) not in types or not _has_stock_methods(module):
        raise UnusualModuleError


def _bind_linear(layer: Any, states: Tensor) -> Function:
    _check(layer, nn.Linear, *KINDS)
    if isinstance(layer, KINDS):
        return layer.bind(states)
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    if type(weight) is not nn.Parameter:  # a quantized tensor, or a tensor sharded among processes
        raise UnusualModuleError
    return lambda states: linear(states, weight, bias)


def _bind_norm(norm: Any) -> Function:
    _check(norm, nn.LayerNorm)
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda states: torch.layer_norm(states, shape, weight, bias, eps)


def _bind_layer(
    layer: Any,
    layer_type: type[nn.Module],
    states: Tensor,
    memory: SourceMemory,
    past_key_values: Any,
    cache: BeamCache,
) -> LayerFunction:
    _check(layer, layer_type)
    norm, pre_norm = _bind_norm(layer.self_attn_layer_norm), layer.pre_norm
    attend = _bind_self_attention(layer.self_attn, states, cache)
    combine = _bind_combiner(layer.cross_attn, states, memory, past_key_values)
    feed_forward = _bind_feed_forward(layer.feed_forward, states)

    def run(states: Tensor, mask: Tensor | None, memory: SourceMemory, past_key_values: Any) -> Tensor:
        states = states + attend(norm(states), mask) if pre_norm else norm(states + attend(states, mask))
        return feed_forward(combine(states, mask, memory, past_key_values))

    return run


def _bind_self_attention(attention: Any, states: Tensor, cache: BeamCache) -> Callable[[Tensor, Tensor | None], Tensor]:
    _check(attention, MultiHeadAttention)
    held: Any = cache.layers[attention.layer_idx]  # not the position in the list, if layers were reordered
    num_beams = cache.num_beams
    layers = [attention.q_proj, attention.k_proj, attention.v_proj]
    heads, width, scaling = attention.num_heads, attention.head_dim, attention.scaling
    examples = states.shape[0] // num_beams
    out = _bind_linear(attention.out_proj, states)
    joined = None if attention.joined_layers is None else attention.joined_layers.bind(layers, states)
    singles = [] if joined else [_bind_linear(layer, states) for layer in layers]

    def project(states: Tensor) -> Any:
        if joined is not None:
            return joined(states).view(examples, num_beams, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
        return [single(states).view(examples, num_beams, heads, width).transpose(1, 2) for single in singles]

    def attend(states: Tensor, mask: Tensor | None) -> Tensor:
        queries, keys, values = project(states)  # (B, H, K, d)
        keys, values = held.append(keys, values)
        context = scaled_dot_product_attention(queries, keys, values, mask, scale=scaling)
        return out(context.transpose(1, 2).reshape(states.shape))

    return attend


def _bind_attention(
    attention: Any, states: Tensor, keys: Tensor, values: Tensor, memory: SourceMemory, source: int | None
) -> Function:
    """Bind an attention to the keys and values of one source, or of all sources, joined."""
    _check(attention, MultiHeadAttention)
    query, out = _bind_linear(attention.q_proj, states), _bind_linear(attention.out_proj, states)
    mask: Any = memory.attention_mask(attention.config, states, source)
    shape, scaling = (keys.shape[0], -1, attention.num_heads, attention.head_dim), attention.scaling

    def attend(states: Tensor) -> Tensor:
        queries = query(states).view(shape).transpose(1, 2)
        context = scaled_dot_product_attention(queries, keys, values, mask, scale=scaling)
        return out(context.transpose(1, 2).reshape(states.shape))

    return attend


def _bind_presence(states: Tensor, memory: SourceMemory, source: int | None) -> Tensor | None:
    """Return which rows have a source (B * K, 1), for `torch.where`; None if all rows are known to have the source."""
    if memory.complete(source):
        return None
    present = memory.any_present if source is None else memory.present[:, source]
    return present[:, None]


def _bind_combiner(combiner: Any, states: Tensor, memory: SourceMemory, past_key_values: Any) -> LayerFunction:
    binder = BINDERS.get(type(combiner))
    if binder is None or not _has_stock_methods(combiner) or not getattr(combiner, "shared_norm", True):
        return lambda states, mask, memory, past_key_values: combiner(states[:, None], memory, past_key_values)[0][:, 0]
    held = past_key_values.cross_attention_cache.layers[combiner.layer_idx]
    bound = binder(combiner, states, memory, held.keys, held.values)
    return lambda states, mask, memory, past_key_values: bound(states)


def _bind_flat(combiner: Any, states: Tensor, memory: SourceMemory, keys: Tensor, values: Tensor) -> Function:
    attend = _bind_attention(combiner.joint, states, keys, values, memory, None)
    return _bind_residual(combiner, states, memory, attend)


class _BoundSource(NamedTuple):
    """The attention of a combiner to one source, which at least one example has."""

    place: int
    attention: Any
    attend: Function
    #: Result of `_bind_presence`.
    present: Tensor | None


def _bind_sources(
    combiner: Combiner, states: Tensor, memory: SourceMemory, keys: Tensor, values: Tensor
) -> list[_BoundSource]:
    parts = zip(combiner.source_names, keys.split(memory.lengths, 2), values.split(memory.lengths, 2), strict=True)
    found = []
    for i, (name, keys, values) in enumerate(parts):
        if memory.lengths[i]:
            attention = getattr(combiner, name)
            attend = _bind_attention(attention, states, keys, values, memory, i)
            found.append(_BoundSource(i, attention, attend, _bind_presence(states, memory, i)))
    return found


def _bind_serial(combiner: Any, states: Tensor, memory: SourceMemory, keys: Tensor, values: Tensor) -> Function:
    turns = [
        (_bind_turn(source, combiner.pre_norm), source.present)
        for source in _bind_sources(combiner, states, memory, keys, values)
    ]

    def combine(states: Tensor) -> Tensor:
        for turn, present in turns:
            output = turn(states)
            states = output if present is None else torch.where(present, output, states)
        return states

    return combine


def _bind_turn(source: _BoundSource, pre_norm: bool) -> Function:
    """Bind the attention to one source with its norm, its residual connection, and its gate if it has one."""
    attend, norm = source.attend, _bind_norm(source.attention.layer_norm)
    gate = getattr(source.attention, "gate", None)
    if gate is not None:
        opening = _bind_bias(gate).tanh()
        return lambda states: states + opening * attend(norm(states))
    if pre_norm:
        return lambda states: states + attend(norm(states))
    return lambda states: norm(states + attend(states))


def _bind_bias(bias: Any) -> Tensor:
    _check(bias, Bias)
    numbers: Tensor = bias.bias
    if type(numbers) is not nn.Parameter:  # a tensor sharded among processes
        raise UnusualModuleError
    return numbers


def _bind_contexts(sources: list[_BoundSource]) -> Callable[[Tensor], list[Tensor]]:
    """Bind the attentions of a combiner that attends to all sources with the same query."""
    pairs = [(source.attend, source.present) for source in sources]

    def contexts(query: Tensor) -> list[Tensor]:
        found = []
        for attend, present in pairs:
            context = attend(query)
            found.append(context if present is None else torch.where(present, context, torch.zeros_like(context)))
        return found

    return contexts


def _bind_residual(combiner: Any, states: Tensor, memory: SourceMemory, update: Callable[[Tensor], Tensor]) -> Function:
    """Bind what surrounds the update of a combiner: the norm, the residual connection, and rows without any source."""
    norm, pre_norm = _bind_norm(combiner.layer_norm), combiner.pre_norm
    any_present = _bind_presence(states, memory, None)

    def combine(states: Tensor) -> Tensor:
        output = states + update(norm(states)) if pre_norm else norm(states + update(states))
        return output if any_present is None else torch.where(any_present, output, states)

    return combine


def _bind_parallel(combiner: Any, states: Tensor, memory: SourceMemory, keys: Tensor, values: Tensor) -> Function:
    contexts = _bind_contexts(_bind_sources(combiner, states, memory, keys, values))
    return _bind_residual(combiner, states, memory, lambda query: torch.stack(contexts(query)).sum(dim=0))


def _bind_projection(combiner: Any, states: Tensor, memory: SourceMemory, keys: Tensor, values: Tensor) -> Function:
    sources = _bind_sources(combiner, states, memory, keys, values)
    contexts = _bind_contexts(sources)
    projections = [_bind_linear(source.attention.projection, states) for source in sources]

    def project(query: Tensor) -> Tensor:
        found = [projection(context) for projection, context in zip(projections, contexts(query), strict=True)]
        return torch.stack(found).sum(dim=0)

    if isinstance(combiner, TanhConcatCombiner):
        last = _bind_linear(combiner.projection, states)
        return _bind_residual(combiner, states, memory, lambda query: torch.tanh(project(query) + last(query)))
    bias = _bind_bias(combiner.projection)
    return _bind_residual(combiner, states, memory, lambda query: project(query) + bias)


def _bind_mean(combiner: Any, states: Tensor, memory: SourceMemory, keys: Tensor, values: Tensor) -> Function:
    """Bind a combiner whose weights of the sources do not depend on the context vectors."""
    sources = _bind_sources(combiner, states, memory, keys, values)
    contexts = _bind_contexts(sources)
    if isinstance(combiner, WeightedSumCombiner):
        logits = torch.stack([_bind_bias(source.attention.gate) for source in sources])[None]
    else:
        logits = states.new_zeros(1, len(sources), 1)
    shares = _bind_softmax(sources, states, memory)(logits)  # (B * K or 1, n, 1)
    return _bind_residual(
        combiner, states, memory, lambda query: (shares * torch.stack(contexts(query), dim=1)).sum(dim=1)
    )


def _bind_context_gate(combiner: Any, states: Tensor, memory: SourceMemory, keys: Tensor, values: Tensor) -> Function:
    sources = _bind_sources(combiner, states, memory, keys, values)
    contexts, softmax = _bind_contexts(sources), _bind_softmax(sources, states, memory)
    gates = [_bind_linear(source.attention.gate, states) for source in sources]

    def update(query: Tensor) -> Tensor:
        found = contexts(query)
        logits = torch.stack([gate(context) for gate, context in zip(gates, found, strict=True)], dim=1)
        return (softmax(logits) * torch.stack(found, dim=1)).sum(dim=1)

    return _bind_residual(combiner, states, memory, update)


def _bind_softmax(sources: list[_BoundSource], states: Tensor, memory: SourceMemory) -> Function:
    """Bind the softmax over the sources (dimension 1), in which the absent sources of a row have weight 0."""
    if all(source.present is None for source in sources):
        return lambda scores: scores.softmax(dim=1)
    absent, lowest = ~memory.present[:, [source.place for source in sources], None], torch.finfo(states.dtype).min
    return lambda scores: scores.masked_fill(absent, lowest).softmax(dim=1).masked_fill(absent, 0.0)


def _bind_hierarchical(combiner: Any, states: Tensor, memory: SourceMemory, keys: Tensor, values: Tensor) -> Function:
    level = combiner.hierarchy
    _check(level, MultiHeadAttention)
    sources = _bind_sources(combiner, states, memory, keys, values)
    contexts, softmax = _bind_contexts(sources), _bind_softmax(sources, states, memory)
    stacked_states = states.new_empty(len(states) * len(sources), states.shape[-1])
    project_query, project_output = _bind_linear(level.q_proj, states), _bind_linear(level.out_proj, states)
    project_key, project_value = (_bind_linear(layer, stacked_states) for layer in (level.k_proj, level.v_proj))
    shape = (len(states), -1, level.num_heads, level.head_dim)
    scaling = level.scaling

    def update(query: Tensor) -> Tensor:
        stacked = torch.stack(contexts(query), dim=1).flatten(0, 1)
        queries, keys, values = (
            projected.view(shape) for projected in (project_query(query), project_key(stacked), project_value(stacked))
        )
        weights = softmax((queries * keys).sum(dim=-1) * scaling)  # (B * K, n, H)
        return project_output((weights.unsqueeze(-1) * values).sum(dim=1).flatten(1))

    return _bind_residual(combiner, states, memory, update)


#: Functions that bind a combiner, by combiner class; all other combiners are called as modules.
BINDERS: dict[type[Combiner], Callable[[Any, Tensor, SourceMemory, Tensor, Tensor], Function]] = {
    ContextGateCombiner: _bind_context_gate,
    FlatCombiner: _bind_flat,
    FlatNormedCombiner: _bind_flat,
    GatedSerialCombiner: _bind_serial,
    HierarchicalCombiner: _bind_hierarchical,
    MeanCombiner: _bind_mean,
    ParallelCombiner: _bind_parallel,
    ProjectionCombiner: _bind_projection,
    SerialCombiner: _bind_serial,
    TanhConcatCombiner: _bind_projection,
    WeightedSumCombiner: _bind_mean,
}
#: Methods that the bound functions replace, by class; a model in which one of them was replaced is called.
METHODS: dict[type[nn.Module], dict[str, Any]] = {
    kind: {
        name: getattr(kind, name)
        for base in kind.__mro__[: kind.__mro__.index(nn.Module)]
        for name, method in vars(base).items()
        if isinstance(method, FunctionType | staticmethod)
    }
    for kind in (Bias, FeedForward, MultiHeadAttention, *BINDERS)
}


def _bind_feed_forward(feed_forward: Any, states: Tensor) -> Function:
    _check(feed_forward, FeedForward)
    norm, pre_norm, activation = _bind_norm(feed_forward.layer_norm), feed_forward.pre_norm, feed_forward.activation
    first = _bind_linear(feed_forward.fc1, states)
    second = _bind_linear(feed_forward.fc2, states.new_empty(*states.shape[:2], feed_forward.fc1.out_features))
    if type(activation) is nn.ReLU and is_bare(activation):
        activation = torch.relu_

    def run(states: Tensor) -> Tensor:
        output = states + second(activation(first(norm(states) if pre_norm else states)))
        return output if pre_norm else norm(output)

    return run


__all__ = ["DecoderStep", "is_bound", "run_layers"]
