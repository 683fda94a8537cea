"""The tutorials run from their first block to the last one, at toy size, and print what their pages show."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_multisource.recipes.experiments import merge, read_experiment
from hf_multisource.recipes.shipped import shipped_recipes
from tutorials import BLOCK, lacking, run_commands, run_python

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/tutorials/reconstruct_a_dead_language.md"

# What the test changes in the commands of the page: the sizes, and nothing else.
SMALL: dict[str, Any] = {
    **{"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_layers": 1, "decoder_layers": 1},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_train_epochs": 2, "generation_max_length": 8},
    **{"eval_steps": 0.5, "save_steps": 0.5, "bf16": False, "use_cpu": True},
}
SMALL_SEARCH = ["--num_beams", "3", "--max_new_tokens", "8"]

# A made-up ancestor, and the sound changes of its daughters, in the order in which they happened.
CONSONANTS, VOWELS = ["k", "k t", "l", "m", "n", "t"], ["a", "o", "ɔ", "ɛ", "ɪ"]
CHANGES = {
    "Italian": [(r"k t", "tː"), ("ɔ", "o"), ("ɛ|ɪ", "e"), (" m$", "")],
    "Spanish": [("k t", "tʃ"), ("ɔ", "o"), ("ɛ|ɪ", "e"), (" m$", ""), ("a", "e")],
    "French": [(" [ɛɪa] m$", ""), ("k t", "ɥ i"), ("ɔ", "ɥ"), ("k", "i/j")],
}


def daughter(word: str, language: str) -> str:
    for before, after in CHANGES[language]:
        word = re.sub(before, after, word)
    return word


def write_family(folder: Path, sets: int) -> None:
    """Write cognate sets in CLDF, in which a third of the daughters' words is absent.

    The dev split has a set of each daughter alone, so that every condition `absent-X` loses a set.
    """
    rng = random.Random(3)
    folder.mkdir(parents=True)
    forms, cognates = ["ID,Language_ID,Segments"], ["ID,Form_ID,Cognateset_ID"]
    for i in range(sets):
        syllables = [(rng.choice(CONSONANTS), rng.choice(VOWELS)) for _ in range(rng.choice((1, 2)))]
        latin = " ".join([*(sound for syllable in syllables for sound in syllable), "m"])
        absent = rng.sample(list(CHANGES), i % 3)
        words = {"Latin": latin, **{name: daughter(latin, name) for name in CHANGES if name not in absent}}
        forms += [f"{name}-{i},{name},{word}" for name, word in words.items()]
        cognates += [f"{name}-{i}-1,{name}-{i},{i}" for name in words]
    for name, lines in {"forms": forms, "cognates": cognates}.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def shrink(words: list[str]) -> list[str]:
    """A command of the page, in the test's size."""
    if words[0] == "train":
        for key, value in SMALL.items():
            at = words.index(f"--{key}") if f"--{key}" in words else len(words)
            words = [*words[:at], f"--{key}", str(value), *words[at + 2 :]]
        return words
    if words[0] == "reproduce":
        return [word if word != "protoform" else "small/protoform.yaml" for word in words]
    return [*words, *SMALL_SEARCH]


def write_small_experiment() -> None:
    """Write the shipped experiment in the test's size, with two of its rows and one seed."""
    content = read_experiment("protoform")[1]
    rows = {name: content["rows"][name] for name in ("joined", "serial")}
    search = {"num_beams": 2, "max_new_tokens": 8}
    small: dict[str, Any] = {
        "train": SMALL,
        "seeds": [1],
        "recipe": str(shipped_recipes()["protoform"]),
        "score": search,
        "analyzed": None,  # the test leaves that row out
    }
    content = {**merge(content, {**small, "quick": {"train": SMALL, "rows": ["serial"]}}), "rows": rows}
    Path("small").mkdir()
    Path("small/protoform.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def run_page(page: Path) -> Iterator[tuple[str, str]]:
    """Run the blocks in order; yield each output that the page shows, and what the last block before it printed."""
    printed = ""
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "text":
            yield block, printed
        elif language == "markdown":  # part of the page that the last command named
            yield block, Path(printed.split()[-1]).read_text(encoding="utf-8")
        elif language == "csv":
            Path("new.csv").write_text(block, encoding="utf-8")
        elif language == "bash":
            printed = run_commands(block, shrink)
        else:
            printed = run_python(block)


def test_a_dead_language_is_reconstructed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_family(tmp_path / "meloniromance/cldf", sets=80)
    write_small_experiment()
    outputs = 0
    for shown, printed in run_page(PAGE):
        assert lacking(shown, printed) == [], printed
        outputs += 1
    assert outputs == len(re.findall("^```(text|markdown)$", PAGE.read_text("utf-8"), re.MULTILINE))
    for file in ("runs/latin/scores/dev.all.txt", "runs/latin/scores/dev.reference.txt"):
        assert Path(file).read_text("utf-8").count("\n") == 8
    assert Path("new.latin").read_text("utf-8").count("\n") == 2
    for name in ("protoform-my_family", "protoform-quick-my_family"):
        assert "| serial " in Path(f"tables/{name}.md").read_text("utf-8")
