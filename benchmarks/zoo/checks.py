"""The checks of layers and of Grad-CAM; those of attributions are in `attributions`.

A check returns a short text if the library is correct, and raises `Wrong` if the oracle disagrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

import explainers
from benchmarks.zoo.oracles import (
    Layout,
    candidates,
    frozen_at,
    gradient,
    outputs,
    residual_gradient,
    slope_along,
    split,
)
from benchmarks.zoo.subject import CLASSES, PROOF, Subject

Check = Callable[[Subject], str]
CHECKS: dict[str, Check] = {}
FOR_EVERY_SIZE = ("default_layer", "layout", "grad_cam", "positions")
"""The checks that run with the second image size too."""

INNER = {"qkv", "kv", "q", "k", "v", "proj", "query", "key", "value", "to_q", "to_k", "to_v", "to_qkv", "out_proj"}
"""Names of projections inside an attention."""
LEAST = 4
"""The least number of cells per side of a map."""
LATE = {"classifier": 0.5, "segmentation": 0.1, "detector": 0.05}
"""Least share of a forward pass's operations before the default layer; decoders and detection heads have the most."""
NEARLY = 0.03
"""A difference in the share of operations that is too small to prefer the later layer."""


class Wrong(Exception):
    """The library's result differs from the oracle's."""


class Noted(Exception):
    """A finding of the library says that the result does not have the property of the method."""


def check(function: Check) -> Check:
    """Register a check under its function name."""
    CHECKS[function.__name__] = function
    return function


def expect(condition: bool, message: str) -> None:
    """Raise `Wrong` with this message if the condition is false."""
    if not condition:
        raise Wrong(message)


def same(actual: Tensor, right: Tensor, tolerance: float, what: str) -> None:
    """Check that the tensors are equal up to `tolerance` times the largest value of `right`."""
    expect(actual.shape == right.shape, f"{what}: shape {tuple(actual.shape)}, not {tuple(right.shape)}")
    expect(bool(actual.isfinite().all()), f"{what}: not finite")
    size = float(right.abs().max())
    gap = float((actual.double() - right.double()).abs().max()) / max(size, 1e-30)
    expect(gap <= tolerance, f"{what}: off by {gap:.2g} of the largest value")


@check
def default_layer(subject: Subject) -> str:
    """Check that the default layer is late, on every path, with a fine grid and a gradient, and no later one is."""
    name, (calls, total), images = subject.default, subject.steps, subject.images
    at = next((i for i, step in enumerate(calls) if step.name == name), None)
    expect(at is not None, f"{name} is not a call of the forward pass")
    share, layout = calls[at].flops / max(total, 1), subject.layout(name)
    expect(layout is not None, f"{name} {calls[at].shape} at {share:.0%}: has no grid from evidence")
    where = f"{name} {layout.grid[0]} × {layout.grid[1]} at {share:.0%}"
    expect(split(name)[0].rpartition(".")[2] not in INNER, f"{where}: an inner projection")
    expect(share >= LATE[subject.network.kind], f"{where}: too early")
    if subject.network.kind == "segmentation":
        channels = layout.maps(torch.empty(calls[at].shape)).shape[1]
        expect(channels != CLASSES, f"{where}: the class maps themselves")
    if subject.differentiable:
        _, slope = gradient(subject.plain(), subject.score(subject.plain()), name, images[:1])
        expect(float(layout.maps(slope).abs().max()) > 0, f"{where}: no gradient at its patches")
    # For a segmentation network the encoder's last stage is acceptable: its decoder has other inputs.
    later = _later_cut(subject, at, min(LEAST, *layout.grid)) if subject.network.kind == "classifier" else None
    if later is not None:
        gap = (calls[later].flops - calls[at].flops) / max(total, 1)
        words = f"{calls[later].name} at {calls[later].flops / total:.0%} is on every path and later"
        expect(gap < (0.1 if _ends_coarser(subject, at) else NEARLY), f"{where}: {words}")
    on_every_path = _cuts(subject, name) or _only_tokens_bypass(subject, name, layout)
    if subject.network.kind == "classifier" and (not on_every_path or min(layout.grid) < LEAST):
        earlier = _earlier_cut(subject, at)
        if earlier is not None and calls[earlier].flops >= 0.5 * total:
            near = calls[at].flops - calls[earlier].flops < 0.15 * total
            words = f"{calls[earlier].name} {calls[earlier].shape} at {calls[earlier].flops / total:.0%}"
            expect(on_every_path or not near, f"{where}: the score has another path; {words} is on every path")
            expect(min(layout.grid) >= LEAST, f"{where}: coarser than 4 × 4; {words} is not")
    return where


