from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import tiny_config
from hf_multisource import DataCollatorForMultiSource, MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.collation import pad_rows, source_key
from train_tokenizer import train_tokenizer

SOURCES = ("en", "de")
OWN_PADDING = 3


@cache
def processor_of(own: bool = False) -> MultiSourceProcessor:
    tokenizer = train_tokenizer(["A boy plays.", "Ein Junge spielt."], "bpe", 261)
    other = train_tokenizer(["Ein Junge spielt."], "bpe", 261)
    other.pad_token = other.unk_token  # id 3
    return MultiSourceProcessor(tokenizer, SOURCES, {"de": other} if own else None)


def example(en: list[int], de: list[int], labels: list[int]) -> dict[str, Any]:
    masks = {"attention_mask": [1] * len(en), "de_attention_mask": [1] * len(de)}
    return {"input_ids": en, "de_input_ids": de, "labels": labels, **masks}


EXAMPLES = [example([5, 6, 1], [7, 1], [9, 1]), example([], [7, 8, 9, 4, 1], [9, 9, 9, 1]), example([8, 1], [], [1])]


def test_each_source_is_padded_on_its_own_and_labels_with_minus_100() -> None:
    batch = DataCollatorForMultiSource(processor_of())(EXAMPLES)
    assert {key: tensor.tolist() for key, tensor in batch.items()} == {
        "input_ids": [[5, 6, 1], [0, 0, 0], [8, 1, 0]],
        "attention_mask": [[1, 1, 1], [0, 0, 0], [1, 1, 0]],
        "de_input_ids": [[7, 1, 0, 0, 0], [7, 8, 9, 4, 1], [0, 0, 0, 0, 0]],
        "de_attention_mask": [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]],
        "labels": [[9, 1, -100, -100], [9, 9, 9, 1], [1, -100, -100, -100]],
    }
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_a_source_is_padded_with_its_own_tokenizers_id() -> None:
    batch = DataCollatorForMultiSource(processor_of(own=True))(EXAMPLES)
    assert batch["de_input_ids"][2].tolist() == [OWN_PADDING] * 5
    assert batch["input_ids"][1].tolist() == [0] * 3


@pytest.mark.parametrize("absent", [[], None])
def test_a_source_absent_in_all_examples_is_one_masked_token(absent: list[int] | None) -> None:
    examples: list[dict[str, Any]] = [{"input_ids": [5, 1], "de_input_ids": absent}, {"input_ids": [6, 1]}]
    batch = DataCollatorForMultiSource(processor_of())(examples)
    assert batch["de_input_ids"].tolist() == batch["de_attention_mask"].tolist() == [[0], [0]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 1]], "a mask left out is one of ones"
    assert "labels" not in batch


def test_a_given_mask_is_kept() -> None:
    batch = DataCollatorForMultiSource(processor_of())([{**EXAMPLES[0], "attention_mask": [1, 0, 1]}])
    assert batch["attention_mask"].tolist() == [[1, 0, 1]]


def test_other_columns_are_left_out() -> None:
    extra = [{**row, "length": 7, "id": "x", "fr_input_ids": [1]} for row in EXAMPLES]
    plain = DataCollatorForMultiSource(processor_of())(EXAMPLES)
    batch = DataCollatorForMultiSource(processor_of())(extra)
    assert list(batch) == list(plain)
    assert all(torch.equal(batch[key], plain[key]) for key in plain)


@pytest.mark.parametrize(
    "nothing", [{"labels": [1]}, example([], [], [1]), {**EXAMPLES[0], "attention_mask": [0] * 3, "de_input_ids": []}]
)
def test_an_example_without_any_source_is_named(nothing: dict[str, Any]) -> None:
    nothing = {**nothing, "de_attention_mask": []}
    with pytest.raises(ValueError, match=r"^example 1 of the batch has no source at all"):
        DataCollatorForMultiSource(processor_of())([EXAMPLES[0], nothing])


