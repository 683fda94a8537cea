"""Run a picture encoder once over a split, and store the features of each picture.

ENCODER is a folder or the Hub id of any `AutoModel` of pictures. DATA/<split>.<source> has one path per line, relative
to DATA; an empty line means that there is no picture. OUT/<split>.<source>.npy receives an array (N, S, F), row i for
line i: S positions (a map is taken row by row) of F features. A recipe reads it with `kind: features, feature_size: F`.

A row of zeros stands for an absent picture. A picture that cannot be read either raises an error before anything is
encoded or counts as absent. OUT/<split>.<source>.npy.json lists the unreadable rows and the settings of the array.
After an interruption, the same command continues after the last complete batch. Until the array is complete, its file
is OUT/<split>.<source>.npy.partial.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_multisource import MultiSourceConfig, read_picture
from hf_multisource.data.checks import check_at_least, check_choice
from hf_multisource.data.files import check_folder, read_lines, write_json
from hf_multisource.data.media import find_unreadable
from hf_multisource.data.rows import describe_unreadable
from hf_multisource.encoders import flatten_states, output_width
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.messages import first_line
from hf_multisource.recipes.checkpoint_files import hash_file
from hf_multisource.recipes.pretrained import encoder_config, load_encoder, load_preprocessor, resize_pictures
from hf_multisource.recipes.provenance import find_device
from hf_multisource.recipes.recipe import UNREADABLE

if TYPE_CHECKING:
    from PIL.Image import Image  # Pillow is only installed if a source is a picture

DTYPES = ("float16", "float32")
ENCODER_FILES = "encoder_sha256"  # missing in arrays of earlier versions


@dataclass(frozen=True)
class Precomputation:
    """Options of [`precompute`]: encoder, pictures and output.

    Args:
        encoder: Folder or Hub id of an `AutoModel` of pictures.
        data: Folder with `<split>.<source>`, one path per line.
        split: Name of the split.
        source: Name of the source.
        out: Folder to write to.
        batch_size: Number of pictures per batch.
        dtype: Data type of the array, one of `DTYPES`.
        device: Torch device; None: the GPU if there is one.
        image_size: Height and width, in pixels, of the pictures that the encoder reads; None: the size of its image
            processor. ResNet-50 makes maps of 7 x 7 positions from 224 pixels, and of 8 x 8 from 229.
        unreadable: Whether pictures that cannot be read are an "error" or "absent".

    Raises:
        ValueError: If a value is not allowed; the message names it.
    """

    encoder: str
    data: Path
    split: str
    source: str
    out: Path
    batch_size: int = 32
    dtype: str = "float16"
    device: str | None = None
    image_size: int | None = None
    unreadable: str = "error"

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size, image_size=self.image_size)
        check_choice(DTYPES, dtype=self.dtype)
        check_choice(UNREADABLE, unreadable=self.unreadable)
        MultiSourceConfig.check_source_names([self.source])


def fingerprint(paths: Sequence[str], args: Precomputation) -> JsonObject:
    """Return what determines the array: the options, the list of pictures, and the files of a local encoder.

    The content of the pictures, and the revision of an encoder on the Hub, are not included.
    """
    listed = hashlib.sha256("\n".join(paths).encode()).hexdigest()
    return {
        "encoder": args.encoder,
        ENCODER_FILES: _hash_folder(Path(args.encoder)),
        "image_size": args.image_size,
        "dtype": args.dtype,
        "rows": len(paths),
        "paths_sha256": listed,
    }


def _hash_folder(folder: Path) -> str | None:
    """Compute the SHA-256 of the files in a folder, without its subfolders; None if there is no such folder."""
    if not folder.is_dir():
        return None
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))
    return hashlib.sha256("\n".join(f"{path.name} {hash_file(path)}" for path in files).encode()).hexdigest()


def read_pictures(paths: Sequence[Path | None]) -> tuple[list[Image | None], list[int]]:
    """Read pictures.

    Args:
        paths: Path of each picture; None: the picture is absent.

    Returns:
        The pictures (None for an absent or unreadable picture), and the indices of the unreadable ones.
    """
    pictures: list[Image | None] = []
    unreadable = []
    for i, path in enumerate(paths):
        try:
            pictures.append(read_picture(path) if path else None)
        except ValueError:
            pictures.append(None)
            unreadable.append(i)
    return pictures, unreadable


def unreadable_pictures(args: Precomputation, paths: Sequence[str], done: int) -> list[str]:
    """Read every picture that is still to be encoded, and describe the unreadable pictures.

    Args:
        args: Options of the precomputation.
        paths: The lines of the list of pictures.
        done: Number of lines that are already encoded.

    Returns:
        Line number (counted from 1) and reason for each unreadable picture.
    """
    rows = [{args.source: str(args.data / path) if path.strip() else None} for path in paths[done:]]
    found = find_unreadable(rows, {args.source: "picture"}, args.split)
    return [f"line {done + i + 1}: {reason}" for i, reason in found.get(args.source, {}).items()]


class Encoder:
    """A picture encoder with its image processor.

    Args:
        name: Folder or Hub id.
        device: Torch device; None: the GPU if there is one.
        image_size: See [`Precomputation`].
    """

    def __init__(self, name: str, device: str | None = None, image_size: int | None = None) -> None:
        self.device = find_device(device)
        encoder_config(name)  # load the small configuration first, so that an unknown name fails fast
        processor = load_preprocessor(name, "picture")
        self.processor = resize_pictures(processor, image_size) if image_size else processor
        self.model: PreTrainedModel = load_encoder(name).to(self.device).eval()

    @torch.inference_mode()
    def __call__(self, pictures: Sequence[Image]) -> np.ndarray:
        """Encode pictures.

        Args:
            pictures: RGB pictures.

        Returns:
            An array (B, S, F) in single precision.
        """
        inputs = self.processor(list(pictures), return_tensors="pt").to(self.device, self.model.dtype)
        states = self.model(**inputs).last_hidden_state
        return flatten_states(states, output_width(self.model)).float().cpu().numpy()


def precompute(args: Precomputation) -> Path:
    """Encode all pictures into the array, continuing an interrupted call.

    Args:
        args: Options of the precomputation.

    Returns:
        Path of the array.

    Raises:
        FileExistsError: If the array exists without the file of its settings.
        ValueError: If the array was begun with other settings, or pictures cannot be read.
    """
    check_folder(args.out)
    listing = args.data / f"{args.split}.{args.source}"
    paths = read_lines(listing)
    if not paths:
        raise ValueError(f"{listing} is empty")
    whole = args.out / f"{args.split}.{args.source}.npy"
    partial, sidecar = whole.with_name(whole.name + ".partial"), whole.with_name(whole.name + ".json")
    identity = fingerprint(paths, args)
    state: JsonObject = {"settings": identity, "done": 0, "shape": None, "unreadable": []}
    if sidecar.exists():
        state |= {"settings": {}, **read_json(sidecar)}
        missing = {ENCODER_FILES: identity[ENCODER_FILES]}
        if changed := [key for key in identity if {**missing, **state["settings"]}.get(key) != identity[key]]:
            raise ValueError(
                f"{whole} was begun with another {', '.join(changed)}; move it away, or name another --out"
            )
    elif whole.exists():
        raise FileExistsError(
            f"{whole} is there without its {sidecar.name}: not made by this command; name another --out"
        )
    if whole.exists():
        return whole
    reasons = unreadable_pictures(args, paths, state["done"])
    if reasons and args.unreadable == "error":
        raise ValueError(describe_unreadable(reasons, "--unreadable absent treats them as absent"))
    if reasons:
        print(describe_unreadable(reasons, "they count as absent"), file=sys.stderr)
    encoder = Encoder(args.encoder, args.device, args.image_size)
    array = np.lib.format.open_memmap(partial, mode="r+") if state["done"] else None
    with tqdm(total=len(paths), initial=state["done"], desc=whole.name, unit="picture", dynamic_ncols=True) as bar:
        for start in range(state["done"], len(paths), args.batch_size):
            batch = [args.data / path if path.strip() else None for path in paths[start : start + args.batch_size]]
            pictures, unreadable = read_pictures(batch)
            state["unreadable"] += [start + i for i in unreadable]
            present = [i for i, picture in enumerate(pictures) if picture is not None]
            if present:
                first, last = (start + present[k] + 1 for k in (0, -1))
                lines = f"{listing}, " + (f"line {first}" if first == last else f"lines {first} to {last}")
                try:
                    states = encoder([picture for picture in pictures if picture is not None])
                except ValueError as error:
                    raise ValueError(f"{lines}: the encoder cannot read these pictures: {first_line(error)}") from error
                if array is not None and states.shape[1:] != array.shape[1:]:
                    raise ValueError(
                        f"{lines}: the encoder makes {states.shape[1]} positions of these pictures, and "
                        f"{array.shape[1]} of those before; give --image_size"
                    )
                if not np.abs(states).max() <= np.finfo(args.dtype).max:
                    raise ValueError(f"features reach {np.abs(states).max()}: too much for {args.dtype}")
                if array is None:  # the shape is known after the first batch
                    shape = (len(paths), *states.shape[1:])
                    args.out.mkdir(parents=True, exist_ok=True)
                    array = np.lib.format.open_memmap(partial, mode="w+", dtype=args.dtype, shape=shape)
                array[[start + i for i in present]] = states
                array.flush()
                # Record the progress only after the features are flushed to disk. Before the first picture, there is
                # nothing to continue.
                write_json(sidecar, {**state, "done": start + len(batch), "shape": list(array.shape)})
            bar.update(len(batch))
    if array is None:
        raise ValueError(f"{listing}: no picture can be read")
    write_json(sidecar, {**state, "done": len(paths), "shape": list(array.shape)})
    partial.replace(whole)
    return whole
