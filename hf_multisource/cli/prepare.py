"""`hf-multisource prepare`: normalize and filter parallel text, and remove rows that overlap with held-out sets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli import options
from hf_multisource.cli.command import make_main
from hf_multisource.data.placeholders import SYNTAXES
from hf_multisource.data.prepare import prepare_corpus
from hf_multisource.data.rules import NONE, ROW, Rules

NAME = "prepare"


def prepare(
    data: Annotated[str, typer.Argument(help="Folder or Hub id of the corpus.")],
    languages: Annotated[list[str], typer.Option("--languages", help="Columns of the corpus, which hold text.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to, new or empty.")],
    split: Annotated[str, typer.Option("--split", help="Name of the split.")] = "train",
    keep_punctuation: Annotated[
        bool, typer.Option("--keep_punctuation", help="Leave quotation marks, dashes and ellipses as they are.")
    ] = False,
    require: Annotated[list[str] | None, typer.Option("--require", help="Languages that no row may lack.")] = None,
    min_words: Annotated[int, typer.Option("--min_words", help="Smallest number of words of a text.")] = 1,
    max_words: Annotated[int | None, typer.Option("--max_words", help="Largest number of words of a text.")] = None,
    max_ratio: Annotated[
        float | None, typer.Option("--max_ratio", help="Largest ratio between the words of two texts of a row.")
    ] = None,
    scripts: Annotated[
        list[str] | None,
        typer.Option("--scripts", metavar="LANGUAGE=SCRIPT ...", help="Unicode script of a language: kk=Cyrillic."),
    ] = None,
    min_script: Annotated[float, typer.Option("--min_script", help="Smallest share of letters of the script.")] = 0.5,
    placeholders: Annotated[
        str | None,
        typer.Option(
            "--placeholders",
            metavar="SYNTAX",
            help=f"Drop rows whose texts have different placeholders: {', '.join(SYNTAXES)}.",
        ),
    ] = None,
    duplicates: Annotated[
        str, typer.Option("--duplicates", help=f"Compare whole rows ({ROW}), one language, or do not ({NONE}).")
    ] = ROW,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            "--held_out",
            metavar="FOLDER:SPLIT ...",
            help="Dev and test sets: rows that share words with them are dropped (--ngram).",
        ),
    ] = None,
    ngram: Annotated[int, typer.Option("--ngram", help="Words in a row that count as shared.")] = 6,
) -> None:
    """Prepare parallel text for training with rules that change texts or drop rows, and print the count of each rule.

    \b
        hf-multisource prepare my_folder --languages kk ru en --out clean --held_out my_folder:dev my_folder:test
        hf-multisource prepare web --languages kk en --out clean --max_words 60 --max_ratio 3 \\
            --scripts kk=Cyrillic en=Latin

    The rules, in this order: control characters and spaces, Unicode NFC, punctuation, --require, length, ratio, script,
    placeholders, duplicates, held-out sets. OUT receives `<split>.<language>` for each language, and `counts.json`.
    """
    rules = Rules(
        keep_punctuation=keep_punctuation,
        require=require or (),
        min_words=min_words,
        max_words=max_words,
        max_ratio=max_ratio,
        scripts=options.parse_pairs("scripts", scripts or (), "kk=Cyrillic", "LANGUAGE=SCRIPT"),
        min_script=min_script,
        placeholders=placeholders,
        duplicates=duplicates,
        ngram=ngram,
    )
    start = time.perf_counter()
    counts = prepare_corpus(data, out, languages, rules, split=split, held_out=held_out or ())
    print(counts.describe())
    print(f"{counts.read / (time.perf_counter() - start):,.0f} rows/s; {out} is written")


main = make_main(NAME, prepare)

if __name__ == "__main__":
    main()
