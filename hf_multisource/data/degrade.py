"""Mask words of one source, so that another source (a picture, another language) is needed to know them.

DATA is a folder of line-aligned text; every `<split>.<source>[.gz]` in it is masked, all else is linked as it is. Which
words, after Caglayan et al. 2019 (https://doi.org/10.18653/v1/N19-1422):

    colours       words for colours: their colour deprivation; lists for English, German, French and Czech
    people        nouns for people, the heads of most subjects of captions: a part of what their entity masking takes,
                  which needs the annotation of Flickr30k Entities; English
    progressive   every word after the first --keep ones: their progressive masking
    share         each word with probability --share; what a smaller share masks, a larger one masks too
    words         the words of --words alone

--words names a file with one word a line, compared without regard to case; with `colours` or `people` it adds to the
list, which is how a language without one gets it. A list knows words, not meanings: "orange" is masked as a fruit, too.
Punctuation stays. FOLDER/degrade.json says what was masked, and how much.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hf_multisource import MultiSourceConfig
from hf_multisource.data.checks import check_choice
from hf_multisource.data.files import check_new_folder, read_lines, write_json

REPORT = "degrade.json"
WORD = re.compile(r"\w+(?:['’-]\w+)*")  # "man's", "t-shirt"
PART = re.compile(r"\w+")  # what the lists are compared with: of "red-haired" only "red" is masked


def inflect(stems: str, endings: str = "", prefixes: str = "") -> frozenset[str]:
    """Every prefix (and none) with every stem with every ending (and none); all between spaces."""
    return frozenset(
        prefix + stem + ending
        for prefix in ["", *prefixes.split()]
        for stem in stems.split()
        for ending in ["", *endings.split()]
    )


COLOURS = {
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
LISTS = {"colours": COLOURS, "people": PEOPLE}
HOW = (*LISTS, "progressive", "share", "words")
Masker = Callable[[str, random.Random], tuple[str, int]]


@dataclass(frozen=True)
class Masking:
    """Which words are masked, and with what.

    Args:
        how: One of `HOW`.
        mask: What stands in a masked word's place.
        words: With `colours`, `people` and `words`: the words, in any case.
        keep: With `progressive`: so many words at the beginning stay.
        share: With `share`: probability of masking a word.
        seed: With `share`: of the draws; those of a line depend on seed and line number alone.
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
            number: Its place in the file, counted from 0.

        Returns:
            The masked text, the number of its words, and how many of them are masked.
        """
        lists = self.how in (*LISTS, "words")
        draws = random.Random(f"{self.seed} {number}")
        seen = masked = 0

        def choose(match: re.Match[str]) -> str:
            nonlocal seen, masked
            seen += 1
            if lists:
                chosen = match[0].casefold() in self.words
            elif self.how == "share":
                chosen = draws.random() < self.share
            else:
                chosen = seen > self.keep
            masked += chosen
            return self.mask if chosen else match[0]

        text = (PART if lists else WORD).sub(choose, line)
        return text, seen, masked


def words_of(how: str, language: str, extra: Iterable[str] = ()) -> frozenset[str]:
    """The words that a masking looks for.

    Args:
        how: `colours`, `people` or `words`.
        language: Of the built-in list.
        extra: Words to add.

    Returns:
        The words, without regard to case.

    Raises:
        ValueError: If there are none.
    """
    built_in = LISTS.get(how, {}).get(language, frozenset())
    words = frozenset(word.strip().casefold() for word in (*built_in, *extra) if word.strip())
    if not words:
        have = f"; there is one for {', '.join(LISTS[how])}" if how in LISTS else ""
        raise ValueError(f"no list of {how} for {language!r}{have}: give --words FILE")
    return words


def degrade(data: Path, out: Path, source: str, masking: Masking) -> dict[str, dict[str, int]]:
    """Mask one source of a folder, and link the rest.

    Args:
        data: Folder of line-aligned text.
        out: Folder to write to; made, or empty.
        source: Name of the source.
        masking: What is masked.

    Returns:
        For every masked file the number of its lines and words, and how many of them are masked.

    Raises:
        FileNotFoundError: If there is no text of that source.
        FileExistsError: If there is something in `out`.
        ValueError: If the text cannot be read, or a split has it twice.
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
    texts = {path: read_lines(path) for path in chosen}  # all are read before anything is written
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
        out: Folder to write to; made, or empty.
        source: Name of the source.
        how: One of `HOW`.
        language: Language of the built-in list; None: the name of the source.
        words: File with one word a line.
        keep: With `progressive`: as [`Masking`].
        share: With `share`: as [`Masking`].
        seed: As [`Masking`].
        mask: As [`Masking`].

    Returns:
        What `degrade` returns.

    Raises:
        ValueError: If an option is not allowed, or does not go with `how`.
    """
    check_choice(HOW, how=how)
    for kind, option, value in (("progressive", "keep", keep), ("share", "share", share)):
        if (how == kind) != (value is not None):
            verb = "needs" if how == kind else "does not take"
            raise ValueError(f"--how {how} {verb} --{option}")
    extra = read_lines(words) if words else []
    if words and not any(map(str.strip, extra)):
        raise ValueError(f"{words} holds no word")
    chosen = frozenset() if how in ("progressive", "share") else words_of(how, language or source, extra)
    masking = Masking(how, mask, chosen, keep or 0, share or 0.0, seed)
    report = degrade(data, out, source, masking)
    settings = {**vars(masking), "words": sorted(chosen), "source": source, "data": data.name}
    write_json(out / REPORT, {**settings, "files": report})
    return report
