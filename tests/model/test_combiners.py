"""What must be true of every combiner, in float64; n, lengths, masks, absent sources and weights are drawn."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

import hf_multisource.attention
import hf_multisource.combiners
from builders import HEADS, HIERARCHICAL_HEADS, MIXED, PAPER_FIRST, WIDTH, Case, cases, join, tiny_config
from hf_multisource.attention import SourceMemory
from hf_multisource.combiners import COMBINERS, Combiner, ParallelCombiner, build_combiner
from reference import REFERENCES, Answer, Setting, attention, combine, heads_over_sources, layer_norm

pytestmark = pytest.mark.pairs

NORM_POSITIONS = ["pre", "post"]
each_norm_position = pytest.mark.parametrize("norm_position", NORM_POSITIONS)
each_attention = pytest.mark.parametrize("attention", ["eager", "sdpa"])
every_combiner = pytest.mark.parametrize(("name", "norm_position"), list(itertools.product(COMBINERS, NORM_POSITIONS)))
# For what follows from the equations; with the combiners that are not of the paper, -m slow.
paper_first = pytest.mark.parametrize(
    ("name", "norm_position"),
    [pytest.param(*one.values, norm, marks=one.marks) for one in PAPER_FIRST for norm in NORM_POSITIONS],
)


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def all_same(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            same(one, other)


def same_gradients(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(actual[key], gradient, rtol=1e-8, atol=1e-9, msg=f"gradient of {key}")


def probe(output: Tensor) -> Tensor:
    """A fixed gradient to send back through the output."""
    return torch.arange(output.numel(), dtype=output.dtype).cos().view_as(output)


def gradients_of(output: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the probe leaves in each leaf; 0 where a leaf plays no part."""
    found = torch.autograd.grad(output, list(leaves.values()), probe(output), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def gradients(combiner: Combiner, hidden_states: Tensor, memory: SourceMemory) -> dict[str, Tensor]:
    """Gradients in hidden states, encoder states and every parameter, by name."""
    x, states = hidden_states.clone().requires_grad_(), memory.states.clone().requires_grad_()
    output = combiner(x, SourceMemory(states, memory.mask, memory.lengths))[0]
    return gradients_of(output, {"hidden_states": x, "states": states, **dict(combiner.named_parameters())})


# The equation


def test_every_combiner_has_a_naive_reference() -> None:
    assert REFERENCES.keys() == COMBINERS.keys()


def check_equation(case: Case, name: str, norm_position: str, bias: bool, query_norm: str) -> None:
    """Output, weights, weights over sources and every gradient equal the oracle's."""
    eps = 0.1  # not the usual one, so that it counts
    combiner = case.combiner(name, norm_position, attention_bias=bias, query_norm=query_norm, layer_norm_eps=eps)
    leaves = {"hidden_states": case.hidden_states(), "states": case.memory().states}
    leaves = {key: leaf.requires_grad_() for key, leaf in leaves.items()}
    parameters = dict(combiner.named_parameters())
    masks = dict(zip(case.names, case.masks(), strict=True))
    blocks = torch.split_with_sizes(leaves["states"], case.memory().lengths, dim=1)
    states = dict(zip(case.names, blocks, strict=True))
    setting = Setting(HEADS, HIERARCHICAL_HEADS, norm_position == "pre", query_norm, eps)
    expected = combine(name, leaves["hidden_states"], states, masks, parameters, setting)
    all_same(combiner(case.hidden_states(), case.memory()), expected)
    actual = gradients(combiner, case.hidden_states(), case.memory())
    same_gradients(actual, gradients_of(expected[0], {**leaves, **parameters}))


@every_combiner
@pytest.mark.parametrize("bias", [False, True])
@given(case=cases())
@example(case=MIXED)
def test_combiner_equals_its_equation(name: str, norm_position: str, bias: bool, case: Case) -> None:
    check_equation(case, name, norm_position, bias, "shared")


@pytest.mark.parametrize("name", [name for name, kind in COMBINERS.items() if issubclass(kind, ParallelCombiner)])
@pytest.mark.parametrize("bias", [False, True])
@given(case=cases())
@example(case=MIXED)
def test_combiner_with_a_query_norm_per_source_equals_its_equation(name: str, bias: bool, case: Case) -> None:
    check_equation(case, name, "pre", bias, "per_source")


@every_combiner
@pytest.mark.parametrize("bias", [False, True])
def test_attention_bias_belongs_to_all_four_projections_or_none(name: str, norm_position: str, bias: bool) -> None:
    parameters = MIXED.combiner(name, norm_position, attention_bias=bias).state_dict()
    projections = [key.removesuffix(".weight") for key in parameters if key.endswith("_proj.weight")]
    assert [f"{projection}.bias" in parameters for projection in projections] == [bias] * len(projections)


# One source


def plain_cross_attention(weights: Mapping[str, Tensor], query: Tensor, case: Case) -> Tensor:
    """PyTorch's own attention over the one source, with our weights: a context vector (B, T, D)."""
    plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
    parameters = {
        f"in_proj_{kind}": torch.cat([weights[f"{map}_proj.{kind}"] for map in "qkv"]) for kind in ("weight", "bias")
    }
    plain.load_state_dict(
        {**parameters, **{f"out_proj.{kind}": weights[f"out_proj.{kind}"] for kind in ("weight", "bias")}}
    )
    (states,), (mask,) = case.states(), case.masks()
    context: Tensor = plain(query, states, states, key_padding_mask=~mask)[0]
    return context


@every_combiner
@given(case=cases(max_sources=1, all_present=True))
def test_one_source_is_plain_cross_attention_where_the_combiner_says_so(
    name: str, norm_position: str, case: Case
) -> None:
    combiner = case.combiner(name, norm_position)
    weights = {key.removeprefix("en.").removeprefix("joint."): weight for key, weight in combiner.state_dict().items()}
    norm, x = (weights["layer_norm.weight"], weights["layer_norm.bias"]), case.hidden_states()
    context = plain_cross_attention(
        weights, torch.layer_norm(x, (WIDTH,), *norm) if norm_position == "pre" else x, case
    )
    expected = x + context if norm_position == "pre" else torch.layer_norm(x + context, (WIDTH,), *norm)
    actual = combiner(x, case.memory())[0]
    if COMBINERS[name].exact_for_one_source:
        same(actual, expected)
    else:
        assert not torch.allclose(actual, expected)


@each_norm_position
@given(case=cases(max_sources=1, all_present=True))
def test_hierarchical_with_one_source_maps_its_context_twice(norm_position: str, case: Case) -> None:
    combiner = case.combiner("hierarchical", norm_position)
    weights = {key.removeprefix("en."): weight for key, weight in combiner.state_dict().items()}
    norm, x = (weights["layer_norm.weight"], weights["layer_norm.bias"]), case.hidden_states()
    z = plain_cross_attention(weights, torch.layer_norm(x, (WIDTH,), *norm) if norm_position == "pre" else x, case)
    for map in ("v", "out"):
        z = z @ weights[f"hierarchy.{map}_proj.weight"].T + weights[f"hierarchy.{map}_proj.bias"]
    same(combiner(x, case.memory())[0], x + z if norm_position == "pre" else torch.layer_norm(x + z, (WIDTH,), *norm))


# Relatives: combiners that are others with some weights


def related(case: Case, name: str, norm_position: str, weights: Mapping[str, Tensor]) -> Combiner:
    """A combiner with these weights, of which it must need all."""
    combiner = case.combiner(name, norm_position)
    combiner.load_state_dict(dict(weights))
    return combiner


@each_norm_position
@given(case=cases())
@example(case=MIXED)
def test_projection_by_the_identity_is_parallel(norm_position: str, case: Case) -> None:
    parallel = case.combiner("parallel", norm_position)
    projections = {f"{name}.projection.weight": torch.eye(WIDTH) for name in case.names}
    weights = {**parallel.state_dict(), **projections, "projection.bias": torch.zeros(WIDTH)}
    projection = related(case, "projection", norm_position, weights)
    inputs = case.hidden_states(), case.memory()
    all_same(projection(*inputs), parallel(*inputs))


@each_norm_position
@given(case=cases())
@example(case=MIXED)
def test_parallel_can_take_the_projection_into_its_own_maps(norm_position: str, case: Case) -> None:
    projection = case.combiner("projection", norm_position)
    nn.init.zeros_(projection.get_parameter("projection.bias"))
    weights = {key: value for key, value in projection.state_dict().items() if "projection" not in key}
    for name in case.names:
        matrix = projection.get_parameter(f"{name}.projection.weight").detach()
        for kind in ("weight", "bias"):
            weights[f"{name}.out_proj.{kind}"] = matrix @ weights[f"{name}.out_proj.{kind}"]
    inputs = case.hidden_states(), case.memory()
    all_same(related(case, "parallel", norm_position, weights)(*inputs), projection(*inputs))


@each_norm_position
@pytest.mark.parametrize("name", ["weighted_sum", "context_gate"])
@given(case=cases())
@example(case=MIXED)
def test_gates_of_zero_make_the_mean(name: str, norm_position: str, case: Case) -> None:
    mean = case.combiner("mean", norm_position)
    gates = {key: value for key, value in case.combiner(name, norm_position).state_dict().items() if ".gate." in key}
    assert len(gates) == len(case.names) * (1 if name == "weighted_sum" else 2)
    zeros = {key: torch.zeros_like(value) for key, value in gates.items()}
    inputs = case.hidden_states(), case.memory()
    actual = related(case, name, norm_position, {**mean.state_dict(), **zeros})(*inputs)
    expected = mean(*inputs)
    all_same((*actual[:2], actual[2][:, :1]), expected)
    same(actual[2][:, -1:], expected[2])


@given(case=cases(max_sources=2, min_sources=2, all_present=True))
def test_context_gate_over_two_sources_is_the_sigmoid_of_the_paper(case: Case) -> None:
    combiner, x = case.combiner("context_gate", "pre"), case.hidden_states()
    assert isinstance(combiner, ParallelCombiner)
    keys_values = combiner.project(case.memory())
    first, second = combiner.contexts(x, keys_values, case.memory())[0]
    weights = combiner.state_dict()
    matrix = torch.cat([weights["en.gate.weight"], -weights["de.gate.weight"]], dim=1)
    both = torch.cat([first, second], dim=-1)
    gate = torch.sigmoid(both @ matrix.T + weights["en.gate.bias"] - weights["de.gate.bias"])
    output, _, source_weights = combiner(x, case.memory())
    same(output, x + gate * first + (1 - gate) * second)
    by_head = gate.unflatten(-1, (HEADS, -1)).mean(-1).transpose(1, 2)
    same(source_weights, torch.stack([by_head, 1 - by_head], dim=-1))


@each_norm_position
@given(case=cases())
@example(case=MIXED)
def test_tanh_concat_is_the_projection_and_the_query_through_a_tanh(norm_position: str, case: Case) -> None:
    tanh = case.combiner("tanh_concat", norm_position)
    weights, x = tanh.state_dict(), case.hidden_states()
    query_map = weights.pop("projection.weight")
    norm = (weights["layer_norm.weight"], weights["layer_norm.bias"])
    query = torch.layer_norm(x, (WIDTH,), *norm) if norm_position == "pre" else x
    projection = related(case, "projection", norm_position, weights)
    if norm_position == "post":
        projection.layer_norm = nn.Identity()
    projected = projection(x, case.memory())[0] - x  # W [c_1; ...; c_n] + b
    expected = x + torch.tanh(projected + query @ query_map.T)
    expected = torch.layer_norm(expected, (WIDTH,), *norm) if norm_position == "post" else expected
    present = case.memory().present.any(1)[:, None, None]
    same(tanh(x, case.memory())[0], torch.where(present, expected, x))


@each_norm_position
@given(case=cases())
@example(case=MIXED)
def test_gated_serial_without_gates_is_serial(norm_position: str, case: Case) -> None:
    open_sources = [{"name": name, "gated": False} for name in case.names]
    combiner = case.combiner("gated_serial", norm_position, sources=open_sources)
    serial = related(case, "serial", norm_position, combiner.state_dict())
    inputs = case.hidden_states(), case.memory()
    assert torch.equal(combiner(*inputs)[0], serial(*inputs)[0])


@each_norm_position
@each_attention
@given(case=cases(), data=st.data())
@example(case=MIXED, data=None)
def test_a_source_whose_gate_is_shut_changes_no_bit(
    norm_position: str, attention: str, case: Case, data: st.DataObject | None
) -> None:
    shut = set(case.names[1:]) if data is None else data.draw(st.sets(st.sampled_from(case.names)), label="shut")
    sources = [{"name": name, "gated": name in shut} for name in case.names]
    combiner = case.combiner("gated_serial", norm_position, sources=sources, attention=attention)
    gates = [parameter for key, parameter in combiner.named_parameters() if ".gate." in key]
    assert len(gates) == len(shut)
    left = [i for i, name in enumerate(case.names) if name not in shut]
    output = combiner(case.hidden_states(), case.memory())[0]
    for gate in gates:
        nn.init.zeros_(gate)
    states, masks = case.states(), case.masks()
    if left:
        names = [sources[i] for i in left]
        fewer = case.combiner("gated_serial", norm_position, sources=names, attention=attention)
        fewer.load_state_dict({key: combiner.state_dict()[key] for key in fewer.state_dict()})
        expected = fewer(case.hidden_states(), join([states[i] for i in left], [masks[i] for i in left]))[0]
    else:
        expected = case.hidden_states()
    assert torch.equal(combiner(case.hidden_states(), case.memory())[0], expected)
    if any(masks[i].any() for i, name in enumerate(case.names) if name in shut):
        assert not torch.equal(output, expected)


@each_norm_position
def test_flat_over_states_normalized_beforehand_is_flat_normed(norm_position: str) -> None:
    combiner = MIXED.combiner("flat_normed", norm_position)
    norms = {name: combiner.get_submodule(f"{name}.states_layer_norm") for name in MIXED.names}
    weights = {key: value for key, value in combiner.state_dict().items() if "states" not in key}
    flat = related(MIXED, "flat", norm_position, weights)
    states = [norm(block) for norm, block in zip(norms.values(), MIXED.states(), strict=True)]
    x = MIXED.hidden_states()
    all_same(combiner(x, MIXED.memory()), flat(x, join(states, MIXED.masks())))


@each_norm_position
def test_flat_normed_does_not_care_for_the_scale_of_a_source(norm_position: str) -> None:
    case = Case(0, 2, (((True, True, True),),) * 2)
    scaled = join([case.states()[0] * 1000, case.states()[1]], case.masks())
    for name, cares in (("flat", True), ("flat_normed", False)):
        combiner = case.combiner(name, norm_position, layer_norm_eps=1e-12)
        one, other = (combiner(case.hidden_states(), memory)[0] for memory in (case.memory(), scaled))
        assert torch.allclose(one, other, rtol=1e-6) != cares


# The order of the sources


def permuted(case: Case, name: str, norm_position: str, order: Sequence[int]) -> Answer:
    """The answer after permuting the sources together with their parameters; weights put back in the case's order."""
    combiner = case.combiner(name, norm_position, sources=[case.names[i] for i in order])
    combiner.load_state_dict(case.combiner(name, norm_position).state_dict())
    memory = join([case.states()[i] for i in order], [case.masks()[i] for i in order])
    output, weights, source_weights = combiner(case.hidden_states(), memory)
    back = [order.index(i) for i in range(len(order))]
    parts = weights.split(memory.lengths, dim=-1)
    weights = torch.cat([parts[i] for i in back], dim=-1)
    return output, weights, None if source_weights is None else source_weights[..., back]


@pytest.mark.parametrize("name", [name for name in COMBINERS if not COMBINERS[name].order_sensitive])
@each_norm_position
@given(case=cases(min_sources=2), data=st.data())
def test_order_of_sources_changes_nothing(name: str, norm_position: str, case: Case, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(case.names))), label="order")
    expected = case.combiner(name, norm_position)(case.hidden_states(), case.memory())
    all_same(permuted(case, name, norm_position, order), expected)


