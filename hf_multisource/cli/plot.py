"""`hf-multisource plot`: redraw attention plots from their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli.command import make_main
from hf_multisource.data.files import check_folder
from hf_multisource.evaluation.plots import draw, read_numbers

NAME = "plot"


def plot(
    numbers: Annotated[list[Path], typer.Argument(help="JSON files that `score --attention_plot` wrote.")],
    layer: Annotated[int, typer.Option("--layer", help="Decoder layer from 0, or -1, the last one.")] = -1,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write to; default: beside the numbers.")] = None,
) -> None:
    """Redraw attention plots of the last or another decoder layer.

    \b
        hf-multisource plot runs/mine/scores/test.attention-0.json --layer 0
    """
    contents = {path: read_numbers(path) for path in numbers}
    if out is not None:
        check_folder(out)
        out.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        print(draw(content, (out or path.parent) / f"{path.stem}.png", layer))


main = make_main(NAME, plot)

if __name__ == "__main__":
    main()
