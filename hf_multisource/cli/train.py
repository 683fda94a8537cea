"""`hf-multisource train`: train a model from a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from hf_multisource.cli.command import ARGUMENTS, OPEN, PROGRAM, command_line, make_main
from hf_multisource.recipes.keys import describe_keys
from hf_multisource.recipes.processes import leave
from hf_multisource.recipes.recipe import load_recipe, parse_overrides
from hf_multisource.recipes.seeds import describe_seeds, train_seeds
from hf_multisource.recipes.training import train as train_recipe

NAME = "train"


def list_keys() -> str:
    """Return the keys of recipes for the help.

    Returns:
        A heading and the keys of all sections.
    """
    return f"Keys of a recipe, each with its type, default and meaning:\n\n{describe_keys()}"


SETTINGS: dict[str, Any] = {"context": OPEN, "epilog": list_keys}


def train(
    ctx: typer.Context,
    recipe: Annotated[str, typer.Argument(help="Name of a shipped recipe (see `hf-multisource recipes`) or a file.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the output folder from its last complete checkpoint.")
    ] = False,
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seeds", help="Train with each of these seeds, each in a folder seed-N of the output folder."),
    ] = None,
) -> None:
    """Train a model from a recipe; every key of the recipe can be changed on the command line.

    \b
        hf-multisource train text --path my_folder --sources en de --target cs --output_dir runs/mine
        hf-multisource train multi30k_en_de_fr_cs --combiner flat --seed 2
        hf-multisource train my_recipe.yaml --resume
        hf-multisource train my_recipe.yaml --seeds 1 2 3
        accelerate launch --multi_gpu --num_processes 2 -m hf_multisource.cli.train my_recipe.yaml

    A key is written as `--key value` or `--section.key value`. If two sections have a key of the same name, `--key`
    without a section is that of the section listed first below, except `--kind`, which is that of `tokenizer`. A list
    is written as `--sources en de`, a boolean as `--bf16 yes` or `--bf16 no`. The run's folder receives the best model
    and its processor, the resolved recipe, the versions, the time and the hardware of the run, and checkpoints. If a
    run was interrupted, the same command with --resume continues from the last complete checkpoint and arrives at the
    same weights. With --resume and a higher --max_steps a finished run trains further, provided that its learning rate
    does not depend on the total number of updates (`max_steps`). With --seeds, --resume skips the seeds that have
    finished.
    """
    if (first := ctx.meta[ARGUMENTS][0]).startswith("-") and first != "--resume":
        raise ValueError(f"the recipe comes first, before {first}")
    overrides = parse_overrides(ctx.args)
    if not seeds:
        train_recipe(load_recipe(recipe, overrides), resume=resume, command=command_line(ctx, NAME))
        leave()
        return
    rest = [PROGRAM, NAME, recipe, *without(ctx.args, "--output_dir", "--training.output_dir")]
    print(describe_seeds(train_seeds(recipe, overrides, seeds, resume=resume, command=rest)))
    leave()


def without(arguments: Sequence[str], *options: str) -> list[str]:
    """Return a command line without some of its options.

    Args:
        arguments: The command line.
        *options: The options to remove, with their values, which follow as separate words or after "=".

    Returns:
        The remaining command line.
    """
    kept, left_out = [], False
    for argument in arguments:
        if argument.startswith("--"):
            left_out = argument.partition("=")[0] in options
        if not left_out:
            kept.append(argument)
    return kept


main = make_main(NAME, train, **SETTINGS)

if __name__ == "__main__":
    main()
