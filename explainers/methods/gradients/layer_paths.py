"""Path integrals at a hidden layer: the contribution of each of its units to the score.

x     images, b the baseline             (n, c, h, w)
A(x)  the layer's output                 (n, k, h, w)
G     ∂y / ∂A                            (n, k, h, w), y in logits unless the target says otherwise

Both return one value per unit, "features" [N, K, h, w], which `explain` displays as the sum over the channels k.
Class and register tokens have no position in the image, so they and their contribution to the score are excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.at_layer import SuffixBatch, retry_with_repeated_batch
from explainers.call.layers import stages
from explainers.call.loop import now
from explainers.call.run import Run, layer_with_patch_gradients, open_run
from explainers.call.scores import at_least_float32, maps_of
from explainers.dtypes import to_float64
from explainers.findings import is_recording, note_images
from explainers.keywords import LayerCost
from explainers.layers.layout import LayerLayout
from explainers.maps.resize import reduce_channels
from explainers.methods.gradients.path_integrals import FIXED, Start, finer_steps, measures_gap, note_gap
from explainers.methods.gradients.path_integrals import Steps as GapSteps
from explainers.methods.gradients.quadrature import Bisection, bisect, gauss_legendre, weighted_mean
from explainers.options import LayerName, NoiseSeed, Range
from explainers.perturbation.baselines import baseline_of
from explainers.registry import method
from explainers.targets import TargetLike

_TOLERATED = 0.05
"""Estimated error of a mean gradient, relative to it, above which a finding reports it."""

Steps = Annotated[int, Range(2, 1000, help="integration steps")]


@method(
    family="gradient",
    returns="features",
    title="Layer integrated gradients",
    paper="Sundararajan et al. 2017, arXiv:1703.01365",
)
def layer_integrated_gradients(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: GapSteps = None,
    baseline: Start = "zeros",
    seed: NoiseSeed = 0,
    **cost: Unpack[LayerCost],
) -> Tensor:
    """Layer integrated gradients: integrated gradients with the layer's output as the input.

        (A(x) - A(b)) ∘ ∫₀¹ ∂y/∂A (A(b) + t (A(x) - A(b))) dt

    Paths that bypass the layer keep the values of the original image. Points are chosen as in `integrated_gradients`.
    If stopped early, the integral is estimated from the points evaluated so far.

    `forward` and `through` are as in `explain`.

    Returns  (n, k, h, w), in logits; sums to y(x) - y with A(b) in place of A(x) as the number of steps grows. A
             finding reports gaps above 1%; docs/figures.md lists the error in bf16
    Errors   BadTarget, BadOption, LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Sundararajan et al. 2017, eq. 1, at a layer, arXiv:1703.01365

    Example
        >>> layer_integrated_gradients(model, images, 281, layer="layer4").shape
        torch.Size([1, 512, 7, 7])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        x, layout = run.images, layer_with_patch_gradients(run, cost.get("layer"))
        full = run.scoring.score_inputs()
        start, started_at = run.forward.outputs(layout, baseline_of(x, baseline, seed)), now(x.device)
        difference = run.forward.outputs(layout, x) - start
        run.loop.measure_prefix(now(x.device) - started_at)
        run.plan_suffix(layout)
        rows = run.loop.suffix_rows(passes=2)
        # Class tokens are included until the end: without them, no integral would be complete.
        maps, whole = maps_of(layout, difference), at_least_float32(difference)

        start_scores = scores_with(run, layout, start) if measures_gap(target) else None

        def at_points(index: int, points: Tensor) -> tuple[Tensor, Tensor]:
            at = points.to(difference).view(-1, *[1] * (difference.ndim - 1))
            return _gradient_at(run, layout, index, start[index] + at * difference[index])

        def probe(index: int, points: Tensor) -> tuple[Tensor, Tensor]:
            scores, gradient = at_points(index, points)
            return scores, at_least_float32(gradient) * whole[index]

        if steps is None and run.forward.through is None:
            bisections = [Bisection() for _ in x]
            shares = bisect(bisections, run.loop, rows, probe, lambda shares: maps_of(layout, shares).sum(1))
        else:
            points, weights = gauss_legendre(steps or FIXED)

            def gradients(index: int, chosen: Tensor) -> Tensor:
                return at_points(index, points[chosen])[1]

            def shown(mean: Tensor) -> Tensor:
                return (maps_of(layout, mean) * maps).sum(1)

            shares = whole * weighted_mean(len(x), run.loop, rows, weights, gradients, shown)

        attribution = maps_of(layout, shares)
        if start_scores is not None:
            tokens = token_sums(layout, shares, attribution)
            note_gap(attribution, full - start_scores, finer_steps(steps), tokens=tokens)
        run.use_layer(layout)
        return attribution


