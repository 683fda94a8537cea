from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BitsAndBytesConfig, TorchAoConfig, ViTConfig
from transformers.quantizers import quantizer_bnb_4bit, quantizer_bnb_8bit

from builders import EVERY_COMBINER, three_source_batch, three_source_model, tiny_config
from hf_multisource import MultiSourceForConditionalGeneration

pytestmark = [pytest.mark.pairs, pytest.mark.quantized]

DECODER_IDS = torch.tensor([[2, 4, 5, 6], [2, 7, 8, 9], [2, 10, 11, 12], [2, 13, 14, 15], [2, 5, 4, 7]])
SIZES: dict[str, Any] = {
    "d_model": 64,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "initializer": "normal",
    "init_std": 0.1,
}
TORCHAO = {"weights": "Int8WeightOnlyConfig", "weights and activations": "Int8DynamicActivationInt8WeightConfig"}
BITSANDBYTES = {
    "8 bits": BitsAndBytesConfig(load_in_8bit=True),
    "4 bits": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
}
FARTHEST = {"weights": 0.02, "weights and activations": 0.02, "8 bits": 0.05, "4 bits": 0.3}
"""Distance of the logits from those of float32."""


def settings_of(what: str) -> Any:
    """The settings of one kind; those of torchao need the package, which not every environment has."""
    if what in BITSANDBYTES:
        return BITSANDBYTES[what]
    return TorchAoConfig(getattr(import_module("torchao.quantization"), TORCHAO[what])())


def quantized(model: Any, folder: Path, what: str) -> Any:
    model.save_pretrained(folder)
    return MultiSourceForConditionalGeneration.from_pretrained(
        folder, quantization_config=settings_of(what), dtype=torch.float32, device_map="cpu"
    )


def plain_model(combiner: str) -> Any:
    """A model with the weights that training begins with: numbers as in real models, unlike those of other tests."""
    torch.manual_seed(0)
    return MultiSourceForConditionalGeneration(three_source_model(combiner, **SIZES).config).eval()


def distance(model: Any, other: Any, **inputs: torch.Tensor) -> float:
    """Of the logits, relative to their spread."""
    inputs = inputs or {**three_source_batch(), "decoder_input_ids": DECODER_IDS}
    with torch.no_grad():
        one, two = model(**inputs).logits, other(**inputs).logits
    return float((one - two).norm() / one.norm())


def generate(model: Any, num_beams: int) -> torch.Tensor:
    ids: torch.Tensor = model.generate(**three_source_batch(), num_beams=num_beams, max_new_tokens=6)
    return ids


@pytest.mark.feature("Model", "int8 inference with torchao (CPU)")
@pytest.mark.parametrize("what", TORCHAO)
@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_int8_stays_near_float32_and_generates(combiner: str, num_beams: int, what: str, tmp_path: Path) -> None:
    model = plain_model(combiner)
    small = quantized(model, tmp_path, what)
    layers = {name for name, module in small.named_modules() if isinstance(module, torch.nn.Linear)} - {"lm_head"}
    integers = {name for name in layers if "Int8" in type(small.get_submodule(name).weight.data).__name__}
    assert integers == layers and any("cross_attn" in name for name in layers)
    assert 0 < distance(model, small) < FARTHEST[what]
    ids, expected = generate(small, num_beams), generate(model, num_beams)
    assert ids.shape[0] == 5
    assert (ids[:, 1] == expected[:, 1]).float().mean() >= 0.8, "what is said differs at most where it was a near tie"


@pytest.mark.feature("Model", "bitsandbytes, 8 and 4 bits")
@pytest.mark.parametrize("bits", BITSANDBYTES)
@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_bitsandbytes_stays_near_float32_and_generates(combiner: str, bits: str, tmp_path: Path) -> None:
    model = plain_model(combiner)
    small = quantized(model, tmp_path, bits)
    assert {p.dtype for name, p in small.named_parameters() if name.endswith("q_proj.weight")} <= {
        torch.int8,
        torch.uint8,
    }
    assert 0 < distance(model, small) < FARTHEST[bits]
    assert generate(small, num_beams=4).shape[0] == 5


TEXT = {"input_ids": DECODER_IDS[:3, 1:], "decoder_input_ids": DECODER_IDS[:3]}


def mixed_model() -> Any:
    """Text, features and a wrapped encoder, of widths that a block of 4-bit weights divides."""
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    vit = ViTConfig(image_size=8, patch_size=4, num_attention_heads=2, **sizes)
    regions = {"name": "regions", "kind": "features", "feature_size": 64}
    image = {"name": "image", "kind": "pretrained", "encoder": vit, "projection": True}
    torch.manual_seed(0)
    return MultiSourceForConditionalGeneration(tiny_config("serial", ["en", regions, image], **SIZES)).eval()


def beside_text(*present: int) -> dict[str, torch.Tensor]:
    """Features (1), a picture (2), both (3) or neither (0) for every example."""
    generator, there = torch.Generator().manual_seed(1), torch.tensor(present)[:, None]
    return {
        "regions_input_features": torch.randn(3, 5, 64, generator=generator),
        "regions_attention_mask": there.expand(3, 5) % 2,
        "image_pixel_values": torch.randn(3, 3, 8, 8, generator=generator),
        "image_attention_mask": there // 2,
    }


@pytest.mark.parametrize("what", FARTHEST)
def test_features_and_wrapped_encoders_may_be_absent_from_a_quantized_model(what: str, tmp_path: Path) -> None:
    model = mixed_model()
    small = quantized(model, tmp_path, what)
    parts = small.get_encoder().sources
    for layer in (parts["regions"].projection, parts["image"].projection, parts["image"].model.layers[0].mlp.fc1):
        assert type(layer) is not torch.nn.Linear or type(layer.weight.data) is not torch.Tensor
    for present in ((3, 3, 3), (0, 1, 2), (1, 1, 1), (2, 2, 2), (0, 0, 0)):
        assert 0 < distance(model, small, **TEXT, **beside_text(*present)) < FARTHEST[what], present
    with torch.no_grad():
        none, one = (small(**TEXT, **beside_text(0, number, 0)).logits for number in (0, 3))
    torch.testing.assert_close(one[[0, 2]], none[[0, 2]], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(one[1], none[1], atol=1e-2)
    ids = small.generate(TEXT["input_ids"], **beside_text(0, 1, 2), num_beams=2, max_new_tokens=4)
    assert ids.shape[0] == 3


@pytest.mark.parametrize("what", FARTHEST)
def test_absent_is_left_out_in_a_quantized_model(what: str, tmp_path: Path) -> None:
    small = quantized(mixed_model(), tmp_path, what)
    with torch.no_grad():
        absent, left_out = small(**TEXT, **beside_text(0, 0, 0)).logits, small(**TEXT).logits
    torch.testing.assert_close(absent, left_out, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", BITSANDBYTES)
def test_nothing_but_the_package_is_lacking_for_bitsandbytes(
    bits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (quantizer_bnb_4bit, quantizer_bnb_8bit):
        monkeypatch.setattr(module, "is_bitsandbytes_available", lambda: False)
    with pytest.raises(ImportError, match="requires bitsandbytes"):
        quantized(plain_model("serial"), tmp_path, bits)
