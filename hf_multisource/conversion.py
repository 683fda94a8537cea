"""From checkpoints that exist already to a model of several sources."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Hashable, Iterable, Mapping
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

# What all text encoders and the decoder of a model have in common.
MODEL_WIDE = (
    *("d_model", "norm_position", "activation_function", "attention_bias", "layer_norm_eps"),
    *("scale_embedding", "embedding_norm", "source_embeddings", "position_offset"),
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
    *("source_subsets", "absent_vectors", "hierarchical_heads", "query_norm", "initializer", "init_std"),
)
# Settings that are about the checkpoint's own sources.
OF_ITS_SOURCES = {"sources", "combiner", "source_subsets"}
FREE_SOURCE_FIELDS = ("dropout", "source_dropout", "freeze", "norm", "gated")
# Other options of `from_pretrained`, and what takes their place.
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
LAYER = re.compile(r"\.layers\.\d+\.")
DECODER_TABLE = "model.decoder.embeddings.tokens.weight"


class FromSourcesMixin:
    """The way from checkpoints that exist to a model with several sources."""

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
        """Make a model of checkpoints: an encoder from each, the decoder from one of them.

        The decoder is that of a Marian, BART, mBART, Pegasus, M2M100 or NLLB model, or of one of this package. With it
        come the output layer, the settings of generation, and every source's cross-attention (of a model of this
        package, that of the source of the same name). An encoder of one of these models that fits the decoder (same
        width, norm position, activation, scale) becomes one of our own; any other checkpoint that `AutoModel` loads is
        wrapped: text encoders, image networks, speech encoders, the encoder of an encoder-decoder. What no checkpoint
        has is drawn anew, and a warning names it.

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
            dtype: Type of all weights, or its name. None or "auto": that of the decoder's checkpoint.
            attn_implementation: As [`PreTrainedModel.set_attn_implementation`] takes it; a dict names wrapped encoders
                "sources.<name>", and the rest of the model "".
            **kwargs: Settings of [`MultiSourceConfig`] that weights do not depend on; and where the checkpoints are
                loaded from, as in `from_pretrained`: `revision`, `subfolder` and `token`, each for all sources or as a
                dict by the name of the source; `cache_dir`, `force_download`, `local_files_only`, `proxies`.

        Returns:
            The model, in evaluation mode.

        Raises:
            ValueError: If the decoder's checkpoint is of another kind, models of this package do not fit together, a
                name is unknown, or a setting is the checkpoints' to make; the message names the source, the setting and
                both values. Also if `device_map`, `quantization_config` or `trust_remote_code=True` is given.
            OSError: If there is no such checkpoint, or its weights are in a pickle only.

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
        unique = {place.identity: place for place in places.values()}
        model_class: Any = cls
        models = {key: place.load(model_class, number_type) for key, place in unique.items()}
        checkpoints = {key: translate(model) for key, model in models.items() if is_translatable(model)}
        origin = checkpoints[places[decoder].identity]
        combiner = _chosen_combiner(combiner, origin)
        encoders = _encoders(places, checkpoints, origin)

        listed: list[dict[str, Any]] = []
        weights = origin.decoder_weights()
        for name, (checkpoint, own, owner) in encoders.items():
            source: dict[str, Any] = {"name": name, "kind": "pretrained"}
            if checkpoint is not None:
                source |= _source_fields(checkpoint, own, origin)
            if owner != name:
                source = {"name": name, "kind": source["kind"], "share_encoder_with": owner}
            elif checkpoint is None:
                source["encoder"] = copy.deepcopy(models[places[name].identity].config)
            else:
                weights |= checkpoint.encoder_weights(own, name)
            if checkpoint is not None:
                weights |= checkpoint.vector_of(checkpoint.own_source(name), name, "source_embeddings")
            if combiner == "gated_serial":
                source["gated"] = checkpoint is not origin or origin.is_gated(name)
            if "dropout" in kwargs:
                source.pop("dropout", None)
            listed.append({**source, **source_fields.get(name, {})})
        kept = {field: getattr(origin.config, field) for field in MultiSourceConfig.setting_names() - OF_ITS_SOURCES}
        kept["absent_vectors"] &= len(listed) > 1
        config = MultiSourceConfig(**{**kept, **kwargs}, sources=listed, combiner=combiner)
        if isinstance(attn_implementation, Mapping):
            _check_parts(attn_implementation, config)
        with no_init_weights():  # memory that nothing has written to takes no place
            model = model_class(config)
        model.tie_weights()
        model.to(number_type or origin.dtype).eval()
        if attn_implementation is not None:
            model.set_attn_implementation(attn_implementation)
        names = {name: origin.own_source(name) for name in places if checkpoints.get(places[name].identity) is origin}
        transferred, left = transferred_weights(model, origin, names, names[decoder])
        _tell("These parameters of the decoder's checkpoint have no place in the model: %s", left)
        weights |= transferred
        if config.absent_vectors:
            for name, own in names.items():
                weights |= origin.vector_of(own, name, "absent_vectors")
        for name, (checkpoint, _, owner) in encoders.items():
            if checkpoint is None and owner == name:
                weights |= wrapped_weights(model, name, models[places[name].identity])
        given = [value for value in sources.values() if isinstance(value, PreTrainedModel)]
        _fill(model, weights, {_address(value) for one in given for value in one.state_dict().values()})
        model.generation_config = copy.deepcopy(origin.generation_config)
        model.generation_config._from_model_config = False
        return cast(Model, model)


