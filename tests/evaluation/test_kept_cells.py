"""Archives of finished cells: what a damaged or foreign archive does."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from hf_multisource.evaluation.kept_cells import keep_cell, restore_cell

REFERENCES = ("a b", "b")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The archive of a cell with two hypotheses."""
    cell = tmp_path / "row/seed-1"
    (cell / "scores").mkdir(parents=True)
    (cell / "cell.json").write_text('{"score": null}\n' * 20)
    (cell / "scores/test.all.txt").write_text("a b\nb\n")
    (cell / "scores/test.reference.txt").write_text("a b\nb\n")
    (cell / "model.safetensors").write_bytes(b"weights")
    path = tmp_path / "cells/row.seed-1.zip"
    keep_cell(cell, path)
    return path


def test_a_cell_comes_back_with_the_references_and_without_weights(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "restored/seed-1"
    assert restore_cell(archive, folder, REFERENCES, lambda place: (place / "cell.json").exists())
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert files == ["cell.json", "scores/test.all.txt", "scores/test.reference.txt"]
    assert (folder / "scores/test.reference.txt").read_text() == "a b\nb\n"


def test_an_archive_with_any_bit_flipped_is_restored_or_named(archive: Path, tmp_path: Path) -> None:
    content, folder = archive.read_bytes(), tmp_path / "restored/seed-1"
    outcomes: set[bool | str] = set()
    for i in range(len(content)):
        archive.write_bytes(content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :])
        try:
            outcomes.add(restore_cell(archive, folder, REFERENCES, lambda place: False))
        except ValueError as error:
            outcomes.add("named")
            assert str(archive) in str(error)
        assert not folder.exists()
    assert outcomes == {False, "named"}


@pytest.mark.parametrize("name", ["scores/..", "../cell.json", "other.json", "scores/a/b.txt", "/cell.json"])
def test_a_file_that_no_cell_has_is_refused(archive: Path, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(archive, "a") as entries:
        entries.writestr(name, "x")
    with pytest.raises(ValueError, match=r"row\.seed-1\.zip holds .*, which is no file of a cell"):
        restore_cell(archive, tmp_path / "restored/seed-1", REFERENCES, lambda place: True)
