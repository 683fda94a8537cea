"""The data of an experiment: they are read once, and must stay the same for all its runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from hf_multisource.data.checks import check_choice
from hf_multisource.data.files import write_json
from hf_multisource.data.rows import Split, check_files, read_split
from hf_multisource.evaluation.results import read_result
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.experiments import LOOKED_UP, MEMORY_FIRST, Experiment
from hf_multisource.recipes.recipe import Recipe, load_recipe
from hf_multisource.recipes.run_folder import data_fingerprint
from hf_multisource.recipes.schema import CATALOGUES

DATA = "data.json"  # fingerprints of the data, in the folder of the experiment's runs


@dataclass
class ExperimentData:
    """The rows that all runs of an experiment read.

    Args:
        experiment: The experiment.
        root: Folder of its runs.
    """

    experiment: Experiment
    root: Path
    _splits: dict[str, Split] = field(default_factory=dict, init=False)

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

    def check(self) -> None:
        """Check before any training that the data can be read and have not changed since the runs began.

        Raises:
            ValueError: If the runs began with other data; the message names the folder. Errors of `splits` are raised,
                too.
        """
        now, path = self.fingerprints(), self.root / DATA
        for row in self.experiment.chosen_rows():
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

    def record(self) -> None:
        """Write the fingerprints of the data to `DATA` unless the file exists."""
        if not (path := self.root / DATA).exists():
            self.root.mkdir(parents=True, exist_ok=True)
            write_json(path, {"path": self.experiment.path, **self.fingerprints()})
