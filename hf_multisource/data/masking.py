"""Mask the placeholders of rows of text, and store the syntax of the placeholders in a tokenizer."""

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

#: Key of a masked row for the `PlaceholderTable` of the first present source, which lists the placeholders that the
#: translation must contain. No source can have this name.
TABLE = "<placeholders>"
REFERENCE = "<reference>"  # key of a masked row for the unmasked target
SYNTAX_KEY = "mask_syntax"  # key in tokenizer_config.json
# Names of the counts of `mask_split`.
SELECTOR, TOO_MANY, DIFFERING = "dropped_selector", "dropped_too_many_placeholders", "dropped_other_placeholders"


def has_mask_tokens(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer encodes each mask token as a single token.

    Args:
        tokenizer: The tokenizer.

    Returns:
        Whether all `MASK_TOKENS` are tokens of the vocabulary.
    """
    vocabulary = tokenizer.get_vocab()
    return all(token in vocabulary for token in MASK_TOKENS)


def mask_sources(row: Row, sources: Sequence[str], syntax: str = ANY) -> Row:
    """Mask the placeholders in the sources of a row to translate.

    Args:
        row: The row. Its other columns stay unchanged.
        sources: Names of the text sources, in the order of the model.
        syntax: See `mask_texts`.

    Returns:
        The row with masked sources and, under `TABLE`, the placeholder table of the first present source. If the row
        cannot be masked, its texts stay unchanged, and the table contains the reason (`refused`). A row without any
        source has an empty table.

    Raises:
        ValueError: If the syntax is unknown.
    """
    check_choice(list(SYNTAXES), syntax=syntax)
    masked = mask_texts({name: _present(row, name) for name in sources}, syntax)
    return {**row, **masked.texts, TABLE: next(iter(masked.tables.values()), PlaceholderTable())}


def mask_evaluated(row: Row, sources: Sequence[str], target: str, syntax: str = ANY) -> Row:
    """Mask a row for evaluation, where the translation is compared with the target.

    The sources are masked independently of the target, as in a row without a target.

    Args:
        row: The row; the target may be absent.
        sources: See `mask_sources`.
        target: Name of the target.
        syntax: See `mask_texts`.

    Returns:
        The row that `mask_sources` returns, with the masked target, and with the unmasked target under `REFERENCE`. The
        target stays unchanged if it cannot be masked together with the sources.

    Raises:
        ValueError: If the syntax is unknown.
    """
    masked = mask_sources(row, sources, syntax)
    if row.get(target) is None:
        return masked
    together = mask_texts({name: _present(row, name) for name in (*sources, target)}, syntax)
    return {**masked, target: together.texts[target], REFERENCE: row[target]}


def mask_split(split: Split, sources: Sequence[str], target: str, syntax: str = ANY) -> Split:
    """Mask the rows of a training split, and drop rows whose texts have different or unsupported placeholders.

    Args:
        split: The split.
        sources: See `mask_sources`.
        target: Name of the target.
        syntax: See `mask_texts`.

    Returns:
        The masked rows in which all texts have the same placeholders. The report counts the dropped rows as
        `dropped_selector` (a text has variants), `dropped_too_many_placeholders` and `dropped_other_placeholders` (the
        placeholders of the texts differ).

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
        masked: The translation. White space at both ends is replaced by that of the source, which the table contains.
        table: The placeholder table of the source.

    Returns:
        The translation.

    Raises:
        ValueError: If a token occurs more or less often than in the table; the message names the token.
    """
    return restore_text(masked.strip(), table)


def refusal(table: PlaceholderTable | None, max_new_tokens: int | None = None) -> str:
    """Return the reason why a masked row cannot be translated.

    Args:
        table: The value of `TABLE` in the row; None if the row is not masked.
        max_new_tokens: Largest number of tokens of a translation, including the end-of-sequence token. None means no
            limit.

    Returns:
        The reason; an empty string if the row can be translated.
    """
    if table is None:
        return ""
    if table.refused is not None:
        return table.refused
    needed = table.required
    # A translation that has as many tokens as it may have counts as cut.
    if max_new_tokens is not None and needed and needed + 1 >= max_new_tokens:
        return (
            f"the translation must have {needed} placeholders and an end, but fewer than {max_new_tokens} tokens in all"
        )
    return ""


def remember_syntax(tokenizer: PreTrainedTokenizerBase, syntax: str) -> None:
    """Store the syntax of the masked placeholders in a tokenizer; `save_pretrained` saves it.

    Args:
        tokenizer: The tokenizer of the target, which has the mask tokens.
        syntax: One of `SYNTAXES`.

    Raises:
        ValueError: If the syntax is unknown.
    """
    check_choice(list(SYNTAXES), syntax=syntax)
    tokenizer.init_kwargs[SYNTAX_KEY] = syntax


def remembered_syntax(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the syntax of the masked placeholders that is stored in a tokenizer.

    Args:
        tokenizer: The tokenizer of the target.

    Returns:
        One of `SYNTAXES`, or None if texts are not masked.

    Raises:
        ValueError: If the stored syntax is unknown.
    """
    syntax: str | None = tokenizer.init_kwargs.get(SYNTAX_KEY)
    check_choice(list(SYNTAXES), **{SYNTAX_KEY: syntax})
    return syntax


def _present(row: Row, name: str) -> str | None:
    """Return a text of a row; None if the text is absent, empty or only white space."""
    text = row.get(name)
    return str(text) if text is not None and str(text).strip() else None
