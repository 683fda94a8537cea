"""What docs/compatibility.md says, collected while the tests run: `pytest --compatibility=docs/compatibility.md`.

With pytest-xdist (`-n 2`) workers tell of each case in its report's `user_properties`; the controller makes the page.

A test that proves a feature of Transformers names it: `@pytest.mark.feature("Generation", "Greedy search")`. Several
tests may prove one feature; it is supported if all their cases passed, and a skipped case counts as not supported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

HEAD = """<!-- Made by `{command}`. Do not edit. -->
# What works

Each row names a feature and the tests that prove it. The tests ran with transformers {transformers} and torch
{torch}. Their models have three sources, and some examples of each batch lack a source. The columns *combiners* and
*beams* list the combiners and the beam widths of the tests; they are empty if the tests do not vary them. *lstm* is the
LSTM model, which has no combiner. *supported* is *yes* if all cases passed, and *not run* if a case was skipped.

"""
SELECTED = "feature and not gpu and not extra"
PROPERTY = "feature_case"
COLUMNS = ("feature", "supported", "combiners", "beams", "cases", "proved by")


@dataclass
class Case:
    """One case of a test that proves features.

    Args:
        features: Area and name of each.
        combiner: The case's, if it has to do with one.
        num_beams: The case's, if it has to do with them.
    """

    features: list[list[str]]
    combiner: str | None
    num_beams: str | None


COLLECTED = pytest.StashKey[dict[str, "Case"]]()
"""Of the configuration: all cases that were collected and are on the page, if the whole of the tests was collected."""


def keep_collected(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Keep all cases, before `-m` chooses, for the test of the page.

    Args:
        config: The configuration.
        items: All that was collected.
    """
    everything = [config.rootpath / path for path in config.getini("testpaths")]
    if [config.invocation_params.dir / arg for arg in config.args] == everything:
        marks = {item.nodeid: {mark.name for mark in item.iter_markers()} for item in items}
        chosen = [
            item for item in items if "feature" in marks[item.nodeid] and not marks[item.nodeid] & {"gpu", "extra"}
        ]
        config.stash[COLLECTED] = {item.nodeid: case_of(item) for item in chosen}


def case_of(item: pytest.Item) -> Case:
    """What a test's markers and parameters say.

    Args:
        item: The test.

    Returns:
        The case; one without features if the test names none.
    """
    call: Any = getattr(item, "callspec", None)
    values = {} if call is None else call.params
    combiner, num_beams = (str(values[name]) if name in values else None for name in ("combiner", "num_beams"))
    return Case([list(marker.args) for marker in item.iter_markers("feature")], combiner, num_beams)


class Features:
    """Outcomes of the tests that carry the marker `feature`, and the page made of them.

    Args:
        page: The file to write; None in a worker, which only tells.
    """

    def __init__(self, page: Path | None) -> None:
        self.page = page
        self.cases: dict[str, Case] = {}
        self.outcomes: dict[str, list[str]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if (case := case_of(item)).features:
                self.cases[item.nodeid] = case
                item.user_properties.append((PROPERTY, asdict(case)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY:
                self.cases[report.nodeid] = Case(**value)  # type: ignore[arg-type]
        if report.nodeid in self.cases and (report.when == "call" or report.outcome != "passed"):
            self.outcomes[report.nodeid].append(report.outcome)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.page is not None:
            self.write(self.page)

    def write(self, page: Path) -> None:
        """Write the page.

        Args:
            page: The file.
        """
        table: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for nodeid in sorted(self.cases):
            for area, name in self.cases[nodeid].features:
                table[area][name].append(nodeid)
        versions = {"transformers": version("transformers"), "torch": version("torch").split("+")[0]}
        command = f"pytest -m '{SELECTED}' --compatibility={page}"
        text = HEAD.format(command=command, **versions)
        for area in sorted(table):
            text += f"## {area}\n\n| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}\n"
            for name in sorted(table[area], key=str.lower):
                text += f"| {' | '.join((name, *self._cells(table[area][name])))} |\n"
            text += "\n"
        page.write_text(text.rstrip() + "\n", encoding="utf-8")

    def _cells(self, nodeids: list[str]) -> list[str]:
        outcomes = [set(self.outcomes[nodeid]) for nodeid in nodeids]
        passed = sum(outcome == {"passed"} for outcome in outcomes)
        supported = "yes" if passed == len(nodeids) else "not run" if any("skipped" in o for o in outcomes) else "no"
        tests = sorted({nodeid.split("[")[0] for nodeid in nodeids})
        proofs = "<br>".join(f"`{test}`" for test in tests)
        return [
            supported,
            ", ".join(sorted({str(self.cases[n].combiner) for n in nodeids} - {"None"})),
            ", ".join(sorted({str(self.cases[n].num_beams) for n in nodeids} - {"None"}, key=int)),
            f"{passed} of {len(nodeids)}",
            proofs,
        ]
