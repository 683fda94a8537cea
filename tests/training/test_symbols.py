"""Text that is already segmented: one token a symbol, and nothing else is done to it; unknown symbols are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_multisource import MultiSourceProcessor
from hf_multisource.cli.score import main as score_main
from hf_multisource.cli.tokenizer import main as tokenizer_main
from hf_multisource.data.files import read_lines
from hf_multisource.data.rows import Row
from hf_multisource.recipes.tokenization import SPECIAL_TOKENS, find_unknown, train_tokenizer, unknown_note
from runs import make_folder, read_json, train_at, write_lines
from scored import OPTIONS

WORDS = ["ɛ̃ s i t a s j ɔ̃", "oː t ˨˩", "t͡ʃ a k ou̯ ˥", "ʑ ̥ i̯ã ˨˧"]
# No white space, no surrogates: everything else may be in a symbol, special tokens and lone combining marks too.
SYMBOLS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=4),
    st.sampled_from(["e\u0301", "é", "▁a", "Ġ", "##x", "ﬁ", "A"]),
).filter(lambda symbol: symbol not in SPECIAL_TOKENS)


def tokenizer_of(*texts: str, **options: Any) -> PreTrainedTokenizerFast:
    return train_tokenizer(texts, "symbols", options.pop("vocab_size", 8000), **options)


def test_a_symbol_of_several_code_points_is_one_token() -> None:
    tokenizer = tokenizer_of(*WORDS)
    for word in WORDS:
        assert tokenizer.tokenize(word) == word.split()
        ids = tokenizer(word)["input_ids"]
        assert len(ids) == len(word.split()) + 1 and ids[-1] == tokenizer.eos_token_id
    assert len(tokenizer) == len(SPECIAL_TOKENS) + len({symbol for word in WORDS for symbol in word.split()})


@given(words=st.lists(st.lists(SYMBOLS, min_size=1, max_size=6), min_size=1, max_size=4))
def test_decoding_gives_the_blank_separated_text_back(words: list[list[str]]) -> None:
    texts = [" ".join(word) for word in words]
    tokenizer = tokenizer_of(*texts)
    ids = tokenizer(texts)["input_ids"]
    assert [len(row) - 1 for row in ids] == [len(word) for word in words]
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == texts
    assert not any(tokenizer.unk_token_id in row for row in ids)


def test_symbols_are_neither_composed_nor_lowered_nor_split() -> None:
    tokenizer = tokenizer_of("é e\u0301 A a b, ,")
    ids = tokenizer("é e\u0301 A a b, ,", add_special_tokens=False)["input_ids"]
    assert len(set(ids)) == 6
    with pytest.raises(ValueError, match=r"^lowercase is not allowed with kind symbols: symbols are taken as"):
        tokenizer_of("a", lowercase=True)


def test_several_blanks_count_as_one() -> None:
    tokenizer = tokenizer_of("a b")
    assert tokenizer(" a  b\t a ")["input_ids"] == tokenizer("a b a")["input_ids"]


def test_an_unknown_symbol_is_one_unknown_token() -> None:
    tokenizer = tokenizer_of("a b")
    a, unknown, b, end = tokenizer("a kʷ b")["input_ids"]
    assert unknown == tokenizer.unk_token_id
    assert [a, b, end] == tokenizer("a b")["input_ids"]


def test_a_symbol_that_is_spelled_like_a_special_token_is_an_unknown_symbol() -> None:
    tokenizer = tokenizer_of("a </s> b <NULL> x</s>", null_token="<NULL>")
    unknown = tokenizer.unk_token_id
    ids = tokenizer("a </s> <NULL> <pad> b", add_special_tokens=False)["input_ids"]
    assert ids[1:4] == [unknown] * 3 and unknown not in (ids[0], ids[4])
    assert tokenizer.decode(tokenizer("x</s> a")["input_ids"], skip_special_tokens=True) == "x</s> a"
    assert tokenizer("<NULL>", split_special_tokens=False)["input_ids"] == [4, tokenizer.eos_token_id]


def test_frequent_symbols_come_first_and_the_size_is_an_upper_bound(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["b b b a a c d"]
    assert tokenizer_of(*texts).convert_ids_to_tokens(list(range(8))) == [*SPECIAL_TOKENS, "b", "a", "c", "d"]
    assert capsys.readouterr().out == ""
    small = tokenizer_of(*texts, vocab_size=6)
    assert small.convert_ids_to_tokens(list(range(len(small)))) == [*SPECIAL_TOKENS, "b", "a"]
    assert capsys.readouterr().out == "note: vocab_size 6 leaves out 2 of the 4 symbols, which become <unk>: c, d\n"
    with pytest.raises(ValueError, match="vocab_size is 4, but must be at least 5: 4 special tokens and one more"):
        tokenizer_of(*texts, vocab_size=4)
    with pytest.raises(ValueError, match="there is no text to train the tokenizer on"):
        tokenizer_of(" ", "</s>")


def test_the_tokenizer_travels_alone_and_in_a_processor(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(*WORDS, null_token="<NULL>")
    tokenizer.save_pretrained(tmp_path / "alone")
    processor = MultiSourceProcessor(
        tokenizer, ["x", "y"], {"y": tokenizer_of("q w", null_token="<NULL>")}, null_token="<NULL>"
    )
    processor.save_pretrained(tmp_path / "both")
    assert (tmp_path / "alone" / "tokenizer.json").is_file()
    loaded = AutoTokenizer.from_pretrained(tmp_path / "alone")
    again = MultiSourceProcessor.from_pretrained(tmp_path / "both")
    for own in (loaded, again.tokenizer):
        assert own(WORDS)["input_ids"] == tokenizer(WORDS)["input_ids"]
        assert own.batch_decode(own(WORDS)["input_ids"], skip_special_tokens=True) == WORDS
        assert own("a </s>")["input_ids"] == tokenizer("a </s>")["input_ids"]
    values: dict[str, Any] = {"x": ["s i", None], "y": [None, "w q"], "text_target": WORDS[:2]}
    assert again(**values) == processor(**values)
    assert again(**values)["y_input_ids"][0] == [4, tokenizer.eos_token_id]


def test_the_command_makes_joint_and_separate_vocabularies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in {"x": ["a ɛ̃", ""], "y": ["b", "c"], "z": ["ɛ̃", "z"]}.items():
        write_lines(tmp_path / f"train.{name}", words)
    arguments = [str(tmp_path), "--sources", "x", "y", "--target", "z", "--kind", "symbols"]
    tokenizer_main([*arguments, "--out", str(tmp_path / "joint")])
    assert capsys.readouterr().out == f"{tmp_path / 'joint'}: symbols, 9 tokens, from 5 sentences\n"
    tokenizer_main([*arguments, "--separate", "--out", str(tmp_path / "own")])
    sizes = {name: len(AutoTokenizer.from_pretrained(tmp_path / "own" / name)) - 4 for name in ("x", "y", "target")}
    assert sizes == {"x": 2, "y": 2, "target": 2}


def test_unknown_symbols_are_counted_by_source(capsys: pytest.CaptureFixture[str]) -> None:
    processor = MultiSourceProcessor(tokenizer_of("a b"), ["x", "y"], {"y": tokenizer_of("c")})
    rows: list[Row] = [{"x": "a q q", "y": None, "z": "a"}, {"x": "b w", "y": "c", "z": "kʷ b </s>"}]
    found = find_unknown(processor, rows, "z")
    assert found == {"x": {"q": 2, "w": 1}, "z": {"kʷ": 1, "</s>": 1}}
    assert unknown_note("dev", found) == (
        "note: the tokenizer does not know these symbols of split 'dev': x: 3 (q, w); z: 2 (kʷ, </s>)"
    )
    assert find_unknown(processor, rows[:1], "y") == {"x": {"q": 2}}
    assert unknown_note("dev", {}) == ""
    many = {"x": {str(i): 1 for i in range(14)}}
    assert unknown_note("dev", many).endswith("x: 14 (0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 4 more)")


def test_a_run_on_symbols_reports_what_is_unknown_in_dev_and_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path)
    text = folder / "text"
    for split in ("train", "dev"):
        for name in ("en", "de", "cs"):
            path = text / f"{split}.{name}"
            lines = [" ".join(line.replace(" ", "")) for line in read_lines(path)]
            write_lines(path, [f"{lines[0]} ø̃", *lines[1:]] if (split, name) == ("dev", "en") else lines)
    for name in ("en", "de", "cs"):
        write_lines(text / f"test.{name}", [*read_lines(text / f"train.{name}")[1:5], "kʷ a" if name == "cs" else "p"])
    run = train_at(folder, kind="symbols", separate=True)
    shown = capsys.readouterr().out
    assert "note: the tokenizer does not know these symbols of split 'dev': en: 1 (ø̃)\n" in shown
    vocabulary = json.loads((run / "de_tokenizer" / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    assert {"ü", "J"} < set(vocabulary) and "ě" not in vocabulary
    score_main([str(run), *OPTIONS])
    assert "note: the tokenizer does not know these symbols of split 'test': cs: 1 (kʷ)" in capsys.readouterr().out
    report = read_json(run / "scores" / "test.json")
    assert report["unknown"] == {"cs": {"kʷ": 1}}
    assert all(line == " ".join(line.split()) for line in read_lines(run / "scores" / "test.all.txt"))
