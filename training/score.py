"""Decode a test set and score it: as it is, and with a source wrong, absent, or alone.

    python training/score.py RUN [--adversarial] [--absent] [--only] [--draws 5] [--num_beams 10]
                                 [--length_penalty 1.0 | --length_normalization 1.0] [--attention-plot [ROW ...]]
    python training/score.py MODEL --data FOLDER --target cs --split test --out FOLDER

RUN is a run folder: data, target and test split come from its `recipe.yaml`, where no option says otherwise. MODEL is
any model folder or Hub id. The conditions:

    all          every source as it is
    wrong-X      X shuffled within the test set so that no sentence keeps its own (adversarial); --draws times
    absent-X     X taken away from every sentence
    only-X       every other source taken away

Under RUN/scores (or --out): `<split>.json` with every figure, the perplexity of the references among them;
`<split>.<condition>.txt` with the hypotheses, one a line, written as they come: called again, a run that was cut short
goes on, and what is decoded is not decoded again.
With --attention-plot, `<split>.attention-<row>.png` and its numbers, `.json`; `plots.py` draws it anew.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from data import Row, check_files, read_split
from decoding import Decoded, Search, add_search_options, decode, fingerprint, load_config, load_model, write_json
from likelihood import cross_entropy
from media import forms_of, rates_of
from metrics import METRICS, load_metric, paired_bootstrap
from metrics.adversarial import make_absent, make_wrong
from plots import INSTALL, measure_attention, write_plots
from recipe import UNREADABLE, DataRecipe, load_recipe
from results import format_table

PACKAGES = ("hf-multisource", "torch", "transformers", "evaluate", "sacrebleu")
PERPLEXITY = "perplexity"
PLOTS = 3  # sentences, where none is named


def conditions(rows: Sequence[Row], sources: Sequence[str], args: argparse.Namespace) -> dict[str, list[list[Row]]]:
    """The rows of every condition that was asked for; several draws where chance is in it."""
    chosen = {"all": [list(rows)]}
    for source in sources:
        if args.adversarial:
            chosen[f"wrong-{source}"] = [make_wrong(rows, source, args.seed, draw) for draw in range(args.draws)]
        if args.absent and len(sources) > 1:  # with one source nothing would be left to translate
            chosen[f"absent-{source}"] = [make_absent(rows, [source])]
        if args.only and len(sources) > 1:
            chosen[f"only-{source}"] = [make_absent(rows, [other for other in sources if other != source])]
    return chosen


def measure(decoded: Decoded, references: Sequence[str], congruent: Sequence[str] | None) -> dict[str, Any]:
    """Every figure of one decoding; `congruent`: the hypotheses of condition `all`, to compare with."""
    figures: dict[str, Any] = {
        "seconds": decoded.seconds,
        "sentences_per_second": round(len(references) / decoded.seconds, 2) if decoded.seconds else None,
    }
    for name in METRICS:
        figures[name] = load_metric(name).compute(predictions=decoded.best, references=list(references))
    if congruent is not None:
        for name, comparison in paired_bootstrap(decoded.best, congruent, references).items():
            figures[name].update(comparison)
    return figures


def summarise(draws: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean score over draws and its standard deviation (None for one draw), with the draws themselves."""
    summary: dict[str, Any] = {}
    for name in METRICS:
        scores = [draw[name]["score"] for draw in draws]
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        summary[name] = {"score": statistics.fmean(scores), "draws_sd": deviation}
    return {**summary, "draws": list(draws)}


def table(scored: dict[str, Any]) -> str:
    """The conditions as a table to read."""
    lines = []
    for condition, entry in scored.items():
        line = [condition]
        for name in METRICS:
            first, deviation = entry["draws"][0][name], entry[name]["draws_sd"]
            spread = f"± {deviation:.2f} over {len(entry['draws'])} draws" if deviation is not None else ""
            line += [f"{entry[name]['score']:.2f}", spread or f"[{first['ci_low']:.2f}, {first['ci_high']:.2f}]"]
        perplexities = [draw.get(PERPLEXITY, {}).get("score") for draw in entry["draws"]]  # not in older reports
        line.append("" if None in perplexities else f"{statistics.fmean(perplexities):.2f}")
        first = entry["draws"][0]
        worst = max((draw["bleu"].get("p_value", 0.0) for draw in entry["draws"]), default=0.0)
        line += ["" if condition == "all" else f"{worst:.3f}", str(first["sentences_per_second"])]
        lines.append(line)
    return format_table(["condition", "BLEU", "95 %", "chrF", "95 %", "perplexity", "p to all (BLEU)", "sent/s"], lines)


