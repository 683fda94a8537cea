"""Read and fill Android's strings.xml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hf_multisource.data.catalogue_entries import (
    DONE,
    REVIEW,
    Catalogue,
    Changes,
    Entry,
    Identity,
    by_key,
    insert_blocks,
    newline_of,
    review_state,
)
from hf_multisource.data.plural_forms import CATEGORIES
from hf_multisource.data.xml_places import Element, escape, indent_of, parse_xml

ROOT = "resources"
QUANTITIES = [f"[{category}]" for category in CATEGORIES]
KINDS = ("string", "plurals", "string-array")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))|([ \t\r\n]+)|(\")", re.DOTALL)
# `XML_ESCAPE` is `ESCAPE` for texts with XML elements. Tags, comments and CDATA sections stay unchanged, and quotation
# marks may be character references, which Android reads like the characters.
TAG = r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>"
XML_ESCAPE = re.compile(
    rf"(?P<tag>{TAG})|\\(?:u([0-9a-fA-F]{{4}})|(&(?:quot|apos|#34|#39);|.))|([ \t\r\n]+)|(\"|&quot;|&#34;)", re.DOTALL
)
XML_SPECIAL = re.compile(rf"(?P<tag>{TAG})|&(?:quot|apos|#34|#39);|[\\\"'\n\t]", re.DOTALL)
SPECIAL = re.compile(r"[\\\"'\n\t]")
# A tag such as `<xliff:g>`. It does not change how Android reads quotation marks and white space.
PREFIXED_TAG = re.compile(r"</?[A-Za-z_][\w.-]*:(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>")
LEADING_TAGS = re.compile(rf"(?:\s|{TAG})*", re.DOTALL)
QUOTED, DECLARATION = re.compile(r"\"[^\"]*\"|'[^']*'"), re.compile(r"\sxmlns:([\w.-]+)\s*=")
PREFIX = re.compile(r"(?:</?|\s)([A-Za-z_][\w.-]*):[\w.-]+")
# A tag whose name has no prefix, such as `<b>`. It ends a quotation.
STYLE = re.compile(r"</?[A-Za-z_][\w.-]*(?=[\s/>])")
# Resource types that a reference such as `@string/app_name` can name; `@home` and `@user/x` are texts.
TYPES = (
    "anim|animator|array|attr|bool|color|dimen|drawable|font|fraction|id|integer|interpolator|layout|macro|menu|mipmap|"
    "navigation|plurals|raw|string|style|styleable|transition|xml"
)
REFERENCE = re.compile(
    rf"@(?:null|empty|\*?(?:[\w.]+:)?(?:{TYPES})/[\w.$-]+|\+(?:[\w.]+:)?id/[\w.$-]+)"
    r"|\?(?:[\w.]+:)?(?:attr/)?[\w.$-]+"
)
KEPT = ("formatted", "product")  # attributes of a string that are copied, because the resource compiler reads them
QUOTE = {'"': "&quot;"}
LETTERS = {"n": "\n", "t": "\t"}
INDENT = " " * 4


def read_android(path: str, content: bytes) -> Catalogue:
    """Read the translatable strings, plurals and string arrays of a strings.xml file.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.

    Returns:
        The catalogue. Android's escapes are decoded in all texts; texts with elements, such as `<b>`, stay XML.
        References to other resources, such as `@string/app_name`, are not texts and are left out.

    Raises:
        ValueError: If `parse_xml` cannot read the file, or its root is not `resources`.
    """
    root, text = parse_xml(path, content, ROOT)
    entries, unhandled = [], []
    for element in root.children:
        if element.name not in KINDS or element.get("translatable") == "false":
            continue
        if not (key := element.get("name")):
            unhandled.append(f"<{element.tag}> without a name")
            continue
        texts = {part: item for part, item in _texts(element).items() if not _is_reference(item)}
        if element.name == "plurals" and 0 < len(texts) < len(_texts(element)):
            unhandled.append(f"{key}: a plural form is a reference to another resource")
            continue
        for part, item in texts.items():
            inner, markup = item.content(text)
            one = _unescaped(inner, markup)
            if one is None:
                unhandled.append(f"{key}{part}: \\u gives half a character")
            else:
                state = review_state(element.comment)
                entries.append(Entry(key, part, one, state, element.comment, markup=markup))
    return Catalogue(path, content, tuple(entries), tuple(unhandled))


def fill_android(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    """Add complete strings, plurals and arrays, each with a comment that asks for a review.

    Args:
        catalogue: The file.
        texts: The new texts. A text is XML if the reference has elements in the same text.
        reference: The same file in a source language. It determines the order, the element names and which texts are
            XML.
        notes: Key -> a line that becomes a comment on the message.

    Returns:
        The changes.
    """
    root, text = parse_xml(catalogue.path, catalogue.content, ROOT)
    present = {element.get("name"): element for element in root.children}
    entries = {entry.identity: entry for entry in reference.entries} if reference else {}
    parts_of = by_key(entries)
    models: dict[str, list[Element]] = {}  # name -> elements of the reference with this name
    declared = _declared(root)
    if reference:
        other = parse_xml(reference.path, reference.content, ROOT)[0]
        for one in other.children:
            models.setdefault(one.get("name"), []).append(one)
        declarable = {name: uri for name, uri in _declared(other).items() if name not in declared}
    else:
        declarable = {}
    newline = newline_of(text)
    first = next((indent_of(text, child.start).lstrip("\r\n") for child in root.children), "") or INDENT
    refused, blocks = dict[Identity, str](), dict[str, str]()
    for key, parts in by_key(texts).items():
        found = models.get(key, [])
        kind = found[0].name if found else "string"
        missing = [part for part in parts_of.get(key, ()) if part not in parts]
        wrong = [part for part in parts if bool(part) != (kind != "string")]
        reason = DONE if key in present else ""
        if not reason and missing and (kind == "string-array" or "[other]" in missing):
            reason = f"{', '.join(missing)} would be missing"
        if not reason and wrong:
            reason = f"{wrong[0] or 'a text without part'} does not fit <{kind}>"
        if not reason and len(found) > 1:
            reason = "the reference has this name several times, for several products"
        markups = {part: (key, part) in entries and entries[key, part].markup for part in parts}
        prefixes = _prefixes(texts[key, part] for part in parts if markups[part]) - {*declared}
        if not reason and (unknown := sorted(prefixes - {*declarable})):
            reason = f"no file declares the prefix {', '.join(unknown)}"
        if reason:
            refused |= {(key, part): reason for part in parts}
            continue
        given = {"name": key} | {name: found[0].get(name) for name in KEPT if found and found[0].get(name)}
        given |= {f"xmlns:{prefix}": declarable[prefix] for prefix in sorted(prefixes)}
        start = kind + "".join(f' {name}="{escape(value, QUOTE)}"' for name, value in given.items())
        lines = [f"{first}<!-- {REVIEW} -->", *([f"{first}<!-- {notes[key]} -->"] if key in notes else [])]
        if kind == "string":
            lines.append(f"{first}<{start}>{_written(texts[key, ''], markups[''])}</string>")
        else:
            lines.append(f"{first}<{start}>")
            model = _texts(found[0])
            items = {part: _written(texts[key, part], markups[part]) for part in parts}
            if kind == "string-array":
                items |= {part: escape(item.text.strip()) for part, item in model.items() if _is_reference(item)}
            places = [*model] if kind == "string-array" or set(parts) <= set(model) else QUANTITIES
            for part in sorted(items, key=lambda one: places.index(one) if one in places else len(places)):
                attribute = f' quantity="{part[1:-1]}"' if kind == "plurals" else ""
                lines.append(f"{first}{first}<item{attribute}>{items[part]}</item>")
            lines.append(f"{first}</{kind}>")
        blocks[key] = newline.join(lines)
    spans = {}
    for key, element in present.items():
        if key:
            begin = element.start - len(indent_of(text, element.start).lstrip("\r\n"))
            spans[key] = (begin, element.end)
    order = list(dict.fromkeys(entry.key for entry in entries.values()))
    if root.inner == root.end and blocks:  # `<resources/>`
        return Changes((), dict.fromkeys(texts, "<resources/> is empty; write <resources></resources>"))
    end = root.inner_end - len(indent_of(text, root.inner_end).lstrip("\r\n"))
    return Changes(tuple(insert_blocks(text, blocks, spans, order, end)), refused)


def parts_of_resources(catalogue: Catalogue) -> dict[str, list[str]]:
    """Return the keys of the parts of each string, plural and array in a file, whether or not they are read as entries.

    Args:
        catalogue: The file.

    Returns:
        Name of the resource -> parts, such as `[0]` and `[1]` for an array of two items. References and texts that are
        not translatable are included. If several resources have the same name, the first is taken.
    """
    root, _ = parse_xml(catalogue.path, catalogue.content, ROOT)
    found: dict[str, list[str]] = {}
    for element in root.children:
        if element.name in KINDS:
            found.setdefault(element.get("name"), [*_texts(element)])
    return found


def _is_reference(element: Element) -> bool:
    """Return whether the text of an element is a reference to another resource, such as `@string/app_name`."""
    return not element.children and REFERENCE.fullmatch(element.text.strip(" \t\r\n")) is not None


def _texts(element: Element) -> dict[str, Element]:
    """Return a map from part to the element with the text."""
    if element.name == "string":
        return {"": element}
    items = [child for child in element.children if child.name == "item"]
    if element.name == "plurals":
        return {f"[{item.get('quantity')}]": item for item in items}
    return {f"[{i}]": item for i, item in enumerate(items)}


def _declared(root: Element) -> dict[str, str]:
    """Return the namespaces by prefix that are declared for the whole file."""
    found = {name.removeprefix("xmlns:"): uri for name, uri in root.attributes.items() if name.startswith("xmlns:")}
    return {**found, "xml": "", "xmlns": ""}


def _prefixes(texts: Iterable[str]) -> set[str]:
    """Return the namespace prefixes that texts use without declaring them."""
    tags = [match[0] for text in texts for match in re.finditer(TAG, text, re.DOTALL) if match[0][1] != "!"]
    found = {prefix for tag in tags for prefix in PREFIX.findall(QUOTED.sub("", tag))}
    return found - {name for tag in tags for name in DECLARATION.findall(tag)}


def _unescaped(text: str, markup: bool) -> str | None:
    """Decode Android's escapes, and collapse white space outside quotation marks; None if the result is not Unicode.

    As in Android's resource compiler, a tag without a prefix ends a quotation and a sequence of white space; other tags
    do not. White space at both ends of a text is removed only if the text has no tag without a prefix.
    """
    quoted = False
    pieces = []
    end = 0
    styled = markup and _has_style(text)
    text = text if styled else text.strip(" \t\r\n")
    after_blank = not styled  # whether unquoted white space is dropped, because it follows other white space
    for match in (XML_ESCAPE if markup else ESCAPE).finditer(text):
        code, letter, blanks, mark = match.groups()[-4:]
        pieces.append(text[end : match.start()])
        after_blank = after_blank and end == match.start()
        end = match.end()
        if code:
            one = chr(int(code, 16))
            pieces.append(escape(one) if markup else one)
        elif letter:
            pieces.append(LETTERS.get(letter, letter))
        elif blanks:
            pieces.append(blanks if quoted else "" if after_blank else " ")
        elif mark:
            quoted = not quoted
        else:
            pieces.append(match[0])  # a tag
            quoted = quoted and not STYLE.match(match[0])
        is_transparent = match[0].startswith("<!--") or PREFIXED_TAG.match(match[0]) is not None
        after_blank = (bool(blanks) and not quoted) or (after_blank and is_transparent)
    found = "".join([*pieces, text[end:]])
    try:
        return found.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return None


def _has_style(text: str) -> bool:
    """Return whether a text has a tag without a prefix."""
    return any(STYLE.match(tag[0]) for tag in re.finditer(TAG, text, re.DOTALL))


def _written(text: str, markup: bool) -> str:
    """Return a text with the escapes of Android and XML.

    Text in which Android would remove white space is quoted. Since a tag without a prefix ends a quotation, the texts
    between such tags are quoted separately.
    """
    found = (XML_SPECIAL if markup else SPECIAL).sub(_escaped, text)
    start = next(match.end() for match in LEADING_TAGS.finditer(found)) if markup else 0
    if found[start : start + 1] in ("@", "?"):
        found = f"{found[:start]}\\{found[start:]}"
    if not markup:
        return escape(f'"{found}"' if found.strip() != found or "  " in found else found)
    runs, end = [""], 0  # a text, a tag such as <b>, a text, a tag, …
    for match in re.finditer(TAG, found, re.DOTALL):
        runs[-1] += found[end : match.start()]
        end = match.end()
        if STYLE.match(match[0]):
            runs += [match[0], ""]
        else:
            runs[-1] += match[0]
    runs[-1] += found[end:]
    for i in range(0, len(runs), 2):
        plain = PREFIXED_TAG.sub("", runs[i])
        outer = (i == 0 and plain.lstrip() != plain) or (i == len(runs) - 1 and plain.rstrip() != plain)
        runs[i] = f'"{runs[i]}"' if outer or "  " in plain else runs[i]
    return "".join(runs)


def _escaped(match: re.Match[str]) -> str:
    """Return the escape of a special character; a tag is returned unchanged."""
    if match.lastgroup:
        return match[0]
    return {"\n": "\\n", "\t": "\\t"}.get(match[0], f"\\{match[0]}")
