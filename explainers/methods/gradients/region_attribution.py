"""Attribution of image regions, ranked by their mean attribution."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.call.scores import at_least_float32
from explainers.errors import BadOption
from explainers.keywords import Cost
from explainers.methods.gradients.path_integrals import integrate, measures_gap, note_gap
from explainers.methods.gradients.quadrature import gauss_legendre
from explainers.options import Choice, Range
from explainers.perturbation.segments import superpixels
from explainers.registry import method, on_lite0
from explainers.targets import TargetLike

# Approximate number of superpixels at each scale, fine to coarse; the paper uses six scales of another algorithm.
_COUNTS = (128, 64, 32, 16, 8, 4)
# Minimum mean number of pixels per region; smaller regions are no more informative than single pixels.
_LEAST = 16
# Images are downsampled for segmentation if their shorter side is at least twice this.
_SIDE = 112


@method(
    family="gradient",
    returns="heat",
    unit="logit per pixel",
    title="XRAI",
    paper="Kapishnikov et al. 2019, arXiv:1906.02825",
    caution=on_lite0("not significantly better than the image's edges", "Grad-CAM instead"),
    videos=False,
)
def xrai(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    steps: Annotated[int, Range(2, 1000, help="integration steps on each of the two paths")] = 25,
    segments: Tensor | None = None,
    dilation: Annotated[
        int | None, Range(0, 256, help="pixels by which regions grow; empty: shorter side / 45")
    ] = None,
    channels: Annotated[str, Choice("max", "sum", help="reduction over the channels of a pixel")] = "max",
    least: Annotated[
        int | None, Range(1, 100000, help="minimum number of pixels that a region adds; empty: 1/1000 of the image")
    ] = None,
    **cost: Unpack[Cost],
) -> Tensor:
    """XRAI: integrated gradients summed over regions, which are added in order of attribution per pixel.

    The attribution is the mean of integrated gradients from black and from white, i.e. from each channel's minimum and
    maximum in the image. The value of a pixel is the maximum over its channels, as in the authors' code, or their sum.
    The image is segmented into superpixels at several scales, each dilated by `dilation`. Alternatively, `segments`
    gives labels [H, W] or [N, H, W], which are not dilated. Regions are added greedily: the one whose new pixels have
    the highest mean attribution comes next, and these pixels get that mean as their value. As in the authors' code,
    regions that would add fewer than `least` pixels are skipped, because slivers have the extreme values of single
    pixels. The remaining pixels get their mean.

    `forward` and `through` are as in `explain`.

    Returns  (n, height, width), signed, in logits per pixel; with channels="sum" it sums to y(x) minus the mean score
             of black and white. A finding reports gaps of the attribution above 1%; docs/figures.md lists the error in
                 bf16
    Errors   BadTarget; BadOption for segments of another shape
    Source   Kapishnikov et al. 2019, algorithm 1, arXiv:1906.02825; channel maximum and `least` (50 pixels at 224 px):
             the authors' code, github.com/PAIR-code/saliency

    Example
        >>> xrai(model, images, 281, steps=4).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        x, full = run.images, run.scoring.score_inputs()
        regions = _regions(x, segments, dilation)
        minimum = least or (max(1, x[0, 0].numel() // 1000) if segments is None else 1)
        ends = torch.stack([x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)])
        points, weights = gauss_legendre(steps)
        start_scores = (
            [run.scoring.values(end.expand_as(x), range(len(x))) for end in ends] if measures_gap(target) else None
        )

        def path(index: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
            start = ends[(chosen >= steps).long(), index]
            difference = x[index] - start
            at = points[chosen % steps].to(x).view(-1, 1, 1, 1)
            return start + at * difference, at_least_float32(difference)

        def merge(attribution: Tensor) -> Tensor:
            pixels = attribution.amax(1) if channels == "max" else attribution.sum(1)
            return torch.stack([_merge_regions(a, r, minimum) for a, r in zip(pixels, regions, strict=True)])

        attribution = integrate(run, torch.arange(2 * steps), torch.cat([weights, weights]) / 2, path, merge)
        if start_scores is not None:
            change, remedy = full - torch.stack(start_scores).mean(0), {"steps": min(1000, 4 * steps)}
            note_gap(attribution, change, remedy, promised=channels == "sum")
        return merge(attribution)


def _regions(x: Tensor, segments: Tensor | None, dilation: int | None) -> list[Tensor]:
    """Return the regions of each image, bool [regions, H, W], which cover the image."""
    height, width = x.shape[-2:]
    if segments is not None:
        fits = segments.shape in ((height, width), (len(x), height, width))
        if not fits or segments.is_floating_point() or segments.is_complex():
            raise BadOption(
                f"segments has dtype {segments.dtype} and shape {tuple(segments.shape)}. Give integer labels of shape "
                f"({height}, {width}), or ({len(x)}, {height}, {width}) for one segmentation per image."
            )
        labels = segments.detach().to(x.device).expand(len(x), -1, -1)
        return [own == own.unique().view(-1, 1, 1) for own in labels]
    reach = min(height, width) // 45 if dilation is None else dilation
    # Large images are segmented at lower resolution, which is much faster; dilation covers the region borders anyway.
    factor = max(1, min(height, width) // _SIDE)
    small = functional.avg_pool2d(at_least_float32(x), factor, ceil_mode=True)
    rows, columns = torch.arange(height) // factor, torch.arange(width) // factor
    scales = [superpixels(small, count) for count in _COUNTS if count * _LEAST <= height * width or count == 4]
    regions = []
    for index in range(len(x)):
        masks = torch.cat([labels[index] == labels[index].unique().view(-1, 1, 1) for labels in scales])
        regions.append(_dilate(masks[:, rows[:, None], columns], reach))
    return regions


def _dilate(masks: Tensor, reach: int) -> Tensor:
    """Dilate masks by a square of side 2 × reach + 1."""
    if not reach:
        return masks
    size = 2 * reach + 1
    tall = functional.max_pool2d(masks[:, None].float(), (size, 1), stride=1, padding=(reach, 0))
    return functional.max_pool2d(tall, (1, size), stride=1, padding=(0, reach))[:, 0] > 0


def _merge_regions(attribution: Tensor, regions: Tensor, least: int = 1) -> Tensor:
    """Add regions by the mean attribution of their new pixels, which becomes the value of these pixels."""
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
        added = masks[:, new]
        sums, areas = sums - (added * values[new]).sum(1), areas - added.sum(1)
    if bool(free.any()):
        heat[free] = values[free].mean()
    return heat.view_as(attribution)
