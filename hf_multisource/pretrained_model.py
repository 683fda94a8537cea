"""Base classes of all models: loading without pickles, saving with code, and initialization of the weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import cached_file

from .code_references import add_code_references
from .configuration_multisource import MultiSourceConfig, SourcesConfig
from .foreign import DOWNLOAD_OPTIONS, check_adapter, check_weight_files
from .layers import AbsentVector, Bias
from .model_card import ModelCardMixin
from .weight_checks import (
    SafetensorError,
    check_finite_weights,
    check_sources,
    check_weights,
    damaged_weights,
)


class MultiSourcePreTrainedModel(ModelCardMixin, PreTrainedModel):
    """Base class of all models of both families: loading, saving, and common initialization of the weights."""

    config: SourcesConfig
    config_class = SourcesConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _skip_keys_device_placement = ["past_key_values"]

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *model_args: Any,
        output_loading_info: bool = False,
        ignore_mismatched_sizes: bool = False,
        use_safetensors: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Load a model from a checkpoint; pickles are never loaded, and missing weights raise an error.

        A model with an output layer can be loaded from a checkpoint without one; a warning states that the output layer
        is newly initialized. Weights may also be missing if the first argument is None and a `state_dict` is given.

        Args:
            pretrained_model_name_or_path: Folder or Hub id; or None, with a `config` and a `state_dict`.
            *model_args: As [`PreTrainedModel.from_pretrained`].
            output_loading_info: Whether to also return missing and unexpected keys.
            ignore_mismatched_sizes: Whether to load the weights that match the configuration and to initialize all
                others: missing weights, weights with other shapes, and weights of sources that were added to the
                configuration. Weights of removed sources are ignored.
            use_safetensors: None and True are equivalent.
            **kwargs: As [`PreTrainedModel.from_pretrained`].

        Returns:
            The model, in evaluation mode; a pair of model and loading info with `output_loading_info`.

        Raises:
            ValueError: If weights and configuration have different sources, weights are missing, have other shapes, or
                are NaN or infinite, `use_safetensors` is False, or a file of the checkpoint refers to weights outside
                the checkpoint.
            OSError: If the weights are missing, damaged, or in a pickle only; the message names the file.
        """
        place = pretrained_model_name_or_path
        if use_safetensors is False:
            raise ValueError("use_safetensors must not be False: weights are never loaded from a pickle.")
        # The error of Transformers does not name the weights, unlike the error of `check_weights`.
        kwargs["ignore_mismatched_sizes"] = True
        kwargs["trust_remote_code"] = kwargs.get("trust_remote_code") is True
        if place is not None:
            where = {key: kwargs[key] for key in DOWNLOAD_OPTIONS if key in kwargs}
            check_weight_files(place, kwargs.get("variant"), **where)
        try:
            loaded: Any = super().from_pretrained(
                place, *model_args, output_loading_info=True, use_safetensors=True, **kwargs
            )
        except SafetensorError as error:
            raise damaged_weights(place, error) from error
        model, report = loaded
        if not ignore_mismatched_sizes:
            check_sources(model, report, place)
            if place is not None:
                check_weights(model, report, place)
        check_finite_weights(model, "state_dict" if place is None else place)
        for module in model.modules():
            if isinstance(module, MultiSourcePreTrainedModel):
                module.freeze()
        return loaded if output_loading_info else model

    def freeze(self) -> None:
        """Disable gradients of frozen modules; called after loading, which replaces parameters."""

    def load_adapter(self, peft_model_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Load a PEFT adapter; pickles are never loaded.

        Args:
            peft_model_id: Folder or Hub id of the adapter; None: the adapter is given by the load configuration or by
                `adapter_state_dict`.
            *args: As [`PreTrainedModel.load_adapter`].
            **kwargs: As [`PreTrainedModel.load_adapter`]. Download options (`cache_dir`, `revision`, `subfolder`,
                `token`, `local_files_only`, `force_download`, `proxies`) can also be passed directly.

        Returns:
            The same as `PreTrainedModel.load_adapter`.

        Raises:
            ValueError: If `use_safetensors` is False, or the adapter names further adapters to load.
            OSError: If the adapter has no adapter_model.safetensors.
        """
        load_config = kwargs.get("load_config")
        settings = {**(vars(load_config) if load_config else {}), **kwargs}
        if settings.get("use_safetensors") is False:
            raise ValueError("use_safetensors must not be False: weights are never loaded from a pickle.")
        where = dict(settings.get("download_kwargs") or {})
        where |= {key: kwargs.pop(key) for key in DOWNLOAD_OPTIONS if key in kwargs}
        where |= kwargs.pop("adapter_kwargs", None) or {}
        place = peft_model_id or settings.get("pretrained_model_name_or_path")
        if place is not None:
            check_adapter(place, **where)
        if place is not None and settings.get("adapter_state_dict") is None:
            cached_file(place, "adapter_model.safetensors", **where)  # raises OSError if the file is missing
        return super().load_adapter(peft_model_id, *args, **{**kwargs, "download_kwargs": where})

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save weights, configuration and the code that is needed to load them without this package.

        Args:
            save_directory: The folder.
            *args: As [`PreTrainedModel.save_pretrained`].
            **kwargs: As [`PreTrainedModel.save_pretrained`].

        Raises:
            ValueError: If the sources of the configuration have been changed since the model was built.
        """
        for module in self.modules():
            if isinstance(module, MultiSourcePreTrainedModel):
                module.check_config()
        add_code_references(self)
        if (settings := getattr(self, "generation_config", None)) is not None:
            settings._from_model_config = None  # otherwise loading drops length_normalization
        super().save_pretrained(save_directory, *args, **kwargs)

    def check_config(self) -> None:
        """Check that the configuration still describes the model.

        Raises:
            ValueError: If the sources of the configuration have been changed since the model was built.
        """

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        self.draw_weights(module)
        loaded = getattr(getattr(module, "weight", None), "_is_hf_initialized", False)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and not loaded:
            init.zeros_(module.weight[module.padding_idx])
        if (bias := module._buffers.get("final_logits_bias")) is not None:
            init.zeros_(bias)

    def draw_weights(self, module: nn.Module) -> None:
        """Initialize the parameters of one module; each family of models has its own distribution.

        Args:
            module: The module, without its children.
        """
        super()._init_weights(module)


class MultiSourceTransformerPreTrainedModel(MultiSourcePreTrainedModel):
    """Base class of the models of the Transformer family: attention implementations and initial values."""

    config: MultiSourceConfig
    config_class = MultiSourceConfig
    supports_gradient_checkpointing = True
    _no_split_modules = ["TextEncoderLayer", "DecoderLayer"]
    _supports_sdpa = True
    # FlashAttention of Transformers removes padding with one mask, that of the keys, from queries of another length.
    _supports_flash_attn = False
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def draw_weights(self, module: nn.Module) -> None:
        super().draw_weights(module)
        if self.config.initializer == "xavier_uniform" and isinstance(module, nn.Linear | nn.Embedding):
            init.xavier_uniform_(module.weight)
        if isinstance(module, Bias):
            init.zeros_(module.bias)
        if isinstance(module, AbsentVector):  # the distribution of an embedding table with one row
            if self.config.initializer == "normal":
                init.normal_(module.vector, std=self.config.init_std)
            else:
                bound = math.sqrt(6 / (1 + self.config.d_model))
                init.uniform_(module.vector, -bound, bound)
