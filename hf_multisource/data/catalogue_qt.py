"""Read and fill Qt's .ts files."""

from __future__ import annotations

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
)
from hf_multisource.data.xml_places import Element, escape, indent_of, parse_xml, with_content

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
    return Catalogue(
        path, content, tuple(entries), tuple(unhandled), source_language=root.get("sourcelanguage") or None
    )


def fill_qt(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    """Fill the untranslated messages of a .ts file, which stay marked as `unfinished`.

    Args:
        catalogue: The file.
        texts: The new texts. For a message with plural forms, all forms are required.
        reference: Not used, because .ts files contain all messages.
        notes: Key -> a line that becomes a comment on the message.

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
    edits, refused = list[Edit](), dict[Identity, str]()
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
        if key in notes and messages[key].find("translatorcomment") is None:
            note = f"<translatorcomment>{notes[key]}</translatorcomment>{indent_of(text, translation.start)}"
            edits.append((translation.start, translation.start, note))
        for part, element in _forms(messages[key], translation).items():
            one = texts[key, part]
            inner = one if states[key, part].markup else escape(one)
            edits.append((element.start, element.end, with_content(element, text, inner)))
    return Changes(tuple(edits), refused)


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
