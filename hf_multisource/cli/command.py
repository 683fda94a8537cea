"""Build commands: how options are written, how errors are shown, and how a command records its own command line."""

from __future__ import annotations

import functools
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import typer
from huggingface_hub.errors import StrictDataclassError
from typer.core import TyperCommand

from hf_multisource.data.privacy import mask_secrets, mask_words

PROGRAM = "hf-multisource"
ARGUMENTS = "hf_multisource.arguments"  # key of the command line, as it was given, in `typer.Context.meta`
CONTEXT = {"help_option_names": ["-h", "--help"]}
# For commands whose further options depend on a recipe or a model: these reach the command in `typer.Context.args`.
OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}
# Errors that a user can do something about: shown in one line. FloatingPointError: training has diverged.
KINDS = {"integer": "a whole number", "number": "a number"}  # word in Typer's messages -> the values that it means
EXPECTED = (ValueError, OSError, ImportError, StrictDataclassError, FloatingPointError)


def expand(arguments: Sequence[str], several: set[str], bare: Mapping[str, str]) -> list[str]:
    """Rewrite a command line into the form that Typer parses.

    Option names may be written with hyphens (`--attention-plot`) or underscores (`--attention_plot`). An option that
    takes several values may be given once with all of them (`--sources en de`). Some options may stand without a value.

    Args:
        arguments: The command line, without the program and the command.
        several: Names of the options that take several values.
        bare: Option name -> the value of that option if it stands without one.

    Returns:
        The rewritten command line.
    """
    rewritten: list[str] = []
    name, values = "", 0  # the option that the next values belong to, and how many it has had
    for argument in [*arguments, "--"]:
        if argument.startswith("--"):
            if name in bare and values == 0:
                rewritten.append(bare[name])
            option, equals, value = argument[2:].partition("=")
            name, values = option.replace("-", "_"), bool(equals)
            rewritten.append(f"--{name}{equals}{value}")
        else:
            if name in several and values > 0:
                rewritten.append(f"--{name}")
            values += 1
            rewritten.append(argument)
    return rewritten[:-1]


def describe_usage(param: Any, arguments: Sequence[str], reason: str) -> str:
    """Return what is wrong with the value of a parameter, in one line.

    Args:
        param: The parameter that Typer refused.
        arguments: The command line, as `expand` returns it.
        reason: Typer's message.

    Returns:
        Such as "--num_beams must be a whole number; got 'two'".
    """
    option = next((name for name in param.opts if name.startswith("--")), str(param.name).upper())
    values = [arguments[i + 1 : i + 2] for i, argument in enumerate(arguments) if argument == option]
    values += [[argument.partition("=")[2]] for argument in arguments if argument.startswith(f"{option}=")]
    if not any(values):
        return f"{option} is missing" if not values else f"{option} needs a value"
    allowed = next((words for name, words in KINDS.items() if name in reason), reason)
    return f"{option} must be {allowed}; got {values[-1][0]!r}"


