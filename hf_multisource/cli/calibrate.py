"""`hf-multisource calibrate`: fit the confidence of a run's translations on its development set."""

from __future__ import annotations

from typing import Annotated

import typer

from hf_multisource.cli import options
from hf_multisource.cli.command import command_line, make_main
from hf_multisource.data.placeholders import SYNTAXES
from hf_multisource.evaluation.calibration import Calibration, describe_confidence
from hf_multisource.evaluation.calibration import calibrate as calibrate_run

NAME = "calibrate"
SETTINGS = {"bare": options.BARE_OPTIMIZE}


def calibrate(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="Run folder; or a model folder with --data, --target, --split.")],
    data: Annotated[str | None, typer.Option("--data", help="Folder or Hub id of the data; default: recipe's.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Name of the split; default: recipe's dev.")] = None,
    evaluate: Annotated[
        str | None, typer.Option("--evaluate", help="Name of another split on which the confidence is also measured.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="Name of the target; default: recipe's.")] = None,
    num_beams: Annotated[
        int, typer.Option("--num_beams", help="Beam width, at least 2, with which the confidence will be used.")
    ] = 5,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max_new_tokens", help="Longest translation, in tokens; default: the recipe's.")
    ] = None,
    syntax: Annotated[
        str | None,
        typer.Option("--syntax", help=f"Syntax of the placeholders: {', '.join(SYNTAXES)}; default: recipe's or any."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Number of lines to read, from the first.")] = None,
    optimize: options.Optimize = None,
    device: options.Device = None,
) -> None:
    """Fit a calibrated confidence: the probability that a translation equals a human translation.

    \b
        hf-multisource calibrate runs/mine
        hf-multisource calibrate runs/mine --split dev --num_beams 5
        hf-multisource calibrate runs/mine --evaluate test
        hf-multisource calibrate model_folder --data my_folder --target dsb --split dev

    The development set is translated, and a logistic regression learns from the scores of the n-best lists whether the
    best candidate equals its reference. The confidence is written to RUN/confidence.json, which `localize` and `serve`
    read. The command prints the expected calibration error and the Brier score by cross-validation, and for several
    thresholds the share of translations with at least this confidence and the share of these that are correct. With
    --evaluate, the same figures are printed for another split. The same command continues an interrupted run.
    """
    given = {name: value for name, value in locals().items() if name != "ctx"}
    print(describe_confidence(calibrate_run(Calibration(**given), command_line(ctx, NAME))))


main = make_main(NAME, calibrate, **SETTINGS)

if __name__ == "__main__":
    main()
