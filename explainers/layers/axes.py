"""What the axes of a tensor mean: which of them run down the picture, which across it, and in what order.

An axis is a product of factors, outermost first. A factor (kind, steps, stride) runs that many steps of `stride` along
the picture's "H" or "W", along the batch "N", or along anything else "". A view that cuts an axis of 56 rows into 8
windows of 7 gives (H, 8, 7) and (H, 7, 1); joined again in that order they are the rows (H, 56, 1), in any other
order they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Factor(NamedTuple):
    """`steps` of `stride` along `kind`."""

    kind: str
    steps: int
    stride: int = 1


class Axis(NamedTuple):
    """Factors, outermost first, with `before` and `after` entries at the ends that belong to no position.

    `padded` are the kinds along which zeros were added, as to fill the last windows: a step is none of the picture's.
    """

    factors: tuple[Factor, ...] = ()
    before: int = 0
    after: int = 0
    padded: frozenset[str] = frozenset()

    @property
    def kinds(self) -> frozenset[str]:
        """Which of "H", "W" and "N" the axis runs along."""
        return frozenset(factor.kind for factor in self.factors if factor.kind)

    def stride(self, kind: str) -> int:
        """The largest stride along `kind`; 0 where the axis does not run along it."""
        return max((factor.stride for factor in self.factors if factor.kind == kind), default=0)


OTHER = Axis()
"""An axis along nothing of the picture: channels, heads, hidden units."""
Axes = tuple[Axis, ...]


def whole(kind: str, count: int) -> Axis:
    """All `count` steps along `kind`."""
    return Axis((Factor(kind, count),))


def resized(axis: Axis, count: int) -> Axis:
    """The axis after a window operation that leaves `count` steps of it; a product of two kinds becomes "other"."""
    return whole(next(iter(axis.kinds)), count) if len(axis.kinds) == 1 else OTHER


def reshaped(axes: Axes, old: Sequence[int], new: Sequence[int]) -> Axes:
    """The axes after a view from the shape `old` to the shape `new`."""
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
        elif not any(axes[i].before or axes[i].after for i in group):
            factors = [f for i in group for f in axes[i].factors or (Factor("", old[i], 0),)]
            padded = frozenset().union(*(axes[i].padded for i in group))
            for i, axis in zip(goals, _distributed(factors, [new[i] for i in goals]), strict=True):
                result[i] = axis._replace(padded=padded & axis.kinds)
    return tuple(result)


def _distributed(factors: list[Factor], sizes: Sequence[int]) -> list[Axis]:
    """The factors dealt out to axes of these sizes, in order, cut where an axis ends inside of one."""
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
                taken.append(Factor(factor.kind, size, factor.stride * inner))
                remaining.insert(0, Factor(factor.kind, inner, factor.stride))
                size = 1
            else:
                return [OTHER] * len(sizes)
        axes.append(_joined(taken))
    return axes


def _joined(factors: list[Factor]) -> Axis:
    """One axis, with neighbours that continue each other joined."""
    joined: list[Factor] = []
    for factor in factors:
        last = joined[-1] if joined else None
        if last and last.kind == factor.kind and (not last.kind or last.stride == factor.stride * factor.steps):
            joined[-1] = Factor(last.kind, last.steps * factor.steps, factor.stride)
        else:
            joined.append(factor)
    return Axis(tuple(joined)) if any(factor.kind for factor in joined) else OTHER


def sliced(axis: Axis, size: int, start: int, count: int, step: int) -> Axis:
    """`count` entries of an axis of `size`, from `start`, each `step`-th."""
    if count == size and step == 1:
        return axis
    end = start + count
    if not axis.factors:
        return axis
    if step == 1 and start <= axis.before and end >= size - axis.after:
        return Axis(axis.factors, axis.before - start, axis.after - (size - end))
    if end <= axis.before or start >= size - axis.after or axis.before or axis.after:
        return OTHER
    if len(axis.factors) == 1:
        (factor,) = axis.factors
        return Axis((Factor(factor.kind, count, factor.stride * step),)) if factor.kind else OTHER
    return OTHER


def concatenated(parts: Sequence[tuple[Axis, int]]) -> Axis:
    """The axis of tensors put one behind the other: class and register tokens stand before or after the patches."""
    placed = [i for i, (axis, _) in enumerate(parts) if axis.kinds]
    if len(placed) == 1:
        i = placed[0]
        axis = parts[i][0]
        before, after = (sum(size for _, size in side) for side in (parts[:i], parts[i + 1 :]))
        return Axis(axis.factors, axis.before + before, axis.after + after)
    kinds = {kind for i in placed for kind in parts[i][0].kinds}
    if len(kinds) == 1 and len(placed) == len(parts):
        return whole(
            kinds.pop(), sum(size for _, size in parts)
        )  # strips of one picture, as rolls and pads are written
    return OTHER
