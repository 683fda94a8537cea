"""What must be true of the whole model, for every combiner: sharing, absence, masks, caches, losses, outputs, learning.

`python tests/model/test_modeling.py` writes `frozen/parameters.json` anew: only for a release that breaks checkpoints.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
)
from transformers.modeling_outputs import BaseModelOutput

from builders import (
    EVERY_COMBINER,
    NAMES,
    PAPER_FIRST,
    ROWS,
    randomize,
    three_source_batch,
    three_source_model,
    three_source_processor,
    tiny_config,
)
from hf_multisource import (
    COMBINERS,
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceModel,
)

pytestmark = pytest.mark.pairs

FROZEN = Path(__file__).resolve().parents[1] / "oracles" / "frozen" / "parameters.json"
LABELS = torch.tensor([[5, 9, 1], [6, 1, -100], [7, 1, -100], [8, 8, 1], [9, 1, -100]])

each_combiner = pytest.mark.parametrize("combiner", PAPER_FIRST)
each_norm_position = pytest.mark.parametrize("norm_position", ["pre", "post"])
each_attention = pytest.mark.parametrize("attention", ["eager", "sdpa"])
each_num_beams = pytest.mark.parametrize("num_beams", [1, 4])


def make(
    combiner: str = "serial", sources: Sequence[Any] = NAMES, *, seed: int = 0, **fields: Any
) -> MultiSourceForConditionalGeneration:
    """A tiny model in evaluation mode and float64, every parameter random."""
    config = tiny_config(combiner, sources, **{"decoder_layers": 2, **fields})
    model = MultiSourceForConditionalGeneration(config).double().eval()
    randomize(model, seed)
    return model


def pad(rows: Sequence[Sequence[int]], junk: int | None = None) -> tuple[Tensor, Tensor]:
    """Ids and mask; with `junk`, that token instead of padding."""
    longest = max(len(row) for row in rows)
    ids = [[*row, *[junk or 0] * (longest - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return torch.tensor(ids), torch.tensor(mask)


def batch(
    names: Sequence[str] = NAMES,
    examples: Sequence[int] = range(5),
    rows: Mapping[str, Sequence[Sequence[int]]] = ROWS,
    junk: int | None = None,
) -> dict[str, Tensor]:
    """What the model is called with: the first of the names bare, and no keyword for a source that all rows lack."""
    inputs = {}
    for i, name in enumerate(names):
        chosen = [rows[name][example] for example in examples]
        if any(chosen):
            prefix = f"{name}_" if i else ""
            inputs[f"{prefix}input_ids"], inputs[f"{prefix}attention_mask"] = pad(chosen, junk)
    return inputs


def same(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def generate(model: Any, num_beams: int, **settings: Any) -> Tensor:
    """What the model writes for the five examples."""
    texts: Tensor = model.generate(**batch(), num_beams=num_beams, max_new_tokens=6, **settings)
    return texts


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }


def without(model: MultiSourceForConditionalGeneration, name: str) -> MultiSourceForConditionalGeneration:
    """The model with one source fewer and the same weights."""
    config = model.config.to_dict()
    config["sources"] = [source for source in config["sources"] if source["name"] != name]
    smaller = MultiSourceForConditionalGeneration(MultiSourceConfig.from_dict(config)).double().eval()
    theirs = re.compile(rf"\.(sources|cross_attn)\.{name}\.")
    smaller.load_state_dict({key: value for key, value in model.state_dict().items() if not theirs.search(key)})
    return smaller


# Sizes, sharing, tying


@each_combiner
@each_norm_position
@pytest.mark.parametrize("n", [1, 2, 4])
def test_any_number_of_sources_trains(combiner: str, norm_position: str, n: int) -> None:
    names = ("en", "de", "fr", "es")[:n]
    model = make(combiner, names, norm_position=norm_position, tie_word_embeddings=False).train()
    output = model(**batch(names, rows={**ROWS, "es": ROWS["en"]}), labels=LABELS)
    assert output.logits.shape == (5, 3, 16)
    output.loss.backward()
    idle = {name for name, gradient in gradients(model).items() if not gradient.any()}
    # A key's bias shifts all scores of a query alike, and a softmax over one source has no slope.
    expected = r"k_proj\.bias" + (r"|hierarchy\.[qk]_proj|\.gate\." if n == 1 else "")
    assert not [name for name in idle if not re.search(expected, name)]


def test_each_source_has_the_depth_widths_and_vocabulary_that_are_set() -> None:
    sources = [
        "en",
        {"name": "de", "layers": 3, "ffn_dim": 10, "attention_heads": 4, "vocab_size": 30, "dropout": 0.25},
        {"name": "fr", "position_embedding": "learned", "max_position_embeddings": 6, "layers": 0},
    ]
    model = make(sources=sources, position_embedding="sinusoidal_marian")
    en, de, fr = (model.model.encoder.sources[name] for name in NAMES)
    assert [len(encoder.layers) for encoder in (en, de, fr)] == [1, 3, 0]
    assert [encoder.embeddings.tokens.num_embeddings for encoder in (en, de, fr)] == [16, 30, 16]
    assert de.layers[2].feed_forward.fc1.out_features == 10 and en.layers[0].feed_forward.fc1.out_features == 16
    assert de.layers[0].self_attn.num_heads == 4 and en.layers[0].self_attn.num_heads == 2
    layer = de.layers[0]
    assert layer.dropout == layer.feed_forward.dropout == de.embeddings.dropout == 0.25
    assert en.layers[0].dropout == en.embeddings.dropout == 0.0
    assert fr.embeddings.positions.weight.shape == (6, 8)
    assert not list(en.embeddings.positions.parameters())
    model(**batch(rows={**ROWS, "de": [[29, 1]] * 5}), labels=LABELS)


def test_the_heads_of_a_source_take_effect() -> None:
    two, four = (make(sources=[{"name": "en", "attention_heads": heads}]) for heads in (2, 4))
    assert two.state_dict().keys() == four.state_dict().keys()
    ids = batch(["en"], [0])
    states, others = two.get_encoder()(**ids).last_hidden_state, four.get_encoder()(**ids).last_hidden_state
    assert not torch.allclose(states, others)


def test_a_shared_encoder_is_one_module_and_gives_the_same_states() -> None:
    model = make(sources=["en", "de", {"name": "fr", "share_encoder_with": "en"}])
    assert list(model.model.encoder.sources) == ["en", "de"]
    ids, mask = pad(ROWS["en"][:2])
    encoded = model.get_encoder()(input_ids=ids, attention_mask=mask, fr_input_ids=ids, fr_attention_mask=mask)
    assert encoded.source_lengths == (4, 0, 4)
    first, second = encoded.last_hidden_state.chunk(2, dim=1)
    assert torch.equal(first, second)


def test_a_shared_encoder_pads_with_its_own_padding_id() -> None:
    sources = [{"name": "en", "vocab_size": 20, "pad_token_id": 3}, {"name": "de", "share_encoder_with": "en"}]
    ids = torch.tensor([[5, 6, 1, 3]])
    mask = make(sources=sources).get_encoder()(input_ids=ids, de_input_ids=ids).attention_mask
    assert mask.tolist() == [[True, True, True, False] * 2]


@each_combiner
def test_gradients_of_the_sources_add_up_in_a_shared_encoder(combiner: str) -> None:
    apart = make(combiner, ["en", "de"], tie_word_embeddings=False)
    together = make(combiner, ["en", {"name": "de", "share_encoder_with": "en"}], tie_word_embeddings=False)
    weights = apart.state_dict()
    twin = ".sources.de."
    for key in weights:
        if twin in key:
            weights[key] = weights[key.replace(twin, ".sources.en.")]
    apart.load_state_dict(weights)
    together.load_state_dict({key: value for key, value in weights.items() if twin not in key})
    inputs = batch(["en", "de"])
    for model in (apart, together):
        model(**inputs, labels=LABELS).loss.backward()
    separate = gradients(apart)
    for key, gradient in gradients(together).items():
        expected = separate[key]
        if ".sources.en." in key:
            expected = expected + separate[key.replace(".sources.en.", twin)]
        same(gradient, expected)


def token_tables(model: MultiSourceForConditionalGeneration) -> dict[str, int]:
    """Where every token table and the output layer lie in memory."""
    tables = {name: encoder.embeddings.tokens for name, encoder in model.model.encoder.sources.items()}
    tables.update(decoder=model.model.decoder.embeddings.tokens, head=model.lm_head)
    return {name: table.weight.data_ptr() for name, table in tables.items()}


@pytest.mark.feature("Model", "Tied embeddings")
def test_tables_of_one_vocabulary_are_one_in_memory_on_disk_and_after_loading(tmp_path: Path) -> None:
    sources = ["en", {"name": "de", "vocab_size": 20}, "fr", {"name": "es", "share_embeddings_with": "de"}]
    sources += [{"name": "it", "share_encoder_with": "es"}, {"name": "pt", "share_embeddings_with": "it"}]
    model = make(sources=sources)
    model.save_pretrained(tmp_path)
    on_disk = {key for key in load_file(tmp_path / "model.safetensors") if "tokens" in key or "lm_head" in key}
    assert on_disk == {
        "model.decoder.embeddings.tokens.weight",
        "model.encoder.sources.de.embeddings.tokens.weight",
    }
    for tied in (model, MultiSourceForConditionalGeneration.from_pretrained(tmp_path)):
        where = token_tables(tied)
        assert where["en"] == where["fr"] == where["decoder"] == where["head"]
        assert where["de"] == where["es"] == where["pt"] != where["en"]
        assert tied.model.encoder.sources["pt"].embeddings.tokens.weight.shape == (20, 8)


@pytest.mark.feature("Model", "Untied embeddings")
@each_combiner
def test_untied_tables_are_independent(combiner: str, tmp_path: Path) -> None:
    model = make(combiner, tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    for untied in (model, MultiSourceForConditionalGeneration.from_pretrained(tmp_path)):
        assert len(set(token_tables(untied).values())) == 5
    inputs = batch()
    before = model.get_encoder()(**inputs).last_hidden_state
    torch.nn.init.zeros_(model.lm_head.weight)
    torch.nn.init.zeros_(model.model.decoder.embeddings.tokens.weight)
    assert torch.equal(model.get_encoder()(**inputs).last_hidden_state, before)


@pytest.mark.feature("Model", "Tied embeddings")
@pytest.mark.feature("Model", "Untied embeddings")
@each_combiner
@each_num_beams
def test_tables_tied_or_copied_generate_the_same_and_are_saved_so(
    combiner: str, num_beams: int, tmp_path: Path
) -> None:
    tied = three_source_model(combiner, tie_word_embeddings=True)
    copies = three_source_model(combiner, tie_word_embeddings=False)
    copies.load_state_dict(tied.state_dict())
    expected = generate(tied, num_beams)
    assert len(set(token_tables(tied).values())) == 1 and len(set(token_tables(copies).values())) == 5
    for model in (tied, copies):
        model.save_pretrained(tmp_path)
        loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path)
        assert len(set(token_tables(loaded).values())) == len(set(token_tables(model).values()))
        assert torch.equal(generate(model, num_beams), expected)
        assert torch.equal(generate(loaded, num_beams), expected)


@pytest.mark.feature("Model", "resize_token_embeddings")
@each_combiner
@each_num_beams
@pytest.mark.parametrize("tied", [False, True])
def test_new_tokens_of_no_probability_change_no_text(combiner: str, num_beams: int, tied: bool, tmp_path: Path) -> None:
    model = three_source_model(combiner, tie_word_embeddings=tied)
    expected, tables = generate(model, num_beams), len(set(token_tables(model).values()))
    model.resize_token_embeddings(19)
    model.final_logits_bias[:, 16:] = -1e4
    assert torch.equal(generate(model, num_beams), expected)
    assert len(set(token_tables(model).values())) == tables
    model.save_pretrained(tmp_path)
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == 19 and torch.equal(generate(loaded, num_beams), expected)


@pytest.mark.feature("Model", "resize_token_embeddings")
@pytest.mark.parametrize("final_logits_bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_a_bigger_vocabulary_reaches_every_table_of_it(tied: bool, final_logits_bias: bool) -> None:
    sources = ["en", {"name": "de", "vocab_size": 20}]
    model = make(sources=sources, final_logits_bias=final_logits_bias, tie_word_embeddings=tied)
    model.resize_token_embeddings(18, mean_resizing=False)
    assert model.config.vocab_size == 18
    where = token_tables(model)
    assert len({where["en"], where["decoder"], where["head"]} - {where["de"]}) == (1 if tied else 3)
    assert model.model.encoder.sources["de"].embeddings.tokens.num_embeddings == 20
    output = model(input_ids=torch.tensor([[17, 1]]), de_input_ids=torch.tensor([[19, 1]]), labels=torch.tensor([[17]]))
    assert output.logits.shape == (1, 1, 18)
    model.model.resize_token_embeddings(17, mean_resizing=False)
    tables = [encoder.embeddings.tokens for encoder in model.model.encoder.sources.values()]
    assert [table.num_embeddings for table in (*tables, model.model.decoder.embeddings.tokens)] == [17, 20, 17]


def test_sources_of_different_batch_size_are_named() -> None:
    model = make(sources=["en", "de"])
    with pytest.raises(ValueError, match=r"same batch size; got en: 2, de: 3"):
        model.get_encoder()(input_ids=torch.ones(2, 4).long(), de_input_ids=torch.ones(3, 4).long())


def test_a_source_of_length_0_is_absent() -> None:
    model = make(sources=["en", "de"])
    english = {"input_ids": torch.tensor([[4, 5, 1]])}
    with_nothing = model.get_encoder()(**english, de_input_ids=torch.ones(1, 0).long())
    without = model.get_encoder()(**english)
    assert with_nothing.source_lengths == without.source_lengths == (3, 0)
    assert torch.equal(with_nothing.last_hidden_state, without.last_hidden_state)


# Embeddings


@pytest.mark.parametrize("kind", ["sinusoidal", "sinusoidal_marian"])
@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("scale", [False, True])
def test_embeddings_are_tokens_plus_sinusoids_of_the_formula(kind: str, offset: int, scale: bool) -> None:
    model = make(sources=["en"], position_embedding=kind, position_offset=offset, scale_embedding=scale)
    assert not [key for key in model.state_dict() if "positions" in key]
    ids = torch.tensor([[4, 5, 6]])
    for embeddings in (model.model.encoder.sources["en"].embeddings, model.model.decoder.embeddings):
        actual = embeddings(ids, start=7) if embeddings is model.model.decoder.embeddings else embeddings(ids)
        start = 7 if embeddings is model.model.decoder.embeddings else 0
        for t, token in enumerate([4, 5, 6]):
            for k in range(4):
                exponent = k / 4 if kind == "sinusoidal_marian" else k / 3
                angle = (start + t + offset) / 10000**exponent
                table = embeddings.tokens.weight[token] * (math.sqrt(8) if scale else 1)
                assert actual[0, t, k].item() == pytest.approx(table[k].item() + math.sin(angle), abs=2e-6)
                assert actual[0, t, k + 4].item() == pytest.approx(table[k + 4].item() + math.cos(angle), abs=2e-6)


def test_learned_positions_are_rows_of_their_table_from_the_offset_on() -> None:
    model = make(sources=["en"], position_embedding="learned", position_offset=2, max_position_embeddings=5)
    for embeddings in (model.model.encoder.sources["en"].embeddings, model.model.decoder.embeddings):
        assert embeddings.positions.weight.shape == (7, 8)
        expected = embeddings.tokens.weight[[4, 5]] * math.sqrt(8) + embeddings.positions.weight[[2, 3]]
        same(embeddings(torch.tensor([[4, 5]]))[0], expected)


@pytest.mark.parametrize("too_long", ["source", "target"])
def test_a_text_longer_than_the_learned_positions_is_refused(too_long: str) -> None:
    model = make(sources=["en"], position_embedding="learned", max_position_embeddings=5)
    six, five = torch.full((1, 6), 4), torch.full((1, 5), 4)
    model(input_ids=five, labels=five)
    with pytest.raises(ValueError, match=r"6 tokens.*max_position_embeddings=5"):
        model(input_ids=six if too_long == "source" else five, labels=six if too_long == "target" else five)


def test_the_embedding_norm_follows_the_sum() -> None:
    model = make(sources=["en"], embedding_norm=True, layer_norm_eps=1e-3)
    plain = make(sources=["en"])
    for normed, bare in zip(
        (model.model.encoder.sources["en"].embeddings, model.model.decoder.embeddings),
        (plain.model.encoder.sources["en"].embeddings, plain.model.decoder.embeddings),
        strict=True,
    ):
        bare.tokens.weight = normed.tokens.weight
        states = bare(torch.tensor([[4, 5]]))
        centerd = states - states.mean(-1, keepdim=True)
        expected = centerd / (states.var(-1, unbiased=False, keepdim=True) + 1e-3).sqrt()
        same(normed(torch.tensor([[4, 5]])), expected * normed.layer_norm.weight + normed.layer_norm.bias)


def test_the_final_logits_bias_is_added_saved_and_not_trained(tmp_path: Path) -> None:
    model = make(sources=["en"], final_logits_bias=True)
    inputs = {"input_ids": torch.tensor([[4, 1]]), "labels": torch.tensor([[5, 1]])}
    before = model(**inputs).logits
    bias: Any = model.final_logits_bias
    assert not bias.any()
    bias += torch.arange(16)
    same(model(**inputs).logits, before + torch.arange(16))
    assert "final_logits_bias" not in dict(model.named_parameters())
    model.save_pretrained(tmp_path)
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path).state_dict()
    assert torch.equal(loaded["final_logits_bias"], bias)


@pytest.mark.parametrize("field", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_each_dropout_acts_in_training_only(field: str, attention: str) -> None:
    settings: list[dict[str, Any]] = [{field: 0.5}, {field: 0.0}]
    model, never = (make(**setting) for setting in settings)
    model.set_attn_implementation(attention)
    reference = never(**batch(), labels=LABELS).logits
    same(model(**batch(), labels=LABELS).logits, reference)
    model.train()
    one, other = (model(**batch(), labels=LABELS).logits for _ in range(2))
    assert not torch.allclose(one, other) and not torch.allclose(one, reference)


def test_the_dropout_of_a_source_acts_in_its_encoder_alone() -> None:
    encoder = make(sources=["en", {"name": "de", "dropout": 0.5}]).train().get_encoder()
    one, other = (encoder(**batch(["en", "de"])).last_hidden_state for _ in range(2))
    same(one[:, :4], other[:, :4])
    assert not torch.allclose(one[:, 4:], other[:, 4:])


# Initial values


def check_recipe(key: str, value: Tensor, initializer: str, std: float) -> None:
    """Whether a tensor looks as `_init_weights` makes it."""
    if key.endswith("norm.weight"):
        assert torch.equal(value, torch.ones_like(value)), key
    elif key.endswith("bias"):
        assert not value.any(), key
    else:
        if "tokens" in key:
            assert not value[0].any(), key
            value = value[1:]
        bound = 6 * std if initializer == "normal" else math.sqrt(6 / (value.shape[0] + ("tokens" in key) + 16))
        spread = std if initializer == "normal" else bound / math.sqrt(3)
        assert value.abs().max() <= bound, key
        assert value.std().item() == pytest.approx(spread, rel=0.25), key


@pytest.mark.feature("Model", "Missing weights begin as the configuration says")
@each_combiner
@pytest.mark.parametrize("initializer", [pytest.param("normal", marks=pytest.mark.slow), "xavier_uniform"])
def test_whatever_a_checkpoint_lacks_begins_as_the_recipe_says(combiner: str, initializer: str, tmp_path: Path) -> None:
    config = tiny_config(
        combiner,
        NAMES,
        d_model=16,
        encoder_ffn_dim=32,
        position_embedding="learned",
        max_position_embeddings=20,
        embedding_norm=True,
        final_logits_bias=True,
        initializer=initializer,
        init_std=0.3,
    )
    model = MultiSourceForConditionalGeneration(config)
    for key, value in model.state_dict().items():
        check_recipe(key, value, initializer, 0.3)
    randomize(model, 0)
    torch.nn.init.normal_(model.state_dict()["final_logits_bias"])
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    encoder, decoder = "model.encoder.sources.de.", "model.decoder."
    one_by_one = [
        f"{decoder}embeddings.tokens.weight",
        f"{encoder}embeddings.positions.weight",
        f"{encoder}embeddings.layer_norm.weight",
        f"{encoder}layers.0.self_attn.q_proj.weight",
        f"{encoder}layers.0.feed_forward.fc1.bias",
        f"{encoder}layer_norm.bias",
        "final_logits_bias",
    ]
    combined = {key for key in weights if key.startswith(f"{decoder}layers.0.cross_attn.")}
    assert combined
    for lost in (*({key} for key in one_by_one), combined):
        kept = {key: value for key, value in weights.items() if key not in lost}
        save_file(kept, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=r"are missing|the weights lack"):
            MultiSourceForConditionalGeneration.from_pretrained(tmp_path)
        loaded = MultiSourceForConditionalGeneration.from_pretrained(
            tmp_path, ignore_mismatched_sizes=True
        ).state_dict()
        for key in lost:
            check_recipe(key, loaded[key], initializer, 0.3)
        for key, value in kept.items():
            assert torch.equal(loaded[key], value), f"{key} changed when {lost} was lost"


@pytest.mark.parametrize("combiner", ["gated_serial", "weighted_sum", "projection"])
def test_one_lost_gate_or_bias_begins_at_zero(combiner: str, tmp_path: Path) -> None:
    make(combiner).float().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "projection.bias" if combiner == "projection" else "fr.gate.bias"
    lost = weights.pop(f"model.decoder.layers.1.cross_attn.{name}")
    assert lost.any()
    save_file(weights, tmp_path / "model.safetensors")
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path, ignore_mismatched_sizes=True).state_dict()
    assert not loaded[f"model.decoder.layers.1.cross_attn.{name}"].any()
    assert all(torch.equal(loaded[key], value) for key, value in weights.items())


# Sources added behind gates


@each_norm_position
@each_attention
def test_a_source_added_behind_a_gate_changes_no_bit_until_it_is_trained(
    norm_position: str, attention: str, tmp_path: Path
) -> None:
    old: Any = three_source_model("serial", sources=["en"], norm_position=norm_position)
    old.save_pretrained(tmp_path)
    fields = {**old.config.to_dict(), "sources": ["en", "de", "fr"], "combiner": "gated_serial"}
    new = MultiSourceForConditionalGeneration.from_pretrained(
        tmp_path, config=MultiSourceConfig.from_dict(fields), ignore_mismatched_sizes=True
    )
    for model in (old, new):
        model.set_attn_implementation(attention)
    english, everything = batch(["en"], [0, 1, 3]), batch(examples=[0, 1, 3])
    labels = LABELS[[0, 1, 3]]
    assert torch.equal(new(**everything, labels=labels).logits, old(**english, labels=labels).logits)
    search = {"num_beams": 4, "max_new_tokens": 6}
    assert torch.equal(new.generate(**everything, **search), old.generate(**english, **search))

    optimizer = torch.optim.SGD(new.parameters(), lr=0.1)
    for _ in range(2):  # the first step opens the gates, the second goes through them
        new(**everything, labels=labels).loss.backward()
        optimizer.step()
    assert not torch.equal(new(**everything, labels=labels).logits, new(**english, labels=labels).logits)
    assert gradients(new)["model.encoder.sources.de.layers.0.self_attn.q_proj.weight"].any()


# Absent sources, padding, neighbors


@pytest.mark.feature("Model", "Absent sources, in values and gradients")
@each_combiner
@each_norm_position
@each_attention
@pytest.mark.parametrize("absent", NAMES)
def test_an_absent_source_might_as_well_not_exist(
    combiner: str, norm_position: str, attention: str, absent: str
) -> None:
    model = make(combiner, norm_position=norm_position)
    smaller = without(model, absent)
    for one in (model, smaller):
        one.set_attn_implementation(attention)
    others = [name for name in NAMES if name != absent]
    examples = [i for i in range(5) if any(ROWS[name][i] for name in others)]
    expected = smaller(**batch(others, examples), labels=LABELS[examples]).logits
    labels = LABELS[examples]

    full = batch(examples=examples, junk=3)
    prefix = "" if absent == "en" else f"{absent}_"
    masked = {**full, f"{prefix}attention_mask": torch.zeros_like(full[f"{prefix}attention_mask"])}
    same(model(**masked, labels=labels).logits, expected)
    left_out = {
        key: value for key, value in full.items() if key not in {f"{prefix}input_ids", f"{prefix}attention_mask"}
    }
    same(model(**left_out, labels=labels).logits, expected)
    mask_only = {key: value for key, value in masked.items() if key != f"{prefix}input_ids"}
    same(model(**mask_only, labels=labels).logits, expected)
    nothing = {**left_out, f"{prefix}input_ids": torch.zeros_like(full[f"{prefix}input_ids"])}
    same(model(**nothing, labels=labels).logits, expected)  # the mask made from the padding id


@each_combiner
@each_norm_position
@each_attention
def test_a_batch_is_its_examples_one_by_one(combiner: str, norm_position: str, attention: str) -> None:
    model = make(combiner, norm_position=norm_position)
    model.set_attn_implementation(attention)
    together = model(**batch(junk=7), labels=LABELS).logits
    for i in range(5):
        alone = model(**batch(examples=[i]), labels=LABELS[i : i + 1]).logits  # without keywords of absent sources
        same(together[i : i + 1], alone)


@each_combiner
@each_norm_position
def test_more_padding_changes_nothing_on_either_side(combiner: str, norm_position: str) -> None:
    model = make(combiner, norm_position=norm_position)
    inputs = batch()
    wider = {key: torch.nn.functional.pad(value, (0, 3)) for key, value in inputs.items()}
    same(model(**wider, labels=LABELS).logits, model(**inputs, labels=LABELS).logits)


@each_combiner
@each_norm_position
def test_no_gradient_flows_into_an_absent_source(combiner: str, norm_position: str) -> None:
    model = make(combiner, norm_position=norm_position, tie_word_embeddings=False).train()
    smaller = without(model, "de").train()
    inputs = batch(junk=5)
    inputs["de_attention_mask"][:] = 0
    examples = [0, 1, 3, 4]
    model(**{key: value[examples] for key, value in inputs.items()}, labels=LABELS[examples]).loss.backward()
    smaller(**batch(["en", "fr"], examples), labels=LABELS[examples]).loss.backward()
    expected = gradients(smaller)
    for key, gradient in gradients(model).items():
        if ".de." in key:
            assert not gradient.any(), key
        else:
            same(gradient, expected[key])


@each_combiner
@each_norm_position
@each_attention
def test_an_example_without_any_source_stays_finite_and_alone(
    combiner: str, norm_position: str, attention: str
) -> None:
    model = make(combiner, norm_position=norm_position).train()
    model.set_attn_implementation(attention)
    rows = {name: [*texts[:2], []] for name, texts in ROWS.items()}
    output = model(**batch(rows=rows, examples=range(3), junk=5), labels=LABELS[:3])
    output.loss.backward()
    assert output.logits.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())
    same(output.logits[:2], model(**batch(examples=[0, 1]), labels=LABELS[:2]).logits)
    found = model(**batch(rows=rows, examples=range(3), junk=5), labels=LABELS[:3], output_attentions=True)
    for weights in [*(found.cross_attentions if attention == "eager" else ()), *(found.source_weights or ())]:
        assert weights[0].any() and not weights[2].any()
    # what it says depends on its own prefix alone
    other = batch(rows={**rows, "en": [[9, 1], [], []]}, examples=range(3), junk=8)
    same(output.logits[2], model(**other, labels=LABELS[:3]).logits[2])


@each_combiner
def test_each_source_that_is_there_matters(combiner: str) -> None:
    model = make(combiner)
    inputs = batch(examples=[0])
    before = model(**inputs, labels=LABELS[:1]).logits
    for key in ("input_ids", "de_input_ids", "fr_input_ids"):
        changed = inputs[key].clone()
        changed[0, 0] = 15
        after = model(**{**inputs, key: changed}, labels=LABELS[:1]).logits
        assert not torch.allclose(before, after, rtol=1e-3), key


def test_the_order_of_the_keywords_does_not_matter() -> None:
    model, inputs = make(), batch()
    backwards = dict(reversed(inputs.items()))
    assert torch.equal(model(**inputs, labels=LABELS).logits, model(**backwards, labels=LABELS).logits)


@pytest.mark.feature("Model", "inputs_embeds, of every source")
@each_combiner
def test_embedded_tokens_stand_in_for_ids(combiner: str) -> None:
    model, inputs = make(combiner), batch()
    expected = model(**inputs, labels=LABELS).logits
    for prefix, name in (("", "en"), ("fr_", "fr")):
        embeddings = model.model.encoder.sources[name].embeddings
        embedded = dict(inputs)
        embedded[f"{prefix}inputs_embeds"] = embeddings.tokens(embedded.pop(f"{prefix}input_ids"))
        same(model(**embedded, labels=LABELS).logits, expected)
    table = model.get_input_embeddings()
    start = model.prepare_decoder_input_ids_from_labels(LABELS)
    same(model(**inputs, decoder_inputs_embeds=table(start)).logits, expected)


# Two roads, one answer


@pytest.mark.feature("Model", "Eager and SDPA attention")
@each_combiner
@each_norm_position
def test_eager_and_sdpa_agree(combiner: str, norm_position: str) -> None:
    model = make(combiner, norm_position=norm_position, attention_dropout=0.0).train()
    found = []
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        model.zero_grad()
        output = model(**batch(junk=3), labels=LABELS)
        output.loss.backward()
        found.append({"logits": output.logits, **{key: value.clone() for key, value in gradients(model).items()}})
    for key, value in found[0].items():
        same(value, found[1][key])


@pytest.mark.feature("Model", "Eager and SDPA attention")
@each_combiner
@each_num_beams
def test_eager_and_sdpa_generate_the_same(combiner: str, num_beams: int) -> None:
    model = three_source_model(combiner)
    found = []
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        found.append(generate(model, num_beams))
    assert torch.equal(*found)


@pytest.mark.feature("Model", "Gradient checkpointing, reentrant and not")
@each_combiner
@each_norm_position
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(combiner: str, norm_position: str, use_reentrant: bool) -> None:
    model = make(combiner, norm_position=norm_position).train()
    calls: list[object] = []
    for part in [model.model.encoder.sources["de"].layers[0].feed_forward, model.model.decoder.layers[1].cross_attn]:
        part.register_forward_pre_hook(lambda module, _: calls.append(module))
    found = []
    for enabled in (False, True):
        if enabled:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()  # reentrant checkpointing needs an input that has a gradient
        calls.clear()
        model.zero_grad()
        loss = model(**batch(), labels=LABELS).loss
        loss.backward()
        assert len(calls) == (4 if enabled else 2)  # computed again on the way back
        found.append({"loss": loss.detach(), **{key: value.clone() for key, value in gradients(model).items()}})
    for key, value in found[0].items():
        same(value, found[1][key])


@pytest.mark.feature("Model", "Key/value cache")
@each_combiner
@each_norm_position
@each_attention
def test_step_by_step_with_a_cache_is_the_whole_at_once(combiner: str, norm_position: str, attention: str) -> None:
    model = make(combiner, norm_position=norm_position, position_embedding="learned", max_position_embeddings=9)
    model.set_attn_implementation(attention)
    inputs = batch(junk=3)
    target = torch.tensor([[2, 4, 5, 6], [2, 7, 8, 9], [2, 10, 11, 12], [2, 4, 4, 4], [2, 13, 14, 15]])
    expected = model(**inputs, decoder_input_ids=target, use_cache=False).logits
    encoded = model.get_encoder()(**inputs)
    for steps in ([1, 1, 1, 1], [3, 1], [4]):
        cache, found, start = None, [], 0
        for length in steps:
            output = model(
                encoder_outputs=encoded,
                decoder_input_ids=target[:, start : start + length],
                past_key_values=cache,
                use_cache=True,
            )
            cache, start = output.past_key_values, start + length
            found.append(output.logits)
        same(torch.cat(found, dim=1), expected)
    assert cache is not None
    assert [layer.keys.shape for layer in cache.cross_attention_cache.layers] == [(5, 2, 12, 4)] * 2
    assert [layer.keys.shape for layer in cache.self_attention_cache.layers] == [(5, 2, 4, 4)] * 2


@each_combiner
def test_later_target_tokens_do_not_reach_earlier_ones(combiner: str) -> None:
    model, inputs = make(combiner), batch(examples=[0])
    one = model(**inputs, decoder_input_ids=torch.tensor([[2, 4, 5, 6]])).logits
    other = model(**inputs, decoder_input_ids=torch.tensor([[2, 4, 9, 9]])).logits
    same(one[:, :2], other[:, :2])
    assert not torch.allclose(one[:, 2], other[:, 2])


@pytest.mark.feature("Model", "encoder_outputs given to forward")
@each_combiner
def test_what_the_encoder_returned_may_be_used_again(combiner: str) -> None:
    model, inputs = make(combiner), batch(junk=3)
    expected = model(**inputs, labels=LABELS).logits
    encoded = model.get_encoder()(**inputs)
    assert encoded.source_lengths == (4, 3, 5)
    assert encoded.attention_mask.tolist() == [
        [bool(bit) for key in ("attention_mask", "de_attention_mask", "fr_attention_mask") for bit in inputs[key][i]]
        for i in range(5)
    ]
    same(model(encoder_outputs=encoded, labels=LABELS).logits, expected)
    same(model.get_encoder()(**inputs, return_dict=True).last_hidden_state, encoded.last_hidden_state)


def test_encoder_outputs_without_source_lengths_are_refused_unless_there_is_one_source() -> None:
    several, single = make(), make(sources=["en"])
    inputs = batch(["en"])
    states = single.get_encoder()(**inputs).last_hidden_state
    for outputs in (BaseModelOutput(last_hidden_state=states), (states,)):
        with pytest.raises(ValueError, match=r"source_lengths.*3 sources"):
            several(encoder_outputs=outputs, labels=LABELS)
        with_mask = single(encoder_outputs=outputs, attention_mask=inputs["attention_mask"], labels=LABELS).logits
        same(with_mask, single(**inputs, labels=LABELS).logits)


def test_wrong_keywords_are_refused_by_name() -> None:
    model, ids = make(), torch.tensor([[4, 1]])
    with pytest.raises(ValueError, match=r"'es_input_ids'.*en, de, fr"):
        model(input_ids=ids, es_input_ids=ids, labels=ids)
    with pytest.raises(ValueError, match=r"no source is given.*en, de, fr"):
        model(labels=ids)
    with pytest.raises(ValueError, match=r"no source is given.*en, de, fr"):
        model(attention_mask=ids, de_attention_mask=ids, labels=ids)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(input_ids=ids, inputs_embeds=torch.zeros(1, 2, 8).double(), labels=ids)
    nothing = {"input_ids": ids[:, :0], "de_input_ids": ids[:, :0]}
    for mode in (True, False):
        with pytest.raises(ValueError, match=r"no source has any input: those of en, de have no columns"):
            model.train(mode)(**nothing, labels=ids)


# Loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("training", [False, True])
def test_the_loss_is_the_mean_over_real_labels_and_smoothed_in_training_only(smoothing: float, training: bool) -> None:
    model = make(label_smoothing=smoothing).train(training)
    output = model(**batch(), labels=LABELS)
    epsilon = smoothing if training else 0.0
    logs = log_softmax(output.logits.detach(), dim=-1).tolist()
    losses = []
    for row, labels in zip(logs, LABELS.tolist(), strict=True):
        for log, label in zip(row, labels, strict=True):
            if label != -100:
                # cross-entropy with (1 - e) at the label and e/V everywhere
                losses.append(-(1 - epsilon) * log[label] - epsilon * sum(log) / 16)
    assert len(losses) == 12
    assert output.loss.item() == pytest.approx(sum(losses) / 12, rel=1e-5)
    for items in (5, torch.tensor(5)):
        total = model(**batch(), labels=LABELS, num_items_in_batch=items).loss
        assert total.item() == pytest.approx(sum(losses) / 5, rel=1e-5)


def test_labels_are_shifted_right_behind_the_start_token() -> None:
    model = make(decoder_start_token_id=3)
    labels = torch.tensor([[5, 9, 1, -100], [6, 1, -100, -100]])
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    assert shifted.tolist() == [[3, 5, 9, 1], [3, 6, 1, 0]]
    assert labels.tolist() == [[5, 9, 1, -100], [6, 1, -100, -100]]
    inputs = batch(examples=[0, 1])
    same(model(**inputs, labels=labels).logits, model(**inputs, decoder_input_ids=shifted).logits)
    given = torch.full_like(shifted, 4)
    same(
        model(**inputs, labels=labels, decoder_input_ids=given).logits,
        model(**inputs, decoder_input_ids=given).logits,
    )


def test_labels_cannot_be_shifted_without_a_start_token() -> None:
    model = make(bos_token_id=None)
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        model(**batch(), labels=LABELS)


@each_combiner
def test_padding_behind_the_target_changes_nothing(combiner: str) -> None:
    model, inputs = make(combiner), batch()
    short = model(**inputs, labels=LABELS)
    long = model(**inputs, labels=torch.nn.functional.pad(LABELS, (0, 2), value=-100))
    same(long.logits[:, :3], short.logits)
    same(long.loss, short.loss, 1e-6)  # losses are float32


# Outputs


@pytest.mark.feature("Model", "Hidden states and attentions, of all sources in the decoder")
@each_combiner
def test_attentions_and_states_come_when_asked_for(combiner: str) -> None:
    model = make(combiner, encoder_layers=3)
    model.set_attn_implementation("eager")
    inputs = batch(junk=3)
    output = model(**inputs, labels=LABELS, output_attentions=True, output_hidden_states=True)
    assert [states.shape for states in output.decoder_hidden_states] == [(5, 3, 8)] * 3
    assert [states.shape for states in output.encoder_hidden_states] == [(5, 4, 8)] * 4
    assert [weights.shape for weights in output.encoder_attentions] == [(5, 2, 4, 4)] * 3
    assert [weights.shape for weights in output.decoder_attentions] == [(5, 2, 3, 3)] * 2
    assert [weights.shape for weights in output.cross_attentions] == [(5, 2, 3, 12)] * 2
    assert output.source_lengths == (4, 3, 5)
    assert output.encoder_last_hidden_state.shape == (5, 12, 8)
    same(model.lm_head(output.decoder_hidden_states[-1]), output.logits)
    same(output.encoder_hidden_states[-1], output.encoder_last_hidden_state[:, :4])
    for weights in output.decoder_attentions:
        same(weights.sum(-1), torch.ones(5, 2, 3).double())
        assert not weights.triu(1).any()

    masks = [inputs[key].bool() for key in ("attention_mask", "de_attention_mask", "fr_attention_mask")]
    present = torch.stack([mask.any(-1) for mask in masks], dim=1)
    for weights in output.cross_attentions:
        assert not weights[~torch.cat(masks, dim=1)[:, None, None].expand_as(weights)].any()
        sums = torch.stack([block.sum(-1) for block in weights.split((4, 3, 5), dim=-1)], dim=-1)  # (B, H, T, n)
        if COMBINERS[combiner].joint_weights:
            same(sums.sum(-1), torch.ones(5, 2, 3).double())
        else:
            same(sums, present[:, None, None].expand_as(sums).double())
    if COMBINERS[combiner].weighs_sources:
        assert len(output.source_weights) == 2
        for weights in output.source_weights:
            assert weights.shape == (5, weights.shape[1], 3, 3)
            same(weights.sum(-1), torch.ones(5, weights.shape[1], 3).double())
            assert not weights[~present[:, None, None].expand_as(weights)].any()
    else:
        assert output.source_weights is None


@pytest.mark.feature("Model", "Hidden states and attentions of each source's encoder")
@each_combiner
def test_states_and_attentions_of_every_source_can_be_had(combiner: str) -> None:
    model = make(combiner, ["en", {"name": "de", "layers": 3}, {"name": "fr", "share_encoder_with": "de"}])
    model.set_attn_implementation("eager")
    inputs, encoder = batch(), model.get_encoder()
    joined = encoder(**inputs)
    for i, name in enumerate(["en", "de", "fr"]):
        length = joined.source_lengths[i]
        output = encoder.encode_source(name, **inputs, output_hidden_states=True, output_attentions=True)
        alone = joined.last_hidden_state.split(joined.source_lengths, dim=1)[i]
        torch.testing.assert_close(output.last_hidden_state, alone)
        layers = 1 if name == "en" else 3
        assert [states.shape for states in output.hidden_states] == [(5, length, 8)] * (layers + 1)
        assert [weights.shape for weights in output.attentions] == [(5, 2, length, length)] * layers
    with pytest.raises(ValueError, match="unknown source 'es'"):
        encoder.encode_source("es", **inputs)
    with pytest.raises(ValueError, match="no inputs of source 'fr', only of en, de"):
        encoder.encode_source("fr", **batch(["en", "de"]))


@each_combiner
def test_with_one_source_nothing_is_told_by_source(combiner: str) -> None:
    model = make(combiner, sources=["en"])
    model.set_attn_implementation("eager")
    output = model(**batch(["en"], [0]), labels=LABELS[:1], output_attentions=True)
    assert output.source_lengths is None and output.source_weights is None


@each_combiner
def test_attentions_over_one_source_keep_their_gradients(combiner: str) -> None:
    # They are the tensors of the computation, not copies; those over several sources are joined after the fact.
    model = make(combiner, sources=["en"])
    model.set_attn_implementation("eager")
    output = model(**batch(["en"], [0]), labels=LABELS[:1], output_attentions=True)
    attentions = (*output.cross_attentions, *output.decoder_attentions, *output.encoder_attentions)
    for weights in attentions:
        weights.retain_grad()
    output.loss.backward()
    assert all(weights.grad is not None for weights in attentions)


@each_combiner
def test_nothing_more_than_asked_for_comes_back(combiner: str) -> None:
    model = make(combiner)
    model.set_attn_implementation("eager")
    output = model(**batch(), labels=LABELS)
    assert set(output.keys()) == {"loss", "logits", "encoder_last_hidden_state"}
    generating = model(**batch(), decoder_input_ids=torch.full((5, 1), 2))
    assert set(generating.keys()) == {"logits", "past_key_values", "encoder_last_hidden_state"}


@pytest.mark.feature("Model", "Weights over the sources")
@each_combiner
def test_source_weights_come_without_eager_attention_too(combiner: str) -> None:
    model = make(combiner)
    model.set_attn_implementation("sdpa")
    output = model(**batch(), labels=LABELS, output_attentions=True)
    model.set_attn_implementation("eager")
    expected = model(**batch(), labels=LABELS, output_attentions=True)
    assert (expected.source_weights is not None) == COMBINERS[combiner].weighs_sources
    if expected.source_weights is None:
        assert output.source_weights is None
        return
    for one, other in zip(output.source_weights, expected.source_weights, strict=True):
        same(one, other)


@pytest.mark.feature("Model", "return_dict=False")
@each_combiner
@each_num_beams
def test_outputs_are_tuples_when_asked_for(combiner: str, num_beams: int) -> None:
    model = make(combiner)
    loss, logits, *_ = model(**batch(), labels=LABELS, return_dict=False)
    expected = model(**batch(), labels=LABELS)
    assert torch.equal(loss, expected.loss) and torch.equal(logits, expected.logits)
    texts = generate(model, num_beams)
    model.config.return_dict = False
    assert isinstance(model(**batch(), labels=LABELS), tuple)
    assert torch.equal(generate(model, num_beams), texts)


# Kinds of numbers, files


@pytest.mark.feature("Model", "float16 and bfloat16")
@each_combiner
@each_norm_position
def test_bfloat16_runs(combiner: str, norm_position: str) -> None:
    model = make(combiner, norm_position=norm_position).train()
    expected = model(**batch(), labels=LABELS).loss.item()
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.float()(**batch(junk=3), labels=LABELS).loss
        loss.backward()
        assert loss.item() == pytest.approx(expected, rel=0.1)
        assert all(gradient.isfinite().all() for gradient in gradients(model).values())
        output = model.bfloat16()(**batch(junk=3), labels=LABELS)
        assert output.logits.dtype == torch.bfloat16 and output.logits.isfinite().all()
        assert output.loss.item() == pytest.approx(expected, rel=0.2)


@pytest.mark.feature("Model", "save_pretrained, from_pretrained, Auto classes")
@each_combiner
@each_norm_position
def test_a_saved_model_comes_back_the_same_through_every_auto_class(
    combiner: str, norm_position: str, tmp_path: Path
) -> None:
    model = make(combiner, norm_position=norm_position).float()
    model.save_pretrained(tmp_path)
    expected = model(**batch(), labels=LABELS).logits
    for load in (MultiSourceForConditionalGeneration, AutoModelForSeq2SeqLM):
        loaded = load.from_pretrained(tmp_path)
        assert type(loaded) is MultiSourceForConditionalGeneration and not loaded.training
        assert torch.equal(loaded(**batch(), labels=LABELS).logits, expected)
    assert type(AutoConfig.from_pretrained(tmp_path)) is MultiSourceConfig
    body, start = AutoModel.from_pretrained(tmp_path), model.prepare_decoder_input_ids_from_labels(LABELS)
    assert type(body) is MultiSourceModel
    states = body(**batch(), decoder_input_ids=start).last_hidden_state
    assert torch.equal(model.lm_head(states), expected)


@pytest.mark.feature("Model", "save_pretrained, from_pretrained, Auto classes")
@each_combiner
@each_num_beams
def test_a_saved_model_generates_the_same(combiner: str, num_beams: int, tmp_path: Path) -> None:
    model = three_source_model(combiner)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(generate(loaded, num_beams), generate(model, num_beams))


def parameters(combiner: str) -> dict[str, list[int]]:
    """Names and shapes of everything that a checkpoint of a tiny model holds, ties included."""
    sources = ["en", {"name": "de", "vocab_size": 20, "position_embedding": "learned", "max_position_embeddings": 6}]
    model = make(combiner, [*sources, {"name": "fr", "share_encoder_with": "de"}], final_logits_bias=True)
    return {name: list(value.shape) for name, value in sorted(model.state_dict().items())}


@each_combiner
def test_names_and_shapes_of_parameters_are_frozen(combiner: str) -> None:
    frozen = json.loads(FROZEN.read_text())
    assert frozen.keys() == COMBINERS.keys()
    assert parameters(combiner) == frozen[combiner]


# Learning


@pytest.mark.parametrize("combiner", EVERY_COMBINER)
@each_norm_position
def test_one_batch_can_be_learned_by_heart(combiner: str, norm_position: str) -> None:
    torch.manual_seed(0)
    config = tiny_config(combiner, NAMES, d_model=16, norm_position=norm_position)
    model = MultiSourceForConditionalGeneration(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        loss = model(**batch(), labels=LABELS).loss
        loss.backward()
        optimizer.step()
        if loss < 0.01:
            break
    assert loss < 0.01


def questions(generator: torch.Generator, size: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Batches of which English holds the first word of the answer, German the second, and French nothing."""
    end = torch.ones(size, 1, dtype=torch.long)
    while True:
        en, de, fr = torch.randint(4, 12, (3, size, 1), generator=generator)
        noise = torch.randint(12, 16, (3, size, 1), generator=generator)
        texts = [torch.cat([word, other, end], dim=1) for word, other in zip((en, de, fr), noise, strict=True)]
        inputs = {"input_ids": texts[0], "de_input_ids": texts[1], "fr_input_ids": texts[2]}
        yield inputs, torch.cat([en, de, end], dim=1)


