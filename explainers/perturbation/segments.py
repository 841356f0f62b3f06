"""Segments of an image: cells of a grid, superpixels, or the user's masks.

    grid          [H, W]      labels of even cells; [T, H, W] for videos and volumes, as all masks below
    superpixels   [N, H, W]   labels of connected regions of similar color
    parts_of      any value of `masks=` as `Parts`, one per image

Labels count from 0 without gaps. A coalition says which segments are shown: `Parts.shown` converts coalitions to masks,
and `blend` applies masks to images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explainers.dtypes import to_cpu_float64
from explainers.errors import BadOption, check_type, nearest, shorten
from explainers.layers.flow.axes import kinds_of

Masks = Tensor | int | tuple[int, ...] | str
"""Segments: "superpixels", "grid", a grid's size, labels (integers) or masks (bool or float)."""

PARTS = ("superpixels", "grid")
_CELLS = 7
_COMPACTNESS = 0.2
_ROUNDS = 10
_OFFSET = 4
"""Largest magnitude of a pixel, relative to the range, at which rounding is below 1% of the range."""


def grid(*sizes: int) -> Tensor:
    """Label the cells of a grid, as even as whole pixels allow, row by row.

    `sizes` are height, width, rows and columns; frames, height, width, and the cells along each, for videos.

    Returns  LongTensor (height, width), labels 0 to rows * columns - 1
    Errors   BadOption if a side has fewer pixels than cells, or less than one cell
    """
    count = len(sizes) // 2
    sides, cells = sizes[:count], sizes[count:]
    if not all(1 <= along <= side for side, along in zip(sides, cells, strict=True)):
        raise BadOption(
            f"A grid of {' x '.join(map(str, cells))} cells does not fit into {' x '.join(map(str, sides))} pixels. "
            f"Give at least {(1,) * count} and at most {sides} cells."
        )
    labels = torch.zeros((), dtype=torch.long)
    for side, along in zip(sides, cells, strict=True):
        labels = labels[..., None] * along + torch.arange(side) * along // side
    return labels


def superpixels(images: Tensor, count: int = 50) -> Tensor:
    """Segment images by SLIC into about `count` connected regions of similar color and about equal size.

    Color distances are relative to the image's range, spatial distances to the side of a region, times
    `_COMPACTNESS`.
    The function therefore accepts any number of channels and any normalization. Each image is segmented separately.

    Returns  LongTensor (n, height, width); labels 0 to k - 1 without gaps, in reading order
    Source   Achanta et al. 2012, algorithm 1, doi:10.1109/TPAMI.2012.120; centers start as the means of grid cells
    """
    # On the CPU, because the order of float sums varies on accelerators, which changes the regions.
    pixels = to_cpu_float64(images.detach())
    return torch.stack([_slic(_rounded(image), count) for image in pixels]).to(images.device)


def _rounded(image: Tensor) -> Tensor:
    """Round an image to bfloat16, unless this would hide contrast, so that a model in bfloat16 gets the same regions.

    Rounding changes the regions of noise, and with their number all random coalitions.
    """
    faint = float(image.abs().max()) > _OFFSET * float(image.max() - image.min())
    return image if faint else image.bfloat16().double()


def _slic(image: Tensor, count: int) -> Tensor:
    channels, height, width = image.shape
    rows = min(height, max(1, round(math.sqrt(count * height / width))))
    columns = min(width, max(1, round(count / rows)))
    span = image.max() - image.min()
    colors = (image - image.min()) / span if span > 0 else torch.zeros_like(image)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    side = math.sqrt(height * width / (rows * columns))
    positions = torch.stack([y, x]).double() * (_COMPACTNESS / side)
    points = torch.cat([colors / math.sqrt(channels), positions]).flatten(1).T
    labels = _clusters(points, grid(height, width, rows, columns).flatten(), rows, columns).view(height, width)
    return _merge_small(connected_components(labels), height * width / (rows * columns) / 4)


def _clusters(points: Tensor, home: Tensor, rows: int, columns: int) -> Tensor:
    """Run k-means in which a pixel is assigned to one of the 3 x 3 cells around its own cell."""
    row, column = home // columns, home % columns
    candidates = [
        (row + down).clamp(0, rows - 1) * columns + (column + right).clamp(0, columns - 1)
        for down in (0, -1, 1)
        for right in (0, -1, 1)
    ]
    labels = home
    centers = points.new_zeros(rows * columns, points.shape[1])
    for _ in range(_ROUNDS):
        sizes = torch.bincount(labels, minlength=len(centers))[:, None]
        sums = torch.zeros_like(centers).index_add(0, labels, points)
        centers = torch.where(sizes > 0, sums / sizes.clamp(min=1), centers)
        distances = torch.stack([(points - centers[cell]).square().sum(1) for cell in candidates])
        nearest_cells = torch.stack(candidates).gather(0, distances.argmin(0, keepdim=True))[0]
        if torch.equal(nearest_cells, labels):
            break
        labels = nearest_cells
    return labels


