"""Parse XML of bounded depth without entities and without other files, and remember the place of each element."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape

from hf_multisource.data.catalogue_entries import ForeignFileError, decode

MAX_DEPTH = 100  # of elements; catalogues have fewer than ten
UTF_8, UTF_16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")  # byte order marks; UTF-16 is XML, and is not read
FIRST_TAG = re.compile(r"<([A-Za-z_][\w:.-]*)")


@dataclass(eq=False)
class Element:
    """An element of an XML file.

    Args:
        tag: Its name as it is written.
        attributes: Its attributes as they are written.
        parent: The element around it.
        start: Place of its first character.
        comment: The comments directly before it.
        inner: Place after its start tag.
        inner_end: Place before its end tag; that of `inner` for `<tag/>`.
        end: Place after its last character.
        children: The elements in it.
        pieces: Its text, without that of its children.
    """

    tag: str
    attributes: dict[str, str]
    parent: Element | None
    start: int
    comment: str = ""
    inner: int = -1
    inner_end: int = -1
    end: int = -1
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its text, without that of its children."""
        return "".join(self.pieces)

    @property
    def name(self) -> str:
        """The tag without its prefix."""
        return self.tag.rpartition(":")[2]

    def get(self, name: str, default: str = "") -> str:
        """Return the value of an attribute.

        Args:
            name: Its name.
            default: What to return without it.

        Returns:
            The value.
        """
        return self.attributes.get(name, default)

    def find(self, name: str) -> Element | None:
        """Return the first child with a name.

        Args:
            name: The name.

        Returns:
            The child; None if there is none.
        """
        return next((child for child in self.children if child.name == name), None)

    def walk(self) -> Iterator[Element]:
        """Go through this element and all in it, in the order of the file.

        Yields:
            The elements.
        """
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack += reversed(element.children)

    def ancestors(self) -> Iterator[Element]:
        """Go from this element to the root.

        Yields:
            The elements, this one first.
        """
        element: Element | None = self
        while element is not None:
            yield element
            element = element.parent

    def content(self, text: str) -> tuple[str, bool]:
        """Return what the element holds.

        Args:
            text: The file.

        Returns:
            Its text, or the XML in it if it has children; and whether it has children.
        """
        return (text[self.inner : self.inner_end], True) if self.children else (self.text, False)


class _Places:
    """Turns events of the parser into elements."""

    def __init__(self, path: str, text: str, name: str) -> None:
        self.path, self.text, self.content, self.name = path, text, text.encode(), name
        self.parser = expat.ParserCreate()
        self.root: Element | None = None
        self.stack: list[Element] = []
        self.opened: Element | None = None  # the element whose start tag has ended last, if nothing came after it
        self.comments: list[str] = []
        self.bytes = self.characters = 0  # the same place

    def place(self) -> int:
        """Place of the event, in characters; the start tag before it ends there."""
        index = self.parser.CurrentByteIndex
        self.characters += len(self.content[self.bytes : index].decode())
        self.bytes = index
        if self.opened is not None:
            self.opened.inner, self.opened = self.characters, None
        return self.characters

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        place = self.place()
        if len(self.stack) == MAX_DEPTH:
            raise self.error(f"elements are nested more than {MAX_DEPTH} deep")
        parent = self.stack[-1] if self.stack else None
        element = Element(tag, attributes, parent, place, "\n".join(self.comments))
        self.comments = []
        if parent is None:
            self.root = element
            if element.name != self.name:
                raise self.foreign(tag)
        else:
            parent.children.append(element)
        self.stack.append(element)
        self.opened = element

    def end(self, tag: str) -> None:
        element, untouched = self.stack.pop(), self.opened is not None
        element.inner_end = self.place()
        empty = untouched and self.text.endswith("/>", 0, element.inner_end)  # `<tag/>`
        element.end = element.inner_end if empty else self.text.index(">", element.inner_end) + 1
        self.comments = []

    def data(self, text: str) -> None:
        self.place()
        if self.stack:
            self.stack[-1].pieces.append(text)
        if text.strip():
            self.comments = []

    def comment(self, text: str) -> None:
        self.place()
        self.comments.append(text.strip())

    def other(self, *event: object) -> None:
        self.place()

    def declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        if encoding and encoding.lower() not in ("utf-8", "us-ascii", "ascii"):
            raise self.error(f"the encoding is {encoding[:40]}; convert the file to UTF-8")

    def entity(self, *event: object) -> None:
        raise self.error("entities are declared or used, which are not read; write the texts themselves")

    def foreign(self, tag: str) -> ForeignFileError:
        return ForeignFileError(self.path, f"the root must be <{self.name}>; it is <{tag[:40]}>")

    def error(self, reason: str) -> ValueError:
        return ValueError(f"{self.path}, line {self.parser.CurrentLineNumber}: {reason}")


