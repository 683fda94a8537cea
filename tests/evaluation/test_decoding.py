"""Decoding into a file: order, resuming, and what must not go wrong; and `translate.py` on top of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from builders import first_is_best, three_source_batch, three_source_model, tiny_config
from hf_multisource import MultiSourceForConditionalGeneration, inference
from hf_multisource.data.rows import Row
from hf_multisource.evaluation import decoding
from hf_multisource.evaluation.decoding import (
    Decoded,
    Hypothesis,
    Search,
    decode,
    decode_batch,
    decode_windows,
    load_model,
    load_weights,
)
from hf_multisource.evaluation.results import length_rule
from hf_multisource.evaluation.translating import rows_from_files, rows_from_jsonl, rows_from_tabs
from hf_multisource.source_kinds import FORMS, SourceKind
from searches import generate

GREEDY = Search(num_beams=1)
BEST_TWO = Search(num_beams=3, n_best=2)


class Processor:
    """Two sources; a text's ids are its characters' code points."""

    source_names = ("en", "de")

    def main_input(self, name: str) -> str:
        return "input_ids"

    def kind_of(self, name: str) -> SourceKind:
        return FORMS["text"]

    def part_of(self, name: str) -> SimpleNamespace:
        return self.get_tokenizer(name)

    def __call__(self, **columns: Sequence[str | None]) -> dict[str, list[list[int] | None]]:
        encoded: dict[str, list[list[int] | None]] = {}
        for key, name in (("", "en"), ("de_", "de")):
            rows = [[ord(character) for character in text] if text else None for text in columns[name]]
            encoded[f"{key}input_ids"] = rows
            encoded[f"{key}attention_mask"] = [ids and [1] * len(ids) for ids in rows]
        return encoded

    def get_tokenizer(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(pad_token_id=0)

    def batch_decode(self, sequences: torch.Tensor, skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return ["".join(chr(i) for i in ids if i) for ids in sequences.tolist()]


class Model:
    """Says the English backwards and then the German; its further hypotheses end in "é" and score lower."""

    device = torch.device("cpu")

    def __init__(self, dies_after: int | None = None) -> None:
        self.weight = torch.ones(2)
        self.batches: list[list[int]] = []  # per batch, the number of characters of the English of every row
        self.dies_after = dies_after

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight, "scalar": self.weight[0]}

    def generate(self, **inputs: Any) -> SimpleNamespace:
        if len(self.batches) == self.dies_after:
            raise KeyboardInterrupt
        self.batches.append(inputs["attention_mask"].sum(-1).tolist())
        says = []
        for english, german in zip(inputs["input_ids"].tolist(), inputs["de_input_ids"].tolist(), strict=True):
            best = [i for i in english if i][::-1] + [i for i in german if i]
            says += [best + k * [ord("é")] for k in range(inputs["num_return_sequences"])]
        length = max(map(len, says))
        sequences = torch.tensor([ids + [0] * (length - len(ids)) for ids in says])
        scores = torch.tensor([-float(i % inputs["num_return_sequences"]) for i in range(len(says))])
        return SimpleNamespace(sequences=sequences, sequences_scores=scores if inputs["num_beams"] > 1 else None)


def translation(row: Row) -> str:
    return (row.get("en") or "")[::-1] + (row.get("de") or "")


ROWS: list[Row] = [{"en": "žluť" * (7 * i % 5) + str(i), "de": f"ü{i}" if i % 3 else None} for i in range(11)]


def run(
    out: Path,
    search: Search = GREEDY,
    model: Model | None = None,
    rows: Sequence[Row] = ROWS,
    batch_size: int = 2,
) -> Decoded:
    chosen: Any = model or Model()
    processor: Any = Processor()
    return decode(chosen, processor, rows, out, search, batch_size=batch_size)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "WINDOW", 2)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 11, 64])
def test_hypotheses_come_in_the_order_of_the_rows(tmp_path: Path, batch_size: int) -> None:
    decoded = run(tmp_path / "out.txt", batch_size=batch_size)
    expected = [translation(row) for row in ROWS]
    assert decoded.best == expected
    assert (tmp_path / "out.txt").read_text("utf-8") == "".join(f"{text}\n" for text in expected)


def test_sentences_of_like_length_share_a_batch_within_a_window() -> None:
    rows: list[Row] = [{"en": "a" * length} for length in (1, 9, 2, 8, 5, 5, 3, 7)]
    model: Any = Model()
    processor: Any = Processor()
    list(decode_windows(model, processor, rows, GREEDY, batch_size=2))
    assert model.batches == [[9, 8], [2, 1], [7, 5], [5, 3]]


@pytest.mark.parametrize("search", [GREEDY, BEST_TWO])
def test_a_file_cut_at_any_byte_is_completed_as_if_never_cut(tmp_path: Path, search: Search) -> None:
    out = tmp_path / "out.txt"
    whole = run(out, search)
    content = out.read_bytes()
    for cut in range(len(content) + 1):
        out.write_bytes(content[:cut])
        again = run(out, search)
        assert (out.read_bytes(), again.rows) == (content, whole.rows), f"cut at byte {cut}"


def test_a_killed_run_keeps_what_it_wrote_and_goes_on_from_there(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        run(out, model=Model(dies_after=5))
    kept = out.read_text("utf-8")
    assert kept == "".join(f"{translation(row)}\n" for row in ROWS[:8])  # two windows of two batches of two
    second = Model()
    assert run(out, model=second).best == [translation(row) for row in ROWS]
    assert sum(map(len, second.batches)) == 3


def test_a_finished_file_is_not_decoded_again_and_its_seconds_stay(tmp_path: Path) -> None:
    first = run(tmp_path / "out.txt")
    model = Model()
    assert run(tmp_path / "out.txt", model=model) == first
    assert model.batches == []


@pytest.mark.parametrize("search", [GREEDY, BEST_TWO])
def test_a_finished_file_that_was_changed_is_refused_and_stays(tmp_path: Path, search: Search) -> None:
    out = tmp_path / "out.txt"
    run(out, search)
    content = out.read_bytes()
    for changed in (content.replace(b"0", b"1", 1), content + content, content + b"x\n" * max(1, search.n_best)):
        out.write_bytes(changed)
        with pytest.raises(ValueError, match=r"out\.txt is not the file that out\.txt\.json describes: it was changed"):
            run(out, search)
        assert out.read_bytes() == changed


def test_the_batch_size_may_change_between_starts(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out.txt", model=Model(dies_after=2))
    assert run(tmp_path / "out.txt", batch_size=5).best == [translation(row) for row in ROWS]


def other_weights() -> Model:
    model = Model()
    model.weight[1] = 2
    return model


@pytest.mark.parametrize(
    ("again", "message"),
    [
        (lambda out: run(out, Search(num_beams=4)), r"num_beams was 1, is 4"),
        (lambda out: run(out, Search(num_beams=1, max_length=9)), r"max_length was None, is 9"),
        (lambda out: run(out, BEST_TWO), r"num_beams was 1, is 3; n_best was 0, is 2"),
        (lambda out: run(out, rows=ROWS[:-1]), r"rows was 11, is 10; .*the input, --limit or, .*, --seed differs"),
        (lambda out: run(out, rows=[*ROWS[:-1], {"en": "other"}]), r"settings: rows_sha256 was"),
        (lambda out: run(out, model=other_weights()), r"settings: weights_sha256 was"),
    ],
)
def test_going_on_with_something_else_is_refused_and_touches_nothing(
    tmp_path: Path, again: Callable[[Path], Decoded], message: str
) -> None:
    out = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        run(out, model=Model(dies_after=3))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=message):
        again(out)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("search", [GREEDY, BEST_TWO])
def test_a_file_without_a_complete_row_is_begun_anew_with_other_settings(tmp_path: Path, search: Search) -> None:
    out = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        run(out, Search(num_beams=4), model=Model(dies_after=0))
    out.write_bytes(b"torn")
    assert run(out, search).best == [translation(row) for row in ROWS]
    assert json.loads((tmp_path / "out.txt.json").read_text())["settings"]["num_beams"] == search.num_beams


def test_one_complete_row_is_kept_even_if_it_has_fewer_lines_than_a_row_of_the_other_settings(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    run(out, rows=ROWS[:1])
    before = out.read_bytes()
    with pytest.raises(ValueError, match="n_best was 0, is 2"):
        run(out, BEST_TWO, rows=ROWS[:1])
    assert out.read_bytes() == before


def test_lines_of_an_incomplete_row_are_not_taken_for_rows_of_other_settings(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    run(out, BEST_TWO, rows=ROWS[:1])
    out.write_bytes(out.read_bytes().splitlines(keepends=True)[0])  # one of the two lines of the first row
    assert run(out).best == [translation(row) for row in ROWS]


def test_damaged_settings_beside_a_file_are_named(tmp_path: Path) -> None:
    run(tmp_path / "out.txt")
    (tmp_path / "out.txt.json").write_text("{")
    with pytest.raises(ValueError, match=r"out\.txt\.json holds no valid JSON"):
        run(tmp_path / "out.txt")


def test_a_file_of_someone_else_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("precious\n")
    with pytest.raises(FileExistsError, match=r"out\.txt exists, but out\.txt\.json is missing"):
        run(tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "precious\n"


@pytest.mark.parametrize("search", [GREEDY, BEST_TWO])
def test_a_row_without_source_is_empty_counted_and_moves_no_other(
    tmp_path: Path, search: Search, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[Row] = [{"en": "ab"}, {}, {"en": "", "de": " \t"}, {"de": "cd"}]
    decoded = run(tmp_path / "out.txt", search, rows=rows)
    assert decoded.best == ["ba", "", "", "cd"]
    if search.n_best:
        assert [math.isnan(hypothesis.score or 0) for hypotheses in decoded.rows for hypothesis in hypotheses] == [
            *(False, False),
            *(True, True, True, True),
            *(False, False),
        ]
    assert "2 rows have no source at all" in caplog.text


def test_sources_that_are_too_long_are_cut_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows: list[Row] = [{"en": "abcdef", "de": "x"}, {"en": "abc", "de": "uvwxyz"}, {"en": "abcdz"}]
    decoded = run(tmp_path / "out.txt", Search(num_beams=1, max_length=4), rows=rows)
    assert decoded.best == ["fcbax", "cbauvwz", "zcba"]  # the last token, which ends a sentence, stays
    assert "sources longer than 4 tokens were cut (max_length): en in 2 rows, de in 1 rows" in caplog.text


def test_line_ends_inside_a_hypothesis_do_not_shift_the_lines(tmp_path: Path) -> None:
    rows: list[Row] = [{"en": "a\nb"}, {"en": "c\rd\u2028e"}, {"en": "f"}]
    assert run(tmp_path / "out.txt", rows=rows).best == ["b a", "e\u2028d c", "f"]


def test_n_best_lines_hold_row_score_and_text(tmp_path: Path) -> None:
    decoded = run(tmp_path / "out.txt", BEST_TWO, rows=[{"en": "a\tb"}, {"en": "c"}])
    lines = (tmp_path / "out.txt").read_text("utf-8").split("\n")
    assert lines == ["0\t-0.000000\tb\ta", "0\t-1.000000\tb\taé", "1\t-0.000000\tc", "1\t-1.000000\tcé", ""]
    assert decoded.rows[0] == [Hypothesis("b\ta", 0.0), Hypothesis("b\taé", -1.0)]


@pytest.mark.parametrize(("num_beams", "n_best"), [(1, 1), (2, 3)])
def test_more_hypotheses_than_the_beam_holds_are_refused(num_beams: int, n_best: int) -> None:
    with pytest.raises(ValueError, match=f"n_best is {n_best} with num_beams {num_beams}"):
        Search(num_beams=num_beams, n_best=n_best)


def test_the_settings_lie_beside_the_file(tmp_path: Path) -> None:
    run(tmp_path / "deep" / "out.txt", Search(num_beams=4, length_penalty=0.6))
    settings = json.loads((tmp_path / "deep" / "out.txt.json").read_text())["settings"]
    assert (settings["num_beams"], settings["length_penalty"], settings["sources"]) == (4, 0.6, ["en", "de"])
    assert [path.name for path in sorted((tmp_path / "deep").iterdir())] == ["out.txt", "out.txt.json"]


def test_the_rule_of_length_is_one_of_two_and_named() -> None:
    penalty, normalization = Search(length_penalty=0.6), Search(length_normalization=0.8)
    assert penalty.settings().get("length_normalization") is None
    assert "length_penalty" not in normalization.settings()
    said = length_rule(penalty.described()), length_rule(normalization.described())
    assert said[0] == "length penalty 0.6 (transformers: sum(log p) / length**length_penalty)"
    assert said[1].startswith(
        "length normalization 0.8 (Wu et al. 2016, at every step: sum(log p) / ((5 + length) / 6)"
    )
    with pytest.raises(ValueError, match=r"length_normalization is 0\.8 with num_beams 1"):
        Search(num_beams=1, length_normalization=0.8)
    with pytest.raises(ValueError, match=r"length_normalization is 0\.8 .* length_penalty 0\.6"):
        Search(length_penalty=0.6, length_normalization=0.8)


@pytest.mark.parametrize(
    "rule", [{"length_penalty": 1.0}, {"length_normalization": 0.6}, {"length_normalization": 1.0}]
)
def test_the_search_says_which_rule_of_length_holds_whatever_the_model_has_stored(
    tmp_path: Path, rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = three_source_model("flat"), three_source_batch()
    asked: dict[str, Any] = {
        "num_beams": 4,
        "num_return_sequences": 4,
        "max_new_tokens": 6,
        "early_stopping": False,
        **rule,
    }
    expected = generate(model, inputs, **asked)[1].tolist()
    stored = {"num_beams": 2, "length_penalty": 0.3, "early_stopping": "length_normalization" in rule}
    model.generation_config.update(**stored)
    model.generation_config.length_normalization = 0.3
    model.save_pretrained(tmp_path)
    monkeypatch.setattr(decoding, "load_processor", lambda name: Processor())
    loaded, processor = load_model(str(tmp_path), "cpu")
    found = decode_batch(loaded, processor, inputs, Search(num_beams=4, max_new_tokens=6, n_best=4, **rule))
    assert [hypothesis.score for row in found for hypothesis in row] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("optimize", [None, "best", "int8"])
def test_a_model_is_optimized_as_the_search_says(
    optimize: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the search remembers it: what was decoded with other numbers is not gone on with."""
    monkeypatch.setattr(decoding, "load_processor", lambda name: Processor())
    monkeypatch.setattr(inference, "measure_gains", first_is_best)
    three_source_model("flat").save_pretrained(tmp_path)
    with caplog.at_level("INFO"):
        model, _ = load_model(str(tmp_path), "cpu", optimize)
    kind = {None: torch.nn.Linear, "best": inference.OneDNNLinear, "int8": inference.Int8Linear}[optimize]
    assert {type(module) for module in model.modules() if isinstance(module, torch.nn.Linear)} == {kind}
    assert [line.split(":")[0] for line in caplog.messages if "linear layers" in line] == {
        None: [],
        "best": ["oneDNN"],
        "int8": ["int8"],
    }[optimize]
    assert Search(optimize=optimize).settings().get("optimize") == optimize
    assert ("optimize" in Search(optimize=optimize).settings()) == (optimize is not None)


