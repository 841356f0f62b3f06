"""`recommend`: which method, at which layer, has the map that the metrics believe most, within a time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from explainers.errors import BadOption, ExplainerError, nearest
from explainers.explanation.result import Explanation
from explainers.explanation.run import explain
from explainers.findings import unrecorded
from explainers.hooks.locate import find_hook_point, unwrap, why_no_hooks
from explainers.layers.lookup import stages
from explainers.methods.cams.gradient_cams import FORMULAS
from explainers.metrics.metric import find_metric
from explainers.metrics.recommendation import PartialRecommendation, Recommendation, Tried, ranked
from explainers.metrics.run import Evaluator, evaluate, evaluator
from explainers.network.eval_view import one_call, outside_call
from explainers.network.forwarded import forwarded
from explainers.options import LayerName, options_of
from explainers.passes.at_layer import activations_and_gradients_of
from explainers.passes.loop import Partial, Progress, check_progress
from explainers.registry import METHODS, Method, check_images, find, rectifies
from explainers.targets import Target, TargetLike, described

SHORT = 5
"""Steps of the curves by which all maps are compared first."""
FIRST_ROUND = 0.6
"""Fraction of the time for the first round, in which all maps are made."""
FINALISTS, FEWEST = 4, 8
"""One map in so many, the best of the first round, but at least so many get curves of full length as well.

Over 65 maps on EfficientNet-Lite0 the orders by five and by twenty steps had rank correlations of 0.90 to 0.98 on four
photographs; the best by twenty steps was among the best quarter by five on all, of the best five at least four were.
"""
SAME = 1e-4
"""Largest difference between two maps, as fractions of their largest values, that rounding may cause."""


def recommend(
    model: nn.Module,
    images: Tensor,
    *,
    target: TargetLike = None,
    seconds: float = 10,
    metrics: Sequence[str] = ("deletion", "insertion"),
    layers: str | Sequence[LayerName] = "stages",
    methods: Sequence[str] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Recommendation:
    """Try methods at layers within `seconds`, and rank their maps by the metrics, beside the controls.

    Cheapest first: the CAMs that share one forward and one backward pass for all layers, the input gradients, other
    methods of a few passes (at the last layer, then at earlier ones), and long methods with a share of the time that is
    left each. In a first round every map gets curves of `SHORT` steps; the best quarter, but at least `FEWEST`, is then
    measured again with the full `steps` of `evaluate`. A map that equals an earlier one (at a linear head Grad-CAM,
    HiResCAM and XGrad-CAM are one) has that one's numbers. Rows are ordered by the mean of their places by each metric.

    `layers` is "stages" or a list of names, the last of which long methods take; `methods` None is every method with a
    map that fits the model, without the controls; `settings` are those of `evaluate`, such as `steps`, `baseline`,
    `seed` and `precision`, but for `controls`, which are always measured. `progress` gets a `Partial` with the
    `recommendation` so far after each map.

    The best of many maps on one image is partly the luckiest: give several images for a choice that is to last.

    Returns  a `Recommendation`: the table, `best`, and where the metrics disagree
    Errors   BadOption, BadImages, BadTarget, LayerNotFound

    Example
        >>> found = recommend(model, images, methods=["grad_cam", "layer_cam"], layers=["layer3", "layer4"], steps=8)
        >>> len(found), found.best.method in ("grad_cam", "layer_cam")
        (4, True)
    """
    check_progress(progress)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise BadOption(f"seconds={seconds!r} is not possible. Give a number above 0.")
    names = _metrics(metrics)
    forward = settings.pop("forward", None)
    known = _settings(settings)
    model = forwarded(model, forward, images)
    with one_call(model):
        check_images(model, images)
        places = _layers(layers, model, images)
        shares = not any(find_metric(name).reruns for name in names)  # a sweep's maps do not say how to make them again
        queue = _queue(_methods(methods, model), places, shares)
        return _Search(model, images, target, names, known, queue, seconds, progress).run()


def _metrics(names: Any) -> tuple[str, ...]:
    several = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, (list, tuple)) else ()
    if not several:
        raise BadOption(f"metrics={names!r} is not possible. Give names of METRICS: metrics=('deletion', 'insertion').")
    for name in several:
        if find_metric(name).higher is None:
            raise BadOption(f"Neither higher nor lower {name} is better, so it ranks no maps. Choose another metric.")
    return tuple(dict.fromkeys(several))


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings of `evaluate`, checked by it, but for `steps`, whose default is needed here."""
    options = options_of(evaluate)
    known = [*options, "region", "options", "batch_size"]
    for name in given:
        if name not in known:
            raise BadOption(f"recommend has no option {name!r}. {nearest(name, known)}It takes {', '.join(known)}.")
    options["steps"].check(given.get("steps", options["steps"].default))
    return {"steps": options["steps"].default, **given}


