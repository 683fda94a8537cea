"""Files of a checkpoint have no code run, no pickle read, no other place contacted and no question asked."""

from __future__ import annotations

import builtins
import json
import pickle
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, CLIPConfig, PreTrainedConfig

from builders import SMALL, three_source_model, three_source_processor, tiny_config
from hf_multisource import (
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceModel,
    MultiSourceProcessor,
    SourceConfig,
)
from hf_multisource.cli import push, score, translate
from hf_multisource.foreign import load_auto
from hf_multisource.foreign_settings import check_settings
from hf_multisource.recipes.pretrained import load_config, load_preprocessor
from kinds import mixed_processor

WITHOUT_AUTO_MODEL = "clipseg_text_model"  # a type of configuration that Transformers has, and AutoModel has not
STRANGE = {
    "AutoModel": "stranger--code.Evil",
    "AutoConfig": "stranger--code.Evil",
    "AutoTokenizer": ["code.Evil", None],
}
BERT = {"model_type": "bert", **SMALL}


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> Any:
        return Path.touch, (self.sign,)


@pytest.fixture(autouse=True)
def nobody_to_ask_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        pytest.fail("it asked a question, or looked for another machine")

    monkeypatch.setattr(builtins, "input", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its processor."""
    folder = tmp_path_factory.mktemp("saved")
    processor = three_source_processor()
    three_source_model(vocab_size=len(processor.tokenizer)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(saved, tmp_path / "model")


def edit(file: Path, **fields: Any) -> Path:
    """Change fields of a JSON file; None removes one."""
    content = {**json.loads(file.read_text("utf-8")), **fields} if file.exists() else fields
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), "utf-8")
    return file


def put_code(folder: Path) -> Path:
    """A module that leaves a file when it is imported; returns that file."""
    sign = folder.parent / "code was run"
    (folder / "code.py").write_text(f"from pathlib import Path\nPath({str(sign)!r}).touch()\nclass Evil: ...\n")
    return sign


# Code


@pytest.mark.parametrize("inner", [False, True], ids=["the encoder", "a part of the encoder"])
def test_a_wrapped_encoder_brings_no_code_and_asks_nothing(inner: bool, tmp_path: Path) -> None:
    sign = put_code(tmp_path)
    code = {"auto_map": {"AutoModel": "code.Evil"}, "_name_or_path": str(tmp_path)}
    encoder = {"model_type": WITHOUT_AUTO_MODEL, **code}
    if inner:
        part = {"model_type": "clip_vision_model", **SMALL, **code}
        encoder = {"model_type": "vision-encoder-decoder", "encoder": part, "decoder": {**BERT, **code}}
    config = tiny_config(sources=[{"name": "en", "kind": "pretrained", "encoder": encoder}])
    assert "auto_map" not in json.dumps(config.to_dict()["sources"])
    with pytest.raises(ValueError, match=r"sources\[en\]\.encoder"):
        MultiSourceForConditionalGeneration(config)
    assert not sign.exists()


def test_a_configuration_that_a_user_gives_loses_its_references_in_a_copy() -> None:
    given: Any = CLIPConfig()
    for config in (given, given.text_config):
        config.auto_map, config._name_or_path = dict(STRANGE), "stranger/code"
    source = SourceConfig(name="en", kind="pretrained", encoder=given)
    for config in (source.encoder, source.encoder.text_config):
        assert not hasattr(config, "auto_map") and not config._name_or_path
    assert "stranger" not in json.dumps(source.to_dict())
    assert given.auto_map == STRANGE and given._name_or_path == "stranger/code"


@pytest.mark.parametrize(
    "call",
    [
        lambda place: load_config(str(place)),
        lambda place: translate.main([str(place)]),
        lambda place: push.main([str(place), "org/name"]),
        lambda place: score.main(
            [str(place), *("--data", str(place), "--target", "cs", "--split", "test", "--out", f"{place}/out")]
        ),
    ],
    ids=["load_config", "translate", "push", "score"],
)
def test_an_unknown_type_with_code_ends_in_one_line(call: Callable[[Path], Any], folder: Path) -> None:
    sign = put_code(folder)
    edit(folder / "config.json", model_type="stranger", auto_map={"AutoConfig": "code.Evil"})
    with pytest.raises((ValueError, SystemExit)) as caught:
        call(folder)
    message = str(caught.value)
    assert "needs code of its own (auto_map), which is not run" in message and "\n" not in message
    assert not sign.exists()


@pytest.mark.parametrize(("given", "passed"), [({}, False), ({"trust_remote_code": None}, False)])
def test_a_processor_never_leaves_it_to_transformers_to_ask(
    given: dict[str, Any], passed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mixed_processor().save_pretrained(tmp_path)
    seen = []
    for name in ("AutoTokenizer", "AutoImageProcessor", "AutoFeatureExtractor"):
        loader = getattr(transformers, name)

        def spy(place: Any, *, _load: Any = loader.from_pretrained, **kwargs: Any) -> Any:
            seen.append(kwargs["trust_remote_code"])
            return _load(place, **kwargs)

        monkeypatch.setattr(loader, "from_pretrained", spy)
    MultiSourceProcessor.from_pretrained(tmp_path, **given)
    MultiSourceProcessor.from_pretrained(tmp_path, trust_remote_code=True)
    assert seen == [passed] * 3 + [True] * 3


def test_a_custom_generate_function_is_not_asked_about(folder: Path) -> None:
    sign = put_code(folder)
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "code.py", folder / "custom_generate" / "generate.py")
    model = MultiSourceForConditionalGeneration.from_pretrained(folder)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        model.generate(input_ids=torch.tensor([[4, 5, 1]]), max_new_tokens=2, custom_generate=str(folder))
    assert not sign.exists()


# Files that name other files


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A checkpoint as a source may wrap it."""
    BertModel(BertConfig(vocab_size=20, **SMALL)).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_an_index_of_a_wrapped_model_names_no_pickles(bert: Path) -> None:
    weights = load_file(bert / "model.safetensors")
    torch.save(weights, bert / "weights.bin")
    (bert / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, "weights.bin")}
    (bert / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"index\.json: weight_map must name \.safetensors files of the checkpoint"):
        load_auto("AutoModel", bert)


