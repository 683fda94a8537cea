"""What a configuration keeps, completes and refuses."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedConfig

from builders import tiny_config
from hf_multisource import (
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceModel,
    MultiSourceRNNConfig,
    SourceConfig,
)

SETTINGS: dict[str, Any] = {
    "sources": [
        {"name": "zulu", "layers": 3, "attention_heads": 4, "ffn_dim": 24, "dropout": 0.2},
        {"name": "arabic", "vocab_size": 20, "pad_token_id": 3},
        {"name": "malay", "position_embedding": "learned", "max_position_embeddings": 30},
        {"name": "bengali", "share_encoder_with": "zulu"},
        {"name": "yoruba", "share_embeddings_with": "arabic"},
    ],
    "combiner": "hierarchical",
    "hierarchical_heads": 2,
    "query_norm": "per_source",
    "norm_position": "pre",
    "vocab_size": 40,
    "d_model": 8,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 12,
    "decoder_layers": 5,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 14,
    "activation_function": "gelu",
    "attention_bias": False,
    "dropout": 0.3,
    "attention_dropout": 0.05,
    "activation_dropout": 0.15,
    "layer_norm_eps": 1e-6,
    "position_embedding": "sinusoidal_marian",
    "position_offset": 2,
    "max_position_embeddings": 77,
    "scale_embedding": False,
    "embedding_norm": True,
    "source_embeddings": True,
    "final_logits_bias": True,
    "source_dropout": 0.25,
    "source_subsets": None,
    "absent_vectors": True,
    "initializer": "normal",
    "init_std": 0.5,
    "label_smoothing": 0.1,
    "use_cache": False,
    "tie_word_embeddings": True,
    "pad_token_id": 5,
    "bos_token_id": 6,
    "eos_token_id": [7, 8],
    "decoder_start_token_id": 9,
}
"""Every setting, none at its default except the two that others need and `source_subsets`, which one excludes."""


def without_notes(config: MultiSourceConfig) -> dict[str, Any]:
    """The settings without what Transformers notes down beside them."""
    notes = {"_name_or_path", "architectures", "auto_map"}
    return {key: value for key, value in config.to_dict().items() if key not in notes}


def test_json_brings_back_every_setting_and_the_order_of_the_sources(tmp_path: Path) -> None:
    config = MultiSourceConfig(**SETTINGS)
    config.save_pretrained(tmp_path)
    loaded = MultiSourceConfig.from_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert loaded.source_names == ["zulu", "arabic", "malay", "bengali", "yoruba"]
    assert loaded.sources == config.sources == [SourceConfig(**source) for source in SETTINGS["sources"]]
    assert without_notes(loaded) == without_notes(config)
    for field, value in SETTINGS.items():
        if field != "sources":
            assert getattr(loaded, field) == written[field] == value, field
    assert [{"kind": "text", **source} for source in SETTINGS["sources"]] == written["sources"]


def test_every_setting_of_the_class_is_in_the_round_trip() -> None:
    own = {field.name for field in fields(MultiSourceConfig)} - {field.name for field in fields(PreTrainedConfig)}
    assert own - {"is_encoder_decoder"} <= SETTINGS.keys()


def test_no_argument_is_needed() -> None:
    config = MultiSourceConfig()
    assert config.source_names == ["source"]
    assert (config.combiner, config.norm_position, config.query_norm) == ("serial", "pre", "shared")
    assert config.is_encoder_decoder and config.tie_word_embeddings
    assert (config.pad_token_id, config.eos_token_id, config.bos_token_id, config.decoder_start_token_id) == (
        0,
        1,
        2,
        2,
    )
    assert MultiSourceConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


def test_the_start_token_is_the_bos_token_unless_given() -> None:
    assert MultiSourceConfig(bos_token_id=6).decoder_start_token_id == 6
    assert MultiSourceConfig(bos_token_id=6, decoder_start_token_id=4).decoder_start_token_id == 4


def test_names_dicts_and_source_configs_may_be_mixed() -> None:
    config = MultiSourceConfig(sources=["en", {"name": "de", "layers": 2}, SourceConfig(name="fr", ffn_dim=9)])
    assert config.sources == [
        SourceConfig(name="en"),
        SourceConfig(name="de", layers=2),
        SourceConfig(name="fr", ffn_dim=9),
    ]


def test_what_a_source_leaves_open_is_the_models() -> None:
    config = MultiSourceConfig(**SETTINGS)
    zulu, arabic, malay, _, yoruba = (config.encoder_settings(name) for name in config.source_names)
    assert (zulu.layers, zulu.attention_heads, zulu.ffn_dim, zulu.dropout) == (3, 4, 24, 0.2)
    assert (zulu.vocab_size, zulu.pad_token_id) == (40, 5)
    assert (arabic.layers, arabic.attention_heads, arabic.ffn_dim, arabic.dropout) == (2, 2, 12, 0.3)
    assert (arabic.vocab_size, arabic.pad_token_id) == (yoruba.vocab_size, yoruba.pad_token_id) == (20, 3)
    assert (arabic.position_embedding, arabic.max_position_embeddings) == ("sinusoidal_marian", 77)
    assert (malay.position_embedding, malay.max_position_embeddings) == ("learned", 30)


def test_a_source_that_shares_an_encoder_has_that_encoders_settings() -> None:
    sources = [
        {"name": "en", "vocab_size": 20, "pad_token_id": 3, "layers": 2},
        {"name": "de", "share_encoder_with": "en"},
        {"name": "fr", "share_embeddings_with": "de"},
    ]
    config = tiny_config(sources=sources)
    en, de, fr = (config.encoder_settings(name) for name in config.source_names)
    assert (de.layers, de.vocab_size, de.pad_token_id) == (en.layers, en.vocab_size, en.pad_token_id) == (2, 20, 3)
    assert (fr.layers, fr.vocab_size, fr.pad_token_id) == (1, 20, 3)


def test_all_sources_but_the_first_are_gated_unless_they_say_otherwise() -> None:
    sources: list[Any] = ["en", "de", {"name": "fr", "gated": False}, {"name": "es", "share_encoder_with": "de"}]
    config = MultiSourceConfig(sources=sources, combiner="gated_serial")
    assert config.gated_sources == (False, True, False, True)
    sources = [{"name": "en", "gated": True}, {"name": "de", "share_encoder_with": "en", "gated": False}]
    config = MultiSourceConfig(sources=sources, combiner="gated_serial")
    assert config.gated_sources == (True, False)
    assert MultiSourceConfig.from_dict(config.to_dict()).gated_sources == (True, False)


BAD = [
    ({"sources": []}, "sources.*at least one"),
    ({"sources": ["en-us"]}, "'en-us'.*identifier"),
    ({"sources": ["2nd"]}, "'2nd'.*identifier"),
    ({"sources": [""]}, "''.*identifier"),
    ({"sources": ["en", "de", "en"]}, "'en'.*twice"),
    ({"sources": ["en", "en_us"]}, "'en'.*prefix of 'en_us'"),
    ({"sources": ["en_us", "en"]}, "'en'.*prefix of 'en_us'"),
    *(
        ({"sources": ["en", name]}, f"'{name}'.*reserved")
        for name in [
            "joint",
            "hierarchy",
            "projection",
            "layer_norm",
            "padding",
            "truncation",
            "max_length",
            "return_tensors",
            "images",
            "text_target",
            "labels",
            "decoder",
            "decoder_x",
            "encoder",
            "cross_attn",
            "use_cache",
            "past_key_values",
            "cache_params",
            "output",
            "input_ids",
            "attention_mask",
        ]
    ),
    ({"sources": [{"name": "en", "kind": "smell"}]}, r"sources\[en\].kind.*'text'.*'smell'"),
    ({"sources": ["en", {"name": "de", "share_encoder_with": "fr"}, "fr"]}, r"sources\[de\].share_encoder_with.*'fr'"),
    ({"sources": [{"name": "de", "share_encoder_with": "de"}]}, r"sources\[de\].share_encoder_with.*'de'"),
    ({"sources": ["en", {"name": "de", "share_embeddings_with": "xx"}]}, r"share_embeddings_with.*\(en\).*'xx'"),
    (
        {"sources": ["en", {"name": "de", "share_embeddings_with": "en", "vocab_size": 9}]},
        r"sources\[de\].*share_embeddings_with.*vocab_size",
    ),
    (
        {"sources": ["en", {"name": "de", "share_embeddings_with": "en"}], "tie_word_embeddings": False},
        r"sources\[de\].share_embeddings_with.*tie_word_embeddings",
    ),
    *(
        (
            {"sources": [{"name": "en", "gated": gated}], "combiner": combiner},
            rf"sources\[en\].gated.*combiner='gated_serial'; got {gated} with combiner='{combiner}'",
        )
        for gated, combiner in [(True, "serial"), (False, "context_gate")]
    ),
    ({"sources": [{"name": "en", "position_embedding": "rotary"}]}, r"sources\[en\].position_embedding.*'rotary'"),
    ({"sources": [{"name": "en", "attention_heads": 3}]}, "attention_heads.*'en'.*d_model=8.*3"),
    ({"encoder_attention_heads": 3}, "attention_heads.*d_model=8.*3"),
    ({"decoder_attention_heads": 3}, "decoder_attention_heads.*d_model=8.*3"),
    ({"decoder_attention_heads": 0}, "decoder_attention_heads must be at least 1; got 0"),
    ({"hierarchical_heads": 3}, "hierarchical_heads.*d_model=8.*3"),
    (
        {"d_model": 9, "encoder_attention_heads": 3, "decoder_attention_heads": 3, "hierarchical_heads": 3},
        "d_model.*even.*9",
    ),
    *(
        ({field: value}, rf"{field}.*\[0, 1\).*{value}")
        for field in ("dropout", "attention_dropout", "activation_dropout", "label_smoothing")
        for value in (-0.1, 1.0)
    ),
    ({"norm_position": "middle"}, "norm_position.*'pre', 'post'.*'middle'"),
    ({"query_norm": "none"}, "query_norm.*'shared', 'per_source'.*'none'"),
    ({"query_norm": "per_source", "norm_position": "post"}, "query_norm.*per_source.*norm_position"),
    ({"position_embedding": "rotary"}, "position_embedding.*'sinusoidal', 'sinusoidal_marian', 'learned'.*'rotary'"),
    ({"initializer": "zeros"}, "initializer.*'normal', 'xavier_uniform'.*'zeros'"),
    ({"d_model": "8"}, "d_model.*int.*str"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_a_bad_value_is_refused_with_its_field_and_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(StrictDataclassError, match=f"(?s){message}"):
        tiny_config(**fields)


@pytest.mark.parametrize("field", ["vocab_size", "d_model", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim"])
@pytest.mark.parametrize("value", [0, -2])
def test_sizes_are_positive(field: str, value: int) -> None:
    name = field.removeprefix("encoder_")
    with pytest.raises(StrictDataclassError, match=rf"(?s){name}.*at least 1; got {value}"):
        tiny_config(**{field: value})  # type: ignore[arg-type]


def test_an_encoder_may_have_no_layers_but_not_fewer() -> None:
    assert tiny_config(encoder_layers=0).encoder_settings("en").layers == 0
    with pytest.raises(StrictDataclassError, match="encoder_layers must be at least 0; got -1"):
        tiny_config(encoder_layers=-1)


def test_configurations_of_the_same_sources_do_not_change_each_other() -> None:
    source = SourceConfig(name="image", kind="features", feature_size=8)
    MultiSourceConfig.paper(sources=["en", source])
    assert source.norm is None and source.dropout is None
    one = tiny_config(sources=["en", {"name": "de", "vocab_size": 60}])
    other = tiny_config(sources=one.sources)
    other.get_source("de").vocab_size = 70
    assert one.get_source("de").vocab_size == 60


@pytest.mark.parametrize("name", ["use", "past", "return", "position", "input", "max", "self"])
def test_a_name_that_would_swallow_a_keyword_of_the_library_is_refused(name: str) -> None:
    with pytest.raises(StrictDataclassError, match=f"source name '{name}' is reserved"):
        tiny_config(sources=["en", name])


def test_icelandic_is_a_source_though_its_code_is_a_python_keyword() -> None:
    assert tiny_config(sources=["is", "as"]).source_inputs({"input_ids": 1, "as_input_ids": 2}).keys() == {"is", "as"}


def test_keywords_that_are_no_sources_tensor_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'de_inputids' is no keyword of a source; .*input_ids"):
        tiny_config().source_inputs({"input_ids": 1, "de_inputids": 1})


def test_an_unknown_activation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"activation_function must be one of .*'relu'.*; got 'rleu'"):
        MultiSourceForConditionalGeneration(tiny_config(activation_function="rleu"))


@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5])
def test_the_dropout_of_a_source_is_a_probability_too(value: float) -> None:
    with pytest.raises(StrictDataclassError, match=rf"(?s)dropout.*\[0, 1\).*{value}"):
        tiny_config(sources=[{"name": "en", "dropout": value}])


@pytest.mark.parametrize("sources", ["en", 3, [3], [None]])
def test_sources_are_a_list_of_names_or_source_configs(sources: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="sources"):
        MultiSourceConfig(sources=sources)


@pytest.mark.parametrize("setting", [{"layers": 3}, {"vocab_size": 9}, {"share_embeddings_with": "en"}])
def test_a_shared_encoder_leaves_nothing_to_set(setting: dict[str, Any]) -> None:
    with pytest.raises(StrictDataclassError, match=rf"(?s)sources\[de\].*share_encoder_with.*{next(iter(setting))}"):
        tiny_config(sources=["en", {"name": "de", "share_encoder_with": "en", **setting}])


@pytest.mark.parametrize("name", ["config", "drop", "training", "keys", "forward"])
@pytest.mark.parametrize("combiner", ["serial", "flat"])
def test_a_name_that_modules_use_themselves_is_refused_by_name(name: str, combiner: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)source name '{name}'"):
        MultiSourceForConditionalGeneration(tiny_config(combiner, ["en", name]))


def test_a_misspelled_setting_of_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sources\[en\]: .*layer"):
        MultiSourceConfig(sources=[{"name": "en", "layer": 2}])


def test_a_value_is_checked_when_it_is_assigned_and_when_it_is_saved(tmp_path: Path) -> None:
    config = tiny_config()
    with pytest.raises(StrictDataclassError, match="d_model"):
        config.d_model = "wide"  # type: ignore[assignment]
    config.norm_position = "middle"
    with pytest.raises(StrictDataclassError, match="norm_position"):
        config.save_pretrained(tmp_path)


def test_an_unknown_combiner_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"combiner must be one of 'serial', 'parallel'.*'crosswise'"):
        MultiSourceForConditionalGeneration(tiny_config("crosswise"))


def test_an_unknown_source_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"'fr'.*en, de"):
        tiny_config().get_source("fr")


def test_the_paper_preset_is_what_the_authors_code_does() -> None:
    config = MultiSourceConfig.paper(sources=["es", "fr"], d_model=16, encoder_layers=1, decoder_layers=1)
    assert (config.norm_position, config.query_norm, config.attention_bias) == ("pre", "shared", False)
    assert (config.position_embedding, config.position_offset) == ("sinusoidal", 0)
    assert (config.scale_embedding, config.embedding_norm) == (False, False)
    assert (config.activation_function, config.layer_norm_eps) == ("relu", 1e-6)
    assert (config.tie_word_embeddings, config.final_logits_bias) == (True, False)
    assert config.initializer == "xavier_uniform"

    model = MultiSourceForConditionalGeneration(config)
    parameters = dict(model.named_parameters())
    projections = re.compile(r"[qkv]_proj|out_proj")
    assert not [name for name in parameters if projections.search(name) and name.endswith("bias")]
    assert len([name for name in parameters if re.search(r"fc[12]\.bias", name)]) == 2 * 3  # es, fr, decoder
    assert model.lm_head.bias is None
    assert model.lm_head.weight is model.model.decoder.embeddings.tokens.weight
    for part in [*model.model.encoder.sources.values(), model.model.decoder]:
        assert isinstance(part.layer_norm, nn.LayerNorm) and part.layer_norm.eps == 1e-6  # one final norm each
        assert part.embeddings.layer_norm is None
    for name, parameter in parameters.items():
        if parameter.dim() == 2:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert parameter.abs().max() <= bound, name
            assert parameter.abs().max() > 0.9 * bound, name


def test_the_paper_drops_out_inside_the_feed_forward_layers_too() -> None:
    # guides: "dropout on hidden and on output"; there is one rate
    assert MultiSourceConfig.paper(dropout=0.3).activation_dropout == 0.3
    assert MultiSourceConfig.paper(dropout=0.3, activation_dropout=0.0).activation_dropout == 0.0


def test_the_paper_drops_nothing_out_of_pictures() -> None:
    image = {"name": "image", "kind": "features", "feature_size": 5}
    again = {"name": "again", "kind": "features", "share_encoder_with": "image"}
    config = MultiSourceConfig.paper(sources=["en", image, again], dropout=0.3)
    assert [config.encoder_settings(name).dropout for name in config.source_names] == [0.3, 0.0, 0.0]
    own = MultiSourceConfig.paper(sources=["en", {**image, "dropout": 0.2}], dropout=0.3)
    assert own.encoder_settings("image").dropout == 0.2
    assert MultiSourceConfig(sources=["en", image], dropout=0.3).encoder_settings("image").dropout == 0.3


def test_a_field_given_to_the_paper_preset_wins() -> None:
    config = MultiSourceConfig.paper(attention_bias=True, norm_position="post", d_model=64)
    assert (config.attention_bias, config.norm_position, config.d_model) == (True, "post", 64)
    assert config.scale_embedding is False


def test_an_old_config_file_loads_with_todays_defaults(tmp_path: Path) -> None:
    old = {"model_type": "multisource", "sources": [{"name": "en"}, {"name": "de"}], "d_model": 64}
    (tmp_path / "config.json").write_text(json.dumps(old))
    config = MultiSourceConfig.from_pretrained(tmp_path)
    expected = MultiSourceConfig(sources=["en", "de"], d_model=64)
    assert without_notes(config) == without_notes(expected)


def test_keywords_are_sorted_by_source_whatever_their_order() -> None:
    config = tiny_config(sources=["en", "de", "fr"])
    ids = [torch.zeros(1, i) for i in range(6)]
    found = config.source_inputs(
        {
            "fr_inputs_embeds": ids[0],
            "labels": ids[1],
            "decoder_input_ids": ids[1],
            "decoder_attention_mask": ids[1],
            "decoder_inputs_embeds": ids[1],
            "output_attentions": True,
            "de_input_ids": None,
            "de_attention_mask": ids[4],
            "attention_mask": ids[3],
            "input_ids": ids[2],
        }
    )
    assert list(found) == ["en", "fr"]  # de has a mask but no text
    assert found["en"].keys() == {"input_ids", "attention_mask"}
    assert found["en"]["input_ids"] is ids[2] and found["en"]["attention_mask"] is ids[3]
    assert found["fr"].keys() == {"inputs_embeds"} and found["fr"]["inputs_embeds"] is ids[0]


def test_a_keyword_of_a_source_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'es_input_ids'.*en, de"):
        tiny_config().source_inputs({"input_ids": 1, "es_input_ids": 1})
    with pytest.raises(ValueError, match=r"'es_attention_mask'.*en, de"):
        tiny_config().source_inputs({"input_ids": 1, "es_attention_mask": None})


def test_source_0_with_its_name_in_front_is_refused_and_told_the_keyword() -> None:
    with pytest.raises(ValueError, match=r"'en_input_ids': the keywords of source 0 have no prefix: use 'input_ids'"):
        tiny_config().source_inputs({"en_input_ids": 1, "de_input_ids": 1})


def test_a_call_without_any_source_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"no source is given.*en, de"):
        tiny_config().source_inputs({"attention_mask": 1, "de_input_ids": None, "labels": 1})


def test_settings_of_generation_do_not_land_in_the_config(tmp_path: Path) -> None:
    generation: dict[str, Any] = {"num_beams": 7, "max_length": 9, "length_penalty": 2.0}
    config = MultiSourceConfig(sources=["en"], **generation)
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    for field in generation:
        assert field not in written and not hasattr(config, field)


def test_the_decoders_sizes_are_what_caches_are_built_by() -> None:
    config = tiny_config(encoder_layers=2, decoder_layers=5, encoder_attention_heads=2, decoder_attention_heads=4)
    decoder = config.get_text_config(decoder=True)
    assert (decoder.num_hidden_layers, decoder.num_attention_heads) == (5, 4)
    assert (decoder.hidden_size, decoder.vocab_size) == (8, 16)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (8, 2, 2)


def test_a_copy_shares_nothing_that_can_change() -> None:
    config = tiny_config()
    other = MultiSourceConfig.from_dict(config.to_dict())
    other.sources[0].layers = 9
    assert config.sources[0].layers is None


@pytest.mark.parametrize("family", [MultiSourceConfig, MultiSourceRNNConfig])
def test_sources_that_are_set_or_added_later_become_source_configs(family: Any) -> None:
    config = family(sources=["en", "de"])
    config.sources = ["en", {"name": "de", "source_dropout": 0.5}]
    config.sources.append("fr")
    config.sources += ["cs"]
    config.sources.insert(0, "pl")
    config.sources[1] = "it"
    config.sources[3:] = ["es"]
    assert config.source_names == ["pl", "it", "de", "es"]
    assert all(isinstance(source, SourceConfig) for source in config.sources)
    assert family.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert copy.deepcopy(config).source_names == pickle.loads(pickle.dumps(config)).source_names == config.source_names
    for wrong, shown in (("en", "'en'"), ([3], "3")):
        with pytest.raises(ValueError, match=f"^sources must .*; got {shown}\\.$"):
            config.sources = wrong
    assert config.source_names == ["pl", "it", "de", "es"]


def test_sources_are_found_and_removed_by_name_or_as_they_are() -> None:
    sources = tiny_config("serial", ["en", "de", "fr"]).sources
    assert "de" in sources and sources[1] in sources and "es" not in sources
    assert sources.index("de") == sources.index(sources[1]) == sources.index("de", 1, 2) == 1
    sources.remove("en")
    sources.remove(sources[1])
    assert [source.name for source in sources] == ["de"]
    for missing in (lambda: sources.remove("es"), lambda: sources.index("es"), lambda: sources.index("de", 1)):
        with pytest.raises(ValueError, match=r"^there is no source '..' among de"):
            missing()


def test_a_model_is_not_built_of_settings_that_became_wrong_later() -> None:
    config = tiny_config("serial", ["en", "de"])
    config.sources.append("e$")
    with pytest.raises(StrictDataclassError, match=r"source name 'e\$' must be an identifier"):
        MultiSourceModel(config)
