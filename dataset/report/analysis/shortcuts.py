"""Which clusters may be shortcuts: a class told by one small place, and by the same thing there in every photograph.

Four things must hold, so that a class whose subject often stands left is not named:

    many    clusters of the class that share a place hold at least 8 maps, and a tenth of the class
    small   a square of a quarter of the side holds 18% of their relevance or more; an even map has 6% there
    away    it is not in the middle, and the maps of other classes have less than 40% of that there
    alike   the photographs look alike there, and not like those of other classes: a mark, a text, a frame
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataset.report.analysis.clusters import Cluster, pooled
from dataset.report.analysis.maps import pool

if TYPE_CHECKING:
    from PIL import Image

    from dataset.report.analysis.maps import Floats, Integers, Maps

SIDE = 0.28
"""Side of the square, in parts of the picture's."""
MANY, PART = 8, 0.1
SMALL, OTHERS = 0.18, 0.4
ALIKE, MORE = 0.65, 0.3
"""The correlation of photographs with the mean of the others there, and how much above that of other classes."""
LOOKED = 40
"""Photographs that are compared; all of the class where a shortcut is named."""
PATCH, SHIFT = 24, 1
"""Pixels of the side at which the place is compared, and of the shifts that are tried."""

Box = tuple[float, float, float, float]
Crop = Callable[[int], "Image.Image | None"]
"""What the network saw of the picture of a map, by the map's number."""


@dataclass(frozen=True, eq=False)
class Place:
    """A small place where the maps of clusters of one class have much relevance, unlike those of other classes."""

    name: str
    """The class."""
    clusters: tuple[int, ...]
    """Numbers of the clusters."""
    box: Box
    members: Integers
    """Maps of the class with the thing in that place; of the clusters, where photographs were not compared."""
    of: int
    """Maps of the class that were looked at."""
    relevance: float
    """Mean share of the members' relevance in the box."""
    elsewhere: float
    """The same for the maps of other classes."""
    alike: float | None = None
    others_alike: float | None = None
    """How alike the photographs are there; None where they could not be read."""

    @property
    def is_shortcut(self) -> bool:
        """Whether the evidence is strong enough to name it."""
        if self.alike is None or len(self.members) < MANY:
            return False
        return self.alike >= ALIKE and self.alike - (self.others_alike or 0) >= MORE


def words(box: Box) -> str:
    """Where a box lies, such as "lower left corner"."""
    left, top, right, bottom = box
    across, down = (left + right) / 2, (top + bottom) / 2
    x = "left" if across < 1 / 3 else "right" if across > 2 / 3 else ""
    y = "upper" if down < 1 / 3 else "lower" if down > 2 / 3 else ""
    if x and y:
        return f"{y} {x} corner"
    return f"{y or x} edge" if x or y else "middle"


def places(maps: Maps, found: list[Cluster], classes: list[str], crop: Crop | None = None) -> list[Place]:
    """Places that may be shortcuts, one a class at most; the photographs decide (`Place.is_shortcut`)."""
    grid = pooled(maps)
    usable = np.asarray(np.isfinite(grid).all((1, 2)))
    sums, boxes = _squares(np.where(usable[:, None, None], grid, 0))
    made = []
    for name in dict.fromkeys(cluster.name for cluster in found):
        mine = np.array([one == name for one in classes])
        own, other = np.flatnonzero(usable & mine), np.flatnonzero(usable & ~mine)
        numbered = [(number, cluster) for number, cluster in enumerate(found) if cluster.name == name]
        place = _place(sums, boxes, numbered, other) if len(other) else None
        if place is not None:
            inside = sums[:, boxes.index(place.box)]
            made.append(_compared(place, inside, own, other, crop))
    return made


def _squares(grid: Floats) -> tuple[Floats, list[Box]]:
    """The relevance `[n, squares]` in every square of about `SIDE` that is not in the middle, and their boxes."""
    rows, columns = grid.shape[1:]
    high, wide = (max(1, round(SIDE * side)) for side in (rows, columns))
    sums, boxes = [], []
    for y in range(rows - high + 1):
        for x in range(columns - wide + 1):
            box = (x / columns, y / rows, (x + wide) / columns, (y + high) / rows)
            if words(box) != "middle":
                sums.append(grid[:, y : y + high, x : x + wide].sum((1, 2)))
                boxes.append(box)
    return np.stack(sums, axis=1) if sums else np.zeros((len(grid), 0)), boxes


