"""Write docs/results/protoform.md, which compares the reconstruction of proto-forms for several language families.

    python training/reports/protoform.py [protoform-romance protoform-wikihan ...]

The rows of each experiment are in docs/results/<experiment>/, where `hf-multisource reproduce` writes them. The notes
docs/results/protoform/notes.md explain the results; their first paragraph opens the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_multisource.data.files import write_text
from hf_multisource.evaluation.experiment_page import EXPERIMENT
from hf_multisource.evaluation.results import RESULTS, read_result, split_notes
from hf_multisource.evaluation.tables import format_table
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.reading import read_yaml

PAGE = "protoform"
EXPERIMENTS = ("protoform-romance", "protoform-wikihan")
SHOWN = ("exact_match", "edit_distance")


def show(row: Mapping[str, Any] | None, metric: str) -> str:
    """Return the score of a row as text.

    Args:
        row: The row; None if it is not finished.
        metric: Name of the metric.

    Returns:
        Mean and standard deviation over the seeds, and the number of seeds. For one seed or an ensemble, only the
        score. An empty text if there is no score.
    """
    if row is None:
        return ""
    entry, text = row["scores"]["all"][metric], METRICS[metric].show
    spread = f" ± {text(entry['seeds_sd'])} ({len(entry['seeds'])})" if "seeds" in entry else ""
    return f"{text(entry['score'])}{spread}"


def render(names: Sequence[str], results: Path) -> str:
    """Return the page.

    Args:
        names: Names of the experiments.
        results: Folder of all tables.

    Returns:
        Markdown.

    Raises:
        FileNotFoundError: If an experiment has no results.
    """
    experiments = {name: read_yaml(results / name / EXPERIMENT) for name in names}
    labels = {row: settings["label"] for one in experiments.values() for row, settings in one["rows"].items()}
    lines = []
    for row, label in labels.items():
        paths = [results / name / f"{row}.json" for name in names]
        found = [read_result(path) if path.exists() else None for path in paths]
        if any(found):
            lines.append([label, *(show(one, metric) for one in found for metric in SHOWN)])
    citations = []
    for name, experiment in experiments.items():
        for other in experiment["published"]:
            scores = [other["scores"] if one == name else {} for one in names]
            lines.append([f"*{other['label']}*", *(str(one.get(metric, "")) for one in scores for metric in SHOWN)])
            citations.append(f"- *{other['label']}* ({name}): {other['citation']}\n")
    header = [f"{name.removeprefix(f'{PAGE}-')}, {METRICS[metric].label}" for name in names for metric in SHOWN]
    notes = results / PAGE / "notes.md"
    opening, rest = split_notes(notes.read_text(encoding="utf-8") if notes.exists() else "")
    lead, said = (f"{opening}\n\n" if opening else ""), (f"## What they show\n\n{rest}\n\n" if rest else "")
    figures = "".join(f"![{name}: scores by number of sources present]({name}.png)\n\n" for name in names)
    pages = "".join(
        f"- [{name}]({name}.md): from {', '.join(one['sources'])} to {one['target']}; `{one['command']}`\n"
        for name, one in experiments.items()
    )
    command = " ".join(["python training/reports/protoform.py", *(() if tuple(names) == EXPERIMENTS else names)])
    return f"""\
<!-- Made by `{command}` from the rows of {", ".join(names)}. Do not edit. -->
# The ancestor's word from the words of its descendants

{lead}{figures}Scores on the test splits. Of several seeds: mean ± standard deviation, and in brackets their number;
otherwise of one seed. An ensemble has one score. An empty cell has not been trained. Rows in italics are published
figures.

{format_table(["row", *header], lines)}

{"".join(citations)}
{said}## The pages

Each page has the differences between its rows, scores by number of sources and without each source, wrong symbols,
learning curves, and how every row was made.

{pages}"""


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=EXPERIMENTS, metavar="experiment")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    args = parser.parse_args(argv)
    page = args.results / f"{PAGE}.md"
    try:
        write_text(page, render(args.names, args.results))
    except (OSError, ValueError) as error:
        raise SystemExit(f"protoform.py: {error}") from error
    print(page)


if __name__ == "__main__":
    main()
