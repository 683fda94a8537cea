"""Run an experiment: train and score the cells of its table, and write its rows and its page after each of them.

A cell is one seed of one row. The first seed of every row comes before the second seed of any. Several processes may
work on the same folder: each cell is locked while it is in work, and the operating system releases the lock when the
process ends in any way. What was interrupted is resumed. RUNS/<experiment> holds

    <row>/seed-<n>             a run folder, with `cell.json` when the cell is done
    <row>-<source>/seed-<n>    the same for rows of the kind `best_source`
    <row>/seeds-1-2-3          scores of the ensemble of these seeds
    locks/                     the locks
"""

from __future__ import annotations

import shlex
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hf_multisource.data.files import write_json, write_text
from hf_multisource.data.rows import read_split
from hf_multisource.evaluation.experiment_page import EXPERIMENT, describe_experiment, write_page
from hf_multisource.evaluation.presence import measure_presence
from hf_multisource.evaluation.results import MADE_OF, compare, make_row, read_result, scored_splits
from hf_multisource.evaluation.row_analysis import measure_sources, measure_symbols, measure_words
from hf_multisource.evaluation.scoring import Scoring, score
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.table import METRICS, metrics_of
from hf_multisource.recipes.experiments import Experiment, ExperimentRow
from hf_multisource.recipes.recipe import Recipe, load_recipe
from hf_multisource.recipes.run_folder import RECIPE, SUMMARY, is_finished
from hf_multisource.recipes.seeds import seed_folder, seed_folders
from hf_multisource.recipes.training import train

DONE = "cell.json"  # in the folder of a cell that is done: how it was scored


