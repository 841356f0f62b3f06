"""The checks of layers and of Grad-CAM; those of attributions are in `attributions`.

A check returns a short text if the library is correct, and raises `Wrong` if the oracle disagrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

import explainers
from benchmarks.zoo import oracles
from benchmarks.zoo.oracles import Layout, candidates, edited, gradient, outputs, split
from benchmarks.zoo.subject import CLASSES, PROOF, Subject

Check = Callable[[Subject], str]
CHECKS: dict[str, Check] = {}
TITLES: dict[str, str] = {}
"""The titles of the columns."""
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
CLEAR = 0.8
"""Least correlation, of either sign, between patches and changes that shows a layer to be local."""


class Wrong(Exception):
    """The library's result differs from the oracle's."""


class Noted(Exception):
    """A finding of the library says that the result does not have the property of the method."""


def check(title: str) -> Callable[[Check], Check]:
    """Register a check under its function name, and the title of its column, whose oracle is its docstring."""

    def register(function: Check) -> Check:
        CHECKS[function.__name__], TITLES[function.__name__] = function, title
        return function

    return register


def expect(condition: bool, message: str) -> None:
    """Raise `Wrong` with this message if the condition is false."""
    if not condition:
        raise Wrong(message)


def same(actual: Tensor, right: Tensor, tolerance: float, what: str) -> None:
    """Check that the tensors are equal up to `tolerance` times the largest value of `right`."""
    expect(actual.shape == right.shape, f"{what}: shape {tuple(actual.shape)}, not {tuple(right.shape)}")
    expect(bool(actual.isfinite().all()), f"{what}: not finite")
    gap = float((actual.double() - right.double()).abs().max()) / max(float(right.abs().max()), 1e-30)
    expect(gap <= tolerance, f"{what}: off by {gap:.2g} of the largest value")


def expect_slope(score: Callable[[float], float], slope: float, tolerance: float, agreement: float) -> None:
    """Compare the oracle's gradient with central differences, if two of them agree: some softmaxes are float32."""
    with torch.no_grad():
        found = [(score(step) - score(-step)) / (2 * step) for step in (1e-5, 3e-5)]
    if abs(found[0] - found[1]) < agreement * abs(found[0]):
        gap = abs(found[0] - slope)
        expect(gap <= tolerance * abs(found[0]) + 1e-8, f"oracle: gradient {slope:.4g}, by differences {found[0]:.4g}")


def layout_of_default(subject: Subject) -> Layout:
    """Return the layout of the default layer from evidence."""
    found = subject.layout(subject.default)
    expect(found is not None, f"{subject.default}: no layout from evidence")
    return found


@check("default layer")
def default_layer(subject: Subject) -> str:
    """It is on every path to the score, with a gradient at its patches; no later layer with a grid of 4 × 4 is."""
    name, (calls, total), images = subject.default, subject.steps, subject.images
    at = next((i for i, step in enumerate(calls) if step.name == name), None)
    expect(at is not None, f"{name} is not a call of the forward pass")
    share, layout = calls[at].flops / max(total, 1), subject.layout(name)
    expect(layout is not None, f"{name} {calls[at].shape} at {share:.0%}: has no grid from evidence")
    where = f"{name} {layout.grid[0]} × {layout.grid[1]} at {share:.0%}"
    expect(split(name)[0].rpartition(".")[2] not in INNER, f"{where}: an inner projection")
    expect(share >= LATE[subject.network.kind], f"{where}: too early")
    if subject.differentiable:
        _, slope = gradient(subject.plain(), subject.score(subject.plain()), name, images[:1])
        expect(float(layout.maps(slope).abs().max()) > 0, f"{where}: no gradient at its patches")
    if subject.network.kind == "segmentation":
        channels = layout.maps(torch.empty(calls[at].shape)).shape[1]
        expect(channels != CLASSES, f"{where}: the class maps themselves")
    if subject.network.kind != "classifier":
        return where  # for segmentation, the encoder's last stage is acceptable: the decoder has other inputs
    if (later := _later_cut(subject, at, min(LEAST, *layout.grid))) is not None:
        gap = (calls[later].flops - calls[at].flops) / max(total, 1)
        words = f"{calls[later].name} at {calls[later].flops / total:.0%} is on every path and later"
        expect(gap < (0.1 if _ends_coarser(subject, at) else NEARLY), f"{where}: {words}")
    on_every_path = _cuts(subject, name) or _only_tokens_bypass(subject, name, layout)
    if not on_every_path or min(layout.grid) < LEAST:
        found = _cuts_among(subject, range(at), LEAST)
        earlier = next((i for i in found if subject.layout(calls[i].name) is not None), None)
        if earlier is not None and calls[earlier].flops >= 0.5 * total:
            near = calls[at].flops - calls[earlier].flops < 0.15 * total
            words = f"{calls[earlier].name} {calls[earlier].shape} at {calls[earlier].flops / total:.0%}"
            expect(on_every_path or not near, f"{where}: the score has another path; {words} is on every path")
            expect(min(layout.grid) >= LEAST, f"{where}: coarser than 4 × 4; {words} is not")
    return where


