"""Read and fill localization catalogues; the suffix of the file name determines the format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from hf_multisource.data.catalogue_android import fill_android, read_android
from hf_multisource.data.catalogue_dtd import fill_dtd, read_dtd
from hf_multisource.data.catalogue_entries import (
    DAMAGED,
    FUZZY,
    OBSOLETE,
    Catalogue,
    Changes,
    Entry,
    Identity,
    ambiguous,
    apply_edits,
    count_current,
)
from hf_multisource.data.catalogue_fluent import fill_fluent, read_fluent
from hf_multisource.data.catalogue_gettext import fill_po, read_mo, read_po
from hf_multisource.data.catalogue_properties import fill_properties, read_properties
from hf_multisource.data.catalogue_qt import fill_qt, read_qt
from hf_multisource.data.catalogue_xliff import fill_xliff, read_xliff
from hf_multisource.messages import shown, shown_key

NOTE = re.compile(r"[A-Za-z0-9 .,:;()%]+")
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML forbids
MAX_FILE = 16 << 20  # bytes of a catalogue; large catalogues of free software have 5 MB

Reader = Callable[[str, bytes], Catalogue]
# Arguments: catalogue, new texts, the same file in a source language, notes by key
Filler = Callable[[Catalogue, Mapping[Identity, str], Catalogue | None, Mapping[str, str]], Changes]


@dataclass(frozen=True)
class Format:
    """Functions that read and fill the files of one catalogue format.

    Args:
        name: Name of the format.
        read: Function that reads a file.
        fill: Function that returns the changes that fill entries; None if files of this format are compiled from files
            of another format.
        forbidden: Pattern of the characters that files of this format cannot contain.
    """

    name: str
    read: Reader
    fill: Filler | None
    forbidden: re.Pattern[str] | None = None


FORMATS = {
    ".ftl": Format("Fluent", read_fluent, fill_fluent),
    ".po": Format("gettext", read_po, fill_po),
    ".pot": Format("gettext template", read_po, fill_po),
    ".mo": Format("compiled gettext", read_mo, None),
    ".xlf": Format("XLIFF", read_xliff, fill_xliff, NOT_XML),
    ".xliff": Format("XLIFF", read_xliff, fill_xliff, NOT_XML),
    ".properties": Format("Java properties", read_properties, fill_properties),
    ".ts": Format("Qt", read_qt, fill_qt, NOT_XML),
    ".dtd": Format("Mozilla DTD", read_dtd, fill_dtd, NOT_XML),
}
ANDROID = Format("Android", read_android, fill_android, NOT_XML)
NAMES = [*FORMATS, "strings.xml"]


@dataclass(frozen=True)
class Filled:
    """A catalogue with filled entries.

    Args:
        content: The new bytes.
        filled: Key and part of the entries that were filled.
        refused: Key and part of the entries that were not filled -> the reason.
    """

    content: bytes
    filled: tuple[Identity, ...]
    refused: Mapping[Identity, str]


def find_format(path: str) -> Format | None:
    """Return the catalogue format of a file from its name.

    Args:
        path: Path of the file.

    Returns:
        The format; None if the name is not that of a catalogue.
    """
    name = PurePosixPath(path).name.lower()
    if name.startswith("strings") and name.endswith(".xml"):
        return ANDROID
    return FORMATS.get(PurePosixPath(name).suffix)


def read_catalogue(path: str, content: bytes) -> Catalogue:
    """Read a localization catalogue.

    Args:
        path: Path of the file, which determines the format and is used in error messages.
        content: Content of the file as bytes.

    Returns:
        The catalogue.

    Raises:
        ImportError: If the format needs a package that is not installed.
        ValueError: If the format is unknown, or the file is damaged or too large; the message names file and line.
    """
    if (form := find_format(path)) is None:
        raise ValueError(f"{path} is no catalogue; allowed are {', '.join(NAMES)}")
    if len(content) > MAX_FILE:
        raise ValueError(f"{path} has {len(content):,} bytes; at most {MAX_FILE:,} are read")
    return form.read(path, content)


def fill_catalogue(
    catalogue: Catalogue,
    texts: Mapping[Identity, str],
    reference: Catalogue | None = None,
    notes: Mapping[str, str] | None = None,
) -> Filled:
    """Write texts into the untranslated entries of a catalogue, and leave all other bytes unchanged.

    The new entries are marked as needing review in the way of the format. The result is read again. An entry is refused
    if its text is not read back unchanged, or if it changes another entry.

    Args:
        catalogue: The catalogue.
        texts: Key and part of an entry -> its new text.
        reference: The same file in a source language. In formats whose files contain one language (Fluent,
            .properties, .dtd, Android), it determines the order, selectors and kinds of the entries.
        notes: Key -> one line for reviewers, such as the origin of the new texts, which is written as a comment on the
            message. A note consists of letters, digits, blanks and `.,:;()%`. XLIFF 2 files get no notes.

    Returns:
        The new content, the filled entries, and the refused entries with the reasons.

    Raises:
        ValueError: If files of this format cannot be filled, or a note has other characters.
    """
    form = find_format(catalogue.path)
    if form is None or form.fill is None:
        raise ValueError(f"{catalogue.path} cannot be filled: fill the file that it is made from, such as the .po file")
    notes = notes or {}
    for key, note in notes.items():
        if not NOTE.fullmatch(note):
            raise ValueError(f"the note on {shown_key(key)} is {shown(note)}; it must be of A-Z, a-z, 0-9 and .,:;()%")
    if not _is_encoded_alike(catalogue):
        reason = f"the file would change elsewhere, because {catalogue.encoding} has several bytes for one character"
        return Filled(catalogue.content, (), dict.fromkeys(texts, f"{reason}: convert the file to UTF-8"))
    numbers = count_current(catalogue.entries)
    refused = {identity: ambiguous(numbers[identity]) for identity in texts if numbers[identity] > 1}
    refused |= dict.fromkeys((identity for identity in texts if identity[0] in catalogue.damaged), DAMAGED)
    for identity, text in texts.items():
        if form.forbidden and (letter := form.forbidden.search(text)):
            refused[identity] = f"the file cannot hold this text: U+{ord(letter[0]):04X} is no character of XML"
    left = {identity: text for identity, text in texts.items() if identity not in refused}
    while left:
        changes = form.fill(catalogue, left, reference, notes)
        found = dict(changes.refused)
        left = {identity: text for identity, text in left.items() if identity not in found}
        content = _edited(catalogue, changes)
        if not found:
            if (broken := _broken(form, catalogue, content, left)) is None:
                return Filled(content, tuple(left), refused)
            found = broken
        if not found:  # an entry that is not in `left` has changed
            found = _find_broken(form, catalogue, left, reference, notes)
            found = found or dict.fromkeys(left, "the file cannot hold these texts together")
        refused |= found
        left = {identity: text for identity, text in left.items() if identity not in found}
    return Filled(catalogue.content, (), refused)


def _find_broken(
    form: Format,
    catalogue: Catalogue,
    texts: Mapping[Identity, str],
    reference: Catalogue | None,
    notes: Mapping[str, str],
) -> dict[Identity, str]:
    """Bisect the messages to find the texts that break the file; {} if only their combination breaks it."""
    keys = list(dict.fromkeys(key for key, _ in texts))
    content = _edited(catalogue, form.fill(catalogue, texts, reference, notes)) if form.fill else catalogue.content
    if (broken := _broken(form, catalogue, content, texts)) is None:
        return {}
    if broken:
        return broken
    if len(keys) == 1:
        return dict.fromkeys(texts, "the file cannot hold this text")
    first = {*keys[: len(keys) // 2]}
    halves = (
        {identity: text for identity, text in texts.items() if (identity[0] in first) is one} for one in (True, False)
    )
    return {k: v for half in halves for k, v in _find_broken(form, catalogue, half, reference, notes).items()}


def _is_encoded_alike(catalogue: Catalogue) -> bool:
    """Return whether encoding the decoded text gives the same bytes, which is not so for every old character set."""
    try:
        return catalogue.text.encode(catalogue.encoding) == catalogue.content
    except UnicodeEncodeError:
        return False


def _edited(catalogue: Catalogue, changes: Changes) -> bytes:
    return apply_edits(catalogue.text, changes.edits).encode(catalogue.encoding)


def _broken(
    form: Format, catalogue: Catalogue, content: bytes, texts: Mapping[Identity, str]
) -> dict[Identity, str] | None:
    """Return the wrong entries of the new content with reasons; {} for another error, None if there is no error."""
    try:
        new = form.read(catalogue.path, content)
    except ValueError:
        return {}
    found: dict[Identity, Entry] = {}
    for entry in new.entries:
        if entry.state != OBSOLETE:
            found.setdefault(entry.identity, entry)
    wrong = {
        identity: f"the file cannot hold this text: {_reread(found.get(identity))}"
        for identity, text in texts.items()
        if identity not in found or found[identity].text != text or found[identity].state != FUZZY
    }
    if wrong:
        return wrong

    def others(entries: tuple[Entry, ...]) -> list[tuple[Identity, str, str]]:
        return [
            (one.identity, one.text, one.state) for one in entries if one.identity not in texts or one.state == OBSOLETE
        ]

    numbers = count_current(new.entries)
    same = others(new.entries) == others(catalogue.entries) and len(new.unhandled) == len(catalogue.unhandled)
    return None if same and all(numbers[identity] == 1 for identity in texts) else {}


def _reread(entry: Entry | None) -> str:
    return "it does not come back" if entry is None else f"it comes back as {entry.text[:60]!r}, {entry.state}"


__all__ = ["FORMATS", "Filled", "Format", "fill_catalogue", "find_format", "read_catalogue"]
