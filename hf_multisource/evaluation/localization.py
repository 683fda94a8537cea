"""Plan how the catalogues of a language are filled: collect the missing texts and the texts of their sources.

Texts are aligned by file, key and plural category, so that each plural form is translated from the forms of the sources
with the same category.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path, PurePosixPath

from hf_multisource.data.access_keys import is_access_key, labels_of
from hf_multisource.data.archives import is_archive
from hf_multisource.data.catalogue_entries import (
    DAMAGED,
    FUZZY,
    JOINT,
    OBSOLETE,
    TRANSLATED,
    UNTRANSLATED,
    Catalogue,
    Entry,
    Identity,
    ambiguous,
    by_key,
    count_current,
)
from hf_multisource.data.catalogue_files import ANDROID, NAMES, find_format
from hf_multisource.data.catalogue_places import LANG, Place, describe_unread, read_places
from hf_multisource.data.catalogue_views import (
    HOLDS_MESSAGES,
    NUMBERED,
    View,
    category_part,
    forms_of,
    messages_of,
    split_part,
    suffix_of,
    view_of,
)
from hf_multisource.data.catalogues import is_copy
from hf_multisource.data.new_catalogues import new_catalogue
from hf_multisource.data.placeholders import ANY, VALUE, differing_languages, find_placeholders
from hf_multisource.data.plural_forms import CATEGORIES, OTHER, PluralRule, plural_rule, qt_formula
from hf_multisource.data.translation_memory import TranslationMemory
from hf_multisource.data.xml_places import escape

#: File suffix -> syntax of the placeholders, for formats with a single syntax.
SYNTAX_OF = {".ftl": "fluent", ".properties": "properties", ".ts": "qt", ".xml": "android"}
GETTEXT = (".po", ".pot", ".mo")
ANDROID_CODE = re.compile(r"[a-z]{2,3}-r([A-Z]{2}|[0-9]{3})")  # code of a language with a region, such as pt-rBR
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
NO_PATH = "; without a path, the target gets the files of the first source"
NO_SOURCE = "no source has a text"
NONE_LIKE_MESSAGE = "no source has the placeholders of the message"
EMPTY = "the text is empty in the first source"
PARTLY = "some plural forms are translated already, and a review would cover all forms of the entry at once"
PLURAL_LIST_REASON = "the text is a list of plural forms, whose number depends on the language"
COMPILED = "files of this format are made from others: fill the file that it is made from, such as the .po file"


@dataclass(frozen=True)
class Places:
    """Locations of the catalogues to fill and of the source catalogues.

    Args:
        target: The language to fill.
        sources: Source language -> folder, archive or file. The first source is the guide: its files define which
            entries a complete catalogue has, and its texts define which placeholders a translation must have.
        target_path: Folder, archive or file of the target; None: the target has no catalogues yet.
        codes: Language -> language code in paths, for languages whose name is not their code.
        source_language: Language of the messages in gettext files, and in Qt and XLIFF files that do not name it; and
            of files without a code in a place of several languages.
        drop_copies: Whether the memory ignores translations of the target that are probably untranslated copies, see
            [`is_copy`].
    """

    target: str
    sources: Mapping[str, Path]
    target_path: Path | None = None
    codes: Mapping[str, str] = field(default_factory=dict)
    source_language: str = "en"
    drop_copies: bool = False

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("sources is empty: name at least one source")
        if self.target in self.sources:
            raise ValueError(f"target is {self.target!r}, which is a source, too; they must differ")
        for name in (self.target, *self.sources):
            if not re.fullmatch(r"[A-Za-z][\w@-]*", self.code(name)):
                raise ValueError(f"the code of {name!r} is {self.code(name)!r}; it must be like de or pt-BR")
        for name in self.codes:
            if name not in (self.target, *self.sources):
                raise ValueError(f"codes has {name!r}; the languages are {', '.join((*self.sources, self.target))}")

    def code(self, language: str) -> str:
        """Return the code of a language in paths.

        Args:
            language: The language.

        Returns:
            The language code.
        """
        return self.codes.get(language, language)


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
class FilePlan:
    """Plan for one file of the output.

    Args:
        path: Path of the file in the output.
        catalogue: Catalogue of the target, or a new one without translations.
        reference: Catalogue of the first source that has this file; None if no source has it.
        missing: Texts that the catalogue lacks.
        kept: Number of texts that the catalogue already has.
        unreviewed: Number of existing texts that are marked as needing review; they are kept, but not added to the
            memory.
        languages: Languages in which source texts can exist: the sources and, if the file holds messages, the source
            language.
    """

    path: str
    catalogue: Catalogue
    reference: Catalogue | None
    missing: tuple[MissingText, ...]
    kept: int
    unreviewed: int
    languages: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Plan for all catalogues of a language.

    Args:
        files: Plans of the output files.
        memory: Translation memory with the target's existing translations; more can be added.
        single: Whether the output is one file.
        digests: Language -> digest of the catalogues.
        unread: Language -> files and messages that could not be read, with the reason.
    """

    files: tuple[FilePlan, ...]
    memory: TranslationMemory
    single: bool
    digests: Mapping[str, str]
    unread: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def missing(self) -> Iterator[MissingText]:
        """Missing texts of all files, file by file."""
        for file in self.files:
            yield from file.missing


