"""Load models and processors, and the parts of a source (configuration, preprocessor, weights) from checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError
from transformers import PreTrainedConfig
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

from hf_multisource import MultiSourceProcessor
from hf_multisource.foreign import build_part, encoder_loader, load_auto, wrapped_config
from hf_multisource.json_files import read_json
from hf_multisource.messages import first_line
from hf_multisource.source_kinds import FORMS

PROCESSOR_FILES = ("processor_config.json", "tokenizer_config.json")  # `save_pretrained` always writes these
VOCABULARIES = ("tokenizer.json", "*.spm", "*.model", "vocab.*")  # every tokenizer_config.json comes with one of these
TYPE_KEYS = ("image_processor_type", "feature_extractor_type")  # keys of preprocessor_config.json that name the class


def load_config(name: str) -> Any:
    """Load the configuration of a multi-source model.

    Args:
        name: Folder or Hub id.

    Returns:
        The configuration.

    Raises:
        ValueError: If there is no such model, or it is not a multi-source model; the message names folder and file.
    """
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(f"{name} is no folder of a model: it has no config.json")
        read_json(folder / "config.json")
    try:
        config = load_auto("AutoConfig", name)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name} is no folder of a model, and cannot be loaded from the Hub: {first_line(error)}"
        ) from error
    if not hasattr(config, "source_names"):
        raise ValueError(f"{name} holds a model of type {config.model_type!r}, which does not have several sources")
    return config


def load_saved_model(name: str | Path, **options: Any) -> Any:
    """Load a multi-source model.

    Args:
        name: Folder or Hub id.
        **options: Further arguments of `from_pretrained`, such as `config`.

    Returns:
        The model.

    Raises:
        ValueError: If the weights are missing, damaged or of another configuration; the message names the folder.
    """
    try:
        return load_auto("AutoModelForSeq2SeqLM", name, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"the weights of {name} cannot be loaded: {first_line(error)}") from error


def load_processor(name: str) -> MultiSourceProcessor:
    """Load the processor of a multi-source model.

    Args:
        name: Folder or Hub id.

    Returns:
        The processor.

    Raises:
        ValueError: If a file is missing or damaged; the message names folder and file.
    """
    folder = Path(name)
    if folder.is_dir() and (missing := [file for file in PROCESSOR_FILES if not (folder / file).is_file()]):
        raise ValueError(f"{name} is no complete folder of a model: it has no {missing[0]}")
    try:
        return MultiSourceProcessor.from_pretrained(name)
    except Exception as error:  # damaged files raise KeyError, TypeError, AttributeError, …
        for path in sorted(folder.glob("*_config.json")) + sorted(folder.glob("*_*/*_config.json")):
            read_json(path)
        for path in [folder, *sorted(folder.glob("*_tokenizer"))]:
            if path.is_dir() and not any(file for pattern in VOCABULARIES for file in path.glob(pattern)):
                raise ValueError(f"{path} is no complete folder of a tokenizer: it has no tokenizer.json") from error
            if (path / "tokenizer.json").is_file():
                read_json(path / "tokenizer.json")
        raise ValueError(
            f"the processor of {name} cannot be loaded ({type(error).__name__}: {first_line(error)})"
        ) from error


def encoder_config(encoder: Any) -> PreTrainedConfig:
    """Return the configuration of the model that a source wraps.

    Args:
        encoder: Folder or Hub id of a checkpoint, or a dict of settings with `model_type`.

    Returns:
        The configuration.

    Raises:
        ValueError: If there is no such model.
    """
    if isinstance(encoder, Mapping):
        return wrapped_config(encoder, "encoder")
    try:
        config: PreTrainedConfig = load_auto("AutoConfig", encoder)
        return config
    except (OSError, ValueError) as error:
        raise ValueError(f"encoder {encoder!r} is no checkpoint that AutoConfig loads: {first_line(error)}") from error


def form_of(config: PreTrainedConfig) -> str:
    """Return the form of the values that a wrapped model reads.

    Args:
        config: Configuration of the model.

    Returns:
        A name of `source_kinds.FORMS`.
    """
    if type(config) in IMAGE_PROCESSOR_MAPPING or config.model_type == "timm_wrapper":
        return "picture"
    return "sound" if type(config) in FEATURE_EXTRACTOR_MAPPING else "text"


def load_preprocessor(processor: Any, form: str) -> Any:
    """Load the image processor or feature extractor of a source.

    Args:
        processor: Folder or Hub id of a checkpoint, or a dict of settings with `image_processor_type` or
            `feature_extractor_type`.
        form: Name of a kind that has a `part_loader`: `picture` or `sound`.

    Returns:
        The image processor or feature extractor.

    Raises:
        ValueError: If it cannot be found.
    """
    if isinstance(processor, Mapping):
        settings = dict(processor)
        kind = next((settings.pop(key) for key in TYPE_KEYS if key in settings), None)
        return build_part(kind, settings)
    loader = str(FORMS[form].part_loader)
    try:
        part = load_auto(loader, processor)
    except (OSError, ValueError) as error:
        raise ValueError(f"{processor!r} has no preprocessing that {loader} loads: {first_line(error)}") from error
    return plain_image_processor(part.data_config) if hasattr(part, "val_transforms") else part


def load_encoder(name: str) -> Any:
    """Load the model that a source wraps or that computes its features.

    Args:
        name: Folder or Hub id of an `AutoModel`.

    Returns:
        The model.

    Raises:
        ValueError: If there is no such model, or its weights are missing or damaged.
    """
    try:
        return load_auto(encoder_loader(load_auto("AutoConfig", name).model_type), name)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ValueError(f"encoder {name!r} is no checkpoint that AutoModel loads: {first_line(error)}") from error


def resize_pictures(processor: Any, image_size: int) -> Any:
    """Return a copy of an image processor that makes square pictures of another size.

    Args:
        processor: An image processor that resizes pictures, and perhaps crops them.
        image_size: Height and width of the pictures, in pixels.

    Returns:
        A processor of the same class. If it crops, the ratio of crop size and picture size is kept.

    Raises:
        ValueError: If the processor does not make pictures of one size.
    """
    size, crop_size = (
        {side: pixels for side, pixels in dict(getattr(processor, key, None) or {}).items() if pixels}
        for key in ("size", "crop_size")
    )
    settings = {key: value for key, value in processor.to_dict().items() if key not in TYPE_KEYS}
    if getattr(processor, "do_center_crop", False) and crop_size:
        ratio = image_size / crop_size["height"]
        settings["crop_size"] = {"height": image_size, "width": image_size}
        settings["size"] = {side: round(pixels * ratio) for side, pixels in size.items()}
    elif set(size) == {"height", "width"} or hasattr(processor, "crop_pct"):  # ConvNext's processor crops by a ratio
        settings["size"] = dict.fromkeys(size, image_size)
    else:
        raise ValueError(f"image_size is {image_size}, but {type(processor).__name__} does not make square pictures")
    return type(processor)(**settings)


def plain_image_processor(data_config: Mapping[str, Any]) -> Any:
    """Return an image processor equivalent to timm's evaluation transform, which itself cannot be saved.

    Args:
        data_config: Output of `timm.data.resolve_data_config`.

    Returns:
        A `BitImageProcessor`.

    Raises:
        ValueError: If the crop is not one of timm's common variants.
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