@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_an_answer_split_between_two_sources_is_learned_and_needs_both(combiner: str) -> None:
    torch.manual_seed(0)
    config = tiny_config(combiner, NAMES, d_model=32, initializer="xavier_uniform")
    model = MultiSourceForConditionalGeneration(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    data = questions(torch.Generator().manual_seed(1), 64)
    for _, (inputs, labels) in zip(range(250), data, strict=False):
        optimizer.zero_grad()
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        if loss < 0.02:
            break
    model.eval()
    inputs, labels = next(questions(torch.Generator().manual_seed(2), 256))

    @torch.no_grad()
    def accuracy(inputs: dict[str, Tensor]) -> float:
        found = model(**inputs, labels=labels).logits.argmax(-1)
        return found.eq(labels).all(-1).float().mean().item()

    right = accuracy(inputs)
    wrong = {key: accuracy({**inputs, key: ids.roll(1, dims=0)}) for key, ids in inputs.items()}
    assert right > 0.95
    assert wrong["input_ids"] < 0.4 and wrong["de_input_ids"] < 0.4  # 1/8 by chance
    assert wrong["fr_input_ids"] > 0.9


if __name__ == "__main__":
    text = json.dumps({name: parameters(name) for name in COMBINERS}, indent=1)
    FROZEN.write_text(re.sub(r"\[[^]]*\]", lambda shape: "".join(shape.group().split()), text) + "\n")


@pytest.mark.parametrize("sources", [["de", "en", "fr"], ["en", "de"], ["en", "de", "fr", "es"], ["en", "de", "it"]])
def test_a_model_keeps_the_sources_that_it_was_built_with(sources: list[str], tmp_path: Path) -> None:
    model, ids = make().eval(), torch.tensor([[4, 1]])
    model.config.sources = sources
    refusal = rf"changed from en, de, fr to {', '.join(sources)}; a model keeps the sources .* from_pretrained_sources"
    with pytest.raises(ValueError, match=refusal):
        model(input_ids=ids, labels=ids)
    with pytest.raises(ValueError, match=refusal):
        model.generate(input_ids=ids, max_new_tokens=2)
    with pytest.raises(ValueError, match=refusal):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    model.config.sources = ["en", "de", "fr"]
    assert model(input_ids=ids, labels=ids).loss.isfinite()


@pytest.mark.parametrize("form", [list, np.asarray])
def test_inputs_that_are_no_tensors_are_refused_by_name(form: Any) -> None:
    model, ids = make().eval(), torch.tensor([[4, 1]])
    for call in (model, model.generate):
        with pytest.raises(TypeError, match=r"input_ids of source 'de' must be a tensor; got a (list|ndarray)"):
            call(input_ids=ids, de_input_ids=form(ids.tolist()))


def test_hooks_of_the_output_layer_act_on_the_loss_without_logits_too() -> None:
    model = three_source_model("flat").train()
    labels = torch.tensor([[5, 6, 1]] * len(three_source_batch()["input_ids"]))
    model.lm_head.register_forward_hook(lambda module, inputs, output: output * 0.5)
    whole, silent = (model(**three_source_batch(), labels=labels, skip_logits=skip) for skip in (False, True))
    expected = cross_entropy(whole.logits.flatten(0, 1), labels.flatten()).item()
    assert (silent.loss.item(), whole.loss.item()) == (pytest.approx(expected), pytest.approx(expected))


def test_a_mask_of_another_length_is_named_with_its_source() -> None:
    model, processor = three_source_model("serial"), three_source_processor()
    batch = processor(en=["a b", "c"], de=["d e f", "g"], text_target=["x", "y"], return_tensors="pt")
    short = {**batch, "de_attention_mask": batch["de_attention_mask"][:, :-1]}
    with pytest.raises(
        ValueError, match=r"the attention mask of source 'de' has the shape \(2, \d+\), and its input_ids"
    ):
        model(**short)
