"""From checkpoints that exist already to a model of several sources, and from one combiner to another."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from .combiners import COMBINERS
from .configuration_multisource import FIELDS_OF_KIND, MultiSourceConfig, SourceConfig, check_choice
from .encoders import output_width
from .foreign import load_auto

logger = logging.get_logger(__name__)

# What distinguishes the encoder-decoders of Transformers that compute what ours does, by their model_type. NLLB is an
# M2M100. Their attentions have biases, and their layer norms an epsilon of 1e-5.
FAMILIES: dict[str, dict[str, Any]] = {
    "marian": {
        "norm_position": "post",
        "embedding_norm": False,
        "position_embedding": "sinusoidal_marian",
        "position_offset": 0,
        "final_logits_bias": True,
    },
    "bart": {
        "norm_position": "post",
        "embedding_norm": True,
        "position_embedding": "learned",
        "position_offset": 2,
        "final_logits_bias": True,
    },
    "mbart": {
        "norm_position": "pre",
        "embedding_norm": True,
        "position_embedding": "learned",
        "position_offset": 2,
        "final_logits_bias": True,
    },
    "m2m_100": {
        "norm_position": "pre",
        "embedding_norm": False,
        "position_embedding": "sinusoidal",
        "final_logits_bias": False,  # and position_offset is pad_token_id + 1
    },
}
SAME_NAME = (
    *("d_model", "activation_function", "scale_embedding", "max_position_embeddings"),
    *("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
    *("dropout", "attention_dropout", "activation_dropout"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
)
# Transformers' names of parameters, and ours in a serial model with one source named "source".
RENAMED = (
    (r"^(model\.\w+)\.embed_tokens", r"\1.embeddings.tokens"),
    (r"^(model\.\w+)\.embed_positions", r"\1.embeddings.positions"),
    (r"^(model\.\w+)\.layernorm_embedding", r"\1.embeddings.layer_norm"),
    (r"\.(fc[12])\.", r".feed_forward.\1."),
    (r"\.final_layer_norm\.", ".feed_forward.layer_norm."),
    (r"\.encoder_attn_layer_norm\.", ".cross_attn.source.layer_norm."),
    (r"\.encoder_attn\.", ".cross_attn.source."),
    (r"^model\.encoder\.", "model.encoder.sources.source."),
)
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
ATTENTION = re.compile(r"^\w+\.(?:q|k|v|out)_proj\.\w+$")
NORM = re.compile(r"^(?:\w+\.)?(layer_norm\.\w+)$")
LAYER = re.compile(r"\.layers\.\d+\.")
DECODER_TABLE = "model.decoder.embeddings.tokens.weight"


@dataclass(frozen=True)
class Checkpoint:
    """A model in the terms of this package.

    Args:
        config: The configuration with which a model of ours computes the same.
        weights: Its parameters by our names, copies by virtue of tying included.
        generation_config: How it generates.
        dtype: Of its parameters.
        is_ours: Whether it is a model of this package.
    """

    config: MultiSourceConfig
    weights: dict[str, Tensor]
    generation_config: GenerationConfig
    dtype: torch.dtype
    is_ours: bool

    def own_source(self, name: str) -> str:
        """The checkpoint's source that a new model's source comes from.

        Args:
            name: Name in the new model.

        Returns:
            The source of the same name, or the only one.

        Raises:
            ValueError: If the checkpoint has several sources and none of this name; the message lists them.
        """
        names = self.config.source_names
        if name not in names and len(names) > 1:
            raise ValueError(f"sources[{name}]: the checkpoint has no such source, but {', '.join(names)}.")
        return name if name in names else names[0]

    def owner(self, name: str) -> str:
        """The source whose encoder the checkpoint has for a source of the new model.

        Args:
            name: Name in the new model.

        Returns:
            The name of one of the checkpoint's sources.
        """
        return str(self.config.encoder_owner(self.own_source(name)).name)

    def is_gated(self, name: str) -> bool:
        """Whether the checkpoint lets a source in through a gate.

        Args:
            name: Name in the new model.

        Returns:
            False unless its combiner has gates of that kind.
        """
        own = self.config.source_names.index(self.own_source(name))
        return self.config.combiner == "gated_serial" and self.config.gated_sources[own]


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
                weights.update(_encoder_weights(name, checkpoint, own))
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
        weights.update(_decoder_weights(origin))
        names = {name: origin.own_source(name) for name, value in sources.items() if _identity(value) == place}
        weights.update(_cross_attention_weights(model, origin, names, names[decoder]))
        for (key, own), name in owners.items():
            if not own:
                weights.update(_wrapped_weights(name, model, models[key]))
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


def is_translatable(model: PreTrainedModel) -> bool:
    """Whether a model can be put into our terms.

    Args:
        model: Any model.

    Returns:
        True for one of this package or of the `FAMILIES`, with its output layer.
    """
    return model.config.model_type in (*FAMILIES, MultiSourceConfig.model_type) and hasattr(model, "lm_head")


def translate(model: Any) -> Checkpoint:
    """Put a model into our terms.

    Args:
        model: An encoder-decoder with its output layer: of this package, or of one of the `FAMILIES`.

    Returns:
        The checkpoint. Its tensors are the model's own.

    Raises:
        ValueError: If the model is of another kind; the message names it.
    """
    kind = model.config.model_type
    if not is_translatable(model):
        raise ValueError(
            f"the decoder cannot be that of a {type(model).__name__} (model_type {kind!r}): it must be of one of these "
            f"types, with its output layer: {', '.join((*FAMILIES, MultiSourceConfig.model_type))}."
        )
    if kind == MultiSourceConfig.model_type:
        config, weights = model.config, model.state_dict()
    else:
        config, weights = _translate_config(model), _translate_weights(model)
    return Checkpoint(
        config, weights, model.generation_config, model.dtype, is_ours=kind == MultiSourceConfig.model_type
    )


def _translate_config(model: Any) -> MultiSourceConfig:
    kind, theirs = model.config.model_type, model.config
    fields = {**FAMILIES[kind], **{name: getattr(theirs, name) for name in SAME_NAME}}
    if kind == "m2m_100":
        fields["position_offset"] = theirs.pad_token_id + 1
    encoder, decoder = (part.embed_tokens.weight for part in (model.get_encoder(), model.get_decoder()))
    tied = model.lm_head.weight is decoder
    two_vocabularies = not getattr(theirs, "share_encoder_decoder_embeddings", True)
    own = two_vocabularies or (tied and encoder is not decoder)
    return MultiSourceConfig(
        sources=[{"name": "source", "vocab_size": len(encoder) if own else None}],
        vocab_size=len(decoder),
        tie_word_embeddings=tied,
        **fields,
    )


def _translate_weights(model: Any) -> dict[str, Tensor]:
    learned = FAMILIES[model.config.model_type]["position_embedding"] == "learned"
    weights = {}
    for name, value in model.state_dict().items():
        if name == "model.shared.weight" or ("embed_positions" in name and not learned):
            continue
        for pattern, replacement in RENAMED:
            name = re.sub(pattern, replacement, name)
        weights[name] = value
    return weights


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


def _encoder_weights(name: str, checkpoint: Checkpoint, owner: str) -> dict[str, Tensor]:
    theirs = f"model.encoder.sources.{owner}."
    return {
        f"model.encoder.sources.{name}.{key.removeprefix(theirs)}": value
        for key, value in checkpoint.weights.items()
        if key.startswith(theirs)
    }


def _wrapped_weights(name: str, model: Any, theirs: PreTrainedModel) -> dict[str, Tensor]:
    """Weights of a source that wraps a model of Transformers, from wherever in the checkpoint that model is."""
    wrapped = model.model.encoder.sources[name].model
    first = [theirs.get_encoder()] if theirs.config.is_encoder_decoder else []  # T5's decoder is of the same class
    found = next((module for module in (*first, *theirs.modules()) if type(module) is type(wrapped)), None)
    if found is None:
        raise ValueError(
            f"sources[{name}]: a source is made of a {type(wrapped).__name__}, and there is none in a "
            f"{type(theirs).__name__}."
        )
    known = wrapped.state_dict()
    return {
        f"model.encoder.sources.{name}.model.{key}": value
        for key, value in found.state_dict().items()
        if key in known  # poolers are left out
    }


def _decoder_weights(origin: Checkpoint) -> dict[str, Tensor]:
    return {
        key: value
        for key, value in origin.weights.items()
        if not key.startswith("model.encoder.") and ".cross_attn." not in key
    }


def _cross_attention_weights(
    model: Any, origin: Checkpoint, names: Mapping[str, str], decoder: str
) -> dict[str, Tensor]:
    """What the origin has for the parameters of the model's combiners.

    Args:
        model: The new model.
        origin: Where its decoder comes from.
        names: The origin's sources by the names that they have in the model.
        decoder: The origin's source whose attention those sources get that it does not have.
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
        candidates = _candidates(rest, names, decoder, config.combiner == origin.config.combiner)
        for candidate in () if alone else candidates:
            name = f"{layer}.cross_attn.{candidate}"
            if name in origin.weights and origin.weights[name].shape == parameter.shape:
                weights[key] = origin.weights[name]
                used.add(name)
                break
        else:
            if (value := _neutral(config.combiner, rest, parameter)) is not None:
                weights[key] = value
    _tell(
        "These parameters of the decoder's checkpoint have no place in the model: %s",
        {name for name in origin.weights if ".cross_attn." in name} - used,
    )
    return weights


