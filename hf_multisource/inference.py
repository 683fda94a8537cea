"""Faster linear layers for inference: the kernels that suit the machine, or integers of 8 bits."""

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

# Rows of the input with which kernels are timed: a text without beams and a text with 10 beams, for both of which
# reading the weight takes longest; a few texts with beams; a batch.
ROWS = (1, 10, 40, 160)
NEARLY_32_MIB = 2**25 - 2**16  # with what the allocator adds
MEASURED = 12  # products of a shape, at most
SECONDS = 0.15  # for the kernels of one shape and number of rows; with 5 rounds, short calls were chosen by chance
MOST_ROUNDS = 60  # from then on the shortest time hardly falls
NANOSECOND = 1e-9
LARGE_LAYER = 2**22  # numbers in the weight of an output layer; in small layers oneDNN takes longer to begin than MKL
FASTER = 1.1  # what a kernel must be better by, lest noise choose it
# Held while any weight is packed: packing changes PyTorch's quantized engine and warning filters, which all threads
# share, and restores them. A module-level lock is neither copied nor pickled with a layer.
PACKING_LOCK = threading.Lock()


def _kernel(operations: Any, name: str) -> Any:
    """Return the function that calls an operation of PyTorch in the least time; None if this PyTorch lacks it.

    An operation looks for its overload in each call, and an overload that takes packed weights looks through all its
    arguments for fake ones, in Python: 6 microseconds, where a small product takes 25.
    """
    operation = getattr(operations, name, None)
    return None if operation is None else getattr(operation.default, "_op", operation.default)


ONEDNN_LINEAR = _kernel(torch.ops.mkldnn, "_linear_pointwise")
INT8_LINEAR = _kernel(torch.ops.quantized, "linear_dynamic")


