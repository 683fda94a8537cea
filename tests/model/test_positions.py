"""The table of sinusoidal positions is computed once and grows; its numbers do not depend on when it was computed."""

from __future__ import annotations

import copy

import pytest
import torch

from hf_multisource.layers import ROWS_AT_FIRST, SinusoidalPositions

CPU = torch.device("cpu")


@pytest.mark.parametrize("marian", [False, True])
@pytest.mark.parametrize("offset", [0, 2])
def test_positions_that_are_kept_are_those_that_are_computed(offset: int, marian: bool) -> None:
    positions = SinusoidalPositions(10, offset, marian=marian)
    for start, length in [(0, 3), (7, 1), (5, 0), (60, 9), (200, 70), (1, 2)]:
        for where in (start, torch.tensor(start)):
            expected = SinusoidalPositions(10, offset, marian=marian)._compute(start, length, CPU)
            assert torch.equal(positions(where, length, CPU), expected)


def test_positions_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    stock = SinusoidalPositions._compute

    def compute(self: SinusoidalPositions, start: int, length: int, device: torch.device) -> torch.Tensor:
        lengths.append(length)
        return stock(self, start, length, device)

    monkeypatch.setattr(SinusoidalPositions, "_compute", compute)
    positions = SinusoidalPositions(10)
    for start in range(ROWS_AT_FIRST + 1):
        positions(start, 1, CPU)
    assert lengths == [ROWS_AT_FIRST, 2 * ROWS_AT_FIRST]
    positions(0, 1, torch.device("meta"))
    assert positions(0, 1, CPU).device == CPU


def test_positions_of_inference_mode_serve_training() -> None:
    positions = SinusoidalPositions(10)
    with torch.inference_mode():
        positions(0, 3, CPU)
    states = torch.ones(3, 10, requires_grad=True)
    (states * positions(0, 3, CPU)).sum().backward()
    assert states.grad is not None and torch.equal(states.grad, positions(0, 3, CPU))


def test_positions_are_neither_saved_nor_copied() -> None:
    positions = SinusoidalPositions(10)
    positions(0, 3, CPU)
    assert not positions.state_dict()
    assert copy.deepcopy(positions)._computed is None and positions._computed is not None
