"""Write the page about translation from Kazakh and Russian to English from scores of training/graphs/kk_ru_en.yaml.

    hf-multisource graph training/graphs/kk_ru_en.yaml
    python training/reports/kk_ru_en.py keep runs/kk_ru_en
    python training/reports/kk_ru_en.py

`keep` reads the finished score steps of the graph and writes scores.json (scores, comparisons, learning curves, times,
hardware) and hypotheses.zip into docs/results/kk_ru_en/kept. Without `keep`, the command writes the page,
docs/results/kk_ru_en.md, from scores.json and from docs/results/kk_ru_en/notes.md, whose first paragraph opens the
page.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_multisource.data.files import read_lines, write_json
from hf_multisource.evaluation.kept_cells import write_archive
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
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.run_folder import SUMMARY

PAGE = "kk_ru_en"
GRAPH = Path(__file__).resolve().parents[1] / "graphs" / "kk_ru_en.yaml"
KEPT = Path(PAGE, "kept")  # one folder deeper than rows of models, for which cards are written
SCORES, HYPOTHESES = "scores.json", "hypotheses.zip"
SHOWN = ("chrf", "bleu")  # chrF first, because BLEU counts only few matching 4-grams at such low scores
SAMPLES = 1000  # number of samples of the bootstrap
TEST, NEWS = "test", "newstest2019"
SYSTEMS = {
    "kk": "Kazakh alone",
    "ru": "Russian alone",
    "kk-ru": "Kazakh and Russian",
    "kk-made": "Kazakh and synthetic Russian",
}
# Score step -> scored split and system.
STEPS = {
    **{f"score-{system}": (TEST, system) for system in SYSTEMS},
    "news-kk": (NEWS, "kk"),
    "news-kk-made": (NEWS, "kk-made"),
}
# Compared score steps: system and baseline.
PAIRS = (
    ("score-kk-ru", "score-kk"),
    ("score-kk-ru", "score-ru"),
    ("score-kk-made", "score-kk"),
    ("news-kk-made", "news-kk"),
)
CHANGED = {
    "absent-kk": "Kazakh absent",
    "wrong-kk": "Kazakh wrong",
    "absent-ru": "Russian absent",
    "wrong-ru": "Russian wrong",
}


def keep(run: Path, place: Path) -> list[Path]:
    """Copy the scores, learning curves and hypotheses of a run of the graph into the results folder.

    Args:
        run: The folder `work` of the graph.
        place: Folder to write to.

    Returns:
        The files that were written.

    Raises:
        FileNotFoundError: If no step has been scored yet.
        ValueError: If two steps of one split have different references.
    """
    kept: JsonObject = {"rows": {}, "comparisons": {}, "trainings": {}, "signatures": {}}
    files: dict[str, bytes] = {}
    references: dict[str, list[str]] = {}
    texts: dict[str, list[str]] = {}
    for step, (split, _) in STEPS.items():
        if not (path := run / step / f"{split}.json").exists():
            continue
        report = read_json(path)
        own = read_lines(path.with_suffix(".reference.txt"))
        if references.setdefault(split, own) != own:
            raise ValueError(f"{run / step} has other references than the steps before it")
        kept["rows"][step] = {
            name: {metric: round(entry[metric]["score"], 4) for metric in SHOWN}
            for name, entry in report["conditions"].items()
        }
        first = report["conditions"]["all"]["draws"][0]
        kept["signatures"] |= {metric: first[metric]["signature"] for metric in SHOWN}
        kept["decoding"] = {key: report[key] for key in ("hardware", "threads", "search", "versions", "date")}
        texts[step] = read_lines(run / step / first["hypotheses"])
        files[f"{step}.txt"] = (run / step / first["hypotheses"]).read_bytes()
    if not texts:
        raise FileNotFoundError(f"{run} has no scores; `hf-multisource graph {GRAPH.name}` writes them")
    for one, other in PAIRS:
        if one in texts and other in texts:
            judged = references[STEPS[one][0]]
            kept["comparisons"][f"{one} {other}"] = pooled_bootstrap(
                [texts[one]], [texts[other]], judged, metrics=SHOWN, n_samples=SAMPLES
            )
    for path in sorted(run.glob(f"*/{SUMMARY}")):
        facts = training_facts(path.parent, SHOWN[0])
        kept["trainings"][path.parent.name] = {key: facts[key] for key in facts if key != "command"}
    write_archive(place / HYPOTHESES, files)
    write_json(place / SCORES, kept)
    return [place / SCORES, place / HYPOTHESES]


def cells(scores: Mapping[str, float] | None) -> list[str]:
    """Return the cells of a row's scores in the order of `SHOWN`; the cells are empty if there are no scores."""
    return [METRICS[metric].show(scores[metric]) if scores else "" for metric in SHOWN]


