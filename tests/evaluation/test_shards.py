"""Translations that several processes share, that are killed and go on, and that are sampled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_multisource.cli import translate
from hf_multisource.evaluation import decoding, shards
from hf_multisource.evaluation.decoding import Search
from hf_multisource.evaluation.line_sampling import LineSampling, draw_uniform
from hf_multisource.evaluation.target_tokens import target_tokens
from hf_multisource.recipes.pretrained import load_processor
from kills import Killed, kill_in
from runs import files_of, read_json, write_lines
from scored import OPTIONS, make_run, sentences

ROOT = Path(__file__).resolve().parents[2]
KILLS = ROOT / "tests" / "support" / "translation_kills.py"
CONFIG = ROOT / "training" / "accelerate" / "ddp.yaml"
ROWS = 22


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and two sources of ROWS lines, one of them without any source."""
    home = tmp_path_factory.mktemp("shards")
    (home / "data").mkdir()
    make_run(home / "run", home / "data")
    for name, seed in (("en", 5), ("de", 6)):
        lines = sentences(ROWS, seed)
        lines[4] = ""
        write_lines(home / f"new.{name}", lines)
    return home


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "WINDOW", 1)


def arguments(folder: Path, out: Path, *more: str) -> list[str]:
    files = ["--en", str(folder / "new.en"), "--de", str(folder / "new.de"), "--out", str(out)]
    beam = () if "--do_sample" in more else ("--num_beams", "2")
    return [str(folder / "run"), *files, *beam, *OPTIONS[2:], *more]


