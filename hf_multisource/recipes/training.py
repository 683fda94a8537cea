"""Train a multi-source model as a recipe says.

The run folder receives the best model and its processor, the resolved recipe (`recipe.yaml`), the versions
(`versions.json`), the fingerprint of data and batch size (`fingerprint.json`), a summary with time and hardware
(`train_summary.json`) and the checkpoints.
"""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    EvalPrediction,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)
from transformers.trainer_callback import TrainerState

from hf_multisource import DataCollatorForMultiSource, MultiSourceProcessor
from hf_multisource.data.encoding import MixedExamples, text_sources
from hf_multisource.data.files import write_json
from hf_multisource.data.privacy import mask_words
from hf_multisource.data.rows import Split, check_files, read_split, take_away
from hf_multisource.data.store import place_of, read_report, store_rows, stored_rows
from hf_multisource.foreign import build_auto
from hf_multisource.json_files import read_json
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.checkpoints import RunTrainer, check_best, find_change, find_checkpoints
from hf_multisource.recipes.pretrained import pour_encoder
from hf_multisource.recipes.processes import together
from hf_multisource.recipes.processor import contents_of, files_of, load_processor, make_processor, wrapped_parts
from hf_multisource.recipes.provenance import hardware
from hf_multisource.recipes.recipe import Recipe
from hf_multisource.recipes.run_folder import (
    FINGERPRINT,
    RECIPE,
    batch_of,
    check_data,
    check_folder,
    data_fingerprint,
    explained,
    locked,
    next_start,
    read_fingerprint,
)

UNREADABLE_FILES = "unreadable.json"  # in the run folder: the lines whose picture or recording cannot be read
PACKAGES = ("hf-multisource", "torch", "transformers", "tokenizers", "accelerate", "sacrebleu", "numpy")


def train(recipe: Recipe, *, resume: bool = False, command: str | None = None) -> dict[str, Any]:
    """Train as the recipe says.

    Args:
        recipe: The recipe.
        resume: Whether to go on from the last complete checkpoint in the output folder.
        command: The command line of `hf-multisource train`, for the summary and for the message after an interruption;
            None: this function was called from Python.

    Returns:
        The summary that is also written to `train_summary.json`.

    Raises:
        FileExistsError: If the output folder holds a run and `resume` is not set, or a model that is not of a run.
        BlockingIOError: If another training uses the output folder.
        ValueError: If the run in the output folder has another recipe, other data or another batch size.
        FloatingPointError: If training diverges.
        OSError: If the disk is full.
        KeyboardInterrupt: If the user or the system ends the training; the message says how to continue.
    """
    args = recipe.training_arguments()
    folder = Path(str(args.output_dir))
    with explained(folder, next_start(args, command)), ExitStack() as stack:
        together(args, lambda: stack.enter_context(locked(folder)))
        begun = together(args, lambda: check_start(recipe, args, resume))
        checkpoint = together(args, lambda: resume_point(args, folder)) if resume else None
        parts: dict[str, Any] = {}
        if not begun:
            together(args, lambda: parts.update(wrapped_parts(recipe)))
        rows, data = read_data(recipe, args, parts, begun)
        processor = prepare_processor(recipe, args, rows.get("train", []), parts, begun)
        model = together(args, lambda: build_model(recipe, processor, args), everywhere=True)
        parameters = count_parameters(model)
        encoded = encode_data(recipe, args, rows, data, processor)
        del rows  # texts are read from the files of their encoding
        trainer = build_trainer(args, model, processor, encoded, recipe.data.metrics)
        run_updates(trainer, checkpoint, lambda: together(args, lambda: record_start(recipe, args, data, processor)))
        trainer.check_weights()
        trainer.save_model(str(folder))
        trainer.save_state()
        return summarise(trainer, parameters, command or shlex.join(["python", *mask_words(sys.argv)]), resume)


class Beginning(TrainerCallback):
    """Calls a function when the model, the optimizer and the schedule are ready, before the first update.

    Args:
        call: The function.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Call the function.

        Args:
            *args: As in the stock class.
            **kwargs: As in the stock class.
        """
        self.call()


