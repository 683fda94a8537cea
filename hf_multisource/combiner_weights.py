"""Which parameter of one combiner takes the values of which parameter of another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .architectures import Checkpoint

ATTENTION = re.compile(r"^\w+\.(?:q|k|v|out)_proj\.\w+$")
NORM = re.compile(r"^(?:\w+\.)?(layer_norm\.\w+)$")


def transferred_weights(
    model: PreTrainedModel, origin: Checkpoint, names: Mapping[str, str], decoder: str
) -> tuple[dict[str, Tensor], set[str]]:
    """Find what a checkpoint has for the combiners of a model.

    Args:
        model: The new model.
        origin: The checkpoint that gives its decoder.
        names: The checkpoint's sources by the names that they have in the model.
        decoder: The checkpoint's source whose attention those sources get that the checkpoint lacks.

    Returns:
        The weights by their names in the model, and the names of the checkpoint's weights that have no place there.
    """
    weights, used = {}, set()
    config = model.config
    for key, parameter in model.state_dict().items():
        layer, found, rest = key.partition(".cross_attn.")
        if not found:
            continue
        # Before the query of a new gated source is a norm; in post-norm models there is no such norm elsewhere.
        gated = config.combiner == "gated_serial" and rest.partition(".")[0] not in names
        alone = gated and config.norm_position == "post" and NORM.match(rest)
        for candidate in () if alone else candidates(rest, names, decoder, config.combiner == origin.config.combiner):
            name = f"{layer}.cross_attn.{candidate}"
            if name in origin.weights and origin.weights[name].shape == parameter.shape:
                weights[key] = origin.weights[name]
                used.add(name)
                break
        else:
            if (value := neutral_values(config.combiner, rest, parameter)) is not None:
                weights[key] = value
    return weights, {name for name in origin.weights if ".cross_attn." in name} - used


def candidates(rest: str, names: Mapping[str, str], decoder: str, same_combiner: bool) -> Iterator[str]:
    """List the parameters of an old combiner that a parameter of a new one may be taken from.

    Args:
        rest: Name of the parameter in the new combiner.
        names: Sources of the old combiner by their names in the new one.
        decoder: The old combiner's source whose attention new sources get.
        same_combiner: Whether both are the same strategy.

    Yields:
        Names in the old combiner, the best first.
    """
    owner, _, own = rest.partition(".")
    attention, norm = ATTENTION.match(rest), NORM.match(rest)
    if owner in names and (attention or norm or same_combiner):
        yield f"{names[owner]}.{own}"
    elif same_combiner:
        yield rest
    if attention and owner != "hierarchy":
        yield from (f"{decoder}.{own}", f"joint.{own}")
    if norm:
        yield from (f"{decoder}.{norm[1]}", norm[1])


def neutral_values(combiner: str, rest: str, parameter: Tensor) -> Tensor | None:
    """Return values with which a combiner computes what one without the parameter would.

    Args:
        combiner: The combiner.
        rest: Name of the parameter in the combiner.
        parameter: The parameter.

    Returns:
        The values; None if there are none.
    """
    if combiner == "projection" and ".projection." in rest:
        return torch.eye(len(parameter))
    names = {
        "projection": ("projection.bias",),
        "gated_serial": ("gate.bias",),
        "weighted_sum": ("gate.bias",),
        "context_gate": ("gate.weight", "gate.bias"),
    }
    return torch.zeros_like(parameter) if rest.endswith(names.get(combiner, ())) else None


__all__ = ["candidates", "neutral_values", "transferred_weights"]
