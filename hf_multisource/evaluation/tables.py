"""Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_multisource.metrics.table import METRICS


def format_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table whose columns also align as plain text; vertical bars in cells are escaped."""
    header, *lines = [[cell.replace("|", r"\|") for cell in line] for line in (header, *lines)]
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    cells = [header, ["-" * width for width in widths], *lines]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    )


def score_cells(name: str, figures: Mapping[str, Any]) -> list[str]:
    """Return the table cells of a score: the score and its confidence interval.

    Args:
        name: Name of the metric.
        figures: Mapping with `score`, `ci_low` and `ci_high`.

    Returns:
        Such as "27.41" and "[26.20, 28.63]".
    """
    score, low, high = (METRICS[name].show(figures[key], more=1) for key in ("score", "ci_low", "ci_high"))
    return [score, f"[{low}, {high}]"]
