"""Attentions by source and by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import LogitsProcessor

from builders import END, NAMES, three_source_batch, three_source_model
from hf_multisource import (
    COMBINERS,
    MultiSourceProcessor,
    TokenAttention,
    attention_to_tokens,
    returned_attentions,
    split_by_source,
)
from hf_multisource.analysis import token_texts
from hf_multisource.recipes.tokenization import KINDS, train_tokenizer

feature = pytest.mark.feature("Model", "Attentions by source and token")
each_combiner = pytest.mark.parametrize("combiner", COMBINERS)
each_beam = pytest.mark.parametrize("num_beams", [1, 4])
TEXTS: dict[str, Any] = {
    "en": ["a dog sees", "cats", "dogs"],
    "de": ["ein Hund", "žluťoučký kůň", None],
    "fr": ["un chien", None, None],
}
TARGETS = ["pes vidí", "kočky tu jsou", "žluť"]


def eager(combiner: str, **fields: Any) -> Any:
    model = three_source_model(combiner, **fields)
    model.set_attn_implementation("eager")
    return model


class Ends(LogitsProcessor):
    """Lets example i speak 2 + i tokens, so that hypotheses are of different lengths."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores, spoken = scores.clone(), input_ids.shape[1] - 1
        examples = torch.arange(len(scores)) // (len(scores) // 5)
        scores[:, END] = -torch.inf
        over = spoken >= 2 + examples
        scores[over] = -torch.inf
        scores[over, END] = 0.0
        return scores


def generated(model: Any, batch: dict[str, Tensor], num_beams: int, **kwargs: Any) -> Any:
    options = {"max_new_tokens": 10, "return_dict_in_generate": True, "output_attentions": True}
    return model.generate(**batch, num_beams=num_beams, do_sample=False, **options, **kwargs)


@feature
@each_combiner
@each_beam
def test_what_generate_returned_is_what_teacher_forcing_computes(combiner: str, num_beams: int) -> None:
    model, batch = eager(combiner), three_source_batch()
    hypotheses = num_beams // 2 or 1
    output = generated(model, batch, num_beams, num_return_sequences=hypotheses, logits_processor=[Ends()])
    found = returned_attentions(output.cross_attentions, output.get("beam_indices"))
    repeated = {key: tensor.repeat_interleave(hypotheses, dim=0) for key, tensor in batch.items()}
    with torch.no_grad():
        forced = model(**repeated, decoder_input_ids=output.sequences[:, :-1], output_attentions=True)
    expected = torch.stack(forced.cross_attentions, dim=1)
    assert found.shape == expected.shape  # (B, L, H, T, S)
    ended = (output.sequences[:, 1:] == END).cumsum(dim=1) - (output.sequences[:, 1:] == END).long() > 0
    assert (~ended).sum(dim=1).tolist() == [length for length in range(3, 8) for _ in range(hypotheses)]
    assert_close(found.permute(0, 3, 1, 2, 4)[~ended], expected.permute(0, 3, 1, 2, 4)[~ended], rtol=1e-4, atol=1e-5)


@each_beam
def test_a_prompt_has_no_row_and_a_missing_cache_changes_nothing(num_beams: int) -> None:
    model, batch = eager("serial"), three_source_batch()
    prompt = torch.tensor([[2, 5, 6]]).expand(5, 3)
    output = generated(model, batch, num_beams, decoder_input_ids=prompt)
    found = returned_attentions(output.cross_attentions, output.get("beam_indices"))
    assert found.shape[3] == output.sequences.shape[1] - 3
    again = generated(model, batch, num_beams, decoder_input_ids=prompt, use_cache=False)
    assert_close(returned_attentions(again.cross_attentions, again.get("beam_indices")), found, rtol=1e-4, atol=1e-5)