def make_plan(places: Places, spoken: Sequence[str]) -> Plan:
    """Find the texts that the target's catalogues lack, and the corresponding texts of the sources.

    Args:
        places: Locations of the catalogues.
        spoken: The languages that the model reads. If the source language of gettext, XLIFF and Qt files is among them,
            its texts are read from the messages in these files.

    Returns:
        The plan.

    Raises:
        FileNotFoundError: If a location does not exist.
        ImportError: If a format or plural forms need a package that is not installed.
        ValueError: If a language is unknown to the model, has no catalogue, or a file is damaged.
    """
    for language in places.sources:
        if language not in spoken:
            raise ValueError(f"the source {language!r} is unknown to the model, whose sources are {', '.join(spoken)}")
    given = {**places.sources, **({places.target: places.target_path} if places.target_path else {})}
    found: dict[str, dict[str, Catalogue]] = {}
    alone: dict[str, bool] = {}
    same = Counter(place.resolve() for place in given.values())
    parts = {name: Place(place, places.code(name), same[place.resolve()] > 1) for name, place in given.items()}
    read, skipped = read_places(parts, places.source_language)
    for language, place in given.items():
        files = read[language]
        alone[language] = place.is_file() and not is_archive(place.name)
        found[language] = files if alone[language] else _without_templates(files, language == places.target)
        if not found[language]:
            raise ValueError(
                f"{place} has no catalogue of {language!r} (code {places.code(language)}); "
                f"catalogues are {', '.join(NAMES)}{NO_PATH if language == places.target else ''}"
            )
    digests = {language: _digest(catalogues) for language, catalogues in found.items()}
    single = all(alone.values())
    if single:
        _check_formats([catalogue.path for files in found.values() for catalogue in files.values()])
    if single:  # one file per language; their names may differ
        found = {language: {"": catalogue} for language, files in found.items() for catalogue in files.values()}
    elif alone.get(places.target):
        raise ValueError(f"{places.target_path} is one file, so each source must be one file, too")
    if not single:
        found = {name: _as_po(files, found.get(places.target, {})) for name, files in found.items()}
    memory, plans = TranslationMemory(), dict[str, FilePlan]()
    spellings = _spellings(found.get(places.target, {}))
    lost = tuple(skipped.get(places.target, ()))  # unreadable files of the target; not created again
    for neutral in sorted({path for catalogues in found.values() for path in catalogues}):
        catalogues = {language: one[neutral] for language, one in found.items() if neutral in one}
        if neutral in lost or neutral.startswith(tuple(path for path in lost if path.endswith("/"))):
            continue
        if plan := _plan_file(neutral, catalogues, places, spoken, memory, spellings):
            if plan.path in plans:
                raise ValueError(f"two files of the output would be {plan.path}; the second is of {neutral}")
            plans[plan.path] = plan
    unread = {name: _unread(found.get(name, {}), skipped[name], places.code(name)) for name in skipped}
    return Plan(tuple(plans.values()), memory, single, digests, {name: one for name, one in unread.items() if one})


def _check_formats(paths: Sequence[str]) -> None:
    """Raise an error if the files have different formats."""
    names = {}
    for path in paths:
        form = find_format(path)
        names[path] = "gettext" if PurePosixPath(path).suffix.lower() in GETTEXT else form.name if form else ""
    first = next(iter(names))
    for path, name in names.items():
        if name != names[first]:
            raise ValueError(f"{first} is {names[first]}, and {path} is {name}: files of one text must have one format")


