"""Split Kazakh, Russian and English text into two disjoint halves, and write them with the held-out sets.

    python training/prepare/kk_ru_en.py DATA NEWS OUT

DATA contains `train`, `dev` and `test` in kk, ru and en; NEWS contains `newstest2019-enkk` in kk and en. OUT receives

    a, b     the training rows in two halves, in all three languages
    held     `dev`, `test` and, without Russian, `newstest2019`

A model translates its training text better than new text. With two halves, a model that was trained on one half writes
the Russian of the other half, so that synthetic Russian has the same quality in training and at test time. The half of
a row depends only on its Kazakh text: equal texts are in the same half, and adding rows does not move other rows.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_multisource.data.files import check_new_folder
from hf_multisource.data.prepare import new_folder, write_columns
from hf_multisource.data.rows import Row, read_split

LANGUAGES = ("kk", "ru", "en")
NEWS_SPLIT = "newstest2019-enkk"


def half_of(row: Row) -> str:
    """Return the half of a row.

    Args:
        row: Texts of the row.

    Returns:
        "a" or "b", by a hash of the Kazakh text.
    """
    return "ab"[hashlib.sha256(str(row["kk"]).encode()).digest()[0] % 2]


def main(argv: Sequence[str] | None = None) -> None:
    """Write the folders; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the text in three languages")
    parser.add_argument("news", type=Path, help="folder of newstest2019")
    parser.add_argument("out", type=Path, help="folder to write to, new or empty")
    args = parser.parse_args(argv)
    try:
        check_new_folder(args.out)
        rows = read_split(str(args.data), "train", LANGUAGES[:2], LANGUAGES[2]).rows
        with new_folder(args.out) as place:
            for name in ("a", "b", "held"):
                (place / name).mkdir()
            for half in "ab":
                chosen = [row for row in rows if half_of(row) == half]
                write_columns(place / half, "train", LANGUAGES, chosen)
                print(f"{half}: {len(chosen)} lines")
            for split in ("dev", "test"):
                lines = read_split(str(args.data), split, LANGUAGES[:2], LANGUAGES[2]).rows
                write_columns(place / "held", split, LANGUAGES, lines)
                print(f"held, {split}: {len(lines)} lines")
            news = read_split(str(args.news), NEWS_SPLIT, ["kk"], "en").rows
            write_columns(place / "held", "newstest2019", ("kk", "en"), news)
            print(f"held, newstest2019: {len(news)} lines")
    except (OSError, ValueError) as error:
        sys.exit(f"kk_ru_en.py: {error}")


if __name__ == "__main__":
    main()
