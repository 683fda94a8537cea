"""Pictures, however they are given, as RGB pictures of Pillow."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

GREY_STEP = 257  # 65535 / 255: from 16 bits to 8
CHANNELS = (1, 3, 4)


class UnreadablePictureError(ValueError):
    """Where a picture should be there is none that can be read: a broken or empty file, a folder, nothing at all."""


def read_picture(value: Any) -> Any:
    """Read a picture, turn it the way up that its EXIF data say, and make it RGB.

    Grey values of 16 bits are scaled to 8, where Pillow would cut them off at 255. Of several frames the first is
    taken; where a picture is transparent, the colour underneath shows.

    Args:
        value: A picture of Pillow; the path of a file, or the bytes of one; a dict with `bytes` or `path`, as an
            `Image` column of `datasets` holds it undecoded; or an array of dtype uint8.

    Shape:
        Arrays (H, W), or (H, W, C) with 1, 3 or 4 channels.

    Returns:
        A `PIL.Image.Image` of mode RGB; never the very one that was given.

    Raises:
        UnreadablePictureError: If there is no readable picture; the message names the file, if it is one.
        ValueError: If the value is none of these; the message says what it is.
        ImportError: If Pillow is not installed.

    Example:
        >>> from hf_multisource import read_picture
        >>> read_picture("photo.jpg").size  # doctest: +SKIP
        (640, 480)
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("a source that is given as pictures needs Pillow: pip install pillow") from error
    if isinstance(value, np.ndarray):
        return Image.fromarray(_checked(value)).convert("RGB")
    place, content = _content(value)
    try:
        if isinstance(content, Image.Image):
            return _rgb(ImageOps.exif_transpose(content), Image.fromarray)
        with Image.open(content) as picture:
            return _rgb(ImageOps.exif_transpose(picture), Image.fromarray)
    except Exception as error:  # Pillow lets out whatever broken data run into, SyntaxError and struct.error included
        raise UnreadablePictureError(f"{place} holds no readable picture ({type(error).__name__}: {error})") from error


def _content(value: Any) -> tuple[str, Any]:
    """What to call the picture in messages, and what holds it: a path, a stream, or a picture of Pillow."""
    if isinstance(value, Mapping):
        data, path = value.get("bytes"), value.get("path")
        if data is None and path is None:
            raise UnreadablePictureError("a dict with neither bytes nor a path holds no picture")
        place, content = _content(path if data is None else data)
        return str(path or place), content
    if isinstance(value, bytes):
        return f"a string of {len(value)} bytes", io.BytesIO(value)
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
    return array[:, :, 0] if array.ndim == 3 and channels == 1 else array


def _rgb(picture: Any, from_array: Any) -> Any:
    if picture.mode.startswith("I"):
        grey = np.asarray(picture).clip(0, GREY_STEP * 255) // GREY_STEP
        return from_array(grey.astype(np.uint8)).convert("RGB")
    if "transparency" in picture.info:
        picture = picture.convert("RGBA")  # straight to RGB, Pillow warns of palettes with transparency
    return picture.convert("RGB")


__all__ = ["UnreadablePictureError", "read_picture"]
