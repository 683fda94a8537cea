"""Plural forms of languages: CLDR's categories, and the map from the numbered forms of gettext to the categories."""

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
NUMBERS = range(1001)  # numbers for comparing rules; CLDR's rules have a shorter period, except for rules on millions
# Languages with different rules, with which a language without a CLDR rule is compared. If two rules group the numbers
# alike but name the groups differently, the first is used.
EXAMPLES = (
    *("en", "fr", "ja", "cs", "pl", "ru", "is", "lt", "lv", "ro"),
    *("sl", "dsb", "ga", "gd", "br", "mt", "ar", "he", "cy", "mk"),
)
# Plural forms of Qt: expression of gettext -> languages. Qt has one form for all other languages, such as Turkish and
# Sorbian. Read from the files that Qt's `lupdate` and `lrelease` 5.15 write.
_TEENS = "(n%100<10 || n%100>19)"
QT_FORMULAS = {
    "nplurals=2; plural=n!=1;": (
        "aa ab af am as az ba bg bn ca co da de el en eo es et eu fi fo fur fy gl gu ha he hi ia ie it iw ji ka kk kl "
        "km kn ks ku kw ky la lb ln lo mg ml mn mr nb ne nl nn no nso oc or pa ps pt pt_PT qu rm rn rw sd si sn so sq "
        "ss st sv sw ta te tg tk tn to ts ug ur uz vo wo xh yi zu"
    ),
    "nplurals=2; plural=n>1;": "br fil fr hy pt_BR ti tl wa",
    "nplurals=2; plural=n%10!=1 || n%100==11;": "is",
    "nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;": "dv ga gv iu mi sa se",
    f"nplurals=3; plural=n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && {_TEENS} ? 1 : 2;": "be bs hr ru sh sr uk",
    f"nplurals=3; plural=n==1 ? 0 : n%10>=2 && n%10<=4 && {_TEENS} ? 1 : 2;": "pl",
    "nplurals=3; plural=n==1 ? 0 : n>=2 && n<=4 ? 1 : 2;": "cs sk",
    "nplurals=3; plural=n==1 ? 0 : n==0 || n%100>0 && n%100<20 ? 1 : 2;": "ro",
    f"nplurals=3; plural=n%10==1 && n%100!=11 ? 0 : n%10!=0 && {_TEENS} ? 1 : 2;": "lt",
    "nplurals=3; plural=n%10==1 && n%100!=11 ? 0 : n!=0 ? 1 : 2;": "lv",
    "nplurals=3; plural=n%10==1 ? 0 : n%10==2 ? 1 : 2;": "mk",
    "nplurals=4; plural=n==1 || n==11 ? 0 : n==2 || n==12 ? 1 : n>=3 && n<=19 ? 2 : 3;": "gd",
    "nplurals=4; plural=n==1 ? 0 : n==0 || n%100>0 && n%100<11 ? 1 : n%100>10 && n%100<20 ? 2 : 3;": "mt",
    "nplurals=4; plural=n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3;": "sl",
    "nplurals=5; plural=n==0 ? 0 : n==1 ? 1 : n>=2 && n<=5 ? 2 : n==6 ? 3 : 4;": "cy",
    "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>10 ? 4 : 5;": "ar",
}
FORMULA = re.compile(r"nplurals\s*=\s*(\d{1,2})\s*;\s*plural\s*=\s*([^;\n]{1,1000})")


@dataclass(frozen=True)
class PluralRule:
    """Plural rule of a language, which maps whole numbers to CLDR categories.

    Args:
        language: Code of the language, without a territory.
        category: Function that maps a whole number to one of `CATEGORIES`.
        categories: The categories of whole numbers, in the order of `CATEGORIES`.
        repeated: The categories that contain several positive whole numbers, such as `one` in Russian, which contains 1
            and 21.
        formula: Value of the `Plural-Forms` header of gettext: the number of forms, and an expression for the form of a
            number n. The forms are the `categories` in order.
    """

    language: str
    category: Callable[[int], str]
    categories: tuple[str, ...]
    repeated: tuple[str, ...]
    formula: str

    @property
    def variants(self) -> tuple[str, ...]:
        """The categories of a selector: the categories of whole numbers, and `other`, which every selector needs."""
        return tuple(name for name in CATEGORIES if name in (*self.categories, OTHER))


@cache
def is_locale(name: str) -> bool:
    """Return whether CLDR has a locale.

    Args:
        name: Language, such as `es`, or language and territory, such as `es_AR`.

    Returns:
        Whether CLDR has it; False without the package babel.
    """
    try:
        from babel.localedata import exists
    except ImportError:
        return False
    return exists(name)


@cache
def main_territory(language: str) -> str:
    """Return the territory where a language is mainly spoken, by CLDR's likely subtags.

    Args:
        language: Language code, such as `pt`.

    Returns:
        The territory, such as `BR`; "" if it is not known, or without the package babel.
    """
    try:
        from babel.core import get_global
    except ImportError:
        return ""
    return str(get_global("likely_subtags").get(language, "")).rpartition("_")[2]


