"""Plot attention weights: target tokens x tokens of all sources, as in the appendix of Libovický et al. 2018.

The weights are averaged over the heads. Requires matplotlib (the extra `plots`).
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_multisource import COMBINERS, DataCollatorForMultiSource, MultiSourceProcessor, attention_to_tokens
from hf_multisource.data.encoding import encode_rows
from hf_multisource.data.interfaces import Model
from hf_multisource.data.rows import Row
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.messages import install_hint

logger = logging.getLogger(__name__)

KEYS = ("title", "target", "sources", "weights", "source_weights", "combiner", "heads")  # of a plot's JSON file
INSTALL = f"plots need matplotlib: {install_hint('plots')}"
# Straight line in the Oklab color space at hue 262 degrees: equal differences of weight look like equal differences of
# darkness.
BLUES = ["#fafafa", "#d8dfed", "#b6c5e0", "#96abd2", "#7692c4", "#5778b6", "#395fa7", "#1a4598", "#002888"]
CELL = 0.21  # inches
ABSENT_WIDTH = 1.5  # cells
MIN_WIDTH = 7.0  # minimum width of the figure in inches, so that the title fits


def measure_attention(
    model: Model,
    processor: MultiSourceProcessor,
    rows: Sequence[Row],
    hypotheses: Sequence[str],
    max_length: int | None,
) -> list[JsonObject]:
    """Compute the decoder's attention weights for hypotheses, with teacher forcing.

    The texts of the hypotheses are tokenized again. The resulting tokens may differ from the tokens that beam search
    generated.

    Args:
        model: The model; its attention implementation is temporarily changed to eager, the only one that returns
            weights.
        processor: Its processor.
        rows: One dict per sentence, source name -> text; None = absent.
        hypotheses: Translations of the rows.
        max_length: Maximum length of a source, in tokens; longer sources are truncated. None: no truncation.

    Returns:
        One dict of JSON values per sentence: `target` (T tokens), `sources` (tokens by source), `weights` (L, T, S) and
        `source_weights` (L, T, n) or None, means over the heads; `combiner`, and the number of `heads`.
    """
    chosen = [{name: row.get(name) for name in processor.source_names} for row in rows]
    encoded, _ = encode_rows(processor, chosen, None, max_length or sys.maxsize)
    examples = [dict(example) for example in encoded]
    for example, hypothesis in zip(examples, hypotheses, strict=True):
        example["labels"] = processor.tokenizer(text_target=hypothesis)["input_ids"]
    batch = {key: value.to(model.device) for key, value in DataCollatorForMultiSource(processor)(examples).items()}
    with _eager_attention(model), torch.inference_mode():
        encoded = model.get_encoder()(**batch)
        output = model(**batch, encoder_outputs=encoded, output_attentions=True)
    weights = torch.stack(output.cross_attentions, dim=1).mean(dim=2)  # (B, L, T, S)
    over = torch.stack(output.source_weights, dim=1).mean(dim=2) if output.source_weights else None
    measured = []
    for i in range(len(rows)):
        found = attention_to_tokens(weights, batch, batch["labels"], processor, i, over, encoded)
        measured.append(
            {
                "target": found.target_tokens,
                "sources": {
                    # a blank before each number, because positions are not parts of words
                    name: tokens if processor.kind_of(name).has_vocabulary else [f" {token}" for token in tokens]
                    for name, tokens in found.source_tokens.items()
                },
                "weights": _rounded(found.weights),
                "source_weights": None if found.source_weights is None else _rounded(found.source_weights),
                "combiner": model.config.strategy,
                "heads": output.cross_attentions[0].shape[1],
            }
        )
    return measured


@contextmanager
def _eager_attention(model: Any) -> Iterator[None]:
    """Set the attention of a model and of all models in it to eager, and restore the setting of each of them."""
    configs = {id(one.config): one.config for one in model.modules() if isinstance(one, PreTrainedModel)}
    before = [(config, config._attn_implementation) for config in configs.values()]
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        for config, name in before:  # not by `set_attn_implementation`, which wrapped models may refuse
            config._attn_implementation_internal = name


def _rounded(weights: torch.Tensor) -> Any:
    numbers = weights.double().cpu()
    return (numbers * 10_000).round().div(10_000).tolist()


def write_plots(
    folder: Path, split: str, numbers: Sequence[int], contents: Sequence[JsonObject], title: str
) -> list[Path]:
    """Write `<split>.attention-<number>.json` and the plot beside it for each sentence.

    Args:
        folder: Output folder.
        split: Name of the test split.
        numbers: Indices of the sentences in the split.
        contents: Output of `measure_attention`.
        title: Title of every plot; the number of the sentence is appended.

    Returns:
        Paths of the plots.
    """
    plots = []
    for number, content in zip(numbers, contents, strict=True):
        path = folder / f"{split}.attention-{number}.json"
        titled = {"title": f"{title}, sentence {number}", **content}
        path.write_text(json.dumps(titled, ensure_ascii=False) + "\n", encoding="utf-8")
        plots.append(draw(titled, path.with_suffix(".png")))
    return plots


def read_numbers(path: Path) -> JsonObject:
    """Read and validate the JSON file of a plot.

    Args:
        path: A file that `write_plots` wrote.

    Returns:
        The content of the file.

    Raises:
        ValueError: If the file holds something else, or its numbers do not fit its tokens; the message names the file.
    """
    content = read_json(path)
    if lacking := [key for key in KEYS if key not in content]:
        raise ValueError(f"{path} is no file of attention weights that `score --attention_plot` wrote: no {lacking[0]}")
    try:
        tokens = sum(map(len, content["sources"].values()))
        shapes = {"weights": tokens, "source_weights": len(content["sources"])}
        for key, columns in shapes.items():
            expected = (len(content["weights"]), len(content["target"]), columns)
            if content[key] is not None and tuple(torch.tensor(content[key]).shape) != expected:
                raise ValueError(f"{key} must have the shape {expected}")
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds numbers that cannot be drawn: {error}") from error
    return content


def draw(content: JsonObject, path: Path, layer: int = -1) -> Path:
    """Draw the attention plot of one sentence.

    Args:
        content: Content of the JSON file.
        path: The PNG file to write.
        layer: Decoder layer, counted from 0, or from the end if negative.

    Returns:
        The path.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed; the message says what to install.
        ValueError: If there is no such layer.
    """
    layers = len(content["weights"])
    if not -layers <= layer < layers:
        raise ValueError(f"layer is {layer}; the model has {layers}, counted from 0")
    shown = [content["title"], *labels(content["target"])]
    shown += [text for tokens in content["sources"].values() for text in labels(tokens)]
    return save_figure(lambda: make_figure(content, layer % layers), shown, path, size=8)


def save_figure(make: Callable[[], Any], texts: Iterable[str], path: Path, size: float, dpi: int = 160) -> Path:
    """Make a figure with fonts that cover all its characters, and save it.

    Args:
        make: Function that makes the matplotlib figure.
        texts: All texts of the figure.
        path: The PNG file to write.
        size: Font size, in points.
        dpi: Pixels per inch.

    Returns:
        The path.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed; the message says what to install.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ModuleNotFoundError(INSTALL) from error
    # Math parsing is off, because texts may contain dollar signs.
    style: Any = {"font.family": fonts_for(set().union(*texts)), "font.size": size, "text.parse_math": False}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # `fonts_for` has already warned once
        make().savefig(path, dpi=dpi)
    return path


