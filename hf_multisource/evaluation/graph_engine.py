"""Run the stages of a graph with DVC, which detects finished stages by the content of their files.

The folder `work` of the graph is a DVC repository without version control. Its `dvc.yaml` has a stage for each step.
Its `dvc.lock` holds, for each finished stage, the command lines and the digests of all inputs and outputs.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from hf_multisource.data.files import check_folder, write_text
from hf_multisource.evaluation.graph_stages import Stage
from hf_multisource.messages import install_hint
from hf_multisource.recipes.reading import parse_yaml

PIPELINE, LOCK, BUSY = "dvc.yaml", "dvc.lock", ".graph.lock"
# Content of `.dvcignore`: checkpoints, and the files that `score` and `calibrate` write into a run folder when they are
# called outside the graph.
IGNORED = "# Files that DVC leaves out of its digests\ncheckpoint-*\n*/scores/\n*/scores-ensemble/\n*/confidence.json\n"
DONE, CHANGED, BEGUN, OPEN = "done", "changed", "begun", "to do"


class Engine:
    """The DVC repository of a graph.

    Args:
        work: Folder of the repository.
        stages: Stages by name.
    """

    def __init__(self, work: Path, stages: Mapping[str, Stage]) -> None:
        self.work = work
        self.stages = stages

    def relative(self, path: str) -> str:
        """Return a path relative to the folder of the repository, as DVC needs it.

        Args:
            path: A path relative to the current folder.

        Returns:
            The relative path, with forward slashes.
        """
        return Path(os.path.relpath(path, self.work)).as_posix()

    def command_lines(self, stage: Stage) -> list[str]:
        """Return the command lines of a stage, which DVC runs in its repository.

        Args:
            stage: The stage.

        Returns:
            The command lines; each begins by changing to the current folder.
        """
        return [f"cd {shlex.quote(self.relative('.'))} && {shlex.join(words)}" for words in stage.commands]

    def pipeline(self) -> dict[str, Any]:
        """Return the content of `dvc.yaml`.

        Returns:
            The stages.
        """
        return {
            "stages": {
                name: {
                    "cmd": self.command_lines(stage),
                    "deps": [self.relative(path) for path in stage.reads],
                    "outs": [{self.relative(stage.folder): {"cache": False, "persist": stage.keeps}}],
                }
                for name, stage in self.stages.items()
            }
        }

    def finished(self) -> dict[str, Any]:
        """Read the finished stages from `dvc.lock`.

        Returns:
            Command lines and digests of the finished stages, by name.
        """
        path = self.work / LOCK
        content = parse_yaml(path.read_text(encoding="utf-8")) if path.exists() else None
        recorded: dict[str, Any] = (content or {}).get("stages", {})
        return recorded

    def states(self) -> dict[str, str]:
        """Return the state of every stage, judged by its command lines and its folder without reading other files.

        Returns:
            "done", "changed", "begun" or "to do", by name of the stage.
        """
        finished, states = self.finished(), {}
        for name, stage in self.stages.items():
            there = Path(stage.folder).exists()
            if name in finished and there:
                states[name] = DONE if _lines(finished[name]) == self.command_lines(stage) else CHANGED
            else:
                states[name] = BEGUN if there else OPEN
        return states

    def run(self, until: str | None = None) -> None:
        """Run the unfinished stages in the order of their dependencies.

        Args:
            until: Name of the last stage; None: all stages are run.

        Raises:
            ImportError: If DVC is not installed.
            BlockingIOError: If another process runs the graph.
            FileExistsError: If the output folder of a stage exists but was not written by that stage.
            ValueError: If a finished step has changed or a step failed. The message names the change; nothing is
                overwritten.
        """
        check_folder(self.work)
        self.check_foreign()
        self.check_commands()
        self.work.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.work / BUSY)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise BlockingIOError(f"another process runs the graph in {self.work}") from error
        with lock:
            if not (self.work / ".dvc" / "config").exists():
                self.dvc("init", "--no-scm", "--quiet", "--force")
                write_text(self.work / ".dvcignore", IGNORED)
            write_text(self.work / PIPELINE, yaml.safe_dump(self.pipeline(), sort_keys=False, allow_unicode=True))
            self.check_files()
            if self.dvc("repro", *([until] if until else []), output=None).returncode:
                raise ValueError("a step failed: its message stands above; the same command continues the graph")

    def dvc(self, *words: str, output: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
        """Call DVC.

        Args:
            *words: Its arguments.
            output: Destination of standard output and error; None: those of this process.

        Returns:
            The finished process.

        Raises:
            ImportError: If DVC is not installed.
            ValueError: If a DVC command other than `repro` fails.
        """
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        program = shutil.which("dvc", path=path)
        if program is None:
            raise ImportError(f"graphs are run by DVC, which is not installed: {install_hint('graph')}")
        own = {
            "DVC_NO_ANALYTICS": "1",
            "DVC_SITE_CACHE_DIR": str((self.work / ".dvc" / "site").absolute()),
            "PATH": path,  # search path for the commands of the stages
        }
        done = run_program([program, *words], cwd=self.work, env={**os.environ, **own}, stdout=output, stderr=output)
        if done.returncode and words[0] != "repro":
            raise ValueError(f"dvc {words[0]} failed: {' '.join(done.stderr.split())}")
        return done

    def check_foreign(self) -> None:
        """Raise an error if the folder of an unfinished stage holds files that the stage did not write.

        Raises:
            FileExistsError: If there is such a folder; the message names it.
        """
        finished = self.finished()
        for name, stage in self.stages.items():
            if name not in finished and stage.has_foreign_files():
                raise FileExistsError(f"steps.{name}: {stage.folder} exists, but was not written by this step; move it")

    def check_commands(self) -> None:
        """Raise an error if the settings of a finished step have changed.

        Raises:
            ValueError: If a step has changed; the message names the old and the new setting.
        """
        finished = self.finished()
        for name, stage in self.stages.items():
            if name in finished and Path(stage.folder).exists():
                before, now = _lines(finished[name]), self.command_lines(stage)
                if before != now:
                    raise ValueError(
                        f"steps.{name} has changed since it was finished: {_difference(before, now)}. "
                        f"{self.remedy(name)}"
                    )

    def check_files(self) -> None:
        """Raise an error if the input or output files of a finished step have changed.

        Raises:
            ValueError: If a file that a finished step has read or written has changed; the message names the files.
        """
        finished = self.finished()
        status = json.loads(self.dvc("status", "--json").stdout or "{}")
        for name, entries in status.items():
            if name not in finished or not Path(self.stages[name].folder).exists():
                continue
            for entry in entries if name in self.stages else ():
                if not isinstance(entry, dict):
                    continue
                for kind, what in (("changed deps", "its input"), ("changed outs", "its output")):
                    if changed := entry.get(kind):
                        listed = ", ".join(f"{path} ({state})" for path, state in changed.items())
                        raise ValueError(
                            f"steps.{name}: {what} has changed since it was finished: {listed}. {self.remedy(name)}"
                        )

    def remedy(self, name: str) -> str:
        """Return advice, for error messages, on a finished step that has changed.

        Args:
            name: Name of the step.

        Returns:
            A sentence.
        """
        return (
            "Nothing was overwritten: go back, name another folder in `work`, or delete "
            f"{self.stages[name].folder} and the folders of the steps that read it"
        )


def run_program(
    words: Sequence[str], grace: float = 2.0, patience: float = 20.0, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; if this process is interrupted, end the program and all its child processes.

    Ctrl-C in a terminal reaches all of these processes, but SIGTERM reaches only this process. Without this function, a
    training would then continue to run.

    Args:
        words: The program and its arguments.
        grace: Seconds to wait until the processes end by themselves, as after Ctrl-C. Remaining processes receive
            SIGTERM.
        patience: Seconds to wait after SIGTERM. Remaining processes are killed.
        **settings: Further arguments of `subprocess.Popen`.

    Returns:
        The finished program with its output as text.

    Raises:
        KeyboardInterrupt: If this process is interrupted.
    """
    with subprocess.Popen(words, text=True, **settings) as program:
        try:
            output, errors = program.communicate()
        except KeyboardInterrupt:
            end_programs(program.pid, grace, patience)
            raise
    return subprocess.CompletedProcess(words, program.returncode, output, errors)


