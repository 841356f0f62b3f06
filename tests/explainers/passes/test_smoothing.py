"""smooth: hand loops, maps warped back, contract checks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from explainers import METHODS, BadOption, integrated_gradients, saliency
from explainers.explanation.smoothing import Augment, smooth
from explainers.perturbation.rng import PerImageGenerators
from tests.support.nets import Weighted, curved, plain, random_images, rel, residual, settle

CLASSES = [2, 0, 5]


def noisy_maps(method, net, x, classes, noise, samples, seed, **options):
    generator = PerImageGenerators(1, seed)
    spans = x.amax((1, 2, 3), keepdim=True) - x.amin((1, 2, 3), keepdim=True)
    draws = [generator.normal_noise(0, 1, *x.shape[1:])[0].double() for _ in range(samples)]
    return torch.stack([method(net, x + noise * spans * each, classes, **options) for each in draws])


@pytest.mark.parametrize(
    ("name", "options"), [("grad_cam", {"layer": "conv2"}), ("saliency", {}), ("channel_effects", {"layer": "act2"})]
)
def test_noise_by_a_hand_loop(name, options):
    net, x = curved(), random_images()
    maps = noisy_maps(METHODS[name], net, x, CLASSES, 0.2, 5, 3, **options)
    found = smooth(name, sigma=0.2, samples=5, seed=3)(net, x, CLASSES, **options)
    torch.testing.assert_close(found.mean, maps.mean(0), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(found.std, maps.std(0), rtol=1e-8, atol=1e-12)
    assert found.samples == 5 and found.std.max() > 0


def test_the_gradient_of_a_linear_model_has_zero_deviation():
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images()
    found = smooth("saliency", sigma=0.5, samples=6)(net, x, CLASSES)
    assert found.std.max() < 1e-14
    torch.testing.assert_close(found.mean, saliency(net, x, CLASSES), rtol=1e-12, atol=1e-14)


def test_classes_are_those_of_the_clean_images():
    net, x = curved(), random_images(6)
    net.head.bias.data.zero_()
    classes = net(x).argmax(1).tolist()
    assert len(set(classes)) > 1
    for varied in ({"sigma": 1.0}, {"augment": Augment(turn=90)}):
        f = smooth("saliency", samples=6, **varied)
        assert torch.equal(f(net, x).mean, f(net, x, classes).mean)


# Maps warped back


def test_flips_by_a_hand_loop():
    net, x = residual(), random_images()
    maps = torch.stack([saliency(net, x, 1), saliency(net, x.flip(-1), 1).flip(-1)])
    found = smooth("saliency", augment=Augment(zoom=0, turn=0, shift=0), samples=2)(net, x, 1)
    torch.testing.assert_close(found.mean, maps.mean(0), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(found.std, maps.std(0), rtol=1e-8, atol=1e-13)


def smooth_image(height=48, width=96):
    """An image without details finer than 20 pixels, not square."""
    y, z = torch.arange(height).double()[:, None], torch.arange(width).double()
    image = torch.sin(2 * math.pi * (y / 31 + z / 23)) + torch.cos(2 * math.pi * (y / 41 - z / 37))
    return image.expand(1, 3, height, width).clone()


def image_as_map(model, images, target=None):
    """A "method" whose map is the image: warped back, it must be the original image."""
    return images.mean(1)


@pytest.mark.parametrize(
    "augment",
    [
        Augment(flip=False, zoom=0.3, turn=0, shift=0),
        Augment(flip=False, zoom=0, turn=30, shift=0),
        Augment(flip=False, zoom=0, turn=0, shift=0.2),
        Augment(zoom=0.2, turn=20, shift=0.1),
    ],
    ids=["zoom", "turn", "shift", "all"],
)
def test_maps_are_warped_back_to_the_image(augment):
    net, x = plain(), smooth_image()
    found = smooth(image_as_map, augment=augment, samples=8)(net, x, 1)
    inner = (slice(None), slice(14, -14), slice(24, -24))
    assert rel(found.mean[inner], x.mean(1)[inner]) < 0.03
    assert found.std[inner].mean() < 0.03 * float(x.std())
    still = torch.stack([image_as_map(net, each) for each in augmented_images(x, augment)])
    assert still.std(0)[inner].mean() > 0.1 * float(x.std()), "the images must have moved"


def augmented_images(x, augment):
    """The images that the method was called with."""
    seen = []

    def watch(model, images, target=None):
        seen.append(images)
        return images.mean(1)

    smooth(watch, augment=augment, samples=8)(plain(), x, 1)
    return seen


def test_rotation_keeps_distances_in_pixels():
    """Two spots, one in each of two channels, 30 pixels apart in an image twice as wide as high."""
    y, z = torch.arange(48).double()[:, None], torch.arange(96).double()
    spots = [torch.exp(-((y - 24) ** 2 + (z - at) ** 2) / 8) for at in (33, 63)]
    x = torch.stack([*spots, torch.zeros_like(spots[0])])[None]
    for image in augmented_images(x, Augment(flip=False, zoom=0, turn=40, shift=0)):
        weights = image[0, :2] / image[0, :2].sum((1, 2), keepdim=True)
        (top, left), (bottom, right) = [(float((w * y).sum()), float((w * z).sum())) for w in weights]
        assert math.hypot(bottom - top, right - left) == pytest.approx(30, abs=0.5)


def test_a_coarse_map_is_warped_back_like_a_fine_one():
    """A 16 x 32 grid covers the image: the same rotation warps both alike."""

    def coarse(model, images, target=None):
        return nn.functional.avg_pool2d(images, 3).mean(1)

    x = smooth_image()
    found = smooth(coarse, augment=Augment(flip=True, zoom=0.1, turn=15, shift=0.05), samples=8)(plain(), x, 1)
    inner = (slice(None), slice(4, -4), slice(8, -8))
    assert rel(found.mean[inner], coarse(None, x)[inner]) < 0.1


def test_pixels_outside_all_samples_are_zero_and_others_average_the_samples_that_contain_them():
    """A map of ones stays one at each pixel that any sample contains, whatever their number."""

    def ones(model, images, target=None):
        return torch.ones_like(images[:, 0])

    x = smooth_image()
    one = smooth(ones, augment=Augment(flip=False, zoom=0, turn=45, shift=0.3), samples=1)(plain(), x, 1)
    assert set(one.mean.round(decimals=9).unique().tolist()) == {0.0, 1.0}
    many = smooth(ones, augment=Augment(flip=False, zoom=0, turn=45, shift=0.3), samples=12)(plain(), x, 1)
    assert set(many.mean.round(decimals=9).unique().tolist()) <= {0.0, 1.0} and many.std.max() < 1e-9


# Baselines


def test_baselines_by_hand():
    net, x = curved(), random_images()
    several = ("zeros", 0.5, "blur")
    maps = torch.stack([integrated_gradients(net, x, CLASSES, steps=6, baseline=each) for each in several])
    found = smooth("integrated_gradients", baselines=several)(net, x, CLASSES, steps=6)
    torch.testing.assert_close(found.mean, maps.mean(0), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(found.std, maps.std(0), rtol=1e-8, atol=1e-12)
    assert found.samples == 3


# Progress, contract checks, wrong use


def test_progress_also_stops_within_a_long_method():
    net, x = curved(), random_images()
    told = []

    def watch(partial):
        told.append(partial)
        return partial.fraction < 0.55

    found = smooth("integrated_gradients", sigma=0.1, samples=4)(net, x, 1, steps=20, batch_size=5, progress=watch)
    fractions = [partial.fraction for partial in told]
    assert fractions == sorted(fractions) and 0.55 <= fractions[-1] < 0.6
    assert found.samples == 2, "the sample that was cut short does not count"
    torch.testing.assert_close(
        found.mean, smooth("integrated_gradients", sigma=0.1, samples=2)(net, x, 1, steps=20).mean
    )
    first = smooth("integrated_gradients", sigma=0.1, samples=4)(net, x, 1, batch_size=5, progress=lambda p: False)
    assert first.samples == 1 and first.mean.any()


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"sigma": 0.1, "augment": True},
        {"sigma": -0.1},
        {"sigma": True},
        {"sigma": 0.1, "samples": 0},
        {"augment": False},
        {"baselines": ()},
        {"baselines": "blur"},
        {"baselines": ("zeros", "blur"), "samples": 5},
    ],
)
def test_wrong_combinations_are_refused(wrong):
    with pytest.raises(BadOption):
        smooth("integrated_gradients", **wrong)


def test_other_wrong_uses_are_refused_by_name():
    with pytest.raises(BadOption, match="baseline"):
        smooth("saliency", baselines=("zeros", "blur"))
    with pytest.raises(BadOption, match="zoom"):
        Augment(zoom=-1)
