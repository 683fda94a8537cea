"""Read the recipe of a training run: a YAML file of four sections, every key of which `--key value` can override.

data:       where the text lies, which columns are sources, which is the target  (DataRecipe)
tokenizer:  how text becomes tokens                                             (TokenizerRecipe)
model:      `model_type`, fields of its configuration (MultiSourceConfig unless it says otherwise), and `preset: paper`
training:   fields of MultiSourceTrainingArguments

An entry of `model.sources` has the fields of SourceConfig. Its `encoder` may also be a folder or Hub id of a checkpoint
whose weights and preprocessing are used, and `processor` the folder or Hub id of another preprocessing. The module
`schema` defines the type, default and meaning of every key.
"""

from __future__ import annotations

import difflib
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers.integrations import get_available_reporting_integrations

from hf_multisource import MultiSourceConfig, MultiSourceTrainingArguments
from hf_multisource.configuration_multisource import owner_of
from hf_multisource.data.files import write_text
from hf_multisource.data.interfaces import Config
from hf_multisource.data.prepare import is_same_split
from hf_multisource.data.privacy import refuse_secret_key, refuse_secrets
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.pretrained import encoder_config, form_of
from hf_multisource.recipes.reading import parse_overrides, read_yaml
from hf_multisource.recipes.schema import (
    CATALOGUES,
    DROP,
    FAMILIES,
    LOSS,
    NOT_OF_TRAINING,
    PRESETS,
    SEPARATOR,
    UNREADABLE,
    DataRecipe,
    Key,
    TokenizerRecipe,
    catalogue_keys,
    common_keys,
    corpus_keys,
    data_keys,
    entry_keys,
    family_keys,
    known_keys,
    source_marker,
    tokenizer_keys,
    training_keys,
)
from hf_multisource.recipes.shipped import find_recipe
from hf_multisource.recipes.tokenization import SPECIAL_TOKENS, SUBWORDS
from hf_multisource.recipes.values import check_value, show
from hf_multisource.source_kinds import FORMS, SOURCE_KINDS

__all__ = [
    "FAMILIES",
    "PRESETS",
    "SEPARATOR",
    "UNREADABLE",
    "DataRecipe",
    "Recipe",
    "TokenizerRecipe",
    "load_recipe",
    "parse_overrides",
]

# Key that is given without a section -> its section, if this is not the first section that has the key.
BARE_KEYS = {"kind": "tokenizer"}
DECIDED_BY_EPOCHS = ("noam_scale", "lr_scheduler_type", "warmup_steps", "max_steps")


