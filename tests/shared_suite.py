"""Transformers' own shared model tests, run on models of ours with three sources: `make test-shared`.

Transformers does not install its tests, but its source distribution holds them; the environment variable
TRANSFORMERS_TESTS names the folder. The distribution leaves out `tests/generation`: with a checkout of the repository
(`make test-shared TRANSFORMERS_TESTS=…/transformers/tests`) the shared tests of generation run as well.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
import unittest
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto import modeling_auto

from hf_multisource import COMBINERS, MultiSourceConfig, MultiSourceForConditionalGeneration, MultiSourceModel

FOLDER = Path(os.environ["TRANSFORMERS_TESTS"]).resolve()
OTHERS = {"de": 4, "fr": 5}
"""Lengths of the sources behind the first."""

# The shared tests look classes up by name to learn what labels they take.
modeling_auto.MODEL_MAPPING_NAMES["multisource"] = "MultiSourceModel"
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["multisource"] = "MultiSourceForConditionalGeneration"


def load(name: str, stand_in: str) -> Any:
    """Import a module of the shared tests, or, if the folder lacks it, an empty class in its place."""
    if not (FOLDER / f"{name.replace('.', '/')}.py").exists():
        package = f"shared.{name.rpartition('.')[0]}"
        sys.modules.setdefault(package, types.ModuleType(package))
        module: Any = types.ModuleType(f"shared.{name}")
        setattr(module, stand_in, type(stand_in, (), {}))
        sys.modules[module.__name__] = module
    return importlib.import_module(f"shared.{name}")


shared = types.ModuleType("shared")
shared.__path__ = [str(FOLDER)]
sys.modules["shared"] = shared
load("exporters.test_export", "ExportTesterMixin")
generation = load("generation.test_utils", "GenerationTesterMixin")
common = importlib.import_module("shared.test_modeling_common")


class Tester:
    """What the shared tests call a model tester: sizes, a configuration, inputs.

    Args:
        combiner: Its name.
        sources: Their names.
    """

    batch_size = 3
    seq_length = encoder_seq_length = decoder_seq_length = key_length = 7
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    is_training = True

    def __init__(self, combiner: str, sources: tuple[str, ...] = ("en", *OTHERS)) -> None:
        self.combiner = combiner
        self.sources = sources

    def get_config(self) -> MultiSourceConfig:
        """A configuration of the sizes above."""
        layers, heads = self.num_hidden_layers, self.num_attention_heads
        return MultiSourceConfig(
            sources=list(self.sources),
            combiner=self.combiner,
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=37,
            decoder_ffn_dim=37,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[MultiSourceConfig, dict[str, Any]]:
        """A configuration, and inputs of all sources."""
        inputs: dict[str, Any] = {}
        for prefix, length in {"": 7, "decoder_": 7, **{f"{name}_": OTHERS[name] for name in self.sources[1:]}}.items():
            # ids below 80: some tests shrink the vocabulary and know only of `input_ids`
            inputs[f"{prefix}input_ids"] = torch.randint(3, 80, (self.batch_size, length))
            inputs[f"{prefix}attention_mask"] = torch.ones(self.batch_size, length, dtype=torch.long)
        return self.get_config(), inputs


class SharedTests:
    """The shared tests with three sources; two of them, which know one key length only, with one."""

    combiner: str
    all_model_classes = (MultiSourceModel, MultiSourceForConditionalGeneration)
    all_generative_model_classes = (MultiSourceForConditionalGeneration,)
    is_encoder_decoder = True
    test_missing_keys = False  # as in the tests of every model with tied embeddings
    additional_model_inputs = [f"{name}_{key}" for name in OTHERS for key in ("input_ids", "attention_mask")]

    def setUp(self) -> None:
        self.model_tester = Tester(self.combiner)

    def test_attention_outputs(self) -> None:
        self.model_tester = Tester(self.combiner, ("en",))
        super().test_attention_outputs()  # type: ignore[misc]

    def test_retain_grad_hidden_states_attentions(self) -> None:
        self.model_tester = Tester(self.combiner, ("en",))
        super().test_retain_grad_hidden_states_attentions()  # type: ignore[misc]


BASES = (SharedTests, common.ModelTesterMixin, generation.GenerationTesterMixin, unittest.TestCase)
for _name in COMBINERS:
    _class = f"{_name.title()}Test"
    globals()[_class] = type(_class, BASES, {"combiner": _name, "__module__": __name__})
