"""Print for how many test words the models of an experiment agree.

    python training/reports/agreement.py protoform-wikihan --path data/protoform/wikihan --rows serial parallel flat

Reads the hypotheses of all seeds of the rows from docs/results/<experiment>/cells/. A model is right about a word if
its hypothesis equals the reference exactly.
"""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Sequence
from pathlib import Path

from hf_multisource.data.files import single_line
from hf_multisource.data.rows import read_split
from hf_multisource.evaluation.experiment_page import EXPERIMENT
from hf_multisource.evaluation.results import RESULTS
from hf_multisource.recipes.reading import read_yaml

HYPOTHESES = "scores/test.all.txt"


def read_hypotheses(folder: Path, rows: Sequence[str]) -> dict[str, list[str]]:
    """Read the hypotheses of all seeds of rows.

    Args:
        folder: Folder with the kept cells of an experiment, `<row>.seed-<number>.zip`.
        rows: Names of the rows.

    Returns:
        Name of the cell -> the hypotheses.

    Raises:
        FileNotFoundError: If a row has no kept cell.
    """
    found: dict[str, list[str]] = {}
    for row in rows:
        paths = sorted(folder.glob(f"{row}.seed-*.zip"))
        if not paths:
            raise FileNotFoundError(f"{folder} has no cell of the row {row!r}")
        for path in paths:
            with zipfile.ZipFile(path) as archive:
                found[path.stem] = archive.read(HYPOTHESES).decode("utf-8").splitlines()
    return found


def describe(hypotheses: dict[str, list[str]], references: Sequence[str]) -> str:
    """Count the words about which all, most, and at least one of the models are right.

    Args:
        hypotheses: Name of the model -> its hypotheses.
        references: The references.

    Returns:
        One line.

    Raises:
        ValueError: If a model has another number of hypotheses than there are references.
    """
    for name, lines in hypotheses.items():
        if len(lines) != len(references):
            raise ValueError(f"{name} has {len(lines)} hypotheses, but there are {len(references)} references")
    right = [sum(one == word for one in lines) for *lines, word in zip(*hypotheses.values(), references, strict=True)]
    number = len(hypotheses)
    counts = (number, number // 2 + 1, 1)
    every, most, some = (f"{sum(one >= least for one in right) / len(right):.1%}" for least in counts)
    return f"{number} models, {len(references)} words: all right {every}, more than half {most}, at least one {some}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the counts; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--path", required=True, help="folder with the data")
    parser.add_argument("--rows", nargs="+", required=True)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    args = parser.parse_args(argv)
    try:
        known = read_yaml(args.results / args.experiment / EXPERIMENT)
        rows = read_split(args.path, "test", known["sources"], known["target"]).rows
        references = [single_line(row[known["target"]] or "") for row in rows]
        print(describe(read_hypotheses(args.results / args.experiment / "cells", args.rows), references))
    except (OSError, ValueError) as error:
        raise SystemExit(f"agreement.py: {error}") from error


if __name__ == "__main__":
    main()
