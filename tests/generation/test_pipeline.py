"""The pipeline: examples by source name in, texts out, as users of Transformers' pipelines expect."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import GenerationConfig, pipeline
from transformers.pipelines.pt_utils import KeyDataset

from builders import LSTM, NAMES, TEXTS, one_by_default, three_source_model, three_source_processor
from hf_multisource import COMBINERS, DataCollatorForMultiSource, MultiSourcePipeline, MultiSourceProcessor
from hf_multisource.data.masking import remember_syntax
from kinds import mixed_processor, mixed_rows, picture

pytestmark = pytest.mark.pairs

TASK: Any = "multisource-to-text"  # Any, since Transformers' types know no tasks but its own


@pytest.fixture(scope="module")
def pipes() -> dict[str, Any]:
    """One pipeline for each combiner."""
    processor = three_source_processor()
    return {
        name: pipeline(
            TASK,
            model=three_source_model(name, vocab_size=len(processor.tokenizer)),
            processor=processor,
            device="cpu",
        )
        for name in (*COMBINERS, LSTM)
    }


@pytest.fixture(params=[*one_by_default("hierarchical"), LSTM])
def combiner(request: pytest.FixtureRequest) -> Any:
    """The name of one combiner after the other."""
    return request.param


@pytest.fixture
def pipe(combiner: str, pipes: dict[str, Any]) -> Any:
    """The pipeline of that combiner."""
    return pipes[combiner]


def generated(pipe: Any, example: dict[str, str | None], **search: Any) -> list[str]:
    """The texts that the model gives for one example without the pipeline."""
    given: dict[str, Any] = {name: [text] for name, text in example.items()}
    ids = pipe.model.generate(**pipe.processor(**given, return_tensors="pt"), **search)
    texts: list[str] = pipe.processor.batch_decode(ids, skip_special_tokens=True)
    return texts


@pytest.mark.feature("Pipeline", "One example, any of its sources absent")
@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_example_gives_what_generate_gives(combiner: str, num_beams: int, pipes: dict[str, Any]) -> None:
    search = {"num_beams": num_beams, "max_new_tokens": 8}
    results = [pipes[combiner](example, **search) for example in TEXTS]
    expected = [[{"generated_text": text} for text in generated(pipes[combiner], x, **search)] for x in TEXTS]
    assert results == expected
    assert len({str(result) for result in results}) > 1


@pytest.mark.feature("Pipeline", "Lists of examples, in batches")
@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_list_gives_what_its_examples_give(
    combiner: str, num_beams: int, batch_size: int, pipes: dict[str, Any]
) -> None:
    search = {"num_beams": num_beams, "max_new_tokens": 8}
    together = pipes[combiner](TEXTS, batch_size=batch_size, **search)
    assert together == [pipes[combiner](example, **search) for example in TEXTS]


MIXED_UP: list[dict[str, str | None]] = [
    {"en": " ".join(["a dog runs", "a dog"][i % 2] for _ in range(i * 5 % 8 + 1)), "de": "ein Hund" if i % 3 else None}
    for i in range(8)
]
"""Examples of lengths 1 to 8, in no order."""


@pytest.mark.parametrize("how", ["for one call", "for all calls"])
def test_a_list_is_batched_by_length_and_comes_back_in_its_order(how: str, pipes: dict[str, Any]) -> None:
    search: dict[str, Any] = {"num_beams": 2, "return_scores": True, "max_new_tokens": 6}
    one = pipes["parallel"]
    pipe = pipeline(TASK, model=one.model, processor=one.processor, device="cpu", batch_size=2)
    call: dict[str, Any] = {**search, "batch_size": 3} if how == "for one call" else search
    padding: list[int] = []

    def count(_: Any, args: Any, given: dict[str, Any]) -> None:
        padding.append(sum(int((mask == 0).sum()) for key, mask in given.items() if key.endswith("attention_mask")))

    with pipe.model.get_encoder().register_forward_pre_hook(count, with_kwargs=True):
        results = pipe(MIXED_UP, **call)
        by_length, padding = padding, []
        streamed = list(pipe((example for example in MIXED_UP), **call))
    expected = [one(example, **search)[0] for example in MIXED_UP]
    for found in (results, streamed):
        assert [item["generated_text"] for [item] in found] == [item["generated_text"] for item in expected]
        assert [item["score"] for [item] in found] == pytest.approx([item["score"] for item in expected], abs=1e-5)
    assert len({round(item["score"], 3) for item in expected}) == len(MIXED_UP), "scores tell the examples apart"
    assert len(by_length) == len(padding) == (3 if how == "for one call" else 4)
    assert 4 * sum(by_length) < 3 * sum(padding)


def test_the_longest_examples_of_a_list_come_first(mixed_pipe: Any, batches: list[dict[str, Any]]) -> None:
    rows: list[dict[str, Any]] = [{"en": "A"}, {"en": "A dog runs."}, {"image": picture(0)}, {"en": "A dog."}]
    mixed_pipe(rows, batch_size=1)
    one_by_one = [int(batch["attention_mask"].sum()) for batch in batches]
    batches.clear()
    mixed_pipe(rows, batch_size=2)
    taken = [int(number) for batch in batches for number in batch["attention_mask"].sum(1)]
    assert taken == sorted(one_by_one, reverse=True) and one_by_one != taken


def test_an_empty_list_gives_an_empty_list(pipe: Any) -> None:
    assert pipe([]) == []


@pytest.mark.feature("Pipeline", "Generators, streamed in batches")
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_generator_is_read_as_its_results_are_taken(num_beams: int, pipe: Any) -> None:
    taken = []

    def examples() -> Iterator[dict[str, str | None]]:
        for i, example in enumerate(TEXTS):
            taken.append(i)
            yield example

    results = pipe(examples(), batch_size=2, num_beams=num_beams, max_new_tokens=8)
    first = next(iter(results))
    assert len(taken) < len(TEXTS)
    assert [first, *results] == pipe(TEXTS, num_beams=num_beams, max_new_tokens=8)


class Examples(Dataset[Any]):
    """The examples as a dataset."""

    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, index: int) -> dict[str, str | None]:
        return TEXTS[index]


@pytest.mark.feature("Pipeline", "Torch datasets")
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_dataset_gives_what_its_list_gives(num_beams: int, pipe: Any) -> None:
    search = {"num_beams": num_beams, "max_new_tokens": 8}
    assert list(pipe(Examples(), batch_size=2, **search)) == pipe(TEXTS, **search)


@pytest.mark.feature("Pipeline", "n-best lists with scores")
@pytest.mark.parametrize("num_beams", [4])
def test_the_n_best_come_with_their_scores(combiner: str, num_beams: int, pipes: dict[str, Any]) -> None:
    search = {"num_beams": num_beams, "num_return_sequences": 3, "max_new_tokens": 8}
    results = pipes[combiner](TEXTS, batch_size=3, return_scores=True, **search)
    for example, items in zip(TEXTS, results, strict=True):
        given: Any = {name: [text] for name, text in example.items()}
        batch = pipes[combiner].processor(**given, return_tensors="pt")
        output = pipes[combiner].model.generate(**batch, **search, return_dict_in_generate=True, output_scores=True)
        assert [item["generated_text"] for item in items] == generated(pipes[combiner], example, **search)
        assert [item["score"] for item in items] == pytest.approx(output.sequences_scores.tolist(), abs=1e-5)
        assert len(items) == 3


@pytest.mark.parametrize("fold_beams", [True, False])
def test_settings_may_be_given_as_a_configuration(fold_beams: bool, pipe: Any) -> None:
    search: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 4, "fold_beams": fold_beams}
    found = pipe(TEXTS[0], generation_config=GenerationConfig(**search), return_scores=True)
    assert found == pipe(TEXTS[0], **search, return_scores=True)


def test_scores_without_a_beam_are_refused(pipe: Any) -> None:
    with pytest.raises(ValueError, match="num_beams must be at least 2"):
        pipe(TEXTS[0], return_scores=True, max_new_tokens=2)


@pytest.mark.feature("Pipeline", "Generation settings, for one call or for all")
@pytest.mark.parametrize("num_beams", [1, 4])
def test_settings_may_be_given_for_all_calls(num_beams: int, pipe: Any) -> None:
    search: dict[str, Any] = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_new_tokens": 5}
    set_up = pipeline(TASK, model=pipe.model, processor=pipe.processor, device="cpu", batch_size=2, **search)
    assert set_up(TEXTS) == pipe(TEXTS, **search)
    assert set_up(TEXTS, num_return_sequences=1) == pipe(TEXTS, **{**search, "num_return_sequences": 1})


def test_long_sources_are_cut_if_that_is_asked_for(pipe: Any) -> None:
    long, short = {"en": "a dog runs a dog runs"}, {"en": "a dog"}
    length = len(pipe.processor(**short)["input_ids"])
    assert length < len(pipe.processor(**long)["input_ids"])
    cut = pipe.preprocess(long, max_source_length=length)["example"]
    assert len(cut["input_ids"]) == length
    ids = pipe.processor(**long, truncation=True, max_length=length)["input_ids"]
    assert cut["input_ids"] == ids
    assert pipe.preprocess(long)["example"] == dict(pipe.processor(**long))


@pytest.mark.parametrize(
    ("settings", "longest"),
    [({}, 256), ({"max_length": 30}, 29), ({"max_new_tokens": 40}, 40)],
    ids=["nothing said", "max_length", "max_new_tokens"],
)
def test_texts_are_as_long_as_the_settings_allow(pipe: Any, settings: dict[str, int], longest: int) -> None:
    endless = copy.deepcopy(pipe.model)
    endless.final_logits_bias[:, endless.config.eos_token_id] = -1e9
    without_end = pipeline(TASK, model=endless, processor=pipe.processor, device="cpu")
    assert without_end.model.generate(**pipe.processor(en=["a"], return_tensors="pt"), max_new_tokens=3).shape == (1, 4)
    output = without_end.forward(without_end.preprocess({"en": "a"}), **settings)
    assert output["sequences"].shape == (1, 1, 1 + longest)  # the first is the start token
    given = GenerationConfig(num_beams=1, **settings)
    output = without_end.forward(without_end.preprocess({"en": "a"}), generation_config=given)
    assert output["sequences"].shape == (1, 1, 1 + longest)
    assert given == GenerationConfig(num_beams=1, **settings), "it is not changed"
    endless.generation_config.max_new_tokens = 7
    kept = without_end.forward(without_end.preprocess({"en": "a"}))
    assert kept["sequences"].shape == (1, 1, 8)


@pytest.mark.feature("Pipeline", "Errors that name the bad source")
@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"en": "a", "es": "un"}, "unknown source 'es'; the sources are en, de, fr"),
        ({"en": "a", "text_target": "b"}, "unknown source 'text_target'"),
        ({"en": "a", "padding": "longest"}, "unknown source 'padding'"),
        ({"en": "a", "de": 3}, "source 'de' of example 0 must be a text, or None; got 3"),
        ({"en": ["a", "b"]}, "source 'en' of an example must be a text or None"),
        ({"en": None, "de": " "}, "no source at all; give it at least one of en, de, fr"),
        ("a dog", r"must be a dict from source names \(en, de, fr\) to texts; got 'a dog'"),
        (("a", "b"), "must be a dict from source names"),
    ],
)
def test_a_bad_example_is_named(pipe: Any, example: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipe(example)


def test_a_bad_example_in_a_list_is_named(pipe: Any) -> None:
    with pytest.raises(ValueError, match=r"^example 1: unknown source 'es'"):
        pipe([TEXTS[0], {"es": "un"}], batch_size=2)
    with pytest.raises(ValueError, match=r"^source 'de' of example 1 must be a text, or None; got 3"):
        pipe([{"en": "a"}, {"en": "a dog", "de": 3}, TEXTS[0]], batch_size=2)
    with pytest.raises(
        ValueError, match=r"^example 1 must be a dict from source names \(en, de, fr\) to texts; got 'a"
    ):
        pipe([TEXTS[1], "a dog", TEXTS[0]], batch_size=2)
    with pytest.raises(ValueError, match=r"^source 'en' of example 2 must be a text or None"):
        pipe([*TEXTS[:2], {"en": ["a"]}])


class Streamed(IterableDataset[Any]):
    """Rows as an iterable dataset of torch."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