def _encoders(
    places: Mapping[str, SourceCheckpoint], checkpoints: Mapping[Hashable, Checkpoint], origin: Checkpoint
) -> dict[str, tuple[Checkpoint | None, str, str]]:
    """Find the encoder of every source.

    Args:
        places: What each source is made of.
        checkpoints: Those in our terms, by their identity.
        origin: The one that gives the decoder.

    Returns:
        By source: the checkpoint and its source whose encoder becomes one of our own (None and "" if the encoder is
        wrapped), and the first source of the new model with the same encoder.
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
    """Remove the arguments of `from_pretrained` that are not taken; raise ValueError if one of them is set."""
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
    """Refuse attention implementations of parts that the model does not have."""
    for part in attn_implementation:
        if part and part not in config.sub_configs:
            wrapped = ", ".join(config.sub_configs) or "there is none"
            raise ValueError(f"attn_implementation must name '' or a wrapped encoder ({wrapped}); got {part!r}.")


def _chosen_combiner(combiner: str | None, origin: Checkpoint) -> str:
    """Return the combiner of a new model; warn if it is not that of a checkpoint with several sources."""
    own = origin.config.combiner if len(origin.config.sources) > 1 else None
    if combiner is None:
        return own or "serial"
    if own is not None and combiner != own and (own, combiner) != ("serial", "gated_serial"):  # these agree
        logger.warning(
            f"the decoder's checkpoint combines its sources by combiner={own!r}, and the new model by {combiner!r}: it "
            "computes something else until it is trained. Leave combiner out to keep the checkpoint's."
        )
    return combiner


def _fits(name: str, checkpoint: Checkpoint, origin: Checkpoint) -> bool:
    """Return whether a checkpoint's encoder can be one of our own beside the origin's decoder."""
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
    """Settings of a source with an encoder of its own; those of a text that are the model's anyway are left out."""
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
    """Whether a source's token table is the decoder's, or was untied from it."""
    if checkpoint is origin and not origin.config.tie_word_embeddings:
        return origin.config.get_source(owner).vocab_size is None
    table = checkpoint.weights[f"model.encoder.sources.{owner}.embeddings.tokens.weight"]
    other = origin.weights[DECODER_TABLE]
    return origin.config.tie_word_embeddings and torch.equal(table.to(other), other)


def _address(tensor: Tensor) -> int:
    """Return where the memory begins that a tensor is part of."""
    return tensor.untyped_storage().data_ptr()


def _fill(model: PreTrainedModel, weights: Mapping[str, Tensor], borrowed: Collection[int]) -> None:
    """Give a model without initial values its weights, and draw the parameters that no checkpoint has.

    A parameter takes over the memory of its weight where it can, so that large weights are not in memory twice.

    Args:
        model: The model.
        weights: The weights by their names in the model.
        borrowed: Addresses of memory that belongs to models of the user: such weights are copied.
    """
    state = model.state_dict(keep_vars=True)
    if unexpected := sorted(weights.keys() - state.keys()):
        raise ValueError(
            f"the checkpoints have parameters that the model has no place for: {', '.join(unexpected)}. If "
            "they belong to an adapter, merge it first."
        )
    missing = state.keys() - weights.keys() - model.all_tied_weights_keys.keys()
    _draw(model, missing)
    used = {0, *borrowed}  # 0: the address of nothing
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
    _tell("These parameters are in no checkpoint and begin anew; the model must be trained: %s", missing)


def _draw(model: PreTrainedModel, names: Collection[str]) -> None:
    """Draw the initial values of some parameters, as if the model had been built with them.

    Args:
        model: A model without initial values.
        names: The parameters.
    """
    places = {name.rpartition(".")[0] for name in names}
    for path, module in model.named_modules():
        inside = any(place == path or not path or place.startswith(f"{path}.") for place in places)
        module._is_hf_initialized = not inside  # Transformers leaves such modules as they are
        reset: Any = getattr(module, "reset_parameters", None)
        if path in places and reset is not None:
            reset()
    with guard_torch_init_functions():
        model.initialize_weights()


def _tell(message: str, names: Iterable[str]) -> None:
    if listed := sorted({LAYER.sub(".layers.*.", name) for name in names}):
        logger.warning(message, ", ".join(listed))


__all__ = ["FromSourcesMixin"]
