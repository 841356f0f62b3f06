"""`Recommendation`: a table of maps, best first, and the agreement of the metrics; and several maps in one call.

It is the result of `recommend`, and of `evaluate` with several maps, which have names, one target and one ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Concatenate, ParamSpec, Protocol, overload

import torch
from torch import Tensor, nn

from explainers.call.loop import Partial
from explainers.default_targets import CHOSEN
from explainers.display.charts import charts_html, charts_images
from explainers.display.display import Display, Displayed, folded, paragraphs, table_html, target_name
from explainers.dtypes import to_cpu_float64
from explainers.errors import BadOption, nearest, shorten
from explainers.explanation.result import Explanation
from explainers.maps.arrays import Arrays
from explainers.maps.resize import rank_correlation
from explainers.metrics.candidates import Maps
from explainers.metrics.comparison import Comparisons, adjust, judge_comparisons, mean_and_error
from explainers.metrics.evaluation import Evaluation
from explainers.metrics.metric import METRICS, Metric
from explainers.targets import TargetLike
from explainers.verdict.rules import Verdict

AGREE, DISAGREE = 0.7, 0.3
"""Rank correlation of two metrics' orders of the maps: they agree above the first and disagree below the second."""


@dataclass(frozen=True, eq=False)
class RankedMap:
    """One row: a method at a layer, and the evaluation of its maps.

    In the result of `evaluate`, `method` is the name that the maps were given, and `seconds` includes the evaluation.
    `rank` is its mean rank over the metrics, from 1, among the rows with the same number of curve `steps`; `seconds` is
    the time for computing the maps; `cut` says that the method reached its time limit; `same_as` is the name of an
    earlier row with the same maps. `comparisons` are those of the evaluation, adjusted for the number of comparisons of
    all maps that were tried with it.
    """

    method: str
    layer: str | None
    seconds: float
    steps: int
    evaluation: Evaluation
    cut: bool = False
    same_as: str = ""
    rank: float = math.nan
    adjusted: Comparisons | None = field(default=None, repr=False)

    @property
    def comparisons(self) -> Comparisons:
        """The comparison with each control, by metric and control; the best of many maps may be better by chance."""
        return self.evaluation.comparisons if self.adjusted is None else self.adjusted

    @property
    def name(self) -> str:
        """The method and the layer, such as "grad_cam at layer4"."""
        return f"{self.method} at {self.layer}" if self.layer else self.method

    @property
    def values(self) -> dict[str, float]:
        """The mean of each metric over the images."""
        return {name: mean_and_error(each[each.isfinite()])[0] for name, each in self.evaluation.values.items()}

    def beats(self, control: str) -> bool:
        """Return whether the map is significantly better than that control by every metric."""
        comparisons = [each[control] for each in self.comparisons.values() if control in each]
        return bool(comparisons) and all(each.verdict == "better" for each in comparisons)

    @property
    def verdict(self) -> Verdict:
        """The verdict on this map by itself, regardless of the number of maps that were tried."""
        return self.evaluation.verdict


