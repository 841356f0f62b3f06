"""Layer conductance: the change of the score that flows through each unit of a layer along a path of the image.

A(t)  the layer's output at the path's point t in [0, 1]     [...]
g(t)  ∂y / ∂A there

The integral of g dA is a sum of trapezoids (g + g') / 2 ∘ (A' - A) over the intervals between the evaluated points.
In real networks A changes abruptly near the start of the path, so intervals are halved where the trapezoids miss the
change of the score. If paths around the layer carry a part of that change, the defect of an interval is unknown, and is
estimated from what changes if a point is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from typing_extensions import Unpack

from explainers.call.loop import Loop
from explainers.call.run import Run, layer_with_patch_gradients, open_run
from explainers.call.scores import at_least_float32, maps_of
from explainers.dtypes import to_float64
from explainers.findings import note_images
from explainers.keywords import LayerCost
from explainers.layers.layout import LayerLayout
from explainers.methods.gradients.layer_paths import scores_with, token_sums
from explainers.methods.gradients.path_integrals import FIXED, GAP, Start, Steps, finer_steps, measures_gap, note_gap
from explainers.methods.gradients.quadrature import Bisection, Probe, bisect, spread
from explainers.options import NoiseSeed
from explainers.perturbation.baselines import baseline_of
from explainers.registry import method
from explainers.targets import TargetLike

_BYTES = 2**29
"""Memory for the outputs and gradients at the points of one image; larger layers get fewer points, or 50 steps."""

_ALL_PATHS = 1e-3
"""Fraction of the score's change above which paths around the layer count."""


