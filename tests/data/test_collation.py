from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from builders import tiny_config
from hf_multisource import DataCollatorForMultiSource, MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.arrays import pad_arrays, pad_rows
from hf_multisource.recipes.tokenization import train_tokenizer
from hf_multisource.source_kinds import source_key
from kinds import RATE, SIZE, mixed_processor, mixed_rows, picture, recording, regions

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


def test_a_tokenizer_is_no_processor() -> None:
    with pytest.raises(TypeError, match="processor must be a MultiSourceProcessor; got a "):
        DataCollatorForMultiSource(processor_of().tokenizer)


def test_lengths_are_rounded_up_to_a_multiple_or_not_at_all() -> None:
    as_they_are, rounded = (DataCollatorForMultiSource(processor_of(), None, size)(EXAMPLES) for size in (None, 8))
    assert {key: tensor.shape[1] for key, tensor in as_they_are.items() if "mask" not in key} == {
        **{"input_ids": 3, "de_input_ids": 5, "labels": 4}
    }
    assert {tensor.shape[1] for tensor in rounded.values()} == {8}
    with pytest.raises(ValueError, match="pad_to_multiple_of must be 1 or more, or None; got 0"):
        DataCollatorForMultiSource(processor_of(), pad_to_multiple_of=0)


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


@pytest.mark.parametrize("stored", [False, True])
def test_examples_that_were_encoded_as_batches_are_refused(stored: bool) -> None:
    processor = processor_of()
    rows: Any = [processor(en="A", de="Ein", text_target="x", return_tensors="pt") for _ in range(2)]
    if stored:
        rows = [{key: value.tolist() for key, value in row.items()} for row in rows]
    with pytest.raises(ValueError, match=r"input_ids of example 0 is a batch, .* without return_tensors"):
        DataCollatorForMultiSource(processor)(rows)
    rows = [{**processor(en="A", de="Ein"), "labels": row["labels"]} for row in rows]
    with pytest.raises(ValueError, match="labels of example 0 is a batch"):
        DataCollatorForMultiSource(processor)(rows)


def test_one_example_instead_of_a_list_is_refused() -> None:
    one: Any = EXAMPLES[0]
    with pytest.raises(ValueError, match=r"examples must be a list of encoded examples; got one dict: .* \[example\]"):
        DataCollatorForMultiSource(processor_of())(one)


def test_labels_are_in_all_examples_or_in_none() -> None:
    unlabeled = {key: value for key, value in EXAMPLES[1].items() if key != "labels"}
    with pytest.raises(ValueError, match=r"^example 1 of the batch has no labels, others have"):
        DataCollatorForMultiSource(processor_of())([EXAMPLES[0], unlabeled])
    assert "labels" not in DataCollatorForMultiSource(processor_of())([unlabeled])


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
    unlabeled = [{key: value for key, value in row.items() if key != "labels"} for row in EXAMPLES]
    assert "decoder_input_ids" not in DataCollatorForMultiSource(processor_of(), model=model)(unlabeled)


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


# Sources of other kinds than text.


def mixed_examples(processor: MultiSourceProcessor) -> list[dict[str, Any]]:
    return [dict(processor(**row, text_target="A")) for row in mixed_rows()]


def equal(one: dict[str, Any], other: Any) -> bool:
    """Whether two batches have the same keys in the same order, values and dtypes."""
    return list(one) == list(other) and all(
        torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one
    )


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3], [0], [1, 3], [2], [3]])
def test_a_mixed_batch_is_what_the_processor_gives_for_it(chosen: list[int]) -> None:
    processor = mixed_processor()
    rows = [{**mixed_rows()[i], "text_target": "A"} for i in chosen]
    batch = DataCollatorForMultiSource(processor)([dict(processor(**row)) for row in rows])
    columns: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0]}
    assert equal(batch, processor(**columns, return_tensors="pt"))


def test_every_source_has_its_keys_whatever_a_batch_lacks() -> None:
    processor = mixed_processor()
    collate = DataCollatorForMultiSource(processor)
    examples = mixed_examples(processor)
    keys = [*processor.model_input_names, "labels"]
    for chosen in (examples, examples[3:], examples[1:2], examples[2:3]):
        assert list(collate(chosen)) == keys
    lacking = collate(examples[3:])
    assert {key: tuple(tensor.shape) for key, tensor in lacking.items() if key != "labels"} == {
        **{"input_ids": (1, 1), "attention_mask": (1, 1)},
        **{"image_pixel_values": (1, 0), "image_attention_mask": (1, 0)},
        **{"speech_input_values": (1, 0), "speech_attention_mask": (1, 0)},
        **{"regions_input_features": (1, 1, SIZE), "regions_attention_mask": (1, 1)},
    }
    assert {str(tensor.dtype) for tensor in lacking.values()} == {"torch.int64", "torch.float32"}


