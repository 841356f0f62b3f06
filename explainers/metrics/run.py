"""`evaluate`: compute metrics of maps and, for comparison, of control maps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from explainers.call.current import check_images, one_call, outside_call
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.loop import Partial, Progress, check_progress
from explainers.call.run import open_run
from explainers.call.score_kind import score_kind
from explainers.errors import BadOption, errors_of, shorten
from explainers.findings import Finding, pause_recording, recording
from explainers.maps.arrays import Arrays, check_dimensions
from explainers.maps.boxes import region_masks
from explainers.metrics import formulas  # noqa: F401 (fills METRICS)
from explainers.metrics.candidates import Candidate, Maps, OwnMaps, check_maps, control_maps, name_method
from explainers.metrics.evaluation import OVER, STOPPED, Evaluation, Parts, means_of_controls
from explainers.metrics.metric import METRICS, EvaluationSettings, Measurement, Metric, Trial, find_metric, find_metrics
from explainers.metrics.recommendation import Recommendation, by_name, overloaded, rank_evaluations, score_of, target_of
from explainers.options import Baseline, Choice, Range, Seed, SteadyPrecision, check_flags, check_keywords, options_of
from explainers.perturbation.baselines import NAMES, baseline_of
from explainers.probabilities import SCORES, declared_score
from explainers.registry import METHODS
from explainers.targets import Logit, TargetLike, describe_target, scores_of

MAP_SHARE = 0.5
"""Share of the progress for computing the maps of a long method, before they are evaluated."""
SETTINGS = {each.name for each in fields(EvaluationSettings)}


@dataclass(frozen=True)
class PartialEvaluation(Partial):
    """Progress of `evaluate`: a `Partial` without a map, with the `evaluation` by the metrics completed so far.

    With several maps, `done` and `total` count the variants of the current one.
    """

    evaluation: Evaluation


@overloaded
@check_keywords
@torch.inference_mode(False)
def evaluate(
    model: nn.Module,
    images: Tensor,
    maps: Maps | Arrays | Mapping[str, Maps | Arrays],
    *,
    target: TargetLike = None,
    metrics: str | Sequence[str] = ("deletion", "insertion"),
    baseline: Annotated[Baseline, Choice(*NAMES, help="replacement of hidden pixels")] = "blur",
    controls: bool = True,
    steps: Annotated[int, Range(2, 1000, help="number of steps of a curve")] = 20,
    score: Annotated[
        str, Choice("probability", *SCORES, help="score of a class in curves; probability: detects the kind")
    ] = "probability",
    magnitude: Annotated[bool, "Rank pixels by magnitude, regardless of the sign"] = False,
    region: Tensor | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: SteadyPrecision = "auto",
    progress: Progress | None = None,
    budget: float | None = None,
    forward: Forward | None = None,
) -> Evaluation | Recommendation:
    """Evaluate maps of the images with METRICS, and compare them with the maps of three controls.

    `maps` [N, h, w] are resized bilinearly, attributions [N, C, H, W] are summed over their channels (of videos and
    volumes, [N, t, h, w] and [N, C, T, H, W], and a pixel is one of a frame); both can be numpy arrays, or lists
    with one array for each image. A bare map covers the image evenly; give the `Explanation` or `place(map,
    placement)` if the layer's cells do not. An `Explanation`, a method's name or a function of the images can be
    run again, which some metrics require. The default `target` is that of the `Explanation`, else each image's top
    class. `score` is the score of a class in curves: a probability, by the softmax, the sigmoid (of independent
    labels, or of a single score) or as the network returns it ("softmax", "sigmoid", "identity", "log"), or
    "logit", the network's own score. "probability" uses the probability of the `Explanation`, else detects it.
    Other targets are scored as they are.
    `region`, required by some metrics, is boxes [N, 4] (left, top, right, bottom in pixels) or masks [N, H, W].
    `options` are options of individual metrics: {"road": {"levels": 9}}.

    The controls are random maps in pairs of a map and its negative, the image's edges and a centered blob. One image is
    compared with them by a t-test against the random maps, several images by a sign-flip test, both adjusted for the
    number of comparisons (Holm). With 2 to 7 images, no difference can be significant by the default metrics. See
    `Evaluation.comparisons`. Many maps of one image are compared with the same random maps, so their verdicts are
    correlated and cannot be counted as independent ones: give several images, or vary `seed`.

    Several maps of the same images are a dictionary of them by name: {"Grad-CAM": cam, "mine": heat}. They share the
    controls, are ranked by their mean rank over the metrics, and Holm's correction is over the comparisons of all maps.

    Returns  an `Evaluation`, or a `Recommendation` with one `RankedMap` for each name; if `progress` returns False or
             `budget` seconds have passed, the remaining values are NaN
    Errors   BadOption, BadImages, BadTarget

    Example
        >>> evaluation = evaluate(model, images, grad_cam(model, images), steps=8)
        >>> evaluation.values["deletion"].shape, sorted(evaluation.controls["deletion"])
        (torch.Size([1]), ['center', 'edge', 'random'])
    """
    settings = EvaluationSettings(**{name: value for name, value in locals().items() if name in SETTINGS})
    given: dict[str, Any] = {}
    for name, each in by_name(maps, find_metrics(metrics)).items():
        with errors_of(f"maps[{name!r}]" if name else ""):
            given[name] = check_dimensions(name_method(each), images)
    found: dict[str, Evaluation] = {}

    def report(step: Partial) -> Any:
        assert progress is not None
        return progress(replace(step, fraction=(len(found) + step.fraction) / len(given)))

    settings = replace(settings, target=target_of(given, target), score=score_of(given, score))
    settings = replace(settings, progress=report if callable(progress) else progress)
    with evaluator(model, images, settings, first=given) as judge:
        for name, each in given.items():
            with errors_of(f"maps[{name!r}]" if name else ""):
                found[name] = judge(each)
    return rank_evaluations(found) if isinstance(maps, Mapping) else found[""]


@contextmanager
def evaluator(
    model: nn.Module, images: Tensor, settings: EvaluationSettings, *, first: Mapping[str, Maps] = {}
) -> Iterator[Evaluator]:
    """Yield a function that evaluates maps as `evaluate` does, for several maps of the same images inside the block.

    The scores of the images and of their baselines, and the values of the controls, are computed only once. `first` are
    maps that are validated before any computation.
    """
    cost = {name: getattr(settings, name) for name in ("batch_size", "precision", "budget")}
    chosen = find_metrics(settings.metrics)
    for name, option in options_of(evaluate).items():
        option.check(getattr(settings, name))
    metric_options = _resolve_options({} if settings.options is None else settings.options, chosen)
    check_flags(controls=settings.controls)
    check_progress(settings.progress)
    grad = torch.is_grad_enabled()
    model = wrap_forward(model, settings.forward, images)
    declares = None if settings.score in ("probability", "logit") else settings.score
    with one_call(model), declared_score(declares):
        check_images(model, images)
        for name, maps in first.items():
            with errors_of(f"maps[{name!r}]" if name else ""):
                check_maps(maps, images)
                _check_reruns(chosen, maps)
        _check_metrics(chosen, images, settings.region)
        region = None if settings.region is None else region_masks(settings.region, images)
        with ExitStack() as stack:
            with recording() as record:
                opened = open_run(model, images, settings.target, many=True, cost=cost)
                run = stack.enter_context(opened)
                run.forward.refuse_through()
                cover = baseline_of(run.images, settings.baseline, settings.seed)
                run.scoring.score_inputs()
            if isinstance(run.scoring.target, Logit):
                given = None if settings.score == "probability" else settings.score
                kind = score_kind(run.view, run.images, scores_of(run.scoring.clean_output), given)
                settings = replace(settings, score=kind.score)
            trial = Trial(run, run.loop, cover, [], settings, region, {})
            findings = [finding for _, finding in record.findings]
            yield Evaluator(trial, OwnMaps(model, run, settings.magnitude, grad), chosen, metric_options, findings)


@dataclass(eq=False)
class Evaluator:
    """The metrics of one call, for any number of maps of the same images."""

    trial: Trial
    own_maps: OwnMaps
    metrics: list[Metric]
    options: dict[str, dict[str, Any]]
    findings: list[Finding]
    _controls: dict[str, Parts] | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)
    _done_share: float = field(default=0.0, init=False)

    def __call__(self, maps: Maps) -> Evaluation:
        """Evaluate one map for each image.

        Errors   BadOption
        """
        start = time.perf_counter()
        settings = self.trial.settings
        is_long = isinstance(maps, str) and METHODS[maps].long
        is_watched = is_long and settings.progress is not None
        own = self.own_maps.candidate(maps, partial(self._report_method, start) if is_watched else None)
        self._done_share = MAP_SHARE if is_long else 0.0
        need_controls = settings.controls and self._controls is None
        controls = control_maps(self.trial.images, settings.seed) if need_controls else []
        trial = replace(self.trial, candidates=[own, *controls], cache={})
        without_controls = replace(trial, candidates=[own], cache={})
        total = sum(self._cost(each, trial) for each in self.metrics)
        done, parts = 0, dict[str, Parts]()
        for each in self.metrics:
            self.trial.loop.progress = self._report(own, parts, done, self._cost(each, trial), total, start)
            parts[each.name] = self._measure(each, trial if each.controls else without_controls)
            done += self._cost(each, trial)
        self.trial.loop.progress = None
        if controls and not self._stopped and self.trial.loop.left > 0:
            self._controls = parts
        return self._evaluation(own, parts, start)

    @cached_property
    def _general_options(self) -> dict[str, Any]:
        """The options that all metrics share, by name."""
        return {name: getattr(self.trial.settings, name) for name in options_of(evaluate)}

    @property
    def is_scale_invariant(self) -> bool:
        """Whether maps that differ only by a positive factor have the same values, regardless of their method."""
        return not any(each.reruns for each in self.metrics) and all(
            each.factor_free(self.options[each.name]) for each in self.metrics
        )

    def _measure(self, metric: Metric, trial: Trial) -> Parts:
        """Compute the values of one metric, or NaN if the call has stopped."""
        names, loop = [each.name for each in trial.candidates], trial.loop
        if self._stopped or loop.left <= 0:
            found = Measurement(trial.maps.new_full((len(trial.maps),), torch.nan))
            return Parts(found, names, len(trial.images), is_complete=False)
        loop.ended_early = False
        found = metric(replace(trial, metric=metric), **self.options[metric.name])
        return Parts(found, names, len(trial.images), is_complete=found.is_complete and not loop.ended_early)

    def _cost(self, metric: Metric, trial: Trial) -> int:
        rows = len(trial.maps) if metric.controls else len(trial.images)
        return max(1, metric.forwards({**self._general_options, **self.options[metric.name]})) * rows

    def _report_method(self, start: float, inside: Partial) -> Any:
        """Report the progress of a long method that computes the maps, before any metric."""
        found = self._evaluation(self.own_maps.unfinished(inside), {}, start)
        return self._call_progress(
            PartialEvaluation(MAP_SHARE * inside.fraction, None, inside.done, inside.total, found)
        )

    def _report(
        self, own: Candidate, parts: dict[str, Parts], done: int, cost: int, total: int, start: float
    ) -> Progress | None:
        """Return a progress function for one metric, which reports progress as a share of all metrics."""
        if self.trial.settings.progress is None:
            return None
        reached = 0

        def report(inside: Partial) -> Any:
            nonlocal reached
            reached = max(reached, round(inside.fraction * cost))  # unknown within a run of a long method
            now = done + reached
            fraction = self._done_share + (1 - self._done_share) * now / total
            evaluation = self._evaluation(own, parts, start)
            return self._call_progress(PartialEvaluation(fraction, None, now, total, evaluation))

        return report

    def _call_progress(self, step: PartialEvaluation) -> Any:
        progress = self.trial.settings.progress
        assert progress is not None
        with outside_call(), pause_recording():
            answer = progress(step)
        self._stopped = self._stopped or answer is False
        return answer

    def _evaluation(self, own: Candidate, parts: Mapping[str, Parts], start: float) -> Evaluation:
        controls = self._controls or parts
        tested = {name: controls[name] for name in parts if "random" in controls[name].values}
        curved = {name: part for name, part in tested.items() if part.curves}
        stop_reason = STOPPED if self._stopped else OVER
        target = self.trial.run.scoring.target
        return Evaluation(
            values={name: part.values[""].mean(0) for name, part in parts.items()},
            controls={name: means_of_controls(part.values) for name, part in tested.items()},
            spread={name: part.values["random"].T.std(1) for name, part in tested.items()},
            random_values={name: part.values["random"].T for name, part in tested.items()},
            random_curves={name: part.curves["random"].movedim(0, 1) for name, part in curved.items()},
            curves={name: part.curves[""].mean(0) for name, part in parts.items() if part.curves},
            control_curves={name: means_of_controls(part.curves) for name, part in curved.items()},
            reasons={name: part.find_reasons(stop_reason) for name, part in parts.items()},
            maps=own.maps,
            method=own.explanation.method if own.explanation else None,
            layer=own.explanation.layer if own.explanation else None,
            target=describe_target(target, len(own.maps)) if target is not None else None,
            options={**self._general_options, "precision": self.trial.run.scoring.precision, **self.options},
            seconds=time.perf_counter() - start,
            is_complete=len(parts) == len(self.metrics) and all(part.is_complete for part in parts.values()),
            findings=self.findings,
        )


def _resolve_options(options: Any, chosen: Sequence[Metric]) -> dict[str, dict[str, Any]]:
    """Return all options of each metric.

    Errors   BadOption
    """
    if not isinstance(options, Mapping) or not all(isinstance(each, Mapping) for each in options.values()):
        raise BadOption(f"options={shorten(options)} is not valid. Give {{metric: {{option: value}}}}.")
    for name in options:
        if find_metric(name) not in chosen:
            raise BadOption(
                f"options has {shorten(name)}, which is not among metrics={[each.name for each in chosen]!r}."
            )
    return {each.name: each.resolve_options(options.get(each.name, {})) for each in chosen}


def _check_reruns(chosen: Sequence[Metric], maps: Any) -> None:
    """Check that the maps can be computed again if a metric needs it.

    Errors   BadOption
    """
    name = next((each.name for each in chosen if each.reruns), "")
    if name and isinstance(maps, Tensor):
        raise BadOption(
            f"{name} runs the method again, which is not possible for a tensor or array. Give the Explanation, the "
            "method's name, or a function of the images: lambda images: grad_cam(model, images, 281)."
        )


def _check_metrics(chosen: Sequence[Metric], images: Tensor, region: Any) -> None:
    """Check that the metrics have what they need of the images and the region.

    Errors   BadOption
    """
    for metric in chosen:
        if images.ndim == 5 and not metric.videos:
            names = ", ".join(each.name for each in METRICS.values() if each.videos and not each.region)
            raise BadOption(f"{metric.name} is not defined for videos and volumes. Choose other metrics: {names}.")
        if metric.region and region is None:
            raise BadOption(
                f"{metric.name} compares the map with a region. Give region=boxes [N, 4] (left, top, right, bottom in "
                "pixels) or region=masks [N, H, W]."
            )
