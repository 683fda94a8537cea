"""Read and fill .dtd files, a former format of Mozilla's localizations: `<!ENTITY key "text">`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from xml.parsers import expat

from hf_multisource.data.catalogue_entries import (
    DONE,
    REVIEW,
    Catalogue,
    Changes,
    Entry,
    Identity,
    Span,
    decode,
    insert_blocks,
    line_numbers,
    newline_of,
    review_state,
)

NAME = re.compile(r"[^\W\d][\w.:-]*")
REFERENCE = re.compile(rf"&({NAME.pattern});")
PREDEFINED = ("amp", "lt", "gt", "quot", "apos")  # entities of XML itself
# Declaration of a parameter entity, such as `<!ENTITY % brandDTD SYSTEM "chrome://branding/locale/brand.dtd">`.
QUOTED = "(?:\"[^\"]*\"|'[^']*')"
PARAMETER = re.compile(rf"<!ENTITY\s+%\s+{NAME.pattern}\s+(?:SYSTEM\s+|PUBLIC\s+{QUOTED}\s+)?{QUOTED}\s*>")
# Comments and texts, and the declarations of parameter entities and references to them, which are in the group.
INCLUSION = re.compile(rf"<!--(?s:.*?)(?:-->|\Z)|({PARAMETER.pattern}|%{NAME.pattern};)|{QUOTED}")
HEAD = re.compile(r"<!ENTITY[ \t\r\n]+([^\s\"'%<>]+)[ \t\r\n]+([\"'])")


def read_dtd(path: str, content: bytes) -> Catalogue:
    """Read the entities of a .dtd file. References such as `&brandShortName;` stay as they are; nothing is expanded.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.

    Returns:
        The catalogue. Declarations of parameter entities, which include other files, are skipped. Other declarations
        that are not internal entities are listed as unhandled.
    """
    text = decode(path, content)
    entries, unhandled = [], []
    line = line_numbers(text)
    for key, value, comment, span in _entities(text):
        if key is None:
            unhandled.append(f'line {line(span[0])}: not <!ENTITY key "text">')
        else:
            entries.append(Entry(key, "", value, review_state(comment), comment))
    return Catalogue(path, content, tuple(entries), tuple(unhandled))


def fill_dtd(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    """Add entities to a .dtd file, each with a comment that asks for a review.

    Args:
        catalogue: The file.
        texts: The new texts, with references in the syntax of XML.
        reference: The same file in a source language, which determines the order.
        notes: Key -> a line that becomes a comment on the message.

    Returns:
        The changes.
    """
    text = catalogue.text
    present: dict[str, Span] = {}
    for key, _, _, span in _entities(text):
        if key is not None:
            present.setdefault(key, span)
    refused, blocks, newline = dict[Identity, str](), dict[str, str](), newline_of(text)
    for (key, part), value in texts.items():
        quote = "'" if '"' in value else '"'
        if key in present:
            refused[key, part] = DONE
        elif part:
            refused[key, part] = "entities have no parts"
        elif quote in value or "%" in value:
            refused[key, part] = "an entity cannot hold % or both kinds of quotation marks; write &#037; or &quot;"
        elif reason := _ill_formed(key, value, quote):
            refused[key, part] = f"the text is not well-formed XML ({reason}), and would break every page that uses it"
        else:
            note = f"{newline}     {notes[key]}" if key in notes else ""
            blocks[key] = f"<!-- {REVIEW}{note} -->{newline}<!ENTITY {key} {quote}{value}{quote}>"
    order = [entry.key for entry in reference.entries] if reference else []
    return Changes(tuple(insert_blocks(text, blocks, present, order)), refused)


def inclusions(text: str) -> list[str]:
    """Return the declarations of parameter entities and the references to them, which include other files.

    Args:
        text: Text of a .dtd file.

    Returns:
        The declarations and references in the order of the file, such as `%brandDTD;`.
    """
    return [match[1] for match in INCLUSION.finditer(text) if match[1]]


def _ill_formed(key: str, value: str, quote: str) -> str:
    """Return the parser's error for a page that uses the entity; "" if there is no error or `key` is not a name."""
    if not NAME.fullmatch(key):
        return ""
    names = dict.fromkeys(name for name in REFERENCE.findall(value) if name not in (*PREDEFINED, key))
    others = "".join(f'<!ENTITY {name} "">' for name in names)
    page = f"<!DOCTYPE page [{others}<!ENTITY {key} {quote}{value}{quote}>]><page>&{key};</page>"
    try:
        expat.ParserCreate().Parse(page.encode(errors="replace"), True)
    except expat.ExpatError as error:
        return expat.ErrorString(error.code)
    return ""


def _entities(text: str) -> Iterator[tuple[str | None, str, str, Span]]:
    """Yield key, value, comment and span of each declaration; the key is None if the declaration has no text."""
    place, comment, start = 0, "", 0
    while (first := text.find("<!", place)) >= 0:
        if text.startswith("<!--", first):
            if (end := text.find("-->", first)) < 0:
                yield None, "", "", (first, len(text))
                return
            comment, start, place = text[first + 4 : end].strip(), first, end + 3
            continue
        if parameter := PARAMETER.match(text, first):
            place, comment = parameter.end(), ""
            continue
        head = HEAD.match(text, first)
        closed = text.find(head[2], head.end()) if head else text.find(">", first)
        if closed < 0:
            yield None, "", "", (first, len(text))
            return
        end = closed if head is None else text.find(">", closed)
        if head is None or end < 0 or text[closed + 1 : end].strip():
            yield None, "", "", (first, closed)
            place = closed + 1
        else:
            place = end + 1
            begin = start if comment and not text[start:first].partition("-->")[2].strip() else first
            yield head[1], text[head.end() : closed], comment if begin < first else "", (begin, place)
        comment = ""
