"""Encode rows of text, pictures, sound and features into examples for the collator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hf_multisource.data.rows import Row
from hf_multisource.source_kinds import MASK, SourceKind, is_absent, source_key

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

    def kind_of(self, name: str) -> SourceKind:
        """What differs between kinds of sources."""

    def __call__(self, **text: Any) -> Mapping[str, Any]:
        """Encode values, or lists of them, to one row per key, neither padded nor truncated; None: absent."""


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

    def __init__(self, processor: Any, rows: Sequence[Row], encoded: Sequence[dict[str, Any]]) -> None:
        self.processor = processor
        self.rows = rows
        self.encoded = encoded
        keys = text_keys(processor)
        self.others = [name for name in processor.source_names if name not in keys]
        known = getattr(encoded, "text_lengths", None)
        self.text_lengths = (
            [[len(one[key] or ()) for key, _ in keys.values()] for one in encoded] if known is None else known
        )
        known = getattr(encoded, "label_lengths", None)
        self.label_lengths = [len(one.get("labels", ())) for one in encoded] if known is None else known

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        # A row without any text is not encoded yet: the processor says what its texts are, the null token perhaps.
        encoded = {key: value for key, value in self.encoded[index].items() if value is not None}
        values = {name: self.rows[index].get(name) for name in self.others}
        if all(map(is_absent, values.values())):  # the processor would see no source at all
            return {**dict.fromkeys(self.processor.model_input_names), **encoded}
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
    examples: list[dict[str, Any]] = []
    report: dict[str, int] = {}
    for start in range(0, max(len(rows), 1), ROWS_PER_CALL):
        encoded, counts = encode_batch(processor, rows[start : start + ROWS_PER_CALL], target, max_length)
        examples += encoded
        report = {name: report.get(name, 0) + count for name, count in counts.items()}
    return (MixedExamples(processor, rows, examples) if has_others(processor) else examples), report


def encode_batch(
    processor: Processor, rows: Sequence[Row], target: str | None, max_length: int, *, drop: bool = False
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Encode the texts of a few rows by one call of each tokenizer.

    A sequence is cut here and not by the tokenizer, so that every cut is counted and the final token, which ends
    the sentence, stays.

    Args:
        processor: As `encode_rows` has it.
        rows: As `encode_rows` has it.
        target: As `encode_rows` has it.
        max_length: As `encode_rows` has it.
        drop: Whether rows with a longer text are left out instead.

    Returns:
        One dict per row with the ids and masks of its texts, None where one is absent, and its labels. And the counts,
        as `encode_rows` has them; with `drop`, `dropped_too_long` rows, and `too_long.<name>` in place of
        `truncated.<name>`.

    Raises:
        ValueError: If `max_length` leaves no room for a token and the end of the sentence.
    """
    if max_length < 2:
        raise ValueError(f"max_length is {max_length}, but must be at least 2 (a token and the end of the sentence)")
    texts, mixed = text_keys(processor), has_others(processor)
    key_names = {ids: name for name, (ids, _) in texts.items()} | ({} if target is None else {"labels": target})
    all_keys = [key for pair in texts.values() for key in pair]
    examples: list[dict[str, Any]] = [dict.fromkeys(all_keys) for _ in rows]
    # Rows without any text are encoded whole when they are asked for.
    spoken = [i for i, row in enumerate(rows) if not mixed or any(not is_absent(row.get(name)) for name in texts)]
    if spoken:
        encoded = processor(**{name: [rows[i].get(name) for i in spoken] for name in texts})
        for key in all_keys:
            for i, values in zip(spoken, encoded[key], strict=True):
                examples[i][key] = values
    if target is not None and rows:
        labels = processor.tokenizer(text_target=[row[target] for row in rows])["input_ids"]
        for example, values in zip(examples, labels, strict=True):
            example["labels"] = list(values)
    if drop:
        return _without_long(examples, key_names, max_length)
    report = {f"truncated.{name}": 0 for name in key_names.values()}
    for example in examples:
        for key, values in example.items():
            if values is not None and len(values) > max_length:
                example[key] = values[: max_length - 1] + values[-1:]  # right for a mask of ones, too
                if key in key_names:
                    report[f"truncated.{key_names[key]}"] += 1
    return examples, report


def _without_long(
    examples: Sequence[Example], key_names: Mapping[str, str], max_length: int
) -> tuple[list[Example], dict[str, int]]:
    """The examples without too long a text, and the counts of the others."""
    report = {"dropped_too_long": 0, **{f"too_long.{name}": 0 for name in key_names.values()}}
    kept = []
    for example in examples:
        long = [name for key, name in key_names.items() if len(example[key] or ()) > max_length]
        for name in long:
            report[f"too_long.{name}"] += 1
        report["dropped_too_long"] += bool(long)
        if not long:
            kept.append(example)
    return kept, report


def text_keys(processor: Processor) -> dict[str, tuple[str, str]]:
    """Return the keywords of the model for the sources that are text.

    Args:
        processor: Encodes the sources.

    Returns:
        By source, in order: the keyword of its ids, and that of their mask.
    """
    return {
        name: (source_key(i, name, processor.main_input(name)), source_key(i, name, MASK))
        for i, name in enumerate(processor.source_names)
        if processor.kind_of(name).has_vocabulary
    }


def has_others(processor: Processor) -> bool:
    """Return whether some sources are no text.

    Args:
        processor: Encodes the sources.

    Returns:
        The answer.
    """
    return len(text_keys(processor)) < len(processor.source_names)
