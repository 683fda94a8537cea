"""Commands that recipes, benchmarks/gpu.md and training/README.md print give valid recipes and configurations."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from command_lines import parse
from hf_multisource.recipes.recipe import Recipe, load_recipe, parse_overrides
from hf_multisource.recipes.shipped import describe_recipes, shipped_recipes

ROOT = Path(__file__).resolve().parents[2]
RECIPES = shipped_recipes()
GPU = ROOT / "benchmarks" / "gpu.md"
# Prints the commands of a script instead of running them, each word quoted; anything else is not found.
STUBS = """
PATH=
print_command() { printf '%q ' "$@"; echo; }
hf-multisource() { print_command hf-multisource "$@"; }
python() { print_command python "$@"; }
pytest() { print_command pytest "$@"; }
"""


def comment_of(name: str) -> list[str]:
    """The lines of the comment that a recipe begins with."""
    lines = RECIPES[name].read_text("utf-8").splitlines()
    return [line.removeprefix("#") for line in lines[: lines.index("data:")]]


def commands_of(script: str) -> list[list[str]]:
    """The words of the commands that a shell script would run."""
    done = subprocess.run(["bash", "-ec", STUBS + script], capture_output=True, text=True, check=True)
    return [shlex.split(line) for line in done.stdout.splitlines()]


def commands_of_recipe(name: str) -> list[list[str]]:
    """The commands in a recipe's comment, and `train` with each of the options that it names."""
    lines = comment_of(name)
    script = "\n".join(line for line in lines if line.startswith("   "))
    options = re.findall(r"`(--[^`]*)`", "\n".join(lines))
    return commands_of(script) + [["hf-multisource", "train", name, *shlex.split(option)] for option in options]


def commands_of_gpu() -> list[list[str]]:
    """The commands of gpu.md, with every value that its text names for a variable."""
    commands = []
    for section in GPU.read_text("utf-8").split("\n## ")[1:]:
        for script in re.findall(r"```bash\n(.*?)```", section, re.DOTALL):
            commands += commands_of(script)
            for variable, value in re.findall(r"`([A-Z])='([^']*)'`", section):
                changed = re.sub(rf"^{variable}='[^']*'$", f"{variable}='{value}'", script, flags=re.MULTILINE)
                assert f"{variable}='" in changed
                commands += commands_of(changed)
    return commands


def check(command: list[str]) -> Recipe | None:
    """Build the recipe and the configuration of a `train` command; parse others; scripts must be there."""
    if command[0] == "python":
        assert command[1] == "-m" or (ROOT / command[1]).exists(), command
        return None
    if command[0] != "hf-multisource":  # pytest
        return None
    if command[1] != "train":
        parse(command[1:])
        return None
    recipe = load_recipe(command[2], parse_overrides(command[3:]))
    entries: dict[str, Any] = recipe.source_entries()
    if any(entry.get("kind") == "pretrained" for entry in entries.values()):
        return recipe  # its network would have to be there
    recipe.model_config(recipe.tokenizer.vocab_size, {})
    return recipe


@pytest.mark.parametrize("name", RECIPES)
def test_the_commands_of_a_recipes_comment_are_valid(name: str) -> None:
    load_recipe(name)
    for command in commands_of_recipe(name):
        check(command)


def test_the_commands_for_a_gpu_are_valid() -> None:
    recipes = [recipe for command in commands_of_gpu() if (recipe := check(command))]
    assert {recipe.model.get("attention") for recipe in recipes} >= {"none", "local_p", "dot", "general"}


def test_the_commands_of_the_order_of_training_are_valid() -> None:
    text = (ROOT / "training" / "README.md").read_text("utf-8")
    commands = [
        command for script in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for command in commands_of(script)
    ]
    assert [command[1] for command in commands] == ["tokenizer", "train", "score", "results", "card"]
    for command in commands:
        check(command)
    for pattern in ("prepare/*.py", "reports/*.py", "accelerate/*.yaml"):
        names = [path.name for path in (ROOT / "training").glob(pattern)]
        assert names, pattern
        assert [name for name in names if name not in text] == []


def test_a_command_that_is_no_longer_valid_is_found() -> None:
    with pytest.raises(ValueError, match=r"^model\.input_feeding=True needs an attention"):
        check(shlex.split("hf-multisource train zoph_knight_fr_de_en --attention none"))


@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith("_paper") or "europarl" in name])
def test_the_papers_search_and_clipping_are_stated(name: str) -> None:
    scored = [command for command in commands_of_recipe(name) if command[1] == "score"]
    recipe = load_recipe(name)
    assert scored == [
        ["hf-multisource", "score", recipe.training["output_dir"], "--num_beams", "10", "--length_normalization", "1.0"]
    ]
    assert recipe.model["preset"] == "paper" and "max_grad_norm" in recipe.training


def test_without_attention_the_commands_have_the_papers_initial_range() -> None:
    commands = [" ".join(command) for command in commands_of_recipe("zoph_knight_fr_de_en")]
    [command] = [command for command in commands if "--attention none" in command]
    assert "--input_feeding false" in command and "--init_range 0.1" in command


def test_each_recipe_begins_with_one_sentence_which_the_list_shows() -> None:
    shown = describe_recipes().splitlines()
    assert len(shown) == len(RECIPES)
    for name, line in zip(RECIPES, shown, strict=True):
        first, rest = comment_of(name)[0], "\n".join(comment_of(name)[1:])
        sentence = first.strip()
        assert len(sentence) < 100 and sentence.endswith(".") and ". " not in sentence, name
        assert line == f"{name:<32}{sentence}"
        assert "training/configs" not in rest and "training/train" not in rest, name
