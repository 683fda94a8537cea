"""Rules that prepare rows of parallel text: what changes a text, and what drops a row.

`RULES` gives their order. A rule sees what the rules before it have left. All languages of a row are dropped together.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import regex

from hf_multisource.data.checks import check_at_least, check_choice
from hf_multisource.data.normalization import compose, plain_punctuation, remove_controls
from hf_multisource.data.overlap import Overlap
from hf_multisource.data.placeholders import SYNTAXES, differing_languages
from hf_multisource.data.streams import TextRow

RULES = (
    "controls",
    "nfc",
    "punctuation",
    "required",
    "length",
    "ratio",
    "script",
    "placeholders",
    "duplicates",
    "held_out",
)
CHANGES = ("controls", "nfc", "punctuation")  # these change texts; the others drop rows
ROW, NONE = "row", "none"  # values of `Rules.duplicates` that are no language

Finder = Callable[[TextRow], list[str]]  # returns why a row is dropped: mostly languages; nothing: it stays
LETTER = regex.compile(r"\p{L}")


@dataclass(frozen=True)
class Rules:
    """Settings of the rules.

    Args:
        keep_punctuation: Whether typographic quotation marks, dashes and ellipses stay as they are.
        require: Languages that no row may lack. A row without any text is dropped in any case.
        min_words: Fewest words of a text; words are what white space separates.
        max_words: Most words of a text; None: any number.
        max_ratio: Largest ratio between the words of the longest and of the shortest text of a row; None: any.
        scripts: Language -> name of the Unicode script that it is written in, such as Cyrillic.
        min_script: Smallest share of letters that are of the language's script. A text without letters passes.
        placeholders: One of `hf_multisource.data.placeholders.SYNTAXES`: rows are dropped in which a text has other
            placeholders or other markup than the first text, escape sequences aside; None: any.
        duplicates: "row": of rows that are alike in all languages, the first stays; a language: of rows that are alike
            in it, the first stays; "none": all stay.
        ngram: Number of words in a row that no text may share with a held-out text of its language. Texts with fewer
            words are compared as a whole.
    """

    keep_punctuation: bool = False
    require: Sequence[str] = ()
    min_words: int = 1
    max_words: int | None = None
    max_ratio: float | None = None
    scripts: Mapping[str, str] = field(default_factory=dict)
    min_script: float = 0.5
    placeholders: str | None = None
    duplicates: str = ROW
    ngram: int = 6

    def check(self, languages: Sequence[str]) -> None:
        """Check the settings.

        Args:
            languages: The languages of the corpus.

        Raises:
            ValueError: If a value is not allowed; the message names the setting, the value and what is allowed.
        """
        check_at_least(1, min_words=self.min_words, max_ratio=self.max_ratio, ngram=self.ngram)
        check_at_least(self.min_words, max_words=self.max_words)
        check_choice(list(SYNTAXES), placeholders=self.placeholders)
        if not 0 <= self.min_script <= 1:
            raise ValueError(f"min_script is {self.min_script}; it must be a share from 0 to 1")
        named = {"require": self.require, "scripts": [*self.scripts]}
        for setting, names in named.items():
            if unknown := [name for name in names if name not in languages]:
                raise ValueError(
                    f"{setting}: unknown language {unknown[0]!r}; the languages are {', '.join(languages)}"
                )
        if self.duplicates not in (ROW, NONE, *languages):
            allowed = ", ".join((ROW, NONE, *languages))
            raise ValueError(f"duplicates is {self.duplicates!r}; allowed are {allowed}")
        for script in self.scripts.values():
            _script_pattern(script)

    def normalized(self, rows: Iterable[TextRow]) -> Iterator[TextRow]:
        """Change texts as the first rules do, without counting.

        Args:
            rows: The rows.

        Yields:
            Each row, changed.
        """
        changes = self._changes()
        for row in rows:
            for name in changes:
                row = _changed(row, changes[name])[0]
            yield row

    def _changes(self) -> dict[str, Callable[[str], str]]:
        """The functions of the rules that change texts."""
        changes = {"controls": remove_controls, "nfc": compose, "punctuation": plain_punctuation}
        return {name: change for name, change in changes.items() if name != "punctuation" or not self.keep_punctuation}

    def _filters(self, overlaps: Mapping[str, Overlap]) -> dict[str, Finder]:
        """The functions of the rules that drop rows."""
        filters: dict[str, Finder] = {"required": self._find_missing, "length": self._find_length}
        if self.max_ratio is not None:
            filters["ratio"] = self._find_ratio
        if self.scripts:
            patterns = {name: _script_pattern(script) for name, script in self.scripts.items()}
            filters["script"] = lambda row: [
                name for name, pattern in patterns.items() if (text := row[name]) and not self._is_in(text, pattern)
            ]
        if (syntax := self.placeholders) is not None:
            filters["placeholders"] = lambda row: differing_languages(row, syntax)
        if self.duplicates != NONE:
            filters["duplicates"] = _Duplicates(None if self.duplicates == ROW else self.duplicates)
        if overlaps:
            words = {"sequence": f"{self.ngram} words", "whole": "whole"}
            filters["held_out"] = lambda row: [
                f"{name} {words[found]}"
                for name, overlap in overlaps.items()
                if (text := row[name]) and (found := overlap.find(text))
            ]
        return filters

    def _find_missing(self, row: TextRow) -> list[str]:
        if not any(row.values()):
            return ["no text"]
        return [name for name in self.require if not row[name]]

    def _find_length(self, row: TextRow) -> list[str]:
        most = self.max_words or float("inf")
        return [name for name, text in row.items() if text and not self.min_words <= len(text.split()) <= most]

    def _find_ratio(self, row: TextRow) -> list[str]:
        lengths = {name: len(text.split()) for name, text in row.items() if text}
        longest, shortest = max(lengths, key=lengths.__getitem__), min(lengths, key=lengths.__getitem__)
        too_large = lengths[longest] > (self.max_ratio or 0) * lengths[shortest]
        return [f"{longest}/{shortest}"] if too_large else []

    def _is_in(self, text: str, pattern: regex.Pattern[str]) -> bool:
        """Whether enough letters of a text are of a script."""
        letters = LETTER.findall(text)
        return len(pattern.findall(text)) >= self.min_script * len(letters)


class RuleCounts:
    """Counts of what each rule did.

    Args:
        names: The rules, in order.

    Attributes:
        read: Rows that were read.
        kept: Rows that were kept.
        rules: By rule, in order: `rows` that it changed or dropped, and of how many of these a language was the reason.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.read = self.kept = 0
        self.rules: dict[str, Counter[str]] = {name: Counter(rows=0) for name in names}

    def add(self, rule: str, reasons: Sequence[str]) -> None:
        """Count a row.

        Args:
            rule: The rule that changed or dropped the row.
            reasons: The languages, or other reasons.
        """
        self.rules[rule].update(["rows", *reasons])

    def describe(self) -> str:
        """Return the counts as text.

        Returns:
            One line for each rule, between the rows that were read and the rows that were kept.
        """
        lines = [f"read: {self.read} rows"]
        for name, counts in self.rules.items():
            reasons = ", ".join(f"{reason} {counts[reason]}" for reason in sorted(counts.keys() - {"rows"}))
            verb = "changed" if name in CHANGES else "dropped"
            lines.append(f"{name}: {counts['rows']} rows {verb}{f' ({reasons})' if reasons else ''}")
        return "\n".join([*lines, f"kept: {self.kept} rows"])


