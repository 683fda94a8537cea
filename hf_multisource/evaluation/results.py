"""Write committed results: one JSON row per finished run, and one page per table of rows.

`make_row` reads a run folder (`config.json`, `trainer_state.json`, `train_summary.json`, `scores/<split>.json`). The
row is written to docs/results/<table>/<name>.json. With a baseline, the hypotheses of the two runs are compared by
paired bootstrap and approximate randomization. The row of a folder of seeds has the means over the seeds. With
dedicated runs, the run is decoded with a subset of its sources and compared with runs that were trained on exactly this
subset. An attention plot (the one that is named, otherwise the first one of the split) is copied beside the row, and
its command is recorded in the row. If the sentences of the test set may not be published, name a plot of other
sentences.

The page docs/results/<table>.md is made from all rows of the table and from docs/results/<table>/notes.md, which
interprets the rows. The first paragraph of the notes opens the page. All figures of the tables come from the rows.
"""

from __future__ import annotations

import glob
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_multisource import MultiSourceConfig
from hf_multisource.data.files import read_lines, write_json
from hf_multisource.data.privacy import publishable, publishable_command
from hf_multisource.evaluation.presence import presence_labels
from hf_multisource.evaluation.tables import format_table
from hf_multisource.json_files import JsonObject, load_json
from hf_multisource.metrics.bootstrap import pooled_bootstrap
from hf_multisource.metrics.randomization import approximate_randomization
from hf_multisource.metrics.table import DEFAULT, METRICS, Metric, metrics_of
from hf_multisource.recipes.averaging import AVERAGE
from hf_multisource.recipes.pretrained import encoder_config
from hf_multisource.recipes.recipe import FAMILIES
from hf_multisource.recipes.seeds import seed_folders

RESULTS = Path("docs/results")
# Relative paths of the runs that made scores together: `of` wrote the hypotheses, `with` reranked them
MADE_OF = "made_of.json"
WRITERS = {"scores": "score"}  # folder in a run -> command that writes it; `train` writes all others
UNTRAINED: JsonObject = {  # training facts of a row without a model
    **{"parameters": 0, "updates": 0, "minutes": 0.0, "hardware": None, "threads": None, "seed": None},
    **{"curve": [], "dev_loss": None, "finished": True, "commands": []},
}
SPREAD = "±: standard deviation of the score over bootstrap resamples of the test set."  # legend of `format_score`
SEEDS = "Of several seeds: mean ± standard deviation over the seeds."


def leveled_off(curve: Sequence[tuple[int, float]], metric: Metric) -> bool:
    """Return whether training has leveled off, so that its result can be compared with others.

    Args:
        curve: (updates, score on the dev set) of every evaluation.
        metric: The metric.

    Returns:
        True if the last fifth of the updates improved the best score by less than the metric's `flat_gain`. False if
        there is no evaluation before the last fifth to compare with. Also False if all scores of a higher-is-better
        metric are 0, because the model has not learned anything yet.
    """
    if metric.higher_is_better and all(score == 0 for _, score in curve):
        return False
    best = max if metric.higher_is_better else min
    before = [score for step, score in curve if step <= 0.8 * max(step for step, _ in curve)]
    return bool(before) and abs(best(score for _, score in curve) - best(before)) < metric.flat_gain


def head_metric(row: Mapping[str, Any]) -> str:
    """Return the metric by which a row is compared with other rows.

    Args:
        row: A row.

    Returns:
        Name of the first metric with which the row was scored; BLEU if it was not scored.
    """
    return (metrics_of((row["scores"] or {}).get("all", {})) or ["bleu"])[0]


def read_result(path: Path) -> Any:
    """Read a JSON file of results; the error for a missing file names the command that writes it."""
    if not path.exists():
        writer = WRITERS.get(path.parent.name, "train")
        raise FileNotFoundError(f"{path} is not there; `hf-multisource {writer}` writes it")
    return load_json(path)


def runs_of(folder: Path) -> list[Path]:
    """Return the run folders of all scored seeds; if there are none, the folder itself."""
    return [one for one in seed_folders(folder) if scored_splits(one)] or [folder]


