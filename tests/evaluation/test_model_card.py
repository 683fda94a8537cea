"""Cards of models that were trained without a recipe: made from the model alone, and never over another card."""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers.utils.hub
from huggingface_hub import ModelCard
from huggingface_hub.errors import EntryNotFoundError
from transformers import BertConfig, Seq2SeqTrainingArguments, ViTConfig, pipeline

from builders import LSTM, SMALL, three_source_model, three_source_processor, tiny_config
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceTrainer, model_card
from hf_multisource.model_card import CARD

PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
OWN = "---\nlicense: mit\n---\n\n# Mine\n"


@pytest.mark.feature("Hub", "Model card from the model alone: `create_card`")
@pytest.mark.parametrize("combiner", ["serial", "hierarchical", LSTM])
def test_the_card_states_what_the_model_is_and_claims_nothing_else(combiner: str) -> None:
    model = three_source_model(combiner)
    card = model.create_card("me/model")
    data = card.data.to_dict()
    assert data["library_name"] == "transformers" and data["pipeline_tag"] == "translation"
    assert data["tags"] == ["multi-source", *model.config.strategy.split(", ")] and data["license"] == "unknown"
    assert data.keys() == {"library_name", "pipeline_tag", "tags", "license"}
    assert "# model\n" in card.text and f"{model.num_parameters():,} parameters" in card.text
    for name in model.config.source_names:
        assert re.search(rf"^\| \d \| `{name}` \| text \| text \| ", card.text, re.MULTILINE)
    for key in ("d_model", "vocab_size"):
        assert f"| `{key}` | {getattr(model.config, key)} |" in card.text
    assert f"`{model.config.strategy}`" in card.text
    assert "BLEU" not in card.text and "None |" not in card.text


def test_what_the_caller_knows_is_in_the_metadata() -> None:
    card = three_source_model().create_card("me/model", language=["en", "de"], license="mit", tags=["news", "serial"])
    assert card.data.language == ["en", "de"] and card.data.license == "mit"
    assert card.data.tags == ["multi-source", "serial", "news"]
    assert three_source_model().create_card(language="cs").data.language == ["cs"]


def test_sources_of_other_kinds_are_described() -> None:
    vit = ViTConfig(image_size=8, patch_size=4, **SMALL)
    sources = [
        {"name": "en", "layers": 2},
        {"name": "de", "share_encoder_with": "en"},
        {"name": "image", "kind": "pretrained", "encoder": vit, "freeze": True},
        {"name": "bert", "kind": "pretrained", "encoder": BertConfig(vocab_size=30, **SMALL)},
        {"name": "regions", "kind": "features", "feature_size": 5},
    ]
    card: Any = MultiSourceForConditionalGeneration(tiny_config(sources=sources)).create_card()
    lines = [line for line in card.text.splitlines() if re.match(r"\| \d", line)]
    assert lines == [
        "| 1 | `en` | text | text | layers 2 |",
        "| 2 | `de` | text | text | that of `en` |",
        "| 3 | `image` | pretrained | picture | `vit` of Transformers, frozen |",
        "| 4 | `bert` | pretrained | text | `bert` of Transformers |",
        "| 5 | `regions` | features | features | feature_size 5 |",
    ]
    assert card.data.pipeline_tag == "image-text-to-text"
    assert 'image="photo.jpg"' in card.text and 'regions=numpy.load("features.npy")[0]' in card.text
    assert "```python\nimport numpy\n" in card.text
    for block in PYTHON.findall(card.text):
        compile(block, "card", "exec")


