"""`hf-multisource recipes`: list the shipped recipes, or show one."""

from __future__ import annotations

from typing import Annotated

import typer

from hf_multisource.cli.command import make_main
from hf_multisource.recipes.catalogue import describe_recipes, read_recipe

NAME = "recipes"


def recipes(
    name: Annotated[str | None, typer.Argument(help="Name of a recipe to show; default: list all.")] = None,
) -> None:
    """List the shipped recipes, or print one of them.

    \b
        hf-multisource recipes
        hf-multisource recipes multi30k_en_de_fr_cs > my_recipe.yaml
    """
    print(describe_recipes() if name is None else read_recipe(name), end="")


main = make_main(NAME, recipes)

if __name__ == "__main__":
    main()
