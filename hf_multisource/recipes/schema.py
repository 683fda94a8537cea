"""Define the keys of a recipe: section, type, default and meaning of each key.

A recipe has the sections `data`, `tokenizer`, `model` and `training`. The first two are dataclasses of this module. The
keys of `model` are the fields of the configuration class that `model.model_type` names. The keys of `training` are the
fields of `MultiSourceTrainingArguments`. Their meanings are taken from the documentation of these classes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field
from transformers.activations import ACT2FN

from hf_multisource import (
    COMBINERS,
    MultiSourceConfig,
    MultiSourceRNNConfig,
    MultiSourceTrainingArguments,
    SourceConfig,
)
from hf_multisource.data.catalogues import Selection
from hf_multisource.data.interfaces import Family
from hf_multisource.data.masking import mask_evaluated
from hf_multisource.data.placeholders import SYNTAXES
from hf_multisource.data.rows import Row
from hf_multisource.metrics.table import DEFAULT, METRICS
from hf_multisource.recipes.tokenization import KINDS, SPECIAL_TOKENS
from hf_multisource.recipes.values import one_of, show

FAMILIES: dict[str, Family] = {kind.model_type: kind for kind in (MultiSourceConfig, MultiSourceRNNConfig)}
PRESETS = ("default", "paper")
UNREADABLE = ("error", "absent")
CUT, DROP = "cut", "drop"  # values of `data.too_long`
LOSS = "loss"
SEPARATOR = " | "
# Names of the only source and of the target of models of reverse runs.
REVERSE_SOURCE, REVERSE_TARGET = "target", "source"
# Maximum learning rate. Larger values are typing errors: the largest rate of a published recipe is 1.0, with SGD.
HIGHEST_RATE = 100


TEXT, CATALOGUES = DATA_KINDS = ("text", "catalogues")  # values of `data.kind`

SOME_TEXT = Annotated[str, Field(min_length=1, description="text that is not empty")]
ABOVE_ZERO = Annotated[float, Field(gt=0)]


@dataclass
class CorpusRecipe:
    """An entry of `data.train`.

    Args:
        path: Folder of the corpus, or id of a dataset on the Hugging Face Hub. It needs the target and at least one of
            the sources; the others are absent in all its rows.
        split: Name of the split.
        weight: Number of times that each row occurs in an epoch. For the fractional part, this share of the rows occurs
            once more; these rows are drawn once for the whole training, by training.seed.
        tag: Token that begins every text of the sources that are synthetic in this corpus, such as "<BT>" (Caswell et
            al. 2019); a text tags all sources, a mapping of names to tokens tags those. The tokenizer knows the token.
    """

    path: SOME_TEXT
    split: SOME_TEXT = "train"
    weight: ABOVE_ZERO = 1.0
    tag: str | dict[str, str] | None = None

    def tags(self, sources: Sequence[str]) -> dict[str, str]:
        """Return the tag of each synthetic source.

        Args:
            sources: The sources of the recipe.

        Returns:
            The tags by source.
        """
        return dict.fromkeys(sources, self.tag) if isinstance(self.tag, str) else dict(self.tag or {})


@dataclass
class CatalogueRecipe:
    """The key `data.catalogues`.

    Args:
        codes: Codes of sources and the target in paths, by name, such as {en: en-GB}; the others are named by their
            codes.
        paths: Places of catalogues by name, for sources and the target that `data.path` does not give.
        source_language: Name or code of the language of the messages in gettext, Qt and XLIFF files.
        drop_copies: Whether a text of the target counts as absent if it is probably untranslated: it equals the text of
            the source language and of no other language.
        min_languages: Smallest number of columns with a text in a row, counting the target, which no row lacks.
        dev: Share of the files, or messages, in the split "dev".
        test: Share of the files, or messages, in the split "test".
        split_by: Unit of the random split: "files" puts all messages of a file into one split; "messages" assigns each
            message separately, for projects with few files.
    """

    codes: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    source_language: str = Selection.source_language
    drop_copies: bool = Selection.drop_copies
    min_languages: Annotated[int, Field(ge=1)] = Selection.min_languages
    dev: Annotated[float, Field(ge=0, lt=1)] = Selection.dev
    test: Annotated[float, Field(ge=0, lt=1)] = Selection.test
    split_by: Literal["files", "messages"] = "files"


@dataclass
class DataRecipe:
    """The `data` section.

    Args:
        path: Folder of the data (one text file for each split and column, such as train.en, or one JSON Lines or
            Parquet file for each split), or id of a dataset on the Hugging Face Hub. For catalogues, their folder,
            archive or file, with {lang} for the code of a language.
        sources: Names of the source columns, in order.
        target: Name of the target column.
        kind: What is read: "text", or "catalogues" of localization, whose rows are aligned by key and written to the
            folder `catalogues` of the run.
        catalogues: With kind catalogues: how they are read, some of the keys that are listed below.
        train: Name of the training split; or a list of corpora that are mixed, each a mapping with some of the keys of
            an entry, which are listed below.
        dev: Name of the split that is evaluated during training.
        test: Name of the split that `hf-multisource score` decodes.
        max_length: Largest length of a source (of all sources together, with `concatenate`) and of the target, in
            tokens; too_long says what happens to longer texts.
        too_long: What happens to texts that are longer than max_length: "cut" cuts them, "drop" leaves training rows
            out in which a source or the target is longer, and cuts elsewhere. Both are counted.
        concatenate: Whether all sources are joined into a single one, named `all`, which one encoder reads.
        mark_sources: With `concatenate`: whether each text begins with a token of its source, such as `<de>`, in place
            of the separator. Use it if sources can be absent: otherwise the model cannot tell which sources a joined
            text contains.
        joined_dropout: With `mark_sources`: probability that the text of a source is left out of a joined text in
            training, drawn anew each time that the text is read; at least one stays. For sources that have encoders
            of their own, `source_dropout` of the model does the same.
        write_sources: Whether the model also learns to write each source from the others, which helps where there are
            few rows: for each training row, and each of its sources that is present beside another one, there is a
            further row from which this source is absent and whose target is the source's text, behind a token such as
            `<de>`. The model never writes these tokens by itself: they are `suppress_tokens` of its generation
            configuration.
        reverse: Whether the model writes the sources from the target, for `hf-multisource score --rerank`: each row
            becomes one row for each source that is present.
        placeholders: Syntax of placeholders and markup, such as `%S`, `{ $name }` and `<b>`, in texts of user
            interfaces. They are masked by tokens in the sources and the target; training rows whose texts differ in
            them are left out; each hypothesis has exactly those of its first present source. Null: texts are read as
            they are.
        limit: Number of training lines to read, of each corpus; null reads all lines.
        metrics: Metrics of the hypotheses, in the evaluations of training and in `hf-multisource score`; the first one
            is compared in tables, and tells when training has leveled off.
        unreadable: What happens if a picture or a recording cannot be read, or has another sampling rate than its
            encoder's: "error" stops before anything is trained, "absent" trains without that source.
        origin: Where the text is from and under what terms, for the model card; its first address is the place where
            the terms are found. Another `path` on the command line removes it.
    """

    path: Annotated[str, Field(min_length=1, description="text that is not empty")]
    sources: Annotated[list[str], Field(min_length=1, description="a list of names")]
    target: str
    kind: Annotated[str, one_of(DATA_KINDS)] = TEXT
    catalogues: dict[str, Any] = field(default_factory=dict)
    train: Annotated[str | list[dict[str, Any]], Field(description="the name of a split, or a list of mappings")] = (
        "train"
    )
    dev: str = "dev"
    test: str = "test"
    max_length: Annotated[int, Field(ge=2)] = 128
    too_long: Annotated[str, one_of((CUT, DROP))] = CUT
    concatenate: bool = False
    mark_sources: bool = False
    joined_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    write_sources: bool = False
    reverse: bool = False
    placeholders: Annotated[str, one_of(list(SYNTAXES))] | None = None
    limit: Annotated[int, Field(ge=1)] | None = None
    metrics: Annotated[
        list[Annotated[str, one_of(list(METRICS))]],
        Field(min_length=1, description=f"a list of some of {', '.join(METRICS)}"),
    ] = field(default_factory=lambda: list(DEFAULT))
    unreadable: Annotated[str, one_of(UNREADABLE)] = "error"
    origin: str | None = None

    def __post_init__(self) -> None:
        if self.kind != CATALOGUES and self.catalogues:
            raise ValueError(f"data.catalogues is given, but data.kind is {self.kind}: set it to {CATALOGUES}")
        if self.kind == CATALOGUES and not isinstance(self.train, str):
            raise ValueError(
                f"data.train is a list of corpora, but data.kind is {CATALOGUES}, of which training reads one split; "
                "write the rows with `hf-multisource catalogues` and name that folder in data.train"
            )
        if self.reverse and self.concatenate:
            raise ValueError("data.reverse and data.concatenate are both true; set one of them to false")
        if self.mark_sources and not self.concatenate:
            raise ValueError("data.mark_sources is true, but marks joined texts: set data.concatenate to true, too")
        if self.joined_dropout and not self.mark_sources:
            raise ValueError(
                f"data.joined_dropout is {self.joined_dropout}, but only marked texts can be left out of joined texts: "
                "set data.mark_sources to true, too"
            )
        if self.reverse and self.placeholders is not None:
            raise ValueError(
                f"data.placeholders is {self.placeholders}, but reverse runs do not mask texts: leave it out, or set "
                "data.reverse to false"
            )
        if self.write_sources:
            self._check_write_sources()
        for name in self.sources if self.mark_sources or self.write_sources else ():
            if source_marker(name) in SPECIAL_TOKENS:
                key = "mark_sources" if self.mark_sources else "write_sources"
                raise ValueError(
                    f"data.{key} would mark source {name!r} by {source_marker(name)}, a special token of "
                    "tokenizers; rename the source"
                )

    def _check_write_sources(self) -> None:
        if self.reverse:
            raise ValueError("data.write_sources and data.reverse are both true; set one of them to false")
        if self.placeholders is not None:
            raise ValueError(
                f"data.placeholders is {self.placeholders}, but with data.write_sources texts are not masked: leave it "
                "out, or set data.write_sources to false"
            )
        if len(self.sources) < 2:
            raise ValueError(
                f"data.write_sources needs two sources or more, since each is written from the others; got "
                f"{', '.join(self.sources)}"
            )

    def selection(self) -> Selection:
        """Return the settings with which catalogues are read.

        Returns:
            The settings of `write_catalogue_rows`.

        Raises:
            ValueError: If a setting is not allowed; the message names it.
        """
        settings = CatalogueRecipe(**self.catalogues)
        selection = Selection(languages=[*self.sources, self.target], target=self.target, **vars(settings))
        try:
            selection.check()
        except ValueError as error:
            raise ValueError(f"data.catalogues: {error}") from error
        return selection

    @property
    def model_sources(self) -> list[str]:
        """Names of the sources as the model sees them."""
        return [REVERSE_SOURCE] if self.reverse else ["all"] if self.concatenate else self.sources

    @property
    def model_target(self) -> str:
        """Name of the target in the model's rows."""
        return REVERSE_TARGET if self.reverse else self.target

    def languages_of(self, name: str) -> set[str]:
        """Return the columns of the data from which a column of the model's rows is made.

        Args:
            name: Name of a source or of the target, as the model sees them.

        Returns:
            The columns' names; several if texts are joined or the run is a reverse run.
        """
        if name == self.model_target:
            return set(self.sources) if self.reverse else {self.target}
        if self.reverse:
            return {self.target}
        return set(self.sources) if self.concatenate else {name}

    @property
    def corpora(self) -> list[CorpusRecipe]:
        """Corpora that the training reads; a single one if `train` names a split."""
        if isinstance(self.train, str):
            return [CorpusRecipe(self.path, self.train)]
        return [CorpusRecipe(**entry) for entry in self.train]

    @property
    def train_described(self) -> str:
        """Description of the training data: the name of the split, or the corpora with their weights and tags."""
        if isinstance(self.train, str):
            return self.train
        parts = []
        for corpus in self.corpora:
            tags = [f"{name} tagged {tag}" for name, tag in corpus.tags(self.sources).items()]
            parts.append(", ".join([f"{corpus.path}:{corpus.split} x {corpus.weight:g}", *tags]))
        return "; ".join(parts)

    @property
    def target_tokens(self) -> list[str]:
        """Tokens that are added to target texts: with `write_sources`, the markers of the sources."""
        return [source_marker(name) for name in self.sources] if self.write_sources else []

    def tokens_of(self, source: str) -> list[str]:
        """Return the tokens that are added to the texts of a source: markers of sources, and tags.

        Args:
            source: Name of the source as the model sees it.

        Returns:
            The tokens, each once.
        """
        if self.reverse:
            return [reverse_marker(name) for name in self.sources]
        names = self.sources if self.concatenate else [source]
        markers = [source_marker(name) for name in names] if self.mark_sources else []
        tags = [
            tags[name]
            for corpus in self.corpora
            for tags in [corpus.tags(self.sources)]
            for name in names
            if name in tags
        ]
        return list(dict.fromkeys([*markers, *tags]))

    def model_rows(self, rows: Sequence[Row]) -> list[Row]:
        """Convert data rows into rows of the model's sources, for decoding or scoring.

        Args:
            rows: One dict per line; None = absent.

        Returns:
            Output of `arrange_rows`; with `placeholders`, the rows are masked by `mask_evaluated` first.
        """
        if self.placeholders is not None:
            rows = [mask_evaluated(row, self.sources, self.target, self.placeholders) for row in rows]
        return self.arrange_rows(rows)

    def arrange_rows(self, rows: Sequence[Row]) -> list[Row]:
        """Convert data rows, which have already been masked if required, into rows of the model's sources.

        Args:
            rows: One dict per line; None = absent.

        Returns:
            The rows. With `concatenate`, the present sources are joined in order into the source `all`; with
            `mark_sources`, each of them follows its `source_marker`. With `reverse`, there is a `reverse_row` for each
            present source of every row with a target, in order.
        """
        if self.reverse:
            return [
                reverse_row(name, row[self.target], row[name])
                for row in rows
                for name in self.sources
                if row[self.target] and row[name]
            ]
        if not self.concatenate:
            return [dict(row) for row in rows]
        joined = [self._join(row) for row in rows]
        rest = [{key: text for key, text in row.items() if key not in self.sources} for row in rows]
        return [{"all": text, **other} for text, other in zip(joined, rest, strict=True)]

    def _join(self, row: Row) -> str | None:
        """Return the joined texts of a row; None if all sources are absent."""
        texts = {name: text for name in self.sources if (text := row[name])}
        if self.mark_sources:
            return " ".join(f"{source_marker(name)} {text}" for name, text in texts.items()) or None
        return SEPARATOR.join(texts.values()) or None


