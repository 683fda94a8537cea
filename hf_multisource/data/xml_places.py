"""Parse XML with the place of each element, without expanding entities or reading other files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape as escape_special

from hf_multisource.data.catalogue_entries import Edit, ForeignFileError, decode

MAX_DEPTH = 100  # levels of nested elements; catalogues have fewer than ten
UTF_8, UTF_16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")  # byte order marks; XML in UTF-16 is not supported
FIRST_TAG = re.compile(r"<([A-Za-z_][\w:.-]*)")
ATTRIBUTE = re.compile(r"\s+([^\s=\"'<>/]+)\s*=\s*(\"[^\"]*\"|'[^']*')")


@dataclass(eq=False)
class Element:
    """An element of an XML file. Places are character indices in the text of the file.

    Args:
        tag: Name with its prefix.
        attributes: Attributes with their prefixes.
        parent: The parent element.
        start: Place of the first character.
        comment: The comments directly before the element.
        inner: Place after the start tag.
        inner_end: Place before the end tag; equal to `inner` for `<tag/>`.
        end: Place after the last character.
        children: The child elements.
        pieces: Pieces of the text, without the text of the children.
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
        """The text of the element, without the text of its children."""
        return "".join(self.pieces)

    @property
    def name(self) -> str:
        """The tag without its prefix."""
        return self.tag.rpartition(":")[2]

    def get(self, name: str, default: str = "") -> str:
        """Return the value of an attribute.

        Args:
            name: Name of the attribute.
            default: Value to return if the attribute is missing.

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
        """Iterate over this element and its descendants in document order.

        Yields:
            The elements.
        """
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack += reversed(element.children)

    def ancestors(self) -> Iterator[Element]:
        """Iterate over this element and its ancestors up to the root.

        Yields:
            The elements, this one first.
        """
        element: Element | None = self
        while element is not None:
            yield element
            element = element.parent

    def content(self, text: str) -> tuple[str, bool]:
        """Return the content of the element.

        Args:
            text: The text of the file.

        Returns:
            The text of the element, or its inner XML if it has children; and whether it has children. All line ends
            are LF, as XML parsers return them.
        """
        if not self.children:
            return self.text, False
        return re.sub("\r\n?", "\n", text[self.inner : self.inner_end]), True


class _Places:
    """Handler of parser events that builds the elements."""

    def __init__(self, path: str, text: str, name: str) -> None:
        self.path, self.text, self.content, self.name = path, text, text.encode(), name
        self.parser = expat.ParserCreate()
        self.root: Element | None = None
        self.stack: list[Element] = []
        self.opened: Element | None = None  # element whose start tag was the last event
        self.comments: list[str] = []
        self.bytes = self.characters = 0  # current place in bytes and in characters

    def place(self) -> int:
        """Return the place of the current event in characters, where a start tag directly before it ends."""
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
    """Parse an XML file without expanding entities or reading other files.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as UTF-8 bytes.
        root: Name of the root element, without its prefix.

    Returns:
        The root element and the text of the file.

    Raises:
        ForeignFileError: If the file is not XML from the first character on, or has another root.
        ValueError: If the file is not UTF-8, is not well-formed, declares or uses custom entities, or is nested too
            deeply. The message gives the line.
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


def escape(text: str, entities: Mapping[str, str] | None = None) -> str:
    """Escape a text for XML, including carriage returns, which XML parsers would read as line feeds.

    Args:
        text: The text.
        entities: Further strings to replace, with their replacements.

    Returns:
        The escaped text.
    """
    return escape_special(text, {"\r": "&#13;", **(entities or {})})


def as_content(text: str, markup: bool, newline: str) -> str:
    """Return a text as the content of an element.

    Args:
        text: The text.
        markup: Whether the text is XML already.
        newline: Line end of the file.

    Returns:
        The XML, with the line ends of the file.
    """
    return (text if markup else escape(text)).replace("\n", newline)


def with_attribute(tag: str, name: str, value: str) -> str:
    """Set an attribute in a start tag.

    Args:
        tag: The tag with `<` and `>`.
        name: The attribute.
        value: Value of the attribute.

    Returns:
        The tag with the attribute, otherwise unchanged.
    """
    new = f'{name}="{escape(value, {chr(34): "&quot;"})}"'
    for match in ATTRIBUTE.finditer(tag):
        if match[1] == name:
            return f"{tag[: match.start(1)]}{new}{tag[match.end() :]}"
    end = len(tag) - (2 if tag.endswith("/>") else 1)
    return f"{tag[:end].rstrip()} {new}{' ' if tag[end - 1].isspace() else ''}{tag[end:]}"


def without_attributes(tag: str, names: Collection[str]) -> str:
    """Remove attributes from a start tag.

    Args:
        tag: The tag with `<` and `>`.
        names: The attributes.

    Returns:
        The tag without the attributes, otherwise unchanged.
    """
    return ATTRIBUTE.sub(lambda match: "" if match[1] in names else match[0], tag)


def with_content(element: Element, text: str, inner: str, drop: Collection[str] = (), **attributes: str) -> str:
    """Return the XML of an element with new content.

    Args:
        element: The element.
        text: The text of the file.
        inner: The new content as XML.
        drop: Attributes to remove.
        **attributes: Attributes to set.

    Returns:
        The XML of the element.
    """
    tag = without_attributes(text[element.start : element.inner], drop)
    for name, value in attributes.items():
        tag = with_attribute(tag, name, value)
    if tag.endswith("/>"):
        tag = f"{tag[:-2].rstrip()}>"
    return f"{tag}{inner}</{element.tag}>"


def indent_of(text: str, place: int) -> str:
    """Return the white space before a place, including the preceding line end.

    Args:
        text: The text of the file.
        place: The place.

    Returns:
        The line end and the blanks; an empty string if another character precedes the place on its line.
    """
    start = text.rfind("\n", 0, place)
    blanks = text[start + 1 : place]
    if start < 0 or blanks.strip():
        return ""
    return f"{text[start - 1] if text[start - 1] == chr(13) else ''}\n{blanks}"


def removal_of(element: Element, text: str) -> Edit:
    """Return the edit that removes an element, with the white space before it.

    Args:
        element: The element.
        text: The text of the file.

    Returns:
        The edit.
    """
    return element.start - len(indent_of(text, element.start)), element.end, ""


__all__ = [
    *("Element", "as_content", "escape", "indent_of", "parse_xml", "removal_of"),
    *("with_attribute", "with_content", "without_attributes"),
]