def check_start(recipe: Recipe, args: Seq2SeqTrainingArguments, resume: bool) -> bool:
    """Check everything that takes no time: the run folder, the tokenizer folder, options, the shape of the model.

    Args:
        recipe: The run's recipe.
        args: The run's arguments.
        resume: Whether the run continues.

    Returns:
        Whether the output folder holds the run already.

    Raises:
        ValueError: If a value is not allowed; the message names the key. Other errors are those of `check_folder`.
    """
    folder = Path(str(args.output_dir))
    begun = (folder / RECIPE).exists()
    check_folder(folder, recipe, args, resume)
    if not begun:
        recipe.check_tokenizer_folder()
    if args.torch_compile:
        try:
            torch.compile(torch.nn.Identity(), backend=str(args.torch_compile_backend), mode=args.torch_compile_mode)
        except RuntimeError as error:
            raise ValueError(f"training.torch_compile_mode, training.torch_compile_backend: {error}") from error
    with torch.device("meta"):
        build_auto("AutoModelForSeq2SeqLM", recipe.draft_config())
    return begun


def read_data(
    recipe: Recipe, args: Seq2SeqTrainingArguments, parts: dict[str, Any], begun: bool
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """Read the training and dev splits, and compare them with those that the run began with.

    Where all sources are text, one process on each machine reads them: the others read the encoded rows.

    Args:
        recipe: The run's recipe.
        args: The run's arguments.
        parts: Preprocessors of wrapped encoders by source, from `wrapped_parts`.
        begun: Whether the output folder holds the run already.

    Returns:
        By role, "train" and "dev": rows of the model's sources, nothing on processes that do not need them; and the
        fingerprints of the data.
    """
    folder, forms, data = Path(str(args.output_dir)), recipe.forms(), recipe.data
    names = {"train": data.train, "dev": data.dev}

    def read() -> dict[str, Split]:
        return {
            role: read_split(
                data.path, name, data.sources, data.target, limit=data.limit if role == "train" else None, forms=forms
            )
            for role, name in names.items()
        }

    needed = args.local_process_index == 0 or set(forms.values()) != {"text"}
    splits = together(args, lambda: read() if needed else {}, everywhere=True)

    def compare() -> dict[str, Any]:
        now = {role: data_fingerprint(split.rows, forms) for role, split in splits.items()}
        check_data(read_fingerprint(folder).get("data", {}) if begun else {}, now, names)
        return now

    prints = together(args, compare)
    if {"picture", "sound"} & set(forms.values()):
        if not begun:
            together(args, lambda: note_unreadable(recipe, splits, folder, parts))
        splits = together(args, lambda: without_unreadable(recipe, splits, folder), everywhere=True)
    for role, split in splits.items():
        say(args, role, split.report)
    return {role: data.model_rows(split.rows) for role, split in splits.items()}, prints


def prepare_processor(
    recipe: Recipe, args: Seq2SeqTrainingArguments, rows: list[dict[str, Any]], parts: dict[str, Any], begun: bool
) -> MultiSourceProcessor:
    """Load the run's processor; the main process of a new run makes and saves it first.

    Args:
        recipe: The run's recipe.
        args: The run's arguments.
        rows: The training rows.
        parts: Preprocessors of wrapped encoders by source, from `wrapped_parts`.
        begun: Whether the output folder holds the run already.

    Returns:
        The processor.
    """
    folder = Path(str(args.output_dir))
    if not begun:
        together(args, lambda: make_processor(recipe, rows, parts).save_pretrained(folder))

    def load() -> MultiSourceProcessor:
        return load_processor(folder, read_fingerprint(folder).get("processor", ()) if begun else ())

    return together(args, load, everywhere=True)


def encode_data(
    recipe: Recipe,
    args: Seq2SeqTrainingArguments,
    rows: Mapping[str, list[dict[str, Any]]],
    fingerprints: Mapping[str, Any],
    processor: MultiSourceProcessor,
) -> dict[str, Any]:
    """Encode the texts of the rows, unless an earlier run has done it, and print how many were truncated.

    Args:
        recipe: The run's recipe.
        args: The run's arguments.
        rows: By role, rows of the model's sources.
        fingerprints: By role, the fingerprint of the data.
        processor: The run's processor, which has been saved in the run's folder.

    Returns:
        By role, examples for the collator.
    """
    data, folder = recipe.data, Path(str(args.output_dir))
    parts = contents_of(folder, processor)
    places = {
        role: place_of([now, parts, data.sources, data.target, data.concatenate, data.max_length])
        for role, now in fingerprints.items()
    }

    def encode() -> None:
        for role, place in places.items():
            store_rows(place, processor, rows[role], data.target, data.max_length)

    together(args, lambda: encode() if args.local_process_index == 0 else None, everywhere=True)
    examples: dict[str, Any] = {}
    for role, place in places.items():
        say(args, f"{role}, tokens", read_report(place) or {})
        stored = stored_rows(processor, place)
        mixed = len(text_sources(processor)) < len(processor.source_names)
        examples[role] = MixedExamples(processor, rows[role], stored) if mixed else stored
    return examples


def build_model(recipe: Recipe, processor: MultiSourceProcessor, args: Seq2SeqTrainingArguments) -> Any:
    """Initialise the model, with the pretrained encoders that the recipe names.

    Args:
        recipe: The run's recipe.
        processor: The run's processor.
        args: The run's arguments.

    Returns:
        The model.
    """
    set_seed(args.seed)
    tokenizer = processor.tokenizer
    config = recipe.model_config(
        len(tokenizer),
        {name: len(own) for name, own in processor.source_tokenizers.items() if name in recipe.own_texts()},
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = build_auto("AutoModelForSeq2SeqLM", config)
    for name, entry in recipe.source_entries().items():
        if isinstance(entry.get("encoder"), str):
            pour_encoder(model, name, entry["encoder"])
    model.generation_config.max_length = recipe.data.max_length
    facts = {"parameters": count_parameters(model), "sources": recipe.data.model_sources, "combiner": config.strategy}
    say(args, "model", facts)
    return model


def build_trainer(
    args: Seq2SeqTrainingArguments,
    model: Any,
    processor: MultiSourceProcessor,
    encoded: Mapping[str, Any],
    metrics: Sequence[str],
) -> RunTrainer:
    """Build the trainer, which evaluates with metrics.

    Args:
        args: The run's arguments.
        model: The model.
        processor: The run's processor.
        encoded: By role, examples for the collator.
        metrics: Names of the metrics; those that need the sources are left to `hf-multisource score`.

    Returns:
        The trainer.
    """

    measured = [name for name in metrics if not METRICS[name].needs_sources]

    def measure(prediction: EvalPrediction) -> dict[str, float]:
        # References from the labels, which come in the order of the predictions whatever the sampler does.
        padding = processor.tokenizer.pad_token_id
        texts = [
            processor.batch_decode(np.where(ids < 0, padding, ids), skip_special_tokens=True)
            for ids in (np.asarray(prediction.predictions), np.asarray(prediction.label_ids))
        ]
        return {name: METRICS[name].measure(*texts).score() for name in measured}

    return RunTrainer(
        model=model,
        args=args,
        train_dataset=encoded["train"],
        eval_dataset=encoded["dev"],
        data_collator=DataCollatorForMultiSource(processor, model=model if args.label_smoothing_factor else None),
        processing_class=processor,
        compute_metrics=measure,
    )


def record_start(
    recipe: Recipe, args: Seq2SeqTrainingArguments, data: dict[str, Any], processor: MultiSourceProcessor
) -> None:
    """Write the files that mark a run as begun; `recipe.yaml` is written last.

    Args:
        recipe: The run's recipe.
        args: The run's arguments.
        data: By role, the fingerprints of the data.
        processor: The run's processor, which has been saved.
    """
    folder = Path(str(args.output_dir))
    if not (folder / RECIPE).exists():
        versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
        write_json(folder / "versions.json", versions)
    if not ((folder / RECIPE).exists() and (folder / FINGERPRINT).exists()):  # earlier versions wrote no fingerprint
        content = {"data": data, "batch": batch_of(recipe, args), "processor": files_of(folder, processor)}
        write_json(folder / FINGERPRINT, content)
    recipe.save(folder / RECIPE)  # of a run that goes on, too: some keys may have changed


def run_updates(trainer: RunTrainer, checkpoint: Path | None, begin: Callable[[], None]) -> None:
    """Train to the end.

    Args:
        trainer: The trainer; it has the last model, or with `load_best_model_at_end` the best, in the end.
        checkpoint: The checkpoint from which to continue; None: from the beginning.
        begin: Called when the optimizer and the schedule are ready, before the first update.
    """
    args, folder = trainer.args, Path(str(trainer.args.output_dir))
    trainer.keeper.start(checkpoint)
    state: Any = TrainerState.load_from_json(f"{checkpoint}/trainer_state.json") if checkpoint else None
    stopped = checkpoint and state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]
    if stopped and state.max_steps >= args.max_steps:
        # Killed after its last update: stock code would make one more.
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        begin()
        trainer.state = state
        trainer._load_from_checkpoint(str(folder / Path(best).name if best else checkpoint))
        if args.process_index == 0:
            trainer.keeper.tidy(folder, state.best_model_checkpoint)
    else:
        trainer.add_callback(Beginning(begin))
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def summarise(trainer: RunTrainer, parameters: int, command: str, resume: bool) -> dict[str, Any]:
    """Write `train_summary.json`, which marks the run as finished.

    Args:
        trainer: The trainer.
        parameters: Number of the model's parameters.
        command: The command line of the training.
        resume: Whether the run was resumed.

    Returns:
        The summary.
    """
    args, state = trainer.args, trainer.state
    summary = {
        "command": command,
        "parameters": parameters,
        "updates": state.global_step,
        "best_checkpoint": state.best_model_checkpoint and Path(state.best_model_checkpoint).name,
        "metric_for_best_model": args.metric_for_best_model,
        "best_metric": state.best_metric,
        "seconds": trainer.keeper.seconds,
        "resumed": resume,
        "hardware": hardware(),
        "threads": torch.get_num_threads(),
        "processes": args.world_size,
        "seed": args.seed,
        "date": time.strftime("%Y-%m-%d"),
    }
    if trainer.is_world_process_zero():
        write_json(Path(str(args.output_dir)) / "train_summary.json", summary)
    return summary


def resume_point(args: Seq2SeqTrainingArguments, folder: Path) -> Path | None:
    """Find the checkpoint from which to continue, and print which one it is.

    Args:
        args: The run's arguments.
        folder: The output folder.

    Returns:
        The last complete checkpoint whose files have the content that was written; None if there is none.

    Raises:
        ValueError: If the best checkpoint, whose weights become the model in the end, is damaged or missing.
    """
    whole, faults = find_checkpoints(folder)
    while whole and (change := find_change(whole[-1])) is not None:
        faults[whole.pop()] = change
    if whole and args.load_best_model_at_end:
        check_best(whole[-1])
    lines = [f"resume: {path.name} is skipped: {fault}" for path, fault in faults.items()]
    start = f"going on from {whole[-1].name}" if whole else f"no complete checkpoint in {folder}, starting from the"
    lines.append(f"resume: {start}" + ("" if whole else " beginning"))
    print("\n".join(lines), flush=True)
    return whole[-1] if whole else None


def note_unreadable(recipe: Recipe, splits: dict[str, Split], folder: Path, parts: dict[str, Any]) -> None:
    """Check that every picture and recording can be read and has its encoder's sampling rate; record those that fail.

    Args:
        recipe: The run's recipe.
        splits: The splits by role.
        folder: The output folder. Its `unreadable.json` receives the lines, counted from 0, that cannot be read.
        parts: Preprocessors of wrapped encoders by source, from `wrapped_parts`.

    Raises:
        ValueError: If something cannot be read and `data.unreadable` is "error"; the message gives the lines.
    """
    forms, data = recipe.forms(), recipe.data
    rates = {name: part.sampling_rate for name, part in parts.items() if forms[name] == "sound"}
    lines = {
        role: check_files(split, getattr(data, role), data.sources, forms, data.unreadable, rates)[1]
        for role, split in splits.items()
    }
    write_json(folder / UNREADABLE_FILES, lines)


def without_unreadable(recipe: Recipe, splits: dict[str, Split], folder: Path) -> dict[str, Split]:
    """Make the pictures and recordings absent that `unreadable.json` lists.

    Args:
        recipe: The run's recipe.
        splits: The splits by role.
        folder: The output folder.

    Returns:
        The splits by role, without them.

    Raises:
        ValueError: If the file is damaged; the message names it.
    """
    path = folder / UNREADABLE_FILES
    lines = read_json(path)
    if missing := [role for role in splits if not isinstance(lines.get(role), dict)]:
        raise ValueError(f"{path} is damaged: the lines of {missing[0]!r} are missing")
    return {
        role: take_away(split, lines[role], recipe.data.sources) if lines[role] else split
        for role, split in splits.items()
    }


def count_parameters(model: Any) -> int:
    """Return the number of parameters of a model that is not sharded yet."""
    return sum(parameter.numel() for parameter in model.parameters())


def say(args: Seq2SeqTrainingArguments, what: str, facts: dict[str, Any]) -> None:
    """Print facts, once for all processes."""
    if args.process_index == 0:
        print(f"{what}: " + ", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
