"""Checkpoints that exist become models of several sources, and combiners become one another, to the same output."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from PIL import Image
from torch import Tensor
from transformers import (
    AutoModel,
    BartModel,
    PreTrainedModel,
    ResNetConfig,
    T5Config,
    T5Model,
    ViTImageProcessorPil,
    Wav2Vec2FeatureExtractor,
)

from builders import NAMES, randomize, three_source_batch, three_source_model, tiny_config
from hf_multisource import (
    COMBINERS,
    MultiSourceForConditionalGeneration,
    MultiSourceProcessor,
    attach_encoder,
    convert_combiner,
)
from hf_multisource.recipes.tokenization import train_tokenizer
from kinds import mixed_processor
from stock_models import (
    CHECKPOINTS,
    CLASSES,
    T5,
    TARGET,
    batch,
    bert,
    convert,
    drawn,
    logits,
    same,
    stock,
    vit,
    wav2vec2,
)

pytestmark = pytest.mark.pairs

# Those with which one source is attended to as in an ordinary decoder; projection's matrix is the identity at first.
EXACT = [name for name, kind in COMBINERS.items() if kind.exact_for_one_source or name == "projection"]
each_exact_combiner = pytest.mark.parametrize("combiner", EXACT)


def same_beams(one: Any, other: Any, inputs: dict[str, Tensor]) -> None:
    search: dict[str, Any] = {"num_beams": 5, "num_return_sequences": 5, "max_new_tokens": 8}
    # M2M100 neither counts padding nor gives it a position, also where it stands in the midst of a hypothesis.
    search |= {"output_scores": True, "return_dict_in_generate": True, "bad_words_ids": [[one.config.pad_token_id]]}
    found, expected = (model.generate(**inputs, **search) for model in (one, other))
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert len(set(map(tuple, found.sequences.tolist()))) > 5
    same(found.sequences_scores, expected.sequences_scores, 1e-4)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What conversion warns of."""
    logger = logging.getLogger("hf_multisource.conversion")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


# One source


def check_equal(name: str, combiner: str) -> None:
    theirs = stock(name)
    ours = convert({"en": theirs}, combiner=combiner)
    same(logits(ours, batch(theirs)), logits(theirs, batch(theirs)))
    if "two vocabularies" in name and Version(transformers.__version__) < Version("5.23"):
        return  # in 5.17 its own beam search takes the size of the source's vocabulary for the target's
    same_beams(ours, theirs, batch(theirs))


@pytest.mark.feature("Model", "One source: logits and beams of Marian, BART, mBART, Pegasus and M2M100 checkpoints")
@pytest.mark.parametrize(
    ("name", "combiner"),
    [*product(CLASSES, ("serial", "flat")), *(("bart", name) for name in EXACT if name not in ("serial", "flat"))],
)
def test_with_one_source_it_is_an_ordinary_encoder_decoder(name: str, combiner: str) -> None:
    check_equal(name, combiner)


@pytest.mark.parametrize("name", sorted(CHECKPOINTS.keys() - CLASSES.keys()))
def test_every_shape_of_checkpoint_computes_the_same(name: str) -> None:
    check_equal(name, "serial")


@pytest.mark.parametrize("name", [*CLASSES, "marian, two vocabularies"])
def test_a_checkpoint_on_disk_is_taken_and_the_model_saved_loads_again(name: str, tmp_path: Path) -> None:
    theirs = stock(name)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = convert({"en": tmp_path / "theirs"})
    assert not ours.training
    ours.save_pretrained(tmp_path / "ours")
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path / "ours")
    same(logits(loaded, batch(theirs)), logits(theirs, batch(theirs)))
    assert torch.equal(loaded.generate(**batch(theirs)), ours.generate(**batch(theirs)))
    assert ours.num_parameters() == loaded.num_parameters()


@pytest.mark.parametrize("name", CLASSES)
def test_nothing_is_stored_twice_that_the_checkpoint_ties(name: str) -> None:
    ours = convert({"en": stock(name)})
    table = ours.model.decoder.embeddings.tokens.weight
    assert ours.lm_head.weight is table
    assert ours.model.encoder.sources["en"].embeddings.tokens.weight is table


def test_sources_that_the_decoder_was_trained_without_are_named(told: pytest.LogCaptureFixture) -> None:
    one, two = stock("marian"), stock("bart")
    convert({"en": one})
    convert({"en": one, "de": two}, combiner="gated_serial")
    assert "trained without" not in told.text
    convert({"en": one, "de": two})
    assert "the decoder was trained without de. With combiner='serial' the model must be trained" in told.text
    told.clear()
    both = convert({"en": one, "de": one, "fr": two}, combiner="flat")
    assert "the decoder was trained without de, fr. With combiner='flat'" in told.text
    told.clear()
    convert(dict.fromkeys(("en", "de", "fr"), both))
    assert "trained without" not in told.text


