"""The tutorial about a scarce language: its blocks run at toy size; the graph as a whole in a slow test.

The tests differ from the page in the sizes of the recipe, of the vocabularies and of the search, and in nothing else.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_multisource.evaluation.graph_stages import stages_of
from hf_multisource.recipes.graph import load_graph
from hf_multisource.recipes.reading import parse_yaml
from runs import read_json, write_lines
from tutorials import BLOCK, lacking, run_commands, run_python

PAGE = Path(__file__).resolve().parents[2] / "docs/tutorials/a_scarce_language_and_a_rich_neighbor.md"
BEFORE, AFTER = (part for part in PAGE.read_text(encoding="utf-8").split("\n## Run the graph\n"))
GRAPH = "scarce.yaml"
# A word in each language; Kazakh and Russian differ in their endings.
STEMS = {"б": "b", "д": "d", "к": "k", "л": "l", "м": "m", "н": "n", "п": "p", "р": "r", "с": "s", "т": "t"}
ENDINGS = {"kk": "ығ", "ru": "ой", "en": "en"}
SMALL = {
    "model": {
        **{"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_layers": 1, "decoder_layers": 1},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2},
    },
    "training": {
        **{"max_steps": 4, "eval_steps": 2, "save_steps": 2, "warmup_steps": 2, "per_device_train_batch_size": 16},
        **{"use_cpu": True, "disable_tqdm": True, "generation_max_length": 12},
    },
}
SEARCH = {"num_beams": 2, "max_new_tokens": 12}
ROWS = {"kk-en": 60, "kk-ru": 60, "ru-en": 60, "en": 30}


def sentence(language: str, words: list[int]) -> str:
    """A sentence: of each word its form in the language; Kazakh ends with its first word."""
    stems = list(STEMS) if language != "en" else list(STEMS.values())
    forms = [stems[word] + stems[-1 - word] + ENDINGS[language] for word in words]
    return " ".join([*forms[1:], forms[0]] if language == "kk" else forms)


def write_raw_text() -> None:
    """Write the raw files; in pairs of Kazakh and English, every rule finds what the page shows."""
    Path("raw").mkdir()
    for seed, (name, count) in enumerate(ROWS.items()):
        rng = random.Random(seed)
        rows = [[rng.randrange(len(STEMS)) for _ in range(rng.randint(7, 9))] for _ in range(count)]
        rows += [[*row, (row[-1] + 1) % len(STEMS)] for row in rows[: count // 2]]  # near-copies, for `held_out`
        for language in name.split("-"):
            lines = [sentence(language, row) for row in rows]
            if name == "kk-en":
                lines += flawed(language)
            write_lines(Path(f"raw/{name}.{language}"), lines)


def flawed(language: str) -> list[str]:
    """Sentences that the rules change or drop, several of each kind, so that one is in the training split."""
    own = [sentence(language, [i, i + 1]) for i in range(5)]
    quoted = [f"«{text}»" for text in own]
    long = [" ".join([text] * 31) for text in own]
    ratio = [" ".join([text] * (4 if (language == "en") == (i != 2) else 1)) for i, text in enumerate(own)]
    latin = ["latin " * 3 + sentence("en", [i]) for i in range(5)]
    twice = [own[0] + f" {text}" for text in own for _ in range(3)]
    return [*quoted, *long, *ratio, *latin, *twice]


def change(words: list[str]) -> list[str]:
    """A command of the page, in the test's size."""
    if words[0] == "tokenizer":
        at = words.index("--vocab_size") + 1
        return [*words[:at], "300", *words[at + 1 :]]
    if words[0] == "translate":
        return [*words, *(word for key, value in SEARCH.items() for word in (f"--{key}", str(value)))]
    return words


def save(language: str, block: str) -> bool:
    """Write a block that the page says to save, in the test's size; return whether it is one."""
    if language == "yaml":
        recipe: dict[str, Any] = parse_yaml(block)
        for section, settings in SMALL.items():
            recipe[section] |= settings
        Path("small.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    elif block.startswith("work:"):
        graph: dict[str, Any] = parse_yaml(block)
        for step in graph["steps"].values():
            if "translate" in step or "score" in step:
                options = step.get("options", {})
                step["options"] = {**SEARCH, **options, **({"num_beams": 1} if "do_sample" in options else {})}
        Path(GRAPH).write_text(yaml.safe_dump(graph, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return language == "yaml" or block.startswith("work:")


def run_page(text: str) -> Iterator[tuple[str, str]]:
    """Run the blocks in order; yield each output that the page shows, and what the last block before it printed."""
    printed = ""
    for language, block in BLOCK.findall(text):
        if save(language, block):
            continue
        if language == "text":
            yield block, printed
        else:
            printed = run_commands(block, change) if language == "bash" else run_python(block)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[tuple[str, str]]]]:
    """A folder in which all blocks up to the graph have run, and the outputs that the page shows of them."""
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_raw_text()
        yield folder, list(run_page(BEFORE))


def test_the_text_is_prepared_and_the_graph_is_checked(prepared: tuple[Path, list[tuple[str, str]]]) -> None:
    folder, outputs = prepared
    assert len(outputs) == 4
    for shown, printed in outputs:
        assert lacking(shown, printed) == [], printed
    counts = read_json(folder / "clean/kk-en/counts.json")
    assert all(counts["rules"][rule]["rows"] for rule in ("punctuation", "length", "ratio", "script", "duplicates"))
    assert counts["rules"]["held_out"]["rows"] > 0
    assert (folder / "scarce.mmd").read_text("utf-8").startswith("flowchart TD\n")
    stages = stages_of(load_graph(GRAPH))
    assert {"cross_kk_en-guarded", "cross_ru_en-guarded", "cross_back-guarded"} <= stages.keys()
    assert not (folder / "runs").exists(), "nothing was trained"


def test_the_second_tokenizer_writes_cyrillic_letters_and_the_first_does_not(
    prepared: tuple[Path, list[tuple[str, str]]],
) -> None:
    from transformers import AutoTokenizer

    text = sentence("ru", [1, 2, 3])
    for name, cyrillic in (("cyrillic", True), ("latin", False)):
        tokenizer = AutoTokenizer.from_pretrained(prepared[0] / "tokenizers" / name)
        written = str(tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True))
        assert (written == text) == cyrillic and bool(re.search("[а-я]", written)) == cyrillic


@pytest.mark.slow
def test_the_graph_runs_and_new_text_is_translated(prepared: tuple[Path, list[tuple[str, str]]]) -> None:
    write_lines(Path("new.kk"), [sentence("kk", [1, 2, 3]), sentence("kk", [4, 5])])
    outputs = list(run_page(AFTER))
    assert len(outputs) == 2
    for shown, printed in outputs:
        assert lacking(shown, printed) == [], printed
    assert Path("new.ru").read_text("utf-8").count("\n") == Path("new.en").read_text("utf-8").count("\n") == 2
    synthetic = Path("runs/scarce/cross_kk_en/train.ru").read_text("utf-8")
    assert not re.search("[a-z]", synthetic), "models that write Russian write Cyrillic letters"
    assert read_json(Path("runs/scarce/cross_kk_en/train.ru.json"))["synthetic"] is True
