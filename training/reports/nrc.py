"""Compare the system of Littell et al. 2019 with the replication of training/graphs/nrc_multi30k.yaml.

    hf-multisource graph training/graphs/nrc_multi30k.yaml --seed 1
    python training/reports/nrc.py keep runs/nrc_multi30k
    python training/reports/nrc.py

`keep` reads the folders seed-N of a run. For each folder it writes seed-N.json (scores, learning curves, times,
hardware, counts) and seed-N.zip (the hypotheses) to docs/results/nrc/seeds, together with comparisons.json (paired
tests, pooled over all seeds that were ever kept). The graph need not have finished; rows without scores are left out.
The references are read from the run and are not kept. Without `keep`, the command writes docs/results/nrc.md and
nrc.png from these files and from docs/results/nrc/notes.md, which explains the results and whose first paragraph opens
the page.
"""

from __future__ import annotations

import argparse
import hashlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from textwrap import fill, wrap
from typing import Any

from hf_multisource.data.files import read_lines, write_json
from hf_multisource.evaluation.experiment_figures import DPI, SIZE, WIDTH
from hf_multisource.evaluation.kept_cells import write_archive
from hf_multisource.evaluation.plots import save_figure
from hf_multisource.evaluation.results import (
    RESULTS,
    learning_curves,
    length_rule,
    split_notes,
    training_facts,
    unfinished_rule,
)
from hf_multisource.evaluation.tables import format_table
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.metrics.bootstrap import pooled_bootstrap
from hf_multisource.metrics.randomization import approximate_randomization
from hf_multisource.metrics.table import DEFAULT, METRICS, metrics_of
from hf_multisource.recipes.reading import read_yaml
from hf_multisource.recipes.run_folder import SUMMARY
from hf_multisource.recipes.seeds import seed_folders
from hf_multisource.recipes.shipped import find_recipe

PAGE = "nrc"
GRAPH = Path(__file__).resolve().parents[1] / "graphs" / "nrc_multi30k.yaml"
SPLIT = "test"
GUARDED = "-guarded"  # suffix of the folders of steps that remove held-out sets
COMPARISONS = "comparisons.json"
KEPT = Path(PAGE, "seeds")  # one folder deeper than rows of models, for which cards are written
LABEL_WIDTH, LINE_WIDTH = 34, 120  # characters per line in the labels of bars and in the text of the page
HEAD = METRICS["bleu"]
SAMPLES = 1000  # number of samples of the bootstrap and of the randomization test
SEEDS = 3  # smallest number of seeds for deciding on the claim
LEVEL, OVER_PIVOT, OVER_ONE_WAY = 0.05, 1.0, 2.0  # significance level; gains over two baselines in BLEU points

# BLEU in the paper's Table 1, as far as it is known here. It is not known whether the submitted system is row 4 or 5.
SUBMITTED, FULLY_TRAINED, PAPERS_PIVOT = 24.2, 25.0, 20.8
GAIN_OVER_BASELINE = 9.4  # BLEU points of the submitted system; the paper's text has gains of the fully trained system
TEXT_GAINS = "4.2 and 10.2"
WMT_SCORE = 24.9  # BLEU of the submitted system in the paper's Table 2
FOUR_OR_FIVE = f"{SUBMITTED} (row 4 or 5)"


@dataclass(frozen=True)
class Row:
    """A row of the page.

    Args:
        name: Name of the row in tables.
        label: Description of the system.
        color: Color of the bar.
        paper: BLEU in the paper; "" if it is not known here or there is no such row.
        upper_bound: Whether the system reads data that are not available at test time.
    """

    name: str
    label: str
    color: str
    paper: str = ""
    upper_bound: bool = False


