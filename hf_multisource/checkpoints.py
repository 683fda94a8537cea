"""What a checkpoint says of its code, and what is wrong with one that cannot be what the user meant."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from .configuration_multisource import RESERVED_NAMES
from .pipeline_multisource import TASK, MultiSourcePipeline

# Where a checkpoint finds both models of its family and the pipeline, though it is only one of them that is saved.
AUTO_MAPS = tuple(
    {
        "AutoModel": f"{module}.{prefix}Model",
        "AutoModelForSeq2SeqLM": f"{module}.{prefix}ForConditionalGeneration",
    }
    for module, prefix in (
        ("modeling_multisource", "MultiSource"),
        ("modeling_multisource_rnn", "MultiSourceRNN"),
    )
)
PIPELINES = {
    TASK: {"impl": f"pipeline_multisource.{MultiSourcePipeline.__name__}", "pt": ["AutoModelForSeq2SeqLM"]},
}
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
SOURCE_OF_KEY = re.compile(r"(?:sources|cross_attn)\.(\w+)\.")


def add_code_references(model: Any) -> None:
    """Write into a model's configuration where its code lies, if the model is one of this package itself.

    Args:
        model: The model, about to be saved.
    """
    kind = type(model)
    name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
    for places in AUTO_MAPS:
        if name in places.values():
            model.config.auto_map = {**(getattr(model.config, "auto_map", None) or {}), **places}
            model.config.custom_pipelines = copy.deepcopy(PIPELINES)  # `pipeline` writes into it


def check_sources(model: Any, report: Mapping[str, Iterable[str]], place: Any) -> None:
    """Make sure that the weights are those of the configured sources.

    Args:
        model: The loaded model.
        report: What `from_pretrained` tells with `output_loading_info`.
        place: Where it was loaded from.

    Raises:
        ValueError: If all weights of a source are missing, or some are of a source that the configuration lacks; the
            message names these sources.
    """
    names = model.config.source_names
    missing = set(report["missing_keys"])
    loaded = _sources(model.state_dict().keys() - missing - model.all_tied_weights_keys.keys())
    # Where nothing fits, Transformers' own warning will do, unless the weights are those of another such model.
    alike = loaded or any("encoder" in key or "decoder" in key for key in report["unexpected_keys"])
    lacking = _sources(missing) - loaded
    added = [name for name in names if name in lacking] if alike else []
    removed = sorted(_sources(report["unexpected_keys"]) - set(names))
    if added or removed:
        said = [f"the weights lack {', '.join(added)}"] if added else []
        said += [f"the weights have {', '.join(removed)}, too"] if removed else []
        raise ValueError(
            f"{place}: weights and configuration differ in their sources: the configuration has {', '.join(names)}; "
            f"{'; '.join(said)}. If that is meant, ignore_mismatched_sizes=True draws new weights for sources that "
            "lack them and drops those of the others."
        )


def _sources(keys: Iterable[str]) -> set[str]:
    found = (SOURCE_OF_KEY.search(key) for key in keys)
    return {match[1] for match in found if match} - RESERVED_NAMES


def damaged_weights(place: Any, error: SafetensorError) -> OSError:
    """The error to raise where safetensors' own does not say which file is damaged.

    Args:
        place: Folder or Hub id of the checkpoint.
        error: What safetensors said.

    Returns:
        An error that names the damaged files of a folder.
    """
    files = sorted(Path(place).glob("*.safetensors")) if place is not None else []
    damaged = [file.name for file in files if not _is_whole(file)]
    which = ", ".join(damaged) or "a .safetensors file"
    return OSError(f"{place}: {which} is damaged or was cut short ({error}); copy or download it again.")


def _is_whole(file: Path) -> bool:
    try:
        with safe_open(file, framework="pt"):
            return True
    except SafetensorError:
        return False


def holds_pickles_only(place: Any) -> bool:
    """Whether a folder's weights are in a format that runs code when it is read, and in no other.

    Args:
        place: Folder or Hub id of a checkpoint.

    Returns:
        False also where it is no folder.
    """
    folder = Path(place)
    return any((folder / name).exists() for name in PICKLES) and not any(folder.glob("*.safetensors"))


__all__ = ["SafetensorError", "add_code_references", "check_sources", "damaged_weights", "holds_pickles_only"]
