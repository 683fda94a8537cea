"""Train a multi-source model as a recipe says.

The run's folder receives the best model and its processor, the resolved recipe (`recipe.yaml`), the versions
(`versions.json`), what the run took (`train_summary.json`) and Trainer's checkpoints.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
import torch
import yaml
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    EvalPrediction,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_callback import TrainerState

from hf_multisource import DataCollatorForMultiSource, MultiSourceProcessor, MultiSourceTrainer
from hf_multisource.data.encoding import encode_rows
from hf_multisource.data.files import write_json
from hf_multisource.data.rows import Split, check_files, read_split, take_away
from hf_multisource.recipes.checkpoints import Keeper, find_checkpoints
from hf_multisource.recipes.pretrained import load_part, pour_encoder
from hf_multisource.recipes.provenance import hardware
from hf_multisource.recipes.recipe import Recipe
from hf_multisource.recipes.tokenization import train_tokenizer

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
        FileExistsError: If the output folder holds a run and `resume` is not set.
        ValueError: If the run in the output folder has another recipe.
    """
    args = recipe.training_arguments()
    to_keep, args.save_total_limit = args.save_total_limit, None  # `Keeper` sees to it
    folder = Path(str(args.output_dir))
    begun = (folder / "recipe.yaml").exists()
    if args.process_index == 0 and begun:
        check_folder(folder, recipe, resume)
    if not begun:
        recipe.check_tokenizer_folder()
    with torch.device("meta"):  # an impossible model shows before anything takes time
        AutoModelForSeq2SeqLM.from_config(recipe.draft_config())
    sources, target = recipe.data.model_sources, recipe.data.target
    known = args.process_index > 0 or begun
    parts = {} if known else wrapped_parts(recipe)
    read = {}
    for role, limit in (("train", recipe.data.limit), ("dev", None)):
        name = getattr(recipe.data, role)
        read[role] = read_split(recipe.data.path, name, recipe.data.sources, target, limit=limit, forms=recipe.forms())
    with args.main_process_first(desc="files"):
        read = read_files(recipe, read, folder, parts, known)
    splits = {role: recipe.data.model_rows(split.rows) for role, split in read.items()}
    for role, split in read.items():
        say(args, role, split.report)
    with args.main_process_first(desc="tokenizer"):
        if known:
            processor = MultiSourceProcessor.from_pretrained(folder)
        else:
            processor = make_processor(recipe, splits["train"], parts)
            processor.save_pretrained(folder)
    encoded = {}
    for role, rows in splits.items():
        encoded[role], report = encode_rows(processor, rows, target, recipe.data.max_length)
        say(args, f"{role}, tokens", report)

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
    parameters = sum(p.numel() for p in model.parameters())
    say(args, "model", {"parameters": parameters, "sources": sources, "combiner": config.strategy})

    def bleu(prediction: EvalPrediction) -> dict[str, float]:
        # References from the labels, which come in the order of the predictions whatever the sampler does.
        padding = tokenizer.pad_token_id
        texts = [
            processor.batch_decode(np.where(ids < 0, padding, ids), skip_special_tokens=True)
            for ids in (np.asarray(prediction.predictions), np.asarray(prediction.label_ids))
        ]
        return {"bleu": sacrebleu.corpus_bleu(texts[0], [texts[1]]).score}

    trainer = MultiSourceTrainer(
        model=model,
        args=args,
        train_dataset=encoded["train"],
        eval_dataset=encoded["dev"],
        data_collator=DataCollatorForMultiSource(processor, model=model if args.label_smoothing_factor else None),
        processing_class=processor,
        compute_metrics=bleu,
    )
    if args.process_index == 0 and not begun:  # now that nothing is wrong with it
        versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
        write_json(folder / "versions.json", versions)
        recipe.save(folder / "recipe.yaml")
    checkpoint = resume_point(args, folder) if resume else None
    keeper = Keeper(to_keep, checkpoint)
    trainer.add_callback(keeper)
    state: Any = TrainerState.load_from_json(f"{checkpoint}/trainer_state.json") if checkpoint else None
    stopped = checkpoint and state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]
    if stopped and state.max_steps >= args.max_steps:
        # Killed after its last update: stock code would make one more.
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        trainer.state = state
        trainer._load_from_checkpoint(str(folder / Path(best).name if best else checkpoint))
        if args.process_index == 0:
            keeper.tidy(folder, state.best_model_checkpoint)
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.save_model(str(folder))
    trainer.save_state()
    summary = {
        "command": command or shlex.join(["python", *sys.argv]),
        "parameters": parameters,
        "updates": trainer.state.global_step,
        "best_checkpoint": trainer.state.best_model_checkpoint and Path(trainer.state.best_model_checkpoint).name,
        "best_dev_bleu": trainer.state.best_metric,
        "seconds": keeper.seconds,
        "resumed": resume,
        "hardware": hardware(),
        "threads": torch.get_num_threads(),
        "processes": args.world_size,
        "seed": args.seed,
        "date": time.strftime("%Y-%m-%d"),
    }
    if trainer.is_world_process_zero():
        write_json(folder / "train_summary.json", summary)
    return summary


