"""`hf-multisource results`: write rows of results from finished runs, and tables from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli.command import PROGRAM, add_command, new_app
from hf_multisource.cli.command import run as run_app
from hf_multisource.evaluation.results import RESULTS, write_row, write_table

NAME = "results"

Results = Annotated[Path, typer.Option("--results", help="Folder of all tables.")]


def row(
    run: Annotated[Path, typer.Argument(help="Run folder, scored.")],
    table: Annotated[str, typer.Option("--table", help="Name of the table.")],
    name: Annotated[str, typer.Option("--name", help="Name of the row; also its file's.")],
    baseline: Annotated[Path | None, typer.Option("--baseline", help="Run folder to compare with.")] = None,
    dedicated: Annotated[
        list[Path] | None, typer.Option("--dedicated", help="Run folders trained on some of the sources.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Attention plot; default: the split's first one, if there is any.")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Test split; default: the only one that was scored.")
    ] = None,
    results: Results = RESULTS,
) -> None:
    """Write the row of one run, and the table with this row.

    \b
        hf-multisource results row runs/serial --table multi30k --name serial --baseline runs/en
    """
    paths = write_row(
        run, table, name, results=results, split=split, baseline=baseline, dedicated=dedicated or (), plot=plot
    )
    print(*paths, sep="\n")


def table(table: Annotated[str, typer.Argument(help="Name of the table.")], results: Results = RESULTS) -> None:
    """Write the table from its rows.

    \b
        hf-multisource results table multi30k
    """
    print(write_table(table, results))


def make_app() -> typer.Typer:
    """Return the application with the two commands.

    Returns:
        The application.
    """
    app = new_app()
    for name, function in (("row", row), ("table", table)):
        add_command(app, name, function, title=f"{NAME} {name}")
    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Run `hf-multisource results`.

    Args:
        argv: The command line without the program.
    """
    run_app(make_app(), f"{PROGRAM} {NAME}", argv)


if __name__ == "__main__":
    main()
