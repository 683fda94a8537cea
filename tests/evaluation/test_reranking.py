"""Reranking: reverse scores by two roads, the choice of the weight, the file of candidates, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import tiny_config
from hf_multisource import DataCollatorForMultiSource, MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.cli.score import main as score_main
from hf_multisource.data.files import read_lines
from hf_multisource.data.rows import Row
from hf_multisource.evaluation import decoding, reranking
from hf_multisource.evaluation.decoding import Search, decode
from hf_multisource.evaluation.reranking import (
    WEIGHTS,
    Candidate,
    ReverseModel,
    choose_weight,
    describe_reranking,
    find_candidates,
    load_reverse,
    oracle_texts,
    rerank,
    reranked_texts,
    reverse_scores,
)
from hf_multisource.evaluation.results import make_row, render
from hf_multisource.recipes.schema import reverse_marker
from hf_multisource.recipes.tokenization import train_tokenizer
from runs import make_folder, read_json, train_at, write_lines
from scored import OPTIONS, make_run

LETTERS = "a b c d e f"
SOURCES = ["x", "y"]
ROWS: list[Row] = [
    {"x": "a b", "y": "c", "z": "d"},
    {"x": None, "y": "e f a", "z": "c d"},
    {"x": "b", "y": None, "z": "a"},
    {"x": "a b c d", "y": "f f", "z": "e"},
    {"x": "c", "z": "b b"},
]
TEXTS = [["a", "b c", "a"], ["d"], ["", "a b", "c"], ["e f", "e"], ["b", "c", "d", "e"]]


def model_of(names: list[str], processor: MultiSourceProcessor, seed: int) -> MultiSourceForConditionalGeneration:
    torch.manual_seed(seed)
    size = len(processor.tokenizer)
    config = tiny_config("serial", names, vocab_size=size, initializer="normal", init_std=1.0)
    return MultiSourceForConditionalGeneration(config).eval()


@pytest.fixture(scope="module")
def reverse() -> ReverseModel:
    tokenizer = train_tokenizer([LETTERS], "symbols", 100)
    tokenizer.add_tokens([reverse_marker(name) for name in SOURCES])
    processor = MultiSourceProcessor(tokenizer, ["target"])
    return ReverseModel("reverse", model_of(["target"], processor, 1), processor, 16)


@pytest.fixture(scope="module")
def forward(reverse: ReverseModel) -> tuple[MultiSourceForConditionalGeneration, MultiSourceProcessor]:
    processor = MultiSourceProcessor(train_tokenizer([LETTERS], "symbols", 100), SOURCES)
    return model_of(SOURCES, processor, 6), processor


def one_by_one(reverse: ReverseModel, source: str, candidate: str, word: str) -> float:
    """The loss of a batch of one pair, as the model computes it."""
    example = reverse.processor(target=f"<2{source}> {candidate}", text_target=word)
    batch = DataCollatorForMultiSource(reverse.processor)([example])
    with torch.inference_mode():
        loss = reverse.model(**batch, num_items_in_batch=1).loss
    return -float(loss)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_the_reverse_score_is_the_mean_of_the_losses_of_the_present_sources(
    batch_size: int, reverse: ReverseModel
) -> None:
    found = reverse_scores(reverse, TEXTS, ROWS, SOURCES, batch_size)
    for texts, row, scores in zip(TEXTS, ROWS, found, strict=True):
        words = {name: row[name] for name in SOURCES if row.get(name)}
        expected = [sum(one_by_one(reverse, name, text, words[name]) for name in words) / len(words) for text in texts]
        assert scores == pytest.approx(expected, rel=1e-5)


def test_sources_that_are_not_asked_for_do_not_count(reverse: ReverseModel) -> None:
    alone = reverse_scores(reverse, TEXTS[:1], ROWS[:1], ["y"])
    assert alone == reverse_scores(reverse, TEXTS[:1], [{"x": None, "y": "c"}], SOURCES)
    assert alone != reverse_scores(reverse, TEXTS[:1], ROWS[:1], SOURCES)


def test_a_row_without_any_source_has_no_reverse_score(reverse: ReverseModel) -> None:
    rows: list[Row] = [{"x": " ", "y": None}, ROWS[0]]
    assert reverse_scores(reverse, [["a", "b"], ["a"]], rows, SOURCES) == [
        [None, None],
        [pytest.approx(sum(one_by_one(reverse, name, "a", ROWS[0][name]) for name in SOURCES) / 2, rel=1e-5)],
    ]


def candidates_of(*rows: list[tuple[str, float | None, float | None]]) -> list[list[Candidate]]:
    return [[Candidate(*one) for one in row] for row in rows]


# The reverse score prefers the second of two candidates from weight 0.1 on, and the third from weight 1 on.
TOY = candidates_of([("near", -1.0, -9.0), ("right", -1.5, -4.0), ("far", -4.5, -1.0)], [("only", -2.0, -3.0)])


def test_the_reverse_score_decides() -> None:
    assert [rerank(TOY, weight) for weight in (0.0, 0.09, 0.11, 0.99, 1.01)] == [[0, 0], [0, 0], [1, 0], [1, 0], [2, 0]]
    assert reranked_texts(TOY, 0.5) == ["right", "only"]


def test_equal_candidates_and_those_without_scores_keep_their_order() -> None:
    nothing = candidates_of([("", None, None), ("x", None, None)], [("a", -1.0, -2.0), ("b", -1.0, -2.0)])
    assert [rerank(nothing, weight) for weight in WEIGHTS] == [[0, 0]] * len(WEIGHTS)


def test_the_smallest_of_the_best_weights_is_chosen() -> None:
    weight, curve = choose_weight(TOY, ["right", "only"], "exact_match")
    assert weight == min(one for one in WEIGHTS if 0.1 < one <= 1)
    assert curve == [(one, 100.0 if 0.1 < one <= 1 else 50.0) for one in WEIGHTS]
    assert choose_weight(TOY, ["right", "only"], "edit_distance")[0] == weight  # lower is better
    assert choose_weight(TOY, ["none", "of"], "exact_match")[0] == 0.0
    assert choose_weight(TOY, ["far", "only"], "exact_match", weights=(2.0, 1.5, 0.0)) == (
        1.5,
        [(2.0, 100.0), (1.5, 100.0), (0.0, 50.0)],
    )


def test_the_oracle_takes_the_candidate_closest_to_the_reference() -> None:
    candidates = candidates_of([("a b", 0.0, 0.0), ("a c", -1.0, 0.0), ("a b c d", -2.0, 0.0)], [("", None, None)])
    assert oracle_texts(candidates, ["a c d", "a"]) == ["a c", ""]


def find(forward: Any, reverse: ReverseModel, out: Path, rows: list[Row] = ROWS) -> list[list[Candidate]]:
    model, processor = forward
    search = Search(num_beams=4, n_best=4, max_new_tokens=5)
    return find_candidates(model, processor, reverse, rows, SOURCES, rows, out, search, batch_size=1)[0]


def test_weight_0_gives_the_plain_hypotheses(forward: Any, reverse: ReverseModel, tmp_path: Path) -> None:
    rows: list[Row] = [*ROWS, {"x": None, "y": None, "z": "a"}]
    found = find(forward, reverse, tmp_path / "n.jsonl", rows)
    assert {len(row) for row in found} == {4}
    model, processor = forward
    plain = decode(model, processor, rows, tmp_path / "plain.txt", Search(num_beams=4, max_new_tokens=5)).best
    assert reranked_texts(found, 0.0) == plain
    assert found[-1] == [Candidate("", None, None)] * 4
    assert reranked_texts(found, 2.0) != plain
    texts = [[one.text for one in row] for row in found]
    expected = reverse_scores(reverse, texts, rows, SOURCES)
    for row, scores in zip(found, expected, strict=True):
        assert [one.reverse for one in row] == pytest.approx(scores, abs=1e-5)


def test_a_file_of_candidates_cut_at_any_line_or_within_one_is_completed(
    forward: Any, reverse: ReverseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "WINDOW", 2)
    out = tmp_path / "n.jsonl"
    whole = find(forward, reverse, out)
    content = out.read_bytes()
    rows = [json.loads(line) for line in content.decode().splitlines()]
    assert [row["row"] for row in rows] == list(range(len(ROWS)))
    assert rows[0]["candidates"][0].keys() == {"text", "forward", "reverse"}
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for cut in [0, 7, *ends, *(end - 3 for end in ends)]:
        out.write_bytes(content[:cut])
        assert find(forward, reverse, out) == whole
        assert out.read_bytes() == content, f"cut at byte {cut}"


def test_a_killed_search_keeps_its_windows_and_a_finished_one_is_only_read(
    forward: Any, reverse: ReverseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "WINDOW", 2)
    score, calls = reranking.reverse_scores, []

    def dies_in_the_second_window(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return score(*args)

    out = tmp_path / "n.jsonl"
    monkeypatch.setattr(reranking, "reverse_scores", dies_in_the_second_window)
    with pytest.raises(KeyboardInterrupt):
        find(forward, reverse, out)
    assert len(read_lines(out)) == 2
    whole = find(forward, reverse, out)
    assert (len(whole), len(calls)) == (len(ROWS), 4)
    assert find(forward, reverse, out) == whole and len(calls) == 4


def test_candidates_of_another_reverse_model_are_refused(forward: Any, reverse: ReverseModel, tmp_path: Path) -> None:
    out = tmp_path / "n.jsonl"
    find(forward, reverse, out)
    other = ReverseModel("other", model_of(["target"], reverse.processor, 3), reverse.processor, 16)
    with pytest.raises(ValueError, match=r"n\.jsonl was begun with other settings: reverse_weights_sha256 was '"):
        find(forward, other, out)


# Through the command line.


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A forward run and a reverse run on symbols; one line of test has a single source."""
    folder = make_folder(tmp_path_factory.mktemp("reranked"))
    for split in ("train", "dev"):
        for name in ("en", "de", "cs"):
            path = folder / "text" / f"{split}.{name}"
            write_lines(path, [" ".join(line.replace(" ", "")) for line in read_lines(path)])
    for name in ("en", "de", "cs"):
        write_lines(folder / "text" / f"test.{name}", read_lines(folder / "text" / f"dev.{name}")[5:15])
    metrics = ["exact_match", "edit_distance"]
    run = train_at(folder, kind="symbols", metrics=metrics)
    reverse_run = train_at(folder, run="reverse", reverse=True, load=str(run), metrics=metrics)
    return run, reverse_run


