"""Decoding, ours and what one would use instead: time, memory, the distance from what the machine can do.

    python benchmarks/inference.py [floor] [speed] [memory] [scaling] [--size msmt mmt] [--beams 10] [--batch 1 16 32]
                                   [--combiners serial flat] [--device cuda] [--threads 2] [--rounds 3] [--full]
    python benchmarks/inference.py trained --checkpoint RUN ... [--data FOLDER] [--limit 256]

    floor      the fastest product of matrices, and the bandwidth of the memory
    speed      all models on the same random sources, 25 steps, in one process; whether they find the same
    memory     the peak beyond the weights, each in a process of its own
    scaling    cost against sources, their length, beams and batch; --full: more points, for a GPU or a long night
    trained    checkpoints on the sentences of their recipe's test set (or DATA's), with their real stops

The opponents read the sources joined into one text: "HF", stock Marian; "HF tuned", the same with
`torch.backends.mkldnn.matmul.fp32_precision = "bf16"` (on CPUs without AMX it computes in float32, by oneDNN); and
CTranslate2 with Marian's very weights, if it is installed (`pip install ctranslate2`). "concat" is Marian's weights in
our code. Of ours, NAME is plain `generate`, "NAME unfolded" has `fold_beams=False`, the slow path; "NAME optimised" and
"NAME int8" ran `optimize_for_inference`. A run ends with an error if an exact one finds other tokens than the slow path
(near-ties aside: scores within 1e-4).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
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
    best_seconds,
    chosen_parts,
    concatenated,
    in_child,
    interleave,
    main_clock,
    marian,
    our_model,
    parser,
    peak_memory,
    save,
    sources_of,
    work,
)
from data import encode_rows, read_split
from decoding import load_model, longest
from hf_multisource import DataCollatorForMultiSource, MultiSourceForConditionalGeneration
from recipe import load_recipe

PARTS = ("floor", "speed", "memory", "scaling", "trained")
NEAR = 1e-4  # difference of scores, nats a token, of hypotheses that count as equally good
COMPUTE_TYPES = {"cpu": ("float32", "int8"), "cuda": ("bfloat16", "int8_bfloat16")}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
VARIANTS = {"cpu": ("unfolded", "", "optimised", "int8"), "cuda": ("unfolded", "", "optimised")}
# Values that each quantity takes while the others stay; the first line is for a CPU.
SCALES: dict[bool, dict[str, tuple[int, ...]]] = {
    False: {"texts": (1, 2, 4, 8), "length": (25, 100, 400), "beams": (1, 5, 10, 20), "batch": (1, 4, 16)},
    True: {
        "texts": tuple(range(1, 9)),
        "length": (25, 50, 100, 200, 400, 800),
        "beams": (1, 2, 5, 10, 20),
        "batch": (1, 4, 16, 64, 256),
    },
}
Rows = list[list[int]]


@dataclass(frozen=True)
class Cell:
    """One setting in which all are compared: the size, the search, the batch, the machine."""

    size: Size
    beams: int
    batch: int
    device: str
    threads: int


def has_ctranslate2(device: str) -> bool:
    """Whether CTranslate2 can take part; says so where it cannot."""
    if find_spec("ctranslate2") is None:
        print("CTranslate2 is left out: pip install ctranslate2")
        return False
    import ctranslate2

    if device == "cuda" and not ctranslate2.get_cuda_device_count():
        print("CTranslate2 is left out: it sees no GPU")
        return False
    return True


def competitors(combiners: Sequence[str], device: str) -> list[str]:
    """Names of all that are compared."""
    opponents = ["HF", "HF tuned"] if device == "cpu" else ["HF"]
    if has_ctranslate2(device):
        opponents += [f"CTranslate2 {kind}" for kind in COMPUTE_TYPES[device]]
    return opponents + [f"{name} {variant}".strip() for name in combiners for variant in VARIANTS[device]]


def convert(size: Size, folder: Path) -> None:
    """Write Marian of this size as CTranslate2 reads it; a token's text is its number."""
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
    """CTranslate2's model."""
    import ctranslate2

    return ctranslate2.Translator(
        str(folder / "ctranslate2"), device=device, compute_type=compute_type, inter_threads=1, intra_threads=threads
    )


