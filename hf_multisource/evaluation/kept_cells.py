"""Archive the finished cells of an experiment beside its rows, without model weights.

The archives allow an experiment to continue on another machine. RESULTS/<experiment>/cells holds a small archive of
every finished cell with its recipe, summary, learning curve, scores and hypotheses. All rows, comparisons and pages can
be made again from the archives, further seeds and rows can be added, and other systems can be compared with each
hypothesis. The references are not archived, because they are read from the data.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hf_multisource.data.archives import BROKEN
from hf_multisource.data.files import write_text
from hf_multisource.recipes.shipped import RECIPE

FILES = (
    "cell.json",
    "config.json",
    "fingerprint.json",
    "made_of.json",
    RECIPE,
    "train_summary.json",
    "trainer_state.json",
    "versions.json",
    "words.json",
)
SCORES = "scores"
REFERENCE = ".reference.txt"  # suffix, after the name of the split, of the file of references
EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed time stamp of all ZIP entries, so that equal cells give identical archives


def keep_cell(folder: Path, archive: Path) -> None:
    """Write the archive of a finished cell.

    Args:
        folder: The folder of the cell.
        archive: Path of the archive, which is replaced atomically.
    """
    chosen = [folder / name for name in FILES if (folder / name).is_file()]
    if (folder / SCORES).is_dir():
        chosen += [path for path in sorted((folder / SCORES).iterdir()) if _is_kept(path)]
    write_archive(archive, {path.relative_to(folder).as_posix(): path.read_bytes() for path in chosen})


def write_archive(archive: Path, files: Mapping[str, bytes]) -> None:
    """Write a ZIP archive reproducibly: equal files give an identical archive.

    Args:
        archive: Path of the archive, which is replaced atomically.
        files: Content of each file by its name in the archive.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=archive.parent, suffix=".tmp", delete=False) as file:
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as entries:
                for name, content in files.items():
                    entries.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
            file.close()
            Path(file.name).chmod(0o644)
            os.replace(file.name, archive)
        finally:
            Path(file.name).unlink(missing_ok=True)


def restore_cell(archive: Path, folder: Path, references: Sequence[str], fits: Callable[[Path], bool]) -> bool:
    """Restore the folder of a cell from its archive.

    Args:
        archive: The archive.
        folder: The folder, which must not exist yet; it is created atomically.
        references: The references of the test split, one for each line that was scored.
        fits: Predicate that receives a temporary folder with the restored cell and returns whether to accept the cell.

    Returns:
        True if the cell was restored, False if `fits` rejected it.

    Raises:
        ValueError: If the archive is damaged, holds files that `keep_cell` does not write, or its hypotheses and the
            references differ in number; the message names the archive.
    """
    files = _read_archive(archive)
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        for name, content in files.items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(content)
        if not fits(place):
            return False
        for path in sorted((place / SCORES).glob("*.all.txt")):
            if (found := path.read_bytes().count(b"\n")) != len(references):
                raise ValueError(f"{archive} holds {found} hypotheses, but there are {len(references)} references")
            text = "".join(f"{line}\n" for line in references)
            write_text(path.with_name(path.name.replace(".all.txt", REFERENCE)), text)
        place.chmod(0o755)
        place.rename(folder)
        return True
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _read_archive(archive: Path) -> dict[str, bytes]:
    """Return the content of each file of an archive by its name."""
    try:
        with zipfile.ZipFile(archive) as entries:
            files = {entry.filename: entries.read(entry) for entry in entries.infolist()}
    except FileNotFoundError:
        raise
    except BROKEN as error:
        raise ValueError(f"{archive} is damaged ({error}): remove it, and the cell is trained again") from error
    for name in files:
        parts = Path(name).parts
        if not (name in FILES or (len(parts) == 2 and parts[0] == SCORES and parts[1] != "..")):
            raise ValueError(f"{archive} holds {name!r}, which is no file of a cell")
    return files


def _is_kept(path: Path) -> bool:
    return path.suffix in (".json", ".txt") and not path.name.endswith(REFERENCE)
