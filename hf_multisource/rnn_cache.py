"""What an LSTM decoder remembers between the steps of `generate`."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Cache


class MultiSourceRNNCache(Cache):
    """What an LSTM decoder remembers: the states of its layers, and the vector that is fed back.

    Args:
        recording: Whether it can also go back (`crop`), as assisted decoding wants it.
    """

    def __init__(self, recording: bool = False) -> None:
        super().__init__(layers=[])
        #: (2 L + 1, R, D): hidden states, cells, and the vector; None before the first token.
        self.state: Tensor | None = None
        self.length = 0
        #: States after each of the last tokens, the newest last; None: not kept.
        self.past: list[Tensor] | None = [] if recording else None

    def __len__(self) -> int:
        return 1  # all layers are in one tensor

    def write(self, states: list[Tensor], tokens: int) -> None:
        """Take the decoder further.

        Args:
            states: After every new token, or after the last one only.
            tokens: How many are new.
        """
        self.state = states[-1]
        self.length += tokens
        if self.past is not None:
            self.past += states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many tokens it has seen.

        Args:
            layer_idx: Not read: all layers have seen the same.

        Returns:
            The number.
        """
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """How many tokens it can see.

        Args:
            layer_idx: Not read.

        Returns:
            -1: there is no limit.
        """
        return -1

    def activate_past_recording(self) -> None:
        """Keep the states of tokens that may be taken back, from now on until `crop` says which."""
        if self.past is None:
            self.past = [] if self.state is None else [self.state]

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens.

        Args:
            tokens_to_remove: Minus their number; above 0, as older releases have it, the number of those that are kept.

        Raises:
            ValueError: If their states were not recorded; the message gives the numbers.
        """
        back = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self.length - tokens_to_remove)
        kept = self.past or []
        if back >= max(len(kept), 1) and back != self.length:
            raise ValueError(f"cannot go back {back} tokens: the states of the last {len(kept)} are recorded.")
        if back:
            kept = kept[: len(kept) - back] if back < len(kept) else []
            self.state = kept[-1] if kept else None
            self.length -= back
        if self.past is not None:
            self.past = kept[-2:]  # an assistant goes back one token more than it was run ahead

    def reset(self) -> None:
        """Forget everything."""
        self.state, self.length = None, 0
        self.past = None if self.past is None else []

    def batch_select_indices(self, indices: Tensor) -> None:
        """Choose rows.

        Args:
            indices: Their numbers; one may come several times.
        """
        if self.state is not None:
            self.state = self.state.index_select(1, indices.to(self.state.device))
        if self.past is not None:
            self.past = [state.index_select(1, indices.to(state.device)) for state in self.past]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the beams to the rows that they come from.

        Args:
            beam_idx: Of each row, the one that it goes on from.
        """
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row.

        Args:
            repeats: How often.
        """
        if self.state is not None:
            rows = torch.arange(self.state.shape[1], device=self.state.device)
            self.batch_select_indices(rows.repeat_interleave(repeats))
