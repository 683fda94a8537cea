"""Faster linear layers for inference: the same numbers, the same names, and back again."""

from __future__ import annotations

import copy
import ctypes
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from builders import EVERY_COMBINER, first_is_best
from builders import three_source_batch as batch
from builders import three_source_model as make
from hf_multisource import MultiSourceForConditionalGeneration, generation, inference
from hf_multisource.inference import FBGEMMInt8Linear, Int8Linear, OneDNNLinear

KINDS: dict[str, Any] = {"oneDNN": OneDNNLinear, "int8": Int8Linear}
if FBGEMMInt8Linear.available():
    KINDS["int8 (FBGEMM)"] = FBGEMMInt8Linear
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def onednn_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine the tests run on; `test_it_is_taken_only_where_it_is_faster` says what a measurement does."""
    monkeypatch.setattr(inference, "measure_gains", first_is_best)


def layer(kind: str, bias: bool = True, width: int = 24) -> tuple[nn.Linear, nn.Linear]:
    """A plain layer, and a copy of it of another kind."""
    torch.manual_seed(0)
    plain = nn.Linear(width, 40, bias=bias)
    other = copy.deepcopy(plain)
    other.__class__ = KINDS[kind]
    return plain, other


def close(kind: str, actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    worst = (actual - expected).abs().max() / expected.abs().max()
    assert worst < (1e-5 if kind == "oneDNN" else 0.03)
    if kind != "oneDNN":
        assert worst > 1e-5  # guards that it is what it says


@each_kind
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3), (2, 1, 5)])
@torch.no_grad()
def test_the_numbers_are_those_of_a_plain_layer(kind: str, bias: bool, shape: tuple[int, ...]) -> None:
    plain, other = layer(kind, bias)
    states = torch.randn(*shape, 24)
    close(kind, other(states), plain(states))
    view = torch.randn(24, *shape).movedim(0, -1)  # not contiguous
    close(kind, other(view), plain(view))


@each_kind
@pytest.mark.parametrize("rows", [(0.0, math.inf), (5.0, 9.0)])
@torch.no_grad()
def test_a_bias_may_be_given_where_there_is_none(kind: str, rows: tuple[float, float]) -> None:
    """Within the rows at which it is another kind, and outside of them; and the bias may change."""
    _, other = layer(kind, bias=False)
    other.rows = rows  # type: ignore[assignment]
    bias = torch.randn(40)
    for states in (torch.randn(7, 24), torch.randn(2, 24)):
        for _ in range(2):
            torch.testing.assert_close(other(states, bias), other(states) + bias, atol=1e-5, rtol=1e-5)
            bias += 1
        torch.testing.assert_close(other(states, -bias), other(states) - bias, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="bias of its own"):
        layer(kind)[1](states, bias)


@each_kind
def test_it_is_exported_as_a_plain_layer(kind: str) -> None:
    plain, other = layer(kind)
    other.rows = (4.0, 10.0)  # type: ignore[assignment]
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(other, (torch.randn(7, 24),), dynamic_shapes=({0: rows},)).module()
    states = torch.randn(30, 24)
    torch.testing.assert_close(program(states), plain(states))


@each_kind
def test_where_gradients_or_other_types_are_wanted_it_is_a_plain_layer(kind: str) -> None:
    plain, other = layer(kind)
    states = torch.randn(3, 24)
    assert torch.equal(other(states), plain(states))
    other(states).sum().backward()
    plain(states).sum().backward()
    assert other.weight.grad is not None and plain.weight.grad is not None
    assert torch.equal(other.weight.grad, plain.weight.grad)
    with torch.no_grad():
        assert torch.equal(other(states[:0]), plain(states[:0]))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(other(states), plain(states))
        assert torch.equal(other.bfloat16()(states.bfloat16()), plain.bfloat16()(states.bfloat16()))


@each_kind
@pytest.mark.parametrize("change", ["in place", "loaded", "another", "moved", "merged", "bias"])
def test_changed_weights_are_noticed(kind: str, change: str) -> None:
    plain, other = layer(kind)
    states = torch.randn(3, 24)
    with torch.no_grad():
        before = other(states)
        new = torch.randn_like(plain.weight)
        if change == "in place":
            other.weight.copy_(new)
        elif change == "loaded":
            other.load_state_dict({"weight": new, "bias": plain.bias})
        elif change == "another":
            other.weight = nn.Parameter(new)
        elif change == "merged":  # as PEFT does; it is no new version of the weight
            other.weight.data += new - plain.weight
        elif change == "bias":
            new = plain.weight
            other.bias.add_(1)
            plain.bias.add_(1)
        else:
            other.weight.data = new
        plain.weight.copy_(new)
        assert not torch.allclose(before, plain(states), atol=0.1)
        close(kind, other(states), plain(states))


@each_kind
def test_copies_and_names_are_those_of_a_plain_layer(kind: str) -> None:
    plain, other = layer(kind)
    with torch.no_grad():
        states = torch.randn(3, 24)
        other(states)
        twin = copy.deepcopy(other)
        assert twin._packed is None and other._packed is not None
        assert torch.equal(twin(states), other(states))
    assert other.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("combiner", EVERY_COMBINER)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_optimized_model_finds_what_it_found_before(combiner: str, num_beams: int) -> None:
    model = make(combiner)
    search = {"num_beams": num_beams, "max_new_tokens": 6}
    expected = model.generate(**batch(), **search)
    [chosen] = model.train().optimize_for_inference()
    assert not model.training
    count = sum(type(module) is OneDNNLinear for module in model.modules())
    assert chosen == f"oneDNN: {count} of {count} linear layers in float32, 2.0 to 2.0 times as fast" and count > 20
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert torch.equal(model.generate(**batch(), **search), expected)
    assert model.optimize_for_inference() == []  # nothing is left to do


def test_integers_of_8_bits_say_nearly_the_same() -> None:
    model = make()
    plain = copy.deepcopy(model)
    [chosen] = model.optimize_for_inference(int8=True)
    assert chosen.startswith("int8: ") and "layers in integers of 8 bits" in chosen
    inputs = {**batch(), "decoder_input_ids": torch.tensor([[2, 4, 5]] * 5)}
    with torch.no_grad():
        logits, expected = model(**inputs).logits, plain(**inputs).logits
    difference = (logits - expected).abs().max() / expected.abs().max()
    assert 1e-4 < difference < 0.15
    assert model.generate(**batch(), num_beams=3, max_new_tokens=4).shape[0] == 5


@pytest.mark.parametrize("int8", [False, True])
def test_calls_of_different_kinds_use_one_packed_output_layer(int8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bias of the logits is passed by all of them, because the packed weight of some kernels includes it."""
    model = make()
    model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(0))
    searches: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"num_beams": 3, "output_scores": True}]
    calls = [{**batch(), **search, "max_new_tokens": 4} for search in searches]
    calls = [{**call, "return_dict_in_generate": True} for call in calls]
    expected = [model.generate(**call).sequences for call in calls]
    model.optimize_for_inference(int8=int8)
    kind = type(model.lm_head)
    assert issubclass(kind, inference.PackedLinear)
    packed, pack = [], kind.pack

    def counting(weight: Tensor, bias: Tensor | None) -> Any:
        packed.append(weight.data_ptr())
        return pack(weight, bias)

    monkeypatch.setattr(kind, "pack", staticmethod(counting))
    found = [model.generate(**call).sequences for call in calls * 2]
    assert packed.count(model.lm_head.weight.data_ptr()) == 1
    if not int8:
        assert all(torch.equal(one, other) for one, other in zip(found, expected * 2, strict=True))


