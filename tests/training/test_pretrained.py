"""What a source takes from a checkpoint."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    BertConfig,
    ResNetConfig,
    TimmWrapperConfig,
    TimmWrapperModel,
    ViTConfig,
    ViTImageProcessorPil,
    Wav2Vec2Config,
)

from hf_multisource.recipes.pretrained import encoder_config, form_of, load_preprocessor, plain_image_processor
from hf_multisource.recipes.processor import wrapped_parts
from hf_multisource.recipes.recipe import DataRecipe, Recipe
from kinds import picture


def test_an_encoder_is_a_checkpoint_or_settings(tmp_path: Path) -> None:
    ResNetConfig(depths=[1, 1], hidden_sizes=[4, 6]).save_pretrained(tmp_path)
    for encoder in (str(tmp_path), {"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [4, 6]}):
        config = encoder_config(encoder)
        assert isinstance(config, ResNetConfig) and config.hidden_sizes == [4, 6]
    with pytest.raises(ValueError, match=r"encoder\.model_type must be one that Transformers has; got None"):
        encoder_config({"depths": [1]})
    with pytest.raises(ValueError, match=r"encoder '.*nowhere' is no checkpoint that AutoConfig loads"):
        encoder_config(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("config", "form"),
    [
        (BertConfig(), "text"),
        (ViTConfig(), "picture"),
        (ResNetConfig(), "picture"),
        (TimmWrapperConfig(architecture="resnet18"), "picture"),
        (Wav2Vec2Config(), "sound"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
def test_what_a_model_reads_follows_from_its_configuration(config: Any, form: str) -> None:
    assert form_of(config) == form


def test_preprocessing_is_from_a_checkpoint_or_settings(tmp_path: Path) -> None:
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    assert load_preprocessor(str(tmp_path), "picture").size["height"] == 8
    part = load_preprocessor({"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 8000}, "sound")
    assert part.sampling_rate == 8000
    with pytest.raises(ValueError, match=r"must name an image processor or feature extractor .*; got 'Nothing'"):
        load_preprocessor({"image_processor_type": "Nothing"}, "picture")
    with pytest.raises(ValueError, match=r"nowhere' has no preprocessing that AutoImageProcessor loads"):
        load_preprocessor(str(tmp_path / "nowhere"), "picture")


@pytest.mark.vision
@pytest.mark.parametrize("mode", ["center", "squash"])
def test_timms_preprocessing_becomes_one_that_can_be_saved(mode: str, tmp_path: Path) -> None:
    import timm.data as timm_data

    settings = {
        "input_size": [3, 16, 16],
        "interpolation": "bilinear",
        "crop_pct": 0.8,
        "crop_mode": mode,
        "mean": [0.5, 0.4, 0.3],
        "std": [0.5, 0.2, 0.1],
    }
    fields: dict[str, Any] = {"architecture": "resnet10t", "num_labels": 0, "pretrained_cfg": settings}
    config = TimmWrapperConfig(**fields)
    TimmWrapperModel(config).save_pretrained(tmp_path)
    part = load_preprocessor(str(tmp_path), "picture")
    part.save_pretrained(tmp_path / "plain")
    image = picture(0, 40).resize((40, 30))
    expected = timm_data.create_transform(**timm_data.resolve_data_config(settings), is_training=False)(image)
    for plain in (part, load_preprocessor(str(tmp_path / "plain"), "picture")):
        found = np.asarray(plain(image, return_tensors="np")["pixel_values"][0])
        np.testing.assert_allclose(
            found, expected.numpy(), atol=2.5 / 255 / 0.1
        )  # pixels are rounded between the steps
    with pytest.raises(ValueError, match="timm's crop_mode 'border' of 16 x 16 has no counterpart"):
        plain_image_processor({**timm_data.resolve_data_config(settings), "crop_mode": "border"})


def shared(*names: str) -> Recipe:
    """A recipe in which the first source wraps an encoder of pictures, and each other one shares that of the next."""
    wrapped = {"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [4, 6], "embedding_size": 4}
    entries: list[dict[str, Any]] = [{"name": names[0], "kind": "pretrained", "encoder": wrapped}]
    entries[0]["processor"] = {"image_processor_type": "ViTImageProcessorPil"}
    entries += [
        {"name": name, "kind": "pretrained", "share_encoder_with": other} for other, name in itertools.pairwise(names)
    ]
    return Recipe(DataRecipe("text", list(names), "cs"), model={"sources": entries})


def test_an_encoder_may_be_shared_by_one_source_after_the_other() -> None:
    recipe = shared("one", "two", "three")
    assert recipe.forms() == dict.fromkeys(("one", "two", "three"), "picture")
    assert wrapped_parts(recipe).keys() == {"one", "two", "three"}
    config = recipe.draft_config()
    assert [config.encoder_owner(name).name for name in ("one", "two", "three")] == ["one"] * 3


def test_encoders_shared_in_a_circle_are_refused() -> None:
    recipe = shared("one", "two", "three")
    recipe.model["sources"][0] = {"name": "one", "kind": "pretrained", "share_encoder_with": "three"}
    with pytest.raises(ValueError, match=r"^share_encoder_with leads in a circle: one -> three -> two -> one\.$"):
        recipe.forms()