@cache
def plural_rule(language: str, header: str = "") -> PluralRule | None:
    """Return the CLDR plural rule of a language, or the rule of a language with the same gettext formula.

    Args:
        language: Language code, such as `dsb`, `pt-BR` or `pt_BR`.
        header: Header of a gettext file in this language. For languages without a CLDR rule, such as Occitan and
            Silesian, its formula is compared with the rules of other languages.

    Returns:
        The rule. None if CLDR has no rule for the language, and the header has no formula of another language.

    Raises:
        ImportError: If the package babel is not installed.
    """
    rule = _cldr_rule(language, "plural_form")
    short = re.split("[-_@.]", language)[0]
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


def ordinal_categories(language: str) -> tuple[str, ...] | None:
    """Return the CLDR categories of the ordinal numbers of a language, such as 1st, 2nd, 3rd and 4th in English.

    Args:
        language: Language code, such as `ca`, `pt-BR` or `pt_BR`.

    Returns:
        The categories, in the order of `CATEGORIES`; None if CLDR has no rule for the language.

    Raises:
        ImportError: If the package babel is not installed.
    """
    rule = _cldr_rule(language, "ordinal_form")
    return None if rule is None else tuple(name for name in CATEGORIES if name in (*rule.tags, OTHER))


def _cldr_rule(language: str, kind: str) -> Any:
    """Return the rule of a language for `plural_form` or `ordinal_form`; None if CLDR has none."""
    try:
        from babel import Locale, UnknownLocaleError
        from babel.localedata import load
    except ImportError as error:
        raise ImportError(f"plural forms need the package babel: {install_hint('localization')}") from error
    for code in (language, re.split("[-_@.]", language)[0]):
        try:
            locale = Locale.parse(code, sep="_" if "_" in code else "-")
        except (UnknownLocaleError, ValueError):
            continue
        rule = getattr(locale, kind)
        return None if rule is load("root").get(kind) else rule  # the root's rule: CLDR has none
    return None


def _same_formula(language: str, header: str) -> PluralRule | None:
    """Return the rule that groups the numbers like the formula of a header, regardless of the order of the forms."""
    if (found := _read_formula(header)) is None:
        return None
    number_of_forms, forms = found
    for rule in map(plural_rule, EXAMPLES):
        if rule is not None and _groups(map(rule.category, NUMBERS)) == _groups(forms):
            return replace(rule, language=language) if number_of_forms == len(rule.categories) else None
    return None


def _groups(values: Iterable[object]) -> list[int]:
    """Replace each value by a number, in the order of the first occurrences."""
    found: dict[object, int] = {}
    return [found.setdefault(value, len(found)) for value in values]


def _read_formula(header: str) -> tuple[int, list[int]] | None:
    """Return the number of forms in a header, and the form of each of `NUMBERS`; None if the header is invalid."""
    if not (found := FORMULA.search(header)):
        return None
    try:
        forms = [*map(gettext.c2py(found[2].strip()), NUMBERS)]
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return (int(found[1]), forms) if all(0 <= form < int(found[1]) for form in forms) else None


def _whole(condition: Any) -> Any:
    """Convert a CLDR condition for whole numbers into a C expression, or a constant if it does not depend on n.

    In CLDR, i is the whole part of a number; v, w, f and t describe its decimals, and c and e its exponent.
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
    decided = name == "or"  # value of one operand that decides the result
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
        rule: Plural rule of the file's language.

    Returns:
        For each form, the most frequent category of its positive numbers that no other form has and to which at least a
        tenth of the numbers belong, or else the most frequent one; None if the header has no valid formula.
    """
    if (found := _read_formula(header)) is None:
        return None
    number_of_forms, form_of = found
    counts: list[Counter[str]] = [Counter() for _ in range(number_of_forms)]
    for number, form in [*zip(NUMBERS, form_of, strict=True)][1:]:
        counts[form][rule.category(number)] += 1
    if not counts[form_of[0]]:  # a form for the number 0 alone
        counts[form_of[0]][rule.category(0)] += 1
    # Categories of at least a tenth of the form's numbers, the most frequent first.
    named = [[name for name, n in one.most_common() if 10 * n >= one.total()] for one in counts]
    categories = [OTHER] * number_of_forms
    taken: set[str] = set()
    for form in sorted(range(number_of_forms), key=lambda form: len(named[form])):  # a form of one category first
        if names := named[form]:
            categories[form] = next((name for name in names if name not in taken), names[0])
            taken.add(categories[form])
    return tuple(categories)


def qt_formula(language: str) -> str:
    """Return the plural formula that Qt's Linguist tools have for a language, which may differ from CLDR's.

    Args:
        language: Language code, such as `dsb`, `pt-BR` or `pt_BR`.

    Returns:
        Number of forms and expression, as the `Plural-Forms` header of gettext has them.
    """
    parts = re.split("[-_@.]", language)
    codes = ("_".join([parts[0].lower(), *(part.upper() for part in parts[1:2])]), parts[0].lower())
    found = (formula for code in codes for formula, languages in QT_FORMULAS.items() if code in languages.split())
    return next(found, "nplurals=1; plural=0;")


__all__ = [
    "CATEGORIES",
    "FORMULA",
    "OTHER",
    "QT_FORMULAS",
    "PluralRule",
    "forms_of_header",
    "ordinal_categories",
    "plural_rule",
    "qt_formula",
]
