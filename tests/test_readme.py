"""What the README shows runs as it is written there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hf_multisource import MultiSourceConfig, MultiSourceForConditionalGeneration, MultiSourceProcessor
from train_tokenizer import train_tokenizer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples load the demo's model; here a tiny untrained one stands in its place."""
    tokenizer = train_tokenizer(["Sunday, May 21, 18 days", "21. Mai, 2001", "dimanche, 17 euros"], "bpe", 270)
    processor = MultiSourceProcessor(tokenizer, ["en", "de", "fr"])
    config = MultiSourceConfig(
        sources=["en", "de", "fr"], vocab_size=len(tokenizer), d_model=8, encoder_layers=1, decoder_layers=1
    )
    processor.save_pretrained(tmp_path / "runs/demo/all")
    MultiSourceForConditionalGeneration(config).save_pretrained(tmp_path / "runs/demo/all")
    monkeypatch.chdir(tmp_path)

    names: dict[str, Any] = {}
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
    assert names["loss"].isfinite()
    assert names["fresh"].config.source_names == ["en", "de", "fr"]


def test_recipes_that_are_named_exist_and_all_are_named() -> None:
    named = set(re.findall(r"^\| `(\w+)` \| ", README, re.MULTILINE)) - {"serial", "parallel", "flat", "hierarchical"}
    assert named == {path.stem for path in (ROOT / "training/configs").glob("*.yaml")}


def test_scripts_and_documents_that_are_named_exist() -> None:
    paths = set(re.findall(r"\b(?:training|tests|docs|hf_multisource)/[\w/.]+\.(?:py|yaml|md)", README))
    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
