"""Faster linear layers for inference: the same numbers, the same names, and back again."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builders import EVERY_COMBINER
from builders import three_source_batch as batch
from builders import three_source_model as make
from hf_multisource import MultiSourceForConditionalGeneration, inference
from hf_multisource.inference import Int8Linear, OneDNNLinear

KINDS = {"oneDNN": OneDNNLinear, "int8": Int8Linear}
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def onednn_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine the tests run on; `test_it_is_taken_only_where_it_is_faster` says what a measurement does."""
    monkeypatch.setattr(inference, "onednn_gain", lambda layer: 2.0)


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
    if kind == "int8":
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
@pytest.mark.parametrize("change", ["in place", "loaded", "another", "moved"])
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
def test_an_optimised_model_finds_what_it_found_before(combiner: str, num_beams: int) -> None:
    model = make(combiner)
    search = {"num_beams": num_beams, "max_new_tokens": 6}
    expected = model.generate(**batch(), **search)
    [chosen] = model.train().optimize_for_inference()
    assert not model.training
    count = sum(type(module) is OneDNNLinear for module in model.modules())
    assert chosen.startswith(f"oneDNN: {count} linear layers in float32") and count > 20
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert torch.equal(model.generate(**batch(), **search), expected)
    assert model.optimize_for_inference() == []  # nothing is left to do


def test_integers_of_8_bits_say_nearly_the_same() -> None:
    model = make()
    plain = copy.deepcopy(model)
    [chosen] = model.optimize_for_inference(int8=True)
    assert chosen.startswith("int8: ")
    inputs = {**batch(), "decoder_input_ids": torch.tensor([[2, 4, 5]] * 5)}
    with torch.no_grad():
        logits, expected = model(**inputs).logits, plain(**inputs).logits
    difference = (logits - expected).abs().max() / expected.abs().max()
    assert 1e-4 < difference < 0.15
    assert model.generate(**batch(), num_beams=3, max_new_tokens=4).shape[0] == 5


def test_an_optimised_model_is_saved_and_trained_as_before(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("times", "taken"), [((2.0, 1.0), True), ((1.0, 1.0), False), ((1.0, 2.0), False)])
def test_it_is_taken_only_where_it_is_faster(
    times: tuple[float, float], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()

    def measured(functions: Sequence[Callable[[], Tensor]]) -> list[float]:
        """Of what PyTorch does, then of oneDNN."""
        stock, onednn = [function() for function in functions]
        torch.testing.assert_close(stock, onednn)
        return list(times)

    monkeypatch.setattr(inference, "shortest_times", measured)
    chosen = make().optimize_for_inference()
    assert [line.split(":")[0] for line in chosen] == ["oneDNN"] * taken


def test_a_call_is_measured_by_its_fastest_run() -> None:
    calls: list[int] = []
    slow, fast = inference.shortest_times([lambda: time.sleep(0.01 * (len(calls) == 3)), lambda: calls.append(1)], 3)
    assert 0 <= slow < 0.01 and 0 <= fast < 0.01
    assert len(calls) == 4


def test_half_precision_on_a_cpu_is_left_as_it_is() -> None:
    model = make().to(torch.bfloat16)
    assert model.optimize_for_inference() == []
    assert model.optimize_for_inference(int8=True) == []


def test_int8_is_refused_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"int8 is for CPUs; the model is on meta"):
        make().to("meta").optimize_for_inference(int8=True)
    monkeypatch.setattr(inference, "INT8_ENGINE", "none")
    with pytest.raises(RuntimeError, match="oneDNN"):
        make().optimize_for_inference(int8=True)
