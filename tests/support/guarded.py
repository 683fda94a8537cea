"""A process in which forbidden acts raise: what the promises of SECURITY.md and the fuzzing are tested in.

Python reports acts such as opening a file, connecting a socket or starting a program as audit events
(https://docs.python.org/3/library/audit_events.html). `install` adds a hook that raises `Forbidden` at those events
that nothing in this project may cause without being asked, and replaces `torch.load`, which reads pickles. Each act is
also recorded, so that it is found where a library catches the exception.

Native code (the writer of safetensors, decoders of sound) opens files without an event; tests therefore also compare
the files around the sandbox before and after.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto"}
PROGRAMS = {
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.fork",
    "os.forkpty",
    "os.startfile",
    "pty.spawn",
}
PICKLES = {"pickle.find_class", "marshal.load", "marshal.loads"}
# Events whose first argument, or first two, are paths that are changed.
CHANGES = {
    "os.chmod": 1,
    "os.chown": 1,
    "os.link": 2,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.symlink": 2,
    "os.truncate": 1,
    "os.utime": 1,
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
HARMLESS_FILES = {"/dev/null", "/dev/tty"}
SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
IMPORTS = "importlib._bootstrap_external"  # reads the byte code of installed modules with `marshal`


class Forbidden(RuntimeError):
    """A forbidden act was about to be done."""


def code_roots() -> list[str]:
    """Return the folders whose Python files may be executed: the standard library, installed packages, the project."""
    found = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *site.getsitepackages()]
    found += [place for place in sys.path if place and Path(place).is_dir()]  # whence everything imported so far came
    return [os.path.realpath(place) for place in found]


class Guard:
    """Audit hook that records and refuses forbidden acts.

    Args:
        folders: Where files may be written.
        secrets: Files and folders that may not be read either.
        record: Called with a description of each forbidden act.
    """

    def __init__(self, folders: Sequence[str], secrets: Sequence[str], record: Callable[[str], None]) -> None:
        self.folders = [os.path.realpath(folder) for folder in folders]
        self.secrets = [os.path.realpath(secret) for secret in secrets]
        self.code = code_roots()
        self.record = record

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        act = self.judge(event, arguments)
        if act is not None:
            self.record(act)
            raise Forbidden(act)

    def judge(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        """Return a description of a forbidden act; None: the act is allowed."""
        if event == "open":
            return self.judge_open(*arguments)
        if event in NETWORK:
            return f"network: {event}{arguments[1:]!r}"
        if event in PROGRAMS:
            return f"program: {event}{arguments[:2]!r}"
        if event in PICKLES:
            importing = event == "marshal.loads" and sys._getframe(2).f_globals.get("__name__") == IMPORTS
            return None if importing else f"pickle: {event}{arguments[:2]!r:.100}"
        if event == "builtins.input":
            return f"prompt: {arguments!r}"
        if event in CHANGES:
            outside = [str(path) for path in arguments[: CHANGES[event]] if not self.may_write(path)]
            return f"file outside: {event} {', '.join(outside)}" if outside else None
        if event == "exec":
            file = getattr(arguments[0], "co_filename", "<string>")
            foreign = not file.startswith("<") and not within(file, self.code)
            return f"code: {file}" if foreign else None
        if event == "ctypes.dlopen":
            name = arguments[0]
            named = name is None or "/" not in os.fspath(name) or within(name, [*self.code, *SYSTEM_LIBRARIES])
            return None if named else f"library: {name}"
        return None

    def judge_open(self, path: Any, mode: Any, flags: Any) -> str | None:
        """Return a description of a forbidden access to a file; None: the access is allowed."""
        if isinstance(path, int):
            return None
        if (flags or 0) & WRITING and not self.may_write(path):
            return f"file outside: written {os.fsdecode(path)}"
        if self.secrets and within(path, self.secrets):
            return f"file outside: read {os.fsdecode(path)}"
        return None

    def may_write(self, path: Any) -> bool:
        """Return whether a path lies in a folder in which files may be written."""
        return isinstance(path, int) or os.fsdecode(path) in HARMLESS_FILES or within(path, self.folders)


def within(path: Any, folders: Sequence[str]) -> bool:
    """Return whether a path, links resolved, is one of the folders or lies in one of them."""
    real = os.path.realpath(os.fsdecode(path))
    return any(real == folder or real.startswith(folder.rstrip("/") + "/") for folder in folders)


def install(folders: Sequence[str], secrets: Sequence[str], record: Callable[[str], None]) -> None:
    """Refuse forbidden acts from now on; a hook cannot be removed, hence only ever in a process of its own.

    Everything that is needed is imported first: importing torch and Transformers starts programs and loads libraries.

    Args:
        folders: Where files may be written.
        secrets: Files and folders that may not be read either.
        record: Called with a description of each forbidden act.
    """
    import torch

    def no_pickle(*args: Any, **kwargs: Any) -> Any:
        record("pickle: torch.load")
        raise Forbidden("pickle: torch.load")

    torch.load = no_pickle
    torch.serialization.load = no_pickle
    sys.addaudithook(Guard(folders, secrets, record))


@dataclass(frozen=True)
class Guarded:
    """What became of a guarded process.

    Args:
        status: Exit status; 0: success.
        output: Standard output.
        errors: Standard error.
        acts: Descriptions of the forbidden acts that were attempted.
    """

    status: int
    output: str
    errors: str
    acts: tuple[str, ...]


PROLOGUE = """
import json, os, sys
_folders, _secrets, _report, _imports, _names = json.loads(sys.argv.pop(1))
for _name in _imports:
    __import__(_name)
