"""Read recipes and command lines: YAML in which `no` is text, and a key may be given only once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


class Loader(yaml.SafeLoader):
    """Loader with the scalars of YAML 1.2: `no` is text (a language code), 1e-4 a number, 010 ten, a date text."""


REPLACED = (":bool", ":float", ":int", ":timestamp")
Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(REPLACED)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile("^[-+]?[0-9]+$"), list("-+0123456789"))
Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$", re.IGNORECASE), list("tTfF"))
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?\d+[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _check_keys(node: yaml.Node | None, place: str = "", above: tuple[yaml.Node, ...] = ()) -> None:
    """Refuse a key that a mapping holds twice, of which YAML would keep the last, and an alias within itself."""
    if node is None:
        return
    if any(node is other for other in above):
        raise ValueError(f"{place.removesuffix('.')} contains itself")
    above = (*above, node)
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = f"{place}{key.value}", key.start_mark.line + 1
            if name in lines:
                raise ValueError(f"{name} is given twice, in lines {lines[name]} and {line}; give it once")
            lines[name] = line
            _check_keys(value, f"{name}.", above)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            _check_keys(item, f"{place.removesuffix('.')}[{i}].", above)


def parse_yaml(text: str) -> Any:
    """Parse YAML.

    Args:
        text: The YAML.

    Returns:
        What it holds; None: nothing.

    Raises:
        ValueError: If it is not YAML, or a key is given twice.
    """
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        _check_keys(node)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Args:
        path: The file.

    Returns:
        What it holds; None: nothing.

    Raises:
        ValueError: If it is not UTF-8 text or not YAML, or a key is given twice; the message names the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from error
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Read `--key value`, `--key=value` and `--key value value ...` (a list).

    Args:
        arguments: What follows the recipe on the command line.

    Returns:
        Values by key; each value is read as YAML.

    Raises:
        ValueError: If a value stands without a key, a key without a value or twice, or a value is not YAML.
    """
    groups: dict[str, list[str]] = {}
    key = None
    for argument in arguments:
        if argument.startswith("--"):
            key, given, value = argument[2:].partition("=")
            if key in groups:
                raise ValueError(f"--{key} is given twice; give it once (a list is written --{key} one two)")
            groups[key] = [value] if given else []
        elif key is None:
            raise ValueError(f"{argument!r} does not follow an option; write --key value")
        else:
            groups[key].append(argument)
    parsed: dict[str, Any] = {}
    for key, values in groups.items():
        if not values:
            raise ValueError(f"--{key} needs a value")
        try:
            read = [parse_yaml(value) for value in values]
        except ValueError as error:
            raise ValueError(f"--{key} {' '.join(values)}: {error}") from error
        parsed[key] = read if len(read) > 1 else read[0]
    return parsed
