"""A training that starts or continues: its recipe, its arguments and its folder, and work that its processes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import Seq2SeqTrainingArguments

from hf_multisource.json_files import JsonObject
from hf_multisource.recipes.processes import Result, together
from hf_multisource.recipes.recipe import Recipe
from hf_multisource.recipes.run_folder import read_fingerprint


@dataclass(frozen=True)
class TrainingRun:
    """A training that starts or continues.

    Args:
        recipe: The recipe.
        args: The arguments of the trainer that the recipe gives.
        begun: Whether the output folder holds the run already.
    """

    recipe: Recipe
    args: Seq2SeqTrainingArguments
    begun: bool

    @property
    def folder(self) -> Path:
        """The output folder."""
        return Path(str(self.args.output_dir))

    def recorded(self) -> JsonObject:
        """Return the fingerprint that the run began with.

        Returns:
            As `read_fingerprint` has it; nothing if the run begins now.
        """
        return read_fingerprint(self.folder) if self.begun else {}

    def together(self, work: Callable[[], Result], *, everywhere: bool = False) -> Result:
        """Do something on the main process, or on all processes, as the function of the same name.

        Args:
            work: What to do.
            everywhere: Whether every process does it; else only the main process.

        Returns:
            What `work` returns.
        """
        return together(self.args, work, everywhere=everywhere)

    def say(self, what: str, facts: Mapping[str, object]) -> None:
        """Print facts, once for all processes.

        Args:
            what: What the facts are about.
            facts: The facts by name.
        """
        if self.args.process_index == 0:
            print(f"{what}: " + ", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
