"""smooth: hand loops, maps warped back, wrong use."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from explainers import METHODS, BadOption, integrated_gradients, saliency
from explainers.explanation.smoothing import Augment, smooth
from explainers.perturbation.rng import PerImageGenerators
from tests.support.nets import curved, plain, random_images, rel, residual

CLASSES = [2, 0, 5]


def assert_mean_and_deviation(found, maps):
    maps = torch.stack(list(maps))
    torch.testing.assert_close(found.mean, maps.mean(0), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(found.std, maps.std(0), rtol=1e-8, atol=1e-12)
    assert found.samples == len(maps) and found.std.max() > 0


@pytest.mark.parametrize(
    ("name", "options"), [("grad_cam", {"layer": "conv2"}), ("saliency", {}), ("channel_effects", {"layer": "act2"})]
)
def test_noise_by_a_hand_loop(name, options):
    net, x, generator = curved(), random_images(), PerImageGenerators(1, 3)
    spans = x.amax((1, 2, 3), keepdim=True) - x.amin((1, 2, 3), keepdim=True)
    draws = [generator.normal_noise(0, 1, *x.shape[1:])[0].double() for _ in range(5)]
    found = smooth(name, sigma=0.2, samples=5, seed=3)(net, x, CLASSES, **options)
    assert_mean_and_deviation(found, (METHODS[name](net, x + 0.2 * spans * d, CLASSES, **options) for d in draws))


def test_flips_and_baselines_by_a_hand_loop():
    net, x = residual(), random_images()
    found = smooth("saliency", augment=Augment(zoom=0, turn=0, shift=0), samples=2)(net, x, 1)
    assert_mean_and_deviation(found, (saliency(net, x, 1), saliency(net, x.flip(-1), 1).flip(-1)))
    several = ("zeros", 0.5, "blur")
    found = smooth("integrated_gradients", baselines=several)(net, x, CLASSES, steps=6)
    assert_mean_and_deviation(found, (integrated_gradients(net, x, CLASSES, steps=6, baseline=b) for b in several))


def test_classes_are_those_of_the_clean_images():
    net, x = curved(), random_images(6)
    net.head.bias.data.zero_()
    classes = net(x).argmax(1).tolist()
    assert len(set(classes)) > 1
    for varied in ({"sigma": 1.0}, {"augment": Augment(turn=90)}):
        f = smooth("saliency", samples=6, **varied)
        assert torch.equal(f(net, x).mean, f(net, x, classes).mean)


# Maps warped back

Y, Z = torch.arange(48).double()[:, None], torch.arange(96).double()
SMOOTH_IMAGE = (torch.sin(2 * math.pi * (Y / 31 + Z / 23)) + torch.cos(2 * math.pi * (Y / 41 - Z / 37))).expand(
    1, 3, 48, 96
)
"""An image without details finer than 20 pixels, not square."""


def warped(method, x, augment, samples=8):
    """The images that a method gets, and the result for a "method" that is a function of the images only."""
    seen = []

    def watch(model, images, target=None):
        seen.append(images)
        return method(images)

    return seen, smooth(watch, augment=augment, samples=samples)(plain(), x.clone(), 1)


@pytest.mark.parametrize(
    "options", [{"zoom": 0.3}, {"turn": 30}, {"shift": 0.2}, {"zoom": 0.2, "turn": 20, "shift": 0.1}]
)
def test_maps_are_warped_back_to_the_image(options):
    """A map that is the image must be the original one again."""
    x, inner = SMOOTH_IMAGE, (slice(None), slice(14, -14), slice(24, -24))
    augment = Augment(**({"flip": len(options) > 1, "zoom": 0, "turn": 0, "shift": 0} | options))
    seen, found = warped(lambda images: images.mean(1), x, augment)
    assert rel(found.mean[inner], x.mean(1)[inner]) < 0.03
    assert found.std[inner].mean() < 0.03 * float(x.std())
    assert torch.stack(seen).mean(2).std(0)[inner].mean() > 0.1 * float(x.std()), "the images must have moved"


def test_rotation_keeps_distances_in_pixels():
    """Two spots, one in each of two channels, 30 pixels apart in an image twice as wide as high."""
    spots = [torch.exp(-((Y - 24) ** 2 + (Z - at) ** 2) / 8) for at in (33, 63)]
    x = torch.stack([*spots, torch.zeros_like(spots[0])])[None]
    for image in warped(lambda images: images.mean(1), x, Augment(flip=False, zoom=0, turn=40, shift=0))[0]:
        weights = image[0, :2] / image[0, :2].sum((1, 2), keepdim=True)
        (top, left), (bottom, right) = [(float((w * Y).sum()), float((w * Z).sum())) for w in weights]
        assert math.hypot(bottom - top, right - left) == pytest.approx(30, abs=0.5)


def test_a_coarse_map_is_warped_back_like_a_fine_one():
    """A 16 x 32 grid covers the image: the same rotation warps both alike."""

    def coarse(images):
        return nn.functional.avg_pool2d(images, 3).mean(1)

    _, found = warped(coarse, SMOOTH_IMAGE, Augment(flip=True, zoom=0.1, turn=15, shift=0.05))
    inner = (slice(None), slice(4, -4), slice(8, -8))
    assert rel(found.mean[inner], coarse(SMOOTH_IMAGE)[inner]) < 0.1


def test_pixels_outside_all_samples_are_zero_and_others_average_the_samples_that_contain_them():
    """A map of ones stays one at each pixel that any sample contains, whatever their number."""
    for samples in (1, 12):
        augment = Augment(flip=False, zoom=0, turn=45, shift=0.3)
        _, found = warped(lambda images: torch.ones_like(images[:, 0]), SMOOTH_IMAGE, augment, samples)
        values = set(found.mean.round(decimals=9).unique().tolist())
        assert values == {0.0, 1.0} if samples == 1 else values <= {0.0, 1.0} and found.std.max() < 1e-9


# Progress and wrong use


def test_progress_also_stops_within_a_long_method():
    net, x, told = curved(), random_images(), []

    def watch(partial):
        told.append(partial.fraction)
        return partial.fraction < 0.55

    noisy = smooth("integrated_gradients", sigma=0.1, samples=4)
    found = noisy(net, x, 1, steps=20, batch_size=5, progress=watch)
    assert told == sorted(told) and 0.55 <= told[-1] < 0.6
    assert found.samples == 2, "the sample that was cut short does not count"
    two = smooth("integrated_gradients", sigma=0.1, samples=2)(net, x, 1, steps=20)
    torch.testing.assert_close(found.mean, two.mean)
    first = noisy(net, x, 1, batch_size=5, progress=lambda partial: False)
    assert first.samples == 1 and first.mean.any()


def test_wrong_uses_are_refused():
    for wrong in (
        {}, {"sigma": 0.1, "augment": True}, {"sigma": -0.1}, {"sigma": True}, {"sigma": 0.1, "samples": 0},
        {"augment": False}, {"baselines": ()}, {"baselines": "blur"}, {"baselines": ("zeros", "blur"), "samples": 5},
    ):  # fmt: skip
        with pytest.raises(BadOption):
            smooth("integrated_gradients", **wrong)
    with pytest.raises(BadOption, match="baseline"):
        smooth("saliency", baselines=("zeros", "blur"))
    with pytest.raises(BadOption, match="zoom"):
        Augment(zoom=-1)
