"""Translate text that lies in one file per source, or in one table of all sources.

    python training/translate.py MODEL --en FILE [--de FILE] [--fr FILE.gz] [--out FILE]
    python training/translate.py MODEL [--input FILE] [--jsonl] [--out FILE] < TABLE

One option per source, named as the model names it: line i of every file belongs to sentence i; a source without a
file is absent. A table (default: standard input) has one column per source between tabs, in the model's order; with
--jsonl it has one JSON object a line, source name -> text. An empty line, an empty column and null mean: absent in
this sentence. A sentence without any source becomes an empty line, and a warning.

Of a source that is pictures or sound, a text is the path of one, relative to the folder of the file that names it (to
the current one on standard input). Features come from an array, --image FILE.npy, and not in a table.

Writes one translation a line; with --n_best K, K lines a sentence, best first: sentence number (from 0), score, text,
between tabs. Score: sum of log probabilities / length**length_penalty, or, with --length_normalization, what that says
("nan" where there was nothing to translate).

A run that was trained with `concatenate` takes the sources that it joined, and joins them again.

With --out, the same command goes on where it was cut short; FILE.json beside the output remembers the settings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data import Row, read_lines
from decoding import Search, add_search_options, decode, decode_windows, format_lines, load_config, load_model
from media import find_unreadable, forms_of, rates_of, read_features
from recipe import UNREADABLE, DataRecipe, load_recipe

FILES = ("picture", "sound")  # forms whose values are paths


def rows_from_files(files: dict[str, str], forms: Mapping[str, str] | None = None) -> list[Row]:
    """Join line-aligned files, source name -> path; `forms`: of the sources that are no text.

    Raises:
        ValueError: If they differ in length; the message gives every length.
    """
    columns: dict[str, list[Any]] = {}
    for name, path in files.items():
        form = (forms or {}).get(name, "text")
        columns[name] = read_features(Path(path)) if form == "features" else read_lines(path)
        if form in FILES:
            columns[name] = [line.strip() and str(Path(path).parent / line) for line in columns[name]]
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name} ({files[name]}) has {len(column)}" for name, column in columns.items())
        raise ValueError(f"the sources differ in their number of lines: {lengths}")
    return [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]


def rows_from_tsv(lines: Sequence[str], sources: Sequence[str], place: str) -> list[Row]:
    """Split lines at tabs, one column per source.

    Raises:
        ValueError: If a line has another number of columns; the message names the line.
    """
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        columns = line.split("\t")
        if len(columns) != len(sources):
            raise ValueError(
                f"{place}, line {number}: {len(columns)} columns between tabs; the model's sources are {len(sources)}: "
                f"{', '.join(sources)} (an absent one is an empty column)"
            )
        rows.append(dict(zip(sources, columns, strict=True)))
    return rows


def rows_from_jsonl(lines: Sequence[str], sources: Sequence[str], place: str) -> list[Row]:
    """Parse one JSON object a line, source name -> text or null.

    Raises:
        ValueError: If a line is something else, or names an unknown source; the message names the line.
    """
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row: Any = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{place}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict) or not all(isinstance(text, str | None) for text in row.values()):
            raise ValueError(f"{place}, line {number}: must be an object of named text (or null), but is {line[:60]}")
        if unknown := [name for name in row if name not in sources]:
            listed = ", ".join(sources)
            raise ValueError(f"{place}, line {number}: unknown source {unknown[0]!r}; the model's are {listed}")
        rows.append(row)
    return rows


def read_rows(
    args: argparse.Namespace, sources: Sequence[str], forms: Mapping[str, str], rates: Mapping[str, int]
) -> list[Row]:
    """The sentences that the command line names; `rates`: of the sources that are sound, in Hz.

    Raises:
        ValueError: If both files and a table are named, the text is bad, or a file that is named in it.
    """
    given = {name: getattr(args, f"source_{name}", None) for name in sources}
    files = {name: path for name, path in given.items() if path is not None}
    if files and (args.input or args.jsonl):
        raise ValueError(f"give one file per source (--{' --'.join(files)}) or a table (--input, --jsonl), not both")
    if files:
        rows = rows_from_files(files, forms)
    else:
        place = args.input or "standard input"
        lines = read_lines(args.input or "-")
        rows = rows_from_jsonl(lines, sources, place) if args.jsonl else rows_from_tsv(lines, sources, place)
        for number, row in enumerate(rows, 1):
            for name, value in row.items():
                if value and forms.get(name) == "features":
                    raise ValueError(
                        f"{place}, line {number}: features of {name!r} stand in no table: give --{name} FILE"
                    )
                if value and forms.get(name) in FILES:
                    row[name] = str(Path(args.input or "").parent / value)
    whole = [{**dict.fromkeys(sources), **row} for row in rows]
    for name, places in find_unreadable(whole, forms, rates=rates).items():
        for i, reason in places.items():
            if args.unreadable == "error":
                raise ValueError(f"line {i + 1}, {name}: {reason} (--unreadable absent goes on without it)")
            print(f"translate.py: line {i + 1}, {name}: {reason}: taken for absent", file=sys.stderr)
            rows[i][name] = None
    return rows


def make_parser() -> argparse.ArgumentParser:
    """The options that every model has."""
    # Without abbreviations: `--de` is a source, not a short --device.
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("model", help="run folder, model folder or Hub id; comes before all options")
    parser.add_argument("--input", help="table of all sources; default: standard input")
    parser.add_argument("--jsonl", action="store_true", help="the table holds JSON lines, not tabs")
    parser.add_argument("--out", help="file to write, or to go on with; default: standard output")
    add_search_options(parser)
    parser.add_argument("--n_best", type=int, default=0, metavar="K", help="write K translations with their scores")
    parser.add_argument("--max_new_tokens", type=int, default=128, help="longest translation (default: %(default)s)")
    parser.add_argument("--max_length", type=int, help="cut longer sources, in tokens; default: nothing is cut")
    parser.add_argument("--batch_size", type=int, default=32, help="sentences (default: %(default)s)")
    text = "what a picture or recording that cannot be read is (default: %(default)s)"
    parser.add_argument("--unreadable", choices=UNREADABLE, default="error", help=text)
    parser.add_argument("--device", help="torch device; default: the GPU if there is one")
    return parser


def joined_sources(model: str) -> DataRecipe | None:
    """The data section of a run that joined its sources into one; None for any other model."""
    recipe = Path(model) / "recipe.yaml"
    data = load_recipe(recipe).data if recipe.exists() else None
    return data if data and data.concatenate else None


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; which options there are depends on the model's sources, which are returned too."""
    parser = make_parser()
    if argv and argv[0].startswith("-") and argv[0] not in ("-h", "--help"):
        parser.error(f"the model comes first, before {argv[0]}")
    model = parser.parse_known_args(argv)[0].model
    joined = joined_sources(model)
    sources: list[str] = joined.sources if joined else load_config(model).source_names
    for name in sources:
        with contextlib.suppress(argparse.ArgumentError):  # named like an option: a table can still give it
            parser.add_argument(f"--{name}", dest=f"source_{name}", metavar="FILE", help=f"lines of source {name}")
    return parser.parse_args(argv), sources


def main(argv: Sequence[str] | None = None) -> None:
    """Translate; see the module's docstring."""
    try:
        args, sources = parse(sys.argv[1:] if argv is None else argv)
        search = Search(
            num_beams=args.num_beams,
            length_penalty=args.length_penalty,
            length_normalization=args.length_normalization,
            max_new_tokens=args.max_new_tokens,
            max_length=args.max_length,
            n_best=args.n_best,
            optimize=args.optimize,
        )
        joined = joined_sources(args.model)
        model, processor = load_model(args.model, args.device, args.optimize)
        rows = read_rows(args, sources, {} if joined else forms_of(processor), rates_of(processor))
        if joined:
            rows = joined.model_rows([{**dict.fromkeys(sources), **row} for row in rows])
        if args.out:
            decode(model, processor, rows, args.out, search, batch_size=args.batch_size, title=args.out)
            return
        index = 0
        for window in decode_windows(model, processor, rows, search, batch_size=args.batch_size):
            for hypotheses in window:
                sys.stdout.write(format_lines(index, hypotheses))
                index += 1
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        raise SystemExit(f"translate.py: {error}") from error


if __name__ == "__main__":
    main()
