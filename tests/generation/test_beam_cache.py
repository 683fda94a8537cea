"""Keys and values of beams that stay where they were written: the same as those that are moved."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from builders import EVERY_COMBINER
from builders import three_source_batch as batch
from builders import three_source_model as make
from hf_multisource import MultiSourceEnsemble, beam_cache
from hf_multisource.attention import eager_attention_forward
from hf_multisource.beam_cache import BeamCache

HEADS, WIDTH = 2, 3


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """The context of every row, (B * K, T, H, d); queries of rows that share keys are put into one."""
    together = query.transpose(1, 2).reshape(len(keys), -1, HEADS, WIDTH).transpose(1, 2)
    context, _ = eager_attention_forward(torch.nn.Identity(), together, keys, values, mask, WIDTH**-0.5)
    return context.reshape(query.transpose(1, 2).shape)


def causal(mask: Tensor, new: int) -> Tensor:
    """What rows of a stock cache may see, (R, 1, T, S), added to the scores."""
    total = mask.shape[1]
    seen = mask[:, None, None, :].bool() & (torch.arange(total) <= torch.arange(total - new, total)[:, None])
    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -1e300)


def pairs(one: Any, other: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Keys with keys and values with values, layer by layer."""
    for ours, theirs in zip(one.layers, other.layers, strict=True):
        yield ours.keys, theirs.keys
        yield ours.values, theirs.values


