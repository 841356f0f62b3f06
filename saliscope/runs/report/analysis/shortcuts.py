"""Find clusters that may be shortcuts: a class recognized by one small area, with the same pattern in every image.

There are four criteria, so that a class whose object is often on the left is not reported:

    many    clusters of the class with a common area have at least 8 maps, and a tenth of the class
    small   a square of about a quarter of the side has at least 18% of their relevance; a uniform map has 6% there
    away    it is not in the center, and the maps of other classes have less than 40% of that relevance there
    alike   most images have the same colors at the same pixels there, and the images of other classes do not: a mark, a
            text, a frame
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import Resampling

from saliscope.runs.report.analysis.clusters import Cluster
from saliscope.runs.report.analysis.columns import evenly
from saliscope.runs.report.analysis.maps import Sample
from saliscope.runs.rows import Floats, Integers

SIDE = 0.28
"""Side of the square, as a fraction of the side of the image."""
MANY, PART = 8, 0.1
SMALL, OTHERS = 0.18, 0.4
PATCH = 32
"""Pixels per side at which the areas of images are compared."""
NEAR = 24
"""Colors are equal if no channel, from 0 to 255, differs by more than this."""
AGREE, APART = 0.55, 0.4
"""A pixel belongs to the pattern if this fraction of images agree, and the other classes' fraction is lower by this."""
PATTERN = 0.03
"""The minimum fraction of the area that the pattern covers."""
SAME = 0.6
"""The minimum fraction of the pattern's pixels in an image that contains the pattern."""
HELD_OUT = 0.4
"""The minimum fraction of each half of the images with the pattern of the other half; chance patterns have less."""
SHARP = 0.9
"""The minimum fraction of the pattern's pixels that nearly all images agree on; an object in that area has less."""
COMPARED = 40
"""Maximum number of images that are compared first; if there is a pattern, all images of the class are checked."""

Box = tuple[float, float, float, float]
Crop = Callable[[int], "Image.Image | None"]
"""Returns the part of an image that the network received, by the index of its map."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A small area where the maps of clusters of one class have much more relevance than those of other classes."""

    name: str
    """The class."""
    box: Box
    members: Integers
    """Maps of the class whose images have the pattern, or the maps of the clusters if images were not compared."""
    of: int
    """Number of maps of the class that were checked."""
    relevance: float
    """Mean share of the members' relevance in the box."""
    elsewhere: float
    """The same for the maps of other classes."""
    others_alike: float = 0.0
    """The fraction of images of other classes with the pattern."""
    others: int = 0
    """Number of images of other classes that were compared; 0 if too few images were available."""
    pattern: Floats | None = None
    """What the images have in common there, `[p, p, 3]` from 0 to 255; None if they have nothing in common."""

    @property
    def is_shortcut(self) -> bool:
        """Whether the evidence is strong enough to report it."""
        return self.pattern is not None and len(self.members) >= MANY and self.others_alike <= OTHERS


def count_tested(maps: Sample, clusters: list[Cluster], candidates: list[Candidate]) -> dict[str, int]:
    """Return how many of the explained `classes` were `tested` for shortcuts.

    Those have clusters, and enough maps of other classes to compare with. Of the others, `unread` had too few images
    that are still available, and all others too few maps. `largest` is the number of maps of the largest class, of
    `maps` maps with relevance.
    """
    counts, total = Counter(maps.classes.tolist()), len(maps.rows)
    enough = {cluster.name for cluster in clusters if total - counts[cluster.name] >= MANY}
    unread = sum(not candidate.others for candidate in candidates if candidate.name in enough)
    tested = {"classes": len(counts), "tested": len(enough) - unread, "unread": unread}
    return tested | {"largest": max(counts.values(), default=0), "maps": total}


def describe(box: Box) -> str:
    """Return the position of a box, such as "lower left corner"."""
    left, top, right, bottom = box
    across, down = (left + right) / 2, (top + bottom) / 2
    x = "left" if across < 1 / 3 else "right" if across > 2 / 3 else ""
    y = "upper" if down < 1 / 3 else "lower" if down > 2 / 3 else ""
    if x and y:
        return f"{y} {x} corner"
    return f"{y or x} edge" if x or y else "center"


def find_candidates(maps: Sample, clusters: list[Cluster], crop: Crop) -> list[Candidate]:
    """Return areas that may be shortcuts, at most one per class; comparing the images decides (`is_shortcut`)."""
    sums, boxes = _squares(maps.grid)
    candidates = []
    for name, own_clusters in itertools.groupby(clusters, lambda cluster: cluster.name):
        own, other = np.flatnonzero(maps.classes == name), np.flatnonzero(maps.classes != name)
        candidate = _find_candidate(sums, boxes, list(own_clusters), other) if len(other) else None
        if candidate is not None:
            inside = sums[:, boxes.index(candidate.box)]
            candidates.append(_compare_images(candidate, inside, own, other, crop))
    return candidates