def _ends_coarser(subject: Subject, at: int) -> bool:
    """Return whether grids below 4 × 4 follow; layers before them may still have fine grids."""
    after = [step.shape for step in subject.steps[0][at + 1 :] if len(step.shape) == 4]
    return any(1 < min(each.grid) < LEAST for shape in after for each in candidates(shape, subject.seen))


def _cuts(subject: Subject, name: str, kept: Tensor | None = None) -> bool:
    """Return whether another image gets the same score if the call's output stays that of the first."""
    model, score, images = subject.model, subject.score(), subject.images
    if kept is None:
        kept = outputs(model, score, images[:1], [name])[name]
    with torch.no_grad(), edited(model, name, lambda _: kept.clone()):
        frozen = score(images[1:])
    first, other = subject.scores
    size = max(abs(float(first - other)), 1e-6 * abs(float(first)), 1e-12)
    return abs(float(frozen - first)) < 1e-3 * size


def _only_tokens_bypass(subject: Subject, name: str, layout: Layout) -> bool:
    """Return whether only class tokens bypass the layer: no patch of its input has a gradient."""
    if len(layout.axes) == 2 or not layout.extra:
        return False
    one, score = subject.images[:1], subject.score()
    slope = oracles.residual_gradient(subject.model, score, name, outputs(subject.model, score, one, [name])[name], one)
    return slope is not None and float(layout.maps(slope).abs().max()) == 0


def _later_cut(subject: Subject, at: int, least: int) -> int | None:
    """Return the last call after `at` with a grid, on every path, whose patches have a gradient."""
    if not subject.differentiable:
        return None
    calls, model = subject.steps[0], subject.plain()
    indices = [i for i in range(at + 1, len(calls)) if split(calls[i].name)[0].rpartition(".")[2] not in INNER]
    for i in _cuts_among(subject, indices, least):
        layout = subject.layout(calls[i].name)
        if layout is not None and min(layout.grid) >= least:
            _, slope = gradient(model, subject.score(model), calls[i].name, subject.images[:1])
            if float(layout.maps(slope).abs().max()) > 0:
                return i
    return None


def _cuts_among(subject: Subject, indices: Sequence[int], least: int) -> Iterator[int]:
    """Yield calls on every path, the last first, among the last sixteen whose shape may have a fine grid."""
    calls, _ = subject.steps
    fine = [i for i in indices if any(min(each.grid) >= least for each in candidates(calls[i].shape, subject.seen))]
    fine = fine[-16:]
    kept = outputs(subject.model, subject.score(), subject.images[:1], [calls[i].name for i in fine])
    yield from (i for i in reversed(fine) if _cuts(subject, calls[i].name, kept[calls[i].name]))


