"""Every hypothesis of every search has the placeholders that its text must have, and is the best of those that do."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from builders import END, LSTM, PAPER_COMBINERS
from builders import three_source_batch as batch
from hf_multisource import MultiSourceEnsemble
from hf_multisource.data.placeholder_constraint import (
    FORBIDDEN_SCORE,
    PlaceholderConstraint,
    placeholder_constraint,
)
from hf_multisource.data.placeholders import MASK_TOKENS, OPTIONAL_TOKENS, PlaceholderTable, mask_texts, restore_text
from hf_multisource.recipes.tokenization import MIN_VOCAB_SIZE, train_tokenizer
from reference import beam_search, normalized_beam
from searches import SEARCHES, START, generate, log_probabilities, next_scores, shared_model, texts_of

IDS = {"<ph1>": 5, "<ph2>": 8, "<open1>": 11, "<close1>": 14, "<open2>": 6, "<close2>": 10}
"""Mask tokens among the 16 tokens of the tiny models."""
NAMES = {number: token for token, number in IDS.items()}
NEVER = -math.inf
Rule = Callable[[tuple[int, ...], list[float]], list[float]]


def table(tokens: str, chain: Sequence[str] = ()) -> PlaceholderTable:
    counts = {token: tokens.split().count(token) for token in tokens.split()}
    return PlaceholderTable({token: ("x",) * count for token, count in counts.items()}, chain=tuple(chain))


TABLES = [
    table("<ph1> <ph1> <ph2>"),
    table("<open1> <close1>"),
    None,
    table("<ph1> <open1> <ph2> <close1>", chain=["<ph2>", "<open1>", "<ph1>"]),
    table("<open1> <open2> <close1> <close2>"),
]
"""What the texts of the five examples must have."""


def is_well_formed(order: Sequence[str], chain: Sequence[str]) -> bool:
    """Whether tags are closed from the inside, and the tokens of a chain stand in its order."""
    opened = []
    for token in order:
        if token.startswith("<open"):
            opened.append(token)
        elif token.startswith("<close") and (not opened or opened.pop() != token.replace("close", "open")):
            return False
    return [token for token in order if token in chain] == [*chain]


def orders_of(needed: PlaceholderTable | None) -> set[tuple[str, ...]]:
    """All orders in which the mask tokens of a text may stand, found by trying all."""
    if needed is None:
        return {()}
    tokens = [token for token, count in needed.counts.items() for _ in range(count)]
    return {order for order in itertools.permutations(tokens) if is_well_formed(order, needed.chain)}


def masks_in(text: Sequence[int]) -> tuple[str, ...]:
    return tuple(NAMES[token] for token in text if token in NAMES)


def naive_rule(needed: PlaceholderTable | None, longest: int) -> Rule:
    """Allow what begins a text that has its placeholders before it is too long."""
    orders = orders_of(needed)

    def may_follow(text: tuple[int, ...], token: int) -> bool:
        if token == END:
            return masks_in(text) in orders
        begun = masks_in((*text, token))
        room = longest - len(text) - 1

        def fits(missing: int) -> bool:
            """With an end, or without one where the text cannot have one: then all its tokens are placeholders."""
            return missing == 0 or missing < room or (missing == room and len(text) + 1 == len(begun))

        return any(order[: len(begun)] == begun and fits(len(order) - len(begun)) for order in orders)

    def change(text: tuple[int, ...], scores: list[float]) -> list[float]:
        return [score if may_follow(text, token) else NEVER for token, score in enumerate(scores)]

    return change


def constraint(longest: int, tables: Sequence[PlaceholderTable | None] = TABLES) -> list[PlaceholderConstraint]:
    return [PlaceholderConstraint(tables, IDS, [END], longest)]


def expected_beams(
    combiner: str, example: int, longest: int, search: Callable[[Callable[[tuple[int, ...]], list[float]]], Any]
) -> list[tuple[list[int], float]]:
    rule = naive_rule(TABLES[example], longest)
    found = search(lambda text: rule(text, next_scores(combiner, example)(text)))
    return [([*text], score) for text, score in found]


@pytest.mark.parametrize("combiner", [*PAPER_COMBINERS, LSTM])
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("longest", [4, 7])
def test_greedy_and_beam_search_are_the_naive_search_among_the_allowed_texts(
    combiner: str, num_beams: int, longest: int
) -> None:
    options = {"num_return_sequences": num_beams, "early_stopping": True} if num_beams > 1 else {}
    texts, scores = generate(
        shared_model(combiner),
        batch(),
        num_beams=num_beams,
        max_new_tokens=longest,
        logits_processor=constraint(longest),
        **options,
    )
    for i in range(5):
        expected = expected_beams(combiner, i, longest, lambda ask: beam_search(ask, num_beams, 1.0, longest, {END}))
        rows = slice(i * num_beams, i * num_beams + len(expected))
        assert texts[rows] == [text for text, _ in expected]
        if num_beams > 1:
            assert scores[rows].tolist() == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("longest", [5, 7])
def test_with_length_normalization_it_is_the_naive_search(longest: int) -> None:
    options: Any = {"num_beams": 3, "num_return_sequences": 3, "length_normalization": 1.0, "max_new_tokens": longest}
    texts, _ = generate(shared_model("serial"), batch(), logits_processor=constraint(longest), **options)
    for i in range(5):
        expected = expected_beams("serial", i, longest, lambda ask: normalized_beam(ask, 3, 1.0, longest, {END}))
        assert texts[3 * i : 3 * i + len(expected)] == [text for text, _ in expected]


@pytest.mark.parametrize("example", range(5))
def test_a_wide_beam_finds_the_best_of_all_texts_that_have_their_placeholders(example: int) -> None:
    """Of all sequences of a few tokens, by teacher forcing."""
    model, longest, needed = shared_model("serial"), 5, TABLES[example]
    masks = [IDS[token] for token in (needed.counts if needed else ["<ph1>", "<open1>", "<close1>"])]
    words = [4, 7, *masks]
    whole = [text for length in range(longest + 1) for text in itertools.product(words, repeat=length)]
    every = [text if len(text) == longest else (*text, END) for text in whole]
    last_places = {(mask,) for mask in masks}  # where a placeholder would leave no room for the end
    texts = [text for text in every if masks_in(text) in orders_of(needed) and text[longest - 1 :] not in last_places]
    assert len(every) > 2 * len(texts)
    inputs = batch(examples=[example])
    totals = log_probabilities(model, inputs, texts)
    expected, text = max((total / len(text), text) for text, total in zip(texts, totals, strict=True))
    found, scores = generate(
        model,
        inputs,
        num_beams=len(texts),  # no more of their beginnings can differ
        early_stopping="never",
        max_new_tokens=longest,
        suppress_tokens=[token for token in range(16) if token not in (*words, END)],
        logits_processor=constraint(longest, [needed]),
    )
    assert found == [[*text]]
    assert scores.item() == pytest.approx(expected, abs=1e-4)


MODES: Mapping[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True},
    "top_k": {"do_sample": True, "top_k": 1, "num_return_sequences": 2},
    "repeated": {"num_beams": 3, "num_return_sequences": 3, "fold_beams": False},
    "shortlist": {"num_beams": 3, "shortlist": torch.tensor([END, 4, 7, 9, *NAMES])},
    "shortlist without them": {"num_beams": 3, "shortlist": torch.tensor([END, 4, 7, 9])},
    "no repetition": {"num_beams": 3, "no_repeat_ngram_size": 1},
    "forced end": {"num_beams": 3, "forced_eos_token_id": END},
    **SEARCHES,
}


def check_all(texts: Sequence[Sequence[int]], tables: Sequence[PlaceholderTable | None]) -> None:
    assert len(texts) % len(tables) == 0
    number = len(texts) // len(tables)
    for i, text in enumerate(texts):
        assert masks_in(text) in orders_of(tables[i // number]), (i, text)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("longest", [4, 5, 12])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_hypothesis_of_every_search_has_its_placeholders(mode: str, longest: int, seed: int) -> None:
    torch.manual_seed(seed)
    tables = random.Random(seed).sample(TABLES, k=len(TABLES))
    search = {"max_new_tokens": longest, "do_sample": False, **MODES[mode]}
    ids = shared_model("serial").generate(**batch(), **search, logits_processor=constraint(longest, tables))
    check_all(texts_of(ids), tables)


@pytest.mark.parametrize(
    "options",
    [{}, {"length_normalization": 1.0}, {"early_stopping": True}, {"do_sample": True}, {"length_penalty": 0.0}],
)
@pytest.mark.parametrize(
    "needed", [table("<ph1>"), table("<ph1> <ph2>", chain=["<ph1>", "<ph2>"]), table("<ph1> <ph2>")]
)
def test_where_fewer_texts_are_possible_than_asked_for_the_others_are_empty_beams(
    options: dict[str, Any], needed: PlaceholderTable
) -> None:
    longest = sum(needed.counts.values())
    output = shared_model("serial").generate(
        **batch(),
        **{"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": longest, "do_sample": False, **options},
        logits_processor=constraint(longest, [needed] * 5),
        return_dict_in_generate=True,
        output_scores=True,
    )
    real = output.sequences[output.sequences_scores > -1e8]
    assert len(real) == 5 * len(orders_of(needed))
    check_all(texts_of(real), [needed] * 5)


def test_without_the_constraint_hypotheses_lack_them() -> None:
    """Guards the test above."""
    texts = texts_of(shared_model("serial").generate(**batch(), num_beams=3, max_new_tokens=12))
    assert sum(masks_in(text) not in orders_of(needed) for text, needed in zip(texts, TABLES, strict=True)) > 1


@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_ensemble_writes_them_too(num_beams: int) -> None:
    ensemble: Any = MultiSourceEnsemble([shared_model("serial"), shared_model(LSTM)])
    search = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_new_tokens": 6}
    check_all(texts_of(ensemble.generate(**batch(), **search, logits_processor=constraint(6))), TABLES)


def test_a_beginning_of_the_target_counts() -> None:
    start = torch.tensor(
        [[START, IDS["<ph1>"]], [START, IDS["<open1>"]], [START, 4], [START, IDS["<ph2>"]], [START, 7]]
    )
    processor = PlaceholderConstraint(TABLES, IDS, [END], 5, prompt_length=2)
    search = {"decoder_input_ids": start, "num_beams": 3, "max_new_tokens": 5}
    check_all(texts_of(shared_model("serial").generate(**batch(), **search, logits_processor=[processor])), TABLES)
    processor = PlaceholderConstraint([table("<ph1>")], IDS, [END], 3, prompt_length=2)
    assert scored([[START, 4]], processor)[0, 4] == 0  # three tokens may still come
    assert scored([[START, 4, 4]], processor)[0, 4] == NEVER  # the placeholder and the end have room
    assert scored([[START, 4, 4, IDS["<ph1>"]]], processor)[0, [4, END]].tolist() == [0, 0]


def test_assisted_decoding_writes_them_too() -> None:
    for i, needed in enumerate(TABLES):
        options: Any = {"max_new_tokens": 8, "assistant_model": shared_model("serial")}
        one = shared_model("parallel").generate(
            **batch(examples=[i]), logits_processor=constraint(8, [needed]), **options
        )
        check_all(texts_of(one), [needed])


# The processor alone


def scored(
    input_ids: Sequence[Sequence[int]], processor: PlaceholderConstraint, scores: Tensor | None = None
) -> Tensor:
    ids: Any = torch.tensor(input_ids)
    given_scores: Any = torch.zeros(len(ids), 16) if scores is None else scores
    return processor(ids, given_scores)


@given(
    text=st.lists(st.integers(2, 15), max_size=6),
    example=st.integers(0, 4),
    longest=st.integers(4, 9),
    rows=st.integers(1, 3),
)
def test_what_is_allowed_follows_from_the_text_alone(text: list[int], example: int, longest: int, rows: int) -> None:
    """In whatever row: the rule of all possible orders, for each beginning that it allows."""
    rule = naive_rule(TABLES[example], longest)
    kept: tuple[int, ...] = ()
    for token in [*text, 0]:
        expected = torch.tensor(rule(kept, [0.0] * 16))
        ids = [[START, *kept]] * (rows * 5)
        found = scored(ids, constraint(longest)[0])[example * rows : (example + 1) * rows]
        assert torch.equal(found, expected.expand(rows, -1))
        if len(kept) + 1 < longest and expected[token] > NEVER:
            kept = (*kept, token)


def test_escape_sequences_may_be_left_out_but_are_not_repeated() -> None:
    ids = {"<ph1>": 5, "<char1>": 8, "<char2>": 6}
    processor = PlaceholderConstraint([table("<ph1> <char1>")], ids, [END], 4)
    assert scored([[START, 5]], processor)[0, [END, 4, 5, 8, 6]].tolist() == [0, 0, NEVER, 0, NEVER]
    assert scored([[START, 8]], processor)[0, [END, 4, 5, 8]].tolist() == [NEVER, 0, 0, NEVER]
    # Only what must come has room, and nothing else may take its place.
    assert scored([[START, 4, 4]], processor)[0, [END, 4, 5, 8]].tolist() == [NEVER, NEVER, 0, NEVER]
    only = PlaceholderConstraint([table("<char1> <char1> <char1>")], ids, [END], 2)  # longer than the text may be
    assert scored([[START]], only)[0, [END, 4, 8]].tolist() == [0, 0, 0]


def test_rows_that_are_finished_keep_their_scores() -> None:
    ids = [[START, 4, END, 0], [START, 5, 5, 8], [START, 4, 4, 4]]
    tables = [table("<ph1>"), table("<ph1> <ph1> <ph2>"), table("<ph1>")]
    found = scored(ids, PlaceholderConstraint(tables, IDS, [END], 9), torch.arange(48.0).view(3, 16))
    assert torch.equal(found[0], torch.arange(16.0))
    assert found[1, END] == 17
    assert found[2, END] == NEVER


def test_a_model_may_start_with_the_end_token() -> None:
    assert scored([[END]], PlaceholderConstraint([table("<ph1>")], IDS, [END], 9))[0, END] == NEVER


def test_what_another_option_forbids_is_written_if_it_must_be() -> None:
    scores = torch.zeros(1, 16)
    scores[0, IDS["<ph1>"]] = NEVER
    ids = [[START, 4]]
    free = scored(ids, PlaceholderConstraint([table("<ph1>")], IDS, [END], 9), scores)
    assert free[0, IDS["<ph1>"]] == NEVER
    forced = scored(ids, PlaceholderConstraint([table("<ph1>")], IDS, [END], 2), scores)
    assert forced[0, IDS["<ph1>"]] == FORBIDDEN_SCORE
    assert (forced > NEVER).sum() == 1


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ([], {}, "tables is empty"),
        (TABLES, {"max_new_tokens": 3}, "max_new_tokens is 3, but the text of example 3 must have 4 placeholders"),
        (TABLES, {"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
        ([None, table("<ph9>")], {}, "token_ids has no id of <ph9>, which the text of example 1 must have"),
    ],
)
def test_what_cannot_be_written_is_refused(tables: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlaceholderConstraint(tables, **{"token_ids": IDS, "end_token_ids": [END], "max_new_tokens": 9, **options})


def test_rows_and_vocabularies_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 3 rows for 2 tables"):
        scored([[START]] * 3, PlaceholderConstraint([None, None], IDS, [END], 9))
    with pytest.raises(ValueError, match=r"scores for 12 tokens, but a mask token has the id 14"):
        scored([[START]], PlaceholderConstraint([None], IDS, [END], 9), torch.zeros(1, 12))


# With texts and a tokenizer


def test_from_texts_to_texts() -> None:
    size = MIN_VOCAB_SIZE + len(MASK_TOKENS) + 20
    tokenizer: Any = train_tokenizer(["ein Hund rennt", "a dog runs"], "bpe", size, mask_tokens=True)
    rows = [
        mask_texts({"en": "Open <b>%1$S</b> at { $time } ", "de": "<b>%1$S</b> um { $time } öffnen"}),
        mask_texts({"en": "Close"}),
        mask_texts({"en": "%s: %d%%", "cs": "%2$d %1$s %%"}, "printf"),
    ]
    tables = [row.tables["en"] for row in rows]
    (processor,) = placeholder_constraint(tables, tokenizer, END, 20)
    generator = torch.Generator().manual_seed(0)
    ids: Any = torch.full((3, 1), START)
    for _ in range(20):
        scores: Any = torch.randn(3, len(tokenizer), generator=generator)
        ids = torch.cat([ids, processor(ids, scores).argmax(dim=1, keepdim=True)], dim=1)
    texts = [tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in ids[:, 1:]]
    for text, needed in zip(texts, tables, strict=True):
        restored = restore_text(text, needed)
        required = [ones for token, ones in needed.texts.items() if token not in OPTIONAL_TOKENS]
        assert all(restored.count(one) >= len(ones) for ones in required for one in ones)
        assert restored.endswith(needed.end)


def test_a_tokenizer_without_mask_tokens_is_refused() -> None:
    tokenizer = train_tokenizer(["ein Hund rennt"], "bpe", MIN_VOCAB_SIZE)
    with pytest.raises(ValueError, match="the tokenizer has no token <ph1>; call add_mask_tokens"):
        placeholder_constraint([None], tokenizer, END, 20)
