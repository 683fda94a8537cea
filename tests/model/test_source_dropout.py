"""Sources that are taken away from examples in training."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from builders import LSTM, NAMES, PAPER_FIRST, Case, cases, three_source_batch, three_source_model, tiny_config
from hf_multisource import MultiSourceConfig, MultiSourceRNNConfig
from hf_multisource.encoders import drop_sources, keep_subsets

pytestmark = pytest.mark.pairs

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


def check_training(
    combiner: str, model: Any, take_away: Callable[[list[Tensor]], list[Tensor]], inputs: dict[str, Tensor]
) -> bool:
    """Compare with a plain model that is given only what stays; return whether different sources stay at times."""
    changed = set()
    for seed in range(4):
        torch.manual_seed(seed)
        found = loss_and_gradients(model, inputs)
        torch.manual_seed(seed)
        stay = take_away([inputs[mask].bool() for mask in MASKS.values()])
        told = {**inputs, **{mask: kept.long() for mask, kept in zip(MASKS.values(), stay, strict=True)}}
        plain = three_source_model(combiner).double().train()
        expected = loss_and_gradients(plain, told)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-11, msg=key)
        changed.add(round(found["loss"].item(), 9))
    return len(changed) > 1


@pytest.mark.parametrize("combiner", [*PAPER_FIRST, LSTM])
def test_training_sees_exactly_the_sources_that_stay(combiner: str) -> None:
    model = three_source_model(combiner, source_dropout=0.6).double().train()
    assert check_training(combiner, model, lambda masks: drop_sources(masks, [0.6] * 3), three_source_batch())


@pytest.mark.parametrize("combiner", [*PAPER_FIRST, LSTM])
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


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"source_dropout": 0.5}, {"source_subsets": {"all": 1, "each": 1}}])
def test_it_compiles_into_one_graph(how: dict[str, Any]) -> None:
    torch.compiler.reset()
    model = three_source_model(**how, decoder_layers=1).train()
    inputs = {**three_source_batch(), "labels": LABELS}
    compiled: Any = torch.compile(model, fullgraph=True, backend="eager")
    for seed in range(2):
        losses = []
        for called in (compiled, model):
            torch.manual_seed(seed)
            losses.append(called(**inputs).loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)


THREE = [torch.ones(20_000, 2).bool()] * 3
TABLE = {"all": 5, "each": 3, "en fr": 2}
SHARES = {
    (True, True, True): 0.5,
    (True, False, False): 0.1,
    (False, True, False): 0.1,
    (False, False, True): 0.1,
    (True, False, True): 0.2,
}
"""What the table means: weights are divided by their sum, and single sources share the weight of `each`."""


def test_a_table_of_subsets_is_read() -> None:
    config = tiny_config(sources=NAMES, source_subsets=TABLE)
    assert config.source_subset_table == pytest.approx(SHARES)
    assert tiny_config(sources=NAMES).source_subset_table == {}
    added = tiny_config(sources=NAMES, source_subsets={"fr de en": 1, "all": 1, "each": 6, "de": 2})
    assert added.source_subset_table == pytest.approx(
        {(True, True, True): 0.2, (True, False, False): 0.2, (False, True, False): 0.4, (False, False, True): 0.2}
    )


@pytest.mark.parametrize("combiner", ["serial", LSTM])
def test_a_table_is_saved_and_its_order_means_nothing(combiner: str, tmp_path: Path) -> None:
    config = three_source_model(combiner, source_subsets=TABLE).config
    config.save_pretrained(tmp_path)
    loaded = type(config).from_pretrained(tmp_path)
    assert loaded.source_subsets == TABLE
    turned = three_source_model(combiner, source_subsets=dict(reversed(TABLE.items()))).config
    assert list(turned.source_subset_table.items()) == list(loaded.source_subset_table.items())


def shares_of(kept: list[Tensor]) -> dict[tuple[bool, ...], float]:
    rows = Counter(map(tuple, torch.stack([mask.any(dim=1) for mask in kept], dim=1).tolist()))
    return {subset: count / len(kept[0]) for subset, count in rows.items()}


def test_subsets_come_as_often_as_the_table_says() -> None:
    torch.manual_seed(0)
    found = shares_of(keep_subsets(THREE, list(SHARES), list(SHARES.values())))
    assert found.keys() == SHARES.keys()
    chi_squared = sum((found[subset] - share) ** 2 / share for subset, share in SHARES.items()) * len(THREE[0])
    assert chi_squared < 18.5  # exceeded once in 1,000 seeds with 4 degrees of freedom


def test_the_drawn_subset_is_cut_to_what_an_example_has_and_never_empty() -> None:
    torch.manual_seed(0)
    found = shares_of(keep_subsets([THREE[0], THREE[1], ~THREE[2]], list(SHARES), list(SHARES.values())))
    # fr alone is drawn with 0.1: then an example without it keeps all that it has.
    expected = {(True, True, False): 0.6, (True, False, False): 0.3, (False, True, False): 0.1}
    assert found == pytest.approx(expected, abs=0.012)


@given(case=cases(), data=st.data())
def test_subsets_take_whole_sources_and_one_stays_where_there_was_one(case: Case, data: st.DataObject) -> None:
    torch.manual_seed(case.seed)
    masks = case.masks()
    rows = st.lists(st.booleans(), min_size=len(masks), max_size=len(masks)).map(tuple).filter(any)
    table = data.draw(st.lists(rows, min_size=1, max_size=3))
    kept = keep_subsets(masks, table, [1.0] * len(table))
    for before, after in zip(masks, kept, strict=True):
        assert torch.equal(after, before & after.any(dim=1, keepdim=True))
    had = torch.stack([mask.any(dim=1) for mask in masks], dim=1)
    has = torch.stack([mask.any(dim=1) for mask in kept], dim=1)
    for before, after in zip(had.tolist(), has.tolist(), strict=True):
        cut = [[b and s for b, s in zip(before, subset, strict=True)] for subset in table]
        assert after in [subset if any(subset) else before for subset in cut]


@pytest.mark.parametrize("combiner", [*PAPER_FIRST, LSTM])
def test_training_sees_exactly_the_drawn_subsets(combiner: str) -> None:
    model = three_source_model(combiner, source_subsets=TABLE).double().train()
    table = model.config.source_subset_table
    changed = check_training(
        combiner, model, lambda masks: keep_subsets(masks, list(table), list(table.values())), three_source_batch()
    )
    assert changed


@pytest.mark.parametrize("combiner", [*PAPER_FIRST, LSTM])
def test_no_subset_is_drawn_in_evaluation(combiner: str) -> None:
    dropping, plain = three_source_model(combiner, source_subsets={"each": 1}), three_source_model(combiner)
    inputs = three_source_batch()
    assert torch.equal(dropping(**inputs, labels=LABELS).logits, plain(**inputs, labels=LABELS).logits)


def test_subsets_of_a_batch_without_a_source() -> None:
    model = three_source_model(source_subsets={"fr": 1}).train()
    assert model(**three_source_batch(["de"], [0, 2]), labels=LABELS[:2]).loss.isfinite()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source_subsets": {}}, r"source_subsets must have at least one entry"),
        ({"source_subsets": {"en xx": 1}}, r"source_subsets\['en xx'\]: unknown source 'xx'; .* are en, de, fr"),
        ({"source_subsets": {"en en": 1}}, r"source_subsets\['en en'\] must name each source once"),
        ({"source_subsets": {" ": 1}}, r"source_subsets\[' '\] must name at least one source"),
        ({"source_subsets": {"all": 0}}, r"source_subsets\['all'\] must be in \(0, 1e\+06\]; got 0"),
        ({"source_subsets": {"all": math.nan}}, r"source_subsets\['all'\] must be in \(0, 1e\+06\]; got nan"),
        ({"source_subsets": {"all": True}}, r"'source_subsets' with value \{'all': True\}"),
        ({"source_subsets": ["all"]}, "source_subsets"),
        ({"source_subsets": {"all": 1}, "source_dropout": 0.1}, r"source_subsets and source_dropout exclude .*0\.1"),
        (
            {"source_subsets": {"all": 1}, "sources": ["en", {"name": "de", "source_dropout": 0.2}]},
            r"source_subsets and source_dropout exclude .*0\.2",
        ),
        (
            {"source_subsets": {"all": 1}, "sources": ["en", "all"]},
            "gives 'all' a meaning of its own; rename",
        ),
    ],
)
@pytest.mark.parametrize("config_class", [MultiSourceConfig, MultiSourceRNNConfig])
def test_a_table_that_means_nothing_is_refused(settings: dict[str, Any], message: str, config_class: Any) -> None:
    with pytest.raises(StrictDataclassError, match=message):
        config_class(**{"sources": NAMES, **settings})
