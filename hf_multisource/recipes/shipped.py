"""The recipes that the package ships, found by name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

CONFIGS = Path(__file__).with_name("configs")
FORMER_FOLDER = "training/configs"  # folder of the shipped recipes when the committed results were made
RECIPE = "recipe.yaml"  # name of the recipe file in a run folder


def shipped_recipes() -> dict[str, Path]:
    """Return the shipped recipes.

    Returns:
        Name -> file, sorted by name.
    """
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def find_recipe(name: str | Path) -> Path:
    """Return the file of a recipe.

    Args:
        name: A file, or the name of a shipped recipe.

    Returns:
        The file.

    Raises:
        FileNotFoundError: If there is neither such a file nor such a recipe.
        IsADirectoryError: If `name` is a folder, and no recipe has this name.
    """
    return find_yaml(name, shipped_recipes(), "recipe")


def find_yaml(name: str | Path, shipped: Mapping[str, Path], kind: str) -> Path:
    """Return a YAML file that is given by its path or by the name of a shipped file.

    Args:
        name: A file, or the name of a shipped one.
        shipped: Name -> file.
        kind: Kind of file, for error messages.

    Returns:
        The file.

    Raises:
        FileNotFoundError: If there is neither such a file nor such a name.
        IsADirectoryError: If `name` is a folder, and no shipped file has this name.
    """
    path = Path(name)
    if path.is_dir() and str(name) not in shipped:
        hint = f"; did you mean {path / RECIPE}?" if (path / RECIPE).is_file() else ""
        article = "an" if kind[0] in "aeiou" else "a"
        raise IsADirectoryError(f"{name} is a folder; {article} {kind} is a YAML file{hint}")
    if path.exists() and not path.is_dir():
        return path
    if str(name) in shipped:
        return shipped[str(name)]
    hint = f"; did you mean the shipped {kind} {path.stem}?" if path.stem in shipped else ""
    raise FileNotFoundError(
        f"no file {name}, and no shipped {kind} of that name{hint or '; these are ' + ', '.join(shipped)}"
    )


def recorded_recipe(name: str) -> str:
    """Return the current name of a recipe that is named in the command of an earlier result.

    Args:
        name: See `find_recipe`; or `training/configs/<name>.yaml`, the former path of a shipped recipe.

    Returns:
        The name of the shipped recipe if `name` is its former path and no such file exists; otherwise `name` itself.
    """
    path = Path(name)
    moved = path.parent.as_posix() == FORMER_FOLDER and path.suffix == ".yaml" and not path.exists()
    return path.stem if moved and path.stem in shipped_recipes() else name


def read_recipe(name: str) -> str:
    """Return the text of a shipped recipe.

    Args:
        name: Name of the recipe.

    Returns:
        YAML with comments.

    Raises:
        ValueError: If there is no recipe of that name.
    """
    shipped = shipped_recipes()
    if name not in shipped:
        raise ValueError(f"no shipped recipe {name!r}; these are {', '.join(shipped)}")
    return shipped[name].read_text(encoding="utf-8")


def describe_recipes() -> str:
    """Return the names of the shipped recipes with the first sentence of each.

    Returns:
        One line per recipe.
    """
    return "".join(f"{name:<32}{comment_of(path)}\n" for name, path in shipped_recipes().items())


def comment_of(path: Path) -> str:
    """Return the first sentence of the comment at the top of a YAML file.

    Args:
        path: The file.

    Returns:
        The sentence, with its full stop.
    """
    comment = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    text = " ".join(line.removeprefix("#").strip() for line in comment)
    return f"{text.partition('. ')[0].rstrip('.')}."