@given(st.data(), st.integers(1, 3), st.integers(1, 4), st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_what_beams_see_is_what_they_see_in_a_stock_cache(
    data: st.DataObject, examples: int, num_beams: int, news: list[int]
) -> None:
    """Any number of new positions in each call, any new order after it, and padding anywhere but at the last one."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    rows, moved, kept = examples * num_beams, DynamicCache(), BeamCache(num_beams, 2, 4)
    mask = torch.ones(rows, 0)
    for new in news:
        hidden = torch.zeros(rows, new, HEADS * WIDTH, dtype=torch.float64)
        mask = torch.cat([mask, (torch.rand(rows, new, generator=generator) < 0.7).float()], dim=1)
        mask[:, -new:].clamp_(min=1.0)  # whoever looks sees something
        padded = data.draw(st.booleans())
        ahead = torch.cat([mask, torch.ones(rows, 2)], dim=1)  # as stock code has it where it prefills by parts
        ours = kept.mask(hidden, ahead if padded else None)
        theirs = causal(mask if padded else torch.ones_like(mask), new)
        for i in range(2):
            query, keys, values = torch.randn(3, rows, HEADS, new, WIDTH, generator=generator, dtype=torch.float64)
            found = attend(query, *kept.update(keys, values, i), theirs if ours is None else ours)
            torch.testing.assert_close(found, attend(query, *moved.update(keys, values, i), theirs))
        assert kept.get_seq_length() == moved.get_seq_length() == mask.shape[1]
        order = torch.randint(num_beams, (examples, num_beams), generator=generator, dtype=torch.int32)
        order = (order + torch.arange(examples, dtype=torch.int32)[:, None] * num_beams).flatten()
        kept.reorder_cache(order)
        moved.reorder_cache(order)  # type: ignore[arg-type]
        mask = mask[order]
        for one, other in pairs(copy.deepcopy(kept).unfold(), moved):
            assert torch.equal(one, other)


def test_nothing_is_moved_until_the_room_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_cache, "POSITIONS", 4)
    cache = BeamCache(2, 1, max_positions=7)
    rooms, places = [], set()
    for _ in range(9):
        cache.mask(torch.zeros(6, 1, 8))
        cache.update(torch.ones(6, HEADS, 1, WIDTH), torch.ones(6, HEADS, 1, WIDTH), 0)
        cache.reorder_cache(torch.tensor([1, 1, 2, 2, 5, 4]))
        layer: Any = cache.layers[0]
        rooms.append(layer.keys.shape[2] // layer.num_beams)
        places.add(layer.keys.data_ptr())
    assert rooms == [4, 4, 4, 4, 7, 7, 7, 8, 9]
    assert len(places) <= 4


def test_an_empty_cache_unfolds_to_an_empty_one() -> None:
    cache = BeamCache(2, 3, 5)
    cache.reorder_cache(torch.tensor([0, 0]))
    assert cache.get_max_length() == -1
    assert cache.unfold().get_seq_length() == cache.get_seq_length() == 0


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_a_search_gives_back_the_cache_that_stock_code_does(combiner: str, num_beams: int) -> None:
    asked = {"return_dict_in_generate": True, "output_scores": True}  # of every step, so that no example leaves
    model, options = make(combiner), {"num_beams": num_beams, "max_new_tokens": 5, **asked}
    ours, theirs = (model.generate(**batch(), **options, fold_beams=fold).past_key_values for fold in (True, False))
    assert type(ours) is EncoderDecoderCache and type(ours.self_attention_cache) is DynamicCache
    assert len(ours.self_attention_cache) == len(theirs.self_attention_cache) == model.config.decoder_layers
    for one, other in pairs(ours.self_attention_cache, theirs.self_attention_cache):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "attention", "used"),
    [
        ({"num_beams": 3}, "eager", True),
        ({"num_beams": 3, "do_sample": True}, "eager", True),
        ({"num_beams": 3, "length_normalization": 1.0, "num_return_sequences": 2}, "eager", True),
        ({"num_beams": 1}, "sdpa", True),
        ({"num_beams": 1}, "eager", False),
        ({"num_beams": 1, "do_sample": True, "num_return_sequences": 3}, "sdpa", True),
        ({"num_beams": 1, "fold_beams": False}, "sdpa", False),
        ({"num_beams": 1, "use_cache": False}, "sdpa", False),
        ({"num_beams": 1, "cache_implementation": "static"}, "sdpa", False),
        ({"num_beams": 1, "prompt_lookup_num_tokens": 2}, "sdpa", False),
        ({"num_beams": 3, "fold_beams": False}, "eager", False),
        ({"num_beams": 3, "use_cache": False}, "eager", False),
        ({"num_beams": 3, "cache_implementation": "static"}, "eager", False),
        ({"num_beams": 3, "output_attentions": True, "return_dict_in_generate": True}, "eager", False),
    ],
)
def test_searches_use_it_wherever_nothing_else_is_asked_for(
    options: dict[str, Any], attention: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    stock = BeamCache.mask

    def mask(*args: Any) -> Tensor | None:
        calls.append(1)
        return stock(*args)

    monkeypatch.setattr(BeamCache, "mask", mask)
    model = make()
    model.set_attn_implementation(attention)
    inputs = batch(examples=[0]) if "prompt_lookup_num_tokens" in options else batch()
    model.generate(**inputs, **options, max_new_tokens=3)
    assert bool(calls) == used


def test_layers_that_were_removed_are_not_in_the_cache() -> None:
    model = make(decoder_layers=2)
    model.model.decoder.layers = model.model.decoder.layers[:1]
    for num_beams in (1, 3):
        asked = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 3, "num_beams": num_beams}
        assert len(model.generate(**batch(), **asked).past_key_values.self_attention_cache) == 1


def test_the_caches_of_an_ensemble_are_given_back_as_those_of_transformers() -> None:
    ensemble = MultiSourceEnsemble([make(), make("flat")])
    asked = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 3}
    for num_beams in (1, 3):
        cache: Any = ensemble.generate(**batch(), **asked, num_beams=num_beams).past_key_values
        assert [type(one.self_attention_cache) for one in cache.caches] == [DynamicCache] * 2


@pytest.mark.parametrize("use", ["reorder", "crop", "select"])
def test_functions_for_custom_generate_get_the_cache_of_transformers_without_beams(use: str) -> None:
    def search(model: Any, input_ids: Any, **kwargs: Any) -> Any:
        cache = kwargs["past_key_values"]
        inputs = model.prepare_inputs_for_generation(input_ids, **{k: kwargs[k] for k in kwargs if k in KEPT})
        with torch.enable_grad():
            model(**inputs).logits.sum().backward()
        own = cache.self_attention_cache
        order = torch.tensor([1, 0, 2, 3, 4])
        if use == "reorder":
            own.reorder_cache(order)
        elif use == "crop":
            own.crop(-1)
        else:
            own.batch_select_indices(order)
        return input_ids

    model = make()
    assert model.generate(**batch(), custom_generate=search, max_new_tokens=3).shape == (5, 1)


KEPT = ("encoder_outputs", "past_key_values", "use_cache", "decoder_expansion")


def test_a_cache_that_is_given_is_used() -> None:
    model = make()
    given_one = EncoderDecoderCache(DynamicCache(), DynamicCache())
    model.generate(**batch(), num_beams=3, max_new_tokens=3, past_key_values=given_one)
    assert type(given_one.self_attention_cache) is DynamicCache and given_one.get_seq_length() > 0
