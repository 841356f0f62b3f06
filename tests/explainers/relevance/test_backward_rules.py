"""Guided backpropagation and deconvnet: rules at ReLUs in every implementation (module, functional, method)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from explainers import deconvnet, guided_backprop, guided_grad_cam
from tests.support.nets import OneConv, act_grad, ramp, random_images, residual

CLASSES = [2, 0, 5]


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


def test_guided_grad_cam_is_the_product():
    net, x = residual(), random_images()
    a, g, _ = act_grad(net, net.layer2, x, CLASSES)
    cam = (g.mean((2, 3), keepdim=True) * a).sum(1, keepdim=True).relu()
    large = F.interpolate(cam, x.shape[2:], mode="bilinear", align_corners=False)
    actual = guided_grad_cam(net, x, CLASSES, layer="layer2", interpolate="bilinear")
    torch.testing.assert_close(actual, large * guided_backprop(net, x, CLASSES), rtol=1e-10, atol=1e-14)
