"""docs/compatibility.md says what the tests say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from features import COLLECTED, SELECTED, Features

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/compatibility.md"
LINE = re.compile(r"^\| (.+?) \| (yes|no|not run) \| (.*?) \| (.*?) \| \d+ of (\d+) \| (.*?) \|$", re.MULTILINE)


def listed(page: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Area and name of every feature on a page, with the rest of its line."""
    sections = [section.partition("\n") for section in page.split("\n## ")[1:]]
    return {(area, line[0]): line[1:] for area, _, lines in sections for line in LINE.findall(lines)}


def test_the_page_lists_the_features_that_tests_name(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    page = tmp_path / "page.md"
    collected = request.config.stash.get(COLLECTED, None)
    if collected is None:  # this session has not collected all tests: another one does
        options = ["--collect-only", "-q", "-m", SELECTED, f"--compatibility={page}"]
        subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, capture_output=True)
    else:
        features = Features(page)
        features.cases = collected
        features.write(page)
    named, said = listed(page.read_text("utf-8")), listed(PAGE.read_text("utf-8"))
    assert len(named) > 80
    # all but the outcome: combiners, beams, number of cases, tests
    assert {feature: line[1:] for feature, line in said.items()} == {
        feature: line[1:] for feature, line in named.items()
    }


def test_nothing_on_the_page_failed() -> None:
    assert [feature for feature, (state, *_) in listed(PAGE.read_text("utf-8")).items() if state == "no"] == []


@pytest.mark.parametrize(
    "processes", [pytest.param([], marks=pytest.mark.slow), ["-n", "2"]], ids=["one process", "two"]
)
def test_a_failed_case_is_a_no_and_a_skipped_one_is_not_run(processes: list[str], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text("utf-8"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = feature\npythonpath = {ROOT / 'tests/support'}\n")
    (tmp_path / "test_some.py").write_text(
        """
import pytest

@pytest.mark.feature("Area", "Works")
@pytest.mark.parametrize("combiner", ["flat", "serial"])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_works(combiner, num_beams): pass

@pytest.mark.feature("Area", "Fails for one")
@pytest.mark.parametrize("number", [1, 2])
def test_fails(number): assert number == 1

@pytest.mark.feature("Area", "Skips one")
@pytest.mark.parametrize("number", [1, 2])
def test_skips(number):
    if number == 2:
        pytest.skip("no device")

@pytest.mark.feature("Area", "Breaks before it starts")
def test_breaks(no_such_fixture): pass
"""
    )
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *processes, "--compatibility", "page.md"],
        cwd=tmp_path,
        capture_output=True,
    )
    lines = [line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert lines == [
        "| Breaks before it starts | no |  |  | 0 of 1 | `test_some.py::test_breaks` |",
        "| Fails for one | no |  |  | 1 of 2 | `test_some.py::test_fails` |",
        "| Skips one | not run |  |  | 1 of 2 | `test_some.py::test_skips` |",
        "| Works | yes | flat, serial | 1, 4 | 4 of 4 | `test_some.py::test_works` |",
    ]
