"""Kinds of sources: one object for each holds all that differs between text, pictures, speech and vectors.

A kind is the `kind` of a `SourceConfig`, or what a wrapped model reads: a source of kind "pretrained" is a text, a
picture or speech, whichever its model takes. Everything else in this package asks the object. A kind of your own is a
subclass of [`SourceKind`] and an encoder, given to `register_source_kind`.

Absence has one form outside the model and one inside. In rows, of data and of the processor, an absent source is None,
and so is its mask. In tensors it is a row of the mask without a 1, which the encoders get as a row of False; what no
example of a batch has may have no column at all, or no keyword.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .arrays import check_finite, pad_arrays, pad_rows, to_array
from .messages import first_line, shown
from .pictures import UnreadablePictureError, read_picture
from .sounds import read_sound
from .text_encoding import encode_texts

MASK = "attention_mask"
#: Number, in messages, of the first example that is encoded: a pipeline encodes its examples one by one.
FIRST_EXAMPLE: ContextVar[int] = ContextVar("FIRST_EXAMPLE", default=0)
LAYER_FIELDS = frozenset(
    ["layers", "attention_heads", "ffn_dim", "dropout", "position_embedding", "max_position_embeddings"]
)


class UnreadableSourceError(ValueError):
    """Raised for the value of a source whose file cannot be read, or for its bytes."""


def source_key(index: int, name: str, key: str) -> str:
    """The keyword of a source's tensor: bare for source 0, with the name in front for the others.

    Args:
        index: The source's place in the order of sources.
        name: Its name.
        key: What it is, such as "input_ids".

    Returns:
        The keyword.
    """
    return key if index == 0 else f"{name}_{key}"


def is_absent(value: Any) -> bool:
    """Return whether a value stands for an absent source.

    Args:
        value: Of a row, of whatever kind.

    Returns:
        True for None, an empty or white text, a dict without anything in it, a list, an array or bytes without entries,
        and a missing cell of pandas (NaN, NA, NaT).
    """
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return all(part is None for part in value.values())
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    if hasattr(value, "__len__") and getattr(value, "ndim", 1) in (1, 2):  # not a map without features
        return len(value) == 0
    return value is None or type(value).__name__ in ("NAType", "NaTType")


class SourceKind:
    """Base of all kinds: one value is one array of numbers, which is padded at the end of its first axis.

    A subclass sets `name`, `inputs`, `fields` and `needed`, and defines `encode_value`; the rest where it differs.
    """

    #: Name of the kind in configurations, recipes and processors.
    name: ClassVar[str]
    #: Keywords of the model that can take a source of this kind, without its mask.
    inputs: ClassVar[tuple[str, ...]]
    #: Those of them whose second dimension is the sequence's: a mask can be made where none is given. None: all.
    sequences: ClassVar[tuple[str, ...] | None] = None
    #: Fields of `SourceConfig` that such a source may set, beside those of all sources.
    fields: ClassVar[frozenset[str]] = frozenset()
    #: Those that it must set, with what they must be, for the message.
    needed: ClassVar[Mapping[str, str]] = {}
    #: Whether layers and positions of its encoder are the model's where the source sets none of its own.
    layered: ClassVar[bool] = False
    #: Whether a row is token ids, made by a tokenizer, and its encoder has a table of the tokens.
    has_vocabulary: ClassVar[bool] = False
    #: Loader of Transformers for the part of the processor that makes the inputs; None: it needs none.
    part_loader: ClassVar[str | None] = None
    #: The kinds that a wrapped model can read; empty for every kind but "pretrained".
    wraps: ClassVar[tuple[SourceKind, ...]] = ()
    #: How a column of data is stored: a value a line ("lines"), the path of a file a line ("files"), or as one array of
    #: all rows ("arrays").
    column: ClassVar[str] = "lines"
    #: Types that a value has in rows of JSON and Parquet, and their name in messages.
    row_types: ClassVar[tuple[type, ...]] = (str, list)
    row_types_named: ClassVar[str] = "text or a list"
    #: Type of the numbers of a batch.
    dtype: ClassVar[Any] = np.float32
    #: Whether all rows of a batch must have one shape.
    same_shape: ClassVar[bool] = False
    #: A value, as Python in the example of a model card; {name} stands for the source's name. None: a placeholder.
    example: ClassVar[str | None] = None

    @property
    def keys(self) -> tuple[str, ...]:
        """All keywords of the model for such a source, without the source's name."""
        return (*self.inputs, MASK)

    def main_input(self, part: Any) -> str:
        """The keyword of what the processor makes.

        Args:
            part: The tokenizer, image processor or feature extractor of the source; None: it has none.

        Returns:
            One of `inputs`.
        """
        return self.inputs[0]

    def check(self, source: Any, config: Any) -> None:
        """Check the settings of a source further than `fields` and `needed` tell.

        Args:
            source: Its `SourceConfig`.
            config: The model's configuration.

        Raises:
            ValueError: If settings do not go together; the message names them.
        """

    def is_single(self, value: Any) -> bool:
        """Return whether a value is that of one example, not of a batch.

        Args:
            value: What the processor was given.

        Returns:
            False for a sequence that is no string.
        """
        return isinstance(value, str | bytes) or not isinstance(value, Sequence)

    def parse_row(self, value: Any, place: str) -> Any:
        """Check a value of a row of JSON or Parquet, of one of `row_types`.

        Args:
            value: The value; of those that stand for an absent source, only an empty text.
            place: Where it stands, for messages.

        Returns:
            What the processor takes.

        Raises:
            ValueError: If the value cannot be one of this kind; the message gives the place.
        """
        return value

    def check_file(self, value: Any, part: Any) -> None:
        """Check that a value whose column is stored as "files" can be read.

        Args:
            value: The value.
            part: As `main_input` has it.

        Raises:
            ValueError: If it cannot; the message names the file.
        """

    def encode_value(self, value: Any, part: Any, place: str) -> tuple[Any, Any]:
        """Encode the value of one example.

        Args:
            value: The value; never one that stands for an absent source.
            part: As `main_input` has it.
            place: Source and example, for messages.

        Shape:
            The row (S, ...), the mask (S,).

        Returns:
            The row, and its mask, or None for that of `mask`. A row without entries: the source is absent.

        Raises:
            ValueError: If the value is not of this kind; the message begins with the place.
            UnreadableSourceError: If a file cannot be read; the message names it.
        """
        raise NotImplementedError(f"{type(self).__name__}, a kind of source, must define encode_value.")

    def encode(
        self, values: Sequence[Any], *, name: str, part: Any, skip: Callable[[str, Exception], None], **options: Any
    ) -> tuple[list[Any], list[Any]]:
        """Encode the values of a batch.

        Args:
            values: Of every example.
            name: The source's, for messages.
            part: As `main_input` has it.
            skip: Called with place and error where a file cannot be read; the source is absent if it returns.
            **options: Of the tokenizer's call; kinds without one ignore them.

        Returns:
            The rows and their masks; None and None where the source is absent.

        Raises:
            ValueError: If a value cannot be encoded; the message begins with source and example.
        """
        rows: list[Any] = [None] * len(values)
        masks: list[Any] = [None] * len(values)
        for i, value in enumerate(values):
            place = f"source {name!r} of example {FIRST_EXAMPLE.get() + i}"
            try:
                row, mask = (None, None) if is_absent(value) else self.encode_value(value, part, place)
            except UnreadableSourceError as error:
                skip(place, error)
                continue
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                if isinstance(error, ValueError) and str(error).startswith(place):
                    raise
                raise ValueError(f"{place} cannot be encoded: {type(error).__name__}: {first_line(error)}") from error
            if row is not None and len(row):
                rows[i], masks[i] = row, self.mask(row) if mask is None else mask
        return rows, masks

    def mask(self, row: Any) -> list[int]:
        """The mask of a row all of which is real.

        Args:
            row: The row.

        Returns:
            A 1 for each entry.
        """
        return [1] * len(row)

    def length(self, row: Any) -> int:
        """The length of a row, by which examples are sorted and batches limited.

        Args:
            row: The row.

        Returns:
            In tokens, vectors, samples or whatever a sequence consists of.
        """
        return len(row)

    def pad(
        self, rows: Sequence[Any], masks: Sequence[Any], *, name: str, part: Any, to: int | None, multiple_of: int
    ) -> tuple[Any, Any]:
        """Pad the rows of a batch.

        Args:
            rows: Of every example; None where the source is absent.
            masks: Their masks.
            name: The source's, for messages.
            part: As `main_input` has it.
            to: Length to which token ids are padded; None: the longest of the batch.
            multiple_of: Make the length a multiple of this. What a part has made keeps its length: the encoder may need
                just that.

        Returns:
            Rows and masks of one length, (B, 0) if all examples lack the source.

        Raises:
            ValueError: If the rows do not fit together; the message gives two of them and their shapes.
        """
        multiple_of = multiple_of if part is None else 1
        value = getattr(part, "padding_value", 0)
        options: dict[str, Any] = {"multiple_of": multiple_of, "same_shape": self.same_shape, "dtype": self.dtype}
        return pad_arrays(name, rows, value=value, **options), pad_arrays(
            name, masks, multiple_of=multiple_of, dtype=np.int64
        )


