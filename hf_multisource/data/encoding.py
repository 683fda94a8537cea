"""Encode rows of text, pictures, sound and features into examples for the collator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hf_multisource.data.rows import Row
from hf_multisource.source_kinds import FIRST_EXAMPLE, MASK, SourceKind, count_from, is_absent, source_key

Example = dict[str, Any]  # one encoded row: ids, masks, features by the model's keywords, for the collator

ROWS_PER_CALL = 1000  # number of rows that are tokenized in one call of the tokenizers


class Processor(Protocol):
    """Interface of `MultiSourceProcessor` that `encode_rows` uses."""

    @property
    def source_names(self) -> Sequence[str]:
        """The names of the sources in the model's order."""

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer."""

    def main_input(self, name: str) -> str:
        """Return the keyword of the model that takes a source, such as "input_ids" for text."""

    def kind_of(self, name: str) -> SourceKind:
        """Return the kind of a source."""

    def __call__(self, **text: Any) -> Mapping[str, Any]:
        """Encode one value or a list of values per source, without padding or truncation; None is an absent source."""


class MixedExamples(Sequence[Example]):
    """Encoded rows: token ids of the texts are in memory; pictures, sound and features are read on access.

    Args:
        processor: Processor that encodes the sources.
        rows: The rows.
        encoded: The encoded part of each row: the labels, and the texts if the row has any.

    Attributes:
        text_lengths: Number of tokens of every text source in each row, known without reading a file.
        label_lengths: Number of tokens of the target in each row.
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
        # A row without any text is not encoded yet; the processor chooses its tokens, for example the null token.
        encoded = {key: value for key, value in self.encoded[index].items() if value is not None}
        values = {name: self.rows[index].get(name) for name in self.others}
        if all(map(is_absent, values.values())):  # the processor raises an error for a row without sources
            return {**dict.fromkeys(self.processor.model_input_names), **encoded}
        place = range(len(self))[index]
        with count_from(FIRST_EXAMPLE.get() + place):
            return {**self.processor(**values), **encoded}


def encode_rows(
    processor: Processor, rows: Sequence[Row], target: str | None, max_length: int
) -> tuple[Sequence[Example], dict[str, int]]:
    """Encode the texts of rows as token ids, in memory; truncate long sequences and count them.

    Args:
        processor: Processor that encodes the sources and the target.
        rows: Rows of `read_split`.
        target: Name of the target in the rows, or None if the rows have no target.
        max_length: Largest number of tokens of a text source or the target, including the end-of-sequence token.

    Returns:
        One dict per row with the keys of the processor (`input_ids`, `attention_mask`, `de_input_ids`, …, `labels`), as
        a list, or as [`MixedExamples`] if some sources are not text. And the counts `truncated.<name>` of every text
        source and the target.

    Raises:
        ValueError: If `max_length` is too small for a token and the end-of-sequence token.
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
    """Encode the texts of a batch of rows with one call of each tokenizer.

    Long sequences are truncated here and not by the tokenizer, so that every truncation is counted and the
    end-of-sequence token is kept.

    Args:
        processor: See `encode_rows`.
        rows: See `encode_rows`.
        target: See `encode_rows`.
        max_length: See `encode_rows`.
        drop: Whether to drop rows with a longer text instead of truncating the text.

    Returns:
        One dict per row with the ids and masks of the texts, None for an absent text, and the labels. And the counts of
        `encode_rows`; with `drop`, the count `dropped_too_long` of rows, and `too_long.<name>` in place of
        `truncated.<name>`.

    Raises:
        ValueError: If `max_length` is too small for a token and the end-of-sequence token.
    """
    if max_length < 2:
        raise ValueError(f"max_length is {max_length}, but must be at least 2 (a token and the end of the sentence)")
    texts, mixed = text_keys(processor), has_others(processor)
    key_names = {ids: name for name, (ids, _) in texts.items()} | ({} if target is None else {"labels": target})
    all_keys = [key for pair in texts.values() for key in pair]
    examples: list[dict[str, Any]] = [dict.fromkeys(all_keys) for _ in rows]
    # In data with other sources, rows without any text are encoded on access.
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
                example[key] = values[: max_length - 1] + values[-1:]  # also correct for an attention mask of ones
                if key in key_names:
                    report[f"truncated.{key_names[key]}"] += 1
    return examples, report


def _without_long(
    examples: Sequence[Example], key_names: Mapping[str, str], max_length: int
) -> tuple[list[Example], dict[str, int]]:
    """Return the examples whose texts are short enough, and the counts of the others."""
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
    """Return the keywords of the model for the text sources.

    Args:
        processor: Processor that encodes the sources.

    Returns:
        Source -> keywords of its token ids and of its attention mask, in the order of the model.
    """
    return {
        name: (source_key(i, name, processor.main_input(name)), source_key(i, name, MASK))
        for i, name in enumerate(processor.source_names)
        if processor.kind_of(name).has_vocabulary
    }


def has_others(processor: Processor) -> bool:
    """Return whether some sources are not text.

    Args:
        processor: Processor that encodes the sources.

    Returns:
        Whether at least one source is not text.
    """
    return len(text_keys(processor)) < len(processor.source_names)
