"""Maps: resizing, ranks, regions and similarity by hand, by identities and window by window."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from explainers import regions
from explainers.maps.resize import blur, rank_correlation, reduce_channels, resize, ssim
from tests.support.nets import random_images


def test_bilinear_keeps_cell_centers_in_place():
    """Oracle: by hand. Output pixel i lies at (i + 0.5) / 2 - 0.5 of the cells, so 0 and 4 give 0 1 3 4."""
    assert resize(torch.tensor([[[0.0, 4.0]]]), (1, 4))[0, 0].tolist() == [0, 1, 3, 4]
    column = resize(torch.tensor([[[-4.0], [0.0]]]), (4, 3))
    assert column.tolist() == [[[-4.0] * 3, [-3.0] * 3, [-1.0] * 3, [0.0] * 3]]


@pytest.mark.parametrize("mode", ["bilinear", "cubic", "nearest", "area"])
def test_every_mode_keeps_its_size_and_its_constant(mode):
    """All modes share their geometry, and widen half precision, which would show as steps."""
    maps = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(resize(maps, (4, 6), mode), maps) and resize(maps, (4, 6), mode) is not maps
    torch.testing.assert_close(resize(torch.full((1, 3, 5), 2.5), (7, 11), mode), torch.full((1, 7, 11), 2.5))
    torch.testing.assert_close(resize(maps.flip(2), (8, 12), mode), resize(maps, (8, 12), mode).flip(2))
    videos = maps[:, None].expand(2, 3, 4, 6)
    torch.testing.assert_close(resize(videos, (3, 8, 12), mode)[:, 1], resize(maps, (8, 12), mode))
    for given, wanted in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        assert resize(maps.to(given), (3, 3), mode).dtype == wanted


def test_nearest_gives_each_pixel_the_cell_that_covers_it():
    """By hand. Of five pixels over two cells, the center of the third lies on the border, all others inside."""
    actual = resize(torch.tensor([[[1.0, 2.0]]]), (1, 5), "nearest")[0, 0].tolist()
    assert (actual[:2], actual[3:]) == ([1, 1], [2, 2])
    three = resize(torch.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0]]]), (1, 3), "nearest")[0, 0].tolist()
    assert three == [1, 3, 5], "torch's own 'nearest' gives 1, 2, 4"
    assert resize(torch.arange(6.0)[None, None], (1, 4), "nearest")[0].tolist() == [[0, 2, 3, 5]]


def test_enlarged_map_passes_through_its_cells_smoothly():
    """By hand: an odd factor puts a pixel on each cell's center; straight lines stay straight."""
    map = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(resize(map, (12, 18), "cubic")[:, 1::3, 1::3], map)

    ramp = resize(torch.arange(6.0)[None, None], (1, 60), "cubic")[0, 0]
    torch.testing.assert_close(ramp[15:45], (torch.arange(15, 45) + 0.5) / 10 - 0.5)

    kinks = resize(torch.tensor([[[0.0, 0.0, 1.0, 2.0, 2.0]]]), (1, 500), "cubic")[0, 0].diff().diff().abs()
    assert kinks.max() < 0.001, "no corners: a slope of at most 0.03 a pixel changes bit by bit"


def test_enlarging_by_hand():
    """By hand: cell 1 has the slope (1 + 2) / 2, the outer ones none; between them the cubic with those slopes."""
    middle = resize(torch.tensor([[[0.0, 1.0, 3.0]]]), (1, 9), "cubic")[0, 0]

    assert middle[[1, 4, 7]].tolist() == [0, 1, 3]
    t, start, end = 1 / 3, 1.5, 0.0  # from cell 1 to cell 2, beyond which nothing rises
    expected = 1 + t * (start + t * (3 * 2 - 2 * start - end + t * (start + end - 2 * 2)))
    assert float(middle[5]) == pytest.approx(expected)
    step = resize(torch.tensor([[[0.0, 0.0, 0.4, 0.4, 0.0]]]), (1, 50), "cubic")
    assert step.min() == 0 and step.max() == torch.tensor(0.4), "plain bicubic interpolation overshoots by up to 12%"


