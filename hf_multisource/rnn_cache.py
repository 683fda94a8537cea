"""Cache of the states of an LSTM decoder between the steps of `generate`."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Cache


class MultiSourceRNNCache(Cache):
    """Cache of an LSTM decoder: the states of its layers, and the attentional vector for input feeding.

    Args:
        recording: Whether earlier states are kept, so that tokens can be removed by `crop`, as assisted decoding does.
    """

    def __init__(self, recording: bool = False) -> None:
        super().__init__(layers=[])
        #: (2 L + 1, R, D): hidden states, cell states, and the attentional vector; None before the first token.
        self.state: Tensor | None = None
        self.length = 0
        #: States after each of the last tokens, the newest last; None if earlier states are not kept.
        self.past: list[Tensor] | None = [] if recording else None

    def __len__(self) -> int:
        return 1  # all layers are in one tensor

    def write(self, states: list[Tensor], tokens: int) -> None:
        """Store the states after new tokens.

        Args:
            states: States after every new token, or only the states after the last new token.
            tokens: Number of new tokens.
        """
        self.state = states[-1]
        self.length += tokens
        if self.past is not None:
            self.past += states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens that have been decoded.

        Args:
            layer_idx: Ignored; the number is the same for all layers.

        Returns:
            The number of tokens.
        """
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return the maximum number of tokens.

        Args:
            layer_idx: Ignored.

        Returns:
            -1, which means that there is no maximum.
        """
        return -1

    def activate_past_recording(self) -> None:
        """Start to keep the states after each token, so that `crop` can remove tokens."""
        if self.past is None:
            self.past = [] if self.state is None else [self.state]

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens.

        Args:
            tokens_to_remove: Minus the number of tokens to remove; if above 0, the number of tokens to keep, as in
                older releases of Transformers.

        Raises:
            ValueError: If the states before the removed tokens were not recorded; the message gives the numbers.
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
            self.past = kept[-2:]  # an assistant removes one token more than it has generated

    def reset(self) -> None:
        """Remove all states."""
        self.state, self.length = None, 0
        self.past = None if self.past is None else []

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select rows.

        Args:
            indices: Indices of the rows, which may be repeated.
        """
        if self.state is not None:
            self.state = self.state.index_select(1, indices.to(self.state.device))
        if self.past is not None:
            self.past = [state.index_select(1, indices.to(state.device)) for state in self.past]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the states after beam selection.

        Args:
            beam_idx: For each new beam, the row of the beam that it continues.
        """
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row.

        Args:
            repeats: Number of repetitions.
        """
        if self.state is not None:
            rows = torch.arange(self.state.shape[1], device=self.state.device)
            self.batch_select_indices(rows.repeat_interleave(repeats))
