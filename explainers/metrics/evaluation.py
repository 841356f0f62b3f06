"""`Evaluation`: the numbers of a map beside those of the controls, its place among them, and the sentence.

A number alone says little: the deletion area of a photograph depends on the photograph more than on the map. So every
map is compared with controls on the same image.

One image: a map is better or worse than a control where they differ by at least `SPREADS` spreads, the spread being
the standard deviation of the metric over random maps of that image: what chance alone makes of it. Nearer is level.

Several images: the paired differences have a mean, a standard error and the p-value of Student's paired t-test; better
or worse means p < `LEVEL`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from explainers.metrics.metric import METRICS, Measured

SPREADS = 2.0
LEVEL = 0.05
STOPPED, OVER = "the call was stopped", "the time budget was over"
"""Why a value is missing that the call did not reach."""
NOT_FINITE = "the score of the image, or of a changed one, is not finite"
NAMES = {"random": "random", "edge": "edges", "centre": "the centre blob"}
"""The controls, in words."""


@dataclass(frozen=True)
class Place:
    """Where a map stands to one control: the mean `difference` over the images, positive where the map is better.

    (Where neither direction is better, positive where the map's number is higher.) `in_spreads` is the difference in
    spreads of random maps; `error` the standard error and `p` the t-test's two-sided p-value, NaN for one image.
    `verdict`: "better", "worse" ("higher", "lower" where neither is better), "level", or "unknown".
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

    `values[metric]` [N]; `controls[metric][control]` [N], of "random" the mean over its maps, whose standard deviation
    is `spread[metric]` [N]. `curves[metric]` [N, points] and `control_curves[metric][control]` [N, points] for metrics
    that are areas under one. `reasons[metric][n]` says why a value is NaN, or of fewer samples than asked for. `maps`
    [N, H, W] are those evaluated, at the images' size; `target` class indices or the target's repr; `options` all
    settings; `seconds` of wall time. `is_complete` says whether the call reached every value, also of the controls.
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

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, picture: int | slice) -> Evaluation:
        """The evaluation of one of the images, or of several."""
        one = one_or_several(picture, len(self))
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
    def places(self) -> dict[str, dict[str, Place]]:
        """The place of the map beside each control, by metric and control."""
        return {name: {c: self.place(name, c) for c in each} for name, each in self.controls.items()}

    def place(self, metric: str, control: str) -> Place:
        """The place of the map beside one control."""
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
        return Place(control, mean, in_spreads if len(difference) else math.nan, error, p, verdict)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each image and metric: its value, each control's, the spread, and the verdict beside each."""
        rows = []
        for picture in range(len(self)):
            one = self[picture]
            for name, value in one.values.items():
                row = {"image": picture, "metric": name, "value": float(value[0])}
                for control, other in one.controls.get(name, {}).items():
                    row[control] = float(other[0])
                    row[f"beside_{control}"] = one.place(name, control).verdict
                if name in one.spread:
                    row["spread"] = float(one.spread[name][0])
                rows.append(row | {"reason": one.reasons[name][0]})
        return rows

    def sentence(self, metric: str) -> str:
        """The number of one metric and its place among the controls, in words."""
        known = self.values[metric][self.values[metric].isfinite()]
        title = METRICS[metric].title
        if not len(known):
            reason = next((reason for reason in self.reasons[metric] if reason), "no value")
            return f"{title}: {reason}"
        mean, error = mean_and_error(known)
        number = f"{mean:.3g}" if len(known) == 1 else f"{mean:.3g} ± {error:.2g} over {len(known)} images"
        places = self.places.get(metric, {})
        return f"{title} {number}" + (f": {_in_words(places)}" if places else "")

    def __str__(self) -> str:
        return "\n".join(map(self.sentence, self.values))

    def __repr__(self) -> str:
        count = len(self)
        numbers = ", ".join(f"{name} {mean_and_error(value)[0]:.3g}" for name, value in self.values.items())
        return f"Evaluation({self.method or 'maps'} on {count} image{'s' * (count > 1)}: {numbers})"


def one_or_several(picture: int | slice, count: int) -> slice:
    """The slice that `picture` names among `count` images.

    Errors   IndexError
    """
    chosen = range(count)[picture]
    if isinstance(chosen, int):
        return slice(chosen, chosen + 1)
    if chosen.step != 1:
        raise IndexError(f"A step of {chosen.step} is not possible. Give a slice of neighbours: [2:5].")
    return slice(chosen.start, max(chosen.start, chosen.stop))


@dataclass(frozen=True, eq=False)
class Parts:
    """The numbers of one metric for several candidates of `count` images each; `is_begun` where the call reached it."""

    measured: Measured
    names: list[str]
    count: int
    is_begun: bool = True

    def without_own(self) -> Parts:
        """Those of the controls."""
        count, curves = self.count, self.measured.curves
        values, curves = self.measured.values[count:], None if curves is None else curves[count:]
        rest = replace(self.measured, values=values, curves=curves, reasons={})
        return replace(self, measured=rest, names=self.names[1:])

    def _of(self, numbers: Tensor, name: str) -> Tensor:
        """[K, N, ...] of the K candidates of that name."""
        places = [place for place, each in enumerate(self.names) if each == name]
        return numbers.unflatten(0, (-1, self.count))[places]

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
        """The standard deviation over the random maps, [N]."""
        return self._of(self.measured.values, "random").std(0)

    def why(self, ended: str) -> list[str]:
        """Why a value of the caller's maps is NaN, or of fewer samples than asked for, [N]."""
        missing = NOT_FINITE if self.is_complete else ended
        fewer = self.measured.is_sampled and not self.is_complete
        partly = f"of fewer samples than asked for: {ended}" if fewer else ""
        nan = self.values("").isnan().tolist()
        return [self.measured.reasons.get(row, missing if nan[row] else partly) for row in range(self.count)]

    @property
    def is_complete(self) -> bool:
        """Whether the call went to the end of the metric."""
        return self.is_begun and self.measured.is_whole


def _sorted(names: Sequence[str]) -> list[str]:
    return [name for name in ("random", "edge", "centre") if name in names]


def _in_words(places: dict[str, Place]) -> str:
    """ "better than random and edges, level with the centre blob"."""
    parts = []
    for verdict, joint in (
        ("better", "better than"),
        ("higher", "higher than"),
        ("level", "level with"),
        ("worse", "worse than"),
        ("lower", "lower than"),
        ("unknown", "not compared with"),
    ):
        names = [NAMES.get(name, name) for name, place in places.items() if place.verdict == verdict]
        if names:
            parts.append(f"{joint} {_and(names)}")
    return ", ".join(parts)


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean of values [n], and its standard error s / √n, NaN for fewer than two."""
    values = values.double()
    count = len(values)
    mean = float(values.mean()) if count else math.nan
    return mean, float(values.std() / math.sqrt(count)) if count > 1 else math.nan


def t_test(differences: Tensor) -> float:
    """The two-sided p-value of Student's paired t-test on differences [n]; NaN for fewer than two.

    Source   Abramowitz & Stegun 1964, 26.7.3 and 26.7.4: the distribution for a whole number of degrees of freedom
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
