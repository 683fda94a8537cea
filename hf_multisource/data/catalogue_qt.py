"""Read and fill Qt's .ts files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hf_multisource.data.catalogue_entries import (
    DONE,
    FUZZY,
    OBSOLETE,
    TRANSLATED,
    UNTRANSLATED,
    Catalogue,
    Changes,
    Edit,
    Entry,
    Identity,
    by_key,
    newline_of,
)
from hf_multisource.data.catalogue_gettext import ORIGIN_NOTE
from hf_multisource.data.xml_places import Element, as_content, indent_of, parse_xml, removal_of, with_content

ROOT = "TS"
GONE = ("vanished", "obsolete")  # values of the attribute `type` for messages that the program no longer contains
COMMENTS = ("extracomment", "translatorcomment", "comment")


def read_qt(path: str, content: bytes) -> Catalogue:
    """Read the messages of a .ts file.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.

    Returns:
        The catalogue; plural forms are parts `[0]`, `[1]`, ….

    Raises:
        ValueError: If `parse_xml` cannot read the file, or its root is not `TS`.
    """
    root, text = parse_xml(path, content, ROOT)
    entries, unhandled = [], []
    for key, message in _messages(root):
        source, translation = message.find("source"), message.find("translation")
        if source is None or translation is None:
            unhandled.append(f"{key.replace(chr(4), ' | ')}: no source or no translation")
            continue
        inner, markup = source.content(text)
        kind = translation.get("type")
        comment = "\n".join(note.text for name in COMMENTS if (note := message.find(name)) is not None)
        for part, element in _forms(message, translation).items():
            if element.get("variants") == "yes" or element.find("lengthvariant") is not None:
                unhandled.append(f"{key.replace(chr(4), ' | ')}{part}: variants by length")
                continue
            one, elements = element.content(text)
            state = OBSOLETE if kind in GONE else TRANSLATED
            state = (FUZZY if one else UNTRANSLATED) if kind == "unfinished" else state
            entries.append(Entry(key, part, one, state, comment, inner, markup or elements))
    source_language, language = root.get("sourcelanguage") or None, root.get("language") or None
    return Catalogue(
        path, content, tuple(entries), tuple(unhandled), source_language=source_language, language=language
    )


def fill_qt(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    """Fill the untranslated messages of a .ts file, which stay marked as `unfinished`.

    Args:
        catalogue: The file.
        texts: The new texts. For a message with plural forms, all forms are required.
        reference: Not used, because .ts files contain all messages.
        notes: Key -> a line that is added to the translator's comment on the message. It replaces the line of an
            earlier run.

    Returns:
        The changes.
    """
    root, text = parse_xml(catalogue.path, catalogue.content, ROOT)
    messages: dict[str, Element] = {}
    for key, message in _messages(root):
        translation = message.find("translation")
        if translation is not None and translation.get("type") not in GONE:
            messages.setdefault(key, message)
    states = {entry.identity: entry for entry in catalogue.entries if entry.state != OBSOLETE}
    parts_of = by_key(states)
    edits, refused, newline = list[Edit](), dict[Identity, str](), newline_of(text)
    for key, parts in by_key(texts).items():
        there = parts_of.get(key, [])
        reason = ""
        if not set(parts) <= set(there):
            reason = (
                f"the message has {', '.join(there) or 'no such text'}" if there else "the file has no such message"
            )
        elif any(states[key, part].state != UNTRANSLATED for part in parts):
            reason = DONE
        elif set(parts) != set(there):
            reason = f"{', '.join(part for part in there if part not in parts)} of the message would stay empty"
        if reason:
            refused |= {(key, part): reason for part in parts}
            continue
        translation = messages[key].find("translation")
        assert translation is not None
        edits += _comment_edits(messages[key], translation, text, notes.get(key), newline)
        for part, element in _forms(messages[key], translation).items():
            inner = as_content(texts[key, part], states[key, part].markup, newline)
            edits.append((element.start, element.end, with_content(element, text, inner)))
    return Changes(tuple(edits), refused)


def _comment_edits(message: Element, translation: Element, text: str, note: str | None, newline: str) -> Iterator[Edit]:
    """Yield the edit, if any, that replaces the note of an earlier run in the translator's comment."""
    comment = message.find("translatorcomment")
    if comment is None:
        if note is not None:
            element = f"<translatorcomment>{note}</translatorcomment>{indent_of(text, translation.start)}"
            yield translation.start, translation.start, element
        return
    inner = text[comment.inner : comment.inner_end]
    before = re.split(r"\r?\n", inner) if inner.strip() else []
    after = [line for line in before if not ORIGIN_NOTE.fullmatch(line.strip())]
    after += [note] if note is not None else []
    if not after:
        yield removal_of(comment, text)
    elif after != before:
        yield comment.start, comment.end, with_content(comment, text, newline.join(after))


def _messages(root: Element) -> Iterator[tuple[str, Element]]:
    """Yield key and element of each message; the key is the id, or else context, text and comment."""
    for context in root.children:
        if context.name == "message":  # files with ids may have messages without a context
            yield context.get("id"), context
            continue
        name = context.find("name")
        for message in context.children:
            if message.name == "message":
                source, comment = message.find("source"), message.find("comment")
                pieces = [one.text if one is not None else "" for one in (name, source)]
                pieces += [comment.text] if comment is not None else []
                yield message.get("id") or "\x04".join(pieces), message


def _forms(message: Element, translation: Element) -> dict[str, Element]:
    """Return a map from part to the element with the text."""
    if message.get("numerus") != "yes":
        return {"": translation}
    forms = [child for child in translation.children if child.name == "numerusform"]
    return {f"[{i}]": form for i, form in enumerate(forms)}
