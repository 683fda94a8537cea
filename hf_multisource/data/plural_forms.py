"""Plural forms of languages: the categories of CLDR, and how the numbered forms of gettext and Qt map to them."""

from __future__ import annotations

import gettext
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hf_multisource.messages import install_hint

CATEGORIES = ("zero", "one", "two", "few", "many", "other")  # in the order of CLDR
OTHER = "other"
NUMBERS = range(1001)  # numbers by which rules are compared; no rule of CLDR but those of a million has a longer period
# Languages with different rules, which a language without a rule in CLDR is compared with. Where two rules have the
# same groups of numbers and other names for them, the first one is taken.
EXAMPLES = (
    *("en", "fr", "ja", "cs", "pl", "ru", "is", "lt", "lv", "ro"),
    *("sl", "dsb", "ga", "gd", "br", "mt", "ar", "he", "cy", "mk"),
)
FORMULA = re.compile(r"nplurals\s*=\s*(\d{1,2})\s*;\s*plural\s*=\s*([^;\n]{1,1000})")


@dataclass(frozen=True)
class PluralRule:
    """Which category of CLDR a whole number has in a language.

    Args:
        language: Code of the language, without a territory.
        category: Whole number -> one of `CATEGORIES`.
        categories: The categories that whole numbers have, in the order of `CATEGORIES`.
        repeated: The categories of several whole numbers from 1 on, such as `one` of Russian, which 21 has, too.
        formula: What a `Plural-Forms` header of gettext says: the number of forms, and the form of a number n. The
            forms are the `categories` in order.
    """

    language: str
    category: Callable[[int], str]
    categories: tuple[str, ...]
    repeated: tuple[str, ...]
    formula: str

    @property
    def variants(self) -> tuple[str, ...]:
        """The categories of selectors: those of whole numbers, and `other`, which selectors must have."""
        return tuple(name for name in CATEGORIES if name in (*self.categories, OTHER))


@cache
def plural_rule(language: str, header: str = "") -> PluralRule | None:
    """Return the plural rule of a language: that of CLDR, or else that of a language with the same formula.

    Args:
        language: Its code, such as `dsb`, `pt-BR` or `pt_BR`.
        header: The header of a gettext file in this language. CLDR has no rule for some languages, such as Occitan and
            Silesian; the formula of the header then tells which rule of other languages they have.

    Returns:
        The rule; None if CLDR has none, and the header has no formula of another language.

    Raises:
        ImportError: If the package babel is not installed.
    """
    try:
        from babel import Locale, UnknownLocaleError
        from babel.localedata import load
    except ImportError as error:
        raise ImportError(f"plural forms need the package babel: {install_hint('localization')}") from error
    rule = None
    short = re.split("[-_@.]", language)[0]
    for code in (language, short):
        try:
            locale = Locale.parse(code, sep="_" if "_" in code else "-")
        except (UnknownLocaleError, ValueError):
            continue
        inherited = locale.plural_form is load("root").get("plural_form")  # one form for all numbers: no rule is known
        rule = None if inherited else locale.plural_form
        break
    if rule is None:
        return _same_formula(short.lower(), header)
    found = Counter(rule(number) for number in NUMBERS)
    categories = tuple(name for name in CATEGORIES if name in found)
    repeated = tuple(name for name in categories if found[name] - (rule(0) == name) > 1)
    conditions = dict(rule.abstract)
    formula = str(len(categories) - 1)
    for index in reversed(range(len(categories) - 1)):
        formula = f"{_whole(conditions[categories[index]])} ? {index} : {formula}"
    return PluralRule(short.lower(), rule, categories, repeated, f"nplurals={len(categories)}; plural=({formula});")


def _same_formula(language: str, header: str) -> PluralRule | None:
    """The rule that groups the numbers as the formula of a header does, whatever the order of the forms."""
    if (found := _read_formula(header)) is None:
        return None
    number_of_forms, forms = found
    for rule in map(plural_rule, EXAMPLES):
        if rule is not None and _groups(map(rule.category, NUMBERS)) == _groups(forms):
            return replace(rule, language=language) if number_of_forms == len(rule.categories) else None
    return None


def _groups(values: Iterable[object]) -> list[int]:
    """The values as numbers, in the order in which each occurs first."""
    found: dict[object, int] = {}
    return [found.setdefault(value, len(found)) for value in values]


def _read_formula(header: str) -> tuple[int, list[int]] | None:
    """The number of forms that a header declares, and the form of each of `NUMBERS`; None if it cannot be read."""
    if not (found := FORMULA.search(header)):
        return None
    try:
        forms = [*map(gettext.c2py(found[2].strip()), NUMBERS)]
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return (int(found[1]), forms) if all(0 <= form < int(found[1]) for form in forms) else None


def _whole(condition: Any) -> Any:
    """A condition of CLDR for whole numbers, as an expression of C; a constant where it does not depend on the number.

    In CLDR, i is the whole part of a number, v, w, f and t describe its decimals, and c and e its exponent.
    """
    name, arguments = condition
    if name == "value":
        return arguments[0]
    if name in ("n", "i"):
        return "n"
    if name in ("v", "w", "f", "t", "c", "e"):
        return 0
    if name == "mod":
        left, right = map(_whole, arguments)
        return f"{left} % {right}" if isinstance(left, str) else left % right
    if name == "relation":
        _, value, (_, pairs) = arguments
        value = _whole(value)
        bounds = [(_whole(low), _whole(high)) for low, high in pairs]
        if not isinstance(value, str):
            return any(low <= value <= high for low, high in bounds)
        tests = [f"{value} == {low}" if low == high else _both(f"{value} >= {low}", f"{value} <= {high}")
                 for low, high in bounds]  # fmt: skip
        return tests[0] if len(tests) == 1 else f"({' || '.join(tests)})"
    if name == "not":
        inner = _whole(arguments[0])
        return f"!({inner})" if isinstance(inner, str) else not inner
    decided = name == "or"  # what one side decides alone
    sides = [side for side in map(_whole, arguments) if side is not (not decided)]
    if not sides or decided in sides:
        return decided if decided in sides else not decided
    return sides[0] if len(sides) == 1 else f"({' || '.join(sides)})" if decided else _both(*sides)


def _both(left: str, right: str) -> str:
    return f"({left} && {right})"


def forms_of_header(header: str, rule: PluralRule) -> tuple[str, ...] | None:
    """Return the category of each plural form of a gettext file.

    Args:
        header: The header of the file, with its line `Plural-Forms`.
        rule: The rule of its language.

    Returns:
        Of each form, the category that most of its numbers have; None if the header has no formula that can be read.
    """
    if (found := _read_formula(header)) is None:
        return None
    number_of_forms, form_of = found
    forms: list[Counter[str]] = [Counter() for _ in range(number_of_forms)]
    for number, form in zip(NUMBERS, form_of, strict=True):
        forms[form][rule.category(number)] += 1
    return tuple(form.most_common(1)[0][0] if form else OTHER for form in forms)


__all__ = ["CATEGORIES", "OTHER", "PluralRule", "forms_of_header", "plural_rule"]
