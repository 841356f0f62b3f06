"""DeepLIFT and LRP where other libraries refuse or are wrong; and the coverage of torchvision."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explainers import METHODS, UnsupportedOperation, deep_lift, explain, lrp
from tests.explainers.relevance.test_relevance import input_x_gradient, without_bias
from tests.support.nets import Activated, random_images, rel, settle
from tests.support.token_nets import conv_next, max_vit, swin_v1, swin_v2, vit

pytestmark = pytest.mark.sample

torchvision = pytest.importorskip("torchvision")

CLASSES = [2, 0, 5]


def noise_images(n=1, height=64, width=64):
    return torch.randn(n, 3, height, width, generator=torch.Generator().manual_seed(0))


def network(name):
    """The torchvision network with seeded weights and biases that keep the scale of the activations."""
    options = {"init_weights": False} if name == "googlenet" else {}
    return settle(torchvision.models.get_model(name, weights=None, **options))


def gap(net, x, found, target):
    """|Σ attribution − change of the score| as a share of the change."""
    with torch.no_grad():
        change = net(x)[:, target] - net(torch.zeros_like(x))[:, target]
    return float(((found.flatten(1).sum(1) - change) / change).abs().max())


# DeepLIFT


def test_p61_deep_lift_is_complete_on_resnet18():
    """captum refuses it: a module is used more than once."""
    net, x = network("resnet18"), noise_images(2)
    found = deep_lift(net, x, 1)
    assert gap(net, x, found, 1) < 1e-4
    alone = torch.cat([deep_lift(net, x[i : i + 1], 1) for i in range(2)])
    assert rel(found, alone) < 1e-4


ACTIVATIONS = F.relu, torch.relu, F.relu6, F.silu, F.gelu, F.hardswish, F.leaky_relu, nn.ReLU6(), nn.SiLU(), nn.GELU()


def test_p62_deep_lift_is_complete_for_every_activation():
    """captum sums to 0.0648 for a change of 0.0802 with functions and ReLU6, and is wrong for SiLU, GELU, Hardswish."""
    for act in ACTIVATIONS:
        net, x = settle(Activated(act).double()), random_images()
        for i, c in enumerate(CLASSES):
            assert gap(net, x[i : i + 1], deep_lift(net, x[i : i + 1], c), c) < 1e-9, act


def test_p63_max_pool_takes_the_gradient_of_its_own_image():
    """With captum, sample 1 gets zeros in the batch and ±12 without it."""

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool, self.fc = nn.MaxPool1d(4), nn.Linear(2, 2, bias=False)
            with torch.no_grad():
                self.fc.weight.copy_(torch.tensor([[1.0, 0.0], [-3.0, 3.0]]))

        def forward(self, x):
            return self.fc(self.pool(x.flatten(2) * 4).flatten(1))

    net, x = Pooled(), torch.zeros(2, 1, 2, 4)
    x[1, 0, 0, 0], x[1, 0, 1, 0] = 1.0, 1.0
    together = deep_lift(net, x, [0, 1])
    alone = torch.cat([deep_lift(net, x[i : i + 1], [i]) for i in range(2)])
    assert torch.equal(together, alone)
    assert together[1, 0, :, 0].tolist() == [-12.0, 12.0]


# LRP


def test_p64_relevance_is_conserved_on_a_resnet():
    """captum's sum is 5.4e10 for a logit of 0.19; additions, also in place, split it in proportion."""
    net, x = without_bias(network("resnet18")).double(), noise_images(2).double()
    score = net(x)[:, 1].detach()
    for options in ({"rule": "epsilon", "epsilon": 0.0}, {"composite": "epsilon_plus", "epsilon": 0.0}):
        found = lrp(net, x, 1, **options)
        torch.testing.assert_close(found.flatten(1).sum(1), score, rtol=1e-6, atol=1e-9)


class Averaged(nn.Module):
    def __init__(self, average) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.Linear(6, 7, bias=False)
        object.__setattr__(self, "average", average)

    def forward(self, x):
        return self.fc(self.average(F.relu(self.conv(x))))


AVERAGES = [
    lambda x: x.mean((2, 3)),
    lambda x: torch.mean(x, dim=[2, 3]),
    lambda x: x.mean([-2, -1], keepdim=True).flatten(1),
    lambda x: x.flatten(2).sum(-1) / (x.shape[2] * x.shape[3]),
    lambda x: nn.AdaptiveAvgPool2d(1)(x).flatten(1),
    lambda x: F.avg_pool2d(x, x.shape[2:]).squeeze(3).squeeze(2),
    lambda x: x.mean(3).mean(2),
]


