"""Ways of making the first state of an LSTM decoder of the last states of several LSTM encoders.

Zoph & Knight 2016, https://doi.org/10.18653/v1/N16-1004, §2.1 and §2.2, from two sources to any number; each layer has
a combination of its own. h_k and c_k are the last hidden and cell state of source k:

    basic      h = tanh(sum_k W_k h_k + b);  c = sum_k c_k                                         (1)(2)
    child_sum  i, o = sigmoid(sum_k W_k h_k + b);  u = tanh(sum_k W_k h_k + b), each with weights of its own
               f_k = sigmoid(W_k h_k + b_f);  c = i * u + sum_k f_k * c_k;  h = o * tanh(c)         (3)-(8)
    none       h = h_1;  c = c_1, of the only source

The biases are those of the authors' code, the paper leaves them out. A source that an example lacks has states of zero,
which contribute nothing; matrices are kept one a source, W [h_1; ...; h_n] = sum_k W_k h_k.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .configuration_multisource_rnn import MultiSourceRNNConfig
from .layers import Bias, modules_of_sources

FinalStates = Mapping[str, tuple[Tensor, Tensor]]


class ForgetBias(Bias):
    """The bias of forget gates, which begins at 1, so that nothing is forgotten before that is learnt.

    Args:
        size: How many.
    """


class BasicCombination(nn.Module):
    """Map all hidden states to one through a tanh, and add up the cells.

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
        """Combine the last states of one layer.

        Args:
            final: Hidden and cell state of each source that is given, zero where an example lacks it.

        Returns:
            Hidden and cell state.
        """
        projected = torch.stack([self.sources[name](hidden) for name, (hidden, _) in final.items()]).sum(dim=0)
        cell = torch.stack([cell for _, cell in final.values()]).sum(dim=0)
        return torch.tanh(projected + self.joint()), cell


class ChildSumCombination(nn.Module):
    """Combine as a Child-Sum Tree-LSTM does its children: gates choose what is kept of each source's cell.

    Zoph & Knight 2016, §2.2, Eqs. 3-8 (after Tai et al. 2015), as in the authors' code, where every source has weights
    of its own and all forget gates have one bias, which begins at 1:
        i = sigmoid(sum_k W^i_k h_k + b_i);  o = sigmoid(sum_k W^o_k h_k + b_o);  u = tanh(sum_k W^u_k h_k + b_u)
        f_k = sigmoid(W^f_k h_k + b_f);  c = i * u + sum_k f_k * c_k;  h = o * tanh(c)

    The code bounds c to ± `cell_clip`.

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
        """Combine the last states of one layer.

        Args:
            final: Hidden and cell state of each source that is given, zero where an example lacks it.

        Returns:
            Hidden and cell state.
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
    """Take the states of the only source as they are: an ordinary encoder-decoder.

    Args:
        config: The model's configuration.

    Shape:
        (B, D) each.
    """

    def __init__(self, config: MultiSourceRNNConfig) -> None:
        super().__init__()

    def forward(self, final: FinalStates) -> tuple[Tensor, Tensor]:
        """Hand the last states of one layer on.

        Args:
            final: Hidden and cell state of the source.

        Returns:
            Hidden and cell state.
        """
        return next(iter(final.values()))


#: The combinations by the name that `MultiSourceRNNConfig.combination` gives them.
COMBINATIONS: dict[str, type[nn.Module]] = {
    "basic": BasicCombination,
    "child_sum": ChildSumCombination,
    "none": NoCombination,
}
