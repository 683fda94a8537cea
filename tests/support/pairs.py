"""Of a test with several parameters, run some cases by default: among them is every pair of values of two parameters.

A fault that two values together bring out is found by them; what only three of them bring out is left to `-m slow`,
which runs the other cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest

LEFT_OUT = {"slow", "gpu", "vision", "installed"}


def cover_pairs(cases: Sequence[Mapping[str, Any]]) -> list[int]:
    """Choose cases that hold every pair of values that any case holds.

    Args:
        cases: The parameters of each case by name.

    Returns:
        Places of the chosen cases, in order. The case that has the most new pairs is taken first, then so on.
    """
    pairs = [{*combinations([(name, _key(value)) for name, value in case.items()], 2)} for case in cases]
    missing = set().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda i: (len(pairs[i] & missing), -i))
        chosen.append(best)
        missing -= pairs[best]
    return sorted(chosen)


def _key(value: Any) -> Hashable:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def mark_others_slow(items: Sequence[pytest.Item]) -> None:
    """Mark as slow the cases of tests with the marker `pairs` that the default run can do without.

    Args:
        items: The collected tests.
    """
    tests = defaultdict(list)
    for item in items:
        call: Any = getattr(item, "callspec", None)
        marks = {mark.name for mark in item.iter_markers()}
        if call is not None and len(call.params) > 1 and "pairs" in marks and not marks & LEFT_OUT:
            tests[item.nodeid.split("[")[0]].append(item)
    for cases in tests.values():
        parameters: list[Any] = [getattr(case, "callspec", None) for case in cases]
        chosen = {*cover_pairs([call.params for call in parameters])}
        for i, case in enumerate(cases):
            if i not in chosen:
                case.add_marker(pytest.mark.slow)
