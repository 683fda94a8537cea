"""Draw the figures of an experiment's page: scores by number of present sources, and effect of sources on words.

The figures are drawn from the JSON files of the rows. Requires matplotlib (the extra `plots`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

from hf_multisource.evaluation.plots import INSTALL, save_figure
from hf_multisource.evaluation.presence import LEAST_ROWS
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.table import METRICS, Metric, metrics_of

logger = logging.getLogger(__name__)

WORDS = "words.png"  # file name of the figure of words, in the folder of the experiment's rows
WIDTH = 7.0  # width of both figures in inches: displayed 700 pixels wide, 9-point text is 12 pixels high
SIZE = 9  # points
DPI = 200
# Color, marker and line style of each kind of row. The colors blue, vermilion and green of Okabe & Ito 2008 are
# distinct for readers with any color vision; published figures are gray.
STYLES = {
    "analyzed": ("#0072B2", "o", "-"),
    "baseline": ("#D55E00", "s", "-"),
    "best_source": ("#00795B", "^", "-"),
    "published": ("#555555", "D", ""),  # no line: published figures exist only for some numbers of sources
}
WORDS_CAPTION = "number: drop of the log-probability of the target without this word (nats)"
LABEL_WIDTH = 26  # maximum number of characters per line of a label
LINE_HEIGHT = 0.165  # height of a line of a label, in inches
CELL_HEIGHT = 0.42  # height of a row of the figure of words, in inches
CELLS_WIDTH = 75  # number of characters that fit into all cells of one row of the figure of words
# Color map from vermilion (the source harms) over white to blue (the source helps).
DIVERGING = ["#D55E00", "#EFA77E", "#FFFFFF", "#8DBFE0", "#0072B2"]


@dataclass(frozen=True)
class Line:
    """One line of the figure of scores: a row of the experiment or a published system.

    Args:
        label: Text beside the line.
        style: One of `STYLES`.
        points: Score and standard deviation over the seeds, by number of present sources.
        mean: Score and standard deviation on the whole test set; None if unknown.
    """

    label: str
    style: str
    points: dict[int, tuple[float, float]]
    mean: tuple[float, float] | None


def draw_figures(name: str, experiment: Mapping[str, Any], rows: Sequence[JsonObject], results: Path) -> list[str]:
    """Draw the figures of an experiment for which data exist.

    Args:
        name: Name of the experiment.
        experiment: Description of the experiment, see `describe_experiment`.
        rows: Rows of the experiment, as `make_row` returns them.
        results: Folder of all tables.

    Returns:
        Paths of the figures, relative to the folder of all tables. Without matplotlib, a warning is logged and the list
        is empty.
    """
    metric = metrics_of(rows[0]["scores"]["all"])[0]
    counts, lines = numbers_of(rows), lines_of(experiment, rows, metric)
    words = [(word, row["sources"]) for row in rows for word in row.get("words", ())]
    story = len(counts) > 1 and any(line.style == "analyzed" for line in lines)
    if (story or words) and find_spec("matplotlib") is None:
        logger.warning("no figures: %s", INSTALL)
        return []
    drawn = []
    if story:
        drawn.append(f"{name}.png")
        texts = [METRICS[metric].label, *(line.label for line in lines)]
        save_figure(lambda: score_figure(lines, counts, METRICS[metric]), texts, results / drawn[-1], SIZE, DPI)
    if words:
        drawn.append(f"{name}/{WORDS}")
        texts = [text for word, names in words for text in (word["target"], *word["sources"].values(), *names)]
        content = [word for word, _ in words]
        save_figure(lambda: word_figure(content, words[0][1]), texts, results / drawn[-1], SIZE, DPI)
    return drawn


def numbers_of(rows: Sequence[JsonObject]) -> dict[int, int]:
    """Count the sentences by number of present sources, for numbers with enough sentences.

    Args:
        rows: See `draw_figures`.

    Returns:
        Number of sources -> number of examples, in ascending order; only numbers with at least `LEAST_ROWS` examples.
    """
    found: dict[int, int] = {}
    for row in rows:
        found |= {int(label): own["n"] for label, own in row.get("presence", {}).get("number", {}).items()}
    return {number: found[number] for number in sorted(found) if found[number] >= LEAST_ROWS}


def lines_of(experiment: Mapping[str, Any], rows: Sequence[JsonObject], metric: str) -> list[Line]:
    """Return the lines of the figure of scores: the row `analyzed`, the baseline, best sources, and published figures.

    Args:
        experiment: See `draw_figures`.
        rows: See `draw_figures`.
        metric: The metric.

    Returns:
        The lines, without rows that do not exist yet.
    """
    lines = []
    for row in rows:
        own = experiment["rows"][row["name"]]
        kinds = {experiment.get("analyzed"): "analyzed", experiment["baseline"]: "baseline"}
        style = kinds.get(row["name"], "best_source" if "best_source" in own else None)
        if style:
            groups = row.get("presence", {}).get("number", {})
            points = {int(number): _point(group, metric) for number, group in groups.items() if metric in group}
            lines.append(Line(own["label"], style, points, _point(row["scores"]["all"], metric)))
    for other in experiment["published"]:
        points = {int(number): (_number(score), 0.0) for number, score in other.get("number", {}).items()}
        mean = other["scores"].get(metric)
        if points or mean is not None:
            label = f"published: {other['label']}"
            lines.append(Line(label, "published", points, None if mean is None else (_number(mean), 0.0)))
    return lines


def _point(scores: Mapping[str, Any], metric: str) -> tuple[float, float]:
    """Return score and standard deviation over the seeds; the deviation is 0 for one seed."""
    return scores[metric]["score"], scores[metric].get("seeds_sd", 0.0)


def _number(score: Any) -> float:
    """Return the score of a published figure such as "54.6 ± 1.3"."""
    return float(str(score).split()[0])


def spread(values: Sequence[float], gaps: Sequence[float], low: float, high: float) -> list[float]:
    """Move labels apart so that they do not overlap, each as little as possible.

    Args:
        values: Preferred centers of the labels, in ascending order.
        gaps: Minimum distance between each center and the next one.
        low: Lower bound of the first center.
        high: Upper bound of the last center, if all labels fit between `low` and `high`.

    Returns:
        The centers, which are closest to the preferred ones in the least-squares sense (isotonic regression).
    """
    offsets = [sum(gaps[:i]) for i in range(len(values))]
    # Groups of touching labels: preferred centers minus the sum of the gaps below them
    blocks: list[list[float]] = []
    for value, offset in zip(values, offsets, strict=True):
        blocks.append([value - offset])
        while len(blocks) > 1 and fmean(blocks[-2]) >= fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    middles = [max(low, min(fmean(block), high - sum(gaps))) for block in blocks for _ in block]
    return [middle + offset for middle, offset in zip(middles, offsets, strict=True)]


def score_figure(lines: Sequence[Line], counts: Mapping[int, int], metric: Metric) -> Any:
    """Plot the scores by number of present sources, with the scores on the whole test set at the side.

    Args:
        lines: The lines.
        counts: Number of sources -> number of examples, in order.
        metric: The metric.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure

    beside = sorted(((line.mean[0], line) for line in lines if line.mean), key=lambda item: item[0])
    texts = ["\n".join(wrap(f"{metric.show(mean)} {line.label}", LABEL_WIDTH)) for mean, line in beside]
    heights = [(text.count("\n") + 1.4) * LINE_HEIGHT for text in texts]
    height = max(sum(heights), 2.8)  # height of the axes, in inches
    figure = Figure(figsize=(WIDTH, height + 1.0), facecolor="white")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2.1])
    figure.subplots_adjust(left=0.07, right=0.99, top=1 - 0.35 / (height + 1), bottom=0.65 / (height + 1), wspace=0.03)
    places = {number: place for place, number in enumerate(counts)}
    for line in lines:
        color, marker, dash = STYLES[line.style]
        shown = {places[number]: point for number, point in line.points.items() if number in places}
        xs, means, deviations = list(shown), [p[0] for p in shown.values()], [p[1] for p in shown.values()]
        width = 2.4 if line.style == "analyzed" else 1.4
        filled = "white" if line.style == "published" else color
        left.plot(xs, means, linestyle=dash, color=color, marker=marker, markerfacecolor=filled, linewidth=width)
        if any(deviations):
            low, high = ([mean + sign * sd for mean, sd in shown.values()] for sign in (-1, 1))
            left.fill_between(xs, low, high, color=color, alpha=0.2, linewidth=0)
        if line.mean:
            right.errorbar(
                [0], [line.mean[0]], [line.mean[1]], color=color, marker=marker, markerfacecolor=filled, capsize=2
            )
    left.set_xticks(list(places.values()), [f"{number}\n{count:,}" for number, count in counts.items()])
    left.set_xlabel("number of sources present (below: number of examples)")
    left.set_xlim(-0.3, len(places) - 0.7)
    left.set_title(metric.label, loc="left", fontsize=10)
    right.set_xticks([0], ["all"])
    right.set_xlim(-0.25, 3)
    left.grid(axis="y", color="#dddddd", linewidth=0.6)
    for panel in (left, right):
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
    if beside:
        bottom, top = right.get_ylim()
        scale = (top - bottom) / height
        gaps = [(one + other) / 2 * scale for one, other in pairwise(heights)]
        ends = bottom + heights[0] / 2 * scale, top - heights[-1] / 2 * scale
        middles = spread([mean for mean, _ in beside], gaps, *ends)
        for (mean, line), text, middle in zip(beside, texts, middles, strict=True):
            right.plot([0.12, 0.35], [mean, middle], color=STYLES[line.style][0], linewidth=0.6)
            right.text(0.4, middle, text, color=STYLES[line.style][0], va="center", linespacing=1.1)
        right.set_ylim(bottom, top)
    return figure