@method(
    family="gradient",
    returns="features",
    unit="logit per unit of the layer",
    title="Internal influence",
    reduce="norm",
    paper="Leino et al. 2018, arXiv:1802.03788",
)
def internal_influence(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Steps = 50,
    baseline: Start = "zeros",
    seed: NoiseSeed = 0,
    **cost: Unpack[LayerCost],
) -> Tensor:
    """Internal influence: the mean gradient at the layer on the straight path of the image from a baseline.

        ∫₀¹ ∂y/∂A (b + t (x - b)) dt

    The result is a gradient, not a contribution: it is not multiplied by the values of the units, and is displayed as
    its norm over the channels. The default layer is the second to last stage, because the gradient before pooling and a
    linear head is the same at every position. Uses Gauss-Legendre quadrature. If stopped early, the integral is
    estimated from the points evaluated so far.

    `forward` and `through` are as in `explain`.

    Returns  (n, k, h, w), in logits per unit of the layer's output. A finding reports estimated errors above 5%, one to
             three times the true error on the built-in network; docs/figures.md lists the error in bf16
    Errors   BadTarget, BadOption, LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Leino et al. 2018, distributional influence of the path's points, arXiv:1802.03788

    Example
        >>> internal_influence(model, images, 281, layer="layer3", steps=8).shape
        torch.Size([1, 256, 14, 14])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        layer = cost.get("layer")
        x, layout = run.images, layer_with_patch_gradients(run, _inner_stage(run) if layer is None else layer)
        run.scoring.score_inputs()
        start = baseline_of(x, baseline, seed)
        points, weights = gauss_legendre(steps)
        halves = _Halves(weights) if is_recording() else None

        def gradients(index: int, chosen: Tensor) -> Tensor:
            at = points[chosen].to(x).view(-1, *[1] * (x.ndim - 1))
            batch = start[index] + at * (x[index] - start[index])
            g = run.backward.at([layout], batch, [index] * len(chosen))[layout.name][1]
            if halves is not None:
                halves.add(index, chosen, at_least_float32(g), len(x))
            return g

        def shown(mean: Tensor) -> Tensor:
            return reduce_channels(maps_of(layout, mean), "norm")

        mean = weighted_mean(len(x), run.loop, run.loop.rows(), weights, gradients, shown)
        if halves is not None and (error := halves.error(mean)) is not None:
            _note_errors(maps_of(layout, mean), maps_of(layout, error), steps)
        run.use_layer(layout)
        return maps_of(layout, mean)


def _inner_stage(run: Run) -> LayerName | None:
    """Return the second to last stage, or None if there is only one."""
    names = stages(run.view.given, run.images)
    return names[-2] if len(names) > 1 else None


class _Halves:
    """Half the difference between the integrals over every second point and over the points between them.

    In real networks the gradient changes abruptly, and the error of an integral is about that of two such halves. Where
    the gradient is smooth, both are exact.
    """

    def __init__(self, weights: Tensor) -> None:
        signs = 1 - 2 * (torch.arange(len(weights)) % 2)
        self._weights, self._total, self.count = weights * signs, torch.zeros(()), 0

    def add(self, index: int, chosen: Tensor, gradients: Tensor, images: int) -> None:
        """Add the gradients [R, ...] of an image at these points."""
        if not self.count:
            self._total = gradients.new_zeros(images, *gradients.shape[1:])
        self._total[index] += torch.tensordot(self._weights[chosen].to(gradients), gradients, 1)
        self.count += len(chosen) * (index == 0)

    def error(self, mean: Tensor) -> Tensor | None:
        """Return the estimated error of the mean gradient [N, ...], or None if points are missing."""
        if self.count < len(self._weights):
            return None
        return self._total - float(self._weights.sum()) * mean


def _note_errors(mean: Tensor, error: Tensor, steps: int) -> None:
    """Report images [N] whose estimated error is large compared with their mean gradient."""
    size, distance = (to_float64(each.flatten(1).norm(dim=1)) for each in (mean, error))
    note_images(
        "not_converged",
        distance > _TOLERATED * size,
        "The integral has not converged: the size of the map is {total:.4g}, and that of its error is about "
        "{error:.2g} or less. Increase steps to reduce the error.",
        finer_steps(steps),
        total=size,
        error=distance,
    )


def scores_with(run: Run, layout: LayerLayout, outputs: Tensor) -> Tensor:
    """Return the scores [N] of the images with these outputs of a layer [N, ...] instead of its own."""

    def score(index: int) -> Tensor:
        return SuffixBatch(run, index, layout).values(lambda copies: outputs[index : index + 1].to(copies), 1)

    return torch.cat([score(index) for index in range(len(outputs))])


def token_sums(layout: LayerLayout, whole: Tensor, maps: Tensor) -> Tensor | None:
    """Return the part [N] of a layer's values that is not in its maps, or None if there are no class tokens."""
    if layout.layout != "tokens":
        return None
    return to_float64(whole.flatten(1)).sum(1) - to_float64(maps.flatten(1)).sum(1)


def _gradient_at(run: Run, layout: LayerLayout, index: int, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores and the gradient at the layer if `outputs` [R, ...] replace the layer's output for the image."""
    one = run.images[index : index + 1]

    def of_part(part: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        def gradient_of(batch: Tensor) -> tuple[Tensor, Tensor]:
            instead = {layout.name: lambda output: part}
            scores, both = run.backward.scores_at([layout], batch, rows, replacements=instead)
            return scores, both[layout.name][1]

        # One input row suffices, unless a path that bypasses the layer must be combined with all outputs.
        return retry_with_repeated_batch(
            lambda: gradient_of(one), lambda: gradient_of(one.expand(len(part), *one.shape[1:]))
        )

    return run.loop.run_in_halves(of_part, outputs, [index] * len(outputs))
