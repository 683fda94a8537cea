"""A configuration made from a processor: names, kinds, vocabularies and special ids are the processor's."""

from __future__ import annotations

from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import BertConfig, BertTokenizer, NllbTokenizer, T5Tokenizer, ViTConfig

from builders import SMALL, three_source_processor
from hf_multisource import (
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceProcessor,
    MultiSourceRNNConfig,
    MultiSourceRNNForConditionalGeneration,
)
from hf_multisource.recipes.tokenization import train_tokenizer
from kinds import mixed_processor, text_tokenizer

FAMILIES = [MultiSourceConfig, MultiSourceRNNConfig]
LETTERS = [*"abcdefghijklmnop", "▁"]
TINY: dict[Any, dict[str, Any]] = {
    MultiSourceConfig: {
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    },
    MultiSourceRNNConfig: {"d_model": 8, "num_layers": 1},
}


def bert() -> Any:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
    return BertTokenizer(vocab={token: i for i, token in enumerate(tokens)})


def t5() -> Any:
    return T5Tokenizer(vocab=[(token, -float(i)) for i, token in enumerate(["<unk>", "<pad>", "</s>", *LETTERS])])


def nllb(language: str) -> Any:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *LETTERS, "eng_Latn", "deu_Latn"]
    return NllbTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[], src_lang=language)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_sizes_and_special_ids_are_the_processors(family: Any) -> None:
    processor = three_source_processor()
    target, own = processor.tokenizer, processor.source_tokenizers["fr"]
    by_hand = family(
        sources=["en", "de", {"name": "fr", "vocab_size": len(own), "pad_token_id": own.pad_token_id}],
        vocab_size=len(target),
        pad_token_id=target.pad_token_id,
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        **TINY[family],
    )
    assert family.from_processor(processor, **TINY[family]).to_dict() == by_hand.to_dict()
    assert len(own) != len(target)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("tokenizer", "ids"),
    [
        (bert, {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}),
        (t5, {"pad_token_id": 1, "bos_token_id": None, "eos_token_id": 2, "decoder_start_token_id": 1}),
        (
            lambda: nllb("eng_Latn"),
            {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0},
        ),
    ],
    ids=["BERT", "T5", "NLLB"],
)
def test_a_tokenizer_of_any_sort_gives_ids_with_which_a_model_trains_and_generates(
    tokenizer: Any, ids: dict[str, Any], family: Any
) -> None:
    """The decoder begins with the token that begins a text, or with padding where texts have no beginning, as T5's."""
    processor = MultiSourceProcessor(tokenizer(), ["en", "de"])
    config = family.from_processor(processor, **TINY[family])
    assert {key: getattr(config, key) for key in ids} == ids
    assert config.vocab_size == len(processor.tokenizer)
    models = {MultiSourceConfig: MultiSourceForConditionalGeneration}
    model = models.get(family, MultiSourceRNNForConditionalGeneration)(config)
    batch = processor(en="a b", de=None, text_target="b c", return_tensors="pt")
    assert model(**batch).loss.isfinite()
    generated = model.generate(**batch, max_new_tokens=2)
    assert generated[0, 0] == ids["decoder_start_token_id"]


def test_a_tokenizer_with_the_vocabulary_of_the_target_shares_its_table() -> None:
    """As two tokenizers of NLLB, which differ by their source language."""
    same = MultiSourceProcessor(nllb("eng_Latn"), ["en", "de"], {"de": nllb("deu_Latn")})
    assert MultiSourceConfig.from_processor(same).sources[1].vocab_size is None
    other = MultiSourceProcessor(nllb("eng_Latn"), ["en", "de"], {"de": bert()})
    assert MultiSourceConfig.from_processor(other).source_vocabulary("de") == (len(bert()), 0)


def test_what_the_caller_says_wins() -> None:
    processor = three_source_processor()
    config = MultiSourceConfig.from_processor(
        processor, bos_token_id=3, eos_token_id=[1, 4], vocab_size=300, decoder_start_token_id=5, combiner="flat"
    )
    assert (config.bos_token_id, config.eos_token_id, config.vocab_size) == (3, [1, 4], 300)
    assert (config.decoder_start_token_id, config.combiner) == (5, "flat")
    sources = [{"name": "fr", "layers": 2, "vocab_size": 999, "pad_token_id": 7}, "de"]
    config = MultiSourceConfig.from_processor(processor, sources=sources)
    assert config.source_names == ["en", "de", "fr"], "the order is the processor's"
    assert (config.sources[2].layers, config.source_vocabulary("fr")) == (2, (999, 7))
    assert sources[0] == {"name": "fr", "layers": 2, "vocab_size": 999, "pad_token_id": 7}
    assert processor.source_names == ["en", "de", "fr"]


