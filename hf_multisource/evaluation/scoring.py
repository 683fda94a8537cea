"""Decode and score a test set, unchanged or with a source shuffled, absent or alone.

Conditions in which a test set can be decoded:

    all          every source as it is
    wrong-X      source X shuffled within the test set so that no sentence keeps its own (adversarial); several draws
    absent-X     source X removed from every sentence
    only-X       every source except X removed
    reranked     every source as it is, the n-best lists reranked by a reverse model (see `reranking`)

The output folder receives `<split>.json` with every score, and `<split>.<condition>.txt` with the hypotheses, one per
line. The hypotheses are written while they are decoded, so that a later call continues an interrupted one and decodes
no row twice. The n-best lists for reranking are written to `<split>.nbest.jsonl`. Attention plots are written to
`<split>.attention-<row>.png`, with the plotted numbers in a `.json` file beside each plot.
"""

from __future__ import annotations

import hashlib
import json
import statistics
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
from hf_multisource.data.placeholders import broken_placeholders
from hf_multisource.data.rows import Row, Split, check_files, read_split
from hf_multisource.evaluation.decoding import (
    Decoded,
    Hypothesis,
    Search,
    decode,
    fingerprint,
)
from hf_multisource.evaluation.ensembles import load_members
from hf_multisource.evaluation.likelihood import cross_entropy
from hf_multisource.evaluation.perturbations import make_absent, make_wrong
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
from hf_multisource.evaluation.tables import format_table, score_cells
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.metrics.bootstrap import measure_metric, paired_bootstrap
from hf_multisource.metrics.table import METRICS, metrics_of
from hf_multisource.recipes.pretrained import load_config, load_processor
from hf_multisource.recipes.provenance import find_device, hardware
from hf_multisource.recipes.recipe import UNREADABLE, DataRecipe
from hf_multisource.recipes.run_folder import rows_of_run
from hf_multisource.recipes.shipped import RECIPE
from hf_multisource.recipes.tokenization import find_unknown, unknown_note
from hf_multisource.source_kinds import is_absent

PACKAGES = ("hf-multisource", "torch", "transformers", "sacrebleu")
PERPLEXITY = "perplexity"
RERANKED = "reranked"
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


def conditions(rows: Sequence[Row], sources: Sequence[str], args: Scoring) -> dict[str, list[list[Row]]]:
    """Return the rows of every requested condition; conditions with random shuffles have several draws."""
    chosen = {"all": [list(rows)]}
    for source in sources:
        if args.adversarial:
            chosen[f"wrong-{source}"] = [make_wrong(rows, source, args.seed, draw) for draw in range(args.draws)]
        if args.absent and len(sources) > 1:  # without its only source, a model has no input
            chosen[f"absent-{source}"] = [make_absent(rows, [source])]
        if args.only and len(sources) > 1:
            chosen[f"only-{source}"] = [make_absent(rows, [other for other in sources if other != source])]
    return chosen


def measure(
    decoded: Decoded, rows: Sequence[Row], target: str, metrics: Sequence[str], congruent: Sequence[str] | None
) -> JsonObject:
    """Score the hypotheses of one decoding.

    Args:
        decoded: The hypotheses.
        rows: The unperturbed sentences, with references and all sources.
        target: Name of the column of the references.
        metrics: Names of the metrics.
        congruent: The hypotheses of condition `all` for the comparison; None if `decoded` is condition `all`.

    Returns:
        Scores, significance of the difference to condition `all`, and decoding speed.
    """
    references = [row[target] or "" for row in rows]
    figures: JsonObject = {
        "seconds": decoded.seconds,
        "sentences_per_second": round(len(references) / decoded.seconds, 2) if decoded.seconds else None,
    }
    for name in metrics:
        figures[name] = measure_metric(name, decoded.best, references, rows)
    if congruent is not None:
        compared = paired_bootstrap(decoded.best, congruent, references, rows, metrics=metrics)
        for name, comparison in compared.items():
            figures[name].update(comparison)
    return figures


