"""Shared code of the benchmarks: models in the paper's two sizes, timing, memory measurement and results.

Weights and tokens are random with a fixed seed. A *record* is the result of one measurement: a JSON file in
docs/results/performance/<device>/<hardware>/, from which `page.py` makes docs/results/performance.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import MarianConfig, MarianMTModel

from hf_multisource import MultiSourceConfig, MultiSourceForConditionalGeneration
from hf_multisource.recipes.provenance import hardware
from page import RESULTS, write_page

PACKAGES = ("hf-multisource", "torch", "transformers", "ctranslate2", "onnxruntime")
PAPER = ("serial", "parallel", "flat", "hierarchical")  # combiners of Libovický et al. 2018
FEATURE_SIZE = 2048  # size of a picture's feature vectors, as in ResNet-50
BARRED = -1e9  # bias that is added to the logits of tokens that must not be generated
# Token ids as in Marian: end-of-sequence token, and the smallest id of the random tokens. Id 1 is the unknown token,
# and the last id is the padding token.
EOS, FIRST = 0, 2


@dataclass(frozen=True)
class Size:
    """Size of a model and its input; the defaults are those of Libovický et al. 2018 for several texts (§4.2)."""

    d_model: int = 256
    ffn_dim: int = 2048
    heads: int = 8
    encoder_layers: int = 4
    decoder_layers: int = 6
    vocab_size: int = 48000
    texts: int = 4  # number of text sources
    features: int = 0  # number of feature vectors of a further source without encoder layers; 0 without this source
    length: int = 25  # tokens of every text
    steps: int = 25  # tokens of the target

    @property
    def positions(self) -> int:
        """The number of positions of all sources together."""
        return self.texts * self.length + self.features

    def fields(self) -> dict[str, Any]:
        """Return the size as fields of Marian's configuration and ours."""
        ends = {"pad_token_id": self.vocab_size - 1, "decoder_start_token_id": self.vocab_size - 1, "eos_token_id": EOS}
        sizes = {key: getattr(self, key) for key in ("d_model", "encoder_layers", "decoder_layers", "vocab_size")}
        parts = {f"{part}_attention_heads": self.heads for part in ("encoder", "decoder")}
        return {**ends, **sizes, **parts, **{f"{part}_ffn_dim": self.ffn_dim for part in ("encoder", "decoder")}}


SIZES = {
    "msmt": Size(),
    "mmt": Size(512, 4096, 16, 6, 6, 40000, texts=1, features=49),  # §4.1
    "overhead": Size(16, 32, 2, vocab_size=500),  # almost all time goes into calling the operators
}


def our_model(size: Size, combiner: str, **fields: Any) -> Any:
    """Return one of our models with the paper's settings in evaluation mode; it never generates the end token."""
    torch.manual_seed(0)
    sources: list[Any] = [f"text{i}" for i in range(size.texts)]
    if size.features:
        sources.append({"name": "picture", "kind": "features", "feature_size": FEATURE_SIZE})
    fields = {"final_logits_bias": True, "bos_token_id": None, "activation_dropout": 0.0, **size.fields(), **fields}
    config = MultiSourceConfig.paper(sources=sources, combiner=combiner, **fields)
    return _without_end(MultiSourceForConditionalGeneration(config).eval())


def marian(size: Size) -> Any:
    """Return Transformers' Marian with one encoder of the same size in evaluation mode, without the end token."""
    torch.manual_seed(0)
    longest = max(1024, size.positions)
    config = MarianConfig(
        activation_function="relu", forced_eos_token_id=None, max_position_embeddings=longest, **size.fields()
    )
    return _without_end(MarianMTModel(config).eval())


def _without_end(model: Any) -> Any:
    # A stored bias costs no time, in contrast to a logits processor.
    model.final_logits_bias[:, [EOS, model.config.pad_token_id]] = BARRED
    return model


def sources_of(size: Size, rows: int, device: str, joined: bool = False) -> dict[str, Tensor]:
    """Return random sources, or with `joined` one text of equal length; its tokens also replace feature vectors."""
    generator = torch.Generator().manual_seed(1)
    lengths = [size.length] * size.texts + [size.features] * bool(size.features)
    texts = [torch.randint(FIRST, size.vocab_size - 1, (rows, length), generator=generator) for length in lengths]
    batch = {"picture_input_features": torch.rand(rows, size.features, FEATURE_SIZE, generator=generator)}
    if joined or not size.features:
        batch = {}
    for i, ids in enumerate([torch.cat(texts, dim=1)] if joined else texts[: size.texts]):
        prefix = f"text{i}_" if i else ""
        batch |= {f"{prefix}input_ids": ids, f"{prefix}attention_mask": torch.ones_like(ids)}
    return {key: tensor.to(device) for key, tensor in batch.items()}


