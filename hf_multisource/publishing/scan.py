"""Search a folder before publication for secrets, local paths, training state, training text and foreign code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import hf_multisource
from hf_multisource.data.files import read_lines
from hf_multisource.data.privacy import find_local_paths, find_secrets, is_secret_key, mask_secrets
from hf_multisource.data.tables import DELIMITERS, read_cells
from hf_multisource.json_files import parse_json
from hf_multisource.recipes.reading import read_yaml
from hf_multisource.recipes.schema import CATALOGUES
from hf_multisource.recipes.shipped import RECIPE

SHOWN = 10  # number of findings that an error message lists
SHOWN_OF_LINE = 20  # number of characters of a line of the training text in an error message
# Names of files with the state of a training, and of formats that may contain a pickle, which runs code when loaded.
STATE = re.compile(
    r"(?:optimizer|scheduler|rng_state|scaler|trainer_state|training_args|fingerprint|train_summary)\b.*"
    r"|(?:optimizer|rng_state|scheduler)[-_].*|.*\.(?:bin|pt|pth|pkl|pickle|ckpt|joblib|dill)",
    re.IGNORECASE,
)
DATA = re.compile(
    r".*\.(?:jsonl|ndjson|csv|tsv|parquet|arrow|npy|npz)(?:\.gz)?|(?:train|dev|valid|test)\..*", re.IGNORECASE
)
# Beginnings of paths in a binary file. The byte before a path may be a letter, such as the length byte in a protobuf.
PATH_IN_BYTES = re.compile("/(?=(?:home|Users|root|tmp|mnt)/)")
CODE_KEYS = ("auto_map", "custom_pipelines")
# Largest size in bytes of a file that is searched for training text. Larger files are vocabularies.
LARGEST_PROSE = 200_000
LONG_LINE = 40  # smallest number of characters of a compared line; shorter lines may occur in a card by chance
TRAINING_LINES = 1_000_000  # number of compared lines of each file of the training data


@dataclass(frozen=True)
class Finding:
    """A finding of the search: something that must not be published.

    Attributes:
        file: Path of the file in the folder.
        line: Line, counted from 1; None if the finding is the name of the file, or the file has no lines.
        what: Description of the finding, with masked secrets.
    """

    file: str
    line: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f', line {self.line}'}: {self.what}"


def check_publishable(folder: Path, run: Path) -> None:
    """Check that a folder contains nothing that must not be published.

    Args:
        folder: The folder to publish.
        run: Folder of the run. If it contains a `recipe.yaml` whose data are on this machine, the folder is also
            searched for the training text.

    Raises:
        ValueError: If something was found. The message names file and line of each finding, and masks secrets.
    """
    found: list[Finding] = []
    prose: dict[str, str] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        text, numbered = text_of(path)
        found += scan_name(name)
        found += scan_text(name, text, numbered, str(run.resolve()))
        if path.suffix == ".json":
            found += scan_json(name, text, path.parent)
        if numbered and path.suffix != ".py" and len(text) < LARGEST_PROSE:
            prose[name] = text
    if (run / RECIPE).exists():
        found += scan_for_training_text(prose, training_lines(run / RECIPE))
    if found:
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise ValueError(f"{run} cannot be published: {'; '.join(map(str, found[:SHOWN]))}{more}")


def scan_name(name: str) -> Iterator[Finding]:
    """Check whether the name of a file allows its publication.

    Args:
        name: Path of the file in the folder.

    Yields:
        The findings.
    """
    masked = mask_secrets(name)
    for _, what in find_secrets(name):
        yield Finding(masked, None, f"{what} in the name of the file")
    if STATE.fullmatch(Path(name).name):
        yield Finding(masked, None, "a file of the state of a training, or a pickle")
    if DATA.fullmatch(Path(name).name):
        yield Finding(masked, None, "a file of data")


def scan_text(name: str, text: str, numbered: bool, *folders: str) -> Iterator[Finding]:
    """Search a text for secrets and local paths.

    Args:
        name: Name of the file in the findings.
        text: Text of the file.
        numbered: Whether the line numbers of the text are those of the file.
        *folders: Folders whose paths are local in addition to the usual places.

    Yields:
        The findings, in the order of the text.
    """
    paths = ((position, f"a path of this machine ({path})") for position, path in find_local_paths(text, *folders))
    for position, what in sorted([*find_secrets(text), *paths]):
        yield Finding(name, text.count("\n", 0, position) + 1 if numbered else None, what)


def scan_json(name: str, text: str, folder: Path) -> Iterator[Finding]:
    """Search a JSON file for short values of secret keys, and for references to code of other packages.

    Args:
        name: Name of the file in the findings.
        text: Text of the file.
        folder: Folder of the file, which contains the code or is below the code's folder.

    Yields:
        The findings.
    """
    try:
        stack = [parse_json(text)]
    except ValueError as error:
        yield Finding(name, None, f"JSON that cannot be searched: {error}")
        return
    while stack:
        value = stack.pop()
        for key, item in value.items() if isinstance(value, dict) else ():
            entry = f"{json.dumps(key)}: {json.dumps(item)}"
            if is_secret_key(key) and isinstance(item, str) and item and not list(find_secrets(entry)):
                yield Finding(name, _line_of(text, entry, json.dumps(key)), f"the value of the secret key {key!r}")
            if key in CODE_KEYS and item:
                for reference, what in _foreign_code(key, item, folder):
                    yield Finding(name, _line_of(text, json.dumps(reference), json.dumps(key)), what)
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        stack += [item for item in items if isinstance(item, dict | list)]


def _line_of(text: str, *wanted: str) -> int | None:
    """Return the line number of the first wanted text that occurs; None if no wanted text occurs."""
    positions = [position for position in map(text.find, wanted) if position >= 0]
    return text.count("\n", 0, positions[0]) + 1 if positions else None


def scan_for_training_text(texts: Mapping[str, str], lines: Iterable[str]) -> Iterator[Finding]:
    """Search texts for lines of the training text.

    Args:
        texts: Name of a file -> text.
        lines: Long lines with single blanks between their words. Most lines are looked up by three of their words, so
            that a million lines take seconds.

    Yields:
        The findings, at most one for each line.
    """
    words = {name: text.split() for name, text in texts.items()}
    joined = {name: " ".join(parts) for name, parts in words.items()}
    known = {triple for parts in words.values() for triple in zip(parts, parts[1:], parts[2:], strict=False)}
    done = set()
    for line in lines:
        parts = line.split()
        # The first and the last word are not looked up, because they may be joined with punctuation.
        if line in done or (len(parts) >= 5 and (parts[1], parts[2], parts[3]) not in known):
            continue
        for name, text in joined.items():
            if line in text:
                done.add(line)
                found = re.search(r"\s+".join(map(re.escape, parts)), texts[name])
                number = texts[name].count("\n", 0, found.start()) + 1 if found else None
                yield Finding(name, number, f"a line of the training text ({line[:SHOWN_OF_LINE]}...)")


def text_of(path: Path) -> tuple[str, bool]:
    """Read the text in a file.

    Args:
        path: The file.

    Returns:
        The text, and whether its line numbers are those of the file. The text is a whole UTF-8 file, the header of a
        safetensors file (names and metadata), or the ASCII strings in another file.
    """
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return file.read(min(size, path.stat().st_size)).decode("utf-8", "replace"), False
    content = path.read_bytes()
    try:
        return content.decode("utf-8"), b"\0" not in content
    except UnicodeDecodeError:
        return PATH_IN_BYTES.sub(" /", content.decode("ascii", "replace")), False


def _foreign_code(key: str, value: object, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the entries of `auto_map` or `custom_pipelines` that are not code of this package, with descriptions."""
    entries = value.items() if isinstance(value, Mapping) else [("", value)]
    for name, entry in entries:
        if key == "custom_pipelines":
            entry = entry.get("impl") if isinstance(entry, Mapping) else entry
        for reference in entry if isinstance(entry, list | tuple) else [entry]:
            if reference is None:
                continue
            place = f"{key}.{name}" if name else key
            if not isinstance(reference, str):
                yield key, f"{place} names no class"
            elif "--" in reference:
                yield reference, f"{place} refers to code in another repository ({reference})"
            elif not _is_ours(reference, folder):
                yield reference, f"{place} refers to code that is not of hf_multisource ({reference})"