def test_an_optimized_model_is_saved_and_trained_as_before(tmp_path: Path) -> None:
    model = make()
    names = set(model.state_dict())
    model.optimize_for_inference()
    expected = model.generate(**batch(), num_beams=3, max_new_tokens=6)
    model.save_pretrained(tmp_path)
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path)
    assert set(loaded.state_dict()) == names
    assert torch.equal(loaded.generate(**batch(), num_beams=3, max_new_tokens=6), expected)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(**batch(), labels=torch.tensor([[4, 5, 1]] * 5)).loss.backward()
    optimizer.step()
    trained = copy.deepcopy(model).eval()
    module: Any
    for module in trained.modules():
        if type(module) is OneDNNLinear:
            module.__class__ = nn.Linear  # type: ignore[assignment]
    model.eval()
    now = model.generate(**batch(), num_beams=3, max_new_tokens=6)
    assert torch.equal(now, trained.generate(**batch(), num_beams=3, max_new_tokens=6))
    assert not torch.equal(now, expected)


@pytest.mark.parametrize(
    ("times", "taken"),
    [
        ((2.0, 1.0, 1.0, 1.0), {OneDNNLinear}),
        ((1.0, 1.0, 1.0, 1.0), {nn.Linear}),
        ((1.0, 2.0, 2.0, 2.0), {nn.Linear}),
        ((3.0, 1.0, 2.0, 2.0), {OneDNNLinear}),
        ((3.0, 2.0, 1.0, 2.0), {Int8Linear}),
        ((3.0, 2.0, 2.0, 1.0), {FBGEMMInt8Linear}),
        ((1.0, 2.0, 0.5, 1.0), {Int8Linear}),
    ],
)
@pytest.mark.parametrize("int8", [False, True])
def test_it_is_taken_only_where_it_is_faster(
    int8: bool, times: tuple[float, ...], taken: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of what PyTorch does, of oneDNN, and of integers, by oneDNN and by FBGEMM."""
    monkeypatch.undo()
    monkeypatch.setattr(FBGEMMInt8Linear, "available", lambda: True)
    if not int8 and taken & {Int8Linear, FBGEMMInt8Linear}:
        taken = {OneDNNLinear if times[1] < times[0] else nn.Linear}
    of_kind = dict(zip((nn.Linear, OneDNNLinear, Int8Linear, FBGEMMInt8Linear), times, strict=True))

    def measured(functions: Sequence[Any], seconds: float) -> list[float]:
        return [of_kind[type(function.args[0][0])] for function in functions]

    monkeypatch.setattr(inference, "shortest_times", measured)
    monkeypatch.setattr(inference, "_bind", lambda layers, states: list(layers))
    model = make()
    chosen = model.optimize_for_inference(int8=int8)
    assert {type(module) for module in model.modules() if isinstance(module, nn.Linear)} == taken
    assert [line.split(":")[0] for line in chosen] == [kind.title for kind in taken - {nn.Linear}]


def test_layers_of_each_shape_are_chosen_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its vocabulary the output layer has a shape of its own."""
    monkeypatch.undo()
    model = make()
    shape = (model.lm_head.in_features, model.lm_head.out_features)
    alike = [one for one in inference.plain_linear_layers(model) if (one.in_features, one.out_features) == shape]
    seen: list[int] = []

    def measured(functions: Sequence[Any], seconds: float) -> list[float]:
        layers, states = functions[0].args
        seen.append(len(states))
        head = (layers[0].in_features, layers[0].out_features) == shape
        return [{1: 1.0, 10: 9.0, 40: 3.0, 160: 1.0}[len(states)] if head else 1.0, 1.0]

    monkeypatch.setattr(inference, "shortest_times", measured)
    monkeypatch.setattr(inference, "_bind", lambda layers, states: list(layers))
    [chosen] = model.optimize_for_inference()
    assert {module for module in model.modules() if type(module) is OneDNNLinear} == set(alike)
    assert f"oneDNN: {len(alike)} of " in chosen and chosen.endswith("3.0 to 9.0 times as fast")
    assert set(seen) == {1, 10, 40, 160}
    assert {layer.rows for layer in alike} == {(math.sqrt(10), 80.0)}


@pytest.mark.parametrize(
    ("gains", "kind", "rows"),
    [
        ([(2.0, 2.0, 2.0, 2.0)], 0, (0, math.inf)),
        ([(0.8, 1.2, 1.2, 1.2)], 0, (math.sqrt(10), math.inf)),
        ([(1.0, 1.0, 1.0, 1.2)], 0, (80.0, math.inf)),
        ([(1.0, 1.0, 1.2, 1.0)], 0, (20.0, 80.0)),
        ([(1.3, 1.3, 1.0, 1.2)], 0, (0, math.inf)),
        ([(1.3, 1.0, 1.0, 1.0), (1.0, 1.0, 1.2, 1.2)], 1, (20.0, math.inf)),
        ([(1.0, 1.0, 1.0, 1.5), (1.1, 1.1, 0.1, 1.2)], 0, (80.0, math.inf)),
        ([(1.3, 1.3, 0.3, 1.2)], 0, (0, 20.0)),
        ([(1.3, 1.3, 0.3, 1.2), (1.0, 1.0, 1.0, 1.0)], 0, (0, 20.0)),
        ([(1.2, 1.2, 1.2, 1.2), (1.2, 1.2, 1.2, 1.2)], 1, (0, math.inf)),
        ([(1.09, 1.09, 1.0, 0.5), (0.2, 0.2, 0.3, 1.05)], None, None),
    ],
)
def test_a_kind_is_taken_for_the_numbers_of_rows_at_which_it_gains(gains: Any, kind: int | None, rows: Any) -> None:
    best, at = inference.best_kind(gains)
    assert bool(at) == (kind is not None)
    if kind is not None:
        assert best == kind and inference.rows_between(at) == pytest.approx(rows)


@each_kind
@torch.no_grad()
def test_with_other_numbers_of_rows_it_is_a_plain_layer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = layer(kind)
    other.rows = (4.0, 10.0)  # type: ignore[assignment]
    computed: list[int] = []
    stock = KINDS[kind].compute

    def compute(self: Any, states: Tensor, *args: Any) -> Tensor:
        computed.append(len(states))
        return stock(self, states, *args)

    monkeypatch.setattr(KINDS[kind], "compute", compute)
    for rows in (3, 4, 10, 11):
        states = torch.randn(rows, 24)
        found = other(states)
        if 4 <= rows <= 10:
            close(kind, found, plain(states))
        else:
            assert torch.equal(found, plain(states))
    assert computed == [4, 10]


@each_kind
def test_what_is_measured_are_the_layers_themselves(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a shape in turn, and they stay what they were."""
    monkeypatch.undo()
    plain, other = layer(kind)
    gains = inference.measure_gains([[plain], [copy.deepcopy(plain)] * 3], [type(other)])  # type: ignore[list-item]
    assert len(gains) == 1 and len(gains[0]) == len(inference.BENCHMARK_ROWS) and min(gains[0]) > 0
    assert type(plain) is nn.Linear and not hasattr(plain, "_packed")


def test_layers_that_will_be_one_product_are_measured_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    layers, products = [nn.Linear(8, 8) for _ in range(4)], list[tuple[int, ...]]()

    def compute(self: Any, states: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
        products.append(packed)
        return states

    monkeypatch.setattr(OneDNNLinear, "compute", compute)
    monkeypatch.setattr(OneDNNLinear, "pack", classmethod(lambda cls, weight, bias: tuple(weight.shape)))
    monkeypatch.setattr(inference, "MOST_ROUNDS", 1)
    inference.measure_gains([layers[:3], layers[3:]], [OneDNNLinear])
    assert set(products) == {(24, 8), (8, 8)}
    assert products.count((24, 8)) == products.count((8, 8))


def test_projections_of_one_attention_are_one_product() -> None:
    model = make()
    attention = model.model.decoder.layers[0].self_attn
    together = [attention.q_proj, attention.k_proj, attention.v_proj]
    alike = [one for one in inference.plain_linear_layers(model) if one.weight.shape == attention.q_proj.weight.shape]
    products = inference.products_of(model, alike)
    assert together in products and [attention.out_proj] in products
    assert sorted(map(id, alike)) == sorted(id(layer) for layers in products for layer in layers)
    attention.k_proj.register_forward_hook(lambda *_: None)  # it will be called by itself
    products = inference.products_of(model, alike)
    assert all([layer] in products for layer in together)
    assert [attention.v_proj] not in inference.products_of(model, together[:2])


def test_where_sums_of_8_bits_do_not_fit_weights_have_7_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturated(states: Tensor, *args: Any) -> Tensor:
        return states.new_full((*states.shape[:-1], 64), 64 * 32767 / (255 * 127 * 2))

    packed: list[int] = []
    pack = Int8Linear._pack

    def spied(weight: Tensor, bias: Tensor | None, largest: int) -> Any:
        packed.append(largest)
        return pack(weight, bias, largest)

    monkeypatch.setattr(Int8Linear, "_pack", spied)
    monkeypatch.setattr(inference, "INT8_LINEAR", saturated)
    Int8Linear._is_exact.cache_clear()
    try:
        assert not FBGEMMInt8Linear.available()
        assert Int8Linear.available()
        Int8Linear.pack(torch.randn(4, 4), None)
        assert packed[-1] == 63
    finally:
        Int8Linear._is_exact.cache_clear()


def test_a_call_is_measured_by_its_fastest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its processor's time, if there is one thread."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    calls: list[int] = []
    slow, fast = inference.shortest_times([lambda: time.sleep(0.01 * (len(calls) == 3)), lambda: calls.append(1)], 3)
    assert 0 <= slow < 0.01 and 0 <= fast < 0.01
    assert len(calls) == 4


@pytest.mark.parametrize("clocks", [{"thread_time"}, {"thread_time", "perf_counter"}], ids=["processor", "both"])
def test_a_clock_that_moves_in_long_steps_does_not_measure_zero(
    clocks: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some systems the time on the processor moves by 10 ms, and most calls seem to take none."""
    monkeypatch.undo()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for name in clocks:
        exact = getattr(time, name)
        monkeypatch.setattr(time, name, partial(lambda clock: clock() // 10 * 10, exact))
    short, longer = inference.shortest_times([lambda: None, lambda: sum(range(50_000))], 3)
    assert 0 < short <= longer
    assert (short < longer) == (clocks == {"thread_time"})
    make().optimize_for_inference()


def test_short_calls_are_measured_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the time is over, or the number of rounds is reached."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    calls: list[int] = []
    inference.shortest_times([lambda: calls.append(1)], 3, seconds=60.0)
    assert len(calls) == inference.MOST_ROUNDS + 1
    calls.clear()
    inference.shortest_times([lambda: time.sleep(0.01), lambda: calls.append(1)], 3, seconds=0.02)
    assert len(calls) == 4


COUNT_KEPT = """
import ctypes
import torch
from hf_multisource import inference

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

class Counts(ctypes.Structure):
    _fields_ = [(field, ctypes.c_size_t) for field in FIELDS.split()]

count = ctypes.CDLL(None).mallinfo2
count.restype = Counts

def mapped_and_kept(n_blocks=2):
    before = count()
    blocks = [torch.empty(2**24, dtype=torch.uint8) for _ in range(n_blocks)]
    mapped = count().hblks - before.hblks
    del blocks
    return mapped, count().fordblks >= n_blocks * 2**24

first = mapped_and_kept()
inference.keep_freed_memory()
print(first, mapped_and_kept())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc counts so, since 2.33"
)
def test_freed_memory_is_used_again() -> None:
    """By the C library's own count: blocks that it maps, and bytes that it holds for later ones."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", COUNT_KEPT], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "(2, False) (0, True)\n"


def test_generate_keeps_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(generation, "keep_freed_memory", lambda: calls.append(1))
    make().generate(**batch(), max_new_tokens=2)
    assert calls == [1]


def test_without_other_kernels_everything_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneDNNLinear, "available", lambda: False)
    model = make()
    assert model.optimize_for_inference() == []
    [chosen] = model.optimize_for_inference(int8=True)
    assert chosen.startswith("int8: ")


def test_pruned_layers_are_left_as_they_are() -> None:
    model = make()
    prune.l1_unstructured(model.lm_head, "weight", 0.3)
    expected = model.generate(**batch(), num_beams=3, max_new_tokens=4)
    assert model.optimize_for_inference()
    assert type(model.lm_head) is nn.Linear
    assert torch.equal(model.generate(**batch(), num_beams=3, max_new_tokens=4), expected)


def test_a_layer_that_is_pruned_later_computes_as_a_plain_one() -> None:
    plain, other = layer("oneDNN")
    for one in (plain, other):
        prune.l1_unstructured(one, "weight", 0.3)
    with torch.no_grad():
        assert torch.equal(other(torch.ones(2, 24)), plain(torch.ones(2, 24)))


def test_measuring_calls_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model, seen = make(), list[Any]()
    for module in model.modules():
        module.register_forward_hook(lambda *call: seen.append(call))
    model.optimize_for_inference(int8=True)
    assert not seen


def test_half_precision_on_a_cpu_is_left_as_it_is() -> None:
    model = make().to(torch.bfloat16)
    assert model.optimize_for_inference() == []
    assert model.optimize_for_inference(int8=True) == []


def test_int8_is_refused_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"int8 is for CPUs; the model is on meta"):
        make().to("meta").optimize_for_inference(int8=True)
    monkeypatch.setattr(Int8Linear, "engine", "none")
    with pytest.raises(RuntimeError, match="oneDNN"):
        make().optimize_for_inference(int8=True)
