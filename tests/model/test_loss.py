"""The blocked cross-entropy against torch's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from hf_multisource import loss as module
from hf_multisource.loss import linear_cross_entropy


def both_ways(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Value and gradients: ours and torch's."""
    results: list[list[Tensor | None]] = []
    for ours in (True, False):
        inputs, table = states.clone().requires_grad_(), weight.clone().requires_grad_()
        if ours:
            value = linear_cross_entropy(inputs, table, bias, labels, smoothing)
        else:
            logits = linear(inputs, table, bias)
            logits = logits if logits.dtype == torch.float64 else logits.float()
            value = cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        (value * 3.0).backward()
        results.append([value.detach(), inputs.grad, table.grad])
    return results[0], results[1]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 9),
    vocab=st.integers(1, 7),
    smoothing=st.sampled_from([0.0, 0.1, 0.9]),
    with_bias=st.booleans(),
    block=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_equals_torch_in_value_and_gradient(
    rows: int, vocab: int, smoothing: float, with_bias: bool, block: int, seed: int
) -> None:
    torch.manual_seed(seed)
    states, weight = torch.randn(rows, 5).double(), torch.randn(vocab, 5).double() * 3
    bias = torch.randn(vocab).double() if with_bias else None
    labels = torch.randint(0, vocab, (rows,)).masked_fill(torch.rand(rows) < 0.3, -100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CPU_ROWS", block)
        patch.setattr(module, "CPU_BLOCK", 1)
        ours, theirs = both_ways(states, weight, bias, labels, smoothing)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [True, False])
def test_narrow_types_are_as_exact_as_torch(dtype: torch.dtype, autocast: bool) -> None:
    torch.manual_seed(1)
    states, weight = torch.randn(40, 16), torch.randn(300, 16)
    labels = torch.randint(0, 300, (40,))
    exact, _ = both_ways(states.double(), weight.double(), None, labels, 0.1)
    if not autocast:
        states, weight = states.to(dtype), weight.to(dtype)
    with torch.autocast("cpu", dtype, enabled=autocast):
        ours, theirs = both_ways(states, weight, None, labels, 0.1)
    assert ours[0] is not None and ours[0].dtype == torch.float32
    for mine, stock, true in zip(ours, theirs, exact, strict=True):
        assert mine is not None and stock is not None and true is not None
        assert mine.dtype == stock.dtype
        error, allowed = ((tensor.double() - true).norm() for tensor in (mine, stock))
        assert error <= 2 * allowed + 1e-6


def test_the_smoothed_mass_survives_half_precision() -> None:
    # 0.1 / 50,000 for a token that has no probability: below what float16 can tell from 0 by more than a step or two.
    weight = torch.zeros(50_000, 1, dtype=torch.float16, requires_grad=True)
    states = torch.ones(1, 1, dtype=torch.float16)
    value = linear_cross_entropy(states, weight, torch.full((50_000,), -50.0).index_fill(0, torch.tensor([3]), 0.0),
                                 torch.tensor([3]), 0.1)  # fmt: skip
    value.mul(2.0**10).backward()
    assert weight.grad is not None
    assert weight.grad[0].item() == pytest.approx(-0.1 / 50_000 * 2**10, rel=1e-2)


def test_huge_logits_do_not_overflow() -> None:
    states = torch.tensor([[1e4]], requires_grad=True)
    value = linear_cross_entropy(states, torch.tensor([[1.0], [-1.0], [0.0]]), None, torch.tensor([0]))
    value.backward()
    assert value.item() == 0.0
    assert states.grad is not None and states.grad.item() == 0.0


def test_states_without_a_label_may_be_anything() -> None:
    states = torch.tensor([[1.0], [torch.nan]], requires_grad=True)
    weight = torch.tensor([[1.0], [2.0]], requires_grad=True)
    value = linear_cross_entropy(states, weight, None, torch.tensor([0, -100]), 0.1)
    value.backward()
    assert value.isfinite() and weight.grad is not None and weight.grad.isfinite().all()
    assert states.grad is not None and states.grad[0].isfinite() and states.grad[1] == 0


def test_no_more_than_a_block_of_logits_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_ROWS", 10)
    monkeypatch.setattr(module, "CPU_BLOCK", 5000)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            largest = max(largest, result.numel() if isinstance(result, Tensor) else 0)
            return result

    states, weight = torch.randn(500, 4, requires_grad=True), torch.randn(1000, 4, requires_grad=True)
    with Watch():
        linear_cross_entropy(states, weight, None, torch.zeros(500, dtype=torch.long), 0.1).backward()
    assert largest == 10 * 1000


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("enabled", [True, False])
def test_gradients_are_computed_for_those_who_need_them(
    needs: tuple[bool, bool], enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    labels = torch.tensor([1, -100, 4])
    given = [torch.randn(3, 8), torch.randn(7, 8)]
    whole = [tensor.clone().requires_grad_() for tensor in given]
    expected = linear_cross_entropy(whole[0], whole[1], None, labels)
    expected.backward()
    made: list[torch.Size] = []

    def noting(make: Any, like: Tensor, **options: Any) -> Tensor:
        made.append(like.shape)
        result: Tensor = make(like, **options)
        return result

    for name in ("empty_like", "zeros_like"):
        monkeypatch.setattr(torch, name, partial(noting, getattr(torch, name)))
    mine = [tensor.clone().requires_grad_(needed) for tensor, needed in zip(given, needs, strict=True)]
    with torch.set_grad_enabled(enabled):
        loss = linear_cross_entropy(mine[0], mine[1], None, labels)
    assert made == [tensor.shape for tensor, needed in zip(given, needs, strict=True) if needed and enabled]
    torch.testing.assert_close(loss.detach(), expected.detach())
    if any(needs) and enabled:
        loss.backward()
        for tensor, other, needed in zip(mine, whole, needs, strict=True):
            torch.testing.assert_close(tensor.grad, other.grad if needed else None)


def test_a_compiled_loss_needs_no_graph_of_its_own_for_each_number_of_labels() -> None:
    torch.compiler.reset()
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled: Any = torch.compile(linear_cross_entropy, fullgraph=True, backend=backend)
    weight = torch.randn(7, 5, requires_grad=True)
    for rows in (40, 41, 44, 52, 60, 33, 71):
        states, labels = torch.randn(rows, 5), torch.randint(7, (rows,))
        found, expected = (compute(states, weight, None, labels, 0.1) for compute in (compiled, linear_cross_entropy))
        torch.testing.assert_close(found, expected)
    torch.compiler.reset()
    assert len(graphs) <= 2, "one for the first number, and one for any number"
