"""Beams that share their sources: the same texts, from one copy of every source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.cache_utils import CacheLayerMixin
from transformers.modeling_outputs import BaseModelOutput

from builders import EVERY_COMBINER, NAMES, PAPER_FIRST
from builders import three_source_batch as batch
from builders import three_source_model as make
from hf_multisource import MultiSourceForConditionalGeneration
from searches import SEARCHES, generate, same

pytestmark = pytest.mark.pairs

each_combiner = pytest.mark.parametrize("combiner", PAPER_FIRST)
slowly_each_combiner = pytest.mark.parametrize("combiner", EVERY_COMBINER)  # what hardly depends on it
each_search = pytest.mark.parametrize("search", SEARCHES)


def both(model: Any, inputs: dict[str, Any], **search: Any) -> list[tuple[list[list[int]], Tensor]]:
    """What is found with beams folded, and repeated."""
    found = []
    for fold in (True, False):
        torch.manual_seed(7)
        found.append(generate(model, inputs, fold_beams=fold, **search))
    return found


@pytest.mark.feature("Generation", "Beams that share their sources")
@each_combiner
@each_search
def test_folded_beams_find_what_repeated_ones_do(combiner: str, search: str) -> None:
    same(*both(make(combiner), batch(), **SEARCHES[search]))


@slowly_each_combiner
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_norm_and_attention_do_not_matter(combiner: str, norm_position: str, attention: str) -> None:
    model = make(combiner, norm_position=norm_position)
    model.set_attn_implementation(attention)
    same(*both(model, batch(), num_beams=4))


@slowly_each_combiner
def test_a_beginning_of_the_target_is_folded_too(combiner: str) -> None:
    start = torch.tensor([[2, 5, 6], [2, 7, 4], [2, 4, 4], [2, 6, 5], [2, 5, 5]])
    mask = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]])
    inputs = {**batch(), "decoder_input_ids": start, "decoder_attention_mask": mask}
    found = [model_output(make(combiner), inputs, fold) for fold in (True, False)]
    assert torch.equal(found[0].sequences, found[1].sequences)
    torch.testing.assert_close(found[0].sequences_scores, found[1].sequences_scores)


def test_a_beginning_may_be_read_by_parts() -> None:
    start = torch.tensor([[2, 5, 6, 7, 4, 4, 5]] * 5)
    mask = torch.tensor([[1] * 7, [0] * 3 + [1] * 4, [0] + [1] * 6, [1] * 7, [0] * 5 + [1] * 2])
    inputs = {**batch(), "decoder_input_ids": start, "decoder_attention_mask": mask}
    expected = generate(make(), inputs, num_beams=3, fold_beams=False)
    same(generate(make(), inputs, num_beams=3, prefill_chunk_size=2), expected)


def test_in_training_beams_are_searched_for_too() -> None:
    """Checkpointing takes caches away from the layers."""
    model = make(dropout=0.0)
    expected = model.generate(**batch(), num_beams=3, max_new_tokens=4, use_cache=False)
    model.gradient_checkpointing_enable()
    model.train()
    assert torch.equal(model.generate(**batch(), num_beams=3, max_new_tokens=4, use_cache=False), expected)
    assert model.generate(**batch(), num_beams=3, max_new_tokens=4).shape[0] == 5


def model_output(model: Any, inputs: dict[str, Any], fold: bool) -> Any:
    return model.generate(
        **inputs, num_beams=3, max_new_tokens=5, fold_beams=fold, output_scores=True, return_dict_in_generate=True
    )


@slowly_each_combiner
def test_encoded_sources_are_not_changed_by_a_search(combiner: str) -> None:
    model = make(combiner)
    encoded = model.get_encoder()(**batch())
    shapes = [value.shape for value in (encoded.last_hidden_state, encoded.attention_mask)]
    same(*both(model, {"encoder_outputs": encoded}, num_beams=3))
    same(*both(model, {"encoder_outputs": encoded}, num_beams=3))
    assert [value.shape for value in (encoded.last_hidden_state, encoded.attention_mask)] == shapes


@each_combiner
def test_attentions_come_out_of_folded_beams_as_of_repeated_ones(combiner: str) -> None:
    model = make(combiner)
    model.set_attn_implementation("eager")
    outputs = [
        model.generate(
            **batch(),
            num_beams=3,
            max_new_tokens=4,
            fold_beams=fold,
            output_attentions=True,
            return_dict_in_generate=True,
        )
        for fold in (True, False)
    ]
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    for key in ("cross_attentions", "source_weights", "decoder_attentions"):
        assert (key in outputs[0]) == (key in outputs[1])
        for ours, theirs in zip(outputs[0].get(key, ()), outputs[1].get(key, ()), strict=True):
            for one, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.feature("Generation", "Beams that share their sources")
@each_combiner
@pytest.mark.parametrize("search", ["beam", "samples", "static cache"])
def test_sources_are_projected_and_kept_once_however_many_beams_there_are(combiner: str, search: str) -> None:
    """The rows that come out of the projections of all cross-attentions, and the rows that the cache keeps."""
    model = make(combiner)
    rows: list[int] = []
    for name, module in model.named_modules():
        if "cross_attn" in name and name.endswith(("k_proj", "v_proj")) and "hierarchy" not in name:
            module.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    counts, kept = [], []
    for many in (1, 2, 5):
        options = {
            key: many if isinstance(value, int) and value > 1 else value for key, value in SEARCHES[search].items()
        }
        output = model.generate(
            **batch(), **options, max_new_tokens=4, return_dict_in_generate=True, output_scores=True
        )
        counts.append(sorted(rows))
        rows.clear()
        kept += [len(layer.keys) for layer in output.past_key_values.cross_attention_cache.layers]
        assert len(output.past_key_values.self_attention_cache.layers[0].keys) == 5 * many
    assert counts[0] == counts[1] == counts[2]
    assert set(counts[0]) == set(kept) == {5}


@pytest.mark.parametrize("fold", [True, False])
def test_what_is_kept_of_the_sources_is_never_reordered(fold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where beams share it nor where each has a copy: the copies of an example are equal."""
    reordered: list[Any] = []
    stock = CacheLayerMixin.reorder_cache

    def reorder(layer: Any, at: torch.LongTensor) -> None:
        reordered.append(layer)
        stock(layer, at)

    monkeypatch.setattr(CacheLayerMixin, "reorder_cache", reorder)
    output = make().generate(**batch(), num_beams=3, max_new_tokens=4, fold_beams=fold, return_dict_in_generate=True)
    own = [] if fold else output.past_key_values.self_attention_cache.layers
    assert {id(layer) for layer in reordered} == {id(layer) for layer in own}


