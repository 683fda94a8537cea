"""Read and fill XLIFF files of versions 1.2 and 2."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hf_multisource.data.catalogue_entries import (
    DONE,
    FUZZY,
    TRANSLATED,
    UNTRANSLATED,
    Catalogue,
    Changes,
    Edit,
    Entry,
    Identity,
    newline_of,
)
from hf_multisource.data.catalogue_gettext import ORIGIN_NOTE
from hf_multisource.data.xml_places import (
    Element,
    as_content,
    indent_of,
    parse_xml,
    removal_of,
    with_attribute,
    with_content,
)

ROOT = "xliff"
FILE_END = "\x04"  # separator of the name of a <file> and the id of a unit in keys
# States of XLIFF 2 and 1.2 of targets that are not translated yet, and of translations that need a review.
INITIAL = ("initial",)
NEW = ("new", "needs-translation")
REVIEWED = {
    *("needs-adaptation", "needs-l10n"),
    *("needs-review-adaptation", "needs-review-l10n", "needs-review-translation"),
}
# Attributes that name the languages: of <file> in XLIFF 1.2, of <xliff> in XLIFF 2.
SOURCE_LANGUAGE = {"1": "source-language", "2": "srcLang"}
TARGET_LANGUAGE = {"1": "target-language", "2": "trgLang"}
NO_LANGUAGE = "the file has no trgLang, without which XLIFF 2 allows no translations: add it to <xliff>"
SUBSTATE = "hf-multisource:needs-review"  # XLIFF 2 lets tools define sub-states with a prefix


def read_xliff(path: str, content: bytes) -> Catalogue:
    """Read the translatable units of an XLIFF file.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.

    Returns:
        The catalogue. Texts with inline elements stay XML.

    Raises:
        ValueError: If `parse_xml` cannot read the file, or it is not XLIFF 1.x or 2.x.
    """
    root, text = _root(path, content)
    entries = []
    for (key, part), unit in _units(root):
        source, target = unit.find("source"), unit.find("target")
        if source is None:
            continue
        notes = [child.text for child in unit.children if child.name == "note"]
        inner, markup = source.content(text)
        translation = target.content(text)[0] if target is not None else ""
        markup = markup or bool(target and target.children)
        entries.append(
            Entry(key, part, translation, _state(unit, target, translation, inner), "\n".join(notes), inner, markup)
        )
    source_language, language = _language(root, SOURCE_LANGUAGE), _language(root, TARGET_LANGUAGE)
    files = _files(root)
    original = files[0].get("original") if len(files) == 1 else ""
    return Catalogue(
        path, content, tuple(entries), source_language=source_language, language=language, original=original
    )


def match_keys(catalogue: Catalogue, other: Catalogue) -> Catalogue:
    """Give the units of an XLIFF document the keys that they have in another language's document.

    Only in documents of several files, keys begin with the attribute `original` of the `<file>`. If one of the two
    documents has several files, and the other one has a single file, the units of this file are matched by `original`.

    Args:
        catalogue: The catalogue. Catalogues of other formats are returned unchanged.
        other: The catalogue of the other language.

    Returns:
        The catalogue with the new keys.
    """
    prefix = f"{catalogue.original or other.original}{FILE_END}"
    if catalogue.original and any(entry.key.startswith(prefix) for entry in other.entries):
        entries = (replace(entry, key=f"{prefix}{entry.key}") for entry in catalogue.entries)
    elif other.original and not catalogue.original:
        entries = (replace(entry, key=entry.key.removeprefix(prefix)) for entry in catalogue.entries)
    else:
        return catalogue
    return replace(catalogue, entries=tuple(entries))


def fill_xliff(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    """Fill the untranslated units of an XLIFF file, and set a state that asks for a review.

    Args:
        catalogue: The file. The language of the catalogue is added to a file that does not name it.
        texts: The new texts. A text is XML if its source has inline elements.
        reference: Not used, because XLIFF files contain all units.
        notes: Key -> a line that becomes a note on the unit, in XLIFF 1.2. It replaces the note of an earlier run.

    Returns:
        The changes.
    """
    root, text = _root(catalogue.path, catalogue.content)
    units: dict[Identity, Element] = {}
    for identity, unit in _units(root):
        if unit.find("source") is not None:
            units.setdefault(identity, unit)
    entries, newline = {entry.identity: entry for entry in catalogue.entries}, newline_of(text)
    new, attribute = _version(root) == "2", TARGET_LANGUAGE[_version(root)]
    if new and not catalogue.language:
        return Changes((), dict.fromkeys(texts, NO_LANGUAGE))
    edits, refused = list[Edit](), dict[Identity, str]()
    unnamed: dict[int, Element] = {}  # place -> element that has to name the language of a filled target
    for identity, one in texts.items():
        key = identity[0]
        if identity not in entries:
            refused[identity] = "the file has no such unit for translation"
            continue
        if entries[identity].state != UNTRANSLATED:
            refused[identity] = DONE
            continue
        unit = units[identity]
        source, target = unit.find("source"), unit.find("target")
        assert source is not None
        inner = as_content(one, bool(source.children), newline)
        state = {} if new else {"state": "needs-review-translation"}
        note, prefix = "", source.tag.removesuffix("source")
        if key in notes and not new:
            note = f"{indent_of(text, source.start)}<{prefix}note>{notes[key]}</{prefix}note>"
        edits += [removal_of(old, text) for old in origin_notes(unit)]
        if target is not None:
            element = with_content(target, text, inner, ("state-qualifier",), **state)
            edits.append((target.start, target.end, f"{element}{note}"))
        else:
            before = unit.find("seg-source") or source
            name = f"{prefix}target"
            attributes = "".join(f' {key}="{value}"' for key, value in state.items())
            element = f"<{name}{attributes}>{inner}</{name}>"
            edits.append((before.end, before.end, f"{indent_of(text, source.start)}{element}{note}"))
        header = root if new else next((one for one in unit.ancestors() if one.name == "file"), None)
        if header is not None and not header.get(attribute):
            unnamed[header.start] = header
        if unit.get("approved") == "yes":
            edits.append((unit.start, unit.inner, with_attribute(text[unit.start : unit.inner], "approved", "no")))
        if new:
            tag = with_attribute(text[unit.start : unit.inner], "state", "translated")
            edits.append((unit.start, unit.inner, with_attribute(tag, "subState", SUBSTATE)))
    if catalogue.language:
        for file in unnamed.values():
            tag = with_attribute(text[file.start : file.inner], attribute, catalogue.language)
            edits.append((file.start, file.inner, tag))
    return Changes(tuple(edits), refused)


def origin_notes(unit: Element) -> list[Element]:
    """Return the notes on the origin of a text that was filled earlier.

    Args:
        unit: The unit.

    Returns:
        The elements of the notes.
    """
    return [child for child in unit.children if child.name == "note" and ORIGIN_NOTE.fullmatch(child.text.strip())]


def _root(path: str, content: bytes) -> tuple[Element, str]:
    root, text = parse_xml(path, content, ROOT)
    if not root.get("version").startswith(("1.", "2.")):
        raise ValueError(
            f"{path}: the root must be <xliff> of version 1.x or 2.x; "
            f"it is <{root.tag[:40]}> of version {root.get('version', 'none')[:10]}"
        )
    return root, text


def _version(root: Element) -> str:
    """Return the major version of XLIFF: 1 or 2."""
    return root.get("version")[:1]


def _language(root: Element, names: Mapping[str, str]) -> str | None:
    """Return the language that an attribute names; None if it is missing or differs between the files of XLIFF 1.2."""
    if _version(root) == "2":
        return root.get(names["2"]) or None
    found = {child.get(names["1"]) for child in _files(root)} - {""}
    return found.pop() if len(found) == 1 else None


def _files(root: Element) -> list[Element]:
    return [child for child in root.children if child.name == "file"]


def _units(root: Element) -> Iterator[tuple[Identity, Element]]:
    """Yield key and part of each text, and the element that contains source and target.

    In documents of several files, keys begin with the attribute `original` of <file>, or with its id if it has no
    `original`. In documents of one file they do not, because both attributes may contain the language: converters write
    the name of the input file (`de.po`) into `original`, and Symfony writes `messages.fr` into the id.
    """
    several = len(_files(root)) > 1
    for element in root.walk():
        if element.name not in ("trans-unit", "unit"):
            continue
        around = list(element.ancestors())
        if next((value for one in around if (value := one.get("translate"))), "yes") == "no":
            continue
        file = next((one for one in around if one.name == "file"), root)
        name = (file.get("original") or file.get("id")) if several else ""
        key = f"{name}{FILE_END}{element.get('id')}" if name else element.get("id")
        if element.name == "trans-unit":
            yield (key, ""), element
        else:
            segments = [child for child in element.children if child.name == "segment"]
            for i, segment in enumerate(segments):
                yield (key, f"[{segment.get('id') or i}]" if len(segments) > 1 else ""), segment


def _comparable(text: str) -> str:
    """Return a text with single spaces, and without spaces at its ends and before the end of empty elements."""
    return re.sub("[ \t\r\n]+", " ", text).strip().replace(" />", "/>")


def _state(unit: Element, target: Element | None, text: str, source: str) -> str:
    """Return the state of a unit.

    A text whose state says that it is no translation yet is a draft, which needs a review, if it is not the source.
    White space does not count, because tools for XML change it when they write a copy of the source.
    `initial` is the default state of XLIFF 2, but programs that write no states write translations. Therefore, only a
    written state counts.
    """
    if target is None or not text:
        return UNTRANSLATED
    is_segment = unit.name == "segment"
    state = unit.get("state") if is_segment else target.get("state")
    if state in (INITIAL if is_segment else NEW):
        return UNTRANSLATED if _comparable(text) in ("", _comparable(source)) else FUZZY
    if is_segment:
        return FUZZY if unit.get("subState").rpartition(":")[2].startswith("needs-review") else TRANSLATED
    return FUZZY if state in REVIEWED else TRANSLATED
