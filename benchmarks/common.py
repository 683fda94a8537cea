"""What the benchmarks share: the two sizes of the paper, our models and Marian at them, clocks, memory, results.

Weights and tokens are random, made from a seed. A *record* is what one measurement leaves: a JSON file in
docs/results/performance/<device>/, of which `page.py` makes docs/results/performance.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from hf_multisource import MultiSourceConfig, MultiSourceForConditionalGeneration

sys.path.append(str(Path(__file__).resolve().parents[1] / "training"))
from score import hardware

RESULTS = Path("docs/results/performance")
PACKAGES = ("hf-multisource", "torch", "transformers", "ctranslate2")
PAPER = ("serial", "parallel", "flat", "hierarchical")  # combiners of Libovický et al. 2018
FEATURE_SIZE = 2048  # of the vectors of pictures, as a ResNet-50 gives them
BARRED = -1e9  # added to the logits of tokens that must not come
EOS, FIRST = 0, 2  # Marian's end of a text; the first token of a text. 1 is the unknown token, the last one the padding


@dataclass(frozen=True)
class Size:
    """The size of a model and of its input.

    Args:
        d_model: Width D of all states.
        ffn_dim: Width of the feed-forward layers.
        heads: Of every attention.
        encoder_layers: Of each encoder.
        decoder_layers: Of the decoder.
        vocab_size: Tokens.
        texts: Sources that are texts.
        features: Vectors of one more source, which has no encoder layers; 0: there is none.
        length: Of every text, tokens.
        steps: Of the target, tokens.
    """

    d_model: int = 256
    ffn_dim: int = 2048
    heads: int = 8
    encoder_layers: int = 4
    decoder_layers: int = 6
    vocab_size: int = 48000
    texts: int = 4
    features: int = 0
    length: int = 25
    steps: int = 25

    @property
    def positions(self) -> int:
        """Positions of all sources joined."""
        return self.texts * self.length + self.features


# Libovický et al. 2018, section 5.2 (four texts), and section 5.1 (a text and a picture of 7 x 7 vectors).
SIZES = {
    "msmt": Size(),
    "mmt": Size(512, 4096, 16, 6, 6, 40000, texts=1, features=49),
    "tiny": Size(16, 32, 2, 1, 1, 64, texts=2, length=5, steps=4),
}


def our_model(size: Size, combiner: str, **fields: Any) -> Any:
    """One of our models in evaluation mode, built as in the paper, that never ends a text by itself."""
    torch.manual_seed(0)
    sources: list[Any] = [f"text{i}" for i in range(size.texts)]
    if size.features:
        sources.append({"name": "picture", "kind": "features", "feature_size": FEATURE_SIZE})
    config = MultiSourceConfig.paper(
        sources=sources,
        combiner=combiner,
        **{key: getattr(size, key) for key in ("vocab_size", "d_model", "encoder_layers", "decoder_layers")},
        **{f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in _of_parts(size).items()},
        **_tokens(size),
        **{"bos_token_id": None, "final_logits_bias": True, "activation_dropout": 0.0, **fields},
    )
    return _without_end(MultiSourceForConditionalGeneration(config).eval())


def marian(size: Size) -> Any:
    """Stock Marian of the same size, with one encoder, in evaluation mode, that never ends a text by itself."""
    torch.manual_seed(0)
    config = MarianConfig(
        **{key: getattr(size, key) for key in ("vocab_size", "d_model", "encoder_layers", "decoder_layers")},
        **{f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in _of_parts(size).items()},
        **_tokens(size),
        activation_function="relu",
        forced_eos_token_id=None,
        max_position_embeddings=max(1024, size.positions),
    )
    return _without_end(MarianMTModel(config).eval())


def _of_parts(size: Size) -> dict[str, int]:
    return {"attention_heads": size.heads, "ffn_dim": size.ffn_dim}


def _tokens(size: Size) -> dict[str, int]:
    padding = size.vocab_size - 1
    return {"pad_token_id": padding, "eos_token_id": EOS, "decoder_start_token_id": padding}


def _without_end(model: Any) -> Any:
    # A stored bias costs nothing; a logits processor would.
    model.final_logits_bias[:, [EOS, model.config.pad_token_id]] = BARRED
    return model


def sources_of(size: Size, rows: int, device: str) -> dict[str, Tensor]:
    """Random sources for our models."""
    generator = torch.Generator().manual_seed(1)
    batch = {}
    for i in range(size.texts):
        prefix = f"text{i}_" if i else ""
        ids = torch.randint(FIRST, size.vocab_size - 1, (rows, size.length), generator=generator)
        batch |= {f"{prefix}input_ids": ids, f"{prefix}attention_mask": torch.ones_like(ids)}
    if size.features:
        batch["picture_input_features"] = torch.rand(rows, size.features, FEATURE_SIZE, generator=generator)
    return {key: tensor.to(device) for key, tensor in batch.items()}


def concatenated(size: Size, rows: int, device: str) -> dict[str, Tensor]:
    """The same sources as one text. Vectors are random tokens in it: CTranslate2 reads nothing else."""
    given = sources_of(size, rows, "cpu")
    generator = torch.Generator().manual_seed(2)
    vectors = torch.randint(FIRST, size.vocab_size - 1, (rows, size.features), generator=generator)
    ids = torch.cat([*(ids for key, ids in given.items() if key.endswith("input_ids")), vectors], dim=1).to(device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def work(size: Size, combiner: str, beams: int) -> dict[str, float]:
    """Arithmetic that cannot be avoided, with every product of matrices counted once.

    Args:
        size: Of model and input.
        combiner: One of the paper's, or "concat": one encoder for all sources joined.
        beams: Beam width; with 1 beam this is also the work of a forward pass in training.

    Returns:
        `gflop`, 10^9 additions and multiplications for a sentence; `weights`, 10^9 parameters that a step reads.
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
    again = (n - 1) * 2 * square if combiner == "hierarchical" else 0  # keys and values of the other context vectors
    attended = size.decoder_layers * (4 * d * (size.positions + (size.steps + 1) / 2) + again)
    flop = encoder + size.steps * beams * (linear + attended)
    return {"gflop": flop / 1e9, "weights": linear / 2 / 1e9}


