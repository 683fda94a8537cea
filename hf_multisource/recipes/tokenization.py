"""Train tokenizers: one for all sources and the target, or one for each.

The subword kinds work on bytes like GPT-2's tokenizer. No character is unknown, and decoding restores the text exactly,
except for Unicode normalization (NFC) and white space at both ends. The kind `symbols` is for text that is already
segmented: each white-space-separated symbol is one token, and symbols that do not occur in the training text are
unknown. The training is deterministic: the same text always gives the same `tokenizer.json`.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hf_multisource import MultiSourceConfig, MultiSourceProcessor
from hf_multisource.data.checks import check_choice
from hf_multisource.data.encoding import text_keys
from hf_multisource.data.files import check_new_folder
from hf_multisource.data.masking import mask_split, remember_syntax
from hf_multisource.data.placeholders import MASK_TOKENS, TOKEN, add_mask_tokens
from hf_multisource.data.romanization import CYRILLIC, ROMANIZATION
from hf_multisource.data.rows import Row, read_split
from hf_multisource.source_kinds import is_absent

SPECIAL_TOKENS = ("<pad>", "</s>", "<s>", "<unk>")  # with the ids 0, 1, 2, 3
SUBWORDS = ("bpe", "wordpiece", "unigram")
KINDS = (*SUBWORDS, "symbols")
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # the 256 characters that represent bytes
MIN_VOCAB_SIZE = len(SPECIAL_TOKENS) + len(ALPHABET) + 1
# A word includes the space before it. Tokens never combine letters (and their marks) with numbers or punctuation.
WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"

# Maximum length of a word for training. The time of the BPE trainer is quadratic in the length of a word, so that a
# word of 1 MB would take many minutes. Longer "words" are not words of a language but encoded data or sentences without
# spaces.
LONGEST_WORD = 1000  # bytes
LISTED = 10  # maximum number of symbols that a note lists; the others are counted


def cut_long_words(text: str) -> Iterator[str]:
    """Split a text so that no word is longer than `LONGEST_WORD`, for training a tokenizer.

    Args:
        text: A sentence. Words are the pieces of the pre-tokenizer, including runs of digits, punctuation or spaces.

    Yields:
        The parts of the text: the texts between words that are too long, and the pieces of these words. A text without
        such a word is yielded unchanged.
    """
    words: list[Any] = []
    if len(text.encode()) > LONGEST_WORD:
        words = pre_tokenizers.Split(Regex(WORDS), "isolated").pre_tokenize_str(text)
    step = LONGEST_WORD // 4  # length of a piece in characters, which have at most 4 bytes each
    start = 0  # beginning of the text after the last word that was too long
    for word, (begin, end) in words:
        if len(word.encode()) > LONGEST_WORD:
            if start < begin:
                yield text[start:begin]
            yield from (word[i : i + step] for i in range(0, len(word), step) if word[i : i + step].strip())
            start = end
    if start < len(text):
        yield text[start:]


def train_tokenizer(
    texts: Iterable[str | None],
    kind: str,
    vocab_size: int,
    *,
    lowercase: bool = False,
    null_token: str | None = None,
    romanize: bool = False,
    decode_cyrillic: bool = False,
    mask_tokens: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on sentences.

    Args:
        texts: Sentences; None, empty and blank ones are skipped. For subwords, words of more than `LONGEST_WORD` bytes
            are cut into pieces during training, and a note with their number is printed.
        kind: `bpe`, `wordpiece` (BPE's vocabulary, longest match first) or `unigram`; or `symbols`: each symbol of a
            text that white space separates is one token, just as it is.
        vocab_size: Maximum number of tokens, including the special tokens and the 256 bytes of subwords. If there are
            more symbols, the most frequent ones are kept. A note is printed if there is too little text for this number
            of subwords, or if symbols are left out.
        lowercase: Whether to convert text to lower case; decoding cannot restore the capitals. Not for `symbols`.
        null_token: Additional special token, such as "<NULL>", which a processor with this `null_token` reads in place
            of an absent text.
        romanize: Whether to encode the Cyrillic letters of Russian and Kazakh as Latin ones, see
            `hf_multisource.data.romanization`. Not for `symbols`.
        decode_cyrillic: Whether decoding converts Latin letters back to Cyrillic ones, including letters that were
            Latin in the text; only with `romanize`.
        mask_tokens: Whether to add the tokens of `hf_multisource.data.placeholders`, for texts that `mask_texts` has
            masked; they are included in `vocab_size`. White space is then preserved exactly, also around these tokens,
            and a word at the beginning of a text is encoded without a leading space, as after a mask token. Not for
            `symbols`, and not with `decode_cyrillic`.

    Returns:
        The tokenizer. It appends `</s>` to every sentence, and does not recognize special tokens within texts.

    Raises:
        ValueError: If the kind is unknown, `vocab_size` is too small, `null_token` is not a new token, or there is no
            text. Also if `lowercase`, `romanize` or `mask_tokens` is set for `symbols`, `decode_cyrillic` without
            `romanize`, or `mask_tokens` together with `decode_cyrillic`.
    """
    check_choice(KINDS, kind=kind)
    for name, value in (("lowercase", lowercase), ("romanize", romanize), ("mask_tokens", mask_tokens)):
        if value and kind not in SUBWORDS:
            raise ValueError(f"{name} is not allowed with kind {kind}: symbols are taken as they are")
    if decode_cyrillic and not romanize:
        raise ValueError("decode_cyrillic is True, but is only allowed with romanize=True")
    if decode_cyrillic and mask_tokens:
        raise ValueError("mask_tokens is not allowed with decode_cyrillic, which would change the tokens in the text")
    if null_token is not None and (not null_token.strip() or null_token in SPECIAL_TOKENS):
        raise ValueError(f"null_token is {null_token!r}, but must be a token of its own, such as '<NULL>'")
    special_tokens = SPECIAL_TOKENS if null_token is None else (*SPECIAL_TOKENS, null_token)
    letters = ALPHABET if kind in SUBWORDS else []
    masks = MASK_TOKENS if mask_tokens else ()
    least = len(special_tokens) + len(masks) + len(letters) + 1
    if vocab_size < least:
        counted = {"mask tokens": masks, "bytes": letters}
        listed = "".join(f", {len(tokens)} {name}" for name, tokens in counted.items() if tokens)
        parts = f"{len(special_tokens)} special tokens{listed} and one more"
        raise ValueError(f"vocab_size is {vocab_size}, but must be at least {least}: {parts}")
    given = (text for text in texts if text)
    parts_of_texts = (part for text in given for part in (TOKEN.split(text) if mask_tokens else [text]))
    sentences = [text for text in parts_of_texts if text.strip()]
    if not sentences:
        raise ValueError("there is no text to train the tokenizer on")
    if kind in SUBWORDS:
        size = vocab_size - len(masks)
        tokenizer = _learn_subwords(sentences, kind, size, special_tokens, lowercase, romanize, mask_tokens)
        if decode_cyrillic:
            letters_back = (decoders.Replace(latin, cyrillic) for latin, cyrillic in CYRILLIC.items())
            tokenizer.decoder = decoders.Sequence([tokenizer.decoder, *letters_back])
    else:
        tokenizer = _collect_symbols(sentences, vocab_size, special_tokens)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", SPECIAL_TOKENS.index("</s>"))]
    )
    trained = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        bos_token="<s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # a sentence that quotes "</s>" must not end there
        model_input_names=["input_ids", "attention_mask"],
    )
    if mask_tokens:
        add_mask_tokens(trained)
    return trained


