"""Make rows of parallel text from localization catalogues: align languages by file and key, and make splits.

The number of entries or rows that each rule affects is counted. By default all messages of a catalogue file go to the
same split, because neighboring messages are often similar and would leak from the training split to the others.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hf_multisource.data.catalogue_entries import (
    FUZZY,
    JOINT,
    OBSOLETE,
    UNTRANSLATED,
    Catalogue,
    Identity,
)
from hf_multisource.data.catalogue_files import NAMES
from hf_multisource.data.catalogue_places import LANG, Place, describe_unread, find_pattern, find_place, read_places
from hf_multisource.data.catalogue_views import (
    NUMBERED,
    ONE_PART,
    OTHER_PART,
    category_part,
    forms_of,
    source_forms,
    suffix_of,
)
from hf_multisource.data.catalogue_xliff import match_keys
from hf_multisource.data.files import check_new_folder, write_json
from hf_multisource.data.plural_forms import CATEGORIES, plural_rule
from hf_multisource.data.prepare import check_languages, new_folder, write_columns
from hf_multisource.messages import shown_key

SPLITS = ("train", "dev", "test")
SPLIT_BY = ("files", "messages")
COUNTS, KEYS = "counts.json", "keys.json"
LONGEST_PATH = 60  # number of characters after which a printed path is shortened
SHOWN = 5  # number of examples per language in the report of unhandled messages
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f\x85\u2028\u2029]+")


@dataclass(frozen=True)
class Selection:
    """Settings for reading catalogues and splitting the rows.

    Args:
        languages: The languages, which are the names of the columns.
        codes: Language -> code in paths. Defaults to the name of the language.
        paths: Language -> place of its catalogues, which replaces the pattern.
        source_language: The source language of files that contain the source text of each message, such as gettext,
            and the language of files without a code, such as `values/strings.xml` beside `values-de/strings.xml`.
        target: The language that every row must have. With None, no language is required.
        drop_copies: Whether to drop texts of the target that [`is_copy`] considers untranslated. Such texts are
            counted in all languages in any case.
        min_languages: Smallest number of languages in a row.
        dev: Share of the files, or messages, in the dev split.
        test: Share of the files, or messages, in the test split.
        split_by: What stays together, one of `SPLIT_BY`: the messages of a file, or only the forms of a message, which
            a project with few files needs.
    """

    languages: Sequence[str]
    codes: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    source_language: str = "en"
    target: str | None = None
    drop_copies: bool = False
    min_languages: int = 2
    dev: float = 0.1
    test: float = 0.1
    split_by: str = "files"

    def check(self) -> None:
        """Check that the settings are allowed and consistent.

        Raises:
            ValueError: If a setting is not allowed; the message names the setting.
        """
        check_languages(self.languages)
        for name, given in (("codes", self.codes), ("paths", self.paths)):
            if unknown := [one for one in given if one not in self.languages]:
                raise ValueError(f"{name} has {unknown[0]!r}; the languages are {', '.join(self.languages)}")
        for language in self.languages:
            if not re.fullmatch(r"[A-Za-z][\w@-]*", self.code(language)):
                raise ValueError(f"the code of {language!r} is {self.code(language)!r}; it must be like de or pt-BR")
        if self.target is not None and self.target not in self.languages:
            raise ValueError(f"target is {self.target!r}; the languages are {', '.join(self.languages)}")
        if self.drop_copies and self.target is None:
            raise ValueError("drop_copies is true, and there is no target, whose texts would be dropped: name it")
        if not 1 <= self.min_languages <= len(self.languages):
            raise ValueError(f"min_languages is {self.min_languages}; it must be from 1 to {len(self.languages)}")
        if min(self.dev, self.test) < 0 or not self.dev + self.test < 1:
            raise ValueError(f"dev is {self.dev} and test is {self.test}; both must be 0 or more, their sum below 1")
        if self.split_by not in SPLIT_BY:
            raise ValueError(f"split_by is {self.split_by!r}; it must be {' or '.join(SPLIT_BY)}")

    def code(self, language: str) -> str:
        """Return the code that a language has in paths.

        Args:
            language: The language.

        Returns:
            The code.
        """
        return self.codes.get(language, language)


@dataclass(frozen=True)
class Row:
    """The texts of one entry in all languages.

    Args:
        file: Path of its file, with `{lang}` in place of the language's code.
        key: Key of the entry.
        part: Part of the entry.
        texts: Language -> text; None if the text is absent.
    """

    file: str
    key: str
    part: str
    texts: Mapping[str, str | None]


@dataclass
class CatalogueCounts:
    """Number of entries, rows and files to which each rule applied.

    Args:
        languages: Rule -> language -> number of entries.
        rows: Rule -> number of rows.
        files: Split -> number of files with rows in it.
        unhandled: Language -> examples of messages that could not be read.
        unread: Language -> files and folders that were not read, each with the reason.
    """

    languages: dict[str, Counter[str]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    unhandled: dict[str, list[str]] = field(default_factory=dict)
    unread: dict[str, list[str]] = field(default_factory=dict)

    def count(self, rule: str, language: str, number: int = 1) -> None:
        """Add to the count of a rule.

        Args:
            rule: The rule.
            language: The language.
            number: Number of entries to add.
        """
        self.languages.setdefault(rule, Counter())[language] += number

    def describe(self) -> str:
        """Return the counts as printable text.

        Returns:
            One line for each rule.
        """
        lines = []
        for rule, counts in self.languages.items():
            lines.append(f"{rule}: {', '.join(f'{language} {n}' for language, n in counts.items() if n) or 0}")
        lines += [f"{rule}: {number} rows" for rule, number in self.rows.items() if rule not in SPLITS]
        lines += [f"{split}: {self.rows[split]} rows from {self.files[split]} files" for split in SPLITS]
        for language, examples in self.unhandled.items():
            lines.append(f"not handled, {language}, for example: {'; '.join(map(shown_place, examples))}")
        for language, found in self.unread.items():
            lines.append(f"not read, {language}, for example: {'; '.join(map(shown_place, found[:SHOWN]))}")
        return "\n".join(lines)


# Rules that are counted for each language, in the order of the report.
FILES, UNREAD = "files", "files that are not read"
ENTRIES, UNHANDLED, REPEATED = "entries", "not handled", "repeated key (the first is kept)"
STATES = {
    OBSOLETE: "obsolete (dropped)",
    UNTRANSLATED: "untranslated (absent)",
    FUZZY: "fuzzy (absent)",
}
EMPTY, EQUAL = "empty (absent)", "equal to {} (kept)"
KEPT_COPIES = "of these, where all other languages have other texts (kept)"
DROPPED_COPIES = "equal to {}, where all other languages have other texts (absent)"
FROM_SOURCE = "texts from the source side of other languages' files"
NO_CATEGORY = "plural forms of unknown categories (absent)"  # counted only if there are such forms
RULES = (FILES, UNREAD, ENTRIES, UNHANDLED, REPEATED, *STATES.values(), EMPTY, FROM_SOURCE)
# Rules that drop whole rows.
NO_TARGET, FEW, DUPLICATES = "without the target (dropped)", "too few languages (dropped)", "duplicates (dropped)"


def write_catalogue_rows(pattern: str, out: Path, selection: Selection) -> CatalogueCounts:
    """Align the catalogues of several languages, and write one text file for each split and language.

    Args:
        pattern: Folder, archive or file with the catalogues; `{lang}` stands for the language's code. Without `{lang}`,
            all languages are in one place, and the paths of the files in it contain the code.
        out: Folder to write to, new or empty: `<split>.<language>`, `keys.json` and `counts.json`.
        selection: The settings.

    Returns:
        The counts.

    Raises:
        FileExistsError: If `out` is not empty.
        FileNotFoundError: If the catalogues of a language are not found.
        ImportError: If a format needs a package that is not installed.
        ValueError: If a setting is not allowed, a file is damaged, or a requested split gets no row. In this case,
            nothing is written.
    """
    selection.check()
    check_new_folder(out)
    counts = CatalogueCounts({rule: Counter() for rule in RULES})
    catalogues = read_languages(pattern, selection, counts)
    splits: dict[str, list[Row]] = {name: [] for name in SPLITS}
    for row in apply_row_rules(align(catalogues, selection, counts), selection, counts):
        place = row.file if selection.split_by == "files" else f"{row.file}\n{row.key}"
        splits[split_of(place, selection.dev, selection.test)].append(row)
    number = len({path for files in catalogues.values() for path in files})
    _check_languages_have_texts([row for rows in splits.values() for row in rows], selection, counts)
    for name, rows in splits.items():
        counts.rows[name], counts.files[name] = len(rows), len({row.file for row in rows})
        if not rows and (name == "train" or getattr(selection, name)):
            total = sum(map(len, splits.values()))
            advice = f"change the shares dev ({selection.dev}) and test ({selection.test}), 0 for no such split"
            if selection.split_by == "files":
                advice = f"files are split as a whole; set split_by to messages, name more files, or {advice}"
            raise ValueError(
                f"the split {name} gets no row (files: {number}, rows: {total}): "
                + (advice if total else f"all rows were dropped\n{counts.describe()}")
            )
    with new_folder(out) as folder:
        for name, rows in splits.items():
            if rows:
                texts = ({key: text and one_line(text) for key, text in row.texts.items()} for row in rows)
                write_columns(folder, name, selection.languages, texts)
        keys = {name: [[row.file, row.key, row.part] for row in rows] for name, rows in splits.items() if rows}
        write_json(folder / KEYS, keys)
        settings = {
            "pattern": pattern,
            "languages": [*selection.languages],
            "codes": {name: selection.code(name) for name in selection.languages},
            "paths": {**selection.paths},
            "source_language": selection.source_language,
            "target": selection.target,
            "drop_copies": selection.drop_copies,
            "min_languages": selection.min_languages,
            "dev": selection.dev,
            "test": selection.test,
            "split_by": selection.split_by,
        }
        found = {
            "entries": counts.languages,
            "rows": counts.rows,
            "files": counts.files,
            "not_handled": counts.unhandled,
            "not_read": counts.unread,
        }
        write_json(folder / COUNTS, {**settings, **found})
    return counts


def _check_languages_have_texts(rows: Sequence[Row], selection: Selection, counts: CatalogueCounts) -> None:
    """Raise ValueError if a language has neither a catalogue nor a text in the files of other languages."""
    for language in selection.languages:
        if not counts.languages[ENTRIES][language] and all(row.texts[language] is None for row in rows):
            raise ValueError(
                f"no row has a text of {language!r} (code {selection.code(language)}), and no catalogue of it was "
                "found: leave it out, or name its code (languages: NAME=CODE) or its place (paths: NAME=PATH)"
            )


def read_languages(pattern: str, selection: Selection, counts: CatalogueCounts) -> dict[str, dict[str, Catalogue]]:
    """Read the catalogues of each language.

    Args:
        pattern: See `write_catalogue_rows`.
        selection: The settings.
        counts: Counts to which the skipped files are added: links, and files that only have the name of a catalogue.

    Returns:
        Language -> path with `{lang}` in place of the code -> catalogue.

    Raises:
        FileNotFoundError: If the catalogues of a language are not found.
        ValueError: If a file is damaged, two files of a language have the same path, or a language other than
            `selection.source_language` has no catalogue.
    """
    places: dict[str, Place] = {}
    for language in selection.languages:
        code = selection.code(language)
        if language in selection.paths:
            places[language] = Place(find_place(selection.paths[language], language), code)
        elif LANG not in pattern:
            places[language] = Place(find_place(pattern, language), code, shared=True)
        elif (place := find_pattern(pattern, language, code)) is not None:
            places[language] = Place(place, code)
        elif language != selection.source_language:  # whose texts are in the files of other languages
            raise FileNotFoundError(
                f"{pattern.replace(LANG, code)} is not there; name another code (languages: {language}=CODE) or the "
                f"place (paths: {language}=PATH)"
            )
    found, skipped = read_places(places, selection.source_language)
    for language, unread in skipped.items():
        if unread:
            counts.count(UNREAD, language, len(unread))
            counts.unread[language] = describe_unread(unread, selection.code(language))
    found = {language: found.get(language, {}) for language in selection.languages}
    if lacking := [name for name, files in found.items() if not files and name != selection.source_language]:
        code = selection.code(lacking[0])
        place_of = selection.paths.get(lacking[0], pattern.replace(LANG, code))
        others = [f"; not read: {shown_place(one)}" for one in counts.unread.get(lacking[0], ())[:1]]
        raise ValueError(
            f"{place_of} has no catalogue of {lacking[0]!r} (code {code}); catalogues are {', '.join(NAMES)}"
            f"{''.join(others)}"
        )
    return found


def path_tail(path: str) -> str:
    """Return the end of a path, which is more informative than the beginning.

    Args:
        path: The path.

    Returns:
        The path, or its last `LONGEST_PATH` characters.
    """
    return path if len(path) <= LONGEST_PATH else f"…{path[1 - LONGEST_PATH :]}"


def shown_place(text: str) -> str:
    """Return a path and a remark in printable form: without control characters, and with a shortened path.

    Args:
        text: The path, a colon, and the remark.

    Returns:
        The end of the path, and the remark.
    """
    path, colon, rest = text.partition(": ")
    return f"{shown_key(path_tail(path))}{colon}{shown_key(rest)}"


def align(
    catalogues: Mapping[str, Mapping[str, Catalogue]], selection: Selection, counts: CatalogueCounts
) -> Iterator[Row]:
    """Align the entries of all languages by path and key.

    Args:
        catalogues: Language -> path -> catalogue, as `read_languages` returns it.
        selection: The settings.
        counts: Counts to which the entries are added.

    Yields:
        The rows, file by file. A missing, untranslated, fuzzy, empty or obsolete text is None. Numbered plural forms
        are aligned by their CLDR categories. A language that lacks a category uses its form `other`. If the categories
        are unknown in all languages of a file, the forms are aligned by number.
    """
    languages = selection.languages
    for path in sorted({path for files in catalogues.values() for path in files}):
        rows: dict[Identity, dict[str, str | None]] = {}
        sources: dict[Identity, str] = {}
        found = {language: catalogues[language][path] for language in languages if path in catalogues[language]}
        several = next((one for one in found.values() if not one.original), None)  # an XLIFF document of several files
        if several is not None:
            found = {language: match_keys(catalogue, several) for language, catalogue in found.items()}
        categories = _plural_categories(found, selection)
        for language, catalogue in found.items():
            counts.count(FILES, language)
            counts.count(UNHANDLED, language, len(catalogue.unhandled))
            examples = counts.unhandled.setdefault(language, []) if catalogue.unhandled else []
            examples += [f"{catalogue.path}: {one}" for one in catalogue.unhandled[: SHOWN - len(examples)]]
            seen: set[Identity] = set()
            for entry in catalogue.entries:
                counts.count(ENTRIES, language)
                if entry.state == OBSOLETE:
                    counts.count(STATES[OBSOLETE], language)
                    continue
                if entry.identity in seen:
                    counts.count(REPEATED, language)
                    continue
                seen.add(entry.identity)
                part, by_category = entry.part, bool(categories and entry.part)
                if by_category:
                    part = category_part(part, catalogue, categories.get(language)) or ""
                if entry.source is not None and _source_language(catalogue, selection) == selection.source_language:
                    forms = source_forms(entry, entry.source) if by_category else {entry.part: entry.source}
                    for source_part, text in forms.items():
                        sources.setdefault((entry.key, source_part), text)
                if entry.part and not part:
                    counts.count(NO_CATEGORY, language)
                    continue
                row = rows.setdefault((entry.key, part), {})
                if entry.state in STATES:
                    counts.count(STATES[entry.state], language)
                elif not entry.text.strip():
                    counts.count(EMPTY, language)
                elif row.get(language) is None:  # an earlier form of the same category is kept
                    row[language] = entry.text
                row.setdefault(language, None)
        if categories:
            _lend_forms(rows)
        _add_sources(rows, sources, selection, counts)
        for (key, part), texts in rows.items():
            yield Row(path, key, part, {language: texts.get(language) for language in languages})


def _source_language(catalogue: Catalogue, selection: Selection) -> str:
    """Return the column name of a file's source language."""
    named = catalogue.source_language
    if named is None:
        return selection.source_language
    codes = {JOINT.sub("-", selection.code(name)).lower(): name for name in selection.languages}
    full = JOINT.sub("-", named).lower()
    return codes.get(full) or codes.get(full.partition("-")[0]) or named


