"""Nonsense in a configuration is refused by name before a model is built from it, in both families."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, BartConfig, BertConfig, PreTrainedConfig, ViTConfig, WhisperConfig

from cpu_time import cpu_seconds
from hf_multisource import MultiSourceConfig, MultiSourceRNNConfig, SourceConfig
from hf_multisource.limits import LIMITS, RANGES, check_encoder_settings, check_range
from hf_multisource.messages import shown, shown_key
from hf_multisource.weight_checks import check_sources

FAMILIES: list[Any] = [MultiSourceConfig, MultiSourceRNNConfig]
REFUSALS = (ValueError, StrictDataclassError)
NOT_FINITE = (math.nan, math.inf, -math.inf)
NUMBER_TYPES = {"int", "float | int", "int | None", "float | int | None"}
TOKEN_IDS = {"pad_token_id", "bos_token_id", "decoder_start_token_id"}


def numeric_fields(kind: Any) -> list[str]:
    """Names of the numeric fields that this package adds to the configuration."""
    inherited = {field.name for field in fields(PreTrainedConfig)}
    written = {field.name: getattr(field.type, "__name__", str(field.type)) for field in fields(kind)}
    return [name for name, type_name in written.items() if type_name in NUMBER_TYPES and name not in inherited]


def refusal(kind: Any, **settings: Any) -> str:
    """The message with which a configuration is refused."""
    with pytest.raises(REFUSALS) as caught:
        kind(**settings)
    return str(caught.value)


@pytest.fixture
def own_limits() -> Iterator[dict[str, int]]:
    """The bounds, which are as they were after the test."""
    before = dict(LIMITS)
    yield MultiSourceConfig.limits
    LIMITS.clear()
    LIMITS.update(before)


def test_every_number_has_a_range() -> None:
    for kind in (*FAMILIES, SourceConfig):
        assert len(numeric_fields(kind)) >= 7
        assert set(numeric_fields(kind)) - TOKEN_IDS <= RANGES.keys()


@pytest.mark.parametrize("kind", FAMILIES)
def test_no_number_is_nonsense(kind: Any) -> None:
    for field in numeric_fields(kind):
        for value in (*NOT_FINITE, -5, -0.5, 2**63, 10**5000, True):
            message = refusal(kind, **{field: value})
            assert field in message and len(message) < 400, (field, message)


@pytest.mark.parametrize("kind", FAMILIES)
def test_no_number_of_a_source_is_nonsense(kind: Any) -> None:
    features = {"kind": "features", "feature_size": 3} if kind is MultiSourceConfig else {}
    for field in numeric_fields(SourceConfig):
        for value in (*NOT_FINITE, -5, -0.5, 2**63, 10**5000, True):
            source = {"name": "en", **(features if field == "feature_size" else {}), field: value}
            message = refusal(kind, sources=[source])
            assert field in message and "en" in message, (field, message)


@pytest.mark.parametrize("field", [field for field, rule in RANGES.items() if rule.limit])
def test_the_bound_of_a_size_may_be_raised_on_purpose(field: str, own_limits: dict[str, int]) -> None:
    limit = RANGES[field].limit or ""
    size = own_limits[limit] + 1
    check_range(field, size - 1, field)
    with pytest.raises(ValueError, match=rf"{field} must be at most {size - 1}; got {size}\. .*'{limit}'\] = {size}"):
        check_range(field, size, field)
    own_limits[limit] = size
    check_range(field, size, field)


def test_a_raised_bound_is_that_of_both_families_and_of_wrapped_encoders(own_limits: dict[str, int]) -> None:
    own_limits["layers"] = 2_000
    source = {"name": "en", "kind": "pretrained", "encoder": {"model_type": "bert", "num_hidden_layers": 1_500}}
    assert MultiSourceConfig(decoder_layers=1_500, sources=[source]).decoder_layers == 1_500
    assert MultiSourceRNNConfig(num_layers=1_500).num_layers == 1_500


def test_a_file_cannot_raise_a_bound(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "multisource", "limits": {"max_position_embeddings": 10**9}}), "utf-8"
    )
    with pytest.raises(ValueError, match="'limits' is not a setting but an attribute of MultiSourceConfig"):
        MultiSourceConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer_norm_eps": math.nan}, "layer_norm_eps must be in (0, 1]; got nan."),
        ({"layer_norm_eps": -1}, "layer_norm_eps must be in (0, 1]; got -1."),
        ({"layer_norm_eps": 0}, "layer_norm_eps must be in (0, 1]; got 0."),
        ({"position_offset": -5}, "position_offset must be at least 0; got -5."),
        ({"init_std": math.inf}, "init_std must be in [0, 1000]; got inf."),
        ({"max_position_embeddings": 10**8}, "max_position_embeddings must be at most 1048576; got 100000000."),
        ({"encoder_layers": 10**4}, "encoder_layers must be at most 1000; got 10000."),
        ({"sources": [f"s{i}" for i in range(300)]}, "the number of sources must be at most 256; got 300."),
        ({"sources": [{"name": "en", "layers": 10**4}]}, "sources[en].layers must be at most 1000; got 10000."),
        ({"sources": [{"name": "im", "kind": "features"}]}, "sources[im].feature_size must be at least 1; got None."),
        (
            {"sources": [{"name": "im", "kind": "features", "feature_size": 0}]},
            "sources[im].feature_size must be at least 1; got 0.",
        ),
    ],
    ids=str,
)
def test_the_message_says_what_is_allowed(settings: dict[str, Any], message: str) -> None:
    assert message in refusal(MultiSourceConfig, **settings)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pad_token_id": -1}, "pad_token_id must be None or a token id from 0 to 49 (the vocabulary has 50 tokens)"),
        ({"pad_token_id": 50}, "pad_token_id must be None or a token id from 0 to 49"),
        ({"eos_token_id": [1, 50]}, "eos_token_id must be None or a token id from 0 to 49"),
        ({"eos_token_id": []}, "eos_token_id must be a token id, a list of some, or None; got []"),
        ({"bos_token_id": 99}, "bos_token_id must be None"),
        ({"decoder_start_token_id": 99}, "decoder_start_token_id must be None"),
        (
            {"sources": [{"name": "de", "vocab_size": 4, "pad_token_id": 4}]},
            "sources[de].pad_token_id must be None or a token id from 0 to 3 (the vocabulary has 4 tokens); got 4.",
        ),
        (
            {"sources": [{"name": "de", "vocab_size": 4}], "pad_token_id": 7},
            "sources[de].pad_token_id must be None or a token id from 0 to 3 (the vocabulary has 4 tokens); got 7.",
        ),
        ({"is_encoder_decoder": False}, "is_encoder_decoder must be True; got False."),
        ({"sources": "load"}, "sources must be a list of names, dicts or SourceConfigs; got 'load'."),
        ({"sources": [["en"]]}, "sources must hold names, dicts or SourceConfigs; got ['en']."),
        ({"sources": [{"name": "en", "share_encoder_with": "en"}]}, "must name an earlier source"),
        ({"sources": [{"name": "en", "kind": "pretrained", "encoder": "bert"}]}, "or its dict; got 'bert'."),
        ({"sources": [{"name": "en", "encoder": 3}]}, "sources[en].encoder must be the configuration"),
        ({"dtype": "foo"}, "dtype must be one of 'float32', "),
        ({"torch_dtype": "save"}, "dtype must be one of 'float32', "),
        ({"dtype": []}, "dtype must be one of 'float32', "),
        ({"id2label": 3}, "id2label must be Mapping; got 3."),
        ({"per_layer_config": "a"}, "per_layer_config must be Mapping; got 'a'."),
        ({"quantization_config": [1]}, "quantization_config must be a Mapping; got [1]."),
        ({"_attn_implementation": 2}, "_attn_implementation must be str or Mapping; got 2."),
        ({"num_labels": math.nan}, "num_labels must be a whole number; got nan."),
        ({"num_labels": None}, "num_labels must be a whole number; got None."),
        ({"num_labels": 10**9}, "num_labels must be at most 262144; got 1000000000."),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(kind: Any, settings: dict[str, Any], message: str) -> None:
    assert message in refusal(kind, **{"vocab_size": 50, **settings})


@pytest.mark.parametrize("names", ["load", ["en", 3]])
def test_names_are_a_list_of_strings(names: Any) -> None:
    with pytest.raises(ValueError, match="the names of sources must be a list of strings; got"):
        MultiSourceConfig.check_source_names(names)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_key_does_not_hide_an_attribute(kind: Any) -> None:
    """Neither one of the class's own, nor one that it has of Transformers, nor one of every object."""
    own = {field.name for field in fields(kind)}
    found = [key for base in kind.__mro__ for key in vars(base) if key not in own]
    hidden = {"source_kinds", "to_dict", "source_names", "encoder_owner", "validate", "attribute_map", "__class__"}
    assert hidden <= set(found)
    for key in found:
        if isinstance(member := getattr(kind, key), property) and member.fset is not None:
            continue
        assert f"{key!r} is not a setting but an attribute of {kind.__name__}" in refusal(kind, **{key: 1})
    assert "is not a setting" in refusal(kind, **{"sources.en": 1})