STREAMS: dict[str, Callable[[list[Any]], Any]] = {
    "a list": list,
    "a tuple": tuple,
    "an iterator": iter,
    "a generator": lambda rows: (row for row in rows),
    "an IterableDataset of torch": Streamed,
    "datasets.Dataset": datasets.Dataset.from_list,
    "datasets.IterableDataset": lambda rows: datasets.Dataset.from_list(rows).to_iterable_dataset(),
    "an IterableDataset of unknown columns": lambda rows: datasets.IterableDataset.from_generator(lambda: iter(rows)),
}


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("stream", STREAMS)
def test_errors_name_the_number_of_the_example_in_what_was_given(
    stream: str, batch_size: int, pipes: dict[str, Any]
) -> None:
    rows = [{"en": "a dog runs"}, {"en": "a"}, {"en": " "}, {"en": "a dog"}]
    with pytest.raises(ValueError, match=r"^example 2 has no source at all"):
        list(pipes["serial"](STREAMS[stream](rows), batch_size=batch_size, max_new_tokens=2))


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("stream", STREAMS)
def test_warnings_name_the_number_of_the_example_in_what_was_given(
    stream: str, batch_size: int, mixed_pipe: Any, caplog: pytest.LogCaptureFixture
) -> None:
    last: dict[str, Any] = {"en": "A dog runs.", "image": "missing.png"}
    rows = [{"en": "A", "image": None}, {"en": "A", "image": None}, last]
    options: dict[str, Any] = {"batch_size": batch_size, "unreadable": "absent"}
    assert len(list(mixed_pipe(STREAMS[stream](rows), **options))) == 3
    assert "source 'image' of example 2: missing.png" in caplog.text
    caplog.clear()
    mixed_pipe.processor(**last, unreadable="absent")
    assert "source 'image' of example 0: missing.png" in caplog.text


