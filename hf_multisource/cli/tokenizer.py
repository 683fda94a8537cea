"""`hf-multisource tokenizer`: train a tokenizer on the text of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli.command import make_main
from hf_multisource.data.placeholders import SYNTAXES
from hf_multisource.recipes.tokenization import KINDS, write_tokenizers

NAME = "tokenizer"


def tokenizer(
    data: Annotated[str, typer.Argument(help="Folder of the data, or id of a Hub dataset.")],
    sources: Annotated[list[str], typer.Option("--sources", help="Names of the sources.")],
    target: Annotated[str, typer.Option("--target", help="Name of the target.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to save in, new or empty.")],
    split: Annotated[str, typer.Option("--split", help="Split to train on.")] = "train",
    kind: Annotated[str, typer.Option("--kind", help=f"One of {', '.join(KINDS)}.")] = "bpe",
    vocab_size: Annotated[int, typer.Option("--vocab_size", help="Largest number of tokens of a tokenizer.")] = 8000,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Encode in lower case.")] = False,
    null_token: Annotated[
        str | None, typer.Option("--null_token", help="A token that stands for an absent text, such as <NULL>.")
    ] = None,
    separate: Annotated[
        bool, typer.Option("--separate", help="Train one tokenizer each: OUT/<source>, OUT/target.")
    ] = False,
    romanize: Annotated[
        list[str] | None,
        typer.Option("--romanize", help="Languages whose Cyrillic letters (Russian, Kazakh) become Latin ones."),
    ] = None,
    balance: Annotated[
        bool, typer.Option("--balance", help="Repeat the text of smaller languages, so that all count alike.")
    ] = False,
    placeholders: Annotated[
        str | None,
        typer.Option(
            "--placeholders",
            metavar="SYNTAX",
            help=f"Mask placeholders, for runs with data.placeholders: {', '.join(SYNTAXES)}.",
        ),
    ] = None,
) -> None:
    """Train a tokenizer: one for all sources and the target, or one for each.

    \b
        hf-multisource tokenizer my_folder --sources en de --target cs --vocab_size 8000 --out tokenizer
    """
    for line in write_tokenizers(
        data,
        sources,
        target,
        out,
        split=split,
        kind=kind,
        vocab_size=vocab_size,
        lowercase=lowercase,
        null_token=null_token,
        separate=separate,
        romanize=romanize or (),
        balance=balance,
        placeholders=placeholders,
    ):
        print(line)


main = make_main(NAME, tokenizer)

if __name__ == "__main__":
    main()