def test_another_configuration_file_is_checked_like_the_first(bert: Path) -> None:
    shutil.copy(bert / "config.json", bert / "config.4.0.0.json")
    edit(bert / "config.4.0.0.json", attn_implementation="org/kernel")
    edit(bert / "config.json", configuration_files=["config.4.0.0.json"])
    for loader in ("AutoConfig", "AutoModel"):
        with pytest.raises(ValueError, match=r"config\.4\.0\.0\.json: attn_implementation must not be 'org/kernel'"):
            load_auto(loader, bert)


def test_an_adapter_leads_to_no_other_model(bert: Path) -> None:
    (bert / "config.json").unlink()
    (bert / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "org/name"}))
    with pytest.raises(ValueError, match="holds an adapter of another model"):
        load_auto("AutoModel", bert)


def test_an_adapter_leads_to_no_other_adapters(folder: Path) -> None:
    edit(folder / "config.json", use_cache=False)
    adapter = {"peft_type": "XLORA", "hidden_size": 8, "adapters": {"0": "org/name"}, "base_model_name_or_path": "x"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    save_file({}, folder / "adapter_model.safetensors")
    model = three_source_model()
    for load in (
        MultiSourceForConditionalGeneration.from_pretrained,
        model.load_adapter,
        lambda place: load_auto("AutoModelForSeq2SeqLM", place),
    ):
        with pytest.raises(ValueError, match="adapters must not name further adapters to load"):
            load(str(folder))


@pytest.mark.parametrize("key", ["vocab", "merges", "init_inputs"])
def test_a_tokenizer_reads_no_file_outside(key: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\nsecret\n")
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    value = [str(secret)] if key == "init_inputs" else str(secret)
    edit(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer", **{key: value})
    with pytest.raises(ValueError, match=rf"tokenizer_config\.json: {key} must not be .*: it names a file to read"):
        load_auto("AutoTokenizer", folder)


# What is saved again


def references_in(folder: Path) -> set[str]:
    """Every name of code in the JSON files of a folder."""
    found = set()

    def collect(value: Any, inside: bool) -> None:
        if isinstance(value, dict):
            for key, held in value.items():
                collect(held, inside or key in ("auto_map", "impl"))
        elif isinstance(value, list):
            for held in value:
                collect(held, inside)
        elif inside and isinstance(value, str):
            found.add(value)

    for file in folder.rglob("*.json"):
        if file.name != "tokenizer.json":
            collect(json.loads(file.read_text("utf-8")), False)
    return found


def test_no_reference_to_a_strangers_code_is_saved_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    processor = mixed_processor("en", "image", "speech")
    encoder = BertConfig(**SMALL)
    config = tiny_config(sources=["en", {"name": "de", "kind": "pretrained", "encoder": encoder}])
    MultiSourceForConditionalGeneration(config).save_pretrained(first)
    processor.save_pretrained(first)
    ours = references_in(first)
    assert ours and not any("--" in name for name in ours)
    written = json.loads((first / "config.json").read_text())
    written["sources"][1]["encoder"] |= {"auto_map": STRANGE, "_name_or_path": "stranger/code"}
    pipelines = {"steal": {"impl": "code.Evil", "pt": ["AutoModel"]}}
    edit(first / "config.json", auto_map=STRANGE, custom_pipelines=pipelines, sources=written["sources"])
    for name in ("processor_config.json", "tokenizer_config.json"):
        edit(first / name, auto_map=STRANGE)
    for name in ("image", "speech"):
        classes = {"AutoImageProcessor": "code.Evil", "AutoFeatureExtractor": "stranger--code.Evil"}
        edit(first / f"{name}_processor" / "preprocessor_config.json", auto_map=classes)
    put_code(first)
    MultiSourceForConditionalGeneration.from_pretrained(first).save_pretrained(second)
    MultiSourceProcessor.from_pretrained(first).save_pretrained(second)
    assert references_in(second) == ours
    assert "stranger" not in "".join(file.read_text("utf-8") for file in second.rglob("*.json"))
    MultiSourceConfig.from_pretrained(first).save_pretrained(tmp_path / "third")
    assert references_in(tmp_path / "third") <= ours


def test_the_parts_that_a_user_gives_are_saved_without_references(tmp_path: Path) -> None:
    made = mixed_processor("en", "image")
    made.tokenizer.init_kwargs["auto_map"] = dict(STRANGE)
    made.source_processors["image"].auto_map = dict(STRANGE)
    again = MultiSourceProcessor(made.tokenizer, ["en", "image"], source_processors=made.source_processors)
    again.save_pretrained(tmp_path)
    assert not any("Evil" in name for name in references_in(tmp_path))


# Settings of wrapped models


@pytest.mark.parametrize(
    ("encoder", "key"),
    [
        ({"model_type": "detr", "backbone": "org/name", "use_timm_backbone": False}, "backbone"),
        ({"model_type": "detr", "use_pretrained_backbone": True}, "use_pretrained_backbone"),
        ({"model_type": "timm_backbone", "backbone": "hf-hub:org/name"}, "backbone"),
        (
            {"model_type": "upernet", "backbone_config": {"model_type": "detr", "backbone": "x"}},
            "backbone_config.backbone",
        ),
        ({"model_type": "timm_wrapper", "architecture": "hf-hub:org/name"}, "architecture"),
        ({"model_type": "timm_wrapper", "architecture": " HF_hub:org/name"}, "architecture"),
        ({"model_type": "timm_wrapper", "architecture": "local-dir:/etc"}, "architecture"),
        ({"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "/x.bin"}}, "model_args.checkpoint_path"),
        ({"model_type": "timm_wrapper", "model_args": {"pretrained_cfg": {"file": "/x.bin"}}}, "model_args"),
        ({"model_type": "timm_wrapper", "model_args": {"pretrained": True}}, "model_args"),
        ({**BERT, "attn_implementation": "org/kernel"}, "attn_implementation"),
        ({**BERT, "experts_implementation": {"": "org/kernel"}}, "experts_implementation"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["model_type"],
)
def test_settings_that_would_load_something_are_refused_by_name(encoder: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"sources\[en\]\.encoder\.{key} must not be "):
        SourceConfig(name="en", kind="pretrained", encoder=encoder)
    fields = {"sources": [{"name": "de"}, {"name": "en", "kind": "pretrained", "encoder": encoder}]}
    with pytest.raises(ValueError, match=rf"sources\[en\]\.encoder\.{key} must not be "):
        MultiSourceConfig.from_dict(fields)


@pytest.mark.parametrize("key", ["a\nb", "a" * 10_000])
def test_the_path_of_a_refused_setting_is_shown_in_one_short_line(key: str) -> None:
    with pytest.raises(ValueError, match="backbone must not be") as caught:
        check_settings({key: {"backbone": "org/name"}, "name": key})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_harmless_settings_of_the_same_names_are_kept() -> None:
    encoder = {**BERT, "attn_implementation": "eager", "use_pretrained_backbone": False, "backbone": None}
    config = SourceConfig(name="en", kind="pretrained", encoder=encoder).encoder
    assert config._attn_implementation == "eager"


@pytest.mark.parametrize("key", ["attn_implementation", "transformers_weights"])
def test_our_own_config_json_names_no_kernel_and_no_pickle(key: str, folder: Path) -> None:
    edit(folder / "config.json", **{key: "org/pytorch_model.bin"})
    for load in (MultiSourceForConditionalGeneration.from_pretrained, lambda place: load_config(str(place))):
        with pytest.raises(ValueError, match=f"{key} must not be 'org/pytorch_model.bin'"):
            load(folder)


def test_a_checkpoint_that_is_named_as_an_encoder_contacts_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "detr", "backbone": "org/name", "use_timm_backbone": False})
    )
    for loader in ("AutoConfig", "AutoModel", "AutoTokenizer", "AutoImageProcessor"):
        with pytest.raises(ValueError, match=r"config\.json: backbone must not be 'org/name'"):
            load_auto(loader, tmp_path)


@pytest.mark.parametrize("encoder", [{"model_type": "upernet", "backbone_config": 3}, {**BERT, "hidden_size": "big"}])
def test_settings_that_make_no_configuration_are_named(encoder: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"sources\[en\]"):
        MultiSourceForConditionalGeneration(
            tiny_config(sources=[{"name": "en", "kind": "pretrained", "encoder": encoder}])
        )


# Classes that files name


def bomb_beside(folder: Path) -> Path:
    """A model in a pickle; returns the file that it would leave."""
    folder.mkdir(exist_ok=True)
    sign = folder.parent / "it went off"
    (folder / "config.json").write_text(json.dumps(BERT))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(sign)))
    return sign


@pytest.mark.parametrize("name", ["AutoModel", "AutoTokenizer", "BertModel", "pipeline", "", 3, None, ["AutoModel"]])
def test_a_part_of_a_processor_is_of_a_class_for_parts(name: Any, tmp_path: Path) -> None:
    mixed_processor("en", "image").save_pretrained(tmp_path)
    sign = bomb_beside(tmp_path / "image_processor")
    parts = {"image": {"auto_class": name, "backend": "pil"}}
    edit(tmp_path / "processor_config.json", source_processors=parts)
    with pytest.raises(
        ValueError, match=r"processor_config\.json: source_processors\.image\.auto_class must be one of"
    ):
        MultiSourceProcessor.from_pretrained(tmp_path)
    assert not sign.exists()


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("tokenizer_config.json", "tokenizer_class"),
        ("image_processor/preprocessor_config.json", "image_processor_type"),
        ("speech_processor/preprocessor_config.json", "feature_extractor_type"),
    ],
)
@pytest.mark.parametrize("name", ["AutoModel", "BertModel", "AutoModelFast", 5])
def test_a_class_that_a_file_names_is_of_the_right_kind(file: str, key: str, name: Any, tmp_path: Path) -> None:
    mixed_processor("en", "image", "speech").save_pretrained(tmp_path)
    sign = bomb_beside((tmp_path / file).parent)
    edit(tmp_path / file, **{key: name})
    with pytest.raises(ValueError, match=rf"{file}: {key} must name a \w.* of Transformers; got "):
        MultiSourceProcessor.from_pretrained(tmp_path)
    assert not sign.exists()