class TextKind(SourceKind):
    """Texts, encoded to token ids by a tokenizer."""

    name = "text"
    inputs = ("input_ids",)
    sequences = ("input_ids", "inputs_embeds")
    fields = LAYER_FIELDS | {"vocab_size", "pad_token_id", "share_embeddings_with", "freeze"}
    layered = True
    has_vocabulary = True
    part_loader = "AutoTokenizer"
    row_types = (str,)
    row_types_named = "text"
    example = '"the text of {name}"'

    @property
    def keys(self) -> tuple[str, ...]:
        """All keywords of the model for such a source, without the source's name."""
        return ("input_ids", MASK, "inputs_embeds")

    def check(self, source: Any, config: Any) -> None:
        shared = source.share_embeddings_with is not None or source.vocab_size is None
        if source.freeze and shared and config.tie_word_embeddings:
            raise ValueError(
                f"sources[{source.name}].freeze: its embeddings are the decoder's, or another source's, and trained "
                "with them; give it a vocab_size of its own, or the model tie_word_embeddings=False."
            )

    def is_single(self, value: Any) -> bool:
        return isinstance(value, str)

    def encode(
        self, values: Sequence[Any], *, name: str, part: Any, skip: Callable[[str, Exception], None], **options: Any
    ) -> tuple[list[Any], list[Any]]:
        texts = [read_text(f"source {name!r}", i, value) for i, value in enumerate(values)]
        rows: list[Any] = [None] * len(texts)
        if present := {i: text for i, text in enumerate(texts) if text is not None and not is_absent(text)}:
            for i, ids in zip(present, encode_texts(part, list(present.values()), **options), strict=True):
                rows[i] = ids or None
        return rows, [None if row is None else self.mask(row) for row in rows]

    def pad(
        self, rows: Sequence[Any], masks: Sequence[Any], *, name: str, part: Any, to: int | None, multiple_of: int
    ) -> tuple[Any, Any]:
        ids = pad_rows([integers(row) for row in rows], part.pad_token_id, to=to, multiple_of=multiple_of)
        return ids, pad_rows([integers(mask) for mask in masks], 0, to=to, multiple_of=multiple_of)


