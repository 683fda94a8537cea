"""Choose the width of a model by the number of its parameters, so that two models of equal size can be compared."""

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
FEED_FORWARD = ("encoder_ffn_dim", "decoder_ffn_dim")  # their ratio to the width stays
HEADS = ("encoder_attention_heads", "decoder_attention_heads")
MAX_WIDTH = 16_384  # no search goes beyond


def match_parameters(recipe: Recipe, other: Recipe, rows: Sequence[Row]) -> dict[str, int]:
    """Find the smallest width with which the model of a recipe has at least as many parameters as that of another one.

    Args:
        recipe: The recipe whose width is changed.
        other: The recipe whose number of parameters is to be reached.
        rows: The rows of the training split, from which the vocabularies are made.

    Returns:
        `d_model`, a multiple of the numbers of attention heads and of 2, and `encoder_ffn_dim` and `decoder_ffn_dim`,
        in the same ratio to it as in the recipe.

    Raises:
        ValueError: If the models of the recipe have no `d_model`, or no allowed width is large enough.
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

    low, high = 0, 1  # `low` is too narrow
    while not is_enough(high):
        low, high = high, 2 * high
        if high * step > MAX_WIDTH:
            raise ValueError(f"model.{WIDTH}: no width up to {MAX_WIDTH} gives {wanted:,} parameters")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return widths(high)


def _processor(recipe: Recipe, rows: Sequence[Row]) -> MultiSourceProcessor:
    """The processor that a run of a recipe makes from these rows."""
    return make_processor(recipe, recipe.data.model_rows(rows), wrapped_parts(recipe))


def _count(recipe: Recipe, processor: MultiSourceProcessor) -> int:
    """The number of parameters of the model of a recipe; no weight is allocated."""
    sizes = {name: len(own) for name, own in processor.source_tokenizers.items() if name in recipe.own_texts()}
    with torch.device("meta"):
        model = build_auto("AutoModelForSeq2SeqLM", recipe.model_config(len(processor.tokenizer), sizes))
    return sum(parameter.numel() for parameter in model.parameters())
