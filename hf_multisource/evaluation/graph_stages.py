"""Turn the steps of a graph into stages (command lines, inputs and outputs); list and draw them."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_multisource.data.prepare import COUNTS
from hf_multisource.data.rows import find_texts
from hf_multisource.evaluation.score_filter import SCORE
from hf_multisource.evaluation.tables import format_table
from hf_multisource.json_files import read_json
from hf_multisource.recipes.graph import GUARD, Corpus, Graph, Step, corpora_of, mixture, shared_sets
from hf_multisource.recipes.initial_weights import check_initial
from hf_multisource.recipes.recipe import Recipe, load_recipe
from hf_multisource.recipes.shipped import find_recipe

PROGRAM = "hf-multisource"
MODULES = ("accelerate", "torchrun")  # launchers that start a Python module instead of a program
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Stage:
    """Stage: one step of a graph in the form in which the engine runs it.

    Args:
        step: The step.
        commands: Command lines in the order in which they are run, each a tuple of words.
        reads: Input files and folders.
        folder: Output folder.
        keeps: Whether the command continues in an existing output folder; otherwise the folder appears when it is
            complete.
        writes: Names of all files and folders in the output folder; empty if the command itself refuses other files.
        marks: Names in `writes` of which at least one exists as soon as the stage has written anything.
        record: Settings that `counts.json` in the output folder must hold.
    """

    step: Step
    commands: tuple[tuple[str, ...], ...]
    reads: tuple[str, ...]
    folder: str
    keeps: bool
    writes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)

    def has_foreign_files(self) -> bool:
        """Return whether the output folder holds files that this step has not written.

        Returns:
            True if it does; always False if the command itself checks the folder.
        """
        folder = Path(self.folder)
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if not names or not self.writes:
            return False
        if not names <= {*self.writes} or names.isdisjoint(self.marks):
            return True
        counts = read_json(folder / COUNTS) if self.record else {}
        return any(counts.get(key) != value for key, value in self.record.items())


def stages_of(graph: Graph) -> dict[str, Stage]:
    """Return the stages of a graph; a mix has no stage, because trainings read its corpora directly.

    Args:
        graph: The graph.

    Returns:
        Stages by name of the step, in a valid order of execution.

    Raises:
        ValueError: If a recipe is not allowed, the model that it starts with does not fit, or a corpus cannot be read
            in the form that its step needs.
        FileNotFoundError: If a file of a corpus is missing.
    """
    makers = {"train": _train, "translate": _translate, "prepare": _prepare, "filter": _filter, "score": _score}
    stages = {}
    for name, step in graph.steps.items():
        if step.kind == "mix":
            continue
        try:
            commands, reads = makers[step.kind](graph, step)
            written = _written(graph, step)
        except (ValueError, OSError) as error:
            raise type(error)(f"steps.{name}: {error}") from error
        folder = str(graph.work / name)
        keeps = step.kind not in ("prepare", "filter")
        stages[name] = Stage(step, commands, tuple(dict.fromkeys(reads)), folder, keeps, **written)
    return stages


Made = tuple[tuple[tuple[str, ...], ...], list[str]]


def recipe_of(graph: Graph, step: Step) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe of a training and the values that the graph overrides.

    Args:
        graph: The graph.
        step: The training.

    Returns:
        The validated recipe, and the overridden values by key.

    Raises:
        ValueError: If a value is not allowed; the message names the key.
    """
    dev = graph.corpora[step.settings["dev"]]
    changes = {
        **step.options,
        "data.path": dev.path,
        "data.dev": dev.split,
        "data.train": mixture(graph, step.settings["on"]),
        "data.sources": step.settings["sources"],
        "data.target": step.settings["target"],
        "training.output_dir": str(graph.work / step.name),
    }
    return load_recipe(step.subject, changes), changes


def _files(graph: Graph, corpus: Corpus) -> dict[str, str]:
    """Return the files of a corpus by language; a single file of all languages has the key ""."""
    if corpus.made:
        return {name: _column(graph, corpus, name) for name in corpus.languages}
    found = find_texts(Path(corpus.path), corpus.split, corpus.languages)
    return {name: str(path) for name, path in found.items()} if isinstance(found, dict) else {"": str(found)}


