"""Read and fill Android's strings.xml."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hf_multisource.data.catalogue_entries import (
    DONE,
    REVIEW,
    Catalogue,
    Changes,
    Entry,
    Identity,
    by_key,
    insert_blocks,
    newline_of,
    review_state,
)
from hf_multisource.data.plural_forms import CATEGORIES
from hf_multisource.data.xml_places import Element, escape, indent_of, parse_xml

QUANTITIES = [f"[{category}]" for category in CATEGORIES]
KINDS = ("string", "plurals", "string-array")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))|([ \t\r\n]+)|(\")", re.DOTALL)
LETTERS = {"n": "\n", "t": "\t"}
INDENT = " " * 4


def read_android(path: str, content: bytes) -> Catalogue:
    """Read strings, plurals and string arrays that are for translation.

    Args:
        path: Its name in messages.
        content: Its bytes.

    Returns:
        The catalogue. Texts with elements in them, such as `<b>`, stay as they are written.

    Raises:
        ValueError: If the file is no XML that `parse_xml` reads, or its root is not `resources`.
    """
    root, text = _root(path, content)
    entries, unhandled = [], []
    for element in root.children:
        if element.name not in KINDS or element.get("translatable") == "false":
            continue
        if not (key := element.get("name")):
            unhandled.append(f"<{element.tag}> without a name")
            continue
        for part, item in _texts(element).items():
            inner, markup = item.content(text)
            one = inner if markup else _unescaped(inner)
            if one is None:
                unhandled.append(f"{key}{part}: \\u gives half a character")
            else:
                state = review_state(element.comment)
                entries.append(Entry(key, part, one, state, element.comment, markup=markup))
    return Catalogue(path, content, tuple(entries), tuple(unhandled))


def fill_android(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    """Add strings, plurals and arrays, each whole and under a comment that asks for a review.

    Args:
        catalogue: The file.
        texts: The new texts; those that have elements in the reference are XML.
        reference: The same file in a source language, which gives order, kinds and which texts are XML.
        notes: Key -> a line that becomes a comment on the message.

    Returns:
        The changes.
    """
    root, text = _root(catalogue.path, catalogue.content)
    present = {element.get("name"): element for element in root.children}
    entries = {entry.identity: entry for entry in reference.entries} if reference else {}
    parts_of = by_key(entries)
    kinds = {}
    if reference:
        kinds = {one.get("name"): one.name for one in _root(reference.path, reference.content)[0].children}
    newline = newline_of(text)
    first = next((indent_of(text, child.start).lstrip("\r\n") for child in root.children), "") or INDENT
    refused, blocks = dict[Identity, str](), dict[str, str]()
    for key, parts in by_key(texts).items():
        kind = kinds.get(key, "string")
        missing = [part for part in parts_of.get(key, ()) if part not in parts]
        wrong = [part for part in parts if bool(part) != (kind != "string")]
        reason = DONE if key in present else ""
        if not reason and missing and (kind == "string-array" or "[other]" in missing):
            reason = f"{', '.join(missing)} would be missing"
        if not reason and wrong:
            reason = f"{wrong[0] or 'a text without part'} does not fit <{kind}>"
        if reason:
            refused |= {(key, part): reason for part in parts}
            continue
        name = escape(key, {'"': "&quot;"})
        lines = [f"{first}<!-- {REVIEW} -->", *([f"{first}<!-- {notes[key]} -->"] if key in notes else [])]
        if kind == "string":
            markup = ("" in parts_of.get(key, ())) and entries[key, ""].markup
            lines.append(f'{first}<string name="{name}">{_written(texts[key, ""], markup)}</string>')
        else:
            lines.append(f'{first}<{kind} name="{name}">')
            model = parts_of.get(key, [])
            places = model if set(parts) <= set(model) else QUANTITIES
            for part in sorted(parts, key=lambda one: places.index(one) if one in places else len(places)):
                markup = part in model and entries[key, part].markup
                attribute = f' quantity="{part[1:-1]}"' if kind == "plurals" else ""
                lines.append(f"{first}{first}<item{attribute}>{_written(texts[key, part], markup)}</item>")
            lines.append(f"{first}</{kind}>")
        blocks[key] = newline.join(lines)
    spans = {}
    for key, element in present.items():
        if key:
            begin = element.start - len(indent_of(text, element.start).lstrip("\r\n"))
            spans[key] = (begin, element.end)
    order = list(dict.fromkeys(entry.key for entry in entries.values()))
    if root.inner == root.end and blocks:  # `<resources/>`
        return Changes((), dict.fromkeys(texts, "<resources/> is empty; write <resources></resources>"))
    end = root.inner_end - len(indent_of(text, root.inner_end).lstrip("\r\n"))
    return Changes(tuple(insert_blocks(text, blocks, spans, order, end)), refused)


def _root(path: str, content: bytes) -> tuple[Element, str]:
    root, text = parse_xml(path, content)
    if root.name != "resources":
        raise ValueError(f"{path}: the root of strings.xml must be <resources>; it is <{root.tag[:40]}>")
    return root, text


def _texts(element: Element) -> dict[str, Element]:
    """Part -> the element with the text."""
    if element.name == "string":
        return {"": element}
    items = [child for child in element.children if child.name == "item"]
    if element.name == "plurals":
        return {f"[{item.get('quantity')}]": item for item in items}
    return {f"[{i}]": item for i, item in enumerate(items)}


def _unescaped(text: str) -> str | None:
    """A text without the escapes of Android: outside quotation marks, white space is one blank; None: not Unicode."""
    quoted = False
    pieces = []
    end = 0
    for match in ESCAPE.finditer(text.strip(" \t\r\n")):
        text = match.string
        code, letter, blanks, mark = match.groups()
        pieces.append(text[end : match.start()])
        end = match.end()
        if code:
            pieces.append(chr(int(code, 16)))
        elif letter:
            pieces.append(LETTERS.get(letter, letter))
        elif blanks:
            pieces.append(blanks if quoted else " ")
        elif mark:
            quoted = not quoted
    found = "".join([*pieces, text.strip(" \t\r\n")[end:]])
    try:
        return found.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return None


def _written(text: str, markup: bool) -> str:
    """A text with the escapes of Android and XML."""
    if markup:
        return text
    names = {"\\": "\\\\", '"': '\\"', "'": "\\'", "\n": "\\n", "\t": "\\t"}
    found = "".join(names.get(letter, letter) for letter in text)
    if found[:1] in ("@", "?"):
        found = f"\\{found}"
    if found != " ".join(found.split(" ")) or found.strip() != found or "  " in found:
        found = f'"{found}"'
    return escape(found)