class FeaturesKind(SourceKind):
    """Vectors that were computed elsewhere: an array (S, F), or a map (F, H, W), which is read row by row."""

    name = "features"
    inputs = ("input_features",)
    fields = LAYER_FIELDS | {"feature_size", "norm"}
    needed: ClassVar[Mapping[str, str]] = {"feature_size": "at least 1"}
    column = "arrays"
    row_types = (list,)
    row_types_named = "lists of numbers"
    example = 'numpy.load("features.npy")[0]'

    def parse_row(self, value: Any, place: str) -> Any:
        try:
            with np.errstate(over="ignore"):
                array = np.asarray(value, np.float32)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{place} must be lists of numbers of one length, but is {shown(value)}") from error
        if array.ndim not in (2, 3) or not array.size:
            raise ValueError(f"{place} must be (S, F) or a map (F, H, W), but has the shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{place} holds a number that is not finite, or too large for single precision")
        return array

    def encode_value(self, value: Any, part: Any, place: str) -> tuple[Any, Any]:
        """Encode the value of one example: the array itself, or a view of it, which is read once, to be checked.

        Args:
            value: An array (S, F) or (F, H, W).
            part: None.
            place: Source and example, for messages.

        Shape:
            The row (S, F).

        Returns:
            The row, and None.

        Raises:
            ValueError: If this is no such array, or a number is not finite.
        """
        array = read_array(value, place)
        if array.ndim not in (2, 3) or array.dtype.kind not in "fiu":
            raise ValueError(
                f"{place} must be an array of numbers, (S, F) or a map (F, H, W); "
                f"got {array.dtype} of shape {array.shape}."
            )
        if array.ndim == 3:
            array = array.reshape(len(array), math.prod(array.shape[1:])).T
        if len(array) and not array.shape[1]:
            raise ValueError(f"{place} has {len(array)} vectors of no numbers.")
        check_finite(array, place)
        return array, None


