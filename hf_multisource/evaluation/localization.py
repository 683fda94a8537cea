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
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from hf_multisource.data.access_keys import is_access_key
from hf_multisource.data.archives import is_archive
from hf_multisource.data.catalogue_entries import (
    FUZZY,
    JOINT,
    TRANSLATED,
    Catalogue,
)
from hf_multisource.data.catalogue_files import ANDROID, NAMES, find_format
from hf_multisource.data.catalogue_places import LANG, Place, describe_unread, read_places
from hf_multisource.data.catalogue_properties import show_escapes
from hf_multisource.data.catalogue_views import (
    HOLDS_MESSAGES,
    View,
    is_language,
    messages_of,
    suffix_of,
    view_of,
)
from hf_multisource.data.catalogue_xliff import match_keys
from hf_multisource.data.catalogues import is_copy
from hf_multisource.data.new_catalogues import new_catalogue
from hf_multisource.data.plural_forms import plural_rule
from hf_multisource.data.translation_memory import TranslationMemory
from hf_multisource.evaluation.missing_texts import MissingText, TextFinder, file_syntax, missing_texts, syntax_of

GETTEXT = (".po", ".pot", ".mo")
ANDROID_CODE = re.compile(r"[a-z]{2,3}-r([A-Z]{2}|[0-9]{3})")  # code of a language with a region, such as pt-rBR
NO_PATH = "; without a path, the target gets the files of the first source"


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
        warning: A line for the report; "" if there is none. A file that names another language than the target may be a
            copy of that language's file.
    """

    path: str
    catalogue: Catalogue
    reference: Catalogue | None
    missing: tuple[MissingText, ...]
    kept: int
    unreviewed: int
    languages: tuple[str, ...]
    warning: str = ""


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
                f"catalogues are {', '.join(NAMES)}{_hint(language, places)}"
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
    found = _with_escapes(found)
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
    if not lost:
        unread[places.target] = (*unread.get(places.target, ()), *_unmatched(plans, found.get(places.target, {})))
    return Plan(tuple(plans.values()), memory, single, digests, {name: one for name, one in unread.items() if one})


def _hint(language: str, places: Places) -> str:
    """Return what to do if a place has no catalogue of a language."""
    if language == places.target:
        return NO_PATH
    if language == places.source_language and len(places.sources) > 1:
        return "; leave this source out if its texts are the messages of the other files (gettext, Qt, XLIFF)"
    return ""


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


def _with_escapes(found: Mapping[str, Mapping[str, Catalogue]]) -> dict[str, dict[str, Catalogue]]:
    """Decide for .properties files without non-ASCII characters whether new ones are written as escapes.

    The same file in other languages decides, and then all files of the project. If there are no non-ASCII characters at
    all, they are written as escapes, which all versions of Java read.
    """
    versions: dict[str, list[Catalogue]] = {}
    for files in found.values():
        for path, catalogue in files.items():
            if suffix_of(catalogue) == ".properties":
                versions.setdefault(path, []).append(catalogue)
    project = show_escapes(one for group in versions.values() for one in group)
    decided = {path: show_escapes(group) for path, group in versions.items()}
    decided = {path: project is not False if one is None else one for path, one in decided.items()}
    return {
        language: {
            path: replace(one, escapes=decided[path]) if path in decided and one.escapes is None else one
            for path, one in files.items()
        }
        for language, files in found.items()
    }


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


def _unmatched(plans: Mapping[str, FilePlan], of_target: Mapping[str, Catalogue]) -> list[str]:
    """Return the files of the target if no source has any of them, because the places do not fit together.

    The files of gettext, XLIFF and Qt hold their own messages, and need no file of a source.
    """
    paths = [
        path
        for path, plan in plans.items()
        if plan.reference is None and suffix_of(plan.catalogue) not in HOLDS_MESSAGES
    ]
    advice = "no source has a file of this path; name folders in which the paths differ in the language's code alone"
    return [f"{path}: {advice}" for path in paths if len(paths) == len(of_target)]


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
    warning = ""
    if not is_language(catalogue.language, code):
        warning = f"the file names the language {catalogue.language!r}, and the target is {code!r}"
    catalogue = replace(catalogue, language=catalogue.language or code)
    catalogues = {language: match_keys(one, catalogue) for language, one in catalogues.items()}
    views, rule = _views(catalogue, catalogues, places, spoken), plural_rule(code, catalogue.header)
    find = TextFinder(path, views, rule, (*places.sources, places.source_language), file_syntax(catalogue))
    for key, parts in view_of(catalogue, code).entries.items():
        for part, entry in parts.items():
            if not (is_access_key(key, part) and len(entry.text.strip()) == 1):
                texts = find.texts(key, part, entry.markup, syntax_of(entry, find.syntax))
                others = [text for name, text in texts.items() if name != places.source_language]
                if not (places.drop_copies and is_copy(entry.text, texts.get(places.source_language), others)):
                    memory.add(texts, entry.text, key=f"{key}\x04{part}")
    missing = tuple(missing_texts(catalogue, code, reference, find))
    states = Counter(entry.state for entry in catalogue.entries)
    languages = tuple({**places.sources, **views})
    kept, unreviewed = states[TRANSLATED], states[FUZZY]
    return FilePlan(path, catalogue, reference, missing, kept, unreviewed, languages, warning)


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


def count_sources(missing: Iterable[MissingText]) -> dict[int, int]:
    """Count missing texts by their number of sources.

    Args:
        missing: The texts.

    Returns:
        Number of sources -> number of texts, in descending order of the number of sources.
    """
    return dict(sorted(Counter(len(one.sources) for one in missing).items(), reverse=True))


__all__ = ["FilePlan", "Places", "Plan", "count_sources", "make_plan"]
