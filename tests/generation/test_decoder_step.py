"""`decoder_step.py` runs a decoder's layers without calling their modules, and gives the same numbers as they do.

Modules that do more than their class says, such as those with hooks, are called.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LogitsProcessor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from builders import EVERY_COMBINER, LSTM, first_is_best
from builders import three_source_batch as batch
from builders import three_source_model as make
from hf_multisource import decoder_step, inference, modeling_multisource
from hf_multisource.attention import MultiHeadAttention
from hf_multisource.beam_cache import BeamCache
from hf_multisource.combiners import (
    COMBINERS,
    HierarchicalCombiner,
    MeanCombiner,
    ProjectionCombiner,
    SerialCombiner,
    TanhConcatCombiner,
)
from hf_multisource.layers import Bias, FeedForward
from hf_multisource.modeling_multisource import DecoderLayer

SEARCH: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 8, "return_dict_in_generate": True}
#: Without beams each row of the cache belongs to one text.
ALONE: dict[str, dict[str, Any]] = {
    "greedy search": {"num_beams": 1},
    "sampling": {"num_beams": 1, "do_sample": True},
    "several samples": {"num_beams": 1, "do_sample": True, "num_return_sequences": 3},
}
MADE: dict[str, dict[str, Any]] = {
    "post-norm": {"norm_position": "post"},
    "gelu": {"activation_function": "gelu"},
    "no bias": {"attention_bias": False},
}


class Steps:
    """Counts the decoding steps that `run_layers` computed, and those for which the modules were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bound = self.left = 0
        self.rows: set[int] = set()
        self.only_modules = False
        monkeypatch.setattr(modeling_multisource, "run_layers", self.run)

    def run(self, *args: Any) -> Tensor | None:
        found = None if self.only_modules else decoder_step.run_layers(*args)
        self.rows.add(len(args[1]))
        self.bound += found is not None
        self.left += found is None
        return found

    def compare(self, model: Any, **options: Any) -> Any:
        """Generate both ways; the outputs are the same, bit by bit."""
        options = {**SEARCH, **options}
        self.only_modules = True
        expected = model.generate(**batch(), **options)
        self.only_modules, self.bound, self.left, self.rows = False, 0, 0, set()
        found = model.generate(**batch(), **options)
        assert torch.equal(found.sequences, expected.sequences)
        if options["num_beams"] > 1:
            assert torch.equal(found.sequences_scores, expected.sequences_scores)
        for one, other in zip(found.scores or (), expected.scores or (), strict=True):
            assert torch.equal(one, other)
        return found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setattr(inference, "measure_gains", first_is_best)
    return Steps(monkeypatch)


@pytest.mark.parametrize("kind", ["plain", "optimized", "int8"])
@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_the_search_finds_the_same(combiner: str, kind: str, steps: Steps) -> None:
    model = make(combiner)
    if kind != "plain":
        model.optimize_for_inference(int8=kind == "int8")
    steps.compare(model)
    assert steps.bound == 7 and steps.left == 0