@check("layout")
def layout(subject: Subject) -> str:
    """Axes that swap with the image, and positions of changed patches: default layer, stages, a sample of others."""
    layers = {layer.name: layer for layer in subject.layers}
    stages = [name for name, layer in layers.items() if layer.stage]
    spatial = [name for name, layer in layers.items() if layer.grid and min(layer.grid) > 1]
    names = list(dict.fromkeys([subject.default, *stages, *spatial[:: max(1, len(spatial) // 24)]]))
    subject.light([name for name in names if len(subject.shapes.get(name, ())) != 4 or subject.network.fixed])
    wrong = [words for name in names if (words := _wrong_layout(subject, layers[name]))]
    expect(not wrong, f"{len(wrong)} of {len(names)} layers: " + "; ".join(wrong[:4]))
    return f"{len(names)} layers, {len(stages)} of them stages"


def _wrong_layout(subject: Subject, layer: explainers.Layer) -> str:
    """Return what is wrong with the layout from `list_layers`, or an empty string."""
    shape = subject.shapes.get(layer.name)
    axes = {"NCHW": (2, 3), "NHWC": (1, 2), "tokens": (1,)}.get(layer.layout)
    if shape is None or layer.grid is None or axes is None:
        return f"{layer.name} {layer.shape}: {'returns no tensor' if shape is None else 'has no grid in list_layers'}"
    claim = Layout(axes, (layer.grid[0], layer.grid[1]), layer.extra_tokens)
    possible = claim in candidates(shape, subject.seen)
    # A pool to a fixed grid has the same shape for every image, so only the positions of patches are evidence.
    pooled = not possible and claim.grid[0] == claim.grid[1]
    value = subject.evidence(layer.name, claim, pooled) if possible or pooled else 0.0
    rival, best = subject.best(layer.name)
    clearly = best is not None and best != claim and rival > max(2 * PROOF, value + 0.15)
    if (possible or value > PROOF / 2) and not clearly:
        return ""
    # One or two planes of a fixed size are not enough to find positions.
    if (pooled and min(shape[1:]) <= 2) or not subject.matters(layer.name):
        return ""
    found = f"axes {best.axes}, grid {best.grid}, {best.extra} extra tokens" if best else "no grid"
    return f"{layer.name} ({layer.kind}) {shape} is {layer.layout} {claim.grid} in list_layers; from evidence {found}"


@check("Grad-CAM")
def grad_cam(subject: Subject) -> str:
    """A hook and autograd in float64, for batches of 1 and 2; that gradient by central differences."""
    name, (model, images, tolerance) = subject.default, subject.in_float64
    options = {"relu": False, **subject.options_for(model)}
    maps = [explainers.grad_cam(model, images[:count], subject.target, **options) for count in (1, 2)]
    found = layout_of_default(subject)
    plain = subject.plain(model)
    score = subject.score(plain)
    a, g = gradient(plain, score, name, images)
    expect(len(a) == 2, f"{name}: returns {tuple(a.shape)} for two images")
    # The boxes of a detector move with the features, and their selection has no gradient.
    if a.dtype == torch.float64 and subject.network.kind != "detector":
        direction = torch.randn(a[:1].shape, generator=torch.Generator().manual_seed(2)).to(a) * a.std()

        def along(step: float) -> float:
            with edited(plain, name, lambda tensor: tensor + step * direction):
                return float(score(images[:1]))

        expect_slope(along, float((g[:1] * direction).sum()), tolerance=1e-2, agreement=1e-3)
    a, g = found.maps(a), found.maps(g)
    right = (g.mean((2, 3), keepdim=True) * a).sum(1)
    expect(float(right.abs().max()) > 0, "the map is zero")
    for count, actual in zip((1, 2), maps, strict=True):
        same(actual, right[:count], tolerance, f"a batch of {count}")
    return f"{right.shape[1]} × {right.shape[2]}"


@check("positions")
def positions(subject: Subject) -> str:
    """Feature maps of the default layer and of stages change at the changed patches, to a cell.

    A layer after global operations, whose changes are everywhere, is not judged.
    """
    names = list(dict.fromkeys([*(layer.name for layer in subject.layers if layer.stage), subject.default]))[-4:]
    found = [_misplaced(subject, name) for name in names]
    expect(not any(found), "; ".join(filter(None, found)))
    return f"{found.count('')} of {len(names)} layers are local"


def _misplaced(subject: Subject, name: str) -> str | None:
    """Return what is wrong with the positions of a layer, an empty string if nothing is, None if it is not local."""

    layer = next(layer for layer in subject.layers if layer.name == name)

    def maps(images: Tensor) -> Tensor:
        own = explainers.feature_maps(subject.model, images, layer=name, **subject.options)
        return explainers.place(own, layer.placement)

    one, judged = subject.images[:1], False
    before = maps(one)
    changed = [(maps(image) - before, position) for image, position in oracles.patches(one)]
    seen = [(heat.norm(dim=1)[0].double(), position) for heat, position in changed if bool(heat.any())]
    if len(seen) < 6:
        return None  # one patch at a time must remain inside the part that the network sees
    expected = torch.tensor([position for _, position in seen], dtype=torch.float64)
    for axis, found in enumerate(oracles.centers(torch.stack([heat for heat, _ in seen]), least=1e-3)):
        related = oracles.correlation(expected[:, axis], found)
        if abs(related) >= CLEAR:
            judged = True
            stride = layer.stride[axis] / subject.size[axis]
            off = float((found - expected[:, axis]).abs().median())
            if related < 0 or off > max(stride, 1 / 12):
                kind = ("height", "width")[axis]
                return f"{name}: changes are off by {off:.2f} of the image's {kind} (correlation {related:.2f})"
    return "" if judged else None
