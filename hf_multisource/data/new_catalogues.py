"""Create the catalogue of a new language from a source's file, without translations."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from hf_multisource.data import catalogue_android, catalogue_dtd, catalogue_qt, catalogue_xliff
from hf_multisource.data.catalogue_entries import JOINT, Catalogue, Edit, apply_edits, newline_of
from hf_multisource.data.catalogue_files import find_format, read_catalogue
from hf_multisource.data.catalogue_gettext import decompiled, empty_po
from hf_multisource.data.catalogue_properties import line_end_of
from hf_multisource.data.plural_forms import FORMULA, plural_rule, qt_formula
from hf_multisource.data.xml_places import (
    Element,
    parse_xml,
    removal_of,
    with_attribute,
    with_content,
    without_attributes,
)

LINE_END = r"(?:\r\n|\r(?!\n)|\n)"  # of .properties files; the alternatives exclude each other, to match in linear time
# Pattern of the first comment in formats whose files contain one language, by suffix.
COMMENTS = {
    ".ftl": re.compile(r"\ufeff?(?:[ \t]*\r?\n)*((?:#[^\n]*(?:\n|$))+)"),
    ".properties": re.compile(rf"\ufeff?(?:[ \t]*{LINE_END})*((?:[ \t]*[#!][^\r\n]*(?:{LINE_END}|$))+)"),
    ".dtd": re.compile(r"\ufeff?\s*(<!--(?:[^-]|-(?!->))*-->[ \t]*\r?\n?)"),
}
LICENSE = re.compile("licen[cs]e|copyright", re.IGNORECASE)


def new_catalogue(reference: Catalogue, path: str, language: str) -> Catalogue:
    """Create a catalogue without translations for another language.

    A comment at the beginning of the file is kept if a license or a following empty line shows that it belongs to the
    file. Declarations and references with which .dtd files include other files, such as `%brandDTD;`, are kept. In
    formats that contain the messages of the source language, the messages are kept, with the plural forms of the new
    language: those of CLDR, or in Qt files those of Qt.

    Args:
        reference: The same file in a source language.
        path: Name of the new file. The suffixes `.pot` of a template and `.mo` of a compiled file become `.po`.
        language: Code of the new language.

    Returns:
        The catalogue.

    Raises:
        ImportError: If plural forms are needed, and the package babel is not installed.
        ValueError: If files of this format cannot be created.
    """
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in (".po", ".pot", ".mo"):
        path = f"{path[: -len(suffix)]}.po"
        rule = plural_rule(language)
        template = decompiled(reference) if reference.path.endswith(".mo") else reference
        text = empty_po(template, JOINT.sub("_", language), rule.formula if rule else "nplurals=2; plural=(n != 1);")
    elif suffix in (".xlf", ".xliff"):
        text = _empty_xliff(reference, language)
    elif suffix == ".ts":
        text = _empty_qt(reference, language)
    elif suffix == ".xml":
        root, found = parse_xml(reference.path, reference.content, catalogue_android.ROOT)
        newline = newline_of(found)
        head = found[: root.inner] if root.inner < root.end else f"{found[: root.inner - 2].rstrip()}>"
        text = f"{head}{newline}</{root.tag}>{newline}"
    elif suffix in COMMENTS:
        newline = line_end_of(reference.text) if suffix == ".properties" else newline_of(reference.text)
        text = _first_comment(reference.text, COMMENTS[suffix], newline)
        if suffix == ".dtd":
            text += "".join(f"{one}{newline}" for one in catalogue_dtd.inclusions(reference.text))
    else:
        form = find_format(path)
        raise ValueError(f"{reference.path} is {form.name if form else 'no catalogue'}: such files cannot be made anew")
    # The encoding of a .properties file shows how its program reads files; all other new files are UTF-8.
    return read_catalogue(path, text.encode(reference.encoding if suffix == ".properties" else "utf-8"))


def _first_comment(text: str, pattern: re.Pattern[str], newline: str) -> str:
    """Return the comment at the beginning of a file and an empty line if the comment describes the file; else ""."""
    found = pattern.match(text)
    if found is None:
        return ""
    alone = re.match(r"[ \t]*([\r\n]|$)", text[found.end() :]) is not None
    return f"{found[1].rstrip()}{newline}{newline}" if alone or LICENSE.search(found[1]) else ""


def _empty_xliff(reference: Catalogue, language: str) -> str:
    root, text = parse_xml(reference.path, reference.content, catalogue_xliff.ROOT)
    new = root.get("version").startswith("2")
    edits: list[Edit] = []
    for element in root.walk():
        if (element is root) if new else element.name == "file":
            edits.append(_attribute(element, text, "trgLang" if new else "target-language", language))
        if element.name == "trans-unit" and element.get("approved") == "yes":
            edits.append(_attribute(element, text, "approved", "no"))
        parent = element.parent
        if element.name == "trans-unit":
            edits += [removal_of(note, text) for note in catalogue_xliff.origin_notes(element)]
        elif element.name == "segment":
            tag = without_attributes(text[element.start : element.inner], ("state", "subState"))
            edits.append((element.start, element.inner, tag))
        elif element.name == "target" and parent is not None and parent.name in ("trans-unit", "segment"):
            edits.append(removal_of(element, text))
    return apply_edits(text, edits)


def _empty_qt(reference: Catalogue, language: str) -> str:
    root, text = parse_xml(reference.path, reference.content, catalogue_qt.ROOT)
    forms = int(number[1]) if (number := FORMULA.search(qt_formula(language))) else 1
    edits = [_attribute(root, text, "language", JOINT.sub("_", language))]
    for message in root.walk():
        translation = message.find("translation") if message.name == "message" else None
        if translation is None:
            continue
        if translation.get("type") in catalogue_qt.GONE:
            edits.append(removal_of(message, text))
            continue
        if (comment := message.find("translatorcomment")) is not None:
            edits.append(removal_of(comment, text))
        inner = "<numerusform></numerusform>" * forms if message.get("numerus") == "yes" else ""
        empty = with_content(translation, text, inner, ("variants",), type="unfinished")
        edits.append((translation.start, translation.end, empty))
    return apply_edits(text, edits)


def _attribute(element: Element, text: str, name: str, value: str) -> Edit:
    return element.start, element.inner, with_attribute(text[element.start : element.inner], name, value)


__all__ = ["new_catalogue"]
