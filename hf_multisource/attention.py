"""Multi-head attention, and the encoded sources that a decoder attends to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import Cache, EncoderDecoderCache, PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .dropout import dropout as drop
from .inference import JoinedLayers
from .packing import Packing, examples_with, pack_if_padded, packing_pays

#: What the configured attention implementation reads as its mask; None attends everywhere.
AttentionMask: TypeAlias = Tensor | BlockMask | None

# Length of a row of scores in bytes from which on PyTorch's softmax on CPUs computes whole vectors (AVX-512). The
# softmax of a shorter row takes up to ten times as long as that of a row that is padded to this length.
VECTOR_BYTES = 64


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    present: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention in plain arithmetic (Vaswani et al. 2017, Eq. 1), which also returns the weights.

    Args:
        module: The attention module; only its `training` flag is read.
        query: Queries.
        key: Keys.
        value: Values.
        attention_mask: Added to the scores; None attends everywhere.
        scaling: Factor of the scores.
        dropout: Probability of zeroing a weight.
        present: Examples that have anything to attend to; the others get weights of zero. None: all have.
        **kwargs: Ignored; what other implementations read.

    Shape:
        query (B, H, T, d); key, value (B, H, S, d); attention_mask (B, 1, T, S); present (B,) bool.
        Returns context (B, T, H, d) and weights (B, H, T, S).

    Returns:
        The context vectors and the weights.
    """
    if module.training:  # the product would copy keys with split heads anyway, but slowly, already transposed
        key = key.contiguous()
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    length, vector = scores.shape[-1], VECTOR_BYTES // scores.element_size()
    if packing_pays(scores, module.training) and 0 < length < vector:
        weights = nn.functional.pad(scores, (0, vector - length), value=-torch.inf).softmax(dim=-1)[..., :length]
    else:
        weights = scores.softmax(dim=-1)
    weights = drop(weights, dropout, module.training)
    if present is not None:
        weights = weights * present[:, None, None, None]
    return (weights @ value).transpose(1, 2).contiguous(), weights


def cast_for_products(states: Tensor) -> Tensor:
    """Cast states that enter several linear layers to autocast's type, once, not anew for each layer.

    Args:
        states: Any states.

    Returns:
        The states; the same tensor without autocast.
    """
    device = states.device.type
    if not torch.is_autocast_enabled(device) or states.dtype == torch.float64:
        return states
    return states.to(torch.get_autocast_dtype(device))


def self_attention_cache(cache: Cache) -> Cache:
    """The part of a cache that holds the decoder's own keys and values.

    Args:
        cache: A cache, with or without a part for cross-attention.

    Returns:
        That part.
    """
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def attention_implementation(config: PreTrainedConfig) -> str:
    """Return the name of the configured attention implementation.

    `config._attn_implementation` gives the same in 5 microseconds, because configurations look up every attribute in
    Python, twice for this property. A decoding step reads the name up to a hundred times.

    Args:
        config: The configuration.

    Returns:
        The name.
    """
    if torch.compiler.is_compiling():  # the compiler cannot follow `object.__getattribute__`, and reads nothing later
        return config._attn_implementation
    name: str = object.__getattribute__(config, "_attn_implementation_internal")
    return name


def _needs_cast(query: Tensor) -> bool:
    """Whether a mask in the type of the queries could be of another type than the products, or be part of a graph."""
    return torch.is_grad_enabled() or torch.is_autocast_enabled(query.device.type) or torch.compiler.is_compiling()


def show_first_position(mask: Tensor) -> Tensor:
    """Let a row in which nothing may be attended to see its first position.

    Implementations disagree about such rows (zeros, the mean of the padding, NaN); what comes of them is discarded.

    Args:
        mask: True = attend.

    Shape:
        (B, S) bool to (B, S) bool.

    Returns:
        The mask, without empty rows.
    """
    first = torch.arange(mask.shape[1], device=mask.device) == 0
    return mask | (~mask.any(dim=1, keepdim=True) & first)


class SourceView(NamedTuple):
    """One source of a [`SourceMemory`].

    Args:
        states: (B, S_i, D).
        mask: (B, S_i) bool, True = real token.
        positions: (B, S_i): number of each real token, from 0, in the order of the text, however it was read.
        lengths: (B,): number of real tokens.
    """

    states: Tensor
    mask: Tensor
    positions: Tensor
    lengths: Tensor