def test_rows_may_be_tensors() -> None:
    tensors = [{key: torch.tensor(row, dtype=torch.int64) for key, row in one.items()} for one in EXAMPLES]
    batch, expected = (DataCollatorForMultiSource(processor_of())(examples) for examples in (tensors, EXAMPLES))
    assert {key: rows.tolist() for key, rows in batch.items()} == {key: rows.tolist() for key, rows in expected.items()}


def test_labels_are_in_all_examples_or_in_none() -> None:
    unlabelled = {key: value for key, value in EXAMPLES[1].items() if key != "labels"}
    with pytest.raises(ValueError, match=r"^example 1 of the batch has no labels, others have"):
        DataCollatorForMultiSource(processor_of())([EXAMPLES[0], unlabelled])
    assert "labels" not in DataCollatorForMultiSource(processor_of())([unlabelled])


def test_lengths_can_be_made_multiples() -> None:
    batch = DataCollatorForMultiSource(processor_of(), pad_to_multiple_of=4)(EXAMPLES)
    assert {key: tensor.shape[1] for key, tensor in batch.items()} == {
        "input_ids": 4,
        "attention_mask": 4,
        "de_input_ids": 8,
        "de_attention_mask": 8,
        "labels": 4,
    }
    assert batch["labels"][2].tolist() == [1, -100, -100, -100]
    assert batch["de_attention_mask"].sum(dim=1).tolist() == [2, 5, 0]


def test_with_a_model_the_decoders_input_is_the_labels_shifted_right() -> None:
    model = MultiSourceForConditionalGeneration(tiny_config(sources=SOURCES))
    batch = DataCollatorForMultiSource(processor_of(), model=model)(EXAMPLES)
    assert batch["decoder_input_ids"].tolist() == [[2, 9, 1, 0], [2, 9, 9, 9], [2, 1, 0, 0]]
    with_inputs = model.eval()(**batch).loss
    del batch["decoder_input_ids"]
    assert torch.equal(model(**batch).loss, with_inputs)
    unlabelled = [{key: value for key, value in row.items() if key != "labels"} for row in EXAMPLES]
    assert "decoder_input_ids" not in DataCollatorForMultiSource(processor_of(), model=model)(unlabelled)


@pytest.mark.parametrize("own", [False, True])
def test_collating_single_examples_gives_what_the_processor_gives_for_the_batch(own: bool) -> None:
    processor = processor_of(own)
    rows: list[dict[str, Any]] = [
        {"en": "A boy plays.", "de": None, "text_target": "Ein"},
        {"en": " ", "de": "Ein Junge spielt.", "text_target": "A boy"},
        {"en": "A", "de": "Ein", "text_target": ""},
    ]
    collated = DataCollatorForMultiSource(processor)([processor(**row) for row in rows])
    columns: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0]}
    batch = processor(**columns, return_tensors="pt")
    assert list(collated) == list(batch)
    assert all(torch.equal(collated[key], batch[key]) for key in collated)


def test_examples_are_left_as_they_are() -> None:
    before = [{key: list(value) for key, value in row.items()} for row in EXAMPLES]
    DataCollatorForMultiSource(processor_of(), pad_to_multiple_of=8)(EXAMPLES)
    assert before == EXAMPLES


@given(
    rows=st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=4),
    to=st.none() | st.integers(0, 8),
    multiple_of=st.integers(1, 5),
)
def test_rows_are_padded_to_the_least_length_that_fits(rows: list[list[int]], to: int | None, multiple_of: int) -> None:
    padded = pad_rows(rows, 0, to=to, multiple_of=multiple_of)
    needed = max([1, to or 1, *map(len, rows)])
    for row, full in zip(rows, padded, strict=True):
        assert full == row + [0] * (len(full) - len(row))
        assert len(full) % multiple_of == 0 and needed <= len(full) < needed + multiple_of


def test_keys_of_source_0_are_bare() -> None:
    assert [source_key(0, "en", "input_ids"), source_key(1, "de", "input_ids")] == ["input_ids", "de_input_ids"]
