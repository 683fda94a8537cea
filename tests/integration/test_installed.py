"""From a folder of text to a translation and a dry-run push, with the wheel and its extra `train` alone.

`make test` makes the environment and names it in `USER_ENVIRONMENT`; each step is a command as a user types it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from runs import WORDS, write_lines

pytestmark = pytest.mark.installed
SIZES = ["d_model", "encoder_ffn_dim", "decoder_ffn_dim", "encoder_layers", "decoder_layers", "encoder_attention_heads"]
SIZES += ["decoder_attention_heads"]
VALUES = [16, 16, 16, 1, 1, 2, 2]


def run(folder: Path, *command: str) -> str:
    """Run a program of the user's environment with nothing but PATH and an empty home; return what it prints."""
    programs = Path(os.environ["USER_ENVIRONMENT"]) / "bin"
    (folder / "home").mkdir(exist_ok=True)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [programs / command[0], *command[1:]], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small data set in `text`."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "text").mkdir()
    for split, lines in {"train": 32, "dev": 8, "test": 8}.items():
        for name, words in WORDS.items():
            write_lines(
                folder / "text" / f"{split}.{name}", [f"{words[i % 8]} {words[i * 3 % 8]}" for i in range(lines)]
            )
    return folder


def test_the_environment_holds_neither_torchvision_nor_what_tests_need(work: Path) -> None:
    listed = json.loads(run(work, "pip", "list", "--format=json"))
    names = {package["name"].lower().replace("_", "-") for package in listed}
    assert "hf-multisource" in names
    assert names & {"torchvision", "timm", "pytest", "babel", "matplotlib", "pillow"} == set()


def test_a_folder_of_text_becomes_a_model_a_translation_and_an_upload_that_is_only_shown(work: Path) -> None:
    assert "multi30k_en_de_fr_cs " in run(work, "python", "-m", "hf_multisource", "recipes")
    data = ["--sources", "en", "de", "fr", "--target", "cs"]
    run(work, "hf-multisource", "tokenizer", "text", *data, "--vocab_size", "290", "--out", "tokens")
    sizes = [word for name, value in zip(SIZES, VALUES, strict=True) for word in (f"--{name}", str(value))]
    splits = ["--train", "train", "--dev", "dev", "--test", "test", "--max_length", "16"]
    steps = ["--max_steps", "4", "--eval_steps", "4", "--save_steps", "4", "--warmup_steps", "2", "--bf16", "no"]
    run(
        work,
        *("hf-multisource", "train", "multi30k_en_de_fr_cs", "--path", "text", *data, *splits, "--load", "tokens"),
        *(*sizes, *steps, "--output_dir", "run"),
    )
    table = run(work, "hf-multisource", "score", "run", "--num_beams", "2", "--absent")
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [
        *("all", "absent-en", "absent-de", "absent-fr")
    ]
    files = ["--en", "text/test.en", "--de", "text/test.de", "--out", "test.cs"]
    run(work, "hf-multisource", "translate", "run", *files, "--num_beams", "2")
    assert len((work / "test.cs").read_text("utf-8").split("\n")) == 9
    run(work, "hf-multisource", "card", "run", "--address", "org/name")
    shown = run(work, "hf-multisource", "push", "run", "org/name")
    assert "model.safetensors" in shown
    assert "README.md" in shown
    assert shown.rstrip().endswith("Nothing was uploaded; --push does it.")


def test_accelerate_starts_the_command_on_two_processes(work: Path) -> None:
    sizes = [word for name, value in zip(SIZES, VALUES, strict=True) for word in (f"--{name}", str(value))]
    data = ["--path", "text", "--sources", "en", "de", "--target", "cs", "--train", "train", "--dev", "dev"]
    steps = ["--max_steps", "2", "--eval_steps", "2", "--save_steps", "2", "--warmup_steps", "1", "--bf16", "no"]
    run(
        work,
        *("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
        *("-m", "hf_multisource.cli.train", "multi30k_en_de_fr_cs", *data, *sizes, *steps, "--max_length", "16"),
        *("--vocab_size", "290", "--use_cpu", "true", "--output_dir", "two"),
    )
    assert json.loads((work / "two" / "train_summary.json").read_text("utf-8"))["processes"] == 2
