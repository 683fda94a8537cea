"""The tutorial about a release: its blocks run on made-up packages, from the training on in a slow test.

The tests differ from the page in the sizes of the vocabulary, of the model and of the search, and in nothing else.
`apt-get download` writes packages of invented languages.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archive_files import debian, tarred, zipped
from command_lines import split_commands
from hf_multisource.data.catalogues import split_of
from runs import read_json
from tutorials import BLOCK, lacking, run_commands, run_python

PAGE = Path(__file__).resolve().parents[2] / "docs/tutorials/your_languages_next_release.md"
BEFORE, AFTER = PAGE.read_text(encoding="utf-8").split("\n## Train a model\n")
TRAINING = {
    **{"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_layers": 1, "decoder_layers": 1},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_steps": 300, "eval_steps": 150},
    **{"save_steps": 150, "warmup_steps": 50, "learning_rate": 0.005, "dropout": 0.0, "label_smoothing": 0.0},
    **{"bf16": False, "use_cpu": True, "generation_max_length": 12},
}
SMALL: dict[str, dict[str, Any]] = {
    "train": TRAINING,
    "tokenizer": {"vocab_size": 420},
    "score": {"max_new_tokens": 12},
    "calibrate": {"max_new_tokens": 12},
    "localize": {"max_new_tokens": 12},
}
LANGUAGES = {"en": "en-GB", "de": "de", "cs": "cs", "hsb": "hsb", "dsb": "dsb"}  # and their codes in paths
STEMS = ["bal", "dom", "fen", "gul", "hos", "kor", "lis", "mun"]
ENDINGS = {"en": "", "de": "en", "cs": "ka", "hsb": "ki", "dsb": "ko"}
FOLDER = "./usr/lib/firefox-esr/distribution/extensions"
MESSAGES = 16  # of a file


def message(language: str, number: int, rng: random.Random) -> str:
    """A message: every third one has words that nobody can guess in the target; all draw the same random numbers."""
    first, second, *guesses = (rng.randrange(len(STEMS)) for _ in range(5))
    text = f"{STEMS[first]}{ENDINGS[language]} {{ $n{number} }} {STEMS[second]}{ENDINGS[language]}"
    return text if number % 3 or language != "dsb" else " ".join(STEMS[one] + ENDINGS["dsb"] for one in guesses)


def catalogue(language: str, name: str) -> str:
    """A catalogue with what every rule of the page counts."""
    rng = random.Random(name)
    start = rng.randrange(10**6)
    lines = [f"m{i} = {message(language, start + i, rng)}" for i in range(MESSAGES)]
    lines += ["same = { $same } 1.0", "twice = Lisk", "gone = Mozilla" * (language != "dsb")]
    lines += [f"only-{one} = {'bal' if language in ('en', one) else f'bal{language}'}" for one in LANGUAGES]
    if language == "cs":
        lines.append("odd = Mam { $n ->\n    [one] jedno\n   *[other] moc\n } oken")
    return "# License: made up\n\n" + "\n".join(lines) + "\n"


def packed_names() -> Iterator[tuple[str, str]]:
    """The files of a package, as many of each split, by their paths and the same with `{lang}`."""
    left = {"train": 12, "dev": 6, "test": 4}
    for i in range(1000):
        path = f"localization/{{lang}}/browser/f{i}.ftl"
        split = split_of(f"{FOLDER[2:]}/langpack-{{lang}}@firefox-esr.mozilla.org.xpi/{path}", 0.1, 0.1)
        left[split] -= 1
        if left[split] >= 0:
            yield f"f{i}.ftl", path


def download(words: list[str]) -> None:
    """Write the packages that `apt-get download` names."""
    for package in words[2:]:
        language = {"en-gb": "en"}.get(package.removeprefix("firefox-esr-l10n-"), package[-3:].lstrip("-"))
        code = LANGUAGES[language]
        files = {path.format(lang=code): catalogue(language, name).encode() for name, path in packed_names()}
        xpi = {f"{FOLDER}/langpack-{code}@firefox-esr.mozilla.org.xpi": zipped(files)}
        Path(f"{package}_140.4.0esr-1_all.deb").write_bytes(debian(tarred(xpi), "data.tar"))


def write_next_release() -> None:
    """Write the catalogues of the next release: the target lacks a file, and messages of another one."""
    old = next(name for name, path in packed_names() if "f" in path)
    for language in LANGUAGES:
        folder = Path("next") / language / "browser"
        folder.mkdir(parents=True)
        rng = random.Random("next")
        known = catalogue(language, old).splitlines()[2:6]  # the memory has these
        new = [f"new-{i} = {message(language, 3 * i + 1, rng)}" for i in range(8)]
        lines = ["# License: made up", "", *known, *new]
        if language == "dsb":
            lines = lines[:4] + lines[6:8]
        (folder / "tabs.ftl").write_text("\n".join([*lines, ""]), encoding="utf-8")
        if language != "dsb":
            lines = [f"close-{i} = {message(language, 3 * i + 2, rng)}" for i in range(4)]
            (folder / "windows.ftl").write_text("\n".join(["# License: made up", "", *lines, ""]), encoding="utf-8")


def change(words: list[str]) -> list[str]:
    """A command of the page, in the test's size."""
    for key, value in SMALL.get(words[0], {}).items():
        at = words.index(f"--{key}") if f"--{key}" in words else len(words)
        words = [*words[:at], f"--{key}", str(value), *words[at + 2 :]]
    return words


