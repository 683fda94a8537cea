"""Initialize a training with the weights of a trained model, which may have fewer sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from hf_multisource.architectures import translate
from hf_multisource.combiner_weights import transferred_weights
from hf_multisource.configuration_multisource import MultiSourceConfig
from hf_multisource.foreign import build_auto, load_auto
from hf_multisource.messages import first_line
from hf_multisource.recipes.pretrained import load_config
from hf_multisource.recipes.recipe import Recipe

SEQ2SEQ = "AutoModelForSeq2SeqLM"
CROSS = ".cross_attn."


def matching_weights(model: PreTrainedModel, trained: PreTrainedModel) -> dict[str, Tensor]:
    """Map the weights of a trained model to the parameters of a new one.

    Encoders and cross-attentions are matched by the name of the source, independent of its position. If sources share
    an encoder in the new model, it gets the weights of the first of them that the trained model has. The
    cross-attention of a source that the trained model lacks is copied from the first source that both models have. With
    the combiner gated_serial, whose gates are closed initially, the output of the new model initially equals that of
    the trained model, provided that the trained model has the combiner serial or a single source, and that its sources
    are not gated in the new model and have the same order.

    Args:
        model: The new model.
        trained: The trained one.

    Returns:
        The weights by parameter name of the new model.

    Raises:
        ValueError: If the models have no source in common, a source that the trained one reads without a gate is gated
            in the new one, or their decoders or the encoders of a common source differ in shape.
    """
    config: Any = model.config
    old: Any = trained.config
    common = [name for name in config.source_names if name in old.source_names]
    if not common:
        theirs, ours = (", ".join(one.source_names) for one in (old, config))
        raise ValueError(f"the trained model reads {theirs}, and none of the sources {ours}")
    origin, state = translate(trained), model.state_dict()
    if config.combiner == "gated_serial":
        shut = [name for name, gated in zip(config.source_names, config.gated_sources, strict=True) if gated]
        if hidden := [name for name in shut if name in common and not origin.is_gated(name)]:
            raise ValueError(
                f"model.sources[{hidden[0]}].gated must be false: the trained model reads {hidden[0]} without a gate, "
                "and gates are shut at first (the default is true for all sources but the first)"
            )
    weights = origin.decoder_weights()
    places = {key for key in state if not key.startswith("model.encoder.") and CROSS not in key}
    # Reversed, so that the first of several sources that share an encoder takes precedence.
    for name in reversed(common):
        owner = str(config.encoder_owner(name).name)
        weights |= origin.encoder_weights(origin.owner(name), owner)
        places |= {key for key in state if key.startswith(f"model.encoder.sources.{owner}.")}
    if differing := sorted(places ^ weights.keys()):
        which = "it lacks" if differing[0] in places else "this model has no place for its"
        raise ValueError(f"the trained model has another shape: {which} {differing[0]}")
    for name in common:
        for table in ("source_embeddings", "absent_vectors"):
            vector = origin.vector_of(name, name, table)
            weights |= {key: value for key, value in vector.items() if key in state}
    weights |= transferred_weights(model, origin, {name: name for name in common}, common[0])[0]
    for name, value in weights.items():
        if state[name].shape != value.shape:
            here, there = (" x ".join(map(str, tensor.shape)) for tensor in (state[name], value))
            raise ValueError(f"{name} is {here} in this model, and {there} in the trained one")
    return weights


def check_initial(recipe: Recipe) -> None:
    """Check before any text is read that the model of `model.init_from` can initialize the model of a recipe.

    Args:
        recipe: The recipe; nothing is checked without `model.init_from`.

    Raises:
        ValueError: If there is no such model, it has another model_type or shape, or `tokenizer.load` is also set.
    """
    if (name := recipe.init_from) is None:
        return
    if recipe.tokenizer.load is not None:
        raise ValueError(
            f"tokenizer.load is {recipe.tokenizer.load!r}, but the tokenizers are those of model.init_from ({name}): "
            "leave it out"
        )
    try:
        old: Any = load_config(name)
    except ValueError as error:
        raise ValueError(f"model.init_from: {error}") from error
    kind = recipe.model.get("model_type", MultiSourceConfig.model_type)
    if not kind == old.model_type == MultiSourceConfig.model_type:
        raise ValueError(
            f"model.init_from is {name!r}, of model_type {old.model_type}, and this model is of model_type {kind}; "
            f"both must be of model_type {MultiSourceConfig.model_type}"
        )
    shared = [source for source in recipe.own_texts() if source in old.source_names]
    sizes = {source: old.encoder_owner(source).vocab_size for source in shared}
    sizes = {source: size for source, size in sizes.items() if size is not None}
    with torch.device("meta"):
        model, trained = (build_auto(SEQ2SEQ, config) for config in (recipe.model_config(old.vocab_size, sizes), old))
        try:
            matching_weights(model, trained)
        except ValueError as error:
            raise ValueError(f"model.init_from is {name!r}: {error}") from error


def begin_with(model: PreTrainedModel, name: str) -> dict[str, object]:
    """Load the weights of a trained model into a new model.

    Args:
        model: The new model.
        name: Folder or Hub id of the trained model.

    Returns:
        Facts for the log: the trained model, and the numbers of loaded and of new parameters.

    Raises:
        ValueError: If the trained model cannot be loaded, or its weights do not fit.
    """
    try:
        trained = load_auto(SEQ2SEQ, name, dtype=model.dtype)
        weights = matching_weights(model, trained)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ValueError(f"model.init_from is {name!r}: {first_line(error)}") from error
    model.load_state_dict(weights, strict=False)
    own = dict(model.named_parameters())
    tied = {id(parameter) for key, parameter in model.named_parameters(remove_duplicate=False) if key in weights}
    taken = sum(parameter.numel() for parameter in own.values() if id(parameter) in tied)
    total = sum(parameter.numel() for parameter in own.values())
    return {"from": Path(name), "parameters": taken, "new": total - taken}
