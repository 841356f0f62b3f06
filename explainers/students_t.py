"""Student's t distribution for an integer number of degrees of freedom."""

from __future__ import annotations

import math
from functools import lru_cache


def t_tail(t: float, freedom: int) -> float:
    """Return the probability that |t| is at least this large in Student's distribution.

    Source   Abramowitz & Stegun 1964, 26.7.3 and 26.7.4: the distribution for an integer number of degrees of freedom
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1.0 - inside))


@lru_cache(maxsize=64)
def t_quantile(level: float, freedom: int) -> float:
    """Return the t with |t| below it with probability `level`, by bisection.

    Example
        >>> round(t_quantile(0.95, 8), 3)
        2.306
    """
    low, high = 0.0, 16.0
    while t_tail(high, freedom) > 1 - level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - level else (low, middle)
    return high
