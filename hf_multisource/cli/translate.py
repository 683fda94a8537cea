"""`hf-multisource translate`: translate text in one file per source, or in one table of all sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from hf_multisource.cli import options
from hf_multisource.cli.command import OPEN, make_main
from hf_multisource.evaluation.decoding import Search
from hf_multisource.evaluation.translating import LONGEST_SOURCE, Translation, source_options
from hf_multisource.evaluation.translating import translate as translate_job

NAME = "translate"
SETTINGS = {"bare": options.BARE_OPTIMIZE, "context": OPEN}


def translate(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Run folder, model folder or Hub id; comes before all options.")],
    ensemble: options.Ensemble = None,
    input: Annotated[str | None, typer.Option("--input", help="Table of all sources; default: standard input.")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="The table holds JSON lines, not columns.")] = False,
    out: Annotated[
        str | None, typer.Option("--out", help="File to write, or to continue; default: standard output.")
    ] = None,
    num_beams: Annotated[
        int | None,
        typer.Option("--num_beams", help="Beam width; 1 is greedy search; default: 10, and 1 with --do_sample."),
    ] = None,
    length_penalty: options.LengthPenalty = 1.0,
    length_normalization: options.LengthNormalization = None,
    optimize: options.Optimize = None,
    shortlist: options.Shortlist = None,
    n_best: Annotated[
        int, typer.Option("--n_best", help="Number of translations to write for each sentence, with their scores.")
    ] = 0,
    do_sample: Annotated[
        bool,
        typer.Option("--do_sample", help="Sample each line, as for back-translation, with random numbers of its own."),
    ] = False,
    temperature: Annotated[float, typer.Option("--temperature", help="With --do_sample: divisor of the logits.")] = 1.0,
    top_k: Annotated[
        int, typer.Option("--top_k", help="With --do_sample: number of likeliest tokens to draw from; 0: all.")
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option("--top_p", help="With --do_sample: draw from the likeliest tokens with this probability; 1: all."),
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="With --do_sample: seed of the random numbers.")] = 0,
    max_new_tokens: Annotated[int, typer.Option("--max_new_tokens", help="Longest translation, in tokens.")] = 128,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max_length",
            help="Cut longer sources, in tokens; default: the recipe's length, or else what the model can read, at "
            f"most {LONGEST_SOURCE}.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Sentences decoded at once.")] = 32,
    unreadable: options.Unreadable = "error",
    device: options.Device = None,
) -> None:
    """Translate sentences; there is one option for each source of the model, such as `--en FILE`.

    \b
        hf-multisource translate runs/mine --en new.en --de new.de.gz --out new.cs
        hf-multisource translate runs/mine --jsonl < table.jsonl
        hf-multisource translate runs/seed1 --ensemble runs/seed2 runs/seed3 --en new.en --out new.cs
        hf-multisource translate runs/mine --en mono.en --out mono.cs --do_sample --seed 1
        accelerate launch --multi_gpu --num_processes 2 -m hf_multisource.cli.translate runs/mine --en x.en --out x.cs

    Line i of every file belongs to sentence i; a source without a file, and an empty line, are absent. A .csv or .tsv
    table has a header with the names of the sources. Any other table has one tab-separated column per source, in the
    model's order; with --jsonl it has one JSON object per line, source name -> text or null. For pictures and sound,
    the text is the path of a file; features come from an array, `--image FILE.npy`.
    With --n_best K, each sentence has K lines: sentence number (from 0), score and text between tabs.
    With --out, the same command continues an interrupted run and writes the same file. FILE.json next to the output
    records the model and the options, and FILE.parts contains the finished part of an incomplete run. Several processes
    share the sentences.
    """
    search = Search(
        num_beams=num_beams if num_beams is not None else 1 if do_sample else 10,
        length_penalty=length_penalty,
        length_normalization=length_normalization,
        max_new_tokens=max_new_tokens,
        max_length=max_length,
        n_best=n_best,
        optimize=optimize,
        shortlist=shortlist,
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    if model.startswith("-"):
        raise ValueError(f"the model comes first, before {model}")
    files = parse_files(ctx.args, source_options(model))
    translate_job(
        Translation(
            model,
            files,
            search,
            ensemble=ensemble or (),
            table=input,
            jsonl=jsonl,
            out=out,
            batch_size=batch_size,
            unreadable=unreadable or "error",
            device=device,
        )
    )


def parse_files(arguments: Sequence[str], sources: Sequence[str]) -> dict[str, str]:
    """Parse options of the form `--en FILE --de=FILE`.

    Args:
        arguments: The command line without the options that every model has.
        sources: Names of the sources.

    Returns:
        Source name -> file.

    Raises:
        ValueError: If an option is not a source, has no file, or is given twice.
    """
    files: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        name = option.removeprefix("--")
        if not option.startswith("--") or name not in sources:
            allowed = ", ".join(f"--{source}" for source in sources)
            raise ValueError(f"unknown option {option}; the options of this model's sources are {allowed}")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else ""
        if not value:
            raise ValueError(f"--{name} needs a file")
        if name in files:
            raise ValueError(f"--{name} is given twice: {files[name]} and {value}")
        files[name] = value
    return files


main = make_main(NAME, translate, **SETTINGS)

if __name__ == "__main__":
    main()
