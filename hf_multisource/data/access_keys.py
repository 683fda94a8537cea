"""Access keys of labels, which catalogues keep in entries of their own: find the label, and choose a letter of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hf_multisource.data.catalogue_entries import Identity
from hf_multisource.data.placeholders import ANY, find_placeholders

ACCESS_KEY = re.compile("access[-_.]?key", re.IGNORECASE)
LABELS = (".label", "", ".value", ".title")  # attributes that an access key may belong to


def is_access_key(key: str, part: str) -> bool:
    """Return whether an entry is an access key, by its name.

    Args:
        key: Key of the entry.
        part: Part of the entry.

    Returns:
        The answer.
    """
    return ACCESS_KEY.search(part.partition("[")[0] or key) is not None


def labels_of(key: str, part: str) -> tuple[Identity, ...]:
    """Return the entries that an access key may belong to.

    Args:
        key: Key of the access key.
        part: Part of the access key.

    Returns:
        Keys and parts, likeliest first.
    """
    if part:
        same = [ACCESS_KEY.sub(label, part) for label in ("label", "Label")]
        return tuple(dict.fromkeys((key, one) for one in (*same, *LABELS)))
    bare = re.sub(rf"[-_.]?{ACCESS_KEY.pattern}", "", key, flags=re.IGNORECASE)
    names = [ACCESS_KEY.sub("label", key), ACCESS_KEY.sub("Label", key), *(f"{bare}{label}" for label in LABELS)]
    return tuple((name, "") for name in dict.fromkeys(names))


def choose_access_key(label: str, sources: Mapping[str, str], syntax: str = ANY) -> str | None:
    """Choose the access key of a label.

    Args:
        label: The label.
        sources: Language -> access key of the source.
        syntax: Syntax of the placeholders of the label, which hold no access key.

    Returns:
        The first source's access key that occurs in the label, in its letter case if the label has it, or else the
        first letter of the label; None if the label has no letter.
    """
    hidden = {i for one in find_placeholders(label, syntax) for i in range(one.start, one.end)}
    letters = [letter for i, letter in enumerate(label) if i not in hidden and letter.isalnum()]
    for key in sources.values():
        if found := [letter for letter in letters if letter.casefold() == key.strip().casefold()]:
            return key.strip() if key.strip() in found else found[0]
    return letters[0] if letters else None


__all__ = ["choose_access_key", "is_access_key", "labels_of"]
