"""Which checkpoints can become a source, where they are loaded from, and what is refused before anything is loaded."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    BertModel,
    BitsAndBytesConfig,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    MT5Config,
    MT5EncoderModel,
    MT5ForConditionalGeneration,
    MT5Model,
    PreTrainedModel,
    SiglipConfig,
    SiglipModel,
    SiglipVisionConfig,
    SiglipVisionModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5EncoderModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
    WhisperModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from builders import three_source_model
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.foreign import load_auto
from hf_multisource.recipes.pretrained import load_encoder
from hf_multisource.recipes.tokenization import train_tokenizer
from stock_models import T5, batch, bert, convert, drawn, logits, same, stock

pytestmark = pytest.mark.pairs

LAYER: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
VISION: dict[str, Any] = {**LAYER, "hidden_size": 8, "image_size": 8, "patch_size": 4}
TEXT: dict[str, Any] = {**LAYER, "hidden_size": 16, "vocab_size": 30, "max_position_embeddings": 20}
WHISPER: dict[str, Any] = {
    **{f"{part}_{field}": size for part in ("encoder", "decoder") for field, size in (("layers", 1), ("ffn_dim", 8))},
    **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
    **{"vocab_size": 30, "d_model": 8, "num_mel_bins": 4, "max_source_positions": 8, "pad_token_id": 0},
}


def clip() -> CLIPModel:
    return CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=8)).eval()


def siglip() -> SiglipModel:
    return SiglipModel(SiglipConfig(text_config=TEXT, vision_config=VISION)).eval()


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "T5EncoderModel": lambda: T5EncoderModel(T5Config(**T5)),
    "T5ForConditionalGeneration": lambda: T5ForConditionalGeneration(T5Config(**T5)),
    "MT5EncoderModel": lambda: MT5EncoderModel(MT5Config(**T5)),
    "MT5Model": lambda: MT5Model(MT5Config(**T5)),
    "MT5ForConditionalGeneration": lambda: MT5ForConditionalGeneration(MT5Config(**T5)),
    "UMT5EncoderModel": lambda: UMT5EncoderModel(UMT5Config(**T5)),
    "CLIPVisionModel": lambda: CLIPVisionModel(CLIPVisionConfig(**VISION)),
    "CLIPTextModel": lambda: CLIPTextModel(CLIPTextConfig(**TEXT)),
    "SiglipVisionModel": lambda: SiglipVisionModel(SiglipVisionConfig(**VISION)),
    "WhisperModel": lambda: WhisperModel(WhisperConfig(**WHISPER)),
    "WhisperForConditionalGeneration": lambda: WhisperForConditionalGeneration(WhisperConfig(**WHISPER)),
}


def inputs_of(model: Any) -> Tensor:
    texts = batch(stock("bart"))["input_ids"]
    inputs = {"input_ids": texts, "pixel_values": drawn(3, 3, 8, 8), "input_features": drawn(3, 4, 16)}
    return inputs[model.main_input_name]


def wrapped_by(model: Any, name: str = "other") -> Any:
    return model.model.encoder.sources[name].model


@torch.no_grad()
def states(model: Any) -> Tensor:
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    answer: Tensor = encoder(inputs_of(encoder)).last_hidden_state
    return answer


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("saved", [pytest.param(False, marks=pytest.mark.slow), True], ids=["in memory", "saved"])
def test_the_encoder_of_a_model_is_wrapped(kind: str, saved: bool, tmp_path: Path) -> None:
    theirs = MODELS[kind]().eval()
    expected = states(theirs)
    theirs.save_pretrained(tmp_path / "other")
    ours = convert({"en": stock("bart"), "other": tmp_path / "other" if saved else theirs})
    same(states(wrapped_by(ours)), expected)
    ours.save_pretrained(tmp_path / "ours")
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path / "ours")
    given = {**batch(stock("bart")), f"other_{wrapped_by(ours).main_input_name}": inputs_of(wrapped_by(ours))}
    same(logits(loaded, given), logits(ours, given))


@pytest.mark.parametrize("kind", ["T5EncoderModel", "MT5ForConditionalGeneration"])
def test_no_decoder_is_loaded_beside_the_encoder_of_a_t5(kind: str, tmp_path: Path) -> None:
    MODELS[kind]().save_pretrained(tmp_path)
    assert not any("decoder" in key for key in load_encoder(str(tmp_path)).state_dict())


@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "saved"])
@pytest.mark.parametrize(
    ("make", "halves"), [(clip, "CLIPVisionModel or CLIPTextModel"), (siglip, "SiglipVisionModel")]
)
def test_a_model_of_two_halves_is_refused_and_the_halves_are_named(
    make: Any, halves: str, saved: bool, tmp_path: Path
) -> None:
    theirs = make()
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"sources\[image\]: a {type(theirs).__name__} .*: load .* as {halves}"):
        convert({"en": stock("bart"), "image": tmp_path if saved else theirs})


def test_half_of_a_clip_is_taken_from_the_whole_checkpoint(tmp_path: Path) -> None:
    theirs = clip()
    theirs.save_pretrained(tmp_path)
    half = CLIPVisionModel.from_pretrained(tmp_path)
    ours = convert({"en": stock("bart"), "image": half})
    pictures = drawn(3, 3, 8, 8)
    same(wrapped_by(ours, "image")(pictures).last_hidden_state, theirs.vision_model(pictures).last_hidden_state)


# What is refused at once


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where the weights of a model are loaded."""

    def load(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", load)


def pickled(model: PreTrainedModel, folder: Path) -> Path:
    """A checkpoint with a pickle only."""
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


@pytest.fixture
def good(tmp_path: Path) -> Path:
    stock("bart").save_pretrained(tmp_path / "good")
    return tmp_path / "good"


@pytest.mark.usefixtures("nothing_loads")
class TestRefusedBeforeAnythingIsLoaded:
    @pytest.mark.parametrize("subfolder", [False, True])
    def test_a_pickle(self, subfolder: bool, good: Path, tmp_path: Path) -> None:
        where: dict[str, Any] = {}
        place = pickled(bert(), tmp_path / "pickled")
        if subfolder:
            shutil.move(place, tmp_path / "outer" / "inner")
            place, where = tmp_path / "outer", {"subfolder": {"other": "inner"}}
        with pytest.raises(OSError, match=r"pickle \(pytorch_model\.bin\).* never loaded.*save_pretrained"):
            convert({"en": good, "other": place}, **where)

    def test_a_t5_as_the_decoder(self, good: Path, tmp_path: Path) -> None:
        MODELS["T5ForConditionalGeneration"]().save_pretrained(tmp_path / "t5")
        expected = (
            r"sources\[t5\] cannot give the decoder: .*model_type 't5'.* marian, .*another source give the decoder"
        )
        with pytest.raises(ValueError, match=expected):
            convert({"en": good, "t5": tmp_path / "t5"}, decoder="t5")

    def test_an_unknown_combiner(self, good: Path) -> None:
        with pytest.raises(ValueError, match=r"combiner must be one of 'serial', .*; got 'sum'"):
            convert({"en": good}, combiner="sum")

    @pytest.mark.parametrize("decoder", ["en", "other"])
    def test_a_folder_without_a_model(self, decoder: str, good: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"config\.json"):
            convert({"en": good, "other": tmp_path}, decoder=decoder)

    def test_two_halves(self, good: Path, tmp_path: Path) -> None:
        clip().config.save_pretrained(tmp_path / "clip")
        with pytest.raises(ValueError, match="CLIPVisionModel"):
            convert({"en": good, "image": tmp_path / "clip"})

    def test_an_adapter(self, tmp_path: Path) -> None:
        (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/name"}', "utf-8")
        with pytest.raises(ValueError, match="holds an adapter of another model"):
            convert({"en": tmp_path})

    @pytest.mark.parametrize(
        ("option", "value"), [("device_map", "auto"), ("quantization_config", BitsAndBytesConfig(load_in_8bit=True))]
    )
    def test_what_can_be_done_to_a_saved_model_only(self, option: str, value: Any, good: Path) -> None:
        with pytest.raises(ValueError, match=rf"{option} .*save_pretrained.*from_pretrained\(folder, {option}="):
            convert({"en": good}, **{option: value})

    def test_code_of_a_checkpoint(self, good: Path) -> None:
        with pytest.raises(ValueError, match=r"trust_remote_code must not be True.*AutoModel\.register"):
            convert({"en": good}, trust_remote_code=True)

    @pytest.mark.parametrize(
        ("option", "value", "hint"),
        [
            ("torch_dtype", "bfloat16", "use dtype="),
            ("variant", "fp16", ""),
            ("use_safetensors", True, r"\.safetensors"),
            ("low_cpu_mem_usage", True, ""),
            ("max_memory", {0: "1GB"}, "from_pretrained"),
            ("load_in_8bit", True, "from_pretrained"),
            ("generation_config", object(), r"model\.generation_config"),
            ("ignore_mismatched_sizes", True, ""),
        ],
    )
    def test_options_of_loading_that_are_not_taken(self, option: str, value: Any, hint: str, good: Path) -> None:
        expected = (
            rf"^from_pretrained_sources does not take {option}: .*{hint}.*takes dtype, attn_implementation, .*revision"
        )
        with pytest.raises(ValueError, match=expected):
            convert({"en": good}, **{option: value})

    @pytest.mark.parametrize("sources", ["folder", ["en"], [("en", "folder")], {}, None, Path("folder")])
    def test_sources_that_are_no_dict(self, sources: Any) -> None:
        with pytest.raises(ValueError, match=r"^sources must be a dict from names to checkpoints, .*; got "):
            MultiSourceForConditionalGeneration.from_pretrained_sources(sources, "en")
        with pytest.raises(ValueError, match=r"^sources must be a dict from names to checkpoints, .*; got "):
            MultiSourceProcessor.from_pretrained_sources(sources, "en")

    @pytest.mark.parametrize("dtype", ["float99", "int8", 16, {"en": "float16"}, "load"])
    def test_what_is_no_dtype(self, dtype: Any, good: Path) -> None:
        with pytest.raises(ValueError, match=r"dtype must be .*'bfloat16'.*; got"):
            convert({"en": good}, dtype=dtype)

    def test_an_option_of_a_source_that_is_none(self, good: Path) -> None:
        with pytest.raises(ValueError, match="revision can set en; got 'de'"):
            convert({"en": good}, revision={"de": "main"})

    def test_an_option_of_a_model_in_memory(self, good: Path) -> None:
        with pytest.raises(ValueError, match=r"revision\[de\] has no effect on a BertModel in memory"):
            convert({"en": good, "de": bert()}, revision={"de": "main"})


@pytest.mark.parametrize("decoder", ["en", "other"])
class TestErrorsBeginWithSourceAndCheckpoint:
    def check(self, kind: type[Exception], what: str, good: Path, place: Any, decoder: str, **where: Any) -> None:
        with pytest.raises(kind, match=rf"(?s)^sources\[other\]: {re.escape(str(place))}\b.*{what}") as raised:
            convert({"en": good, "other": place}, decoder=decoder, **where)
        assert raised.value.__cause__ is not None

    def test_a_pickle(self, decoder: str, good: Path, tmp_path: Path) -> None:
        place = pickled(stock("bart"), tmp_path / "pickled")
        self.check(OSError, r"holds its weights in a pickle", good, place, decoder)

    def test_a_repository_that_there_is_not(self, decoder: str, good: Path) -> None:
        self.check(OSError, "", good, "nobody/nothing", decoder, local_files_only=True)

    @pytest.mark.parametrize("place", ["a b/c", "a/b/c/d", "no/such/folder"])
    def test_what_is_no_id(self, place: str, decoder: str, good: Path) -> None:
        self.check(OSError, "", good, place, decoder, local_files_only=True)

    def test_a_folder_without_weights(self, decoder: str, good: Path, tmp_path: Path) -> None:
        stock("bart").config.save_pretrained(tmp_path / "bare")
        self.check(OSError, r"model\.safetensors", good, tmp_path / "bare", decoder)

    def test_a_folder_without_a_model(self, decoder: str, good: Path, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        self.check(ValueError, r"config\.json", good, tmp_path / "empty", decoder)


def test_a_subfolder_that_there_is_not_is_named(good: Path) -> None:
    with pytest.raises(OSError, match=rf"(?s)^sources\[other\]: {re.escape(str(good))} has no subfolder 'inner'"):
        convert({"en": good, "other": good}, subfolder={"other": "inner"})


def test_a_pickle_is_named_wherever_a_model_is_loaded(tmp_path: Path) -> None:
    place = pickled(bert(), tmp_path)
    with pytest.raises(ValueError, match=r"pickle \(pytorch_model\.bin\), which is never loaded"):
        load_encoder(str(place))


# Where and how


def test_every_option_reaches_every_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stock("bart").save_pretrained(tmp_path / "bart")
    bert().save_pretrained(tmp_path / "bert")
    three_source_model("serial", sources=["de"], **{"d_model": 16}).save_pretrained(tmp_path / "ours")
    seen: dict[str, dict[str, Any]] = {}
    own = PreTrainedModel.from_pretrained.__func__  # type: ignore[attr-defined]

    def load(cls: Any, place: Any, *args: Any, **kwargs: Any) -> Any:
        seen[Path(place).name] = kwargs
        return own(cls, place, *args, **kwargs)

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(load))
    where: dict[str, Any] = {
        "cache_dir": str(tmp_path / "cache"),
        "local_files_only": True,
        "token": "hf_none",
        "revision": "v1",
    }
    with pytest.raises(ValueError, match="they must agree"):
        convert({"en": tmp_path / "bart", "cs": tmp_path / "bert", "de": tmp_path / "ours"}, **where)
    assert seen.keys() == {"bart", "bert", "ours"}
    for kwargs in seen.values():
        assert {key: kwargs.get(key) for key in where} == where
        assert kwargs["use_safetensors"] is True and kwargs.get("trust_remote_code") in (None, False)


def test_a_subfolder_for_all_or_for_some(tmp_path: Path) -> None:
    theirs = {"en": stock("bart", 1), "de": stock("bart", 2)}
    for name, model in theirs.items():
        model.save_pretrained(tmp_path / "both" / name)
    ours = convert(dict.fromkeys(theirs, tmp_path / "both"), subfolder={"en": "en", "de": "de"})
    assert list(ours.model.encoder.sources) == ["en", "de"]
    same(logits(ours, batch(theirs["en"])), logits(theirs["en"], batch(theirs["en"])))
    expected = theirs["de"].get_encoder()(**batch(theirs["de"])).last_hidden_state
    found = ours.get_encoder().encode_source("de", **batch(theirs["de"], "de_")).last_hidden_state
    real = batch(theirs["de"])["attention_mask"].bool()
    same(found[real], expected[real])
    shared = convert(dict.fromkeys(theirs, tmp_path / "both"), subfolder="en")
    assert list(shared.model.encoder.sources) == ["en"]
    mixed = convert({"en": tmp_path / "both" / "en", "de": tmp_path / "both"}, subfolder={"de": "de"})
    assert list(mixed.model.encoder.sources) == ["en", "de"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16", "auto", None])
def test_a_dtype_is_that_of_the_whole_model(dtype: Any, tmp_path: Path) -> None:
    stock("bart").save_pretrained(tmp_path / "bart")
    bert().half().save_pretrained(tmp_path / "bert")
    ours = convert({"en": tmp_path / "bart", "cs": tmp_path / "bert", "de": bert()}, dtype=dtype)
    wanted = torch.float32 if dtype in ("auto", None) else torch.bfloat16
    assert {parameter.dtype for parameter in ours.parameters()} == {wanted}


@pytest.mark.parametrize("given", ["eager", {"": "sdpa", "sources.cs": "eager"}])
def test_an_attention_implementation_reaches_the_parts(given: Any) -> None:
    ours = convert({"en": stock("bart"), "cs": bert()}, attn_implementation=given)
    assert ours.config._attn_implementation == ("eager" if given == "eager" else "sdpa")
    assert wrapped_by(ours, "cs").config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="nonsense"):
        convert({"en": stock("bart")}, attn_implementation="nonsense")
    with pytest.raises(ValueError, match=r"attn_implementation .*\(sources\.cs\); got 'sources\.zz'"):
        convert({"en": stock("bart"), "cs": bert()}, attn_implementation={"sources.zz": "eager"})


def test_options_left_at_their_defaults_change_nothing(tmp_path: Path) -> None:
    stock("bart").save_pretrained(tmp_path)
    defaults: dict[str, Any] = {"device_map": None, "quantization_config": None, "trust_remote_code": False}
    ours = convert({"en": tmp_path}, **defaults, attn_implementation=None, subfolder="", revision="main", token=None)
    same(logits(ours, batch(ours)), logits(stock("bart"), batch(ours)))


@pytest.mark.quantized
def test_what_cannot_be_passed_on_can_be_asked_of_the_saved_model(tmp_path: Path) -> None:
    ours = convert({"en": stock("bart"), "cs": bert()})
    ours.save_pretrained(tmp_path)
    loaded = MultiSourceForConditionalGeneration.from_pretrained(
        tmp_path, device_map="cpu", quantization_config=BitsAndBytesConfig(load_in_8bit=True)
    )
    assert loaded.is_quantized


class CodeConfig(BertConfig):
    model_type = "bert-with-code"


class CodeModel(BertModel):
    config_class = CodeConfig


@pytest.fixture
def registered() -> Iterator[None]:
    """Register classes of a user, as those of a checkpoint's own code."""
    AutoConfig.register(CodeConfig.model_type, CodeConfig)
    AutoModel.register(CodeConfig, CodeModel)
    yield
    del CONFIG_MAPPING._extra_content[CodeConfig.model_type]
    del MODEL_MAPPING._extra_content[CodeConfig]


def with_code(folder: Path) -> Path:
    """A checkpoint of a type that Transformers lacks, with the code of its classes."""
    CodeModel(CodeConfig(**bert().config.to_diff_dict() | {"model_type": CodeConfig.model_type})).save_pretrained(
        folder
    )
    settings = json.loads((folder / "config.json").read_text("utf-8"))
    settings["auto_map"] = {"AutoConfig": "code.CodeConfig", "AutoModel": "code.CodeModel"}
    (folder / "config.json").write_text(json.dumps(settings), "utf-8")
    (folder / "code.py").write_text("raise SystemExit('code of the checkpoint was run')\n", "utf-8")
    return folder


@pytest.mark.parametrize("trusted", [None, False])
def test_a_type_that_transformers_lacks_is_refused(trusted: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sources\[other\]\.model_type .*'bert-with-code'.*AutoModel\.register"):
        convert({"en": stock("bart"), "other": with_code(tmp_path)}, trust_remote_code=trusted)


@pytest.mark.usefixtures("registered")
def test_a_type_that_its_user_registered_is_wrapped(tmp_path: Path) -> None:
    ours = convert({"en": stock("bart"), "other": with_code(tmp_path / "other")})
    assert isinstance(wrapped_by(ours), CodeModel)
    ours.save_pretrained(tmp_path / "ours")
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path / "ours")
    assert isinstance(wrapped_by(loaded), CodeModel)


# Tokenizers


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    stock("bart").save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"sources\[en\]: .* has no tokenizer .*tokenizer\.json.*give the tokenizer itself in place"
    ):
        MultiSourceProcessor.from_pretrained_sources({"en": tmp_path}, "en")
    with pytest.raises(ValueError, match=r"such as tokenizer\.json\)\. Save one there"):
        MultiSourceProcessor.from_pretrained_sources({"en": tmp_path}, "en")


def test_a_processor_is_loaded_from_subfolders(tmp_path: Path) -> None:
    for name in ("en", "de"):
        stock("bart").save_pretrained(tmp_path / name)
        train_tokenizer([f"A text in {name}."], "bpe", 264).save_pretrained(tmp_path / name)
    sources = {"en": tmp_path, "de": tmp_path}
    processor = MultiSourceProcessor.from_pretrained_sources(sources, "en", subfolder={"en": "en", "de": "de"})
    assert processor.source_tokenizers.keys() == {"de"}
    assert not MultiSourceProcessor.from_pretrained_sources(sources, "en", subfolder="de").source_tokenizers
    with pytest.raises(ValueError, match=r"from_pretrained_sources can set .*subfolder.*; got 'padding'"):
        MultiSourceProcessor.from_pretrained_sources(sources, "en", padding=True)


def test_of_a_repository_with_a_pickle_only_the_way_out_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bert().config.save_pretrained(tmp_path)

    def load(*args: Any, **kwargs: Any) -> None:
        raise OSError("x does not appear to have a file named … Please do not set `use_safetensors=True`.")

    monkeypatch.setattr(AutoModel, "from_pretrained", load)
    with pytest.raises(OSError, match=r"pickle .*save it as model\.safetensors with save_pretrained"):
        load_auto("AutoModel", tmp_path)
