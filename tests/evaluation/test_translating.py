"""What an interrupted translation says."""

from __future__ import annotations

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

    monkeypatch.setattr(translating, "decode", interrupted)
    out = tmp_path / "out.cs"
    with pytest.raises(SystemExit) as end:
        translate.main([str(run), "--en", str(tmp_path / "data" / "test.en"), "--out", str(out)])
    assert end.value.code == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"hf-multisource translate: interrupted; the same command continues {out}"
