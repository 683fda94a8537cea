"""Train one recipe with several seeds, in a folder with one run folder seed-<n> per seed."""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_multisource.data.privacy import mask_words
from hf_multisource.json_files import JsonObject, load_json
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.run_folder import SUMMARY, check_folder, is_finished
from hf_multisource.recipes.training import train

SEED_FOLDER = re.compile(r"seed-(\d+)")


def seed_folder(folder: Path, seed: int) -> Path:
    """Return the run folder of one seed.

    Args:
        folder: The folder of all seeds.
        seed: The seed.

    Returns:
        The run folder.
    """
    return folder / f"seed-{seed}"


def seed_folders(folder: Path) -> list[Path]:
    """Return the run folders of all seeds.

    Args:
        folder: A folder of seeds, or any other.

    Returns:
        The run folders in the order of the seeds; empty if the folder is not a folder of seeds.
    """
    found = {path: SEED_FOLDER.fullmatch(path.name) for path in folder.glob("seed-*") if path.is_dir()}
    return sorted((path for path, match in found.items() if match), key=lambda path: int(path.name.partition("-")[2]))


def train_seeds(
    recipe: str,
    overrides: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    resume: bool = False,
    command: Sequence[str] = (),
) -> list[JsonObject]:
    """Train a recipe with one seed after the other.

    Args:
        recipe: Name or file of the recipe.
        overrides: Keys of the recipe to override. Seed n is trained in the subfolder seed-n of the output folder.
        seeds: The seeds.
        resume: Whether to resume: finished seeds are skipped, and a seed that was begun is continued.
        command: The words of the command line without `--seeds`, `--seed` and `--output_dir`.

    Returns:
        The summaries of all seeds.

    Raises:
        ValueError: If `overrides` sets a seed, a seed is given twice, or a seed is not allowed. Errors of
            `check_folder` are raised for all seeds before the first training.
    """
    if "seed" in overrides or "training.seed" in overrides:
        raise ValueError("--seed and --seeds were both given; give one of them")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds must all differ; got {' '.join(map(str, seeds))}")
    name = "training.output_dir" if "training.output_dir" in overrides else "output_dir"
    folder = Path(load_recipe(recipe, overrides).training["output_dir"])
    recipes = {
        seed: load_recipe(recipe, {**overrides, name: str(seed_folder(folder, seed)), "seed": seed}) for seed in seeds
    }
    finished = {seed for seed, one in recipes.items() if resume and is_finished(seed_folder(folder, seed), one)}
    for seed in recipes.keys() - finished:  # before the first training, which may take hours
        check_folder(seed_folder(folder, seed), recipes[seed], recipes[seed].training_arguments(), resume)
    summaries = []
    for seed, one in recipes.items():
        own = seed_folder(folder, seed)
        if seed in finished:
            summaries.append(load_json(own / SUMMARY))
            continue
        words = mask_words([*command, "--seed", str(seed), "--output_dir", str(own)])
        print(f"seed {seed}: {own}", flush=True)
        summaries.append(train(one, resume=resume, command=shlex.join(words) if command else None))
    return summaries


def describe_seeds(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean score on the dev split over the seeds, in words.

    Args:
        summaries: Return value of `train_seeds`.

    Returns:
        Such as "exact_match on dev: 37.2 ± 0.4 (3 seeds: 36.8, 37.1, 37.6)"; without `metric_for_best_model`, the
        number of seeds.
    """
    metric = str(summaries[0]["metric_for_best_model"]).removeprefix("eval_")
    scores = [summary["best_metric"] for summary in summaries]
    count = f"{len(scores)} seed{'s' * (len(scores) != 1)}"
    if None in scores:
        return f"{count} trained"

    def show(score: float) -> str:
        return METRICS[metric].show(score) if metric in METRICS else f"{score:.3f}"

    spread = f" ± {show(statistics.stdev(scores))}" if len(scores) > 1 else ""
    return f"{metric} on dev: {show(statistics.fmean(scores))}{spread} ({count}: {', '.join(map(show, scores))})"
