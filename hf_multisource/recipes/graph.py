"""Read graphs of corpora and models from a YAML file, and check the inputs of all steps before anything runs.

work:       folder to which all steps write, with one subfolder per step
languages:  names of all languages, as columns of corpora
corpora:    name -> path: FOLDER, languages: […], split: train
held_out:   name -> the same (split: test); training corpora must not share a 6-gram with a held-out set
steps:      name -> one of the following, each with the `options` of its command and its launcher `launch`
    train: RECIPE, on: CORPUS or mix, dev: SET, sources: […], target: …      options are keys of the recipe
    translate: CORPUS or SET, by: TRAIN STEP, into: LANGUAGE                  the corpus with one more column
    prepare: CORPUS                                                           the corpus without held-out sets
    filter: CORPUS, forward: TRAIN STEP, backward: TRAIN STEP
    mix: [CORPUS, {corpus: CORPUS, weight: 2, tag: {…}}, …]                   entries as in `data.train` of a recipe
    score: TRAIN STEP, on: SET

The name of a step that makes a corpus (translate, prepare, filter) can be used wherever a corpus is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from hf_multisource.data.checks import check_at_least
from hf_multisource.data.prepare import is_same_split
from hf_multisource.data.streams import stream_rows
from hf_multisource.messages import shown
from hf_multisource.recipes.reading import read_yaml
from hf_multisource.recipes.schema import known_keys

NAME = re.compile(r"[A-Za-z][\w-]*")
SECTIONS = ("work", "languages", "corpora", "held_out", "steps")
# Kind of step -> its keys besides `options` and `launch` -> whether the key is required.
KINDS: dict[str, dict[str, bool]] = {
    "train": {"on": True, "dev": True, "sources": True, "target": True},
    "translate": {"by": True, "into": True},
    "prepare": {},
    "filter": {"forward": True, "backward": True},
    "mix": {},
    "score": {"on": True},
}
# Options, and for `train` full keys of recipes, that the graph sets itself, so that steps may not set them.
GIVEN = {
    "train": {
        *("data.path", "data.train", "data.dev", "data.test", "data.sources", "data.target", "data.limit"),
        "training.output_dir",
    },
    "translate": {"out", "input", "jsonl", "n_best", "ensemble"},
    "prepare": {"languages", "out", "split", "held_out"},
    "filter": {"languages", "out", "split", "forward", "backward"},
    "score": {"data", "split", "out", "target", "sources", "rerank", "ensemble", "limit"},
}
GUARD = "-guarded"  # suffix of the names of steps that remove held-out sets from a corpus


@dataclass(frozen=True)
class Corpus:
    """Corpus of line-aligned texts in several languages.

    Args:
        name: Name in the graph.
        path: Folder of the corpus.
        split: Name of the split.
        languages: Names of the columns.
        held_out: Whether the corpus is a held-out set, or made from one.
        guarded: Whether the held-out sets have been removed from the corpus.
        made: Whether a step of the graph makes the corpus.
    """

    name: str
    path: str
    split: str
    languages: tuple[str, ...]
    held_out: bool = False
    guarded: bool = False
    made: bool = False


@dataclass(frozen=True)
class Part:
    """A corpus in a mix.

    Args:
        corpus: Name of the corpus.
        weight: See [`CorpusRecipe`].
        tag: See [`CorpusRecipe`].
    """

    corpus: str
    weight: float = 1.0
    tag: str | dict[str, str] | None = None


@dataclass(frozen=True)
class Step:
    """Step of a graph.

    Args:
        name: Name of the step.
        kind: One of `KINDS`.
        subject: The value of the key that names the kind: a recipe for `train`, otherwise the name of the input; "" for
            a `mix`.
        settings: The other keys of the kind.
        options: Options of the command; for `train`, keys of the recipe.
        launch: Launcher, the words in front of the command.
        parts: The corpora of a `mix`.
    """

    name: str
    kind: str
    subject: str
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    launch: str = ""
    parts: tuple[Part, ...] = ()

    @property
    def reads(self) -> list[str]:
        """Names of the corpora, held-out sets and steps that this step reads."""
        if self.kind == "mix":
            return [part.corpus for part in self.parts]
        named = [self.settings[key] for key in ("on", "dev", "by", "forward", "backward") if key in self.settings]
        return named if self.kind == "train" else [self.subject, *named]


@dataclass
class Graph:
    """Validated graph of steps.

    Args:
        work: Folder to which all steps write.
        languages: Names of all languages.
        corpora: All corpora and held-out sets by name, including corpora that steps make.
        steps: The steps in a valid order of execution, including the added steps that guard corpora.
    """

    work: Path
    languages: tuple[str, ...]
    corpora: dict[str, Corpus]
    steps: dict[str, Step]

    @property
    def held_out(self) -> list[Corpus]:
        """The held-out sets that the graph declares."""
        return [corpus for corpus in self.corpora.values() if corpus.held_out and not corpus.made]

    def parts(self, name: str) -> tuple[Part, ...]:
        """Return the corpora that a training reads.

        Args:
            name: Name of a corpus or of a mix.

        Returns:
            The corpora with their weights.
        """
        return self.steps[name].parts if name not in self.corpora else (Part(name),)


class _Reader:
    """Reader of one graph; every error message names the file and the key.

    Args:
        path: The file.
        content: Content of the file.
        seed: Seed of all trainings.
    """

    def __init__(self, path: Path, content: Any, seed: int | None) -> None:
        self.path = path
        self.seed = seed
        self.content = self.mapping(content, "the file", SECTIONS, required=("work", "languages", "corpora", "steps"))
        self.languages = tuple(self.names(self.content["languages"], "languages"))
        self.corpora: dict[str, Corpus] = {}
        self.steps: dict[str, Step] = {}

    def fail(self, message: str) -> ValueError:
        """Return an error whose message begins with the path of the file."""
        return ValueError(f"{self.path}: {message}")

    def mapping(self, value: Any, place: str, allowed: Collection[str], required: Sequence[str] = ()) -> dict[str, Any]:
        """Check the keys of a mapping; if `allowed` is empty, all keys are allowed."""
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise self.fail(f"{place} must be a mapping, not {shown(value)}")
        if allowed and (unknown := [key for key in value if key not in allowed]):
            raise self.fail(f"{place}: unknown key {unknown[0]!r}; allowed: {', '.join(allowed)}")
        if missing := [key for key in required if key not in value]:
            raise self.fail(f"{place}: the key {missing[0]!r} is missing")
        return value

    def text(self, value: Any, place: str) -> str:
        """Check that a value is a nonempty text."""
        if not isinstance(value, str) or not value:
            raise self.fail(f"{place} must be text that is not empty, not {shown(value)}")
        return value

    def names(self, value: Any, place: str) -> list[str]:
        """Check that a value is a list of distinct names."""
        entries = value if isinstance(value, list) else [value]
        found = [self.text(entry, place) for entry in entries]
        if not found or len(set(found)) < len(found):
            raise self.fail(f"{place} must name one or more, each once, not {shown(value)}")
        return found

    def languages_of(self, value: Any, place: str) -> tuple[str, ...]:
        """Check a list of languages."""
        found = self.names(value, place)
        for name in found:
            if name not in self.languages:
                raise self.fail(f"{place}: unknown language {name!r}; languages: {', '.join(self.languages)}")
        return tuple(found)

    def read_corpora(self) -> None:
        """Read the corpora and the held-out sets."""
        for section, split in (("corpora", "train"), ("held_out", "test")):
            for name, entry in self.mapping(self.content.get(section, {}), section, ()).items():
                place = f"{section}.{name}"
                self.new_name(name, place)
                keys = self.mapping(entry, place, ("path", "languages", "split"), required=("path", "languages"))
                languages = self.languages_of(keys["languages"], f"{place}.languages")
                folder = self.text(keys["path"], f"{place}.path")
                if not Path(folder).is_dir():
                    raise self.fail(f"{place}: missing corpus: there is no folder {folder}")
                own = self.text(keys.get("split", split), f"{place}.split")
                self.corpora[name] = Corpus(name, folder, own, languages, held_out=section == "held_out")

    def new_name(self, name: str, place: str) -> None:
        """Check that a name is valid and not in use."""
        if not NAME.fullmatch(name) or name.endswith(GUARD):
            raise self.fail(f"{place}: a name has letters, digits, _ and -, begins with a letter, and not with {GUARD}")
        if name in self.corpora or name in self.steps:
            raise self.fail(f"{place}: the name {name!r} is given twice")

    def read_steps(self) -> None:
        """Read the steps, without resolving the names of their inputs."""
        for name, entry in self.mapping(self.content["steps"], "steps", ()).items():
            place = f"steps.{name}"
            self.new_name(name, place)
            keys = self.mapping(entry, place, ())
            kinds = [key for key in keys if key in KINDS]
            if len(kinds) != 1:
                raise self.fail(
                    f"{place}: needs one key that says what the step does, of {', '.join(KINDS)}; it has "
                    f"{', '.join(kinds or keys) or 'none'}"
                )
            kind = kinds[0]
            extra = () if kind == "mix" else ("options", "launch")
            required = [key for key, needed in KINDS[kind].items() if needed]
            self.mapping(keys, place, (kind, *KINDS[kind], *extra), required)
            options = self.mapping(keys.get("options", {}), f"{place}.options", ())
            if given := [key for key in options if _is_given(kind, key)]:
                raise self.fail(f"{place}.options: {given[0]!r} is set by the graph; leave it out")
            if kind == "train" and self.seed is not None:
                if own := [key for key in options if key.rpartition(".")[2] == "seed"]:
                    raise self.fail(f"{place}.options: {own[0]!r} is set, so --seed {self.seed} cannot be given")
                options = {**options, "seed": self.seed}
            settings: dict[str, Any] = {
                key: self.text(keys[key], f"{place}.{key}") for key in KINDS[kind] if key != "sources"
            }
            if kind == "train":
                settings["sources"] = list(self.languages_of(keys["sources"], f"{place}.sources"))
            for key in {"target", "into"} & settings.keys():
                self.languages_of(settings[key], f"{place}.{key}")
            parts = tuple(self.read_parts(keys["mix"], f"{place}.mix")) if kind == "mix" else ()
            subject = "" if kind == "mix" else self.text(keys[kind], f"{place}.{kind}")
            launch = self.text(keys["launch"], f"{place}.launch") if "launch" in keys else ""
            self.steps[name] = Step(name, kind, subject, settings, options, launch, parts)

    def read_parts(self, value: Any, place: str) -> Iterator[Part]:
        """Read the corpora of a mix."""
        if not isinstance(value, list) or not value:
            raise self.fail(f"{place} must be a list of corpora, not {shown(value)}")
        for number, entry in enumerate(value):
            entry = {"corpus": entry} if isinstance(entry, str) else entry
            keys = self.mapping(entry, f"{place}[{number}]", ("corpus", "weight", "tag"), required=("corpus",))
            yield Part(**{**keys, "corpus": self.text(keys["corpus"], f"{place}[{number}].corpus")})

    def order(self) -> list[str]:
        """Return the names of the steps in a valid order of execution."""
        for step in self.steps.values():
            for name in step.reads:
                if name not in self.steps and name not in self.corpora:
                    known = ", ".join([*self.corpora, *(one for one in self.steps if one != step.name)])
                    raise self.fail(f"steps.{step.name}: there is no corpus, set or step {name!r}; there are: {known}")
        try:
            reads = {name: [one for one in step.reads if one in self.steps] for name, step in self.steps.items()}
            return list(TopologicalSorter(reads).static_order())
        except CycleError as error:
            raise self.fail(f"steps form a cycle: {' -> '.join(reversed(error.args[1]))}") from error

    def build(self) -> Graph:
        """Build the graph, checking every step after the steps that it reads."""
        self.read_corpora()
        self.read_steps()
        work = Path(self.text(self.content["work"], "work"))
        if self.seed is not None:
            work = work / f"seed-{self.seed}"
        graph = Graph(work, self.languages, self.corpora, {})
        for name in self.order():
            self.check_step(graph, self.steps[name])
            graph.steps[name] = self.steps[name]
        return graph

    def corpus(self, graph: Graph, step: Step, key: str, name: str, *, held_out: bool | None = None) -> Corpus:
        """Return a corpus that a step names."""
        place = f"steps.{step.name}.{key}"
        if name not in graph.corpora:
            raise self.fail(f"{place}: {name!r} is a step of kind {self.steps[name].kind}, which makes no corpus")
        corpus = graph.corpora[name]
        if held_out is False and corpus.held_out:
            raise self.fail(f"{place}: {name!r} is a held-out set or is made of one; nothing may be trained on it")
        if held_out and not corpus.held_out:
            raise self.fail(f"{place}: {name!r} is no held-out set; declare it in held_out")
        return corpus

    def model(self, graph: Graph, step: Step, key: str, name: str) -> Step:
        """Return the training that a step names."""
        if name not in graph.steps or graph.steps[name].kind != "train":
            raise self.fail(f"steps.{step.name}.{key}: {name!r} is no step of kind train")
        return graph.steps[name]

    def check_step(self, graph: Graph, step: Step) -> None:
        """Check one step, and add the corpus that the step makes."""
        getattr(self, f"check_{step.kind}")(graph, step, f"steps.{step.name}")

    def check_train(self, graph: Graph, step: Step, place: str) -> None:
        """Check a training, and add the steps that guard its corpora."""
        sources, target = step.settings["sources"], step.settings["target"]
        if target in sources:
            raise self.fail(f"{place}: {target!r} is both a source and the target")
        dev = self.corpus(graph, step, "dev", step.settings["dev"], held_out=True)
        if lacking := [name for name in (*sources, target) if name not in dev.languages]:
            raise self.fail(f"{place}.dev: {dev.name!r} lacks {lacking[0]!r}; it has {', '.join(dev.languages)}")
        on = step.settings["on"]
        if on in graph.steps and graph.steps[on].kind not in ("mix", "translate", "prepare", "filter"):
            raise self.fail(f"{place}.on: {on!r} is a step of kind {graph.steps[on].kind}, which makes no corpus")
        for part in graph.parts(on):
            corpus = self.corpus(graph, step, "on", part.corpus, held_out=False)
            if target not in corpus.languages or not set(sources) & set(corpus.languages):
                raise self.fail(
                    f"{place}.on: {corpus.name!r} needs {target!r} and one of {', '.join(sources)}; it has "
                    f"{', '.join(corpus.languages)}"
                )
            self.guard(graph, corpus)

    def guard(self, graph: Graph, corpus: Corpus) -> None:
        """Add the step that removes held-out sets from a corpus, if it has not been added."""
        name = corpus.name + GUARD
        if corpus.guarded or name in graph.steps or not shared_sets(graph, corpus.languages):
            return
        options = {"keep_punctuation": True, "duplicates": "none"}
        graph.steps[name] = Step(name, "prepare", corpus.name, options=options)
        self.add(graph, name, corpus, corpus.languages, guarded=True)

    def add(self, graph: Graph, name: str, base: Corpus, languages: tuple[str, ...], *, guarded: bool) -> None:
        """Add the corpus that a step makes."""
        folder = str(graph.work / name)
        graph.corpora[name] = Corpus(name, folder, base.split, languages, base.held_out, guarded, made=True)

    def check_translate(self, graph: Graph, step: Step, place: str) -> None:
        """Check a `translate` step, and add its corpus."""
        corpus = self.corpus(graph, step, step.kind, step.subject)
        model, into = self.model(graph, step, "by", step.settings["by"]), step.settings["into"]
        if model.settings["target"] != into:
            raise self.fail(f"{place}.into: {model.name!r} translates into {model.settings['target']!r}, not {into!r}")
        if into in corpus.languages:
            raise self.fail(f"{place}.into: {corpus.name!r} has {into!r} already")
        if not set(model.settings["sources"]) & set(corpus.languages):
            raise self.fail(f"{place}: {corpus.name!r} has none of the sources of {model.name!r}")
        self.add(graph, step.name, corpus, (*corpus.languages, into), guarded=False)

    def check_prepare(self, graph: Graph, step: Step, place: str) -> None:
        """Check a `prepare` step, and add its corpus."""
        corpus = self.corpus(graph, step, step.kind, step.subject, held_out=False)
        self.add(graph, step.name, corpus, corpus.languages, guarded=step.options.get("ngram", 6) == 6)

    def check_filter(self, graph: Graph, step: Step, place: str) -> None:
        """Check a `filter` step, and add its corpus."""
        corpus = self.corpus(graph, step, step.kind, step.subject, held_out=False)
        for key in ("forward", "backward"):
            model = self.model(graph, step, key, step.settings[key])
            needed = (*model.settings["sources"], model.settings["target"])
            if lacking := [name for name in needed if name not in corpus.languages]:
                raise self.fail(f"{place}.{key}: {corpus.name!r} lacks {lacking[0]!r}, which {model.name!r} needs")
        self.add(graph, step.name, corpus, corpus.languages, guarded=corpus.guarded)

    def check_mix(self, graph: Graph, step: Step, place: str) -> None:
        """Check a `mix` step."""
        for part in step.parts:
            self.corpus(graph, step, "mix", part.corpus, held_out=False)

    def check_score(self, graph: Graph, step: Step, place: str) -> None:
        """Check a `score` step."""
        model = self.model(graph, step, step.kind, step.subject)
        corpus = self.corpus(graph, step, "on", step.settings["on"], held_out=True)
        if lacking := [
            name for name in (*model.settings["sources"], model.settings["target"]) if name not in corpus.languages
        ]:
            raise self.fail(f"{place}.on: {corpus.name!r} lacks {lacking[0]!r}, which {model.name!r} needs")


def _is_given(kind: str, option: str) -> bool:
    """Return whether the graph itself sets an option of a step.

    A key of a recipe without a section is that of the first section that has it: `sources` is `data.sources`.
    """
    given = GIVEN.get(kind, set())
    if kind != "train" or "." in option:
        return option in given
    section = next((section for section, names in known_keys().items() if option in names), None)
    return f"{section}.{option}" in given


def load_graph(path: str | Path, seed: int | None = None) -> Graph:
    """Read and check a graph, without reading any corpus.

    Args:
        path: The YAML file.
        seed: Seed of all trainings; `work` then becomes the subfolder `seed-N` of the folder in the file. None: the
            seeds and the folder of the file.

    Returns:
        The graph.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If `seed` is negative, the file is not a valid graph, or both `seed` and a step set a seed; the
            message names the file, the key and what is allowed.
    """
    check_at_least(0, seed=seed)
    return _Reader(Path(path), read_yaml(Path(path)), seed).build()


def shared_sets(graph: Graph, languages: Collection[str]) -> list[Corpus]:
    """Return the held-out sets that have at least one of the languages.

    Args:
        graph: The graph.
        languages: The languages.

    Returns:
        The held-out sets.
    """
    return [one for one in graph.held_out if set(one.languages) & set(languages)]


def count_rows(graph: Graph) -> dict[str, int]:
    """Count the rows of the corpora and held-out sets that the graph declares, and check their text.

    Args:
        graph: The graph.

    Returns:
        Number of rows by name.

    Raises:
        FileNotFoundError: If a corpus does not exist.
        ValueError: If files of a corpus differ in length, a file is damaged, or a held-out set is inside a corpus that
            is not held out: it is the corpus, or all of its rows are rows of the corpus.
    """
    given = [corpus for corpus in graph.corpora.values() if not corpus.made]
    counts: dict[str, int] = {}
    sets = {one.name: set(rows_of(one, one.languages)) for one in graph.held_out}
    for corpus in given:
        shared = {
            one.name: tuple(name for name in one.languages if name in corpus.languages)
            for one in (() if corpus.held_out else shared_sets(graph, corpus.languages))
        }
        rest: dict[str, set[Any]] = {}
        for name, languages in shared.items():
            one = graph.corpora[name]
            if is_same_split((one.path, one.split), (corpus.path, corpus.split)):
                raise ValueError(f"the held-out set {name!r} is the corpus {corpus.name!r}: {corpus.path}")
            columns = [one.languages.index(language) for language in languages]
            texts = {tuple(row[i] for i in columns) for row in sets[name]}
            rest[name] = {row for row in texts if any(row)}
            if not rest[name]:  # the held-out set has no texts in these languages
                del rest[name]
        counts[corpus.name] = 0
        try:
            for row in rows_of(corpus, corpus.languages):
                counts[corpus.name] += 1
                for name, left in rest.items():
                    left.discard(tuple(row[corpus.languages.index(language)] for language in shared[name]))
        except (OSError, ValueError) as error:
            raise type(error)(f"corpus {corpus.name!r}: {error}") from error
        for name, left in rest.items():
            if not left:
                raise ValueError(
                    f"the held-out set {name!r} is inside the corpus {corpus.name!r}: all of its rows in "
                    f"{', '.join(shared[name])} are rows of {corpus.path}; remove them from the corpus"
                )
    return counts


def rows_of(corpus: Corpus, languages: Sequence[str]) -> Iterator[tuple[str | None, ...]]:
    """Read the rows of a corpus.

    Args:
        corpus: The corpus.
        languages: The columns.

    Yields:
        The texts of a row in the order of the columns.
    """
    for row in stream_rows(corpus.path, corpus.split, languages):
        yield tuple(row[name] for name in languages)


def corpora_of(graph: Graph, name: str) -> list[tuple[Part, Corpus]]:
    """Return the corpora that a training reads, in the form without the held-out sets.

    Args:
        graph: The graph.
        name: Name of a corpus or of a mix.

    Returns:
        Each part of the mix with its corpus.
    """
    return [(part, graph.corpora.get(part.corpus + GUARD, graph.corpora[part.corpus])) for part in graph.parts(name)]


def mixture(graph: Graph, name: str) -> list[dict[str, Any]]:
    """Return the value of `data.train` in a recipe for a corpus or a mix.

    Args:
        graph: The graph.
        name: Name of the corpus or of the mix.

    Returns:
        One entry for each corpus.
    """
    return [
        {"path": corpus.path, "split": corpus.split, "weight": part.weight}
        | ({"tag": part.tag} if part.tag is not None else {})
        for part, corpus in corpora_of(graph, name)
    ]
