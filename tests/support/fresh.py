"""Run Python code in a separate process, with other environment variables or without this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from warm import request, start_server

NO_PACKAGE = """
import importlib.abc, sys

class NoPackage(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_multisource":
            raise ModuleNotFoundError("the package is out of reach", name=name)

sys.meta_path.insert(0, NoPackage())
"""
ANSWER = "the answer is "
WARM = (  # what Transformers imports; it and the Hub's client read the environment, so each process imports them
    "torch",
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.export",
    "jinja2",
    "pandas",
    "regex",
    "safetensors.torch",
    "tokenizers",
    "yaml",
)


class Failed(Exception):
    """The process ended with an error; the message is its standard error."""


def run_fresh(
    code: str,
    home: Path,
    *,
    package: bool = False,
    warm: bool = True,
    env: dict[str, str] | None = None,
    **names: Any,
) -> Any:
    """Run code and return what it leaves in `answer`, by way of JSON.

    Args:
        code: What to run.
        home: Folder to run in; cache of the Hub's client and of the code that it loads, unless `env` names another.
        package: Whether the code may import the package.
        warm: Whether the modules of `WARM` are imported already, in the process from which this one is forked.
        env: Added to the environment.
        names: Values that the code finds under these names; JSON values or paths.
    """
    given = {name: str(value) if isinstance(value, Path) else value for name, value in names.items()}
    prologue = "" if package else NO_PACKAGE
    epilogue = f"\nprint({ANSWER!r} + json.dumps(globals().get('answer')))"
    program = f"{prologue}\nimport json\nglobals().update({given!r})\n{code}{epilogue}"
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "HF_HOME": str(home), **(env or {})}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        # Both look for modules in the folder `home` first: not in the source tree, where the wheel is under test.
        if warm:
            with open(os.devnull) as nothing:
                files = [file.fileno() for file in (nothing, output, errors)]
                status = request(start_server(*WARM), program, [], str(home), environment, files)
        else:
            status = subprocess.run(
                [sys.executable, "-c", program],
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            ).returncode
        for file in (output, errors):
            file.seek(0)
        if status:
            raise Failed(errors.read())
        return json.loads(output.read().rpartition(ANSWER)[2])
