"""Tiny models of Transformers with random weights, to convert from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2Model,
)

from hf_multisource import MultiSourceForConditionalGeneration

CLASSES: dict[str, tuple[Any, Any]] = {
    "marian": (MarianConfig, MarianMTModel),
    "bart": (BartConfig, BartForConditionalGeneration),
    "mbart": (MBartConfig, MBartForConditionalGeneration),
    "m2m_100": (M2M100Config, M2M100ForConditionalGeneration),
    "pegasus": (PegasusConfig, PegasusForConditionalGeneration),
}
MARIAN_IDS = {"pad_token_id": 29, "eos_token_id": 0, "bos_token_id": None, "decoder_start_token_id": 29}
TWO_VOCABULARIES = {"share_encoder_decoder_embeddings": False, "vocab_size": 37, "decoder_vocab_size": 30}
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("marian", {**MARIAN_IDS, "activation_function": "swish", "scale_embedding": True}),
    "marian, untied, without scale": ("marian", {**MARIAN_IDS, "tie_word_embeddings": False, "encoder_layers": 1}),
    "marian, two vocabularies": ("marian", {**MARIAN_IDS, **TWO_VOCABULARIES, "decoder_attention_heads": 8}),
    "marian, two vocabularies of a size": ("marian", {**MARIAN_IDS, **TWO_VOCABULARIES, "vocab_size": 30}),
    "marian, two vocabularies, untied": ("marian", {**MARIAN_IDS, **TWO_VOCABULARIES, "tie_word_embeddings": False}),
    "bart": ("bart", {}),
    "bart, untied, scaled": ("bart", {"tie_word_embeddings": False, "scale_embedding": True, "decoder_layers": 3}),
    "bart, begins with a forced token": ("bart", {"activation_function": "relu", "forced_bos_token_id": 0}),
    "mbart": ("mbart", {"scale_embedding": True, "decoder_start_token_id": None}),
    "mbart, untied, relu": ("mbart", {"tie_word_embeddings": False, "activation_function": "relu", "d_model": 24}),
    "pegasus": ("pegasus", {"activation_function": "relu", "scale_embedding": True}),
    "pegasus, untied, without scale": ("pegasus", {"tie_word_embeddings": False, "decoder_layers": 3}),
    "m2m_100": ("m2m_100", {"encoder_ffn_dim": 12}),
    "m2m_100, untied, without scale": (
        "m2m_100",
        {"tie_word_embeddings": False, "scale_embedding": False, "pad_token_id": 3, "activation_function": "gelu"},
    ),
}


def stock(name: str, seed: int = 0, **fields: Any) -> Any:
    """A model of Transformers, every parameter random, that listens to its source."""
    kind, settings = CHECKPOINTS[name]
    sizes: dict[str, Any] = {
        "vocab_size": 30,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 20,
        "max_position_embeddings": 20,
    }
    ids = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
    config_class, model_class = CLASSES[kind]
    model = model_class(config_class(**{**sizes, **ids, **settings, **fields})).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if "embed_positions" not in key or kind in ("bart", "mbart"):
                value.normal_(std=0.4, generator=generator)
            if "layer_norm" in key or "layernorm" in key:  # a random last norm would outshout the source
                value.mul_(0.2).add_(key.endswith("weight"))
            elif "encoder_attn" in key:
                value.mul_(2.5)
    return model


def convert(sources: Any, decoder: str = "en", *args: Any, **kwargs: Any) -> Any:
    return MultiSourceForConditionalGeneration.from_pretrained_sources(sources, decoder, *args, **kwargs)


def batch(model: Any, prefix: str = "") -> dict[str, Tensor]:
    """Three texts of different lengths."""
    padding = model.config.pad_token_id
    ids = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 11, padding, padding], [12, 13, 14, 15, padding]])
    return {f"{prefix}input_ids": ids, f"{prefix}attention_mask": ids.ne(padding).long()}


TARGET = torch.tensor([[2, 4, 5, 6], [2, 8, 9, 10], [2, 12, 13, 14]])


@torch.no_grad()
def logits(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    answer: Tensor = model(**inputs, decoder_input_ids=TARGET).logits
    return answer


def same(one: Tensor, other: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def bert(**fields: Any) -> BertModel:
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return BertModel(BertConfig(**{**sizes, "vocab_size": 30, "pad_token_id": 1, **fields})).eval()


def vit() -> ViTForImageClassification:
    sizes: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return ViTForImageClassification(ViTConfig(**sizes, hidden_size=16, image_size=8, patch_size=4)).eval()


def wav2vec2() -> Wav2Vec2Model:
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    convolutions: dict[str, Any] = {
        "conv_dim": (8, 8),
        "conv_stride": (4, 2),
        "conv_kernel": (4, 2),
        "num_feat_extract_layers": 2,
    }
    return Wav2Vec2Model(Wav2Vec2Config(**sizes, **convolutions, num_conv_pos_embedding_groups=2)).eval()


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


T5: dict[str, Any] = {"vocab_size": 30, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