def _plural_categories(found: Mapping[str, Catalogue], selection: Selection) -> dict[str, tuple[str, ...]]:
    """Return the category of each numbered plural form, for the languages whose categories are known."""
    categories = {}
    for language, catalogue in found.items():
        if suffix_of(catalogue) in NUMBERED and any(entry.part for entry in catalogue.entries):
            code = selection.code(language)
            forms = forms_of(catalogue, code, plural_rule(code, catalogue.header))
            if forms and (len(forms) == 1 or len(set(forms)) > 1):  # one form must not be used for all numbers
                categories[language] = forms
    return categories


def _lend_forms(rows: Mapping[Identity, dict[str, str | None]]) -> None:
    """Fill plural categories that a language lacks with its form `other`, or else with its last form, in place."""
    forms: dict[str, dict[str, dict[str, str | None]]] = {}  # key -> language -> part -> text
    plurals = {(key, part): row for (key, part), row in rows.items() if part[1:-1] in CATEGORIES}
    for (key, part), row in plurals.items():
        for language, text in row.items():
            forms.setdefault(key, {}).setdefault(language, {})[part] = text
    for (key, part), row in plurals.items():
        for language, own in forms[key].items():
            if part not in own:
                row[language] = own.get(OTHER_PART, [*own.values()][-1])


