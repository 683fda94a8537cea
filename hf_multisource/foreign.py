"""Build and load objects of Transformers: configurations, models, tokenizers, image processors, feature extractors.

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

# The loaders of Transformers that are used, and the files that name the class that each of them builds.
LOADERS = {
    "AutoConfig": ("config.json",),
    "AutoModel": ("config.json",),
    "AutoModelForSeq2SeqLM": ("config.json",),
    "AutoModelForTextEncoding": ("config.json",),
    "AutoTokenizer": ("config.json", "tokenizer_config.json"),
    "AutoImageProcessor": ("config.json", "preprocessor_config.json", "processor_config.json"),
    "AutoFeatureExtractor": ("config.json", "preprocessor_config.json", "processor_config.json"),
}
#: The loaders of what prepares pictures and speech; those that a processor_config.json may name.
PART_LOADERS = ("AutoImageProcessor", "AutoFeatureExtractor")
PART_CLASSES = (ImageProcessingMixin, FeatureExtractionMixin)
# Keys by which those files name a class, and its permitted base classes. Transformers would take any class of its own,
# models too.
CLASS_KEYS: dict[str, tuple[type, ...]] = {
    "tokenizer_class": (PreTrainedTokenizerBase,),
    "image_processor_type": PART_CLASSES,
    "feature_extractor_type": PART_CLASSES,
}
#: The arguments of a loader that say where to look for a file.
DOWNLOAD_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# Types whose encoder is a model of its own. In such a model's checkpoint, nothing tells that it has no decoder.
T5_TYPES = ("t5", "mt5", "umt5")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
#: Those of them that can be given for single sources, by name.
OPTIONS_OF_SOURCES = ("revision", "subfolder", "token")
# What a tokenizer takes for the path of a file if it is a text; files of a checkpoint are found by their names.
PATHS_OF_TOKENIZER = ("vocab", "merges", "init_inputs")


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
    check_model_type(kind, place)
    with _named(f"{place} is no configuration of type {kind!r}"):
        config: PreTrainedConfig = CONFIG_MAPPING[kind].from_dict(settings)
    return config


def check_model_type(kind: object, place: str) -> None:
    """Refuse a type of model that neither Transformers has nor the user has registered.

    Args:
        kind: The type.
        place: Name of the setting that holds it.

    Raises:
        ValueError: If there is no such type; the message says how to register one.
    """
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(
            f"{place}.model_type must be one that Transformers has; got {kind!r}. Register the classes of a model with "
            "code of its own before: AutoConfig.register and AutoModel.register."
        )


def encoder_loader(kind: object) -> str:
    """Return what loads or builds a model that is wrapped.

    Args:
        kind: Its `model_type`.

    Returns:
        One of `LOADERS`; for a T5 one that leaves the decoder out.
    """
    return "AutoModelForTextEncoding" if kind in T5_TYPES else "AutoModel"


def build_auto(loader: str, config: PreTrainedConfig, **kwargs: Any) -> Any:
    """Build a model with new weights; no code is run but that of Transformers and of this package.

    Args:
        loader: One of `LOADERS` whose name begins with "AutoModel".
        config: The model's configuration.
        **kwargs: As the loader's `from_config` takes them.

    Returns:
        The model.

    Raises:
        ValueError: If a setting is not allowed, or the loader has no such model.
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
        place: Name of the setting that holds it.
        **kwargs: As `AutoModel.from_config` takes them.

    Returns:
        The model; of a T5 its encoder.

    Raises:
        ValueError: If it cannot be built; the message names the setting.
    """
    loader = encoder_loader(config.model_type)
    with _named(f"{place} is no configuration that {loader} builds"):
        if loader == "AutoModel":
            return build_auto(loader, config, **kwargs)
        return build_auto(loader, copy.deepcopy(config), **kwargs).get_encoder()  # T5EncoderModel changes what it gets


def build_part(kind: object, settings: Mapping[str, Any]) -> Any:
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


def load_auto(loader: str, place: str | Path, *, trust_remote_code: bool | None = False, **kwargs: Any) -> Any:
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
    where = {key: kwargs[key] for key in DOWNLOAD_OPTIONS if key in kwargs}
    if not trusted:
        _check_files(place, LOADERS[loader], where)
    if loader.startswith("AutoModel"):
        check_whole_model(place, kwargs.get("variant"), **where)
        kwargs["use_safetensors"] = True
    try:
        loaded = getattr(transformers, loader).from_pretrained(place, trust_remote_code=trusted, **kwargs)
    except OSError as error:
        if "use_safetensors" not in str(error):  # Transformers' advice is to unpickle
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
    """Return whether there is a file of a tokenizer; without one, Transformers makes some of special tokens alone."""
    names = {"tokenizer_config.json", "tokenizer.json", *tokenizer.vocab_files_names.values()}
    return any(_find(place, name, where) is not None for name in sorted(names))


def _find(place: str | Path, name: str, where: Mapping[str, Any]) -> str | None:
    """Return the path of a checkpoint's file, or None if there is none."""
    quiet = {f"_raise_exceptions_for_{reason}": False for reason in ("missing_entries", "connection_errors")}
    path: str | None = cached_file(place, name, **where, **quiet)
    return path


