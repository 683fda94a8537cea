"""What encoders and decoder are both made of: token and position embeddings, feed-forward layers, initial values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.utils import cached_file

from .code_references import add_code_references
from .configuration_multisource import MultiSourceConfig
from .foreign import DOWNLOAD_OPTIONS, check_adapter, check_weight_files
from .model_card import ModelCardMixin
from .weight_checks import (
    SafetensorError,
    check_finite_weights,
    check_sources,
    check_weights,
    damaged_weights,
)


def dropout(states: Tensor, p: float, training: bool) -> Tensor:
    """Zero some states in training, and scale up the others; otherwise nothing is called, which is faster.

    Args:
        states: Any states.
        p: Probability of zeroing.
        training: Whether to.

    Returns:
        The states.
    """
    return nn.functional.dropout(states, p) if training else states


class SinusoidalPositions(nn.Module):
    """Fixed position embeddings, [sin | cos] in halves, computed when asked for: no table, no longest length.

    Frequency k is 10000^(-k / (D/2 - 1)) as in Tensor2Tensor, the 2018 paper's code and M2M100; with `marian` it is
    10000^(-k / (D/2)).

    Args:
        width: D, even.
        offset: Number of the first position.
        marian: Whether to use Marian's frequencies.
    """

    def __init__(self, width: int, offset: int = 0, *, marian: bool = False) -> None:
        super().__init__()
        self.width = width
        self.offset = offset
        self.step = math.log(10000.0) / (width / 2 if marian else max(width / 2 - 1, 1))

    def forward(self, start: int | Tensor, length: int, device: torch.device) -> Tensor:
        """Embed positions `start` to `start + length - 1`.

        Args:
            start: First position, counted from 0.
            length: How many.
            device: Where to compute.

        Returns:
            (length, D) in float32: in bfloat16 neighbouring positions would coincide.
        """
        k = torch.arange(self.width // 2, dtype=torch.float32, device=device)
        positions = torch.arange(length, dtype=torch.float32, device=device) + (start + self.offset)
        angles = positions[:, None] * torch.exp(-self.step * k)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class LearnedPositions(nn.Embedding):
    """Trained position embeddings, with a longest length.

    Args:
        rows: Longest length, in tokens.
        width: D.
        offset: Row of the first position; the table has as many rows more.
    """

    def __init__(self, rows: int, width: int, offset: int = 0) -> None:
        super().__init__(rows + offset, width)
        self.offset = offset

    def forward(  # type: ignore[override]
        self, start: int | Tensor, length: int, device: torch.device
    ) -> Tensor:
        """Embed positions `start` to `start + length - 1`.

        Args:
            start: First position, counted from 0.
            length: How many.
            device: Where the indices are made.

        Returns:
            (length, D).

        Raises:
            ValueError: If a position lies beyond the table; the message gives both lengths.
        """
        longest = self.num_embeddings - self.offset
        if isinstance(start, int) and start + length > longest:
            raise ValueError(f"a text of {start + length} tokens is longer than max_position_embeddings={longest}.")
        return super().forward(torch.arange(length, device=device) + (start + self.offset))


def build_positions(
    config: MultiSourceConfig, kind: str, longest: int
) -> LearnedPositions | SinusoidalPositions | None:
    """Build position embeddings.

    Args:
        config: Reads `d_model` and `position_offset`.
        kind: "sinusoidal", "sinusoidal_marian", "learned" or "none".
        longest: Rows of a learned table.

    Returns:
        The embeddings, None for "none".
    """
    if kind == "none":
        return None
    if kind == "learned":
        return LearnedPositions(longest, config.d_model, config.position_offset)
    return SinusoidalPositions(config.d_model, config.position_offset, marian=kind == "sinusoidal_marian")


class TextEmbeddings(nn.Module):
    """Token embeddings plus positions, then layer norm (if configured) and dropout.

    Args:
        config: Reads `d_model`, `scale_embedding`, `embedding_norm`, `position_offset`, `layer_norm_eps`.
        vocab_size: Rows of the token table.
        pad_token_id: Row that stays zero.
        position_embedding: "sinusoidal", "sinusoidal_marian", "learned" or "none".
        max_position_embeddings: Rows of a learned position table.
        dropout: Probability of zeroing.

    Shape:
        input_ids (B, S) or inputs_embeds (B, S, D) to (B, S, D).
    """

    def __init__(
        self,
        config: MultiSourceConfig,
        *,
        vocab_size: int,
        pad_token_id: int | None,
        position_embedding: str,
        max_position_embeddings: int,
        dropout: float,
    ) -> None:
        super().__init__()
        width = config.d_model
        self.scale = math.sqrt(width) if config.scale_embedding else 1.0
        self.dropout = dropout
        self.tokens = nn.Embedding(vocab_size, width, padding_idx=pad_token_id)
        self.positions = build_positions(config, position_embedding, max_position_embeddings)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps) if config.embedding_norm else None

    def forward(self, input_ids: Tensor | None, inputs_embeds: Tensor | None = None, start: int | Tensor = 0) -> Tensor:
        """Embed a text.

        Args:
            input_ids: Token ids.
            inputs_embeds: Rows of the token table instead; they are scaled here, as the tokens' own would be.
            start: Position of the first token.

        Returns:
            (B, S, D).

        Raises:
            ValueError: If both or neither of the two inputs is given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds.")
        states = (self.tokens(input_ids) if inputs_embeds is None else inputs_embeds) * self.scale
        if self.positions is not None:
            states = states + self.positions(start, states.shape[1], states.device).to(states.dtype)
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return dropout(states, p=self.dropout, training=self.training)