@dataclass
class Recipe:
    """Recipe of a training run.

    Args:
        data: The `data` section.
        tokenizer: The `tokenizer` section.
        model: `model_type`, fields of its configuration, and `preset`.
        training: Fields of MultiSourceTrainingArguments.
    """

    data: DataRecipe
    tokenizer: TokenizerRecipe = field(default_factory=TokenizerRecipe)
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def rate_is_open_ended(self) -> bool:
        """Whether the learning rate schedule is independent of the total number of updates."""
        open_ended = ("constant", "constant_with_warmup", "inverse_sqrt")
        is_share = 0 < (self.training.get("warmup_steps") or 0) < 1  # Transformers: a share of all updates
        known = self.training.get("noam_scale") is not None or self.training.get("lr_scheduler_type") in open_ended
        return known and not is_share

    @property
    def init_from(self) -> str | None:
        """Folder or Hub id of the trained model whose weights initialize the training; None: random weights."""
        return self.model.get("init_from")

    def save(self, path: Path) -> None:
        """Write the recipe with all keys resolved, atomically, because the file marks a run as begun.

        Args:
            path: The YAML file.

        Raises:
            ValueError: If the recipe holds a secret, such as `hub_token`; the message names the key.
        """
        refuse_secrets(asdict(self))
        write_text(path, yaml.safe_dump(asdict(self), sort_keys=False, allow_unicode=True))

    def source_entries(self) -> dict[str, dict[str, Any]]:
        """Return the fields of each source from `model.sources`.

        Returns:
            Fields by source, in order. In a reverse run, entries of the sources that the model writes are ignored.

        Raises:
            ValueError: If an entry names an unknown source or, in a reverse run, a source that is not a text.
        """
        names, written = self.data.model_sources, self.data.sources if self.data.reverse else []
        entries = [{"name": entry} if isinstance(entry, str) else entry for entry in self.model.get("sources", [])]
        for entry in entries:
            if entry.get("name") in written and (kind := entry.get("kind", "text")) != "text":
                raise ValueError(f"data.reverse turns texts round, but source {entry['name']!r} is of kind {kind}")
            if entry.get("name") not in (*names, *written):
                allowed = ", ".join(names)
                raise ValueError(f"model.sources: unknown source {entry.get('name')!r}; allowed are {allowed}")
        own = {entry["name"]: entry for entry in entries}
        shared = {"share_encoder_with": names[0]} if self.model.get("share_encoders") else {}
        return {name: {"name": name, **(shared if name != names[0] else {}), **own.get(name, {})} for name in names}

    def encoder_entries(self) -> dict[str, dict[str, Any]]:
        """Return the fields of each source's encoder, which may be shared with another source.

        Returns:
            Fields by source, in order.

        Raises:
            ValueError: If sources share encoders in a cycle.
        """
        entries = self.source_entries()
        shares = {name: entry.get("share_encoder_with") for name, entry in entries.items()}
        return {name: entries.get(owner_of(name, shares), entry) for name, entry in entries.items()}

    def forms(self) -> dict[str, str]:
        """Return the form of each source: text, picture, sound, features or a kind that was registered.

        Returns:
            A name of `source_kinds.FORMS` by source; for wrapped models, it follows from their configuration.

        Raises:
            ValueError: If sources that are not texts would be concatenated, reversed, written, mixed, masked, read from
                catalogues or dropped by length.
        """
        origins = self.encoder_entries()
        forms = {}
        for name, entry in self.source_entries().items():
            kind = SOURCE_KINDS.get(entry.get("kind", "text"), FORMS["text"])  # an unknown kind raises an error later
            forms[name] = form_of(encoder_config(origins[name].get("encoder"))) if kind.wraps else kind.name
        data = self.data
        for_texts = (
            (data.concatenate, "data.concatenate joins texts"),
            (data.reverse, "data.reverse turns texts round"),
            (data.write_sources, "data.write_sources makes targets of texts"),
            (isinstance(data.train, list), "data.train mixes corpora of texts"),
            (data.kind == CATALOGUES, f"data.kind is {CATALOGUES}, which hold texts"),
            (data.placeholders is not None, "data.placeholders masks texts"),
            (data.too_long == DROP, "data.too_long drops rows by the length of texts"),
        )
        for asked, what in for_texts:
            if asked and set(forms.values()) != {"text"}:
                raise ValueError(f"{what}; the sources must all be texts")
        return forms

    def model_config(self, vocab_size: int, source_vocab_sizes: Mapping[str, int], **ids: int) -> Config:
        """Build the model's configuration.

        Args:
            vocab_size: Vocabulary size of the target's tokenizer.
            source_vocab_sizes: Vocabulary sizes of the sources with separate tokenizers, by source.
            **ids: Ids of special tokens, as keyword arguments of the configuration.

        Returns:
            The configuration. If the recipe does not set `attn_implementation`, it is the fastest one on a CPU when
            training on a CPU.

        Raises:
            ValueError: If a value is not allowed; the message names the key.
        """
        settings = dict(self.model)
        for key in ("source_subsets", "absent_vectors"):
            if self.data.concatenate and settings.get(key):
                raise ValueError(
                    f"model.{key} is {show(settings[key])}, but with data.concatenate the model has a single source, "
                    "of joined texts: leave one of the two out"
                )
        family: Any = FAMILIES[settings.pop("model_type", MultiSourceConfig.model_type)]
        if family is MultiSourceConfig and self.on_cpu:
            settings.setdefault("attn_implementation", "eager")  # faster in training than sdpa
        make = family.paper if settings.pop("preset", "default") == "paper" else family
        settings.pop("sources", None)
        settings.pop("share_encoders", None)
        settings.pop("init_from", None)
        sources = []
        for name, entry in self.source_entries().items():
            source = {key: value for key, value in entry.items() if key != "processor"}
            if source.get("encoder") is not None:
                with errors_of(f"model.sources[{name}]", set()):
                    source["encoder"] = encoder_config(source["encoder"])
            if name in source_vocab_sizes:
                source["vocab_size"] = source_vocab_sizes[name]
            sources.append(source)
        with errors_of("model", {*family_keys(family), "sources"}):
            return make(sources=sources, vocab_size=vocab_size, **ids, **settings)

    def draft_config(self) -> Config:
        """Build the model's configuration before there are tokenizers.

        Returns:
            The configuration, with the vocabulary sizes that the recipe requests.

        Raises:
            ValueError: If a value is not allowed; the message names the key.
        """
        settings = self.tokenizer
        separate = settings.separate if settings.load is None else (Path(settings.load) / "target").is_dir()
        owners = self.own_texts() if separate else []
        return self.model_config(settings.vocab_size, dict.fromkeys(owners, settings.vocab_size))

    def own_texts(self) -> list[str]:
        """Return the text sources that are encoded by the model's own encoder.

        Returns:
            The names, in order.
        """
        kinds = {name: SOURCE_KINDS.get(entry.get("kind", "text")) for name, entry in self.source_entries().items()}
        return [name for name, kind in kinds.items() if kind is not None and kind.has_vocabulary]

    def check_tokenizer_folder(self) -> None:
        """Check that the tokenizer to be loaded exists.

        Raises:
            ValueError: If the folder or its tokenizer does not exist, or there is no tokenizer for a source, or a
                reverse run would load separate tokenizers.
        """
        if self.tokenizer.load is None:
            return
        folder = Path(self.tokenizer.load)
        if not any((place / "tokenizer_config.json").is_file() for place in (folder, folder / "target")):
            problem = "it holds no tokenizer" if folder.is_dir() else "there is no such folder"
            raise ValueError(
                "tokenizer.load must be a folder with a tokenizer (tokenizer.json and tokenizer_config.json), or with "
                f"separate ones in folders named after the sources and `target`; got {str(folder)!r}: {problem}"
            )
        if self.data.reverse and (folder / "target").is_dir():
            raise ValueError(
                f"tokenizer.load: {folder} holds separate tokenizers; with data.reverse it must hold one of all texts"
            )
        separate = self.own_texts() if (folder / "target").is_dir() else []
        if missing := [name for name in separate if not (folder / name).is_dir()]:
            raise ValueError(f"tokenizer.load: {folder} holds separate tokenizers, but none for source {missing[0]!r}")

    @property
    def on_cpu(self) -> bool:
        """Whether this machine trains the recipe on its CPU."""
        return bool(self.training.get("use_cpu", not torch.accelerator.is_available()))

    @property
    def emulates_bf16(self) -> bool:
        """Whether the recipe has `bf16`, and this machine trains it on a CPU without instructions for it.

        On x86 processors, oneDNN needs AVX-512 for bfloat16. Without it, float32 is several times as fast.
        """
        wanted = bool(self.training.get("bf16")) and not self.training.get("fp16")
        is_x86 = platform.machine().lower() in ("x86_64", "amd64", "i686")
        kernels = torch.backends.cpu.get_cpu_capability()
        return wanted and self.on_cpu and is_x86 and kernels in ("AVX2", "NO AVX", "DEFAULT")

    def training_arguments(self) -> MultiSourceTrainingArguments:
        """Build the training arguments.

        Returns:
            The arguments. With `noam_scale`, they have the inverse-square-root schedule with the peak of the Noam
            schedule. `bf16` is off on CPUs that only emulate it, see `emulates_bf16`.

        Raises:
            ValueError: If a value is not allowed, a key or value is a secret, this machine lacks a requested device or
                package, or a model that is evaluated for `load_best_model_at_end` would not be saved; the message names
                the key.
        """
        refuse_secrets(asdict(self))
        settings = dict(self.training)
        scale = settings.get("noam_scale")
        if scale is not None:
            width = self.draft_config().d_model
            settings["learning_rate"] = MultiSourceTrainingArguments.noam_peak(scale, width, settings["warmup_steps"])
            settings["lr_scheduler_type"] = "inverse_sqrt"
        settings.setdefault("generation_max_length", self.data.max_length)
        settings.setdefault("dataloader_pin_memory", torch.cuda.is_available())  # avoids a warning
        if (metric := settings.get("metric_for_best_model")) and settings.get("greater_is_better") is None:
            settings["greater_is_better"] = is_larger_better(metric.removeprefix("eval_"))
        if self.emulates_bf16:
            settings["bf16"] = False
        settings.setdefault("use_cpu", self.on_cpu)  # without it, Transformers rejects bf16 on a CPU
        check_trackers(settings.get("report_to"))
        with errors_of("training", training_keys()):
            args = MultiSourceTrainingArguments(remove_unused_columns=False, predict_with_generate=True, **settings)
        # Transformers allows a multiple of eval_steps. It then records a best score of which there is no checkpoint.
        if args.load_best_model_at_end and args.save_strategy == "steps" and args.save_steps != args.eval_steps:
            raise ValueError(
                f"training.save_steps is {args.save_steps:g} and training.eval_steps {args.eval_steps:g}: with "
                "load_best_model_at_end, both must be equal, so that each model that is evaluated is saved"
            )
        return args

    def check_held_out(self) -> None:
        """Check that the training split is not the dev or the test split.

        Raises:
            ValueError: If it is; the message names the key.
        """
        if role := next((role for role in ("dev", "test") if self.data.train == getattr(self.data, role)), None):
            raise ValueError(
                f"data.train is {self.data.train}, which is data.{role}: a held-out set cannot be trained on"
            )

    def check_positions(self) -> None:
        """Check that the learned positions of the model suffice for the longest text.

        Raises:
            ValueError: If `data.max_length` exceeds a table of positions; the message names the source, or the decoder.
        """
        config, longest = self.draft_config(), self.data.max_length
        settings = {f"source {name!r}": config.encoder_settings(name) for name in self.own_texts()}
        for place, one in {**settings, "the decoder": config}.items():
            known = getattr(one, "max_position_embeddings", longest)
            if getattr(one, "position_embedding", None) == "learned" and known < longest:
                raise ValueError(
                    f"data.max_length is {longest}, but {place} has {known} learned positions: raise "
                    "max_position_embeddings, or lower data.max_length"
                )


