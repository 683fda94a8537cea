"""Read and fill Android's strings.xml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

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

ROOT = "resources"
QUANTITIES = [f"[{category}]" for category in CATEGORIES]
KINDS = ("string", "plurals", "string-array")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))|([ \t\r\n]+)|(\")", re.DOTALL)
# `XML_ESCAPE` is `ESCAPE` for texts with XML elements. Tags, comments and CDATA sections stay unchanged, and quotation
# marks may be character references, which Android reads like the characters.
TAG = r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>"
XML_ESCAPE = re.compile(
    rf"(?P<tag>{TAG})|\\(?:u([0-9a-fA-F]{{4}})|(&(?:quot|apos|#34|#39);|.))|([ \t\r\n]+)|(\"|&quot;|&#34;)", re.DOTALL
)
XML_SPECIAL = re.compile(rf"(?P<tag>{TAG})|&(?:quot|apos|#34|#39);|[\\\"'\n\t]", re.DOTALL)
SPECIAL = re.compile(r"[\\\"'\n\t]")
QUOTED, DECLARATION = re.compile(r"\"[^\"]*\"|'[^']*'"), re.compile(r"\sxmlns:([\w.-]+)\s*=")
PREFIX = re.compile(r"(?:</?|\s)([A-Za-z_][\w.-]*):[\w.-]+")
KEPT = ("formatted", "product")  # attributes of a string that are copied, because the resource compiler reads them
QUOTE = {'"': "&quot;"}
LETTERS = {"n": "\n", "t": "\t"}
INDENT = " " * 4


def read_android(path: str, content: bytes) -> Catalogue:
    """Read the translatable strings, plurals and string arrays of a strings.xml file.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.

    Returns:
        The catalogue. Android's escapes are decoded in all texts; texts with elements, such as `<b>`, stay XML.

    Raises:
        ValueError: If `parse_xml` cannot read the file, or its root is not `resources`.
    """
    root, text = parse_xml(path, content, ROOT)
    entries, unhandled = [], []
    for element in root.children:
        if element.name not in KINDS or element.get("translatable") == "false":
            continue
        if not (key := element.get("name")):
            unhandled.append(f"<{element.tag}> without a name")
            continue
        for part, item in _texts(element).items():
            inner, markup = item.content(text)
            one = _unescaped(inner, markup)
            if one is None:
                unhandled.append(f"{key}{part}: \\u gives half a character")
            else:
                state = review_state(element.comment)
                entries.append(Entry(key, part, one, state, element.comment, markup=markup))
    return Catalogue(path, content, tuple(entries), tuple(unhandled))


def fill_android(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    """Add complete strings, plurals and arrays, each with a comment that asks for a review.

    Args:
        catalogue: The file.
        texts: The new texts. A text is XML if the reference has elements in the same text.
        reference: The same file in a source language. It determines the order, the element names and which texts are
            XML.
        notes: Key -> a line that becomes a comment on the message.

    Returns:
        The changes.
    """
    root, text = parse_xml(catalogue.path, catalogue.content, ROOT)
    present = {element.get("name"): element for element in root.children}
    entries = {entry.identity: entry for entry in reference.entries} if reference else {}
    parts_of = by_key(entries)
    models: dict[str, list[Element]] = {}  # name -> elements of the reference with this name
    declared = _declared(root)
    if reference:
        other = parse_xml(reference.path, reference.content, ROOT)[0]
        for one in other.children:
            models.setdefault(one.get("name"), []).append(one)
        declarable = {name: uri for name, uri in _declared(other).items() if name not in declared}
    else:
        declarable = {}
    newline = newline_of(text)
    first = next((indent_of(text, child.start).lstrip("\r\n") for child in root.children), "") or INDENT
    refused, blocks = dict[Identity, str](), dict[str, str]()
    for key, parts in by_key(texts).items():
        found = models.get(key, [])
        kind = found[0].name if found else "string"
        missing = [part for part in parts_of.get(key, ()) if part not in parts]
        wrong = [part for part in parts if bool(part) != (kind != "string")]
        reason = DONE if key in present else ""
        if not reason and missing and (kind == "string-array" or "[other]" in missing):
            reason = f"{', '.join(missing)} would be missing"
        if not reason and wrong:
            reason = f"{wrong[0] or 'a text without part'} does not fit <{kind}>"
        if not reason and len(found) > 1:
            reason = "the reference has this name several times, for several products"
        markups = {part: (key, part) in entries and entries[key, part].markup for part in parts}
        prefixes = _prefixes(texts[key, part] for part in parts if markups[part]) - {*declared}
        if not reason and (unknown := sorted(prefixes - {*declarable})):
            reason = f"no file declares the prefix {', '.join(unknown)}"
        if reason:
            refused |= {(key, part): reason for part in parts}
            continue
        given = {"name": key} | {name: found[0].get(name) for name in KEPT if found and found[0].get(name)}
        given |= {f"xmlns:{prefix}": declarable[prefix] for prefix in sorted(prefixes)}
        start = kind + "".join(f' {name}="{escape(value, QUOTE)}"' for name, value in given.items())
        lines = [f"{first}<!-- {REVIEW} -->", *([f"{first}<!-- {notes[key]} -->"] if key in notes else [])]
        if kind == "string":
            lines.append(f"{first}<{start}>{_written(texts[key, ''], markups[''])}</string>")
        else:
            lines.append(f"{first}<{start}>")
            model = parts_of.get(key, [])
            places = model if set(parts) <= set(model) else QUANTITIES
            for part in sorted(parts, key=lambda one: places.index(one) if one in places else len(places)):
                attribute = f' quantity="{part[1:-1]}"' if kind == "plurals" else ""
                lines.append(f"{first}{first}<item{attribute}>{_written(texts[key, part], markups[part])}</item>")
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


def _texts(element: Element) -> dict[str, Element]:
    """Return a map from part to the element with the text."""
    if element.name == "string":
        return {"": element}
    items = [child for child in element.children if child.name == "item"]
    if element.name == "plurals":
        return {f"[{item.get('quantity')}]": item for item in items}
    return {f"[{i}]": item for i, item in enumerate(items)}


def _declared(root: Element) -> dict[str, str]:
    """Return the namespaces by prefix that are declared for the whole file."""
    found = {name.removeprefix("xmlns:"): uri for name, uri in root.attributes.items() if name.startswith("xmlns:")}
    return {**found, "xml": "", "xmlns": ""}


def _prefixes(texts: Iterable[str]) -> set[str]:
    """Return the namespace prefixes that texts use without declaring them."""
    tags = [match[0] for text in texts for match in re.finditer(TAG, text, re.DOTALL) if match[0][1] != "!"]
    found = {prefix for tag in tags for prefix in PREFIX.findall(QUOTED.sub("", tag))}
    return found - {name for tag in tags for name in DECLARATION.findall(tag)}


def _unescaped(text: str, markup: bool) -> str | None:
    """Decode Android's escapes, and collapse white space outside quotation marks; None if the result is not Unicode."""
    quoted = False
    pieces = []
    end = 0
    text = text.strip(" \t\r\n")
    for match in (XML_ESCAPE if markup else ESCAPE).finditer(text):
        code, letter, blanks, mark = match.groups()[-4:]
        pieces.append(text[end : match.start()])
        end = match.end()
        if code:
            one = chr(int(code, 16))
            pieces.append(escape(one) if markup else one)
        elif letter:
            pieces.append(LETTERS.get(letter, letter))
        elif blanks:
            pieces.append(blanks if quoted else " ")
        elif mark:
            quoted = not quoted
        else:
            pieces.append(match[0])  # a tag
    found = "".join([*pieces, text[end:]])
    try:
        return found.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return None


def _written(text: str, markup: bool) -> str:
    """Return a text with the escapes of Android and XML."""
    found = (XML_SPECIAL if markup else SPECIAL).sub(_escaped, text)
    if found[:1] in ("@", "?"):
        found = f"\\{found}"
    pieces = re.sub(TAG, "<>", found, flags=re.DOTALL) if markup else found  # ignore the blanks in tags
    if pieces.strip() != pieces or "  " in pieces:
        found = f'"{found}"'
    return found if markup else escape(found)


def _escaped(match: re.Match[str]) -> str:
    """Return the escape of a special character; a tag is returned unchanged."""
    if match.lastgroup:
        return match[0]
    return {"\n": "\\n", "\t": "\\t"}.get(match[0], f"\\{match[0]}")