def _squares(grid: Floats) -> tuple[Floats, list[Box]]:
    """Return the relevance `[n, squares]` in every square of side `SIDE` outside the center, and their boxes."""
    rows, columns = grid.shape[1:]
    high, wide = (max(1, round(SIDE * side)) for side in (rows, columns))
    corners = [(x, y) for y in range(rows - high + 1) for x in range(columns - wide + 1)]
    boxes = [(x / columns, y / rows, (x + wide) / columns, (y + high) / rows) for x, y in corners]
    outer = [number for number, box in enumerate(boxes) if describe(box) != "center"]
    sums = sliding_window_view(grid, (high, wide), (1, 2)).sum((-2, -1)).reshape(len(grid), len(boxes))
    return sums[:, outer], [boxes[number] for number in outer]


def _find_candidate(sums: Floats, boxes: list[Box], clusters: list[Cluster], other: Integers) -> Candidate | None:
    """Return the area where clusters of the class differ most from other classes."""
    elsewhere = sums[other].mean(0).tolist()
    of = sum(len(cluster.members) for cluster in clusters)
    found = []
    for index, box in enumerate(boxes):
        shares = [(cluster.members, float(sums[cluster.members, index].mean())) for cluster in clusters]
        chosen = [part for part, share in shares if share >= SMALL and elsewhere[index] <= OTHERS * share]
        members = np.concatenate([np.zeros(0, dtype=np.int64), *chosen])
        if len(members) >= max(MANY, PART * of):
            relevance = float(sums[members, index].mean())
            found.append(Candidate(clusters[0].name, box, members, of, relevance, elsewhere[index]))
    return max(found, key=lambda each: len(each.members) * (each.relevance - each.elsewhere), default=None)


def _compare_images(candidate: Candidate, inside: Floats, own: Integers, other: Integers, crop: Crop) -> Candidate:
    """Return the candidate with the pattern that the images have in common, and with all maps that contain it."""
    _, patches = _patches(evenly(candidate.members, COMPARED), candidate.box, crop)
    _, others = _patches(evenly(other, COMPARED), candidate.box, crop)
    if len(patches) < MANY or len(others) < MANY:
        return candidate
    candidate = replace(candidate, others=len(others))
    pattern = _find_pattern(patches, others)
    if pattern is None or _cross_validate(patches, others) < HELD_OUT:
        return candidate
    checked, patches = _patches(own, candidate.box, crop)
    left, top, right, bottom = candidate.box
    area = (right - left) * (bottom - top)
    inside_box = inside[checked] >= area
    # Estimate the pattern again without the images in the clusters that do not contain it.
    pattern = _find_pattern(patches[pattern.inside(patches) & inside_box], others)
    if pattern is None or pattern.sharpness(patches[contains := pattern.inside(patches) & inside_box]) < SHARP:
        return candidate
    members = checked[contains]
    return replace(
        candidate,
        members=members,
        of=len(checked),
        relevance=float(inside[members].mean()),
        others_alike=float(pattern.inside(others).mean()),
        pattern=np.median(patches[contains], axis=0),
    )


@dataclass(frozen=True, eq=False)
class _Pattern:
    """What images have in common in an area: `colors` `[p, p, 3]` at some `pixels` `[p, p]`."""

    colors: Floats
    pixels: NDArray[np.bool_]

    def inside(self, patches: Floats) -> NDArray[np.bool_]:
        """Return which images contain it, `[n]`."""
        return np.asarray(_match(patches, self.colors)[:, self.pixels].mean(1) >= SAME)

    def sharpness(self, patches: Floats) -> float:
        """Return the fraction of its pixels that nearly all of the images with it agree on."""
        return float((_match(patches, self.colors)[:, self.pixels].mean(0) >= 0.85).mean()) if len(patches) else 0.0


def _find_pattern(patches: Floats, others: Floats) -> _Pattern | None:
    """Return what most of these images contain and others do not, or None if that is too little."""
    if not len(patches):
        return None
    colors = np.median(patches, axis=0)
    agree, elsewhere = _match(patches, colors).mean(0), _match(others, colors).mean(0)
    pixels = (agree >= AGREE) & (agree - elsewhere >= APART)
    return _Pattern(colors, pixels) if pixels.mean() >= PATTERN else None


def _cross_validate(patches: Floats, others: Floats) -> float:
    """Return the smaller fraction of one half of the images that contains the pattern of the other half."""
    halves = patches[::2], patches[1::2]
    patterns = [_find_pattern(half, others) for half in halves]
    pairs = zip(patterns, reversed(halves), strict=True)
    return min(float(pattern.inside(other).mean()) if pattern else 0.0 for pattern, other in pairs)


def _match(patches: Floats, colors: Floats) -> NDArray[np.bool_]:
    """Return where images have these colors, `[n, p, p]`."""
    return np.asarray(np.abs(patches - colors).max(-1) <= NEAR)


def _patches(numbers: Integers, box: Box, crop: Crop) -> tuple[Integers, Floats]:
    """Return the indices of those images that can be read, and the area `[n, p, p, 3]` in each."""
    left, top, right, bottom = box
    read, patches = [], []
    for number in numbers:
        image = crop(int(number))
        if image is not None:
            corners = (left * image.width, top * image.height, right * image.width, bottom * image.height)
            patches.append(np.asarray(image.convert("RGB").resize((PATCH, PATCH), Resampling.BOX, box=corners)))
            read.append(int(number))
    return np.array(read, dtype=np.int64), np.array(patches, dtype=float).reshape(-1, PATCH, PATCH, 3)
