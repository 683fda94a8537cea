"""Protect a run folder: lock it against other trainings, and check that a resumed run matches its first start.

`training.lock` is locked while a training uses the folder; the operating system releases the lock when the process ends
for any reason. `fingerprint.json` records the data, the batch size and the files of the processor with which the run
began; a resumed run is compared with this record.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from transformers import Seq2SeqTrainingArguments

from hf_multisource.data.files import NO_SPACE
from hf_multisource.data.media import digest
from hf_multisource.data.rows import Row
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.recipes.checkpoint_files import find_checkpoints
from hf_multisource.recipes.recipe import Recipe, load_recipe
from hf_multisource.recipes.schema import CATALOGUES, TEXT, DataRecipe
from hf_multisource.recipes.shipped import RECIPE
from hf_multisource.recipes.values import show
from hf_multisource.source_kinds import FORMS

FINGERPRINT, SUMMARY = "fingerprint.json", "train_summary.json"
LOCK, OWNER = "training.lock", "training.pid"
MODEL_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "checkpoint-*")
BATCH_KEYS = {
    f"training.{key}" for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "max_tokens_per_batch")
}  # may change in a resumed run if the product stays the same
# Keys that may change in a resumed run, because they do not affect the weights (the folder may have been moved).
FREE_KEYS = {"data.origin", "data.test"} | {
    f"training.{key}"
    for key in (
        *("output_dir", "logging_steps", "logging_first_step", "disable_tqdm", "report_to", "run_name", "log_level"),
        *("per_device_eval_batch_size", "eval_accumulation_steps", "save_total_limit", "dataloader_num_workers"),
    )
}


def free_keys(recipe: Recipe) -> set[str]:
    """Return the keys that may change in a resumed run of a recipe.

    Args:
        recipe: The recipe.

    Returns:
        `FREE_KEYS`, without `training.logging_steps` if it is also the number of updates between evaluations.
    """
    evaluates = recipe.training.get("eval_strategy") == "steps" and recipe.training.get("eval_steps") is None
    return FREE_KEYS - ({"training.logging_steps"} if evaluates else set())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that locks a run's folder against other trainings.

    On exit, the folder is deleted if it holds nothing but the lock. A lock file that this call has created is also
    deleted, unless the folder holds a run by then.

    Args:
        folder: The output folder; it is created.

    Yields:
        Nothing.

    Raises:
        NotADirectoryError: If `folder` is a file.
        BlockingIOError: If another training uses the folder; the message names its process.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"training.output_dir is {folder}, which is a file: give the name of a folder")
    folder.mkdir(parents=True, exist_ok=True)
    lock, owner = FileLock(folder / LOCK), folder / OWNER
    made = not (folder / LOCK).exists()
    try:
        lock.acquire(timeout=0)
    except Timeout:
        number = owner.read_text(encoding="utf-8") if owner.exists() else "unknown"
        raise BlockingIOError(
            f"{folder} is in use by another training (process {number}): wait for its end, or give another --output_dir"
        ) from None
    try:
        owner.write_text(str(os.getpid()), encoding="utf-8")
        yield
    finally:
        owner.unlink(missing_ok=True)
        unused = [path.name for path in folder.iterdir()] == [LOCK]
        if unused or (made and not (folder / RECIPE).exists()):
            (folder / LOCK).unlink()
        lock.release()
        if unused:
            with suppress(OSError):  # another training may have begun in the folder meanwhile
                folder.rmdir()


def check_folder(folder: Path, recipe: Recipe, args: Seq2SeqTrainingArguments, resume: bool) -> None:
    """Check that the output folder holds the run to be resumed, or nothing that would be overwritten.

    Args:
        folder: The output folder.
        recipe: The run's recipe.
        args: The run's arguments.
        resume: Whether the run is resumed.

    Raises:
        FileExistsError: If the folder holds a run and `resume` is not set, or a model that does not belong to a run.
        ValueError: If the run's recipe cannot be read or differs, or the batch size would change; the message names the
            keys.
    """
    saved = folder / RECIPE
    places = [recipe.data.path, *(corpus.path for corpus in recipe.data.corpora)]
    if folder.resolve() in [Path(place).resolve() for place in places]:
        raise ValueError(f"training.output_dir is {folder}, the folder of the data: give another --output_dir")
    if not saved.exists():
        if found := [path.name for pattern in MODEL_FILES for path in sorted(folder.glob(pattern))]:
            raise FileExistsError(
                f"{folder} holds a model ({found[0]}) but no {RECIPE}, so it is not a run that could be resumed: give "
                "another --output_dir"
            )
        return
    if not resume:
        raise FileExistsError(f"{folder} already holds a run; give another --output_dir, or --resume to go on with it")
    if recipe.training.get("save_only_model"):
        raise ValueError(
            f"{folder} cannot be resumed: training.save_only_model is true, so its checkpoints hold no optimizer; give "
            "another --output_dir to train from the beginning"
        )
    old, new = read_saved(saved), asdict(recipe)
    changed = changed_keys(old, new)
    fingerprint = read_fingerprint(folder)
    batch = fingerprint.get("batch")
    free = (
        free_keys(recipe)
        | (BATCH_KEYS if batch is not None else set())
        | ({"data.path"} if "data" in fingerprint else set())
    )
    other = [key for key in changed if key not in free]
    longer = new["training"].get("max_steps", 0) > old["training"].get("max_steps", float("inf"))
    if other and not (other == ["training.max_steps"] and longer and recipe.rate_is_open_ended):
        raise ValueError(
            f"{folder} holds a run of another recipe, which cannot be resumed: "
            + "; ".join(f"{key} was {value_of(old, key)}, is {value_of(new, key)}" for key in other)
            + (", and the learning rate depends on it" if other == ["training.max_steps"] and longer else "")
        )
    if batch is None:
        print(
            f"resume: {folder} was begun by an earlier version: its data and number of processes are not compared",
            flush=True,
        )
    else:
        check_batch(batch, batch_of(recipe, args))


def read_saved(saved: Path) -> dict[str, dict[str, Any]]:
    """Read the recipe that a run has saved.

    Args:
        saved: Path of the saved recipe.

    Returns:
        The sections of the recipe.

    Raises:
        ValueError: If the recipe cannot be read.
    """
    try:
        return asdict(load_recipe(saved))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{saved}: the recipe of the run cannot be read: {error}") from error


def changed_keys(old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the keys in which two recipes differ.

    Args:
        old: The sections of one recipe.
        new: The sections of the other one.

    Returns:
        Keys such as "training.seed". If corpora in `data.train` differ only in their paths, the key is "data.path".
    """
    changed = [
        f"{section}.{key}"
        for section in new
        for key in {**old[section], **new[section]}
        if old[section].get(key) != new[section].get(key)
    ]
    if "data.train" in changed and _without_paths(old) == _without_paths(new):
        changed[changed.index("data.train")] = "data.path"
    return list(dict.fromkeys(changed))


