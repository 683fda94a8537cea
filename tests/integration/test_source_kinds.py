"""A kind of source of one's own, a graph, in this file alone: from rows of data to a generated text.

And what holds for every kind: absence has one form in rows, one in tensors, and one in the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import Seq2SeqTrainingArguments

from builders import randomize, tiny_config
from hf_multisource import (
    DataCollatorForMultiSource,
    EncodedSource,
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourcePipeline,
    MultiSourceProcessor,
    MultiSourceTrainer,
    SourceEncoder,
    SourceKind,
    register_source_kind,
)
from hf_multisource.data.encoding import encode_rows
from hf_multisource.data.rows import read_split
from hf_multisource.encoders import ENCODERS
from hf_multisource.recipes.processor import make_processor
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.training import train
from hf_multisource.sampling import length_keys
from hf_multisource.source_kinds import FORMS, SOURCE_KINDS, is_absent, source_key
from kinds import MIXED, mixed_processor, mixed_rows, text_tokenizer
from runs import make_folder, write_lines

NODES = 5


class GraphKind(SourceKind):
    """A graph as the list of its edges, such as "0-1 1-2" or [[0, 1], [1, 2]]."""

    name = "graph"
    inputs = ("edges",)
    fields = frozenset({"vocab_size"})
    needed = {"vocab_size": "the number of nodes"}
    dtype = np.int64
    example = '"0-1 1-2"'

    def is_single(self, value: Any) -> bool:
        return isinstance(value, str) or (isinstance(value, Sequence) and bool(value) and np.shape(value[0]) == (2,))

    def encode_value(self, value: Any, part: Any, place: str) -> tuple[Any, Any]:
        edges = [edge.split("-") for edge in value.split()] if isinstance(value, str) else value
        try:
            return np.array(edges, np.int64).reshape(-1, 2), None
        except ValueError as error:
            raise ValueError(f"{place} must be a list of edges, such as '0-1 1-2'; got {value!r}.") from error


class GraphEncoder(SourceEncoder):
    """One state a node: its embedding and the mean of its neighbors' embeddings."""

    main_input_name = "edges"

    def __init__(self, config: MultiSourceConfig, name: str) -> None:
        super().__init__(config, name)
        self.nodes = nn.Embedding(self.settings.vocab_size, config.d_model)
        self.post_init()

    def forward(self, edges: Tensor, attention_mask: Tensor, **kwargs: Any) -> EncodedSource:
        table = self.nodes.weight
        ends = nn.functional.one_hot(edges.masked_fill(~attention_mask[..., None], 0), len(table)).to(table.dtype)
        ends = ends * attention_mask[..., None, None]
        links = ends[..., 0, :].transpose(1, 2) @ ends[..., 1, :]
        links = links + links.transpose(1, 2)
        degree = links.sum(-1, keepdim=True)
        states = table + links @ table / degree.clamp(min=1)
        return EncodedSource(last_hidden_state=states, attention_mask=degree[..., 0] > 0)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_source_kind(GraphKind(), GraphEncoder)
    yield
    for registry in (SOURCE_KINDS, FORMS, ENCODERS):
        del registry["graph"]


SOURCES: list[Any] = ["en", {"name": "links", "kind": "graph", "vocab_size": NODES}]
ROWS: list[dict[str, Any]] = [
    {"en": "A dog runs.", "links": "0-1 1-2"},
    {"en": None, "links": [[3, 4]]},
    {"en": "Two cats.", "links": None},
    {"links": [[0, 1], [1, 2], [2, 4]]},
]
KEYS = ["input_ids", "attention_mask", "links_edges", "links_attention_mask"]


def make_graph_processor() -> MultiSourceProcessor:
    return MultiSourceProcessor(text_tokenizer(), ["en", "links"], source_kinds={"links": "graph"})


