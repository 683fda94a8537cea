"""In training on a CPU nothing is computed for padding and absent sources, and the result is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builders import tiny_config
from hf_multisource import (
    COMBINERS,
    MultiSourceForConditionalGeneration,
    combiners,
    encoders,
    modeling_multisource,
    packing,
)
from hf_multisource.attention import eager_attention_forward
from hf_multisource.dropout import LEVELS, dropout
from hf_multisource.packing import Packing, examples_with, indices_of, pack_if_padded, packing_pays

pytestmark = pytest.mark.pairs

LENGTHS = {"": (5, 1, 2, 3, 0, 4), "de_": (7, 4, 0, 2, 6, 1), "fr_": (0, 0, 1, 0, 3, 0)}


def padded_batch(seed: int = 0) -> dict[str, Tensor]:
    """Six examples of three sources of unequal lengths; each source is absent in some of them."""
    torch.manual_seed(seed)
    batch: dict[str, Tensor] = {"labels": torch.randint(3, 20, (6, 4))}
    for prefix, lengths in LENGTHS.items():
        longest = max(lengths)
        batch[f"{prefix}input_ids"] = torch.randint(3, 20, (6, longest))
        batch[f"{prefix}attention_mask"] = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    return batch


def model_of(combiner: str, **fields: Any) -> MultiSourceForConditionalGeneration:
    torch.manual_seed(1)
    sources = ["en", {"name": "de", "share_encoder_with": "en"}, "fr"]
    return MultiSourceForConditionalGeneration(tiny_config(combiner, sources, vocab_size=20, **fields)).double().train()


def gradients(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """The loss, and the gradient of every parameter."""
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return {"loss": loss.detach(), **{name: one.grad for name, one in model.named_parameters()}}


def round_up_to(monkeypatch: pytest.MonkeyPatch, positions: int, examples: int) -> None:
    monkeypatch.setattr(packing, "POSITIONS", positions)
    monkeypatch.setattr(packing, "EXAMPLES", examples)


@pytest.mark.parametrize("multiples", [(1, 1), (4, 2), (64, 8)])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_loss_and_gradients_are_those_of_the_padded_computation(
    combiner: str, attention: str, multiples: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = model_of(combiner, attn_implementation=attention, source_embeddings=True), padded_batch()
    round_up_to(monkeypatch, *multiples)
    packed = gradients(model, batch)
    for module in (encoders, combiners, modeling_multisource):
        monkeypatch.setattr(module, "packing_pays", lambda states, training: False)
    padded = gradients(model, batch)
    for name, expected in padded.items():
        found = packed[name]
        assert (found is None) == (expected is None), name
        if found is not None and expected is not None:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_autocast_computes_nothing_for_padding_and_absent_sources_either(
    combiner: str, norm_position: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"attn_implementation": attention, "norm_position": norm_position}
    model, batch = model_of(combiner, source_embeddings=True, **fields).float(), padded_batch()
    expected = gradients(model, batch)["loss"]
    round_up_to(monkeypatch, 1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(model, batch)
    torch.testing.assert_close(found["loss"], expected, rtol=0.02, atol=0.0)
    for name, gradient in found.items():
        assert gradient is None or gradient.dtype == torch.float32, name


def rows_seen(model: nn.Module, batch: dict[str, Tensor], **options: Any) -> dict[str, list[int]]:
    """How many positions entered each linear layer, call by call."""
    seen: dict[str, list[int]] = {}
    handles = [
        layer.register_forward_hook(
            lambda _, inputs, __, name=name: seen.setdefault(name, []).append(inputs[0].shape[:-1].numel())
        )
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    model(**batch, **options)
    for handle in handles:
        handle.remove()
    return seen


def test_linear_layers_see_real_positions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    round_up_to(monkeypatch, 1, 1)
    model, batch = model_of("serial"), padded_batch()
    real = {prefix: sum(lengths) for prefix, lengths in LENGTHS.items()}
    rows = {prefix: sum(length > 0 for length in lengths) for prefix, lengths in LENGTHS.items()}
    seen = rows_seen(model, batch)
    assert seen["model.encoder.sources.en.layers.0.feed_forward.fc1"] == [real[""] + real["de_"]]
    assert seen["model.encoder.sources.fr.layers.0.self_attn.q_proj"] == [real["fr_"]]
    cross, target = "model.decoder.layers.0.cross_attn", batch["labels"].shape[1]
    for name, prefix in {"en": "", "de": "de_", "fr": "fr_"}.items():
        assert seen[f"{cross}.{name}.k_proj"] == seen[f"{cross}.{name}.v_proj"] == [real[prefix]]
        assert seen[f"{cross}.{name}.q_proj"] == seen[f"{cross}.{name}.out_proj"] == [rows[prefix] * target]


def test_numbers_of_positions_and_examples_are_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    round_up_to(monkeypatch, 4, 2)
    seen = rows_seen(model_of("serial"), padded_batch())
    assert seen["model.encoder.sources.en.layers.0.feed_forward.fc1"] == [36]  # 15 + 20 are real
    assert seen["model.encoder.sources.fr.layers.0.feed_forward.fc1"] == [4]
    assert seen["model.decoder.layers.0.cross_attn.en.q_proj"] == [6 * 4]  # 5 have it
    assert seen["model.decoder.layers.0.cross_attn.fr.q_proj"] == [2 * 4]


def test_evaluation_sees_all_positions() -> None:
    seen = rows_seen(model_of("serial").eval(), padded_batch())
    assert seen["model.encoder.sources.fr.layers.0.self_attn.q_proj"] == [6 * 3]
    assert seen["model.decoder.layers.0.cross_attn.fr.q_proj"] == [6 * 4]


def test_states_that_are_asked_for_keep_their_shape() -> None:
    model, batch = model_of("serial", attn_implementation="eager"), padded_batch()
    output = model(**batch, output_hidden_states=True, output_attentions=True)
    assert [state.shape for state in output.encoder_hidden_states] == [(6, 5, 8)] * 2
    assert output.encoder_attentions[0].shape == (6, 2, 5, 5)
    assert output.cross_attentions[0].shape == (6, 2, 4, 5 + 7 + 3)
    absent = torch.tensor([length == 0 for length in LENGTHS["fr_"]])
    assert not output.cross_attentions[0][absent][..., -3:].any()


def test_a_source_that_no_example_has_leaves_gradients_of_zero() -> None:
    model, batch = model_of("serial"), padded_batch()
    batch["fr_attention_mask"] = torch.zeros_like(batch["fr_attention_mask"])
    found = gradients(model, batch)
    of_fr = {name: grad for name, grad in found.items() if name.startswith("model.encoder.sources.fr.layers")}
    assert of_fr and all(grad is not None and not grad.any() for grad in of_fr.values())


def test_others_are_taken_along_up_to_the_multiple() -> None:
    wanted = torch.tensor([False, True, False, True, True, False])
    assert indices_of(wanted, 1).tolist() == [1, 3, 4]
    assert indices_of(wanted, 4).tolist() == [1, 3, 4, 0]
    assert indices_of(wanted, 8).tolist() == [1, 3, 4, 0, 2, 5]
    assert indices_of(~wanted & wanted, 4).tolist() == []


def test_no_rows_are_chosen_where_all_are_computed_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    round_up_to(monkeypatch, 1, 2)
    assert examples_with(torch.tensor([True, True, True])) is None
    assert examples_with(torch.tensor([False, False, False])) is None
    assert examples_with(torch.tensor([False, True])) is None  # the other one is taken along
    rows = examples_with(torch.tensor([False, True, False]))
    assert rows is not None and rows.tolist() == [1, 0]


def test_packing_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    round_up_to(monkeypatch, 1, 1)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    packing = Packing(mask)
    states = torch.randn(2, 3, 4)
    packed = packing.pack(states)
    assert torch.equal(packed, states[mask])
    assert torch.equal(packing.unpack(packed), states * mask[..., None])


@pytest.mark.parametrize(("real", "packed"), [(8, False), (7, False), (6, True), (0, True)])
def test_little_padding_is_computed(real: int, packed: bool) -> None:
    assert (pack_if_padded(torch.arange(8)[None] < real) is not None) == packed


@pytest.mark.parametrize("length", [1, 7, 8, 9])
def test_training_attends_as_evaluation_does(length: int) -> None:
    """In training, short rows of scores are padded before the softmax."""
    torch.manual_seed(0)
    states = torch.randn(2, 3, length, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(2, 1, length, length, dtype=torch.float64)
    mask[1, ..., 1:] = torch.finfo(mask.dtype).min
    found = []
    for training in (True, False):
        context, weights = eager_attention_forward(nn.Identity().train(training), states, states, states, mask, 0.5)
        found.append((context, weights, *torch.autograd.grad(context.pow(2).sum() + weights.pow(3).sum(), states)))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)


def test_only_training_on_a_cpu_is_packed() -> None:
    states = torch.zeros(1)
    assert packing_pays(states, training=True)
    assert not packing_pays(states, training=False)
    assert not packing_pays(states.to("meta"), training=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.25, 0.9])
def test_dropout_zeroes_the_share_and_keeps_the_mean(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ones = torch.ones(401, 499, dtype=dtype, requires_grad=True)
    found = dropout(ones, p, training=True)
    zeros = (found == 0).double().mean().item()
    assert zeros == pytest.approx(p, abs=5 * (p * (1 - p) / ones.numel()) ** 0.5)
    exact = LEVELS / (LEVELS - round(p * LEVELS))
    assert found.unique().tolist() == pytest.approx([0, exact], rel=torch.finfo(dtype).eps)
    found.sum().backward()
    assert torch.equal(ones.grad, found.detach())  # type: ignore[arg-type]  # backward has made it


def test_dropout_draws_each_state_by_itself_and_anew() -> None:
    torch.manual_seed(0)
    ones = torch.ones(100_000)
    first, second = (dropout(ones, 0.5, training=True) > 0 for _ in range(2))
    assert (first == second).double().mean().item() == pytest.approx(0.5, abs=0.01)
    for shift in (1, 2, 3, 4):  # four states share one random number
        assert (first[shift:] == first[:-shift]).double().mean().item() == pytest.approx(0.5, abs=0.01)
    torch.manual_seed(0)
    assert torch.equal(dropout(ones, 0.5, training=True) > 0, first)


def test_dropout_of_nothing_and_of_everything() -> None:
    states = torch.randn(5, 3)
    assert dropout(states, 0.5, training=False) is states
    assert dropout(states, 0.0, training=True) is states
    assert not dropout(states, 1.0, training=True).any()
    assert dropout(states[:0], 0.5, training=True).shape == (0, 3)


@pytest.mark.parametrize("source", LENGTHS)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_source_without_columns_leaves_no_parameter_without_gradient(combiner: str, source: str) -> None:
    """DistributedDataParallel waits for the gradients of all parameters."""
    model, batch = model_of(combiner, source_embeddings=True, absent_vectors=True), padded_batch()
    for key in ("input_ids", "attention_mask"):
        batch[source + key] = batch[source + key][:, :0]
    assert [name for name, gradient in gradients(model, batch).items() if gradient is None] == []
