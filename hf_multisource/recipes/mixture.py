"""Read and mix the corpora of a training, repeating rows by weight and tagging synthetic text."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from hf_multisource.data.masking import mask_split
from hf_multisource.data.rows import Row, Split, read_split
from hf_multisource.json_files import JsonObject
from hf_multisource.recipes.schema import DataRecipe


def read_mixture(data: DataRecipe, seed: int) -> tuple[Split, dict[str, JsonObject]]:
    """Read the corpora that `data.train` lists.

    Args:
        data: The `data` section of a recipe.
        seed: Seed for drawing the additional rows if a weight is not a whole number.

    Returns:
        The rows of all corpora, in order, repeated by the weight of their corpus; line numbers continue from corpus to
        corpus. With `data.placeholders`, the rows are masked. The second value holds, by corpus, the counts of reading
        it, its weight and its number of rows per epoch.

    Raises:
        FileNotFoundError: If a corpus does not exist.
        ValueError: If a corpus lacks the target or all sources, files differ in length, or a weight or
            `data.placeholders` leaves no row.
    """
    rows: list[Row] = []
    reports: dict[str, JsonObject] = {}
    for number, corpus in enumerate(data.corpora):
        place = f"data.train[{number}]"
        try:
            split = read_split(
                corpus.path, corpus.split, data.sources, data.target, limit=data.limit, optional=data.sources
            )
            if data.placeholders is not None:
                split = mask_split(split, data.sources, data.target, data.placeholders)
        except (ValueError, OSError) as error:
            raise type(error)(f"{place}: {error}") from error
        seen = repeat_rows(tag_rows(split.rows, corpus.tags(data.sources)), corpus.weight, f"{seed} {number}")
        if not seen:
            raise ValueError(f"{place}.weight is {corpus.weight:g}, which leaves no row of {len(split.rows)}")
        rows += seen
        name = f"train[{number}], {corpus.path}:{corpus.split}"
        reports[name] = {**split.report, "weight": corpus.weight, "rows_per_epoch": len(seen)}
    absent = {f"absent.{name}": sum(row[name] is None for row in rows) for name in rows[0]}
    return Split(rows, list(range(len(rows))), {"rows": len(rows), **absent}), reports


def tag_rows(rows: Sequence[Row], tags: Mapping[str, str]) -> Sequence[Row]:
    """Prepend a tag to each synthetic text.

    Args:
        rows: The rows.
        tags: The tag of each source that is synthetic.

    Returns:
        The rows; an absent text gets no tag.
    """
    if not tags:
        return rows
    return [
        {name: f"{tags[name]} {text}" if text is not None and name in tags else text for name, text in row.items()}
        for row in rows
    ]


def repeat_rows(rows: Sequence[Row], weight: float, seed: str) -> list[Row]:
    """Repeat rows by a weight.

    Args:
        rows: The rows.
        weight: How often each row occurs. For the fractional part, the corresponding share of the rows, drawn at
            random, occurs once more.
        seed: Seed of the random draw.

    Returns:
        All rows in order, repeated by the integer part of the weight, followed by the drawn rows in order.
    """
    whole = int(weight)
    drawn = random.Random(seed).sample(range(len(rows)), round((weight - whole) * len(rows)))
    return [*rows] * whole + [rows[i] for i in sorted(drawn)]
