"""`hf-multisource calibrate`: decodes a development set once, fits the confidence, and shows how good it is."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hf_multisource.cli.app import main
from hf_multisource.evaluation import calibration
from hf_multisource.evaluation.calibration import Calibration, calibrate, describe_confidence
from hf_multisource.evaluation.confidence import FILE, Confidence
from hf_multisource.evaluation.text_translator import Candidate, TextTranslator, Translation
from hf_multisource.json_files import JsonObject
from hf_multisource.recipes.recipe import load_recipe
from runs import write_lines
from scored import make_run

ROWS = 200


class Learned:
    """Writes the reference of a row with a probability that its score tells."""

    sources = ("en", "de")

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.options: dict[str, Any] = {}

    def search_settings(self, max_new_tokens: int | None = None) -> JsonObject:
        return {"length_penalty": 1.0, "max_new_tokens": max_new_tokens or 128, "optimize": "int8"}

    def translate(self, rows: Sequence[Mapping[str, str | None]], **options: Any) -> list[Translation]:
        self.calls.append(len(rows))
        self.options = options
        return [translated(row) for row in rows]


def translated(row: Mapping[str, str | None]) -> Translation:
    number = str(row["en"]).removeprefix("text ")
    rng = random.Random(number)
    if rng.random() < 0.1:
        return Translation(refused="a placeholder is missing")
    score = -rng.random()
    right = rng.random() < (1 + score) ** 2
    return Translation((Candidate(f"{'wort' if right else 'wert'} {number}", score), Candidate("x", score - 0.5)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with weights, without a recipe; and a development set."""
    write_lines(tmp_path / "dev.en", [f"text {i}" for i in range(ROWS)])
    write_lines(tmp_path / "dev.de", [f"Text {i}" if i % 3 else "" for i in range(ROWS)])
    write_lines(tmp_path / "dev.dsb", [f"wort {i}" for i in range(ROWS)])
    (tmp_path / "run").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "run/model.safetensors")
    return tmp_path / "run"


def job_of(folder: Path, **changes: Any) -> Calibration:
    return Calibration(**{"run": str(folder), "data": str(folder.parent), "target": "dsb", "split": "dev", **changes})


def test_the_confidence_lies_beside_the_weights_and_says_how_good_it_is(run: Path) -> None:
    found = calibrate(job_of(run, num_beams=4, syntax="html"), "the command", learned := Learned())
    assert Confidence.load(run) == found
    assert found.sources == ("en", "de")
    assert found.num_beams == 4
    assert found.search == {"length_penalty": 1.0, "max_new_tokens": 128, "optimize": "int8"}
    assert found.facts["syntax"] == "html"
    assert learned.options == {"n_best": 2, "num_beams": 4, "max_new_tokens": None, "syntax": "html"}
    assert found.facts["command"] == "the command"
    low, high = (Translation((Candidate("a", score), Candidate("b", score - 0.5))) for score in (-0.9, -0.05))
    assert found.probability({"en": "a"}, low) < 0.3 < 0.7 < found.probability({"en": "a"}, high)
    quality = found.facts["cross_validation"]
    lines = describe_confidence(found).splitlines()
    assert lines[0] == (
        f"200 rows of split 'dev': {quality['correct']} best candidates equal the reference, {quality['refused']} "
        "translations were refused"
    )
    assert f"Brier score {quality['brier']:.3f}" in lines[1]
    assert "of these correct" in lines[3]
    assert quality["refused"] > 0
    assert quality["brier"] < quality["brier_of_constant"]


def test_the_confidence_is_also_measured_on_another_split(run: Path) -> None:
    for name, word in (("en", "text"), ("de", "Text"), ("dsb", "wort")):
        write_lines(run.parent / f"test.{name}", [f"{word} {ROWS + i}" for i in range(50)])
    alone = calibrate(job_of(run), "x", Learned())
    found = calibrate(job_of(run, evaluate="test"), "x", learned := Learned())
    assert learned.calls == [50]
    assert (found.weights, found.bias) == (alone.weights, alone.bias)
    rows = [{"en": f"text {ROWS + i}", "de": f"Text {ROWS + i}"} for i in range(50)]
    translations = [translated(row) for row in rows]
    kept = [i for i in range(50) if translations[i].candidates]
    right = [translations[i].candidates[0].text == f"wort {ROWS + i}" for i in kept]
    covered = [found.probability(rows[i], translations[i]) >= 0.5 for i in kept]
    measured = found.facts["evaluated"]
    assert (measured["split"], measured["rows"], measured["refused"]) == ("test", 50, 50 - len(kept))
    assert 0 < measured["correct"] == sum(right) < len(kept)
    half = next(one for one in measured["coverage"] if one["threshold"] == 0.5)
    assert 0 < half["rows"] == sum(covered) < len(kept)
    assert half["covered"] == sum(covered) / 50
    assert half["correct"] == sum(a and b for a, b in zip(right, covered, strict=True)) / sum(covered)
    said = describe_confidence(found)
    assert "200 rows of split 'dev'" in said and "50 rows of split 'test'" in said
    assert Confidence.load(run) == found
    with pytest.raises(ValueError, match="evaluate is 'dev', the split on which the confidence is fitted"):
        calibrate(job_of(run, evaluate="dev"), "x", Learned())


