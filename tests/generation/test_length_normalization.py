"""The paper's beam search, `length_normalization`: against a naive one, by hand, and what does not go with it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

from builders import END, EVERY_COMBINER, LSTM, PAPER_COMBINERS, three_source_batch, three_source_model
from reference import normalized_beam, normalizer
from searches import generate, log_probabilities, next_scores, same, shared_model, texts_of

pytestmark = pytest.mark.pairs

feature = pytest.mark.feature("Generation", "Length normalization of Wu et al. 2016 in the beam (length_normalization)")
each_combiner = pytest.mark.parametrize("combiner", [*EVERY_COMBINER, LSTM])
each_alpha = pytest.mark.parametrize("alpha", [0, 0.6, 1.0])
A, B, C, D = 4, 5, 6, 7
Distributions = Mapping[tuple[int, ...], Mapping[int, float]]


def find(
    combiner: str, num_beams: int, ends: Collection[int] = (END,), /, **options: Any
) -> list[list[tuple[list[int], float]]]:
    """The last beam of every example: texts and scores."""
    search = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_new_tokens": 6, **options}
    texts, scores = generate(shared_model(combiner), three_source_batch(), ends, **search)
    found = list(zip(texts, scores.tolist(), strict=True))
    return [found[i : i + num_beams] for i in range(0, len(found), num_beams)]


@feature
@each_combiner
@each_alpha
@pytest.mark.parametrize("num_beams", [2, 3, 4, 5])
def test_it_is_the_naive_search_with_sources_absent_here_and_there(combiner: str, alpha: float, num_beams: int) -> None:
    for i, found in enumerate(find(combiner, num_beams, length_normalization=alpha)):
        expected = normalized_beam(next_scores(combiner, i), num_beams, alpha, 6, {END})
        assert [text for text, _ in found] == [list(text) for text, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_both_rules_and_every_alpha_find_something_else() -> None:
    """Guards the test above."""
    texts = []
    for rule in ({}, *({"length_normalization": alpha} for alpha in (0, 0.6, 1.0))):
        beams = [beam for combiner in PAPER_COMBINERS for beam in find(combiner, 4, **rule)]
        texts.append([[text for text, _ in beam] for beam in beams])
    assert all(one != other for one, other in itertools.combinations(texts, 2))


@each_combiner
@each_alpha
def test_a_beam_as_wide_as_all_texts_finds_the_best_of_them(combiner: str, alpha: float) -> None:
    model = three_source_model(combiner, vocab_size=6)
    model.final_logits_bias.zero_()
    inputs = {"input_ids": torch.tensor([[4, 5, 1]]), "fr_input_ids": torch.tensor([[3, 5]])}
    texts, scores = generate(model, inputs, num_beams=156, max_new_tokens=3, length_normalization=alpha)
    others = [token for token in range(6) if token != END]
    every = [(*head, END) for n in range(3) for head in itertools.product(others, repeat=n)]
    every += list(itertools.product(others, repeat=3))
    sums = log_probabilities(model, inputs, every)
    worth = [total / normalizer(len(text), alpha) for total, text in zip(sums, every, strict=True)]
    best, text = max(zip(worth, every, strict=True))
    assert texts == [list(text)]
    assert scores.item() == pytest.approx(best, abs=1e-5)


@each_combiner
def test_the_beginning_of_a_target_that_is_given_has_no_length(combiner: str) -> None:
    given = (5, 6)
    start = torch.tensor([[2, *given]]).expand(5, 3)
    for i, found in enumerate(find(combiner, 4, length_normalization=1.0, decoder_input_ids=start)):

        def after(text: tuple[int, ...], i: int = i) -> list[float]:
            return next_scores(combiner, i)((*given, *text))

        expected = normalized_beam(after, 4, 1.0, 6, {END})
        assert [text for text, _ in found] == [[*given, *text] for text, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)


@each_combiner
def test_the_scores_are_the_steps_divided_by_the_length(combiner: str) -> None:
    model, search = three_source_model(combiner), {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 6}
    output = model.generate(
        **three_source_batch(), **search, length_normalization=0.8, output_scores=True, return_dict_in_generate=True
    )
    steps = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    lengths = (output.beam_indices >= 0).sum(dim=1)
    assert lengths.tolist() == [len(text) for text in texts_of(output.sequences)]
    torch.testing.assert_close(steps.sum(dim=1) / ((5 + lengths) / 6) ** 0.8, output.sequences_scores)


@each_combiner
def test_drawing_the_likeliest_is_the_search(combiner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = find(combiner, 4, length_normalization=1.0)
    monkeypatch.setattr(torch, "multinomial", lambda chances, num_samples: chances.topk(num_samples).indices)
    drawn = find(combiner, 4, length_normalization=1.0, do_sample=True)
    for one, other in zip(drawn, expected, strict=True):
        assert [text for text, _ in one] == [text for text, _ in other]
        assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-5)


# By hand


def say(table: Distributions, num_beams: int, longest: int, **options: Any) -> list[tuple[tuple[int, ...], float]]:
    """Search where the model's words are taken from a table: text -> the tokens that may follow -> probability."""

    def look_up(ids: Tensor, scores: Tensor) -> Tensor:
        rows = [table.get(tuple(row[1:]), {END: 1.0}) for row in ids.tolist()]
        logs = [[math.log(row[token]) if token in row else -math.inf for token in range(16)] for row in rows]
        return torch.tensor(logs)

    search = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_new_tokens": longest, **options}
    inputs = three_source_batch(examples=[0])
    texts, scores = generate(shared_model("serial"), inputs, logits_processor=[look_up], **search)
    return [(tuple(text), score) for text, score in zip(texts, scores.tolist(), strict=True)]


