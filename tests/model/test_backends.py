"""The same model under other attention implementations, compiled, exported, on other devices and in other types."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import infer_auto_device_map
from torch import Tensor
from transformers import AttentionInterface, CompileConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from builders import EVERY_COMBINER, LSTM, one_by_default, three_source_batch, three_source_model
from hf_multisource.attention import MultiHeadAttention, eager_attention_forward
from hf_multisource.modeling_sources import MultiSourceEncoderOutput

TARGET = torch.tensor([[2, 5, 6, 7], [2, 7, 1, 0], [2, 8, 9, 4]])

each_combiner = pytest.mark.parametrize("combiner", EVERY_COMBINER)
of_both_families = pytest.mark.parametrize("combiner", [*EVERY_COMBINER, LSTM])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


def inputs() -> dict[str, Tensor]:
    """Three examples of three sources, one without source 0, and a target."""
    return {**three_source_batch(examples=range(3)), "decoder_input_ids": TARGET}


def same(actual: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.feature("Model", "Any attention function of AttentionInterface")
@pytest.mark.feature("Model", "set_attn_implementation reaches every encoder")
@each_combiner
def test_an_attention_function_of_ones_own_serves_every_attention(combiner: str) -> None:
    calls: Counter[Any] = Counter()

    def counting(module: Any, *args: Any, **kwargs: Any) -> Any:
        calls[module] += 1
        return eager_attention_forward(module, *args, **kwargs)

    AttentionInterface.register("counting", counting)
    AttentionMaskInterface.register("counting", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    model = three_source_model(combiner)
    expected = model(**inputs()).logits
    model.set_attn_implementation("counting")
    same(model(**inputs()).logits, expected)
    # the second level of the hierarchy is no attention over states
    attentions = {m for n, m in model.named_modules() if isinstance(m, MultiHeadAttention) and "hierarchy" not in n}
    assert calls == Counter(dict.fromkeys(attentions, 1))
    assert {n.split(".")[3] for n, m in model.model.encoder.named_modules(prefix="model.encoder") if m in calls} == {
        "en",
        "de",
        "fr",
    }


@pytest.mark.slow  # the kernels are compiled first, by a C++ compiler
@pytest.mark.feature("Model", "FlexAttention (on CPUs: without gradients)")
@each_combiner
def test_flex_attention_agrees_with_eager(combiner: str) -> None:
    model = three_source_model(combiner)
    with torch.no_grad():
        expected = model(**inputs()).logits
        model.set_attn_implementation("flex_attention")
        same(model(**inputs()).logits, expected)


@pytest.mark.feature("Model", "FlashAttention is refused, since its padding rule is for queries as long as the keys")
@each_combiner
def test_flash_attention_is_refused(combiner: str) -> None:
    model = three_source_model(combiner)
    with pytest.raises(ValueError, match=r"(?i)does not support flash attention"):
        model.set_attn_implementation("flash_attention_2")


def test_a_mask_of_two_dimensions_reaches_an_attention_function_as_it_is() -> None:
    seen: list[Any] = []

    def noting(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any) -> Any:
        seen.append(attention_mask)
        mask = None if attention_mask is None else attention_mask[:, None, None, :]
        return eager_attention_forward(module, query, key, value, mask, **kwargs)

    AttentionInterface.register("noting", noting)
    AttentionMaskInterface.register("noting", lambda *args, attention_mask=None, **kwargs: attention_mask)
    model = three_source_model("serial")
    model.set_attn_implementation("noting")
    with torch.no_grad():
        model(**inputs())
    masks = [mask for mask in seen if mask is not None]
    assert masks and all(mask.dtype == torch.bool and mask.dim() == 2 for mask in masks)


@pytest.mark.feature("Model", "torch.compile, whole graph")
@pytest.mark.parametrize("combiner", one_by_default("flat"))
def test_forward_compiles_into_one_graph(combiner: str) -> None:
    model = three_source_model(combiner, decoder_layers=1)
    with torch.no_grad():
        expected = model(**inputs(), use_cache=False).logits
        compiled: Any = torch.compile(model, fullgraph=True, backend="eager")
        same(compiled(**inputs(), use_cache=False).logits, expected)


@pytest.mark.feature("Model", "torch.compile, whole graph")
@pytest.mark.parametrize("combiner", one_by_default("hierarchical"))
def test_a_training_step_compiles_into_one_graph(combiner: str) -> None:
    model = three_source_model(combiner, decoder_layers=1, label_smoothing=0.1).train()
    given = {**inputs(), "labels": TARGET.masked_fill(TARGET == 0, -100), "skip_logits": True}
    model(**given).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(**given).loss.backward()
    for name, gradient in expected.items():
        same(model.get_parameter(name).grad, gradient)


@pytest.mark.feature("Generation", "torch.compile, whole graph, with a static cache")
@pytest.mark.parametrize("combiner", one_by_default("parallel"))
def test_a_step_of_generate_compiles_into_one_graph(combiner: str) -> None:
    model = three_source_model(combiner, decoder_layers=1)
    assert model._can_compile_fullgraph
    options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"}
    compiled: Any = CompileConfig(fullgraph=True, backend="eager", mode="default")
    compiled._compile_all_devices = True  # otherwise Transformers compiles on accelerators alone
    expected = model.generate(**three_source_batch(), **options)
    assert torch.equal(model.generate(**three_source_batch(), **options, compile_config=compiled), expected)
    assert hasattr(model, "_compiled_call")


class Encode(torch.nn.Module):
    """The encoder with a signature that names every source: export wants shapes by argument."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, en: Tensor, en_mask: Tensor, de: Tensor, de_mask: Tensor, fr: Tensor, fr_mask: Tensor) -> Any:
        sources = {"de_input_ids": de, "de_attention_mask": de_mask, "fr_input_ids": fr, "fr_attention_mask": fr_mask}
        encoded = self.model.get_encoder()(input_ids=en, attention_mask=en_mask, **sources)
        return encoded.last_hidden_state, encoded.attention_mask


