"""A checkpoint that cannot be what the user meant is refused, and the error says what is wrong with it."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
)

from builders import EVERY_COMBINER, NAMES, three_source_model, three_source_processor, tiny_config
from hf_multisource import (
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceModel,
    MultiSourceProcessor,
    MultiSourceRNNConfig,
    foreign,
)
from hf_multisource.foreign import load_auto

STOCK: dict[str, Any] = {
    "vocab_size": 20,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 20,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
load = MultiSourceForConditionalGeneration.from_pretrained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good checkpoint of three sources, to spoil."""
    three_source_model("hierarchical").save_pretrained(tmp_path / "model")
    load(tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder: Path, **fields: Any) -> Path:
    """Change fields of `config.json` without checking them."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **fields}), "utf-8")
    return folder


def named(names: Iterable[str]) -> list[dict[str, str]]:
    """Sources as `config.json` holds them."""
    return [{"name": name, "kind": "text"} for name in names]


@pytest.mark.feature("Hub", "A checkpoint of another model is refused by name")
@pytest.mark.parametrize(
    ("kind", "stock"),
    [
        ("marian", lambda: MarianMTModel(MarianConfig(**STOCK))),
        ("bart", lambda: BartForConditionalGeneration(BartConfig(**STOCK))),
    ],
    ids=["Marian", "BART"],
)
@pytest.mark.parametrize("model", [MultiSourceModel, MultiSourceForConditionalGeneration, MultiSourceConfig])
def test_a_stock_checkpoint_is_refused(model: Any, kind: str, stock: Any, tmp_path: Path) -> None:
    stock().save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=f"is a checkpoint of model_type '{kind}', not 'multisource'; load it with Auto"
    ):
        model.from_pretrained(tmp_path)


def test_stock_weights_under_our_configuration_are_refused(tmp_path: Path) -> None:
    MarianMTModel(MarianConfig(**STOCK)).save_pretrained(tmp_path)
    config = tiny_config(d_model=16, vocab_size=20)
    with pytest.raises(ValueError, match="the configuration has en, de; the weights lack en, de"):
        load(tmp_path, config=config)


@pytest.mark.feature("Hub", "A truncated safetensors file is refused by name")
@pytest.mark.parametrize("size", [0, 4, 100, -1], ids=["empty", "no header", "half a header", "last byte missing"])
@pytest.mark.parametrize("auto", [MultiSourceForConditionalGeneration, AutoModelForSeq2SeqLM])
def test_truncated_weights_are_refused(auto: Any, size: int, folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(
        OSError, match=r"model: model\.safetensors is damaged or was cut short \(.+\); copy or download"
    ):
        auto.from_pretrained(folder)


def test_among_shards_the_truncated_one_is_named(tmp_path: Path) -> None:
    three_source_model().save_pretrained(tmp_path, max_shard_size="20KB")
    shard = next(tmp_path.glob("model-00002-of-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(OSError, match=rf": {shard.name} is damaged"):
        load(tmp_path)


@pytest.mark.feature("Hub", "A missing shard is named")
def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    three_source_model().save_pretrained(tmp_path, max_shard_size="20KB")
    shard = next(tmp_path.glob("model-00002-of-*.safetensors"))
    shard.unlink()
    with pytest.raises(OSError, match=shard.name):
        load(tmp_path)


@pytest.mark.feature("Hub", "A config.json with wrong types is refused by field")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": "big"}, r"'d_model' expected int, got str \(value: 'big'\)"),
        ({"decoder_layers": 2.5}, "'decoder_layers' expected int, got float"),
        ({"dropout": "0.1"}, "'dropout' expected float, got str"),
        ({"combiner": 3}, "'combiner' expected str, got int"),
        ({"combiner": "concat"}, "combiner must be one of 'serial', .*; got 'concat'"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' expected bool, got str"),
        ({"sources": "en"}, "sources must be a list of names, dicts or SourceConfigs; got 'en'"),
        ({"sources": {"en": {}}}, "sources must be a list"),
        ({"sources": [3]}, "sources must hold names, dicts or SourceConfigs; got 3"),
        ({"sources": []}, "sources"),
        ({"sources": [{"name": "en", "layers": "two"}]}, r"(?s)sources\[en\]: .*'layers' expected int, got str"),
        ({"sources": [{"name": "en"}, {"name": "de", "layer": 2}]}, r"sources\[de\]: .*'layer'"),
        ({"sources": [{"name": "en"}, {"layers": 2}]}, r"sources\[1\]: .*'name'"),
        ({"d_model": 32}, "ignore_mismatched_sizes"),
        ({"model_type": "marian"}, "model_type 'marian'"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(fields: dict[str, Any], message: str, folder: Path) -> None:
    edit_config(folder, **fields)
    with pytest.raises((ValueError, TypeError, RuntimeError, StrictDataclassError), match=message):
        load(folder)


def test_the_error_of_a_source_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^sources\[en\]: .*'layers' expected int, got str \(value: 'two'\)[^\n]*$"):
        MultiSourceConfig(sources=[{"name": "en", "layers": "two"}])


def test_commands_name_a_source_whose_name_is_no_text(folder: Path) -> None:
    edit_config(folder, sources=[{"name": ["en"], "kind": "text"}])
    with pytest.raises(ValueError, match=r"^sources\[\['en'\]\]: .*'name' expected str, got list"):
        load_auto("AutoModelForSeq2SeqLM", folder)


def test_a_tokenizer_that_is_missing_is_named(tmp_path: Path) -> None:
    three_source_processor().save_pretrained(tmp_path)
    path = tmp_path / "processor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "source_tokenizers": ["de"]}), "utf-8")
    with pytest.raises(ValueError, match=r": de_tokenizer cannot be loaded: [^\n]+$"):
        MultiSourceProcessor.from_pretrained(tmp_path)


@pytest.mark.parametrize("config", [MultiSourceConfig, MultiSourceRNNConfig])
def test_a_key_that_python_cannot_pass_on_is_named(config: Any) -> None:
    with pytest.raises(ValueError, match=r"^'self' is not a setting of MultiSource\w*Config; got 2\.$"):
        config.from_dict({"self": 2})


def test_a_config_that_is_no_json_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{", "utf-8")
    with pytest.raises(OSError, match=r"config\.json' is not a valid JSON file"):
        load(folder)


@pytest.mark.feature("Hub", "A source that the weights lack is an error")
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("model", [MultiSourceForConditionalGeneration, MultiSourceModel, AutoModelForSeq2SeqLM])
@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_a_source_that_the_weights_lack_is_named(combiner: str, model: Any, tied: bool, tmp_path: Path) -> None:
    three_source_model(combiner, tie_word_embeddings=tied).save_pretrained(tmp_path)
    edit_config(tmp_path, sources=named([*NAMES, "es"]))
    with pytest.raises(ValueError, match=r"configuration has en, de, fr, es; the weights lack es\. If that is meant"):
        model.from_pretrained(tmp_path)


@pytest.mark.feature("Hub", "A source that the configuration lacks is an error")
@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_a_source_that_the_configuration_lacks_is_named(combiner: str, tmp_path: Path) -> None:
    three_source_model(combiner).save_pretrained(tmp_path)
    edit_config(tmp_path, sources=named(NAMES[:2]))
    with pytest.raises(ValueError, match=r"the configuration has en, de; the weights have fr, too\. If that is meant"):
        load(tmp_path)


def test_a_renamed_source_is_named_twice(folder: Path) -> None:
    edit_config(folder, sources=named(["en", "de", "es"]))
    with pytest.raises(ValueError, match="the weights lack es; the weights have fr, too"):
        load(folder)


def test_a_source_without_an_encoder_of_its_own_is_missed_in_the_decoder(folder: Path) -> None:
    edit_config(folder, sources=[*named(NAMES), {"name": "es", "share_encoder_with": "de"}])
    with pytest.raises(ValueError, match="the weights lack es"):
        load(folder)


@pytest.mark.feature("Hub", "Sources added or removed on purpose, with ignore_mismatched_sizes")
@pytest.mark.parametrize("names", [[*NAMES, "es"], NAMES[:2]], ids=["added", "removed"])
@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_sources_may_be_added_and_removed_on_purpose(combiner: str, names: list[str], tmp_path: Path) -> None:
    old = three_source_model(combiner)
    old.save_pretrained(tmp_path)
    edit_config(tmp_path, sources=named(names))
    new, report = load(tmp_path, ignore_mismatched_sizes=True, output_loading_info=True)
    assert new.config.source_names == list(names)
    kept = old.state_dict().keys() & new.state_dict().keys()
    assert {"model.encoder.sources.de.layer_norm.weight", "lm_head.weight"} <= kept
    for name in kept:
        torch.testing.assert_close(new.state_dict()[name], old.state_dict()[name], rtol=0, atol=0)
    drawn = new.state_dict().keys() - kept
    assert report["missing_keys"] == drawn
    assert all(".es." in name and new.state_dict()[name].isfinite().all() for name in drawn)


class Bomb:
    """Says so when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.feature("Hub", "No pickle is ever loaded")