def _learn_subwords(
    sentences: Sequence[str],
    kind: str,
    vocab_size: int,
    special_tokens: Sequence[str],
    lowercase: bool,
    romanize: bool,
    keeps_blanks: bool,
) -> Tokenizer:
    """Train a byte-level subword tokenizer; the arguments are the checked arguments of `train_tokenizer`."""
    parts = [list(cut_long_words(text)) for text in sentences]
    if long := sum(cut != [text] for cut, text in zip(parts, sentences, strict=True)):
        print(f"note: {long} sentences have words of more than {LONGEST_WORD} bytes, cut into pieces for the training")
    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": list(special_tokens),
        "initial_alphabet": ALPHABET,
        "show_progress": sys.stderr.isatty(),  # outside a terminal, the bars are printed as empty lines
    }
    model: models.Model
    trainer: trainers.Trainer
    if kind == "bpe":
        model, trainer = models.BPE(), trainers.BpeTrainer(**options)
    elif kind == "wordpiece":
        # Words include their leading space, so continuations need no "##". The length limit is raised, because longer
        # words would become unknown.
        model = models.WordPiece(unk_token="<unk>", continuing_subword_prefix="", max_input_chars_per_word=10**6)
        trainer = trainers.WordPieceTrainer(continuing_subword_prefix="", **options)
    else:
        model, trainer = models.Unigram(), trainers.UnigramTrainer(unk_token="<unk>", **options)
    tokenizer = Tokenizer(model)
    lower = [normalizers.Lowercase()] if lowercase else []
    latin = [normalizers.Replace(letter, spelling) for letter, spelling in ROMANIZATION.items()] if romanize else []
    # A space is prepended to the first word, so that it has the same tokens as later in a text. With mask tokens, no
    # space is prepended, because the text between two mask tokens is normalized separately and would get an additional
    # space.
    first_space = [] if keeps_blanks else [normalizers.Strip(), normalizers.Prepend(" ")]
    tokenizer.normalizer = normalizers.Sequence([*lower, normalizers.NFC(), *latin, *first_space])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    no_first_space = [] if keeps_blanks else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), *no_first_space])
    tokenizer.train_from_iterator((part for cut in parts for part in cut), trainer)
    if kind == "unigram":
        tokenizer.model = _settled(tokenizer, len(special_tokens))
    if tokenizer.get_vocab_size() < vocab_size:
        print(f"note: asked for {vocab_size} tokens, but the text gives only {tokenizer.get_vocab_size()}")
    return tokenizer


