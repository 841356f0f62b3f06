"""`recommend`: search for the method and layer with the best map according to metrics, within a time limit."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import check_images, one_call, outside_call
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.layers import stages
from explainers.call.loop import Partial, Progress, check_progress
from explainers.call.method import Method
from explainers.call.run import AtLayer, activations_and_gradients_of
from explainers.errors import BadOption, ExplainerError, shorten
from explainers.explanation.result import Explanation
from explainers.explanation.run import explain
from explainers.findings import pause_recording
from explainers.hooks.locate import find_hook_point, unwrap, why_no_hooks
from explainers.methods.cams.gradient_cams import FORMULAS
from explainers.metrics.metric import METRICS, EvaluationSettings, find_metrics
from explainers.metrics.recommendation import PartialRecommendation, RankedMap, Recommendation, rank_maps
from explainers.metrics.run import Evaluator, evaluate, evaluator
from explainers.options import LayerName, options_of, unknown_keyword
from explainers.placement import place
from explainers.registry import METHODS, MethodLike, find, rectifies
from explainers.targets import Target, TargetLike, describe_target

SHORT = 5
"""Number of curve steps in the first round."""
FIRST_ROUND = 0.6
"""Share of the time for the first round, in which all maps are computed."""
FINALISTS, MIN_FINALISTS = 4, 8
"""One in `FINALISTS` maps, the best of the first round but at least `MIN_FINALISTS`, also gets curves of full length.

