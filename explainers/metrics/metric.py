"""The table of metrics, the decorator that registers a formula in it, the settings of a call, and formulas' input.

R  rows       all evaluated maps: those of the caller, then those of each control, for each of the N images
f  scores     of variants of the images, as defined by the metric
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from explainers.call.forward_wrapper import Forward
from explainers.call.loop import Loop, Progress
from explainers.call.run import Run
from explainers.call.scores import at_least_float32
from explainers.derived_targets import Probability
from explainers.errors import BadOption, nearest, shorten
from explainers.metrics.candidates import Candidate
from explainers.options import Baseline, Option, options_of
from explainers.registry import name_key
from explainers.targets import Logit, Target, TargetLike


@dataclass(frozen=True, eq=False)
class Measurement:
    """The result of a formula: `values` [R], and the `curves` [R, points] of metrics that are areas under a curve.

    A value is NaN if it is not defined or was not reached; `reasons` says why, by row. `is_complete`: the call did not
    stop early; `is_sampled`: the values are estimated from samples, from fewer than requested if the call stopped
    early.
    """

    values: Tensor
    curves: Tensor | None = None
    reasons: dict[int, str] = field(default_factory=dict)
    is_complete: bool = True
    is_sampled: bool = False

    def exclude(self, rows: Tensor, reason: str) -> Measurement:
        """Return a copy with NaN, and the given reason, in the rows where the mask `rows` [R] is true."""
        indices = rows.nonzero()[:, 0].tolist()
        values = torch.where(rows.to(self.values.device), torch.nan, self.values)
        return replace(self, values=values, reasons={**self.reasons, **dict.fromkeys(indices, reason)})


@dataclass(frozen=True)
class Metric:
    """One metric: its name and title, the unit and the better direction of its values, and its requirements.

    `higher` says whether higher is better, None if neither direction is. `score` is "probability" or "target" if the
    metric scores variants of the images, else "". `reruns`: it runs the method again; `region`: it compares with a
    region; `videos`: it accepts videos and volumes; `controls`: it is defined for controls too; `curve`: it is the area
    under a curve. Two functions of the options: `factor_free` says whether maps that differ only by a positive factor
    have the same value, and `forwards` how many forward passes (with `reruns`, runs of the method) a map needs.
    """

    name: str
    title: str
    question: str
    source: str
    unit: str
    higher: bool | None
    score: str
    reruns: bool
    region: bool
    videos: bool
    controls: bool
    curve: bool
    summary: str
    factor_free: Callable[[Mapping[str, Any]], bool] = field(repr=False)
    forwards: Callable[[Mapping[str, Any]], int] = field(repr=False)
    function: Callable[..., Measurement | Tensor] = field(repr=False)
    options: dict[str, Option] = field(repr=False)

    @property
    def reads_class(self) -> bool:
        """Whether the metric needs the score of a class."""
        return self.score != ""

    def __call__(self, trial: Trial, **options: Any) -> Measurement:
        """Compute the values of all rows, in the precision of the maps and on their device."""
        found = self.function(trial, **options)
        found = found if isinstance(found, Measurement) else Measurement(found)
        return replace(found, values=found.values.to(trial.maps))

    def resolve_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check the given options and add the defaults of the others.

        Errors   BadOption
        """
        for name, value in given.items():
            if name not in self.options:
                names = f"Available options: {', '.join(self.options)}." if self.options else "It has no options."
                raise BadOption(f"{self.name} has no option {name!r}. {nearest(name, self.options)}{names}")
            self.options[name].check(value)
        return {name: given.get(name, option.default) for name, option in self.options.items()}


METRICS: dict[str, Metric] = {}
"""Every metric by name, in a fixed order."""

Formula = Callable[..., "Measurement | Tensor"]


_DEFAULTS: dict[str, Any] = {"score": "", "reruns": False, "region": False, "videos": True, "controls": True}
_DEFAULTS |= {"curve": False, "factor_free": lambda options: True, "forwards": lambda options: 0}