def _add_sources(
    rows: Mapping[Identity, dict[str, str | None]],
    sources: Mapping[Identity, str],
    selection: Selection,
    counts: CatalogueCounts,
) -> None:
    """Add missing source texts from the files of other languages, and count or drop texts equal to the source."""
    language = selection.source_language
    if language not in selection.languages:
        return
    for identity, row in rows.items():
        key, part = identity
        wanted = [identity, (key, OTHER_PART), (key, ONE_PART)] if part[1:-1] in CATEGORIES else [identity]
        source = next((sources[one] for one in wanted if one in sources), "")
        if row.get(language) is None and source.strip():
            row[language] = source
            counts.count(FROM_SOURCE, language)
        others = {name: text for name, text in row.items() if name != language and text is not None}
        for name, text in others.items():
            copied = is_copy(text, row.get(language), [one for other, one in others.items() if other != name])
            if copied and selection.drop_copies and name == selection.target:
                counts.count(DROPPED_COPIES.format(language), name)
                row[name] = None
            elif text == row.get(language):
                counts.count(EQUAL.format(language), name)
                counts.count(KEPT_COPIES, name, int(copied))


def is_copy(text: str, source: str | None, others: Sequence[str]) -> bool:
    """Return whether a text seems to be untranslated: it equals the source text, and no other language equals it.

    Args:
        text: The text.
        source: The text in the source language, if there is one.
        others: The texts of the other languages.

    Returns:
        Whether the text is a copy. Names, which other languages keep as well, are not copies. Without texts of other
        languages, copies cannot be detected, and the result is False.
    """
    return text == source and bool(others) and source not in others


