"""`hf-multisource precompute`: compute the features of all pictures of a split and store them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli import options
from hf_multisource.cli.command import make_main
from hf_multisource.recipes.precompute import DTYPES, Precomputation
from hf_multisource.recipes.precompute import precompute as precompute_split

NAME = "precompute"


def precompute(
    encoder: Annotated[str, typer.Argument(help="Folder or Hub id of an AutoModel of pictures.")],
    data: Annotated[Path, typer.Option("--data", help="Folder with <split>.<source>, one path a line.")],
    split: Annotated[str, typer.Option("--split", help="Name of the split.")],
    source: Annotated[str, typer.Option("--source", help="Name of the source.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")],
    batch_size: Annotated[int, typer.Option("--batch_size", help="Pictures encoded at once.")] = 32,
    dtype: Annotated[str, typer.Option("--dtype", help=f"Type of the array: {' or '.join(DTYPES)}.")] = "float16",
    device: options.Device = None,
    image_size: Annotated[
        int | None,
        typer.Option("--image_size", help="Height and width of the encoder's pictures; default: its processor's."),
    ] = None,
    unreadable: options.Unreadable = "error",
) -> None:
    """Run a picture encoder over a split, and store the features of each picture.

    \b
        hf-multisource precompute microsoft/resnet-50 --data my_folder --split train --source image --out my_folder
        hf-multisource precompute microsoft/resnet-50 --image_size 229 --data my_folder --split train --source image \\
            --out maps_8x8

    DATA/<split>.<source> has one path a line, relative to DATA; an empty line means that there is no picture.
    OUT/<split>.<source>.npy receives an array (rows, positions, features), which a recipe reads with
    `kind: features, feature_size: F`. The same command continues an interrupted run.
    """
    print(
        precompute_split(
            Precomputation(
                encoder, data, split, source, out, batch_size, dtype, device, image_size, unreadable or "error"
            )
        )
    )


main = make_main(NAME, precompute)

if __name__ == "__main__":
    main()
