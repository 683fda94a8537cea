"""A training run as one YAML file: four sections, every key of which `--key value` can change.

data:       where the text lies, which columns are sources, which is the target  (DataRecipe)
tokenizer:  how text becomes ids                                                (TokenizerRecipe)
model:      `model_type`, fields of its configuration (MultiSourceConfig unless it says otherwise), and `preset: paper`
training:   fields of Seq2SeqTrainingArguments, `noam_scale`, `patience`, and options of MultiSourceTrainer

An entry of `model.sources` has the fields of SourceConfig; `encoder` may also be a folder or Hub id, whose weights and
preprocessing are taken, and `processor` says where the preprocessing is from if that is another place.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import Seq2SeqTrainingArguments

from hf_multisource import MultiSourceConfig, MultiSourceRNNConfig
from hf_multisource.recipes.catalogue import find_recipe
from hf_multisource.recipes.pretrained import encoder_config, form_of

# The tokenizer decides these.
GIVEN_BY_TOKENIZER = {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"}
FAMILIES: dict[str, Any] = {kind.model_type: kind for kind in (MultiSourceConfig, MultiSourceRNNConfig)}
PRESETS = ("default", "paper")
UNREADABLE = ("error", "absent")
TRAINER_OPTIONS = {"source_learning_rates", "halve_after_epoch", "loss_per_sentence", "max_tokens_per_batch"}
OF_THE_TRAINER = {"noam_scale", "patience", *TRAINER_OPTIONS}  # what is no training argument of Transformers
SEPARATOR = " | "
DECIDED_BY_EPOCHS = ("noam_scale", "lr_scheduler_type", "warmup_steps", "max_steps")
OF_EVERY_FAMILY = {"model_type", "preset", "attn_implementation"}  # what is no field of the configuration
GIVEN_BY_TRAINING = {"predict_with_generate", "remove_unused_columns"}  # what train.py needs as it is


class Loader(yaml.SafeLoader):
    """YAML 1.2's scalars, where `no` is a language and 1e-4 a number."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith((":bool", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$", re.IGNORECASE), list("tTfF"))
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?\d+[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


@dataclass
class DataRecipe:
    """The `data` section.

    Args:
        path: Folder, or id of a Hub dataset; see `data.read_split`.
        sources: Names of the source columns, in order.
        target: Name of the target column.
        train: Name of the training split.
        dev: Name of the split that is evaluated during training.
        test: Name of the split that `score.py` decodes.
        max_length: Longest source (all of them joined, with `concatenate`) and target, in tokens; longer ones are cut
            and counted.
        concatenate: Whether all sources are joined into a single one, named `all`: one encoder, what people do today.
        limit: Read at most so many training lines; None: all.
        unreadable: What a picture or a recording that cannot be read, or has another sampling rate than its encoder's,
            is: an "error" before anything is trained, or "absent".
        origin: Where the text is from and under what terms, for the model's card; the first address in it is where
            the terms are found. Another `path` on the command line forgets it.
    """

    path: str
    sources: list[str]
    target: str
    train: str = "train"
    dev: str = "dev"
    test: str = "test"
    max_length: int = 128
    concatenate: bool = False
    limit: int | None = None
    unreadable: str = "error"
    origin: str | None = None

    @property
    def model_sources(self) -> list[str]:
        """Names of the sources as the model sees them."""
        return ["all"] if self.concatenate else self.sources

    def model_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Turn rows of columns into rows of the model's sources.

        Args:
            rows: One dict per line; None = absent.

        Returns:
            The rows; with `concatenate`, present sources joined in order under `all`.
        """
        if not self.concatenate:
            return [dict(row) for row in rows]
        joined = [SEPARATOR.join(text for name in self.sources if (text := row[name])) or None for row in rows]
        rest = [{key: text for key, text in row.items() if key not in self.sources} for row in rows]
        return [{"all": text, **other} for text, other in zip(joined, rest, strict=True)]


@dataclass
class TokenizerRecipe:
    """The `tokenizer` section.

    Args:
        kind: "bpe", "wordpiece" or "unigram".
        vocab_size: Tokens, the special ones included.
        separate: Whether every source and the target get a vocabulary of their own.
        load: Folder of a tokenizer, or of separate ones as `train_tokenizer.py --separate` writes them, to use instead
            of training any.
        null_token: If set, such as "<NULL>", an absent text is read as a text of this token (Nishimura et al. 2018); a
            tokenizer that is loaded must have it.
    """

    kind: str = "bpe"
    vocab_size: int = 8000
    separate: bool = False
    load: str | None = None
    null_token: str | None = None


@dataclass
class Recipe:
    """A whole run.

    Args:
        data: The text.
        tokenizer: The tokens.
        model: `model_type`, fields of its configuration, and `preset`.
        training: Fields of Seq2SeqTrainingArguments; `noam_scale`, the paper's "learning rate", which gives the peak
            noam_scale * (d_model * warmup_steps)^-0.5; `patience`, evaluations without a better BLEU before stopping;
            `source_learning_rates`, peaks for the encoders of sources, by name; `halve_after_epoch` and
            `loss_per_sentence`, as MultiSourceTrainer has them;
            `max_tokens_per_batch`, number of examples x longest sequence, on each process, which limits batches instead
            of `per_device_train_batch_size`.
    """

    data: DataRecipe
    tokenizer: TokenizerRecipe = field(default_factory=TokenizerRecipe)
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def rate_is_open_ended(self) -> bool:
        """Whether the learning rate at an update is the same however many updates follow."""
        open_ended = ("constant", "constant_with_warmup", "inverse_sqrt")
        return self.training.get("noam_scale") is not None or self.training.get("lr_scheduler_type") in open_ended

    def save(self, path: Path) -> None:
        """Write the recipe, every key resolved, in one step: it tells that a run has begun.

        Args:
            path: The YAML file.
        """
        partial = path.with_name(path.name + ".partial")
        partial.write_text(yaml.safe_dump(asdict(self), sort_keys=False, allow_unicode=True), encoding="utf-8")
        partial.replace(path)

    def source_entries(self) -> dict[str, dict[str, Any]]:
        """What `model.sources` says of every source.

        Returns:
            Fields by source, in order.

        Raises:
            ValueError: If an entry is of no source.
        """
        names = self.data.model_sources
        entries = [{"name": entry} if isinstance(entry, str) else entry for entry in self.model.get("sources", [])]
        for entry in entries:
            if entry.get("name") not in names:
                allowed = ", ".join(names)
                raise ValueError(f"model.sources: unknown source {entry.get('name')!r}; allowed are {allowed}")
        own = {entry["name"]: entry for entry in entries}
        return {name: {"name": name, **own.get(name, {})} for name in names}

    def forms(self) -> dict[str, str]:
        """How the values of every source are read.

        Returns:
            One of `media.FORMS` by source; those of wrapped models follow from their configuration.

        Raises:
            ValueError: If sources other than texts would be concatenated.
        """
        entries = self.source_entries()
        forms = {}
        for name, entry in entries.items():
            origin = entries.get(str(entry.get("share_encoder_with")), entry)
            if entry.get("kind") == "pretrained":
                forms[name] = form_of(encoder_config(origin.get("encoder")))
            else:
                forms[name] = "features" if entry.get("kind") == "features" else "text"
        if self.data.concatenate and set(forms.values()) != {"text"}:
            raise ValueError("data.concatenate joins texts; the sources must all be texts")
        return forms

    def model_config(self, vocab_size: int, source_vocab_sizes: Mapping[str, int], **ids: int) -> Any:
        """Build the model's configuration.

        Args:
            vocab_size: Of the target's tokenizer.
            source_vocab_sizes: Of the sources that have their own.
            **ids: Special token ids.

        Returns:
            The configuration.
        """
        settings = dict(self.model)
        family = FAMILIES[settings.pop("model_type", MultiSourceConfig.model_type)]
        make = family.paper if settings.pop("preset", "default") == "paper" else family
        settings.pop("sources", None)
        sources = []
        for name, entry in self.source_entries().items():
            source = {key: value for key, value in entry.items() if key != "processor"}
            if source.get("encoder") is not None:
                source["encoder"] = encoder_config(source["encoder"])
            if name in source_vocab_sizes:
                source["vocab_size"] = source_vocab_sizes[name]
            sources.append(source)
        return make(sources=sources, vocab_size=vocab_size, **ids, **settings)

    def training_arguments(self) -> Seq2SeqTrainingArguments:
        """Build Transformers' training arguments.

        Returns:
            The arguments; with `noam_scale`, the inverse-square-root schedule whose peak is Noam's.
        """
        settings = {key: value for key, value in self.training.items() if key not in OF_THE_TRAINER}
        scale = self.training.get("noam_scale")
        if scale is not None:
            width = self.model_config(MultiSourceConfig().vocab_size, {}).d_model
            settings["learning_rate"] = scale * (width * settings["warmup_steps"]) ** -0.5
            settings["lr_scheduler_type"] = "inverse_sqrt"
        settings.setdefault("generation_max_length", self.data.max_length)
        settings.setdefault("dataloader_pin_memory", torch.cuda.is_available())  # elsewhere it only warns
        settings.setdefault("use_cpu", not torch.accelerator.is_available())  # or bf16 would be refused on a CPU
        return Seq2SeqTrainingArguments(remove_unused_columns=False, predict_with_generate=True, **settings)


def _known_keys() -> dict[str, set[str]]:
    return {
        "data": {entry.name for entry in fields(DataRecipe)},
        "tokenizer": {entry.name for entry in fields(TokenizerRecipe)},
        "model": {entry.name for family in FAMILIES.values() for entry in fields(family)} - GIVEN_BY_TOKENIZER
        | OF_EVERY_FAMILY,
        "training": {entry.name for entry in fields(Seq2SeqTrainingArguments)} - GIVEN_BY_TRAINING | OF_THE_TRAINER,
    }


def _check_family(model: Mapping[str, Any], preset: str) -> None:
    """Refuse a `model` section that is none of the family's, which its configuration would take for notes."""
    kind = model.get("model_type", MultiSourceConfig.model_type)
    if kind not in FAMILIES:
        raise ValueError(f"model.model_type must be one of {', '.join(FAMILIES)}; got {kind!r}")
    family = FAMILIES[kind]
    if foreign := sorted(model.keys() - OF_EVERY_FAMILY - {entry.name for entry in fields(family)}):
        raise ValueError(f"model.{foreign[0]} is no setting of model_type {kind!r}")
    if preset == "paper" and not hasattr(family, "paper"):
        raise ValueError(f"model.preset: model_type {kind!r} has none; its defaults are its paper's")


def _section_of(key: str) -> tuple[str, str]:
    """The section and bare name of a key given as `key` or `section.key`."""
    known = _known_keys()
    section, _, name = key.rpartition(".")
    if section:
        if name in known.get(section, ()):
            return section, name
    else:
        for section, names in known.items():
            if name in names:
                return section, name
    near = difflib.get_close_matches(name, sorted(set().union(*known.values())), n=3)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    raise ValueError(f"unknown key {key!r}{hint}")


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Read `--key value`, `--key=value` and `--key value value ...` (a list).

    Args:
        arguments: What follows the recipe on the command line.

    Returns:
        Values by key; each value is read as YAML.

    Raises:
        ValueError: If a value stands without a key, or a key without a value.
    """
    groups: dict[str, list[str]] = {}
    key = None
    for argument in arguments:
        if argument.startswith("--"):
            key, given, value = argument[2:].partition("=")
            groups[key] = [value] if given else []
        elif key is None:
            raise ValueError(f"{argument!r} stands without a --key")
        else:
            groups[key].append(argument)
    empty = [key for key, values in groups.items() if not values]
    if empty:
        raise ValueError(f"--{empty[0]} needs a value")
    parsed = {key: [yaml.load(value, Loader) for value in values] for key, values in groups.items()}
    return {key: values if len(values) > 1 else values[0] for key, values in parsed.items()}


def load_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe and apply overrides.

    Args:
        path: The YAML file, or the name of a shipped recipe.
        overrides: Values by `key` or `section.key`.

    Returns:
        The recipe.

    Raises:
        ValueError: If a section or key is unknown, or a value is not allowed; the message names it.
    """
    path = find_recipe(path)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not all(isinstance(part, dict | None) for part in content.values()):
        raise ValueError(f"{path}: a recipe has the sections {', '.join(_known_keys())}, each with `key: value` lines")
    sections: dict[str, dict[str, Any]] = {name: {} for name in _known_keys()}
    for section, values in content.items():
        if section not in sections:
            raise ValueError(f"{path}: unknown section {section!r}; allowed are {', '.join(sections)}")
        for key in values or {}:
            _section_of(f"{section}.{key}")
        sections[section].update(values or {})
    changed = {_section_of(key): value for key, value in (overrides or {}).items()}
    if ("data", "path") in changed:
        sections["data"]["origin"] = None  # it is told of the recipe's own text
    for (section, name), value in changed.items():
        sections[section][name] = value
    if isinstance(sections["data"].get("sources"), str):
        sections["data"]["sources"] = [sections["data"]["sources"]]
    missing = [key for key in ("path", "sources", "target") if key not in sections["data"]]
    if missing:
        raise ValueError(f"{path}: data.{missing[0]} is missing")
    preset = sections["model"].get("preset", "default")
    if preset not in PRESETS:
        raise ValueError(f"model.preset must be one of {', '.join(PRESETS)}; got {preset!r}")
    _check_family(sections["model"], preset)
    unreadable = sections["data"].get("unreadable", "error")
    if unreadable not in UNREADABLE:
        raise ValueError(f"data.unreadable must be one of {', '.join(UNREADABLE)}; got {unreadable!r}")
    if "output_dir" not in sections["training"]:
        raise ValueError(f"{path}: training.output_dir is missing")
    decided = {"noam_scale": ("learning_rate", "lr_scheduler_type"), "halve_after_epoch": DECIDED_BY_EPOCHS}
    for option, keys in decided.items():
        given = sections["training"] if sections["training"].get(option) is not None else {}
        for key in keys:
            if given.get(key) is not None:
                raise ValueError(f"{path}: training.{option} decides training.{key}; give one of them")
    warmup = sections["training"].get("warmup_steps") or 0
    if sections["training"].get("noam_scale") is not None and warmup < 1:  # below 1 Transformers takes it for a share
        raise ValueError(f"{path}: training.noam_scale needs training.warmup_steps, 1 or more")
    recipe = Recipe(
        data=DataRecipe(**sections["data"]),
        tokenizer=TokenizerRecipe(**sections["tokenizer"]),
        model=sections["model"],
        training=sections["training"],
    )
    tokens, longest = recipe.training.get("max_tokens_per_batch"), recipe.data.max_length
    if tokens is not None and (not isinstance(tokens, int) or tokens < longest):
        raise ValueError(
            f"training.max_tokens_per_batch must be a whole number, data.max_length ({longest}) or more, so that every "
            f"example fits; got {tokens!r}"
        )
    return recipe
