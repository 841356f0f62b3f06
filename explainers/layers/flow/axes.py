"""Meaning of the axes of a tensor: which of them run along the image's height and width, and in what order.

An axis is a product of factors, outermost first. A factor (kind, steps, stride) takes `steps` steps of `stride` along
the image's height "H" or width "W", along the time of a video or the depth of a volume "T", along the batch "N", or
along anything else "". A view that splits an axis of 56 rows into 8 windows of 7 results in (H, 8, 7) and (H, 7, 1).
Merged in that order they are the rows (H, 56, 1) again; in any other order they are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from explainers.layers.flow.positions import Positions, differ

SPATIAL = frozenset("THW")
"""The kinds of axes along which the entries have positions in the image."""


def kinds_of(count: int) -> str:
    """Return the kinds of the last `count` axes of images: "HW", or "THW" for videos and volumes."""
    return "THW"[-count:]


class Factor(NamedTuple):
    """`steps` of `stride` along `kind`; `positions` has the place in the image of each index along `kind`, if known."""

    kind: str
    steps: int
    stride: int = 1
    positions: Positions | None = None

    @property
    def whole(self) -> Positions | None:
        """The positions if the factor runs over each of their entries in order, else None."""
        known = self.positions
        return known if known is not None and self.stride == 1 and len(known.at) == self.steps else None

    @property
    def blocks(self) -> Positions | None:
        """The positions of the factor's entries, each of which covers `stride` neighbors; None if not known."""
        known, size = self.positions, self.stride
        if known is None or self.is_part or size == 1:
            return None if self.is_part else known
        at = tuple(sum(known.at[i * size : (i + 1) * size]) / size for i in range(self.steps))
        return known._replace(at=at, cell=known.cell * size, pads=(0, 0))

    @property
    def is_part(self) -> bool:
        """Whether the factor runs only over a part of the positions, such as those inside of a tile."""
        return self.positions is not None and self.steps * self.stride != len(self.positions.at)


