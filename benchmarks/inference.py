"""Compare decoding with our models and with alternatives: time, memory, and distance from the limits of the machine.

    python benchmarks/inference.py [floor] [speed] [profile] [memory] [scaling] [trained] [--size msmt mmt overhead]
                                   [--beams 10] [--batch 1 16 32] [--combiners serial flat] [--device cuda]
                                   [--threads 2] [--rounds 3] [--full] [--checkpoint RUN ...] [--data FOLDER]
                                   [--limit 256]

    floor      limits of the machine: the fastest matrix product, and the memory bandwidth
    speed      all models on the same random sources, in one process; also compares the hypotheses
    profile    the time of all models of Transformers and of ours, by PyTorch operator
    memory     peak memory beyond the weights at the largest batch, for each model in a separate process
    scaling    time for several numbers of sources, lengths, beams and batch sizes; --full: more points, which takes
               hours on a CPU
    trained    checkpoints on the sentences of their recipe's test set (or DATA's), with the real ends of sentences

The alternatives read the sources joined into one text. "HF" is Marian of Transformers; "HF tuned" is the same with
`torch.backends.mkldnn.matmul.fp32_precision = "bf16"` (on CPUs without AMX it computes in float32, by oneDNN); and
CTranslate2 has the same weights as Marian, if it is installed (`pip install ctranslate2`). "concat" has Marian's
weights in our code. For our models, NAME is plain `generate`; "NAME unfolded" has `fold_beams=False`, the slow path;
"NAME optimized" and "NAME int8" use `optimize_for_inference`. On a CPU, the command ends with an error if an exact
variant finds other tokens than the slow path, except for near-ties.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import mkldnn

from common import (
    PAPER,
    SIZES,
    Size,
    in_child,
    interleave,
    marian,
    our_model,
    parse,
    peak_memory,
    profiled,
    save,
    sources_of,
    work,
)
from hf_multisource import MultiSourceForConditionalGeneration
from hf_multisource.data.rows import read_split
from hf_multisource.evaluation.decoding import Search, decode_windows, load_model
from hf_multisource.recipes.run_folder import rows_of_run
from hf_multisource.recipes.shipped import RECIPE

Rows = list[list[int]]
Scales = dict[str, tuple[int, ...]]
PARTS = ("floor", "speed", "profile", "memory", "scaling", "trained")
OURS = ("concat", *PAPER)
NEAR = 1e-4  # nats per token; hypotheses whose scores differ by less count as equally good
COMPUTE_TYPES = {"cpu": ("float32", "int8"), "cuda": ("bfloat16", "int8_bfloat16")}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
VARIANTS = {"cpu": ("unfolded", "", "optimized", "int8"), "cuda": ("unfolded", "", "optimized")}
FLOOR = {"cpu": 2048, "cuda": 8192}  # rows and columns of the matrices for measuring the fastest product
# Values of each quantity, which is varied while the others are fixed.
FEW: Scales = {"texts": (1, 4, 8), "length": (25, 100, 400), "beams": (1, 10, 20), "batch": (1, 4, 16)}
FULL: Scales = {"texts": tuple(range(1, 9)), "length": (25, 50, 100, 200, 400, 800)}
FULL |= {"beams": (1, 2, 5, 10, 20), "batch": (1, 4, 16, 64, 256)}


@dataclass(frozen=True)
class Cell:
    """Setting of a comparison: model size, beams, batch size, device and threads."""

    size: Size
    beams: int
    batch: int
    device: str
    threads: int


def competitors(combiners: Sequence[str], device: str) -> list[str]:
    """Return the names of all compared variants; print a message if CTranslate2 is not installed."""
    names = ["HF", "HF tuned"] if device == "cpu" else ["HF"]
    if find_spec("ctranslate2"):
        names += [f"CTranslate2 {kind}" for kind in COMPUTE_TYPES[device]]
    else:
        print("CTranslate2 is left out: pip install ctranslate2")
    return names + [f"{name} {variant}".strip() for name in combiners for variant in VARIANTS[device]]


def convert(size: Size, folder: Path) -> None:
    """Convert Marian of this size to CTranslate2; the text of a token is its id."""
    from ctranslate2.converters import TransformersConverter

    class Words:
        eos_token, unk_token = "0", "1"

        def get_vocab(self) -> dict[str, int]:
            return {**{str(i): i for i in range(size.vocab_size - 1)}, "<pad>": size.vocab_size - 1}

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, *arguments: Any, **options: Any) -> Words:
            return Words()

    marian(size).save_pretrained(folder / "marian")
    Converter(str(folder / "marian")).convert(str(folder / "ctranslate2"))


@cache
def load_translator(folder: Path, compute_type: str, device: str, threads: int) -> Any:
    """Load the model in CTranslate2."""
    import ctranslate2

    return ctranslate2.Translator(
        str(folder / "ctranslate2"), device=device, compute_type=compute_type, inter_threads=1, intra_threads=threads
    )


@cache
def load(name: str, size: Size, device: str) -> tuple[Any, list[str]]:
    """Return a model, and the kernels that `optimize_for_inference` chose for it."""
    kind, _, variant = name.partition(" ")
    if kind == "HF":
        model = marian(size)
    elif kind == "concat":
        model = MultiSourceForConditionalGeneration.from_pretrained_sources({"text0": marian(size)}, "text0")
    else:
        model = our_model(size, kind)
    model.to(device=device, dtype=DTYPES[device])
    return model, model.optimize_for_inference(int8=variant == "int8") if variant else []


@contextmanager
def tuned() -> Iterator[None]:
    """Compute products of float32 matrices by oneDNN, with a setting that is available to users of Transformers."""
    backend: Any = torch.backends.mkldnn
    matmul = backend.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def batch_for(name: str, cell: Cell) -> dict[str, Tensor]:
    """Return the sources in the form that a model reads."""
    batch = sources_of(cell.size, cell.batch, cell.device, joined=not name.startswith(PAPER))
    return {key: tensor.to(DTYPES[cell.device]) if "features" in key else tensor for key, tensor in batch.items()}


def search(name: str, cell: Cell, folder: Path) -> Callable[[], Rows]:
    """Return a function that decodes the batch of a cell and returns the token ids of the best hypotheses."""
    batch = batch_for(name, cell)
    kind, _, variant = name.partition(" ")
    if kind == "CTranslate2":
        translator = load_translator(folder, variant, cell.device, cell.threads)
        tokens = [[str(i) for i in row] for row in batch["input_ids"].tolist()]

        def translate() -> Rows:
            options = {"beam_size": cell.beams, "max_decoding_length": cell.size.steps, "max_input_length": 0}
            return [[int(word) for word in one.hypotheses[0]] for one in translator.translate_batch(tokens, **options)]

        return translate
    model, _ = load(kind if variant in ("unfolded", "tuned") else name, cell.size, cell.device)
    options = {"fold_beams": False} if variant == "unfolded" else {}

    def generate() -> Rows:
        with torch.inference_mode(), tuned() if variant == "tuned" else nullcontext():
            found = model.generate(
                **batch, num_beams=cell.beams, max_new_tokens=cell.size.steps, do_sample=False, **options
            )
        return found[:, 1:].tolist()

    return generate


@torch.inference_mode()
def scores(model: Any, batch: Mapping[str, Tensor], rows: Rows) -> Tensor:
    """Return the mean log-probability per token of each hypothesis, in nats."""
    ids = torch.tensor(rows, device=model.device)
    start = torch.full_like(ids[:, :1], model.config.decoder_start_token_id)
    logits = model(**batch, decoder_input_ids=torch.cat([start, ids[:, :-1]], dim=1)).logits
    return logits.float().log_softmax(dim=-1).gather(2, ids[..., None]).mean(dim=(1, 2))


def compare(name: str, found: Mapping[str, Rows], cell: Cell) -> dict[str, int]:
    """Compare hypotheses with those of the slow path; exit with an error if an exact variant finds others."""
    kind, _, variant = name.partition(" ")
    reference = f"{kind} unfolded" if kind in PAPER else "HF"
    pairs = list(zip(found[name], found[reference], strict=True))
    other = [i for i, (ours, theirs) in enumerate(pairs) if ours != theirs]
    near = 0
    if other:
        model, _ = load(reference.partition(" ")[0], cell.size, cell.device)
        batch = {key: tensor[other] for key, tensor in batch_for(reference, cell).items()}
        ours, theirs = (scores(model, batch, [pairs[i][k] for i in other]) for k in (0, 1))
        near = int(((ours - theirs).abs() < NEAR).sum())
    if cell.device == "cpu" and variant not in ("int8", "tuned") and near < len(other):
        raise SystemExit(f"{name}: {len(other) - near} of {len(pairs)} hypotheses are not those of {reference}")
    return {"of": len(pairs), "identical": len(pairs) - len(other), "near": near}


def measure_floor(device: str, clock: str) -> dict[str, Any]:
    """Measure the speed of matrix products by data type, in GFLOP/s, and the memory bandwidth, in GB/s."""
    n = FLOOR[device]
    matrix, source = torch.rand(n, n, device=device), torch.rand(16 * n * n, device=device)
    half, target = matrix.bfloat16(), torch.empty_like(source)
    runs = {"float32": lambda: matrix @ matrix, "bfloat16": lambda: half @ half, "copy": lambda: target.copy_(source)}
    if device == "cpu":
        linear, packed = mkldnn.to_mkldnn(torch.nn.Linear(n, n)), matrix.to_mkldnn()
        runs["float32, oneDNN"] = lambda: linear(packed)
    with torch.inference_mode():
        _, seconds = interleave(runs, 3, device)
    best = {name: min(of_clocks[clock]) for name, of_clocks in seconds.items()}
    bandwidth = 2 * source.nbytes / best.pop("copy") / 1e9
    return {"gflops": {name: 2 * n**3 / 1e9 / spent for name, spent in best.items()}, "bandwidth": bandwidth}


def measure_speed(cell: Cell, names: Sequence[str], rounds: int, folder: Path) -> dict[str, Any]:
    """Time all variants and compare their hypotheses; return the measurements by name."""
    found, seconds = interleave({name: search(name, cell, folder) for name in names}, rounds, cell.device)
    runs = {}
    for name in names:
        kind, _, variant = name.partition(" ")
        chose = load(name, cell.size, cell.device)[1] if variant in ("optimized", "int8") and kind in OURS else []
        needed = work(cell.size, kind if kind in PAPER else "concat", cell.beams)
        runs[name] = {"seconds": seconds[name], "same": compare(name, found, cell), "chose": chose, **needed}
    return runs


def measure_profile(cell: Cell, names: Sequence[str], rounds: int, folder: Path) -> dict[str, Any]:
    """Time all variants without the profiler, then count and time their PyTorch operators in one profiled run each."""
    return profiled({name: search(name, cell, folder) for name in names}, rounds, cell.device)


def measure_memory(name: str, cell: Cell, folder: Path) -> float:
    """Return the peak memory beyond the weights in MiB; must be called in a new process."""
    torch.set_num_threads(cell.threads)
    search(name, replace(cell, batch=1), folder)()  # warm-up, so that one-time allocations are not counted
    return peak_memory(search(name, cell, folder), cell.device)


def measure_scaling(center: Cell, scales: Scales, folder: Path) -> list[Any]:
    """Time some of the variants in one round, varying one quantity at a time."""
    names = ("HF", "flat", "serial", "serial optimized")
    points: list[Any] = []
    known: dict[Cell, Any] = {}
    for quantity, value in ((quantity, value) for quantity, values in scales.items() for value in values):
        change: Any = {quantity: value}
        of_size = quantity in ("texts", "length")
        cell = replace(center, **({"size": replace(center.size, **change)} if of_size else change))
        if cell not in known:
            load.cache_clear()
            _, seconds = interleave({name: search(name, cell, folder) for name in names}, 1, cell.device)
            known[cell] = {name: {"seconds": spent} for name, spent in seconds.items()}
        points.append({"quantity": quantity, "value": value, "batch": cell.batch, "runs": known[cell]})
    return points


def generate_unfolded(generate: Callable[..., Any], **options: Any) -> Any:
    """Call `generate` with `fold_beams=False`, whatever the options say."""
    return generate(**{**options, "fold_beams": False})


def measure_trained(run: str, args: Any) -> dict[str, Any]:
    """Decode real sentences with all variants of a checkpoint; return seconds and number of equal texts by name."""
    if (data := rows_of_run(run, args.data)) is None:
        raise ValueError(f"{run} has no {RECIPE}, so it is not the folder of a run")
    split = read_split(data.path, data.test, data.sources, data.target, limit=args.limit)
    rows = data.model_rows(split.rows)
    how = Search(args.beams[0], max_new_tokens=data.max_length, max_length=data.max_length)

    def decode(variant: str) -> Callable[[], list[Any]]:
        model: Any
        model, processor = load_model(run, args.device)
        model.to(DTYPES[args.device])
        if variant == "unfolded":
            model.generate = partial(generate_unfolded, model.generate)
        elif variant:
            model.optimize_for_inference(int8=variant == "int8")
        windows = partial(decode_windows, model, processor, rows, how, batch_size=max(args.batch), title=variant)
        return lambda: [hypotheses[0].text for window in windows() for hypotheses in window]

    found, seconds = interleave({one: decode(one) for one in VARIANTS[args.device]}, args.rounds, args.device)
    measured = {}
    for variant, texts in found.items():
        identical = sum(one == other for one, other in zip(texts, found["unfolded"], strict=True))
        measured[variant or "folded"] = {"seconds": seconds[variant], "same": {"of": len(rows), "identical": identical}}
    return measured


def measure_size(name: str, folder: Path, args: Any) -> None:
    """Run all measurements for one model size."""
    size, names = SIZES[name], competitors(args.combiners, args.device)
    if find_spec("ctranslate2"):
        convert(size, folder)
    for beams, batch in itertools.product(args.beams, args.batch):
        cell = Cell(size, beams, batch, args.device, args.threads)
        facts = {"size": name, "beams": beams, "batch": batch, "steps": size.steps}
        label = f"{name}-beams{beams}-batch{batch}"
        if "speed" in args.parts:
            save(args, "inference", "speed", label, **facts, runs=measure_speed(cell, names, args.rounds, folder))
        if "profile" in args.parts:
            # The profiler sees nothing within CTranslate2.
            seen = [one for one in names if not one.startswith("CTranslate2")]
            save(args, "inference", "profile", label, **facts, runs=measure_profile(cell, seen, args.rounds, folder))
        if "memory" in args.parts and batch == max(args.batch):
            load.cache_clear()
            # PyTorch cannot measure the GPU memory of CTranslate2.
            seen = [one for one in names if args.device == "cpu" or not one.startswith("CTranslate2")]
            found = {one: in_child(measure_memory, one, cell, folder) for one in seen if one != "HF tuned"}
            save(args, "inference", "memory", label, **facts, mebibytes=found)
    load.cache_clear()
    load_translator.cache_clear()
    if "scaling" in args.parts:
        cell = Cell(size, args.beams[0], {"cpu": 4, "cuda": 64}[args.device], args.device, args.threads)
        points = measure_scaling(cell, FULL if args.full else FEW, folder)
        save(args, "inference", "scaling", name, size=name, beams=cell.beams, batch=cell.batch, points=points)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure; see the module's docstring."""
    args = parse(
        __doc__,
        PARTS,
        argv,
        beams={"type": int, "nargs": "+", "default": [10], "help": "beam widths; 1 is greedy (default: 10)"},
        batch={"type": int, "nargs": "+", "help": "sentences; default: 1 16 32, on a GPU 1 64 512"},
        combiners={"nargs": "+", "choices": OURS, "default": OURS, "help": "default: all"},
        full={"action": "store_true", "help": "scaling: all points"},
        checkpoint={"nargs": "+", "default": [], "help": "trained: run folders"},
        data={"help": "trained: folder of the sentences; default: the recipe's"},
        limit={"type": int, "default": 256, "help": "trained: sentences (default: 256)"},
    )
    args.batch = args.batch or {"cpu": [1, 16, 32], "cuda": [1, 64, 512]}[args.device]
    if "floor" in args.parts:
        save(args, "inference", "floor", "", **measure_floor(args.device, args.clock))
    if {"speed", "profile", "memory", "scaling"} & set(args.parts):
        for name in args.size:
            with tempfile.TemporaryDirectory() as folder:
                measure_size(name, Path(folder), args)
    for run in args.checkpoint if "trained" in args.parts else ():
        facts = {"run": Path(run).name, "beams": args.beams[0], "batch": max(args.batch), "limit": args.limit}
        save(args, "inference", "trained", facts["run"], **facts, runs=measure_trained(run, args))


if __name__ == "__main__":
    main()