@cache
def load(name: str, size: Size, device: str) -> tuple[Any, list[str]]:
    """A model, and what `optimize_for_inference` chose for it."""
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
    """Products of float32 matrices by oneDNN, as a user of Transformers can ask for."""
    matmul: Any = torch.backends.mkldnn.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def batch_for(name: str, cell: Cell) -> dict[str, Tensor]:
    """The sources, as a model reads them."""
    make = concatenated if name.startswith(("HF", "CTranslate2", "concat")) else sources_of
    return make(cell.size, cell.batch, cell.device)


def search(name: str, cell: Cell, folder: Path) -> Callable[[], Rows]:
    """A function that decodes the batch of a cell, and gives the token ids of the best hypotheses."""
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
    """Mean log-probability of the tokens of each hypothesis, nats."""
    padding, width = model.config.pad_token_id, max(map(len, rows))
    ids = torch.tensor([row + [padding] * (width - len(row)) for row in rows], device=model.device)
    start = torch.full_like(ids[:, :1], model.config.decoder_start_token_id)
    logits = model(**batch, decoder_input_ids=torch.cat([start, ids[:, :-1]], dim=1)).logits
    logs = logits.float().log_softmax(dim=-1).gather(2, ids[..., None])[..., 0]
    real = torch.arange(width, device=ids.device) < torch.tensor([[len(row)] for row in rows], device=ids.device)
    return (logs * real).sum(dim=1) / real.sum(dim=1)


def compare(found: Rows, wanted: Rows, rate: Callable[[list[int], Rows], Tensor]) -> dict[str, int]:
    """How many hypotheses are identical, and how many of the others are worth the same.

    Args:
        found: Token ids of every sentence.
        wanted: What they should be.
        rate: From numbers of sentences and their hypotheses to scores.

    Returns:
        Counts: `of`, `identical`, `near`.
    """
    other = [i for i, row in enumerate(found) if row != wanted[i]]
    near = 0
    if other:
        gap = rate(other, [found[i] for i in other]) - rate(other, [wanted[i] for i in other])
        near = int((gap.abs() < NEAR).sum())
    return {"of": len(found), "identical": len(found) - len(other), "near": near}


def slow_path(name: str) -> str:
    """Whose hypotheses a competitor must find."""
    kind = name.partition(" ")[0]
    return f"{kind} unfolded" if kind in PAPER else "HF"


def insist(same: Mapping[str, Mapping[str, int]]) -> None:
    """End the run if one that is exact found something else."""
    exact = {name: one for name, one in same.items() if not name.endswith((" int8", "tuned"))}
    if wrong := [name for name, one in exact.items() if one["identical"] + one["near"] < one["of"]]:
        raise SystemExit(f"other tokens than by the slow path: {', '.join(wrong)}; {same}")


def measure_floor(device: str, clock: str) -> dict[str, Any]:
    """The fastest product of square matrices, GFLOP/s by kind, and of a copy in memory, GB/s."""
    n = 2048 if device == "cpu" else 8192
    a = torch.rand(n, n, device=device)
    half = a.bfloat16()
    runs: dict[str, Callable[[], Any]] = {"float32": lambda: a @ a, "bfloat16": lambda: half @ half}
    with torch.inference_mode():
        if device == "cpu":
            linear, packed = mkldnn.to_mkldnn(torch.nn.Linear(n, n)), a.to_mkldnn()
            runs["float32, oneDNN"] = lambda: linear(packed)
        gflops = {name: 2 * n**3 / best_seconds(run, device, clock) / 1e9 for name, run in runs.items()}
        source = torch.rand(2**26, device=device)
        target = torch.empty_like(source)
        bandwidth = 2 * source.nbytes / best_seconds(lambda: target.copy_(source), device, clock) / 1e9
    return {"gflops": gflops, "bandwidth": bandwidth}


