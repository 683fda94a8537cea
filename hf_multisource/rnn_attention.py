"""Attention of an LSTM decoder to several sources: a window around a predicted position, or the whole source."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import SourceView
from .configuration_multisource_rnn import MultiSourceRNNConfig
from .layers import modules_of_sources


class Score(nn.Module):
    """Dot product of each vector with a learned vector, v . x.

    The module is not an `nn.Linear`, because a weight with a single row cannot be sharded among processes.

    Args:
        width: Width D of the vectors.

    Shape:
        (..., D) to (...).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, states: Tensor) -> Tensor:
        """Compute the scores of vectors.

        Args:
            states: The vectors.

        Returns:
            One score per vector.
        """
        return states @ self.weight


class RNNSourceAttention(nn.Module):
    """Attend to one source (Luong, Pham & Manning 2015, https://doi.org/10.18653/v1/D15-1166, section 3).

    With h the decoder's state, e_s the encoder's state at token s, counted from 0 in the order of the text, and S the
    number of tokens:
        dot       a = softmax over s of h . e_s
        general   a = softmax over s of h . W e_s
        local_p   p = S sigmoid(v . tanh(W_p h));
                  a_s = softmax over s in [trunc(p) - window, trunc(p) + window] of h . W e_s,
                  times exp(-(s - p)^2 / (2 (window / 2)^2))

    As in the code of Zoph & Knight 2016, the weights of local_p are not renormalized.

    `query_proj` is the transpose of W.

    Args:
        config: Reads `attention`, `window`, `d_model` (D).

    Shape:
        query (B, Q, D). Returns weights (B, Q, S_i).
    """

    def __init__(self, config: MultiSourceRNNConfig) -> None:
        super().__init__()
        width = config.d_model
        self.window = config.window if config.attention == "local_p" else None
        self.query_proj = None if config.attention == "dot" else nn.Linear(width, width, bias=False)
        if self.window is not None:
            self.position_proj = nn.Linear(width, width, bias=False)
            self.position_score = Score(width)
        self.projection = nn.Linear(width, width, bias=False)  # applied to the context by `RNNAttention`

    def forward(self, query: Tensor, source: SourceView) -> Tensor:
        """Compute the attention weights over the states of the source.

        Args:
            query: States of the decoder.
            source: The source.

        Returns:
            The attention weights, zero where the source is absent.
        """
        keys = source.states.transpose(1, 2)
        scores = (query if self.query_proj is None else self.query_proj(query)) @ keys
        seen = source.mask[:, None]
        if self.window is not None:
            logits = self.position_score(torch.tanh(self.position_proj(query)))
            # In half precision neighboring positions of a long text would be equal.
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            center = (source.lengths[:, None] * logits.sigmoid())[..., None]  # (B, Q, 1)
            seen = seen & ((source.positions[:, None] - center.trunc()).abs() <= self.window)
        # The lowest finite number, not -inf: fully masked rows must stay finite.
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(dim=-1) * seen
        if self.window is not None:
            distance = (source.positions[:, None] - center) / (self.window / 2)
            weights = weights * torch.exp(-(distance**2) / 2).to(weights.dtype)
        return weights


class RNNAttention(nn.Module):
    """Attend to all sources, and map the context vectors and the decoder's state to one vector through a tanh.

    Zoph & Knight 2016, https://doi.org/10.18653/v1/N16-1004, Eq. 14, with the b of the authors' code:
        tanh(W [h; c_1; ...; c_n] + b);  c_i = sum_s a_s e_s, with a separate attention for each source i

    W is stored as one matrix per source and one matrix for h. The c_i of an absent source is zero and contributes
    nothing.

    Args:
        config: Reads `sources` and the settings of [`RNNSourceAttention`].

    Shape:
        hidden_states (R, T, D), where R is B times the number of beams, and the beams of an example are consecutive
        rows; states of the sources (B, S_i, D). Returns vectors (R, T, D) and weights (R, T, S).
    """

    def __init__(self, config: MultiSourceRNNConfig) -> None:
        super().__init__()
        self.sources = modules_of_sources(config.source_names, lambda: RNNSourceAttention(config))
        self.projection = nn.Linear(config.d_model, config.d_model)

    def forward(self, hidden_states: Tensor, sources: list[SourceView]) -> tuple[Tensor, Tensor]:
        """Attend from the decoder's states to all sources.

        Args:
            hidden_states: States of the decoder's last layer.
            sources: The sources, from [`SourceMemory.views`].

        Returns:
            The attentional vectors, and the attention weights over the joined states of all sources.
        """
        batch = sources[0].states.shape[0]
        query = hidden_states.reshape(batch, -1, hidden_states.shape[-1])  # beams share their sources
        total, all_weights = self.projection(query), []
        attention: RNNSourceAttention
        for attention, source in zip(self.sources.values(), sources, strict=True):  # type: ignore[assignment]
            if source.states.shape[1] == 0:  # no example has the source
                all_weights.append(query.new_zeros(*query.shape[:2], 0))
                continue
            weights = attention(query, source)
            total = total + attention.projection(weights @ source.states)
            all_weights.append(weights)
        vectors = torch.tanh(total).view_as(hidden_states)
        return vectors, torch.cat(all_weights, dim=-1).view(*hidden_states.shape[:2], -1)
