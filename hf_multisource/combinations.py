"""Combinations of the final states of several LSTM encoders into the initial state of the LSTM decoder.

Zoph & Knight 2016, https://doi.org/10.18653/v1/N16-1004, §2.1 and §2.2, generalized from two sources to any number;
each layer has a separate combination. h_k and c_k are the final hidden and cell state of source k:

    basic      h = tanh(sum_k W_k h_k + b);  c = sum_k c_k                                         (1)(2)
    child_sum  i, o = sigmoid(sum_k W_k h_k + b);  u = tanh(sum_k W_k h_k + b), each with separate weights
               f_k = sigmoid(W_k h_k + b_f);  c = i * u + sum_k f_k * c_k;  h = o * tanh(c)         (3)-(8)
    none       h = h_1;  c = c_1, of the only source

The biases follow the authors' code; the paper omits them. The states of an absent source are zero and contribute
nothing. There is one matrix per source: W [h_1; ...; h_n] = sum_k W_k h_k.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .configuration_multisource_rnn import MultiSourceRNNConfig
from .layers import Bias, modules_of_sources

FinalStates = Mapping[str, tuple[Tensor, Tensor]]


class ForgetBias(Bias):
    """Bias of forget gates, initialized to 1, so that an untrained gate keeps most of the cell state.

    Args:
        size: Number of gates.
    """


class BasicCombination(nn.Module):
    """Map the joined hidden states to one hidden state through a tanh, and sum the cell states.

    Zoph & Knight 2016, §2.1, Eqs. 1-2, with the b of the authors' code:
        h = tanh(W [h_1; ...; h_n] + b);  c = c_1 + ... + c_n

    Args:
        config: Reads `sources` and `d_model` (D).

    Shape:
        (B, D) each.
    """

    def __init__(self, config: MultiSourceRNNConfig) -> None:
        super().__init__()
        width = config.d_model
        self.sources = modules_of_sources(config.source_names, lambda: nn.Linear(width, width, bias=False))
        self.joint = Bias(width)

    def forward(self, final: FinalStates) -> tuple[Tensor, Tensor]:
        """Combine the final states of one layer.

        Args:
            final: Hidden and cell state of each given source, zero for examples that lack the source.

        Returns:
            Initial hidden and cell state of the decoder layer.
        """
        projected = torch.stack([self.sources[name](hidden) for name, (hidden, _) in final.items()]).sum(dim=0)
        cell = torch.stack([cell for _, cell in final.values()]).sum(dim=0)
        return torch.tanh(projected + self.joint()), cell


class ChildSumCombination(nn.Module):
    """Combine the sources like the children of a Child-Sum Tree-LSTM, with a forget gate for each source's cell state.

    Zoph & Knight 2016, §2.2, Eqs. 3-8 (after Tai et al. 2015), as in the authors' code, where every source has separate
    weights and all forget gates share one bias, initialized to 1:
        i = sigmoid(sum_k W^i_k h_k + b_i);  o = sigmoid(sum_k W^o_k h_k + b_o);  u = tanh(sum_k W^u_k h_k + b_u)
        f_k = sigmoid(W^f_k h_k + b_f);  c = i * u + sum_k f_k * c_k;  h = o * tanh(c)

    The code clips c to ± `cell_clip`.

    Args:
        config: Reads `sources`, `d_model` (D) and `cell_clip`.

    Shape:
        (B, D) each. A source's matrix (4 D, D) has the rows of W^i, W^o, W^u and W^f; `joint` is b_i, b_o and b_u.
    """

    def __init__(self, config: MultiSourceRNNConfig) -> None:
        super().__init__()
        width = config.d_model
        self.cell_clip = config.cell_clip
        self.sources = modules_of_sources(config.source_names, lambda: nn.Linear(width, 4 * width, bias=False))
        self.joint = Bias(3 * width)
        self.forget = ForgetBias(width)

    def forward(self, final: FinalStates) -> tuple[Tensor, Tensor]:
        """Combine the final states of one layer.

        Args:
            final: Hidden and cell state of each given source, zero for examples that lack the source.

        Returns:
            Initial hidden and cell state of the decoder layer.
        """
        width = self.forget().shape[0]
        projected = [self.sources[name](hidden) for name, (hidden, _) in final.items()]
        summed = torch.stack([gates[:, : 3 * width] for gates in projected]).sum(dim=0) + self.joint()
        enter, leave, update = summed.chunk(3, dim=1)
        cell = enter.sigmoid() * update.tanh()
        for gates, (_, own_cell) in zip(projected, final.values(), strict=True):
            cell = cell + (gates[:, 3 * width :] + self.forget()).sigmoid() * own_cell
        if self.cell_clip is not None:
            cell = cell.clamp(-self.cell_clip, self.cell_clip)
        return leave.sigmoid() * cell.tanh(), cell


class NoCombination(nn.Module):
    """Return the states of the only source unchanged, as in an ordinary encoder-decoder.

    Args:
        config: The model's configuration.

    Shape:
        (B, D) each.
    """

    def __init__(self, config: MultiSourceRNNConfig) -> None:
        super().__init__()

    def forward(self, final: FinalStates) -> tuple[Tensor, Tensor]:
        """Return the final states of one layer.

        Args:
            final: Hidden and cell state of the source.

        Returns:
            Initial hidden and cell state of the decoder layer.
        """
        return next(iter(final.values()))


#: Combination classes by their names in `MultiSourceRNNConfig.combination`.
COMBINATIONS: dict[str, type[nn.Module]] = {
    "basic": BasicCombination,
    "child_sum": ChildSumCombination,
    "none": NoCombination,
}
