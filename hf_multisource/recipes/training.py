"""Train a multi-source model with a recipe.

The run folder receives the best model and its processor, the resolved recipe (`recipe.yaml`), the versions
(`versions.json`), the fingerprint of data and batch size (`fingerprint.json`), a summary with time and hardware
(`train_summary.json`) and the checkpoints.
"""

from __future__ import annotations

import platform
import shlex
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import PreTrainedModel, Seq2SeqTrainingArguments, set_seed

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.files import write_json
from hf_multisource.data.interfaces import Preprocessor
from hf_multisource.data.privacy import mask_words
from hf_multisource.data.rows import Row
from hf_multisource.encoders import wrapped_weights
from hf_multisource.foreign import build_auto
from hf_multisource.json_files import JsonObject
from hf_multisource.recipes.checkpoint_files import resume_point
from hf_multisource.recipes.initial_weights import begin_with, check_initial
from hf_multisource.recipes.masked_evaluation import MaskedReferences
from hf_multisource.recipes.pretrained import load_encoder
from hf_multisource.recipes.processes import together
from hf_multisource.recipes.processor import files_of, load_run_processor, make_processor, wrapped_parts
from hf_multisource.recipes.provenance import hardware
from hf_multisource.recipes.recipe import Recipe
from hf_multisource.recipes.run_folder import (
    FINGERPRINT,
    SUMMARY,
    batch_of,
    check_folder,
    explained,
    locked,
    next_start,
)
from hf_multisource.recipes.run_trainer import RunTrainer, build_trainer, run_updates
from hf_multisource.recipes.shipped import RECIPE
from hf_multisource.recipes.training_data import encode_data, read_data
from hf_multisource.recipes.training_run import TrainingRun

PACKAGES = ("hf-multisource", "torch", "transformers", "tokenizers", "accelerate", "sacrebleu", "numpy")


