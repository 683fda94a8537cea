"""Kinds of sources: one object per kind implements everything that differs between text, pictures, speech and vectors.

A kind is the `kind` of a `SourceConfig`, or the kind of values that a wrapped model reads: a source of kind
"pretrained" is text, a picture or speech, depending on its model. The rest of this package is independent of the kind.
User-defined kinds consist of a subclass of [`SourceKind`] and an encoder, which are passed to `register_source_kind`.

Absent sources have two representations. In rows of data and outputs of the processor, an absent source and its mask are
None. In tensors, the mask of an absent source is a row of zeros, which encoders get as a row of False; a source that no
example of a batch has can have no columns, or no keyword.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
#: Index, in messages, of the first encoded example.
FIRST_EXAMPLE: ContextVar[int] = ContextVar("FIRST_EXAMPLE", default=0)


@contextmanager
def count_from(number: int) -> Iterator[None]:
    """Count examples from this number in error messages, for callers that encode examples one at a time.

    Args:
        number: Number of the first example that is encoded.

    Yields:
        Nothing.
    """
    token = FIRST_EXAMPLE.set(number)
    try:
        yield
    finally:
        FIRST_EXAMPLE.reset(token)


# Settings of sources whose encoder has Transformer layers of this package.
LAYER_FIELDS = frozenset(
    ["layers", "attention_heads", "ffn_dim", "dropout", "position_embedding", "max_position_embeddings"]
)


class UnreadableSourceError(ValueError):
    """Raised if the file or the bytes of a source cannot be read."""


def source_key(index: int, name: str, key: str) -> str:
    """Return the keyword of a source's tensor: without prefix for source 0, with the source's name for the others.

    Args:
        index: Index of the source.
        name: Name of the source.
        key: Keyword without the name, such as "input_ids".

    Returns:
        The keyword.
    """
    return key if index == 0 else f"{name}_{key}"


def is_absent(value: Any) -> bool:
    """Return whether a value represents an absent source.

    Args:
        value: Value of a source, of any kind.

    Returns:
        True for None, an empty or blank text, a dict whose values are all None, a list, an array or bytes without
        entries, and a missing value of pandas (NaN, NA, NaT).
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
    """Base class of all kinds; by default, a value is an array of numbers that is padded at the end of its first axis.

    A subclass sets `name`, `inputs`, `fields` and `needed`, defines `encode_value`, and overrides other attributes and
    methods as needed.
    """

    #: Name of the kind in configurations, recipes and processors.
    name: ClassVar[str]
    #: Keywords of the model for a source of this kind, without its mask.
    inputs: ClassVar[tuple[str, ...]]
    #: Inputs whose second dimension is the sequence dimension, so that a missing mask can be created. None: all inputs.
    sequences: ClassVar[tuple[str, ...] | None] = None
    #: Fields of `SourceConfig` that a source of this kind can set, in addition to the fields of all sources.
    fields: ClassVar[frozenset[str]] = frozenset()
    #: Required fields, with a description of their values for the error message.
    needed: ClassVar[Mapping[str, str]] = {}
    #: Whether number of layers and position embeddings of the encoder default to the model-wide settings.
    layered: ClassVar[bool] = False
    #: Whether a row consists of token ids from a tokenizer, and the encoder has token embeddings.
    has_vocabulary: ClassVar[bool] = False
    #: Loader of Transformers for the part of the processor that encodes the source; None: no part is needed.
    part_loader: ClassVar[str | None] = None
    #: The kinds that a wrapped model can read; empty for every kind but "pretrained".
    wraps: ClassVar[tuple[SourceKind, ...]] = ()
    #: Storage of a column of data: one value per line ("lines"), one file path per line ("files"), or one array with
    #: all rows ("arrays").
    column: ClassVar[str] = "lines"
    #: Types of values in rows of JSON and Parquet, and their description in messages.
    row_types: ClassVar[tuple[type, ...]] = (str, list)
    row_types_named: ClassVar[str] = "text or a list"
    #: Data type of a batch.
    dtype: ClassVar[Any] = np.float32
    #: Whether all rows of a batch must have the same shape.
    same_shape: ClassVar[bool] = False
    #: Python expression of an example value in model cards; {name} is replaced by the source's name. None: the card has
    #: a placeholder.
    example: ClassVar[str | None] = None

    @property
    def keys(self) -> tuple[str, ...]:
        """All keywords of the model for a source of this kind, with the mask, without the source's name."""
        return (*self.inputs, MASK)

    def main_input(self, part: Any) -> str:
        """Return the keyword of the model for the output of the processor.

        Args:
            part: The tokenizer, image processor or feature extractor of the source; None: the source has no part.

        Returns:
            One of `inputs`.
        """
        return self.inputs[0]

    def check(self, source: Any, config: Any) -> None:
        """Check the settings of a source beyond `fields` and `needed`.

        Args:
            source: The `SourceConfig` of the source.
            config: The model's configuration.

        Raises:
            ValueError: If settings are incompatible; the message names the settings.
        """

    def is_single(self, value: Any) -> bool:
        """Return whether a value belongs to a single example, not to a batch.

        Args:
            value: The value passed to the processor.

        Returns:
            False for a sequence that is not a string.
        """
        return isinstance(value, str | bytes) or not isinstance(value, Sequence)

    def parse_row(self, value: Any, place: str) -> Any:
        """Check and convert a value of a row of JSON or Parquet.

        Args:
            value: The value, of one of `row_types`; never a value that represents an absent source, except an empty
                text.
            place: Location of the value, for messages.

        Returns:
            The value for the processor.

        Raises:
            ValueError: If the value is not valid for this kind; the message gives the location.
        """
        return value

    def check_file(self, value: Any, part: Any) -> None:
        """Check that a value whose column is stored as "files" can be read.

        Args:
            value: The value.
            part: Part of the processor, as in `main_input`.

        Raises:
            ValueError: If the file cannot be read; the message names the file.
        """

    def encode_value(self, value: Any, part: Any, place: str) -> tuple[Any, Any]:
        """Encode the value of one example.

        Args:
            value: The value; never a value that represents an absent source.
            part: Part of the processor, as in `main_input`.
            place: Source and example, for messages.

        Shape:
            The row (S, ...), the mask (S,).

        Returns:
            The row, and its mask, or None for a mask of ones (`mask`). The source is absent if the row is empty.

        Raises:
            ValueError: If the value is not of this kind; the message begins with `place`.
            UnreadableSourceError: If a file cannot be read; the message names the file.
        """
        raise NotImplementedError(f"{type(self).__name__}, a kind of source, must define encode_value.")

    def encode(
        self, values: Sequence[Any], *, name: str, part: Any, skip: Callable[[str, Exception], None], **options: Any
    ) -> tuple[list[Any], list[Any]]:
        """Encode the values of a batch.

        Args:
            values: Values of all examples.
            name: Name of the source, for messages.
            part: Part of the processor, as in `main_input`.
            skip: Function called with location and error if a file cannot be read; if the function returns, the source
                is absent.
            **options: Arguments of `encode_texts`; ignored by kinds without a tokenizer.

        Returns:
            The rows and their masks; both are None where the source is absent.

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
        """Return the mask of a row without padding.

        Args:
            row: The row.

        Returns:
            A list with a 1 for each entry of the row.
        """
        return [1] * len(row)

    def length(self, row: Any) -> int:
        """Return the length of a row, which is used to sort examples and to limit batches.

        Args:
            row: The row.

        Returns:
            The length in tokens, vectors, samples or other elements of the sequence.
        """
        return len(row)

    def pad(
        self, rows: Sequence[Any], masks: Sequence[Any], *, name: str, part: Any, to: int | None, multiple_of: int
    ) -> tuple[Any, Any]:
        """Pad the rows of a batch.

        Args:
            rows: Rows of all examples; None where the source is absent.
            masks: Masks of the rows.
            name: Name of the source, for messages.
            part: Part of the processor, as in `main_input`.
            to: Smallest length of padded token ids; None: the length of the longest row.
            multiple_of: The length is rounded up to a multiple of this number. Rows from an image processor or feature
                extractor are not extended, because their encoder may require the exact length.

        Returns:
            Rows and masks of equal length, (B, 0) if all examples lack the source.

        Raises:
            ValueError: If the shapes of the rows do not match; the message gives two examples and their shapes.
        """
        multiple_of = multiple_of if part is None else 1
        value = getattr(part, "padding_value", 0)
        options: dict[str, Any] = {"multiple_of": multiple_of, "same_shape": self.same_shape, "dtype": self.dtype}
        return pad_arrays(name, rows, value=value, **options), pad_arrays(
            name, masks, multiple_of=multiple_of, dtype=np.int64
        )


class TextKind(SourceKind):
    """Kind of texts, which a tokenizer encodes to token ids."""

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
        """All keywords of the model for a source of this kind, with the mask, without the source's name."""
        return ("input_ids", MASK, "inputs_embeds")

    def check(self, source: Any, config: Any) -> None:
        shared = source.share_embeddings_with is not None or source.vocab_size is None
        if source.freeze and shared and config.tie_word_embeddings:
            raise ValueError(
                f"sources[{source.name}].freeze: its embeddings are the decoder's, or another source's, and trained "
                "with them; give it a vocab_size of its own, or the model tie_word_embeddings=False, or freeze only "
                f"the layers of model.get_encoder().encoder_of({source.name!r}), by requires_grad_(False)."
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
        if part.pad_token_id is None:
            raise ValueError(
                f"the tokenizer of source {name!r} has no pad_token, which padding needs; set its pad_token."
            )
        ids = pad_rows([integers(row) for row in rows], part.pad_token_id, to=to, multiple_of=multiple_of)
        return ids, pad_rows([integers(mask) for mask in masks], 0, to=to, multiple_of=multiple_of)


class FeaturesKind(SourceKind):
    """Kind of precomputed vectors: an array (S, F), or a map (F, H, W), which is read row by row."""

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
        """Check the array of one example and return it, or a view of it, without copying.

        Args:
            value: An array (S, F) or (F, H, W).
            part: Not used; the kind has no part of the processor.
            place: Source and example, for messages.

        Shape:
            The row (S, F).

        Returns:
            The row, and None.

        Raises:
            ValueError: If the value is not a numeric array of such a shape, or a number is not finite.
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
    """Base class of the kinds whose values are stored in files and which wrapped models read: pictures and speech."""

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
    """Kind of pictures, which an image processor converts to pixels; all pictures of a batch have the same size."""

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
    """Kind of speech: samples, which a feature extractor converts to normalized samples or spectra."""

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
    """Kind of sources with a wrapped model: text, pictures or speech, depending on the processor's part."""

    name = "pretrained"
    fields = frozenset({"encoder", "projection", "freeze", "norm", "dropout"})
    needed: ClassVar[Mapping[str, str]] = {"encoder": "the configuration of a Transformers model, or its dict"}
    wraps = (TextKind(), PictureKind(), SoundKind())
    inputs = tuple(key for kind in wraps for key in kind.inputs)
    sequences = tuple(key for kind in wraps for key in kind.sequences or ())

    @property
    def keys(self) -> tuple[str, ...]:
        """All keywords of the model for a source of this kind, with the mask, without the source's name."""
        return tuple(dict.fromkeys(key for kind in self.wraps for key in kind.keys))


def is_batch(value: Any) -> bool:
    """Return whether a value may be a batch of texts: a container, but no text, bytes or dict.

    Args:
        value: The value.

    Returns:
        True for lists, tuples, arrays and columns of tables; False for a single text, bytes, a dict, and numbers.
    """
    is_container = hasattr(value, "__len__") and getattr(value, "shape", None) != ()
    return is_container and not isinstance(value, str | bytes | bytearray | Mapping)


def read_text(what: str, row: int, value: Any) -> str | None:
    """Check that a value is a text.

    Args:
        what: Description of the value, for messages.
        row: Index of the example in the call.
        value: The value.

    Returns:
        The text; None if the value represents an absent source.

    Raises:
        ValueError: If the value is not a text; the message gives source, example and value.
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
        The array; an array is returned without copying.

    Raises:
        ValueError: If the value cannot be converted to an array; the message begins with `place`.
    """
    try:
        return to_array(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place} is no array of numbers: {error}") from error


def integers(row: Any) -> list[int]:
    """Convert a row of ids to a list of integers.

    Args:
        row: A list, an array, a tensor or None.

    Returns:
        The ids; an empty list for None.
    """
    if row is None:
        return []
    return list(map(int, row.tolist() if hasattr(row, "tolist") else row))  # numbers of arrays are slow one by one


#: Kinds of values, by name. The values of a source of kind "pretrained" have the kind that the wrapped model reads.
FORMS: dict[str, SourceKind] = {kind.name: kind for kind in (*PretrainedKind.wraps, FeaturesKind())}
#: Kinds of sources, by the allowed values of `SourceConfig.kind`.
SOURCE_KINDS: dict[str, SourceKind] = {
    "text": FORMS["text"],
    "features": FORMS["features"],
    "pretrained": PretrainedKind(),
}


def input_keys() -> tuple[str, ...]:
    """Return the keywords of the model for sources of all kinds, without the source's name.

    Returns:
        The keywords, without duplicates.
    """
    return tuple(dict.fromkeys(key for kind in SOURCE_KINDS.values() for key in kind.keys))


def example_length(example: Mapping[str, Any], index: int, name: str) -> int:
    """Return the length of a source in an encoded example.

    Args:
        example: Output of the processor for one example.
        index: Index of the source.
        name: Name of the source.

    Returns:
        The length, in the unit of the source's kind; 0 if the source is absent.
    """
    for kind in FORMS.values():
        for key in kind.inputs:
            if (row := example.get(source_key(index, name, key))) is not None:
                return kind.length(row)
    return 0


__all__ = ["FORMS", "SOURCE_KINDS", "SourceKind", "source_key"]
