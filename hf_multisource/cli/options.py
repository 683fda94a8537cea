"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from hf_multisource.evaluation.decoding import LENGTH_NORMALIZATION, LENGTH_PENALTY

Ensemble = Annotated[
    list[str] | None,
    typer.Option(
        "--ensemble",
        metavar="RUN ...",
        help="Further run folders, model folders or Hub ids, with the same tokenizers, that decode together with the "
        "first one.",
    ),
]
NumBeams = Annotated[int, typer.Option("--num_beams", help="Beam width; 1 is greedy search.")]
LengthPenalty = Annotated[float, typer.Option("--length_penalty", help=f"Exponent of {LENGTH_PENALTY}.")]
LengthNormalization = Annotated[
    float | None,
    typer.Option("--length_normalization", help=f"Exponent of {LENGTH_NORMALIZATION}; replaces the length penalty."),
]
Optimize = Annotated[
    str | None,
    typer.Option(
        "--optimize",
        help="Choose the fastest arithmetic of the device: `--optimize` alone is exact on a CPU and bfloat16 on a GPU; "
        "`--optimize int8` computes with 8-bit integers on a CPU, which is not exact.",
    ),
]
Shortlist = Annotated[
    str | None,
    typer.Option(
        "--shortlist",
        metavar="FILE",
        help="Generate only tokens that occur in this text of the target language; useful if several languages share "
        "the vocabulary.",
    ),
]
Unreadable = Annotated[
    str | None,
    typer.Option("--unreadable", help="Treat pictures and recordings that cannot be read as an `error` or `absent`."),
]
Device = Annotated[str | None, typer.Option("--device", help="Torch device; default: the GPU if there is one.")]

BARE_OPTIMIZE = {"optimize": "best"}  # value of `--optimize` if it is given without a value
