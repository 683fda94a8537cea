"""`hf-multisource average`: average the weights of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli.command import make_main
from hf_multisource.recipes.averaging import average_checkpoints

NAME = "average"


def average(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN ...", help="Run folder, whose checkpoints are averaged; or several model folders."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to, new or empty.")],
    last: Annotated[
        int | None, typer.Option("--last", help="Number of checkpoints, from the last one; default: all that are kept.")
    ] = None,
) -> None:
    """Average the weights of the checkpoints that a run kept, or of several model folders, into one model.

    \b
        hf-multisource average runs/mine --out runs/mine_average --last 5
        hf-multisource score runs/mine_average

    The new folder contains the processor and the recipe of the run, so that `score`, `translate` and `push` accept it.
    `average.json` in it lists the averaged checkpoints.
    """
    members = average_checkpoints(folders, out, last)
    print(f"{out}: the average of {', '.join(member.name for member in members)}")


main = make_main(NAME, average)

if __name__ == "__main__":
    main()
