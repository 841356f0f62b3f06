"""Targets inside the network: the activation of a channel, and a class's attribution through chosen channels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from explainers import METHODS, Through, explain, hires_cam, occlusion, saliency, unit
from explainers.errors import BadTarget
from tests.support.nets import plain, random_images, residual

X = random_images()


def activation(net: nn.Module, x: Tensor, channel: int) -> Tensor:
    """conv2's channel by hand."""
    return net[:3](x)[:, channel]


@pytest.mark.parametrize("at", [None, (2, 3), "max"])
def test_gradient_of_a_unit_is_autograds(at):
    """Oracle: autograd on the first modules, called one after another; "max" is the strongest cell of the image."""
    net, x = plain(), X.clone().requires_grad_()
    channel = activation(net, x, 4)
    values = {None: channel.mean((1, 2)), "max": channel.flatten(1).amax(1), (2, 3): channel[:, 2, 3]}[at]
    (expected,) = torch.autograd.grad(values.sum(), x)
    found = saliency(net, X, unit("conv2", channel=4, at=at))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert expected.any()
    head = saliency(net, X, unit("head", 3))  # a layer without a grid
    torch.testing.assert_close(head, saliency(net, X, 3), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", [saliency, occlusion])
def test_one_unit_for_each_image_is_as_separate_calls(method):
    net, channels = plain(), [5, 2]
    x = X[: len(channels)]
    separate = [method(net, x[k : k + 1], unit("conv2", channel)) for k, channel in enumerate(channels)]
    found = method(net, x, unit("conv2", channels))
    torch.testing.assert_close(found, torch.cat(separate), rtol=1e-12, atol=1e-14)
    assert not torch.equal(found[1:], method(net, x[1:], unit("conv2", channels[0])))
    with pytest.raises(BadTarget, match="one channel for each image"):
        method(net, x, unit("conv2", [1, 2, 3]))
    with pytest.raises(BadTarget, match="channel"):
        method(net, x, unit("conv2", [1, 99]))


def test_occlusion_of_a_unit_by_hand():
    """Oracle: the mean activation with and without one window; "max" is the clean image's strongest cell."""
    net, x, hidden = plain(), X[:1], X[:1].clone()
    hidden[..., 4:8, 8:12] = 0
    expected = (activation(net, x, 1).mean() - activation(net, hidden, 1).mean()).detach() / 16
    found = occlusion(net, x, unit("conv2", 1), window=4, stride=4)
    torch.testing.assert_close(found[0, 4:8, 8:12], expected.expand(4, 4), rtol=1e-12, atol=1e-14)
    cell = divmod(int(activation(net, x, 2)[0].argmax()), 8)
    fixed, strongest = (occlusion(net, x, unit("conv2", 2, at=at), window=4) for at in (cell, "max"))
    assert torch.equal(strongest, fixed) and fixed.any()


def test_cams_of_a_unit_and_through_channels_of_a_later_layer():
    """Oracles: the gradient of the unit; that at conv2's output with all other channels zero, and its VJP, by hand."""
    net = plain()
    a = net[:2](X).detach().requires_grad_()
    (g,) = torch.autograd.grad(net[2](a)[:, 5].mean((1, 2)).sum(), a)
    found = hires_cam(net, X, unit("conv2", 5), layer="relu1")
    torch.testing.assert_close(found, (a * g).sum(1).detach(), rtol=1e-12, atol=1e-14)

    a = net[:1](X).detach().requires_grad_()
    passed = net[2](net[1](a))
    (arriving,) = torch.autograd.grad(net[3:](passed)[:, 4].sum(), passed, retain_graph=True)
    only = torch.zeros_like(arriving)
    only[:, [1, 6]] = arriving[:, [1, 6]]
    (g,) = torch.autograd.grad(passed, a, only)
    found = hires_cam(net, X, 4, layer="conv1", through=("conv2", [6, 1]))
    torch.testing.assert_close(found, (g * a).sum(1).detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["saliency", "input_x_gradient", "integrated_gradients", "smooth_grad"])
def test_maps_of_all_channels_sum_to_the_whole_map(name):
    """All paths of `plain` pass through conv1, so the maps of its six channels sum to the whole map."""
    # Without steps, the points of the whole map are chosen by its completeness gap, which a part does not have.
    same = {"steps": 50} if name == "integrated_gradients" else {}
    parts = [METHODS[name](plain(), X, Through(2, "conv1", channel), **same) for channel in range(6)]
    torch.testing.assert_close(sum(parts), METHODS[name](plain(), X, 2, **same), rtol=1e-9, atol=1e-12)
    assert all(part.any() for part in parts)


def test_the_share_that_bypasses_the_layer_is_reported():
    """Oracle: ||map - map through all channels|| / ||map||. In a residual block the skip bypasses the convolutions."""
    net, x = residual(), X[:1]
    whole, inside = saliency(net, x, 1), saliency(net, x, Through(1, "layer2.conv1", range(6)))
    share = float((whole - inside).norm() / whole.norm())
    around, none = (
        [f.sentence for f in explain("saliency", net, x, 1, through=each).findings[0] if f.code == "bypass"]
        for each in (("layer2.conv1", [3]), ("layer2", [0, 1]))
    )
    assert len(around) == 1 and f"{share:.0%} of the gradient" in around[0] and 0.01 < share < 0.99
    assert none == [], "nothing bypasses the block"
