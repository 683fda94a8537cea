"""Self-attention key/value cache for generation; reordering the beams copies no keys or values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

POSITIONS = 32  # positions allocated at first, so that short texts need no second allocation


class BeamLayer(CacheLayerMixin):
    """Keys and values of one decoder layer; all beams of an example share one row, ordered by position, then beam.

    Args:
        num_beams: Beams per example, K.
        max_positions: Expected maximum number of positions, which limits how far ahead memory is allocated. The layer
            still grows if more positions are appended.
    """

    is_sliding = False

    keys: Tensor
    values: Tensor

    def __init__(self, num_beams: int, max_positions: int) -> None:
        super().__init__()
        self.num_beams = num_beams
        self.max_positions = max_positions
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Initialize data type, device and empty tensors from the first keys and values.

        Args:
            key_states: The keys.
            value_states: The values.

        Shape:
            (B * K, H, T, d).
        """
        rows, heads, _, width = key_states.shape
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_empty(rows // self.num_beams, heads, 0, width)
        self.values = value_states.new_empty(self.keys.shape)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append new keys and values, and return the keys and values to attend to.

        Args:
            key_states: The new keys, one row per beam.
            value_states: The new values, one row per beam.
            *args: Ignored.
            **kwargs: Ignored.

        Shape:
            (B * K, H, T, d) to two of (B, H, S * K, d): all beams at position 0, all beams at position 1, ... The first
            call returns its arguments unchanged, because each row then attends only to itself.

        Returns:
            The keys and values to attend to.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first = self.length == 0
        keys, values = self._ordered(key_states), self._ordered(value_states)
        found = self.append(keys, values, key_states.shape[2])
        return (key_states, value_states) if first else found

    def _ordered(self, states: Tensor) -> Tensor:
        """Merge the beams of an example into one row: (B * K, H, T, d) to (B, H, T * K, d)."""
        rows, heads, new, width = states.shape
        if new == 1:
            return states.view(rows // self.num_beams, self.num_beams, heads, width).transpose(1, 2)
        return states.unflatten(0, (-1, self.num_beams)).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def append(self, keys: Tensor, values: Tensor, positions: int = 1) -> tuple[Tensor, Tensor]:
        """Append keys and values whose beams are already merged into one row per example.

        Args:
            keys: The new keys: all beams at the first new position, all beams at the second one, ...
            values: The new values, in the same order.
            positions: Number of new positions, T.

        Shape:
            (B, H, T * K, d) to two of (B, H, S * K, d).

        Returns:
            The keys and values of all positions.
        """
        start, self.length = self.length * self.num_beams, self.length + positions
        new, end = positions * self.num_beams, self.length * self.num_beams
        self._make_room()
        self.keys.narrow(2, start, new).copy_(keys)
        self.values.narrow(2, start, new).copy_(values)
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def _make_room(self) -> None:
        room = self.keys.shape[2] // self.num_beams
        if self.length > room:
            room = max(self.length, min(max(POSITIONS, self.length * 3 // 2), self.max_positions))
            for name in ("keys", "values"):
                held = getattr(self, name)
                larger = held.new_empty(*held.shape[:2], room * self.num_beams, held.shape[3])
                larger[:, :, : held.shape[2]] = held
                setattr(self, name, larger)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select examples; all beams of a selected example are kept.

        Args:
            indices: Indices of the examples.
        """
        if self.is_initialized:
            indices = indices.to(self.device)
            self.keys, self.values = self.keys.index_select(0, indices), self.values.index_select(0, indices)

    def get_seq_length(self) -> int:
        """Return the number of cached positions.

        Returns:
            The number of positions, S.
        """
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the size of an ordinary causal mask; for several beams, [`BeamCache.mask`] builds all but the first.

        Args:
            query_length: Number of new positions.

        Returns:
            The number of positions to attend to, and the index of the first of them, 0.
        """
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        """Return the maximum number of positions.

        Returns:
            -1, which means that there is no maximum.
        """
        return -1


class BeamCache(Cache):
    """Self-attention key/value cache for generation; reordering the beams copies no keys or values.

    Transformers' caches copy all keys and values twice in every step: once to reorder the beams, once to append the new
    position. This cache instead keeps an ancestor table, which lists for each beam and position the beam that wrote the
    position, and reorders only this table. All beams of an example are queries of one batch row; an attention mask
    restricts each beam to its own ancestors. The results are equal up to the order of summation. Masked scores between
    different beams are computed in vain, but this costs less than the copies.

    With one beam, in greedy search and sampling, there is no ancestor table, and each row attends to its own positions
    under the ordinary causal mask; new positions are still appended without a copy of the old ones.

    Args:
        num_beams: Beams per example, K.
        num_layers: Number of decoder layers.
        max_positions: Expected maximum number of positions, which limits how far ahead memory is allocated. The cache
            still grows if more positions are appended.
    """

    def __init__(self, num_beams: int, num_layers: int, max_positions: int) -> None:
        super().__init__(layers=[BeamLayer(num_beams, max_positions) for _ in range(num_layers)])
        self.num_beams = num_beams
        #: Ancestor table (B, K, S): for each beam and position, the beam of the same example that wrote the position.
        self.writers: Tensor | None = None
        #: The [`DecoderStep`] with the decoder's layers bound to this cache; see `decoder_step.py`.
        self.step: Any = None

    def __getstate__(self) -> dict[str, Any]:  # a copy has its own layers, to which `step` is not bound
        return {**self.__dict__, "step": None}

    def mask(self, states: Tensor, attention_mask: Tensor | None = None) -> Tensor | None:
        """Append the new positions to the ancestor table and build the attention mask of each beam.

        With one beam, this method does nothing: the ordinary causal mask applies.

        Args:
            states: States of the new positions.
            attention_mask: 1 at real tokens, 0 at padding, for old and new positions; None: all tokens are real.

        Shape:
            states (B * K, T, D), attention_mask (B * K, S). Returns (B, 1, K * T, S * K).

        Returns:
            The additive attention mask; None in the first call, to which the ordinary causal mask applies.
        """
        if self.num_beams == 1:
            return None
        new, beams = states.shape[1], torch.arange(self.num_beams, device=states.device)
        own = beams[:, None].expand(len(states) // self.num_beams, -1, new)
        if self.writers is None:
            self.writers = own
            return None
        self.writers = torch.cat([self.writers, own], dim=2)
        seen = self.writers[:, :, None, :, None] == beams  # (B, K, 1, S, K)
        if new > 1:
            positions = torch.arange(self.writers.shape[2], device=states.device)
            seen = seen & (positions <= positions[-new:, None])[:, :, None]
        if attention_mask is not None:
            real = attention_mask.to(states.device, torch.bool)[:, : self.writers.shape[2]]  # masks can be longer
            seen = seen & real.unflatten(0, (-1, self.num_beams))[:, :, None, :, None]
        lowest = torch.finfo(states.dtype).min
        return torch.zeros_like(seen, dtype=states.dtype).masked_fill_(~seen, lowest).flatten(3).flatten(1, 2)[:, None]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the ancestor table after beam selection.

        Args:
            beam_idx: For each new beam, the row of the beam of the same example that it continues.

        Shape:
            beam_idx (B * K,).
        """
        if self.writers is not None:
            chosen = beam_idx.to(self.writers.device, torch.long).view(-1, self.num_beams) % self.num_beams
            self.writers = self.writers.take_along_dim(chosen[:, :, None], dim=1)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select examples; all beams of a selected example are kept.

        Args:
            indices: Indices of the examples.
        """
        super().batch_select_indices(indices)
        self.step = None
        if self.writers is not None:
            self.writers = self.writers.index_select(0, indices.to(self.writers.device))

    def unfold(self) -> DynamicCache:
        """Convert to a `DynamicCache` with one row per beam, freeing this cache layer by layer.

        Returns:
            The cache, with keys and values (B * K, H, S, d).
        """
        stock = DynamicCache()
        layer: Any
        for i, layer in enumerate(self.layers):
            if not layer.is_initialized:  # a layer that has been removed from the decoder
                continue
            keys, values = (self._gather(held, layer.length) for held in (layer.keys, layer.values))
            layer.keys = layer.values = None
            stock.update(keys, values, i)
        self.layers, self.writers, self.step = [], None, None
        return stock

    def _gather(self, held: Tensor, length: int) -> Tensor:
        if self.num_beams == 1:
            return held[:, :, :length].contiguous()
        writers: Any = self.writers
        index = writers.to(held.device).transpose(1, 2)[:, None, :, :, None]  # (B, 1, S, K, 1)
        by_position = held[:, :, : length * self.num_beams].unflatten(2, (length, self.num_beams))
        return by_position.take_along_dim(index, dim=3).permute(0, 3, 1, 2, 4).flatten(0, 1)


__all__ = ["BeamCache"]
