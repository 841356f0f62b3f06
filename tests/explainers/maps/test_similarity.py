"""The structural similarity of two maps, window by window."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from explainers.maps.similarity import ssim
from tests.support.nets import random_images


def ssim_by_loop(a: Tensor, b: Tensor) -> float:
    """Wang's index of two maps in [0, 1], window by window."""
    size = 11
    weights = torch.tensor(
        [[math.exp(-((i - 5) ** 2 + (j - 5) ** 2) / (2 * 1.5**2)) for j in range(size)] for i in range(size)],
        dtype=torch.float64,
    )
    weights /= weights.sum()
    c1, c2 = 0.01**2, 0.03**2
    values = []
    for row in range(a.shape[0] - size + 1):
        for column in range(a.shape[1] - size + 1):
            x, y = (m[row : row + size, column : column + size] for m in (a, b))
            mx, my = float((weights * x).sum()), float((weights * y).sum())
            vx, vy = float((weights * (x - mx) ** 2).sum()), float((weights * (y - my) ** 2).sum())
            xy = float((weights * (x - mx) * (y - my)).sum())
            values.append((2 * mx * my + c1) * (2 * xy + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))
    return sum(values) / len(values)


def test_ssim_equals_wangs_index_window_by_window():
    a, b = random_images(2, 1, 14, 17, seed=1)[:, 0], random_images(2, 1, 14, 17, seed=2)[:, 0] + 0.5

    found = ssim(7 * a, 0.1 * b)

    pairs = zip(*((m / m.abs().amax((1, 2), keepdim=True) + 1) / 2 for m in (a, b)), strict=True)
    expected = [ssim_by_loop(x, y) for x, y in pairs]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)


def test_ssim_of_equal_small_blank_and_broken_maps():
    maps = random_images(3, 1, 7, 9)[:, 0]
    broken = maps.clone()
    broken[1, 2, 3] = torch.nan

    torch.testing.assert_close(ssim(maps, 3 * maps), torch.ones(3, dtype=torch.float64))
    assert (ssim(maps, -maps) < 0).all()
    assert (ssim(maps, torch.zeros_like(maps)).abs() < 0.1).all() and ssim(maps, maps.roll(1, 0)).max() < 0.5
    assert ssim(maps, broken).isnan().tolist() == [False, True, False]
    with pytest.raises(ValueError, match="same shape"):
        ssim(maps, maps[:, :5])
