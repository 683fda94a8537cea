"""Find and read the catalogues of a language in a folder, an archive or a single file, by the code in their paths."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hf_multisource.data.archives import is_archive, read_files
from hf_multisource.data.catalogue_entries import JOINT, Catalogue, ForeignFileError
from hf_multisource.data.catalogue_files import find_format, read_catalogue
from hf_multisource.data.plural_forms import is_locale, main_territory

LANG = "{lang}"
NOT_UTF_8 = "its name is not UTF-8"
LINK = "a link, which is not followed"
ANOTHER = "a file of another language, by its path"
OF_SOURCE = "a file without a code, which is of the source language"
BASE = "a file without a code, in place of which the language has one with its code"
MODIFIER = r"@[A-Za-z]+(?:/|$|\.(?:po|pot|mo|ts|xlf|xliff)$)"  # modifier of a locale: script, region or currency
LANGUAGE_BEFORE = re.compile(r"(?:^|[/_.-])([a-z]{2,3})[_-]$")  # a language code before a territory
# What may be the code of a language in a path: a language of two or three letters, a script, a region and a modifier.
CODE = re.compile(
    r"(?:(?<=[/_.-])|^)(?:[A-Za-z]{2,3}(?:[-_]\w{2,8})*(?:@[A-Za-z]+)?|b\+[A-Za-z]+(?:\+\w+)*)(?=[/.@]|$)"
)
WITH_CODE = re.compile(rf"[-_.]{re.escape(LANG)}(?=[/.]|$)")
# Qualifiers of Android's folders after the language: night mode, screen, version and others.
QUALIFIERS = (
    r"(?:-(?:neuter|feminine|masculine|ld(?:rtl|ltr)|(?:sw|w|h)\d+dp|small|normal|x?large|(?:not)?long|(?:not)?round|"
    r"(?:no)?widecg|(?:high|low)dr|port|land|square|car|desk|television|appliance|watch|vrheadset|(?:not)?night|[a-z]*dpi|"
    r"\d+dpi|notouch|stylus|finger|keys(?:exposed|hidden|soft)|nokeys|qwerty|12key|nav(?:exposed|hidden)|nonav|dpad|"
    r"trackball|wheel|\d+x\d+|v\d+))"
)
# Folder of Android's texts: `values`, codes of a mobile network, language, other qualifiers. `car` is a mode, not a
# language.
ANDROID_FOLDER = re.compile(
    r"(?:^|(?<=/))(?P<head>values(?:-mcc\d+)?(?:-mnc\d+)?)"
    r"(?P<language>-(?:b(?:\+\w+)+|(?!car[/-])[A-Za-z]{2,3}(?:-r(?:[A-Za-z]{2}|\d{3}))?))?"
    rf"(?P<rest>{QUALIFIERS}*)(?=/[^/]+\.xml$)"
)


class Place(NamedTuple):
    """Where the catalogues of a language are.

    Args:
        path: Folder, archive or file.
        code: Code of the language in paths.
        shared: Whether the place contains several languages.
    """

    path: Path
    code: str
    shared: bool = False


def find_pattern(pattern: str, language: str, code: str) -> Path | None:
    """Find the place of a language.

    Args:
        pattern: Path in which `{lang}` stands for the code of the language; it may have wildcards.
        language: The language, for messages.
        code: Its code, which is also tried in other spellings.

    Returns:
        The path of the folder, archive or file; None if nothing fits the pattern.

    Raises:
        ValueError: If several places fit the pattern.
    """
    joined = [one.join(JOINT.split(code)) for one in ("-", "_", "-r")]
    android = f"b+{'+'.join(JOINT.split(code))}"
    for one in dict.fromkeys([code, code.lower(), *joined, *map(str.lower, joined[:2]), android]):
        if found := _matches(pattern.replace(LANG, one)):
            return _only(found, language)
    return None


def find_place(path: str, language: str) -> Path:
    """Find the place of a language whose path is given.

    Args:
        path: The path, which may have wildcards.
        language: The language, for messages.

    Returns:
        The place.

    Raises:
        FileNotFoundError: If there is no such place.
        ValueError: If several places fit.
    """
    if not (found := _matches(path)):
        raise FileNotFoundError(f"{path}, the place of {language!r}, is not there")
    return _only(found, language)


def _matches(path: str) -> list[Path]:
    return [Path(path)] if Path(path).exists() else [Path(one) for one in sorted(glob.glob(path))]


def _only(places: Sequence[Path], language: str) -> Path:
    if len(places) > 1:
        raise ValueError(f"{len(places)} places fit the language {language!r}: {places[0]}, {places[1]}; name one")
    return places[0]


def read_places(
    places: Mapping[str, Place], source_language: str
) -> tuple[dict[str, dict[str, Catalogue]], dict[str, dict[str, str]]]:
    """Read the catalogues of several languages, including files of the source language without a code.

    In a place of several languages, a file without a code, such as `values/strings.xml` or `messages.properties`,
    belongs to the source language if another language has the same file with its code, `values-de/strings.xml` or
    `messages_de.properties`, and the source language has none, or an empty one. A place that is a single file without a
    code belongs to the single files of the other languages in the same way, whatever its language.

    Args:
        places: Language -> place.
        source_language: The language of files without a code in a place of several languages.

    Returns:
        Language -> path with `{lang}` -> catalogue; and language -> path of a file that was not read -> the reason.

    Raises:
        FileNotFoundError: If there is no such place.
        ValueError: If a file is damaged, or two files of a language have the same path.
    """
    found: dict[str, dict[str, Catalogue]] = {}
    skipped: dict[str, dict[str, str]] = {language: {} for language in places}
    same = Counter(place.path.resolve() for place in places.values())
    shared = {name: place.shared or same[place.path.resolve()] > 1 for name, place in places.items()}
    for language, (path, code, _) in places.items():
        found[language] = read_place(
            path, language, code, shared=shared[language], unread=skipped[language], source_language=source_language
        )
    for language, (path, _, _) in places.items():
        alone = path.is_file() and not is_archive(path.name)
        others = {
            one
            for name, other in places.items()
            for one in found[name]
            if name != language and LANG in one and (alone or other.path.resolve() == path.resolve())
        }
        if alone:
            base = {_without_code(one): one for one in others}
            found[language] = {base.get(one, one): catalogue for one, catalogue in found[language].items()}
        elif shared[language] and language == source_language and others:
            _add_base_files(found[language], path, others, skipped[language])
    return found, skipped


def _add_base_files(files: dict[str, Catalogue], place: Path, others: set[str], unread: dict[str, str]) -> None:
    """Add the files without a code to those of the source language, in place."""
    base = {_without_code(one): one for one in others if _without_code(one) != one}
    android = any(_is_android(one) for one in others)

    def neutral_of(path: str) -> str | None:
        return (_android_base(path) if android else None) or base.get(path)

    def wanted(path: str) -> bool:
        return find_format(path) is not None and neutral_of(path) is not None

    def skip(path: str) -> None:
        if wanted(path):
            unread[path] = LINK

    for path, content in read_files(place, wanted, skip):
        neutral = neutral_of(path) or path
        if neutral in files and files[neutral].entries:
            unread[path] = BASE
            continue
        try:
            files[neutral] = read_catalogue(str(place / path), content)
        except ForeignFileError as error:
            unread[path] = error.reason


def read_place(
    place: Path,
    language: str,
    code: str,
    *,
    shared: bool = False,
    unread: dict[str, str] | None = None,
    source_language: str | None = None,
) -> dict[str, Catalogue]:
    """Read the catalogues of a language from a folder, an archive or a single file.

    Args:
        place: The folder, archive or file.
        language: The language, for messages.
        code: Code of the language in paths.
        shared: Whether the place contains several languages. If so, only files with the code in their path are read.
            Otherwise, a file with another code is not read if the place has the same file with the language's code:
            `po/be.po` beside `po/sr.po` is not a file of `sr`. Neither is a file without a code if half of its keys are
            in the same file with the code. If no file has the language's code, a file with the code of a language is
            not read if half of its keys are in the same file without a code: `messages_de.properties` beside
            `messages.properties`, which is the file of the language in this case. Android's folders of other
            languages, such as `values-de`, are not read if the place has folders of the language or without a
            language. A folder without a language, such as `values-night`, is that of the source language, as
            `values-{lang}-night`, if there is no such folder; of another language only if no folder has a language.
        unread: Dict to which skipped files and folders are added: path, as in the result -> reason. With None, a file
            that has the name of a catalogue but another content raises an error.
        source_language: The source language; None: the language itself.

    Returns:
        Path in the place, with `{lang}` instead of the code -> catalogue.

    Raises:
        FileNotFoundError: If there is no such place.
        ValueError: If a file is damaged, or two files have the same path.
    """
    files: dict[str, Catalogue] = {}
    paths: dict[str, str] = {}  # path with `{lang}` -> path in the place
    lost: dict[str, str] = {}

    def skip(path: str) -> None:
        neutral = neutral_path(path, code)
        if not (shared and neutral == path and not path.endswith("/")):
            lost[neutral] = LINK

    found = read_files(place, lambda name: find_format(name) is not None, skip)
    names: set[str] = set()
    own: frozenset[str] = frozenset()
    android: frozenset[str] = frozenset()  # files of Android in folders of other languages
    if not shared:
        contents = [*found]
        own = frozenset(neutral for path, _ in contents if (neutral := neutral_path(path, code)) != path)
        without = [path for path, _ in contents if neutral_path(path, code) == path]
        android = _other_android(without, own, source_language in (None, language, code))
        found = iter(contents)
    for path, content in found:
        names.add(path)
        neutral = neutral_path(path, code)
        if shared and neutral == path:
            continue  # a file of another language
        others = (
            (neutral_path(path, one[0]) for one in CODE.finditer(path))
            if own and neutral == path and _android_base(path) is None
            else ()
        )
        if path in android or any(one in own for one in others):
            base = _android_base(path) if path in android else None
            lost[path] = ANOTHER if base is None else BASE if base in own else OF_SOURCE
            continue
        if not shared and neutral == path:
            neutral = _android_base(path) or path
        if (name := path.encode(errors="backslashreplace").decode()) != path:
            if unread is None:
                raise ForeignFileError(f"{place}: {name}", NOT_UTF_8)
            lost[neutral_path(name, code)] = NOT_UTF_8
            continue
        if neutral in files:
            raise ValueError(f"{place}: {path} and {files[neutral].path} are the same file of {language!r}")
        alone = path == place.name and place.is_file()
        try:
            files[neutral], paths[neutral] = read_catalogue(str(place if alone else place / path), content), path
        except ForeignFileError as error:
            if alone or unread is None:
                raise
            lost[neutral] = error.reason
    for neutral in [one for one, path in paths.items() if one != path and _is_territory(path, code, names)]:
        del files[neutral]
    for path, neutral in [(_without_code(one), one) for one in own if one in files]:
        if path != neutral and path in files and _have_same_keys(files[path], files[neutral]):
            lost[path] = ANOTHER
            del files[path]
    if not shared and not own:
        _drop_other_languages(files, lost)
    if unread is not None:
        for path in [path for path in files if path.endswith(".mo") and f"{path[:-3]}.po" in files]:
            lost[path] = f"it is made from {Path(path).stem}.po, which is read"
            del files[path]
        unread |= lost
    return files


def _is_android(neutral: str) -> bool:
    """Return whether a path with `{lang}` is in Android's folder of a language."""
    folder = ANDROID_FOLDER.search(neutral.replace(LANG, "xx"))
    return folder is not None and folder["language"] == "-xx"


