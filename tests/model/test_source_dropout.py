"""Sources that are taken away from examples in training."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given
from torch import Tensor

from builders import LSTM, NAMES, Case, cases, three_source_batch, three_source_model, tiny_config
from hf_multisource import COMBINERS, MultiSourceConfig
from hf_multisource.encoders import drop_sources

LABELS = torch.tensor([[5, 9, 1], [6, 1, -100], [7, 1, -100], [8, 8, 1], [9, 1, -100]])
MASKS = {"en": "attention_mask", "de": "de_attention_mask", "fr": "fr_attention_mask"}


@given(case=cases())
def test_whole_sources_go_and_one_stays_where_there_was_one(case: Case) -> None:
    torch.manual_seed(case.seed)
    masks = case.masks()
    dropped = drop_sources(masks, [0.7] * len(masks))
    for before, after in zip(masks, dropped, strict=True):
        gone = ~after.any(dim=1, keepdim=True)
        assert torch.equal(after, before & ~gone)
    had, has = (torch.stack([mask.any(dim=1) for mask in some], dim=1).any(dim=1) for some in (masks, dropped))
    assert torch.equal(had, has)


def expected_share(subset: tuple[bool, ...], probabilities: tuple[float, ...]) -> float:
    """How often exactly these sources stay: each goes on its own, and if all would go, one stays, each as often."""
    share = 1.0
    for stays, probability in zip(subset, probabilities, strict=True):
        share *= 1 - probability if stays else probability
    if not any(subset):
        return 0.0
    none = torch.tensor(probabilities).prod().item()
    return share + (none / len(subset) if sum(subset) == 1 else 0.0)


@pytest.mark.parametrize("probabilities", [(0.5, 0.5, 0.5), (0.0, 0.9, 0.2), (0.8, 0.6, 0.9)])
def test_every_subset_comes_as_often_as_it_should(probabilities: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    number = 40_000
    kept = torch.stack([m[:, 0] for m in drop_sources([torch.ones(number, 2).bool()] * 3, probabilities)], dim=1)
    found = Counter(map(tuple, kept.tolist()))
    for subset in itertools.product([False, True], repeat=3):
        assert found[subset] / number == pytest.approx(expected_share(subset, probabilities), abs=0.01), subset


def test_of_what_an_example_has_each_is_the_last_as_often() -> None:
    torch.manual_seed(0)
    masks = [torch.ones(20_000, 1).bool(), torch.zeros(20_000, 1).bool(), torch.ones(20_000, 1).bool()]
    kept = [mask.float().mean().item() for mask in drop_sources(masks, [0.999] * 3)]
    assert kept == pytest.approx([0.5, 0.0, 0.5], abs=0.02)


def loss_and_gradients(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss = model(**inputs, labels=LABELS).loss
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize("combiner", [*COMBINERS, LSTM])
def test_training_sees_exactly_the_sources_that_stay(combiner: str) -> None:
    model = three_source_model(combiner, source_dropout=0.6).double().train()
    inputs, changed = three_source_batch(), set()
    for seed in range(4):
        torch.manual_seed(seed)
        found = loss_and_gradients(model, inputs)
        torch.manual_seed(seed)
        stay = drop_sources([inputs[mask].bool() for mask in MASKS.values()], [0.6] * 3)
        told = {**inputs, **{mask: kept.long() for mask, kept in zip(MASKS.values(), stay, strict=True)}}
        plain = three_source_model(combiner).double().train()
        expected = loss_and_gradients(plain, told)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-11, msg=key)
        changed.add(round(found["loss"].item(), 9))
    assert len(changed) > 1


@pytest.mark.parametrize("combiner", [*COMBINERS, LSTM])
def test_nothing_goes_in_evaluation(combiner: str) -> None:
    dropping, plain = three_source_model(combiner, source_dropout=0.9), three_source_model(combiner)
    inputs = three_source_batch()
    assert torch.equal(dropping(**inputs, labels=LABELS).logits, plain(**inputs, labels=LABELS).logits)
    for num_beams in (1, 4):
        texts = [model.generate(**inputs, num_beams=num_beams, max_new_tokens=6) for model in (dropping, plain)]
        assert torch.equal(*texts)


def test_a_source_may_have_a_probability_of_its_own() -> None:
    sources = ["en", {"name": "de", "source_dropout": 0.5}, {"name": "fr", "share_encoder_with": "en"}]
    sources[2]["source_dropout"] = 0.0  # type: ignore[index]
    config = tiny_config(sources=sources, source_dropout=0.1)
    assert config.source_dropouts == (0.1, 0.5, 0.0)
    assert MultiSourceConfig.from_dict(config.to_dict()).source_dropouts == (0.1, 0.5, 0.0)


@pytest.mark.parametrize("probability", [-0.1, 1.0])
def test_a_probability_that_is_none_is_refused(probability: float) -> None:
    with pytest.raises(StrictDataclassError, match=rf"source_dropout must be in \[0, 1\); got {probability}"):
        tiny_config(sources=NAMES, source_dropout=probability)
    with pytest.raises(
        StrictDataclassError, match=rf"sources\[en\]\.source_dropout must be in \[0, 1\); got {probability}"
    ):
        tiny_config(sources=[{"name": "en", "source_dropout": probability}])


def test_a_batch_without_a_source_needs_none_to_lose() -> None:
    model = three_source_model(source_dropout=0.9).train()
    torch.manual_seed(0)
    output = model(**three_source_batch(["de"], [0, 2]), labels=LABELS[:2])
    assert output.loss.isfinite()


def test_it_compiles_into_one_graph() -> None:
    model = three_source_model(source_dropout=0.5, decoder_layers=1).train()
    inputs = {**three_source_batch(), "labels": LABELS}
    compiled: Any = torch.compile(model, fullgraph=True, backend="eager")
    for seed in range(2):
        losses = []
        for called in (compiled, model):
            torch.manual_seed(seed)
            losses.append(called(**inputs).loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
