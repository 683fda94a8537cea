"""Tiny trainers of a two-source model, and a collator that remembers the batches it makes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from builders import SOURCES, tiny_config
from hf_multisource import (
    DataCollatorForMultiSource,
    MultiSourceForConditionalGeneration,
    MultiSourceProcessor,
    MultiSourceTrainer,
    MultiSourceTrainingArguments,
)
from hf_multisource.recipes.tokenization import train_tokenizer

NAMES = SOURCES[:2]
VOCAB_SIZE = 16


@cache
def processor() -> MultiSourceProcessor:
    return MultiSourceProcessor(train_tokenizer(["A boy plays."], "bpe", 261), NAMES)


def made_up_examples(number: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """Random ids of lengths 0 to 8 per source, at least one source present; labels tell the examples apart."""
    rng = random.Random(seed)
    examples = []
    for i in range(number):
        lengths = rng.choice([(0, rng.randint(1, 8)), (rng.randint(1, 8), 0), (rng.randint(1, 8), rng.randint(1, 8))])
        en, de = ([rng.randrange(4, VOCAB_SIZE) for _ in range(length)] for length in lengths)
        labels = [4 + i // 12 % 12, 4 + i % 12, *[5] * rng.randint(0, 3), 1]
        examples.append({"input_ids": en, "de_input_ids": de, "labels": labels})
    return examples


class Recorder(DataCollatorForMultiSource):
    """Keeps the first two labels, which name an example, of every batch it makes."""

    def __init__(self) -> None:
        super().__init__(processor())
        self.batches: list[list[tuple[int, ...]]] = []

    def __call__(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        self.batches.append([name_of(example) for example in examples])
        return super().__call__(examples)


def name_of(example: dict[str, list[int]]) -> tuple[int, ...]:
    return tuple(example["labels"][:2])


def trainer_of(
    folder: Path,
    examples: Any,
    *,
    kind: type[Seq2SeqTrainer] = MultiSourceTrainer,
    model_fields: dict[str, Any] | None = None,
    compute_metrics: Any = None,
    **settings: Any,
) -> Seq2SeqTrainer:
    """A trainer of a tiny model whose weights are always the same."""
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "initializer": "normal",
        "init_std": 0.3,
        **(model_fields or {}),
    }
    model = MultiSourceForConditionalGeneration(tiny_config("parallel", NAMES, **fields))
    quiet: dict[str, Any] = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    quiet |= {"logging_steps": 1, "remove_unused_columns": False}
    options = MultiSourceTrainingArguments if "max_tokens_per_batch" in settings else Seq2SeqTrainingArguments
    args = options(output_dir=str(folder), **{**quiet, **settings})
    return kind(
        model=model,
        args=args,
        train_dataset=examples,
        eval_dataset=examples,
        data_collator=Recorder(),
        processing_class=processor(),
        compute_metrics=compute_metrics,
    )
