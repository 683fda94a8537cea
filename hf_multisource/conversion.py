"""Initialization of a multi-source model from the checkpoints of existing models."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import guard_torch_init_functions, no_init_weights
from transformers.utils import logging

from .architectures import Checkpoint, is_translatable, translate
from .combiner_weights import transferred_weights
from .combiners import COMBINERS
from .configuration_multisource import MultiSourceConfig, check_choice
from .encoders import wrapped_weights
from .foreign import DOWNLOAD_OPTIONS, check_sources, options_of_sources
from .foreign_settings import check_keys
from .source_checkpoints import SourceCheckpoint, checked_dtype

logger = logging.get_logger(__name__)
Model = TypeVar("Model", bound="FromSourcesMixin")

# Settings that all text encoders and the decoder of a model share.
MODEL_WIDE = (
    *("d_model", "norm_position", "activation_function", "attention_bias", "layer_norm_eps"),
    *("scale_embedding", "embedding_norm", "source_embeddings", "position_offset"),
)
# Settings of a source, and the model-wide settings that are their defaults.
OF_SOURCE = {
    "layers": "encoder_layers",
    "attention_heads": "encoder_attention_heads",
    "ffn_dim": "encoder_ffn_dim",
    "dropout": "dropout",
    "pad_token_id": "pad_token_id",
    "position_embedding": "position_embedding",
    "max_position_embeddings": "max_position_embeddings",
}
# Fields of the configuration that do not change the converted weights; all other fields are copied from the checkpoint.
FREE_FIELDS = (
    *("dropout", "attention_dropout", "activation_dropout", "source_dropout", "label_smoothing", "use_cache"),
    *("source_subsets", "absent_vectors", "hierarchical_heads", "query_norm", "initializer", "init_std"),
)
# Settings of the checkpoint that refer to its own sources.
OF_ITS_SOURCES = {"sources", "combiner", "source_subsets"}
FREE_SOURCE_FIELDS = ("dropout", "source_dropout", "freeze", "norm", "gated")
# Options of `from_pretrained` that `from_pretrained_sources` does not support, and their replacements.
NOT_TAKEN = {
    "torch_dtype": "use dtype=",
    "variant": "files without a variant are loaded",
    "use_safetensors": "weights are loaded from .safetensors files only",
    "low_cpu_mem_usage": "Transformers 5 has no use for it",
    "max_memory": "save the model, and use from_pretrained(folder, max_memory=...)",
    "load_in_8bit": "save the model, and use from_pretrained(folder, quantization_config=...)",
    "load_in_4bit": "save the model, and use from_pretrained(folder, quantization_config=...)",
    "generation_config": "it is the decoder's; change model.generation_config afterwards",
    "ignore_mismatched_sizes": "sizes are those of the checkpoints",
}
LAYER = re.compile(r"\.layers\.\d+\.")  # warnings write ".layers.*." to list a parameter of all layers once
DECODER_TABLE = "model.decoder.embeddings.tokens.weight"


class FromSourcesMixin:
    """Adds `from_pretrained_sources` to a model class."""

    @classmethod
    def from_pretrained_sources(
        cls: type[Model],
        sources: Mapping[str, str | Path | PreTrainedModel],
        decoder: str,
        combiner: str | None = None,
        source_fields: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        dtype: str | torch.dtype | None = None,
        attn_implementation: str | dict[str, str] | None = None,
        **kwargs: Any,
    ) -> Model:
        """Initialize a model from checkpoints: one encoder from each, and the decoder from one of them.

        The decoder comes from a Marian, BART, mBART, Pegasus, M2M100 or NLLB model, or from a model of this package.
        The output layer, the generation configuration and the cross-attention of all sources come from the same
        checkpoint (if it is a model of this package, from its source of the same name). An encoder of one of these
        models that fits the decoder (same width, norm position, activation, scale) is converted to an encoder of this
        package; all other checkpoints that `AutoModel` loads are wrapped: text encoders, image networks, speech
        encoders, the encoder of an encoder-decoder. Parameters that are in no checkpoint are newly initialized, and a
        warning names them.

        With one source the model is equivalent to its checkpoint. With several sources it is equivalent to the
        decoder's checkpoint if only the decoder's source is present, unless `combiner` is hierarchical, tanh_concat or
        flat_normed. With gated_serial it is equivalent even if other sources are present: sources from other
        checkpoints are gated, and their gates are closed at initialization.

        Sources with the same checkpoint (the same path, or the same object) share one encoder. Layer dropout is not
        converted; it affects training only. Source positions are counted from the first token including padding, unlike
        in M2M100, so pad on the right. mBART moves the last label to the front of the decoder's input; here the input
        begins with `decoder_start_token_id`, which an mBART for one language pair lacks and must be set for training.

        Args:
            sources: Folder, Hub id or model, by the name of the source; the model has its sources in this order.
            decoder: Name of the source whose checkpoint provides the decoder.
            combiner: Strategy of the decoder's cross-attention; a key of `hf_multisource.COMBINERS`. None: the combiner
                of the decoder's checkpoint if it is a model of this package with several sources, otherwise serial. A
                warning is logged if the combiner of such a checkpoint is replaced.
            source_fields: `dropout`, `source_dropout`, `freeze`, `norm` and `gated` of [`SourceConfig`], by source.
            dtype: Data type of all weights, or its name. None or "auto": the data type of the decoder's checkpoint.
            attn_implementation: As in [`PreTrainedModel.set_attn_implementation`]; in a dict, wrapped encoders have the
                keys "sources.<name>" and the rest of the model has the key "".
            **kwargs: Settings of [`MultiSourceConfig`] that do not change the converted weights, and options of
                `from_pretrained` for loading the checkpoints: `revision`, `subfolder` and `token`, each for all sources
                or as a dict by the name of the source; `cache_dir`, `force_download`, `local_files_only`, `proxies`.

        Returns:
            The model, in evaluation mode.

        Raises:
            ValueError: If the decoder's checkpoint is of an unsupported kind, models of this package are incompatible,
                a name is unknown, or a setting is determined by the checkpoints; the message names the source, the
                setting and both values. Also if `device_map`, `quantization_config` or `trust_remote_code=True` is
                given.
            OSError: If a checkpoint does not exist, or has its weights in a pickle only.

        Example:
            >>> from hf_multisource import MultiSourceForConditionalGeneration
            >>> model = MultiSourceForConditionalGeneration.from_pretrained_sources(
            ...     {"en": "Helsinki-NLP/opus-mt-en-cs", "image": "google/vit-base-patch16-224"}, "en", "gated_serial"
            ... )  # doctest: +SKIP
        """
        check_sources(sources, decoder)
        if combiner is not None:
            check_choice("combiner", combiner, tuple(COMBINERS))
        source_fields = source_fields or {}
        check_keys("source_fields", source_fields, tuple(sources))
        for name, fields in source_fields.items():
            check_keys(f"source_fields[{name}]", fields, FREE_SOURCE_FIELDS)
        _check_not_passed_on(kwargs)
        options = {key: kwargs.pop(key) for key in DOWNLOAD_OPTIONS if key in kwargs}
        check_keys("the configuration", kwargs, FREE_FIELDS)
        number_type = checked_dtype(dtype)
        where = options_of_sources(sources, options)
        places = {name: SourceCheckpoint(name, value, where[name]) for name, value in sources.items()}
        for name, place in places.items():
            place.check(gives_decoder=name == decoder)
        model_class: Any = cls
        parts = _Parts(places, decoder, model_class, number_type)
        combiner = _chosen_combiner(combiner, parts.origin)
        listed = [parts.source_settings(name, combiner) for name in places]
        if "dropout" in kwargs:
            listed = [{key: value for key, value in source.items() if key != "dropout"} for source in listed]
        listed = [{**source, **source_fields.get(source["name"], {})} for source in listed]
        parts.warn_about_new_sources(listed, combiner)
        own = parts.origin.config
        kept = {field: getattr(own, field) for field in MultiSourceConfig.setting_names() - OF_ITS_SOURCES}
        kept["absent_vectors"] &= len(listed) > 1
        config = MultiSourceConfig(**{**kept, **kwargs}, sources=listed, combiner=combiner)
        if isinstance(attn_implementation, Mapping):
            _check_parts(attn_implementation, config)
        with no_init_weights():  # unwritten memory is not allocated by the system
            model = model_class(config)
        model.tie_weights()
        model.to(number_type or parts.origin.dtype).eval()
        if attn_implementation is not None:
            model.set_attn_implementation(attn_implementation)
        given = [value for value in sources.values() if isinstance(value, PreTrainedModel)]
        _fill(model, parts.weights(model), {_address(value) for one in given for value in one.state_dict().values()})
        model.generation_config = copy.deepcopy(parts.origin.generation_config)
        model.generation_config._from_model_config = False
        return cast(Model, model)


class _Parts:
    """The checkpoints of the sources, and what a new model takes from each.

    Args:
        places: Where the checkpoint of each source is.
        decoder: Name of the source whose checkpoint provides the decoder.
        model_class: Class of the new model.
        dtype: Data type of the weights; None: that of the checkpoints.

    Attributes:
        models: Loaded models by the identity of their checkpoint.
        checkpoints: The models among them that are converted, by identity.
        origin: The checkpoint that provides the decoder.
        encoders: See [`_encoders`].
    """

    def __init__(
        self, places: Mapping[str, SourceCheckpoint], decoder: str, model_class: Any, dtype: torch.dtype | None
    ) -> None:
        self.places, self.decoder = places, decoder
        unique = {place.identity: place for place in places.values()}
        self.models = {key: place.load(model_class, dtype) for key, place in unique.items()}
        self.checkpoints = {key: translate(model) for key, model in self.models.items() if is_translatable(model)}
        self.origin = self.checkpoints[places[decoder].identity]
        self.encoders = _encoders(places, self.checkpoints, self.origin)

    def warn_about_new_sources(self, sources: Sequence[Mapping[str, Any]], combiner: str) -> None:
        """Log a warning that names the sources without a gate that the decoder has not been trained with."""
        new = [source["name"] for source in sources if self._is_new(source["name"]) and not source.get("gated")]
        if not new:
            return
        hint = ""
        if combiner != "gated_serial" and (len(self.origin.config.sources) == 1 or combiner == "serial"):
            hint = "; with combiner='gated_serial' they change nothing until then"
        logger.warning(
            f"the decoder was trained without {', '.join(new)}. With combiner={combiner!r} the model must be trained "
            f"before it reads them{hint}."
        )

    def _is_new(self, name: str) -> bool:
        # Of several sources from the decoder's only source, the decoder was trained with one.
        alone = len(self.origin.config.source_names) == 1
        is_other = self.checkpoints.get(self.places[name].identity) is not self.origin
        return is_other or (name != self.decoder and alone)

    def source_settings(self, name: str, combiner: str) -> dict[str, Any]:
        """Return the settings of a source of the new model."""
        checkpoint, own, owner = self.encoders[name]
        source: dict[str, Any] = {"name": name, "kind": "pretrained"}
        if checkpoint is not None:
            source |= _source_fields(checkpoint, own, self.origin)
        if owner != name:
            source = {"name": name, "kind": source["kind"], "share_encoder_with": owner}
        elif checkpoint is None:
            source["encoder"] = copy.deepcopy(self.models[self.places[name].identity].config)
        if combiner == "gated_serial":
            source["gated"] = checkpoint is not self.origin or self._is_new(name) or self.origin.is_gated(name)
        return source

    def weights(self, model: Any) -> dict[str, Any]:
        """Return the weights that a new model takes, by the names of its parameters; warn about the others."""
        origin, weights = self.origin, self.origin.decoder_weights()
        for name, (checkpoint, own, owner) in self.encoders.items():
            if checkpoint is not None:
                if owner == name:
                    weights |= checkpoint.encoder_weights(own, name)
                weights |= checkpoint.vector_of(checkpoint.own_source(name), name, "source_embeddings")
            elif owner == name:
                weights |= wrapped_weights(model, name, self.models[self.places[name].identity])
        identities = {name: place.identity for name, place in self.places.items()}
        names = {
            name: origin.own_source(name) for name, key in identities.items() if self.checkpoints.get(key) is origin
        }
        transferred, left = transferred_weights(model, origin, names, names[self.decoder])
        _warn_about("These parameters of the decoder's checkpoint are not used by the model: %s", left)
        weights |= transferred
        if model.config.absent_vectors:
            for name, own in names.items():
                weights |= origin.vector_of(own, name, "absent_vectors")
        return weights


def _encoders(
    places: Mapping[str, SourceCheckpoint], checkpoints: Mapping[Hashable, Checkpoint], origin: Checkpoint
) -> dict[str, tuple[Checkpoint | None, str, str]]:
    """Determine the encoder of every source.

    Args:
        places: The checkpoint of each source.
        checkpoints: Checkpoints that could be converted, by identity.
        origin: The checkpoint that provides the decoder.

    Returns:
        By source: the checkpoint and the source in it whose encoder is converted (None and "" if the encoder is
        wrapped), and the first source of the new model that has the same encoder.
    """
    encoders: dict[str, tuple[Checkpoint | None, str, str]] = {}
    owners: dict[tuple[Hashable, str], str] = {}
    for name, place in places.items():
        found = checkpoints.get(place.identity)
        checkpoint = found if found is not None and _fits(name, found, origin) else None
        own = "" if checkpoint is None else checkpoint.owner(name)
        encoders[name] = (checkpoint, own, owners.setdefault((place.identity, own), name))
    return encoders


def _check_not_passed_on(kwargs: dict[str, Any]) -> None:
    """Remove unsupported arguments of `from_pretrained`; raise ValueError if one of them has a value."""
    for name in ("device_map", "quantization_config"):
        if kwargs.pop(name, None) is not None:
            raise ValueError(
                f"{name} is for a model that is complete: save this one with save_pretrained(folder), and load it with "
                f"from_pretrained(folder, {name}=...)."
            )
    for name, instead in NOT_TAKEN.items():
        if kwargs.pop(name, None) is not None:
            taken = ", ".join(("dtype", "attn_implementation", *DOWNLOAD_OPTIONS))
            raise ValueError(f"from_pretrained_sources does not take {name}: {instead}. It takes {taken}.")
    if kwargs.pop("trust_remote_code", None):
        raise ValueError(
            "trust_remote_code must not be True: this model could not be loaded again with a part whose code is not "
            "installed. Register the part's classes (AutoConfig.register, AutoModel.register); then it loads without."
        )


def _check_parts(attn_implementation: Mapping[str, str], config: MultiSourceConfig) -> None:
    """Check that attention implementations are given for existing parts of the model only."""
    for part in attn_implementation:
        if part and part not in config.sub_configs:
            wrapped = ", ".join(config.sub_configs) or "there is none"
            raise ValueError(f"attn_implementation must name '' or a wrapped encoder ({wrapped}); got {part!r}.")


def _chosen_combiner(combiner: str | None, origin: Checkpoint) -> str:
    """Return the combiner of a new model; warn if it replaces the combiner of a checkpoint with several sources."""
    own = origin.config.combiner if len(origin.config.sources) > 1 else None
    if combiner is None:
        return own or "serial"
    # The change from serial to gated_serial keeps the output, because the checkpoint's own sources are not gated.
    if own is not None and combiner != own and (own, combiner) != ("serial", "gated_serial"):
        logger.warning(
            f"the decoder's checkpoint combines its sources by combiner={own!r}, and the new model by {combiner!r}: it "
            "computes something else until it is trained. Leave combiner out to keep the checkpoint's."
        )
    return combiner


def _fits(name: str, checkpoint: Checkpoint, origin: Checkpoint) -> bool:
    """Return whether a checkpoint's encoder can be converted to an encoder that fits the origin's decoder."""
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
    """Return the settings of a source with a converted encoder; settings equal to the model-wide ones are left out."""
    config, kind = checkpoint.config, checkpoint.config.source_kind(owner)
    left_out = {"name", "gated", "share_encoder_with", "share_embeddings_with"}
    if kind.has_vocabulary:
        left_out |= {"vocab_size", *OF_SOURCE}
    fields = {key: value for key, value in config.get_source(owner).to_dict().items() if key not in left_out}
    settings = asdict(config.encoder_settings(owner))
    for field, model_wide in OF_SOURCE.items():
        if field in kind.fields and settings[field] != getattr(origin.config, model_wide):
            fields[field] = settings[field]
    if kind.has_vocabulary and not _has_table_of_decoder(checkpoint, owner, origin):
        fields["vocab_size"] = settings["vocab_size"]
    return fields


def _has_table_of_decoder(checkpoint: Checkpoint, owner: str, origin: Checkpoint) -> bool:
    """Return whether a source's token embeddings are those of the decoder, or an untied copy of them."""
    if checkpoint is origin and not origin.config.tie_word_embeddings:
        return origin.config.get_source(owner).vocab_size is None
    table = checkpoint.weights[f"model.encoder.sources.{owner}.embeddings.tokens.weight"]
    other = origin.weights[DECODER_TABLE]
    return origin.config.tie_word_embeddings and torch.equal(table.to(other), other)