@dataclass(frozen=True, eq=False)
class Recommendation(Displayed):
    """The result of `recommend`, and of `evaluate` with several maps.

    `found["mine"]` and `found[0]` return a `RankedMap`, by name or by position.
    `rows` are best first: those with full curves, then those with short ones. `refused` is, by method (and layer), the
    reason why there is no map. `total` is the number of methods and layers to try, of which the first
    len(rows) + len(refused) were tried within the time, 0 in the result of `evaluate`. `is_stopped`: the caller stopped
    the search.
    """

    rows: tuple[RankedMap, ...]
    metrics: tuple[str, ...]
    refused: dict[str, str] = field(default_factory=dict)
    total: int = 0
    target: list[int] | str | None = None
    seconds: float = 0.0
    is_stopped: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str | int) -> RankedMap:
        """Return a row by its name, or by its position from 0.

        Errors   BadOption, IndexError
        """
        if not isinstance(name, str):
            return self.rows[name]
        names = [row.name for row in self.rows]
        if name in names:
            return self.rows[names.index(name)]
        raise BadOption(f"Unknown map {name!r}. {nearest(name, names)}The maps are: {', '.join(names)}.")

    @property
    def _ranking(self) -> list[str]:
        """The metrics that have a better direction."""
        return [name for name in self.metrics if METRICS[name].higher is not None]

    @property
    def best(self) -> RankedMap | None:
        """The first row."""
        return self.rows[0] if self.rows else None

    @property
    def compared(self) -> tuple[RankedMap, ...]:
        """The rows with the longest curves, whose values are comparable, without rows that repeat an earlier map."""
        steps = max((row.steps for row in self.rows), default=0)
        return tuple(row for row in self.rows if row.steps == steps and not row.same_as)

    @property
    def winners(self) -> dict[str, RankedMap]:
        """The best of the compared rows by each single metric."""
        best = _losses(self.compared, self._ranking).argmin(1).tolist() if self.rows else []
        return {name: self.compared[row] for name, row in zip(self._ranking, best, strict=False)}

    @property
    def agreement(self) -> dict[tuple[str, str], float]:
        """The rank correlation of two metrics' orders of the compared rows, by pair; NaN for fewer than three rows."""
        found = {}
        losses = dict(zip(self._ranking, _losses(self.compared, self._ranking), strict=True))
        for a, b in combinations(self._ranking, 2):
            known = losses[a].isfinite() & losses[b].isfinite()
            pair = losses[a][known][None], losses[b][known][None]
            found[a, b] = float(rank_correlation(*pair)) if int(known.sum()) > 2 else math.nan
        return found

    @staticmethod
    def describe_agreement(correlation: float) -> str:
        """Return whether two metrics with this rank correlation "agree", "partly agree" or "disagree"."""
        return "agree" if correlation > AGREE else "disagree" if correlation < DISAGREE else "partly agree"

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row for each map: method, layer, seconds, each metric and the verdict for each control."""
        table = []
        for row in self.rows:
            line: dict[str, Any] = {"rank": row.rank, "method": row.method, "layer": row.layer, "seconds": row.seconds}
            for name, value in row.values.items():
                line[name] = value
                for control, comparison in row.comparisons.get(name, {}).items():
                    line[f"{name}_beside_{control}"] = comparison.verdict
            table.append(line | {"steps": row.steps, "cut": row.cut, "same_as": row.same_as})
        return table

    def __str__(self) -> str:
        return "\n".join([*self.sentences(), *self._table(10)])

    def sentences(self) -> list[str]:
        """Return what was found: the best map, its comparison with the controls, and how the metrics agree."""
        if self.best is None:
            stopped = "The search was stopped" if self.is_stopped else "The time limit was reached"
            reason = next(iter(self.refused.values()), f"{stopped} before the first map.")
            return [f"There is no map to recommend. {reason}"]
        reached = len(self.rows) + len(self.refused)
        tried = f"all {self.total}" if reached >= self.total else f"{reached} of {self.total}"
        search = f" (tried {tried} in {self.seconds:.0f} s)" if self.total else ""
        values = [each for row in self.rows for each in row.evaluation.values.values()]
        if not any(bool(each.isfinite().any()) for each in values):
            return [f"No map has a value. {self.best.evaluation.sentence(name)}." for name in self.metrics[:1]]
        lines = [f"{self.best.name} is the best of {len(self.rows)} map{'s' * (len(self.rows) > 1)}{search}."]
        if self.total:
            lines += str(self.best.evaluation).splitlines()
        else:
            lines += [f"{row.name}: {judge_comparisons(row.comparisons).sentence}" for row in self.rows]
        # For each map with controls, whether it is better than all of them.
        named = [{control for each in row.evaluation.controls.values() for control in each} for row in self.rows]
        best = [all(map(row.beats, names)) for row, names in zip(self.rows, named, strict=True) if names]
        if best and not any(best):
            count = len({id(row.evaluation) for row in self.rows})
            maps = f"{count} map{'s' * (count != 1)}"
            lines.append(f"After correction for {maps}, none is better than every control by every metric.")
        return lines + [self._agreement(a, b, rho) for (a, b), rho in self.agreement.items()]

    def _agreement(self, a: str, b: str, rho: float) -> str:
        titles = METRICS[a].title, METRICS[b].title.lower()
        best = f"Best by {METRICS[a].title.lower()}: {self.winners[a].name}; by {titles[1]}: {self.winners[b].name}."
        if math.isnan(rho):
            return best
        verb = self.describe_agreement(rho)
        return f"{titles[0]} and {titles[1]} {verb} on the order (rank correlation {rho:.2f}). {best}"

    def _table(self, most: int) -> list[str]:
        shown = self.rows[:most]
        width = max((len(row.name) for row in shown), default=0)
        lines = [f"{'rank':>5}  {'map':{width}}  {'  '.join(f'{name:>9}' for name in self.metrics)}  seconds  steps"]
        for row in shown:
            values = "  ".join(f"{row.values[name]:9.3f}" for name in self.metrics)
            line = f"{row.rank:5.1f}  {row.name:{width}}  {values}  {row.seconds:7.2f}  {row.steps:5}"
            lines.append(line + (f"  as {row.same_as}" if row.same_as else ""))
        return lines if shown else []

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return what was found, the ranked maps, and the curves of the best map and its controls."""
        parts = [paragraphs([f"Target: {target_name(self.target, labels)}.", *self.sentences()])]
        charts = [] if self.best is None else self.best.evaluation.charts()
        if self.best is not None:
            rows = []
            for row in self.rows:
                values = [row.values[name] for name in self.metrics]
                rows.append([row.rank, row.name, *values, row.seconds, row.steps, row.same_as])
            parts += [table_html(["rank", "map", *self.metrics, "seconds", "steps", "same map as"], rows)]
            parts += [charts_html(charts)]
        if self.refused:
            reasons = table_html(["method", "reason"], list(self.refused.items()))
            parts.append(folded(f"{len(self.refused)} methods without a map", reasons))
        return Display("".join(parts), repr(self), charts_images(charts))

    def __repr__(self) -> str:
        best = self.best.name if self.best else "none"
        return f"Recommendation({len(self.rows)} maps by {', '.join(self.metrics)}, best {best})"


