"""Attributions from gradients along a path from a baseline to the picture.

x     images                          (n, c, h, w)
γ(t)  the path, t from 0 to 1, with γ(1) = x
map   ∫ (d score / d γ) (dγ / dt) dt, which sums to score(γ(1)) - score(γ(0))

The methods differ in the path alone. Where a map does not sum to the difference of scores, a finding says by how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from explainers.errors import BadOption
from explainers.findings import is_recording, note_finding
from explainers.methods.gradients.quadrature import gauss_legendre, integrate_by_gap, spread
from explainers.options import Baseline, Choice, Precision, Range, Seed
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import Run, at_least_float32, open_run
from explainers.perturbation.baselines import NAMES, baseline_of, extremes
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import method
from explainers.targets import TargetLike, Through

Path = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(picture, indices of points [R]) -> points of the path [R, C, H, W] and dγ/dt there, which may broadcast."""

GAP = 0.01
"""Share of the difference of scores above which a finding states that a map does not sum to it."""

FIXED = 50
"""Points where none are asked for and the gap cannot choose them: a map with `through` is of a part of the score."""

Steps = Annotated[
    int | None, Range(2, 1000, help="points on the path; empty: as many as close the gap to 1%, 256 at most")
]
Start = Annotated[Baseline, Choice(*NAMES, help="where the path begins; empty: zeros")]


