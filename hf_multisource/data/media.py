"""Values of sources other than text: pictures, sound, and precomputed features.

The form of a source says how its values are read:
    text       a text
    picture    whatever `hf_multisource.read_picture` takes: a path, bytes, a dict of `bytes` and `path`
    sound      a path or the bytes of a file, a dict of `bytes` and `path`, or one of `array` and `sampling_rate`
    features   an array (S, F), or a map (F, H, W)
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from hf_multisource.collation import check_finite, to_array
from hf_multisource.data.files import check_expansion
from hf_multisource.regular_files import open_regular, read_regular

FORMS = ("text", "picture", "sound", "features")
SUFFIXES = (".npy", ".npz", "")  # of what holds features; none: a folder
ROWS_PER_LOOK = 1024
MAX_SAMPLES = 2**26  # samples of a recording, all channels together: 70 minutes at 16 kHz
MAX_SOUND_BYTES = 2**28  # bytes of the file of a recording: 32 bits for each sample
PCM, EXTENSIBLE = 1, 0xFFFE  # formats in a RIFF/WAVE file; the second names the true one further on
# How files begin that soundfile reads; MP3 also begins with a frame, of which 11 bits are set.
OTHER_SOUNDS = (b"fLaC", b"OggS", b"ID3", b"FORM", b".snd", b"caff", b"RF64", b"RIFX", b"riff", b"wvpk", b"NIST")
WAVE_FORMATS = (PCM, 2, 3, 6, 7, 0x11, 0x31, 0x55, EXTENSIBLE)  # also ADPCM, float, A-law, mu-law, GSM, MP3


def is_absent(value: Any) -> bool:
    """Return whether a value stands for an absent source.

    Args:
        value: Of a row.

    Returns:
        True for None, an empty or white text, and a dict without anything in it.
    """
    if isinstance(value, Mapping):
        return all(part is None for part in value.values())
    return value is None or (isinstance(value, str) and not value.strip())


def forms_of(processor: Any) -> dict[str, str]:
    """The forms of a model's sources.

    Args:
        processor: Its `MultiSourceProcessor`.

    Returns:
        One of `FORMS` by source.
    """
    forms = {"input_ids": "text", "pixel_values": "picture"}
    return {
        name: "features" if name in processor.feature_sources else forms.get(processor.main_input(name), "sound")
        for name in processor.source_names
    }


def rates_of(processor: Any) -> dict[str, int]:
    """The sampling rates that the feature extractors of a model's sources need.

    Args:
        processor: Its `MultiSourceProcessor`.

    Returns:
        In Hz, by source that is sound.
    """
    sounds = [name for name, form in forms_of(processor).items() if form == "sound"]
    return {name: processor.source_processors[name].sampling_rate for name in sounds}


def find_features(folder: Path, split: str, name: str) -> Path:
    """Find what holds a source's features.

    Args:
        folder: The data.
        split: Name of the split.
        name: Of the source.

    Returns:
        `<split>.<name>.npy`, `<split>.<name>.npz`, or the folder `<split>.<name>`.

    Raises:
        FileNotFoundError: If there is none of them; the message says what was looked for.
        ValueError: If there are several.
    """
    places = [folder / f"{split}.{name}{suffix}" for suffix in SUFFIXES]
    found = [path for path in places if (path.is_file() if path.suffix in SUFFIXES[:2] else path.is_dir())]
    if len(found) > 1:
        raise ValueError(f"features of {name!r} lie in {folder} more than once: {', '.join(p.name for p in found)}")
    if not found:
        partial = places[0].with_name(places[0].name + ".partial")
        hint = f"; {partial.name} is not whole: run precompute.py again" if partial.exists() else ""
        looked = f"{places[0].name}, {places[1].name}, {places[2].name}/"
        raise FileNotFoundError(f"no features of {name!r} in {folder}: looked for {looked}{hint}")
    return found[0]


def read_features(path: Path) -> list[Any]:
    """Read features, without loading them: each row is a view of the file, but for `.npz`, which lies in memory.

    Args:
        path: An array `.npy` or `.npz` (one array in it), or a folder of them, joined in the order of their names.

    Shape:
        Arrays (N, S, F), or maps (N, F, H, W).

    Returns:
        One array for each row, (S, F) or (F, H, W); None for a row of nothing but zeros, which says absent.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file.
        ValueError: If there is no such array in it, a dimension of its rows is empty, or an `.npz` grows more than
            `files.check_expansion` allows; the message gives the file.
    """
    if path.is_dir():
        parts = sorted(part for part in path.iterdir() if part.suffix in SUFFIXES[:2])
        if not parts:
            raise ValueError(f"{path} holds no .npy or .npz")
        return list(chain.from_iterable(read_features(part) for part in parts))
    import numpy as np

    with open_regular(path) as file:
        if path.suffix == ".npz":
            content = _unzip(path, file)
        else:
            _check_header(path, file, path.stat().st_size)
            with _damage_named(path):
                content = np.load(path, mmap_mode="r", allow_pickle=False)
    array = np.asarray(content)  # still the file; views of a plain array cost less than views of a memory map
    there = np.zeros(len(array), bool)
    for start in range(0, len(array), ROWS_PER_LOOK):
        rows = array[start : start + ROWS_PER_LOOK]
        there[start : start + ROWS_PER_LOOK] = rows[:, 0].reshape(len(rows), -1).any(axis=1)  # mostly enough
    for i in np.flatnonzero(~there):
        there[i] = array[i].any()
    return [array[i] if present else None for i, present in enumerate(there)]


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Name the file in errors that its damaged data cause."""
    try:
        yield
    except Exception as error:  # numpy lets out whatever damaged data run into, SyntaxError and TokenError included
        raise ValueError(f"{path}: no array of numpy: {error}") from error


