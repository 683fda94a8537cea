"""Trainings that fail on one of two processes; every process writes how each of them ended.

Run by `accelerate launch` in a folder with a recipe, with the folder `stranger` that holds another model.
"""

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from hf_multisource import MultiSourceTrainer
from hf_multisource.cli.train import main

RANK = int(os.environ["RANK"])
compute_loss: Any = MultiSourceTrainer.compute_loss


def end(*arguments: str) -> tuple[Any, str]:
    """Train; returns the exit status or message, and what was written to standard error."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main(["recipe.yaml", "--per_device_train_batch_size", "8", *arguments])
    except SystemExit as error:
        return error.code, said.getvalue()
    return 0, said.getvalue()


def compute(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a loss that is not a number on the second process."""
    loss = compute_loss(self, *args, **kwargs)
    return loss * torch.nan if RANK == 1 else loss


def interrupt(*args: Any, **kwargs: Any) -> Any:
    """Stand for Ctrl-C, which reaches all processes."""
    raise KeyboardInterrupt


ends = {"refused": end("--output_dir", "stranger")}
with pytest.MonkeyPatch.context() as patch:  # as if each process were the first one on a machine of its own
    patch.setattr(TrainingArguments, "local_process_index", 0)
    ends["no data"] = end("--output_dir", "no_data", "--path", ("text", "nowhere")[RANK])
MultiSourceTrainer.compute_loss = compute  # type: ignore[method-assign]
ends["diverged"] = end("--output_dir", "diverged")
MultiSourceTrainer.compute_loss = interrupt  # type: ignore[method-assign]
ends["interrupted"] = end("--output_dir", "interrupted")
Path(f"ends_{RANK}.json").write_text(json.dumps(ends), encoding="utf-8")
