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
"""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_multisource.data.files import read_lines, write_json, write_text
from hf_multisource.evaluation.conditions import count_whole
from hf_multisource.evaluation.experiment_cells import Cell
from hf_multisource.evaluation.experiment_data import ExperimentData
from hf_multisource.evaluation.experiment_rows import WORDS, RowWriter
from hf_multisource.evaluation.experiment_store import CELLS, DONE, INITIAL, CellStore
from hf_multisource.evaluation.lookups import describe_answers, remembered_texts, score_texts
from hf_multisource.evaluation.presence import measure_presence
from hf_multisource.evaluation.results import MADE_OF
from hf_multisource.evaluation.row_analysis import measure_words
from hf_multisource.evaluation.scoring import Scoring, score
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.table import metrics_of
from hf_multisource.recipes.experiments import LOOKED_UP, MEMORY_FIRST, Experiment
from hf_multisource.recipes.run_folder import is_finished
from hf_multisource.recipes.training import train

WEIGHTS = "model.safetensors"


@dataclass
class Run:
    """Execution of an experiment.

    Args:
        experiment: The experiment.
        runs: Folder of the runs of all experiments.
        results: Folder of the tables of all experiments.
        say: Function that prints a line about each step.

    Attributes:
        data: Data of the experiment.
        cells: Its cells.
        rows: Writer of its rows.
    """

    experiment: Experiment
    runs: Path
    results: Path
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self.data = ExperimentData(self.experiment, self.runs / self.experiment.name)
        self.cells = CellStore(self.data, self.results / self.experiment.name, self.say)
        self.rows = RowWriter(self.cells, self.results)

    def all_cells(self) -> dict[str, str]:
        """Run all cells that no other process is running, and write the page.

        Returns:
            The reason of each failure, by name of the cell or row.
        """
        failed: dict[str, str] = {}
        self.data.check()
        self.data.record()
        if any(row.kind == "best_source" for row in self.experiment.chosen_rows()):
            for source in self.experiment.sources:
                if source not in self.data.single_sources():
                    self.say(f"{source}: no model of this source alone; it is absent in all of the train or dev split")
        self.rows.write_experiment()
        self.cells.restore()
        done = [cell for cell in self.cells.find_done() if cell.folder in self.cells.done]
        for cell in done:
            if not self.cells.archive_of(cell).exists():  # it was removed, or earlier runs had another --results
                self.cells.keep(cell)
        for row in {cell.row.name: cell.row for cell in done}.values():
            if row.shown and not (self.cells.table / f"{row.name}.json").exists():  # the file of the row was removed
                try:
                    self.rows.write_row(row)
                except Exception as error:  # as in `next_cell`
                    self.note_failure(failed, row.name, error)
        while self.next_cell(failed):
            pass
        self.rows.write_page()
        for name, state in self.cells.states().items():
            if state != "done" and name not in failed:
                self.say(f"{name}: {state}")
        return failed

    def next_cell(self, failed: dict[str, str]) -> bool:
        """Run the first cell that is not finished, not locked and not waiting for other cells.

        Args:
            failed: Reasons of earlier failures, by name of the cell. These cells are skipped; if the cell fails, it is
                added.

        Returns:
            True if a cell was run.
        """
        for cell in self.cells.find_done():
            if cell.name in failed or cell.folder in self.cells.done or not self.cells.done.issuperset(cell.needs):
                continue
            with self.cells.locked(cell) as free:
                if not free or self.cells.is_done(cell):  # another process may have finished the cell meanwhile
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
        recipe, command = self.cells.recipe(cell) if cell.is_trained else (None, "")
        finished = recipe is None or is_finished(cell.folder, recipe, INITIAL)
        read = [folder for folder in cell.needs if not (finished and folder == cell.begins)]
        for folder in [] if looked_up else [*read, *([cell.folder] if cell.is_trained and finished else [])]:
            if not (folder / WEIGHTS).exists():
                raise ValueError(
                    f"{folder} was restored without its weights, which {cell.name} needs: to train it again, remove "
                    f"this folder and its archive in {self.cells.table / CELLS}"
                )
        if recipe is not None and not finished:
            train(recipe, resume=cell.folder.exists(), command=command)
        if cell.row.shown and looked_up:
            self.look_up(cell)
        elif cell.row.shown:
            self.score(cell)
        settings, known = self.cells.settings(cell), self.experiment
        if words := settings.get("words"):
            sources = known.sources_of(cell.row)
            write_json(cell.folder / WORDS, measure_words(cell.folder, words, sources, known.target))
        write_json(cell.folder / DONE, settings)
        self.cells.done.add(cell.folder)
        self.cells.keep(cell)
        if cell.row.shown:
            self.rows.write_row(cell.row)

    def score(self, cell: Cell) -> None:
        """Decode and score a cell with its model or models.

        Args:
            cell: The cell.
        """
        options = self.cells.score_options(cell.row)
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
            key: [f"../../{folder.relative_to(self.data.root).as_posix()}" for folder in folders]
            for key, folders in (("of", cell.of), ("with", (cell.reverse,) if cell.reverse else ()))
        }
        write_json(cell.folder / MADE_OF, paths)

    def look_up(self, cell: Cell) -> None:
        """Score a cell whose hypotheses are copies of a source or answers of a translation memory.

        Args:
            cell: The cell.
        """
        known, row, data = self.experiment, cell.row, self.data.plain_recipe().data
        split, sources = self.data.test_split(), known.sources_of(row)
        texts, memory = [str(one[sources[0]] or "") for one in split.rows], None
        if row.kind != "copy":
            asked = row.settings.get("sources", sources)
            answers = remembered_texts(
                self.data.splits()["train"].rows,
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
        known, rows = self.experiment, self.data.test_split().rows
        hypotheses, references = (text.split("\n")[:-1] for text in texts.values())
        presence = measure_presence(hypotheses, references, rows, known.sources, metrics_of(entry))
        whole = {}
        if before := report.get("placeholders"):
            whole = {"placeholders": count_whole(hypotheses, rows, sources, before["syntax"])}
        write_text(out / f"{split}.all.txt", texts["reranked"])
        write_text(out / f"{split}.reference.txt", texts["reference"])
        write_json(out / f"{split}.json", {**report, **whole, "conditions": {"all": entry}, "presence": presence})


def _option(key: str, value: Any) -> list[str]:
    """Return an option of `hf-multisource score` as command-line arguments."""
    if isinstance(value, bool):
        return [f"--{key}"] if value else []
    return [f"--{key}", *map(str, value if isinstance(value, Sequence) and not isinstance(value, str) else [value])]
