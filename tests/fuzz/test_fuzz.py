"""Broken input of every kind is refused in one line, or accepted: a short run of `make fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign import describe, run_workers
from oracle import violation


@pytest.mark.feature("Hub", "Broken files of all kinds cause a one-line error, without network, programs or pickles")
def test_broken_input_is_refused_in_one_line(tmp_path: Path) -> None:
    found = run_workers(tmp_path, names=(), examples=None, seed=None)
    assert len(found) == 16
    assert all(tally.outcomes.get("accepted") for tally in found.values()), "strategies break too much"
    assert describe(found) == ""


def raised(error: Exception) -> Exception:
    """The error with the traceback of a place that is not the package's."""
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (IndexError("x"), "no documented exception: IndexError at tests/fuzz/test_fuzz"),
        (ValueError(" "), "no message"),
        (ValueError("x"), "not raised by us on purpose"),
    ],
    ids=repr,
)
def test_the_oracle_refuses(error: Exception, message: str) -> None:
    assert message in str(violation(raised(error)))