def check_trackers(report_to: str | list[str] | None) -> None:
    """Check that the packages of the requested trackers are installed.

    Args:
        report_to: Value of `training.report_to`.

    Raises:
        ValueError: If a tracker is unknown or not installed.
    """
    wanted = report_to if isinstance(report_to, list) else [report_to or "none"]
    installed = get_available_reporting_integrations()
    for name in wanted:
        if name not in ("none", "all", *installed):
            allowed = ", ".join(["none", "all", *installed])
            raise ValueError(
                f"training.report_to is {show(name)}, which is not a tracker, or its package is not installed; there "
                f"are {allowed}"
            )


@contextmanager
def errors_of(section: str, names: Mapping[str, Any] | set[str]) -> Iterator[None]:
    """Context manager that adds the name of a section to errors raised by building objects from it.

    Args:
        section: The section.
        names: Names of the section's keys.

    Yields:
        Nothing.

    Raises:
        ValueError: In place of the original error; its message begins with `section.key` if the original message begins
            with a key.
    """
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, StrictDataclassError) as error:
        reason: BaseException = error
        while isinstance(reason, StrictDataclassError) and reason.__cause__ is not None:
            reason = reason.__cause__  # the validator's own error; the outer one only names the validator
        message = str(reason).strip().removeprefix("--")
        first = re.match(r"(\w+)(?! of |\w)", message)  # "layers of source 'en'" does not refer to the key `layers`
        raise ValueError(f"{section}.{message}" if first and first[1] in names else f"{section}: {message}") from error


