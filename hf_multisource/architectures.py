"""Conversion of Transformers' encoder-decoders to configurations and weights of this package."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from .configuration_multisource import MultiSourceConfig

# Settings of the `MultiSourceConfig` that is equivalent to an encoder-decoder of Transformers, by the model_type of the
# latter. NLLB has the model_type of M2M100. All of these models have attention biases and a layer norm epsilon of 1e-5,
# our defaults.
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
        "final_logits_bias": False,  # position_offset is pad_token_id + 1, see `_translate_config`
    },
}
# Settings that have the same name in the configurations of Transformers and of this package.
SAME_NAME = (
    *("d_model", "activation_function", "scale_embedding", "max_position_embeddings"),
    *("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
    *("dropout", "attention_dropout", "activation_dropout"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
)
# Regular expressions that turn Transformers' parameter names into those of a serial model with one source, "source".
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
    """A model converted to a configuration and weights of this package.

    Args:
        config: Configuration with which a model of this package computes the same.
        weights: Parameters by their names in this package; tied parameters are listed under each of their names.
        generation_config: The model's generation configuration.
        dtype: Data type of the parameters.
        is_ours: Whether the model is of this package and needed no conversion.
    """

    config: MultiSourceConfig
    weights: dict[str, Tensor]
    generation_config: GenerationConfig
    dtype: torch.dtype
    is_ours: bool

    def own_source(self, name: str) -> str:
        """Return the checkpoint's source from which a source of the new model is initialized.

        Args:
            name: Name of the source in the new model.

        Returns:
            The source of the same name, or the checkpoint's only source.

        Raises:
            ValueError: If the checkpoint has several sources, but no source of this name; the message lists them.
        """
        names = self.config.source_names
        if name not in names and len(names) > 1:
            raise ValueError(f"sources[{name}]: the checkpoint has no such source, but {', '.join(names)}.")
        return name if name in names else names[0]

    def owner(self, name: str) -> str:
        """Return the checkpoint's source that owns the encoder for a source of the new model.

        Args:
            name: Name of the source in the new model.

        Returns:
            The name of one of the checkpoint's sources.
        """
        return str(self.config.encoder_owner(self.own_source(name)).name)

    def is_gated(self, name: str) -> bool:
        """Return whether the checkpoint's combiner is "gated_serial" and gates a source.

        Args:
            name: Name of the source in the new model.

        Returns:
            Whether the source has a gate.
        """
        own = self.config.source_names.index(self.own_source(name))
        return self.config.combiner == "gated_serial" and self.config.gated_sources[own]

    def encoder_weights(self, owner: str, name: str) -> dict[str, Tensor]:
        """Return the weights of an encoder, renamed for the new model.

        Args:
            owner: The checkpoint's source that owns the encoder.
            name: The source of the new model that receives the encoder.

        Returns:
            The weights, by their names in the new model.
        """
        theirs, ours = (f"model.encoder.sources.{source}." for source in (owner, name))
        return {ours + key.removeprefix(theirs): value for key, value in self.weights.items() if key.startswith(theirs)}

    def vector_of(self, own: str, name: str, table: str) -> dict[str, Tensor]:
        """Return a learned vector of one source, renamed for the new model.

        Args:
            own: The checkpoint's source.
            name: The source of the new model that receives the vector.
            table: Submodule that holds the vectors: "source_embeddings" or "absent_vectors".

        Returns:
            The vector, by its name in the new model; {} if the checkpoint has none.
        """
        theirs, ours = (f"model.encoder.{table}.{source}." for source in (own, name))
        return {ours + key.removeprefix(theirs): value for key, value in self.weights.items() if key.startswith(theirs)}

    def decoder_weights(self) -> dict[str, Tensor]:
        """Return the weights of the decoder and the output layer, without cross-attention.

        Returns:
            The weights; they have the same names in every model of this package.
        """
        return {
            key: value
            for key, value in self.weights.items()
            if not key.startswith("model.encoder.") and ".cross_attn." not in key
        }


def is_translatable(model: PreTrainedModel) -> bool:
    """Return whether `translate` can convert a model.

    Args:
        model: Any model.

    Returns:
        True for models of this package and of the `FAMILIES` that have an output layer.
    """
    return model.config.model_type in (*FAMILIES, MultiSourceConfig.model_type) and hasattr(model, "lm_head")


def translate(model: PreTrainedModel) -> Checkpoint:
    """Convert a model to a configuration and weights of this package.

    Args:
        model: A model for which [`is_translatable`] is true.

    Returns:
        The checkpoint; it shares its tensors with the model.
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