def _as_po(files: Mapping[str, Catalogue], target: Mapping[str, Catalogue]) -> dict[str, Catalogue]:
    """Give compiled files the paths of .po files, unless the target has the compiled file and no .po file."""
    found: dict[str, Catalogue] = {}
    for path, catalogue in files.items():
        named = f"{path[:-3]}.po" if path.endswith(".mo") else path
        found.setdefault(named if path not in target or named in target else path, catalogue)
    return found


def _spellings(files: Mapping[str, Catalogue]) -> dict[str, str]:
    """Return how the code of a language is written in the paths of its files, by their paths with `{lang}`."""
    found: dict[str, str] = {}
    for neutral, catalogue in files.items():
        head, *rest = map(re.escape, neutral.split(LANG))
        if rest and (match := re.search(f"{head}([^/]+){'[^/]+'.join(rest)}$", catalogue.path)):
            found[neutral] = match[1]
    return found


def _path_for(neutral: str, code: str, spellings: Mapping[str, str]) -> str:
    """Return the path of a new file.

    Args:
        neutral: Its path with `{lang}`.
        code: Code of the language.
        spellings: Path of a file that is there -> how the code is written in it.

    Returns:
        The path with the code in the spelling of the most similar path, which has the code in a folder if the new file
        has it there. Otherwise in that of Android (`values-pt-rBR`), and with an underscore after an underscore
        (`messages_pt_BR`).
    """

    def kind(path: str) -> bool:
        return LANG in PurePosixPath(path).name

    def likeness(path: str) -> tuple[bool, bool, int]:
        one, other = PurePosixPath(path), PurePosixPath(neutral)
        return one.name == other.name, one.suffix == other.suffix, len(os.path.commonpath((path, neutral)))

    if alike := [path for path in spellings if kind(path) == kind(neutral)]:
        return neutral.replace(LANG, spellings[max(alike, key=likeness)])
    language, *rest = JOINT.split(code)
    if find_format(neutral) == ANDROID and not ANDROID_CODE.fullmatch(code):
        if len(rest) == 1 and re.fullmatch(r"[A-Za-z]{2}|\d{3}", rest[0]):
            neutral = neutral.replace(f"values-{LANG}", f"values-{language}-r{rest[0].upper()}")
        elif rest:
            neutral = neutral.replace(f"values-{LANG}", f"values-b+{'+'.join([language, *rest])}")
    return neutral.replace(f"_{LANG}", f"_{JOINT.sub('_', code)}").replace(LANG, code)


def _unread(catalogues: Mapping[str, Catalogue], skipped: Mapping[str, str], code: str) -> tuple[str, ...]:
    """Return the files of a language, and the messages in files, that could not be read."""
    files = describe_unread(skipped, code)
    messages = [
        f"{(path or Path(catalogue.path).name).replace(LANG, code)}: {one}"
        for path, catalogue in catalogues.items()
        for one in catalogue.unhandled
    ]
    return (*files, *messages)


def _without_templates(files: Mapping[str, Catalogue], of_target: bool) -> dict[str, Catalogue]:
    """Return the files without templates (.pot) for the target; for a source, templates get the path of a .po file."""
    templates = {path for path in files if path.endswith(".pot")}
    found = {path: catalogue for path, catalogue in files.items() if path not in templates}
    return found if of_target else {**{path[:-1]: files[path] for path in templates}, **found}


def _digest(files: Mapping[str, Catalogue]) -> str:
    """Return a digest of all catalogues of a language."""
    digest = hashlib.sha256()
    for path, catalogue in sorted(files.items()):
        digest.update(f"{path}\0{len(catalogue.content)}\0".encode() + catalogue.content)
    return digest.hexdigest()


