"""Attributions that integrate gradients along a path from a baseline to the image.

x     images                          (n, c, h, w)
γ(t)  the path, t from 0 to 1, with γ(1) = x
map   ∫ (∂y/∂γ) (dγ/dt) dt, which sums to y(γ(1)) - y(γ(0)) (completeness)

The methods differ only in the path. If a map is not complete, a finding reports the gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import Run, open_run
from explainers.call.scores import at_least_float32
from explainers.derived_targets import Through
from explainers.errors import BadOption, kind_of
from explainers.findings import is_recording, note_finding, note_promised_sum
from explainers.keywords import Cost
from explainers.methods.gradients.quadrature import Bisection, bisect, gauss_legendre, weighted_mean
from explainers.options import Baseline, Choice, NoiseSeed, Range, Seed
from explainers.perturbation.baselines import NAMES, baseline_of, extremes, noise_baselines, refuse_values
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import method, on_lite0
from explainers.targets import TargetLike

Path = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(image index, values of t [R]) -> points of the path [R, C, H, W] and dγ/dt there, which may broadcast."""

_path_integral = partial(method, family="gradient", returns="pixels")
_MANY_BASELINES = "gradient SHAP instead, which averages over many baselines"

GAP = 0.01
"""Relative gap between a map's sum and the difference of scores above which a finding reports it."""

FIXED = 50
"""Default number of points if it cannot be chosen by the gap: a map with `through` explains only part of the score."""

Steps = Annotated[
    int | None, Range(2, 1000, help="integration steps; empty: until the completeness gap is below 1%, at most 256")
]
Start = Annotated[Baseline, Choice(*NAMES, help="start of the path")]


