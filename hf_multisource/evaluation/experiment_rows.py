"""Write the rows and the page of an experiment from its finished cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from hf_multisource.data.files import write_json, write_text
from hf_multisource.evaluation.experiment_cells import ONCE
from hf_multisource.evaluation.experiment_page import EXPERIMENT, describe_experiment, write_page
from hf_multisource.evaluation.experiment_store import CellStore
from hf_multisource.evaluation.results import compare, make_row, read_result, runs_of, scored_splits
from hf_multisource.evaluation.row_analysis import mean_words, measure_sources, measure_symbols
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.table import METRICS, metrics_of
from hf_multisource.recipes.experiments import LOOKED_UP, Experiment, ExperimentRow
from hf_multisource.recipes.seeds import seed_folders

WORDS = "words.json"  # output of `measure_words`, in the folder of a cell of the row `analyzed`


@dataclass
class RowWriter:
    """Writer of the table of an experiment.

    Args:
        cells: The cells.
        results: Folder of the tables of all experiments.
    """

    cells: CellStore
    results: Path

    @property
    def experiment(self) -> Experiment:
        """The experiment."""
        return self.cells.experiment

    def write_experiment(self) -> None:
        """Write the description of the experiment, from which the page is made."""
        self.cells.table.mkdir(parents=True, exist_ok=True)
        write_text(self.cells.table / EXPERIMENT, describe_experiment(self.experiment))

    def write_row(self, row: ExperimentRow) -> None:
        """Write a row from its finished seeds, and update the page.

        Args:
            row: The row. Comparisons of other rows with this row are updated, too.
        """
        with FileLock(self.cells.root / "locks" / "results.lock"):
            folder = self.folder_of(row)
            if folder is None:
                return
            content = make_row(folder, self.experiment.name, row.name)
            content["baseline"] = self.comparison(folder, content, self.experiment.reference_of(row))
            content["unknown"] = self.unknown(folder, content["split"])
            if choice := self.cells.choices.get(row.name):
                content["choice"] = asdict(choice)
            if widths := self.cells.widths(row):
                content["widths"] = widths
            if row.name == self.experiment.analyzed:
                content |= self.analyze(folder, content)
            write_json(self.cells.table / f"{row.name}.json", content)
            for path in sorted(self.cells.table.glob("*.json")):
                other = read_result(path)
                if (one := self.experiment.rows.get(other["name"])) and self.experiment.reference_of(one) == row.name:
                    own = self.folder_of(one)  # without its runs, the other row cannot be compared again
                    scored = own is not None and _is_scored(own)
                    compared = self.comparison(own, other, row.name) if own is not None and scored else None
                    write_json(path, {**other, "baseline": compared})
            write_page(self.experiment.name, self.results)

    def write_page(self) -> None:
        """Write the page of the experiment from its rows and notes, if any row is finished."""
        with FileLock(self.cells.root / "locks" / "results.lock"):
            if any(
                row.shown and (self.cells.table / f"{name}.json").exists() for name, row in self.experiment.rows.items()
            ):
                write_page(self.experiment.name, self.results)

    def unknown(self, folder: Path, split: str) -> JsonObject:
        """Return the symbols of the test split that are unknown to the models of a row, by name of the column."""
        return dict(read_result(runs_of(folder)[0] / "scores" / f"{split}.json").get("unknown", {}))

    def analyze(self, folder: Path, row: Mapping[str, Any]) -> JsonObject:
        """Compute the analyses that the page shows only for the row `analyzed`."""
        known, split, rows = self.experiment, row["split"], self.cells.data.test_split().rows
        metrics = [name for name in metrics_of(row["scores"]["all"]) if not METRICS[name].needs_sources][:2]
        sources = known.sources_of(known.rows[row["name"]])
        measured: JsonObject = {"left_out": measure_sources(folder, split, rows, sources, metrics)}
        if self.cells.data.plain_recipe().tokenizer.kind == "symbols":
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
            scored = [folder for folder in (self.cells.root / row.name).glob("seeds-*") if scored_splits(folder)]
            return max(scored, key=lambda folder: folder.name.count("-"), default=None)
        if row.kind in LOOKED_UP:
            return self.cells.root / row.name / ONCE
        if row.kind == "best_source":
            choice = self.cells.choice_of(row)
            return self.cells.root / f"{row.name}-{choice.source}" if choice else None
        return self.cells.root / row.name


def _is_scored(folder: Path) -> bool:
    """Return whether a run folder, or any run in a folder of seeds, has scores."""
    return any(scored_splits(one) for one in (folder, *seed_folders(folder)))
