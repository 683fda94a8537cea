"""Dual conditional cross-entropy: the equation, the choice of rows, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pytest import approx

from hf_multisource.cli.app import main
from hf_multisource.evaluation.decoding import load_model
from hf_multisource.evaluation.likelihood import cross_entropy
from hf_multisource.evaluation.score_filter import choose_rows, dual_cross_entropy, load_directions
from runs import files_of, make_folder, train_at, write_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a forward run en + de -> cs, and a backward run cs -> de."""
    place = make_folder(tmp_path_factory.mktemp("runs"))
    train_at(place, "forward", max_steps=4)
    train_at(place, "backward", max_steps=4, sources=["cs"], target="de")
    train_at(place, "reverse", max_steps=4, reverse=True)
    rows = {
        "en": ["two dogs", "", "the boy", "two dogs run", "dog"],
        "de": ["zwei Hunde", "Hund", "", "Wasser", "Hund"],
        "cs": ["dva psi", "pes", "chlapec", "dva psi běží", ""],
        "fr": ["1", "2", "3", "4", "5"],
    }
    (place / "corpus").mkdir()
    for name, lines in rows.items():
        write_lines(place / "corpus" / f"train.{name}", lines)
    return place


def test_the_score_is_the_distance_and_the_mean() -> None:
    assert dual_cross_entropy(1.0, 4.0) == 3 + 2.5
    assert dual_cross_entropy(4.0, 1.0) == 3 + 2.5
    assert dual_cross_entropy(2.0, 2.0) == 2


def test_the_lowest_scores_are_kept_and_of_equal_ones_the_first() -> None:
    scores = [3.0, None, 1.0, 2.0, 2.0]
    assert choose_rows(scores, 0.5, None) == [False, False, True, True, False]
    assert choose_rows(scores, 1, None) == [True, False, True, True, True]
    assert choose_rows(scores, None, 2) == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("keep", "rows", "kept"),
    [(0.5, 1, 1), (0.5, 5, 3), (0.5, 3, 2), (0.25, 2, 1), (0.29, 50, 15), (0.1, 4, 0), (1, 3, 3)],
)
def test_the_number_of_kept_rows_is_rounded_and_half_a_row_is_rounded_up(keep: float, rows: int, kept: int) -> None:
    assert sum(choose_rows([1.0] * rows, keep, None)) == kept  # 0.29 * 50 is 14.499999999999998 in floating point


def nats_a_word(run: Path, row: dict[str, str | None], target: str) -> float:
    model, processor = load_model(str(run), "cpu")
    found = cross_entropy(model, processor, [row], target, 32)
    return found["cross_entropy"] * found["tokens"] / (len((row[target] or "").split()) + 1)


def test_the_command_writes_the_best_rows_their_scores_and_the_counts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--forward", str(folder / "forward"), "--backward", str(folder / "backward"), "--device", "cpu"]
    main(["filter", str(folder / "corpus"), *runs, "--out", str(folder / "all"), "--keep", "1"])
    assert "read: 5 rows\nunscored: 2 rows dropped\nscore: 0 rows dropped" in capsys.readouterr().out
    scores = [float(line) for line in (folder / "all/train.score").read_text().splitlines()]
    columns = {name: (folder / f"all/train.{name}").read_text("utf-8").splitlines() for name in ("en", "de", "cs")}
    assert columns["cs"] == ["dva psi", "pes", "dva psi běží"]
    lines = zip(*columns.values(), strict=True)
    rows = [{name: text or None for name, text in zip(columns, texts, strict=True)} for texts in lines]
    expected = [
        dual_cross_entropy(nats_a_word(folder / "forward", row, "cs"), nats_a_word(folder / "backward", row, "de"))
        for row in rows
    ]
    assert scores == approx(expected, rel=1e-4)

    some = ["--keep", "0.67", "--languages", "cs", "fr", "--out", str(folder / "some")]
    main(["filter", str(folder / "corpus"), *runs, *some])
    worst = scores.index(max(scores))
    left = [number for i, number in enumerate(["1", "2", "4"]) if i != worst]
    assert (folder / "some/train.fr").read_text().splitlines() == left
    assert {path.name for path in (folder / "some").iterdir()} == {"train.cs", "train.fr", "train.score", "counts.json"}
    counts = json.loads((folder / "some/counts.json").read_text())
    assert (counts["read"], counts["unscored"], counts["kept"]) == (5, 2, 2)
    assert counts["highest_score"] == approx(sorted(scores)[1])
    assert counts["forward"]["weights_sha256"] != counts["backward"]["weights_sha256"]

    limit = ["--threshold", str(counts["highest_score"]), "--languages", "cs", "fr", "--out", str(folder / "below")]
    main(["filter", str(folder / "corpus"), *runs, *limit])
    assert (folder / "below/train.fr").read_bytes() == (folder / "some/train.fr").read_bytes()


