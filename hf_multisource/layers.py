"""Layers of both encoders and decoder: token and position embeddings, feed-forward layers, biases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from .configuration_multisource import MultiSourceConfig
from .dropout import dropout

ROWS_AT_FIRST = 64  # smallest number of sinusoidal positions computed at once, so that short texts need one computation


class SinusoidalPositions(nn.Module):
    """Fixed sinusoidal position embeddings, [sin | cos] in halves, for texts of any length.

    The embeddings are computed on demand, cached, and not saved in checkpoints.

    Frequency k is 10000^(-k / (D/2 - 1)) as in Tensor2Tensor, the 2018 paper's code and M2M100; with `marian` it is
    10000^(-k / (D/2)).

    Args:
        width: Width D of the embeddings, an even number.
        offset: Index of the first position.
        marian: Whether to use Marian's frequencies.
    """

    def __init__(self, width: int, offset: int = 0, *, marian: bool = False) -> None:
        super().__init__()
        self.width = width
        self.offset = offset
        self.step = math.log(10000.0) / (width / 2 if marian else max(width / 2 - 1, 1))

    #: Cached embeddings (rows, D) of the first positions; not a buffer, so that they are neither saved nor moved.
    _computed: Tensor | None = None

    def forward(self, start: int | Tensor, length: int, device: torch.device) -> Tensor:
        """Embed positions `start` to `start + length - 1`.

        Args:
            start: First position, counted from 0.
            length: Number of positions.
            device: Device of the embeddings.

        Returns:
            Embeddings (length, D) in float32; in bfloat16 neighboring positions would be equal.
        """
        if isinstance(start, Tensor) or torch.compiler.is_compiling():  # the cache cannot be indexed by traced values
            return self._compute(start, length, device)
        end, computed = start + length, self._computed
        if computed is None or computed.device != device or len(computed) < end:
            with torch.inference_mode(False):  # autograd refuses tensors made in inference mode
                computed = self._compute(0, max(ROWS_AT_FIRST, 2 ** (end - 1).bit_length()), device)
            if type(computed) is Tensor:  # not a fake tensor
                self._computed = computed
        return computed[start:end]

    def _compute(self, start: int | Tensor, length: int, device: torch.device) -> Tensor:
        k = torch.arange(self.width // 2, dtype=torch.float32, device=device)
        positions = torch.arange(length, dtype=torch.float32, device=device) + (start + self.offset)
        angles = positions[:, None] * torch.exp(-self.step * k)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def __getstate__(self) -> dict[str, Any]:  # copies and pickles do not include the cache
        return {key: value for key, value in self.__dict__.items() if key != "_computed"}


class LearnedPositions(nn.Embedding):
    """Learned position embeddings for texts up to a maximum length.

    Args:
        rows: Maximum length, in tokens.
        width: Width D of the embeddings.
        offset: Row of the first position; the table has `rows + offset` rows.
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
            length: Number of positions.
            device: Device of the embeddings.

        Returns:
            Embeddings (length, D).

        Raises:
            ValueError: If `start` is an integer and a position is outside the table; the message gives both lengths.
        """
        longest = self.num_embeddings - self.offset
        if isinstance(start, int) and start + length > longest:
            raise ValueError(f"a text of {start + length} tokens is longer than max_position_embeddings={longest}.")
        positions = torch.arange(length, device=self.weight.device) + (start + self.offset)
        return super().forward(positions).to(device)  # with a `device_map`, the table may lie on another device


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
    """Sum of token and position embeddings, followed by layer norm (if configured) and dropout.

    Args:
        config: Reads `d_model`, `scale_embedding`, `embedding_norm`, `position_offset`, `layer_norm_eps`.
        vocab_size: Rows of the token table.
        pad_token_id: Row of the padding token, which is zero and not trained.
        position_embedding: "sinusoidal", "sinusoidal_marian", "learned" or "none".
        max_position_embeddings: Rows of a learned position table.
        dropout: Dropout probability.

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
            inputs_embeds: Token embeddings instead of ids; they are scaled here like the embeddings of ids.
            start: Position of the first token.

        Returns:
            Embeddings (B, S, D).

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
        width: Width of the hidden layer.
        dropout: Dropout probability before the residual connection.

    Shape:
        (B, T, D) to (B, T, D).

    Raises:
        ValueError: If Transformers does not have the activation function; the message lists the names.
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
        """Compute the sub-layer for every position.

        Args:
            hidden_states: The hidden states.

        Returns:
            The new hidden states.
        """
        states = self.layer_norm(hidden_states) if self.pre_norm else hidden_states
        states = dropout(self.activation(self.fc1(states)), p=self.activation_dropout, training=self.training)
        states = hidden_states + dropout(self.fc2(states), p=self.dropout, training=self.training)
        return states if self.pre_norm else self.layer_norm(states)


def modules_of_sources(names: Iterable[str], make: Callable[[], nn.Module]) -> nn.ModuleDict:
    """Create one module per source.

    Args:
        names: Names of the sources, in order.
        make: Function that creates a module.

    Returns:
        The modules by name of the source.

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
    """Learned vector that represents an absent source (`absent_vectors`).

    The module is not an `nn.Embedding`, because a table with one row cannot be sharded among processes.

    Args:
        width: Width D of the vector.

    Shape:
        Returns (D,).
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
    """Learned bias vector, initialized to 0.

    The parameter is wrapped in a module, so that it is handled by everything that moves, wraps, adapts or initializes
    modules (offloading, PEFT's `modules_to_save`, `_init_weights`).

    Args:
        size: Number of elements.

    Shape:
        Returns (size,).
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self) -> Tensor:
        """Return the bias.

        Returns:
            The parameter.
        """
        return self.bias
