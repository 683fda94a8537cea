"""A graph of two made-up languages and a target, at toy size."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

from runs import RECIPE, write_lines

SYLLABLES = ["ba", "do", "ki", "lu", "me", "no", "pa", "ri"]
LANGUAGES = ("scarce", "rich", "target")


def sentence(language: str, words: list[int]) -> str:
    """A sentence: of each word its own form in each language; the scarce language ends with its first word."""
    ending = {"scarce": "x", "rich": "z", "target": ""}[language]
    order = [*words[1:], words[0]] if language == "scarce" else words
    return " ".join(SYLLABLES[word] + SYLLABLES[-1 - word] + ending for word in order)


def write_corpus(folder: Path, split: str, languages: tuple[str, ...], rows: int, seed: int) -> None:
    folder.mkdir(exist_ok=True)
    rng = random.Random(seed)
    words = [[rng.randrange(8) for _ in range(rng.randint(2, 5))] for _ in range(rows)]
    for language in languages:
        write_lines(folder / f"{split}.{language}", [sentence(language, row) for row in words])


def toy_graph(steps: int = 4) -> dict[str, Any]:
    """The graph: train, cross-translate, mix, train with two sources, score; also against the pivot."""
    options = {"max_steps": steps}
    search = {"num_beams": 2, "max_new_tokens": 12}
    return {
        "work": "work",
        "languages": list(LANGUAGES),
        "corpora": {
            "pairs": {"path": "pairs", "languages": ["scarce", "target"]},
            "bridge": {"path": "bridge", "languages": ["scarce", "rich"]},
        },
        "held_out": {
            "dev": {"path": "sets", "languages": ["scarce", "target"], "split": "dev"},
            "bridge_dev": {"path": "sets", "languages": ["scarce", "rich"], "split": "dev"},
            "test": {"path": "sets", "languages": ["scarce", "target"]},
        },
        "steps": {
            "clean": {"prepare": "pairs", "options": {"max_words": 4}},
            "to_rich": {
                "train": "recipe.yaml",
                "on": "bridge",
                "dev": "bridge_dev",
                "sources": ["scarce"],
                "target": "rich",
                "options": options,
            },
            "crossed": {
                "translate": "clean",
                "by": "to_rich",
                "into": "rich",
                "options": {"do_sample": True, "seed": 3},
            },
            "crossed_dev": {"translate": "dev", "by": "to_rich", "into": "rich", "options": search},
            "crossed_test": {"translate": "test", "by": "to_rich", "into": "rich", "options": search},
            "all": {"mix": ["clean", {"corpus": "crossed", "weight": 2, "tag": {"rich": "<BT>"}}]},
            "both": {
                "train": "recipe.yaml",
                "on": "all",
                "dev": "crossed_dev",
                "sources": ["scarce", "rich"],
                "target": "target",
                "options": options,
            },
            "result": {"score": "both", "on": "crossed_test", "options": {**search, "absent": True}},
        },
    }


def make_toy_graph(folder: Path, graph: dict[str, Any] | None = None) -> Path:
    """Write data, a recipe and a graph into a folder; return the file of the graph."""
    write_corpus(folder / "pairs", "train", ("scarce", "target"), 30, seed=1)
    write_corpus(folder / "bridge", "train", ("scarce", "rich"), 40, seed=2)
    write_corpus(folder / "sets", "dev", LANGUAGES, 6, seed=3)
    write_corpus(folder / "sets", "test", LANGUAGES, 8, seed=4)
    training = {**RECIPE["training"], "save_steps": 2, "logging_steps": 2}
    recipe = {**RECIPE, "training": training}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return write_graph(folder, graph or toy_graph())


def write_graph(folder: Path, graph: dict[str, Any]) -> Path:
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(graph, sort_keys=False), encoding="utf-8")
    return path