# Colors of Okabe & Ito 2008, which color-blind readers can distinguish.
GRAY, BLUE, VERMILION = "#888888", "#0072B2", "#D55E00"
# Score step of the graph -> row: the rows of the paper, then further rows.
ROWS = {
    "score1": Row("1", "one encoder: Czech pairs", GRAY),
    "score2": Row("2", "one encoder: and back-translations into Czech", GRAY),
    "score3": Row("3", "one encoder: and German pairs and back-translations", GRAY),
    "score4": Row("4", "two encoders, one-way cross-translation", BLUE, FOUR_OR_FIVE),
    "score5": Row("5", "two encoders, two-way cross-translation", BLUE, FOUR_OR_FIVE),
    "pivot": Row("pivot", "Czech to German, German to English", VERMILION, f"{PAPERS_PIVOT}"),
    "score5-parallel": Row("5, *parallel*", "row 5 with *parallel* in place of *projection*", BLUE),
    "score5-hierarchical": Row("5, *hierarchical*", "row 5 with *hierarchical* in place of *projection*", BLUE),
    "score5-true": Row("5, true German", "upper bound: row 5 with the true German", "#FFFFFF", upper_bound=True),
}
SINGLE = ("score1", "score2", "score3")
MULTI, ONE_WAY, PIVOT = "score5", "score4", "pivot"
SOURCES = {"cs": "Czech", "de": "German"}
CHANGED = {f"{kind}-{source}": f"{name} {kind}" for source, name in SOURCES.items() for kind in ("absent", "wrong")}
CONDITIONS = {step: ("all", *(CHANGED if step in (ONE_WAY, MULTI) else ())) for step in ROWS}
Output = tuple[str, str]  # a score step and a condition
BEST = "best single"  # key of the comparison whose baseline is chosen by the scores
# Comparison -> system and baseline.
PAIRS: dict[str, tuple[Output, Output]] = {
    "pivot": ((MULTI, "all"), (PIVOT, "all")),
    "one-way": ((MULTI, "all"), (ONE_WAY, "all")),
    **{condition: ((MULTI, condition), (MULTI, "all")) for condition in CHANGED},
    **{step: ((step, "all"), (MULTI, "all")) for step in ("score5-parallel", "score5-hierarchical", "score5-true")},
}


# Keeping results.


def read_seed(folder: Path) -> tuple[JsonObject, dict[str, bytes], list[str]]:
    """Read the results of one seed of the graph.

    Args:
        folder: The folder seed-N of the graph.

    Returns:
        The kept results of the seed, without its number; name in the archive -> file of hypotheses; and the references.
        `rows` is empty if nothing has been scored yet.

    Raises:
        ValueError: If the references of two score steps differ, or a file has too few lines.
    """
    kept: JsonObject = {"rows": {}, "trainings": {}, "guards": {}, "decoding": {}, "signatures": {}}
    files: dict[str, bytes] = {}
    references: list[str] = []
    for step in ROWS:
        path = folder / step / f"{SPLIT}.json"
        if not path.exists():
            continue
        report = read_json(path)
        own = read_lines(folder / step / f"{SPLIT}.reference.txt")
        references = references or own
        if own != references:
            raise ValueError(f"{folder / step} has other references than the steps before it")
        row = kept["rows"][step] = {}
        for condition in CONDITIONS[step]:
            if condition not in report["conditions"]:
                continue
            entry = report["conditions"][condition]
            names = [f"{step}/{draw['hypotheses']}" for draw in entry["draws"]]
            files |= {name: (folder / name).read_bytes() for name in names}
            scores = {metric: round(entry[metric]["score"], 4) for metric in metrics_of(entry)}
            row[condition] = {**scores, "hypotheses": names}
            first = entry["draws"][0]
            kept["signatures"] |= {metric: first[metric]["signature"] for metric in scores}
        kept["decoding"][step] = {key: report[key] for key in ("hardware", "threads", "search", "versions", "date")}
    for path in sorted(folder.glob(f"*/{SUMMARY}")):
        facts = training_facts(path.parent, "bleu")
        kept["trainings"][path.parent.name] = {key: facts[key] for key in facts if key != "command"}
    for path in sorted(folder.glob(f"*{GUARDED}/counts.json")):
        counts = read_json(path)
        removed = counts["rules"]["held_out"]["rows"]
        kept["guards"][path.parent.name.removesuffix(GUARDED)] = {
            **{key: counts[key] for key in ("languages", "ngram", "read", "kept")},
            "held_out": removed,
        }
    for name, content in files.items():
        if content.count(b"\n") != len(references):
            raise ValueError(f"{folder / name} has other lines than the {len(references)} references")
    return kept, files, references


def digest_of(references: Sequence[str]) -> str:
    """Return the SHA-256 digest of references."""
    return hashlib.sha256("\n".join(references).encode()).hexdigest()


