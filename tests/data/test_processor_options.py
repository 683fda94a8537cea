"""Options of the processor have the same effect as in a call of the tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from transformers import BatchFeature, ByT5Tokenizer, MBartTokenizer

from hf_multisource import MultiSourceProcessor
from hf_multisource.recipes.tokenization import train_tokenizer
from kinds import mixed_processor, mixed_rows, recording, regions

SOURCES = ("en", "de", "fr")
TEXTS = ["A boy plays in the water.", "a", "Two dogs run over the grass and over the hill."]
TARGETS = ["Chlapec si hraje ve vodě.", "Dva psi běží po louce. Příliš žluťoučký kůň.", ""]
LABEL_PADDING = -100
BATCHES = ("en", "de", "text_target")


@cache
def bpe(longest: int) -> Any:
    tokenizer = train_tokenizer([*TEXTS, *TARGETS], "bpe", 300)
    tokenizer.model_max_length = longest
    return tokenizer


@cache
def mbart() -> Any:
    characters = sorted({*"".join([*TEXTS, *TARGETS]), "▁"})
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *characters, "en_XX", "cs_CZ"]
    tokenizer = MBartTokenizer(
        vocab=[(token, -float(i)) for i, token in enumerate(vocabulary)], src_lang="en_XX", tgt_lang="cs_CZ"
    )
    tokenizer.model_max_length = 11
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "BPE": lambda: bpe(11),
    "mBART": mbart,
    "ByT5": lambda: ByT5Tokenizer(model_max_length=11),
}
"""A fast one, one with a mode for targets, and a slow one."""

UNLIMITED = int(1e30)  # the `model_max_length` of tokenizers without one


def processor_of(tokenizer: Any, *sources: str) -> MultiSourceProcessor:
    return MultiSourceProcessor(tokenizer, sources or SOURCES)


def by_hand(tokenizer: Any, options: dict[str, Any], target_options: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the plain tokenizer gives for two sources and the target, one call each."""
    tokenizer = copy.deepcopy(tokenizer)
    en, de = tokenizer(TEXTS, **options), tokenizer(TARGETS[:2] + TEXTS[:1], **options)
    target = tokenizer(text_target=TARGETS, **(options if target_options is None else target_options))
    labels = [
        [token if real else LABEL_PADDING for token, real in zip(ids, mask, strict=True)]
        for ids, mask in zip(target["input_ids"], target["attention_mask"], strict=True)
    ]
    return {
        "input_ids": en["input_ids"],
        "attention_mask": en["attention_mask"],
        "de_input_ids": de["input_ids"],
        "de_attention_mask": de["attention_mask"],
        "labels": labels,
    }


def of_ours(processor: MultiSourceProcessor, **options: Any) -> dict[str, Any]:
    return dict(processor(en=TEXTS, de=TARGETS[:2] + TEXTS[:1], text_target=TARGETS, **options))


