"""`Evaluation`, the result of `evaluate`: the metrics of a map, compared with those of the controls.

A metric without a comparison says little: the deletion area depends more on the image than on the map. Every map is
therefore compared with controls on the same image.

For one image, a map is better or worse than a control if they differ by at least `SPREADS` spreads. The spread is the
standard deviation of the metric over random maps of that image. Smaller differences count as level.

For several images, the paired differences have a mean, a standard error and the p-value of Student's paired t-test.
The map is better or worse if p < `LEVEL`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from explainers.findings import Finding
from explainers.metrics.metric import METRICS, Measurement
from explainers.probabilities import UNITS, WORDS

SPREADS = 2.0
LEVEL = 0.05
STOPPED, OVER = "the call was stopped", "the time budget was exceeded"
"""Reasons for values that were not computed."""
NOT_FINITE = "the score of the image, or of a perturbed one, is not finite"
NAMES = {"random": "random maps", "edge": "edge maps", "centre": "the center-bias baseline"}
"""The controls in messages."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of a map with one control: the mean `difference` over the images, positive if the map is better.

    (For metrics without a better direction, it is positive if the map's value is higher.) `in_spreads` is the
    difference in spreads of random maps; `error` the standard error and `p` the two-sided p-value of the t-test, NaN
    for one image. `verdict`: "better", "worse" ("higher", "lower" for metrics without a better direction), "level" (no
    significant difference), or "unknown".
    """

    control: str
    difference: float
    in_spreads: float
    error: float
    p: float
    verdict: str


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate`.

    `values[metric]` is [N]; `controls[metric][control]` is [N], for "random" the mean over the random maps, whose
    standard deviation is `spread[metric]` [N]. `curves[metric]` and `control_curves[metric][control]` are [N, points],
    for metrics that are areas under a curve. `reasons[metric][n]` says why a value is NaN or uses fewer samples than
    requested. `maps` [N, H, W] are the evaluated maps at the images' size; `target` class indices or the target's repr;
    `options` all settings; `seconds` is wall time. `is_complete` says whether every value was computed, including those
    of the controls. `findings` are warnings about the network: its rows depend on each other, or it is stochastic.
    """

    values: dict[str, Tensor]
    controls: dict[str, dict[str, Tensor]]
    spread: dict[str, Tensor]
    curves: dict[str, Tensor]
    control_curves: dict[str, dict[str, Tensor]]
    reasons: dict[str, list[str]]
    maps: Tensor
    method: str | None
    layer: str | None
    target: list[int] | str | None
    options: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    is_complete: bool = True
    findings: list[Finding] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int | slice) -> Evaluation:
        """Return the evaluation of one image or of several."""
        one = as_slice(index, len(self))
        several = isinstance(self.target, list) and len(self.target) == len(self)
        return replace(
            self,
            values={name: each[one] for name, each in self.values.items()},
            controls={name: {c: v[one] for c, v in each.items()} for name, each in self.controls.items()},
            spread={name: each[one] for name, each in self.spread.items()},
            curves={name: each[one] for name, each in self.curves.items()},
            control_curves={name: {c: v[one] for c, v in each.items()} for name, each in self.control_curves.items()},
            reasons={name: each[one] for name, each in self.reasons.items()},
            maps=self.maps[one],
            target=self.target[one] if several and isinstance(self.target, list) else self.target,
        )

    @property
    def comparisons(self) -> dict[str, dict[str, Comparison]]:
        """The comparison of the map with each control, by metric and control."""
        return {name: {c: self.compare(name, c) for c in each} for name, each in self.controls.items()}

    @property
    def places(self) -> dict[str, dict[str, Comparison]]:
        """Deprecated name of `comparisons`."""
        warnings.warn("Evaluation.places is deprecated; use comparisons.", DeprecationWarning, stacklevel=2)
        return self.comparisons

    def place(self, metric: str, control: str) -> Comparison:
        """Deprecated name of `compare`."""
        warnings.warn("Evaluation.place is deprecated; use compare.", DeprecationWarning, stacklevel=2)
        return self.compare(metric, control)

    def compare(self, metric: str, control: str) -> Comparison:
        """Compare the map with one control."""
        higher = METRICS[metric].higher
        sign = -1.0 if higher is False else 1.0
        spread = self.spread[metric].double()
        difference = sign * (self.values[metric].double() - self.controls[metric][control].double())
        known = difference.isfinite()
        difference, spread = difference[known], spread[known]
        mean, error = mean_and_error(difference)
        scale = float(spread.square().mean().sqrt()) if len(spread) else math.nan
        in_spreads = mean / scale if scale > 0 else (0.0 if mean == 0 else math.copysign(math.inf, mean))
        p = t_test(difference)
        if not len(difference):
            verdict = "unknown"
        elif (abs(in_spreads) < SPREADS or not scale >= 0) if len(difference) == 1 else not p < LEVEL:
            verdict = "level"
        else:
            verdict = ("worse", "better")[mean > 0] if higher is not None else ("lower", "higher")[mean > 0]
        return Comparison(control, mean, in_spreads if len(difference) else math.nan, error, p, verdict)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row for each image and metric: its value, those of the controls, the spread, and the verdicts."""
        rows = []
        for index in range(len(self)):
            one = self[index]
            for name, value in one.values.items():
                row = {"image": index, "metric": name, "value": float(value[0])}
                for control, other in one.controls.get(name, {}).items():
                    row[control] = float(other[0])
                    row[f"beside_{control}"] = one.compare(name, control).verdict
                if name in one.spread:
                    row["spread"] = float(one.spread[name][0])
                rows.append(row | {"reason": one.reasons[name][0]})
        return rows

    def unit(self, metric: str) -> str:
        """Return the unit of a metric's values: which probability it is, or that it is the score of the target."""
        known, target = METRICS[metric], self.target
        score = str(self.options.get("score"))
        if known.score == "target" and score in ("identity", "log"):
            return known.unit.replace("logit", UNITS[score])
        if known.score != "probability" or "probability" not in known.unit or target is None:
            return known.unit
        if isinstance(target, str):  # its values are used as they are
            word = "probability" if target.startswith("Probability(") else "score of the target"
        else:
            word = WORDS.get(score, "probability")
        return known.unit.replace("probability", word)

    def sentence(self, metric: str) -> str:
        """Return one line with the value of a metric and the comparison with the controls."""
        known = self.values[metric][self.values[metric].isfinite()]
        title = METRICS[metric].title
        if not len(known):
            reason = next((reason for reason in self.reasons[metric] if reason), "no value")
            return f"{title}: {reason}"
        mean, error = mean_and_error(known)
        number = f"{mean:.3g}" if len(known) == 1 else f"{mean:.3g} ± {error:.2g} over {len(known)} images"
        comparisons = self.comparisons.get(metric, {})
        return f"{title} {number}" + (f": {_summarize(comparisons)}" if comparisons else "")

    def __str__(self) -> str:
        return "\n".join(map(self.sentence, self.values))

    def __repr__(self) -> str:
        count = len(self)
        numbers = ", ".join(f"{name} {mean_and_error(value)[0]:.3g}" for name, value in self.values.items())
        return f"Evaluation({self.method or 'maps'} on {count} image{'s' * (count > 1)}: {numbers})"