def test_settings_are_taken_over() -> None:
    dropouts: dict[str, Any] = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.05}
    ours = convert({"en": stock("marian, two vocabularies", **dropouts)}).config
    assert {name: getattr(ours, name) for name in dropouts} == dropouts
    assert ours.max_position_embeddings == 20
    assert (ours.pad_token_id, ours.eos_token_id, ours.bos_token_id, ours.decoder_start_token_id) == (29, 0, None, 29)
    assert (ours.vocab_size, ours.get_source("en").vocab_size) == (30, 37)
    assert convert({"en": stock("mbart")}).config.decoder_start_token_id == 0  # as `generate` reads it: bos_token_id


def test_generation_settings_are_taken_over(tmp_path: Path) -> None:
    theirs = stock("marian")
    given = {"num_beams": 3, "max_length": 7, "bad_words_ids": [[29]], "forced_bos_token_id": 5, "length_penalty": 0.7}
    theirs.generation_config.update(**given)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = convert({"en": tmp_path / "theirs"})
    assert {name: getattr(ours.generation_config, name) for name in given} == given
    ours.save_pretrained(tmp_path / "ours")
    loaded: Any = MultiSourceForConditionalGeneration.from_pretrained(tmp_path / "ours")
    found = loaded.generate(**batch(theirs))
    assert found.tolist() == theirs.generate(**batch(theirs)).tolist()
    assert found.shape[1] == 7 and found[:, 1].tolist() == [5, 5, 5]
    theirs.generation_config.num_beams = 4
    assert ours.generation_config.num_beams == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_type_of_the_numbers_stays(dtype: torch.dtype) -> None:
    assert convert({"en": stock("bart").to(dtype)}).dtype == dtype


def test_the_checkpoint_stays_as_it_is() -> None:
    theirs = stock("bart")
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    randomize(convert({"en": theirs}), 1)
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())


# Several sources


@each_exact_combiner
@pytest.mark.parametrize(("name", "decoder"), [("marian", "en"), ("m2m_100", "de")])
def test_with_the_decoders_source_alone_the_output_is_its_checkpoints(name: str, decoder: str, combiner: str) -> None:
    others = {
        "en": stock(name, 1),
        "de": stock(name, 2, encoder_layers=1, encoder_ffn_dim=8, encoder_attention_heads=4),
    }
    ours = convert(others, decoder, combiner)
    assert ours.config.source_names == ["en", "de"]
    inputs = batch(others[decoder], "" if decoder == "en" else "de_")
    expected = logits(others[decoder], batch(others[decoder]))
    same(logits(ours, inputs), expected)
    given = {**batch(ours), **batch(ours, "de_")}
    absent = {"de_attention_mask" if decoder == "en" else "attention_mask": torch.zeros(3, 5, dtype=torch.long)}
    same(logits(ours, {**given, **absent}), expected)
    if combiner == "gated_serial":
        same(logits(ours, given), expected)
    if decoder == "en":
        same_beams(ours, others["en"], inputs)


def test_every_source_has_the_encoder_of_its_checkpoint() -> None:
    theirs = {"en": stock("marian", 1), "de": stock("marian, two vocabularies", 2, encoder_layers=1, **SWISH)}
    ours = convert(theirs)
    for name, prefix in (("en", ""), ("de", "de_")):
        found = ours.get_encoder().encode_source(name, **batch(ours, prefix)).last_hidden_state
        expected = theirs[name].get_encoder()(**batch(theirs[name])).last_hidden_state
        real = batch(ours)["attention_mask"].bool()
        same(found[real], expected[real])
    assert ours.config.get_source("de").to_dict() == {"name": "de", "kind": "text", "layers": 1, "vocab_size": 37}


SWISH = {"activation_function": "swish", "scale_embedding": True}


@each_exact_combiner
def test_with_one_attention_per_source_each_begins_with_the_decoders(combiner: str) -> None:
    theirs = {"en": stock("bart", 1), "de": stock("bart", 2)}
    ours = convert(theirs, "de", combiner)
    for layer, their_layer in zip(ours.model.decoder.layers, theirs["de"].model.decoder.layers, strict=True):
        expected = their_layer.encoder_attn.v_proj.weight
        names = [name for name in ("en", "de", "joint") if hasattr(layer.cross_attn, name)]
        assert names
        assert all(torch.equal(getattr(layer.cross_attn, name).v_proj.weight, expected) for name in names)