@pytest.mark.parametrize("name", [name for name in COMBINERS if COMBINERS[name].order_sensitive])
@each_norm_position
def test_order_of_sources_matters(name: str, norm_position: str) -> None:
    case = Case(0, 2, (((True, True, True),),) * 3)
    first, *others = (permuted(case, name, norm_position, order)[0] for order in itertools.permutations(range(3)))
    assert not any(torch.allclose(first, other, atol=1e-3) for other in others)


# The same source twice


@each_norm_position
@given(case=cases(max_sources=1))
def test_flat_over_the_same_source_twice_equals_once(norm_position: str, case: Case) -> None:
    once = case.combiner("flat", norm_position)(case.hidden_states(), case.memory())
    memory = join(case.states() * 2, case.masks() * 2)
    twice = replace(case, rows=case.rows * 2).combiner("flat", norm_position)(case.hidden_states(), memory)
    all_same(twice, (once[0], torch.cat([once[1], once[1]], dim=-1) / 2, None))


@given(case=cases(max_sources=1))
def test_parallel_with_tied_weights_over_the_same_source_twice_adds_its_context_twice(case: Case) -> None:
    one, two = case.combiner("parallel", "pre"), replace(case, rows=case.rows * 2).combiner("parallel", "pre")
    tied = one.state_dict()
    two.load_state_dict({**tied, **{key.replace("en.", "de."): weight for key, weight in tied.items()}})
    x = case.hidden_states()
    context = one(x, case.memory())[0] - x
    same(two(x, join(case.states() * 2, case.masks() * 2))[0], x + 2 * context)


