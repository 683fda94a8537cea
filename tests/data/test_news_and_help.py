"""The folder of short sentences in three languages."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hf_multisource.data.files import read_lines
from hf_multisource.data.rows import read_split
from prepare import news_and_help


def write(data: Path, name: str, *lines: tuple[str, str, str]) -> None:
    for language, column in zip(news_and_help.LANGUAGES, zip(*lines, strict=True), strict=True):
        path = data / f"{name}.{language}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(f"{text}\n" for text in column).encode()))


def test_the_folder_has_the_lines_that_are_short_in_every_language(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    for names in news_and_help.SPLITS.values():
        for name in names:
            write(data, name, (f"fr {name}", "de", "en"), ("un deux trois", "eins", "one"), ("", "leer", "empty"))
    news_and_help.main([str(data), str(out), "--longest", "2"])
    rows = read_split(str(out), "train", ["fr", "fr2", "de"], "en").rows
    assert [row["fr"] for row in rows] == [f"fr {name}" for name in news_and_help.SPLITS["train"]]
    assert all(row["fr2"] == row["fr"] and (row["de"], row["en"]) == ("de", "en") for row in rows)
    assert read_lines(out / "news.fr") == ["fr wmt_news/newstest2012"]
    assert [len(read_lines(out / f"{split}.de")) for split in ("dev", "test")] == [1, 1]


def test_unlike_numbers_of_lines_are_refused(tmp_path: Path) -> None:
    for names in news_and_help.SPLITS.values():
        for name in names:
            write(tmp_path, name, ("a", "b", "c"))
    (tmp_path / "wmt_news" / "newstest2009.de.gz").write_bytes(gzip.compress(b"b\nb\n"))
    with pytest.raises(SystemExit, match=r"news_and_help\.py: .*newstest2009: 1, 2, 1 lines in fr, de, en"):
        news_and_help.main([str(tmp_path), str(tmp_path / "out")])
