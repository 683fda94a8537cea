"""The cells of an experiment: one seed of one row each.

The first seeds of all rows come before any second seed. A row of the kind `best_source` is trained on every source with
one seed. The source with the best score on the dev split is then trained with the remaining seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_multisource.recipes.experiments import LOOKED_UP, Experiment, ExperimentRow
from hf_multisource.recipes.seeds import seed_folder

ONCE = "once"  # folder name of the single cell of a row that needs no model


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
    rows = {row.name: row for row in experiment.chosen_rows()}
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


def cell_at(experiment: Experiment, root: Path, folder: Path) -> Cell | None:
    """Return the cell with a given folder.

    Args:
        experiment: The experiment.
        root: Folder of its runs.
        folder: Folder of the cell; it need not exist.

    Returns:
        The cell; None if the experiment has no such row.
    """
    name, last = folder.parent.name, folder.name
    numbers = [int(number) for number in last.split("-")[1:]]
    for row in experiment.rows.values():
        if row.kind == "best_source":
            for source in experiment.sources:
                if name == f"{row.name}-{source}":
                    return Cell(row, numbers[0], folder, source)
        elif name == row.name and row.kind == "train":
            begins = experiment.initial_folder(row, folder, numbers[0])
            return Cell(row, numbers[0], folder, begins=begins)
        elif name == row.name and row.kind in LOOKED_UP:
            return Cell(row, experiment.seeds[0], folder) if last == ONCE else None
        elif name == row.name:
            return _reading_cell(row, root, numbers, folder)
    return None


def _reading_cell(row: ExperimentRow, root: Path, seeds: Sequence[int], folder: Path) -> Cell:
    """Return the cell of a row that reads other rows with these seeds, and its reverse row with the first of them."""
    of = tuple(seed_folder(root / name, seed) for name in row.members for seed in seeds)
    reverse = seed_folder(root / row.settings["reverse"], seeds[0]) if "reverse" in row.settings else None
    return Cell(row, seeds[0], folder, of=of, reverse=reverse)
