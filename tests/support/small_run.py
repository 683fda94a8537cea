"""A run with a small model that writes little but placeholders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from builders import tiny_config
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.data.placeholders import MASK_TOKENS
from hf_multisource.recipes.tokenization import train_tokenizer

SOURCES = ["en", "de"]


def save_run(folder: Path, seed: int = 0) -> str:
    """Save a model that has learned nothing, but whose last states lean towards placeholders and the end of a text."""
    tokenizer = train_tokenizer(["Open the page", "Seite öffnen", "Wócyń bok"], "bpe", 400, mask_tokens=True)
    torch.manual_seed(seed)
    config = tiny_config("serial", SOURCES, vocab_size=len(tokenizer), initializer="normal", init_std=1.0)
    model: Any = MultiSourceForConditionalGeneration(config)
    masks: Any = tokenizer.convert_tokens_to_ids([*MASK_TOKENS])
    with torch.no_grad():
        model.get_input_embeddings().weight[[config.eos_token_id, *masks]] += 3
        model.model.decoder.layer_norm.bias.fill_(1)
    model.save_pretrained(folder)
    MultiSourceProcessor(tokenizer, SOURCES).save_pretrained(folder)
    return str(folder)
