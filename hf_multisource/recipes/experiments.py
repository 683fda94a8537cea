"""Read experiments: YAML files that declare the rows of one table, each trained with several seeds.

extends:    name or file of an experiment that this one changes; mappings are merged, everything else is replaced
recipe:     the recipe of all rows
path, sources, target, origin:  the data, as in the section `data` of a recipe
train:      keys of the recipe that all rows override
seeds:      seeds of every row
score:      fields of `Scoring`, such as num_beams
baseline:   the row with which all others are compared
analyzed:   a trained row that is analyzed on the page: it is also scored without each source and with each source
            alone, its symbol errors are counted, and the figure at the top of the page shows it
words:      a list of words, each with its texts in the target and the present sources, by name: the page shows the
            effect of each source on them, in the row `analyzed`
margin:     equivalence margin: smaller differences of the first metric do not matter
rows:       name -> label; `shown: false` if the row is only a part of another one; `parameters_as: ROW` if a row of the
            kind `train` gets the smallest width with which it has as many parameters as another one (unless its own
            keys set d_model); `begins_with: ROW` if its training starts from the weights of another row of that kind,
            of the same seed; `against: ROW` if it is compared with another row than the baseline; and one of
    train: {…}                        trained with these keys of the recipe; the key `sources` names some of the
                                      experiment's sources, if the row reads only these
    best_source: {…}                  trained like `train`, on each source alone; the row is the source that is best on
                                      the dev split
    rerank: {of: ROW, reverse: ROW}   hypotheses of a row, reranked by a model from the target to the sources
    ensemble: {of: ROW}               all seeds of a row decode together; with `reverse: ROW` their hypotheses are
                                      reranked by the first seed of that row
    ensemble: {of: [ROW, …]}          for each seed, the models of these rows decode together; with `reverse: ROW` their
                                      hypotheses are reranked by the same seed of that row
    copy: {source: SOURCE}            the text of a source is the hypothesis; nothing is trained
    memory: {sources: […]}            the hypothesis is the target of a training row that has the same texts in these
                                      sources; without such a row it is empty, or with `similar: true` the translation
                                      of the most similar text
    memory_first: {of: ROW}           the answer of the memory if it holds the texts of the row's sources, otherwise the
                                      hypothesis of the row; with `sources: […]`, these sources are looked up instead
published:  figures of other systems: label, citation, scores (by metric), number (by the number of present sources)
quick:      rows, seeds and train of `--quick`

Rows that are not shown are run when other rows need them. The runs are in RUNS/<experiment>/<row>/seed-<n>.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hf_multisource.data.checks import check_choice
from hf_multisource.recipes.reading import read_yaml
from hf_multisource.recipes.recipe import Recipe, load_recipe
from hf_multisource.recipes.seeds import seed_folder
from hf_multisource.recipes.shipped import comment_of, find_yaml
from hf_multisource.recipes.values import show

EXPERIMENTS = Path(__file__).with_name("experiments")
MEMORY_FIRST = "memory_first"
# Kind of row -> required settings and optional settings; None: the settings are keys of the recipe.
KINDS: dict[str, tuple[set[str], set[str]] | None] = {
    "train": None,
    "best_source": None,
    "rerank": ({"of", "reverse"}, set()),
    "ensemble": ({"of"}, {"reverse"}),
    "copy": ({"source"}, set()),
    "memory": ({"sources"}, {"similar"}),
    MEMORY_FIRST: ({"of"}, {"sources"}),
}
LOOKED_UP = ("copy", "memory")  # kinds of rows without a model; such rows have no seeds
SOURCE_KEYS = ("sources", "data.sources")  # keys of a recipe that select the sources


@dataclass(frozen=True)
class ExperimentRow:
    """One row of an experiment.

    Args:
        name: Name of the row and of its folder.
        label: Name of the row on the page.
        kind: One of `KINDS`.
        settings: Keys of the recipe; for `rerank`, `ensemble` and `memory_first`, names of rows; for `copy` and
            `memory`, names of sources.
        shown: Whether the page shows the row.
        parameters_as: Name of the row whose number of parameters this row must reach by its width; None: the width of
            the recipe.
        against: Name of the row with which this row is compared; None: the baseline of the experiment.
        begins_with: Name of the row whose weights initialize the training; None: random weights.
    """

    name: str
    label: str
    kind: str
    settings: dict[str, Any]
    shown: bool = True
    parameters_as: str | None = None
    against: str | None = None
    begins_with: str | None = None

    @property
    def made_of(self) -> list[str]:
        """Names of the rows whose hypotheses or models this row reads."""
        reverse = self.settings.get("reverse") if self.kind in ("rerank", "ensemble") else None
        return [*self.members, *([reverse] if reverse else [])]

    @property
    def members(self) -> list[str]:
        """Names of the rows that write the hypotheses of this row; empty if the row itself writes them."""
        if self.kind not in ("rerank", "ensemble", MEMORY_FIRST):
            return []
        of = self.settings["of"]
        return of if isinstance(of, list) else [of]

    @property
    def is_pooled(self) -> bool:
        """Whether all seeds form one cell, as in an ensemble of the seeds of one row."""
        return self.kind == "ensemble" and not isinstance(self.settings["of"], list)

    @property
    def needs(self) -> list[str]:
        """Names of the rows that must be finished before this row is run."""
        return [*self.made_of, *([self.begins_with] if self.begins_with else [])]


@dataclass(frozen=True)
class Experiment:
    """Experiment with all settings resolved; the fields are explained in the docstring of this module.

    Args:
        name: Name of the experiment, its folder and its page.
        recipe: Name or file of a recipe.
        path: Folder or Hub id of the data.
        sources: Names of the sources.
        target: Name of the target.
        rows: The rows, in order.
        baseline: Name of the row with which the others are compared.
        origin: Where the data come from.
        train: Keys of the recipe for all rows.
        seeds: The seeds.
        score: Fields of `Scoring`.
        margin: Equivalence margin of the first metric.
        analyzed: Name of the row that the page looks at more closely.
        words: Single words to analyze, each a mapping from the target and the sources to texts.
        published: Published figures of other systems.
        quick: Changes that `--quick` applies.
        is_quick: Whether these changes have been applied.
        chosen: Names of the rows to run; None: all.
        command: The command line that runs the whole experiment.
    """

    name: str
    recipe: str
    path: str
    sources: list[str]
    target: str
    rows: dict[str, ExperimentRow]
    baseline: str | None = None
    origin: str | None = None
    train: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [1])
    score: dict[str, Any] = field(default_factory=dict)
    margin: float | None = None
    analyzed: str | None = None
    words: list[dict[str, str]] = field(default_factory=list)
    published: list[dict[str, Any]] = field(default_factory=list)
    quick: dict[str, Any] = field(default_factory=dict)
    is_quick: bool = False
    chosen: list[str] | None = None
    command: str = ""

    def chosen_rows(self) -> list[ExperimentRow]:
        """Return the rows to run.

        Returns:
            The rows in the order of the experiment.
        """
        return [row for name, row in self.rows.items() if name in (self.chosen or self.rows)]

    def reference_of(self, row: ExperimentRow) -> str | None:
        """Return the name of the row with which a row is compared.

        Args:
            row: The row.

        Returns:
            The name; None for the baseline itself, unless its `against` names a row.
        """
        return row.against or (self.baseline if self.baseline != row.name else None)

    def sources_of(self, row: ExperimentRow) -> list[str]:
        """Return the sources that a row reads.

        Args:
            row: A row of any kind.

        Returns:
            The names in the order in which the row reads them; for the kind `best_source`, all candidates.
        """
        if row.kind == "copy":
            return [row.settings["source"]]
        if row.members:
            return self.sources_of(self.rows[row.members[0]])
        settings = merge(self.train, row.settings)
        return next((list(settings[key]) for key in SOURCE_KEYS if key in settings), self.sources)

    def overrides(self, row: ExperimentRow, folder: Path, seed: int, source: str | None = None) -> dict[str, Any]:
        """Return the keys of the recipe that one run overrides.

        Args:
            row: A row that is trained.
            folder: Folder of the run.
            seed: Seed of the run.
            source: The only source; None: the sources of the row.

        Returns:
            Values by key.
        """
        settings = {key: value for key, value in merge(self.train, row.settings).items() if key not in SOURCE_KEYS}
        return {
            "path": self.path,
            "sources": [source] if source else self.sources_of(row),
            "target": self.target,
            **({"origin": self.origin} if self.origin else {}),
            **settings,
            **({"model.init_from": str(self.initial_folder(row, folder, seed))} if row.begins_with else {}),
            "output_dir": str(folder),
            "seed": seed,
        }

    def initial_folder(self, row: ExperimentRow, folder: Path, seed: int) -> Path | None:
        """Return the folder of the run whose weights initialize another run.

        Args:
            row: A row that is trained.
            folder: Folder of the initialized run, EXPERIMENT/ROW/SEED.
            seed: Seed of the run.

        Returns:
            The folder of the initializing run; None if the run starts from random weights.
        """
        return seed_folder(folder.parent.parent / row.begins_with, seed) if row.begins_with else None

    def load_recipe(self, row: ExperimentRow, folder: Path, seed: int, source: str | None = None) -> tuple[Recipe, str]:
        """Return the recipe of one run.

        Args:
            row: See `overrides`.
            folder: See `overrides`.
            seed: See `overrides`.
            source: See `overrides`.

        Returns:
            The recipe, and the command line that trains it.
        """
        changed = self.overrides(row, folder, seed, source)
        words = [word for key, value in changed.items() for word in (f"--{key}", *words_of(value))]
        return load_recipe(self.recipe, changed), shlex.join(["hf-multisource", "train", self.recipe, *words])


def words_of(value: Any) -> list[str]:
    """Format the value of a key of a recipe as command-line words.

    Args:
        value: The value.

    Returns:
        One word, or one word per item of a list.
    """
    if isinstance(value, list) and value and not any(isinstance(item, list | dict) for item in value):
        return [word for item in value for word in words_of(item)]
    return [value if isinstance(value, str) else json.dumps(value)]


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively: nested mappings are merged, all other values are replaced.

    Args:
        base: A mapping.
        changes: Values that are added to or replace those of `base`.

    Returns:
        The merged mapping, in the order of `base`.
    """
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def shipped_experiments() -> dict[str, Path]:
    """Return the shipped experiments.

    Returns:
        Name -> file, sorted by name.
    """
    return {path.stem: path for path in sorted(EXPERIMENTS.glob("*.yaml"))}