def _collect_symbols(sentences: Sequence[str], vocab_size: int, special_tokens: Sequence[str]) -> Tokenizer:
    """Make a tokenizer of the most frequent symbols; the arguments are the checked arguments of `train_tokenizer`."""
    splitter = pre_tokenizers.WhitespaceSplit()
    counts = Counter(symbol for text in sentences for symbol, _ in splitter.pre_tokenize_str(text))
    symbols = sorted(counts.keys() - set(special_tokens), key=lambda symbol: (-counts[symbol], symbol))
    if not symbols:
        raise ValueError("there is no text to train the tokenizer on")
    size = vocab_size - len(special_tokens)
    if rare := symbols[size:]:
        kinds = f"{len(rare)} of the {len(symbols)} symbols"
        print(f"note: vocab_size {vocab_size} leaves out {kinds}, which become <unk>: {_listed(rare)}")
    vocab = {token: i for i, token in enumerate([*special_tokens, *symbols[:size]])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    # A symbol that is spelled like a special token becomes unknown, because it must not act as one (and end the text).
    names = "|".join(map(re.escape, special_tokens))
    tokenizer.normalizer = normalizers.Replace(Regex(rf"(?<!\S)(?:{names})(?!\S)"), "<unk>")
    tokenizer.pre_tokenizer = splitter
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer


def _listed(symbols: Iterable[str]) -> str:
    """List the first `LISTED` symbols and the number of further ones, in words."""
    every = list(symbols)
    more = f" and {len(every) - LISTED} more" if len(every) > LISTED else ""
    return ", ".join(every[:LISTED]) + more


def find_unknown(processor: MultiSourceProcessor, rows: Sequence[Row], target: str) -> dict[str, dict[str, int]]:
    """Find the symbols in rows of text that a processor's tokenizers encode as the unknown token.

    Args:
        processor: Processor that encodes the sources and the target.
        rows: Rows of the model's sources.
        target: Name of the target in the rows.

    Returns:
        For each source and the target, by name: the number of occurrences of each unknown symbol, most frequent first.
        Names without unknown symbols, and names whose tokenizer has no unknown token, are left out.
    """
    tokenizers = {name: processor.get_tokenizer(name) for name in text_keys(processor)}
    found = {}
    for name, tokenizer in {**tokenizers, target: processor.tokenizer}.items():
        texts = [str(row[name]) for row in rows if not is_absent(row.get(name))]
        unknown = tokenizer.unk_token_id
        if not texts or unknown is None or not tokenizer.is_fast:
            continue
        encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        places = zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True)
        counts = Counter(
            text[:end].split()[-1]  # if the normalizer has replaced a symbol, only the end of its span is correct
            for text, ids, spans in places
            for token, (_, end) in zip(ids, spans, strict=True)
            if token == unknown
        )
        if counts:
            found[name] = dict(counts.most_common())
    return found


def unknown_note(split: str, found: Mapping[str, Mapping[str, int]]) -> str:
    """Describe the unknown symbols of a split.

    Args:
        split: Name of the split.
        found: Output of `find_unknown`.

    Returns:
        One line; empty if nothing is unknown.
    """
    parts = [f"{name}: {sum(counts.values())} ({_listed(counts)})" for name, counts in found.items()]
    return f"note: the tokenizer does not know these symbols of split {split!r}: {'; '.join(parts)}" if parts else ""


