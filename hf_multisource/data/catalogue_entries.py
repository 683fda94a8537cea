"""Entries of localization catalogues with their states, and edits that change only the edited part of a catalogue."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

Identity = tuple[str, str]  # key and part of an entry; unique in a file
Span = tuple[int, int]  # indices of the first character and of the character after the last
Edit = tuple[int, int, str]  # the span to replace, and the new text

TRANSLATED, UNTRANSLATED, FUZZY, OBSOLETE = "translated", "untranslated", "fuzzy", "obsolete"
REVIEW = "Needs review (machine translation)"  # comment on filled entries, in formats without states
# Kinds of Fluent selectors: the plural category of a number; the category of an ordinal number; other functions and
# attributes of terms.
NUMBER, ORDINAL, FUNCTION = "number", "ordinal", "function"
DONE = "has a translation already"
# Separator of language and territory of a language code in paths and files: en-GB, en_GB, en-rGB (Android).
JOINT = re.compile(r"[-_]r?")
# XML comments that are the rest of a line; the end of a comment up to the next line or element; begin of an element.
TRAILING_COMMENTS = re.compile(r"(?:[ \t]*<!--(?:[^-]|-(?!->))*-->)+[ \t]*(?=\r?\n|$)")
COMMENT_END = re.compile(r"-->[ \t]*(?:\r?\n|(?=<))")
XML_TAG = re.compile(r"[ \t]*<")
DAMAGED = "the file has a message with this key that cannot be read: correct it first"


class ForeignFileError(ValueError):
    """Raised for a file that has the name of a catalogue but another content.

    Args:
        path: Path of the file, used in error messages.
        reason: Why the file is not a catalogue.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


@dataclass(frozen=True)
class Entry:
    """A text of a catalogue with its key and state.

    Args:
        key: Identifier of the message in its file. The parts of a key, such as context and message of gettext, are
            joined by U+0004.
        part: Identifier of the text in its message: an attribute (`.label`), a variant or plural form (`[few]`), both
            (`.label[few]`), or an empty string for the value of the message.
        text: The text, without the escapes of the format. Placeables of Fluent and inline elements of XML stay as they
            are written.
        state: `TRANSLATED`, `UNTRANSLATED`, `FUZZY` (needs review) or `OBSOLETE`.
        comment: Comments on the entry.
        source: The text in the source language, in formats whose files contain it.
        markup: Whether the text contains XML elements, and is therefore XML itself: `&amp;` stands for `&`.
        flags: Flags of gettext, such as `c-format`, without `fuzzy`.
        sources: The singular and the plural text in the source language, in the plural forms of gettext messages.
            `source` is then the singular for the form 0, and the plural for other forms.
        selector: Kind of the Fluent selector whose variant the text is: `NUMBER`, `ORDINAL` or `FUNCTION`; "" for other
            texts and formats.
        default: Whether the text is the default variant of a Fluent selector.
    """

    key: str
    part: str
    text: str
    state: str = TRANSLATED
    comment: str = ""
    source: str | None = None
    markup: bool = False
    flags: tuple[str, ...] = ()
    sources: tuple[str, str] | None = None
    selector: str = ""
    default: bool = False

    def source_of(self, category: str) -> str | None:
        """Return the text in the source language that a plural form of a category translates.

        Args:
            category: Plural category of the form, such as `few`; "" if it is not known or the text has no plural forms.

        Returns:
            In plural forms of gettext messages, the singular for the category `one` and the plural for all others;
            otherwise `source`.
        """
        if self.sources is None or not category:
            return self.source
        return self.sources[category != "one"]

    @property
    def identity(self) -> Identity:
        """Key and part, which identify the entry in its file."""
        return self.key, self.part


@dataclass(frozen=True)
class Catalogue:
    """Content and entries of a catalogue file.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.
        entries: The entries in the order of the file.
        unhandled: Line or key of each piece of the file that could not be read as an entry, with the reason.
        source_language: Language of the `source` of entries, if the file names it.
        encoding: Encoding of the text.
        header: The header of a gettext file, such as its plural forms.
        damaged: Keys of messages that are in the file but could not be read completely.
        language: Language of the translations, in XLIFF and Qt files that name it.
        escapes: Whether non-ASCII characters are written as escapes (`\\u00e4`), in .properties files; None if it is
            not known.
        original: Attribute `original` of the only `<file>` of an XLIFF document; "" in documents of several files and
            in other formats.
    """

    path: str
    content: bytes
    entries: tuple[Entry, ...]
    unhandled: tuple[str, ...] = ()
    source_language: str | None = None
    encoding: str = "utf-8"
    header: str = ""
    damaged: frozenset[str] = frozenset()
    language: str | None = None
    escapes: bool | None = None
    original: str = ""

    @property
    def text(self) -> str:
        """The decoded content, with its byte order mark and line ends."""
        return self.content.decode(self.encoding)