def _android_base(path: str) -> str | None:
    """Return the path of an Android file with `{lang}` inserted; None if its folder is not one without a language."""
    folder = ANDROID_FOLDER.search(path)
    if folder is None or folder["language"]:
        return None
    return f"{path[: folder.start()]}{folder['head']}-{LANG}{folder['rest']}{path[folder.end() :]}"


def _other_android(paths: Sequence[str], own: Collection[str], of_source: bool) -> frozenset[str]:
    """Return the Android files of other languages in the place of one language.

    Args:
        paths: Paths without the code of the language.
        own: Paths with the code of the language, which is replaced by `{lang}`.
        of_source: Whether the language is the source language.

    Returns:
        The files in folders with a language, unless there are no others, and the files in folders without a language
        if the language has the same file in a folder of its own, or is not the source language.
    """
    folders = {path: folder for path in paths if (folder := ANDROID_FOLDER.search(path))}
    coded = {path for path, folder in folders.items() if folder["language"]}
    bases = folders.keys() - coded
    if not (any(map(_is_android, own)) or (coded and bases)):
        return frozenset()
    return frozenset(coded | {path for path in bases if not of_source or _android_base(path) in own})


def _drop_other_languages(files: dict[str, Catalogue], lost: dict[str, str]) -> None:
    """Remove the files of other languages, in a place where no file has the language's own code; changes the arguments.

    `messages_de.properties` is a file of another language if CLDR has the language `de`, and at least half of its keys
    are in `messages.properties`. The latter gets the path `messages_{lang}.properties`.
    """
    base: dict[str, str] = {}
    for path in [*files]:
        for one in CODE.finditer(path):
            start, end = one.span()
            bare = f"{path[: start - 1]}{path[end:]}"
            language = re.split(r"[-_+@]", one[0].removeprefix("b+"))[0]
            is_coded = start > 0 and path[start - 1] in "-_." and is_locale(language)
            if is_coded and bare in files and _have_same_keys(files[path], files[bare]):
                base[bare] = f"{path[:start]}{LANG}{path[end:]}"
                lost[path] = ANOTHER
    for path in [*files]:
        catalogue = files.pop(path)
        if path not in lost:
            files[base.get(path, path)] = catalogue


