"""Faster linear layers for inference: the kernels that suit the machine, or integers of 8 bits."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

ROWS = 64  # so many that the product, and not reading the weight, takes the time
INT8_ENGINE = "onednn"
FASTER = 1.1  # what a kernel must be better by, lest noise choose it


class _OneCopyMore(nn.Linear, ABC):
    """A linear layer with a second copy of its weight, in a form of its own, for inference.

    The layer keeps its weight and its names, so that it is saved, trained and changed as before; where gradients are
    wanted it computes as before. The copy is made when it is needed, and anew after the weight has changed.
    """

    _packed: Any = None
    _packed_from: Any = None

    @abstractmethod
    def pack(self) -> Any:
        """Make the copy.

        Returns:
            The weight in the form that `compute` wants.
        """

    @abstractmethod
    def compute(self, states: Tensor, packed: Any) -> Tensor:
        """Compute with the copy.

        Args:
            states: The layer's input.
            packed: What `pack` made.

        Shape:
            (..., in_features) to (..., out_features).

        Returns:
            The layer's output.
        """

    def forward(self, input: Tensor) -> Tensor:
        """Compute as `nn.Linear` does.

        Args:
            input: States.

        Shape:
            (..., in_features) to (..., out_features).

        Returns:
            The output.
        """
        if not self._takes(input):
            return super().forward(input)
        weight = self.weight
        now = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        if self._packed_from != now:
            self._packed, self._packed_from = self.pack(), now
        return self.compute(input, self._packed)

    def _takes(self, states: Tensor) -> bool:
        return (
            not torch.is_grad_enabled()
            and states.dtype == self.weight.dtype == torch.float32
            and states.device.type == self.weight.device.type == "cpu"
            and states.numel() > 0
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )

    def __getstate__(self) -> dict[str, Any]:  # copies and pickles make their own
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_packed")}


class OneDNNLinear(_OneCopyMore):
    """A linear layer computed by oneDNN, in float32: on CPUs of other makers, MKL leaves half their speed unused.

    The same numbers up to the order of summation.
    """

    def pack(self) -> Any:
        return torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())

    def compute(self, states: Tensor, packed: Any) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(states, packed, self.bias, "none", [], "")


class Int8Linear(_OneCopyMore):
    """A linear layer computed with integers of 8 bits: weights by rows, inputs by the range of the whole batch.

    Not exact: the output differs by about 1 % of its largest number, and a text may come out otherwise in another
    batch.
    """

    def pack(self) -> Any:
        weight = self.weight.detach()
        scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).tiny).double() / 127
        zero = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():  # that these tensors will go one day; the product has no other public form yet
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
        engine = torch.backends.quantized.engine
        try:
            torch.backends.quantized.engine = INT8_ENGINE
            return torch.ops.quantized.linear_prepack(quantised, None if self.bias is None else self.bias.detach())
        finally:
            torch.backends.quantized.engine = engine

    def compute(self, states: Tensor, packed: Any) -> Tensor:
        return torch.ops.quantized.linear_dynamic(states, packed, reduce_range=False)


def plain_linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The linear layers that nothing has wrapped, quantised or optimised.

    Args:
        model: Any model.

    Returns:
        The layers.
    """
    return [module for module in model.modules() if type(module) is nn.Linear]


def shortest_times(functions: Sequence[Callable[[], Any]], rounds: int = 7) -> list[float]:
    """Measure functions in turn, so that what else the machine does troubles all of them alike.

    Args:
        functions: What to call; each once more than it is measured.
        rounds: How often.

    Returns:
        The shortest time of each, in seconds.
    """
    best = [float("inf")] * len(functions)
    for turn in range(rounds + 1):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            if turn:
                best[i] = min(best[i], time.perf_counter() - start)
    return best


def onednn_gain(layer: nn.Linear) -> float:
    """How many times as fast oneDNN computes a layer as what PyTorch uses; 0 if it is not there.

    Args:
        layer: A layer in float32 on the CPU.

    Returns:
        The ratio, measured with 64 rows.
    """
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return 0.0
    states = torch.zeros(ROWS, layer.in_features)
    weight = layer.weight.detach()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    with torch.no_grad():
        stock, onednn = shortest_times(
            [
                lambda: linear(states, weight),
                lambda: torch.ops.mkldnn._linear_pointwise(states, packed, None, "none", [], ""),
            ]
        )
    return stock / onednn


class InferenceMixin:
    """Adds [`optimize_for_inference`] to a model."""

    def optimize_for_inference(self, *, int8: bool = False) -> list[str]:
        """Choose what is fastest on the model's device, once, before inference.

        On a CPU, oneDNN for the linear layers in float32, if that is measured to be faster here: exact. On a GPU that
        has it, bfloat16 for all weights. The model goes to evaluation mode. On a CPU its weights stay as they are, so
        it can still be saved; each linear layer keeps one more copy.

        Args:
            int8: On a CPU, compute the linear layers with integers of 8 bits: fastest, not exact. Weights are rounded
                by rows, inputs by the range of a whole batch, so that a text may depend a little on its neighbours.

        Returns:
            What was chosen, a line each; empty if everything is best as it is.

        Raises:
            ValueError: If `int8` is asked for on another device than a CPU; the message names the device.
            RuntimeError: If `int8` is asked for and this PyTorch has no oneDNN.
        """
        model: Any = self
        model.eval()
        device = model.device
        if int8 and device.type != "cpu":
            raise ValueError(f"int8 is for CPUs; the model is on {device}.")
        if int8 and INT8_ENGINE not in torch.backends.quantized.supported_engines:
            raise RuntimeError("int8 needs a PyTorch with oneDNN, which this one lacks.")
        if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
            if model.dtype != torch.float32:
                return []
            model.to(torch.bfloat16)
            return [f"bfloat16: all weights, on {torch.cuda.get_device_name(device)}"]
        layers = [layer for layer in plain_linear_layers(model) if layer.weight.dtype == torch.float32]
        if device.type != "cpu" or not layers:
            return []
        if int8:
            for layer in layers:
                layer.__class__ = Int8Linear
            return [f"int8: {len(layers)} linear layers, by oneDNN"]
        largest = max(layers, key=lambda layer: layer.weight.numel())
        if (gain := onednn_gain(largest)) < FASTER:
            return []
        for layer in layers:
            layer.__class__ = OneDNNLinear
        return [f"oneDNN: {len(layers)} linear layers in float32; the largest is {gain:.1f} times as fast"]


__all__ = ["InferenceMixin", "Int8Linear", "OneDNNLinear"]
