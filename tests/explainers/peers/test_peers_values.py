"""Units, missing warnings, values and cost, where other libraries are wrong or slow."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

import explainers
from explainers import Logit, Probability, explain, grad_cam
from tests.support.nets import (
    Residual,
    Uniform,
    Written,
    act_grad,
    cam_by_hand,
    check_once,
    plain,
    random_images,
    rel,
    residual,
    settle,
)
from tests.support.oracles import drops_by_hand

pytestmark = pytest.mark.sample


def codes(explanation, index=0):
    return [finding.code for finding in explanation.findings[index]]


def test_p20_uniform_positive_map_is_a_quarter_everywhere():
    found = grad_cam(Uniform(), torch.ones(1, 1, 2, 2), 0, layer="conv")
    assert torch.equal(found, torch.full((1, 2, 2), 0.25))
    assert "flat" in codes(explain("grad_cam", Uniform(), torch.ones(1, 1, 2, 2), 0, layer="conv"))


def test_p21_negative_sums_are_kept_and_reported():
    x = torch.ones(1, 1, 2, 2)
    assert torch.equal(grad_cam(Uniform(), x, 1, layer="conv", relu=False), torch.full((1, 2, 2), -0.25))
    e = explain("grad_cam", Uniform(), x, 1, layer="conv")
    assert e.map.eq(0).all() and torch.equal(e.raw, torch.full((1, 2, 2), -0.25))
    assert "nothing_positive" in codes(e)
    (finding,) = [f for f in e.findings[0] if f.code == "nothing_positive"]
    x[0, 0, 0, 0] = 3.0
    given = {"method": "grad_cam", "model": Uniform(), "images": x, "target": 1, "layer": "conv"}
    assert explain(**(given | finding.remedy)).map.any()


def test_p22_a_map_of_one_cell_has_its_value():
    net, x = settle(torchvision.models.resnet18(weights=None)), torch.randn(2, 3, 32, 32)
    expected = cam_by_hand(net, net.layer4, x, [3, 5])
    assert expected.shape == (2, 1, 1)
    actual = grad_cam(net, x, [3, 5], layer="layer4", relu=False)
    assert rel(actual, expected) < 1e-5 and (actual != 0).all()
    assert "nothing_spatial" in codes(explain("grad_cam", net, x, [3, 5], layer="layer4"))


def test_p23_saturated_softmax_is_a_finding_and_the_logit_is_not():
    net, x = residual().float(), random_images().float()
    net.fc.weight.data *= 1e4
    best = net(x).argmax(1).tolist()
    assert "saturated" in codes(explain("grad_cam", net, x, Probability(best)))
    assert "saturated" not in codes(explain("grad_cam", net, x, best))
    assert explain("grad_cam", net, x, Logit(best), relu=False).map.any()
    assert explain("grad_cam", net, x).target == best, "the default target is the logit of the top class"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_p30_p31_grad_cam_pp_is_equation_19_without_an_epsilon(dtype):
    """By hand; a coefficient that is never applied is far off.

    Gradients of 1e-4 and below: g^2 is 1e-8, where an epsilon of 1e-6 dominates, and g^3 underflows in float16.
    """
    net, x = plain().double(), random_images()
    net.head.weight.data *= 0.01
    net, x = net.to(dtype), x.to(dtype)
    a, g, _ = act_grad(net, net.relu2, x, [2, 0, 5])
    a, g = a.double(), g.double()
    assert g.abs().median() < 1e-3
    denominator = 2 * g**2 + a.sum((2, 3), keepdim=True) * g**3
    alpha = torch.where(denominator != 0, g**2 / denominator, 0)
    expected = ((alpha * g.relu()).sum((2, 3), keepdim=True) * a).sum(1).relu()
    assert rel(explainers.grad_cam_pp(net, x, [2, 0, 5], layer="relu2"), expected) < 1e-5
    with_epsilon = ((g**2 / (denominator + 1e-6) * g.relu()).sum((2, 3), keepdim=True) * a).sum(1).relu()
    assert rel(with_epsilon, expected) > 0.1


def test_p37_p38_ablation_weights_are_drops_for_every_chunk():
    """Whatever the sign of the score and of the layer; zero is the baseline, and the chunk size plays no part."""
    net, x = residual(), random_images(2)
    net.fc.bias.data -= net(x).max().detach() + 1
    drops, a = drops_by_hand(net, net.layer2.bn2, x, [2, 0])
    assert a.min() < 0
    expected = torch.einsum("nk,nkhw->nhw", drops, a)
    for size in (1, 4, 32):
        options = {"layer": "layer2.bn2", "batch_size": size}
        torch.testing.assert_close(explainers.channel_effects(net, x, [2, 0], **options), drops, rtol=1e-9, atol=1e-12)
        found = explainers.ablation_cam(net, x, [2, 0], relu=False, **options)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_p39_a_sweep_does_not_depend_on_the_order_of_layers():
    """Also around a layer that returns its input, as Dropout does: its gradient must exclude that of the skip."""

    def skip(net, x):
        y = net.conv(x)
        return net.fc((y + torch.tanh(net.drop(y))).mean((2, 3)))

    around = Written(skip, conv=nn.Conv2d(3, 4, 3, padding=1), drop=nn.Dropout(0.5), fc=nn.Linear(4, 5))
    x = random_images()  # all layers of the first network have the same number of channels
    for net, layers in ((Residual(width=8), ["layer1", "layer2"]), (around, ["conv", "drop"])):
        settle(net.double())
        forward = explainers.grad_cam_sweep(net, x, 1, layers=layers, relu=False)
        backward = explainers.grad_cam_sweep(net, x, 1, layers=layers[::-1], relu=False)
        assert set(forward) == set(backward) == set(layers)
        for name in layers:
            assert torch.equal(forward[name], backward[name])
            alone = grad_cam(net, x, 1, layer=name, relu=False)
            torch.testing.assert_close(forward[name], alone, rtol=1e-10, atol=1e-14)
        assert not torch.equal(*forward.values())


def batch_sizes(module, work):
    """Batch sizes of the forward passes through `module` while `work` ran."""
    seen = []
    handle = module.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    work()
    handle.remove()
    return seen


def test_p106_grad_cam_and_its_explanation_are_one_forward_which_builds_no_graph_before_the_layer():
    net, x = residual(), random_images()
    grad_cam(net, x, layer="layer2")
    assert batch_sizes(net.conv1, lambda: grad_cam(net, x, layer="layer2")) == [3]
    assert batch_sizes(net.conv1, lambda: explain("grad_cam", net, x)) == [3], "none for the runner-up's map either"
    modes = []
    handle = net.layer1.register_forward_hook(lambda m, i, o: modes.append(o.requires_grad))
    grad_cam(net, x, layer="layer2")
    handle.remove()
    assert modes == [False], "idea 1: the graph starts at the layer"


@pytest.mark.parametrize("method", [explainers.ablation_cam, explainers.channel_effects], ids=lambda m: m.__name__)
def test_p107_stages_before_the_ablated_layer_do_not_see_the_copies(method):
    """Idea 4: the prefix runs with one image per chunk, only the rest with a copy for each channel."""
    net, x = residual(), random_images(1)
    check_once(net, x)
    before = batch_sizes(net.layer1, lambda: method(net, x, 1, layer="layer2"))
    after = batch_sizes(net.fuse, lambda: method(net, x, 1, layer="layer2"))
    assert max(before) == 1 and len(before) <= 3
    assert sum(after) >= 6