class FileKind(SourceKind):
    """Base of the kinds whose values lie in files and which wrapped models read: pictures and speech."""

    column = "files"
    row_types = (str, bytes, Mapping)
    row_types_named = "a path, bytes or a dict of them"

    def parse_row(self, value: Any, place: str) -> Any:
        if isinstance(value, Mapping) and not (
            isinstance(value.get("bytes"), bytes | None) and isinstance(value.get("path"), str | None)
        ):
            raise ValueError(f"{place} must have bytes or a path, but is {shown(dict(value))}")
        return value


class PictureKind(FileKind):
    """Pictures, made to pixels by an image processor; all of a batch have one size."""

    name = "picture"
    inputs = ("pixel_values",)
    sequences = ()
    part_loader = "AutoImageProcessor"
    same_shape = True
    example = '"photo.jpg"'

    def check_file(self, value: Any, part: Any) -> None:
        read_picture(value)

    def encode_value(self, value: Any, part: Any, place: str) -> tuple[Any, Any]:
        try:
            picture = read_picture(value)
        except UnreadablePictureError as error:
            raise UnreadableSourceError(str(error)) from error
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        return part(picture, return_tensors="np")["pixel_values"][0], None

    def mask(self, row: Any) -> list[int]:
        return [1]

    def length(self, row: Any) -> int:
        return 0


class SoundKind(FileKind):
    """Speech: samples, of which a feature extractor makes samples or spectra."""

    name = "sound"
    inputs = ("input_values", "input_features")
    sequences = ("input_values",)
    part_loader = "AutoFeatureExtractor"
    example = '{"array": numpy.zeros(16000), "sampling_rate": 16000}'

    def main_input(self, part: Any) -> str:
        key: str = part.model_input_names[0]
        return key

    def check_file(self, value: Any, part: Any) -> None:
        rate = read_sound(value)["sampling_rate"]
        if part is not None and rate != part.sampling_rate:
            place = value if isinstance(value, str) else "the recording"
            raise ValueError(
                f"{place} has a sampling rate of {rate} Hz, but its encoder needs {part.sampling_rate} Hz: resample it"
            )

    def encode_value(self, value: Any, part: Any, place: str) -> tuple[Any, Any]:
        if isinstance(value, str | bytes | Path) or (
            isinstance(value, Mapping) and "array" not in value and value.keys() & {"bytes", "path"}
        ):
            try:
                value = read_sound(value)
            except ValueError as error:
                raise UnreadableSourceError(str(error)) from error
        rate = part.sampling_rate
        if not isinstance(value, Sequence) and not hasattr(value, "ndim"):
            try:  # a dict, or the dict-like `AudioDecoder` that a `datasets.Audio` column returns
                value, rate = value["array"], value["sampling_rate"]
            except (KeyError, TypeError) as error:
                raise ValueError(
                    f"{place} must be an array of samples or a dict with array and sampling_rate; "
                    f"got {type(value).__name__}."
                ) from error
        samples = read_array(value, place)
        if rate != part.sampling_rate:
            raise ValueError(
                f"{place} has a sampling rate of {rate} Hz, but its feature extractor needs {part.sampling_rate} Hz: "
                "resample it."
            )
        if samples.ndim != 1 or (samples.dtype.kind != "f" and len(samples)):
            raise ValueError(
                f"{place} must be one channel of samples, an array of floats (samples,); "
                f"got {samples.dtype} of shape {samples.shape}."
            )
        if not len(samples):
            return samples, None
        check_finite(samples, place)
        made = part([samples.astype(np.float32)], sampling_rate=rate, return_attention_mask=True)
        return to_array(made[self.main_input(part)][0]), to_array(made.get(MASK, [[1]])[0])


