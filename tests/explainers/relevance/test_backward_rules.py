"""Guided backpropagation and deconvnet: rules at ReLUs in every implementation (module, functional, method)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explainers import ExplainerError, deconvnet, explain, guided_backprop, guided_grad_cam, saliency
from tests.support.nets import Activated, OneConv, act_grad, curved, plain, ramp, random_images, rel, residual, settle
from tests.support.oracles import rule_by_hand

CLASSES = [2, 0, 5]
RULES = [guided_backprop, deconvnet]
each_rule = pytest.mark.parametrize("method", RULES, ids=lambda m: m.__name__)


def net_with(act):
    return settle(Activated(act).double())


@each_rule
@pytest.mark.parametrize(
    "act",
    [
        F.relu,
        torch.relu,
        lambda x: x.relu(),
        lambda x: F.relu(x * 1, inplace=True),
        lambda x: x.clamp(min=0),
        lambda x: torch.clamp_min(x, 0),
        lambda x: torch.maximum(torch.zeros(()), x),
        lambda x: F.threshold(x, 0, 0),
        nn.ReLU(inplace=True),
    ],
    ids="F.relu torch.relu Tensor.relu in_place clamp clamp_min maximum threshold shared_module".split(),
)
def test_every_implementation_of_relu_gets_the_same_rule(method, act):
    """A ReLU that is indistinguishable from another operation may be refused, but never skipped silently."""
    net, x = net_with(nn.ReLU()), random_images()
    expected = method(net, x, CLASSES)
    assert not torch.allclose(expected, saliency(net, x, CLASSES))
    try:
        actual = method(net_with(act), x, CLASSES)
    except ExplainerError:
        return
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-15)


@each_rule
@pytest.mark.parametrize("inplace", [False, True])
def test_rules_by_hand(method, inplace):
    net, x = plain(inplace=inplace), random_images()
    expected = rule_by_hand(plain(), x, CLASSES, gate=method is guided_backprop)
    torch.testing.assert_close(method(net, x, CLASSES), expected, rtol=1e-11, atol=1e-14)


@each_rule
@pytest.mark.parametrize(
    "act",
    [
        nn.SiLU(),
        F.silu,
        nn.GELU(),
        F.gelu,
        nn.Hardswish(),
        F.hardswish,
        nn.LeakyReLU(),
        F.leaky_relu,
        nn.ELU(),
        F.elu,
        nn.PReLU(),
        nn.Mish(),
        F.softplus,
    ],
)
def test_other_activations_are_refused_by_name(method, act):
    with pytest.raises(ExplainerError) as raised:
        method(net_with(act), random_images(), CLASSES)
    name = type(act).__name__ if isinstance(act, nn.Module) else act.__name__
    assert name.lower().replace("_", "") in str(raised.value).lower().replace("_", ""), (
        "the refusal names the operation"
    )
    assert "saliency" in str(raised.value)


@each_rule
def test_relu6_is_guided_or_refused(method):
    """Guided ReLU6 passes positive gradients between 0 and 6; it is never silently the plain gradient."""
    for act in (nn.ReLU6(), F.relu6, lambda x: x.clamp(0, 6)):
        net, x = net_with(act), random_images()
        try:
            found = method(net, x, CLASSES)
        except ExplainerError as refusal:
            assert len(str(refusal)) > 20
        else:
            assert rel(found, saliency(net, x, CLASSES)) > 0.1


@each_rule
def test_network_without_relu_is_refused(method):
    with pytest.raises(ExplainerError, match="ReLU|Softplus"):
        method(curved(), random_images(), CLASSES)


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


def test_guided_backprop_agrees_with_captum_on_a_resnet():
    captum = pytest.importorskip("captum.attr")
    import torchvision

    net = settle(torchvision.models.resnet18(weights=None))
    x = torch.randn(2, 3, 64, 64)
    expected = captum.GuidedBackprop(net).attribute(x.clone(), [1, 2]).detach()
    assert rel(guided_backprop(net, x, [1, 2]), expected) < 1e-5


@each_rule
def test_the_plain_gradient_is_bit_identical_afterwards(method):
    net, x = residual(), random_images()
    before = saliency(net, x, CLASSES)
    method(net, x, CLASSES)
    assert torch.equal(saliency(net, x, CLASSES), before)


@each_rule
def test_max_pool_and_dropout_keep_their_gradients(method):
    """The rule applies only to ReLUs."""

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)
            self.drop = nn.Dropout(0.5)
            self.fc = nn.Linear(4, 7)

        def forward(self, x):
            return self.fc(self.drop(F.max_pool2d(self.conv(x).relu(), 2)).mean((2, 3)))

    net, x = settle(Pooled().double()), random_images()
    z = net.conv(x).detach()
    y = z.relu().requires_grad_()
    (g,) = torch.autograd.grad(net.fc(F.max_pool2d(y, 2).mean((2, 3)))[range(3), CLASSES].sum(), y)
    g = g.clamp(min=0) * ((z > 0) if method is guided_backprop else 1)
    expected = F.conv_transpose2d(g, net.conv.weight, padding=1).detach()
    torch.testing.assert_close(method(net, x, CLASSES), expected, rtol=1e-11, atol=1e-14)


def test_explain_raises_the_methods_error():
    with pytest.raises(ExplainerError, match="saliency"):
        explain("guided_backprop", net_with(nn.SiLU()), random_images())
