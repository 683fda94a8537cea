"""Optimized models compute queries, keys and values in one matrix product; the three layers keep their parameters."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builders import first_is_best, tiny_config
from builders import three_source_batch as batch
from builders import three_source_model as make
from hf_multisource import inference
from hf_multisource.attention import MultiHeadAttention
from hf_multisource.inference import FBGEMMInt8Linear, Int8Linear, OneDNNLinear, join_layers

KINDS: dict[str, Any] = {"oneDNN": OneDNNLinear, "int8": Int8Linear}
if FBGEMMInt8Linear.available():
    KINDS["int8 (FBGEMM)"] = FBGEMMInt8Linear
NAMES = ("q_proj", "k_proj", "v_proj")
CHANGES = ["in place", "merged", "another", "replaced", "bias", "loaded"]


def attention(kind: str, bias: bool = True) -> Any:
    """Self-attention whose layers are of a kind, joined."""
    torch.manual_seed(0)
    config = tiny_config(d_model=16, decoder_attention_heads=2, attention_bias=bias, attn_implementation="sdpa")
    module: Any = MultiHeadAttention(config, 2).eval()
    for layer in module.children():
        layer.__class__ = KINDS[kind]
    join_layers(module)
    return module


def apart(module: Any) -> Any:
    """The same self-attention with its layers called one by one."""
    other = copy.deepcopy(module)
    other.joined_layers = None
    return other


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts products by kind; those of both kinds of 8 bits together."""
    counts: Counter[str] = Counter()
    for kind in (OneDNNLinear, Int8Linear):

        def compute(self: Any, *args: Any, name: str = kind.__name__, stock: Any = kind.compute) -> Tensor:
            counts[name] += 1
            found: Tensor = stock(self, *args)
            return found

        monkeypatch.setattr(kind, "compute", compute)
    return counts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_joined_layers_are_one_product_with_the_same_output(kind: str, bias: bool, products: Counter[str]) -> None:
    module = attention(kind, bias)
    for shape in [(1, 1), (3, 5), (5, 1)]:
        states = torch.randn(*shape, 16)
        products.clear()
        found, _ = module(states)
        assert products.total() == 2
        torch.testing.assert_close(found, apart(module)(states)[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_change_of_any_layer_is_noticed(kind: str, name: str, change: str) -> None:
    module, states = attention(kind), torch.randn(3, 2, 16)
    before, _ = module(states)
    layer = getattr(module, name)
    new = torch.randn_like(layer.weight)
    if change == "in place":
        layer.weight.copy_(new)
    elif change == "merged":  # as PEFT does; it is no new version of the weight
        layer.weight.data += new
    elif change == "another":
        layer.weight = nn.Parameter(new)
    elif change == "replaced":
        setattr(module, name, nn.Linear(16, 16))
    elif change == "bias":
        layer.bias.add_(torch.randn(16))
    else:
        layer.load_state_dict({"weight": new, "bias": layer.bias})
    found, _ = module(states)
    if (name, change) != ("k_proj", "bias"):  # which adds the same to all scores of a query
        assert not torch.allclose(found, before, atol=0.01)
    torch.testing.assert_close(found, apart(module)(states)[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_layer_with_a_hook_is_called(name: str) -> None:
    module, states, seen = attention("oneDNN"), torch.randn(3, 2, 16), list[str]()
    before, _ = module(states)
    for add in ("register_forward_hook", "register_forward_pre_hook"):
        handle = getattr(getattr(module, name), add)(lambda *args, add=add: seen.append(add))
        torch.testing.assert_close(module(states)[0], before, atol=1e-6, rtol=1e-5)
        handle.remove()
    layer = getattr(module, name)
    stock = layer.forward

    def forward(states: Tensor) -> Tensor:
        seen.append("forward")
        found: Tensor = stock(states)
        return found

    layer.forward = forward  # as Accelerate does
    module(states)
    assert seen == ["register_forward_hook", "register_forward_pre_hook", "forward"]


def test_layers_of_which_gradients_are_wanted_are_called_one_by_one(products: Counter[str]) -> None:
    module = attention("oneDNN")
    module(torch.randn(3, 2, 16))[0].sum().backward()
    assert not products and module.v_proj.weight.grad is not None


@torch.no_grad()
def test_layers_of_different_kinds_are_not_joined() -> None:
    module = attention("oneDNN")
    for change in ({"__class__": Int8Linear}, {"rows": (0, 10)}):
        other = apart(module)
        for name, value in change.items():
            setattr(other.k_proj, name, value)
        join_layers(other)
        assert other.joined_layers is None


@torch.no_grad()
def test_copies_join_their_own_layers() -> None:
    module, states = attention("oneDNN"), torch.randn(3, 2, 16)
    before, _ = module(states)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin.joined_layers._packed is None and module.joined_layers._packed is not None
        assert twin.joined_layers.layers == (twin.q_proj, twin.k_proj, twin.v_proj)
        twin.q_proj.weight.zero_()
        torch.testing.assert_close(twin(states)[0], apart(twin)(states)[0], atol=1e-6, rtol=1e-5)
        assert torch.equal(module(states)[0], before)


@pytest.mark.parametrize("int8", [False, True])
def test_an_optimized_model_joins_its_self_attentions(
    int8: bool, products: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "measure_gains", first_is_best)
    model = make("flat")
    names = set(model.state_dict())
    model.optimize_for_inference(int8=int8)
    search = {"num_beams": 3, "min_new_tokens": 5, "max_new_tokens": 5}
    together = model.generate(**batch(), **search)
    with_joined = products.total()
    others = [module for module in model.modules() if getattr(module, "joined_layers", None)]
    for module in others:
        module.joined_layers = None
    products.clear()
    assert torch.equal(model.generate(**batch(), **search), together)
    config = model.config
    calls = config.decoder_layers * 5 + config.encoder_layers * len(config.sources)
    assert products.total() - with_joined == 2 * calls
    assert set(model.state_dict()) == names