# Names that are common in other tools -> what to write instead.
INSTEAD = {
    "resume_from_checkpoint": "--resume continues the run in training.output_dir",
    "group_by_length": "write train_sampling_strategy group_by_length, which is the default",
    "batch_size": "write per_device_train_batch_size",
    "lr": "write learning_rate",
    "epochs": "write num_train_epochs",
}


def _place(key: str, known: Mapping[str, set[str]]) -> tuple[str, str]:
    """Split a key given as `key` or `section.key` into its section and its name."""
    refuse_secret_key(key)
    section, _, name = key.rpartition(".")
    if section:
        if name in known.get(section, ()):
            return section, name
    else:
        for section, names in known.items():
            if name in names and BARE_KEYS.get(name, section) == section:
                return section, name
    if name in INSTEAD:
        raise ValueError(f"{key!r} is not a key of a recipe: {INSTEAD[name]}")
    if name in NOT_OF_TRAINING:
        publishes = name.startswith(("hub_", "push_to_hub"))
        reason = "`hf-multisource push` publishes a run" if publishes else "training sets it, or does not use it"
        raise ValueError(f"{key!r} is not a key of a recipe: {reason}")
    raise ValueError(f"unknown key {key!r}{_suggestion(name, sorted(set().union(*known.values())))}")


