"""Checks of settings, with one wording for all errors: the setting, its value, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence


def check_at_least(least: float, **settings: float | None) -> None:
    """Refuse numbers that are too small, infinite or not a number.

    Args:
        least: The smallest value that is allowed.
        **settings: The values by their names; None stands for a setting that was not given.

    Raises:
        ValueError: If a value is not allowed.
    """
    for name, value in settings.items():
        if value is not None and not least <= value < math.inf:
            raise ValueError(f"{name} is {value}; it must be at least {least}")


def check_finite(**settings: float | None) -> None:
    """Refuse numbers that are infinite or not a number.

    Args:
        **settings: The values by their names; None stands for a setting that was not given.

    Raises:
        ValueError: If a value is not allowed.
    """
    for name, value in settings.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} is {value}; it must be a finite number")


def check_choice(allowed: Sequence[str], **settings: str | None) -> None:
    """Refuse words that are not in a list.

    Args:
        allowed: The words that are allowed.
        **settings: The values by their names; None stands for a setting that was not given.

    Raises:
        ValueError: If a value is not allowed.
    """
    for name, value in settings.items():
        if value is not None and value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