def _candidates(rest: str, names: Mapping[str, str], decoder: str, same_combiner: bool) -> Iterator[str]:
    """Names in the origin's combiner of what a parameter of the new one may be taken from, best first."""
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


def _neutral(combiner: str, rest: str, parameter: Tensor) -> Tensor | None:
    """Values with which a combiner computes what one without the parameter would; None: there are none."""
    if combiner == "projection" and ".projection." in rest:
        return torch.eye(len(parameter))
    names = {
        "projection": ("projection.bias",),
        "gated_serial": ("gate.bias",),
        "weighted_sum": ("gate.bias",),
        "context_gate": ("gate.weight", "gate.bias"),
    }
    return torch.zeros_like(parameter) if rest.endswith(names.get(combiner, ())) else None


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


# Combiners of one line compute the same with the same attentions; with one source, all of them do.
ALIKE = (("serial", "gated_serial"), ("parallel", "projection"), ("mean", "weighted_sum", "context_gate"), ("flat",))
PAIRS = (
    "serial and gated_serial (back, with post-norm, if no source is gated); parallel and projection (back, with "
    "several sources, if its bias is 0); mean and weighted_sum (back, if its weights are equal), and either to "
    "context_gate; "
    f"with one source, any two of {', '.join(name for names in ALIKE for name in names)}"
)