def keep(run: Path, place: Path) -> list[Path]:
    """Write the kept results of every seed of a run, and the comparisons over all seeds.

    Args:
        run: The folder `work` of the graph.
        place: Folder to write to.

    Returns:
        The files that were written.

    Raises:
        FileNotFoundError: If the run has no folder of a seed.
        ValueError: If nothing has been scored yet, the references of two seeds differ, or a row that was kept before
            would be lost.
    """
    folders = seed_folders(run)
    if not folders:
        raise FileNotFoundError(f"{run} has no folder seed-N; `hf-multisource graph FILE --seed N` writes it")
    found = {folder.name: read_seed(folder) for folder in folders}
    scored = {name: seed for name, seed in found.items() if seed[0]["rows"]}
    if not scored:
        raise ValueError(f"no score step of {', '.join(map(str, folders))} has been run yet")
    references = next(iter(scored.values()))[2]
    for name, (kept, _, own) in scored.items():
        if own != references:
            raise ValueError(f"{run / name} has other references than {run / next(iter(scored))}")
        before = place / f"{name}.json"
        rows = read_json(before)["rows"] if before.exists() else {}
        if lost := [one for one in outputs_of(rows) if one not in outputs_of(kept["rows"])]:
            step, condition = lost[0]
            raise ValueError(f"{run / name} has no score of {step} ({condition}), which {before} has; move that away")
    written = []
    place.mkdir(parents=True, exist_ok=True)
    for name, (kept, files, _) in scored.items():
        content = {"seed": int(name.partition("-")[2]), "references": digest_of(references), **kept}
        write_archive(place / f"{name}.zip", files)
        write_json(place / f"{name}.json", content)
        written += [place / f"{name}.json", place / f"{name}.zip"]
    write_json(place / COMPARISONS, compare_all(place, references))
    return [*written, place / COMPARISONS]


def outputs_of(rows: Mapping[str, Mapping[str, Any]]) -> list[Output]:
    """Return the step and the condition of every output of a seed."""
    return [(step, condition) for step, row in rows.items() for condition in row]


def read_kept(place: Path) -> list[JsonObject]:
    """Read the results of all kept seeds in order."""
    paths = place.glob("seed-*.json") if place.is_dir() else ()
    return sorted((read_json(path) for path in paths), key=lambda content: int(content["seed"]))


def read_hypotheses(archive: Path, seed: JsonObject, count: int) -> dict[Output, list[list[str]]]:
    """Read the hypotheses of a seed.

    Args:
        archive: The archive.
        seed: The kept results of the seed.
        count: Number of references.

    Returns:
        Step and condition -> hypotheses of each draw.

    Raises:
        ValueError: If the archive is damaged, lacks a file, or contains a file with another number of lines.
    """
    texts = {}
    try:
        with zipfile.ZipFile(archive) as entries:
            for step, condition in outputs_of(seed["rows"]):
                names = seed["rows"][step][condition]["hypotheses"]
                draws = [entries.read(name).decode().split("\n")[:-1] for name in names]
                if any(len(draw) != count for draw in draws):
                    raise ValueError(f"{archive}: {names[0]} has other lines than the {count} references")
                texts[step, condition] = draws
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{archive} is damaged: {error}") from error
    return texts


def compare_all(place: Path, references: Sequence[str]) -> JsonObject:
    """Compare pairs of rows, pooling each pair over the seeds that have both rows.

    Args:
        place: Folder of the kept seeds.
        references: The references.

    Returns:
        Pair -> system, baseline, seeds, and for each metric the result of `pooled_bootstrap` with `p_randomization`.

    Raises:
        ValueError: If a seed was scored with other references, or its archive is damaged.
    """
    seeds = read_kept(place)
    for seed in seeds:
        if seed["references"] != digest_of(references):
            raise ValueError(f"{place}/seed-{seed['seed']}.json was made with other references than those of the run")
    texts = {seed["seed"]: read_hypotheses(place / f"seed-{seed['seed']}.zip", seed, len(references)) for seed in seeds}
    pairs = dict(PAIRS)
    if best := best_single(seeds):
        pairs[BEST] = ((MULTI, "all"), (best, "all"))
    compared: JsonObject = {}
    for name, (system, baseline) in pairs.items():
        common = [number for number, own in texts.items() if system in own and baseline in own]
        if not common:
            continue
        ours, theirs = ([draw for number in common for draw in texts[number][one]] for one in (system, baseline))
        pooled = pooled_bootstrap(ours, theirs, references, metrics=DEFAULT, n_samples=SAMPLES)
        p_values = approximate_randomization(ours, theirs, references, metrics=DEFAULT, n_samples=SAMPLES)
        figures = {metric: {**pooled[metric], "p_randomization": p_values[metric]} for metric in DEFAULT}
        compared[name] = {"system": [*system], "baseline": [*baseline], "seeds": common, **figures}
    return compared