def word_figure(words: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> Any:
    """Plot words, one per row, with the drop of the target's log-probability when each source is removed.

    Args:
        words: Output of `measure_words`.
        sources: Names of the sources.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    drops = [[word["drops"].get(name, math.nan) for name in sources] for word in words]
    top = max((abs(drop) for line in drops for drop in line if not math.isnan(drop)), default=1.0)
    height = CELL_HEIGHT * len(words)
    figure = Figure(figsize=(WIDTH, height + 0.7), facecolor="white")
    panel = figure.subplots()
    figure.subplots_adjust(left=0.22, right=0.99, top=1 - 0.35 / (height + 0.7), bottom=0.35 / (height + 0.7))
    figure.text(0.99, 0.1 / (height + 0.7), WORDS_CAPTION, ha="right")
    colors = LinearSegmentedColormap.from_list("drops", DIVERGING)
    panel.pcolormesh(drops, cmap=colors, vmin=-top, vmax=top, edgecolors="white", linewidth=1.5)
    panel.set_facecolor("#eeeeee")  # background of absent sources
    for row, word in enumerate(words):
        for column, name in enumerate(sources):
            text, drop = word["sources"].get(name), word["drops"].get(name)
            said = "absent" if text is None else _cut(text, CELLS_WIDTH // len(sources))
            number = "" if drop is None else f"\n{round(drop, 1) + 0.0:+.1f}"  # adding 0.0 turns "-0.0" into "+0.0"
            dark = drop is not None and abs(drop) > 0.7 * top
            panel.text(column + 0.5, row + 0.5, said + number, ha="center", va="center", color="w" if dark else "k")
    panel.xaxis.tick_top()
    panel.set_xticks([i + 0.5 for i in range(len(sources))], sources, fontweight="bold")
    names = [f"{_cut(word['target'], 18)} ({math.exp(word['log_probability']):.2g})" for word in words]
    panel.set_yticks([i + 0.5 for i in range(len(words))], names)
    panel.set_ylim(len(words), 0)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return figure


def _cut(text: str, width: int) -> str:
    """Shorten a text to at most `width` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
