"""Find which cells of an experiment are finished, lock cells against other processes, and archive and restore them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from hf_multisource.data.files import single_line, write_json
from hf_multisource.data.rows import read_split
from hf_multisource.evaluation.experiment_cells import Cell, Choice, cell_at, cells_of
from hf_multisource.evaluation.experiment_data import DATA, ExperimentData
from hf_multisource.evaluation.kept_cells import keep_cell, restore_cell
from hf_multisource.evaluation.results import read_result
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.experiments import LOOKED_UP, MEMORY_FIRST, Experiment, ExperimentRow
from hf_multisource.recipes.recipe import Recipe, load_recipe
from hf_multisource.recipes.run_folder import SUMMARY, is_finished
from hf_multisource.recipes.seeds import seed_folders
from hf_multisource.recipes.shipped import RECIPE
from hf_multisource.recipes.widths import match_parameters

DONE = "cell.json"  # settings of the scores, in the folder of a finished cell; marks the cell as finished
CELLS = "cells"  # folder of the archives of finished cells, in the folder of the rows
# Keys that `is_finished` does not compare: the value is the folder of another row's run, and `settings` compares that
# row's name instead
INITIAL = ("model.init_from",)


@dataclass
class CellStore:
    """The cells of an experiment on the disk.

    Args:
        data: Data of the experiment.
        table: Folder of the experiment's rows.
        say: Function that prints a line.

    Attributes:
        done: Folders of the cells that are known to be finished.
        choices: Chosen sources of rows of the kind `best_source`, by name of the row.
    """

    data: ExperimentData
    table: Path
    say: Callable[[str], None] = print
    done: set[Path] = field(default_factory=set, init=False)
    choices: dict[str, Choice] = field(default_factory=dict, init=False)
    _widths: dict[str, dict[str, int]] = field(default_factory=dict, init=False)

    @property
    def experiment(self) -> Experiment:
        """The experiment."""
        return self.data.experiment

    @property
    def root(self) -> Path:
        """Folder of the runs."""
        return self.data.root

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
        cells = cells_of(self.experiment, self.root, self.choices, self.data.single_sources())
        for cell in cells:
            self.is_done(cell)
        return cells

    def state(self, cell: Cell) -> str:
        """Return the state of a cell, see `states`."""
        if cell.folder in self.done:
            return "done"
        if self.lock_of(cell).exists():
            with self.locked(cell) as free:
                if not free:
                    return "in work"
        if not cell.folder.exists() and self.archive_of(cell).exists():
            return f"kept in {self.archive_of(cell)}"
        if waiting := [folder for folder in cell.needs if folder not in self.done]:
            return f"waiting for {', '.join(folder.relative_to(self.root).as_posix() for folder in waiting)}"
        if cell.is_trained and (cell.folder / SUMMARY).exists():
            return (
                "trained" if is_finished(cell.folder, self.recipe(cell)[0], INITIAL) else "trained with another recipe"
            )
        return "begun" if cell.folder.exists() else "not begun"

    def is_done(self, cell: Cell) -> bool:
        """Return whether a cell was trained and scored with the current settings."""
        if cell.folder not in self.done and self.fits(cell, cell.folder):
            self.done.add(cell.folder)
        return cell.folder in self.done

    def fits(self, cell: Cell, folder: Path) -> bool:
        """Return whether a folder holds a finished cell with the current settings of this cell."""
        if not (folder / DONE).exists() or read_result(folder / DONE) != self.settings(cell):
            return False
        return not cell.is_trained or is_finished(folder, self.recipe(cell)[0], INITIAL)

    def settings(self, cell: Cell) -> JsonObject:
        """Return the content of `DONE`: the scoring options of the cell and the words that were analyzed."""
        words = self.experiment.words if cell.row.name == self.experiment.analyzed else None
        scored: JsonObject = {"score": self.score_options(cell.row) if cell.row.shown else None}
        if cell.row.kind in (*LOOKED_UP, MEMORY_FIRST):
            data = self.data.plain_recipe().data
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
            self._widths[row.name] = match_parameters(own, other, self.data.splits()["train"].rows)
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

    def archive_of(self, cell: Cell) -> Path:
        """Return the path of the archive of a finished cell."""
        return self.table / CELLS / f"{cell.folder.parent.name}.{cell.folder.name}.zip"

    def keep(self, cell: Cell) -> None:
        """Write the archive of a finished cell into the folder of the rows.

        Args:
            cell: The cell.
        """
        keep_cell(cell.folder, self.archive_of(cell))
        write_json(self.table / CELLS / DATA, self.data.fingerprints())

    def restore(self) -> None:
        """Restore the archived cells whose folders are missing.

        Cells with other settings or other data are skipped, and a note is printed.
        """
        kept = self.table / CELLS
        archives = sorted(kept.glob("*.zip"))
        if archives and read_result(kept / DATA) != self.data.fingerprints():
            self.say(f"{kept}: not used, these cells read other data")
            return
        references = [single_line(row[self.experiment.target] or "") for row in self.data.test_split().rows]
        for archive in archives:
            row, _, name = archive.stem.rpartition(".")
            cell = cell_at(self.experiment, self.root, self.root / row / name)
            if cell is None:
                self.say(f"{archive}: not used, the experiment has no such row")
            elif not cell.folder.exists():
                with self.locked(cell) as free:
                    if free and not cell.folder.exists():
                        restored = restore_cell(archive, cell.folder, references, partial(self.fits, cell))
                        self.say(f"{archive}: {'restored' if restored else 'not used, the settings are other ones'}")

    def choice_of(self, row: ExperimentRow) -> Choice | None:
        """Choose the source with the best score on the dev split, for the lowest seed that is finished for all sources.

        Args:
            row: A row of the kind `best_source`.

        Returns:
            The choice; None if no seed is finished for all sources.
        """
        if row.name not in self.choices:
            folders = {source: self.root / f"{row.name}-{source}" for source in self.data.single_sources()}
            found = [{path.name for path in seed_folders(folder)} for folder in folders.values()]
            for name in sorted(set.intersection(*found), key=lambda name: int(name.partition("-")[2])):
                seed = int(name.partition("-")[2])
                cells = [Cell(row, seed, folder / name, source) for source, folder in folders.items()]
                if all(self.is_done(cell) for cell in cells):
                    measured = {source: self.dev_score(folder / name, source) for source, folder in folders.items()}
                    metric = next(iter(measured.values()))[0]
                    scores = {source: score for source, (_, score) in measured.items()}
                    best = (max if METRICS[metric].higher_is_better else min)(scores, key=lambda one: scores[one])
                    self.choices[row.name] = Choice(best, seed, metric, scores)
                    break
        return self.choices.get(row.name)

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