def command_class(bare: Mapping[str, str], epilog: Callable[[], str] | None = None) -> type[TyperCommand]:
    """Return a Typer command class that applies `expand`.

    Args:
        bare: As `expand` has it.
        epilog: Returns what the help ends with, in lines that are shown as they are; None: nothing.

    Returns:
        The class.
    """

    class Command(TyperCommand):
        """A command whose options may be written as `expand` says."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            ctx.meta[ARGUMENTS] = list(args)
            several = {str(param.name) for param in self.params if getattr(param, "multiple", False)}
            arguments = expand(args, several, bare)
            try:
                return super().parse_args(ctx, list(arguments))  # which empties its list
            except Exception as error:
                if (param := getattr(error, "param", None)) is None or getattr(error, "exit_code", 0) != 2:
                    raise
                usage = mask_secrets(describe_usage(param, arguments, str(error)))
                print(f"{ctx.command_path}: {usage}", file=sys.stderr)
                raise SystemExit(2) from error

        def format_epilog(self, ctx: Any, formatter: Any) -> None:
            if epilog is not None:
                formatter.write(f"\n{epilog()}")

    return Command


class Terminated(KeyboardInterrupt):
    """Raised when this process receives SIGTERM; like Ctrl-C, it passes handlers of ordinary errors."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` at SIGTERM, so that files and locks are closed, as at Ctrl-C.

    Yields:
        Nothing.
    """

    def stop(signal_number: int, frame: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Turn errors of the user's input into one line on standard error and exit status 1.

    Ctrl-C and SIGTERM end in one line, too, with the exit statuses 130 and 143 that shells give to them. Of several
    processes of one training, only the main process (the one whose environment variable RANK is 0) prints the line.
    Secrets in the line are masked.

    Args:
        name: The command.

    Yields:
        Nothing.

    Raises:
        SystemExit: In place of such an error.
    """
    silent = os.environ.get("RANK", "0") != "0"
    try:
        with terminable():
            yield
    except EXPECTED as error:
        if silent:
            raise SystemExit(1) from error
        raise SystemExit(f"{PROGRAM} {name}: {mask_secrets(' '.join(str(error).split()))}") from error
    except KeyboardInterrupt as error:
        what, status = (
            ("terminated", signal.SIGTERM) if isinstance(error, Terminated) else ("interrupted", signal.SIGINT)
        )
        if not silent:
            print(f"{PROGRAM} {name}: {mask_secrets('; '.join([what, *map(str, error.args)]))}", file=sys.stderr)
        raise SystemExit(128 + status) from error


def add_command(
    app: typer.Typer,
    name: str,
    function: Callable[..., None],
    *,
    title: str | None = None,
    bare: Mapping[str, str] | None = None,
    context: Mapping[str, Any] | None = None,
    epilog: Callable[[], str] | None = None,
) -> None:
    """Add a command to an application.

    Args:
        app: The application.
        name: The command's name.
        function: The command: its parameters are the options, its docstring the help.
        title: How errors call the command; None: its name.
        bare: As `expand` has it.
        context: Settings of Typer's context, such as `OPEN`.
        epilog: As `command_class` has it.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with one_line_errors(title or name):
            function(*args, **kwargs)

    settings = {**CONTEXT, **(context or {})}
    app.command(name, cls=command_class(bare or {}, epilog), context_settings=settings)(wrapped)


def new_app() -> typer.Typer:
    """Return an application without commands.

    Returns:
        The application; help texts are shown as they are written.
    """
    return typer.Typer(
        rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, context_settings=CONTEXT
    )


def run(app: typer.Typer, program: str, argv: Sequence[str] | None) -> None:
    """Run an application.

    Args:
        app: The application.
        program: Its name in usage messages.
        argv: The command line without the program; None: this process's.

    Raises:
        SystemExit: If the command failed; after a success this function returns.
    """
    try:
        app(args=None if argv is None else list(argv), prog_name=program)
    except SystemExit as end:
        if end.code:
            raise


class Main(Protocol):
    """The `main` of a command: a function of the command line without the program; None: this process's."""

    def __call__(self, argv: Sequence[str] | None = None) -> None:
        """Run the command."""


def make_main(name: str, function: Callable[..., None], **settings: Any) -> Main:
    """Return a `main` for one command, as `python -m hf_multisource.cli.<name>` and the scripts in training/ run it.

    Args:
        name: The command.
        function: Its function.
        **settings: As `add_command` has them.

    Returns:
        A function of the command line (None: this process's).
    """

    def main(argv: Sequence[str] | None = None) -> None:
        app = new_app()
        add_command(app, name, function, **settings)
        run(app, f"{PROGRAM} {name}", argv)

    main.__doc__ = f"Run `{PROGRAM} {name}`.\n\nArgs:\n    argv: The command line without the program."
    return main


def command_line(ctx: typer.Context, name: str) -> str:
    """Return the command line as results record it: the same for all ways to start the command.

    Args:
        ctx: The context of the running command.
        name: The command.

    Returns:
        Such as "hf-multisource train recipe.yaml --seed 2"; secrets are masked.
    """
    return shlex.join([PROGRAM, name, *mask_words(ctx.meta[ARGUMENTS])])
