"""Texts of a catalogue by key and part, with CLDR's plural categories in place of numbered plural forms.

The categories align the plural forms of several languages: form 1 of Czech is `few`, and form 1 of German is `other`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from hf_multisource.data.catalogue_entries import OBSOLETE, TRANSLATED, Catalogue, Entry
from hf_multisource.data.plural_forms import CATEGORIES, OTHER, PluralRule, forms_of_header, plural_rule, qt_formula

HOLDS_MESSAGES = (".po", ".pot", ".mo", ".xlf", ".xliff", ".ts")  # files that hold each message in the source language
ONE_PART, OTHER_PART = "[one]", f"[{OTHER}]"  # parts of the two plural forms of English
CODE_END = re.compile("[-_@.]")  # end of the language in a code such as de_DE.UTF-8 or sr@latin
SUCCESSORS = {"in": "id", "iw": "he", "no": "nb"}  # deprecated or general code -> code of the same written language
NUMBERED = (".po", ".pot", ".mo", ".ts")  # formats that number the plural forms of a message


@dataclass(frozen=True)
class View:
    """The translated texts of one catalogue.

    Args:
        entries: Key -> part -> entry. Parts of plural forms are categories, such as `[few]`, where these are known.
        rule: Plural rule of the language; None if CLDR does not know it.
    """

    entries: Mapping[str, Mapping[str, Entry]]
    rule: PluralRule | None

    def find(self, key: str, part: str) -> Entry | None:
        """Find the entry that corresponds to a part of another catalogue's message.

        Args:
            key: Key of the entry.
            part: Part of the entry.

        Returns:
            The first entry that exists of: the entry with this part; for a number, the entry of its plural category;
            the variant `other`; the text without variants; for a category or a text without variants, the default
            variant, or else the last one. None if none of them exists.
        """
        parts = self.entries.get(key, {})
        name, bracket, variant = split_part(part)
        other = f"{name}[{OTHER}]"
        wanted = [part]
        if variant.isdigit() and self.rule and other in parts:
            wanted.append(f"{name}[{self.rule.category(int(variant[:9]))}]")
        wanted += [other, name]
        if not bracket or variant in CATEGORIES:
            variants = [one for one in reversed([*parts]) if one.startswith(f"{name}[")]
            wanted += sorted(variants, key=lambda one: not parts[one].default)
        return next((parts[one] for one in wanted if one in parts), None)


def split_part(part: str) -> tuple[str, bool, str]:
    """Split a part such as `.label[few]`.

    Args:
        part: The part.

    Returns:
        Its name `.label`, whether it has a variant, and the variant `few`.
    """
    name, bracket, rest = part.partition("[")
    return name, bool(bracket), rest.removesuffix("]")


def suffix_of(catalogue: Catalogue) -> str:
    """Return the suffix of a catalogue's name, which identifies the format.

    Args:
        catalogue: The catalogue.

    Returns:
        The suffix in lower case, such as `.po`.
    """
    return PurePosixPath(catalogue.path).suffix.lower()


def view_of(catalogue: Catalogue, code: str) -> View:
    """Return the translated texts of a catalogue by key and part.

    Args:
        catalogue: The catalogue.
        code: Code of its language.

    Returns:
        The texts. If several entries have the same key and part, the first is taken.

    Raises:
        ImportError: If the package babel is not installed.
    """
    rule = plural_rule(code, catalogue.header)
    forms = forms_of(catalogue, code, rule)
    entries: dict[str, dict[str, Entry]] = {}
    for entry in catalogue.entries:
        if entry.state == TRANSLATED and entry.text.strip():
            part = category_part(entry.part, catalogue, forms)
            entries.setdefault(entry.key, {}).setdefault(entry.part if part is None else part, entry)
    return View(entries, rule)


def forms_of(catalogue: Catalogue, code: str, rule: PluralRule | None) -> tuple[str, ...] | None:
    """Return the plural categories of a catalogue's numbered plural forms.

    Args:
        catalogue: A catalogue.
        code: Code of its language.
        rule: Plural rule of its language.

    Returns:
        The category of each number; None if the format has no numbered forms, or their categories are not known.
    """
    if rule is None or suffix_of(catalogue) not in NUMBERED:
        return None
    if suffix_of(catalogue) != ".ts":
        return forms_of_header(catalogue.header, rule)
    number = max((int(entry.part[1:-1]) for entry in catalogue.entries if entry.part), default=-1) + 1
    forms = forms_of_header(qt_formula(code), rule) or ()
    # Other tools write the forms of CLDR; whether a form for 0 is the first or the last one of these, is not known.
    known = [forms] if "zero" in rule.categories else [forms, rule.categories]
    return next((one for one in known if number == len(one)), None)


def category_part(part: str, catalogue: Catalogue, forms: tuple[str, ...] | None) -> str | None:
    """Replace the number of a plural form by its plural category.

    Args:
        part: Part of an entry.
        catalogue: Catalogue of the entry.
        forms: Category of each number, as [`forms_of`] returns them.

    Returns:
        The part with the category, the unchanged part if it has no number, or None if the category is not known.
    """
    if not part or suffix_of(catalogue) not in NUMBERED:
        return part
    number = int(part[1:-1])
    return f"[{forms[number]}]" if forms and number < len(forms) else None


def source_forms(entry: Entry, source: str) -> dict[str, str]:
    """Return the source text of a numbered plural form by plural category.

    Args:
        entry: The entry of the plural form.
        source: Its text in the source language.

    Returns:
        Part of the source language, `[one]` or `[other]` -> text. In gettext these are both texts of the message, and
        otherwise the one text that the format has.
    """
    if entry.sources:
        return dict(zip((ONE_PART, OTHER_PART), entry.sources, strict=True))
    return {ONE_PART if entry.part == "[0]" else OTHER_PART: source}


def messages_of(catalogues: Iterable[Catalogue], code: str) -> dict[str, dict[str, Entry]]:
    """Return the texts in the source language, which gettext, XLIFF and Qt files of all languages contain.

    Args:
        catalogues: Files of any languages.
        code: Code of the source language. Files that name another source language are skipped.

    Returns:
        Key -> part -> entry.
    """
    found: dict[str, dict[str, Entry]] = {}
    for catalogue in catalogues:
        if suffix_of(catalogue) not in HOLDS_MESSAGES or not is_language(catalogue.source_language, code):
            continue
        for entry in catalogue.entries:
            if entry.source and entry.source.strip() and entry.state != OBSOLETE:
                numbered = entry.part and suffix_of(catalogue) in NUMBERED
                texts = source_forms(entry, entry.source) if numbered else {entry.part: entry.source}
                for part, text in texts.items():
                    message = Entry(entry.key, part, text, markup=entry.markup)
                    found.setdefault(entry.key, {}).setdefault(part, message)
    return found


def is_language(named: str | None, code: str) -> bool:
    """Return whether the language that a file names is the requested language.

    Args:
        named: The language that the file names; None if it names none.
        code: Code of the requested language.

    Returns:
        True if the codes are equal up to letter case, territory, script and modifier (`sr@latin`), or if the file names
        no language. Deprecated codes are equal to their successors: `iw` to `he`.
    """
    if named is None:
        return True
    own, wanted = (CODE_END.split(one.lower(), maxsplit=1)[0] for one in (named, code))
    return SUCCESSORS.get(own, own) == SUCCESSORS.get(wanted, wanted)


__all__ = [
    *("HOLDS_MESSAGES", "NUMBERED", "ONE_PART", "OTHER_PART", "View", "category_part", "forms_of", "is_language"),
    *("messages_of", "source_forms", "split_part", "suffix_of", "view_of"),
]
