"""The code blocks of README.md and docs/ run as they are written, and every name in them exists.

The blocks of docs/tutorials run in test_tutorials.py.
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import MarianConfig, MarianMTModel, ViTConfig, ViTImageProcessorPil, ViTModel

from command_lines import SOURCES, commands, parse, split_commands
from fresh import run_fresh
from hf_multisource import COMBINERS, MultiSourceConfig, MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.recipes.recipe import DataRecipe, TokenizerRecipe, load_recipe
from hf_multisource.recipes.schema import known_keys
from hf_multisource.recipes.shipped import shipped_recipes
from hf_multisource.recipes.tokenization import train_tokenizer

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"docs/compatibility.md"}  # written by the test run
TUTORIALS = sorted(f"docs/tutorials/{path.name}" for path in (ROOT / "docs/tutorials").glob("*.md"))
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")), *TUTORIALS]
PAGES = [page for page in PAGES if page not in GENERATED]
AT_THE_TOP = ["CONTRIBUTING.md", "SECURITY.md"]
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in [*PAGES, *GENERATED, *AT_THE_TOP]}
MOST_LINES = 150  # of the README
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
NEEDS_THE_DEMO = {"README.md"}  # pages whose shown output is that of the trained demo model

# Pages (of the README the first example) that import nothing but what lies beside the weights.
ON_REMOTE_CODE = ["docs/sources.md", "docs/conversion.md", "docs/generation.md", "docs/publishing.md"]
REMOTE = """
import os, sys, types
from transformers.dynamic_module_utils import get_class_from_dynamic_module

class Remote(types.ModuleType):
    def __getattr__(self, name):
        for module in ("configuration_multisource", "modeling_multisource", "processing_multisource"):
            if name in open(f"{place}/{module}.py").read().rpartition("__all__")[2]:
                return get_class_from_dynamic_module(f"{module}.{name}", place)
        raise AttributeError(name)

sys.modules["hf_multisource"] = Remote("hf_multisource")
os.chdir(folder)
answer = {}
for page, blocks in examples.items():
    names = {}
    for block in blocks:
        exec(block, names)
    answer[page] = [type(names["model"]).__module__, str(names.get("loss"))]
