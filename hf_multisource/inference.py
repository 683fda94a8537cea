"""Faster linear layers for inference: the fastest kernels for the machine, or 8-bit integers."""

from __future__ import annotations

import copy
import math
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from statistics import geometric_mean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils import output_capturing

# Numbers of input rows with which kernels are timed: one sentence without beams and one sentence with 10 beams (both
# memory-bound: reading the weight takes longest), a few sentences with beams, and a batch (compute-bound).
BENCHMARK_ROWS = (1, 10, 40, 160)
NEARLY_32_MIB = 2**25 - 2**16  # bytes of a block that is still below 32 MiB with the allocator's overhead
MEASURED = 12  # maximum number of products of a shape that are timed
# Time spent on the kernels of one shape and number of rows, in seconds. With only 5 rounds, timing noise determined
# which kernel was chosen for short calls.
SECONDS = 0.15
MOST_ROUNDS = 60  # maximum number of timing rounds; more rounds hardly reduce the shortest time
NANOSECOND = 1e-9  # lower bound of measured times, in seconds, so that ratios of times are finite
# Smallest output layer that is computed by oneDNN, in elements of its weight; oneDNN has a higher overhead per call
# than MKL, which dominates in small layers.
LARGE_LAYER = 2**22
MIN_SPEEDUP = 1.1  # smallest speedup for which a kernel is chosen; smaller measured gains are within timing noise
# Held while any weight is packed, because packing temporarily changes PyTorch's quantized engine and warning filters,
# which all threads share. A module-level lock is neither copied nor pickled with a layer.
PACKING_LOCK = threading.Lock()


def _kernel(operations: Any, name: str) -> Any:
    """Return the function with the least overhead that calls a PyTorch operation; None if PyTorch lacks the operation.

    An operation resolves its overload in each call, and an overload with packed weights checks all arguments for fake
    tensors in Python, which takes 6 microseconds; a small product takes 25 microseconds.
    """
    operation = getattr(operations, name, None)
    return None if operation is None else getattr(operation.default, "_op", operation.default)


ONEDNN_LINEAR = _kernel(torch.ops.mkldnn, "_linear_pointwise")
INT8_LINEAR = _kernel(torch.ops.quantized, "linear_dynamic")


