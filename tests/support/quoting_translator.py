"""A translator without a model, for tests of what uses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hf_multisource.evaluation.text_translator import Candidate, Translation
from hf_multisource.json_files import JsonObject
from kills import Killed


class QuotingTranslator:
    """Writes each text's first source between angle quotation marks, and records what it is asked.

    Args:
        sources: Names of the sources.
        refuse: Texts of the first source that are refused, with the reason.
        change: Turns the first source into the translation.
        kill_at: The call, from 1, at which the program dies; 0: none.
    """

    def __init__(
        self,
        sources: Sequence[str] = ("en", "de"),
        refuse: Mapping[str, str] | None = None,
        change: Callable[[str], str] = "«{}»".format,
        kill_at: int = 0,
    ) -> None:
        self.sources = tuple(sources)
        self.refuse = refuse or {}
        self.change = change
        self.kill_at = kill_at
        self.asked: list[tuple[dict[str, str | None], str | None]] = []
        self.calls = 0

    def search_settings(self, max_new_tokens: int | None = None) -> JsonObject:
        """Return settings, as `TextTranslator` does."""
        return {"length_penalty": 1.0, "max_new_tokens": max_new_tokens or 128, "optimize": None}

    def translate(
        self,
        rows: Sequence[Mapping[str, str | None]],
        *,
        n_best: int = 1,
        num_beams: int = 5,
        max_new_tokens: int | None = None,
        syntax: str | None = None,
    ) -> list[Translation]:
        """Translate rows, as `TextTranslator` does."""
        self.calls += 1
        if self.calls == self.kill_at:
            raise Killed
        found = []
        for row in rows:
            self.asked.append((dict(row), syntax))
            first = next(text for name in self.sources if (text := row.get(name)))
            texts = [self.change(first), f"{self.change(first)}?"][:n_best]
            candidates = tuple(Candidate(text, -1.0 - i) for i, text in enumerate(texts))
            found.append(Translation(refused=self.refuse[first]) if first in self.refuse else Translation(candidates))
        return found
