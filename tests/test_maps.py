"""Maps: oracles are hand computations, identities of interpolation, and ranks counted by hand."""

from __future__ import annotations

import pytest
import torch

from explainers.maps import rank_correlation, reduce_channels, resize


def test_bilinear_keeps_cell_centres_in_place():
    """Oracle: by hand. Output pixel i stands at (i + 0.5) / 2 - 0.5 of the cells, so 0 and 4 give 0 1 3 4."""
    row = torch.tensor([[[0.0, 4.0]]])

    actual = resize(row, (1, 4))

    assert actual[0, 0].tolist() == [0, 1, 3, 4]


def test_bilinear_keeps_axes_and_negative_values_apart():
    """Oracle: by hand. Values grow along the height alone, and below zero, so nothing may be clipped or turned."""
    column = torch.tensor([[[-4.0], [0.0]]])

    actual = resize(column, (4, 3))

    assert actual.shape == (1, 4, 3)
    assert actual[0].tolist() == [[-4.0] * 3, [-3.0] * 3, [-1.0] * 3, [0.0] * 3]


def test_nearest_gives_each_pixel_the_cell_that_covers_it():
    """Oracle: by hand. Five pixels over two cells: the centre of the third lies on the border, all others inside."""
    actual = resize(torch.tensor([[[1.0, 2.0]]]), (1, 5), "nearest")[0, 0].tolist()

    assert (actual[:2], actual[3:]) == ([1, 1], [2, 2])
    three = resize(torch.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0]]]), (1, 3), "nearest")[0, 0].tolist()
    assert three == [1, 3, 5], "torch's own 'nearest' gives 1, 2, 4"


def test_area_keeps_the_mean():
    """Identity: an average of equal areas keeps the mean of the whole."""
    maps = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    actual = resize(maps, (2, 3), "area")

    torch.testing.assert_close(actual.mean((1, 2)), maps.mean((1, 2)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(torch.float64, torch.float64), (torch.bfloat16, torch.float32), (torch.float16, torch.float32)],
)
def test_resize_widens_half_precision(given, wanted):
    """Half precision would show as steps; double precision must not be lost."""
    assert resize(torch.ones(1, 2, 2, dtype=given), (3, 3)).dtype == wanted


@pytest.mark.parametrize(
    ("maps", "size", "mode", "word"),
    [
        (torch.ones(2, 2), (4, 4), "bilinear", r"m\[None\]"),
        (torch.ones(1, 2, 2), (0, 4), "bilinear", "no pixels"),
        (torch.ones(1, 2, 2), (4, 4), "bicubic", "bilinear, nearest, area"),
    ],
)
def test_resize_refuses_with_the_remedy(maps, size, mode, word):
    with pytest.raises(ValueError, match=word):
        resize(maps, size, mode)


def test_reductions_by_hand():
    """Oracle: by hand. Channels 3 and -4: sum -1, largest magnitude 4, length 5."""
    pixels = torch.tensor([3.0, -4.0]).view(1, 2, 1, 1)

    assert reduce_channels(pixels, "sum").item() == -1
    assert reduce_channels(pixels, "abs_max").item() == 4
    assert reduce_channels(pixels, "norm").item() == 5
    assert reduce_channels(pixels.expand(2, 2, 3, 5)).shape == (2, 3, 5)
    with pytest.raises(ValueError, match="sum, abs_max, norm"):
        reduce_channels(pixels, "mean")
    with pytest.raises(ValueError, match="N, C, H, W"):
        reduce_channels(pixels[0])


def test_rank_correlation_with_ties_by_hand():
    """Oracle: by hand. Ranks 1.5 1.5 3 4 against 1 2 3 4: covariance 4.5, lengths sqrt(4.5) and sqrt(5)."""
    a = torch.tensor([[[1.0, 1.0], [2.0, 9.0]]])
    b = torch.tensor([[[10.0, 20.0], [30.0, 40.0]]])

    actual = rank_correlation(a, b)

    torch.testing.assert_close(actual, torch.tensor([4.5 / (4.5 * 5) ** 0.5], dtype=torch.float64))


def test_rank_correlation_sees_order_alone():
    """Identity: any rising function keeps it at 1, a falling one turns it to -1; each map is its own pair."""
    maps = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    other = torch.stack([maps[0].exp(), -(maps[1] ** 3), maps[2] * 1e-6 + 5e-6])

    actual = rank_correlation(maps, other)

    torch.testing.assert_close(actual, torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64))


def test_rank_correlation_of_what_has_no_order_is_nan():
    """A constant map and a broken one have no order; a clean number would hide that."""
    good = torch.arange(4.0).view(1, 2, 2)
    broken = good.clone()
    broken[0, 0, 0] = torch.nan

    assert rank_correlation(good, torch.ones_like(good)).isnan().all()
    assert rank_correlation(broken, good).isnan().all()
    with pytest.raises(ValueError, match="one shape"):
        rank_correlation(good, torch.ones(1, 3, 3))


def test_rank_correlation_agrees_with_scipy():
    """Peer: scipy's spearmanr, on values with many ties."""
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(0, 6, (2, 5, 7), generator=generator).float() for _ in range(2))

    actual = rank_correlation(a, b)

    pairs = zip(a.flatten(1).tolist(), b.flatten(1).tolist(), strict=True)
    expected = [stats.spearmanr(x, y).statistic for x, y in pairs]
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))