def convert_combiner(model: Any, combiner: str) -> Any:
    """Give a model another combiner with which it computes the same.

    Possible are those pairs between which nothing is lost. W_O and b_O are the output projection of a source's
    attention:

        serial -> gated_serial         none of the sources is gated
        gated_serial -> serial         W_O <- tanh(a_i) W_O, b_O <- tanh(a_i) b_O; not for gated sources with post-norm
        parallel -> projection         W_i = I, b = 0
        projection -> parallel         W_O <- W_i W_O, b_O <- W_i b_O; b must be 0 with several sources: it counts once,
                                       whichever of them are present. With one source it is added to b_O
        mean -> weighted_sum           w = 0
        weighted_sum -> mean           if all w_i are equal
        mean, weighted_sum -> context_gate    U_i = 0, b_i = w_i

    With one source all of these, and flat, are the same but for names. In training they can still differ in where they
    drop: the equality is that of evaluation.

    Args:
        model: A model of this package. It stays as it is.
        combiner: The other combiner.

    Returns:
        A new model.

    Raises:
        ValueError: If there is no exact conversion; the message says why and lists the possible pairs.
    """
    config = copy.deepcopy(model.config)
    names, old = config.source_names, config.combiner
    if combiner == old:
        return copy.deepcopy(model)
    for either in (old, combiner):
        if not any(either in alike for alike in ALIKE):
            raise _inexact(old, combiner, f"{either!r} is like no other")
    if len(names) > 1 and not any(old in alike and combiner in alike for alike in ALIKE):
        raise _inexact(old, combiner, f"there are {len(names)} sources")
    config.combiner = combiner
    for source in config.sources:
        source.gated = False if combiner == "gated_serial" else None
    new = type(model)(config).to(device=model.device, dtype=model.dtype).train(model.training)
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
            candidates = _candidates(rest, {name: name for name in names}, names[0], same_combiner=True)
            value = next((plain[layer][name] for name in candidates if name in plain[layer]), None)
            weights[key] = _neutral(combiner, rest, parameter) if value is None else value
    new.load_state_dict(weights)
    if hasattr(model, "generation_config"):
        new.generation_config = copy.deepcopy(model.generation_config)
    return new


