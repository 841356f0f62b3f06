"""Guided backpropagation and its variants on real networks, where other libraries are wrong."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchvision

from explainers import ExplainerError, deconvnet, grad_cam, guided_backprop, guided_grad_cam, saliency
from tests.support.nets import Activated, plain, random_images, rel, residual, settle


def noise_images(n=2, height=64, width=64):
    return torch.randn(n, 3, height, width, generator=torch.Generator().manual_seed(0))


def guided_by_hand(net, x, classes):
    """Clamp the gradient that leaves every ReluBackward0 node of the graph."""
    leaf = x.clone().requires_grad_()
    scores = net(leaf * 1)
    total = sum(scores[i, c] for i, c in enumerate(classes))
    waiting, seen = [total.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "ReluBackward0":
            node.register_hook(lambda inputs, outputs: tuple(None if g is None else g.clamp(min=0) for g in inputs))
        waiting.extend(each for each, _ in node.next_functions)
    return torch.autograd.grad(total, leaf)[0]


@pytest.mark.parametrize("method", [guided_backprop, deconvnet, guided_grad_cam], ids=lambda m: m.__name__)
def test_p57_functional_relus_are_guided_and_other_activations_are_refused_by_name(method):
    """test_p57_every_form_of_a_relu_gives_the_same_map has all methods."""
    x = random_images()
    for act in (F.relu, F.relu6):
        net = settle(Activated(act).double())
        assert rel(method(net, x, 1), saliency(net, x, 1)) > 0.1
    for act, name in {F.silu: "SiLU", F.gelu: "GELU", F.hardswish: "Hardswish", F.leaky_relu: "LeakyReLU"}.items():
        with pytest.raises(ExplainerError, match=name):
            method(settle(Activated(act).double()), x, 1)


@pytest.mark.parametrize("build", ["densenet121", "resnet18"])
def test_p58_every_relu_of_a_network_is_guided(build):
    net, x = settle(getattr(torchvision.models, build)(weights=None)), noise_images()
    expected = guided_by_hand(net, x, [1, 2])
    assert rel(guided_backprop(net, x, [1, 2]), expected) < 1e-5
    assert rel(saliency(net, x, [1, 2]), expected) > 0.1


def test_p60_the_interpolation_is_named_and_matters():
    net, x = residual(), random_images()
    nearest = guided_grad_cam(net, x, 1, layer="layer2", interpolate="nearest")
    assert rel(nearest, guided_grad_cam(net, x, 1, layer="layer2", interpolate="bilinear")) > 0.05
    cam = grad_cam(net, x, 1, layer="layer2")[:, None]
    expected = F.interpolate(cam, x.shape[2:], mode="nearest") * guided_backprop(net, x, 1)
    torch.testing.assert_close(nearest, expected, rtol=1e-12, atol=1e-16)


def test_p60_agrees_with_captum_at_nearest():
    captum = pytest.importorskip("captum.attr")
    net, x = plain(), random_images()
    peer = captum.GuidedGradCam(net, net.relu2)
    expected = peer.attribute(x.clone(), [2, 0, 5], interpolate_mode="nearest").detach()
    actual = guided_grad_cam(plain(), x, [2, 0, 5], layer="relu2", interpolate="nearest")
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-14)