@pytest.mark.parametrize("kind", ["AutoModel", "BertModel", "pipeline", "BertTokenizer", 3, None])
def test_a_recipe_names_image_processors_and_feature_extractors_only(kind: Any) -> None:
    with pytest.raises(ValueError, match="must name an image processor or feature extractor of Transformers"):
        load_preprocessor({"image_processor_type": kind, "task": "text-generation"}, "picture")


def test_a_recipe_whose_settings_do_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="no settings of a Wav2Vec2FeatureExtractor"):
        load_preprocessor({"feature_extractor_type": "Wav2Vec2FeatureExtractor", "self": 1}, "sound")


@pytest.mark.parametrize("separate", [False, True])
def test_a_processor_has_no_audio_tokenizer(separate: bool, tmp_path: Path) -> None:
    mixed_processor("en", "image").save_pretrained(tmp_path)
    sign = bomb_beside(tmp_path / "bomb")
    named = {"audio_tokenizer_class": "BertModel", "audio_tokenizer_name_or_path": str(tmp_path / "bomb")}
    if separate:
        edit(tmp_path / "audio_tokenizer_config.json", **named)
    else:
        edit(tmp_path / "processor_config.json", audio_tokenizer=named)
    with pytest.raises(ValueError, match=r"audio.tokenizer"):
        MultiSourceProcessor.from_pretrained(tmp_path)
    assert not sign.exists()