def test_a_finished_text_takes_a_place_in_the_beam() -> None:
    """Two beams, at most three tokens, α = 1: a sum counts 1, 6/7 and 6/8 of itself for one, two and three tokens.

    Step 1: A .5, END .3, B .2. The paper keeps A and END; B is gone. Transformers sets END aside and goes on with A, B.
    Step 2, the paper: A A log(.225)·6/7 = -1.279, A B log(.175)·6/7 = -1.494, END log(.3) = -1.204: stays A A, END.
    Transformers: B END log(.2·.9)/2 = -0.857 is finished before END log(.3)/1 = -1.204.
    Step 3: A A END log(.225·.6), which is -2.002: for the paper ·6/8 = -1.502, after END; for Transformers /3 = -0.667.
    """
    table: Distributions = {
        (): {A: 0.5, END: 0.3, B: 0.2},
        (A,): {A: 0.45, B: 0.35, END: 0.2},
        (B,): {END: 0.9, A: 0.1},
        (A, A): {END: 0.6, A: 0.1, B: 0.1, C: 0.1, D: 0.1},
        (A, B): dict.fromkeys((A, B, C, D, END), 0.2),
    }
    paper = say(table, 2, 3, length_normalization=1.0)
    assert [text for text, _ in paper] == [(END,), (A, A, END)]
    assert [score for _, score in paper] == pytest.approx([-1.204, -1.502], abs=5e-4)
    stock = say(table, 2, 3)
    assert [text for text, _ in stock] == [(A, A, END), (B, END)]
    assert [score for _, score in stock] == pytest.approx([-0.667, -0.857], abs=5e-4)


def test_a_finished_text_that_falls_out_of_the_beam_never_comes_back() -> None:
    """END (.28) stays after step 1, but A A and A B are better: log(.25)·6/7 = -1.188, log(.245)·6/7 = -1.206, -1.273.

    What follows them is so unlikely that END would have been best: log(.25·.2)·6/8 = -2.247, log(.245·.2)·6/8 = -2.262.
    """
    table: Distributions = {
        (): {A: 0.5, END: 0.28, B: 0.22},
        (A,): {A: 0.5, B: 0.49, END: 0.01},
        (A, A): dict.fromkeys((A, B, C, D, END), 0.2),
        (A, B): dict.fromkeys((A, B, C, D, END), 0.2),
    }
    found = say(table, 2, 3, length_normalization=1.0)
    assert [score for _, score in found] == pytest.approx([-2.247, -2.247], abs=5e-4)
    assert all(text[:2] == (A, A) for text, _ in found)


