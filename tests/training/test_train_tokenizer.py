import random
import time
import unicodedata
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_multisource.cli.tokenizer import main
from hf_multisource.recipes.tokenization import (
    LONGEST_WORD,
    MIN_VOCAB_SIZE,
    SPECIAL_TOKENS,
    SUBWORDS,
    cut_long_words,
    train_tokenizer,
)

SENTENCES = {
    "en": ["A boy plays in the water, and a girl is watching the boys.", "Two dogs run over the green grass."],
    "de": ["Ein Junge spielt im Wasser, und ein Mädchen schaut den Jungen zu.", "Zwei Hunde laufen über die Wiese."],
    "fr": ["Un garçon joue dans l'eau, et une fille regarde les garçons.", "Deux chiens courent sur l'herbe verte."],
    "cs": ["Chlapec si hraje ve vodě a dívka se na chlapce dívá.", "Dva psi běží po zelené louce."],
}
TEXTS = [sentence for sentences in SENTENCES.values() for sentence in sentences]
# None of these is in the training text, nor are most of their letters.
STRANGERS = [
    "Příliš žluťoučký kůň úpěl ďábelské ódy!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich (12,5 %).",
    "Où est l'élève\xa0? «\xa0Dès Noël, où un zéphyr haï me vêt de glaçons\xa0»…",
    "Іс-әрекеттер шолуын ашып, Арнайы мүмкіндіктер деп тере бастаңыз.",
    "नमस्ते दुनिया, 日本語 👩‍👩‍👧 e\u0301 🇨🇿",
    "two  spaces,\ta tab ▁ ##x Ġ <0x41> and </s> <pad> <unk> quoted",
    "w" * 300,
]


@cache
def tokenizer_of(kind: str, lowercase: bool = False) -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, kind, 400, lowercase=lowercase)


