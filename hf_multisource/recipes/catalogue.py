"""The recipes that the package ships, found by name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

CONFIGS = Path(__file__).with_name("configs")
FORMER_FOLDER = "training/configs"  # where the shipped recipes were when the committed results were made
RUN_RECIPE = "recipe.yaml"  # in the folder of a run


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
        IsADirectoryError: If it is a folder, and no recipe has its name.
    """
    return find_yaml(name, shipped_recipes(), "recipe")


def find_yaml(name: str | Path, shipped: Mapping[str, Path], kind: str) -> Path:
    """Return a file that is named by its path, or by its name among those that are shipped.

    Args:
        name: A file, or the name of a shipped one.
        shipped: Name -> file.
        kind: What errors call such a file.

    Returns:
        The file.

    Raises:
        FileNotFoundError: If there is neither such a file nor such a name.
        IsADirectoryError: If it is a folder, and no shipped file has its name.
    """
    path = Path(name)
    if path.is_dir() and str(name) not in shipped:
        hint = f"; did you mean {path / RUN_RECIPE}?" if (path / RUN_RECIPE).is_file() else ""
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
    """Return today's name of a recipe that the command of an earlier result names.

    Args:
        name: As `find_recipe` takes it, or `training/configs/<name>.yaml`, the file that a shipped recipe once was.

    Returns:
        The name of the shipped recipe if its former file is named and no file is there; otherwise `name` itself.
    """
    path = Path(name)
    moved = path.parent.as_posix() == FORMER_FOLDER and path.suffix == ".yaml" and not path.exists()
    return path.stem if moved and path.stem in shipped_recipes() else name


def read_recipe(name: str) -> str:
    """Return the text of a shipped recipe.

    Args:
        name: Its name.

    Returns:
        YAML with comments.

    Raises:
        ValueError: If there is none of that name.
    """
    shipped = shipped_recipes()
    if name not in shipped:
        raise ValueError(f"no shipped recipe {name!r}; these are {', '.join(shipped)}")
    return shipped[name].read_text(encoding="utf-8")


def describe_recipes() -> str:
    """Return the names of the shipped recipes with the first sentence of each.

    Returns:
        One line a recipe.
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
