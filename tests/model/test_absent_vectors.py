"""Learned vectors that stand for the sources that an example lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

from builders import LSTM, NAMES, PAPER_FIRST, one_by_default, three_source_batch, three_source_model, tiny_config
from hf_multisource import (
    COMBINERS,
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceProcessor,
    MultiSourceRNNConfig,
    attention_to_tokens,
    combiners,
    convert_combiner,
    encoders,
    split_by_source,
)
from hf_multisource.analysis import ABSENT
from hf_multisource.modeling_sources import MultiSourceEncoderOutput
from hf_multisource.recipes.tokenization import train_tokenizer
from searches import SEARCHES, generate, same

PREFIX = "model.encoder.absent_vectors."
TARGET = torch.tensor([[2, 5, 6]] * 5)
LABELS = torch.tensor([[5, 9, 1], [6, 1, -100], [7, 1, -100], [8, 8, 1], [9, 1, -100]])
BATCHES: dict[str, dict[str, Tensor]] = {
    "each lacks another": three_source_batch(),
    "one source for all": three_source_batch(["de"], [0, 2]),
    "two sources for all": three_source_batch(["en", "fr"], [0, 1, 4]),
    "no columns": {**three_source_batch(["de"], [0, 2]), "fr_input_ids": torch.zeros(2, 0, dtype=torch.long)},
}
each_model = pytest.mark.parametrize("combiner", [*COMBINERS, LSTM])
each_batch = pytest.mark.parametrize("inputs", BATCHES.values(), ids=BATCHES)


def pair(combiner: str, **fields: Any) -> tuple[Any, Any]:
    """A model with vectors, and one without that is the same otherwise."""
    model = three_source_model(combiner, absent_vectors=True, **fields).double()
    plain = three_source_model(combiner, **fields).double()
    kept = {name: value for name, value in model.state_dict().items() if not name.startswith(PREFIX)}
    plain.load_state_dict(kept)
    return model, plain


@torch.no_grad()
def spelled_out(model: Any, plain: Any, inputs: dict[str, Tensor]) -> MultiSourceEncoderOutput:
    """What the plain model's encoder returns, and one state for each source that an example lacks, one by one."""
    vectors = {name: model.state_dict()[f"{PREFIX}{name}.vector"] for name in NAMES}
    output = plain.get_encoder()(**inputs)
    found = zip(
        output.last_hidden_state.split(output.source_lengths, dim=1),
        output.attention_mask.split(output.source_lengths, dim=1),
        strict=True,
    )
    all_states, all_masks = [], []
    for name, (states, mask) in zip(NAMES, found, strict=True):
        more, seen = states.new_zeros(len(states), 1, states.shape[2]), mask.new_zeros(len(mask), 1)
        for i in range(len(states)):
            if not mask[i].any():
                more[i, 0], seen[i, 0] = vectors[name], True
        all_states.append(torch.cat([states, more], dim=1))
        all_masks.append(torch.cat([mask, seen], dim=1))
    output.last_hidden_state, output.attention_mask = torch.cat(all_states, dim=1), torch.cat(all_masks, dim=1)
    output.source_lengths = tuple(mask.shape[1] for mask in all_masks)
    output.memory = None
    return output


@torch.no_grad()
def logits(model: Any, **inputs: Any) -> Tensor:
    size = len(next(value for value in inputs.values() if isinstance(value, Tensor))) if inputs else 0
    found: Tensor = model(**inputs, decoder_input_ids=TARGET[:size]).logits
    return found


@each_batch
@each_model
def test_an_absent_source_is_one_state_that_is_learned(combiner: str, inputs: dict[str, Tensor]) -> None:
    model, plain = pair(combiner)
    found = logits(model, **inputs)
    encoded = spelled_out(model, plain, inputs)
    with torch.no_grad():
        expected = plain(encoder_outputs=encoded, decoder_input_ids=TARGET[: len(found)]).logits
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert (found - logits(plain, **inputs)).abs().max() > 1e-3


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@each_model
def test_a_batch_is_its_examples_one_by_one(combiner: str, norm_position: str) -> None:
    model, _ = pair(combiner, norm_position=norm_position)
    together = logits(model, **three_source_batch())
    for i in range(5):
        alone = logits(model, **three_source_batch(examples=[i]))
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-9, atol=1e-11)


