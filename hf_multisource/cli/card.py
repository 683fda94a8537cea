"""`hf-multisource card`: write model cards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli.command import make_main
from hf_multisource.evaluation.results import RESULTS
from hf_multisource.publishing.card import card_of_row, render, rows_of_models, subject_of_run, write_card

NAME = "card"


def card(
    run: Annotated[Path | None, typer.Argument(help="Run folder.")] = None,
    row: Annotated[Path | None, typer.Option("--row", help="A committed row of results, in place of a run.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help=f"Write the card of each row in {RESULTS} that is a single model.")
    ] = False,
    split: Annotated[
        str | None, typer.Option("--split", help="Test split of the run; default: the only one that was scored.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Hub id that the run's model is to have; default: its folder.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: RUN/README.md.")] = None,
) -> None:
    """Write the model card of a run, or the cards of committed rows of results, from their files.

    \b
        hf-multisource card runs/mine --address org/name
        hf-multisource card --row docs/results/multi30k/serial.json
        hf-multisource card --all
    """
    if sum([run is not None, row is not None, every]) != 1:
        raise ValueError("give one of RUN, --row FILE and --all")
    if every and out:
        raise ValueError("--all writes many files: leave out --out")
    if run is None and (split or address):
        raise ValueError("--split and --address belong to a run")
    if run is not None:
        out = out or run / "README.md"
        cards = {out: render(subject_of_run(run, split, address), out, "hf-multisource card RUN")}
    else:
        rows = rows_of_models(RESULTS) if row is None else [row]
        cards = dict(card_of_row(path, out) for path in rows)
    for place, text in cards.items():
        print(write_card(place, text))


main = make_main(NAME, card)

if __name__ == "__main__":
    main()