def connected_components(labels: Tensor) -> Tensor:
    """Label the 4-connected components of equal integer labels [H, W], numbered from 0 in reading order.

    Labels must be on the CPU.

    Returns  int64 (h, w)
    Errors   WrongType; BadOption for another shape

    Example
        >>> connected_components(torch.tensor([[5, 5, 0], [0, 5, 0]]))
        tensor([[0, 0, 1],
                [2, 0, 1]])
    """
    check_type("labels", labels, Tensor, "a tensor of labels [H, W]")
    if labels.ndim != 2 or not labels.numel():
        raise BadOption(f"labels has shape {tuple(labels.shape)}. Give the labels [H, W] of one image.")
    height, width = labels.shape
    first = torch.arange(height * width)
    pairs = _neighbor_pairs(height, width)
    one, other = pairs[:, labels.flatten()[pairs[0]] == labels.flatten()[pairs[1]]]
    while True:
        # Parallel union-find: each pixel takes the smallest root among its neighbors, then the root of that root.
        roots = first.scatter_reduce(0, one, first[other], "amin").scatter_reduce(0, other, first[one], "amin")
        roots = roots[roots]
        if torch.equal(roots, first):
            return _renumber(roots).view(height, width)
        first = roots


def _neighbor_pairs(height: int, width: int) -> Tensor:
    """Return flat indices (2, pairs) of horizontally or vertically adjacent pixels."""
    index = torch.arange(height * width).view(height, width)
    right = torch.stack([index[:, :-1].flatten(), index[:, 1:].flatten()])
    below = torch.stack([index[:-1].flatten(), index[1:].flatten()])
    return torch.cat([right, below], dim=1)