def test_a_split_whose_translations_are_all_refused_cannot_be_measured(run: Path) -> None:
    found = calibrate(job_of(run), "x", Learned())
    with pytest.raises(ValueError, match="all 2 translations were refused"):
        found.measure_on([{"en": "a"}] * 2, [Translation(refused="it has no end")] * 2, ["b"] * 2)


def test_the_fit_is_kept_if_the_other_split_fails(run: Path) -> None:
    for name, word in (("en", "text"), ("de", "Text"), ("dsb", "wort")):
        write_lines(run.parent / f"test.{name}", [f"{word} 1"])

    class Refuses(Learned):
        def translate(self, rows: Sequence[Mapping[str, str | None]], **options: Any) -> list[Translation]:
            if len(rows) == 1:
                return [Translation(refused="it has no end")]
            return super().translate(rows, **options)

    with pytest.raises(ValueError, match="all 1 translations were refused"):
        calibrate(job_of(run, evaluate="test"), "x", Refuses())
    assert Confidence.load(run) is not None


def test_an_interrupted_calibration_goes_on_and_a_finished_one_decodes_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "WINDOW", 64)
    whole = calibrate(job_of(run), "x", Learned())
    (file,) = (run / "calibration").glob("dev-*.jsonl")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:100]) + b'{"cand')
    (run / FILE).unlink()
    assert calibrate(job_of(run), "x", learned := Learned()) == whole
    assert learned.calls == [64, 36]
    assert calibrate(job_of(run), "x", learned := Learned()) == whole
    assert learned.calls == []


def test_another_search_and_other_weights_are_decoded_anew(run: Path) -> None:
    calibrate(job_of(run), "x", Learned())
    assert calibrate(job_of(run, num_beams=4), "x", learned := Learned()).num_beams == 4
    assert learned.calls == [128, 72]
    calibrate(job_of(run, optimize="int8"), "x", learned := Learned())
    assert learned.calls == [128, 72], "8-bit translations are other ones"
    save_file({"a": torch.zeros(2)}, run / "model.safetensors")
    with pytest.raises(ValueError, match="was fitted on other weights"):
        Confidence.load(run)
    found = calibrate(job_of(run), "x", learned := Learned())
    assert learned.calls == [128, 72]
    assert Confidence.load(run) == found


def test_a_run_on_catalogues_is_fitted_on_the_rows_that_it_has_read(run: Path, tmp_path: Path) -> None:
    """Its recipe names the place of the catalogues, which are not read again."""
    recipe = load_recipe("demo", {"sources": ["en", "de"], "target": "dsb", "output_dir": str(run)})
    data = replace(recipe.data, path="l10n/{lang}", kind="catalogues", catalogues={"source_language": "en"})
    replace(recipe, data=data).save(run / "recipe.yaml")
    job = Calibration(run=str(run))
    with pytest.raises(FileNotFoundError, match=r"holds the rows that the run has read from l10n/\{lang\}"):
        calibrate(job, "x", Learned())
    (run / "catalogues").mkdir()
    for path in tmp_path.glob("dev.*"):
        path.rename(run / "catalogues" / path.name)
    found = calibrate(job, "x", learned := Learned())
    assert learned.calls == [128, 72]
    assert calibrate(replace(job, data=str(run / "catalogues")), "x", Learned()) == found


def test_what_is_missing_is_named(run: Path) -> None:
    for changes, message in (
        ({"run": "nowhere"}, "there is no folder nowhere"),
        ({"num_beams": 1}, "num_beams is 1; it must be at least 2"),
        ({"syntax": "tex"}, "syntax is 'tex'; allowed are html"),
        ({"target": None}, "has no recipe.yaml, so give --target"),
        ({"limit": 30}, "a confidence needs at least 20 of each: give more rows"),
    ):
        with pytest.raises(ValueError) as error:
            calibrate(job_of(run, **changes), "x", Learned())
        assert message in str(error.value)
    assert not (run / FILE).exists()


def test_the_command_reads_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The toy model has learned nothing: it is never right."""
    make_run(tmp_path / "run", tmp_path)
    for name in ("en", "de", "cs"):
        (tmp_path / f"test.{name}").rename(tmp_path / f"dev.{name}")
    with pytest.raises(SystemExit, match=r"0 of .* translations equal their references"):
        main(["calibrate", str(tmp_path / "run"), "--num_beams", "2", "--max_new_tokens", "4", "--device", "cpu"])
    (file,) = (tmp_path / "run/calibration").glob("dev-*.jsonl.json")
    assert json.loads(file.read_text())["settings"]["rows"] == 12
    learned = Learned()
    monkeypatch.setattr(TextTranslator, "from_run", lambda name, **options: learned)
    for name, word in (("en", "text"), ("de", "Text"), ("cs", "wort")):
        write_lines(tmp_path / f"other.{name}", [f"{word} {i}" for i in range(ROWS)])
    main(["calibrate", str(tmp_path / "run"), "--split", "other"])
    assert "200 rows of split 'other': " in capsys.readouterr().out
    assert learned.options["num_beams"] == 5
