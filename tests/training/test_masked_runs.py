"""Runs whose texts are masked: what is trained on, how they are evaluated, and what reads them afterwards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hf_multisource import MultiSourceProcessor
from hf_multisource.cli import translate
from hf_multisource.data.masking import REFERENCE, TABLE, mask_evaluated, mask_sources, remembered_syntax
from hf_multisource.data.placeholders import broken_placeholders
from hf_multisource.data.rows import Row
from hf_multisource.evaluation import scoring, text_translator
from hf_multisource.evaluation.scoring import Scoring, score
from hf_multisource.evaluation.text_translator import TextTranslator
from hf_multisource.metrics.measurement import Counts, mean_of
from hf_multisource.metrics.table import METRICS, Metric
from hf_multisource.recipes.masked_evaluation import MaskedReferences
from hf_multisource.recipes.mixture import read_mixture
from hf_multisource.recipes.processor import make_processor
from hf_multisource.recipes.tokenization import train_tokenizer, write_tokenizers
from hf_multisource.recipes.training import train
from runs import EVALUATED, WORDS, files_of, make_folder, read_json, recipe_of, write_lines

PLACEHOLDERS = ["%S", "{ $user }", "<b>%1$S</b>", "&brandShortName;", "%s %d"]
BAD = {
    "selector": {"en": "{ $n -> [one] tab *[other] tabs }", "de": "Tab", "cs": "karta"},
    "other": {"en": "dog %S", "de": "Hund", "cs": "pes %S"},
    "too many": {"en": " ".join(f"%{i}$S" for i in range(1, 18)), "de": "", "cs": "pes"},
}
MASKED: dict[str, Any] = {"placeholders": "any", "tokenizer.vocab_size": 400, "max_length": 48, **EVALUATED}


def mask_folder(folder: Path) -> Path:
    """Fill a folder with texts that have placeholders, and rows that cannot be learned from."""
    make_folder(folder)
    for split, lines in {"train": 40, "dev": 12, "test": 12}.items():
        rng = random.Random(split)
        columns: dict[str, list[str]] = {name: [] for name in ("en", "de", "cs")}
        for i in range(lines):
            places, words = rng.sample(PLACEHOLDERS, k=rng.randint(0, 2)), rng.choices(range(8), k=2)
            for name, column in columns.items():
                text = " ".join([*places, *(WORDS[name][k] for k in words)])
                column.append("" if name == "de" and i % 5 == 0 else text)
        for bad in BAD.values():
            for name, column in columns.items():
                column.append(bad[name])
        for name, column in columns.items():
            write_lines(folder / "text" / f"{split}.{name}", column)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mask_folder(tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def measured() -> list[tuple[list[str], list[str]]]:
    """The hypotheses and references of the evaluations of `run`."""
    return []


@pytest.fixture(scope="module")
def run(folder: Path, measured: list[tuple[list[str], list[str]]]) -> Path:
    """A run that has been evaluated twice."""

    def compute(hypotheses: list[str], references: list[str], *_: Any) -> Counts:
        measured.append((hypotheses, references))
        return mean_of([float(len(measured))], "nrefs:0|made up")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METRICS, "bleu", Metric("BLEU", compute))
        train(recipe_of(folder, **MASKED))
    return folder / "run"


def column(folder: Path, name: str) -> list[str]:
    return (folder / "text" / name).read_text(encoding="utf-8").splitlines()


def sources_of(folder: Path, split: str) -> list[str]:
    """The first present source of every row."""
    return [en or de for en, de in zip(column(folder, f"{split}.en"), column(folder, f"{split}.de"), strict=True)]


def check_whole(sources: list[str], hypotheses: list[str]) -> None:
    """Rows that can be masked have the placeholders of their source; the others are empty."""
    for source, hypothesis in zip(sources, hypotheses, strict=True):
        if source in (BAD["selector"]["en"], BAD["too many"]["en"]):
            assert hypothesis == ""
        else:
            assert broken_placeholders(source, hypothesis) == []


def test_the_run_counts_what_it_drops_and_notes_the_syntax(run: Path) -> None:
    counts = read_json(run / "placeholders.json")
    assert counts["syntax"] == "any" and counts["dev"] == {"rows_that_cannot_be_masked": 2}
    dropped = {key: value for key, value in counts["train"].items() if key.startswith("dropped_") and value}
    assert dropped == {"dropped_selector": 1, "dropped_too_many_placeholders": 1, "dropped_other_placeholders": 1}
    assert counts["train"]["rows"] == 40 and counts["train"]["lines"] == 43
    assert remembered_syntax(MultiSourceProcessor.from_pretrained(run).tokenizer) == "any"


def test_the_evaluations_of_training_compare_raw_texts_with_their_placeholders(
    folder: Path, run: Path, measured: list[tuple[list[str], list[str]]]
) -> None:
    assert len(measured) == 2
    for hypotheses, references in measured:
        assert references == column(folder, "dev.cs")
        check_whole(sources_of(folder, "dev"), hypotheses)
        assert any("%S" in text for text in hypotheses)


def test_hypotheses_of_several_processes_are_restored_once_in_the_order_of_the_rows() -> None:
    rows = [mask_evaluated({"en": text, "cs": text}, ["en"], "cs") for text in ("a %S", "{ $n -> x }", "b %d")]
    hypotheses = ["c <ph1>", "<ph1>", "x", "<ph1>", "c <ph1>"]
    texts, references = MaskedReferences.of_rows(rows).restored(hypotheses, [2, 0, 1, 0, 2])
    assert references == ["a %S", "{ $n -> x }", "b %d"]
    assert texts == ["%S", "", "c %d"]


def test_score_reads_and_measures_raw_texts(folder: Path, run: Path, tmp_path: Path) -> None:
    options: Any = {"num_beams": 2, "batch_size": 4, "device": "cpu", "absent": True, "out": tmp_path}
    report = score(Scoring(str(run), **options), "score")
    assert (tmp_path / "test.reference.txt").read_text(encoding="utf-8").splitlines() == column(folder, "test.cs")
    check_whole(sources_of(folder, "test"), (tmp_path / "test.all.txt").read_text(encoding="utf-8").split("\n")[:-1])
    assert report["conditions"]["all"]["draws"][0]["perplexity"]["tokens"] > 0
    written = sum(bool(line) for line in (tmp_path / "test.all.txt").read_text(encoding="utf-8").split("\n"))
    counts = {"rows": len(column(folder, "test.cs")), "written": written, "whole": written}
    assert report["placeholders"] == {"syntax": "any", **counts}
    (run / "recipe.yaml").rename(run / "recipe.yaml.hidden")  # as on the Hub
    try:
        named: Any = {"data": str(folder / "text"), "target": "cs", "split": "test", "max_length": 48}
        again = score(Scoring(str(run), **{**options, **named, "out": tmp_path / "hub"}), "score")
    finally:
        (run / "recipe.yaml.hidden").rename(run / "recipe.yaml")
    assert again["fingerprint"] == report["fingerprint"]


def test_the_perplexities_of_all_conditions_are_those_of_the_same_masked_targets(
    folder: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = []

    def noting(model: Any, processor: Any, rows: list[dict[str, Any]], target: str, *_: Any) -> dict[str, Any]:
        targets.append([row[target] for row in rows])
        return {"score": 1.0, "cross_entropy": 0.0, "tokens": 1}

    monkeypatch.setattr(scoring, "cross_entropy", noting)
    options: Any = {"num_beams": 1, "device": "cpu", "absent": True, "adversarial": True, "draws": 1, "out": tmp_path}
    score(Scoring(str(run), **options), "score")
    assert len(targets) == 5 and any("<ph1>" in text for text in targets[0])
    assert all(other == targets[0] for other in targets)


def test_translate_reads_and_writes_raw_texts(folder: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.cs"
    files = [f"--{name}={folder / 'text' / f'test.{name}'}" for name in ("en", "de")]
    translate.main([str(run), *files, "--out", str(out), "--num_beams", "2", "--device", "cpu"])
    check_whole(sources_of(folder, "test"), out.read_text(encoding="utf-8").split("\n")[:-1])


def test_the_syntax_of_the_run_is_that_of_its_translator(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syntaxes = []

    def masked(row: Row, sources: Sequence[str], syntax: str) -> Row:
        syntaxes.append(syntax)
        return mask_sources(row, sources, syntax)

    monkeypatch.setattr(text_translator, "mask_sources", masked)
    translator = TextTranslator.from_run(str(run), device="cpu")
    translator.processor.tokenizer.init_kwargs["mask_syntax"] = "printf"
    for syntax in (None, "fluent"):
        translator.translate([{"en": "dog"}], num_beams=2, max_new_tokens=2, syntax=syntax)
    assert syntaxes == ["printf", "fluent"]


def test_a_finished_run_is_found_to_be_finished(folder: Path, run: Path) -> None:
    before = files_of(run)
    assert train(recipe_of(folder, **MASKED), resume=True)["resumed"]
    assert files_of(run)["placeholders.json"] == before["placeholders.json"]
    assert files_of(run)["model.safetensors"] == before["model.safetensors"]


def test_another_syntax_is_another_run(folder: Path, run: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.placeholders was 'any', is 'fluent'"):
        train(recipe_of(folder, **{**MASKED, "placeholders": "fluent"}), resume=True)


def test_joined_texts_are_masked_before_they_are_joined(folder: Path) -> None:
    data = recipe_of(folder, **{**MASKED, "concatenate": True}).data
    row = data.model_rows([{"en": "Open %S &amp; %1$S", "de": "%S öffnen", "cs": "Otevřít %S"}])[0]
    assert row["all"] == "Open <ph1> &amp; <ph1> | <ph1> öffnen"
    assert row["cs"] == "Otevřít <ph1>" and row[REFERENCE] == "Otevřít %S"
    assert row[TABLE].texts == {"<ph1>": ("%S", "%1$S")}


def test_corpora_of_a_mixture_are_masked_before_they_are_tagged(folder: Path) -> None:
    corpora = [{"path": str(folder / "text")}, {"path": str(folder / "text"), "weight": 2, "tag": {"de": "<b>"}}]
    split, reports = read_mixture(recipe_of(folder, **{**MASKED, "train": corpora}).data, seed=1)
    assert len(split.rows) == 3 * 40
    assert all(report["dropped_selector"] == 1 for report in reports.values())
    tagged = [row["de"] for row in split.rows[40:] if row["de"] is not None]
    assert tagged and all(text.startswith("<b> ") for text in tagged)
    assert any("<ph1>" in text for text in tagged) and not any("%S" in str(row.values()) for row in split.rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placeholders": "tex"}, r"data\.placeholders must be one of html, .*; got 'tex'"),
        ({"reverse": True}, r"data\.placeholders is any, but reverse runs do not mask texts"),
        (
            {"kind": "symbols"},
            r"data\.placeholders needs a tokenizer of one of the kinds bpe.*; tokenizer\.kind is symbols",
        ),
        ({"romanize": ["cs"]}, r"tokenizer\.romanize has the target 'cs'"),
    ],
)
def test_what_cannot_be_masked_is_refused_by_name(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe_of(folder, **{**MASKED, **changes})


def test_sources_that_are_no_texts_are_refused_by_name(folder: Path) -> None:
    sources = [{"name": "de", "kind": "features", "feature_size": 4}]
    with pytest.raises(ValueError, match=r"data\.placeholders masks texts; the sources must all be texts"):
        recipe_of(folder, **{**MASKED, "model.sources": sources}).forms()


def test_a_loaded_tokenizer_needs_the_mask_tokens(folder: Path, tmp_path: Path) -> None:
    train_tokenizer(["pes"], "bpe", 265).save_pretrained(tmp_path / "without")
    train_tokenizer(["pes"], "bpe", 380, mask_tokens=True).save_pretrained(tmp_path / "with")
    rows = [{"en": "dog", "de": "Hund", "cs": "pes"}]
    with pytest.raises(ValueError, match=r"data\.placeholders: the tokenizer of 'target' in tokenizer\.load .* lacks"):
        make_processor(recipe_of(folder, **{**MASKED, "load": str(tmp_path / "without")}), rows, {})
    processor = make_processor(recipe_of(folder, **{**MASKED, "load": str(tmp_path / "with")}), rows, {})
    assert remembered_syntax(processor.tokenizer) == "any"
    wrapped: dict[str, Any] = {"de": train_tokenizer(["Hund"], "bpe", 265)}
    with pytest.raises(ValueError, match=r"the tokenizer of source 'de', a wrapped encoder, lacks the mask tokens"):
        make_processor(recipe_of(folder, **{**MASKED, "load": str(tmp_path / "with")}), rows, wrapped)


def test_the_tokenizer_command_masks_texts_for_such_runs(folder: Path, tmp_path: Path) -> None:
    lines = write_tokenizers(str(folder / "text"), ["en", "de"], "cs", tmp_path, vocab_size=400, placeholders="any")
    assert lines[0] == "3 rows are left out: their placeholders differ or cannot be masked"
    recipe = recipe_of(folder, **{**MASKED, "load": str(tmp_path)})
    processor = make_processor(recipe, [{"en": "dog", "de": "Hund", "cs": "pes"}], {})
    assert remembered_syntax(processor.tokenizer) == "any"
    assert not any("brand" in token for token in processor.tokenizer.get_vocab())  # it has not read placeholders
    for wrong in ({"kind": "symbols"}, {"romanize": ["cs"]}):
        options: Any = {"placeholders": "any", **wrong}
        with pytest.raises(ValueError, match="placeholders is any"):
            write_tokenizers(str(folder / "text"), ["en", "de"], "cs", tmp_path / "new", **options)
