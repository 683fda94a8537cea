"""The folder of sentences whose pictures are at hand, and the encoder that reads these pictures."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from hf_multisource import read_picture
from hf_multisource.data.rows import read_split
from hf_multisource.recipes.pretrained import load_preprocessor
from kinds import picture
from prepare import efficientnet_lite0, multi30k_images


def test_the_folder_has_the_lines_with_pictures_and_their_pictures(tmp_path: Path) -> None:
    text, images, out = tmp_path / "text", tmp_path / "images", tmp_path / "out"
    text.mkdir()
    images.mkdir()
    with tarfile.open(images / "val.tar", "w") as archive:
        for i, name in enumerate(["a.png", "b.png"]):
            picture(i).save(tmp_path / name)
            archive.add(tmp_path / name, name)
    (images / "index.tsv").write_text("split\tline\timage\nval\t1\ta.png\nval\t3\tb.png\n", encoding="utf-8")
    for language in multi30k_images.LANGUAGES:
        lines = "".join(f"{language} {i}\n" for i in range(4))
        (text / f"val.{language}.gz").write_bytes(gzip.compress(lines.encode()))
    multi30k_images.main(["--text", str(text), "--images", str(images), "--out", str(out)])
    rows = read_split(str(out), "val", ["en", "image"], "cs", forms={"image": "picture"}).rows
    assert [(row["en"], row["cs"]) for row in rows] == [("en 1", "cs 1"), ("en 3", "cs 3")]
    for i, row in enumerate(rows):
        assert read_picture(row["image"]).tobytes() == picture(i).tobytes()
    (text / "val.fr.gz").unlink()
    with pytest.raises(SystemExit, match=r"multi30k_images\.py: .*val\.fr\.gz"):
        multi30k_images.main(["--text", str(text), "--images", str(images), "--out", str(out)])


@pytest.mark.vision
def test_efficientnet_lite0_is_converted_and_its_preprocessing_does_not_crop(tmp_path: Path) -> None:
    import timm

    original = timm.create_model("tf_efficientnet_lite0").eval()
    old = original.state_dict()
    weights = {f"old.{i}.{name.rsplit('.', 1)[1]}": tensor for i, (name, tensor) in enumerate(old.items())}
    classifier = list(weights)[-2:]
    for new, old in zip(("_fc.weight", "_fc.bias"), classifier, strict=True):
        weights[new] = weights.pop(old)
    efficientnet_lite0.convert(weights).save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path).eval()
    pixels = load_preprocessor(str(tmp_path), "picture")(picture(0, 224), return_tensors="pt")["pixel_values"]
    expected = torch.tensor(list(picture(0, 224).tobytes())).reshape(1, 224, 224, 3).permute(0, 3, 1, 2) / 127.5 - 1
    torch.testing.assert_close(pixels, expected, rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        found = model(pixels[:, :, :64, :64]).last_hidden_state
        torch.testing.assert_close(found, original.forward_features(pixels[:, :, :64, :64]))
    del weights["_fc.bias"]
    with pytest.raises(ValueError, match="timm's model has no place for more"):
        efficientnet_lite0.convert({**weights, "more": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"x\.weight \(1,\) is not timm's conv_stem\.weight \(32, 3, 3, 3\)"):
        efficientnet_lite0.convert({"x.weight": torch.zeros(1), **weights})
