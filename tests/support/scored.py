"""Scored runs and rows of results that were made up, and how the pages made of them are read."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from builders import tiny_config
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.metrics.bootstrap import paired_bootstrap
from hf_multisource.metrics.randomization import approximate_randomization
from hf_multisource.recipes.recipe import DataRecipe, Recipe
from hf_multisource.recipes.tokenization import train_tokenizer
from runs import write_lines

WORDS = ["a", "small", "dog", "sees", "two", "old", "cats", "near", "the", "red", "house", "today"]


def sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) for _ in range(count)]


def spoilt(texts: Sequence[str], words: int) -> list[str]:
    """Texts whose last words are wrong."""
    return [" ".join([*text.split()[:-words], *["x"] * words]) for text in texts]


REFERENCES = sentences(40, seed=1)


COLUMNS = {name: sentences(12, seed) for seed, name in enumerate(("en", "de", "cs"))}
COLUMNS["de"][3] = ""
OPTIONS = ("--num_beams", "2", "--batch_size", "4", "--max_new_tokens", "6", "--device", "cpu")


def make_run(folder: Path, data: Path, **settings: Any) -> Path:
    """A run folder as train.py leaves it, with a model that has learned nothing; and the data it is tested on.

    `settings` are keys of the section `data` of the recipe, such as `concatenate`.
    """
    for name, column in COLUMNS.items():
        write_lines(data / f"test.{name}", column)
    recipe = Recipe(DataRecipe(str(data), ["en", "de"], "cs", max_length=16, **settings))
    recipe.training["output_dir"] = str(folder)
    tokenizer = train_tokenizer([text for column in COLUMNS.values() for text in column], "bpe", 280)
    torch.manual_seed(0)
    names = recipe.data.model_sources
    config = tiny_config("serial", names, vocab_size=280, initializer="normal", init_std=1.0)
    model = MultiSourceForConditionalGeneration(config)
    model.generation_config.max_length = 16
    model.save_pretrained(folder)
    MultiSourceProcessor(tokenizer, names).save_pretrained(folder)
    recipe.save(folder / "recipe.yaml")
    history = [{"step": 100 * i, "eval_bleu": 20.0, "eval_loss": 1.0} for i in range(1, 11)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 2.0}, *history]}))
    summary = {"updates": 1000, "seconds": 90.0, "parameters": 5000, "hardware": "an abacus", "threads": 1, "seed": 7}
    (folder / "train_summary.json").write_text(json.dumps({**summary, "command": "python training/train.py x.yaml"}))
    return folder


def figures(bleu: float, draws: int = 1) -> dict[str, Any]:
    one = {"score": bleu, "ci_low": bleu - 1, "ci_high": bleu + 2, "sd": 0.75, "draws": draws, "signature": "nrefs:1"}
    return {"bleu": {**one, "draws_sd": 0.25 if draws > 1 else None}, "chrf": {**one, "score": 50.0, "draws_sd": None}}


def made_up_row(name: str, sources: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "run": name,
        "combiner": "serial",
        "sources": sources.split(),
        "target": "cs",
        "parameters": 1_250_000,
        "updates": 4500,
        "minutes": 61.5,
        "hardware": "an abacus",
        "threads": 2,
        "seed": 1,
        "curve": [],
        "dev_loss": None,
        "finished": True,
        "split": "test",
        "scores": {"all": figures(25.0)},
        "search": {"num_beams": 4, "length_penalty": 1.0, "length_penalty_formula": "sum / length"},
        "decoding_hardware": "a slide rule, 1 threads",
        "sentences_per_second": 7.0,
        "baseline": None,
        "commands": ["python training/train.py x.yaml", "python training/score.py runs/x"],
        "date": "2026-11-21",
        "versions": {"torch": "2.13"},
        **fields,
    }


def cells_of(page: str) -> list[list[str]]:
    """The cells of all tables of a page, line by line."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]


def compared(run: str, hypotheses: Sequence[str], baseline: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """What a row has of a comparison of two runs of one seed each."""
    found = paired_bootstrap(hypotheses, baseline, references)
    p_values = approximate_randomization([hypotheses], [baseline], references)
    return {"run": run} | {name: {**found[name], "p_randomization": p_values[name]} for name in found}