def _place(sums: Floats, boxes: list[Box], numbered: list[tuple[int, Cluster]], other: Integers) -> Place | None:
    """The place where clusters of the class differ most from other classes."""
    elsewhere = sums[other].mean(0)
    of = sum(len(cluster.members) for _, cluster in numbered)
    best: Place | None = None
    for at, box in enumerate(boxes):
        there = [(n, one) for n, one in numbered if _stands_out(float(sums[one.members, at].mean()), elsewhere[at])]
        members = np.concatenate([one.members for _, one in there]) if there else np.array([], dtype=np.int64)
        if len(members) < max(MANY, PART * of):
            continue
        relevance = float(sums[members, at].mean())
        place = Place(
            numbered[0][1].name, tuple(n for n, _ in there), box, members, of, relevance, float(elsewhere[at])
        )
        if best is None or _weight(place) > _weight(best):
            best = place
    return best


def _stands_out(relevance: float, elsewhere: float) -> bool:
    return relevance >= SMALL and elsewhere <= OTHERS * relevance


def _weight(place: Place) -> float:
    return len(place.members) * (place.relevance - place.elsewhere)


def _compared(place: Place, inside: Floats, own: Integers, other: Integers, crop: Crop | None) -> Place:
    """The place with how alike the photographs are there, and with the maps of the class that have the thing."""
    if crop is None:
        return place
    _, patches = _patches(_some(place.members), place.box, crop)
    _, others = _patches(_some(other), place.box, crop)
    if len(patches) < MANY or len(others) < MANY:
        return place
    alike, others_alike = _likeness(patches), _likeness(others)
    if not (alike >= ALIKE and alike - others_alike >= MORE):
        return _with(place, place.members, place.of, inside, alike, others_alike)
    thing = np.median(patches, axis=0)
    looked, every = _patches(own, place.box, crop)
    area = (place.box[2] - place.box[0]) * (place.box[3] - place.box[1])
    same = np.array([_best(one, thing) >= ALIKE for one in every]) & (inside[looked] >= area)
    return _with(place, looked[same], len(looked), inside, alike, others_alike)


def _with(place: Place, members: Integers, of: int, inside: Floats, alike: float, others_alike: float) -> Place:
    relevance = float(inside[members].mean()) if len(members) else 0.0
    return Place(place.name, place.clusters, place.box, members, of, relevance, place.elsewhere, alike, others_alike)


def _some(numbers: Integers) -> Integers:
    return numbers[np.unique(np.linspace(0, len(numbers) - 1, min(LOOKED, len(numbers))).round().astype(int))]


def _patches(numbers: Integers, box: Box, crop: Crop) -> tuple[Integers, Floats]:
    """Those photographs that can be read, and their place `[n, p, p]` in grey."""
    left, top, right, bottom = box
    read, patches = [], []
    for number in numbers:
        picture = crop(int(number))
        if picture is None:
            continue
        grey = np.asarray(picture.convert("L"), dtype=float)
        rows, columns = grey.shape
        down = slice(int(top * rows), max(int(top * rows) + 1, round(bottom * rows)))
        across = slice(int(left * columns), max(int(left * columns) + 1, round(right * columns)))
        patches.append(pool(grey[down, across], (PATCH, PATCH)))
        read.append(int(number))
    stacked = np.stack(patches) if patches else np.zeros((0, PATCH, PATCH))
    return np.array(read, dtype=np.int64), stacked


def _likeness(patches: Floats) -> float:
    """The median correlation of a patch with the mean of all others."""
    whole = patches.sum(0)
    return float(np.median([_best(one, (whole - one) / (len(patches) - 1)) for one in patches]))


def _best(patch: Floats, other: Floats) -> float:
    """The correlation of a patch's core with another, at the best of small shifts."""
    core = patch[SHIFT:-SHIFT, SHIFT:-SHIFT]
    shifts = range(2 * SHIFT + 1)
    rows, columns = core.shape
    return max(_correlation(core, other[y : y + rows, x : x + columns]) for y in shifts for x in shifts)


def _correlation(a: Floats, b: Floats) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size > 1e-9 else 0.0