def test_the_same_checkpoint_twice_is_one_encoder(tmp_path: Path) -> None:
    theirs = stock("m2m_100")
    theirs.save_pretrained(tmp_path)
    for place in (theirs, tmp_path):
        ours = convert({"en": place, "de": place, "fr": stock("m2m_100", 1)})
        assert list(ours.model.encoder.sources) == ["en", "fr"]
        assert ours.config.get_source("de").share_encoder_with == "en"
        same(logits(ours, batch(theirs, "de_")), logits(ours, batch(theirs)))
    assert list(convert({"en": theirs, "de": stock("m2m_100")}).model.encoder.sources) == ["en", "de"]


def test_what_is_new_is_told(told: pytest.LogCaptureFixture) -> None:
    convert({"en": stock("bart"), "de": stock("bart", 1)}, combiner="parallel")
    assert "newly initialized" not in told.text
    convert({"en": stock("bart"), "de": stock("bart", 1)}, combiner="hierarchical")
    assert "in no checkpoint and are newly initialized" in told.text
    assert "model.decoder.layers.*.cross_attn.hierarchy.k_proj.weight" in told.text
    assert "cross_attn.de" not in told.text and "encoder.sources" not in told.text


def test_what_is_new_is_drawn_as_in_a_new_model() -> None:
    sources = {"en": stock("bart"), "de": stock("bart", 1)}
    ours, others = (convert(sources, combiner="hierarchical", initializer="normal", init_std=0.5) for _ in range(2))
    for layer, other in zip(ours.model.decoder.layers, others.model.decoder.layers, strict=True):
        for name, parameter in layer.cross_attn.hierarchy.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any()
            else:
                assert 0.3 < parameter.std() < 0.7
                assert not torch.equal(parameter, other.cross_attn.hierarchy.get_parameter(name))


def test_models_that_are_given_keep_their_weights() -> None:
    theirs = stock("bart")
    ours = convert({"en": theirs})
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())


def test_parameters_of_one_checkpoint_share_no_memory(tmp_path: Path) -> None:
    """Several sources begin with the same attention; each learns by itself."""
    stock("bart").save_pretrained(tmp_path)
    ours = convert({"en": tmp_path, "de": stock("bart", 1)})
    places = [parameter.untyped_storage().data_ptr() for parameter in ours.parameters()]
    assert len(set(places)) == len(places)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells how much memory was resident")
def test_large_weights_are_in_memory_once(tmp_path: Path) -> None:
    """Of checkpoints on disk: not in the checkpoint's model and in the new one."""
    theirs = stock("marian", vocab_size=400_000)
    theirs.save_pretrained(tmp_path)
    size = sum(parameter.nbytes for parameter in theirs.parameters()) / 2**10
    del theirs

    def resident(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))

    convert({"en": stock("marian")})  # what is loaded once
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    convert({"en": tmp_path, "de": tmp_path})
    assert size > 25_000
    assert resident("VmHWM") - before < 1.5 * size


def test_training_settings_can_be_given() -> None:
    sources = {"en": stock("bart", dropout=0.3), "de": stock("bart", dropout=0.2)}
    fields: dict[str, Any] = {
        "source_dropout": 0.2,
        "label_smoothing": 0.1,
        "attention_dropout": 0.4,
        "hierarchical_heads": 2,
    }
    ours = convert(sources, source_fields={"de": {"source_dropout": 0.5}}, combiner="hierarchical", **fields).config
    assert {name: getattr(ours, name) for name in fields} == fields
    assert [ours.encoder_settings(name).dropout for name in ("en", "de")] == [0.3, 0.2]
    assert ours.source_dropouts == (0.2, 0.5)
    ours = convert(sources, dropout=0.1).config
    assert [ours.encoder_settings(name).dropout for name in ("en", "de")] == [0.1, 0.1]


def test_a_table_of_subsets_is_about_the_checkpoints_own_sources() -> None:
    ours = convert({"en": stock("bart"), "de": stock("bart", 1)}, source_subsets={"all": 1, "de": 1})
    assert ours.config.source_subset_table == {(False, True): 0.5, (True, True): 0.5}
    assert convert({"en": ours, "fr": stock("bart", 2)}).config.source_subsets is None


def test_a_converted_model_learns() -> None:
    ours = convert({"en": stock("marian"), "de": stock("marian", 1)}).train()
    ours(**batch(ours), **batch(ours, "de_"), labels=TARGET).loss.backward()
    assert all(parameter.grad is not None for parameter in ours.parameters() if parameter.requires_grad)


# Encoders of other kinds


