"""Shares, their changes and other numbers as text. `formatShare` of page/wire.js is the same for scripts."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

NOT_FINITE = "NaN"
"""The text of a share that is NaN or infinite."""


def percent(share: float) -> str:
    """Return a share as a percentage: with one decimal below 10%, and only a limit below 0.1%.

    Example
        >>> percent(0.94), percent(0.0538), percent(0.0004), percent(-0.0538)
        ('94%', '5.4%', '<0.1%', '−5.4%')
    """
    if not math.isfinite(share):
        return NOT_FINITE
    size, sign = abs(share), "−" if share < 0 else ""
    if 0 < size < 0.001:
        return f"{sign}<0.1%"
    return f"{sign}{_rounded(100 * size, 0 if size >= 0.0995 or not size else 1)}%"


def points(difference: float) -> str:
    """Return the difference of two shares in percentage points (pp), with its sign and one decimal.

    Example
        >>> points(-0.268), points(0.0002), points(0.0)
        ('−26.8 pp', '+<0.1 pp', '0 pp')
    """
    if not math.isfinite(difference):
        return NOT_FINITE
    size, sign = 100 * abs(difference), "−" if difference < 0 else "+"
    if not size:
        return "0 pp"
    if size < 0.05:
        return f"{sign}<0.1 pp"
    return f"{sign}{_rounded(size, 1)} pp"


def number(value: float, form: str = ".3g") -> str:
    """Return a number with a true minus sign.

    Example
        >>> number(-0.12345), number(0.5, "+.2f")
        ('−0.123', '+0.50')
    """
    return f"{value:{form}}".replace("-", "−")


def _rounded(value: float, digits: int) -> str:
    """Round halves up, as `toFixed` of JavaScript does."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
