"""Answer each missing text from the translation memory or a model, or refuse it with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hf_multisource.data.access_keys import choose_access_key, is_fixed
from hf_multisource.data.catalogue_entries import FUZZY, TRANSLATED, Identity
from hf_multisource.data.catalogue_views import split_part
from hf_multisource.data.checks import check_at_least
from hf_multisource.data.placeholders import (
    MESSAGE_FORMATS,
    broken_placeholders,
    double_apostrophes,
    find_placeholders,
    is_message_format,
    shows_message_format,
    variants_refusal,
)
from hf_multisource.data.translation_memory import Match, with_blanks
from hf_multisource.evaluation.localization import Plan
from hf_multisource.evaluation.missing_texts import MissingText, file_syntax
from hf_multisource.evaluation.text_translator import Translation
from hf_multisource.json_files import JsonObject

# Maximum number of candidate translations per text, limited by the number of beams; the review page shows them
CANDIDATES = 3
MEMORY, MODEL, COPY, ACCESS_KEY = "memory", "model", "copy", "access key"
ORIGINS = (MEMORY, MODEL, COPY, ACCESS_KEY)
NO_LABEL = "no label is found that the access key belongs to"
NO_LABEL_TEXT = "the label of the access key is not translated"

Request = tuple[tuple[tuple[str, str], ...], str]  # (language, text) of the sources; placeholder syntax


class Probability(Protocol):
    """Estimator of the probability that a translation equals the text that a person would write."""

    def probability(self, row: Mapping[str, str | None], translation: Translation) -> float:
        """Return the probability of the best candidate."""


@dataclass(frozen=True)
class Options:
    """Options of the translation by a model.

    Args:
        num_beams: Beam width, at least 2.
        max_new_tokens: Longest translation, in tokens; None: the limit of the translator.
        min_confidence: Translations with a lower confidence are not written; None: all translations are written.
    """

    num_beams: int = 5
    max_new_tokens: int | None = None
    min_confidence: float | None = None

    def __post_init__(self) -> None:
        check_at_least(2, num_beams=self.num_beams)
        check_at_least(1, max_new_tokens=self.max_new_tokens)
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise ValueError(f"min_confidence is {self.min_confidence}; it must be from 0 to 1")


@dataclass
class Answer:
    """Answer to a missing text: a translation, or a refusal with the reason.

    Args:
        missing: The missing text.
        origin: One of `ORIGINS`; "" while there is no answer yet.
        text: The proposed translation; "" if there is none.
        confidence: Probability that a person would write the same text; None if unknown.
        reason: Reason why the text is not written; "" if it is written.
        times: For an answer of the memory, the number of entries with this translation.
        total: For an answer of the memory, the number of entries with the same source texts.
        others: Alternative translations, best first.
    """

    missing: MissingText
    origin: str = ""
    text: str = ""
    confidence: float | None = None
    reason: str = ""
    times: int = 0
    total: int = 0
    others: tuple[str, ...] = ()

    def describe(self) -> JsonObject:
        """Return the answer as JSON.

        Returns:
            The fields of the answer by name.
        """
        return {
            "file": self.missing.file,
            "key": self.missing.key,
            "part": self.missing.part,
            "sources": dict(self.missing.sources),
            "left_out": list(self.missing.left_out),
            "state": "refused" if self.reason else "filled",
            "origin": self.origin,
            "text": self.text,
            "confidence": self.confidence,
            "reason": self.reason,
            "memory": [self.times, self.total],
            "others": list(self.others),
        }


def answer_from_memory(plan: Plan) -> list[Answer]:
    """Answer the texts that need no model: those found in the memory, and texts without words.

    Keyboard shortcuts and sizes in CSS are copied from the guide, whatever the memory and the other sources contain.
    Texts with selectors that the memory does not contain are refused.

    Args:
        plan: The plan.

    Returns:
        An answer for each missing text of the plan, in order. Texts for the model and access keys are still unanswered.
    """
    answers = []
    for file in plan.files:
        for missing in file.missing:
            answer = Answer(missing, reason=missing.reason)
            if not missing.reason and not missing.labels:
                guide, syntax, key = missing.guide, missing.syntax, f"{missing.key}\x04{missing.part}"
                if is_fixed(missing.key, missing.part, guide):
                    answer.origin, answer.text = COPY, guide
                elif found := plan.memory.answer(missing.sources, guide, syntax, key, languages=file.languages):
                    _take_match(answer, found)
                elif refusal := variants_refusal(guide, syntax):
                    answer.reason = refusal
                elif not _words(guide, syntax) and set(missing.sources.values()) == {guide}:
                    answer.origin, answer.text = COPY, guide
            answers.append(answer)
    return answers


def _take_match(answer: Answer, found: Sequence[Match]) -> None:
    best = found[0]
    answer.origin, answer.text, answer.times, answer.total = MEMORY, best.text, best.times, best.total
    answer.others = tuple(match.text for match in found[1:CANDIDATES])


def _words(text: str, syntax: str) -> bool:
    """Return whether a text has letters outside its placeholders."""
    hidden = {i for one in find_placeholders(text, syntax) for i in range(one.start, one.end)}
    return any(letter.isalpha() for i, letter in enumerate(text) if i not in hidden)


def open_requests(answers: Sequence[Answer]) -> dict[Request, list[Answer]]:
    """Collect the translation requests for the model.

    Args:
        answers: All answers.

    Returns:
        Request -> answers that wait for it. Requests are unique and sorted by syntax.
    """
    waiting: dict[Request, list[Answer]] = {}
    for answer in answers:
        if not (answer.origin or answer.reason or answer.missing.labels):
            request = (tuple(answer.missing.read.items()), answer.missing.syntax)
            waiting.setdefault(request, []).append(answer)
    return dict(sorted(waiting.items(), key=lambda item: item[0][1]))


def take_proposals(
    plan: Plan,
    waiting: Mapping[Request, Sequence[Answer]],
    proposals: Sequence[Translation],
    options: Options,
    confidence: Probability | None,
) -> None:
    """Enter the model's translations into the answers that wait for them.

    The apostrophes of translations are doubled for Java's `MessageFormat` if the sources of the text or the other texts
    of its file or project show that they are patterns.

    Args:
        plan: The plan.
        waiting: Request -> answers that wait for it.
        proposals: The translation of each request, in the same order.
        options: Options with the minimum confidence.
        confidence: Estimator of the probability of a translation; None: the probability is unknown.
    """
    shown = _message_formats(plan)
    for ((sources, _), answers), found in zip(waiting.items(), proposals, strict=True):
        probability = confidence.probability(dict(sources), found) if confidence and found.candidates else None
        for answer in answers:
            answer.origin = MODEL
            if not found.candidates:
                answer.reason = found.refused or "the model gave no translation"
                continue
            missing, guide, syntax = answer.missing, answer.missing.guide, answer.missing.syntax
            texts = [with_blanks(one.text, guide) for one in found.candidates]
            message_format = is_message_format(missing.sources.values(), syntax, shown.get(missing.file))
            if message_format:
                texts = [double_apostrophes(text, syntax) for text in texts]
            answer.text, *others = texts
            answer.others, answer.confidence = tuple(others), probability
            faults = broken_placeholders(guide, answer.text, syntax, message_format=message_format)
            answer.reason = " ".join(faults)
            if options.min_confidence is not None and (probability or 0) < options.min_confidence:
                answer.reason = f"its confidence is below {options.min_confidence:g}"


def _message_formats(plan: Plan) -> dict[str, bool | None]:
    """Return whether each file is read with `MessageFormat`: its texts decide, and then all texts of the project."""
    texts: dict[str, list[str]] = {}
    syntaxes: dict[str, str] = {}
    for file in plan.files:
        possible = (file_syntax(file.catalogue), *(one.syntax for one in file.missing))
        if syntax := next((one for one in possible if one in MESSAGE_FORMATS), ""):
            catalogues = (file.catalogue, file.reference) if file.reference else (file.catalogue,)
            there = [entry.text for catalogue in catalogues for entry in catalogue.entries]
            texts[file.path] = [*there, *(text for one in file.missing for text in one.sources.values())]
            syntaxes[file.path] = syntax
    shown = {path: shows_message_format(found, syntaxes[path]) for path, found in texts.items()}
    known = [one for one in shown.values() if one is not None]
    project = all(known) if known else None
    return {path: project if one is None else one for path, one in shown.items()}


def choose_access_keys(plan: Plan, answers: Sequence[Answer]) -> None:
    """Choose the missing access keys, each a letter of its label.

    Args:
        plan: The plan.
        answers: The answers; the texts of the labels must already be filled in.
    """
    texts: dict[tuple[str, Identity], list[str]] = {}  # (file, (key, name)) -> variants; "": not filled
    for file in plan.files:
        there: dict[Identity, str] = {}
        for entry in file.catalogue.entries:
            if entry.state in (TRANSLATED, FUZZY):
                there.setdefault(entry.identity, entry.text)
        for (key, part), text in there.items():
            texts.setdefault((file.path, (key, split_part(part)[0])), []).append(text)
    for answer in answers:
        place = (answer.missing.file, (answer.missing.key, split_part(answer.missing.part)[0]))
        texts.setdefault(place, []).append("" if answer.reason else answer.text)
    for answer in answers:
        missing = answer.missing
        if missing.labels and not answer.reason:
            answer.origin = ACCESS_KEY
            places = [(missing.file, label) for label in missing.labels]
            if (label := next((texts[place] for place in places if place in texts), None)) is None:
                answer.reason = NO_LABEL
            elif not all(map(str.strip, label)):
                answer.reason = NO_LABEL_TEXT
            else:
                answer.text = choose_access_key(label, missing.sources, missing.syntax)


__all__ = ["Answer", "Options", "Probability", "answer_from_memory"]
