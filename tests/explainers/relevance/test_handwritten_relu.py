"""Guided backpropagation and deconvnet, and ReLUs in every form: the rule of `torch.relu` or a refusal.

Other libraries only guide ReLU modules (p57, p58).
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from explainers import UnsupportedOperation, deconvnet, deep_lift, explain, guided_backprop, guided_grad_cam, saliency
from tests.support.nets import Written, act_grad, random_images, rel, residual, settle

CLASSES = [2, 0, 5]
METHODS = [guided_backprop, deconvnet, deep_lift]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)


def net_with(act):
    """A ReLU module and an activation of another form, which would be missed silently."""
    parts = {"conv1": nn.Conv2d(3, 6, 3), "conv2": nn.Conv2d(6, 5, 3), "relu": nn.ReLU(), "fc": nn.Linear(5, 7)}
    net = Written(lambda net, x: net.fc(net.relu(net.conv2(act(net.conv1(x)))).mean((2, 3))), **parts)
    return settle(net.double())


def set_item(x):
    x = 1 * x
    x[x < 0] = 0
    return x


FORMS = {
    "x * (x > 0)": lambda x: x * (x > 0),
    "float mask": lambda x: x * (x >= 0).float(),
    "detached": lambda x: x * (x.detach() > 0).to(x.dtype),
    "1 - mask": lambda x: x * (1 - (x < 0).to(x.dtype)),
    "not": lambda x: x * torch.logical_not(x < 0),
    "ones or zeros": lambda x: torch.where(x > 0, torch.ones_like(x), torch.zeros_like(x)) * x,
    "where": lambda x: torch.where(x > 0, x, 0),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0),
    "masked_fill_": lambda x: (1 * x).masked_fill_(~(x > 0), 0.0),
    "setitem": set_item,
    "mul_": lambda x: (1 * x).mul_(x > 0),
    "max": lambda x: torch.max(x, torch.zeros_like(x)),
    "clamp": lambda x: x.clamp(min=0),
    "clamp tensor": lambda x: torch.clamp(x, min=torch.zeros((), dtype=x.dtype)),
    "threshold": lambda x: F.threshold(x, 0, 0),
    "abs": lambda x: (x + x.abs()) / 2,
    "heaviside": lambda x: x * torch.heaviside(x.detach(), torch.zeros((), dtype=x.dtype)),
    "sign": lambda x: x * x.sign().clamp(min=0),
}
OTHERS = {
    "leaky": (lambda x: torch.where(x > 0, x, 0.1 * x), "where"),
    "hard threshold": (lambda x: x * (x > 0.5), "mul"),
    "leaky product": (lambda x: x * ((x > 0) + 0.1 * (x <= 0)), "mul"),
    "negative part": (lambda x: x - x * (x < 0), "mul"),
}
LIMITS = {
    "abs": (torch.abs, "abs"),
    "hardtanh": (F.hardtanh, "Hardtanh"),
    "threshold": (lambda x: F.threshold(x, 0.5, 0.0), "Threshold"),
    "minimum": (lambda x: -torch.min(-x, torch.zeros_like(x)), "min"),
    "negative clamp": (lambda x: x - x.clamp(max=0), "min"),
    "silu": (F.silu, "SiLU"),
    "gelu": (F.gelu, "GELU"),
    "hardswish": (F.hardswish, "Hardswish"),
    "leaky_relu": (F.leaky_relu, "LeakyReLU"),
}


REFUSED = OTHERS | LIMITS
"""DeepLIFT has rules for `LIMITS`."""


@pytest.mark.parametrize("form", FORMS)
def test_p57_every_form_gets_the_rule_of_a_relu(form):
    x, net, with_module = random_images(2), net_with(FORMS[form]), net_with(nn.ReLU())
    for method in METHODS:
        expected = method(with_module, x, [2, 0])
        torch.testing.assert_close(method(net, x, [2, 0]), expected, rtol=1e-11, atol=1e-15)
        assert rel(expected, saliency(net, x, [2, 0])) > 0.05


@pytest.mark.parametrize("form", REFUSED)
def test_p57_other_selections_kinks_and_activations_are_refused_by_name(form):
    act, word = REFUSED[form]
    for method in METHODS if form in OTHERS else METHODS[:2]:
        with pytest.raises(UnsupportedOperation, match=f"{word}.*saliency"):
            method(net_with(act), random_images(), CLASSES)


@each_method
def test_masks_of_other_tensors_are_not_relus(method):
    """A mask of the image, a constant mask, and a lower limit that only avoids a division by 0 change no rule."""

    def masked(x):
        return x * (torch.arange(x.shape[-1]) > 2) / x.abs().amax().detach().clamp(min=1e-6)

    def plain(x):
        return x * (torch.arange(x.shape[-1]) > 2).double().view(1, 1, 1, -1) / float(x.detach().abs().amax())

    x = random_images(1)
    if method is deep_lift:  # the detached maximum differs between image and baseline
        assert any(f.code == "incomplete" for f in explain("deep_lift", net_with(masked), x, 2).findings[0])
        return
    torch.testing.assert_close(method(net_with(masked), x, 2), method(net_with(plain), x, 2), rtol=1e-10, atol=1e-14)


def test_modified_sizes_are_not_mistaken():
    """|x| of a value that was changed afterwards is not its size."""

    def act(x):
        x = 1 * x
        size = x.abs()
        x += 1
        return x + size

    with pytest.raises(UnsupportedOperation, match="abs"):
        guided_backprop(net_with(act), random_images(), CLASSES)


def test_p60_guided_grad_cam_is_the_product_with_the_named_interpolation():
    net, x = residual(), random_images()
    a, g, _ = act_grad(net, net.layer2, x, CLASSES)
    cam = (g.mean((2, 3), keepdim=True) * a).sum(1, keepdim=True).relu()
    large = F.interpolate(cam, x.shape[2:], mode="bilinear", align_corners=False)
    actual = guided_grad_cam(net, x, CLASSES, layer="layer2", interpolate="bilinear")
    torch.testing.assert_close(actual, large * guided_backprop(net, x, CLASSES), rtol=1e-10, atol=1e-14)


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


def test_p58_every_relu_of_a_network_is_guided():
    """A DenseNet ends with a ReLU that is a function."""
    net, x = settle(torchvision.models.DenseNet(8, (2, 2, 2), 16)), random_images(2, 3, 64, 64).float()
    expected = guided_by_hand(net, x, [1, 2])
    assert rel(guided_backprop(net, x, [1, 2]), expected) < 1e-5
    assert rel(saliency(net, x, [1, 2]), expected) > 0.1
