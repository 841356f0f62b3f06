"""Targets inside the network: the activation of a channel, and a class's attribution through chosen channels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import Through, unit
from explainers.errors import BadTarget, LayerNotFound
from tests.support.nets import plain, random_images, residual
from tests.support.traces import nothing_left

GRADIENT = ("saliency", "input_x_gradient", "integrated_gradients", "smooth_grad", "guided_backprop")


def activation(net: nn.Module, x: Tensor, channel: int) -> Tensor:
    """conv2's channel by hand."""
    return net[:3](x)[:, channel]


@pytest.mark.parametrize("at", [None, (2, 3), "max"])
def test_gradient_of_a_unit_is_autograds(at):
    """Oracle: autograd on the first modules, called one after another; "max" is the strongest cell of the image."""
    net, x = plain(), random_images().requires_grad_()
    channel = activation(net, x, 4)
    if at is None:
        values = channel.mean((1, 2))
    elif at == "max":
        values = channel.flatten(1).amax(1)
    else:
        values = channel[:, at[0], at[1]]
    (expected,) = torch.autograd.grad(values.sum(), x)

    actual = explainers.saliency(net, x.detach(), unit("conv2", channel=4, at=at))

    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)
    assert expected.any()
    head = explainers.saliency(net, x.detach(), unit("head", 3))  # a layer without a grid
    torch.testing.assert_close(head, explainers.saliency(net, x.detach(), 3), rtol=1e-12, atol=1e-14)


def test_the_strongest_cell_is_that_of_the_clean_image():
    """Occluded images may peak elsewhere; they are scored at the clean image's strongest cell."""
    net, x = plain(), random_images(n=1)
    row, column = divmod(int(activation(net, x, 2)[0].argmax()), 8)

    fixed = explainers.occlusion(net, x, unit("conv2", 2, at=(row, column)), window=4)
    strongest = explainers.occlusion(net, x, unit("conv2", 2, at="max"), window=4)

    torch.testing.assert_close(strongest, fixed, rtol=0, atol=0)
    assert fixed.any()


def test_occlusion_of_a_unit_by_hand():
    """Oracle: the mean activation with and without one window, for windows that do not overlap."""
    net, x = plain(), random_images(n=1)
    full = activation(net, x, 1).mean()
    hidden = x.clone()
    hidden[..., 4:8, 8:12] = 0
    expected = (full - activation(net, hidden, 1).mean()).detach() / 16

    actual = explainers.occlusion(net, x, unit("conv2", 1), window=4, stride=4)

    torch.testing.assert_close(actual[0, 4:8, 8:12], expected.expand(4, 4), rtol=1e-12, atol=1e-14)


def test_a_cam_explains_a_unit_at_an_earlier_layer():
    """Oracle: HiResCAM sums to the unit less its bias where one convolution lies between (no padding counted)."""
    net, x = plain(), random_images()
    a = net[:2](x).detach().requires_grad_()
    values = net[2](a)[:, 5].mean((1, 2))
    (g,) = torch.autograd.grad(values.sum(), a)

    actual = explainers.hires_cam(net, x, unit("conv2", 5), layer="relu1")

    torch.testing.assert_close(actual, (a * g).sum(1).detach(), rtol=1e-12, atol=1e-14)


def test_impossible_units_are_refused():
    for target, words in (
        (unit("conv2", 8), "channels 0 to 7"),
        (unit("conv2", -1), "channels 0 to 7"),
        (unit("conv2", 0, at=(6, 0)), "rows 0 to 5"),
        (unit("conv2", 0, at="top"), "'max'"),
    ):
        with pytest.raises(BadTarget, match=words):
            explainers.saliency(plain(), random_images(), target)
    with pytest.raises(LayerNotFound, match="'conv2'"):
        explainers.saliency(plain(), random_images(), unit("conv3", 0))


# Attribution through chosen channels


@pytest.mark.parametrize("name", GRADIENT[:4])
def test_maps_of_all_channels_sum_to_the_whole_map(name):
    """All paths of `plain` pass through conv1, so the maps of its six channels sum to the whole map."""
    net, x = plain(), random_images()
    # Without steps, the points of the whole map are chosen by its completeness gap, which a part does not have.
    same = {"steps": 50} if name == "integrated_gradients" else {}
    whole = explainers.METHODS[name](net, x, 2, **same)

    parts = [explainers.METHODS[name](net, x, Through(2, "conv1", channel), **same) for channel in range(6)]

    torch.testing.assert_close(sum(parts), whole, rtol=1e-9, atol=1e-12)
    assert all(part.any() for part in parts)


def test_a_cam_through_channels_of_a_later_layer():
    """Oracle: the gradient at conv2's output with all other channels zero, and its VJP, by hand."""
    net, x = plain(), random_images()
    a = net[:1](x).detach().requires_grad_()
    passed = net[2](net[1](a))
    (arriving,) = torch.autograd.grad(net[3:](passed)[:, 4].sum(), passed, retain_graph=True)
    only = torch.zeros_like(arriving)
    only[:, [1, 6]] = arriving[:, [1, 6]]
    (g,) = torch.autograd.grad(passed, a, only)
    expected = (g * a).sum(1).detach()

    actual = explainers.hires_cam(net, x, 4, layer="conv1", through=("conv2", [6, 1]))

    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


def test_the_share_that_bypasses_the_layer_is_reported():
    """Oracle: ||map - map through all channels|| / ||map||. In a residual block the skip bypasses the convolutions."""
    net, x = residual(), random_images(n=1)
    whole = explainers.saliency(net, x, 1)
    inside = explainers.saliency(net, x, Through(1, "layer2.conv1", range(6)))
    share = float((whole - inside).norm() / whole.norm())

    around, none = (
        [f.sentence for f in explainers.explain("saliency", net, x, 1, through=each).findings[0] if f.code == "bypass"]
        for each in (("layer2.conv1", [3]), ("layer2", [0, 1]))
    )

    assert len(around) == 1 and f"{share:.0%} of the gradient" in around[0] and 0.01 < share < 0.99
    assert none == [], "nothing bypasses the block"


def test_a_wrong_through_is_refused():
    for through, words in (
        (("conv2", [8]), "channels 0 to 7"),
        (("conv9", [0]), "no layer 'conv9'"),
        ("conv2", "Give "),
    ):
        with pytest.raises(ValueError, match=words):
            explainers.saliency(plain(), random_images(), 1, through=through)
    with pytest.raises(BadTarget, match="only uses scores"):
        explainers.occlusion(plain(), random_images(), Through(1, "conv2", 0))
    with pytest.raises(BadTarget, match="after the explained one"):
        explainers.grad_cam(plain(), random_images(), Through(1, "conv1", 0), layer="conv2")
    for name in ("eigen_cam", "feature_maps", "fem", "edge_control"):
        with pytest.raises(BadTarget, match="would have no effect"):
            explainers.METHODS[name](residual(), random_images(), through=("layer1", [0]))


def test_units_and_through_have_no_side_effects():
    net, images = residual(), random_images()
    with nothing_left(net, images):
        explainers.saliency(net, images, unit("layer1", 0))
        explainers.saliency(net, images, Through(0, "layer1", 0))
