"""How likely a model thinks targets are, under teacher forcing: cross-entropy, and the log-probability of each."""

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
    """Cross-entropy of the model's predictions on the targets of rows, given the reference so far.

    Args:
        model: In evaluation mode.
        processor: Encodes sources and target.
        rows: One dict a sentence; rows without any source, or without target, count for nothing.
        target: Name of the target in the rows.
        max_length: Longest source and target, in tokens; what is beyond is cut, as in training.
        batch_size: Sentences a batch.

    Returns:
        `tokens` that were predicted, ends of sentences included; `cross_entropy`, their mean in nats; and `score`, its
        exponential, the perplexity. Both are None where there is no token.
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
    """Log-probability of the target of each row: the sum over its tokens, the end of the sentence included.

    Args:
        model: In evaluation mode.
        processor: Encodes sources and target.
        rows: One dict a sentence, each with a target and at least one source.
        target: As `cross_entropy` has it.
        max_length: As `cross_entropy` has it.
        batch_size: Sentences a batch.

    Returns:
        One number a row, in nats.
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
    """Batches of rows of like length on the model's device, each with the places of its rows."""
    examples: Sequence[Any] = encode_rows(processor, rows, target, max_length)[0] if rows else []
    lengths = longest(examples)
    order = sorted(range(len(examples)), key=lambda i: lengths[i])
    collate = DataCollatorForMultiSource(processor)
    for first in range(0, len(order), batch_size):
        places = order[first : first + batch_size]
        batch = collate([examples[i] for i in places])
        yield places, {key: tensor.to(model.device) for key, tensor in batch.items()}
