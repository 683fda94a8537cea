"""Split Multi30k into disjoint bilingual corpora with a low-resource and a high-resource language.

    python training/prepare/disjoint_multi30k.py DATA OUT [--scarce 2000] [--seed 1]

DATA contains `train`, `val` and `test_2016_flickr` in cs, de and en. Czech is treated as the low-resource language, and
German as the high-resource language. Each training line is in only one bilingual corpus, so that no sentence is
available in all three languages. Only the few sentences that Multi30k contains twice may be in two of these corpora:

    cs_en    --scarce pairs of Czech and English
    cs_de    half of the other lines, in Czech and German
    de_en    the other half, in German and English
    en       the English side of the lines of cs_de: text without a translation
    all      the lines of these four corpora, for a tokenizer; missing languages are empty lines
    held     `dev` and `test`, in all three languages
    held_cs  the same without German (empty lines), as for a new Czech text

--seed determines the random order of the lines.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_multisource.data.files import check_new_folder
from hf_multisource.data.prepare import new_folder, write_columns
from hf_multisource.data.rows import Row, read_split

LANGUAGES = ("cs", "de", "en")
HELD_OUT = {"dev": "val", "test": "test_2016_flickr"}


def cut(rows: Sequence[Row], scarce: int, seed: int) -> dict[str, tuple[list[Row], tuple[str, ...]]]:
    """Draw the training corpora.

    Args:
        rows: The training lines.
        scarce: Number of pairs in the low-resource corpus.
        seed: Seed of the random order.

    Returns:
        Name of a corpus -> its rows, in the order of the data, and its languages.

    Raises:
        ValueError: If there are not enough lines.
    """
    if not 0 < scarce < len(rows) - 1:
        raise ValueError(f"--scarce is {scarce}, but must be above 0 and less than {len(rows) - 1}")
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    middle = scarce + (len(rows) - scarce) // 2
    parts = {"cs_en": order[:scarce], "cs_de": order[scarce:middle], "de_en": order[middle:]}
    corpora = {name: ([rows[i] for i in sorted(places)], tuple(name.split("_"))) for name, places in parts.items()}
    return {**corpora, "en": (corpora["cs_de"][0], ("en",))}


def main(argv: Sequence[str] | None = None) -> None:
    """Write the folders; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of Multi30k")
    parser.add_argument("out", type=Path, help="folder to write to, new or empty")
    parser.add_argument("--scarce", type=int, default=2000, help="pairs of Czech and English (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the random choice (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        check_new_folder(args.out)
        rows = read_split(str(args.data), "train", LANGUAGES[:2], LANGUAGES[2]).rows
        joint: list[Row] = []
        corpora = cut(rows, args.scarce, args.seed)
        with new_folder(args.out) as place:
            for name in (*corpora, "all", "held", "held_cs"):
                (place / name).mkdir()
            for name, (lines, languages) in corpora.items():
                write_columns(place / name, "train", languages, lines)
                print(f"{name}: {len(lines)} lines")
                joint += [{one: row[one] if one in languages else None for one in row} for row in lines]
            write_columns(place / "all", "train", LANGUAGES, joint)
            print(f"all: {len(joint)} lines")
            for split, source in HELD_OUT.items():
                lines = read_split(str(args.data), source, LANGUAGES[:2], LANGUAGES[2]).rows
                write_columns(place / "held", split, LANGUAGES, lines)
                write_columns(place / "held_cs", split, LANGUAGES, [{**row, "de": None} for row in lines])
                print(f"held, {split}: {len(lines)} lines")
    except (OSError, ValueError) as error:
        sys.exit(f"disjoint_multi30k.py: {error}")


if __name__ == "__main__":
    main()
