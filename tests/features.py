"""What docs/compatibility.md says, collected while the tests run: `pytest --compatibility=docs/compatibility.md`.

A test that proves a feature of Transformers names it: `@pytest.mark.feature("Generation", "Greedy search")`. Several
tests may prove one feature; it is supported if all their cases passed, and a skipped case counts as not supported.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

HEAD = """<!-- Made by `{command}`. Do not edit. -->
# What works

Each line names the tests that prove it; they ran on transformers {transformers}, torch {torch}. The models of these
tests have three sources, and batches in which some examples lack one. *combiners* and *beams* tell what a feature was
run with: an empty cell means that it has nothing to do with them. A skipped test counts as not supported.

"""
COLUMNS = ("feature", "supported", "combiners", "beams", "cases", "proved by")


class Features:
    """Outcomes of the tests that carry the marker `feature`, and the page made of them.

    Args:
        page: The file to write.
    """

    def __init__(self, page: Path) -> None:
        self.page = page
        self.items: dict[str, pytest.Item] = {}
        self.outcomes: dict[str, list[str]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = {item.nodeid: item for item in session.items if item.get_closest_marker("feature")}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self.items and (report.when == "call" or report.outcome != "passed"):
            self.outcomes[report.nodeid].append(report.outcome)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        table: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for nodeid, item in self.items.items():
            for marker in item.iter_markers("feature"):
                area, name = marker.args
                table[area][name].append(nodeid)
        versions = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
        command = f"pytest -m 'feature and not gpu' --compatibility={self.page}"
        text = HEAD.format(command=command, **versions)
        for area in sorted(table):
            text += f"## {area}\n\n| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}\n"
            for name in sorted(table[area], key=str.lower):
                text += f"| {' | '.join((name, *self._cells(table[area][name])))} |\n"
            text += "\n"
        self.page.write_text(text.rstrip() + "\n", encoding="utf-8")

    def _cells(self, nodeids: list[str]) -> list[str]:
        outcomes = [set(self.outcomes[nodeid]) for nodeid in nodeids]
        passed = sum(outcome == {"passed"} for outcome in outcomes)
        supported = "yes" if passed == len(nodeids) else "not run" if any("skipped" in o for o in outcomes) else "no"
        tests = sorted({nodeid.split("[")[0] for nodeid in nodeids})
        proofs = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests)
        return [
            supported,
            ", ".join(self._values(nodeids, "combiner")),
            ", ".join(self._values(nodeids, "num_beams")),
            f"{passed} of {len(nodeids)}",
            proofs,
        ]

    def _values(self, nodeids: list[str], parameter: str) -> list[str]:
        values: dict[str, None] = {}
        for nodeid in nodeids:
            call: Any = getattr(self.items[nodeid], "callspec", None)
            if call is not None and parameter in call.params:
                values[str(call.params[parameter])] = None
        return list(values)