# What translate.py reads.


def test_files_are_joined_line_by_line_and_sources_without_file_are_absent(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n\nthree\n")
    (tmp_path / "b").write_text("eins\nzwei\n")
    assert rows_from_files({"en": str(tmp_path / "a")}) == [{"en": "one"}, {"en": ""}, {"en": "three"}]
    with pytest.raises(ValueError, match=r"lines: en \(.*/a\) has 3, de \(.*/b\) has 2"):
        rows_from_files({"en": str(tmp_path / "a"), "de": str(tmp_path / "b")})


def test_a_table_needs_every_column_in_every_line() -> None:
    assert rows_from_tabs(["a\tb", "\tc"], ["en", "de"], "here") == [{"en": "a", "de": "b"}, {"en": "", "de": "c"}]
    with pytest.raises(ValueError, match=r"here, line 2: 1 columns between tabs; the model's sources are 2: en, de"):
        rows_from_tabs(["a\tb", "a"], ["en", "de"], "here")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"fr": "x"}', r"line 2: unknown source 'fr'; the model's are en, de"),
        ('{"en": 3}', r"line 2: must be an object of named text"),
        ("[]", r"line 2: must be an object of named text"),
        ("{", r"line 2: not JSON"),
    ],
)
def test_bad_json_lines_are_named(line: str, message: str) -> None:
    assert rows_from_jsonl(['{"de": null, "en": "a"}'], ["en", "de"], "here") == [{"de": None, "en": "a"}]
    with pytest.raises(ValueError, match=message):
        rows_from_jsonl(["{}", line], ["en", "de"], "here")


def test_weights_of_another_configuration_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    MultiSourceForConditionalGeneration(tiny_config("serial")).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "combiner": "flat"}))
    with pytest.raises(ValueError, match=r"\d+ weights are missing \(.*cross_attn"):
        load_weights(str(tmp_path))