OTHERS: dict[str, tuple[Any, str, Any]] = {
    "BERT": (bert, "input_ids", lambda: batch(stock("bart"))["input_ids"]),
    "ViT with its head": (vit, "pixel_values", lambda: drawn(3, 3, 8, 8)),
    "wav2vec2": (wav2vec2, "input_values", lambda: drawn(3, 64)),
    "T5": (lambda: T5Model(T5Config(**T5)).eval(), "input_ids", lambda: batch(stock("bart"))["input_ids"]),
    "mBART of another width": (
        lambda: stock("mbart", d_model=8),
        "input_ids",
        lambda: batch(stock("bart"))["input_ids"],
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_any_other_encoder_is_wrapped(other: str, told: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    make, key, inputs = OTHERS[other]
    theirs = {"en": stock("bart"), "other": make()}
    given = {**batch(theirs["en"]), f"other_{key}": inputs()}
    theirs["other"].save_pretrained(tmp_path / "other")
    for place in (theirs["other"], tmp_path / "other"):
        told.clear()
        ours = convert({"en": theirs["en"], "other": place}, combiner="gated_serial")
        assert ours.config.get_source("other").kind == "pretrained"
        same(logits(ours, given), logits(theirs["en"], batch(theirs["en"])))
        wrapped = ours.model.encoder.sources["other"].model
        encoder = next(module for module in theirs["other"].modules() if type(module) is type(wrapped))
        same(wrapped(given[f"other_{key}"]).last_hidden_state, encoder(given[f"other_{key}"]).last_hidden_state)
        assert "sources.other.layer_norm.weight" in told.text and "sources.other.model" not in told.text
        assert ("sources.other.projection.weight" in told.text) == ("ViT" not in other)
        assert "cross_attn.other.q_proj" not in told.text
    with torch.no_grad():
        for layer in ours.model.decoder.layers:
            layer.cross_attn.other.gate.bias.fill_(1.0)
    assert (logits(ours, given) - logits(theirs["en"], batch(theirs["en"]))).abs().max() > 1e-3
    ours.save_pretrained(tmp_path / "ours")
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path / "ours")
    same(logits(loaded, given), logits(ours, given))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("marian", {}), ("marian", {"d_model": 8})),
        (("marian", {}), ("marian", {"activation_function": "relu"})),
        (("bart", {}), ("mbart", {})),
        (("bart", {}), ("bart", {"scale_embedding": True})),
        (("m2m_100", {}), ("mbart", {"activation_function": "relu"})),
        (("m2m_100", {}), ("m2m_100", {"pad_token_id": 3})),
    ],
)
def test_text_encoders_that_do_not_fit_the_decoder_are_wrapped(one: Any, other: Any) -> None:
    theirs = {name: stock(kind, **fields) for name, (kind, fields) in {"en": one, "de": other}.items()}
    ours = convert(theirs)
    assert [source.kind for source in ours.config.sources] == ["text", "pretrained"]
    inputs = batch(theirs["de"])
    expected = theirs["de"].get_encoder()(**inputs).last_hidden_state
    same(ours.model.encoder.sources["de"].model(**inputs).last_hidden_state, expected)
    same(logits(ours, batch(theirs["en"])), logits(theirs["en"], batch(theirs["en"])))


def test_a_wrapped_encoder_can_be_shared_frozen_and_left_without_norm() -> None:
    picture = vit()
    fields = {"photo": {"freeze": True, "norm": False, "dropout": 0.3, "source_dropout": 0.5}}
    ours = convert({"en": stock("bart"), "photo": picture, "scan": picture}, source_fields=fields)
    encoder = ours.model.encoder.sources["photo"]
    assert list(ours.model.encoder.sources) == ["en", "photo"]
    assert encoder.layer_norm is None and encoder.projection is None
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert ours.config.encoder_settings("photo").dropout == 0.3 and ours.config.source_dropouts == (0, 0.5, 0)
    pictures = {"pixel_values": drawn(3, 3, 8, 8)}
    one, other = (
        ours.get_encoder().encode_source(name, **{f"{name}_{key}": value for key, value in pictures.items()})
        for name in ("photo", "scan")
    )
    assert torch.equal(one.last_hidden_state, other.last_hidden_state)


def test_wrapped_encoders_move_with_a_model_of_ours() -> None:
    one = convert({"en": stock("bart"), "image": vit()}, combiner="gated_serial")
    with torch.no_grad():
        for layer in one.model.decoder.layers:
            layer.cross_attn.image.gate.bias.fill_(1.0)
    two = convert({"en": one, "de": stock("bart", 1), "image": one}, combiner="gated_serial")
    assert two.config.gated_sources == (False, True, True)
    given = {**batch(one), "image_pixel_values": drawn(3, 3, 8, 8)}
    same(logits(two, {**given, **batch(one, "de_")}), logits(one, given))


# Models of this package as checkpoints