def test_numbers_of_rows_are_told_from_workers_too(pipes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="example 3 has no source at all"):
        list(pipes["serial"](datasets.Dataset.from_list([*TEXTS[:3], {"en": " "}]), num_workers=2, max_new_tokens=2))


@pytest.mark.feature("Pipeline", "save_pretrained, and loading from a folder")
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_saved_pipeline_is_loaded_with_its_processor(num_beams: int, pipe: Any, tmp_path: Path) -> None:
    pipe.save_pretrained(tmp_path)
    loaded = pipeline(TASK, model=str(tmp_path), device="cpu")
    assert type(loaded) is MultiSourcePipeline
    search = {"num_beams": num_beams, "max_new_tokens": 8}
    assert loaded(TEXTS, **search) == pipe(TEXTS, **search)
    trusted = pipeline(TASK, model=str(tmp_path), device="cpu", trust_remote_code=True)
    assert type(trusted) is MultiSourcePipeline
    trusted.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again/config.json").read_text() == (tmp_path / "config.json").read_text()


def test_model_and_processor_saved_one_by_one_make_a_pipeline(pipe: Any, tmp_path: Path) -> None:
    pipe.model.save_pretrained(tmp_path)
    pipe.processor.save_pretrained(tmp_path)
    loaded = pipeline(TASK, model=str(tmp_path), device="cpu")
    assert loaded(TEXTS[1], max_new_tokens=8) == pipe(TEXTS[1], max_new_tokens=8)