def test_the_search_stops_when_all_in_the_beam_are_finished() -> None:
    """A END and END fill the beam at step 2; the longer texts, better in the end, are never seen."""
    table: Distributions = {(): {A: 0.6, END: 0.4}, (A,): {END: 0.8, A: 0.2}, (A, A): {END: 1.0}}
    assert [text for text, _ in say(table, 2, 9, length_normalization=1.0)] == [(A, END), (END,)]


@pytest.mark.parametrize("alpha", [0.0, 1.0, 12.0])
def test_fewer_texts_than_beams(alpha: float) -> None:
    """Beams that are none score -1e9, which a large α would make a good score."""
    table: Distributions = {
        (): {A: 1.0},
        (A,): {B: 0.7, C: 0.3},
        (A, B): {A: 0.9, END: 0.1},
        (A, B, A): {A: 0.4, B: 0.6},
    }
    expected = normalized_beam(
        lambda text: [
            math.log(chance) if (chance := table.get(text, {END: 1.0}).get(token, 0.0)) else -math.inf
            for token in range(16)
        ],
        4,
        alpha,
        6,
        {END},
    )
    found = say(table, 4, 6, length_normalization=alpha)
    assert [text for text, _ in found[: len(expected)]] == [text for text, _ in expected]
    assert [score for _, score in found[: len(expected)]] == pytest.approx([score for _, score in expected], abs=1e-5)


# As an option


@feature
@each_combiner
@pytest.mark.parametrize("num_beams", [4])
def test_it_is_stored_with_the_model_and_switched_off_by_none(combiner: str, num_beams: int, tmp_path: Path) -> None:
    model = three_source_model(combiner)
    search = {"num_beams": num_beams, "num_return_sequences": 2}
    expected = generate(model, three_source_batch(), **search, length_normalization=1.0)
    stock = generate(model, three_source_batch(), **search)
    model.generation_config.update(**search)
    model.generation_config.length_normalization = 1.0
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["length_normalization"] == 1.0
    loaded: Any = type(model).from_pretrained(tmp_path)
    same(generate(loaded, three_source_batch()), expected)
    same(generate(loaded, three_source_batch(), length_normalization=None), stock)
    assert loaded.generation_config.length_normalization == 1.0
    given = GenerationConfig(**search, length_normalization=1.0)
    same(generate(model, three_source_batch(), generation_config=given), expected)


@pytest.mark.parametrize("alpha", [-0.1, math.nan, math.inf, "1.0", True, [1.0]])
def test_an_alpha_that_is_no_number_from_0_up_is_refused(alpha: Any) -> None:
    with pytest.raises(ValueError, match=r"length_normalization is .*; it must be a number from 0 to 20"):
        find("serial", 2, length_normalization=alpha)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_return_sequences": 1, "num_beams": 1}, "num_beams=1 selects greedy_search"),
        ({"num_return_sequences": 1, "num_beams": 1, "do_sample": True}, "num_beams=1 selects sample"),
        ({"length_penalty": 0.6}, "length_penalty is 0.6"),
        ({"early_stopping": True}, "early_stopping is True"),
        ({"early_stopping": "never"}, "early_stopping is never"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        find("serial", options.pop("num_beams", 2), length_normalization=1.0, **options)


def test_two_ends_of_a_text() -> None:
    ends = {END, 9}
    for i, found in enumerate(find("flat", 4, ends, length_normalization=1.0, eos_token_id=[END, 9])):
        expected = normalized_beam(next_scores("flat", i), 4, 1.0, 6, ends)
        assert [text for text, _ in found] == [list(text) for text, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)
