"""Encode texts with a tokenizer that several threads share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

# Held while a tokenizer is called whose call changes the tokenizer itself. One lock for the process: several processors
# may share a tokenizer, and a module-level lock is neither copied nor pickled with any of them.
TOKENIZER_LOCK = threading.RLock()


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
    """Encode texts to token ids; safe to call from several threads at once.

    A fast tokenizer keeps the length to truncate to as a state of its own, which concurrent calls overwrite. Its ids
    are therefore truncated here, to what the tokenizer itself would leave. Tokenizers that switch between a source and
    a target mode (Marian, mBART, M2M100, NLLB, PLBart, SeamlessM4T) are called by one thread at a time.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        is_target: Whether the texts are targets.
        truncation: Whether to truncate.
        max_length: The length to truncate to, in tokens, special tokens included; None: the tokenizer's longest.
        exclusive: Whether other calls may encode with other `options`, so that no two may run at once.
        **options: Further arguments of the tokenizer, such as `split_special_tokens`.

    Returns:
        The ids of each text.

    Raises:
        ValueError: If `truncation` is set and `max_length` is negative.
    """
    longest: int = tokenizer.model_max_length if max_length is None else max_length
    if truncation and longest < 0:
        raise ValueError(f"max_length must be at least 0; got {longest}.")
    cut_here = truncation and tokenizer.is_fast
    if truncation:  # `max_length` without truncation silences the warning about texts that are yet to be truncated
        options.update(truncation=not cut_here, max_length=longest)
    keyword = "text_target" if is_target else "text"
    lock = TOKENIZER_LOCK if exclusive or _changes_when_called(tokenizer) else contextlib.nullcontext()
    with lock:
        encoded = tokenizer(**{keyword: list(texts)}, **options)
    rows: list[list[int]] = encoded["input_ids"]
    if cut_here:
        for i, row in enumerate(rows):
            if len(row) > longest:
                rows[i] = truncate(row, encoded.encodings[i].special_tokens_mask, longest, tokenizer.truncation_side)
    return rows


def truncate(ids: list[int], special_tokens_mask: Sequence[int], max_length: int, side: str) -> list[int]:
    """Truncate a text as a fast tokenizer does: the special tokens around the text stay.

    Args:
        ids: The token ids: special tokens, the text, special tokens.
        special_tokens_mask: 1 at each special token that the tokenizer added.
        max_length: The most ids to leave. With a `max_length` below the number of special tokens, fast tokenizers do
            not truncate.
        side: The side of the text from which ids are removed, "left" or "right".

    Returns:
        The ids that are left.
    """
    number = len(ids) - sum(special_tokens_mask)  # of the text's own tokens
    kept = max_length - (len(ids) - number)
    if kept < 0 or kept >= number:
        return ids
    start = special_tokens_mask.index(0)
    end = start + number
    text = ids[start : start + kept] if side == "right" else ids[end - kept : end]
    return ids[:start] + text + ids[end:]


def _changes_when_called(tokenizer: Any) -> bool:
    """Return whether a call changes the tokenizer: it switches modes, or a state of an earlier call is to be reset."""
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


__all__ = ["encode_texts"]