@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_model_of_ours_is_taken_over_as_it_is(combiner: str, tmp_path: Path) -> None:
    theirs = three_source_model(combiner)
    theirs.save_pretrained(tmp_path)
    ours = convert(dict.fromkeys(("en", "de", "fr"), tmp_path), "fr", combiner)
    about_files = {"architectures", "auto_map", "custom_pipelines", "dtype", "_name_or_path"}
    settings = [{**model.config.to_dict(), **dict.fromkeys(about_files)} for model in (ours, theirs)]
    assert settings[0] == settings[1]
    same(
        ours(**three_source_batch(), decoder_input_ids=torch.full((5, 1), 3)).logits,
        theirs(**three_source_batch(), decoder_input_ids=torch.full((5, 1), 3)).logits,
    )


@each_exact_combiner
def test_a_source_is_added_to_a_model_of_ours(combiner: str, tmp_path: Path) -> None:
    theirs: Any = MultiSourceForConditionalGeneration(tiny_config("flat", ["source"], vocab_size=30, d_model=16)).eval()
    randomize(theirs, 0)
    theirs.save_pretrained(tmp_path)
    other: Any = MultiSourceForConditionalGeneration(tiny_config("serial", ["pl"], vocab_size=40, d_model=16)).eval()
    ours = convert({"de": other, "en": tmp_path}, "en", combiner)
    same(logits(ours, batch(theirs, "en_")), logits(theirs, batch(theirs)))
    assert ours.config.encoder_settings("de").vocab_size == 40


@pytest.mark.parametrize("fields", [{}, {"source_embeddings": True}], ids=["plain", "source_embeddings"])
def test_sources_of_ours_are_added_removed_and_put_in_another_order(fields: dict[str, Any]) -> None:
    theirs = three_source_model("serial", sources=["en", "de", {"name": "fr", "share_encoder_with": "de"}], **fields)
    ours = convert({"fr": theirs, "es": three_source_model("serial", sources=["es"], **fields), "de": theirs}, "de")
    assert ours.config.get_source("de").share_encoder_with == "fr"
    for inputs, own in (({"de_": "de"}, {"de_": "de"}), ({"": "fr"}, {"fr_": "fr"})):
        found, expected = (
            model(
                **{f"{prefix}input_ids": three_source_batch()["de_input_ids"] for prefix in prefixes},
                decoder_input_ids=torch.full((5, 1), 3),
            ).logits
            for model, prefixes in ((ours, inputs), (theirs, own))
        )
        same(found, expected)


def test_what_a_combiner_has_no_place_for_is_told(told: pytest.LogCaptureFixture) -> None:
    theirs = three_source_model("hierarchical")
    convert(dict.fromkeys(("en", "de", "fr"), theirs), combiner="hierarchical")
    assert not told.text
    convert(dict.fromkeys(("en", "de"), theirs), combiner="parallel")
    assert "are not used by the model" in told.text
    assert "cross_attn.hierarchy.q_proj.weight" in told.text
    assert "cross_attn.fr.q_proj.weight" in told.text and "cross_attn.de" not in told.text


# Processors


@cache
def tokenizer(language: str) -> Any:
    texts = {"en": ["A dog runs.", "Two cats."], "cs": ["Pes běží.", "Dvě kočky."]}
    return train_tokenizer(texts[language], "bpe", 264)


def save_with(model: PreTrainedModel, part: Any, folder: Path) -> Path:
    """A checkpoint as it lies on the Hub."""
    model.save_pretrained(folder)
    part.save_pretrained(folder)
    return folder


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """A translator, a BERT, an image network and a speech encoder."""
    sizes = {"vocab_size": 264, **OUR_IDS}
    return {
        "en": save_with(stock("bart", **sizes), tokenizer("en"), tmp_path / "bart"),
        "cs": save_with(bert(vocab_size=264, pad_token_id=0), tokenizer("cs"), tmp_path / "bert"),
        "image": save_with(vit(), ViTImageProcessorPil(size={"height": 8, "width": 8}), tmp_path / "vit"),
        "speech": save_with(wav2vec2(), Wav2Vec2FeatureExtractor(sampling_rate=8000), tmp_path / "wav2vec2"),
    }


OUR_IDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "decoder_start_token_id": 2}