import guarded
_file = os.open(_report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
guarded.install(_folders, _secrets, lambda act: os.write(_file, (json.dumps(act) + "\\n").encode()))
globals().update(_names)
"""
# Runs command lines one after the other, since a process of its own for each would take seconds for imports alone.
COMMANDS = """
import io, traceback
from contextlib import redirect_stderr, redirect_stdout
from hf_multisource.cli.app import main

_done = []
for _line, _answer in _lines:
    _begun, _status = os.path.getsize(_report), 0
    _out, _err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    sys.stdin = io.TextIOWrapper(io.BytesIO(_answer.encode()))
    with redirect_stdout(_out), redirect_stderr(_err):
        try:
            main(_line)
        except SystemExit as _end:
            _status = _end.code if isinstance(_end.code, int | None) else print(_end.code, file=_err) or 1
        except Exception:
            _status = traceback.print_exc() or 1
    with open(_report) as _acts:
        _acts.seek(_begun)
        _told = [json.loads(_act) for _act in _acts]
    _texts = [_stream.buffer.getvalue().decode() for _stream in (_out, _err)]
    _done.append([_status or 0, *_texts, _told])
with open(_answers, "w") as _answers:
    json.dump(_done, _answers)
"""
# Imported before the guard is in place: they start programs and write caches when they are first imported.
HEAVY = ("torch", "transformers", "hf_multisource", "PIL.Image", "safetensors.torch")
HEAVY_COMMANDS = ("hf_multisource.cli.app", "datasets", "evaluate", "accelerate")


def run_guarded(
    code: str,
    folder: Path,
    *,
    arguments: Sequence[str] = (),
    secrets: Sequence[Path] = (),
    imports: Sequence[str] = HEAVY,
    answer: str = "Yes\n" * 1000,
    timeout: float = 120,
    names: Mapping[str, Any] | None = None,
) -> Guarded:
    """Run code in a process in which forbidden acts raise.

    The process may go online as far as the environment is concerned: an attempt is a forbidden act.

    Args:
        code: What to run.
        folder: The only folder in which files may be written; the current folder, home and temporary folder too.
        arguments: The command line, `sys.argv[1:]`.
        secrets: Files and folders that may not be read.
        imports: Modules to import before the guard is in place.
        answer: Standard input.
        timeout: In seconds; a process that takes longer hangs.
        names: Values that the code finds under these names; JSON values or paths.
    """
    folder.mkdir(exist_ok=True)
    report = folder / "forbidden-acts"
    given = {name: str(value) if isinstance(value, Path) else value for name, value in (names or {}).items()}
    settings = json.dumps([[str(folder)], [*map(str, secrets)], str(report), [*imports], given])
    process = subprocess.run(
        [sys.executable, "-c", f"{PROLOGUE}\n{code}", settings, *arguments],
        cwd=folder,
        env=environment(folder),
        input=answer,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    acts = report.read_text("utf-8").splitlines() if report.exists() else []
    return Guarded(process.returncode, process.stdout, process.stderr, tuple(json.loads(act) for act in acts))


def run_guarded_commands(folder: Path, lines: Sequence[tuple[Sequence[str], str]], **settings: Any) -> list[Guarded]:
    """Run command lines of `hf-multisource` in one process in which forbidden acts raise.

    Args:
        folder: As of `run_guarded`.
        lines: Arguments and standard input of each.
        **settings: As of `run_guarded`.
    """
    answers = folder / "answers.json"
    given = {"_lines": [[[*arguments], answer] for arguments, answer in lines], "_answers": str(answers)}
    process = run_guarded(COMMANDS, folder, imports=(*HEAVY, *HEAVY_COMMANDS), names=given, **settings)
    if process.status:
        raise RuntimeError(f"the guarded process failed:\n{process.errors}")
    return [
        Guarded(status, output, errors, tuple(acts))
        for status, output, errors, acts in json.loads(answers.read_text("utf-8"))
    ]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a guarded process: online, no byte code written, everything temporary in a folder."""
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"), "0")
    places = {name: str(folder) for name in ("HOME", "HF_HOME", "TMPDIR", "XDG_CACHE_HOME")}
    paths = [str(Path(__file__).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        **offline,
        **places,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",  # the current folder holds what is examined: never a place for modules
    }


__all__ = ["Forbidden", "Guard", "Guarded", "environment", "install", "run_guarded", "run_guarded_commands"]
