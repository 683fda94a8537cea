"""Validation of the files of a processor before its parts are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .configuration_multisource import MultiSourceConfig
from .foreign import PART_LOADERS, read_settings
from .messages import shown
from .source_kinds import FORMS

PROCESSOR_FILE = "processor_config.json"
# File with the repository of an `audio_tokenizer`, which is a model; processors of this package have no such model.
AUDIO_TOKENIZER_FILE = "audio_tokenizer_config.json"
BACKENDS = (None, "torchvision", "pil")  # allowed backends of image processors
# Keys that Transformers writes in addition to the arguments of a processor.
KEYS_OF_TRANSFORMERS = ("auto_map", "chat_template", "processor_class", "transformers_version")
LISTS_OF_NAMES = ("source_names", "source_tokenizers", "feature_sources")


def check_names(names: Any, place: str = "source_names") -> None:
    """Check that names are valid names of sources, which are also safe names of folders.

    Args:
        names: The names.
        place: Description of the names in the message.

    Raises:
        ValueError: If `names` is empty or contains an invalid name; the message begins with `place`.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{place} must be a list of names; got {shown(names)}.")
    if not names:
        raise ValueError(
            f"{place} must name at least one source; got none. A checkpoint without sources is loaded by "
            "MultiSourceProcessor.from_pretrained_sources."
        )
    try:
        MultiSourceConfig.check_source_names(names)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def check_kinds(kinds: Any, place: str = "source_kinds") -> None:
    """Check the kinds that a processor lists for sources without a part.

    Args:
        kinds: Names of kinds by source.
        place: Description of the kinds in the message.

    Raises:
        ValueError: If a kind is unknown or needs a part; the message names the source.
    """
    if not isinstance(kinds, Mapping):
        raise ValueError(f"{place} must be an object; got {shown(kinds)}.")
    allowed = [kind.name for kind in FORMS.values() if kind.part_loader is None]
    for name, kind in kinds.items():
        if kind not in allowed:
            raise ValueError(
                f"{place}.{name} must be one of {', '.join(map(repr, allowed))}; got {shown(kind)}. A kind of your own "
                "is known once register_source_kind has been called."
            )


def check_processor(settings: Mapping[str, Any], file: str, arguments: Iterable[str]) -> None:
    """Check the content of a `processor_config.json`.

    Args:
        settings: Content of the file.
        file: Name of the file, for the message.
        arguments: Names of the arguments of the processor's class.

    Raises:
        ValueError: If a key is unknown or its value is not allowed; the message names file and key.
    """
    allowed = {*arguments, *KEYS_OF_TRANSFORMERS} - {"self", "tokenizer", "args", "kwargs"}
    if unknown := sorted(settings.keys() - allowed):
        raise ValueError(f"{file}: {unknown[0]!r} is no key of a processor; it can have {', '.join(sorted(allowed))}.")
    for key in LISTS_OF_NAMES:
        names = settings.get(key, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{file}: {key} must be a list of names; got {shown(names)}.")
    names = settings.get("source_names", [])
    check_names(names, f"{file}: source_names")
    parts = settings.get("source_processors", {})
    if not isinstance(parts, dict):
        raise ValueError(f"{file}: source_processors must be an object; got {shown(parts)}.")
    check_kinds(settings.get("source_kinds", {}), f"{file}: source_kinds")
    for key in ("source_tokenizers", "feature_sources", "source_processors", "source_kinds"):
        if unknown := [name for name in settings.get(key, ()) if name not in names]:
            raise ValueError(f"{file}: {key} must name sources ({', '.join(names)}); got {shown(unknown[0])}.")
    for name, how in parts.items():
        _check_part(how, f"{file}: source_processors.{name}")
    null_token = settings.get("null_token")
    if not isinstance(null_token, str | None):
        raise ValueError(f"{file}: null_token must be a text; got {shown(null_token)}.")
    template = settings.get("chat_template")
    if not isinstance(template, str | dict | None):
        raise ValueError(f"{file}: chat_template must be a text or an object of texts; got {shown(template)}.")


def _check_part(how: Any, place: str) -> None:
    if not isinstance(how, dict) or how.keys() - {"auto_class", "backend"}:
        raise ValueError(f"{place} must be an object with auto_class and backend; got {shown(how)}.")
    for key, value, allowed in (
        ("auto_class", how.get("auto_class"), PART_LOADERS),
        ("backend", how.get("backend"), BACKENDS),
    ):
        if value not in allowed:
            known = ", ".join(map(repr, allowed))
            raise ValueError(f"{place}.{key} must be one of {known}; got {shown(value)}.")


def check_processor_files(place: Any, arguments: Iterable[str], **where: Any) -> None:
    """Check the files of a processor of this package.

    Args:
        place: Folder or Hub id; or the path of the `processor_config.json`.
        arguments: Names of the arguments of the processor's class.
        **where: Some of `DOWNLOAD_OPTIONS`.

    Raises:
        ValueError: If a file has a key or value that is not allowed; the message names file and key.
    """
    settings = read_settings(place, PROCESSOR_FILE, **where)
    if settings is not None:
        check_processor(settings, f"{place}/{PROCESSOR_FILE}", arguments)
    if read_settings(place, AUDIO_TOKENIZER_FILE, **where) not in (None, settings):
        raise ValueError(f"{place}/{AUDIO_TOKENIZER_FILE}: a processor of several sources has no audio tokenizer.")


__all__ = ["check_kinds", "check_names", "check_processor_files"]