def _have_same_keys(one: Catalogue, other: Catalogue) -> bool:
    """Return whether at least half of the keys of the first catalogue are in the other."""
    keys, known = {entry.key for entry in one.entries}, {entry.key for entry in other.entries}
    return bool(keys) and 2 * len(keys & known) >= len(keys)


def _without_code(path: str) -> str:
    """Return a path without `{lang}` after a separator: `messages.properties` for `messages_{lang}.properties`."""
    return WITH_CODE.sub("", path)


def describe_unread(unread: Mapping[str, str], code: str) -> list[str]:
    """Describe the files and folders of a place that are not read, in the order of the place.

    Args:
        unread: Path with `{lang}` in place of the code -> the reason, as [`read_place`] gives them.
        code: Code of the language, which replaces `{lang}`.

    Returns:
        Path and reason of each file or folder.
    """
    return [f"{path.replace(LANG, code)}: {reason}" for path, reason in unread.items()]


def neutral_path(path: str, code: str) -> str:
    """Replace the language code in a path by `{lang}`, so that a file has the same path in all languages.

    Args:
        path: Path of the file.
        code: The code, such as `pt-BR`. In the path, it may also be written as `pt_BR`, `pt-rBR` or `b+pt+BR`, and in
            any letter case.

    Returns:
        The path with `{lang}` where the code is a folder, the end of a name before its suffix, or followed by `@`. A
        code with the modifier of a locale, such as `ca@valencia.po`, is not replaced, because it belongs to another
        language. Neither is the code of a territory after that of a language: two capital letters, as in `en_CA.po`, or
        the territory where most speakers of the language live, as in `pt-br.po`.
    """
    places = [place for place, language in _codes(path, code) if not _is_main_territory(path, place, language)]
    for start, end in reversed(places):
        path = f"{path[:start]}{LANG}{path[end:]}"
    return path