def compare(
    run: Path, baseline: Path, split: str, condition: str = "all", metrics: Sequence[str] = DEFAULT
) -> JsonObject:
    """Compare two runs, or two folders of seeds, on one test set by significance tests.

    Args:
        run: The run folder, or folder of seeds.
        baseline: The run folder, or folder of seeds, to compare with.
        split: Name of the test split.
        condition: Condition in which the run was decoded; the baseline is decoded with all its sources.
        metrics: Names of metrics that do not read the sources.

    Returns:
        `run`, the name of the baseline; and for each metric the output of `pooled_bootstrap` and `p_randomization`.

    Raises:
        FileNotFoundError: If a run was not scored.
        ValueError: If the references differ.
    """
    sides = [
        [one / "scores" / f"{split}.{name}.txt" for one in runs_of(folder)]
        for folder, name in ((run, condition), (baseline, "all"))
    ]
    targets = [path.with_name(f"{split}.reference.txt") for side in sides for path in side]
    missing = [str(path) for path in (*targets, *sides[0], *sides[1]) if not path.exists()]
    if missing:
        raise FileNotFoundError(f"{', '.join(dict.fromkeys(missing))} not there; `hf-multisource score` writes them")
    references, *others = map(read_lines, targets)
    if any(other != references for other in others):
        raise ValueError(f"{run} and {baseline} were scored on different references of {split}")
    ours, theirs = ([read_lines(path) for path in side] for side in sides)
    compared = pooled_bootstrap(ours, theirs, references, metrics=metrics)
    p_values = approximate_randomization(ours, theirs, references, metrics=metrics)
    return {"run": baseline.name} | {
        name: {**figures, "p_randomization": p_values[name]} for name, figures in compared.items()
    }


def sources_left(condition: str, sources: Sequence[str]) -> tuple[str, ...]:
    """Return the sources that a condition leaves to a model, in order; empty if the condition shuffles a source."""
    kind, _, name = condition.partition("-")
    if kind == "absent":
        return tuple(source for source in sources if source != name)
    if kind == "only":
        return (name,)
    return tuple(sources) if kind == "all" else ()


def compare_dedicated(
    run: Path,
    dedicated: Sequence[Path],
    split: str,
    sources: Sequence[str],
    conditions: Sequence[str],
    metrics: Sequence[str],
) -> JsonObject:
    """Compare a run that is decoded with a subset of its sources with runs that were trained on this subset.

    Args:
        run: The run folder.
        dedicated: Run folders of the runs that were trained on subsets of the sources.
        split: Test split.
        sources: Sources of the run.
        conditions: Conditions in which the run was scored.
        metrics: Names of metrics that do not read the sources.

    Returns:
        Condition -> output of `compare`.

    Raises:
        ValueError: If the run was not scored with exactly the sources of a dedicated run.
    """
    compared: JsonObject = {}
    for other in dedicated:
        own = read_result(runs_of(other)[0] / "scores" / f"{split}.json")["sources"]
        found = [name for name in conditions if set(sources_left(name, sources)) == set(own) and name not in compared]
        if not found:
            raise ValueError(f"{run} has no score with just {' '.join(own)} left to compare with {other}")
        compared[found[0]] = compare(run, other, split, found[0], metrics)
    return compared


def scored_splits(run: Path) -> list[str]:
    """Return the names of the splits for which a run has scores."""
    beside = (".txt.json", ".jsonl.json", ".attention-")  # other JSON files in the folder
    files = sorted((run / "scores").glob("*.json"))
    return [path.stem for path in files if not any(mark in path.name for mark in beside)]


def attention_plots(run: Path, split: str) -> list[Path]:
    """Return the attention plots that `hf-multisource score` made of a split, in the order of the sentences."""
    plots = (run / "scores").glob(f"{glob.escape(split)}.attention-*.png")
    return sorted(plots, key=lambda path: int(path.stem.rpartition("-")[2]))


def plot_commands(plot: Path) -> list[str]:
    """Return the commands in the report beside an attention plot; empty if `score` did not make the plot."""
    split, mark, _ = plot.name.rpartition(".attention-")
    report = plot.with_name(f"{split}.json")
    return list(read_result(report)["commands"]) if mark and report.exists() else []


