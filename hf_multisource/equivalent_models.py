"""Conversion of a model to an equivalent model: with another combiner, or with an encoder instead of its features."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .combiner_weights import candidates, neutral_values
from .configuration_multisource import MultiSourceConfig, SourceConfig
from .encoders import wrapped_weights
from .source_kinds import SOURCE_KINDS

Model = TypeVar("Model", bound=PreTrainedModel)  # one of this package

# Groups of combiners that are equivalent for suitable weights. With one source all of these combiners are equivalent.
ALIKE = (("serial", "gated_serial"), ("parallel", "projection"), ("mean", "weighted_sum", "context_gate"), ("flat",))
PAIRS = (
    "serial and gated_serial (back, with post-norm, if no source is gated); parallel and projection (back, with "
    "several sources, if its bias is 0); mean and weighted_sum (back, if its weights are equal), and either to "
    "context_gate; "
    f"with one source, any two of {', '.join(name for names in ALIKE for name in names)}"
)


def convert_combiner(model: Model, combiner: str) -> Model:
    """Convert a model to another combiner without changing its output.

    The following pairs of combiners can be converted exactly. W_O and b_O are the output projection of a source's
    attention:

        serial -> gated_serial         none of the sources is gated
        gated_serial -> serial         W_O <- tanh(a_i) W_O, b_O <- tanh(a_i) b_O; not for gated sources with post-norm
        parallel -> projection         W_i = I, b = 0
        projection -> parallel         W_O <- W_i W_O, b_O <- W_i b_O; b must be 0 with several sources, because it is
                                       added once, whichever sources are present; with one source b is added to b_O
        mean -> weighted_sum           w = 0
        weighted_sum -> mean           if all w_i are equal
        mean, weighted_sum -> context_gate    U_i = 0, b_i = w_i

    With one source all of these combiners and flat differ only in the names of their parameters. The models are
    equivalent in evaluation mode; in training mode they can apply dropout at different places.

    Args:
        model: A model of this package, which is not changed.
        combiner: Name of the new combiner.

    Returns:
        A new model.

    Raises:
        ValueError: If there is no exact conversion; the message gives the reason and lists the possible pairs.
    """
    config: Any = copy.deepcopy(model.config)
    names, old = config.source_names, config.combiner
    if combiner == old:
        return copy.deepcopy(model)
    for either in (old, combiner):
        if not any(either in alike for alike in ALIKE):
            raise _inexact(old, combiner, f"{either!r} is equivalent to no other combiner")
    if len(names) > 1 and not any(old in alike and combiner in alike for alike in ALIKE):
        raise _inexact(old, combiner, f"there are {len(names)} sources")
    config.combiner = combiner
    for source in config.sources:
        source.gated = False if combiner == "gated_serial" else None
    new = _built_like(model, config)
    weights = model.state_dict()
    layers: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key in list(weights):
        layer, found, rest = key.partition(".cross_attn.")
        if found:
            layers[layer][rest] = weights.pop(key)
    plain = {layer: _plain(parts, old, combiner, config) for layer, parts in layers.items()}
    for key, parameter in new.state_dict().items():
        layer, found, rest = key.partition(".cross_attn.")
        if found:
            origins = candidates(rest, {name: name for name in names}, names[0], same_combiner=True)
            value = next((plain[layer][name] for name in origins if name in plain[layer]), None)
            weights[key] = neutral_values(combiner, rest, parameter) if value is None else value
    new.load_state_dict(weights)
    return new


def _built_like(model: Model, config: MultiSourceConfig) -> Model:
    """Build a model with another configuration, on the same device and in the same mode as a given model."""
    new: Any = type(model)(config)
    new.to(device=model.device, dtype=model.dtype).train(model.training)
    if hasattr(model, "generation_config"):
        new.generation_config = copy.deepcopy(model.generation_config)
    return cast(Model, new)


def _inexact(old: str, new: str, why: str) -> ValueError:
    return ValueError(
        f"{old!r} cannot become {new!r} without changing what the model computes: {why}. Possible: {PAIRS}."
    )


def _plain(parts: Mapping[str, Tensor], old: str, new: str, config: MultiSourceConfig) -> dict[str, Tensor]:
    """Return one layer's parameters for the new combiner, by their old names, without parameters that are neutral."""
    parts = dict(parts)
    names = config.source_names
    gates = {name: [parts.pop(key) for key in _of(name, "gate", parts)] for name in names}
    if old == "gated_serial":
        for name in (name for name in names if gates[name]):
            if config.norm_position == "post":
                raise _inexact(old, new, f"{name} is gated, and pre-norm where the others are post-norm")
            for key in _of(name, "out_proj", parts):
                parts[key] = parts[key] * gates[name][0].tanh()
    elif old == "weighted_sum" and len(names) > 1:
        if new == "mean" and any(not torch.equal(gates[name][0], gates[names[0]][0]) for name in names):
            raise _inexact(old, new, "its weights are not equal")
        if new == "context_gate":
            parts |= {f"{name}.gate.bias": gates[name][0].expand(config.d_model) for name in names}
    elif old == "context_gate" and len(names) > 1:
        raise _inexact(old, new, "its weights depend on what is attended to")
    elif old == "projection":
        bias = parts.pop("projection.bias")
        if bias.any() and (len(names) > 1 or not config.attention_bias):
            raise _inexact(old, new, "its bias is not 0")
        for name in names:
            matrix = parts.pop(f"{name}.projection.weight")
            parts[f"{name}.out_proj.weight"] = matrix @ parts[f"{name}.out_proj.weight"]
            if config.attention_bias:
                parts[f"{name}.out_proj.bias"] = matrix @ parts[f"{name}.out_proj.bias"] + bias
    return parts