@dataclass(frozen=True)
class Cell:
    """One seed of one row.

    Args:
        row: The row.
        seed: The seed; of an ensemble, the first of its seeds.
        folder: Its folder.
        source: The only source of the model; None: all.
        of: Folders of the runs that write the hypotheses, if they are not its own.
        reverse: Folder of the run that chooses among them.
    """

    row: ExperimentRow
    seed: int
    folder: Path
    source: str | None = None
    of: tuple[Path, ...] = ()
    reverse: Path | None = None

    @property
    def name(self) -> str:
        """Folders of row and seed, such as "single-italian/seed-1"."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def needs(self) -> tuple[Path, ...]:
        """Folders of the cells that must be done before."""
        return (*self.of, self.reverse) if self.reverse else self.of


def cells_of(experiment: Experiment, root: Path) -> list[Cell]:
    """Return the cells of an experiment in the order in which they are run.

    Args:
        experiment: The experiment.
        root: Folder of its runs.

    Returns:
        The cells; an ensemble needs two seeds or more.
    """
    cells = []
    rows = {name: row for name, row in experiment.rows.items() if name in (experiment.chosen or experiment.rows)}
    for seed in experiment.seeds:
        for name, row in rows.items():
            own = seed_folder(root / name, seed)
            if row.kind == "train":
                cells.append(Cell(row, seed, own))
            elif row.kind == "best_source":
                folders = {source: seed_folder(root / f"{name}-{source}", seed) for source in experiment.sources}
                cells += [Cell(row, seed, folder, source) for source, folder in folders.items()]
            elif row.kind == "rerank":
                written, reverse = (seed_folder(root / row.settings[key], seed) for key in ("of", "reverse"))
                cells.append(Cell(row, seed, own, of=(written,), reverse=reverse))
    for name, row in rows.items():
        if row.kind == "ensemble" and len(experiment.seeds) > 1:
            folder = root / name / f"seeds-{'-'.join(map(str, experiment.seeds))}"
            of = tuple(seed_folder(root / row.settings["of"], seed) for seed in experiment.seeds)
            cells.append(Cell(row, experiment.seeds[0], folder, of=of))
    return cells


@dataclass
class Run:
    """An experiment that is being run.

    Args:
        experiment: The experiment.
        runs: Folder of the runs of all experiments.
        results: Folder of the tables of all experiments.
        say: Receives a line about each step.
    """

    experiment: Experiment
    runs: Path
    results: Path
    say: Callable[[str], None] = print
    _done: set[Path] = field(default_factory=set)

    @property
    def root(self) -> Path:
        """Folder of the experiment's runs."""
        return self.runs / self.experiment.name

    @property
    def table(self) -> Path:
        """Folder of the experiment's rows."""
        return self.results / self.experiment.name

    def states(self) -> dict[str, str]:
        """Return the state of every cell.

        Returns:
            By name: done, in work, waiting for other cells, trained (also with another recipe), begun, or not begun.
        """
        return {cell.name: self.state(cell) for cell in self.find_done()}

    def find_done(self) -> list[Cell]:
        """Look up which cells are done, and return all cells."""
        cells = cells_of(self.experiment, self.root)
        for cell in cells:
            self.is_done(cell)
        return cells

    def state(self, cell: Cell) -> str:
        """Return the state of a cell, as `states` has it."""
        if cell.folder in self._done:
            return "done"
        if self.lock_of(cell).exists():
            with self.locked(cell) as free:
                if not free:
                    return "in work"
        if waiting := [folder for folder in cell.needs if folder not in self._done]:
            return f"waiting for {', '.join(folder.relative_to(self.root).as_posix() for folder in waiting)}"
        if not cell.of and (cell.folder / SUMMARY).exists():
            return "trained" if is_finished(cell.folder, self.recipe(cell)[0]) else "trained with another recipe"
        return "begun" if cell.folder.exists() else "not begun"

    def is_done(self, cell: Cell) -> bool:
        """Return whether a cell was trained and scored with these settings."""
        if cell.folder not in self._done and (cell.folder / DONE).exists():
            same = read_result(cell.folder / DONE) == self.settings(cell)
            if same and (cell.of or is_finished(cell.folder, self.recipe(cell)[0])):
                self._done.add(cell.folder)
        return cell.folder in self._done

    def settings(self, cell: Cell) -> JsonObject:
        """Return what `DONE` holds: whether and how the cell was scored."""
        return {"score": self.score_options(cell.row) if cell.row.shown else None}

    def score_options(self, row: ExperimentRow) -> JsonObject:
        """Return the fields of `Scoring` that the experiment sets for a row."""
        more = {"absent": True, "only": True} if row.name == self.experiment.analysed else {}
        return {**self.experiment.score, **more}

    def recipe(self, cell: Cell) -> tuple[Recipe, str]:
        """Return the recipe of a cell and the command that trains it."""
        return self.experiment.load_recipe(cell.row, cell.folder, cell.seed, cell.source)

    def lock_of(self, cell: Cell) -> Path:
        """Return the lock file of a cell."""
        return self.root / "locks" / f"{cell.name.replace('/', '.')}.lock"

    @contextmanager
    def locked(self, cell: Cell) -> Iterator[bool]:
        """Lock a cell.

        Args:
            cell: The cell.

        Yields:
            Whether this process has the lock; False if another one has it.
        """
        path = self.lock_of(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def all_cells(self) -> dict[str, str]:
        """Run all cells that no other process works on.

        Returns:
            By name of the cells that failed: the reason.
        """
        failed: dict[str, str] = {}
        self.write_experiment()
        for row in {cell.row.name: cell.row for cell in self.find_done() if cell.folder in self._done}.values():
            if row.shown and not (self.table / f"{row.name}.json").exists():  # it was removed
                self.write_row(row)
        while self.next_cell(failed):
            pass
        for name, state in self.states().items():
            if state != "done" and name not in failed:
                self.say(f"{name}: {state}")
        return failed

    def next_cell(self, failed: dict[str, str]) -> bool:
        """Run the first cell that can be run.

        Args:
            failed: By name of the cells that are to be left out: the reason. If this cell fails, it is added.

        Returns:
            Whether there was such a cell.
        """
        for cell in self.find_done():
            if cell.name in failed or cell.folder in self._done or not self._done.issuperset(cell.needs):
                continue
            with self.locked(cell) as free:
                if not free or self.is_done(cell):  # another process may have done it since
                    continue
                try:
                    self.one_cell(cell)
                except Exception as error:  # whatever it is, the other cells go on
                    failed[cell.name] = " ".join(str(error).split()) or type(error).__name__
                    self.say(f"{cell.name} failed: {failed[cell.name]}")
                    if not isinstance(error, ValueError | OSError):
                        self.say(traceback.format_exc())
                return True
        return False

    def one_cell(self, cell: Cell) -> None:
        """Train and score one cell, and write its row and the page.

        Args:
            cell: The cell, locked.
        """
        self.say(cell.name)
        if not cell.of:
            recipe, command = self.recipe(cell)
            if not is_finished(cell.folder, recipe):
                train(recipe, resume=cell.folder.exists(), command=command)
        if cell.row.shown:
            self.score(cell)
        write_json(cell.folder / DONE, self.settings(cell))
        self._done.add(cell.folder)
        if cell.row.shown:
            self.write_row(cell.row)

    def score(self, cell: Cell) -> None:
        """Score a cell.

        Args:
            cell: The cell.
        """
        options = self.score_options(cell.row)
        run, out = cell.folder, None
        if cell.source:
            options["sources"] = self.experiment.sources  # on the lines on which the other rows are scored
        elif cell.reverse:
            run, out = cell.of[0], cell.folder / "reranking"
            options["rerank"] = str(cell.reverse)
        elif cell.of:
            run, out = cell.of[0], cell.folder / "scores"
            options["ensemble"] = [str(folder) for folder in cell.of[1:]]
        words = [word for key, value in options.items() for word in _option(key, value)]
        command = shlex.join(["hf-multisource", "score", str(run), *words, *(["--out", str(out)] if out else [])])
        report = score(Scoring(str(run), out=out, **options), command)
        if cell.reverse and out:
            self.keep_reranked(report, out, cell.folder / "scores")
        if cell.of:
            paths = {
                key: [f"../../{folder.relative_to(self.root).as_posix()}" for folder in folders]
                for key, folders in (("of", cell.of), ("with", (cell.reverse,) if cell.reverse else ()))
            }
            write_json(cell.folder / MADE_OF, paths)

    def keep_reranked(self, report: JsonObject, folder: Path, out: Path) -> None:
        """Write scores in which the reranked hypotheses are those of condition `all`.

        Args:
            report: What `score` returned.
            folder: Folder of its scores.
            out: Folder to write to.
        """
        split, sources, target = (report[key] for key in ("split", "sources", "target"))
        entry = report["conditions"]["reranked"]
        out.mkdir(parents=True, exist_ok=True)
        texts = {name: (folder / f"{split}.{name}.txt").read_text("utf-8") for name in ("reranked", "reference")}
        rows = read_split(self.experiment.path, split, sources, target).rows
        hypotheses, references = (text.split("\n")[:-1] for text in texts.values())
        presence = measure_presence(hypotheses, references, rows, sources, metrics_of(entry))
        write_text(out / f"{split}.all.txt", texts["reranked"])
        write_text(out / f"{split}.reference.txt", texts["reference"])
        write_json(out / f"{split}.json", {**report, "conditions": {"all": entry}, "presence": presence})

    def write_experiment(self) -> None:
        """Write what the page says about the experiment itself."""
        self.table.mkdir(parents=True, exist_ok=True)
        write_text(self.table / EXPERIMENT, describe_experiment(self.experiment))

    def write_row(self, row: ExperimentRow) -> None:
        """Write a row from the seeds that are done, and the page.

        Args:
            row: The row. If the others are compared with it, they are compared anew.
        """
        with FileLock(self.root / "locks" / "results.lock"):
            folder, baseline = self.folder_of(row), self.baseline()
            if folder is None:
                return
            content = make_row(folder, self.experiment.name, row.name)
            if row.name != self.experiment.baseline:
                content["baseline"] = self.comparison(folder, content, baseline)
            if row.name == self.experiment.analysed:
                content |= self.analyse(folder, content)
            write_json(self.table / f"{row.name}.json", content)
            for path in sorted(self.table.glob("*.json")) if row.name == self.experiment.baseline else ():
                other = read_result(path)
                own = self.folder_of(self.experiment.rows.get(other["name"]))
                if own is not None and own != folder:
                    write_json(path, {**other, "baseline": self.comparison(own, other, baseline)})
            write_page(self.experiment.name, self.results)

    def analyse(self, folder: Path, row: Mapping[str, Any]) -> JsonObject:
        """Measure what the page shows of the row `analysed` alone."""
        known, split = self.experiment, row["split"]
        rows = read_split(known.path, split, known.sources, known.target, limit=known.score.get("limit")).rows
        metrics = [name for name in metrics_of(row["scores"]["all"]) if not METRICS[name].needs_sources][:2]
        measured: JsonObject = {
            "left_out": measure_sources(folder, split, rows, known.sources, metrics),
            "symbols": measure_symbols(folder, split),
        }
        words = measure_words(folder, known.words, known.sources, known.target) if known.words else None
        return {**measured, **({"words": words} if words else {})}

    def comparison(self, folder: Path, row: Mapping[str, Any], baseline: Path | None) -> JsonObject | None:
        """Compare a row with the baseline; None if that was not scored."""
        metrics = [name for name in metrics_of(row["scores"]["all"]) if not METRICS[name].needs_sources]
        return compare(folder, baseline, row["split"], metrics=metrics) if baseline else None

    def baseline(self) -> Path | None:
        """Return the folder of the baseline row, None if nothing of it was scored."""
        name = self.experiment.baseline
        folder = self.root / name if name else None
        return folder if folder and any(scored_splits(seed) for seed in seed_folders(folder)) else None

    def folder_of(self, row: ExperimentRow | None) -> Path | None:
        """Return the folder of a row: of the best source, of the ensemble of most seeds, or its own.

        Args:
            row: The row; None: it is not in this experiment.

        Returns:
            The folder; None if there is none yet.
        """
        if row is None:
            return None
        if row.kind == "ensemble":
            scored = [folder for folder in (self.root / row.name).glob("seeds-*") if scored_splits(folder)]
            return max(scored, key=lambda folder: folder.name.count("-"), default=None)
        return self.best_source(row.name) if row.kind == "best_source" else self.root / row.name

    def best_source(self, name: str) -> Path | None:
        """Return the source with the best mean score on the dev split over the seeds that all sources have.

        Args:
            name: Name of the row.

        Returns:
            Folder of the runs of the source; None if some source has no finished seed.
        """
        folders = {source: self.root / f"{name}-{source}" for source in self.experiment.sources}
        finished = [
            {one.name for one in seed_folders(folder) if (one / SUMMARY).exists()} for folder in folders.values()
        ]
        seeds = set.intersection(*finished)
        if not seeds:
            return None
        means = {
            folder: [self.dev_score(folder / seed, source) for seed in sorted(seeds)]
            for source, folder in folders.items()
        }
        metric = next(iter(means.values()))[0][0]
        choose = max if METRICS[metric].higher_is_better else min
        return choose(means, key=lambda path: statistics.fmean(value for _, value in means[path]))

    def dev_score(self, run: Path, source: str) -> tuple[str, float]:
        """Return the score of a single-source run on all lines of the dev split that have any source.

        During training, only lines that have its source are scored. Here, the others have empty hypotheses, as on the
        test split. For metrics that are means over sentences the result is exact.

        Args:
            run: Run folder.
            source: Its source.

        Returns:
            Name of the metric, and the score.
        """
        summary = read_result(run / SUMMARY)
        metric = str(summary["metric_for_best_model"]).removeprefix("eval_")
        if metric not in METRICS or summary["best_metric"] is None:
            raise ValueError(f"{run}: to choose the best source, training.metric_for_best_model must be a metric")
        target = self.experiment.target
        dev = load_recipe(run / RECIPE).data.dev
        rows = read_split(self.experiment.path, dev, self.experiment.sources, target).rows
        lacking = [row[target] for row in rows if row[source] is None]
        if not lacking:
            return metric, summary["best_metric"]
        empty = METRICS[metric].measure([""] * len(lacking), lacking).score()
        share = len(lacking) / len(rows)
        return metric, (1 - share) * summary["best_metric"] + share * empty


def _option(key: str, value: Any) -> list[str]:
    """An option of `hf-multisource score` as words."""
    if isinstance(value, bool):
        return [f"--{key}"] if value else []
    return [f"--{key}", *map(str, value if isinstance(value, Sequence) and not isinstance(value, str) else [value])]