def metric(**declared: Any) -> Callable[[Formula], Formula]:
    """Register a formula `(trial, **options) -> values [R]`, or `Measurement`, in METRICS.

    The keywords are fields of `Metric`: title, question, source, unit, higher, and those that differ from `_DEFAULTS`.
    Options are keywords with an `Annotated` range or choice, like those of methods.
    """

    def register(function: Formula) -> Formula:
        name, summary = function.__name__, (inspect.getdoc(function) or "").partition("\n")[0]
        own = {"name": name, "summary": summary, "function": function, "options": options_of(function)}
        METRICS[name] = Metric(**_DEFAULTS | declared | own)
        return function

    return register


@dataclass(frozen=True, eq=False)
class EvaluationSettings:
    """The keyword arguments of `evaluate`, which describes and checks them, with the same defaults."""

    target: TargetLike = None
    metrics: str | Sequence[str] = ("deletion", "insertion")
    baseline: Baseline = "blur"
    controls: bool = True
    steps: int = 20
    score: str = "probability"
    magnitude: bool = False
    region: Tensor | None = None
    options: Mapping[str, Mapping[str, Any]] | None = None
    seed: int = 0
    batch_size: int | None = None
    precision: str = "auto"
    progress: Progress | None = None
    budget: float | None = None
    forward: Forward | None = None