def _layers(layers: Any, model: nn.Module, images: Tensor) -> list[str]:
    """The names of the layers, the last one first."""
    if why_no_hooks(model):
        return []
    if isinstance(layers, str) and layers == "stages":
        found = stages(model, images)
    elif isinstance(layers, (list, tuple)) and layers:
        found = list(layers)
    else:
        raise BadOption(f"layers={layers!r} is not possible. Give 'stages', or a list of names: ['layer3', 'layer4'].")
    names = [find_hook_point(unwrap(model), each).name for each in found]
    return list(dict.fromkeys(names))[::-1]


def _methods(names: Any, model: nn.Module) -> list[Method]:
    """The methods with a map that fit the model.

    Errors   BadOption for a named one that does not
    """
    if names is None:
        fits = (each for each in METHODS.values() if each.family != "control" and each.gives_map)
        return [each for each in fits if each.applies(model) is None]
    if isinstance(names, str) or not isinstance(names, (list, tuple)) or not names:
        raise BadOption(f"methods={names!r} is not possible. Give a list of names: ['grad_cam', 'saliency'].")
    chosen = [find(name) for name in dict.fromkeys(names)]
    for each in chosen:
        reason = each.applies(model) or (f"It gives {each.returns}, no map." if not each.gives_map else None)
        if reason:
            raise BadOption(f"{each.name} cannot be tried here. {reason}")
    return chosen


def _queue(methods: Sequence[Method], layers: Sequence[str], shares: bool) -> list[_Entry]:
    """Methods and layers, cheapest first, and late layers before early ones."""
    places: Sequence[str | None] = layers or [None]  # methods that read a layer then say why there is none
    quick = [each for each in methods if not each.long]
    swept = [each for each in quick if each.name in FORMULAS and shares and layers]
    layered = [each for each in quick if each.takes_layer and each not in swept]
    queue = [_Entry(each, layer, True) for layer in places for each in swept]
    queue += [_Entry(each) for each in quick if not each.takes_layer]
    queue += [_Entry(each, layer) for layer in places for each in layered]
    return queue + [_Entry(each, places[0] if each.takes_layer else None) for each in methods if each.long]


def _are_same(a: Tensor | Explanation, b: Tensor | Explanation) -> bool:
    """Whether two maps differ by a positive factor and rounding alone."""
    first, second = (each.map if isinstance(each, Explanation) else each for each in (a, b))
    if first.shape != second.shape:
        return False
    scaled = [each / each.abs().amax((1, 2), keepdim=True).clamp(min=1e-30) for each in (first, second)]
    return bool((scaled[0] - scaled[1]).abs().max() <= SAME)


@dataclass(frozen=True)
class _Entry:
    """A method, and the layer that it is tried at."""

    method: Method
    layer: str | None = None
    is_shared: bool = False

    @property
    def name(self) -> str:
        return f"{self.method.name} at {self.layer}" if self.layer else self.method.name


class _Stopped(Exception):
    """The caller ends the search."""