def trained_runs(run: Path) -> tuple[list[Path], list[Path]]:
    """Return the runs of a row: the runs that wrote the hypotheses, and the runs that reranked them."""
    if not (run / MADE_OF).exists():
        return [run], []
    made = read_result(run / MADE_OF)
    of, others = ([Path(os.path.normpath(run / path)) for path in made[key]] for key in ("of", "with"))
    return of, others


def all_training_facts(run: Path, metric: str) -> JsonObject:
    """Read and combine the training facts of all runs of a row; a row without runs has `UNTRAINED`.

    Args:
        run: The run folder, or a folder of scores with a file `MADE_OF`.
        metric: See `training_facts`.

    Returns:
        The facts of the first run, with the parameters, minutes and commands of all runs. If there is a file `MADE_OF`,
        `made_of` holds the names of the runs.
    """
    of, others = trained_runs(run)
    if not of:
        return {"made_of": [], **UNTRAINED}
    facts = [training_facts(one, metric) for one in (*of, *others)]
    names = [f"{one.parent.name}/{one.name}" for one in (*of, *others)]
    return {
        **({"made_of": names} if (run / MADE_OF).exists() else {}),
        **{key: value for key, value in facts[0].items() if key != "command"},
        "parameters": sum(one["parameters"] for one in facts),
        "minutes": round(sum(one["minutes"] for one in facts), 1),
        "finished": all(one["finished"] for one in facts[: len(of)]),
        "commands": [one["command"] for one in facts],
    }


def training_facts(run: Path, metric: str) -> JsonObject:
    """Read the training facts of a finished run: size, duration, learning curve on the dev set, and command.

    Args:
        run: The run folder.
        metric: Name of the metric of the learning curve.

    Returns:
        The fields of a row that describe the training, and `command`. If the weights are an average, `averaged` is the
        number of checkpoints.

    Raises:
        FileNotFoundError: If training has not finished.
    """
    summary = read_result(run / "train_summary.json")
    history = read_result(run / "trainer_state.json")["log_history"]
    key = f"eval_{metric}"
    evaluations = [entry for entry in history if key in entry]
    curve = [(entry["step"], round(entry[key], 3)) for entry in evaluations]
    choose = max if METRICS[metric].higher_is_better else min
    best: Any = choose(evaluations, key=lambda entry: entry[key], default={})  # the first of equals, as in training
    return {
        "parameters": summary["parameters"],
        "updates": summary["updates"],
        "minutes": round(summary["seconds"] / 60, 1),
        "hardware": summary["hardware"],
        "threads": summary["threads"],
        "seed": summary["seed"],
        "curve": curve,
        "dev_loss": best.get("eval_loss"),
        "finished": leveled_off(curve, METRICS[metric]),
        "command": summary["command"],
        **({"averaged": len(read_result(run / AVERAGE)["members"])} if (run / AVERAGE).exists() else {}),
    }


def wrapped_encoders(config: Mapping[str, Any]) -> dict[str, JsonObject]:
    """Return the configurations of a model's wrapped encoders, so that the row can be understood without them.

    Args:
        config: The model's `config.json`.

    Returns:
        By source, `model_type` and the values that differ from the defaults.
    """
    about_the_file = ("transformers_version", "architectures", "dtype")
    configs = {source["name"]: source["encoder"] for source in config["sources"] if "encoder" in source}
    return {
        name: {key: value for key, value in encoder_config(own).to_diff_dict().items() if key not in about_the_file}
        for name, own in configs.items()
    }