def render_rows(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of the four systems on both test sets."""
    header = ["sources", *(f"{METRICS[metric].label}, {split}" for split in (TEST, NEWS) for metric in SHOWN)]
    lines = []
    for system, label in SYSTEMS.items():
        steps = {split: step for step, (split, own) in STEPS.items() if own == system}
        lines.append([label, *(cell for split in (TEST, NEWS) for cell in cells(_all(rows, steps.get(split))))])
    return format_table(header, lines)


def _all(rows: Mapping[str, Mapping[str, Any]], step: str | None) -> Mapping[str, float] | None:
    return rows[step]["all"] if step is not None and step in rows else None


def render_comparisons(compared: Mapping[str, Any]) -> str:
    """Return the table of differences between systems."""
    header = ["difference", "split", *(METRICS[metric].label for metric in SHOWN), f"p ({METRICS[SHOWN[0]].label})"]
    lines = []
    for pair, figures in compared.items():
        one, other = pair.split(" ")
        shown = [
            f"{metric.show(own['difference'], sign=True)} [{metric.show(own['difference_low'], sign=True)}, "
            f"{metric.show(own['difference_high'], sign=True)}]"
            for metric, own in ((METRICS[name], figures[name]) for name in SHOWN)
        ]
        label = f"{SYSTEMS[STEPS[one][1]]} minus {SYSTEMS[STEPS[other][1]]}"
        lines.append([label, STEPS[one][0], *shown, f"{figures[SHOWN[0]]['p_value']:.3f}"])
    return format_table(header, lines)


def render_changed(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of the two systems with two sources, scored with one source absent or wrong."""
    both = {step: rows[step] for step in ("score-kk-ru", "score-kk-made") if step in rows}
    header = ["sources", "as they are", *CHANGED.values()]
    show = METRICS[SHOWN[0]].show
    lines = [
        [SYSTEMS[STEPS[step][1]], *(show(row[name][SHOWN[0]]) if name in row else "" for name in ("all", *CHANGED))]
        for step, row in both.items()
    ]
    return format_table(header, lines)


def commands() -> str:
    """Return the commands in the comment of the graph's file."""
    lines = GRAPH.read_text(encoding="utf-8").splitlines()
    return "\n".join(line.removeprefix("#   ") for line in lines if line.startswith("#   "))


def render(kept: JsonObject, notes: str) -> str:
    """Return the page.

    Args:
        kept: Content of the file scores.json that `keep` writes.
        notes: Explanation of the results in Markdown; the first paragraph opens the page.

    Returns:
        Markdown.
    """
    opening, rest = split_notes(notes)
    decoding, trained = kept["decoding"], kept["trainings"]
    search, head = decoding["search"], METRICS[SHOWN[0]]
    versions = ", ".join(f"{name} {number}" for name, number in decoding["versions"].items())
    machines = ", ".join(dict.fromkeys(f"{one['hardware']}, {one['threads']} threads" for one in trained.values()))
    curves = learning_curves(
        [{"name": name, "curve": one["curve"]} for name, one in trained.items()], METRICS[SHOWN[0]]
    )
    facts = [
        [
            name,
            f"{one['updates']:,}",
            f"{one['minutes']:.1f}",
            f"{one['parameters'] / 1e6:.1f} M",
            "yes" if one["finished"] else "no",
        ]
        for name, one in trained.items()
    ]
    signatures = "".join(f"- {METRICS[name].label}: `{kept['signatures'][name]}`\n" for name in SHOWN)
    return f"""\
<!-- Made by `python training/reports/{PAGE}.py` from what lies in {PAGE}/. Do not edit. -->
# Kazakh and Russian into English: a demonstration

{opening}

The languages of Littell et al. 2019, with little text: the user interface of LibreOffice and the help pages of GNOME.
The systems show that the pipeline runs on a real scarce language. Their English is poor, and no claim of the paper can
be tested with them; the [replica](nrc.md) is for that. Each system has one seed. The synthetic Russian of each half of
the training text was written by a model that was trained on the other half, and that of the test sets by one of these
two models. *{NEWS}* is the WMT 2019 test set of Kazakh news. Nothing was chosen on a test set.

{render_rows(kept["rows"])}

{render_comparisons(kept["comparisons"])}

Brackets: 95 % interval of a paired bootstrap over the sentences.

## A source absent or wrong

{head.label} on the test set. *absent*: the source is taken away from every sentence. *wrong*: it is shuffled so that
no sentence keeps its own.

{render_changed(kept["rows"])}

{rest}

## Trainings

A training has not leveled off while {unfinished_rule(head)}.

{format_table(["model", "updates", "minutes", "parameters", "leveled off"], facts)}

{head.label} of greedy search on the dev set, by updates:

{curves}

## How it was made

- Trained on {machines}; decoded on {decoding["hardware"]} ({decoding["date"]}), beam {search["num_beams"]},
  {length_rule(search)}; {versions}.
{signatures}
```bash
{commands()}
python training/reports/{PAGE}.py keep runs/{PAGE}
python training/reports/{PAGE}.py
```
"""


def write_page(results: Path) -> Path:
    """Write the page from the files that `keep` has written.

    Args:
        results: Folder of all tables.

    Returns:
        The page.
    """
    notes, page = results / PAGE / "notes.md", results / f"{PAGE}.md"
    said = notes.read_text(encoding="utf-8") if notes.exists() else ""
    page.write_text(render(read_json(results / KEPT / SCORES), said), encoding="utf-8")
    return page


def main(argv: Sequence[str] | None = None) -> None:
    """Keep the scores of a run, or write the page; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    actions = parser.add_subparsers(dest="command")
    keeping = actions.add_parser("keep", help="keep the scores of a run")
    keeping.add_argument("run", type=Path, help="`work` of the graph")
    args = parser.parse_args(argv)
    try:
        written = keep(args.run, args.results / KEPT) if args.command == "keep" else [write_page(args.results)]
    except (OSError, ValueError) as error:
        raise SystemExit(f"{PAGE}.py: {error}") from error
    print(*written, sep="\n")


if __name__ == "__main__":
    main()