@dataclass(eq=False)
class _Search:
    """The two rounds, and what they found."""

    model: nn.Module
    images: Tensor
    target: TargetLike
    metrics: tuple[str, ...]
    settings: dict[str, Any]
    queue: list[_Entry]
    seconds: float
    progress: Progress | None
    began: float = field(default_factory=time.monotonic)
    rows: list[Tried] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    fixed: Target | None = None
    stopped: bool = False
    _given: dict[str, Tensor | Explanation] = field(default_factory=dict)
    _shared: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _shared_seconds: float = 0.0
    _fraction: float = 1.0

    def run(self) -> Recommendation:
        """What there is time for."""
        steps = self.settings["steps"]
        try:
            self._first_round(min(steps, SHORT), self.seconds * (FIRST_ROUND if steps > SHORT else 1))
            if steps > SHORT:
                self._second_round(steps)
        except _Stopped:
            self.stopped = True
        return self._found()

    def _first_round(self, steps: int, until: float) -> None:
        """Every entry, while there is time."""
        with self._judge(steps, until) as judge:
            self.fixed = judge.trial.run.target
            for place, entry in enumerate(self.queue):
                if place and self._elapsed() >= until:  # at least one was tried, though it may not have ended
                    break
                long = sum(each.method.long for each in self.queue[place:])
                share = (until - self._elapsed()) / long if entry.method.long else None
                try:
                    self._try(entry, judge, steps, share)
                except ExplainerError as refusal:
                    self.refused[entry.name] = str(refusal)
                self._report()

    def _try(self, entry: _Entry, judge: Evaluator, steps: int, share: float | None) -> None:
        """One entry's maps, and what the metrics say; nothing is noted where the time ended meanwhile."""
        began = time.monotonic()
        maps = self._maps(entry, share)
        seconds = time.monotonic() - began + (self._shared_seconds if entry.is_shared else 0.0)
        alone = [row for row in self.rows if not row.same_as] if judge.reads_map_alone else []
        same = next((row for row in alone if _are_same(self._given[row.name], maps)), None)
        evaluation = judge(maps) if same is None else same.evaluation
        if not evaluation.is_complete:
            return
        name = same.name if same is not None else ""
        self._given[entry.name] = maps
        cut = share is not None and self._fraction < 1
        self.rows.append(Tried(entry.method.name, entry.layer, seconds, steps, evaluation, cut, name))

    def _maps(self, entry: _Entry, share: float | None) -> Tensor | Explanation:
        if entry.is_shared and entry.layer is not None:
            if not self._shared and not self._shared_seconds:
                self._share()
            if entry.layer not in self._shared:
                self._shared |= activations_and_gradients_of(self.model, self.images, [entry.layer], self.fixed)
            raw = FORMULAS[entry.method.name](*self._shared[entry.layer])
            return raw.relu() if rectifies(entry.method, {}) else raw
        options: dict[str, Any] = {} if entry.layer is None else {"layer": entry.layer}
        if share is not None:
            options |= {"budget": max(share, 1e-3), "progress": self._of_method}
            self._fraction = 0.0
        with unrecorded():
            return explain(entry.method.name, self.model, self.images, self.fixed, compare=False, **options)

    def _share(self) -> None:
        """Activations and gradients of all layers, from one forward and one backward pass."""
        began = time.monotonic()
        entries = [each for each in self.queue if each.is_shared and each.layer is not None]
        names = list(dict.fromkeys(each.layer for each in entries))
        with unrecorded():
            try:
                self._shared = activations_and_gradients_of(self.model, self.images, names, self.fixed)
            except ExplainerError:  # of one of the layers, which then says so for itself
                for name in names:
                    with suppress(ExplainerError):
                        self._shared |= activations_and_gradients_of(self.model, self.images, [name], self.fixed)
        self._shared_seconds = (time.monotonic() - began) / len(entries)

    def _second_round(self, steps: int) -> None:
        """Full curves for the best of the first round, from the best on, while there is time."""
        first = [row for row in ranked(self.rows, self.metrics) if not row.same_as]
        finalists = first[: max(FEWEST, math.ceil(len(first) / FINALISTS))]
        if not finalists or self._elapsed() >= self.seconds:
            return
        with self._judge(steps, self.seconds) as judge:
            for row in finalists:
                evaluation = judge(self._given[row.name])
                if not evaluation.is_complete:
                    break
                for place, each in enumerate(self.rows):
                    if row.name in (each.name, each.same_as):
                        self.rows[place] = replace(each, evaluation=evaluation, steps=steps)
                self._report()

    @contextmanager
    def _judge(self, steps: int, until: float) -> Iterator[Evaluator]:
        budget = max(until - self._elapsed(), 1e-3)
        target = self.target if self.fixed is None else self.fixed
        settings = {**self.settings, "steps": steps}
        with evaluator(
            self.model,
            self.images,
            target=target,
            metrics=self.metrics,
            budget=budget,
            progress=self._inside,
            **settings,
        ) as judge:
            yield judge

    def _elapsed(self) -> float:
        return time.monotonic() - self.began

    def _report(self) -> None:
        if self.progress is None:
            return
        with outside_call(), unrecorded():
            goes_on = self.progress(self._partial()) is not False
        if not goes_on:
            raise _Stopped

    def _inside(self, partial: Partial) -> None:
        """Progress of a metric."""
        self._report()

    def _of_method(self, partial: Partial) -> None:
        """Progress of a long method."""
        self._fraction = partial.fraction
        self._report()

    def _partial(self) -> PartialRecommendation:
        done, total = len(self.rows) + len(self.refused), len(self.queue)
        fraction = min(1.0, max(self._elapsed() / self.seconds, FIRST_ROUND * done / max(1, total)))
        return PartialRecommendation(fraction, None, done, total, self._found())

    def _found(self) -> Recommendation:
        target = None if self.fixed is None else described(self.fixed, len(self.images))
        rows = ranked(self.rows, self.metrics)
        refused, total = dict(self.refused), len(self.queue)
        return Recommendation(rows, self.metrics, refused, total, target, self._elapsed(), self.stopped)