@pytest.mark.parametrize("kind", FAMILIES)
def test_other_keys_are_kept_as_transformers_does(kind: Any, tmp_path: Path) -> None:
    config = kind(foo=1, auto_map={}, num_labels=3, name_or_path="x", hidden_size=64, model_type=kind.model_type)
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert (again.foo, again.num_labels, again.d_model) == (1, 3, 64)


def test_a_deeply_nested_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": ' + "[" * 100_000 + "]" * 100_000 + "}", "utf-8")
    with pytest.raises(ValueError, match=r"config\.json is nested too deeply"):
        MultiSourceConfig.from_pretrained(tmp_path)


ENCODERS: list[Any] = [BertConfig, BartConfig, ViTConfig, WhisperConfig]


@pytest.mark.parametrize("kind", ENCODERS)
def test_absurd_sizes_of_a_wrapped_encoder_are_refused_where_they_stand(kind: Any) -> None:
    stock = kind().to_dict()
    check_encoder_settings(stock, "here")
    sizes = [key for key, value in stock.items() if type(value) is int and value > 1 and "token_id" not in key]
    assert len(sizes) >= 5
    for key in sizes:
        source = {"name": "en", "kind": "pretrained", "encoder": {**stock, key: 10**8}}
        assert f"sources[en].encoder.{key} must be at most " in refusal(MultiSourceConfig, sources=[source])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text_config": {"num_hidden_layers": 5000}}, "here.text_config.num_hidden_layers must be at most 1000"),
        ({"depths": [2, 2, 10**4]}, r"here.depths\[2\] must be at most 1000"),
        ({"hidden_sizes": [8, 10**7]}, r"here.hidden_sizes\[1\] must be at most 262144"),
        ({"vocab_size": 10**9}, "here.vocab_size must be at most 33554432"),
        ({"max_position_embeddings": 10**8}, "here.max_position_embeddings must be at most 1048576"),
        (
            {"number_of_things": 10**5000},
            "here.number_of_things must be at most 16777216; got an integer of 16610 bits",
        ),
    ],
    ids=[*"123456"],
)
def test_sizes_are_found_at_any_depth(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_encoder_settings(settings, "here")


def test_nested_settings_of_an_encoder_need_no_stack() -> None:
    settings: dict[str, Any] = {"rope_theta": 10**9, "is_decoder": True, "pad_token_id": -1}
    for _ in range(10**4):
        settings = {"inner": settings}
    check_encoder_settings(settings, "here")


def test_values_are_shown_in_one_short_line() -> None:
    assert shown("a\nb") == repr("a\nb") and shown(10**30) == str(10**30)
    assert shown(-(10**5000)) == "an integer of 16610 bits"
    assert len(shown("x" * 10**6)) == 100
    assert shown_key("a\nb") == r"a\nb" and shown_key(3) == "3"
    assert shown_key("x" * 98) == "x" * 98 and shown_key("x" * 99) == "x" * 95 + "..."
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == shown([10**5000]) == "list"


def test_missing_sources_are_found_in_linear_time() -> None:
    """10,000 sources took minutes, as all missing keys were read again for each source."""
    names = [f"s{i}" for i in range(10_000)]
    missing = [f"model.encoder.sources.{name}.tokens.weight" for name in names]
    model = SimpleNamespace(
        config=SimpleNamespace(source_names=names),
        state_dict=lambda: dict.fromkeys([*missing, "model.decoder.layer_norm.weight"]),
        all_tied_weights_keys={},
    )

    def check() -> None:
        with pytest.raises(ValueError, match="the weights lack s0, s1, "):
            check_sources(model, {"missing_keys": missing, "unexpected_keys": ["encoder"]}, "here")

    assert cpu_seconds(check, 5) < 5