def count_whole(hypotheses: Sequence[str], rows: Sequence[Row], sources: Sequence[str], syntax: str) -> JsonObject:
    """Count the hypotheses in which all placeholders and markup are intact.

    Args:
        hypotheses: One per row; empty ones are not counted, because no text is written for their rows.
        rows: The rows.
        sources: Names of the sources that were read. The hypothesis is compared with the first source that is present.
        syntax: Syntax of the placeholders, see `broken_placeholders`.

    Returns:
        `syntax`; `rows`; `written`, the number of nonempty hypotheses; and `whole`, the number of intact ones among
        them.
    """
    written = [(text, row) for text, row in zip(hypotheses, rows, strict=True) if text.strip()]
    firsts = (next((str(row[name]) for name in sources if not is_absent(row[name])), "") for _, row in written)
    whole = sum(not broken_placeholders(first, text, syntax) for first, (text, _) in zip(firsts, written, strict=True))
    return {"syntax": syntax, "rows": len(rows), "written": len(written), "whole": whole}


def summarize(draws: Sequence[JsonObject]) -> JsonObject:
    """Return the mean score over the draws and its standard deviation (None for one draw), with the draws."""
    summary: JsonObject = {}
    for name in metrics_of(draws[0]):
        scores = [draw[name]["score"] for draw in draws]
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        summary[name] = {"score": statistics.fmean(scores), "draws_sd": deviation}
    return {**summary, "draws": list(draws)}


def table(scored: JsonObject) -> str:
    """Format the scores of all conditions as a table."""
    lines = []
    metrics = metrics_of(scored["all"])
    head = metrics[0]
    for condition, entry in scored.items():
        line = [condition]
        for name in metrics:
            if name not in entry:  # scored earlier with other metrics
                line += ["", ""]
                continue
            deviation = entry[name]["draws_sd"]
            _, spread = score_cells(name, entry["draws"][0][name])
            if deviation is not None:
                spread = f"± {METRICS[name].show(deviation, more=1)} over {len(entry['draws'])} draws"
            line += [METRICS[name].show(entry[name]["score"], more=1), spread]
        perplexities = [draw.get(PERPLEXITY, {}).get("score") for draw in entry["draws"]]  # older reports lack it
        first = entry["draws"][0]
        tokens, whole = (one.get(PERPLEXITY, {}).get("tokens") for one in (first, scored["all"]["draws"][0]))
        some = "" if tokens == whole else f" ({tokens} of {whole} tokens)"  # rows that lost all sources are left out
        line.append("" if None in perplexities else f"{statistics.fmean(perplexities):.2f}{some}")
        worst = max((draw.get(head, {}).get("p_value", 0.0) for draw in entry["draws"]), default=0.0)
        line += ["" if condition == "all" else f"{worst:.3f}", str(first["sentences_per_second"])]
        lines.append(line)
    columns = [column for name in metrics for column in (METRICS[name].label, "95 %")]
    return format_table(["condition", *columns, "perplexity", f"p to all ({METRICS[head].label})", "sent/s"], lines)