def _check_header(path: Path, stream: Any, size: int) -> None:
    """Check the header of an array of `size` bytes in all, before anything is allocated for it."""
    from numpy.lib import format as npy

    with _damage_named(path):
        read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream)
    if len(shape) not in (3, 4) or dtype.kind not in "fiu":
        raise ValueError(f"{path} must hold numbers (N, S, F) or maps (N, F, H, W), but holds {dtype} of shape {shape}")
    if shape[0] < 0 or min(shape[1:]) < 1:
        raise ValueError(f"{path} has a dimension without numbers: its shape is {shape}; a row of zeros says absent")
    needed = stream.tell() + math.prod(shape) * dtype.itemsize
    if size < needed:
        raise ValueError(f"{path} is not whole: an array of shape {shape} has {needed:,} bytes, not {size:,}")


def _unzip(path: Path, file: BinaryIO) -> Any:
    """Read the array of an `.npz` file; its size is checked before anything is unpacked."""
    import numpy as np

    with _damage_named(path):
        archive = zipfile.ZipFile(file)
    members = archive.infolist()
    if len(members) != 1:
        names = ", ".join(member.filename.removesuffix(".npy") for member in members[:10])
        raise ValueError(f"{path} must hold one array, but holds {names or 'none'}")
    check_expansion(path, members[0].file_size, path.stat().st_size, "save it as .npy")
    with _damage_named(path):
        stream = archive.open(members[0])
    _check_header(path, stream, members[0].file_size)
    with _damage_named(path), archive.open(members[0]) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def read_sound(value: Any) -> Any:
    """Read a recording.

    Args:
        value: A path, the bytes of a file, a dict of `bytes` and `path`, or one of `array` and `sampling_rate`, which
            is returned as it is. PCM files (.wav) of 16 bits are read by this function, all others by soundfile.

    Returns:
        A dict of `array`, samples (S,) from -1 to 1, channels averaged, and `sampling_rate`, in Hz.

    Raises:
        ValueError: If it cannot be read, is cut off, has more than `MAX_SAMPLES`, none, or one that is not finite, or
            an array has no sampling rate or holds no numbers; the message gives the file.
        ImportError: If it begins like a recording that needs soundfile, and that is not installed.
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
    """Read a WAV file of 16 bits: its samples (S, channels) and its rate; None: it is another kind of file."""
    import numpy as np

    if content[:4] != b"RIFF" or not b"WAVE".startswith(content[8:12]):
        return None
    broken = f"{place} holds no readable sound: "
    form, at = None, 12
    while True:  # chunk by chunk
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
    if there < size <= MAX_SOUND_BYTES:  # what is written as it is recorded has an unknown size, given as 2**32 - 1
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
    """Read a recording with soundfile: its samples (S, channels) and its rate."""
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


def find_unreadable(
    rows: Sequence[Mapping[str, Any]],
    forms: Mapping[str, str],
    title: str = "files",
    rates: Mapping[str, int] | None = None,
) -> dict[str, dict[int, str]]:
    """Find the pictures and recordings that cannot be read; each is read once and not kept.

    Args:
        rows: Rows of `data.read_split`.
        forms: Of the sources.
        title: Stands before the progress bar.
        rates: Of the sources that are sound: the sampling rate, in Hz, that their recordings must have; None: any.

    Returns:
        By source that has any: the places in `rows` of those that cannot be read, or have another sampling rate, with
        the reason.
    """
    from tqdm import tqdm

    from hf_multisource import read_picture

    def read_at_its_rate(name: str, value: Any) -> None:
        rate, needed = read_sound(value)["sampling_rate"], (rates or {}).get(name)
        if needed is not None and rate != needed:
            place = value if isinstance(value, str) else "the recording"
            raise ValueError(
                f"{place} has a sampling rate of {rate} Hz, but its encoder needs {needed} Hz: resample it"
            )

    readers = {"picture": lambda name, value: read_picture(value), "sound": read_at_its_rate}
    todo = [
        (i, name, row[name])
        for i, row in enumerate(rows)
        for name, form in forms.items()
        if form in readers and not is_absent(row[name])
    ]
    unreadable: dict[str, dict[int, str]] = {}
    seen: dict[tuple[str, str], str | None] = {}  # several sentences may have the same picture
    for i, name, value in tqdm(todo, desc=f"{title}: reading", unit="file", dynamic_ncols=True, disable=not todo):
        reason = seen.get((name, value)) if isinstance(value, str) else None
        if not isinstance(value, str) or (name, value) not in seen:
            try:
                readers[forms[name]](name, value)
            except ValueError as error:
                reason = str(error)
            if isinstance(value, str):
                seen[name, value] = reason
        if reason is not None:
            unreadable.setdefault(name, {})[i] = reason
    return unreadable


def digest(value: Any) -> str:
    """Return a hash of the content of an array, of bytes, or of a dict of them.

    Args:
        value: A value that JSON cannot hold.

    Returns:
        The beginning of its SHA-256.
    """
    if isinstance(value, bytes):
        content = value
    elif isinstance(value, Mapping):
        content = json.dumps(dict(value), default=digest, sort_keys=True).encode()
    else:
        import numpy as np

        array = np.ascontiguousarray(value)
        content = f"{array.dtype} {array.shape} ".encode() + array.tobytes()
    return hashlib.sha256(content).hexdigest()[:32]