def test_rows_may_be_lists_tensors_or_columns_of_a_dataset() -> None:
    processor = mixed_processor()
    collate = DataCollatorForMultiSource(processor)
    examples = mixed_examples(processor)
    expected = collate(examples)
    plain = [{key: None if value is None else np.asarray(value).tolist() for key, value in x.items()} for x in examples]
    tensors = [{key: None if value is None else torch.as_tensor(value) for key, value in x.items()} for x in examples]
    assert equal(collate(plain), expected) and equal(collate(tensors), expected)
    dataset = Dataset.from_list(plain)
    assert equal(collate([dataset[i] for i in range(4)]), expected)
    formatted = Dataset.from_list(plain).with_format("numpy")
    assert equal(collate([formatted[i] for i in range(3)]), collate(examples[:3]))


def test_a_mask_left_out_is_one_of_ones_for_every_kind() -> None:
    processor = mixed_processor()
    examples = mixed_examples(processor)
    bare = [{key: value for key, value in x.items() if not key.endswith("mask")} for x in examples]
    assert equal(DataCollatorForMultiSource(processor)(bare), DataCollatorForMultiSource(processor)(examples))


def test_a_picture_behind_a_zero_is_absent() -> None:
    processor = mixed_processor("image", "en")
    example = {**processor(image=picture(0), en="A"), "attention_mask": [0]}
    batch = DataCollatorForMultiSource(processor)([example])
    assert batch["attention_mask"].tolist() == [[0]] and batch["pixel_values"].shape == (1, 3, 4, 4)
    with pytest.raises(ValueError, match=r"^example 0 of the batch has no source at all"):
        DataCollatorForMultiSource(processor)([{**example, "en_attention_mask": [0] * len(example["en_input_ids"])}])


def test_an_example_without_any_source_of_any_kind_is_named() -> None:
    processor = mixed_processor()
    examples = [*mixed_examples(processor)[:2], dict.fromkeys(processor.model_input_names)]
    with pytest.raises(ValueError, match=r"^example 2 of the batch has no source at all"):
        DataCollatorForMultiSource(processor)(examples)


def test_columns_that_are_missing_are_named_with_both_causes() -> None:
    processor = mixed_processor()
    examples = [{key: value for key, value in x.items() if "pixel" not in key} for x in mixed_examples(processor)]
    advice = r"^no example has 'image_pixel_values'.*: encode .* processor.*; .* remove_unused_columns=False"
    with pytest.raises(ValueError, match=advice):
        DataCollatorForMultiSource(processor)(examples)
    with pytest.raises(ValueError, match=r"^no example has 'input_ids'.*: encode the rows with the processor"):
        DataCollatorForMultiSource(processor)([{"en": "A dog.", "text_target": "Pes."}])


def test_only_texts_and_features_are_made_multiples() -> None:
    processor = mixed_processor()
    batch = DataCollatorForMultiSource(processor, pad_to_multiple_of=8)(mixed_examples(processor))
    assert batch["input_ids"].shape[1] % 8 == 0 == batch["labels"].shape[1] % 8
    assert batch["regions_input_features"].shape == (4, 8, SIZE) and batch["regions_attention_mask"].shape == (4, 8)
    assert batch["regions_attention_mask"].sum(dim=1).tolist() == [2, 5, 0, 1]
    assert batch["image_pixel_values"].shape == (4, 3, 4, 4) and batch["image_attention_mask"].shape == (4, 1)
    assert batch["speech_input_values"].shape == (4, 9) == batch["speech_attention_mask"].shape


def test_arrays_that_do_not_fit_together_are_named_with_their_shapes() -> None:
    processor = mixed_processor()
    collate = DataCollatorForMultiSource(processor)

    def examples(name: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(processor(**{"en": "A", name: value})) for value in values]

    with pytest.raises(
        ValueError, match=r"'regions' has shape \(2, 3\) in example 1 .* \(2, 5\) in example 2: only the f"
    ):
        collate(examples("regions", None, regions(0, 2), regions(1, 2, size=5)))
    with pytest.raises(
        ValueError, match=r"'image' has shape \(3, 4, 4\) in example 0 .* \(3, 6, 6\) in example 1: all mu"
    ):
        collate(examples("image", picture(0), picture(1, 6)))
    sounds = {"array": recording(0, 3), "sampling_rate": RATE}
    assert collate(examples("speech", sounds, recording(1, 5)))["speech_attention_mask"].sum(dim=1).tolist() == [3, 5]


@given(
    lengths=st.lists(st.none() | st.integers(1, 5), min_size=1, max_size=4),
    tail=st.lists(st.integers(1, 3), max_size=2),
    multiple_of=st.integers(1, 4),
    value=st.sampled_from([0.0, -1.5]),
)
def test_arrays_are_padded_to_the_least_length_that_fits(
    lengths: list[int | None], tail: list[int], multiple_of: int, value: float
) -> None:
    rows = [
        None if length is None else np.random.default_rng(i).normal(size=(length, *tail)).astype(np.float16)
        for i, length in enumerate(lengths)
    ]
    batch = pad_arrays("x", rows, value=value, multiple_of=multiple_of)
    assert batch.dtype == np.float32
    known = [length for length in lengths if length is not None]
    if not known:
        assert batch.shape == (len(rows), 0)
        return
    assert batch.shape == (len(rows), -(-max(known) // multiple_of) * multiple_of, *tail)
    for row, full in zip(rows, batch, strict=True):
        length = 0 if row is None else len(row)
        assert (full[length:] == value).all()
        assert row is None or np.array_equal(full[:length], row)
