"""Read and fill Fluent files (.ftl) with the parser of `fluent.syntax`, which gives the span of each message."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from hf_multisource.data.catalogue_entries import (
    DONE,
    FUNCTION,
    NUMBER,
    ORDINAL,
    REVIEW,
    Catalogue,
    Changes,
    Edit,
    Entry,
    Identity,
    by_key,
    decode,
    insert_blocks,
    line_numbers,
    newline_of,
    note_line,
    review_state,
)
from hf_multisource.data.plural_forms import CATEGORIES, OTHER
from hf_multisource.messages import install_hint

INDENT = " " * 4
BEGINNING = re.compile(r"^(-?[A-Za-z][\w-]*) *=", re.ASCII | re.MULTILINE)  # key of a message or term


def read_fluent(path: str, content: bytes) -> Catalogue:
    """Read the messages, terms and attributes of a Fluent file.

    A pattern that consists of one selector gives an entry for each variant. A pattern is listed as unhandled if it has
    a selector and other text, or nested selectors.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.

    Returns:
        The catalogue.

    Raises:
        ValueError: If the file is not UTF-8, or placeables are nested too deeply.
    """
    text = decode(path, content)
    entries, unhandled, damaged = [], [], set()
    line = line_numbers(text)
    for node in _parse(path, text).body:
        kind = type(node).__name__
        if kind == "Junk":
            reason = node.annotations[0].message if node.annotations else "unknown syntax"
            unhandled.append(f"line {line(node.span.start)}: not Fluent: {reason}")
            damaged |= {*BEGINNING.findall(text[node.span.start : node.span.end])}
        elif kind in ("Message", "Term"):
            comment = node.comment.content if node.comment else ""
            for name, pattern in _patterns(node).items():
                if (texts := _variants(pattern, text)) is None:
                    unhandled.append(f"{_key(node)}{name}: a selector inside a text or another selector")
                    continue
                state, select = review_state(comment, name), _select(pattern)
                kind, default = (_kind(select.selector), f"[{_default(select)}]") if select else ("", "")
                entries += [
                    Entry(_key(node), name + part, one, state, comment, selector=kind, default=part == default != "")
                    for part, one in texts.items()
                ]
    return Catalogue(path, content, tuple(entries), tuple(unhandled), damaged=frozenset(damaged))


def fill_fluent(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    """Add messages and attributes to a Fluent file, each with a comment that asks for a review.

    A message is added only as a whole, with all texts and selectors that it has in the reference. A term needs no
    attributes, because they are private to a language.

    Args:
        catalogue: The file.
        texts: The new texts, with placeables in the syntax of Fluent.
        reference: The same file in a source language, which determines the order and the selectors.
        notes: Key -> a line that becomes a comment on the message.

    Returns:
        The changes.
    """
    text = catalogue.text
    nodes = _messages(_body(catalogue))
    body = _body(reference) if reference else []
    models = _messages(body)
    newline, refused, edits = newline_of(text), dict[Identity, str](), list[Edit]()
    blocks: dict[str, str] = {}
    for key, parts in by_key(texts).items():
        given = {part: texts[key, part] for part in parts}
        if key in nodes:
            new, reasons = _add_attributes(nodes[key], given, newline, notes.get(key))
            edits += new
            refused |= {(key, part): reason for part, reason in reasons.items()}
        else:
            model = models.get(key)
            lines = _new_message(key, given, model, reference.text if reference else "")
            if isinstance(lines, list):
                blocks[key] = f"# {REVIEW}{newline}{note_line('#', notes.get(key), newline)}{newline.join(lines)}"
            else:
                refused |= {(key, part): lines for part in parts}
    spans = {key: (node.span.start, _end(node, text)) for key, node in nodes.items()}
    return Changes((*edits, *insert_blocks(text, blocks, spans, [*models], sections=_sections(body))), refused)


def _parse(path: str, text: str) -> Any:
    """Return the syntax tree of a file."""
    try:
        from fluent.syntax import FluentParser
    except ImportError as error:
        raise ImportError(
            f"{path}: reading .ftl needs the package fluent.syntax: {install_hint('localization')}"
        ) from error
    try:
        return FluentParser(with_spans=True).parse(f"\n{text[1:]}" if text.startswith("\ufeff") else text)
    except RecursionError as error:
        raise ValueError(f"{path}: placeables are nested too deeply") from error


def _body(catalogue: Catalogue) -> list[Any]:
    """Return the messages, terms and comments of a file."""
    return list(_parse(catalogue.path, catalogue.text).body)


def _sections(body: Iterable[Any]) -> dict[str, int]:
    """Return the section of each key; a comment that is not attached to a message begins a section."""
    found: dict[str, int] = {}
    section = 0
    for node in body:
        if type(node).__name__ in ("Message", "Term"):
            found.setdefault(_key(node), section)
        elif type(node).__name__.endswith("Comment"):
            section += 1
    return found


def _messages(body: Iterable[Any]) -> dict[str, Any]:
    """Return the first message or term with each key."""
    found: dict[str, Any] = {}
    for node in body:
        if type(node).__name__ in ("Message", "Term"):
            found.setdefault(_key(node), node)
    return found


def _key(node: Any) -> str:
    return f"-{node.id.name}" if type(node).__name__ == "Term" else str(node.id.name)


def _end(node: Any, text: str) -> int:
    """Return the index after the last character of a message that is not white space."""
    return int(node.span.start) + len(text[node.span.start : node.span.end].rstrip())


def _patterns(node: Any) -> dict[str, Any]:
    """Return the patterns of a message by part: the value and the attributes."""
    found = {f".{attribute.id.name}": attribute.value for attribute in node.attributes}
    return found if node.value is None else {"": node.value, **found}


def _select(pattern: Any) -> Any:
    """Return the selector of a pattern that consists of one selector; otherwise None."""
    if len(pattern.elements) == 1 and type(pattern.elements[0]).__name__ == "Placeable":
        expression = pattern.elements[0].expression
        return expression if type(expression).__name__ == "SelectExpression" else None
    return None


def _kind(selector: Any) -> str:
    """Return the kind of a selector: `NUMBER`, `ORDINAL` or `FUNCTION`. A variable may be a number."""
    if type(selector).__name__ == "VariableReference":
        return NUMBER
    if type(selector).__name__ != "FunctionReference" or selector.id.name != "NUMBER":
        return FUNCTION
    options = {one.name.name: one.value.value for one in selector.arguments.named}
    return ORDINAL if options.get("type") == "ordinal" else NUMBER


def _default(select: Any) -> str:
    """Return the name of the default variant."""
    return next(_variant_name(variant) for variant in select.variants if variant.default)


def _variants(pattern: Any, text: str) -> dict[str, str] | None:
    """Return the texts of a pattern by variant ("" without a selector); None if selectors are mixed with other text."""
    if not _has_select(pattern):
        return {"": _written(pattern, text)}
    if (select := _select(pattern)) is None or any(_has_select(variant.value) for variant in select.variants):
        return None
    return {f"[{_variant_name(variant)}]": _written(variant.value, text) for variant in select.variants}


def _variant_name(variant: Any) -> str:
    return str(variant.key.value if hasattr(variant.key, "value") else variant.key.name)


def _has_select(pattern: Any) -> bool:
    for element in pattern.elements:
        while type(element).__name__ == "Placeable":
            element = element.expression
        if type(element).__name__ == "SelectExpression":
            return True
    return False


def _written(pattern: Any, text: str) -> str:
    """Return the text of a pattern without a selector, with its placeables as they are written in the file."""
    pieces = []
    for element in pattern.elements:
        if type(element).__name__ == "TextElement":
            pieces.append(element.value)
        else:
            pieces.append(" ".join(text[element.span.start : element.span.end].split("\n")))
    return "".join(pieces)


def _assignment(left: str, text: str, indent: str) -> list[str]:
    """Return the lines of `left text`; a text of several lines begins on the next line."""
    if "\n" not in text:
        return [f"{left} {text}"]
    return [left, *(f"{indent}{INDENT}{line}" if line else "" for line in text.split("\n"))]


def _add_attributes(
    node: Any, given: Mapping[str, str], newline: str, remark: str | None
) -> tuple[list[Edit], dict[str, str]]:
    """Return edits that add attributes to an existing message, and the reasons for refused parts."""
    there = _patterns(node)
    refused, lines, notes = dict[str, str](), list[str](), list[str]()
    for part, text in given.items():
        name = part.partition("[")[0]
        if name in there:
            refused[part] = DONE
        elif part != name or not name:
            refused[part] = "only attributes without variants can be added to a message that is in the file"
        else:
            lines += _assignment(f"{INDENT}{part} =", text, INDENT)
            notes.append(f"# {REVIEW}: {part}")
    if not lines:
        return [], refused
    last = max(pattern.span.end for pattern in there.values())
    note = newline.join([*notes, *([f"# {remark}"] if remark else [])])
    if node.comment:
        place = node.comment.span.end
        comment = (place, place, newline + note)
    else:
        comment = (node.span.start, node.span.start, note + newline)
    return [comment, (last, last, newline + newline.join(lines))], refused


def _in_order(variants: Collection[str], names: Sequence[str]) -> list[str]:
    """Sort variants as in the reference; if it lacks some, sort plural categories as in CLDR, after the others."""
    if set(variants) <= set(names):
        return [one for one in names if one in variants]
    places = {f"[{category}]": place for place, category in enumerate(CATEGORIES, 1)}
    return sorted(variants, key=lambda one: places.get(one, 0))


def _new_message(key: str, given: Mapping[str, str], model: Any, source: str) -> list[str] | str:
    """Return the lines of a new message without its comment, or the reason why it cannot be written.

    Args:
        key: Key of the message.
        given: Part -> text.
        model: The message of the reference; None if the reference lacks it.
        source: Text of the reference.
    """
    groups: dict[str, dict[str, str]] = {}  # attribute ("" for the value) -> variant -> text
    for part, text in given.items():
        name, bracket, rest = part.partition("[")
        groups.setdefault(name, {})[bracket + rest] = text
    patterns = _patterns(model) if model else {}
    needed = [name for name in patterns if not (name and key.startswith("-"))]  # each language has its own for terms
    if missing := [name or "the value" for name in needed if name not in groups]:
        return f"{', '.join(missing)} of the message would be missing"
    if not model and any(set(variants) != {""} for variants in groups.values()):
        return "variants need a reference file with the selector"
    lines = [] if "" in groups else [f"{key} ="]
    for name in sorted(groups, key=lambda name: (bool(name), [*patterns].index(name) if name in patterns else 0)):
        left, indent = (f"{INDENT}{name} =", INDENT) if name else (f"{key} =", "")
        if set(groups[name]) == {""}:
            lines += _assignment(left, groups[name][""], indent)
            continue
        select = _select(patterns[name]) if name in patterns else None
        if select is None or "" in groups[name]:
            return f"{name or 'the value'} has no variants in the reference"
        default = _default(select)
        if default in CATEGORIES and f"[{default}]" not in groups[name] and f"[{OTHER}]" in groups[name]:
            default = OTHER  # the reference's default is a category that the language of the file lacks
        names = [f"[{_variant_name(variant)}]" for variant in select.variants]
        if f"[{default}]" not in groups[name]:
            return f"the default variant {name}[{default}] would be missing"
        selector = source[select.selector.span.start : select.selector.span.end]
        lines += [left, f"{indent}{INDENT}{{ {selector} ->"]
        for variant in _in_order(groups[name], names):
            mark = "*" if variant == f"[{default}]" else " "
            lines += _assignment(
                f"{indent}{INDENT}   {mark}{variant}", groups[name][variant], f"{indent}{INDENT}{INDENT}"
            )
        lines.append(f"{indent}{INDENT}}}")
    return lines
