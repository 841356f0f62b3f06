"""`Recommendation`: the table of maps that were tried, best first, and where the metrics disagree about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from explainers.maps.resize import rank_correlation
from explainers.metrics.evaluation import Evaluation, mean_and_error
from explainers.metrics.metric import METRICS
from explainers.passes.loop import Partial

AGREE, DISAGREE = 0.7, 0.3
"""Rank correlations of two metrics' orders of the maps, above which they agree and below which they do not."""


@dataclass(frozen=True, eq=False)
class Tried:
    """One row: a method at a layer, and what the metrics say about its maps beside the controls.

    `rank` is the mean of its places by each metric, from 1, among the rows with as many `steps` in their curves;
    `seconds` what the maps took; `cut` that the method ended by its share of the time; `same_as` names an earlier row
    whose maps are the same.
    """

    method: str
    layer: str | None
    seconds: float
    steps: int
    evaluation: Evaluation
    cut: bool = False
    same_as: str = ""
    rank: float = math.nan

    @property
    def name(self) -> str:
        """ "grad_cam at layer4"."""
        return f"{self.method} at {self.layer}" if self.layer else self.method

    @property
    def values(self) -> dict[str, float]:
        """The mean of each metric over the images."""
        return {name: mean_and_error(each[each.isfinite()])[0] for name, each in self.evaluation.values.items()}

    def beats(self, control: str) -> bool:
        """Whether no metric says that the map is level with, or worse than, that control."""
        places = [each[control] for each in self.evaluation.places.values() if control in each]
        return bool(places) and all(place.verdict == "better" for place in places)


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The result of `recommend`.

    `rows` are best first: those with full curves, then those with short ones. `refused` has, by method (and layer), why
    there is no map. `total` is the number of methods and layers to try, of which the first len(rows) + len(refused)
    were reached within the time. `is_stopped`: the caller ended the search.
    """

    rows: tuple[Tried, ...]
    metrics: tuple[str, ...]
    refused: dict[str, str] = field(default_factory=dict)
    total: int = 0
    target: list[int] | str | None = None
    seconds: float = 0.0
    is_stopped: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def best(self) -> Tried | None:
        """The first row."""
        return self.rows[0] if self.rows else None

    @property
    def compared(self) -> tuple[Tried, ...]:
        """The rows with the longest curves, whose numbers are comparable; those that are the same map once."""
        steps = max((row.steps for row in self.rows), default=0)
        return tuple(row for row in self.rows if row.steps == steps and not row.same_as)

    @property
    def winners(self) -> dict[str, Tried]:
        """The best of the compared rows by each metric alone."""
        best = _losses(self.compared, self.metrics).argmin(1).tolist() if self.rows else []
        return {name: self.compared[row] for name, row in zip(self.metrics, best, strict=False)}

    @property
    def agreement(self) -> dict[tuple[str, str], float]:
        """For each two metrics the rank correlation of their orders of the compared rows; NaN for fewer than three."""
        found = {}
        losses = dict(zip(self.metrics, _losses(self.compared, self.metrics), strict=True))
        for a, b in combinations(self.metrics, 2):
            known = losses[a].isfinite() & losses[b].isfinite()
            pair = losses[a][known][None], losses[b][known][None]
            found[a, b] = float(rank_correlation(*pair)) if int(known.sum()) > 2 else math.nan
        return found

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each map: its method, layer, seconds, each metric and its verdict beside each control."""
        table = []
        for row in self.rows:
            line: dict[str, Any] = {"rank": row.rank, "method": row.method, "layer": row.layer, "seconds": row.seconds}
            for name, value in row.values.items():
                line[name] = value
                for control, place in row.evaluation.places.get(name, {}).items():
                    line[f"{name}_beside_{control}"] = place.verdict
            table.append(line | {"steps": row.steps, "cut": row.cut, "same_as": row.same_as})
        return table

    def __str__(self) -> str:
        if self.best is None:
            ended = "It was stopped" if self.is_stopped else "The time was over"
            why = next(iter(self.refused.values()), f"{ended} before the first map.")
            return f"No map could be recommended. {why}"
        reached = len(self.rows) + len(self.refused)
        tried = f"all {self.total}" if reached >= self.total else f"{reached} of {self.total}"
        lines = [f"{self.best.name} is the best of {len(self.rows)} maps ({tried} were tried, {self.seconds:.0f} s)."]
        lines += [self.best.evaluation.sentence(name) for name in self.metrics]
        beside = [row for row in self.rows if _controls(row)]
        if beside and not any(all(row.beats(control) for control in _controls(row)) for row in beside):
            lines.append("No map is better than every control by every metric: trust none of them on this alone.")
        lines += [self._agreement(a, b, rho) for (a, b), rho in self.agreement.items()]
        return "\n".join([*lines, *self._table(10)])

    def _agreement(self, a: str, b: str, rho: float) -> str:
        titles = METRICS[a].title, METRICS[b].title.lower()
        wins = f"{titles[0]} is won by {self.winners[a].name}, {titles[1]} by {self.winners[b].name}."
        if math.isnan(rho):
            return wins
        word = "agree" if rho > AGREE else "disagree" if rho < DISAGREE else "agree in part"
        return f"{titles[0]} and {titles[1]} {word} about the order (rank correlation {rho:.2f}). {wins}"

    def _table(self, most: int) -> list[str]:
        shown = self.rows[:most]
        width = max(len(row.name) for row in shown)
        head = f"{'rank':>5}  {'map':{width}}  " + "  ".join(f"{name:>9}" for name in self.metrics) + "  seconds  steps"
        lines = [
            f"{row.rank:5.1f}  {row.name:{width}}  "
            + "  ".join(f"{row.values[name]:9.3f}" for name in self.metrics)
            + f"  {row.seconds:7.2f}  {row.steps:5}"
            + (f"  as {row.same_as}" if row.same_as else "")
            for row in shown
        ]
        return [head, *lines]

    def __repr__(self) -> str:
        best = self.best.name if self.best else "none"
        return f"Recommendation({len(self.rows)} maps by {', '.join(self.metrics)}, best {best})"