@dataclass(frozen=True)
class PartialRecommendation(Partial):
    """Progress of `recommend`: a `Partial` without a map, with the `recommendation` of the maps tried so far."""

    recommendation: Recommendation


def rank_maps(rows: Sequence[RankedMap], metrics: Sequence[str]) -> tuple[RankedMap, ...]:
    """Sort the rows, best first: longer curves before shorter ones, then by the mean rank over the metrics.

    Rows without a value for an image for which another row has one come last. The comparisons of all rows are adjusted
    for their number.
    """
    found: list[RankedMap] = []
    evaluations = {id(row.evaluation): row.evaluation for row in rows}  # rows with the same maps share one
    adjusted = dict(zip(evaluations, adjust([each.unadjusted for each in evaluations.values()]), strict=True))
    for steps in sorted({row.steps for row in rows}, reverse=True):
        group = [row for row in rows if row.steps == steps]
        losses = _losses(group, [name for name in metrics if METRICS[name].higher is not None])
        below = (losses[:, None] < losses[:, :, None]).sum(2)
        same = (losses[:, None] == losses[:, :, None]).sum(2)  # ties get their mean rank
        mean = (below + (same + 1) / 2).mean(0).tolist()
        missing = losses.isinf().any(0).tolist()
        # Among equal ranks, the map that was tried first, and is therefore the cheapest, comes first.
        order = sorted(range(len(group)), key=lambda k: (missing[k], mean[k]))
        found += [replace(group[k], rank=mean[k], adjusted=adjusted[id(group[k].evaluation)]) for k in order]
    return tuple(found)