def _suggestion(name: object, known: Iterable[str], *, listed: bool = False) -> str:
    """Return the end of a message about an unknown key: the most similar keys, or (`listed`) all keys if none is."""
    names = list(known)
    if near := difflib.get_close_matches(str(name), names, n=3):
        return f"; did you mean {', '.join(near)}?"
    return f"; the keys are {', '.join(names)}" if listed else ""


def _checked(values: Mapping[str, Any], keys: Mapping[str, Key], place: str) -> dict[str, Any]:
    """Check the values of a section and convert each to the type of its key."""
    return {name: check_value(f"{place}.{name}", keys[name].type, value) for name, value in values.items()}


def _checked_sources(entries: object) -> list[Any]:
    """Check the entries of `model.sources` and convert every value to the type of its key."""
    keys = entry_keys()
    checked: list[Any] = []
    names = []
    for i, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        place = f"model.sources[{i}]"
        if not isinstance(entry, str | dict):
            raise ValueError(f"{place} must be the name of a source, or a mapping with its name; got {show(entry)}")
        fields = {"name": entry} if isinstance(entry, str) else entry
        if "name" not in fields:
            raise ValueError(f"{place}.name is missing; got {show(entry)}")
        for name in fields:
            if name not in keys:
                raise ValueError(f"{place}: unknown key {name!r}{_suggestion(name, keys)}")
        fields = _checked(fields, keys, place)
        if fields["name"] in names:
            raise ValueError(f"{place}: source {fields['name']!r} is listed twice; give it one entry")
        names.append(fields["name"])
        checked.append(entry if isinstance(entry, str) else fields)
    return checked


def _checked_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Check the `data` section and convert every value to the type of its key."""
    checked = _checked(data, data_keys(), "data")
    if isinstance(checked.get("train"), list):
        checked["train"] = _checked_corpora(checked["train"])
    if checked.get("catalogues"):
        checked["catalogues"] = _checked_catalogues(checked["catalogues"])
    return checked


def _checked_catalogues(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check the key `data.catalogues` and convert every value to the type of its key."""
    keys = catalogue_keys()
    for name in settings:
        if name not in keys:
            raise ValueError(f"data.catalogues: unknown key {name!r}{_suggestion(name, keys, listed=True)}")
    return _checked(settings, keys, "data.catalogues")


