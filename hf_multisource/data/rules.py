"""Rules that prepare rows of parallel text: some rules change texts, the others drop rows.

The rules are applied in the order of `RULES`, each to the result of the rules before it. All languages of a row are
dropped together.
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
CHANGES = ("controls", "nfc", "punctuation")  # rules that change texts; the others drop rows
ROW, NONE = "row", "none"  # values of `Rules.duplicates` that are not languages

Finder = Callable[[TextRow], list[str]]  # returns the reasons (usually languages) to drop a row; empty: the row is kept
LETTER = regex.compile(r"\p{L}")


@dataclass(frozen=True)
class Rules:
    """Settings of the rules.

    Args:
        keep_punctuation: Whether to keep typographic quotation marks, dashes and ellipses.
        require: Languages that every row must have. A row without any text is always dropped.
        min_words: Smallest number of words of a text. Words are separated by white space.
        max_words: Largest number of words of a text. None means no limit.
        max_ratio: Largest ratio of the numbers of words of the longest and the shortest text of a row. None means no
            limit.
        scripts: Language -> name of its Unicode script, such as Cyrillic.
        min_script: Smallest share of letters in the language's script. A text without letters is kept.
        placeholders: One of `hf_multisource.data.placeholders.SYNTAXES`. Rows are dropped in which the placeholders or
            markup of a text differ from the first text; escape sequences are not compared. None skips the rule.
        duplicates: Treatment of duplicate rows. "row" keeps the first of rows that are equal in all languages, a
            language keeps the first of rows that are equal in this language, and "none" keeps all rows.
        ngram: Number of consecutive words. Rows are dropped in which a text shares this many words in a row with a
            held-out text of its language. Texts with fewer words are compared as a whole.
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
        """Apply the rules that change texts, without counting.

        Args:
            rows: The rows.

        Yields:
            Each row with the changed texts.
        """
        changes = self._changes()
        for row in rows:
            for name in changes:
                row = _changed(row, changes[name])[0]
            yield row

    def _changes(self) -> dict[str, Callable[[str], str]]:
        """Return the functions of the rules that change texts."""
        changes = {"controls": remove_controls, "nfc": compose, "punctuation": plain_punctuation}
        return {name: change for name, change in changes.items() if name != "punctuation" or not self.keep_punctuation}

    def _filters(self, overlaps: Mapping[str, Overlap]) -> dict[str, Finder]:
        """Return the functions of the rules that drop rows."""
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
        """Return whether a sufficient share of a text's letters belongs to a script."""
        letters = LETTER.findall(text)
        return len(pattern.findall(text)) >= self.min_script * len(letters)


class RuleCounts:
    """Counts of the rows that each rule changed or dropped.

    Args:
        names: The rules, in order.

    Attributes:
        read: Rows that were read.
        kept: Rows that were kept.
        rules: Rule -> counts, in the order of the rules: `rows` that the rule changed or dropped, and for each
            language, the number of rows for which the language was the reason.
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
    """Apply the rules to rows.

    Args:
        rows: The rows.
        rules: The settings of the rules.
        overlaps: Language -> held-out texts, normalized by `Rules.normalized`. If empty, the rule on overlaps is
            skipped.

    Returns:
        The changed rows that are kept, and the counts, which are complete after the last row.
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
    """Change the texts of a row, and return the row and the languages that differ; an empty text becomes absent."""
    new = {name: text and (change(text) or None) for name, text in row.items()}
    return new, [name for name, text in row.items() if text != new[name]]


class _Duplicates:
    """Find rows that are equal to an earlier row.

    Args:
        language: The language in which rows are compared; None compares all languages.
    """

    def __init__(self, language: str | None) -> None:
        self.language = language
        self.seen: set[bytes] = set()

    def __call__(self, row: TextRow) -> list[str]:
        """Return a reason if the row is a duplicate; rows that lack the language are never duplicates."""
        key = [*row.values()] if self.language is None else row[self.language]
        if key is None:
            return []
        digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).digest()
        if digest in self.seen:
            return [self.language or "all languages"]
        self.seen.add(digest)
        return []


def _script_pattern(script: str) -> regex.Pattern[str]:
    """Return the pattern of a letter of a script."""
    try:
        return regex.compile(rf"[\p{{L}}&&\p{{Script={script}}}]", regex.V1)
    except regex.error as error:
        raise ValueError(
            f"scripts: unknown script {script!r}; give the name of a Unicode script, such as Latin, Cyrillic or Arabic"
        ) from error