def _inexact(old: str, new: str, why: str) -> ValueError:
    return ValueError(
        f"{old!r} cannot become {new!r} without changing what the model computes: {why}. Possible: {PAIRS}."
    )


def _plain(parts: Mapping[str, Tensor], old: str, new: str, config: MultiSourceConfig) -> dict[str, Tensor]:
    """One layer's parameters for the new combiner, in the old one's names; what is neutral is left out."""
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


def attach_encoder(model: Any, source: str, encoder: PreTrainedModel, *, freeze: bool = True) -> Any:
    """Put the encoder whose features a model was trained on into the model, which then reads what the encoder reads.

    So a model can be trained on an image network's maps, made once and kept in files, and be published as one that
    reads pictures. It computes the same from the pictures as from their features.

    Args:
        model: A model of this package. It stays as it is.
        source: Name of a source of kind "features", without layers or positions of its own.
        encoder: The model that made the features, as its last hidden state; of an encoder-decoder its encoder did.
        freeze: Whether the encoder stays as it is in further training.

    Returns:
        A new model, whose source is of kind "pretrained".

    Raises:
        ValueError: If the source is no such source or shares its encoder, or the encoder's states are of another width;
            the message names the source and both widths.
    """
    config = copy.deepcopy(model.config)
    entry = config.get_source(source)
    settings = config.encoder_settings(source)
    shares = entry.share_encoder_with or any(other.share_encoder_with == source for other in config.sources)
    if entry.kind != "features" or settings.layers or settings.position_embedding != "none" or shares:
        raise ValueError(
            f"sources[{source}] must be of kind 'features', without layers, positions or a shared encoder; got {entry}."
        )
    fields = {key: value for key, value in entry.to_dict().items() if key not in ("kind", *FIELDS_OF_KIND["features"])}
    fields |= {"projection": True, "norm": entry.norm is not False, "dropout": entry.dropout, "freeze": freeze}
    wrapped = SourceConfig(kind="pretrained", encoder=copy.deepcopy(encoder.config), **fields)
    config.sources = [wrapped if other.name == source else other for other in config.sources]
    new = type(model)(config).to(device=model.device, dtype=model.dtype).train(model.training)
    part = new.get_encoder().sources[source]
    width = output_width(part.model)
    if width != entry.feature_size:
        raise ValueError(
            f"sources[{source}].feature_size is {entry.feature_size}; a {type(encoder).__name__} makes states of "
            f"{width}."
        )
    weights = {**model.state_dict(), **_wrapped_weights(source, new, encoder)}
    new.load_state_dict(weights)
    if hasattr(model, "generation_config"):
        new.generation_config = copy.deepcopy(model.generation_config)
    return new


__all__ = ["FromSourcesMixin", "attach_encoder", "convert_combiner"]
