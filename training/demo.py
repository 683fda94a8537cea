"""Train, translate and examine a small three-source model on generated phrases: what `make demo` runs.

English, German and French phrases each leave out part of what the Czech target tells (see `demo_data.py`). A model of
all three sources and one of English alone are trained and scored, with each source absent and each source wrong.
Everything goes to `runs/demo`; run again, finished steps are skipped.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hf_multisource.data.files import read_lines
from hf_multisource.evaluation import scoring as score
from hf_multisource.evaluation.tables import format_table
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.training import train
from prepare import demo_data

RECIPE = Path(__file__).parent / "configs" / "demo.yaml"
FOLDER = Path("runs/demo")
RUNS = {"all": ["en", "de", "fr"], "en_only": ["en"]}
ENOUGH = 90.0  # BLEU that the three sources reach together; what one source tells allows about 50


def train_once(name: str, sources: list[str]) -> Path:
    """Train one of the runs, unless that is done.

    Args:
        name: The run's name.
        sources: Its sources.

    Returns:
        The run's folder.
    """
    folder = FOLDER / name
    if not (folder / "train_summary.json").exists():
        print(f"\n== Training {name}: {', '.join(sources)} -> cs", flush=True)
        recipe = load_recipe(RECIPE, {"sources": sources, "output_dir": str(folder)})
        train(recipe, resume=(folder / "recipe.yaml").exists())
    return folder


def main() -> None:
    """Run the demo."""
    start = time.time()
    demo_data.write(FOLDER / "data")
    folders = {name: train_once(name, sources) for name, sources in RUNS.items()}
    lines = []
    for name, folder in folders.items():
        print(f"\n== Scoring {name}", flush=True)
        extra = ["--absent", "--adversarial", "--draws", "1"] if name == "all" else []
        score.main([str(folder), "--num_beams", "4", "--max_new_tokens", "40", "--batch_size", "100", *extra])
        conditions = json.loads((folder / "scores" / "test.json").read_text(encoding="utf-8"))["conditions"]
        for condition, entry in conditions.items():
            title = condition if name == "all" else f"{name} baseline"
            lines.append([title, f"{entry['bleu']['score']:.1f}", f"{entry['chrf']['score']:.1f}"])

    print("\n== What each source gives\n")
    print(format_table(["sources", "BLEU", "chrF"], lines))
    print("\n== Some translations")
    data, scores = FOLDER / "data", folders["all"] / "scores"
    columns = {name: read_lines(data / f"test.{name}") for name in (*RUNS["all"], "cs")}
    columns |= {f"-> {key}": read_lines(scores / f"test.{key}.txt") for key in ("all", "absent-en")}
    for i in range(3):
        print("\n" + "\n".join(f"{name:>12}  {column[i]}" for name, column in columns.items()))
    print(f"\nThe model is in {folders['all']}. {time.time() - start:.0f} seconds.")
    reached = float(lines[0][1])
    if reached < ENOUGH:
        sys.exit(f"demo: BLEU {reached} with all sources; at least {ENOUGH} was expected")


if __name__ == "__main__":
    main()