def _checked_corpora(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check the entries of `data.train` and convert every value to the type of its key."""
    keys = corpus_keys()
    if not entries:
        raise ValueError("data.train is an empty list; give the name of a split, or one corpus or more")
    checked = []
    for i, entry in enumerate(entries):
        place = f"data.train[{i}]"
        for name in entry:
            if name not in keys:
                raise ValueError(f"{place}: unknown key {name!r}{_suggestion(name, keys, listed=True)}")
        if "path" not in entry:
            raise ValueError(f"{place}.path is missing; got {show(entry)}")
        checked.append(_checked(entry, keys, place))
    return checked


def _check_corpora(data: DataRecipe, null_token: str | None) -> None:
    """Raise an error if a training corpus is the dev or test split, or if a tag cannot be a token."""
    if isinstance(data.train, str):
        return
    markers = [source_marker(name) for name in data.sources] if data.mark_sources else []
    for i, corpus in enumerate(data.corpora):
        for role in ("dev", "test"):
            if is_same_split((corpus.path, corpus.split), (data.path, getattr(data, role))):
                raise ValueError(
                    f"data.train[{i}] is {corpus.path}:{corpus.split}, which is data.{role}: a held-out set cannot be "
                    "trained on"
                )
        tags = corpus.tags(data.sources)
        if tags and data.reverse:
            raise ValueError(f"data.train[{i}].tag: with data.reverse, sources are targets, which cannot be tagged")
        if tags and data.write_sources:
            raise ValueError(f"data.train[{i}].tag: with data.write_sources, synthetic text would become a target")
        for name, tag in tags.items():
            if name not in data.sources:
                allowed = ", ".join(data.sources)
                raise ValueError(f"data.train[{i}].tag: unknown source {name!r}; the sources are {allowed}")
            if len(tag.split()) != 1 or tag != tag.strip() or tag in (*SPECIAL_TOKENS, *markers, null_token):
                raise ValueError(
                    f"data.train[{i}].tag must be a token of its own without blanks, such as <BT>; got {show(tag)}"
                )


def _checked_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Check the `model` section: its values have the types of their keys, and all keys belong to its model type."""
    common = common_keys()
    kind = check_value("model.model_type", common["model_type"].type, model.get("model_type", "multisource"))
    family = FAMILIES[kind]
    keys = {**common, **family_keys(family)}
    if foreign := sorted(model.keys() - keys):
        raise ValueError(f"model.{foreign[0]} is no setting of model_type {kind!r}")
    checked = _checked({name: value for name, value in model.items() if name != "sources"}, keys, "model")
    if checked.get("preset") == "paper" and not hasattr(family, "paper"):
        raise ValueError(f"model.preset: model_type {kind!r} has none; its defaults are its paper's")
    # Keep the order of the file, also in the saved recipe.
    return {name: checked[name] if name in checked else _checked_sources(value) for name, value in model.items()}


# Key of a schedule -> keys that it replaces.
REPLACES = {"noam_scale": ("learning_rate", "lr_scheduler_type"), "halve_after_epoch": DECIDED_BY_EPOCHS}


def _drop_replaced(training: dict[str, Any], changed: set[str]) -> None:
    """Remove the keys of a recipe's file that a schedule from the command line replaces.

    A schedule in the file is not removed if the command line sets a key that it replaces, because a default would then
    silently replace the schedule.
    """
    for option, keys in REPLACES.items():
        if option in changed and training[option] is not None:
            # The recipe must keep a limit of the training length.
            length = set() if "num_train_epochs" in changed else {"max_steps"}
            for key in set(keys) - changed - length:
                training.pop(key, None)


def is_larger_better(metric: str) -> bool:
    """Return whether larger values of an evaluation metric are better.

    Args:
        metric: "loss", or the name of a metric.

    Returns:
        True if larger values are better.
    """
    return metric != LOSS and METRICS[metric].higher_is_better


def _check_training(path: Path, training: Mapping[str, Any], metrics: Sequence[str]) -> None:
    """Raise an error if keys of `training` are redundant, need another key, or contradict each other."""
    for option, keys in REPLACES.items():
        given = training if training.get(option) is not None else {}
        for key in keys:
            if given.get(key) is not None:
                raise ValueError(f"{path}: training.{option} replaces training.{key}; give one of them")
    metric, greater = training.get("metric_for_best_model"), training.get("greater_is_better")
    name = (metric or LOSS).removeprefix("eval_")
    if name not in (LOSS, *metrics):
        raise ValueError(
            f"training.metric_for_best_model is {metric}, which is not measured; data.metrics has {', '.join(metrics)}"
        )
    if name != LOSS and METRICS[name].needs_sources:
        raise ValueError(f"training.metric_for_best_model is {metric}, which cannot be measured during training")
    if training.get("load_best_model_at_end") and greater not in (None, is_larger_better(name)):
        label = name if name == LOSS else METRICS[name].label
        better = (
            f"true: a larger {label} is better" if is_larger_better(name) else f"false: a smaller {label} is better"
        )
        raise ValueError(f"training.greater_is_better must be {better} (metric_for_best_model is {metric or LOSS})")
    never = [training.get(name, default) for name, default in (("eval_strategy", "no"), ("save_strategy", "steps"))]
    if training.get("load_best_model_at_end") and never == ["no", "no"]:  # Transformers checks that they are equal
        raise ValueError("training.load_best_model_at_end needs training.eval_strategy, steps or epoch")
    if training.get("patience") is not None and metric is None:
        raise ValueError("training.patience needs training.metric_for_best_model, loss or one of data.metrics")
    if training.get("noam_scale") is not None and training.get("warmup_steps", 0) < 1:
        # Transformers interprets values below 1 as a share of all updates.
        raise ValueError(f"{path}: training.noam_scale needs training.warmup_steps, 1 or more")


def _check_tokenizer(recipe: Recipe) -> None:
    """Raise an error if settings of the tokenizer have no effect or do not fit the data."""
    settings, languages = recipe.tokenizer, (*recipe.data.sources, recipe.data.target)
    for name in settings.romanize:
        if name not in languages:
            raise ValueError(f"tokenizer.romanize: unknown language {name!r}; the languages are {', '.join(languages)}")
    if settings.romanize and settings.kind not in SUBWORDS:
        raise ValueError(
            f"tokenizer.romanize is for the kinds {', '.join(SUBWORDS)}; tokenizer.kind is {settings.kind}"
        )
    for key in ("romanize", "balance"):
        if getattr(settings, key) and settings.load is not None:
            raise ValueError(f"tokenizer.{key} is for a tokenizer that is trained; tokenizer.load is {settings.load!r}")
    if recipe.data.placeholders is not None and settings.load is None:
        if settings.kind not in SUBWORDS:
            raise ValueError(
                f"data.placeholders needs a tokenizer of one of the kinds {', '.join(SUBWORDS)}; tokenizer.kind is "
                f"{settings.kind}"
            )
        if recipe.data.target in settings.romanize:
            raise ValueError(
                f"tokenizer.romanize has the target {recipe.data.target!r}, whose decoded text would be Cyrillic, with "
                "the mask tokens of data.placeholders, too: leave one of the two out"
            )
    if settings.balance and settings.separate:
        raise ValueError("tokenizer.balance is for one tokenizer of all languages; tokenizer.separate is true")


def _check_names(names: list[str]) -> None:
    """Raise an error if a name of a source cannot be part of the names of the model's inputs."""
    try:
        MultiSourceConfig(sources=names)
    except StrictDataclassError as error:
        wrong = next((name for name in names if not name.isidentifier()), None)
        other = re.sub(r"\W", "_", wrong or "")
        hint = f" Rename its files or column, for example to {other}." if other.isidentifier() else ""
        hint = " Separate names by blanks: --sources en de." if "," in (wrong or "") else hint
        raise ValueError(f"data.sources: {error.__cause__}{hint}") from error
    modules = torch.nn.ModuleDict()
    taken = next((name for name in names if hasattr(modules, name)), None)
    if taken is not None:  # the model raises an error, too, but only after the data was prepared
        raise ValueError(f"data.sources: source name {taken!r} is an attribute of torch modules; choose another.")


def _read_sections(path: Path, known: Mapping[str, set[str]]) -> dict[str, dict[str, Any]]:
    """Read the sections of a recipe's file and check their keys; the values are not checked yet."""
    content = read_yaml(path)
    if not isinstance(content, dict) or not all(isinstance(part, dict | None) for part in content.values()):
        empty = " is empty" if content is None else ""
        raise ValueError(f"{path}{empty}: a recipe has the sections {', '.join(known)}, each with `key: value` lines")
    sections: dict[str, dict[str, Any]] = {name: {} for name in known}
    for section, values in content.items():
        if section not in sections:
            raise ValueError(f"{path}: unknown section {section!r}; allowed are {', '.join(sections)}")
        for key in values or {}:
            _place(f"{section}.{key}", known)
        sections[section].update(values or {})
    return sections


def load_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe, apply overrides, and check every key and value.

    Args:
        path: The YAML file, or the name of a shipped recipe.
        overrides: Values by `key` or `section.key`.

    Returns:
        The recipe.

    Raises:
        ValueError: If a section or key is unknown, or a value is not allowed; the message names the key, the value and
            what is allowed. Also if a key or a value is a secret, which the message does not repeat.
    """
    path, known = find_recipe(path), known_keys()
    sections = _read_sections(path, known)
    changed: dict[tuple[str, str], Any] = {}
    for key, value in (overrides or {}).items():
        place = _place(key, known)
        if place in changed:
            raise ValueError(f"{'.'.join(place)} is given twice, as {place[1]} and {'.'.join(place)}")
        changed[place] = value
    if ("data", "path") in changed:
        sections["data"]["origin"] = None  # `origin` describes the recipe's own data
    for (section, name), value in changed.items():
        sections[section][name] = value
    refuse_secrets(sections)
    _drop_replaced(sections["training"], {name for section, name in changed if section == "training"})
    for section, names in {"data": ("path", "sources", "target"), "training": ("output_dir",)}.items():
        if missing := [name for name in names if name not in sections[section]]:
            raise ValueError(f"{path}: {section}.{missing[0]} is missing")
    recipe = Recipe(
        data=DataRecipe(**_checked_data(sections["data"])),
        tokenizer=TokenizerRecipe(**_checked(sections["tokenizer"], tokenizer_keys(), "tokenizer")),
        model=_checked_model(sections["model"]),
        training=_checked(sections["training"], training_keys(), "training"),
    )
    _check_names(recipe.data.model_sources)
    if recipe.data.kind == CATALOGUES:
        recipe.data.selection()
    _check_tokenizer(recipe)
    _check_corpora(recipe.data, recipe.tokenizer.null_token)
    _check_training(path, recipe.training, recipe.data.metrics)
    tokens, longest = recipe.training.get("max_tokens_per_batch"), recipe.data.max_length
    if tokens is not None and tokens < longest:
        raise ValueError(
            f"training.max_tokens_per_batch must be a whole number, data.max_length ({longest}) or more, so that every "
            f"example fits; got {tokens}"
        )
    for name in recipe.training.get("source_learning_rates") or {}:
        if name not in recipe.data.model_sources:
            allowed = ", ".join(recipe.data.model_sources)
            raise ValueError(f"training.source_learning_rates: unknown source {name!r}; the sources are {allowed}")
    # Not checked with wrapped checkpoints: they may be missing on a machine that only reads the recipe.
    if not any(isinstance(entry.get("encoder"), str) for entry in recipe.source_entries().values()):
        recipe.draft_config()
    return recipe
