r"""Read and fill Java .properties files in the syntax of `java.util.Properties`.

The syntax has lines `key = value`, `key: value` or `key value`, continuation lines, and escapes such as `\u00e4`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hf_multisource.data.catalogue_entries import (
    DONE,
    REVIEW,
    Catalogue,
    Changes,
    Entry,
    Identity,
    Span,
    insert_blocks,
    line_numbers,
    newline_of,
    note_line,
    review_state,
)

KEY = re.compile(r"(?:\\.|[^\\=: \t\f\r\n])+", re.DOTALL)
SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|((?:\r\n?|\n)[ \t\f]*)|(.)|$)", re.DOTALL)
LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
LETTERS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Property:
    """A property (`key = value`) of a file with its comment.

    Args:
        key: The key without escapes.
        value: The value without escapes.
        written: Key and value as they are written in the file.
        comment: The comment lines directly above the property.
        span: Span from the start of the comment to the end of the value.
        section: Number of comments before the property that an empty line separates from the next property.
    """

    key: str
    value: str
    written: str
    comment: str
    span: Span
    section: int


def read_properties(path: str, content: bytes) -> Catalogue:
    r"""Read a .properties file as UTF-8, or as ISO 8859-1 if it is not valid UTF-8, like Java.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.

    Returns:
        The catalogue. A value is listed as unhandled if an escape such as `\ud83d` is an unpaired surrogate.

    Raises:
        ValueError: If the file has NUL characters, as files in UTF-16 have.
    """
    if b"\0" in content:
        line_number = content.count(b"\n", 0, content.index(0)) + 1
        raise ValueError(f"{path}, line {line_number}: not UTF-8 or ISO 8859-1: byte 0x00")
    encoding = "utf-8"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode(encoding := "iso-8859-1")
    entries, unhandled, damaged = [], [], set()
    line = line_numbers(text)
    properties = [*_properties(text)]
    for one in properties:
        if SURROGATE.search(one.key + one.value):
            unhandled.append(f"line {line(one.span[1])}: \\u gives half a character")
            damaged.add(one.key)
        else:
            entries.append(Entry(one.key, "", one.value, review_state(one.comment), one.comment))
    escapes = True if encoding != "utf-8" else _writes_escapes("\n".join(one.written for one in properties))
    return Catalogue(
        path,
        content,
        tuple(entries),
        tuple(unhandled),
        encoding=encoding,
        damaged=frozenset(damaged),
        escapes=escapes,
    )


def fill_properties(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    r"""Add properties to a file, each with a comment that asks for a review.

    Non-ASCII characters are written as escapes (`\u00e4`), which all versions of Java read, unless `escapes` of the
    file is False. If it is None, `escapes` of the reference decides.

    Args:
        catalogue: The file.
        texts: The new texts.
        reference: The same file in a source language, which determines the order.
        notes: Key -> a line that becomes a comment on the message.

    Returns:
        The changes.
    """
    text = catalogue.text
    present: dict[str, Span] = {}
    for one in _properties(text):
        present.setdefault(one.key, one.span)
    escapes = reference.escapes if catalogue.escapes is None and reference else catalogue.escapes
    ascii_only = escapes is not False
    newline = line_end_of(text)
    refused = {identity: DONE for identity in texts if identity[0] in present}
    refused |= {identity: "properties have no parts" for identity in texts if identity[1]}
    blocks = {}
    for (key, part), value in texts.items():
        if (key, part) not in refused:
            comment = f"# {REVIEW}{newline}{note_line('#', notes.get(key), newline)}"
            blocks[key] = f"{comment}{_escaped(key, ascii_only, key=True)}={_escaped(value, ascii_only)}"
    sections: dict[str, int] = {}
    for one in _properties(reference.text) if reference else ():
        sections.setdefault(one.key, one.section)
    return Changes(tuple(insert_blocks(text, blocks, present, [*sections], None, sections, newline)), refused)


def line_end_of(text: str) -> str:
    """Return the line end of a .properties file, in which lines may also end with CR alone.

    Args:
        text: Text of the file.

    Returns:
        CR if the text has no LF, otherwise the line end of [`newline_of`]; LF if the text has neither.
    """
    return "\r" if "\r" in text and "\n" not in text else newline_of(text)


def show_escapes(catalogues: Iterable[Catalogue]) -> bool | None:
    """Return whether files show that their program reads non-ASCII characters as escapes only.

    Args:
        catalogues: The .properties files.

    Returns:
        True if a file is in ISO 8859-1; otherwise False if one has non-ASCII characters in UTF-8, and True if one has
        escapes. None if there are no non-ASCII characters.
    """
    known = {(one.escapes, one.encoding) for one in catalogues if one.escapes is not None}
    if any(encoding != "utf-8" for _, encoding in known):
        return True
    return (False, "utf-8") not in known if known else None


def _writes_escapes(written: str) -> bool | None:
    """Return whether the properties of a file in UTF-8 have their non-ASCII characters as escapes; None: it has none.

    Comments do not count, because Java skips them.
    """
    if not written.isascii():
        return False
    return True if any(int(code, 16) > 127 for code in re.findall(r"\\u([0-9a-fA-F]{4})", written)) else None


def _properties(text: str) -> Iterator[Property]:
    """Yield the properties of a file in order."""
    comment: list[str] = []
    start = 0  # index of the start of the comment
    section = 0
    lines = ((match.start(), match[0]) for match in LINE.finditer(text))
    for place, line in lines:
        if place == 0 and line.startswith("\ufeff"):
            place, line = 1, line[1:]
        body = line.lstrip(" \t\f")
        first = place + len(line) - len(body)
        if not body.strip():
            section += bool(comment)
            comment = []
        elif body[0] in "#!":
            start = start if comment else place
            comment.append(body[1:].strip())
        else:
            end = place + len(line)
            while _continues(line) and (following := next(lines, None)) is not None:
                line = following[1]
                end = following[0] + len(line)
            logical = text[first:end].removesuffix("\n").removesuffix("\r")
            key = KEY.match(logical)
            key_end = key.end() if key else 0
            separator = SEPARATOR.match(logical, key_end)
            value = logical[separator.end() if separator else key_end :]
            span = (start if comment else place, first + len(logical))
            names = _unescaped(logical[:key_end]), _unescaped(value)
            yield Property(*names, logical, "\n".join(comment), span, section)
            comment = []


def _continues(line: str) -> bool:
    """Return whether a line continues on the next line: it ends with an odd number of backslashes."""
    body = line.removesuffix("\n").removesuffix("\r")
    return line.endswith(("\n", "\r")) and (len(body) - len(body.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code, continuation, letter = match.groups()
        if code:
            return chr(int(code, 16))
        return "" if continuation or not letter else LETTERS.get(letter, letter)

    found = ESCAPE.sub(replace, text)
    return found.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if "\\u" in text else found


def _escaped(text: str, ascii_only: bool, *, key: bool = False) -> str:
    names = {"\\": "\\\\", **{letter: f"\\{name}" for name, letter in LETTERS.items()}}
    pieces = []
    for i, letter in enumerate(text):
        if key and letter in " =:#!":
            pieces.append(f"\\{letter}")
        elif letter == " " and i == 0:
            pieces.append("\\ ")
        elif letter not in names and ascii_only and not letter.isascii():
            code = letter.encode("utf-16-be").hex()
            pieces += [f"\\u{code[j : j + 4]}" for j in range(0, len(code), 4)]
        else:
            pieces.append(names.get(letter, letter))
    return "".join(pieces)
