"""Features of pictures, kept: what they are, and that an interrupted run ends as one that was not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModel,
    BitImageProcessorPil,
    ConvNextImageProcessorPil,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTImageProcessorPil,
    ViTModel,
)
from transformers.modeling_outputs import BaseModelOutput

from hf_multisource import read_picture
from hf_multisource.cli.precompute import main
from hf_multisource.data.rows import read_split
from hf_multisource.recipes import precompute
from hf_multisource.recipes.pretrained import resize_pictures
from kinds import picture
from runs import read_json, write_lines

ROWS = 11
ABSENT, BROKEN = 4, 7
PROCESSOR = ViTImageProcessorPil(size={"height": 32, "width": 32}, image_mean=[0.5] * 3, image_std=[0.5] * 3)


class Killed(BaseException):
    """What no program catches."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("resnet")
    torch.manual_seed(3)
    ResNetModel(ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1])).save_pretrained(folder)
    PROCESSOR.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    for i in range(ROWS):
        picture(i, 20).save(folder / "images" / f"{i}.png")
    (folder / "images" / f"{BROKEN}.png").write_bytes(b"no picture")
    write_lines(folder / "train.image", ["" if i == ABSENT else f"images/{i}.png" for i in range(ROWS)])
    write_lines(folder / "train.cs", [str(i) for i in range(ROWS)])
    return folder


def command(encoder: str, data: Path, out: Path, *more: str) -> list[str]:
    given = [encoder, "--data", str(data), "--split", "train", "--source", "image", "--out", str(out)]
    return [*given, "--batch_size", "2", "--device", "cpu", "--unreadable", "absent", *more]


def test_row_i_is_the_map_of_picture_i_row_by_row_and_zeros_where_there_is_none(encoder: str, data: Path) -> None:
    main(command(encoder, data, data, "--dtype", "float32"))
    array = np.load(data / "train.image.npy")
    model = AutoModel.from_pretrained(encoder).eval()
    assert array.shape == (ROWS, 16, 6) and array.dtype == np.float32
    for i, row in enumerate(array):
        if i in (ABSENT, BROKEN):
            assert not row.any()
            continue
        inputs = PROCESSOR(read_picture(data / "images" / f"{i}.png"), return_tensors="pt")
        with torch.inference_mode():
            (states,) = model(**inputs).last_hidden_state  # F, H, W
        for place in range(16):
            np.testing.assert_allclose(row[place], states[:, place // 4, place % 4], rtol=1e-4, atol=1e-5)
    note = read_json(data / "train.image.npy.json")
    assert (note["done"], note["shape"], note["unreadable"]) == (ROWS, [ROWS, 16, 6], [BROKEN])


def test_what_it_writes_is_read_as_features_beside_the_text(encoder: str, data: Path) -> None:
    main(command(encoder, data, data))
    split = read_split(str(data), "train", ["image"], "cs", keep_all=True, forms={"image": "features"})
    assert [i for i, row in enumerate(split.rows) if row["image"] is None] == [ABSENT, BROKEN]
    assert split.rows[0]["image"].dtype == np.float16


def test_a_sequence_is_kept_as_it_is(data: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
    ViTModel(ViTConfig(**settings, intermediate_size=4, image_size=32, patch_size=16)).save_pretrained(tmp_path / "vit")
    PROCESSOR.save_pretrained(tmp_path / "vit")
    main(command(str(tmp_path / "vit"), data, tmp_path / "out"))
    assert np.load(tmp_path / "out" / "train.image.npy").shape == (ROWS, 5, 4)


def interrupt(patch: pytest.MonkeyPatch, owner: Any, name: str, calls: int, *, after: bool) -> None:
    """Have the program die before or after that many calls of a function."""
    original: Any = getattr(owner, name)
    seen: list[None] = []

    def dying(*args: Any, **kwargs: Any) -> Any:
        seen.append(None)
        if len(seen) == calls and not after:
            raise Killed
        answer = original(*args, **kwargs)
        if len(seen) == calls:
            raise Killed
        return answer

    patch.setattr(owner, name, dying)


KILLS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the first batch": lambda patch: interrupt(patch, precompute.Encoder, "__call__", 1, after=False),
    "between batches": lambda patch: interrupt(patch, precompute.Encoder, "__call__", 4, after=False),
    "with the array made, but nothing noted": lambda patch: interrupt(patch, precompute, "write_json", 1, after=False),
    "with rows written, but not noted": lambda patch: interrupt(patch, precompute, "write_json", 3, after=False),
    "right after a note": lambda patch: interrupt(patch, precompute, "write_json", 3, after=True),
    "before the array gets its name": lambda patch: interrupt(patch, Path, "replace", 1, after=False),
}


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS)
def test_an_interrupted_run_goes_on_to_the_same_array(
    kill: Callable[[pytest.MonkeyPatch], None], encoder: str, data: Path, tmp_path: Path
) -> None:
    main(command(encoder, data, tmp_path / "whole"))
    arguments = command(encoder, data, tmp_path / "out")
    with pytest.MonkeyPatch.context() as patch:
        kill(patch)
        with pytest.raises(Killed):
            main(arguments)
    assert not (tmp_path / "out" / "train.image.npy").exists()
    main(arguments)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train.image.npy", "train.image.npy.json"]
    for name in ("train.image.npy", "train.image.npy.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_is_done_is_not_done_again(encoder: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, precompute.Encoder, "__call__", 4, after=False)
        with pytest.raises(Killed):
            main(command(encoder, data, data))
    seen: list[int] = []
    encode: Any = precompute.Encoder.__call__

    def count(self: Any, pictures: list[Any]) -> Any:
        seen.append(len(pictures))
        return encode(self, pictures)

    monkeypatch.setattr(precompute.Encoder, "__call__", count)
    main(command(encoder, data, data))
    assert sum(seen) == ROWS - 6 - 1, "six rows were done, of the others one is broken"
    main(command(encoder, data, data))
    assert sum(seen) == ROWS - 6 - 1


def test_a_map_with_its_features_last_gives_the_same(encoder: str) -> None:
    """As that of a Swin of timm."""
    network = precompute.Encoder(encoder, "cpu")
    expected, forward = network([picture(0, 20)]), network.model.forward
    network.model.forward = lambda **inputs: BaseModelOutput(
        last_hidden_state=forward(**inputs).last_hidden_state.permute(0, 2, 3, 1)
    )
    assert expected.shape[2] == 6 != expected.shape[1]
    np.testing.assert_array_equal(network([picture(0, 20)]), expected)


def test_an_encoder_in_half_precision_reads_pictures(data: Path, tmp_path: Path) -> None:
    model: Any = ResNetModel(ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1]))
    model.to(torch.bfloat16)
    model.save_pretrained(tmp_path / "half")
    PROCESSOR.save_pretrained(tmp_path / "half")
    main(command(str(tmp_path / "half"), data, data))
    assert np.load(data / "train.image.npy").shape[0] == ROWS


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("1", "line 2: the encoder makes 24 positions of these pictures, and 16 of those before; give --image_size"),
        ("2", "lines 1 to 2: the encoder cannot read these pictures: "),
    ],
)
def test_pictures_of_several_shapes_are_named(size: str, message: str, data: Path, tmp_path: Path) -> None:
    """A processor that keeps the ratio of the sides makes maps of other sizes of them."""
    model = ResNetModel(ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1]))
    model.save_pretrained(tmp_path / "net")
    ViTImageProcessorPil(do_resize=False).save_pretrained(tmp_path / "net")
    for i in range(ROWS):
        Image.new("RGB", (32 if i == 0 else 48, 32)).save(data / "images" / f"{i}.png")
    with pytest.raises(SystemExit, match=message):
        main([*command(str(tmp_path / "net"), data, data), "--batch_size", size])