# Parallel as one attention (Littell et al. 2019, https://doi.org/10.18653/v1/W19-5326, on their equation 5)


@each_norm_position
@given(case=cases())
@example(case=MIXED)
def test_parallel_is_one_attention_whose_head_groups_see_one_source_each(norm_position: str, case: Case) -> None:
    combiner = case.combiner("parallel", norm_position)
    weights, memory, x, n = combiner.state_dict(), case.memory(), case.hidden_states(), len(case.names)
    norm = (weights["layer_norm.weight"], weights["layer_norm.bias"])
    query = torch.layer_norm(x, (WIDTH,), *norm) if norm_position == "pre" else x

    def project(states: Tensor, map: str) -> Tensor:
        """Apply the stacked maps of all sources: (B, L, D) -> (B, n H, L, D / H)."""
        matrix = torch.cat([weights[f"{name}.{map}_proj.weight"] for name in case.names])
        bias = torch.cat([weights[f"{name}.{map}_proj.bias"] for name in case.names])
        return (states @ matrix.T + bias).view(*states.shape[:2], n * HEADS, WIDTH // HEADS).transpose(1, 2)

    owner = torch.arange(n).repeat_interleave(torch.tensor(memory.lengths))  # (S,): the source that a state is of
    group = torch.arange(n).repeat_interleave(HEADS)  # (n H,): the source that a head may see
    seen = (group[:, None] == owner) & memory.mask[:, None]  # (B, n H, S)
    scores = project(query, "q") @ project(memory.states, "k").mT / (WIDTH // HEADS) ** 0.5
    exponentials = scores.exp() * seen[:, :, None]
    attended = exponentials / exponentials.sum(-1, keepdim=True).clamp_min(1e-300)
    contexts = (attended @ project(memory.states, "v")).transpose(1, 2).flatten(2)  # (B, T, n D)
    present = seen.any(-1)[:, ::HEADS].double()  # (B, n)
    out_matrix = torch.cat([weights[f"{name}.out_proj.weight"] for name in case.names], dim=1)
    out_bias = present @ torch.stack([weights[f"{name}.out_proj.bias"] for name in case.names])
    expected = x + contexts @ out_matrix.T + out_bias[:, None]
    if norm_position == "post":
        expected = torch.layer_norm(expected, (WIDTH,), *norm)
    same(combiner(x, memory)[0], torch.where(present.any(1)[:, None, None], expected, x))


# Absent sources


@every_combiner
@pytest.mark.parametrize("empty", [False, True], ids=["masked", "length 0"])
@given(case=cases(min_sources=2), data=st.data())
def test_absent_source_equals_source_left_out(
    name: str, norm_position: str, empty: bool, case: Case, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(case.names) - 1), label="absent source")
    left = [i for i in range(len(case.names)) if i != gone]
    states, masks, combiner = case.states(), case.masks(), case.combiner(name, norm_position)
    fewer = case.combiner(name, norm_position, sources=[case.names[i] for i in left])
    fewer.load_state_dict({key: combiner.state_dict()[key] for key in fewer.state_dict()})
    expected = fewer(case.hidden_states(), join([states[i] for i in left], [masks[i] for i in left]))

    if empty:
        states[gone], masks[gone] = states[gone][:, :0], masks[gone][:, :0]
    masks[gone] = torch.zeros_like(masks[gone])
    memory = join(states, masks)
    output, weights, source_weights = combiner(case.hidden_states(), memory)
    parts = weights.split(memory.lengths, dim=-1)
    assert not parts[gone].any()
    kept = None if source_weights is None else source_weights[..., left]
    all_same((output, torch.cat([parts[i] for i in left], dim=-1), kept), expected)


@paper_first
@each_attention
@given(case=cases(), data=st.data())
def test_nothing_absent_gets_a_gradient(
    name: str, norm_position: str, attention: str, case: Case, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(case.names) - 1), label="source absent from all examples")
    masks = case.masks()
    masks[gone] = torch.zeros_like(masks[gone])
    memory = join(case.states(), masks)
    combiner = case.combiner(name, norm_position, attention=attention)
    found = gradients(combiner, case.hidden_states(), memory)
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert not found["states"][~memory.mask].any()
    for key, gradient in found.items():
        assert not key.startswith(f"{case.names[gone]}.") or not gradient.any(), key