def resume_point(args: Seq2SeqTrainingArguments, folder: Path) -> Path | None:
    """Find the checkpoint to go on from, and say which one it is.

    Args:
        args: The run's arguments.
        folder: The output folder.

    Returns:
        The last complete one; None if there is none.
    """
    whole, cut_short = find_checkpoints(folder)
    if args.process_index == 0:
        for path in cut_short:
            print(f"resume: {path.name} is not complete and is skipped", flush=True)
        print(
            f"resume: going on from {whole[-1].name}"
            if whole
            else f"resume: no complete checkpoint in {folder}, starting from the beginning",
            flush=True,
        )
    return whole[-1] if whole else None


def check_folder(folder: Path, recipe: Recipe, resume: bool) -> None:
    """Make sure that the run in the output folder is this very run, and goes on.

    Args:
        folder: The output folder.
        recipe: The run's recipe.
        resume: Whether the run goes on.

    Raises:
        FileExistsError: If the folder holds a run and `resume` is not set.
        ValueError: If its recipe differs; the message names the keys.
    """
    saved = folder / "recipe.yaml"
    if not resume:
        raise FileExistsError(f"{folder} already holds a run; give another --output_dir, or --resume to go on with it")
    old, new = yaml.safe_load(saved.read_text(encoding="utf-8")), asdict(recipe)
    changed = [
        f"{section}.{key}"
        for section in new
        for key in {**old[section], **new[section]}
        if old[section].get(key) != new[section].get(key)
    ]
    longer = new["training"].get("max_steps", 0) > old["training"].get("max_steps", float("inf"))
    if changed == ["training.max_steps"] and longer and recipe.rate_is_open_ended:
        recipe.save(saved)
    elif changed:
        raise ValueError(f"{folder} holds a run of another recipe: {', '.join(changed)} differ; cannot resume it")


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


def own_encoders(recipe: Recipe) -> list[str]:
    """The text sources that an encoder of ours reads, and so a tokenizer of the run."""
    entries = recipe.source_entries()
    return [name for name, form in recipe.forms().items() if form == "text" and not entries[name].get("encoder")]


def wrapped_parts(recipe: Recipe) -> dict[str, Any]:
    """Load what wrapped encoders read with.

    Args:
        recipe: The run's recipe.

    Returns:
        A tokenizer, an image processor or a feature extractor by source that has such an encoder.

    Raises:
        ValueError: If a wrapped encoder has no checkpoint, and no `processor` is given.
    """
    entries = recipe.source_entries()
    parts: dict[str, Any] = {}
    for name, form in recipe.forms().items():
        origin = entries.get(str(entries[name].get("share_encoder_with")), entries[name])
        place = origin.get("processor", origin.get("encoder"))
        if origin.get("kind") != "pretrained":
            continue
        if "processor" not in origin and not isinstance(place, str):
            raise ValueError(f"model.sources: the encoder of {name!r} is no checkpoint, so give its processor, too")
        parts[name] = AutoTokenizer.from_pretrained(place) if form == "text" else load_part(place, form)
    return parts


def make_processor(recipe: Recipe, rows: list[dict[str, Any]], parts: dict[str, Any]) -> MultiSourceProcessor:
    """Train or load the tokenizers, and put them together with what wrapped encoders read with.

    Args:
        recipe: The run's recipe.
        rows: The training rows.
        parts: What `wrapped_parts` gives.

    Returns:
        The processor.
    """
    sources, target = own_encoders(recipe), recipe.data.target
    settings, forms = recipe.tokenizer, recipe.forms()
    features = [name for name, form in forms.items() if form == "features"]

    def build(tokenizer: Any, own: dict[str, Any]) -> MultiSourceProcessor:
        return MultiSourceProcessor(
            tokenizer,
            recipe.data.model_sources,
            own | {name: part for name, part in parts.items() if forms[name] == "text"},
            source_processors={name: part for name, part in parts.items() if forms[name] != "text"},
            feature_sources=features,
            null_token=settings.null_token,
        )

    def train_on(*names: str) -> Any:
        texts = [text for row in rows for name in names if (text := row[name])]
        return train_tokenizer(texts, settings.kind, settings.vocab_size, null_token=settings.null_token)

    if settings.load is not None:
        folder = Path(settings.load)
        if not (folder / "target").is_dir():
            return build(AutoTokenizer.from_pretrained(folder), {})
        loaded = {name: AutoTokenizer.from_pretrained(folder / name) for name in (*sources, "target")}
        return build(loaded.pop("target"), loaded)
    if not settings.separate:
        return build(train_on(*sources, target), {})
    return build(train_on(target), {name: train_on(name) for name in sources})


def say(args: Seq2SeqTrainingArguments, what: str, facts: dict[str, Any]) -> None:
    """Print facts, once for all processes."""
    if args.process_index == 0:
        print(f"{what}: " + ", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
