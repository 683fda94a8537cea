"""Sources that are left out of joined texts in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.store import StoredExamples
from hf_multisource.recipes.joined_dropout import JoinedDropout
from hf_multisource.recipes.schema import DataRecipe
from runs import make_folder, train_at

BEGIN, END, A, B, C = 1, 2, 10, 11, 12  # the first two are special tokens, the others are markers
PARTS = {A: [A, 20, 21], B: [B, 22], C: [C, 23, 24, 25]}


class Encoded:
    """What `JoinedDropout` asks of stored examples."""

    def __init__(self, *texts: list[int] | None) -> None:
        self.texts = texts
        self.text_lengths = [[len(text or ())] for text in texts]
        self.label_lengths = [1 for _ in texts]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [{"input_ids": self.texts[index], "labels": [index]} for index in indices]


def dropped(probability: float, *texts: list[int] | None) -> JoinedDropout:
    encoded: Any = Encoded(*texts)
    return JoinedDropout(encoded, list(PARTS), probability, [END])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.mark.parametrize("probability", [0.2, 0.6])
def test_each_source_stays_as_often_as_the_probability_says_and_one_always(probability: float) -> None:
    torch.manual_seed(0)
    text = [BEGIN, *PARTS[A], *PARTS[B], *PARTS[C], END]
    examples = dropped(probability, text)
    times = 6000
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(times):
        ids = examples[0]["input_ids"]
        stayed = tuple(token for token in ids if token in PARTS)
        assert ids == [BEGIN, *(token for marker in stayed for token in PARTS[marker]), END]
        counts[stayed] = counts.get(stayed, 0) + 1
    for subset in [(A, B, C), (A, B), (A, C), (B, C), (A,), (B,), (C,)]:
        chance = (1 - probability) ** len(subset) * probability ** (3 - len(subset))
        chance += probability**3 / 3 if len(subset) == 1 else 0  # one of those that all would be left out keep
        spread = (chance * (1 - chance) / times) ** 0.5
        assert abs(counts.get(subset, 0) / times - chance) < 4 * spread, subset
    assert () not in counts


def test_a_single_source_stays_and_nothing_stays_nothing() -> None:
    examples = dropped(0.9, [*PARTS[B], END], None, [30, 31, END])
    for _ in range(20):
        assert examples[0:3] == [
            {"input_ids": [*PARTS[B], END], "labels": [0]},
            {"input_ids": None, "labels": [1]},
            {"input_ids": [30, 31, END], "labels": [2]},  # a text without markers
        ]


def test_lengths_are_those_of_the_whole_texts() -> None:
    examples = dropped(0.5, [*PARTS[A], *PARTS[C], END], [*PARTS[B], END])
    assert len(examples) == 2
    assert np.asarray(examples.text_lengths).tolist() == [[8], [3]]
    assert np.asarray(examples.label_lengths).tolist() == [1, 1]


def test_only_the_training_texts_of_a_run_lose_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[JoinedDropout | StoredExamples]] = {"train": [], "dev": []}

    def note(run: Any, model: Any, processor: Any, encoded: Any, masked: Any) -> Any:
        for role, examples in encoded.items():
            seen[role].append(examples)
        raise InterruptedError("read enough")

    monkeypatch.setattr("hf_multisource.recipes.training.build_trainer", note)
    with pytest.raises(InterruptedError, match="read enough"):
        train_at(folder, concatenate=True, mark_sources=True, joined_dropout=0.5, kind="symbols")
    (train,), (dev,) = seen.values()
    assert isinstance(dev, StoredExamples) and isinstance(train, JoinedDropout)
    tokenizer = MultiSourceProcessor.from_pretrained(folder / "run").tokenizer
    torch.manual_seed(0)
    pairs = [
        [tokenizer.convert_ids_to_tokens(ids) for ids in (whole, train[i]["input_ids"])]
        for i, whole in enumerate(train.examples.dataset["input_ids"])
    ]
    kinds = set()
    for whole, left in pairs:
        place = whole.index("<de>") if "<de>" in whole else -1
        allowed = {"en and de": whole, "en": [*whole[:place], whole[-1]], "de": whole[place:]}
        kinds |= {name for name, text in allowed.items() if left == text}
        assert left in allowed.values()
    assert kinds == {"en and de", "en", "de"}


def test_a_run_with_it_is_trained(folder: Path) -> None:
    run = train_at(folder, concatenate=True, mark_sources=True, joined_dropout=0.5, max_steps=4)
    assert (run / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "data.joined_dropout is 0.2, but only marked texts .*: set data.mark_sources to true, too"),
        ({"concatenate": True}, "data.joined_dropout is 0.2, but only marked texts .*: set data.mark_sources"),
    ],
)
def test_texts_without_markers_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataRecipe("text", ["en", "de"], "cs", joined_dropout=0.2, **settings)