def apply_row_rules(rows: Iterator[Row], selection: Selection, counts: CatalogueCounts) -> Iterator[Row]:
    """Drop rows that lack the target, have too few languages, or have the same texts as an earlier row.

    Args:
        rows: The rows.
        selection: The settings.
        counts: Counts to which the rows are added.

    Yields:
        The remaining rows.
    """
    seen: set[bytes] = set()
    counts.rows.update(dict.fromkeys((NO_TARGET, FEW, DUPLICATES), 0))
    for row in rows:
        texts = [row.texts[language] for language in selection.languages]
        digest = hashlib.blake2b(repr(texts).encode(), digest_size=16).digest()
        if selection.target is not None and row.texts[selection.target] is None:
            counts.rows[NO_TARGET] += 1
        elif sum(text is not None for text in texts) < selection.min_languages:
            counts.rows[FEW] += 1
        elif digest in seen:
            counts.rows[DUPLICATES] += 1
        else:
            seen.add(digest)
            yield row


def split_of(path: str, dev: float, test: float) -> str:
    """Return the split of a file or message, which depends only on its path or key.

    Args:
        path: The path, with `{lang}` in place of the code; of a message, the path and the key.
        dev: Share of the dev split.
        test: Share of the test split.

    Returns:
        `train`, `dev` or `test`.
    """
    place = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") / 2**64
    return "dev" if place < dev else "test" if place < dev + test else "train"


def one_line(text: str) -> str:
    r"""Return a text in one line, as files of parallel text contain it.

    Args:
        text: The text.

    Returns:
        The text without white space at both ends. Line breaks are replaced by `\n`, other control characters by a
        blank.
    """
    return CONTROLS.sub(" ", text.replace("\r\n", "\n")).replace("\n", "\\n").strip()
