"""`hf-multisource filter`: keep the rows of parallel text that are likely under two models of opposite directions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli import options
from hf_multisource.cli.command import make_main
from hf_multisource.evaluation.score_filter import SCORE, filter_corpus

NAME = "filter"


def filter_(
    data: Annotated[str, typer.Argument(help="Folder or Hub id of the corpus.")],
    forward: Annotated[str, typer.Option("--forward", metavar="RUN", help="Run that translates.")],
    backward: Annotated[str, typer.Option("--backward", metavar="RUN", help="Run that translates back.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to, new or empty.")],
    keep: Annotated[float | None, typer.Option("--keep", help="Share of the rows to keep, the best ones.")] = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Highest score to keep, in nats a word, in place of --keep.")
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option("--languages", help="Columns to write; default: those that the runs read or write."),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Name of the split.")] = "train",
    batch_size: Annotated[int, typer.Option("--batch_size", help="Rows scored at once.")] = 64,
    device: options.Device = None,
) -> None:
    """Filter parallel text by dual conditional cross-entropy (Junczys-Dowmunt 2018).

    \b
        hf-multisource filter my_folder --forward runs/kk_en --backward runs/en_kk --keep 0.8 --out filtered

    The score of a row is low (good) if its likelihood is high under both runs, and about equal. OUT receives
    `<split>.<language>` for each language, `<split>.score` with the score of each row, and `counts.json`. Rows without
    a language that a run needs are dropped and counted.
    """
    counts = filter_corpus(
        data,
        out,
        forward,
        backward,
        keep=keep,
        threshold=threshold,
        languages=languages or (),
        split=split,
        batch_size=batch_size,
        device=device,
    )
    print(
        f"read: {counts['read']} rows\nunscored: {counts['unscored']} rows dropped\n"
        f"{SCORE}: {counts['read'] - counts['unscored'] - counts['kept']} rows dropped, those with a score above "
        f"{counts['highest_score']:.6f}\nkept: {counts['kept']} rows; {out} is written"
    )


main = make_main(NAME, filter_)

if __name__ == "__main__":
    main()
