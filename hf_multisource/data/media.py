"""Values of sources other than text: pictures, sound, and precomputed features.

The form of a source, a name of `source_kinds.FORMS`, determines how its values are read:
    text       a text
    picture    whatever `hf_multisource.read_picture` takes: a path, bytes, a dict of `bytes` and `path`
    sound      a path or the bytes of a file, a dict of `bytes` and `path`, or one of `array` and `sampling_rate`
    features   an array (S, F), or a map (F, H, W)
`hf_multisource.register_source_kind` adds further kinds of sources.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from hf_multisource.data.files import check_expansion
from hf_multisource.regular_files import open_regular
from hf_multisource.source_kinds import FORMS, is_absent

SUFFIXES = (".npy", ".npz", "")  # suffixes of feature files; the empty suffix is a folder
ROWS_PER_LOOK = 1024


def forms_of(processor: Any) -> dict[str, str]:
    """Return the form of each source of a model.

    Args:
        processor: The `MultiSourceProcessor` of the model.

    Returns:
        Source -> name of `source_kinds.FORMS`.
    """
    return {name: processor.kind_of(name).name for name in processor.source_names}


def find_features(folder: Path, split: str, name: str) -> Path:
    """Find the file or folder with the features of a source.

    Args:
        folder: The folder of the data.
        split: Name of the split.
        name: Name of the source.

    Returns:
        `<split>.<name>.npy`, `<split>.<name>.npz`, or the folder `<split>.<name>`.

    Raises:
        FileNotFoundError: If none of these exists; the message lists them.
        ValueError: If several of these exist.
    """
    places = [folder / f"{split}.{name}{suffix}" for suffix in SUFFIXES]
    found = [path for path in places if (path.is_file() if path.suffix in SUFFIXES[:2] else path.is_dir())]
    if len(found) > 1:
        raise ValueError(f"features of {name!r} lie in {folder} more than once: {', '.join(p.name for p in found)}")
    if not found:
        partial = places[0].with_name(places[0].name + ".partial")
        hint = f"; {partial.name} is not whole: run hf-multisource precompute again" if partial.exists() else ""
        looked = f"{places[0].name}, {places[1].name}, {places[2].name}/"
        raise FileNotFoundError(f"no features of {name!r} in {folder}: looked for {looked}{hint}")
    return found[0]


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key of file names in which numbers are compared as numbers."""
    parts = re.split(r"([0-9]+)", path.name)
    return [(int(part), part) if part[:1].isascii() and part.isdigit() else (-1, part) for part in parts]


def read_features(path: Path) -> list[Any]:
    """Open features as views of a memory-mapped file; `.npz` files are loaded into memory.

    Args:
        path: A file `.npy` or `.npz` with one array, or a folder of such files, which are joined in the order of their
            names; numbers in the names are compared as numbers, so that "part2" comes before "part10".

    Shape:
        Arrays (N, S, F), or maps (N, F, H, W).

    Returns:
        One array for each row, (S, F) or (F, H, W); None for a row of zeros, which marks an absent source.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file.
        ValueError: If the file contains no such array, a dimension of its rows is empty, or an `.npz` file expands more
            than `files.check_expansion` allows. The message gives the file.
    """
    if path.is_dir():
        parts = sorted((part for part in path.iterdir() if part.suffix in SUFFIXES[:2]), key=_natural_order)
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
    array = np.asarray(content)  # shares the mapped memory; slicing a plain array is faster than slicing a memmap
    there = np.zeros(len(array), bool)
    for start in range(0, len(array), ROWS_PER_LOOK):
        rows = array[start : start + ROWS_PER_LOOK]
        there[start : start + ROWS_PER_LOOK] = rows[:, 0].reshape(len(rows), -1).any(axis=1)  # usually sufficient
    for i in np.flatnonzero(~there):
        there[i] = array[i].any()
    return [array[i] if present else None for i, present in enumerate(there)]


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Convert errors from damaged data into a ValueError that names the file."""
    try:
        yield
    except Exception as error:  # damaged data raise various errors in NumPy, including SyntaxError and TokenError
        raise ValueError(f"{path}: no array of numpy: {error}") from error


def _check_header(path: Path, stream: Any, size: int) -> None:
    """Check the header of an `.npy` file of `size` bytes before memory is allocated for the array."""
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
    """Read the array of an `.npz` file after checking its decompressed size."""
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


def find_unreadable(
    rows: Sequence[Mapping[str, Any]],
    forms: Mapping[str, str],
    title: str = "files",
    parts: Mapping[str, Any] | None = None,
) -> dict[str, dict[int, str]]:
    """Find unreadable pictures and recordings by reading each of them once.

    Args:
        rows: Rows of `data.read_split`.
        forms: Forms of the sources.
        title: Title of the progress bar.
        parts: Source -> part of the processor. Recordings must have the sampling rate of their feature extractor.

    Returns:
        Source -> index in `rows` -> reason, for values that cannot be read or have another sampling rate. Sources
        without such values are left out.
    """
    from tqdm import tqdm

    todo = [
        (i, name, row[name])
        for i, row in enumerate(rows)
        for name, form in forms.items()
        if FORMS[form].column == "files" and not is_absent(row[name])
    ]
    unreadable: dict[str, dict[int, str]] = {}
    seen: dict[tuple[str, str], str | None] = {}  # several sentences may have the same picture
    for i, name, value in tqdm(todo, desc=f"{title}: reading", unit="file", dynamic_ncols=True, disable=not todo):
        reason = seen.get((name, value)) if isinstance(value, str) else None
        if not isinstance(value, str) or (name, value) not in seen:
            try:
                FORMS[forms[name]].check_file(value, (parts or {}).get(name))
            except ValueError as error:
                reason = str(error)
            if isinstance(value, str):
                seen[name, value] = reason
        if reason is not None:
            unreadable.setdefault(name, {})[i] = reason
    return unreadable


def digest(value: Any) -> str:
    """Return a hash of an array, of bytes, or of a dict of arrays and bytes.

    Args:
        value: A value that cannot be written as JSON.

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