def test_an_encoder_that_has_changed_is_noticed(encoder: str, data: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(encoder, tmp_path / "own"))
    main(command(str(own), data, data))
    note = read_json(data / "train.image.npy.json")
    del note["settings"]["encoder_sha256"]  # as in the notes of earlier versions
    (data / "train.image.npy.json").write_text(json.dumps(note), "utf-8")
    main(command(str(own), data, data))
    ResNetModel(ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1])).save_pretrained(own)
    main(command(str(own), data, tmp_path / "new"))
    (own / "config.json").write_text((own / "config.json").read_text("utf-8") + " ", "utf-8")
    with pytest.raises(SystemExit, match="was begun with another encoder_sha256"):
        main(command(str(own), data, tmp_path / "new"))


def test_an_array_of_something_else_is_not_touched(encoder: str, data: Path, tmp_path: Path) -> None:
    main(command(encoder, data, data))
    before = (data / "train.image.npy").read_bytes()
    with pytest.raises(SystemExit, match=r"train\.image\.npy was begun with another dtype"):
        main(command(encoder, data, data, "--dtype", "float32"))
    write_lines(data / "train.image", ["images/0.png"] * ROWS)
    with pytest.raises(SystemExit, match="was begun with another paths_sha256"):
        main(command(encoder, data, data))
    (data / "train.image.npy.json").unlink()
    with pytest.raises(SystemExit, match=r"train\.image\.npy is there without its train\.image\.npy\.json"):
        main(command(encoder, data, data))
    assert (data / "train.image.npy").read_bytes() == before


