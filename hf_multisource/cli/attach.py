"""`hf-multisource attach`: add the encoder that computed a source's features to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli.command import make_main
from hf_multisource.recipes.attachment import attach_checkpoint

NAME = "attach"


def attach(
    run: Annotated[str, typer.Argument(help="Folder or Hub id of a model with a source of features.")],
    encoder: Annotated[str, typer.Argument(help="Folder or Hub id of the AutoModel that made the features.")],
    source: Annotated[str, typer.Option("--source", help="Name of the source.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to, new or empty.")],
    image_size: Annotated[
        int | None,
        typer.Option("--image_size", help="As `precompute --image_size`, if the features were made with it."),
    ] = None,
) -> None:
    """Add the encoder of precomputed features to a model, which then reads the encoder's inputs, such as pictures.

    \b
        hf-multisource attach runs/mine microsoft/resnet-50 --source image --out runs/mine_pictures
    """
    attach_checkpoint(run, encoder, source, out, image_size)


main = make_main(NAME, attach)

if __name__ == "__main__":
    main()
