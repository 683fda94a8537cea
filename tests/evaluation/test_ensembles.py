"""`score --ensemble` and `translate --ensemble`: what several runs say together, and which runs are refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import tiny_config
from hf_multisource import MultiSourceEnsemble, MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.cli import score, translate
from hf_multisource.evaluation import decoding
from hf_multisource.evaluation.decoding import load_weights
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.tokenization import train_tokenizer
from scored import COLUMNS, OPTIONS, make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return make_run(tmp_path / "one", tmp_path / "data")


def sibling(run: Path, name: str, seed: int) -> Path:
    """A run of the same recipe with other weights."""
    other = run.parent / name
    shutil.copytree(run, other, ignore=shutil.ignore_patterns("scores*"))
    torch.manual_seed(seed)
    config = MultiSourceForConditionalGeneration.from_pretrained(other).config
    MultiSourceForConditionalGeneration(config).save_pretrained(other)
    return other


def report_of(folder: Path) -> Any:
    return json.loads((folder / "test.json").read_text("utf-8"))


def texts_of(folder: Path) -> list[str]:
    return (folder / "test.all.txt").read_text("utf-8").splitlines()


def test_a_run_twice_is_the_run(run: Path) -> None:
    score.main([str(run), *OPTIONS])
    score.main([str(run), "--ensemble", str(run), str(run), *OPTIONS])
    assert texts_of(run / "scores-ensemble") == texts_of(run / "scores")
    alone, together = report_of(run / "scores"), report_of(run / "scores-ensemble")
    assert together["ensemble"] == ["one", "one"]
    assert "ensemble" not in alone
    found, expected = (report["conditions"]["all"]["draws"][0]["perplexity"] for report in (together, alone))
    assert found["score"] == pytest.approx(expected["score"], rel=1e-5)


def test_the_hypotheses_are_those_of_the_ensemble_and_are_mixed_with_no_others(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [sibling(run, f"seed{seed}", seed) for seed in (1, 2)]
    command = [str(run), "--ensemble", *map(str, others), *OPTIONS]
    score.main(command)
    found = texts_of(run / "scores-ensemble")
    ensemble: Any = MultiSourceEnsemble([load_weights(str(folder), "cpu") for folder in (run, *others)])
    processor = MultiSourceProcessor.from_pretrained(run)
    cut: dict[str, Any] = {"padding": True, "truncation": True, "max_length": 16}
    batch = processor(en=COLUMNS["en"], de=[text or None for text in COLUMNS["de"]], return_tensors="pt", **cut)
    ids = ensemble.generate(**batch, num_beams=2, max_new_tokens=6)
    expected = [" ".join(text.split()) for text in processor.batch_decode(ids, skip_special_tokens=True)]
    assert [" ".join(text.split()) for text in found] == expected
    score.main([str(run), *OPTIONS])
    assert texts_of(run / "scores") != found

    def fail(*_: Any) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(decoding, "decode_batch", fail)
    score.main(command)
    with pytest.raises(SystemExit, match=r"test\.all\.txt was begun with other settings: weights_sha256"):
        score.main([str(run), "--ensemble", str(others[0]), *OPTIONS])
    with pytest.raises(SystemExit, match=r"test\.all\.txt was begun with other settings: weights_sha256"):
        score.main([str(run), *OPTIONS, "--ensemble", *map(str, others), "--out", str(run / "scores")])


def test_a_folder_of_seeds_is_scored_seed_by_seed_and_not_with_other_members(run: Path) -> None:
    folder = run.parent / "seeds"
    for seed in (1, 2):
        sibling(run, f"seeds/seed-{seed}", seed)
    message = f"--ensemble: {folder} is a folder of seeds.* {folder}/seed-1 --ensemble {folder}/seed-2"
    with pytest.raises(SystemExit, match=message):
        score.main([str(folder), "--ensemble", str(run), *OPTIONS])
    assert not list(folder.rglob("scores*"))


def test_translate_decodes_with_an_ensemble_and_continues_no_other_file(run: Path) -> None:
    other, out = sibling(run, "other", 1), run.parent / "out.cs"
    files = ["--en", str(run.parent / "data" / "test.en"), "--de", str(run.parent / "data" / "test.de")]
    options = ["--num_beams", "2", "--max_new_tokens", "6", "--out", str(out)]
    score.main([str(run), "--ensemble", str(other), *OPTIONS])
    translate.main([str(run), "--ensemble", str(other), *files, *options])
    assert out.read_text("utf-8").splitlines() == texts_of(run / "scores-ensemble")
    with pytest.raises(SystemExit, match="was begun with other settings: weights_sha256"):
        translate.main([str(run), *files, *options])


def save_other(run: Path, name: str, tokenizer: Any, sources: list[str], own: dict[str, Any] | None = None) -> Path:
    """A model folder beside the run."""
    folder = run.parent / name
    entries: list[Any] = [
        {"name": source, **({"vocab_size": len(own[source])} if own and source in own else {})} for source in sources
    ]
    model: Any = MultiSourceForConditionalGeneration(tiny_config("serial", entries, vocab_size=280))
    model.save_pretrained(folder)
    MultiSourceProcessor(tokenizer, sources, own).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("target", "encodes the source 'en' in another way than {run}"),
        ("own", "encodes the source 'de' in another way than {run}"),
        ("source", "reads the source 'fr'; {run}, which encodes the data, has en, de"),
        ("missing", "is no folder of a model, and cannot be loaded from the Hub"),
    ],
)
def test_a_run_that_encodes_otherwise_is_refused_by_name(run: Path, kind: str, message: str) -> None:
    texts = [text for column in COLUMNS.values() for text in column]
    same = MultiSourceProcessor.from_pretrained(run).tokenizer
    reversed_words = train_tokenizer([text[::-1] for text in texts], "bpe", 280)
    if kind == "target":
        other = save_other(run, "other", reversed_words, ["en", "de"])
    elif kind == "own":
        other = save_other(run, "other", same, ["en", "de"], {"de": reversed_words})
    elif kind == "source":
        other = save_other(run, "other", same, ["en", "fr"])
    else:
        other = run.parent / "other"
    expected = f"{other} {message.format(run=run)}"
    with pytest.raises(SystemExit, match=f"^hf-multisource score: .*{re.escape(expected)}"):
        score.main([str(run), "--ensemble", str(other), *OPTIONS])
    assert not (run / "scores-ensemble").exists()


def test_a_target_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    """All sources have tokenizers of their own, and those are the same."""
    texts = [text for column in COLUMNS.values() for text in column]
    own = {name: train_tokenizer(texts, "bpe", 270) for name in ("en", "de")}
    targets = [train_tokenizer(words, "bpe", 280) for words in (texts, [text[::-1] for text in texts])]
    one, other = (
        save_other(tmp_path / "place", name, target, ["en", "de"], own)
        for name, target in zip(("one", "other"), targets, strict=True)
    )
    source = tmp_path / "test.en"
    source.write_text("a small dog\n", "utf-8")
    with pytest.raises(SystemExit, match=f"{other} has another tokenizer of the target than {one}"):
        translate.main([str(one), "--ensemble", str(other), "--en", str(source)])


@pytest.mark.parametrize(
    ("key", "value", "was"), [("sources", ["de", "en"], ["en", "de"]), ("mark_sources", True, False)]
)
def test_runs_that_join_their_sources_in_another_way_are_refused(
    key: str, value: object, was: object, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    one = make_run(tmp_path / "one", tmp_path / "data", concatenate=True)
    other = sibling(one, "other", 1)
    recipe = load_recipe(other / "recipe.yaml")
    setattr(recipe.data, key, value)
    recipe.save(other / "recipe.yaml")
    with pytest.raises(SystemExit, match=re.escape(f"data.{key} is {value} in {other}, {was} in {one}")):
        score.main([str(one), "--ensemble", str(other), *OPTIONS])


def test_runs_that_join_their_sources_decode_together(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    one = make_run(tmp_path / "one", tmp_path / "data", concatenate=True)
    score.main([str(one), "--ensemble", str(sibling(one, "other", 1)), *OPTIONS])
    assert len(texts_of(one / "scores-ensemble")) == len(COLUMNS["en"])


def test_attention_is_plotted_of_one_model(run: Path) -> None:
    with pytest.raises(SystemExit, match="--attention_plot shows one model: leave out --ensemble"):
        score.main([str(run), "--ensemble", str(run), "--attention_plot", *OPTIONS])
