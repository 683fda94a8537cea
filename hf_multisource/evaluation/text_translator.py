"""Translate texts with placeholders and markup: each translation has exactly those of its source, or is refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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
from hf_multisource.data.placeholders import ANY, SYNTAXES, PlaceholderTable, broken_placeholders
from hf_multisource.data.rows import Row
from hf_multisource.evaluation.decoding import Hypothesis, Search, decode_window, load_model
from hf_multisource.evaluation.translating import joined_sources, source_limit
from hf_multisource.json_files import JsonObject
from hf_multisource.messages import shown
from hf_multisource.recipes.recipe import DataRecipe, load_recipe

REPLACEMENT = "\ufffd"  # what tokens become that are some of the bytes of a character
LENGTH_PENALTY = 1.0  # exponent: scores are sum(log p) / length
INACTIVE_BEAM_SCORE = -1e8  # lower scores are those of empty beams, which Transformers returns where texts are too few


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
        candidates: The translations, best first, each of them whole; empty if the row is refused.
        refused: Why the row has no translation, in one sentence; "" if it has one.
    """

    candidates: tuple[Candidate, ...] = ()
    refused: str = ""


class Translator(Protocol):
    """What others use of [`TextTranslator`]: calibration, the service and `localize`."""

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
        """Return the settings beside the beam width that the scores depend on."""


class TextTranslator:
    """Translates rows of texts, and refuses a row instead of returning a translation whose placeholders are broken.

    The placeholders of the first source that is present in a row decide which ones its translation has.

    Args:
        model: The model.
        processor: Its processor, whose sources are all texts. If the tokenizers of the target and the sources have the
            mask tokens, texts are masked; otherwise the model reads them as they are, and translations are only
            checked.
        joined: The `data` section of a run that joined its sources into one; None: the model reads them separately.
        optimize: How the model was optimised, as `Search` has it.
        max_length: Longest source (of a joined run: of all sources together) and, by default, longest translation, in
            tokens. A row with a longer source is refused.
        batch_size: Rows decoded at once.

    Attributes:
        sources: Names of the sources, in order.

    Raises:
        ValueError: If a source is no text, or a number is not allowed.
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
        """Load a model.

        Args:
            name: Run folder, model folder or Hub id.
            device: Torch device; None: the GPU if there is one.
            optimize: As `Search` has it.

        Returns:
            The translator.

        Raises:
            ValueError: If the model cannot be loaded, a source is no text, or the run writes sources from the target
                (`data.reverse`).
        """
        recipe = Path(name) / "recipe.yaml"
        if recipe.exists() and load_recipe(recipe).data.reverse:
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
            rows: For each row, text by name of the source; None, an empty or white text, or a name that is left out:
                this source is absent.
            n_best: Largest number of candidates of a row. There are fewer if others of the beam are broken, have no
                end, or are equal.
            num_beams: Beam width, at least 2 and at least `n_best`. All beams are candidates: if the best one is
                broken, the next one takes its place.
            max_new_tokens: Longest translation, in tokens; None: `max_length` of the translator.
            syntax: One of `SYNTAXES`, for all rows: what counts as a placeholder. None: the one that the model was
                trained with (`data.placeholders`), or else "any".

        Returns:
            A translation for each row, in order.

        Raises:
            ValueError: If an option is not allowed, or a row has an unknown source or something that is no text; the
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
            translations[i] = _choose(self._first(given[i]), read[i][TABLE], hypotheses, chosen, n_best)
        return translations

    def search_settings(self, max_new_tokens: int | None = None) -> JsonObject:
        """Return the settings of the search, beside the beam width, that the scores of translations depend on.

        Args:
            max_new_tokens: As [`translate`] has it.

        Returns:
            Fields of `Search` by name.
        """
        return {
            "length_penalty": LENGTH_PENALTY,
            "max_new_tokens": self.max_length if max_new_tokens is None else max_new_tokens,
            "optimize": self.optimize,
        }

    def _checked(self, number: int, row: Mapping[str, str | None]) -> Row:
        """The row with all sources; None = absent."""
        for name, text in row.items():
            if name not in self.sources:
                allowed = ", ".join(self.sources)
                raise ValueError(f"row {number}: unknown source {name!r}; the sources are {allowed}")
            if not isinstance(text, str | None):
                raise ValueError(f"row {number}, {name}: must be a text or None, but is {shown(text)}")
        return {name: text if (text := row.get(name)) and text.strip() else None for name in self.sources}

    @staticmethod
    def _first(row: Row) -> str:
        """The text of the first source that is present."""
        return str(next(text for text in row.values() if text is not None))

    def _model_row(self, row: Row, syntax: str) -> Row:
        """The row as the model takes it, masked if the tokenizers can encode masks."""
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
        """Say which source of each row, as the model takes it, is too long; "" if none is."""
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
    """Say why a row cannot be translated; "" if it can."""
    if all(row[name] is None for name in sources):
        return f"no source is present; the sources are {', '.join(sources)}"
    return refusal(masked[TABLE], max_new_tokens)


def _choose(
    source: str, table: PlaceholderTable, hypotheses: Sequence[Hypothesis], syntax: str, n_best: int
) -> Translation:
    """Choose the best hypotheses that are whole, and say what is wrong with the best one if there are none."""
    candidates: dict[str, Candidate] = {}
    faults = []
    for text, score, is_cut in hypotheses:
        if score is None or score < INACTIVE_BEAM_SCORE:
            continue
        restored, fault = _restored(source, text, table, syntax)
        if is_cut:
            fault = "the translation has no end: it reached the largest number of tokens"
        if fault:
            faults.append(fault)
        elif len(candidates) < n_best:
            candidates.setdefault(restored, Candidate(restored, score))
    if candidates:
        return Translation(tuple(candidates.values()))
    fault = faults[0] if faults else "the beam is empty"
    return Translation(refused=f"no translation of the beam is whole; the best one: {fault}")


def _restored(source: str, masked: str, table: PlaceholderTable, syntax: str) -> tuple[str, str]:
    """The translation with its placeholders, and what is wrong with it; "": nothing."""
    if not masked.strip():
        return "", "the translation is empty"
    try:
        # Blanks of the source stand in its table; those that a model adds would be there in addition.
        text = restore_masked(masked, table) if table.texts else f"{table.start}{masked.strip()}{table.end}"
    except ValueError as error:
        return "", str(error)
    if REPLACEMENT in text and REPLACEMENT not in source:
        return text, "the translation has a character of which a part is missing (U+FFFD)"
    return text, " ".join(broken_placeholders(source, text, syntax))
