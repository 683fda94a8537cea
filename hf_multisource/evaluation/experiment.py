"""Run an experiment: train and score the cells of its table, and update its rows and page after each cell.

A cell is one seed of one row. The first seeds of all rows are run before any second seed. Several processes may work on
the same folder: a process locks each cell that it runs, and the operating system releases the lock when the process
ends for any reason. Interrupted cells are resumed. RUNS/<experiment> holds

    <row>/seed-<n>             a run folder, with `cell.json` when the cell is done
    <row>-<source>/seed-<n>    the same for rows of the kind `best_source`
    <row>/seeds-1-2-3          scores of the ensemble of these seeds
    <row>/once                 scores of a row that needs no model
    data.json                  fingerprints of the data with which the runs began
    locks/                     the locks

RESULTS/<experiment>/cells holds an archive of every finished cell (see `kept_cells`). Cells whose folder is missing are
restored from these archives, so that an experiment can continue on another machine.

A row of the kind `best_source` is trained on every source with one seed. The source with the best score on the dev
split is then trained with the remaining seeds.
"""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hf_multisource.data.checks import check_choice
from hf_multisource.data.files import read_lines, single_line, write_json, write_text
from hf_multisource.data.rows import Split, check_files, read_split
from hf_multisource.evaluation.experiment_page import EXPERIMENT, describe_experiment, write_page
from hf_multisource.evaluation.kept_cells import keep_cell, restore_cell
from hf_multisource.evaluation.lookups import describe_answers, remembered_texts, score_texts
from hf_multisource.evaluation.presence import measure_presence
from hf_multisource.evaluation.results import MADE_OF, compare, make_row, read_result, runs_of, scored_splits
from hf_multisource.evaluation.row_analysis import mean_words, measure_sources, measure_symbols, measure_words
from hf_multisource.evaluation.scoring import Scoring, count_whole, score
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.table import METRICS, metrics_of
from hf_multisource.recipes.experiments import LOOKED_UP, MEMORY_FIRST, Experiment, ExperimentRow
from hf_multisource.recipes.recipe import Recipe, load_recipe
from hf_multisource.recipes.run_folder import SUMMARY, data_fingerprint, is_finished
from hf_multisource.recipes.schema import CATALOGUES
from hf_multisource.recipes.seeds import seed_folder, seed_folders
from hf_multisource.recipes.shipped import RECIPE
from hf_multisource.recipes.training import train
from hf_multisource.recipes.widths import match_parameters

DATA = "data.json"  # fingerprints of the data, in the folder of the experiment's runs
DONE = "cell.json"  # settings of the scores, in the folder of a finished cell; marks the cell as finished
WORDS = "words.json"  # output of `measure_words`, in the folder of a cell of the row `analyzed`
ONCE = "once"  # folder name of the single cell of a row that needs no model
# Keys that `is_finished` does not compare: the value is the folder of another row's run, and `settings` compares that
# row's name instead
INITIAL = ("model.init_from",)
WEIGHTS = "model.safetensors"
CELLS = "cells"  # folder of the archives of finished cells, in the folder of the rows