# Names and values of processors


@pytest.mark.parametrize("name", ["../other", "a/b", "/tmp/x", "..", "", "a b", "images", "labels_1"])
def test_names_of_sources_stay_inside_the_folder(name: str, tmp_path: Path) -> None:
    processor = mixed_processor("en", "image")
    processor.save_pretrained(tmp_path / "here")
    for key, value in (("source_names", ["en", "image", name]), ("source_tokenizers", [name])):
        shutil.copytree(tmp_path / "here", tmp_path / key)
        edit(tmp_path / key / "processor_config.json", **{key: value})
        with pytest.raises(ValueError, match=rf"processor_config\.json: {key}"):
            MultiSourceProcessor.from_pretrained(tmp_path / key)
    with pytest.raises(ValueError, match="source_names: source name"):
        MultiSourceProcessor(processor.tokenizer, ["en", name])
    before = set(tmp_path.rglob("*"))
    processor.source_names.append(name)
    processor.source_tokenizers[name] = processor.tokenizer
    with pytest.raises(ValueError, match="source_names: source name"):
        processor.save_pretrained(tmp_path / "here")
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("names", ["load", [3], [None], {"en"} - {"en"}, [["en"]]])
def test_source_names_are_a_list_of_names(names: Any) -> None:
    with pytest.raises(ValueError, match="source_names must"):
        MultiSourceProcessor(three_source_processor().tokenizer, names)


