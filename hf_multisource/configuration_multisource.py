"""Configuration of multi-source Transformers: sources, decoder and combiner. This module does not import torch."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

from .foreign import wrapped_config
from .foreign_settings import check_settings, without_references
from .limits import LIMITS, RANGES, check_encoder_settings, check_limit, check_range
from .messages import shown
from .source_kinds import MASK, SOURCE_KINDS, SourceKind, input_keys, source_key

FIELDS_OF_ALL = {"name", "kind", "share_encoder_with", "source_dropout"}  # settings that sources of every kind have
NORM_POSITIONS = ("pre", "post")
QUERY_NORMS = ("shared", "per_source")
POSITION_EMBEDDINGS = ("sinusoidal", "sinusoidal_marian", "learned")
SOURCE_POSITION_EMBEDDINGS = (*POSITION_EMBEDDINGS, "none")
INITIALIZERS = ("normal", "xavier_uniform")

# Keyword arguments that Transformers passes to the model in addition to the sources. A source must not have a name with
# which one of them would look like a keyword of the source, as `position_ids` would of a source `position`.
LIBRARY_KEYWORDS = ("return_dict", "position_ids", "logits_to_keep", "num_items_in_batch", "cu_seq_lens_q")

TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# Allowed data types of weights. Transformers itself would accept the name of any attribute of the torch module.
DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "float", "half", "double"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
)
# Types of keys that Transformers reads without checking their type.
TYPES_OF_KEYS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id2label", "label2id", "per_layer_config", "rope_scaling"), (Mapping,)),
    **dict.fromkeys(("attn_implementation", "_attn_implementation"), (str, Mapping)),
}

# Names that sources must not have: arguments of the processor and submodules of combiners.
RESERVED_NAMES = frozenset(
    [
        "images",
        "self",
        "unreadable",
        "add_special_tokens",
        "padding",
        "pad_to_multiple_of",
        "truncation",
        "max_length",
        "return_tensors",
        "joint",
        "hierarchy",
        "projection",
        "layer_norm",
    ]
)
# Prefixes that names of sources must not have: `generate` routes or drops keywords with these prefixes, and `labels`
# and `text_target` belong to the target.
RESERVED_PREFIXES = (
    "decoder",
    "encoder",
    "cross_attn",
    "use_cache",
    "past_key_values",
    "cache_params",
    "labels",
    "output",
    "text_",
)


@strict
@dataclass(kw_only=True)
class SourceConfig:
    """Configuration of one source: its name, its kind, and the settings of its encoder.

    The default of a setting that is None is the model-wide setting of [`MultiSourceConfig`] given in parentheses.

    Args:
        name: Python identifier, unique; prefixes the source's keywords (`de_input_ids`) unless it is source 0.
        kind: "text": token ids, read by a text encoder of this package. "features": a sequence or map of vectors, such
            as the last feature map of an image network, projected to D. "pretrained": the inputs of the Transformers
            model of `encoder`. Or a kind added by `register_source_kind`.
        encoder: For pretrained sources: configuration of a model that `AutoModel` supports, or a dict of its fields
            with `model_type`. The output must be a sequence or a map; of an encoder-decoder only the encoder is used.
        feature_size: For features: width F of the vectors.
        projection: For pretrained sources: whether the encoder's states are projected to D by a linear layer; None:
            only if their width is not D. The vectors of features are always projected.
        norm: For features and pretrained sources: whether a layer norm is applied to the states; None: yes. The preset
            `paper` has none.
        freeze: For text and pretrained sources: whether the encoder is frozen: not trained, and always in evaluation
            mode. Only the wrapped model of a pretrained source is frozen; its projection to D is still trained.
        layers: Number of encoder layers (`encoder_layers`; 0 for features); with 0 the decoder attends to the
            embeddings.
        attention_heads: Heads of each self-attention (`encoder_attention_heads`).
        ffn_dim: Width of the feed-forward layers (`encoder_ffn_dim`).
        dropout: Dropout probability, in [0, 1) (`dropout`). The preset `paper` has 0 for features without layers and
            for pretrained sources.
        vocab_size: Size of the source's own vocabulary, in tokens. None: the source uses the target's vocabulary, and
            with `tie_word_embeddings` the decoder's embeddings too.
        pad_token_id: Padding id of the source's own vocabulary (`pad_token_id`).
        position_embedding: One of "sinusoidal", "sinusoidal_marian", "learned", "none" (`position_embedding`; "none"
            for features).
        max_position_embeddings: Rows of a learned position table, in tokens (`max_position_embeddings`).
        share_encoder_with: Name of an earlier source whose encoder this source shares.
        share_embeddings_with: Name of an earlier source whose embeddings and vocabulary this source shares.
        source_dropout: Probability of removing the whole source from an example in training, in [0, 1)
            (`source_dropout`).
        gated: Whether the source passes through a gate that is closed at initialization; only for the combiner
            "gated_serial". None: every source but source 0 is gated.
    """

    name: str
    kind: str = "text"
    encoder: Any = None
    feature_size: int | None = None
    projection: bool | None = None
    norm: bool | None = None
    freeze: bool | None = None
    layers: int | None = None
    attention_heads: int | None = None
    ffn_dim: int | None = None
    dropout: float | int | None = None
    vocab_size: int | None = None
    pad_token_id: int | None = None
    position_embedding: str | None = None
    max_position_embeddings: int | None = None
    share_encoder_with: str | None = None
    share_embeddings_with: str | None = None
    source_dropout: float | int | None = None
    gated: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.encoder, Mapping):
            check_encoder_settings(self.encoder, f"sources[{self.name}].encoder")
        if isinstance(self.encoder, Mapping | PreTrainedConfig):
            self.encoder = wrapped_config(self.encoder, f"sources[{self.name}].encoder")
        elif self.encoder is not None:
            raise ValueError(
                f"sources[{self.name}].encoder must be the configuration of a Transformers model, or its dict; got "
                f"{shown(self.encoder)}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Convert the settings to a dict of JSON values.

        Returns:
            The settings that are not None.
        """
        given = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if self.encoder is not None:
            given["encoder"] = without_references(self.encoder.to_dict())
            for about_the_file in ("transformers_version", "dtype"):
                given["encoder"].pop(about_the_file, None)
        return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """Complete settings of the encoder of one source: its own settings and the model-wide defaults.

    Args:
        name: Name of the source.
        layers: Number of encoder layers.
        attention_heads: Heads of each self-attention.
        ffn_dim: Width of the feed-forward layers.
        dropout: Dropout probability.
        vocab_size: Rows of the token embedding table that the encoder reads, which can be shared.
        pad_token_id: Padding id.
        position_embedding: Kind of position embeddings.
        max_position_embeddings: Rows of a learned position table.
    """

    name: str
    layers: int
    attention_heads: int
    ffn_dim: int
    dropout: float
    vocab_size: int
    pad_token_id: int | None
    position_embedding: str
    max_position_embeddings: int


