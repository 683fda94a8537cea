"""A process that calls fuzz targets with broken input, and reports what became of it, line by line.

Run by `campaign`, since an example may crash the interpreter, hang, or take all memory: `python worker.py JSON`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

CPU_SECONDS = 10.0  # of one example; the slowest good one takes about 0.2
WALL_SECONDS = 120.0  # after which an example that does not return to Python ends the process
GROWTH = 512 * 2**20  # bytes that one example may add to the process's largest size in memory
ADDRESSES = 4 * 2**30  # bytes of address space that all examples together may ask for
# What not even broken input of Transformers' own may end in; AssertionError: accepted input that should be refused.
NEVER = (MemoryError, AssertionError, SystemExit, KeyboardInterrupt)
OWN_ERROR = 70  # exit status of a worker that failed by itself


class Hang(BaseException):
    """An example took too long."""


def _stop(signal_number: int, frame: Any) -> None:
    raise Hang


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Report:
    """Lines of JSON for `campaign`, and the example that is being tried, which outlives a crash."""

    def __init__(self, folder: Path) -> None:
        self._report = os.open(folder / "report.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._current = os.open(folder / "current", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def write(self, **line: Any) -> None:
        os.write(self._report, (json.dumps(line) + "\n").encode())

    def trying(self, example: str) -> None:
        os.ftruncate(self._current, 0)
        os.pwrite(self._current, example.encode("utf-8", "replace"), 0)


class Trial:
    """Calls one target with examples and counts what became of them.

    Args:
        target: The target.
        report: Is told of the examples.
        acts: Forbidden acts so far; the guard adds to them.
    """

    def __init__(self, target: Any, report: Report, acts: list[str]) -> None:
        self.target, self.report, self.acts = target, report, acts
        self.outcomes: Counter[str] = Counter()
        self.violations: dict[str, tuple[int, str]] = {}  # by message: number of cases, and the shortest example

    def __call__(self, example: Any) -> None:
        shown = repr(example)
        self.report.trying(shown[:4000])
        self.acts.clear()
        before = _peak()
        error: BaseException | None = None
        faulthandler.dump_traceback_later(WALL_SECONDS, exit=True)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            self.target.call(example)
        except (SystemExit, KeyboardInterrupt, Hang, Exception) as caught:
            error = caught
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()
        self.outcomes["accepted" if error is None else type(error).__name__] += 1
        for wrong in self.judge(error, _peak() - before):
            times, least = self.violations.get(wrong, (0, ""))
            message = "" if error is None else f"{' '.join(str(error).split())[:300]}\n    "
            found = f"{message}{shown[:4000]}"
            self.violations[wrong] = (times + 1, min(least or found, found, key=len))

    def judge(self, error: BaseException | None, growth: int) -> list[str]:
        """Return everything that is wrong with one call."""
        from oracle import violation

        wrong = [f"forbidden act: {act}" for act in self.acts]
        if growth > GROWTH:
            wrong.append("memory: one example took more than 512 MiB")
        if isinstance(error, Hang):
            wrong.append(f"hang: more than {CPU_SECONDS:.0f} s")
        elif error is not None and (isinstance(error, NEVER) or not (self.acts or self.target.foreign)):
            wrong.append(violation(error) or "")
        return [text for text in wrong if text]


def draw(trial: Trial, examples: int, seed: int | None) -> None:
    """Draw examples of a target and try each; a violation ends nothing, so that all of them are counted."""
    import hypothesis

    def attempt(example: Any) -> None:
        trial(example)

    test = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=seed is None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )(hypothesis.given(trial.target.examples)(attempt))
    (test if seed is None else hypothesis.seed(seed)(test))()


def main(settings: dict[str, Any]) -> None:
    """Try the targets one after the other.

    Args:
        settings: `folder`: for all files; `names`: the targets to try; `examples`: their number, None: each target's
            own; `seed`: None: the same examples in every run.
    """
    warnings.simplefilter("ignore")
    import torch
    from transformers.utils import logging

    import guarded
    from targets import all_targets

    logging.set_verbosity(50)
    torch.set_num_threads(1)
    folder = Path(settings["folder"])
    targets = {target.name: target for target in all_targets(folder)}
    report, acts = Report(folder), list[str]()
    signal.signal(signal.SIGPROF, _stop)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ADDRESSES, resource.RLIM_INFINITY))
    guarded.install([str(folder)], [], acts.append)
    names = settings["names"] or list(targets)
    report.write(names=names)
    for name in names:
        target = targets[name]
        report.write(begin=name)
        for example in target.good:  # where good input is refused, nothing that is found means anything
            target.call(example)
        trial = Trial(target, report, acts)
        draw(trial, settings["examples"] or target.short, settings["seed"])
        report.write(end=name, outcomes=trial.outcomes, violations=trial.violations)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except Exception:  # an error of this file or of a strategy, not one that an example caused
        traceback.print_exc()
        sys.exit(OWN_ERROR)
