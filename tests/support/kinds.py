"""A processor with a source of every kind, and values for them."""

from __future__ import annotations

import io
import wave
from functools import cache
from typing import Any

import numpy as np
from PIL import Image
from transformers import ViTConfig, ViTImageProcessorPil, Wav2Vec2Config, Wav2Vec2FeatureExtractor

from builders import SMALL
from hf_multisource import MultiSourceProcessor
from hf_multisource.recipes.tokenization import train_tokenizer

NAMES = ("en", "image", "speech", "regions")
SIDE, RATE, SIZE = 4, 8000, 3
"""Of pictures in pixels, of speech in Hz, of features in numbers."""
TEXTS = ["A dog runs.", "Two cats."]

CONVOLUTION: dict[str, Any] = {
    "conv_dim": (8,),
    "conv_kernel": (2,),
    "conv_stride": (1,),
    "num_feat_extract_layers": 1,
    "num_conv_pos_embeddings": 2,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "apply_spec_augment": False,
}
MIXED: list[Any] = [
    "en",
    {"name": "image", "kind": "pretrained", "encoder": ViTConfig(image_size=SIDE, patch_size=2, **SMALL)},
    {"name": "speech", "kind": "pretrained", "encoder": Wav2Vec2Config(**SMALL, **CONVOLUTION)},
    {"name": "regions", "kind": "features", "feature_size": SIZE},
]
"""A model's sources of these kinds."""


@cache
def text_tokenizer() -> Any:
    return train_tokenizer(TEXTS, "bpe", 262, null_token="<NULL>")


def mixed_processor(*names: str, **settings: Any) -> MultiSourceProcessor:
    """Text, pictures, speech and features, in the given order."""
    names = names or NAMES
    parts = {
        # Without resizing, pixels can be followed through; to [-1, 1].
        "image": ViTImageProcessorPil(do_resize=False, size={"height": SIDE, "width": SIDE}),
        "speech": Wav2Vec2FeatureExtractor(sampling_rate=RATE, do_normalize=True),
    }
    return MultiSourceProcessor(
        text_tokenizer(),
        names,
        source_processors={name: part for name, part in parts.items() if name in names},
        feature_sources=["regions"] if "regions" in names else [],
        **settings,
    )


def picture(seed: int, side: int = SIDE) -> Image.Image:
    """Random colors."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def recording(seed: int, samples: int) -> np.ndarray:
    """Random sound."""
    return np.random.default_rng(seed).normal(size=samples).astype(np.float32)


def regions(seed: int, number: int, size: int = SIZE) -> np.ndarray:
    """Random features (S, F)."""
    return np.random.default_rng(seed).normal(size=(number, size)).astype(np.float32)


def mixed_rows() -> list[dict[str, Any]]:
    """Four examples, each source absent in two of them and three in the last."""
    return [
        {"en": TEXTS[0], "image": picture(0), "speech": recording(0, 9), "regions": regions(0, 2)},
        {"en": None, "image": picture(1), "speech": None, "regions": regions(1, 5)},
        {"en": TEXTS[1], "image": None, "speech": recording(2, 4), "regions": None},
        {"en": None, "image": None, "speech": None, "regions": regions(3, 1)},
    ]


def wav_bytes(samples: list[int], rate: int = RATE, channels: int = 1) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.array(samples, "<i2").tobytes())
    return stream.getvalue()
