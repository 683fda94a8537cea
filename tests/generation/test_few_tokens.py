"""Beam search with vocabularies and shortlists of a few tokens, of which most may end a text."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pytest
import torch

from builders import randomize, tiny_config
from hf_multisource import MultiSourceForConditionalGeneration
from hf_multisource.vocabulary import Shortlist

IDS: dict[str, Any] = dict.fromkeys(["pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"], 0)


def make(vocab_size: int) -> Any:
    """A model of one source that says something else after each token."""
    torch.manual_seed(vocab_size)
    model = MultiSourceForConditionalGeneration(tiny_config(sources=["en"], vocab_size=vocab_size, **IDS)).eval()
    randomize(model, 2)
    return model


def subsets(size: int, least: int = 0) -> list[list[int]]:
    """All sets of token ids, the smallest first."""
    return [list(ids) for ids in chain.from_iterable(combinations(range(size), n) for n in range(least, size + 1))]


def search(model: Any, **options: Any) -> Any:
    inputs = {"input_ids": torch.zeros(1, 1, dtype=torch.long), "attention_mask": torch.ones(1, 1, dtype=torch.long)}
    options = {"max_new_tokens": 3, "pad_token_id": 0, "return_dict_in_generate": True, **options}
    return model.generate(**inputs, **options)


def check(model: Any, ends: list[int], shortlist: list[int] | None, beams: int) -> None:
    """The search finds what Transformers' own loop finds, which looks at the scores of all tokens."""
    options: dict[str, Any] = {"num_beams": beams, "eos_token_id": ends or None}
    if shortlist is not None:
        options["shortlist"] = torch.tensor(shortlist)
    if model.config.vocab_size < max(2, 1 + len(ends)):
        with pytest.raises(ValueError, match=r"beam search needs at least \d+ tokens with eos_token_id=\["):
            search(model, **options)
        return
    found = search(model, **options).sequences
    every = search(model, **options, output_scores=True).sequences
    assert torch.equal(found, every), (ends, shortlist, beams)
    assert shortlist is None or {*found.flatten().tolist()} <= {0, *ends, *shortlist}


@pytest.mark.parametrize("vocab_size", [2, 3])
def test_every_small_case_is_searched(vocab_size: int) -> None:
    model = make(vocab_size)
    for ends in subsets(vocab_size):
        for shortlist in [None, *subsets(vocab_size, 1)]:
            for beams in (2, 3):
                check(model, ends, shortlist, beams)


@pytest.mark.parametrize("vocab_size", [4, 5, 6])
def test_every_number_of_tokens_and_ends_is_searched(vocab_size: int) -> None:
    """All numbers of end tokens and of tokens on the list, of which all, some or none end a text."""
    model = make(vocab_size)
    for ends in [list(range(n)) for n in range(vocab_size + 1)]:
        for count in range(1, vocab_size + 1):
            for shortlist in (list(range(count)), list(range(vocab_size - count, vocab_size))):
                check(model, ends, shortlist, 3)
        check(model, ends, None, 2)


@pytest.mark.parametrize("options", [{"do_sample": True}, {"length_normalization": 1.0}, {"num_return_sequences": 3}])
def test_other_searches_with_one_token(options: dict[str, Any]) -> None:
    model = make(6)
    for token in (0, 3):
        found = search(model, num_beams=3, eos_token_id=[0, 1], shortlist=torch.tensor([token]), **options).sequences
        texts = [[0], [0, 0, 0]] if token == 0 else [[3, 3, 3]]  # a finished text is padded by 0
        assert found[0, 1:].tolist() in texts


@pytest.mark.parametrize(
    "settings",
    [
        *({"num_beams": value} for value in ({"a": 1}, [3], "3", 2.5)),
        {"num_return_sequences": 2.5, "num_beams": 3},  # Transformers itself compares texts and lists with numbers
    ],
)
def test_numbers_of_beams_are_whole(settings: dict[str, Any]) -> None:
    model = make(6)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)  # as a generation_config.json may hold it
    with pytest.raises(ValueError, match=rf"{next(iter(settings))} is .*whole number"):
        search(model)


@pytest.mark.parametrize("ids", [torch.tensor([True, False]), torch.tensor([1j])], ids=["bool", "complex"])
def test_a_mask_is_not_a_list_of_tokens(ids: torch.Tensor) -> None:
    """Its values would be taken for the tokens 1 and 0."""
    with pytest.raises(ValueError, match="shortlist must be a tensor of token ids"):
        Shortlist(ids, torch.nn.Linear(2, 6), None)
