"""XRAI: completeness, and the merging of regions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import BadOption, integrated_gradients, xrai
from explainers.perturbation.segments import superpixels
from tests.support.nets import curved, random_images, settle
from tests.support.oracles.gradients import merge_by_hand

CLASSES = [2, 0, 5]


def image_extremes(x):
    return x.amin((2, 3), keepdim=True).expand_as(x), x.amax((2, 3), keepdim=True).expand_as(x)


def mean_attribution(net, x):
    return sum(integrated_gradients(net, x, CLASSES, steps=25, baseline=end) for end in image_extremes(x)) / 2


def test_each_image_may_have_its_own_segments():
    net, x = curved(), random_images()
    labels = torch.stack([torch.arange(12)[:, None] // size * 100 + torch.arange(16) // size for size in (2, 3, 5)])
    together = xrai(net, x, CLASSES, segments=labels)
    for n in range(3):
        alone = xrai(net, x[n : n + 1], CLASSES[n], segments=labels[n])
        torch.testing.assert_close(together[n : n + 1], alone, rtol=1e-9, atol=1e-13)


def test_overlapping_regions_merge_as_in_a_slow_implementation():
    """Without dilation, the regions of 12 x 16 pixels are superpixels of two scales."""
    net, x = curved(), random_images()
    labels = [superpixels(x, count) for count in (8, 4)]
    attribution = mean_attribution(net, x).amax(1)
    for least in (1, 3, 20, 150):
        found = xrai(net, x, CLASSES, least=least, dilation=0)
        for n in range(3):
            regions = [each[n] == label for each in labels for label in each[n].unique()]
            expected = merge_by_hand(attribution[n], regions, least)
            torch.testing.assert_close(found[n], expected, rtol=1e-6, atol=1e-9)


def test_the_minimum_size_grows_with_the_image_and_does_not_apply_to_given_segments():
    net, x = curved(), nn.functional.interpolate(random_images(1), (40, 52), mode="bilinear")
    same = {"batch_size": 8}  # a busy machine divides batches, and rounding, otherwise
    own, two, one = (xrai(net, x, 1, least=least, **same) for least in (None, 2, 1))
    assert torch.equal(own, two) and not torch.equal(own, one), "2,080 pixels"
    single = torch.arange(40 * 52).view(40, 52)
    given, one, two = (xrai(net, x, 1, segments=single, least=least, **same) for least in (None, 1, 2))
    assert torch.equal(given, one) and not torch.equal(given, two)


def test_regions_cover_images_of_every_size():
    """Every pixel is in a region, so the map has the whole sum."""
    net = settle(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 6)).double())
    for size in ((1, 1), (3, 5), (12, 16), (60, 125)):
        x = nn.functional.interpolate(random_images(1, 3, 6, 8), size, mode="bilinear")
        black, white = image_extremes(x)
        expected = (net(x) - (net(black) + net(white)) / 2)[:, 2].detach()
        found = xrai(net, x, 2, channels="sum")
        assert found.shape[1:] == size
        torch.testing.assert_close(found.sum((1, 2)), expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize(
    "segments", [torch.zeros(4, 4, dtype=torch.long), torch.zeros(12, 16), torch.zeros(2, 12, 16, dtype=torch.long)]
)
def test_segments_of_another_shape_or_kind_are_refused(segments):
    with pytest.raises(BadOption, match="segments"):
        xrai(curved(), random_images(), 1, segments=segments)