@_path_integral(
    title="Integrated gradients",
    paper="Sundararajan et al. 2017, arXiv:1703.01365",
    caution=on_lite0("about as good as a centered blob", _MANY_BASELINES),
)
def integrated_gradients(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Steps = None,
    baseline: Start = "zeros",
    seed: NoiseSeed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """Integrated gradients: the mean gradient on the straight path from a baseline, times (input − baseline).

        (x - b) ∘ ∫₀¹ ∂y/∂x (b + t (x - b)) dt

    With `steps`, Gauss-Legendre quadrature with that many points is used. Without, points are added adaptively where
    the trapezoidal rule misses the change of the score, until the map sums to the difference of scores within 1%. If
    stopped early, the integral is estimated from the points evaluated so far, which are spread over the path.

    On EfficientNet-Lite0 it was similar to the center control in deletion and insertion: better on some image sets,
    worse on others. Gradient SHAP and DeepLIFT SHAP, which average over baselines, were better on all of them.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to y(x) - y(baseline) as the number of steps grows. A finding reports
             gaps above 1%; docs/figures.md lists the error in bf16
    Errors   BadTarget, BadOption
    Source   Sundararajan et al. 2017, eq. 1, arXiv:1703.01365

    Example
        >>> integrated_gradients(model, images, 281, steps=8).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        x = run.images
        start = baseline_of(x, baseline, seed)

        def straight(index: int, points: Tensor) -> tuple[Tensor, Tensor]:
            difference = x[index] - start[index]
            at = points.to(x).view(-1, *[1] * (x.ndim - 1))
            return start[index] + at * difference, at_least_float32(difference)

        return _integrate_path(run, target, steps, straight)


@_path_integral(
    title="Blur integrated gradients",
    paper="Xu et al. 2020, arXiv:2004.03383",
    caution=on_lite0("no better than a centered blob, and about as good by magnitude", _MANY_BASELINES),
    videos=False,
)
def blur_integrated_gradients(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Steps = None,
    blur: Annotated[
        float | None,
        Range(0.1, 4096, help="standard deviation of the blur in pixels; empty: a quarter of the shorter side"),
    ] = None,
    **cost: Unpack[Cost],
) -> Tensor:
    """Blur integrated gradients: gradients integrated along the path from a blurred image to the image.

        ∫ (∂y/∂γ) (dγ/dσ) dσ,  γ(σ) = x convolved with a Gaussian of standard deviation σ, from `blur` down to 0

    The path is the discrete Gaussian scale space with mirrored borders. Its derivative is exact: the heat equation is
    solved in the cosine basis. No baseline is needed. Points are chosen as in `integrated_gradients`. If stopped early,
    the integral is estimated from the points evaluated so far.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to y(x) - y(blurred x) as the number of steps grows. A finding reports
             gaps above 1%; docs/figures.md lists the error in bf16
    Errors   BadTarget, BadOption
    Source   Xu et al. 2020, section 3, arXiv:2004.03383; Lindeberg 1990, doi:10.1109/34.49051, for the discrete kernel

    Example
        >>> blur_integrated_gradients(model, images, 281, steps=8).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        path = _blur_path(run.images, min(images.shape[-2:]) / 4 if blur is None else blur)
        return _integrate_path(run, target, steps, path)


@_path_integral(title="Gradient SHAP", paper="Lundberg & Lee 2017, arXiv:1705.07874")
def gradient_shap(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(1, 4096, help="random points between baselines and image")] = 50,
    baseline: Annotated[
        Baseline, Choice(*NAMES, help="start of the path; noise: a random one for each sample")
    ] = "noise",
    baselines: Tensor | None = None,
    sigma: Annotated[
        float, Range(0, 1, 0.01, help="standard deviation of noise on the image, as a fraction of its range")
    ] = 0.0,
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """Gradient SHAP: mean gradient at random points between baselines and the image, times (input − baseline).

        E_b,α [(x - b) ∘ ∂y/∂x (b + α (x - b))],  α ~ U(0, 1)

    Each sample has its own baseline: one of `baselines` [B, C, H, W] if they are given, else `baseline`, where "noise"
    is sampled again each time. α is chosen by systematic sampling with one random offset: each value is uniform, and
    together they are evenly spread, so that fewer samples suffice. All random numbers depend on `seed`.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to y(x) - mean score of the baselines as the number of samples grows. A
             finding reports gaps above 1%; docs/figures.md lists the error in bf16
    Errors   BadTarget; BadOption for baselines of another shape
    Source   Lundberg & Lee 2017, arXiv:1705.07874; Erion et al. 2021, expected gradients, arXiv:1906.10670

    Example
        >>> gradient_shap(model, images, 281, samples=8).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        x, full = run.images, run.scoring.score_inputs()
        # The seeds of baselines, offsets and noise differ, so that their numbers are independent.
        noises, draws = PerImageGenerators(len(x), seed, x.device), PerImageGenerators(len(x), seed + 2**31)
        next_baselines = _baselines(x, seed + 2**32, baseline, baselines)
        one_baseline = baselines is None and not (isinstance(baseline, str) and baseline == "noise")
        offsets = [float(draws.uniform(index, 1)) for index in range(len(x))]
        spans = extremes(x)[1]
        baseline_scores, sampled, measured = torch.zeros_like(full), 0, measures_gap(target)

        def path(index: int, points: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal sampled
            start, end, count = next_baselines(index, len(points)), x[index], len(points)
            if sigma:
                end = end + sigma * spans[index] * noises.normal_noise(index, count, *x.shape[1:]).to(x)
            difference = end - start
            if measured:
                # One baseline for all samples needs one forward pass.
                scored = start[:1] if one_baseline else start
                baseline_scores[index] += run.scoring.values(scored, [index] * len(scored)).mean() * count
                sampled += count * (index == 0)
            alpha = (offsets[index] + points) % 1
            return start + alpha.to(x).view(-1, *[1] * (x.ndim - 1)) * difference, at_least_float32(difference)

        weights = torch.full((samples,), 1 / samples, dtype=torch.float64)
        points = torch.arange(samples, dtype=torch.float64) / samples
        attribution = integrate(run, points, weights, path, _summed)
        if measured:
            note_gap(attribution, full - baseline_scores / sampled, {"samples": min(4096, 4 * samples)})
        return attribution


def _baselines(x: Tensor, seed: int, baseline: Baseline, baselines: Tensor | None) -> Callable[[int, int], Tensor]:
    """Create a function that returns an image's next baselines: (index, count) -> [count, C, H, W].

    Errors   BadOption
    """
    if baselines is not None:
        shape = tuple(baselines.shape) if isinstance(baselines, Tensor) else None
        if shape is None or len(shape) != x.ndim or shape[1:] != x.shape[1:] or not shape[0]:
            given = f"has shape {shape}" if shape is not None else f"is {kind_of(baselines)}"
            raise BadOption(
                f"baselines {given}. Give images [B, {', '.join(map(str, x.shape[1:]))}], one of which is "
                "used for each sample."
            )
        refuse_values("baselines", baselines, x)
        rows = baselines.detach().to(x)
        queue: list[list[int]] = [[] for _ in x]
        draws = PerImageGenerators(len(x), seed)

        def next_in_turn(index: int, count: int) -> Tensor:
            # Iterate over permutations, so that every baseline has the same weight.
            while len(queue[index]) < count:
                queue[index] += draws.permutations(index, 1, len(rows))[0].tolist()
            taken, queue[index] = queue[index][:count], queue[index][count:]
            return rows[taken]

        return next_in_turn
    if isinstance(baseline, str) and baseline == "noise":
        return noise_baselines(x, seed)
    fixed = baseline_of(x, baseline)
    return lambda index, count: fixed[index].expand(count, *x.shape[1:])


def integrate(run: Run, points: Tensor, weights: Tensor, path: Path, shown: Callable[[Tensor], Tensor]) -> Tensor:
    """Integrate gradient times dγ/dt along a path by quadrature with the given points and their weights.

    Returns  (n, c, h, w), float32 or float64
    """

    def values(index: int, chosen: Tensor) -> Tensor:
        at, velocity = path(index, points[chosen])
        return run.backward.gradient(at, [index] * len(chosen)) * velocity

    return weighted_mean(len(run.images), run.loop, run.loop.rows(passes=2), weights, values, shown)


def _integrate_path(run: Run, target: TargetLike, steps: int | None, path: Path) -> Tensor:
    """Integrate along a path with `steps` points, or as many as needed, and note a gap.

    Returns  (n, c, h, w), float32 or float64
    """
    full, measured = run.scoring.score_inputs(), measures_gap(target)
    if measured:
        start = torch.cat([path(index, torch.zeros(1, dtype=torch.float64))[0] for index in range(len(full))])
        start_scores = run.scoring.values(start, range(len(full)))

    def probe(index: int, points: Tensor) -> tuple[Tensor, Tensor]:
        at, velocity = path(index, points)
        scores, gradients = run.backward.scores_and_gradient(at, [index] * len(at))
        return scores, gradients * velocity

    if steps is None and run.forward.through is None:
        bisections = [Bisection() for _ in run.images]
        attribution = bisect(bisections, run.loop, run.loop.rows(passes=2), probe, _summed)
    else:
        attribution = integrate(run, *gauss_legendre(steps or FIXED), path, _summed)
    if measured:
        note_gap(attribution, full - start_scores, finer_steps(steps))
    return attribution


def finer_steps(steps: int | None) -> dict[str, int]:
    """Return the option that reduces the gap left by `steps` steps."""
    return {"steps": 1000 if steps is None else min(1000, 4 * steps)}


def _blur_path(x: Tensor, widest: float) -> Path:
    """Create the scale-space path from a blur of σ = `widest` pixels at t = 0 to the images at t = 1, linear in σ."""
    rows, columns = _cosines(x.shape[-2]).to(at_least_float32(x)), _cosines(x.shape[-1]).to(at_least_float32(x))
    # Eigenvalues of half the (negative) Laplacian on the grid: a blur of variance v scales a wave by exp(-v * rate).
    rates = _rates(x.shape[-2])[:, None] + _rates(x.shape[-1])
    waves = rows @ at_least_float32(x) @ columns.T

    def path(index: int, points: Tensor) -> tuple[Tensor, Tensor]:
        sigma = ((1 - points) * widest).view(-1, 1, 1)
        factors = torch.exp(-(sigma**2) * rates)
        speeds = 2 * sigma * widest * rates * factors
        blurred, derivative = (
            rows.T @ (spectrum[:, None].to(waves) * waves[index]) @ columns  # one blur for each point
            for spectrum in (factors, speeds)
        )
        return blurred.to(x), derivative

    return path


def _cosines(size: int) -> Tensor:
    """Return the orthonormal basis of the discrete cosine transform (DCT-II), one wave per row, float64."""
    at = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi / size * (at + 0.5) * at[:, None]) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves


def _rates(size: int) -> Tensor:
    return 1 - torch.cos(math.pi / size * torch.arange(size, dtype=torch.float64))


def measures_gap(target: TargetLike) -> bool:
    """Check whether to measure the gap: findings are recorded, and the map explains the whole score."""
    return is_recording() and not isinstance(target, Through)


def note_gap(
    attribution: Tensor,
    expected: Tensor,
    remedy: dict[str, Any],
    *,
    promised: bool = True,
    tokens: Tensor | None = None,
) -> None:
    """Note the difference of scores [N], and attributions that differ from it by more than 1%.

    `promised` is False if the map is computed from the attribution in a way that does not preserve its sum.
    `tokens` [N] is the part of the difference due to class and register tokens, which are not in the map.
    """
    whole, expected = expected, expected if tokens is None else expected - tokens.to(expected)
    if promised:
        note_promised_sum(expected)
    (option,) = remedy
    due = "" if tokens is None else " due to the patches"
    sums = attribution.flatten(1).sum(1).tolist()
    for index, (total, difference) in enumerate(zip(sums, expected.tolist(), strict=True)):
        gap = abs(total - difference)
        if gap > GAP * max(abs(difference), abs(float(whole[index]))):
            share = f" ({gap / abs(difference):.1%})" if difference else ""
            slow = " on average, but not always for networks with ReLUs" if option == "steps" else ""
            note_finding(
                "incomplete",
                f"The map sums to {total:.4g}, but the difference of scores{due} is {difference:.4g}: a gap of "
                f"{gap:.2g}{share}. Increase {option} to reduce the gap{slow}.",
                remedy,
                index,
                total=total,
                expected=difference,
                option=option,
            )


def _summed(attribution: Tensor) -> Tensor:
    return attribution.sum(1)
