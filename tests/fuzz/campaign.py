"""Fuzz the package: run each target in a separate process, and collect the reports.

`make fuzz` runs this file: `python tests/fuzz/campaign.py --examples 2000 --page docs/fuzzing.md`. It ends with status
1 if there is any violation of what `oracle` allows.
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]  # as pytest has them; `make fuzz` runs this file by itself

from guarded import environment  # noqa: E402
from worker import OWN_ERROR  # noqa: E402

MINUTES = 120  # for one process, far more than its targets need
PACKAGES = ("transformers", "torch", "huggingface_hub", "safetensors", "numpy", "pillow", "hypothesis")
SHOWN = 1000  # characters of an example
TITLE = "| input | examples | accepted | refused | refused by | violations |"


@dataclass
class Tally:
    """What became of the examples of one target.

    Args:
        outcomes: Numbers by "accepted" or the name of an exception's class.
        violations: What is wrong -> how often, and an example.
    """

    outcomes: dict[str, int] = field(default_factory=dict)
    violations: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def examples(self) -> int:
        """Number of examples."""
        return sum(self.outcomes.values())

    def line(self, name: str) -> str:
        """Row of the table of results."""
        refusals = sorted(((n, kind) for kind, n in self.outcomes.items() if kind != "accepted"), reverse=True)
        by = ", ".join(f"{kind} {n:,}" for n, kind in refusals)
        refused, wrong = sum(n for n, _ in refusals), sum(n for n, _ in self.violations.values())
        return f"| {name} | {self.examples:,} | {self.outcomes.get('accepted', 0):,} | {refused:,} | {by} | {wrong:,} |"


def run_workers(folder: Path, names: Sequence[str], examples: int | None, seed: int | None) -> dict[str, Tally]:
    """Try the targets; a worker that dies costs its target the rest of its examples, and a new one goes on.

    Args:
        folder: For all files.
        names: The targets; none: all.
        examples: Number of examples of each target; None: its own.
        seed: Of the draws; None: the same in every run.

    Returns:
        By target.
    """
    found: dict[str, Tally] = {}
    todo: list[str] | None = list(names) or None
    for attempt in range(100):
        place = folder / str(attempt)
        place.mkdir(parents=True)
        given = json.dumps({"folder": str(place), "names": todo, "examples": examples, "seed": seed})
        paths = [str(HERE), environment(place)["PYTHONPATH"]]
        process = subprocess.run(
            [sys.executable, str(HERE / "worker.py"), given],
            cwd=place,
            env={**environment(place), "PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"},
            input="y\n" * 10_000,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=MINUTES * 60,
        )
        report = place / "report.jsonl"
        lines = [json.loads(line) for line in report.read_text("utf-8").splitlines()] if report.exists() else []
        for line in lines:
            if "end" in line:
                found[line["end"]] = Tally(line["outcomes"], {k: tuple(v) for k, v in line["violations"].items()})
        if process.returncode == 0:
            return found
        begun = [line["begin"] for line in lines if "begin" in line]
        if not begun or begun[-1] in found or process.returncode == OWN_ERROR:
            raise RuntimeError(f"a worker failed outside its examples:\n{process.stderr}")
        example = (place / "current").read_text("utf-8")
        cause = f"crash, exit status {process.returncode}: {process.stderr[-2000:]}"
        found[begun[-1]] = Tally({"crash": 1}, {cause: (1, example)})
        todo = lines[0]["names"][len(begun) :]
        if not todo:
            return found
    raise RuntimeError("too many workers died")


def describe(found: dict[str, Tally]) -> str:
    """Describe the violations, one in each paragraph; return an empty text if there are none."""
    return "\n\n".join(
        f"{name}: {wrong} ({times} times), for example: {example[:SHOWN]}"
        for name, tally in found.items()
        for wrong, (times, example) in tally.violations.items()
    )


def table(found: dict[str, Tally]) -> str:
    """The results as a table."""
    return "\n".join([TITLE, "|---|---|---|---|---|---|", *(tally.line(name) for name, tally in found.items())])


def write_page(page: Path, found: dict[str, Tally], seed: int, seconds: float) -> None:
    """Replace the part of a page between its two marks with the results."""
    begin, end = "<!-- results of make fuzz -->\n", "<!-- end -->"
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    examples, wrong = sum(t.examples for t in found.values()), sum(len(t.violations) for t in found.values())
    minutes = max(1, round(seconds / 60))
    text = (
        f"{examples:,} examples in {minutes} minute{'s' * (minutes > 1)} on {time.strftime('%Y-%m-%d')}, seed {seed}; "
        f"kinds of violation: {wrong or 'none'}.\n\n{table(found)}\n\n"
        f"Python {platform.python_version()}, {versions}.\n"
    )
    before, _, rest = page.read_text("utf-8").partition(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", "utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fuzz the package.")
    parser.add_argument("targets", nargs="*", help="names of targets; default: all")
    parser.add_argument("--examples", type=int, help="of each target; default: as in `make test`")
    parser.add_argument("--seed", type=int, help="of the draws; default: a random one")
    parser.add_argument("--page", type=Path, help="page whose table of results is replaced")
    given: Any = parser.parse_args(argv)
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = run_workers(Path(folder), given.targets, given.examples, seed)
    print(table(found))
    print(wrong := describe(found))
    if given.page is not None:
        write_page(given.page, found, seed, time.monotonic() - start)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
