"""Thread-safe encoding of the texts of several sources with the options of a tokenizer call."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.tokenization_utils_base import LARGE_INTEGER

from .messages import shown

CHOICES: dict[str, tuple[Any, ...]] = {  # allowed values of options; "only_second" would need pairs of texts
    "add_special_tokens": (True, False),
    "padding": (True, False, "longest", "max_length", "do_not_pad"),
    "truncation": (True, False, "longest_first", "only_first", "do_not_truncate"),
}

SURROGATE = re.compile("[\ud800-\udfff]")

# Held while calling a tokenizer that modifies itself in a call. The lock is global, because several processors can
# share a tokenizer, and a module-level lock is neither copied nor pickled with a processor.
TOKENIZER_LOCK = threading.RLock()


class TextOptions:
    """Text options of a processor call, with the same meaning as in a tokenizer call.

    Args:
        tokenizers: The tokenizers, by the name of the text source or target.
        add_special_tokens: Whether texts get special tokens.
        padding: Whether, or how, rows are padded.
        truncation: Whether, or how, texts are truncated.
        max_length: Maximum length of all texts, or lengths by name, in tokens.
        pad_to_multiple_of: Padded lengths are rounded up to a multiple of this number.

    Attributes:
        pads: Whether rows are padded.
        truncates: Whether texts are truncated.
        multiple: Number to a multiple of which padded lengths are rounded up.

    Raises:
        ValueError: If an option has a value that is not allowed, or `max_length` contains an unknown name.
    """

    def __init__(
        self,
        tokenizers: Mapping[str, PreTrainedTokenizerBase],
        *,
        add_special_tokens: bool,
        padding: bool | str,
        truncation: bool | str,
        max_length: int | Mapping[str, int] | None,
        pad_to_multiple_of: int | None,
    ) -> None:
        given = {"add_special_tokens": add_special_tokens, "padding": padding, "truncation": truncation}
        for option, value in given.items():
            if value not in CHOICES[option]:
                raise ValueError(f"{option} must be one of {', '.join(map(repr, CHOICES[option]))}; got {value!r}.")
        by_name = isinstance(max_length, Mapping)
        lengths = max_length if isinstance(max_length, Mapping) else dict.fromkeys(tokenizers, max_length)
        for name, length in lengths.items():
            if name not in tokenizers:
                raise ValueError(f"max_length names {name!r}, which is no text; the texts are {', '.join(tokenizers)}.")
            _check_whole(f"max_length[{name!r}]" if by_name else "max_length", length, 0)
        _check_whole("pad_to_multiple_of", pad_to_multiple_of, 1)
        self.tokenizers = tokenizers
        self.add_special_tokens = add_special_tokens
        self.pads = padding not in (False, "do_not_pad")
        self.truncates = truncation not in (False, "do_not_truncate")
        self.multiple = pad_to_multiple_of or 1
        self._to_max_length = padding == "max_length"
        self._lengths = lengths
        if max_length is not None and self.pads and not self._to_max_length and not self.truncates:
            warnings.warn("max_length has no effect without truncation or padding='max_length'.", stacklevel=3)

    def length(self, name: str) -> int | None:
        """Return the length to truncate or to pad a text to.

        Args:
            name: Name of the text.

        Returns:
            The `max_length` of the call, in tokens, otherwise the maximum length of the tokenizer; None if neither is
            given.

        Raises:
            ValueError: If texts are truncated and padded, and the length is not a multiple of `pad_to_multiple_of`.
        """
        length, longest = self._lengths.get(name), self.tokenizers[name].model_max_length
        if length is None and longest <= LARGE_INTEGER:
            length = longest
        if self.truncates and self.pads and (length or 0) % self.multiple:
            raise ValueError(
                f"max_length of {name} ({length}) must be a multiple of pad_to_multiple_of ({self.multiple}) where "
                "texts are truncated and padded."
            )
        return length

    def padded_length(self, name: str) -> int | None:
        """Return the length to pad a text to.

        Args:
            name: Name of the text.

        Returns:
            The length in tokens; None for the length of the longest text.

        Raises:
            ValueError: If `padding` is "max_length" and neither the call nor the tokenizer has a maximum length.
        """
        length = self.length(name) if self._to_max_length else None
        if self._to_max_length and length is None:
            raise ValueError(f'padding="max_length" needs a max_length for {name}: its tokenizer has none.')
        return length


def _check_whole(option: str, value: Any, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < least):
        raise ValueError(f"{option} must be a whole number, {least} or more, or None; got {value!r}.")


def encode_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    is_target: bool = False,
    truncation: bool = False,
    max_length: int | None = None,
    exclusive: bool = False,
    **options: Any,
) -> list[list[int]]:
    """Encode texts to token ids; this function is thread-safe.

    A fast tokenizer stores the truncation length as its own state, which concurrent calls overwrite. Ids of fast
    tokenizers are therefore truncated here, in the same way as by the tokenizer. Tokenizers that switch between a
    source and a target mode (Marian, mBART, M2M100, NLLB, PLBart, SeamlessM4T) are called by one thread at a time.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        is_target: Whether the texts are targets.
        truncation: Whether to truncate texts.
        max_length: Maximum length, in tokens, including special tokens; None: the maximum length of the tokenizer.
        exclusive: Whether calls must not run concurrently, because other calls may have different `options`.
        **options: Further arguments of the tokenizer, such as `split_special_tokens`.

    Returns:
        The ids of each text.

    Raises:
        ValueError: If `truncation` is set and `max_length` is negative, or a text is not valid Unicode.
    """
    longest: int = tokenizer.model_max_length if max_length is None else max_length
    if truncation and longest < 0:
        raise ValueError(f"max_length must be at least 0; got {longest}.")
    cut_here = truncation and tokenizer.is_fast
    if truncation:  # `max_length` suppresses the tokenizer's warning about long texts, which are truncated below
        options.update(truncation=not cut_here, max_length=longest)
    keyword = "text_target" if is_target else "text"
    lock = TOKENIZER_LOCK if exclusive or _changes_when_called(tokenizer) else contextlib.nullcontext()
    try:
        with lock:
            encoded = tokenizer(**{keyword: list(texts)}, **options)
    except TypeError as error:
        for text in texts:
            if lone := SURROGATE.search(text):
                raise ValueError(
                    f"{shown(text)} has {lone[0]!a}, half of a surrogate pair, which is no character; texts must be "
                    "valid Unicode."
                ) from error
        raise
    rows: list[list[int]] = encoded["input_ids"]
    if cut_here:
        for i, row in enumerate(rows):
            if len(row) > longest:
                rows[i] = truncate(row, encoded.encodings[i].special_tokens_mask, longest, tokenizer.truncation_side)
    return rows


def truncate(ids: list[int], special_tokens_mask: Sequence[int], max_length: int, side: str) -> list[int]:
    """Truncate the ids of a text like a fast tokenizer, which keeps the special tokens around the text.

    Args:
        ids: The token ids: special tokens, the text, special tokens.
        special_tokens_mask: 1 at each special token that the tokenizer added.
        max_length: Maximum number of ids. With a `max_length` below the number of special tokens, fast tokenizers do
            not truncate.
        side: The side of the text from which ids are removed, "left" or "right".

    Returns:
        The remaining ids.
    """
    number = len(ids) - sum(special_tokens_mask)  # number of tokens of the text itself
    kept = max_length - (len(ids) - number)
    if kept < 0 or kept >= number:
        return ids
    start = special_tokens_mask.index(0)
    end = start + number
    text = ids[start : start + kept] if side == "right" else ids[end - kept : end]
    return ids[:start] + text + ids[end:]


def _changes_when_called(tokenizer: Any) -> bool:
    """Return whether a call modifies the tokenizer: it switches modes, or resets the state of an earlier call."""
    if hasattr(tokenizer, "_switch_to_input_mode") or hasattr(tokenizer, "_switch_to_target_mode"):
        return True
    if not tokenizer.is_fast:
        return False
    backend = tokenizer.backend_tokenizer
    return (
        backend.truncation is not None
        or backend.padding is not None
        or backend.encode_special_tokens != tokenizer.split_special_tokens
    )


__all__ = ["TextOptions", "encode_texts"]