def _merge_small(labels: Tensor, least: float) -> Tensor:
    """Merge regions below `least` pixels into the larger neighbor with the longest common border."""
    flat = labels.flatten()
    pairs = _neighbor_pairs(*labels.shape)
    while True:
        sizes = torch.bincount(flat)
        count = len(sizes)
        small = sizes < least
        if count == 1 or not small.any():
            return flat.view_as(labels)
        # Ranks are distinct, so merging into a higher rank creates no cycles.
        rank = torch.empty(count, dtype=torch.long)
        rank[(sizes * count + torch.arange(count).flip(0)).argsort()] = torch.arange(count)
        one, other = flat[pairs]
        one, other = torch.cat([one, other]), torch.cat([other, one])
        upward = small[one] & (rank[other] > rank[one])
        edges, borders = torch.unique(one[upward] * count + other[upward], return_counts=True)
        parent = torch.arange(count)
        # In ascending order of border length, so that the longest border is written last.
        for edge in edges[borders.argsort(stable=True)].tolist():
            parent[edge // count] = edge % count
        while not torch.equal(parent, parent[parent]):
            parent = parent[parent]
        flat = _renumber(parent[flat])


def _renumber(labels: Tensor) -> Tensor:
    """Renumber the labels 0 to k - 1, in order of first appearance."""
    _, inverse = torch.unique(labels, return_inverse=True)
    inverse = inverse.flatten()
    first = torch.full((int(inverse.max()) + 1,), len(inverse)).scatter_reduce(
        0, inverse, torch.arange(len(inverse)), "amin"
    )
    return first.argsort().argsort()[inverse].view_as(labels)


@dataclass(frozen=True, eq=False)
class Parts:
    """The segments of one image: `labels` [H, W] if they do not overlap, else `masks` [M, H, W] in [0, 1]."""

    count: int
    labels: Tensor | None = None
    masks: Tensor | None = None

    def shown(self, present: Tensor) -> Tensor:
        """Return masks [B, H, W] of coalitions [B, M]: 1 where shown, 0 where a segment not shown covers the pixel."""
        if self.labels is not None:
            return present[:, self.labels]
        assert self.masks is not None
        shown = torch.ones_like(self.masks[0]).expand(len(present), *self.masks[0].shape)
        for mask, weight in zip(self.masks, present.T.to(self.masks), strict=True):
            shown = torch.minimum(shown, 1 - mask * (1 - weight.view(-1, *[1] * mask.ndim)))
        return shown

    def paint(self, values: Tensor) -> Tensor:
        """Return a map [H, W] in which each pixel has its segment's value, for segments that do not overlap."""
        assert self.labels is not None
        return values[self.labels]

    def spread(self, values: Tensor) -> Tensor:
        """Return a map [H, W] of each segment's value divided evenly among its pixels; it sums to the values."""
        if self.labels is not None:
            areas = torch.bincount(self.labels.flatten(), minlength=self.count)
            return self.paint(values / areas.to(values))
        assert self.masks is not None
        masks = self.masks.to(values)
        return torch.einsum("m,m...->...", values / masks.sum(tuple(range(1, masks.ndim))), masks)


def blend(image: Tensor, cover: Tensor, shown: Tensor) -> Tensor:
    """Return m · image + (1 − m) · cover, [B, C, H, W], for the masks m in `shown` [B, H, W]."""
    if shown.dtype == torch.bool:
        return torch.where(shown[:, None], image, cover)
    return torch.lerp(cover, image, shown[:, None].to(image))


def parts_of(masks: Masks, images: Tensor) -> list[Parts]:
    """Create the segments of each image.

    `masks` is "superpixels", "grid", the size of a grid (one number or (rows, columns)), integer labels [H, W] or
    [N, H, W], or masks [M, H, W] or [N, M, H, W], bool or float in [0, 1], which may overlap or leave pixels uncovered.
    For videos and volumes, labels and masks have [T, H, W] instead of [H, W], and a size has (frames, rows, columns).

    Errors   BadOption for another name, shape or size, values outside [0, 1], or an empty mask; for "superpixels" of
             videos
    """
    sides = tuple(images.shape[2:])
    if isinstance(masks, Tensor):
        masks = masks.detach().to(images.device)
        is_mask = masks.dtype == torch.bool or masks.is_floating_point()
        return _from_masks(masks, images) if is_mask else _from_labels(masks, images)
    name = masks if isinstance(masks, str) else ""
    if name == "superpixels" and len(sides) == 3:
        raise BadOption(
            "Superpixels are defined for images [N, C, H, W], not for videos and volumes. Give masks='grid', the "
            f"size of a grid such as {tuple(min(4, side) for side in sides)}, or integer labels of shape {sides}."
        )
    if name == "superpixels":
        return [Parts(int(labels.max()) + 1, labels) for labels in superpixels(images)]
    if name == "grid":
        masks = tuple(min(_CELLS, side) for side in sides)
    size: Any = (masks,) * len(sides) if isinstance(masks, int) and not isinstance(masks, bool) else masks
    fits = isinstance(size, (tuple, list)) and len(size) == len(sides)
    if not (fits and all(isinstance(side, int) for side in size)):
        hint = nearest(name, PARTS)
        axes = ", ".join(kinds_of(len(sides)))
        raise BadOption(
            f"Invalid masks={shorten(masks)}. {hint}Give 'superpixels', 'grid', a grid's size such as 7 or "
            f"{(2, 7, 5)[-len(sides) :]}, integer labels [{axes}], or masks [M, {axes}] of bool or float."
        )
    labels = grid(*sides, *size).to(images.device)
    return [Parts(math.prod(size), labels)] * len(images)


def _from_labels(labels: Tensor, images: Tensor) -> list[Parts]:
    count, sides = len(images), tuple(images.shape[2:])
    if labels.shape not in (sides, (count, *sides), (1, *sides)):
        raise BadOption(
            f"Integer masks are read as labels, but they have shape {tuple(labels.shape)}. Give labels of shape "
            f"{sides} or {(count, *sides)}, or masks [M, {', '.join(kinds_of(len(sides)))}] of bool or float."
        )
    numbered = [torch.unique(image, return_inverse=True) for image in labels.expand(count, *sides)]
    return [Parts(len(values), inverse) for values, inverse in numbered]


def _from_masks(masks: Tensor, images: Tensor) -> list[Parts]:
    count, sides = len(images), tuple(images.shape[2:])
    batch = masks if masks.ndim == images.ndim else masks[None]
    if batch.ndim != images.ndim or batch.shape[2:] != sides or len(batch) not in (1, count) or not batch.numel():
        size = ", ".join(map(str, sides))
        raise BadOption(f"masks have shape {tuple(masks.shape)}. Give [M, {size}] or [{count}, M, {size}].")
    floats = batch.to(torch.float64 if images.dtype == torch.float64 else torch.float32)
    if not ((floats >= 0) & (floats <= 1)).all():
        raise BadOption(
            "masks contain values outside [0, 1]. Give 1 for pixels of the segment, 0 for others, and values between "
            "them at soft edges."
        )
    if (empty := (floats.sum(tuple(range(2, floats.ndim))) == 0).nonzero()).numel():
        raise BadOption(f"Mask {int(empty[0, 1])} covers no pixels. Remove it.")
    return [Parts(floats.shape[1], masks=image) for image in floats.expand(count, *floats.shape[1:])]