def _address(tensor: Tensor) -> int:
    """Return the data pointer of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def _fill(model: PreTrainedModel, weights: Mapping[str, Tensor], borrowed: Collection[int]) -> None:
    """Load weights into an uninitialized model, and initialize the parameters that are in no checkpoint.

    Parameters use the memory of the given weights where possible, so that large weights are not in memory twice.

    Args:
        model: The model.
        weights: The weights by their names in the model.
        borrowed: Data pointers of storages that belong to the user's models; these weights are copied.
    """
    state = model.state_dict(keep_vars=True)
    if unexpected := sorted(weights.keys() - state.keys()):
        raise ValueError(
            f"the checkpoints have parameters that the model has no place for: {', '.join(unexpected)}. If "
            "they belong to an adapter, merge it first."
        )
    missing = state.keys() - weights.keys() - model.all_tied_weights_keys.keys()
    _initialize(model, missing)
    used = {0, *borrowed}  # 0: data pointer of empty tensors
    with torch.no_grad():
        for name, value in weights.items():
            place = state[name]
            if place.shape != value.shape:
                raise ValueError(
                    f"{name} has the shape {tuple(place.shape)} and in its checkpoint {tuple(value.shape)}."
                )
            alone = value.untyped_storage().nbytes() == place.nbytes and value.is_contiguous()
            alike = (value.dtype, value.device) == (place.dtype, place.device)
            if isinstance(place, nn.Parameter) and alone and alike and _address(value) not in used:
                used.add(_address(value))
                place.data = value.detach()
            else:
                place.copy_(value)
    _warn_about(
        "These parameters are in no checkpoint and are newly initialized; the model must be trained: %s", missing
    )


def _initialize(model: PreTrainedModel, names: Collection[str]) -> None:
    """Initialize some parameters of a model.

    Args:
        model: A model whose parameters are not initialized.
        names: Names of the parameters.
    """
    places = {name.rpartition(".")[0] for name in names}
    for path, module in model.named_modules():
        inside = any(place == path or not path or place.startswith(f"{path}.") for place in places)
        module._is_hf_initialized = not inside  # Transformers skips initialized modules
        reset: Any = getattr(module, "reset_parameters", None)
        if path in places and reset is not None:
            reset()
    with guard_torch_init_functions():
        model.initialize_weights()


def _warn_about(message: str, names: Iterable[str]) -> None:
    if listed := sorted({LAYER.sub(".layers.*.", name) for name in names}):
        logger.warning(message, ", ".join(listed))


__all__ = ["FromSourcesMixin"]