def _source(i: int, item: Any) -> Any:
    if isinstance(item, str):
        return SourceConfig(name=item)
    if isinstance(item, Mapping):
        try:
            return SourceConfig(**item)
        except (TypeError, StrictDataclassError) as error:
            raise ValueError(f"sources[{str(item.get('name', i))[:40]}]: {' '.join(str(error).split())}") from error
    # Compare names: if code is loaded from the Hub, this module and its classes can exist twice.
    if type(item).__name__ != SourceConfig.__name__:
        raise ValueError(f"sources must hold names, dicts or SourceConfigs; got {shown(item)}.")
    return copy.deepcopy(item)  # configurations with the same sources must not change each other's


class SourceList(list[Any]):
    """List of the sources of a configuration, which converts names and dicts to [`SourceConfig`]s.

    Args:
        items: Names, dicts of the fields of a [`SourceConfig`], or [`SourceConfig`]s.

    Raises:
        ValueError: If an item is of another type, or its settings are not allowed. `append`, `extend`, `insert`, `+=`
            and item assignment raise the same error.
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__()
        self.extend(items)

    def append(self, item: Any) -> None:
        """Append a source.

        Args:
            item: A name, a dict or a [`SourceConfig`].
        """
        super().append(_source(len(self), item))

    def extend(self, items: Iterable[Any]) -> None:
        """Append several sources.

        Args:
            items: Names, dicts or [`SourceConfig`]s.
        """
        for item in items:
            self.append(item)

    def insert(self, index: Any, item: Any) -> None:
        """Insert a source before another source.

        Args:
            index: Index of the other source.
            item: A name, a dict or a [`SourceConfig`].
        """
        super().insert(index, _source(index, item))

    def index(self, item: Any, *bounds: Any) -> int:
        """Return the index of a source.

        Args:
            item: Name of the source, or a [`SourceConfig`].
            *bounds: Start and end of the search, as in `list.index`.

        Returns:
            The index.

        Raises:
            ValueError: If the list does not contain the source; the message lists the names.
        """
        names = [source.name for source in self]
        try:
            return names.index(item, *bounds) if isinstance(item, str) else super().index(item, *bounds)
        except ValueError as error:
            raise ValueError(f"there is no source {shown(item)} among {', '.join(names)}.") from error

    def remove(self, item: Any) -> None:
        """Remove a source.

        Args:
            item: Name of the source, or a [`SourceConfig`].
        """
        del self[self.index(item)]

    def __contains__(self, item: Any) -> bool:
        return any(source.name == item if isinstance(item, str) else source == item for source in self)

    def __iadd__(self, items: Any) -> "SourceList":  # type: ignore[misc]  # `+` returns a plain list
        self.extend(items)
        return self

    def __setitem__(self, index: Any, item: Any) -> None:
        super().__setitem__(index, SourceList(item) if isinstance(index, slice) else _source(index, item))


def _pick(value: Any, default: Any) -> Any:
    return default if value is None else value


def _check_token_id(field: str, value: int | None, vocab_size: int) -> None:
    if value is not None and not 0 <= value < vocab_size:
        raise ValueError(
            f"{field} must be None or a token id from 0 to {vocab_size - 1} (the vocabulary has {vocab_size} tokens); "
            f"got {shown(value)}."
        )


def check_choice(field: str, value: str, allowed: tuple[str, ...]) -> None:
    """Check that a setting has one of the allowed values.

    Args:
        field: Name of the setting.
        value: Value of the setting.
        allowed: The allowed values.

    Raises:
        ValueError: If the value is not allowed; the message gives the field, the value and the allowed values.
    """
    if value not in allowed:
        raise ValueError(f"{field} must be one of {', '.join(map(repr, allowed))}; got {shown(value)}.")


def owner_of(name: str, shares: Mapping[str, str | None]) -> str:
    """Follow `share_encoder_with` from a source to the source that owns the encoder.

    Args:
        name: The source's name.
        shares: `share_encoder_with` of each source, by name.

    Returns:
        Name of the source that owns the encoder; `name` itself if the source does not share an encoder.

    Raises:
        ValueError: If `share_encoder_with` forms a cycle; the message lists the sources.
    """
    passed = [name]
    while (other := shares.get(passed[-1])) is not None:
        if other in passed:
            raise ValueError(f"share_encoder_with leads in a circle: {' -> '.join([*passed, other])}.")
        passed.append(other)
    return passed[-1]


Family = TypeVar("Family", bound="SourcesConfig")


class SourcesConfig(PreTrainedConfig):
    """Base class of the configurations of both model families: the sources and the target's vocabulary.

    Args:
        sources: [`SourceConfig`]s, dicts of its fields, or bare names. Source 0 takes keywords without a prefix
            (`input_ids`), every other source takes keywords with its name as a prefix (`de_input_ids`).
        vocab_size: Size of the target's vocabulary, in tokens.
        source_dropout: Probability of removing a whole source from an example in training, for sources that do not set
            their own; every example keeps at least one of its sources.
        source_subsets: Sampling weights of subsets of the sources; in training one subset is drawn for each example and
            the other sources are removed, instead of by `source_dropout`. A subset is written as the names of its
            sources, separated by spaces; "all" stands for all sources, and the weight of "each" is divided among the
            single sources. Weights are normalized by their sum. An example that has no source of the drawn subset keeps
            all of its sources. None: `source_dropout` alone removes sources.
        absent_vectors: Whether an absent source is represented by a learned vector, which the decoder attends to.
            Source dropout trains the vectors. An example without any source gets no vectors.
        final_logits_bias: Whether a stored bias, which is not trained, is added to the logits.
        label_smoothing: Probability mass spread over the whole vocabulary, in training only.
        use_cache: Whether the decoder returns the cache for the next step.
        tie_word_embeddings: Whether decoder, output layer and every source of the same vocabulary share one table.
        pad_token_id: Padding id.
        bos_token_id: Id that begins the decoder's input.
        eos_token_id: Id, or list of ids, that ends a text.
        decoder_start_token_id: First id of the decoder's input; None: `bos_token_id`.
        is_encoder_decoder: Always True.
    """

    keys_to_ignore_at_inference = ["past_key_values", "source_lengths"]
    #: Kinds of sources that the model family supports, by name.
    source_kinds: ClassVar[Mapping[str, SourceKind]] = SOURCE_KINDS
    #: Settings that sources of every kind have.
    fields_of_all: ClassVar[set[str]] = FIELDS_OF_ALL
    #: Upper bounds of sizes, one mapping for all families, sources and wrapped encoders. To raise a bound on purpose,
    #: change the mapping before a model is built or loaded: `MultiSourceConfig.limits["vocab_size"] = 2**26`.
    limits: ClassVar[dict[str, int]] = LIMITS

    sources: Any = None
    vocab_size: int = 8000
    source_dropout: float | int = 0.0
    source_subsets: dict[str, float | int] | None = None
    absent_vectors: bool = False
    final_logits_bias: bool = False
    label_smoothing: float | int = 0.0
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int | None = None
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.sources is None:
            self.sources = ["source"]
        self._check_keys(kwargs)
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.bos_token_id
        if not __name__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME):
            # The installed package provides the classes, so the checkpoint's references to other code are dropped.
            kwargs.pop("auto_map", None)
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)

    def __setattr__(self, key: str, value: Any) -> None:
        if key == "sources" and value is not None:
            if not isinstance(value, list | tuple):
                raise ValueError(f"sources must be a list of names, dicts or SourceConfigs; got {shown(value)}.")
            check_limit("sources", len(value), "the number of sources")
            value = SourceList(value)
        super().__setattr__(key, value)

    def _check_keys(self, others: Mapping[str, Any]) -> None:
        # Transformers sets an attribute for every key that is not a field; keys must not shadow class attributes.
        value: Any
        for value in (self.dtype, others.get("torch_dtype")):
            if value is not None and type(value).__name__ != "dtype":  # a dtype of torch
                check_choice("dtype", value, DTYPES)
        for key, types in TYPES_OF_KEYS.items():
            value = others.get(key, self.__dict__.get(key))
            if value is not None and not isinstance(value, types):
                raise ValueError(f"{key} must be {' or '.join(kind.__name__ for kind in types)}; got {shown(value)}.")
        quantization = others.get("quantization_config")
        if not (quantization is None or isinstance(quantization, Mapping) or hasattr(quantization, "to_dict")):
            raise ValueError(f"quantization_config must be a Mapping; got {shown(quantization)}.")
        if self.id2label is None and others.get("num_labels", 2) is None:
            raise ValueError("num_labels must be a whole number; got None.")
        check_range("num_labels", others.get("num_labels"), "num_labels")  # Transformers builds a name for each label
        members = {name: member for base in reversed(type(self).__mro__) for name, member in vars(base).items()}
        for key in others:
            member = members.get(key)
            settable = isinstance(member, property) and member.fset is not None
            same = key == "model_type" and others[key] == self.model_type
            if (key in members and not settable and not same) or key.startswith("sources."):
                raise ValueError(
                    f"{key!r} is not a setting but an attribute of {type(self).__name__}, which a configuration cannot "
                    f"replace; got {shown(others[key])}."
                )

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: Any, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a `config.json`, as [`PreTrainedConfig.get_config_dict`] does.

        Args:
            pretrained_model_name_or_path: Folder, file or Hub id.
            **kwargs: As [`PreTrainedConfig.get_config_dict`].

        Returns:
            Content of the file, and the unused arguments.

        Raises:
            ValueError: If the file is the configuration of another kind of model; the message names the kind. Also if
                the file is nested too deeply to be read.
        """
        try:
            fields, unused = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        except RecursionError as error:
            raise ValueError(f"{pretrained_model_name_or_path}: config.json is nested too deeply.") from error
        kind = fields.get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise ValueError(
                f"{pretrained_model_name_or_path} is a checkpoint of model_type {kind!r}, not {cls.model_type!r}; load "
                "it with AutoConfig, or AutoModelForSeq2SeqLM, which choose the class by model_type."
            )
        return fields, unused

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build the configuration from the content of a `config.json`, as [`PreTrainedConfig.from_dict`] does.

        Args:
            config_dict: Content of the file.
            **kwargs: As [`PreTrainedConfig.from_dict`].

        Returns:
            As [`PreTrainedConfig.from_dict`].

        Raises:
            ValueError: If a setting would execute code, load a pickle or contact the Hub, or is named `self`, which
                Python cannot pass as a keyword; the message names the setting.
        """
        if "self" in config_dict:
            raise ValueError(f"'self' is not a setting of {cls.__name__}; got {shown(config_dict['self'])}.")
        check_settings(config_dict)
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def from_processor(cls: "type[Family]", processor: Any, sources: Sequence[Any] = (), **settings: Any) -> "Family":
        """Create the configuration of a new model from a processor.

        Names and kinds of the sources, sizes and padding ids of vocabularies, and the special ids of the target are
        read from the processor, and therefore always match its encoding.

        If the target's tokenizer has no token that begins texts (as in Marian or T5), the decoder's input begins with
        padding, as in these models. A source whose tokenizer has the target's vocabulary shares the target's
        embeddings.

        Args:
            processor: The [`MultiSourceProcessor`].
            sources: [`SourceConfig`]s, or dicts of their fields, of sources that need further settings: the
                `feature_size` of features, the `encoder` of pictures and speech, sizes. They are matched by name and
                can be in any order.
            **settings: Other fields of the configuration, which override the values from the processor.

        Returns:
            The configuration.

        Raises:
            TypeError: If `processor` is not a `MultiSourceProcessor`, but for instance a tokenizer or a path.
            ValueError: If `sources` names a source that the processor lacks, a setting is unknown and similar to a
                known one, or the target's tokenizer has no padding token or no end token and `settings` has no id for
                it.

        Example:
            >>> from hf_multisource import MultiSourceConfig, MultiSourceProcessor
            >>> processor = MultiSourceProcessor.from_pretrained("org/name")  # doctest: +SKIP
            >>> config = MultiSourceConfig.from_processor(processor, d_model=256)  # doctest: +SKIP
        """
        if isinstance(processor, type) or not hasattr(processor, "kind_of"):
            raise TypeError(
                "processor must be a MultiSourceProcessor, such as MultiSourceProcessor(tokenizer, ['en']) or "
                f"MultiSourceProcessor.from_pretrained(folder); got {shown(processor)}."
            )
        for name in settings:
            known = name in {*cls.setting_names(), *cls.attribute_map, "sep_token_id"} or hasattr(cls, name)
            if not known and (near := get_close_matches(name, cls.setting_names(), n=3, cutoff=0.85)):
                raise ValueError(f"unknown setting {name!r}; did you mean {' or '.join(near)}?")
        names, target = processor.source_names, processor.tokenizer
        chosen = {source.name: copy.copy(source) for source in SourceList(sources)}
        if unknown := [name for name in chosen if name not in names]:
            raise ValueError(f"unknown source {unknown[0]!r}; the processor's sources are {', '.join(names)}.")
        for name in names:
            source = chosen.setdefault(name, SourceConfig(name=name))
            owner, kind = chosen.get(source.share_encoder_with, source), processor.kind_of(name)
            if kind.part_loader is None:
                source.kind = kind.name
            elif not kind.has_vocabulary or source.encoder is not None or owner.kind == "pretrained":
                source.kind = "pretrained"
            own = processor.source_tokenizers.get(name, target)
            shared = source.share_encoder_with or source.share_embeddings_with
            if (
                source.kind == kind.name
                and kind.has_vocabulary
                and not shared
                and own.get_vocab() != target.get_vocab()
            ):
                source.vocab_size = _pick(source.vocab_size, len(own))
                source.pad_token_id = _pick(source.pad_token_id, own.pad_token_id)
        ids = {
            "pad_token_id": target.pad_token_id,
            "bos_token_id": _pick(target.bos_token_id, target.cls_token_id),
            "eos_token_id": _pick(target.eos_token_id, target.sep_token_id),
        }
        ids.update((key, settings.pop(key)) for key in TOKEN_IDS if key in settings)
        for token in ("pad", "eos"):
            if ids[f"{token}_token_id"] is None:
                raise ValueError(
                    f"the target's tokenizer, {type(target).__name__}, has no {token}_token; give it one, or the "
                    f"configuration a {token}_token_id."
                )
        if ids["bos_token_id"] is None:
            ids.setdefault("decoder_start_token_id", ids["pad_token_id"])
        return cls(sources=[chosen[name] for name in names], **{"vocab_size": len(target), **ids, **settings})

    @classmethod
    def setting_names(cls) -> set[str]:
        """Return the names of the settings that are specific to the model family.

        Returns:
            Names of the fields that `PreTrainedConfig` does not have.
        """
        return {field.name for field in fields(cls)} - {field.name for field in fields(PreTrainedConfig)}

    @property
    def source_names(self) -> list[str]:
        """Names of the sources, in order."""
        return [source.name for source in self.sources]

    def get_source(self, name: str) -> SourceConfig:
        """Return the configuration of a source.

        Args:
            name: The source's name.

        Returns:
            The source's configuration.

        Raises:
            ValueError: If the model has no source of this name; the message lists the names.
        """
        for source in self.sources:
            if source.name == name:
                return source
        raise ValueError(f"unknown source {name!r}; the model's sources are {', '.join(self.source_names)}.")

    def source_kind(self, name: str) -> SourceKind:
        """Return the kind of a source.

        Args:
            name: The source's name.

        Returns:
            The kind.

        Raises:
            ValueError: If the model has no source of this name; the message lists the names.
        """
        return self.source_kinds[self.get_source(name).kind]

    def encoder_owner(self, name: str) -> SourceConfig:
        """Return the source that owns the encoder of a source; a different source if the encoder is shared.

        Args:
            name: The source's name.

        Returns:
            Configuration of the source that owns the encoder.

        Raises:
            ValueError: If the model has no source of this name; the message lists the names.
        """
        self.get_source(name)  # raises ValueError for unknown names
        return self.get_source(owner_of(name, {one.name: one.share_encoder_with for one in self.sources}))

    def source_vocabulary(self, name: str) -> tuple[int, int | None]:
        """Return vocabulary size and padding id of a source.

        Args:
            name: The source's name.

        Returns:
            Size of the source's vocabulary, in tokens, and its padding id.

        Raises:
            ValueError: If the model has no source of this name; the message lists the names.
        """
        owner = self.get_source(name)
        while (other := owner.share_encoder_with or owner.share_embeddings_with) is not None:
            owner = self.get_source(other)
        return _pick(owner.vocab_size, self.vocab_size), _pick(owner.pad_token_id, self.pad_token_id)

    @property
    def source_dropouts(self) -> tuple[float, ...]:
        """Dropout probability of each source, in order."""
        own = (source.source_dropout for source in self.sources)
        return tuple(self.source_dropout if probability is None else probability for probability in own)

    @property
    def source_subset_table(self) -> dict[tuple[bool, ...], float]:
        """Sampling probability of each subset, keyed by whether each source, in order, is kept; {} without subsets."""
        names = self.source_names
        table: dict[tuple[bool, ...], float] = {}
        total = sum((self.source_subsets or {}).values())
        for words, weight in (self.source_subsets or {}).items():
            subsets = [[name] for name in names] if words == "each" else [names if words == "all" else words.split()]
            for subset in subsets:
                stays = tuple(name in subset for name in names)
                table[stays] = table.get(stays, 0.0) + weight / total / len(subsets)
        return dict(sorted(table.items()))  # the drawn subsets must not depend on the order in a file

    @property
    def source_keywords(self) -> dict[str, tuple[str, str]]:
        """Keywords of all sources, each with the name of its source and the keyword without the prefix."""
        return {
            source_key(i, source.name, key): (source.name, key)
            for i, source in enumerate(self.sources)
            for key in self.source_kinds[source.kind].keys
        }

    def source_inputs(self, keywords: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Group the keywords of a call by source: `input_ids` belongs to source 0, `de_input_ids` to source `de`.

        Args:
            keywords: All keywords of the call; keywords that belong to no source are skipped.

        Returns:
            The keywords of each source, without the prefix, in order; sources with only a mask are left out.

        Raises:
            ValueError: If no source is given, or a keyword belongs to a source that the model does not have.
        """
        known, any_key = self.source_keywords, input_keys()
        first, *others = self.source_names
        found: dict[str, dict[str, Any]] = {name: {} for name in self.source_names}
        for word, value in keywords.items():
            if word in known:
                name, key = known[word]
                if value is not None:
                    found[name][key] = value
            elif bare := next((key for key in any_key if word == source_key(1, first, key)), None):
                raise ValueError(f"{word!r}: the keywords of source 0 have no prefix: use {bare!r}.")
            elif owner := next((name for name in others if word.startswith(source_key(1, name, ""))), None):
                allowed = ", ".join(self.source_kind(owner).keys)
                raise ValueError(f"{word!r} is no keyword of a source; allowed after the name are {allowed}.")
            elif word.endswith(tuple(source_key(1, "", key) for key in any_key)) and not word.startswith("decoder_"):
                raise ValueError(
                    f"{word!r} belongs to no source; the model's sources are {', '.join(self.source_names)}."
                )
            elif word in any_key and value is not None:
                kind = self.source_kind(first)
                raise ValueError(
                    f"{word!r}: source 0 ({first}) is of kind {kind.name!r}; give it as {', '.join(kind.keys)}."
                )
        given = {name: inputs for name, inputs in found.items() if inputs.keys() - {MASK}}
        if not given:
            raise ValueError(f"no source is given; give at least one of {', '.join(self.source_names)}.")
        return given

    @staticmethod
    def check_source_names(names: Sequence[str]) -> None:
        """Check that the names of sources can be used as unambiguous prefixes of keywords.

        Args:
            names: The names, in the order of the sources.

        Raises:
            ValueError: If a name is not allowed, or `names` is not a list; the message gives the name and the rule.
        """
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"the names of sources must be a list of strings; got {shown(names)}.")
        reserved = RESERVED_NAMES.union(input_keys())
        for i, name in enumerate(names):
            if not name.isidentifier():
                raise ValueError(f"source name {name!r} must be an identifier: letters, digits and underscores only.")
            if name in names[:i]:
                raise ValueError(f"source name {name!r} occurs twice in sources; names must be unique.")
            if name in reserved or name.startswith(RESERVED_PREFIXES):
                raise ValueError(
                    f"source name {name!r} is reserved; names must not be one of {', '.join(sorted(reserved))} "
                    f"nor begin with {', '.join(RESERVED_PREFIXES)}."
                )
            for word in (*reserved, *RESERVED_PREFIXES, *LIBRARY_KEYWORDS):
                if word.startswith(source_key(1, name, "")):
                    raise ValueError(
                        f"source name {name!r} is reserved: {word!r} would be read as a keyword of this source."
                    )
            for other in names:
                if other.startswith(source_key(1, name, "")):
                    raise ValueError(
                        f"source name {name!r} is a prefix of {other!r}: their keywords could be confused."
                    )

    def validate_bounds(self) -> None:
        """Check that every number is within the range of its setting and that the model is an encoder-decoder."""
        places = [("", self), *((f"sources[{source.name}].", source) for source in self.sources)]
        for place, settings in places:
            for field in (field.name for field in fields(settings) if field.name in RANGES):
                check_range(field, getattr(settings, field), f"{place}{field}")
        if not self.is_encoder_decoder:
            raise ValueError("is_encoder_decoder must be True; got False.")

    def validate_source_subsets(self) -> None:
        """Check that subsets name existing sources and that their weights are positive."""
        if self.source_subsets is None:
            return
        if not self.source_subsets:
            raise ValueError('source_subsets must have at least one entry, such as "all": 1; got {}.')
        if taken := [name for name in self.source_names if name in ("all", "each")]:
            raise ValueError(f"source_subsets gives {taken[0]!r} a meaning of its own; rename the source {taken[0]!r}.")
        if any(self.source_dropouts):
            raise ValueError(
                f"source_subsets and source_dropout exclude one another; got source_dropout="
                f"{max(self.source_dropouts)}."
            )
        for words, weight in self.source_subsets.items():
            place, subset = f"source_subsets[{shown(words)}]", words.split()
            check_range("subset_weight", weight, place)
            if not subset:
                raise ValueError(f'{place} must name at least one source, or be "all" or "each".')
            if len(subset) > len(set(subset)):
                raise ValueError(f"{place} must name each source once.")
            if words not in ("all", "each") and (unknown := [name for name in subset if name not in self.source_names]):
                raise ValueError(
                    f"{place}: unknown source {shown(unknown[0])}; the model's sources are "
                    f"{', '.join(self.source_names)}."
                )

    def validate_absent_vectors(self) -> None:
        """Check that a model with `absent_vectors` has several sources; the only source cannot be absent."""
        if self.absent_vectors and len(self.sources) == 1:
            raise ValueError(f"absent_vectors needs at least two sources; there is one, {self.source_names[0]}.")

    def validate_token_ids(self) -> None:
        """Check that the ids of special tokens are in the vocabulary."""
        for field in TOKEN_IDS:
            ids = getattr(self, field)
            if ids == []:
                raise ValueError(f"{field} must be a token id, a list of some, or None; got [].")
            for one in ids if isinstance(ids, list) else [ids]:
                _check_token_id(field, one, self.vocab_size)
        for source in self.sources:
            if self.source_kind(source.name).has_vocabulary:
                size, padding = self.source_vocabulary(source.name)
                _check_token_id(f"sources[{source.name}].pad_token_id", padding, size)

    def validate_sources(self) -> None:
        """Check the names of the sources, and that shared encoders and embeddings belong to earlier sources."""
        names = self.source_names
        if not names:
            raise ValueError("sources must hold at least one source; got an empty list.")
        self.check_source_names(names)
        for i, source in enumerate(self.sources):
            name = source.name
            check_choice(f"sources[{name}].kind", source.kind, tuple(self.source_kinds))
            for field in ("share_encoder_with", "share_embeddings_with"):
                other = getattr(source, field)
                if other is not None and other not in names[:i]:
                    earlier = ", ".join(names[:i]) or "there is none"
                    raise ValueError(f"sources[{name}].{field} must name an earlier source ({earlier}); got {other!r}.")
            self._check_kind(source)
            if source.share_embeddings_with is not None:
                if not self.source_kind(source.share_embeddings_with).has_vocabulary:
                    raise ValueError(
                        f"sources[{name}].share_embeddings_with must name a text source; got "
                        f"{source.share_embeddings_with!r}."
                    )
                if not self.tie_word_embeddings:
                    raise ValueError(f"sources[{name}].share_embeddings_with needs tie_word_embeddings=True.")
                if source.vocab_size is not None:
                    raise ValueError(
                        f"sources[{name}] has share_embeddings_with and a vocab_size of its own; give one."
                    )

    def _check_kind(self, source: SourceConfig) -> None:
        """Check that a source has all required settings of its kind and no settings of other kinds."""
        place, kind = f"sources[{source.name}]", self.source_kinds[source.kind]
        own = source.to_dict().keys() - self.fields_of_all
        if source.share_encoder_with is not None:
            if own:
                raise ValueError(f"{place} has share_encoder_with and so cannot set {', '.join(sorted(own))}.")
            if (other := self.get_source(source.share_encoder_with)).kind != source.kind:
                raise ValueError(f"{place}.kind must be that of {other.name!r}, {other.kind!r}; got {source.kind!r}.")
            return
        if foreign := sorted(own - kind.fields):
            allowed = ", ".join(sorted(kind.fields))
            raise ValueError(f"{place} is of kind {kind.name!r} and so cannot set {foreign[0]}; it can set {allowed}.")
        for field, what in kind.needed.items():
            if getattr(source, field) is None:
                raise ValueError(f"{place}.{field} must be {what}; got None.")
        kind.check(source, self)

    def to_dict(self) -> dict[str, Any]:
        """Convert the configuration to a dict of JSON values.

        Returns:
            A dict, in which `sources` is a list of dicts.
        """
        output: dict[str, Any] = super().to_dict()
        output["sources"] = [source.to_dict() for source in self.sources]
        return output


