import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    AutoProcessor,
    BatchFeature,
    Pix2StructImageProcessorPil,
    Speech2TextFeatureExtractor,
    ViTImageProcessor,
    ViTImageProcessorPil,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Processor,
    WhisperFeatureExtractor,
)

import kinds
from builders import three_source_processor, tiny_config
from fresh import run_fresh
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.recipes.tokenization import train_tokenizer
from kinds import mixed_processor, mixed_rows, picture, recording, regions

SOURCES = ("en", "de", "fr")
TEXTS: dict[str, Any] = {
    "en": ["A boy plays in the water.", "Two dogs run over the grass."],
    "de": ["Ein Junge spielt im Wasser.", "Zwei Hunde laufen über das Gras."],
    "fr": ["Un garçon joue dans l'eau.", "Deux chiens courent sur l'herbe."],
    "cs": ["Chlapec si hraje ve vodě.", "Dva psi běží po louce. Příliš žluťoučký kůň úpěl ďábelské ódy."],
}
KEYS = ["input_ids", "attention_mask", "de_input_ids", "de_attention_mask", "fr_input_ids", "fr_attention_mask"]
ABSENT = [None, "", " \t\n"]
END = 1


@cache
def tokenizer(*names: str) -> Any:
    return train_tokenizer([text for name in names or TEXTS for text in TEXTS[name]], "bpe", 300)


def processor_of(*sources: str, own: tuple[str, ...] = ()) -> MultiSourceProcessor:
    return MultiSourceProcessor(tokenizer(), sources or SOURCES, {name: tokenizer(name) for name in own})


def ids(text: str | None, *names: str) -> list[int]:
    return [] if text is None else list(tokenizer(*names)(text)["input_ids"])


def lists(batch: BatchFeature) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, Tensor | np.ndarray) else value for key, value in batch.items()}


def test_one_example_is_its_ids_and_masks() -> None:
    en, de, fr = (TEXTS[name][0] for name in SOURCES)
    assert lists(processor_of()(fr=fr, en=en, de=de)) == {
        "input_ids": ids(en),
        "attention_mask": [1] * len(ids(en)),
        "de_input_ids": ids(de),
        "de_attention_mask": [1] * len(ids(de)),
        "fr_input_ids": ids(fr),
        "fr_attention_mask": [1] * len(ids(fr)),
    }


@pytest.mark.parametrize("given_names", [["en"], ["fr", "de"], ["fr", "en", "de"]])
def test_every_source_has_its_keys_in_the_order_of_sources_whatever_is_given(given_names: list[str]) -> None:
    processor = processor_of()
    assert list(processor(**{name: TEXTS[name][0] for name in given_names})) == KEYS == processor.model_input_names
    assert list(processor(**{name: TEXTS[name] for name in given_names})) == KEYS


def test_source_0_is_bare_whichever_it_is() -> None:
    batch = processor_of("fr", "en")(en=TEXTS["en"][0], fr=TEXTS["fr"][0])
    assert list(batch) == ["input_ids", "attention_mask", "en_input_ids", "en_attention_mask"]
    assert batch["input_ids"] == ids(TEXTS["fr"][0]) and batch["en_input_ids"] == ids(TEXTS["en"][0])


@pytest.mark.parametrize("tensors", [None, "pt"])
@pytest.mark.parametrize("nothing", ABSENT)
@pytest.mark.parametrize("absent", SOURCES)
def test_none_empty_white_and_left_out_are_all_absent(absent: str, nothing: str | None, tensors: str | None) -> None:
    processor = processor_of()
    texts: dict[str, Any] = {name: TEXTS[name][0] for name in SOURCES if name != absent}
    left_out = lists(processor(**texts, return_tensors=tensors))
    prefix = "" if absent == "en" else f"{absent}_"
    assert left_out[f"{prefix}attention_mask"] == (None if tensors is None else [[0]])
    assert left_out[f"{prefix}input_ids"] == (None if tensors is None else [[0]])
    assert lists(processor(**{**texts, absent: nothing}, return_tensors=tensors)) == left_out
    columns: dict[str, Any] = {name: [text, text] for name, text in texts.items()}
    pair = lists(processor(**columns, return_tensors=tensors))
    assert lists(processor(**{**columns, absent: [nothing, nothing]}, return_tensors=tensors)) == pair
    assert lists(processor(**{**columns, absent: None}, return_tensors=tensors)) == pair


