"""`hf-multisource score`: decode a test set and score it, also with sources wrong, absent or alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_multisource.cli import options
from hf_multisource.cli.command import command_line, make_main
from hf_multisource.evaluation.conditions import RERANKED
from hf_multisource.evaluation.presence import presence_table
from hf_multisource.evaluation.reranking import describe_reranking
from hf_multisource.evaluation.score_report import left_out, mean_scores, table
from hf_multisource.evaluation.scoring import PLOTS, Scoring
from hf_multisource.evaluation.scoring import score as score_run
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.seeds import seed_folders

NAME = "score"
FIRST = "first"  # value of `--attention_plot` if it is given without rows
SETTINGS = {"bare": {**options.BARE_OPTIMIZE, "attention_plot": FIRST}}


def score(
    ctx: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            help="Run folder, or a folder of runs with several seeds; or a model folder or Hub id with --data, "
            "--target, --split."
        ),
    ],
    ensemble: options.Ensemble = None,
    data: Annotated[str | None, typer.Option("--data", help="Folder or Hub id of the data; default: recipe's.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Name of the test split; default: recipe's.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Name of the target; default: recipe's.")] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--sources",
            help="Score the lines that have one of these sources; a line with none of the model's gets an empty "
            "hypothesis; default: the model's.",
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metrics", help=f"Some of {', '.join(METRICS)}, the most important first; default: recipe's."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write to; default: RUN/scores.")] = None,
    adversarial: Annotated[
        bool, typer.Option("--adversarial", "--wrong", help="Also score with each source wrong.")
    ] = False,
    draws: Annotated[int, typer.Option("--draws", help="Shuffles of each wrong source.")] = 5,
    absent: Annotated[bool, typer.Option("--absent", help="Also score with each source absent.")] = False,
    only: Annotated[bool, typer.Option("--only", help="Also score with each source alone.")] = False,
    rerank: Annotated[
        str | None,
        typer.Option("--rerank", metavar="RUN", help="Also rerank the hypotheses of the beam by this reverse run."),
    ] = None,
    rerank_weight: Annotated[
        float | None,
        typer.Option("--rerank_weight", help="Weight of the reverse model; default: the best one on the dev split."),
    ] = None,
    attention_plot: Annotated[
        list[str] | None,
        typer.Option(
            "--attention_plot",
            metavar="[ROW ...]",
            help=f"Plot the attention of these sentences, counted from 0; without a row: of the first {PLOTS} "
            "among those that lack the fewest sources.",
        ),
    ] = None,
    num_beams: options.NumBeams = 10,
    length_penalty: options.LengthPenalty = 1.0,
    length_normalization: options.LengthNormalization = None,
    optimize: options.Optimize = None,
    shortlist: options.Shortlist = None,
    max_length: Annotated[
        int | None, typer.Option("--max_length", help="Longest source, in tokens; default: the recipe's, or else 128.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max_new_tokens", help="Longest hypothesis, in tokens; default: as --max_length.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Sentences decoded at once.")] = 64,
    limit: Annotated[int | None, typer.Option("--limit", help="Number of lines to score, from the first.")] = None,
    unreadable: options.Unreadable = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the shuffles.")] = 0,
    device: options.Device = None,
) -> None:
    """Decode a test set and score it: BLEU and chrF or other metrics, and perplexity.

    \b
        hf-multisource score runs/mine
        hf-multisource score runs/mine --adversarial --absent --only --attention_plot
        hf-multisource score org/model --data my_folder --target cs --split test --out scores
        hf-multisource score runs/mine --rerank runs/reverse
        hf-multisource score runs/seed1 --ensemble runs/seed2 runs/seed3

    The conditions are `all` (all sources unchanged), `wrong-X` (X shuffled so that no sentence keeps its own X),
    `absent-X` (X removed), `only-X` (all other sources removed) and `reranked` (by a run with `data.reverse`).
    RUN/scores receives `<split>.json` with every score and `<split>.<condition>.txt` with the hypotheses. The same
    command continues an interrupted run.

    If some lines lack a source, a second table shows the scores by the sources that are present in a line. If RUN is a
    folder of `hf-multisource train --seeds`, each seed is scored, and the last line shows the means over the seeds.
    """
    given = {name: value for name, value in locals().items() if name not in ("ctx", "attention_plot", "ensemble")}
    given |= {"ensemble": ensemble or (), "attention_plot": rows_of(attention_plot)}
    runs = [str(folder) for folder in seed_folders(Path(run))] or [run]
    if len(runs) > 1 and out is not None:
        raise ValueError(
            f"--out {out}: {run} is a folder of seeds; each seed has its own folder of scores: leave out --out"
        )
    if len(runs) > 1 and ensemble:
        raise ValueError(
            f"--ensemble: {run} is a folder of seeds, which are scored one by one; name the run folder of one seed, or "
            f"decode with all of them together: {runs[0]} --ensemble {' '.join(runs[1:])}"
        )
    reports = []
    for one in runs:
        reports.append(score_run(Scoring(**{**given, "run": one}), command_line(ctx, NAME)))
        print(f"{one}:\n" * (len(runs) > 1) + show_report(reports[-1]))
    if len(runs) > 1:
        print(f"mean of {len(runs)} seeds: {mean_scores(reports)}")


def show_report(report: Mapping[str, Any]) -> str:
    """Return the tables of a report and the remarks on its data as printable text.

    Args:
        report: The report that `score` of `hf_multisource.evaluation.scoring` returns.

    Returns:
        Several lines.
    """
    parts = [table(report["conditions"])]
    if reranked := report["conditions"].get(RERANKED):
        parts.append(describe_reranking(reranked["reranking"]))
    if report["presence"]:
        parts.append(presence_table(report["presence"]))
    if note := left_out(dict(report)):
        parts.append(note)
    if plots := report.get("plots"):
        parts.append("\n".join(plots))
    return "\n\n".join(parts)


def rows_of(given: list[str] | None) -> list[int] | None:
    """Return the rows that `--attention_plot` names.

    Args:
        given: The values of the option; None if it was not given.

    Returns:
        The rows; an empty list stands for the first few sentences, None for no plots.

    Raises:
        ValueError: If a value is not a whole number.
    """
    if not given or given == [FIRST]:
        return None if not given else []
    if wrong := [value for value in given if not value.isdigit()]:
        raise ValueError(f"--attention_plot {wrong[0]}: rows are whole numbers, counted from 0")
    return [int(value) for value in given]


main = make_main(NAME, score, **SETTINGS)

if __name__ == "__main__":
    main()
