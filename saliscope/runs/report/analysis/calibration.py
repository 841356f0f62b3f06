"""Calibration: how often predictions with a certain probability are correct.

Source   Guo et al. 2017, "On Calibration of Modern Neural Networks", eqs. 3 to 5, arXiv:1706.04599
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from saliscope.runs.report.analysis.summary import Rate

BINS = 15
"""Bins of equal width, as in Guo et al. 2017."""
ROUNDING = 1e-6
"""Probabilities are stored as float32, so that 0.2 is slightly above 0.2."""
SIMULATIONS = 1000


@dataclass(frozen=True)
class Bin:
    """The predictions with a probability above `low` and at most `high`: mean probability, and rate of correct ones."""

    low: float
    high: float
    confidence: float
    rate: Rate

    @property
    def range(self) -> str:
        """The probabilities as text."""
        return f"{100 * self.low:.1f} to {100 * self.high:.1f}%"


@dataclass(frozen=True)
class Calibration:
    """The bins that are not empty, and the expected calibration error (ECE).

    `expected` is the mean ECE of a perfectly calibrated network with these bins, which is above 0 because the number of
    images is finite, and `p` the share of such networks with at least this ECE, by simulation. `smallest_p` is that of
    the largest ECE that these images could have.
    """

    count: int
    bins: list[Bin]
    ece: float
    expected: float
    p: float
    smallest_p: float


def calibrate(probability: NDArray[np.float64], correct: NDArray[np.int8], bins: int = BINS) -> Calibration | None:
    """Return the calibration of predictions, or None if none has a probability and a known class.

    `probability` `[n]` is that of the predicted class, NaN if there is none, and `correct` `[n]` 1, 0 or -1 if unknown.

        ECE = Σ_b n_b / n · |accuracy_b − mean probability_b|

    Example
        >>> round(calibrate(np.array([0.9, 0.9, 0.8]), np.array([1, 0, 1])).ece, 4)
        0.3333
    """
    known = (correct >= 0) & np.isfinite(probability)
    p, right = probability[known].astype(np.float64), correct[known].astype(np.float64)
    if not len(p):
        return None
    numbers = np.clip(np.ceil(p * bins - ROUNDING).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(numbers, minlength=bins)
    sums, hits = (np.bincount(numbers, weights=each, minlength=bins) for each in (p, right))
    used = np.flatnonzero(counts)
    n, confidence = counts[used], sums[used] / counts[used]
    ece = float((n / len(p)) @ np.abs(hits[used] / n - confidence))
    drawn = np.random.default_rng(0).binomial(n, np.clip(confidence, 0, 1), size=(SIMULATIONS, len(n)))
    simulated = np.abs(drawn / n - confidence) @ (n / len(p))
    listed = [
        Bin(int(k) / bins, (int(k) + 1) / bins, float(c), Rate(int(hits[k]), int(counts[k])))
        for k, c in zip(used, confidence, strict=True)
    ]
    largest = float((n / len(p)) @ np.maximum(confidence, 1 - confidence))
    p_values = [float((simulated >= each - ROUNDING).mean()) for each in (ece, largest)]
    return Calibration(len(p), listed, ece, float(simulated.mean()), *p_values)