@feature
@each_combiner
def test_weights_sum_to_what_the_combiner_promises(combiner: str) -> None:
    model, batch = eager(combiner), three_source_batch()
    target = torch.full((5, 4), 5)
    with torch.no_grad():
        output = model(**batch, decoder_input_ids=target, output_attentions=True)
    for weights in output.cross_attentions:
        parts = split_by_source(weights, output.source_lengths, NAMES)
        assert list(parts) == list(NAMES)
        assert_close(torch.cat(list(parts.values()), dim=-1), weights)
        sums = torch.stack([part.sum(dim=-1) for part in parts.values()], dim=-1)  # (B, H, T, n)
        masks = [batch[key].any(dim=1) for key in ("attention_mask", "de_attention_mask", "fr_attention_mask")]
        present = torch.stack(masks, dim=-1)[:, None, None].expand_as(sums)
        assert_close(sums[~present], torch.zeros_like(sums[~present]))
        if COMBINERS[combiner].joint_weights:
            assert_close(sums.sum(dim=-1), torch.ones_like(sums[..., 0]))
        else:
            assert_close(sums[present], torch.ones_like(sums[present]))
    assert (output.source_weights is not None) == COMBINERS[combiner].weighs_sources
    for weights in output.source_weights or ():
        assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))


def test_a_source_that_the_whole_batch_lacks_is_empty() -> None:
    weights = torch.rand(2, 3, 5)
    parts = split_by_source(weights, (2, 0, 3), NAMES)
    assert {name: tuple(part.shape) for name, part in parts.items()} == {
        "en": (2, 3, 2),
        "de": (2, 3, 0),
        "fr": (2, 3, 3),
    }


@pytest.mark.parametrize("lengths", [(2, 3), (2, 2, 2)])
def test_lengths_that_do_not_fit_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"source_lengths \[{lengths[0]}.* \(en, de, fr\) and sum .* attention, 5"):
        split_by_source(torch.rand(2, 3, 5), lengths, NAMES)


@pytest.fixture(scope="module")
def processor() -> MultiSourceProcessor:
    texts = [text for column in (*TEXTS.values(), TARGETS) for text in column if text]
    own = train_tokenizer(["ein Hund", "žluťoučký kůň"], "unigram", 270)
    return MultiSourceProcessor(train_tokenizer(texts, "bpe", 300), NAMES, {"de": own})


def aligned(processor: MultiSourceProcessor, example: int, **kwargs: Any) -> tuple[Tensor, TokenAttention]:
    batch = processor(**TEXTS, text_target=TARGETS, return_tensors="pt")
    columns = sum(batch[f"{prefix}input_ids"].shape[1] for prefix in ("", "de_", "fr_"))
    attention = torch.rand(3, 2, batch["labels"].shape[1], columns)
    return attention, attention_to_tokens(attention, batch, batch["labels"], processor, example, **kwargs)


@feature
def test_rows_and_columns_are_the_tokens_without_padding(processor: MultiSourceProcessor) -> None:
    for example in range(3):
        attention, tokens = aligned(processor, example)
        texts = {name: "".join(pieces) for name, pieces in tokens.source_tokens.items()}
        assert texts == {name: f"{column[example]}</s>" if column[example] else "" for name, column in TEXTS.items()}
        assert "".join(tokens.target_tokens) == f"{TARGETS[example]}</s>"
        texts_of_one: dict[str, Any] = {name: column[example] for name, column in TEXTS.items()}
        alone = processor(**texts_of_one, text_target=TARGETS[example])
        lengths = [len(alone[f"{prefix}input_ids"] or ()) for prefix in ("", "de_", "fr_")]
        assert [len(pieces) for pieces in tokens.source_tokens.values()] == lengths
        rows = len(alone["labels"])
        assert tokens.weights.shape == (2, rows, sum(lengths))
        start = 0
        for prefix, part in zip(("", "de_", "fr_"), tokens.by_source().values(), strict=True):
            width = part.shape[-1]
            assert_close(part, attention[example][:, :rows, start : start + width])
            start += processor(**TEXTS, return_tensors="pt")[f"{prefix}input_ids"].shape[1]


def test_padding_of_generated_ids_is_left_out_too(processor: MultiSourceProcessor) -> None:
    batch = processor(**TEXTS, text_target=TARGETS, return_tensors="pt")
    columns = sum(batch[f"{prefix}input_ids"].shape[1] for prefix in ("", "de_", "fr_"))
    ids = torch.where(batch["labels"] < 0, processor.pad_token_id, batch["labels"])
    attention, over = torch.rand(3, *ids.shape[1:], columns), torch.rand(3, *ids.shape[1:], 3)
    for example in range(3):
        found = attention_to_tokens(attention, batch, ids, processor, example, over)
        expected = attention_to_tokens(attention, batch, batch["labels"], processor, example, over)
        assert found.target_tokens == expected.target_tokens
        assert found.source_weights is not None and expected.source_weights is not None
        assert_close(found.weights, expected.weights)
        assert_close(found.source_weights, over[example][: len(found.target_tokens)])
        assert_close(found.source_weights, expected.source_weights)


