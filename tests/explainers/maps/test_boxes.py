"""Regions of a map, by hand."""

from __future__ import annotations

import pytest
import torch

from explainers import BadOption, regions


def two_blobs() -> torch.Tensor:
    """6 x 8 cells: a bar of three cells of value 4, and an isolated cell of value 3 in the corner."""
    map = torch.zeros(6, 8)
    map[1, 2:5] = 4.0
    map[5, 7] = 3.0
    return map


def test_two_components_by_hand():
    found = regions(two_blobs(), (6, 8))

    assert [each.box for each in found] == [(2, 1, 5, 2), (7, 5, 8, 6)]
    assert [each.peak for each in found] == [4.0, 3.0]
    assert [each.share for each in found] == [pytest.approx(12 / 15), pytest.approx(3 / 15)]
    assert found[0].mask.sum() == 3 and found[0].mask[1, 2:5].all()
    assert len(regions(two_blobs(), (6, 8), threshold=0.75)) == 2
    assert len(regions(two_blobs(), (6, 8), threshold=0.76)) == 1
    assert len(regions(two_blobs(), (6, 8), least=2 / 48)) == 1, "small components are left out"
    assert len(regions(torch.eye(4), (4, 4))) == 4, "diagonal cells are separate"
    for nothing in (0.0, -1.0):
        assert regions(torch.full((3, 3), nothing), (9, 9)) == []


def test_boxes_are_in_image_pixels():
    """One cell of 3 x 4 in an image of 30 x 80: bilinear values exceed half the maximum within 10 x 20 pixels."""
    map = torch.zeros(3, 4)
    map[1, 1] = 1.0
    (found,) = regions(map, (30, 80), threshold=0.5)

    left, top, right, bottom = found.box
    assert 20 <= left < 30 < right <= 40 and 10 <= top < 15 < bottom <= 20


def test_wrong_use_is_refused():
    with pytest.raises(BadOption, match="threshold=0"):
        regions(torch.ones(2, 2), (2, 2), threshold=0)
    with pytest.raises(ValueError, match=r"map\[i\]"):
        regions(torch.ones(1, 2, 2), (2, 2))
    with pytest.raises(ValueError, match="finite"):
        regions(torch.full((2, 2), torch.nan), (2, 2))