def run(folder: Path, out: Path, *more: str, share: tuple[int, int] = (0, 1)) -> bytes:
    """Translate as one of several processes; what the file holds afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(share[0]))
        patch.setenv("WORLD_SIZE", str(share[1]))
        translate.main(arguments(folder, out, *more))
    return out.read_bytes() if out.exists() else b""


@pytest.fixture(scope="module")
def whole(folder: Path) -> bytes:
    """What an uninterrupted run of one process writes."""
    content = run(folder, folder / "whole.cs")
    assert content.count(b"\n") == ROWS and len(set(content.split(b"\n"))) > 10
    return content


@pytest.mark.parametrize("count", [2, 3])
def test_processes_share_the_lines_and_the_last_one_joins_them(
    count: int, folder: Path, whole: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.cs"
    for index in reversed(range(1, count)):
        assert run(folder, out, share=(index, count)) == b"", "the file is not there before it is whole"
        said = f"process {index} of {count} (RANK, WORLD_SIZE) has written its part; {out} appears with the last part"
        assert said in capsys.readouterr().err
    assert run(folder, out, share=(0, count)) == whole
    assert "appears with the last part" not in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.cs", "out.cs.json"]


@pytest.mark.slow
def test_two_processes_of_accelerate_write_the_same_file(folder: Path, whole: bytes, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "accelerate.commands.launch", f"--config_file={CONFIG}", "--main_process_port=0"]
    command += ["--dynamo_backend=no", "-m", "hf_multisource.cli.translate"]
    subprocess.run([*command, *arguments(folder, tmp_path / "out.cs")], check=True, capture_output=True, cwd=tmp_path)
    assert (tmp_path / "out.cs").read_bytes() == whole
    assert read_json(tmp_path / "out.cs.json")["processes"] == 2


def test_after_a_kill_at_any_step_the_same_file_is_written(folder: Path, whole: bytes, tmp_path: Path) -> None:
    writes = 1 + -(-ROWS // 4) + 2  # settings, shards of 4 rows, record, file
    places: list[tuple[Any, str, int]] = [(os, "replace", count) for count in range(writes)]
    for owner, name, number in [*places, (shutil, "rmtree", 0)]:
        for after in (False, True):
            out = tmp_path / f"{name}{number}{after}" / "out.cs"
            calls = iter(range(100))
            with pytest.MonkeyPatch.context() as patch:
                kill_in(patch, owner, name, when=lambda *_, n=number, c=calls, **__: next(c) == n, after=after)
                with pytest.raises(Killed):
                    run(folder, out)
            assert not out.exists() or out.read_bytes() == whole
            assert run(folder, out) == whole, f"{name} {number}, after: {after}"
            assert sorted(path.name for path in out.parent.iterdir()) == ["out.cs", "out.cs.json"]


def kill_two(folder: Path, out: Path, kills: int, seed: int, seconds: float) -> int:
    """Kill two processes so many times; how many of the kills came before the file was whole."""
    command = [sys.executable, str(KILLS), str(kills), str(seed), str(seconds)]
    command += arguments(folder, out, "--batch_size", "1")
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, 20])
def test_two_processes_that_are_killed_at_random_moments_write_the_same_file(
    kills: int, folder: Path, tmp_path: Path
) -> None:
    for name in ("en", "de"):
        write_lines(tmp_path / f"new.{name}", sentences(40 * kills, seed=7))
    shutil.copytree(folder / "run", tmp_path / "run")
    assert kill_two(tmp_path, tmp_path / "whole.cs", 0, 0, 0) == 0
    seconds = 2 * read_json(tmp_path / "whole.cs.json")["seconds"] / kills
    within = kill_two(tmp_path, tmp_path / "out.cs", kills, 1, seconds)
    assert within >= kills // 2, "most kills come before the end"
    assert (tmp_path / "out.cs").read_bytes() == (tmp_path / "whole.cs").read_bytes()


def begin(folder: Path, out: Path, *more: str) -> None:
    """Translate until the third shard is written."""
    with pytest.MonkeyPatch.context() as patch:
        calls = iter(range(100))
        kill_in(patch, os, "replace", when=lambda *_: next(calls) == 3, after=True)
        with pytest.raises(Killed):
            run(folder, out, *more)


def change_line(copy: Path) -> None:
    write_lines(copy / "new.en", ["another", *sentences(ROWS, 5)[1:]])


def change_weights(copy: Path) -> None:
    weights = load_file(copy / "run" / "model.safetensors")
    name = min(weights)
    save_file({**weights, name: weights[name] + 1}, copy / "run" / "model.safetensors", metadata={"format": "pt"})


def change_tokenizer(copy: Path) -> None:
    path = copy / "run" / "tokenizer.json"
    tokenizer = read_json(path)
    tokenizer["model"]["merges"].pop()
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def change_config(copy: Path) -> None:
    config = read_json(copy / "run" / "config.json")
    (copy / "run" / "config.json").write_text(json.dumps({**config, "activation_function": "gelu_new"}))


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (change_line, [], "rows_sha256 was .* \\(the input changed\\)"),
        (change_weights, [], "weights_sha256 was .* \\(the model changed\\)"),
        (change_tokenizer, [], "processor_sha256 was .* \\(the model changed\\)"),
        (change_config, [], "config_sha256 was .* \\(the model changed\\)"),
        (lambda _: None, ["--num_beams", "3"], "num_beams was 2, is 3. It is unchanged"),
        (lambda _: None, ["--do_sample", "--num_beams", "1", "--seed", "4"], "do_sample was None, is True.* seed was"),
    ],
    ids=["input", "weights", "tokenizer", "config", "option", "sampling"],
)
def test_what_changed_is_named_and_nothing_is_overwritten(
    finished: bool, change: Any, options: list[str], message: str, folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    out = tmp_path / "out" / "out.cs"
    (run if finished else begin)(copy, out)
    change(copy)
    before = files_of(out.parent)
    with pytest.raises(SystemExit, match=f"begun with other settings: .*{message}"):
        run(copy, out, *options)
    assert files_of(out.parent) == before


def test_files_that_the_command_has_not_written_stay(folder: Path, whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.cs"
    out.write_text("precious\n")
    with pytest.raises(SystemExit, match=r"out\.cs exists, but out\.cs\.json is missing"):
        run(folder, out)
    assert out.read_text() == "precious\n"
    out.unlink()
    assert run(folder, out) == whole
    out.write_bytes(whole[:-9])
    with pytest.raises(SystemExit, match=r"out\.cs is not the file that out\.cs\.json describes"):
        run(folder, out)
    assert out.read_bytes() == whole[:-9]
    out.unlink()
    begin(folder, out)
    (tmp_path / "out.cs.json").unlink()
    with pytest.raises(SystemExit, match=r"out\.cs\.parts exists, but out\.cs\.json is missing"):
        run(folder, out)


def test_a_damaged_shard_is_decoded_again_and_finished_lines_are_not(
    folder: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(folder, tmp_path / "out.cs")
    _, second, _ = sorted((tmp_path / "out.cs.parts").glob("*.json"))
    second.write_bytes(second.read_bytes()[:40])
    lines: list[int] = []
    decode_batch = decoding.decode_batch

    def counted(*args: Any) -> Any:
        lines.extend(args[4])
        return decode_batch(*args)

    monkeypatch.setattr(decoding, "decode_batch", counted)
    assert run(folder, tmp_path / "out.cs", "--batch_size", "3") == whole, "also with another batch size"
    assert sorted(lines) == [*(5, 6, 7), *range(12, ROWS)], "line 4 has no source"


def test_the_record_says_that_the_text_is_synthetic_and_how_it_was_made(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out.cs", "--max_length", "4")
    record = read_json(tmp_path / "out.cs.json")
    assert record["synthetic"] is True
    assert (record["model"], record["inputs"]["en"]) == (str(folder / "run"), str(folder / "new.en"))
    assert record["options"]["num_beams"] == 2
    assert record["counts"]["rows"] == ROWS and record["counts"]["silent"] == 1
    assert record["counts"]["truncated.en"] >= ROWS - 1
    assert record["date"] and record["seconds"] > 0 and record["hardware"]


def test_empty_translations_are_counted_with_n_best_too(folder: Path, tmp_path: Path) -> None:
    for more in ((), ("--n_best", "2")):
        out = tmp_path / f"out{len(more)}.cs"
        run(folder, out, *more)
        texts = [line.split("\t")[-1] for line in out.read_text("utf-8").split("\n")[:-1]]
        best = texts[:: 2 if more else 1]
        assert read_json(Path(f"{out}.json"))["counts"]["empty"] == best.count("") >= 1


def test_the_tokens_of_a_shortlist_are_those_of_targets(tmp_path: Path) -> None:
    """Marian's tokenizer has two models, one for sources and one for targets."""

    class TwoModes:
        pad_token_id, unk_token_id, eos_token_id = 0, 1, 2

        def __call__(self, text: Any = None, text_target: Any = None, add_special_tokens: bool = True) -> Any:
            return {"input_ids": [[20 if text is None else 10] for _ in text or text_target]}

    write_lines(tmp_path / "words", ["a", "b"])

    class Processor:
        tokenizer = TwoModes()

    processor: Any = Processor()
    assert target_tokens(processor, str(tmp_path / "words")).tolist() == [2, 20]