class Step(torch.nn.Module):
    """The decoder on encoded sources of given lengths."""

    def __init__(self, model: Any, lengths: tuple[int, ...]) -> None:
        super().__init__()
        self.model = model
        self.lengths = lengths

    def forward(self, ids: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        encoded = MultiSourceEncoderOutput(last_hidden_state=states, attention_mask=mask, source_lengths=self.lengths)
        return self.model(decoder_input_ids=ids, encoder_outputs=encoded, use_cache=False).logits


@pytest.mark.feature("Model", "torch.export of the encoder and of a decoder step")
@pytest.mark.parametrize("combiner", one_by_default("serial"))
def test_encoder_and_decoder_export_and_take_any_batch_and_length(combiner: str) -> None:
    model = three_source_model(combiner, decoder_layers=1)
    batch, others = three_source_batch(examples=range(3)), three_source_batch(examples=[1, 2, 3, 4])
    size, target = torch.export.Dim("batch", min=2), torch.export.Dim("target", min=2)
    lengths = [torch.export.Dim(name, min=2) for name in ("en", "de", "fr") for _ in range(2)]
    lengths[1::2] = lengths[::2]
    with torch.no_grad():
        encode = Encode(model)
        shapes = tuple({0: size, 1: length} for length in lengths)
        exported = torch.export.export(encode, tuple(batch.values()), dynamic_shapes=shapes, strict=False).module()
        for given in (batch, others):
            torch.testing.assert_close(exported(*given.values()), encode(*given.values()))

        encoded = model.get_encoder()(**batch)
        step = Step(model, encoded.source_lengths)
        inputs = (TARGET, encoded.last_hidden_state, encoded.attention_mask)
        shapes = ({0: size, 1: target}, {0: size}, {0: size})
        exported = torch.export.export(step, inputs, dynamic_shapes=shapes, strict=False).module()
        fewer = [2, 0]
        same(exported(TARGET[fewer, :3], *(tensor[fewer] for tensor in inputs[1:])), step(*inputs)[fewer, :3])


@pytest.mark.feature("Model", "float16 and bfloat16")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@of_both_families
def test_half_precision_is_close_and_loads_and_generates(combiner: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = three_source_model(combiner)
    expected = model(**inputs()).logits
    model.save_pretrained(tmp_path)
    half: Any = type(model).from_pretrained(tmp_path, dtype=dtype)
    assert {p.dtype for p in half.parameters()} == {dtype}
    actual = half(**inputs()).logits
    assert actual.dtype == dtype and actual.isfinite().all()
    spread = expected[..., 3:].std().item()
    assert (actual.float() - expected)[..., 3:].abs().mean().item() < 0.05 * spread
    texts = half.generate(**three_source_batch(), num_beams=4, max_new_tokens=5)
    assert texts.shape[0] == 5 and texts.max() < 16


@pytest.mark.feature("Model", "device_map, with parts offloaded to disk")
@pytest.mark.parametrize("num_beams", [1, 4])
@of_both_families
def test_a_model_of_which_parts_lie_on_disk_generates_the_same(combiner: str, num_beams: int, tmp_path: Path) -> None:
    model = three_source_model(combiner)
    search = {"num_beams": num_beams, "max_new_tokens": 6, "do_sample": False}
    expected = model.generate(**three_source_batch(), **search)
    model.save_pretrained(tmp_path / "saved")
    places = {
        "model.encoder.sources.en": "cpu",
        "model.encoder.sources.de": "disk",
        "model.encoder.sources.fr": "cpu",
        **({"model.encoder.combination": "disk"} if combiner == LSTM else {}),
        "model.decoder": "cpu",
        "lm_head": "disk",
        "final_logits_bias": "cpu",
    }
    parts = type(model).from_pretrained(tmp_path / "saved", device_map=places, offload_folder=tmp_path / "offload")
    assert next(parts.model.encoder.sources["de"].parameters()).device.type == "meta"
    assert torch.equal(parts.generate(**three_source_batch(), **search), expected)


@pytest.mark.feature("Model", 'device_map="auto" splits between whole layers')
@each_combiner
def test_no_layer_is_split_between_devices(combiner: str) -> None:
    model = three_source_model(combiner)
    layers = [n for n, m in model.named_modules() if type(m).__name__ in model._no_split_modules]
    assert len(layers) == 3 + 2
    total = sum(p.numel() * 4 for p in model.parameters())
    places = infer_auto_device_map(
        model, max_memory={0: total // 2, "cpu": 10 * total}, no_split_module_classes=model._no_split_modules
    )
    assert set(places.values()) == {0, "cpu"}
    assert not [place for place in places for layer in layers if place.startswith(f"{layer}.")]