def test_a_processor_is_made_of_the_same_checkpoints(places: dict[str, Path], tmp_path: Path) -> None:
    processor = MultiSourceProcessor.from_pretrained_sources(places, "en")
    assert processor.source_names == ["en", "cs", "image", "speech"]
    assert processor.source_tokenizers.keys() == {"cs"}
    sound = np.sin(np.arange(64, dtype=np.float32))
    given: dict[str, Any] = {"en": "A dog runs.", "cs": "Pes běží.", "image": Image.new("RGB", (9, 7)), "speech": sound}
    inputs = processor(**given, text_target="Two cats.", return_tensors="pt")
    assert inputs["input_ids"].tolist() == [tokenizer("en")("A dog runs.")["input_ids"]]
    assert inputs["cs_input_ids"].tolist() == [tokenizer("cs")("Pes běží.")["input_ids"]]
    assert inputs["labels"].tolist() == [tokenizer("en")("Two cats.")["input_ids"]]
    assert inputs["image_pixel_values"].shape == (1, 3, 8, 8) and inputs["speech_input_values"].shape == (1, 64)
    model = convert(places)
    assert model(**inputs).loss.isfinite()
    for part in (model, processor):
        part.save_pretrained(tmp_path / "ours")

    more = {"en": tmp_path / "ours", "de": tokenizer("cs"), "image": tmp_path / "ours"}
    other = MultiSourceProcessor.from_pretrained_sources(more, "en")
    inputs = other(en="A dog runs.", de="Pes běží.", image=Image.new("RGB", (9, 7)), return_tensors="pt")
    assert inputs["de_input_ids"].tolist() == [tokenizer("cs")("Pes běží.")["input_ids"]]
    assert other.source_tokenizers.keys() == {"de"} and other.source_processors.keys() == {"image"}


def test_a_source_of_a_processor_of_ours_keeps_its_sort() -> None:
    theirs = mixed_processor(null_token="<NULL>")
    ours = MultiSourceProcessor.from_pretrained_sources(dict.fromkeys(("speech", "regions", "en"), theirs), "en")
    assert ours.source_names == ["speech", "regions", "en"]
    assert ours.feature_sources == ["regions"] and ours.source_processors.keys() == {"speech"}
    assert ours.null_token == "<NULL>" and ours.get_tokenizer("en") is theirs.tokenizer


def test_processors_that_do_not_fit_are_refused(places: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"decoder must name one of the sources \(en, .*'de'"):
        MultiSourceProcessor.from_pretrained_sources(places, "de")
    with pytest.raises(ValueError, match=r"sources\[image\], which gives the decoder, must have a tokenizer"):
        MultiSourceProcessor.from_pretrained_sources(places, "image")
    with pytest.raises(ValueError, match=r"sources\[de\]: the checkpoint has no such source, but en, image"):
        MultiSourceProcessor.from_pretrained_sources({"en": tokenizer("en"), "de": mixed_processor()}, "en")


# What does not fit


@pytest.mark.parametrize(
    ("sources", "kwargs", "message"),
    [
        (lambda: {"en": stock("bart")}, {"decoder": "de"}, r"decoder must name one of the sources \(en\); got 'de'"),
        (
            lambda: {"en": bert()},
            {},
            "BertModel .model_type 'bert'.*: marian, bart, mbart, pegasus, m2m_100, multisource",
        ),
        (lambda: {"en": BartModel(stock("bart").config)}, {}, "BartModel .*with its output layer"),
        (lambda: {"en": stock("bart")}, {"d_model": 32}, "the configuration can set .*; got 'd_model'"),
        (
            lambda: {"en": stock("bart")},
            {"source_fields": {"en": {"layers": 1}}},
            r"source_fields\[en\] .*got 'layers'",
        ),
        (lambda: {"en": stock("bart")}, {"source_fields": {"de": {}}}, "source_fields can set en; got 'de'"),
        (lambda: {"en": stock("bart")}, {"combiner": "sum"}, "combiner must be one of .*; got 'sum'"),
        (
            lambda: {"en": three_source_model(), "es": three_source_model()},
            {},
            r"sources\[es\]: the checkpoint has no such source, but en, de, fr",
        ),
    ],
)
def test_what_cannot_be_is_refused(sources: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(sources(), **{"decoder": "en", **kwargs})


def test_models_of_ours_that_do_not_fit_together_are_refused() -> None:
    wide, narrow = (three_source_model("serial", sources=["source"], d_model=width) for width in (16, 8))
    with pytest.raises(ValueError, match=r"sources\[de\]: .* d_model=8, that of the decoder d_model=16"):
        convert({"en": wide, "de": narrow})


def test_a_checkpoint_without_the_model_that_would_be_wrapped_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"sources\[de\]: the source wraps a BertModel, which a Linear does not contain"
    ):
        broken = bert()
        broken.__class__ = type("Linear", (PreTrainedModel,), {})
        convert({"en": stock("bart"), "de": broken})


def test_a_checkpoint_with_an_adapter_is_refused() -> None:
    theirs = stock("bart")
    theirs.model.encoder.layers[0].fc1.lora_A = torch.nn.Linear(16, 2)
    with pytest.raises(ValueError, match=r"no place for: .*fc1\.lora_A\.bias.*merge it first"):
        convert({"en": theirs})


