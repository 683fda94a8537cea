"""The decoder's own keys and values in beam search, which stay where they were written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

POSITIONS = 32  # that there is room for at first


class BeamLayer(CacheLayerMixin):
    """Keys and values of one layer: all beams of an example in one row, position after position.

    Args:
        num_beams: Rows per example, K.
        max_positions: How many will come at most; room for more is made all the same.
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
        """Take the sizes of the first keys and values.

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
        """Write down new keys and values.

        Args:
            key_states: The keys.
            value_states: The values.
            *args: Ignored.
            **kwargs: Ignored.

        Shape:
            (B * K, H, T, d) to two of (B, H, S * K, d): the beams at position 0, those at position 1, ... In the first
            call, in which rows look at nothing but themselves, what was given.

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
        """Put the rows of an example into one: (B * K, H, T, d) to (B, H, T * K, d)."""
        rows, heads, new, width = states.shape
        if new == 1:
            return states.view(rows // self.num_beams, self.num_beams, heads, width).transpose(1, 2)
        return states.unflatten(0, (-1, self.num_beams)).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def append(self, keys: Tensor, values: Tensor, positions: int = 1) -> tuple[Tensor, Tensor]:
        """Write down keys and values that are in the order of this layer.

        Args:
            keys: The keys: all beams at the first new position, those at the second one, ...
            values: The values.
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
        """Choose examples, not rows: the beams of an example stay together.

        Args:
            indices: Numbers of the examples.
        """
        if self.is_initialized:
            indices = indices.to(self.device)
            self.keys, self.values = self.keys.index_select(0, indices), self.values.index_select(0, indices)

    def get_seq_length(self) -> int:
        """How many positions it holds.

        Returns:
            The number, S.
        """
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """What a mask is made for in the first call; [`BeamCache.mask`] makes those of the others.

        Args:
            query_length: How many positions are new.

        Returns:
            The number of positions, and 0, where they begin.
        """
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        """How many positions it can hold.

        Returns:
            -1: there is no limit.
        """
        return -1


class BeamCache(Cache):
    """The decoder's own keys and values in beam search: they are not moved when beams change places.

    Stock caches copy all keys and values twice in every step, once for the beams' new order and once to append. Here
    each beam keeps a list of the beams that wrote its earlier positions, and only that is put in order. All beams of an
    example are queries of one row; a mask lets each see what its own list names. The same numbers up to the order of
    summation; that each beam's queries also meet other beams' keys, to be masked, costs less than the copies did.

    Args:
        num_beams: Rows per example, K.
        num_layers: Layers of the decoder.
        max_positions: How many will come at most; room for more is made all the same.
    """

    def __init__(self, num_beams: int, num_layers: int, max_positions: int) -> None:
        super().__init__(layers=[BeamLayer(num_beams, max_positions) for _ in range(num_layers)])
        self.num_beams = num_beams
        #: (B, K, S): of each beam and position, the beam of the same example that wrote it.
        self.writers: Tensor | None = None
        #: The decoder's layers bound to this cache; see `decoder_step.py`.
        self.step: Any = None

    def __getstate__(self) -> dict[str, Any]:  # a copy has layers of its own
        return {**self.__dict__, "step": None}

    def mask(self, states: Tensor, attention_mask: Tensor | None = None) -> Tensor | None:
        """Take new positions into the lists, and say what each beam may see.

        Args:
            states: States of the new positions.
            attention_mask: 1 at real tokens, earlier ones included; None: all are.

        Shape:
            states (B * K, T, D), attention_mask (B * K, S). Returns (B, 1, K * T, S * K).

        Returns:
            What is added to the scores; None in the first call, whose mask is that of any cache.
        """
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
            real = attention_mask.to(states.device, torch.bool)[:, : self.writers.shape[2]]  # it may be ahead
            seen = seen & real.unflatten(0, (-1, self.num_beams))[:, :, None, :, None]
        lowest = torch.finfo(states.dtype).min
        return torch.zeros_like(seen, dtype=states.dtype).masked_fill_(~seen, lowest).flatten(3).flatten(1, 2)[:, None]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the beams to those that they come from.

        Args:
            beam_idx: Of each row, the row that it goes on from, one of the same example.

        Shape:
            beam_idx (B * K,).
        """
        if self.writers is not None:
            chosen = beam_idx.to(self.writers.device, torch.long).view(-1, self.num_beams) % self.num_beams
            self.writers = self.writers.take_along_dim(chosen[:, :, None], dim=1)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Choose examples, not rows: the beams of an example stay together.

        Args:
            indices: Numbers of the examples.
        """
        super().batch_select_indices(indices)
        self.step = None
        if self.writers is not None:
            self.writers = self.writers.index_select(0, indices.to(self.writers.device))

    def unfold(self) -> DynamicCache:
        """Give every beam a row of its own. Layer by layer, this cache is emptied.

        Returns:
            The cache that stock code would have: keys and values (B * K, H, S, d).
        """
        stock = DynamicCache()
        layer: Any
        for i, layer in enumerate(self.layers if self.writers is not None else ()):
            keys, values = (self._gather(held, layer.length) for held in (layer.keys, layer.values))
            layer.keys = layer.values = None
            stock.update(keys, values, i)
        self.layers, self.writers, self.step = [], None, None
        return stock

    def _gather(self, held: Tensor, length: int) -> Tensor:
        writers: Any = self.writers
        index = writers.to(held.device).transpose(1, 2)[:, None, :, :, None]  # (B, 1, S, K, 1)
        by_position = held[:, :, : length * self.num_beams].unflatten(2, (length, self.num_beams))
        return by_position.take_along_dim(index, dim=3).permute(0, 3, 1, 2, 4).flatten(0, 1)


__all__ = ["BeamCache"]
