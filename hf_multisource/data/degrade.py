"""Mask words of one source, so that their meaning can only be inferred from another source (picture, language).

DATA is a folder of line-aligned text. Every `<split>.<source>[.gz]` in it is masked, and all other files are linked.
The masked words, after Caglayan et al. 2019 (https://doi.org/10.18653/v1/N19-1422), are:

    colors        color words (the paper's color deprivation); lists for English, German, French and Czech
    people        English nouns for people, the heads of most subjects of captions; a part of the paper's entity
                  masking, which needs the annotation of Flickr30k Entities
    progressive   every word after the first --keep words (the paper's progressive masking)
    share         each word with probability --share; a larger share also masks the words that a smaller share masks
    words         only the words of --words

--words names a file with one word a line; the comparison ignores case and the Unicode form (NFC or NFD). With `colors`
or `people` these words are added to the built-in list, or replace it in a language without a list. A word with hyphens
or apostrophes, such as "red-haired", is first looked up as a whole, then in its parts. The lists do not distinguish
meanings: "orange" is masked as a fruit, too. Everything that is not masked stays byte for byte. FOLDER/degrade.json
contains the settings and the counts of masked words.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import regex

from hf_multisource import MultiSourceConfig
from hf_multisource.data.checks import check_choice
from hf_multisource.data.files import check_new_folder, read_lines, write_json
from hf_multisource.data.normalization import compose

REPORT = "degrade.json"
# A part of a word: letters, digits and underscores with their combining marks, such as the vowel signs of Hindi. A part
# does not begin with a mark, because the variation selectors of emoji are marks, too.
PART = regex.compile(r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*")
# A word: parts that are joined by apostrophes ("man's"), hyphens ("t-shirt"), or the zero-width joiner and non-joiner,
# which belong to the spelling of words in Persian and Hindi.
WORD = regex.compile(rf"{PART.pattern}(?:['’\u200c\u200d-]{PART.pattern})*")


def inflect(stems: str, endings: str = "", prefixes: str = "") -> frozenset[str]:
    """Return every stem with an optional prefix and an optional ending; the arguments are separated by spaces."""
    return frozenset(
        prefix + stem + ending
        for prefix in ["", *prefixes.split()]
        for stem in stems.split()
        for ending in ["", *endings.split()]
    )


COLORS = {
    "en": inflect(
        """amber aqua auburn azure beige black blond blonde blue bronze brown brunette burgundy charcoal colorless
        copper coral cream crimson cyan fuchsia gold golden gray green grey indigo ivory khaki lavender lilac lime
        magenta maroon mauve mustard navy olive orange peach pink plum purple red rust salmon scarlet silver tan taupe
        teal turquoise violet white yellow""",
        "s",
    )
    | inflect("bluish brownish grayish greenish greyish orangish pinkish purplish reddish whitish yellowish"),
    "de": inflect(
        """beige beigefarben blau blond braun brünett bunt gelb golden goldfarben grau grün khaki lila magenta orange
        orangefarben orangen pink pinkfarben purpur purpurn rosa rosafarben rosarot rot schwarz schwarzweiß silber
        silbern silberfarben türkis türkisfarben violett weiß weiss""",
        "e er es em en n",
        "hell dunkel",
    ),
    "fr": inflect("beige blond bleu brun doré argenté gris jaune noir rose rouge vert violet", "e s es")
    | inflect(
        """blanc blancs blanche blanches bordeaux châtain châtains crème écru fuchsia kaki lilas marron marrons mauve
        mauves orange oranges pourpre pourpres roux rousse rousses turquoise violette violettes"""
    ),
    "cs": inflect(
        """béžov bíl blonďat čern červen fialov hněd khaki modr oranžov růžov rud šed šediv stříbrn tyrkysov vínov zelen
        zlat žlut""",
        "ý á é í ého ému ém ým ou ých ými o ě",
        "světle tmavě",
    ),
}
PEOPLE = {
    "en": inflect(
        """adult athlete audience baby babies bicyclist biker boy bride brother child children climber couple cowboy
        crowd cyclist dancer daughter family families father female firefighter fisherman fishermen friend gentleman
        gentlemen girl grandfather grandmother group groom guy hiker infant individual kid ladies lady male man men
        mother musician officer passenger pedestrian people performer person player police policeman policemen rider
        runner sister skateboarder skater skier snowboarder soldier son student surfer swimmer teenager teen toddler
        tourist worker woman women""",
        "s",
    )
}
LISTS = {"colors": COLORS, "people": PEOPLE}
HOW = (*LISTS, "progressive", "share", "words")


@dataclass(frozen=True)
class Masking:
    """Mask the words of a line that a method selects.

    Args:
        how: The method, one of `HOW`.
        mask: Text that replaces a masked word.
        words: With `colors`, `people` and `words`: the words to mask, as `words_of` returns them.
        keep: With `progressive`: number of words at the beginning of a line that stay.
        share: With `share`: probability of masking a word.
        seed: With `share`: random seed. The masked words of a line depend only on the seed and the line number.
    """

    how: str
    mask: str = "[v]"
    words: frozenset[str] = frozenset()
    keep: int = 0
    share: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(HOW, how=self.how)
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}, but is a probability, from 0 to 1")
        if self.keep < 0:
            raise ValueError(f"keep is {self.keep}, but must be at least 0")
        if not self.mask.strip():
            raise ValueError("mask is empty: an empty text would mean that the source is absent")
        if "\n" in self.mask:
            raise ValueError(f"mask is {self.mask!r}; it must be on one line, for line i of all files belongs together")

    def __call__(self, line: str, number: int) -> tuple[str, int, int]:
        """Mask a line.

        Args:
            line: The text.
            number: Number of the line in the file, counted from 0.

        Returns:
            The masked text, the number of words, and the number of masked words. With a list of words, the parts of a
            word that is not masked as a whole count as words.
        """
        lists = self.how in (*LISTS, "words")
        draws = random.Random(f"{self.seed} {number}")
        seen = masked = 0

        def count(word: str, chosen: bool) -> str:
            nonlocal seen, masked
            seen += 1
            masked += chosen
            return self.mask if chosen else word

        def choose_part(match: regex.Match[str]) -> str:
            return count(match[0], _comparable(match[0]) in self.words)

        def choose(match: regex.Match[str]) -> str:
            if not lists:
                return count(match[0], draws.random() < self.share if self.how == "share" else seen >= self.keep)
            if _comparable(match[0]) in self.words:
                return count(match[0], True)
            return PART.sub(choose_part, match[0])

        return WORD.sub(choose, line), seen, masked


def _comparable(word: str) -> str:
    """Return the form in which words are compared: composed (NFC), case-folded, with straight apostrophes."""
    return compose(word).casefold().replace("’", "'")


def words_of(how: str, language: str, extra: Iterable[str] = ()) -> frozenset[str]:
    """Return the words that a method masks.

    Args:
        how: `colors`, `people` or `words`.
        language: Language of the built-in list.
        extra: Words to add, the entries of --words.

    Returns:
        The words in the form in which they are compared: composed (NFC), case-folded, with straight apostrophes.

    Raises:
        ValueError: If there are no words, or an entry of `extra` is not one word.
    """
    built_in = LISTS.get(how, {}).get(language, frozenset())
    added = [word.strip() for word in extra if word.strip()]
    for entry in added:
        if not WORD.fullmatch(entry):
            raise ValueError(
                f"--words has {entry!r}, which can never match, because it is not one word: give each word a line of "
                "its own, with letters, digits, and hyphens or apostrophes between them"
            )
    words = frozenset(map(_comparable, (*built_in, *added)))
    if not words:
        have = f"; there is one for {', '.join(LISTS[how])}" if how in LISTS else ""
        raise ValueError(f"no list of {how} for {language!r}{have}: give --words FILE")
    return words


def degrade(data: Path, out: Path, source: str, masking: Masking) -> dict[str, dict[str, int]]:
    """Mask one source of a folder, and link the rest.

    Args:
        data: Folder of line-aligned text.
        out: Folder to write to, new or empty.
        source: Name of the source.
        masking: The masking.

    Returns:
        For every masked file, the number of lines, of words and of masked words.

    Raises:
        FileNotFoundError: If the folder contains no text of the source.
        FileExistsError: If `out` is not empty.
        ValueError: If the text cannot be read, or a split contains the text of the source twice.
    """
    if not data.is_dir():
        raise FileNotFoundError(f"no folder {data}")
    MultiSourceConfig.check_source_names([source])
    paths = sorted(path for path in data.iterdir() if path.name != REPORT)
    chosen = [path for path in paths if path.is_file() and path.name.removesuffix(".gz").endswith(f".{source}")]
    if not chosen:
        raise FileNotFoundError(f"no <split>.{source} or <split>.{source}.gz in {data}")
    check_new_folder(out)
    if twice := [path.name for path in chosen if data / f"{path.name}.gz" in chosen]:
        raise ValueError(f"{data} holds both {twice[0]} and {twice[0]}.gz: keep one")
    texts = {path: read_lines(path) for path in chosen}  # read all files before writing
    if empty := [path for path, lines in texts.items() if not lines]:
        raise ValueError(f"{empty[0]} is empty")
    out.mkdir(parents=True, exist_ok=True)
    report = {}
    for path in paths:
        if path not in chosen:
            if path.resolve() != out.resolve():
                (out / path.name).symlink_to(path.resolve())
            continue
        masked = [masking(line, number) for number, line in enumerate(texts[path])]
        text = "".join(f"{line}\n" for line, _, _ in masked)
        (out / path.name.removesuffix(".gz")).write_text(text, encoding="utf-8", newline="\n")
        report[path.name.removesuffix(".gz")] = {
            "lines": len(masked),
            "masked_lines": sum(count > 0 for _, _, count in masked),
            "words": sum(seen for _, seen, _ in masked),
            "masked_words": sum(count for _, _, count in masked),
        }
    return report


def degrade_folder(
    data: Path,
    out: Path,
    source: str,
    how: str,
    *,
    language: str | None = None,
    words: Path | None = None,
    keep: int | None = None,
    share: float | None = None,
    seed: int = 0,
    mask: str = "[v]",
) -> dict[str, dict[str, int]]:
    """Mask one source of a folder, link all other files, and write the counts of masked words to `degrade.json`.

    Args:
        data: Folder of line-aligned text.
        out: Folder to write to, new or empty.
        source: Name of the source.
        how: The method, one of `HOW`.
        language: Language of the built-in list. Defaults to the name of the source.
        words: File with one word a line; not with `progressive` and `share`.
        keep: With `progressive`: see [`Masking`].
        share: With `share`: see [`Masking`].
        seed: See [`Masking`].
        mask: See [`Masking`].

    Returns:
        The counts that `degrade` returns.

    Raises:
        FileNotFoundError: If there is no such folder, source or list of words.
        FileExistsError: If `out` is not empty.
        ValueError: If an option is not allowed, or cannot be combined with `how`.
    """
    check_choice(HOW, how=how)
    for kind, option, value in (("progressive", "keep", keep), ("share", "share", share)):
        if (how == kind) != (value is not None):
            verb = "needs" if how == kind else "does not take"
            raise ValueError(f"--how {how} {verb} --{option}")
    if words is not None and how in ("progressive", "share"):
        raise ValueError(f"--how {how} does not take --words")
    extra = read_lines(words) if words else []
    if words and not any(map(str.strip, extra)):
        raise ValueError(f"{words} holds no word")
    chosen = frozenset() if how in ("progressive", "share") else words_of(how, language or source, extra)
    masking = Masking(how, mask, chosen, keep or 0, share or 0.0, seed)
    report = degrade(data, out, source, masking)
    settings = {**vars(masking), "words": sorted(chosen), "source": source, "data": data.name}
    write_json(out / REPORT, {**settings, "files": report})
    return report