# Sources of other kinds than text: what the model is given.


@pytest.fixture
def batches() -> list[dict[str, Any]]:
    """What the model of `mixed_pipe` was called with."""
    return []


@pytest.fixture
def mixed_pipe(batches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pipeline with a source of every kind whose model notes what it is given and answers with one token each."""
    processor = mixed_processor()
    model = three_source_model(vocab_size=len(processor.tokenizer))

    def generate(**inputs: Any) -> Any:
        tensors = {key: value for key, value in inputs.items() if isinstance(value, torch.Tensor)}
        batches.append(tensors)
        return SimpleNamespace(sequences=torch.full((len(tensors["input_ids"]), 1), 5))

    monkeypatch.setattr(model, "generate", generate)
    return pipeline(TASK, model=model, processor=processor, device="cpu")


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_sources_of_every_kind_reach_the_model_as_the_collator_batches_them(
    batch_size: int, mixed_pipe: Any, batches: list[dict[str, Any]]
) -> None:
    rows = sorted(mixed_rows(), key=lambda row: -len(row.get("en") or ""))
    assert len(mixed_pipe(rows, batch_size=batch_size)) == 4
    collate = DataCollatorForMultiSource(mixed_pipe.processor)
    encoded = [dict(mixed_pipe.processor(**row)) for row in rows]
    expected = [collate(encoded[i : i + batch_size]) for i in range(0, 4, batch_size)]
    assert len(batches) == len(expected)
    for batch, wanted in zip(batches, expected, strict=True):
        assert batch.keys() == wanted.keys() and all(torch.equal(batch[key], wanted[key]) for key in batch)


def test_an_example_may_hold_the_path_of_a_picture(
    mixed_pipe: Any, batches: list[dict[str, Any]], tmp_path: Path
) -> None:
    picture(3).save(tmp_path / "a.png")
    mixed_pipe({"en": "A dog.", "image": tmp_path / "a.png"})
    mixed_pipe({"en": "A dog.", "image": picture(3)})
    assert torch.equal(batches[0]["image_pixel_values"], batches[1]["image_pixel_values"])


def test_a_picture_that_cannot_be_read_ends_the_pipeline_or_is_absent(
    mixed_pipe: Any, batches: list[dict[str, Any]]
) -> None:
    example = {"en": "A dog.", "image": "missing.png"}
    with pytest.raises(ValueError, match=r"source 'image' of example 0: missing\.png holds no readable picture"):
        mixed_pipe(example)
    mixed_pipe(example, unreadable="absent")
    assert batches[0]["image_attention_mask"].shape == (1, 0)


def test_a_list_of_pictures_is_no_example(mixed_pipe: Any) -> None:
    with pytest.raises(ValueError, match="source 'image' of an example must be one value, not a list, or None; got"):
        mixed_pipe({"image": [picture(0)]})


def test_pixels_and_features_have_the_precision_of_the_model(mixed_pipe: Any, batches: list[dict[str, Any]]) -> None:
    mixed_pipe.model.to(torch.bfloat16)
    mixed_pipe(mixed_rows()[0])
    dtypes = {key: tensor.dtype for key, tensor in batches[0].items()}
    assert {key for key, dtype in dtypes.items() if dtype == torch.bfloat16} == {
        *("image_pixel_values", "speech_input_values", "regions_input_features"),
    }
    assert dtypes["image_attention_mask"] == torch.int64


# Other ways to give examples: the answers are those of the plain call.


def as_keywords(pipe: Any, search: dict[str, Any]) -> Any:
    return [pipe(**example, **search) for example in TEXTS]


def as_columns(pipe: Any, search: dict[str, Any]) -> Any:
    columns: dict[str, Any] = {name: [example.get(name) for example in TEXTS] for name in NAMES}
    return pipe(**columns, **search)


def table() -> datasets.Dataset:
    rows = [{name: example.get(name) for name in NAMES} for example in TEXTS]
    return datasets.Dataset.from_list(rows)


FORMS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "keywords": as_keywords,
    "columns": as_columns,
    "datasets.Dataset": lambda pipe, search: list(pipe(table(), **search)),
    "datasets.IterableDataset": lambda pipe, search: list(pipe(table().to_iterable_dataset(), **search)),
    "an IterableDataset of unknown columns": lambda pipe, search: list(
        pipe(datasets.IterableDataset.from_generator(lambda: iter(table())), **search)
    ),
    "an iterator": lambda pipe, search: list(pipe(iter(TEXTS), **search)),
    "a map": lambda pipe, search: list(pipe(map(dict, TEXTS), **search)),
    "another column too": lambda pipe, search: list(pipe(table().add_column("cs", ["pes"] * len(TEXTS)), **search)),
    "missing cells": lambda pipe, search: pipe(
        [{name: float("nan") if text is None else text for name, text in example.items()} for example in TEXTS],
        **search,
    ),
}


@pytest.mark.feature("Pipeline", "Keywords, columns, `datasets.Dataset` and iterators of rows")
@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_examples_gives_the_same_answers(form: str, batch_size: int, pipe: Any) -> None:
    search = {"num_beams": 2, "max_new_tokens": 8}
    expected = pipe([dict(example) for example in TEXTS], **search)
    assert FORMS[form](pipe, {**search, "batch_size": batch_size}) == expected
    assert len({str(answer) for answer in expected}) > 1


def test_an_iterator_is_read_as_its_results_are_taken(pipe: Any) -> None:
    taken: list[int] = []

    def note(row: dict[str, Any]) -> dict[str, Any]:
        taken.append(1)
        return row

    rows = datasets.IterableDataset.from_generator(lambda: iter(TEXTS * 3)).map(note)
    first = next(iter(pipe(rows, batch_size=2, max_new_tokens=3)))
    assert first == pipe(TEXTS[0], max_new_tokens=3) and len(taken) < 3 * len(TEXTS)


def test_one_column_of_a_dataset_is_that_source_alone(pipe: Any) -> None:
    rows = datasets.Dataset.from_dict({"en": ["a dog", "a dog runs"], "de": ["ein Hund", "ein"], "cs": ["pes", "pes"]})
    alone = pipe([{"en": "a dog"}, {"en": "a dog runs"}], max_new_tokens=5)
    assert list(pipe(KeyDataset(rows, "en"), batch_size=2, max_new_tokens=5)) == alone
    with pytest.raises(ValueError, match=r"^example 0 must be a dict from source names"):
        list(pipe(KeyDataset(rows, "cs")))


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("Open %1$S", True),
        ("<b>dog</b>", True),
        ("{ $n } dogs", True),
        ("<open1>dog<close1> <ph1>", False),
        ("50 %", False),
    ],
)
def test_placeholders_that_are_not_masked_are_warned_of_once(
    text: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    processor: Any = three_source_processor()
    model = three_source_model("serial", vocab_size=len(processor.tokenizer))
    asked = [{"en": "dog"}, {"en": None, "de": text}, {"en": text}]
    pipeline(TASK, model=model, processor=processor, device="cpu")(asked, max_new_tokens=2)
    assert "masked" not in caplog.text
    tokenizer = copy.deepcopy(processor.tokenizer)
    remember_syntax(tokenizer, "any")
    masking = MultiSourceProcessor(tokenizer, processor.source_names)
    pipe = pipeline(TASK, model=model, processor=masking, device="cpu")
    pipe(asked, max_new_tokens=2)
    pipe(asked, max_new_tokens=2)
    assert caplog.text.count("placeholders and markup are masked (mask_syntax: any)") == warns


def test_columns_that_are_no_sources_are_named_and_not_read(pipe: Any, caplog: pytest.LogCaptureFixture) -> None:
    rows = datasets.Dataset.from_dict({"en": ["a dog"], "cs": ["pes"], "id": [7]})
    assert list(pipe(rows, max_new_tokens=3)) == [pipe({"en": "a dog"}, max_new_tokens=3)]
    assert "columns cs, id are no sources (en, de, fr) and are not read" in caplog.text
    with pytest.raises(ValueError, match=r"none of the columns \(cs, id\) is a source; the sources are en, de, fr"):
        pipe(rows.remove_columns("en"))


def test_a_dataset_of_pictures_is_decoded_as_it_is_read(mixed_pipe: Any, batches: list[dict[str, Any]]) -> None:
    rows: dict[str, Any] = {"en": ["A dog.", "A cat."], "image": [picture(0), None]}
    list(mixed_pipe(datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()), batch_size=2))
    mixed_pipe([{"en": "A dog.", "image": picture(0)}, {"en": "A cat."}], batch_size=2)
    assert batches[0].keys() == batches[1].keys()
    assert all(torch.equal(batches[0][key], batches[1][key]) for key in batches[0])


@pytest.mark.parametrize("batch_size", [1, 2])
def test_arrays_may_be_lists_of_numbers_as_rows_of_a_dataset_hold_them(
    batch_size: int, mixed_pipe: Any, batches: list[dict[str, Any]]
) -> None:
    rows = mixed_rows()
    given = [
        {
            "en": row["en"],
            **{name: None if row[name] is None else row[name].tolist() for name in ("speech", "regions")},
        }
        for row in rows
    ]
    plain = [{**row, "image": None} for row in rows]
    table = datasets.Dataset.from_list(given)
    forms = [table, table.to_iterable_dataset(), given, [table[i] for i in range(len(table))]]
    for form in forms:
        assert len(list(mixed_pipe(form, batch_size=batch_size))) == len(rows)
    list(mixed_pipe(iter(plain), batch_size=batch_size))
    calls = -(-len(rows) // batch_size)
    for i, batch in enumerate(batches[: 2 * calls]):
        assert all(torch.allclose(batches[-calls:][i % calls][key], batch[key], atol=1e-5) for key in batch)


def test_a_list_of_arrays_is_no_example(mixed_pipe: Any) -> None:
    row = mixed_rows()[0]
    with pytest.raises(ValueError, match="source 'regions' of an example must be one value, not a list, or None; got"):
        mixed_pipe({"regions": [row["regions"]]})


def test_keywords_may_be_of_every_kind(mixed_pipe: Any, batches: list[dict[str, Any]]) -> None:
    row = mixed_rows()[0]
    mixed_pipe(**row)
    mixed_pipe(row)
    mixed_pipe(**{name: [value] for name, value in row.items()})
    for batch in batches[1:]:
        assert all(torch.equal(batches[0][key], batch[key]) for key in batches[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"^give examples, or sources by name \(en, de, fr\)"),
        (
            {"inputs": {"en": "a"}, "de": "ein"},
            "^give examples, or sources by name, not both; got de beside the examples",
        ),
        (
            {"en": ["a", "b"], "de": ["ein"]},
            r"^sources and target must have equally many values; got {'en': 2, 'de': 1}",
        ),
        ({"en": ["a", "b"], "de": "ein"}, "^de is a single text, others are lists: give single texts or lists"),
        ({"en": None}, "no source at all"),
        ({"en": "a", "es": "un"}, "es"),
        ({"es": "un"}, "^unknown source 'es'; the sources are en, de, fr"),
        ({"es": "un", "num_beams": 2, "truncation": True, "batch_size": 2}, "^unknown source 'es'"),
        ({"num_beams": 2, "truncation": True, "batch_size": 2}, "^give examples, or sources by name"),
    ],
)
def test_keywords_that_do_not_fit_are_named(given: dict[str, Any], message: str, pipe: Any) -> None:
    with pytest.raises(ValueError, match=message):
        pipe(**given)


def test_a_table_of_pandas_is_no_list_of_examples(pipe: Any) -> None:
    with pytest.raises(
        ValueError, match=r'^a DataFrame is no list .*: table.to_dict\("records"\), or Dataset.from_pandas'
    ):
        pipe(table().to_pandas())
    assert pipe(table().to_pandas().to_dict("records"), max_new_tokens=3) == pipe(TEXTS, max_new_tokens=3)


def test_of_several_splits_one_must_be_given(pipe: Any) -> None:
    splits = datasets.DatasetDict(train=table(), test=table())
    with pytest.raises(ValueError, match=r"^a DatasetDict is no list of examples: give one split of train, test"):
        pipe(splits)


def test_columns_of_no_examples_give_no_answers(pipe: Any) -> None:
    assert pipe(en=[], de=[]) == [] == list(pipe(table().select([])))


# Options that Transformers' own text pipelines have.


def test_truncation_cuts_sources_to_what_their_tokenizer_says(pipe: Any) -> None:
    processor = copy.deepcopy(pipe.processor)
    processor.tokenizer.model_max_length = 4
    short = pipeline(TASK, model=pipe.model, processor=processor, device="cpu")
    long = {"en": "a dog runs a dog runs"}
    assert len(pipe.processor(**long)["input_ids"]) > 4
    cut = short.preprocess(long, truncation=True)["example"]
    assert cut["input_ids"] == processor(**long, truncation=True)["input_ids"] and len(cut["input_ids"]) == 4
    assert short.preprocess(long)["example"] == dict(pipe.processor(**long))
    assert short(long, truncation=True, max_new_tokens=6) == pipe(long, max_source_length=4, max_new_tokens=6)
    assert short(long, truncation=False, max_source_length=4, max_new_tokens=6) == pipe(long, max_new_tokens=6)
    for_all = pipeline(TASK, model=pipe.model, processor=processor, device="cpu", truncation=True)
    assert for_all(long, max_new_tokens=6) == short(long, truncation=True, max_new_tokens=6)
    with pytest.raises(ValueError, match=r"truncation must be one of .*; got 'all'"):
        pipe(long, truncation="all")


def test_each_source_may_be_cut_to_a_length_of_its_own(pipe: Any) -> None:
    long = {"en": "a dog runs a dog runs", "de": "ein Hund ein Hund"}
    lengths = {"en": 3, "de": 4}
    cut = pipe.preprocess(long, max_source_length=lengths)["example"]
    assert [len(cut[key]) for key in ("input_ids", "de_input_ids")] == [3, 4]


def test_ids_come_in_place_of_texts_if_they_are_asked_for(pipe: Any) -> None:
    search = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 8}
    [first, second] = pipe(TEXTS[0], return_tensors=True, **search)
    ids = pipe.model.generate(**pipe.processor(**TEXTS[0], return_tensors="pt"), **search)
    assert torch.equal(torch.stack([first["generated_token_ids"], second["generated_token_ids"]]), ids)
    assert first.keys() == {"generated_token_ids"}


def test_spaces_of_the_text_are_cleaned_up_if_that_is_asked_for(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    decode = pipe.processor.tokenizer.decode

    def note(*args: Any, **options: Any) -> Any:
        asked.append(options.get("clean_up_tokenization_spaces"))
        return decode(*args, **options)

    monkeypatch.setattr(pipe.processor.tokenizer, "decode", note)
    pipe(TEXTS[0], max_new_tokens=3, clean_up_tokenization_spaces=True)
    pipe(TEXTS[0], max_new_tokens=3)
    assert True in asked and asked[-1] is None


def test_a_keyword_that_nobody_knows_is_named(pipe: Any) -> None:
    with pytest.raises(ValueError, match="max_sourcelength"):
        pipe(TEXTS[0], max_sourcelength=3)
