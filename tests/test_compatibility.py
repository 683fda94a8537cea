"""docs/compatibility.md says what the tests say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/compatibility.md"
MARKER = re.compile(r"""^@pytest\.mark\.feature\(\s*"([^"]+)",\s*(?:"([^"]+)"|'([^']+)'),?\s*\)""", re.MULTILINE)
LINE = re.compile(r"^\| (.+?) \| (yes|no|not run) \|.*\| ([^|]*) \|$", re.MULTILINE)


def marked() -> set[tuple[str, str]]:
    """Area and name of every feature that a test names, but for those that need a GPU."""
    found = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        if path.name not in ("test_gpu.py", Path(__file__).name):
            found |= {(area, one or other) for area, one, other in MARKER.findall(path.read_text("utf-8"))}
    return found


def listed() -> dict[tuple[str, str], tuple[str, list[str]]]:
    """Area and name of every feature on the page, with its state and its tests."""
    found = {}
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        area = section.partition("\n")[0]
        for name, state, tests in LINE.findall(section):
            found[area, name] = state, re.findall(r"`(.+?)`", tests)
    return found


def test_the_page_lists_the_features_that_tests_name() -> None:
    assert marked() == set(listed())
    assert len(marked()) > 50


def test_nothing_on_the_page_failed_and_its_tests_exist() -> None:
    for feature, (state, tests) in listed().items():
        assert state != "no", feature
        assert tests
        for test in tests:
            file, _, name = test.partition("::")
            assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text("utf-8"), re.MULTILINE), test


def test_a_failed_case_is_a_no_and_a_skipped_one_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text("utf-8"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = feature\npythonpath = {Path(__file__).parent}\n")
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
        [sys.executable, "-m", "pytest", "-q", "--compatibility", "page.md"], cwd=tmp_path, capture_output=True
    )
    lines = [line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert lines == [
        "| Breaks before it starts | no |  |  | 0 of 1 | `test_some.py::test_breaks` |",
        "| Fails for one | no |  |  | 1 of 2 | `test_some.py::test_fails` |",
        "| Skips one | not run |  |  | 1 of 2 | `test_some.py::test_skips` |",
        "| Works | yes | flat, serial | 1, 4 | 4 of 4 | `test_some.py::test_works` |",
    ]