@given(
    rows=st.lists(
        st.tuples(*[st.sampled_from([*TEXTS[name], *ABSENT]) for name in SOURCES]).filter(
            lambda row: any(text and text.strip() for text in row)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_batch_is_its_examples_padded(rows: list[tuple[str | None, ...]]) -> None:
    processor = processor_of()
    columns: dict[str, Any] = {name: [row[i] for row in rows] for i, name in enumerate(SOURCES)}
    singles: list[dict[str, Any]] = [dict(zip(SOURCES, row, strict=True)) for row in rows]
    batch = processor(**columns, return_tensors="pt")
    examples = [processor(**single) for single in singles]
    assert list(batch) == KEYS
    for key, tensor in batch.items():
        alone = [example[key] or [] for example in examples]
        assert tensor.shape == (len(rows), max(1, *map(len, alone)))
        assert tensor.tolist() == [row + [0] * (tensor.shape[1] - len(row)) for row in alone]


def test_each_source_is_padded_to_its_own_longest_text() -> None:
    batch = processor_of()(en=["A", TEXTS["en"][0]], de=["Ein", None], fr=[None, "Un"], return_tensors="pt")
    widths = {key: tensor.shape[1] for key, tensor in batch.items()}
    en, de, fr = len(ids(TEXTS["en"][0])), len(ids("Ein")), len(ids("Un"))
    assert widths == dict(zip(KEYS, [en, en, de, de, fr, fr], strict=True))
    assert batch["de_attention_mask"].tolist() == [[1] * de, [0] * de]
    assert batch["attention_mask"][0].tolist() == [1] * len(ids("A")) + [0] * (en - len(ids("A")))


@pytest.mark.parametrize(("kind", "expected"), [("pt", Tensor), ("np", np.ndarray), (None, list)])
def test_tensors_arrays_or_lists_are_given_as_asked(kind: str | None, expected: type) -> None:
    batch = processor_of()(**{name: TEXTS[name] for name in SOURCES}, text_target=TEXTS["cs"], return_tensors=kind)
    assert {type(value) for value in batch.values()} == {expected}
    if kind is not None:
        assert {str(value.dtype).rpartition(".")[2] for value in batch.values()} == {"int64"}
    else:
        assert batch["input_ids"] == [ids(text) for text in TEXTS["en"]], "lists are padded only on request"


def test_lists_can_be_padded_and_a_single_example_gives_a_batch_of_one() -> None:
    padded = processor_of()(en=["A", TEXTS["en"][0]], padding=True)
    assert len({len(row) for row in padded["input_ids"]}) == 1
    assert padded["de_input_ids"] == [[0], [0]]
    single = processor_of()(en="A", text_target="B", return_tensors="np")
    assert single["input_ids"].shape == (1, len(ids("A"))) and single["labels"].shape == (1, len(ids("B")))


def test_padding_is_one_of_the_known_ways() -> None:
    with pytest.raises(ValueError, match=r"^padding must be one of .*'max_length'.*; got 'longst'"):
        processor_of()(en="A", padding="longst")
    with pytest.raises(ValueError, match=r'^padding="max_length" needs a max_length'):
        processor_of()(en="A", padding="max_length")
    assert processor_of()(en=["A", "A B"], padding="do_not_pad") == processor_of()(en=["A", "A B"])


def test_padding_to_max_length_pads_sources_and_labels() -> None:
    batch = processor_of()(
        en=["A", None],
        de=["Ein", "Zwei"],
        text_target=["B", ""],
        padding="max_length",
        max_length=9,
        return_tensors="pt",
    )
    assert {tuple(tensor.shape) for tensor in batch.values()} == {(2, 9)}
    assert batch["fr_attention_mask"].sum() == 0
    assert batch["labels"].tolist() == [ids("B") + [-100] * (9 - len(ids("B"))), [END] + [-100] * 8]


def test_truncation_cuts_each_text_and_keeps_its_end() -> None:
    texts: dict[str, Any] = {name: TEXTS[name] for name in SOURCES}
    batch = processor_of()(**texts, text_target=TEXTS["cs"], truncation=True, max_length=5)
    for key, name in {"input_ids": "en", "de_input_ids": "de", "fr_input_ids": "fr", "labels": "cs"}.items():
        assert batch[key] == [[*ids(text)[:4], END] for text in TEXTS[name]]
    assert processor_of()(**texts, truncation=True, max_length=500)["input_ids"] == [ids(text) for text in TEXTS["en"]]


def test_the_target_gives_labels_padded_with_minus_100() -> None:
    first, second = ids(TEXTS["cs"][0]), ids(TEXTS["cs"][1])
    columns: dict[str, Any] = {"en": TEXTS["en"], "text_target": TEXTS["cs"]}
    assert processor_of()(**columns)["labels"] == [first, second]
    padded = processor_of()(**columns, return_tensors="pt")["labels"].tolist()
    assert padded == [first + [-100] * (len(second) - len(first)), second]
    assert processor_of()(text_target=TEXTS["cs"][0], en="A")["labels"] == first
    assert processor_of()(text_target="", en="A")["labels"] == [END], "an empty target is a text, which ends at once"
    assert "labels" not in processor_of()(en="A")


def test_ids_decode_to_the_text_with_its_diacritics() -> None:
    processor = processor_of()
    batch = processor(**{name: TEXTS[name] for name in SOURCES}, text_target=TEXTS["cs"], return_tensors="pt")
    assert processor.batch_decode(batch["fr_input_ids"], skip_special_tokens=True) == TEXTS["fr"]
    targets = batch["labels"].masked_fill(batch["labels"] == -100, processor.pad_token_id)
    assert processor.batch_decode(targets, skip_special_tokens=True) == TEXTS["cs"]
    assert processor.decode(targets[1], skip_special_tokens=True) == TEXTS["cs"][1]


def test_a_source_with_its_own_tokenizer_uses_it_and_the_others_the_targets() -> None:
    processor = processor_of(own=("de",))
    text = "Zwei Wasser"
    assert ids(text, "de") != ids(text)
    batch = processor(en=text, de=text, fr=text, text_target=text)
    assert batch["de_input_ids"] == ids(text, "de")
    assert batch["input_ids"] == batch["fr_input_ids"] == batch["labels"] == ids(text)
    assert processor.get_tokenizer("de") is tokenizer("de") and processor.get_tokenizer("fr") is tokenizer()


def test_a_source_is_padded_with_its_own_tokenizers_id() -> None:
    own = train_tokenizer(TEXTS["de"], "bpe", 290)
    own.pad_token = own.unk_token
    processor = MultiSourceProcessor(tokenizer(), ["en", "de"], {"de": own})
    batch = processor(en=["A", None], de=[None, "Ein"], return_tensors="pt")
    assert set(batch["de_input_ids"][0].tolist()) == {own.unk_token_id} != {processor.pad_token_id}
    assert set(batch["input_ids"][1].tolist()) == {processor.pad_token_id}


@pytest.mark.parametrize("own", [(), ("de",), ("fr", "en")])
def test_a_saved_processor_loads_the_same(own: tuple[str, ...], tmp_path: Path) -> None:
    saved = processor_of("fr", "en", "de", own=own)
    saved.save_pretrained(tmp_path)
    # With the model's config beside it, as in a run's folder, and without.
    loaded = [MultiSourceProcessor.from_pretrained(tmp_path), AutoProcessor.from_pretrained(tmp_path)]
    tiny_config(sources=("fr", "en", "de")).save_pretrained(tmp_path)
    loaded.append(AutoProcessor.from_pretrained(tmp_path))
    columns: dict[str, Any] = {**TEXTS, "text_target": TEXTS["cs"], "de": [None, TEXTS["de"][1]]}
    del columns["cs"]
    expected = lists(saved(**columns, return_tensors="pt"))
    for processor in loaded:
        assert type(processor) is MultiSourceProcessor
        assert processor.source_names == ["fr", "en", "de"]
        assert sorted(processor.source_tokenizers) == sorted(own)
        batch = processor(**columns, return_tensors="pt")
        assert list(batch) == list(expected) and lists(batch) == expected
        assert processor.batch_decode([ids(TEXTS["cs"][1])], skip_special_tokens=True) == [TEXTS["cs"][1]]


def test_saving_twice_gives_the_same_files(tmp_path: Path) -> None:
    processor_of(own=("de",)).save_pretrained(tmp_path / "one")
    MultiSourceProcessor.from_pretrained(tmp_path / "one").save_pretrained(tmp_path / "two")
    one, two = (
        {str(path.relative_to(tmp_path / name)): path for path in (tmp_path / name).rglob("*.json")}
        for name in ("one", "two")
    )
    assert set(one) == set(two) >= {"processor_config.json", "tokenizer.json", "de_tokenizer/tokenizer.json"}
    for name in ("processor_config.json", "tokenizer.json", "de_tokenizer/tokenizer.json"):
        assert json.loads(one[name].read_text()) == json.loads(two[name].read_text())


def test_saving_leaves_the_processor_as_it_was(tmp_path: Path) -> None:
    processor = processor_of(own=("de",))
    before = lists(processor(de=TEXTS["de"]))
    processor.save_pretrained(tmp_path)
    assert list(processor.source_tokenizers) == ["de"]
    assert lists(processor(de=TEXTS["de"])) == before


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"en": "A", "es": "Un"}, "unknown source 'es'; the sources are en, de, fr"),
        ({"en": "A", "labels": "B"}, "unknown source 'labels'; the sources are en, de, fr"),
        ({"en": ["A", "B"], "de": ["Ein"]}, r"must have equally many values; got {'en': 2, 'de': 1}"),
        ({"en": ["A"], "text_target": ["B", "C"]}, r"equally many values; got {'en': 1, 'text_target': 2}"),
        ({"en": ["A"], "de": "Ein"}, "de is a single text, others are lists"),
        ({"en": "A", "text_target": ["B"]}, "en is a single text, others are lists"),
        ({"en": ["A"], "text_target": "B"}, "text_target is a single text, others are lists"),
        ({}, "example 0 has no source at all; give it at least one of en, de, fr"),
        ({"en": " ", "de": None}, "example 0 has no source at all"),
        ({"en": ["A", None, "C"], "fr": ["Un", "", None]}, "example 1 has no source at all"),
    ],
)
def test_bad_input_is_named(texts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        processor_of()(**texts)


@pytest.mark.parametrize("given", [("hello",), (["hello", "world"], ["hallo", "Welt"])])
def test_a_text_without_the_name_of_its_source_is_refused_with_an_example(given: tuple[Any, ...]) -> None:
    message = r"sources are passed by name, such as processor\(en=…, de=…, fr=…\); got .*hello.* without a name"
    with pytest.raises(TypeError, match=message):
        processor_of()(*given)
    with pytest.raises(TypeError, match=message):
        processor_of()(*given, text_target="ahoj")
    with pytest.raises(TypeError, match=r"such as processor\(audio=…\); got 'hello' without a name"):
        processor_of("audio")("hello")


def test_a_processor_needs_sources_and_no_tokenizer_but_theirs() -> None:
    with pytest.raises(
        ValueError, match=r"must name at least one source; got none.* MultiSourceProcessor.from_pretrained_sources"
    ):
        MultiSourceProcessor(tokenizer(), [])
    with pytest.raises(ValueError, match="unknown source 'fr'; the sources are en, de"):
        MultiSourceProcessor(tokenizer(), ["en", "de"], {"fr": tokenizer("fr")})


def test_what_the_processor_gives_goes_into_the_model() -> None:
    processor = processor_of()
    torch.manual_seed(0)
    model: Any = MultiSourceForConditionalGeneration(tiny_config(sources=SOURCES, vocab_size=300)).eval()
    columns: dict[str, Any] = {"en": ["A boy.", None], "de": [None, "Zwei Hunde."], "fr": ["Un", "Deux"]}
    batch = processor(**columns, return_tensors="pt")
    options: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    together = model.generate(**batch, **options)
    assert together.shape == (2, 5)
    for i in range(2):
        single: dict[str, Any] = {name: texts[i] for name, texts in columns.items()}
        alone = model.generate(**processor(**single, return_tensors="pt"), **options)
        assert alone.tolist() == [together[i].tolist()]
    assert all(isinstance(text, str) for text in processor.batch_decode(together))
    loss = model(**processor(**columns, text_target=TEXTS["cs"], return_tensors="pt")).loss
    assert loss.isfinite()


def test_what_is_pushed_is_saved_whole_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[tuple[str, bool]] = []

    def push(self: MultiSourceProcessor, repo_id: str, **kwargs: Any) -> None:
        pushed.append((repo_id, (tmp_path / "mine" / "de_tokenizer" / "tokenizer.json").exists()))

    monkeypatch.setattr(MultiSourceProcessor, "push_to_hub", push)
    processor_of(own=("de",)).save_pretrained(str(tmp_path / "mine"), push_to_hub=True)
    processor_of(own=("de",)).save_pretrained(str(tmp_path / "mine"), push_to_hub=True, repo_id="org/x")
    assert pushed == [("mine", True), ("org/x", True)]


# Sources of other kinds than text.

MIXED_KEYS = [
    *("input_ids", "attention_mask", "image_pixel_values", "image_attention_mask"),
    *("speech_input_values", "speech_attention_mask", "regions_input_features", "regions_attention_mask"),
]


def columns_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_every_kind_of_source_has_its_keys_and_source_0_is_bare() -> None:
    for names in (kinds.NAMES, ("image", "en"), ("regions", "en"), ("speech", "image", "regions", "en")):
        processor = mixed_processor(*names)
        row = {name: value for name, value in mixed_rows()[0].items() if name in names}
        assert list(processor(**row)) == processor.model_input_names
        assert list(processor(**row, return_tensors="pt")) == processor.model_input_names
    assert mixed_processor().model_input_names == MIXED_KEYS
    assert mixed_processor("image", "en").model_input_names[:2] == ["pixel_values", "attention_mask"]
    assert mixed_processor("regions", "en").model_input_names[:2] == ["input_features", "attention_mask"]
    assert mixed_processor("speech", "en").model_input_names[:2] == ["input_values", "attention_mask"]


def test_one_example_is_what_the_part_of_each_source_makes_of_it() -> None:
    row = mixed_rows()[0]
    example = mixed_processor()(**row)
    assert example["input_ids"] == kinds.text_tokenizer()(row["en"])["input_ids"]
    pixels = np.asarray(row["image"]).transpose(2, 0, 1) / 255 * 2 - 1  # the processor's mean and deviation are 0.5
    np.testing.assert_allclose(example["image_pixel_values"], pixels, rtol=1e-5, atol=1e-6)
    assert example["image_attention_mask"] == [1]
    sound = row["speech"]
    normed = (sound - sound.mean()) / np.sqrt(sound.var() + 1e-7)
    np.testing.assert_allclose(example["speech_input_values"], normed, rtol=1e-5)
    assert example["speech_attention_mask"].tolist() == [1] * 9
    assert example["regions_input_features"] is row["regions"]
    assert example["regions_attention_mask"] == [1, 1]


def test_absent_sources_of_any_kind_have_masks_of_zeros() -> None:
    processor = mixed_processor()
    lists = processor(**columns_of(mixed_rows()))
    assert lists["image_attention_mask"] == [[1], [1], None, None]
    assert [row is None for row in lists["input_ids"]] == [False, True, False, True]
    assert [row is None for row in lists["image_pixel_values"]] == [False, False, True, True]
    assert [row is None for row in lists["speech_input_values"]] == [False, True, False, True]
    assert [row if row is None else len(row) for row in lists["speech_attention_mask"]] == [9, None, 4, None]
    assert [row is None for row in lists["regions_input_features"]] == [False, False, True, False]
    assert lists["regions_attention_mask"] == [[1] * 2, [1] * 5, None, [1]]
    batch = processor(**columns_of(mixed_rows()), return_tensors="pt")
    assert {key: tuple(tensor.shape) for key, tensor in batch.items() if not key.endswith("mask")} == {
        "input_ids": (4, max(len(row) for row in lists["input_ids"] if row)),
        "image_pixel_values": (4, 3, kinds.SIDE, kinds.SIDE),
        "speech_input_values": (4, 9),
        "regions_input_features": (4, 5, kinds.SIZE),
    }
    for name, absent, lengths in (("image", [2, 3], [1, 1, 0, 0]), ("speech", [1, 3], [9, 0, 4, 0])):
        main = batch[f"{name}_{processor.main_input(name)}"]
        assert not main[absent].any() and main.dtype == torch.float32
        assert batch[f"{name}_attention_mask"].sum(dim=1).tolist() == lengths
        assert batch[f"{name}_attention_mask"].dtype == torch.int64
    assert not batch["regions_input_features"][0, 2:].any()


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_a_source_that_a_whole_batch_lacks_has_tensors_of_no_length(kind: str) -> None:
    batch = mixed_processor()(en=["A", "B"], image=[None, " "], return_tensors=kind)
    assert list(batch) == MIXED_KEYS
    for key in MIXED_KEYS[2:]:
        assert batch[key].shape == (2, 0)
        assert str(batch[key].dtype).rpartition(".")[2] == ("int64" if key.endswith("mask") else "float32")
    assert mixed_processor()(regions=regions(0, 2), return_tensors=kind)["input_ids"].shape == (1, 1)


def test_pictures_may_be_given_in_every_way(tmp_path: Path) -> None:
    processor = mixed_processor("image", "en")
    image = picture(0)
    image.save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    given: list[Any] = [image, np.asarray(image), tmp_path / "a.png", str(tmp_path / "a.png"), data]
    given += [{"bytes": data, "path": None}, {"bytes": None, "path": str(tmp_path / "a.png")}]
    together = processor(image=given)["pixel_values"]
    for value, pixels in zip(given, together, strict=True):
        assert np.array_equal(pixels, together[0])
        assert np.array_equal(processor(image=value)["pixel_values"], pixels), "a single one"
    gray = processor(image=image.convert("L"))["pixel_values"]
    assert gray.shape == together[0].shape and np.array_equal(gray[0], gray[2])


def test_a_picture_that_cannot_be_read_is_an_error_or_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    processor = mixed_processor("en", "image")
    given: dict[str, Any] = {
        "en": ["A", "B", None, "D"],
        "image": [picture(0), str(tmp_path / "broken.jpg"), picture(1), tmp_path / "missing.jpg"],
    }
    message = r"^source 'image' of example 1: .*broken\.jpg holds no readable picture"
    with pytest.raises(ValueError, match=message):
        processor(**given)
    assert processor.unreadable == {}
    batch = processor(**given, unreadable="absent", return_tensors="pt")
    assert batch["image_attention_mask"].tolist() == [[1], [0], [1], [0]]
    assert not batch["image_pixel_values"][[1, 3]].any()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "source 'image' of example 1" in caplog.text and "missing.jpg" in caplog.text
    assert processor.unreadable == {"image": 2}
    with pytest.raises(ValueError, match=r"^example 0 has no source at all; give it at least one of en, image"):
        processor(image=tmp_path / "broken.jpg", unreadable="absent")
    assert processor.unreadable == {"image": 3}
    with pytest.raises(ValueError, match=r"^unreadable must be one of 'error', 'absent'; got 'skip'"):
        processor(**given, unreadable="skip")
    with pytest.raises(ValueError, match=r"^source 'image' of example 0: a picture must be .*; got int"):
        processor(image=[3], unreadable="absent")


@pytest.mark.parametrize(
    "extractor",
    [
        Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=True),
        Wav2Vec2FeatureExtractor(do_normalize=False, padding_value=-2.0),
        Speech2TextFeatureExtractor(feature_size=5, num_mel_bins=5),
        WhisperFeatureExtractor(feature_size=4, chunk_length=1),
    ],
    ids=["wav2vec2", "another padding", "speech2text", "whisper"],
)
def test_speech_is_what_its_feature_extractor_gives_for_the_batch(extractor: Any) -> None:
    processor = MultiSourceProcessor(tokenizer(), ["en", "speech"], source_processors={"speech": extractor})
    sounds = [recording(0, 900), recording(1, 2000), recording(2, 1400)]
    padding = {} if isinstance(extractor, WhisperFeatureExtractor) else {"padding": True}
    expected = extractor(sounds, sampling_rate=16_000, return_attention_mask=True, return_tensors="np", **padding)
    key = extractor.model_input_names[0]
    batch = processor(speech=sounds, return_tensors="np")
    np.testing.assert_allclose(batch[f"speech_{key}"], expected[key], rtol=1e-4, atol=1e-4)
    assert np.array_equal(batch["speech_attention_mask"], expected["attention_mask"])
    with_absent = processor(en="A", speech=None, return_tensors="np")
    assert with_absent["speech_attention_mask"].shape == (1, 0)
    mixed = processor(en=["A", None], speech=[None, sounds[1]], return_tensors="np")
    assert np.array_equal(mixed[f"speech_{key}"][1], processor(speech=sounds[1])[f"speech_{key}"])
    assert (mixed[f"speech_{key}"][0] == extractor.padding_value).all()
    assert not mixed["speech_attention_mask"][0].any()