def spaceless_ends(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, sentences in SENTENCES.items():
        (tmp_path / f"train.{name}").write_text("\n".join([*sentences, ""]) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("kind", SUBWORDS)
def test_decoding_gives_text_back_that_was_never_seen(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer([*TEXTS, *STRANGERS])["input_ids"]
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == [*map(spaceless_ends, [*TEXTS, *STRANGERS])]
    assert not any(tokenizer.unk_token_id in row for row in ids)


@pytest.mark.parametrize("kind", SUBWORDS)
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cn"])))
def test_decoding_gives_any_text_back(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    (decoded,) = tokenizer.batch_decode(tokenizer([text])["input_ids"], skip_special_tokens=True)
    assert spaceless_ends(decoded) == spaceless_ends(text)


@pytest.mark.parametrize("kind", SUBWORDS)
def test_special_tokens_have_their_places_and_only_the_end_is_added(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["<pad>", "</s>", "<s>", "<unk>"]
    assert [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id] == [
        0,
        1,
        2,
        3,
    ]
    encoded = tokenizer(["A boy </s> plays.", ""])
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert Counter(encoded["input_ids"][0])[1] == 1 and encoded["input_ids"][0][-1] == 1
    assert encoded["input_ids"][1] == [1]
    assert tokenizer.model_max_length > 10**9


@pytest.mark.parametrize("kind", SUBWORDS)
def test_a_word_is_the_same_tokens_wherever_it_stands(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    first, later = tokenizer(["boy", "A boy, boy"], add_special_tokens=False)["input_ids"]
    assert later[-len(first) :] == first
    assert tokenizer("boy,", add_special_tokens=False)["input_ids"][: len(first)] == first


@pytest.mark.parametrize("kind", SUBWORDS)
def test_frequent_letters_become_one_token(kind: str) -> None:
    assert len(tokenizer_of(kind).tokenize("the boys")) <= 6  # 9 bytes with the space before


@pytest.mark.parametrize("kind", SUBWORDS)
def test_the_same_text_gives_the_same_tokenizer(kind: str) -> None:
    jsons = {train_tokenizer(TEXTS, kind, 400).backend_tokenizer.to_str() for _ in range(4)}
    assert len(jsons) == 1


@pytest.mark.parametrize("kind", SUBWORDS)
def test_a_saved_tokenizer_loads_the_same(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(kind)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded([*TEXTS, *STRANGERS])["input_ids"]
    assert ids == tokenizer([*TEXTS, *STRANGERS])["input_ids"]
    assert loaded.batch_decode(ids, skip_special_tokens=True) == tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert set(loaded("boy")) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize("kind", SUBWORDS)
def test_lower_case_is_a_choice(kind: str) -> None:
    tokenizer = tokenizer_of(kind, lowercase=True)
    upper, lower = tokenizer(["ÚPĚL Straße", "úpěl straße"])["input_ids"]
    assert upper == lower
    assert tokenizer.decode(upper, skip_special_tokens=True) == "úpěl straße"


@pytest.mark.parametrize("kind", SUBWORDS)
def test_little_text_gives_fewer_tokens_and_a_note_says_so(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_tokenizer(["a b a b"], kind, 5000)
    assert 260 <= len(tokenizer) < 270
    assert capsys.readouterr().out == f"note: asked for 5000 tokens, but the text gives only {len(tokenizer)}\n"


@pytest.mark.parametrize("kind", SUBWORDS)
def test_the_smallest_vocabulary_still_gives_text_back(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_tokenizer(TEXTS, kind, MIN_VOCAB_SIZE)
    assert len(tokenizer) == MIN_VOCAB_SIZE
    assert tokenizer.decode(tokenizer("kůň")["input_ids"], skip_special_tokens=True) == "kůň"
    assert capsys.readouterr().out == ""


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="kind is 'sentencepiece'; allowed are bpe, wordpiece, unigram, symbols"):
        train_tokenizer(TEXTS, "sentencepiece", 400)
    with pytest.raises(
        ValueError, match="vocab_size is 260, but must be at least 261: 4 special tokens, 256 bytes and one"
    ):
        train_tokenizer(TEXTS, "bpe", 260)
    with pytest.raises(ValueError, match="there is no text to train the tokenizer on"):
        train_tokenizer([None, "", "  "], "bpe", 400)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_line_without_blanks_does_not_make_the_training_slow(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The trainers' time grows with the square of a word's length; a word of this one takes them half a minute."""
    word = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=300_000))
    began = time.perf_counter()
    train_tokenizer([f"A boy plays. {word} Two dogs.", *TEXTS], kind, 1000)
    assert time.perf_counter() - began < 12
    assert "note: 1 sentences have words of more than 1000 bytes, cut into pieces" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["x" * 10_000, "é" * 5_000, "1" * 10_000, "犬" * 4_000, " " * 10_000])
def test_no_part_of_a_text_has_a_word_longer_than_the_limit(word: str) -> None:
    parts = [*cut_long_words(f"A boy plays.{word}Two dogs.")]
    assert max(len(part.encode()) for part in parts) <= LONGEST_WORD
    assert parts[0].startswith("A boy plays") and parts[-1].endswith("dogs.")


def test_a_long_text_of_short_words_is_given_to_the_trainer_as_it_is() -> None:
    text = "A boy plays in the water. " * 1000
    assert [*cut_long_words(text)] == [text]
    assert [*cut_long_words("x" * LONGEST_WORD)] == ["x" * LONGEST_WORD]
    parts = [*cut_long_words(f"one {'y' * 2 * LONGEST_WORD} two")]
    assert "".join(parts) == f"one {'y' * 2 * LONGEST_WORD} two"
    assert (parts[0], parts[-1]) == ("one", " two")


def test_the_command_saves_one_tokenizer_for_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    arguments = [str(folder), "--sources", "en", "de", "fr", "--target", "cs", "--vocab_size", "400", "--out", "tok"]
    main(arguments)
    assert capsys.readouterr().out == "tok: bpe, 400 tokens, from 8 sentences\n"
    expected = tokenizer_of("bpe").backend_tokenizer.to_str()
    assert AutoTokenizer.from_pretrained(folder / "tok").backend_tokenizer.to_str() == expected


def test_the_command_saves_separate_tokenizers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "tok"
    names = ["--sources", "en", "de", "--target", "cs", "--separate"]
    settings = ["--kind", "unigram", "--vocab_size", "290", "--lowercase", "--null_token", "<NULL>"]
    main([str(folder), *names, *settings, "--out", str(out)])
    assert sorted(path.name for path in out.iterdir()) == ["de", "en", "target"]
    assert capsys.readouterr().out.count("tokens, from 2 sentences\n") == 3
    for name, column in {"en": "en", "de": "de", "target": "cs"}.items():
        expected = train_tokenizer(SENTENCES[column], "unigram", 290, lowercase=True, null_token="<NULL>")
        loaded = AutoTokenizer.from_pretrained(out / name)
        assert loaded.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()


def test_the_command_leaves_a_folder_with_files_alone(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SystemExit, match=r"^hf-multisource tokenizer: .* is not empty: name another folder"):
        main([str(folder), "--sources", "en", "--target", "cs", "--vocab_size", "400", "--out", str(folder)])
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sources", "en", "fi", "--target", "cs"], "unknown source or target 'fi'"),
        (["--sources", "en", "--target", "cs", "--split", "dev"], "no split 'dev' in"),
        (["--sources", "en", "--target", "cs", "--kind", "morfessor"], "kind is 'morfessor'; allowed are bpe,"),
        (["--sources", "en", "--target", "cs", "--vocab_size", "9"], "vocab_size is 9, but must be at least 261"),
        (["--sources", "en-US", "--target", "cs"], "source name 'en-US' must be an identifier: letters, digits and"),
        (["--sources", "en", "en", "--target", "cs"], "source name 'en' occurs twice in sources; names must be unique"),
        (["--sources", "en", "cs", "--target", "cs"], "sources and target must all differ, but are en, cs, cs"),
        (["--sources", "target", "--target", "cs", "--separate"], "a source named 'target' would take the folder"),
    ],
)
def test_the_command_says_what_is_wrong_and_writes_nothing(arguments: list[str], message: str, folder: Path) -> None:
    with pytest.raises(SystemExit, match=rf"^hf-multisource tokenizer: {message}"):
        main([str(folder), *arguments, "--out", str(folder / "tok")])
    assert not (folder / "tok").exists()


@pytest.mark.parametrize("kind", SUBWORDS)
def test_a_token_for_absent_texts_is_one_more_special_token(kind: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, kind, 300, null_token="<NULL>")
    null = len(SPECIAL_TOKENS)
    assert tokenizer.convert_ids_to_tokens(list(range(null + 1))) == [*SPECIAL_TOKENS, "<NULL>"]
    assert len(tokenizer) <= 300
    tokenizer.save_pretrained(tmp_path)
    for own in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert own("<NULL>", split_special_tokens=False)["input_ids"] == [null, own.eos_token_id]
        assert null not in own("a <NULL> b")["input_ids"], "a sentence that quotes it is read as it stands"
        assert own.decode(own("a <NULL> b")["input_ids"], skip_special_tokens=True) == "a <NULL> b"
        assert own.decode([null, *own("a")["input_ids"]], skip_special_tokens=True) == "a"
    for bad in (" ", "</s>"):
        with pytest.raises(ValueError, match=f"^null_token is '{bad}', but must be a token of its own"):
            train_tokenizer(TEXTS, kind, 300, null_token=bad)
    with pytest.raises(ValueError, match=f"must be at least {MIN_VOCAB_SIZE + 1}: 5 special tokens"):
        train_tokenizer(TEXTS, kind, MIN_VOCAB_SIZE, null_token="<NULL>")