@paper_first
@each_attention
@pytest.mark.parametrize("lengths", [(2, 3), (0, 3), (0, 0)])
def test_example_without_any_source_passes_unchanged(
    name: str, norm_position: str, attention: str, lengths: tuple[int, ...]
) -> None:
    case = Case(0, 3, tuple(((False,) * length,) * 2 for length in lengths))
    combiner = case.combiner(name, norm_position, attention=attention).train()
    output, *weights = combiner(case.hidden_states(), case.memory())
    assert torch.equal(output, case.hidden_states())
    assert not any(attended is not None and attended.any() for attended in weights)
    found = gradients(combiner, case.hidden_states(), case.memory())
    assert torch.equal(found.pop("hidden_states"), probe(output))
    assert not any(gradient.any() for gradient in found.values())


@each_attention
@pytest.mark.parametrize("source", [None, 0, 2, 3])
def test_attention_implementations_see_no_row_without_a_key(attention: str, source: int | None) -> None:
    """They disagree about such rows, some with NaN; so even an absent source shows them one key."""
    config = tiny_config(sources=MIXED.names)
    config._attn_implementation = attention
    mask: Any = MIXED.memory().attention_mask(config, MIXED.hidden_states(), source)
    if mask is not None:  # None opens everything
        assert (mask if mask.dtype == torch.bool else mask == 0).any(-1).all()


