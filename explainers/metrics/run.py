"""`evaluate`: what the chosen metrics say about maps of the images, and about the controls' maps beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from explainers.errors import BadOption
from explainers.explanation.result import Explanation
from explainers.findings import unrecorded
from explainers.maps.boxes import region_masks
from explainers.metrics import formulas  # noqa: F401 fills METRICS
from explainers.metrics.candidates import Candidate, Maps, OwnMaps, control_maps, refuse
from explainers.metrics.evaluation import OVER, STOPPED, Evaluation, Parts
from explainers.metrics.metric import Measured, Metric, Trial, find_metric
from explainers.network.eval_view import one_call, outside_call
from explainers.network.forwarded import Forward, forwarded
from explainers.options import Baseline, Choice, Range, Seed, SteadyPrecision, options_of
from explainers.outputs import scores_of
from explainers.passes.loop import Loop, Partial, Progress, check_progress
from explainers.passes.run import open_run
from explainers.perturbation.baselines import NAMES, baseline_of
from explainers.registry import METHODS, check_images
from explainers.targets import Logit, TargetLike, described

MAKING = 0.5
"""Share of the progress that a long method has, whose maps are made first."""


@dataclass(frozen=True)
class PartialEvaluation(Partial):
    """Progress of `evaluate`: a `Partial` without a map, with the `evaluation` of the metrics that are done."""

    evaluation: Evaluation


def evaluate(
    model: nn.Module,
    images: Tensor,
    maps: Maps,
    *,
    target: TargetLike = None,
    metrics: str | Sequence[str] = ("deletion", "insertion"),
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces hidden pixels; empty: zeros")] = "blur",
    controls: bool = True,
    steps: Annotated[int, Range(2, 1000, help="steps of a curve")] = 20,
    score: Annotated[str, Choice("probability", "logit", help="what curves show of a class")] = "probability",
    magnitude: Annotated[bool, "Rank pixels by the size of their values, whatever the sign"] = False,
    region: Tensor | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: SteadyPrecision = "auto",
    progress: Progress | None = None,
    budget: float | None = None,
    forward: Forward | None = None,
) -> Evaluation:
    """Measure maps of the images by METRICS, with the same numbers for maps of three controls beside them.

    `maps` [N, h, w] are enlarged bilinearly, attributions [N, C, H, W] summed over their channels; an `Explanation`, a
    method's name or a function of the images can be run again, which some metrics ask for. `target` None is that of the
    `Explanation`, else each image's top class. `score` holds for plain classes; other targets are scored as they are,
    and the class of a network that gives one score by its logit.
    `region`, for metrics that ask for one, is boxes [N, 4] (left, top, right, bottom in pixels) or masks [N, H, W].
    `options` are those of single metrics: {"road": {"levels": (0.2, 0.4)}}.

    Controls are random maps (four, two of them negatives of the others), the image's edges and a centred blob. The
    spread of the random maps is the unit in which a difference on one image is judged; over several images it is a
    paired t-test: `Evaluation.places`.

    Returns  an `Evaluation`; where `progress` returned False or `budget` seconds were over, values not reached are NaN
    Errors   BadOption, BadImages, BadTarget

    Example
        >>> evaluation = evaluate(model, images, grad_cam(model, images), steps=8)
        >>> evaluation.values["deletion"].shape, sorted(evaluation.controls["deletion"])
        (torch.Size([1]), ['centre', 'edge', 'random'])
    """
    with evaluator(
        model,
        images,
        target=_target_of(maps, target),
        metrics=metrics,
        baseline=baseline,
        controls=controls,
        steps=steps,
        score=score,
        magnitude=magnitude,
        region=region,
        options=options,
        seed=seed,
        batch_size=batch_size,
        precision=precision,
        progress=progress,
        budget=budget,
        forward=forward,
        first=(maps,),
    ) as judge:
        return judge(maps)


@contextmanager
def evaluator(
    model: nn.Module,
    images: Tensor,
    *,
    target: TargetLike = None,
    metrics: str | Sequence[str] = ("deletion", "insertion"),
    baseline: Baseline = "blur",
    controls: bool = True,
    batch_size: int | None = None,
    precision: str = "auto",
    progress: Progress | None = None,
    budget: float | None = None,
    forward: Forward | None = None,
    first: Sequence[Maps] = (),
    **settings: Any,
) -> Iterator[Evaluator]:
    """What `evaluate` does, for several maps of the same images: `judge(maps)`, once for each, inside the block.

    The scores of the images and of their baselines, and the controls' numbers, are computed once. `first` are maps that
    are refused before any work.
    """
    loop = Loop(batch_size, None, budget)
    chosen = _metrics(metrics)
    given = {"baseline": baseline, "precision": precision, **settings}
    known = options_of(evaluate)
    settings = {name: given.get(name, option.default) for name, option in known.items()}
    for name, option in known.items():
        option.check(settings[name])
    own = _options(given.get("options") or {}, chosen)
    if not isinstance(controls, bool):
        raise BadOption(f"controls={controls!r} is not possible. Give True or False.")
    check_progress(progress)
    grad = torch.is_grad_enabled()
    model = forwarded(model, forward, images)
    with one_call(model):
        check_images(model, images)
        for maps in first:
            refuse(maps, images)
            _refuse_reruns(maps, chosen)
        region = _region(given.get("region"), images, chosen)
        with open_run(model, images, target, many=True, precision=precision, loop=loop) as run:
            run.refuse_through()
            cover = baseline_of(run.images, baseline, settings["seed"])
            run.score_inputs()
            if isinstance(run.target, Logit) and scores_of(run.clean_output).shape[1] == 1:
                settings["score"] = "logit"  # the softmax of one score is always 1
            trial = Trial(run, loop, cover, [], settings["steps"], settings["seed"], settings["score"], region, {})
            own_maps = OwnMaps(model, run, settings["magnitude"], grad)
            yield Evaluator(trial, own_maps, chosen, own, settings, controls, progress)


@dataclass(eq=False)
class Evaluator:
    """The metrics of one call, for any number of maps of its images."""

    trial: Trial
    own_maps: OwnMaps
    metrics: list[Metric]
    options: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    controls: bool
    progress: Progress | None
    _controls: dict[str, Parts] | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)
    _made: float = field(default=0.0, init=False)

    def __call__(self, maps: Maps) -> Evaluation:
        """The evaluation of one map for each image.

        Errors   BadOption
        """
        began = time.perf_counter()
        is_long = isinstance(maps, str) and METHODS[maps].long
        watched = is_long and self.progress is not None
        own = self.own_maps.candidate(maps, partial(self._making, began) if watched else None)
        self._made = MAKING if is_long else 0.0
        new = self.controls and self._controls is None
        beside = control_maps(self.trial.images, self.trial.seed) if new else []
        trial = replace(self.trial, candidates=[own, *beside], kept={})
        alone = replace(trial, candidates=[own], kept={})
        whole = sum(self._cost(each, trial) for each in self.metrics)
        done, parts = 0, dict[str, Parts]()
        for each in self.metrics:
            self.trial.loop.progress = self._report(own, parts, done, self._cost(each, trial), whole, began)
            parts[each.name] = self._measure(each, trial if each.controls else alone)
            done += self._cost(each, trial)
        self.trial.loop.progress = None
        if beside and not self._stopped and self.trial.loop.affords():
            self._controls = {name: part.without_own() for name, part in parts.items()}
        return self._evaluation(own, parts, began)

    @property
    def reads_map_alone(self) -> bool:
        """Whether maps that differ by a positive factor alone have the same numbers, whatever made them."""
        return not any(each.reruns for each in self.metrics) and all(
            each.factor_free(self.options[each.name]) for each in self.metrics
        )

    def _measure(self, metric: Metric, trial: Trial) -> Parts:
        """The numbers of one metric; NaN where the call has ended."""
        names = [each.name for each in trial.candidates]
        if self._stopped or not self.trial.loop.affords():
            found = Measured(trial.maps.new_full((len(trial.maps),), torch.nan))
            return Parts(found, names, len(trial.images), is_begun=False)
        self.trial.loop.ended_early = False
        found = metric(trial.of(metric), **self.options[metric.name])
        is_whole = found.is_whole and not self.trial.loop.ended_early
        return Parts(replace(found, is_whole=is_whole), names, len(trial.images))

    def _cost(self, metric: Metric, trial: Trial) -> int:
        rows = len(trial.maps) if metric.controls else len(trial.images)
        return max(1, metric.forwards({**self.settings, **self.options[metric.name]})) * rows

    def _making(self, began: float, inside: Partial) -> Any:
        """The progress of a long method that makes the maps; nothing is measured yet."""
        assert inside.map is not None
        found = self._evaluation(self.own_maps.unfinished(inside.map), {}, began)
        return self._tell(PartialEvaluation(MAKING * inside.fraction, None, inside.done, inside.total, found))

    def _report(
        self, own: Candidate, parts: dict[str, Parts], done: int, cost: int, whole: int, began: float
    ) -> Progress | None:
        """The loop's progress during one metric, as the caller's: as a share of all metrics."""
        if self.progress is None:
            return None
        reached = 0

        def report(inside: Partial) -> Any:
            nonlocal reached
            reached = max(reached, round(inside.fraction * cost))  # within a run of a long method it is not known
            now = done + reached
            fraction = self._made + (1 - self._made) * now / whole
            return self._tell(PartialEvaluation(fraction, None, now, whole, self._evaluation(own, parts, began)))

        return report

    def _tell(self, step: PartialEvaluation) -> Any:
        assert self.progress is not None
        with outside_call(), unrecorded():
            answer = self.progress(step)
        self._stopped = self._stopped or answer is False
        return answer

    def _evaluation(self, own: Candidate, parts: Mapping[str, Parts], began: float) -> Evaluation:
        beside = self._controls if self._controls is not None else {n: p.without_own() for n, p in parts.items()}
        why = STOPPED if self._stopped else OVER
        target = self.trial.run.target
        return Evaluation(
            values={name: part.values("") for name, part in parts.items()},
            controls={name: beside[name].means() for name in parts if beside[name].names},
            spread={name: beside[name].spread() for name in parts if beside[name].names},
            curves={name: part.curves("") for name, part in parts.items() if part.measured.curves is not None},
            control_curves={
                name: beside[name].mean_curves()
                for name in parts
                if beside[name].names and beside[name].measured.curves is not None
            },
            reasons={name: part.why(why) for name, part in parts.items()},
            maps=own.maps,
            method=own.explanation.method if own.explanation else None,
            layer=own.explanation.layer if own.explanation else None,
            target=described(target, len(own.maps)) if target is not None else None,
            options={**self.settings, "precision": self.trial.run.precision, **self.options},
            seconds=time.perf_counter() - began,
            is_complete=len(parts) == len(self.metrics) and all(part.is_complete for part in parts.values()),
        )


def _target_of(maps: Any, target: TargetLike) -> TargetLike:
    if target is not None or not isinstance(maps, Explanation) or maps.target is None:
        return target
    if isinstance(maps.target, str):
        raise BadOption(f"The explanation's target is {maps.target}, which it keeps as text. Give target= again.")
    return maps.target


def _metrics(names: Any) -> list[Metric]:
    several = [names] if isinstance(names, str) else list(names) if isinstance(names, (list, tuple)) else None
    if not several:
        raise BadOption(f"metrics={names!r} is not possible. Give names of METRICS: metrics=('deletion', 'insertion').")
    return [*{each.name: each for each in map(find_metric, several)}.values()]


def _options(options: Any, chosen: Sequence[Metric]) -> dict[str, dict[str, Any]]:
    """All options of each metric.

    Errors   BadOption
    """
    if not isinstance(options, Mapping) or not all(isinstance(each, Mapping) for each in options.values()):
        raise BadOption(f"options={options!r} is not possible. Give {{metric: {{option: value}}}}.")
    for name in options:
        if find_metric(name) not in chosen:
            raise BadOption(f"options has {name!r}, which is not among metrics={[each.name for each in chosen]!r}.")
    return {each.name: each.resolved(options.get(each.name, {})) for each in chosen}


def _refuse_reruns(maps: Any, chosen: Sequence[Metric]) -> None:
    asking = next((each for each in chosen if each.reruns), None)
    if asking is not None and isinstance(maps, Tensor):
        raise BadOption(
            f"{asking.name} runs the method again, which a tensor does not tell. Give the Explanation, the method's "
            "name, or a function of the images: lambda images: grad_cam(model, images, 281)."
        )


def _region(region: Any, images: Tensor, chosen: Sequence[Metric]) -> Tensor | None:
    asking = next((each for each in chosen if each.region), None)
    if region is None and asking is not None:
        raise BadOption(
            f"{asking.name} compares the map with a region. Give region=boxes [N, 4] (left, top, right, bottom in "
            "pixels) or region=masks [N, H, W]."
        )
    return None if region is None else region_masks(region, images)