def test_weights_in_a_pickle_are_not_loaded(tmp_path: Path) -> None:
    theirs = stock("bart")
    theirs.config.save_pretrained(tmp_path)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        convert({"en": tmp_path})


# Combiner to combiner


def ready(combiner: str, names: Sequence[str], norm_position: str = "pre", **fields: Any) -> Any:
    """A model of which every conversion that its combiner allows is exact."""
    sources = [{"name": name, "gated": norm_position == "pre" and name != "en"} for name in names]
    if combiner != "gated_serial":
        sources = [{"name": name} for name in names]
    model = three_source_model(combiner, sources=sources, norm_position=norm_position, **fields).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if combiner == "weighted_sum" and "gate" in name:
                parameter.fill_(0.3)
            elif len(names) > 1 and name.endswith("cross_attn.projection.bias"):
                parameter.zero_()
    return model


def check_conversion(model: Any, combiner: str) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    new = convert_combiner(model, combiner)
    assert new.config.combiner == combiner
    labels = torch.tensor([[5, 9, 1], [6, 1, -100], [7, 1, -100], [8, 8, 1], [9, 1, -100]])
    present = (NAMES, NAMES[:2], NAMES[::2]) if len(model.config.sources) > 1 else (NAMES[:1],)
    for inputs in map(three_source_batch, present):
        same(new(**inputs, labels=labels).logits, model(**inputs, labels=labels).logits, 1e-9)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert new.generation_config is not model.generation_config


PAIRS = [
    *(("serial", "gated_serial"), ("gated_serial", "serial"), ("parallel", "projection"), ("projection", "parallel")),
    *(("mean", "weighted_sum"), ("weighted_sum", "mean"), ("mean", "context_gate"), ("weighted_sum", "context_gate")),
]


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_model_with_another_combiner_computes_the_same(old: str, new: str, norm_position: str) -> None:
    check_conversion(ready(old, NAMES, norm_position), new)


@pytest.mark.parametrize(("old", "new"), PAIRS[2:])
def test_query_norms_of_their_own_stay(old: str, new: str) -> None:
    check_conversion(ready(old, NAMES, query_norm="per_source"), new)


def test_attentions_without_bias_can_be_converted() -> None:
    check_conversion(ready("projection", NAMES, attention_bias=False), "parallel")
    check_conversion(ready("gated_serial", NAMES, attention_bias=False), "serial")
    with pytest.raises(ValueError, match="its bias is not 0"):
        convert_combiner(ready("projection", NAMES[:1], attention_bias=False), "parallel")


ALIKE_FOR_ONE = ("serial", "gated_serial", "parallel", "projection", "mean", "weighted_sum", "context_gate", "flat")


@pytest.mark.parametrize("old", ALIKE_FOR_ONE)
def test_with_one_source_any_becomes_any(old: str) -> None:
    for new in ALIKE_FOR_ONE:
        check_conversion(ready(old, NAMES[:1]), new)
    for new in ("serial", "flat"):
        check_conversion(ready(old, NAMES[:1], "post"), new)
    if old not in ("serial", "gated_serial", "flat"):
        check_conversion(ready(old, NAMES[:1], query_norm="per_source"), "flat")


def test_a_gate_of_the_only_source_is_multiplied_out() -> None:
    model = three_source_model("gated_serial", sources=[{"name": "en", "gated": True}]).double()
    for new in ALIKE_FOR_ONE:
        check_conversion(model, new)


