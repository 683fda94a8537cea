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

#: Mask in the format of the configured attention implementation; None attends everywhere.
AttentionMask: TypeAlias = Tensor | BlockMask | None

# Shortest row of attention scores, in bytes, that PyTorch's softmax vectorizes on CPUs: one AVX-512 register. The
# softmax of a shorter row takes up to ten times as long as the softmax of the row padded to this length.
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
    """Compute scaled dot-product attention with basic tensor operations and return the attention weights, too.

    Vaswani et al. 2017, Eq. 1.

    Args:
        module: The attention module; only its `training` flag is read.
        query: Queries.
        key: Keys.
        value: Values.
        attention_mask: Added to the scores; None attends everywhere.
        scaling: Factor of the scores.
        dropout: Probability of zeroing a weight.
        present: Whether each example has a source to attend to; the weights of the other examples are zero. None: all
            examples have one.
        **kwargs: Ignored; arguments of other attention implementations.

    Shape:
        query (B, H, T, d); key, value (B, H, S, d); attention_mask (B, 1, T, S); present (B,) bool.
        Returns context (B, T, H, d) and weights (B, H, T, S).

    Returns:
        The context vectors and the weights.
    """
    if module.training:  # the matrix product would copy the keys anyway, and copying them transposed is slower
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
    """Cast states to autocast's data type once, instead of in each linear layer that reads them.

    Args:
        states: Hidden states.

    Returns:
        The cast states; the same tensor without autocast.
    """
    device = states.device.type
    if not torch.is_autocast_enabled(device) or states.dtype == torch.float64:
        return states
    return states.to(torch.get_autocast_dtype(device))


def version_of(mask: Tensor) -> int | None:
    """Return how often a mask was changed in place.

    Args:
        mask: The mask.

    Returns:
        The version; None for inference tensors, which have no version.
    """
    return None if mask.is_inference() else mask._version


def self_attention_cache(cache: Cache) -> Cache:
    """Return the self-attention part of a key/value cache.

    Args:
        cache: A cache, with or without a part for cross-attention.

    Returns:
        The cache of the decoder's self-attention.
    """
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def attention_implementation(config: PreTrainedConfig) -> str:
    """Return the name of the configured attention implementation.

    `config._attn_implementation` takes 5 microseconds to return the same name, because configurations look up every
    attribute in Python, twice for this property. A decoding step reads the name up to a hundred times.

    Args:
        config: The configuration.

    Returns:
        The name.
    """
    if torch.compiler.is_compiling():  # the compiler cannot trace `object.__getattribute__`
        return config._attn_implementation
    name: str = object.__getattribute__(config, "_attn_implementation_internal")
    return name


def _needs_cast(query: Tensor) -> bool:
    """Return whether a mask in the queries' data type could differ from the type of the scores or be traced."""
    return torch.is_grad_enabled() or torch.is_autocast_enabled(query.device.type) or torch.compiler.is_compiling()


def show_first_position(mask: Tensor) -> Tensor:
    """Unmask the first position of fully masked rows.

    Attention implementations treat fully masked rows differently (zeros, the mean of the padding, NaN); their results
    are discarded in any case.

    Args:
        mask: True = attend.

    Shape:
        (B, S) bool to (B, S) bool.

    Returns:
        The mask, with at least one True in each row.
    """
    first = torch.arange(mask.shape[1], device=mask.device) == 0
    return mask | (~mask.any(dim=1, keepdim=True) & first)


