"""Mixtures of corpora as training data, tags of synthetic text, and rows that are dropped for their length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.rows import Row, read_split
from hf_multisource.publishing.card import render, subject_of_run
from hf_multisource.recipes.mixture import read_mixture, repeat_rows, tag_rows
from hf_multisource.recipes.processor import make_processor
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.run_folder import is_finished
from hf_multisource.recipes.schema import DataRecipe
from hf_multisource.recipes.tokenization import train_tokenizer
from hf_multisource.recipes.training import train
from kills import kill_at, killed
from runs import SAVED, files_of, make_folder, read_json, recipe_of, same, train_at, weights_of, write_lines

SCARCE = {
    "en": ["two dogs", "", "green water"],
    "de": ["zwei Hunde", "Wasser", ""],
    "cs": ["dva psi", "voda", "zelená voda"],
}
SYNTHETIC = {"de": ["Hund läuft", "Junge spielt", "Hund", "zwei"], "cs": ["pes běží", "chlapec hraje", "pes", "dva"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_folder(tmp_path)
    for name, columns in {"scarce": SCARCE, "synthetic": SYNTHETIC}.items():
        (tmp_path / name).mkdir()
        for column, lines in columns.items():
            write_lines(tmp_path / name / f"train.{column}", lines)
    return tmp_path


def corpora(folder: Path, **synthetic: Any) -> list[dict[str, Any]]:
    return [
        {"path": str(folder / "scarce"), "weight": 2},
        {"path": str(folder / "synthetic"), "weight": 0.5, "tag": {"de": "<BT>"}, **synthetic},
    ]


@given(st.integers(0, 9), st.floats(0, 4), st.text())
def test_rows_are_repeated_as_often_as_the_weight_says(count: int, weight: float, seed: str) -> None:
    rows = [{"x": i} for i in range(count)]
    repeated = repeat_rows(rows, weight, seed)
    assert len(repeated) == int(weight) * count + round((weight - int(weight)) * count)
    assert all(repeated.count(row) in (int(weight), int(weight) + 1) for row in rows)
    assert repeated == repeat_rows(rows, weight, seed)


def test_the_rows_drawn_depend_on_the_seed() -> None:
    rows = [{"x": i} for i in range(20)]
    assert len({tuple(row["x"] for row in repeat_rows(rows, 0.5, str(seed))) for seed in range(5)}) == 5


def test_a_tag_begins_the_texts_of_its_source_and_no_absent_one() -> None:
    rows: list[Row] = [{"en": "a", "de": "b", "cs": "c"}, {"en": "a", "de": None, "cs": "c"}]
    assert tag_rows(rows, {"de": "<BT>"}) == [
        {"en": "a", "de": "<BT> b", "cs": "c"},
        {"en": "a", "de": None, "cs": "c"},
    ]
    assert tag_rows(rows, {}) == rows


def test_corpora_may_lack_sources_and_are_joined_in_order(folder: Path) -> None:
    data = DataRecipe(str(folder / "text"), ["en", "de"], "cs", train=corpora(folder))
    split, reports = read_mixture(data, seed=1)
    scarce = read_split(str(folder / "scarce"), "train", ["en", "de"], "cs").rows
    assert split.rows[:6] == scarce * 2
    assert len(split.rows) == 8
    assert all(row["en"] is None and row["de"].startswith("<BT> ") for row in split.rows[6:])
    assert split.report == {"rows": 8, "absent.en": 4, "absent.de": 2, "absent.cs": 0}
    (_, synthetic) = reports.values()
    assert (synthetic["rows"], synthetic["weight"], synthetic["rows_per_epoch"], synthetic["absent.en"]) == (
        4,
        0.5,
        2,
        4,
    )


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_corpora_in_tables_may_lack_sources(form: str, folder: Path) -> None:
    (folder / "table").mkdir()
    lines = ["de,cs", "Hund,pes"] if form == "csv" else [json.dumps({"de": "Hund", "cs": "pes"})]
    write_lines(folder / "table" / f"train.{form}", lines)
    data = DataRecipe(str(folder / "text"), ["en", "de"], "cs", train=[{"path": str(folder / "table")}])
    assert read_mixture(data, 0)[0].rows == [{"en": None, "de": "Hund", "cs": "pes"}]


@pytest.mark.parametrize("separate", [False, True])
def test_a_mixture_is_trained_resumed_and_described(
    separate: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"train": corpora(folder), "separate": separate}
    run = train_at(folder, **changes)
    printed = capsys.readouterr().out
    assert f"train[1], {folder / 'synthetic'}:train: lines 4, rows 4" in printed
    assert "weight 0.5, rows_per_epoch 2" in printed
    assert "\ntrain: rows 8, absent.en 4, absent.de 2, absent.cs 0\n" in printed
    assert read_json(run / "fingerprint.json")["data"]["train"]["rows"] == 8
    processor = MultiSourceProcessor.from_pretrained(run)
    ids = processor(de="<BT> Hund")["de_input_ids"]
    tokenizer = processor.get_tokenizer("de")
    tag = tokenizer.convert_tokens_to_ids("<BT>")
    assert tag == len(tokenizer) - 1  # added, and not learned from the text as well
    assert ids.count(tag) == 1
    assert len(ids) == len(processor(de="Hund")["de_input_ids"]) + 1
    assert ("<BT>" in processor.get_tokenizer("en").get_vocab()) is not separate

    (folder / "synthetic").rename(folder / "moved")  # its content is what counts
    moved = [corpora(folder)[0], {**corpora(folder)[1], "path": str(folder / "moved")}]
    assert is_finished(run, recipe_of(folder, **{**changes, "train": moved}))
    train(recipe_of(folder, **{**changes, "train": moved}), resume=True)
    assert read_json(run / "train_summary.json")["resumed"]
    heavier = [corpora(folder)[0], {**moved[1], "weight": 1}]
    with pytest.raises(ValueError, match=r"holds a run of another recipe, which cannot be resumed: data\.train was"):
        train(recipe_of(folder, **{**changes, "train": heavier}), resume=True)
    write_lines(folder / "moved" / "train.de", ["Hund läuft", "Junge", "Hund", "zwei"])
    write_lines(folder / "moved" / "train.cs", ["pes", "chlapec", "pes", "dva"])
    with pytest.raises(
        ValueError, match=r"cannot resume: split '.*moved:train x 0\.5, de tagged <BT>' of the data is not"
    ):
        train(recipe_of(folder, **{**changes, "train": moved}), resume=True)
    card = render(subject_of_run(run), folder / "card.md", "x")
    assert "scarce:train x 2; " in card
    assert "synthetic:train x 0.5, de tagged <BT>" in card or "moved:train x 0.5, de tagged <BT>" in card
    assert str(folder) not in card


def test_a_killed_run_of_a_mixture_resumes_to_the_same_weights(folder: Path) -> None:
    mixed = [*corpora(folder), {"path": str(folder / "text"), "weight": 0.5}]  # two batches an epoch
    changes: dict[str, Any] = {"train": mixed, "too_long": "drop", "max_length": 24}
    whole = train_at(folder, "whole", **changes)
    killed(folder, lambda patch: kill_at(patch, "training_step", SAVED + 2, after=False), **changes)
    train(recipe_of(folder, **changes), resume=True)
    assert same(weights_of(folder / "run"), weights_of(whole))


def test_a_tag_must_be_a_token_of_the_tokenizer_of_a_wrapped_encoder(folder: Path) -> None:
    encoder = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sources = [{"name": "de", "kind": "pretrained", "encoder": encoder, "processor": "its tokenizer"}]
    changes: dict[str, Any] = {"train": corpora(folder), "model.sources": sources}
    recipe = recipe_of(folder, **changes)
    rows = read_mixture(recipe.data, 0)[0].rows
    tokenizer = train_tokenizer(["zwei Hunde"], "bpe", 270)
    with pytest.raises(ValueError, match="the tokenizer of source 'de', a wrapped encoder, lacks '<BT>', and cannot"):
        make_processor(recipe, rows, {"de": tokenizer})
    tokenizer.add_tokens(["<BT>"])
    assert len(make_processor(recipe, rows, {"de": tokenizer}).get_tokenizer("de")) == len(tokenizer)


def test_joined_sources_keep_their_tags(folder: Path) -> None:
    run = train_at(folder, train=corpora(folder), concatenate=True, mark_sources=True, max_steps=4)
    tokenizer = MultiSourceProcessor.from_pretrained(run).tokenizer
    added = tokenizer.convert_tokens_to_ids(["<en>", "<de>", "<BT>"])
    assert added == [len(tokenizer) - 3, len(tokenizer) - 2, len(tokenizer) - 1]


def test_rows_with_a_long_text_are_dropped_from_the_training_split_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "a b " * 40
    for split in ("train", "dev"):
        for name in ("en", "de", "cs"):
            path = folder / "text" / f"{split}.{name}"
            lines = path.read_text("utf-8").splitlines()
            lines[0] = "x"
            lines[1 + ["en", "de", "cs"].index(name)] = long
            write_lines(path, lines)
    train_at(folder, too_long="drop", eval_strategy="steps", eval_steps=4, max_steps=4, max_length=48)
    printed = capsys.readouterr().out
    train_at(folder, "cut", max_steps=4, max_length=48)
    cut = capsys.readouterr().out
    assert "train, tokens: dropped_too_long 3, too_long.en 1, too_long.de 1, too_long.cs 1\n" in printed
    assert "dev, tokens: truncated.en 1, truncated.de 1, truncated.cs 1\n" in printed
    assert "train, tokens: truncated.en 1, truncated.de 1, truncated.cs 1\n" in cut


def test_dropping_every_row_is_an_error(folder: Path) -> None:
    write_lines(folder / "text" / "train.cs", ["a b c d"] * 40)
    with pytest.raises(ValueError, match=r"data\.too_long is drop, and all 40 training rows have a text of more than"):
        train_at(folder, too_long="drop", max_length=2)
    assert not (folder / "run" / "recipe.yaml").exists()


def test_the_recipe_is_saved_and_read_again_with_its_corpora(folder: Path) -> None:
    recipe = recipe_of(folder, train=corpora(folder), too_long="drop")
    recipe.save(folder / "saved.yaml")
    assert load_recipe(folder / "saved.yaml") == recipe
    assert [corpus.split for corpus in recipe.data.corpora] == ["train", "train"]
    assert recipe_of(folder).data.train_described == "train"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"weight": 0}, r"data\.train\[1\]\.weight must be a number, above 0; got 0"),
        ({"weight": -1}, r"data\.train\[1\]\.weight must be a number, above 0; got -1"),
        ({"weight": "two"}, r"data\.train\[1\]\.weight must be a number, above 0; got 'two'"),
        ({"wieght": 1}, r"data\.train\[1\]: unknown key 'wieght'; did you mean weight\?"),
        ({"path": ""}, r"data\.train\[1\]\.path must be text that is not empty; got ''"),
        ({"tag": {"fr": "<BT>"}}, r"data\.train\[1\]\.tag: unknown source 'fr'; the sources are en, de"),
        ({"tag": "two words"}, r"data\.train\[1\]\.tag must be a token of its own without blanks.*; got 'two words'"),
        ({"tag": "</s>"}, r"data\.train\[1\]\.tag must be a token of its own.*; got '</s>'"),
        ({"tag": {"de": ""}}, r"data\.train\[1\]\.tag must be a token of its own.*; got ''"),
        ({"path": "TEXT", "split": "dev"}, r"data\.train\[1\] is .*text:dev, which is data\.dev: a held-out set"),
        ({"path": "TEXT", "split": "test"}, r"data\.train\[1\] is .*text:test, which is data\.test"),
    ],
)
def test_a_bad_entry_is_named(entry: dict[str, Any], message: str, folder: Path) -> None:
    entry = {key: str(folder / "text") if value == "TEXT" else value for key, value in entry.items()}
    with pytest.raises(ValueError, match=message):
        recipe_of(folder, train=corpora(folder, **entry))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": []}, r"data\.train is an empty list"),
        ({"train": [{"split": "x"}]}, r"data\.train\[0\]\.path is missing; got \{'split': 'x'\}"),
        ({"train": ["train", "other"]}, r"data\.train must be the name of a split, or a list of mappings"),
        ({"train": [{"path": "x", "tag": "<BT>"}], "reverse": True}, r"data\.train\[0\]\.tag: with data\.reverse"),
        ({"too_long": "keep"}, r"data\.too_long must be one of cut, drop; got 'keep'"),
    ],
)
def test_a_bad_mixture_is_named(changes: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        recipe_of(folder, **changes)


@pytest.mark.parametrize(("option", "value"), [("train", [{"path": "x"}]), ("too_long", "drop")])
def test_mixing_and_dropping_need_texts(option: str, value: Any, folder: Path) -> None:
    sources = [{"name": "de", "kind": "features", "feature_size": 4}]
    with pytest.raises(ValueError, match=rf"data\.{option} .*; the sources must all be texts"):
        recipe_of(folder, **{option: value, "model.sources": sources}).forms()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"path": "nowhere"}, r"data\.train\[1\]: no folder nowhere"),
        ({"split": "dev"}, r"data\.train\[1\]: no split 'dev' in"),
        ({"path": "OTHER"}, r"data\.train\[1\]: unknown source or target 'cs'"),
        (
            {"path": "UNEQUAL"},
            r"data\.train\[1\]: files in .* differ in length: train\.de has 1 lines, train\.cs has 2",
        ),
        ({"path": "TARGET"}, r"data\.train\[1\]: split 'train' of .* has no column of the sources en, de"),
        ({"weight": 0.01}, r"data\.train\[1\]\.weight is 0\.01, which leaves no row of 4"),
    ],
)
def test_a_bad_corpus_is_named_and_nothing_is_written(entry: dict[str, Any], message: str, folder: Path) -> None:
    for name, columns in {"OTHER": {"de": 1}, "UNEQUAL": {"de": 1, "cs": 2}, "TARGET": {"cs": 1}}.items():
        (folder / name).mkdir()
        for column, lines in columns.items():
            write_lines(folder / name / f"train.{column}", ["x"] * lines)
    place = {"path": str(folder / entry["path"])} if entry.get("path", "").isupper() else {}
    before = files_of(folder)
    with pytest.raises((ValueError, OSError), match=message):
        train_at(folder, train=corpora(folder, **{**entry, **place}))
    assert files_of(folder) == before


def test_a_mixture_can_be_written_in_yaml(folder: Path) -> None:
    content = yaml.safe_load((folder / "recipe.yaml").read_text("utf-8"))
    content["data"]["train"] = corpora(folder, tag="<BT>")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    (_, synthetic) = recipe_of(folder).data.corpora
    assert synthetic.tags(["en", "de"]) == {"en": "<BT>", "de": "<BT>"}