@dataclass(eq=False)
class Trial:
    """The input of a formula: the images, the candidate maps and the settings of one call.

    `run` has the model, the images and their target; `baseline` [N, C, H, W] replaces removed pixels; `region`
    [N, H, W] is true inside the given regions. `cache` is shared by all metrics of these candidates, `image_cache` by
    all candidates of the images.
    """

    run: Run
    loop: Loop
    baseline: Tensor
    candidates: list[Candidate]
    settings: EvaluationSettings
    region: Tensor | None
    image_cache: dict[Any, Any]
    metric: Metric | None = None
    cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def images(self) -> Tensor:
        """The images [N, C, H, W]."""
        return self.run.images

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scores."""
        return at_least_float32(self.images).dtype

    @cached_property
    def maps(self) -> Tensor:
        """The maps of all rows, [R, H, W]."""
        return torch.cat([each.maps for each in self.candidates])

    @cached_property
    def image_indices(self) -> list[int]:
        """The index of the image of each row, [R]."""
        return [*range(len(self.images))] * len(self.candidates)

    def rows(self, candidate: int) -> range:
        """Return the rows of a candidate."""
        count = len(self.images)
        return range(candidate * count, (candidate + 1) * count)

    @cached_property
    def mirrors(self) -> dict[int, int]:
        """The row with the reversed ranks, by row, if there is one."""
        pairs = [(k, each.mirror) for k, each in enumerate(self.candidates) if each.mirror is not None]
        later = {a: b for k, m in pairs for a, b in zip(self.rows(k), self.rows(m), strict=True)}
        return later | {b: a for a, b in later.items()}

    @property
    def ranks(self) -> Tensor:
        """The rank of each pixel, [R, H, W] int32, 0 for the highest; ties in random order, the same for all rows."""
        if "ranks" not in self.cache:
            found: list[Tensor] = []
            for row, heat in enumerate(self.maps):
                mirror = self.mirrors.get(row, row)
                found.append(ranks(heat, self.settings.seed) if mirror >= row else heat.numel() - 1 - found[mirror])
            self.cache["ranks"] = torch.stack(found)
        ranked: Tensor = self.cache["ranks"]
        return ranked

    @property
    def target(self) -> Target:
        """The target of the metric: the probability if the target is a `Logit` and the metric uses probabilities."""
        target = self.run.scoring.target
        assert target is not None, "score_inputs sets it"
        score = self.settings.score
        use_probability = self.metric is not None and self.metric.score == "probability" and score != "logit"
        return Probability(target.classes, score) if use_probability and isinstance(target, Logit) else target

    @property
    def image_scores(self) -> Tensor:
        """The scores of the images, [R]."""
        return self._cached_scores(image=self.images)["image"]

    @property
    def endpoint_scores(self) -> tuple[Tensor, Tensor]:
        """The scores of the images and of their baselines, [R] each."""
        found = self._cached_scores(image=self.images, baseline=self.baseline)
        return found["image"], found["baseline"]

    def _cached_scores(self, **variants: Tensor) -> dict[str, Tensor]:
        """Return scores by row of one variant of each image, computed once for all metrics with the same score."""
        cache = self.image_cache.setdefault(("scores", type(self.target).__name__), {})
        new, count = [name for name in variants if name not in cache], len(self.images)
        if new:
            scores = self.values(torch.cat([variants[name] for name in new]), [*range(count)] * len(new))
            cache.update(zip(new, scores.split(count), strict=True))
        return {name: cache[name][self.image_indices] for name in variants}

    def values(self, batch: Tensor, image_indices: Sequence[int]) -> Tensor:
        """Return the scores [B] of variants; row b is a variant of image `image_indices[b]`."""
        return self.run.scoring.values(batch, image_indices, target=self.target)

    def scores(
        self, variants: int, make: Callable[[int, Sequence[int]], Tensor], rows: Sequence[int] | None = None
    ) -> Tensor:
        """Return the scores [R, variants]: `make(row, [k, ...])` returns variants [., C, H, W] of the row's image.

        Scores are NaN if the call stopped before they were computed, and in rows that are not among `rows`.
        """
        rows = range(len(self.maps)) if rows is None else rows
        found = torch.full((len(rows) * variants,), torch.nan, dtype=self.dtype, device=self.images.device)

        def work(chunk: range) -> None:
            batches, indices = [], []
            for k in range(chunk.start // variants, -(-chunk.stop // variants)):
                first = k * variants
                own = range(max(chunk.start, first) - first, min(chunk.stop, first + variants) - first)
                batches.append(make(rows[k], own))
                indices += [self.image_indices[rows[k]]] * len(own)
            found[chunk.start : chunk.stop] = self.values(torch.cat(batches), indices)

        whole = found.new_full((len(self.maps), variants), torch.nan)
        if rows and variants:
            self.loop.run(len(found), self.loop.rows(), work, lambda: found)
            whole[[*rows]] = found.view(-1, variants)
        return whole


def ranks(heat: Tensor, seed: int = 0) -> Tensor:
    """Return the rank of each pixel of a map [H, W], int32, 0 for the highest; ties in random order given by `seed`."""
    # Breaking ties in memory order would remove a constant map from top to bottom, which scores better than random.
    shuffled = torch.randperm(heat.numel(), generator=torch.Generator().manual_seed(seed)).to(heat.device)
    order = shuffled[heat.flatten()[shuffled].argsort(descending=True, stable=True)]
    rank = torch.empty(len(order), dtype=torch.int32, device=heat.device)
    rank[order] = torch.arange(len(order), dtype=torch.int32, device=heat.device)
    return rank.view_as(heat)


def find_metric(name: str) -> Metric:
    """Return the metric with that name or title, without case, hyphens, underscores and spaces.

    Errors   BadOption with similar names

    Example
        >>> find_metric("Shift stability").name
        'shift_stability'
    """
    key = name_key(str(name))
    found = next((each for own, each in METRICS.items() if key in (name_key(own), name_key(each.title))), None)
    if found is None or not isinstance(name, str):
        hint = nearest(str(name), METRICS)
        raise BadOption(f"Unknown metric {shorten(name)}. {hint}METRICS lists all {len(METRICS)}.")
    return found


def find_metrics(names: Any) -> list[Metric]:
    """Return the metrics of a name or a list of names, each once.

    Errors   BadOption
    """
    several = [names] if isinstance(names, str) else list(names) if isinstance(names, (list, tuple)) else None
    if not several:
        raise BadOption(
            f"metrics={shorten(names)} is not valid. Give names of METRICS: metrics=('deletion', 'insertion')."
        )
    return [*{each.name: each for each in map(find_metric, several)}.values()]
