"""Train a multi-source model as a recipe says.

The run's folder receives the best model and its processor, the resolved recipe (`recipe.yaml`), the versions
(`versions.json`), with what it began (`fingerprint.json`), what it took (`train_summary.json`) and its checkpoints.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    EvalPrediction,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_callback import TrainerState

from hf_multisource import DataCollatorForMultiSource, MultiSourceProcessor
from hf_multisource.data.encoding import encode_rows
from hf_multisource.data.files import write_json
from hf_multisource.data.rows import Split, check_files, read_split, take_away
from hf_multisource.recipes.checkpoints import RunTrainer, find_change, find_checkpoints
from hf_multisource.recipes.pretrained import pour_encoder
from hf_multisource.recipes.processor import files_of, load_processor, make_processor, own_encoders, wrapped_parts
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
    read_fingerprint,
)

PACKAGES = ("hf-multisource", "torch", "transformers", "tokenizers", "accelerate", "sacrebleu", "numpy")


def train(recipe: Recipe, *, resume: bool = False, command: str | None = None) -> dict[str, Any]:
    """Train as the recipe says.

    Args:
        recipe: The recipe.
        resume: Whether to go on from the last complete checkpoint in the output folder.
        command: The command line that the summary records; None: that of this process.

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
    folder, command = Path(str(args.output_dir)), command or shlex.join(["python", *sys.argv])
    with explained(folder, command), locked(folder) if args.process_index == 0 else nullcontext():
        begun = (folder / RECIPE).exists()
        if args.process_index == 0:
            check_folder(folder, recipe, args, resume)
        if not begun:
            recipe.check_tokenizer_folder()
        with torch.device("meta"):  # an impossible model shows before anything takes time
            AutoModelForSeq2SeqLM.from_config(recipe.draft_config())
        parts = {} if begun or args.process_index else wrapped_parts(recipe)
        rows, data = read_data(recipe, args, parts, begun)
        processor = prepare_processor(recipe, args, rows["train"], parts, begun)
        model = build_model(recipe, processor, args)
        parameters = count_parameters(model)
        trainer = build_trainer(args, model, processor, encode_data(recipe, args, rows, processor))
        if args.process_index == 0:  # now that nothing is wrong with it
            record_start(recipe, args, data, processor)
        checkpoint = resume_point(args, folder) if resume else None
        run_updates(trainer, checkpoint)
        trainer.check_weights()
        trainer.save_model(str(folder))
        trainer.save_state()
        return summarise(trainer, parameters, command, resume)


