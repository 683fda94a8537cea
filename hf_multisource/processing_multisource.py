"""From sources of any kind, by name, to the tensors the model takes, and from ids back to text."""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
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

from .collation import LABEL_PADDING, check_finite, pad_rows, pad_source, source_key, to_array
from .configuration_multisource import MultiSourceConfig
from .foreign import DOWNLOAD_OPTIONS, load_auto, options_of_sources
from .foreign_settings import forget_references
from .messages import first_line, shown
from .model_card import replace_empty_card
from .pictures import UnreadablePictureError, read_picture
from .processor_files import check_names, check_processor_files
from .text_encoding import TextOptions, encode_texts

UNREADABLE = ("error", "absent")
TARGET = "text_target"  # what the target is called beside the names of sources
PROCESSOR_INPUTS = {  # what an image processor, or a feature extractor, may make of a source
    "AutoImageProcessor": ("pixel_values",),
    "AutoFeatureExtractor": ("input_values", "input_features"),
}
COUNT_LOCK = threading.Lock()  # held while `unreadable` is counted; an attribute could be neither copied nor pickled
logger = logging.getLogger(__name__)


class MultiSourceProcessor(ProcessorMixin):
    """Makes the inputs of every source, and the labels of the target.

    A source is text, unless `source_processors` or `feature_sources` name it.

    Args:
        tokenizer: The target's tokenizer, and that of every text source without its own.
        source_names: The model's sources, in order.
        source_tokenizers: Tokenizers of sources that have their own vocabulary, by name.
        source_processors: Image processors of sources that are pictures, and feature extractors of those that are
            speech, by name.
        feature_sources: Names of sources given as arrays of features.
        null_token: If set, an absent text source is read as a text of this one token, which every text source's
            vocabulary must have: it is then present, as in Nishimura et al. 2018,
            https://doi.org/10.18653/v1/W18-2711. Like any text, it gets what its tokenizer puts around texts.

    Attributes:
        unreadable: How many pictures of each source could not be read so far, where they were taken for absent. Each
            worker of a DataLoader counts its own.

    Raises:
        ValueError: If `source_names` is empty or holds what cannot be the name of a source, a part belongs to no source
            or a source has two, a part is of an unknown sort, or a tokenizer does not know `null_token` as one token.

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
    ) -> None:
        check_names(source_names)
        super().__init__(tokenizer)
        self.source_names = list(source_names)
        self.source_tokenizers = dict(source_tokenizers or {})
        self.source_processors = dict(source_processors or {})
        self.feature_sources = list(feature_sources)
        self.null_token = null_token
        self.unreadable: dict[str, int] = {}
        self._check_parts()
        for part in (tokenizer, *self.source_tokenizers.values(), *self.source_processors.values()):
            forget_references(part)
        if null_token is not None:
            self._check_null_token(null_token)

    @classmethod
    def from_pretrained_sources(cls, sources: Mapping[str, Any], decoder: str, **kwargs: Any) -> MultiSourceProcessor:
        """Make the processor of a model that `MultiSourceForConditionalGeneration.from_pretrained_sources` makes.

        The target's tokenizer is that of the checkpoint that `decoder` names. Every source has the tokenizer, image
        processor or feature extractor of its checkpoint, whichever makes the main input of the checkpoint's model.

        Args:
            sources: By the name of the source, in the order of the model: folder or Hub id of a checkpoint; or, ready
                made, a tokenizer (for instance one with a `src_lang`), an image processor, a feature extractor, or the
                processor of a model of this package, which gives what it has for the source of the same name, or for
                its only source.
            decoder: Name of the source whose checkpoint gives the decoder.
            **kwargs: Where the checkpoints are loaded from, as in `from_pretrained`: `revision`, `subfolder` and
                `token`, each for all sources or as a dict by the name of the source; `cache_dir`, `force_download`,
                `local_files_only`, `proxies`.

        Returns:
            The processor.

        Raises:
            ValueError: If `decoder` is no source, its checkpoint has no tokenizer, a processor of several sources lacks
                one, or a part is of an unknown sort; the message names the source.

        Example:
            >>> from hf_multisource import MultiSourceProcessor
            >>> processor = MultiSourceProcessor.from_pretrained_sources(
            ...     {"en": "Helsinki-NLP/opus-mt-en-cs", "image": "google/vit-base-patch16-224"}, decoder="en"
            ... )  # doctest: +SKIP
        """
        if decoder not in sources:
            raise ValueError(f"decoder must name one of the sources ({', '.join(sources)}); got {decoder!r}.")
        options = options_of_sources(sources, kwargs)
        loaded: dict[tuple[str, str], Any] = {}
        parts: dict[str, Any] = dict(sources)
        for name, value in sources.items():
            if isinstance(value, str | Path):
                key = str(value), str(options[name])
                if key not in loaded:
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
                part = part.source_processors.get(own) or part.get_tokenizer(own)
            if not isinstance(part, PreTrainedTokenizerBase):
                processors[name] = part
            elif part is not target:
                tokenizers[name] = part
        return cls(target, list(sources), tokenizers, processors, features, null_token)

    @classmethod
    def get_attributes(cls) -> list[str]:
        """The parts that [`ProcessorMixin`] loads and saves itself.

        Returns:
            Their names.
        """
        return ["tokenizer"]

    @property
    def model_input_names(self) -> list[str]:
        """Keywords of all sources' tensors."""
        return [
            source_key(i, name, key)
            for i, name in enumerate(self.source_names)
            for key in (self.main_input(name), "attention_mask")
        ]

    def main_input(self, name: str) -> str:
        """What a source is given to the model as.

        Args:
            name: The source's name.

        Returns:
            "input_ids" of text, "input_features" of features; of pictures and speech what their processor makes.
        """
        if name in self.source_processors:
            key: str = self.source_processors[name].model_input_names[0]
            return key
        return "input_features" if name in self.feature_sources else "input_ids"

    def get_tokenizer(self, name: str) -> PreTrainedTokenizerBase:
        """The tokenizer of a text source.

        Args:
            name: The source's name.

        Returns:
            Its own, or else the target's.

        Raises:
            ValueError: If the source is no text.
        """
        if self.main_input(name) != "input_ids":
            raise ValueError(f"source {name!r} has no tokenizer: it is given as {self.main_input(name)}, not as text.")
        return self.source_tokenizers.get(name, self.tokenizer)

    def is_single(self, name: str, value: Any) -> bool:
        """Whether a value is one text, picture or array, not a batch of them.

        Args:
            name: The source's name.
            value: What was given for it. Texts may come in any container, all else in a sequence.

        Returns:
            The answer.
        """
        if self.main_input(name) == "input_ids":
            return isinstance(value, str)
        return isinstance(value, str | bytes) or not isinstance(value, Sequence)

    @property
    def pad_token_id(self) -> int:
        """The id that pads the target; Trainer asks for it."""
        return self.tokenizer.pad_token_id

    def __call__(
        self,
        *,
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
        """Encode one example or a batch. The options do to each text what they do in a call of its tokenizer.

        Args:
            text_target: The target text or texts; gives `labels`. Given without sources, it gives `labels` only. (A
                tokenizer calls them `input_ids` then; here, these are the ids of source 0.)
            add_special_tokens: Whether each text gets the special tokens of its tokenizer, such as the end of sentence.
            padding: True or "longest": each source to its longest row; "max_length": texts to `max_length`, all else to
                its longest row; None: pad if tensors are asked for. Labels are padded with -100.
            truncation: Whether longer texts are cut to `max_length`: True, "longest_first" and "only_first" mean yes,
                False and "do_not_truncate" no; None: yes if `max_length` is given and `padding` is None or False.
            max_length: In tokens, of each text source and of the target, special tokens included; or a mapping from
                names of text sources, and "text_target", to such lengths. Where none is given, the tokenizer's
                `model_max_length`.
            pad_to_multiple_of: Pad to lengths that are multiples of this, as the collator does: ids, features, their
                masks and the labels, but not pictures and speech. Needs padding.
            return_tensors: "pt" for tensors, "np" for arrays, None for lists.
            unreadable: Whether a picture that cannot be read is an "error" or, with a warning, "absent".
            **sources: By source name, one value or a list of values. Text: a text, or NaN, pandas' None. Pictures:
                whatever [`read_picture`] takes. Speech: an array of samples, or a dict of `array` and `sampling_rate`.
                Features: an array; a map is read row by row. None, an empty or white text (or path), an array of no
                rows, or a name left out: absent. A list is always a batch: a single array must not be one.

        Shape:
            Speech (samples,); features (S, F), maps (F, H, W), which become (H * W, F).

        Returns:
            Of every source (bare for source 0, prefixed for the others): `input_ids`, `pixel_values`, `input_values` or
            `input_features`; and `attention_mask`, of one entry for a picture. Absent ones have masks of zeros; in
            lists that are not padded, their arrays are None. And `labels`.

        Raises:
            ValueError: If a name is neither a source's nor an option's, lists have different lengths, a value is not
                what its source takes or cannot be read, speech has another sampling rate than its feature extractor, an
                example has no source at all, or an option has a value that is not allowed or does not fit the others.
        """
        self._check_names(sources, f", the options {', '.join(OPTIONS)}")
        if unreadable not in UNREADABLE:
            raise ValueError(f"unreadable must be one of {', '.join(map(repr, UNREADABLE))}; got {unreadable!r}.")
        names = self.source_names if sources or text_target is None else []
        texts_of = [name for name in self.source_names if self.main_input(name) == "input_ids"]
        options = TextOptions(
            {**{name: self.get_tokenizer(name) for name in texts_of}, TARGET: self.tokenizer},
            add_special_tokens=add_special_tokens,
            padding=return_tensors is not None if padding is None else padding,
            truncation=max_length is not None and not padding if truncation is None else truncation,
            max_length=max_length,
            pad_to_multiple_of=pad_to_multiple_of,
        )
        for name, value in sources.items():  # a missing cell, or a number
            if self.main_input(name) == "input_ids" and value is not None and not hasattr(value, "__len__"):
                sources[name] = _text(f"source {name!r}", 0, value)
        single = all(value is None or self.is_single(name, value) for name, value in sources.items())
        single = single and isinstance(text_target, str | None)
        columns: dict[str, Any] = {name: [v] if single else v for name, v in sources.items() if v is not None}
        targets: Any = [text_target] if single and text_target is not None else text_target
        size = self._batch_size(columns if targets is None else {**columns, TARGET: targets})

        rows: dict[str, list[Any]] = {}
        masks: dict[str, list[Any]] = {}
        for name in names:
            column = columns.get(name, [None] * size)
            key = self.main_input(name)
            if key == "input_ids":
                texts = [_text(f"source {name!r}", i, value) for i, value in enumerate(column)]
                rows[name] = self._encode(name, texts, options)
                masks[name] = [[1] * len(row) for row in rows[name]]
            elif key == "pixel_values":
                rows[name] = [self._encode_picture(name, i, value, unreadable) for i, value in enumerate(column)]
                masks[name] = [[int(row is not None)] for row in rows[name]]
            elif name in self.feature_sources:
                rows[name] = [self._encode_features(name, i, value) for i, value in enumerate(column)]
                masks[name] = [[] if row is None else [1] * len(row) for row in rows[name]]
            else:
                encoded = [self._encode_speech(name, i, value) for i, value in enumerate(column)]
                rows[name], masks[name] = [row for row, _ in encoded], [mask for _, mask in encoded]
        if names:
            self._check_present(masks, size)
        if self.null_token is not None:
            for name in (name for name in names if name in texts_of):
                # "Split" is for sentences that quote a special token; this one is meant.
                how = {"split_special_tokens": False, "add_special_tokens": add_special_tokens}
                [null] = self._token_ids(self.get_tokenizer(name), [self.null_token], **how)
                rows[name] = [row or null for row in rows[name]]
                masks[name] = [[1] * len(row) for row in rows[name]]

        data: dict[str, Any] = {}
        for i, name in enumerate(names):
            row_key, mask_key = source_key(i, name, self.main_input(name)), source_key(i, name, "attention_mask")
            data[row_key], data[mask_key] = rows[name], masks[name]
            if options.pads:
                length = options.padded_length(name) if name in texts_of else None
                data[row_key], data[mask_key] = pad_source(
                    self, name, rows[name], masks[name], to=length, multiple_of=options.multiple
                )
        if targets is not None:
            texts = [_text(TARGET, i, value) for i, value in enumerate(targets)]
            if None in texts:
                raise ValueError(f"{TARGET} of example {texts.index(None)} is missing; each example needs one.")
            data["labels"] = self._encode(TARGET, texts, options)
            if options.pads:
                length = options.padded_length(TARGET)
                data["labels"] = pad_rows(data["labels"], LABEL_PADDING, to=length, multiple_of=options.multiple)
        if single and return_tensors is None:
            data = {key: values[0] for key, values in data.items()}
        return BatchFeature(data, tensor_type=return_tensors)

    def _check_names(self, sources: Iterable[str], options: str = "") -> None:
        unknown = [name for name in sources if name not in self.source_names]
        if unknown:
            raise ValueError(f"unknown source {unknown[0]!r}; the sources are {', '.join(self.source_names)}{options}.")

    def _check_parts(self) -> None:
        parts = [*self.source_tokenizers, *self.source_processors, *self.feature_sources]
        self._check_names(parts)
        twice = [name for name in parts if parts.count(name) > 1]
        if twice:
            raise ValueError(
                f"source {twice[0]!r} must be in one of source_tokenizers, source_processors and feature_sources only."
            )
        for name, part in self.source_processors.items():
            sort = auto_class(part)
            if sort is None:
                raise ValueError(
                    f"source_processors[{name!r}] must be an image processor or a feature extractor; "
                    f"got {type(part).__name__}."
                )
            if self.main_input(name) not in PROCESSOR_INPUTS[sort]:
                raise ValueError(
                    f"source_processors[{name!r}] must make {' or '.join(PROCESSOR_INPUTS[sort])}; "
                    f"{type(part).__name__} makes {self.main_input(name)}."
                )

    def _check_null_token(self, null_token: str) -> None:
        for name in self.source_names:
            if self.main_input(name) == "input_ids":
                tokenizer = self.get_tokenizer(name)
                ids = tokenizer(null_token, add_special_tokens=False, split_special_tokens=False)["input_ids"]
                if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
                    raise ValueError(
                        f"null_token must be one token in the vocabulary of every text source; of {null_token!r} the "
                        f"tokenizer of {name!r} makes {tokenizer.convert_ids_to_tokens(ids)}."
                    )

    def _batch_size(self, columns: Mapping[str, Any]) -> int:
        for name, values in columns.items():
            if name == TARGET or self.main_input(name) == "input_ids":
                if isinstance(values, str):
                    raise ValueError(
                        f"{name} is a single text, others are lists: give single texts or lists throughout."
                    )
            elif self.is_single(name, values):
                raise ValueError(f"{name} is a single value, others are lists: give single values or lists throughout.")
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"sources and target must have equally many values; got {sizes}.")
        return next(iter(sizes.values()), 1)

    def _check_present(self, masks: Mapping[str, Sequence[Any]], size: int) -> None:
        for row in range(size):
            if not any(np.any(rows[row]) for rows in masks.values()):
                names = ", ".join(self.source_names)
                raise ValueError(f"example {row} has no source at all; give it at least one of {names}.")

    def _encode(self, name: str, texts: Sequence[str | None], options: TextOptions) -> list[list[int]]:
        """Ids of every text; none where a source is absent. An empty target is a text like any other."""
        present = [i for i, text in enumerate(texts) if name == TARGET or (text and text.strip())]
        rows: list[list[int]] = [[] for _ in texts]
        if present:
            chosen: Any = [texts[i] for i in present]
            encoded = self._token_ids(
                options.tokenizers[name],
                chosen,
                is_target=name == TARGET,
                truncation=options.truncates,
                max_length=options.length(name),
                add_special_tokens=options.add_special_tokens,
            )
            for i, ids in zip(present, encoded, strict=True):
                rows[i] = ids
        return rows

    def _token_ids(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **options: Any) -> list[list[int]]:
        # The null token is encoded with another `split_special_tokens` than texts.
        exclusive = self.null_token is not None and tokenizer.split_special_tokens
        return encode_texts(tokenizer, texts, exclusive=exclusive, **options)

    def _encode_picture(self, name: str, row: int, value: Any, unreadable: str) -> Any:
        """The picture's pixels; None if there is none."""
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        place = f"source {name!r} of example {row}"
        try:
            picture = read_picture(value)
        except UnreadablePictureError as error:
            if unreadable == "error":
                raise ValueError(f"{place}: {error}.") from error
            logger.warning(f"{place}: {error}; it counts as absent.")
            with COUNT_LOCK:
                self.unreadable[name] = self.unreadable.get(name, 0) + 1
            return None
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        return self.source_processors[name](picture, return_tensors="np")["pixel_values"][0]

    def _array(self, name: str, row: int, value: Any) -> np.ndarray:
        try:
            return to_array(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"source {name!r} of example {row} is no array of numbers: {error}") from error

    def _encode_features(self, name: str, row: int, value: Any) -> Any:
        """The array (S, F) itself, or a map's as a view of it; it is read once, to check that it is finite."""
        if value is None:
            return None
        array = self._array(name, row, value)
        if array.ndim not in (2, 3) or array.dtype.kind not in "fiu":
            raise ValueError(
                f"source {name!r} of example {row} must be an array of numbers, (S, F) or a map (F, H, W); "
                f"got {array.dtype} of shape {array.shape}."
            )
        if array.ndim == 3:
            array = array.reshape(len(array), math.prod(array.shape[1:])).T
        if not len(array):
            return None
        place = f"source {name!r} of example {row}"
        if not array.shape[1]:
            raise ValueError(f"{place} has {len(array)} vectors of no numbers.")
        check_finite(array, place)
        return array

    def _encode_speech(self, name: str, row: int, value: Any) -> tuple[Any, Any]:
        """What the feature extractor makes of one recording, and its mask."""
        if value is None:
            return None, []
        extractor = self.source_processors[name]
        rate = extractor.sampling_rate
        if not isinstance(value, Sequence) and not hasattr(value, "ndim"):
            try:  # a dict, or what an `Audio` column of `datasets` holds, which is none but can be asked like one
                value, rate = value["array"], value["sampling_rate"]
            except (KeyError, TypeError) as error:
                raise ValueError(
                    f"source {name!r} of example {row} must be an array of samples or a dict with array and "
                    f"sampling_rate; got {type(value).__name__}."
                ) from error
        samples = self._array(name, row, value)
        if rate != extractor.sampling_rate:
            raise ValueError(
                f"source {name!r} of example {row} has a sampling rate of {rate} Hz, but its feature extractor needs "
                f"{extractor.sampling_rate} Hz: resample it."
            )
        if samples.ndim != 1 or (samples.dtype.kind != "f" and len(samples)):
            raise ValueError(
                f"source {name!r} of example {row} must be one channel of samples, an array of floats (samples,); "
                f"got {samples.dtype} of shape {samples.shape}."
            )
        if not len(samples):
            return None, []
        check_finite(samples, f"source {name!r} of example {row}")
        made = extractor([samples.astype(np.float32)], sampling_rate=rate, return_attention_mask=True)
        return to_array(made[self.main_input(name)][0]), to_array(made.get("attention_mask", [[1]])[0])

    def to_dict(self) -> dict[str, Any]:
        """What `processor_config.json` holds; tokenizers and sources' processors have files of their own.

        Returns:
            A dict of JSON values.
        """
        output: dict[str, Any] = super().to_dict()
        output["source_tokenizers"] = list(self.source_tokenizers)
        # An image processor gives other pixels with another backend, and would be loaded with whatever is installed.
        output["source_processors"] = {
            name: {"auto_class": auto_class(part), "backend": getattr(part, "backend", None)}
            for name, part in self.source_processors.items()
        }
        return output

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> Any:
        """Save everything; the target's tokenizer at the top, sources' own in `<name>_tokenizer`, `<name>_processor`.

        Args:
            save_directory: The folder.
            push_to_hub: Whether to upload it too.
            **kwargs: As [`ProcessorMixin.push_to_hub`]; `repo_id` is the folder's name if left out.

        Returns:
            As [`ProcessorMixin.save_pretrained`].
        """
        check_names(self.source_names)  # parts are saved in folders of these names
        self._check_parts()
        saved = super().save_pretrained(save_directory)
        for name, tokenizer in self.source_tokenizers.items():
            tokenizer.save_pretrained(f"{save_directory}/{name}_tokenizer")
        for name, part in self.source_processors.items():
            part.save_pretrained(f"{save_directory}/{name}_processor")
        if push_to_hub:  # only now is everything there
            self.push_to_hub(kwargs.pop("repo_id", None) or Path(save_directory).name, **kwargs)
        return saved

    def _upload_modified_files(self, working_dir: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        replace_empty_card(working_dir, repo_id, None, kwargs.get("token"))  # the model's says more
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
        """Read the `processor_config.json`, as [`ProcessorMixin.get_processor_dict`] does, and check it first.

        Args:
            pretrained_model_name_or_path: Folder, file or Hub id.
            **kwargs: As [`ProcessorMixin.get_processor_dict`].

        Returns:
            As [`ProcessorMixin.get_processor_dict`].

        Raises:
            ValueError: If a file says what is not allowed; the message names file and key.
        """
        where = {key: kwargs[key] for key in DOWNLOAD_OPTIONS if key in kwargs}
        arguments = inspect.signature(cls.__init__).parameters
        check_processor_files(pretrained_model_name_or_path, arguments, **where)
        return super().get_processor_dict(pretrained_model_name_or_path, **kwargs)


def _load_own(loader: str, path: Any, folder: str, **kwargs: Any) -> Any:
    """Load a source's own tokenizer or processor; an error names a folder that is missing or damaged."""
    try:
        return load_auto(loader, path, subfolder=folder, **kwargs)
    except ValueError as error:
        raise ValueError(f"{path}: {folder} cannot be loaded: {first_line(error)}") from error


def _text(what: str, row: int, value: Any) -> str | None:
    """A text, or None where there is none: NaN and NA stand for missing cells in tables of pandas."""
    if value is None or isinstance(value, str):
        return value
    if (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType":
        return None
    raise ValueError(f"{what} of example {row} must be a text, or None; got {shown(value)}.")


def load_main_processor(
    processor_class: type[MultiSourceProcessor], name: str, place: str | Path, options: Mapping[str, Any]
) -> Any:
    """Load what makes the main input of a checkpoint's model.

    Args:
        processor_class: Class of our processors, with which those of this package are loaded.
        name: The source.
        place: Folder or Hub id of the checkpoint.
        options: Some of `foreign.DOWNLOAD_OPTIONS`.

    Returns:
        One of our processors, an image processor, a feature extractor or a tokenizer.

    Raises:
        ValueError: If `AutoModel` loads no such checkpoint, or it lacks what is to be loaded.
    """
    if PreTrainedConfig.get_config_dict(place, **options)[0].get("model_type") == MultiSourceConfig.model_type:
        return processor_class.from_pretrained(place, **options)
    config = load_auto("AutoConfig", place, **options)
    if type(config) not in MODEL_MAPPING:
        raise ValueError(f"{place}: a checkpoint of type {config.model_type!r} is none that AutoModel loads.")
    model_class: Any = MODEL_MAPPING[type(config)]
    kinds = [kind for kind, inputs in PROCESSOR_INPUTS.items() if model_class.main_input_name in inputs]
    loader = kinds[0] if kinds else "AutoTokenizer"
    try:
        return load_auto(loader, place, **options)
    except (OSError, ValueError) as error:
        what = {"AutoTokenizer": "tokenizer", "AutoImageProcessor": "image processor"}.get(loader, "feature extractor")
        raise ValueError(
            f"sources[{name}]: {place} has no {what} that can be loaded ({first_line(error)}). Save one there, or give "
            f"the {what} itself in place of the checkpoint."
        ) from error


def auto_class(part: Any) -> str | None:
    """The class of Transformers that loads an image processor or a feature extractor.

    Args:
        part: The image processor or feature extractor.

    Returns:
        Its name; None if the part is neither.
    """
    if isinstance(part, ImageProcessingMixin):
        return "AutoImageProcessor"
    return "AutoFeatureExtractor" if isinstance(part, FeatureExtractionMixin) else None


# Keywords of a call that are no sources.
OPTIONS = [
    p.name for p in inspect.signature(MultiSourceProcessor.__call__).parameters.values() if p.kind is p.KEYWORD_ONLY
]

__all__ = ["MultiSourceProcessor"]