@dataclass(frozen=True)
class PartialRecommendation(Partial):
    """Progress of `recommend`: a `Partial` without a map, with the `recommendation` of the maps tried so far."""

    recommendation: Recommendation


def ranked(rows: Sequence[Tried], metrics: Sequence[str]) -> tuple[Tried, ...]:
    """The rows, best first: longer curves before shorter ones, and by the mean of the places by each metric.

    Rows for which a metric has no value on an image that another row has one of are behind the others.
    """
    found: list[Tried] = []
    for steps in sorted({row.steps for row in rows}, reverse=True):
        group = [row for row in rows if row.steps == steps]
        losses = _losses(group, metrics)
        mean = _places(losses).mean(0).tolist()
        missing = losses.isinf().any(0).tolist()
        # Of equal ranks, the one that was tried first, which is the cheapest.
        order = sorted(range(len(group)), key=lambda k: (missing[k], mean[k]))
        found += [replace(group[k], rank=mean[k]) for k in order]
    return tuple(found)


def _places(losses: Tensor) -> Tensor:
    """Places [metrics, rows] from 1, the lowest loss first; ties have their mean place."""
    below = (losses[:, None] < losses[:, :, None]).sum(2)
    same = (losses[:, None] == losses[:, :, None]).sum(2)
    return below + (same + 1) / 2


def _losses(rows: Sequence[Tried], metrics: Sequence[str]) -> Tensor:
    """Each metric's mean over the images, turned so that lower is better, [metrics, rows].

    Infinite for a row without a value on an image on which another has one: means of other images do not compare.
    """
    found = torch.full((len(metrics), len(rows)), math.inf, dtype=torch.float64)
    for place, name in enumerate(metrics):
        values = [row.evaluation.values[name].double().cpu() for row in rows]
        wanted = torch.stack(values).isfinite().any(0) if values else torch.zeros(0, dtype=torch.bool)
        for k, each in enumerate(values):
            if bool(wanted.any()) and bool(each[wanted].isfinite().all()):
                mean = float(each[wanted].mean())
                found[place, k] = -mean if METRICS[name].higher else mean
    return found


def _controls(row: Tried) -> list[str]:
    return sorted({control for each in row.evaluation.controls.values() for control in each})
