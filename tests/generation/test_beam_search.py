"""Beam search finds what the beam search of Transformers finds, with fewer rows in each step."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from builders import LSTM, PAPER_FIRST, three_source_batch, three_source_model
from hf_multisource import MultiSourceEnsemble
from hf_multisource.beam_search import LEAVING_SHARE, normalize_length, penalize_length

ENSEMBLE = "ensemble"
BEAMS = 3
# Of the small models here, these tokens end texts early and at different places.
ENDS = [1, 5, 9, 12]
each_model = pytest.mark.parametrize("name", [*PAPER_FIRST, LSTM, ENSEMBLE])
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "n-best": {"num_return_sequences": BEAMS},
    "early": {"early_stopping": True, "num_return_sequences": 2},
    "never": {"early_stopping": "never", "num_return_sequences": 2},
    "no penalty": {"length_penalty": 0.0, "num_return_sequences": 2},
    "short": {"length_penalty": -2.0, "num_return_sequences": 2},
    "long": {"length_penalty": 3.0, "num_return_sequences": 2},
    "processed": {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    "no cache": {"use_cache": False},
    "beginning": {"decoder_input_ids": torch.tensor([[2, 6, 3]] * 5)},
    "padded beginning": {
        "decoder_input_ids": torch.tensor([[2, 6, 3], [0, 2, 3], [2, 4, 4], [0, 0, 2], [2, 7, 7]]),
        "decoder_attention_mask": torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 1], [0, 0, 1], [1, 1, 1]]),
    },
    "one end": {"eos_token_id": 1, "max_new_tokens": 40},
    "no end": {"eos_token_id": None, "max_new_tokens": 4},
}


@cache
def model_of(name: str) -> Any:
    if name == ENSEMBLE:
        return MultiSourceEnsemble([three_source_model("serial"), three_source_model(LSTM, sources=("de", "fr"))])
    return three_source_model(name)


def search(model: Any, **options: Any) -> tuple[Tensor, list[int]]:
    """What is found, and the rows that each step computes."""
    rows: list[int] = []
    hook = model.register_forward_hook(lambda module, args, output: rows.append(len(output.logits)))
    settings = {"num_beams": BEAMS, "max_new_tokens": 14, "eos_token_id": ENDS, "do_sample": False}
    try:
        return model.generate(**three_source_batch(), **{**settings, **options}), rows
    finally:
        hook.remove()


def stock_search(name: str, **options: Any) -> Tensor:
    """What Transformers' own loop finds; an ensemble has none, but keeps all rows if scores are asked for."""
    if name != ENSEMBLE:
        return search(model_of(name), **options, fold_beams=False)[0]
    found: Any = search(model_of(name), **options, return_dict_in_generate=True, output_scores=True)[0]
    sequences: Tensor = found.sequences
    return sequences


@pytest.mark.pairs
@each_model
@pytest.mark.parametrize("options", OPTIONS)
def test_it_finds_what_transformers_finds(name: str, options: str) -> None:
    assert torch.equal(search(model_of(name), **OPTIONS[options])[0], stock_search(name, **OPTIONS[options]))


@each_model
def test_examples_leave_when_their_search_is_over(name: str) -> None:
    found, rows = search(model_of(name), early_stopping=True)
    batch = len(found)
    assert rows == sorted(rows, reverse=True) and rows[0] == batch * BEAMS
    left = [(before, before - after) for before, after in pairwise(rows) if after < before]
    assert left and all(gone % BEAMS == 0 and gone >= LEAVING_SHARE * before for before, gone in left)


@pytest.mark.parametrize(
    "options",
    [
        {"return_dict_in_generate": True, "output_scores": True},
        {"return_dict_in_generate": True, "output_attentions": True},
        {"prefix_allowed_tokens_fn": lambda row, ids: list(range(16))},
        {"do_sample": True},
        {"cache_implementation": "static"},
        {"fold_beams": False},
    ],
    ids=lambda options: next(reversed(options)),
)
def test_all_rows_stay_where_somebody_counts_them(options: dict[str, Any]) -> None:
    model = three_source_model()
    model.set_attn_implementation("eager")
    _, rows = search(model, early_stopping=True, **options)
    assert set(rows) == {5 * BEAMS} and len(rows) > 2


def test_rules_for_single_rows_are_kept_to_them() -> None:
    """The first token of each text is fixed by the number of its example, which would be another one after leaving."""

    def allowed(example: int, ids: Tensor) -> list[int]:
        return [example + 2] if len(ids) == 1 else list(range(16))

    model = model_of("serial")
    ours, _ = search(model, early_stopping=True, prefix_allowed_tokens_fn=allowed)
    assert ours[:, 1].tolist() == [2, 3, 4, 5, 6]
    assert torch.equal(ours, search(model, early_stopping=True, prefix_allowed_tokens_fn=allowed, fold_beams=False)[0])


def test_scores_need_not_be_asked_for_step_by_step() -> None:
    model = model_of("hierarchical")
    few: Any = search(model, return_dict_in_generate=True, num_return_sequences=2)[0]
    every: Any = search(model, return_dict_in_generate=True, num_return_sequences=2, output_scores=True)[0]
    assert few.scores is None and few.past_key_values is None
    torch.testing.assert_close(few.sequences_scores, every.sequences_scores)
    assert torch.equal(few.beam_indices, every.beam_indices)


def test_neighbors_in_the_batch_change_nothing() -> None:
    """Transformers' loop goes on with an example whose candidates have all ended, if a neighbor's have not."""
    inputs = three_source_batch()
    model = model_of("serial")
    settings = {"num_beams": BEAMS, "max_new_tokens": 14, "eos_token_id": ENDS, "num_return_sequences": BEAMS}
    together = model.generate(**inputs, **settings)
    for i in range(5):
        alone = model.generate(**{key: value[i : i + 1] for key, value in inputs.items()}, **settings)
        own = together[i * BEAMS : (i + 1) * BEAMS, : alone.shape[1]]
        assert torch.equal(own, alone)


def test_the_rules_of_length() -> None:
    scores = torch.tensor([-7.0, -3.5])
    torch.testing.assert_close(penalize_length(scores, 7, 2.0), scores / 49)
    torch.testing.assert_close(normalize_length(scores, 7, 2.0), scores / 4)
    torch.testing.assert_close(normalize_length(scores, 1, 3.0), scores)


def test_low_memory_is_refused() -> None:
    with pytest.raises(ValueError, match=r"low_memory is True; beam search has no such mode"):
        search(model_of("serial"), low_memory=True)
