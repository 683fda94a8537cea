"""Transfer of combiner weights from a checkpoint to a model with another combiner or other sources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .architectures import Checkpoint

ATTENTION = re.compile(r"^\w+\.(?:q|k|v|out)_proj\.\w+$")  # names of attention projections in a combiner
NORM = re.compile(r"^(?:\w+\.)?(layer_norm\.\w+)$")  # names of layer norms, of a source or shared


def transferred_weights(
    model: PreTrainedModel, origin: Checkpoint, names: Mapping[str, str], decoder: str
) -> tuple[dict[str, Tensor], set[str]]:
    """Find the weights of a checkpoint with which the combiners of a model are initialized.

    Args:
        model: The new model.
        origin: The checkpoint that provides the decoder.
        names: Names of the checkpoint's sources by the names of the model's sources.
        decoder: The checkpoint's source whose attention initializes sources that the checkpoint lacks.

    Returns:
        The weights by their names in the model, and the names of the checkpoint's weights that the model does not use.
    """
    weights, used = {}, set()
    config = model.config
    for key, parameter in model.state_dict().items():
        layer, found, rest = key.partition(".cross_attn.")
        if not found:
            continue
        # A gated source normalizes its query (pre-norm); a post-norm checkpoint has no such layer norm to copy from.
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
    """Yield the parameters of an old combiner from which a parameter of a new combiner can be initialized.

    Args:
        rest: Name of the parameter in the new combiner.
        names: Names of the old combiner's sources by the names of the new combiner's sources.
        decoder: The old combiner's source whose attention initializes new sources.
        same_combiner: Whether both combiners have the same strategy.

    Yields:
        Parameter names in the old combiner, the best match first.
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
    """Return the values with which a parameter has no effect on the output of its combiner.

    Args:
        combiner: Name of the combiner.
        rest: Name of the parameter in the combiner.
        parameter: The parameter.

    Returns:
        The neutral values; None if the parameter has no neutral values.
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
