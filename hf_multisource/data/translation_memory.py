"""Translation memory with several source languages, which finds earlier translations by the texts of their sources."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hf_multisource.data.catalogues import one_line
from hf_multisource.data.placeholders import broken_placeholders
from hf_multisource.data.streams import stream_rows
from hf_multisource.messages import install_hint

SPLIT = "train"  # the split that is read of a folder of `hf-multisource catalogues`; dev and test rows stay unseen
SIMILAR = 70  # smallest similarity of a hint in percent; translators rewrite less similar texts rather than edit them
LONGEST_HINT = 300  # characters; no similar texts are searched for longer texts

# White space and escaped line breaks (`\n`) at both ends. A match never begins inside white space, so that the time is
# linear.
OUTER = re.compile(r"\A(?:\\n|\s)+|(?<!\\n)(?<!\s)(?:\\n|\s)+\Z")


@dataclass(frozen=True)
class MemoryRow:
    """A translation in the memory, with its sources.

    Args:
        sources: Language -> text in one line.
        text: The translation, without white space at both ends.
        key: Key and part of its entry, or an empty string.
        from_line: Whether `text` is a line of a file, in which line breaks are written as a backslash and n.
    """

    sources: Mapping[str, str]
    text: str
    key: str = ""
    from_line: bool = False


@dataclass(frozen=True)
class Match:
    """A translation that the memory contains for a text.

    Args:
        text: The translation, with the line breaks and the outer white space of the queried text.
        times: Number of entries of the memory with these sources and this translation.
        total: Number of entries of the memory with these sources.
    """

    text: str
    times: int
    total: int


@dataclass(frozen=True)
class Hint:
    """A translation of a similar text.

    Args:
        language: Language of the similar source.
        source: Source text in the memory.
        text: The translation.
        similarity: Similarity of the two source texts, from 0 to 1.
    """

    language: str
    source: str
    text: str
    similarity: float


@dataclass
class TranslationMemory:
    """Translation memory that finds translations of equal and of similar sources; it is empty at first.

    Attributes:
        rows: The translations, in the order in which they were added.
    """

    rows: list[MemoryRow] = field(default_factory=list, init=False)
    _places: dict[tuple[str, str], set[int]] = field(default_factory=dict, init=False, repr=False)
    _texts: dict[str, dict[str, int]] = field(default_factory=dict, init=False, repr=False)

    def add(self, sources: Mapping[str, str], text: str, *, key: str = "", from_line: bool = False) -> None:
        """Add a translation, unless its own text or all of its source texts are empty.

        Args:
            sources: Language -> text of each present source.
            text: The translation.
            key: Key and part of its entry.
            from_line: See [`MemoryRow`].
        """
        bare = _bare_line if from_line else str.strip
        lines = {language: line for language, source in sources.items() if (line := one_line(bare(source)))}
        text = bare(text)
        if not lines or not text:
            return
        number = len(self.rows)
        self.rows.append(MemoryRow(lines, text, key, from_line))
        for language, source in lines.items():
            self._places.setdefault((language, source), set()).add(number)
            self._texts.setdefault(language, {}).setdefault(source, number)

    def read(self, place: str, sources: Sequence[str], target: str) -> int:
        """Add the training rows of a folder that `hf-multisource catalogues` has written.

        Args:
            place: The folder, or the id of a Hub data set.
            sources: Names of the columns of the sources; some may be missing.
            target: Name of the column of the target.

        Returns:
            Number of rows with a translation.

        Raises:
            FileNotFoundError: If there is no such place, or it has no training rows.
            ValueError: If the target has no column, or a file is damaged.
        """
        before = len(self.rows)
        for row in stream_rows(place, SPLIT, [*sources, target], optional=[*sources]):
            texts = {name: text for name in sources if (text := row[name])}
            self.add(texts, row[target] or "", from_line=True)
        return len(self.rows) - before

    def find(
        self, sources: Mapping[str, str], key: str = "", *, languages: Collection[str] | None = None
    ) -> list[Match]:
        """Find the translations of entries that have the same texts in all given sources, and no further source.

        Args:
            sources: Language -> text of each present source.
            key: Key and part of the entry. Translations of entries with the same key come first.
            languages: The languages that a query may have; further sources in other languages are ignored. None means
                all languages.

        Returns:
            The distinct translations, sorted by whether the key is the same, by frequency and by order of insertion.
        """
        lines = {language: one_line(source.strip()) for language, source in sources.items()}
        places = [self._places.get((language, line), set()) for language, line in lines.items() if line]
        found = sorted(set.intersection(*sorted(places, key=len))) if places else []
        present = {language for language, line in lines.items() if line}
        further = {i: self.rows[i].sources.keys() - present for i in found}
        found = [i for i in found if not (further[i] if languages is None else further[i].intersection(languages))]
        whole = next((source for source in sources.values() if source.strip()), "")
        texts = [(self.rows[i], fitted(self.rows[i], whole)) for i in found]
        counts = Counter(text for _, text in texts)
        same = {text for row, text in texts if key and row.key == key}
        order = sorted(counts, key=lambda text: (text not in same, -counts[text]))
        return [Match(text, counts[text], len(found)) for text in order]

    def answer(
        self,
        sources: Mapping[str, str],
        guide: str,
        syntax: str | None,
        key: str = "",
        *,
        languages: Collection[str] | None = None,
    ) -> list[Match]:
        """Find translations like [`find`], but drop translations whose placeholders differ from those of a guide.

        Apostrophes are not checked: the program reads a person's translation as it is written.

        Args:
            sources: See [`find`].
            guide: The text whose outer white space and placeholders a translation must have.
            syntax: Syntax of the placeholders; None skips the check.
            key: See [`find`].
            languages: See [`find`].

        Returns:
            The translations, in the order of [`find`], with the outer white space of the guide.
        """
        found = self.find(sources, key, languages=languages)
        matches = [replace(match, text=with_blanks(match.text, guide)) for match in found]
        return [
            one
            for one in matches
            if syntax is None or not broken_placeholders(guide, one.text, syntax, message_format=False)
        ]

    def similar(self, sources: Mapping[str, str]) -> Hint | None:
        """Find the translation of the most similar source text.

        Every given source is compared with the texts of its language. Of equally similar texts, that of the source
        given first counts.

        Args:
            sources: Language -> text of each present source.

        Returns:
            The translation; None if no text is similar.

        Raises:
            ImportError: If the package rapidfuzz is not installed.
        """
        fuzz, process = import_rapidfuzz()
        hints = []
        for language, source in sources.items():
            line = one_line(source.strip())
            texts = self._texts.get(language, {})
            if line and len(line) <= LONGEST_HINT:
                best = process.extractOne(line, texts.keys(), scorer=fuzz.ratio, score_cutoff=SIMILAR)
                if best is not None:
                    hints.append(Hint(language, best[0], self.rows[texts[best[0]]].text, best[1] / 100))
        return max(hints, key=lambda hint: hint.similarity, default=None)

    def digest(self) -> str:
        """Return a digest of the content of the memory.

        Returns:
            The SHA-256 in hexadecimal digits.
        """
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(f"{json.dumps([dict(row.sources), row.text, row.key, row.from_line])}\n".encode())
        return digest.hexdigest()


def import_rapidfuzz() -> tuple[Any, Any]:
    """Import the package that finds similar texts.

    Returns:
        The modules `fuzz` and `process` of rapidfuzz.

    Raises:
        ImportError: If rapidfuzz is not installed.
    """
    try:
        from rapidfuzz import fuzz, process
    except ImportError as error:
        raise ImportError(
            f"similar texts are found by the package rapidfuzz: {install_hint('localization')}"
        ) from error
    return fuzz, process


def _bare_line(line: str) -> str:
    r"""Return a line of a file without white space and escaped line breaks (`\n`) at both ends."""
    return OUTER.sub("", line)


def with_blanks(text: str, guide: str) -> str:
    """Return a translation with the outer white space of another text.

    Args:
        text: The translation.
        guide: The other text.

    Returns:
        The translation.
    """
    return guide[: len(guide) - len(guide.lstrip())] + text.strip() + guide[len(guide.rstrip()) :]


def fitted(row: MemoryRow, source: str) -> str:
    r"""Return a translation with the outer white space and the line breaks of a text.

    Args:
        row: The translation.
        source: The text that it translates.

    Returns:
        The translation. If it is a line of a file, `\n` is replaced by a line break if the text contains line breaks
        and no `\n`.
    """
    text = row.text
    if row.from_line and "\n" in source and "\\n" not in source:
        text = text.replace("\\n", "\n")
    return with_blanks(text, source)


__all__ = ["Hint", "Match", "MemoryRow", "TranslationMemory", "import_rapidfuzz", "with_blanks"]
