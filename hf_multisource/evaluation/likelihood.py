"""Cross-entropy and log-probabilities of targets under a model, with teacher forcing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as token_losses

from hf_multisource import DataCollatorForMultiSource, MultiSourceProcessor
from hf_multisource.collation import LABEL_PADDING
from hf_multisource.data.encoding import encode_rows
from hf_multisource.data.interfaces import Model
from hf_multisource.data.rows import Row
from hf_multisource.evaluation.decoding import longest
from hf_multisource.json_files import JsonObject
from hf_multisource.source_kinds import is_absent


def cross_entropy(
    model: Model,
    processor: MultiSourceProcessor,
    rows: Sequence[Row],
    target: str,
    max_length: int,
    batch_size: int = 64,
) -> JsonObject:
    """Compute the cross-entropy of the targets of rows, with teacher forcing.

    Args:
        model: The model, in evaluation mode.
        processor: Processor that encodes sources and target.
        rows: One dict per sentence. Rows without any source or without target are ignored.
        target: Name of the target in the rows.
        max_length: Maximum length of source and target, in tokens; longer texts are truncated, as in training.
        batch_size: Number of sentences per batch.

    Returns:
        `tokens`, the number of predicted tokens including end tokens; `cross_entropy`, the mean per token in nats; and
        `score`, the perplexity (exponential of the cross-entropy). The last two are None if there is no token.
    """
    spoken = [row for row in rows if row[target] and not all(is_absent(row[name]) for name in processor.source_names)]
    nats, tokens = 0.0, 0
    for _, batch in _batches(model, processor, spoken, target, max_length, batch_size):
        with torch.inference_mode():
            nats += float(model(**batch, skip_logits=True, num_items_in_batch=1).loss)
        tokens += int(batch["labels"].ne(LABEL_PADDING).sum())
    mean = nats / tokens if tokens else None
    return {"score": None if mean is None else exp(mean), "cross_entropy": mean, "tokens": tokens}


def log_probabilities(
    model: Model,
    processor: MultiSourceProcessor,
    rows: Sequence[Row],
    target: str,
    max_length: int,
    batch_size: int = 64,
) -> list[float]:
    """Compute the log-probability of the target of each row, summed over its tokens and the end token.

    Args:
        model: The model, in evaluation mode.
        processor: Processor that encodes sources and target.
        rows: One dict per sentence, each with a target and at least one source.
        target: See `cross_entropy`.
        max_length: See `cross_entropy`.
        batch_size: Number of sentences per batch.

    Returns:
        One log-probability per row, in nats.
    """
    sums = [0.0] * len(rows)
    for places, batch in _batches(model, processor, rows, target, max_length, batch_size):
        with torch.inference_mode():
            logits = model(**batch).logits.float().transpose(1, 2)
            losses = token_losses(logits, batch["labels"], reduction="none", ignore_index=LABEL_PADDING).sum(dim=1)
        for i, loss in zip(places, losses.tolist(), strict=True):
            sums[i] = -loss
    return sums


def _batches(
    model: Model, processor: MultiSourceProcessor, rows: Sequence[Row], target: str, max_length: int, batch_size: int
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Yield batches of rows of similar length on the model's device, each with the indices of its rows."""
    examples: Sequence[Any] = encode_rows(processor, rows, target, max_length)[0] if rows else []
    lengths = longest(examples)
    order = sorted(range(len(examples)), key=lambda i: lengths[i])
    collate = DataCollatorForMultiSource(processor)
    for first in range(0, len(order), batch_size):
        places = order[first : first + batch_size]
        batch = collate([examples[i] for i in places])
        yield places, {key: tensor.to(model.device) for key, tensor in batch.items()}