def describe_experiments() -> str:
    """Return the names of the shipped experiments with the first sentence of each.

    Returns:
        One line per experiment.
    """
    return "".join(f"{name:<32}{comment_of(path)}\n" for name, path in shipped_experiments().items())


def read_experiment(name: str | Path) -> tuple[str, dict[str, Any]]:
    """Read the file of an experiment and the files that it extends.

    Args:
        name: A file, or the name of a shipped experiment.

    Returns:
        The experiment's name and its keys.

    Raises:
        ValueError: If the file does not hold a mapping.
    """
    path = find_yaml(name, shipped_experiments(), "experiment")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: an experiment is a mapping with recipe, rows and other keys")
    if (base := content.pop("extends", None)) is None:
        return path.stem, content
    beside = path.with_name(f"{base}.yaml")
    return path.stem, merge(read_experiment(beside if beside.exists() else base)[1], content)


def load_experiment(
    name: str | Path,
    *,
    data: str | None = None,
    sources: Sequence[str] | None = None,
    target: str | None = None,
    rows: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    quick: bool = False,
) -> Experiment:
    """Read and validate an experiment.

    Args:
        name: A file, or the name of a shipped experiment.
        data: Folder or Hub id of the data; None: the value in the experiment.
        sources: Names of the sources; None: the value in the experiment. With other sources or another target, the name
            of the data folder is appended to the name of the experiment, and published figures and single words are
            left out.
        target: Name of the target; None: the value in the experiment.
        rows: Names of the rows to run; None: all. The rows that these rows read are added.
        seeds: The seeds; None: the value in the experiment.
        quick: Whether to apply the key `quick`; `-quick` is appended to the name.

    Returns:
        The experiment.

    Raises:
        ValueError: If a key is unknown or missing, or a value is not allowed; the message names the key.
    """
    found, content = read_experiment(name)
    given = {"path": data, "sources": sources and list(sources), "target": target, "seeds": seeds and list(seeds)}
    other = any(given[key] not in (None, content.get(key)) for key in ("sources", "target"))
    if quick:
        if not content.get("quick"):
            raise ValueError(f"experiment {found}: quick is missing, so it has no quick form")
        changes = content["quick"]
        content = merge(content, {key: changes[key] for key in ("seeds", "train") if key in changes})
        rows, found = rows or changes.get("rows"), f"{found}-quick"
    content |= {key: value for key, value in given.items() if value is not None}
    if other:
        found = f"{found}-{_name_of(str(content.get('path')))}"
        content |= {"published": [], "words": [], "origin": None}
    allowed = [one.name for one in fields(Experiment) if one.name not in ("name", "is_quick", "chosen", "command")]
    for key in content:
        check_choice(tuple(allowed), **{f"experiment {found}: key": key})
    for key, option in (("recipe", ""), ("path", "--data"), ("sources", "--sources"), ("target", "--target")):
        if not content.get(key):
            raise ValueError(f"experiment {found}: {key} is missing{option and f'; give {option}'}")
    entries = content.get("rows")
    if not isinstance(entries, dict) or not entries:
        raise ValueError(f"experiment {found}: rows must be a mapping from names to settings; got {show(entries)}")
    experiment = Experiment(
        **{**content, "name": found, "rows": {row: _read_row(row, entry) for row, entry in entries.items()}},
        is_quick=quick,
        command=_command(name, data, sources, target, quick),
    )
    _check(experiment)
    experiment = experiment if rows is None else replace(experiment, chosen=_chosen(experiment, rows))
    _check_sources(experiment)
    return experiment