@method(
    family="gradient", returns="features", title="Layer conductance", paper="Dhamdhere et al. 2018, arXiv:1805.12233"
)
def layer_conductance(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Steps = None,
    baseline: Start = "zeros",
    seed: NoiseSeed = 0,
    **cost: Unpack[LayerCost],
) -> Tensor:
    """Layer conductance: the integrated gradients of the image that flow through each unit of the layer.

        ∫₀¹ ∂y/∂A (dA/dt) dt  along  b + t (x - b)

    Uses the trapezoidal rule in A over `steps` intervals. Without `steps`, there are 50 intervals, and those in which
    the sum misses the change of the score are halved until the gap is below 1%. If stopped early with `steps`, the
    result is scaled from the completed part of the path to the whole path.

    `forward` and `through` are as in `explain`.

    Returns  (n, k, h, w), in logits; sums to y(x) - y(b) as the number of steps grows if every path passes through the
             layer. A finding reports gaps above 1%, or the estimated error if there are other paths; docs/figures.md
                 lists the error in bf16
    Errors   BadTarget, BadOption, LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Dhamdhere et al. 2018, conductance of a unit, arXiv:1805.12233; the sum over intervals: Shrikumar et al.
             2018, arXiv:1807.09946

    Example
        >>> layer_conductance(model, images, 281, layer="layer4", steps=8).shape
        torch.Size([1, 512, 7, 7])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        x, layout = run.images, layer_with_patch_gradients(run, cost.get("layer"))
        full = run.scoring.score_inputs()
        start = baseline_of(x, baseline, seed)
        adaptive, measured = steps is None and run.forward.through is None, measures_gap(target)
        rises, limit = torch.full_like(full, torch.nan), 0
        if adaptive or measured:
            outputs = at_least_float32(run.forward.outputs(layout, start))
            rises, limit = _rises(run, layout, start, outputs, full), _BYTES // (2 * outputs[0].nbytes)

        def probe(index: int, points: Tensor) -> tuple[Tensor, Tensor]:
            batch = start[index] + points.to(x).view(-1, *[1] * (x.ndim - 1)) * (x[index] - start[index])
            scores, both = run.backward.scores_at([layout], batch, [index] * len(points))
            return scores, torch.stack([at_least_float32(tensor) for tensor in both[layout.name]], 1)

        def shown(conductance: Tensor) -> Tensor:
            return maps_of(layout, conductance).sum(1)

        if adaptive and limit > FIXED:
            sums = [_Conductance(complete, limit) for complete in rises.isfinite().tolist()]
            whole = bisect(sums, run.loop, run.loop.rows(), probe, shown)
            errors = [each.error for each in sums]
        else:
            whole, errors = _even_steps(len(x), steps or FIXED, run.loop, probe, shown)
        attribution = maps_of(layout, whole)
        if measured:
            tokens = token_sums(layout, whole, attribution)
            _note_gaps(attribution, rises, errors, finer_steps(steps), tokens)
        run.use_layer(layout)
        return attribution


def _rises(run: Run, layout: LayerLayout, start: Tensor, outputs: Tensor, full: Tensor) -> Tensor:
    """Return y(x) - y(b) of each image [N], or NaN if paths around the layer carry a part of it.

    They do if y(x) with the layer's outputs for b instead of those for x differs from y(b).
    """
    empty = run.scoring.values(start, range(len(start)))
    around = scores_with(run, layout, outputs) - empty
    dtype = torch.bfloat16 if run.scoring.precision == "bf16" else run.images.dtype
    rounding = 32 * torch.finfo(dtype).eps * torch.maximum(full.abs(), empty.abs())
    complete = around.abs() <= _ALL_PATHS * (full - empty).abs() + rounding
    return torch.where(complete, full - empty, torch.nan)


def _trapezoids(a: Tensor, g: Tensor) -> Tensor:
    """Return the parts of the integral between successive points, [R - 1, ...]."""
    return (g[1:] + g[:-1]) / 2 * a.diff(dim=0)


def _jumps(a: Tensor, g: Tensor) -> Tensor:
    """Return how far the sum is from those with the gradient of either end of each interval: [R - 1], float64."""
    return to_float64((g.diff(dim=0) * a.diff(dim=0)).flatten(1)).sum(1) / 2


def _removals(a: Tensor, g: Tensor) -> Tensor:
    """Return how much the sum changes if a point between its neighbors is left out, for R points: [R - 2], float64."""
    change = g[:-2] * (a[1:-1] - a[2:]) + g[1:-1] * (a[2:] - a[:-2]) + g[2:] * (a[:-2] - a[1:-1])
    return to_float64(change.flatten(1)).sum(1) / 2


def _error(removals: Tensor, jumps: Tensor) -> float:
    """Estimate the error of a sum whose true value is unknown.

    Half of the points can be left out in two ways, so the mean change is half the sum of the removals. It does not see
    a change of the layer within a single interval, but the largest jump does.
    """
    return max(abs(float(removals.sum())) / 2, float(jumps.abs().max()))


class _Conductance(Bisection):
    """The conductance of one image; `complete` says that the rise of the score is the sum of all units."""

    def __init__(self, complete: bool, limit: int) -> None:
        super().__init__()
        self.error, self.limit = 0.0, min(self.limit, limit)
        self._complete = complete
        self.pending = [0.0, 1.0, *((spread(FIXED - 1) + 1) / FIXED).tolist()]
        self._known: dict[tuple[int, ...], tuple[float, ...]] = {}

    def _check_convergence(self) -> None:
        order = self._order
        at, scores = torch.tensor((self._points, self._scores), dtype=torch.float64)[:, order]
        sums, jumps = self._each(pairwise(order), lambda a, g: (to_float64(_trapezoids(a, g)).sum(), _jumps(a, g)))
        if self._complete:
            self._refine(at, scores, scores.diff() - sums)
        else:
            (removals,) = self._each(zip(order, order[1:], order[2:], strict=False), lambda a, g: (_removals(a, g),))
            self.error = _error(removals, jumps)
            scores, defects = pad(sums.cumsum(0), (1, 0)), (pad(removals, (1, 0)) + pad(removals, (0, 1))) / 4
            converged = self.error <= GAP * abs(float(sums.sum()))
            self._refine(at, scores, defects, magnitudes=jumps.abs(), allowed=converged)

    def _each(
        self, rows: Iterable[tuple[int, ...]], values: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    ) -> Iterable[Tensor]:
        """Return the values of successive points, each computed once, as float64 tensors."""
        found = []
        for near in rows:
            if near not in self._known:
                a, g = torch.stack([self._parts[i] for i in near]).unbind(1)
                self._known[near] = tuple(map(float, values(a, g)))
            found.append(self._known[near])
        return torch.tensor(found, dtype=torch.float64).unbind(1)

    def integral(self) -> Tensor:
        """Return the sum of the trapezoids between the evaluated points."""
        if self._integral is not None:
            return self._integral
        total = torch.zeros_like(self._parts[0][0])
        for i, j in pairwise(self._order):
            a, g = torch.stack([self._parts[i], self._parts[j]]).unbind(1)
            total += _trapezoids(a, g)[0]
        return total


def _even_steps(
    count: int, steps: int, loop: Loop, probe: Probe, shown: Callable[[Tensor], Tensor]
) -> tuple[Tensor, list[float]]:
    """Return the conductance of all images over even steps, and the estimated error of each sum."""
    total: list[Tensor] = []
    last: list[Tensor | None] = [None] * count
    removals, jumps = torch.zeros(2, count, steps + 1, dtype=torch.float64)
    done = 0

    def work(chunk: range) -> None:
        nonlocal done
        for index in range(count):
            _, parts = probe(index, torch.tensor(chunk, dtype=torch.float64) / steps)
            if not total:
                total.append(parts.new_zeros(count, *parts.shape[2:]))
            before = last[index]
            both = parts if before is None else torch.cat([before, parts])
            last[index] = both[-2:].clone()
            a, g = both.unbind(1)
            total[0][index] += _trapezoids(a, g)[-len(parts) :].sum(0)
            removals[index, chunk.start] = _removals(a, g).sum()
            jumps[index, chunk.start] = _jumps(a, g).abs().max() if len(a) > 1 else 0.0
        done = chunk.stop - 1

    def conductance() -> Tensor:
        return total[0] * (steps / max(1, done))

    loop.run(steps + 1, loop.rows(), work, lambda: shown(conductance()))
    return conductance(), [_error(removals[index], jumps[index]) for index in range(count)]


def _note_gaps(
    attribution: Tensor, rises: Tensor, errors: list[float], remedy: dict[str, Any], tokens: Tensor | None
) -> None:
    """Note gaps between the sum of all units and the rise of the score [N], or large errors where it is NaN."""
    note_gap(attribution, rises, remedy, promised=bool(rises.isfinite().all()), tokens=tokens)
    total, error = to_float64(attribution.flatten(1).sum(1)), torch.tensor(errors, dtype=torch.float64)
    whole = total.cpu() if tokens is None else (total + tokens).cpu()
    note_images(
        "not_converged",
        rises.isnan().cpu() & (error > GAP * whole.abs()),
        "The integral has not converged: the error of its sum {total:.4g} is about {error:.2g}. Increase steps to "
        "reduce the error.",
        remedy,
        total=total,
        error=error,
    )
