"""Small images of the channels of a layer."""

from __future__ import annotations

import torch

from saliscope.page.components.thumbnails import thumbnails


def test_thumbnails_scales_each_channel_by_its_own_range() -> None:
    """By hand: 0 … 3 and -6 … 6 on a 2x2 grid; no reduction, as the grid is smaller than the cell.

    Of 32x32, cells of 2x2 are means: the left half is 2 of which every second row is 4.
    """
    features = torch.tensor([[[0.0, 1.0], [2.0, 3.0]], [[-6.0, 6.0], [0.0, -6.0]]])
    large = torch.zeros(1, 32, 32)
    large[0, 1::2, :16] = 4

    planes, low, high = thumbnails(features)
    means, least, most = thumbnails(large)

    assert planes.dtype == torch.uint8 and planes.tolist() == [[[0, 85], [170, 255]], [[0, 255], [128, 0]]]
    assert low.tolist() == [0, -6] and high.tolist() == [3, 6] and low.dtype == high.dtype == torch.float32
    assert means.shape == (1, 16, 16) and (least.item(), most.item()) == (0, 2)
    assert means[0, :, :8].unique().tolist() == [255] and means[0, :, 8:].unique().tolist() == [0]


def test_thumbnails_keeps_proportions() -> None:
    for shape, cell, expected in (((3, 40, 20), 16, (16, 8)), ((2, 112, 112), 8, (8, 8)), ((1, 300, 1), 16, (16, 1))):
        planes, low, high = thumbnails(torch.rand(shape), cell)
        assert planes.shape == (shape[0], *expected) and low.shape == high.shape == (shape[0],)


def test_thumbnails_of_constant_and_nan_channels() -> None:
    """Constant: 0 with equal limits. Partly NaN: the rest keeps its range. All NaN: NaN limits."""
    features = torch.tensor([[[5.0, 5.0]], [[torch.nan, 2.0]], [[torch.nan, torch.inf]], [[0.0, 1e30]]])

    planes, low, high = thumbnails(features)

    assert planes.tolist() == [[[0, 0]], [[0, 0]], [[0, 0]], [[0, 255]]]
    assert low[:2].tolist() == high[:2].tolist() == [5, 2]
    assert low[2].isnan() and high[2].isnan()
