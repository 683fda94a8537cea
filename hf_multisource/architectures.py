"""Encoder-decoders of Transformers that compute what a model of this package can, and their weights by our names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from .configuration_multisource import MultiSourceConfig

# What distinguishes the encoder-decoders of Transformers that compute what ours does, by their model_type. NLLB is an
# M2M100. Their attentions have biases, and their layer norms an epsilon of 1e-5.
FAMILIES: dict[str, dict[str, Any]] = {
    "marian": {
        "norm_position": "post",
        "embedding_norm": False,
        "position_embedding": "sinusoidal_marian",
        "position_offset": 0,
        "final_logits_bias": True,
    },
    "bart": {
        "norm_position": "post",
        "embedding_norm": True,
        "position_embedding": "learned",
        "position_offset": 2,
        "final_logits_bias": True,
    },
    "mbart": {
        "norm_position": "pre",
        "embedding_norm": True,
        "position_embedding": "learned",
        "position_offset": 2,
        "final_logits_bias": True,
    },
    "pegasus": {
        "norm_position": "pre",
        "embedding_norm": False,
        "position_embedding": "sinusoidal_marian",
        "position_offset": 0,
        "final_logits_bias": True,
    },
    "m2m_100": {
        "norm_position": "pre",
        "embedding_norm": False,
        "position_embedding": "sinusoidal",
        "final_logits_bias": False,  # and position_offset is pad_token_id + 1
    },
}
SAME_NAME = (
    *("d_model", "activation_function", "scale_embedding", "max_position_embeddings"),
    *("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
    *("dropout", "attention_dropout", "activation_dropout"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
)
# Transformers' names of parameters, and ours in a serial model with one source named "source".
RENAMED = (
    (r"^(model\.\w+)\.embed_tokens", r"\1.embeddings.tokens"),
    (r"^(model\.\w+)\.embed_positions", r"\1.embeddings.positions"),
    (r"^(model\.\w+)\.layernorm_embedding", r"\1.embeddings.layer_norm"),
    (r"\.(fc[12])\.", r".feed_forward.\1."),
    (r"\.final_layer_norm\.", ".feed_forward.layer_norm."),
    (r"\.encoder_attn_layer_norm\.", ".cross_attn.source.layer_norm."),
    (r"\.encoder_attn\.", ".cross_attn.source."),
    (r"^model\.encoder\.", "model.encoder.sources.source."),
)


@dataclass(frozen=True)
class Checkpoint:
    """A model in the terms of this package.

    Args:
        config: The configuration with which a model of ours computes the same.
        weights: Its parameters by our names, copies by virtue of tying included.
        generation_config: How it generates.
        dtype: Of its parameters.
        is_ours: Whether it is a model of this package.
    """

    config: MultiSourceConfig
    weights: dict[str, Tensor]
    generation_config: GenerationConfig
    dtype: torch.dtype
    is_ours: bool

    def own_source(self, name: str) -> str:
        """The checkpoint's source that a new model's source comes from.

        Args:
            name: Name in the new model.

        Returns:
            The source of the same name, or the only one.

        Raises:
            ValueError: If the checkpoint has several sources and none of this name; the message lists them.
        """
        names = self.config.source_names
        if name not in names and len(names) > 1:
            raise ValueError(f"sources[{name}]: the checkpoint has no such source, but {', '.join(names)}.")
        return name if name in names else names[0]

    def owner(self, name: str) -> str:
        """The source whose encoder the checkpoint has for a source of the new model.

        Args:
            name: Name in the new model.

        Returns:
            The name of one of the checkpoint's sources.
        """
        return str(self.config.encoder_owner(self.own_source(name)).name)

    def is_gated(self, name: str) -> bool:
        """Whether the checkpoint lets a source in through a gate.

        Args:
            name: Name in the new model.

        Returns:
            False unless its combiner has gates of that kind.
        """
        own = self.config.source_names.index(self.own_source(name))
        return self.config.combiner == "gated_serial" and self.config.gated_sources[own]

    def encoder_weights(self, owner: str, name: str) -> dict[str, Tensor]:
        """The weights of an encoder.

        Args:
            owner: The checkpoint's source whose encoder it is.
            name: The source of the new model that gets it.

        Returns:
            The weights, by their names in the new model.
        """
        theirs, ours = (f"model.encoder.sources.{source}." for source in (owner, name))
        return {ours + key.removeprefix(theirs): value for key, value in self.weights.items() if key.startswith(theirs)}

    def vector_of(self, own: str, name: str, table: str) -> dict[str, Tensor]:
        """A learned vector of one source.

        Args:
            own: The checkpoint's source.
            name: The source of the new model that gets it.
            table: Where the vectors are: "source_embeddings" or "absent_vectors".

        Returns:
            The vector, by its name in the new model; {} if the checkpoint has none.
        """
        theirs, ours = (f"model.encoder.{table}.{source}." for source in (own, name))
        return {ours + key.removeprefix(theirs): value for key, value in self.weights.items() if key.startswith(theirs)}

    def decoder_weights(self) -> dict[str, Tensor]:
        """The weights outside the encoders and the cross-attention.

        Returns:
            The weights, by their names in every model of this package.
        """
        return {
            key: value
            for key, value in self.weights.items()
            if not key.startswith("model.encoder.") and ".cross_attn." not in key
        }


def is_translatable(model: PreTrainedModel) -> bool:
    """Whether a model can be put into our terms.

    Args:
        model: Any model.

    Returns:
        True for one of this package or of the `FAMILIES`, with its output layer.
    """
    return model.config.model_type in (*FAMILIES, MultiSourceConfig.model_type) and hasattr(model, "lm_head")


def translate(model: PreTrainedModel) -> Checkpoint:
    """Put a model into our terms.

    Args:
        model: One for which [`is_translatable`] is true.

    Returns:
        The checkpoint. Its tensors are the model's own.
    """
    is_ours = model.config.model_type == MultiSourceConfig.model_type
    config: Any = model.config if is_ours else _translate_config(model)
    weights = model.state_dict() if is_ours else _translate_weights(model)
    return Checkpoint(config, weights, model.generation_config, model.dtype, is_ours)


def _translate_config(model: Any) -> MultiSourceConfig:
    kind, theirs = model.config.model_type, model.config
    fields = {**FAMILIES[kind], **{name: getattr(theirs, name, None) for name in SAME_NAME}}
    if kind == "m2m_100":
        fields["position_offset"] = theirs.pad_token_id + 1
    encoder, decoder = (part.embed_tokens.weight for part in (model.get_encoder(), model.get_decoder()))
    tied = model.lm_head.weight is decoder
    two_vocabularies = not getattr(theirs, "share_encoder_decoder_embeddings", True)
    own = two_vocabularies or (tied and encoder is not decoder)
    return MultiSourceConfig(
        sources=[{"name": "source", "vocab_size": len(encoder) if own else None}],
        vocab_size=len(decoder),
        tie_word_embeddings=tied,
        **fields,
    )


def _translate_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    learned = FAMILIES[model.config.model_type]["position_embedding"] == "learned"
    weights = {}
    for name, value in model.state_dict().items():
        if name == "model.shared.weight" or ("embed_positions" in name and not learned):
            continue
        for pattern, replacement in RENAMED:
            name = re.sub(pattern, replacement, name)
        weights[name] = value
    return weights


__all__ = ["FAMILIES", "Checkpoint", "is_translatable", "translate"]