def test_speech_may_come_with_its_sampling_rate_which_must_be_the_right_one() -> None:
    processor = mixed_processor("en", "speech")
    sound = recording(0, 7)
    expected = processor(speech=sound)["speech_input_values"]
    entries: list[Any] = [
        {"array": sound, "sampling_rate": kinds.RATE},
        {"array": sound.tolist(), "sampling_rate": 8e3},
    ]
    for value in [torch.tensor(sound), sound.astype(np.float64), *entries]:
        np.testing.assert_allclose(processor(speech=value)["speech_input_values"], expected, rtol=1e-5)
    np.testing.assert_allclose(processor(speech=[sound.tolist()])["speech_input_values"][0], expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"^source 'speech' of example 1 has a sampling rate of 44100 Hz, .* 8000 Hz"):
        processor(speech=[sound, {"array": sound, "sampling_rate": 44_100}])
    with pytest.raises(ValueError, match=r"one channel of samples, .*; got float32 of shape \(2, 7\)"):
        processor(speech=np.stack([sound, sound]))
    with pytest.raises(ValueError, match=r"^source 'speech' of example 0 .* floats .*; got int16 of shape \(7,\)"):
        processor(speech=(sound * 99).astype(np.int16))
    for other, message in [({"x": "a.wav"}, "or a dict with array and sampling_rate; got dict"), (3, "; got int")]:
        with pytest.raises(ValueError, match=rf"^source 'speech' of example 0 must be an array of samples .*{message}"):
            processor(speech=other)
    assert processor(en="A", speech=sound[:0])["speech_input_values"] is None, "no samples: absent"


