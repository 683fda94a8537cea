"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns also align as plain text."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    cells = [header, ["-" * width for width in widths], *lines]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    )
