"""Checks of the weights of a loaded checkpoint: sources, shapes, finite values, damaged files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .configuration_multisource import RESERVED_NAMES

FEW = 3  # maximum number of names that an error message lists as examples
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # dtypes with a norm; float8 has none
# Pattern that extracts the name of the source from the name of a parameter.
SOURCE_OF_KEY = re.compile(r"(?:sources|absent_vectors|cross_attn)\.(\w+)\.")


def check_sources(model: Any, report: Mapping[str, Iterable[str]], place: Any) -> None:
    """Check that the checkpoint has weights of exactly the configured sources.

    Args:
        model: The loaded model.
        report: Loading info of `from_pretrained` (`output_loading_info`).
        place: Folder or Hub id of the checkpoint.

    Raises:
        ValueError: If all weights of a source are missing, or weights belong to a source that the configuration lacks;
            the message names these sources.
    """
    names = model.config.source_names
    missing = set(report["missing_keys"])
    loaded = _sources(model.state_dict().keys() - missing - model.all_tied_weights_keys.keys())
    # If no weight matches, Transformers' warning suffices, unless the weights belong to another encoder-decoder.
    alike = loaded or any("encoder" in key or "decoder" in key for key in report["unexpected_keys"])
    lacking = _sources(missing) - loaded
    added = [name for name in names if name in lacking] if alike else []
    removed = sorted(_sources(report["unexpected_keys"]) - set(names))
    if added or removed:
        said = [f"the weights lack {', '.join(added)}"] if added else []
        said += [f"the weights have {', '.join(removed)}, too"] if removed else []
        raise ValueError(
            f"{place}: weights and configuration differ in their sources: the configuration has {', '.join(names)}; "
            f"{'; '.join(said)}. If that is meant, ignore_mismatched_sizes=True initializes the weights of sources "
            "that lack them randomly, and drops those of the others."
        )


def check_weights(model: Any, report: Mapping[str, Iterable[Any]], place: Any) -> None:
    """Check that a checkpoint has all weights of its configuration in the right shapes.

    The output layer (`lm_head`, `final_logits_bias`) may be missing in the checkpoint of a model without output layer.

    Args:
        model: The loaded model.
        report: Loading info of `from_pretrained` (`output_loading_info`).
        place: Folder or Hub id of the checkpoint.

    Raises:
        ValueError: If weights are missing or have other shapes; the message gives their number and some names.
    """
    missing = set(report["missing_keys"])
    if type(model).__name__ not in (model.config.architectures or ()):
        missing = {key for key in missing if key.startswith(f"{model.base_model_prefix}.") or not _has_head(model)}
    wrong = sorted(report["mismatched_keys"])
    said = [f"{len(missing)} weights are missing ({_some(sorted(missing))})"] if missing else []
    if wrong:
        shapes = [f"{key} {list(there)} in place of {list(wanted)}" for key, there, wanted in wrong]
        said.append(f"{len(wrong)} weights have other shapes ({_some(shapes)})")
    if said:
        raise ValueError(
            f"{place}: its weights are not those of its configuration: {'; '.join(said)}. If that is meant, "
            "ignore_mismatched_sizes=True initializes them randomly."
        )


def _has_head(model: Any) -> bool:
    return hasattr(model, model.base_model_prefix)


def _some(names: list[str]) -> str:
    return ", ".join([*names[:FEW], "…"] if len(names) > FEW else names)


def check_finite_weights(model: Any, place: Any) -> None:
    """Check that no weight of a loaded model is NaN or infinite.

    Tensors without data (on the meta device) and tensors of quantized or distributed layers are not checked.

    Args:
        model: The loaded model.
        place: Folder or Hub id of the checkpoint.

    Raises:
        ValueError: If a weight is NaN or infinite; the message names the tensor.
    """
    saved = model.state_dict().keys()
    buffers = ((name, buffer) for name, buffer in model.named_buffers() if name in saved)
    weights = {
        name: tensor.detach()
        for name, tensor in (*model.named_parameters(), *buffers)
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_meta and tensor.dtype in FLOATS
    }
    # A finite norm over all weights proves that each weight is finite, and is much cheaper than `isfinite`, which
    # writes a mask. The norm of finite weights may overflow; then the tensors are examined one by one.
    if torch.nn.utils.get_total_norm(weights.values()).isfinite():
        return
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{place}: its weight {name} holds NaN or infinite values; the checkpoint is damaged.")


def _sources(keys: Iterable[str]) -> set[str]:
    found = (SOURCE_OF_KEY.search(key) for key in keys)
    return {match[1] for match in found if match} - RESERVED_NAMES


def damaged_weights(place: Any, error: SafetensorError) -> OSError:
    """Return an error that names the damaged files of a checkpoint, unlike the error of safetensors.

    Args:
        place: Folder or Hub id of the checkpoint.
        error: The error of safetensors.

    Returns:
        The error; it names the damaged files if `place` is a folder.
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


__all__ = [
    "SafetensorError",
    "check_finite_weights",
    "check_sources",
    "check_weights",
    "damaged_weights",
]
