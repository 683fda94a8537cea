"""Attach an encoder to a trained model whose source holds the features of that encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModel

from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor, attach_encoder
from hf_multisource.recipes.pretrained import form_of, load_part


def attach_checkpoint(run: str, checkpoint: str, source: str, out: Path) -> None:
    """Save a model with the encoder of a source in it, frozen, and its processor.

    Args:
        run: Folder or Hub id of a model with a source of kind `features`.
        checkpoint: Folder or Hub id of the encoder that made the features.
        source: Name of the source.
        out: Folder to write to; made, or empty.

    Raises:
        FileExistsError: If `out` is not empty.
        ValueError: If the encoder does not fit the source.
    """
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty: name another folder")
    encoder = AutoModel.from_pretrained(checkpoint, use_safetensors=True)
    model: Any = MultiSourceForConditionalGeneration.from_pretrained(run)
    old = MultiSourceProcessor.from_pretrained(run)
    new = attach_encoder(model, source, encoder)
    processor = MultiSourceProcessor(
        old.tokenizer,
        old.source_names,
        old.source_tokenizers,
        {**old.source_processors, source: load_part(checkpoint, form_of(encoder.config))},
        [name for name in old.feature_sources if name != source],
        old.null_token,
    )
    new.save_pretrained(out)
    processor.save_pretrained(out)