def source_marker(source: str) -> str:
    """Return the token that marks the beginning of a source's text in joined texts, such as `<de>`.

    Args:
        source: Name of the source.

    Returns:
        The token.
    """
    return f"<{source}>"


def reverse_marker(source: str) -> str:
    """Return the token that tells a reverse model which source to write (Johnson et al. 2017), such as `<2de>`.

    Args:
        source: Name of the source.

    Returns:
        The token.
    """
    return f"<2{source}>"


def reverse_row(source: str, target: str, text: str) -> Row:
    """Return a row for a reverse model, which generates a source from the target.

    Args:
        source: Name of the source.
        target: Text of the target.
        text: Text of the source.

    Returns:
        A row with `target`, the marker of the source followed by the text of the target; and `source`, the text of the
        source.
    """
    return {REVERSE_SOURCE: f"{reverse_marker(source)} {target}", REVERSE_TARGET: text}


@dataclass
class TokenizerRecipe:
    """The `tokenizer` section.

    Args:
        kind: Algorithm of the tokenizer that is trained on the training text; with "symbols", each symbol of the text
            that white space separates is one token.
        vocab_size: Number of tokens, the special ones included; of symbols, the largest number.
        separate: Whether every source and the target get a vocabulary of their own; otherwise all share one.
        load: Folder of a tokenizer to use instead of training one, or of separate ones as
            `hf-multisource tokenizer --separate` writes them.
        null_token: Token, such as "<NULL>", that is read in place of an absent text (Nishimura et al. 2018); a
            tokenizer that is loaded must have it. Null: an absent text is not read.
        romanize: Names of the sources and the target whose Cyrillic letters (Russian, Kazakh) are encoded as Latin
            ones, by ISO 9 (Littell et al. 2019, sec. 3); decoded text of the target is Cyrillic again.
        balance: Whether all languages count alike in a tokenizer of all of them: text of the smaller ones is repeated.
    """

    kind: Annotated[str, one_of(KINDS)] = "bpe"
    vocab_size: Annotated[int, Field(ge=1)] = 8000
    separate: bool = False
    load: str | None = None
    null_token: str | None = None
    romanize: list[str] = field(default_factory=list)
    balance: bool = False


