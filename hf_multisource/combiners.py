"""Combiners: cross-attention sub-layers of a decoder layer that attend to several sources.

A combiner contains the layer norms, attentions, dropout and residual connections of the sub-layer; it maps states
(B, T, D) to states (B, T, D). With dropout D(), layer norm LN, the states E_i of source i and an attention MHA_i per
source, the pre-norm equations are:

    serial        for i: x = x + D(MHA_i(LN_i(x), E_i))
    parallel      q = LN(x);  x + sum_i D(MHA_i(q, E_i))
    flat          x + D(MHA(LN(x), [E_1; ...; E_n]))
    hierarchical  q = LN(x);  c_i = D(MHA_i(q, E_i));  x + D(MHA_h(q, [c_1, ..., c_n]))

(Libovický, Helcl & Mareček 2018, https://doi.org/10.18653/v1/W18-6326; norm, dropout and residual as in the authors'
code.) The following combiners come from other papers, which their classes cite, with q = LN(x) and c_i = MHA_i(q, E_i):

    projection    x + D(W [c_1; ...; c_n] + b)
    mean          x + D(1/n sum_i c_i)
    weighted_sum  x + D(sum_i softmax(w)_i c_i), one number w_i per source
    context_gate  x + D(sum_i softmax(U c + b)_i * c_i), the softmax over the sources, for each dimension
    tanh_concat   x + D(tanh(W [q; c_1; ...; c_n] + b))
    gated_serial  serial, but for gated sources x = x + tanh(a_i) D(MHA_i(LN_i(x), E_i)), where a_i is initialized to 0
    flat_normed   x + D(MHA(q, [LN_1(E_1); ...; LN_n(E_n)]))

With post-norm the layer norm is applied to the sum instead of the query: LN(x + ...).

An absent source does not take part in the computation: the result of an example is the same as in a batch without the
sources that the example lacks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.utils import logging

from .attention import MultiHeadAttention, SourceMemory, attention_implementation, cast_for_products
from .configuration_multisource import MultiSourceConfig
from .dropout import dropout
from .layers import Bias
from .packing import packing_pays

logger = logging.get_logger(__name__)

KeysValues = tuple[Tensor, Tensor]
Combined = tuple[Tensor, Tensor | None, Tensor | None]


class Combiner(nn.Module, ABC):
    """Base class of all combiners: projects and caches keys and values, and passes one pair per source to `combine`.

    Args:
        config: Reads `sources`, `d_model` (D), `decoder_attention_heads` (H), `norm_position`, `dropout`.
        layer_idx: Index of the decoder layer, from 0, and of the layer in the key/value cache.

    Shape:
        hidden_states (B, T, D), after self-attention; memory.states (B, S, D).
        Returns states (B, T, D), attention weights (B, H, T, S) and source weights (B, H_h, T, n); the last two may be
        None. With `memory.expansion` K, B is K times as large for all tensors but the memory: K consecutive rows share
        the keys and values of one example.

    Raises:
        ValueError: If a source has the name of an attribute.
    """

    #: Whether the result depends on the order of the sources.
    order_sensitive: ClassVar[bool] = False
    #: Whether the combiner with one source is an ordinary cross-attention sub-layer.
    exact_for_one_source: ClassVar[bool] = True
    #: Whether one softmax normalizes the attention weights over the states of all sources.
    joint_weights: ClassVar[bool] = False
    #: Whether the combiner returns weights over the sources.
    weighs_sources: ClassVar[bool] = False

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.source_names = config.source_names
        self.pre_norm = config.norm_position == "pre"
        for name in self.source_names:  # `add_attentions` registers submodules with these names
            if hasattr(self, name):
                raise ValueError(f"source name {name!r} is an attribute of combiners; choose another.")

    def add_attentions(self, *, layer_norm: bool) -> None:
        """Register one `MultiHeadAttention` per source as a submodule named after the source.

        Args:
            layer_norm: Whether each attention also has its own layer norm.
        """
        for name in self.source_names:
            attention = MultiHeadAttention(self.config, self.config.decoder_attention_heads)
            if layer_norm:
                attention.layer_norm = self.make_norm()
            self.add_module(name, attention)

    def make_norm(self) -> nn.LayerNorm:
        """Create a layer norm over D.

        Returns:
            The layer norm.
        """
        return nn.LayerNorm(self.config.d_model, eps=self.config.layer_norm_eps)

    def drop(self, states: Tensor) -> Tensor:
        """Apply the residual dropout, D().

        Args:
            states: Hidden states.

        Returns:
            The states, after dropout in training mode.
        """
        return dropout(states, self.config.dropout, True) if self.training else states

    def project(self, memory: SourceMemory) -> list[KeysValues]:
        """Project the sources to keys and values: one pair per source, or a single pair with `joint_weights`.

        Args:
            memory: The encoded sources.

        Returns:
            Pairs of (B, H, S_i, d).
        """
        blocks = zip(self.source_names, memory.states.split(memory.lengths, dim=1), strict=True)
        return [self.project_real(getattr(self, name), states, memory, i) for i, (name, states) in enumerate(blocks)]

    def project_real(
        self, attention: MultiHeadAttention, states: Tensor, memory: SourceMemory, source: int | None = None
    ) -> KeysValues:
        """Project states to keys and values; training on a CPU skips padding.

        Args:
            attention: The attention.
            states: The states, with padding.
            memory: The encoded sources, whose mask marks the real states.
            source: Index of the source; None: all sources, joined.

        Returns:
            Keys and values (B, H, S, d); their values at padding are arbitrary and never attended to.
        """
        states = cast_for_products(states)
        packing = memory.packing(source) if packing_pays(states, self.training) else None
        return attention.project(packing.pack(states) if packing else states, packing)

    def _keys_values(self, memory: SourceMemory, past_key_values: Cache | None) -> list[KeysValues]:
        if not isinstance(past_key_values, EncoderDecoderCache):
            return self.project(memory)
        cache = past_key_values.cross_attention_cache
        if past_key_values.is_updated.get(self.layer_idx):
            layer: Any = cache.layers[self.layer_idx]
            keys, values = layer.keys, layer.values
        else:
            all_keys, all_values = zip(*self.project(memory), strict=True)
            keys, values = cache.update(torch.cat(all_keys, dim=2), torch.cat(all_values, dim=2), self.layer_idx)
            past_key_values.is_updated[self.layer_idx] = True
        if self.joint_weights:
            return [(keys, values)]
        lengths = memory.lengths
        return list(zip(keys.split(lengths, dim=2), values.split(lengths, dim=2), strict=True))

    def attend(
        self, source: int, query: Tensor, keys_values: KeysValues, memory: SourceMemory, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to one source with the source's own attention.

        Args:
            source: Index of the source.
            query: Queries, already normalized if the strategy requires it.
            keys_values: Keys and values of the source.
            memory: The encoded sources, for the mask.
            **kwargs: Passed on to the attention implementation.

        Shape:
            query (B, T, D). Returns (B, T, D), and weights (B, H, T, S_i), zero where the source is absent.

        Returns:
            Context vectors (arbitrary where the source is absent; `where_present` discards them) and attention weights.
        """
        attention: MultiHeadAttention = getattr(self, self.source_names[source])
        if memory.lengths[source] == 0:  # not every attention kernel supports empty keys
            eager = attention_implementation(self.config) == "eager"
            weights = query.new_zeros(query.shape[0], attention.num_heads, query.shape[1], 0) if eager else None
            return torch.zeros_like(query), weights
        return self.attend_with(attention, query, keys_values, memory, source, **kwargs)

    def attend_with(
        self,
        attention: MultiHeadAttention,
        query: Tensor,
        keys_values: KeysValues,
        memory: SourceMemory,
        source: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with a given attention; the weights are zero for examples without the source.

        The K rows that share the sources of an example are folded into one query that is K times as long.

        Args:
            attention: The attention.
            query: Queries, already normalized if the strategy requires it.
            keys_values: Keys and values.
            memory: The encoded sources, for the mask.
            source: Index of the source of the keys; None: all sources, joined.
            **kwargs: Passed on to the attention implementation.

        Shape:
            query (B, T, D). Returns (B, T, D) and weights (B, H, T, S).

        Returns:
            Context vectors, arbitrary where no source is present, and attention weights (None unless the attention
            implementation returns them). The weights are the tensor of the computation itself, not a copy, so that
            their gradient can be retained.
        """
        pays = packing_pays(query, self.training)
        complete = pays and memory.complete(source)
        # Only eager attention returns weights; other implementations may reject the keyword.
        if attention_implementation(self.config) == "eager" and not complete:
            kwargs["present"] = memory.present_in_example(source)
        expansion, length = memory.expansion, query.shape[1]
        mask = memory.attention_mask(self.config, query, source)
        if source is not None and expansion == 1 and isinstance(mask, Tensor) and pays:
            rows = memory.rows[source]
            if rows is not None:  # skip examples whose result would be discarded
                return self._look_from(rows, attention, query, keys_values, mask, **kwargs)
        context, weights = attention.attend(query, *keys_values, mask, **kwargs)
        if expansion > 1 and weights is not None:
            weights = weights.unflatten(2, (expansion, length)).transpose(1, 2).flatten(0, 1)
        return context, weights

    @staticmethod
    def _look_from(
        rows: Tensor, attention: MultiHeadAttention, query: Tensor, keys_values: KeysValues, mask: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with a subset of the rows; the results of the other rows are zero."""
        if "present" in kwargs:
            kwargs["present"] = kwargs["present"].index_select(0, rows)
        keys, values = (states.index_select(0, rows) for states in keys_values)
        context, weights = attention.attend(query.index_select(0, rows), keys, values, mask[rows], **kwargs)
        if weights is not None:
            weights = weights.new_zeros(len(query), *weights.shape[1:]).index_copy_(0, rows, weights)
        return context.new_zeros(query.shape).index_copy_(0, rows, context), weights

    def keep_present(self, memory: SourceMemory, new: Tensor, old: Tensor | None, source: int | None = None) -> Tensor:
        """Apply `where_present`; skipped on a CPU, where reading the mask is cheap, if all examples have the source.

        Args:
            memory: The encoded sources.
            new: States of the examples that have the source.
            old: States of the other examples; None: zeros.
            source: Index of the source; None: any source.

        Shape:
            new, old (B, T, D).

        Returns:
            The selected states.
        """
        if new.is_cpu and not torch.compiler.is_compiling() and memory.complete(source):
            return new
        present = memory.any_present if source is None else memory.present[:, source]
        return where_present(present, new, torch.zeros_like(new) if old is None else old)

    def forward(
        self, hidden_states: Tensor, memory: SourceMemory, past_key_values: Cache | None = None, **kwargs: Any
    ) -> Combined:
        """Attend from the decoder's states to the sources.

        Args:
            hidden_states: The decoder's hidden states.
            memory: The encoded sources. If the cache is filled, only the mask and lengths are read.
            past_key_values: Key/value cache; each layer stores the keys and values of all sources, joined in time.
            **kwargs: Passed on to the attention implementation.

        Returns:
            The new hidden states, attention weights over all states, and weights over the sources.
        """
        return self.combine(hidden_states, self._keys_values(memory, past_key_values), memory, **kwargs)

    @abstractmethod
    def combine(
        self, hidden_states: Tensor, keys_values: list[KeysValues], memory: SourceMemory, **kwargs: Any
    ) -> Combined:
        """Attend to the sources and combine the results; implemented by each strategy.

        Args:
            hidden_states: The decoder's hidden states (B, T, D).
            keys_values: Keys and values from `project`.
            memory: The encoded sources.
            **kwargs: Passed on to the attention implementation.

        Returns:
            The same as `forward`.
        """


def where_present(present: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Select `new` for the examples that have the source and `old` for the others; only selected states get gradients.

    Args:
        present: Whether each example has the source.
        new: States of the examples that have the source.
        old: States of the other examples.

    Shape:
        present (B,); new, old (B, T, D).

    Returns:
        The selected states.
    """
    return torch.where(present[:, None, None], new, old)


def join(weights: list[Tensor | None]) -> Tensor | None:
    """Join the attention weights of all sources on the key axis, in the order of the sources.

    Args:
        weights: Attention weights (B, H, T, S_i) of each source; None if the attention implementation returns none.

    Returns:
        (B, H, T, S), or None.
    """
    given = [w for w in weights if w is not None]
    return torch.cat(given, dim=-1) if len(given) > 1 else next(iter(given), None)


class SerialCombiner(Combiner):
    """Attend to the sources one after the other, each with its own layer norm, dropout and residual connection.

    Libovický et al. 2018, §3 and Fig. 1a (no numbered equation):
        x_i = x_{i-1} + D(MHA_i(LN_i(x_{i-1}), E_i));  post-norm: x_i = LN_i(x_{i-1} + D(MHA_i(x_{i-1}, E_i)))

    Args:
        config: As [`Combiner`]; the sources are attended to in the order of `sources`.
        layer_idx: As [`Combiner`].
    """

    order_sensitive = True

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.add_attentions(layer_norm=True)

    def combine(
        self, hidden_states: Tensor, keys_values: list[KeysValues], memory: SourceMemory, **kwargs: Any
    ) -> Combined:
        all_weights = []
        for i in range(len(self.source_names)):
            output, weights = self.attend_to_source(i, hidden_states, keys_values[i], memory, **kwargs)
            hidden_states = self.keep_present(memory, output, hidden_states, i)
            all_weights.append(weights)
        return hidden_states, join(all_weights), None

    def attend_to_source(
        self, source: int, hidden_states: Tensor, keys_values: KeysValues, memory: SourceMemory, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to one source, with layer norm, dropout and residual connection.

        Args:
            source: Index of the source.
            hidden_states: The decoder's hidden states (B, T, D).
            keys_values: Keys and values of the source.
            memory: The encoded sources.
            **kwargs: Passed on to the attention implementation.

        Returns:
            The new hidden states (B, T, D), arbitrary where the source is absent, and the weights returned by `attend`.
        """
        norm = getattr(self, self.source_names[source]).layer_norm
        query = norm(hidden_states) if self.pre_norm else hidden_states
        context, weights = self.attend(source, query, keys_values, memory, **kwargs)
        output = hidden_states + self.drop(context)
        return output if self.pre_norm else norm(output), weights


class GatedSerialCombiner(SerialCombiner):
    """Attend to the sources one after the other; gated sources have no effect at initialization.

    Alayrac et al. 2022 (Flamingo), https://arxiv.org/abs/2204.14198, section 2.2, without its gated feed-forward layer:
        x_i = x_{i-1} + tanh(a_i) D(MHA_i(LN_i(x_{i-1}), E_i)), a_i a scalar initialized to 0

    for gated sources. Gated sources use pre-norm whatever the `norm_position`: with a_i = 0 they leave the hidden
    states unchanged, and a source can be added to a trained model without changing its output. Sources without a gate
    are treated as in `serial`.

    Args:
        config: As [`SerialCombiner`], and which sources are `gated`.
        layer_idx: As [`Combiner`].
    """

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        for name, gated in zip(self.source_names, config.gated_sources, strict=True):
            if gated:
                getattr(self, name).gate = Bias(1)

    def train(self, mode: bool = True) -> GatedSerialCombiner:
        """Set the training mode; warn if training cannot open a gate, as with LoRA adapters on all linear layers.

        Args:
            mode: Whether to train.

        Returns:
            The combiner.
        """
        for name in self.source_names if mode else ():
            gate = getattr(getattr(self, name), "gate", None)
            numbers = [] if gate is None else list(gate.parameters())
            if numbers and not any(number.requires_grad or number.is_meta or number.any() for number in numbers):
                logger.warning_once(
                    f"source {name!r} has no effect, and training cannot change that: its gate is 0 and frozen. With "
                    'PEFT, pass modules_to_save=["gate"].'
                )
        return super().train(mode)

    def attend_to_source(
        self, source: int, hidden_states: Tensor, keys_values: KeysValues, memory: SourceMemory, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        attention = getattr(self, self.source_names[source])
        if not hasattr(attention, "gate"):
            return super().attend_to_source(source, hidden_states, keys_values, memory, **kwargs)
        context, weights = self.attend(source, attention.layer_norm(hidden_states), keys_values, memory, **kwargs)
        return hidden_states + attention.gate().tanh() * self.drop(context), weights


class ParallelCombiner(Combiner):
    """Attend to all sources in parallel and sum the context vectors.

    Libovický et al. 2018, Eq. 4:
        q = LN(x);  x + sum_i D(MHA_i(q, E_i));  post-norm: LN(x + sum_i D(MHA_i(x, E_i)))

    Args:
        config: As [`Combiner`], and `query_norm`: whether the sources share one LN or have one each.
        layer_idx: As [`Combiner`].
    """

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.shared_norm = config.query_norm == "shared"
        self.add_attentions(layer_norm=not self.shared_norm)
        if self.shared_norm:
            self.layer_norm = self.make_norm()

    def contexts(
        self, hidden_states: Tensor, keys_values: list[KeysValues], memory: SourceMemory, **kwargs: Any
    ) -> tuple[list[Tensor], Tensor | None]:
        """Compute the context vectors of all sources for the same hidden states.

        Args:
            hidden_states: The decoder's hidden states (B, T, D).
            keys_values: Keys and values from `project`.
            memory: The encoded sources.
            **kwargs: Passed on to the attention implementation.

        Returns:
            One c_i (B, T, D) per source, zero where the source is absent, and the joined attention weights.
        """
        contexts, all_weights = [], []
        shared = self.layer_norm(hidden_states) if self.pre_norm and self.shared_norm else hidden_states
        for i, name in enumerate(self.source_names):
            query = shared if self.shared_norm else getattr(self, name).layer_norm(hidden_states)
            context, weights = self.attend(i, query, keys_values[i], memory, **kwargs)
            contexts.append(self.keep_present(memory, context, None, i))
            all_weights.append(weights)
        return contexts, join(all_weights)

    def add_query_norm(self) -> None:
        """Create the layer norm of `normalized_query`, unless all sources share one that can be used."""
        if not self.shared_norm:
            self.layer_norm = self.make_norm()

    def normalized_query(self, hidden_states: Tensor) -> Tensor:
        """Return the normalized query, for computations other than the attentions to the sources.

        Args:
            hidden_states: The decoder's hidden states.

        Returns:
            LN(x), or x with post-norm.
        """
        return self.layer_norm(hidden_states) if self.pre_norm else hidden_states

    def residual(self, hidden_states: Tensor, update: Tensor, memory: SourceMemory) -> Tensor:
        """Add the update to the hidden states; the states of an example without any source are returned unchanged.

        Args:
            hidden_states: The decoder's hidden states.
            update: The combined context vectors.
            memory: The encoded sources.

        Returns:
            The new hidden states (B, T, D).
        """
        output = hidden_states + update
        if not self.pre_norm:
            output = self.layer_norm(output)
        return self.keep_present(memory, output, hidden_states)

    def combine(
        self, hidden_states: Tensor, keys_values: list[KeysValues], memory: SourceMemory, **kwargs: Any
    ) -> Combined:
        contexts, weights = self.contexts(hidden_states, keys_values, memory, **kwargs)
        update = torch.stack([self.drop(context) for context in contexts]).sum(dim=0)
        return self.residual(hidden_states, update, memory), weights, None


class HierarchicalCombiner(ParallelCombiner):
    """Attend to every source, then attend over the context vectors.

    Libovický et al. 2018, Eqs. 7-8:
        c_i = D(MHA_i(q, E_i));  x + D(MHA_h(q, [c_1, ..., c_n]))
    with q = LN(x), or x with post-norm. The second attention excludes absent sources (the authors' code has no support
    for them); its dropout rate is the residual dropout, as in the authors' code.

    Args:
        config: As [`ParallelCombiner`], and `hierarchical_heads` (H_h).
        layer_idx: As [`Combiner`].
    """

    exact_for_one_source = False
    weighs_sources = True

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.hierarchy = MultiHeadAttention(config, config.hierarchical_heads or config.decoder_attention_heads)
        self.add_query_norm()

    def combine(
        self, hidden_states: Tensor, keys_values: list[KeysValues], memory: SourceMemory, **kwargs: Any
    ) -> Combined:
        contexts, weights = self.contexts(hidden_states, keys_values, memory, **kwargs)
        query = self.normalized_query(hidden_states)
        level = self.hierarchy
        batch, length, width = hidden_states.shape
        heads = (level.num_heads, level.head_dim)
        dropped = [self.drop(context) for context in contexts]
        stacked = torch.stack(dropped, dim=2).flatten(1, 2)  # (B, T * n, D): int8 layers do not support four dimensions
        levels = (batch, length, len(contexts), *heads)
        queries = level.q_proj(query).view(batch, length, 1, *heads)
        keys = level.k_proj(stacked).view(levels)  # (B, T, n, H, d)
        values = level.v_proj(stacked).view(levels)
        scores = (queries * keys).sum(dim=-1) * level.scaling  # (B, T, n, H)
        # The lowest finite number, not -inf: rows without any source must stay finite until they are discarded.
        scores = scores.masked_fill(~memory.present[:, None, :, None], torch.finfo(scores.dtype).min)
        source_weights = scores.softmax(dim=2) * memory.present[:, None, :, None]
        mixed = (self.drop(source_weights).unsqueeze(-1) * values).sum(dim=2)  # (B, T, H, d)
        update = self.drop(level.out_proj(mixed.reshape(batch, length, width)))
        return self.residual(hidden_states, update, memory), weights, source_weights.permute(0, 3, 1, 2)


class ProjectionCombiner(ParallelCombiner):
    """Attend to all sources in parallel and project the joined context vectors.

    Littell et al. 2019, https://doi.org/10.18653/v1/W19-5326, Eq. 5, with the b of the authors' code:
        c_i = MHA_i(q, E_i);  x + D(W [c_1; ...; c_n] + b);  post-norm: LN(x + D(W [c_1; ...; c_n] + b))

    with q = LN(x), or x with post-norm. W is stored as one matrix W_i per source, W [c_1; ...; c_n] = sum_i W_i c_i;
    the terms of absent sources are omitted, b is always added. Unlike in `parallel`, dropout is applied once, after the
    sum. The authors' code uses weight normalization for the rows of W; their weights can be converted by multiplying
    the norms into W.

    Args:
        config: As [`ParallelCombiner`].
        layer_idx: As [`Combiner`].
    """

    exact_for_one_source = False

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        for name in self.source_names:
            getattr(self, name).projection = nn.Linear(config.d_model, config.d_model, bias=False)
        self.projection: nn.Module = Bias(config.d_model)

    def combine(
        self, hidden_states: Tensor, keys_values: list[KeysValues], memory: SourceMemory, **kwargs: Any
    ) -> Combined:
        contexts, weights = self.contexts(hidden_states, keys_values, memory, **kwargs)
        named = zip(self.source_names, contexts, strict=True)
        projected = torch.stack([getattr(self, name).projection(context) for name, context in named]).sum(dim=0)
        update = self.drop(self.complete(projected, hidden_states))
        return self.residual(hidden_states, update, memory), weights, None

    def complete(self, projected: Tensor, hidden_states: Tensor) -> Tensor:
        """Compute the update from the projected context vectors.

        Args:
            projected: Sum of the projected context vectors.
            hidden_states: The decoder's hidden states.

        Returns:
            The update (B, T, D), before dropout.
        """
        return projected + self.projection()


class TanhConcatCombiner(ProjectionCombiner):
    """Attend to all sources in parallel, join context vectors and query, and map them to one vector through a tanh.

    Zoph & Knight 2016, https://doi.org/10.18653/v1/N16-1004, Eq. 14, with the b of the authors' code, and with the norm
    and residual of a Transformer's layer in place of the LSTM's:
        c_i = MHA_i(q, E_i);  x + D(tanh(W [q; c_1; ...; c_n] + b));  post-norm: LN(x + D(tanh(...)))

    with q = LN(x), or x with post-norm. W is stored as one matrix per source and one for q, as in `projection`.

    Args:
        config: As [`ParallelCombiner`].
        layer_idx: As [`Combiner`].
    """

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.projection = nn.Linear(config.d_model, config.d_model)
        self.add_query_norm()

    def complete(self, projected: Tensor, hidden_states: Tensor) -> Tensor:
        return torch.tanh(projected + self.projection(self.normalized_query(hidden_states)))


class MeanCombiner(ParallelCombiner):
    """Attend to all sources in parallel and average the context vectors.

    Huang et al. 2021 (TRICE), https://arxiv.org/abs/2105.14809, but with separate attention parameters for each source,
    which the paper shares; n is the number of sources that the example has:
        c_i = MHA_i(q, E_i);  x + D(1/n sum_i c_i);  post-norm: LN(x + D(1/n sum_i c_i))

    with q = LN(x), or x with post-norm.

    Args:
        config: As [`ParallelCombiner`].
        layer_idx: As [`Combiner`].
    """

    weighs_sources = True

    def combine(
        self, hidden_states: Tensor, keys_values: list[KeysValues], memory: SourceMemory, **kwargs: Any
    ) -> Combined:
        contexts, weights = self.contexts(hidden_states, keys_values, memory, **kwargs)
        present = memory.present[:, None, :, None]
        logits = self.logits(contexts)
        # The lowest finite number, not -inf: rows without any source must stay finite until they are discarded.
        shares = torch.where(present, logits, torch.finfo(logits.dtype).min).softmax(dim=2) * present
        update = self.drop((shares * torch.stack(contexts, dim=2)).sum(dim=2))
        heads = 1 if shares.shape[-1] == 1 else self.config.decoder_attention_heads
        source_weights = shares.unflatten(-1, (heads, -1)).mean(dim=-1).expand(-1, hidden_states.shape[1], -1, -1)
        return self.residual(hidden_states, update, memory), weights, source_weights.permute(0, 3, 1, 2)

    def logits(self, contexts: list[Tensor]) -> Tensor:
        """Compute the logits of the softmax over the sources.

        Args:
            contexts: One c_i (B, T, D) per source.

        Shape:
            Returns (1, 1, n, 1), or (B, T, n, D) for separate weights in each dimension.

        Returns:
            The logits, arbitrary where a source is absent.
        """
        return contexts[0].new_zeros(1, 1, len(contexts), 1)


class WeightedSumCombiner(MeanCombiner):
    """Attend to all sources in parallel and sum the context vectors, weighted by one learned scalar per source.

    `WeightedSumLayer` of Lingvo (Shen et al. 2019, https://arxiv.org/abs/1902.08295), with the softmax over the sources
    that the example has:
        c_i = MHA_i(q, E_i);  x + D(sum_i softmax(w)_i c_i);  post-norm: LN(x + D(sum_i softmax(w)_i c_i))

    with q = LN(x), or x with post-norm. All w_i are initialized to 0, with which the combiner is equal to `mean`.

    Args:
        config: As [`ParallelCombiner`].
        layer_idx: As [`Combiner`].
    """

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        for name in self.source_names:
            getattr(self, name).gate = Bias(1)

    def logits(self, contexts: list[Tensor]) -> Tensor:
        return torch.stack([getattr(self, name).gate() for name in self.source_names])[None, None]


class ContextGateCombiner(MeanCombiner):
    """Attend to all sources in parallel and sum the context vectors, weighted by gates in each dimension.

    Voita et al. 2018, https://doi.org/10.18653/v1/P18-1117, section 3, generalized from two sources to any number:
        c_i = MHA_i(q, E_i);  g_i = softmax over i of U_i c_i + b_i, for each dimension;  x + D(sum_i g_i * c_i)

    with q = LN(x), or x with post-norm, where the output is LN(x + ...). With two sources g_1 is the paper's gate
    sigmoid(W [c_1; c_2] + b), with W = [U_1, -U_2] and b = b_1 - b_2; with more sources, the ratio between any two of
    them is given by such a gate. The returned weights over the sources are the means of g over the dimensions of each
    head.

    Args:
        config: As [`ParallelCombiner`].
        layer_idx: As [`Combiner`].
    """

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        for name in self.source_names:
            getattr(self, name).gate = nn.Linear(config.d_model, config.d_model)

    def logits(self, contexts: list[Tensor]) -> Tensor:
        named = zip(self.source_names, contexts, strict=True)
        return torch.stack([getattr(self, name).gate(context) for name, context in named], dim=2)


class FlatCombiner(Combiner):
    """Attend to the joined states of all sources with one attention.

    Libovický et al. 2018, Eqs. 5-6, with the projections shared by all sources:
        x + D(MHA(LN(x), [E_1; ...; E_n]));  post-norm: LN(x + D(MHA(x, [E_1; ...; E_n])))

    Args:
        config: As [`Combiner`].
        layer_idx: As [`Combiner`].
    """

    joint_weights = True

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.joint = MultiHeadAttention(config, config.decoder_attention_heads)
        self.layer_norm = self.make_norm()

    def project(self, memory: SourceMemory) -> list[KeysValues]:
        return [self.project_real(self.joint, memory.states, memory)]

    def combine(
        self, hidden_states: Tensor, keys_values: list[KeysValues], memory: SourceMemory, **kwargs: Any
    ) -> Combined:
        query = self.layer_norm(hidden_states) if self.pre_norm else hidden_states
        context, weights = self.attend_with(self.joint, query, keys_values[0], memory, **kwargs)
        output = hidden_states + self.drop(context)
        if not self.pre_norm:
            output = self.layer_norm(output)
        return self.keep_present(memory, output, hidden_states), weights, None


class FlatNormedCombiner(FlatCombiner):
    """Attend to the joined states of all sources with one attention, after a separate layer norm for each source.

    The combiner `flat` with a layer norm over the states of each source in each decoder layer:
        x + D(MHA(LN(x), [LN_1(E_1); ...; LN_n(E_n)]));  post-norm: LN(x + D(MHA(x, [LN_1(E_1); ...; LN_n(E_n)])))

    The layer norms bring the states of different encoders (pictures, speech) to the same scale, so that no source
    dominates the attention. The bias of LN_i, initialized to 0, serves as an embedding of the source, like the segment
    embeddings of Huang et al. 2021 (TRICE), https://arxiv.org/abs/2105.14809.

    Args:
        config: As [`Combiner`].
        layer_idx: As [`Combiner`].
    """

    exact_for_one_source = False

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        for name in self.source_names:
            self.add_module(name, nn.ModuleDict({"states_layer_norm": self.make_norm()}))

    def project(self, memory: SourceMemory) -> list[KeysValues]:
        named = zip(self.source_names, memory.states.split(memory.lengths, dim=1), strict=True)
        normalized = [getattr(self, name)["states_layer_norm"](block) for name, block in named]
        return [self.project_real(self.joint, torch.cat(normalized, dim=1), memory)]


#: Combiner classes by their names in `MultiSourceConfig.combiner`.
COMBINERS: dict[str, type[Combiner]] = {
    "serial": SerialCombiner,
    "parallel": ParallelCombiner,
    "flat": FlatCombiner,
    "hierarchical": HierarchicalCombiner,
    "gated_serial": GatedSerialCombiner,
    "projection": ProjectionCombiner,
    "tanh_concat": TanhConcatCombiner,
    "mean": MeanCombiner,
    "weighted_sum": WeightedSumCombiner,
    "context_gate": ContextGateCombiner,
    "flat_normed": FlatNormedCombiner,
}


def build_combiner(config: MultiSourceConfig, layer_idx: int) -> Combiner:
    """Build the combiner of a decoder layer.

    Args:
        config: Reads `combiner` and the settings of the combiner.
        layer_idx: Index of the decoder layer, from 0.

    Returns:
        A new combiner.

    Raises:
        ValueError: If there is no combiner of that name; the message lists the names.
    """
    if config.combiner not in COMBINERS:
        raise ValueError(f"combiner must be one of {', '.join(map(repr, COMBINERS))}; got {config.combiner!r}.")
    return COMBINERS[config.combiner](config, layer_idx)
