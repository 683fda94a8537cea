"""`hf-multisource reproduce`: run or resume all cells of an experiment, and write its rows and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli.command import make_main
from hf_multisource.evaluation.experiment import Run
from hf_multisource.evaluation.results import RESULTS
from hf_multisource.recipes.experiments import describe_experiments, load_experiment

NAME = "reproduce"


def reproduce(
    experiment: Annotated[
        str | None, typer.Argument(help="Name of a shipped experiment (see --list) or a file.", show_default=False)
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the shipped experiments.")] = False,
    data: Annotated[str | None, typer.Option("--data", help="Folder or Hub id of the data.")] = None,
    sources: Annotated[list[str] | None, typer.Option("--sources", help="Names of the sources, of other data.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Name of the target, of other data.")] = None,
    rows: Annotated[list[str] | None, typer.Option("--rows", help="Run only these rows.")] = None,
    seeds: Annotated[list[int] | None, typer.Option("--seeds", help="Run only these seeds.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="First table: few rows, one seed, few epochs. Training does not level off.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry_run", help="Only list the cells and their states.")] = False,
    runs: Annotated[Path, typer.Option("--runs", help="Folder of the runs.")] = Path("runs"),
    results: Annotated[Path, typer.Option("--results", help="Folder of all tables.")] = RESULTS,
) -> None:
    """Run or resume an experiment: all rows of a table, each with several seeds.

    \b
        hf-multisource reproduce --list
        hf-multisource reproduce protoform-romance --quick
        hf-multisource reproduce protoform-romance --rows joined serial --seeds 1 2
        hf-multisource reproduce protoform --data my_folder --sources a b c --target x

    Each cell (one seed of one row) is trained and scored in RUNS/EXPERIMENT/ROW/seed-N; the first seed of every row
    comes before the second seed of any. After each cell the row is written to RESULTS/EXPERIMENT/ROW.json and the page
    to RESULTS/EXPERIMENT.md. The same command resumes what was interrupted, and may run several times at once on one
    folder. A cell that fails is reported, the others go on, and the exit status is 1.
    """
    if list_all or experiment is None:
        print(describe_experiments(), end="")
        return
    loaded = load_experiment(experiment, data=data, sources=sources, target=target, rows=rows, seeds=seeds, quick=quick)
    run = Run(loaded, runs, results, say=lambda line: print(line, flush=True))
    run.data.check()
    if dry_run:
        for name, state in run.cells.states().items():
            print(f"{name:<40}{state}")
        return
    if quick:
        print("quick: few rows, one seed, few epochs; training has not leveled off, so the figures are no results")
    try:
        failed = run.all_cells()
    except KeyboardInterrupt as error:
        raise type(error)("start the same command again to go on") from error
    if (page := results / f"{loaded.name}.md").exists():
        print(page)
    if failed:
        reasons = {why: [name for name, other in failed.items() if other == why] for why in failed.values()}
        listed = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        raise ValueError(f"{len(failed)} cell{'s' * (len(failed) != 1)} failed: {listed}")


main = make_main(NAME, reproduce)

if __name__ == "__main__":
    main()