@pytest.mark.parametrize("how", ["share_encoder_with", "share_embeddings_with"])
def test_a_source_that_shares_has_no_vocabulary_of_its_own(how: str) -> None:
    tokenizer = train_tokenizer(["a b c"], "bpe", 262)
    processor = MultiSourceProcessor(train_tokenizer(["a b c"], "bpe", 265), ["en", "de"], {"en": tokenizer})
    processor.source_tokenizers["de"] = tokenizer
    config = MultiSourceConfig.from_processor(processor, sources=[{"name": "de", how: "en"}])
    assert config.sources[1].vocab_size is None
    assert config.source_vocabulary("en") == config.source_vocabulary("de") == (len(tokenizer), tokenizer.pad_token_id)


def test_kinds_are_the_processors_and_what_it_cannot_know_is_asked_for() -> None:
    vit, encoder = ViTConfig(image_size=8, patch_size=4, **SMALL), BertConfig(vocab_size=30, **SMALL)
    parts = {"image": mixed_processor().source_processors["image"]}
    names = ["en", "image", "regions", "again"]
    processor = MultiSourceProcessor(text_tokenizer(), names, None, parts, ["regions", "again"])
    image, regions = {"name": "image", "encoder": vit}, {"name": "regions", "feature_size": 4}
    again = {"name": "again", "share_encoder_with": "regions"}
    config = MultiSourceConfig.from_processor(processor, sources=[again, regions, image])
    assert {source.name: source.kind for source in config.sources} == {
        "en": "text",
        "image": "pretrained",
        "regions": "features",
        "again": "features",
    }
    with pytest.raises(StrictDataclassError, match=r"sources\[regions\].feature_size must be at least 1; got None"):
        MultiSourceConfig.from_processor(processor, sources=[image, again])
    with pytest.raises(
        StrictDataclassError, match=r"sources\[image\].encoder must be the configuration of a Transformers model"
    ):
        MultiSourceConfig.from_processor(processor, sources=[regions, again])
    wrapped = MultiSourceProcessor(train_tokenizer(["a"], "bpe", 262), ["en", "text2"], {"text2": bert()})
    config = MultiSourceConfig.from_processor(wrapped, sources=[{"name": "text2", "encoder": encoder}])
    assert (config.sources[1].kind, config.sources[1].vocab_size) == ("pretrained", None)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("given", ["org/name", None, bert(), MultiSourceProcessor])
def test_what_is_no_processor_is_refused(given: Any, family: Any) -> None:
    with pytest.raises(TypeError, match=r"^processor must be a MultiSourceProcessor, such as .*; got "):
        family.from_processor(given)


def test_a_source_that_the_processor_lacks_is_named() -> None:
    with pytest.raises(ValueError, match=r"^unknown source 'es'; the processor's sources are en, de, fr"):
        MultiSourceConfig.from_processor(three_source_processor(), sources=["en", "es"])


@pytest.mark.parametrize("token", ["pad", "eos"])
def test_a_tokenizer_without_padding_or_end_is_refused_by_name(token: str) -> None:
    tokenizer = bert()
    setattr(tokenizer, "pad_token" if token == "pad" else "sep_token", None)
    processor = MultiSourceProcessor(tokenizer, ["en"])
    with pytest.raises(ValueError, match=f"^the target's tokenizer, BertTokenizer, has no {token}_token"):
        MultiSourceConfig.from_processor(processor)
    given: dict[str, Any] = {f"{token}_token_id": 4}
    assert getattr(MultiSourceConfig.from_processor(processor, **given), f"{token}_token_id") == 4


@pytest.mark.parametrize(("name", "meant"), [("encoder_layer", "encoder_layers"), ("droput", "dropout")])
def test_a_misspelled_setting_is_refused(name: str, meant: str) -> None:
    processor = three_source_processor()
    with pytest.raises(ValueError, match=rf"unknown setting {name!r}; did you mean .*{meant}"):
        MultiSourceConfig.from_processor(processor, **{name: 1})  # type: ignore[arg-type]
    assert MultiSourceConfig.from_processor(processor, num_attention_heads=4).encoder_attention_heads == 4
    assert MultiSourceRNNConfig.from_processor(processor, num_hidden_layers=2, sep_token_id=3).num_layers == 2
    config = MultiSourceConfig.from_processor(processor, id2label={0: "x"}, output_attentions=True, my_note="kept")
    assert config.my_note == "kept" and config.output_attentions
