"""Conversion of recordings in any supported form to arrays of samples."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import check_finite, to_array
from .regular_files import read_regular

MAX_SAMPLES = 2**26  # maximum number of samples of a recording, over all channels: 70 minutes at 16 kHz
MAX_SOUND_BYTES = 2**28  # maximum size of the file of a recording, in bytes: 32 bits per sample of MAX_SAMPLES
PCM, EXTENSIBLE = 1, 0xFFFE  # format codes of RIFF/WAVE files; with EXTENSIBLE the actual code is in a later field
# First bytes of files that soundfile reads; MP3 files can also begin with a frame, whose first 11 bits are set.
OTHER_SOUNDS = (b"fLaC", b"OggS", b"ID3", b"FORM", b".snd", b"caff", b"RF64", b"RIFX", b"riff", b"wvpk", b"NIST")
WAVE_FORMATS = (PCM, 2, 3, 6, 7, 0x11, 0x31, 0x55, EXTENSIBLE)  # also ADPCM, float, A-law, mu-law, GSM, MP3


def read_sound(value: Any) -> Any:
    """Read a recording.

    Args:
        value: A path, the bytes of a file, a dict of `bytes` and `path`, or a dict of `array` and `sampling_rate`,
            which is returned unchanged. 16-bit PCM files (.wav) are read by this function, all other files by
            soundfile.

    Returns:
        A dict of `array`, samples (S,) from -1 to 1, averaged over channels, and `sampling_rate`, in Hz.

    Raises:
        ValueError: If the recording cannot be read, is truncated, has more than `MAX_SAMPLES` or no samples, or has
            samples that are not finite, or if an array has no sampling rate or is not numeric; the message names the
            file.
        ImportError: If the format of the file needs soundfile, which is not installed.
    """
    if isinstance(value, Mapping) and "array" in value:
        samples = to_array(value["array"])
        if samples.dtype.kind not in "fiu":
            raise ValueError(f"the recording must be an array of numbers; got {samples.dtype}")
        if not samples.size:
            raise ValueError("the recording has no samples")
        if value.get("sampling_rate") is None:
            raise ValueError("the recording is an array without a sampling_rate")
        check_finite(samples, "the recording")
        return value
    if isinstance(value, Mapping):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if not isinstance(value, str | Path | bytes):
        raise ValueError(f"a recording must be a path, bytes, or a dict of them; got {type(value).__name__}")
    place = f"a string of {len(value)} bytes" if isinstance(value, bytes) else str(value)
    try:
        content = value if isinstance(value, bytes) else read_regular(value, MAX_SOUND_BYTES)
    except (OSError, ValueError) as error:
        raise ValueError(f"{place} cannot be read: {error}") from error
    array, rate = _parse_wave(content, place) or _read_by_soundfile(content, place)
    if not len(array):
        raise ValueError(f"{place} has no samples")
    check_finite(array, place)
    return {"array": array.mean(axis=1), "sampling_rate": rate}


def _parse_wave(content: bytes, place: str) -> tuple[Any, int] | None:
    """Return samples (S, channels) and sampling rate of a 16-bit WAV file; None if the file has another format."""
    if content[:4] != b"RIFF" or not b"WAVE".startswith(content[8:12]):
        return None
    broken = f"{place} holds no readable sound: "
    form, at = None, 12
    while True:  # for each chunk of the file
        if at + 8 > len(content):
            raise ValueError(f"{broken}the WAV file ends before its samples")
        chunk, size = struct.unpack_from("<4sI", content, at)
        at += 8
        if chunk == b"data":
            break
        if chunk == b"fmt " and size >= 16 and at + size <= len(content):
            form = struct.unpack_from("<HHIIHH", content, at)
            true = struct.unpack_from("<H", content, at + 24) if form[0] == EXTENSIBLE and size >= 26 else form[:1]
            form = (*true, *form[1:])
        at += size + size % 2
    if form is None or form[0] not in WAVE_FORMATS:
        raise ValueError(f"{broken}the WAV file does not say in which form its samples are")
    there = len(content) - at
    if there < size <= MAX_SOUND_BYTES:  # streamed files have the size 2**32 - 1, for unknown
        raise ValueError(f"{broken}the WAV file is cut off: it has {there:,} of {size:,} bytes of samples")
    kind, channels, rate, _, frame, bits = form
    if (kind, bits) != (PCM, 16):
        return None
    if channels == 0 or rate == 0 or frame != 2 * channels:
        raise ValueError(f"{broken}the WAV file has {channels} channels, {rate} Hz and {frame} bytes a frame")
    frames = min(size, there) // frame
    _check_samples(frames * channels, place)
    samples = np.frombuffer(content, "<i2", frames * channels, at).reshape(-1, channels)
    return samples.astype(np.float32) / 32768, rate


def _read_by_soundfile(content: bytes, place: str) -> tuple[Any, int]:
    """Read a recording with soundfile; return samples (S, channels) and sampling rate."""
    try:
        import soundfile
    except ImportError as error:
        is_wave = content[:4] == b"RIFF" and content[8:12] == b"WAVE"
        is_mp3 = content[:1] == b"\xff" and content[1:2] >= b"\xe0"
        if content.startswith(OTHER_SOUNDS) or is_wave or is_mp3:
            raise ImportError(f"{place} is no .wav of 16 bits, and others need soundfile") from error
        raise ValueError(f"{place} holds no readable sound: it begins like no known kind of recording") from error
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            _check_samples(file.frames * file.channels, place)
            return file.read(dtype="float32", always_2d=True), file.samplerate
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{place} holds no readable sound: {error}") from error


def _check_samples(number: int, place: str) -> None:
    if number > MAX_SAMPLES:
        raise ValueError(f"{place} has {number:,} samples; at most {MAX_SAMPLES:,} are read")


__all__ = ["read_sound"]