def _without_paths(sections: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the value of `data.train`, without the paths of corpora."""
    train = sections.get("data", {}).get("train")
    if not isinstance(train, list):
        return train
    return [{key: value for key, value in corpus.items() if key != "path"} for corpus in train]


def is_finished(folder: Path, recipe: Recipe, elsewhere: Collection[str] = ()) -> bool:
    """Return whether a folder holds the finished run of a recipe.

    Args:
        folder: The run's folder.
        recipe: The recipe.
        elsewhere: Keys that the caller compares itself, such as "model.init_from".

    Returns:
        True if the run has finished and its recipe differs only in keys that do not affect the weights.

    Raises:
        ValueError: If the recipe that the run has saved cannot be read.
    """
    if not ((folder / SUMMARY).exists() and (folder / RECIPE).exists()):
        return False
    return set(changed_keys(read_saved(folder / RECIPE), asdict(recipe))) <= free_keys(recipe) | {
        "data.path",
        *elsewhere,
    }


def value_of(sections: Mapping[str, Mapping[str, Any]], key: str) -> str:
    """Format the value of a key of a recipe as YAML in one line.

    Args:
        sections: The recipe's sections.
        key: Section and name, such as "training.seed".

    Returns:
        The value; "not given" if the recipe does not have the key.
    """
    section, _, name = key.partition(".")
    return show(sections[section][name]) if name in sections[section] else "not given"


def batch_of(recipe: Recipe, args: Seq2SeqTrainingArguments) -> JsonObject:
    """Return the factors of the effective batch size.

    Args:
        recipe: The run's recipe.
        args: The run's arguments.

    Returns:
        `key`, the recipe's key that limits the batch of one device; `size`, its value; `devices`, the number of
        devices; and `accumulation`, the number of batches per update on each device.
    """
    tokens = recipe.training.get("max_tokens_per_batch")
    return {
        "key": "per_device_train_batch_size" if tokens is None else "max_tokens_per_batch",
        "size": args.per_device_train_batch_size if tokens is None else tokens,
        "devices": args.world_size * max(1, args.n_gpu),
        "accumulation": args.gradient_accumulation_steps,
    }


def check_batch(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise an error if the effective batch size has changed; print a line if only its factors have changed.

    Args:
        old: Return value of `batch_of` when the run began.
        new: The current return value.

    Raises:
        ValueError: If the sizes differ; the message gives values that keep the size.
    """

    def product(batch: Mapping[str, Any]) -> int:
        return int(batch["size"] * batch["devices"] * batch["accumulation"])

    def words(batch: Mapping[str, Any]) -> str:
        return (
            f"{batch['key']} {batch['size']} x processes {batch['devices']} x gradient_accumulation_steps "
            f"{batch['accumulation']} = {product(batch)}"
        )

    if old == new:
        return
    if old["key"] == new["key"] and product(old) == product(new):
        # Batches with a token limit depend on the limit of one device. Batches by number of rows are always cut from
        # the same order.
        same = old["accumulation"] == new["accumulation"] and old["key"] != "max_tokens_per_batch"
        order = "" if same else "; in the current epoch, some examples may be repeated and others left out"
        print(f"resume: the batch size of an update stays: {words(old)} until now, {words(new)} from now on{order}")
        return
    raise ValueError(
        f"cannot resume with another batch size: the run began with {words(old)}, now it is {words(new)}; "
        f"{_keeping(old, new, product(old))}"
    )


def _keeping(old: Mapping[str, Any], new: Mapping[str, Any], wanted: int) -> str:
    """Return in words how the effective batch size can be kept on the current devices."""
    key, devices = old["key"], new["devices"]
    if old["key"] != new["key"]:
        return f"use {key} {old['size']} again"
    ways = []
    if wanted % (devices * new["size"]) == 0:
        ways.append(f"--gradient_accumulation_steps {wanted // (devices * new['size'])}")
    if wanted % (devices * new["accumulation"]) == 0:
        ways.append(f"--{key} {wanted // (devices * new['accumulation'])}")
    if not ways and wanted % devices == 0:
        ways.append(f"--{key} {wanted // devices} --gradient_accumulation_steps 1")
    return f"to keep it, add {' or '.join(ways)}" if ways else f"use a number of processes that divides {wanted}"


def place_of_rows(data: DataRecipe, folder: Path) -> str:
    """Return the folder or dataset from which the rows of a run are read.

    Args:
        data: The `data` section of the run's recipe.
        folder: The run's folder.

    Returns:
        `data.path`; for catalogues, the folder in the run folder that holds their rows.

    Raises:
        FileNotFoundError: If that folder does not exist.
    """
    if data.kind != CATALOGUES:
        return data.path
    if not (folder / CATALOGUES).is_dir():
        raise FileNotFoundError(
            f"{folder / CATALOGUES} is missing, which holds the rows that the run has read from {data.path}; restore it"
        )
    return str(folder / CATALOGUES)


def data_of_run(run: str | Path) -> DataRecipe | None:
    """Return the data section of a run's recipe.

    Args:
        run: Run folder, model folder or Hub id.

    Returns:
        The section; None for a model without a recipe.

    Raises:
        ValueError: If the recipe is invalid.
    """
    recipe = Path(run) / RECIPE
    return load_recipe(recipe).data if recipe.exists() else None


def rows_of_run(run: str | Path, path: str | None = None) -> DataRecipe | None:
    """Return the data section of a run's recipe with the place from which its rows are read.

    Args:
        run: Run folder, model folder or Hub id.
        path: Folder or Hub id of other data; None: the data of the run.

    Returns:
        The section, whose `path` holds rows of texts, also if the run has read catalogues; None for a model without a
        recipe.

    Raises:
        FileNotFoundError: If the rows of a run on catalogues are missing.
        ValueError: If the recipe is invalid.
    """
    data = data_of_run(run)
    if data is None:
        return None
    return replace(data, path=place_of_rows(data, Path(run)) if path is None else path, kind=TEXT, catalogues={})


def data_fingerprint(rows: Sequence[Row], forms: Mapping[str, str]) -> JsonObject:
    """Compute a fingerprint of a split from all used columns and the order of the rows.

    Args:
        rows: The rows.
        forms: Form of each source that is not a text. Pictures and recordings in files are represented by the path and
            size of the file, not by its content.

    Returns:
        The number of rows, and the SHA-256 of all rows.
    """
    files = [name for name, form in forms.items() if FORMS[form].column == "files"]
    sha256 = hashlib.sha256(json.dumps(list(rows[0])).encode())
    for row in rows:
        paths = [value for name in files if isinstance(value := row[name], str)]
        sizes = [os.path.getsize(path) if os.path.exists(path) else None for path in paths]
        sha256.update(json.dumps([list(row.values()), sizes], default=digest).encode())
    return {"rows": len(rows), "sha256": sha256.hexdigest()}


def check_data(old: Mapping[str, Any], new: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Check that a resumed run reads the same data as at its first start.

    Args:
        old: Return values of `data_fingerprint` when the run began, by role ("train" and "dev").
        new: The current return value.
        names: The names of the splits by role.

    Raises:
        ValueError: If the data of a split differ; the message names the split and the difference.
    """
    for role, now in new.items():
        then = old.get(role, now)
        if then != now:
            difference = (
                f"{then['rows']} rows then, {now['rows']} now"
                if then["rows"] != now["rows"]
                else f"as many rows ({now['rows']}), but other content or another order"
            )
            raise ValueError(
                f"cannot resume: split {names[role]!r} of the data is not what the run began with: {difference}"
            )


def read_fingerprint(folder: Path) -> JsonObject:
    """Read the fingerprint of a run.

    Args:
        folder: The run's folder.

    Returns:
        Mapping with "data", "batch" and "processor"; empty for a run of an earlier version, which has no such file.

    Raises:
        ValueError: If the file is damaged.
    """
    path = folder / FINGERPRINT
    if not path.exists():
        return {}
    try:
        content = read_json(path)
        return {key: content[key] for key in ("data", "batch", "processor")}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: delete it to resume without comparing the data: {error}") from error


@contextmanager
def explained(folder: Path, again: str | None) -> Iterator[None]:
    """Context manager that adds to errors how to continue when the user, the system or a full disk ends a training.

    Args:
        folder: The run's folder.
        again: Return value of `next_start`.

    Yields:
        Nothing.

    Raises:
        KeyboardInterrupt: With a message, in place of the original KeyboardInterrupt.
        OSError: In place of the different errors that libraries raise if the disk is full.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise type(error)(how_to_continue(folder, again)) from error
    except (OSError, RuntimeError, SafetensorError) as error:
        if not is_disk_full(error, folder):
            raise
        raise OSError(f"no space is left on the disk of {folder}; {how_to_continue(folder, again)}") from error


def next_start(args: Seq2SeqTrainingArguments, command: str | None) -> str | None:
    """Return in words how to start a training again.

    Args:
        args: The run's arguments.
        command: The command line of `hf-multisource train`; None: the training was started from Python.

    Returns:
        Such as "run: hf-multisource train recipe.yaml --resume"; None if the checkpoints of the run cannot be resumed.
    """
    if args.save_only_model:
        return None
    if command is None:
        return "call train(recipe, resume=True)"
    if args.world_size > 1:  # the command line of the launcher is unknown here
        return "start the same command again with --resume"
    return f"run: {command}" if "--resume" in command.split() else f"run: {command} --resume"


def how_to_continue(folder: Path, again: str | None) -> str:
    """Return in words how to continue a training that has been interrupted.

    Args:
        folder: The run's folder.
        again: Return value of `next_start`.

    Returns:
        The checkpoint from which the training would continue, and how to start it.
    """
    if again is None:
        return "with training.save_only_model, a run cannot be resumed: start again with another --output_dir"
    whole = find_checkpoints(folder)[0] if (folder / RECIPE).exists() else []
    start = f"to continue from {whole[-1].name}" if whole else "no checkpoint is complete yet; to start again"
    return f"{start}, {again}"


def is_disk_full(error: BaseException, folder: Path) -> bool:
    """Return whether an error means that the disk is full.

    Args:
        error: The error. Safetensors and PyTorch raise other types than OSError.
        folder: A folder on the same disk.

    Returns:
        True for an out-of-space error, or if PyTorch's writer failed with less than 1 MiB free.
    """
    if getattr(error, "errno", None) in NO_SPACE or "No space left on device" in str(error):
        return True
    return "inline_container" in str(error) and shutil.disk_usage(folder).free < 1 << 20
