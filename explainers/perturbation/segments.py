"""Parts of a picture: cells of a grid, superpixels, or a user's own masks.

    grid          [H, W]      labels of even cells
    superpixels   [N, H, W]   labels of connected regions of like colour
    parts_of      what `masks=` may be, as `Parts`, one a picture

Labels count from 0 without gaps. A coalition says which parts are shown; `Parts.shown` makes a mask of it, and `blend`
a picture of the mask: the only two steps from coalition to picture that the methods know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from explainers.errors import BadOption, nearest

Masks = Tensor | int | tuple[int, int] | str
"""Parts of a picture: "superpixels", "grid", a grid's size, labels (whole numbers) or masks (bool or float)."""

PARTS = ("superpixels", "grid")
_CELLS = 7
_COUNT = 50
_ROUNDS = 10


def grid(height: int, width: int, rows: int, columns: int) -> Tensor:
    """Label the pixels by cells as even as whole pixels allow, row by row.

    Returns  LongTensor (height, width), labels 0 to rows * columns - 1
    Errors   BadOption for more cells than pixels on a side, or fewer than one
    """
    if not (1 <= rows <= height and 1 <= columns <= width):
        raise BadOption(
            f"A grid of {rows} x {columns} cells does not fit into {height} x {width} pixels. Give between 1 and "
            f"({height}, {width}) cells."
        )
    y = torch.arange(height) * rows // height
    x = torch.arange(width) * columns // width
    return y[:, None] * columns + x


def superpixels(images: Tensor, count: int = _COUNT, compactness: float = 0.2) -> Tensor:
    """SLIC: connected regions of like colour, about `count` of about equal size.

    Distances of colour are shares of the picture's own range, those of place are in region sides times `compactness`;
    so any number of channels and any normalisation will do, and a picture has the same regions in every batch.

    Returns  LongTensor (n, height, width); each picture's labels are 0 to k - 1 without gaps, in reading order
    Errors   BadOption for a count or compactness that is not positive
    Source   Achanta et al. 2012, algorithm 1, doi:10.1109/TPAMI.2012.120; centres start as the means of a grid's cells
    """
    if not (isinstance(count, int) and count >= 1 and compactness > 0):
        raise BadOption(
            f"count={count!r} and compactness={compactness!r} are not possible. Give at least 1 region and a "
            f"compactness above 0."
        )
    # Sums of floats depend on their order on an accelerator, and the regions must not.
    return torch.stack([_slic(each, count, compactness) for each in images.detach().to("cpu", torch.float64)]).to(
        images.device
    )


def _slic(picture: Tensor, count: int, compactness: float) -> Tensor:
    channels, height, width = picture.shape
    rows = min(height, max(1, round(math.sqrt(count * height / width))))
    columns = min(width, max(1, round(count / rows)))
    span = picture.max() - picture.min()
    colours = (picture - picture.min()) / span if span > 0 else torch.zeros_like(picture)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    side = math.sqrt(height * width / (rows * columns))
    place = torch.stack([y, x]).double() * (compactness / side)
    points = torch.cat([colours / math.sqrt(channels), place]).flatten(1).T
    labels = _clusters(points, grid(height, width, rows, columns).flatten(), rows, columns).view(height, width)
    return _merge_small(components(labels), height * width / (rows * columns) / 4)


def _clusters(points: Tensor, home: Tensor, rows: int, columns: int) -> Tensor:
    """k-means in which a pixel chooses among the cells around the one that it lies in."""
    row, column = home // columns, home % columns
    around = [
        (row + down).clamp(0, rows - 1) * columns + (column + right).clamp(0, columns - 1)
        for down in (0, -1, 1)
        for right in (0, -1, 1)
    ]
    labels = home
    centres = points.new_zeros(rows * columns, points.shape[1])
    for _ in range(_ROUNDS):
        sizes = torch.bincount(labels, minlength=len(centres))[:, None]
        sums = torch.zeros_like(centres).index_add(0, labels, points)
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
        distances = torch.stack([(points - centres[each]).square().sum(1) for each in around])
        chosen = torch.stack(around).gather(0, distances.argmin(0, keepdim=True))[0]
        if torch.equal(chosen, labels):
            break
        labels = chosen
    return labels


