"""Average the weights of several checkpoints into one model."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers.utils import PROCESSOR_NAME

from hf_multisource.data.checks import check_at_least
from hf_multisource.data.files import check_new_folder, write_json
from hf_multisource.messages import shown
from hf_multisource.recipes.checkpoint_files import MARKER, find_change, find_checkpoints, hash_file
from hf_multisource.recipes.pretrained import load_config, load_processor, load_saved_model
from hf_multisource.recipes.processor import contents_of
from hf_multisource.recipes.schema import CATALOGUES
from hf_multisource.recipes.shipped import RECIPE

AVERAGE = "average.json"
#: Files of a run that are copied, besides its processor, and the folder `catalogues` with its rows.
RUN_FILES = (
    *(RECIPE, "versions.json", "train_summary.json", "trainer_state.json", "unreadable.json"),
    "placeholders.json",
)
#: Keys of a configuration about the saved file, which do not describe the model.
ABOUT_THE_FILE = {"_name_or_path", "architectures", "auto_map", "dtype", "transformers_version"}


def average_weights(states: Iterable[tuple[str, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Compute the mean of the weights of several models, parameter by parameter.

    Sums are computed in float64. Integer tensors, such as counters, are not averaged and must be equal.

    Args:
        states: Name and state dict of each model; at least one. They are read one at a time.

    Returns:
        The mean, in the dtypes of the first model.

    Raises:
        ValueError: If the models differ in parameters, shapes or integer tensors; the message names the parameter and
            both models.
    """
    sums: dict[str, Tensor] = {}
    first: dict[str, Tensor] = {}
    origin, count = "", 0
    for place, state in states:
        count += 1
        if count == 1:
            origin, first = place, dict(state)
            sums = {name: tensor.double() for name, tensor in state.items() if tensor.is_floating_point()}
            continue
        for name, tensor in first.items():
            if name not in state:
                raise ValueError(f"{name} is missing in {place}; it is in {origin}")
            other = state[name]
            if other.shape != tensor.shape:
                raise ValueError(
                    f"{name} has the shape {list(tensor.shape)} in {origin}, {list(other.shape)} in {place}"
                )
            if name in sums:
                sums[name] = sums[name] + other.double()
            elif not torch.equal(tensor, other):
                raise ValueError(f"{name} holds integers, which are not those of {origin} in {place}")
        if added := state.keys() - first.keys():
            raise ValueError(f"{min(added)} is in {place} and not in {origin}")
    return {
        name: (sums[name] / count).to(tensor.dtype) if name in sums else tensor.clone()
        for name, tensor in first.items()
    }


def average_checkpoints(folders: Sequence[Path], out: Path, last: int | None = None) -> list[Path]:
    """Average checkpoints and save the result as a model folder that can be loaded, scored and published.

    The processor, the recipe, the training records and the rows of catalogues are copied from the run. `average.json`
    lists the checkpoints with the hashes of their weights.

    Args:
        folders: Either one run folder, whose checkpoints are averaged, or at least two model folders.
        out: Folder to write to, new or empty.
        last: Number of most recent checkpoints to average; None: all checkpoints that the run kept.

    Returns:
        The folders that were averaged.

    Raises:
        FileExistsError: If `out` is not empty.
        ValueError: If there are not enough checkpoints, one is damaged, or they differ in the architecture, tokenizers
            or preprocessors; the message names the folder and the key or the parameter.
    """
    check_at_least(2, last=last)
    check_new_folder(out)
    if last is not None and len(folders) > 1:
        raise ValueError(f"--last belongs to the checkpoints of one run; got {len(folders)} folders")
    members = list(folders) if len(folders) > 1 else kept_checkpoints(folders[0], last)
    configs = [load_config(str(member)).to_dict() for member in members]
    for member, config in zip(members, configs, strict=True):
        if (member / MARKER).is_file() and (change := find_change(member)) is not None:
            raise ValueError(f"{member}: {change}")
        for key in sorted((config.keys() | configs[0].keys()) - ABOUT_THE_FILE):
            one, other = configs[0].get(key), config.get(key)
            if one != other:
                raise ValueError(
                    f"{key} is {shown(one)} in {members[0].name}, {shown(other)} in {member.name}: only checkpoints of "
                    "one configuration can be averaged"
                )
    home = _home(members[0])
    processor = load_processor(str(home))
    contents = contents_of(home, processor)
    for other in dict.fromkeys(map(_home, members[1:])):
        if (other / PROCESSOR_NAME).is_file() and contents_of(other, load_processor(str(other))) != contents:
            raise ValueError(
                f"the tokenizers or preprocessors of {other} are not those of {home}: only checkpoints of one "
                "vocabulary can be averaged"
            )
    model = load_saved_model(members[0])
    model.load_state_dict(average_weights(_states(members)))
    model.save_pretrained(out)
    processor.save_pretrained(out)
    for name in RUN_FILES:
        if (home / name).is_file():
            shutil.copy(home / name, out / name)
    if (home / CATALOGUES).is_dir():
        shutil.copytree(home / CATALOGUES, out / CATALOGUES)
    hashes = [{path.name: hash_file(path) for path in sorted(member.glob("*.safetensors"))} for member in members]
    write_json(out / AVERAGE, {"members": [member.name for member in members], "sha256": hashes})
    return members


def kept_checkpoints(run: Path, last: int | None) -> list[Path]:
    """Find the checkpoints of a run to average, and print which checkpoints are skipped because they are damaged.

    Args:
        run: The run's folder.
        last: See [`average_checkpoints`].

    Returns:
        The checkpoints in the order of their updates.

    Raises:
        ValueError: If there are fewer than two, or fewer than `last`.
    """
    whole, faults = find_checkpoints(run)
    for path, fault in faults.items():
        print(f"{path.name} is left out: {fault}", flush=True)
    if last is not None and len(whole) < last:
        raise ValueError(f"--last is {last}; {run} has {len(whole)} complete checkpoints (training.save_total_limit)")
    if len(whole) < 2:
        raise ValueError(
            f"{run} has {len(whole)} complete checkpoints; an average needs two (training.save_total_limit)"
        )
    return whole if last is None else whole[-last:]


def _home(folder: Path) -> Path:
    """Return the folder that holds the processor of a model; for a checkpoint, the folder of its run."""
    return folder.parent if (folder / MARKER).is_file() else folder


def _states(folders: Sequence[Path]) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    for folder in folders:
        yield folder.name, load_saved_model(folder).state_dict()
