"""Plots of attention, and the numbers they are made from."""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import ResNetConfig

from builders import NAMES, tiny_config
from hf_multisource import COMBINERS, MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.cli import plot, results, score
from hf_multisource.data.files import read_lines
from hf_multisource.data.rows import Row
from hf_multisource.evaluation import plots, scoring
from hf_multisource.evaluation.plots import draw, fonts_for, labels, make_figure, measure_attention
from hf_multisource.recipes.tokenization import train_tokenizer
from kinds import mixed_processor, picture
from scored import COLUMNS, OPTIONS, make_run

ROWS: list[Any] = [
    {"en": "a small dog", "de": None, "fr": "un petit chien qui court"},
    {"en": "two cats", "de": "zwei Katzen", "fr": "deux chats"},
]
HYPOTHESES = ["malý pes", "dvě kočky tu jsou"]


@pytest.fixture(scope="module")
def processor() -> MultiSourceProcessor:
    texts = [text for row in ROWS for text in row.values() if text]
    return MultiSourceProcessor(train_tokenizer([*texts, *HYPOTHESES], "bpe", 300), NAMES)


def make_model(combiner: str) -> Any:
    torch.manual_seed(0)
    config = tiny_config(combiner, NAMES, vocab_size=300, decoder_layers=2, initializer="normal", init_std=0.5)
    return MultiSourceForConditionalGeneration(config).eval()


@pytest.mark.parametrize("combiner", COMBINERS)
def test_what_is_measured_are_the_weights_at_the_hypothesis_alone(
    combiner: str, processor: MultiSourceProcessor
) -> None:
    model = make_model(combiner)
    model.set_attn_implementation("sdpa")
    found = measure_attention(model, processor, ROWS, HYPOTHESES, None)
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    for row, hypothesis, one in zip(ROWS, HYPOTHESES, found, strict=True):
        assert "".join(one["target"]) == f"{hypothesis}</s>"
        assert {name: "".join(tokens) for name, tokens in one["sources"].items()} == {
            name: f"{text}</s>" if text else "" for name, text in row.items()
        }
        inputs = processor(**row, text_target=hypothesis, return_tensors="pt")
        with torch.no_grad():
            alone = model(**inputs, output_attentions=True)
        real = torch.cat([inputs[f"{prefix}attention_mask"][0] for prefix in ("", "de_", "fr_")]).bool()
        expected = torch.stack(alone.cross_attentions)[:, 0].mean(dim=1)[..., real]  # (L, T, S)
        assert_close(torch.tensor(one["weights"]), expected, atol=1e-4, rtol=0)
        assert (one["source_weights"] is not None) == COMBINERS[combiner].weighs_sources
        if one["source_weights"]:
            expected = torch.stack(alone.source_weights)[:, 0].mean(dim=1)
            assert_close(torch.tensor(one["source_weights"]), expected, atol=1e-4, rtol=0)


def test_wrapped_models_keep_their_attention_and_positions_of_pictures_are_no_words() -> None:
    """A ResNet has eager attention only, and cannot be set to another one."""
    torch.manual_seed(0)
    processor = mixed_processor("en", "image")
    network = ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic")
    sources: list[Any] = ["en", {"name": "image", "kind": "pretrained", "encoder": network}]
    config = tiny_config("serial", sources, vocab_size=len(processor.tokenizer))
    model: Any = MultiSourceForConditionalGeneration(config).eval()
    before = {name: one.config._attn_implementation for name, one in model.named_modules() if hasattr(one, "config")}
    assert set(before.values()) == {"eager", "sdpa"}
    (found,) = measure_attention(model, processor, [{"en": "Two cats.", "image": picture(0, 64)}], ["cats"], None)
    after = {name: one.config._attn_implementation for name, one in model.named_modules() if hasattr(one, "config")}
    assert after == before
    positions = found["sources"]["image"]
    assert len(positions) > 1 and labels(positions) == [str(i + 1) for i in range(len(positions))]


