"""Checking and loading of the checkpoints from which the sources of a new model are initialized."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .architectures import FAMILIES, is_translatable
from .configuration_multisource import MultiSourceConfig
from .encoders import check_wrappable
from .foreign import check_model_type, check_whole_model, encoder_loader, load_auto, named_checkpoint
from .messages import shown

# Model types whose checkpoints can provide the decoder.
DECODERS = (*FAMILIES, MultiSourceConfig.model_type)


@dataclass(frozen=True)
class SourceCheckpoint:
    """Checkpoint from which a source of a new model is initialized.

    Args:
        name: Name of the source.
        value: Folder, Hub id or model.
        options: Some of `foreign.DOWNLOAD_OPTIONS`; ignored for a model.
    """

    name: str
    value: str | Path | PreTrainedModel
    options: Mapping[str, Any]

    @property
    def identity(self) -> Hashable:
        """Hashable key that is equal for sources with the same checkpoint."""
        if isinstance(self.value, PreTrainedModel):
            return id(self.value)
        return str(self.value), str(self.options)

    def _named(self) -> AbstractContextManager[None]:
        if isinstance(self.value, PreTrainedModel):
            return nullcontext()
        return named_checkpoint(self.name, self.value, self.options)

    def check(self, *, gives_decoder: bool) -> None:
        """Check that the checkpoint can be used for a source, without reading its weights.

        Args:
            gives_decoder: Whether this checkpoint provides the decoder of the model.

        Raises:
            ValueError: If the checkpoint must provide the decoder but has no supported decoder, or has no encoder that
                can be wrapped; the message names the source.
            OSError: If the checkpoint does not exist, or has its weights in a pickle only.
        """
        with self._named():
            self._check(gives_decoder)

    def _check(self, gives_decoder: bool) -> None:
        model = self.value if isinstance(self.value, PreTrainedModel) else None
        if model is None:
            check_whole_model(str(self.value), **self.options)
        kind = self._model_type()
        known = kind in DECODERS and (model is None or is_translatable(model))
        if gives_decoder and not known:
            what = "its checkpoint" if model is None else f"a {type(model).__name__}"
            raise ValueError(
                f"sources[{self.name}] cannot give the decoder: {what} (model_type {kind!r}) must be of one of these "
                f"types, with its output layer: {', '.join(DECODERS)}. Let another source give the decoder; then the "
                "encoder alone is taken of this one."
            )
        if not known:
            check_model_type(kind, f"sources[{self.name}]")
            config = load_auto("AutoConfig", str(self.value), **self.options) if model is None else model.config
            check_wrappable(config, f"sources[{self.name}]")

    def _model_type(self) -> str:
        if isinstance(self.value, PreTrainedModel):
            return self.value.config.model_type
        kind = PreTrainedConfig.get_config_dict(self.value, **self.options)[0].get("model_type")
        return str(kind or load_auto("AutoConfig", self.value, **self.options).model_type)  # old files lack the key

    def load(self, model_class: type[PreTrainedModel], dtype: torch.dtype | None) -> PreTrainedModel:
        """Load the checkpoint; a model in memory is returned unchanged.

        Args:
            model_class: Class with which models of this package are loaded.
            dtype: Data type of the weights; None: the stored data type.

        Returns:
            The model, with its output layer if it can provide the decoder.

        Raises:
            ValueError: If the checkpoint cannot be loaded; the message begins with the source and the checkpoint.
            OSError: If a file is missing; the message begins with the source and the checkpoint.
        """
        with self._named():
            return self._load(model_class, dtype)

    def _load(self, model_class: type[PreTrainedModel], dtype: torch.dtype | None) -> PreTrainedModel:
        if isinstance(self.value, PreTrainedModel):
            return self.value
        kind = self._model_type()
        options = dict(self.options) if dtype is None else {**self.options, "dtype": dtype}
        if kind == MultiSourceConfig.model_type:
            ours: PreTrainedModel = model_class.from_pretrained(self.value, **options)
            return ours
        loader = "AutoModelForSeq2SeqLM" if kind in FAMILIES else encoder_loader(kind)
        model: PreTrainedModel = load_auto(loader, self.value, **options)
        return model


def checked_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """Convert the argument `dtype` of `from_pretrained_sources` to a data type of torch.

    Args:
        dtype: The data type or its name; None or "auto": the data type of the decoder's checkpoint.

    Returns:
        The data type; None for the data type of the decoder's checkpoint.

    Raises:
        ValueError: If `dtype` is not a floating-point type of torch.
    """
    if dtype in (None, "auto"):
        return None
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(
            f"dtype must be a floating-point dtype of torch, or its name, such as 'bfloat16'; got {shown(dtype)}."
        )
    return found


__all__ = ["SourceCheckpoint", "checked_dtype"]
