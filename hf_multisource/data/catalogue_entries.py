"""What a localisation catalogue holds: entries with their states; and edits of its text that keep everything else."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Identity = tuple[str, str]  # key and part of an entry; unique in a file
Span = tuple[int, int]  # first character and the one after the last
Edit = tuple[int, int, str]  # the span to replace, and the new text

TRANSLATED, UNTRANSLATED, FUZZY, OBSOLETE = "translated", "untranslated", "fuzzy", "obsolete"
REVIEW = "Needs review (machine translation)"  # comment on filled entries, in formats without states
DONE = "has a translation already"
# What joins the parts of a language's code in paths and files: en-GB, en_GB, en-rGB (Android).
JOINT = re.compile(r"[-_]r?")
DAMAGED = "the file has a message with this key that cannot be read: correct it first"


class ForeignFileError(ValueError):
    """Raised for a file that is named like a catalogue, and is something else.

    Args:
        path: Its name in messages.
        reason: Why it is none.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


@dataclass(frozen=True)
class Entry:
    """One text of a catalogue.

    Args:
        key: Identifies the message in its file. Parts of a key, such as context and message of gettext, are joined by
            U+0004.
        part: Which text of the message: an attribute (`.label`), a variant or plural form (`[few]`), both
            (`.label[few]`), or empty for the only text.
        text: The text, without the escapes of the format. Placeables of Fluent and inline elements of XML stay as they
            are written.
        state: `TRANSLATED`, `UNTRANSLATED`, `FUZZY` (needs review) or `OBSOLETE`.
        comment: Comments on the entry.
        source: The text in the source language, in formats whose files hold it.
        markup: Whether the text contains XML elements, and is therefore XML itself: `&amp;` stands for `&`.
        flags: Flags of gettext, such as `c-format`, without `fuzzy`.
    """

    key: str
    part: str
    text: str
    state: str = TRANSLATED
    comment: str = ""
    source: str | None = None
    markup: bool = False
    flags: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        """Key and part."""
        return self.key, self.part


@dataclass(frozen=True)
class Catalogue:
    """A catalogue file that has been read.

    Args:
        path: Its name in messages.
        content: Its bytes.
        entries: The entries in the order of the file.
        unhandled: What could not be read as an entry, each with its line or key and the reason.
        source_language: Language of the `source` of entries, if the file names it.
        encoding: Encoding of the text.
        header: The settings of a gettext file, such as its plural forms.
        damaged: Keys of messages that are in the file, and could not be read as a whole.
    """

    path: str
    content: bytes
    entries: tuple[Entry, ...]
    unhandled: tuple[str, ...] = ()
    source_language: str | None = None
    encoding: str = "utf-8"
    header: str = ""
    damaged: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The content as text, with its byte order mark and line ends."""
        return self.content.decode(self.encoding)


@dataclass(frozen=True)
class Changes:
    """Edits that fill entries of a catalogue.

    Args:
        edits: The edits. Of edits at the same place, the first comes first.
        refused: Why entries cannot be filled.
    """

    edits: tuple[Edit, ...]
    refused: Mapping[Identity, str]


def decode(path: str, content: bytes, encoding: str = "utf-8") -> str:
    """Decode the content of a catalogue; line ends and a byte order mark stay.

    Args:
        path: Its name in messages.
        content: Its bytes.
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
    """Return a function that gives the line number of a place in a text.

    Args:
        text: The text.

    Returns:
        A function of the number of characters before the place.
    """
    ends = [match.start() for match in re.finditer("\n", text)]
    return lambda place: bisect_left(ends, place) + 1


def newline_of(text: str) -> str:
    """Return the line end that a text uses.

    Args:
        text: The text.

    Returns:
        CR LF if the first line ends with it, otherwise LF.
    """
    end = text.find("\n")
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Split a text at LF.

    Args:
        text: The text.

    Yields:
        The place of each line and the line with its end.
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
    text: str, blocks: Mapping[str, str], present: Mapping[str, Span], order: Sequence[str], end: int | None = None
) -> list[Edit]:
    """Insert new messages after those that precede them in the reference.

    Args:
        text: Text of the catalogue.
        blocks: Key -> the lines of the new message, without the last line end.
        present: Key -> span of a message of the catalogue, from the start of its first line, with its comment.
        order: Keys in the order of the reference.
        end: Place for messages that have no neighbour in the catalogue, at the start of a line; None: the end of the
            text.

    Returns:
        The edits.
    """
    newline = newline_of(text)
    edits: list[Edit] = []
    following: dict[str, Span] = {}  # key -> the next message of the reference that the catalogue has
    after = None
    for key in reversed(order):
        if after is not None:
            following[key] = after
        after = present.get(key, after)
    before = None
    for key in dict.fromkeys([*order, *blocks]):
        before = present.get(key, before)
        if key not in blocks:
            continue
        if before is not None:
            edits.append((before[1], before[1], newline + blocks[key]))
        elif key in following and not _opens_with_comment(text, following[key][0]):
            place = following[key][0]
            edits.append((place, place, blocks[key] + newline))
        elif key in following:
            place = following[key][1]
            edits.append((place, place, newline + blocks[key]))
        else:
            place = len(text) if end is None else end
            start = _separator(text[:place], newline, blank=end is None) if not edits else ""
            edits.append((place, place, f"{start}{blocks[key]}{newline}"))
    return edits


def _opens_with_comment(text: str, place: int) -> bool:
    """Whether a message is the first of its file and has a comment, which may be the licence of the file."""
    return not text[:place].strip("\ufeff \t\r\n") and text.startswith(("#", "!", "<!--"), place)


def _separator(before: str, newline: str, *, blank: bool) -> str:
    """What stands between the end of a text and a new message: with `blank`, an empty line after lines of text."""
    last = before.removesuffix("\n").removesuffix("\r").rpartition("\n")[2].strip("\ufeff \t\r")
    return newline * ((bool(before) and not before.endswith("\n")) + (blank and bool(last)))


def note_line(mark: str, note: str | None, newline: str) -> str:
    """Return a comment line with a note.

    Args:
        mark: What comment lines of the format begin with.
        note: The note; None: there is none.
        newline: Line end of the file.

    Returns:
        The line with its end; "" without a note.
    """
    return f"{mark} {note}{newline}" if note else ""


def review_state(comment: str, part: str = "") -> str:
    """Return the state of an entry in a format without states: machine translations have a comment that says so.

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
        Key and part -> how many entries have them; obsolete entries are not counted.
    """
    return Counter(entry.identity for entry in entries if entry.state != OBSOLETE)


def ambiguous(number: int) -> str:
    """Return why an entry is refused whose key and part other entries of the file have, too.

    Args:
        number: How many entries have this key and part.

    Returns:
        The reason.
    """
    return f"the file has {number} entries with this key, and which one is meant is not known"


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
