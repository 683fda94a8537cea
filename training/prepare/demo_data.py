"""Write the demo's corpus: localized phrases in English, German and French (sources) and Czech (target).

    python training/prepare/demo_data.py FOLDER [--seed 0] [--train 12000] [--dev 300] [--test 500]

A record consists of seven random facts. Each language contains some of the facts as one CLDR list, in the order of
`FACTS`:

    fact      en  de  fr  cs    example (one source -> target)
    weekday   x   .   x   x     Monday -> pondělí
    day       x   x   .   x     3. Mai -> 3. května
    year      .   x   x   x     1998 -> 1998
    amount    x   .   .   x     2 hours -> 2 hodiny
    price     .   .   x   x     5 euros -> 5 eur
    number    .   x   .   x     dreiundzwanzig -> dvacet tři
    time      x   .   x   x     2:30 PM -> 14:30

Every source lacks some facts, and the target contains all of them. Even two sources are never sufficient: the amount is
only in English, the number only in German, and the price only in French. The facts are drawn independently, without a
calendar (3 May 1998 may be any weekday), so that a missing fact cannot be inferred from the others.

The words come from CLDR through Babel, and the number words from num2words; another version of these packages may word
a phrase differently. Every space of CLDR, including no-break and narrow spaces, is replaced by a plain space, because
the kind of space is a matter of typesetting and would only test the tokenizer.

The corpus tests that all parts of the package work together. It is easy by construction, so that its scores say nothing
about the quality of a model.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

try:
    from babel.dates import format_skeleton, format_time, get_day_names
    from babel.lists import format_list
    from babel.numbers import format_currency
    from babel.units import format_unit
    from num2words import num2words
except ImportError as error:
    needed = 'The demo data needs Babel and num2words: run pip install ".[demo]" in a clone of the repository'
    raise ImportError(f"{needed} ({error})") from error

SOURCES = ("en", "de", "fr")
TARGET = "cs"
LANGUAGES = (*SOURCES, TARGET)

Record = dict[str, Any]
"""The value of each fact, by the fact's name."""


@dataclass(frozen=True)
class Fact:
    """A fact that the target contains.

    Args:
        sources: The sources that contain the fact.
        values: The possible values, all equally likely.
        phrase: Function that expresses a value in a language.
    """

    sources: tuple[str, ...]
    values: Sequence[Any]
    phrase: Callable[[Any, str], str]


DAYS = [date(2001, 1, 1) + timedelta(days) for days in range(365)]  # days of a common year; the year is not used
YEARS = [date(year, 1, 1) for year in range(1990, 2031)]
UNITS = ("mass-kilogram", "volume-liter", "length-meter", "duration-hour", "duration-day")
AMOUNTS = list(product(range(1, 31), UNITS))
PRICES = list(product(range(1, 51), ("EUR", "USD", "GBP", "CZK", "JPY")))
IN_WORDS: dict[str, Any] = {"format_type": "name", "currency_digits": False}  # "5 euros", not "€5.00"
TIMES = [time(hour, minute) for hour in range(24) for minute in (0, 15, 30, 45)]

FACTS = {
    "weekday": Fact(("en", "fr"), range(7), lambda day, to: get_day_names(locale=to)[day]),
    "day": Fact(("en", "de"), DAYS, lambda day, to: format_skeleton("MMMMd", day, locale=to)),
    "year": Fact(("de", "fr"), YEARS, lambda year, to: format_skeleton("y", year, locale=to)),
    "amount": Fact(("en",), AMOUNTS, lambda amount, to: format_unit(amount[0], amount[1], locale=to)),
    "price": Fact(("fr",), PRICES, lambda price, to: format_currency(price[0], price[1], locale=to, **IN_WORDS)),
    "number": Fact(("de",), range(1, 100), lambda number, to: num2words(number, lang=to)),
    "time": Fact(("en", "fr"), TIMES, lambda clock, to: format_time(clock, "short", locale=to)),
}


def draw(rng: random.Random) -> Record:
    """Draw a record of independent facts."""
    return {name: rng.choice(fact.values) for name, fact in FACTS.items()}


@cache
def phrase(name: str, value: Any, language: str) -> str:
    """Return the phrase of a fact in a language, in one line and with plain spaces."""
    return " ".join(FACTS[name].phrase(value, language).split())


def tell(record: Record, language: str) -> str:
    """Return the text of a record in a language: the facts that the language contains, as one CLDR list."""
    held = [name for name, fact in FACTS.items() if language == TARGET or language in fact.sources]
    phrases = [phrase(name, record[name], language) for name in held]
    return " ".join(format_list(phrases, locale=language).split())


def generate(train: int = 12000, dev: int = 300, test: int = 500, seed: int = 0) -> dict[str, list[dict[str, str]]]:
    """Generate the splits; no target line, and thus no record, occurs twice in them.

    Each split has its own random generator, and the held-out splits are drawn first. They are therefore independent of
    the size of the training set, and a smaller training set is the beginning of a larger one.

    Args:
        train: Number of records in the training split.
        dev: Number of records in the dev split.
        test: Number of records in the test split.
        seed: Random seed; the same seed gives the same rows.

    Returns:
        The rows of each split; a row has one line of text for each of "en", "de", "fr" and "cs".

    Raises:
        ValueError: If a split would be empty; the message gives its name and size.
    """
    splits: dict[str, list[dict[str, str]]] = {"train": [], "dev": [], "test": []}
    told: set[str] = set()
    for split, size in (("test", test), ("dev", dev), ("train", train)):
        if size < 1:
            raise ValueError(f"{split} must be at least 1 record, got {size}")
        rng = random.Random(f"{seed} {split}")  # a string seed does not depend on PYTHONHASHSEED
        while len(splits[split]) < size:
            record = draw(rng)
            target = tell(record, TARGET)
            if target not in told:
                told.add(target)
                splits[split].append({**{source: tell(record, source) for source in SOURCES}, TARGET: target})
    return splits


def write(
    folder: str | os.PathLike[str], train: int = 12000, dev: int = 300, test: int = 500, seed: int = 0
) -> list[Path]:
    """Write the splits as line-aligned UTF-8 text, one file `<split>.<language>` each.

    Files are written atomically, so that an interrupted run can be repeated.

    Args:
        folder: Folder to write to; it is created if necessary.
        train: See `generate`.
        dev: See `generate`.
        test: See `generate`.
        seed: See `generate`.

    Returns:
        The written files, without files that already existed with the same text.

    Raises:
        FileExistsError: If a file exists with another text. In this case, nothing is written.
    """
    wanted = {
        Path(folder) / f"{split}.{language}": "".join(f"{row[language]}\n" for row in rows).encode()
        for split, rows in generate(train, dev, test, seed).items()
        for language in LANGUAGES
    }
    for path, text in wanted.items():
        if path.exists() and path.read_bytes() != text:
            raise FileExistsError(f"{path} holds other text than this demo's: delete it or give another folder")
    missing = [path for path in wanted if not path.exists()]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for path in missing:
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(wanted[path])
        part.replace(path)
    return missing


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the corpus; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Write the demo's corpus: en, de and fr (sources), cs (target).")
    parser.add_argument("folder", type=Path, help="gets a file <split>.<language> for each split and language")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other records (default: %(default)s)")
    for split, size in (("train", 12000), ("dev", 300), ("test", 500)):
        parser.add_argument(f"--{split}", type=int, default=size, help=f"records in {split} (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        written = write(**vars(options))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"{options.folder}: {len(written)} files written, {3 * len(LANGUAGES) - len(written)} were there already")


if __name__ == "__main__":
    main()
