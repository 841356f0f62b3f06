"""Sparseness, complexity, pointing game, relevance mass and rank: by hand, by slow implementations, at limits."""

from __future__ import annotations

import math

import pytest
import torch

from explainers import evaluate
from tests.support.nets import curved, random_images

REGIONAL = ("pointing_game", "relevance_mass", "relevance_rank")
BOX = torch.tensor([[10, 5, 16, 9]])
"""Columns 10 to 15, rows 5 to 8: 24 pixels."""
UPPER = torch.tensor([[[True, True, True], [False, False, False]]])


def measure(metric, heat, region=None, **options):
    """The metric of maps [n, h, w] on images of their size, or of 24 x 40."""
    heat = torch.as_tensor(heat, dtype=torch.float64)
    maps = heat if heat.ndim == 3 else heat[None]
    x = random_images(len(maps), height=24, width=40)
    x = x if maps.shape[1:] == (24, 40) else random_images(len(maps), height=maps.shape[1], width=maps.shape[2])
    found = evaluate(
        curved(), x, maps, target=0, metrics=metric, region=region, controls=False, options={metric: options}
    )
    return found.values[metric], found.reasons[metric]


def random_maps(count=3, seed=0):
    """Signed maps of 24 x 40."""
    return torch.randn(count, 24, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Without a region


@pytest.mark.parametrize("factor", [1, -1e-9])
def test_sparseness_is_the_mean_difference_of_all_pairs(factor):
    """Oracle: the Gini index is Σ_ij |a_i - a_j| / (2 n Σ a), of magnitudes: neither scale nor sign matters."""
    maps = random_maps()
    a = maps.flatten(1).abs()
    pairs = (a[:, :, None] - a[:, None]).abs().sum((1, 2))
    expected = pairs / (2 * a.shape[1] * a.sum(1))
    torch.testing.assert_close(measure("sparseness", factor * maps)[0], expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("factor", [1, -1e-9])
def test_complexity_by_a_loop(factor):
    maps = random_maps()
    found = measure("complexity", factor * maps)[0].tolist()
    for value, heat in zip(found, maps.flatten(1).abs().tolist(), strict=True):
        shares = [each / sum(heat) for each in heat]
        assert value == pytest.approx(-sum(share * math.log(share) for share in shares), rel=1e-10)


def test_m13_limits_of_sparseness_and_complexity():
    one, even = torch.zeros(24, 40), -2 * torch.ones(24, 40)
    one[3, 4] = -5
    maps = torch.stack([one, even, torch.zeros(24, 40)])
    for metric, limits in (("sparseness", [1 - 1 / 960, 0]), ("complexity", [0, math.log(960)])):
        values, reasons = measure(metric, maps)
        assert values[:2].tolist() == pytest.approx(limits, abs=1e-12) and bool(values[2].isnan())
        assert reasons == ["", "", "the map is zero everywhere"]
    assert math.exp(measure("complexity", (torch.arange(960) < 96).view(24, 40).float())[0]) == pytest.approx(96)


# Pointing game


@pytest.mark.parametrize(
    ("row", "column", "tolerance", "hit"),
    [
        (8, 15, 0, 1),  # the last pixel inside
        (11, 19, 4.9, 0),  # three down, four right
        (11, 19, 5, 1),
        (2, 6, 4.9, 0),  # three up, four left
        (2, 6, 5, 1),
        (6, 30, None, 1),  # 15 pixels by default
        (6, 31, None, 0),
    ],
)
def test_a_hit_is_inside_or_within_the_tolerance(row, column, tolerance, hit):
    heat = -random_maps(1)[0].abs() - 1
    heat[row, column] = -0.5
    options = {} if tolerance is None else {"tolerance": tolerance}
    assert measure("pointing_game", heat, BOX, **options)[0].item() == hit
    small, reasons = measure("pointing_game", torch.rand(8, 8), torch.tensor([[2, 2, 4, 4]]))
    assert bool(small.isnan()) and "15 pixels" in reasons[0]


def test_m06_tied_maxima_count_as_one_picked_at_random():
    """Quantus 0.6 calls it a hit where any of them is inside."""
    heat = torch.zeros(24, 40)
    heat[6, 12] = heat[0, 0] = heat[23, 0] = 1
    assert measure("pointing_game", heat, BOX, tolerance=0)[0].item() == pytest.approx(1 / 3)
    assert measure("pointing_game", torch.ones(24, 40), BOX, tolerance=0)[0].item() == pytest.approx(24 / 960)


# Relevance mass and rank


def test_m07_relevance_mass_and_rank_by_hand():
    """Quantus divides signed sums: 2 inside, 1 and -2.9 outside make 20."""
    peak = torch.zeros(24, 40)
    peak[6, 12], peak[0, 0], peak[20, 30] = 2, 1, -2.9
    assert measure("relevance_mass", peak, BOX)[0].item() == pytest.approx(2 / 3)
    heat = torch.tensor([[3.0, 1.0, -7.0], [2.0, -1.0, 4.0]])
    assert measure("relevance_mass", heat, UPPER)[0].item() == pytest.approx(4 / 10)
    assert measure("relevance_mass", -heat, UPPER)[0].item() == pytest.approx(7 / 8)
    values, reasons = measure("relevance_mass", -heat.abs(), UPPER)
    assert bool(values.isnan()) and reasons == ["the map has no positive values"]
    assert measure("relevance_rank", heat, UPPER)[0].item() == pytest.approx(1 / 3), "of 4, 3, 2 the 3 is inside"
    assert measure("relevance_rank", -heat, UPPER)[0].item() == pytest.approx(2 / 3), "of 7, 1, -1 the 7 and the -1"


def test_m08_ties_at_the_last_rank_count_by_their_share():
    """Three ranks: 5 takes one, and four pixels of 2 share the other two; one of them is inside with the 5.

    Quantus assigns the ranks in memory order.
    """
    heat = torch.tensor([[5.0, 2.0, 0.0], [2.0, 2.0, 2.0]])
    assert measure("relevance_rank", heat, UPPER)[0].item() == pytest.approx((1 + 2 / 4) / 3)
    assert measure("relevance_rank", torch.ones(2, 3), UPPER)[0].item() == pytest.approx(3 / 6)


# All


def test_boxes_and_masks_are_the_same_region():
    maps, boxes = random_maps(), torch.tensor([[10, 5, 16, 9], [0, 0, 40, 3], [30, 20, 40, 24]])
    masks = torch.zeros(3, 24, 40, dtype=torch.bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes.tolist(), strict=True):
        mask[top:bottom, left:right] = True
    for metric in REGIONAL:
        torch.testing.assert_close(measure(metric, maps, boxes)[0], measure(metric, maps, masks)[0])