class Axis(NamedTuple):
    """Factors, outermost first, with `before` and `after` extra entries at the ends that have no position.

    `padded` are the kinds along which zeros were added, for example to fill the last windows, so that not every step is
    a position of the image. `lost` names the operation after which the entries have no fixed position. `order` is a
    fixed permutation of the entries.
    """

    factors: tuple[Factor, ...] = ()
    before: int = 0
    after: int = 0
    padded: frozenset[str] = frozenset()
    lost: str = ""
    order: tuple[int, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds among "T", "H", "W" and "N" along which the axis runs."""
        return frozenset(factor.kind for factor in self.factors if factor.kind)

    @property
    def positions(self) -> Positions | None:
        """The positions of the entries if they are known: those inside of a position, such as copies, divide it."""
        known, inner = self.factors[0].blocks if self.factors else None, self.factors[1:]
        if known is None or any(factor.kind for factor in inner):
            return None
        if inner:
            known = known.spread(len(known.at) * math.prod(factor.steps for factor in inner))
        if self.order:
            return known.pick(self.order) if len(self.order) == len(known.at) else None
        return known

    @property
    def in_tiles(self) -> bool:
        """Whether neighboring entries are not neighbors in the image, such as those of different windows."""
        return self.positions is None and any(factor.positions is not None for factor in self.factors)

    def stride(self, kind: str) -> int:
        """Return the largest stride along `kind`; 0 if the axis does not run along it."""
        return max((factor.stride for factor in self.factors if factor.kind == kind), default=0)


OTHER = Axis()
"""An axis that is not spatial: channels, heads, hidden units."""
Axes = tuple[Axis, ...]


def full_axis(kind: str, count: int, positions: Positions | None = None) -> Axis:
    """Return an axis of `count` steps along `kind`."""
    return Axis((Factor(kind, count, 1, positions),))


def resize_axis(axis: Axis, count: int, move: Callable[[Positions], Positions] | None = None) -> Axis:
    """Return the axis after a window operation with `count` output steps; a product of two kinds becomes OTHER.

    `move` returns the new positions; by default they cover evenly what the old ones cover.
    """
    if len(axis.kinds) != 1:
        return Axis(lost=axis.lost)
    known = axis.positions
    moved = None if known is None else move(known) if move else known.spread(count)
    lost = axis.lost or "index" * (known is None and bool(axis.order)) or _TILES * axis.in_tiles
    return full_axis(next(iter(axis.kinds)), count, moved)._replace(lost=lost)


_TILES = "a division into tiles"


def lost_axis(axis: Axis, name: str) -> Axis:
    """Return the axis after an operation that leaves its entries without a fixed position."""
    return axis._replace(lost=axis.lost or name) if axis.kinds & SPATIAL or axis.lost else axis


def why_lost(axes: Sequence[Axis]) -> str:
    """Return the operation after which an axis has no fixed position, or an empty string."""
    for axis in axes:
        for factor in axis.factors:
            if factor.kind and factor.positions is not None and factor.positions.lost:
                return factor.positions.lost
        if axis.lost or axis.order:
            return axis.lost or "index"
    return ""


def permute_axis(axis: Axis, order: Sequence[int]) -> Axis:
    """Return the axis with its entries in another fixed order; an inverse permutation restores it."""
    known = axis.positions if axis.factors and axis.factors[0].whole else None
    if known is not None and not (axis.before or axis.after or axis.order):
        return axis._replace(factors=(Factor(axis.factors[0].kind, len(order), 1, known.pick(order)),))
    now = tuple(axis.order[i] for i in order) if axis.order else tuple(order)
    if now == tuple(range(len(now))):
        return axis._replace(order=())
    return axis._replace(order=now)


def are_apart(one: Axis, other: Axis) -> bool:
    """Return whether the entries of two axes of the same size lie at different positions of the image."""
    return len(one.factors) == len(other.factors) and any(
        a.kind == b.kind and differ(a.positions, b.positions) for a, b in zip(one.factors, other.factors, strict=True)
    )


def reshape_axes(axes: Axes, old: Sequence[int], new: Sequence[int]) -> Axes:
    """Return the axes after a view from the shape `old` to the shape `new`."""
    result = [OTHER] * len(new)
    sources = [i for i, size in enumerate(old) if size != 1]
    targets = [i for i, size in enumerate(new) if size != 1]
    while sources and targets:
        group, goals = [sources.pop(0)], [targets.pop(0)]
        have, need = old[group[0]], new[goals[0]]
        while have != need:
            if have < need and sources:
                group.append(sources.pop(0))
                have *= old[group[-1]]
            elif have > need and targets:
                goals.append(targets.pop(0))
                need *= new[goals[-1]]
            else:
                return tuple(result)
        if len(group) == len(goals) == 1:
            result[goals[0]] = axes[group[0]]
        elif lost := why_lost([axes[i] for i in group]):
            for i in goals:
                result[i] = Axis(lost=lost)
        elif not any(axes[i].before or axes[i].after for i in group):
            factors = [f for i in group for f in axes[i].factors or (Factor("", old[i], 0),)]
            padded = frozenset().union(*(axes[i].padded for i in group))
            for i, axis in zip(goals, _distribute(factors, [new[i] for i in goals]), strict=True):
                result[i] = axis._replace(padded=padded & axis.kinds)
    return tuple(result)


def _distribute(factors: list[Factor], sizes: Sequence[int]) -> list[Axis]:
    """Distribute the factors to axes of these sizes, in order, splitting a factor that spans two axes."""
    remaining, axes = list(factors), []
    for size in sizes:
        taken: list[Factor] = []
        while size > 1 and remaining:
            factor = remaining.pop(0)
            if size % factor.steps == 0:
                taken.append(factor)
                size //= factor.steps
            elif factor.steps % size == 0:
                inner = factor.steps // size
                taken.append(factor._replace(steps=size, stride=factor.stride * inner))
                remaining.insert(0, factor._replace(steps=inner))
                size = 1
            else:
                is_lost = any(factor.kind in SPATIAL for factor in factors)
                return [Axis(lost="a reshape across height and width") if is_lost else OTHER] * len(sizes)
        axes.append(_merge_factors(taken))
    return axes


def _merge_factors(factors: list[Factor]) -> Axis:
    """Return one axis, merging neighboring factors that continue each other."""
    joined: list[Factor] = []
    for factor in factors:
        last = joined[-1] if joined else None
        continues = last and last.kind == factor.kind and last.positions == factor.positions
        if last and continues and (not last.kind or last.stride == factor.stride * factor.steps):
            joined[-1] = factor._replace(steps=last.steps * factor.steps)
        else:
            joined.append(factor)
    return Axis(tuple(joined)) if any(factor.kind for factor in joined) else OTHER


def slice_axis(axis: Axis, size: int, start: int, count: int, step: int) -> Axis:
    """Return the axis of `count` entries of an axis of `size`, from `start`, every `step`-th."""
    if count == size and step == 1:
        return axis
    end = start + count
    if not axis.factors:
        return axis
    if step == 1 and start <= axis.before and end >= size - axis.after:
        return axis._replace(before=axis.before - start, after=axis.after - (size - end))
    if end <= axis.before or start >= size - axis.after:
        return OTHER
    if len(axis.factors) == 1 and not axis.before and not axis.after:
        factor = _slice_factor(axis.factors[0], range(start, start + count * step, step))
        return Axis((factor,), lost=axis.lost or "index" * bool(axis.order))
    return Axis(lost=axis.lost or "a slice across height and width") if axis.kinds & SPATIAL else OTHER


def _slice_factor(factor: Factor, entries: range) -> Factor:
    """Return the factor with only these entries."""
    known, stride = factor.positions, factor.stride
    if factor.whole is not None and known is not None:
        step, count = entries.step, len(entries)
        # Every second entry covers what all of them cover, as for a strided convolution.
        moved = known.pick(entries) if step == 1 else known.windows(count, 1, step, -entries.start, 1)
        return Factor(factor.kind, count, 1, moved)
    if known is not None and factor.steps * stride == len(known.at):  # whole blocks, such as windows
        kept = [i * stride + k for i in entries for k in range(stride)]
        return Factor(factor.kind, len(entries), stride, known.pick(kept))
    return Factor(factor.kind, len(entries), stride * entries.step)


def concatenate_axes(parts: Sequence[tuple[Axis, int]]) -> Axis:
    """Return the axis of concatenated tensors, such as class and register tokens before or after the patches."""
    if lost := why_lost([axis for axis, _ in parts]):
        return Axis(lost=lost)
    placed = [i for i, (axis, _) in enumerate(parts) if axis.kinds]
    if len(placed) == 1:
        i = placed[0]
        axis = parts[i][0]
        before, after = (sum(size for _, size in side) for side in (parts[:i], parts[i + 1 :]))
        return axis._replace(before=axis.before + before, after=axis.after + after)
    kinds = {kind for i in placed for kind in parts[i][0].kinds}
    if len(kinds) == 1 and len(placed) == len(parts):
        # Strips of one image, from rolls and pads written as concatenations.
        known = [axis.positions for axis, _ in parts]
        joined = None
        if None not in known:
            at = [place for each in known if each is not None for place in each.at]
            joined = max((each for each in known if each is not None), key=lambda each: len(each.at))
            joined = joined._replace(at=tuple(at)).pick(range(len(at)))
        lost = _TILES * any(axis.in_tiles for axis, _ in parts)
        return full_axis(kinds.pop(), sum(size for _, size in parts), joined)._replace(lost=lost)
    return OTHER
