"""Make a folder of short sentences in French, German and English: news and help pages.

    python training/prepare/news_and_help.py DATA OUT [--longest 20]

DATA contains `libreoffice_help/{train,dev,test}.<language>.gz` and WMT's test sets, `wmt_news/<set>.<language>.gz`.
OUT receives `train`, `dev`, `test` (help pages) and `news` (newstest2012), each in fr, de and en, with the lines that
have at most --longest words in all three languages. `fr2` is a copy of `fr`: a second source without new content.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_multisource.data.files import read_lines

LANGUAGES = ("fr", "de", "en")
COPIES = {"fr2": "fr"}
NEWS = ("newssyscomb2009", "newstest2008", "newstest2009", "newstest2010", "newstest2011")
SPLITS = {
    "train": ("libreoffice_help/train", *(f"wmt_news/{name}" for name in NEWS)),
    "dev": ("libreoffice_help/dev",),
    "test": ("libreoffice_help/test",),
    "news": ("wmt_news/newstest2012",),
}


def short_lines(data: Path, names: Sequence[str], longest: int) -> list[tuple[str, ...]]:
    """Read line-aligned files, and keep the lines that are short in every language.

    Args:
        data: Folder of the files.
        names: Names of the files, without the language.
        longest: Largest number of words of a line.

    Returns:
        One tuple per line, in the order of `LANGUAGES`; lines that are empty in one language are left out.

    Raises:
        ValueError: If the files of a name have different numbers of lines.
    """
    kept = []
    for name in names:
        columns = [read_lines(data / f"{name}.{language}.gz") for language in LANGUAGES]
        if len(set(map(len, columns))) > 1:
            raise ValueError(f"{data / name}: {', '.join(map(str, map(len, columns)))} lines in {', '.join(LANGUAGES)}")
        kept += [line for line in zip(*columns, strict=True) if all(0 < len(text.split()) <= longest for text in line)]
    return kept


def main(argv: Sequence[str] | None = None) -> None:
    """Write the folder; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the two corpora")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--longest", type=int, default=20, help="most words of a line (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        for split, names in SPLITS.items():
            lines = short_lines(args.data, names, args.longest)
            args.out.mkdir(parents=True, exist_ok=True)
            for name in (*LANGUAGES, *COPIES):
                column = LANGUAGES.index(COPIES.get(name, name))
                content = "".join(f"{line[column]}\n" for line in lines)
                (args.out / f"{split}.{name}").write_text(content, encoding="utf-8", newline="\n")
            print(f"{split}: {len(lines)} lines")
    except (OSError, ValueError) as error:
        sys.exit(f"news_and_help.py: {error}")


if __name__ == "__main__":
    main()
