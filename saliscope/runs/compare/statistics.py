"""Tests and intervals of a comparison: McNemar's exact test, paired differences, rates, and means by bootstrap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z = 1.959963984540054
"""The quantile of a 95% interval."""
CHANGED = 6
"""Images that McNemar's test needs: if all of five are gained, its p-value is still 0.0625."""
FEWEST = 10
"""Images for the interval of a mean: a bootstrap of fewer gives intervals that are much too short."""
RESAMPLES = 2000
BINS = 2000


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p-value of McNemar's exact test for images that only one of two runs predicts correctly.

    The p-value is that of a binomial test: if neither run is better, each of the images is gained or lost with equal
    probability. It is 1 if there are none.

    Source   McNemar 1947, doi:10.1007/BF02295996

    Example
        >>> mcnemar(8, 1)
        0.0390625
    """
    from scipy.stats import binomtest  # scipy takes a second to start

    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def paired_difference(gained: int, lost: int, count: int) -> tuple[float, float, float]:
    """Return the difference of two accuracies over the same images, from -1 to 1, and its 95% interval.

    The interval adds one image to each kind of change (Bonett and Price), so that it is not empty without any change.

    Source   Bonett and Price 2012, doi:10.3102/1076998611411915

    Example
        >>> [round(value, 3) for value in paired_difference(30, 10, 100)]
        [0.2, 0.077, 0.315]
    """
    more, less = (gained + 1) / (count + 2), (lost + 1) / (count + 2)
    middle = more - less
    half = Z * math.sqrt((more + less - middle**2) / (count + 2))
    return (gained - lost) / count, max(-1.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Mean:
    """The mean of a quantity over `count` images with its 95% bootstrap interval.

    The bounds are NaN for fewer than `FEWEST` images.
    """

    count: int
    value: float
    low: float
    high: float


class Distribution:
    """The distribution of values between two bounds, in constant memory: counts and sums of 2,000 bins."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.counts = np.zeros(BINS, dtype=np.int64)
        self.sums = np.zeros(BINS)

    def add(self, values: NDArray[np.float64]) -> None:
        """Add finite values."""
        place = (values - self.low) / (self.high - self.low) * BINS
        bins = np.clip(place.astype(np.int64), 0, BINS - 1)
        self.counts += np.bincount(bins, minlength=BINS)
        self.sums += np.bincount(bins, weights=values, minlength=BINS)

    def mean(self, seed: int = 0) -> Mean | None:
        """Return the mean, or None without values.

        A bootstrap sample draws images with replacement. Values in the same bin count as equal to their mean, which
        changes the interval by less than the width of a bin, 1/2,000 of the range.
        """
        count = int(self.counts.sum())
        if not count:
            return None
        used = self.counts > 0
        centers, shares = self.sums[used] / self.counts[used], self.counts[used] / count
        drawn = np.random.default_rng(seed).multinomial(count, shares, size=RESAMPLES)
        low, high = np.quantile(drawn @ centers / count, (0.025, 0.975)) if count >= FEWEST else (np.nan, np.nan)
        return Mean(count, float(self.sums.sum() / count), float(low), float(high))
