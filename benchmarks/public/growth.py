"""Whether memory grows from round to round of equal work, in spite of noise."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from itertools import combinations

LEAK = 100.0
"""Megabytes per 1,000 answers that must be noticed."""
LIMIT = LEAK / 2
"""Megabytes per 1,000 answers that are a failure, if they are not noise."""
CHANCE = 0.04
"""Share of orders of the same values that may grow as steadily as a failure."""
ORDERS = 500
SURE = 3.3
"""Standard errors of the slope in a leak that is noticed in 19 of 20 runs: 1.65 for each of the two errors."""


def slope(values: Sequence[float]) -> float:
    """Return the growth from one value to the next: the median of the slopes between all pairs of values."""
    return statistics.median([(values[j] - values[i]) / (j - i) for i, j in combinations(range(len(values)), 2)])


def error(values: Sequence[float]) -> float:
    """Return the standard error of the slope."""
    growth, count = slope(values), len(values)
    rest = [value - growth * number for number, value in enumerate(values)]
    middle = statistics.median(rest)
    spread = 1.4826 * statistics.median([abs(each - middle) for each in rest])
    return spread / math.sqrt(count * (count * count - 1) / 12)


def chance(values: Sequence[float]) -> float:
    """Return the share of random orders of the values that grow at least as steadily: a permutation test."""

    def rises(row: Sequence[float]) -> int:
        return sum((b > a) - (b < a) for a, b in combinations(row, 2))

    found, rng, row = rises(values), random.Random(0), list(values)
    as_steady = 0
    for _ in range(ORDERS):
        rng.shuffle(row)
        as_steady += rises(row) >= found
    return as_steady / ORDERS


def judge(values: Sequence[float], answers: int) -> tuple[float, bool, bool]:
    """Judge the memory in megabytes at rest after each round with this number of answers.

    Returns  the growth in megabytes per 1,000 answers; whether it is a leak; and whether this is sure: memory that
             grows, but not steadily, may be a leak behind noise
    """
    if len(values) < 6:
        return 0.0, False, False
    per_thousand = 1000 / answers
    growth = slope(values) * per_thousand
    grows = growth > LIMIT and chance(values) <= CHANCE
    return growth, grows, grows or (growth <= LIMIT and SURE * error(values) * per_thousand <= LEAK)
