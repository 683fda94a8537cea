"""Compare training of our models and of Transformers' Marian on the joined sources: step time, loss memory, padding.

    python benchmarks/train_step.py [step] [profile] [update] [loss] [padding] [--size msmt] [--batch 24]
                                    [--device cuda] [--threads 2] [--rounds 3] [--data data/multi30k]

    step       forward, label-smoothed cross-entropy, backward and AdamW; in float32 and under bfloat16 autocast
    profile    the time of these steps by PyTorch operator
    update     on a CPU, a whole update of two recipes for CPUs, with and without the savings for CPUs ("everything
               computed": padding, absent sources, matrix products by PyTorch's BLAS library, and a random number for
               each element in dropout)
    loss       label-smoothed cross-entropy over all logits, and by `linear_cross_entropy`: time, and peak memory in a
               separate process; on a GPU under bfloat16 autocast
    padding    share of padding in batches of DATA's training text, drawn at random and by `LengthBucketSampler`

Marian's encoder reads as many positions as all our encoders, which have separate weights, read together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils.flop_counter import FlopCounterMode

from common import (
    FIRST,
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
from hf_multisource import (
    LengthBucketSampler,
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    attention,
    combiners,
    encoders,
    layers,
    modeling_multisource,
)
from hf_multisource.data.rows import read_split
from hf_multisource.inference import keep_freed_memory
from hf_multisource.loss import linear_cross_entropy
from hf_multisource.matrix_products import fast_products

PARTS = ("step", "profile", "update", "loss", "padding")
SMOOTHING = 0.1
COMBINERS = ("flat", "serial")
LANGUAGES = ("en", "de", "fr", "cs")
BATCH = 32  # sentences per batch whose padding is counted
LONG = 100  # target tokens per sentence of a batch in the part `loss`
LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "full logits": lambda states, weight, labels: cross_entropy(
        linear(states, weight).float(), labels, label_smoothing=SMOOTHING, reduction="sum"
    ),
    "linear_cross_entropy": lambda states, weight, labels: linear_cross_entropy(
        states, weight, None, labels, SMOOTHING
    ),
}


@dataclass(frozen=True)
class Update:
    """Model and data statistics of a recipe for CPUs, for measuring an update.

    Args:
        shares: Share of the examples that have each source.
        lengths: Smallest and largest length of a text, in tokens.
        d_model: Hidden size; the feed-forward layers are four times as wide.
        vocab_size: Number of tokens of the joint vocabulary.
        dropout: Dropout probability.
        bf16: Whether to use bfloat16 autocast.
        bucketed: Whether the texts of a batch have about the same length.
    """

    shares: tuple[float, ...]
    lengths: tuple[int, int]
    d_model: int
    vocab_size: int
    dropout: float
    bf16: bool
    bucketed: bool


# "words" has words of five languages with the absent sources of the Romance set of docs/results/protoform.md.
UPDATES = {
    "words": Update((0.28, 0.58, 0.74, 0.7, 0.63), (4, 13), 128, 110, 0.2, bf16=False, bucketed=False),
    "multi30k_en_de_fr_cs": Update((1.0, 1.0, 1.0), (7, 26), 128, 4000, 0.1, bf16=True, bucketed=True),
}
WAYS = ("everything computed", "as trained")
BATCHES = 20  # number of batches, each with different lengths; the updates cycle through them


def text_batch(update: Update, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a random batch of 64 examples."""
    low, high = update.lengths
    middle = int(torch.randint(low, high, (), generator=generator))
    ends = (max(low, middle - 2), min(high, middle + 2)) if update.bucketed else (low, high)

    def texts() -> tuple[Tensor, Tensor]:
        lengths = torch.randint(ends[0], ends[1] + 1, (64, 1), generator=generator)
        ids = torch.randint(FIRST, update.vocab_size, (64, int(lengths.max())), generator=generator)
        return ids, torch.arange(ids.shape[1]) < lengths

    batch: dict[str, Tensor] = {}
    for i, share in enumerate(update.shares):
        ids, mask = texts()
        present = torch.rand(64, 1, generator=generator) < share
        prefix = f"text{i}_" if i else ""
        batch |= {f"{prefix}input_ids": ids, f"{prefix}attention_mask": (mask & present).long()}
    ids, mask = texts()
    return {**batch, "labels": ids.masked_fill(~mask, -100)}


