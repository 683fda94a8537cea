"""Translate texts with placeholders and markup; a translation keeps them exactly or is refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.checks import check_at_least, check_choice
from hf_multisource.data.encoding import encode_rows, text_keys
from hf_multisource.data.interfaces import Model
from hf_multisource.data.masking import (
    TABLE,
    has_mask_tokens,
    mask_sources,
    refusal,
    remembered_syntax,
    restore_masked,
)
from hf_multisource.data.placeholders import (
    ANY,
    SYNTAXES,
    PlaceholderTable,
    broken_placeholders,
    double_apostrophes,
    is_message_format,
)
from hf_multisource.data.rows import Row
from hf_multisource.evaluation.decoding import Hypothesis, Search, decode_window, load_model
from hf_multisource.evaluation.translating import check_new_tokens, decoder_limit, joined_sources, source_limit
from hf_multisource.json_files import JsonObject
from hf_multisource.messages import shown
from hf_multisource.recipes.recipe import DataRecipe
from hf_multisource.recipes.run_folder import data_of_run

REPLACEMENT = "\ufffd"  # character into which incomplete UTF-8 sequences of byte-level tokens are decoded
LENGTH_PENALTY = 1.0  # exponent p of the length penalty: scores are sum(log p) / length
# Hypotheses with lower scores are unused beam slots, which Transformers returns if it finds fewer hypotheses than
# requested
LOWEST_BEAM_SCORE = -1e8


@dataclass(frozen=True)
class Candidate:
    """One translation of a text.

    Args:
        text: The translation, with the placeholders of its source.
        score: Its score in the beam search: sum(log p) / length, with `length_penalty` 1.
    """

    text: str
    score: float


@dataclass(frozen=True)
class Translation:
    """The translations of one row.

    Args:
        candidates: The translations with intact placeholders, best first; empty if the row is refused.
        refused: Why the row has no translation, in one sentence; "" if it has one.
    """

    candidates: tuple[Candidate, ...] = ()
    refused: str = ""


class Translator(Protocol):
    """Interface of [`TextTranslator`] that calibration, the service and `localize` use."""

    @property
    def sources(self) -> Sequence[str]:
        """Names of the sources, in order."""

    def translate(
        self,
        rows: Sequence[Mapping[str, str | None]],
        *,
        n_best: int = 1,
        num_beams: int = 5,
        max_new_tokens: int | None = None,
        syntax: str | None = None,
    ) -> list[Translation]:
        """Translate rows of texts."""

    def search_settings(self, max_new_tokens: int | None = None) -> JsonObject:
        """Return the search settings, besides the beam width, on which the scores depend."""


class TextTranslator:
    """Translator of rows of texts that refuses a row rather than return a translation with broken placeholders.

    The translation of a row must have the placeholders of the first source that is present in the row. If the sources
    show that they are patterns of Java's `MessageFormat`, apostrophes of the translation are doubled.

    Args:
        model: The model.
        processor: Processor of the model; all its sources must be texts. If the tokenizers of the target and the
            sources have the mask tokens, texts are masked; otherwise the model reads the unmasked texts, and only the
            translations are checked.
        joined: The `data` section of a run that joined its sources into one; None: the model reads the sources
            separately.
        optimize: How the model was optimized, see `Search`.
        max_length: Longest source (of a joined run: of all sources together) and, by default, longest translation, in
            tokens. A row with a longer source is refused.
        batch_size: Number of rows per batch.

    Attributes:
        sources: Names of the sources, in order.

    Raises:
        ValueError: If a source is not a text, or a number is not allowed.
    """

    def __init__(
        self,
        model: Model,
        processor: MultiSourceProcessor,
        *,
        joined: DataRecipe | None = None,
        optimize: str | None = None,
        max_length: int = 128,
        batch_size: int = 16,
    ) -> None:
        check_at_least(1, batch_size=batch_size)
        check_at_least(2, max_length=max_length)
        if others := [name for name in processor.source_names if not processor.kind_of(name).has_vocabulary]:
            raise ValueError(
                f"the source {others[0]!r} is no text; only models whose sources are all texts can be used"
            )
        self.model = model
        self.processor = processor
        self.joined = joined
        self.optimize = optimize
        self.max_length = max_length
        self.batch_size = batch_size
        self.sources: tuple[str, ...] = tuple(joined.sources if joined else processor.source_names)
        tokenizers = [processor.tokenizer, *(processor.get_tokenizer(name) for name in processor.source_names)]
        self.masks = all(has_mask_tokens(tokenizer) for tokenizer in {id(one): one for one in tokenizers}.values())

    @classmethod
    def from_run(cls, name: str, *, device: str | None = None, optimize: str | None = None) -> TextTranslator:
        """Load the translator of a run or model.

        Args:
            name: Run folder, model folder or Hub id.
            device: Torch device; None: the GPU if there is one.
            optimize: See `Search`.

        Returns:
            The translator.

        Raises:
            ValueError: If the model cannot be loaded, a source is not a text, or the run writes sources from the target
                (`data.reverse`).
        """
        if (data := data_of_run(name)) is not None and data.reverse:
            raise ValueError(
                f"{name} is a run with data.reverse: it writes the sources; name a run that writes the target"
            )
        model, processor = load_model(name, device, optimize)
        return cls(
            model,
            processor,
            joined=joined_sources(name),
            optimize=optimize,
            max_length=source_limit(name, model.config, processor),
        )

    def translate(
        self,
        rows: Sequence[Mapping[str, str | None]],
        *,
        n_best: int = 1,
        num_beams: int = 5,
        max_new_tokens: int | None = None,
        syntax: str | None = None,
    ) -> list[Translation]:
        """Translate rows of texts.

        Args:
            rows: For each row, the texts by name of the source. A source is absent if it is None, blank or left out.
            n_best: Largest number of candidates of a row. There are fewer if hypotheses of the beam are broken,
                unfinished or equal.
            num_beams: Beam width, at least 2 and at least `n_best`. If the best hypothesis is broken, the next one in
                the beam takes its place.
            max_new_tokens: Longest translation, in tokens; None: `max_length` of the translator, or the number of the
                decoder's learned positions if that is smaller.
            syntax: Syntax of the placeholders in all rows, one of `SYNTAXES`. None: the syntax that the model was
                trained with (`data.placeholders`), or else "any".

        Returns:
            A translation for each row, in order.

        Raises:
            ValueError: If an option is not allowed, or a row has an unknown source or a value that is not a text; the
                message names the row, counted from 0.
        """
        check_at_least(1, n_best=n_best)
        check_at_least(max(2, n_best), num_beams=num_beams)
        check_choice(list(SYNTAXES), syntax=syntax)
        chosen = syntax or remembered_syntax(self.processor.tokenizer) or ANY
        settings = self.search_settings(max_new_tokens)
        search = Search(num_beams=num_beams, n_best=num_beams, max_length=self.max_length, **settings)
        longest = search.max_new_tokens
        given = [self._checked(number, row) for number, row in enumerate(rows)]
        read = [self._model_row(row, chosen) for row in given]
        refused = [_refusal(self.sources, row, masked, longest) for row, masked in zip(given, read, strict=True)]
        left = [i for i, reason in enumerate(refused) if not reason]
        for i, reason in zip(left, self._too_long([read[i] for i in left]), strict=True):
            refused[i] = reason
        left = [i for i in left if not refused[i]]
        decoded, _ = decode_window(
            self.model, self.processor, [read[i] for i in left], search, batch_size=self.batch_size
        )
        translations = [Translation(refused=reason) for reason in refused]
        for i, hypotheses in zip(left, decoded, strict=True):
            translations[i] = _choose(given[i], read[i][TABLE], hypotheses, chosen, n_best)
        return translations

    def search_settings(self, max_new_tokens: int | None = None) -> JsonObject:
        """Return the search settings, besides the beam width, on which the scores of translations depend.

        Args:
            max_new_tokens: See [`translate`].

        Returns:
            Fields of `Search` by name.

        Raises:
            ValueError: If the decoder has fewer learned positions than `max_new_tokens`.
        """
        config: Any = getattr(self.model, "config", None)
        if max_new_tokens is None:
            max_new_tokens = min(self.max_length, decoder_limit(config) or self.max_length)
        check_new_tokens("the model", config, max_new_tokens)
        return {
            "length_penalty": LENGTH_PENALTY,
            "max_new_tokens": max_new_tokens,
            "optimize": self.optimize,
        }

    def _checked(self, number: int, row: Mapping[str, str | None]) -> Row:
        """Validate a row and return it with all sources; None = absent."""
        for name, text in row.items():
            if name not in self.sources:
                allowed = ", ".join(self.sources)
                raise ValueError(f"row {number}: unknown source {name!r}; the sources are {allowed}")
            if not isinstance(text, str | None):
                raise ValueError(f"row {number}, {name}: must be a text or None, but is {shown(text)}")
        return {name: text if (text := row.get(name)) and text.strip() else None for name in self.sources}

    def _model_row(self, row: Row, syntax: str) -> Row:
        """Return the row in the form that the model reads, masked if the tokenizers have the mask tokens."""
        if self.masks:
            masked = mask_sources(row, self.sources, syntax)
        else:
            text = next((text for text in row.values() if text is not None), "")
            core = text.strip()
            start = text[: len(text) - len(text.lstrip())]
            end = text[len(start) + len(core) :]
            masked = {**row, TABLE: PlaceholderTable(start=start, end=end)}
        return self.joined.arrange_rows([masked])[0] if self.joined else masked

    def _too_long(self, rows: Sequence[Row]) -> list[str]:
        """Return for each row, in the form that the model reads, which source is too long; "" if no source is."""
        names = self.processor.source_names
        encoded, _ = encode_rows(
            self.processor, [{name: row[name] for name in names} for row in rows], None, sys.maxsize
        )
        reasons = []
        for example in encoded:
            lengths = {name: len(example[key] or ()) for name, (key, _) in text_keys(self.processor).items()}
            name = max(lengths, key=lengths.__getitem__)
            what = "the sources together have" if self.joined else f"the source {name!r} has"
            is_long = lengths[name] > self.max_length
            reasons.append(f"{what} {lengths[name]} tokens; the model reads at most {self.max_length}" * is_long)
        return reasons


def _refusal(sources: Sequence[str], row: Row, masked: Row, max_new_tokens: int) -> str:
    """Return the reason why a row cannot be translated; "" if it can."""
    if all(row[name] is None for name in sources):
        return f"no source is present; the sources are {', '.join(sources)}"
    return refusal(masked[TABLE], max_new_tokens)


def _choose(
    row: Row, table: PlaceholderTable, hypotheses: Sequence[Hypothesis], syntax: str, n_best: int
) -> Translation:
    """Choose the best intact hypotheses; if there are none, refuse with the fault of the best hypothesis."""
    sources = [text for text in row.values() if text is not None]
    candidates: dict[str, Candidate] = {}
    faults = []
    for text, score, is_cut in hypotheses:
        if score is None or score < LOWEST_BEAM_SCORE:
            continue
        restored, fault = _restored(sources, text, table, syntax)
        if is_cut:
            fault = "the translation has no end of its own: it reached the largest number of tokens"
        if fault:
            faults.append(fault)
        elif len(candidates) < n_best:
            candidates.setdefault(restored, Candidate(restored, score))
    if candidates:
        return Translation(tuple(candidates.values()))
    fault = faults[0] if faults else "the beam is empty"
    return Translation(refused=f"no translation of the beam is whole; the best one: {fault}")


def _restored(sources: Sequence[str], masked: str, table: PlaceholderTable, syntax: str) -> tuple[str, str]:
    """Return the translation with its placeholders restored, and its fault; "" if it has no fault."""
    if not masked.strip():
        return "", "the translation is empty"
    message_format = is_message_format(sources, syntax)
    if message_format:
        masked = double_apostrophes(masked, syntax)
    try:
        # The table holds the outer white space of the source, so white space around the hypothesis is stripped.
        text = restore_masked(masked, table) if table.texts else f"{table.start}{masked.strip()}{table.end}"
    except ValueError as error:
        return "", str(error)
    if REPLACEMENT in text and REPLACEMENT not in sources[0]:
        return text, "the translation has a character of which a part is missing (U+FFFD)"
    return text, " ".join(broken_placeholders(sources[0], text, syntax, message_format=message_format))