@dataclass(frozen=True)
class Changes:
    """Edits that fill entries of a catalogue, and the reasons for entries that cannot be filled.

    Args:
        edits: The edits. Insertions at the same place are written in this order.
        refused: Reason for each entry that cannot be filled.
    """

    edits: tuple[Edit, ...]
    refused: Mapping[Identity, str]


def decode(path: str, content: bytes, encoding: str = "utf-8") -> str:
    """Decode the content of a catalogue, keeping line ends and a byte order mark.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.
        encoding: The encoding.

    Returns:
        The text.

    Raises:
        ValueError: If the content is not in the encoding; the message gives the line.
    """
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not {encoding}: byte 0x{content[error.start]:02x}") from error


def line_numbers(text: str) -> Callable[[int], int]:
    """Return a function that maps a character index of a text to a line number.

    Args:
        text: The text.

    Returns:
        A function that takes the index of a character and returns the number of its line.
    """
    ends = [match.start() for match in re.finditer("\n", text)]
    return lambda place: bisect_left(ends, place) + 1


def newline_of(text: str) -> str:
    """Return the line end of a text.

    Args:
        text: The text.

    Returns:
        CR LF if the first line ends with it, otherwise LF.
    """
    end = text.find("\n")
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Split a text into lines at LF.

    Args:
        text: The text.

    Yields:
        The index of the first character of each line, and the line with its line end.
    """
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield start, text[start:end]
        start = end


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits to a text.

    Args:
        text: The text.
        edits: Edits whose spans do not overlap.

    Returns:
        The new text.
    """
    pieces, place = [], 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):  # a stable order
        pieces += [text[place:start], new]
        place = end
    return "".join([*pieces, text[place:]])


def insert_blocks(
    text: str,
    blocks: Mapping[str, str],
    present: Mapping[str, Span],
    order: Sequence[str],
    end: int | None = None,
    sections: Mapping[str, int] | None = None,
    newline: str = "",
) -> list[Edit]:
    """Return edits that insert each new message after the message that precedes it in the reference.

    If only the following message is in the same section of the reference, the new message is inserted before it. XML
    comments at the end of the last line of a message, and on the lines directly above a message, belong to this
    message.

    Args:
        text: Text of the catalogue.
        blocks: Key -> lines of the new message, without the last line end.
        present: Key -> span of a message of the catalogue with its comment, from the start of the first line.
        order: Keys in the order of the reference.
        end: Index of the start of a line at which messages without a neighbor in the catalogue are inserted. Defaults
            to the end of the text.
        sections: Key -> section of the reference, in which comments of their own separate sections. Defaults to one
            section.
        newline: Line end of the catalogue. Defaults to that of [`newline_of`].

    Returns:
        The edits.
    """
    newline = newline or newline_of(text)
    leading = dict(_leading_comments(text))
    start_of = cache(lambda place: _start_of_comments(text, place, leading))
    end_of = cache(lambda place: _end_of_comments(text, place))
    section_of = (sections or {}).get
    edits: list[Edit] = []
    following: dict[str, str] = {}  # key -> next key of the reference that is in the catalogue
    after = None
    for key in reversed(order):
        if after is not None:
            following[key] = after
        after = key if key in present else after
    before = None
    for key in dict.fromkeys([*order, *blocks]):
        before = key if key in present else before
        if key not in blocks:
            continue
        after = following.get(key)
        begins_section = False
        if before is not None and after is not None:
            begins_section = section_of(before) != section_of(key) == section_of(after)
        if before is not None and not begins_section:
            place = end_of(present[before][1])
            edits.append((place, place, newline + blocks[key]))
        elif after is not None and (begins_section or not _opens_with_comment(text, start_of(present[after][0]))):
            place = start_of(present[after][0])
            edits.append((place, place, blocks[key] + newline))
        elif after is not None:
            place = end_of(present[after][1])
            edits.append((place, place, newline + blocks[key]))
        else:
            place = len(text) if end is None else end
            start = _separator(text[:place], newline, blank=end is None) if not edits else ""
            edits.append((place, place, f"{start}{blocks[key]}{newline}"))
    return edits


