"""Parts of a model on several devices, replicas of it, and narrow data types, as far as a CPU can show them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import BertConfig

from builders import END, LSTM, three_source_model, tiny_config
from hf_multisource import MultiSourceForConditionalGeneration
from hf_multisource.encoders import EncodedSource
from hf_multisource.layers import LearnedPositions
from hf_multisource.loss import linear_cross_entropy
from hf_multisource.modeling_multisource_rnn import EncodedRNNSource
from hf_multisource.vocabulary import best_tokens

IDS = torch.tensor([[5, 6, 7, 1], [5, 6, 1, 0]])
MASK = IDS.ne(0).long()
TEXT = {"input_ids": IDS, "attention_mask": MASK}
BERT = BertConfig(
    vocab_size=3000,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
FEATURES = {"name": "image", "kind": "features", "feature_size": 6}


def make(*sources: Any, combiner: str = "serial", **fields: Any) -> Any:
    torch.manual_seed(0)
    return MultiSourceForConditionalGeneration(tiny_config(combiner, sources, **fields)).eval()


# Two devices: operations on tensors of different devices fail, of fake tensors, too.


def test_states_of_encoders_on_two_devices_are_joined_on_the_first() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        encoded = {
            name: EncodedSource(
                last_hidden_state=torch.empty(2, 4, 8, device=device),
                attention_mask=torch.empty(2, 4, dtype=torch.bool, device=device),
            )
            for name, device in (("en", "meta"), ("de", "cpu"))
        }
        joined = make("en", "de", absent_vectors=True).get_encoder().join(encoded)
        assert joined.last_hidden_state.device == joined.attention_mask.device == torch.device("meta")
        assert joined.last_hidden_state.shape == (2, 8, 8)


def test_final_states_of_lstms_on_two_devices_are_combined_on_the_first() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        encoder = three_source_model(LSTM).get_encoder()
        layers, width = encoder.config.num_layers, encoder.config.d_model
        encoded = {
            name: EncodedRNNSource(
                last_hidden_state=torch.empty(2, 4, width, device=device),
                attention_mask=torch.empty(2, 4, dtype=torch.bool, device=device),
                final_hidden=torch.empty(2, layers, width, device=device),
                final_cell=torch.empty(2, layers, width, device=device),
            )
            for name, device in (("en", "cpu"), ("de", "meta"), ("fr", "cpu"))
        }
        joined = encoder.join(encoded)
        assert joined.initial_state.device == joined.last_hidden_state.device == torch.device("cpu")


def test_positions_come_from_the_device_of_their_table() -> None:
    with FakeTensorMode():
        assert LearnedPositions(10, 8)(2, 3, torch.device("meta")).device == torch.device("meta")


def test_a_bias_of_the_logits_may_lie_on_another_device() -> None:
    states, weight = torch.randn(3, 8), torch.randn(16, 8)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor
        bias = fake(torch.zeros(1, 16)).to("meta")
        model = make("en", final_logits_bias=True)
        model.final_logits_bias = bias
        assert model._predict(fake(states)[None], 0, None)[0].device.type == "cpu"
        loss = linear_cross_entropy(fake(states), fake(weight), bias[0], torch.tensor([1, 2, 3]))
        assert loss.device.type == "cpu"
        assert best_tokens(model.lm_head, bias[0], fake(states), 2, 16)[0].device.type == "cpu"


# Replicas as `torch.nn.DataParallel` makes them: their weights are attributes, and they have no parameters.


def replica(module: nn.Module) -> Any:
    copies: dict[nn.Module, Any] = {one: one._replicate_for_data_parallel() for one in module.modules()}
    for one, copied in copies.items():
        for name, child in one._modules.items():
            copied._modules[name] = None if child is None else copies[child]
        for name, weight in one._parameters.items():
            if weight is None:
                copied._parameters[name] = None
            else:
                setattr(copied, name, weight * 1)
        for name, value in one._buffers.items():
            copied._buffers[name] = value
    return copies[module]


@pytest.mark.parametrize("kind", ["features", "wrapped", "no columns"])
def test_a_replica_of_a_model_computes_the_same(kind: str) -> None:
    if kind == "features":
        model = make("en", FEATURES)
        inputs: dict[str, Tensor] = {"image_input_features": torch.randn(2, 4, 6)}
    elif kind == "wrapped":
        model = make("en", {"name": "context", "kind": "pretrained", "encoder": BERT})
        inputs = {"context_input_ids": IDS, "context_attention_mask": MASK}
    else:
        model = make("en", "de")
        inputs = {"de_input_ids": IDS[:, :0], "de_attention_mask": MASK[:, :0]}
    model.train()
    expected = model(**TEXT, **inputs, labels=IDS).loss
    copied = replica(model)
    assert not list(copied.parameters())
    torch.testing.assert_close(copied(**TEXT, **inputs, labels=IDS).loss, expected)


# Narrow types


@pytest.mark.parametrize("combiner", ["serial", "flat", "flat_normed"])
def test_a_source_that_no_example_has_leaves_no_trace_in_float16(combiner: str) -> None:
    model = make("en", {"name": "context", "kind": "pretrained", "encoder": BERT}, combiner=combiner)
    table = model.get_encoder().sources["context"].model.embeddings.word_embeddings.weight
    with torch.no_grad():
        table.fill_(-4.0)  # the sum of 48,000 of these is outside the range of float16
    model = model.half()
    absent = {"context_input_ids": IDS * 0, "context_attention_mask": MASK * 0}
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            expected = model(**TEXT, decoder_input_ids=IDS).logits
            assert expected.isfinite().all()
            torch.testing.assert_close(model(**TEXT, **absent, decoder_input_ids=IDS).logits, expected)


def test_a_shortlist_with_a_bias_works_under_autocast() -> None:
    model = make("en", final_logits_bias=True)
    model.final_logits_bias.normal_()
    ids = torch.tensor([END, 5, 6, 7])
    with torch.autocast("cpu", torch.bfloat16):
        texts = model.generate(**TEXT, shortlist=ids, max_new_tokens=6)
    assert {*texts[:, 1:].flatten().tolist()} <= {*ids.tolist(), model.config.pad_token_id}


# Requests of the configuration


@pytest.mark.parametrize("kind", ["hidden_states", "attentions"])
def test_states_that_the_configuration_asks_for_are_those_of_a_request(kind: str) -> None:
    model = make("en", {"name": "de", "share_encoder_with": "en"})
    if kind == "attentions":
        model.set_attn_implementation("eager")
    inputs = {**TEXT, "de_input_ids": IDS, "de_attention_mask": MASK, "decoder_input_ids": IDS}
    expected = model(**inputs, **{f"output_{kind}": True})[f"encoder_{kind}"]
    setattr(model.config, f"output_{kind}", True)
    found = model(**inputs)[f"encoder_{kind}"]
    assert expected and [one.shape for one in found] == [one.shape for one in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
