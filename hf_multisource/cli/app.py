"""The command `hf-multisource` with all its subcommands."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer

from hf_multisource.cli import (
    attach,
    average,
    calibrate,
    card,
    catalogues,
    degrade,
    graph,
    localize,
    plot,
    precompute,
    prepare,
    push,
    recipes,
    reproduce,
    results,
    score,
    serve,
    tokenizer,
    train,
)
from hf_multisource.cli import filter as filter_
from hf_multisource.cli import translate as translate_
from hf_multisource.cli.command import PROGRAM, add_command, new_app, run

# Command -> its function and the settings of `add_command`, in the order of `--help`.
COMMANDS: dict[str, tuple[Any, dict[str, Any]]] = {
    recipes.NAME: (recipes.recipes, recipes.SETTINGS),
    tokenizer.NAME: (tokenizer.tokenizer, {}),
    train.NAME: (train.train, train.SETTINGS),
    score.NAME: (score.score, score.SETTINGS),
    translate_.NAME: (translate_.translate, translate_.SETTINGS),
    average.NAME: (average.average, {}),
    calibrate.NAME: (calibrate.calibrate, calibrate.SETTINGS),
    plot.NAME: (plot.plot, {}),
    results.NAME: (None, {}),
    reproduce.NAME: (reproduce.reproduce, {}),
    card.NAME: (card.card, {}),
    push.NAME: (push.push, {}),
    precompute.NAME: (precompute.precompute, {}),
    attach.NAME: (attach.attach, {}),
    graph.NAME: (graph.graph, {}),
    degrade.NAME: (degrade.degrade, {}),
    prepare.NAME: (prepare.prepare, {}),
    catalogues.NAME: (catalogues.catalogues, {}),
    localize.NAME: (localize.localize, localize.SETTINGS),
    filter_.NAME: (filter_.filter_, {}),
    serve.NAME: (serve.serve, serve.SETTINGS),
}


def show_version(wanted: bool) -> None:
    """Print the version of the package.

    Args:
        wanted: Whether the option was given.

    Raises:
        typer.Exit: After the version was printed.
    """
    if wanted:
        print(version("hf-multisource"))
        raise typer.Exit


def make_app() -> typer.Typer:
    """Return the application with all commands.

    Returns:
        The application.
    """
    app = new_app()

    @app.callback()
    def describe(
        show: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        """Train, score, apply and publish models that read several sources of one text.

        `hf-multisource COMMAND -h` explains a command and shows examples.
        """

    for name, (function, settings) in COMMANDS.items():
        if name == results.NAME:
            app.add_typer(results.make_app(), name=name, help="Write rows and tables of results.")
        else:
            add_command(app, name, function, **settings)
    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Run `hf-multisource`.

    Args:
        argv: The command line without the program. Defaults to the command line of this process.
    """
    run(make_app(), PROGRAM, argv)
