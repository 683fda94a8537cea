"""Small trainings: their data, their recipe, and what is left of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from hf_multisource.metrics.measurement import Counts, mean_of
from hf_multisource.metrics.table import METRICS, Metric
from hf_multisource.recipes.recipe import Recipe, load_recipe
from hf_multisource.recipes.training import train

STEPS, SAVED = 8, 4  # 40 lines are 3 batches an epoch: the checkpoint lies within the second epoch
WORDS = {
    "en": ["boy", "dog", "plays", "runs", "water", "green", "two", "over"],
    "de": ["Junge", "Hund", "spielt", "läuft", "Wasser", "grün", "zwei", "über"],
    "fr": ["garçon", "chien", "joue", "court", "eau", "vert", "deux", "sur"],
    "cs": ["chlapec", "pes", "hraje", "běží", "voda", "zelený", "dva", "přes"],
}
RECIPE: dict[str, dict[str, Any]] = {
    "data": {"path": "text", "sources": ["en", "de"], "target": "cs", "max_length": 32},
    "tokenizer": {"vocab_size": 280},
    "model": {
        "combiner": "parallel",
        "d_model": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 16,
        "dropout": 0.2,
    },
    "training": {
        "output_dir": "run",
        "max_steps": STEPS,
        "per_device_train_batch_size": 16,
        "noam_scale": 2.0,
        "warmup_steps": 4,
        "train_sampling_strategy": "group_by_length",
        "save_steps": SAVED,
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 1,
    },
}
EVALUATED: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": SAVED,
    "load_best_model_at_end": True,
    "metric_for_best_model": "bleu",
    "greater_is_better": True,
}


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def make_folder(folder: Path) -> Path:
    """Fill a folder with data and a recipe; source `de` is absent in some lines."""
    (folder / "text").mkdir()
    for split, lines in {"train": 40, "dev": 20}.items():
        rng = random.Random(split)
        rows = [[rng.randrange(8) for _ in range(rng.randint(1, 4))] for _ in range(lines)]
        for name, words in WORDS.items():
            text = [
                "" if name == "de" and i % 5 == 0 else " ".join(words[k] for k in row) for i, row in enumerate(rows)
            ]
            write_lines(folder / "text" / f"{split}.{name}", text)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    return folder


def recipe_of(folder: Path, run: str = "run", **changes: Any) -> Recipe:
    places = {"path": str(folder / "text"), "output_dir": str(folder / run)}
    return load_recipe(folder / "recipe.yaml", {**places, **changes})


def train_at(folder: Path, run: str = "run", **changes: Any) -> Path:
    train(recipe_of(folder, run, **changes))
    return folder / run


def weights_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def losses_of(run: Path, step: int = STEPS) -> dict[int, float]:
    """The loss of every update, as the checkpoint at the given one remembers it."""
    history = read_json(run / f"checkpoint-{step}" / "trainer_state.json")["log_history"]
    return {entry["step"]: entry["loss"] for entry in history if "loss" in entry}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def fake_bleu(monkeypatch: pytest.MonkeyPatch, *scores: float, before: Callable[[], Any] = lambda: None) -> None:
    """Let the evaluations of training measure these scores, one after the other; `before` is called at each."""
    rest = iter(scores)

    def compute(*_: Any) -> Counts:
        before()
        return mean_of([next(rest)], "nrefs:0|made up")

    monkeypatch.setitem(METRICS, "bleu", Metric("BLEU", compute))