def make_figure(content: JsonObject, layer: int) -> Any:
    """Plot one panel per source, and another one if the combiner weights the sources.

    Args:
        content: Content of the JSON file.
        layer: Decoder layer, counted from 0.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    colors = LinearSegmentedColormap.from_list("blues", BLUES)
    sources, target = content["sources"], content["target"]
    weights = torch.tensor(content["weights"][layer]).reshape(len(target), -1)
    over = content["source_weights"] and torch.tensor(content["source_weights"][layer])
    widths = [len(texts) or ABSENT_WIDTH for texts in sources.values()]
    if over is not None:
        widths.append(1.6 * len(sources))
    size = (max(MIN_WIDTH, CELL * sum(widths) + 2.2), CELL * len(target) + 1.8)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.05, wspace=0.01))
    panels = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
    top = max(float(weights.max()), 0.01) if weights.numel() else 1.0
    mesh: Any = None
    start = 0
    for panel, (name, texts) in zip(panels, sources.items(), strict=False):
        panel.set_title(name, fontweight="bold", fontsize=9)
        if texts:
            part = weights[:, start : start + len(texts)].numpy()
            mesh = panel.pcolormesh(part, cmap=colors, vmin=0.0, vmax=top, edgecolors="white", linewidth=0.4)
            start += len(texts)
        else:
            panel.set_facecolor("#eeeeee")
            panel.text(
                0.5, 0.5, "absent", rotation=90, ha="center", va="center", color="#777777", transform=panel.transAxes
            )
        label_axis(panel.xaxis, texts)
        panel.tick_params(axis="x", labelrotation=90)
    if over is not None:
        draw_source_weights(panels[-1], over, list(sources), colors)
    label_axis(panels[0].yaxis, target)
    panels[0].set_ylim(len(target), 0)
    panels[0].set_ylabel("target")
    for panel in panels:
        panel.tick_params(length=0, pad=2)
        panel.spines[:].set(color="#bbbbbb", linewidth=0.6)
    for panel in panels[1:]:
        panel.tick_params(labelleft=False)
    figure.colorbar(mesh, ax=list(panels), label="attention weight", pad=0.01, aspect=30).outline.set_visible(False)
    figure.suptitle(caption(content, layer), fontsize=8, x=0.01, ha="left")
    return figure


def draw_source_weights(panel: Any, weights: torch.Tensor, names: Sequence[str], colors: Any) -> None:
    """Draw the weights of the sources as a heat map with printed values.

    Args:
        panel: The panel.
        weights: (T, n) weight of each source at each target token.
        names: Names of the sources.
        colors: The color map.
    """
    panel.set_title("over sources", fontweight="bold", fontsize=9)
    panel.pcolormesh(weights.numpy(), cmap=colors, vmin=0.0, vmax=1.0, edgecolors="white", linewidth=0.4)
    for row, line in enumerate(weights.tolist()):
        for column, weight in enumerate(line):
            color = "white" if weight > 0.5 else "#333333"
            panel.text(column + 0.5, row + 0.5, f"{weight:.2f}", ha="center", va="center", fontsize=6, color=color)
    panel.set_xticks([i + 0.5 for i in range(len(names))], names)
    panel.tick_params(axis="x", labelrotation=90)


def caption(content: JsonObject, layer: int) -> str:
    """Return the caption of a plot, in two lines."""
    strategy = content["combiner"]
    joint = strategy in COMBINERS and COMBINERS[strategy].joint_weights
    sums = f" over {'all sources together' if joint else 'each source'}" if len(content["sources"]) > 1 else ""
    combiner = f" ({strategy})" if sums else ""
    one = "at most 1" if "local_p" in strategy else "1"
    return (
        f"{content['title']}\ncross-attention{combiner} of decoder layer {layer + 1} of {len(content['weights'])}, "
        f"mean of {content['heads']} heads; a row sums to {one}{sums}"
    )


def labels(tokens: Sequence[str]) -> list[str]:
    """Format tokens for reading: · marks the continuation of a word, … a token that completes no character."""
    texts = []
    for before, token in zip(["", *tokens], tokens, strict=False):
        goes_on = before[-1:].isalnum() and token[:1].isalnum()
        texts.append(f"·{token}" if goes_on else (token.strip() or "▁") if token else "…")
    return texts


def label_axis(axis: Any, tokens: Sequence[str]) -> None:
    """Label an axis with tokens at the centers of their cells."""
    axis.set_ticks([i + 0.5 for i in range(len(tokens))], labels(tokens))


def fonts_for(characters: Iterable[str]) -> list[str]:
    """Choose fonts that cover the given characters: DejaVu Sans, and installed fonts for the characters it lacks.

    Args:
        characters: Characters to be shown. A warning names those that no font has; they are drawn as boxes.

    Returns:
        Names of font families, in the order in which matplotlib should try them.
    """
    from matplotlib import font_manager

    fonts = ["DejaVu Sans"]
    lacking = {ord(character) for character in characters}
    lacking -= set(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())
    for entry in sorted(font_manager.fontManager.ttflist, key=lambda entry: (entry.name, entry.style)):
        if not lacking:
            break
        if entry.name.startswith("Last Resort"):  # this font has a box for every character
            continue
        try:
            found = lacking & set(font_manager.get_font(entry.fname).get_charmap())
        except RuntimeError:  # matplotlib cannot read bitmap fonts, such as color emoji
            continue
        if found:
            fonts.append(entry.name)
            lacking -= found
    if lacking:
        logger.warning("no installed font has %s; install one that does (Noto)", " ".join(map(chr, sorted(lacking))))
    return fonts