def measure_speed(cell: Cell, names: Sequence[str], rounds: int, folder: Path) -> dict[str, Any]:
    """Time all competitors and compare what they find; by name, everything about them."""
    found, seconds = interleave({name: search(name, cell, folder) for name in names}, rounds, cell.device)
    measured = {}
    for name in names:
        wanted = slow_path(name)
        model, _ = load(wanted.partition(" ")[0], cell.size, cell.device)
        batch = batch_for(wanted, cell)
        same = compare(
            found[name],
            found[wanted],
            lambda picks, rows, model=model, batch=batch: scores(model, {k: v[picks] for k, v in batch.items()}, rows),
        )
        kind, _, variant = name.partition(" ")
        chose = load(name, cell.size, cell.device)[1] if variant in ("optimised", "int8") and kind in ALL else []
        needed = work(cell.size, kind if kind in PAPER else "concat", cell.beams)
        measured[name] = {"seconds": seconds[name], "same": same, "chose": chose, **needed}
    if cell.device == "cpu":
        insist({name: one["same"] for name, one in measured.items()})
    return measured


ALL = ("concat", *PAPER)


def measure_memory(name: str, cell: Cell, folder: Path) -> float:
    """Peak beyond the weights, MiB; to be called in a process of its own."""
    torch.set_num_threads(cell.threads)
    search(name, replace(cell, batch=1), folder)()  # whatever is loaded once
    return peak_memory(search(name, cell, folder), cell.device)


