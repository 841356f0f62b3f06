"""Positions: where the entries of one axis lie in the image, in input pixels, as operations crop, pad, flip and resize.

A network usually covers its input evenly, but it may crop, pad, flip or shift it first. Rules for window operations
follow the usual convention: a convolution whose padding is at most half a cell off covers what its input covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Positions(NamedTuple):
    """Centers `at` of the entries of an axis in input pixels, `cell` their distance (negative if the axis is flipped).

    `pads` are the numbers of entries that padding added at both ends since the last window operation. `lost` names the
    operation after which entries have no fixed position, such as "sort". `before` holds the positions before a Fourier
    transform, which its inverse restores. `moved` is True after a crop, padding, a flip or a shift. `side` is the size
    of the image along the axis.
    """

    at: tuple[float, ...]
    cell: float
    side: float
    pads: tuple[int, int] = (0, 0)
    lost: str = ""
    before: Positions | None = None
    moved: bool = False

    @property
    def is_even(self) -> bool:
        """Whether the entries cover the image evenly and in order.

        A quarter of a cell is within the convention above; half a cell is if it is at most 2% of the size. Windows
        without padding, which do not move the image, may be 2 pixels off.
        """
        cell = self.side / len(self.at)
        limit = max(cell / 4, min(cell / 2, self.side / 50), 0 if self.moved else 2) + 1e-3
        return all(abs(at - (i + 0.5) * cell) <= limit for i, at in enumerate(self.at))

    def pick(self, indices: Sequence[int]) -> Positions:
        """Return the positions of these entries."""
        at = tuple(self.at[i] for i in indices)
        steps = sorted(b - a for a, b in pairwise(at))
        return self._replace(at=at, cell=steps[len(steps) // 2] if steps else self.cell, pads=(0, 0), moved=True)

    def pad(self, left: int, right: int) -> Positions:
        """Return the positions after padding; negative numbers crop."""
        count = len(self.at)
        if left <= 0 and right <= 0:
            return self.pick(range(-left, count + right))
        at = tuple(self.between(i) for i in range(-left, count + right))
        pads = max(self.pads[0] + left, 0), max(self.pads[1] + right, 0)
        return self._replace(at=at, pads=pads, moved=True)

    def windows(self, count: int, kernel: int, stride: int, padding: int, dilation: int) -> Positions:
        """Return the positions of `count` windows of a convolution or pooling.

        The windows cover what the axis covers without its padding, or with it, if they cover this to half a window's
        step at both ends. Otherwise each window lies at its center.
        """
        if kernel > 1 and self._is_shuffled():
            return self.spread(count)._replace(lost="a permutation of rows or columns")
        size, (left, right) = len(self.at), self.pads
        center = dilation * (kernel - 1) / 2 - padding
        first, last = center - stride / 2 + 0.5, center + stride * (count - 1) + stride / 2 + 0.5
        frames = [(left, size - right), (0, size), (-padding, size + padding)]
        off, (low, high) = min(
            ((max(abs(first - low), abs(last - high)), (low, high)) for low, high in frames), key=lambda each: each[0]
        )
        if off <= stride / 2:
            return self.spread(count, low, high)
        return self._replace(
            at=tuple(self.between(stride * i + center) for i in range(count)), cell=self.cell * stride, pads=(0, 0)
        )

    def _is_shuffled(self) -> bool:
        """Return whether many neighbors are far from each other, so that windows join unrelated entries."""
        steps = [abs(b - a) for a, b in pairwise(self.at)]
        seams = sum(step > 1.5 * max(abs(self.cell), sorted(steps)[len(steps) // 4]) for step in steps)
        return seams > max(2, len(steps) / 4)

    def transposed(self, count: int, kernel: int, stride: int, padding: int, dilation: int) -> Positions:
        """Return the positions of the outputs of a transposed convolution."""
        center = dilation * (kernel - 1) / 2 - padding
        ends = [(i - center) / stride + 0.5 for i in (-0.5, count - 0.5)]
        if max(abs(ends[0]), abs(ends[1] - len(self.at))) <= 0.5:
            return self.spread(count, 0, len(self.at))
        at = tuple(self.between((i - center) / stride) for i in range(count))
        return self._replace(at=at, cell=self.cell / stride, pads=(0, 0))

    def spread(self, count: int, low: float = 0, high: float | None = None) -> Positions:
        """Return `count` positions that cover the entries from `low` to `high` (edges, all by default) evenly."""
        high = len(self.at) if high is None else high
        step = (high - low) / count
        if step == 1 and low == 0 and high == len(self.at):
            return self._replace(pads=(0, 0)) if self.pads != (0, 0) else self
        at = tuple(self.between(low + (i + 0.5) * step - 0.5) for i in range(count))
        return self._replace(at=at, cell=self.cell * step, pads=(0, 0))

    def between(self, index: float) -> float:
        """Return the position at a fractional index; outside the axis, continue by its distance."""
        last = len(self.at) - 1
        if index <= 0 or last == 0:
            return self.at[0] + index * self.cell
        if index >= last:
            return self.at[last] + (index - last) * self.cell
        left = int(index)
        a, b = self.at[left], self.at[left + 1] if index > left else self.at[left]
        if abs(b - a) > 1.5 * abs(self.cell):
            return a if index - left < 0.5 else b  # the seam of a shift
        return a + (index - left) * (b - a)

    def transformed(self, name: str, count: int) -> Positions:
        """Return the positions after a Fourier transform with `count` frequencies."""
        return self.spread(count) if self.lost else self.spread(count)._replace(lost=name, before=self)

    def restored(self, count: int) -> Positions:
        """Return the positions after the inverse of a Fourier transform."""
        before = self.before
        return before if before is not None and len(before.at) == count else self.spread(count)


def even(count: int, size: float | None = None) -> Positions:
    """Return `count` positions that cover `size` pixels evenly."""
    side = count if size is None else size
    cell = side / count
    return Positions(tuple((i + 0.5) * cell for i in range(count)), cell, side)


def differ(one: Positions | None, other: Positions | None) -> bool:
    """Return whether most entries of two axes of the same length are more than a cell and a half apart."""
    if one is None or other is None or one is other or one.lost or other.lost or len(one.at) != len(other.at):
        return False
    gaps = sorted(abs(a - b) for a, b in zip(one.at, other.at, strict=True))
    return gaps[len(gaps) // 2] > 1.5 * max(abs(one.cell), abs(other.cell))
