"""What the configuration of an LSTM model keeps, completes and refuses."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from hf_multisource import MultiSourceConfig, MultiSourceRNNConfig, SourceConfig

SETTINGS: dict[str, Any] = {
    "sources": [
        {"name": "zulu", "vocab_size": 20, "pad_token_id": 3, "dropout": 0.2, "freeze": True},
        {"name": "arabic", "source_dropout": 0.1},
        {"name": "malay", "share_encoder_with": "zulu"},
        {"name": "yoruba", "share_embeddings_with": "arabic"},
    ],
    "combination": "child_sum",
    "cell_clip": 50.0,
    "attention": "general",
    "window": 7,
    "input_feeding": False,
    "reverse_sources": False,
    "vocab_size": 50,
    "d_model": 12,
    "num_layers": 3,
    "dropout": 0.25,
    "source_dropout": 0.15,
    "source_subsets": None,
    "absent_vectors": True,
    "init_range": 0.1,
    "final_logits_bias": True,
    "label_smoothing": 0.05,
    "use_cache": False,
    "tie_word_embeddings": True,
    "pad_token_id": 5,
    "bos_token_id": 6,
    "eos_token_id": [7, 8],
    "decoder_start_token_id": 9,
}
"""Every setting, none at its default except `source_subsets`, which excludes `source_dropout`."""


def test_json_brings_back_every_setting_and_the_order_of_the_sources(tmp_path: Path) -> None:
    MultiSourceRNNConfig(**SETTINGS).save_pretrained(tmp_path)
    loaded = MultiSourceRNNConfig.from_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert loaded.sources == [SourceConfig(**source) for source in SETTINGS["sources"]]
    assert written["sources"] == [{"kind": "text", **source} for source in SETTINGS["sources"]]
    for field, value in SETTINGS.items():
        if field != "sources":
            assert getattr(loaded, field) == written[field] == value, field
    own = {field.name for field in fields(MultiSourceRNNConfig)} - {field.name for field in fields(PreTrainedConfig)}
    assert own - {"is_encoder_decoder"} == SETTINGS.keys()
    assert not written.keys() & {"combiner", "scale_embedding", "encoder_layers"}


def test_the_defaults_are_the_papers() -> None:
    config = MultiSourceRNNConfig()
    assert (config.combination, config.attention, config.window, config.input_feeding) == ("basic", "local_p", 10, True)
    assert (config.d_model, config.num_layers, config.init_range, config.reverse_sources) == (1000, 4, 0.08, True)
    assert not config.tie_word_embeddings and config.decoder_start_token_id == config.bos_token_id
    assert (config.hidden_size, config.num_hidden_layers) == (1000, 4)
    assert config.strategy == "basic, local_p"
    without = MultiSourceRNNConfig(attention="none")
    assert without.input_feeding is False and without.strategy == "basic"
    assert MultiSourceConfig().strategy == "serial"


def test_what_an_encoder_is_built_from() -> None:
    config = MultiSourceRNNConfig(**SETTINGS)
    found = {name: config.encoder_settings(name) for name in config.source_names}
    assert [found[name].vocab_size for name in found] == [20, 50, 20, 50]
    assert [found[name].pad_token_id for name in found] == [3, 5, 3, 5]
    assert [found[name].dropout for name in found] == [0.2, 0.25, 0.2, 0.25]
    assert config.source_dropouts == (0.15, 0.1, 0.15, 0.15)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"combination": "sum"}, "combination must be one of 'basic', 'child_sum', 'none'; got 'sum'"),
        ({"attention": "local"}, "attention must be one of 'local_p', 'general', 'dot', 'none'; got 'local'"),
        ({"combination": "none"}, 'combination="none" takes one source.*there are 2'),
        ({"cell_clip": 50}, 'cell_clip needs combination="child_sum"; got 50 with .*basic'),
        ({"cell_clip": 0, "combination": "child_sum"}, r"cell_clip must be in \(0, 1e\+30\]; got 0"),
        ({"attention": "none", "input_feeding": True}, "input_feeding=True needs an attention"),
        ({"window": 0}, "window must be at least 1; got 0"),
        ({"num_layers": 0}, "num_layers must be at least 1; got 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\); got 1.0"),
        ({"init_range": 0}, r"init_range must be in \(0, 1000\]; got 0"),
        ({"d_model": "wide"}, "d_model"),
        ({"sources": []}, "at least one source"),
        ({"sources": ["en", "en"]}, "'en' occurs twice"),
        ({"sources": ["labels"]}, "'labels' is reserved"),
        ({"sources": [{"name": "de", "vocab_size": 0}]}, r"sources\[de\].vocab_size must be at least 1; got 0"),
        (
            {"sources": [{"name": "image", "kind": "features", "feature_size": 3}]},
            r"sources\[image\].kind must be one of 'text'; got 'features'",
        ),
        (
            {"sources": [{"name": "de", "layers": 2}]},
            r"sources\[de\] is of kind 'text' and so cannot set layers; it can set dropout, freeze, pad_token_id",
        ),
        ({"sources": [{"name": "de", "gated": True}]}, r"sources\[de\] .* cannot set gated"),
        ({"sources": ["en", {"name": "de", "share_embeddings_with": "en"}]}, "needs tie_word_embeddings=True"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        MultiSourceRNNConfig(**{"sources": ["en", "de"], **settings})


@pytest.mark.parametrize("own", [MultiSourceConfig, MultiSourceRNNConfig])
def test_the_configuration_of_the_other_family_is_refused_by_its_name(own: Any, tmp_path: Path) -> None:
    other: Any = MultiSourceConfig if own is MultiSourceRNNConfig else MultiSourceRNNConfig
    other().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"is a checkpoint of model_type '{other.model_type}', not '{own.model_type}'"):
        own.from_pretrained(tmp_path)
