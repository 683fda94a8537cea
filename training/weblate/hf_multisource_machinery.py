"""Weblate machinery that asks `hf-multisource serve` for translations from all languages that a string exists in.

Copy this file to where Weblate finds Python modules (with Docker: /app/data/python/), and add the class to the setting
WEBLATE_MACHINERY; docs/serving.md shows how. It needs nothing but Weblate.

Weblate gives a machinery the string in one source language. The other languages are read from the units of the other
translations of the same component. Strings with plural forms are translated from the one source language alone, since
the forms of two languages have no common number. For the same reason, automatic translation leaves them out if the
target language has more or fewer forms than the source language.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from django.core.exceptions import ValidationError
from weblate.machinery.base import BatchMachineTranslation, MachineTranslationError
from weblate.machinery.forms import KeyURLMachineryForm
from weblate.utils.state import STATE_TRANSLATED

LOWEST = 10  # quality below which the editor shows no suggestion, in per cent
LONGEST = 5000  # characters of a text; the service refuses longer ones, by its option --max_characters
PAIR = ">"  # between source and target in a supported pair of languages


class MultiSourceTranslation(BatchMachineTranslation):  # type: ignore[misc]  # Weblate is not installed in our tests
    """Suggestions of `hf-multisource serve`; the quality of one is its calibrated confidence, in per cent."""

    name = "hf_multisource"
    max_score = 90  # quality of a suggestion without a confidence
    settings_form = KeyURLMachineryForm  # address and token of the service
    request_timeout = 60  # seconds
    do_cleanup = False  # the service keeps placeholders itself, and needs them as they are
    # Weblate's cache knows the text of one source language only; the same text can differ in the others.
    cache_translations = False

    def get_headers(self) -> dict[str, str]:
        """Return the header with the token."""
        return {"Authorization": f"Bearer {self.settings['key']}"}

    def validate_settings(self) -> None:
        """Check address and token. Weblate's own check would translate from English to German."""
        self.delete_cache()  # Weblate keeps the languages of the service for two days
        try:
            self.download_languages()
        except Exception as error:
            raise ValidationError(f"Could not fetch supported languages: {error}") from error

    def is_rate_limit_error(self, exc: Exception) -> bool:
        """Return False: a full queue (status 503) takes seconds, but Weblate would pause for half an hour."""
        return False

    def download_languages(self) -> list[str]:
        """Return the pairs of source and target that the service knows."""
        response = self.request("get", self.get_api_url("languages"))
        try:
            known = response.json()
            sources, target = list(known["sources"]), known["target"]
        except (ValueError, TypeError, KeyError) as error:
            message = f"{self.settings['url']} does not answer like `hf-multisource serve`"
            raise MachineTranslationError(message) from error
        if not target:
            raise MachineTranslationError("the service does not know its target language: start it with --target")
        return [f"{source}{PAIR}{target}" for source in sources]

    def is_supported(self, source: str, language: str) -> bool:
        """Return whether the service translates from one language to another."""
        return f"{source}{PAIR}{language}" in self.supported_languages

    def translate(self, unit: Any, user: Any = None, threshold: int = LOWEST, **options: Any) -> Any:
        """Return the suggestions for the editor. Weblate's default threshold would hide those with less than 80 %."""
        return super().translate(unit, user, threshold, **options)

    async def atranslate(self, unit: Any, user: Any = None, threshold: int = LOWEST, **options: Any) -> Any:
        """Return the suggestions for the editor, in newer versions of Weblate."""
        return await super().atranslate(unit, user, threshold, **options)

    def batch_translate(self, units: Iterable[Any], *arguments: Any, **options: Any) -> None:
        """Translate strings automatically, those with the same source text in separate batches.

        Weblate gives one translation to all strings of a batch with the same source text, although their texts in other
        languages may differ. If the languages have different numbers of plural forms, Weblate would fill several forms
        with one text and leave others empty.
        """
        same: dict[str, list[Any]] = defaultdict(list)
        for unit in units:
            forms = len(unit.get_source_plurals())
            if forms == 1 or forms == unit.translation.plural.number:
                same[unit.source].append(unit)
        for batch in zip_longest(*same.values()):
            super().batch_translate([unit for unit in batch if unit is not None], *arguments, **options)

    def download_multiple_translations(
        self,
        source_language: str,
        target_language: str,
        sources: list[tuple[str, Any]],
        user: Any = None,
        threshold: int = 75,
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the suggestions for each text; a text whose translation is refused has none."""
        rows = {text: self.row_of(source_language, text, unit) for text, unit in sources}
        sent = {text: row for text, row in rows.items() if row}
        if not sent:
            return {text: [] for text in rows}
        response = self.request("post", self.get_api_url("translate"), json={"sources": list(sent.values())})
        answers = dict(zip(sent, response.json()["translations"], strict=True))
        return {text: list(self.suggestions(text, answers.get(text), threshold)) for text in rows}

    def row_of(self, source_language: str, text: str, unit: Any) -> dict[str, str]:
        """Return the text in all languages that the service reads; nothing if it cannot be translated."""
        if not text.strip() or len(text) > LONGEST:
            return {}
        row = {source_language: text}
        if unit is None or len(unit.get_source_plurals()) > 1:
            return row
        names = {pair.partition(PAIR)[0] for pair in self.supported_languages}
        units = unit.source_unit.unit_set.filter(state__gte=STATE_TRANSLATED)
        # Sorted by code, since the text in "de" has to come before that in "de_AT".
        for other in units.select_related("translation__language").order_by("translation__language__code"):
            codes = self.get_language_possibilities(other.translation.language)
            name = next((code for code in codes if code in names), None)
            if name is not None and 0 < len(other.target) <= LONGEST:
                row.setdefault(name, other.target)
        return row

    def suggestions(self, text: str, answer: dict[str, Any] | None, threshold: int) -> Iterator[dict[str, Any]]:
        """Return the suggestion for a text, if it was translated with enough confidence."""
        if answer is None or not answer["candidates"]:
            return
        confidence = answer["confidence"]
        quality = self.max_score if confidence is None else math.floor(100 * confidence + 1e-9)
        if quality >= threshold:
            yield {
                "text": answer["candidates"][0]["text"],
                "quality": quality,
                "show_quality": confidence is not None,
                "service": self.name,
                "source": text,
            }