def test_enlarge_averages_when_downsampling_and_propagates_nan():
    """By hand: one side grows while the other shrinks; a NaN covers all pixels up to the neighboring centers."""
    map = torch.tensor([[[1.0, 3.0, 5.0, 7.0]]])
    assert resize(map, (3, 2), "cubic")[0].tolist() == [[2, 6]] * 3
    assert resize(map.expand(1, 2, 4), (1, 2), "area").tolist() == [[[2, 6]]]

    row = resize(torch.tensor([[[1.0, torch.nan, 1.0, 1.0, 1.0]]]), (1, 50), "cubic")[0, 0]
    assert row.isnan().nonzero().flatten().tolist() == list(range(5, 25))
    assert (row[25:] == 1).all()


def test_blur_of_a_point_is_the_kernel_and_keeps_constant_maps():
    """By hand: weights exp(-d^2 / 2 sigma^2) up to three sigma, normalized; replicated borders keep a constant."""
    point = torch.zeros(1, 9, 9)
    point[0, 4, 4] = 1

    actual = blur(point, 0.7)[0]

    weights = torch.exp(-(torch.arange(-3.0, 4) ** 2) / (2 * 0.49))
    weights /= weights.sum()
    torch.testing.assert_close(actual[1:8, 1:8], weights[:, None] * weights)
    torch.testing.assert_close(blur(torch.full((1, 4, 5), 2.5), 2.0), torch.full((1, 4, 5), 2.5))


def test_reductions_by_hand():
    """Oracle: by hand. Channels 3 and -4: sum -1, largest magnitude 4, norm 5."""
    pixels = torch.tensor([3.0, -4.0]).view(1, 2, 1, 1)

    assert [reduce_channels(pixels, how).item() for how in ("sum", "abs_max", "norm")] == [-1, 4, 5]
    assert reduce_channels(pixels.expand(2, 2, 3, 5)).shape == (2, 3, 5)


def test_rank_correlation_of_constant_and_nan_maps_is_nan():
    """A constant map and one with NaN have no order; a finite number would hide that."""
    good = torch.arange(4.0).view(1, 2, 2)
    broken = torch.where(good == 0, torch.nan, good)

    assert rank_correlation(good, torch.ones_like(good)).isnan().all()
    assert rank_correlation(broken, good).isnan().all()


def test_rank_correlation_agrees_with_scipy():
    """Oracle: SciPy's spearmanr, on values with many ties; of pairs of maps."""
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(0, 6, (2, 5, 7), generator=generator).float() for _ in range(2))
    b[1] = -a[1].exp()

    expected = [stats.spearmanr(x, y).statistic for x, y in zip(a.flatten(1), b.flatten(1), strict=True)]
    torch.testing.assert_close(rank_correlation(a, b), torch.tensor(expected, dtype=torch.float64))


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


def ssim_by_windows(a: Tensor, b: Tensor) -> float:
    """Wang's index of two maps in [0, 1], of all windows of 11 x 11."""
    bell = torch.exp(-((torch.arange(11, dtype=torch.float64) - 5) ** 2) / (2 * 1.5**2))
    weights = (bell[:, None] * bell / bell.sum() ** 2).flatten()
    x, y = (m.unfold(0, 11, 1).unfold(1, 11, 1).flatten(2) for m in (a, b))
    mx, my = x @ weights, y @ weights
    dx, dy = x - mx[..., None], y - my[..., None]
    c1, c2 = 0.01**2, 0.03**2
    found = (2 * mx * my + c1) * (2 * (dx * dy @ weights) + c2)
    return float((found / ((mx**2 + my**2 + c1) * (dx**2 @ weights + dy**2 @ weights + c2))).mean())


def test_ssim_equals_wangs_index_window_by_window():
    a, b = random_images(2, 1, 14, 17, seed=1)[:, 0], random_images(2, 1, 14, 17, seed=2)[:, 0] + 0.5

    found = ssim(7 * a, 0.1 * b)

    pairs = zip(*((m / m.abs().amax((1, 2), keepdim=True) + 1) / 2 for m in (a, b)), strict=True)
    expected = [ssim_by_windows(x, y) for x, y in pairs]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)


def test_ssim_of_equal_small_blank_and_broken_maps():
    maps = random_images(3, 1, 7, 9)[:, 0]
    broken = maps.clone()
    broken[1, 2, 3] = torch.nan

    torch.testing.assert_close(ssim(maps, 3 * maps), torch.ones(3, dtype=torch.float64))
    assert (ssim(maps, -maps) < 0).all()
    assert (ssim(maps, torch.zeros_like(maps)).abs() < 0.1).all() and ssim(maps, maps.roll(1, 0)).max() < 0.5
    assert ssim(maps, broken).isnan().tolist() == [False, True, False]
