"""Draw the figure of docs/results/performance.md: sentences per second of our models and of alternatives.

Needs matplotlib (the extra `plots`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_multisource.evaluation.plots import save_figure

Record = Mapping[str, Any]
SIZE, BEAMS = "msmt", 10  # model size and beams of the drawn records, which were measured on one thread of a CPU
# Name in the records -> label and color of the bars, from top to bottom. Similar bars share a color (Okabe & Ito 2008).
OTHERS, EXACT, EIGHT_BITS = "#999999", "#0072B2", "#56B4E9"
BARS = {
    "HF": ("Marian", OTHERS),
    "CTranslate2 float32": ("CTranslate2", OTHERS),
    "CTranslate2 int8": ("CTranslate2, 8 bits", OTHERS),
    "flat": ("flat", EXACT),
    "flat optimized": ("flat, optimized", EXACT),
    "flat int8": ("flat, 8 bits", EIGHT_BITS),
    "serial": ("serial", EXACT),
    "serial optimized": ("serial, optimized", EXACT),
    "serial int8": ("serial, 8 bits", EIGHT_BITS),
}
WIDTH, HEIGHT, POINTS, DPI = 9.0, 3.2, 9, 200  # width and height in inches, font size in points, pixels per inch


def records_of_figure(records: Sequence[Record]) -> list[Record]:
    """Choose the records that are drawn.

    Args:
        records: Records of `common.save`.

    Returns:
        The records of decoding at `SIZE` and `BEAMS` on one thread of a CPU, sorted by batch size. The list is empty if
        several machines have such records.
    """
    wanted = {"part": "speed", "size": SIZE, "beams": BEAMS, "threads": 1, "device": "cpu"}
    chosen = [one for one in records if all(one.get(key) == value for key, value in wanted.items())]
    if len({one["hardware"] for one in chosen}) != 1:
        return []
    return sorted(chosen, key=lambda one: int(one["batch"]))


def speeds(record: Record) -> dict[str, float]:
    """Compute the speed that each bar of the figure shows.

    Args:
        record: A record of `records_of_figure`.

    Returns:
        Name -> sentences per second of CPU time, in the order of the bars. Bars that were not measured are left out.
    """
    runs, clock = record["runs"], record["clock"]
    return {name: record["batch"] / statistics.median(runs[name]["seconds"][clock]) for name in BARS if name in runs}


def draw_speed(records: Sequence[Record], path: Path) -> Path:
    """Draw one panel of bars for each batch size.

    Args:
        records: Records, of which the figure shows some.
        path: The PNG file to write.

    Returns:
        The path.
    """
    chosen = records_of_figure(records)
    texts = [*(label for label, _ in BARS.values()), "batch 0123456789.,"]
    return save_figure(lambda: make_figure(chosen), texts, path, POINTS, DPI)


def make_figure(records: Sequence[Record]) -> Any:
    """Draw the panels side by side, each with its own scale that starts at 0.

    Args:
        records: The records of the figure.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor="white", layout="constrained")
    panels = figure.subplots(1, len(records), sharey=True, squeeze=False)[0]
    for panel, record in zip(panels, records, strict=True):
        found = speeds(record)
        labels, colors = zip(*(BARS[name] for name in found), strict=True)
        bars = panel.barh(labels, list(found.values()), color=colors, height=0.72)
        panel.bar_label(bars, labels=[f"{value:.1f}" for value in found.values()], padding=3)
        panel.set_title(f"batch {record['batch']}", fontsize=POINTS)
        panel.set_xlim(0, 1.22 * max(found.values()))
        panel.set_xticks([])
        panel.spines[["top", "right", "bottom"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    panels[0].invert_yaxis()  # inverts all panels, which share the axis
    return figure