def as_slice(index: int | slice, count: int) -> slice:
    """Convert an index or slice to a slice of `count` images.

    Errors   IndexError
    """
    chosen = range(count)[index]
    if isinstance(chosen, int):
        return slice(chosen, chosen + 1)
    if chosen.step != 1:
        raise IndexError(f"Slices with a step of {chosen.step} are not supported. Give consecutive images: [2:5].")
    return slice(chosen.start, max(chosen.start, chosen.stop))


@dataclass(frozen=True, eq=False)
class Parts:
    """The values of one metric for several candidates of `count` images each; `is_started` if the call reached it."""

    measured: Measurement
    names: list[str]
    count: int
    is_started: bool = True

    def without_own(self) -> Parts:
        """Return only the values of the controls."""
        count, curves = self.count, self.measured.curves
        values, curves = self.measured.values[count:], None if curves is None else curves[count:]
        rest = replace(self.measured, values=values, curves=curves, reasons={})
        return replace(self, measured=rest, names=self.names[1:])

    def _of(self, numbers: Tensor, name: str) -> Tensor:
        """Return the numbers [K, N, ...] of the K candidates with that name."""
        indices = [index for index, each in enumerate(self.names) if each == name]
        return numbers.unflatten(0, (-1, self.count))[indices]

    def values(self, name: str) -> Tensor:
        return self._of(self.measured.values, name).mean(0)

    def curves(self, name: str) -> Tensor:
        assert self.measured.curves is not None
        return self._of(self.measured.curves, name).mean(0)

    def means(self) -> dict[str, Tensor]:
        return {name: self.values(name) for name in _sorted(self.names)}

    def mean_curves(self) -> dict[str, Tensor]:
        return {name: self.curves(name) for name in _sorted(self.names)}

    def spread(self) -> Tensor:
        """Return the standard deviation over the random maps, [N]."""
        return self._of(self.measured.values, "random").std(0)

    def find_reasons(self, stop_reason: str) -> list[str]:
        """Return why each value of the caller's maps is NaN or uses fewer samples than requested, [N]."""
        missing = NOT_FINITE if self.is_complete else stop_reason
        has_fewer = self.measured.is_sampled and not self.is_complete
        partial = f"uses fewer samples than requested: {stop_reason}" if has_fewer else ""
        nan = self.values("").isnan().tolist()
        return [self.measured.reasons.get(row, missing if nan[row] else partial) for row in range(self.count)]

    @property
    def is_complete(self) -> bool:
        """Whether the metric was computed completely."""
        return self.is_started and self.measured.is_complete


def _sorted(names: Sequence[str]) -> list[str]:
    return [name for name in ("random", "edge", "centre") if name in names]


def _summarize(comparisons: dict[str, Comparison]) -> str:
    """Return, for example, "better than random maps, not significantly different from edge maps"."""
    parts = []
    for verdict, phrase in (
        ("better", "better than"),
        ("higher", "higher than"),
        ("level", "not significantly different from"),
        ("worse", "worse than"),
        ("lower", "lower than"),
        ("unknown", "not compared with"),
    ):
        names = [NAMES.get(name, name) for name, each in comparisons.items() if each.verdict == verdict]
        if names:
            parts.append(f"{phrase} {_join(names)}")
    return ", ".join(parts)


def _join(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Return the mean of values [n] and its standard error s / √n, NaN for fewer than two."""
    values = values.double()
    count = len(values)
    mean = float(values.mean()) if count else math.nan
    return mean, float(values.std() / math.sqrt(count)) if count > 1 else math.nan


def t_test(differences: Tensor) -> float:
    """Return the two-sided p-value of Student's paired t-test on differences [n]; NaN for fewer than two.

    Source   Abramowitz & Stegun 1964, 26.7.3 and 26.7.4: the distribution for an integer number of degrees of freedom
    """
    mean, error = mean_and_error(differences)
    freedom = len(differences) - 1
    if freedom < 1:
        return math.nan
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    angle = math.atan(abs(mean) / error / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1.0 - inside))
