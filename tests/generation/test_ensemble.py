"""Ensembles: one model alone is itself; several find what a search with the naive mean of log-probabilities finds."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from transformers import LogitsProcessor

from builders import END, LSTM, NAMES, ROWS, three_source_batch, three_source_model
from hf_multisource import MultiSourceEnsemble
from reference import beam_search, mean_distribution, normalized_beam
from searches import START, NextScores, generate, same

pytestmark = pytest.mark.pairs

feature = pytest.mark.feature("Generation", "Ensembles (MultiSourceEnsemble)")

SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "n-best": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6, "early_stopping": True},
    "normalized": {"num_beams": 4, "num_return_sequences": 2, "length_normalization": 1.0},
    "sample": {"do_sample": True, "temperature": 0.8, "top_k": 5},
    "samples": {"num_return_sequences": 3, "do_sample": True},
    "sampled beams": {"num_beams": 3, "do_sample": True},
    "no cache": {"num_beams": 3, "use_cache": False},
    "processed": {"num_beams": 3, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
    "processed greedily": {"repetition_penalty": 1.7, "min_new_tokens": 3},
    "shortlist": {"num_beams": 3, "shortlist": torch.tensor([END, 3, 5, 7, 9, 11])},
    "beginning": {"num_beams": 3, "decoder_input_ids": torch.tensor([[START, 5, 6]] * 5)},
    "by parts": {"num_beams": 3, "decoder_input_ids": torch.tensor([[START, 5, 6, 4]] * 5), "prefill_chunk_size": 2},
}
each_search = pytest.mark.parametrize("search", SEARCHES)


@cache
def three_members() -> tuple[Any, ...]:
    """Models of two families, of several sizes, that read different sources in different order."""
    return (
        three_source_model("serial"),
        three_source_model("hierarchical", sources=("fr", "en"), d_model=8, decoder_layers=1, norm_position="post"),
        three_source_model(LSTM, sources=("de", "fr"), d_model=8, window=1),
    )


def find(model: Any, inputs: dict[str, Tensor], **search: Any) -> tuple[list[list[int]], Tensor]:
    torch.manual_seed(7)
    return generate(model, inputs, **search)


def inputs_of(model: Any, example: int) -> dict[str, Tensor]:
    """The inputs of one example as one model is given them; nothing if all of its sources are absent."""
    inputs = {}
    for i, name in enumerate(model.config.source_names):
        if row := ROWS[name][example]:
            inputs[f"{name}_input_ids" if i else "input_ids"] = torch.tensor([row])
    return inputs


def naive_scores(members: tuple[Any, ...], example: int) -> NextScores:
    """The mean of what the members say, of those that have a source."""

    @torch.no_grad()
    def ask(text: tuple[int, ...]) -> list[float]:
        target = torch.tensor([[START, *text]])
        said = [
            log_softmax(member(**inputs, decoder_input_ids=target).logits[0, -1].double(), dim=-1).tolist()
            for member in members
            if (inputs := inputs_of(member, example))
        ]
        return mean_distribution(said)

    return ask


@feature
@each_search
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("combiner", ["serial", "hierarchical", LSTM])
def test_an_ensemble_of_one_model_is_the_model(combiner: str, copies: int, search: str) -> None:
    model = three_source_model(combiner)
    ensemble = MultiSourceEnsemble([copy.deepcopy(model) for _ in range(copies)])
    same(
        find(ensemble, three_source_batch(), **SEARCHES[search]), find(model, three_source_batch(), **SEARCHES[search])
    )


def test_the_outputs_are_those_of_a_member() -> None:
    model = three_source_model()
    search = {"num_beams": 3, "max_new_tokens": 4, "return_dict_in_generate": True, "output_scores": True}
    one, other = (each.generate(**three_source_batch(), **search) for each in (MultiSourceEnsemble([model]), model))
    assert one.keys() == other.keys()
    assert torch.equal(one.sequences, other.sequences)
    assert torch.equal(one.beam_indices, other.beam_indices)
    torch.testing.assert_close(one.sequences_scores, other.sequences_scores)
    torch.testing.assert_close(one.scores, other.scores)


@feature
@pytest.mark.parametrize("num_beams", [1, 2, 4])
def test_different_models_find_what_a_naive_search_does(num_beams: int) -> None:
    members = three_members()
    options = {
        "num_beams": num_beams,
        "num_return_sequences": num_beams,
        "max_new_tokens": 6,
        "early_stopping": num_beams > 1,
    }
    texts, scores = generate(MultiSourceEnsemble(members), three_source_batch(), **options)
    for i in range(5):
        expected = beam_search(naive_scores(members, i), num_beams, float(num_beams > 1), 6, {END})
        assert texts[i * num_beams : (i + 1) * num_beams] == [list(text) for text, _ in expected]
        found = scores[i * num_beams : (i + 1) * num_beams].tolist()
        assert found == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("num_beams", [2, 4])
def test_with_length_normalization_too(num_beams: int) -> None:
    members = three_members()
    options = {
        "num_beams": num_beams,
        "num_return_sequences": num_beams,
        "max_new_tokens": 6,
        "length_normalization": 0.6,
    }
    texts, scores = generate(MultiSourceEnsemble(members), three_source_batch(), **options)
    for i in range(5):
        expected = normalized_beam(naive_scores(members, i), num_beams, 0.6, 6, {END})
        assert texts[i * num_beams : (i + 1) * num_beams] == [list(text) for text, _ in expected]
        found = scores[i * num_beams : (i + 1) * num_beams].tolist()
        assert found == pytest.approx([score for _, score in expected], abs=1e-4)


def test_the_members_matter() -> None:
    """Guards the tests above."""
    members = three_members()
    found = [find(each, three_source_batch(), num_beams=4)[1] for each in (members[0], MultiSourceEnsemble(members))]
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize("search", [name for name, options in SEARCHES.items() if "do_sample" not in options])
def test_other_examples_of_the_batch_change_nothing(search: str) -> None:
    ensemble = MultiSourceEnsemble(three_members())
    options = SEARCHES[search]
    width = options.get("num_return_sequences", 1)
    texts, scores = find(ensemble, three_source_batch(), **options)
    for i in range(5):
        alone = {key: value[:1] if key == "decoder_input_ids" else value for key, value in options.items()}
        rows = slice(i * width, (i + 1) * width)
        same(find(ensemble, three_source_batch(examples=[i]), **alone), (texts[rows], scores[rows]))


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_member_without_a_source_is_left_out(num_beams: int, options: dict[str, Any]) -> None:
    """Example 3 has German alone."""
    german, french = (three_source_model(sources=(name,), d_model=size) for name, size in (("de", 8), ("fr", 16)))
    ensemble = MultiSourceEnsemble([german, french])
    alone = {"input_ids": torch.tensor([ROWS["de"][3]])}
    expected = find(german, alone, num_beams=num_beams)
    same(find(ensemble, alone, num_beams=num_beams, **options), expected)
    rows = {"input_ids": [ROWS["de"][3], [0] * 3], "fr_input_ids": [[0, 0], ROWS["fr"][1]]}
    texts, scores = find(ensemble, {key: torch.tensor(value) for key, value in rows.items()}, num_beams=num_beams)
    same((texts[:1], scores[:1]), expected)
    same((texts[1:], scores[1:]), find(french, {"input_ids": torch.tensor([ROWS["fr"][1]])}, num_beams=num_beams))


def test_the_loss_is_that_of_the_mean() -> None:
    members = three_members()
    labels = torch.tensor([[5, 7, END], [9, END, -100], [4, END, -100], [END, -100, -100], [6, 5, END]])
    nats = 0.0
    for i, row in enumerate(labels.tolist()):
        ask = naive_scores(members, i)
        text = [token for token in row if token >= 0]
        nats -= sum(ask(tuple(text[:k]))[token] for k, token in enumerate(text))
    with torch.no_grad():
        ensemble = MultiSourceEnsemble(members)
        assert ensemble(**three_source_batch(), labels=labels).loss.item() == pytest.approx(nats / 11, abs=1e-5)
        summed = ensemble(**three_source_batch(), labels=labels, num_items_in_batch=1, skip_logits=True)
    assert summed.loss.item() == pytest.approx(nats, abs=1e-4)


def test_a_logits_processor_is_given_the_mean() -> None:
    class Record(LogitsProcessor):
        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            self.seen.append(log_softmax(scores, dim=-1))
            return scores

    members, record = three_members(), Record()
    ensemble = MultiSourceEnsemble(members)
    ensemble.generate(**three_source_batch(), max_new_tokens=1, do_sample=False, logits_processor=[record])
    expected = torch.tensor([naive_scores(members, i)(()) for i in range(5)])
    torch.testing.assert_close(record.seen[0], expected, rtol=1e-4, atol=1e-4)


def test_optimized_members_find_the_same() -> None:
    members = [copy.deepcopy(member) for member in three_members()]
    expected = find(MultiSourceEnsemble(members), three_source_batch(), num_beams=3)
    ensemble = MultiSourceEnsemble(members)
    ensemble.optimize_for_inference()
    same(find(ensemble, three_source_batch(), num_beams=3), expected)


def test_the_state_holds_all_members() -> None:
    members = three_members()
    state = MultiSourceEnsemble(members).state_dict()
    assert len(state) == sum(len(member.state_dict()) for member in members)


# What is refused


def test_what_nobody_reads_is_refused() -> None:
    ensemble = MultiSourceEnsemble(three_members())
    inputs = {**three_source_batch(), "es_input_ids": torch.tensor([[4, 1]] * 5)}
    with pytest.raises(ValueError, match=r"not used by the model: \['es_input_ids'\]"):
        ensemble.generate(**inputs)
    with pytest.raises(ValueError, match="'es_input_ids' belongs to no source; the model's sources are en, de, fr"):
        ensemble(**inputs, decoder_input_ids=torch.tensor([[START]] * 5))


def test_an_example_without_any_source_is_refused() -> None:
    inputs = {"input_ids": torch.tensor([[4, 5], [4, 5]]), "attention_mask": torch.tensor([[1, 1], [0, 0]])}
    message = r"at least one source that is present; examples \[1\] have none"
    with pytest.raises(ValueError, match=message):
        MultiSourceEnsemble(three_members()).generate(**inputs)
    with pytest.raises(ValueError, match=message):  # the loss would not be a number
        MultiSourceEnsemble(three_members())(**inputs, labels=torch.tensor([[4], [4]]))


def test_sources_of_different_batches_are_refused() -> None:
    ensemble = MultiSourceEnsemble([three_source_model(sources=(name,)) for name in ("en", "de")])
    with pytest.raises(ValueError, match="same batch size; got en: 2, de: 1"):
        ensemble.generate(input_ids=torch.tensor([[4], [5]]), de_input_ids=torch.tensor([[4]]))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"vocab_size": 20}, "vocab_size is 16 in member 0, 20 in member 1"),
        ({"decoder_start_token_id": 3}, "decoder_start_token_id is 2 in member 0, 3 in member 1"),
        ({"sources": [{"name": "en", "vocab_size": 12}]}, r"'en': kind and vocab_size are 'text' and 16 .* 12 in"),
        (
            {"sources": [{"name": "en", "kind": "features", "feature_size": 4}]},
            "source 'en': kind and vocab_size are 'text' and 16 in one member, 'features' and None in member 1",
        ),
    ],
)
def test_members_that_do_not_go_together_are_refused(other: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiSourceEnsemble([three_source_model(), three_source_model(**other)])


def test_the_vocabulary_of_a_shared_table_is_that_of_its_owner() -> None:
    own = {"vocab_size": 12, "pad_token_id": 0}
    shared = [{"name": "en"}, {"name": "de", **own}, {"name": "fr", "share_embeddings_with": "de"}]
    alone = [{"name": "en"}, {"name": "de", **own}, {"name": "fr", **own}]
    other = [{"name": "en"}, {"name": "de", **own}, {"name": "fr"}]
    MultiSourceEnsemble(
        [three_source_model(sources=shared, tie_word_embeddings=True), three_source_model(sources=alone)]
    )
    with pytest.raises(ValueError, match="'fr': kind and vocab_size are 'text' and 12 in one member, 'text' and 16"):
        MultiSourceEnsemble(
            [three_source_model(sources=shared, tie_word_embeddings=True), three_source_model(sources=other)]
        )


def test_no_member_and_what_is_no_model_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one member"):
        MultiSourceEnsemble([])
    stranger: Any = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="member 1 is a Linear"):
        MultiSourceEnsemble([three_source_model(), stranger])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fold_beams": False, "num_beams": 2}, "fold_beams is False; with an ensemble it must be True"),
        ({"output_attentions": True}, "output_attentions is True; with an ensemble it must be False"),
        ({"prompt_lookup_num_tokens": 2}, "the options ask for assisted_generation"),
        ({"past_key_values": object()}, "past_key_values cannot be given"),
        ({"encoder_outputs": object()}, "encoder_outputs cannot be given"),
        ({"num_beam": 3}, "num_beam"),
    ],
)
def test_options_that_an_ensemble_does_not_have_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiSourceEnsemble([three_source_model()]).generate(**three_source_batch(), **options)


def test_an_ensemble_is_not_saved(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="save each of its members"):
        MultiSourceEnsemble([three_source_model()]).save_pretrained(tmp_path)


def test_an_order_of_sources_is_the_first_members() -> None:
    assert MultiSourceEnsemble(three_members()).config.source_names == list(NAMES)
    assert MultiSourceEnsemble(three_members()[::-1]).config.source_names == ["de", "fr", "en"]