def _is_ours(reference: str, folder: Path) -> bool:
    """Return whether a reference `module.Class` names a class of this package whose code in the folder is unchanged."""
    module, _, name = reference.partition(".")
    own = Path(hf_multisource.__file__).with_name(f"{module}.py")
    if not (module.isidentifier() and name.isidentifier() and own.is_file()):
        return False
    copies = [place / own.name for place in (folder, folder.parent) if (place / own.name).is_file()]
    return bool(copies) and copies[0].read_bytes() == own.read_bytes()


def training_lines(recipe: Path) -> Iterator[str]:
    """Read the long lines of a run's training text from the text files on this machine.

    Args:
        recipe: The `recipe.yaml` of the run. It may be of any version, so its keys are not checked.

    Yields:
        Lines of at least `LONG_LINE` characters, with single blanks between their words.
    """
    content = read_yaml(recipe)
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("path"), str):
        return
    train, names = data.get("train", "train"), [*_names(data.get("sources")), *_names(data.get("target"))]
    if data.get("kind") == CATALOGUES:  # the rows are in the run folder
        yield from _lines_of_split(recipe.parent / CATALOGUES, str(train), names)
    elif not isinstance(train, list):
        yield from _lines_of_split(Path(data["path"]), str(train), names)
    else:
        for corpus in train:
            if isinstance(corpus, dict) and isinstance(corpus.get("path"), str):
                yield from _lines_of_split(Path(corpus["path"]), str(corpus.get("split", "train")), names)


def _lines_of_split(folder: Path, split: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the long lines of a split in the files of a folder; `names` are the columns of line-aligned text."""
    for name in names:
        for path in (folder / f"{split}.{name}", folder / f"{split}.{name}.gz"):
            if path.is_file():
                yield from _long(islice(read_lines(path), TRAINING_LINES))
    for path in (folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz"):
        if path.is_file():
            for line in islice(read_lines(path), TRAINING_LINES):
                yield from _long(_texts(line))
    for end in DELIMITERS:
        if (path := folder / f"{split}{end}").is_file():
            for _, cells in islice(read_cells(path), TRAINING_LINES):
                yield from _long(line for cell in cells for line in cell.split("\n"))


def _names(value: object) -> list[str]:
    """Return the names in a setting that is a name or a list of names."""
    return [name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)]


def _texts(line: str) -> Iterator[str]:
    """Yield the texts in a line of JSON, at any depth."""
    try:
        stack = [parse_json(line)]
    except ValueError:
        return
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            stack += list(value.values() if isinstance(value, dict) else value)


def _long(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        text = " ".join(line.split())
        if len(text) >= LONG_LINE:
            yield text