@method(
    family="gradient",
    returns="pixels",
    title="Integrated gradients",
    paper="Sundararajan et al. 2017, arXiv:1703.01365",
    caution="Measured on EfficientNet-Lite0, its maps were about level with a blob in the middle; take gradient SHAP "
    "or DeepLIFT SHAP, which average over many baselines.",
)
def integrated_gradients(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Steps = None,
    baseline: Start = None,
    seed: Annotated[int, Range(0, 2**31 - 1, help="for the baseline 'noise'")] = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Integrated gradients: the mean gradient on the straight path from a baseline, times the way.

    With `steps`, the integral is taken by Gauss-Legendre quadrature at so many points. Without, points are added where
    the score rose by more than the gradients say, until the map sums to the difference of scores to 1%. Stopped early,
    the points done, which are spread over the path, stand for all.

    On EfficientNet-Lite0 it was level with the centre control in deletion and insertion: ahead of it on some sets of
    photographs, behind it on others. Gradient SHAP and DeepLIFT SHAP, which average over baselines, were ahead on all.

    Returns  (n, c, h, w), in logits; sums to score(x) - score(baseline) as the number of steps grows. A finding states
             the gap where it is above 1%; drift in bf16: docs/figures.md
    Errors   BadTarget, BadOption
    Source   Sundararajan et al. 2017, eq. 1, arXiv:1703.01365
    """
    with open_run(model, images, target, many=True, precision=precision) as run:
        x, full = run.images, run.score_inputs()
        start = baseline_of(x, baseline, seed)
        found = _along(run, Loop(batch_size, progress, budget), steps, lambda points: straight(x, start, points))
        if measures_gap(target):
            note_gap(found, full - run.values(start, range(len(x))), more(steps))
        return found


@method(
    family="gradient",
    returns="pixels",
    title="Blur integrated gradients",
    paper="Xu et al. 2020, arXiv:2004.03383",
    caution="Measured on EfficientNet-Lite0, its maps were no better than a blob in the middle, by size about level "
    "with it; take gradient SHAP or DeepLIFT SHAP, which average over many baselines.",
)
def blur_integrated_gradients(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Steps = None,
    blur: Annotated[
        float | None,
        Range(0.1, 4096, help="deviation in pixels where the path begins; empty: a quarter of the shorter side"),
    ] = None,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Blur integrated gradients: gradients along the path on which the picture comes out of a blur.

    The path is Gaussian scale space on the grid of pixels with mirrored borders, its derivative exact: the heat
    equation solved in the cosine basis. No baseline has to be chosen. The integral is over the blur's deviation, its
    points as in `integrated_gradients`; stopped early, the points done stand for all.

    Returns  (n, c, h, w), in logits; sums to score(x) - score(blurred x) as the number of steps grows. A finding states
             the gap where it is above 1%; drift in bf16: docs/figures.md
    Errors   BadTarget, BadOption
    Source   Xu et al. 2020, section 3, arXiv:2004.03383; Lindeberg 1990, doi:10.1109/34.49051, for the discrete kernel
    """
    with open_run(model, images, target, many=True, precision=precision) as run:
        x, full = run.images, run.score_inputs()
        widest = min(x.shape[-2:]) / 4 if blur is None else blur
        found = _along(run, Loop(batch_size, progress, budget), steps, _out_of_blur(x, widest))
        if measures_gap(target):
            blurred = _out_of_blur(x, widest)(torch.zeros(1, dtype=torch.float64))
            start = torch.cat([blurred(picture, torch.tensor([0]))[0] for picture in range(len(x))])
            note_gap(found, full - run.values(start, range(len(x))), more(steps))
        return found


@method(
    family="gradient",
    returns="pixels",
    title="Gradient SHAP",
    paper="Lundberg & Lee 2017, arXiv:1705.07874",
)
def gradient_shap(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(1, 4096, help="random points between baselines and picture")] = 50,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what the picture is compared with")] = "noise",
    baselines: Tensor | None = None,
    sigma: Annotated[float, Range(0, 1, 0.01, help="noise on the picture, as a share of its range")] = 0.0,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Gradient SHAP: gradients at random points between random baselines and the picture, times the way; their mean.

    Each sample has its own baseline: one of `baselines` [B, C, H, W] where they are given, else what `baseline` says,
    of which "noise" is drawn anew. The places on the way are even, moved by one random number: each is uniform, as
    the paper has them, and together they leave no gaps, so that fewer samples do. All comes from the one `seed`.

    Returns  (n, c, h, w), in logits; sums to score(x) - mean score of the baselines as the number of samples grows. A
             finding states the gap where it is above 1%; drift in bf16: docs/figures.md
    Errors   BadTarget; BadOption for baselines of another shape
    Source   Lundberg & Lee 2017, arXiv:1705.07874; Erion et al. 2021, expected gradients, arXiv:1906.10670
    """
    with open_run(model, images, target, many=True, precision=precision) as run:
        x, full = run.images, run.score_inputs()
        draws = PerImageGenerators(len(x), seed)
        pick = _baselines(x, draws, baseline, baselines)
        alike = baselines is None and not (isinstance(baseline, str) and baseline == "noise")
        shifts = [float(draws.uniform(picture, 1)) for picture in range(len(x))]
        spans = extremes(x)[1]
        ends, drawn, measured = torch.zeros_like(full), 0, measures_gap(target)

        def path(picture: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal drawn
            begins, noise = [], []
            for _ in chosen:
                begins.append(pick(picture))
                noise.append(draws.normal(picture, 1, *x.shape[1:])[0].to(x) if sigma else torch.zeros_like(x[0]))
            start = torch.stack(begins)
            way = x[picture] + sigma * spans[picture] * torch.stack(noise) - start
            if measured:
                # One baseline for all samples has one score.
                told = start[:1] if alike else start
                ends[picture] += run.values(told, [picture] * len(told)).mean() * len(chosen)
                drawn += len(chosen) * (picture == 0)
            places = (shifts[picture] + chosen.double() / samples) % 1
            return start + places.to(x).view(-1, 1, 1, 1) * way, at_least_float32(way)

        weights = torch.full((samples,), 1 / samples, dtype=torch.float64)
        found = integrate(run, Loop(batch_size, progress, budget), weights, path, _summed)
        if measured:
            note_gap(found, full - ends / drawn, {"samples": min(4096, 4 * samples)})
        return found


def _baselines(
    x: Tensor, draws: PerImageGenerators, baseline: Baseline, baselines: Tensor | None
) -> Callable[[int], Tensor]:
    """What gives a picture's next baseline [C, H, W].

    Errors   BadOption
    """
    if baselines is not None:
        if baselines.ndim != 4 or baselines.shape[1:] != x.shape[1:]:
            raise BadOption(
                f"baselines has shape {tuple(baselines.shape)}. Give pictures [B, {', '.join(map(str, x.shape[1:]))}], "
                "of which each sample takes one."
            )
        given = baselines.detach().to(x)
        waiting: list[list[int]] = [[] for _ in x]

        def one_of_them(picture: int) -> Tensor:
            # By turns, in a new order each time: every baseline counts alike.
            if not waiting[picture]:
                waiting[picture] = draws.permutations(picture, 1, len(given))[0].tolist()
            return given[waiting[picture].pop()]

        return one_of_them
    if isinstance(baseline, str) and baseline == "noise":
        low, span = extremes(x)
        return lambda picture: low[picture] + span[picture] * draws.uniform(picture, 1, *x.shape[1:])[0].to(x)
    fixed = baseline_of(x, baseline)
    return lambda picture: fixed[picture]


def integrate(run: Run, loop: Loop, weights: Tensor, path: Path, shown: Callable[[Tensor], Tensor]) -> Tensor:
    """Integrate gradient times dγ/dt along a path by a quadrature with these weights [points].

    Points far apart are visited first. Stopped early, those that were visited stand for all.

    Returns  (n, c, h, w), float32 or float64
    """
    x = run.images
    total, reached = at_least_float32(torch.zeros_like(x)), 0.0
    order = spread(len(weights))

    def work(chunk: range) -> None:
        nonlocal reached
        chosen = order[chunk.start : chunk.stop]
        shares = weights[chosen].to(total).view(-1, 1, 1, 1)
        for picture in range(len(x)):
            points, speed = path(picture, chosen)
            total[picture] += (shares * run.gradient(points, [picture] * len(chosen)) * speed).sum(0)
        reached += float(weights[chosen].sum())

    loop.run(len(weights), loop.rows(x, cost=2), work, lambda: shown(total / reached))
    return total / reached


def _along(run: Run, loop: Loop, steps: int | None, through: Callable[[Tensor], Path]) -> Tensor:
    """Integrate along the path that `through` lays through given points in [0, 1]: `steps` of them, or those needed.

    Returns  (n, c, h, w), float32 or float64
    """
    if steps is None and run.is_restricted:
        steps = FIXED
    if steps is not None:
        points, weights = gauss_legendre(steps)
        return integrate(run, loop, weights, through(points), _summed)

    def probe(picture: int, points: Tensor) -> tuple[Tensor, Tensor]:
        at, speed = through(points)(picture, torch.arange(len(points)))
        scores, gradients = run.scores_and_gradient(at, [picture] * len(at))
        return scores, gradients * speed

    return integrate_by_gap(len(run.images), loop, loop.rows(run.images, cost=2), probe, _summed)


def more(steps: int | None) -> dict[str, int]:
    """What makes the gap of so many steps smaller."""
    return {"steps": 1000 if steps is None else min(1000, 4 * steps)}


def straight(x: Tensor, start: Tensor, points: Tensor) -> Path:
    """The straight path from `start` to the pictures, at `points` in [0, 1]."""
    way = x - start

    def path(picture: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
        at = points[chosen].to(x).view(-1, 1, 1, 1)
        return start[picture] + at * way[picture], at_least_float32(way[picture])

    return path


def _out_of_blur(x: Tensor, widest: float) -> Callable[[Tensor], Path]:
    """Scale space from a deviation of `widest` pixels at 0 to the pictures at 1, linear in the deviation."""
    down, right = _cosines(x.shape[-2]).to(at_least_float32(x)), _cosines(x.shape[-1]).to(at_least_float32(x))
    # Eigenvalues of half the (negative) Laplacian on the grid: after a variance v a wave has exp(-v * rate) left.
    rates = _rates(x.shape[-2])[:, None] + _rates(x.shape[-1])
    waves = down @ at_least_float32(x) @ right.T

    def path(points: Tensor, picture: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
        deviation = ((1 - points[chosen]) * widest).view(-1, 1, 1)
        left = torch.exp(-(deviation**2) * rates)
        speed = 2 * deviation * widest * rates * left
        back = [
            down.T @ (each[:, None].to(waves) * waves[picture]) @ right  # one blur for each row
            for each in (left, speed)
        ]
        return back[0].to(x), back[1]

    return lambda points: partial(path, points)


def _cosines(size: int) -> Tensor:
    """The orthonormal cosine basis of a mirrored signal, one wave a row, float64."""
    at = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi / size * (at + 0.5) * at[:, None]) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves


def _rates(size: int) -> Tensor:
    return 1 - torch.cos(math.pi / size * torch.arange(size, dtype=torch.float64))


def measures_gap(target: TargetLike) -> bool:
    """Whether to look for a gap: where somebody reads findings, and the map is that of the whole score."""
    return is_recording() and not isinstance(target, Through)


def note_gap(found: Tensor, expected: Tensor, remedy: dict[str, Any]) -> None:
    """Tell the reader where a map does not sum to the difference of scores [N] that it shares out, to 1%."""
    (option,) = remedy
    for picture, (total, whole) in enumerate(zip(found.flatten(1).sum(1).tolist(), expected.tolist(), strict=True)):
        gap = abs(total - whole)
        if gap > GAP * abs(whole):
            share = f" ({gap / abs(whole):.1%})" if whole else ""
            slow = ", though not steadily where the network has kinks" if option == "steps" else ""
            note_finding(
                "incomplete",
                f"The map sums to {total:.4g}, the difference of scores that it shares out is {whole:.4g}: a gap of "
                f"{gap:.2g}{share}. More {option} make it smaller{slow}.",
                remedy,
                picture,
            )


def _summed(attribution: Tensor) -> Tensor:
    return attribution.sum(1)