def _state(tensor: Tensor) -> tuple[int, int]:
    """Return a fingerprint (data pointer, version) that changes if a tensor is replaced or modified in place."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def is_bare(module: nn.Module) -> bool:
    """Return whether calling a module runs the `forward` of its class and nothing else.

    Args:
        module: Any module.

    Returns:
        Whether it has no forward hooks, has not been compiled by `module.compile()`, and its `forward` has not been
        replaced, as Accelerate replaces it to move weights between devices. The hooks with which Transformers collects
        requested outputs, and which it never removes, do not count.
    """
    return not (
        any(getattr(hook, "__module__", "") != output_capturing.__name__ for hook in module._forward_hooks.values())
        or module._forward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in module.__dict__
    )


class _PackedWeight(NamedTuple):
    """A packed weight and fingerprints of the weight and bias that were packed; immutable, so threads need no lock."""

    #: Result of `pack`.
    weight: Any
    #: Fingerprints of the layer's weight and bias at the time of packing.
    made_from: tuple[Any, Any]
    #: A view of one element of the weight, and the value of the element at the time of packing. The view also keeps the
    #: weight's memory from being reused, so that no other tensor gets the same fingerprint.
    probe: Tensor
    number: float
    #: The bias; stored only to keep its memory from being reused.
    bias: Tensor | None


class PackedLinear(nn.Linear, ABC):
    """Linear layer that also keeps its weight in the packed layout of a faster inference kernel.

    The layer keeps its original weight and parameter names, so that saving, training and modifying the layer work as
    before; with gradients enabled it computes like `nn.Linear`. The weight is packed on the first call, and again after
    the weight has changed. The version counter of torch does not register changes through `weight.data`, by which PEFT
    merges adapters; they are detected by comparing one element of the weight. The packed 8-bit weight includes the
    bias; an in-place change through `bias.data` alone is not detected.

    Any number of threads may call a layer at the same time, including the first call: the packed weight and its
    fingerprints are stored by a single assignment and read once per call. Weights must not be changed while other
    threads compute.
    """

    #: Name of the kernel, and of its data type, in the report of `optimize_for_inference`.
    title: str
    numbers: str
    #: Minimum and maximum number of input rows for which the packed weight is used; otherwise the layer computes like
    #: `nn.Linear`.
    rows: tuple[float, float] = (0, math.inf)
    _packed: _PackedWeight | None = None

    @staticmethod
    @abstractmethod
    def available() -> bool:
        """Return whether the installed PyTorch supports the kernel.

        Returns:
            Whether the kernel is available.
        """

    @classmethod
    @abstractmethod
    def pack(cls, weight: Tensor, bias: Tensor | None) -> Any:
        """Pack the weight; the caller holds `PACKING_LOCK`.

        Args:
            weight: The weight, without gradient.
            bias: The bias that will be passed to `compute`.

        Shape:
            weight (out_features, in_features).

        Returns:
            The weight, for some kernels with the bias, in the packed layout that `compute` reads.
        """

    @abstractmethod
    def compute(self, states: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
        """Compute the layer with the packed weight.

        Args:
            states: The layer's input.
            packed: Packed weight from `pack`.
            bias: Bias added to the output.

        Shape:
            (..., in_features) to (..., out_features).

        Returns:
            The layer's output.
        """

    def forward(self, input: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute the layer like `nn.Linear`, with the packed weight if the input allows it.

        Args:
            input: The layer's input.
            bias: Bias added to the output if the layer has no bias; the kernel adds it without a separate pass.

        Shape:
            input (..., in_features), bias (out_features,). Returns (..., out_features).

        Returns:
            The output.

        Raises:
            ValueError: If a bias is given to a layer that has a bias.
        """
        parameters = self._parameters  # `self.weight` would be slow relative to such a short call
        weight, own = parameters.get("weight"), parameters.get("bias")
        if bias is not None and own is not None:
            raise ValueError("the layer has a bias of its own; another one cannot be given.")
        if weight is None or not self._takes(input, weight):
            output = super().forward(input)
            return output if bias is None else output + bias
        bias = own if bias is None else bias
        return self.compute(input, self._current(weight, bias).weight, bias)

    def bind(self, states: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function that computes the layer with its current weights, for inputs like the given one.

        Args:
            states: An example input; only its shape, data type and device are read.

        Returns:
            The function, which does not detect later changes of the weights.
        """
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        if weight is None or not self._takes(states, weight):
            return lambda states: nn.functional.linear(states, self.weight, self.bias)
        packed = self._current(weight, bias).weight
        return lambda states: self.compute(states, packed, bias)

    def _current(self, weight: Tensor, bias: Tensor | None) -> _PackedWeight:
        """Return the packed weight; pack it again if the weight or the bias has changed."""
        now = (_state(weight), None if bias is None else _state(bias))
        packed = self._packed  # read once, because other threads may replace it at any time
        if packed is None or packed.made_from != now or packed.probe.item() != packed.number:
            packed = self._pack_once(weight, bias, now)
        return packed

    def _pack_once(self, weight: Tensor, bias: Tensor | None, now: tuple[Any, Any]) -> _PackedWeight:
        """Pack the weight, unless another thread has just done so, and store the result."""
        with PACKING_LOCK:
            packed = self._packed
            if packed is None or packed.made_from != now or packed.probe.item() != packed.number:
                probe = weight.detach()[len(weight) // 2, weight.shape[1] // 2]
                kept = None if bias is None else bias.detach()
                packed = _PackedWeight(self.pack(weight.detach(), bias), now, probe, probe.item(), kept)
                self._packed = packed
            return packed

    def _takes(self, states: Tensor, weight: Tensor) -> bool:
        least, most = self.rows
        return (
            not torch.compiler.is_compiling()
            and not torch.is_grad_enabled()
            and states.dtype is torch.float32
            and weight.dtype is torch.float32
            and states.is_cpu
            and weight.is_cpu
            and least * self.in_features <= (size := states.numel()) <= most * self.in_features
            and size > 0
            and not torch.is_autocast_enabled("cpu")
        )

    def __getstate__(self) -> dict[str, Any]:  # copies and pickles pack their weights again
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_packed")}


class OneDNNLinear(PackedLinear):
    """Linear layer computed by oneDNN in float32, which can be twice as fast as MKL on CPUs that are not Intel's.

    The results are equal up to the order of summation.
    """

    title = "oneDNN"
    numbers = "float32"

    @staticmethod
    def available() -> bool:
        return torch.backends.mkldnn.is_available() and ONEDNN_LINEAR is not None

    @classmethod
    def pack(cls, weight: Tensor, bias: Tensor | None) -> Any:
        return torch.ops.mkldnn._reorder_linear_weight(weight)

    def compute(self, states: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
        return ONEDNN_LINEAR(states, packed, bias, "none", [], "")


class Int8Linear(PackedLinear):
    """Linear layer computed with 8-bit integers: weights are quantized per row, inputs by the range of the whole batch.

    On x86 processors without VNNI (of AVX2 only), weights have 7 bits, so that sums of products do not overflow. The
    result is not exact: outputs differ by about 1 % of the largest output, and the generated text of an example can
    depend on the other examples in its batch.
    """

    title = "int8"
    numbers = "integers of 8 bits"
    #: PyTorch's name of the quantized engine.
    engine = "onednn"

    @classmethod
    def available(cls) -> bool:
        return INT8_LINEAR is not None and cls.engine in torch.backends.quantized.supported_engines

    @classmethod
    def pack(cls, weight: Tensor, bias: Tensor | None) -> Any:
        return cls._pack(weight, bias, 127 if cls._is_exact() else 63)

    @classmethod
    def _pack(cls, weight: Tensor, bias: Tensor | None, largest: int) -> Any:
        """Quantize a weight to whole numbers from `-largest` to `largest`, and pack it."""
        scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).tiny).double() / largest
        zero = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():  # quantized tensors are deprecated, but have no public replacement yet
            warnings.simplefilter("ignore", UserWarning)
            quantized = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
        engine = torch.backends.quantized.engine
        try:
            torch.backends.quantized.engine = cls.engine
            return torch.ops.quantized.linear_prepack(quantized, None if bias is None else bias.detach())
        finally:
            torch.backends.quantized.engine = engine

    @classmethod
    @cache
    def _is_exact(cls) -> bool:
        """Return whether sums of products do not overflow with weights of 8 bits.

        On x86 processors without VNNI, pairs of products are added in 16 bits, which only weights of 7 bits fit.
        """
        ones = torch.ones(64, 64, device="cpu", dtype=torch.float32)
        with torch.no_grad():
            return torch.allclose(INT8_LINEAR(ones[:1], cls._pack(ones, None, 127), False), ones[:1] @ ones, rtol=0.01)

    def compute(self, states: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
        return INT8_LINEAR(states, packed, False)


class FBGEMMInt8Linear(Int8Linear):
    """[`Int8Linear`] computed by FBGEMM, which has less overhead per call: faster for small layers and few rows."""

    title = "int8 (FBGEMM)"
    engine = "fbgemm"

    @classmethod
    def available(cls) -> bool:
        return super().available() and cls._is_exact()


KINDS: tuple[type[PackedLinear], ...] = (Int8Linear, FBGEMMInt8Linear, OneDNNLinear)


class _PackedWeights(NamedTuple):
    """The stacked and packed weights of several layers, and the fingerprints of the weights that were packed.

    Immutable: after a layer's weight has changed, a new object is created.
    """

    weight: Any
    bias: Tensor | None
    #: Fingerprints, probes and their values for each layer, as in `_PackedWeight`.
    made_from: list[tuple[Any, Any]]
    probes: list[Tensor]
    numbers: list[float]
    #: The biases of the layers; stored only to keep their memory from being reused.
    biases: list[Tensor]

    def is_of(self, made_from: list[tuple[Any, Any]]) -> bool:
        """Return whether no layer's weight has changed since packing."""
        return self.made_from == made_from and [probe.item() for probe in self.probes] == self.numbers


class JoinedLayers:
    """Linear layers with the same input, computed as one product of their stacked weights.

    One product has the overhead of a single call, and with 8-bit integers quantizes the input once. The layers keep
    their weights and can still be called separately. The stacked weight is stored in packed form only; it is packed on
    the first call, and again after a weight has changed, like the weight of a single layer.

    Args:
        layers: The layers, all of the same class and with the same `rows`.
    """

    def __init__(self, layers: Sequence[PackedLinear]) -> None:
        self.layers = tuple(layers)
        self.kind = type(layers[0])
        self._packed: _PackedWeights | None = None

    def __call__(self, layers: Sequence[nn.Module | None], states: Tensor) -> tuple[Tensor, ...] | None:
        """Compute all layers.

        Args:
            layers: The current modules in the places of the layers, which differ if a layer was replaced or wrapped.
            states: Input of the layers.

        Shape:
            states (..., in_features). Returns (..., out_features) for each layer, views of one tensor.

        Returns:
            The outputs; None if the layers must be called separately, because a layer was replaced, has a hook, or does
            not use its packed weight for this input.
        """
        packed = self._current(layers, states)
        if packed is None:
            return None
        joined = self.layers[0].compute(states, packed.weight, packed.bias)
        return joined.split([layer.out_features for layer in self.layers], dim=-1)

    def bind(self, layers: Sequence[nn.Module | None], states: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return a function that computes all layers with their current weights, for inputs like the given one.

        Args:
            layers: The current modules in the places of the layers, as in `__call__`.
            states: An example input; only its shape, data type and device are read.

        Returns:
            The function, which joins the outputs in the last dimension and does not detect later changes of the
            weights; None if the layers must be called separately.
        """
        packed = self._current(layers, states)
        if packed is None:
            return None
        compute, weight, bias = self.layers[0].compute, packed.weight, packed.bias
        return lambda states: compute(states, weight, bias)

    def _current(self, layers: Sequence[nn.Module | None], states: Tensor) -> _PackedWeights | None:
        """Return the packed weights, packed again after changes; None if the layers must be called separately."""
        made_from = []
        for layer, there in zip(self.layers, layers, strict=True):
            weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
            usual = layer is there and type(layer) is self.kind and is_bare(layer)
            if not usual or weight is None or not layer._takes(states, weight):
                return None
            made_from.append((_state(weight), None if bias is None else _state(bias)))
        packed = self._packed
        return packed if packed is not None and packed.is_of(made_from) else self._pack_once(made_from)

    def _pack_once(self, made_from: list[tuple[Any, Any]]) -> _PackedWeights:
        """Pack the stacked weight, unless another thread has just done so, and store the result."""
        with PACKING_LOCK:
            packed = self._packed
            if packed is None or not packed.is_of(made_from):
                weights = [layer.weight.detach() for layer in self.layers]
                biases = [layer.bias.detach() for layer in self.layers if layer.bias is not None]
                bias = torch.cat(biases) if biases else None
                probes = [weight[len(weight) // 2, weight.shape[1] // 2] for weight in weights]
                numbers = [probe.item() for probe in probes]
                weight = self.kind.pack(torch.cat(weights), bias)
                packed = self._packed = _PackedWeights(weight, bias, made_from, probes, numbers, biases)
            return packed

    def __getstate__(self) -> dict[str, Any]:  # copies and pickles pack their weights again
        return {**self.__dict__, "_packed": None}


def _layers_of_same_input(module: Any) -> list[Any]:
    return [getattr(module, name, None) for name in getattr(module, "same_input", ())]


def join_layers(model: nn.Module) -> None:
    """Set `joined_layers` of all modules whose layers with the same input can be computed as one product.

    Args:
        model: A model, whose modules list the names of layers with the same input in `same_input`.
    """
    module: Any
    for module in model.modules():
        layers = _layers_of_same_input(module)
        forms = {(type(layer), getattr(layer, "rows", None), getattr(layer, "bias", None) is None) for layer in layers}
        if len(forms) == 1 and isinstance(layers[0], KINDS):
            module.joined_layers = JoinedLayers(layers)


def products_of(model: nn.Module, layers: Sequence[nn.Linear]) -> list[list[nn.Linear]]:
    """Group layers that will be computed as one product if all of them get the same class.

    Args:
        model: The model.
        layers: Some layers of the model.

    Returns:
        Groups of layers in the order of the model; a layer that is computed separately is a group of its own.
    """
    left, found = set(layers), list[list[nn.Linear]]()
    for module in model.modules():
        together = _layers_of_same_input(module)
        alike = {(layer.in_features, layer.out_features, layer.bias is None) for layer in together if layer in left}
        if len(alike) == 1 and left.issuperset(together) and all(map(is_bare, together)):
            found.append(together)
        elif isinstance(module, nn.Linear) and module in left:
            found.append([module])
        else:
            continue
        left.difference_update(found[-1])
    return found


@cache
def mkl_is_narrow() -> bool:
    """Return whether MKL, PyTorch's BLAS library, uses only half of this processor's vector width.

    Returns:
        True for AMD processors with AVX-512, for which oneDNN has kernels and MKL does not; False if PyTorch does not
        report the processor.
    """
    if not (OneDNNLinear.available() and torch.backends.mkl.is_available()):
        return False
    found: Any = getattr(torch.cpu, "get_capabilities", dict)()
    return "AMD" in found.get("cpu_name", "") and bool(found.get("avx512_f"))


def takes_bias(head: Any) -> bool:
    """Return whether a separate bias of the logits is to be passed to an output layer, whose kernel adds it.

    All callers must pass the bias or none, because the packed weight of some kernels includes it.

    Args:
        head: The output layer.

    Returns:
        True for a [`PackedLinear`] whose own `bias` is None.
    """
    return isinstance(head, KINDS) and head.bias is None


def output_logits(head: Any, states: Tensor) -> Tensor:
    """Compute an output layer with the fastest kernel that does not need a packed copy of its weight.

    Large float32 layers are computed by oneDNN if gradients are disabled and `mkl_is_narrow`: 1.2 to 1.6 times as fast
    as MKL (32,000 outputs of 256 or 512 inputs, 1 to 160 rows, Zen 4). The results are equal up to the order of
    summation.

    Args:
        head: The output layer.
        states: Last hidden states of the decoder.

    Shape:
        (..., D) to (..., V).

    Returns:
        The logits.
    """
    weight = head._parameters.get("weight") if type(head) is nn.Linear and is_bare(head) else None
    if (
        not (torch.compiler.is_compiling() or torch.is_grad_enabled())
        and type(weight) is nn.Parameter
        and weight.numel() >= LARGE_LAYER
        and weight.is_cpu
        and weight.dtype is states.dtype is torch.float32
        and not torch.is_autocast_enabled("cpu")
        and mkl_is_narrow()
    ):
        return ONEDNN_LINEAR(states, weight, head._parameters.get("bias"), "none", [], "")
    return head(states)


def plain_linear_layers(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a model that are not wrapped, pruned, quantized or optimized.

    Args:
        model: Any model.

    Returns:
        The layers.
    """
    return [module for module in model.modules() if type(module) is nn.Linear and "weight" in module._parameters]


def shortest_times(functions: Sequence[Callable[[], Any]], rounds: int = 5, seconds: float = 0.0) -> list[float]:
    """Time functions in alternation, so that other load on the machine affects all of them equally.

    Args:
        functions: The functions; each is called once for warm-up.
        rounds: Minimum number of rounds.
        seconds: Rounds are repeated for this time, so that short functions are timed more often, but at most
            `MOST_ROUNDS` times.

    Returns:
        The shortest time of each function, in seconds; above 0, so that ratios are finite.
    """
    # CPU time is not affected by other processes, but measures a single thread only; otherwise wall time is measured.
    clock = time.thread_time if torch.get_num_threads() == 1 and _is_fine(time.thread_time) else time.perf_counter
    best = [float("inf")] * len(functions)
    begin = clock()
    for turn in range(max(rounds, MOST_ROUNDS) + 1):
        if turn > rounds and clock() - begin >= seconds:
            break
        for i, function in enumerate(functions):
            start = clock()
            function()
            if turn:
                best[i] = min(best[i], max(clock() - start, NANOSECOND))
    return best


def _is_fine(clock: Callable[[], float]) -> bool:
    """Return whether a clock has a resolution of microseconds; some systems count CPU time in steps of 10 ms."""
    return len({clock() for _ in range(100)}) > 10


def measure_gains(
    products: Sequence[Sequence[nn.Linear]], kinds: Sequence[type[PackedLinear]]
) -> list[tuple[float, ...]]:
    """Measure the speedup of layers with other kernels.

    Args:
        products: Float32 layers of one shape on the CPU, as returned by `products_of`. They are called one after the
            other, as in a model, because the weights of a single layer would stay in the processor's cache.
        kinds: Layer classes of the other kernels.

    Returns:
        Speedups of each class, for each number of `BENCHMARK_ROWS`.
    """
    candidates = [[list(layers) for layers in products[:MEASURED]]]
    for kind in kinds:
        candidates.append([[copy.copy(layer) for layer in layers] for layers in candidates[0]])
        for layer in chain.from_iterable(candidates[-1]):
            layer.__class__ = kind
    ratios = []
    with torch.no_grad():
        for rows in BENCHMARK_ROWS:
            states = torch.ones(rows, products[0][0].in_features, device="cpu", dtype=torch.float32)
            calls = []
            for candidate in candidates:
                calls.append(partial(_call_all, [one for layers in candidate for one in _bind(layers, states)], states))
            stock, *times = shortest_times(calls, seconds=SECONDS)
            ratios.append([stock / time for time in times])
    return list(zip(*ratios, strict=True))


def _bind(layers: Sequence[Any], states: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """Return functions that compute the layers of one product without hooks, because the input is artificial."""
    if not isinstance(layers[0], KINDS):
        return [partial(nn.Linear.forward, layer) for layer in layers]
    joined = JoinedLayers(layers).bind(layers, states) if len(layers) > 1 else None
    return [layer.bind(states) for layer in layers] if joined is None else [joined]


def best_kind(gains: Sequence[Sequence[float]]) -> tuple[int, range]:
    """Return the kernel with the largest total speedup, and the range of `BENCHMARK_ROWS` for which it should be used.

    Args:
        gains: Speedups from `measure_gains`; the last of several equally good kernels is chosen.

    Returns:
        Index of the kernel, and indices of `BENCHMARK_ROWS`; an empty range if no kernel is fast enough to justify a
        packed copy.
    """
    runs = [range(i, j) for i in range(len(BENCHMARK_ROWS)) for j in range(i + 1, len(BENCHMARK_ROWS) + 1)]
    found = [(1.0, 0, 0, range(0))]  # total speedup, kernel, minus the number of `BENCHMARK_ROWS`, range
    for kind, of_kind in enumerate(gains):
        for run in runs:
            inside = [of_kind[i] for i in run]
            if geometric_mean(inside) >= MIN_SPEEDUP:
                found.append((math.prod(inside), kind, -len(run), run))
    _, best, _, place = max(found, key=lambda one: one[:3])
    return best, place


def rows_between(at: range) -> tuple[float, float]:
    """Return the range of input rows that are closest to the given entries of `BENCHMARK_ROWS`.

    Args:
        at: Consecutive indices of `BENCHMARK_ROWS`.

    Returns:
        Minimum and maximum number of rows, inclusive.
    """
    first, last, known = at[0], at[-1], BENCHMARK_ROWS
    least = math.sqrt(known[first - 1] * known[first]) if first else 0
    most = math.sqrt(known[last] * known[last + 1]) if last + 1 < len(known) else math.inf
    return least, most


def _call_all(functions: Sequence[Callable[[Tensor], Tensor]], states: Tensor) -> None:
    for function in functions:
        function(states)


def keep_freed_memory() -> None:
    """Make the C library keep the memory of freed tensors for new tensors.

    glibc returns large blocks to the system, and new blocks cause a page fault every 4 KiB. After a block of nearly
    32 MiB, the largest size that raises its threshold, has been freed, glibc keeps smaller blocks, up to 64 MiB in
    total, until the process ends. The block is never written to and therefore costs no memory. Other C libraries are
    not affected.
    """
    torch.empty(NEARLY_32_MIB, dtype=torch.uint8, device="cpu")


class InferenceMixin:
    """Adds [`optimize_for_inference`] to a model."""

    def optimize_for_inference(self, *, int8: bool = False) -> list[str]:
        """Optimize the model for inference on its device; call this method once before inference.

        On a CPU, float32 linear layers are computed by oneDNN for those shapes and numbers of rows for which oneDNN is
        measured to be faster; the results are equal up to the order of summation. On a GPU with bfloat16 support, the
        weights of a float32 model are converted to bfloat16. The model is set to evaluation mode. On a CPU the weights
        do not change, so that the model can still be saved; each optimized linear layer keeps a packed copy of its
        weight.

        Args:
            int8: On a CPU, compute linear layers with 8-bit integers if that is faster, by oneDNN or FBGEMM, whichever
                is faster for the shape. This is the fastest option, but not exact: weights are quantized per row and
                inputs by the range of the whole batch, so that a generated text can depend slightly on the other texts
                and the size of the batch. Layers with a small gain may be chosen in one process and not in another.

        Returns:
            A description of the optimizations, one per line; empty if nothing was changed.

        Raises:
            ValueError: If `int8` is True and the model is not on a CPU; the message names the device.
            RuntimeError: If `int8` is True and the installed PyTorch has no oneDNN.
        """
        model: Any = self
        model.eval()
        device = model.device
        if int8 and device.type != "cpu":
            raise ValueError(f"int8 is for CPUs; the model is on {device}.")
        if int8 and not Int8Linear.available():
            raise RuntimeError("int8 needs a PyTorch with oneDNN, which this one lacks.")
        if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
            if model.dtype != torch.float32:
                return []
            model.to(torch.bfloat16)
            return [f"bfloat16: all weights, on {torch.cuda.get_device_name(device)}"]
        layers = [layer for layer in plain_linear_layers(model) if layer.weight.dtype == torch.float32]
        kinds = [kind for kind in KINDS if (int8 or not issubclass(kind, Int8Linear)) and kind.available()]
        if device.type != "cpu" or not layers or not kinds:
            return []
        by_shape: dict[tuple[int, int], list[nn.Linear]] = defaultdict(list)
        for layer in layers:
            by_shape[layer.in_features, layer.out_features].append(layer)
        lines = []
        chosen = {kind: (list[float](), list[nn.Linear]()) for kind in kinds}
        for alike in by_shape.values():
            measured = measure_gains(products_of(model, alike), kinds)
            best, at = best_kind(measured)
            if at:
                gains, of_kind = chosen[kinds[best]]
                gains += [measured[best][i] for i in at]
                of_kind += alike
                one: Any
                for one in alike:
                    one.__class__ = kinds[best]
                    one.rows = rows_between(at)
        join_layers(model)
        for kind, (gains, of_kind) in chosen.items():
            if gains:
                lines.append(
                    f"{kind.title}: {len(of_kind)} of {len(layers)} linear layers in {kind.numbers}, "
                    f"{min(gains):.1f} to {max(gains):.1f} times as fast"
                )
        return lines


__all__ = ["FBGEMMInt8Linear", "InferenceMixin", "Int8Linear", "JoinedLayers", "OneDNNLinear"]