def run_page(text: str) -> Iterator[tuple[str, str]]:
    """Run the blocks in order; yield each output that the page shows, and what the last block before it printed."""
    printed = ""
    for language, block in BLOCK.findall(text):
        if language == "text":
            yield block, printed
        elif language == "fluent":
            continue  # a message of a file, before and after its review
        elif language == "bash":
            for words in split_commands(block):
                if words[0] == "apt-get":
                    download(words)
            printed = run_commands(block, change)
        else:
            printed = run_python(block)


def check(outputs: list[tuple[str, str]]) -> None:
    """Every line that the page shows was printed."""
    printed = "\n".join(text for _, text in outputs)
    assert [line for shown, text in outputs for line in lacking(shown, text)] == [], printed


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[tuple[str, str]]]]:
    """A folder in which all blocks before the training have run, and the outputs that the page shows of them."""
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder, list(run_page(BEFORE))


def test_packages_become_rows_and_a_tokenizer(prepared: tuple[Path, list[tuple[str, str]]]) -> None:
    folder, outputs = prepared
    assert len(outputs) == 2
    check(outputs)
    counts = read_json(folder / "data/firefox/counts.json")
    assert counts["codes"]["en"] == "en-GB" and all(counts["rows"][name] for name in ("train", "dev", "test"))
    rows = [(folder / f"data/firefox/train.{language}").read_text("utf-8").splitlines() for language in LANGUAGES]
    assert len({len(lines) for lines in rows}) == 1
    added = read_json(folder / "tokenizers/firefox/tokenizer.json")["added_tokens"]
    assert "<ph1>" in [token["content"] for token in added]


@pytest.mark.slow
def test_the_next_release_is_filled_and_reviewed(prepared: tuple[Path, list[tuple[str, str]]]) -> None:
    write_next_release()
    filling, rest = AFTER.split("\n## Review\n")
    listing, handing_in = rest.split("\n## Submit the files, and learn from the review\n")
    outputs = list(run_page(filling))
    assert len(outputs) == 5
    check(outputs)
    (example,) = (block for language, block in BLOCK.findall(filling) if language == "fluent")
    files = {path.name: path for path in Path("filled/dsb").rglob("*.ftl")}
    written = {name: path.read_text("utf-8") for name, path in files.items()}
    comments = [line for line in example.splitlines() if line.startswith("#")]
    assert lacking("\n".join(comments), written["tabs.ftl"]) == []
    assert Path("review.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    check(list(run_page(listing)))
    for name, path in files.items():  # the review
        lines = [line for line in written[name].splitlines() if not line.startswith(("# Needs review", "# From:"))]
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    check(list(run_page(handing_in)))
