"""What a metric is: the table of metrics, the decorator that enters a formula into it, and what a formula is given.

R  rows       every map to be judged: those of the caller, then those of each control, for each of the N images
f  scores     of variants of the images, by the metric's own score
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadOption, nearest
from explainers.metrics.candidates import Candidate
from explainers.options import Option, options_of
from explainers.passes.loop import Loop
from explainers.passes.run import Run, at_least_float32
from explainers.targets import Logit, Probability, Target


@dataclass(frozen=True, eq=False)
class Measured:
    """What a formula gives: `values` [R], and for metrics that are areas the `curves` [R, points] that they are of.

    A value is NaN where it is not defined or the call ended before; `reasons` says why, by row. `is_whole`: the
    call did not end within; `is_sampled`: values are of samples, and where it did, of fewer than asked for.
    """

    values: Tensor
    curves: Tensor | None = None
    reasons: dict[int, str] = field(default_factory=dict)
    is_whole: bool = True
    is_sampled: bool = False

    def but(self, where: Tensor, why: str) -> Measured:
        """The same, NaN for the reason `why` in the rows that `where` [R] names."""
        rows = where.nonzero()[:, 0].tolist()
        values = torch.where(where, torch.nan, self.values)
        return replace(self, values=values, reasons={**self.reasons, **dict.fromkeys(rows, why)})


@dataclass(frozen=True)
class Metric:
    """One question about a map: its names, the unit and the better direction of its answer, and what it needs.

    `higher` says whether higher is better, None where neither is. `score` is "probability" or "target" where it scores
    variants of the images by that, else "". `reruns`: it runs the method again; `region`: it compares with a region;
    `controls`: a control has the number too; `curve`: it is the area under one. From the options, `factor_free` says
    whether maps that differ by a positive factor alone have one number, `forwards` how many forward passes (with
    `reruns`, runs of the method) a map takes.
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
    controls: bool
    curve: bool
    summary: str
    factor_free: Callable[[Mapping[str, Any]], bool] = field(repr=False)
    forwards: Callable[[Mapping[str, Any]], int] = field(repr=False)
    function: Callable[..., Measured | Tensor] = field(repr=False)
    options: dict[str, Option] = field(repr=False)

    @property
    def reads_class(self) -> bool:
        """Whether it needs the score of a class."""
        return self.score != ""

    def __call__(self, trial: Trial, **options: Any) -> Measured:
        """The values of all rows, in the maps' precision."""
        found = self.function(trial, **options)
        found = found if isinstance(found, Measured) else Measured(found)
        return replace(found, values=found.values.to(trial.maps.dtype))

    def resolved(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All its options, the given ones checked.

        Errors   BadOption
        """
        for name, value in given.items():
            if name not in self.options:
                possible = f"It takes {', '.join(self.options)}." if self.options else "It takes none."
                raise BadOption(f"{self.name} has no option {name!r}. {nearest(name, self.options)}{possible}")
            self.options[name].check(value)
        return {name: given.get(name, option.default) for name, option in self.options.items()}


METRICS: dict[str, Metric] = {}
"""Every metric by name, in a fixed order."""

Formula = Callable[..., "Measured | Tensor"]


def metric(
    *,
    title: str,
    question: str,
    source: str,
    unit: str,
    higher: bool | None,
    score: str = "",
    reruns: bool = False,
    region: bool = False,
    controls: bool = True,
    curve: bool = False,
    factor_free: Callable[[Mapping[str, Any]], bool] = lambda options: True,
    forwards: Callable[[Mapping[str, Any]], int] = lambda options: 0,
) -> Callable[[Formula], Formula]:
    """Enter a formula `(trial, **options) -> values [R]`, or `Measured`, into METRICS.

    The fields are those of `Metric`; options are keywords with an `Annotated` range or choice, as those of methods are.
    """

    def join(function: Formula) -> Formula:
        METRICS[function.__name__] = Metric(
            name=function.__name__,
            title=title,
            question=question,
            source=source,
            unit=unit,
            higher=higher,
            score=score,
            reruns=reruns,
            region=region,
            controls=controls,
            curve=curve,
            summary=(inspect.getdoc(function) or "").partition("\n")[0],
            factor_free=factor_free,
            forwards=forwards,
            function=function,
            options=options_of(function),
        )
        return function

    return join


@dataclass(eq=False)
class Trial:
    """One call, as a formula sees it.

    `run` has the model, the images and their target; `baseline` [N, C, H, W] stands for absence; `steps` is the number
    of steps of a curve; `region` [N, H, W] is true inside the regions given. `kept` is shared by all metrics of these
    candidates, `images_kept` by all candidates of the images.
    """

    run: Run
    loop: Loop
    baseline: Tensor
    candidates: list[Candidate]
    steps: int
    seed: int
    score: str
    region: Tensor | None
    images_kept: dict[Any, Any]
    metric: Metric | None = None
    kept: dict[Any, Any] = field(default_factory=dict)

    def of(self, metric: Metric) -> Trial:
        """The same call for a metric."""
        return replace(self, metric=metric)

    @property
    def images(self) -> Tensor:
        """The images [N, C, H, W]."""
        return self.run.images

    @property
    def dtype(self) -> torch.dtype:
        """That of the scores."""
        return at_least_float32(self.images).dtype

    @cached_property
    def maps(self) -> Tensor:
        """The maps of all rows, [R, H, W]."""
        return torch.cat([each.maps for each in self.candidates])

    @cached_property
    def pictures(self) -> list[int]:
        """The image of each row, [R]."""
        return [*range(len(self.images))] * len(self.candidates)

    def rows(self, candidate: int) -> range:
        """The rows of a candidate."""
        count = len(self.images)
        return range(candidate * count, (candidate + 1) * count)

    @cached_property
    def mirrors(self) -> dict[int, int]:
        """The row whose ranks are the reverse, by row, where there is one."""
        pairs = [(k, each.mirror) for k, each in enumerate(self.candidates) if each.mirror is not None]
        later = {a: b for k, m in pairs for a, b in zip(self.rows(k), self.rows(m), strict=True)}
        return later | {b: a for a, b in later.items()}

    @property
    def ranks(self) -> Tensor:
        """Rank of each pixel, [R, H, W] int32, 0 for the highest; ties in random order, the same for all rows."""
        if "ranks" not in self.kept:
            found: list[Tensor] = []
            for row, heat in enumerate(self.maps):
                twin = self.mirrors.get(row, row)
                found.append(ranks(heat, self.seed) if twin >= row else heat.numel() - 1 - found[twin])
            self.kept["ranks"] = torch.stack(found)
        ranked: Tensor = self.kept["ranks"]
        return ranked

    @property
    def target(self) -> Target:
        """What the metric scores: the target's probability where it is plain classes and the metric asks for it."""
        target = self.run.target
        assert target is not None, "score_inputs fixes it"
        wanted = self.metric is not None and self.metric.score == "probability" and self.score == "probability"
        return Probability(target.classes) if wanted and isinstance(target, Logit) else target

    @property
    def whole(self) -> Tensor:
        """Scores of the images, [R]."""
        return self._once(whole=self.images)["whole"]

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Scores of the images and of their baselines, [R] each."""
        found = self._once(whole=self.images, empty=self.baseline)
        return found["whole"], found["empty"]

    def _once(self, **variants: Tensor) -> dict[str, Tensor]:
        """Scores by row of one variant of each image, from one pass for all metrics of the same score."""
        kept = self.images_kept.setdefault(("scores", type(self.target).__name__), {})
        new = [name for name in variants if name not in kept]
        if new:
            count = len(self.images)
            scores = self.values(torch.cat([variants[name] for name in new]), [*range(count)] * len(new))
            kept.update(zip(new, scores.split(count), strict=True))
        return {name: kept[name][self.pictures] for name in variants}

    def values(self, batch: Tensor, pictures: Sequence[int]) -> Tensor:
        """Scores [B] of variants; row b is a variant of image `pictures[b]`."""
        return self.run.values(batch, pictures, target=self.target)

    def scores(
        self, variants: int, make: Callable[[int, Sequence[int]], Tensor], rows: Sequence[int] | None = None
    ) -> Tensor:
        """Scores [R, variants]: `make(row, [k, ...])` gives variants [., C, H, W] of the row's image.

        NaN where the call ended before, and for rows that are not among `rows`.
        """
        rows = range(len(self.maps)) if rows is None else rows
        found = torch.full((len(rows) * variants,), torch.nan, dtype=self.dtype, device=self.images.device)

        def work(chunk: range) -> None:
            batches, pictures = [], []
            for place in range(chunk.start // variants, -(-chunk.stop // variants)):
                first = place * variants
                own = range(max(chunk.start, first) - first, min(chunk.stop, first + variants) - first)
                batches.append(make(rows[place], own))
                pictures += [self.pictures[rows[place]]] * len(own)
            found[chunk.start : chunk.stop] = self.values(torch.cat(batches), pictures)

        whole = found.new_full((len(self.maps), variants), torch.nan)
        if rows and variants:
            self.loop.run(len(found), self.loop.rows(), work, lambda: found)
            whole[[*rows]] = found.view(-1, variants)
        return whole


def ranks(heat: Tensor, seed: int = 0) -> Tensor:
    """Rank of each pixel of a map [H, W], int32, 0 for the highest; ties in an order drawn from `seed`."""
    # Ties in memory order would remove a constant map from top to bottom, which is a better order than random.
    shuffled = torch.randperm(heat.numel(), generator=torch.Generator().manual_seed(seed)).to(heat.device)
    order = shuffled[heat.flatten()[shuffled].argsort(descending=True, stable=True)]
    rank = torch.empty(len(order), dtype=torch.int32, device=heat.device)
    rank[order] = torch.arange(len(order), dtype=torch.int32, device=heat.device)
    return rank.view_as(heat)


def find_metric(name: str) -> Metric:
    """The metric of that name.

    Errors   BadOption with the nearest names
    """
    if not isinstance(name, str) or name not in METRICS:
        raise BadOption(f"There is no metric {name!r}. {nearest(str(name), METRICS)}METRICS lists all {len(METRICS)}.")
    return METRICS[name]