@dataclass(frozen=True)
class Cell:
    """One seed of one row.

    Args:
        row: The row.
        seed: The seed. An ensemble of several seeds has the first of them; a row that needs no model has the first seed
            of the experiment.
        folder: Folder of the cell.
        source: The only source of the model; None: all.
        of: Folders of the runs that write the hypotheses; empty if the cell itself is such a run.
        reverse: Folder of the reverse run that reranks these hypotheses; None: no reranking.
        begins: Folder of the run whose weights initialize the training; None: random weights.
    """

    row: ExperimentRow
    seed: int
    folder: Path
    source: str | None = None
    of: tuple[Path, ...] = ()
    reverse: Path | None = None
    begins: Path | None = None

    @property
    def name(self) -> str:
        """Name of the cell: the folder names of row and seed, such as "single-italian/seed-1"."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def needs(self) -> tuple[Path, ...]:
        """Folders of the cells that must be finished before this cell is run."""
        return (*self.of, *(folder for folder in (self.reverse, self.begins) if folder))

    @property
    def is_trained(self) -> bool:
        """Whether the cell is trained, rather than made from other runs."""
        return self.row.kind in ("train", "best_source") and not self.of


@dataclass(frozen=True)
class Choice:
    """How the source of a row of the kind `best_source` was chosen.

    Args:
        source: The source.
        seed: The seed with which all sources were trained.
        metric: The metric of the dev split.
        scores: Score of each source on all lines of the dev split, by source.
    """

    source: str
    seed: int
    metric: str
    scores: dict[str, float]


def cells_of(
    experiment: Experiment,
    root: Path,
    choices: Mapping[str, Choice] | None = None,
    sources: Sequence[str] | None = None,
) -> list[Cell]:
    """Return the cells of an experiment in the order in which they are run.

    Args:
        experiment: The experiment.
        root: Folder of its runs.
        choices: The choice of the source for rows of the kind `best_source`, by name of the row, as far as it is known.
        sources: Candidate sources of rows of the kind `best_source`; None: all.

    Returns:
        The cells. An ensemble of the seeds of one row has a cell only if there are two seeds or more.
    """
    cells = []
    rows = {name: row for name, row in experiment.rows.items() if name in (experiment.chosen or experiment.rows)}
    for seed in experiment.seeds:
        for name, row in rows.items():
            own = seed_folder(root / name, seed)
            if row.kind == "train":
                cells.append(Cell(row, seed, own, begins=experiment.initial_folder(row, own, seed)))
            elif row.kind == "best_source":
                first = experiment.seeds[0]
                candidates = [
                    Cell(row, first, seed_folder(root / f"{name}-{source}", first), source)
                    for source in sources or experiment.sources
                ]
                if choice := (choices or {}).get(name):
                    cells.append(Cell(row, seed, seed_folder(root / f"{name}-{choice.source}", seed), choice.source))
                elif seed == first:
                    cells += candidates
                else:  # the source has not been chosen yet
                    cells.append(Cell(row, seed, own, of=tuple(cell.folder for cell in candidates)))
            elif row.made_of and not row.is_pooled:
                cells.append(_reading_cell(row, root, [seed], own))
            elif row.kind in LOOKED_UP and seed == experiment.seeds[0]:
                cells.append(Cell(row, seed, root / name / ONCE))
    for name, row in rows.items():
        if row.is_pooled and len(experiment.seeds) > 1:
            folder = root / name / f"seeds-{'-'.join(map(str, experiment.seeds))}"
            cells.append(_reading_cell(row, root, experiment.seeds, folder))
    return cells


def _reading_cell(row: ExperimentRow, root: Path, seeds: Sequence[int], folder: Path) -> Cell:
    """Return the cell of a row that reads other rows with these seeds, and its reverse row with the first of them."""
    of = tuple(seed_folder(root / name, seed) for name in row.members for seed in seeds)
    reverse = seed_folder(root / row.settings["reverse"], seeds[0]) if "reverse" in row.settings else None
    return Cell(row, seeds[0], folder, of=of, reverse=reverse)


@dataclass
class Run:
    """Execution of an experiment.

    Args:
        experiment: The experiment.
        runs: Folder of the runs of all experiments.
        results: Folder of the tables of all experiments.
        say: Function that prints a line about each step.
    """

    experiment: Experiment
    runs: Path
    results: Path
    say: Callable[[str], None] = print
    _done: set[Path] = field(default_factory=set)
    _choices: dict[str, Choice] = field(default_factory=dict)
    _splits: dict[str, Split] = field(default_factory=dict)
    _widths: dict[str, dict[str, int]] = field(default_factory=dict)

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
            State by name of the cell: done, in work, kept in an archive, waiting for other cells, trained, trained with
            another recipe, begun, or not begun.
        """
        return {cell.name: self.state(cell) for cell in self.find_done()}

    def find_done(self) -> list[Cell]:
        """Update the set of finished cells and the chosen sources, and return all cells."""
        for row in self.experiment.rows.values():
            if row.kind == "best_source":
                self.choice_of(row)
        cells = cells_of(self.experiment, self.root, self._choices, self.single_sources())
        for cell in cells:
            self.is_done(cell)
        return cells

    def plain_recipe(self) -> Recipe:
        """Return the recipe of the experiment with the changes that apply to all rows."""
        known = self.experiment
        data = {"path": known.path, "sources": known.sources, "target": known.target}
        return load_recipe(known.recipe, {**data, **known.train})

    def fingerprints(self) -> JsonObject:
        """Return the data fingerprint of each split, by role ("train", "dev", "test")."""
        forms = self.plain_recipe().forms()
        return {role: data_fingerprint(split.rows, forms) for role, split in self.splits().items()}

    def splits(self) -> dict[str, Split]:
        """Read the three splits of the data; later calls return the same splits.

        Returns:
            The splits by role: "train", "dev" and "test".

        Raises:
            ValueError: If the names of the columns or the files are wrong, or the recipe reads catalogues; the message
                names them.
            FileNotFoundError: If a split or the data do not exist; the message names the missing file or dataset.
        """
        if not self._splits:
            recipe = self.plain_recipe()
            if recipe.data.kind == CATALOGUES:
                raise ValueError(
                    f"data.kind is {CATALOGUES}, but all runs of an experiment read the same rows: write them with "
                    "`hf-multisource catalogues`, and name that folder in `path`"
                )
            names = {role: getattr(recipe.data, role) for role in ("train", "dev", "test")}
            read = {
                role: read_split(recipe.data.path, name, recipe.data.sources, recipe.data.target, forms=recipe.forms())
                for role, name in names.items()
            }
            self._splits.update(read)
        return self._splits

    def test_split(self) -> Split:
        """Return the rows of the test split on which all rows of the experiment are scored."""
        recipe, split, limit = self.plain_recipe(), self.splits()["test"], self.experiment.score.get("limit")
        chosen = [i for i, line in enumerate(split.kept) if limit is None or line < limit]
        split = replace(split, rows=[split.rows[i] for i in chosen], kept=[split.kept[i] for i in chosen])
        data = recipe.data
        return check_files(split, data.test, self.experiment.sources, recipe.forms(), data.unreadable)[0]

    def check_data(self) -> None:
        """Check before any training that the data can be read and have not changed since the runs began.

        Raises:
            ValueError: If the runs began with other data; the message names the folder. Errors of `splits` are raised,
                too.
        """
        now, path = self.fingerprints(), self.root / DATA
        for row in self.chosen_rows():
            metric = str(self.plain_recipe().training.get("metric_for_best_model")).removeprefix("eval_")
            if row.kind == "best_source":
                check_choice(tuple(METRICS), **{f"rows.{row.name}.best_source: training.metric_for_best_model": metric})
            forms = self.plain_recipe().forms() if row.kind in (*LOOKED_UP, MEMORY_FIRST) else {}
            for source in self.experiment.sources_of(row):
                if (form := forms.get(source, "text")) != "text":
                    raise ValueError(f"rows.{row.name}.{row.kind}: source {source!r} must be a text; it is {form}")
        if not path.exists():
            return
        before = read_result(path)
        if different := [role for role in now if now[role] != before.get(role)]:
            raise ValueError(
                f"{self.root} holds runs on other data: {', '.join(different)} of {self.experiment.path} differ from "
                f"those with which the runs began (then in {before.get('path')}); give another --runs and --results, "
                "or remove this folder"
            )

    def record_data(self) -> None:
        """Write the fingerprints of the data to `DATA` unless the file exists."""
        if not (path := self.root / DATA).exists():
            self.root.mkdir(parents=True, exist_ok=True)
            write_json(path, {"path": self.experiment.path, **self.fingerprints()})

    def single_sources(self) -> list[str]:
        """Return the sources on which a model can be trained and measured alone.

        Returns:
            The sources that occur in both the training split and the dev split.
        """
        return [
            source
            for source in self.experiment.sources
            if all(any(row[source] is not None for row in self.splits()[role].rows) for role in ("train", "dev"))
        ]

    def state(self, cell: Cell) -> str:
        """Return the state of a cell, see `states`."""
        if cell.folder in self._done:
            return "done"
        if self.lock_of(cell).exists():
            with self.locked(cell) as free:
                if not free:
                    return "in work"
        if not cell.folder.exists() and self.archive_of(cell).exists():
            return f"kept in {self.archive_of(cell)}"
        if waiting := [folder for folder in cell.needs if folder not in self._done]:
            return f"waiting for {', '.join(folder.relative_to(self.root).as_posix() for folder in waiting)}"
        if cell.is_trained and (cell.folder / SUMMARY).exists():
            return (
                "trained" if is_finished(cell.folder, self.recipe(cell)[0], INITIAL) else "trained with another recipe"
            )
        return "begun" if cell.folder.exists() else "not begun"

    def is_done(self, cell: Cell) -> bool:
        """Return whether a cell was trained and scored with the current settings."""
        if cell.folder not in self._done and self.fits(cell, cell.folder):
            self._done.add(cell.folder)
        return cell.folder in self._done

    def settings(self, cell: Cell) -> JsonObject:
        """Return the content of `DONE`: the scoring options of the cell and the words that were analyzed."""
        words = self.experiment.words if cell.row.name == self.experiment.analyzed else None
        scored: JsonObject = {"score": self.score_options(cell.row) if cell.row.shown else None}
        if cell.row.kind in (*LOOKED_UP, MEMORY_FIRST):
            data = self.plain_recipe().data
            scored |= {"lookup": {**cell.row.settings, "metrics": data.metrics, "placeholders": data.placeholders}}
        if cell.row.begins_with is not None:
            scored["begins_with"] = cell.row.begins_with
        return {**scored, "words": words} if words else scored

    def score_options(self, row: ExperimentRow) -> JsonObject:
        """Return the fields of `Scoring` that the experiment sets for a row."""
        more = {"absent": True, "only": True} if row.name == self.experiment.analyzed else {}
        return {**self.experiment.score, **more}

    def recipe(self, cell: Cell) -> tuple[Recipe, str]:
        """Return the recipe of a cell and the command that trains it."""
        row = replace(cell.row, settings={**cell.row.settings, **self.widths(cell.row)})
        return self.experiment.load_recipe(row, cell.folder, cell.seed, cell.source)

    def widths(self, row: ExperimentRow) -> dict[str, int]:
        """Return the layer widths with which a row reaches the number of parameters of another row.

        Args:
            row: A row.

        Returns:
            Output of `match_parameters`; empty if the row has the widths of its recipe.
        """
        if row.parameters_as is None:
            return {}
        if row.name not in self._widths:
            known = self.experiment
            own, other = (
                known.load_recipe(one, self.root / one.name, known.seeds[0])[0]
                for one in (row, known.rows[row.parameters_as])
            )
            self._widths[row.name] = match_parameters(own, other, self.splits()["train"].rows)
        return self._widths[row.name]

    def lock_of(self, cell: Cell) -> Path:
        """Return the lock file of a cell."""
        return self.root / "locks" / f"{cell.name.replace('/', '.')}.lock"

    @contextmanager
    def locked(self, cell: Cell) -> Iterator[bool]:
        """Lock a cell against other processes.

        Args:
            cell: The cell.

        Yields:
            True if this process holds the lock, False if another process does.
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
        """Run all cells that no other process is running, and write the page.

        Returns:
            The reason of each failure, by name of the cell or row.
        """
        failed: dict[str, str] = {}
        self.check_data()
        self.record_data()
        if any(row.kind == "best_source" for row in self.chosen_rows()):
            for source in self.experiment.sources:
                if source not in self.single_sources():
                    self.say(f"{source}: no model of this source alone; it is absent in all of the train or dev split")
        self.write_experiment()
        self.restore()
        done = [cell for cell in self.find_done() if cell.folder in self._done]
        for cell in done:
            if not self.archive_of(cell).exists():  # the archive was removed, or earlier runs had another --results
                self.keep(cell)
        for row in {cell.row.name: cell.row for cell in done}.values():
            if row.shown and not (self.table / f"{row.name}.json").exists():  # the file of the row was removed
                try:
                    self.write_row(row)
                except Exception as error:  # as in `next_cell`
                    self.note_failure(failed, row.name, error)
        while self.next_cell(failed):
            pass
        self.write_page()
        for name, state in self.states().items():
            if state != "done" and name not in failed:
                self.say(f"{name}: {state}")
        return failed

    def archive_of(self, cell: Cell) -> Path:
        """Return the path of the archive of a finished cell."""
        return self.table / CELLS / f"{cell.folder.parent.name}.{cell.folder.name}.zip"

    def keep(self, cell: Cell) -> None:
        """Write the archive of a finished cell into the folder of the rows.

        Args:
            cell: The cell.
        """
        keep_cell(cell.folder, self.archive_of(cell))
        write_json(self.table / CELLS / DATA, self.fingerprints())

    def restore(self) -> None:
        """Restore the archived cells whose folders are missing.

        Cells with other settings or other data are skipped, and a note is printed.
        """
        kept = self.table / CELLS
        archives = sorted(kept.glob("*.zip"))
        if archives and read_result(kept / DATA) != self.fingerprints():
            self.say(f"{kept}: not used, these cells read other data")
            return
        references = [single_line(row[self.experiment.target] or "") for row in self.test_split().rows]
        for archive in archives:
            row, _, name = archive.stem.rpartition(".")
            cell = self.cell_at(self.root / row / name)
            if cell is None:
                self.say(f"{archive}: not used, the experiment has no such row")
            elif not cell.folder.exists():
                with self.locked(cell) as free:
                    if free and not cell.folder.exists():
                        restored = restore_cell(archive, cell.folder, references, partial(self.fits, cell))
                        self.say(f"{archive}: {'restored' if restored else 'not used, the settings are other ones'}")

    def cell_at(self, folder: Path) -> Cell | None:
        """Return the cell whose folder this is; None if the experiment has no such row."""
        name, last = folder.parent.name, folder.name
        numbers = [int(number) for number in last.split("-")[1:]]
        for row in self.experiment.rows.values():
            if row.kind == "best_source":
                for source in self.experiment.sources:
                    if name == f"{row.name}-{source}":
                        return Cell(row, numbers[0], folder, source)
            elif name == row.name and row.kind == "train":
                begins = self.experiment.initial_folder(row, folder, numbers[0])
                return Cell(row, numbers[0], folder, begins=begins)
            elif name == row.name and row.kind in LOOKED_UP:
                return Cell(row, self.experiment.seeds[0], folder) if last == ONCE else None
            elif name == row.name:
                return _reading_cell(row, self.root, numbers, folder)
        return None

    def fits(self, cell: Cell, folder: Path) -> bool:
        """Return whether a folder holds a finished cell with the current settings of this cell."""
        if not (folder / DONE).exists() or read_result(folder / DONE) != self.settings(cell):
            return False
        return not cell.is_trained or is_finished(folder, self.recipe(cell)[0], INITIAL)

    def chosen_rows(self) -> list[ExperimentRow]:
        """Return the rows that were selected to be run."""
        names = self.experiment.chosen or self.experiment.rows
        return [row for name, row in self.experiment.rows.items() if name in names]

    def next_cell(self, failed: dict[str, str]) -> bool:
        """Run the first cell that is not finished, not locked and not waiting for other cells.

        Args:
            failed: Reasons of earlier failures, by name of the cell. These cells are skipped; if the cell fails, it is
                added.

        Returns:
            True if a cell was run.
        """
        for cell in self.find_done():
            if cell.name in failed or cell.folder in self._done or not self._done.issuperset(cell.needs):
                continue
            with self.locked(cell) as free:
                if not free or self.is_done(cell):  # another process may have finished the cell meanwhile
                    continue
                try:
                    self.one_cell(cell)
                except Exception as error:  # an error of any kind must not stop the other cells
                    self.note_failure(failed, cell.name, error)
                return True
        return False

    def note_failure(self, failed: dict[str, str], name: str, error: Exception) -> None:
        """Print the reason of a failure and add it to the dict, under the name of the cell or row.

        Args:
            failed: Receives the reason.
            name: Name of the cell or row.
            error: The error. The traceback is printed, too, unless it is about the input or a file.
        """
        failed[name] = " ".join(str(error).split()) or type(error).__name__
        self.say(f"{name} failed: {failed[name]}")
        if not isinstance(error, ValueError | OSError):
            self.say("".join(traceback.format_exception(error)))

    def one_cell(self, cell: Cell) -> None:
        """Train and score one cell, and write its row and the page.

        Args:
            cell: The cell, which this process has locked.
        """
        self.say(cell.name)
        looked_up = cell.row.kind in (*LOOKED_UP, MEMORY_FIRST)
        recipe, command = self.recipe(cell) if cell.is_trained else (None, "")
        finished = recipe is None or is_finished(cell.folder, recipe, INITIAL)
        read = [folder for folder in cell.needs if not (finished and folder == cell.begins)]
        for folder in [] if looked_up else [*read, *([cell.folder] if cell.is_trained and finished else [])]:
            if not (folder / WEIGHTS).exists():
                raise ValueError(
                    f"{folder} was restored without its weights, which {cell.name} needs: to train it again, remove "
                    f"this folder and its archive in {self.table / CELLS}"
                )
        if recipe is not None and not finished:
            train(recipe, resume=cell.folder.exists(), command=command)
        if cell.row.shown and looked_up:
            self.look_up(cell)
        elif cell.row.shown:
            self.score(cell)
        settings, known = self.settings(cell), self.experiment
        if words := settings.get("words"):
            sources = known.sources_of(cell.row)
            write_json(cell.folder / WORDS, measure_words(cell.folder, words, sources, known.target))
        write_json(cell.folder / DONE, settings)
        self._done.add(cell.folder)
        self.keep(cell)
        if cell.row.shown:
            self.write_row(cell.row)

    def score(self, cell: Cell) -> None:
        """Decode and score a cell with its model or models.

        Args:
            cell: The cell.
        """
        options = self.score_options(cell.row)
        run, out = cell.folder, None
        if cell.source or self.experiment.sources_of(cell.row) != self.experiment.sources:
            options["sources"] = self.experiment.sources  # score the same lines as the other rows
        if cell.of:
            run, out = cell.of[0], cell.folder / ("reranking" if cell.reverse else "scores")
            options["ensemble"] = [str(folder) for folder in cell.of[1:]]
        if cell.reverse:
            options["rerank"] = str(cell.reverse)
        words = [word for key, value in options.items() for word in _option(key, value)]
        command = shlex.join(["hf-multisource", "score", str(run), *words, *(["--out", str(out)] if out else [])])
        report = score(Scoring(str(run), out=out, **options), command)
        if cell.reverse and out:
            self.keep_reranked(report, out, cell.folder / "scores")
        if cell.of:
            self.write_made_of(cell)

    def write_made_of(self, cell: Cell) -> None:
        """Write the file `MADE_OF`, which lists the runs that a cell is made of."""
        paths = {
            key: [f"../../{folder.relative_to(self.root).as_posix()}" for folder in folders]
            for key, folders in (("of", cell.of), ("with", (cell.reverse,) if cell.reverse else ()))
        }
        write_json(cell.folder / MADE_OF, paths)

    def look_up(self, cell: Cell) -> None:
        """Score a cell whose hypotheses are copies of a source or answers of a translation memory.

        Args:
            cell: The cell.
        """
        known, row, data = self.experiment, cell.row, self.plain_recipe().data
        split, sources = self.test_split(), known.sources_of(row)
        texts, memory = [str(one[sources[0]] or "") for one in split.rows], None
        if row.kind != "copy":
            asked = row.settings.get("sources", sources)
            answers = remembered_texts(
                self.splits()["train"].rows,
                split.rows,
                asked,
                known.target,
                syntax=data.placeholders,
                similar=row.settings.get("similar", False),
            )
            counts = describe_answers(answers, [one[known.target] or "" for one in split.rows])
            memory = {"sources": list(asked), **counts}
            others = [read_lines(run / "scores" / f"{data.test}.all.txt") for run in cell.of] or [[""] * len(answers)]
            texts = [other if text is None else text for text, other in zip(answers, others[0], strict=True)]
        command = f"{known.command} --rows {row.name}"
        score_texts(cell.folder / "scores", texts, split, data, sources=sources, command=command, memory=memory)
        self.write_made_of(cell)

    def keep_reranked(self, report: JsonObject, folder: Path, out: Path) -> None:
        """Write a copy of the scores in which the reranked hypotheses take the place of condition `all`.

        Args:
            report: Return value of `score`.
            folder: Folder of the scores of the report.
            out: Folder to write to.
        """
        split, sources = report["split"], report["sources"]
        entry = report["conditions"]["reranked"]
        out.mkdir(parents=True, exist_ok=True)
        texts = {name: (folder / f"{split}.{name}.txt").read_text("utf-8") for name in ("reranked", "reference")}
        known, rows = self.experiment, self.test_split().rows
        hypotheses, references = (text.split("\n")[:-1] for text in texts.values())
        presence = measure_presence(hypotheses, references, rows, known.sources, metrics_of(entry))
        whole = {}
        if before := report.get("placeholders"):
            whole = {"placeholders": count_whole(hypotheses, rows, sources, before["syntax"])}
        write_text(out / f"{split}.all.txt", texts["reranked"])
        write_text(out / f"{split}.reference.txt", texts["reference"])
        write_json(out / f"{split}.json", {**report, **whole, "conditions": {"all": entry}, "presence": presence})

    def write_experiment(self) -> None:
        """Write the description of the experiment, from which the page is made."""
        self.table.mkdir(parents=True, exist_ok=True)
        write_text(self.table / EXPERIMENT, describe_experiment(self.experiment))

    def write_row(self, row: ExperimentRow) -> None:
        """Write a row from its finished seeds, and update the page.

        Args:
            row: The row. Comparisons of other rows with this row are updated, too.
        """
        with FileLock(self.root / "locks" / "results.lock"):
            folder = self.folder_of(row)
            if folder is None:
                return
            content = make_row(folder, self.experiment.name, row.name)
            content["baseline"] = self.comparison(folder, content, self.experiment.reference_of(row))
            content["unknown"] = self.unknown(folder, content["split"])
            if choice := self._choices.get(row.name):
                content["choice"] = asdict(choice)
            if widths := self.widths(row):
                content["widths"] = widths
            if row.name == self.experiment.analyzed:
                content |= self.analyze(folder, content)
            write_json(self.table / f"{row.name}.json", content)
            for path in sorted(self.table.glob("*.json")):
                other = read_result(path)
                if (one := self.experiment.rows.get(other["name"])) and self.experiment.reference_of(one) == row.name:
                    own = self.folder_of(one)  # without its runs, the other row cannot be compared again
                    scored = own is not None and _is_scored(own)
                    compared = self.comparison(own, other, row.name) if own is not None and scored else None
                    write_json(path, {**other, "baseline": compared})
            write_page(self.experiment.name, self.results)

    def write_page(self) -> None:
        """Write the page of the experiment from its rows and notes, if any row is finished."""
        with FileLock(self.root / "locks" / "results.lock"):
            if any(row.shown and (self.table / f"{name}.json").exists() for name, row in self.experiment.rows.items()):
                write_page(self.experiment.name, self.results)

    def unknown(self, folder: Path, split: str) -> JsonObject:
        """Return the symbols of the test split that are unknown to the models of a row, by name of the column."""
        return dict(read_result(runs_of(folder)[0] / "scores" / f"{split}.json").get("unknown", {}))

    def analyze(self, folder: Path, row: Mapping[str, Any]) -> JsonObject:
        """Compute the analyses that the page shows only for the row `analyzed`."""
        known, split, rows = self.experiment, row["split"], self.test_split().rows
        metrics = [name for name in metrics_of(row["scores"]["all"]) if not METRICS[name].needs_sources][:2]
        sources = known.sources_of(known.rows[row["name"]])
        measured: JsonObject = {"left_out": measure_sources(folder, split, rows, sources, metrics)}
        if self.plain_recipe().tokenizer.kind == "symbols":
            measured["symbols"] = measure_symbols(folder, split)
        words = [read_result(run / WORDS) for run in runs_of(folder) if (run / WORDS).exists()]
        return {**measured, **({"words": mean_words(words)} if words else {})}

    def comparison(self, folder: Path, row: Mapping[str, Any], reference: str | None) -> JsonObject | None:
        """Compare a row with the row named `reference`; None if that row was not scored."""
        other = self.folder_of(self.experiment.rows[reference]) if reference else None
        if other is None or not _is_scored(other):
            return None
        metrics = [name for name in metrics_of(row["scores"]["all"]) if not METRICS[name].needs_sources]
        return {**compare(folder, other, row["split"], metrics=metrics), "run": reference}

    def folder_of(self, row: ExperimentRow | None) -> Path | None:
        """Return the folder from which a row is written.

        For the kind `best_source` it is the folder of the chosen source, for an ensemble of seeds the scored folder
        with the most seeds, for a row without a model the folder of its single cell, and otherwise the folder of the
        row.

        Args:
            row: The row; None: the experiment has no such row.

        Returns:
            The folder; None if it does not exist yet.
        """
        if row is None:
            return None
        if row.is_pooled:
            scored = [folder for folder in (self.root / row.name).glob("seeds-*") if scored_splits(folder)]
            return max(scored, key=lambda folder: folder.name.count("-"), default=None)
        if row.kind in LOOKED_UP:
            return self.root / row.name / ONCE
        if row.kind == "best_source":
            choice = self.choice_of(row)
            return self.root / f"{row.name}-{choice.source}" if choice else None
        return self.root / row.name

    def choice_of(self, row: ExperimentRow) -> Choice | None:
        """Choose the source with the best score on the dev split, for the lowest seed that is finished for all sources.

        Args:
            row: A row of the kind `best_source`.

        Returns:
            The choice; None if no seed is finished for all sources.
        """
        if row.name not in self._choices:
            folders = {source: self.root / f"{row.name}-{source}" for source in self.single_sources()}
            found = [{path.name for path in seed_folders(folder)} for folder in folders.values()]
            for name in sorted(set.intersection(*found), key=lambda name: int(name.partition("-")[2])):
                seed = int(name.partition("-")[2])
                cells = [Cell(row, seed, folder / name, source) for source, folder in folders.items()]
                if all(self.is_done(cell) for cell in cells):
                    measured = {source: self.dev_score(folder / name, source) for source, folder in folders.items()}
                    metric = next(iter(measured.values()))[0]
                    scores = {source: score for source, (_, score) in measured.items()}
                    best = (max if METRICS[metric].higher_is_better else min)(scores, key=lambda one: scores[one])
                    self._choices[row.name] = Choice(best, seed, metric, scores)
                    break
        return self._choices.get(row.name)

    def dev_score(self, run: Path, source: str) -> tuple[str, float]:
        """Return the score of a single-source run on all lines of the dev split that have at least one source.

        During training, only the lines that have the source of the run are scored. This method also counts the
        remaining lines, with empty hypotheses, as on the test split. The result is exact for metrics that are means
        over sentences.

        Args:
            run: Run folder.
            source: Source of the run.

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


def _is_scored(folder: Path) -> bool:
    """Return whether a run folder, or any run in a folder of seeds, has scores."""
    return any(scored_splits(one) for one in (folder, *seed_folders(folder)))


def _option(key: str, value: Any) -> list[str]:
    """Return an option of `hf-multisource score` as command-line arguments."""
    if isinstance(value, bool):
        return [f"--{key}"] if value else []
    return [f"--{key}", *map(str, value if isinstance(value, Sequence) and not isinstance(value, str) else [value])]
