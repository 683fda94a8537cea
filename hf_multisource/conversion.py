"""From checkpoints that exist already to a model of several sources."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from .architectures import FAMILIES, Checkpoint, is_translatable, translate
from .combiner_weights import transferred_weights
from .combiners import COMBINERS
from .configuration_multisource import FIELDS_OF_KIND, MultiSourceConfig, check_choice
from .encoders import wrapped_weights
from .foreign import load_auto

logger = logging.get_logger(__name__)

# What all text encoders and the decoder of a model have in common.
MODEL_WIDE = (
    *("d_model", "norm_position", "activation_function", "attention_bias", "layer_norm_eps"),
    *("scale_embedding", "embedding_norm", "position_offset"),
)
# Settings of a source by the model-wide setting that stands in for one left out.
OF_SOURCE = {
    "layers": "encoder_layers",
    "attention_heads": "encoder_attention_heads",
    "ffn_dim": "encoder_ffn_dim",
    "dropout": "dropout",
    "pad_token_id": "pad_token_id",
    "position_embedding": "position_embedding",
    "max_position_embeddings": "max_position_embeddings",
}
# The fields that weights do not depend on; the others are the checkpoint's.
FREE_FIELDS = (
    *("dropout", "attention_dropout", "activation_dropout", "source_dropout", "label_smoothing", "use_cache"),
    *("hierarchical_heads", "query_norm", "initializer", "init_std"),
)
FREE_SOURCE_FIELDS = ("dropout", "source_dropout", "freeze", "norm", "gated")
LAYER = re.compile(r"\.layers\.\d+\.")
DECODER_TABLE = "model.decoder.embeddings.tokens.weight"


class FromSourcesMixin:
    """The way from checkpoints that exist to a model with several sources."""

    @classmethod
    def from_pretrained_sources(
        cls,
        sources: Mapping[str, str | Path | PreTrainedModel],
        decoder: str,
        combiner: str | None = None,
        source_fields: Mapping[str, Mapping[str, Any]] | None = None,
        **config_fields: Any,
    ) -> Any:
        """Make a model of checkpoints: an encoder from each, the decoder from one of them.

        The decoder is that of a Marian, BART, mBART, M2M100 or NLLB model, or of one of this package. With it come the
        output layer, the settings of generation, and every source's cross-attention (of a model of this package, that
        of the source of the same name). An encoder of one of these models that fits the decoder (same width, norm
        position, activation, scale) becomes one of our own; any other checkpoint that `AutoModel` loads is wrapped:
        text encoders, image networks, speech encoders, the encoder of an encoder-decoder. What no checkpoint has is
        drawn anew, and a warning names it.

        With one source the model computes what the checkpoint does. With several it does as long as only the decoder's
        source is present, unless `combiner` is hierarchical, tanh_concat or flat_normed; with gated_serial also if
        others are present: they are gated, unless they come from the decoder's checkpoint, and the gates are shut.

        The same checkpoint given for several sources (the same path, or the same object) gives them one encoder, which
        they share. Layer dropout is left out: it acts in training only. Source tokens are counted from the first,
        padding included, which M2M100 does not do: pad on the right. mBART moves the last label to the front of the
        decoder's input; here that begins with `decoder_start_token_id`, which an mBART for one pair of languages lacks:
        set it for training.

        Args:
            sources: Folder, Hub id or model, by the name of the source; in this order they become the model's sources.
            decoder: Name of the source whose checkpoint gives the decoder.
            combiner: Strategy of the decoder's cross-attention; a key of `hf_multisource.COMBINERS`. None: that of the
                decoder's checkpoint, if it is a model of several sources of this package, else serial. A warning says
                where such a checkpoint gets another one.
            source_fields: By source, `dropout`, `source_dropout`, `freeze`, `norm` and `gated` of its [`SourceConfig`].
            **config_fields: Settings of [`MultiSourceConfig`] that weights do not depend on.

        Returns:
            The model, in evaluation mode.

        Raises:
            ValueError: If the decoder's checkpoint is of another kind, models of this package do not fit together, a
                name is unknown, or a setting is the checkpoints' to make; the message names the source, the setting and
                both values.
            OSError: If weights are in a pickle only.

        Example:
            >>> from hf_multisource import MultiSourceForConditionalGeneration
            >>> model = MultiSourceForConditionalGeneration.from_pretrained_sources(
            ...     {"en": "Helsinki-NLP/opus-mt-en-cs", "image": "google/vit-base-patch16-224"}, "en", "gated_serial"
            ... )  # doctest: +SKIP
        """
        if decoder not in sources:
            raise ValueError(f"decoder must name one of the sources ({', '.join(sources)}); got {decoder!r}.")
        if combiner is not None:
            check_choice("combiner", combiner, tuple(COMBINERS))
        source_fields = source_fields or {}
        _check_free("source_fields", source_fields, tuple(sources))
        _check_free("the configuration", config_fields, FREE_FIELDS)
        for name, fields in source_fields.items():
            _check_free(f"source_fields[{name}]", fields, FREE_SOURCE_FIELDS)
        models: dict[Any, Any] = {}
        for value in sources.values():
            if (key := _identity(value)) not in models:
                models[key] = load(cls, value)
        place = _identity(sources[decoder])
        origin = translate(models[place])
        combiner = _chosen_combiner(combiner, models[place])
        others = {key: model for key, model in models.items() if key != place and is_translatable(model)}
        checkpoints = {place: origin, **{key: translate(model) for key, model in others.items()}}

        listed: list[dict[str, Any]] = []
        weights: dict[str, Tensor] = {}
        owners: dict[Any, str] = {}
        for name, value in sources.items():
            key = _identity(value)
            checkpoint = checkpoints.get(key) if _fits(name, checkpoints.get(key), origin) else None
            own = "" if checkpoint is None else checkpoint.owner(name)  # "": its encoder is wrapped
            source: dict[str, Any]
            if (key, own) in owners:
                kind = "pretrained" if checkpoint is None else checkpoint.config.get_source(own).kind
                source = {"kind": kind, "share_encoder_with": owners[key, own]}
            elif checkpoint is None:
                source = {"kind": "pretrained", "encoder": copy.deepcopy(models[key].config)}
            else:
                source = _source_fields(checkpoint, own, origin)
                weights.update(checkpoint.encoder_weights(own, name))
            owners.setdefault((key, own), name)
            if combiner == "gated_serial":
                source["gated"] = checkpoint is not origin or origin.is_gated(name)
            listed.append({"name": name, **source, **source_fields.get(name, {})})
        if "dropout" in config_fields:
            for source in listed:
                if "dropout" not in source_fields.get(source["name"], {}):
                    source.pop("dropout", None)
        chosen = MultiSourceConfig.setting_names() - {"sources", "combiner"}
        kept = {field: getattr(origin.config, field) for field in chosen}
        config = MultiSourceConfig(**{**kept, **config_fields}, sources=listed, combiner=combiner)
        model: Any = cls(config).to(origin.dtype).eval()  # type: ignore[call-arg, attr-defined]
        names = {name: origin.own_source(name) for name, value in sources.items() if _identity(value) == place}
        transferred, left = transferred_weights(model, origin, names, names[decoder])
        _tell("These parameters of the decoder's checkpoint have no place in the model: %s", left)
        weights |= origin.decoder_weights() | transferred
        for (key, own), name in owners.items():
            if not own:
                weights |= wrapped_weights(model, name, models[key])
        _fill(model, weights)
        model.generation_config = copy.deepcopy(origin.generation_config)
        model.generation_config._from_model_config = False
        return model


def _chosen_combiner(combiner: str | None, origin: Any) -> str:
    """The combiner of a new model; warns if it is not that of a checkpoint which has one."""
    several = len(getattr(origin.config, "sources", ())) > 1
    own = origin.config.combiner if several else None
    if combiner is None:
        return own or "serial"
    if own is not None and combiner != own and (own, combiner) != ("serial", "gated_serial"):  # these agree
        logger.warning(
            f"the decoder's checkpoint combines its sources by combiner={own!r}, and the new model by {combiner!r}: it "
            "computes something else until it is trained. Leave combiner out to keep the checkpoint's."
        )
    return combiner


def _identity(value: Any) -> Any:
    return id(value) if isinstance(value, PreTrainedModel) else str(value)


def _check_free(what: str, given: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for name in given:
        if name not in allowed:
            raise ValueError(f"{what} can set {', '.join(allowed)}; got {name!r}.")


def load(model_class: Any, value: str | Path | PreTrainedModel) -> PreTrainedModel:
    """Load a checkpoint, unless it is a model already.

    Args:
        model_class: Class of our models, with which those of this package are loaded.
        value: Folder, Hub id or model.

    Returns:
        The model: with its output layer, if it is one that can be translated.
    """
    if isinstance(value, PreTrainedModel):
        return value
    kind = PreTrainedConfig.get_config_dict(value)[0].get("model_type")
    if kind == MultiSourceConfig.model_type:
        ours: PreTrainedModel = model_class.from_pretrained(value)
        return ours
    model: PreTrainedModel = load_auto("AutoModelForSeq2SeqLM" if kind in FAMILIES else "AutoModel", value)
    return model


def _fits(name: str, checkpoint: Checkpoint | None, origin: Checkpoint) -> bool:
    """Whether a checkpoint's encoder can be one of our own beside the origin's decoder; otherwise it is wrapped."""
    if checkpoint is None:
        return False
    for field in MODEL_WIDE:
        value, wanted = getattr(checkpoint.config, field), getattr(origin.config, field)
        if value != wanted and checkpoint.is_ours:
            raise ValueError(
                f"sources[{name}]: its checkpoint has {field}={value!r}, that of the decoder {field}={wanted!r}; they "
                "must agree."
            )
        if value != wanted:
            logger.info(f"{name} keeps its class of encoder: its {field} is {value!r}, the decoder's {wanted!r}.")
            return False
    return True


def _source_fields(checkpoint: Checkpoint, owner: str, origin: Checkpoint) -> dict[str, Any]:
    """Settings of a source with an encoder of its own; those that are the model's anyway are left out."""
    config = checkpoint.config
    shared = ("name", "gated", "share_encoder_with", "share_embeddings_with", "vocab_size", *OF_SOURCE)
    fields = {key: value for key, value in config.get_source(owner).to_dict().items() if key not in shared}
    settings, allowed = asdict(config.encoder_settings(owner)), FIELDS_OF_KIND[fields["kind"]]
    for field, model_wide in OF_SOURCE.items():
        if field in allowed and settings[field] != getattr(origin.config, model_wide):
            fields[field] = settings[field]
    if fields["kind"] == "text" and not _has_table_of_decoder(checkpoint, owner, origin):
        fields["vocab_size"] = settings["vocab_size"]
    return fields


def _has_table_of_decoder(checkpoint: Checkpoint, owner: str, origin: Checkpoint) -> bool:
    """Whether a source's token table is the decoder's, or was untied from it."""
    if checkpoint is origin and not origin.config.tie_word_embeddings:
        return origin.config.get_source(owner).vocab_size is None
    table = checkpoint.weights[f"model.encoder.sources.{owner}.embeddings.tokens.weight"]
    other = origin.weights[DECODER_TABLE]
    return origin.config.tie_word_embeddings and torch.equal(table.to(other), other)


def _fill(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Pour weights in; those that there are none for stay as drawn, and are told."""
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected:
        raise ValueError(
            f"the checkpoints have parameters that the model has no place for: {', '.join(sorted(unexpected))}. If "
            "they belong to an adapter, merge it first."
        )
    _tell(
        "These parameters are in no checkpoint and begin anew; the model must be trained: %s",
        set(missing) - model.all_tied_weights_keys.keys(),
    )


def _tell(message: str, names: Iterable[str]) -> None:
    if listed := sorted({LAYER.sub(".layers.*.", name) for name in names}):
        logger.warning(message, ", ".join(listed))


__all__ = ["FromSourcesMixin"]