def _ends_coarser(subject: Subject, at: int) -> bool:
    """Return whether grids below 4 × 4 follow; layers before them may still have fine grids."""
    size = subject.network.seen or subject.size
    after = [step.shape for step in subject.steps[0][at + 1 :] if len(step.shape) == 4]
    return any(1 < min(each.grid) < LEAST for shape in after for each in candidates(shape, size))


def _cuts(subject: Subject, name: str, kept: Tensor | None = None) -> bool:
    """Return whether another image gets the same score if the call's output stays that of the first."""
    model, score, images = subject.model, subject.score(), subject.images
    if kept is None:
        kept = outputs(model, score, images[:1], [name])[name]
    with torch.no_grad():
        frozen = frozen_at(model, score, name, kept, images[1:])
    first, other = subject.scores
    size = max(abs(float(first - other)), 1e-6 * abs(float(first)), 1e-12)
    return abs(float(frozen - first)) < 1e-3 * size


def _only_tokens_bypass(subject: Subject, name: str, layout: Layout) -> bool:
    """Return whether only class tokens bypass the layer: no patch of its input has a gradient."""
    if len(layout.axes) == 2 or not layout.extra:
        return False
    one, score = subject.images[:1], subject.score()
    slope = residual_gradient(subject.model, score, name, outputs(subject.model, score, one, [name])[name], one)
    return slope is not None and float(layout.maps(slope).abs().max()) == 0


def _later_cut(subject: Subject, at: int, least: int) -> int | None:
    """Return the last call after `at` with a grid, on every path, whose patches have a gradient."""
    if not subject.differentiable:
        return None
    calls, _ = subject.steps
    model = subject.plain()
    indices = [i for i in range(at + 1, len(calls)) if split(calls[i].name)[0].rpartition(".")[2] not in INNER]
    for i in _cuts_among(subject, indices, least):
        name, layout = calls[i].name, subject.layout(calls[i].name)
        if layout is None or min(layout.grid) < least:
            continue
        _, slope = gradient(model, subject.score(model), name, subject.images[:1])
        if float(layout.maps(slope).abs().max()) > 0:
            return i
    return None


def _earlier_cut(subject: Subject, at: int) -> int | None:
    found = _cuts_among(subject, range(at), LEAST)
    return next((i for i in found if subject.layout(subject.steps[0][i].name) is not None), None)


def _cuts_among(subject: Subject, indices: Sequence[int], least: int) -> Iterator[int]:
    """Yield calls on every path, the last first, among the last sixteen whose shape may have a fine grid."""
    calls, _ = subject.steps
    size = subject.network.seen or subject.size
    fine = [i for i in indices if any(min(each.grid) >= least for each in candidates(calls[i].shape, size))][-16:]
    kept = outputs(subject.model, subject.score(), subject.images[:1], [calls[i].name for i in fine])
    yield from (i for i in reversed(fine) if _cuts(subject, calls[i].name, kept[calls[i].name]))