def components(labels: Tensor) -> Tensor:
    """Number the 4-connected pieces of equal labels in reading order."""
    height, width = labels.shape
    first = torch.arange(height * width)
    pairs = _neighbours(height, width)
    one, other = pairs[:, labels.flatten()[pairs[0]] == labels.flatten()[pairs[1]]]
    while True:
        # Each pixel learns of the first pixel that any of its neighbours knows of, and then what that pixel knows.
        found = first.scatter_reduce(0, one, first[other], "amin").scatter_reduce(0, other, first[one], "amin")
        found = found[found]
        if torch.equal(found, first):
            return _without_gaps(found).view(height, width)
        first = found


def _neighbours(height: int, width: int) -> Tensor:
    """Indices (2, pairs) of pixels side by side or one above the other."""
    index = torch.arange(height * width).view(height, width)
    beside = torch.stack([index[:, :-1].flatten(), index[:, 1:].flatten()])
    below = torch.stack([index[:-1].flatten(), index[1:].flatten()])
    return torch.cat([beside, below], dim=1)


def _merge_small(labels: Tensor, least: float) -> Tensor:
    """Join pieces smaller than `least` pixels to the larger neighbour with the longest common border."""
    flat = labels.flatten()
    pairs = _neighbours(*labels.shape)
    while True:
        sizes = torch.bincount(flat)
        count = len(sizes)
        small = sizes < least
        if count == 1 or not small.any():
            return flat.view_as(labels)
        # Ranks are all different, so that joining to a higher rank never goes in a circle.
        rank = torch.empty(count, dtype=torch.long)
        rank[(sizes * count + torch.arange(count).flip(0)).argsort()] = torch.arange(count)
        one, other = flat[pairs]
        one, other = torch.cat([one, other]), torch.cat([other, one])
        upward = small[one] & (rank[other] > rank[one])
        edges, borders = torch.unique(one[upward] * count + other[upward], return_counts=True)
        parent = torch.arange(count)
        # Written in rising order of the border, so that the longest stays.
        for edge in edges[borders.argsort(stable=True)].tolist():
            parent[edge // count] = edge % count
        while not torch.equal(parent, parent[parent]):
            parent = parent[parent]
        flat = _without_gaps(parent[flat])


def _without_gaps(labels: Tensor) -> Tensor:
    """Number the labels anew, 0 to k - 1, by where they first appear."""
    _, inverse = torch.unique(labels, return_inverse=True)
    inverse = inverse.flatten()
    first = torch.full((int(inverse.max()) + 1,), len(inverse)).scatter_reduce(
        0, inverse, torch.arange(len(inverse)), "amin"
    )
    return first.argsort().argsort()[inverse].view_as(labels)


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of one picture: `labels` [H, W] where they do not overlap, else `masks` [M, H, W] in [0, 1]."""

    count: int
    labels: Tensor | None = None
    masks: Tensor | None = None

    def shown(self, present: Tensor) -> Tensor:
        """Masks [B, H, W] of coalitions [B, M]: 1 where all is shown. What any absent part covers is hidden."""
        if self.labels is not None:
            return present[:, self.labels]
        assert self.masks is not None
        kept = torch.ones_like(self.masks[0]).expand(len(present), -1, -1)
        for mask, here in zip(self.masks, present.T.to(self.masks), strict=True):
            kept = torch.minimum(kept, 1 - mask * (1 - here[:, None, None]))
        return kept

    def paint(self, values: Tensor) -> Tensor:
        """A map [H, W] in which each pixel has its part's own value; for parts that do not overlap."""
        assert self.labels is not None
        return values[self.labels]

    def spread(self, values: Tensor) -> Tensor:
        """A map [H, W] of one value a part, laid evenly over the part's pixels, so that the map sums to the values."""
        if self.labels is not None:
            areas = torch.bincount(self.labels.flatten(), minlength=self.count)
            return self.paint(values / areas.to(values))
        assert self.masks is not None
        masks = self.masks.to(values)
        return torch.einsum("m,mhw->hw", values / masks.sum((1, 2)), masks)


def blend(picture: Tensor, cover: Tensor, shown: Tensor) -> Tensor:
    """Pictures [B, C, H, W]: `picture` where a mask of `shown` [B, H, W] is 1, `cover` where it is 0."""
    if shown.dtype == torch.bool:
        return torch.where(shown[:, None], picture, cover)
    return torch.lerp(cover, picture, shown[:, None].to(picture))


def parts_of(masks: Masks, images: Tensor) -> list[Parts]:
    """The parts of each picture.

    `masks` is "superpixels", "grid", a grid's size (one number or (rows, columns)), labels [H, W] or [N, H, W] of whole
    numbers, or masks [M, H, W] or [N, M, H, W], bool or float in [0, 1], which may overlap and need not cover all.

    Errors   BadOption for another name, shape or size, values outside [0, 1], or a mask that covers nothing
    """
    height, width = images.shape[-2:]
    if isinstance(masks, Tensor):
        masks = masks.detach().to(images.device)
        return _from_labels(masks, images) if not _is_mask(masks) else _from_masks(masks, images)
    if masks == "superpixels":
        return [Parts(int(each.max()) + 1, each) for each in superpixels(images)]
    if masks == "grid":
        masks = (min(_CELLS, height), min(_CELLS, width))
    size = (masks, masks) if isinstance(masks, int) and not isinstance(masks, bool) else masks
    if not (isinstance(size, (tuple, list)) and len(size) == 2 and all(isinstance(each, int) for each in size)):
        hint = nearest(masks, PARTS) if isinstance(masks, str) else ""
        raise BadOption(
            f"masks={masks!r} is not possible. {hint}Give 'superpixels', 'grid', a grid's size such as 7 or (7, 5), "
            f"labels [H, W] of whole numbers, or masks [M, H, W]."
        )
    labels = grid(height, width, size[0], size[1]).to(images.device)
    return [Parts(size[0] * size[1], labels)] * len(images)


def _is_mask(given: Tensor) -> bool:
    return given.dtype == torch.bool or given.is_floating_point()


def _from_labels(labels: Tensor, images: Tensor) -> list[Parts]:
    count, _, height, width = images.shape
    if labels.shape not in ((height, width), (count, height, width), (1, height, width)):
        raise BadOption(
            f"masks are whole numbers of shape {tuple(labels.shape)} and so labels; give them as "
            f"{(height, width)} or {(count, height, width)}, or give masks [M, H, W] as bool or float."
        )
    each = labels.expand(count, height, width)
    numbered = [torch.unique(one, return_inverse=True) for one in each]
    return [Parts(len(found), inverse) for found, inverse in numbered]


def _from_masks(masks: Tensor, images: Tensor) -> list[Parts]:
    count, _, height, width = images.shape
    several = masks if masks.ndim == 4 else masks[None]
    if (
        several.ndim != 4
        or several.shape[2:] != (height, width)
        or len(several) not in (1, count)
        or not several.numel()
    ):
        raise BadOption(
            f"masks have shape {tuple(masks.shape)}; for these images give [M, {height}, {width}] or "
            f"[{count}, M, {height}, {width}]."
        )
    floats = several.to(torch.float64 if images.dtype == torch.float64 else torch.float32)
    if not ((floats >= 0) & (floats <= 1)).all():
        raise BadOption(
            "masks hold values outside [0, 1]. Give 0 where a mask covers nothing and 1 where it covers all."
        )
    if (empty := (floats.sum((2, 3)) == 0).nonzero()).numel():
        raise BadOption(f"Mask {int(empty[0, 1])} covers no pixel. Leave it out.")
    return [Parts(floats.shape[1], masks=one) for one in floats.expand(count, *floats.shape[1:])]
