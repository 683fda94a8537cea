"""Training killed by signal 9 at a chosen place: what `tests/test_resume.py` starts in processes of its own."""

import os
import signal
import sys
from typing import Any

from hf_multisource import MultiSourceTrainer
from hf_multisource.recipes.training import main


def die_within_a_checkpoint(arguments: list[str], step: int) -> None:
    """Run train.py; at the given update kill it when the checkpoint holds the model, but not yet the optimizer."""
    write: Any = MultiSourceTrainer._save_optimizer_and_scheduler

    def dying(self: MultiSourceTrainer, *args: Any) -> None:
        if self.state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, *args)

    MultiSourceTrainer._save_optimizer_and_scheduler = dying  # type: ignore[method-assign, assignment]
    main(arguments)


def quietly(arguments: list[str]) -> None:
    """Run train.py without its output."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    main(arguments)