OPTIONS: list[dict[str, Any]] = [
    {"add_special_tokens": False},
    {"add_special_tokens": False, "truncation": True, "max_length": 4},
    {"add_special_tokens": False, "padding": True},
    {"padding": True, "pad_to_multiple_of": 8},
    {"padding": "longest", "pad_to_multiple_of": 7},
    {"pad_to_multiple_of": 8},  # nothing is padded
    {"padding": "max_length", "max_length": 60, "pad_to_multiple_of": 16},
    {"padding": "max_length", "max_length": 16, "truncation": True, "pad_to_multiple_of": 8},
    {"padding": True, "max_length": 8, "truncation": True, "pad_to_multiple_of": 4},
    {"padding": "max_length", "truncation": True},  # the length is the tokenizer's own
    {"truncation": True},
    {"truncation": "longest_first", "max_length": 5},
    {"truncation": "only_first", "max_length": 5},
    {"truncation": "do_not_truncate", "max_length": 5},
    {"truncation": False, "max_length": 5},
    {"max_length": 5},  # truncates, as nothing else is asked for
    {"max_length": 5, "padding": False},
    {"max_length": 5, "padding": "do_not_pad"},
    {"max_length": 5, "padding": "longest"},
    {"max_length": 60, "padding": "max_length"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_options_give_what_the_tokenizer_gives_with_them(name: str, options: dict[str, Any]) -> None:
    tokenizer = TOKENIZERS[name]()
    assert of_ours(processor_of(tokenizer, "en", "de"), **options) == by_hand(tokenizer, options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_example_is_encoded_as_in_its_batch(options: dict[str, Any]) -> None:
    if options.get("padding") in (True, "longest"):
        options = {**options, "padding": "max_length", "max_length": options.get("max_length", 24)}
    processor = processor_of(bpe(11), "en", "de")
    one = dict(processor(en=TEXTS[0], de=TARGETS[0], text_target=TARGETS[0], **options))
    batch = of_ours(processor, **options)
    longest = "padding" in options and "truncation" not in options  # others of the batch may be longer
    for key, row in one.items():
        assert batch[key][0][: len(row)] == row
        assert longest or len(batch[key][0]) == len(row)


def test_padding_to_a_length_leaves_no_rows_of_several_lengths() -> None:
    """Longer rows set the length, where a tokenizer gives rows that make no tensor."""
    processor = processor_of(bpe(11), "en")
    assert processor(en=["a"], padding="max_length", return_tensors="np")["input_ids"].shape == (1, 11)
    longest = max(map(len, processor(en=TEXTS)["input_ids"]))
    assert processor(en=TEXTS, padding="max_length", return_tensors="np")["input_ids"].shape == (3, longest)
    assert longest > 11


@pytest.mark.parametrize("key", ["tensors", "lists"])
def test_absent_sources_are_padded_to_a_multiple_too(key: str) -> None:
    processor = processor_of(bpe(11))
    padding: dict[str, Any] = {"return_tensors": "pt"} if key == "tensors" else {"padding": True}
    batch = processor(en=TEXTS, de=[None, None, "ein"], text_target=TARGETS, pad_to_multiple_of=8, **padding)
    widths = {name: {len(row) for row in rows} for name, rows in batch.items()}
    assert all(len(width) == 1 and width.pop() % 8 == 0 for width in widths.values())
    assert sum(map(sum, batch["fr_attention_mask"])) == 0


def test_lengths_of_features_are_padded_to_a_multiple_and_those_of_pictures_and_speech_are_not() -> None:
    rows = mixed_rows()
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in ("en", "image", "speech", "regions")}
    plain = mixed_processor()(**columns, return_tensors="np")
    batch = mixed_processor()(**columns, return_tensors="np", pad_to_multiple_of=8)
    assert batch["regions_input_features"].shape[1] == batch["regions_attention_mask"].shape[1] == 8
    assert plain["regions_input_features"].shape[1] not in (0, 8)
    for key in ("image_pixel_values", "image_attention_mask", "speech_input_values", "speech_attention_mask"):
        assert batch[key].shape == plain[key].shape


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": True},
        {"truncation": True, "max_length": 6},
        {"add_special_tokens": False, "padding": True, "pad_to_multiple_of": 8},
    ],
    ids=str,
)
def test_a_target_alone_gives_its_labels_and_nothing_else(name: str, options: dict[str, Any]) -> None:
    tokenizer = TOKENIZERS[name]()
    expected = by_hand(tokenizer, options)["labels"]
    processor = processor_of(tokenizer)
    assert dict(processor(text_target=TARGETS, **options)) == {"labels": expected}
    if "padding" not in options:
        assert dict(processor(text_target=TARGETS[0], **options)) == {"labels": expected[0]}
    tensors = processor(text_target=TARGETS, return_tensors="pt", **{"padding": True, **options})
    assert isinstance(tensors, BatchFeature)
    assert tensors["labels"].tolist() == by_hand(tokenizer, {"padding": True, **options})["labels"]


def test_a_target_whose_sources_are_all_absent_is_no_target_alone() -> None:
    with pytest.raises(ValueError, match="example 0 has no source at all"):
        processor_of(bpe(11))(en=None, text_target="a")
    with pytest.raises(ValueError, match="example 1 has no source at all"):
        processor_of(bpe(11))(en=["a", None], text_target=["a", "b"])
    with pytest.raises(ValueError, match="example 0 has no source at all"):
        processor_of(bpe(11))()


def test_a_target_alone_has_labels_where_absent_texts_have_a_token() -> None:
    tokenizer = train_tokenizer([*TEXTS, *TARGETS], "bpe", 300, null_token="<NULL>")
    processor = MultiSourceProcessor(tokenizer, SOURCES, null_token="<NULL>")
    assert dict(processor(text_target="a")) == {"labels": tokenizer("a")["input_ids"]}
    [null] = tokenizer("<NULL>", add_special_tokens=False, split_special_tokens=False)["input_ids"]
    assert processor(en="a", add_special_tokens=False)["de_input_ids"] == [null]
    assert len(processor(en="a")["de_input_ids"]) > 1


@pytest.mark.parametrize("truncation", [True, None])
def test_each_source_and_the_target_may_have_a_length_of_their_own(truncation: bool | None) -> None:
    processor = processor_of(bpe(UNLIMITED))
    columns: dict[str, Any] = {"en": TEXTS, "de": TEXTS, "fr": TEXTS, "text_target": TARGETS}
    batch = processor(**columns, truncation=truncation, max_length={"en": 4, "de": 6, "text_target": 5})
    for key, name, longest in (("input_ids", "en", 4), ("de_input_ids", "de", 6), ("labels", "text_target", 5)):
        kind = "text_target" if name == "text_target" else "text"
        assert batch[key] == bpe(UNLIMITED)(**{kind: columns[name]}, truncation=True, max_length=longest)["input_ids"]
    assert batch["fr_input_ids"] == bpe(UNLIMITED)(TEXTS)["input_ids"], "a source that is not named is not cut"
    assert max(map(len, batch["fr_input_ids"])) > 6
    own = processor_of(bpe(9))(en=TEXTS, de=TEXTS, truncation=truncation, max_length={"en": 4})
    assert max(map(len, own["de_input_ids"])) == 9, "but to its tokenizer's longest, as without a length"
    assert max(map(len, own["input_ids"])) == 4


