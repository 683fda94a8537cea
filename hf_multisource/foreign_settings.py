"""Checks of settings of Transformers objects, and removal of their references to code and repositories."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig

from .messages import shown, shown_key

# Keys that refer to code, or to the folder or repository that an object was loaded from.
REFERENCES = ("auto_map", "custom_pipelines", "_auto_map", "_name_or_path", "name_or_path", "_commit_hash")
# Keys whose value can name a Hub repository with a kernel that computes attention or experts.
KERNEL_KEYS = ("attn_implementation", "experts_implementation")
# Pattern of strings from which timm's `create_model` loads a configuration or weights.
ADDRESS = re.compile(r"(hf[-_]hub|local-dir)\s*:", re.IGNORECASE)
PLAIN_NAME = re.compile(r"\w[\w.\-]*")  # pattern of names of timm architectures
# Suffixes of file names that `transformers_weights` may have.
SAFE_WEIGHTS = (".safetensors", ".safetensors.index.json")


def check_keys(what: str, given: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Check that a mapping has allowed keys only.

    Args:
        what: Description of the mapping, for the message.
        given: The mapping.
        allowed: The allowed keys.

    Raises:
        ValueError: If a key is not allowed; the message names the key and lists the allowed keys.
    """
    for name in given:
        if name not in allowed:
            raise ValueError(f"{what} can set {', '.join(allowed)}; got {name!r}.")


def check_settings(settings: Any, place: str = "") -> None:
    """Check that no setting of a configuration causes loading of files or pickles, or contacts the Hub.

    Args:
        settings: The configuration as a dict, with sub-configurations at any depth.
        place: Prefix of the message, before the path of the key.

    Raises:
        ValueError: If a setting is not allowed; the message gives its path and value.
    """
    for path, key, value, holder in walk_settings(settings):
        if reason := _reason_against(key, value, holder):
            raise ValueError(f"{place}{path} must not be {shown(value)}: {reason}.")


def walk_settings(settings: Any) -> Iterator[tuple[str, Any, Any, Mapping[Any, Any]]]:
    """Iterate over all settings at any depth; without recursion, because files can be nested deeply.

    Args:
        settings: Settings as JSON values, or a configuration.

    Yields:
        The path, the key (None for an item of a list), the value, and the dict that contains the value.
    """
    waiting: list[tuple[str, Any, Mapping[Any, Any]]] = [("", settings, {})]
    while waiting:
        path, found, holder = waiting.pop()
        if isinstance(found, PreTrainedConfig):
            found = vars(found)
        if isinstance(found, Mapping):
            start = f"{path}." if path else ""
            inner = [(f"{start}{shown_key(key)}", key, value, found) for key, value in found.items()]
        elif isinstance(found, list | tuple):
            names = [value.get("name", i) if isinstance(value, Mapping) else i for i, value in enumerate(found)]
            inner = [
                (f"{path}[{shown_key(name)}]", None, value, holder) for name, value in zip(names, found, strict=True)
            ]
        else:
            continue
        yield from inner
        waiting += [(path, value, holder) for path, _, value, holder in inner]


def _reason_against(key: Any, value: Any, holder: Mapping[Any, Any]) -> str:
    """Return the reason why a setting is not allowed; an empty string if it is allowed."""
    if isinstance(value, str) and ADDRESS.search(value):
        return "it is an address from which timm would load"
    if key == "backbone" and isinstance(value, str):
        plain = holder.get("model_type") == "timm_backbone" and PLAIN_NAME.fullmatch(value)
        return "" if plain else "it names a repository to load; give the settings of the backbone as backbone_config"
    if key in ("use_pretrained_backbone", "pretrained") and value:
        return "weights are those of the checkpoint, and none are downloaded for it"
    if key == "checkpoint_path" and value:
        return "it is a file that timm would read, perhaps a pickle"
    if key == "model_args" and isinstance(value, Mapping):
        loading = [name for name in value if str(name).startswith("pretrained") or name == "cache_dir"]
        return f"with {loading[0]} timm would load weights" if loading else ""
    if isinstance(key, str) and key.removeprefix("_").removesuffix("_internal") in KERNEL_KEYS:
        named = value.values() if isinstance(value, Mapping) else [value]
        if any(isinstance(name, str) and "/" in name for name in named):
            return "it names a kernel of the Hub, which is code; pass it to from_pretrained if that is meant"
    if key == "transformers_weights" and value is not None and not str(value).endswith(SAFE_WEIGHTS):
        return "weights are loaded from .safetensors files only"
    return ""


def without_references(settings: Any) -> Any:
    """Copy settings without references to code and to the place that they were loaded from.

    Args:
        settings: Settings as JSON values.

    Returns:
        A copy without the keys `REFERENCES` at every depth.
    """
    if isinstance(settings, Mapping):
        return {key: without_references(value) for key, value in settings.items() if key not in REFERENCES}
    if isinstance(settings, list | tuple):
        return type(settings)(without_references(value) for value in settings)
    return settings


def forget_references(thing: Any) -> None:
    """Remove references to code, and to the place that an object was loaded from, in place.

    User-defined classes are not affected: Transformers adds references to their code again when it saves them.

    Args:
        thing: A configuration, with its sub-configurations; a tokenizer, an image processor or a feature extractor.
    """
    if isinstance(thing, PreTrainedConfig):
        for key, value in list(vars(thing).items()):
            if key in REFERENCES:
                delattr(thing, key)
            elif isinstance(value, PreTrainedConfig):
                forget_references(value)
            elif isinstance(value, dict | list):
                vars(thing)[key] = without_references(value)
        thing._name_or_path = ""
        return
    for held in (vars(thing), getattr(thing, "init_kwargs", {})):
        for key in ("auto_map", "_auto_map", "custom_pipelines"):
            held.pop(key, None)


__all__ = ["check_keys", "check_settings", "forget_references", "walk_settings", "without_references"]
