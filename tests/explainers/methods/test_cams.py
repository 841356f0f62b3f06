"""Class-activation maps: closed forms, identities, published numbers, agreement with other libraries."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import (
    METHODS,
    ablation_cam,
    channel_effects,
    explain,
    grad_cam,
    grad_cam_pp,
    grad_cam_sweep,
    hires_cam,
    layer_cam,
    xgrad_cam,
)
from explainers.maps.resize import reduce_channels
from tests.support.nets import (
    OneConv,
    act_grad,
    cam_by_hand,
    curved,
    plain,
    ramp,
    random_images,
    residual,
    settle,
)
from tests.support.oracles import drops_by_hand

CLASSES = [2, 0, 5]


def test_maps_at_every_layer_of_a_position_dependent_head_by_hand():
    net, images = curved(), random_images()
    for layer in ("conv1", "act1", "conv2", "act2"):
        module = net.get_submodule(layer)
        a, g, _ = act_grad(net, module, images, CLASSES)
        torch.testing.assert_close(hires_cam(net, images, CLASSES, layer=layer), (a * g).sum(1), rtol=1e-12, atol=1e-15)
        expected = cam_by_hand(net, module, images, CLASSES)
        actual = grad_cam(net, images, CLASSES, layer=layer, relu=False)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-15)


def test_the_relu_option_clamps_the_signed_map():
    net, images = residual(), random_images(4)
    for method in (grad_cam, grad_cam_pp, layer_cam, xgrad_cam, ablation_cam):
        signed = method(net, images, 2, layer="layer2.bn2", relu=False)
        for options in ({}, {"relu": True}):
            assert torch.equal(method(net, images, 2, layer="layer2.bn2", **options), signed.relu()), method
        assert signed.min() < 0


def test_xgrad_cam_is_finite_if_activations_sum_to_zero():
    net = nn.Sequential(nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 1, bias=False)).double()
    net[3].weight.data.fill_(6.0)
    x = torch.zeros(1, 2, 2, 3, dtype=torch.float64)
    x[0, 1] = 1.0
    assert torch.equal(xgrad_cam(net, x, 0, layer="0"), x[:, 1]), "the dead channel weighs nothing"


def test_published_grad_cam():
    """Numbers from captum's tests, BSD licence."""
    published = torch.tensor([[[11.25, 13.5], [20.25, 22.5]]])
    for net in (OneConv(), OneConv().requires_grad_(False), OneConv(inplace=True)):
        assert torch.equal(grad_cam(net, ramp(), 0, layer="conv1"), published)
    assert torch.equal(grad_cam(OneConv(), ramp(), 0, layer="relu1"), torch.tensor([[[0.0, 4.0], [28.0, 32.5]]]))


def test_sweep_defaults_to_the_stages_in_order():
    import torchvision

    sweep = grad_cam_sweep(settle(torchvision.models.resnet18(weights=None)), torch.randn(2, 3, 32, 64), [1, 2])
    names = [name for name in sweep if name.startswith("layer")]
    assert names == ["layer1", "layer2", "layer3", "layer4"]
    assert [tuple(sweep[name].shape) for name in names] == [(2, 8, 16), (2, 4, 8), (2, 2, 4), (2, 1, 2)]


class Suffix(nn.Module):
    """The body of `plain`, a reshaping to the number of images or of rows, and a linear head."""

    def __init__(self, by_images: bool):
        super().__init__()
        self.first, self.head, self.by_images = plain()[:4], nn.Linear(8, 5), by_images

    def forward(self, x):
        shape = (x.shape[0], 8, -1) if self.by_images else (-1, 8, 48)
        return self.head(self.first(x).reshape(*shape).mean(2))


@pytest.mark.parametrize("by_images", [True, False])
def test_channel_effects_with_a_suffix_that_reshapes_the_batch(by_images):
    """Otherwise the copies of an image could be read as one image."""
    net, images = settle(Suffix(by_images).double()), random_images()
    expected, _ = drops_by_hand(net, net.first.relu2, images, [1, 2, 3])
    actual = channel_effects(net, images, [1, 2, 3], layer="first.relu2")
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


COMPARED = [
    name
    for name, method in METHODS.items()
    if method.reads_class and not method.long and method.returns in ("grid", "pixels", "heat")
]
"""The methods whose map `explain` compares with the runner-up's."""


def test_the_runner_ups_map_equals_a_separate_call(monkeypatch):
    """Oracle: a separate call for the runner-up, bit-identical; another target never reuses an old graph."""
    from explainers.explanation import run

    maps = []
    real = run.rank_correlation
    monkeypatch.setattr(run, "rank_correlation", lambda a, b: (maps.append((a, b)), real(a, b))[1])
    for name in COMPARED:
        method = METHODS[name]
        net, images = (plain() if name == "cam" else residual()), random_images()
        if method.applies(net):
            continue
        second = net(images).topk(2, dim=1).indices[:, 1]
        expected = method(net, images, second, **({"relu": False} if method.relu is not None else {}))
        maps.clear()
        explain(name, net, images)

        ((own, other),) = maps
        if expected.ndim == 4:
            expected = reduce_channels(expected, method.reduce)
        assert torch.equal(other, expected) and not torch.equal(own, other), name