WHOLE = Annotated[int, Field(ge=1)]
COUNT = Annotated[int, Field(ge=0)]
SEED = Annotated[int, Field(ge=0, le=2**32 - 1)]  # range of NumPy's seeds
ZERO_OR_MORE = Annotated[float, Field(ge=0)]
SHARE = Annotated[float, Field(ge=0, lt=1)]

# Fields of a configuration that a recipe may not set: the tokenizer determines them, or they are fixed.
NOT_OF_A_RECIPE = {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"}
OF_EVERY_FAMILY: dict[str, tuple[Any, Any, str]] = {
    "model_type": (
        one_of(list(FAMILIES)),
        MultiSourceConfig.model_type,
        "Kind of model: Transformers (multisource) or LSTMs with attention (multisource-rnn).",
    ),
    "preset": (
        one_of(PRESETS),
        "default",
        'Default values of the keys below; with model_type multisource "paper" gives those of Libovický, Helcl & '
        "Mareček 2018.",
    ),
    "share_encoders": (
        bool,
        False,
        "Whether all sources, which must be of one kind, are encoded by the first one's encoder. Shorthand for "
        "share_encoder_with in every entry of sources.",
    ),
    "init_from": (
        str | None,
        None,
        "Folder or Hub id of a trained model of this package whose weights and tokenizers the training starts with, "
        "for example one with fewer sources. Encoders are found by the name of their source. Parameters that it lacks "
        "are initialized randomly; the others must have the same shape. With combiner gated_serial, new sources do not "
        "change its output at first.",
    ),
    "attn_implementation": (
        str | None,
        "eager on a CPU, else sdpa",
        'Implementation of attention in Transformers: "eager", "sdpa" and others. Training on CPUs is faster with '
        '"eager": in bfloat16 the backward pass of "sdpa" is slow, and in float32 it keeps matrix products from being '
        "computed by oneDNN.",
    ),
}
SOURCES_TYPE = Annotated[list[str | dict[str, Any]], Field(description="a list of names and mappings")]
SOURCES_MEANING = (
    "Settings of single sources: a list of mappings, each with the name of a source and some of the keys of an entry, "
    "which are listed below. Sources that are not listed have the settings of the model."
)
CHECKPOINT = str | dict[str, Any] | None
# Keys of an entry of `model.sources` whose type or meaning in a recipe differs from `SourceConfig`: type, default,
# meaning.
ENTRY_KEYS: dict[str, tuple[Any, Any, str]] = {
    "encoder": (
        CHECKPOINT,
        None,
        "Of a source of kind pretrained: folder or Hub id of a checkpoint whose encoder is used, with its weights; or "
        "a mapping with model_type and fields of its configuration, which is trained from random weights.",
    ),
    "processor": (
        CHECKPOINT,
        None,
        "Of a source of kind pretrained: folder or Hub id of the tokenizer, image processor or feature extractor, if "
        "that is not the encoder's checkpoint; or a mapping with image_processor_type or feature_extractor_type.",
    ),
}
# Types of configuration fields that allow fewer values than their annotations.
MODEL_TYPES: dict[str, Any] = {"activation_function": one_of(sorted(ACT2FN))}
# Fields of the training arguments that a recipe may not set: the package sets them, they have no effect, or they
# publish the model (use `hf-multisource push`).
NOT_OF_TRAINING = {
    *("predict_with_generate", "remove_unused_columns"),
    *("do_train", "do_eval", "do_predict", "local_rank", "resume_from_checkpoint"),
    *(f.name for f in fields(MultiSourceTrainingArguments) if f.name.startswith(("hub_", "push_to_hub"))),
}
# Types of training arguments that allow fewer values than their annotations.
TRAINING_TYPES: dict[str, Any] = {
    "output_dir": SOME_TEXT,
    "lr_scheduler_kwargs": dict[str, Any] | None,
    "learning_rate": Annotated[float, Field(gt=0, le=HIGHEST_RATE)],
    "max_steps": Annotated[Literal[-1] | WHOLE, Field(description="a whole number, 1 or more, or -1 for no limit")],
    "num_train_epochs": ABOVE_ZERO,
    "warmup_steps": ZERO_OR_MORE,
    "per_device_train_batch_size": WHOLE,
    "per_device_eval_batch_size": WHOLE,
    "gradient_accumulation_steps": WHOLE,
    "weight_decay": ZERO_OR_MORE,
    "adam_beta1": SHARE,
    "adam_beta2": SHARE,
    "adam_epsilon": ZERO_OR_MORE,
    "max_grad_norm": ZERO_OR_MORE,
    "neftune_noise_alpha": ZERO_OR_MORE | None,
    "label_smoothing_factor": SHARE,
    "logging_steps": ABOVE_ZERO,
    "eval_steps": ABOVE_ZERO | None,
    "eval_delay": ZERO_OR_MORE,
    "save_steps": ABOVE_ZERO,
    "save_total_limit": WHOLE | None,
    "seed": SEED,
    "data_seed": SEED | None,
    "dataloader_num_workers": COUNT,
    "dataloader_prefetch_factor": WHOLE | None,
    "eval_accumulation_steps": WHOLE | None,
    "generation_max_length": WHOLE | None,
    "generation_num_beams": WHOLE | None,
    "metric_for_best_model": one_of([LOSS, *METRICS, *(f"eval_{name}" for name in (LOSS, *METRICS))]) | None,
    "noam_scale": ABOVE_ZERO | None,
    "patience": WHOLE | None,
    "source_learning_rates": dict[str, ZERO_OR_MORE] | None,
    "halve_after_epoch": WHOLE | None,
    "max_tokens_per_batch": WHOLE | None,
}
# Meanings of training arguments for which the first sentence of the help text is insufficient.
TRAINING_MEANINGS = {
    "output_dir": "Folder of the run: model, processor, recipe, scores and checkpoints. It is made if it is not there.",
    "max_steps": "Number of updates; it replaces num_train_epochs.",
    "warmup_steps": "Updates in which the learning rate rises from 0; a number below 1 is a share of all updates.",
    "lr_scheduler_type": "How the learning rate changes after the warm-up.",
    "logging_steps": "Updates between two lines of the log; a number below 1 is a share of all updates.",
    "eval_steps": "Updates between two evaluations, with eval_strategy steps; null takes logging_steps; a number "
    "below 1 is a share of all updates.",
    "save_steps": "Updates between two checkpoints, with save_strategy steps; a number below 1 is a share of all "
    "updates.",
    "save_total_limit": "Number of checkpoints that are kept; the best one stays, too, with load_best_model_at_end.",
    "eval_strategy": "When the dev split is evaluated.",
    "load_best_model_at_end": "Whether the run ends with its best checkpoint, by metric_for_best_model; eval_strategy "
    "and save_strategy must then be the same.",
    "metric_for_best_model": "Metric of the dev split by which checkpoints are compared: the loss, or one of "
    "data.metrics; null takes the loss.",
    "greater_is_better": "Whether a larger metric_for_best_model is better; null: the direction of the metric.",
    "max_grad_norm": "Largest norm of the gradient; larger gradients are scaled down to it. 0 does not limit it.",
    "report_to": "Trackers that receive the log, such as tensorboard; their packages must be installed. none, or all.",
    "generation_max_length": "Largest length of a decoded text in evaluations, in tokens.",
    "generation_num_beams": "Number of beams in evaluations; null decodes greedily.",
    "use_cpu": "Whether to train on the CPU even if there is an accelerator.",
}
TRAINING_DEFAULTS = {
    "generation_max_length": "data.max_length",
    "use_cpu": "true if there is no accelerator",
    "dataloader_pin_memory": "true if there is a CUDA device",
}
# End of a sentence: a period, white space and the beginning of the next sentence, but not the periods of "e.g. This".
END_OF_SENTENCE = re.compile(r"(?<!\.[a-z])\.\s+(?=[A-Z`'(])")


@dataclass(frozen=True)
class Key:
    """Key of a recipe.

    Attributes:
        name: Name of the key.
        type: Type of the values.
        default: Default value, as a recipe would write it; "required" if the key must be given.
        meaning: Description, in sentences.
    """

    name: str
    type: Any
    default: str
    meaning: str


def documented_arguments(kind: Callable[..., object]) -> dict[str, str]:
    """Read the `Args` section of a docstring in Google's style.

    Args:
        kind: The documented class or function.

    Returns:
        The text of each argument, in one line, with Python's constants as YAML writes them.
    """
    return dict(_read_arguments(f"{inspect.getdoc(kind)}\n"))


@cache
def _read_arguments(text: str) -> tuple[tuple[str, str], ...]:
    """Return name and text of each argument in a docstring; cached, because every read recipe needs them."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    entries = re.split(r"^    (?=\S)", section[1] if section else "", flags=re.MULTILINE)[1:]
    parts = (_as_in_yaml(entry).partition(": ") for entry in entries)
    return tuple((name, meaning) for name, _, meaning in parts)


def _as_in_yaml(text: str) -> str:
    """Join a text into one line and replace Python's constants by YAML's."""
    for constant in ("None", "True", "False"):
        text = re.sub(rf"\b{constant}\b", {"None": "null"}.get(constant, constant.lower()), text)
    return " ".join(text.split())


def first_sentence(text: str) -> str:
    """Return the first sentence of a text.

    Args:
        text: The text; "%%" stands for a percent sign, as in help texts of argparse.

    Returns:
        The sentence.
    """
    text = _as_in_yaml(text.replace("%%", "%"))
    return f"{END_OF_SENTENCE.split(text)[0].rstrip('.')}."


def _default(entry: Any) -> str:
    if entry.default is MISSING and entry.default_factory is MISSING:
        return "required"
    value = entry.default if entry.default_factory is MISSING else entry.default_factory()
    return str(value.value) if isinstance(value, Enum) else value if isinstance(value, str) else show(value)


def _given(keys: Mapping[str, tuple[Any, Any, str]]) -> list[Key]:
    return [
        Key(name, kind, default if isinstance(default, str) else show(default), meaning)
        for name, (kind, default, meaning) in keys.items()
    ]


def _of_dataclass(kind: type) -> list[Key]:
    types, meanings = get_type_hints(kind, include_extras=True), documented_arguments(kind)
    return [Key(f.name, types[f.name], _default(f), meanings[f.name]) for f in fields(kind)]


def _of_family(family: Family) -> list[Key]:
    """Return the keys of a configuration class, whose fields have types, not strings, as annotations."""
    meanings = documented_arguments(family)
    types = {**MODEL_TYPES, "combiner": one_of(list(COMBINERS)), "sources": SOURCES_TYPE}
    meanings["sources"] = SOURCES_MEANING
    names = family.setting_names() - NOT_OF_A_RECIPE
    return [
        Key(f.name, types.get(f.name, f.type), _default(f), meanings[f.name]) for f in fields(family) if f.name in names
    ]


def _of_training() -> list[Key]:
    types = get_type_hints(MultiSourceTrainingArguments)
    keys = []
    for entry in fields(MultiSourceTrainingArguments):
        name, choices = entry.name, entry.metadata.get("choices")
        kind = one_of(list(choices)) if choices else types[name]
        if choices and type(None) in getattr(types[name], "__args__", ()):
            kind = kind | None
        default = "required" if name == "output_dir" else TRAINING_DEFAULTS.get(name, _default(entry))
        if name not in NOT_OF_TRAINING:
            meaning = TRAINING_MEANINGS.get(name) or first_sentence(entry.metadata.get("help", ""))
            keys.append(Key(name, TRAINING_TYPES.get(name, kind), default, meaning))
    return keys


@cache
def data_keys() -> dict[str, Key]:
    """Return the keys of the `data` section.

    Returns:
        The keys by name.
    """
    return {key.name: key for key in _of_dataclass(DataRecipe)}


@cache
def corpus_keys() -> dict[str, Key]:
    """Return the keys of an entry of `data.train`.

    Returns:
        The keys by name.
    """
    return {key.name: key for key in _of_dataclass(CorpusRecipe)}


@cache
def catalogue_keys() -> dict[str, Key]:
    """Return the keys of `data.catalogues`.

    Returns:
        The keys by name.
    """
    return {key.name: key for key in _of_dataclass(CatalogueRecipe)}


@cache
def tokenizer_keys() -> dict[str, Key]:
    """Return the keys of the `tokenizer` section.

    Returns:
        The keys by name.
    """
    return {key.name: key for key in _of_dataclass(TokenizerRecipe)}


def common_keys() -> dict[str, Key]:
    """Return the keys of the `model` section that exist for every `model_type` but are not configuration fields.

    Returns:
        The keys by name.
    """
    return {key.name: key for key in _given(OF_EVERY_FAMILY)}


def family_keys(family: Family) -> dict[str, Key]:
    """Return the keys of the `model` section that are fields of a configuration.

    Args:
        family: Class of the configuration.

    Returns:
        The keys by name.
    """
    return {key.name: key for key in _of_family(family)}


def entry_keys() -> dict[str, Key]:
    """Return the keys of an entry of `model.sources`.

    Returns:
        The keys by name.
    """
    meanings = documented_arguments(SourceConfig)
    own = [Key(f.name, f.type, _default(f), meanings[f.name]) for f in fields(SourceConfig)]
    return {key.name: key for key in [*own, *_given(ENTRY_KEYS)]}


@cache
def training_keys() -> dict[str, Key]:
    """Return the keys of the `training` section.

    Returns:
        The keys by name.
    """
    return {key.name: key for key in _of_training()}


def known_keys() -> dict[str, set[str]]:
    """Return the names of all keys.

    Returns:
        Names by section, in the order of a recipe.
    """
    of_families = {name for family in FAMILIES.values() for name in family_keys(family)}
    return {
        "data": set(data_keys()),
        "tokenizer": set(tokenizer_keys()),
        "model": set(common_keys()) | of_families,
        "training": set(training_keys()),
    }
