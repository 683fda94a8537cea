"""Every mode and option of `generate`, against what it has to find: with three sources, some of them absent."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE, WordLevel
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import GenerationConfig, PreTrainedTokenizerFast, TextIteratorStreamer, TextStreamer

from builders import END, EVERY_COMBINER, LSTM, NAMES, PAPER_COMBINERS, three_source_model
from builders import three_source_batch as batch
from reference import beam_search
from searches import START, generate, log_probabilities, next_scores, same, shared_model, texts_of

pytestmark = pytest.mark.pairs

Change = Callable[[tuple[int, ...], list[float]], list[float]]
"""From a text and the log-probabilities of what may follow to those that an option makes of them."""
LONGEST = 6
NEVER = -float("inf")
TILT = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))

each_combiner = pytest.mark.parametrize("combiner", [*EVERY_COMBINER, LSTM])
each_width = pytest.mark.parametrize("num_beams", [1, 4])
beams = pytest.mark.parametrize("num_beams", [4])
greedy = pytest.mark.parametrize("num_beams", [1])


def feature(name: str) -> pytest.MarkDecorator:
    """Names what a test proves."""
    return pytest.mark.feature("Generation", name)


def option(name: str, value: Any, change: Change) -> Any:
    """An option of `generate` and what it does to the probabilities."""
    return pytest.param({name: value}, change, id=name, marks=feature(name))


def unchanged(text: tuple[int, ...], scores: list[float]) -> list[float]:
    """No option."""
    return scores


def only(allowed: Collection[int], scores: list[float]) -> list[float]:
    """Forbid all other tokens."""
    return [score if token in allowed else NEVER for token, score in enumerate(scores)]


def check(
    combiner: str, num_beams: int, options: dict[str, Any], change: Change, ends: Collection[int] = (END,)
) -> None:
    """Assert that every example gets the texts of the naive search, with their scores if there are beams."""
    if num_beams > 1:
        options = {"num_return_sequences": num_beams, "early_stopping": True, **options}
    options = {"max_new_tokens": LONGEST, **options}
    texts, scores = generate(shared_model(combiner), batch(), ends, **options, num_beams=num_beams)
    assert len(texts) == 5 * num_beams
    for i in range(5):

        def ask(text: tuple[int, ...], i: int = i) -> list[float]:
            return change(text, next_scores(combiner, i)(text))

        expected = beam_search(ask, num_beams, 1.0, LONGEST, ends)
        rows = slice(i * num_beams, (i + 1) * num_beams)
        assert texts[rows] == [list(text) for text, _ in expected]
        if num_beams > 1:
            assert scores[rows].tolist() == pytest.approx([score for _, score in expected], abs=1e-4)


# Options that change what may follow


def tilt(ids: Tensor, scores: Tensor) -> Tensor:
    """A processor that looks at the text: the last token decides what is liked."""
    return scores + TILT[ids[:, -1]]


def tilted(text: tuple[int, ...], scores: list[float]) -> list[float]:
    return [score + bonus for score, bonus in zip(scores, TILT[text[-1] if text else START].tolist(), strict=True)]


def without_repeated_pairs(text: tuple[int, ...], scores: list[float]) -> list[float]:
    whole = (START, *text)
    seen = set(itertools.pairwise(whole))
    return [NEVER if (whole[-1], token) in seen else score for token, score in enumerate(scores)]


def without_bad_words(text: tuple[int, ...], scores: list[float]) -> list[float]:
    bad = {8, 14} | ({6} if text[-1:] == (15,) else set())
    return only(set(range(16)) - bad, scores)


def never_early(text: tuple[int, ...], scores: list[float]) -> list[float]:
    return only(set(range(16)) - {END}, scores) if len(text) < 4 else scores


def starts_with_7(text: tuple[int, ...], scores: list[float]) -> list[float]:
    return scores if text else [0.0 if token == 7 else NEVER for token in range(16)]


def ends_at_the_longest(text: tuple[int, ...], scores: list[float]) -> list[float]:
    return [0.0 if token == END else NEVER for token in range(16)] if len(text) == LONGEST - 1 else scores


def odd_then_even(text: Sequence[int], scores: list[float]) -> list[float]:
    return only({END, *range(3 + len(text) % 2, 16, 2)}, scores)


@each_combiner
@each_width
@pytest.mark.parametrize(
    ("options", "change"),
    [
        option("logits_processor", [tilt], tilted),
        option("no_repeat_ngram_size", 2, without_repeated_pairs),
        option("bad_words_ids", [[8], [14], [15, 6]], without_bad_words),
        option("min_new_tokens", 4, never_early),
        option("min_length", 5, never_early),  # the start counts
        option("forced_bos_token_id", 7, starts_with_7),
        option("forced_eos_token_id", END, ends_at_the_longest),
        option("suppress_tokens", [8, 14], lambda text, scores: only(set(range(16)) - {8, 14}, scores)),
        option(
            "begin_suppress_tokens",
            [8, END],
            lambda text, scores: scores if text else only(set(range(16)) - {8, END}, scores),
        ),
        option(
            "prefix_allowed_tokens_fn",
            lambda row, ids: [END, *range(3 + (len(ids) - 1) % 2, 16, 2)],
            odd_then_even,
        ),
    ],
)
def test_an_option_changes_what_may_follow(
    combiner: str, num_beams: int, options: dict[str, Any], change: Change
) -> None:
    check(combiner, num_beams, options, change)


@each_width
def test_the_options_are_needed(num_beams: int) -> None:
    """Guards the test above: some model must feel each option."""
    for change in (tilted, without_repeated_pairs, without_bad_words, never_early, starts_with_7, odd_then_even):
        felt = False
        for combiner, i in itertools.product(PAPER_COMBINERS, range(5)):

            def ask(
                text: tuple[int, ...], combiner: str = combiner, i: int = i, change: Change = change
            ) -> list[float]:
                return change(text, next_scores(combiner, i)(text))

            plain = beam_search(next_scores(combiner, i), num_beams, 1.0, LONGEST, {END})
            changed = beam_search(ask, num_beams, 1.0, LONGEST, {END})
            felt |= [text for text, _ in changed] != [text for text, _ in plain]
        assert felt


@feature("max_length")
@each_combiner
@each_width
def test_max_length_counts_the_start(combiner: str, num_beams: int) -> None:
    check(combiner, num_beams, {"max_length": LONGEST + 1, "max_new_tokens": None}, unchanged)


# What stops a text


LETTERS = {chr(ord("a") + token): token for token in range(16)}


@feature("stopping_criteria")
@each_combiner
@each_width
def test_a_stopping_criterion_ends_texts_one_by_one(combiner: str, num_beams: int) -> None:
    def says_8_or_14(ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return (ids[:, -1] == 8) | (ids[:, -1] == 14)

    check(combiner, num_beams, {"stopping_criteria": [says_8_or_14]}, unchanged, ends={END, 8, 14})


@feature("stop_strings")
@each_combiner
@each_width
def test_a_stop_string_ends_texts_one_by_one(combiner: str, num_beams: int) -> None:
    letters = Tokenizer(BPE(LETTERS, []))
    letters.decoder = Fuse()
    options = {"stop_strings": ["i", "o"], "tokenizer": PreTrainedTokenizerFast(tokenizer_object=letters)}
    check(combiner, num_beams, options, unchanged, ends={END, LETTERS["i"], LETTERS["o"]})


@feature("Several end tokens")
@each_combiner
@each_width
def test_every_end_token_ends_a_text(combiner: str, num_beams: int) -> None:
    check(combiner, num_beams, {"eos_token_id": [END, 8, 14]}, unchanged, ends={END, 8, 14})


# Drawing


@feature("Beam sampling")
@each_combiner
@beams
def test_beam_sampling_that_draws_the_likeliest_is_beam_search(
    combiner: str, num_beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def likeliest(chances: Tensor, num_samples: int) -> Tensor:
        torch.testing.assert_close(chances.sum(dim=-1), torch.ones(5))
        drawn.append(num_samples)
        return chances.topk(num_samples).indices

    monkeypatch.setattr(torch, "multinomial", likeliest)
    check(combiner, num_beams, {"do_sample": True}, unchanged)
    assert set(drawn) == {2 * num_beams}


@feature("Sampling")
@each_combiner
@greedy
def test_sampling_follows_the_probabilities_that_temperature_and_top_k_make(combiner: str, num_beams: int) -> None:
    search = {"do_sample": True, "num_return_sequences": 400, "max_new_tokens": 1, "temperature": 0.7, "top_k": 3}
    torch.manual_seed(3)
    texts, _ = generate(shared_model(combiner), batch(), **search, num_beams=num_beams)
    for i in range(5):
        logs = torch.tensor(next_scores(combiner, i)(()))
        kept = logs.topk(3).indices
        expected = torch.zeros(16).scatter(0, kept, (logs[kept] / 0.7).softmax(0))
        drawn = torch.tensor(texts[400 * i : 400 * (i + 1)])[:, 0]
        frequencies = torch.bincount(drawn, minlength=16) / 400
        assert not frequencies[expected == 0].any()
        assert (frequencies - expected).abs().max() < 0.1  # four standard deviations


# Guessing ahead


def steps_of(model: Any, inputs: dict[str, Tensor], **options: Any) -> tuple[list[list[int]], int]:
    """Texts, and how often the decoder ran."""
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1

    hook = model.model.decoder.register_forward_hook(count)
    texts = texts_of(model.generate(**inputs, max_new_tokens=LONGEST, **options))
    hook.remove()
    return texts, steps


@feature("Assisted decoding (one example at a time, as in Transformers)")
@each_combiner
@greedy
def test_assisted_decoding_is_greedy_search(combiner: str, num_beams: int) -> None:
    model, smaller = shared_model(combiner), three_source_model(combiner, decoder_layers=1).double()
    for i in range(5):
        plain, steps = steps_of(model, batch(examples=[i]), num_beams=num_beams)
        assert steps_of(model, batch(examples=[i]), assistant_model=smaller)[0] == plain
        twin = copy.deepcopy(model)
        found, fewer = steps_of(model, batch(examples=[i]), assistant_model=twin)
        assert found == plain
        assert fewer < steps or steps == 1  # what the twin guesses is right, so that a step confirms several tokens


@feature("Prompt lookup decoding (one example at a time, as in Transformers)")
@each_combiner
@greedy
def test_prompt_lookup_is_greedy_search(combiner: str, num_beams: int) -> None:
    saved = 0
    beginning = [2, 7, 7, 7, 15, 7, 7] if combiner == LSTM else [2, 8, 8, 8, 15, 14, 14]  # of which it says more
    for i in range(5):
        inputs = {**batch(examples=[i]), "decoder_input_ids": torch.tensor([beginning])}
        plain, steps = steps_of(shared_model(combiner), inputs, num_beams=num_beams)
        found, fewer = steps_of(shared_model(combiner), inputs, prompt_lookup_num_tokens=2, max_matching_ngram_size=1)
        assert found == plain
        saved += steps - fewer
    assert saved > 0


@feature("Streaming (greedy and sampling, as in Transformers)")
@each_combiner
@greedy
def test_the_pieces_of_a_stream_are_the_text(combiner: str, num_beams: int, capsys: pytest.CaptureFixture[str]) -> None:
    model = shared_model(combiner)
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(LETTERS, unk_token="a")))
    for i in range(5):
        inputs, search = batch(examples=[i]), {"max_new_tokens": LONGEST, "num_beams": num_beams}
        (ids,) = model.generate(**inputs, **search).tolist()
        expected = " ".join(chr(ord("a") + token) for token in ids[1:])
        pieces = TextIteratorStreamer(words, skip_prompt=True)
        model.generate(**inputs, **search, streamer=pieces)
        assert "".join(pieces) == expected
        model.generate(**inputs, **search, streamer=TextStreamer(words, skip_prompt=True))
        assert capsys.readouterr().out == expected + "\n"
        torch.manual_seed(i)
        (ids,) = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=True).tolist()
        torch.manual_seed(i)
        pieces = TextIteratorStreamer(words, skip_prompt=True)
        model.generate(**inputs, max_new_tokens=LONGEST, do_sample=True, streamer=pieces)
        assert "".join(pieces) == " ".join(chr(ord("a") + token) for token in ids[1:])


# What generation may start from


@feature("Decoder prompts, padded ones too")
@each_combiner
@each_width
def test_a_beginning_of_the_target_is_gone_on_with(combiner: str, num_beams: int) -> None:
    model, start = shared_model(combiner), torch.tensor([[2, 5, 6]]).expand(5, 3)
    search = {"num_beams": num_beams, "max_new_tokens": 4, **({"early_stopping": True} if num_beams > 1 else {})}
    texts, _ = generate(model, {**batch(), "decoder_input_ids": start}, **search)
    for i, text in enumerate(texts):

        def ask(text: tuple[int, ...], i: int = i) -> list[float]:
            return next_scores(combiner, i)((5, 6, *text))

        assert text == [5, 6, *beam_search(ask, num_beams, 1.0, 4, {END})[0][0]]


@feature("Decoder prompts, padded ones too")
@each_combiner
@each_width
def test_beginnings_of_different_lengths_are_padded_on_the_left(combiner: str, num_beams: int) -> None:
    """The start comes before the padding, and positions count the padding: both as in BART and Marian."""
    model = shared_model(combiner)
    beginnings = [[5], [5, 6], [5, 6, 7], [6], [7, 5]]
    mask = torch.tensor([[0] * (3 - len(given)) + [1] * len(given) for given in beginnings])
    options = {"num_beams": num_beams, "max_new_tokens": 4, **({"early_stopping": True} if num_beams > 1 else {})}
    for junk in (0, 9):
        start = torch.tensor([[junk] * (3 - len(given)) + given for given in beginnings])
        inputs = {**batch(), "decoder_input_ids": start, "decoder_attention_mask": mask}
        texts = [row[4:] for row in model.generate(**inputs, **options).tolist()]
        for i, given in enumerate(beginnings):
            encoded = model.get_encoder()(**batch(examples=[i]))

            @torch.no_grad()
            def ask(text: tuple[int, ...], i: int = i, given: list[int] = given, encoded: Any = encoded) -> list[float]:
                target = torch.tensor([[START, *[0] * (3 - len(given)), *given, *text]])
                seen = torch.tensor([[1, *mask[i].tolist(), *[1] * len(text)]])
                known = {"encoder_outputs": encoded, "decoder_input_ids": target, "decoder_attention_mask": seen}
                return list(log_softmax(model(**known).logits[0, -1], -1).tolist())

            expected, _ = beam_search(ask, num_beams, 1.0, 4, {END})[0]
            assert texts[i][: len(expected)] == list(expected)


@feature("encoder_outputs as input, which generate does not change")
@each_combiner
@each_width
def test_encoded_sources_are_used_and_left_as_they_were(combiner: str, num_beams: int) -> None:
    model = shared_model(combiner)
    expected = generate(model, batch(), num_beams=num_beams)
    with torch.no_grad():
        encoded = model.get_encoder()(**batch())
    before = copy.deepcopy(encoded)
    for _ in range(2):
        same(generate(model, {"encoder_outputs": encoded}, num_beams=num_beams), expected)
    assert list(encoded) == list(before)
    for name, value in before.items():
        assert torch.equal(encoded[name], value) if isinstance(value, Tensor) else encoded[name] == value


@feature("inputs_embeds, of every source")
@each_combiner
@each_width
def test_embedded_sources_generate_what_their_ids_do(combiner: str, num_beams: int) -> None:
    model, inputs = shared_model(combiner), batch()
    expected = generate(model, inputs, num_beams=num_beams)
    for name in NAMES:
        prefix = "" if name == "en" else f"{name}_"
        table = model.get_encoder().sources[name].get_input_embeddings()
        inputs[f"{prefix}inputs_embeds"] = table(inputs.pop(f"{prefix}input_ids"))
    same(generate(model, inputs, num_beams=num_beams), expected)


# Caches


@feature("Caches: dynamic, static, none")
@each_combiner
@each_width
@pytest.mark.parametrize("cache", [{"use_cache": False}, *({"cache_implementation": c} for c in ("static", "dynamic"))])
def test_a_cache_changes_nothing(combiner: str, num_beams: int, cache: dict[str, Any]) -> None:
    check(combiner, num_beams, cache, unchanged)


# What comes back


@feature("n-best lists with scores, compute_transition_scores")
@each_combiner
@beams
@pytest.mark.parametrize("penalty", [1.0, 0.3])
def test_scores_are_the_sums_of_the_steps_over_the_length(combiner: str, num_beams: int, penalty: float) -> None:
    model = shared_model(combiner)
    search = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_new_tokens": LONGEST}
    output = model.generate(
        **batch(), **search, length_penalty=penalty, output_scores=True, return_dict_in_generate=True
    )
    steps = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    texts = texts_of(output.sequences)
    lengths = torch.tensor([len(text) for text in texts])
    torch.testing.assert_close(steps.sum(dim=1) / lengths**penalty, output.sequences_scores)
    for i in range(5):
        rows = slice(num_beams * i, num_beams * (i + 1))
        assert len({tuple(text) for text in texts[rows]}) == num_beams
        assert output.sequences_scores[rows].tolist() == sorted(output.sequences_scores[rows].tolist(), reverse=True)
        sums = log_probabilities(model, batch(examples=[i]), texts[rows])
        assert steps[rows].sum(dim=1).tolist() == pytest.approx(sums, abs=1e-4)


@feature("output_scores, output_logits, return_dict_in_generate")
@each_combiner
@each_width
def test_logits_and_scores_are_those_of_the_model(combiner: str, num_beams: int) -> None:
    model = shared_model(combiner)
    search = {"num_beams": num_beams, "max_new_tokens": LONGEST, "logits_processor": [tilt]}
    output = model.generate(**batch(), **search, output_scores=True, output_logits=True, return_dict_in_generate=True)
    assert torch.equal(output.sequences, model.generate(**batch(), **search))
    with torch.no_grad():
        expected = model(**batch(), decoder_input_ids=output.sequences[:, :-1]).logits.float()
    for i, text in enumerate(texts_of(output.sequences)):
        for step in range(len(text)):
            row = i if num_beams == 1 else int(output.beam_indices[i, step])
            torch.testing.assert_close(output.logits[step][row], expected[i, step], atol=1e-4, rtol=1e-4)
            scores = expected[i, step] if num_beams == 1 else expected[i, step].log_softmax(-1)
            scores = scores + TILT[text[step - 1] if step else START]
            torch.testing.assert_close(output.scores[step][row], scores, atol=1e-4, rtol=1e-4)


@feature("num_return_sequences")
@each_combiner
@each_width
def test_every_example_gets_as_many_texts_as_asked_for(combiner: str, num_beams: int) -> None:
    model, search = shared_model(combiner), {"do_sample": num_beams == 1, "num_beams": num_beams, "max_new_tokens": 4}
    torch.manual_seed(0)
    found = model.generate(**batch(), **search, num_return_sequences=3)
    repeated = {key: value.repeat_interleave(3, dim=0) for key, value in batch().items()}
    if num_beams == 1:  # as if each example came three times
        torch.manual_seed(0)
        assert torch.equal(found, model.generate(**repeated, **search))
    else:
        (best, _), (all_four, _) = (
            generate(model, batch(), **search),
            generate(model, batch(), **search, num_return_sequences=4),
        )
        texts = texts_of(found)
        assert texts[::3] == best
        assert [texts[i : i + 3] for i in range(0, 15, 3)] == [all_four[i : i + 3] for i in range(0, 20, 4)]


@feature("generation_config, saved and loaded")
@each_combiner
@each_width
def test_settings_are_saved_with_the_model(combiner: str, num_beams: int, tmp_path: Path) -> None:
    model = three_source_model(combiner)
    settings = {"num_beams": num_beams, "max_new_tokens": 5, "forced_bos_token_id": 7, "min_new_tokens": 2}
    expected = model.generate(**batch(), **settings)
    assert not torch.equal(expected, model.generate(**batch(), max_new_tokens=5))
    model.generation_config.update(**settings)
    model.save_pretrained(tmp_path)
    loaded: Any = type(model).from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(**batch()), expected)


@each_width
@pytest.mark.parametrize("combiner", ["serial", LSTM])
@pytest.mark.parametrize("given", ["keyword", "generation_config"])
def test_max_new_tokens_replaces_a_stored_max_length_without_a_warning(
    combiner: str, num_beams: int, given: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training runs store `max_length` with the model."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    settings: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": 5, "min_new_tokens": 5}
    model = three_source_model(combiner)
    expected = model.generate(**batch(), **settings)
    model.generation_config.max_length = 3
    options = settings if given == "keyword" else {"generation_config": GenerationConfig(**settings)}
    assert torch.equal(model.generate(**batch(), **options), expected) and expected.shape[1] == 6
    assert "max_length" not in caplog.text
    assert model.generate(**batch(), num_beams=num_beams).shape[1] <= 3
    assert model.generation_config.max_length == 3


def test_two_lengths_in_one_call_are_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    three_source_model("serial").generate(**batch(), max_new_tokens=4, max_length=9)
    assert "Both `max_new_tokens` (=4) and `max_length`(=9)" in caplog.text