def clocks(device: str) -> dict[str, float]:
    """CPU seconds of this process and seconds on the wall, once the device has done all it was given."""
    if device != "cpu":
        torch.cuda.synchronize()
    return {"cpu": time.process_time(), "wall": time.perf_counter()}


def interleave(
    runs: Mapping[str, Callable[[], Any]], rounds: int, device: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Time runs in one process: in every round once in the order given, and once in the reverse order.

    Args:
        runs: What to run, by name.
        rounds: How often.
        device: Where they run.

    Returns:
        What each returned in a first run that is not counted; and by name and clock ("cpu", "wall"), the seconds of
        each round: the mean of the two.
    """
    results = {name: run() for name, run in runs.items()}
    seconds: dict[str, Any] = {name: {"cpu": [], "wall": []} for name in runs}
    for _ in range(rounds):
        passes: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
        for name in [*runs, *reversed(runs)]:
            before = clocks(device)
            runs[name]()
            after = clocks(device)
            passes[name].append({clock: after[clock] - before[clock] for clock in before})
        for name, both in passes.items():
            for clock in seconds[name]:
                seconds[name][clock].append(statistics.fmean(one[clock] for one in both))
    return results, seconds


def best_seconds(run: Callable[[], Any], device: str, clock: str, repeats: int = 5) -> float:
    """The shortest time of a few."""
    run()
    found = []
    for _ in range(repeats):
        before = clocks(device)
        run()
        found.append(clocks(device)[clock] - before[clock])
    return min(found)


def main_clock(device: str, threads: int) -> str:
    """The clock to judge by: with one thread the CPU's, which other processes disturb least; otherwise the wall's."""
    return "cpu" if device == "cpu" and threads == 1 else "wall"


def peak_memory(run: Callable[[], Any], device: str) -> float:
    """Most memory that a run holds beyond what is there before it, MiB: of a CPU's process, resident memory (Linux)."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    run()
    return (_status("VmHWM") - before) / 2**10


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, which holds nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def parser(description: str | None, parts: Sequence[str]) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; default: all that can be")
    made.add_argument("--size", nargs="+", choices=SIZES, default=["msmt"], help="default: msmt")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="float32 on the CPU, bfloat16 on cuda")
    made.add_argument("--threads", type=int, default=1, help="of the CPU (default: %(default)s)")
    made.add_argument("--rounds", type=int, default=3, help="of every timing (default: %(default)s)")
    made.add_argument("--out", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    return made


def chosen_parts(args: argparse.Namespace, known: Iterable[str]) -> list[str]:
    """The parts asked for, or all; an unknown one is an error."""
    known = list(known)
    for part in args.parts:
        if part not in known:
            raise SystemExit(f"unknown part {part!r}; the parts are {', '.join(known)}")
    return args.parts or known


def save(args: argparse.Namespace, script: str, part: str, name: str, **measured: Any) -> None:
    """Write a record, and the page anew.

    Args:
        args: The command's.
        script: The command.
        part: What kind of measurement it is; `page.py` knows how to show each.
        name: What distinguishes it from others of its kind.
        **measured: What was measured.
    """
    from page import write_page

    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    record = {
        "part": part,
        "device": args.device,
        "threads": args.threads,
        "clock": main_clock(args.device, args.threads),
        **measured,
        "hardware": hardware(args.device),
        "versions": versions,
        "command": shlex.join(["python", f"benchmarks/{script}.py", *args.argv]),
        "date": datetime.now(timezone.utc).date().isoformat(),
    }
    suffix = "" if args.threads == 1 or args.device != "cpu" else f"-threads{args.threads}"
    path = args.out / args.device / f"{'-'.join(filter(None, (part, name)))}{suffix}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(path)
    write_page(args.out)