# Padding and neighbors


@paper_first
@each_attention
@given(case=cases(), data=st.data())
def test_padding_and_what_lies_in_it_change_nothing(
    name: str, norm_position: str, attention: str, case: Case, data: st.DataObject
) -> None:
    combiner = case.combiner(name, norm_position, attention=attention)
    expected = combiner(case.hidden_states(), case.memory())
    padding = [data.draw(st.integers(0, 3), label="more padding") for _ in case.names]
    masks = [nn.functional.pad(mask, (0, more)) for mask, more in zip(case.masks(), padding, strict=True)]
    states = [nn.functional.pad(states, (0, 0, 0, more)) for states, more in zip(case.states(), padding, strict=True)]
    junk = [states.masked_fill(~mask[..., None], 1e6) for states, mask in zip(states, masks, strict=True)]
    output, weights, source_weights = combiner(case.hidden_states(), join(junk, masks))
    if weights is not None:
        parts = weights.split([mask.shape[1] for mask in masks], dim=-1)
        cut = [part[..., : part.shape[-1] - more] for part, more in zip(parts, padding, strict=True)]
        weights = torch.cat(cut, dim=-1)
    all_same((output, weights, source_weights), expected)


@paper_first
@each_attention
@given(case=cases())
@example(case=MIXED)
def test_neighbors_in_the_batch_change_nothing(name: str, norm_position: str, attention: str, case: Case) -> None:
    combiner = case.combiner(name, norm_position, attention=attention)
    x, memory = case.hidden_states(), case.memory()
    together = combiner(x, memory)[0]
    for b in range(len(x)):
        alone = SourceMemory(memory.states[b : b + 1], memory.mask[b : b + 1], memory.lengths)
        same(together[b : b + 1], combiner(x[b : b + 1], alone)[0])


