"""What depends on the sources alone is made once for each call of `generate`, not at every step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from builders import EVERY_COMBINER, LSTM
from builders import three_source_batch as batch
from builders import three_source_model as make
from hf_multisource import attention
from hf_multisource.attention import SourceMemory

pytestmark = pytest.mark.pairs

MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
    "samples": {"do_sample": True, "num_return_sequences": 3},
    "beam": {"num_beams": 4},
    "repeated beams": {"num_beams": 4, "fold_beams": False},
    "normalized": {"num_beams": 4, "length_normalization": 1.0},
    "assisted": {"prompt_lookup_num_tokens": 2},
}


def counted(model: Any, monkeypatch: pytest.MonkeyPatch, inputs: dict[str, Any], **options: Any) -> Counter[str]:
    """How often `generate` completes encoder outputs, and makes memories and masks of them."""
    counts: Counter[str] = Counter()

    def counting(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    with monkeypatch.context() as monkeypatch:
        counting(SourceMemory, "__post_init__")
        counting(type(model.model), "complete_encoder_outputs")
        counting(attention, "create_bidirectional_mask")
        model.generate(**inputs, **options)
    return counts


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combiner", [*EVERY_COMBINER, LSTM])
def test_sources_are_prepared_once(combiner: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(combiner)
    sources = batch(examples=[0]) if mode == "assisted" else batch()
    given: dict[str, Any] = {"encoder_outputs": model.get_encoder()(**sources)} if mode == "repeated beams" else sources
    for length in (5, 10):
        options = {"min_new_tokens": length, "max_new_tokens": length, "do_sample": False, **MODES[mode]}
        counts = counted(model, monkeypatch, given, **options)
        assert counts["__post_init__"] == 1
        assert counts["complete_encoder_outputs"] == 1 + ("encoder_outputs" in given)  # those are copied
        # one for each source, or for all joined, and each length of a query
        lengths = length if mode == "no cache" else 3 if mode == "assisted" else 1
        assert (combiner != LSTM) <= counts["create_bidirectional_mask"] <= 3 * lengths


@pytest.mark.parametrize("in_place", [True, False])
def test_encoded_sources_that_are_changed_during_generation_are_read_anew(in_place: bool) -> None:
    model = make("serial")
    sources = batch()

    def without_source_0(model: Any, input_ids: torch.Tensor, encoder_outputs: Any = None, **kwargs: Any) -> Any:
        first = encoder_outputs.attention_mask[:, : encoder_outputs.source_lengths[0]]
        if in_place:
            first.fill_(False)
        else:
            rest = encoder_outputs.attention_mask[:, first.shape[1] :]
            encoder_outputs.attention_mask = torch.cat([torch.zeros_like(first), rest], dim=1)
        return model(decoder_input_ids=input_ids, encoder_outputs=encoder_outputs).logits

    actual = model.generate(**sources, custom_generate=without_source_0)
    sources["attention_mask"] = torch.zeros_like(sources["attention_mask"])
    torch.testing.assert_close(actual, model(**sources, decoder_input_ids=torch.full((5, 1), 2)).logits)


def test_encoded_sources_of_the_user_stay_as_they_are() -> None:
    model = make("serial")
    encoded = model.get_encoder()(**batch())
    expected = model(decoder_input_ids=torch.full((5, 1), 2), encoder_outputs=encoded).logits
    states, mask, lengths = encoded.last_hidden_state.clone(), encoded.attention_mask.clone(), encoded.source_lengths
    model.generate(encoder_outputs=encoded, num_beams=2, max_new_tokens=3)
    assert torch.equal(encoded.last_hidden_state, states) and torch.equal(encoded.attention_mask, mask)
    assert encoded.source_lengths == lengths
    encoded.attention_mask[:, : encoded.source_lengths[0]] = False  # in place
    actual = model(decoder_input_ids=torch.full((5, 1), 2), encoder_outputs=encoded).logits
    assert not torch.allclose(actual, expected)
