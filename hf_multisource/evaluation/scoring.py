"""Decode and score a test set, unchanged or with a source shuffled, absent or alone (see `conditions`).

The output folder receives `<split>.json` with every score, and `<split>.<condition>.txt` with the hypotheses, one per
line. The hypotheses are written while they are decoded, so that a later call continues an interrupted one and decodes
no row twice. The n-best lists for reranking are written to `<split>.nbest.jsonl`. Attention plots are written to
`<split>.attention-<row>.png`, with the plotted numbers in a `.json` file beside each plot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.checks import check_at_least, check_choice
from hf_multisource.data.files import check_folder, single_line, write_json
from hf_multisource.data.interfaces import Model
from hf_multisource.data.masking import remembered_syntax
from hf_multisource.data.media import forms_of
from hf_multisource.data.rows import Row, Split, check_files, read_split
from hf_multisource.evaluation.conditions import RERANKED, conditions, count_whole, measure, summarize
from hf_multisource.evaluation.decoding import (
    Decoded,
    Hypothesis,
    Search,
    decode,
    fingerprint,
)
from hf_multisource.evaluation.ensembles import load_members
from hf_multisource.evaluation.likelihood import cross_entropy
from hf_multisource.evaluation.plots import INSTALL, measure_attention, write_plots
from hf_multisource.evaluation.presence import measure_presence
from hf_multisource.evaluation.reranking import (
    FORMULA,
    ReverseModel,
    choose_weight,
    find_candidates,
    load_reverse,
    oracle_texts,
    reranked_texts,
)
from hf_multisource.evaluation.score_report import PERPLEXITY
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.pretrained import load_config, load_processor
from hf_multisource.recipes.provenance import find_device, hardware
from hf_multisource.recipes.recipe import UNREADABLE, DataRecipe
from hf_multisource.recipes.run_folder import rows_of_run
from hf_multisource.recipes.shipped import RECIPE
from hf_multisource.recipes.tokenization import find_unknown

PACKAGES = ("hf-multisource", "torch", "transformers", "sacrebleu")
PLOTS = 3  # number of sentences whose attention is plotted by default


@dataclass(frozen=True)
class Scoring:
    """Options of [`score`]: data, conditions and decoding.

    Args:
        run: Run folder; or a model folder or Hub id, with `data`, `target`, `split` and `out`.
        ensemble: Further runs, model folders or Hub ids that decode together with the run.
        data: Folder or Hub id of the data; None: the value in the recipe.
        split: Name of the test split; None: the value in the recipe.
        target: Name of the target column; None: the value in the recipe.
        sources: Score the lines that have at least one of these sources. A line without any source of the model gets an
            empty hypothesis, so that models with different sources are scored on the same lines. None: the model's
            sources.
        metrics: Names of the metrics, the most important first; None: the value in the recipe.
        out: Folder to write to; None: the folder `scores` in the run folder, or `scores-ensemble` for an ensemble.
        adversarial: Whether to score with each source shuffled.
        draws: Number of different shuffles of each source.
        absent: Whether to score with each source absent.
        only: Whether to score with each source alone.
        rerank: Folder of a reverse run that reranks the `num_beams` hypotheses of the beam; None: no reranking.
        rerank_weight: Weight of the reverse score; None: the best of `reranking.WEIGHTS` on the recipe's dev split.
        attention_plot: Rows, counted from 0, whose attention is plotted; (): the first few; None: no plots.
        num_beams: See [`Search`].
        length_penalty: See [`Search`].
        length_normalization: See [`Search`].
        optimize: See [`Search`].
        shortlist: See [`Search`].
        max_length: Longest source, in tokens; None: the value in the recipe, or 128 without a recipe.
        max_new_tokens: Longest hypothesis, in tokens; None: the value of `max_length`.
        batch_size: Number of sentences per batch.
        limit: Number of lines to score from the start of the test split, and to choose the reranking weight on; None:
            all.
        unreadable: Whether pictures and recordings that cannot be read are an "error" or "absent"; None: the value in
            the recipe.
        seed: Seed of the shuffles.
        device: Torch device; None: the GPU if there is one.

    Raises:
        ValueError: If a value is not allowed; the message names it.
    """

    run: str
    ensemble: Sequence[str] = ()
    data: str | None = None
    split: str | None = None
    target: str | None = None
    sources: Sequence[str] | None = None
    metrics: Sequence[str] | None = None
    out: Path | None = None
    adversarial: bool = False
    draws: int = 5
    absent: bool = False
    only: bool = False
    rerank: str | None = None
    rerank_weight: float | None = None
    attention_plot: Sequence[int] | None = None
    num_beams: int = 10
    length_penalty: float = 1.0
    length_normalization: float | None = None
    optimize: str | None = None
    shortlist: str | None = None
    max_length: int | None = None
    max_new_tokens: int | None = None
    batch_size: int = 64
    limit: int | None = None
    unreadable: str | None = None
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        check_at_least(1, draws=self.draws, batch_size=self.batch_size, limit=self.limit)
        check_choice(UNREADABLE, unreadable=self.unreadable)
        for name in self.metrics or ():
            check_choice(tuple(METRICS), metrics=name)
        self.search(DataRecipe.max_length)  # raises an error if the search options are invalid
        check_at_least(0, rerank_weight=self.rerank_weight)
        if self.rerank is None and self.rerank_weight is not None:
            raise ValueError(f"rerank_weight is {self.rerank_weight}, but there is no rerank: name a reverse run")
        if self.rerank is not None:
            check_at_least(2, num_beams=self.num_beams)  # the candidates are the hypotheses of the beam
            if taken := [name for name in ("adversarial", "absent", "only") if getattr(self, name)]:
                raise ValueError(f"rerank scores with every source as it is: leave out {taken[0]}, or rerank")
        if self.attention_plot is not None and self.ensemble:
            raise ValueError("--attention_plot shows one model: leave out --ensemble")
        if self.attention_plot is not None and find_spec("matplotlib") is None:
            raise ImportError(INSTALL)
        if self.out is None and not Path(self.run).is_dir():
            raise ValueError(
                f"there is no folder {self.run}; give a run folder, or --out if this is the id of a model on the Hub"
            )

    def search(self, max_length: int) -> Search:
        """Return the search settings.

        Args:
            max_length: Longest source, in tokens, if the option `max_length` is None.

        Returns:
            The search settings.

        Raises:
            ValueError: If a value is not allowed; the message names it.
        """
        longest = max_length if self.max_length is None else self.max_length
        return Search(
            num_beams=self.num_beams,
            length_penalty=self.length_penalty,
            length_normalization=self.length_normalization,
            max_new_tokens=longest if self.max_new_tokens is None else self.max_new_tokens,
            max_length=longest,
            optimize=self.optimize,
            shortlist=self.shortlist,
        )

    @property
    def folder(self) -> Path:
        """Folder that receives the scores."""
        return self.out or Path(self.run) / ("scores-ensemble" if self.ensemble else "scores")


@dataclass(frozen=True)
class Prepared:
    """The checked input of a scoring: everything but the models.

    Args:
        args: The options.
        processor: Processor of the model.
        data: The data section; for a reverse model, with the columns that the model reads and writes.
        sources: A line is scored if it has at least one of these sources.
        splits: The test split, and the dev split if the weight of the reranking is chosen on it, by name.
        conditions: Rows of every draw of the conditions, see `conditions`.
        plotted: Indices of the lines whose attention is plotted.
    """

    args: Scoring
    processor: MultiSourceProcessor
    data: DataRecipe
    sources: list[str]
    splits: dict[str, Split]
    conditions: dict[str, list[list[Row]]]
    plotted: list[int]

    @property
    def rows(self) -> list[Row]:
        """Rows of the test split."""
        return self.splits[self.data.test].rows

    @property
    def search(self) -> Search:
        """Settings of the search."""
        return self.args.search(self.data.max_length)

    @property
    def path(self) -> Path:
        """File of the report."""
        return self.args.folder / f"{self.data.test}.json"

    def references(self, split: str) -> list[str]:
        """Return the references of a split.

        Args:
            split: Name of the split.

        Returns:
            One per row.
        """
        return [row[self.data.target] or "" for row in self.splits[split].rows]


def prepare(args: Scoring) -> Prepared:
    """Read the data of a scoring and check it and the options.

    Args:
        args: The options.

    Returns:
        What is scored.

    Raises:
        ValueError: If a setting or the data is unsuitable; the message names the reason.
    """
    config = load_config(args.run)
    if args.attention_plot is not None and getattr(config, "attention", None) == "none":
        raise ValueError(f"--attention_plot: {args.run} is a model without attention")
    processor = load_processor(args.run)
    data = which_data(args, processor.source_names, remembered_syntax(processor.tokenizer))
    args.search(data.max_length)  # raises an error if the settings do not fit the data
    forms = {} if data.concatenate else forms_of(processor)
    sources = list(args.sources or data.sources)
    if missing := [name for name in data.sources if name not in sources]:
        raise ValueError(f"--sources {' '.join(sources)}: {missing[0]} is missing, which the model reads")

    def read(name: str) -> Split:
        split = read_split(data.path, name, sources, data.target, limit=args.limit, forms=forms)
        return check_files(split, name, data.sources, forms, data.unreadable, processor.source_processors)[0]

    splits = {data.test: read(data.test)}
    if args.rerank is not None and args.rerank_weight is None and data.dev != data.test:
        splits[data.dev] = read(data.dev)
    if data.reverse:
        splits = {name: _as_read(split, data) for name, split in splits.items()}
        data = replace(data, sources=data.model_sources, target=data.model_target, reverse=False)
    asked, rows = args.attention_plot, splits[data.test].rows
    plotted = [] if asked is None else rows_to_plot(asked, rows, data.sources)
    chosen = conditions(
        rows,
        data.sources,
        adversarial=args.adversarial,
        absent=args.absent,
        only=args.only,
        draws=args.draws,
        seed=args.seed,
    )
    return Prepared(args, processor, data, sources, splits, chosen, plotted)


def _as_read(split: Split, data: DataRecipe) -> Split:
    """Return a split with the columns of a reverse model."""
    rows = data.model_rows(split.rows)
    return replace(split, rows=rows, report={**split.report, "rows": len(rows)})


def which_data(args: Scoring, source_names: Sequence[str], syntax: str | None = None) -> DataRecipe:
    """Return the data section of the run's recipe, overridden by the given options.

    Without a recipe, the section is built from the options alone.
    """
    options: JsonObject = {
        "path": args.data,
        "target": args.target,
        "metrics": None if args.metrics is None else list(args.metrics),
        "test": args.split,
        "max_length": args.max_length,
    }
    options["unreadable"] = args.unreadable
    given: JsonObject = {key: value for key, value in options.items() if value is not None}
    recipe = Path(args.run) / RECIPE
    if (known := rows_of_run(args.run, args.data)) is not None:
        data = replace(known, **given)
    elif missing := [option for option in ("data", "target", "split") if getattr(args, option) is None]:
        raise ValueError(f"{args.run} has no {RECIPE}, so give --{', --'.join(missing)}")
    else:
        data = DataRecipe(sources=list(source_names), placeholders=syntax, **given)
    if data.model_sources != list(source_names):
        raise ValueError(f"{recipe} names the sources {data.model_sources}; the model's are {list(source_names)}")
    return data


def rows_to_plot(asked: Sequence[int], rows: Sequence[Row], sources: Sequence[str]) -> list[int]:
    """Choose the sentences whose attention is plotted.

    Args:
        asked: Indices of sentences, counted from 0; empty: the first `PLOTS` sentences among those that lack the fewest
            sources.
        rows: The sentences.
        sources: Names of the sources.

    Returns:
        Indices of sentences.

    Raises:
        ValueError: If there is no such sentence, or it has no source.
    """
    absent = [sum(row[name] is None for name in sources) for row in rows]
    for number in asked:
        if not 0 <= number < len(rows):
            raise ValueError(f"--attention_plot {number}: there are {len(rows)} sentences, numbered from 0")
        if absent[number] == len(sources):
            raise ValueError(f"--attention_plot {number}: this sentence has none of the sources {', '.join(sources)}")
    fullest = sorted((i for i in range(len(rows)) if absent[i] < len(sources)), key=lambda i: absent[i])
    return list(asked) or fullest[:PLOTS]


def start_report(prepared: Prepared, model: Model, command: str) -> JsonObject:
    """Return the report of a scoring before its first condition is decoded.

    It contains the conditions of an earlier report of the same models, data and references.

    Args:
        prepared: What is scored.
        model: The model, or the ensemble.
        command: The command line.

    Returns:
        The report.
    """
    args, data, processor = prepared.args, prepared.data, prepared.processor
    counts = prepared.splits[data.test].report
    read = data.model_rows(prepared.rows)
    references = json.dumps(prepared.references(data.test))
    identity = {
        **fingerprint(model, processor, read, prepared.search),
        "references_sha256": hashlib.sha256(references.encode()).hexdigest(),
    }
    before = read_json(prepared.path) if prepared.path.exists() else {}
    if before.get("fingerprint") != identity:
        # The old report is of other models, data or references. `decode` checks the old hypotheses separately.
        before = {"commands": [], "conditions": {}}
    return {
        "run": Path(args.run).name,
        **({"ensemble": [Path(name).name for name in args.ensemble]} if args.ensemble else {}),
        "split": data.test,
        **({"limit": args.limit} if args.limit is not None and counts["lines"] >= args.limit else {}),
        "sources": data.sources,
        "target": data.target,
        "data": counts,
        "unknown": find_unknown(processor, read, data.target),
        "search": {**prepared.search.described(), "batch_size": args.batch_size},
        "significance": "paired bootstrap (sacrebleu), 1000 resamples, each condition against `all`",
        "hardware": hardware(model.device),
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in PACKAGES},
        "commands": list(dict.fromkeys([*before["commands"], command])),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "fingerprint": identity,
        "conditions": before["conditions"],
    }


def measure_draw(
    prepared: Prepared, model: Model, name: str, rows: Sequence[Row], congruent: Sequence[str] | None
) -> tuple[list[str], JsonObject]:
    """Decode and measure one draw of a condition.

    Args:
        prepared: What is scored.
        model: The model, or the ensemble.
        name: Name of the draw, for its file and the progress bar.
        rows: The rows of the draw.
        congruent: The hypotheses of condition `all`; None if this is condition `all`.

    Returns:
        The hypotheses, and the figures.
    """
    args, data, processor = prepared.args, prepared.data, prepared.processor
    read, out = data.model_rows(rows), args.folder / f"{data.test}.{name}.txt"
    decoded = decode(model, processor, read, out, prepared.search, batch_size=args.batch_size, title=name)
    # References are masked with all sources present, so that the perplexity of each condition is of the same tokens.
    targets = [row[data.target] for row in data.model_rows(prepared.rows)]
    taught = [{**row, data.target: text} for row, text in zip(read, targets, strict=True)]
    known = cross_entropy(model, processor, taught, data.target, data.max_length, args.batch_size)
    figures = measure(decoded, prepared.rows, data.target, data.metrics, congruent)
    return decoded.best, {"hypotheses": out.name, **figures, PERPLEXITY: known}


def score_conditions(prepared: Prepared, model: Model, report: JsonObject) -> list[str]:
    """Decode and measure all requested conditions, and write the report after each one.

    Args:
        prepared: What is scored.
        model: The model, or the ensemble.
        report: The report, which receives the figures.

    Returns:
        The hypotheses of condition `all`.
    """
    args, data = prepared.args, prepared.data
    (_, (rows,)), *others = prepared.conditions.items()
    congruent, figures = measure_draw(prepared, model, "all", rows, None)
    references = prepared.references(data.test)
    text = "".join(f"{single_line(text)}\n" for text in references)
    (args.folder / f"{data.test}.reference.txt").write_text(text, encoding="utf-8", newline="\n")
    report["presence"] = measure_presence(congruent, references, prepared.rows, prepared.sources, data.metrics)
    if data.placeholders is not None:
        report["placeholders"] = count_whole(congruent, prepared.rows, data.sources, data.placeholders)
    _add_condition(prepared, report, "all", [figures])
    for condition, draws in others:
        names = [f"{condition}-{i}" if condition.startswith("wrong-") else condition for i in range(len(draws))]
        measured = [
            measure_draw(prepared, model, name, rows, congruent)[1] for name, rows in zip(names, draws, strict=True)
        ]
        _add_condition(prepared, report, condition, measured)
    return congruent


def _add_condition(prepared: Prepared, report: JsonObject, condition: str, draws: Sequence[JsonObject]) -> None:
    report["conditions"][condition] = {**summarize(draws), "seed": prepared.args.seed}
    write_json(prepared.path, report)


def measure_reranked(prepared: Prepared, model: Model, reverse: ReverseModel, congruent: Sequence[str]) -> JsonObject:
    """Rerank n-best lists and measure the result; without a weight, choose it on the dev split first.

    Args:
        prepared: What is scored.
        model: The forward model, or the ensemble.
        reverse: The reverse model.
        congruent: The hypotheses of condition `all`.

    Returns:
        The entry of the condition: its figures and, as `reranking`, the weight, how it was chosen and the oracle.
    """
    args, data, splits = prepared.args, prepared.data, prepared.splits
    search = replace(prepared.search, n_best=args.num_beams)
    found = {
        name: find_candidates(
            model,
            prepared.processor,
            reverse,
            split.rows,
            data.sources,
            data.model_rows(split.rows),
            args.folder / f"{name}.nbest.jsonl",
            search,
            batch_size=args.batch_size,
            title=f"{name}, {search.n_best} best",
        )
        for name, split in splits.items()
    }
    weight, curve, head = args.rerank_weight, None, data.metrics[0]
    if weight is None:
        weight, curve = choose_weight(found[data.dev][0], prepared.references(data.dev), head, splits[data.dev].rows)
    (candidates, seconds), references = found[data.test], prepared.references(data.test)
    texts, oracle = reranked_texts(candidates, weight), oracle_texts(candidates, references)
    out = args.folder / f"{data.test}.{RERANKED}.txt"
    out.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    decoded = Decoded([[Hypothesis(text, None)] for text in texts], seconds)
    figures = measure(decoded, prepared.rows, data.target, data.metrics, congruent)
    return {
        **summarize([{"hypotheses": out.name, **figures}]),
        "reranking": {
            "run": reverse.name,
            "n": search.n_best,
            "formula": FORMULA,
            "weight": weight,
            "metric": head,
            "chosen_on": None if curve is None else data.dev,
            "curve": curve,
            "oracle": {name: METRICS[name].measure(oracle, references, prepared.rows).score() for name in data.metrics},
        },
    }


def plot_attention(prepared: Prepared, model: Model, hypotheses: Sequence[str], title: str) -> list[Path]:
    """Plot the attention over the sources for the chosen lines.

    Args:
        prepared: What is scored.
        model: The model.
        hypotheses: Its hypotheses of all lines.
        title: Title of the plots.

    Returns:
        Paths of the plots.
    """
    data = prepared.data
    rows = data.model_rows([{**prepared.rows[i], data.target: hypotheses[i]} for i in prepared.plotted])
    texts = [row[data.target] or "" for row in rows]  # these are masked if the model was trained on masked texts
    measured = measure_attention(model, prepared.processor, rows, texts, prepared.search.max_length)
    return write_plots(prepared.args.folder, data.test, prepared.plotted, measured, f"{title}: {data.test}")


def score(args: Scoring, command: str) -> JsonObject:
    """Decode and score every condition, writing the report after each one.

    Nothing is written until all settings and the data are checked and the models are loaded.

    Args:
        args: Options of the scoring.
        command: The command line, which is recorded in the report.

    Returns:
        The report as it was written; with attention plots, also their paths as `plots`.

    Raises:
        ValueError: If a setting, the data or the model is unsuitable; the message names the reason.
    """
    find_device(args.device)
    check_folder(args.folder)
    prepared = prepare(args)
    data = prepared.data
    reverse = None if args.rerank is None else load_reverse(args.rerank, data.sources, data.target, args.device)
    model = load_members(args.run, args.ensemble, prepared.processor, args.device, args.optimize)
    report = start_report(prepared, model, command)
    hypotheses = score_conditions(prepared, model, report)
    if reverse is not None:
        report["conditions"][RERANKED] = measure_reranked(prepared, model, reverse, hypotheses)
        write_json(prepared.path, report)
    if prepared.plotted:
        return {**report, "plots": [str(path) for path in plot_attention(prepared, model, hypotheses, report["run"])]}
    return report
