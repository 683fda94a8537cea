"""`hf-multisource recipes`: list the shipped recipes, show one, or explain the keys of recipes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hf_multisource.cli.command import make_main
from hf_multisource.recipes.keys import describe_keys
from hf_multisource.recipes.shipped import describe_recipes, read_recipe

NAME = "recipes"
SETTINGS: dict[str, Any] = {"bare": {"keys": "all"}}


def recipes(
    name: Annotated[str | None, typer.Argument(help="Name of a recipe to show; default: list all.")] = None,
    keys: Annotated[
        str | None,
        typer.Option(metavar="[SECTION]", help="Explain the keys of recipes, or of one section, such as training."),
    ] = None,
) -> None:
    """List the shipped recipes, print one of them, or explain the keys that a recipe can have.

    \b
        hf-multisource recipes
        hf-multisource recipes multi30k_en_de_fr_cs > my_recipe.yaml
        hf-multisource recipes --keys training
    """
    if keys is not None:
        print(describe_keys(None if keys == "all" else keys), end="")
    else:
        print(describe_recipes() if name is None else read_recipe(name), end="")


main = make_main(NAME, recipes, **SETTINGS)

if __name__ == "__main__":
    main()
