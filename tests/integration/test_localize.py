"""`hf-multisource localize` with a small model: from catalogues to catalogues, also through kills."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from hf_multisource.cli.app import main
from hf_multisource.data.catalogue_entries import FUZZY
from hf_multisource.data.catalogue_files import read_catalogue
from hf_multisource.data.placeholders import broken_placeholders
from hf_multisource.evaluation.confidence import Confidence, digest_weight_files
from small_run import SOURCES, save_run

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "localization_kills.py"
TEXTS = ["Open <b>{ $name }</b>", "Quit { -brand }: %s", "One\n    Two { $x }", "{ $n }: { $x }"]


def save_catalogues(place: Path, number: int) -> list[str]:
    """Write catalogues of both sources, with so many messages; the arguments that name them."""
    for name in SOURCES:
        messages = [f"m{i} = {TEXTS[i % len(TEXTS)]} {name} {i}\n" for i in range(number)]
        (place / name).mkdir(parents=True)
        (place / name / "a.ftl").write_text("".join(messages), "utf-8")
    return ["--source", *(f"{name}={place / name}" for name in SOURCES)]


def everything(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_model_fills_catalogues_with_whole_placeholders(tmp_path: Path) -> None:
    run, sources = save_run(tmp_path / "run"), save_catalogues(tmp_path / "in", len(TEXTS))
    arguments = ["--target", "dsb", *sources, "--num_beams", "3", "--max_new_tokens", "8", "--device", "cpu"]
    main(["localize", run, *arguments, "--out", f"{tmp_path}/out", "--review", f"{tmp_path}/review.html"])
    record = json.loads((tmp_path / "out.json").read_text("utf-8"))
    filled = {text["key"]: text for text in record["texts"] if text["state"] == "filled"}
    assert len(filled) >= 2  # a model that has learned nothing may write other white space, which is refused
    entries = read_catalogue("a.ftl", (tmp_path / "out/a.ftl").read_bytes()).entries
    assert {entry.key: (entry.text, entry.state) for entry in entries} == {
        key: (text["text"], FUZZY) for key, text in filled.items()
    }
    for text in filled.values():
        assert broken_placeholders(text["sources"]["en"], text["text"], "fluent") == []
    assert all(text["reason"] for text in record["texts"] if text["key"] not in filled)
    save_run(tmp_path / "run", seed=1)
    with pytest.raises(SystemExit, match="out was made with other settings: the contents of weights have changed"):
        main(["localize", run, *arguments, "--out", f"{tmp_path}/out"])
    with pytest.raises(SystemExit, match=r"--min_confidence needs the file confidence\.json"):
        main(["localize", run, *arguments, "--out", f"{tmp_path}/x", "--min_confidence", "0.5"])


def test_the_confidence_of_a_run_stands_beside_each_translation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, sources = save_run(tmp_path / "run"), save_catalogues(tmp_path / "in", len(TEXTS))
    search = {"length_penalty": 1.0, "max_new_tokens": 8, "optimize": None}
    digest = digest_weight_files(tmp_path / "run")
    confidence = Confidence(("en", "de"), 3, search, (0.0, 0.0, 1.0), -1.0, digest, {})
    confidence.save(run)
    arguments = ["--target", "dsb", *sources, "--max_new_tokens", "8", "--device", "cpu", "--out", f"{tmp_path}/out"]
    with pytest.raises(SystemExit, match=r"--num_beams is 4; the confidence of .* was fitted to translations with 3"):
        main(["localize", run, *arguments, "--num_beams", "4"])
    main(["localize", run, *arguments, "--min_confidence", "0.73"])
    assert not caplog.messages
    record = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert record["settings"]["num_beams"] == 3
    known = [text["confidence"] for text in record["texts"] if text["text"]]
    assert known == [pytest.approx(1 / (1 + math.exp(-1)))] * len(known)  # of two sources
    assert (tmp_path / "out/a.ftl").read_text("utf-8").count("# From: model (confidence 0.73)\n") == len(known) > 0
    other = [*arguments[:-1], f"{tmp_path}/other", "--optimize", "int8", "--max_new_tokens", "9"]
    main(["localize", run, *other])
    assert caplog.messages == [
        f"the confidence of {run} was fitted with another search (max_new_tokens was 8, is 9; optimize was None, is "
        "int8), so its probabilities may be wrong: use those settings, or run `hf-multisource calibrate` with yours"
    ]


@pytest.mark.slow
def test_after_ten_kills_at_random_moments_the_files_are_those_of_one_run(tmp_path: Path) -> None:
    run, sources = save_run(tmp_path / "run"), save_catalogues(tmp_path / "in", 60)
    arguments = [run, "--target", "dsb", *sources, "--max_new_tokens", "30", "--device", "cpu", "--out"]
    for folder, kills in (("whole", 0), ("killed", 10)):
        (tmp_path / folder).mkdir()
        out = f"{tmp_path}/{folder}/dsb"
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(kills), "0", "2.5", *arguments, out], check=True, capture_output=True
        )
        assert (int(done.stdout) > 2) == (kills > 0)
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")