def make_graph_model(**fields: Any) -> Any:
    config = tiny_config(sources=SOURCES, vocab_size=len(text_tokenizer()), **fields)
    model = MultiSourceForConditionalGeneration(config).eval()
    randomize(model, 3)
    return model


def test_a_keyword_belongs_to_one_kind() -> None:
    class Other(GraphKind):
        name = "other"
        inputs = ("edges",)

    with pytest.raises(ValueError, match=r"'edges' of the kind 'other' is a keyword of 'graph' already"):
        register_source_kind(Other(), GraphEncoder)
    assert not {"other"} & {*SOURCE_KINDS, *FORMS, *ENCODERS}


@pytest.mark.parametrize(
    "nothing", [[], np.zeros((0, 2)), b"", " ", {}, {"path": None}, float("nan"), np.float32("nan")]
)
def test_what_holds_nothing_is_absent(nothing: Any) -> None:
    assert is_absent(nothing)


@pytest.mark.parametrize(
    "something", [[0], np.zeros(()), np.zeros((1, 0)), np.zeros((0, 3, 2)), b"0", "0", 0, 0.0, {"path": "x"}, False]
)
def test_what_holds_anything_is_not_absent(something: Any) -> None:
    assert not is_absent(something)


def test_rows_of_data_without_entries_are_absent(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"en": "a", "links": []}, {"en": None, "links": []}, {"en": "", "links": [[0, 1]]}]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps({**row, 'cs': 'b'})}\n" for row in rows), "utf-8")
    split = read_split(str(tmp_path), "train", ["en", "links"], "cs", forms={"links": "graph"})
    assert [row["links"] for row in split.rows] == [None, [[0, 1]]]
    assert split.report["dropped_no_source"] == 1


def columns_of(rows: Sequence[dict[str, Any]]) -> Any:
    return {name: [row.get(name) for row in rows] for name in ("en", "links")}


def test_a_graph_is_encoded_padded_and_collated() -> None:
    processor = make_graph_processor()
    assert processor.model_input_names == KEYS
    examples = [dict(processor(**row)) for row in ROWS]
    assert examples[0]["links_edges"].tolist() == [[0, 1], [1, 2]] and examples[0]["links_attention_mask"] == [1, 1]
    assert examples[2]["links_edges"] is examples[2]["links_attention_mask"] is None
    batch: Any = processor(**columns_of(ROWS), return_tensors="pt")
    assert list(batch) == KEYS and batch["links_edges"].dtype == torch.int64
    assert batch["links_edges"][1].tolist() == [[3, 4], [0, 0], [0, 0]]
    assert batch["links_attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]]
    assert processor(en=["A", "A"], links=[[], "0-1"])["links_edges"][0] is None, "a graph of no edges is absent"
    collated = DataCollatorForMultiSource(processor)(examples)
    assert all(torch.equal(collated[key], batch[key]) for key in KEYS)
    assert length_keys(examples, ["en", "links"])[:, 0].tolist() == [
        max(len(row["input_ids"] or ()), len(row["links_edges"]) if row["links_edges"] is not None else 0)
        for row in examples
    ]


def test_a_graph_changes_what_is_generated_and_an_absent_one_is_as_if_it_did_not_exist() -> None:
    processor, model = make_graph_processor(), make_graph_model()
    batch: Any = processor(**columns_of(ROWS), text_target=["A cat."] * 4, return_tensors="pt")
    logits = model(**batch).logits
    for i, row in enumerate(ROWS):
        given = {name: value for name, value in row.items() if value is not None}
        alone = processor(**given, text_target="A cat.", return_tensors="pt")
        torch.testing.assert_close(logits[i : i + 1], model(**alone).logits)
        bare = {key: value for key, value in alone.items() if key.startswith("links_") == ("links" in given)}
        if given.keys() == {"links"}:
            torch.testing.assert_close(logits[i : i + 1], model(**bare, labels=alone["labels"]).logits)
    other = processor(en="A dog runs.", links="0-3", text_target="A cat.", return_tensors="pt")
    assert not torch.allclose(model(**other).logits, logits[:1])
    del batch["labels"]
    for beams in (1, 3):
        tokens = model.generate(**batch, num_beams=beams, max_new_tokens=4)
        for i, row in enumerate(ROWS):
            given = {name: value for name, value in row.items() if value is not None}
            alone = model.generate(**processor(**given, return_tensors="pt"), num_beams=beams, max_new_tokens=4)
            assert torch.equal(tokens[i, : alone.shape[1]], alone[0])
    pipe: Any = MultiSourcePipeline(model=model, processor=processor)
    assert pipe(ROWS, batch_size=4, max_new_tokens=3) == [pipe(row, max_new_tokens=3) for row in ROWS]


def test_a_model_of_graphs_trains_where_some_or_all_graphs_of_a_batch_are_absent(tmp_path: Path) -> None:
    processor, model = make_graph_processor(), make_graph_model(source_dropout=0.2)
    absent = [{"en": "A dog."}, {"en": "A cat."}]
    data: Any = [processor(**row, text_target="A cat.") for row in [*ROWS, *absent]]
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path / "run"),
        max_steps=6,
        per_device_train_batch_size=2,
        use_cpu=True,
        train_sampling_strategy="group_by_length",
        report_to=[],
    )
    before = model.model.encoder.sources["links"].nodes.weight.detach().clone()
    MultiSourceTrainer(model, arguments, train_dataset=data, processing_class=processor).train()
    assert not torch.equal(model.model.encoder.sources["links"].nodes.weight, before)
    model.zero_grad()
    model.train()(**DataCollatorForMultiSource(processor)(data[-2:])).loss.backward()
    gradient = model.model.encoder.sources["links"].nodes.weight.grad
    assert gradient is not None and not gradient.any(), "DDP wants a gradient of every parameter"


