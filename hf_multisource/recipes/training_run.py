"""State of a new or resumed training: recipe, arguments, folder, and coordination of its processes."""

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
    """New or resumed training.

    Args:
        recipe: The recipe.
        args: The training arguments that are built from the recipe.
        begun: Whether the output folder already holds the run.
    """

    recipe: Recipe
    args: Seq2SeqTrainingArguments
    begun: bool

    @property
    def folder(self) -> Path:
        """Output folder of the run."""
        return Path(str(self.args.output_dir))

    def recorded(self) -> JsonObject:
        """Return the fingerprint that the run began with.

        Returns:
            Return value of `read_fingerprint`; empty for a new run.
        """
        return read_fingerprint(self.folder) if self.begun else {}

    def together(self, work: Callable[[], Result], *, everywhere: bool = False) -> Result:
        """Run a function on the main process or on all processes, see [`processes.together`].

        Args:
            work: The function to run.
            everywhere: Whether every process runs `work`; otherwise only the main process does.

        Returns:
            The return value of `work`.
        """
        return together(self.args, work, everywhere=everywhere)

    def say(self, what: str, facts: Mapping[str, object]) -> None:
        """Print facts on the main process.

        Args:
            what: Subject of the facts.
            facts: The facts by name.
        """
        if self.args.process_index == 0:
            print(f"{what}: " + ", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
