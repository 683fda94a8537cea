"""Attach an encoder to a trained model whose source holds the features of that encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor, attach_encoder
from hf_multisource.data.checks import check_at_least
from hf_multisource.data.files import check_new_folder
from hf_multisource.messages import first_line
from hf_multisource.recipes.pretrained import (
    form_of,
    load_config,
    load_encoder,
    load_preprocessor,
    load_processor,
    resize_pictures,
)


def attach_checkpoint(run: str, checkpoint: str, source: str, out: Path, image_size: int | None = None) -> None:
    """Save a copy of a model that contains the frozen encoder of a source, with its processor.

    Args:
        run: Folder or Hub id of a model with a source of kind `features`.
        checkpoint: Folder or Hub id of the encoder that made the features.
        source: Name of the source.
        out: Folder to write to; it must be new or empty.
        image_size: Height and width, in pixels, of the pictures whose features the model was trained on; None: those
            of the encoder's image processor.

    Raises:
        FileExistsError: If `out` is not empty.
        ValueError: If the model or the encoder cannot be loaded, or the encoder does not fit the source.
    """
    check_at_least(1, image_size=image_size)
    check_new_folder(out)
    load_config(run)
    old = load_processor(run)
    encoder = load_encoder(checkpoint)
    part = load_preprocessor(checkpoint, form_of(encoder.config))
    if image_size is not None:
        part = resize_pictures(part, image_size)
    try:
        model: Any = MultiSourceForConditionalGeneration.from_pretrained(run)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"the model of {run} cannot be loaded: {first_line(error)}") from error
    new = attach_encoder(model, source, encoder)
    processor = MultiSourceProcessor(
        old.tokenizer,
        old.source_names,
        old.source_tokenizers,
        {**old.source_processors, source: part},
        [name for name in old.feature_sources if name != source],
        old.null_token,
        {name: kind for name, kind in old.source_kinds.items() if name != source},
    )
    new.save_pretrained(out)
    processor.save_pretrained(out)
