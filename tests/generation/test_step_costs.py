"""What a step of beam search costs, in counts: so that no change, here or in PyTorch, loses speed in silence.

Each bound is the present count. A change that lowers a count should lower its bound, too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from builders import LSTM, three_source_batch, three_source_model

SHORT, LONG = 6, 12
#: Operations of PyTorch in one step of two layers, views included, where all sources are present.
OPERATIONS = {
    "serial": 249,
    "parallel": 245,
    "flat": 205,
    "hierarchical": 283,
    "gated_serial": 253,
    "projection": 259,
    "tanh_concat": 265,
    "mean": 247,
    "weighted_sum": 247,
    "context_gate": 263,
    "flat_normed": 205,
    LSTM: 287,
}
#: The same of greedy search: 92 less, and for LSTMs 74.
GREEDY_OPERATIONS = {name: count - (74 if name == LSTM else 92) for name, count in OPERATIONS.items()}
#: Values of tensors that Python reads in one step: does a text end, is the search over.
READS = 2


class Operations(TorchDispatchMode):
    """Counts the operations that reach PyTorch's kernels, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def operations_of_a_step(name: str, num_beams: int) -> Counter[str]:
    """The operations of steps in which no text ends and no example leaves, divided by their number."""
    model, found = three_source_model(name), []
    inputs = {key: torch.ones_like(value) if "mask" in key else value for key, value in three_source_batch().items()}
    for length in (SHORT, SHORT, LONG):
        with Operations() as operations:
            model.generate(**inputs, num_beams=num_beams, max_new_tokens=length, eos_token_id=None, pad_token_id=0)
        found.append(operations.counts)
    _, few, many = found  # the first call also computes position embeddings, once for all calls
    assert all((many[name] - few[name]) % (LONG - SHORT) == 0 for name in many), "steps differ"
    return Counter({name: (many[name] - few[name]) // (LONG - SHORT) for name in many})


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_a_step(name: str, num_beams: int) -> None:
    operations = operations_of_a_step(name, num_beams)
    most = (GREEDY_OPERATIONS if num_beams == 1 else OPERATIONS)[name]
    assert operations.total() <= most, operations
    assert operations["_local_scalar_dense"] <= READS
    assert operations["where"] <= 1, "beyond the heuristic of the search: masks and present sources are found once"
