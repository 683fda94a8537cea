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
import wave
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

FORMS = ("text", "picture", "sound", "features")
SUFFIXES = (".npy", ".npz", "")  # of what holds features; none: a folder
ROWS_PER_LOOK = 1024


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
        ValueError: If there is no such array in it; the message gives the file.
    """
    if path.is_dir():
        parts = sorted(part for part in path.iterdir() if part.suffix in SUFFIXES[:2])
        if not parts:
            raise ValueError(f"{path} holds no .npy or .npz")
        return list(chain.from_iterable(read_features(part) for part in parts))
    import numpy as np

    try:
        content: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: no array of numpy: {error}") from error
    if path.suffix == ".npz":
        if len(content.files) != 1:
            raise ValueError(f"{path} must hold one array, but holds {', '.join(content.files) or 'none'}")
        content = content[content.files[0]]
    if content.ndim not in (3, 4) or content.dtype.kind not in "fiu":
        raise ValueError(
            f"{path} must hold numbers (N, S, F) or maps (N, F, H, W), but holds {content.dtype} of shape "
            f"{content.shape}"
        )
    array = np.asarray(content)  # still the file; views of a plain array cost less than views of a memory map
    there = np.zeros(len(array), bool)
    for start in range(0, len(array), ROWS_PER_LOOK):
        rows = array[start : start + ROWS_PER_LOOK]
        there[start : start + ROWS_PER_LOOK] = rows[:, 0].reshape(len(rows), -1).any(axis=1)  # mostly enough
    for i in np.flatnonzero(~there):
        there[i] = array[i].any()
    return [array[i] if present else None for i, present in enumerate(there)]


def read_sound(value: Any) -> Any:
    """Read a recording.

    Args:
        value: A path, the bytes of a file, a dict of `bytes` and `path`, or one of `array` and `sampling_rate`, which
            is returned as it is. PCM files (.wav) of 16 bits are read by Python itself, all others by soundfile.

    Returns:
        A dict of `array`, samples (S,) from -1 to 1, channels averaged, and `sampling_rate`, in Hz.

    Raises:
        ValueError: If it cannot be read, has no samples, or an array no sampling rate; the message gives the file.
        ImportError: If soundfile is needed and not there.
    """
    import numpy as np

    if isinstance(value, Mapping):
        if "array" in value:
            if not len(value["array"]):
                raise ValueError("the recording has no samples")
            if value.get("sampling_rate") is None:
                raise ValueError("the recording is an array without a sampling_rate")
            return value
        value = value["path"] if value.get("bytes") is None else value["bytes"]
    place = f"a string of {len(value)} bytes" if isinstance(value, bytes) else str(value)
    try:
        content = value if isinstance(value, bytes) else Path(value).read_bytes()
    except OSError as error:
        raise ValueError(f"{place} cannot be read: {error}") from error
    try:
        with wave.open(io.BytesIO(content)) as file:
            if file.getsampwidth() != 2:
                raise wave.Error
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
            rate = file.getframerate()
        array = samples.astype(np.float32) / 32768
    except (wave.Error, EOFError, ValueError):
        try:
            import soundfile
        except ImportError as error:
            raise ImportError(f"{place} is no .wav of 16 bits, and others need soundfile") from error
        try:
            array, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
        except RuntimeError as error:
            raise ValueError(f"{place} holds no readable sound: {error}") from error
    if not len(array):
        raise ValueError(f"{place} has no samples")
    return {"array": array.mean(axis=1), "sampling_rate": rate}


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
