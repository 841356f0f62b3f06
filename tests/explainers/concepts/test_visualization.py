"""Feature visualization: images excite their target, can be stopped and continued, and depend only on the seed."""

from __future__ import annotations

import pytest
import torch

from explainers import BadOption, Direction, Transform, feature_maps, feature_visualization, unit
from tests.explainers.concepts.planted import planted_images, planted_network
from tests.support.nets import residual
from tests.support.traces import nothing_left

SIZE = {"mean": 0.5, "std": 0.5, "size": (48, 48), "steps": 60}
SMALL = {"mean": 0.4, "std": 0.3, "size": (12, 16), "steps": 6}
IMAGES = pytest.mark.parametrize("image", ["fourier", "maco"])


@IMAGES
def test_images_excite_their_unit_more_than_others(image):
    net, channel = planted_network(), 3
    found = feature_visualization(net, unit("features", channel), image=image, **SIZE)
    others = feature_maps(net, planted_images(1000, 9)[0], layer="features")[:, channel].mean((1, 2))
    assert float((others < found.activations).double().mean()) > 0.99
    assert float(found.images.min()) >= 0 and float(found.images.max()) <= 1


def test_a_unit_that_is_silent_on_noise_gets_an_image():
    """Its ReLU has no gradient there. The unit responds to red that is brighter than in any start image."""
    conv = torch.nn.Conv2d(3, 2, 1)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[4.0, -2.0, -2.0], [-2.0, 4.0, -2.0]])[..., None, None])
        conv.bias.fill_(-2.0)
    net = torch.nn.Sequential(conv, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).eval()
    found = feature_visualization(net, unit("1", [0, 1]), images=2, **SIZE)
    assert not found.curve[0].any() and bool((found.activations > 0).all())
    red, green, _ = found.images.mean((2, 3)).T
    assert red[0] > green[0] and green[1] > red[1]


@IMAGES
def test_a_stop_and_a_continuation_are_one_optimization(image):
    net = residual()
    options = {**SMALL, "image": image, "images": 2, "diversity": 0.5}
    with nothing_left(net):
        whole = feature_visualization(net, 3, **options)
        stopped = feature_visualization(net, 3, **options, progress=lambda part: part.done < 3)
    assert stopped.steps == 3 and not stopped.finished and whole.finished
    continued = feature_visualization(net, 3, **options, resume=stopped)
    assert torch.equal(continued.images, whole.images) and torch.equal(continued.curve, whole.curve)
    assert torch.equal(stopped.curve, whole.curve[:3])
    with pytest.raises(BadOption, match="seed"):
        feature_visualization(net, 3, **{**options, "seed": 1}, resume=stopped)


def test_an_image_depends_on_its_seed_and_not_on_the_others():
    net, target = residual(), Direction("layer1", torch.arange(6.0) - 2)
    one, three = (feature_visualization(net, target, images=n, **SMALL) for n in (1, 3))
    assert torch.allclose(one.images[0], three.images[0], atol=1e-6)
    assert not torch.allclose(three.images[0], three.images[1], atol=1e-2)
    other = feature_visualization(net, target, **SMALL, seed=1)
    assert not torch.allclose(one.images, other.images, atol=1e-2)


def test_diversity_makes_images_differ():
    net = planted_network()
    channel = int(feature_maps(net, planted_images(20, 9)[0], layer="relu2").mean((0, 2, 3)).argmax())

    def similarity(diversity: float) -> float:
        target, options = unit("relu2", channel), {**SIZE, "steps": 25}
        found = feature_visualization(net, target, images=3, diversity=diversity, **options)
        maps = feature_maps(net, (found.images - 0.5) / 0.5, layer="relu2").flatten(2)
        grams = torch.nn.functional.normalize((maps @ maps.transpose(1, 2)).flatten(1), dim=1)
        return float((grams @ grams.T).sum())

    assert similarity(1.0) < similarity(0.0) - 0.01
    net, last = residual(), unit("fc", 2)  # without positions
    one, other = (feature_visualization(net, last, images=2, diversity=weight, **SMALL) for weight in (0.0, 9.0))
    assert not torch.allclose(one.images, other.images, atol=1e-3)


def test_scores_are_those_of_the_images():
    net = residual()
    found = feature_visualization(net, 3, **SMALL, transform=Transform(0, 0, 0))
    scores = net((found.images - 0.4) / 0.3)[:, 3]
    assert torch.allclose(scores, found.activations)
    assert found.influence.shape == (1, 12, 16) and float(found.influence.min()) >= 0
    assert float(found.curve[-1]) > float(found.curve[0])


def test_a_transform_moves_as_far_as_it_says():
    image = torch.zeros(1, 1, 40, 60)
    image[..., 18:22, 28:32] = 1
    shifts = set()
    for step in range(5):
        moved = Transform(0.1, 0, 0)(image, 0, step)[0, 0]
        rows, columns = moved.sum(1), moved.sum(0)
        down = float((rows * torch.arange(40)).sum() / rows.sum()) - 19.5
        right = float((columns * torch.arange(60)).sum() / columns.sum()) - 29.5
        assert 0 < abs(down) <= 4.01 and 0 < abs(right) <= 6.01
        shifts.add((round(down, 3), round(right, 3)))
    assert len(shifts) == 5, "each step has its own"
    assert torch.allclose(Transform(0, 0, 0)(image, 0, 1), image, atol=1e-5)
    turned = Transform(0, 90, 0)(image, 0, 1)  # rotated in pixels, not in parts of the sides
    assert abs(float(turned.sum() - image.sum())) < 2
