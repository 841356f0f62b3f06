"""Several layers, windows or samples: fuse, sweep, RefineCAM, SESS, smooth."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import torchvision

import explainers
from explainers import METHODS, fuse, grad_cam, integrated_gradients, refine_cam, saliency, sess, sweep
from explainers.explanation.smoothing import Augment, smooth
from explainers.perturbation.rng import PerImageGenerators
from tests.support.nets import cam_by_hand, curved, plain, random_images, rel, residual, settle

CLASSES = [2, 0, 5]
LAYERS = ["layer2", "layer1", "conv1"]


def resized(maps, size=(12, 16)):
    return F.interpolate(maps[:, None], size, mode="bilinear")[:, 0]


def normalized(maps):
    return maps / maps.amax((1, 2), keepdim=True)


# Fusion


def test_p44_each_map_is_normalized_then_resized_then_multiplied():
    """As in torchcam: each normalized map is resized to the image, then multiplied; in any order of the layers."""
    net, images = residual(), random_images()
    layers = ["layer1", "layer2"]
    maps = [normalized(cam_by_hand(net, net.get_submodule(name), images, CLASSES).relu()) for name in layers]
    found = refine_cam(net, images, CLASSES, layers=layers, inner="grad_cam")
    torch.testing.assert_close(found, resized(maps[0]) * resized(maps[1]), rtol=1e-10, atol=1e-13)
    assert rel(found, resized(resized(maps[0], (6, 8)) * maps[1])) > 0.05, "another order is another map"
    for names in (layers, LAYERS):
        forward, backward = (refine_cam(net, images, CLASSES, layers=each) for each in (names, names[::-1]))
        torch.testing.assert_close(forward, backward)


def test_refine_cam_defaults_to_the_last_three_stages():
    net = settle(torchvision.models.resnet18(weights=None))
    images = torch.randn(1, 3, 64, 96)
    asked = refine_cam(net, images, 3, layers=["layer2", "layer3", "layer4"])
    assert torch.equal(refine_cam(net, images, 3), asked) and tuple(asked.shape) == (1, 64, 96)


def test_fused_means_keep_sign_and_unit_and_products_are_scale_invariant():
    a, b = torch.randn(2, 4, 6, dtype=torch.float64), torch.randn(2, 8, 12, dtype=torch.float64)
    for found in (fuse({"late": a, "early": b}), fuse([b, a], "mean")):
        torch.testing.assert_close(found, (resized(a, (8, 12)) + b) / 2)
    assert tuple(fuse([a, b], "mean", size=(20, 30)).shape) == (2, 20, 30)
    torch.testing.assert_close(fuse([a]), a)

    a, b = a.abs(), b.abs()
    found = fuse([a, b], "product")
    torch.testing.assert_close(found, fuse([1000 * a, b / 7], "product"))
    assert found.min() >= 0 and found.max() <= 1
    b[1] = -b[1]
    found = fuse([a, b], "product")
    assert found[0].any() and not found[1].any() and found.isfinite().all(), "zero where one map is"


# Sweep

GRID_METHODS = [name for name, each in METHODS.items() if each.takes_layer and each.returns == "grid" and not each.long]


@pytest.mark.sample
@pytest.mark.parametrize("name", [name for name in GRID_METHODS if name != "cam"])
def test_sweep_equals_calls_of_single_layers(name):
    net, images = residual(), random_images()
    try:
        alone = {layer: METHODS[name](net, images, CLASSES, layer=layer) for layer in LAYERS}
    except explainers.ExplainerError:
        pytest.skip("not a method for these layers")
    found = sweep(name, net, images, CLASSES, layers=LAYERS)
    assert list(found) == LAYERS
    for layer in LAYERS:
        torch.testing.assert_close(found[layer], alone[layer], rtol=1e-10, atol=1e-12)


# SESS


def test_sess_of_a_saturated_class_is_not_blank():
    """Probabilities that underflow are compared relative to the highest."""
    net, images = residual(), random_images()
    for parameter in net.fc.parameters():
        parameter.data *= 1e4
    for c in range(7):
        expected = resized(grad_cam(net, images, c))
        torch.testing.assert_close(sess(net, images, c, scales=1), expected, rtol=1e-10, atol=1e-9)


# Means over noise, flips and baselines


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
