"""Transformers' own shared model tests, run on models of ours with three sources: `make test-shared`.

Transformers does not install its tests, but its source distribution holds them; the environment variable
TRANSFORMERS_TESTS names the folder. The distribution leaves out `tests/generation`: with a checkout of the repository
(`make test-shared TRANSFORMERS_TESTS=…/transformers/tests`) the shared tests of generation run as well; those
that look for keys and values in the cache do not fit the LSTM family.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import types
import unittest
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers.models.auto import modeling_auto

from hf_multisource import (
    COMBINERS,
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceModel,
    MultiSourceRNNConfig,
    MultiSourceRNNForConditionalGeneration,
    MultiSourceRNNModel,
)

FOLDER = Path(os.environ["TRANSFORMERS_TESTS"]).resolve()
OTHERS = {"de": 4, "fr": 5}
"""Lengths of the sources behind the first."""
HIDDEN, LAYERS, HEADS = 32, 2, 4

# The shared tests look classes up by name to learn what labels they take.
for _type, _prefix in {"multisource": "MultiSource", "multisource-rnn": "MultiSourceRNN"}.items():
    modeling_auto.MODEL_MAPPING_NAMES[_type] = f"{_prefix}Model"
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[_type] = f"{_prefix}ForConditionalGeneration"


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
        config_class: Of the family.
        fields: Of the configuration, besides the sources' names and `vocab_size`.
        sources: Their names.
    """

    batch_size = 3
    seq_length = encoder_seq_length = decoder_seq_length = key_length = 7
    vocab_size = 99
    hidden_size = HIDDEN
    num_hidden_layers = LAYERS
    num_attention_heads = HEADS
    is_training = True

    def __init__(self, config_class: Any, fields: dict[str, Any], sources: tuple[str, ...]) -> None:
        self.config_class = config_class
        self.fields = fields
        self.sources = sources

    def get_config(self) -> Any:
        """A configuration of the sizes above."""
        return self.config_class(sources=list(self.sources), vocab_size=self.vocab_size, **self.fields)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        """A configuration, and inputs of all sources."""
        inputs: dict[str, Any] = {}
        for prefix, length in {"": 7, "decoder_": 7, **{f"{name}_": OTHERS[name] for name in self.sources[1:]}}.items():
            # ids below 80: some tests shrink the vocabulary and know only of `input_ids`
            inputs[f"{prefix}input_ids"] = torch.randint(3, 80, (self.batch_size, length))
            inputs[f"{prefix}attention_mask"] = torch.ones(self.batch_size, length, dtype=torch.long)
        return self.get_config(), inputs


class SharedTests:
    """The shared tests of one model, with three sources."""

    config_class: Any
    fields: dict[str, Any]
    is_encoder_decoder = True
    test_can_init_all_missing_weights_before_2023 = True  # "before": without a copyright line that names the year
    additional_model_inputs = [f"{name}_{key}" for name in OTHERS for key in ("input_ids", "attention_mask")]

    def setUp(self) -> None:
        self.give(("en", *OTHERS))

    def give(self, sources: tuple[str, ...], **fields: Any) -> None:
        """Test with these sources, and these fields of the configuration besides the model's own."""
        self.model_tester = Tester(self.config_class, {**self.fields, **fields}, sources)

    def test_model_weights_reload_no_missing_tied_weights(self) -> None:
        """It takes all weights away, which only those who say so may do."""
        with ExitStack() as patches:
            for model in self.all_model_classes:  # type: ignore[attr-defined]
                load = functools.partial(model.from_pretrained, ignore_mismatched_sizes=True)
                patches.enter_context(mock.patch.object(model, "from_pretrained", load))
            super().test_model_weights_reload_no_missing_tied_weights()  # type: ignore[misc]


class TransformerTests(SharedTests):
    """Of the Transformer family; two of the tests, which know one key length only, with one source."""

    config_class = MultiSourceConfig
    all_model_classes = (MultiSourceModel, MultiSourceForConditionalGeneration)
    all_generative_model_classes = (MultiSourceForConditionalGeneration,)
    test_missing_keys = False  # as in the tests of every model with tied embeddings

    def test_attention_outputs(self) -> None:
        self.give(("en",))
        super().test_attention_outputs()  # type: ignore[misc]

    def test_retain_grad_hidden_states_attentions(self) -> None:
        self.give(("en",))
        super().test_retain_grad_hidden_states_attentions()  # type: ignore[misc]


class RNNTests(SharedTests):
    """Of the LSTM family."""

    config_class = MultiSourceRNNConfig
    all_model_classes = (MultiSourceRNNModel, MultiSourceRNNForConditionalGeneration)
    all_generative_model_classes = (MultiSourceRNNForConditionalGeneration,)
    has_attentions = False  # stands for self-attention in every layer

    def test_model_outputs_equivalence(self) -> None:
        self.has_attentions = True  # to the sources
        super().test_model_outputs_equivalence()  # type: ignore[misc]

    def test_inputs_embeds_matches_input_ids(self) -> None:
        self.give(("en", *OTHERS), tie_word_embeddings=True)  # the test embeds all texts with the decoder's table
        super().test_inputs_embeds_matches_input_ids()  # type: ignore[misc]

    @unittest.skip("All layers are computed in one call, which returns the states of the last alone.")
    def test_hidden_states_output(self) -> None: ...

    @unittest.skip("All layers are computed in one call, which returns the states of the last alone.")
    def test_retain_grad_hidden_states_attentions(self) -> None: ...


def define(name: str, family: type, **fields: Any) -> None:
    """Define the tests of one model, which has these fields in its configuration."""
    bases = (family, common.ModelTesterMixin, generation.GenerationTesterMixin, unittest.TestCase)
    globals()[name] = type(name, bases, {"fields": fields, "__module__": __name__})


for _name in COMBINERS:
    define(
        f"{_name.title()}Test",
        TransformerTests,
        combiner=_name,
        d_model=HIDDEN,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
    )

for _combination, _attention in [("basic", "local_p"), ("child_sum", "dot"), ("basic", "none")]:
    define(
        f"RNN{_combination.title()}{_attention.title()}Test",
        RNNTests,
        combination=_combination,
        attention=_attention,
        d_model=HIDDEN,
        num_layers=LAYERS,
    )
