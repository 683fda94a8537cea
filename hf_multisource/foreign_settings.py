"""Check settings of what is not of this package, and remove their references to code and to other places."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig

from .messages import shown, shown_key

# Keys that point to code, or to the place that an object was loaded from.
REFERENCES = ("auto_map", "custom_pipelines", "_auto_map", "_name_or_path", "name_or_path", "_commit_hash")
# Keys whose value, where it names a repository, has attention or experts computed by a kernel of the Hub.
KERNEL_KEYS = ("attn_implementation", "experts_implementation")
# What timm's `create_model` takes for the address of a configuration or of weights.
ADDRESS = re.compile(r"(hf[-_]hub|local-dir)\s*:", re.IGNORECASE)
PLAIN_NAME = re.compile(r"\w[\w.\-]*")  # of an architecture of timm
SAFE_WEIGHTS = (".safetensors", ".safetensors.index.json")


def check_keys(what: str, given: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Refuse keys that are not allowed.

    Args:
        what: What has the keys.
        given: Something by key.
        allowed: All keys that may be given.

    Raises:
        ValueError: If there is another; the message names it and lists those allowed.
    """
    for name in given:
        if name not in allowed:
            raise ValueError(f"{what} can set {', '.join(allowed)}; got {name!r}.")


def check_settings(settings: Any, place: str = "") -> None:
    """Refuse settings by which a configuration has files read, pickles unpickled or a repository contacted.

    Args:
        settings: The configuration as a dict, with sub-configurations at any depth.
        place: What the message begins with, before the path of the key.

    Raises:
        ValueError: If there is such a setting; the message names its path and its value.
    """
    for path, key, value, holder in walk_settings(settings):
        if reason := _reason_against(key, value, holder):
            raise ValueError(f"{place}{path} must not be {shown(value)}: {reason}.")


def walk_settings(settings: Any) -> Iterator[tuple[str, Any, Any, Mapping[Any, Any]]]:
    """Yield everything that settings hold, at any depth; without recursion, since a file may be nested deeply.

    Args:
        settings: Settings as JSON values, or a configuration.

    Yields:
        The path, the key (None for an item of a list), the value, and the dict that the value is in.
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
    """Return why a setting is refused; an empty text if it is allowed."""
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
    """Copy settings without what points to code, or to the place that they were loaded from.

    Args:
        settings: Settings as JSON values.

    Returns:
        The copy; without these keys at every depth.
    """
    if isinstance(settings, Mapping):
        return {key: without_references(value) for key, value in settings.items() if key not in REFERENCES}
    if isinstance(settings, list | tuple):
        return type(settings)(without_references(value) for value in settings)
    return settings


def forget_references(thing: Any) -> None:
    """Take from an object what points to code, or to the place that it was loaded from.

    Classes that a user had loaded with their own code keep it: Transformers refers to the code anew when it saves them.

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