@slowly_each_combiner
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_several_targets_can_be_scored_on_one_copy_of_their_sources(combiner: str, attention: str) -> None:
    """`decoder_expansion` in a plain call, with gradients."""
    model = make(combiner)
    model.set_attn_implementation(attention)
    labels = torch.randint(3, 12, (10, 4), generator=torch.Generator().manual_seed(1))
    repeated = {key: value.repeat_interleave(2, dim=0) for key, value in batch().items()}
    gradients = []
    outputs = []
    for inputs in ({**batch(), "decoder_expansion": 2}, repeated):
        model.zero_grad()
        output = model(**inputs, labels=labels, output_attentions=attention == "eager")
        output.loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        outputs.append(output)
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-4, rtol=1e-4)
    if attention == "eager":
        torch.testing.assert_close(outputs[0].cross_attentions, outputs[1].cross_attentions, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("expansion", [{}, {"decoder_expansion": 3}])
def test_other_numbers_of_rows_are_refused(expansion: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"10 rows for 5 examples and decoder_expansion=[13]"):
        make()(**batch(), decoder_input_ids=torch.full((10, 2), 2), **expansion)


def test_the_mask_beside_another_encoders_output_is_read() -> None:
    """Which encoders of Transformers return no mask; it was once dropped."""
    model = make(sources=["en"])
    inputs = batch(["en"], [0, 1])
    assert not inputs["attention_mask"].all()
    states = model.get_encoder()(**inputs).last_hidden_state
    other = {"encoder_outputs": BaseModelOutput(last_hidden_state=states), "attention_mask": inputs["attention_mask"]}
    for beams in (1, 3):
        expected = generate(model, inputs, num_beams=beams)
        same(generate(model, other, num_beams=beams), expected)
        same(generate(model, other, num_beams=beams, fold_beams=False), expected)


def test_the_option_is_kept_in_the_generation_config(tmp_path: Any) -> None:
    model = make()
    model.generation_config.fold_beams = False
    model.save_pretrained(tmp_path)
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).to_dict()["fold_beams"] is False
    search = {"num_beams": 2, "max_new_tokens": 2, "return_dict_in_generate": True, "output_scores": True}
    assert rows_kept(loaded.generate(**batch(), **search)) == 10
    assert rows_kept(loaded.generate(**batch(), fold_beams=True, **search)) == 5


def rows_kept(output: Any) -> int:
    return len(output.past_key_values.cross_attention_cache.layers[0].keys)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"fold_beams is .*True or False"):
        make().generate(**batch(), num_beams=2, fold_beams=value)


@pytest.mark.parametrize("fold", [True, False])
def test_every_source_is_encoded_once(fold: bool) -> None:
    model: Any = make()
    seen: list[int] = []
    for name in NAMES:
        encoder: nn.Module = model.get_encoder().sources[name]
        encoder.register_forward_hook(lambda module, args, output: seen.append(len(output.last_hidden_state)))
    model.generate(**batch(), num_beams=3, max_new_tokens=3, fold_beams=fold)
    assert seen == [5, 5, 5]
