"""`Comparison`: a map compared with one control by one metric, and the correction for the number of comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from explainers.dtypes import to_cpu_float64
from explainers.metrics.significance import LEVEL, ROUNDING, holm, random_map_test, sign_flip_test, smallest_p
from explainers.verdict.facts import Facts
from explainers.verdict.rules import Verdict, judge_facts


@dataclass(frozen=True)
class Comparison:
    """Comparison of a map with one control: the mean `difference` over `images` images, positive if the map is better.

    (For metrics without a better direction, it is positive if the map's value is higher.) `in_spreads` is the
    difference in standard deviations of random maps; `error` the standard error, NaN for one image. `p` is the
    two-sided p-value of this comparison by itself, `p_adjusted` that for all comparisons made together (Holm); both are
    NaN if there is none.

    `verdict`: "better", "worse" ("higher", "lower" for metrics without a better direction) if `p_adjusted` < 0.05,
    "level" (no significant difference), "few" (with so few images, no difference could be significant), or "unknown".

    The random maps of an image depend only on `seed`, so verdicts about many maps of one image are correlated.
    """

    control: str
    difference: float
    in_spreads: float
    error: float
    p: float
    p_adjusted: float
    verdict: str
    images: int


Comparisons = Mapping[str, Mapping[str, Comparison]]
"""Comparisons by metric and control."""


def compare(
    control: str, values: Tensor, others: Tensor, spread: Tensor, random: Tensor | None, higher: bool | None
) -> Comparison:
    """Compare values [N] with those of a control [N], regardless of other comparisons.

    `spread` [N] and `random` [N, 2k] are the standard deviation and the values of the random maps.
    """
    own, other = to_cpu_float64(values), to_cpu_float64(others)
    # The values have the precision of the network: smaller differences, such as those of a constant network, are noise.
    rounding = ROUNDING * torch.finfo(values.dtype).eps * torch.maximum(own.abs(), other.abs())
    difference = own - other if higher is not False else other - own
    difference = torch.where(difference.abs() <= rounding, 0.0, difference)
    known = difference.isfinite()
    difference, scales = difference[known], to_cpu_float64(spread)[known]
    count = len(difference)
    mean, error = mean_and_error(difference)
    scale = float(scales.square().mean().sqrt()) if count else math.nan
    in_spreads = mean / scale if scale > 0 else (0.0 if mean == 0 else math.copysign(math.inf, mean))
    p = sign_flip_test(difference)
    if count == 1 and random is not None:
        is_mean = control == "random"
        p = random_map_test(mean, random.cpu()[known][0], is_mean=is_mean, rounding=float(rounding[known][0]))
    words = ("worse", "better") if higher is not None else ("lower", "higher")
    verdict = "unknown" if math.isnan(p) else words[mean > 0]
    return Comparison(control, mean, in_spreads if count else math.nan, error, p, p, verdict, count)


def adjust(tables: Sequence[Comparisons]) -> list[dict[str, dict[str, Comparison]]]:
    """Return the comparisons of several maps with p-values and verdicts adjusted for the number of all of them."""
    flat = [each for table in tables for by_control in table.values() for each in by_control.values()]
    adjusted = holm([each.p for each in flat])
    left = sum(not math.isnan(p) and p >= LEVEL for p in adjusted)
    found = iter(
        replace(each, p_adjusted=p, verdict=_verdict(each, p, left)) for each, p in zip(flat, adjusted, strict=True)
    )
    return [
        {metric: {control: next(found) for control in by_control} for metric, by_control in table.items()}
        for table in tables
    ]


def _verdict(comparison: Comparison, p: float, left: int) -> str:
    """Return the verdict for an adjusted p-value; `left` comparisons are not significant."""
    if math.isnan(p) or p < LEVEL:
        return comparison.verdict
    # The smallest p-value among `left` comparisons must be below LEVEL / left.
    return "few" if smallest_p(comparison.images) * left >= LEVEL else "level"


def results_of(comparisons: Comparisons) -> dict[str, dict[str, str]]:
    """Return the result of each comparison by metric and control."""
    return {name: {control: each.verdict for control, each in found.items()} for name, found in comparisons.items()}


def judge_comparisons(comparisons: Comparisons) -> Verdict:
    """Return the verdict on maps about which only the comparisons with the controls are known."""
    return judge_facts(Facts(comparisons=results_of(comparisons)))


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Return the mean of values [n] and its standard error s / √n, NaN for fewer than two."""
    values = to_cpu_float64(values)
    count = len(values)
    mean = float(values.mean()) if count else math.nan
    return mean, float(values.std() / math.sqrt(count)) if count > 1 else math.nan
