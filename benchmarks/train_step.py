"""Training, ours and stock Marian on the joined sources: time of a step, memory of the loss, padding.

    python benchmarks/train_step.py [step] [loss] [padding] [--size msmt] [--batch 24] [--device cuda] [--threads 2]
                                    [--rounds 3] [--data data/multi30k]

    step       forward, label-smoothed cross-entropy, backward and AdamW; in float32 and under bfloat16 autocast
    loss       label-smoothed cross-entropy over all logits, and by `linear_cross_entropy`: time, and peak memory in a
               process of its own; on a GPU under bfloat16 autocast
    padding    how much of a batch of DATA's training text is padding: drawn at random, and by `LengthBucketSampler`

Marian's encoder reads as many positions as all our encoders, each with weights of its own, read together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

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
    save,
    sources_of,
    work,
)
from hf_multisource import LengthBucketSampler
from hf_multisource.data.rows import read_split
from hf_multisource.loss import linear_cross_entropy

PARTS = ("step", "loss", "padding")
SMOOTHING = 0.1
COMBINERS = ("flat", "serial")
LANGUAGES = ("en", "de", "fr", "cs")
BATCH = 32  # sentences whose padding is counted
LONG = 100  # tokens to predict for every sentence of a batch, where the loss is measured alone
LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "full logits": lambda states, weight, labels: cross_entropy(
        linear(states, weight).float(), labels, label_smoothing=SMOOTHING, reduction="sum"
    ),
    "linear_cross_entropy": lambda states, weight, labels: linear_cross_entropy(
        states, weight, None, labels, SMOOTHING
    ),
}


def training_step(name: str, size: Size, batch: int, device: str) -> Callable[[], None]:
    """A function that does one update of a model: "HF", or one of our combiners; " bf16" behind it: with autocast."""
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
    """A function that computes a loss and its gradients."""
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
    """Peak of a loss beyond its inputs, MiB; to be called in a process of its own."""
    torch.set_num_threads(threads)
    loss_step(name, 1, width, tokens, device)()  # whatever is loaded once
    return peak_memory(loss_step(name, rows, width, tokens, device), device)


def padding(lengths: Sequence[tuple[int, ...]], order: Sequence[int]) -> float:
    """Share of padding, with every source of a batch padded to its own longest."""
    padded = real = 0
    for start in range(0, len(order), BATCH):
        batch = [lengths[i] for i in order[start : start + BATCH]]
        real += sum(map(sum, batch))
        padded += len(batch) * sum(max(column) for column in zip(*batch, strict=True))
    return 1 - real / padded


def measure_padding(data: str) -> dict[str, Any]:
    """Padding of the training text, in words; by sources, at random and in buckets."""
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


def measure_steps(size: Size, batch: int, rounds: int, device: str) -> dict[str, Any]:
    """Time updates; by name, seconds and GFLOP of a sentence's forward and backward pass."""
    names = [f"{kind}{half}" for half in ("", " bf16") for kind in ("HF", *COMBINERS)]
    _, seconds = interleave({name: training_step(name, size, batch, device) for name in names}, rounds, device)
    combiners = {name: name.partition(" ")[0].replace("HF", "concat") for name in names}
    # Backward has two products of matrices for each one of forward.
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
        if "loss" in args.parts:
            shape = (LONG * batch, size.d_model, size.vocab_size)
            memory = {loss: in_child(loss_memory, loss, *shape, args.device, args.threads) for loss in LOSSES}
            steps = {loss: loss_step(loss, *shape, args.device) for loss in LOSSES}
            _, seconds = interleave(steps, args.rounds, args.device)
            runs = {loss: {"seconds": seconds[loss], "mebibytes": memory[loss]} for loss in LOSSES}
            save(args, "train_step", "loss", name, size=name, rows=shape[0], vocab_size=shape[2], runs=runs)
    if "padding" in args.parts:
        save(args, "train_step", "padding", "", **measure_padding(args.data))


if __name__ == "__main__":
    main()
