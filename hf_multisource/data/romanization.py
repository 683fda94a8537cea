"""Transliterate Russian and Kazakh from Cyrillic to Latin letters and back.

Littell et al. (2019, sec. 3) write Kazakh and Russian in Latin letters, so that names and loan words share subwords
with English. The spelling used here is ISO 9:1995, which writes every Cyrillic letter as one Latin letter, with a mark
where needed. One detail differs: ISO 9 does not tell capital hard and soft signs from small ones; here the capital ones
have a macron below, so that the text can be restored.
"""

from __future__ import annotations

import re
import unicodedata

_LETTERS = {
    "а": "a", "б": "b", "в": "v", "г": "g", "д": "d", "е": "e", "ё": "ë", "ж": "ž", "з": "z", "и": "i", "й": "j",
    "к": "k", "л": "l", "м": "m", "н": "n", "о": "o", "п": "p", "р": "r", "с": "s", "т": "t", "у": "u", "ф": "f",
    "х": "h", "ц": "c", "ч": "č", "ш": "š", "щ": "ŝ", "ы": "y", "э": "è", "ю": "û", "я": "â",
    "ә": "a\u030b", "ғ": "ġ", "қ": "ķ", "ң": "ņ", "ө": "ô", "ұ": "u\u0307", "ү": "ù", "һ": "ḥ", "і": "ì",
}  # fmt: skip
_SIGNS = {"ъ": "\u02ba", "ь": "\u02b9", "Ъ": "\u02ba\u0331", "Ь": "\u02b9\u0331"}

#: Latin spelling by Cyrillic letter: the 33 letters of Russian and 9 more of Kazakh, small and capital.
ROMANIZATION: dict[str, str] = {**_LETTERS, **{a.upper(): b.upper() for a, b in _LETTERS.items()}, **_SIGNS}

#: Cyrillic letter by Latin spelling; spellings of two characters come first, since the others are parts of them.
CYRILLIC: dict[str, str] = dict(sorted(((b, a) for a, b in ROMANIZATION.items()), key=lambda pair: -len(pair[0])))

_TO_LATIN = str.maketrans(ROMANIZATION)
_SPELLING = re.compile("|".join(map(re.escape, CYRILLIC)))


def romanize(text: str) -> str:
    """Transliterate the Cyrillic letters of Russian and Kazakh to Latin letters.

    Args:
        text: A text, which is converted to Unicode's normal form C first.

    Returns:
        The transliterated text. All other characters stay unchanged.
    """
    return unicodedata.normalize("NFC", text).translate(_TO_LATIN)


def deromanize(text: str) -> str:
    """Transliterate the Latin letters of [`romanize`] back to Cyrillic letters.

    `deromanize(romanize(text))` is `text` in normal form C if `text` contains no Latin letters, which would become
    Cyrillic as well.

    Args:
        text: A text, which is converted to Unicode's normal form C first.

    Returns:
        The text.
    """
    return _SPELLING.sub(lambda found: CYRILLIC[found[0]], unicodedata.normalize("NFC", text))
