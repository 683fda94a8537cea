"""Threads that share one optimized model get the outputs of a model of their own, and need no further memory."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import time
from functools import cache
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn

from builders import LSTM, first_is_best, three_source_model, three_source_processor
from concurrent_calls import THREADS, in_threads
from hf_multisource import inference
from hf_multisource.inference import FBGEMMInt8Linear, Int8Linear, OneDNNLinear

KINDS: dict[str, Any] = {"oneDNN": OneDNNLinear, "int8": Int8Linear}
if FBGEMMInt8Linear.available():
    KINDS["int8 (FBGEMM)"] = FBGEMMInt8Linear
each_kind = pytest.mark.parametrize("kind", KINDS)
FIRST_REQUESTS = 1000  # calls of layers whose weights nothing has packed yet; all threads call each layer at once
WORDS = ["a", "dog", "runs", "ein", "Hund", "rennt", "un", "chien", "court", "et"]
REQUESTS = 400  # different ones
MAX_GROWTH = 16 * 2**20  # bytes that the process may take more after 8,000 requests than before


def new_layer(kind: str, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    layer = nn.Linear(16, 24)
    layer.__class__ = KINDS[kind]
    return layer


@each_kind
def test_first_requests_may_come_at_once(kind: str) -> None:
    """Every attribute is stored slowly, so that other threads see all states between a layer's first and last one."""

    def store(layer: Any, name: str, value: Any) -> None:
        nn.Linear.__setattr__(layer, name, value)
        time.sleep(0.0003)

    slow_to_store: Any = type("SlowToStore", (KINDS[kind],), {"__setattr__": store})
    layers, others = ([new_layer(kind, seed) for seed in range(FIRST_REQUESTS // THREADS)] for _ in range(2))
    for layer in layers:
        layer.__class__ = slow_to_store
    states = torch.randn(3, 16)
    engine = torch.backends.quantized.engine
    with torch.no_grad():
        expected = [layer(states) for layer in others]

    @torch.no_grad()
    def work(i: int, barrier: Barrier) -> list[int]:
        wrong = []
        for k, layer in enumerate(layers):
            barrier.wait()
            time.sleep(0.0001 * i)
            if not torch.equal(layer(states), expected[k]):
                wrong.append(k)
        return wrong

    assert in_threads(work) == [[]] * THREADS
    assert torch.backends.quantized.engine == engine


@pytest.mark.parametrize("fails", [False, True])
def test_packing_in_threads_leaves_the_engine_as_it_was(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer a thread has switched the engine, the more others would take the switched one for the original."""
    prepack = torch.ops.quantized.linear_prepack

    def slow_prepack(*args: Any) -> Any:
        time.sleep(0.002)
        if fails:
            raise RuntimeError("no memory")
        return prepack(*args)

    monkeypatch.setattr(torch.ops.quantized, "linear_prepack", slow_prepack)
    engine = torch.backends.quantized.engine
    assert engine != Int8Linear.engine

    @torch.no_grad()
    def work(i: int, barrier: Barrier) -> None:
        layer = new_layer("int8", i)
        barrier.wait()
        for _ in range(5):
            time.sleep(0.0005 * i)
            layer.weight.add_(1)
            try:
                layer(torch.ones(2, 16))
            except RuntimeError as error:
                assert fails and str(error) == "no memory"

    try:
        in_threads(work)
        assert torch.backends.quantized.engine == engine
    finally:
        torch.backends.quantized.engine = engine


@each_kind
@torch.no_grad()
def test_packed_weights_are_used_without_the_lock(kind: str) -> None:
    """Threads would wait here for ever."""
    layer, states = new_layer(kind), torch.ones(2, 16)
    expected = layer(states)
    with inference.PACKING_LOCK:
        assert torch.equal(layer(states), expected)


@cache
def requests() -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Different sources, numbers of beams, and lengths of sources and outputs."""
    draw = random.Random(0)
    made = []
    for _ in range(REQUESTS):
        names = draw.sample(["en", "de", "fr"], draw.randint(1, 3))
        texts = {name: " ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for name in names}
        search: dict[str, Any] = {"num_beams": draw.choice([1, 2, 4]), "max_new_tokens": draw.randint(1, 10)}
        search["max_source_length"] = draw.randint(2, 20)
        if search["num_beams"] > 1:
            search["length_normalization"] = draw.choice([None, 0.6])
            search["num_return_sequences"] = draw.randint(1, 2)
            search["fold_beams"] = draw.random() < 0.9
        if draw.random() < 0.2:
            search["shortlist"] = [1, *range(4, draw.randint(60, 260))]
        made.append((texts, search))
    return made


def answer(model: Any, request: tuple[dict[str, Any], dict[str, Any]]) -> list[str]:
    """The texts that a service would send back, from texts to texts."""
    texts, search = request
    search = dict(search)
    processor = three_source_processor()
    inputs = processor(**texts, truncation=True, max_length=search.pop("max_source_length"), return_tensors="pt")
    if "shortlist" in search:
        search["shortlist"] = torch.tensor(search["shortlist"])
    ids = model.generate(**inputs, **search)
    return [str(row.tolist()) + text for row, text in zip(ids, processor.batch_decode(ids), strict=True)]


def optimized_model(combiner: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model whose weights nothing has packed yet."""
    monkeypatch.setattr(inference, "measure_gains", first_is_best)
    model = three_source_model(combiner, vocab_size=len(three_source_processor().tokenizer))
    [chosen] = model.optimize_for_inference(int8=kind == "int8")
    assert chosen.startswith(kind)
    return model


@pytest.mark.parametrize(("combiner", "kind"), [("hierarchical", "oneDNN"), (LSTM, "int8")])
def test_requests_in_threads_are_answered_as_one_after_the_other(
    combiner: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = (optimized_model(combiner, kind, monkeypatch) for _ in range(2))
    expected = [answer(other, request) for request in requests()[:12]]

    def work(i: int, barrier: Barrier) -> list[int]:
        barrier.wait()
        order = [(k + 5 * i) % 12 for k in range(12)]
        return [k for k in order if answer(model, requests()[k]) != expected[k]]

    assert in_threads(work) == [[]] * THREADS
    assert len({str(one) for one in expected}) > 8


def resident_bytes() -> int:
    """The process's resident memory, without what the C library keeps of freed blocks."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the resident memory is read from /proc")
@each_kind
def test_8_threads_of_1000_requests_each_are_answered_right_in_constant_memory(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run it with `-s` to see the numbers."""
    model, other = (optimized_model("hierarchical", kind, monkeypatch) for _ in range(2))
    expected = [answer(other, request) for request in requests()]

    def serve(each: int) -> None:
        def work(i: int, barrier: Barrier) -> list[int]:
            order = random.Random(i).choices(range(REQUESTS), k=each)
            barrier.wait()
            return [k for k in order if answer(model, requests()[k]) != expected[k]]

        assert in_threads(work) == [[]] * THREADS

    serve(250)  # until PyTorch has met all shapes, and each thread has the memory that it keeps for itself
    memory, objects, start = resident_bytes(), len(gc.get_objects()), time.perf_counter()
    serve(1000)
    seconds = time.perf_counter() - start
    more_memory, more_objects = resident_bytes() - memory, len(gc.get_objects()) - objects
    print(
        f"\n{kind}: {THREADS} threads x 1,000 requests, {seconds:.0f} s, {THREADS * 1000 / seconds:.0f} requests/s, "
        f"resident memory {memory / 2**20:.1f} MiB before, {(memory + more_memory) / 2**20:.1f} MiB after; "
        f"{more_objects:+d} Python objects"
    )
    assert more_memory < MAX_GROWTH and more_objects < 1000
