"""Safe construction and loading of Transformers' configurations, models, tokenizers and other processors.

All such objects are created by this module, so that no file of a checkpoint can execute code, load a pickle, contact
another repository or prompt on standard input. Code from a checkpoint is executed only if the caller passes the user's
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
from transformers import (
    FeatureExtractionMixin,
    ImageProcessingMixin,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import cached_file

from .foreign_settings import check_keys, check_settings, forget_references, walk_settings, without_references
from .json_files import read_json
from .messages import first_line, shown

# The supported loaders of Transformers, and the files that determine the class that each loader builds.
LOADERS = {
    "AutoConfig": ("config.json",),
    "AutoModel": ("config.json",),
    "AutoModelForSeq2SeqLM": ("config.json",),
    "AutoModelForTextEncoding": ("config.json",),
    "AutoTokenizer": ("config.json", "tokenizer_config.json"),
    "AutoImageProcessor": ("config.json", "preprocessor_config.json", "processor_config.json"),
    "AutoFeatureExtractor": ("config.json", "preprocessor_config.json", "processor_config.json"),
}
#: The loaders of image processors and feature extractors, which a processor_config.json may name.
PART_LOADERS = ("AutoImageProcessor", "AutoFeatureExtractor")
PART_CLASSES = (ImageProcessingMixin, FeatureExtractionMixin)
# Keys that name a class in these files, and the allowed base classes. Transformers itself would accept any of its
# classes, including models.
CLASS_KEYS: dict[str, tuple[type, ...]] = {
    "tokenizer_class": (PreTrainedTokenizerBase,),
    "image_processor_type": PART_CLASSES,
    "feature_extractor_type": PART_CLASSES,
}
#: The arguments of a loader that determine where files are loaded from.
DOWNLOAD_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# Model types with a separate encoder-only class. Their checkpoints do not record whether they contain a decoder.
T5_TYPES = ("t5", "mt5", "umt5")
# Names of files with pickled weights, which are never loaded.
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
#: Download options that can be given for single sources, in a dict by name.
OPTIONS_OF_SOURCES = ("revision", "subfolder", "token")
# Settings that a tokenizer interprets as a file path if they are strings. Checkpoints must not contain paths: their
# files are found by name.
PATHS_OF_TOKENIZER = ("vocab", "merges", "init_inputs")


def wrapped_config(encoder: Mapping[str, Any] | PreTrainedConfig, place: str) -> PreTrainedConfig:
    """Return a checked copy of the configuration of a wrapped model.

    Args:
        encoder: The configuration, which is not changed, or a dict of its settings with `model_type`.
        place: Name of the setting that holds the configuration, for the message.

    Returns:
        A new configuration without references to code or repositories.

    Raises:
        ValueError: If Transformers does not support the model type, or a setting is not allowed; the message names the
            setting.
    """
    if isinstance(encoder, PreTrainedConfig):
        check_settings(encoder.to_dict(), f"{place}.")
        own = copy.deepcopy(encoder)
        forget_references(own)
        return own
    check_settings(encoder, f"{place}.")
    settings = without_references(encoder)
    kind = settings.pop("model_type", None)
    check_model_type(kind, place)
    with _named(f"{place} is no configuration of type {kind!r}"):
        config: PreTrainedConfig = CONFIG_MAPPING[kind].from_dict(settings)
    return config


def check_model_type(kind: object, place: str) -> None:
    """Check that a model type is part of Transformers or registered by the user.

    Args:
        kind: The model type.
        place: Name of the setting that holds the type, for the message.

    Raises:
        ValueError: If the model type is unknown; the message explains how to register a type.
    """
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(
            f"{place}.model_type must be one that Transformers has; got {kind!r}. Register the classes of a model with "
            "code of its own before: AutoConfig.register and AutoModel.register."
        )


def encoder_loader(kind: object) -> str:
    """Return the loader that loads or builds a wrapped model.

    Args:
        kind: `model_type` of the model.

    Returns:
        One of `LOADERS`; for T5 models a loader that omits the decoder.
    """
    return "AutoModelForTextEncoding" if kind in T5_TYPES else "AutoModel"


def build_auto(loader: str, config: PreTrainedConfig, **kwargs: Any) -> Any:
    """Build a model with new weights, executing only code of Transformers and of this package.

    Args:
        loader: One of `LOADERS` whose name begins with "AutoModel".
        config: The model's configuration.
        **kwargs: Arguments of the loader's `from_config`.

    Returns:
        The model.

    Raises:
        ValueError: If a setting is not allowed, or the loader has no model for the configuration.
    """
    check_settings(config.to_dict())
    auto_class = getattr(transformers, loader)
    if type(config) not in auto_class._model_mapping:  # Transformers would import all its models to list them
        raise ValueError(f"{loader} has no model for a {type(config).__name__}.")
    return auto_class.from_config(config, trust_remote_code=False, **kwargs)


def build_wrapped_model(config: PreTrainedConfig, place: str, **kwargs: Any) -> Any:
    """Build the model that a source wraps, as [`build_auto`] does.

    Args:
        config: The model's configuration.
        place: Name of the setting that holds the configuration, for the message.
        **kwargs: Arguments of `AutoModel.from_config`.

    Returns:
        The model; only the encoder of a T5 model.

    Raises:
        ValueError: If the model cannot be built; the message names the setting.
    """
    loader = encoder_loader(config.model_type)
    with _named(f"{loader} cannot build {place}"):
        if loader == "AutoModel":
            return build_auto(loader, config, **kwargs)
        return build_auto(loader, copy.deepcopy(config), **kwargs).get_encoder()  # T5EncoderModel modifies its config


def build_part(kind: object, settings: Mapping[str, Any]) -> Any:
    """Build an image processor or a feature extractor from settings.

    Args:
        kind: Name of the class.
        settings: Arguments of the class.

    Returns:
        The image processor or feature extractor.

    Raises:
        ValueError: If Transformers has no such class, the class is of another kind, or it does not accept the settings.
    """
    found = getattr(transformers, kind, None) if isinstance(kind, str) else None
    if found is None or not _is_class(found, PART_CLASSES):
        raise ValueError(
            f"processor must name an image processor or feature extractor of Transformers; got {shown(kind)}."
        )
    with _named(f"these are no settings of a {kind}"):
        return found(**without_references(settings))


def load_auto(loader: str, place: str | Path, *, trust_remote_code: bool | None = False, **kwargs: Any) -> Any:
    """Load an object from a folder or the Hub; weights are loaded from .safetensors files only.

    Args:
        loader: One of `LOADERS`.
        place: Folder or Hub id.
        trust_remote_code: Whether the user allows executing code of the checkpoint; None: no.
        **kwargs: Arguments of the loader's `from_pretrained`.

    Returns:
        The loaded object; references to code are removed from tokenizers, image processors and feature extractors.

    Raises:
        ValueError: If a file names a class of another kind, a setting is not allowed, loading requires code of the
            checkpoint, or the files are invalid; the message names the checkpoint.
        OSError: If a file is missing.
    """
    if loader not in LOADERS:
        raise ValueError(f"a loader must be one of {', '.join(LOADERS)}; got {loader!r}.")
    trusted = trust_remote_code is True
    where = {key: kwargs[key] for key in DOWNLOAD_OPTIONS if key in kwargs}
    if not trusted:
        _check_files(place, LOADERS[loader], where)
    if loader.startswith("AutoModel"):
        check_whole_model(place, kwargs.get("variant"), **where)
        kwargs["use_safetensors"] = True
    try:
        loaded = getattr(transformers, loader).from_pretrained(place, trust_remote_code=trusted, **kwargs)
    except OSError as error:
        if "use_safetensors" not in str(error):  # Transformers' message recommends loading the pickle
            raise
        raise _pickle_error(place) from error
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"{place} needs code of its own (auto_map), which is not run without trust_remote_code=True."
        ) from error
    except (ImportError, RuntimeError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"{place}: {loader} cannot load it ({type(error).__name__}: {first_line(error)}).") from error
    if isinstance(loaded, PreTrainedTokenizerBase) and not _has_vocabulary(loaded, place, where):
        raise ValueError(f"{place} has no files of a tokenizer, such as tokenizer.json.")
    if isinstance(loaded, PreTrainedTokenizerBase | ImageProcessingMixin | FeatureExtractionMixin):
        forget_references(loaded)
    return loaded


def _has_vocabulary(tokenizer: PreTrainedTokenizerBase, place: str | Path, where: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint has tokenizer files; without them, some tokenizers have only special tokens."""
    names = {"tokenizer_config.json", "tokenizer.json", *tokenizer.vocab_files_names.values()}
    return any(_find(place, name, where) is not None for name in sorted(names))