def _opens_with_comment(text: str, place: int) -> bool:
    """Return whether a message is the first of its file and has a comment, which may be the license of the file."""
    return not text[:place].strip("\ufeff \t\r\n") and text.startswith(("#", "!", "<!--"), place)


def _leading_comments(text: str) -> Iterator[tuple[int, int]]:
    """Yield the place after each XML comment that only comments and blanks precede on its line, and that line's place.

    The place after a comment is that of the next line, or of the next element on the same line.
    """
    place, line = 0, 0  # the last comment's end, and the place of its line; -1 if other text precedes the comment
    while (start := text.find("<!--", place)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        newline = text.rfind("\n", place, start)
        begin, line = (place, line) if newline < 0 else (newline + 1, newline + 1)
        line = -1 if text[begin:start].strip("\ufeff \t") else line
        if line >= 0 and (after := COMMENT_END.match(text, end)):
            yield after.end(), line
        place = end + 3


def _end_of_comments(text: str, place: int) -> int:
    """Return the place after the XML comments that are the rest of the line; the place itself if there are none."""
    return found.end() if (found := TRAILING_COMMENTS.match(text, place)) else place


def _start_of_comments(text: str, place: int, leading: Mapping[int, int]) -> int:
    """Return the place of the first XML comment directly above a message; the place itself if there are none.

    Args:
        text: The text.
        place: Place of the message, or of comments before it. These may begin at the end of the line of the message
            before, to which comments at the end of a line belong.
        leading: Place after an XML comment -> place of its line, as [`_leading_comments`] yields them.

    Returns:
        The place.
    """
    if text[text.rfind("\n", 0, place) + 1 : place].strip("\ufeff \t"):
        end = _end_of_comments(text, place)
        return place if end == place else text.find("\n", end) + 1 or place
    while place in leading and XML_TAG.match(text, place):  # other formats have no comments of XML
        place = leading[place]
    return place


def _separator(before: str, newline: str, *, blank: bool) -> str:
    """Return the line ends between a text and a new message; with `blank`, add an empty line after a line of text."""
    before, end = before.lstrip("\ufeff"), newline[-1]
    last = before.removesuffix("\n").removesuffix("\r").rpartition(end)[2].strip(" \t\r")
    return newline * ((bool(before) and not before.endswith(end)) + (blank and bool(last)))


def note_line(mark: str, note: str | None, newline: str) -> str:
    """Return a comment line with a note.

    Args:
        mark: Prefix of comment lines in the format.
        note: The note, or None.
        newline: Line end of the file.

    Returns:
        The line with its line end; an empty string if there is no note.
    """
    return f"{mark} {note}{newline}" if note else ""


def review_state(comment: str, part: str = "") -> str:
    """Return the state of an entry in a format without states, from the comment that marks machine translations.

    Args:
        comment: Comments on the message.
        part: Attribute of the message, for comments that name attributes.

    Returns:
        `FUZZY` or `TRANSLATED`.
    """
    lines = [line.strip() for line in comment.splitlines()]
    return FUZZY if REVIEW in lines or (part and f"{REVIEW}: {part}" in lines) else TRANSLATED


def count_current(entries: Iterable[Entry]) -> Counter[Identity]:
    """Count the entries of each key and part.

    Args:
        entries: The entries of a file.

    Returns:
        Key and part -> number of entries with this key and part; obsolete entries are not counted.
    """
    return Counter(entry.identity for entry in entries if entry.state != OBSOLETE)


def ambiguous(number: int, file: str = "the file") -> str:
    """Return the reason for refusing an entry whose key and part are not unique in the file.

    Args:
        number: Number of entries with this key and part.
        file: What the reason calls the file.

    Returns:
        The reason.
    """
    return f"{file} has {number} entries with this key, and which one is meant is not known"


def by_key(identities: Collection[Identity]) -> dict[str, list[str]]:
    """Group identities by key.

    Args:
        identities: Keys and parts.

    Returns:
        Key -> the parts.
    """
    groups: dict[str, list[str]] = {}
    for key, part in identities:
        groups.setdefault(key, []).append(part)
    return groups