@each_model
def test_where_all_are_present_nothing_changes(combiner: str) -> None:
    model, plain = pair(combiner)
    inputs = three_source_batch(examples=[0])
    assert torch.equal(logits(model, **inputs), logits(plain, **inputs))


@pytest.mark.parametrize("search", [{}, *SEARCHES.values()], ids=["greedy", *SEARCHES])
@pytest.mark.parametrize("combiner", [*one_by_default("hierarchical"), LSTM])
def test_every_search_finds_what_it_finds_with_states_written_out(combiner: str, search: dict[str, Any]) -> None:
    if combiner == LSTM and "cache_implementation" in search:
        search = {}
    model, plain = pair(combiner)
    for inputs in (BATCHES["each lacks another"], BATCHES["one source for all"]):
        found = []
        encoded = {"encoder_outputs": spelled_out(model, plain, inputs)}
        for one, given in ((model, inputs), (model, {**inputs, "fold_beams": False}), (plain, encoded)):
            torch.manual_seed(3)
            found.append(generate(one, given, **search))
        same(found[0], found[2])
        same(found[1], found[2])


@pytest.mark.parametrize("num_beams", [1, 3])
@each_model
def test_encoded_sources_can_be_used_again(combiner: str, num_beams: int) -> None:
    model, _ = pair(combiner)
    inputs = three_source_batch()
    expected = generate(model, inputs, num_beams=num_beams)
    with torch.no_grad():
        encoded = model.get_encoder()(**inputs)
    for _ in range(2):
        same(generate(model, {"encoder_outputs": encoded}, num_beams=num_beams), expected)


@each_model
def test_an_example_without_any_source_stays_without(combiner: str) -> None:
    model, plain = pair(combiner)
    inputs = three_source_batch()
    for key in ("attention_mask", "de_attention_mask", "fr_attention_mask"):
        inputs[key][1] = 0
    torch.testing.assert_close(logits(model, **inputs)[1], logits(plain, **inputs)[1], rtol=1e-9, atol=1e-11)
    with torch.no_grad():
        encoded = model.get_encoder()(**inputs)
    for given in (inputs, {"encoder_outputs": encoded}):
        with pytest.raises(ValueError, match=r"examples \[1\] have none"):
            model.generate(**given)


def gradients(model: Any) -> dict[str, Tensor]:
    model.zero_grad()
    model(**three_source_batch(), labels=LABELS).loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("combiner", PAPER_FIRST)
