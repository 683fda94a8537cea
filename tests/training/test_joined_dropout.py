"""Sources that are left out of joined texts in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.store import StoredExamples
from hf_multisource.recipes.joined_dropout import JoinedDropout
from hf_multisource.recipes.schema import DataRecipe
from hf_multisource.recipes.training import train
from kills import kill_at, killed
from runs import SAVED, losses_of, make_folder, recipe_of, same, train_at, weights_of

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
    return JoinedDropout(encoded, list(PARTS), probability, [END], 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.mark.parametrize("probability", [0.2, 0.6])
def test_each_source_stays_as_often_as_the_probability_says_and_one_always(probability: float) -> None:
    text = [BEGIN, *PARTS[A], *PARTS[B], *PARTS[C], END]
    examples = dropped(probability, text)
    times = 6000
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(times):
        examples.set_epoch(epoch)
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
    for epoch in range(20):
        examples.set_epoch(epoch)
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


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_dropped_depends_on_seed_epoch_and_row_alone(workers: int) -> None:
    texts = [[BEGIN, *PARTS[A], *PARTS[B], *PARTS[C], END] for _ in range(30)]
    examples, other = dropped(0.5, *texts), dropped(0.5, *texts)
    examples.set_epoch(1)
    rows_of: Any = examples
    loader: DataLoader[Any] = DataLoader(
        rows_of,
        batch_size=7,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=lambda rows: rows,
    )
    epochs = []
    for epoch in (1, 2, 1):
        examples.set_epoch(epoch)
        other.set_epoch(epoch)
        epochs.append([row["input_ids"] for rows in loader for row in rows])
        assert epochs[-1] == [other[i]["input_ids"] for i in reversed(range(30))][::-1]
    assert epochs[0] == epochs[2] != epochs[1]
    assert len({tuple(ids) for ids in epochs[0]}) > 4, "the rows differ"


@pytest.mark.parametrize("sampling", ["random", "group_by_length"])
def test_a_killed_run_resumes_to_the_same_weights(sampling: str, folder: Path) -> None:
    changes: dict[str, Any] = {"concatenate": True, "mark_sources": True, "joined_dropout": 0.5}
    changes |= {"train_sampling_strategy": sampling}
    whole = train_at(folder, "whole", **changes)
    killed(folder, lambda patch: kill_at(patch, "training_step", SAVED + 2, after=False), **changes)
    train(recipe_of(folder, **changes), resume=True)
    assert losses_of(folder / "run") == losses_of(whole)
    assert same(weights_of(folder / "run"), weights_of(whole))


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