def make_row(
    run: Path,
    table: str,
    name: str,
    split: str | None = None,
    baseline: Path | None = None,
    dedicated: Sequence[Path] = (),
) -> JsonObject:
    """Make the row of one run, or of the runs of several seeds.

    Args:
        run: The run folder, or a folder of seeds (see `pool_seeds`).
        table: Name of the table.
        name: Name of the row in the table.
        split: Test split; None: the only split that was scored.
        baseline: Run folder to compare with.
        dedicated: Run folders to compare with in the conditions that leave exactly their sources.

    Returns:
        The row as it is committed: secrets in the commands are masked and absolute paths shortened.

    Raises:
        FileNotFoundError: If a file of the run does not exist.
        ValueError: If several splits were scored and none is named, or no condition leaves exactly the sources of a
            dedicated run.
    """
    if (seeds := runs_of(run)) != [run]:
        rows = [make_row(one, table, name, split) for one in seeds]
        return {**pool_seeds(rows, run.name), **comparisons(run, rows[0], baseline, dedicated)}
    if split is None:
        splits = scored_splits(run)
        if len(splits) != 1:
            raise ValueError(f"{run}/scores holds scores of {', '.join(splits) or 'no split'}; name one with --split")
        split = splits[0]
    scores = read_result(run / "scores" / f"{split}.json")
    metrics = metrics_of(scores["conditions"]["all"])
    training = all_training_facts(run, metrics[0])
    runs, _ = trained_runs(run)
    config = read_result(runs[0] / "config.json") if runs else {"sources": []}
    combiners = {_combiner_of(read_result(one / "config.json"), scores["sources"]): None for one in runs}
    row: JsonObject = {
        "table": table,
        "name": name,
        "run": run.name,
        "combiner": ", ".join(combiners),
        "sources": scores["sources"],
        "target": scores["target"],
        **{key: value for key, value in training.items() if key != "commands"},
        "split": split,
        "scores": {
            condition: {
                metric: {**entry["draws"][0][metric], **entry[metric], "draws": len(entry["draws"])}
                for metric in metrics_of(entry)
            }
            for condition, entry in scores["conditions"].items()
        },
        "perplexity": scores["conditions"]["all"]["draws"][0].get("perplexity", {}).get("score"),
        "search": scores["search"],
        "decoding_hardware": f"{scores['hardware']}, {scores['threads']} threads",
        "sentences_per_second": scores["conditions"]["all"]["draws"][0]["sentences_per_second"],
        "baseline": None,
        "commands": [publishable_command(command) for command in (*training["commands"], *scores["commands"])],
        "date": scores["date"],
        "versions": scores["versions"],
    }
    if presence := scores.get("presence"):  # older reports lack this key
        row["presence"] = {kind: groups for kind, groups in presence.items() if kind != "exactly"}
    row |= {key: scores[key] for key in ("limit", "placeholders", "memory") if key in scores}
    if reranked := scores["conditions"].get("reranked"):
        row["reranking"] = {key: reranked["reranking"][key] for key in ("run", "n", "weight")}
    if encoders := wrapped_encoders(config):
        row["encoders"] = publishable(encoders)
    return {**row, **comparisons(run, row, baseline, dedicated)}


def _combiner_of(config: dict[str, Any], sources: Sequence[str]) -> str:
    """Return the name of the combiner of a model that was scored on these sources; empty for a single source."""
    if len(config["sources"]) > 1:
        return FAMILIES[config.get("model_type", MultiSourceConfig.model_type)].from_dict(config).strategy
    return "concatenated" if len(sources) > 1 else ""


def comparisons(run: Path, row: Mapping[str, Any], baseline: Path | None, dedicated: Sequence[Path]) -> JsonObject:
    """Return the comparisons that a row holds.

    Args:
        run: See `make_row`.
        row: The row without comparisons, whose split and metrics are used.
        baseline: See `make_row`.
        dedicated: See `make_row`.

    Returns:
        `baseline`, and `dedicated` if there are such runs.
    """
    metrics = [metric for metric in metrics_of(row["scores"]["all"]) if not METRICS[metric].needs_sources]
    made: JsonObject = {"baseline": compare(run, baseline, row["split"], metrics=metrics) if baseline else None}
    if dedicated:
        conditions = list(row["scores"])
        made["dedicated"] = compare_dedicated(run, dedicated, row["split"], row["sources"], conditions, metrics)
    return made


