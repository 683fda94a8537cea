"""Run the blocks of a tutorial, and compare what they print with what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable

from command_lines import split_commands
from hf_multisource.cli.app import main

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)  # language and content


def outline(text: str) -> list[str]:
    """The lines of an output without its numbers, reconstructed words and widths of columns."""
    lines = []
    for line in text.splitlines():
        line = re.sub(r"^(\d+\s+-\d+\.\d{4})\s.*", r"\1", line)  # number of a row, score, word
        line = re.sub(r"(?<=\d),(?=\d{3})", "", line)
        line = re.sub(r"-{2,}", "--", re.sub(r"-?\d+(\.\d+)?", "#", line))
        lines.append(" ".join(line.split()))
    return lines


def lacking(shown: str, printed: str) -> list[str]:
    """The lines of a shown output that were not printed, by their outlines."""
    return [line for line in outline(shown) if line not in outline(printed)]


def run_commands(block: str, change: Callable[[list[str]], list[str]]) -> str:
    """Run the commands of a shell block in this process, each changed; what they print."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for words in split_commands(block):
            if words[0] == "hf-multisource":
                main(change(words[1:]))
    return printed.getvalue()


def run_python(code: str) -> str:
    """Run a Python block and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "tutorial", "exec"), {})
    return printed.getvalue()
