"""SECURITY.md: every promise names tests that exist, and the page of the fuzz suite has results of every target."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
PROMISES = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]
TESTS = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE)
}


def test_every_promise_names_tests_that_exist() -> None:
    assert len(PROMISES) == 9
    for promise, tests in PROMISES:
        named = set(re.findall(r"`(test_\w+)`", tests))
        assert named, promise
        assert named <= TESTS, promise


def test_every_test_of_promises_is_named() -> None:
    file = (ROOT / "tests/integration/test_promises.py").read_text("utf-8")
    about_the_guard = {
        "test_forbidden_acts_raise_and_are_recorded",
        "test_good_checkpoints_work_in_the_guarded_process",
    }
    assert set(re.findall(r"^def (test_\w+)", file, re.MULTILINE)) - about_the_guard <= set(
        re.findall(r"test_\w+", PAGE)
    )


def test_the_page_of_fuzzing_has_every_target() -> None:
    page = (ROOT / "docs/fuzzing.md").read_text("utf-8")
    names = re.findall(r'Target\(\s*"([^"]+)"', (ROOT / "tests/fuzz/targets.py").read_text("utf-8"))
    assert len(names) == 16
    assert [name for name in names if f"| {name} |" not in page] == []
