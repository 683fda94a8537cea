"""Prepare a corpus of parallel text: apply rules row by row, and write the remaining rows and the counts of each rule.

The written files stay line-aligned: line i of every file belongs to the same row. The output folder is created
atomically when it is complete. The same corpus and the same settings give the same files.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from hf_multisource.data.files import check_new_folder, named_errors, write_json
from hf_multisource.data.overlap import Overlap
from hf_multisource.data.rules import RuleCounts, Rules, apply_rules
from hf_multisource.data.streams import TextRow, stream_rows

COUNTS = "counts.json"
LINE_ENDS = re.compile(r"\s*[\r\n]\s*")  # line ends in a cell of a table, where a text may have several lines


def prepare_corpus(
    data: str, out: Path, languages: Sequence[str], rules: Rules, *, split: str = "train", held_out: Sequence[str] = ()
) -> RuleCounts:
    """Apply rules to a split and write the rows that are kept, with `counts.json`.

    Args:
        data: A folder or the id of a Hub dataset.
        out: Folder to write to, new or empty: `<split>.<language>` for each language.
        languages: The columns of the corpus.
        rules: The settings of the rules.
        split: Name of the split.
        held_out: Held-out sets, each as FOLDER:SPLIT. Rows that overlap with a set are dropped. A set may lack
            languages.

    Returns:
        The counts.

    Raises:
        FileExistsError: If `out` is not empty.
        FileNotFoundError: If there is no such corpus or held-out set.
        ValueError: If a setting is not allowed, a language is unknown, files differ in length, a held-out set is the
            corpus itself, or no row is left. In this case, nothing is written.
    """
    check_languages(languages)
    rules.check(languages)
    check_new_folder(out)
    sets = [parse_place(place) for place in held_out]
    for place, one in zip(held_out, sets, strict=True):
        if is_same_split(one, (data, split)):
            raise ValueError(f"held_out: {place} is the corpus itself: give sets that are not prepared")
    rows = stream_rows(data, split, languages)
    overlaps = read_overlaps(sets, languages, rules)
    kept, counts = apply_rules(rows, rules, overlaps)
    with new_folder(out) as folder:
        write_columns(folder, split, languages, kept)
        if not counts.kept:
            raise ValueError(
                f"no row of split {split!r} of {data} is left: {'; '.join(counts.describe().splitlines())}"
            )
        settings = {"data": data, "split": split, "languages": [*languages], "held_out": [*held_out], **asdict(rules)}
        write_json(folder / COUNTS, {**settings, "read": counts.read, "rules": counts.rules, "kept": counts.kept})
    return counts


def check_languages(languages: Sequence[str]) -> None:
    """Raise ValueError for a list of languages that is empty or contains a language twice.

    Args:
        languages: The names.

    Raises:
        ValueError: If the list is not allowed.
    """
    if not languages or len(set(languages)) < len(languages):
        raise ValueError(f"languages is {', '.join(languages) or 'empty'}; name one or more, each once")


def parse_place(place: str) -> tuple[str, str]:
    """Read the place of a split.

    Args:
        place: Folder or Hub id, a colon, and the name of the split.

    Returns:
        The folder or Hub id, and the split.

    Raises:
        ValueError: If the folder or the split is missing.
    """
    data, colon, split = place.rpartition(":")
    if not (data and colon and split):
        raise ValueError(f"{place!r} must be FOLDER:SPLIT, such as my_folder:test")
    return data, split


def is_same_split(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Return whether two places of data are the same split.

    Args:
        one: Folder or Hub id, and split.
        other: Folder or Hub id, and split.

    Returns:
        Whether folder or Hub id and split are equal; folders are compared as resolved paths.
    """
    places = [Path(data).resolve() if Path(data).is_dir() else data for data, _ in (one, other)]
    return places[0] == places[1] and one[1] == other[1]


def read_overlaps(sets: Iterable[tuple[str, str]], languages: Sequence[str], rules: Rules) -> dict[str, Overlap]:
    """Read held-out sets into an index of word sequences for each language.

    Args:
        sets: Folder or Hub id, and split, of each set.
        languages: The languages of the corpus; each set has at least one of them.
        rules: The settings of the rules.

    Returns:
        Language -> word sequences, for the languages that at least one set contains.

    Raises:
        ValueError: If a set has no text in any of the languages.
    """
    texts: dict[str, list[str]] = {name: [] for name in languages}
    for data, split in sets:
        before = sum(map(len, texts.values()))
        for row in rules.normalized(stream_rows(data, split, languages, optional=languages)):
            for name, text in row.items():
                if text:
                    texts[name].append(text)
        if sum(map(len, texts.values())) == before:
            raise ValueError(f"held_out: {data}:{split} has no text in {', '.join(languages)}")
    return {name: Overlap(found, rules.ngram) for name, found in texts.items() if found}


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Create a folder atomically: it gets its name when the context ends without an error.

    Args:
        out: The folder, new or empty.

    Yields:
        A temporary folder next to `out` to write to. It is deleted after an error.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        with named_errors(out):
            yield partial
        if out.exists():
            out.rmdir()
        partial.chmod(0o777 & ~_umask())
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _umask() -> int:
    """Return the umask of the process: the permissions that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_columns(
    folder: Path, split: str, columns: Sequence[str], rows: Iterable[Mapping[str, str | None] | TextRow]
) -> None:
    """Write each column of rows to a plain text file.

    Args:
        folder: The folder.
        split: Name of the split.
        columns: Names of the columns.
        rows: The rows. An absent text is written as an empty line. Line ends in a text are replaced by a blank.
    """
    with ExitStack() as stack:
        files = {
            name: stack.enter_context((folder / f"{split}.{name}").open("w", encoding="utf-8", newline="\n"))
            for name in columns
        }
        for row in rows:
            for name, file in files.items():
                file.write(f"{_one_line(row[name] or '')}\n")


def _one_line(text: str) -> str:
    """Return a text in one line: each group of line ends, with the white space around it, becomes one blank."""
    return LINE_ENDS.sub(" ", text).strip() if LINE_ENDS.search(text) else text