def test_an_empty_input_gives_an_empty_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "no.en").touch()
    command = [str(folder / "run"), "--en", str(tmp_path / "no.en"), "--out", str(tmp_path / "out.cs")]
    for _ in range(2):
        translate.main(command)
        assert (tmp_path / "out.cs").read_bytes() == b""


def test_several_processes_need_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    source = str(folder / "new.en")
    for command, message in (
        (["--en", source], "cannot share standard output: give --out"),
        (["--out", str(tmp_path / "x")], "--input -: several processes each read the input"),
        (["--en", "/dev/fd/0", "--out", str(tmp_path / "x")], "--en /dev/fd/0: several processes"),
    ):
        with pytest.raises(SystemExit, match=message):
            translate.main([str(folder / "run"), *command])


SAMPLED = ("--do_sample", "--seed", "3", "--top_p", "0.95", "--temperature", "1.5")


def test_samples_depend_on_seed_and_line_alone(folder: Path, whole: bytes, tmp_path: Path) -> None:
    for name in ("en", "de"):
        write_lines(tmp_path / f"new.{name}", sentences(4, seed=8) * 4)
    shutil.copytree(folder / "run", tmp_path / "run")
    one = run(tmp_path, tmp_path / "one.cs", *SAMPLED)
    assert run(tmp_path, tmp_path / "again.cs", *SAMPLED, "--batch_size", "1") == one
    run(tmp_path, tmp_path / "two.cs", *SAMPLED, share=(1, 2))
    assert run(tmp_path, tmp_path / "two.cs", *SAMPLED, share=(0, 2)) == one
    begin(tmp_path, tmp_path / "killed.cs", *SAMPLED)
    assert run(tmp_path, tmp_path / "killed.cs", *SAMPLED) == one
    assert run(tmp_path, tmp_path / "other.cs", *SAMPLED[:2], "4", *SAMPLED[3:]) != one
    lines = one.decode().splitlines()
    assert lines[:4] != lines[4:8], "equal sentences have samples of their own"


