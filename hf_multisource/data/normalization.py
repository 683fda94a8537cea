"""Normalize text: Unicode, control characters, punctuation.

The same punctuation table is used for every language, so that all languages of a row are treated alike, and applying it
twice has the same result as applying it once. In contrast, the normalizer of Moses (`sacremoses.MosesPunctNormalizer`)
has rules for a few languages only (it moves English quotation marks behind commas), and inserts and removes spaces
around brackets and colons.
"""

from __future__ import annotations

import re
import unicodedata

QUOTATION_MARKS = {
    '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02",  # double: “ ” „ ‟ « » and full width
    "'": "\u2018\u2019\u201a\u201b\u2039\u203a\u00b4\u0060\uff07",  # single, and accents that stand alone
}
DASHES = {"-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"}  # hyphens, dashes of all lengths, the minus sign
OTHERS = {"\u2026": "...", "\uff0c": ",", "\uff1a": ":", "\uff1b": ";", "\uff01": "!", "\uff1f": "?"}
PUNCTUATION = str.maketrans(
    {mark: plain for table in (QUOTATION_MARKS, DASHES) for plain, marks in table.items() for mark in marks} | OTHERS
)
# The zero-width joiner and non-joiner (U+200D, U+200C) are kept, because several scripts need them for spelling.
CONTROLS = re.compile(
    "[\\x00-\\x08\\x0e-\\x1b\\x7f-\\x84\\x86-\\x9f\\xad"
    "\\u200b\\u200e\\u200f\\u202a-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]"
)
SPACES = re.compile(r"\s+")


def compose(text: str) -> str:
    """Return a text in Unicode's composed form (NFC).

    Args:
        text: The text.

    Returns:
        The text in which a letter and its combining marks are one character if Unicode defines such a character.
    """
    return unicodedata.normalize("NFC", text)


def remove_controls(text: str) -> str:
    """Remove invisible characters, and replace each run of white space by a blank.

    Args:
        text: The text.

    Returns:
        The text without control characters, soft hyphens, zero-width spaces and directional marks. White space at both
        ends is removed. Any other run of white space, such as a tab or a no-break space, is replaced by one blank.
    """
    return SPACES.sub(" ", CONTROLS.sub("", text)).strip()


def plain_punctuation(text: str) -> str:
    """Replace typographic punctuation by ASCII punctuation.

    Args:
        text: The text.

    Returns:
        The text with straight quotation marks, hyphens in place of dashes, three points in place of an ellipsis, and no
        full-width punctuation.
    """
    return text.translate(PUNCTUATION)
