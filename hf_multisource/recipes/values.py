"""Check the types of a recipe's values, and describe in words which values a key allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# Type -> description of one value and of several values.
WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false (or yes, no, on, off)", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    dict: ("a mapping", "mappings"),
    list: ("a list", "lists"),
    NoneType: ("null", "null"),
    Any: ("anything", "anything"),
}
# Attribute of a pydantic constraint -> description.
BOUNDS = {"ge": "{} or more", "gt": "above {}", "le": "at most {}", "lt": "below {}"}


def one_of(values: Sequence[str]) -> Any:
    """Return the type of a key that holds one of several texts.

    Args:
        values: The texts.

    Returns:
        The type.
    """
    return Literal[tuple(values)]


def plain(annotation: Any) -> Any:
    """Return a type with every enumeration replaced by the texts that name its members.

    Args:
        annotation: A type. `SomeEnum | str`, which occurs in Transformers, becomes the names of the members only.
            `Annotated[str, one_of(texts)]`, which type checkers treat as `str`, becomes `one_of(texts)`.

    Returns:
        The type of the same values in the notation of a recipe.
    """
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return one_of([str(member.value) for member in annotation])
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return parts[1] if get_origin(parts[1]) is Literal else Annotated[(plain(parts[0]), *parts[1:])]
    if origin in (Union, UnionType):
        if any(isinstance(part, type) and issubclass(part, Enum) for part in parts):
            parts = tuple(part for part in parts if part is not str)
        return Union[tuple(plain(part) for part in parts)]  # noqa: UP007
    if origin is list:
        return list[plain(parts[0])]  # type: ignore[misc]
    return annotation


def _leaves(annotation: Any) -> list[Any]:
    """Return the members of a union, or the type itself if it is no union, without `Annotated` metadata."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _leaves(parts[0])
    if origin in (Union, UnionType):
        return [leaf for part in parts for leaf in _leaves(part)]
    return [annotation]


def describe(annotation: Any, *, several: bool = False) -> str:
    """Return the values that a type allows, in words.

    Args:
        annotation: The type, as `plain` returns it.
        several: Whether to name several such values, as the items of a list.

    Returns:
        Such as "a whole number, 2 or more, or null".
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        (field,) = (part for part in parts[1:] if isinstance(part, FieldInfo))
        if field.description:
            return field.description
        limits = [
            wording.format(getattr(limit, name))
            for limit in field.metadata
            for name, wording in BOUNDS.items()
            if hasattr(limit, name)
        ]
        return ", ".join([describe(parts[0], several=several), " and ".join(limits)])
    if origin in (Union, UnionType):
        # `float | int` is described as one type, and null comes last.
        members = [part for part in parts if part is not int or float not in parts]
        members.sort(key=lambda part: part is NoneType)
        texts = [describe(part, several=several) for part in members]
        return (", or " if any("," in text for text in texts) else " or ").join(texts)
    if origin is Literal:
        texts = [part if isinstance(part, str) else show(part) for part in parts]
        return texts[0] if len(texts) == 1 else f"one of {', '.join(texts)}"
    if origin is list:
        return f"{WORDS[list][several]} of {describe(parts[0], several=True)}"
    if origin is dict and Any not in parts:
        return f"{WORDS[dict][several]} of {describe(parts[0], several=True)} to {describe(parts[1], several=True)}"
    name = origin or annotation
    return WORDS[name][several] if name in WORDS else f"a {name.__name__}"


def show(value: object) -> str:
    """Format a value in the notation of a recipe.

    Args:
        value: The value.

    Returns:
        The formatted value; texts are in quotes.
    """
    named = {None: "null", True: "true", False: "false"}
    return named[value] if value is None or isinstance(value, bool) else repr(value)


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return number if math.isfinite(number := float(text)) else None
    return None


def _hint(leaves: Sequence[Any], value: object) -> str:
    """Return a hint on how to write a value of the wrong type; "" if there is no such hint."""
    if isinstance(value, str) and {int, float} & set(leaves):
        if _number(value) is not None:
            return " (write a number without quotes)"
        if _number(value.replace(",", ".", 1)) is not None:
            return f" (write the decimal point as a point: {value.replace(',', '.', 1)})"
    if str in leaves and isinstance(value, int | float):
        return f""" (write text that looks like a number in quotes: "'{show(value)}'")"""
    return ""


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    """Return the validator of a type; cached, because building one takes longer than a check."""
    return TypeAdapter(annotation, config=STRICT)


def check_value(key: str, annotation: Any, value: Any) -> Any:
    """Check that a value has the type of its key, and convert common spellings.

    Three spellings are converted: `yes`, `no`, `on` and `off` where the key is a boolean, a number such as 1e4 where it
    is a whole number, and a single value where it is a list. A language code `no` stays text where the key is text.

    Args:
        key: The key, as messages name it, such as "data.max_length".
        annotation: Type of the key.
        value: The value that the recipe or the command line gives.

    Returns:
        The value.

    Raises:
        ValueError: If the value has another type; the message names the key, the value and what is allowed.
    """
    annotation = plain(annotation)
    leaves = _leaves(annotation)
    kinds = [get_origin(leaf) or leaf for leaf in leaves]
    given = value
    if isinstance(value, str) and bool in kinds and str not in kinds and Literal not in kinds:
        value = TRUTH.get(value.lower(), value)
    elif isinstance(value, float) and int in kinds and float not in kinds and value.is_integer():
        value = int(value)
    elif isinstance(value, str) and list in kinds and str not in kinds and Literal not in kinds:
        value = [value]
    try:
        _adapter(annotation).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{key} must be {describe(annotation)}; got {show(given)}{_hint(leaves, given)}") from error
    return value