def parse_xml(path: str, content: bytes, root: str) -> tuple[Element, str]:
    """Parse an XML file. No entity is expanded, no other file is read.

    Args:
        path: Its name in messages.
        content: Its bytes, in UTF-8.
        root: Name of the root element, without its prefix.

    Returns:
        The root element and the text of the file.

    Raises:
        ForeignFileError: If the file is no XML from its first character on, or has another root.
        ValueError: If the file is not in UTF-8, is not XML, declares or uses entities of its own, or is nested too
            deeply; the message gives the line.
    """
    if content.strip() and not content.removeprefix(UTF_8).lstrip().startswith((b"<", *UTF_16)):
        raise ForeignFileError(path, "it does not begin as XML")
    text = decode(path, content)
    state = _Places(path, text, root)
    parser: Any = state.parser
    parser.StartElementHandler, parser.EndElementHandler = state.start, state.end
    parser.CharacterDataHandler, parser.CommentHandler = state.data, state.comment
    parser.StartCdataSectionHandler = parser.EndCdataSectionHandler = state.other
    parser.ProcessingInstructionHandler = state.other
    parser.XmlDeclHandler = state.declaration
    parser.EntityDeclHandler = parser.SkippedEntityHandler = parser.ExternalEntityRefHandler = state.entity
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        first = FIRST_TAG.search(text)
        if state.root is None and first and first[1].rpartition(":")[2] != root:
            raise state.foreign(first[1]) from error
        raise ValueError(f"{path}, line {error.lineno}: not XML: {expat.ErrorString(error.code)}") from error
    assert state.root is not None
    return state.root, text


def with_attribute(tag: str, name: str, value: str) -> str:
    """Set an attribute in a start tag.

    Args:
        tag: The tag as it is written, with `<` and `>`.
        name: The attribute.
        value: Its value.

    Returns:
        The tag with the attribute; all else stays.
    """
    new = f'{name}="{escape(value, {chr(34): "&quot;"})}"'
    place = re.compile(r"\s([^\s=\"'<>/]+)\s*=\s*(\"[^\"]*\"|'[^']*')")
    for match in place.finditer(tag):
        if match[1] == name:
            return f"{tag[: match.start(1)]}{new}{tag[match.end() :]}"
    end = len(tag) - (2 if tag.endswith("/>") else 1)
    return f"{tag[:end].rstrip()} {new}{' ' if tag[end - 1].isspace() else ''}{tag[end:]}"


def with_content(element: Element, text: str, inner: str, **attributes: str) -> str:
    """Return an element with other content.

    Args:
        element: The element.
        text: The file.
        inner: The XML to put in it.
        **attributes: Attributes to set.

    Returns:
        The whole element.
    """
    tag = text[element.start : element.inner]
    for name, value in attributes.items():
        tag = with_attribute(tag, name, value)
    if tag.endswith("/>"):
        tag = f"{tag[:-2].rstrip()}>"
    return f"{tag}{inner}</{element.tag}>"


def indent_of(text: str, place: int) -> str:
    """Return the white space before a place, from the end of the line before.

    Args:
        text: The file.
        place: The place.

    Returns:
        The line end and blanks; "" if something else comes before on the line.
    """
    start = text.rfind("\n", 0, place)
    blanks = text[start + 1 : place]
    if start < 0 or blanks.strip():
        return ""
    return f"{text[start - 1] if text[start - 1] == chr(13) else ''}\n{blanks}"


__all__ = ["Element", "escape", "indent_of", "parse_xml", "with_attribute", "with_content"]