def test_speech_may_come_as_a_file_and_one_that_cannot_be_read_is_an_error_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(kinds.wav_bytes([0, 16384, -32768, 7]))
    processor = mixed_processor("en", "speech")
    expected = processor(speech=np.array([0, 0.5, -1, 7 / 32768], np.float32))["speech_input_values"]
    for value in (path, str(path), path.read_bytes(), {"path": str(path)}, {"bytes": path.read_bytes(), "path": None}):
        np.testing.assert_array_equal(processor(speech=value)["speech_input_values"], expected)
    with pytest.raises(ValueError, match=r"^source 'speech' of example 1 has a sampling rate of 44100 Hz, .* 8000 Hz"):
        processor(speech=[str(path), kinds.wav_bytes([1, 2], rate=44_100)])
    with pytest.raises(ValueError, match=r"^source 'speech' of example 1: .*none\.wav cannot be read"):
        processor(speech=[str(path), str(tmp_path / "none.wav")])
    batch = processor(en=["A", "B"], speech=[b"noise", str(path)], unreadable="absent")
    assert [row is None for row in batch["speech_input_values"]] == [True, False]
    assert processor.unreadable == {"speech": 1}


def test_speech_may_come_as_the_decoders_that_datasets_gives() -> None:
    class Decoder:  # no mapping, but it answers to these two keys
        def __getitem__(self, key: str) -> Any:
            return {"array": recording(0, 7), "sampling_rate": kinds.RATE}[key]

    processor = mixed_processor("en", "speech")
    expected = processor(speech=recording(0, 7))["speech_input_values"]
    assert np.array_equal(processor(speech=Decoder())["speech_input_values"], expected)
    assert np.array_equal(processor(speech=[None, Decoder()], en=["A", None])["speech_input_values"][1], expected)