@pytest.mark.parametrize("auto", [MultiSourceForConditionalGeneration, AutoModelForSeq2SeqLM, MultiSourceModel])
@pytest.mark.parametrize("plain", [False, True], ids=["torch file", "bare pickle"])
def test_weights_in_a_pickle_are_refused(plain: bool, auto: Any, folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    weights, sign = folder / "pytorch_model.bin", tmp_path / "it went off"
    if plain:
        weights.write_bytes(pickle.dumps(Bomb(sign)))
    else:
        torch.save({"lm_head.weight": Bomb(sign)}, weights)
    with pytest.raises(OSError, match=r"holds its weights in a pickle \(pytorch_model\.bin\), which is never loaded"):
        auto.from_pretrained(folder)
    assert not sign.exists()
    pickle.loads(pickle.dumps(Bomb(sign)))
    assert sign.exists()


@pytest.mark.feature("Hub", "No pickle is ever loaded")
@pytest.mark.parametrize("auto", [MultiSourceForConditionalGeneration, AutoModelForSeq2SeqLM])
@pytest.mark.parametrize(
    "shard", ["weights.bin", "../model.safetensors", "/model.safetensors", "C:\\model.safetensors"]
)
def test_an_index_names_no_pickles_and_nothing_outside(auto: Any, shard: str, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "weights.bin")
    shutil.move(folder / "model.safetensors", folder.parent / "model.safetensors")
    for name in ("model.safetensors.index.json", "other.safetensors.index.json"):
        index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, shard)}
        (folder / name).write_text(json.dumps(index))
        with pytest.raises(
            ValueError, match=r"index\.json: weight_map must name \.safetensors files of the checkpoint"
        ):
            auto.from_pretrained(folder)
        (folder / name).unlink()
        edit_config(folder, transformers_weights="other.safetensors.index.json")