def best_single(seeds: Sequence[JsonObject]) -> str | None:
    """Return the step of the single encoder with the highest mean test BLEU; None if no such step is scored."""
    means = {step: values_of(seeds, (step, "all"), "bleu") for step in SINGLE}
    return max((step for step in SINGLE if means[step]), key=lambda step: fmean(means[step]), default=None)


# The page.


def values_of(seeds: Sequence[JsonObject], output: Output, metric: str) -> list[float]:
    """Return the scores of the seeds that have an output."""
    step, condition = output
    return [seed["rows"][step][condition][metric] for seed in seeds if condition in seed["rows"].get(step, {})]


def mean_cell(seeds: Sequence[JsonObject], output: Output, metric: str) -> str:
    """Return mean ± standard deviation over the seeds; the score of a single seed; "missing" without a seed."""
    values, show = values_of(seeds, output, metric), METRICS[metric].show
    if not values:
        return "missing"
    if len(values) == 1:
        return f"{show(values[0])} (1 seed)"
    return f"{show(fmean(values))} ± {show(stdev(values))} ({len(values)} seeds)"


def difference_cell(figures: Mapping[str, float], metric: str) -> str:
    """Return a difference with its 95 % interval."""
    names = ("difference", "difference_low", "difference_high")
    middle, low, high = (METRICS[metric].show(figures[name], sign=True) for name in names)
    return f"{middle} [{low}, {high}]"


def missing(seeds: Sequence[JsonObject]) -> list[str]:
    """Describe the missing results of each seed."""
    lines = []
    for seed in seeds:
        lacking = [
            output_name((step, condition))
            for step in ROWS
            for condition in CONDITIONS[step][: None if step in seed["rows"] else 1]
            if condition not in seed["rows"].get(step, {})
        ]
        if lacking:
            lines.append(f"- seed {seed['seed']}: {'; '.join(lacking)}")
    return lines


def verdict(compared: JsonObject) -> tuple[str, str]:
    """Return whether the claim holds, and the reason.

    Args:
        compared: The result of `compare_all`.

    Returns:
        "yes", "no" or "undecided", and a reason in words. The answer is "undecided" as long as one of the two
        comparisons has fewer than `SEEDS` seeds.
    """
    if lacking := [row_name(step) for name, step in (("pivot", PIVOT), ("one-way", ONE_WAY)) if name not in compared]:
        return "undecided", f"row 5 cannot be compared with {' and '.join(lacking)} yet"
    pivot, one_way = compared["pivot"]["bleu"], compared["one-way"]["bleu"]
    over_pivot = pivot["difference"] >= OVER_PIVOT and pivot["p_value"] < LEVEL
    holds = over_pivot and one_way["difference"] >= OVER_ONE_WAY
    said = (
        f"row 5 minus pivot is {difference_cell(pivot, 'bleu')} BLEU with p = {pivot['p_value']:.3f}, and row 5 minus "
        f"row 4 is {difference_cell(one_way, 'bleu')} BLEU"
    )
    answer = "yes" if holds else "no"
    count = min(len(compared[name]["seeds"]) for name in ("pivot", "one-way"))
    if count < SEEDS:
        seeds = f"{count} seed has" if count == 1 else f"{count} seeds have"
        return "undecided", f"{said}; only {seeds} been scored, and so far the answer would be {answer}"
    return answer, said


def render_claim(seeds: Sequence[JsonObject], compared: JsonObject) -> str:
    """Return the claim, the answer, and what restricts the answer, in words."""
    answer, reason = verdict(compared)
    text = (
        f"Does a second source that was made by a model help? **{answer.capitalize()}**: {reason}. The answer is yes "
        f"if row 5 (two-way cross-translation) is at least {OVER_PIVOT:.0f} BLEU better than the pivot, with p < "
        f"{LEVEL} pooled over {SEEDS} seeds, and at least {OVER_ONE_WAY:.0f} BLEU better than row 4 (one-way). These "
        "limits were fixed before the first training."
    )
    needed = ("row4", "row5", "cs-de", "de-en")
    open_ = [f"{name} (seed {seed['seed']})" for seed in seeds for name in needed if not _has_leveled_off(seed, name)]
    if open_:
        text += (
            f" Still improving at the end of the training: {', '.join(open_)}. Longer training may change the answer."
        )
    return fill(text, LINE_WIDTH, break_on_hyphens=False)


