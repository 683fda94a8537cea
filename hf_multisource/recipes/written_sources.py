"""Augment training rows with rows whose target is the text of a source, which helps if there are few rows."""

from __future__ import annotations

from collections.abc import Sequence

from hf_multisource.data.rows import Row
from hf_multisource.recipes.schema import DataRecipe, source_marker


def add_written_sources(rows: Sequence[Row], data: DataRecipe) -> list[Row]:
    """Add rows whose target is the text of one source and which lack this source (option `data.write_sources`).

    Args:
        rows: Training rows of the data's columns; None or an empty text = absent.
        data: Data section with the names of the sources and the target.

    Returns:
        All rows unchanged, followed by the added rows: for each row with at least two present sources, and each of
        these sources, a row in which this source is absent and whose target is the source's `source_marker` and text.
    """
    added = []
    for row in rows:
        present = [name for name in data.sources if row[name]]
        for name in present if len(present) > 1 else ():
            added.append({**row, name: None, data.target: f"{source_marker(name)} {row[name]}"})
    return [*rows, *added]


def plain_rows(rows: Sequence[Row], data: DataRecipe) -> Sequence[Row]:
    """Return only the rows whose target is text of the target language, without rows of `add_written_sources`.

    Args:
        rows: Rows of the model's sources.
        data: Data section, whose `write_sources` tells whether such rows were added.

    Returns:
        The rows whose target is a text of the target.
    """
    markers = tuple(f"{token} " for token in data.target_tokens)
    return [row for row in rows if not (row[data.model_target] or "").startswith(markers)] if markers else rows