@contextmanager
def everything_computed() -> Iterator[None]:
    """Switch off the packing of padded batches and the faster dropout for CPUs."""
    with ExitStack() as stack:
        for module in (encoders, combiners, modeling_multisource):
            stack.enter_context(patch.object(module, "packing_pays", lambda *_: False))
        for module in (attention, combiners, encoders, layers, modeling_multisource):
            name = "drop" if module is attention else "dropout"
            stack.enter_context(patch.object(module, name, dropout_of_torch))
        yield


def whole_update(update: Update, plain: bool) -> Callable[[], None]:
    """Return a function that runs `BATCHES` updates of a recipe's model, with `plain` without savings for CPUs."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {key: getattr(update, key) for key in ("d_model", "vocab_size", "dropout")}
    for part in ("encoder", "decoder"):
        settings |= {f"{part}_layers": 2, f"{part}_attention_heads": 4, f"{part}_ffn_dim": 4 * update.d_model}
    settings["sources"] = [f"text{i}" for i in range(len(update.shares))]
    config = MultiSourceConfig(label_smoothing=SMOOTHING, **{**settings, "attn_implementation": "eager"})
    model: Any = MultiSourceForConditionalGeneration(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    generator = torch.Generator().manual_seed(1)
    batches = cycle([text_batch(update, generator) for _ in range(BATCHES)])

    def one() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=update.bf16):
            loss = model(**next(batches), skip_logits=True).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def run() -> None:
        with everything_computed() if plain else fast_products(torch.device("cpu")):
            keep_freed_memory()  # in both ways, because the setting is global to the process
            for _ in range(BATCHES):
                one()

    return run


def gflop(update: Update, plain: bool) -> float:
    """Return the GFLOP of the matrix products of an update, forward and backward."""
    run = whole_update(update, plain)
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() / BATCHES / 1e9


def dropout_of_torch(states: Tensor, p: float, training: bool) -> Tensor:
    """Apply PyTorch's dropout."""
    return torch.nn.functional.dropout(states, p, training) if p else states


