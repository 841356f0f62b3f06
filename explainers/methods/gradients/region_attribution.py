"""Regions of the picture in the order in which they matter."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from explainers.errors import BadOption
from explainers.methods.gradients.path_integrals import integrate, measures_gap, note_gap
from explainers.methods.gradients.quadrature import gauss_legendre
from explainers.options import Choice, Precision, Range
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import at_least_float32, open_run
from explainers.perturbation.segments import superpixels
from explainers.registry import method
from explainers.targets import TargetLike

# About how many regions an over-segmentation has; the paper's six scales of another algorithm, from fine to coarse.
_COUNTS = (128, 64, 32, 16, 8, 4)
# Pixels that a region should have at least: fewer say no more than the pixels themselves.
_LEAST = 16
# Pixels along the shorter side up to which a picture is cut as it is.
_SIDE = 112


@method(
    family="gradient",
    returns="heat",
    unit="logit per pixel",
    title="XRAI",
    paper="Kapishnikov et al. 2019, arXiv:1906.02825",
)
def xrai(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Annotated[int, Range(2, 1000, help="points on each of the two paths")] = 25,
    segments: Tensor | None = None,
    dilation: Annotated[
        int | None, Range(0, 256, help="pixels by which regions overlap; empty: a 45th of the shorter side")
    ] = None,
    channels: Annotated[str, Choice("max", "sum", help="a pixel's value, of those of its colours")] = "max",
    least: Annotated[
        int | None, Range(1, 100000, help="pixels that a region must add; empty: a 1000th of the picture")
    ] = None,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """XRAI: integrated gradients summed over regions, which join the map in the order of what they add a pixel.

    The attribution is the mean of integrated gradients from black and from white, that is from each channel's lowest
    and highest value in the picture; a pixel has its channels' highest value, as in the authors' code, or their sum.
    The picture is cut into superpixels at several scales, each grown by `dilation`; `segments` [H, W] or [N, H, W],
    labels, replaces them, without growing. Again and again the region joins that adds most attribution per pixel, and
    its new pixels get that density as their value. What would add fewer than `least` pixels is left out, as in the
    authors' code: slivers between regions are as high and as low as single pixels, and speckle the map. Pixels left
    over share their mean.

    Returns  (n, height, width), signed, in logits per pixel; with channels="sum" it sums to score(x) less the mean
             score of black and white. A finding states the gap of the attribution where it is above 1%; drift in bf16:
             docs/figures.md
    Errors   BadTarget; BadOption for segments of another shape
    Source   Kapishnikov et al. 2019, algorithm 1, arXiv:1906.02825; highest channel and `least` (50 pixels at 224 px):
             the authors' code, github.com/PAIR-code/saliency
    """
    with open_run(model, images, target, many=True, precision=precision) as run:
        x, full = run.images, run.score_inputs()
        regions = _regions(x, segments, dilation)
        fewest = least or (max(1, x[0, 0].numel() // 1000) if segments is None else 1)
        ends = torch.stack([x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)])
        points, weights = gauss_legendre(steps)

        def path(picture: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
            start = ends[(chosen >= steps).long(), picture]
            way = x[picture] - start
            return start + points[chosen % steps].to(x).view(-1, 1, 1, 1) * way, at_least_float32(way)

        def merged(attribution: Tensor) -> Tensor:
            pixels = attribution.amax(1) if channels == "max" else attribution.sum(1)
            return torch.stack([_merged(a, r, fewest) for a, r in zip(pixels, regions, strict=True)])

        loop = Loop(batch_size, progress, budget)
        found = integrate(run, loop, torch.cat([weights, weights]) / 2, path, merged)
        if measures_gap(target):
            scores = [run.values(end.expand_as(x), range(len(x))) for end in ends]
            note_gap(found, full - torch.stack(scores).mean(0), {"steps": min(1000, 4 * steps)})
        return merged(found)


def _regions(x: Tensor, segments: Tensor | None, dilation: int | None) -> list[Tensor]:
    """Each picture's regions, bool [regions, H, W], which together cover it."""
    height, width = x.shape[-2:]
    if segments is not None:
        fits = segments.shape in ((height, width), (len(x), height, width))
        if not fits or segments.is_floating_point() or segments.is_complex():
            raise BadOption(
                f"segments is {segments.dtype} of shape {tuple(segments.shape)}. Give whole numbers that label the "
                f"pixels: ({height}, {width}), or ({len(x)}, {height}, {width}) for each picture its own."
            )
        labels = segments.detach().to(x.device).expand(len(x), -1, -1)
        return [each == each.unique().view(-1, 1, 1) for each in labels]
    reach = min(height, width) // 45 if dilation is None else dilation
    # Borders are grown over anyway: a large picture is cut where it is small, in a fraction of the time.
    factor = max(1, min(height, width) // _SIDE)
    small = functional.avg_pool2d(at_least_float32(x), factor, ceil_mode=True)
    down, right = torch.arange(height) // factor, torch.arange(width) // factor
    scales = [superpixels(small, count) for count in _COUNTS if count * _LEAST <= height * width or count == 4]
    found = []
    for picture in range(len(x)):
        masks = torch.cat([labels[picture] == labels[picture].unique().view(-1, 1, 1) for labels in scales])
        found.append(_grown(masks[:, down[:, None], right], reach))
    return found


def _grown(masks: Tensor, reach: int) -> Tensor:
    """Masks with all pixels that are within `reach` of them, by rows and by columns."""
    if not reach:
        return masks
    size = 2 * reach + 1
    tall = functional.max_pool2d(masks[:, None].float(), (size, 1), stride=1, padding=(reach, 0))
    return functional.max_pool2d(tall, (1, size), stride=1, padding=(0, reach))[:, 0] > 0


def _merged(attribution: Tensor, regions: Tensor, least: int = 1) -> Tensor:
    """Let regions join by what they add for each pixel that is new; the map holds that density."""
    values, masks = attribution.flatten(), regions.flatten(1)
    heat, free = torch.zeros_like(values), torch.ones_like(values, dtype=torch.bool)
    sums, areas = (masks * values).sum(1), masks.sum(1)
    while True:
        density = torch.where(areas >= least, sums / areas.clamp(min=1), -torch.inf)
        best = int(density.argmax())
        if areas[best] < least:
            break
        new = (masks[best] & free).nonzero()[:, 0]
        heat[new] = values[new].mean()
        free[new] = False
        taken = masks[:, new]
        sums, areas = sums - (taken * values[new]).sum(1), areas - taken.sum(1)
    if bool(free.any()):
        heat[free] = values[free].mean()
    return heat.view_as(attribution)