def pool_seeds(rows: Sequence[JsonObject], name: str) -> JsonObject:
    """Average the rows of several seeds into one row.

    Args:
        rows: Output of `make_row` for each seed.
        name: Name of the folder of seeds.

    Returns:
        For a single seed, its row unchanged. Otherwise a row in which every score is the mean over the seeds, with the
        individual scores (`seeds`) and their standard deviation (`seeds_sd`). Training figures are means, too;
        `finished` is true if it is true for all seeds. Hardware and versions that differ are joined by "and". `runs`
        holds, for each seed, the fields that differ between the seeds and the last value of the learning curve.

    Raises:
        ValueError: If the seeds were trained on different sources, or scored on different splits, with different
            metrics or by different searches.
    """
    first = rows[0]
    scorings: list[JsonObject] = [{"metrics": metrics_of(row["scores"]["all"]), "search": _search(row)} for row in rows]
    for key, known in scorings[0].items():
        if other := [scoring[key] for scoring in scorings if scoring[key] != known]:
            raise ValueError(
                f"{name}: the seeds were scored differently: {key} is {known} and {other[0]}; score them again with "
                "the same options"
            )
    for key in ("sources", "target", "split", "limit", "combiner", "parameters"):
        if different := [row.get(key) for row in rows if row.get(key) != first.get(key)]:
            known = first.get(key)
            raise ValueError(f"{name}: the runs are no seeds of one recipe: {key} is {known} and {different[0]}")
    if len(rows) == 1:
        return {**first, "run": name}
    steps = [dict(row["curve"]) for row in rows]
    return {
        **{key: value for key, value in first.items() if key not in ("presence", "placeholders")},
        "run": name,
        "seed": [row["seed"] for row in rows],
        "updates": round(statistics.fmean(row["updates"] for row in rows)),
        "minutes": round(statistics.fmean(row["minutes"] for row in rows), 1),
        "hardware": _joined([row["hardware"] for row in rows]),
        "decoding_hardware": _joined([row["decoding_hardware"] for row in rows]),
        "versions": {
            package: _joined([row["versions"].get(package) for row in rows])
            for package in dict.fromkeys(package for row in rows for package in row["versions"])
        },
        "curve": [
            (step, round(statistics.fmean(curve[step] for curve in steps), 3))
            for step in steps[0]
            if all(step in curve for curve in steps)
        ],
        "dev_loss": _mean_of([row["dev_loss"] for row in rows]),
        "perplexity": _mean_of([row["perplexity"] for row in rows]),
        "sentences_per_second": _mean_of([row["sentences_per_second"] for row in rows]),
        "finished": all(row["finished"] for row in rows),
        "scores": _pool_scores([row["scores"] for row in rows]),
        **(
            {"presence": {kind: _pool_scores([row["presence"][kind] for row in rows]) for kind in first["presence"]}}
            if all("presence" in row for row in rows)
            else {}
        ),
        **(
            {"placeholders": _mean_counts([row["placeholders"] for row in rows])}
            if all("placeholders" in row for row in rows)
            else {}
        ),
        "runs": [
            {
                "seed": row["seed"],
                "scores": {metric: row["scores"]["all"][metric]["score"] for metric in row["scores"]["all"]},
                "last": row["curve"][-1][1] if row["curve"] else None,
                **{key: row[key] for key in ("finished", "updates", "minutes", "dev_loss", "commands", "date")},
            }
            for row in rows
        ],
        "date": max(row["date"] for row in rows),
    }


def _search(row: Mapping[str, Any]) -> JsonObject:
    """Return the settings of the search of a row, without the batch size, which does not change the hypotheses."""
    return {key: value for key, value in (row["search"] or {}).items() if key != "batch_size"}


def _joined(values: Sequence[str | None]) -> str | None:
    """Return the distinct values joined by "and", in order of appearance; None if all are None."""
    return " and ".join(dict.fromkeys(value for value in values if value)) or None


def _mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is None."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _mean_counts(entries: Sequence[Mapping[str, Any]]) -> JsonObject:
    """Average the numbers in entries; values that are not numbers are taken from the first entry."""
    return {
        key: statistics.fmean(entry[key] for entry in entries) if isinstance(value, int | float) else value
        for key, value in entries[0].items()
    }