def test_a_configuration_and_a_card_know_the_kind() -> None:
    nodes = {"name": "links", "vocab_size": NODES}
    config = MultiSourceConfig.from_processor(make_graph_processor(), [nodes], d_model=8, encoder_layers=1)
    assert [source.kind for source in config.sources] == ["text", "graph"]
    card = make_graph_model().create_card("org/name")
    assert "| 2 | `links` | graph | graph | vocab_size 5 |" in card.text and 'links="0-1 1-2"' in card.text


def test_the_card_of_a_kind_of_ones_own_shows_what_loads_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a kind does not travel with the model, and nobody but the kind knows what its values look like."""
    card = make_graph_model().create_card("org/name").text
    assert "trust_remote_code" not in card and "import hf_multisource\n" in card
    assert "`links` is of kind `graph`" in card and "`register_source_kind`" in card
    monkeypatch.delattr(GraphKind, "example")
    card = make_graph_model().create_card("org/name").text
    assert "the text of links" not in card and "links=links_value" in card and 'en="the text of en"' in card
    assert 'links_value = ...  # replace by a value of kind "graph"\n' in card
    for block in re.findall(r"```python\n(.*?)```", card, re.DOTALL):
        compile(block, "card", "exec")


def test_a_model_of_graphs_is_saved_and_loaded(tmp_path: Path) -> None:
    processor, model = make_graph_processor(), make_graph_model()
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded: Any = MultiSourceForConditionalGeneration.from_pretrained(tmp_path)
    again = MultiSourceProcessor.from_pretrained(tmp_path)
    one, other = (each(**columns_of(ROWS), text_target=["A"] * 4, return_tensors="pt") for each in (processor, again))
    assert again.source_kinds == {"links": "graph"}
    assert torch.equal(model(**one).logits, loaded(**other).logits)


def test_graphs_are_read_from_files_by_a_recipe(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    for name, lines in {"train": 40, "dev": 20}.items():
        write_lines(folder / "text" / f"{name}.links", ["" if i % 3 == 0 else f"0-{i % 5} 1-2" for i in range(lines)])
    recipe = load_recipe(
        folder / "recipe.yaml",
        {
            "path": str(folder / "text"),
            "data.sources": ["en", "links"],
            "model.sources": [{"name": "links", "kind": "graph", "vocab_size": NODES}],
            "output_dir": str(folder / "run"),
            "max_steps": 1,
        },
    )
    assert recipe.forms() == {"en": "text", "links": "graph"}
    split = read_split(str(folder / "text"), "train", ["en", "links"], "cs", forms=recipe.forms())
    assert split.report["absent.links"] == 14 and split.rows[1]["links"] == "0-1 1-2"
    processor = make_processor(recipe, split.rows, {})
    examples, _ = encode_rows(processor, split.rows, "cs", 20)
    assert examples[0]["links_edges"] is None and examples[4]["links_edges"].tolist() == [[0, 4], [1, 2]]
    train(recipe)
    trained: Any = MultiSourceForConditionalGeneration.from_pretrained(folder / "run")
    batch = MultiSourceProcessor.from_pretrained(folder / "run")(links="0-1", return_tensors="pt")
    assert len(trained.generate(**batch, max_new_tokens=2)) == 1


def test_graphs_are_read_from_json_lines_as_text_or_as_lists(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"en": "a", "links": "0-1"},
        {"en": "b", "links": [[0, 1], [1, 2]]},
        {"en": "c", "links": None},
    ]
    write_lines(tmp_path / "train.jsonl", [json.dumps({**row, "cs": "x"}) for row in rows])
    forms = {"links": "graph"}
    split = read_split(str(tmp_path), "train", ["en", "links"], "cs", forms=forms)
    assert [row["links"] for row in split.rows] == ["0-1", [[0, 1], [1, 2]], None]
    examples, _ = encode_rows(make_graph_processor(), split.rows, "cs", 20)
    assert [row["links_edges"] is None for row in examples] == [False, False, True]
    write_lines(tmp_path / "dev.jsonl", ['{"en": "a", "links": 3, "cs": "x"}'])
    with pytest.raises(ValueError, match="line 1: 'links' must be text or a list or null, but is 3"):
        read_split(str(tmp_path), "dev", ["en", "links"], "cs", forms=forms)


def test_what_is_no_graph_and_settings_that_a_graph_does_not_have_are_refused_by_name() -> None:
    processor = make_graph_processor()
    with pytest.raises(ValueError, match=r"^source 'links' of example 1 must be a list of edges, .*; got '0-x'"):
        processor(links=["0-1", "0-x"])
    with pytest.raises(Exception, match=r"sources\[g\].vocab_size must be the number of nodes; got None"):
        MultiSourceConfig(sources=[{"name": "g", "kind": "graph"}])
    with pytest.raises(Exception, match=r"sources\[g\] is of kind 'graph' and so cannot set layers; it can set vocab"):
        MultiSourceConfig(sources=[{"name": "g", "kind": "graph", "vocab_size": 3, "layers": 2}])
    with pytest.raises(ValueError, match="'links_input_ids' is no keyword of a source; allowed after the name are"):
        make_graph_model()(links_input_ids=torch.ones(1, 2).long())
    with pytest.raises(ValueError, match="source name 'edges' is reserved"):
        MultiSourceConfig.check_source_names(["edges"])


def test_a_model_of_graphs_is_a_checkpoint_of_sources() -> None:
    ours = make_graph_model()
    again: Any = MultiSourceForConditionalGeneration.from_pretrained_sources({"en": ours, "links": ours}, "en")
    assert again.config.get_source("links").to_dict() == ours.config.get_source("links").to_dict()
    batch = make_graph_processor()(en="A dog runs.", links="0-1 1-2", text_target="A cat.", return_tensors="pt")
    torch.testing.assert_close(again(**batch).logits, ours(**batch).logits)


def test_fields_that_a_kind_needs_are_kept_where_they_are_the_models_too() -> None:
    class DeepKind(GraphKind):
        fields = GraphKind.fields | {"layers"}
        needed = {**GraphKind.needed, "layers": "at least 1"}

    register_source_kind(DeepKind(), GraphEncoder, exist_ok=True)
    config = tiny_config(sources=["en", {**SOURCES[1], "layers": 1}], encoder_layers=1)
    ours = MultiSourceForConditionalGeneration(config)
    again: Any = MultiSourceForConditionalGeneration.from_pretrained_sources({"en": ours, "links": ours}, "en")
    assert again.config.get_source("links").layers == 1


def changed(**members: Any) -> Any:
    return type("Changed", (GraphKind,), {"name": "other", "inputs": ("others",), **members})()


class Bare(SourceKind):
    """A kind that sets nothing."""


@pytest.mark.parametrize(
    ("kind", "encoder", "message"),
    [
        (GraphKind, GraphEncoder, r"kind must be an instance of a subclass of SourceKind, .*; got the class GraphKind"),
        ("graph", GraphEncoder, r"kind must be an instance of a subclass of SourceKind, .*; got 'graph'"),
        (Bare(), GraphEncoder, r"Bare\.name must be .*; got None"),
        (changed(name=""), GraphEncoder, r"Changed\.name must be .*; got ''"),
        (changed(inputs=()), GraphEncoder, r"Changed\.inputs must be a tuple of keywords.*; got \(\)"),
        (changed(inputs="edges"), GraphEncoder, r"Changed\.inputs must be a tuple of keywords.*; got 'edges'"),
        (changed(inputs=(1,)), GraphEncoder, r"Changed\.inputs must be a tuple of keywords.*; got \(1,\)"),
        (changed(), nn.Embedding, r"encoder_class must be a subclass of SourceEncoder; got .*Embedding"),
        (changed(), None, "encoder_class must be a subclass of SourceEncoder; got None"),
        (changed(name="text"), GraphEncoder, "a kind of source named 'text' already"),
        (changed(name="picture"), GraphEncoder, "a kind of source named 'picture' already"),
        (
            changed(inputs=("input_ids",)),
            GraphEncoder,
            "'input_ids' of the kind 'other' is a keyword of 'text' already",
        ),
    ],
)
@pytest.mark.parametrize("exist_ok", [False, True])
def test_what_is_no_kind_is_refused_by_name_and_leaves_nothing(
    kind: Any, encoder: Any, message: str, exist_ok: bool
) -> None:
    before = [dict(registry) for registry in (SOURCE_KINDS, FORMS, ENCODERS)]
    with pytest.raises(ValueError, match=message):
        register_source_kind(kind, encoder, exist_ok=exist_ok)
    assert before == [SOURCE_KINDS, FORMS, ENCODERS]


def test_a_kind_can_be_registered_again() -> None:
    class Other(GraphEncoder):
        pass

    kind = GraphKind()
    register_source_kind(kind, Other, exist_ok=True)
    assert SOURCE_KINDS["graph"] is FORMS["graph"] is kind and ENCODERS["graph"] is Other


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("bad number"), "bad number$"),
        (TypeError("no text"), "no text$"),
        (AttributeError("no split"), "no split$"),
        (KeyError("edges"), "'edges'$"),
        (ValueError("source 'links' of example 1 is odd"), "is odd$"),
    ],
)
def test_an_error_of_a_kind_names_source_and_example_once(
    error: Exception, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = make_graph_processor()

    def encode_value(self: Any, value: Any, part: Any, place: str) -> Any:
        if value == "bad":
            raise error
        return np.array([[0, 1]]), None

    monkeypatch.setattr(GraphKind, "encode_value", encode_value)
    with pytest.raises(ValueError, match=f"^source 'links' of example 1(?!.*source).*{shown}"):
        processor(links=["0-1", "bad"])


def test_a_kind_is_known_once_it_is_registered_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is a kind of source named 'graph' already"):
        register_source_kind(GraphKind(), GraphEncoder)
    with pytest.raises(Exception, match=r"sources\[g\].kind must be one of 'text', 'features', 'pretrained'.*'graph'"):
        MultiSourceConfig(sources=[{"name": "g", "kind": "tree"}])
    with pytest.raises(ValueError, match=r"source_kinds.en must be one of 'features'.*'graph'; got 'picture'. A kind"):
        MultiSourceProcessor(text_tokenizer(), ["en"], source_kinds={"en": "picture"})
    make_graph_processor().save_pretrained(tmp_path)
    file = tmp_path / "processor_config.json"
    file.write_text(file.read_text("utf-8").replace('"graph"', '"tree"'), "utf-8")
    with pytest.raises(ValueError, match=r"processor_config.json: source_kinds.links must be one of .*; got 'tree'"):
        MultiSourceProcessor.from_pretrained(tmp_path)


# Absence, for every kind.


@pytest.mark.parametrize("name", ["en", "image", "speech", "regions"])
def test_an_absent_source_of_any_kind_is_none_in_rows_zeros_in_tensors_and_false_in_the_model(name: str) -> None:
    processor, rows = mixed_processor(), mixed_rows()
    key = name if name != "en" else ""
    row_key, mask_key = (f"{key}_{end}".lstrip("_") for end in (processor.main_input(name), "attention_mask"))
    lacking = [row[name] is None for row in rows]
    assert any(lacking) and not all(lacking)
    examples = [dict(processor(**row)) for row in rows]
    assert [row[row_key] is None for row in examples] == [row[mask_key] is None for row in examples] == lacking
    columns: Any = {one: [row[one] for row in rows] for one in processor.source_names}
    unpadded = processor(**columns)
    assert [row is None for row in unpadded[row_key]] == [row is None for row in unpadded[mask_key]] == lacking
    batch = DataCollatorForMultiSource(processor)(examples)
    assert (~batch[mask_key].any(dim=1)).tolist() == lacking
    model: Any = MultiSourceForConditionalGeneration(tiny_config(sources=MIXED, vocab_size=300)).eval()
    encoded = model.get_encoder().encode_source(name, **batch)
    assert (~encoded.attention_mask.any(dim=1)).tolist() == lacking and encoded.attention_mask.dtype == torch.bool
    assert torch.isfinite(encoded.last_hidden_state).all()
    gone = DataCollatorForMultiSource(processor)(
        [row for row, is_gone in zip(examples, lacking, strict=True) if is_gone]
    )
    assert not gone[mask_key].any()
    left = {one: tensor for one, tensor in gone.items() if one not in (row_key, mask_key)}
    target = torch.tensor([[2, 3]] * len(gone[mask_key]))
    torch.testing.assert_close(
        model(**gone, decoder_input_ids=target).logits, model(**left, decoder_input_ids=target).logits
    )


@pytest.mark.parametrize("name", ["en", "image", "speech", "regions"])
def test_the_encoder_of_a_source_without_columns_gets_gradients_of_zero(name: str) -> None:
    processor = mixed_processor()
    i = processor.source_names.index(name)
    batch = DataCollatorForMultiSource(processor)([dict(processor(**row, text_target="A")) for row in mixed_rows()[:2]])
    for key in (processor.main_input(name), "attention_mask"):
        batch[source_key(i, name, key)] = batch[source_key(i, name, key)][:, :0].flatten(1)
    model: Any = MultiSourceForConditionalGeneration(
        tiny_config(sources=MIXED, vocab_size=300, tie_word_embeddings=False)
    )
    model.train()(**batch).loss.backward()
    gradients = [parameter.grad for parameter in model.model.encoder.sources[name].parameters()]
    assert gradients and all(gradient is not None and not gradient.any() for gradient in gradients)