def _name_of(path: str) -> str:
    """Return the name of a data folder or Hub dataset in characters that are safe in file names and Markdown links."""
    folder = Path(path)
    return re.sub(r"[^\w.-]+", "_", folder.resolve().name if folder.is_dir() else folder.name)


def _command(name: str | Path, data: str | None, sources: Sequence[str] | None, target: str | None, quick: bool) -> str:
    """Return the command line that corresponds to the arguments of `load_experiment`."""
    options = {"--data": data and [data], "--sources": sources, "--target": target and [target]}
    words = [word for option, values in options.items() if values for word in (option, *values)]
    return shlex.join(["hf-multisource", "reproduce", str(name), *words, *(["--quick"] if quick else [])])


def _read_row(name: str, entry: Any) -> ExperimentRow:
    """Parse and validate the entry of a row."""
    kinds = [key for key in KINDS if key in entry] if isinstance(entry, dict) else []
    if len(kinds) != 1:
        raise ValueError(f"rows.{name} must have one of {', '.join(KINDS)}; got {show(entry)}")
    kind = kinds[0]
    for key in entry:
        check_choice(
            ("label", "shown", "against", *(["parameters_as", "begins_with"] if kind == "train" else []), kind),
            **{f"rows.{name}: key": key},
        )
    settings, keys = entry[kind] or {}, KINDS[kind]
    if not isinstance(settings, dict) or (keys is not None and not keys[0] <= set(settings) <= keys[0] | keys[1]):
        needed = "be a mapping" if keys is None else f"have {' and '.join(sorted(keys[0]))}"
        allowed = "" if keys is None or not keys[1] else f", and may have {' and '.join(sorted(keys[1]))}"
        raise ValueError(f"rows.{name}.{kind} must {needed}{allowed}; got {show(settings)}")
    if not isinstance(similar := settings.get("similar", False), bool) and kind == "memory":
        raise ValueError(f"rows.{name}.memory.similar must be true or false; got {show(similar)}")
    if keys is not None and isinstance(of := settings.get("of"), list):
        if kind != "ensemble":
            raise ValueError(f"rows.{name}.{kind}.of must be the name of a row; got {show(of)}")
        if not 1 < len(of) == len({*map(str, of)}):
            raise ValueError(
                f"rows.{name}.ensemble.of must be the name of a row, or several that differ; got {show(of)}"
            )
    matched = entry.get("parameters_as") if not {"d_model", "model.d_model"} & set(settings) else None
    label, shown = str(entry.get("label", name)), bool(entry.get("shown", True))
    return ExperimentRow(name, label, kind, settings, shown, matched, entry.get("against"), entry.get("begins_with"))


