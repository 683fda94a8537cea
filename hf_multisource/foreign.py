"""Build and load what is not of this package: configurations, models, tokenizers, image processors, feature extractors.

Every such object comes from here, so that no file of a checkpoint can have code run, a pickle read, another place
contacted or a question asked on standard input. Code from a checkpoint runs only where the caller passes on a user's
`trust_remote_code=True`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from transformers import FeatureExtractionMixin, ImageProcessingMixin, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import cached_file

from .json_files import read_json
from .messages import first_line, shown

# The loaders of Transformers that are used, with the files that tell them which class to build.
LOADERS = {
    "AutoConfig": ("config.json",),
    "AutoModel": ("config.json",),
    "AutoModelForSeq2SeqLM": ("config.json",),
    "AutoTokenizer": ("config.json", "tokenizer_config.json"),
    "AutoImageProcessor": ("config.json", "preprocessor_config.json", "processor_config.json"),
    "AutoFeatureExtractor": ("config.json", "preprocessor_config.json", "processor_config.json"),
}
#: The loaders of what prepares pictures and speech; those that a processor_config.json may name.
PART_LOADERS = ("AutoImageProcessor", "AutoFeatureExtractor")
PART_CLASSES = (ImageProcessingMixin, FeatureExtractionMixin)
# Keys by which those files name a class, with what it must be: Transformers takes any name that it has, models too.
CLASS_KEYS: dict[str, tuple[type, ...]] = {
    "tokenizer_class": (PreTrainedTokenizerBase,),
    "image_processor_type": PART_CLASSES,
    "feature_extractor_type": PART_CLASSES,
}
#: The arguments of a loader that say where to look for a file.
DOWNLOAD_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# Keys that point to code, or to the place that an object was loaded from.
REFERENCES = ("auto_map", "custom_pipelines", "_auto_map", "_name_or_path", "name_or_path", "_commit_hash")
# Keys whose value, where it names a repository, has attention or experts computed by a kernel of the Hub.
KERNEL_KEYS = ("attn_implementation", "experts_implementation")
# What timm's `create_model` takes for the address of a configuration or of weights.
ADDRESS = re.compile(r"(hf[-_]hub|local-dir)\s*:", re.IGNORECASE)
PLAIN_NAME = re.compile(r"\w[\w.\-]*")  # of an architecture of timm
SAFE_WEIGHTS = (".safetensors", ".safetensors.index.json")


def check_settings(settings: Any, place: str = "") -> None:
    """Refuse settings by which a configuration has files read, pickles unpickled or a repository contacted.

    Args:
        settings: The configuration as a dict, with sub-configurations at any depth.
        place: What the message begins with, before the path of the key.

    Raises:
        ValueError: If there is such a setting; the message names its path and its value.
    """
    for path, key, value, holder in _walk(settings):
        if reason := _reason_against(key, value, holder):
            raise ValueError(f"{place}{path} must not be {shown(value)}: {reason}.")


def _walk(settings: Any) -> Iterator[tuple[str, Any, Any, Mapping[Any, Any]]]:
    """Yield path, key (of an item of a list, None), value and the dict around it of all that a JSON value holds."""
    waiting: list[tuple[str, Any, Mapping[Any, Any]]] = [("", settings, {})]
    while waiting:
        path, found, holder = waiting.pop()
        if isinstance(found, PreTrainedConfig):
            found = vars(found)
        if isinstance(found, Mapping):
            inner = [(f"{path}.{key}" if path else str(key), key, value, found) for key, value in found.items()]
        elif isinstance(found, list | tuple):
            names = [value.get("name", i) if isinstance(value, Mapping) else i for i, value in enumerate(found)]
            inner = [(f"{path}[{name}]", None, value, holder) for name, value in zip(names, found, strict=True)]
        else:
            continue
        yield from inner
        waiting += [(path, value, holder) for path, _, value, holder in inner]


def _reason_against(key: Any, value: Any, holder: Mapping[Any, Any]) -> str:
    """Why a setting is refused; empty if it is not."""
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


def wrapped_config(encoder: Mapping[str, Any] | PreTrainedConfig, place: str) -> PreTrainedConfig:
    """Return the configuration of a model that is wrapped.

    Args:
        encoder: The configuration, which stays as it is, or a dict of its settings with `model_type`.
        place: Name of the setting that holds it.

    Returns:
        A configuration of its own, which refers to no code and no place.

    Raises:
        ValueError: If Transformers has no such type of model, or a setting is not allowed; the message names it.
    """
    if isinstance(encoder, PreTrainedConfig):
        check_settings(encoder.to_dict(), f"{place}.")
        own = copy.deepcopy(encoder)
        forget_references(own)
        return own
    check_settings(encoder, f"{place}.")
    settings = without_references(encoder)
    kind = settings.pop("model_type", None)
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(f"{place}.model_type must be one that Transformers has; got {kind!r}.")
    with _named(f"{place} is no configuration of type {kind!r}"):
        config: PreTrainedConfig = CONFIG_MAPPING[kind].from_dict(settings)
    return config


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


def build_auto(loader: str, config: PreTrainedConfig, **kwargs: Any) -> Any:
    """Build a model with new weights; no code is run but that of Transformers and of this package.

    Args:
        loader: "AutoModel" or "AutoModelForSeq2SeqLM".
        config: The model's configuration.
        **kwargs: As the loader's `from_config` takes them.

    Returns:
        The model.

    Raises:
        ValueError: If a setting is not allowed, or the loader has no such model.
    """
    check_settings(config.to_dict())
    return getattr(transformers, loader).from_config(config, trust_remote_code=False, **kwargs)


def build_wrapped_model(config: PreTrainedConfig, place: str, **kwargs: Any) -> Any:
    """Build the model that a source wraps, as [`build_auto`] does.

    Args:
        config: The model's configuration.
        place: Name of the setting that holds it.
        **kwargs: As `AutoModel.from_config` takes them.

    Returns:
        The model.

    Raises:
        ValueError: If it cannot be built; the message names the setting.
    """
    with _named(f"{place} is no configuration that AutoModel builds"):
        return build_auto("AutoModel", config, **kwargs)


def build_part(kind: Any, settings: Mapping[str, Any]) -> Any:
    """Build an image processor or a feature extractor from settings.

    Args:
        kind: Name of its class.
        settings: Arguments of the class.

    Returns:
        The image processor or feature extractor.

    Raises:
        ValueError: If Transformers has no such class, it is of another kind, or it does not take the settings.
    """
    found = getattr(transformers, kind, None) if isinstance(kind, str) else None
    if found is None or not _is_class(found, PART_CLASSES):
        raise ValueError(
            f"processor must name an image processor or feature extractor of Transformers; got {shown(kind)}."
        )
    with _named(f"these are no settings of a {kind}"):
        return found(**without_references(settings))


def load_auto(loader: str, place: Any, *, trust_remote_code: bool | None = False, **kwargs: Any) -> Any:
    """Load something from a folder or the Hub; weights from .safetensors files only.

    Args:
        loader: One of `LOADERS`.
        place: Folder or Hub id.
        trust_remote_code: Whether the user has said that code of the checkpoint may be run; None: no.
        **kwargs: As the loader's `from_pretrained` takes them.

    Returns:
        What the loader gives; a tokenizer, an image processor or a feature extractor does not refer to any code.

    Raises:
        ValueError: If a file names a class of another kind, a setting is not allowed, code would have to be run, or the
            loader cannot make sense of the files; the message names the place.
        OSError: If a file is missing.
    """
    if loader not in LOADERS:
        raise ValueError(f"a loader must be one of {', '.join(LOADERS)}; got {loader!r}.")
    trusted = trust_remote_code is True
    if not trusted:
        _check_files(place, LOADERS[loader], {key: kwargs[key] for key in DOWNLOAD_OPTIONS if key in kwargs})
    if loader.startswith("AutoModel"):
        kwargs["use_safetensors"] = True
    try:
        loaded = getattr(transformers, loader).from_pretrained(place, trust_remote_code=trusted, **kwargs)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"{place} needs code of its own (auto_map), which is not run without trust_remote_code=True."
        ) from error
    except (OSError, ImportError, RuntimeError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"{place}: {loader} cannot load it ({type(error).__name__}: {first_line(error)}).") from error
    if isinstance(loaded, PreTrainedTokenizerBase | ImageProcessingMixin | FeatureExtractionMixin):
        forget_references(loaded)
    return loaded


def read_settings(place: str | Path, name: str, **where: Any) -> dict[str, Any] | None:
    """Read a JSON file of a checkpoint.

    Args:
        place: Folder or Hub id; or the file itself.
        name: Name of the file.
        **where: Some of `DOWNLOAD_OPTIONS`.

    Returns:
        What the file holds; None if there is no such file.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
        ValueError: If it does not hold a JSON object; the message names the file.
    """
    quiet = {f"_raise_exceptions_for_{reason}": False for reason in ("missing_entries", "connection_errors")}
    path = place if Path(place).is_file() else cached_file(place, name, **where, **quiet)
    return None if path is None else read_json(path)


def _check_files(place: str | Path, names: tuple[str, ...], where: Mapping[str, Any]) -> None:
    """Refuse settings that are not allowed, and classes of another kind, in the files of a checkpoint."""
    for name in names:
        settings = read_settings(place, name, **where)
        if settings is None:
            continue
        file = f"{place}/{where['subfolder']}/{name}" if where.get("subfolder") else f"{place}/{name}"
        if name == "config.json":
            check_settings(settings, f"{file}: ")
        for path, key, value, _ in _walk(settings):
            if key in CLASS_KEYS and not _may_be(value, CLASS_KEYS[key]):
                wanted = " or ".join(base.__name__ for base in CLASS_KEYS[key])
                raise ValueError(f"{file}: {path} must name a {wanted} of Transformers; got {shown(value)}.")


def _may_be(name: Any, bases: tuple[type, ...]) -> bool:
    """Whether a name is that of such a class; one that Transformers does not have is left to the loader."""
    if not isinstance(name, str):
        return name is None
    stem = name.removesuffix("Fast")
    found = [getattr(transformers, other, None) for other in (name, stem, f"{stem}Fast", f"{stem}Pil")]
    return all(_is_class(one, bases) for one in found if one is not None)


def _is_class(found: Any, bases: tuple[type, ...]) -> bool:
    if type(found).__name__ == "DummyObject":  # stands for a class whose package is not installed, and says so if used
        return True
    return isinstance(found, type) and issubclass(found, bases)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Turn whatever foreign code raises about settings into a ValueError that says which settings they are."""
    try:
        yield
    except (ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"{what} ({type(error).__name__}: {first_line(error)}).") from error


__all__ = [
    "DOWNLOAD_OPTIONS",
    "PART_LOADERS",
    "build_auto",
    "build_part",
    "build_wrapped_model",
    "check_settings",
    "forget_references",
    "load_auto",
    "read_settings",
    "without_references",
    "wrapped_config",
]