def test_a_pickle_is_not_loaded_on_demand_either(folder: Path) -> None:
    with pytest.raises(ValueError, match="use_safetensors must not be False"):
        load(folder, use_safetensors=False)


def test_a_pickle_beside_good_weights_is_not_looked_at(folder: Path, tmp_path: Path) -> None:
    sign = tmp_path / "it went off"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(sign)))
    load(folder)
    assert not sign.exists()


def test_weights_that_are_missing_altogether_are_missed(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        load(folder)


def test_a_model_may_be_filled_from_a_state_dict(folder: Path) -> None:
    model = load(folder)
    again = load(None, config=model.config, state_dict=model.state_dict())
    for name, weight in again.state_dict().items():
        torch.testing.assert_close(weight, model.state_dict()[name], rtol=0, atol=0)


def test_the_loading_info_is_given_where_it_is_asked_for(folder: Path) -> None:
    _, report = load(folder, output_loading_info=True)
    assert (set(report["missing_keys"]), set(report["unexpected_keys"])) == (set(), set())


def test_the_order_of_sources_is_the_configurations(folder: Path) -> None:
    edit_config(folder, sources=named(NAMES[::-1]))
    assert load(folder).config.source_names == ["fr", "de", "en"]


def test_the_name_of_a_class_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up a deprecated variant of the name would log a warning."""
    looked: list[str] = []

    class Names:
        def __getattr__(self, name: str) -> Any:
            looked.append(name)
            return getattr(transformers, name)

    monkeypatch.setattr(foreign, "transformers", Names())
    assert foreign._may_be("ViTImageProcessorPil", (transformers.BaseImageProcessor,))
    assert looked == ["ViTImageProcessorPil"]
    assert not foreign._may_be("BertModel", (transformers.BaseImageProcessor,))
