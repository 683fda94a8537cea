"""Train and score a small three-source model on generated phrases (`make demo`).

English, German and French phrases each leave out a part of the facts in the Czech target (see `prepare/demo_data.py`).
The script trains and scores a model of all three sources and a model of English alone. It also scores the first model
with each source absent and with each source wrong. Everything is written to `runs/demo`; a second run skips finished
steps.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hf_multisource.cli import score
from hf_multisource.data.files import read_lines
from hf_multisource.evaluation.tables import format_table
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.training import train
from prepare import demo_data

RECIPE = "demo"
FOLDER = Path("runs/demo")
RUNS = {"all": ["en", "de", "fr"], "en_only": ["en"]}
MINUTES = {"all": 2.0, "en_only": 1.0}  # on two cores with AVX-512; without it, twice as long
ENOUGH = 90.0  # BLEU that three sources must reach together; the facts of one source allow about 50
NEXT = """\
What to try next:
  hf-multisource translate runs/demo/all --en FILE --de FILE     translate lines of your own; French is absent here
  hf-multisource score runs/demo/all --attention_plot            plot what the decoder attends to (needs matplotlib)
  hf-multisource recipes                                         recipes to start from
  hf-multisource train text --path FOLDER --sources en de --target cs
                                                                 train on files of your own: docs/training.md
The command lies in .venv/bin; `source .venv/bin/activate` puts it on the path."""


def announce(step: int, title: str, minutes: float) -> None:
    """Print the title of a step and the time that it takes.

    Args:
        step: Number of the step, from 1.
        title: Title of the step.
        minutes: Expected time on two cores.
    """
    print(f"\n== Step {step} of {len(RUNS) + 1}: {title} (about {60 * minutes:.0f} seconds)", flush=True)


def train_once(name: str, sources: list[str]) -> Path:
    """Train one of the runs, unless it is finished.

    Args:
        name: Name of the run.
        sources: Sources of the run.

    Returns:
        Folder of the run.
    """
    folder = FOLDER / name
    if (folder / "train_summary.json").exists():
        print("already trained", flush=True)
    else:
        recipe = load_recipe(RECIPE, {"sources": sources, "output_dir": str(folder)})
        train(recipe, resume=(folder / "recipe.yaml").exists())
    return folder


def score_run(name: str, folder: Path) -> list[list[str]]:
    """Score one of the runs.

    Args:
        name: Name of the run.
        folder: Folder of the run.

    Returns:
        One row per condition: title, BLEU and chrF.
    """
    extra = ["--absent", "--adversarial", "--draws", "1"] if name == "all" else []
    score.main([str(folder), "--num_beams", "4", "--max_new_tokens", "40", "--batch_size", "100", *extra])
    conditions = json.loads((folder / "scores" / "test.json").read_text(encoding="utf-8"))["conditions"]
    return [
        [
            condition if name == "all" else f"{name} baseline",
            f"{entry['bleu']['score']:.1f}",
            f"{entry['chrf']['score']:.1f}",
        ]
        for condition, entry in conditions.items()
    ]


def main() -> None:
    """Run the demo."""
    start = time.time()
    shortest = sum(MINUTES.values())
    print(f"The demo takes {shortest:.0f} to {2 * shortest + 1:.0f} minutes on two cores, by processor.", flush=True)
    announce(1, "generate phrases in English, German, French and Czech", 0.1)
    demo_data.write(FOLDER / "data")
    lines = []
    for step, (name, sources) in enumerate(RUNS.items(), 2):
        announce(step, f"train and score {name}: {', '.join(sources)} -> cs", MINUTES[name])
        lines += score_run(name, train_once(name, sources))

    print("\n== What each source gives\n")
    print(format_table(["sources", "BLEU", "chrF"], lines))
    print("\n== Some translations")
    data, scores = FOLDER / "data", FOLDER / "all" / "scores"
    columns = {name: read_lines(data / f"test.{name}") for name in (*RUNS["all"], "cs")}
    columns |= {f"-> {key}": read_lines(scores / f"test.{key}.txt") for key in ("all", "absent-en")}
    for i in range(3):
        print("\n" + "\n".join(f"{name:>12}  {column[i]}" for name, column in columns.items()))
    print(f"\nDone in {time.time() - start:.0f} seconds. The model lies in {FOLDER / 'all'}.\n\n{NEXT}")
    reached = float(lines[0][1])
    if reached < ENOUGH:
        sys.exit(f"demo: BLEU {reached} with all sources; at least {ENOUGH} was expected")


if __name__ == "__main__":
    main()