def train(recipe: Recipe, *, resume: bool = False, command: str | None = None) -> JsonObject:
    """Train a model with a recipe.

    Args:
        recipe: The recipe.
        resume: Whether to continue from the last complete checkpoint in the output folder.
        command: The command line of `hf-multisource train`, which appears in the summary and in the message after an
            interruption; None if this function was called from Python.

    Returns:
        The summary that is also written to `train_summary.json`.

    Raises:
        FileExistsError: If the output folder holds a run and `resume` is not set, or a model that does not belong to a
            run.
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
        run = TrainingRun(recipe, args, together(args, lambda: check_start(recipe, args, resume)))
        if recipe.emulates_bf16:
            run.say("bf16", {"off:": "this processor lacks AVX-512, so that float32 is several times as fast"})
        checkpoint = run.together(lambda: resume_point(folder, args.load_best_model_at_end)) if resume else None
        parts: dict[str, Preprocessor] = {}
        if not run.begun:
            run.together(lambda: parts.update(wrapped_parts(recipe)))
        rows, data = read_data(run, parts)
        processor = prepare_processor(run, rows.get("train", []), parts)
        model = run.together(lambda: build_model(run, processor, begins=checkpoint is None), everywhere=True)
        parameters = count_parameters(model)
        encoded = encode_data(run, rows, data, processor)
        masked = MaskedReferences.of_rows(rows["dev"]) if recipe.data.placeholders is not None else None
        del rows  # free the memory; the encoded texts are read from files
        trainer = build_trainer(run, model, processor, encoded, masked)
        run_updates(trainer, checkpoint, lambda: run.together(lambda: record_start(run, data, processor)))
        trainer.check_weights()
        trainer.save_model(str(folder))
        trainer.save_state()
        return summarize(trainer, parameters, command or shlex.join(["python", *mask_words(sys.argv)]), resume)


def check_start(recipe: Recipe, args: Seq2SeqTrainingArguments, resume: bool) -> bool:
    """Run all fast checks before the data are read: run folder, tokenizer folder, options, shape of the model.

    Args:
        recipe: The run's recipe.
        args: The run's arguments.
        resume: Whether the run is resumed.

    Returns:
        True if the output folder already holds the run.

    Raises:
        ValueError: If a value is not allowed; the message names the key. Errors of `check_folder` are raised, too.
    """
    folder = Path(str(args.output_dir))
    begun = (folder / RECIPE).exists()
    check_folder(folder, recipe, args, resume)
    if not begun:
        recipe.check_positions()
        recipe.check_held_out()
        recipe.check_tokenizer_folder()
        check_initial(recipe)
    if args.torch_compile:
        try:
            torch.compile(torch.nn.Identity(), backend=str(args.torch_compile_backend), mode=args.torch_compile_mode)
        except RuntimeError as error:
            raise ValueError(f"training.torch_compile_mode, training.torch_compile_backend: {error}") from error
    with torch.device("meta"):
        build_auto("AutoModelForSeq2SeqLM", recipe.draft_config())
    return begun


def prepare_processor(run: TrainingRun, rows: list[Row], parts: dict[str, Preprocessor]) -> MultiSourceProcessor:
    """Load the run's processor; in a new run, the main process first makes and saves it.

    Args:
        run: The run.
        rows: The training rows.
        parts: Preprocessors of wrapped encoders by source, from `wrapped_parts`.

    Returns:
        The processor.
    """
    if not run.begun:
        run.together(lambda: make_processor(run.recipe, rows, parts).save_pretrained(run.folder))

    def load() -> MultiSourceProcessor:
        return load_run_processor(run.folder, run.recorded().get("processor", ()))

    return run.together(load, everywhere=True)


def build_model(run: TrainingRun, processor: MultiSourceProcessor, *, begins: bool = True) -> PreTrainedModel:
    """Initialize the model, including the pretrained encoders and initial weights that the recipe names.

    Args:
        run: The run.
        processor: Processor of the run.
        begins: Whether the training begins; False if the weights are loaded from a checkpoint of the run afterwards.

    Returns:
        The model.
    """
    set_seed(run.args.seed)
    recipe, tokenizer = run.recipe, processor.tokenizer
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
            model.load_state_dict(wrapped_weights(model, name, load_encoder(entry["encoder"])), strict=False)
    # `max_length` instead of `max_new_tokens`: a stored `max_new_tokens` would take precedence over
    # `generation_max_length` in evaluations, and `Seq2SeqTrainer` would also store Transformers' default `max_length`
    # of 20.
    model.generation_config.max_length = recipe.data.max_length
    if markers := recipe.data.target_tokens:
        model.generation_config.suppress_tokens = tokenizer.convert_tokens_to_ids(markers)
    if begins and recipe.init_from is not None:
        run.say("initial weights", begin_with(model, recipe.init_from))
    facts = {"parameters": count_parameters(model), "sources": recipe.data.model_sources, "combiner": config.strategy}
    run.say("model", facts)
    return model


def record_start(run: TrainingRun, data: JsonObject, processor: MultiSourceProcessor) -> None:
    """Write the files that mark a run as begun, of which `recipe.yaml` is the last, and no longer as finished.

    Args:
        run: The run.
        data: Fingerprints of the data, by role ("train" and "dev").
        processor: The run's processor, which is already saved.
    """
    folder = run.folder
    if not (folder / RECIPE).exists():
        versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
        write_json(folder / "versions.json", versions)
    if not ((folder / RECIPE).exists() and (folder / FINGERPRINT).exists()):  # missing in runs of old versions
        content = {"data": data, "batch": batch_of(run.recipe, run.args), "processor": files_of(folder, processor)}
        write_json(folder / FINGERPRINT, content)
    (folder / SUMMARY).unlink(missing_ok=True)  # of the run before it was made longer
    run.recipe.save(folder / RECIPE)  # also in a resumed run, because some keys may have changed


def summarize(trainer: RunTrainer, parameters: int, command: str, resume: bool) -> JsonObject:
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
        "hardware": hardware(args.device),
        "precision": "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
        "threads": torch.get_num_threads(),
        "processes": args.world_size,
        "seed": args.seed,
        "date": time.strftime("%Y-%m-%d"),
    }
    if trainer.is_world_process_zero():
        write_json(Path(str(args.output_dir)) / SUMMARY, summary)
    return summary


def count_parameters(model: PreTrainedModel) -> int:
    """Return the number of parameters of a model that is not sharded yet."""
    return sum(parameter.numel() for parameter in model.parameters())
