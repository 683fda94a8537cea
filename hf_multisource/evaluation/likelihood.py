"""How likely a model thinks reference translations are: cross-entropy under teacher forcing."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any

import torch

from hf_multisource import DataCollatorForMultiSource, MultiSourceProcessor
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
    examples: Sequence[Any] = encode_rows(processor, spoken, target, max_length)[0] if spoken else []
    lengths = longest(examples)
    order = sorted(range(len(examples)), key=lambda i: lengths[i])
    collate = DataCollatorForMultiSource(processor)
    nats, tokens = 0.0, 0
    for first in range(0, len(order), batch_size):
        batch = collate([examples[i] for i in order[first : first + batch_size]])
        batch = {key: tensor.to(model.device) for key, tensor in batch.items()}
        with torch.inference_mode():
            nats += float(model(**batch, skip_logits=True, num_items_in_batch=1).loss)
        tokens += int(batch["labels"].ne(-100).sum())
    mean = nats / tokens if tokens else None
    return {"score": None if mean is None else exp(mean), "cross_entropy": mean, "tokens": tokens}
