"""Guided backpropagation and deconvnet: rules at ReLUs in every implementation (module, functional, method)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from explainers import deconvnet, guided_backprop, guided_grad_cam
from tests.support.nets import OneConv, act_grad, plain, ramp, random_images, residual

CLASSES = [2, 0, 5]
RULES = [guided_backprop, deconvnet]
each_rule = pytest.mark.parametrize("method", RULES, ids=lambda m: m.__name__)


def test_published_guided_backprop_and_deconvnet():
    """Numbers from captum's tests."""
    guided = torch.tensor([[0.0, 1, 1, 1], [1, 3, 3, 2], [1, 3, 3, 2], [1, 2, 2, 1]])
    deconv = torch.tensor([[2.0, 3, 3, 1], [3, 5, 5, 2], [3, 5, 5, 2], [1, 2, 2, 1]])
    for inplace in (False, True):
        assert torch.equal(guided_backprop(OneConv(inplace), ramp(), 0)[0, 0], guided)
        assert torch.equal(deconvnet(OneConv(inplace), ramp(), 0)[0, 0], deconv)


def test_published_guided_grad_cam():
    published = torch.tensor([[0.0, 0, 4, 4], [0, 0, 12, 8], [28, 84, 97.5, 65], [28, 56, 65, 32.5]])
    found = guided_grad_cam(OneConv(), ramp(), 0, layer="relu1", interpolate="nearest")
    assert torch.equal(found[0, 0], published)


@pytest.mark.parametrize("interpolate", ["bilinear", "nearest"])
def test_guided_grad_cam_is_the_product(interpolate):
    net, x = residual(), random_images()
    a, g, _ = act_grad(net, net.layer2, x, CLASSES)
    cam = (g.mean((2, 3), keepdim=True) * a).sum(1, keepdim=True).relu()
    large = F.interpolate(
        cam, x.shape[2:], mode=interpolate, **({"align_corners": False} if interpolate == "bilinear" else {})
    )
    expected = large * guided_backprop(net, x, CLASSES)
    actual = guided_grad_cam(net, x, CLASSES, layer="layer2", interpolate=interpolate)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-14)


def test_guided_backprop_agrees_with_captum_where_all_relus_are_modules():
    captum = pytest.importorskip("captum.attr")
    net, x = plain(), random_images()
    for theirs, ours in ((captum.GuidedBackprop, guided_backprop), (captum.Deconvolution, deconvnet)):
        expected = theirs(plain()).attribute(x.clone(), CLASSES).detach()
        torch.testing.assert_close(ours(net, x, CLASSES), expected, rtol=1e-12, atol=1e-15)
