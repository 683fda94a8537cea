"""Read and fill XLIFF files of versions 1.2 and 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
)
from hf_multisource.data.xml_places import Element, escape, indent_of, parse_xml, with_attribute, with_content

ROOT = "xliff"
# States of XLIFF 1.2: `NEW` means that a target is not translated yet, `REVIEWED` that a translation needs a review.
NEW = ("new", "needs-translation")
REVIEWED = {
    *("needs-adaptation", "needs-l10n"),
    *("needs-review-adaptation", "needs-review-l10n", "needs-review-translation"),
}
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
    new = root.get("version").startswith("2")
    languages = {one.get("source-language") for one in root.children if one.name == "file"} - {""}
    language = root.get("srcLang") if new else languages.pop() if len(languages) == 1 else ""
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
            Entry(key, part, translation, _state(unit, target, translation), "\n".join(notes), inner, markup)
        )
    return Catalogue(path, content, tuple(entries), source_language=language or None)


def fill_xliff(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    """Fill the untranslated units of an XLIFF file, and set a state that asks for a review.

    Args:
        catalogue: The file.
        texts: The new texts. A text is XML if its source has inline elements.
        reference: Not used, because XLIFF files contain all units.
        notes: Key -> a line that becomes a note on the unit, in XLIFF 1.2.

    Returns:
        The changes.
    """
    root, text = _root(catalogue.path, catalogue.content)
    units: dict[Identity, Element] = {}
    for identity, unit in _units(root):
        if unit.find("source") is not None:
            units.setdefault(identity, unit)
    entries = {entry.identity: entry for entry in catalogue.entries}
    new = root.get("version").startswith("2")
    edits, refused = list[Edit](), dict[Identity, str]()
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
        inner = one if source.children else escape(one)
        state = {} if new else {"state": "needs-review-translation"}
        note, prefix = "", source.tag.removesuffix("source")
        if key in notes and not new:
            note = f"{indent_of(text, source.start)}<{prefix}note>{notes[key]}</{prefix}note>"
        if target is not None:
            edits.append((target.start, target.end, with_content(target, text, inner, **state) + note))
        else:
            before = unit.find("seg-source") or source
            name = f"{prefix}target"
            attributes = "".join(f' {key}="{value}"' for key, value in state.items())
            element = f"<{name}{attributes}>{inner}</{name}>"
            edits.append((before.end, before.end, f"{indent_of(text, source.start)}{element}{note}"))
        if unit.get("approved") == "yes":
            edits.append((unit.start, unit.inner, with_attribute(text[unit.start : unit.inner], "approved", "no")))
        if new:
            tag = with_attribute(text[unit.start : unit.inner], "state", "translated")
            edits.append((unit.start, unit.inner, with_attribute(tag, "subState", SUBSTATE)))
    return Changes(tuple(edits), refused)


def _root(path: str, content: bytes) -> tuple[Element, str]:
    root, text = parse_xml(path, content, ROOT)
    if not root.get("version").startswith(("1.", "2.")):
        raise ValueError(
            f"{path}: the root must be <xliff> of version 1.x or 2.x; "
            f"it is <{root.tag[:40]}> of version {root.get('version', 'none')[:10]}"
        )
    return root, text


def _units(root: Element) -> Iterator[tuple[Identity, Element]]:
    """Yield key and part of each text, and the element that contains source and target."""
    files = [child for child in root.children if child.name == "file"]
    for element in root.walk():
        if element.name not in ("trans-unit", "unit"):
            continue
        around = list(element.ancestors())
        if next((value for one in around if (value := one.get("translate"))), "yes") == "no":
            continue
        file = next((one for one in around if one.name == "file"), root)
        prefix = f"{file.get('original') or file.get('id')}\x04" if len(files) > 1 else ""
        key = prefix + element.get("id")
        if element.name == "trans-unit":
            yield (key, ""), element
        else:
            segments = [child for child in element.children if child.name == "segment"]
            for i, segment in enumerate(segments):
                yield (key, f"[{segment.get('id') or i}]" if len(segments) > 1 else ""), segment


def _state(unit: Element, target: Element | None, text: str) -> str:
    if target is None or not text:
        return UNTRANSLATED
    if unit.name == "segment":
        if unit.get("state") == "initial":
            return UNTRANSLATED
        return FUZZY if unit.get("subState").rpartition(":")[2].startswith("needs-review") else TRANSLATED
    state = target.get("state")
    return UNTRANSLATED if state in NEW else FUZZY if state in REVIEWED else TRANSLATED