# Weights


@paper_first
@given(case=cases())
@example(case=MIXED)
def test_weights_sum_to_one_over_what_is_present(name: str, norm_position: str, case: Case) -> None:
    x, memory = case.hidden_states(), case.memory()
    _, weights, source_weights = case.combiner(name, norm_position)(x, memory)
    assert weights.shape == (len(x), HEADS, x.shape[1], memory.mask.shape[1])
    assert not weights.masked_select(~memory.mask[:, None, None]).any()
    present = torch.stack([mask.any(1) for mask in case.masks()], dim=1).double()  # (B, n)
    anything = present.amax(1)  # (B,)
    if COMBINERS[name].joint_weights:
        same(weights.sum(-1), anything[:, None, None].expand(weights.shape[:-1]))
    else:
        sums = torch.stack([part.sum(-1) for part in weights.split(memory.lengths, dim=-1)], dim=-1)
        same(sums, present[:, None, None].expand(sums.shape))
    assert (source_weights is not None) == COMBINERS[name].weighs_sources
    if source_weights is not None:
        rows = heads_over_sources(name, Setting(HEADS, HIERARCHICAL_HEADS, norm_position == "pre"))
        assert source_weights.shape == (len(x), rows, x.shape[1], len(case.names))
        assert not source_weights.masked_select(present[:, None, None] == 0).any()
        same(source_weights.sum(-1), anything[:, None, None].expand(source_weights.shape[:-1]))