def _plan_file(
    neutral: str,
    catalogues: Mapping[str, Catalogue],
    places: Places,
    spoken: Sequence[str],
    memory: TranslationMemory,
    spellings: Mapping[str, str],
) -> FilePlan | None:
    """Plan one file and add its translations to the memory; return None if only later sources have this file."""
    code = places.code(places.target)
    reference = next((catalogues[language] for language in places.sources if language in catalogues), None)
    catalogue = catalogues.get(places.target)
    if catalogue is not None:
        assert places.target_path is not None
        whole = Path(catalogue.path)
        path = whole.name if not neutral else whole.relative_to(places.target_path).as_posix()
    elif (first := catalogues.get(next(iter(places.sources)))) is not None:
        catalogue = new_catalogue(first, _path_for(neutral or Path(first.path).name, code, spellings), code)
        path = catalogue.path
    else:
        return None
    views, rule = _views(catalogue, catalogues, places, spoken), plural_rule(code, catalogue.header)
    default = SYNTAX_OF.get(suffix_of(catalogue), ANY)
    for key, parts in view_of(catalogue, code).entries.items():
        for part, entry in parts.items():
            if not is_access_key(key, part):
                texts = _sources(views, key, part, entry.markup, rule, syntax_of(entry, default))
                others = [text for name, text in texts.items() if name != places.source_language]
                if not (places.drop_copies and is_copy(entry.text, texts.get(places.source_language), others)):
                    memory.add(texts, entry.text, key=f"{key}\x04{part}")
    order = (*places.sources, places.source_language)
    missing = tuple(_missing(catalogue, code, reference, views, rule, path, order))
    states = Counter(entry.state for entry in catalogue.entries)
    languages = tuple({**places.sources, **views})
    return FilePlan(path, catalogue, reference, missing, states[TRANSLATED], states[FUZZY], languages)


def _views(
    catalogue: Catalogue, catalogues: Mapping[str, Catalogue], places: Places, spoken: Sequence[str]
) -> dict[str, View]:
    """Return the texts of each source of a file, in the order of the model's sources."""
    views = {name: view_of(catalogues[name], places.code(name)) for name in places.sources if name in catalogues}
    language = places.source_language
    if language in spoken and language != places.target:
        code = places.code(language)
        messages = messages_of([catalogue, *catalogues.values()], code)
        own = views.get(language, View({}, plural_rule(code)))
        entries = {key: {**messages.get(key, {}), **own.entries.get(key, {})} for key in {**own.entries, **messages}}
        if entries:
            views[language] = View(entries, own.rule)
    return {name: views[name] for name in spoken if name in views}


def _sources(
    views: Mapping[str, View], key: str, part: str, markup: bool, rule: PluralRule | None, syntax: str
) -> dict[str, str]:
    """Return the texts of the sources for a part: escaped as XML if the entry is XML, otherwise only plain texts.

    A target plural form that stands for several numbers must contain the number. A source form without the number, such
    as "Close tab?", is therefore replaced by the source's general form.
    """
    found = {}
    name, _, variant = split_part(part)
    for language, view in views.items():
        entry = view.find(key, part)
        if rule and variant in rule.repeated and entry is not None:
            other = view.entries[key].get(f"{name}[{OTHER}]", entry)
            entry = other if lacks_value(entry.text, other.text, syntax) else entry
        if entry is not None and (markup or not entry.markup):
            found[language] = escape(entry.text) if markup and not entry.markup else entry.text
    return found


