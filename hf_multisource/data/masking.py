"""Mask the placeholders of rows of text, and remember in a tokenizer which syntax its mask tokens are for."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from hf_multisource.data.checks import check_choice
from hf_multisource.data.placeholders import ANY, MASK_TOKENS, SYNTAXES, PlaceholderTable, mask_texts
from hf_multisource.data.rows import Row

#: Key of a masked row under which the table of its first present source lies: the placeholders that its translation
#: must have. No source can have this name.
TABLE = "<placeholders>"
SYNTAX_KEY = "mask_syntax"  # in tokenizer_config.json


def has_mask_tokens(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer encodes each mask token as one token.

    Args:
        tokenizer: The tokenizer.

    Returns:
        The answer.
    """
    vocabulary = tokenizer.get_vocab()
    return all(token in vocabulary for token in MASK_TOKENS)


def mask_sources(row: Row, sources: Sequence[str], syntax: str = ANY) -> Row:
    """Mask the sources of a row that is to be translated.

    Args:
        row: The row; what is no source of it is left as it is.
        sources: Names of the sources, which are texts, in the order of the model.
        syntax: As `mask_texts` has it.

    Returns:
        The row with masked sources and, under `TABLE`, what the tokens of the first present source stand for. If the
        row cannot be masked, its texts stay as they are, and the table says why (`refused`). A row without any source
        has an empty table.

    Raises:
        ValueError: If there is no such syntax.
    """
    check_choice(list(SYNTAXES), syntax=syntax)
    masked = mask_texts({name: row.get(name) for name in sources}, syntax)
    present = next((name for name in sources if (row.get(name) or "").strip()), None)
    table = PlaceholderTable() if present is None else masked.tables[present]
    return {**row, **masked.texts, TABLE: table}
