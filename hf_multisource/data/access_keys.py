"""Access keys, which are letters of labels: find the label of an access key, and choose its letter.

This module also recognizes keyboard shortcuts, codes of keys and sizes in CSS, which are copied and not translated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import regex

from hf_multisource.data.catalogue_entries import Identity
from hf_multisource.data.placeholders import ANY, find_placeholders

# Letters that are typed with an input method. They cannot be access keys, because no single key produces them.
WITHOUT_KEY = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\u30fc\uff70]")
ACCESS_KEY = re.compile(r"(?:access[-_.]?key|mnemonic\Z)", re.IGNORECASE)  # Java says mnemonic
LABELS = (
    ".label",
    "",
    ".value",
    ".title",
    ".aria-label",
    ".tooltiptext",
)  # attributes that an access key may belong to

# Names of entries that are the key of a keyboard shortcut, such as S in Ctrl+S
SHORTCUT = re.compile(r"(?:\.key|commandkey|shortcut)\Z", re.IGNORECASE)
KEY_CODE = re.compile(r"VK_\w+")  # Mozilla's name of a key
LENGTH = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:ch|cm|em|ex|in|mm|pc|pt|px|rem|vh|vw)"
# A length, or a list of sizes such as `width: 32em; min-height: 20em`
CSS_SIZE = re.compile(rf"{LENGTH}|(?:(?:[a-z]+-)*(?:width|height|size)\s*:\s*{LENGTH}\s*(?:;\s*|\Z))+")


def is_access_key(key: str, part: str) -> bool:
    """Return whether the name of an entry says that it is an access key.

    Args:
        key: Key of the entry.
        part: Part of the entry.

    Returns:
        Whether the key, or the part if it is not empty, contains `accesskey` or ends in `mnemonic`.
    """
    return ACCESS_KEY.search(part.partition("[")[0] or key) is not None


def is_fixed(key: str, part: str, text: str) -> bool:
    """Return whether a text is fixed: the key of a shortcut, the code of a key or a size in CSS.

    Fixed texts are copied instead of translated.

    Args:
        key: Key of the entry.
        part: Part of the entry.
        text: Text of the entry.

    Returns:
        Whether the text is one of the following: the name of a key (`VK_F11`); a length or a list of sizes in CSS
        (`32em`, `width: 32em; height: 20em`); a number of several digits in an entry of an access key, such as Java's
        code `83` of the key S; or a single character in an entry whose key, or part if it is not empty, ends in `.key`,
        `commandkey` or `shortcut`. Chinese, Japanese and Korean letters are words, not shortcuts.
    """
    text = text.strip()
    if len(text) == 1:
        return SHORTCUT.search(part.partition("[")[0] or key) is not None and not WITHOUT_KEY.match(text)
    if text.isdecimal() and is_access_key(key, part):
        return True
    return KEY_CODE.fullmatch(text) is not None or CSS_SIZE.fullmatch(text) is not None


def labels_of(key: str, part: str) -> tuple[Identity, ...]:
    """Return the entries that an access key may belong to.

    Args:
        key: Key of the access key.
        part: Part of the access key.

    Returns:
        Key and part of each candidate, the likeliest first; the parts contain no variants.
    """
    if part:
        same = [ACCESS_KEY.sub(label, part.partition("[")[0]) for label in ("label", "Label")]
        return tuple(dict.fromkeys((key, one) for one in (*same, *LABELS)))
    bare = re.sub(rf"[-_.]?{ACCESS_KEY.pattern}", "", key, flags=re.IGNORECASE)
    names = [ACCESS_KEY.sub("label", key), ACCESS_KEY.sub("Label", key), *(f"{bare}{label}" for label in LABELS)]
    return tuple((name, "") for name in dict.fromkeys(names))


def choose_access_key(labels: Sequence[str], sources: Mapping[str, str], syntax: str = ANY) -> str:
    """Choose the access key of a label.

    Args:
        labels: The label; if it has variants, all of them.
        sources: Language -> access key of the source.
        syntax: Syntax of the placeholders of the label, which hold no access key.

    Returns:
        The access key of the first source whose access key occurs in all variants of the label, with its letter case
        if the first variant contains it. Otherwise, the first letter that all variants share. If the variants share no
        letter, the access key of the first source. Chinese, Japanese and Korean letters are never chosen.
    """
    first, *others = [_letters(label, syntax) for label in labels]
    shared = [letter for letter in first if all(letter.casefold() in map(str.casefold, other) for other in others)]
    keys = [key.strip() for key in sources.values()]
    for key in keys:
        if found := [letter for letter in shared if letter.casefold() == key.casefold()]:
            return key if key in found else found[0]
    return shared[0] if shared else keys[0]


def _letters(label: str, syntax: str) -> list[str]:
    """Return the letters and digits of a label that have a key and are not part of a placeholder."""
    hidden = {i for one in find_placeholders(label, syntax) for i in range(one.start, one.end)}
    found = [letter for i, letter in enumerate(label) if i not in hidden and letter.isalnum()]
    return [letter for letter in found if not WITHOUT_KEY.match(letter)]


__all__ = ["choose_access_key", "is_access_key", "is_fixed", "labels_of"]