@pytest.mark.parametrize(
    "fields",
    [
        {"source_names": "load"},
        {"source_names": 3},
        {"source_names": {"en": 1}},
        {"source_names": ["en", 3]},
        {"source_names": []},
        {"source_names": ["en", "en"]},
        {"source_tokenizers": "en"},
        {"source_tokenizers": ["xx"]},
        {"source_tokenizers": {"en": {}}},
        {"source_processors": []},
        {"source_processors": {"image": "AutoImageProcessor"}},
        {"source_processors": {"image": {}}},
        {"source_processors": {"image": {"auto_class": "AutoImageProcessor", "backend": "x"}}},
        {"source_processors": {"image": {"auto_class": "AutoImageProcessor", "revision": "x"}}},
        {"source_processors": {"xx": {"auto_class": "AutoImageProcessor"}}},
        {"feature_sources": "en"},
        {"feature_sources": ["xx"]},
        {"null_token": 3},
        {"null_token": ["a"]},
        {"chat_template": 3},
        {"unreadable": {}},
        {"to_dict": 1},
    ],
    ids=str,
)
def test_a_wrong_value_of_a_processor_is_named_with_its_file(fields: dict[str, Any], tmp_path: Path) -> None:
    mixed_processor("en", "image").save_pretrained(tmp_path)
    edit(tmp_path / "processor_config.json", **fields)
    with pytest.raises(ValueError, match=rf"{tmp_path}/processor_config\.json: '?{next(iter(fields))}"):
        MultiSourceProcessor.from_pretrained(tmp_path)


@pytest.mark.parametrize("content", ["[]", "3", "{", "", "\xff", "[" * 100_000])
@pytest.mark.parametrize(
    "file", ["processor_config.json", "tokenizer_config.json", "image_processor/preprocessor_config.json"]
)
def test_a_file_of_a_processor_that_is_no_object_is_named(file: str, content: str, tmp_path: Path) -> None:
    mixed_processor("en", "image").save_pretrained(tmp_path)
    (tmp_path / file).write_text(content, "latin-1")
    with pytest.raises(ValueError, match=rf"{file} (must hold a JSON object|holds no valid JSON)"):
        MultiSourceProcessor.from_pretrained(tmp_path)