@pytest.mark.parametrize("search", ALONE)
@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_a_search_without_beams_finds_the_same(combiner: str, search: str, steps: Steps) -> None:
    model = make(combiner)
    run = model.generate

    def seeded(**inputs: Any) -> Any:
        torch.manual_seed(1)
        return run(**inputs)

    model.generate = seeded
    found = steps.compare(model, **ALONE[search], output_scores=True)
    assert steps.bound == len(found.scores) - 1 > 0 and steps.left == 0
    stock = model.generate(**batch(), **{**SEARCH, **ALONE[search]}, output_scores=True, fold_beams=False)
    assert torch.equal(found.sequences, stock.sequences)
    torch.testing.assert_close(found.scores, stock.scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fields", MADE)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_other_forms_of_layers_are_bound_too(combiner: str, fields: str, steps: Steps) -> None:
    steps.compare(make(combiner, **MADE[fields]))
    assert steps.bound == 7


@pytest.mark.parametrize("combiner", COMBINERS)
def test_examples_that_leave_are_bound_anew(combiner: str, steps: Steps) -> None:
    model = make(combiner)
    ends = steps.compare(model, max_new_tokens=12, eos_token_id=None, pad_token_id=0).sequences[:, 3].unique().tolist()
    steps.compare(model, max_new_tokens=12, eos_token_id=ends[:2], early_stopping=True)
    assert len(steps.rows) > 1 and steps.left == 0


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_no_module_of_the_layers_is_called(combiner: str, num_beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first step, in which the keys and values of the sources are made."""
    model, called = make(combiner), list[nn.Module]()
    inside = set(model.model.decoder.layers.modules())
    stock = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        called.append(self)
        return stock(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", call)
    counts = []
    for length in (2, 6):
        called.clear()
        lengths = {"min_new_tokens": length, "max_new_tokens": length}
        model.generate(**batch(), **{**SEARCH, **lengths, "num_beams": num_beams})
        counts.append(sum(module in inside for module in called))
    assert counts[0] == counts[1] > 0


def hook(model: Any, seen: list[str]) -> None:
    model.model.decoder.layers[1].feed_forward.fc1.register_forward_hook(lambda *args: seen.append("hook"))


def pre_hook(model: Any, seen: list[str]) -> None:
    model.model.decoder.layers[0].register_forward_pre_hook(lambda *args: seen.append("pre-hook"))


def replaced_forward(model: Any, seen: list[str]) -> None:
    norm = model.model.decoder.layers[0].self_attn_layer_norm
    stock = norm.forward

    def forward(states: Tensor) -> Tensor:
        seen.append("forward")
        found: Tensor = stock(states)
        return found

    norm.forward = forward


def wrapped(model: Any, seen: list[str]) -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, states: Tensor) -> Tensor:
            seen.append("wrapper")
            found: Tensor = self.inner(states)
            return found

    attention = model.model.decoder.layers[1].self_attn
    attention.q_proj = Wrapper(attention.q_proj)


def subclassed(model: Any, seen: list[str]) -> None:
    class Counted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            seen.append("subclass")
            return super().forward(input)

    model.model.decoder.layers[1].feed_forward.fc2.__class__ = Counted


def derived_layer(model: Any, seen: list[str]) -> None:
    class Counted(DecoderLayer):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("layer")
            return super().forward(*args, **kwargs)

    model.model.decoder.layers[0].__class__ = Counted


def wrapped_layer(model: Any, seen: list[str]) -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("wrapped layer")
            return self.inner(*args, **kwargs)

    layers = model.model.decoder.layers
    layers[0] = Wrapper(layers[0])


def method_of_an_instance(model: Any, seen: list[str]) -> None:
    combiner = model.model.decoder.layers[0].cross_attn
    stock = combiner.joint.attend

    def attend(*args: Any, **kwargs: Any) -> Any:
        seen.append("method")
        return stock(*args, **kwargs)

    combiner.joint.attend = attend


UNUSUAL: dict[str, Callable[[Any, list[str]], None]] = {
    function.__name__: function
    for function in (
        hook,
        pre_hook,
        replaced_forward,
        wrapped,
        subclassed,
        derived_layer,
        wrapped_layer,
        method_of_an_instance,
    )
}


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("change", UNUSUAL)
def test_unusual_modules_are_called(change: str, num_beams: int, steps: Steps) -> None:
    model, seen = make("flat"), list[str]()
    UNUSUAL[change](model, seen)
    steps.compare(model, num_beams=num_beams, min_new_tokens=8)
    assert steps.bound == 0 and steps.left == 7
    assert len(seen) == 16  # in the first step, too, and in both searches


@pytest.mark.parametrize(
    ("combiner", "kind", "name"),
    [
        ("hierarchical", FeedForward, "forward"),
        ("hierarchical", MultiHeadAttention, "forward"),
        ("hierarchical", HierarchicalCombiner, "combine"),
        ("serial", SerialCombiner, "attend_to_source"),
        ("mean", MeanCombiner, "logits"),
        ("projection", ProjectionCombiner, "complete"),
        ("projection", Bias, "forward"),
        ("serial", SerialCombiner, "keep_present"),
        ("serial", MultiHeadAttention, "split_heads"),
        ("tanh_concat", TanhConcatCombiner, "normalized_query"),
        ("mean", MeanCombiner, "drop"),
    ],
)
def test_methods_that_were_replaced_in_a_class_are_called(
    combiner: str, kind: Any, name: str, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, seen = getattr(kind, name), list[None]()

    def replaced(*args: Any, **kwargs: Any) -> Any:
        seen.append(None)
        return stock(*args, **kwargs)

    monkeypatch.setattr(kind, name, replaced)
    model, counts = make(combiner), list[int]()
    for steps.only_modules in (True, False):
        seen.clear()
        model.generate(**batch(), **SEARCH)
        counts.append(len(seen))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("num_beams", [1, 4])
def test_layers_in_another_order_keep_their_part_of_the_cache(num_beams: int, steps: Steps) -> None:
    model = make("flat", decoder_layers=3)
    layers = model.model.decoder.layers
    model.model.decoder.layers = nn.ModuleList([layers[1], layers[0], layers[2]]).eval()
    steps.compare(model, num_beams=num_beams, output_scores=True)
    assert steps.bound == 7


def test_dropout_of_a_single_layer_stays(steps: Steps) -> None:
    model = make("flat", dropout=0.5)
    model.model.decoder.layers[-1].train()
    torch.manual_seed(0)
    one, other = (model.generate(**batch(), **SEARCH, output_scores=True) for _ in range(2))
    assert steps.bound == 0
    assert not torch.equal(one.scores[-1], other.scores[-1])


class Hide(LogitsProcessor):
    """Hides a source from the third token on."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if input_ids.shape[1] == 3:
            self.mask.fill_(False)
        return scores


def test_a_source_that_is_hidden_during_the_search_is_hidden() -> None:
    model = make("flat")
    width = batch()["input_ids"].shape[1]
    found = []
    for fold in (True, False):
        encoded = model.get_encoder()(**batch())
        search: dict[str, Any] = {"max_new_tokens": 8, "fold_beams": fold}
        found.append(
            model.generate(
                encoder_outputs=encoded, logits_processor=[Hide(encoded.attention_mask[:2, :width])], **search
            )
        )
    plain = model.generate(**batch(), max_new_tokens=8)
    assert torch.equal(*found) and found[0].tolist() != plain.tolist()


@pytest.mark.parametrize("num_beams", [1, 4])
def test_outputs_that_were_asked_for_once_leave_nothing_behind(num_beams: int, steps: Steps) -> None:
    """Transformers never removes the hooks that collect them."""
    model = make("flat")
    model.generate(**batch(), **{**SEARCH, "num_beams": num_beams}, output_hidden_states=True)
    steps.bound = steps.left = 0
    steps.compare(model, num_beams=num_beams)
    assert steps.bound > 0 and steps.left == 0


def test_kernels_for_some_numbers_of_rows_are_used_as_by_the_modules(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    gains = [(0.5, 2.0, 2.0, 2.0), *[(0.5,) * 4] * 2]  # integers, from 4 rows on
    monkeypatch.setattr(inference, "measure_gains", lambda layers, kinds: gains[: len(kinds)])
    model = make("hierarchical")
    assert model.optimize_for_inference(int8=True)
    steps.compare(model, num_beams=1, output_scores=True)
    assert steps.bound > 0


def test_hooks_of_all_modules_are_called(steps: Steps) -> None:
    model, seen = make("flat"), list[str]()
    with torch.nn.modules.module.register_module_forward_hook(lambda module, *args: seen.append(type(module).__name__)):
        steps.compare(model)
    assert steps.bound == 0 and seen.count("DecoderLayer") == 2 * 8 * model.config.decoder_layers


def test_eager_attention_is_called(steps: Steps) -> None:
    model = make("flat")
    model.set_attn_implementation("eager")
    steps.compare(model)
    assert steps.bound == 0


def test_another_attention_of_that_name_is_called(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    stock, called = ALL_ATTENTION_FUNCTIONS["sdpa"], list[None]()

    def attend(*args: Any, **kwargs: Any) -> Any:
        called.append(None)
        return stock(*args, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", attend)
    steps.compare(make("flat"))
    assert steps.bound == 0 and called


def test_hidden_states_of_all_layers_are_given(steps: Steps) -> None:
    model = make("flat")
    found = steps.compare(model, output_hidden_states=True)
    assert steps.bound == 0
    assert [len(states) for states in found.decoder_hidden_states] == [model.config.decoder_layers + 1] * 8


@pytest.mark.parametrize("kind", ["plain", "optimized", "int8"])
def test_the_next_search_uses_changed_weights(kind: str, steps: Steps) -> None:
    model = make("flat")
    if kind != "plain":
        model.optimize_for_inference(int8=kind == "int8")
    before = steps.compare(model)
    with torch.no_grad():
        for module in model.model.decoder.layers.modules():
            if isinstance(module, nn.Linear):
                module.weight.mul_(1.5)
    assert not torch.equal(steps.compare(model).sequences_scores, before.sequences_scores)


def test_in_bfloat16_the_search_finds_the_same(steps: Steps) -> None:
    steps.compare(make("serial").bfloat16())
    assert steps.bound == 7


def test_a_copied_cache_binds_anew() -> None:
    cache = BeamCache(2, 1, 8)
    cache.step = object()
    assert copy.deepcopy(cache).step is None and cache.step is not None


class Left:
    """Counts the steps of a search for which `forward` was called, and those that `_run_beam_step` computed."""

    def __init__(self, model: Any) -> None:
        self.counts = {"called": 0, "computed": 0}
        self.run = model._run_beam_step
        model._run_beam_step = self

    def __call__(self, *args: Any) -> Any:
        found = self.run(*args)
        self.counts["called" if found is None else "computed"] += 1
        return found


READ: dict[str, dict[str, Any]] = {
    "best tokens": {},
    "several texts": {"num_return_sequences": 3},
    "sampling": {"do_sample": True},
    "scores": {"output_scores": True},
    "processors": {"no_repeat_ngram_size": 2, "min_new_tokens": 3},
    "shortlist": {"shortlist": torch.tensor([1, 2, 3, 5, 8, 9, 10, 11, 12, 13])},
    "a short shortlist": {"shortlist": torch.tensor([2, 3])},
    "length normalization": {"length_normalization": 0.6},
}


@pytest.mark.parametrize("options", READ)
@pytest.mark.parametrize("fields", [{}, {"final_logits_bias": True, "position_embedding": "learned"}])
def test_steps_that_do_not_call_forward_find_the_same(fields: dict[str, Any], options: str, steps: Steps) -> None:
    model = make("flat", **fields)
    if fields:
        model.final_logits_bias += torch.linspace(-1, 1, model.config.vocab_size)
    left = Left(model)
    run = model.generate

    def seeded(**inputs: Any) -> Any:  # the search may draw
        torch.manual_seed(1)
        return run(**inputs)

    model.generate = seeded
    steps.compare(model, **READ[options])
    assert left.counts["computed"] > 0


def test_only_the_first_two_steps_call_forward(steps: Steps) -> None:
    model = make("flat")
    left = Left(model)
    model.generate(**batch(), **SEARCH, eos_token_id=None, pad_token_id=0)  # no example leaves
    assert left.counts == {"called": 1, "computed": SEARCH["max_new_tokens"] - 2}  # the first one is not asked for


class Derived(modeling_multisource.MultiSourceForConditionalGeneration):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


def _compile(model: Any) -> None:
    model.forward = model.forward


WHOLES: dict[str, Callable[[Any], object]] = {
    "hook of the model": lambda model: model.register_forward_hook(lambda *_: None),
    "hook of its body": lambda model: model.model.register_forward_pre_hook(lambda *_: None),
    "hook of the decoder": lambda model: model.model.decoder.register_forward_hook(lambda *_: None),
    "another forward": _compile,
    "a derived class": lambda model: setattr(model, "__class__", Derived),
}


@pytest.mark.parametrize("change", WHOLES)
def test_whole_models_that_do_more_use_the_cache_of_transformers_without_beams(change: str, steps: Steps) -> None:
    model = make("flat")
    WHOLES[change](model)
    steps.compare(model, num_beams=1)
    assert steps.bound == steps.left == 0


@pytest.mark.parametrize("change", ["hook of the model", "another forward", "a derived class"])
@pytest.mark.parametrize("family", ["flat", LSTM])
def test_whoever_changes_forward_gets_all_logits(change: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, widths = make(family), set[int]()

    def read(module: Any, args: Any, output: Any) -> None:
        widths.add(output.logits.shape[-1])

    if change == "hook of the model":
        model.register_forward_hook(read)
    else:
        holder: Any = model if change == "another forward" else type("Mine", (type(model),), {})
        stock = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = stock(*args, **kwargs)
            read(model, args, output)
            return output

        holder.forward = (
            forward if change == "another forward" else lambda self, *args, **kwargs: forward(*args, **kwargs)
        )
        if change == "a derived class":
            model.__class__ = holder
    found = model.generate(**batch(), **SEARCH)
    assert widths == {model.config.vocab_size}
    torch.testing.assert_close(found.sequences, make(family).generate(**batch(), **SEARCH).sequences)


@pytest.mark.parametrize("in_class", [False, True])
def test_another_preparation_of_inputs_is_called_in_each_step(in_class: bool) -> None:
    model, seen = make("flat"), list[None]()
    stock = model.prepare_inputs_for_generation

    def prepare(*args: Any, **kwargs: Any) -> Any:
        seen.append(None)
        return stock(*args, **kwargs)

    if in_class:
        name = "prepare_inputs_for_generation"
        model.__class__ = type("Mine", (type(model),), {name: lambda self, *args, **kwargs: prepare(*args, **kwargs)})
    else:
        model.prepare_inputs_for_generation = prepare
    model.generate(**batch(), **SEARCH, min_new_tokens=8)
    assert len(seen) == 8


@pytest.mark.parametrize("change", WHOLES)
def test_whole_models_that_do_more_are_called(change: str, steps: Steps) -> None:
    model = make("flat")
    WHOLES[change](model)
    left = Left(model)
    steps.compare(model)
    assert left.counts["computed"] == 0 and steps.bound > 0


@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_attention_mask_of_the_target_is_read(num_beams: int, steps: Steps) -> None:
    model = make("flat")
    left = Left(model)
    begin = torch.full((5, 3), 5)
    mask = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1], [1, 1, 1], [0, 1, 1]])
    search = {"num_beams": num_beams, "decoder_input_ids": begin, "min_new_tokens": 4}
    padded = steps.compare(model, **search, decoder_attention_mask=mask)
    assert left.counts["computed"] == 0 and steps.bound > 0
    assert not torch.equal(padded.sequences, steps.compare(model, **search).sequences)