def training_step(name: str, size: Size, batch: int, device: str) -> Callable[[], None]:
    """Return a function that runs one update of "HF" or a combiner's model; with the suffix " bf16", in autocast."""
    kind, _, half = name.partition(" ")
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(FIRST, size.vocab_size - 1, (batch, size.steps), generator=generator).to(device)
    inputs: dict[str, Any]
    if kind == "HF":
        model, inputs = marian(size), sources_of(size, batch, device, joined=True)
        start = torch.full_like(labels[:, :1], model.config.decoder_start_token_id)
        inputs["decoder_input_ids"] = torch.cat([start, labels[:, :-1]], dim=1)
    else:
        model = our_model(size, kind, label_smoothing=SMOOTHING)
        inputs = {**sources_of(size, batch, device), "labels": labels, "skip_logits": True}
    model.to(device).train().final_logits_bias.zero_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16) if half else nullcontext():
            output = model(**inputs)
            loss = output.loss
            if loss is None:
                loss = cross_entropy(output.logits.float().flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def loss_step(name: str, rows: int, width: int, tokens: int, device: str) -> Callable[[], None]:
    """Return a function that computes a loss and its gradients."""
    torch.manual_seed(0)
    states = torch.randn(rows, width, device=device, requires_grad=True)
    weight = torch.randn(tokens, width, device=device, requires_grad=True)
    labels = torch.randint(tokens, (rows,), device=device)

    def step() -> None:
        states.grad = weight.grad = None
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            loss = LOSSES[name](states, weight, labels)
        loss.backward()

    return step


def loss_memory(name: str, rows: int, width: int, tokens: int, device: str, threads: int) -> float:
    """Return the peak memory of a loss beyond its inputs in MiB; must be called in a new process."""
    torch.set_num_threads(threads)
    loss_step(name, 1, width, tokens, device)()  # warm-up, so that one-time allocations are not counted
    return peak_memory(loss_step(name, rows, width, tokens, device), device)


def padding(lengths: Sequence[tuple[int, ...]], order: Sequence[int]) -> float:
    """Return the share of padding, if every source of a batch is padded to its longest text."""
    padded = real = 0
    for start in range(0, len(order), BATCH):
        batch = [lengths[i] for i in order[start : start + BATCH]]
        real += sum(map(sum, batch))
        padded += len(batch) * sum(max(column) for column in zip(*batch, strict=True))
    return 1 - real / padded


def measure_padding(data: str) -> dict[str, Any]:
    """Measure the padding of the training text in words, for random and for bucketed batches, by sources."""
    rows = read_split(data, "train", LANGUAGES, None).rows
    every = [tuple(len((row[name] or "").split()) for name in LANGUAGES) for row in rows]
    shuffled = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    shares = {}
    for count in (1, len(LANGUAGES)):
        lengths = [row[:count] for row in every]
        sampler = LengthBucketSampler([(max(row), row[0]) for row in lengths], BATCH)
        shares[" ".join(LANGUAGES[:count])] = {
            "random": padding(lengths, shuffled),
            "bucketed": padding(lengths, list(sampler)),
        }
    return {"sentences": len(rows), "batch": BATCH, "shares": shares}


def training_steps(size: Size, batch: int, device: str) -> dict[str, Callable[[], None]]:
    """Return functions that run one update of each model, in float32 and under bfloat16 autocast, by name."""
    names = [f"{kind}{half}" for half in ("", " bf16") for kind in ("HF", *COMBINERS)]
    return {name: training_step(name, size, batch, device) for name in names}


def measure_steps(size: Size, batch: int, rounds: int, device: str) -> dict[str, Any]:
    """Time updates; return seconds, and GFLOP of a sentence's forward and backward pass, by name."""
    steps = training_steps(size, batch, device)
    _, seconds = interleave(steps, rounds, device)
    combiners = {name: name.partition(" ")[0].replace("HF", "concat") for name in steps}
    # The backward pass has two matrix products for each product of the forward pass.
    return {
        name: {"seconds": seconds[name], "gflop": 3 * work(size, combiner, beams=1)["gflop"]}
        for name, combiner in combiners.items()
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure; see the module's docstring."""
    args = parse(
        __doc__,
        PARTS,
        argv,
        batch={"type": int, "help": "sentences of a step; default: the paper's 24, on a GPU 512"},
        data={"default": "data/multi30k", "help": "padding: folder of the text (default: data/multi30k)"},
    )
    batch = args.batch or {"cpu": 24, "cuda": 512}[args.device]
    for name in args.size:
        size = SIZES[name]
        if "step" in args.parts:
            runs = measure_steps(size, batch, args.rounds, args.device)
            save(args, "train_step", "step", name, size=name, batch=batch, target=size.steps, runs=runs)
        if "profile" in args.parts:
            runs = profiled(training_steps(size, batch, args.device), args.rounds, args.device)
            save(args, "train_step", "step_profile", name, size=name, batch=batch, runs=runs)
        if "loss" in args.parts:
            shape = (LONG * batch, size.d_model, size.vocab_size)
            memory = {loss: in_child(loss_memory, loss, *shape, args.device, args.threads) for loss in LOSSES}
            steps = {loss: loss_step(loss, *shape, args.device) for loss in LOSSES}
            _, seconds = interleave(steps, args.rounds, args.device)
            runs = {loss: {"seconds": seconds[loss], "mebibytes": memory[loss]} for loss in LOSSES}
            save(args, "train_step", "loss", name, size=name, rows=shape[0], vocab_size=shape[2], runs=runs)
    if "update" in args.parts and args.device == "cpu":
        for name, update in UPDATES.items():
            _, seconds = interleave({way: whole_update(update, way == WAYS[0]) for way in WAYS}, args.rounds, "cpu")
            for times in (times for clocks in seconds.values() for times in clocks.values()):
                times[:] = [time / BATCHES for time in times]
            shown = "bfloat16" if update.bf16 else "float32"
            measured = {way: {"seconds": seconds[way], "gflop": gflop(update, way == WAYS[0])} for way in WAYS}
            save(args, "train_step", "update", name, update=name, batch=64, numbers=shown, runs=measured)
    if "padding" in args.parts:
        save(args, "train_step", "padding", "", **measure_padding(args.data))


if __name__ == "__main__":
    main()