def _losses(rows: Sequence[RankedMap], metrics: Sequence[str]) -> Tensor:
    """Return each metric's mean over the images, negated if higher is better, [metrics, rows].

    It is infinite for a row without a value for an image for which another row has one, because means over different
    images are not comparable.
    """
    found = torch.full((len(metrics), len(rows)), math.inf, dtype=torch.float64)
    for m, name in enumerate(metrics):
        values = [to_cpu_float64(row.evaluation.values[name]) for row in rows]
        required = torch.stack(values).isfinite().any(0) if values else torch.zeros(0, dtype=torch.bool)
        for k, each in enumerate(values):
            if bool(required.any()) and bool(each[required].isfinite().all()):
                mean = float(each[required].mean())
                found[m, k] = -mean if METRICS[name].higher else mean
    return found


P = ParamSpec("P")


class _Evaluate(Protocol[P]):
    """The type of `evaluate`, whose result depends on the form of `maps`."""

    @overload
    def __call__(
        self, model: nn.Module, images: Tensor, maps: Maps | Arrays, *args: P.args, **keywords: P.kwargs
    ) -> Evaluation: ...

    @overload
    def __call__(
        self, model: nn.Module, images: Tensor, maps: Mapping[str, Maps | Arrays], *args: P.args, **keywords: P.kwargs
    ) -> Recommendation: ...


def overloaded(function: Callable[Concatenate[nn.Module, Tensor, Any, P], Any]) -> _Evaluate[P]:
    """Return the same function, with a result by the form of `maps` for type checkers."""
    return function  # type: ignore[return-value]


def by_name(maps: Any, metrics: Sequence[Metric]) -> Mapping[str, Any]:
    """Return several maps by name; a single one has the name "".

    Errors   BadOption
    """
    if not isinstance(maps, Mapping):
        return {"": maps}
    if not maps or not all(isinstance(name, str) and name for name in maps):
        raise BadOption(f"maps={shorten(maps)} is not valid. Give maps by name: {{'Grad-CAM': cam, 'mine': heat}}.")
    if all(each.higher is None for each in metrics):
        names = " and ".join(each.name for each in metrics)
        raise BadOption(f"{names} cannot rank maps: no direction is better. Add another metric, such as 'deletion'.")
    return maps


def rank_evaluations(found: Mapping[str, Evaluation]) -> Recommendation:
    """Rank the evaluations of several maps, with one correction for the number of all comparisons."""
    rows = [RankedMap(name, None, each.seconds, int(each.options["steps"]), each) for name, each in found.items()]
    first = next(iter(found.values()))
    metrics = tuple(first.values)
    return Recommendation(rank_maps(rows, metrics), metrics, target=first.target, seconds=sum(r.seconds for r in rows))


def target_of(maps: Mapping[str, Any], target: TargetLike) -> TargetLike:
    """Return the target of the explanations among the maps, if none is given.

    Errors   BadOption if they have different targets
    """
    known = {name: each for name, each in maps.items() if isinstance(each, Explanation) and each.target is not None}
    if target is not None or not known:
        return target
    first, *others = known
    for name in others:
        if known[name].target != known[first].target:
            raise BadOption(
                f"maps[{first!r}] explains {shorten(known[first].target)} and maps[{name!r}] "
                f"{shorten(known[name].target)}. Give target=, the target of all maps."
            )
    own = known[first]
    if any(finding.code in CHOSEN for findings in own.findings for finding in findings):
        return None  # chosen by the network's output, which gives the same target again
    if isinstance(own.target, str):
        raise BadOption(f"The target of the explanation, {own.target}, is stored only as text. Give target= again.")
    return own.target


def score_of(maps: Mapping[str, Any], score: str) -> str:
    """Return the kind of probability that the explanations among the maps declare, if none is given.

    Errors   BadOption if they declare different ones
    """
    declared = {each.score: name for name, each in maps.items() if isinstance(each, Explanation) and each.score}
    if not declared or not isinstance(score, str) or score != "probability":
        return score
    if len(declared) > 1:
        raise BadOption(f"The explanations have different kinds of scores: {', '.join(declared)}. Give score=.")
    return next(iter(declared))
