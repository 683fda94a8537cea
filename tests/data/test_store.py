"""Encoded texts in files that are mapped into memory."""

from __future__ import annotations

import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import Wav2Vec2CTCTokenizer

import kinds
from builders import three_source_processor
from hf_multisource import (
    DataCollatorForMultiSource,
    MultiSourceProcessor,
    processing_multisource,
    source_kinds,
    text_encoding,
)
from hf_multisource.data import encoding, store
from hf_multisource.data.encoding import MixedExamples, encode_batch, encode_rows
from hf_multisource.data.store import place_of, read_report, store_rows, stored_rows
from hf_multisource.recipes.processor import contents_of
from hf_multisource.recipes.training import train
from kinds import mixed_processor
from runs import make_folder, recipe_of

ROWS: list[dict[str, Any]] = [
    {"en": "a boy runs", "de": "ein Junge", "cs": "chlapec"},
    {"en": None, "de": "zwei Hunde und viele mehr", "cs": "dva psi"},
    {"en": "green", "de": None, "cs": "zelená voda teče"},
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "hf_multisource"


@pytest.mark.parametrize("max_length", [4, 100])
@pytest.mark.parametrize("target", ["cs", None])
@pytest.mark.parametrize("rows_per_call", [1, 2, 1000])
def test_stored_examples_are_those_in_memory(
    max_length: int, target: str | None, rows_per_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (store, encoding):
        monkeypatch.setattr(module, "ROWS_PER_CALL", rows_per_call)
    processor, place = three_source_processor(), place_of("rows")
    names = processor.source_names
    rows = [{**{name: row.get(name) for name in names}, "cs": row["cs"]} for row in ROWS]
    store_rows(place, processor, rows, target, max_length)
    expected, report = encode_rows(processor, rows, target, max_length)
    stored = stored_rows(processor, place)
    assert read_report(place) == report
    assert list(stored) == expected
    assert stored[1:] == expected[1:] and stored.__getitems__([2, 0]) == [expected[2], expected[0]]
    assert pickle.loads(pickle.dumps(stored))[2] == expected[2]
    keys = [key for key in expected[0] if key.endswith("input_ids")]
    assert stored.text_lengths.tolist() == [[len(row[key] or ()) for key in keys] for row in expected]
    assert stored.label_lengths.tolist() == [len(row.get("labels", ())) for row in expected]
    batch = DataCollatorForMultiSource(processor)(stored)
    for key, tensor in DataCollatorForMultiSource(processor)(expected).items():
        assert torch.equal(batch[key], tensor)


def test_rows_with_other_things_than_texts_store_their_texts_alone() -> None:
    processor, place = mixed_processor("en", "image"), place_of("rows")
    rows: list[dict[str, Any]] = [
        {"en": "a", "image": None, "cs": "x"},
        {"en": None, "image": kinds.picture(0), "cs": "y z"},
    ]
    store_rows(place, processor, rows, "cs", 100)
    stored, (expected, _) = stored_rows(processor, place), encode_rows(processor, rows, "cs", 100)
    assert isinstance(expected, MixedExamples)
    assert list(stored) == list(expected.encoded)
    assert stored[1]["input_ids"] is stored[1]["attention_mask"] is None
    assert stored.text_lengths.tolist() == expected.text_lengths


def test_an_empty_split_is_stored() -> None:
    processor, place = three_source_processor(), place_of("rows")
    store_rows(place, processor, [], "cs", 100)
    assert len(stored_rows(processor, place)) == 0
    assert set((read_report(place) or {}).values()) == {0}


def test_rows_are_encoded_once_and_a_broken_attempt_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor, place = three_source_processor(), place_of("rows")
    rows = [{**dict.fromkeys(processor.source_names, "a"), "cs": "b"}] * 3
    calls: list[int] = []

    def encode(*args: Any, **options: Any) -> Any:
        calls.append(len(args[1]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return encode_batch(*args, **options)

    monkeypatch.setattr(store, "ROWS_PER_CALL", 2)
    monkeypatch.setattr(store, "encode_batch", encode)
    with pytest.raises(KeyboardInterrupt):
        store_rows(place, processor, rows, "cs", 100)
    assert list(cache.iterdir()) == [] and read_report(place) is None
    store_rows(place, processor, rows, "cs", 100)
    store_rows(place, processor, rows, "cs", 100)
    assert calls == [2, 1, 2, 1]
    assert {path.suffix for path in cache.iterdir()} == {".arrow", ".json"}
    place.unlink()
    store_rows(place, processor, rows, "cs", 100)
    assert len(calls) == 6 and len(stored_rows(processor, place)) == 3


def test_another_run_on_the_same_data_does_not_encode_it_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path)
    train(recipe_of(folder, max_steps=1))
    made = {path.name for path in cache.iterdir()}
    assert len(made) == 4  # two splits
    train(recipe_of(folder, "longer", max_steps=1, max_length=31))
    assert len(list(cache.iterdir())) == 8  # other settings, other files

    def refuse(*_: Any) -> Any:
        raise AssertionError("encoded again")

    monkeypatch.setattr(store, "encode_batch", refuse)
    train(recipe_of(folder, "again", max_steps=1, seed=2))
    train(recipe_of(folder, max_steps=2), resume=True)
    assert len(list(cache.iterdir())) == 8


@pytest.mark.parametrize("module", [store, encoding, processing_multisource, source_kinds, text_encoding])
def test_a_change_of_the_code_that_encodes_makes_another_file(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before, source = place_of("rows"), inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda one: f"{source(one)}# changed" if one is module else source(one))
    assert place_of("rows") != before


def test_another_vocabulary_of_a_tokenizer_without_tokenizer_json_is_told(tmp_path: Path) -> None:
    digests = []
    for i, letters in enumerate(("ab", "ba")):
        vocabulary = {token: j for j, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *letters])}
        (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
        processor = MultiSourceProcessor(Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json")), ["en"])
        processor.save_pretrained(tmp_path / str(i))
        digests.append(contents_of(tmp_path / str(i), processor))
    assert digests[0].keys() == digests[1].keys()
    assert [name for name in digests[0] if digests[0][name] != digests[1][name]] == ["vocab.json"]