def _check(experiment: Experiment) -> None:
    """Check that referenced rows exist, words have the names of columns, and list values are lists."""
    trained = tuple(name for name, row in experiment.rows.items() if row.kind == "train")
    for row in experiment.rows.values():
        for needed in row.made_of:
            check_choice(trained, **{f"rows.{row.name}.{row.kind}": needed})
            if row.kind == MEMORY_FIRST and not experiment.rows[needed].shown:
                raise ValueError(
                    f"rows.{row.name}.{row.kind} is {needed!r}, which is not scored because it has `shown: false`"
                )
        fixed = tuple(name for name in trained if experiment.rows[name].parameters_as is None)
        check_choice(fixed, **{f"rows.{row.name}.parameters_as": row.parameters_as})
        others = tuple(name for name in experiment.rows if name != row.name)
        check_choice(others, **{f"rows.{row.name}.against": row.against})
        above = [name for name in list(experiment.rows)[: list(experiment.rows).index(row.name)] if name in trained]
        check_choice(above, **{f"rows.{row.name}.begins_with": row.begins_with})
    check_choice(tuple(experiment.rows), baseline=experiment.baseline)
    check_choice(tuple(name for name in trained if experiment.rows[name].shown), analyzed=experiment.analyzed)
    if not (isinstance(experiment.words, list) and all(isinstance(word, dict) for word in experiment.words)):
        raise ValueError(
            f"experiment {experiment.name}: words must be a list of mappings; got {show(experiment.words)}"
        )
    if experiment.words and experiment.analyzed is None:
        raise ValueError(f"experiment {experiment.name}: words needs analyzed, the row whose models read them")
    read = experiment.sources_of(experiment.rows[experiment.analyzed]) if experiment.analyzed else []
    for word in experiment.words:
        for key in word:
            check_choice((*experiment.sources, experiment.target), **{"words: name": key})
        if experiment.target not in word or not set(read) & set(word):
            raise ValueError(f"words: each needs {experiment.target} and a source; got {show(word)}")
    for key, kind in (("sources", str), ("seeds", int)):
        values = getattr(experiment, key)
        if not (isinstance(values, list) and values and all(isinstance(value, kind) for value in values)):
            raise ValueError(f"experiment {experiment.name}: {key} must be a list; got {show(values)}")
        if len(set(values)) < len(values):
            raise ValueError(f"experiment {experiment.name}: {key} must all differ; got {show(values)}")