def read_data(
    recipe: Recipe, args: Seq2SeqTrainingArguments, parts: dict[str, Any], begun: bool
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """Read the training and dev splits, and compare them with those that the run began with.

    Args:
        recipe: The run's recipe.
        args: The run's arguments.
        parts: What `wrapped_parts` gives.
        begun: Whether the output folder holds the run already.

    Returns:
        By role, "train" and "dev": rows of the model's sources; and the fingerprints of the data, which only the main
        process computes.
    """
    folder, forms, data = Path(str(args.output_dir)), recipe.forms(), recipe.data
    names = {"train": data.train, "dev": data.dev}
    splits = {
        role: read_split(
            data.path, name, data.sources, data.target, limit=data.limit if role == "train" else None, forms=forms
        )
        for role, name in names.items()
    }
    prints = {}
    if args.process_index == 0:
        prints = {role: data_fingerprint(split.rows, forms) for role, split in splits.items()}
        check_data(read_fingerprint(folder).get("data", {}) if begun else {}, prints, names)
    with args.main_process_first(desc="files"):
        splits = read_files(recipe, splits, folder, parts, begun or args.process_index > 0)
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
        parts: What `wrapped_parts` gives.
        begun: Whether the output folder holds the run already.

    Returns:
        The processor.
    """
    folder = Path(str(args.output_dir))
    with args.main_process_first(desc="tokenizer"):
        if begun or args.process_index > 0:
            return load_processor(folder, read_fingerprint(folder).get("processor", ()))
        processor = make_processor(recipe, rows, parts)
        processor.save_pretrained(folder)
        return processor


def encode_data(
    recipe: Recipe,
    args: Seq2SeqTrainingArguments,
    rows: Mapping[str, list[dict[str, Any]]],
    processor: MultiSourceProcessor,
) -> dict[str, Any]:
    """Encode the rows, and print how many were truncated.

    Args:
        recipe: The run's recipe.
        args: The run's arguments.
        rows: By role, rows of the model's sources.
        processor: The run's processor.

    Returns:
        By role, examples for the collator.
    """
    encoded = {}
    for role, values in rows.items():
        encoded[role], report = encode_rows(processor, values, recipe.data.target, recipe.data.max_length)
        say(args, f"{role}, tokens", report)
    return encoded


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
        {name: len(own) for name, own in processor.source_tokenizers.items() if name in own_encoders(recipe)},
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model: Any = AutoModelForSeq2SeqLM.from_config(config)
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
) -> RunTrainer:
    """Build the trainer, which evaluates with BLEU.

    Args:
        args: The run's arguments.
        model: The model.
        processor: The run's processor.
        encoded: By role, examples for the collator.

    Returns:
        The trainer.
    """

    def bleu(prediction: EvalPrediction) -> dict[str, float]:
        # References from the labels, which come in the order of the predictions whatever the sampler does.
        padding = processor.tokenizer.pad_token_id
        texts = [
            processor.batch_decode(np.where(ids < 0, padding, ids), skip_special_tokens=True)
            for ids in (np.asarray(prediction.predictions), np.asarray(prediction.label_ids))
        ]
        return {"bleu": sacrebleu.corpus_bleu(texts[0], [texts[1]]).score}

    return RunTrainer(
        model=model,
        args=args,
        train_dataset=encoded["train"],
        eval_dataset=encoded["dev"],
        data_collator=DataCollatorForMultiSource(processor, model=model if args.label_smoothing_factor else None),
        processing_class=processor,
        compute_metrics=bleu,
    )


def record_start(
    recipe: Recipe, args: Seq2SeqTrainingArguments, data: dict[str, Any], processor: MultiSourceProcessor
) -> None:
    """Write to the output folder what tells that the run has begun; `recipe.yaml` comes last.

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
        content = {"data": data, "batch": batch_of(recipe, args), "processor": files_of(folder, processor)}
        write_json(folder / FINGERPRINT, content)
    recipe.save(folder / RECIPE)  # of a run that goes on, too: some keys may have changed


def run_updates(trainer: RunTrainer, checkpoint: Path | None) -> None:
    """Train to the end.

    Args:
        trainer: The trainer; it has the last model, or with `load_best_model_at_end` the best, in the end.
        checkpoint: The checkpoint from which to continue; None: from the beginning.
    """
    args, folder = trainer.args, Path(str(trainer.args.output_dir))
    trainer.keeper.start(checkpoint)
    state: Any = TrainerState.load_from_json(f"{checkpoint}/trainer_state.json") if checkpoint else None
    stopped = checkpoint and state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]
    if stopped and state.max_steps >= args.max_steps:
        # Killed after its last update: stock code would make one more.
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        trainer.state = state
        trainer._load_from_checkpoint(str(folder / Path(best).name if best else checkpoint))
        if args.process_index == 0:
            trainer.keeper.tidy(folder, state.best_model_checkpoint)
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def summarise(trainer: RunTrainer, parameters: int, command: str, resume: bool) -> dict[str, Any]:
    """Write `train_summary.json`, which tells that the run is finished.

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
        "best_dev_bleu": state.best_metric,
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
    """
    whole, faults = find_checkpoints(folder)
    while whole and (change := find_change(whole[-1])) is not None:
        faults[whole.pop()] = change
    lines = [f"resume: {path.name} is skipped: {fault}" for path, fault in faults.items()]
    start = f"going on from {whole[-1].name}" if whole else f"no complete checkpoint in {folder}, starting from the"
    lines.append(f"resume: {start}" + ("" if whole else " beginning"))
    if args.process_index == 0:
        print("\n".join(lines), flush=True)
    return whole[-1] if whole else None


def read_files(
    recipe: Recipe, splits: dict[str, Split], folder: Path, parts: dict[str, Any], known: bool
) -> dict[str, Split]:
    """See to it that every picture and every recording can be read and has its encoder's sampling rate, or is absent.

    Args:
        recipe: The run's recipe.
        splits: The splits by role.
        folder: The output folder. Its `unreadable.json` says which lines, counted from 0, cannot be read.
        parts: What `wrapped_parts` gives.
        known: Whether that file tells it, if there is one; else everything is read, and the file written.

    Returns:
        The splits, without what cannot be read.

    Raises:
        ValueError: If something cannot be read and `data.unreadable` is "error"; the message gives the lines.
    """
    forms, note = recipe.forms(), folder / "unreadable.json"
    if not {"picture", "sound"} & set(forms.values()):
        return splits
    if known:
        lines = json.loads(note.read_text(encoding="utf-8"))
        return {
            role: take_away(split, lines[role], recipe.data.sources) if lines[role] else split
            for role, split in splits.items()
        }
    data = recipe.data
    rates = {name: part.sampling_rate for name, part in parts.items() if forms[name] == "sound"}
    checked = {
        role: check_files(split, getattr(data, role), data.sources, forms, data.unreadable, rates)
        for role, split in splits.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(note, {role: lines for role, (_, lines) in checked.items()})
    return {role: split for role, (split, _) in checked.items()}


def count_parameters(model: Any) -> int:
    """Return the number of a model's parameters; it must not be divided among processes yet."""
    return sum(parameter.numel() for parameter in model.parameters())


def say(args: Seq2SeqTrainingArguments, what: str, facts: dict[str, Any]) -> None:
    """Print facts, once for all processes."""
    if args.process_index == 0:
        print(f"{what}: " + ", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
