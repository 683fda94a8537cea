"""What an interrupted translation says, and the texts that may come out of a pipe."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hf_multisource.cli import translate
from hf_multisource.evaluation import translating
from hf_multisource.evaluation.decoding import Search
from scored import make_run


def test_an_interrupted_translation_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    run = make_run(tmp_path / "run", tmp_path / "data")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(translating, "decode_shards", interrupted)
    out = tmp_path / "out.cs"
    with pytest.raises(SystemExit) as end:
        translate.main([str(run), "--en", str(tmp_path / "data" / "test.en"), "--out", str(out)])
    assert end.value.code == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"hf-multisource translate: interrupted; the same command continues {out}"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_sentences_may_come_out_of_pipes(tmp_path: Path) -> None:
    reading, writing = os.pipe()  # as a shell makes for <(zcat x.gz)
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    named = tmp_path / "de.gz"
    os.mkfifo(named)
    writer = threading.Thread(target=named.write_bytes, args=[gzip.compress(b"eins\nzwei\n")], daemon=True)
    writer.start()
    try:
        rows = translating.rows_from_files({"en": f"/dev/fd/{reading}", "de": str(named)})
    finally:
        os.close(reading)
    writer.join(10)
    assert rows == [{"en": "one", "de": "eins"}, {"en": "two", "de": "zwei"}]
    with pytest.raises(OSError, match="/dev/zero is not a regular file"):
        translating.rows_from_files({"en": "/dev/zero"})


class Input(io.TextIOWrapper):
    """Standard input with a text, in a terminal or not."""

    def __init__(self, text: str, terminal: bool) -> None:
        super().__init__(io.BytesIO(text.encode()))
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("job", "text", "said"),
    [
        ({}, "one\teins\n", "lines with the texts of en, de between tabs"),
        ({"table": "-"}, "one\teins\n", "lines with the texts of en, de between tabs"),
        ({"jsonl": True}, '{"en": "one"}\n', "lines with one JSON object each"),
        ({"files": {"de": "file", "en": "-"}}, "one\n", "the lines of en"),
        ({"files": {"en": "file"}}, "", ""),
        ({"table": "file.tsv"}, "", ""),
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_in_a_terminal_it_says_that_it_waits_for_standard_input(
    job: dict[str, Any],
    text: str,
    said: str,
    terminal: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("one\n", "utf-8")
    Path("file.tsv").write_text("en\tde\none\teins\n", "utf-8")
    monkeypatch.setattr(sys, "stdin", Input(text, terminal))
    given: dict[str, Any] = {"files": {}, "search": Search(), **job}
    assert len(translating.read_rows(translating.Translation("run", **given), ["en", "de"], {}, {})) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (f"reading {said} from standard input; end with Ctrl-D\n" if said and terminal else "")
