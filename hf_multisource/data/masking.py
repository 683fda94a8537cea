"""Mask the placeholders of rows of text, and remember in a tokenizer which syntax its mask tokens are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from hf_multisource.data.checks import check_choice
from hf_multisource.data.placeholders import (
    ANY,
    MASK_TOKENS,
    SYNTAXES,
    PlaceholderTable,
    find_placeholders,
    mask_texts,
    restore_text,
)
from hf_multisource.data.rows import Row, Split

#: Key of a masked row under which the table of its first present source lies: the placeholders that its translation
#: must have. No source can have this name.
TABLE = "<placeholders>"
REFERENCE = "<reference>"  # key of a masked row under which its target lies as it was
SYNTAX_KEY = "mask_syntax"  # in tokenizer_config.json
# Counts of `mask_split`.
SELECTOR, TOO_MANY, DIFFERING = "dropped_selector", "dropped_too_many_placeholders", "dropped_other_placeholders"


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
    masked = mask_texts({name: _present(row, name) for name in sources}, syntax)
    return {**row, **masked.texts, TABLE: next(iter(masked.tables.values()), PlaceholderTable())}


def mask_evaluated(row: Row, sources: Sequence[str], target: str, syntax: str = ANY) -> Row:
    """Mask a row whose translation is compared with its target.

    The sources are masked without the target, as those of a text that has no translation yet.

    Args:
        row: The row; the target may be absent.
        sources: As `mask_sources` has it.
        target: Name of the target.
        syntax: As `mask_texts` has it.

    Returns:
        What `mask_sources` returns, with the masked target, and the target as it was under `REFERENCE`. The target
        stays as it is if it cannot be masked together with the sources.

    Raises:
        ValueError: If there is no such syntax.
    """
    masked = mask_sources(row, sources, syntax)
    if row.get(target) is None:
        return masked
    together = mask_texts({name: _present(row, name) for name in (*sources, target)}, syntax)
    return {**masked, target: together.texts[target], REFERENCE: row[target]}


def mask_split(split: Split, sources: Sequence[str], target: str, syntax: str = ANY) -> Split:
    """Mask the rows of a training split, and leave out those that a model cannot learn placeholders from.

    Args:
        split: The split.
        sources: As `mask_sources` has it.
        target: Name of the target.
        syntax: As `mask_texts` has it.

    Returns:
        The masked rows of which all texts have the same placeholders. The report counts the others, as
        `dropped_selector` (a text has variants), `dropped_too_many_placeholders` and `dropped_other_placeholders` (the
        texts differ in them).

    Raises:
        ValueError: If there is no such syntax, or no row is left.
    """
    check_choice(list(SYNTAXES), syntax=syntax)
    counts = dict.fromkeys((SELECTOR, TOO_MANY, DIFFERING), 0)
    rows, kept = [], []
    for row, line in zip(split.rows, split.kept, strict=True):
        masked = mask_texts({name: row[name] for name in (*sources, target)}, syntax)
        if masked.refused is not None:
            texts = [text for text in masked.texts.values() if text is not None]
            selects = any(one.is_selector for text in texts for one in find_placeholders(text.strip(), syntax))
            counts[SELECTOR if selects else TOO_MANY] += 1
        elif masked.differing:
            counts[DIFFERING] += 1
        else:
            rows.append({**row, **masked.texts})
            kept.append(line)
    if not rows:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(
            f"no row is left of {len(split.rows)} after their placeholders are masked ({syntax}): {listed}"
        )
    absent = {f"absent.{name}": sum(row[name] is None for row in rows) for name in rows[0]}
    return replace(split, rows=rows, kept=kept, report={**split.report, "rows": len(rows), **counts, **absent})


def restore_masked(masked: str, table: PlaceholderTable) -> str:
    """Put the placeholders of a table into a translation of a masked text.

    Args:
        masked: The translation. White space at both ends does not count: the table has that of the source.
        table: What the tokens stand for.

    Returns:
        The translation.

    Raises:
        ValueError: If a token occurs more or less often than in the table; the message names it.
    """
    return restore_text(masked.strip(), table)


def refusal(table: PlaceholderTable | None, max_new_tokens: int | None = None) -> str:
    """Say why a masked row cannot be translated.

    Args:
        table: What lies under `TABLE` in the row; None: the row is not masked.
        max_new_tokens: Longest translation, in tokens, of which the end is one; None: any length.

    Returns:
        The reason; "" if it can.
    """
    if table is None:
        return ""
    if table.refused is not None:
        return table.refused
    needed = table.required
    if max_new_tokens is not None and needed and needed + 1 > max_new_tokens:
        return (
            f"the translation must have {needed} placeholders and an end, but may have at most {max_new_tokens} tokens"
        )
    return ""


def remember_syntax(tokenizer: PreTrainedTokenizerBase, syntax: str) -> None:
    """Note in a tokenizer, and in the files that it is saved to, for which syntax texts are masked.

    Args:
        tokenizer: The tokenizer of the target, which has the mask tokens.
        syntax: One of `SYNTAXES`.

    Raises:
        ValueError: If there is no such syntax.
    """
    check_choice(list(SYNTAXES), syntax=syntax)
    tokenizer.init_kwargs[SYNTAX_KEY] = syntax


def remembered_syntax(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the syntax that a tokenizer notes.

    Args:
        tokenizer: The tokenizer of the target.

    Returns:
        One of `SYNTAXES`; None: texts are not masked.

    Raises:
        ValueError: If the tokenizer notes another one.
    """
    syntax: str | None = tokenizer.init_kwargs.get(SYNTAX_KEY)
    check_choice(list(SYNTAXES), **{SYNTAX_KEY: syntax})
    return syntax


def _present(row: Row, name: str) -> str | None:
    """A text of a row; None if it is absent, empty or white."""
    text = row.get(name)
    return str(text) if text is not None and str(text).strip() else None
