"""Pictures in, RGB out: however they are given, whatever their mode; and what happens when they cannot be read."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hf_multisource import read_picture
from hf_multisource.pictures import UnreadablePictureError
from kinds import picture


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


def saved(image: Image.Image, kind: str = "png", **settings: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()


def test_a_picture_is_the_same_however_it_is_given(tmp_path: Path) -> None:
    image = picture(0, 5)
    expected = np.asarray(image)
    path = tmp_path / "a.png"
    image.save(path)
    data = path.read_bytes()
    entries = [{"bytes": data, "path": None}, {"bytes": data, "path": "gone.png"}, {"bytes": None, "path": str(path)}]
    given: list[Any] = [image, path, str(path), data, expected, *entries, {"path": path}]
    with Image.open(path) as opened:
        for value in [*given, opened]:
            assert np.array_equal(pixels(read_picture(value)), expected)


def test_what_comes_back_is_another_picture_than_what_was_given() -> None:
    image = picture(0)
    read_picture(image).putpixel((0, 0), (1, 2, 3))
    assert np.array_equal(np.asarray(image), np.asarray(picture(0)))


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 100, (100, 100, 100)),
        ("LA", (100, 0), (100, 100, 100)),
        ("RGBA", (10, 20, 30, 0), (10, 20, 30)),
        ("RGBX", (10, 20, 30, 0), (10, 20, 30)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("YCbCr", (100, 128, 128), (100, 100, 100)),
        ("F", 100.0, (100, 100, 100)),
        ("I", 100 * 257, (100, 100, 100)),
        ("I", 70_000, (255, 255, 255)),
        ("I;16", 100 * 257, (100, 100, 100)),
        ("I;16B", 65_535, (255, 255, 255)),
    ],
)
def test_every_mode_becomes_rgb(mode: str, colour: Any, expected: tuple[int, int, int]) -> None:
    image = Image.new(mode, (3, 2), colour)
    assert pixels(read_picture(image)).tolist() == [[list(expected)] * 3] * 2


def test_palettes_give_their_colours_and_no_warning() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (saved(image), saved(image, transparency=b"\x00\xff"), saved(image, "gif")):
            assert pixels(read_picture(data)).tolist() == [[[10, 20, 30], [40, 50, 60]]]


def test_grey_values_of_16_bits_are_scaled_not_cut(tmp_path: Path) -> None:
    grey = np.array([[0, 257, 128 * 257, 65_535]], np.uint16)
    Image.fromarray(grey).save(tmp_path / "a.png")
    assert pixels(read_picture(tmp_path / "a.png"))[0, :, 0].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 3), (2, 3, 4)])
def test_arrays_have_up_to_four_channels(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    colours = array if array.ndim == 3 else array[:, :, None]
    expected = colours[:, :, :3] if colours.shape[2] >= 3 else colours.repeat(3, axis=2)
    assert np.array_equal(pixels(read_picture(array)), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_their_exif_data_say(orientation: int) -> None:
    upright = np.asarray(picture(0, 5))[:3]  # 3 high, 5 wide
    turned_back = {  # where the first row and column of what is stored lie when the picture is upright (TIFF 6.0)
        1: upright,  # top, left
        2: upright[:, ::-1],  # top, right
        3: upright[::-1, ::-1],  # bottom, right
        4: upright[::-1],  # bottom, left
        5: upright.transpose(1, 0, 2),  # left, top
        6: np.rot90(upright),  # right, top
        7: upright[::-1, ::-1].transpose(1, 0, 2),  # right, bottom
        8: np.rot90(upright, -1),  # left, bottom
    }
    exif = Image.Exif()
    exif[274] = orientation
    data = saved(Image.fromarray(np.ascontiguousarray(turned_back[orientation])), exif=exif)
    assert np.array_equal(pixels(read_picture(data)), upright)
    assert np.array_equal(pixels(read_picture(Image.open(io.BytesIO(data)))), upright)


def test_of_several_frames_the_first_is_read() -> None:
    frames = [Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    data = saved(frames[0], "gif", save_all=True, append_images=frames[1:])
    assert pixels(read_picture(data))[0, 0].tolist() == [255, 0, 0]


def broken_files(folder: Path) -> dict[str, Path]:
    """What lies in folders of pictures and is none."""
    jpeg, png = saved(picture(0, 64), "jpeg"), saved(picture(0, 64))
    contents = {
        "half.jpg": jpeg[: len(jpeg) // 2],
        "half.png": png[: len(png) // 2],
        "header.jpg": jpeg[:30],
        "empty.jpg": b"",
        "text.jpg": b"<html>404</html>",
        "damaged.png": png[:40] + bytes(50) + png[90:],
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "folder.jpg").mkdir()
    return {name: folder / name for name in [*contents, "folder.jpg", "missing.jpg"]}


@pytest.mark.parametrize(
    "name",
    ["half.jpg", "half.png", "header.jpg", "empty.jpg", "text.jpg", "damaged.png", "folder.jpg", "missing.jpg"],
)
def test_what_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    path = broken_files(tmp_path)[name]
    for value in (path, str(path), {"path": str(path)}):
        with pytest.raises(UnreadablePictureError, match=f"{name} holds no readable picture"):
            read_picture(value)
    if path.is_file():
        data = path.read_bytes()
        with pytest.raises(UnreadablePictureError, match=f"a string of {len(data)} bytes holds no readable picture"):
            read_picture(data)
        with pytest.raises(UnreadablePictureError, match=f"^{name} holds no readable picture"):
            read_picture({"bytes": data, "path": name})


def test_a_picture_of_pillow_may_turn_out_broken_as_it_is_loaded(tmp_path: Path) -> None:
    with (
        Image.open(broken_files(tmp_path)["half.jpg"]) as image,
        pytest.raises(UnreadablePictureError, match=r"half\.jpg holds no readable picture"),
    ):
        read_picture(image)


def test_paths_that_can_be_none_and_empty_dicts_hold_no_picture() -> None:
    with pytest.raises(UnreadablePictureError, match="holds no readable picture"):
        read_picture("a\0b")
    with pytest.raises(UnreadablePictureError, match="a dict with neither bytes nor a path"):
        read_picture({"bytes": None, "path": None})


def test_pictures_that_would_fill_the_memory_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(picture(0, 8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(UnreadablePictureError, match="DecompressionBombError"):
        read_picture(data)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "got int"),
        ([1, 2], "got list"),
        (np.zeros((4, 4, 3)), r"must be uint8 of shape .*; got float64 of shape \(4, 4, 3\)"),
        (np.zeros((3, 8, 8), np.uint8), r"got uint8 of shape \(3, 8, 8\)"),
        (np.zeros((0, 4, 3), np.uint8), r"got uint8 of shape \(0, 4, 3\)"),
        (np.zeros((4,), np.uint8), r"got uint8 of shape \(4,\)"),
    ],
)
def test_what_is_no_picture_at_all_is_an_error_of_another_kind(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_picture(value)
    assert not isinstance(caught.value, UnreadablePictureError)


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        read_picture("a.png")
