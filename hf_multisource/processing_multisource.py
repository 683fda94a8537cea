"""Processor that encodes sources of any kind to the model's inputs and decodes ids to texts."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    BatchFeature,
    FeatureExtractionMixin,
    ImageProcessingMixin,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.processing_utils import ProcessorMixin

from .arrays import pad_rows
from .collation import LABEL_PADDING
from .configuration_multisource import MultiSourceConfig
from .foreign import DOWNLOAD_OPTIONS, check_sources, load_auto, named_checkpoint, options_of_sources
from .foreign_settings import forget_references
from .messages import first_line, shown
from .model_card import replace_empty_card
from .processor_files import check_kinds, check_names, check_processor_files
from .source_kinds import FIRST_EXAMPLE, FORMS, MASK, SourceKind, count_from, is_batch, read_text, source_key
from .text_encoding import TextOptions, encode_texts

UNREADABLE = ("error", "absent")
TARGET = "text_target"  # name of the target in mappings by source name
COUNT_LOCK = threading.Lock()  # held while updating `unreadable`; as an attribute it could not be copied or pickled
logger = logging.getLogger(__name__)


class MultiSourceProcessor(ProcessorMixin):
    """Processor that encodes the sources of a model to its inputs, and the target to labels.

    A source is text, unless `source_processors`, `feature_sources` or `source_kinds` contain its name.

    Args:
        tokenizer: The tokenizer of the target, and of every text source without its own tokenizer.
        source_names: The model's sources, in order.
        source_tokenizers: Tokenizers of sources that have their own vocabulary, by name.
        source_processors: Image processors of picture sources and feature extractors of speech sources, by name.
        feature_sources: Names of sources given as arrays of features.
        null_token: If set, an absent text source is replaced by a text of this token and is therefore present, as in
            Nishimura et al. 2018, https://doi.org/10.18653/v1/W18-2711. The token must be in the vocabulary of every
            text source. The tokenizer adds its special tokens as to any other text.
        source_kinds: Names of kinds added by `register_source_kind`, by source.

    Attributes:
        unreadable: Number of unreadable pictures and recordings of each source that were treated as absent. Each worker
            of a DataLoader counts separately.

    Raises:
        ValueError: If `source_names` is empty or contains an invalid name, a part belongs to no source, a source has
            two parts, a part is of an unsupported type, or a tokenizer does not encode `null_token` as one token.

    Example:
        >>> from hf_multisource import MultiSourceProcessor
        >>> processor = MultiSourceProcessor.from_pretrained("org/name")  # doctest: +SKIP
        >>> batch = processor(en=["A dog.", "A cat."], de=["Ein Hund.", None], return_tensors="pt")  # doctest: +SKIP
        >>> batch = processor(en="A dog.", image="dog.jpg", return_tensors="pt")  # doctest: +SKIP
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        source_names: Sequence[str] = (),
        source_tokenizers: Mapping[str, PreTrainedTokenizerBase] | None = None,
        source_processors: Mapping[str, Any] | None = None,
        feature_sources: Sequence[str] = (),
        null_token: str | None = None,
        source_kinds: Mapping[str, str] | None = None,
    ) -> None:
        check_names(source_names)
        super().__init__(tokenizer)
        self.source_names = list(source_names)
        self.source_tokenizers = dict(source_tokenizers or {})
        self.source_processors = dict(source_processors or {})
        kinds = dict(source_kinds or {})
        self.feature_sources = [*feature_sources, *(name for name, kind in kinds.items() if kind == "features")]
        self.source_kinds = {name: kind for name, kind in kinds.items() if kind != "features"}
        self.null_token = null_token
        self.unreadable: dict[str, int] = {}
        self._check_parts()
        for part in (tokenizer, *self.source_tokenizers.values(), *self.source_processors.values()):
            forget_references(part)
        if null_token is not None:
            self._check_null_token(null_token)

    # Pipelines count examples by this method. With `trust_remote_code`, the pipeline and the processor use separate
    # copies of the modules, so that the function in the pipeline's copy would not change the processor's messages.
    count_from = staticmethod(count_from)

    @classmethod
    def from_pretrained_sources(cls, sources: Mapping[str, Any], decoder: str, **kwargs: Any) -> MultiSourceProcessor:
        """Create the processor for a model of `MultiSourceForConditionalGeneration.from_pretrained_sources`.

        The target's tokenizer comes from the checkpoint that `decoder` names. Every source has the tokenizer, image
        processor or feature extractor of its checkpoint, depending on the main input of the checkpoint's model.

        Args:
            sources: By the name of the source, in the order of the model: folder or Hub id of a checkpoint; or a
                tokenizer (for instance with a `src_lang`), an image processor, a feature extractor, or the processor of
                a model of this package, whose part for the source of the same name, or for its only source, is used.
            decoder: Name of the source whose checkpoint provides the decoder.
            **kwargs: Options of `from_pretrained` for loading the checkpoints: `revision`, `subfolder` and `token`,
                each for all sources or as a dict by the name of the source; `cache_dir`, `force_download`,
                `local_files_only`, `proxies`.

        Returns:
            The processor.

        Raises:
            ValueError: If `decoder` is not a source, its checkpoint has no tokenizer, a processor with several sources
                lacks the source, or a part is of an unsupported type; the message names the source.
            OSError: If a checkpoint does not exist.

        Example:
            >>> from hf_multisource import MultiSourceProcessor
            >>> processor = MultiSourceProcessor.from_pretrained_sources(
            ...     {"en": "Helsinki-NLP/opus-mt-en-cs", "image": "google/vit-base-patch16-224"}, decoder="en"
            ... )  # doctest: +SKIP
        """
        check_sources(sources, decoder)
        options = options_of_sources(sources, kwargs)
        loaded: dict[tuple[str, str], Any] = {}
        parts: dict[str, Any] = dict(sources)
        for name, value in sources.items():
            if isinstance(value, str | Path):
                key = str(value), str(options[name])
                if key not in loaded:
                    with named_checkpoint(name, value, options[name]):
                        loaded[key] = load_main_processor(cls, name, value, options[name])
                parts[name] = loaded[key]
        origin = parts[decoder]
        null_token = origin.null_token if isinstance(origin, cls) else None
        target = origin.tokenizer if isinstance(origin, cls) else origin
        if not isinstance(target, PreTrainedTokenizerBase):
            raise ValueError(
                f"sources[{decoder}], which gives the decoder, must have a tokenizer; got a {type(target).__name__}."
            )
        tokenizers: dict[str, PreTrainedTokenizerBase] = {}
        processors: dict[str, Any] = {}
        features: list[str] = []
        kinds: dict[str, str] = {}
        for name, part in parts.items():
            if isinstance(part, cls):
                if name not in part.source_names and len(part.source_names) > 1:
                    raise ValueError(
                        f"sources[{name}]: the checkpoint has no such source, but {', '.join(part.source_names)}."
                    )
                own = name if name in part.source_names else part.source_names[0]
                if own in part.feature_sources:
                    features.append(name)
                    continue
                if own in part.source_kinds:
                    kinds[name] = part.source_kinds[own]
                    continue
                part = part.part_of(own)
            if not isinstance(part, PreTrainedTokenizerBase):
                processors[name] = part
            elif part is not target:
                tokenizers[name] = part
        return cls(target, list(sources), tokenizers, processors, features, null_token, kinds)

    @classmethod
    def get_attributes(cls) -> list[str]:
        """Return the names of the parts that [`ProcessorMixin`] loads and saves.

        Returns:
            The names; all other parts are loaded and saved by this class.
        """
        return ["tokenizer"]

    @property
    def model_input_names(self) -> list[str]:
        """Names of the model inputs of all sources, with their masks."""
        return [
            source_key(i, name, key)
            for i, name in enumerate(self.source_names)
            for key in (self.main_input(name), MASK)
        ]

    def kind_of(self, name: str) -> SourceKind:
        """Return the kind of a source; for a source with a wrapped model: text, picture or sound.

        Args:
            name: The source's name.

        Returns:
            The kind.
        """
        if name in self.source_processors:
            sort = auto_class(self.source_processors[name])
            return next(kind for kind in FORMS.values() if kind.part_loader == sort)
        return FORMS["features" if name in self.feature_sources else self.source_kinds.get(name, "text")]

    def part_of(self, name: str) -> Any:
        """Return the part of the processor that encodes a source.

        Args:
            name: The source's name.

        Returns:
            The tokenizer, image processor or feature extractor; None if the kind of the source needs no part.
        """
        return self.get_tokenizer(name) if self.kind_of(name).has_vocabulary else self.source_processors.get(name)

    def main_input(self, name: str) -> str:
        """Return the keyword of the model for the main input of a source, without the source's name.

        Args:
            name: The source's name.

        Returns:
            "input_ids" for text, "input_features" for features; for pictures and speech the main output of their
            processor.
        """
        return self.kind_of(name).main_input(self.part_of(name))

    def get_tokenizer(self, name: str) -> PreTrainedTokenizerBase:
        """Return the tokenizer of a text source.

        Args:
            name: The source's name.

        Returns:
            The source's own tokenizer, otherwise the target's tokenizer.

        Raises:
            ValueError: If the source is not text.
        """
        if not self.kind_of(name).has_vocabulary:
            raise ValueError(f"source {name!r} has no tokenizer: it is given as {self.main_input(name)}, not as text.")
        return self.source_tokenizers.get(name, self.tokenizer)

    def is_single(self, name: str, value: Any) -> bool:
        """Return whether a value is a single text, picture or array, not a batch.

        Args:
            name: The source's name.
            value: The value. A batch of texts can be any container, other batches must be sequences.

        Returns:
            Whether the value is a single value.
        """
        return self.kind_of(name).is_single(value)

    @property
    def pad_token_id(self) -> int:
        """Padding id of the target, which Trainer reads."""
        return self.tokenizer.pad_token_id

    def __call__(
        self,
        *unnamed: Any,
        text_target: str | Sequence[str] | None = None,
        add_special_tokens: bool = True,
        padding: bool | str | None = None,
        truncation: bool | str | None = None,
        max_length: int | Mapping[str, int] | None = None,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = None,
        unreadable: str = "error",
        **sources: Any,
    ) -> BatchFeature:
        """Encode one example or a batch; text options have the same meaning as in a call of a tokenizer.

        Args:
            *unnamed: Not allowed; every source is passed by its name.
            text_target: The target text or texts, which are encoded to `labels`. Without sources, only `labels` are
                returned. (A tokenizer would return `input_ids`, which are here the ids of source 0.)
            add_special_tokens: Whether each text gets the special tokens of its tokenizer, such as the end of sentence.
            padding: True or "longest": each source is padded to its longest row; "max_length": texts are padded to
                `max_length`, other sources to their longest row; None: pad if tensors are requested. Labels are padded
                with -100.
            truncation: Whether texts are truncated to `max_length`: True, "longest_first" and "only_first" mean yes,
                False and "do_not_truncate" no; None: yes if `max_length` is given and `padding` is None or False.
            max_length: Maximum length, in tokens, of each text source and of the target, including special tokens; or a
                mapping from names of text sources, and "text_target", to maximum lengths. None: the tokenizer's
                `model_max_length`.
            pad_to_multiple_of: The lengths of ids, features, their masks and labels are rounded up to a multiple of
                this number, as in the collator; pictures and speech are not affected. Requires padding.
            return_tensors: "pt" for tensors, "np" for arrays, None for lists.
            unreadable: Whether an unreadable picture or recording is an "error" or, with a warning, "absent".
            **sources: By source name, one value or a list of values. Pictures: any value that [`read_picture`] accepts.
                Speech: an array of samples, a dict of `array` and `sampling_rate`, or a file, as its path, its bytes,
                or a dict of `bytes` and `path`. Features: an array; a map is read row by row. A source is absent if its
                value is None, NaN, an empty or blank text (or path) or an array without rows, or if its name is left
                out. A list is always a batch, so a single array must not be a list.

        Shape:
            Speech (samples,); features (S, F), maps (F, H, W), which become (H * W, F).

        Returns:
            For every source (without prefix for source 0, with the name as prefix for the others): `input_ids`,
            `pixel_values`, `input_values` or `input_features`; and `attention_mask`, with one entry for a picture. The
            masks of absent sources are zero; without padding, their rows and masks are None. Also `labels`.

        Raises:
            TypeError: If a value is passed without the name of its source.
            ValueError: If a keyword is neither a source nor an option, lists have different lengths, a value is invalid
                or unreadable, the sampling rate of speech differs from that of its feature extractor, an example has no
                source, or an option has a value that is not allowed or incompatible with other options.
        """
        if unnamed:
            example = ", ".join(f"{name}=…" for name in self.source_names)
            raise TypeError(
                f"sources are passed by name, such as processor({example}); got {shown(unnamed[0])} without a name."
            )
        self._check_names(sources, f", the options {', '.join(OPTIONS)}")
        if unreadable not in UNREADABLE:
            raise ValueError(f"unreadable must be one of {', '.join(map(repr, UNREADABLE))}; got {unreadable!r}.")
        names = self.source_names if sources or text_target is None else []
        texts_of = [name for name in self.source_names if self.kind_of(name).has_vocabulary]
        options = TextOptions(
            {**{name: self.get_tokenizer(name) for name in texts_of}, TARGET: self.tokenizer},
            add_special_tokens=add_special_tokens,
            padding=return_tensors is not None if padding is None else padding,
            truncation=max_length is not None and not padding if truncation is None else truncation,
            max_length=max_length,
            pad_to_multiple_of=pad_to_multiple_of,
        )
        columns, targets, single = self._columns(sources, text_target)
        size = self._batch_size(columns if targets is None else {**columns, TARGET: targets})
        encoded = {}
        for name in names:
            kind, part = self.kind_of(name), self.part_of(name)
            encoded[name] = kind.encode(
                columns.get(name, [None] * size),
                name=name,
                part=part,
                skip=partial(self._skip, name, unreadable),
                **(self._text_options(name, options) if kind.has_vocabulary else {}),
            )
        if names:
            self._check_present([masks for _, masks in encoded.values()], size)
        data: dict[str, Any] = {}
        for i, (name, (rows, masks)) in enumerate(encoded.items()):
            kind, part = self.kind_of(name), self.part_of(name)
            if kind.has_vocabulary and self.null_token is not None:
                rows = _with_null(part, self.null_token, rows, add_special_tokens)
                masks = [kind.mask(row) for row in rows]
            if options.pads:
                length = options.padded_length(name) if kind.has_vocabulary else None
                rows, masks = kind.pad(rows, masks, name=name, part=part, to=length, multiple_of=options.multiple)
            data[source_key(i, name, kind.main_input(part))], data[source_key(i, name, MASK)] = rows, masks
        if targets is not None:
            data["labels"] = self._labels(targets, options)
        if single and return_tensors is None:
            data = {key: values[0] for key, values in data.items()}
        return BatchFeature(data, tensor_type=return_tensors)

    def _columns(self, sources: Mapping[str, Any], text_target: Any) -> tuple[dict[str, Any], Any, bool]:
        """Return the columns of the present sources and the targets as batches, and whether there is one example."""
        given = dict(sources)
        for name, value in sources.items():  # a missing cell, or a number
            if self.kind_of(name).has_vocabulary and value is not None and not is_batch(value):
                given[name] = read_text(f"source {name!r}", 0, value)
        if text_target is not None and not is_batch(text_target):
            text_target = read_text(TARGET, 0, text_target)
            if text_target is None:
                raise ValueError(f"{TARGET} of example 0 is missing; each example needs one.")
        single = all(value is None or self.is_single(name, value) for name, value in given.items())
        single = single and isinstance(text_target, str | None)
        columns = {name: [value] if single else value for name, value in given.items() if value is not None}
        return columns, [text_target] if single and text_target is not None else text_target, single

    def _labels(self, targets: Sequence[Any], options: TextOptions) -> list[Any]:
        """Return the ids of the targets, padded if the sources are."""
        texts: list[Any] = [read_text(TARGET, i, value) for i, value in enumerate(targets)]
        if None in texts:
            raise ValueError(f"{TARGET} of example {texts.index(None)} is missing; each example needs one.")
        if not texts:
            return []
        labels = encode_texts(self.tokenizer, texts, is_target=True, **self._text_options(TARGET, options))
        if options.pads:
            length = options.padded_length(TARGET)
            labels = pad_rows(labels, LABEL_PADDING, to=length, multiple_of=options.multiple)
        return labels

    def _text_options(self, name: str, options: TextOptions) -> dict[str, Any]:
        """Return the arguments of `encode_texts` for a text source, or the target."""
        return {
            "truncation": options.truncates,
            "max_length": options.length(name),
            "add_special_tokens": options.add_special_tokens,
            # Texts and the null token are encoded with different values of `split_special_tokens`.
            "exclusive": self.null_token is not None and options.tokenizers[name].split_special_tokens,
        }

    def _skip(self, name: str, unreadable: str, place: str, error: Exception) -> None:
        """Count an unreadable file and log a warning, or raise its error."""
        if unreadable == "error":
            raise ValueError(f"{place}: {error}.") from error
        logger.warning(f"{place}: {error}; it counts as absent.")
        with COUNT_LOCK:
            self.unreadable[name] = self.unreadable.get(name, 0) + 1

    def _check_names(self, sources: Iterable[str], options: str = "") -> None:
        unknown = [name for name in sources if name not in self.source_names]
        if unknown:
            raise ValueError(f"unknown source {unknown[0]!r}; the sources are {', '.join(self.source_names)}{options}.")

    def _check_parts(self) -> None:
        parts = [*self.source_tokenizers, *self.source_processors, *self.feature_sources, *self.source_kinds]
        self._check_names(parts)
        twice = [name for name in parts if parts.count(name) > 1]
        if twice:
            raise ValueError(
                f"source {twice[0]!r} must be in one of source_tokenizers, source_processors, feature_sources and "
                "source_kinds only."
            )
        check_kinds(self.source_kinds)
        for name, part in self.source_processors.items():
            sort = auto_class(part)
            if sort is None:
                raise ValueError(
                    f"source_processors[{name!r}] must be an image processor or a feature extractor; "
                    f"got {type(part).__name__}."
                )
            kind, made = self.kind_of(name), part.model_input_names[0]
            if made not in kind.inputs:
                raise ValueError(
                    f"source_processors[{name!r}] must make {' or '.join(kind.inputs)}; "
                    f"{type(part).__name__} makes {made}."
                )

    def _check_null_token(self, null_token: str) -> None:
        for name in self.source_names:
            if self.kind_of(name).has_vocabulary:
                tokenizer = self.get_tokenizer(name)
                ids = tokenizer(null_token, add_special_tokens=False, split_special_tokens=False)["input_ids"]
                if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
                    raise ValueError(
                        f"null_token must be one token in the vocabulary of every text source; of {null_token!r} the "
                        f"tokenizer of {name!r} makes {tokenizer.convert_ids_to_tokens(ids)}."
                    )

    def _batch_size(self, columns: Mapping[str, Any]) -> int:
        for name, values in columns.items():
            if name == TARGET or self.kind_of(name).has_vocabulary:
                if isinstance(values, str):
                    raise ValueError(
                        f"{name} is a single text, others are lists: give single texts or lists throughout."
                    )
            elif self.is_single(name, values):
                raise ValueError(
                    f"{name} is a single value ({type(values).__name__}), others are lists: give single values or "
                    "lists throughout."
                )
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"sources and target must have equally many values; got {sizes}.")
        return next(iter(sizes.values()), 1)

    def _check_present(self, masks: Sequence[Sequence[Any]], size: int) -> None:
        for row in range(size):
            if not any(rows[row] is not None and np.any(rows[row]) for rows in masks):
                names = ", ".join(self.source_names)
                raise ValueError(
                    f"example {FIRST_EXAMPLE.get() + row} has no source at all; give it at least one of {names}."
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `processor_config.json`; tokenizers and the sources' processors have separate files.

        Returns:
            A dict of JSON values.
        """
        output: dict[str, Any] = super().to_dict()
        output["source_tokenizers"] = list(self.source_tokenizers)
        if not self.source_kinds:  # earlier versions do not support this key
            del output["source_kinds"]
        # The output of an image processor depends on its backend, and the default backend on the installed packages.
        output["source_processors"] = {
            name: {"auto_class": auto_class(part), "backend": getattr(part, "backend", None)}
            for name, part in self.source_processors.items()
        }
        return output

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> Any:
        """Save the processor; the parts of single sources are saved in `<name>_tokenizer` and `<name>_processor`.

        Args:
            save_directory: The folder.
            push_to_hub: Whether to also upload the folder.
            **kwargs: As [`ProcessorMixin.push_to_hub`]; the default of `repo_id` is the folder's name.

        Returns:
            As [`ProcessorMixin.save_pretrained`].
        """
        check_names(self.source_names)  # the names become names of folders
        self._check_parts()
        saved = super().save_pretrained(save_directory)
        for name, tokenizer in self.source_tokenizers.items():
            tokenizer.save_pretrained(f"{save_directory}/{name}_tokenizer")
        for name, part in self.source_processors.items():
            part.save_pretrained(f"{save_directory}/{name}_processor")
        if push_to_hub:  # after all parts have been saved
            self.push_to_hub(kwargs.pop("repo_id", None) or Path(save_directory).name, **kwargs)
        return saved

    def _upload_modified_files(self, working_dir: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        replace_empty_card(working_dir, repo_id, None, kwargs.get("token"))  # the model's card is more complete
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)

    @classmethod
    def _get_arguments_from_pretrained(
        cls, pretrained_model_name_or_path: Any, processor_dict: dict[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        path = pretrained_model_name_or_path
        processor_dict = processor_dict if processor_dict is not None else {}
        subfolder = kwargs.pop("subfolder", "")
        inside = f"{subfolder}/" if subfolder else ""
        tokenizer = load_auto("AutoTokenizer", path, subfolder=subfolder, **kwargs)
        own = {
            name: _load_own("AutoTokenizer", path, f"{inside}{name}_tokenizer", **kwargs)
            for name in processor_dict.pop("source_tokenizers", [])
        }
        parts = {}
        for name, how in processor_dict.pop("source_processors", {}).items():
            backend = {} if how.get("backend") is None else {"backend": how["backend"]}
            place = f"{inside}{name}_processor"
            parts[name] = _load_own(how["auto_class"], path, place, **backend, **kwargs)
        return [tokenizer, processor_dict.pop("source_names", []), own, parts]

    @classmethod
    def get_processor_dict(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        """Check and read the `processor_config.json`, as [`ProcessorMixin.get_processor_dict`] does.

        Args:
            pretrained_model_name_or_path: Folder, file or Hub id.
            **kwargs: As [`ProcessorMixin.get_processor_dict`].

        Returns:
            As [`ProcessorMixin.get_processor_dict`].

        Raises:
            ValueError: If a file has a key or value that is not allowed; the message names file and key.
        """
        where = {key: kwargs[key] for key in DOWNLOAD_OPTIONS if key in kwargs}
        arguments = inspect.signature(cls.__init__).parameters
        check_processor_files(pretrained_model_name_or_path, arguments, **where)
        return super().get_processor_dict(pretrained_model_name_or_path, **kwargs)


def _load_own(loader: str, path: Any, folder: str, **kwargs: Any) -> Any:
    """Load the tokenizer or processor of one source; errors name the missing or damaged folder."""
    try:
        return load_auto(loader, path, subfolder=folder, **kwargs)
    except ValueError as error:
        raise ValueError(f"{path}: {folder} cannot be loaded: {first_line(error)}") from error


def load_main_processor(
    processor_class: type[MultiSourceProcessor], name: str, place: str | Path, options: Mapping[str, Any]
) -> Any:
    """Load the processor, tokenizer or feature extractor for the main input of a checkpoint's model.

    Args:
        processor_class: Class with which processors of this package are loaded.
        name: Name of the source.
        place: Folder or Hub id of the checkpoint.
        options: Some of `foreign.DOWNLOAD_OPTIONS`.

    Returns:
        A processor of this package, an image processor, a feature extractor or a tokenizer.

    Raises:
        ValueError: If `AutoModel` does not support the checkpoint, or the checkpoint lacks the required files.
    """
    if PreTrainedConfig.get_config_dict(place, **options)[0].get("model_type") == MultiSourceConfig.model_type:
        return processor_class.from_pretrained(place, **options)
    config = load_auto("AutoConfig", place, **options)
    if type(config) not in MODEL_MAPPING:
        raise ValueError(f"{place}: AutoModel does not support checkpoints of type {config.model_type!r}.")
    model_class: Any = MODEL_MAPPING[type(config)]
    kinds = [kind for kind in FORMS.values() if kind.part_loader and model_class.main_input_name in kind.inputs]
    loader = str(kinds[0].part_loader) if kinds else "AutoTokenizer"
    try:
        return load_auto(loader, place, **options)
    except (OSError, ValueError) as error:
        what = {"AutoTokenizer": "tokenizer", "AutoImageProcessor": "image processor"}.get(loader, "feature extractor")
        raise ValueError(
            f"sources[{name}]: {place} has no {what} that can be loaded ({first_line(error).rstrip('.')}). Save one "
            f"there, or give the {what} itself in place of the checkpoint."
        ) from error


def auto_class(part: Any) -> str | None:
    """Return the name of the Auto class that loads an image processor or a feature extractor.

    Args:
        part: The image processor or feature extractor.

    Returns:
        The name; None if the part is neither an image processor nor a feature extractor.
    """
    if isinstance(part, ImageProcessingMixin):
        return "AutoImageProcessor"
    return "AutoFeatureExtractor" if isinstance(part, FeatureExtractionMixin) else None


# Keywords of a processor call that are options, not sources.
OPTIONS = [
    p.name for p in inspect.signature(MultiSourceProcessor.__call__).parameters.values() if p.kind is p.KEYWORD_ONLY
]


def _with_null(tokenizer: Any, null_token: str, rows: Sequence[Any], add_special_tokens: bool) -> list[Any]:
    """Return rows of ids in which absent ones are those of the null token."""
    # `split_special_tokens` is for texts that quote a special token; the null token must not be split.
    how = {"split_special_tokens": False, "add_special_tokens": add_special_tokens}
    [null] = encode_texts(tokenizer, [null_token], exclusive=tokenizer.split_special_tokens, **how)
    return [null if row is None else row for row in rows]


__all__ = ["MultiSourceProcessor"]