def _settled(tokenizer: Tokenizer, special_tokens: int) -> models.Unigram:
    """Make the trained Unigram model independent of the trainer's random hash order.

    The hash order affects the last digits of the scores, and the scores of bytes that do not occur in the text: the
    trainer assigns to each of these bytes, in hash order, a score 0.0001 above the previous one, beginning with the
    lowest score. This function rounds all scores, and gives the lowest score to these bytes and to all equally rare
    bytes.
    """
    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    special, pieces = vocab[:special_tokens], vocab[special_tokens:]
    lowest = min(score for _, score in pieces)
    rare = lowest + 0.0001 * len(ALPHABET)
    settled = [(piece, round(lowest if len(piece) == 1 and score < rare else score, 6)) for piece, score in pieces]
    settled.sort(key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([*map(tuple, special), *settled], unk_id=SPECIAL_TOKENS.index("<unk>"))


def joint_text(columns: Sequence[Sequence[str | None]], balance: bool) -> list[str]:
    """Join the texts of several languages, for training a joint tokenizer.

    Args:
        columns: The sentences of each language; None and empty ones are left out.
        balance: Whether to balance the languages: sentences of smaller languages are repeated, in order, until their
            text is as long as the text of the largest language, in characters.

    Returns:
        The sentences.
    """
    given = [[text for text in column if text] for column in columns]
    most = max((sum(map(len, column)) for column in given), default=0) if balance else 0
    joint = []
    for column in given:
        joint += column
        missing = most - sum(map(len, column))
        for text in cycle(column):
            missing -= len(text)
            if missing < 0:
                break
            joint.append(text)
    return joint


def write_tokenizers(
    data: str,
    sources: Sequence[str],
    target: str,
    out: Path,
    *,
    split: str = "train",
    kind: str = "bpe",
    vocab_size: int = 8000,
    lowercase: bool = False,
    null_token: str | None = None,
    separate: bool = False,
    romanize: Sequence[str] = (),
    balance: bool = False,
    placeholders: str | None = None,
) -> list[str]:
    """Train one tokenizer on all columns of a split, or one on each, and save them.

    Args:
        data: Folder or Hub id of the data.
        sources: Names of the sources.
        target: Name of the target.
        out: Folder to save in, new or empty.
        split: Split to train on.
        kind: See `train_tokenizer`.
        vocab_size: See `train_tokenizer`.
        lowercase: See `train_tokenizer`.
        null_token: See `train_tokenizer`.
        separate: Whether to train a separate tokenizer for each source and the target, in `out`/<source> and
            `out`/target.
        romanize: Names of the sources and the target whose Cyrillic letters are encoded as Latin ones. If the target is
            among them, its decoded text is Cyrillic again. A joint tokenizer also encodes the Cyrillic letters of all
            other languages as Latin ones.
        balance: Whether to balance the languages of a joint tokenizer, see `joint_text`.
        placeholders: Syntax of the placeholders in the texts, one of `SYNTAXES`. The placeholders are masked, and the
            tokenizers get the mask tokens that runs with `data.placeholders` need. None: texts are not masked.

    Returns:
        One line for each tokenizer, with its folder, kind and size. With `placeholders`, the first line gives the
        number of rows that are left out.

    Raises:
        FileExistsError: If `out` is not empty.
        ValueError: If a source is called "target", or an option is not allowed.
    """
    MultiSourceConfig.check_source_names(sources)
    for name in romanize:
        check_choice((*sources, target), romanize=name)
    if separate and balance:
        raise ValueError("balance is set, but with --separate every language has a tokenizer of its own")
    if placeholders is not None and kind not in SUBWORDS:
        raise ValueError(f"placeholders is {placeholders} with kind {kind}; it is for {', '.join(SUBWORDS)}")
    if placeholders is not None and target in romanize:
        raise ValueError(f"placeholders is {placeholders}, but the target is romanized, with the mask tokens, too")
    check_new_folder(out)
    if separate and "target" in sources:
        raise ValueError("a source named 'target' would take the folder of the target's tokenizer: rename it")
    lines = []
    read = read_split(data, split, sources, target, keep_all=True)
    rows = read.rows
    if placeholders is not None:
        rows = mask_split(read, sources, target, placeholders).rows
        lines.append(f"{len(read.rows) - len(rows)} rows are left out: their placeholders differ or cannot be masked")
    columns = {name: [row[name] for row in rows] for name in (*sources, target)}
    if separate:
        parts = {out / ("target" if name == target else name): (text, {name}) for name, text in columns.items()}
    else:
        parts = {out: (joint_text(list(columns.values()), balance), set(columns))}
    for folder, (texts, names) in parts.items():
        tokenizer = train_tokenizer(
            texts,
            kind,
            vocab_size,
            lowercase=lowercase,
            null_token=null_token,
            romanize=not names.isdisjoint(romanize),
            decode_cyrillic=target in names and target in romanize,
            mask_tokens=placeholders is not None,
        )
        if placeholders is not None:
            remember_syntax(tokenizer, placeholders)
        tokenizer.save_pretrained(folder)
        lines.append(f"{folder}: {kind}, {len(tokenizer)} tokens, from {sum(map(bool, texts))} sentences")
    return lines
