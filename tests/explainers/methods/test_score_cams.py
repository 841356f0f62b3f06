"""Score-CAM, SS-CAM and IS-CAM: the masked images, their cost, and other libraries by rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import explain, is_cam, score_cam, ss_cam
from explainers.methods.cams.channel_groups import group_channels
from tests.support.nets import act_grad, random_images, rel, residual, settle
from tests.support.oracles.cams import mask_weighted_cam

CLASSES = [2, 0, 5]
FAMILY = [(score_cam, {}), (ss_cam, {"samples": 2, "sigma": 0.0}), (is_cam, {"steps": 3})]
family = pytest.mark.parametrize(("method", "options"), FAMILY, ids=[m.__name__ for m, _ in FAMILY])


class RecordInputs(nn.Module):
    """Keeps the inputs of each forward pass."""

    def __init__(self, net):
        super().__init__()
        self.net, self.inputs = net, []

    def forward(self, x):
        self.inputs.append(x.detach().clone())
        return self.net(x)


def test_p35_nearly_uniform_weights_are_reported_and_the_remedy_helps():
    net, images = residual(), random_images()
    net.fc.weight.data *= 0.01  # scores that lie close together
    e = explain("score_cam", net, images, CLASSES)
    for found in e.findings:
        (told,) = [each for each in found if each.code == "uniform_weights"]
        assert "nearly uniform" in told.sentence and told.remedy == {"weights": "increase"}
    mean = act_grad(net, net.layer2, images, CLASSES)[0].mean(1)
    assert rel(e.raw, mean) < 0.05, "as the message says"
    better = explain("score_cam", net, images, CLASSES, weights="increase")
    assert not any(each.code == "uniform_weights" for found in better.findings for each in found)
    assert rel(better.raw, mean) > 0.5


@family
def test_p36_no_more_than_batch_size_images_run_at_once(method, options):
    net, images = RecordInputs(residual()), random_images(4)
    method(net, images, 1, layer="net.layer2", batch_size=4, **options)
    assert max(len(x) for x in net.inputs) == 4, "the batch itself and chunks of it, never all channels"


# By hand


def parts_of(method):
    """The masks of one channel with the options of FAMILY, without noise."""
    return lambda mask: [mask * i / 3 for i in (1, 2, 3)] if method is is_cam else [mask]


@family
def test_p33_p34_increase_is_the_score_minus_that_of_a_blank_image(method, options):
    """Masks are upsampled and then normalized, and those of IS-CAM are i / N of one; torchcam's add up to 5.5."""
    net, images = residual(), random_images()
    expected = mask_weighted_cam(net, images, CLASSES, parts_of(method), increase=True)
    actual = method(net, images, CLASSES, layer="layer2", weights="increase", relu=False, **options)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
    assert (actual < 0).any()


@family
def test_constant_channels_share_one_blank_image(method, options):
    """They enter the softmax with the score of the blank image."""
    net, images = residual(), random_images(1)
    for norm in (net.bn1, net.layer1.bn2, net.layer2.bn2):
        norm.weight.data[:2] = norm.bias.data[:2] = 0
    assert not act_grad(net, net.layer2, images, [2])[0][:, :2].any()
    actual = method(net, images, 2, layer="layer2", relu=False, **options)
    expected = mask_weighted_cam(net, images, [2], parts_of(method))
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def test_a_layer_of_constant_channels_gives_their_mean():
    net = nn.Sequential(nn.AvgPool2d((3, 4)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    images = torch.ones(2, 3, 6, 8, dtype=torch.float64) * torch.tensor([1.0, 2.0, 6.0]).view(1, 3, 1, 1)
    for method, options in FAMILY:
        found = method(settle(net.double()), images, 1, layer="0", **options)
        torch.testing.assert_close(found, torch.full((2, 2, 2), 3.0).double())


# Channels that share a mask


def test_channels_with_the_same_mask_are_grouped():
    """Oracle: three patterns, each several times, stretched and shifted."""
    patterns = torch.rand(3, 5, 6, generator=torch.Generator().manual_seed(0)).double()
    kinds = torch.tensor([2, 0, 0, 1, 2, 1, 0])
    planes = patterns[kinds] * torch.tensor([1.0, 2, 9, 3, 4, 1, 5]).view(-1, 1, 1) - torch.arange(7).view(-1, 1, 1)
    chosen, leader = group_channels(planes, 3)
    assert sorted(kinds[chosen].tolist()) == [0, 1, 2]
    assert torch.equal(kinds[leader], kinds) and torch.equal(leader[chosen], chosen)


@family
def test_a_channel_has_the_score_of_its_most_similar_mask(method, options):
    """Oracle: the score of each group's representative, masked one by one, is that of all its channels."""
    net, images = residual(), random_images(1)
    _, leader = group_channels(act_grad(net, net.layer2, images, [2])[0][0], 4)
    assert len(leader.unique()) == 4 < len(leader)
    for weights in ("softmax", "increase"):
        given = {"increase": weights == "increase", "leader": leader}
        expected = mask_weighted_cam(net, images, [2], parts_of(method), **given)
        found = method(net, images, 2, layer="layer2", channels=4, weights=weights, relu=False, **options)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_shared_masks_are_reported_and_the_remedy_is_the_full_run():
    net, images = residual(), random_images(2)
    few = explain("score_cam", net, images, [2, 0], layer="layer2", channels=3)
    for row in few.findings:
        (told,) = [each for each in row if each.code == "shared_looks"]
        assert told.sentence.startswith("Only 3 of 6 channels") and told.remedy == {"channels": 6}
    full = explain("score_cam", net, images, [2, 0], layer="layer2", channels=6)
    assert not any(each.code == "shared_looks" for row in full.findings for each in row)
    assert torch.equal(full.raw, explain("score_cam", net, images, [2, 0], layer="layer2").raw)
    assert rel(few.raw, full.raw) > 1e-3


# Stop, budget, noise


@family
def test_stopped_early_only_evaluated_channels_have_a_weight(method, options):
    net, images = residual(), random_images(1)
    shown = []

    def stop(partial):
        shown.append(partial.map)
        return len(shown) < 3

    found = method(net, images, 2, layer="layer2", batch_size=1, progress=stop, relu=False, **options)

    assert torch.equal(found, shown[-1])
    a = act_grad(net, net.layer2, images, [2])[0][0, :3]
    coefficients = torch.linalg.lstsq(a.flatten(1).T, found.flatten()[:, None]).solution[:, 0]
    torch.testing.assert_close(torch.einsum("k,khw->hw", coefficients, a), found[0])
    assert float(coefficients.sum()) == pytest.approx(1) and (coefficients > 0).all()


# Other libraries, by rank