def apply_rules(
    rows: Iterable[TextRow], rules: Rules, overlaps: Mapping[str, Overlap]
) -> tuple[Iterator[TextRow], RuleCounts]:
    """Prepare rows.

    Args:
        rows: The rows.
        rules: The settings of the rules.
        overlaps: Held-out texts by language, changed as `Rules.normalized` does; none: that rule is left out.

    Returns:
        The rows that are kept, changed; and the counts, which are complete after the last row.
    """
    changes, filters = rules._changes(), rules._filters(overlaps)
    counts = RuleCounts(name for name in RULES if name in (*changes, *filters))

    def prepared() -> Iterator[TextRow]:
        for row in rows:
            counts.read += 1
            for name, change in changes.items():
                row, reasons = _changed(row, change)
                if reasons:
                    counts.add(name, reasons)
            for name, find in filters.items():
                if reasons := find(row):
                    counts.add(name, reasons)
                    break
            else:
                counts.kept += 1
                yield row

    return prepared(), counts


def _changed(row: TextRow, change: Callable[[str], str]) -> tuple[TextRow, list[str]]:
    """A row with changed texts, and the languages of those that differ; a text of which nothing is left is absent."""
    new = {name: text and (change(text) or None) for name, text in row.items()}
    return new, [name for name, text in row.items() if text != new[name]]


class _Duplicates:
    """Finds rows that were there before.

    Args:
        language: The language in which rows are compared; None: all.
    """

    def __init__(self, language: str | None) -> None:
        self.language = language
        self.seen: set[bytes] = set()

    def __call__(self, row: TextRow) -> list[str]:
        """Return a reason if the row was there before; rows that lack the language are never alike."""
        key = [*row.values()] if self.language is None else row[self.language]
        if key is None:
            return []
        digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).digest()
        if digest in self.seen:
            return [self.language or "all languages"]
        self.seen.add(digest)
        return []


def _script_pattern(script: str) -> regex.Pattern[str]:
    """The pattern of a letter of a script."""
    try:
        return regex.compile(rf"[\p{{L}}&&\p{{Script={script}}}]", regex.V1)
    except regex.error as error:
        raise ValueError(
            f"scripts: unknown script {script!r}; give the name of a Unicode script, such as Latin, Cyrillic or Arabic"
        ) from error
