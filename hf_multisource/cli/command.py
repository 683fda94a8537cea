"""Build commands: parse options, print errors in one line, and record the command line."""

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
ARGUMENTS = "hf_multisource.arguments"  # key of the original command line in `typer.Context.meta`
CONTEXT = {"help_option_names": ["-h", "--help"]}
# Context settings of commands whose further options depend on a recipe or a model. These options are passed to the
# command in `typer.Context.args`.
OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}
KINDS = {"integer": "a whole number", "number": "a number"}  # type in Typer's messages -> description of its values
# Errors that the user can fix, which are printed in one line. FloatingPointError means that training has diverged.
EXPECTED = (ValueError, OSError, ImportError, StrictDataclassError, FloatingPointError)


def expand(arguments: Sequence[str], several: set[str], bare: Mapping[str, str]) -> list[str]:
    """Rewrite a command line into the form that Typer parses.

    Option names may be written with hyphens (`--attention-plot`) or underscores (`--attention_plot`). An option that
    takes several values may be given once with all of them (`--sources en de`). Some options may stand without a value.

    Args:
        arguments: The command line, without the program and the command.
        several: Names of the options that take several values.
        bare: Option name -> value of the option if it is given without one.

    Returns:
        The rewritten command line.
    """
    rewritten: list[str] = []
    name, values = "", 0  # the current option, and the number of its values so far
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
    """Return the error message for an invalid value of a parameter, in one line.

    Args:
        param: The parameter that Typer refused.
        arguments: The command line, as `expand` returns it.
        reason: Typer's message.

    Returns:
        The message, such as "--num_beams must be a whole number; got 'two'".
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
        bare: See `expand`.
        epilog: Function that returns the text at the end of the help, whose lines are printed without wrapping.

    Returns:
        The class.
    """

    class Command(TyperCommand):
        """Command that applies `expand` to its command line."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            ctx.meta[ARGUMENTS] = list(args)
            several = {str(param.name) for param in self.params if getattr(param, "multiple", False)}
            arguments = expand(args, several, bare)
            try:
                return super().parse_args(ctx, list(arguments))  # `parse_args` empties its list
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
    """Raised when this process receives SIGTERM; like KeyboardInterrupt, it is not an `Exception`."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, so that files and locks are closed as after Ctrl-C.

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
    """Print errors in the user's input as one line on standard error, and exit with status 1.

    Ctrl-C and SIGTERM also print one line, and exit with the statuses 130 and 143, as in shells. If a training has
    several processes, only the main process (whose environment variable RANK is 0) prints the line. Secrets in the line
    are masked.

    Args:
        name: Name of the command.

    Yields:
        Nothing.

    Raises:
        SystemExit: Instead of the error.
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
        name: Name of the command.
        function: Function of the command. The parameters are the options, and the docstring is the help.
        title: Name of the command in error messages. Defaults to `name`.
        bare: See `expand`.
        context: Settings of Typer's context, such as `OPEN`.
        epilog: See `command_class`.
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
        The application, which prints help texts without formatting them.
    """
    return typer.Typer(
        rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, context_settings=CONTEXT
    )


def run(app: typer.Typer, program: str, argv: Sequence[str] | None) -> None:
    """Run an application.

    Args:
        app: The application.
        program: Name of the program in usage messages.
        argv: The command line without the program. Defaults to the command line of this process.

    Raises:
        SystemExit: If the command failed. After a success, this function returns.
    """
    try:
        app(args=None if argv is None else list(argv), prog_name=program)
    except SystemExit as end:
        if end.code:
            raise


class Main(Protocol):
    """Type of a command's function `main`, which takes the command line without the program."""

    def __call__(self, argv: Sequence[str] | None = None) -> None:
        """Run the command."""


def make_main(name: str, function: Callable[..., None], **settings: Any) -> Main:
    """Return the function `main` of a command for `python -m hf_multisource.cli.<name>` and the scripts in training/.

    Args:
        name: Name of the command.
        function: Function of the command.
        **settings: See `add_command`.

    Returns:
        A function that takes the command line without the program, by default that of this process.
    """

    def main(argv: Sequence[str] | None = None) -> None:
        app = new_app()
        add_command(app, name, function, **settings)
        run(app, f"{PROGRAM} {name}", argv)

    main.__doc__ = f"Run `{PROGRAM} {name}`.\n\nArgs:\n    argv: The command line without the program."
    return main


def command_line(ctx: typer.Context, name: str) -> str:
    """Return the command line to record in results, which is the same for all ways to start the command.

    Args:
        ctx: The context of the running command.
        name: Name of the command.

    Returns:
        The command line with masked secrets, such as "hf-multisource train recipe.yaml --seed 2".
    """
    return shlex.join([PROGRAM, name, *mask_words(ctx.meta[ARGUMENTS])])