def _codes(path: str, code: str) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield where the code is in a path, and the language code before it, such as `pt` in `pt-br`; "" if none is."""
    parts = [re.escape(part) for part in JOINT.split(code)]
    spelled = "|".join(("[-_]r?".join(parts), r"b\+" + r"\+".join(parts)))
    end = rf"[/.@]|$|{QUALIFIERS}+/[^/]+\.xml$"
    token = re.compile(rf"(?:(?<=[/_.-])|^)(?:{spelled})(?!{MODIFIER})(?={end})", re.IGNORECASE)
    for match in token.finditer(path):
        before = LANGUAGE_BEFORE.search(path[: match.start()])
        if before is None or match[0] == code.upper() == code:
            yield match.span(), ""
        elif not match[0].isupper():
            yield match.span(), before[1]


def _is_main_territory(path: str, place: tuple[int, int], language: str) -> bool:
    return bool(language) and main_territory(language) == path[slice(*place)].upper()


def _is_territory(path: str, code: str, names: set[str]) -> bool:
    """Return whether the code in a path is that of a territory, which other files of the place show.

    `es-ar.po` is not a file of `ar` if CLDR has this locale, and the place has `ar.po` or `es.po`. A pair such as
    `en-de.xlf` may be a translation from English instead, beside `en.xlf`.
    """
    for (start, end), language in _codes(path, code):
        if language and is_locale(f"{language}_{path[start:end].upper()}"):
            begin = start - 1 - len(language)
            alone = f"{path[:begin]}{path[start:]}", f"{path[: start - 1]}{path[end:]}"
            return alone[0] in names or (language != "en" and alone[1] in names)
    return False


__all__ = [
    *("ANOTHER", "LANG", "Place", "describe_unread", "find_pattern", "find_place", "neutral_path"),
    *("read_place", "read_places"),
]