def _find(place: str | Path, name: str, where: Mapping[str, Any]) -> str | None:
    """Return the path of a checkpoint's file, or None if the checkpoint has no such file."""
    quiet = {f"_raise_exceptions_for_{reason}": False for reason in ("missing_entries", "connection_errors")}
    path: str | None = cached_file(place, name, **where, **quiet)
    return path


def check_sources(sources: Any, decoder: str) -> None:
    """Check that `sources` is a dict and `decoder` one of its keys.

    Args:
        sources: Folder, Hub id or object in memory, by the name of the source.
        decoder: Name of the source whose checkpoint provides the decoder.

    Raises:
        ValueError: If an argument is not valid; the message states the requirement.
    """
    if not isinstance(sources, Mapping) or not sources:
        raise ValueError(
            "sources must be a dict from names to checkpoints, such as {'en': 'folder or Hub id'}; got "
            f"{shown(sources)}."
        )
    if decoder not in sources:
        raise ValueError(f"decoder must name one of the sources ({', '.join(sources)}); got {decoder!r}.")


@contextmanager
def named_checkpoint(name: str, place: str | Path, options: Mapping[str, Any]) -> Iterator[None]:
    """Prefix the message of every error about a source's checkpoint with the source and the checkpoint.

    Args:
        name: The source.
        place: Folder or Hub id.
        options: Some of `DOWNLOAD_OPTIONS`.

    Yields:
        Nothing; the body of the `with` statement reads the checkpoint.

    Raises:
        OSError: If the subfolder does not exist, or the body raises OSError.
        ValueError: If the body raises ValueError.
    """
    source, subfolder = f"sources[{name}]", options.get("subfolder")
    if subfolder and Path(place).is_dir() and not (Path(place) / subfolder).is_dir():
        raise OSError(f"{source}: {place} has no subfolder {subfolder!r}.")
    try:
        yield
    except (OSError, ValueError) as error:
        message = str(error)
        if message.startswith(source):
            raise
        if not message.startswith(str(place)):
            message = f"{place}: {message}"
        raise (OSError if isinstance(error, OSError) else ValueError)(f"{source}: {message}") from error


