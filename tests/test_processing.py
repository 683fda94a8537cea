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
from transformers import AutoProcessor, BatchFeature

from builders import tiny_config
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from train_tokenizer import train_tokenizer

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
    assert left_out[f"{prefix}attention_mask"] == ([] if tensors is None else [[0]])
    assert left_out[f"{prefix}input_ids"] == ([] if tensors is None else [[0]])
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
        alone = [example[key] for example in examples]
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
        ({"en": ["A", "B"], "de": ["Ein"]}, r"must have equally many texts; got {'en': 2, 'de': 1}"),
        ({"en": ["A"], "text_target": ["B", "C"]}, r"equally many texts; got {'en': 1, 'text_target': 2}"),
        ({"en": ["A"], "de": "Ein"}, "de is a single text, others are lists"),
        ({"en": "A", "text_target": ["B"]}, "en is a single text, others are lists"),
        ({"en": ["A"], "text_target": "B"}, "text_target is a single text, others are lists"),
        ({}, "example 0 has no source at all; give it at least one of en, de, fr"),
        ({"en": " ", "de": None}, "example 0 has no source at all"),
        ({"en": ["A", None, "C"], "fr": ["Un", "", None]}, "example 1 has no source at all"),
        ({"text_target": ["B", "C"]}, "example 0 has no source at all"),
    ],
)
def test_bad_input_is_named(texts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        processor_of()(**texts)


def test_a_processor_needs_sources_and_no_tokenizer_but_theirs() -> None:
    with pytest.raises(ValueError, match="source_names must name at least one source; got none"):
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