def _pool_scores(entries: Sequence[Mapping[str, Mapping[str, Any]]]) -> JsonObject:
    """Average over the seeds the scores that all seeds have, by condition (or group) and metric."""
    pooled: JsonObject = {}
    for label in entries[0]:
        found = [entry[label] for entry in entries if label in entry]
        if len(found) < len(entries):
            continue
        pooled[label] = {key: value for key, value in found[0].items() if key not in METRICS}  # such as `n`
        for metric in metrics_of(found[0]):
            if not all(metric in own for own in found):  # this condition was scored earlier with other metrics
                continue
            scores = [own[metric]["score"] for own in found]
            pooled[label][metric] = {
                "score": statistics.fmean(scores),
                "seeds": scores,
                "seeds_sd": statistics.stdev(scores),
                **{key: value for key, value in found[0][metric].items() if key == "signature"},
            }
    return pooled


def format_score(scores: Mapping[str, Any], metric: str) -> str:
    """Format a score with its standard deviation.

    Args:
        scores: `score` and `sd` by metric, as in rows; scores of a condition also have `draws` and `draws_sd`.
        metric: Name of the metric.

    Returns:
        The score and its standard deviation over bootstrap resamples, such as "21.3 ± 0.8". For several draws of a
        shuffled source, the mean and standard deviation over the draws, such as "21.3 (5 draws, sd 0.2)". For several
        seeds, the mean and standard deviation over the seeds, such as "21.3 ± 0.4 (3 seeds)".
    """
    score, show = scores[metric], METRICS[metric].show
    if "seeds" in score:
        return f"{show(score['score'])} ± {show(score['seeds_sd'])} ({len(score['seeds'])} seeds)"
    if score.get("draws", 1) > 1:
        return f"{show(score['score'])} ({score['draws']} draws, sd {show(score['draws_sd'])})"
    return f"{show(score['score'])} ± {show(score['sd'])}"


def split_notes(notes: str) -> tuple[str, str]:
    """Split the notes of a page into the first paragraph, which opens the page, and the rest.

    Args:
        notes: Markdown.

    Returns:
        The first paragraph, and the rest; both are empty without notes.
    """
    opening, _, rest = notes.strip().partition("\n\n")
    return opening, rest.strip()


def title(row: Mapping[str, Any]) -> str:
    """Return a row's name, marked if its training had not leveled off."""
    return str(row["name"]) if row["finished"] else f"{row['name']} (unfinished)"


def length_rule(search: JsonObject) -> str:
    """Return the length rule of a search with its value, in words."""
    name = "length_penalty" if "length_penalty" in search else "length_normalization"
    return f"{name.replace('_', ' ')} {search[name]} ({search[f'{name}_formula']})"


def _first_examples(row: Mapping[str, Any]) -> str:
    """Return in words how many examples of the split were scored; empty if all were scored."""
    return f", first {row['limit']:,} examples" if "limit" in row else ""


def _against_baseline(row: JsonObject) -> str:
    head = head_metric(row)
    if head not in (row["baseline"] or {}):
        return ""
    compared = row["baseline"][head]
    difference = METRICS[head].show(compared["difference"], sign=True)
    return f"{difference} (p = {compared['p_value']:.3f}) to {row['baseline']['run']}"


def learning_curves(rows: Sequence[JsonObject], metric: Metric) -> str:
    """Format the learning curves of all rows on the dev set as a table."""
    curves = {row["name"]: dict(row["curve"]) for row in rows}
    steps = sorted({step for curve in curves.values() for step in curve})
    lines = [
        [f"{step:,}", *(metric.show(curve[step]) if step in curve else "" for curve in curves.values())]
        for step in steps
    ]
    return format_table(["updates", *curves], lines)


def by_presence(rows: Sequence[JsonObject], metric: str) -> str:
    """Render the section with scores by present sources; empty if no row has such scores."""
    groups = {title(row): presence_labels(row["presence"]) for row in rows if "presence" in row}
    if not groups:
        return ""

    def cell(entry: Mapping[str, Any] | None) -> str:
        return f"{format_score(entry, metric)} ({entry['n']})" if entry and metric in entry else ""

    labels = dict.fromkeys(label for own in groups.values() for label in own)
    lines = [[label, *(cell(own.get(label)) for own in groups.values())] for label in labels]
    return f"""\
## By the sources that are present

{METRICS[metric].label} of the sentences with so many sources, with a source, and without it. In parentheses: the number
of these sentences.

{format_table(["sources present", *groups], lines)}
"""


