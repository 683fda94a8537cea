"""The cases that the default run takes of tests with several parameters."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairs import cover_pairs, mark_others_slow


def pairs_of(case: dict[str, Any]) -> set[Any]:
    return {*combinations([(name, repr(value)) for name, value in case.items()], 2)}


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    keep=st.lists(st.booleans(), min_size=256, max_size=256),
)
def test_every_pair_of_values_that_any_case_has_is_covered(sizes: list[int], keep: list[bool]) -> None:
    values = product(*(range(size) for size in sizes))
    cases = [
        {f"p{i}": [value] for i, value in enumerate(case)} for case, kept in zip(values, keep, strict=False) if kept
    ]
    chosen = cover_pairs(cases)
    assert chosen == sorted({*chosen})
    covered = set[Any]().union(*(pairs_of(cases[i]) for i in chosen))
    assert covered == set[Any]().union(*map(pairs_of, cases))


def test_a_product_needs_no_more_cases_than_its_two_largest_parameters_and_a_few() -> None:
    cases = [dict(zip("abcd", values, strict=True)) for values in product(range(11), range(2), range(2), range(3))]
    assert 33 <= len(cover_pairs(cases)) <= 36 < len(cases)


@pytest.mark.pairs
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize("b", "xy")
@pytest.mark.parametrize("c", "xy")
def test_the_cases_that_run_are_the_chosen_ones(a: str, b: str, c: str, request: pytest.FixtureRequest) -> None:
    cases = [{"c": c, "b": b, "a": a} for c, b, a in product("xy", "xy", "xyz")]
    assert [*range(12)] != cover_pairs(cases)
    place = cases.index({"c": c, "b": b, "a": a})
    assert (place in cover_pairs(cases)) == (request.node.get_closest_marker("slow") is None)


def test_cases_without_the_marker_stay(request: pytest.FixtureRequest) -> None:
    item: Any = request.node
    mark_others_slow([item])
    assert item.get_closest_marker("slow") is None
