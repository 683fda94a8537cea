"""The commands of `hf-multisource`, and whether command lines that pages and comments show can be parsed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from hf_multisource.cli.app import make_app
from hf_multisource.cli.translate import parse_files
from hf_multisource.recipes.reading import parse_overrides
from hf_multisource.recipes.recipe import load_recipe

SOURCES = ("en", "de", "fr", "kk", "ru", "image", "speech")  # that shown command lines may name


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of `hf-multisource` with the words that call it."""
    command = typer.main.get_command(make_app()) if command is None else command
    if not hasattr(command, "commands"):
        yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


@cache
def every_command() -> list[tuple[tuple[str, ...], Any]]:
    """What `commands` gives, made once: it takes longer than reading a command line."""
    return [*commands()]


def split_commands(block: str) -> Iterator[list[str]]:
    """The commands of a shell block as words; without comments and redirections."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        ends = [words.index(sign) for sign in ("<", ">", "|") if sign in words]
        if words:
            yield words[: min(ends, default=None)]


def parse(words: list[str]) -> None:
    """Parse a command line of `hf-multisource` as the command itself does, and nothing more."""
    found = [(path, command) for path, command in every_command() if tuple(words[: len(path)]) == path]
    assert found, f"no command {' '.join(words)}"
    ((path, command),) = found
    context = command.make_context(path[-1], words[len(path) :])
    if path == ("train",):
        load_recipe(context.params["recipe"], parse_overrides(context.args))
    elif path == ("translate",):
        parse_files(context.args, SOURCES)
    else:
        assert context.args == []