def test_each_source_may_be_padded_to_a_length_of_its_own() -> None:
    lengths = {"en": 60, "de": 70, "text_target": 80}
    batch = processor_of(bpe(UNLIMITED), "en", "de")(
        en=TEXTS, de=TEXTS, text_target=TARGETS, padding="max_length", max_length=lengths, return_tensors="np"
    )
    assert [batch[key].shape[1] for key in ("input_ids", "de_attention_mask", "labels")] == [60, 70, 80]
    only_en = processor_of(bpe(11), "en", "de")(en=["a"], de=["a"], padding="max_length", max_length={"en": 4})
    assert [len(only_en[key][0]) for key in ("input_ids", "de_input_ids")] == [4, 11]
    with pytest.raises(ValueError, match=r'^padding="max_length" needs a max_length for de: its tokenizer has none'):
        processor_of(bpe(UNLIMITED), "en", "de")(en="a", padding="max_length", max_length={"en": 4})
    with pytest.raises(ValueError, match=r'^padding="max_length" needs a max_length for text_target'):
        processor_of(bpe(UNLIMITED), "en")(en="a", text_target="b", padding="max_length", max_length={"en": 4})


@pytest.mark.filterwarnings("error")
def test_padding_without_truncation_warns_that_a_length_has_no_effect() -> None:
    with pytest.warns(UserWarning, match="max_length has no effect"):
        batch = processor_of(bpe(11))(en=TEXTS, padding=True, max_length=5)
    assert len(batch["input_ids"][0]) > 5
    silent: list[dict[str, Any]] = [{"truncation": True}, {"padding": "max_length"}, {}]
    for options in silent:
        processor_of(bpe(11))(en=TEXTS, max_length=5, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_lenght": 3},
            "^unknown source 'max_lenght'; the sources are en, de, fr, the options text_target, add_special",
        ),
        ({"return_attention_mask": False}, "^unknown source 'return_attention_mask'"),
        ({"max_length": {"es": 3}}, "^max_length names 'es', which is no text; the texts are en, de, fr, text_target"),
        ({"max_length": {"en": "3"}}, r"^max_length\['en'\] must be a whole number, 0 or more, or None; got '3'"),
        ({"max_length": -1, "truncation": True}, "^max_length must be a whole number, 0 or more, or None; got -1"),
        ({"max_length": True}, "^max_length must be a whole number, 0 or more, or None; got True"),
        ({"pad_to_multiple_of": 0}, "^pad_to_multiple_of must be a whole number, 1 or more, or None; got 0"),
        ({"pad_to_multiple_of": 2.0}, "^pad_to_multiple_of must be a whole number, 1 or more, or None; got 2.0"),
        ({"truncation": "only_second"}, "^truncation must be one of .*'longest_first'.*; got 'only_second'"),
        ({"truncation": 3}, "^truncation must be one of .*; got 3"),
        ({"add_special_tokens": None}, "^add_special_tokens must be one of True, False; got None"),
        (
            {"truncation": True, "padding": True, "max_length": 9, "pad_to_multiple_of": 8},
            r"^max_length of en \(9\) must be a multiple of pad_to_multiple_of \(8\) where texts are truncated",
        ),
    ],
)
def test_options_that_do_not_exist_or_do_not_fit_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        processor_of(bpe(11))(en="a", **options)


def test_lengths_may_be_integers_of_numpy() -> None:
    options: dict[str, Any] = {"truncation": True, "padding": True, "return_tensors": "pt"}
    options |= {"max_length": np.int64(4), "pad_to_multiple_of": np.int64(2)}
    found = processor_of(bpe(11))(en="a b c d e f", **options)
    assert found["input_ids"].shape == (1, 4)


def test_a_length_cannot_be_given_for_what_is_no_text() -> None:
    with pytest.raises(ValueError, match=r"^max_length names 'image', which is no text; the texts are en, text_target"):
        mixed_processor()(en="A", max_length={"image": 3})
    columns: dict[str, Any] = {"en": "A dog runs", "regions": regions(0, 5), "speech": recording(0, 500)}
    cut = mixed_processor()(**columns, truncation=True, max_length=2)
    assert len(cut["input_ids"]) == 2 and len(cut["regions_input_features"]) == 5, "one length for all is for texts"


def test_no_source_is_called_as_an_option_is() -> None:
    for name in ("pad_to_multiple_of", "add_special_tokens"):
        with pytest.raises(ValueError, match=f"source name '{name}' is reserved"):
            processor_of(bpe(11), name)