class SourceView(NamedTuple):
    """One source of a [`SourceMemory`].

    Args:
        states: (B, S_i, D).
        mask: (B, S_i) bool, True = real token.
        positions: (B, S_i): index of each real token, from 0, in the order of the text, even if the encoder reads the
            text in reverse.
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
        mask: True where a state is real, False at padding. An example lacks a source whose mask is all False.
        lengths: Padded length S_i of each source; 0 if no example of the batch has the source.
        expansion: Decoder rows (beams) per example, K: consecutive rows attend to one copy of the example's sources.

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
        self._present = torch.stack([mask.any(dim=1) for mask in self._masks], dim=1)  # (B, n): for each example
        self.present = self._present  # (B * K, n): for each decoder row
        if self.expansion > 1:
            self.present = self._present.repeat_interleave(self.expansion, dim=0)
        self.any_present = self.present.any(dim=1)

    def present_in_example(self, source: int | None = None) -> Tensor:
        """Return which examples have a source.

        Args:
            source: Index of the source; None: any source.

        Returns:
            (B,) bool.
        """
        return self._present.any(dim=1) if source is None else self._present[:, source]

    def packing(self, source: int | None = None) -> Packing | None:
        """Return the packing that removes padding, computed once for all layers.

        Args:
            source: Index of the source; None: all sources, joined.

        Returns:
            The packing; None if there is little or no padding.
        """
        if source not in self._packings:
            self._packings[source] = pack_if_padded(self.mask if source is None else self._masks[source])
        return self._packings[source]

    @cached_property
    def _complete(self) -> list[bool]:
        complete: list[bool] = self._present.all(dim=0).tolist()
        return complete

    def complete(self, source: int | None = None) -> bool:
        """Return whether all examples have a source.

        The first call reads tensor values, which waits for a GPU, and cannot be compiled.

        Args:
            source: Index of the source; None: any source.

        Returns:
            Whether all examples have the source; with None, whether any one source is present in all examples.
        """
        return any(self._complete) if source is None else self._complete[source]

    @cached_property
    def rows(self) -> list[Tensor | None]:
        """Indices of the examples that have each source, as returned by `examples_with`."""
        return [examples_with(present) for present in self._present.unbind(1)]

    @cached_property
    def views(self) -> list[SourceView]:
        """The single sources, in order, with the positions and lengths of their tokens."""
        blocks = zip(self.states.split(self.lengths, dim=1), self._masks, strict=True)
        return [SourceView(states, mask, mask.cumsum(dim=1) - 1, mask.sum(dim=1)) for states, mask in blocks]

    def with_states(self, states: Tensor) -> SourceMemory:
        """Replace the states, for example by states on another device or of another autograd graph.

        Args:
            states: The new states, of the same shape.

        Returns:
            A memory with these states; the same object if `states` is not a new tensor.
        """
        if states is self.states:
            return self
        if states.device != self.mask.device:
            return SourceMemory(states, self.mask.to(states.device), self.lengths, self.expansion)
        return replace(self, states=states)

    def select(self, kept: Tensor) -> SourceMemory:
        """Select examples.

        Args:
            kept: Indices of the examples.

        Shape:
            kept (B',).

        Returns:
            A memory of these examples.
        """
        kept = kept.to(self.mask.device)
        states = self.states.index_select(0, kept.to(self.states.device))
        return SourceMemory(states, self.mask.index_select(0, kept), self.lengths, self.expansion)

    def attention_mask(self, config: PreTrainedConfig, query: Tensor, source: int | None = None) -> AttentionMask:
        """Return the mask in the format of the configured attention implementation, computed once for all layers.

        The first position of an absent source is unmasked; combiners discard the result.

        Args:
            config: Configuration with the name of the attention implementation.
            query: Tensor whose first two dimensions are B * K and T; the mask is for K * T queries of each example.
            source: Index of the source; None: all sources, joined.

        Returns:
            None (attend everywhere), a tensor, or a mask object of the attention implementation.
        """
        key, made_for = (source, attention_implementation(config)), (query.shape[1], query.dtype)
        # The length is compared instead of hashed, because it is a symbolic integer during export.
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
            # A mask of two dimensions is a padding mask, for attention functions such as FlashAttention.
            if isinstance(made, Tensor) and made.dtype == torch.bool and made.dim() == 4 and not _needs_cast(query):
                # `scaled_dot_product_attention` would do this conversion in every layer and step.
                made = query.new_zeros(made.shape).masked_fill_(~made, -torch.inf)
            self._attention_masks[key] = (made_for, made)
        return self._attention_masks[key][1]


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, §3.2.2; Libovický et al. 2018, Eqs. 1-3).

    Calling the module computes self-attention. Cross-attention calls the two halves separately, because it caches the
    result of the first: `project` computes keys and values, `attend` computes attention from queries to them.

    Args:
        config: Reads `d_model` (D), `attention_bias`, `attention_dropout` and the attention implementation.
        num_heads: Number of heads, H.
        is_causal: Whether position t attends only to positions up to t.
        layer_idx: Index of the layer in the key/value cache.

    Shape:
        Calling it: hidden_states (B, T, D) to states (B, T, D) and weights (B, H, T, T') or None.
    """

    #: Linear layers that self-attention applies to the same states; `joined_layers` computes them in one product if
    #: `join_layers` has set it.
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
        self.is_causal = is_causal  # read by every attention implementation; a missing attribute means True
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
        """Project states to keys and values.

        Args:
            states: The states to attend to.
            packing: The packing of the states; None if they are not packed.

        Shape:
            (B, S, D), packed (N, D), to two of (B, H, S, d).

        Returns:
            Keys and values.
        """
        if packing is not None:
            return self.split_heads(packing.unpack(self.k_proj(states))), self.split_heads(
                packing.unpack(self.v_proj(states))
            )
        if states.shape[1] == 0 and not self.training:  # quantized layers raise errors or crash on empty input
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
        """Attend to keys and values.

        Args:
            hidden_states: The queries before their projection: K consecutive rows for each row of keys.
            keys: Keys from `project`.
            values: Values from `project`.
            mask: Mask in the format of the attention implementation; None attends everywhere.
            packing: The packing of the queries; None if they are not packed.
            queries: Output of `q_proj` for `hidden_states`; None: it is computed here.
            **kwargs: Passed on to the attention implementation.

        Shape:
            hidden_states, queries (B * K, T, D), packed (N, D); keys, values (B, H, S, d); mask for K * T queries.
            Returns (B * K, T, D), packed (N, D), and weights (B, H, K * T, S).

        Returns:
            Context vectors after the output projection, and the attention weights (None unless the attention
            implementation returns them).
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
        """Compute self-attention over the new and the cached positions.

        Args:
            hidden_states: States of the new positions, which are both queries and positions to attend to.
            mask: Mask in the format of the attention implementation.
            past_key_values: Key/value cache, to which the new keys and values are appended.
            packing: The packing of the states; None if they are not packed.
            **kwargs: Passed on to the attention implementation.

        Returns:
            States and attention weights, as returned by `attend`.
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
        """Compute queries, keys and values in one product; return None if the layers must be called separately."""
        joined = self.joined_layers
        found = joined([self.q_proj, self.k_proj, self.v_proj], hidden_states) if joined else None
        if found is None:
            return None
        queries, keys, values = found
        return queries, self.split_heads(keys), self.split_heads(values)
