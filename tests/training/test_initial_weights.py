"""`model.init_from`: a training that starts from the weights of another one, perhaps with further sources."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_multisource import (
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceProcessor,
    MultiSourceRNNConfig,
)
from hf_multisource.recipes.initial_weights import begin_with, matching_weights
from hf_multisource.recipes.training import train
from hf_multisource.source_kinds import source_key
from runs import losses_of, make_folder, recipe_of, same, train_at, weights_of

ONE = {"sources": ["de"], "max_steps": 4, "save_steps": 4}
SIZES = {"d_model": 16, "vocab_size": 50, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 8}
SIZES |= {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 8}


def model_of(*names: str, seed: int = 0, **changes: Any) -> MultiSourceForConditionalGeneration:
    torch.manual_seed(seed)
    sources = changes.pop("sources", [{"name": name} for name in names])
    return MultiSourceForConditionalGeneration(MultiSourceConfig(**{**SIZES, "sources": sources, **changes})).eval()


def logits_of(model: MultiSourceForConditionalGeneration, *names: str) -> Tensor:
    """The logits of fixed texts, which depend on the name of the source."""
    texts: dict[str, Any] = {
        source_key(model.config.source_names.index(name), name, "input_ids"): torch.tensor(
            [[5 + ord(name[0]) % 7, 9, 12, 3], [4, 8, 3, 7]]
        )
        for name in names
    }
    with torch.no_grad():
        logits: Tensor = model(**texts, decoder_input_ids=torch.tensor([[1, 6, 20], [1, 30, 2]])).logits
    return logits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.mark.parametrize("order", [("de", "en"), ("en", "de")])
def test_new_gated_sources_do_not_change_the_output(tmp_path: Path, order: tuple[str, ...]) -> None:
    trained = model_of("de", seed=1)
    trained.save_pretrained(tmp_path)
    listed = [{"name": name, "gated": name == "en"} for name in order]
    model = model_of(sources=listed, combiner="gated_serial")
    facts = begin_with(model, str(tmp_path))
    torch.testing.assert_close(logits_of(model, "de", "en"), logits_of(trained, "de"))
    own = sum(parameter.numel() for parameter in model.parameters())
    encoder = model.get_parameter("model.encoder.sources.en.layers.0.feed_forward.fc1.weight")
    assert facts["parameters"] + facts["new"] == own and 0 < facts["new"] < own / 2  # type: ignore[operator]
    other = trained.get_parameter("model.encoder.sources.de.layers.0.feed_forward.fc1.weight")
    assert not torch.equal(encoder, other)


def test_sources_of_a_serial_model_need_no_gates(tmp_path: Path) -> None:
    """The order of the sources that both have is the same: the output of a serial combiner depends on it."""
    trained = model_of("de", "cs", seed=1)
    trained.save_pretrained(tmp_path)
    listed = [{"name": name, "gated": name == "en"} for name in ("de", "en", "cs")]
    model = model_of(sources=listed, combiner="gated_serial")
    begin_with(model, str(tmp_path))
    torch.testing.assert_close(logits_of(model, "de", "en", "cs"), logits_of(trained, "de", "cs"))


def test_a_trained_source_behind_a_shut_gate_is_refused(tmp_path: Path) -> None:
    """By default all sources but the first have gates: the new model would read nothing of the trained source."""
    trained = model_of("de", seed=1)
    message = r"^model\.sources\[de\]\.gated must be false: the trained model reads de without a gate"
    with pytest.raises(ValueError, match=message):
        matching_weights(model_of("en", "de", combiner="gated_serial"), trained)
    grown = model_of("cs", "de", seed=2, combiner="gated_serial")  # its gate of de has been trained
    assert matching_weights(
        model_of(
            "en",
            "de",
            "cs",
            combiner="gated_serial",
            sources=[{"name": "en", "gated": True}, {"name": "de", "gated": True}, {"name": "cs", "gated": False}],
        ),
        grown,
    )


def test_a_shared_encoder_is_that_of_the_first_source_that_both_have(tmp_path: Path) -> None:
    trained = model_of("de", "cs", seed=1)
    trained.save_pretrained(tmp_path)
    listed = [
        {"name": "en", "gated": True},
        {"name": "de", "share_encoder_with": "en", "gated": False},
        {"name": "cs", "share_encoder_with": "en", "gated": False},
    ]
    model = model_of(sources=listed, combiner="gated_serial")
    facts = begin_with(model, str(tmp_path))
    torch.testing.assert_close(logits_of(model, "en", "de"), logits_of(trained, "de"))
    gates = sum(parameter.numel() for name, parameter in model.named_parameters() if ".en.gate." in name)
    assert facts["new"] == 0 and gates > 0  # the gates are known, too: they are shut


def test_sources_are_found_by_name_and_others_are_left_out(tmp_path: Path) -> None:
    trained = model_of("fr", "de", "en", seed=1, combiner="parallel")
    trained.save_pretrained(tmp_path)
    model = model_of("en", "de", combiner="parallel")
    assert begin_with(model, str(tmp_path))["new"] == 0
    torch.testing.assert_close(logits_of(model, "en", "de"), logits_of(trained, "en", "de"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 32}, r"is 50 x 32 in this model, and 50 x 16 in the trained one"),
        ({"decoder_layers": 3}, r"it lacks model\.decoder\.layers\.2\."),
        ({"decoder_layers": 1}, r"this model has no place for its model\.decoder\.layers\.1\."),
        ({"encoder_layers": 1}, r"no place for its model\.encoder\.sources\.de\.layers\.1\."),
        ({"vocab_size": 60}, "is 60 x 16 in this model, and 50 x 16 in the trained one"),
    ],
    ids=["d_model", "more layers", "fewer layers", "fewer encoder layers", "vocab_size"],
)
def test_a_model_of_another_shape_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matching_weights(model_of("de", "en", **changes), model_of("de"))


def test_a_model_of_other_sources_is_refused() -> None:
    with pytest.raises(ValueError, match="reads de, and none of the sources en"):
        matching_weights(model_of("en"), model_of("de"))


def test_a_training_begins_with_the_weights_and_the_tokenizer_of_another(folder: Path) -> None:
    first = train_at(folder, "first", **ONE)
    more = {
        "max_steps": 2,
        "save_steps": 1,
        "model.init_from": str(first),
        "combiner": "gated_serial",
        "vocab_size": 270,
    }
    gates = [{"name": "en", "gated": True}, {"name": "de", "gated": False}]
    second = train_at(folder, "second", **more, **{"model.sources": gates})
    assert losses_of(second, 2)[1] < losses_of(first, 4)[1] - 1
    tokenizers = [MultiSourceProcessor.from_pretrained(run).tokenizer for run in (first, second)]
    assert tokenizers[0].get_vocab() == tokenizers[1].get_vocab()


def test_a_resumed_training_does_not_need_its_initial_weights(folder: Path) -> None:
    first = train_at(folder, "first", **ONE)
    settings = {"sources": ["de"], "max_steps": 2, "save_steps": 1, "model.init_from": str(first)}
    whole = train_at(folder, "whole", **settings)
    halted = shutil.copytree(whole, folder / "halted")
    for path in (halted / "checkpoint-2", halted / "train_summary.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    first.rename(folder / "away")
    train(recipe_of(folder, "halted", **settings), resume=True)
    assert same(weights_of(halted), weights_of(whole))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"d_model": 32},
            r"model\.init_from is '.*first': .* is 280 x 32 in this model, and 280 x 16 in the trained one",
        ),
        ({"tokenizer.load": "text"}, r"tokenizer\.load"),
        ({"model.init_from": "text"}, r"model\.init_from: text is no folder of a model"),
        ({"sources": ["en"]}, "reads de, and none of the sources en"),
        (
            {"sources": ["en", "de"], "combiner": "gated_serial"},
            r"'.*first': model\.sources\[de\]\.gated must be false",
        ),
        ({"model.init_from": "recurrent"}, "of model_type multisource-rnn.*; both must be of model_type multisource"),
    ],
    ids=["shape", "tokenizer", "no model", "other sources", "gate", "model_type"],
)
def test_what_does_not_fit_is_refused_before_any_text_is_read(
    trained: Path, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    MultiSourceRNNConfig(sources=["de"], vocab_size=280).save_pretrained("recurrent")
    monkeypatch.setattr("hf_multisource.recipes.training.read_data", lambda *_: pytest.fail("texts were read"))
    with pytest.raises(ValueError, match=message):
        train_at(trained, "second", **{"sources": ["de"], "model.init_from": str(trained / "first"), **changes})
    assert not (trained / "second").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("initial"))
    train_at(folder, "first", **ONE)
    return folder
