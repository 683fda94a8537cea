"""The likeliest tokens of a vocabulary, and a beam search that looks at no others."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from builders import EVERY_COMBINER, first_is_best
from builders import three_source_batch as batch
from builders import three_source_model as make
from hf_multisource import inference, vocabulary
from hf_multisource.vocabulary import best_tokens, block_maxima, highest

pytestmark = pytest.mark.pairs

SEARCHES: dict[str, dict[str, Any]] = {
    "beam": {"num_beams": 4},
    "n-best": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6, "early_stopping": True},
    "normalized": {"num_beams": 4, "num_return_sequences": 3, "length_normalization": 1.0},
    "two ends": {"num_beams": 3, "eos_token_id": [1, 5]},
    "more beams than tokens": {"num_beams": 20},
    "no cache": {"num_beams": 3, "use_cache": False},
    "repeated beams": {"num_beams": 3, "fold_beams": False},
    "static cache": {"num_beams": 3, "cache_implementation": "static"},
}


@given(st.integers(1, 3), st.integers(1, 700), st.integers(1, 20), st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_the_highest_are_those_of_topk(rows: int, size: int, count: int, seed: int) -> None:
    values = torch.rand(rows, size, generator=torch.Generator().manual_seed(seed))
    count = min(count, size)
    expected = values.topk(count)
    found, places = highest(values, block_maxima(values), count)
    assert torch.equal(found, expected.values)
    assert torch.equal(values.gather(1, places), found)
    assert all(len(set(row)) == count for row in places.tolist())


def test_the_highest_may_stand_anywhere() -> None:
    """In one block, each in another, and behind all blocks: 5 blocks of 64 and 3 more."""
    for places in ([3, 1, 2], [0, 64, 319], [322, 320, 321], [63, 322, 128]):
        values = torch.zeros(1, 323)
        values[0, places] = torch.tensor([3.0, 2.0, 1.0])
        for count in (2, 3):
            assert highest(values, block_maxima(values), count)[1].tolist() == [places[:count]]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at_once", [1, 2000, 2**30])
def test_best_tokens_are_those_of_a_softmax(
    biased: bool, dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "LOGITS_AT_ONCE", at_once)
    monkeypatch.setattr(vocabulary, "LOGITS_IN_CACHE", at_once)
    torch.manual_seed(0)
    head = nn.Linear(8, 999, bias=False, dtype=dtype)
    states, bias = torch.randn(7, 8, dtype=dtype) * 9, torch.randn(999) * 3 if biased else None
    states[::2] *= 40  # too large for powers of e as they come
    logits = head(states).float() + (0.0 if bias is None else bias)
    expected = logits.log_softmax(dim=1).topk(5)
    logs, ids = best_tokens(head, bias, states, 5, 999)
    torch.testing.assert_close(logs[:, :5], expected.values, atol=2e-6, rtol=1e-5)
    assert torch.equal(logits.gather(1, ids), logits.gather(1, expected.indices))  # in bfloat16 some are equal
    assert all(len(set(row)) == 5 for row in ids.tolist())
    torch.testing.assert_close(logs.exp().sum(dim=1), torch.ones(7))
    assert logs.dtype == torch.float32


@pytest.mark.parametrize("level", [-100.0, -59.9, 0.0, 59.9, 60.1, 80.0])
@pytest.mark.parametrize("alike", [1, 999])
def test_high_and_low_logits_do_not_matter(level: float, alike: int) -> None:
    head, bias = nn.Linear(8, 999, bias=False), torch.full((999,), level - 300.0)
    bias[:alike] = level
    states = torch.zeros(2, 8)
    logs, _ = best_tokens(head, bias, states, 3, 999)
    torch.testing.assert_close(logs[:, :3], bias.log_softmax(dim=0)[:3].sort(descending=True).values.expand(2, 3))


@pytest.mark.parametrize("kind", inference.KINDS)
def test_kernels_add_the_bias_on_their_way(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as to add it after the product, without writing all logits again."""
    head: Any = nn.Linear(8, 999, bias=False)
    states, bias = torch.randn(7, 8), torch.randn(999)
    with torch.no_grad():
        head.__class__ = kind
        added = head(states) + bias
        expected = added.log_softmax(dim=1).topk(3)
        seen: list[Tensor | None] = []
        stock = vocabulary._best

        def best(logits: Tensor, bias: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
            seen.append(bias)
            return stock(logits, bias, count)

        monkeypatch.setattr(vocabulary, "_best", best)
        logs, ids = best_tokens(head, bias, states, 3, 999)
    assert seen == [None] and torch.equal(ids, expected.indices)
    torch.testing.assert_close(logs[:, :3], expected.values, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("best", [0, 500, 998])
def test_a_token_far_above_all_others_has_all_the_probability(best: int) -> None:
    """Also one that stands behind the blocks of 64."""
    bias = torch.zeros(999)
    bias[best] = 500.0
    logs, ids = best_tokens(nn.Linear(8, 999, bias=False), bias, torch.randn(2, 8), 3, 999)
    assert ids[:, 0].tolist() == [best, best]
    assert logs[:, 0].tolist() == [0.0, 0.0] and not logs[:, :3].isnan().any()


def test_a_vocabulary_of_fewer_tokens_is_given_whole() -> None:
    head = nn.Linear(4, 6)
    states = torch.randn(3, 4)
    logs, ids = best_tokens(head, None, states, 10, 6)
    assert logs.shape == (3, 7) and ids.sort(dim=1).values.tolist() == [list(range(6))] * 3
    assert logs[:, -1].exp().max() < 1e-6
    torch.testing.assert_close(logs[:, :6], head(states).log_softmax(dim=1).sort(dim=1, descending=True).values)


def test_the_models_best_tokens_are_those_of_its_logits() -> None:
    model = make()
    ids = torch.tensor([[2, 4], [2, 5], [2, 6], [2, 7], [2, 4]])
    stock = model(**batch(), decoder_input_ids=ids)
    assert stock.best_token_ids is None
    output = model(**batch(), decoder_input_ids=ids, num_best_tokens=3)
    expected = stock.logits[:, -1].log_softmax(dim=-1).topk(3)
    assert torch.equal(output.best_token_ids, expected.indices)
    torch.testing.assert_close(output.logits[:, 0, :3], expected.values, atol=1e-5, rtol=1e-5)


def watch_logits(model: Any) -> set[int]:
    """The numbers of logits that a model gives a search, filled while it searches."""
    widths, predict = set[int](), model._predict

    def watch(*args: Any) -> Any:
        found = predict(*args)
        widths.add(found[0].shape[-1])
        return found

    model._predict = watch
    return widths


@pytest.mark.parametrize("combiner", EVERY_COMBINER)
@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_that_looks_at_the_best_tokens_finds_what_one_that_looks_at_all_does(
    combiner: str, search: str
) -> None:
    """Whoever asks for scores gets them of all tokens."""
    model = make(combiner)
    looked_at = watch_logits(model)
    options = {"max_new_tokens": 7, **SEARCHES[search]}
    few = model.generate(**batch(), **options)
    many = max(2, 1 + len(options.get("eos_token_id", [1]))) * options["num_beams"]
    folded = options.get("fold_beams", True)
    assert looked_at == {min(many, 16) + 1 if folded else 16}
    looked_at.clear()
    every = model.generate(**batch(), **options, return_dict_in_generate=True, output_scores=True)
    assert looked_at == {16}
    assert torch.equal(few, every.sequences)


class Tilt:
    def __repr__(self) -> str:
        return "tilt"

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return scores + torch.arange(scores.shape[1]) / 4


@pytest.mark.parametrize(
    "options",
    [
        {"logits_processor": [Tilt()]},
        {"no_repeat_ngram_size": 2},
        {"do_sample": True},
        {"return_dict_in_generate": True, "output_logits": True},
        {"num_beams": 1},
    ],
    ids=str,
)
def test_what_reads_all_tokens_gets_all(options: dict[str, Any]) -> None:
    model = make()
    looked_at = watch_logits(model)
    model.generate(**batch(), **{"num_beams": 3, "max_new_tokens": 4, **options})
    assert looked_at == {16}


def test_two_searches_at_once_do_not_meet() -> None:
    """What a search knows is kept in its call, not in the model: here one begins within the other."""
    model = make()
    inputs = {"num_beams": 3, "max_new_tokens": 6}
    expected = model.generate(**batch(), **inputs), model.generate(**batch(examples=[3, 0]), **inputs)
    within: list[Tensor] = []

    class Begin:
        def __call__(self, ids: Tensor, scores: Any) -> Tensor:
            if ids.shape[1] == 4 and not within:
                within.append(model.generate(**batch(examples=[3, 0]), **inputs))
            return torch.zeros(len(ids), dtype=torch.bool)

    assert torch.equal(model.generate(**batch(), **inputs, stopping_criteria=[Begin()]), expected[0])
    assert torch.equal(within[0], expected[1])


LISTED = torch.tensor([13, 3, 4, 7, 1, 8, 9, 11])
SHORT_SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "samples": {"do_sample": True, "num_return_sequences": 3},
    "beam": {"num_beams": 4},
    "beam with scores": {"num_beams": 4, "output_scores": True},
    "normalized": {"num_beams": 3, "length_normalization": 1.0},
    "more beams than tokens": {"num_beams": 12},
}


@pytest.mark.parametrize("combiner", EVERY_COMBINER)
@pytest.mark.parametrize("search", SHORT_SEARCHES)
def test_a_shortlist_is_no_probability_for_all_other_tokens(combiner: str, search: str) -> None:
    """Two roads: the list, and a bias that leaves the others nothing."""
    model = make(combiner)
    options = {"max_new_tokens": 6, "return_dict_in_generate": True, **SHORT_SEARCHES[search]}
    found = []
    for shortlist in (None, LISTED, None):
        torch.manual_seed(3)
        found.append(model.generate(**batch(), **options, shortlist=shortlist))
        if shortlist is not None:
            model.final_logits_bias[:, [i for i in range(16) if i not in LISTED.tolist()]] = -1e9
    whole, short, barred = found
    assert torch.equal(short.sequences, barred.sequences)
    assert not torch.equal(short.sequences, whole.sequences)
    if "output_scores" in options:
        torch.testing.assert_close(short.sequences_scores, barred.sequences_scores, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("int8", [False, True])
def test_a_shortlist_is_computed_as_the_whole_layer_is(int8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "measure_gains", first_is_best)
    model = make()
    expected = model.generate(**batch(), num_beams=3, max_new_tokens=6, shortlist=LISTED)
    model.optimize_for_inference(int8=int8)
    short = vocabulary.Shortlist(LISTED, model.lm_head, None)
    assert type(short.layer) is type(model.lm_head) is (inference.Int8Linear if int8 else inference.OneDNNLinear)
    model.lm_head.rows = (3.0, 7.0)
    assert vocabulary.Shortlist(LISTED, model.lm_head, None).layer.rows == (3.0, 7.0)
    model.lm_head.rows = (0.0, math.inf)
    found = model.generate(**batch(), num_beams=3, max_new_tokens=6, shortlist=LISTED)
    assert int8 or torch.equal(found, expected)


@pytest.mark.parametrize("ids", [[16, 1], [-1, 1], [1, 1, 2], []])
def test_what_is_no_list_of_tokens_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="shortlist must"):
        make().generate(**batch(), shortlist=torch.tensor(ids, dtype=torch.long))
    with pytest.raises(ValueError, match="shortlist must be a tensor of token ids"):
        make().generate(**batch(), shortlist=[1, 2])


def test_a_shortlist_needs_a_plain_output_layer() -> None:
    model = make()
    model.lm_head = nn.Sequential(model.lm_head)
    with pytest.raises(TypeError, match="which is a Sequential"):
        model.generate(**batch(), shortlist=LISTED)


def test_large_output_layers_are_computed_by_onednn_where_mkl_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head, states = nn.Linear(8, 96), torch.randn(3, 8)
    used: list[str] = []

    def product(states: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        used.append("oneDNN")
        assert weight is head.weight and bias is head.bias and rest == ("none", [], "")
        return nn.functional.linear(states, weight, bias)

    monkeypatch.setattr(inference, "ONEDNN_LINEAR", product)
    monkeypatch.setattr(inference, "mkl_is_narrow", lambda: True)
    with torch.no_grad():
        expected = head(states)
        assert torch.equal(inference.output_logits(head, states), expected) and not used  # a small layer
        monkeypatch.setattr(inference, "LARGE_LAYER", head.weight.numel())
        assert torch.equal(inference.output_logits(head, states), expected) and used == ["oneDNN"]
        best = best_tokens(head, None, states, 4, 96)[1]
        assert torch.equal(best, expected.topk(4).indices) and used == ["oneDNN"] * 2
        with torch.autocast("cpu", torch.bfloat16):
            assert inference.output_logits(head, states).dtype is torch.bfloat16
        hook = head.register_forward_hook(lambda *_: torch.zeros(3, 96))
        assert not inference.output_logits(head, states).any()
        hook.remove()
        monkeypatch.setattr(inference, "mkl_is_narrow", lambda: False)
        assert torch.equal(inference.output_logits(head, states), expected) and len(used) == 2
        monkeypatch.setattr(inference, "mkl_is_narrow", lambda: True)
    inference.output_logits(head, states).sum().backward()
    assert head.weight.grad is not None and len(used) == 2


@pytest.mark.skipif(not inference.OneDNNLinear.available(), reason="this PyTorch has no oneDNN")
def test_forward_and_greedy_search_use_the_fast_output_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = make(), batch()
    starts = torch.full((len(rows["de_input_ids"]), 3), model.config.decoder_start_token_id)
    with torch.no_grad():
        logits = model(**rows, decoder_input_ids=starts).logits
    found = model.generate(**rows, max_new_tokens=6)
    used: list[torch.Size] = []
    product = inference.ONEDNN_LINEAR

    def counted(states: Tensor, *rest: Any) -> Tensor:
        used.append(states.shape)
        return product(states, *rest)

    monkeypatch.setattr(inference, "ONEDNN_LINEAR", counted)
    monkeypatch.setattr(inference, "LARGE_LAYER", 1)
    monkeypatch.setattr(inference, "mkl_is_narrow", lambda: True)
    with torch.no_grad():
        torch.testing.assert_close(model(**rows, decoder_input_ids=starts).logits, logits)
    assert len(used) == 1
    assert torch.equal(model.generate(**rows, max_new_tokens=6), found)
    assert len(used) == found.shape[1]  # one a step, after the forward pass


@pytest.mark.skipif(not inference.OneDNNLinear.available(), reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("bias", [True, False])
def test_onednn_finds_the_logits_of_the_layer(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head, states = nn.Linear(24, 130, bias=bias), torch.randn(5, 24)
    monkeypatch.setattr(inference, "LARGE_LAYER", 1)
    monkeypatch.setattr(inference, "mkl_is_narrow", lambda: True)
    with torch.no_grad():
        torch.testing.assert_close(inference.output_logits(head, states), head(states))


@pytest.mark.parametrize(
    ("found", "narrow"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_f": False}, False),
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_f": True}, False),
        ({}, False),
    ],
)
def test_mkl_is_narrow_on_processors_of_amd(found: Any, narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(inference.OneDNNLinear, "available", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    inference.mkl_is_narrow.cache_clear()
    assert inference.mkl_is_narrow() is narrow
    inference.mkl_is_narrow.cache_clear()


def test_a_cpu_of_which_pytorch_says_nothing_keeps_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    inference.mkl_is_narrow.cache_clear()
    assert inference.mkl_is_narrow() is False
    inference.mkl_is_narrow.cache_clear()