"""


def examples(page: str) -> list[tuple[str, str]]:
    """The Python blocks of a page, each with the output that is shown below it, or ""."""
    return EXAMPLE.findall(TEXT[page])


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT[page], re.DOTALL)


def tables(text: str) -> list[list[str]]:
    """The cells of every line of a table, headings and rules included."""
    return [re.split(r" ?(?<!\\)\| ?", line.strip("| ")) for line in text.splitlines() if line.startswith("|")]


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A folder in which tiny untrained models stand in the place of the demo's and the Hub's, which examples load."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["Sunday, May 21, 18 days", "21. Mai, 2001", "dimanche, 17 euros"], "bpe", 270)
    processor = MultiSourceProcessor(tokenizer, ["en", "de", "fr"])
    config = MultiSourceConfig.from_processor(
        processor,
        d_model=64,
        encoder_layers=1,
        encoder_ffn_dim=64,
        decoder_layers=2,
        decoder_ffn_dim=64,
        label_smoothing=0.1,
    )
    model = MultiSourceForConditionalGeneration(config)
    model.generation_config.max_length = 40  # as that of a trained run
    for saved in (processor, model):
        saved.save_pretrained(tmp_path / "runs/demo/all")
    sizes: dict[str, Any] = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 8)
    numbers: dict[str, Any] = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    numbers |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    ids: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1, "decoder_start_token_id": 0}
    for name in ("opus-mt-en-cs", "opus-mt-de-cs"):
        marian = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), **sizes, **numbers, **ids))
        marian.generation_config.max_length = 8
        for part in (marian, tokenizer):
            part.save_pretrained(tmp_path / "Helsinki-NLP" / name)
    vit = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=16)
    for image_part in (ViTModel(vit), ViTImageProcessorPil(size={"height": 16, "width": 16})):
        image_part.save_pretrained(tmp_path / "google/vit-base-patch16-224")
    return tmp_path


def test_the_readme_shows_what_its_blocks_print() -> None:
    """A score of a few rows of example data would look like a result."""
    for code, shown in examples("README.md"):
        assert ("print(" in code) == bool(shown)


def test_the_readme_is_short() -> None:
    assert len(TEXT["README.md"].splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.quantized] if "bitsandbytes" in TEXT[page] else [])
        for page in PAGES
        if examples(page) and page not in TUTORIALS
    ],
)
def test_python_examples_run(page: str, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo)
    names: dict[str, Any] = {}
    for code, shown in examples(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        if page in NEEDS_THE_DEMO:
            assert shown.count("\n") in (0, printed.getvalue().count("\n"))
        elif shown:
            assert printed.getvalue().endswith(shown), "the output that the page shows"
    if "loss" in names:
        assert names["loss"].isfinite()
    if "scores" in names:
        assert names["scores"]["eval_bleu"] >= 0


@pytest.mark.feature("Hub", "The README's examples with the code of the checkpoint")
def test_python_examples_run_without_the_package_on_the_checkpoints_own_code(demo: Path) -> None:
    pages = ["README.md", *ON_REMOTE_CODE]
    # Conversion into an equivalent model, ensembles and evaluation are the package's: no checkpoint needs them.
    ours = re.compile("convert_combiner|MultiSourceEnsemble|hf_multisource[.]evaluation")
    code = {page: [block for block, _ in examples(page) if not ours.search(block)] for page in pages}
    code["README.md"] = code["README.md"][:1]
    answer = run_fresh(REMOTE, demo / "home", place=demo / "runs/demo/all", folder=demo, examples=code)
    assert list(answer) == list(code)
    for module, loss in answer.values():
        assert module.startswith("transformers_modules.")
        assert loss == "None" or "grad_fn" in loss


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")])
def test_commands_parse(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (whole,) = (block for block in blocks("docs/training.md", "yaml") if block.startswith("data:"))
    Path("my_recipe.yaml").write_text(whole, encoding="utf-8")
    for words in (words for block in blocks(page, "bash") for words in split_commands(block)):
        if words[0] == "hf-multisource":
            parse(words[1:])
        elif words[:2] == ["accelerate", "launch"]:
            at = words.index("-m")
            module, _, command = words[at + 1].rpartition(".")
            assert module == "hf_multisource.cli" and command in ("train", "translate")
            assert all((ROOT / word).exists() for word in words[:at] if word.endswith(".yaml"))
            parse([command, *words[at + 2 :]])
        elif words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        elif words[0] == "source":
            assert words[1] == ".venv/bin/activate" and "$(VENV)" in (ROOT / "Makefile").read_text("utf-8")
        elif words[0] != "apt-get":
            assert words[:2] == ["pip", "install"]
            extra = re.search(r"\[(\w+)\]", words[2])
            assert extra is None or f"\n{extra[1]} = [" in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")])
def test_recipes_and_parts_of_recipes_are_valid(page: str, tmp_path: Path) -> None:
    for block in blocks(page, "yaml"):
        recipe = yaml.safe_load(block)
        names = {"en", "image", *(entry["name"] for entry in recipe.get("model", {}).get("sources", []))}
        recipe.setdefault("data", {"path": ".", "sources": sorted(names), "target": "cs"})
        recipe.setdefault("training", {}).setdefault("output_dir", "runs/mine")
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        assert set(load_recipe(tmp_path / "recipe.yaml").source_entries()) == set(recipe["data"]["sources"])


def keys_of(section: str) -> set[str]:
    """The keys that docs/training.md lists for a section of a recipe."""
    part = TEXT["docs/training.md"].split(f"### The section `{section}`")[1].split("\n#")[0]
    return {key for cells in tables(part) for key in re.findall(r"`(\w+)`", cells[0])}


@pytest.mark.parametrize("section", ["data", "tokenizer", "model", "training"])
def test_keys_of_recipes_that_are_listed_exist(section: str) -> None:
    keys = keys_of(section)
    assert keys
    assert keys <= known_keys()[section]


@pytest.mark.parametrize(("section", "kind"), [("data", DataRecipe), ("tokenizer", TokenizerRecipe)])
def test_every_key_of_data_and_tokenizer_is_listed(section: str, kind: Any) -> None:
    assert keys_of(section) == {entry.name for entry in fields(kind)}


def option_names(command: Any) -> set[str]:
    """The options of a command, one name each, `--help` left out."""
    named = [{name for name in param.opts if name.startswith("--")} for param in command.params]
    return {name.removeprefix("--") for names in named for name in names} - {"help"}


def test_every_command_and_every_option_is_described() -> None:
    for path, command in commands():
        about = "".join(TEXT[page] for page in PAGES if f"hf-multisource {' '.join(path)}" in TEXT[page])
        assert about, path
        missing = [name for name in sorted(option_names(command)) if not re.search(rf"--{name}\b", about)]
        assert missing == [], path


def test_options_in_tables_exist() -> None:
    for page in PAGES:
        named_here = [command for path, command in commands() if f"hf-multisource {' '.join(path)}" in TEXT[page]]
        known = {name for command in named_here for name in option_names(command)}
        cells = [cell for row in tables(FENCED.sub("", TEXT[page])) for cell in row]
        named = {name for cell in cells if cell.startswith("`--") for name in re.findall(r"`--(\w+)", cell)}
        assert named - known - set(SOURCES) == set()


def test_every_recipe_is_listed() -> None:
    part = TEXT["docs/training.md"].split("### Shipped recipes")[1].split("\n#")[0]
    assert set(re.findall(r"^\| `(\w+)` \| ", part, re.MULTILINE)) == set(shipped_recipes())


def test_every_combiner_is_listed() -> None:
    part = TEXT["docs/combiners.md"].split("## Equations")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \| ", part, re.MULTILINE)) == COMBINERS.keys()
    assert {name for name in COMBINERS if f"`{name}`" not in TEXT["README.md"]} == set()


def headings(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *AT_THE_TOP])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", TEXT[page])):
        if link.startswith("http"):
            continue
        place, _, anchor = link.partition("#")
        target = (ROOT / page).parent / place if place else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in headings(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("page", [*PAGES, *AT_THE_TOP])
def test_files_that_are_named_exist(page: str) -> None:
    folders = "|".join(("training", "tests", "docs", "hf_multisource", "benchmarks", "model_cards"))
    paths = set(re.findall(rf"(?<!/)\b(?:{folders})/[\w/.-]*", TEXT[page]))
    assert [path for path in sorted(paths) if not (ROOT / path.rstrip(".")).exists()] == []


def test_the_questions_of_contributing_are_answered_where_it_says() -> None:
    part = TEXT["CONTRIBUTING.md"].partition("## Where it happens")[2].partition("## ")[0]
    answers = re.findall(r"^\| [^|]+\? \| `([^`]+)` \| (.+) \|$", part, re.MULTILINE)
    assert len(answers) >= 10
    for file, where in answers:
        source = (ROOT / file).read_text("utf-8")
        [first, *_] = names = re.findall(r"`([\w.]+)`", where)
        defined = re.compile(rf"(def |class |self\.|^){first.rpartition('.')[2]}\b", re.MULTILINE)
        assert defined.search(source), f"{file} does not define {first}"
        assert len(names) == len(set(names))


def test_the_indexes_name_every_page() -> None:
    for index, folder in (("docs/README.md", "docs"), ("docs/results/README.md", "docs/results")):
        text, own = (ROOT / index).read_text("utf-8"), (ROOT / folder).glob("*.md")
        names = [f"]({path.name})" for path in own if path.name != "README.md"]
        assert names and all(name in text for name in names), index
    assert all(f"](tutorials/{Path(page).name})" in TEXT["docs/README.md"] for page in TUTORIALS)
