"""Runs of train.py, score.py and translate.py with pictures and features beside the text."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import (
    ResNetConfig,
    ResNetModel,
    ViTImageProcessorPil,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
)

from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.cli import score, translate
from hf_multisource.recipes.training import train
from kills import kill_at, killed
from kinds import picture, wav_bytes
from runs import RECIPE, SAVED, WORDS, losses_of, read_json, recipe_of, same, train_at, weights_of, write_lines

LINES = {"train": 40, "dev": 8}
RESNET: dict[str, Any] = {"embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1], "layer_type": "basic"}
PROCESSOR: dict[str, Any] = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """English, which some lines lack, and as features and as a picture what the Czech sentence says."""
    text = tmp_path / "text"
    (text / "images").mkdir(parents=True)
    for split, lines in LINES.items():
        rng = random.Random(split)
        rows = [[rng.randrange(8) for _ in range(rng.randint(1, 4))] for _ in range(lines)]
        for name in ("en", "cs"):
            line = [
                "" if name == "en" and i % 5 == 0 else " ".join(WORDS[name][k] for k in row)
                for i, row in enumerate(rows)
            ]
            write_lines(text / f"{split}.{name}", line)
        features = np.stack([np.pad(np.eye(8)[row], ((0, 4 - len(row)), (0, 0))) for row in rows])
        features[1] = 0  # absent
        np.save(text / f"{split}.regions.npy", features.astype(np.float16))
        for i in range(4):
            picture(i, 20).save(text / "images" / f"{i}.png")
        paths = ["" if i == 1 else f"images/{row[0] % 4}.png" for i, row in enumerate(rows)]
        write_lines(text / f"{split}.image", paths)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    return tmp_path


@pytest.fixture
def encoder(folder: Path) -> str:
    torch.manual_seed(5)
    ResNetModel(ResNetConfig(**RESNET)).save_pretrained(folder / "encoder")
    ViTImageProcessorPil(**PROCESSOR).save_pretrained(folder / "encoder")
    return str(folder / "encoder")


def features(**more: Any) -> dict[str, Any]:
    entry = {"name": "regions", "kind": "features", "feature_size": 8}
    return {"data.sources": ["en", "regions"], "model.sources": [entry], **more}


def pictures(encoder: str, freeze: bool = True, **more: Any) -> dict[str, Any]:
    entry = {"name": "image", "kind": "pretrained", "encoder": encoder, "freeze": freeze}
    return {"data.sources": ["en", "image"], "model.sources": [entry], **more}


def scored(run: Path, *options: str) -> Any:
    """Score the dev split; returns the report."""
    score.main([str(run), "--split", "dev", *options])
    return read_json(run / "scores" / "dev.json")


def test_features_are_trained_on_scored_and_translated_with(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_at(folder, **features())
    assert "absent.regions 1" in capsys.readouterr().out
    assert weights_of(run)["model.encoder.sources.regions.projection.weight"].shape == (16, 8)
    report = scored(run, "--num_beams", "2", "--adversarial", "--draws", "2", "--absent")
    assert set(report["conditions"]) == {"all", "wrong-en", "wrong-regions", "absent-en", "absent-regions"}
    assert report["data"]["absent.regions"] == 1
    hypotheses = (run / "scores" / "dev.all.txt").read_text("utf-8")
    given = ["--en", str(folder / "text/dev.en"), "--regions", str(folder / "text/dev.regions.npy")]
    translate.main([str(run), *given, "--num_beams", "2", "--max_new_tokens", "32", "--max_length", "32"])
    assert capsys.readouterr().out.endswith(hypotheses)


def test_pictures_are_trained_on_scored_and_translated_with(
    folder: Path, encoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_at(folder, **pictures(encoder))
    pretrained = weights_of(Path(encoder))
    mark = "model.encoder.sources.image.model."
    learned = {key.removeprefix(mark): tensor for key, tensor in weights_of(run).items() if key.startswith(mark)}
    assert learned and all(torch.equal(tensor, pretrained[key]) for key, tensor in learned.items()), "frozen"
    assert not (read_json(run / "unreadable.json")["train"])
    processor = MultiSourceProcessor.from_pretrained(run)
    assert processor.main_input("image") == "pixel_values"
    report = scored(run, "--num_beams", "2", "--absent")
    assert set(report["conditions"]) == {"all", "absent-en", "absent-image"}
    hypotheses = (run / "scores" / "dev.all.txt").read_text("utf-8")
    given = ["--en", str(folder / "text/dev.en"), "--image", str(folder / "text/dev.image")]
    translate.main([str(run), *given, "--num_beams", "2", "--max_new_tokens", "32", "--max_length", "32"])
    assert capsys.readouterr().out.endswith(hypotheses)


def test_a_killed_run_with_pictures_and_their_own_rate_resumes_to_the_same_weights(folder: Path, encoder: str) -> None:
    changes = pictures(encoder, freeze=False, source_learning_rates={"image": 1e-3})
    whole = train_at(folder, "whole", **changes)
    killed(folder, lambda patch: kill_at(patch, "training_step", SAVED + 2, after=False), **changes)
    train(recipe_of(folder, **changes), resume=True)
    assert same(weights_of(folder / "run"), weights_of(whole))
    assert losses_of(folder / "run") == losses_of(whole)
    other = train_at(folder, "other", **pictures(encoder, freeze=False))
    assert not same(weights_of(other), weights_of(whole))


def test_pictures_that_cannot_be_read_stop_the_run_before_anything_is_built_or_are_absent(
    folder: Path, encoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "text/images/2.png").write_bytes(b"no picture")
    lines = (folder / "text/train.image").read_text("utf-8").splitlines()
    broken = [i for i, line in enumerate(lines) if line == "images/2.png"]
    with pytest.raises(ValueError, match=rf"files cannot be read .*: train, line {broken[0] + 1}, image: .*2\.png"):
        train_at(folder, **pictures(encoder))
    assert not (folder / "run").exists()
    run = train_at(folder, **pictures(encoder, unreadable="absent"))
    assert f"unreadable.image {len(broken)}" in capsys.readouterr().out
    assert read_json(run / "unreadable.json")["train"] == {"image": broken}
    with pytest.raises(SystemExit, match="files cannot be read"):
        scored(run, "--unreadable", "error")
    report = scored(run, "--num_beams", "1")
    assert report["data"]["unreadable.image"] > 0


def test_a_recording_at_a_wrong_rate_stops_training_scores_and_translations_before_they_begin(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, encoder = folder / "text", folder / "encoder"
    layers: dict[str, Any] = {"num_hidden_layers": 1, "conv_dim": (4, 4), "conv_kernel": (4, 2), "conv_stride": (4, 2)}
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    Wav2Vec2Model(
        Wav2Vec2Config(num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, **sizes, **layers)
    ).save_pretrained(encoder)
    Wav2Vec2FeatureExtractor(sampling_rate=8000).save_pretrained(encoder)
    for rate in (8000, 11_025):
        (text / f"{rate}.wav").write_bytes(wav_bytes(list(range(64)), rate=rate))
    for split, lines in LINES.items():
        write_lines(text / f"{split}.speech", ["8000.wav"] * (lines - 1) + ["11025.wav"])
    entry = {"name": "speech", "kind": "pretrained", "encoder": str(encoder), "freeze": True}
    changes: dict[str, Any] = {"data.sources": ["en", "speech"], "model.sources": [entry]}
    wrong = r"speech: .*11025\.wav has a sampling rate of 11025 Hz, but its encoder needs 8000 Hz"
    with pytest.raises(ValueError, match=rf"^1 files cannot be read .*: train, line 40, {wrong}"):
        train_at(folder, **changes)
    assert not (folder / "run").exists()
    run = train_at(folder, unreadable="absent", max_steps=1, save_steps=1, **changes)
    assert "unreadable.speech 1" in capsys.readouterr().out
    assert read_json(run / "unreadable.json") == {"train": {"speech": [39]}, "dev": {"speech": [7]}}
    with pytest.raises(SystemExit, match=rf"dev, line 8, {wrong}"):
        scored(run, "--unreadable", "error")
    with pytest.raises(SystemExit, match=f"line 8, {wrong}"):
        translate.main([str(run), "--en", str(text / "dev.en"), "--speech", str(text / "dev.speech")])


def test_an_encoder_of_settings_needs_a_processor_and_starts_anew(folder: Path) -> None:
    entry: dict[str, Any] = {"name": "image", "kind": "pretrained", "encoder": {"model_type": "resnet", **RESNET}}
    changes: dict[str, Any] = {"data.sources": ["en", "image"], "model.sources": [entry]}
    with pytest.raises(ValueError, match="the encoder of 'image' is no checkpoint, so give its processor, too"):
        train_at(folder, **changes)
    entry["processor"] = {"image_processor_type": "ViTImageProcessorPil", **PROCESSOR}
    run = train_at(folder, "other", **changes)
    model: Any = MultiSourceForConditionalGeneration.from_pretrained(run)
    assert model.config.get_source("image").encoder.hidden_sizes == [4, 6]
    assert json.loads((run / "config.json").read_text())["sources"][1]["encoder"]["model_type"] == "resnet"