def measure_scaling(center: Cell, full: bool, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Milliseconds for a sentence, one quantity varied at a time."""
    points, names = [], ("HF", "flat", "serial", "serial optimised")
    clock = main_clock(center.device, center.threads)
    for quantity, values in SCALES[full].items():
        for value in values:
            change: Any = {quantity: value}
            of_size = quantity in ("texts", "length")
            cell = replace(center, **({"size": replace(center.size, **change)} if of_size else change))
            load.cache_clear()
            _, seconds = interleave({name: search(name, cell, folder) for name in names}, rounds, cell.device)
            cost = {name: 1000 * min(both[clock]) / cell.batch for name, both in seconds.items()}
            points.append({"quantity": quantity, "value": value, "milliseconds": cost})
            print(quantity, value, {name: round(one, 1) for name, one in cost.items()})
    return points


def measure_trained(run: str, args: argparse.Namespace) -> dict[str, Any]:
    """Decode real sentences with one checkpoint, in all our ways; by name, seconds and sameness."""
    recipe = load_recipe(Path(run) / "recipe.yaml", {"path": args.data} if args.data else None).data
    split = read_split(recipe.path, recipe.test, recipe.sources, recipe.target, limit=args.limit)
    rows = recipe.model_rows(split.rows)
    models = {variant: load_model(run, args.device) for variant in ("", *VARIANTS[args.device][2:])}
    processor = models[""][1]
    encoded, _ = encode_rows(processor, rows, None, recipe.max_length)
    by_length = sorted(range(len(rows)), key=longest(encoded).__getitem__)
    collate = DataCollatorForMultiSource(processor)

    def batch_of(picks: Sequence[int], model: Any) -> dict[str, Tensor]:
        return {key: value.to(model.device) for key, value in collate([encoded[i] for i in picks]).items()}

    def decode(model: Any, order: Sequence[int], **options: Any) -> Rows:
        found: Rows = [[] for _ in rows]
        for start in range(0, len(order), args.batch[0]):
            picks = order[start : start + args.batch[0]]
            with torch.inference_mode():
                ids = model.generate(
                    **batch_of(picks, model),
                    num_beams=args.beams[0],
                    max_new_tokens=recipe.max_length,
                    do_sample=False,
                    **options,
                )
            for i, row in zip(picks, ids[:, 1:].tolist(), strict=True):
                end = row.index(model.config.eos_token_id) + 1 if model.config.eos_token_id in row else len(row)
                found[i] = row[:end]
        return found

    for variant, (model, _) in models.items():
        model.to(DTYPES[args.device])
        if variant:
            model.optimize_for_inference(int8=variant == "int8")
    plain = models[""][0]
    runs: dict[str, Callable[[], Rows]] = {
        "unfolded": lambda: decode(plain, range(len(rows)), fold_beams=False),
        "folded": lambda: decode(plain, range(len(rows))),
        "folded, sorted": lambda: decode(plain, by_length),
    }
    for variant in VARIANTS[args.device][2:]:
        runs[f"{variant}, sorted"] = lambda model=models[variant][0]: decode(model, by_length)  # type: ignore[misc]
    found, seconds = interleave(runs, args.rounds, args.device)
    rate = lambda picks, hypotheses: scores(plain, batch_of(picks, plain), hypotheses)  # noqa: E731
    return {name: {"seconds": seconds[name], "same": compare(found[name], found["unfolded"], rate)} for name in runs}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure; see the module's docstring."""
    options = parser(__doc__, PARTS)
    options.add_argument("--beams", type=int, nargs="+", default=[10], help="beam widths; 1 is greedy (default: 10)")
    options.add_argument("--batch", type=int, nargs="+", help="sentences; default: 1 16 32, on a GPU 1 64 512")
    options.add_argument("--combiners", nargs="+", choices=ALL, default=ALL, help="default: all")
    options.add_argument("--full", action="store_true", help="scaling: all points")
    options.add_argument("--checkpoint", nargs="+", default=[], help="run folders; the first is what others are over")
    options.add_argument("--data", help="folder of the sentences; default: the recipe's")
    options.add_argument("--limit", type=int, default=256, help="sentences of the test set (default: %(default)s)")
    args = options.parse_args(argv)
    args.argv = list(sys.argv[1:] if argv is None else argv)
    args.batch = args.batch or ([1, 16, 32] if args.device == "cpu" else [1, 64, 512])
    parts = chosen_parts(args, PARTS if args.checkpoint else PARTS[:-1])
    torch.set_num_threads(args.threads)
    if "floor" in parts:
        save(args, "inference", "floor", "", **measure_floor(args.device, main_clock(args.device, args.threads)))
    for name in args.size if {"speed", "memory", "scaling"} & set(parts) else ():
        with tempfile.TemporaryDirectory() as temporary:
            measure_size(name, Path(temporary), parts, args)
    if "trained" in parts:
        runs = {Path(run).name: measure_trained(run, args) for run in args.checkpoint}
        facts = {"beams": args.beams[0], "batch": args.batch[0], "limit": args.limit}
        save(args, "inference", "trained", "", **facts, runs=runs)


def measure_size(name: str, folder: Path, parts: Sequence[str], args: argparse.Namespace) -> None:
    """Everything that is measured at one size."""
    size, names = SIZES[name], competitors(args.combiners, args.device)
    if any(one.startswith("CTranslate2") for one in names):
        convert(size, folder)
    for beams, batch in itertools.product(args.beams, args.batch):
        cell = Cell(size, beams, batch, args.device, args.threads)
        facts = {"size": name, "beams": beams, "batch": batch, "steps": size.steps}
        label = f"{name}-beams{beams}-batch{batch}"
        if "speed" in parts:
            save(args, "inference", "speed", label, **facts, runs=measure_speed(cell, names, args.rounds, folder))
        if "memory" in parts and batch == max(args.batch):
            load.cache_clear()
            found = {one: in_child(measure_memory, one, cell, folder) for one in names if one != "HF tuned"}
            save(args, "inference", "memory", label, **facts, mebibytes=found)
    load.cache_clear()
    load_translator.cache_clear()
    if "scaling" in parts:
        cell = Cell(size, args.beams[0], {"cpu": 4, "cuda": 64}[args.device], args.device, args.threads)
        points = measure_scaling(cell, args.full, args.rounds, folder)
        save(args, "inference", "scaling", name, size=name, beams=cell.beams, batch=cell.batch, points=points)


if __name__ == "__main__":
    main()