class PretrainedKind(SourceKind):
    """Whatever a wrapped model reads: text, pictures or speech, which the processor tells by its part."""

    name = "pretrained"
    fields = frozenset({"encoder", "projection", "freeze", "norm", "dropout"})
    needed: ClassVar[Mapping[str, str]] = {"encoder": "the configuration of a Transformers model, or its dict"}
    wraps = (TextKind(), PictureKind(), SoundKind())
    inputs = tuple(key for kind in wraps for key in kind.inputs)
    sequences = tuple(key for kind in wraps for key in kind.sequences or ())

    @property
    def keys(self) -> tuple[str, ...]:
        """All keywords of the model for such a source, without the source's name."""
        return tuple(dict.fromkeys(key for kind in self.wraps for key in kind.keys))


def read_text(what: str, row: int, value: Any) -> str | None:
    """Check that a value is a text.

    Args:
        what: What the value is, for messages.
        row: Number of the example in the call.
        value: The value.

    Returns:
        The text; None where there is none.

    Raises:
        ValueError: If it is something else; the message gives source, example and value.
    """
    if isinstance(value, str):
        return value
    if is_absent(value) and not hasattr(value, "__len__"):
        return None
    raise ValueError(f"{what} of example {FIRST_EXAMPLE.get() + row} must be a text, or None; got {shown(value)}.")


def read_array(value: Any, place: str) -> np.ndarray:
    """Convert a value to an array.

    Args:
        value: An array, a tensor or nested lists.
        place: Source and example, for messages.

    Returns:
        The array; one that is given is not copied.

    Raises:
        ValueError: If it is not an array of numbers; the message begins with the place.
    """
    try:
        return to_array(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place} is no array of numbers: {error}") from error


def integers(row: Any) -> list[int]:
    """A row of ids as a list.

    Args:
        row: A list, an array, a tensor or None.

    Returns:
        The ids; an empty list for None.
    """
    return [] if row is None else [int(token) for token in row]


#: Kinds of values, by name. A source of kind "pretrained" has values of the kind that its model reads.
FORMS: dict[str, SourceKind] = {kind.name: kind for kind in (*PretrainedKind.wraps, FeaturesKind())}
#: What `SourceConfig.kind` can be.
SOURCE_KINDS: dict[str, SourceKind] = {
    "text": FORMS["text"],
    "features": FORMS["features"],
    "pretrained": PretrainedKind(),
}


def input_keys() -> tuple[str, ...]:
    """The keywords of the model for sources of all kinds, without the source's name.

    Returns:
        The keywords, each once.
    """
    return tuple(dict.fromkeys(key for kind in SOURCE_KINDS.values() for key in kind.keys))


def example_length(example: Mapping[str, Any], index: int, name: str) -> int:
    """The length of a source in an encoded example.

    Args:
        example: What the processor returned.
        index: The source's place in the order of sources.
        name: Its name.

    Returns:
        Its length, as its kind counts it; 0 if it is absent.
    """
    for kind in FORMS.values():
        for key in kind.inputs:
            if (row := example.get(source_key(index, name, key))) is not None:
                return kind.length(row)
    return 0


__all__ = ["FORMS", "SOURCE_KINDS", "SourceKind", "source_key"]
