"""Training rows whose target is the text of a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.data.rows import Row
from hf_multisource.recipes.schema import DataRecipe
from hf_multisource.recipes.written_sources import add_written_sources, plain_rows
from runs import make_folder, read_json, recipe_of, train_at

LANGUAGES = ["en", "de", "fr"]
ROWS: list[Row] = [
    {"en": "a", "de": "b", "fr": None, "cs": "x"},
    {"en": None, "de": "c", "fr": "", "cs": "y"},
    {"en": "d", "de": "e", "fr": "f", "cs": "z"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


def data_of(**settings: Any) -> DataRecipe:
    return DataRecipe("text", LANGUAGES, "cs", **{"write_sources": True, **settings})


def test_each_source_beside_another_becomes_a_target_and_is_then_absent() -> None:
    assert add_written_sources(ROWS, data_of()) == [
        *ROWS,
        {"en": None, "de": "b", "fr": None, "cs": "<en> a"},
        {"en": "a", "de": None, "fr": None, "cs": "<de> b"},
        {"en": None, "de": "e", "fr": "f", "cs": "<en> d"},
        {"en": "d", "de": None, "fr": "f", "cs": "<de> e"},
        {"en": "d", "de": "e", "fr": None, "cs": "<fr> f"},
    ]


@pytest.mark.parametrize("concatenate", [False, True])
def test_the_rows_that_were_there_are_found_again(concatenate: bool) -> None:
    data = data_of(concatenate=concatenate)
    rows = data.arrange_rows(add_written_sources(ROWS, data))
    assert len(rows) == 8
    assert plain_rows(rows, data) == data.arrange_rows(ROWS)
    assert plain_rows(rows, data_of(write_sources=False)) is rows


@pytest.mark.parametrize("settings", [{"kind": "symbols"}, {"separate": True}, {"concatenate": True}])
def test_a_run_trains_on_them_and_never_writes_their_tokens(settings: dict[str, Any], folder: Path) -> None:
    run = train_at(folder, write_sources=True, **settings)
    processor = MultiSourceProcessor.from_pretrained(run)
    model = MultiSourceForConditionalGeneration.from_pretrained(run)
    known = processor.tokenizer.get_vocab()
    sources = recipe_of(folder).data.sources
    markers = [known[f"<{name}>"] for name in sources]
    assert model.generation_config.suppress_tokens == markers
    assert processor.tokenizer("<de> Hund").input_ids[0] == known["<de>"]

    wish = torch.zeros(len(known))
    wish[markers] = 1000.0  # a model that wants to write nothing else
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + wish)
    texts: dict[str, Any] = {processor.source_names[0]: "a dog"}
    batch = processor(**texts, return_tensors="pt")
    for beams in (1, 3):
        hypothesis = model.generate(**batch, num_beams=beams, max_new_tokens=6)
        assert not set(hypothesis.flatten().tolist()) & set(markers)
    assert set(model.generate(**batch, max_new_tokens=6, suppress_tokens=None).flatten().tolist()) & set(markers)


def test_the_tokenizer_is_that_of_a_run_without_them_but_for_the_markers(folder: Path) -> None:
    plain = MultiSourceProcessor.from_pretrained(train_at(folder, "plain")).tokenizer
    written = MultiSourceProcessor.from_pretrained(train_at(folder, "written", write_sources=True)).tokenizer
    own, more = plain.get_vocab(), written.get_vocab()
    assert {token: more[token] for token in own} == own
    assert more.keys() - own.keys() == {f"<{name}>" for name in recipe_of(folder).data.sources}


def test_a_target_with_symbols_of_its_own_can_write_the_sources(folder: Path) -> None:
    run = train_at(folder, write_sources=True, kind="symbols", separate=True)
    tokenizer = MultiSourceProcessor.from_pretrained(run).tokenizer
    for name in ("en", "de", "cs"):
        lines = (folder / "text" / f"train.{name}").read_text(encoding="utf-8").splitlines()
        assert tokenizer.unk_token_id not in [
            token for line in lines for token in tokenizer(text_target=line).input_ids
        ]


def test_such_a_run_may_begin_a_training_of_the_target_alone(folder: Path) -> None:
    first = train_at(folder, "first", write_sources=True)
    second = train_at(folder, "second", init_from=str(first))
    assert read_json(second / "config.json")["vocab_size"] == read_json(first / "config.json")["vocab_size"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reverse": True}, "data.write_sources and data.reverse are both true; set one of them to false"),
        ({"placeholders": "html"}, "data.placeholders is html, but with data.write_sources texts are not masked"),
        ({"sources": ["en"]}, "data.write_sources needs two sources or more, .* got en"),
        ({"sources": ["en", "s"]}, "data.write_sources would mark source 's' by <s>, a special token"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataRecipe(**{"path": "text", "sources": LANGUAGES, "target": "cs", "write_sources": True, **settings})


def test_synthetic_text_is_no_target(folder: Path) -> None:
    corpora = [{"path": str(folder / "text"), "tag": "<BT>"}]
    with pytest.raises(ValueError, match=r"data.train\[0\].tag: with data.write_sources, synthetic text would become"):
        recipe_of(folder, train=corpora, write_sources=True)