def test_a_converted_model_is_saved_and_keeps_its_type_and_mode(tmp_path: Path) -> None:
    model = ready("parallel", NAMES).train().to(torch.bfloat16)
    new = convert_combiner(model, "projection")
    assert new.training and new.dtype == torch.bfloat16
    new.save_pretrained(tmp_path)
    loaded: Any = MultiSourceForConditionalGeneration.from_pretrained(tmp_path)
    assert all(torch.equal(value, new.state_dict()[name]) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize(
    ("old", "fields", "new", "why"),
    [
        ("serial", {}, "parallel", "there are 3 sources"),
        ("flat", {}, "serial", "there are 3 sources"),
        ("serial", {}, "hierarchical", "'hierarchical' is equivalent to no other combiner"),
        ("tanh_concat", {}, "projection", "'tanh_concat' is equivalent to no other combiner"),
        ("serial", {}, "sum", "'sum' is equivalent to no other combiner"),
        ("projection", {}, "parallel", "its bias is not 0"),
        ("weighted_sum", {}, "mean", "its weights are not equal"),
        ("context_gate", {}, "mean", "its weights depend on what is attended to"),
        ("gated_serial", {"norm_position": "post"}, "serial", "de is gated"),
    ],
)
def test_what_would_not_be_exact_is_refused(old: str, fields: dict[str, Any], new: str, why: str) -> None:
    model = three_source_model(old, **fields)
    with pytest.raises(ValueError, match=f"'{old}' cannot become '{new}' .*{why}.*Possible: .*parallel and projection"):
        convert_combiner(model, new)


# From features to what they were made of


@pytest.mark.parametrize(("combiner", "width"), [("serial", 12), ("flat_normed", 12), ("serial", 8)])
def test_a_model_trained_on_features_reads_pictures_with_the_encoder_that_made_them(combiner: str, width: int) -> None:
    network = AutoModel.from_config(
        ResNetConfig(embedding_size=8, hidden_sizes=[8, width], depths=[1, 1], layer_type="basic")
    ).eval()
    image = {"name": "image", "kind": "features", "feature_size": width, "source_dropout": 0.2}
    model: Any = MultiSourceForConditionalGeneration(tiny_config(combiner, ["en", image])).eval()
    randomize(model, 1)
    pictures, text = torch.randn(2, 3, 16, 16), {"input_ids": torch.tensor([[3, 4, 1], [5, 1, 0]])}
    present, labels = torch.tensor([[1], [1]]), torch.tensor([[6, 1], [7, 1]])
    with torch.no_grad():
        maps = network(pictures).last_hidden_state
        new = attach_encoder(model, "image", network)
        expected = model(**text, image_input_features=maps, image_attention_mask=present, labels=labels)
        actual = new(**text, image_pixel_values=pictures, image_attention_mask=present, labels=labels)
    torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-5, atol=1e-5)
    source = new.config.get_source("image")
    assert (source.kind, source.freeze, source.source_dropout) == ("pretrained", True, 0.2)
    assert not any(parameter.requires_grad for parameter in new.get_encoder().sources["image"].model.parameters())
    assert model.config.get_source("image").kind == "features"


def test_an_encoder_is_attached_only_to_features_of_its_width() -> None:
    network = AutoModel.from_config(ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1]))
    image = {"name": "image", "kind": "features", "feature_size": 13}
    model = MultiSourceForConditionalGeneration(tiny_config("serial", ["en", image]))
    with pytest.raises(ValueError, match=r"feature_size is 13; a ResNetModel makes states of 12"):
        attach_encoder(model, "image", network)
    with pytest.raises(ValueError, match=r"sources\[en\] must be of kind 'features'"):
        attach_encoder(model, "en", network)
    placed = {**image, "position_embedding": "learned"}
    with pytest.raises(ValueError, match="without layers, positions or a shared encoder"):
        attach_encoder(MultiSourceForConditionalGeneration(tiny_config("serial", ["en", placed])), "image", network)


# The combiner of a checkpoint with several sources


@pytest.mark.parametrize("combiner", ["parallel", "hierarchical", "flat"])
def test_a_model_of_several_sources_keeps_its_combiner(combiner: str, told: pytest.LogCaptureFixture) -> None:
    own = three_source_model(combiner)
    same_again = convert(dict.fromkeys(own.config.source_names, own), own.config.source_names[0])
    assert same_again.config.combiner == combiner
    inputs = three_source_batch()
    target = torch.full((5, 2), own.config.decoder_start_token_id)
    with torch.no_grad():
        answers = [model(**inputs, decoder_input_ids=target).logits for model in (own, same_again)]
    same(answers[1], answers[0])
    assert not told.text


def test_only_one_source_of_the_decoders_checkpoint_is_ungated() -> None:
    theirs = stock("bart")
    ours = convert({"de": theirs, "en": theirs, "fr": theirs}, "en", combiner="gated_serial")
    assert ours.config.gated_sources == (True, False, True)
    one = convert({"en": theirs})
    every = {**batch(one), **batch(one, "en_"), **batch(one, "fr_")}
    same(logits(ours, every), logits(one, batch(one)))


def test_another_combiner_than_the_checkpoints_is_told(told: pytest.LogCaptureFixture) -> None:
    own = three_source_model("parallel")
    names = own.config.source_names
    assert convert(dict.fromkeys(names, own), names[0], "serial").config.combiner == "serial"
    assert "combines its sources by combiner='parallel', and the new model by 'serial'" in told.text
    told.clear()
    convert({name: three_source_model("serial") for name in names}, names[0], "gated_serial")
    assert "combines its sources" not in told.text


def test_an_unknown_combiner_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match=r"^combiner must be one of 'serial', .*; got 'serail'\.$"):
        convert({"en": "nowhere/at-all"}, "en", "serail")
