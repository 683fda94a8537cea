"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
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
        help="Choose the fastest arithmetic of the device: `--optimize` alone is float32 on a CPU and bfloat16 on a "
        "GPU; `--optimize int8` computes with 8-bit integers on a CPU, which rounds the results.",
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


def parse_pairs(option: str, given: Sequence[str], example: str, form: str = "LANGUAGE=PATH") -> dict[str, str]:
    """Parse values of the form `en=l10n/en de=l10n/de`.

    Args:
        option: Name of the option.
        given: Values of the option.
        example: Example of a value, for the error message.
        form: Form of a value, for the error message.

    Returns:
        Text before `=` -> text after `=`.

    Raises:
        ValueError: If a value has another form, or a name is given twice.
    """
    pairs: dict[str, str] = {}
    for value in given:
        name, _, rest = value.partition("=")
        if not (name and rest) or name in pairs:
            raise ValueError(f"--{option} {value}: write {form}, such as {example}, once for each language")
        pairs[name] = rest
    return pairs