@strict
class MultiSourceConfig(SourcesConfig):
    """Configuration of a model with several source encoders and one decoder.

    The settings are flat, as in BART's configuration, except for `sources`, a list whose order determines the order of
    the sources everywhere.

    Args:
        sources: [`SourceConfig`]s, dicts of its fields, or bare names. Source 0 takes keywords without a prefix
            (`input_ids`), every other source takes keywords with its name as a prefix (`de_input_ids`).
        combiner: Strategy of the decoder's cross-attention; a key of `hf_multisource.COMBINERS`.
        hierarchical_heads: Heads of the hierarchical combiner's second attention; None: `decoder_attention_heads`.
        query_norm: "shared": one layer norm of the query for all sources (the paper); "per_source": one layer norm per
            source. Used with `norm_position="pre"` by the combiners that attend to all sources in parallel. Not used by
            serial and gated_serial, which always have one layer norm per source, and by flat and flat_normed, which
            have a single query.
        norm_position: "pre": x + f(LN(x)), with a final layer norm after encoder and decoder; "post": LN(x + f(x)).
        vocab_size: Size of the target's vocabulary, in tokens.
        d_model: Width D of all states.
        encoder_layers: Number of layers of each encoder, for sources that do not set their own.
        encoder_attention_heads: Attention heads of each encoder, for sources that do not set their own.
        encoder_ffn_dim: Feed-forward width of each encoder, for sources that do not set their own.
        decoder_layers: Number of decoder layers.
        decoder_attention_heads: Heads of the decoder's self-attention and of each cross-attention.
        decoder_ffn_dim: Feed-forward width of the decoder.
        activation_function: Activation function of the feed-forward layers, by its name in Transformers.
        attention_bias: Whether the four projections of every attention have a bias.
        dropout: Dropout probability after embeddings and sub-layers, in [0, 1); not a keep-probability.
        attention_dropout: Dropout probability of attention weights.
        activation_dropout: Dropout probability inside the feed-forward layers.
        source_dropout: Probability of removing a whole source from an example in training, for sources that do not set
            their own; every example keeps at least one of its sources.
        source_subsets: Sampling weights of subsets of the sources; in training one subset is drawn for each example and
            the other sources are removed, instead of by `source_dropout`. A subset is written as the names of its
            sources, separated by spaces; "all" stands for all sources, and the weight of "each" is divided among the
            single sources. Weights are normalized by their sum. An example that has no source of the drawn subset keeps
            all of its sources. None: `source_dropout` alone removes sources.
        absent_vectors: Whether an absent source is represented by a learned vector, which the decoder attends to.
            Source dropout trains the vectors. An example without any source gets no vectors.
        layer_norm_eps: Epsilon of the layer norms, added to the variance.
        position_embedding: "sinusoidal": sin and cos halves with frequencies 10000^(-k/(D/2-1)) (Tensor2Tensor, the
            paper's code, M2M100); "sinusoidal_marian": exponent -k/(D/2); "learned".
        position_offset: Index of the first position.
        max_position_embeddings: Rows of learned position tables, in tokens; sinusoids have no limit.
        scale_embedding: Whether token embeddings are multiplied by sqrt(D).
        embedding_norm: Whether a layer norm follows the sum of token and position embeddings (BART, mBART).
        source_embeddings: Whether a learned vector of the source is added to each embedded token of a text source, like
            the language embeddings of XLM (Conneau & Lample 2019, https://arxiv.org/abs/1901.07291). The vectors let an
            encoder that several sources share distinguish its sources.
        final_logits_bias: Whether a stored bias, which is not trained, is added to the logits (BART, Marian).
        initializer: "xavier_uniform" for all matrices (the paper), or "normal" with standard deviation `init_std`.
        init_std: Standard deviation of the normal initializer.
        label_smoothing: Probability mass spread over the whole vocabulary, in training only.
        use_cache: Whether the decoder returns its key/value cache.
        tie_word_embeddings: Whether decoder, output layer and every source of the same vocabulary share one table.
        pad_token_id: Padding id.
        bos_token_id: Id that begins the decoder's input.
        eos_token_id: Id, or list of ids, that ends a text.
        decoder_start_token_id: First id of the decoder's input; None: `bos_token_id`.
        is_encoder_decoder: Always True.

    Raises:
        StrictDataclassError: If a field has a wrong type or a value that is not allowed; the message names the field,
            the value and what is allowed.
        ValueError: If `sources` or one of its items is not allowed.

    Example:
        >>> from hf_multisource import MultiSourceConfig
        >>> config = MultiSourceConfig(sources=["en", {"name": "de", "layers": 2}], combiner="hierarchical")
        >>> config.source_names
        ['en', 'de']
    """

    model_type = "multisource"
    fields_of_all: ClassVar[set[str]] = {*FIELDS_OF_ALL, "gated"}
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
    }

    combiner: str = "serial"
    hierarchical_heads: int | None = None
    query_norm: str = "shared"
    norm_position: str = "pre"
    d_model: int = 512
    encoder_layers: int = 6
    encoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_layers: int = 6
    decoder_attention_heads: int = 8
    decoder_ffn_dim: int = 2048
    activation_function: str = "relu"
    attention_bias: bool = True
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    layer_norm_eps: float | int = 1e-5
    position_embedding: str = "sinusoidal"
    position_offset: int = 0
    max_position_embeddings: int = 1024
    scale_embedding: bool = True
    embedding_norm: bool = False
    source_embeddings: bool = False
    initializer: str = "xavier_uniform"
    init_std: float | int = 0.02

    @property
    def strategy(self) -> str:
        """Name of the combiner, as a short description of the model in reports."""
        return self.combiner

    @classmethod
    def paper(cls, **fields: Any) -> "MultiSourceConfig":
        """Build the configuration that is equivalent to the authors' code of Libovický, Helcl & Mareček 2018.

        The preset has pre-norm, no attention bias, sinusoidal positions in halves, no embedding scale, ReLU, a tied
        output layer without bias, Glorot-uniform initialization of all matrices, and the residual dropout also inside
        the feed-forward layers. The states of sources that are not text have neither layer norm nor dropout. Sizes,
        dropout and label smoothing are not part of the preset; the paper does not state the last two.

        Args:
            fields: Fields of the configuration, which override the preset.

        Returns:
            The configuration.
        """
        preset: dict[str, Any] = {
            "norm_position": "pre",
            "query_norm": "shared",
            "attention_bias": False,
            "position_embedding": "sinusoidal",
            "scale_embedding": False,
            "activation_function": "relu",
            "layer_norm_eps": 1e-6,
            "initializer": "xavier_uniform",
            "tie_word_embeddings": True,
        }
        preset["activation_dropout"] = fields.get("dropout", cls.dropout)
        config = cls(**{**preset, **fields})
        for source in config.sources:
            if "norm" not in config.source_kind(source.name).fields or source.share_encoder_with is not None:
                continue
            if source.norm is None:
                source.norm = False
            if source.dropout is None and not source.layers:  # encoder layers use the model-wide dropout
                source.dropout = 0.0
        return config

    @property
    def sub_configs(self) -> dict[str, Any]:
        """Configuration classes of the wrapped encoders, by the attribute name that `__getattr__` resolves."""
        wrapped = [source for source in self.__dict__.get("sources") or () if source.encoder is not None]
        return {f"sources.{source.name}": type(source.encoder) for source in wrapped}

    def __getattr__(self, name: str) -> Any:
        # Transformers sets options of all parts of a model, such as the attention implementation, on
        # `getattr(config, part)`.
        if name.startswith("sources."):
            return self.get_source(name.removeprefix("sources.")).encoder
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def encoder_settings(self, name: str) -> EncoderSettings:
        """Return the settings of the encoder of a source; settings that the source leaves out are the model-wide ones.

        Args:
            name: The source's name.

        Returns:
            The complete settings.

        Raises:
            ValueError: If the model has no source of this name; the message lists the names.
        """
        source, layered = self.encoder_owner(name), self.source_kind(name).layered
        vocab_size, pad_token_id = self.source_vocabulary(name)

        return EncoderSettings(
            name=name,
            layers=_pick(source.layers, self.encoder_layers if layered else 0),
            attention_heads=_pick(source.attention_heads, self.encoder_attention_heads),
            ffn_dim=_pick(source.ffn_dim, self.encoder_ffn_dim),
            dropout=_pick(source.dropout, self.dropout),
            vocab_size=vocab_size,
            pad_token_id=pad_token_id,
            position_embedding=_pick(source.position_embedding, self.position_embedding if layered else "none"),
            max_position_embeddings=_pick(source.max_position_embeddings, self.max_position_embeddings),
        )

    @property
    def gated_sources(self) -> tuple[bool, ...]:
        """Tuple of whether each source, in order, is gated if the combiner is "gated_serial"."""
        return tuple(i > 0 if source.gated is None else source.gated for i, source in enumerate(self.sources))

    def validate_choices(self) -> None:
        """Check that fields with a fixed set of values have one of these values."""
        check_choice("norm_position", self.norm_position, NORM_POSITIONS)
        check_choice("query_norm", self.query_norm, QUERY_NORMS)
        check_choice("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        check_choice("initializer", self.initializer, INITIALIZERS)
        for source in self.sources:
            if source.gated is not None and self.combiner != "gated_serial":
                raise ValueError(
                    f"sources[{source.name}].gated may only be set with combiner='gated_serial'; got {source.gated} "
                    f"with combiner={self.combiner!r}."
                )
            if source.position_embedding is not None:
                field = f"sources[{source.name}].position_embedding"
                check_choice(field, source.position_embedding, SOURCE_POSITION_EMBEDDINGS)
        if self.query_norm == "per_source" and self.norm_position == "post":
            raise ValueError(
                'query_norm="per_source" needs norm_position="pre": with "post", queries are not normalized.'
            )

    def validate_widths(self) -> None:
        """Check that D is even and divisible by the number of heads of every attention."""
        heads = {"decoder_attention_heads": self.decoder_attention_heads}
        if self.hierarchical_heads is not None:
            heads["hierarchical_heads"] = self.hierarchical_heads
        for name in self.source_names:
            heads[f"attention_heads of source {name!r}"] = self.encoder_settings(name).attention_heads
        for field, number in heads.items():
            if self.d_model % number:
                raise ValueError(f"{field} must divide d_model={self.d_model}; got {number}.")
        if self.d_model % 2:
            raise ValueError(f"d_model must be even (positions have two halves); got {self.d_model}.")


__all__ = ["MultiSourceConfig", "SourceConfig", "SourcesConfig"]