def test_a_source_is_cut_as_it_was_for_the_search(processor: MultiSourceProcessor) -> None:
    model = make_model("serial")
    (found,) = measure_attention(model, processor, ROWS[:1], HYPOTHESES[:1], 3)
    assert [len(tokens) for tokens in found["sources"].values()] == [3, 0, 3]
    assert found["sources"]["fr"][-1] == "</s>"
    assert "".join(found["target"]) == "malý pes</s>"


CONTENT: dict[str, Any] = {
    "title": "made up, sentence 0",
    "combiner": "hierarchical",
    "heads": 4,
    "target": ["star", "ing", " at", " $", "5", "", " $", "</s>"],
    "sources": {"en": ["A", " man", "</s>"], "de": [], "fr": ["犬", "</s>"]},
    "weights": [torch.rand(8, 5, generator=torch.Generator().manual_seed(i)).tolist() for i in range(2)],
    "source_weights": torch.rand(2, 8, 3, generator=torch.Generator().manual_seed(2)).tolist(),
}


def texts(ticks: Any) -> list[str]:
    return [tick.get_text() for tick in ticks]


def test_a_figure_has_one_panel_a_source_and_one_of_their_weights() -> None:
    figure = make_figure(CONTENT, 1)
    panels = figure.axes[:4]
    assert [panel.get_title() for panel in panels] == ["en", "de", "fr", "over sources"]
    assert [texts(panel.get_xticklabels()) for panel in panels] == [
        ["A", "man", "</s>"],
        [],
        ["犬", "</s>"],
        ["en", "de", "fr"],
    ]
    assert texts(panels[0].get_yticklabels()) == labels(CONTENT["target"])
    assert panels[0].get_ylim() == (8, 0)  # the first token is at the top
    weights = torch.tensor(CONTENT["weights"][1])
    for panel, part in ((panels[0], weights[:, :3]), (panels[2], weights[:, 3:])):
        assert_close(torch.tensor(panel.collections[0].get_array().data), part.double(), check_dtype=False)
        assert panel.collections[0].get_clim() == (0.0, float(weights.max()))
    assert not panels[1].collections
    assert texts(panels[1].texts) == ["absent"]
    over = torch.tensor(CONTENT["source_weights"][1])
    assert texts(panels[3].texts) == [f"{weight:.2f}" for weight in over.flatten().tolist()]
    assert figure.get_suptitle().endswith(
        "cross-attention (hierarchical) of decoder layer 2 of 2, mean of 4 heads; a row sums to 1 over each source"
    )
    assert figure.axes[4].get_ylabel() == "attention weight"


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        (
            {"combiner": "flat"},
            "cross-attention (flat) of decoder layer 1 of 2, mean of 4 heads; a row sums to 1 over all",
        ),
        (
            {"sources": {"en": ["a", "b", "c", "d", "e"]}},
            "cross-attention of decoder layer 1 of 2, mean of 4 heads; a row",
        ),
    ],
)
def test_the_caption_tells_what_a_row_sums_to(fields: dict[str, Any], end: str) -> None:
    assert end in plots.caption({**CONTENT, **fields}, 0)


def test_labels_mark_what_goes_on_with_a_word_and_show_what_is_white() -> None:
    assert labels(["star", "ing", " at", ".", "b", "", " ", "é"]) == ["star", "·ing", "at", ".", "b", "…", "▁", "é"]


