"""Read recipes and command lines: YAML in which `no` is text, and a key may be given only once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_multisource.data.privacy import mask_secrets, refuse_secret_key
from hf_multisource.regular_files import read_regular

# Bounds of a recipe. The shipped recipes have about 2 kB, 60 values and at most 4 levels.
MAX_BYTES = 2**18
MAX_VALUES = 10_000  # maximum number of values; an alias counts as all values that it stands for
MAX_DEPTH = 32
MAX_DIGITS = 30  # maximum number of digits of an integer; 64-bit integers have up to 20
TAGS = {"tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"}  # tags of lists and mappings
TEXT = "tag:yaml.org,2002:str"


class Loader(yaml.SafeLoader):
    """YAML loader with the scalars of YAML 1.2: `no` is text (a language code), 1e-4 a number, 010 ten, a date text.

    Args:
        text: The YAML.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.values = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a value and its children; raise an error as soon as there are too many values or levels."""
        line = self.peek_event().start_mark.line + 1
        self.values += 1
        self.depth += 1
        check_bounds(line, self.values, self.depth)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def check_bounds(line: int, values: int, depth: int) -> None:
    """Raise an error if YAML has too many values or levels.

    Args:
        line: Line number, for the message.
        values: Number of values so far.
        depth: Nesting level of the current value.

    Raises:
        ValueError: If `MAX_VALUES` or `MAX_DEPTH` is exceeded.
    """
    if values > MAX_VALUES:
        raise ValueError(f"line {line}: more than {MAX_VALUES:,} values, counting those that aliases stand for")
    if depth > MAX_DEPTH:
        raise ValueError(f"line {line}: more than {MAX_DEPTH} levels of lists and mappings")


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


class _Check:
    """Check of a YAML tree that rejects duplicate keys (of which YAML keeps the last) and exceeded bounds.

    Args:
        loader: The loader of the YAML text.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.values = 0

    def __call__(self, node: yaml.Node, place: str = "", above: tuple[yaml.Node, ...] = ()) -> None:
        """Check a value and its children.

        Args:
            node: The value.
            place: Key of the value, as it is written in messages.
            above: The lists and mappings that contain the value.

        Raises:
            ValueError: If a check fails; the message names the key or the line.
        """
        line = node.start_mark.line + 1
        self.values += 1
        if any(node is other for other in above):
            raise ValueError(f"{place} contains itself")
        above = (*above, node)
        check_bounds(line, self.values, len(above))
        if isinstance(node, yaml.ScalarNode):
            self.check_scalar(node, line)
        elif node.tag not in TAGS:
            raise ValueError(f"line {line}: unknown tag {node.tag}")
        elif isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self(item, f"{place}[{i}]", above)
        elif isinstance(node, yaml.MappingNode):
            self.check_mapping(node, place, above)

    def check_scalar(self, node: yaml.ScalarNode, line: int) -> None:
        """Check that a scalar matches its tag, and that an integer does not have too many digits."""
        plain = self.loader.resolve(yaml.ScalarNode, node.value, (True, False))
        if node.tag not in (plain, TEXT):
            raise ValueError(f"line {line}: {node.value[:40]!r} is not what its tag {node.tag} says")
        if node.tag.endswith(":int") and len(node.value) > MAX_DIGITS:
            raise ValueError(f"line {line}: a whole number of {len(node.value)} digits; at most {MAX_DIGITS} are read")

    def check_mapping(self, node: yaml.MappingNode, place: str, above: tuple[yaml.Node, ...]) -> None:
        """Check that every key is a unique text or number, and check the values."""
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"line {line}: a key must be a text")
            self.check_scalar(key, line)
            name = f"{place}.{key.value[:100]}" if place else key.value[:100]
            if key.value in lines:
                raise ValueError(f"{name} is given twice, in lines {lines[key.value]} and {line}; give it once")
            lines[key.value] = line
            self(value, name, above)


def parse_yaml(text: str) -> Any:
    """Parse YAML.

    Args:
        text: The YAML.

    Returns:
        The parsed value; None if the YAML is empty.

    Raises:
        ValueError: If the text is not YAML, a key is given twice, or a bound of this module is exceeded.
    """
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _Check(loader)(node)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        if mask_secrets(text) != text:  # the excerpt in the error message may begin within a secret
            for mark in (getattr(error, "context_mark", None), getattr(error, "problem_mark", None)):
                if mark is not None:
                    mark.buffer = None
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Args:
        path: The file.

    Returns:
        The parsed value; None if the YAML is empty.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
        ValueError: If the file is larger than `MAX_BYTES`, is not UTF-8 text or not YAML, a key is given twice, or a
            bound of this module is exceeded; the message names the file.
    """
    content = read_regular(path, MAX_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from error
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse command-line overrides: `--key value`, `--key=value` and `--key value value ...` (a list).

    Args:
        arguments: The words after the recipe on the command line.

    Returns:
        Values by key; each value is parsed as YAML.

    Raises:
        ValueError: If a value has no key, a key has no value or is given twice, a key is of a secret, or a value is not
            YAML.
    """
    groups: dict[str, list[str]] = {}
    key = None
    for argument in arguments:
        if argument.startswith("--"):
            key, given, value = argument[2:].partition("=")
            refuse_secret_key(key)
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
            raise ValueError(f"--{key} {' '.join(' '.join(values).split())[:100]}: {error}") from error
        parsed[key] = read if len(read) > 1 else read[0]
    return parsed
