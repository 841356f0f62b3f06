"""Possible label errors by confident learning, as `find_label_issues(filter_by="confident_learning")` of cleanlab.

An image has a possible label error if its predicted class is not its label, and a class other than its label has at
least the probability that this class has on average for the images with that label. They are ranked by the probability
of the label, the lowest first (self-confidence).

A class with few labeled images has no meaningful average, so that no image is suspected to belong to it.

Source   Northcutt et al. 2021, "Confident Learning", arXiv:1911.00068
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.rows import RunData

NEAR = 1e-6
"""As in cleanlab: a probability that is lower than the threshold by less counts."""
LEAST = 5
"""Minimum number of labeled images of a class for its average: with fewer, a single image decides."""
LOWEST = 2 * 10**-6
"""The lowest threshold, as in cleanlab."""
SAMPLE = 20_000
"""Maximum number of images from which the share of random labels is estimated, evenly spaced."""
NATURAL = 0.02
"""A share of random labels up to this is not reported: some images of every data set are ambiguous."""
FEWEST = 100
"""Minimum number of images for that estimate."""
TEMPERATURES, SHARES = np.geomspace(0.25, 8, 26), np.linspace(0, 0.5, 101)


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """The rows of possible label errors, the most likely first, of `count` labeled images.

    `tested` is the number of images that were compared with at least one class other than their label; `averages` that
    of the classes with an average, and `sizes` the numbers of labeled images of the classes, the largest first.
    `unknown` is the number of further images that may be errors: rows have the probabilities of five classes and of the
    label, and another class could exceed its threshold. `sample` are rows from which `estimate_random` estimates, and
    `top` their highest probabilities `[m, 5]`, with 0 for missing ones.
    """

    rows: NDArray[np.int64]
    count: int
    unknown: int
    tested: int
    averages: int
    sizes: list[int]
    sample: NDArray[np.int64]
    top: NDArray[np.float64]


@dataclass(frozen=True)
class RandomLabels:
    """The estimated share of wrong labels, its 95% interval, and the p-value against a share of `NATURAL`."""

    share: float
    low: float
    high: float
    p: float


def find_label_errors(data: RunData, columns: Columns) -> LabelErrors | None:
    """Return the possible label errors of a run, or None if it has no labels or no probabilities."""
    known = (columns.label_index >= 0) & np.isfinite(columns.label_probability)
    if not known.any():
        return None
    labels = columns.label_index[known]
    classes = 1 + int(max(columns.label_index.max(), columns.prediction_index.max()))
    counts = np.bincount(labels, minlength=classes)
    sums = np.bincount(labels, weights=columns.label_probability[known], minlength=classes)
    # The mean probability of each class over the images with that label; infinite for few images.
    limits = np.maximum(np.divide(sums, counts, out=np.full(classes, np.inf), where=counts >= LEAST), LOWEST)
    issue = np.zeros(len(columns), dtype=bool)
    possible = np.zeros(len(columns), dtype=bool)
    chosen = np.flatnonzero(known)[:: -(-int(known.sum()) // SAMPLE)]
    top = np.zeros((len(chosen), 5))
    for start, table in data.batches(["top5"]):
        column, part = table["top5"].combine_chunks(), slice(start, start + len(table))
        row, values = np.asarray(pc.list_parent_indices(column)), column.flatten()
        rank = np.arange(len(row)) - np.searchsorted(row, row)
        index = np.full((len(table), 1 + rank.max(initial=4)), -1)
        index[row, rank] = values.field("index").fill_null(-1)
        p = np.full(index.shape, np.nan)
        p[row, rank] = values.field("probability").cast("float64").fill_null(np.nan)
        limit = np.append(limits, np.inf)[np.where(index < classes, index, -1)]
        issue[part] = ((index != columns.label_index[part, None]) & (p >= limit - NEAR)).any(1)
        # A class that is not listed has at most the lowest listed probability, and at most what the listed ones leave.
        rest = np.maximum(1 - np.nansum(p, axis=1), 0)
        possible[part] = np.fmin.reduce(p, axis=1, initial=np.inf).clip(max=rest) >= limits.min() - NEAR
        inside = slice(*np.searchsorted(chosen, (part.start, part.stop)))
        top[inside] = np.nan_to_num(p[chosen[inside] - start, :5])
    wrong = known & (columns.prediction_index != columns.label_index)
    found = np.flatnonzero(issue & wrong)
    order = np.argsort(columns.label_probability[found], kind="stable")
    averages = np.isfinite(limits)
    tested = averages.sum() - averages[labels] > 0
    sizes = sorted(counts[counts > 0].tolist(), reverse=True)
    unknown = int((possible & wrong & ~issue).sum())
    return LabelErrors(found[order], len(labels), unknown, int(tested.sum()), int(averages.sum()), sizes, chosen, top)


def estimate_random(
    errors: LabelErrors, columns: Columns, classes: int, without: NDArray[np.bool_]
) -> RandomLabels | None:
    """Return the share of random labels, or None with fewer than three classes or `FEWEST` rows.

    The other labels are assumed to follow the probabilities of the network, whose temperature is fitted to them: a
    network that is often wrong, or too confident, does not explain labels that it finds nearly impossible. Rows in
    `without` `[n]` do not count.

        L(T, η) = Σ log((1 − η) p_T(label) + η / classes),  p_T ~ p^(1/T)
    """
    from scipy.stats import chi2  # scipy takes a second to start

    use = ~without[errors.sample]
    if classes < 3 or use.sum() < FEWEST:
        return None
    top, own = errors.top[use], columns.label_probability[errors.sample[use]].astype(np.float64)
    listed = np.isclose(top, own[:, None], rtol=1e-5, atol=0).any(1)
    others = np.maximum(classes - (top > 0).sum(1) - ~listed, 0)
    rest = np.maximum(1 - top.sum(1) - np.where(listed, 0, own), 0)
    likelihood = np.empty((len(TEMPERATURES), len(SHARES)))
    for k, temperature in enumerate(TEMPERATURES):
        power = lambda p: np.power(np.maximum(p, 1e-30), 1 / temperature) * (p > 0)  # noqa: B023, E731
        whole = power(top).sum(1) + np.where(listed, 0, power(own)) + others * power(rest / np.maximum(others, 1))
        p = power(own) / whole
        likelihood[k] = [np.log((1 - eta) * p + eta / classes + 1e-30).sum() for eta in SHARES]
    profile = likelihood.max(0)
    wrong = SHARES * (classes - 1) / classes  # a random label may be the correct one
    best = int(profile.argmax())
    natural = profile[wrong <= NATURAL].max()
    inside = wrong[2 * (profile[best] - profile) <= chi2.ppf(0.95, 1)]
    return RandomLabels(
        float(wrong[best]),
        float(inside[0]),
        float(inside[-1]),
        float(chi2.sf(2 * (profile[best] - natural), 1) / 2) if wrong[best] > NATURAL else 1.0,
    )
