"""Forks of a server are like processes that have just been started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fresh import Failed, run_fresh
from warm import request, start_server, write_client

SHOW = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("SHOWN"), __name__, sys.stdin.read()]))
print("aside", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def server() -> str:
    return start_server("json")


def test_a_program_has_its_own_arguments_folder_environment_and_files(server: str, tmp_path: Path) -> None:
    write_client(tmp_path / "show", server, SHOW)
    command = [str(tmp_path / "show"), "a", "b c"]
    environment = {"SHOWN": "yes"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, input="given", capture_output=True, text=True)
    assert done.stdout == f'[["a", "b c"], "{tmp_path}", "yes", "__main__", "given"]\n'
    assert (done.stderr, done.returncode) == ("aside\n", 0)


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('a reason')", 1, "a reason\n"),
        ("raise SystemExit", 0, ""),
        ("import atexit; atexit.register(print, 'the end')", 0, "the end\n"),
        ("import os; os.kill(os.getpid(), 9)", 70, ""),
    ],
)
def test_it_ends_with_its_status(code: str, status: int, said: str, server: str, tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as file:
        files = [file.fileno()] * 3
        assert request(server, code, [], str(tmp_path), os.environ, files) == status
        assert (tmp_path / "said").read_text() == said


def test_forks_know_nothing_of_each_other(server: str, tmp_path: Path) -> None:
    with open(os.devnull, "w") as file:
        files = [file.fileno()] * 3
        code = "import json; assert not hasattr(json, 'changed'); json.changed = True"
        for _ in range(2):
            assert request(server, code, [], str(tmp_path), os.environ, files) == 0


@pytest.mark.parametrize("warm", [True, False])
def test_code_without_the_package_does_not_find_it_and_says_what_is_wrong(warm: bool, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="ModuleNotFoundError: the package is out of reach"):
        run_fresh("import hf_multisource", tmp_path, warm=warm)
    (tmp_path / "mine.py").write_text("number = 5")
    code = "import mine, sys; answer = [mine.number + given, [name for name in sys.modules if name in apart]]"
    apart = ["hf_multisource", "huggingface_hub", "transformers"]  # these read the environment
    assert run_fresh(code, tmp_path, warm=warm, given=1, apart=apart) == [6, []]
