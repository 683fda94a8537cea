"""Keep what the rows of an experiment are made of beside the rows: the finished cells, without their weights.

An experiment of many cells outlives the machine on which it began. RESULTS/<experiment>/cells holds a small archive of
every finished cell: its recipe, summary, learning curve, scores and hypotheses. From these all rows, comparisons and
pages can be made again, other seeds and rows can be added, and other systems can be compared with each hypothesis. The
references are not kept: they are a part of the data, and are read from there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hf_multisource.data.files import write_text

FILES = (
    "cell.json",
    "config.json",
    "fingerprint.json",
    "made_of.json",
    "recipe.yaml",
    "train_summary.json",
    "trainer_state.json",
    "versions.json",
    "words.json",
)
SCORES = "scores"
REFERENCE = ".reference.txt"  # behind the name of the split
EPOCH = (1980, 1, 1, 0, 0, 0)  # of all entries: the same cell gives the same archive


def keep_cell(folder: Path, archive: Path) -> None:
    """Write the archive of a finished cell.

    Args:
        folder: The folder of the cell.
        archive: The archive, which is replaced in one step.
    """
    chosen = [folder / name for name in FILES if (folder / name).is_file()]
    if (folder / SCORES).is_dir():
        chosen += [path for path in sorted((folder / SCORES).iterdir()) if _is_kept(path)]
    write_archive(archive, {path.relative_to(folder).as_posix(): path.read_bytes() for path in chosen})


def write_archive(archive: Path, files: Mapping[str, bytes]) -> None:
    """Write a ZIP archive; the same files give the same archive.

    Args:
        archive: The archive, which is replaced in one step.
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
        folder: The folder, which must not exist yet; it appears in one step.
        references: The references of the test split, one for each line that was scored.
        fits: Tells whether the cell that lies in a temporary folder is the one that is wanted.

    Returns:
        Whether it was restored.

    Raises:
        ValueError: If the archive is damaged, holds other files than `keep_cell` writes, or hypotheses for another
            number of references; the message names it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        with zipfile.ZipFile(archive) as entries:
            for entry in entries.infolist():
                path = Path(entry.filename)
                if not (entry.filename in FILES or (len(path.parts) == 2 and path.parts[0] == SCORES)):
                    raise ValueError(f"{archive} holds {entry.filename!r}, which is no file of a cell")
                (place / path).parent.mkdir(exist_ok=True)
                (place / path).write_bytes(entries.read(entry))
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
    except zipfile.BadZipFile as error:
        raise ValueError(f"{archive} is damaged ({error}): remove it, and the cell is trained again") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _is_kept(path: Path) -> bool:
    return path.suffix in (".json", ".txt") and not path.name.endswith(REFERENCE)
