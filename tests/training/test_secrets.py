"""Secrets get neither into recipes and runs nor into what the commands record and print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_multisource.cli import score, train
from hf_multisource.cli.app import main
from hf_multisource.recipes.recipe import DataRecipe, Recipe, load_recipe
from hf_multisource.recipes.training import train as train_recipe
from runs import files_of, make_folder, recipe_of
from scored import OPTIONS, make_run

HF = "hf_" + "aB3d" * 8
feature = pytest.mark.feature("Training", "Secrets are refused in recipes, and masked in commands and messages")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@feature
@pytest.mark.parametrize(
    "option",
    [
        ["--hub_token", HF],
        [f"--hub_token={HF}"],
        ["--training.hub_token", "my-aB3d"],
        ["--token", "my-aB3d"],
        ["--api_key", "my-aB3d", "x: ["],
        ["--password", "'my-aB3d"],
        ["--run_name", HF],
        ["--seed", HF],
        ["--origin", "https://me:my-aB3d@host/x"],
        ["--lr_scheduler_kwargs", "{token: my-aB3d}"],
        ["--sources", "[{name: en, hub_token: my-aB3d}]"],
        ["--model.sources", f"[{{name: en, kind: pretrained, encoder: {{model_type: bert, x: {HF}}}}}]"],
        ["--nonsense", HF],
        ["--path", f"a: [{HF}"],
    ],
)
def test_a_training_refuses_a_secret_and_does_not_repeat_it(
    folder: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        train.main([str(folder / "recipe.yaml"), "--output_dir", str(folder / "run"), *option])
    assert "aB3d" not in str(caught.value)
    assert "aB3d" not in "".join(capsys.readouterr())
    assert not (folder / "run").exists()


@feature
def test_a_secret_in_the_file_of_a_recipe_is_refused(folder: Path) -> None:
    content = yaml.safe_load((folder / "recipe.yaml").read_text("utf-8"))
    for section, key, value in (
        ("training", "hub_token", "my-aB3d"),
        ("training", "run_name", HF),
        ("training", "optim_args", {"api_key": "my-aB3d"}),
        ("data", "password", "my-aB3d"),
    ):
        spoilt = {**content, section: {**content[section], key: value}}
        (folder / "spoilt.yaml").write_text(yaml.safe_dump(spoilt), "utf-8")
        with pytest.raises(ValueError, match=r"HF_TOKEN") as caught:
            load_recipe(folder / "spoilt.yaml")
        assert "aB3d" not in str(caught.value)


@feature
@pytest.mark.parametrize("training", [{"hub_token": HF}, {"run_name": HF}, {"accelerator_config": {"token": "x"}}])
def test_a_recipe_made_in_python_is_neither_saved_nor_trained_with_a_secret(
    folder: Path, training: dict[str, Any]
) -> None:
    recipe = Recipe(DataRecipe("text", ["en"], "cs"), training={"output_dir": str(folder / "run"), **training})
    with pytest.raises(ValueError, match="HF_TOKEN"):
        recipe.save(folder / "saved.yaml")
    with pytest.raises(ValueError, match="HF_TOKEN"):
        train_recipe(recipe)
    assert not (folder / "saved.yaml").exists()
    assert not (folder / "run").exists()


@feature
def test_a_training_from_a_script_records_its_command_without_the_secrets(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mine.py", "--hub_token", "my-aB3d", f"--key={HF}", "--seed", "2"])
    train_recipe(recipe_of(folder, max_steps=1, save_strategy="no"))
    summary = json.loads((folder / "run" / "train_summary.json").read_text("utf-8"))
    assert summary["command"] == "python mine.py --hub_token '***' '--key=hf_***' --seed 2"
    for name, content in files_of(folder / "run").items():
        assert b"aB3d" not in content, name


@feature
def test_a_score_records_its_command_without_secrets(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tmp_path)
    out = tmp_path / f"{HF}"
    score.main([str(run), *OPTIONS, "--limit", "4", "--out", str(out)])
    (command,) = json.loads((out / "test.json").read_text("utf-8"))["commands"]
    assert command.endswith("hf_***'")
    assert "aB3d" not in command


@feature
def test_messages_of_commands_mask_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["score", HF], ["score", "x", "--limit", HF], ["translate", "x", f"--num_beams={HF}"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert "aB3d" not in str(caught.value) + "".join(capsys.readouterr())
