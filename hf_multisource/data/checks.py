"""Checks of settings whose error messages all name the setting, its value and the allowed values."""

from __future__ import annotations

import math
from collections.abc import Sequence


def check_at_least(least: float, **settings: float | None) -> None:
    """Raise ValueError for numbers that are too small, infinite or NaN.

    Args:
        least: The smallest allowed value.
        **settings: The values by setting; None for a setting that was not given.

    Raises:
        ValueError: If a value is not allowed.
    """
    for name, value in settings.items():
        if value is not None and not least <= value < math.inf:
            raise ValueError(f"{name} is {value}; it must be at least {least}")


def check_finite(**settings: float | None) -> None:
    """Raise ValueError for numbers that are infinite or NaN.

    Args:
        **settings: The values by setting; None for a setting that was not given.

    Raises:
        ValueError: If a value is not allowed.
    """
    for name, value in settings.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} is {value}; it must be a finite number")


def check_choice(allowed: Sequence[str], **settings: str | None) -> None:
    """Raise ValueError for values that are not in a list.

    Args:
        allowed: The allowed values.
        **settings: The values by setting; None for a setting that was not given.

    Raises:
        ValueError: If a value is not allowed.
    """
    for name, value in settings.items():
        if value is not None and value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