def _state(tensor: Tensor) -> tuple[int, int]:
    """What is another one after the tensor has been changed, or put in another's place."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def is_bare(module: nn.Module) -> bool:
    """Return whether calling a module runs the `forward` of its class and nothing else.

    Args:
        module: Any module.

    Returns:
        Whether it has no forward hooks, has not been compiled by `module.compile()`, and its `forward` has not been
        replaced, as Accelerate replaces it to move weights between devices.
    """
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in module.__dict__
    )


class _PackedWeight(NamedTuple):
    """A packed weight and what it was made from. It is never changed: threads share it without a lock."""

    #: What `pack` returned.
    weight: Any
    #: Fingerprints of the layer's weight and of the bias at that time.
    made_from: tuple[Any, Any]
    #: A view of one element of the weight, and its value at that time. The view also keeps the weight's memory from
    #: being reused, so that no other tensor gets the same fingerprint.
    probe: Tensor
    number: float
    #: The bias; kept for its memory only.
    bias: Tensor | None


class _OneCopyMore(nn.Linear, ABC):
    """A linear layer with a second copy of its weight, in a form of its own, for inference.

    The layer keeps its weight and its names, so that it is saved, trained and changed as before; where gradients are
    wanted it computes as before. The copy is made when it is needed, and anew after the weight has changed. A change
    through `weight.data`, as PEFT merges adapters, torch does not count: it is seen by one of the numbers. In 8 bits
    the copy holds the bias, too; a change in place through `bias.data`, and of nothing else, is not seen.

    Any number of threads may call a layer at once, the first time too: the copy and all that belongs to it are stored
    by one assignment, and read once in each call. Weights must not be changed while other threads compute.
    """

    #: What the report of `optimize_for_inference` calls it, and the numbers it computes with.
    title: str
    numbers: str
    #: With how many rows, at least and at most, it computes so; with others as `nn.Linear` does.
    rows: tuple[float, float] = (0, math.inf)
    _packed: _PackedWeight | None = None

    @staticmethod
    @abstractmethod
    def available() -> bool:
        """Say whether this PyTorch has what it takes.

        Returns:
            Whether it has.
        """

    @classmethod
    @abstractmethod
    def pack(cls, weight: Tensor, bias: Tensor | None) -> Any:
        """Make the copy. The caller holds `PACKING_LOCK`.

        Args:
            weight: The weight, without gradient.
            bias: What `compute` will be given.

        Shape:
            weight (out_features, in_features).

        Returns:
            The weight, and the bias if it is wanted there, in the form that `compute` wants.
        """

    @abstractmethod
    def compute(self, states: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
        """Compute with the copy.

        Args:
            states: The layer's input.
            packed: What `pack` made.
            bias: Added to the output.

        Shape:
            (..., in_features) to (..., out_features).

        Returns:
            The layer's output.
        """

    def forward(self, input: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute as `nn.Linear` does.

        Args:
            input: States.
            bias: Added to the output, where the layer has no bias of its own: such kernels do it on their way.

        Shape:
            input (..., in_features), bias (out_features,). Returns (..., out_features).

        Returns:
            The output.

        Raises:
            ValueError: If a bias is given to a layer that has one.
        """
        parameters = self._parameters  # `self.weight` takes long, for so short a call
        weight, own = parameters.get("weight"), parameters.get("bias")
        if bias is not None and own is not None:
            raise ValueError("the layer has a bias of its own; another one cannot be given.")
        if weight is None or not self._takes(input, weight):
            output = super().forward(input)
            return output if bias is None else output + bias
        bias = own if bias is None else bias
        return self.compute(input, self._current(weight, bias).weight, bias)

    def bind(self, states: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function that computes the layer with its present weights, for inputs like this one.

        Args:
            states: An input; its shape, type and device are read.

        Returns:
            The function. It does not notice when the weights change.
        """
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        if weight is None or not self._takes(states, weight):
            return lambda states: nn.functional.linear(states, self.weight, self.bias)
        packed = self._current(weight, bias).weight
        return lambda states: self.compute(states, packed, bias)

    def _current(self, weight: Tensor, bias: Tensor | None) -> _PackedWeight:
        """Return the packed weight, packed anew if the weight or the bias has changed."""
        now = (_state(weight), None if bias is None else _state(bias))
        packed = self._packed  # read once: another thread may store another one at any time
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

    def __getstate__(self) -> dict[str, Any]:  # copies and pickles make their own
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_packed")}


class OneDNNLinear(_OneCopyMore):
    """A linear layer computed by oneDNN, in float32: on CPUs of other makers, MKL leaves half their speed unused.

    The same numbers up to the order of summation.
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


class Int8Linear(_OneCopyMore):
    """A linear layer computed with integers of 8 bits: weights by rows, inputs by the range of the whole batch.

    Not exact: the output differs by about 1 % of its largest number, and a text may come out otherwise in another
    batch.
    """

    title = "int8"
    numbers = "integers of 8 bits"
    #: PyTorch's name of the library that computes.
    engine = "onednn"

    @classmethod
    def available(cls) -> bool:
        return INT8_LINEAR is not None and cls.engine in torch.backends.quantized.supported_engines

    @classmethod
    def pack(cls, weight: Tensor, bias: Tensor | None) -> Any:
        scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).tiny).double() / 127
        zero = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():  # that these tensors will go one day; the product has no other public form yet
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
        engine = torch.backends.quantized.engine
        try:
            torch.backends.quantized.engine = cls.engine
            return torch.ops.quantized.linear_prepack(quantised, None if bias is None else bias.detach())
        finally:
            torch.backends.quantized.engine = engine

    def compute(self, states: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
        return INT8_LINEAR(states, packed, False)


class FBGEMMInt8Linear(Int8Linear):
    """As [`Int8Linear`], computed by FBGEMM, which takes less time to begin: faster for small layers and few rows."""

    title = "int8 (FBGEMM)"
    engine = "fbgemm"

    @classmethod
    def available(cls) -> bool:
        return super().available() and cls._is_exact()

    @classmethod
    @cache
    def _is_exact(cls) -> bool:
        """Return whether sums of products fit: without VNNI, FBGEMM adds pairs of products in 16 bits."""
        largest = cls(64, 64, bias=False, device="cpu", dtype=torch.float32)
        with torch.no_grad():
            largest.weight.fill_(1.0)
            ones = torch.ones(1, 64, device="cpu", dtype=torch.float32)
            return torch.allclose(largest(ones), nn.Linear.forward(largest, ones), rtol=0.01)


KINDS: tuple[type[_OneCopyMore], ...] = (Int8Linear, FBGEMMInt8Linear, OneDNNLinear)


class _PackedWeights(NamedTuple):
    """The weights of several layers, stacked and packed, with the state of the layers at that time.

    It is never changed: where a layer's weight has changed, another one is made.
    """

    weight: Any
    bias: Tensor | None
    #: Of each layer, as in `_PackedWeight`.
    made_from: list[tuple[Any, Any]]
    probes: list[Tensor]
    numbers: list[float]
    #: The biases of the layers; kept for their memory only.
    biases: list[Tensor]

    def is_of(self, made_from: list[tuple[Any, Any]]) -> bool:
        """Return whether no layer's weight has changed since they were packed."""
        return self.made_from == made_from and [probe.item() for probe in self.probes] == self.numbers


class JoinedLayers:
    """Linear layers that read the same states, computed as one product of their stacked weights.

    One product begins once, where each layer would begin anew, and in 8 bits it rounds the states once. The layers keep
    their weights, and still compute by themselves when they are called. The stacked weight is stored in packed form
    only. It is made when it is first needed, and anew after a weight has changed, as that of a single layer.

    Args:
        layers: The layers, all of one kind and with the same numbers of rows.
    """

    def __init__(self, layers: Sequence[_OneCopyMore]) -> None:
        self.layers = tuple(layers)
        self.kind = type(layers[0])
        self._packed: _PackedWeights | None = None

    def __call__(self, layers: Sequence[nn.Module | None], states: Tensor) -> tuple[Tensor, ...] | None:
        """Compute all layers.

        Args:
            layers: The modules that are in the places of the layers now: others if a layer was replaced or wrapped.
            states: Their input.

        Shape:
            states (..., in_features). Returns (..., out_features) for each layer, views of one tensor.

        Returns:
            The outputs; None if the layers must be called one by one: one was replaced, has a hook, or does not use its
            packed weight for such states.
        """
        packed = self._current(layers, states)
        if packed is None:
            return None
        joined = self.layers[0].compute(states, packed.weight, packed.bias)
        return joined.split([layer.out_features for layer in self.layers], dim=-1)

    def bind(self, layers: Sequence[nn.Module | None], states: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return a function that computes all layers with their present weights, for inputs like this one.

        Args:
            layers: As in a call.
            states: An input; its shape, type and device are read.

        Returns:
            The function, which joins the outputs in the last dimension and does not notice when weights change; None
            as in a call.
        """
        packed = self._current(layers, states)
        if packed is None:
            return None
        compute, weight, bias = self.layers[0].compute, packed.weight, packed.bias
        return lambda states: compute(states, weight, bias)

    def _current(self, layers: Sequence[nn.Module | None], states: Tensor) -> _PackedWeights | None:
        """Return the packed weights, packed anew if any has changed; None if the layers must be called one by one."""
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

    def __getstate__(self) -> dict[str, Any]:  # copies and pickles make their own
        return {**self.__dict__, "_packed": None}


def _layers_of_same_input(module: Any) -> list[Any]:
    return [getattr(module, name, None) for name in getattr(module, "same_input", ())]


def join_layers(model: nn.Module) -> None:
    """Let modules compute those of their layers as one product that are of one kind and read the same states.

    Args:
        model: A model. Modules name such layers in `same_input`, and find what joins them in `joined_layers`.
    """
    module: Any
    for module in model.modules():
        layers = _layers_of_same_input(module)
        forms = {(type(layer), getattr(layer, "rows", None), getattr(layer, "bias", None) is None) for layer in layers}
        if len(forms) == 1 and isinstance(layers[0], KINDS):
            module.joined_layers = JoinedLayers(layers)


def products_of(model: nn.Module, layers: Sequence[nn.Linear]) -> list[list[nn.Linear]]:
    """Find which layers will be computed as one product, if they become of one kind.

    Args:
        model: The model.
        layers: Layers of it.

    Returns:
        The layers in the order of the model: several together, if they will be one product, and the others alone.
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
    """Whether MKL, with which PyTorch multiplies matrices, leaves half the width of this processor's vectors unused.

    Returns:
        Whether it is a processor of AMD with AVX-512, for which oneDNN has kernels and MKL has not; False where this
        PyTorch cannot say.
    """
    if not (OneDNNLinear.available() and torch.backends.mkl.is_available()):
        return False
    found: Any = getattr(torch.cpu, "get_capabilities", dict)()
    return "AMD" in found.get("cpu_name", "") and bool(found.get("avx512_f"))


def output_logits(head: Any, states: Tensor) -> Tensor:
    """Compute an output layer, in the fastest way that needs no copy of its weight.

    For large layers in float32 where gradients are off and `mkl_is_narrow`, that is oneDNN: 1.2 to 1.6 times as fast
    as MKL (32,000 outputs of 256 or 512 inputs, 1 to 160 rows, Zen 4). The same numbers up to the order of summation.

    Args:
        head: The output layer.
        states: Last states of the decoder.

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
    """The linear layers that nothing has wrapped, pruned, quantised or optimised.

    Args:
        model: Any model.

    Returns:
        The layers.
    """
    return [module for module in model.modules() if type(module) is nn.Linear and "weight" in module._parameters]


def shortest_times(functions: Sequence[Callable[[], Any]], rounds: int = 5, seconds: float = 0.0) -> list[float]:
    """Measure functions in turn, so that what else the machine does troubles all of them alike.

    Args:
        functions: What to call; each once more than it is measured.
        rounds: How often, at least.
        seconds: How long to go on, so that short functions are measured more often; at most `MOST_ROUNDS` times.

    Returns:
        The shortest time of each, in seconds; more than 0, so that ratios of them exist.
    """
    # Other processes do not lengthen the time on the processor; the time of several threads is measured on the wall.
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
    """Whether a clock moves within microseconds; some systems count the time on the processor in steps of 10 ms."""
    return len({clock() for _ in range(100)}) > 10


def measure_gains(
    products: Sequence[Sequence[nn.Linear]], kinds: Sequence[type[_OneCopyMore]]
) -> list[tuple[float, ...]]:
    """How many times as fast layers would be if they were of other kinds.

    Args:
        products: Layers of one shape, in float32 on the CPU, as `products_of` gives them. One after the other is
            measured, as a model runs them: the weights of a single one would stay in the processor's cache.
        kinds: The other kinds.

    Returns:
        The ratios of each kind, for each number of `ROWS`.
    """
    candidates = [[list(layers) for layers in products[:MEASURED]]]
    for kind in kinds:
        candidates.append([[copy.copy(layer) for layer in layers] for layers in candidates[0]])
        for layer in chain.from_iterable(candidates[-1]):
            layer.__class__ = kind
    ratios = []
    with torch.no_grad():
        for rows in ROWS:
            states = torch.ones(rows, products[0][0].in_features, device="cpu", dtype=torch.float32)
            calls = []
            for candidate in candidates:
                calls.append(partial(_call_all, [one for layers in candidate for one in _bind(layers, states)], states))
            stock, *times = shortest_times(calls, seconds=SECONDS)
            ratios.append([stock / time for time in times])
    return list(zip(*ratios, strict=True))


def _bind(layers: Sequence[Any], states: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """Return what computes layers of one kind, for one product: without hooks, as these are no states of a model."""
    if not isinstance(layers[0], KINDS):
        return [partial(nn.Linear.forward, layer) for layer in layers]
    joined = JoinedLayers(layers).bind(layers, states) if len(layers) > 1 else None
    return [layer.bind(states) for layer in layers] if joined is None else [joined]


def best_kind(gains: Sequence[Sequence[float]]) -> tuple[int, range]:
    """Which kind is best, and with how many rows: those between which it gains most, all in all.

    Args:
        gains: From `measure_gains`; of kinds that are as good, the last is taken.

    Returns:
        Index of the kind, and indices of `ROWS`; if there are none, no kind is worth its copy.
    """
    runs = [range(i, j) for i in range(len(ROWS)) for j in range(i + 1, len(ROWS) + 1)]
    found = [(1.0, 0, 0, range(0))]  # what it gains in all, the kind, minus the rows, the rows
    for kind, of_kind in enumerate(gains):
        for run in runs:
            inside = [of_kind[i] for i in run]
            if geometric_mean(inside) >= FASTER:
                found.append((math.prod(inside), kind, -len(run), run))
    _, best, _, place = max(found, key=lambda one: one[:3])
    return best, place


def rows_between(at: range) -> tuple[float, float]:
    """The numbers of rows that are nearer to those measured than to others.

    Args:
        at: Indices of `ROWS` that follow one another.

    Returns:
        The least and the most, inclusive.
    """
    least = math.sqrt(ROWS[at[0] - 1] * ROWS[at[0]]) if at[0] else 0
    most = math.sqrt(ROWS[at[-1]] * ROWS[at[-1] + 1]) if at[-1] + 1 < len(ROWS) else math.inf
    return least, most


def _call_all(functions: Sequence[Callable[[Tensor], Tensor]], states: Tensor) -> None:
    for function in functions:
        function(states)


def keep_freed_memory() -> None:
    """Let the C library keep the memory that tensors give back, for the next ones.

    glibc returns large blocks to the system, and new ones begin with a page fault every 4 KiB. Once a block of nearly
    32 MiB, the most it looks at, has been freed, it keeps what is smaller, and up to 64 MiB in all, as long as the
    process lives. This one is not written to, so that it costs no memory; other libraries do as they do.
    """
    torch.empty(NEARLY_32_MIB, dtype=torch.uint8, device="cpu")


class InferenceMixin:
    """Adds [`optimize_for_inference`] to a model."""

    def optimize_for_inference(self, *, int8: bool = False) -> list[str]:
        """Choose what is fastest on the model's device, once, before inference.

        On a CPU, oneDNN for the linear layers in float32 of those shapes, and for those numbers of rows, that are
        measured to be faster so, here and now: exact. On a GPU that has it, bfloat16 for all weights. The model goes to
        evaluation mode. On a CPU its weights stay as they are, so it can still be saved; each linear layer that is
        chosen keeps one more copy.

        Args:
            int8: On a CPU, compute the linear layers that gain by it with integers of 8 bits, by oneDNN or FBGEMM,
                whichever is faster for layers of the shape: fastest, not exact.
                Weights are rounded by rows, inputs by the range of a whole batch, and a layer may gain in large batches
                only, so that a text may depend a little on its neighbours and on the size of the batch; and a layer
                whose gain is small may be chosen in one process and not in another.

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