@pytest.mark.parametrize("sources", [1, 3])
def test_the_examples_of_the_card_run(sources: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = copy.deepcopy(three_source_processor())
    config = type(three_source_model().config).from_processor(
        processor, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2
    )
    if sources == 1:
        processor.source_names = ["en"]
        processor.source_tokenizers = {}
        config.sources = ["en"]
    model = MultiSourceForConditionalGeneration(config)
    model.save_pretrained(tmp_path / "me/model")
    processor.save_pretrained(tmp_path / "me/model")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = PYTHON.findall(model.create_card("me/model").text)
    assert len(blocks) == (1 if sources == 1 else 2)
    for block in blocks:
        exec(block, names)
    assert isinstance(names["model"], MultiSourceForConditionalGeneration)
    if sources == 3:
        assert torch.equal(names["batch"]["fr_attention_mask"].any(1), torch.tensor([True, False]))


def test_a_model_without_an_output_layer_has_no_card() -> None:
    with pytest.raises(ValueError, match="MultiSourceModel has no output layer: make the card of the whole model"):
        three_source_model().model.create_card()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A Hub with one repository: replaces the functions that would use the network."""
    state: dict[str, Any] = {"card": None, "uploaded": None}

    def load(repo_id: Any, **_: Any) -> Any:
        if Path(str(repo_id)).is_file():
            return ModelCard(Path(str(repo_id)).read_text("utf-8"))
        if state["card"] is None:
            raise EntryNotFoundError("no card")
        return ModelCard(state["card"])

    def create_commit(self: Any, *, operations: Any, **_: Any) -> str:
        state["uploaded"] = {}
        for operation in operations:
            with operation.as_file() as file:
                state["uploaded"][operation.path_in_repo] = file.read()
        return "address of the commit"

    class Repository:
        repo_id = "me/model"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_, **__: Repository())
    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", create_commit)
    monkeypatch.setattr(transformers.utils.hub.ModelCard, "load", load)
    monkeypatch.setattr(model_card, "file_exists", lambda *_, **__: state["card"] is not None)
    return state


@pytest.mark.feature("Hub", "Model card written by `push_to_hub` where there is none")
@pytest.mark.parametrize("combiner", ["serial", LSTM])
def test_a_push_writes_a_card_where_there_is_none(combiner: str, hub: dict[str, Any]) -> None:
    model = three_source_model(combiner)
    assert model.push_to_hub("me/model", tags=["news"]) == "address of the commit"
    assert hub["uploaded"][CARD].decode() == str(model.create_card("me/model", tags=["news"]))
    assert {"model.safetensors", "config.json", "model_card.py"} <= hub["uploaded"].keys()


def test_a_push_leaves_a_published_card_alone(hub: dict[str, Any]) -> None:
    hub["card"] = OWN
    three_source_model().push_to_hub("me/model")
    assert hub["uploaded"][CARD].decode() == str(ModelCard(OWN))


@pytest.mark.parametrize("published", [None, "---\nlicense: other\n---\n\n# Published\n"])
def test_a_card_in_the_folder_stays_and_is_published_where_there_is_none(
    published: str | None, hub: dict[str, Any], tmp_path: Path
) -> None:
    hub["card"] = published
    (tmp_path / CARD).write_text(OWN)
    three_source_model().save_pretrained(tmp_path, push_to_hub=True, repo_id="me/model")
    assert (tmp_path / CARD).read_text() == OWN
    assert hub["uploaded"].get(CARD) == (OWN.encode() if published is None else None)
    assert "model.safetensors" in hub["uploaded"]


def test_a_folder_without_a_card_gets_one_when_it_is_published(hub: dict[str, Any], tmp_path: Path) -> None:
    model = three_source_model()
    model.save_pretrained(tmp_path / "not published")
    assert not (tmp_path / "not published" / CARD).exists()
    model.save_pretrained(tmp_path / "here", push_to_hub=True, repo_id="me/model")
    assert (tmp_path / "here" / CARD).read_text() == str(model.create_card("me/model"))
    assert hub["uploaded"][CARD].decode() == str(model.create_card("me/model"))


@pytest.mark.parametrize("own", [None, OWN])
@pytest.mark.parametrize("broken", ["file_exists", "create_commit"])
def test_a_push_that_breaks_off_leaves_the_folder_as_it_was_and_can_be_repeated(
    own: str | None, broken: str, hub: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no network")

    if own is not None:
        (tmp_path / CARD).write_text(own)
    model = three_source_model()
    with monkeypatch.context() as patch, pytest.raises(ConnectionError, match="no network"):
        patch.setattr(model_card if broken == "file_exists" else huggingface_hub.HfApi, broken, fail)
        model.save_pretrained(tmp_path, push_to_hub=True, repo_id="me/model")
    assert ((tmp_path / CARD).read_text() if (tmp_path / CARD).exists() else None) == own
    model.save_pretrained(tmp_path, push_to_hub=True, repo_id="me/model")
    assert hub["uploaded"][CARD].decode() == (str(model.create_card("me/model")) if own is None else own)


def test_the_empty_card_of_transformers_in_the_folder_is_replaced(hub: dict[str, Any], tmp_path: Path) -> None:
    """A killed push leaves such a card in the folder. A card that was made from it by hand stays."""
    stock = transformers.utils.hub.create_and_tag_model_card("me/model", ["news"])
    stock.save(tmp_path / CARD)
    model = three_source_model()
    model.save_pretrained(tmp_path, push_to_hub=True, repo_id="me/model")
    assert hub["uploaded"][CARD].decode() == str(model.create_card("me/model"))
    filled = str(stock).replace("## Uses", "## Uses\n\nFor weather reports.", 1)
    (tmp_path / CARD).write_text(filled)
    model.save_pretrained(tmp_path, push_to_hub=True, repo_id="me/model")
    assert hub["uploaded"][CARD].decode() == filled


def test_a_processor_leaves_the_card_to_the_model_and_keeps_a_published_one(hub: dict[str, Any]) -> None:
    """A bare card of a processor that is pushed first would keep out that of the model."""
    processor = three_source_processor()
    processor.push_to_hub("me/model")
    assert CARD not in hub["uploaded"] and "processor_config.json" in hub["uploaded"]
    hub["card"] = OWN
    processor.push_to_hub("me/model")
    assert hub["uploaded"][CARD].decode() == str(ModelCard(OWN))


def test_a_pipeline_publishes_the_card_of_its_model(hub: dict[str, Any]) -> None:
    task: Any = "multisource-to-text"
    processor = three_source_processor()
    model = three_source_model(vocab_size=len(processor.tokenizer))
    pipe = pipeline(task, model=model, processor=processor, device="cpu")
    pipe.push_to_hub("me/model")
    assert hub["uploaded"][CARD].decode() == str(model.create_card("me/model"))
    assert {"model.safetensors", "processor_config.json", "fr_tokenizer/tokenizer.json"} <= hub["uploaded"].keys()
    hub["card"] = OWN
    pipe.push_to_hub("me/model")
    assert hub["uploaded"][CARD].decode() == str(ModelCard(OWN))


def trained(folder: Path) -> MultiSourceTrainer:
    """A trainer after one update."""
    processor = three_source_processor()
    arguments = Seq2SeqTrainingArguments(str(folder), max_steps=1, report_to=[], use_cpu=True, save_strategy="no")
    model = three_source_model(vocab_size=len(processor.tokenizer))
    rows: Any = [dict(processor(en="a dog", text_target="dog"))] * 2
    trainer = MultiSourceTrainer(model, arguments, train_dataset=rows, processing_class=processor)
    trainer.train()
    return trainer


@pytest.mark.feature("Hub", "Model card of `MultiSourceTrainer`, with the sources")
def test_the_card_of_a_trainer_states_sources_and_training(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    for _ in range(2):  # it is written again after every push
        trainer.create_model_card(license="mit", tags=["news"])
        card: Any = ModelCard((tmp_path / CARD).read_text("utf-8"))
        assert {"multi-source", "serial", "news", "generated_from_trainer"} <= set(card.data.tags)
        assert (card.data.license, card.data.library_name, card.data.pipeline_tag) == (
            *("mit", "transformers", "translation"),
        )
        assert card.text.count("| 1 | `en` | text | text |") == 1 and card.text.count("## Use it") == 1
        assert "learning_rate: 5e-05" in card.text
        assert "may be used. Whoever publishes" not in card.text
    trainer.create_model_card(model_name="mine")
    assert "AutoProcessor.from_pretrained(address" in (tmp_path / CARD).read_text("utf-8")


def test_a_trainer_leaves_a_card_alone_that_it_has_not_written(tmp_path: Path) -> None:
    (tmp_path / CARD).write_text(OWN)
    trained(tmp_path).create_model_card()
    assert (tmp_path / CARD).read_text() == OWN


def test_a_name_that_is_a_keyword_of_python_is_written_as_one_can_run_it() -> None:
    card = str(MultiSourceForConditionalGeneration(tiny_config(sources=["en", "is"])).create_card("org/name"))
    blocks = PYTHON.findall(card)
    assert len(blocks) == 2
    for block in blocks:
        ast.parse(block)
        assert '**{"is": ' in block