@dataclass
class SourceMemory:
    """All encoded sources of a batch, joined on the time axis.

    Args:
        states: Encoder states of source 0, then source 1, ...
        mask: True where a state is real, False at padding. A source whose row is all False is absent there.
        lengths: Padded length S_i of each source; 0 if the whole batch lacks it.
        expansion: Rows of the decoder per example, K: an example's beams, in turn, look at one copy of its sources.

    Shape:
        states (B, S, D), mask (B, S) bool, lengths n ints with sum S.

    Raises:
        ValueError: If shapes and lengths disagree; the message gives them.
    """

    states: Tensor
    mask: Tensor
    lengths: tuple[int, ...]
    expansion: int = 1
    _attention_masks: dict[tuple[int | None, str | None], tuple[tuple[int, torch.dtype], AttentionMask]] = field(
        default_factory=dict, repr=False
    )
    _packings: dict[int | None, Packing | None] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.mask.dtype != torch.bool:
            raise ValueError(f"mask must be boolean, True = real token; got {self.mask.dtype}.")
        if self.states.shape[1] != sum(self.lengths) or self.mask.shape != self.states.shape[:2]:
            raise ValueError(
                f"states {tuple(self.states.shape)}, mask {tuple(self.mask.shape)} and source lengths {self.lengths} "
                "must agree: (B, S, D), (B, S) and n numbers that sum to S."
            )
        self._masks = self.mask.split(self.lengths, dim=1)
        self._present = torch.stack([mask.any(dim=1) for mask in self._masks], dim=1)  # (B, n)
        self.present = self._present  # (B * K, n): of each row of the decoder
        if self.expansion > 1:
            self.present = self._present.repeat_interleave(self.expansion, dim=0)
        self.any_present = self.present.any(dim=1)

    def present_in_example(self, source: int | None = None) -> Tensor:
        """Which examples have anything to attend to.

        Args:
            source: Index of the source; None: any source.

        Returns:
            (B,) bool.
        """
        return self._present.any(dim=1) if source is None else self._present[:, source]

    def packing(self, source: int | None = None) -> Packing | None:
        """The real positions, found once for all layers.

        Args:
            source: Index of the source; None: of all sources, joined.

        Returns:
            Their packing; None if there is little or no padding.
        """
        if source not in self._packings:
            self._packings[source] = pack_if_padded(self.mask if source is None else self._masks[source])
        return self._packings[source]

    @cached_property
    def _complete(self) -> list[bool]:
        return [bool(complete) for complete in self._present.all(dim=0)]

    def complete(self, source: int | None = None) -> bool:
        """Return whether all examples have something to attend to; for `packing_pays`, as it reads values.

        Args:
            source: Index of the source; None: whether a source is there that all examples have.

        Returns:
            Whether they do.
        """
        return any(self._complete) if source is None else self._complete[source]

    @cached_property
    def rows(self) -> list[Tensor | None]:
        """The examples that have a source, for each source, as `examples_with` gives them."""
        return [examples_with(present) for present in self._present.unbind(1)]

    @cached_property
    def views(self) -> list[SourceView]:
        """The sources one by one, in order, with their tokens counted."""
        blocks = zip(self.states.split(self.lengths, dim=1), self._masks, strict=True)
        return [SourceView(states, mask, mask.cumsum(dim=1) - 1, mask.sum(dim=1)) for states, mask in blocks]

    def with_states(self, states: Tensor) -> SourceMemory:
        """Exchange the states, which may lie on another device or be part of another autograd graph.

        Args:
            states: The states, of the same shape.

        Returns:
            A memory with these states; the same one if it has them already.
        """
        if states is self.states:
            return self
        if states.device != self.mask.device:
            return SourceMemory(states, self.mask.to(states.device), self.lengths, self.expansion)
        return replace(self, states=states)

    def select(self, kept: Tensor) -> SourceMemory:
        """Choose examples.

        Args:
            kept: Their numbers.

        Shape:
            kept (B',).

        Returns:
            A memory of these examples.
        """
        kept = kept.to(self.mask.device)
        states = self.states.index_select(0, kept.to(self.states.device))
        return SourceMemory(states, self.mask.index_select(0, kept), self.lengths, self.expansion)

    def attention_mask(self, config: PreTrainedConfig, query: Tensor, source: int | None = None) -> AttentionMask:
        """The mask in the form that the configured attention implementation wants, made once for all layers.

        An example without the source sees its first position, which a combiner discards.

        Args:
            config: Names the attention implementation.
            query: Anything whose first two dimensions are B * K and T; the mask is for K * T queries of each example.
            source: Index of the source; None for all sources joined.

        Returns:
            None (attend everywhere), a tensor, or the implementation's own mask object.
        """
        key, made_for = (source, attention_implementation(config)), (query.shape[1], query.dtype)
        # The length is compared, not hashed: in export it is a symbol.
        if key not in self._attention_masks or self._attention_masks[key][0] != made_for:
            mask = self.mask if source is None else self._masks[source]
            mask = show_first_position(mask)
            query = query.unflatten(0, (-1, self.expansion)).flatten(1, 2)
            made = create_bidirectional_mask(
                config=config,
                inputs_embeds=query,
                attention_mask=mask,
                encoder_hidden_states=query.new_empty(mask.shape[0], mask.shape[1], 0),
            )
            if isinstance(made, Tensor) and made.dtype == torch.bool and not _needs_cast(query):
                # What `scaled_dot_product_attention` would make of it in every layer and step.
                made = query.new_zeros(made.shape).masked_fill_(~made, -torch.inf)
            self._attention_masks[key] = (made_for, made)
        return self._attention_masks[key][1]


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, §3.2.2; Libovický et al. 2018, Eqs. 1-3).

    The two halves are public because cross-attention stores what the first gives: `project` makes keys and values from
    states, `attend` lets queries look at them. Calling the module is self-attention.

    Args:
        config: Reads `d_model` (D), `attention_bias`, `attention_dropout` and the attention implementation.
        num_heads: H.
        is_causal: Whether position t sees only positions up to t.
        layer_idx: Slot of the cache.

    Shape:
        Calling it: hidden_states (B, T, D) to states (B, T, D) and weights (B, H, T, T') or None.
    """

    #: Layers that self-attention calls with the same states, and what computes them as one; see `join_layers`.
    same_input = ("q_proj", "k_proj", "v_proj")
    joined_layers: JoinedLayers | None = None

    def __init__(
        self, config: PreTrainedConfig, num_heads: int, *, is_causal: bool = False, layer_idx: int = 0
    ) -> None:
        super().__init__()
        self.config = config
        self.num_heads = num_heads
        self.head_dim = config.d_model // num_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = is_causal  # every implementation reads it; absent would mean True
        self.layer_idx = layer_idx
        self.q_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.out_proj = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)

    def split_heads(self, states: Tensor) -> Tensor:
        """Split the last dimension into heads.

        Args:
            states: Projected states.

        Shape:
            (B, T, D) to (B, H, T, d).

        Returns:
            A view.
        """
        return states.view(*states.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def project(self, states: Tensor, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
        """Make keys and values.

        Args:
            states: What will be attended to.
            packing: Where packed states belong; None: they are not packed.

        Shape:
            (B, S, D), packed (N, D), to two of (B, H, S, d).

        Returns:
            Keys and values.
        """
        if packing is not None:
            return self.split_heads(packing.unpack(self.k_proj(states))), self.split_heads(
                packing.unpack(self.v_proj(states))
            )
        if states.shape[1] == 0 and not self.training:  # quantised maps fail, or crash, where nothing comes in
            nothing = self.split_heads(states)
            return nothing, nothing
        return self.split_heads(self.k_proj(states)), self.split_heads(self.v_proj(states))

    def attend(
        self,
        hidden_states: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: AttentionMask,
        packing: Packing | None = None,
        queries: Tensor | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None]:
        """Look at keys and values.

        Args:
            hidden_states: The queries before their projection: K rows, one after the other, for each row of keys.
            keys: From `project`.
            values: From `project`.
            mask: In the form of the attention implementation; None attends everywhere.
            packing: Where packed queries belong; None: they are not packed.
            queries: What `q_proj` makes of `hidden_states`, where it is known; None: it is computed.
            **kwargs: Passed on to the attention implementation.

        Shape:
            hidden_states, queries (B * K, T, D), packed (N, D); keys, values (B, H, S, d); mask for K * T queries.
            Returns (B * K, T, D), packed (N, D), and weights (B, H, K * T, S).

        Returns:
            Context vectors after the output projection, and the weights (None unless the implementation gives them).
        """
        name = attention_implementation(self.config)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
        if queries is None:
            queries = self.q_proj(hidden_states)
        if packing:
            queries = packing.unpack(queries)
        queries = queries.view(keys.shape[0], -1, self.num_heads, self.head_dim).transpose(1, 2)
        context, weights = attention(
            self,
            queries,
            keys,
            values,
            mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        context = packing.pack(context.flatten(2)) if packing else context.reshape(hidden_states.shape)
        return self.out_proj(context), weights

    def forward(
        self,
        hidden_states: Tensor,
        mask: AttentionMask = None,
        past_key_values: Cache | None = None,
        packing: Packing | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None]:
        """Self-attention, over the cached positions too.

        Args:
            hidden_states: Queries, and the new positions to attend to.
            mask: In the form of the attention implementation.
            past_key_values: Receives the new keys and values and gives back all of them.
            packing: Where packed states belong; None: they are not packed.
            **kwargs: Passed on to the attention implementation.

        Returns:
            States and weights as `attend` gives them.
        """
        hidden_states = cast_for_products(hidden_states)
        projected = None if self.joined_layers is None or packing else self._project_jointly(hidden_states)
        if projected is None:
            queries, (keys, values) = None, self.project(hidden_states, packing)
        else:
            queries, keys, values = projected
        if past_key_values is not None:
            keys, values = self_attention_cache(past_key_values).update(keys, values, self.layer_idx)
        return self.attend(hidden_states, keys, values, mask, packing, queries, **kwargs)

    def _project_jointly(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Make queries, keys and values in one product; None if the layers must be called one by one."""
        joined = self.joined_layers
        found = joined([self.q_proj, self.k_proj, self.v_proj], hidden_states) if joined else None
        if found is None:
            return None
        queries, keys, values = found
        return queries, self.split_heads(keys), self.split_heads(values)