def test_beam_search_pads_with_end_tokens_which_are_left_out(processor: MultiSourceProcessor) -> None:
    """Transformers does so if the id of the padding is 0."""
    batch = processor(**TEXTS, text_target=TARGETS, return_tensors="pt")
    columns = sum(batch[f"{prefix}input_ids"].shape[1] for prefix in ("", "de_", "fr_"))
    end = processor.tokenizer.eos_token_id
    ids = torch.nn.functional.pad(torch.where(batch["labels"] < 0, end, batch["labels"]), (0, 4), value=end)
    for example in range(3):
        found = attention_to_tokens(torch.rand(3, ids.shape[1], columns), batch, ids, processor, example)
        assert "".join(found.target_tokens) == f"{TARGETS[example]}</s>"
        assert found.weights.shape[0] == len(found.target_tokens)


def test_several_sequences_of_an_example_have_its_sources(processor: MultiSourceProcessor) -> None:
    batch = processor(**TEXTS, text_target=TARGETS, return_tensors="pt")
    columns = sum(batch[f"{prefix}input_ids"].shape[1] for prefix in ("", "de_", "fr_"))
    labels = batch["labels"].repeat_interleave(2, dim=0)
    attention = torch.rand(6, labels.shape[1], columns)
    for row in range(6):
        found = attention_to_tokens(attention, batch, labels, processor, row)
        one = attention_to_tokens(attention[row % 2 :: 2], batch, batch["labels"], processor, row // 2)
        assert (found.target_tokens, found.source_tokens) == (one.target_tokens, one.source_tokens)
        assert_close(found.weights, one.weights)
    for wrong in (attention[:3], attention[:5]):
        with pytest.raises(ValueError, match=rf"attention has {len(wrong)} rows and target_ids 6, for a batch of 3"):
            attention_to_tokens(wrong, batch, labels, processor)
    with pytest.raises(ValueError, match=r"target_ids 4, for a batch of 3"):
        attention_to_tokens(attention[:4], batch, labels[:4], processor)


def test_attention_of_another_batch_is_refused(processor: MultiSourceProcessor) -> None:
    batch = processor(en="a dog", de="ein Hund", text_target="pes", return_tensors="pt")
    with pytest.raises(
        ValueError, match=r"attention ends with \(4, 99\); \d+ target positions and \d+ positions of all"
    ):
        attention_to_tokens(torch.rand(1, 4, 99), batch, batch["labels"], processor)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "symbols"])  # which do not know most of it
def test_texts_of_tokens_join_to_the_sentence_and_keep_characters_whole(kind: str) -> None:
    tokenizer = train_tokenizer(["a dog sees a dog", "cats"], kind, 262)
    sentence = "dogs žluť 犬 🐕 costs $5"  # most of it byte by byte
    texts = token_texts(tokenizer, torch.tensor(tokenizer(sentence)["input_ids"]))
    assert "".join(texts) == f"{sentence}</s>"
    assert "\ufffd" not in "".join(texts)
    assert {"ž", "ť", "犬", "🐕", ""} <= {text.strip() for text in texts}


class ByteFallback:
    """Decodes all tokens of an incomplete character to one replacement character each, as tokenizers of Llama do."""

    def decode(self, ids: list[int], **_: Any) -> str:
        try:
            return bytes(ids).decode()
        except UnicodeDecodeError as error:
            return bytes(ids[: error.start]).decode() + "\ufffd" * (len(ids) - error.start)


def test_no_text_is_shown_twice_with_byte_fallback() -> None:
    class Whole(ByteFallback):
        def decode(self, ids: list[int], **_: Any) -> str:
            try:
                return bytes(ids).decode()
            except UnicodeDecodeError:
                return "\ufffd" * len(ids)

    for tokenizer in (ByteFallback(), Whole()):
        texts = token_texts(tokenizer, torch.tensor(list("日本語".encode())))
        assert texts == ["", "", "日", "", "", "本", "", "", "語"]


def test_half_a_character_at_the_end_is_shown(processor: MultiSourceProcessor) -> None:
    ids = processor.tokenizer("犬")["input_ids"]
    assert token_texts(processor.tokenizer, torch.tensor(ids[:-2]))[-1] == "\ufffd"
