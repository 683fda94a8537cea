"""What a source takes from a checkpoint of Transformers: its configuration, what reads its values, its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import transformers
from transformers import AutoConfig, AutoFeatureExtractor, AutoImageProcessor, AutoModel, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

TYPE_KEYS = ("image_processor_type", "feature_extractor_type")  # as in preprocessor_config.json


def encoder_config(encoder: Any) -> PreTrainedConfig:
    """The configuration of the model that a source wraps.

    Args:
        encoder: Folder or Hub id of a checkpoint, or a dict of settings with `model_type`.

    Returns:
        The configuration.

    Raises:
        ValueError: If there is no such model.
    """
    if isinstance(encoder, Mapping):
        settings = dict(encoder)
        kind = settings.pop("model_type", None)
        if kind not in CONFIG_MAPPING:
            raise ValueError(f"model_type of an encoder must be one that Transformers has; got {kind!r}")
        return CONFIG_MAPPING[kind].from_dict(settings)
    try:
        return AutoConfig.from_pretrained(encoder)
    except (OSError, ValueError) as error:
        raise ValueError(f"encoder {encoder!r} is no checkpoint that AutoConfig loads: {error}") from error


def form_of(config: PreTrainedConfig) -> str:
    """What a wrapped model reads.

    Args:
        config: Its configuration.

    Returns:
        One of `media.FORMS`.
    """
    if type(config) in IMAGE_PROCESSOR_MAPPING or config.model_type == "timm_wrapper":
        return "picture"
    return "sound" if type(config) in FEATURE_EXTRACTOR_MAPPING else "text"


def load_part(processor: Any, form: str) -> Any:
    """The image processor or feature extractor of a source.

    Args:
        processor: Folder or Hub id of a checkpoint, or a dict of settings with `image_processor_type` or
            `feature_extractor_type`.
        form: `picture` or `sound`.

    Returns:
        The part.

    Raises:
        ValueError: If there is none.
    """
    if isinstance(processor, Mapping):
        settings = dict(processor)
        kind = next((settings.pop(key) for key in TYPE_KEYS if key in settings), None)
        if not isinstance(kind, str) or not hasattr(transformers, kind):
            raise ValueError(f"processor must name a class of Transformers as {' or '.join(TYPE_KEYS)}; got {kind!r}")
        return getattr(transformers, kind)(**settings)
    loader: Any = AutoImageProcessor if form == "picture" else AutoFeatureExtractor
    try:
        part = loader.from_pretrained(processor)
    except (OSError, ValueError) as error:
        raise ValueError(f"{processor!r} has no preprocessing that {loader.__name__} loads: {error}") from error
    return plain_image_processor(part.data_config) if hasattr(part, "val_transforms") else part


def plain_image_processor(data_config: Mapping[str, Any]) -> Any:
    """An image processor that does what timm's does when it evaluates; timm's own cannot be saved.

    Args:
        data_config: As `timm.data.resolve_data_config` gives it.

    Returns:
        A `BitImageProcessor`.

    Raises:
        ValueError: If it crops in another way than timm's most usual ones.
    """
    from PIL.Image import Resampling

    height, width = data_config["input_size"][1:]
    mode, share = data_config["crop_mode"], data_config["crop_pct"]
    scaled = [math.floor(side / share) for side in (height, width)]
    if mode == "squash":
        size = {"height": scaled[0], "width": scaled[1]}
    elif mode == "center" and height == width:
        size = {"shortest_edge": scaled[0]}
    else:
        raise ValueError(f"timm's crop_mode {mode!r} of {height} x {width} has no counterpart: give a processor")
    return transformers.BitImageProcessor(
        size=size,
        resample=Resampling[data_config["interpolation"].upper()],
        crop_size={"height": height, "width": width},
        image_mean=list(data_config["mean"]),
        image_std=list(data_config["std"]),
        do_convert_rgb=True,
    )


def pour_encoder(model: Any, name: str, checkpoint: str) -> None:
    """Give a source's wrapped model the weights of a checkpoint.

    Args:
        model: The multi-source model.
        name: Of the source.
        checkpoint: Folder or Hub id.

    Raises:
        ValueError: If a weight is missing.
    """
    loaded: Any = AutoModel.from_pretrained(checkpoint, use_safetensors=True)
    if loaded.config.is_encoder_decoder:
        loaded = loaded.get_encoder()
    wrapped = model.model.encoder.sources[name].model
    missing, _ = wrapped.load_state_dict(loaded.state_dict(), strict=False)  # poolers are left out
    if missing:
        raise ValueError(f"{checkpoint} lacks {len(missing)} weights of source {name!r}, such as {missing[0]}")
