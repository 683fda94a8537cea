"""Searching and sampling with several sources, some of them absent."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from builders import END, EVERY_COMBINER, LSTM, NAMES, PAPER_FIRST
from builders import three_source_batch as batch
from builders import three_source_model as make
from hf_multisource import COMBINERS, returned_attentions
from reference import beam_search
from searches import generate, log_probabilities, next_scores, same, shared_model

pytestmark = pytest.mark.pairs

SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "n-best": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6, "early_stopping": True},
    "normalized": {"num_beams": 4, "num_return_sequences": 3, "length_normalization": 1.0},
}
TILT = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))

of_the_transformer = pytest.mark.parametrize("combiner", PAPER_FIRST)
each_combiner = pytest.mark.parametrize("combiner", [*PAPER_FIRST, LSTM])
slowly_each_combiner = pytest.mark.parametrize("combiner", [*EVERY_COMBINER, LSTM])  # what hardly depends on it
each_norm_position = pytest.mark.parametrize("norm_position", ["pre", "post"])
each_search = pytest.mark.parametrize("search", SEARCHES)


def test_texts_differ_in_what_they_say_and_how_long_they_are() -> None:
    """Guards the tests below: they would pass on a model that always says the same."""
    lengths = set()
    for combiner, norm_position in [*itertools.product(COMBINERS, ["pre", "post"]), (LSTM, "pre")]:
        texts, _ = generate(make(combiner, norm_position=norm_position), batch(), num_beams=4, num_return_sequences=4)
        assert len({tuple(text) for text in texts[::4]}) >= (3 if norm_position == "pre" else 2)
        lengths |= {len(text) for text in texts}
    assert len(lengths) >= 5


@pytest.mark.feature("Generation", "Absent sources, others in each example of a batch")
@each_combiner
@each_norm_position
@each_search
def test_a_batch_of_mixed_absences_is_its_examples_one_by_one(combiner: str, norm_position: str, search: str) -> None:
    """Every position prefers other tokens: post-norm models repeat themselves, and permutations of a text would tie."""
    model = make(combiner, norm_position=norm_position)

    def tilt(ids: Tensor, scores: Tensor) -> Tensor:
        return scores + TILT[ids.shape[1] - 1]

    options = {**SEARCHES[search], "logits_processor": [tilt]}
    texts, scores = generate(model, batch(), **options)
    alone = [generate(model, batch(examples=[i]), **options) for i in range(5)]
    one_by_one = list(itertools.chain(*(found[0] for found in alone))), torch.cat([found[1] for found in alone])
    same((texts, scores), one_by_one)


@pytest.mark.feature("Generation", "Absent sources, others in each example of a batch")
@each_combiner
@each_search
@pytest.mark.parametrize("absent", NAMES)
def test_a_source_absent_by_keyword_or_by_mask_is_the_same(combiner: str, search: str, absent: str) -> None:
    model = make(combiner)
    prefix = "" if absent == "en" else f"{absent}_"
    examples = [0, 3] if absent == "fr" else [0, 1]
    masked = batch(examples=examples)
    masked[f"{prefix}attention_mask"][:] = 0
    left_out = {key: masked[key] for key in masked if key not in {f"{prefix}input_ids", f"{prefix}attention_mask"}}
    expected = generate(model, left_out, **SEARCHES[search])
    same(generate(model, masked, **SEARCHES[search]), expected)
    same(generate(model, {**left_out, f"{prefix}input_ids": None}, **SEARCHES[search]), expected)
    mask_only = {**left_out, f"{prefix}attention_mask": masked[f"{prefix}attention_mask"]}
    same(generate(model, mask_only, **SEARCHES[search]), expected)
    present = generate(model, batch(examples=examples), **SEARCHES[search])
    assert not torch.allclose(present[1], expected[1], atol=1e-3)


@pytest.mark.feature("Generation", "Greedy search")
@each_combiner
def test_one_beam_is_greedy_search_and_greedy_search_takes_the_best_token(combiner: str) -> None:
    model = make(combiner)
    texts, scores = generate(model, batch(), num_beams=1)
    stepwise: list[list[int]] = []
    for i in range(5):
        inputs, text, total = batch(examples=[i]), [2], 0.0
        while len(text) < 8 and text[-1] != END:
            with torch.no_grad():
                logits = model(**inputs, decoder_input_ids=torch.tensor([text])).logits[0, -1]
            text.append(int(logits.argmax()))
            total += log_softmax(logits, dim=-1).max().item()
        stepwise.append(text[1:])
        assert scores[i].item() == pytest.approx(total, abs=1e-4)
    assert texts == stepwise


@each_combiner
@each_search
def test_the_cache_changes_nothing(combiner: str, search: str) -> None:
    model = make(combiner)
    expected = generate(model, batch(), use_cache=False, **SEARCHES[search])
    same(generate(model, batch(), use_cache=True, **SEARCHES[search]), expected)
    same(generate(model, batch(), cache_implementation="static", **SEARCHES[search]), expected)


@slowly_each_combiner
@each_search
def test_encoded_sources_generate_what_raw_ones_do(combiner: str, search: str) -> None:
    model = make(combiner)
    expected = generate(model, batch(), **SEARCHES[search])
    encoded = model.get_encoder()(**batch())
    same(generate(model, {"encoder_outputs": encoded}, **SEARCHES[search]), expected)


@of_the_transformer
@each_search
def test_eager_and_sdpa_find_the_same(combiner: str, search: str) -> None:
    model = make(combiner)
    found = []
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        found.append(generate(model, batch(), **SEARCHES[search]))
    same(*found)


@slowly_each_combiner
def test_the_source_of_the_main_input_may_be_given_by_position(combiner: str) -> None:
    model, inputs = make(combiner), batch()
    expected = model.generate(**inputs, max_new_tokens=5)
    assert torch.equal(model.generate(inputs.pop("input_ids"), **inputs, max_new_tokens=5), expected)


@slowly_each_combiner
def test_labels_in_the_batch_do_not_matter(combiner: str) -> None:
    model = make(combiner)
    labels = torch.full((5, 3), 4)
    same(generate(model, {**batch(), "labels": labels}, num_beams=2), generate(model, batch(), num_beams=2))


@slowly_each_combiner
def test_a_search_can_start_from_a_beginning_of_the_target(combiner: str) -> None:
    model = make(combiner)
    start = torch.tensor([[2, 5, 6]]).expand(5, 3)
    texts, _ = generate(model, {**batch(), "decoder_input_ids": start}, num_beams=3)
    assert all(text[:2] == [5, 6] for text in texts)
    alone = [generate(model, {**batch(examples=[i]), "decoder_input_ids": start[:1]}, num_beams=3) for i in range(5)]
    assert texts == [ids for text, _ in alone for ids in text]


@pytest.mark.feature("Generation", "Sampling")
@slowly_each_combiner
def test_sampling_follows_the_models_probabilities_and_the_seed(combiner: str) -> None:
    model, inputs = make(combiner), batch(examples=[0, 2])
    search = {"do_sample": True, "num_return_sequences": 300, "max_new_tokens": 1, "top_k": 0}
    torch.manual_seed(3)
    texts, _ = generate(model, inputs, **search)
    torch.manual_seed(3)
    assert generate(model, inputs, **search)[0] == texts
    torch.manual_seed(4)
    assert generate(model, inputs, **search)[0] != texts
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=torch.full((2, 1), 2)).logits[:, 0].softmax(-1)
    for row in range(2):
        drawn = torch.tensor(texts[300 * row : 300 * (row + 1)])[:, 0]
        frequencies = torch.bincount(drawn, minlength=16) / 300
        assert (frequencies - expected[row]).abs().max() < 0.1  # over three standard deviations


@pytest.mark.feature("Generation", "Beam sampling")
@slowly_each_combiner
def test_sampled_beams_are_repeatable(combiner: str) -> None:
    model = make(combiner)
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        found.append(generate(model, batch(), do_sample=True, num_beams=3))
    same(*found)


@slowly_each_combiner
def test_the_n_best_are_distinct_and_sorted_and_their_scores_are_the_models(combiner: str) -> None:
    model = make(combiner)
    texts, scores = generate(model, batch(), num_beams=4, num_return_sequences=4, length_penalty=0.7)
    assert len(texts) == 20
    for i in range(5):
        best, values = texts[4 * i : 4 * i + 4], scores[4 * i : 4 * i + 4].tolist()
        assert len(set(map(tuple, best))) == 4
        assert values == sorted(values, reverse=True)
        found = log_probabilities(model, batch(examples=[i]), best)
        expected = [total / len(text) ** 0.7 for total, text in zip(found, best, strict=True)]
        assert values == pytest.approx(expected, abs=1e-4)


@slowly_each_combiner
def test_a_wide_beam_finds_the_best_of_all_texts(combiner: str) -> None:
    model = make(combiner, vocab_size=6)
    model.final_logits_bias.zero_()
    rows = {"input_ids": torch.tensor([[4, 5, 1], [3, 1, 0]]), "fr_input_ids": torch.tensor([[0, 0], [5, 1]])}
    search = {"num_beams": 36, "max_new_tokens": 3, "early_stopping": "never", "length_penalty": 0.0}
    texts, scores = generate(model, rows, **search)
    open_tokens = [token for token in range(6) if token != END]
    every = [(*head, END) for n in range(3) for head in itertools.product(open_tokens, repeat=n)]
    every += list(itertools.product(open_tokens, repeat=3))
    assert len(every) == 1 + 5 + 25 + 125
    for i in range(2):
        inputs = {key: value[i : i + 1] for key, value in rows.items()}
        total, best = max(zip(log_probabilities(model, inputs, every), every, strict=True))
        assert texts[i] == list(best)
        assert scores[i].item() == pytest.approx(total, abs=1e-4)


@pytest.mark.feature("Generation", "Beam search")
@each_combiner
@pytest.mark.parametrize("num_beams", [3, 4])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_beam_search_is_a_naive_beam_search(combiner: str, num_beams: int, penalty: float) -> None:
    search = {"num_beams": num_beams, "num_return_sequences": num_beams, "length_penalty": penalty}
    texts, scores = generate(shared_model(combiner), batch(), max_new_tokens=6, early_stopping=True, **search)
    for i in range(5):
        expected = beam_search(next_scores(combiner, i), num_beams, penalty, 6, {END})
        rows = slice(num_beams * i, num_beams * (i + 1))
        assert texts[rows] == [list(text) for text, _ in expected]
        assert scores[rows].tolist() == pytest.approx([score for _, score in expected], abs=1e-4)


# What is refused


@pytest.mark.parametrize("num_beams", [1, 3])
def test_sources_of_unequal_batch_sizes_are_refused_by_name(num_beams: int) -> None:
    inputs = {**batch(["en"], [0, 3]), **batch(["de"], [0, 2, 3]), **batch(["fr"], [0, 1])}
    with pytest.raises(ValueError, match=r"all sources must have the same batch size; got en: 2, de: 3, fr: 2"):
        make().generate(**inputs, num_beams=num_beams)


@pytest.mark.feature("Generation", "generate without sources raises an error (Transformers encodes a start token)")
def test_no_source_at_all_is_refused() -> None:
    model = make()
    for inputs in ({}, {"attention_mask": torch.ones(1, 2)}, {"labels": torch.ones(1, 2, dtype=torch.long)}):
        with pytest.raises(ValueError, match=r"no source is given.*en, de, fr"):
            model.generate(**inputs, max_new_tokens=3)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_examples_without_any_source_are_refused_by_number(num_beams: int) -> None:
    inputs = batch()
    for prefix in ("", "de_", "fr_"):
        inputs[f"{prefix}attention_mask"][[1, 3]] = 0
    with pytest.raises(ValueError, match=r"at least one source.*\[1, 3\]"):
        make().generate(**inputs, num_beams=num_beams)
    del inputs["input_ids"]
    with pytest.raises(ValueError, match=r"at least one source.*\[1, 3, 4\]"):
        make().generate(**inputs, num_beams=num_beams)
    padding = {"input_ids": torch.tensor([[4, 1], [0, 0]]), "de_input_ids": torch.tensor([[0], [0]])}
    with pytest.raises(ValueError, match=r"at least one source.*\[1\]"):
        make().generate(**padding, num_beams=num_beams)


def test_encoded_examples_without_any_source_are_refused_by_number_too() -> None:
    model, inputs = make(), batch(["en"])  # example 2 has no English
    with pytest.raises(ValueError, match=r"at least one source.*\[2\]"):
        model.generate(encoder_outputs=model.get_encoder()(**inputs), max_new_tokens=3)


@pytest.mark.parametrize("keyword", ["de_input_id", "es_input_ids", "en_input_ids", "num_beam"])
def test_a_misspelled_keyword_is_refused_by_name(keyword: str) -> None:
    with pytest.raises(ValueError, match=keyword):
        make().generate(**batch(), **{keyword: torch.ones(5, 1, dtype=torch.long)})


# What comes beside the text


@pytest.mark.feature("Generation", "Attentions of every source, in what generate returns")
@of_the_transformer
@pytest.mark.parametrize("num_beams", [1, 4])
def test_attentions_of_every_source_come_through_generate(combiner: str, num_beams: int) -> None:
    model = make(combiner)
    model.set_attn_implementation("eager")
    output = model.generate(
        **batch(), num_beams=num_beams, max_new_tokens=3, output_attentions=True, return_dict_in_generate=True
    )
    mask = torch.cat([batch()[key] for key in ("attention_mask", "de_attention_mask", "fr_attention_mask")], dim=1)
    mask = mask.bool().repeat_interleave(num_beams, dim=0)[:, None, None]
    for step in output.cross_attentions:
        assert [weights.shape for weights in step] == [(5 * num_beams, 2, 1, 12)] * 2
        for weights in step:
            assert not weights[~mask.expand_as(weights)].any()
            sums = torch.stack([block.sum(-1) for block in weights.split((4, 3, 5), dim=-1)], dim=-1)
            present = torch.stack([block.any(-1) for block in mask.split((4, 3, 5), dim=-1)], dim=-1).float()
            if COMBINERS[combiner].joint_weights:
                torch.testing.assert_close(sums.sum(-1), torch.ones_like(sums[..., 0]))
            else:
                torch.testing.assert_close(sums, present.expand_as(sums))


@pytest.mark.feature("Generation", "Lengths of the sources and weights over them, in what generate returns")
@of_the_transformer
@pytest.mark.parametrize("num_beams", [1, 4])
def test_weights_over_sources_come_through_generate(combiner: str, num_beams: int) -> None:
    model = make(combiner).double()  # its scores are so large that float32 may differ in the fourth digit
    search = {"max_new_tokens": 4, "num_beams": num_beams, "output_attentions": True, "return_dict_in_generate": True}
    output = model.generate(**batch(), **search)
    assert output.source_lengths == (4, 3, 5)
    if not COMBINERS[combiner].weighs_sources:
        assert "source_weights" not in output
        return
    found = returned_attentions(output.source_weights, output.get("beam_indices"))  # (B, L, H, T, n)
    forced = model(**batch(), decoder_input_ids=output.sequences[:, :-1], output_attentions=True)
    for row, text in enumerate(output.sequences[:, 1:].tolist()):
        length = text.index(END) + 1 if END in text else len(text)  # behind it a beam goes on as another
        for layer, expected in enumerate(forced.source_weights):
            torch.testing.assert_close(found[row, layer, :, :length], expected[row, :, :length], atol=1e-5, rtol=1e-5)


def test_a_model_of_one_source_returns_what_an_ordinary_one_does() -> None:
    model = make("hierarchical", sources=["en"])
    output = model.generate(
        **batch(["en"], [0, 1]), max_new_tokens=2, output_attentions=True, return_dict_in_generate=True
    )
    assert "source_lengths" not in output and "source_weights" not in output


@slowly_each_combiner
def test_a_length_penalty_below_zero_prefers_short_texts(combiner: str) -> None:
    """Also guards the penalties above: if they changed nothing, agreeing on them would prove nothing."""
    short, long = (generate(make(combiner), batch(), num_beams=4, length_penalty=p)[0] for p in (-4.0, 4.0))
    assert sum(map(len, short)) < sum(map(len, long))


def test_numbers_of_beams_may_be_integers_of_numpy_and_are_at_least_1() -> None:
    model, options = make("flat"), {"max_new_tokens": 4, "do_sample": False}
    numbers: Any = {"num_beams": np.int64(3), "num_return_sequences": np.int64(2)}
    expected = model.generate(**batch(), **options, num_beams=3, num_return_sequences=2)
    assert torch.equal(model.generate(**batch(), **options, **numbers), expected)
    for wrong in (0, -1, 2.0):
        with pytest.raises(ValueError, match=f"num_beams is {wrong}; it must be a whole number of at least 1"):
            model.generate(**batch(), **options, num_beams=wrong)