def test_p65_p66_every_form_of_mean_and_relu_distributes_alike():
    """captum's sum is correct for `x.mean((2, 3))`, and its distribution 222 times off; 0.27 for functional ReLUs."""
    nets = [settle(Averaged(average).double()) for average in AVERAGES]
    relus = F.relu, lambda x: x.relu_(), lambda x: x.clamp(min=0)
    nets += [without_bias(settle(Activated(act).double())) for act in relus]
    for k, net in enumerate(nets):
        x = random_images()
        found = lrp(net, x, CLASSES, rule="epsilon", epsilon=0.0)
        assert rel(found, input_x_gradient(net, x)) < 1e-9, k


def test_p67_the_relevance_absorbed_is_reported():
    """captum: TypeError for ReLU6; GoogLeNet's and DenseNet's sums are too small without a warning."""
    stated = 0
    for name in ("mobilenet_v2", "googlenet"):
        net, x = network(name), noise_images()
        e = explain("lrp", net, x, 1)
        score, kept = net(x)[0, 1].item(), e.raw.sum().item()
        found = [each.sentence for each in e.findings[0] if each.code == "absorbed"]
        assert bool(found) == (abs(1 - kept / score) > 0.01)
        assert all(f"{kept:.3g}" in message and f"{score:.3g}" in message for message in found)
        stated += len(found)
    assert stated == 2


def test_p68_a_resnet_needs_no_canonizer():
    """zennit's EpsilonPlus without its canonizer gives 238 for a start of 1; here batch norm is always merged."""
    net, x = network("resnet18").double(), noise_images().double()
    merged = copy.deepcopy(net)
    for module in merged.modules():
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2"), ("0", "1")):
            if isinstance(getattr(module, norm, None), nn.BatchNorm2d):
                fused = torch.nn.utils.fusion.fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm))
                setattr(module, conv, fused)
                setattr(module, norm, nn.Identity())
    found = lrp(net, x, 1, composite="epsilon_plus")
    assert rel(found, lrp(merged, x, 1, composite="epsilon_plus")) < 1e-9
    assert abs(float(found.sum()) / net(x)[0, 1].item()) < 2


# Coverage of torchvision

COVERED = "deep_lift lrp excitation_backprop"
WHOLE = """
    resnet18 densenet121 googlenet squeezenet1_1 mobilenet_v2 mobilenet_v3_small mnasnet0_5 shufflenet_v2_x0_5
    efficientnet_b0 regnet_x_400mf regnet_y_400mf
""".split()


def short_vgg():
    net = torchvision.models.vgg11(num_classes=9, init_weights=False)
    net.avgpool, net.classifier[0], net.classifier[3] = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 32), nn.Linear(32, 32)
    net.classifier[6] = nn.Linear(32, 9)
    return settle(net)


SHORT = {
    "vgg11": short_vgg, "convnext_tiny": conv_next, "swin_t": swin_v1, "swin_v2_t": swin_v2, "vit_b_16": vit,
    "maxvit_t": max_vit,
}  # fmt: skip
"""The same operations in fewer and narrower layers."""
WITHOUT_EXCITATION = set(SHORT) - {"vgg11"}
"""Excitation backprop has no rule for an operation of these and refuses it by its layer."""


@pytest.mark.parametrize("name", WHOLE)
def test_torchvision_networks_are_covered(name):
    covers(network(name), noise_images(), COVERED)


@pytest.mark.parametrize("name", SHORT)
def test_large_networks_are_covered_by_shallow_versions(name):
    covers(SHORT[name]().float(), noise_images(), "deep_lift lrp" if name in WITHOUT_EXCITATION else COVERED)


def covers(net, x, methods):
    with torch.no_grad():
        scores = net(torch.cat([x, torch.zeros_like(x)]))
    target = int(scores[0].argmax())
    change = float(scores[0, target] - scores[1, target])
    for name in COVERED.split():
        if name not in methods:
            with pytest.raises(UnsupportedOperation, match="layer '"):
                METHODS[name](net, x, target)
            continue
        found = METHODS[name](net, x, target)
        assert found.shape == x.shape and found.isfinite().all() and found.any()
        if name == "deep_lift":
            # The score's own rounding is the floor: it does not shrink with the change.
            assert abs(float(found.sum()) - change) < 1e-4 * max(abs(change), 1e-2 * float(scores.abs().max()))
        if name == "excitation_backprop":
            assert 0 < float(found.sum()) < 1 + 1e-4 and float(found.min()) >= 0