@paper_first
def test_weights_come_with_eager_attention_only(name: str, norm_position: str) -> None:
    case = Case(0, 2, (((True, True), (True, False)), ((True,), (False,))))
    for implementation in ("eager", "sdpa"):
        combiner = case.combiner(name, norm_position, attention=implementation)
        weights = combiner(case.hidden_states(), case.memory())[1]
        assert (weights is not None) == (implementation == "eager")


# Two roads, one answer


@paper_first
@given(case=cases())
@example(case=MIXED)
def test_eager_equals_sdpa(name: str, norm_position: str, case: Case) -> None:
    eager = case.combiner(name, norm_position, attention="eager")
    sdpa = case.combiner(name, norm_position, attention="sdpa")
    x, memory = case.hidden_states(), case.memory()
    one, other = eager(x, memory), sdpa(x, case.memory())
    all_same((other[0], None, other[2]), (one[0], None, one[2]))
    same_gradients(gradients(sdpa.train(), x, memory), gradients(eager.train(), x, memory))


@pytest.mark.parametrize("order", [("eager", "sdpa"), ("sdpa", "eager")])
def test_memory_serves_one_attention_implementation_after_the_other(order: tuple[str, str]) -> None:
    x, memory = MIXED.hidden_states(), MIXED.memory()
    first, second = (MIXED.combiner("flat", "pre", attention=attention)(x, memory)[0] for attention in order)
    same(second, first)


@paper_first
@each_attention
@given(case=cases())
@example(case=MIXED)
def test_step_by_step_with_a_cache_equals_all_at_once_without(
    name: str, norm_position: str, attention: str, case: Case
) -> None:
    combiner = case.combiner(name, norm_position, attention=attention)
    x, memory = case.hidden_states(), case.memory()
    config = tiny_config(name, case.names)
    cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
    # From the second step on keys and values come from the cache: the states are not read again.
    garbage = SourceMemory(torch.full_like(memory.states, 1e6), memory.mask, memory.lengths)
    steps = [combiner(x[:, t : t + 1], garbage if t else memory, cache) for t in range(x.shape[1])]
    for actual, whole, axis in zip(zip(*steps, strict=True), combiner(x, memory), (1, 2, 2), strict=True):
        if whole is None:
            assert set(actual) == {None}
        else:
            same(torch.cat(actual, dim=axis), whole)


