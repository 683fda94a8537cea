"""Pictures in, RGB out: however they are given, whatever their mode; and what happens when they cannot be read."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hf_multisource import pictures, read_picture
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
    ("mode", "color", "expected"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 100, (100, 100, 100)),
        ("LA", (100, 0), (100, 100, 100)),
        ("RGBA", (10, 20, 30, 0), (10, 20, 30)),
        ("RGBX", (10, 20, 30, 0), (10, 20, 30)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("YCbCr", (100, 128, 128), (100, 100, 100)),
        ("I", 100 * 257, (100, 100, 100)),
        ("I", 70_000, (255, 255, 255)),
        ("I;16", 100 * 257, (100, 100, 100)),
        ("I;16B", 65_535, (255, 255, 255)),
    ],
)
def test_every_mode_becomes_rgb(mode: str, color: Any, expected: tuple[int, int, int]) -> None:
    image = Image.new(mode, (3, 2), color)
    assert pixels(read_picture(image)).tolist() == [[list(expected)] * 3] * 2


def test_integers_that_may_be_8_bit_values_are_refused() -> None:
    """They would become black."""
    values = np.arange(256, dtype=np.int32).reshape(16, 16)
    with pytest.raises(UnreadablePictureError, match="32-bit pixels up to 255 may be 8-bit values; convert to mode L"):
        read_picture(Image.fromarray(values))
    assert pixels(read_picture(Image.fromarray(values * 0))).max() == 0
    assert pixels(read_picture(Image.fromarray(values * 257))).max() == 255


def test_palettes_give_their_colors_and_no_warning() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (saved(image), saved(image, transparency=b"\x00\xff"), saved(image, "gif")):
            assert pixels(read_picture(data)).tolist() == [[[10, 20, 30], [40, 50, 60]]]


def test_gray_values_of_16_bits_are_scaled_not_cut(tmp_path: Path) -> None:
    gray = np.array([[0, 257, 128 * 257, 65_535]], np.uint16)
    Image.fromarray(gray).save(tmp_path / "a.png")
    assert pixels(read_picture(tmp_path / "a.png"))[0, :, 0].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 3), (2, 3, 4)])
def test_arrays_have_up_to_four_channels(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    colors = array if array.ndim == 3 else array[:, :, None]
    expected = colors[:, :, :3] if colors.shape[2] >= 3 else colors.repeat(3, axis=2)
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
    frames = [Image.new("RGB", (2, 2), color) for color in ("red", "blue")]
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


# What files may be.


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n%%EOF\n"


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif", "bmp", "tiff"])
def test_the_usual_formats_are_read_whatever_the_name_of_the_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.eps"
    path.write_bytes(saved(Image.new("RGB", (8, 8), (255, 255, 255)), kind))
    assert pixels(read_picture(path)).min() > 250


def test_no_picture_starts_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    monkeypatch.setattr(subprocess, "check_call", lambda *_, **__: started.touch())
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: started.touch())
    (tmp_path / "a.png").write_bytes(EPS)
    message = r"holds no readable picture \(damaged, or none of PNG, JPEG, WEBP, GIF, BMP, TIFF\)"
    for value in (tmp_path / "a.png", EPS):
        with pytest.raises(UnreadablePictureError, match=message):
            read_picture(value)
    with Image.open(io.BytesIO(EPS)) as opened, pytest.raises(UnreadablePictureError, match="EPS is not decoded"):
        read_picture(opened)
    assert not started.exists()


def test_other_formats_are_not_read(tmp_path: Path) -> None:
    for kind in ("ppm", "ico", "tga", "pcx"):
        with pytest.raises(UnreadablePictureError, match="none of PNG"):
            read_picture(saved(picture(0, 16), kind))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_read_and_none_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(UnreadablePictureError, match=f"^{path} holds no readable picture .*is not a regular file"):
            read_picture(path)


def test_the_size_of_a_file_is_limited_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    message = r"a\.png has 1,099,511,627,776 bytes; at most 268,435,456 are read"
    with pytest.raises(UnreadablePictureError, match=message):
        read_picture(tmp_path / "a.png")


def png_header(width: int, height: int) -> bytes:
    """A PNG whose header is whole, and the pixels of which are missing."""
    data = bytearray(saved(Image.new("1", (1, 1))))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def test_the_number_of_pixels_is_limited_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        message = r"\(8193 x 8192 pixels are too many: hf_multisource\.pictures\.MAX_PIXELS is 67,108,864\)"
        with pytest.raises(UnreadablePictureError, match=message):
            read_picture(png_header(8193, 8192))
    assert before == Image.MAX_IMAGE_PIXELS
    monkeypatch.setattr(pictures, "MAX_PIXELS", 64)
    for kind in ("png", "jpeg", "gif", "bmp", "tiff"):
        assert read_picture(saved(picture(0, 8), kind)).size == (8, 8)
    with pytest.raises(UnreadablePictureError, match=r"8 x 8 pixels are too many: .* may have 1/2 of that"):
        read_picture(saved(picture(0, 8), "webp"))
    monkeypatch.setattr(pictures, "MAX_PIXELS", 63)
    values = [saved(picture(0, 8), kind) for kind in ("png", "jpeg", "gif", "bmp", "tiff")]
    for value in [*values, picture(0, 8), np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3), np.uint8)]:
        with pytest.raises(UnreadablePictureError, match="8 x 8 pixels are too many"):
            read_picture(value)


def test_a_tile_may_not_be_larger_than_a_picture() -> None:
    # Width, height, bits of a pixel, deflate, gray, one channel; sides of a tile, its place and its bytes (TIFF 6.0)
    tags = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: 9984, 323: 9984, 324: 200, 325: 8}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    data = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(100)
    with pytest.raises(UnreadablePictureError, match="9984 x 9984 pixels are too many"):
        read_picture(data)


@pytest.mark.parametrize("value", [0.5, 100.0])
def test_float_pixels_are_refused_as_their_range_is_unknown(value: float) -> None:
    image = Image.new("F", (3, 2), value)
    for given in (image, saved(image, "tiff")):
        with pytest.raises(UnreadablePictureError, match="float pixels have no agreed range; convert"):
            read_picture(given)


def test_the_memory_of_one_picture_is_limited() -> None:
    import resource

    data = saved(Image.new("1", (8192, 8192)))  # the most pixels that are allowed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(data) < 20_000
    assert read_picture(data).size == (8192, 8192)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 * 1024  # KB


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"bytes": {"bytes": b""}}, "must have bytes, or a path; got dict"),
        ({"bytes": "a.png"}, "must have bytes, or a path; got str"),
        ({"path": 3}, "must have bytes, or a path; got int"),
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