def test_maps_of_features_are_read_row_by_row() -> None:
    grid = np.arange(24).reshape(2, 3, 4).astype(np.float32)  # F, H, W
    batch = mixed_processor("regions", "en")(regions=[grid, torch.tensor(grid), grid.tolist()], return_tensors="pt")
    expected = [[grid[0, h, w], grid[1, h, w]] for h in range(3) for w in range(4)]
    assert batch["input_features"].tolist() == [expected] * 3
    assert batch["attention_mask"].tolist() == [[1] * 12] * 3


def test_features_of_files_are_not_read_before_they_are_batched(tmp_path: Path) -> None:
    for shape in [(3, 5, 2), (3, 2, 4, 4)]:
        np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=shape).astype(np.float16))
        mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
        processor = mixed_processor("regions", "en")
        example = processor(regions=mapped[1])["input_features"]
        assert np.shares_memory(example, mapped) and example.dtype == np.float16
        batch = processor(regions=[mapped[0], mapped[1]], return_tensors="pt")["input_features"]
        assert batch.dtype == torch.float32 and np.array_equal(batch[1].numpy(), example)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.float16, np.float64, torch.bfloat16])
def test_features_of_any_number_type_become_float32(kind: Any) -> None:
    values = [[1, 2, 3], [4, 5, 6]]
    row = torch.tensor(values, dtype=kind) if isinstance(kind, torch.dtype) else np.array(values, kind)
    batch = mixed_processor("regions", "en")(regions=row, return_tensors="pt")
    assert batch["input_features"].dtype == torch.float32 and batch["input_features"].tolist() == [values]


