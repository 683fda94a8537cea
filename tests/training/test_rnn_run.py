"""An LSTM from its recipe to a translation: the scripts that the other family goes through."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM

from hf_multisource import MultiSourceProcessor, MultiSourceRNNForConditionalGeneration
from hf_multisource.cli import card, score
from hf_multisource.evaluation.results import make_row, read_result
from hf_multisource.publishing import push
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.training import train
from runs import EVALUATED, make_folder, recipe_of, same, train_at, weights_of

MODEL = {"model_type": "multisource-rnn", "combination": "child_sum", "d_model": 16, "num_layers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, and the recipe of an LSTM with the halving schedule of the paper."""
    folder = make_folder(tmp_path_factory.mktemp("lstm"))
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    for key in ("noam_scale", "warmup_steps", "max_steps"):
        del recipe["training"][key]
    recipe["training"] |= {"optim": "sgd", "num_train_epochs": 3, "learning_rate": 0.5, "save_steps": 3}
    recipe["training"] |= {"halve_after_epoch": 1, "loss_per_sentence": True}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "model": MODEL}))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A finished run, scored."""
    run = train_at(folder, **{**EVALUATED, "eval_steps": 3})
    options = ["--split", "dev", "--num_beams", "3", "--length_penalty", "0", "--absent", "--max_new_tokens", "8"]
    score.main([str(run), *options, "--attention-plot"])
    return run


def test_a_run_is_trained_scored_drawn_and_told_of(run: Path, tmp_path: Path) -> None:
    assert read_result(run / "config.json")["model_type"] == "multisource-rnn"
    assert list((run / "scores").rglob("*.png"))
    row = make_row(run, "table", "lstm", None, None)
    assert row["combiner"] == "child_sum, local_p"
    card.main([str(run), "--out", str(tmp_path / "card.md")])
    told = ModelCard.load(tmp_path / "card.md").text
    assert "from hf_multisource import MultiSourceRNNForConditionalGeneration, MultiSourceProcessor" in told
    assert "f_k = sigmoid(W^f_k h_k + b_f)" in told and "p = S sigmoid(v . tanh(W_p h))" in told
    assert "Encoders and decoder are LSTMs" in told and "self-attention" not in told
    model, processor = push.load(run)
    assert type(model) is MultiSourceRNNForConditionalGeneration
    assert type(processor) is MultiSourceProcessor


def test_a_model_without_attention_has_none_to_plot(run: Path, tmp_path: Path) -> None:
    config = read_result(run / "config.json")
    (tmp_path / "config.json").write_text(json.dumps({**config, "attention": "none", "input_feeding": False}))
    with pytest.raises(SystemExit, match=r"hf-multisource score: --attention_plot: .* is a model without attention"):
        score.main([str(tmp_path), "--attention-plot"])


def test_a_run_that_was_killed_goes_on_to_the_same_weights(folder: Path, run: Path) -> None:
    begun = folder / "begun"
    shutil.copytree(run, begun)
    for path in (*begun.glob("checkpoint-[69]*"), begun / "model.safetensors"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    recipe = recipe_of(folder, "begun", **{**EVALUATED, "eval_steps": 3})
    recipe.save(begun / "recipe.yaml")
    train(recipe, resume=True)
    assert same(weights_of(begun), weights_of(run))


def test_wide_beams_of_a_loaded_run_hold_what_the_model_says(run: Path) -> None:
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(run)
    processor = MultiSourceProcessor.from_pretrained(run)
    batch = processor(en=["two dogs", None], de=["zwei", "Hund läuft"], return_tensors="pt")
    output = model.generate(**batch, num_beams=12, max_new_tokens=5, return_dict_in_generate=True, output_scores=True)
    assert len(processor.batch_decode(output.sequences, skip_special_tokens=True)) == 2
    assert load_recipe(run / "recipe.yaml").model == MODEL
