"""Tests and intervals of a comparison: McNemar's exact test, paired differences, means by bootstrap; their texts."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from saliscope.runs.formats import p_value
from saliscope.runs.rows import Floats

Z = 1.959963984540054
"""The quantile of a 95% interval."""
CHANGED = 6
"""Images that McNemar's test needs: if all of five are gained, its p-value is still 0.0625."""
FEWEST = 10
"""Images for the interval of a mean: a bootstrap of fewer gives intervals that are much too short."""
RESAMPLES = 2000
BINS = 2000
LEVEL = 0.05


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


def mcnemar_text(gained: int, lost: int) -> str:
    """Return the verdict and the p-value of McNemar's test, or how many images it needs."""
    if gained + lost < CHANGED:
        return f"not tested: McNemar's exact test needs {CHANGED} gained or lost images"
    p = mcnemar(gained, lost)
    return f"{'significant' if p < LEVEL else 'not significant'} (McNemar's exact test, p {p_value(p, '= ')})"


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

    def add(self, values: Floats) -> None:
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


def interval_text(mean: Mean, scale: float = 1, unit: str = "") -> str:
    """Return the interval of a mean, or how many images it needs."""
    if math.isnan(mean.low):
        return f"no interval: fewer than {FEWEST} images"
    low, high = ((f"{scale * each:.1f}" if unit else number_of(each)) for each in (mean.low, mean.high))
    return f"95% interval {low} to {high}{unit}"


def number_of(value: float) -> str:
    """Format a value with two decimals."""
    return f"{value:.2f}".replace("-", "−")


def points(difference: float) -> str:
    """Return a difference of shares in percentage points, with one decimal and its sign."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def setting(value: Any) -> str:
    """Return the value of a setting as text; empty if it is not set."""
    if value in (None, "", {}, []):
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)
