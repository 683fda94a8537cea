"""What encoders and decoder are both made of: token and position embeddings, feed-forward layers, biases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from .configuration_multisource import MultiSourceConfig
from .dropout import dropout

ROWS_AT_FIRST = 64  # positions that are computed at once, at least


class SinusoidalPositions(nn.Module):
    """Fixed position embeddings, [sin | cos] in halves, for texts of any length.

    They are computed once, for as many positions as were asked for so far, and are no part of a checkpoint.

    Frequency k is 10000^(-k / (D/2 - 1)) as in Tensor2Tensor, the 2018 paper's code and M2M100; with `marian` it is
    10000^(-k / (D/2)).

    Args:
        width: D, even.
        offset: Number of the first position.
        marian: Whether to use Marian's frequencies.
    """

    def __init__(self, width: int, offset: int = 0, *, marian: bool = False) -> None:
        super().__init__()
        self.width = width
        self.offset = offset
        self.step = math.log(10000.0) / (width / 2 if marian else max(width / 2 - 1, 1))

    #: Embeddings of the positions from 0 on, (rows, D); a plain attribute, which is neither saved nor moved.
    _computed: Tensor | None = None

    def forward(self, start: int | Tensor, length: int, device: torch.device) -> Tensor:
        """Embed positions `start` to `start + length - 1`.

        Args:
            start: First position, counted from 0.
            length: How many.
            device: Where to compute.

        Returns:
            (length, D) in float32: in bfloat16 neighbouring positions would coincide.
        """
        if isinstance(start, Tensor) or torch.compiler.is_compiling():  # neither tensors nor symbols choose the rows
            return self._compute(start, length, device)
        end, computed = start + length, self._computed
        if computed is None or computed.device != device or len(computed) < end:
            with torch.inference_mode(False):  # autograd refuses tensors made in inference mode
                computed = self._compute(0, max(ROWS_AT_FIRST, 2 ** (end - 1).bit_length()), device)
            if type(computed) is Tensor:  # not one of a mode that only traces shapes
                self._computed = computed
        return computed[start:end]

    def _compute(self, start: int | Tensor, length: int, device: torch.device) -> Tensor:
        k = torch.arange(self.width // 2, dtype=torch.float32, device=device)
        positions = torch.arange(length, dtype=torch.float32, device=device) + (start + self.offset)
        angles = positions[:, None] * torch.exp(-self.step * k)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def __getstate__(self) -> dict[str, Any]:  # copies and pickles compute their own
        return {key: value for key, value in self.__dict__.items() if key != "_computed"}


class LearnedPositions(nn.Embedding):
    """Trained position embeddings, with a longest length.

    Args:
        rows: Longest length, in tokens.
        width: D.
        offset: Row of the first position; the table has as many rows more.
    """

    def __init__(self, rows: int, width: int, offset: int = 0) -> None:
        super().__init__(rows + offset, width)
        self.offset = offset

    def forward(  # type: ignore[override]
        self, start: int | Tensor, length: int, device: torch.device
    ) -> Tensor:
        """Embed positions `start` to `start + length - 1`.

        Args:
            start: First position, counted from 0.
            length: How many.
            device: Where the indices are made.

        Returns:
            (length, D).

        Raises:
            ValueError: If a position lies beyond the table; the message gives both lengths.
        """
        longest = self.num_embeddings - self.offset
        if isinstance(start, int) and start + length > longest:
            raise ValueError(f"a text of {start + length} tokens is longer than max_position_embeddings={longest}.")
        return super().forward(torch.arange(length, device=device) + (start + self.offset))


def build_positions(
    config: MultiSourceConfig, kind: str, longest: int
) -> LearnedPositions | SinusoidalPositions | None:
    """Build position embeddings.

    Args:
        config: Reads `d_model` and `position_offset`.
        kind: "sinusoidal", "sinusoidal_marian", "learned" or "none".
        longest: Rows of a learned table.

    Returns:
        The embeddings, None for "none".
    """
    if kind == "none":
        return None
    if kind == "learned":
        return LearnedPositions(longest, config.d_model, config.position_offset)
    return SinusoidalPositions(config.d_model, config.position_offset, marian=kind == "sinusoidal_marian")


class TextEmbeddings(nn.Module):
    """Token embeddings plus positions, then layer norm (if configured) and dropout.

    Args:
        config: Reads `d_model`, `scale_embedding`, `embedding_norm`, `position_offset`, `layer_norm_eps`.
        vocab_size: Rows of the token table.
        pad_token_id: Row that stays zero.
        position_embedding: "sinusoidal", "sinusoidal_marian", "learned" or "none".
        max_position_embeddings: Rows of a learned position table.
        dropout: Probability of zeroing.

    Shape:
        input_ids (B, S) or inputs_embeds (B, S, D) to (B, S, D).
    """

    def __init__(
        self,
        config: MultiSourceConfig,
        *,
        vocab_size: int,
        pad_token_id: int | None,
        position_embedding: str,
        max_position_embeddings: int,
        dropout: float,
    ) -> None:
        super().__init__()
        width = config.d_model
        self.scale = math.sqrt(width) if config.scale_embedding else 1.0
        self.dropout = dropout
        self.tokens = nn.Embedding(vocab_size, width, padding_idx=pad_token_id)
        self.positions = build_positions(config, position_embedding, max_position_embeddings)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps) if config.embedding_norm else None

    def forward(self, input_ids: Tensor | None, inputs_embeds: Tensor | None = None, start: int | Tensor = 0) -> Tensor:
        """Embed a text.

        Args:
            input_ids: Token ids.
            inputs_embeds: Rows of the token table instead; they are scaled here, as the tokens' own would be.
            start: Position of the first token.

        Returns:
            (B, S, D).

        Raises:
            ValueError: If both or neither of the two inputs is given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds.")
        states = (self.tokens(input_ids) if inputs_embeds is None else inputs_embeds) * self.scale
        if self.positions is not None:
            states = states + self.positions(start, states.shape[1], states.device).to(states.dtype)
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return dropout(states, p=self.dropout, training=self.training)


