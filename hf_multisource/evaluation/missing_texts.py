"""Texts that a catalogue lacks, with the texts of the sources; and the reasons why some cannot be filled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from hf_multisource.data.access_keys import is_access_key, labels_of
from hf_multisource.data.catalogue_android import parts_of_resources
from hf_multisource.data.catalogue_entries import (
    DAMAGED,
    FUNCTION,
    OBSOLETE,
    ORDINAL,
    UNTRANSLATED,
    Catalogue,
    Entry,
    Identity,
    ambiguous,
    by_key,
    count_current,
)
from hf_multisource.data.catalogue_files import find_format
from hf_multisource.data.catalogue_views import (
    HOLDS_MESSAGES,
    NUMBERED,
    View,
    category_part,
    forms_of,
    split_part,
    suffix_of,
)
from hf_multisource.data.placeholders import ANY, VALUE, differing_languages, find_placeholders
from hf_multisource.data.plural_forms import CATEGORIES, OTHER, PluralRule, ordinal_categories, qt_formula
from hf_multisource.data.xml_places import escape

#: File suffix -> syntax of the placeholders, for formats with a single syntax.
SYNTAX_OF = {".ftl": "fluent", ".properties": "properties", ".ts": "qt", ".xml": "android"}
#: Flag of gettext -> syntax of the placeholders. For entries with none or several of these flags, the syntax is "any".
SYNTAX_OF_FLAG = {
    **dict.fromkeys(("c-format", "objc-format", "gcc-internal-format", "php-format", "perl-format"), "c-format"),
    **{name: name for name in ("python-format", "python-brace-format", "java-format")},
    **dict.fromkeys(("qt-format", "qt-plural-format", "kde-format"), "qt"),
    "java-printf-format": "java",
    "javascript-format": "c-format",
}
# A text of Mozilla's PluralForm, such as "#1 file;#1 files": forms with the number #1, separated by semicolons without
# white space that do not end an entity.
PLURAL_LIST = re.compile(r"(?=.*#1(?!\d))(?:[^;&]|&(?!\w+;)|&\w+;)+;(?![;\s]|$)", re.DOTALL)
NO_SOURCE = "no source has a text"
NONE_LIKE_MESSAGE = "no source has the placeholders of the message"
EMPTY = "the text is empty in the first source"
PARTLY = "some plural forms are translated already, and a review would cover all forms of the entry at once"
PLURAL_LIST_REASON = "the text is a list of plural forms, whose number depends on the language"
COMPILED = "files of this format are made from others: fill the file that it is made from, such as the .po file"


@dataclass(frozen=True)
class MissingText:
    """A text that the target lacks.

    Args:
        file: Path of the file in the output.
        key: Key of the entry.
        part: Part of the entry, as it is written in the file.
        sources: Language -> text, for the sources that have this text.
        syntax: Syntax of the placeholders.
        labels: For an access key, the entries of the same file to which the key may belong, most likely first.
        reason: Reason why the text cannot be filled; "" if it can be filled.
        guide: The text whose placeholders and outer white space a translation must have; "" if there is no source.
        left_out: Sources that the model does not read, because their placeholders differ from those of the guide.
    """

    file: str
    key: str
    part: str
    sources: Mapping[str, str]
    syntax: str = ANY
    labels: tuple[Identity, ...] = ()
    reason: str = ""
    guide: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def read(self) -> dict[str, str]:
        """Texts that the model reads, by source language."""
        return {language: text for language, text in self.sources.items() if language not in self.left_out}

    @property
    def identity(self) -> Identity:
        """Identity of the text: key and part."""
        return self.key, self.part


@dataclass(frozen=True)
class TextFinder:
    """Finds the texts of the sources for the texts of one file.

    Args:
        path: Path of the file in the output.
        views: Source -> its texts of this file.
        rule: Plural categories of the target; None if they are not known.
        order: The languages; the first one with a text is the guide.
        syntax: Syntax of the placeholders of the file.
    """

    path: str
    views: Mapping[str, View]
    rule: PluralRule | None
    order: Sequence[str]
    syntax: str

    def texts(self, key: str, part: str, markup: bool, syntax: str, message: str = "") -> dict[str, str]:
        """Return the texts of the sources for a part: escaped as XML if the entry is XML, otherwise only plain texts.

        A target plural form that stands for several numbers must contain the number. A source form without the number,
        such as "Close tab?", is therefore replaced by the source's general form. If the message contains the number,
        all target plural forms must contain it.

        Args:
            key: Key of the entry.
            part: Part of the entry, with the plural category of a plural form.
            markup: Whether the entry is XML.
            syntax: Syntax of the placeholders.
            message: Text of the source language whose values all texts must contain where the general form has them; ""
                if there is none.

        Returns:
            Language -> text.
        """
        found = {}
        name, _, variant = split_part(part)
        for language, view in self.views.items():
            entry = view.find(key, part)
            if entry is not None and variant:
                other = view.entries[key].get(f"{name}[{OTHER}]", entry)
                repeated = self.rule is not None and variant in self.rule.repeated
                needed = other.text if repeated else message
                if lacks_value(entry.text, needed, syntax) and not lacks_value(other.text, message, syntax):
                    entry = other
            if entry is not None and (markup or not entry.markup):
                found[language] = escape(entry.text) if markup and not entry.markup else entry.text
        return found

    def missing(
        self, key: str, part: str, category: str, markup: bool, reason: str = "", syntax: str = "", message: str = ""
    ) -> MissingText:
        """Return a missing text with the texts of its sources.

        Args:
            key: Key of the entry.
            part: Part of the entry, as it is written in the file.
            category: The part with the plural category of a plural form.
            markup: Whether the entry is XML.
            reason: Reason why the text cannot be filled; "" if none is known yet.
            syntax: Syntax of the placeholders; "" for that of the file.
            message: Text of the source language in the file of the target; "" if it has none.

        Returns:
            The missing text.
        """
        syntax = syntax or self.syntax
        texts = self.texts(key, category, markup, syntax)
        ordered = {language: texts[language] for language in self.order if language in texts}
        reason = reason or ("" if texts else NO_SOURCE)
        guide = next(iter(ordered.values()), "")
        if syntax == "properties" and PLURAL_LIST.match(guide):
            reason = reason or PLURAL_LIST_REASON
        if is_access_key(key, part) and len(guide.strip()) == 1:
            return MissingText(self.path, key, part, ordered, syntax, labels_of(key, part), reason, guide)
        # A message of one word without a gettext format flag may be an identifier such as "menu.open" instead of a
        # text.
        others = [text for text in texts.values() if text != message]
        is_text = syntax != self.syntax or len(message.split()) > 1
        if message and (is_text or any(same_placeholders(message, text, syntax) for text in others)):
            guide = message
        if message and not any(same_placeholders(guide, text, syntax) for text in texts.values()):
            texts = self.texts(key, category, markup, syntax, message)
        differing = [*takewhile(lambda language: not same_placeholders(guide, texts[language], syntax), texts)]
        if len(differing) == len(texts):
            reason = reason or NONE_LIKE_MESSAGE
        return MissingText(self.path, key, part, texts, syntax, (), reason, guide, tuple(differing))


def missing_texts(
    catalogue: Catalogue, code: str, reference: Catalogue | None, find: TextFinder
) -> Iterator[MissingText]:
    """Yield the texts that a catalogue lacks.

    Args:
        catalogue: The catalogue.
        code: Code of its language.
        reference: The catalogue of the first source; None if no source has this file.
        find: Finds the texts of the sources.

    Yields:
        The missing texts, in the order of the file if it holds messages, else in that of the reference.
    """
    if suffix_of(catalogue) in HOLDS_MESSAGES:
        yield from _untranslated_messages(catalogue, code, find)
    elif reference is not None:
        yield from _absent_entries(catalogue, code, reference, find)
        yield from _unread_entries(catalogue, reference, find)


def _untranslated_messages(catalogue: Catalogue, code: str, find: TextFinder) -> Iterator[MissingText]:
    """Yield the texts without a translation of a file that holds the messages."""
    form, forms = find_format(catalogue.path), forms_of(catalogue, code, find.rule)
    seen: set[Identity] = set()
    numbers = count_current(catalogue.entries)
    parts_of = by_key({entry.identity: entry for entry in catalogue.entries if entry.state != OBSOLETE})
    begun = {entry.key for entry in catalogue.entries if entry.part and entry.state != UNTRANSLATED}
    for entry in catalogue.entries:
        if entry.state != UNTRANSLATED or entry.identity in seen:
            continue
        seen.add(entry.identity)
        category = category_part(entry.part, catalogue, forms)
        number = len(parts_of[entry.key]) if entry.part else 0
        # A message is filled as a whole: more forms than the header has make all of its forms unknown.
        unknown = category is None or bool(forms and number > len(forms))
        reason = _no_category(catalogue, code, find.rule, forms) if unknown else ""
        if entry.part and forms and number < len(forms):
            reason = f"the message has {number} plural forms, and the file has {len(forms)}: update the file"
        if entry.key in begun and suffix_of(catalogue) in NUMBERED:
            reason = PARTLY
        if form is None or form.fill is None:
            reason = COMPILED
        elif numbers[entry.identity] > 1:
            reason = ambiguous(numbers[entry.identity])
        syntax, part = syntax_of(entry, find.syntax), category or entry.part
        variant = split_part(part)[2] if category else ""
        message = entry.source_of(variant) or ""
        if find.rule and variant in find.rule.repeated:
            other = entry.source_of(OTHER) or ""
            message = other if lacks_value(message, other, syntax) else message
        yield find.missing(entry.key, entry.part, part, entry.markup, reason, syntax, message)


def _absent_entries(catalogue: Catalogue, code: str, reference: Catalogue, find: TextFinder) -> Iterator[MissingText]:
    """Yield the texts of the reference that a file without messages lacks."""
    there = {(entry.key, split_part(entry.part)[0]) for entry in catalogue.entries}
    unread = {one.partition(": ")[0] for one in catalogue.unhandled}
    is_android, is_fluent = (suffix_of(catalogue) == suffix for suffix in (".xml", ".ftl"))
    # Entries with the same text are equivalent, except in Android files, where they may belong to different products.
    different = (
        reference.entries if is_android else {(one.identity, one.text): one for one in reference.entries}.values()
    )
    repeated: dict[str, int] = {}  # key -> number of different entries in the reference with this key and the same part
    for (key, _), number in count_current(different).items():
        repeated[key] = max(number, repeated.get(key, 0))
    own, theirs = (parts_of_resources(one) if is_android else {} for one in (catalogue, reference))
    for (key, name), group in _patterns(reference.entries).items():
        markup = any(entry.markup for entry in group.values())
        if is_fluent and key.startswith("-") and name:
            continue  # attributes of terms, such as a gender, are private to a language
        if key in catalogue.damaged:
            yield find.missing(key, name, name, markup, DAMAGED)
        elif key in own:
            for part, reason in _lacking_parts(own[key], theirs[key], group, find.rule):
                yield find.missing(key, part, part, markup, reason)
        elif (key, name) in there or f"{key}{name}" in unread:
            continue
        elif repeated[key] > 1:
            yield find.missing(key, name, name, markup, ambiguous(repeated[key], "the file of the first source"))
        else:
            for part in _parts_of(name, group, key, find, code):
                empty = part in group and not group[part].text.strip()
                yield find.missing(key, part, part, markup, EMPTY if empty else "")


def _lacking_parts(
    own: Sequence[str], theirs: Sequence[str], group: Mapping[str, Entry], rule: PluralRule | None
) -> Iterator[tuple[str, str]]:
    """Yield the parts that an Android resource of the target lacks, with the reason why they cannot be filled.

    Args:
        own: Parts of the target's resource.
        theirs: Parts of the resource in the first source.
        group: Entries of the resource in the first source.
        rule: Plural categories of the target. Only those of whole numbers are needed, because Android selects a form by
            a whole number. If they are not known, those of the first source are needed.

    Yields:
        Part and reason; nothing if the resources have different kinds.
    """
    kinds = {_kind_of_parts(parts) for parts in (own, theirs) if parts}
    if kinds == {"array"} and len(own) < len(theirs):
        reason = f"the array has {len(own)} items, that of the first source {len(theirs)}"
        yield from ((part, reason) for part in group if part not in own)
    elif kinds == {"plurals"}:
        needed = [f"[{category}]" for category in rule.categories] if rule else [*group]
        yield from ((part, PARTLY) for part in needed if part not in own)


def _kind_of_parts(parts: Sequence[str]) -> str:
    """Return the kind of the Android resource that has these parts."""
    return "string" if parts[0] == "" else "array" if parts[0][1:-1].isdigit() else "plurals"


def _unread_entries(catalogue: Catalogue, reference: Catalogue, find: TextFinder) -> Iterator[MissingText]:
    """Yield the entries of the reference that cannot be read, if the catalogue lacks them."""
    there = {f"{entry.key}{split_part(entry.part)[0]}" for entry in catalogue.entries}
    unread = {one.partition(": ")[0] for one in catalogue.unhandled}
    for one in reference.unhandled:
        key, _, reason = one.partition(": ")
        if key not in unread and key not in there and key not in catalogue.damaged:
            reason = f"the first source cannot be read here: {reason}"
            yield MissingText(find.path, key, "", {}, find.syntax, reason=reason)


def file_syntax(catalogue: Catalogue) -> str:
    """Return the syntax of the placeholders of a file.

    Args:
        catalogue: The file.

    Returns:
        The syntax of its format; `ANY` for formats with several.
    """
    return SYNTAX_OF.get(suffix_of(catalogue), ANY)


def syntax_of(entry: Entry, default: str) -> str:
    """Return the syntax of the placeholders of an entry.

    Args:
        entry: The entry; in gettext files, its flags name the format.
        default: The syntax of its file.

    Returns:
        The syntax.
    """
    found = {SYNTAX_OF_FLAG[flag] for flag in entry.flags if flag in SYNTAX_OF_FLAG}
    return found.pop() if len(found) == 1 else default


def lacks_value(text: str, other: str, syntax: str) -> bool:
    """Return whether a text lacks a value, such as a number, that another text has.

    Args:
        text: The text.
        other: The other text.
        syntax: Syntax of the placeholders.

    Returns:
        True if it does.
    """
    there, needed = ({one.key for one in find_placeholders(one, syntax) if one.kind == VALUE} for one in (text, other))
    return not needed <= there


def same_placeholders(guide: str, text: str, syntax: str) -> bool:
    """Return whether a text has the same placeholders as another text.

    Args:
        guide: The other text.
        text: The text.
        syntax: Syntax of the placeholders.

    Returns:
        True if it does.
    """
    return guide == text or not differing_languages({"guide": guide, "text": text}, syntax)


def _no_category(catalogue: Catalogue, code: str, rule: PluralRule | None, forms: Sequence[str] | None) -> str:
    """Return the reason why the category of a numbered plural form is not known."""
    if rule is None:
        return f"the plural forms of {code} are known neither from CLDR nor from the header of the file"
    line = f"Plural-Forms: {rule.formula}"
    if forms:
        reason = f"the message has more plural forms than the header of the file, which has {len(forms)}"
        advice = f": correct the line Plural-Forms in the header; for {code} it may be: {line}"
        return reason if len(forms) == len(rule.categories) else f"{reason}{advice}"
    if suffix_of(catalogue) == ".ts":
        return (
            f"the number of plural forms is not that of Qt for {code}, {qt_formula(code)}: update the file with lupdate"
        )
    what = "an invalid" if "Plural-Forms:" in catalogue.header else "no"
    return f"the header of the file has {what} line Plural-Forms; for {code} it may be: {line}"


def _patterns(entries: Iterable[Entry]) -> dict[Identity, dict[str, Entry]]:
    """Group entries by key and name of the text; each group maps the variants to their entries."""
    found: dict[Identity, dict[str, Entry]] = {}
    for entry in entries:
        found.setdefault((entry.key, split_part(entry.part)[0]), {}).setdefault(entry.part, entry)
    return found


def _parts_of(name: str, group: Mapping[str, Entry], key: str, find: TextFinder, code: str) -> list[str]:
    """Return the parts of a text that the target needs; for plural forms, one per category of its language.

    Args:
        name: Name of the text.
        group: Entries of the text in the first source.
        key: Key of the entries.
        find: Finds the texts of the sources.
        code: Code of the target.
    """
    parts = [*group, *(part for view in find.views.values() for part in view.entries.get(key, ()))]
    variants = {variant for one, given, variant in map(split_part, parts) if given and one == name}
    kinds = {entry.selector for entry in group.values()}
    categories = ordinal_categories(code) if ORDINAL in kinds else find.rule.variants if find.rule else None
    plural = any(one in CATEGORIES for one in variants) and all(one in CATEGORIES or one.isdigit() for one in variants)
    if categories is None or not plural or name in group or FUNCTION in kinds:
        return [*group]
    numbers = [part for part in group if split_part(part)[2].isdigit()]
    return [*numbers, *(f"{name}[{category}]" for category in categories)]


__all__ = ["MissingText", "TextFinder", "file_syntax", "lacks_value", "missing_texts", "same_placeholders", "syntax_of"]