@pytest.mark.parametrize("fields", [{"auto_map": 3}, {"added_tokens_decoder": {"x": 3}}, {"extra_special_tokens": 5}])
def test_settings_of_a_tokenizer_that_make_no_sense_end_in_one_error(fields: dict[str, Any], tmp_path: Path) -> None:
    mixed_processor("en", "image").save_pretrained(tmp_path)
    edit(tmp_path / "tokenizer_config.json", **fields)
    with pytest.raises(ValueError):
        MultiSourceProcessor.from_pretrained(tmp_path)


# Weights


def change(folder: Path, how: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change the weights of a checkpoint."""
    weights = load_file(folder / "model.safetensors")
    how(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


load = MultiSourceForConditionalGeneration.from_pretrained


@pytest.mark.parametrize("model", [MultiSourceForConditionalGeneration, MultiSourceModel])
def test_weights_of_a_layer_that_are_missing_are_named(model: Any, folder: Path) -> None:
    lost = "model.decoder.layers.0.feed_forward."

    def lose(weights: dict[str, torch.Tensor]) -> None:
        for key in [key for key in weights if key.startswith(lost)]:
            del weights[key]

    change(folder, lose)
    with pytest.raises(
        ValueError, match=r"6 weights are missing \(.*decoder\.layers\.0\.feed_forward.*, …\)\. If that"
    ):
        model.from_pretrained(folder)
    _, report = model.from_pretrained(folder, ignore_mismatched_sizes=True, output_loading_info=True)
    assert len(report["missing_keys"]) == 6


def test_weights_of_other_shapes_are_named(folder: Path) -> None:
    edit(folder / "config.json", decoder_ffn_dim=32)
    with pytest.raises(ValueError, match=r"weights have other shapes \(\S*fc1\.bias \[16\] in place of \[32\], "):
        load(folder)
    load(folder, ignore_mismatched_sizes=True)


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_may_be_new_and_a_body_may_be_taken_alone(tied: bool, tmp_path: Path) -> None:
    config = tiny_config(tie_word_embeddings=tied, final_logits_bias=True)
    whole = MultiSourceForConditionalGeneration(config)
    whole.save_pretrained(tmp_path / "whole")
    MultiSourceModel.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "body")
    again, report = load(tmp_path / "body", output_loading_info=True)
    assert report["missing_keys"] == {"final_logits_bias"} | (set() if tied else {"lm_head.weight"})
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name])
    change(tmp_path / "whole", lambda weights: weights.pop("final_logits_bias"))
    with pytest.raises(ValueError, match=r"1 weights are missing \(final_logits_bias\)"):
        load(tmp_path / "whole")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weights_that_are_no_numbers_are_named(value: float, dtype: torch.dtype, folder: Path) -> None:
    name = "model.encoder.sources.de.layers.0.self_attn.q_proj.weight"

    def spoil(weights: dict[str, torch.Tensor]) -> None:
        for key in weights:
            weights[key] = weights[key].to(dtype)
        weights[name][1, 2] = value

    change(folder, spoil)
    for ignore in (False, True):
        with pytest.raises(ValueError, match=f"its weight {name} holds NaN or infinite values"):
            load(folder, dtype=dtype, ignore_mismatched_sizes=ignore)


def test_large_weights_whose_sum_overflows_are_taken(folder: Path) -> None:
    change(folder, lambda weights: weights["model.encoder.sources.de.layer_norm.weight"].fill_(3e38))
    assert load(folder).model.encoder.sources["de"].layer_norm.weight[0] == 3e38


def test_a_configuration_keeps_its_type_and_its_parts() -> None:
    """What is wrapped is what was given, in a copy of its own."""
    given: Any = CLIPConfig(vision_config={"hidden_size": 24}).vision_config
    kept: Any = SourceConfig(name="en", kind="pretrained", encoder=given).encoder
    assert type(kept) is type(given) and isinstance(kept, PreTrainedConfig) and kept is not given
    assert kept.to_dict() == given.to_dict()
