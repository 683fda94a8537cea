"""Perturb test sets by shuffling or removing a source, to measure how much the model uses each source.

Elliott 2018 (https://doi.org/10.18653/v1/D18-1329) compares congruent with incongruent sources; Libovický et al. 2018
changed one source "randomly". This module uses seeded derangements within the test set.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hf_multisource.data.media import digest
from hf_multisource.data.rows import Row
from hf_multisource.source_kinds import is_absent


def derangement(texts: Sequence[Any], rng: random.Random) -> list[int]:
    """Draw a permutation that moves every text, and assigns no place an equal text where this is possible.

    The places are ordered randomly, but with equal texts side by side, and rotated by the size of the largest group of
    equal texts. No place then gets a text of its own group, unless one text fills more than half of the places.

    Args:
        texts: One text, path of a picture, or array per place.
        rng: Random number generator.

    Returns:
        For each place, the index of the place whose text it gets.

    Raises:
        ValueError: If there are fewer than two texts.
    """
    if len(texts) < 2:
        raise ValueError(f"a derangement needs at least 2 sentences that have the source; there are {len(texts)}")
    groups: dict[str, list[int]] = {}
    for place in rng.sample(range(len(texts)), len(texts)):
        text = texts[place]
        groups.setdefault(text if isinstance(text, str) else digest(text), []).append(place)
    order = [place for group in groups.values() for place in group]
    shift = max(map(len, groups.values())) % len(texts) or 1  # if all texts are equal, rotate by 1
    permutation = [0] * len(texts)
    for i, place in enumerate(order):
        permutation[place] = order[(i + shift) % len(texts)]
    return permutation


def make_wrong(rows: Sequence[Row], source: str, seed: int, draw: int) -> list[Row]:
    """Shuffle one source among the rows that have it; other rows are unchanged.

    Args:
        rows: The rows.
        source: Name of the source.
        seed: Seed of the permutation.
        draw: Number of the permutation; each number gives another one.

    Returns:
        The rows, with the source of another row.

    Raises:
        ValueError: If fewer than two rows have the source; the message names it.
    """
    present = [i for i, row in enumerate(rows) if not is_absent(row.get(source))]
    texts = [rows[i][source] for i in present]
    try:
        permutation = derangement(texts, random.Random(f"{seed} {source} {draw}"))
    except ValueError as error:
        raise ValueError(f"source {source!r} cannot be made wrong: {error}") from None
    wrong = dict(zip(present, (texts[k] for k in permutation), strict=True))
    return [{**row, source: wrong.get(i)} for i, row in enumerate(rows)]


def make_absent(rows: Sequence[Row], sources: Sequence[str]) -> list[Row]:
    """Make sources absent in every row."""
    return [{**row, **dict.fromkeys(sources)} for row in rows]
