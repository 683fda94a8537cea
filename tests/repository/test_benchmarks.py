"""The benchmarks run from end to end at a tiny size, and their page is what its writer makes. Nothing is timed here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import common
import engines
import figure
import inference
import page
import train_step
from common import PAPER, Size, marian, our_model, sources_of, work
from hf_multisource import MultiSourceForConditionalGeneration
from runs import WORDS, write_lines
from scored import COLUMNS, make_run

ROOT = Path(__file__).resolve().parents[2]
TINY = Size(16, 32, 2, 1, 2, 64, texts=2, length=5, steps=4)
WITH_FEATURES = Size(16, 32, 2, 1, 2, 64, texts=1, features=3, length=5, steps=4)
CELL = inference.Cell(TINY, beams=2, batch=2, device="cpu", threads=1)
EXACT = {"unfolded", "", "optimized"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(function: Callable[..., float], *arguments: Any) -> float:
        return max(1.0, function(*arguments))  # so little memory may be there already

    monkeypatch.setitem(common.SIZES, "tiny", TINY)
    monkeypatch.setitem(inference.FLOOR, "cpu", 32)
    for script in (inference, train_step):
        monkeypatch.setattr(script, "in_child", here)
    monkeypatch.setattr(inference, "FEW", {"texts": (1, 2), "length": (3,), "beams": (1,), "batch": (2,)})
    monkeypatch.setattr(train_step, "BATCHES", 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    inference.load.cache_clear()


def records(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((folder / "cpu").glob("*/*.json"))}


def test_decoding_is_measured_and_shown(tmp_path: Path) -> None:
    out = tmp_path / "performance"
    options = ["--size", "tiny", "--beams", "2", "--batch", "2", "--rounds", "2", "--out", str(out)]
    inference.main([*options, "--combiners", "concat", "serial"])
    found = records(out)
    of_batch = {f"{part}-tiny-beams2-batch2" for part in ("speed", "profile", "memory")}
    assert set(found) == {"floor", "scaling-tiny"} | of_batch
    runs = found["speed-tiny-beams2-batch2"]["runs"]
    assert {"HF", "HF tuned", "concat", "serial unfolded", "serial", "serial optimized", "serial int8"} <= set(runs)
    for name, run in runs.items():
        assert [len(run["seconds"][clock]) for clock in ("cpu", "wall")] == [2, 2]
        if name.partition(" ")[2] in EXACT:
            assert run["same"]["identical"] + run["same"]["near"] == run["same"]["of"] == 2
    profiled = found["profile-tiny-beams2-batch2"]["runs"]
    assert set(profiled) == {name for name in runs if not name.startswith("CTranslate2")}
    for run in profiled.values():
        assert min(operator["seconds"] for operator in run["operators"].values()) > 0
        assert min(operator["calls"] for operator in run["operators"].values()) >= 1
        assert any(operator.endswith(("mm", "linear_dynamic", "linear_pointwise")) for operator in run["operators"])
    points = [(point["quantity"], point["value"]) for point in found["scaling-tiny"]["points"]]
    assert points == [("texts", 1), ("texts", 2), ("length", 3), ("beams", 1), ("batch", 2)]
    shown = out.with_suffix(".md").read_text("utf-8")
    for text in ("tiny, beam 2, batch 2, 1 thread:", "| serial optimized |", "GFLOP/s", "| texts 2 ", "No figures yet"):
        assert text in shown


def test_the_time_of_operators_is_added_up_by_kind() -> None:
    def run(seconds: Sequence[float], **operators: float) -> dict[str, Any]:
        found = {f"aten::{name}": {"seconds": spent, "calls": 1} for name, spent in operators.items()}
        return {"seconds": {"cpu": seconds}, "operators": found}

    flash = "_scaled_dot_product_flash_attention_for_cpu"
    hf = run([8.0, 9.0, 7.0], addmm=2.0, mm=1.0, _log_softmax=1.0, topk=0.5, copy_=3.0, **{flash: 0.25})
    ours = run([4.0, 4.0, 4.0], linear_dynamic=2.0, _softmax=0.5, add=1.0)
    record = {"part": "profile", "clock": "cpu", "runs": {"HF": hf, "flat int8": ours}}
    header, lines = page.of_profile(record, {})
    kinds = ["matrix products", "attention", "softmax and top-k", "other operators"]
    assert header == ["", "seconds", *kinds, "over HF", "with matrix products alone"]
    assert lines[0] == ["HF", "8.00", "3.00", "0.25", "1.50", "3.00", "1.00× (1.00–1.00)", "2.67×"]
    assert lines[1] == ["flat int8", "4.00", "2.00", "0.00", "0.50", "1.00", "2.00× (1.75–2.25)", "4.00×"]


def test_a_trained_checkpoint_is_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded, generate = [], MultiSourceForConditionalGeneration.generate

    def recorded(self: Any, *arguments: Any, **options: Any) -> Any:
        folded.append(options["fold_beams"])
        return generate(self, *arguments, **options)

    monkeypatch.setattr(MultiSourceForConditionalGeneration, "generate", recorded)
    for name, column in COLUMNS.items():
        write_lines(tmp_path / f"test.{name}", column)
    run, out = make_run(tmp_path / "run", tmp_path), tmp_path / "performance"
    options = ["--checkpoint", str(run), "--beams", "2", "--batch", "4", "--limit", "5", "--rounds", "1"]
    inference.main(["trained", *options, "--out", str(out)])
    runs = records(out)["trained-run"]["runs"]
    assert list(runs) == ["unfolded", "folded", "optimized", "int8"]
    calls = len(folded) // 12  # four variants, each once for warming up and twice in the round
    assert folded[: 4 * calls] == [False] * calls + [True] * 3 * calls
    assert [runs[name]["same"]["identical"] for name in list(runs)[:3]] == [5, 5, 5]
    assert "run, 5 sentences, beam 2, batch 4, 1 thread:" in out.with_suffix(".md").read_text("utf-8")


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_step_of_an_engine_finds_the_tokens_of_the_model(norm_position: str) -> None:
    model, batch = our_model(TINY, "flat", norm_position=norm_position), sources_of(TINY, 2, "cpu")
    batch["attention_mask"][0, 2:] = 0  # padding, and an absent source
    batch["text1_attention_mask"][1] = 0
    engine = engines.in_torch(engines.DecodingStep(model).eval())
    own, other = (engines.Decoding(model, one) for one in (None, engine))
    assert other(batch, 3, TINY.steps) == own(batch, 3, TINY.steps)
    assert other.cache is not None and own.cache is None, "the engine was not asked"


def test_engines_are_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(size: Size, *arguments: Any) -> Any:
        model = our_model(size, "flat")
        step = engines.in_torch(engines.DecodingStep(model).eval())
        return {name: engines.Decoding(model, one) for name, one in (("flat optimized", None), ("other", step))}, {}

    monkeypatch.setattr(engines, "contestants", two)
    out = tmp_path / "performance"
    engines.main(["--size", "tiny", "--beams", "2", "--batch", "2", "--rounds", "1", "--out", str(out)])
    runs = records(out)["engines-tiny-beams2-batch2"]["runs"]
    assert {name: run["same"] for name, run in runs.items()} == {name: {"of": 2, "identical": 2} for name in runs}
    assert all(run["in_steps"] > 0 for run in runs.values())
    assert "### Other engines for the decoder's steps\n" in out.with_suffix(".md").read_text("utf-8")


@pytest.mark.slow
def test_onnx_runtime_finds_the_tokens_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    runs, _ = engines.contestants(TINY, 1, tmp_path)
    found = {name: run(sources_of(TINY, 2, "cpu"), 3, TINY.steps) for name, run in runs.items()}
    assert found["ONNX Runtime"] == found["flat optimized"]
    assert [*map(len, found["ONNX Runtime int8"])] == [*map(len, found["ONNX Runtime"])]  # tokens may differ in 8 bits


@pytest.mark.slow
def test_training_is_measured_and_shown(tmp_path: Path) -> None:
    for name, words in WORDS.items():
        write_lines(tmp_path / f"train.{name}", [" ".join(words[: 1 + i % 5]) for i in range(70)])
    out = tmp_path / "performance"
    options = ["--size", "tiny", "--batch", "2", "--rounds", "1", "--data", str(tmp_path)]
    train_step.main([*options, "--out", str(out)])
    found = records(out)
    of_size = {f"{part}-tiny" for part in ("step", "step_profile", "loss")}
    assert set(found) == {*of_size, "padding", "update-words", "update-multi30k_en_de_fr_cs"}
    plain, packed = (found["update-words"]["runs"][way] for way in ("everything computed", "as trained"))
    assert 0 < packed["gflop"] < plain["gflop"]
    names = ["HF", "flat", "serial", "HF bf16", "flat bf16", "serial bf16"]
    assert list(found["step-tiny"]["runs"]) == list(found["step_profile-tiny"]["runs"]) == names
    for run in found["step_profile-tiny"]["runs"].values():
        assert any("backward" in operator for operator in run["operators"])
    for shares in found["padding"]["shares"].values():
        assert 0 <= shares["bucketed"] < shares["random"] < 1
    assert "| serial bf16 |" in out.with_suffix(".md").read_text("utf-8")


def test_an_update_with_everything_computed_is_the_same_update() -> None:
    update = replace(train_step.UPDATES["words"], dropout=0.0)
    losses = []
    for plain in (False, True):
        noted = patch.object(torch.Tensor, "backward", lambda loss: losses.append(float(loss.detach())))
        with noted, patch.object(torch.nn.utils, "clip_grad_norm_"):
            train_step.whole_update(update, plain)()
    half = len(losses) // 2
    assert half == train_step.BATCHES and losses[:half] == pytest.approx(losses[half:], rel=1e-4)


def test_the_two_losses_are_the_same() -> None:
    torch.manual_seed(0)
    states, weight, labels = torch.randn(6, 8), torch.randn(20, 8), torch.randint(20, (6,))
    full, blocks = (loss(states, weight, labels) for loss in train_step.LOSSES.values())
    torch.testing.assert_close(blocks, full)


def test_padding_is_what_is_not_text() -> None:
    lengths = [(2, 1), (4, 1)] * train_step.BATCH
    assert train_step.padding(lengths, range(len(lengths))) == 1 - (2 + 1 + 4 + 1) / (2 * (4 + 1))
    assert train_step.padding(lengths, [*range(0, len(lengths), 2), *range(1, len(lengths), 2)]) == 0


@pytest.mark.parametrize("size", [TINY, WITH_FEATURES], ids=["texts", "features"])
@pytest.mark.parametrize("combiner", ["concat", *PAPER])
def test_the_work_is_that_of_the_products_of_matrices(combiner: str, size: Size) -> None:
    model = marian(size) if combiner == "concat" else our_model(size, combiner)
    model.set_attn_implementation("eager")
    batch = sources_of(size, 3, "cpu", joined=combiner == "concat")
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(**batch, decoder_input_ids=torch.full((3, size.steps), 5))
    # A step attends to the steps so far; a forward pass multiplies with the masked ones, too.
    masked = size.decoder_layers * 4 * size.d_model * size.steps * (size.steps - 1) / 2
    assert counter.get_total_flops() / 3 == pytest.approx(1e9 * work(size, combiner, beams=1)["gflop"] + masked)


def test_an_exact_competitor_that_finds_other_tokens_is_an_error() -> None:
    right, wrong = [[5, 6, 7, 8], [5, 6, 7, 9]], [[5, 6, 7, 8], [30, 31, 32, 33]]
    found = {"flat unfolded": right, "flat": right, "flat optimized": wrong, "flat int8": wrong}
    assert inference.compare("flat", found, CELL) == {"of": 2, "identical": 2, "near": 0}
    assert inference.compare("flat int8", found, CELL)["identical"] == 1
    with pytest.raises(SystemExit, match="flat optimized: 1 of 2 hypotheses are not those of flat unfolded"):
        inference.compare("flat optimized", found, CELL)


def test_hypotheses_of_the_same_score_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "scores", lambda model, batch, rows: torch.zeros(len(rows)))
    found = {"flat unfolded": [[5, 6]], "flat": [[6, 5]]}
    assert inference.compare("flat", found, CELL) == {"of": 1, "identical": 0, "near": 1}


def test_the_tuned_setting_is_taken_back() -> None:
    backend: Any = torch.backends.mkldnn
    before = backend.matmul.fp32_precision
    with inference.tuned():
        assert backend.matmul.fp32_precision == "bf16"
    assert backend.matmul.fp32_precision == before


def test_every_machine_has_its_own_section_and_its_own_limits() -> None:
    path = next((ROOT / page.RESULTS).glob("cpu/*/speed-msmt-beams10-batch16.json"))
    speed, floor = (json.loads(path.with_name(name).read_text("utf-8")) for name in (path.name, "floor.json"))
    fast = {kind: 10 * value for kind, value in floor["gflops"].items()}
    others = [{**speed, "hardware": "B"}, {**floor, "hardware": "B", "gflops": fast}]
    other, own = (f"## On a CPU: {name}\n" for name in ("B", speed["hardware"]))
    shown = page.render([speed, floor, *others])
    first, second = sorted((other, own))
    of_first, of_second = shown.split(first)[1].split(second)
    assert "### Decoding" in of_first and "### Decoding" in of_second
    assert page.render([speed, floor]).split(own)[1].split("## On a GPU")[0] in shown
    assert of_first.split("### Decoding")[1] != of_second.split("## On a GPU")[0].split("### Decoding")[1]


def speed_record(batch: int, hardware: str = "A", **changes: Any) -> dict[str, Any]:
    seconds = {"HF": [4.0, 1.0, 2.0], "flat": [1.0, 1.0, 1.0], "concat": [9.0, 9.0, 9.0]}
    runs = {name: {"seconds": {"cpu": found, "wall": [1e3] * 3}} for name, found in seconds.items()}
    known = {"part": "speed", "size": "msmt", "beams": 10, "batch": batch, "threads": 1, "device": "cpu"}
    return {**known, "clock": "cpu", "hardware": hardware, "runs": runs, **changes}


def test_the_drawing_shows_the_median_speeds_of_one_machine_by_batch() -> None:
    others: list[dict[str, Any]] = [
        {"part": "memory"},
        {"threads": 2},
        {"size": "mmt"},
        {"beams": 4},
        {"device": "cuda"},
    ]
    records = [speed_record(16), speed_record(1), *(speed_record(32, **change) for change in others)]
    chosen = figure.records_of_figure(records)
    assert [record["batch"] for record in chosen] == [1, 16]
    assert [figure.speeds(record) for record in chosen] == [{"HF": 0.5, "flat": 1.0}, {"HF": 8.0, "flat": 16.0}]
    drawn = figure.make_figure(chosen)
    panels = [
        (
            panel.get_title(),
            [round(bar.get_width(), 6) for bar in panel.patches],
            [one.get_text() for one in panel.texts],
        )
        for panel in drawn.axes
    ]
    assert panels == [("batch 1", [0.5, 1.0], ["0.5", "1.0"]), ("batch 16", [8.0, 16.0], ["8.0", "16.0"])]
    assert figure.records_of_figure([*records, speed_record(1, hardware="B")]) == []


def test_the_drawing_stands_on_the_page_and_older_records_on_another(tmp_path: Path) -> None:
    path = next((ROOT / page.RESULTS).glob("**/cpu/*/speed-msmt-beams10-batch16.json"))
    speed = json.loads(path.read_text("utf-8"))
    folder = tmp_path / "performance"
    for place, hardware in {"cpu/new": "New", "archive/cpu/old": "Old"}.items():
        (folder / place).mkdir(parents=True)
        (folder / place / path.name).write_text(json.dumps({**speed, "hardware": hardware}), encoding="utf-8")
    (folder / "archive" / "notes.md").write_text("Of another day.\n", encoding="utf-8")
    shown, older = (write(folder).read_text("utf-8") for write in (page.write_page, page.write_archive))
    assert (tmp_path / "performance.png").is_file() and "](performance.png)" in shown and "one core (New)" in shown
    assert "## On a CPU: New\n" in shown and "Old" not in shown
    assert "## On a CPU: Old\n" in older and "New" not in older and ".png" not in older
    assert older.startswith("<!-- Made by `python benchmarks/page.py` from what lies in performance/archive/.")
    assert "\nOf another day.\n" in older


def test_the_pages_are_what_their_writer_makes_of_the_records(tmp_path: Path) -> None:
    folder = ROOT / page.RESULTS
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    for write in (page.write_page, page.write_archive):
        made = write(copy)
        assert (folder.parent / made.name).read_text("utf-8") == made.read_text("utf-8")