def test_a_text_that_is_cut_scores_no_better_than_what_is_left_of_it(folder: Path) -> None:
    """Of the 200 words, `max_length` (32) leaves 31; what is cut must not be counted as likely words."""
    (forward, _) = load_directions(str(folder / "forward"), str(folder / "backward"), "cpu")
    row: dict[str, str | None] = {"en": "two dogs", "de": "zwei Hunde"}
    rows = [{**row, "cs": " ".join(["pes"] * words)} for words in (31, 200)]
    cut, long = forward.cross_entropies(rows, 2)
    assert len(forward.processor.tokenizer(text_target="pes pes")["input_ids"]) == 3
    assert forward.data.max_length == 32 and long == approx(cut, rel=1e-6)


def test_a_line_end_in_a_cell_shifts_no_line_of_another_language(folder: Path) -> None:
    (folder / "table").mkdir()
    cells = '"two\ndogs","zwei\r\n\nHunde","dva psi\n"\ndog,Hund,pes\n'
    (folder / "table" / "train.csv").write_text("en,de,cs\n" + cells, encoding="utf-8", newline="")
    runs = ["--forward", str(folder / "forward"), "--backward", str(folder / "backward"), "--device", "cpu"]
    main(["filter", str(folder / "table"), *runs, "--out", str(folder / "lines"), "--keep", "1"])
    columns = [(folder / f"lines/train.{name}").read_text("utf-8").splitlines() for name in ("en", "de", "cs")]
    assert columns == [["two dogs", "dog"], ["zwei Hunde", "Hund"], ["dva psi", "pes"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--keep": None}, "give either keep, the share of rows, or threshold, the highest score"),
        ({"--threshold": "2"}, "give either keep, the share of rows, or threshold"),
        ({"--keep": "0"}, "keep is 0.0; it must be a share above 0 and at most 1"),
        ({"--keep": None, "--threshold": "nan"}, "threshold is nan; it must be a finite number above 0"),
        ({"--keep": None, "--threshold": "0.01"}, "no row of split 'train' of corpus is left of 5"),
        ({"--forward": "corpus"}, "forward is 'corpus', which is no run folder: it has no recipe.yaml"),
        ({"--forward": "reverse"}, "forward is 'reverse', a run with data.reverse"),
        (
            {"--backward": "forward"},
            "backward is 'forward', which does not read 'cs', the target of forward; its sources are en, de",
        ),
        (
            {"--forward": "backward"},
            "backward is 'backward', which does not read 'de', the target of forward; its sources are cs",
        ),
        ({"--languages": "xx"}, "unknown source or target 'xx'"),
        ({"--languages": "score"}, "languages: 'score' is the column of the scores"),
        ({"--out": "corpus"}, "corpus is not empty"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    changes: dict[str, str | None], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    given = {"--forward": "forward", "--backward": "backward", "--keep": "0.5", "--out": "new", **changes}
    before = files_of(folder)
    with pytest.raises(SystemExit) as error:
        main(["filter", "corpus", *(word for option, value in given.items() if value for word in (option, value))])
    assert message in str(error.value)
    assert files_of(folder) == before
    assert not [path for path in folder.iterdir() if "new" in path.name]