def _has_leveled_off(seed: JsonObject, name: str) -> bool:
    """Return whether a model had stopped improving; True for a missing model."""
    return bool(seed["trainings"].get(name, {}).get("finished", True))


def render_seeds(seeds: Sequence[JsonObject]) -> str:
    """Return how many seeds the page shows, in words."""
    if not seeds:
        return "No seed has been scored yet: the page shows the plan of the experiment and no results."
    if len(seeds) == 1:
        return (
            f"There is **one seed** ({seeds[0]['seed']}): nothing here says how far the scores of other seeds scatter."
        )
    return f"There are {len(seeds)} seeds: {', '.join(str(seed['seed']) for seed in seeds)}."


def render_rows(seeds: Sequence[JsonObject]) -> str:
    """Return the table of the paper's rows and ours."""
    lines = [
        [row.name, row.label, row.paper, *(mean_cell(seeds, (step, "all"), metric) for metric in DEFAULT)]
        for step, row in ROWS.items()
    ]
    return format_table(["row", "system", "BLEU in the paper", *(METRICS[name].label for name in DEFAULT)], lines)


def render_conditions(seeds: Sequence[JsonObject]) -> str:
    """Return the table of the scores with sources absent and wrong."""
    header = ["row", "both sources", *CHANGED.values()]
    lines = [
        [ROWS[step].name, *(mean_cell(seeds, (step, condition), "bleu") for condition in CONDITIONS[step])]
        for step in (ONE_WAY, MULTI)
    ]
    return format_table(header, lines)


def render_comparisons(compared: JsonObject) -> str:
    """Return the table of the comparisons."""
    lines = []
    for name in dict.fromkeys(("pivot", "one-way", BEST, *PAIRS)):
        if name not in compared:
            continue
        entry = compared[name]
        label = f"{output_name(entry['system'])} minus {output_name(entry['baseline'])}"
        cells = [difference_cell(entry[metric], metric) for metric in DEFAULT]
        p_values = [f"{entry['bleu'][key]:.3f}" for key in ("p_value", "p_randomization")]
        lines.append([label, *cells, *p_values, ", ".join(map(str, entry["seeds"]))])
    header = ["difference", *(METRICS[name].label for name in DEFAULT), "p (bootstrap)", "p (randomization)", "seeds"]
    return format_table(header, lines) if lines else "No two rows can be compared yet."


def row_name(step: str) -> str:
    """Return the name of a row in a sentence."""
    name = ROWS[step].name
    return f"row {name}" if name[0].isdigit() else name


def output_name(output: Sequence[str]) -> str:
    """Return the name of a row in a condition."""
    step, condition = output
    return row_name(step) if condition == "all" else f"{row_name(step)} with {CHANGED[condition]}"


