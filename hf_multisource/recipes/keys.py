"""Format the keys of recipes for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from hf_multisource.recipes.schema import (
    FAMILIES,
    Key,
    catalogue_keys,
    common_keys,
    corpus_keys,
    data_keys,
    entry_keys,
    family_keys,
    known_keys,
    tokenizer_keys,
    training_keys,
)
from hf_multisource.recipes.values import describe, plain

WIDTH = 80  # line width in characters, as in Typer's help
SHORT = {"true or false (or yes, no, on, off)": "true or false"}  # long description -> short form


def _type(key: Key) -> str:
    text = describe(plain(key.type))
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return text.removeprefix("a ")


def _block(keys: Iterable[Key]) -> str:
    lines = []
    for key in keys:
        default = key.default if key.default == "required" else f"[default: {key.default}]"
        # Wrapped, because a list of choices may be longer than a line.
        lines += textwrap.wrap(
            f"{key.name}  {_type(key)}  {default}", WIDTH, initial_indent="  ", subsequent_indent="      "
        )
        lines += textwrap.wrap(key.meaning, WIDTH, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines) + "\n"


def describe_keys(section: str | None = None) -> str:
    """Return the keys of recipes with their types, defaults and meanings.

    Args:
        section: The section to list; None: all four.

    Returns:
        The text: for every key, a line with name, type and default, followed by the indented meaning.

    Raises:
        ValueError: If there is no such section.
    """
    families = {name: family_keys(family) for name, family in FAMILIES.items()}
    blocks = {
        "data": [
            ("data: the text", data_keys()),
            ("data.train, each entry", corpus_keys()),
            ("data.catalogues", catalogue_keys()),
        ],
        "tokenizer": [("tokenizer: how text becomes tokens", tokenizer_keys())],
        "model": [
            ("model: the network", common_keys()),
            *((f"model, with model_type {name}", keys) for name, keys in families.items()),
            ("model.sources, each entry", entry_keys()),
        ],
        "training": [("training: arguments of the trainer", training_keys())],
    }
    if section is not None and section not in blocks:
        raise ValueError(f"unknown section {section!r}; the sections of a recipe are {', '.join(known_keys())}")
    chosen = blocks.values() if section is None else [blocks[section]]
    return "\n".join(f"{title}\n{_block(keys.values())}" for group in chosen for title, keys in group)