def score_of(row: Mapping[str, Any], condition: str, metric: str) -> str:
    """Format the score of a row in a condition; empty if there is none."""
    scores = row["scores"].get(condition, {})
    return format_score(scores, metric) if metric in scores else ""


def by_condition(rows: Sequence[JsonObject], metric: str) -> str:
    """Render the section with scores with shuffled or removed sources; empty if no row has such scores."""
    changed = list(dict.fromkeys(key for row in rows for key in row["scores"] if key != "all"))
    if not changed:
        return ""
    changed.sort(key=lambda key: key.split("-")[0])  # absent, only, wrong; stable, so sources keep their order
    lines = [
        [title(row), *(score_of(row, condition, metric) for condition in ("all", *changed))]
        for row in rows
        if len(row["scores"]) > 1
    ]
    label = METRICS[metric].label
    reranked = (
        "\n*reranked*: the hypotheses of the beam are reranked by a reverse model." if "reranked" in changed else ""
    )
    return f"""\
## Sources taken away or swapped

{label}. *absent-X*: source X is taken away from every sentence. *only-X*: all other sources are taken away.
*wrong-X*: X is shuffled so that no sentence keeps its own; with several draws of the shuffle, the score is the mean
over the draws, and *sd* is the standard deviation over them.{reranked}

{format_table(["name", "all", *changed], lines)}
"""


def how_made(rows: Sequence[JsonObject]) -> str:
    """Render the section on the provenance of every row: date, hardware and commands."""
    made = ""
    for row in rows:
        search = row["search"]
        versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
        seeds, *others = row["seed"] if "runs" in row else [row["seed"]]
        which = f"seeds {seeds}, {', '.join(map(str, others))}; commands of the first" if others else f"seed {seeds}"
        made += (
            f"- **{row['name']}** ({row['date']}, {which}): trained on {row['hardware']}, "
            f"{row['threads']} threads; decoded on {row['decoding_hardware']}, beam {search['num_beams']}, "
            f"{length_rule(search)}, "
            f"{row['sentences_per_second']} sentences/s; {versions}.\n\n"
            + "".join(f"      {command}\n" for command in row["commands"])
        )
    return f"## How each row was made\n\n{made}"


def unfinished_rule(metric: Metric, whose: str = "its") -> str:
    """Return in words the rule by which `leveled_off` regards a training as unfinished."""
    improved = "raised" if metric.higher_is_better else "lowered"
    return (
        f"the last fifth of {whose} updates still {improved} the best dev {metric.label} by {metric.flat_gain} or more"
    )


def signatures_of(rows: Sequence[JsonObject], metrics: Sequence[str]) -> str:
    """Format the signature of each metric, one per line, from the first row that has this metric."""
    found = {name: next(row["scores"]["all"][name] for row in rows if name in row["scores"]["all"]) for name in metrics}
    return "".join(f"- {name}: `{score['signature']}`\n" for name, score in found.items())