def measure_reranked(
    args: Scoring,
    data: DataRecipe,
    splits: dict[str, Split],
    model: Model,
    processor: MultiSourceProcessor,
    reverse: ReverseModel,
    congruent: Sequence[str],
) -> JsonObject:
    """Rerank n-best lists and measure the result; without a weight, choose it on the dev split first.

    Args:
        args: Options of the scoring.
        data: The data section.
        splits: The test split, and the dev split if the weight is to be chosen, by name.
        model: The forward model.
        processor: Processor of the forward model.
        reverse: The reverse model.
        congruent: The hypotheses of condition `all`.

    Returns:
        The entry of the condition: its figures and, as `reranking`, the weight, how it was chosen and the oracle.
    """
    search = replace(args.search(data.max_length), n_best=args.num_beams)
    found = {
        name: find_candidates(
            model,
            processor,
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
    references = {name: [row[data.target] or "" for row in split.rows] for name, split in splits.items()}
    weight, curve, head = args.rerank_weight, None, data.metrics[0]
    if weight is None:
        weight, curve = choose_weight(found[data.dev][0], references[data.dev], head, splits[data.dev].rows)
    (candidates, seconds), rows = found[data.test], splits[data.test].rows
    texts, oracle = reranked_texts(candidates, weight), oracle_texts(candidates, references[data.test])
    out = args.folder / f"{data.test}.{RERANKED}.txt"
    out.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    decoded = Decoded([[Hypothesis(text, None)] for text in texts], seconds)
    figures = {"hypotheses": out.name, **measure(decoded, rows, data.target, data.metrics, congruent)}
    return {
        **summarize([figures]),
        "reranking": {
            "run": reverse.name,
            "n": search.n_best,
            "formula": FORMULA,
            "weight": weight,
            "metric": head,
            "chosen_on": None if curve is None else data.dev,
            "curve": curve,
            "oracle": {
                name: METRICS[name].measure(oracle, references[data.test], rows).score() for name in data.metrics
            },
        },
    }


def mean_scores(reports: Sequence[JsonObject]) -> str:
    """Return the mean scores of several seeds with all sources, and their standard deviations.

    Args:
        reports: Return value of `score` for each seed; at least two.

    Returns:
        Such as "exact match 37.21 ± 0.42, edit distance 1.2312 ± 0.0210".
    """
    entries = [report["conditions"]["all"] for report in reports]
    parts = []
    for name in metrics_of(entries[0]):
        show, scores = METRICS[name].show, [entry[name]["score"] for entry in entries]
        mean, deviation = statistics.fmean(scores), statistics.stdev(scores)
        parts.append(f"{METRICS[name].label} {show(mean, more=1)} ± {show(deviation, more=1)}")
    return ", ".join(parts)


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


def left_out(report: JsonObject) -> str:
    """Describe which lines of the test split were not scored, and which symbols are unknown.

    Args:
        report: Return value of `score`.

    Returns:
        One sentence per line; empty if every line was scored, all files were readable and all symbols are known.
    """
    counts, split = report["data"], report["split"]
    reasons = {"dropped_empty_target": "have no reference", "dropped_no_source": "have no source"}
    lines = [
        f"{counts[key]} of the {counts['lines']} lines of split {split!r} are not scored: they {reason}"
        for key, reason in reasons.items()
        if counts[key]
    ]
    for name in report["sources"]:
        if count := counts.get(f"unreadable.{name}"):
            lines.append(f"{count} files of source {name!r} cannot be read and count as absent")
    if report["unknown"]:
        lines.append(unknown_note(split, report["unknown"]))
    return "\n".join(lines)


def score(args: Scoring, command: str) -> JsonObject:
    """Decode and score every condition, writing the report after each one.

    Nothing is written until all settings and the data are checked and the model is loaded.

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
    config = load_config(args.run)
    if args.attention_plot is not None and getattr(config, "attention", None) == "none":
        raise ValueError(f"--attention_plot: {args.run} is a model without attention")
    processor = load_processor(args.run)
    data = which_data(args, processor.source_names, remembered_syntax(processor.tokenizer))
    search = args.search(data.max_length)
    forms = {} if data.concatenate else forms_of(processor)

    sources = list(args.sources or data.sources)
    if missing := [name for name in data.sources if name not in sources]:
        raise ValueError(f"--sources {' '.join(sources)}: {missing[0]} is missing, which the model reads")

    def read(name: str) -> Split:
        split = read_split(data.path, name, sources, data.target, limit=args.limit, forms=forms)
        return check_files(split, name, data.sources, forms, data.unreadable, processor.source_processors)[0]

    split = read(data.test)
    splits = {data.test: split}
    if args.rerank is not None and args.rerank_weight is None and data.dev != data.test:
        splits[data.dev] = read(data.dev)
    if data.reverse:  # from here on, rows have the columns of the reverse model
        rows = data.model_rows(split.rows)
        split = replace(split, rows=rows, report={**split.report, "rows": len(rows)})
        data = replace(data, sources=data.model_sources, target=data.model_target, reverse=False)
    plotted = [] if args.attention_plot is None else rows_to_plot(args.attention_plot, split.rows, data.sources)
    chosen_rows = conditions(split.rows, data.sources, args)
    path = args.folder / f"{data.test}.json"
    before = read_json(path) if path.exists() else {}
    reverse = None if args.rerank is None else load_reverse(args.rerank, data.sources, data.target, args.device)
    model = load_members(args.run, args.ensemble, processor, args.device, args.optimize)
    references = [row[data.target] or "" for row in split.rows]
    identity = {
        **fingerprint(model, processor, data.model_rows(split.rows), search),
        "references_sha256": hashlib.sha256(json.dumps(references).encode()).hexdigest(),
    }
    if before.get("fingerprint") != identity:
        # The old report is of other models, data or references. `decode` checks the old hypotheses separately.
        before = {"commands": [], "conditions": {}}
    report: JsonObject = {
        "run": Path(args.run).name,
        **({"ensemble": [Path(name).name for name in args.ensemble]} if args.ensemble else {}),
        "split": data.test,
        **({"limit": args.limit} if args.limit is not None and split.report["lines"] >= args.limit else {}),
        "sources": data.sources,
        "target": data.target,
        "data": split.report,
        "unknown": find_unknown(processor, data.model_rows(split.rows), data.target),
        "search": {**search.described(), "batch_size": args.batch_size},
        "significance": "paired bootstrap (sacrebleu), 1000 resamples, each condition against `all`",
        "hardware": hardware(model.device),
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in PACKAGES},
        "commands": list(dict.fromkeys([*before["commands"], command])),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "fingerprint": identity,
        "conditions": before["conditions"],
    }
    congruent: list[str] | None = None
    targets = [row[data.target] for row in data.model_rows(split.rows)]  # their mask tokens are those of all sources
    for condition, draws in chosen_rows.items():
        measured = []
        for i, rows in enumerate(draws):
            name = f"{condition}-{i}" if condition.startswith("wrong-") else condition
            out = args.folder / f"{data.test}.{name}.txt"
            decoded = decode(
                model, processor, data.model_rows(rows), out, search, batch_size=args.batch_size, title=name
            )
            taught = [{**row, data.target: text} for row, text in zip(data.model_rows(rows), targets, strict=True)]
            known = cross_entropy(model, processor, taught, data.target, data.max_length, args.batch_size)
            measured.append(
                {
                    "hypotheses": out.name,
                    **measure(decoded, split.rows, data.target, data.metrics, congruent),
                    PERPLEXITY: known,
                }
            )
            if congruent is None:
                congruent = decoded.best
                text = "".join(f"{single_line(text)}\n" for text in references)
                (args.folder / f"{data.test}.reference.txt").write_text(text, encoding="utf-8", newline="\n")
                report["presence"] = measure_presence(congruent, references, split.rows, sources, data.metrics)
                if data.placeholders is not None:
                    report["placeholders"] = count_whole(congruent, split.rows, data.sources, data.placeholders)
        report["conditions"][condition] = {**summarize(measured), "seed": args.seed}
        write_json(path, report)
    if reverse is not None and congruent is not None:
        entry = measure_reranked(args, data, splits, model, processor, reverse, congruent)
        report["conditions"][RERANKED] = entry
        write_json(path, report)
    if plotted and congruent is not None:
        chosen = data.model_rows([{**split.rows[i], data.target: congruent[i]} for i in plotted])
        texts = [row[data.target] or "" for row in chosen]  # these are masked if the model was trained on masked texts
        measured = measure_attention(model, processor, chosen, texts, search.max_length)
        plots = write_plots(args.folder, data.test, plotted, measured, f"{report['run']}: {data.test}")
        return {**report, "plots": [str(plot) for plot in plots]}
    return report
