"""What an interrupted translation says, and the texts that may come out of a pipe."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from hf_multisource.cli import translate
from hf_multisource.evaluation import translating
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
