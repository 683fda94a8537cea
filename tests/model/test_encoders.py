"""Encoders of all kinds of sources: what they compute, what of it is real, and that absent sources leave no trace."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BertConfig,
    HubertConfig,
    MarianConfig,
    PreTrainedConfig,
    ResNetConfig,
    Siglip2VisionConfig,
    Speech2TextConfig,
    T5Config,
    TimmWrapperConfig,
    ViTConfig,
    Wav2Vec2Config,
    WhisperConfig,
)

from builders import SMALL, randomize, tiny_config
from hf_multisource import COMBINERS, MultiSourceConfig, MultiSourceForConditionalGeneration
from hf_multisource.encoders import flatten_map, flatten_states, output_width

pytestmark = pytest.mark.pairs

HALF: dict[str, Any] = {
    "d_model": 12,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 16,
    "vocab_size": 30,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
SPEECH: dict[str, Any] = {
    **SMALL,
    "conv_dim": (8, 8),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "apply_spec_augment": False,
}
WRAPPED: dict[str, PreTrainedConfig] = {
    "bert": BertConfig(vocab_size=30, **SMALL),
    "t5": T5Config(vocab_size=30, d_model=12, d_kv=6, d_ff=16, num_layers=1, num_heads=2),
    "bart": BartConfig(**HALF),
    "marian": MarianConfig(**HALF),
    "vit": ViTConfig(image_size=8, patch_size=4, **SMALL),
    "resnet": ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic"),
    "timm": TimmWrapperConfig(architecture="test_resnet"),
    "wav2vec2": Wav2Vec2Config(**SPEECH),
    "hubert": HubertConfig(**SPEECH),
    "whisper": WhisperConfig(**HALF, num_mel_bins=8, max_source_positions=10),
    "speech2text": Speech2TextConfig(**HALF, input_feat_per_channel=8, conv_channels=8),
}
MASKED = {"whisper": 20, "speech2text": 20, "wav2vec2": 60, "hubert": 60}
"""Inputs a row, of models that shorten them."""
every_wrapped = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.vision] if kind == "timm" else []) for kind in WRAPPED]
)


def wrapped_source(kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": "x", "kind": "pretrained", "encoder": WRAPPED[kind], **fields}


def inputs_of(kind: str, rows: int = 3) -> dict[str, Tensor]:
    """Bare inputs of a wrapped model, row i with i in four of them padding where it knows padding."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(rows, *shape, generator=generator)

    if kind in MASKED:
        length = MASKED[kind]
        mask = torch.arange(length) < torch.tensor([[length - length // 4 * (i % 3)] for i in range(rows)])
        data = {"whisper": (8, length), "speech2text": (length, 8)}.get(kind, (length,))
        key = "input_features" if len(data) == 2 else "input_values"
        return {key: draw(*data), "attention_mask": mask.long()}
    if kind in ("vit", "resnet", "timm"):
        size = 32 if kind == "timm" else 8
        return {"pixel_values": draw(3, size, size), "attention_mask": torch.ones(rows, 1, dtype=torch.long)}
    mask = torch.arange(6) < torch.tensor([[6 - 2 * (i % 3)] for i in range(rows)])
    return {"input_ids": torch.randint(3, 30, (rows, 6), generator=generator) * mask, "attention_mask": mask.long()}


def prefixed(inputs: dict[str, Tensor], name: str = "x") -> dict[str, Tensor]:
    return {f"{name}_{key}": value for key, value in inputs.items()}


TEXT = {"input_ids": torch.tensor([[3, 4, 1], [5, 1, 0], [6, 7, 1]]), "labels": torch.tensor([[3, 1], [4, 1], [5, 1]])}


def make(combiner: str, *sources: Any, **fields: Any) -> Any:
    """A random model; Any, since Transformers' types let no class of others call `generate`."""
    model = MultiSourceForConditionalGeneration(tiny_config(combiner, list(sources), **fields)).eval()
    randomize(model, 3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.abs_().add_(0.5)
    return model


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


# What they compute


@every_wrapped
def test_a_pretrained_source_is_the_wrapped_models_last_state_mapped_to_d(kind: str) -> None:
    model = make("serial", "en", wrapped_source(kind))
    encoder, inputs = model.model.encoder.sources["x"], inputs_of(kind)
    output = model.get_encoder().encode_source("x", **prefixed(inputs))
    given = {key: value for key, value in inputs.items() if key != "attention_mask" or kind not in ("vit", "resnet")}
    if kind == "timm":
        given = {"pixel_values": inputs["pixel_values"]}
    states = encoder.model(**given).last_hidden_state
    if states.dim() == 4:  # place (r, c) of the map is state r W + c
        rows, columns = states.shape[2:]
        states = torch.stack([states[:, :, r, c] for r in range(rows) for c in range(columns)], dim=1)
    expected = states @ encoder.projection.weight.T + encoder.projection.bias
    close(output.last_hidden_state, encoder.layer_norm(expected))
    assert output.last_hidden_state.shape[:2] == output.attention_mask.shape


def test_a_wrapped_model_of_width_d_is_not_mapped_and_the_norm_can_be_left_out() -> None:
    model = make("serial", wrapped_source("vit", norm=False), d_model=12)
    encoder, inputs = model.model.encoder.sources["x"], inputs_of("vit")
    assert encoder.projection is None and encoder.layer_norm is None
    close(model.get_encoder()(**inputs).last_hidden_state, encoder.model(inputs["pixel_values"]).last_hidden_state)
    mapped = make("serial", wrapped_source("vit", norm=False, projection=True), d_model=12)
    encoder = mapped.model.encoder.sources["x"]
    states = encoder.model(inputs["pixel_values"]).last_hidden_state
    expected = states @ encoder.projection.weight.T + encoder.projection.bias
    close(mapped.get_encoder()(**inputs).last_hidden_state, expected)
    with pytest.raises(ValueError, match=r"\[x\].projection must not be False: a ViTModel makes states of 12, .* is 8"):
        make("serial", wrapped_source("vit", projection=False), d_model=8)


def convolved(length: int, kernels: tuple[int, ...], strides: tuple[int, ...], padding: int = 0) -> int:
    """Positions that convolutions leave of a length, counted one by one."""
    for kernel, stride in zip(kernels, strides, strict=True):
        starts = range(-padding, length + padding - kernel + 1, stride)
        length = len(starts)
    return length


@pytest.mark.parametrize("kind", MASKED)
def test_the_mask_of_speech_states_equals_a_plain_loop(kind: str) -> None:
    inputs = inputs_of(kind)
    kernels, strides, padding = {
        "wav2vec2": ((10, 3), (5, 2), 0),
        "hubert": ((10, 3), (5, 2), 0),
        "speech2text": ((5, 5), (2, 2), 2),
        "whisper": ((3,), (2,), 1),
    }[kind]
    lengths = [convolved(int(row.sum()), kernels, strides, padding) for row in inputs["attention_mask"]]
    assert len(set(lengths)) == 3
    output = make("serial", "en", wrapped_source(kind)).get_encoder().encode_source("x", **prefixed(inputs))
    total = output.attention_mask.shape[1]
    assert total == convolved(MASKED[kind], kernels, strides, padding)
    expected = [[j < length for j in range(total)] for length in lengths]
    assert output.attention_mask.tolist() == expected


@pytest.mark.parametrize("kind", MASKED)
def test_speech_without_a_mask_is_real_from_beginning_to_end(kind: str) -> None:
    model, inputs = make("serial", "en", wrapped_source(kind)), inputs_of(kind)
    mask = torch.ones_like(inputs.pop("attention_mask"))
    expected = model.get_encoder().encode_source("x", **prefixed({**inputs, "attention_mask": mask}))
    for given in (inputs, {**inputs, "attention_mask": torch.ones(3, 1, dtype=torch.long)}):
        output = model.get_encoder().encode_source("x", **prefixed(given))
        close(output.last_hidden_state, expected.last_hidden_state)
        assert output.attention_mask.all() and output.attention_mask.shape == expected.attention_mask.shape


def test_a_map_may_have_its_features_last() -> None:
    states = torch.randn(2, 3, 5, 12)
    assert torch.equal(flatten_states(states, 12), states.reshape(2, 15, 12))
    assert torch.equal(flatten_states(states.permute(0, 3, 1, 2), 12), states.reshape(2, 15, 12))
    encoder = make("serial", "en", wrapped_source("vit")).model.encoder.sources["x"]
    encoder.width = 7
    with pytest.raises(ValueError, match="source 'x': expected states of width 7 from a ViTModel; got width 12"):
        encoder(**inputs_of("vit"))


def test_a_mask_that_fits_no_states_is_refused() -> None:
    model = make("serial", "en", wrapped_source("vit"))
    inputs = {**inputs_of("vit"), "attention_mask": torch.ones(3, 7)}
    with pytest.raises(ValueError, match="7 inputs cannot be matched with 5 states of ViTModel"):
        model.get_encoder()(**prefixed(inputs))


@pytest.mark.parametrize("position_embedding", ["none", "sinusoidal", "learned"])
def test_features_are_mapped_placed_and_normalized(position_embedding: str) -> None:
    source = {"name": "x", "kind": "features", "feature_size": 5, "position_embedding": position_embedding}
    encoder = make("serial", source).model.encoder.sources["x"]
    features, mask = torch.randn(2, 4, 5), torch.tensor([[True] * 4, [True, True, False, False]])
    states = features @ encoder.projection.weight.T + encoder.projection.bias
    if position_embedding != "none":
        states = states + encoder.positions(0, 4, states.device)
    junk = features.masked_fill(~mask[..., None], float("nan"))  # what is not real is never read
    output = encoder(input_features=junk, attention_mask=mask)
    assert torch.equal(output.attention_mask, mask)
    close(output.last_hidden_state[mask], encoder.layer_norm(states)[mask])
    assert output.last_hidden_state.isfinite().all()


def test_features_can_have_layers_of_their_own() -> None:
    source = {"name": "x", "kind": "features", "feature_size": 5, "layers": 2}
    encoder = make("serial", source).model.encoder.sources["x"]
    features, mask = torch.randn(2, 4, 5), torch.tensor([[True] * 4, [True, True, False, False]])
    states = encoder.projection(features)
    for layer in encoder.layers:
        states = torch.cat([layer(states[:1], None), torch.cat([layer(states[1:, :2], None), states[1:, 2:]], 1)])
    expected = encoder.layer_norm(states)
    close(encoder(input_features=features, attention_mask=mask).last_hidden_state[mask], expected[mask])


def test_a_map_is_the_sequence_of_its_places_row_by_row() -> None:
    model = make("flat", "en", {"name": "x", "kind": "features", "feature_size": 5})
    maps = torch.randn(3, 5, 2, 3)
    rows = torch.stack([maps[:, :, r, c] for r in range(2) for c in range(3)], dim=1)
    assert torch.equal(flatten_map(maps), rows) and torch.equal(flatten_map(rows), rows)
    expected = model(**TEXT, x_input_features=rows, x_attention_mask=torch.ones(3, 6)).logits
    close(model(**TEXT, x_input_features=maps, x_attention_mask=torch.ones(3, 1)).logits, expected)
    close(model(**TEXT, x_input_features=maps).logits, expected)


def test_what_is_no_sequence_is_refused() -> None:
    model = make("serial", {"name": "x", "kind": "features", "feature_size": 5})
    with pytest.raises(ValueError, match=r"must be a sequence \(B, S, F\) or a map \(B, F, H, W\); got \(3, 5\)"):
        model.get_encoder()(input_features=torch.zeros(3, 5))
    with pytest.raises(ValueError, match=r"feature_size is 5; got vectors of 4, in .* shape \(3, 2, 4\)"):
        model.get_encoder()(input_features=torch.zeros(3, 2, 4))


def test_the_paper_has_no_norm_no_dropout_and_no_positions_after_a_map() -> None:
    sources = ["en", {"name": "image", "kind": "features", "feature_size": 5}]
    config = MultiSourceConfig.paper(sources=sources, d_model=8, decoder_layers=1, encoder_layers=1)
    encoder: Any = MultiSourceForConditionalGeneration(config).model.encoder.sources["image"]
    assert [name for name, _ in encoder.named_parameters()] == ["projection.weight", "projection.bias"]
    features = torch.randn(1, 3, 5)
    expected = features @ encoder.projection.weight.T + encoder.projection.bias
    close(encoder.eval()(input_features=features).last_hidden_state, expected)
    close(encoder.train()(input_features=features).last_hidden_state, expected)


# Absent == left out


MODALITIES: dict[str, Any] = {
    "text": ("x", lambda: {"input_ids": TEXT["input_ids"], "attention_mask": TEXT["input_ids"].ne(0).long()}),
    "features": (
        {"name": "x", "kind": "features", "feature_size": 5},
        lambda: {"input_features": torch.randn(3, 4, 5), "attention_mask": torch.ones(3, 4, dtype=torch.long)},
    ),
    "map": (
        {"name": "x", "kind": "features", "feature_size": 5},
        lambda: {"input_features": torch.randn(3, 5, 2, 2), "attention_mask": torch.ones(3, 1, dtype=torch.long)},
    ),
    **{
        kind: (wrapped_source(kind), lambda kind=kind: inputs_of(kind))
        for kind in ("bert", "vit", "resnet", "wav2vec2")
    },
}


def trained(model: Any, **inputs: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Loss, gradients and buffers after one step backwards in training mode."""
    model.train().zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    return loss.detach(), gradients, {name: buffer.clone() for name, buffer in model.named_buffers()}


@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize(("combiner", "norm_position"), list(itertools.product(COMBINERS, ["pre", "post"])))
def test_absent_source_of_any_kind_equals_source_left_out(modality: str, combiner: str, norm_position: str) -> None:
    source, draw = MODALITIES[modality]
    torch.manual_seed(0)
    inputs = draw()
    model = make(combiner, "en", source, norm_position=norm_position)
    for gone in ([0, 1, 2], [1]):
        mask = inputs["attention_mask"].clone()
        mask[gone] = 0
        given = prefixed({**inputs, "attention_mask": mask})
        stays = [i for i in range(3) if i not in gone]
        alone = model.eval()(**TEXT).logits
        both = model(**TEXT, **given).logits
        close(both[gone], alone[gone])
        if stays:
            whole = model(**TEXT, **prefixed(inputs)).logits
            close(both[stays], whole[stays])
            assert not torch.allclose(both[stays], alone[stays])

    state = {name: value.clone() for name, value in model.state_dict().items()}
    expected = trained(model, **TEXT)
    model.load_state_dict(state)
    nothing = torch.zeros_like(inputs["attention_mask"])
    loss, gradients, buffers = trained(model, **TEXT, **prefixed({**inputs, "attention_mask": nothing}))
    close(loss, expected[0])
    assert gradients.keys() == expected[1].keys()
    for found, wanted in ((gradients, expected[1]), (buffers, expected[2])):
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_examples_without_a_picture_leave_no_trace_in_batch_statistics() -> None:
    model, inputs = make("serial", "en", wrapped_source("resnet")), inputs_of("resnet")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    mask = torch.tensor([[1], [0], [1]])
    mixed = trained(model, **TEXT, x_pixel_values=inputs["pixel_values"], x_attention_mask=mask)
    model.load_state_dict(state)
    junk = inputs["pixel_values"].clone()
    junk[1] = 1000.0
    other = trained(model, **TEXT, x_pixel_values=junk, x_attention_mask=mask)
    model.load_state_dict(state)
    encoder = model.model.encoder.sources["x"].train()
    encoder.model(inputs["pixel_values"][[0, 2]])  # what two pictures alone leave
    alone = {f"model.encoder.sources.x.{name}": value for name, value in encoder.named_buffers()}
    assert any("running_mean" in name for name in alone)
    for name, value in alone.items():
        close(mixed[2][name], value)
        close(other[2][name], value)
    close(mixed[0], other[0])


@pytest.mark.parametrize("kind", ["vit", "wav2vec2", "bert"])
def test_every_parameter_has_a_gradient_where_no_example_has_the_source(kind: str) -> None:
    model, inputs = make("serial", "en", wrapped_source(kind)), inputs_of(kind)
    nothing = torch.zeros_like(inputs["attention_mask"])
    model.train()(**TEXT, **prefixed({**inputs, "attention_mask": nothing})).loss.backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.model.encoder.sources["x"].parameters())


@pytest.mark.parametrize("kind", ["vit", "features"])
def test_parameters_have_gradients_where_the_collator_has_nothing_to_give(kind: str) -> None:
    source = {"name": "x", "kind": "features", "feature_size": 5} if kind == "features" else wrapped_source(kind)
    model = make("serial", "en", source)
    key = "x_input_features" if kind == "features" else "x_pixel_values"
    expected = trained(model, **TEXT)
    found = trained(model, **TEXT, **{key: torch.zeros(3, 0), "x_attention_mask": torch.zeros(3, 0)})
    close(found[0], expected[0])
    assert found[1].keys() == expected[1].keys()
    assert all(p.grad is not None and not p.grad.any() for p in model.model.encoder.sources["x"].parameters())
    assert (
        model.eval()(**TEXT, **{key: torch.zeros(3, 0), "x_attention_mask": torch.zeros(3, 0)}).logits.isfinite().all()
    )


# One encoder for several sources


def counted(encoder: Any) -> list[int]:
    """The batch sizes of an encoder's calls, as they come."""
    calls: list[int] = []
    encoder.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(len(next(iter(kwargs.values())))), with_kwargs=True
    )
    return calls


def test_source_embeddings_are_added_to_the_embedded_tokens() -> None:
    model = make("serial", "en", {"name": "de", "share_encoder_with": "en"}, "fr", source_embeddings=True)
    encoder = model.get_encoder()
    vectors = {name: module.bias for name, module in encoder.source_embeddings.items()}
    assert {name: tuple(vector.shape) for name, vector in vectors.items()} == {"en": (8,), "de": (8,), "fr": (8,)}
    assert all(vector.any() for vector in vectors.values())
    ids = TEXT["input_ids"]
    for name, owner in (("en", "en"), ("de", "en"), ("fr", "fr")):
        prefix = "" if name == "en" else f"{name}_"
        found = encoder.encode_source(name, **{f"{prefix}input_ids": ids}).last_hidden_state
        embedded = encoder.sources[owner].embeddings.tokens(ids) + vectors[name]
        with torch.no_grad():
            layers = encoder.sources[owner].run_layers(
                encoder.sources[owner].embeddings(None, embedded), encoder.sources[owner].input_mask(input_ids=ids)
            )
        close(found[ids != 0], layers.last_hidden_state[ids != 0])
        given = encoder.encode_source(
            name,
            **{
                f"{prefix}inputs_embeds": encoder.sources[owner].embeddings.tokens(ids),
                f"{prefix}attention_mask": ids != 0,
            },
        )
        close(found[ids != 0], given.last_hidden_state[ids != 0])


def test_source_embeddings_begin_at_0_and_only_texts_have_them() -> None:
    sources = ["en", wrapped_source("vit"), "fr"]
    model: Any = MultiSourceForConditionalGeneration(tiny_config("serial", sources, source_embeddings=True))
    vectors = model.get_encoder().source_embeddings
    assert list(vectors) == ["en", "fr"]
    assert not any(module.bias.any() for module in vectors.values())


@pytest.mark.parametrize("fields", [{}, {"source_embeddings": True}], ids=["plain", "source_embeddings"])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_sources_that_share_an_encoder_are_encoded_in_one_call(combiner: str, fields: dict[str, Any]) -> None:
    model = make(
        combiner,
        "en",
        {"name": "de", "share_encoder_with": "en"},
        {"name": "fr", "share_encoder_with": "en"},
        **fields,
    )
    calls = counted(model.model.encoder.sources["en"])
    others = {
        "de_input_ids": torch.tensor([[8, 1], [0, 0], [9, 1]]),
        "fr_input_ids": torch.tensor([[5, 3, 4, 2, 1]] * 3),
    }
    joined = model.get_encoder()(input_ids=TEXT["input_ids"], **others)
    assert calls == [9] and joined.source_lengths == (3, 2, 5)
    logits = model(**TEXT, **others).logits
    alone = [
        model.get_encoder().encode_source(name, input_ids=TEXT["input_ids"], **others) for name in ("en", "de", "fr")
    ]
    assert calls == [9, 9, 3, 3, 3]
    real = joined.attention_mask
    close(joined.last_hidden_state[real], torch.cat([one.last_hidden_state for one in alone], dim=1)[real])
    assert torch.equal(real, torch.cat([one.attention_mask for one in alone], dim=1))
    row = {key: value[1:2] for key, value in {**TEXT, **others}.items()}
    close(logits[1:2], model(**row).logits)


def test_pictures_that_share_a_network_are_encoded_in_one_call() -> None:
    model = make("serial", "en", wrapped_source("vit"), {"name": "y", "kind": "pretrained", "share_encoder_with": "x"})
    calls = counted(model.model.encoder.sources["x"])
    first, second = inputs_of("vit"), inputs_of("vit")
    second = {"pixel_values": second["pixel_values"] + 1, "attention_mask": torch.tensor([[1], [0], [1]])}
    joined = model.get_encoder()(input_ids=TEXT["input_ids"], **prefixed(first), **prefixed(second, "y"))
    assert calls == [6] and joined.source_lengths == (3, 5, 5)
    apart = model.get_encoder()(input_ids=TEXT["input_ids"], **prefixed(second))
    close(joined.last_hidden_state[:, 8:], apart.last_hidden_state[:, 3:])


# Frozen


@pytest.mark.parametrize("kind", ["bert", "resnet"])
def test_a_frozen_model_is_not_trained_and_stays_in_evaluation_mode(kind: str, tmp_path: Path) -> None:
    model = make("serial", "en", wrapped_source(kind, freeze=True))
    model.save_pretrained(tmp_path)
    loaded: Any = MultiSourceForConditionalGeneration.from_pretrained(tmp_path)
    for one in (model, loaded):
        before = {name: value.clone() for name, value in one.state_dict().items()}
        _, gradients, buffers = trained(one, **TEXT, **prefixed(inputs_of(kind)))
        encoder = one.model.encoder.sources["x"]
        assert one.training and encoder.training and not any(part.training for part in encoder.model.modules())
        assert not any(parameter.requires_grad for parameter in encoder.model.parameters())
        assert not any(name.startswith("model.encoder.sources.x.model.") for name in gradients)
        assert "model.encoder.sources.x.projection.weight" in gradients
        assert all(torch.equal(buffers[name], before[name]) for name in buffers.keys() & before.keys())


def test_a_frozen_text_encoder_needs_embeddings_of_its_own(tmp_path: Path) -> None:
    source: dict[str, Any] = {"name": "x", "freeze": True}
    with pytest.raises(StrictDataclassError, match=r"sources\[x\].freeze: its embeddings are the decoder's"):
        tiny_config("serial", ["en", source])
    model = make("serial", "en", {**source, "vocab_size": 20}, dropout=0.5)
    model.save_pretrained(tmp_path)
    model = MultiSourceForConditionalGeneration.from_pretrained(tmp_path).train()
    encoder = model.model.encoder.sources["x"]
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert not any(module.training for module in encoder.modules())
    ids = {"input_ids": torch.tensor([[3, 19]])}
    assert torch.equal(encoder(**ids).last_hidden_state, encoder(**ids).last_hidden_state)  # no dropout


# Save, load, generate


@every_wrapped
def test_saved_equals_loaded(kind: str, tmp_path: Path) -> None:
    model = make("hierarchical", "en", wrapped_source(kind))
    model.save_pretrained(tmp_path)
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path)
    given = {**TEXT, **prefixed(inputs_of(kind))}
    assert torch.equal(loaded(**given).logits, model(**given).logits)
    assert loaded.config.to_dict()["sources"] == model.config.to_dict()["sources"]
    keys = [key.removeprefix("model.encoder.sources.x.") for key in model.state_dict() if "sources.x." in key]
    assert {key.split(".")[0] for key in keys} == {"model", "projection", "layer_norm"}
    assert not any("pooler" in key for key in keys)


@every_wrapped
def test_a_source_of_any_kind_can_come_first_and_be_absent(kind: str) -> None:
    model = make("parallel", wrapped_source(kind), "de", final_logits_bias=True)
    model.final_logits_bias[:, [0, 2]] = -30.0
    inputs = inputs_of(kind)
    text = {"de_input_ids": TEXT["input_ids"]}
    options = {"num_beams": 3, "max_new_tokens": 5}
    both = model.generate(**inputs, **text, **options)
    for i in range(3):
        row = {key: value[i : i + 1] for key, value in {**inputs, **text}.items()}
        alone = model.generate(**row, **options)
        assert both[i, : alone.shape[1]].tolist() == alone[0].tolist()
    without = model.generate(**text, **options)
    nothing = {**inputs, "attention_mask": torch.zeros_like(inputs["attention_mask"])}
    assert model.generate(**nothing, **text, **options).tolist() == without.tolist()
    assert model.generate(**inputs, **options).shape[0] == 3
    with pytest.raises(ValueError, match=r"examples \[0, 1, 2\] have none"):
        model.generate(**nothing)


def test_attention_implementation_reaches_the_wrapped_model() -> None:
    model = make("serial", "en", wrapped_source("bert"))
    expected = model(**TEXT, **prefixed(inputs_of("bert"))).logits
    model.set_attn_implementation("eager")
    encoder = model.model.encoder.sources["x"]
    assert encoder.model.config._attn_implementation == "eager"
    close(model(**TEXT, **prefixed(inputs_of("bert"))).logits, expected)
    output = model.get_encoder().encode_source("x", **prefixed(inputs_of("bert")), output_attentions=True)
    assert output.attentions[0].shape == (3, 2, 6, 6)


def test_an_attention_that_a_wrapped_model_lacks_is_set_for_the_other_parts_only(tmp_path: Path) -> None:
    make("serial", "en", wrapped_source("resnet")).save_pretrained(tmp_path)
    load = MultiSourceForConditionalGeneration.from_pretrained
    with pytest.raises(ValueError, match=r"AutoModel cannot build sources\[x\].encoder .*ResNetModel does not support"):
        load(tmp_path, attn_implementation="sdpa")
    model = load(tmp_path, attn_implementation={"": "sdpa"})
    assert model.config._attn_implementation == "sdpa"
    close(model(**TEXT).logits, load(tmp_path, attn_implementation="eager")(**TEXT).logits)


@pytest.mark.parametrize("kind", ["own vocabulary", "bert", "t5"])
def test_a_source_gets_more_tokens_and_the_model_loads_again(kind: str, tmp_path: Path) -> None:
    model = make("serial", "en", {"name": "x", "vocab_size": 16} if kind == "own vocabulary" else wrapped_source(kind))
    encoder = model.get_encoder().encoder_of("x")
    before, target = encoder.get_input_embeddings().weight.detach().clone(), model.config.vocab_size
    size = len(before) + 7
    encoder.resize_token_embeddings(size)
    assert model.config.vocab_size == target and model.lm_head.weight.shape[0] == target
    assert encoder.get_input_embeddings().num_embeddings == size
    assert kind != "own vocabulary" or encoder.settings.vocab_size == size
    torch.testing.assert_close(encoder.get_input_embeddings().weight[:-7], before)
    model.save_pretrained(tmp_path)
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path)
    inputs = {
        **TEXT,
        "x_input_ids": torch.full((3, 2), size - 1),
        "x_attention_mask": torch.ones(3, 2, dtype=torch.long),
    }
    close(loaded(**inputs).logits, model(**inputs).logits)


def test_a_vocabulary_keeps_its_padding_id() -> None:
    model = make("serial", "en", {"name": "de", "vocab_size": 20, "pad_token_id": 19})
    with pytest.raises(ValueError, match="source 'de' has pad_token_id 19; 10 tokens would not include it"):
        model.get_encoder().encoder_of("de").resize_token_embeddings(10)
    assert model.get_encoder().encoder_of("de").get_input_embeddings().num_embeddings == 20


def test_a_source_whose_tokens_are_others_too_keeps_its_size() -> None:
    own = {"vocab_size": 20, "pad_token_id": 0}
    model = make("serial", "en", {"name": "de", **own}, {"name": "fr", "share_embeddings_with": "de"})
    with pytest.raises(ValueError, match="'en' has no vocabulary of its own; resize the embeddings of the model"):
        model.get_encoder().encoder_of("en").resize_token_embeddings(30)
    for name, other in (("de", "fr"), ("fr", "de")):
        with pytest.raises(ValueError, match=f"{name!r} shares its embeddings with {other}, so they keep their size"):
            model.get_encoder().encoder_of(name).resize_token_embeddings(30)
    assert model.config.vocab_size == 16


# What cannot be


def test_kinds_set_what_they_have_and_no_more() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "features"}, r"sources\[x\].feature_size must be at least 1; got None"),
        (
            {"kind": "features", "feature_size": 3, "vocab_size": 9},
            "is of kind 'features' and so cannot set vocab_size",
        ),
        ({"kind": "pretrained"}, r"sources\[x\].encoder must be the configuration of a Transformers model"),
        ({"kind": "pretrained", "encoder": {"model_type": "nope"}}, "model_type must be one that Transformers has"),
        ({"encoder": WRAPPED["vit"]}, "is of kind 'text' and so cannot set encoder"),
        ({"kind": "pretrained", "encoder": WRAPPED["vit"], "layers": 3}, "'pretrained' and so cannot set layers"),
        ({"kind": "features", "feature_size": 8, "projection": False}, "'features' and so cannot set projection"),
        ({"kind": "features", "share_encoder_with": "en"}, r"sources\[x\].kind must be that of 'en', 'text'"),
        ({"kind": "sound"}, "must be one of 'text', 'features', 'pretrained'; got 'sound'"),
    ]
    for fields, message in cases:
        with pytest.raises((ValueError, StrictDataclassError), match=message):
            tiny_config("serial", ["en", {"name": "x", **fields}])