def render(table: str, rows: Sequence[JsonObject], notes: str = "") -> str:
    """Return the page of one table, made from its rows and the notes on them.

    Args:
        table: The table's name.
        rows: Rows as `make_row` returns them.
        notes: Interpretation of the rows, in Markdown; the first paragraph opens the page.

    Returns:
        Markdown.
    """
    opening, rest = split_notes(notes)
    lead = f"{opening}\n\n" if opening else ""
    rows = sorted(rows, key=lambda row: (len(row["sources"]), row["name"]))
    metrics = list(dict.fromkeys(name for row in rows for name in metrics_of(row["scores"]["all"])))
    head = METRICS[metrics[0]]
    columns = [METRICS[name].label for name in metrics]
    header = ["name", "combiner", "sources", *columns, f"{head.label} to baseline", "dev loss"]
    has_perplexity = any(row.get("perplexity") is not None for row in rows)  # old rows lack it
    header += ["perplexity"] if has_perplexity else []
    header += ["updates", "minutes", "parameters"]
    unfinished = {row["run"] for row in rows if not row["finished"]}

    def comparable(row: JsonObject) -> bool:
        return not unfinished & {row["run"], (row["baseline"] or row)["run"]}

    lines = []
    for row in rows:
        name = title(row)
        lines.append(
            [
                name,
                row["combiner"],
                " ".join(row["sources"]),
                *(score_of(row, "all", metric) for metric in metrics),
                _against_baseline(row) if comparable(row) else "",
                "" if row["dev_loss"] is None else f"{row['dev_loss']:.3f}",
                *([f"{row['perplexity']:.1f}" if row.get("perplexity") else ""] if has_perplexity else []),
                f"{row['updates']:,}",
                f"{row['minutes']:.1f}",
                f"{row['parameters'] / 1e6:.1f} M",
            ]
        )
    spread = f"{SPREAD} {SEEDS}" if any("runs" in row for row in rows) else SPREAD
    explained = "\n*perplexity*: perplexity of the test set's references, per token." if has_perplexity else ""
    splits = ", ".join(sorted({f"{row['split']}{_first_examples(row)} ({row['target']})" for row in rows}))
    signatures = signatures_of(rows, metrics)
    sections = [
        f"""\
<!-- Made by `hf-multisource results table {table}` from what lies in {table}/. Do not edit. -->
# {table}

{lead}Test set: {splits}. *p*: paired bootstrap test as in sacreBLEU, one-sided.
{spread}
*dev loss*: cross-entropy of the kept checkpoint on the dev set, in nats per token. A row is *unfinished* if
{unfinished_rule(head)}.
Its score may rise with more updates, so comparisons with it are provisional, and no test against the baseline is
shown.{explained}

{format_table(header, lines)}

{signatures}"""
    ]
    if changes := by_condition(rows, metrics[0]):
        sections.append(changes)
    if present := by_presence(rows, metrics[0]):
        sections.append(present)
    if rest:
        sections.append(f"## What they show\n\n{rest}\n")
    if any(row["curve"] for row in rows):
        sections.append(
            f"## Learning curves\n\n{head.label} of greedy search on the dev set.\n\n{learning_curves(rows, head)}\n"
        )
    return "\n".join([*sections, how_made(rows)])


def write_table(table: str, folder: Path) -> Path:
    """Render the page of a table from the rows in its folder."""
    rows = [read_result(path) for path in sorted((folder / table).glob("*.json"))]
    if not rows:
        raise FileNotFoundError(
            f"{folder / table} holds no row; `hf-multisource results row RUN --table {table}` writes one"
        )
    page = folder / f"{table}.md"
    notes = folder / table / "notes.md"
    said = notes.read_text(encoding="utf-8") if notes.exists() else ""
    page.write_text(render(table, rows, said), encoding="utf-8")
    return page


def write_row(
    run: Path,
    table: str,
    name: str,
    *,
    results: Path = RESULTS,
    split: str | None = None,
    baseline: Path | None = None,
    dedicated: Sequence[Path] = (),
    plot: Path | None = None,
) -> list[Path]:
    """Write the row of one run, with its plot, and the table.

    Args:
        run: See `make_row`.
        table: See `make_row`.
        name: See `make_row`; also the name of the row's file.
        results: Folder of all tables.
        split: See `make_row`.
        baseline: See `make_row`.
        dedicated: See `make_row`.
        plot: Attention plot; None: the first plot of the split, if there is one.

    Returns:
        The files that were written.
    """
    content = make_row(run, table, name, split, baseline, dedicated)
    plots = [plot] if plot else attention_plots(run, content["split"])
    if plots:
        plotted = map(publishable_command, plot_commands(plots[0]))
        content["commands"] = list(dict.fromkeys([*content["commands"], *plotted]))
    path = results / table / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)
    path.with_suffix(".png").unlink(missing_ok=True)
    copies = [Path(shutil.copyfile(plots[0], path.with_suffix(".png")))] if plots else []
    return [path, *copies, write_table(table, results)]
