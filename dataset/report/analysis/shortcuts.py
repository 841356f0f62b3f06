"""Which clusters may be shortcuts: a class told by one small place, and by the same thing there in every photograph.

Four things must hold, so that a class whose subject often stands left is not named:

    many    clusters of the class that share a place hold at least 8 maps, and a tenth of the class
    small   a square of a quarter of the side holds 18% of their relevance or more; an even map has 6% there
    away    it is not in the middle, and the maps of other classes have less than 40% of that there
    alike   most photographs have the same colours at the same pixels there, which those of other classes have not: a
            mark, a text, a frame
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from PIL.Image import Resampling

from dataset.report.analysis.clusters import Cluster, pooled

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    from dataset.report.analysis.maps import Floats, Integers, Maps

SIDE = 0.28
"""Side of the square, in parts of the picture's."""
MANY, PART = 8, 0.1
SMALL, OTHERS = 0.18, 0.4
PATCH = 32
"""Pixels of the side at which the photographs' place is compared."""
NEAR = 24
"""Colours are the same where no channel, from 0 to 255, differs by more."""
AGREE, APART = 0.55, 0.4
"""A pixel belongs to the thing where this part of the photographs agree, and other classes' by so much less."""
THING = 0.03
"""The part of the place that the thing takes at least."""
SAME = 0.6
"""The part of the thing's pixels that a photograph with it has."""
HELD_OUT = 0.4
"""The part of one half of the photographs that has the thing of the other half: what chance made is not found again."""
SHARP = 0.9
"""The part of the thing's pixels that nearly all agree on; less has a subject that stands about there, not a mark."""
LOOKED = 40
"""Photographs that are compared; all of the class where a shortcut is named."""

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
    others_alike: float = 0.0
    """The part of other classes' photographs with the thing."""
    thing: Floats | None = None
    """What the photographs share there, `[p, p, 3]` from 0 to 255; None where they share nothing."""

    @property
    def is_shortcut(self) -> bool:
        """Whether the evidence is strong enough to name it."""
        return self.thing is not None and len(self.members) >= MANY and self.others_alike <= OTHERS


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
    """The place with the thing that the photographs share there, and with the maps of the class that have it."""
    if crop is None:
        return place
    _, patches = _patches(_some(place.members), place.box, crop)
    _, others = _patches(_some(other), place.box, crop)
    if len(patches) < MANY or len(others) < MANY:
        return place
    thing = _thing(patches, others)
    if thing is None or _found_again(patches, others) < HELD_OUT:
        return place
    looked, every = _patches(own, place.box, crop)
    area = (place.box[2] - place.box[0]) * (place.box[3] - place.box[1])
    there = inside[looked] >= area
    thing = _thing(every[thing.inside(every) & there], others)  # without those of the clusters that have it not
    if thing is None or thing.sharpness(every[has := thing.inside(every) & there]) < SHARP:
        return place
    members = looked[has]
    return replace(
        place,
        members=members,
        of=len(looked),
        relevance=float(inside[members].mean()),
        others_alike=float(thing.inside(others).mean()),
        thing=np.median(every[has], axis=0),
    )


@dataclass(frozen=True, eq=False)
class _Thing:
    """What photographs share in a place: `colours` `[p, p, 3]` at some `pixels` `[p, p]`."""

    colours: Floats
    pixels: NDArray[np.bool_]

    def inside(self, patches: Floats) -> NDArray[np.bool_]:
        """Which photographs have it, `[n]`."""
        return np.asarray(_near(patches, self.colours)[:, self.pixels].mean(1) >= SAME)

    def sharpness(self, patches: Floats) -> float:
        """The part of its pixels that nearly all of the photographs with it agree on."""
        return float((_near(patches, self.colours)[:, self.pixels].mean(0) >= 0.85).mean()) if len(patches) else 0.0


def _thing(patches: Floats, others: Floats) -> _Thing | None:
    """What most of these photographs have and others have not; None where that is too little."""
    if not len(patches):
        return None
    colours = np.median(patches, axis=0)
    agree, elsewhere = _near(patches, colours).mean(0), _near(others, colours).mean(0)
    pixels = (agree >= AGREE) & (agree - elsewhere >= APART)
    return _Thing(colours, pixels) if pixels.mean() >= THING else None


def _found_again(patches: Floats, others: Floats) -> float:
    """The part of each half of the photographs that has the thing of the other half."""
    halves = patches[::2], patches[1::2]
    found = [_thing(half, others) for half in halves]
    rates = [
        float(thing.inside(other).mean()) if thing else 0.0
        for thing, other in zip(found, reversed(halves), strict=True)
    ]
    return min(rates)


def _near(patches: Floats, thing: Floats) -> NDArray[np.bool_]:
    """Where photographs have the thing's colour, `[n, p, p]`."""
    return np.asarray(np.abs(patches - thing).max(-1) <= NEAR)


def _some(numbers: Integers) -> Integers:
    return numbers[np.unique(np.linspace(0, len(numbers) - 1, min(LOOKED, len(numbers))).round().astype(int))]


def _patches(numbers: Integers, box: Box, crop: Crop) -> tuple[Integers, Floats]:
    """Those photographs that can be read, and their place `[n, p, p, 3]`."""
    left, top, right, bottom = box
    read, patches = [], []
    for number in numbers:
        picture = crop(int(number))
        if picture is None:
            continue
        width, height = picture.size
        corners = (left * width, top * height, right * width, bottom * height)
        small = picture.convert("RGB").resize((PATCH, PATCH), Resampling.BOX, box=corners)
        patches.append(np.asarray(small, dtype=float))
        read.append(int(number))
    stacked = np.stack(patches) if patches else np.zeros((0, PATCH, PATCH, 3))
    return np.array(read, dtype=np.int64), stacked
