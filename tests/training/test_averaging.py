"""Averages of checkpoints: means of known weights, what is refused, and the command from a run to scores."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from builders import tiny_config
from hf_multisource import (
    MultiSourceForConditionalGeneration,
    MultiSourceProcessor,
    MultiSourceRNNConfig,
    MultiSourceRNNForConditionalGeneration,
)
from hf_multisource.cli import average, push, score
from hf_multisource.recipes.averaging import average_weights
from hf_multisource.recipes.tokenization import train_tokenizer
from runs import make_folder, read_json, train_at, weights_of
from scored import OPTIONS, make_run

RUN = Path("run")
OUT = Path("out")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run that kept two checkpoints; its dev set is its test set, too."""
    folder = make_folder(tmp_path_factory.mktemp("trained"))
    train_at(folder, tie_word_embeddings=True)
    for path in (folder / "text").glob("dev.*"):
        shutil.copy(path, path.with_name(path.name.replace("dev", "test")))
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, in the current folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return RUN


def states(*values: Any) -> list[tuple[str, dict[str, Tensor]]]:
    return [(f"model {i}", {"weight": torch.tensor(value)}) for i, value in enumerate(values)]


def test_the_mean_is_taken_in_float64_and_cast_back() -> None:
    thirds = average_weights(states([1.0, 1e8], [0.0, 1.0], [0.0, -1e8]))["weight"]
    assert thirds.tolist() == [torch.tensor(1 / 3).item(), torch.tensor(1 / 3).item()]
    assert thirds.dtype == torch.float32
    halves = [(name, {"weight": state["weight"].bfloat16()}) for name, state in states([1.0, 3.0], [2.0, 3.0])]
    assert torch.equal(average_weights(halves)["weight"], torch.tensor([1.5, 3.0], dtype=torch.bfloat16))


def test_integers_that_are_equal_stay() -> None:
    assert torch.equal(average_weights(states([3, 4], [3, 4]))["weight"], torch.tensor([3, 4]))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (states([1.0], [1.0, 2.0]), r"weight has the shape \[1\] in model 0, \[2\] in model 1"),
        (states([3, 4], [3, 5]), "weight holds integers, which are not those of model 0 in model 1"),
        ([*states([1.0]), ("model 1", {"bias": torch.ones(1)})], "weight is missing in model 1"),
        (
            [*states([1.0]), ("model 1", {"weight": torch.ones(1), "bias": torch.ones(1)})],
            "bias is in model 1 and not in model 0",
        ),
    ],
)
def test_weights_that_do_not_go_together_are_refused_by_name(members: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        average_weights(members)


@pytest.mark.feature("Training", "Averages of checkpoints (hf-multisource average)")
def test_a_run_becomes_a_model_that_can_be_scored_and_published(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    average.main([str(run), "--out", "out"])
    assert "checkpoint-4, checkpoint-8" in capsys.readouterr().out
    first, second, found = (weights_of(folder) for folder in (run / "checkpoint-4", run / "checkpoint-8", OUT))
    assert found.keys() == first.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, ((first[name].double() + second[name].double()) / 2).float()), name
    assert any(not torch.equal(first[name], second[name]) for name in found)
    model: Any = MultiSourceForConditionalGeneration.from_pretrained(OUT)
    assert model.lm_head.weight is model.model.decoder.embeddings.tokens.weight
    assert MultiSourceProcessor.from_pretrained(OUT).source_names == ["en", "de"]
    assert read_json(OUT / "average.json")["members"] == ["checkpoint-4", "checkpoint-8"]
    score.main(["out", "--num_beams", "2", "--max_new_tokens", "4", "--device", "cpu", "--split", "dev"])
    assert read_json(OUT / "scores" / "dev.json")["run"] == "out"
    push.main(["out", "org/name"])
    assert "model.safetensors" in capsys.readouterr().out


def test_the_last_ones_only(run: Path) -> None:
    shutil.copytree(run / "checkpoint-8", run / "checkpoint-9")  # before it in the order of names: -10
    shutil.copytree(run / "checkpoint-8", run / "checkpoint-10")
    average.main([str(run), "--out", "out", "--last", "2"])
    assert read_json(OUT / "average.json")["members"] == ["checkpoint-9", "checkpoint-10"]
    assert all(torch.equal(tensor, weights_of(run / "checkpoint-8")[name]) for name, tensor in weights_of(OUT).items())


@pytest.mark.parametrize("folders", [["run/checkpoint-4", "run"], ["run", "run/checkpoint-4"]])
def test_folders_are_averaged_too_and_the_first_ones_files_come_along(folders: list[str], run: Path) -> None:
    """A recipe lies beside the run, too."""
    average.main([*folders, "--out", "out"])
    first, second = weights_of(run / "checkpoint-4"), weights_of(run)
    assert weights_of(OUT).keys() == first.keys()
    for name, tensor in weights_of(OUT).items():
        assert torch.equal(tensor, ((first[name].double() + second[name].double()) / 2).float())
    for name in ("recipe.yaml", "train_summary.json", "tokenizer.json"):
        assert (OUT / name).read_bytes() == (run / name).read_bytes()


def test_a_checkpoint_that_was_not_written_to_its_end_is_left_out(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run / "checkpoint-8", run / "checkpoint-12")
    (run / "checkpoint-12" / "complete.json").unlink()
    average.main([str(run), "--out", "out"])
    assert "checkpoint-12 is left out: complete.json is missing" in capsys.readouterr().out
    assert read_json(OUT / "average.json")["members"] == ["checkpoint-4", "checkpoint-8"]


def changed_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["run", "--out", "run"], "run"),
        (["run", "--out", "out", "--last", "3"], "--last is 3; run has 2 complete checkpoints"),
        (["run", "--out", "out", "--last", "1"], "last is 1; it must be at least 2"),
        (["run/checkpoint-4", "--out", "out"], "run/checkpoint-4 has 0 complete checkpoints; an average needs two"),
        (["run", "run/checkpoint-4", "--out", "out", "--last", "2"], "--last belongs to the checkpoints of one run"),
        (["run", "nothing", "--out", "out"], "nothing is no folder of a model"),
    ],
)
def test_what_cannot_be_averaged_is_refused_before_anything_is_written(
    options: list[str], message: str, run: Path
) -> None:
    with pytest.raises(SystemExit, match=f"^hf-multisource average: .*{re.escape(message)}"):
        average.main(options)
    assert not OUT.exists()


