"""Small configurations, modules and inputs for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from hf_multisource import (
    MultiSourceForConditionalGeneration,
    MultiSourceProcessor,
    MultiSourceRNNConfig,
    MultiSourceRNNForConditionalGeneration,
    inference,
)
from hf_multisource.attention import SourceMemory
from hf_multisource.combiners import COMBINERS, Combiner, build_combiner
from hf_multisource.configuration_multisource import MultiSourceConfig
from hf_multisource.recipes.tokenization import train_tokenizer

SOURCES = ("en", "de", "fr", "es")
WIDTH, HEADS, HIERARCHICAL_HEADS = 8, 2, 4
SMALL: dict[str, Any] = {
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
"""Sizes of wrapped encoders that are named as BERT's."""


PAPER_COMBINERS = ("serial", "parallel", "flat", "hierarchical")
EXTRA = [pytest.mark.slow, pytest.mark.extra]
EVERY_COMBINER = [pytest.param(name, marks=[] if name in PAPER_COMBINERS else EXTRA) for name in COMBINERS]
"""For tests that take long: the default run has those of the paper alone."""
PAPER_FIRST = [pytest.param(name, marks=[] if name in PAPER_COMBINERS else [pytest.mark.slow]) for name in COMBINERS]
"""As `EVERY_COMBINER`, for tests of what uses the combiners; docs/compatibility.md counts the slow cases, too."""
LSTM = "lstm"
"""In place of a combiner: the other family, with a window on each source and input feeding."""


def first_is_best(layers: Sequence[nn.Module], kinds: Sequence[Any]) -> list[tuple[float, ...]]:
    """In place of `inference.measure_gains`: what is fastest must not depend on the machine that the tests run on.

    Args:
        layers: Not read.
        kinds: Kinds of layers; of `int8`, integers come first.

    Returns:
        Gains, with any number of rows.
    """
    return [(2.0,) * len(inference.BENCHMARK_ROWS), (1.5,) * len(inference.BENCHMARK_ROWS)][: len(kinds)]


def one_by_default(chosen: str) -> list[Any]:
    """All combiners, for tests that take so long that the default run has one alone.

    Args:
        chosen: Its name.

    Returns:
        Parameters.
    """
    marks = {name: [pytest.mark.slow] if name in PAPER_COMBINERS else EXTRA for name in COMBINERS}
    return [pytest.param(name, marks=[] if name == chosen else marks[name]) for name in COMBINERS]


def tiny_config(combiner: str = "serial", sources: Sequence[Any] = SOURCES[:2], **fields: Any) -> MultiSourceConfig:
    """A model of width 8 with 2 heads, 4 heads over sources, one layer everywhere, and no dropout.

    With the combiner that has gates, which sources are gated goes by their names: so it stays as it is when others are
    left out.
    """
    if combiner == "gated_serial":
        dicts = [source if isinstance(source, dict) else {"name": source} for source in sources]
        sources = [{"gated": source["name"] != SOURCES[0], **source} for source in dicts]
    tiny: dict[str, Any] = {
        "vocab_size": 16,
        "d_model": WIDTH,
        "encoder_layers": 1,
        "encoder_attention_heads": HEADS,
        "encoder_ffn_dim": 16,
        "decoder_layers": 1,
        "decoder_attention_heads": HEADS,
        "decoder_ffn_dim": 16,
        "hierarchical_heads": HIERARCHICAL_HEADS,
        "dropout": 0.0,
    }
    return MultiSourceConfig(sources=list(sources), combiner=combiner, **{**tiny, **fields})


def randomize(module: nn.Module, seed: int) -> None:
    """Draw every parameter from a normal distribution, norms and biases too, so that leaving one out shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5, generator=generator)


def join(states: Sequence[Tensor], masks: Sequence[Tensor]) -> SourceMemory:
    """Join sources, each (B, S_i, D) with its mask (B, S_i), on the time axis."""
    lengths = tuple(mask.shape[1] for mask in masks)
    return SourceMemory(torch.cat(list(states), dim=1), torch.cat(list(masks), dim=1), lengths)


@dataclass(frozen=True)
class Case:
    """What a combiner is given: its masks, and numbers that follow from the seed. Everything is float64.

    Args:
        seed: Of hidden states, encoder states and weights.
        target_length: T.
        rows: Per source, per example, one bool per state; True = real. A row without True is an absent source.
    """

    seed: int
    target_length: int
    rows: tuple[tuple[tuple[bool, ...], ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """One name per source."""
        return SOURCES[: len(self.rows)]

    def masks(self) -> list[Tensor]:
        """(B, S_i) per source."""
        return [torch.tensor(source, dtype=torch.bool).view(len(source), -1) for source in self.rows]

    def hidden_states(self) -> Tensor:
        """(B, T, D)."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(len(self.rows[0]), self.target_length, WIDTH, generator=generator, dtype=torch.float64)

    def states(self) -> list[Tensor]:
        """(B, S_i, D) per source."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        return [torch.randn(*mask.shape, WIDTH, generator=generator, dtype=torch.float64) for mask in self.masks()]

    def memory(self) -> SourceMemory:
        """States and masks, joined."""
        return join(self.states(), self.masks())

    def combiner(
        self, name: str, norm_position: str, *, sources: Sequence[Any] = (), attention: str = "eager", **fields: Any
    ) -> Combiner:
        """A combiner in evaluation mode, for the case's sources or the given ones."""
        config = tiny_config(name, sources or self.names, norm_position=norm_position, **fields)
        config._attn_implementation = attention
        combiner = build_combiner(config, 0).double().eval()
        randomize(combiner, self.seed + 2)
        return combiner


