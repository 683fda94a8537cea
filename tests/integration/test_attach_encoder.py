"""A model trained on features becomes one that reads pictures, by the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ResNetConfig, ResNetModel, ViTImageProcessorPil

from builders import randomize, three_source_processor, tiny_config
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.cli import translate
from hf_multisource.cli.attach import main
from hf_multisource.recipes.pretrained import load_preprocessor


def test_the_command_gives_a_model_that_reads_pictures(tmp_path: Path) -> None:
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    network = ResNetModel(config).eval()
    network.save_pretrained(tmp_path / "network")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "network")
    reads = load_preprocessor(
        str(tmp_path / "network"), "picture"
    )  # as `precompute.py` does, with whatever backend there is
    features = MultiSourceProcessor(three_source_processor().tokenizer, ["en", "image"], feature_sources=["image"])
    sources = ["en", {"name": "image", "kind": "features", "feature_size": 12}]
    model: Any = MultiSourceForConditionalGeneration(
        tiny_config("serial", sources, vocab_size=len(features.tokenizer))
    ).eval()
    randomize(model, 1)
    model.save_pretrained(tmp_path / "run")
    features.save_pretrained(tmp_path / "run")

    command = [str(tmp_path / "run"), str(tmp_path / "network"), "--source", "image", "--out", str(tmp_path / "new")]
    main(command)
    new: Any = MultiSourceForConditionalGeneration.from_pretrained(tmp_path / "new")
    pictures = MultiSourceProcessor.from_pretrained(tmp_path / "new")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 20, 3), dtype=np.uint8))
    with torch.no_grad():
        maps = network(**reads(picture, return_tensors="pt")).last_hidden_state[0].numpy()
        expected = model(**features(en="a dog", image=maps, text_target="un chien", return_tensors="pt"))
        actual = new(**pictures(en="a dog", image=picture, text_target="un chien", return_tensors="pt"))
    torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-5, atol=1e-5)
    picture.save(tmp_path / "1.png")
    for name, line in {"en": "a dog", "image": "1.png"}.items():
        (tmp_path / f"new.{name}").write_text(f"{line}\n", "utf-8")
    given = [word for name in ("en", "image") for word in (f"--{name}", str(tmp_path / f"new.{name}"))]
    translate.main([str(tmp_path / "new"), *given, "--out", str(tmp_path / "out"), "--max_new_tokens", "3"])
    assert len((tmp_path / "out").read_text("utf-8").split("\n")) == 2, "one line, from a model without a recipe"

    with pytest.raises(SystemExit, match="is not empty"):
        main(command)
    with pytest.raises(SystemExit, match=r"sources\[en\] must be of kind 'features'"):
        main([*command[:3], "en", "--out", str(tmp_path / "other")])
    with pytest.raises(SystemExit, match="image_size is 0; it must be at least 1"):
        main([*command[:-1], str(tmp_path / "other"), "--image_size", "0"])
    main([*command[:-1], str(tmp_path / "larger"), "--image_size", "32"])
    larger = MultiSourceProcessor.from_pretrained(tmp_path / "larger")
    assert larger(image=picture, return_tensors="pt")["image_pixel_values"].shape[-2:] == (32, 32)

    (tmp_path / "run" / "tokenizer.json").unlink()
    with pytest.raises(SystemExit, match=r"run is no complete folder of a tokenizer: it has no tokenizer\.json"):
        main([*command[:-1], str(tmp_path / "other")])
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(SystemExit, match=r"run/config\.json holds no valid JSON"):
        main([*command[:-1], str(tmp_path / "other")])
    assert not (tmp_path / "other").exists()