def test_tokens_are_drawn_with_the_probabilities_that_are_left_by_the_filters() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, float("-inf")])
    numbers = torch.tensor([draw_uniform(1, line, 1) for line in range(4000)], dtype=torch.float64)
    ids: Any = torch.zeros(4000, 1, dtype=torch.long)
    for settings, left in (
        ({}, logits),
        ({"temperature": 2.0}, logits / 2),
        ({"top_k": 2}, logits[:2]),
        ({"top_p": 0.8}, logits[:2]),  # 0.64 + 0.24
    ):
        scores: Any = LineSampling(numbers, **settings)(ids, logits.expand(4000, -1))  # type: ignore[arg-type]
        assert scores.amax(-1).eq(0).all() and torch.isinf(scores).sum() == 4000 * 4, "one token each"
        found = Counter(scores.argmax(-1).tolist())
        for token, probability in enumerate(torch.softmax(left, -1).tolist()):
            assert found.pop(token, 0) / 4000 == pytest.approx(probability, abs=0.03)
        assert not found


def test_a_token_of_probability_0_is_never_drawn() -> None:
    """The smallest random number is 0."""
    logits, ids = torch.tensor([[float("-inf"), 0.0, 0.0]]), torch.zeros(1, 1, dtype=torch.long)
    scores: Any = LineSampling(torch.zeros(1, 1, dtype=torch.float64))(ids, logits)  # type: ignore[arg-type]
    assert scores.argmax(-1).tolist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_sample": True, "num_beams": 4}, "num_beams is 4 with do_sample"),
        ({"temperature": 0.7}, "temperature is 0.7 without do_sample"),
        ({"do_sample": True, "num_beams": 1, "temperature": 0.0}, "temperature must be above 0, not 0.0"),
        ({"do_sample": True, "num_beams": 1, "top_p": 1.5}, "top_p must be above 0 and at most 1, not 1.5"),
        ({"do_sample": True, "num_beams": 1, "seed": 2**64}, "seed must be below"),
    ],
)
def test_bad_options_of_sampling_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Search(**options)


def test_only_tokens_of_the_shortlist_are_generated(folder: Path, whole: bytes, tmp_path: Path) -> None:
    lines = sentences(9, seed=1)
    write_lines(tmp_path / "target.cs", [*lines, ""])
    text = run(folder, tmp_path / "out.cs", "--shortlist", str(tmp_path / "target.cs")).decode()
    assert {*text} <= {*"".join(lines), "\n"} and not {*whole.decode()} <= {*"".join(lines), "\n"}
    processor = load_processor(str(folder / "run"))
    ids = {token for line in lines for token in processor.tokenizer(line)["input_ids"]}
    assert target_tokens(processor, str(tmp_path / "target.cs")).tolist() == sorted(ids), "the end token is among them"

    write_lines(tmp_path / "more.cs", lines[1:2])
    before = files_of(tmp_path)
    with pytest.raises(SystemExit, match=r"shortlist_sha256 was .*, is .*It is unchanged"):
        run(folder, tmp_path / "out.cs", "--shortlist", str(tmp_path / "more.cs"))
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("lines", [[], ["", " "]], ids=["empty", "blank"])
def test_a_shortlist_without_tokens_is_refused(lines: list[str], folder: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "target.cs", lines)
    with pytest.raises(SystemExit, match=r"shortlist: .*target.cs has no tokens"):
        run(folder, tmp_path / "out.cs", "--shortlist", str(tmp_path / "target.cs"))
    assert not (tmp_path / "out.cs").exists()
