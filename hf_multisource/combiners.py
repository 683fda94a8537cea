"""Ways of attending to several sources: each combiner is a decoder layer's whole cross-attention sub-layer.

A combiner owns layer norm, attentions, dropout and residual: (B, T, D) in, (B, T, D) out. With D() dropout, LN layer
norm, E_i the states of source i and MHA_i attention with weights of its own, pre-norm:

    serial        for i: x = x + D(MHA_i(LN_i(x), E_i))
    parallel      q = LN(x);  x + sum_i D(MHA_i(q, E_i))
    flat          x + D(MHA(LN(x), [E_1; ...; E_n]))
    hierarchical  q = LN(x);  c_i = D(MHA_i(q, E_i));  x + D(MHA_h(q, [c_1, ..., c_n]))

(Libovický, Helcl & Mareček 2018, https://doi.org/10.18653/v1/W18-6326; norm, dropout and residual as in the authors'
code.) From other papers, each named in its class; from here on q = LN(x) and c_i = MHA_i(q, E_i):

    projection    x + D(W [c_1; ...; c_n] + b)
    mean          x + D(1/n sum_i c_i)
    weighted_sum  x + D(sum_i softmax(w)_i c_i), one number w_i per source
    context_gate  x + D(sum_i softmax(U c + b)_i * c_i), the softmax over the sources, for each dimension
    tanh_concat   x + D(tanh(W [q; c_1; ...; c_n] + b))
    gated_serial  serial, but for gated sources x = x + tanh(a_i) D(MHA_i(LN_i(x), E_i)), where a_i begins at 0
    flat_normed   x + D(MHA(q, [LN_1(E_1); ...; LN_n(E_n)]))

With post-norm the norm moves from the query to the sum: LN(x + ...).

A source that an example lacks is left out of its computation altogether: the example comes out as if there were no such
source.
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
    """Base of all combiners: projects keys and values, caches them, and hands one pair per source to `combine`.

    Args:
        config: Reads `sources`, `d_model` (D), `decoder_attention_heads` (H), `norm_position`, `dropout`.
        layer_idx: Decoder layer, counted from 0; also the cache slot.

    Shape:
        hidden_states (B, T, D), after self-attention; memory.states (B, S, D).
        Returns states (B, T, D), weights (B, H, T, S) and source weights (B, H_h, T, n); the last two may be None.
        With `memory.expansion` K, the B of everything but the memory is K times as large: the rows of an example, in
        turn, share its keys and values.

    Raises:
        ValueError: If a source has the name of an attribute.
    """

    #: The order of the sources matters.
    order_sensitive: ClassVar[bool] = False
    #: With one source it is an ordinary cross-attention sub-layer.
    exact_for_one_source: ClassVar[bool] = True
    #: One softmax runs over the states of all sources.
    joint_weights: ClassVar[bool] = False
    #: It gives weights over the sources.
    weighs_sources: ClassVar[bool] = False

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.source_names = config.source_names
        self.pre_norm = config.norm_position == "pre"
        for name in self.source_names:  # `add_attentions` makes children of these names
            if hasattr(self, name):
                raise ValueError(f"source name {name!r} is an attribute of combiners; choose another.")

    def add_attentions(self, *, layer_norm: bool) -> None:
        """Give every source an attention of its own, as a child with the source's name.

        Args:
            layer_norm: Whether each gets a layer norm of its own, too.
        """
        for name in self.source_names:
            attention = MultiHeadAttention(self.config, self.config.decoder_attention_heads)
            if layer_norm:
                attention.layer_norm = self.make_norm()
            self.add_module(name, attention)

    def make_norm(self) -> nn.LayerNorm:
        """Make a layer norm over D.

        Returns:
            The layer norm.
        """
        return nn.LayerNorm(self.config.d_model, eps=self.config.layer_norm_eps)

    def drop(self, states: Tensor) -> Tensor:
        """Residual dropout, D().

        Args:
            states: Any states.

        Returns:
            The states, some zeroed in training.
        """
        return dropout(states, self.config.dropout, True) if self.training else states

    def project(self, memory: SourceMemory) -> list[KeysValues]:
        """Make keys and values: one pair per source, or one in all with `joint_weights`.

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
        """Make keys and values of real states; in training on a CPU, none of padding.

        Args:
            attention: The attention.
            states: The states, with padding.
            memory: Tells which are real.
            source: Index of the source; None: of all sources, joined.

        Returns:
            Two of (B, H, S, d); what stands at padding is never attended to.
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
        """Attend to one source with its own attention.

        Args:
            source: Its index.
            query: Normalised as the strategy wants it.
            keys_values: Its keys and values.
            memory: The encoded sources, for the mask.
            **kwargs: Passed on to the attention implementation.

        Shape:
            query (B, T, D). Returns (B, T, D), and weights (B, H, T, S_i), zero where the source is absent.

        Returns:
            Context vectors (meaningless where the source is absent: `where_present` drops them) and weights.
        """
        attention: MultiHeadAttention = getattr(self, self.source_names[source])
        if memory.lengths[source] == 0:  # nothing to attend to, and not every kernel can
            eager = attention_implementation(self.config) == "eager"
            weights = query.new_zeros(query.shape[0], attention.num_heads, query.shape[1], 0) if eager else None
            return torch.zeros_like(query), weights
        return self.look(attention, query, keys_values, memory, source, **kwargs)

    def look(
        self,
        attention: MultiHeadAttention,
        query: Tensor,
        keys_values: KeysValues,
        memory: SourceMemory,
        source: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with any attention; weights are zero for examples in which there is nothing to attend to.

        Rows that share an example's sources are folded: to the attention they are one query that is K times as long.

        Args:
            attention: The attention.
            query: Normalised as the strategy wants it.
            keys_values: Its keys and values.
            memory: The encoded sources, for the mask.
            source: Index of the one source that the keys are of; None: of all sources, joined.
            **kwargs: Passed on to the attention implementation.

        Shape:
            query (B, T, D). Returns (B, T, D) and weights (B, H, T, S).

        Returns:
            Context vectors, meaningless where nothing is present, and weights (None unless the implementation gives
            them): the very tensor of the computation, so that it can keep its gradient.
        """
        pays = packing_pays(query, self.training)
        complete = pays and memory.complete(source)
        # Only eager attention gives weights; other implementations may not know the keyword.
        if attention_implementation(self.config) == "eager" and not complete:
            kwargs["present"] = memory.present_in_example(source)
        expansion, length = memory.expansion, query.shape[1]
        mask = memory.attention_mask(self.config, query, source)
        if source is not None and expansion == 1 and isinstance(mask, Tensor) and pays:
            rows = memory.rows[source]
            if rows is not None:  # the others would be thrown away
                return self._look_from(rows, attention, query, keys_values, mask, **kwargs)
        context, weights = attention.attend(query, *keys_values, mask, **kwargs)
        if expansion > 1 and weights is not None:
            weights = weights.unflatten(2, (expansion, length)).transpose(1, 2).flatten(0, 1)
        return context, weights

    @staticmethod
    def _look_from(
        rows: Tensor, attention: MultiHeadAttention, query: Tensor, keys_values: KeysValues, mask: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from some rows only; zeros for the others."""
        if "present" in kwargs:
            kwargs["present"] = kwargs["present"].index_select(0, rows)
        keys, values = (states.index_select(0, rows) for states in keys_values)
        context, weights = attention.attend(query.index_select(0, rows), keys, values, mask[rows], **kwargs)
        if weights is not None:
            weights = weights.new_zeros(len(query), *weights.shape[1:]).index_copy_(0, rows, weights)
        return context.new_zeros(query.shape).index_copy_(0, rows, context), weights

    def keep_present(self, memory: SourceMemory, new: Tensor, old: Tensor | None, source: int | None = None) -> Tensor:
        """Apply `where_present`; on a CPU, where looking costs nothing, only if an example lacks the source.

        Args:
            memory: The encoded sources.
            new: States of the examples that have the source.
            old: States of the other examples; None: zeros.
            source: Index of the source; None: any source.

        Shape:
            new, old (B, T, D).

        Returns:
            The chosen states.
        """
        if new.is_cpu and not torch.compiler.is_compiling() and memory.complete(source):
            return new
        present = memory.any_present if source is None else memory.present[:, source]
        return where_present(present, new, torch.zeros_like(new) if old is None else old)

    def forward(
        self, hidden_states: Tensor, memory: SourceMemory, past_key_values: Cache | None = None, **kwargs: Any
    ) -> Combined:
        """Let the decoder's states look at the sources.

        Args:
            hidden_states: The decoder's stream.
            memory: The encoded sources. With a filled cache only its mask and lengths are read.
            past_key_values: Keeps keys and values of all sources, joined on time, in one slot a layer.
            **kwargs: Passed on to the attention implementation.

        Returns:
            The new stream, weights over all states, weights over the sources.
        """
        return self.combine(hidden_states, self._keys_values(memory, past_key_values), memory, **kwargs)

    @abstractmethod
    def combine(
        self, hidden_states: Tensor, keys_values: list[KeysValues], memory: SourceMemory, **kwargs: Any
    ) -> Combined:
        """The strategy itself.

        Args:
            hidden_states: (B, T, D).
            keys_values: What `project` gave.
            memory: The encoded sources.
            **kwargs: Passed on to the attention implementation.

        Returns:
            As `forward`.
        """


def where_present(present: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Take `new` for the examples that have the source, `old` for the others; no gradient flows into what is not taken.

    Args:
        present: One truth value per example.
        new: States.
        old: States.

    Shape:
        present (B,); new, old (B, T, D).

    Returns:
        The chosen states.
    """
    return torch.where(present[:, None, None], new, old)


def join(weights: list[Tensor | None]) -> Tensor | None:
    """Join the weights over each source on the key axis, in the order of the sources.

    Args:
        weights: (B, H, T, S_i) each, or None if the attention implementation gives none.

    Returns:
        (B, H, T, S), or None.
    """
    given = [w for w in weights if w is not None]
    return torch.cat(given, dim=-1) if len(given) > 1 else next(iter(given), None)


class SerialCombiner(Combiner):
    """Attend to each source in turn, with norm, dropout and residual after each.

    Libovický et al. 2018, §3 and Fig. 1a (no numbered equation):
        x_i = x_{i-1} + D(MHA_i(LN_i(x_{i-1}), E_i));  post-norm: x_i = LN_i(x_{i-1} + D(MHA_i(x_{i-1}, E_i)))

    Args:
        config: As [`Combiner`]; the order of `sources` is the order of attention.
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
            output, weights = self.take_turn(i, hidden_states, keys_values[i], memory, **kwargs)
            hidden_states = self.keep_present(memory, output, hidden_states, i)
            all_weights.append(weights)
        return hidden_states, join(all_weights), None

    def take_turn(
        self, source: int, hidden_states: Tensor, keys_values: KeysValues, memory: SourceMemory, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to one source, with norm, dropout and residual.

        Args:
            source: Its index.
            hidden_states: (B, T, D).
            keys_values: Its keys and values.
            memory: The encoded sources.
            **kwargs: Passed on to the attention implementation.

        Returns:
            The new stream (B, T, D), meaningless where the source is absent, and weights as `attend` gives them.
        """
        norm = getattr(self, self.source_names[source]).layer_norm
        query = norm(hidden_states) if self.pre_norm else hidden_states
        context, weights = self.attend(source, query, keys_values, memory, **kwargs)
        output = hidden_states + self.drop(context)
        return output if self.pre_norm else norm(output), weights


class GatedSerialCombiner(SerialCombiner):
    """Attend to each source in turn; gated sources begin without any effect, and learn to have one.

    Alayrac et al. 2022 (Flamingo), https://arxiv.org/abs/2204.14198, section 2.2, without its gated feed-forward layer:
        x_i = x_{i-1} + tanh(a_i) D(MHA_i(LN_i(x_{i-1}), E_i)), a_i a number that begins at 0

    for gated sources, with this pre-norm whatever `norm_position` says, so that at a_i = 0 nothing changes: a source
    can be added to a trained model without changing its output. The others are as in `serial`.

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
        """As [`nn.Module.train`]; warns where training cannot open a gate, as with LoRA adapters on all linear layers.

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

    def take_turn(
        self, source: int, hidden_states: Tensor, keys_values: KeysValues, memory: SourceMemory, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        attention = getattr(self, self.source_names[source])
        if not hasattr(attention, "gate"):
            return super().take_turn(source, hidden_states, keys_values, memory, **kwargs)
        context, weights = self.attend(source, attention.layer_norm(hidden_states), keys_values, memory, **kwargs)
        return hidden_states + attention.gate().tanh() * self.drop(context), weights


class ParallelCombiner(Combiner):
    """Attend to all sources at once and add up the context vectors.

    Libovický et al. 2018, Eq. 4:
        q = LN(x);  x + sum_i D(MHA_i(q, E_i));  post-norm: LN(x + sum_i D(MHA_i(x, E_i)))

    Args:
        config: As [`Combiner`], and `query_norm`: LN is one for all sources or one for each.
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
        """Attend to every source with a query of the same states.

        Args:
            hidden_states: (B, T, D).
            keys_values: What `project` gave.
            memory: The encoded sources.
            **kwargs: Passed on to the attention implementation.

        Returns:
            One c_i (B, T, D) per source, zero where it is absent, and the joined weights.
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
        """Make the layer norm of `normalised_query`, unless there is the one that all sources share."""
        if not self.shared_norm:
            self.layer_norm = self.make_norm()

    def normalised_query(self, hidden_states: Tensor) -> Tensor:
        """The query itself, for what looks at it beside the attentions to the sources.

        Args:
            hidden_states: The stream.

        Returns:
            LN(x), or x with post-norm.
        """
        return self.layer_norm(hidden_states) if self.pre_norm else hidden_states

    def residual(self, hidden_states: Tensor, update: Tensor, memory: SourceMemory) -> Tensor:
        """Add the update to the stream; an example without any source keeps its stream.

        Args:
            hidden_states: The stream.
            update: What the sources say.
            memory: The encoded sources.

        Returns:
            The new stream (B, T, D).
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
    with q = LN(x), or x with post-norm. The second attention leaves absent sources out (the authors' code knows none),
    and as in that code its dropout is the residual dropout.

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
        query = self.normalised_query(hidden_states)
        level = self.hierarchy
        batch, length, width = hidden_states.shape
        heads = (level.num_heads, level.head_dim)
        dropped = [self.drop(context) for context in contexts]
        stacked = torch.stack(dropped, dim=2).flatten(1, 2)  # (B, T * n, D): int8 layers take no fourth dimension
        levels = (batch, length, len(contexts), *heads)
        queries = level.q_proj(query).view(batch, length, 1, *heads)
        keys = level.k_proj(stacked).view(levels)  # (B, T, n, H, d)
        values = level.v_proj(stacked).view(levels)
        scores = (queries * keys).sum(dim=-1) * level.scaling  # (B, T, n, H)
        # The lowest finite number, not -inf: a row without any source must stay finite until it is dropped.
        scores = scores.masked_fill(~memory.present[:, None, :, None], torch.finfo(scores.dtype).min)
        source_weights = scores.softmax(dim=2) * memory.present[:, None, :, None]
        mixed = (self.drop(source_weights).unsqueeze(-1) * values).sum(dim=2)  # (B, T, H, d)
        update = self.drop(level.out_proj(mixed.reshape(batch, length, width)))
        return self.residual(hidden_states, update, memory), weights, source_weights.permute(0, 3, 1, 2)


class ProjectionCombiner(ParallelCombiner):
    """Attend to all sources at once and project the joined context vectors.

    Littell et al. 2019, https://doi.org/10.18653/v1/W19-5326, Eq. 5, with the b of the authors' code:
        c_i = MHA_i(q, E_i);  x + D(W [c_1; ...; c_n] + b);  post-norm: LN(x + D(W [c_1; ...; c_n] + b))

    with q = LN(x), or x with post-norm. W is kept as one matrix W_i per source, W [c_1; ...; c_n] = sum_i W_i c_i, and
    of an absent source it is left out, b stays. Unlike `parallel` it drops once, after the sum. The authors' code
    normalises W's rows (weight normalisation), which saved weights can be multiplied out with.

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
        """What becomes of the projected context vectors.

        Args:
            projected: Their sum.
            hidden_states: The stream.

        Returns:
            z (B, T, D).
        """
        return projected + self.projection()


class TanhConcatCombiner(ProjectionCombiner):
    """Attend to all sources at once, join the context vectors with the query, and map them to one through a tanh.

    Zoph & Knight 2016, https://doi.org/10.18653/v1/N16-1004, Eq. 14, with the b of the authors' code, and with the norm
    and residual of a Transformer's layer in place of the LSTM's:
        c_i = MHA_i(q, E_i);  x + D(tanh(W [q; c_1; ...; c_n] + b));  post-norm: LN(x + D(tanh(...)))

    with q = LN(x), or x with post-norm. W is kept as one matrix per source and one for q, as in `projection`.

    Args:
        config: As [`ParallelCombiner`].
        layer_idx: As [`Combiner`].
    """

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.projection = nn.Linear(config.d_model, config.d_model)
        self.add_query_norm()

    def complete(self, projected: Tensor, hidden_states: Tensor) -> Tensor:
        return torch.tanh(projected + self.projection(self.normalised_query(hidden_states)))


class MeanCombiner(ParallelCombiner):
    """Attend to all sources at once and take the mean of the context vectors.

    Huang et al. 2021 (TRICE), https://arxiv.org/abs/2105.14809, with weights of its own for each source, which are one
    there; n counts the sources that the example has:
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
        # The lowest finite number, not -inf: a row without any source must stay finite until it is dropped.
        shares = torch.where(present, logits, torch.finfo(logits.dtype).min).softmax(dim=2) * present
        update = self.drop((shares * torch.stack(contexts, dim=2)).sum(dim=2))
        heads = 1 if shares.shape[-1] == 1 else self.config.decoder_attention_heads
        source_weights = shares.unflatten(-1, (heads, -1)).mean(dim=-1).expand(-1, hidden_states.shape[1], -1, -1)
        return self.residual(hidden_states, update, memory), weights, source_weights.permute(0, 3, 1, 2)

    def logits(self, contexts: list[Tensor]) -> Tensor:
        """What the softmax over the sources makes weights of.

        Args:
            contexts: One c_i (B, T, D) per source.

        Shape:
            Returns (1, 1, n, 1), or (B, T, n, D) for a weight of each dimension.

        Returns:
            The logits, meaningless where a source is absent.
        """
        return contexts[0].new_zeros(1, 1, len(contexts), 1)


class WeightedSumCombiner(MeanCombiner):
    """Attend to all sources at once and sum the context vectors, weighted by one learnt number for each source.

    `WeightedSumLayer` of Lingvo (Shen et al. 2019, https://arxiv.org/abs/1902.08295), the softmax over the sources that
    the example has:
        c_i = MHA_i(q, E_i);  x + D(sum_i softmax(w)_i c_i);  post-norm: LN(x + D(sum_i softmax(w)_i c_i))

    with q = LN(x), or x with post-norm. All w_i begin at 0, and so does `mean`.

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
    """Attend to all sources at once and let gates choose between the context vectors, in each dimension.

    Voita et al. 2018, https://doi.org/10.18653/v1/P18-1117, section 3, from two sources to any number:
        c_i = MHA_i(q, E_i);  g_i = softmax over i of U_i c_i + b_i, for each dimension;  x + D(sum_i g_i * c_i)

    with q = LN(x), or x with post-norm, where it is LN(x + ...). With two sources g_1 is the paper's gate
    sigmoid(W [c_1; c_2] + b), W = [U_1, -U_2] and b = b_1 - b_2; with more, any pair of them shares by such a gate. The
    weights over the sources are the means of g over the dimensions of each head.

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
    """Attend to the states of all sources in one attention.

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
        context, weights = self.look(self.joint, query, keys_values[0], memory, **kwargs)
        output = hidden_states + self.drop(context)
        if not self.pre_norm:
            output = self.layer_norm(output)
        return self.keep_present(memory, output, hidden_states), weights, None


class FlatNormedCombiner(FlatCombiner):
    """Attend to the states of all sources in one attention, each source's states normalised and marked as its own.

    `flat`, with a layer norm over the states of each source, in each decoder layer:
        x + D(MHA(LN(x), [LN_1(E_1); ...; LN_n(E_n)]));  post-norm: LN(x + D(MHA(x, [LN_1(E_1); ...; LN_n(E_n)])))

    Encoders whose states differ in scale (pictures, speech) no longer outshout one another, and the bias of LN_i, which
    begins at 0, is an embedding of the source, like the segment embeddings of Huang et al. 2021 (TRICE),
    https://arxiv.org/abs/2105.14809.

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
        normalised = [getattr(self, name)["states_layer_norm"](block) for name, block in named]
        return [self.project_real(self.joint, torch.cat(normalised, dim=1), memory)]


#: The strategies by the name that `MultiSourceConfig.combiner` gives them.
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
    """Build the combiner that the configuration names.

    Args:
        config: Reads `combiner` and what the combiner reads.
        layer_idx: Decoder layer, counted from 0.

    Returns:
        A new combiner.

    Raises:
        ValueError: If there is no combiner of that name; the message lists the names.
    """
    if config.combiner not in COMBINERS:
        raise ValueError(f"combiner must be one of {', '.join(map(repr, COMBINERS))}; got {config.combiner!r}.")
    return COMBINERS[config.combiner](config, layer_idx)