def test_packing_in_training_changes_nothing(combiner: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = three_source_model(combiner, attn_implementation=attention, absent_vectors=True).double().train()
    packed = gradients(model)
    for module in (encoders, combiners):
        monkeypatch.setattr(module, "packing_pays", lambda states, training: False)
    padded = gradients(model)
    assert packed.keys() == padded.keys()
    for name, expected in padded.items():
        torch.testing.assert_close(packed[name], expected, rtol=1e-9, atol=1e-12, msg=name)


@each_batch
@each_model
def test_every_parameter_and_the_vectors_of_absent_sources_get_gradients(
    combiner: str, inputs: dict[str, Tensor]
) -> None:
    model, _ = pair(combiner)
    model.train()
    size = len(next(iter(inputs.values())))
    model(**inputs, labels=LABELS[:size]).loss.backward()
    for i, name in enumerate(NAMES):
        mask = inputs.get(f"{name}_attention_mask" if i else "attention_mask")
        lacking = mask is None or not mask.any(dim=1).all()
        gradient = model.get_parameter(f"{PREFIX}{name}.vector").grad
        assert gradient is not None and bool(gradient.any()) == lacking, name
    given = {
        name: model.get_encoder().encoder_of(name)
        for i, name in enumerate(NAMES)
        if (f"{name}_input_ids" if i else "input_ids") in inputs
    }
    for name, encoder in given.items():
        assert all(parameter.grad is not None for parameter in encoder.parameters()), name


@pytest.mark.parametrize("how", [{"source_dropout": 0.5}, {"source_subsets": {"each": 1}}])
@each_model
def test_source_dropout_trains_the_vectors(combiner: str, how: dict[str, Any]) -> None:
    model = three_source_model(combiner, absent_vectors=True, **how).train()
    torch.manual_seed(0)
    inputs = {key: value.repeat(8, 1) for key, value in three_source_batch(examples=[0]).items()}
    model(**inputs, labels=LABELS[:1].repeat(8, 1)).loss.backward()
    assert all(model.get_parameter(f"{PREFIX}{name}.vector").grad.any() for name in NAMES)


@pytest.mark.parametrize("combiner", [*COMBINERS, LSTM])
def test_without_the_setting_there_is_no_parameter(combiner: str) -> None:
    assert not [name for name in three_source_model(combiner).state_dict() if "absent" in name]
    names = [name for name in three_source_model(combiner, absent_vectors=True).state_dict() if "absent" in name]
    assert names == [f"{PREFIX}{name}.vector" for name in NAMES]


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({}, (6 / 17) ** 0.5),
        ({"initializer": "normal", "init_std": 0.01}, 0.06),
        ({"family": LSTM, "init_range": 0.3}, 0.3),
    ],
)
def test_they_begin_as_embeddings_and_are_saved(settings: dict[str, Any], bound: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    family = settings.get("family", "serial")
    fields = {key: value for key, value in settings.items() if key != "family"}
    config = three_source_model(family, absent_vectors=True, **fields).config
    model_class: Any = type(three_source_model(family))
    model = model_class(config)
    vectors = [model.get_parameter(f"{PREFIX}{name}.vector") for name in NAMES]
    for vector in vectors:
        assert vector.shape == (16,) and bound / 8 < vector.abs().max() <= bound
    assert len({vector[0].item() for vector in vectors}) == 3
    model.save_pretrained(tmp_path)
    loaded = model_class.from_pretrained(tmp_path)
    assert loaded.config.absent_vectors
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    plain = model_class(three_source_model(family, **fields).config)
    plain.save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match=r"3 weights are missing .*absent_vectors\.de\.vector"):
        model_class.from_pretrained(tmp_path / "plain", absent_vectors=True)


@pytest.mark.parametrize("config_class", [MultiSourceConfig, MultiSourceRNNConfig])
def test_what_has_no_use_for_them_is_refused(config_class: Any) -> None:
    with pytest.raises(StrictDataclassError, match="absent_vectors needs at least two sources; there is one, en"):
        config_class(sources=["en"], absent_vectors=True)
    with pytest.raises(StrictDataclassError, match="absent_vectors"):
        config_class(sources=["en", "de"], absent_vectors="yes")
    with pytest.raises(StrictDataclassError, match='absent_vectors=True needs an attention; got attention="none"'):
        MultiSourceRNNConfig(sources=["en", "de"], absent_vectors=True, attention="none")
    sources = ["en", {"name": "values", "share_encoder_with": "en"}]
    with pytest.raises(ValueError, match="source name 'values' is an attribute of torch modules"):
        MultiSourceForConditionalGeneration(tiny_config("flat", sources, absent_vectors=True))


def test_sources_that_are_no_text_have_vectors_too() -> None:
    torch.manual_seed(0)
    config = tiny_config(sources=["en", {"name": "image", "kind": "features", "feature_size": 3}], absent_vectors=True)
    model = MultiSourceForConditionalGeneration(config).eval()
    text = {"input_ids": torch.tensor([[4, 5], [6, 1]]), "decoder_input_ids": torch.tensor([[2, 4], [2, 4]])}
    features, there = torch.randn(2, 4, 3), torch.tensor([[1], [0]])
    both = model(**text, image_input_features=features, image_attention_mask=there).logits
    one = {key: value[1:] for key, value in text.items()}
    torch.testing.assert_close(both[1:], model(**one).logits)
    with torch.no_grad():
        model.get_parameter(f"{PREFIX}image.vector").add_(1)
    changed = model(**text, image_input_features=features, image_attention_mask=there).logits
    assert torch.equal(changed[0], both[0]) and not torch.allclose(changed[1], both[1])