def end_programs(number: int, grace: float, patience: float) -> None:
    """End a program and all its child processes.

    Args:
        number: Process ID of the program.
        grace: Seconds to wait until the processes end by themselves. Remaining processes receive SIGTERM.
        patience: Seconds to wait after SIGTERM. Remaining processes are killed.
    """
    import psutil

    def running(processes: list[Any], seconds: float) -> list[Any]:
        """Wait at most `seconds` for processes to end, and return the running ones; zombies count as ended."""
        end = time.monotonic() + seconds
        while True:
            left = []
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                        left.append(process)
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)

    try:
        own = psutil.Process(number)
        processes = [*own.children(recursive=True), own]
    except psutil.NoSuchProcess:
        return
    for stop, seconds in (("terminate", grace), ("kill", patience)):
        processes = running(processes, seconds)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                getattr(process, stop)()
    running(processes, patience)  # wait until the killed processes are gone


def _lines(recorded: Mapping[str, Any]) -> list[str]:
    """Return the command lines that `dvc.lock` records for a stage."""
    lines = recorded.get("cmd", [])
    return [lines] if isinstance(lines, str) else list(lines)


def _difference(before: list[str], now: list[str]) -> str:
    """Return in words which options differ between two lists of command lines."""
    old, new = (_by_option(lines) for lines in (before, now))
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return "; ".join(f"{key} was {old.get(key, 'not given')}, is {new.get(key, 'not given')}" for key in changed)


def _by_option(lines: list[str]) -> dict[str, str]:
    """Return the values of every option of command lines; words before the first option are under "the command"."""
    found: dict[str, list[str]] = {}
    for line in lines:
        key = "the command"
        for word in shlex.split(line):
            if word.startswith("--"):
                key, _, word = word.partition("=")
            found.setdefault(key, []).extend([word] if word else [])
    return {key: " ".join(words) for key, words in found.items()}
