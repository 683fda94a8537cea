"""Choose the width of a model by its number of parameters, so that models of equal size can be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.rows import Row
from hf_multisource.foreign import build_auto
from hf_multisource.recipes.processor import make_processor, wrapped_parts
from hf_multisource.recipes.recipe import Recipe

WIDTH = "d_model"
FEED_FORWARD = ("encoder_ffn_dim", "decoder_ffn_dim")  # configuration fields whose ratio to the width is kept
HEADS = ("encoder_attention_heads", "decoder_attention_heads")
MAX_WIDTH = 16_384  # upper bound of the search for `d_model`


def match_parameters(recipe: Recipe, other: Recipe, rows: Sequence[Row]) -> dict[str, int]:
    """Find the smallest width at which a recipe's model has at least as many parameters as the model of another recipe.

    Args:
        recipe: The recipe whose width is changed.
        other: The recipe whose number of parameters must be reached.
        rows: The rows of the training split, from which the vocabularies are made.

    Returns:
        `d_model`, a multiple of the numbers of attention heads and of 2, and `encoder_ffn_dim` and `decoder_ffn_dim`,
        in the same ratio to it as in the recipe.

    Raises:
        ValueError: If the model type of the recipe has no `d_model`, or no allowed width is large enough.
    """
    config = recipe.draft_config()
    if not hasattr(config, WIDTH):
        raise ValueError(f"model.{WIDTH} cannot be chosen: models of type {config.model_type} have no such key")
    step = math.lcm(2, *(getattr(config, name) for name in HEADS))
    ratios = {name: getattr(config, name) / getattr(config, WIDTH) for name in FEED_FORWARD}
    wanted = _count(other, _processor(other, rows))
    processor = _processor(recipe, rows)

    def widths(steps: int) -> dict[str, int]:
        width = steps * step
        return {WIDTH: width} | {name: max(1, round(ratio * width)) for name, ratio in ratios.items()}

    def is_enough(steps: int) -> bool:
        return _count(replace(recipe, model={**recipe.model, **widths(steps)}), processor) >= wanted

    low, high, most = 0, 1, MAX_WIDTH // step  # invariant of the bisection: `low` is too narrow
    while not is_enough(high):
        if high >= most:
            raise ValueError(f"model.{WIDTH}: no width up to {MAX_WIDTH} gives {wanted:,} parameters")
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return widths(high)


def _processor(recipe: Recipe, rows: Sequence[Row]) -> MultiSourceProcessor:
    """Return the processor that a run of a recipe would make from these rows."""
    return make_processor(recipe, recipe.data.model_rows(rows), wrapped_parts(recipe))


def _count(recipe: Recipe, processor: MultiSourceProcessor) -> int:
    """Return the number of parameters of a recipe's model, without allocating weights."""
    sizes = {name: len(own) for name, own in processor.source_tokenizers.items() if name in recipe.own_texts()}
    with torch.device("meta"):
        model = build_auto("AutoModelForSeq2SeqLM", recipe.model_config(len(processor.tokenizer), sizes))
    return sum(parameter.numel() for parameter in model.parameters())
