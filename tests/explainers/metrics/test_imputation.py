"""Linear imputation against the system written out pixel by pixel and solved by LU, in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from explainers.perturbation import imputation
from explainers.perturbation.imputation import impute


def by_hand(image: Tensor, removed: Tensor) -> Tensor:
    """One equation for each removed pixel of an image [C, H, W]: 1/6 for direct neighbors, 1/12 for diagonal ones."""
    place = {tuple(pixel): k for k, pixel in enumerate(removed.nonzero().tolist())}
    system = torch.zeros(len(place), len(place), dtype=torch.float64)
    right = torch.zeros(len(place), len(image), dtype=torch.float64)
    for (y, x), k in place.items():
        for dy, dx in itertools.product((-1, 0, 1), repeat=2):
            near = y + dy, x + dx
            if near == (y, x) or not (0 <= near[0] < removed.shape[0] and 0 <= near[1] < removed.shape[1]):
                continue
            weight = 1 / 12 if dy and dx else 1 / 6
            system[k, k] += weight
            if near in place:
                system[k, place[near]] -= weight
            else:
                right[k] += weight * image[:, near[0], near[1]]
    filled = image.clone()
    filled[:, removed] = torch.linalg.solve(system, right).T
    return filled


def masks(height: int, width: int) -> dict[str, Tensor]:
    """Holes of every kind: scattered, a block, at a border and a corner, nearly all, a checkerboard."""
    generator = torch.Generator().manual_seed(1)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    inner = (rows > 2) & (rows < height - 3) & (columns > 2) & (columns < width - 3)
    return {
        "scattered": torch.rand(height, width, generator=generator) < 0.5,
        "block": inner,
        "corner": (rows < height // 2) & (columns < width - 1),
        "all but one": (rows != height // 3) | (columns != 1),
        "checkerboard": (rows + columns) % 2 == 0,
        "none": torch.zeros(height, width, dtype=torch.bool),
    }


@pytest.mark.parametrize("size", [(16, 16), (13, 22), (3, 5)])
def test_it_solves_the_system_written_out_by_hand(size, monkeypatch):
    monkeypatch.setattr(imputation, "TOLERANCE", 1e-10)
    images = torch.randn(6, 2, *size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    removed = torch.stack(list(masks(*size).values()))
    found = impute(images, removed)
    expected = torch.stack([by_hand(image, mask) for image, mask in zip(images, removed, strict=True)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
    assert torch.equal(found[-1], images[-1]) and (found[:-1] != images[:-1]).any()


def test_the_tolerance_is_kept_and_the_batch_changes_nothing():
    """With the default tolerance, within a thousandth of the image's range, for a single image and in a batch."""
    images = torch.randn(6, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    images = torch.nn.functional.avg_pool2d(images, 5, 1, 2)
    removed = torch.stack(list(masks(64, 64).values()))
    found = impute(images, removed)
    ranges = images.amax((1, 2, 3)) - images.amin((1, 2, 3))
    expected = by_hand(images[0].double(), removed[0])
    assert float((found[0] - expected).abs().max()) < 1e-3 * float(ranges[0])
    for k in range(6):
        alone = impute(images[k : k + 1], removed[k : k + 1])[0]
        torch.testing.assert_close(found[k], alone, rtol=0, atol=1e-5 * float(ranges[k]))