Over 65 maps on EfficientNet-Lite0, the rankings with five and with twenty steps had rank correlations of 0.90 to 0.98
on four images. On all of them, the best map with twenty steps was among the best quarter with five, and so were at
least four of the best five.
"""
TOLERANCE = 1e-4
"""Largest difference between two maps, as a share of their maximum, that rounding may cause."""


@torch.inference_mode(False)
def recommend(
    model: nn.Module,
    images: Tensor,
    *,
    target: TargetLike = None,
    budget: float = 10,
    metrics: Sequence[str] = ("deletion", "insertion"),
    layers: LayerName | Sequence[LayerName] = "stages",
    methods: MethodLike | Sequence[MethodLike] | None = None,
    progress: Progress | None = None,
    forward: Forward | None = None,
    **settings: Any,
) -> Recommendation:
    """Try methods and layers within `budget` seconds, and rank their maps by metrics and comparisons with controls.

    The cheapest methods run first: the CAMs, which share one forward and one backward pass for all layers, the input
    gradients, other methods with a few passes (at the last layer, then at earlier ones), and long methods, each with a
    share of the remaining time. In the first round, every map gets curves of `SHORT` steps. The best quarter, but at
    least `MIN_FINALISTS`, is then evaluated again with the full `steps` of `evaluate`. A map that equals an earlier one
    (at a linear head, Grad-CAM, HiResCAM and XGrad-CAM are identical) gets its results. Rows are ordered by their mean
    rank over the metrics.

    `layers` is "stages", a layer or a list of them; long methods use only the last one. `methods` defaults to all
    methods that return a map and support the model, except for controls; `settings` are those of `evaluate`, such as
    `steps`, `baseline`, `seed` and `precision`, except for `controls`, which are always computed. `forward` is as in
    `explain`.
    `progress` gets a `Partial` with the `recommendation` so far after each map.

    The best of many maps on a single image may be best by chance. Give several images for a reliable choice.

    Returns  a `Recommendation`: the table, `best`, and how well the metrics agree
    Errors   BadOption, BadImages, BadTarget, LayerNotFound

    Example
        >>> found = recommend(model, images, methods=["grad_cam", "layer_cam"], layers=["layer3", "layer4"], steps=8)
        >>> len(found), found.best.method in ("grad_cam", "layer_cam")
        (4, True)
    """
    check_progress(progress)
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0:
        raise BadOption(f"budget={shorten(budget)} is not valid. Give a number of seconds above 0.")
    names = _metrics(metrics)
    known = _settings(target, names, settings)
    model = wrap_forward(model, forward, images)
    with one_call(model):
        check_images(model, images)
        layer_names = _layers(layers, model, images)
        shares = not any(METRICS[name].reruns for name in names)  # the maps of a sweep cannot be computed again
        queue = _queue(_methods(methods, model, images), layer_names, shares)
        return _Search(model, images, names, known, queue, budget, progress).run()


def _metrics(names: Any) -> tuple[str, ...]:
    found = find_metrics(names)
    for metric in found:
        if metric.higher is None:
            raise BadOption(f"{metric.name} has no better direction, so it cannot rank maps. Choose another metric.")
    return tuple(metric.name for metric in found)


def _settings(target: TargetLike, metrics: tuple[str, ...], given: dict[str, Any]) -> EvaluationSettings:
    """Return the settings of `evaluator`, which checks them, except for `steps`, which the search uses itself."""
    options = options_of(evaluate)
    known = [*options, "region", "options", "batch_size"]
    for name in given:
        if name not in known:
            own = [each for each in inspect.signature(recommend).parameters if each != "settings"]
            raise unknown_keyword("recommend", name, [*own, *known], known)
    settings = EvaluationSettings(target=target, metrics=metrics, **given)
    options["steps"].check(settings.steps)
    return settings


def _layers(layers: Any, model: nn.Module, images: Tensor) -> list[str]:
    """Return the names of the layers, the last one first."""
    if why_no_hooks(model):
        return []
    found = [layers] if isinstance(layers, (str, nn.Module)) else layers
    if isinstance(layers, str) and layers == "stages":
        found = stages(model, images)
    elif not isinstance(found, (list, tuple)) or not found:
        raise BadOption(
            f"layers={shorten(layers)} is not valid. Give 'stages', a name, or a list of names: ['layer3', 'layer4']."
        )
    names = [find_hook_point(unwrap(model), each).name for each in found]
    return list(dict.fromkeys(names))[::-1]


def _methods(names: Any, model: nn.Module, images: Tensor) -> list[Method]:
    """Return the methods that return a map and support the model and the images.

    Errors   BadOption for a named method that does not
    """

    def why_not(method: Method) -> str | None:
        reason = method.applies(model) or (f"It returns {method.returns}, not a map." if not method.gives_map else None)
        return reason or ("It explains images, not videos." if images.ndim == 5 and not method.videos else None)

    if names is None:
        return [each for each in METHODS.values() if each.family != "control" and why_not(each) is None]
    if isinstance(names, (str, Method)) or callable(names):
        names = [names]
    if not isinstance(names, (list, tuple)) or not names:
        raise BadOption(f"methods={shorten(names)} is not valid. Give a list of names: ['grad_cam', 'saliency'].")
    chosen = list({found.name: found for found in map(find, names)}.values())
    for each in chosen:
        if reason := why_not(each):
            raise BadOption(f"Cannot use {each.name}. {reason}")
    return chosen


def _queue(methods: Sequence[Method], layers: Sequence[str], shares: bool) -> list[_Entry]:
    """Return pairs of methods and layers, cheapest methods first, and late layers before early ones."""
    names: Sequence[str | None] = layers or [None]  # with None, methods that need a layer report why there is none
    quick = [each for each in methods if not each.long]
    swept = [each for each in quick if each.name in FORMULAS and shares and layers]
    layered = [each for each in quick if each.takes_layer and each not in swept]
    queue = [_Entry(each, layer, True) for layer in names for each in swept]
    queue += [_Entry(each) for each in quick if not each.takes_layer]
    queue += [_Entry(each, layer) for layer in names for each in layered]
    return queue + [_Entry(each, names[0] if each.takes_layer else None) for each in methods if each.long]


def _are_same(a: Tensor | Explanation, b: Tensor | Explanation) -> bool:
    """Return whether two maps differ only by a positive factor and rounding."""
    maps = [each.placed if isinstance(each, Explanation) else each for each in (a, b)]
    if maps[0].shape != maps[1].shape:
        return False
    cells = tuple(range(1, maps[0].ndim))
    first, second = (each / each.abs().amax(cells, keepdim=True).clamp(min=1e-30) for each in maps)
    return bool((first - second).abs().max() <= TOLERANCE)


@dataclass(frozen=True)
class _Entry:
    """A method and the layer to try."""

    method: Method
    layer: str | None = None
    is_shared: bool = False

    @property
    def name(self) -> str:
        return f"{self.method.name} at {self.layer}" if self.layer else self.method.name


class _Stopped(Exception):
    """Raised if the caller stops the search."""


@dataclass(eq=False)
class _Search:
    """The two rounds of the search, and their results."""

    model: nn.Module
    images: Tensor
    metrics: tuple[str, ...]
    settings: EvaluationSettings
    queue: list[_Entry]
    seconds: float
    progress: Progress | None
    start: float = field(default_factory=time.monotonic)
    rows: list[RankedMap] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    fixed: Target | None = None
    stopped: bool = False
    _given: dict[str, Tensor | Explanation] = field(default_factory=dict)
    _shared: dict[str, AtLayer] = field(default_factory=dict)
    _shared_seconds: float = 0.0

    def run(self) -> Recommendation:
        """Run both rounds, as far as the time allows."""
        steps = self.settings.steps
        try:
            self._first_round(min(steps, SHORT), self.seconds * (FIRST_ROUND if steps > SHORT else 1))
            if steps > SHORT:
                self._second_round(steps)
        except _Stopped:
            self.stopped = True
        return self._recommendation()

    def _first_round(self, steps: int, until: float) -> None:
        """Try all entries, as far as the time allows."""
        with self._judge(steps, until) as judge:
            self.fixed = judge.trial.run.scoring.target
            for k, entry in enumerate(self.queue):
                if k and self._elapsed() >= until:  # always try one entry, even if it does not complete
                    break
                long = sum(each.method.long for each in self.queue[k:])
                share = (until - self._elapsed()) / long if entry.method.long else None
                try:
                    self._try(entry, judge, steps, share)
                except ExplainerError as error:
                    self.refused[entry.name] = str(error)
                self._report()

    def _try(self, entry: _Entry, judge: Evaluator, steps: int, share: float | None) -> None:
        """Compute and evaluate one entry's maps. The result is dropped if the time ran out."""
        start = time.monotonic()
        maps = self._maps(entry, share)
        seconds = time.monotonic() - start + (self._shared_seconds if entry.is_shared else 0.0)
        distinct = [row for row in self.rows if not row.same_as] if judge.is_scale_invariant else []
        same = next((row for row in distinct if _are_same(self._given[row.name], maps)), None)
        evaluation = judge(maps) if same is None else same.evaluation
        if not evaluation.is_complete:
            return
        self._given[entry.name] = maps
        cut = share is not None and isinstance(maps, Explanation) and not maps.is_complete
        self.rows.append(
            RankedMap(entry.method.name, entry.layer, seconds, steps, evaluation, cut, same.name if same else "")
        )

    def _maps(self, entry: _Entry, share: float | None) -> Tensor | Explanation:
        if entry.is_shared and entry.layer is not None:
            if not self._shared and not self._shared_seconds:
                self._share()
            if entry.layer not in self._shared:
                self._shared |= activations_and_gradients_of(self.model, self.images, [entry.layer], self.fixed)
            at = self._shared[entry.layer]
            raw = place(FORMULAS[entry.method.name](at.activations, at.gradients), at.layout.placement)
            return raw.relu() if rectifies(entry.method, {}) else raw
        options: dict[str, Any] = {} if entry.layer is None else {"layer": entry.layer}
        if share is not None:
            options |= {"budget": max(share, 1e-3), "progress": self._report}
        with pause_recording():
            return explain(entry.method.name, self.model, self.images, self.fixed, compare=False, **options)

    def _share(self) -> None:
        """Compute activations and gradients of all layers, in one forward and one backward pass."""
        start = time.monotonic()
        entries = [each.layer for each in self.queue if each.is_shared and each.layer is not None]
        names = list(dict.fromkeys(entries))
        with pause_recording(), suppress(ExplainerError):  # if one of the layers fails, `_maps` tries each by itself
            self._shared = activations_and_gradients_of(self.model, self.images, names, self.fixed)
        self._shared_seconds = (time.monotonic() - start) / len(entries)

    def _second_round(self, steps: int) -> None:
        """Compute full curves for the best maps of the first round, in order, as far as the time allows."""
        first = [row for row in rank_maps(self.rows, self.metrics) if not row.same_as]
        finalists = first[: max(MIN_FINALISTS, math.ceil(len(first) / FINALISTS))]
        if not finalists or self._elapsed() >= self.seconds:
            return
        with self._judge(steps, self.seconds) as judge:
            for row in finalists:
                evaluation = judge(self._given[row.name])
                if not evaluation.is_complete:
                    break
                for k, each in enumerate(self.rows):
                    if row.name in (each.name, each.same_as):
                        self.rows[k] = replace(each, evaluation=evaluation, steps=steps)
                self._report()

    def _judge(self, steps: int, until: float) -> AbstractContextManager[Evaluator]:
        settings = replace(
            self.settings,
            target=self.settings.target if self.fixed is None else self.fixed,
            steps=steps,
            budget=max(until - self._elapsed(), 1e-3),
            progress=self._report,
        )
        return evaluator(self.model, self.images, settings)

    def _elapsed(self) -> float:
        return time.monotonic() - self.start

    def _report(self, inside: Partial | None = None) -> None:
        """Report the maps so far, after each of them and inside the work on one."""
        if self.progress is None:
            return
        done, total = len(self.rows) + len(self.refused), len(self.queue)
        fraction = min(1.0, max(self._elapsed() / self.seconds, FIRST_ROUND * done / max(1, total)))
        with outside_call(), pause_recording():
            answer = self.progress(PartialRecommendation(fraction, None, done, total, self._recommendation()))
        if answer is False:
            raise _Stopped

    def _recommendation(self) -> Recommendation:
        target = None if self.fixed is None else describe_target(self.fixed, len(self.images))
        found = rank_maps(self.rows, self.metrics), self.metrics, dict(self.refused), len(self.queue), target
        return Recommendation(*found, self._elapsed(), self.stopped)
