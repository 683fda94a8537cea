"""Compare decoding steps in ONNX Runtime with our own decoding steps on a CPU.

    python benchmarks/engines.py [--size msmt] [--beams 10] [--batch 1 16] [--rounds 3]

Needs `pip install onnxruntime onnx onnxscript`. The model has the combiner *flat*. Its encoders, its first step and
beam search run as after `optimize_for_inference`. From the second step on, the decoder's layers and the output layer
are one graph, exported from `DecodingStep`: in float32, or with the matrix products in 8 bits as
`onnxruntime.quantization.quantize_dynamic` makes them. The graph reads and returns the keys and values of all beams,
and a mask instead of a copy follows the order of the beams. No text ends, so that no example leaves the batch.

The package itself does not use ONNX Runtime. This script measures whether decoding would be faster with it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from common import SIZES, Size, interleave, our_model, parse, save, sources_of
from hf_multisource import decoder_step, modeling_multisource, modeling_sources, vocabulary

INPUTS = ("states", "mask", "source_mask")  # the first inputs of the graph; keys and values of all layers follow
EXAMPLES, BEAMS, POSITIONS = 2, 3, 4  # sizes of the example inputs for the export; the graph accepts any size


class DecodingStep(nn.Module):
    """One step of a decoder with the combiner *flat*, from embedded tokens to logits, as a function of tensors only.

    Args:
        model: The model, whose weights the step shares or copies.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        decoder = model.model.decoder
        self.layers, self.norm, self.head = decoder.layers, decoder.layer_norm, model.lm_head
        self.bias = nn.Parameter(model.final_logits_bias[0].detach().clone(), requires_grad=False)
        self.heads = decoder.config.decoder_attention_heads
        self.joined = nn.ModuleList([self._join(layer.self_attn) for layer in decoder.layers])

    @staticmethod
    def _join(attention: Any) -> nn.Linear:
        """Join the linear layers of queries, keys and values into one layer."""
        layers = [attention.q_proj, attention.k_proj, attention.v_proj]
        has_bias = layers[0].bias is not None
        joined = nn.Linear(layers[0].in_features, 3 * layers[0].out_features, bias=has_bias)
        joined.weight.data = torch.cat([layer.weight.detach() for layer in layers])
        if has_bias:
            joined.bias.data = torch.cat([layer.bias.detach() for layer in layers])
        return joined

    def _split(self, states: Tensor, examples: int) -> Tensor:
        """Split (B * K, D) into heads: (B, H, K, d)."""
        return states.reshape(examples, -1, self.heads, states.shape[1] // self.heads).transpose(1, 2)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend, and join the heads: (B, H, K, d) to (B * K, D)."""
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(2, 3) + mask
        return (torch.softmax(scores, dim=-1) @ values).transpose(1, 2).flatten(0, 1).flatten(1)

    def forward(
        self, states: Tensor, mask: Tensor, source_mask: Tensor, cache: list[Tensor], sources: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Compute one step.

        Args:
            states: The embedded tokens.
            mask: Added to the self-attention scores, so that each beam attends to its own earlier positions (see
                `BeamCache`).
            source_mask: Added to the scores of the attention to the sources.
            cache: Keys and values of the earlier positions of all beams, for each layer in turn.
            sources: Keys and values of the sources, for each layer in turn.

        Shape:
            states (B * K, D), mask (B, 1, K, (S + 1) * K), source_mask (B, 1, 1, S'), cache (B, H, S * K, d),
            sources (B, H, S', d). Returns (B * K, V) and the cache with one more position.

        Returns:
            Logits, and the new cache.
        """
        examples, new = mask.shape[0], []
        layer: Any
        for i, layer in enumerate(self.layers):
            attention, combiner, feed_forward = layer.self_attn, layer.cross_attn, layer.feed_forward
            normed = layer.self_attn_layer_norm(states) if layer.pre_norm else states
            queries, keys, values = (self._split(part, examples) for part in self.joined[i](normed).chunk(3, dim=1))
            held = [torch.cat(pair, dim=2) for pair in ((cache[2 * i], keys), (cache[2 * i + 1], values))]
            new += held
            states = states + attention.out_proj(self._attend(queries, held[0], held[1], mask))
            states = states if layer.pre_norm else layer.self_attn_layer_norm(states)

            normed = combiner.layer_norm(states) if layer.pre_norm else states
            queries = self._split(combiner.joint.q_proj(normed), examples)
            context = self._attend(queries, sources[2 * i], sources[2 * i + 1], source_mask)
            states = states + combiner.joint.out_proj(context)
            states = states if layer.pre_norm else combiner.layer_norm(states)

            normed = feed_forward.layer_norm(states) if layer.pre_norm else states
            states = states + feed_forward.fc2(feed_forward.activation(feed_forward.fc1(normed)))
            states = states if layer.pre_norm else feed_forward.layer_norm(states)
        states = states if self.norm is None else self.norm(states)
        return (linear(states, self.head.weight, self.bias), *new)


#: Function of a decoding step. Arguments: states, both masks, cache, keys and values of the sources. Returns logits and
#: the new cache.
Engine = Callable[[Tensor, Tensor, Tensor, list[Any], list[Tensor]], tuple[Tensor, list[Any]]]


def names_of(layers: int) -> tuple[list[str], list[str], list[str]]:
    """Return the names in the graph of the keys and values of the cache, of the sources and of the new cache."""
    cache, sources, new = ([f"{kind}{i}" for i in range(2 * layers)] for kind in ("cache", "source", "new"))
    return cache, sources, new


def export(step: DecodingStep, size: Size, path: Path) -> None:
    """Export a step as an ONNX graph for any number of examples, beams and positions."""
    cache, sources, new = names_of(size.decoder_layers)
    width = size.d_model // size.heads
    held, seen = (
        [torch.rand(EXAMPLES, size.heads, length, width) for _ in cache]
        for length in (POSITIONS * BEAMS, size.positions)
    )
    mask = torch.zeros(EXAMPLES, 1, BEAMS, (POSITIONS + 1) * BEAMS)
    inputs = (torch.rand(EXAMPLES * BEAMS, size.d_model), mask, torch.zeros(EXAMPLES, 1, 1, size.positions), held, seen)
    free: Any = torch.export.Dim.AUTO
    pairs = [{0: free, 2: free}] * len(cache)
    with torch.no_grad():
        torch.onnx.export(
            step,
            inputs,
            path,
            input_names=[*INPUTS, *cache, *sources],
            output_names=["logits", *new],
            dynamic_shapes=({0: free}, {0: free, 2: free, 3: free}, {0: free, 3: free}, pairs, pairs),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def quantize(path: Path) -> Path:
    """Write a copy of a graph with 8-bit matrix products, with one scale for each output feature of a layer."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    made = path.with_stem(f"{path.stem}_int8")
    only = {"MatMulConstBOnly": True}
    quantize_dynamic(path, made, per_channel=True, weight_type=QuantType.QInt8, extra_options=only)
    return made


class OnnxRuntime:
    """ONNX Runtime session of an exported step, which reads PyTorch's tensors without copying them.

    Args:
        path: File of the graph.
        layers: Number of decoder layers.
        threads: Number of threads.
    """

    def __init__(self, path: Path, layers: int, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.wrap = onnxruntime.OrtValue.ortvalue_from_numpy
        self.names = names_of(layers)
        self.vocab_size = self.session.get_outputs()[0].shape[1]
        self.sources: list[Tensor] | None = None

    def __call__(
        self, states: Tensor, mask: Tensor, source_mask: Tensor, cache: list[Any], sources: list[Tensor]
    ) -> tuple[Tensor, list[Any]]:
        cache_names, source_names, new_names = self.names
        given = {"states": states.contiguous(), "mask": mask.contiguous()}
        if sources is not self.sources:  # the sources of a new batch
            self.sources, self.source_mask = sources, source_mask.contiguous()
            given |= {"source_mask": self.source_mask, **dict(zip(source_names, sources, strict=True))}
        values = {name: self.wrap(tensor.numpy()) for name, tensor in given.items()}
        held = [self.wrap(one.numpy()) if isinstance(one, Tensor) else one for one in cache]
        for name, value in (values | dict(zip(cache_names, held, strict=True))).items():
            self.binding.bind_ortvalue_input(name, value)
        logits = torch.empty(len(states), self.vocab_size)
        self.binding.bind_output("logits", "cpu", 0, np.float32, tuple(logits.shape), logits.data_ptr())
        for name in new_names:
            self.binding.bind_output(name)
        self.session.run_with_iobinding(self.binding)
        return logits, self.binding.get_outputs()[1:]


def in_torch(step: Callable[..., tuple[Tensor, ...]]) -> Engine:
    """Return an engine that runs a step in PyTorch."""

    def run(
        states: Tensor, mask: Tensor, source_mask: Tensor, cache: list[Any], sources: list[Tensor]
    ) -> tuple[Tensor, list[Any]]:
        logits, *new = step(states, mask, source_mask, cache, sources)
        return logits, new

    return run


class Decoding:
    """Decoding with `generate`, in which an engine computes the decoder's steps from the second step on.

    Args:
        model: The model.
        engine: The engine. With None, the model computes all steps.
    """

    def __init__(self, model: Any, engine: Engine | None) -> None:
        self.model = model
        self.engine = engine
        self.cache: Any = None  # key/value cache of the model for the current batch
        self.held: list[Any] = []  # keys and values of the decoder, as the engine returned them
        self.logits: Tensor | None = None
        #: CPU seconds of each call in the steps (decoder layers, output layer and choice of the best tokens).
        self.spent: list[float] = []

    def __call__(self, batch: dict[str, Tensor], beams: int, steps: int) -> list[list[int]]:
        """Decode a batch, and return the token ids of the best hypotheses."""
        self.spent.append(0.0)
        with ExitStack() as stack:
            stack.enter_context(patch(f"{modeling_multisource.__name__}.run_layers", self._timed(self._run_layers)))
            stack.enter_context(patch(f"{modeling_sources.__name__}.best_tokens", self._timed(self._best_tokens)))
            stack.enter_context(torch.inference_mode())
            found = self.model.generate(**batch, num_beams=beams, max_new_tokens=steps, do_sample=False)
        return found[:, 1:].tolist()

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.process_time()
            result = function(*arguments)
            self.spent[-1] += time.process_time() - start
            return result

        return call

    def _run_layers(self, decoder: Any, states: Tensor, mask: Tensor, memory: Any, both: Any, cache: Any) -> Any:
        if self.engine is None:
            return decoder_step.run_layers(decoder, states, mask, memory, both, cache)
        if cache is not self.cache:
            self.cache, ends = cache, cache.layers[0].length * cache.num_beams
            self.held = [held[:, :, :ends].contiguous() for one in cache.layers for held in (one.keys, one.values)]
            layers = both.cross_attention_cache.layers
            self.sources = [held.contiguous() for one in layers for held in (one.keys, one.values)]
            made = memory.attention_mask(decoder.config, states)
            self.mask = torch.zeros(len(memory.mask), 1, 1, memory.mask.shape[1]) if made is None else made[:, :, :1]
        self.logits, self.held = self.engine(states[:, 0], mask, self.mask, self.held, self.sources)
        for one in cache.layers:
            one.length += 1
        return states  # the output layer reads the logits instead

    def _best_tokens(self, head: Any, bias: Any, states: Tensor, count: int, vocab_size: int) -> tuple[Tensor, Tensor]:
        if self.logits is None:  # first step, which the model computes
            return vocabulary.best_tokens(head, bias, states, count, vocab_size)
        logits, self.logits = self.logits, None
        return vocabulary._best(logits, None, min(count, vocab_size))


def contestants(size: Size, threads: int, folder: Path) -> tuple[dict[str, Decoding], dict[str, Any]]:
    """Return the compared ways of decoding, and the kernels that `optimize_for_inference` chose for our steps."""
    models = {name: our_model(size, "flat") for name in ("flat optimized", "flat int8")}
    step, path = DecodingStep(our_model(size, "flat")).eval(), folder / "step.onnx"
    export(step, size, path)
    chose = {name: model.optimize_for_inference(int8="int8" in name) for name, model in models.items()}
    exact, rounded = models.values()
    runs = {name: Decoding(model, None) for name, model in models.items()}
    runs["ONNX Runtime"] = Decoding(exact, OnnxRuntime(path, size.decoder_layers, threads))
    runs["ONNX Runtime int8"] = Decoding(rounded, OnnxRuntime(quantize(path), size.decoder_layers, threads))
    return runs, chose


def measure(size: Size, beams: int, batch: int, runs: dict[str, Decoding], rounds: int) -> dict[str, Any]:
    """Time all ways on one batch; return seconds, CPU seconds in the steps and number of equal texts by name."""
    inputs = sources_of(size, batch, "cpu")
    for run in runs.values():
        run.spent.clear()
    calls = {name: lambda run=run: run(inputs, beams, size.steps) for name, run in runs.items()}
    found, seconds = interleave(calls, rounds, "cpu")
    first = found["flat optimized"]
    return {
        name: {
            "seconds": seconds[name],
            "in_steps": statistics.median(run.spent[1:]),
            "same": {
                "of": batch,
                "identical": sum(ours == theirs for ours, theirs in zip(found[name], first, strict=True)),
            },
        }
        for name, run in runs.items()
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure; see the module's docstring."""
    args = parse(
        __doc__,
        ("engines",),
        argv,
        beams={"type": int, "default": 10, "help": "beam width (default: 10)"},
        batch={"type": int, "nargs": "+", "default": [1, 16], "help": "sentences (default: 1 16)"},
    )
    for name in args.size:
        with tempfile.TemporaryDirectory() as folder:
            runs, chose = contestants(SIZES[name], args.threads, Path(folder))
            for batch in args.batch:
                facts = {"size": name, "beams": args.beams, "batch": batch, "steps": SIZES[name].steps}
                measured = measure(SIZES[name], args.beams, batch, runs, args.rounds)
                for own, lines in chose.items():
                    measured[own]["chose"] = lines
                save(args, "engines", "engines", f"{name}-beams{args.beams}-batch{batch}", **facts, runs=measured)


if __name__ == "__main__":
    main()