@pytest.mark.slow
def test_it_compiles_into_one_graph() -> None:
    torch.compiler.reset()
    model = three_source_model(absent_vectors=True, decoder_layers=1).train()
    inputs = {**three_source_batch(["en", "de"]), "labels": LABELS}
    compiled: Any = torch.compile(model, fullgraph=True, backend="eager")
    assert compiled(**inputs).loss.item() == pytest.approx(model(**inputs).loss.item(), rel=1e-6)


@pytest.mark.parametrize("combiner", [*COMBINERS, LSTM])
def test_attention_to_absent_sources_is_returned(combiner: str) -> None:
    model, _ = pair(combiner)
    model.set_attn_implementation("eager")
    inputs = three_source_batch(["en", "de"])
    with torch.no_grad():
        output = model(**inputs, decoder_input_ids=TARGET, output_attentions=True)
    assert output.source_lengths == (4, 3, 1)
    weights = output.cross_attentions[0]
    parts = split_by_source(weights, output.source_lengths, NAMES)
    if combiner == LSTM:
        assert parts["fr"].any()
    elif COMBINERS[combiner].joint_weights:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
        assert (parts["fr"] > 0).all()
    else:
        for part in parts.values():
            torch.testing.assert_close(part.sum(dim=-1), torch.ones_like(part[..., 0]))
    for over in output.source_weights or ():
        torch.testing.assert_close(over.sum(dim=-1), torch.ones_like(over[..., 0]))


def test_the_weight_of_an_absent_source_is_named_among_the_tokens() -> None:
    texts: dict[str, Any] = {"en": ["a dog", "a"], "de": ["ein Hund", None], "fr": [None, None]}
    processor = MultiSourceProcessor(train_tokenizer(["a dog", "ein Hund", "pes"], "bpe", 264), NAMES)
    batch = processor(**texts, text_target=["pes", "pes"], return_tensors="pt")
    model = three_source_model("flat", absent_vectors=True, vocab_size=len(processor.tokenizer))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        encoded = model.get_encoder()(**{key: value for key, value in batch.items() if key != "labels"})
        output = model(**batch, output_attentions=True)
    names = {0: {"fr"}, 1: {"de", "fr"}}
    for example, absent in names.items():
        found = attention_to_tokens(
            output.cross_attentions[0], batch, batch["labels"], processor, example, encoded=encoded
        )
        assert {name for name, tokens in found.source_tokens.items() if tokens == [ABSENT]} == absent
        torch.testing.assert_close(found.weights.sum(dim=-1), torch.ones_like(found.weights[..., 0]))
        assert all((found.by_source()[name] > 0).all() for name in absent)


def test_another_combiner_keeps_the_vectors() -> None:
    model, _ = pair("serial")
    other: Any = convert_combiner(model, "gated_serial")
    inputs = three_source_batch()
    torch.testing.assert_close(logits(other, **inputs), logits(model, **inputs), rtol=1e-9, atol=1e-11)


def test_a_model_made_of_a_checkpoint_keeps_its_vectors(caplog: pytest.LogCaptureFixture) -> None:
    origin = three_source_model(absent_vectors=True)
    make = MultiSourceForConditionalGeneration.from_pretrained_sources
    turned: Any = make(dict.fromkeys(["fr", "en", "de"], origin), "en")
    for name in NAMES:
        assert torch.equal(*(one.get_parameter(f"{PREFIX}{name}.vector") for one in (turned, origin)))
    assert not make({"en": origin}, "en").config.absent_vectors, "a source that is alone is never absent"
    without = make(dict.fromkeys(NAMES, origin), "en", absent_vectors=False)
    assert not [name for name in without.state_dict() if name.startswith(PREFIX)]
    assert "absent_vectors" not in caplog.text
    added = make(dict.fromkeys(NAMES, three_source_model()), "en", absent_vectors=True)
    assert added.config.absent_vectors and f"{PREFIX}fr.vector" in caplog.text, "they begin anew, which is told"