def _column(graph: Graph, corpus: Corpus, language: str) -> str:
    """Return the file of one column of a corpus that a step makes."""
    step = graph.steps[corpus.name]
    if step.kind != "translate" or language == step.settings["into"]:
        return f"{corpus.path}/{corpus.split}.{language}"
    return f"{corpus.path}/{Path(_files(graph, graph.corpora[step.subject])[language]).name}"


def _inputs(graph: Graph, corpus: Corpus) -> list[str]:
    """Return the files on which a stage that reads this corpus depends."""
    return [corpus.path] if corpus.made else list(_files(graph, corpus).values())


def _written(graph: Graph, step: Step) -> dict[str, Any]:
    """Return the fields `writes`, `marks` and `record` of the stage of a step."""
    if step.kind == "translate":
        corpus = graph.corpora[step.subject]
        out = f"{corpus.split}.{step.settings['into']}"
        marks = (f"{out}.json", f"{out}.parts")
        return {"marks": marks, "writes": (out, *marks, *(Path(one).name for one in _files(graph, corpus).values()))}
    if step.kind not in ("prepare", "filter"):
        return {}
    corpus = graph.corpora[step.subject]
    columns = [*corpus.languages, *([SCORE] if step.kind == "filter" else [])]
    return {
        "marks": (COUNTS,),
        "writes": (COUNTS, *(f"{corpus.split}.{name}" for name in columns)),
        "record": {"data": corpus.path, "split": corpus.split, "languages": [*corpus.languages]},
    }


def _program(step: Step, command: str) -> list[str]:
    """Return the first words of a command line: launcher, program and command."""
    launch = shlex.split(step.launch)
    if any(Path(word).name in MODULES for word in launch):
        return [*launch, "-m", f"hf_multisource.cli.{command}"]
    return [*launch, PROGRAM, command]


def _options(options: Mapping[str, Any]) -> list[str]:
    """Format the options of a command as words; a list or a mapping becomes several words."""
    words: list[str] = []
    for key, value in options.items():
        if value is False or value is None:
            continue
        words.append(f"--{key}")
        if isinstance(value, Mapping):
            words += [f"{name}={one}" for name, one in value.items()]
        elif value is not True:
            words += [str(one) for one in (value if isinstance(value, list) else [value])]
    return words


def _train(graph: Graph, step: Step) -> Made:
    recipe, changes = recipe_of(graph, step)
    if recipe.tokenizer.load is not None and _writer(graph, recipe.tokenizer.load) is None:
        recipe.check_tokenizer_folder()
    if recipe.init_from is not None and _writer(graph, recipe.init_from) is None:
        check_initial(recipe)
    words = [*_program(step, "train"), step.subject, "--resume"]
    for key, value in changes.items():
        words += [f"--{key}", json.dumps(value, ensure_ascii=False)]
    # A shipped recipe is given by its name, and is not a file to depend on.
    reads = [step.subject] if str(find_recipe(step.subject)) == step.subject else []
    encoders = [entry.get("encoder") for entry in recipe.source_entries().values()]
    for place in (recipe.tokenizer.load, recipe.init_from, *encoders):
        reads += _folder(graph, place) if isinstance(place, str) else []
    for corpus in [*(one for _, one in corpora_of(graph, step.settings["on"])), graph.corpora[step.settings["dev"]]]:
        reads += _inputs(graph, corpus)
    return (tuple(words),), reads


def _writer(graph: Graph, place: str) -> str | None:
    """Return the output folder of the step that writes a folder; None if no step writes it."""
    path = Path(os.path.abspath(place))
    folders = [str(graph.work / name) for name in graph.steps]
    return next((folder for folder in folders if path.is_relative_to(os.path.abspath(folder))), None)


def _folder(graph: Graph, place: str) -> list[str]:
    """Return the folder on which a stage that loads a model depends, as a list that is empty for an id of the Hub."""
    if (writer := _writer(graph, place)) is not None:
        return [writer]  # also for a checkpoint in this folder, because DVC ignores checkpoints
    return [place] if Path(place).exists() else []


def _translate(graph: Graph, step: Step) -> Made:
    corpus, into = graph.corpora[step.subject], step.settings["into"]
    model, folder = step.settings["by"], str(graph.work / step.name)
    files = _files(graph, corpus)
    if "" in files:
        raise ValueError(
            f"{files['']} is a table: `translate` needs a file for each language, as `prepare` writes them"
        )
    words = [*_program(step, "translate"), str(graph.work / model), *_options(step.options)]
    for name in graph.steps[model].settings["sources"]:
        words += [f"--{name}", files[name]] if name in files else []
    words += ["--out", f"{folder}/{corpus.split}.{into}"]
    copies = ("cp", *files.values(), folder)
    # Copy after the translation, so that a translation that is refused leaves the folder unchanged.
    return (tuple(words), copies), [*_inputs(graph, corpus), str(graph.work / model), *_shortlist(step)]