def work(size: Size, combiner: str, beams: int) -> dict[str, float]:
    """Return the minimal work of decoding: GFLOP per sentence, and 10^9 weights that each step reads.

    The combiner is one of the paper's, or "concat", which is one encoder for the joined sources. With one beam, the
    result is also the work of a forward pass in training.
    """
    d, f, n = size.d_model, size.ffn_dim, size.texts + bool(size.features)
    square, feed_forward = 2 * d * d, 4 * d * f
    encoder = 0
    for length in [size.positions] if combiner == "concat" else [size.length] * size.texts:
        encoder += size.encoder_layers * length * (4 * square + feed_forward + 4 * d * length)
    if combiner != "concat":
        encoder += size.features * 2 * FEATURE_SIZE * d
    encoder += size.decoder_layers * size.positions * 2 * square  # keys and values
    maps = 4 + {"concat": 2, "flat": 2, "hierarchical": 2 * n + 4}.get(combiner, 2 * n)
    linear = size.decoder_layers * (maps * square + feed_forward) + 2 * d * size.vocab_size
    again = (n - 1) * 2 * square if combiner == "hierarchical" else 0  # keys and values of further context vectors
    attended = size.decoder_layers * (4 * d * (size.positions + (size.steps + 1) / 2) + again)
    flop = encoder + size.steps * beams * (linear + attended)
    return {"gflop": flop / 1e9, "weights": linear / 2 / 1e9}


def clocks(device: str) -> dict[str, float]:
    """Return the CPU time of this process and the wall-clock time after the device has finished its work."""
    if device != "cpu":
        torch.cuda.synchronize()
    return {"cpu": time.process_time(), "wall": time.perf_counter()}


def interleave(
    runs: Mapping[str, Callable[[], Any]], rounds: int, device: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Time runs in one process, in every round once in the given order and once in reverse order.

    Returns:
        Name -> result of a first, untimed run; and name -> clock ("cpu", "wall") -> mean seconds of each round.
    """
    results = {name: run() for name, run in runs.items()}
    seconds: dict[str, Any] = {name: {"cpu": [], "wall": []} for name in runs}
    for _ in range(rounds):
        for of_clocks in seconds.values():
            for spent in of_clocks.values():
                spent.append(0.0)
        for name in [*runs, *reversed(list(runs))]:
            before = clocks(device)
            runs[name]()
            after = clocks(device)
            for clock, spent in seconds[name].items():
                spent[-1] += (after[clock] - before[clock]) / 2
    return results, seconds


def profiled(runs: Mapping[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, Any]:
    """Time runs without the profiler, then count and time their PyTorch operators in one profiled run each.

    Returns:
        Name -> the `seconds` of `interleave`, and by name the `seconds` and `calls` of all operators: on a GPU of its
        kernels, whose times do not contain the gaps between them.
    """
    _, seconds = interleave(runs, rounds, device)
    clock = "self_cpu_time_total" if device == "cpu" else "self_device_time_total"  # microseconds
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    measured = {}
    for name, run in runs.items():
        with profile(activities=activities) as seen:
            run()
            clocks(device)  # wait for a GPU
        found = {event.key: (getattr(event, clock) / 1e6, event.count) for event in seen.key_averages()}
        operators = {key: {"seconds": spent, "calls": calls} for key, (spent, calls) in found.items() if spent}
        measured[name] = {"seconds": seconds[name], "operators": operators}
    return measured


def peak_memory(run: Callable[[], Any], device: str) -> float:
    """Return the peak memory of a run beyond the memory in use before, in MiB; on a CPU, resident memory (Linux)."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _status("VmRSS")
    run()
    return (_status("VmHWM") - before) / 2**10


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process without other data."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def parse(description: str | None, parts: Sequence[str], argv: Sequence[str] | None, **more: Any) -> Any:
    """Parse the command line with the common options and further options, and set the number of PyTorch's threads."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)}; default: all")
    options.add_argument("--size", nargs="+", choices=SIZES, default=["msmt"], help="default: msmt")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu in float32, cuda in bfloat16")
    options.add_argument("--threads", type=int, default=1, help="of the CPU (default: 1)")
    options.add_argument("--rounds", type=int, default=3, help="of every timing (default: 3)")
    options.add_argument("--out", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    for name, settings in more.items():
        options.add_argument(f"--{name}", **settings)
    args = options.parse_args(argv)
    if unknown := set(args.parts) - set(parts):
        options.error(f"unknown PART {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    args.parts = args.parts or list(parts)
    args.argv = list(sys.argv[1:] if argv is None else argv)
    # The CPU time of a single thread depends least on other processes.
    args.clock = "cpu" if args.device == "cpu" and args.threads == 1 else "wall"
    torch.set_num_threads(args.threads)
    return args


def save(args: Any, script: str, part: str, name: str, **measured: Any) -> None:
    """Write a record, and rewrite the page; `name` distinguishes the record from others of its part."""
    installed = [package for package in PACKAGES if find_spec(package.replace("-", "_"))]
    record = {
        "part": part,
        "device": args.device,
        "threads": args.threads,
        "clock": args.clock,
        **measured,
        "hardware": hardware(args.device),
        "versions": {package: version(package) for package in installed},
        "command": shlex.join(["python", f"benchmarks/{script}.py", *args.argv]),
        "date": datetime.now(timezone.utc).date().isoformat(),
    }
    suffix = "" if args.threads == 1 or args.device != "cpu" else f"-threads{args.threads}"
    machine = re.sub("[^a-z0-9]+", "-", record["hardware"].lower()).strip("-")
    path = args.out / args.device / machine / f"{'-'.join(filter(None, (part, name)))}{suffix}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(path)
    write_page(args.out)
