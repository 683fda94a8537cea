"""`hf-multisource degrade`: mask words of one source, so that a model needs another source to translate them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli.command import make_main
from hf_multisource.data.degrade import HOW, degrade_folder

NAME = "degrade"


def degrade(
    data: Annotated[Path, typer.Argument(help="Folder of line-aligned text.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to, new or empty.")],
    source: Annotated[str, typer.Option("--source", help="The source to mask.")],
    how: Annotated[str, typer.Option("--how", help=f"One of {', '.join(HOW)}.")],
    language: Annotated[
        str | None, typer.Option("--language", help="Language of the built-in list; default: the name of the source.")
    ] = None,
    words: Annotated[Path | None, typer.Option("--words", help="File with one word a line.")] = None,
    keep: Annotated[int | None, typer.Option("--keep", help="With `progressive`: words that stay.")] = None,
    share: Annotated[float | None, typer.Option("--share", help="With `share`: probability of masking a word.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="With `share`: seed of the draws.")] = 0,
    mask: Annotated[str, typer.Option("--mask", help="Text that replaces a masked word.")] = "[v]",
) -> None:
    """Mask words of one source in every split of a folder; all other files are linked.

    \b
        hf-multisource degrade my_folder --out masked --source en --how colors
        hf-multisource degrade my_folder --out masked --source en --how share --share 0.3

    `colors` and `people` mask words of built-in lists (and of --words), `progressive` masks every word after the first
    --keep words, `share` masks each word with a probability, and `words` masks only the words of --words (after
    Caglayan et al. 2019).
    """
    report = degrade_folder(
        data, out, source, how, language=language, words=words, keep=keep, share=share, seed=seed, mask=mask
    )
    for name, counts in report.items():
        shares = [f"{100 * counts[f'masked_{what}'] / max(1, counts[what]):.1f} %" for what in ("words", "lines")]
        print(f"{name}: {counts['masked_words']} words masked ({shares[0]}), in {shares[1]} of the lines")


main = make_main(NAME, degrade)

if __name__ == "__main__":
    main()