def _prepare(graph: Graph, step: Step) -> Made:
    corpus = graph.corpora[step.subject]
    sets = shared_sets(graph, corpus.languages)
    words = [*_program(step, "prepare"), corpus.path, "--languages", *corpus.languages, "--split", corpus.split]
    words += _options(step.options)
    if sets:
        words += ["--held_out", *dict.fromkeys(f"{one.path}:{one.split}" for one in sets)]
    reads = _inputs(graph, corpus) + [path for one in sets for path in _inputs(graph, one)]
    return (("mkdir", "-p", str(graph.work)), (*words, "--out", str(graph.work / step.name))), reads


def _filter(graph: Graph, step: Step) -> Made:
    corpus = graph.corpora[step.subject]
    models = {key: str(graph.work / step.settings[key]) for key in ("forward", "backward")}
    words = [*_program(step, "filter"), corpus.path, *_options({**models, **step.options})]
    words += ["--languages", *corpus.languages, "--split", corpus.split, "--out", str(graph.work / step.name)]
    return (tuple(words),), [*_inputs(graph, corpus), *models.values()]


def _score(graph: Graph, step: Step) -> Made:
    run, corpus = str(graph.work / step.subject), graph.corpora[step.settings["on"]]
    words = [*_program(step, "score"), run, "--data", corpus.path, "--split", corpus.split, *_options(step.options)]
    return ((*words, "--out", str(graph.work / step.name)),), [run, *_inputs(graph, corpus), *_shortlist(step)]


def _shortlist(step: Step) -> list[str]:
    """Return the file of the option `shortlist`, as a list that is empty without the option."""
    file = step.options.get("shortlist")
    if file is not None and not Path(str(file)).is_file():
        raise FileNotFoundError(f"options: shortlist is {str(file)!r}, and there is no such file")
    return [] if file is None else [str(file)]


# Estimates from the corpora and from finished steps.


def _rows(graph: Graph, counts: Mapping[str, int], name: str) -> tuple[int, bool]:
    """Return the number of rows of a corpus, mix or step, and whether the number is only an upper bound."""
    if name in counts:
        return counts[name], False
    step = graph.steps[name]
    if step.kind in ("prepare", "filter"):
        record = graph.work / name / COUNTS
        if record.exists():
            return int(read_json(record)["kept"]), False
        return _rows(graph, counts, step.subject)[0], True
    if step.kind in ("translate", "score"):
        return _rows(graph, counts, step.subject if step.kind == "translate" else step.settings["on"])
    parts = corpora_of(graph, step.settings["on"] if step.kind == "train" else name)
    rows = [(part.weight, *_rows(graph, counts, corpus.name)) for part, corpus in parts]
    return round(sum(weight * count for weight, count, _ in rows)), any(most for _, _, most in rows)


def measured(graph: Graph, step: Step) -> tuple[float, float] | None:
    """Return size and duration of a finished step.

    Args:
        graph: The graph.
        step: The step.

    Returns:
        Number of units (updates of a training, otherwise sentences) and seconds; None if unknown.
    """
    folder = graph.work / step.name
    if step.kind == "train" and (folder / "train_summary.json").exists():
        summary = read_json(folder / "train_summary.json")
        return summary["updates"], summary["seconds"]
    if step.kind == "translate":
        record = folder / f"{graph.corpora[step.name].split}.{step.settings['into']}.json"
        content = read_json(record) if record.exists() else {}
        return (content["counts"]["rows"], content["seconds"] / content["processes"]) if "sha256" in content else None
    if step.kind == "score":
        record = folder / f"{graph.corpora[step.settings['on']].split}.json"
        if record.exists():
            draw = read_json(record)["conditions"]["all"]["draws"][0]
            return (draw["sentences_per_second"] * draw["seconds"], draw["seconds"]) if draw["seconds"] else None
    return None