@check
def layout(subject: Subject) -> str:
    """Check the layouts of the default layer, of all stages and of a sample of other layers."""
    layers = {layer.name: layer for layer in subject.layers}
    stages = [name for name, layer in layers.items() if layer.stage]
    spatial = [name for name, layer in layers.items() if layer.grid and min(layer.grid) > 1]
    names = list(dict.fromkeys([subject.default, *stages, *spatial[:: max(1, len(spatial) // 24)]]))
    shapes = {step.name: step.shape for step in subject.steps[0]}
    subject.lit([name for name in names if len(shapes.get(name, ())) != 4 or subject.network.fixed])
    wrong = [words for name in names if (words := _wrong_layout(subject, layers[name], shapes.get(name)))]
    expect(not wrong, f"{len(wrong)} of {len(names)} layers: " + "; ".join(wrong[:4]))
    return f"{len(names)} layers, {len(stages)} of them stages"


def _wrong_layout(subject: Subject, layer: explainers.Layer, shape: tuple[int, ...] | None) -> str:
    """Return what is wrong with the layout from `list_layers`, or an empty string."""
    claim = claimed(layer)
    if shape is None or claim is None:
        return f"{layer.name} {layer.shape}: {'returns no tensor' if shape is None else 'has no grid in list_layers'}"
    possible = claim in candidates(shape, subject.network.seen or subject.size)
    # A pool to a fixed grid has the same shape for every image, so only the positions of patches are evidence.
    pooled = not possible and claim.grid[0] == claim.grid[1]
    value = subject.evidence(layer.name, claim, pooled) if possible or pooled else 0.0
    rival, best = subject.best(layer.name, shape)
    clearly = best is not None and best != claim and rival > max(2 * PROOF, value + 0.15)
    if (possible or value > PROOF / 2) and not clearly:
        return ""
    # One or two planes of a fixed size are not enough to find positions.
    if (pooled and min(shape[1:]) <= 2) or not subject.matters(layer.name):
        return ""
    found = f"axes {best.axes}, grid {best.grid}, {best.extra} extra tokens" if best else "no grid"
    return f"{layer.name} ({layer.kind}) {shape} is {layer.layout} {claim.grid} in list_layers; from evidence {found}"


def claimed(layer: explainers.Layer) -> Layout | None:
    """Return the layout from `list_layers` as a `Layout`."""
    if layer.grid is None:
        return None
    axes = {"NCHW": (2, 3), "NHWC": (1, 2), "tokens": (1,)}.get(layer.layout)
    return Layout(axes, (layer.grid[0], layer.grid[1]), layer.extra_tokens) if axes else None


@check
def grad_cam(subject: Subject) -> str:
    """Compare with Grad-CAM by a hook for a batch of two, whose gradient central differences confirm."""
    name = subject.default
    model, images, tolerance = subject.in_float64()
    options = {"relu": False, **subject.options_for(model)}
    maps = [explainers.grad_cam(model, images[:count], subject.target, **options) for count in (1, 2)]
    found = subject.layout(name)
    expect(found is not None, f"{name}: no layout by evidence")
    plain = subject.plain(model)
    score = subject.score(plain)
    a, g = gradient(plain, score, name, images)
    expect(len(a) == 2, f"{name}: returns {tuple(a.shape)} for two images")
    _confirm(subject, plain, name, a, g)
    a, g = found.maps(a), found.maps(g)
    right = (g.mean((2, 3), keepdim=True) * a).sum(1)
    expect(float(right.abs().max()) > 0, "the map is zero")
    for count, actual in zip((1, 2), maps, strict=True):
        same(actual, right[:count], tolerance, f"a batch of {count}")
    return f"{right.shape[1]} × {right.shape[2]}"


def _confirm(subject: Subject, model: nn.Module, name: str, a: Tensor, g: Tensor) -> None:
    """Compare the gradient with central differences in float64, if two of them agree: some softmaxes are float32."""
    # The boxes of a detector move with the features, and their selection has no gradient.
    if a.dtype != torch.float64 or subject.network.kind == "detector":
        return
    direction = torch.randn(a[:1].shape, generator=torch.Generator().manual_seed(2)).to(a) * a.std()
    slope, one = float((g[:1] * direction).sum()), subject.images[:1].double()
    found = [slope_along(model, subject.score(model), name, one, direction, step) for step in (1e-5, 3e-5)]
    if abs(found[0] - found[1]) < 1e-3 * abs(found[0]):
        gap = abs(slope - found[0])
        expect(gap <= 1e-2 * abs(found[0]), f"oracle: gradient {slope:.4g}, by differences {found[0]:.4g}")
