"""`Comparison`: a map compared with one control by one metric, and the correction for the number of comparisons.

P-values of the comparison of a map with controls: for several images, for one image, and for many comparisons.

Several images: the sign-flip test. If map and control are equally good, each difference could as well have the other
sign. The p-value is the share of all choices of signs whose sum is at least as far from zero as the observed one. It
assumes no distribution, and n images cannot give less than 2^(1-n).

One image: the t-test of a single value against those of the random maps, in pairs of a map and its negative, which
are not independent.

Many comparisons: Holm's correction. Its p-values keep the probability of one false verdict or more below the level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from explainers.dtypes import to_cpu_float64
from explainers.errors import WrongType, shorten
from explainers.students_t import t_tail
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
    found = []
    for each, p in zip(flat, adjusted, strict=True):
        verdict = each.verdict
        if p >= LEVEL:  # the smallest p-value among `left` comparisons must be below LEVEL / left
            verdict = "few" if smallest_p(each.images) * left >= LEVEL else "level"
        found.append(replace(each, p_adjusted=p, verdict=verdict))
    rest = iter(found)
    return [{name: {each: next(rest) for each in controls} for name, controls in table.items()} for table in tables]


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


LEVEL = 0.05
"""A difference is significant if its adjusted p-value is below this."""
EXACT = 16
"""Up to this number of images, the sign-flip test uses all choices of signs, and for more images `SAMPLES` of them."""
SAMPLES = 2**15 - 1
CHUNK = 2**12
ROUNDING = 8.0
"""Differences of fewer roundings than this count as zero."""


def sign_flip_test(differences: Tensor) -> float:
    """Return the two-sided p-value of the sign-flip test on paired differences [n]; NaN for fewer than two.

    It is exact for up to `EXACT` differences that are not zero. For more, it uses random signs with a fixed seed, and
    counts the observed ones among them, so that the test keeps its level.

    Source   Fisher 1935, The Design of Experiments, section 21; Phipson & Smyth 2010, arXiv:1603.05766, for the samples
    """
    values = to_cpu_float64(differences.detach())
    if len(values) < 2:
        return math.nan
    values = values[values != 0]
    # Sums that differ only by rounding are ties.
    limit = float(values.sum().abs()) - 1e-9 * float(values.abs().sum())
    if len(values) <= EXACT:
        sums = values[:1].sum()[None]  # for all signs of the other values: changing all signs changes no size
        for value in values[1:]:
            sums = torch.cat([sums + value, sums - value])
        return float((sums.abs() >= limit).double().mean())
    signs = _random_signs(len(values))
    extreme = sum(int(((chunk.double() @ values).abs() >= limit).sum()) for chunk in signs.split(CHUNK))
    return (1 + extreme) / (1 + len(signs))


@lru_cache(maxsize=1)
def _random_signs(count: int) -> Tensor:
    """Return random signs [SAMPLES, count], int8, with their own generator."""
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 2, (SAMPLES, count), generator=generator, dtype=torch.int8).mul_(2).sub_(1)


def smallest_p(images: int) -> float:
    """Return the smallest p-value that a comparison over that number of images can have."""
    if images < 2:
        return 0.0
    return max(2.0 ** (1 - images), 1 / (1 + SAMPLES) if images > EXACT else 0.0)


def random_map_test(difference: float, random: Tensor, *, is_mean: bool, rounding: float = 0.0) -> float:
    """Return the two-sided p-value of a map's difference to a control on one image; NaN for fewer than two pairs.

    `random` [2k] are the values of k random maps, each followed by that of its negative. With `is_mean`, the control is
    their mean, and the p-value that of a random map's difference to it. Otherwise, the control is one map, and the
    p-value that of the difference of two random maps. Differences up to `rounding` count as zero.

    The variance of a value is that of the pairs' means (k-1 degrees of freedom) plus that within pairs (k degrees);
    Satterthwaite's formula gives the degrees of their sum. If the random values are all equal, a different one is the
    odd one out of k+1 maps, and the p-value is 1 / (k+1).

    Source   Satterthwaite 1946, Biometrics Bulletin 2(6), for the degrees of freedom
    """
    pairs = to_cpu_float64(random.detach()).unflatten(0, (-1, 2)) if len(random) > 2 else random.new_empty(0, 2)
    if len(pairs) < 2 or not bool(pairs.isfinite().all()) or not math.isfinite(difference):
        return math.nan
    if abs(difference) <= rounding:
        return 1.0
    count = len(pairs)
    between = float(pairs.mean(1).var()) * (1 + 1 / count if is_mean else 1)
    within = float((pairs[:, 0] - pairs[:, 1]).div(2).square().mean())
    variance = between + within
    if variance <= rounding**2:
        return 1 / (count + 1)
    freedom = variance**2 / (between**2 / (count - 1) + within**2 / count)
    return t_tail(difference / math.sqrt(variance if is_mean else 2 * variance), math.floor(freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for their number, by Holm's correction; NaN stays NaN and is not counted.

    The probability of one adjusted p-value or more below a level is at most that level if nothing has an effect.

    Errors   WrongType
    Source   Holm 1979, Scandinavian Journal of Statistics 6(2)

    Example
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    try:
        adjusted, largest = list(map(float, p_values)), 0.0
    except (TypeError, ValueError):
        raise WrongType(f"p_values is {shorten(p_values)}. Give a list of numbers.") from None
    order = sorted((p, k) for k, p in enumerate(adjusted) if not math.isnan(p))
    for rank, (p, k) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[k] = largest
    return adjusted