def test_features_of_the_wrong_form_are_named() -> None:
    processor = mixed_processor()
    for bad, message in [
        (np.zeros(3), r"got float64 of shape \(3,\)"),
        (np.zeros((1, 2, 3, 4), np.float32), r"got float32 of shape \(1, 2, 3, 4\)"),
        (np.array([["a"]]), r"got <U1 of shape \(1, 1\)"),
        ("regions.npy", r"got <U11 of shape \(\)"),
    ]:
        with pytest.raises(ValueError, match=rf"^source 'regions' of example 1 must be an array .*; {message}"):
            processor(regions=[regions(0, 2), bad])
    with pytest.raises(
        ValueError, match=r"^source 'regions' has shape \(2, 3\) in example 0 .* and \(1, 4\) in example 2"
    ):
        processor(regions=[regions(0, 2), None, regions(1, 1, size=4)], en=["A"] * 3, return_tensors="pt")
    with pytest.raises(ValueError, match=r"^source 'regions' of example 0 is no array of numbers: .*inhomogeneous"):
        processor(regions=[[[1.0, 2.0], [3.0]]])
    empty = processor(en="A", regions=np.zeros((0, 3), np.float32))
    assert empty["regions_input_features"] is empty["regions_attention_mask"] is None


def test_pictures_of_different_shapes_make_no_batch() -> None:
    processor = mixed_processor()
    assert [len(row[0]) for row in processor(image=[picture(0), picture(1, 6)])["image_pixel_values"]] == [4, 6]
    with pytest.raises(
        ValueError,
        match=r"^source 'image' has shape \(3, 4, 4\) in example 0 .* and \(3, 6, 6\) in example 1: all must",
    ):
        processor(image=[picture(0), picture(1, 6)], return_tensors="pt")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"en": ["A"], "image": picture(0)},
            "image is a single value .Image., others are lists: give single values or lists",
        ),
        ({"en": ["A"], "regions": regions(0, 2)}, "regions is a single value .ndarray., others are lists"),
        ({"en": "A", "image": [picture(0)]}, "en is a single text, others are lists"),
        ({"image": [picture(0)], "speech": [None, None]}, r"equally many values; got {'image': 1, 'speech': 2}"),
        ({"image": [picture(0), None], "text_target": ["A", "B"]}, "^example 1 has no source at all"),
        ({"image": None, "regions": None}, "^example 0 has no source at all; give it at least one of en, image, spe"),
        ({"image": ["", "  "], "en": [None, ""]}, "^example 0 has no source at all"),
        ({"picture": picture(0)}, "unknown source 'picture'; the sources are en, image, speech, regions"),
    ],
)
def test_bad_input_of_several_kinds_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixed_processor()(**given)