def test_what_gives_no_features_is_an_error(encoder: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompute.Encoder, "__call__", lambda self, p: np.full((len(p), 2, 3), 1e6, np.float32))
    with pytest.raises(SystemExit, match=r"features reach .* too much for float16"):
        main(command(encoder, data, data))
    write_lines(data / "train.image", [""] * ROWS)
    (data / "train.image.npy.json").unlink(missing_ok=True)
    with pytest.raises(SystemExit, match=r"train\.image: no picture can be read"):
        main(command(encoder, data, data))


def test_pictures_that_cannot_be_read_are_an_error_before_any_is_encoded(
    encoder: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precompute, "Encoder", None)
    with pytest.raises(
        SystemExit, match=rf"1 files cannot be read .*line {BROKEN + 1}: .*/{BROKEN}\.png holds no read"
    ):
        main(command(encoder, data, tmp_path / "out", "--unreadable", "error"))
    assert not (tmp_path / "out").exists()


def test_absent_pictures_are_counted_and_named(encoder: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(command(encoder, data, data))
    noted = capsys.readouterr().err
    assert f"1 files cannot be read (they count as absent): line {BROKEN + 1}: " in noted


def test_larger_pictures_give_larger_maps_and_the_settings_say_so(encoder: str, data: Path, tmp_path: Path) -> None:
    for size in (32, 64):
        main(command(encoder, data, tmp_path / str(size), "--image_size", str(size)))
    main(command(encoder, data, tmp_path / "default"))
    arrays = {name: np.load(tmp_path / name / "train.image.npy") for name in ("32", "64", "default")}
    assert [array.shape for array in arrays.values()] == [(ROWS, 16, 6), (ROWS, 64, 6), (ROWS, 16, 6)]
    np.testing.assert_array_equal(arrays["32"], arrays["default"])
    assert read_json(tmp_path / "64" / "train.image.npy.json")["settings"]["image_size"] == 64
    with pytest.raises(SystemExit, match="was begun with another image_size"):
        main(command(encoder, data, tmp_path / "64"))


@pytest.mark.parametrize(
    "part",
    [
        ConvNextImageProcessorPil(size={"shortest_edge": 24}),
        BitImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 24, "width": 24}),
        ViTImageProcessorPil(size={"height": 24, "width": 24}),
    ],
    ids=lambda part: type(part).__name__,
)
def test_the_pictures_of_every_processor_can_be_resized(part: Any) -> None:
    inputs = resize_pictures(part, 58)(Image.new("RGB", (70, 90)), return_tensors="np")
    assert inputs["pixel_values"].shape == (1, 3, 58, 58)


def test_a_processor_without_a_fixed_size_is_refused() -> None:
    part = ViTImageProcessorPil(size={"shortest_edge": 24})
    with pytest.raises(ValueError, match="image_size is 58, but ViTImageProcessorPil does not make square pictures"):
        resize_pictures(part, 58)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch_size", "0"], "batch_size is 0; it must be at least 1"),
        (["--image_size", "-8"], "image_size is -8; it must be at least 1"),
        (["--dtype", "int8"], "dtype is 'int8'; allowed are float16, float32"),
        (["--unreadable", "maybe"], "unreadable is 'maybe'; allowed are error, absent"),
        (["--source", "en-US"], "source name 'en-US' must be an identifier"),
        (["--device", "abacus"], "device is 'abacus'; what PyTorch can use here is cpu"),
        (["--split", "dev"], "No such file or directory: .*dev.image"),
        (["--split", "empty"], "empty.image is empty"),
    ],
)
def test_bad_options_are_named_and_nothing_is_written(
    options: list[str], message: str, encoder: str, data: Path, tmp_path: Path
) -> None:
    (data / "empty.image").write_bytes(b"")
    with pytest.raises(SystemExit, match=f"^hf-multisource precompute: .*{message}"):
        main(command(encoder, data, tmp_path / "out", *options))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "is no checkpoint that AutoConfig loads"),
        ("preprocessor_config.json", "has no preprocessing that AutoImageProcessor loads"),
        ("model.safetensors", "is no checkpoint that AutoModel loads"),
    ],
)
@pytest.mark.parametrize("gone", [False, True], ids=["cut", "missing"])
def test_a_damaged_encoder_is_named(
    name: str, message: str, gone: bool, encoder: str, data: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(encoder, tmp_path / "damaged") / name
    damaged.unlink() if gone else damaged.write_bytes(damaged.read_bytes()[:40])
    with pytest.raises(SystemExit, match=f"/damaged' {message}"):
        main(command(str(tmp_path / "damaged"), data, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_damaged_note_beside_the_array_is_named(encoder: str, data: Path) -> None:
    note = data / "train.image.npy.json"
    note.write_text("{")
    with pytest.raises(SystemExit, match=r"train\.image\.npy\.json holds no valid JSON"):
        main(command(encoder, data, data))
    note.write_text("{}")
    with pytest.raises(SystemExit, match="was begun with another encoder"):
        main(command(encoder, data, data))