def test_a_run_is_reranked_by_the_command(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run, reverse_run = runs
    score_main([str(run), *OPTIONS, "--rerank", str(reverse_run), "--limit", "6"])
    shown = capsys.readouterr().out
    report = read_json(run / "scores" / "test.json")
    entry = report["conditions"]["reranked"]
    chosen = entry["reranking"]
    assert describe_reranking(chosen) in shown and "\nreranked by reverse: weight " in shown
    assert (chosen["run"], chosen["n"], chosen["metric"], chosen["chosen_on"]) == ("reverse", 2, "exact_match", "dev")
    assert [weight for weight, _ in chosen["curve"]] == list(WEIGHTS)
    best = max(score for _, score in chosen["curve"])
    assert chosen["weight"] == min(weight for weight, score in chosen["curve"] if score == best)
    assert chosen["oracle"].keys() == {"exact_match", "edit_distance"}
    plain, reranked = report["conditions"]["all"], entry
    assert chosen["oracle"]["edit_distance"] <= min(one["edit_distance"]["score"] for one in (plain, reranked))
    assert {"difference", "p_value"} <= entry["draws"][0]["exact_match"].keys()
    candidates = [json.loads(line)["candidates"] for line in read_lines(run / "scores" / "test.nbest.jsonl")]
    assert len(candidates) == len(read_lines(run / "scores" / "dev.nbest.jsonl")) == 6
    assert [row[0]["text"] for row in candidates] == read_lines(run / "scores" / "test.all.txt")
    totals = [[one["forward"] + chosen["weight"] * one["reverse"] for one in row] for row in candidates]
    expected = [row[total.index(max(total))]["text"] for row, total in zip(candidates, totals, strict=True)]
    assert read_lines(run / "scores" / "test.reranked.txt") == expected
    # Another weight decodes nothing and reads no dev split; a score without reranking keeps the condition.
    progress = run / "scores" / "test.nbest.jsonl.json"  # is written after each window
    before = progress.stat().st_mtime_ns
    dev = run / "scores" / "dev.nbest.jsonl"
    dev.unlink()
    score_main([str(run), *OPTIONS, "--rerank", str(reverse_run), "--rerank_weight", "0", "--limit", "6"])
    assert "weight 0.0, given; " in capsys.readouterr().out
    assert progress.stat().st_mtime_ns == before and not dev.exists()
    assert read_lines(run / "scores" / "test.reranked.txt") == read_lines(run / "scores" / "test.all.txt")
    score_main([str(run), *OPTIONS, "--limit", "6"])
    conditions = read_json(run / "scores" / "test.json")["conditions"]
    assert conditions["reranked"]["reranking"]["weight"] == 0
    assert conditions["reranked"]["exact_match"]["score"] == conditions["all"]["exact_match"]["score"]
    row = make_row(run, "t", "mine")
    assert row["reranking"] == {key: conditions["reranked"]["reranking"][key] for key in ("run", "n", "weight")}
    assert "*reranked*: " in render("t", [row], "")


def test_a_run_that_joins_its_sources_is_reranked_by_the_sources_that_it_joins(runs: tuple[Path, Path]) -> None:
    run, reverse_run = runs
    joined = train_at(run.parent, run="joined", kind="symbols", concatenate=True, max_steps=1)
    score_main([str(joined), *OPTIONS, "--rerank", str(reverse_run), "--rerank_weight", "0.5", "--limit", "6"])
    rows = [json.loads(line)["candidates"] for line in read_lines(joined / "scores" / "test.nbest.jsonl")]
    columns = {name: read_lines(run.parent / "text" / f"test.{name}")[:6] for name in ("en", "de")}
    assert not all(columns["de"])
    model = load_reverse(str(reverse_run), ["en", "de"], "cs", "cpu")
    texts = [[one["text"] for one in row] for row in rows]
    sources: list[Row] = [{"en": en, "de": de or None} for en, de in zip(*columns.values(), strict=True)]
    for row, scores in zip(rows, reverse_scores(model, texts, sources, ["en", "de"]), strict=True):
        assert [one["reverse"] for one in row] == pytest.approx(scores, abs=1e-5)


def test_lines_with_none_of_the_models_sources_are_reranked_to_an_empty_text(runs: tuple[Path, Path]) -> None:
    run, reverse_run = runs
    german = train_at(run.parent, run="german", kind="symbols", sources=["de"], max_steps=1)
    command = [str(german), *OPTIONS, "--rerank", str(reverse_run), "--limit", "6", "--sources", "en", "de"]
    score_main(command)
    given = read_lines(run.parent / "text" / "test.de")[:6]
    texts = read_lines(german / "scores" / "test.reranked.txt")
    assert not all(given)
    assert all(not text for text, source in zip(texts, given, strict=True) if not source)
    figures = read_json(german / "scores" / "test.json")["conditions"]
    assert len(read_lines(german / "scores" / "test.all.txt")) == len(texts)
    assert figures["reranked"]["reranking"]["chosen_on"] == "dev"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rerank_weight", "1"], r"rerank_weight is 1\.0, but there is no rerank: name a reverse run"),
        (["--rerank", "r", "--absent"], "rerank scores with every source as it is: leave out absent, or rerank"),
        (["--rerank", "r", "--rerank_weight", "-1"], r"rerank_weight is -1\.0; it must be at least 0"),
        (["--rerank", "r", "--num_beams", "1"], "num_beams is 1; it must be at least 2"),
        (["--rerank", "r"], "rerank is 'r', which is no folder of a run with data.reverse true"),
    ],
)
def test_what_cannot_be_reranked_is_refused_by_name(options: list[str], message: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tmp_path)
    for name in ("en", "de", "cs"):
        (tmp_path / f"dev.{name}").write_bytes((tmp_path / f"test.{name}").read_bytes())
    with pytest.raises(SystemExit, match=message):
        score_main([str(run), *options])
    assert not (run / "scores").exists()


def test_a_reverse_run_of_other_sources_or_another_target_is_refused(runs: tuple[Path, Path]) -> None:
    reverse_run = str(runs[1])
    with pytest.raises(ValueError, match=r"reverse', whose target is 'cs'; it must be 'fr'"):
        load_reverse(reverse_run, ["en"], "fr")
    with pytest.raises(ValueError, match=r"which was not trained on source 'fr', only on en, de"):
        load_reverse(reverse_run, ["en", "fr"], "cs")
    with pytest.raises(ValueError, match=r"which is no folder of a run with data\.reverse true"):
        load_reverse(str(runs[0]), ["en"], "cs")
    assert load_reverse(reverse_run, ["de"], "cs", "cpu").max_length == 32