def trainings_of(graph: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the training steps of the graph's file by name."""
    return {name: step for name, step in graph["steps"].items() if "train" in step}


def mean_curve(seeds: Sequence[JsonObject], name: str) -> list[tuple[int, float]]:
    """Return the learning curve of a model: updates and mean dev BLEU, where all seeds of the model were measured."""
    curves = [dict(seed["trainings"][name]["curve"]) for seed in seeds if name in seed["trainings"]]
    steps = set(curves[0]).intersection(*curves) if curves else ()
    return [(step, fmean(curve[step] for curve in curves)) for step in sorted(steps)]


def render_models(seeds: Sequence[JsonObject], graph: Mapping[str, Any]) -> str:
    """Return the section about the trainings: corpora, time and learning curve of each model."""
    lines: list[list[str]] = []
    shown: list[JsonObject] = []
    for name, step in trainings_of(graph).items():
        facts = [seed["trainings"][name] for seed in seeds if name in seed["trainings"]]
        if not facts:
            continue
        single = "all joined" if step.get("options", {}).get("concatenate") else "one source"
        lines.append(
            [
                name,
                f"{' + '.join(step['sources'])} → {step['target']}",
                step.get("options", {}).get("combiner", single),
                f"{fmean(one['updates'] for one in facts):,.0f}",
                f"{fmean(one['minutes'] for one in facts):.1f}",
                f"{facts[0]['parameters'] / 1e6:.1f} M",
                f"{sum(one['finished'] for one in facts)} of {len(facts)}",
            ]
        )
        shown.append({"name": name, "curve": mean_curve(seeds, name)})
    if not lines:
        return "## Learning curves\n\nNo finished training has been kept yet.\n"
    header = ["model", "languages", "sources are combined by", "updates", "minutes", "parameters", "leveled off"]
    scored = [row for row in shown if row["name"].startswith("row")]
    writers = [row for row in shown if row not in scored]
    curves = "\n\n".join(learning_curves(rows, HEAD) for rows in (scored, writers) if rows)
    return f"""\
## Learning curves

*updates* and *minutes*: means over the seeds. *leveled off*: how many seeds no longer improved; the others are
unfinished: {unfinished_rule(HEAD)}.

{format_table(header, lines)}

{HEAD.label} of greedy search on the dev set, by updates; means over the seeds. The dev set has the languages that the
model reads and writes; the German that rows 4 and 5 read is synthetic, as at test time.

{curves}
"""


def render_guards(seeds: Sequence[JsonObject]) -> str:
    """Return the section about the rows that were removed from each corpus because of the held-out sets."""
    names = list(dict.fromkeys(name for seed in seeds for name in seed["guards"]))
    if not names:
        return ""
    lines = []
    for name in names:
        own = [seed["guards"][name] for seed in seeds if name in seed["guards"]]
        cells = [_distinct([one[key] for one in own]) for key in ("read", "held_out", "kept")]
        lines.append([name, ", ".join(own[0]["languages"]), *cells])
    ngram = next(iter(seeds[0]["guards"].values()))["ngram"]
    return f"""\
## What was removed before training

Every corpus that a training reads lost the rows that share {ngram} words in a row with a dev or test set. All systems
read the same filtered corpora. *kept* is also without duplicates and rows without text. Where the
seeds differ, because their models wrote different text, their numbers stand side by side.

{format_table(["corpus", "languages", "rows read", "with words of a held-out set", "kept"], lines)}

"""


def _distinct(numbers: Sequence[int]) -> str:
    """Return the numbers of all seeds as text, or one number if they are equal."""
    return " / ".join(f"{number:,}" for number in (numbers if len(set(numbers)) > 1 else numbers[:1]))


def draw_graph(graph: Mapping[str, Any]) -> str:
    """Draw the graph as a Mermaid diagram, without held-out sets, guards, scores and further strategies.

    Args:
        graph: Content of the graph's file.

    Returns:
        The diagram, in which dotted arrows lead from a model to the text that it writes.
    """
    nodes = {name: f'(["{name}<br/>{", ".join(one["languages"])}"])' for name, one in graph["corpora"].items()}
    edges: list[tuple[str, str, str]] = []
    drawn: set[Any] = set()
    for name, step in graph["steps"].items():
        if "train" in step:
            reads = (step["on"], *step["sources"], step["target"])
            if reads not in drawn:  # the same corpora with another strategy are not drawn
                drawn.add(reads)
                nodes[name] = f'[["{name}<br/>{" + ".join(step["sources"])} → {step["target"]}"]]'
                edges.append((step["on"], "-->", name))
        elif "mix" in step:
            nodes[name] = f'["{name}"]'
            edges += [(one, "-->", name) for one in step["mix"]]
        elif "translate" in step and step["translate"] not in graph["held_out"]:
            nodes[name] = f'["{name}<br/>+ {step["into"]}"]'
            edges += [(step["translate"], "-->", name), (step["by"], "-.->", name)]
    ids = {name: f"n{i}" for i, name in enumerate(nodes)}
    arrows = (f"  {ids[one]} {arrow} {ids[other]}" for one, arrow, other in edges)
    return "\n".join(["flowchart LR", *(f"  {ids[name]}{shape}" for name, shape in nodes.items()), *arrows])


def commands_of(seeds: Sequence[JsonObject]) -> str:
    """Return the commands in the comment of the graph's file, with the last command repeated for each seed."""
    lines = [line.removeprefix("#   ") for line in GRAPH.read_text(encoding="utf-8").splitlines() if line[:4] == "#   "]
    run = lines.pop()
    lines += [f"{run} --seed {number}" for number in [seed["seed"] for seed in seeds] or range(1, SEEDS + 1)]
    return "\n".join(lines)


def render_made(seeds: Sequence[JsonObject], work: str) -> str:
    """Return the section with hardware, versions and commands."""
    said = ""
    for seed in seeds:
        scored, trained = list(seed["decoding"].values()), list(seed["trainings"].values())
        machines = ", ".join(dict.fromkeys(f"{one['hardware']}, {one['threads']} threads" for one in trained))
        decoded = ", ".join(dict.fromkeys(f"{one['hardware']}" for one in scored))
        search = scored[0]["search"]
        versions = ", ".join(f"{name} {number}" for name, number in scored[0]["versions"].items())
        said += (
            f"- **seed {seed['seed']}** ({max(one['date'] for one in scored)}): {len(trained)} models trained in "
            f"{sum(one['minutes'] for one in trained) / 60:.1f} hours on {machines}; decoded on {decoded}, beam "
            f"{search['num_beams']}, {length_rule(search)}; {versions}.\n"
        )
    signatures = {key: value for seed in seeds for key, value in seed["signatures"].items()}
    said += "".join(f"- {METRICS[name].label}: `{signature}`\n" for name, signature in signatures.items())
    return f"""\
## How it was made

{said}
```bash
{commands_of(seeds)}
python training/reports/nrc.py keep {work}
python training/reports/nrc.py
```
"""


def render_differences(graph: Mapping[str, Any]) -> str:
    """Return the sections about the results of the paper, the differences, and the parts that cannot be replicated."""
    recipe = read_yaml(find_recipe(next(iter(trainings_of(graph).values()))["train"]))["model"]
    sizes = ", ".join(str(recipe[key]) for key in ("d_model", "encoder_ffn_dim", "encoder_attention_heads"))
    return f"""\
## What the paper's numbers say

The submitted system has {SUBMITTED} BLEU, and the pivot {PAPERS_PIVOT}: a gain of {SUBMITTED - PAPERS_PIVOT:.1f}.
It is a model with two encoders. Whether it is row 4 or row 5 was not known when this page was written, so both rows
show its figure. Its gain over the baseline is {GAIN_OVER_BASELINE}, from which
{SUBMITTED - GAIN_OVER_BASELINE:.1f} BLEU of the baseline are derived. The gains of {TEXT_GAINS} that the paper's text
names belong to the same system after more training, with {FULLY_TRAINED} BLEU, which was not submitted. The paper's
Table 2 lists the submitted system with {WMT_SCORE} BLEU, as it was scored in the WMT campaign. Where the table above
has no figure of the paper, none was at hand when this page was written.

## What differs from the paper

| | Littell et al. 2019 | here |
|---|---|---|
| scarce language, rich language, target | Kazakh, Russian, English | Czech, German, English |
| text | WMT 2019 | Multi30k, cut into parts that share no sentence |
| layers (encoder + decoder) | 6 + 6 | {recipe["encoder_layers"]} + {recipe["decoder_layers"]} |
| width, inner width, heads | 512, 2048, 8 | {sizes} |
| first models that write synthetic text | statistical (SMT) | the same architecture as the rows |
| filter of synthetic text | YiSi-2 | none |

The texts are short captions of photographs, and German is closer to English than Russian is. Absolute scores and sizes
of gains cannot be compared with those of the paper, only the order of the rows.

[Another page](kk_ru_en.md) has models of the paper's languages, Kazakh, Russian and English, on a small amount of text.

The paper lacks these controls: all rows read the same filtered corpora, the second source is absent or wrong, and two
other strategies stand in the place of *projection*, which is the paper's.

## What cannot be repeated here

- The first synthetic text of the paper comes from statistical models (SMT), which this package does not have.
- YiSi, which filters the paper's text and is one of its scores, needs word vectors of both languages.
- Human evaluation.
"""


def bar_chart(seeds: Sequence[JsonObject]) -> Any:
    """Draw the figure with a bar for the mean of each row, and a point for each seed.

    Args:
        seeds: The seeds.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure

    shown = {step: values for step in ROWS if (values := values_of(seeds, (step, "all"), "bleu"))}
    figure = Figure(figsize=(WIDTH, 0.42 * len(shown) + 0.7), facecolor="white", layout="constrained")
    axes = figure.subplots()
    for place, (step, values) in enumerate(shown.items()):
        row = ROWS[step]
        hatch = "///" if row.upper_bound else None
        axes.barh(place, fmean(values), color=row.color, edgecolor="black", linewidth=0.6, height=0.7, hatch=hatch)
        axes.plot(values, [place] * len(values), "o", color="white", markeredgecolor="black", markersize=4.5)
        axes.annotate(HEAD.show(fmean(values)), (max(values), place), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(shown)), bar_labels(shown))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(1.0, *(max(values) for values in shown.values())))
    axes.set_xlabel(f"{HEAD.label} on the test set (bar: mean, point: a seed)")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def bar_labels(steps: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Return the labels of the bars; labels of the paper's rows end with the name of the row."""
    rows = [ROWS[step] for step in steps]
    labels = [row.label if "," in row.name else f"{row.label} ({row.name})" for row in rows]
    return ["\n".join(wrap(label.replace("*", ""), LABEL_WIDTH)) for label in labels]


def render(seeds: Sequence[JsonObject], compared: JsonObject, notes: str = "", *, figure: bool = False) -> str:
    """Return the page.

    Args:
        seeds: The kept seeds.
        compared: The result of `compare_all`.
        notes: Explanation of the results in Markdown; the first paragraph opens the page.
        figure: Whether there is a figure.

    Returns:
        Markdown.
    """
    graph = read_yaml(GRAPH)
    opening, rest = split_notes(notes)
    lead = f"{opening}\n\n" if opening else ""
    said = f"## What they show\n\n{rest}\n\n" if rest else ""
    picture = f"![BLEU of all rows]({PAGE}.png)\n\n" if figure else ""
    lacking = "\n".join(missing(seeds))
    gaps = f"Not there yet:\n\n{lacking}\n\n" if lacking else ""
    return f"""\
<!-- Made by `python training/reports/nrc.py` from {PAGE}/. Do not edit. -->
# Littell et al. 2019: a second source that is made, not given

{lead}{render_claim(seeds, compared)}

{render_seeds(seeds)}

{picture}[The paper](https://doi.org/10.18653/v1/W19-5326) translates Kazakh, of which there is little text with
English, by a model that also reads Russian. Most of this Russian was written by another model. In this small replica,
Czech is the scarce language, German the rich one and English the target, and no training sentence is available in all
three languages. The German of the test set is written by a model, too. *±*: standard deviation over the seeds.

{render_rows(seeds)}

Only the last row reads the true German of the test set: it is an upper bound, not a system. The figures of the paper
are explained [below](#what-the-papers-numbers-say).

{gaps}## Differences

Row minus row, with the 95 % interval in brackets. The sentences are resampled, the same for all seeds; both *p* are
pooled over the seeds. The best single encoder is the one with the highest mean BLEU on the test set itself,
which favors it.

{render_comparisons(compared)}

## The second source absent or wrong

{HEAD.label}. *absent*: the source is taken away from every sentence. *wrong*: it is shuffled so that no sentence
keeps its own, and the score is the mean of several shuffles.

{render_conditions(seeds)}

{said}{render_models(seeds, graph)}
{render_guards(seeds)}## The graph

Corpora are drawn with round ends and models with double sides. Synthetic text is named after the text that it was made
from. A dotted arrow leads from a model to the text that it writes. Held-out sets, the steps that remove them from each
corpus, and scores are left out;
`hf-multisource graph {GRAPH.relative_to(GRAPH.parents[2]).as_posix()} --draw graph.mmd` draws everything.

```mermaid
{draw_graph(graph)}
```

{render_differences(graph)}
{render_made(seeds, graph["work"])}"""


def write_page(results: Path) -> Iterator[Path]:
    """Write the page and, if there is a seed, its figure; yield the paths of both."""
    place = results / KEPT
    seeds, notes = read_kept(place), results / PAGE / "notes.md"
    compared = read_json(place / COMPARISONS) if (place / COMPARISONS).exists() else {}
    said = notes.read_text(encoding="utf-8") if notes.exists() else ""
    results.mkdir(parents=True, exist_ok=True)
    if seeds:
        texts = [*" ".join(bar_labels(ROWS)).split(), HEAD.label]
        yield save_figure(lambda: bar_chart(seeds), texts, results / f"{PAGE}.png", SIZE, DPI)
    page = results / f"{PAGE}.md"
    page.write_text(render(seeds, compared, said, figure=bool(seeds)), encoding="utf-8")
    yield page


def main(argv: Sequence[str] | None = None) -> None:
    """Keep seeds, or write the page; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    commands = parser.add_subparsers(dest="command")
    keeping = commands.add_parser("keep", help="keep the seeds of a run")
    keeping.add_argument("run", type=Path, help="`work` of the graph, which holds the folders seed-N")
    args = parser.parse_args(argv)
    try:
        for path in keep(args.run, args.results / KEPT) if args.command == "keep" else write_page(args.results):
            print(path)
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"nrc.py: {error}") from error


if __name__ == "__main__":
    main()