class FeedForward(nn.Module):
    """Position-wise feed-forward sub-layer with norm, dropout and residual (Vaswani et al. 2017, Eq. 2).

    Args:
        config: Reads `d_model`, `activation_function`, `activation_dropout`, `norm_position`, `layer_norm_eps`.
        width: Of the hidden layer.
        dropout: Probability of zeroing before the residual.

    Shape:
        (B, T, D) to (B, T, D).

    Raises:
        ValueError: If Transformers has no such activation; the message lists the names.
    """

    def __init__(self, config: MultiSourceConfig, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.activation_dropout = config.activation_dropout
        self.pre_norm = config.norm_position == "pre"
        if config.activation_function not in ACT2FN:
            known = ", ".join(map(repr, ACT2FN))
            raise ValueError(f"activation_function must be one of {known}; got {config.activation_function!r}.")
        self.activation = ACT2FN[config.activation_function]
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, width)
        self.fc2 = nn.Linear(width, config.d_model)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Transform every position on its own.

        Args:
            hidden_states: The stream.

        Returns:
            The new stream.
        """
        states = self.layer_norm(hidden_states) if self.pre_norm else hidden_states
        states = dropout(self.activation(self.fc1(states)), p=self.activation_dropout, training=self.training)
        states = hidden_states + dropout(self.fc2(states), p=self.dropout, training=self.training)
        return states if self.pre_norm else self.layer_norm(states)


class Bias(nn.Module):
    """Learnt numbers that begin at 0.

    A module, not a bare parameter: so whatever moves, wraps or adapts modules (offloading, PEFT's `modules_to_save`)
    reaches it, and so do the initial values.

    Args:
        size: How many.

    Shape:
        Calling it: nothing to (size,).
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self) -> Tensor:
        """Give the numbers.

        Returns:
            The parameter.
        """
        return self.bias


class MultiSourcePreTrainedModel(ModelCardMixin, PreTrainedModel):
    """Base of every model of this package: what Transformers needs to know, and how weights begin."""

    config: MultiSourceConfig
    config_class = MultiSourceConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TextEncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

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
        """Load a model; never from a pickle, and never one that silently lacks weights.

        A model with a head may be loaded from a checkpoint that was saved without one: a warning says that the head is
        new. With None as place and a `state_dict`, weights may be missing, too.

        Args:
            pretrained_model_name_or_path: Folder or Hub id; or None, with a `config` and a `state_dict`.
            *model_args: As [`PreTrainedModel.from_pretrained`].
            output_loading_info: Whether to return what was missing and unexpected, too.
            ignore_mismatched_sizes: Take the weights that fit the configuration and draw the others anew: those that
                are missing, those of other shapes, and those of whole sources that were added to it or removed.
            use_safetensors: None and True mean the same.
            **kwargs: As [`PreTrainedModel.from_pretrained`].

        Returns:
            The model, in evaluation mode; a pair with the loading info if that was asked for.

        Raises:
            ValueError: If weights and configuration differ in their sources, weights are missing, have other shapes, or
                are NaN or infinite, `use_safetensors` is False, or a file of the checkpoint names weights outside it.
            OSError: If the weights are missing, damaged, or in a pickle only; the message names the file.
        """
        place = pretrained_model_name_or_path
        if use_safetensors is False:
            raise ValueError("use_safetensors must not be False: weights are never loaded from a pickle.")
        # Transformers would raise an error that names no weight; `check_weights` names them.
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
        """Let nothing train what the configuration freezes; loading makes parameters anew, so it is called after it."""

    def load_adapter(self, peft_model_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Add a PEFT adapter; never from a pickle.

        Args:
            peft_model_id: Folder or Hub id of the adapter; None: the load configuration names it, or it is given by
                `adapter_state_dict`.
            *args: As [`PreTrainedModel.load_adapter`].
            **kwargs: As [`PreTrainedModel.load_adapter`]. What says where to look (`cache_dir`, `revision`,
                `subfolder`, `token`, `local_files_only`, `force_download`, `proxies`) may also be given plainly.

        Returns:
            What `PreTrainedModel.load_adapter` returns.

        Raises:
            ValueError: If `use_safetensors` is False, or the adapter names further adapters to load.
            OSError: If there is no adapter_model.safetensors.
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
            cached_file(place, "adapter_model.safetensors", **where)  # raises where it is missing
        return super().load_adapter(peft_model_id, *args, **{**kwargs, "download_kwargs": where})

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save weights, configuration and the code that both need where the package is not installed.

        Args:
            save_directory: The folder.
            *args: As [`PreTrainedModel.save_pretrained`].
            **kwargs: As [`PreTrainedModel.save_pretrained`].
        """
        add_code_references(self)
        if (settings := getattr(self, "generation_config", None)) is not None:
            settings._from_model_config = None  # it makes loading drop what stock code lacks: length_normalization
        super().save_pretrained(save_directory, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if self.config.initializer == "xavier_uniform" and isinstance(module, nn.Linear | nn.Embedding):
            init.xavier_uniform_(module.weight)
            padding: Any = getattr(module, "padding_idx", None)
            if padding is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[padding])
        if isinstance(module, Bias):
            init.zeros_(module.bias)
        if "final_logits_bias" in module._buffers:
            bias: Any = module._buffers["final_logits_bias"]
            init.zeros_(bias)