def _of(name: str, part: str, parts: Mapping[str, Tensor]) -> list[str]:
    return [key for key in parts if key.startswith(f"{name}.{part}.")]


def attach_encoder(model: Model, source: str, encoder: PreTrainedModel, *, freeze: bool = True) -> Model:
    """Replace the features of a source by the encoder that computed them.

    A model can thus be trained on precomputed feature maps of an image network and be published as a model that reads
    pictures. The output for a picture is the same as for its features.

    Args:
        model: A model of this package, which is not changed.
        source: Name of a source of kind "features" without encoder layers and positions.
        encoder: The model whose last hidden state are the features; of an encoder-decoder the encoder is used.
        freeze: Whether the encoder is frozen in further training.

    Returns:
        A new model, whose source is of kind "pretrained".

    Raises:
        ValueError: If the source is of another kind, has layers, positions or a shared encoder, or the encoder's states
            have another width; the message names the source and both widths.
    """
    config: Any = copy.deepcopy(model.config)
    entry = config.get_source(source)
    settings = config.encoder_settings(source)
    shares = entry.share_encoder_with or any(other.share_encoder_with == source for other in config.sources)
    if entry.kind != "features" or settings.layers or settings.position_embedding != "none" or shares:
        raise ValueError(
            f"sources[{source}] must be of kind 'features', without layers, positions or a shared encoder; got {entry}."
        )
    left_out = {"kind", *SOURCE_KINDS[entry.kind].fields}
    fields = {key: value for key, value in entry.to_dict().items() if key not in left_out}
    fields |= {"projection": True, "norm": entry.norm is not False, "dropout": entry.dropout, "freeze": freeze}
    wrapped = SourceConfig(kind="pretrained", encoder=copy.deepcopy(encoder.config), **fields)
    config.sources = [wrapped if other.name == source else other for other in config.sources]
    new = _built_like(model, config)
    part = new.get_encoder().sources[source]
    if part.width != entry.feature_size:
        raise ValueError(
            f"sources[{source}].feature_size is {entry.feature_size}; a {type(encoder).__name__} makes states of "
            f"{part.width}."
        )
    new.load_state_dict({**model.state_dict(), **wrapped_weights(new, source, encoder)})
    return new


__all__ = ["attach_encoder", "convert_combiner"]