def test_texts_are_padded_to_max_length_and_all_else_to_its_longest() -> None:
    batch = mixed_processor()(
        **columns_of(mixed_rows()), text_target=["A"] * 4, padding="max_length", max_length=20, return_tensors="pt"
    )
    lengths = {key: tensor.shape[1] for key, tensor in batch.items() if "pixel" not in key}
    assert lengths.pop("image_attention_mask") == 1
    assert lengths == {
        **dict.fromkeys(["input_ids", "attention_mask", "labels"], 20),
        **dict.fromkeys(["speech_input_values", "speech_attention_mask"], 9),
        **dict.fromkeys(["regions_input_features", "regions_attention_mask"], 5),
    }


def test_parts_belong_to_one_source_and_make_what_models_take() -> None:
    vit, wav2vec2 = ViTImageProcessorPil(), Wav2Vec2FeatureExtractor()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"feature_sources": ["x"]}, "unknown source 'x'; the sources are en, a"),
        ({"source_processors": {"x": vit}}, "unknown source 'x'; the sources are en, a"),
        (
            {"source_processors": {"a": vit}, "feature_sources": ["a"]},
            "source 'a' must be in one of source_tokenizers, ",
        ),
        ({"source_processors": {"a": vit}, "source_tokenizers": {"a": tokenizer()}}, "source 'a' must be in one of"),
        ({"feature_sources": ["a", "a"]}, "source 'a' must be in one of"),
        ({"source_processors": {"a": tokenizer()}}, r"^source_processors\['a'\] must be an image processor or a fe"),
        ({"source_processors": {"a": Wav2Vec2Processor(wav2vec2, tokenizer())}}, "got Wav2Vec2Processor"),
        (
            {"source_processors": {"a": Pix2StructImageProcessorPil()}},
            r"^source_processors\['a'\] must make pixel_values; Pix2StructImageProcessorPil makes flattened_patches",
        ),
    ]
    for settings, message in cases:
        with pytest.raises(ValueError, match=message):
            MultiSourceProcessor(tokenizer(), ["en", "a"], **settings)


def test_only_text_has_a_tokenizer() -> None:
    with pytest.raises(ValueError, match=r"^source 'image' has no tokenizer: it is given as pixel_values, not as text"):
        mixed_processor().get_tokenizer("image")


def parts_of(processor: Any) -> dict[str, tuple[type, dict[str, Any]]]:
    parts = {name: (type(part), part.to_dict()) for name, part in processor.source_processors.items()}
    for _, settings in parts.values():
        settings.pop("processor_class", None)
    return parts


@pytest.mark.parametrize("image_class", [ViTImageProcessorPil, ViTImageProcessor])
def test_a_saved_processor_of_every_kind_loads_the_same(image_class: Any, tmp_path: Path) -> None:
    parts = {
        "image": image_class(size={"height": 3, "width": 5}),  # resized: each backend gives pixels of its own
        "speech": Wav2Vec2FeatureExtractor(sampling_rate=kinds.RATE, padding_value=0.5),
    }
    text = kinds.text_tokenizer()
    names = ["speech", "en", "regions", "image", "de"]
    saved = MultiSourceProcessor(text, names, {"de": tokenizer("de")}, parts, ["regions"])
    saved.save_pretrained(tmp_path)
    given = {**columns_of(mixed_rows()), "de": [None, "Ein", None, "Zwei"]}
    given["image"] = [picture(0, 9), None, picture(1, 7), None]
    expected = saved(**given, return_tensors="pt")
    loaded = [MultiSourceProcessor.from_pretrained(tmp_path), AutoProcessor.from_pretrained(tmp_path)]
    loaded[0].save_pretrained(tmp_path / "again")
    loaded.append(MultiSourceProcessor.from_pretrained(tmp_path / "again"))
    for processor in loaded:
        assert type(processor) is MultiSourceProcessor
        assert processor.source_names == names and processor.feature_sources == ["regions"]
        assert parts_of(processor) == parts_of(saved)
        batch = processor(**given, return_tensors="pt")
        assert list(batch) == list(expected) and all(torch.equal(batch[key], expected[key]) for key in batch)
    one, two = ((folder / "processor_config.json").read_text() for folder in (tmp_path, tmp_path / "again"))
    assert one == two


def test_a_processor_of_every_kind_loads_without_the_package(tmp_path: Path) -> None:
    processor = mixed_processor(null_token="<NULL>")
    processor.save_pretrained(tmp_path / "saved")
    picture(0).save(tmp_path / "a.png")
    code = """
from transformers import AutoProcessor
processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
batch = processor(image=picture)
answer = [type(processor).__module__, batch["input_ids"], batch["image_pixel_values"].tolist(), processor.source_names]
"""
    answer = run_fresh(code, tmp_path / "home", folder=tmp_path / "saved", picture=tmp_path / "a.png")
    module, null, pixels, names = answer
    assert module.startswith("transformers_modules.")
    expected = processor(image=picture(0))
    assert null == expected["input_ids"] and names == list(kinds.NAMES)
    assert np.array_equal(np.array(pixels, np.float32), expected["image_pixel_values"])


