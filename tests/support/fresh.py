"""Python code in a process of its own: other environment, nothing imported yet, and the package out of reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

NO_PACKAGE = """
import importlib.abc, sys

class NoPackage(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_multisource":
            raise ModuleNotFoundError("the package is out of reach", name=name)

sys.meta_path.insert(0, NoPackage())
"""
ANSWER = "the answer is "


class Failed(Exception):
    """The process ended with an error; the message is its standard error."""


def run_fresh(code: str, home: Path, *, package: bool = False, env: dict[str, str] | None = None, **names: Any) -> Any:
    """Run code and return what it leaves in `answer`, by way of JSON.

    Args:
        code: What to run.
        home: Folder to run in; cache of the Hub's client and of the code that it loads, unless `env` names another.
        package: Whether the code may import the package.
        env: Added to the environment.
        names: Values that the code finds under these names; JSON values or paths.
    """
    given = {name: str(value) if isinstance(value, Path) else value for name, value in names.items()}
    prologue = "" if package else NO_PACKAGE
    epilogue = f"\nprint({ANSWER!r} + json.dumps(globals().get('answer')))"
    home.mkdir(exist_ok=True)
    process = subprocess.run(
        [sys.executable, "-c", f"{prologue}\nimport json\nglobals().update({given!r})\n{code}{epilogue}"],
        cwd=home,  # `-c` looks for modules here first: not in the source tree, where the wheel is under test
        env={**os.environ, "HF_HOME": str(home), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise Failed(process.stderr)
    return json.loads(process.stdout.rpartition(ANSWER)[2])