def test_keywords_are_those_of_the_kind() -> None:
    model = make("serial", wrapped_source("vit"), "de")
    pixels = {"pixel_values": torch.zeros(1, 3, 8, 8)}
    with pytest.raises(ValueError, match="wraps a ViTModel, which reads pixel_values; got input_features"):
        model.get_encoder()(input_features=torch.zeros(1, 2, 5))
    with pytest.raises(
        ValueError, match="'de_pixel_values' is no keyword of a source; allowed after the name are input_ids"
    ):
        model.get_encoder()(**pixels, de_pixel_values=pixels["pixel_values"])
    with pytest.raises(ValueError, match="the keywords of source 0 have no prefix: use 'pixel_values'"):
        model.get_encoder()(x_pixel_values=pixels["pixel_values"])
    text = make("serial", "en", "de")
    with pytest.raises(ValueError, match=r"'pixel_values': source 0 \(en\) is of kind 'text'"):
        text.get_encoder()(**pixels)


def test_a_model_whose_output_is_no_sequence_is_refused() -> None:
    class Odd(nn.Module):
        config = PreTrainedConfig()

    with pytest.raises(ValueError, match="a Odd cannot be a source's encoder: its configuration does not say"):
        output_width(Odd())


def test_a_wrapped_model_that_only_says_it_is_an_encoder_decoder_is_refused() -> None:
    wrapped = BertConfig(vocab_size=30, is_encoder_decoder=True, **SMALL)
    config = tiny_config("serial", ["en", {"name": "bert", "kind": "pretrained", "encoder": wrapped}])
    with pytest.raises(ValueError, match=r"^sources\[bert\]\.encoder\.is_encoder_decoder must be False: a BertModel"):
        MultiSourceForConditionalGeneration(config)


def test_a_model_that_needs_further_inputs_is_refused() -> None:
    encoder = Siglip2VisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_patches=4, patch_size=2
    )
    config = tiny_config("serial", ["en", {"name": "image", "kind": "pretrained", "encoder": encoder}])
    message = r"sources\[image\]\.encoder: a Siglip2VisionModel also needs pixel_attention_mask, spatial_shapes"
    with pytest.raises(ValueError, match=message):
        MultiSourceForConditionalGeneration(config)