def _missing(
    catalogue: Catalogue,
    code: str,
    reference: Catalogue | None,
    views: Mapping[str, View],
    rule: PluralRule | None,
    path: str,
    order: Sequence[str],
) -> Iterator[MissingText]:
    """Yield the texts that a catalogue lacks, in file or reference order; `order` lists the languages, guide first."""
    default, suffix = SYNTAX_OF.get(suffix_of(catalogue), ANY), suffix_of(catalogue)

    def missing(
        key: str, part: str, category: str, markup: bool, reason: str = "", syntax: str = default, message: str = ""
    ) -> MissingText:
        texts = _sources(views, key, category, markup, rule, syntax)
        ordered = {language: texts[language] for language in order if language in texts}
        reason = reason or ("" if texts else NO_SOURCE)
        guide = next(iter(ordered.values()), "")
        if syntax == "properties" and PLURAL_LIST.match(guide):
            reason = reason or PLURAL_LIST_REASON
        if is_access_key(key, part) and len(guide.strip()) == 1:
            return MissingText(path, key, part, ordered, syntax, labels_of(key, part), reason, guide)
        # A message of one word without a gettext format flag may be an identifier such as "menu.open" instead of a
        # text.
        others = [text for text in texts.values() if text != message]
        is_text = syntax != default or len(message.split()) > 1
        if message and (is_text or any(same_placeholders(message, text, syntax) for text in others)):
            guide = message
        differing = [*takewhile(lambda language: not same_placeholders(guide, texts[language], syntax), texts)]
        if len(differing) == len(texts):
            reason = reason or NONE_LIKE_MESSAGE
        return MissingText(path, key, part, texts, syntax, (), reason, guide, tuple(differing))

    if suffix in HOLDS_MESSAGES:
        form, forms = find_format(catalogue.path), forms_of(catalogue, code, rule)
        seen: set[Identity] = set()
        numbers = count_current(catalogue.entries)
        parts_of = by_key({entry.identity: entry for entry in catalogue.entries if entry.state != OBSOLETE})
        begun = {entry.key for entry in catalogue.entries if entry.part and entry.state != UNTRANSLATED}
        for entry in catalogue.entries:
            if entry.state != UNTRANSLATED or entry.identity in seen:
                continue
            seen.add(entry.identity)
            category = category_part(entry.part, catalogue, forms)
            reason = _no_category(catalogue, code, rule, forms) if category is None else ""
            if entry.part and forms and (number := len(parts_of[entry.key])) < len(forms):
                reason = f"the message has {number} plural forms, and the file has {len(forms)}: update the file"
            if entry.key in begun and suffix in NUMBERED:
                reason = PARTLY
            if form is None or form.fill is None:
                reason = COMPILED
            elif numbers[entry.identity] > 1:
                reason = ambiguous(numbers[entry.identity])
            own, part = syntax_of(entry, default), category or entry.part
            variant = split_part(part)[2] if category else ""
            message = entry.source_of(variant) or ""
            if rule and variant in rule.repeated:
                other = entry.source_of(OTHER) or ""
                message = other if lacks_value(message, other, own) else message
            yield missing(entry.key, entry.part, part, entry.markup, reason, own, message)
        return
    there = {(entry.key, split_part(entry.part)[0]) for entry in catalogue.entries}
    unread = {one.partition(": ")[0] for one in catalogue.unhandled}
    for (key, name), group in _patterns(reference.entries if reference else ()).items():
        if key in catalogue.damaged:
            yield missing(key, name, name, any(entry.markup for entry in group.values()), DAMAGED)
        elif (key, name) not in there and f"{key}{name}" not in unread:
            markup = any(entry.markup for entry in group.values())
            for part in _parts_of(name, group, key, views, rule):
                empty = part in group and not group[part].text.strip()
                yield missing(key, part, part, markup, EMPTY if empty else "")
    for one in reference.unhandled if reference else ():
        key, _, reason = one.partition(": ")
        if (
            key not in unread
            and key not in catalogue.damaged
            and not any(key == f"{name}{part}" for name, part in there)
        ):
            yield MissingText(path, key, "", {}, default, reason=f"the first source cannot be read here: {reason}")


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
    if forms:
        return f"the message has more plural forms than the header of the file, which has {len(forms)}"
    if suffix_of(catalogue) == ".ts":
        return (
            f"the number of plural forms is not that of Qt for {code}, {qt_formula(code)}: update the file with lupdate"
        )
    what = "an invalid" if "Plural-Forms:" in catalogue.header else "no"
    return f"the header of the file has {what} line Plural-Forms; for {code} it may be: Plural-Forms: {rule.formula}"


def _patterns(entries: Iterable[Entry]) -> dict[Identity, dict[str, Entry]]:
    """Group entries by key and name of the text; each group maps the variants to their entries."""
    found: dict[Identity, dict[str, Entry]] = {}
    for entry in entries:
        found.setdefault((entry.key, split_part(entry.part)[0]), {}).setdefault(entry.part, entry)
    return found


def _parts_of(
    name: str, group: Mapping[str, Entry], key: str, views: Mapping[str, View], rule: PluralRule | None
) -> list[str]:
    """Return the parts of a text that the target needs; for plural forms, one per category of its language."""
    parts = [*group, *(part for view in views.values() for part in view.entries.get(key, ()))]
    variants = {variant for one, given, variant in map(split_part, parts) if given and one == name}
    plural = OTHER in variants and all(variant in CATEGORIES or variant.isdigit() for variant in variants)
    if rule is None or not plural or name in group:
        return [*group]
    numbers = [part for part in group if split_part(part)[2].isdigit()]
    return [*numbers, *(f"{name}[{category}]" for category in rule.variants)]


def count_sources(missing: Iterable[MissingText]) -> dict[int, int]:
    """Count missing texts by their number of sources.

    Args:
        missing: The texts.

    Returns:
        Number of sources -> number of texts, in descending order of the number of sources.
    """
    return dict(sorted(Counter(len(one.sources) for one in missing).items(), reverse=True))


__all__ = ["FilePlan", "MissingText", "Places", "Plan", "count_sources", "make_plan"]