def hardware(device: torch.device | str | None = None) -> str:
    """A device in words; None: the one that is used where nothing else is said."""
    if torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line and fill in from the recipe what it does not say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("run", help="run folder, or a model folder or Hub id with --data, --target, --split")
    parser.add_argument("--data", help="folder or Hub id of the text; default: the recipe's")
    parser.add_argument("--split", help="name of the test split; default: the recipe's")
    parser.add_argument("--target", help="name of the target column; default: the recipe's")
    parser.add_argument("--out", type=Path, help="folder to write to; default: RUN/scores")
    parser.add_argument("--adversarial", "--wrong", action="store_true", help="each source wrong")
    parser.add_argument("--draws", type=int, default=5, help="shuffles of each wrong source (default: %(default)s)")
    parser.add_argument("--absent", action="store_true", help="each source absent")
    parser.add_argument("--only", action="store_true", help="each source alone")
    plot = f"plot the attention of sentences, numbered from 0; none named: the first {PLOTS} with every source"
    parser.add_argument("--attention-plot", type=int, nargs="*", metavar="ROW", help=plot)
    add_search_options(parser)
    parser.add_argument("--max_length", type=int, help="longest source, in tokens; default: the recipe's, or else 128")
    parser.add_argument("--max_new_tokens", type=int, help="longest hypothesis; default: as --max_length")
    parser.add_argument("--batch_size", type=int, default=64, help="sentences (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="look at the first N lines only")
    text = "what a picture or recording that cannot be read is; default: the recipe's, or else error"
    parser.add_argument("--unreadable", choices=UNREADABLE, help=text)
    parser.add_argument("--seed", type=int, default=0, help="of the shuffles (default: %(default)s)")
    parser.add_argument("--device", help="torch device; default: the GPU if there is one")
    args = parser.parse_args(argv)
    if args.draws < 1:
        parser.error(f"--draws is {args.draws}; at least 1")
    if args.attention_plot is not None and find_spec("matplotlib") is None:
        parser.error(INSTALL)
    if args.out is None:
        if not Path(args.run).is_dir():
            parser.error(f"{args.run} is not a folder: say with --out where to write")
        args.out = Path(args.run) / "scores"
    return args


def which_data(args: argparse.Namespace, source_names: Sequence[str]) -> DataRecipe:
    """The run's data section with what the command line changes; without a recipe, the command line says all."""
    options = {"path": args.data, "target": args.target, "test": args.split, "max_length": args.max_length}
    options["unreadable"] = args.unreadable
    given = {key: value for key, value in options.items() if value is not None}
    recipe = Path(args.run) / "recipe.yaml"
    if recipe.exists():
        data = replace(load_recipe(recipe).data, **given)
    elif missing := [option for option in ("data", "target", "split") if getattr(args, option) is None]:
        raise ValueError(f"{args.run} has no recipe.yaml that would say it: give --{', --'.join(missing)}")
    else:
        data = DataRecipe(sources=list(source_names), **given)
    if data.model_sources != list(source_names):
        raise ValueError(f"{recipe} names the sources {data.model_sources}; the model's are {list(source_names)}")
    return data


def rows_to_plot(asked: Sequence[int], rows: Sequence[Row], sources: Sequence[str]) -> list[int]:
    """Numbers of the sentences to plot: those asked for, or the first few of those that lack the fewest sources.

    Raises:
        ValueError: If there is no such sentence.
    """
    for number in asked:
        if not 0 <= number < len(rows):
            raise ValueError(f"--attention-plot {number}: there are {len(rows)} sentences, numbered from 0")
    fullest = sorted(range(len(rows)), key=lambda i: sum(rows[i][name] is None for name in sources))
    return list(asked) or fullest[:PLOTS]


def score(args: argparse.Namespace, command: str) -> dict[str, Any]:
    """Decode and measure every condition, writing as it goes; returns the report."""
    if args.attention_plot is not None and getattr(load_config(args.run), "attention", None) == "none":
        raise ValueError(f"--attention-plot: {args.run} is a model without attention")
    model, processor = load_model(args.run, args.device, args.optimize)
    data = which_data(args, processor.source_names)
    forms = {} if data.concatenate else forms_of(processor)
    split = read_split(data.path, data.test, data.sources, data.target, limit=args.limit, forms=forms)
    split, _ = check_files(split, data.test, data.sources, forms, data.unreadable, rates_of(processor))
    references = [row[data.target] or "" for row in split.rows]
    search = Search(
        num_beams=args.num_beams,
        length_penalty=args.length_penalty,
        length_normalization=args.length_normalization,
        max_new_tokens=args.max_new_tokens or data.max_length,
        max_length=data.max_length,
        optimize=args.optimize,
    )
    identity = fingerprint(model, processor, data.model_rows(split.rows), search)
    path = args.out / f"{data.test}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if before.get("fingerprint") != identity:
        before = {"commands": [], "conditions": {}}  # about something else; what was decoded is checked by `decode`
    report: dict[str, Any] = {
        "run": Path(args.run).name,
        "split": data.test,
        "sources": data.sources,
        "target": data.target,
        "data": split.report,
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
    plotted = [] if args.attention_plot is None else rows_to_plot(args.attention_plot, split.rows, data.sources)
    congruent: list[str] | None = None
    for condition, draws in conditions(split.rows, data.sources, args).items():
        measured = []
        for i, rows in enumerate(draws):
            name = f"{condition}-{i}" if condition.startswith("wrong-") else condition
            out = args.out / f"{data.test}.{name}.txt"
            decoded = decode(
                model, processor, data.model_rows(rows), out, search, batch_size=args.batch_size, title=name
            )
            known = cross_entropy(
                model, processor, data.model_rows(rows), data.target, data.max_length, args.batch_size
            )
            measured.append({"hypotheses": out.name, **measure(decoded, references, congruent), PERPLEXITY: known})
            if congruent is None:
                congruent = decoded.best
                text = "".join(f"{line}\n" for line in references)
                (args.out / f"{data.test}.reference.txt").write_text(text, encoding="utf-8", newline="\n")
        report["conditions"][condition] = {**summarise(measured), "seed": args.seed}
        write_json(path, report)
    if plotted and congruent is not None:
        chosen = data.model_rows([split.rows[i] for i in plotted])
        measured = measure_attention(model, processor, chosen, [congruent[i] for i in plotted], search.max_length)
        write_plots(args.out, data.test, plotted, measured, f"{report['run']}: {data.test}")
    return report


def main(argv: Sequence[str] | None = None) -> None:
    """Score; see the module's docstring."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        report = score(parse(argv), shlex.join(["python", "training/score.py", *argv]))
    except (OSError, ValueError) as error:
        raise SystemExit(f"score.py: {error}") from error
    print(table(report["conditions"]))


if __name__ == "__main__":
    main()