def test_what_is_pushed_has_the_parts_of_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[set[str]] = []

    def push(self: MultiSourceProcessor, repo_id: str, **kwargs: Any) -> None:
        pushed.append({path.parent.name for path in (tmp_path / "mine").glob("*/preprocessor_config.json")})

    monkeypatch.setattr(MultiSourceProcessor, "push_to_hub", push)
    mixed_processor().save_pretrained(str(tmp_path / "mine"), push_to_hub=True)
    assert pushed == [{"image_processor", "speech_processor"}]


# Absent texts as a token (Nishimura et al. 2018).


def test_an_absent_text_may_be_one_token_of_its_own(tmp_path: Path) -> None:
    processor = mixed_processor("en", "image", null_token="<NULL>")
    own = kinds.text_tokenizer()
    null = [own.convert_tokens_to_ids("<NULL>"), own.eos_token_id]
    assert own.unk_token_id not in null
    batch = processor(en=["A", None, " "], image=[None, picture(0), picture(1)])
    assert batch["input_ids"] == [own("A")["input_ids"], null, null]
    assert batch["attention_mask"][1:] == [[1, 1], [1, 1]]
    assert batch["image_attention_mask"] == [None, [1], [1]], "only texts have the token"
    assert processor(image=picture(0))["input_ids"] == null
    assert processor(en="<NULL>")["input_ids"] != null, "a text that quotes the token is a text"
    with pytest.raises(ValueError, match=r"^example 0 has no source at all"):
        processor(en=None)
    processor.save_pretrained(tmp_path)
    loaded = MultiSourceProcessor.from_pretrained(tmp_path)
    assert loaded.null_token == "<NULL>" and loaded(image=picture(0))["input_ids"] == null


def test_every_text_source_must_know_the_null_token() -> None:
    own = kinds.text_tokenizer()
    message = r"^null_token must be one token .* of every text source; of '<NULL>' the tokenizer of 'de' makes \["
    with pytest.raises(ValueError, match=message):
        MultiSourceProcessor(own, ["en", "de"], {"de": tokenizer("de")}, null_token="<NULL>")
    with pytest.raises(ValueError, match=r"of '<unk>' the tokenizer of 'en' makes \['<unk>'\]"):
        MultiSourceProcessor(own, ["en", "de"], null_token="<unk>")


class NAType:
    """As the missing value of pandas is called."""


@pytest.mark.parametrize("missing", [None, float("nan"), np.float64("nan"), NAType()])
def test_missing_cells_of_tables_are_absent(missing: Any) -> None:
    processor = three_source_processor()
    expected = processor(en=["a dog", None], de=[None, "ein Hund"], text_target=["x", "y"])
    given = processor(en=["a dog", missing], de=[missing, "ein Hund"], fr=[missing] * 2, text_target=["x", "y"])
    assert dict(given) == dict(expected)
    assert dict(processor(en="a dog", de=missing)) == dict(processor(en="a dog"))


@pytest.mark.parametrize("value", [3, 2.5, [4, 5], b"a dog", {"text": "a dog"}])
def test_what_is_no_text_is_refused_with_source_and_row(value: Any) -> None:
    processor = three_source_processor()
    with pytest.raises(ValueError, match=r"^source 'de' of example 1 must be a text, or None; got "):
        processor(en=["a", "b"], de=["c", value])
    with pytest.raises(ValueError, match=r"^text_target of example 1 must be a text, or None; got "):
        processor(en=["a", "b"], text_target=["c", value])


@pytest.mark.parametrize("value", [3, np.array(3), b"a dog", {"text": "a dog"}])
def test_a_single_value_that_is_no_text_is_refused(value: Any) -> None:
    processor = three_source_processor()
    with pytest.raises(ValueError, match=r"^source 'de' of example 0 must be a text, or None; got "):
        processor(en="a", de=value)
    with pytest.raises(ValueError, match=r"^text_target of example 0 must be a text, or None; got "):
        processor(en="a", text_target=value)


def test_half_a_surrogate_pair_is_no_text() -> None:
    processor = three_source_processor()
    with pytest.raises(ValueError, match=r"^'a\\ud800b' has '\\ud800', half of a surrogate pair"):
        processor(en=["a", "a\ud800b"])


def test_a_tokenizer_that_cannot_pad_is_named() -> None:
    processor = copy.deepcopy(three_source_processor())
    processor.tokenizer.pad_token = None
    assert processor(en=["a", "a b"])["input_ids"]
    with pytest.raises(ValueError, match="the tokenizer of source 'en' has no pad_token"):
        processor(en=["a", "a b"], return_tensors="pt")


def test_a_single_number_and_a_missing_target_are_refused() -> None:
    processor = three_source_processor()
    with pytest.raises(ValueError, match=r"^source 'en' of example 0 must be a text, or None; got 3\.$"):
        processor(en=3)
    with pytest.raises(ValueError, match=r"^text_target of example 1 is missing; each example needs one\.$"):
        missing: Any = float("nan")
        processor(en=["a", "b"], text_target=["c", missing])
    with pytest.raises(ValueError, match=r"^text_target of example 0 is missing; each example needs one\.$"):
        processor(en="a", text_target=missing)