def test_a_changed_checkpoint_is_refused(run: Path) -> None:
    changed_weights(run / "checkpoint-4")
    with pytest.raises(SystemExit, match=r"run/checkpoint-4: model\.safetensors has changed since it was written"):
        average.main([str(run), "--out", "out"])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"combiner": "parallel"}, "combiner is 'serial' in one, 'parallel' in other"),
        ({"d_model": 16}, "d_model is 8 in one, 16 in other"),
    ],
)
def test_models_of_another_configuration_are_refused(field: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    one, other = make_run(tmp_path / "one", tmp_path / "data"), tmp_path / "other"
    settings = {"vocab_size": 280, "initializer": "normal", "init_std": 1.0, "combiner": "serial", **field}
    model: Any = MultiSourceForConditionalGeneration(tiny_config(sources=["en", "de"], **settings))
    model.save_pretrained(other)
    with pytest.raises(SystemExit, match=re.escape(message)):
        average.main([str(one), str(other), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("same", [True, False])
def test_models_of_another_vocabulary_of_the_same_size_are_refused(same: bool, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    one, other = make_run(tmp_path / "one", tmp_path / "data"), tmp_path / "other"
    shutil.copytree(one, other)
    if not same:
        texts = ["another text altogether, of other words"] * 3
        MultiSourceProcessor(train_tokenizer(texts, "bpe", 280), ["en", "de"]).save_pretrained(other)
    command = [str(one), str(other), "--out", str(tmp_path / "out")]
    if same:
        average.main(command)
        return
    with pytest.raises(SystemExit, match=f"tokenizers or preprocessors of {other} are not those of {one}: only"):
        average.main(command)
    assert not (tmp_path / "out").exists()


def test_a_model_folder_without_a_recipe_will_do(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    one = make_run(tmp_path / "one", tmp_path / "data")
    for name in ("recipe.yaml", "train_summary.json", "trainer_state.json"):
        (one / name).unlink()
    average.main([str(one), str(one), "--out", str(tmp_path / "out")])
    assert all(torch.equal(tensor, weights_of(one)[name]) for name, tensor in weights_of(tmp_path / "out").items())
    command = [str(tmp_path / "out"), "--data", str(tmp_path / "data"), "--target", "cs", "--split", "test"]
    score.main([*command, *OPTIONS])


def test_the_other_family_is_averaged_too(tmp_path: Path) -> None:
    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model: Any = MultiSourceRNNForConditionalGeneration(
            MultiSourceRNNConfig(sources=["en", "de"], vocab_size=280, d_model=8, num_layers=2)
        )
        folders.append(tmp_path / str(seed))
        model.save_pretrained(folders[-1])
        MultiSourceProcessor(train_tokenizer(["a dog"], "bpe", 280), ["en", "de"]).save_pretrained(folders[-1])
    average.main([*map(str, folders), "--out", str(tmp_path / "out")])
    one, other = map(weights_of, folders)
    assert weights_of(tmp_path / "out").keys() == one.keys()
    for name, tensor in weights_of(tmp_path / "out").items():
        assert torch.equal(tensor, ((one[name].double() + other[name].double()) / 2).float())