def options_of_sources(sources: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Split download options by source.

    Args:
        sources: Folder, Hub id, or object in memory, by the name of the source.
        options: Some of `DOWNLOAD_OPTIONS`: values for all sources, or for options in `OPTIONS_OF_SOURCES` also dicts
            by the name of the source.

    Returns:
        The options of each source by name, without options that are None.

    Raises:
        ValueError: If an option is unknown, or is given for a source that does not exist or is an object in memory.
    """
    check_keys("from_pretrained_sources", options, DOWNLOAD_OPTIONS)
    found: dict[str, dict[str, Any]] = {name: {} for name in sources}
    for option, given in options.items():
        single = option in OPTIONS_OF_SOURCES and isinstance(given, Mapping)
        if single:
            check_keys(option, given, sources)
        for name in given if single else sources:
            value = given[name] if single else given
            if single and not isinstance(sources[name], str | Path):
                raise ValueError(f"{option}[{name}] has no effect on a {type(sources[name]).__name__} in memory.")
            if value is not None:
                found[name][option] = value
    return found


def read_settings(place: str | Path, name: str, **where: Any) -> dict[str, Any] | None:
    """Read a JSON file of a checkpoint.

    Args:
        place: Folder or Hub id; or the path of the file.
        name: Name of the file.
        **where: Some of `DOWNLOAD_OPTIONS`.

    Returns:
        Content of the file; None if the file does not exist.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
        ValueError: If the file does not contain a JSON object; the message names the file.
    """
    path = place if Path(place).is_file() else _find(place, name, where)
    return None if path is None else read_json(path)


def check_whole_model(place: str | Path, variant: str | None = None, **where: Any) -> None:
    """Check that a checkpoint is not an adapter of another model, and its weight files by [`check_weight_files`].

    Args:
        place: Folder or Hub id.
        variant: The `variant` of `from_pretrained`, which is part of the file names.
        **where: Some of `DOWNLOAD_OPTIONS`.

    Raises:
        ValueError: If the checkpoint is an adapter; the message names the checkpoint.
    """
    if read_settings(place, "adapter_config.json", **where) and not (Path(place) / "config.json").is_file():
        raise ValueError(f"{place} holds an adapter of another model; load that model, and merge the adapter into it.")
    check_weight_files(place, variant, **where)


def check_weight_files(place: str | Path, variant: str | None = None, **where: Any) -> None:
    """Check that loading the weights reads no pickles, no files outside the checkpoint, and no further adapters.

    Args:
        place: Folder or Hub id.
        variant: The `variant` of `from_pretrained`, which is part of the file names.
        **where: Some of `DOWNLOAD_OPTIONS`.

    Raises:
        ValueError: If a file of the checkpoint refers to such files; the message names the file.
        OSError: If a folder has its weights in a pickle only.
    """
    folder = Path(place) / (where.get("subfolder") or "")
    if any((folder / name).exists() for name in PICKLES) and not any(folder.glob("*.safetensors")):
        raise _pickle_error(folder)
    check_adapter(place, **where)
    _check_index(place, variant, where)
    adapter = read_settings(place, "adapter_config.json", **where) or {}
    base = adapter.get("base_model_name_or_path")
    if isinstance(base, str) and base != str(place) and not (Path(place) / "config.json").is_file():
        here = {key: value for key, value in where.items() if key not in ("revision", "subfolder")}
        _check_index(base, variant, here)  # Transformers loads this base model


def _pickle_error(place: str | Path) -> OSError:
    return OSError(
        f"{place} holds its weights in a pickle (pytorch_model.bin), which is never loaded: reading one can run any "
        "code. If you trust it, load it with its own class, and save it as model.safetensors with save_pretrained."
    )


def _check_index(place: str | Path, variant: str | None, where: Mapping[str, Any]) -> None:
    try:
        config = read_settings(place, "config.json", **where) or {}
    except ValueError:  # reported by the loader
        return
    names = {f"model.{variant}.safetensors.index.json" if variant else "model.safetensors.index.json"}
    if str(config.get("transformers_weights")).endswith(".index.json"):
        names.add(str(config["transformers_weights"]))
    for name in sorted(names):
        index = read_settings(place, name, **where)
        if index is None:
            continue
        shards = index.get("weight_map")
        for shard in shards.values() if isinstance(shards, dict) else [shards]:
            parts = re.split(r"[/\\]", shard) if isinstance(shard, str) else [""]
            if not parts[-1].endswith(".safetensors") or not all(parts) or ".." in parts or ":" in parts[0]:
                raise ValueError(
                    f"{place}/{name}: weight_map must name .safetensors files of the checkpoint; got {shown(shard)}."
                )


def check_adapter(place: str | Path, **where: Any) -> None:
    """Check that a PEFT adapter names no further adapters, which PEFT would load from any place, including pickles.

    Args:
        place: Folder or Hub id.
        **where: Some of `DOWNLOAD_OPTIONS`.

    Raises:
        ValueError: If the adapter names further adapters.
    """
    settings = read_settings(place, "adapter_config.json", **where) or {}
    if settings.get("adapters") or settings.get("peft_type") == "XLORA":
        named = shown(settings.get("adapters"))
        raise ValueError(f"{place}/adapter_config.json: adapters must not name further adapters to load; got {named}.")


def _check_files(place: str | Path, names: tuple[str, ...], where: Mapping[str, Any]) -> None:
    """Check the settings and class names in the files of a checkpoint."""
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        settings = read_settings(place, name, **where)
        if settings is None:
            continue
        file = f"{place}/{where['subfolder']}/{name}" if where.get("subfolder") else f"{place}/{name}"
        if name not in names or name == "config.json":
            check_settings(settings, f"{file}: ")
        if name == "config.json":  # some versions of Transformers read one of these instead
            others = settings.get("configuration_files")
            waiting += [other for other in others if isinstance(other, str)] if isinstance(others, list) else []
        for key in PATHS_OF_TOKENIZER if name == "tokenizer_config.json" else ():
            value = settings.get(key)
            if isinstance(value, str) or (key == "init_inputs" and value):
                raise ValueError(f"{file}: {key} must not be {shown(value)}: it names a file to read.")
        for path, key, value, _ in walk_settings(settings):
            if key in CLASS_KEYS and not _may_be(value, CLASS_KEYS[key]):
                wanted = " or ".join(base.__name__ for base in CLASS_KEYS[key])
                raise ValueError(f"{file}: {path} must name a {wanted} of Transformers; got {shown(value)}.")


def _may_be(name: object, bases: tuple[type, ...]) -> bool:
    """Return whether a name may be the name of a class with one of these bases; True for unknown names."""
    if not isinstance(name, str):
        return name is None
    stem = name.removesuffix("Fast")
    found = (getattr(transformers, other, None) for other in (name, stem, f"{stem}Pil", f"{stem}Fast"))
    first = next((one for one in found if one is not None), None)  # looking up a deprecated name logs a warning
    return first is None or _is_class(first, bases)


def _is_class(found: object, bases: tuple[type, ...]) -> bool:
    if type(found).__name__ == "DummyObject":  # placeholder for a class whose package is not installed; raises on use
        return True
    return isinstance(found, type) and issubclass(found, bases)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Convert errors that Transformers raises about settings to a ValueError that names the settings."""
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
    "check_adapter",
    "check_model_type",
    "check_sources",
    "check_weight_files",
    "check_whole_model",
    "encoder_loader",
    "load_auto",
    "named_checkpoint",
    "options_of_sources",
    "read_settings",
    "wrapped_config",
]
