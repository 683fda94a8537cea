"""Allowed ranges of the numeric settings of configurations, and upper bounds of sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .messages import shown, shown_key

#: Upper bounds of sizes, far above the sizes of real models: a larger size indicates a damaged or hostile file. Both
#: model families and wrapped encoders share the bounds. A program can raise a bound
#: (`MultiSourceConfig.limits["window"] = 2**22`); a checkpoint cannot.
LIMITS: dict[str, int] = {
    "sources": 256,
    "layers": 1_000,
    "attention_heads": 1_024,
    "d_model": 2**16,
    "ffn_dim": 2**18,
    "feature_size": 2**18,
    "vocab_size": 2**25,
    "num_labels": 2**18,
    "max_position_embeddings": 2**20,
    "position_offset": 2**20,
    "window": 2**20,
    "encoder": 2**24,  # all other integers in the configuration of a wrapped encoder
}


@dataclass(frozen=True)
class Range:
    """Range of allowed values of a numeric setting.

    Args:
        low: The lowest value.
        high: The highest value; None: the bound `LIMITS[limit]`.
        limit: Key of `LIMITS`, for sizes, which are integers; None: the setting is a real number.
        open_low: Whether `low` itself is not allowed.
        open_high: Whether `high` itself is not allowed.
    """

    low: float
    high: float | None = None
    limit: str | None = None
    open_low: bool = False
    open_high: bool = False


def size_range(limit: str, low: int = 1) -> Range:
    """Build the range of a size.

    Args:
        limit: Key of `LIMITS`.
        low: The smallest size.

    Returns:
        The range.
    """
    return Range(low, limit=limit)


PROBABILITY = Range(0, 1, open_high=True)  # dropout and label smoothing; 1 is excluded, because nothing would be left

#: Ranges of all numeric settings of configurations and sources, except token ids, which the vocabulary bounds.
RANGES: dict[str, Range] = {
    "vocab_size": size_range("vocab_size"),
    "d_model": size_range("d_model"),
    "encoder_layers": size_range("layers", 0),
    "layers": size_range("layers", 0),
    "decoder_layers": size_range("layers"),
    "num_layers": size_range("layers"),
    "encoder_attention_heads": size_range("attention_heads"),
    "decoder_attention_heads": size_range("attention_heads"),
    "hierarchical_heads": size_range("attention_heads"),
    "attention_heads": size_range("attention_heads"),
    "encoder_ffn_dim": size_range("ffn_dim"),
    "decoder_ffn_dim": size_range("ffn_dim"),
    "ffn_dim": size_range("ffn_dim"),
    "feature_size": size_range("feature_size"),
    "max_position_embeddings": size_range("max_position_embeddings"),
    "position_offset": size_range("position_offset", 0),
    "window": size_range("window"),
    "num_labels": size_range("num_labels", 0),
    "dropout": PROBABILITY,
    "attention_dropout": PROBABILITY,
    "activation_dropout": PROBABILITY,
    "source_dropout": PROBABILITY,
    "subset_weight": Range(0, 1_000_000, open_low=True),
    "label_smoothing": PROBABILITY,
    "layer_norm_eps": Range(0, 1, open_low=True),
    "init_std": Range(0, 1_000),
    "init_range": Range(0, 1_000, open_low=True),
    "cell_clip": Range(0, 1e30, open_low=True),
}

# Patterns of the names of integers in the configurations of Transformers' models, and the keys of their bounds in
# `LIMITS`. The first pattern that is found in a name decides.
NAMES_OF_SIZES = (
    (re.compile(r"vocab_size"), "vocab_size"),
    (re.compile(r"num_labels"), "num_labels"),
    (re.compile(r"layers?$|blocks?$|depths?$|num_stages|layers_per_stage"), "layers"),
    (re.compile(r"heads$|n_head$"), "attention_heads"),
    (re.compile(r"positions?$|position_embeddings$|max_seq_len"), "max_position_embeddings"),
    (re.compile(r"sizes?$|dims?$|width$|channels$|filters$|d_model|d_ff|d_kv|n_embd|n_inner"), "ffn_dim"),
)
# Names of integers that are not sizes of tensors: base of rotary positions, seeds, chunk sizes of audio.
UNBOUNDED = re.compile(r"theta|seed|chunk_size")


def check_range(rule: str, value: Any, place: str) -> None:
    """Check that a number is within the range of its setting.

    Args:
        rule: Key of `RANGES`.
        value: The number; None is allowed.
        place: Name of the setting in the message.

    Raises:
        ValueError: If the value is not a finite number within the range; the message gives the setting, the value and
            the range.
    """
    if value is None:
        return
    allowed = RANGES[rule]
    whole = allowed.limit is not None
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(f"{place} must be {'a whole' if whole else 'a'} number; got {shown(value)}.")
    if allowed.limit is not None:
        if value < allowed.low:
            raise ValueError(f"{place} must be at least {allowed.low}; got {shown(value)}.")
        check_limit(allowed.limit, value, place)
        return
    high: Any = allowed.high
    low_fits = value > allowed.low if allowed.open_low else value >= allowed.low
    high_fits = value < high if allowed.open_high else value <= high
    if not (low_fits and high_fits and math.isfinite(value)):
        brackets = "(" if allowed.open_low else "[", ")" if allowed.open_high else "]"
        raise ValueError(f"{place} must be in {brackets[0]}{allowed.low}, {high:g}{brackets[1]}; got {shown(value)}.")


def check_limit(limit: str, value: float, place: str) -> None:
    """Check that a size does not exceed its upper bound.

    Args:
        limit: Key of `LIMITS`.
        value: The size.
        place: Name of the setting in the message.

    Raises:
        ValueError: If the size exceeds the bound; the message gives the setting, both numbers, and how to raise the
            bound.
    """
    if value > LIMITS[limit]:
        raise ValueError(
            f"{place} must be at most {LIMITS[limit]}; got {shown(value)}. If that is meant, raise the bound: "
            f"MultiSourceConfig.limits[{limit!r}] = {shown(value)}."
        )


def check_encoder_settings(settings: Mapping[str, Any], place: str) -> None:
    """Check the sizes in the configuration of a wrapped encoder before a model is built.

    Args:
        settings: The configuration, as in `config.json`: plain values, lists and further mappings.
        place: Name of the configuration in the message.

    Raises:
        ValueError: If an integer exceeds its bound; the message gives its path.
    """
    waiting: list[tuple[str, str, Any]] = [("", place, settings)]
    while waiting:  # no recursion, because hostile files can be nested arbitrarily deeply
        name, path, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(str(key), f"{path}.{shown_key(key)}", item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(name, f"{path}[{i}]", item) for i, item in enumerate(value)]
        elif isinstance(value, int) and not UNBOUNDED.search(name):
            found = (limit for pattern, limit in NAMES_OF_SIZES if pattern.search(name))
            check_limit(next(found, "encoder"), value, path)


__all__ = ["LIMITS", "check_encoder_settings", "check_limit", "check_range"]