class FeedForward(nn.Module):
    """Position-wise feed-forward sub-layer with norm, dropout and residual (Vaswani et al. 2017, Eq. 2).

    Args:
        config: Reads `d_model`, `activation_function`, `activation_dropout`, `norm_position`, `layer_norm_eps`.
        width: Of the hidden layer.
        dropout: Probability of zeroing before the residual.

    Shape:
        (B, T, D) to (B, T, D).

    Raises:
        ValueError: If Transformers has no such activation; the message lists the names.
    """

    def __init__(self, config: MultiSourceConfig, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.activation_dropout = config.activation_dropout
        self.pre_norm = config.norm_position == "pre"
        if config.activation_function not in ACT2FN:
            known = ", ".join(map(repr, ACT2FN))
            raise ValueError(f"activation_function must be one of {known}; got {config.activation_function!r}.")
        self.activation = ACT2FN[config.activation_function]
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, width)
        self.fc2 = nn.Linear(width, config.d_model)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Transform every position on its own.

        Args:
            hidden_states: The stream.

        Returns:
            The new stream.
        """
        states = self.layer_norm(hidden_states) if self.pre_norm else hidden_states
        states = dropout(self.activation(self.fc1(states)), p=self.activation_dropout, training=self.training)
        states = hidden_states + dropout(self.fc2(states), p=self.dropout, training=self.training)
        return states if self.pre_norm else self.layer_norm(states)


def modules_of_sources(names: Iterable[str], make: Callable[[], nn.Module]) -> nn.ModuleDict:
    """Make one module for each source.

    Args:
        names: The sources, in order.
        make: Makes one.

    Returns:
        The modules by source.

    Raises:
        ValueError: If a source has the name of an attribute.
    """
    modules = nn.ModuleDict()
    for name in names:
        if hasattr(modules, name):
            raise ValueError(f"source name {name!r} is an attribute of torch modules; choose another.")
        modules[name] = make()
    return modules


class AbsentVector(nn.Module):
    """The learned vector that stands for a source where an example lacks it (`absent_vectors`).

    Not an embedding: a table of one row cannot be divided among processes.

    Args:
        width: D.

    Shape:
        Calling it: nothing to (D,).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def forward(self) -> Tensor:
        """Return the vector.

        Returns:
            The parameter.
        """
        return self.vector


class Bias(nn.Module):
    """Learnt numbers that begin at 0.

    A module, not a bare parameter: so whatever moves, wraps or adapts modules (offloading, PEFT's `modules_to_save`)
    reaches it, and so do the initial values.

    Args:
        size: How many.

    Shape:
        Calling it: nothing to (size,).
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self) -> Tensor:
        """Give the numbers.

        Returns:
            The parameter.
        """
        return self.bias
