r"""Make a folder of the Multi30k sentences whose pictures are available.

    python training/prepare/multi30k_images.py --text data/multi30k --images data/multi30k_images \
        --out data/multi30k_en_image

TEXT contains `<split>.<language>.gz`, as the dataset is published. IMAGES contains `<split>.tar` and `index.tsv`, a
table of split, line (counted from 0) and name within the archive. OUT receives line-aligned files: the sentences,
`<split>.<language>`, and the paths of the unpacked pictures, `<split>.image`.

The pictures belong to their owners on Flickr, and may be used for research and education only.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tarfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from hf_multisource.data.files import read_lines

LANGUAGES = ("en", "de", "fr", "cs")


def read_index(path: Path) -> dict[str, list[tuple[int, str]]]:
    """Read the table that maps pictures to lines.

    Args:
        path: The table with split, line counted from 0, and name within the archive; the first line is a header.

    Returns:
        Split -> line and name of each picture.
    """
    index: dict[str, list[tuple[int, str]]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as table:
        for entry in csv.DictReader(table, delimiter="\t"):
            index[entry["split"]].append((int(entry["line"]), entry["image"]))
    return dict(index)


def make_split(split: str, entries: Sequence[tuple[int, str]], text: Path, images: Path, out: Path) -> None:
    """Unpack the pictures of a split and write their sentences.

    Args:
        split: Name of the split.
        entries: Line and name of each picture.
        text: Folder of the sentences.
        images: Folder of the archives.
        out: Folder to write to.
    """
    pictures = Path("images") / split
    with tarfile.open(images / f"{split}.tar") as archive:
        archive.extractall(out / pictures, filter="data")
    columns = {"image": [(pictures / name).as_posix() for _, name in entries]}
    for language in LANGUAGES:
        lines = read_lines(text / f"{split}.{language}.gz")
        columns[language] = [lines[line] for line, _ in entries]
    for name, column in columns.items():
        content = "".join(f"{value}\n" for value in column)
        (out / f"{split}.{name}").write_text(content, encoding="utf-8", newline="\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Write the folder; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path("data/multi30k"), help="default: %(default)s")
    parser.add_argument("--images", type=Path, default=Path("data/multi30k_images"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    args = parser.parse_args(argv)
    try:
        for split, entries in read_index(args.images / "index.tsv").items():
            make_split(split, entries, args.text, args.images, args.out)
            print(f"{split}: {len(entries)} lines")
    except (OSError, ValueError, tarfile.TarError) as error:
        sys.exit(f"multi30k_images.py: {error}")


if __name__ == "__main__":
    main()
