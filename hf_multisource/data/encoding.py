"""Encode rows of text, pictures, sound and features into examples for the collator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hf_multisource.data.media import forms_of, is_absent, read_sound
from hf_multisource.data.rows import Row

Example = dict[str, Any]  # one encoded row: ids, masks, features by the model's keywords, for the collator

ROWS_PER_CALL = 1000  # rows given to the tokenizers at once


class Processor(Protocol):
    """What `encode_rows` asks of a `MultiSourceProcessor`."""

    @property
    def source_names(self) -> Sequence[str]:
        """The sources in the model's order."""

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer."""

    def main_input(self, name: str) -> str:
        """Keyword of the model that takes a source; "input_ids" for text."""

    def __call__(self, **text: Any) -> Mapping[str, Any]:
        """Encode values, or lists of them, to one row of ids or numbers per key, neither padded nor truncated."""


class MixedExamples(Sequence[Example]):
    """Encoded rows: texts as token ids, in memory; pictures, sound and features are read when a row is asked for.

    Args:
        processor: Encodes the sources.
        rows: The rows.
        encoded: The encoded part of each row: its labels, and its texts if it has any.

    Attributes:
        text_lengths: Of each row, the tokens of every text source; nothing is read to know them.
        label_lengths: Of each row, the tokens of its target.
    """

    def __init__(self, processor: Any, rows: Sequence[Row], encoded: Sequence[dict[str, list[int]]]) -> None:
        self.processor = processor
        self.rows = rows
        self.encoded = encoded
        self.forms = {name: form for name, form in forms_of(processor).items() if form != "text"}
        texts = [key for name, key in input_keys(processor).items() if name not in self.forms]
        known = getattr(encoded, "text_lengths", None)
        self.text_lengths = [[len(one.get(key, ())) for key in texts] for one in encoded] if known is None else known
        known = getattr(encoded, "label_lengths", None)
        self.label_lengths = [len(one.get("labels", ())) for one in encoded] if known is None else known

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row, encoded = self.rows[index], self.encoded[index]
        values = {name: None if is_absent(row.get(name)) else row[name] for name in self.forms}
        if all(value is None for value in values.values()):  # the processor would see no source at all
            keys = [key for name, key in input_keys(self.processor).items() if name in self.forms]
            return {**dict.fromkeys(keys), **encoded}
        for name, form in self.forms.items():
            if form == "sound" and values[name] is not None:
                values[name] = read_sound(values[name])
        return {**self.processor(**values), **encoded}


def encode_rows(
    processor: Processor, rows: Sequence[Row], target: str | None, max_length: int
) -> tuple[Sequence[Example], dict[str, int]]:
    """Encode the texts of rows as token ids, in memory; truncate long sequences and count them.

    Args:
        processor: Encodes the sources and the target.
        rows: Rows of `read_split`.
        target: Name of the target in the rows, or None where they have none.
        max_length: Most tokens of a text source or the target, the end of the sentence included.

    Returns:
        One dict per row with the keys of the processor (`input_ids`, `attention_mask`, `de_input_ids`, …, `labels`): a
        list of them, or [`MixedExamples`] where some sources are no text. And the counts `truncated.<name>` for every
        text source and the target.

    Raises:
        ValueError: If `max_length` leaves no room for a token and the end of the sentence.
    """
    examples: list[dict[str, list[int]]] = []
    report: dict[str, int] = {}
    for start in range(0, max(len(rows), 1), ROWS_PER_CALL):
        encoded, counts = encode_batch(processor, rows[start : start + ROWS_PER_CALL], target, max_length)
        examples += encoded
        report = {name: report.get(name, 0) + count for name, count in counts.items()}
    mixed = len(text_sources(processor)) < len(processor.source_names)
    return (MixedExamples(processor, rows, examples) if mixed else examples), report


def encode_batch(
    processor: Processor, rows: Sequence[Row], target: str | None, max_length: int
) -> tuple[list[dict[str, list[int]]], dict[str, int]]:
    """Encode the texts of a few rows by one call of each tokenizer.

    A sequence is cut here and not by the tokenizer, so that every cut is counted and the final token, which ends
    the sentence, stays.

    Args:
        processor: As `encode_rows` has it.
        rows: As `encode_rows` has it.
        target: As `encode_rows` has it.
        max_length: As `encode_rows` has it.

    Returns:
        One dict per row with the ids and masks of its texts and its labels; where some sources are no text, a row
        without any text has its labels alone. And the counts, as `encode_rows` has them.

    Raises:
        ValueError: If `max_length` leaves no room for a token and the end of the sentence.
    """
    if max_length < 2:
        raise ValueError(f"max_length is {max_length}, but must be at least 2 (a token and the end of the sentence)")
    keys, texts = input_keys(processor), text_sources(processor)
    key_names = {keys[name]: name for name in texts} | ({} if target is None else {"labels": target})
    mixed = len(texts) < len(processor.source_names)
    examples: list[dict[str, list[int]]] = [{} for _ in rows]
    # Rows without any text are encoded whole when they are asked for.
    spoken = [i for i, row in enumerate(rows) if not mixed or any(not is_absent(row.get(name)) for name in texts)]
    if spoken:
        encoded = processor(**{name: [rows[i].get(name) for i in spoken] for name in texts})
        for key in (key for name in texts for key in (keys[name], mask_key(keys[name]))):
            for i, values in zip(spoken, encoded[key], strict=True):
                examples[i][key] = list(values)
    if target is not None and rows:
        labels = processor.tokenizer(text_target=[row[target] for row in rows])["input_ids"]
        for example, values in zip(examples, labels, strict=True):
            example["labels"] = list(values)
    report = {f"truncated.{name}": 0 for name in key_names.values()}
    for example in examples:
        for key, values in example.items():
            if len(values) > max_length:
                example[key] = values[: max_length - 1] + values[-1:]  # right for a mask of ones, too
                if key in key_names:
                    report[f"truncated.{key_names[key]}"] += 1
    return examples, report


def text_sources(processor: Processor) -> list[str]:
    """Return the sources that are text.

    Args:
        processor: Encodes the sources.

    Returns:
        Their names, in order.
    """
    return [name for name in processor.source_names if processor.main_input(name) == "input_ids"]


def mask_key(key: str) -> str:
    """The keyword of the mask that belongs to a source's ids.

    Args:
        key: Such as "input_ids" or "de_input_ids".

    Returns:
        Such as "attention_mask" or "de_attention_mask".
    """
    return key.removesuffix("input_ids") + "attention_mask"


def input_keys(processor: Processor) -> dict[str, str]:
    """Return the keyword with which each source is given to the model.

    Args:
        processor: Encodes the sources.

    Returns:
        By source: bare for source 0, with the source's name in front for the others.
    """
    return {
        name: f"{name}_{processor.main_input(name)}" if i else processor.main_input(name)
        for i, name in enumerate(processor.source_names)
    }