def estimate(graph: Graph, step: Step, rows: int) -> float | None:
    """Estimate the seconds of a step by the rate of finished steps of its kind.

    Args:
        graph: The graph.
        step: The step.
        rows: Number of rows that the step processes.

    Returns:
        The seconds; None if unknown.
    """
    found = [measured(graph, one) for one in graph.steps.values() if one.kind == step.kind]
    known = [one for one in found if one is not None]
    units: float = rows
    if step.kind == "train":
        units = recipe_of(graph, step)[0].training_arguments().max_steps
    if not known or units < 0:
        return None
    return units * sum(seconds for _, seconds in known) / max(sum(count for count, _ in known), 1)


def describe_stages(
    graph: Graph, stages: Mapping[str, Stage], counts: Mapping[str, int], states: Mapping[str, str]
) -> str:
    """Return a table of the steps: kind, rows, time and state.

    Args:
        graph: The graph.
        stages: Its stages.
        counts: Rows of the corpora and sets that are given.
        states: State of each stage, by name.

    Returns:
        The list of corpora followed by the table.
    """
    corpora = []
    for corpus in graph.corpora.values():
        if not corpus.made:
            kind = " (held out)" * corpus.held_out
            corpora.append([corpus.name + kind, ", ".join(corpus.languages), corpus.split, f"{counts[corpus.name]:,}"])
    lines = []
    total, unknown = 0.0, False
    for name, step in graph.steps.items():
        rows, most = _rows(graph, counts, name)
        time = "-"
        if name in stages and states[name] != "done":
            seconds = estimate(graph, step, rows)
            unknown, total = unknown or seconds is None, total + (seconds or 0)
            time = UNKNOWN if seconds is None else duration(seconds)
        reads = ", ".join(dict.fromkeys(step.reads))
        lines.append([name, step.kind, reads, "at most " * most + f"{rows:,}", time, states.get(name, "-")])
    left = [duration(total)] * (total > 0 or not unknown) + [UNKNOWN] * unknown
    end = f"time that is left: {' + '.join(left)}"
    head = format_table(["corpus", "languages", "split", "rows"], corpora)
    return "\n\n".join([head, format_table(["step", "kind", "reads", "rows", "time", "state"], lines), end])


def duration(seconds: float) -> str:
    """Format a duration in words.

    Args:
        seconds: The duration, in seconds.

    Returns:
        Such as "2 h 05 min", "3 min" or "40 s".
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def draw_graph(graph: Graph, *, dot: bool = False) -> str:
    """Draw a graph as text.

    Args:
        graph: The graph.
        dot: Whether to write Graphviz's DOT language instead of Mermaid.

    Returns:
        The drawing: corpora and held-out sets as boxes with round ends, steps as boxes.
    """
    corpora = [corpus for corpus in graph.corpora.values() if not corpus.made]
    edges = [(one, name) for name, step in graph.steps.items() for one in dict.fromkeys(_drawn_reads(graph, step))]
    if dot:
        nodes = [f'  "{one.name}" [shape=ellipse, label="{one.name}\\n{", ".join(one.languages)}"];' for one in corpora]
        nodes += [f'  "{name}" [shape=box, label="{name}\\n{_caption(step)}"];' for name, step in graph.steps.items()]
        return "\n".join(["digraph {", *nodes, *(f'  "{one}" -> "{other}";' for one, other in edges), "}"]) + "\n"
    ids = {name: f"n{i}" for i, name in enumerate([*(one.name for one in corpora), *graph.steps])}
    nodes = [f'  {ids[one.name]}(["{one.name}<br/>{", ".join(one.languages)}"])' for one in corpora]
    nodes += [f'  {ids[name]}["{name}<br/>{_caption(step)}"]' for name, step in graph.steps.items()]
    return "\n".join(["flowchart TD", *nodes, *(f"  {ids[one]} --> {ids[other]}" for one, other in edges)]) + "\n"


def _drawn_reads(graph: Graph, step: Step) -> list[str]:
    """Return the inputs of a step; a guarded corpus is represented by the step that guards it."""
    if step.name.endswith(GUARD) or step.kind not in ("train", "mix"):
        return step.reads
    return [name + GUARD if name + GUARD in graph.steps else name for name in step.reads]


def _caption(step: Step) -> str:
    """Return a short caption of a step."""
    if step.kind == "train":
        return f"train {' + '.join(step.settings['sources'])} to {step.settings['target']}"
    if step.kind == "translate":
        return f"translate into {step.settings['into']}" + " by sampling" * bool(step.options.get("do_sample"))
    return step.kind