# Dropout


@contextmanager
def swapped_dropout(functions: Mapping[float, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Puts functions that are not linear in dropout's place, by probability, so that place and number of drops show."""

    def swapped(states: Tensor, p: float, training: bool) -> Tensor:
        return functions[p](states) if training else states

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_multisource.attention, "drop", swapped)
        patch.setattr(hf_multisource.combiners, "dropout", swapped)
        yield


@paper_first
@given(case=cases(max_sources=3))
def test_dropout_falls_where_the_authors_code_has_it(name: str, norm_position: str, case: Case) -> None:
    combiner = case.combiner(name, norm_position, dropout=0.25, attention_dropout=0.5).train()
    masks = dict(zip(case.names, case.masks(), strict=True))
    states = dict(zip(case.names, case.states(), strict=True))
    pre_norm, square, root = norm_position == "pre", torch.square, torch.sqrt
    setting = Setting(HEADS, HIERARCHICAL_HEADS, pre_norm, dropout=square, attention_dropout=root)
    expected = combine(name, case.hidden_states(), states, masks, combiner.state_dict(), setting)[0]
    with swapped_dropout({0.25: square, 0.5: root}):
        same(combiner(case.hidden_states(), case.memory())[0], expected)


@paper_first
@each_attention
def test_dropout_is_off_in_evaluation_and_on_in_training(name: str, norm_position: str, attention: str) -> None:
    case = Case(0, 2, (((True, True), (True, False)), ((True,), (False,))))
    plain = case.combiner(name, norm_position, attention=attention)
    for dropout, attention_dropout in ((0.5, 0.0), (0.0, 0.5)):
        dropping = case.combiner(
            name, norm_position, attention=attention, dropout=dropout, attention_dropout=attention_dropout
        )
        expected = plain(case.hidden_states(), case.memory())
        all_same(dropping(case.hidden_states(), case.memory()), expected)
        torch.manual_seed(0)
        assert not torch.allclose(dropping.train()(case.hidden_states(), case.memory())[0], expected[0])


# Names, and the oracle itself


def test_unknown_combiner_is_refused_with_the_allowed_names() -> None:
    allowed = re.escape(", ".join(map(repr, COMBINERS)))
    with pytest.raises(ValueError, match=f"combiner must be one of {allowed}; got 'nope'"):
        build_combiner(tiny_config("nope"), 0)


def test_reference_attention_equals_a_sum_done_by_hand() -> None:
    identity = {f"a.{map}_proj.weight": torch.eye(2) for map in ("q", "k", "v", "out")}
    # Scores (3 ln 2, ln 2) from a width of 1, so weights 8:2; both heads see values 3 and 1, then 0 and 5.
    query, states = torch.tensor([torch.tensor(2.0).log(), 0.0]), [torch.tensor([3.0, 0.0]), torch.tensor([1.0, 5.0])]
    context, weights = attention(query, states, identity, "a", heads=2)
    torch.testing.assert_close(weights, torch.tensor([[0.8, 0.2], [0.5, 0.5]]))
    torch.testing.assert_close(context, torch.tensor([0.8 * 3 + 0.2 * 1, 0.5 * 0 + 0.5 * 5]))


def test_reference_layer_norm_equals_a_sum_done_by_hand() -> None:
    weights = {"n.weight": torch.tensor([1.0, 2.0, 1.0, 1.0]), "n.bias": torch.tensor([0.0, 0.0, 0.5, 0.0])}
    x = torch.tensor([1.0, -1.0, 1.0, -1.0])
    torch.testing.assert_close(layer_norm(x, weights, "n", 0.0), torch.tensor([1.0, -2.0, 1.5, -1.0]))


def test_a_memory_follows_its_states_to_another_device() -> None:
    memory = MIXED.memory()
    assert memory.with_states(memory.states) is memory
    moved = memory.with_states(memory.states.to("meta"))
    assert (moved.states.device, moved.mask.device, moved.present.device) == (torch.device("meta"),) * 3
    other = memory.with_states(memory.states + 1)
    assert torch.equal(other.states, memory.states + 1) and other.mask is memory.mask