MIXED = Case(
    0,
    3,
    (
        ((True, True, False), (False,) * 3, (False,) * 3),
        ((), (), ()),
        ((True,), (True,), (False,)),
        ((True, False, True), (False, True, True), (False,) * 3),
    ),
)
"""Three examples: with holes in their masks, without source 0, and without any source; all of them without source 1."""


@st.composite
def cases(draw: st.DrawFn, min_sources: int = 1, max_sources: int = 4, all_present: bool = False) -> Case:
    """Draw up to 3 examples of up to 4 sources of up to 4 states, under any mask: with holes, or empty."""
    batch = draw(st.integers(1, 3))
    rows = []
    for _ in range(draw(st.sampled_from(range(min_sources, max_sources + 1)))):
        length = draw(st.integers(int(all_present), 4))
        bits = [draw(st.integers(int(all_present), 2**length - 1)) for _ in range(batch)]
        rows.append(tuple(tuple(bool(row >> k & 1) for k in range(length)) for row in bits))
    return Case(draw(st.integers(0, 10_000)), draw(st.integers(1, 4)), tuple(rows))


NAMES = ("en", "de", "fr")
ROWS = {
    "en": [[4, 5, 6, 1], [7, 1], [], [8, 9, 1], [4, 10, 1]],
    "de": [[11, 1], [], [12, 13, 1], [14, 4, 1], []],
    "fr": [[5, 7, 9, 11, 1], [6, 1], [], [], []],
}
"""Token ids of five examples; [] is an absent source."""
END = 1


def three_source_model(combiner: str = "serial", **fields: Any) -> Any:
    """A random model that listens to its sources and ends its sentences now and then.

    Any, since Transformers' types let no class of others call `generate`.
    """
    if combiner == LSTM:
        return three_source_lstm(**fields)
    defaults = {
        "sources": NAMES,
        "d_model": 16,
        "decoder_layers": 2,
        "final_logits_bias": True,
        "tie_word_embeddings": False,
    }
    model = MultiSourceForConditionalGeneration(tiny_config(combiner, **{**defaults, **fields})).eval()
    randomize(model, 3 if combiner == "weighted_sum" else 2)  # with 2, that one says nothing at all with post-norm
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name:  # near the identity: a random last norm would outshout the sources
                parameter.mul_(0.2).add_(name.endswith("weight"))
            elif "cross_attn" in name:
                parameter.mul_(2.5)
    say_real_words(model)
    return model


def three_source_lstm(decoder_layers: int = 2, norm_position: str = "", **fields: Any) -> Any:
    """The same of the other family, which has no norm, and as many layers everywhere."""
    defaults = {
        "sources": NAMES,
        "vocab_size": 16,
        "d_model": 16,
        "dropout": 0.0,
        "window": 2,
        "final_logits_bias": True,
    }
    config = MultiSourceRNNConfig(num_layers=decoder_layers, **{**defaults, **fields})
    model: Any = MultiSourceRNNForConditionalGeneration(config).eval()
    randomize(model, 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lm_head" in name or "tokens" in name:  # what comes out of a tanh is small
                parameter.mul_(4.0)
    say_real_words(model)
    return model


def say_real_words(model: Any) -> None:
    """End sentences now and then, and say neither padding nor another start."""
    model.final_logits_bias[:, END] = 2.0
    model.final_logits_bias[:, [0, 2]] = -30.0


def three_source_batch(names: Sequence[str] = NAMES, examples: Sequence[int] = range(5)) -> dict[str, Tensor]:
    """Inputs of the named sources, junk under zero masks; no keyword for a source that all examples lack."""
    inputs = {}
    for name in names:
        rows = [ROWS[name][example] for example in examples]
        longest = max(map(len, rows))
        if longest:
            prefix = "" if name == "en" else f"{name}_"
            inputs[f"{prefix}input_ids"] = torch.tensor([row + [9] * (longest - len(row)) for row in rows])
            inputs[f"{prefix}attention_mask"] = torch.tensor(
                [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
            )
    return inputs


TEXTS: list[dict[str, str | None]] = [
    {"en": "a dog runs", "de": "ein Hund rennt", "fr": "un chien court"},
    {"en": "a dog", "de": None, "fr": ""},
    {"de": "ein Hund"},
    {"en": None, "de": None, "fr": "un chien court et court"},
    {"fr": "un", "en": "a dog"},
]
"""Five examples as users write them: a source may be None, empty or left out."""


@cache
def three_source_processor() -> MultiSourceProcessor:
    """A shared tokenizer, and one of French's own."""
    texts = [text for example in TEXTS for text in example.values() if text]
    own = {"fr": train_tokenizer(texts, "bpe", 264)}
    return MultiSourceProcessor(train_tokenizer(texts, "bpe", 270), NAMES, own)
