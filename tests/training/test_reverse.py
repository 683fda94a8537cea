"""Reverse runs: every row becomes one row for each source that is present, from the target's text to the source's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.cli.card import main as card_main
from hf_multisource.cli.score import main as score_main
from hf_multisource.cli.tokenizer import main as tokenizer_main
from hf_multisource.data.files import read_lines
from hf_multisource.recipes.recipe import DataRecipe
from hf_multisource.recipes.tokenization import KINDS
from hf_multisource.recipes.training import train
from runs import make_folder, read_json, recipe_of, train_at
from scored import OPTIONS

SYMBOLS = ("--sources", "en", "de", "--target", "cs", "--kind", "symbols")
# Tokenizers of each kind, one for all languages or one for each; the default run has some of these cases.
each_tokenizer = pytest.mark.parametrize(
    ("kind", "separate"),
    [
        pytest.param(kind, separate, marks=[] if (kind == "symbols") == separate else pytest.mark.slow)
        for kind in KINDS
        for separate in (False, True)
    ],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = make_folder(tmp_path)
    for name in ("en", "de", "cs"):
        (folder / "text" / f"test.{name}").write_bytes((folder / "text" / f"dev.{name}").read_bytes())
    return folder


def test_a_row_becomes_one_row_for_each_source_that_is_present() -> None:
    data = DataRecipe("text", ["en", "de"], "cs", reverse=True)
    rows: list[dict[str, Any]] = [
        {"en": "a dog", "de": "ein Hund", "cs": "pes"},
        {"en": None, "de": "zwei", "cs": "dva"},
        {"en": "x", "de": None, "cs": None},
        {"en": None, "de": None, "cs": "nic"},
    ]
    before = [dict(row) for row in rows]
    assert data.model_rows(rows) == [
        {"target": "<2en> pes", "source": "a dog"},
        {"target": "<2de> pes", "source": "ein Hund"},
        {"target": "<2de> dva", "source": "zwei"},
    ]
    assert rows == before
    assert (data.model_sources, data.model_target) == (["target"], "source")


def test_joined_texts_begin_with_tokens_of_their_sources() -> None:
    data = DataRecipe("text", ["en", "de"], "cs", concatenate=True, mark_sources=True)
    rows: list[dict[str, Any]] = [
        {"en": "a dog", "de": "ein Hund", "cs": "pes"},
        {"en": None, "de": "zwei", "cs": "dva"},
        {"en": None, "de": None, "cs": "nic"},
    ]
    assert [row["all"] for row in data.model_rows(rows)] == ["<en> a dog <de> ein Hund", "<de> zwei", None]
    with pytest.raises(ValueError, match=r"data.mark_sources is true, but .* set data.concatenate to true"):
        DataRecipe("text", ["en", "de"], "cs", mark_sources=True)
    with pytest.raises(ValueError, match="would mark source 's' by <s>, a special token of tokenizers; rename"):
        DataRecipe("text", ["en", "s"], "cs", concatenate=True, mark_sources=True)


@each_tokenizer
def test_markers_of_joined_texts_are_tokens(kind: str, separate: bool, folder: Path) -> None:
    run = train_at(folder, concatenate=True, mark_sources=True, kind=kind, separate=separate, max_steps=1)
    processor = MultiSourceProcessor.from_pretrained(run)
    tokenizer = processor.get_tokenizer("all")
    ids: Any = processor(all="<en> a dog <de> ein Hund")["input_ids"]
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens[0] == "<en>" and tokens.count("<de>") == 1
    assert tokens.index("<de>") == 1 + len(tokenizer("a dog", add_special_tokens=False)["input_ids"])
    markers: Any = tokenizer.convert_tokens_to_ids(["<en>", "<de>"])
    assert sorted(markers) == [len(tokenizer) - 2, len(tokenizer) - 1]


def test_other_runs_keep_their_target() -> None:
    assert DataRecipe("text", ["en"], "cs").model_target == "cs"


@each_tokenizer
def test_the_marker_is_one_known_token_in_every_kind_of_tokenizer(kind: str, separate: bool, folder: Path) -> None:
    run = train_at(folder, reverse=True, kind=kind, separate=separate, max_steps=1)
    processor = MultiSourceProcessor.from_pretrained(run)
    tokenizer = processor.get_tokenizer("target")
    ids: Any = processor(target="<2de> pes hraje")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[0] == "<2de>"
    assert ids[1:] == tokenizer("pes hraje")["input_ids"]
    markers: Any = tokenizer.convert_tokens_to_ids(["<2en>", "<2de>"])
    assert len({*markers, tokenizer.unk_token_id}) == 3
    assert sorted(markers) == [len(tokenizer) - 2, len(tokenizer) - 1]  # not learned from the text as well
    config = MultiSourceForConditionalGeneration.from_pretrained(run).config
    assert config.source_names == ["target"]
    assert (config.sources[0].vocab_size or config.vocab_size) == len(tokenizer)


def test_the_tokenizer_of_the_forward_run_gets_the_markers(folder: Path) -> None:
    data, made = str(folder / "text"), folder / "made"
    tokenizer_main([data, *SYMBOLS, "--out", str(made)])
    before = AutoTokenizer.from_pretrained(made)
    run = train_at(folder, reverse=True, load=str(made), max_steps=1)
    after = MultiSourceProcessor.from_pretrained(run).tokenizer
    text = "pes Hund dog"
    assert after(text)["input_ids"] == before(text)["input_ids"]
    assert len(after) == len(before) + 2
    assert len(AutoTokenizer.from_pretrained(made)) == len(before)  # the folder itself is as it was
    again = train_at(folder, run="again", reverse=True, load=str(run), max_steps=1)
    assert len(MultiSourceProcessor.from_pretrained(again).tokenizer) == len(after)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concatenate": True}, "data.reverse and data.concatenate are both true; set one of them to false"),
        (
            {"model.sources": [{"name": "target", "kind": "features", "feature_size": 3}]},
            "data.reverse turns texts round; the sources must all be texts",
        ),
        (
            {"model.sources": [{"name": "de", "kind": "features", "feature_size": 3}]},
            "data.reverse turns texts round, but source 'de' is of kind features",
        ),
        ({"model.sources": [{"name": "fr", "layers": 1}]}, "unknown source 'fr'; allowed are target"),
    ],
)
def test_what_cannot_be_turned_round_is_refused_by_name(changes: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(recipe_of(folder, reverse=True, **changes))
    assert not (folder / "run").exists()


def test_settings_of_the_sources_of_the_forward_run_do_not_count(folder: Path) -> None:
    entries = [{"name": "target", "layers": 2}, {"name": "de", "share_encoder_with": "en"}]
    changes: dict[str, Any] = {"model.sources": entries}
    recipe = recipe_of(folder, reverse=True, **changes)
    assert recipe.source_entries() == {"target": entries[0]}
    assert [source.layers for source in recipe.draft_config().sources] == [2]


def test_separate_tokenizers_of_a_forward_run_are_refused(folder: Path) -> None:
    data, made = str(folder / "text"), folder / "made"
    tokenizer_main([data, *SYMBOLS, "--separate", "--out", str(made)])
    with pytest.raises(ValueError, match=r"tokenizer\.load: .*made holds separate tokenizers; with data\.reverse"):
        train(recipe_of(folder, reverse=True, load=str(made)))


def test_a_reverse_run_is_evaluated_scored_and_described(folder: Path) -> None:
    run = train_at(folder, reverse=True, metrics=["exact_match"], eval_strategy="steps", eval_steps=4)
    history = read_json(run / "trainer_state.json")["log_history"]
    assert sum("eval_exact_match" in entry for entry in history) == 2
    words = {name: read_lines(folder / "text" / f"test.{name}") for name in ("en", "de")}
    score_main([str(run), *OPTIONS])
    report = read_json(run / "scores" / "test.json")
    hypotheses, references = (read_lines(run / "scores" / f"test.{name}.txt") for name in ("all", "reference"))
    assert references == [word for pair in zip(words["en"], words["de"], strict=True) for word in pair if word]
    assert len(hypotheses) == len(references) == report["data"]["rows"] < 2 * len(words["en"])
    assert (report["sources"], report["target"]) == (["target"], "source")
    assert report["conditions"]["all"]["draws"][0]["perplexity"]["tokens"] > len(references)
    card_main([str(run), "--out", str(folder / "card.md")])
    assert "This reverse model writes en or de from cs." in (folder / "card.md").read_text("utf-8")
