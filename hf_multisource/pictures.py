"""Conversion of pictures in any supported form to RGB images of Pillow."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .regular_files import read_regular

# Allowed formats of files and bytes, detected by content and not by file name. Other formats of Pillow are not allowed,
# because EPS, for instance, starts an external program (Ghostscript).
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
# Maximum size of a picture, in pixels. 64-megapixel photographs of telephones (9248 x 6944) and full-frame photographs
# of 61 megapixels fit. Decoding a picture of this size takes up to 0.8 GB. The limit can be changed by assignment.
MAX_PIXELS = 2**26
COSTLY = {"WEBP": 2}  # formats whose decoder needs more memory, with the divisor of MAX_PIXELS
MAX_BYTES_PER_PIXEL = 4  # maximum file size in bytes per pixel of MAX_PIXELS: uncompressed color with alpha channel
GRAY_STEP = 257  # 65535 / 255: divisor from 16-bit to 8-bit gray values
CHANNELS = (1, 3, 4)  # allowed numbers of channels of an array
TILE_WIDTH, TILE_LENGTH = 322, 323  # TIFF tags of the tile size; libtiff allocates the memory of a whole tile


class UnreadablePictureError(ValueError):
    """Raised for a picture that cannot be read: its file is missing, empty or damaged, or it is a folder.

    Also raised for a file of another format than `FORMATS`, more than `MAX_PIXELS` pixels, and float pixels.
    """


def read_picture(value: Any) -> Any:
    """Read a picture, rotate it according to its EXIF data, and convert it to RGB.

    16-bit gray values are scaled to 8 bits; Pillow would clip them at 255. The first of several frames is read. The
    color of transparent pixels is kept. Pictures and arrays with float pixels are rejected, because their range (0 to 1
    or 0 to 255) is not known.

    Files must be regular files. Files and bytes must have one of the `FORMATS`. The size is checked before decoding;
    the maximum `hf_multisource.pictures.MAX_PIXELS` can be changed by assignment.

    Args:
        value: A Pillow image; the path or the bytes of a file; a dict with `bytes` or `path`, as in an undecoded
            `Image` column of `datasets`; or an array of dtype uint8.

    Shape:
        Arrays (H, W), or (H, W, C) with 1, 3 or 4 channels.

    Returns:
        A new `PIL.Image.Image` of mode RGB.

    Raises:
        UnreadablePictureError: If the picture cannot be read; the message names the file, if a path is given.
        ValueError: If the value is of another type or shape; the message describes the value.
        ImportError: If Pillow is not installed.

    Example:
        >>> from hf_multisource import read_picture
        >>> read_picture("photo.jpg").size  # doctest: +SKIP
        (640, 480)
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ImportError("a source that is given as pictures needs Pillow: pip install pillow") from error
    if isinstance(value, np.ndarray):
        return Image.fromarray(_checked(value)).convert("RGB")
    place, content = _content(value)
    try:
        if isinstance(content, Image.Image):
            _check_decodable(content)
            return _rgb(ImageOps.exif_transpose(content), Image.fromarray)
        if not isinstance(content, bytes):
            content = read_regular(content, MAX_BYTES_PER_PIXEL * MAX_PIXELS)
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            _check_decodable(picture)
            ImageOps.exif_transpose(picture, in_place=True)  # a copy would double the memory
            return _rgb(picture, Image.fromarray)
    except Exception as error:  # damaged data cause any error in Pillow, even SyntaxError
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, UnreadablePictureError):
            reason = str(error)
        elif isinstance(error, UnidentifiedImageError):
            reason = f"damaged, or none of {', '.join(FORMATS)}"
        raise UnreadablePictureError(f"{place} holds no readable picture ({reason})") from error


def _content(value: Any) -> tuple[str, Any]:
    """Return a description of the picture for messages, and its content: a path, bytes, or a Pillow image."""
    if isinstance(value, Mapping):
        data, path = value.get("bytes"), value.get("path")
        if data is None and path is None:
            raise UnreadablePictureError("a dict with neither bytes nor a path holds no picture")
        if not isinstance(data, bytes | None) or not isinstance(path, str | Path | None):
            raise ValueError(
                "a dict that holds a picture must have bytes, or a path; "
                f"got {type(path if data is None else data).__name__}."
            )
        place, content = _content(path if data is None else data)
        return str(path or place), content
    if isinstance(value, bytes):
        return f"a string of {len(value)} bytes", value
    if isinstance(value, str | Path):
        return str(value), value
    if hasattr(value, "getbands"):
        return str(getattr(value, "filename", "") or "a picture of Pillow"), value
    raise ValueError(
        "a picture must be one of Pillow, a path, bytes, a dict with bytes or a path, or an array; "
        f"got {type(value).__name__}."
    )


def _checked(array: np.ndarray) -> np.ndarray:
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in CHANNELS or not array.size:
        raise ValueError(
            "a picture given as an array must be uint8 of shape (H, W) or (H, W, C) with 1, 3 or 4 channels; "
            f"got {array.dtype} of shape {array.shape}."
        )
    _check_pixels(array.shape[1], array.shape[0])
    return array[:, :, 0] if array.ndim == 3 and channels == 1 else array


def _check_decodable(picture: Any) -> None:
    """Raise UnreadablePictureError if decoding an open picture needs too much memory or Ghostscript, or is lossy."""
    width, height = picture.size
    _check_pixels(width, height, COSTLY.get(picture.format, 1))
    tags = getattr(picture, "tag_v2", {})
    _check_pixels(tags.get(TILE_WIDTH, 1), tags.get(TILE_LENGTH, 1))
    if picture.format == "EPS" and picture.tile:  # opened by the caller and not yet decoded
        raise UnreadablePictureError("EPS is not decoded: it needs Ghostscript")
    if picture.mode == "F":
        raise UnreadablePictureError("float pixels have no agreed range; convert the picture to 8 bits")


def _check_pixels(width: int, height: int, cost: int = 1) -> None:
    if width * height * cost > MAX_PIXELS:
        share = f", and such a file may have 1/{cost} of that" if cost > 1 else ""
        raise UnreadablePictureError(
            f"{width} x {height} pixels are too many: hf_multisource.pictures.MAX_PIXELS is {MAX_PIXELS:,}{share}"
        )


def _rgb(picture: Any, from_array: Any) -> Any:
    if picture.mode.startswith("I"):
        values = np.asarray(picture)
        if picture.mode == "I" and 0 < values.max(initial=0) <= 255:
            raise UnreadablePictureError("32-bit pixels up to 255 may be 8-bit values; convert to mode L or I;16")
        gray = values.clip(0, GRAY_STEP * 255) // GRAY_STEP
        return from_array(gray.astype(np.uint8)).convert("RGB")
    if "transparency" in picture.info:
        picture = picture.convert("RGBA")  # Pillow warns about direct conversion of transparent palettes to RGB
    return picture.convert("RGB")


__all__ = ["UnreadablePictureError", "read_picture"]
