"""Whether memory grows from round to round of equal work, in spite of noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy import stats  # a requirement of scikit-learn

LEAK = 100.0
"""Megabytes per 1,000 answers that must be noticed."""
LIMIT = LEAK / 2
"""Megabytes per 1,000 answers that are a failure, if they are not noise."""
CHANCE = 0.04
"""Share of orders of the same values that may grow as steadily as a failure."""
SURE = 3.3
"""Standard errors of the slope in a leak that is noticed in 19 of 20 runs: 1.65 for each of the two errors."""


def error(values: Sequence[float], growth: float) -> float:
    """Return the standard error of the growth from one value to the next."""
    rest, count = [value - growth * number for number, value in enumerate(values)], len(values)
    middle = statistics.median(rest)
    spread = 1.4826 * statistics.median([abs(each - middle) for each in rest])
    return spread / math.sqrt(count * (count * count - 1) / 12)


def judge(values: Sequence[float], answers: int) -> tuple[float, bool, bool]:
    """Judge the memory in megabytes at rest after each round with this number of answers.

    Returns  the growth in megabytes per 1,000 answers; whether it is a leak; and whether this is sure: memory that
             grows, but not steadily, may be a leak behind noise
    """
    if len(values) < 6:
        return 0.0, False, False
    per_thousand = 1000 / answers
    growth = float(stats.theilslopes(values).slope)
    # Kendall's test: the share of orders of the values that grow at least as steadily.
    chance = float(stats.kendalltau(range(len(values)), values, alternative="greater").pvalue)
    uncertain = SURE * error(values, growth) * per_thousand > LEAK
    growth *= per_thousand
    grows = growth > LIMIT and chance <= CHANCE
    return growth, grows, grows or (growth <= LIMIT and not uncertain)