def test_another_layer_is_another_plot_and_none_beyond_the_last_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**CONTENT, "title": "no font has \U0010fffd"}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot.main([str(path)])
    last = (tmp_path / "a.png").read_bytes()
    assert last.startswith(b"\x89PNG")
    plot.main([str(path), "--layer", "0", "--out", str(tmp_path)])
    assert (tmp_path / "a.png").read_bytes() != last
    with pytest.raises(SystemExit, match=r"^hf-multisource plot: layer is 2; the model has 2, counted from 0"):
        plot.main([str(path), "--layer", "2"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "a.json holds no valid JSON"),
        ("[]", "a.json must hold a JSON object, but holds []"),
        ("{}", "a.json is no file of attention weights that `score --attention_plot` wrote: no title"),
        (json.dumps({**CONTENT, "target": ["one"]}), "a.json holds numbers that cannot be drawn: weights must have"),
        (json.dumps({**CONTENT, "sources": []}), "a.json holds numbers that cannot be drawn"),
    ],
)
def test_numbers_that_cannot_be_drawn_are_refused_before_anything_is_drawn(
    content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "good.json").write_text(json.dumps(CONTENT))
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(SystemExit, match=f"^hf-multisource plot: .*{re.escape(message)}"):
        plot.main([str(tmp_path / "good.json"), str(tmp_path / "a.json")])
    assert not (tmp_path / "good.png").exists()


def test_a_character_without_a_font_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert fonts_for("aé→Ж▁·…") == ["DejaVu Sans"]
    with caplog.at_level(logging.WARNING):
        assert fonts_for("a\U0010fffd")[0] == "DejaVu Sans"
    assert "no installed font has \U0010fffd" in caplog.text


def test_without_matplotlib_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'run pip install "\.\[plots\]" in a clone of the repository'):
        draw(CONTENT, tmp_path / "a.png")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", tmp_path)


def test_score_plots_what_it_decoded_and_results_take_the_first_plot_along(run: Path, tmp_path: Path) -> None:
    score.main([str(run), *OPTIONS, "--attention-plot", "10", "3"])
    scores = run / "scores"
    assert {path.name for path in scores.glob("*attention*")} == {
        f"test.attention-{row}.{kind}" for row in (3, 10) for kind in ("json", "png")
    }
    hypotheses = read_lines(scores / "test.all.txt")
    for row in (3, 10):
        content = json.loads((scores / f"test.attention-{row}.json").read_text("utf-8"))
        assert content["title"] == f"run: test, sentence {row}"
        assert "".join(content["target"]) == f"{hypotheses[row]}</s>"
        assert (
            "".join(content["sources"]["en"]) == f"{COLUMNS['en'][row]}</s>"[: len("".join(content["sources"]["en"]))]
        )
    assert content["sources"]["de"]
    assert json.loads((scores / "test.attention-3.json").read_text("utf-8"))["sources"]["de"] == []  # absent there

    arguments = ["row", str(run), "--table", "t", "--name", "x", "--results", str(tmp_path / "results")]
    results.main(arguments)
    copied = tmp_path / "results" / "t" / "x.png"
    assert copied.read_bytes() == (scores / "test.attention-3.png").read_bytes()
    for path in scores.glob("*.png"):
        path.unlink()
    results.main(arguments)
    assert not copied.exists()


def test_score_takes_the_first_sentences_that_lack_no_source(run: Path) -> None:
    rows: list[Row] = [{"en": "a", "de": None}, {"en": "b", "de": "c"}, {"en": None, "de": "d"}, {"en": "e", "de": "f"}]
    assert scoring.rows_to_plot([], rows, ["en", "de"]) == [1, 3, 0]
    assert scoring.rows_to_plot([2, 0], rows, ["en", "de"]) == [2, 0]
    with pytest.raises(ValueError, match="--attention_plot 2: this sentence has none of the sources en, fr"):
        scoring.rows_to_plot([2], [{**row, "fr": None} for row in rows], ["en", "fr"])
    assert scoring.rows_to_plot([], rows, ["de"]) == [1, 2, 3]
    with pytest.raises(
        SystemExit, match=r"^hf-multisource score: --attention_plot 12: there are 12 sentences, numbered"
    ):
        score.main([str(run), *OPTIONS, "--attention-plot", "12"])
    assert not (run / "scores").exists()  # nothing was decoded before


def test_score_says_before_it_starts_that_matplotlib_is_missing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "find_spec", lambda name: None)
    message = r'plots need matplotlib: run pip install "\.\[plots\]" in a clone of the repository'
    with pytest.raises(SystemExit, match=message):
        score.main([str(run), "--attention-plot"])