def _check_sources(experiment: Experiment) -> None:
    """Check the sources of the rows that will be run; other rows may name sources that the data lack."""
    for name in experiment.chosen or experiment.rows:
        row = experiment.rows[name]
        given = next((key for key in ("source", *SOURCE_KEYS) if key in row.settings), None)
        if given is None:
            continue
        place, values = f"rows.{name}.{row.kind}.{given}", row.settings[given]
        if row.kind == "best_source":
            raise ValueError(f"{place} must be left out: models are trained on each source of the experiment alone")
        values = [values] if given == "source" else values
        if not isinstance(values, list) or not values or len({*map(str, values)}) < len(values):
            raise ValueError(f"{place} must be a list of different sources; got {show(values)}")
        for source in values:
            check_choice(tuple(experiment.sources), **{place: source})
    for name in experiment.chosen or experiment.rows:
        row = experiment.rows[name]
        first, *others = row.made_of or [name]
        for other in others:
            own, different = (experiment.sources_of(experiment.rows[one]) for one in (first, other))
            if own != different:
                raise ValueError(
                    f"rows.{name}.{row.kind}: the rows must have the same sources; {first} has {', '.join(own)}, "
                    f"{other} has {', '.join(different)}"
                )


def _chosen(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """Return the given rows and all rows that they read, in the order of the experiment."""
    for name in names:
        check_choice(tuple(experiment.rows), rows=name)
    wanted, new = set(names), list(names)
    while new:
        needed = set(experiment.rows[new.pop()].needs) - wanted
        wanted |= needed
        new += needed
    return [name for name in experiment.rows if name in wanted]