def check_sources(sources: Any, decoder: str) -> None:
    """Check that the sources are a dict, and that the decoder is one of them.

    Args:
        sources: Folder, Hub id or object in memory, by the name of the source.
        decoder: Name of the source whose checkpoint gives the decoder.

    Raises:
        ValueError: If one of them is not; the message says what is needed.
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
    """Begin the message of every error about a source's checkpoint with the source and the checkpoint.

    Args:
        name: The source.
        place: Folder or Hub id.
        options: Some of `DOWNLOAD_OPTIONS`.

    Yields:
        Once, for the code that reads the checkpoint.

    Raises:
        OSError: If there is no such subfolder, or the code raises one.
        ValueError: If the code raises one.
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
    """Distribute options of loading among sources.

    Args:
        sources: Folder, Hub id, or something in memory, by the name of the source.
        options: Some of `DOWNLOAD_OPTIONS`: each for all sources, or those in `OPTIONS_OF_SOURCES` by the name of the
            source.

    Returns:
        The options of each source, by its name; those that are None are left out.

    Raises:
        ValueError: If there is no such option, or one is for a source that there is not or that is in memory.
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
        place: Folder or Hub id; or the file itself.
        name: Name of the file.
        **where: Some of `DOWNLOAD_OPTIONS`.

    Returns:
        What the file holds; None if there is no such file.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
        ValueError: If it does not hold a JSON object; the message names the file.
    """
    path = place if Path(place).is_file() else _find(place, name, where)
    return None if path is None else read_json(path)


def check_whole_model(place: str | Path, variant: str | None = None, **where: Any) -> None:
    """Refuse a checkpoint that is an adapter of another model, and the files that [`check_weight_files`] refuses.

    Args:
        place: Folder or Hub id.
        variant: As `from_pretrained` has it; a part of the names of the files.
        **where: Some of `DOWNLOAD_OPTIONS`.

    Raises:
        ValueError: If it is one; the message names the place.
    """
    if read_settings(place, "adapter_config.json", **where) and not (Path(place) / "config.json").is_file():
        raise ValueError(f"{place} holds an adapter of another model; load that model, and merge the adapter into it.")
    check_weight_files(place, variant, **where)


def check_weight_files(place: str | Path, variant: str | None = None, **where: Any) -> None:
    """Refuse pickles, an index of weights that names pickles or other places, and adapters that load others.

    Args:
        place: Folder or Hub id.
        variant: As `from_pretrained` has it; a part of the names of the files.
        **where: Some of `DOWNLOAD_OPTIONS`.

    Raises:
        ValueError: If a file of the checkpoint does so; the message names it.
        OSError: If a folder holds its weights in a pickle only.
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
        _check_index(base, variant, here)  # Transformers loads the model that is named there


def _pickle_error(place: str | Path) -> OSError:
    return OSError(
        f"{place} holds its weights in a pickle (pytorch_model.bin), which is never loaded: reading one can run any "
        "code. If you trust it, load it with its own class, and save it as model.safetensors with save_pretrained."
    )


def _check_index(place: str | Path, variant: str | None, where: Mapping[str, Any]) -> None:
    try:
        config = read_settings(place, "config.json", **where) or {}
    except ValueError:  # the loader says what is wrong with it
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
    """Refuse a PEFT adapter that names further adapters, which PEFT would load from anywhere, pickles included.

    Args:
        place: Folder or Hub id.
        **where: Some of `DOWNLOAD_OPTIONS`.

    Raises:
        ValueError: If it does.
    """
    settings = read_settings(place, "adapter_config.json", **where) or {}
    if settings.get("adapters") or settings.get("peft_type") == "XLORA":
        named = shown(settings.get("adapters"))
        raise ValueError(f"{place}/adapter_config.json: adapters must not name further adapters to load; got {named}.")


def _check_files(place: str | Path, names: tuple[str, ...], where: Mapping[str, Any]) -> None:
    """Refuse settings that are not allowed, and classes of another kind, in the files of a checkpoint."""
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        settings = read_settings(place, name, **where)
        if settings is None:
            continue
        file = f"{place}/{where['subfolder']}/{name}" if where.get("subfolder") else f"{place}/{name}"
        if name not in names or name == "config.json":
            check_settings(settings, f"{file}: ")
        if name == "config.json":  # a version of Transformers may read one of these in its place
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
    """Return whether a name is that of a class with such a base; the loader decides on unknown names."""
    if not isinstance(name, str):
        return name is None
    stem = name.removesuffix("Fast")
    found = [getattr(transformers, other, None) for other in (name, stem, f"{stem}Fast", f"{stem}Pil")]
    return all(_is_class(one, bases) for one in found if one is not None)


def _is_class(found: object, bases: tuple[type, ...]) -> bool:
    if type(found).__name__ == "DummyObject":  # stands for a class whose package is not installed, and says so if used
        return True
    return isinstance(found, type) and issubclass(found, bases)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Turn every error that foreign code raises about settings into a ValueError that names the settings."""
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
