"""What the README shows runs as it is written there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import MarianConfig, MarianMTModel, ViTConfig, ViTImageProcessorPil, ViTModel

from fresh import run_fresh
from hf_multisource import (
    COMBINERS,
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourcePipeline,
    MultiSourceProcessor,
)
from hf_multisource.recipes.tokenization import train_tokenizer

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
REMOTE = """
import os, sys, types
from transformers.dynamic_module_utils import get_class_from_dynamic_module

class Remote(types.ModuleType):
    def __getattr__(self, name):
        for module in ("configuration_multisource", "modeling_multisource", "processing_multisource", "conversion"):
            if name in open(f"{place}/{module}.py").read().rpartition("__all__")[2]:
                return get_class_from_dynamic_module(f"{module}.{name}", place)
        raise AttributeError(name)

sys.modules["hf_multisource"] = Remote("hf_multisource")
os.chdir(folder)
for example in examples:
    exec(example)
answer = [type(model).__module__, str(loss), fresh.config.source_names]
"""


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A folder in which tiny untrained models stand in the place of the demo's and the Hub's, which examples load."""
    tokenizer = train_tokenizer(["Sunday, May 21, 18 days", "21. Mai, 2001", "dimanche, 17 euros"], "bpe", 270)
    processor = MultiSourceProcessor(tokenizer, ["en", "de", "fr"])
    config = MultiSourceConfig(
        sources=["en", "de", "fr"], vocab_size=len(tokenizer), d_model=8, encoder_layers=1, decoder_layers=1
    )
    processor.save_pretrained(tmp_path / "runs/demo/all")
    MultiSourceForConditionalGeneration(config).save_pretrained(tmp_path / "runs/demo/all")
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


def test_python_examples_run(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo)
    names: dict[str, Any] = {}
    assert len(EXAMPLES) == 7
    for example in EXAMPLES:
        exec(compile(example, "README.md", "exec"), names)
    assert names["loss"].isfinite()
    assert type(names["pipe"]) is MultiSourcePipeline
    assert names["fresh"].config.source_names == ["en", "de", "fr"]
    assert [source.kind for source in names["translator"].config.sources] == ["text", "text", "pretrained"]
    assert names["plain"].config.combiner == "parallel"


@pytest.mark.feature("Hub", "The README's examples with the code of the checkpoint")
def test_python_examples_run_without_the_package_on_the_checkpoints_own_code(demo: Path) -> None:
    place = demo / "runs/demo/all"
    answer = run_fresh(REMOTE, demo / "home", place=place, folder=demo, examples=EXAMPLES)
    module, loss, sources = answer
    assert module.startswith("transformers_modules.")
    assert "grad_fn" in loss
    assert sources == ["en", "de", "fr"]


def test_recipes_that_are_named_exist_and_all_are_named() -> None:
    named = set(re.findall(r"^\| `(\w+)` \| ", README, re.MULTILINE))
    assert named - COMBINERS.keys() == {path.stem for path in (ROOT / "hf_multisource/recipes/configs").glob("*.yaml")}


def test_every_combiner_is_named() -> None:
    assert set(re.findall(r"^\| `(\w+)` \| ", README, re.MULTILINE)) >= COMBINERS.keys()


def test_scripts_and_documents_that_are_named_exist() -> None:
    paths = set(re.findall(r"\b(?:training|tests|docs|hf_multisource)/[\w/.]+\.(?:py|yaml|md)", README))
    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
