"""Truncation as the tokenizer itself does it, and one tokenizer that several threads share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from threading import Barrier
from typing import Any

import pytest
from transformers import (
    BertTokenizer,
    ByT5Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
    RobertaTokenizer,
    T5Tokenizer,
    XLNetTokenizer,
)

from concurrent_calls import in_threads
from hf_multisource import MultiSourceProcessor
from hf_multisource.recipes.tokenization import train_tokenizer
from hf_multisource.text_encoding import TOKENIZER_LOCK, encode_texts
from kinds import mixed_processor

TEXTS = ["A boy plays.", "Two dogs </s> run <s> x [SEP] y", "", "  ", "a", "x " * 20, "</s>", "été [CLS] <pad> w"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
CHARACTERS = sorted({*"".join(TEXTS), "▁", "Ġ"})


def ids(*special: str) -> dict[str, int]:
    return {token: i for i, token in enumerate([*special, *CHARACTERS])}


def scores(*special: str) -> list[tuple[str, float]]:
    return [(token, -float(i)) for token, i in ids(*special).items()]


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "ours": lambda: train_tokenizer([*TEXTS, "<s>"], "bpe", 270, null_token="<NULL>"),
    "BERT": lambda: BertTokenizer(vocab=ids("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
    "RoBERTa": lambda: RobertaTokenizer(vocab=ids(*SPECIAL), merges=[]),
    "T5": lambda: T5Tokenizer(vocab=scores("<pad>", "</s>", "<unk>")),
    "XLNet": lambda: XLNetTokenizer(vocab=scores("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>")),
    "NLLB": lambda: NllbTokenizer(
        vocab=ids(*SPECIAL, "eng_Latn", "deu_Latn"), merges=[], src_lang="eng_Latn", tgt_lang="deu_Latn"
    ),
    "mBART": lambda: MBartTokenizer(vocab=scores(*SPECIAL, "en_XX", "de_DE"), src_lang="en_XX", tgt_lang="de_DE"),
    "ByT5": lambda: ByT5Tokenizer(),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("is_target", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("split", [False, True])
def test_texts_are_truncated_as_the_tokenizer_truncates_them(
    name: str, is_target: bool, side: str, split: bool
) -> None:
    """Also to fewer tokens than the special ones are, where fast tokenizers do not truncate."""
    tokenizer = TOKENIZERS[name]()
    tokenizer.truncation_side, tokenizer.split_special_tokens, tokenizer.model_max_length = side, split, 9
    stock = copy.deepcopy(tokenizer)
    key = "text_target" if is_target else "text"
    lengths = set()
    for max_length in (*range(14), 40, None):
        expected = stock(**{key: TEXTS}, truncation=True, max_length=max_length)["input_ids"]
        found = encode_texts(tokenizer, TEXTS, is_target=is_target, truncation=True, max_length=max_length)
        assert found == expected
        lengths |= set(map(len, found))
    assert {5, 9} <= lengths
    assert encode_texts(tokenizer, TEXTS, is_target=is_target) == stock(**{key: TEXTS})["input_ids"]


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_length must be at least 0; got -1\."):
        encode_texts(TOKENIZERS["ours"](), ["a"], truncation=True, max_length=-1)


def test_truncation_warns_of_no_long_texts(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = TOKENIZERS["ours"]()
    tokenizer.model_max_length = 3
    for max_length in (2, None):
        encode_texts(tokenizer, TEXTS, truncation=True, max_length=max_length)
    assert not caplog.text and not tokenizer.deprecation_warnings


@pytest.mark.parametrize("name", ["ours", "mBART"])
def test_concurrent_calls_with_other_lengths_do_not_disturb_each_other(name: str) -> None:
    processor = MultiSourceProcessor(TOKENIZERS[name](), ["en", "de"], {"de": TOKENIZERS["T5"]()})
    given: dict[str, Any] = {"en": "Two dogs run. " * 4, "de": "a boy plays " * 3}

    def call(max_length: int) -> dict[str, Any]:
        return dict(processor(**given, text_target="x y z " * 3, truncation=True, max_length=max_length))

    expected = [call(3 + i) for i in range(8)]
    assert len({str(one) for one in expected}) == 8

    def work(i: int, barrier: Barrier) -> int:
        barrier.wait()
        return sum(call(3 + (i + k) % 8) != expected[(i + k) % 8] for k in range(100))

    assert sum(in_threads(work)) == 0


def test_a_stored_truncation_is_left_behind_by_the_first_concurrent_calls() -> None:
    """Files of tokenizers may hold a truncation and a padding, which each first call takes away."""
    tokenizer = TOKENIZERS["ours"]()
    expected = tokenizer(TEXTS)["input_ids"]

    def work(i: int, barrier: Barrier) -> list[list[int]]:
        if i == 0:
            tokenizer.backend_tokenizer.enable_truncation(2)
            tokenizer.backend_tokenizer.enable_padding()
        barrier.wait()
        return encode_texts(tokenizer, TEXTS)

    for _ in range(30):
        assert all(found == expected for found in in_threads(work))


def test_the_null_token_is_one_token_in_concurrent_calls() -> None:
    """It is encoded with another `split_special_tokens` than the texts, which quote it here."""
    processor = MultiSourceProcessor(TOKENIZERS["ours"](), ["en", "de"], null_token="<NULL>")
    expected = dict(processor(en="a <NULL> b"))
    assert len(expected["de_input_ids"]) == 2 < len(expected["input_ids"])

    def work(i: int, barrier: Barrier) -> int:
        barrier.wait()
        return sum(dict(processor(en="a <NULL> b")) != expected for _ in range(100))

    assert sum(in_threads(work)) == 0


def test_ordinary_tokenizers_are_called_without_the_lock() -> None:
    """Threads would wait here for ever."""
    tokenizer = TOKENIZERS["ours"]()
    expected = encode_texts(tokenizer, TEXTS, truncation=True, max_length=4)
    with TOKENIZER_LOCK:
        found = in_threads(lambda i, barrier: encode_texts(tokenizer, TEXTS, truncation=True, max_length=4), number=2)
    assert found == [expected] * 2


def test_unreadable_pictures_are_all_counted() -> None:
    processor = mixed_processor("en", "image")

    def work(i: int, barrier: Barrier) -> None:
        barrier.wait()
        for _ in range(20):
            processor(en="A dog runs.", image=b"no picture", unreadable="absent")

    in_threads(work)
    assert processor.unreadable == {"image": 160}
