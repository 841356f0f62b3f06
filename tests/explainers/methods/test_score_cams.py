"""Score-CAM, SS-CAM and IS-CAM: the masked images, their cost, and the peers by rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import default_layer, explain, is_cam, score_cam, ss_cam
from explainers.maps.resize import rank_correlation
from explainers.methods.cams.channel_groups import group_channels
from tests.support.nets import Residual, act_grad, check_once, random_images, rel, residual, settle
from tests.support.oracles.cams import mask_weighted_cam

CLASSES = [2, 0, 5]
FAMILY = [(score_cam, {}), (ss_cam, {"samples": 2}), (is_cam, {"steps": 3})]
family = pytest.mark.parametrize(("method", "options"), FAMILY, ids=[m.__name__ for m, _ in FAMILY])


class RecordInputs(nn.Module):
    """Keeps the inputs of each forward pass."""

    def __init__(self, net):
        super().__init__()
        self.net, self.inputs = net, []

    def forward(self, x):
        self.inputs.append(x.detach().clone())
        return self.net(x)


# Rows of peers.md


def test_p33_no_masked_image_is_brighter_than_the_original():
    """torchcam's coefficients add up to 5.5; here they are i / N."""
    net, images = RecordInputs(residual()), random_images(2)
    check_once(net, images)
    net.inputs.clear()
    is_cam(net, images, 1, layer="net.layer2", steps=10)
    highest = images.abs().amax((1, 2, 3)).max()
    assert len(net.inputs) > 2 and all(float(x.abs().max()) <= float(highest) for x in net.inputs)


def test_p33_the_coefficients_are_i_over_n():
    net, images = residual(), random_images()
    expected = mask_weighted_cam(net, images, CLASSES, lambda mask: [mask * i / 4 for i in (1, 2, 3, 4)])
    cumulated = mask_weighted_cam(net, images, CLASSES, lambda mask: [mask * i / 4 for i in (1, 3, 6, 10)])
    actual = is_cam(net, images, CLASSES, layer="layer2", steps=4, relu=False)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
    assert rel(actual, cumulated) > 1e-3


def test_p34_masks_are_upsampled_and_then_normalized():
    """Each mask spans 0 to 1 at the image's size; normalized before upsampling, it would not."""
    net, images = RecordInputs(residual()), torch.ones(1, 3, 12, 16, dtype=torch.float64)
    images[:, 0, 0, 0] = 1.5  # a constant image would have constant activations
    score_cam(net, images, 1, layer="net.layer2", batch_size=6)
    channels = torch.cat([x[:, 1] for x in net.inputs if len(x) == 6])
    assert len(channels) == 6
    torch.testing.assert_close(channels.amax((1, 2)), torch.ones(6).double())
    torch.testing.assert_close(channels.amin((1, 2)), torch.zeros(6).double())


@family
def test_p34_a_batch_equals_its_images_one_by_one(method, options):
    net, images = residual(), random_images()
    batch = method(net, images, CLASSES, **options)
    for n, c in enumerate(CLASSES):
        torch.testing.assert_close(method(net, images[n : n + 1], c, **options)[0], batch[n], rtol=1e-10, atol=1e-12)


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
    net.fc.weight.data *= 1000
    assert not any(each.code == "uniform_weights" for each in explain("score_cam", net, images, CLASSES).findings[0])


@family
def test_p36_no_more_than_batch_size_images_run_at_once(method, options):
    net, images = RecordInputs(residual()), random_images(4)
    method(net, images, 1, layer="net.layer2", batch_size=4, **options)
    assert max(len(x) for x in net.inputs) == 4, "the batch itself and chunks of it, never all channels"


def test_p36_memory_does_not_grow_with_channels_and_images(monkeypatch):
    """The largest tensor created is a chunk of images."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                Largest.size = max(Largest.size, result.numel())
            return result

    def largest(width, count):
        Largest.size = 0
        net, images = settle(Residual(width=width).double()), random_images(count)
        score_cam(net, images, 1, layer="layer2", batch_size=2)
        with Largest():
            score_cam(net, images, 1, layer="layer2", batch_size=2)
        return Largest.size / (12 * 16)

    # A chunk of 2 images at the widest layer, or all images at once there: never channels × images × 3.
    assert largest(24, 1) <= 2 * 24
    assert largest(24, 4) <= 4 * 24


# By hand


@family
def test_increase_is_the_score_minus_that_of_a_blank_image(method, options):
    net, images = residual(), random_images()
    by_hand = []
    for image, c in zip(images, CLASSES, strict=True):
        a = act_grad(net, net.layer2, image[None], [c])[0][0]
        weights = []
        for plane in a:
            mask = torch.nn.functional.interpolate(plane[None, None], (12, 16), mode="bilinear")[0, 0]
            mask = (mask - mask.min()) / (mask.max() - mask.min())
            parts = [mask * i / 3 for i in (1, 2, 3)] if method is is_cam else [mask]
            with torch.no_grad():
                blank = net(torch.zeros_like(image[None]))[0, c]
                weights.append(sum(net((part * image)[None])[0, c] - blank for part in parts) / len(parts))
        by_hand.append(sum(w * plane for w, plane in zip(weights, a, strict=True)))
    quiet = {"sigma": 0.0} if method is ss_cam else {}
    actual = method(net, images, CLASSES, layer="layer2", weights="increase", relu=False, **quiet, **options)
    torch.testing.assert_close(actual, torch.stack(by_hand), rtol=1e-9, atol=1e-11)
    assert (actual < 0).any()


@family
def test_a_constant_on_all_logits_changes_nothing(method, options):
    net, images = residual(), random_images()
    for weights in ("softmax", "increase"):
        before = method(net, images, CLASSES, weights=weights, relu=False, **options)
        net.fc.bias.data += 100
        after = method(net, images, CLASSES, weights=weights, relu=False, **options)
        net.fc.bias.data -= 100
        torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-10)


@family
def test_constant_channels_share_one_blank_image(method, options):
    """They are not run one by one, and enter the softmax with the score of the blank image."""
    images = random_images()
    net = residual()
    for parameter in (net.layer2.bn2.weight, net.layer2.bn2.bias):
        parameter.data[:2] = 0
    for parameter in (net.layer1.bn2.weight, net.layer1.bn2.bias, net.bn1.weight, net.bn1.bias):
        parameter.data[:2] = 0
    assert not act_grad(net, net.layer2, images, CLASSES)[0][:, :2].any()
    watch = RecordInputs(net)
    check_once(watch, images[:1])
    watch.inputs.clear()

    actual = method(watch, images[:1], 2, layer="net.layer2", relu=False, **options)

    # The network runs on the image, the blank image and those masked by four channels.
    repeats = options.get("samples", options.get("steps", 1))
    assert sum(len(x) for x in watch.inputs) <= 4 * repeats + 4
    assert actual.isfinite().all()
    if method is score_cam:
        a = act_grad(net, net.layer2, images[:1], [2])[0][0]
        scores = []
        for plane in a:
            mask = torch.nn.functional.interpolate(plane[None, None], (12, 16), mode="bilinear")[0, 0]
            span = mask.max() - mask.min()
            mask = (mask - mask.min()) / span if span > 0 else torch.zeros_like(mask)
            scores.append(net((mask * images[0])[None])[0, 2].detach())
        expected = torch.einsum("k,khw->hw", torch.stack(scores).softmax(0), a)
        torch.testing.assert_close(actual[0], expected, rtol=1e-9, atol=1e-11)


def test_a_layer_of_constant_channels_gives_their_mean():
    class Even(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.AvgPool2d((3, 4))
            self.fc = nn.Linear(3, 4)

        def forward(self, x):
            return self.fc(self.layer(x).mean((2, 3)))

    net = settle(Even().double())
    images = torch.ones(2, 3, 6, 8, dtype=torch.float64) * torch.tensor([1.0, 2.0, 6.0]).view(1, 3, 1, 1)
    for method, options in FAMILY:
        torch.testing.assert_close(
            method(net, images, 1, layer="layer", **options), torch.full((2, 2, 2), 3.0).double()
        )


# Channels that share a mask


def test_channels_with_the_same_mask_are_grouped():
    """Oracle: three patterns, each several times, stretched and shifted."""
    patterns = torch.rand(3, 5, 6, generator=torch.Generator().manual_seed(0)).double()
    kinds = torch.tensor([2, 0, 0, 1, 2, 1, 0])
    planes = patterns[kinds] * torch.tensor([1.0, 2, 9, 3, 4, 1, 5]).view(-1, 1, 1) - torch.arange(7).view(-1, 1, 1)
    chosen, leader = group_channels(planes, 3)
    assert sorted(kinds[chosen].tolist()) == [0, 1, 2]
    assert torch.equal(kinds[leader], kinds) and torch.equal(leader[chosen], chosen)


@pytest.mark.parametrize("count", [7, 8, 1000])
def test_as_many_masks_as_channels_is_the_method_of_the_paper(count):
    planes = torch.rand(7, 4, 4)
    chosen, leader = group_channels(planes, count)
    assert chosen.tolist() == leader.tolist() == list(range(7))


def test_fewer_channels_are_a_prefix_of_more_also_with_equal_masks():
    planes = torch.rand(9, 40, 24, generator=torch.Generator().manual_seed(1))
    planes[5] = planes[2] = planes[0]
    for count in range(1, 9):
        chosen, leader = group_channels(planes, count)
        assert torch.equal(chosen, group_channels(planes, 8)[0][:count]) and len(chosen.unique()) == count
        assert torch.equal(leader[chosen], chosen) and set(leader.tolist()) <= set(chosen.tolist())


@family
@pytest.mark.parametrize("weights", ["softmax", "increase"])
def test_a_channel_has_the_score_of_its_most_similar_mask(method, options, weights):
    """Oracle: the score of each group's representative, masked one by one, is that of all its channels."""
    net, images = residual(), random_images(1)
    quiet = {"sigma": 0.0} if method is ss_cam else {}
    a = act_grad(net, net.layer2, images, [2])[0][0]
    _, leader = group_channels(a, 4)
    assert len(leader.unique()) == 4 < len(a)
    parts = [i / 3 for i in (1, 2, 3)] if method is is_cam else [1.0]
    with torch.no_grad():
        blank = net(torch.zeros_like(images))[0, 2]
        scores = []
        for plane in a[leader]:
            mask = torch.nn.functional.interpolate(plane[None, None], (12, 16), mode="bilinear")[0, 0]
            mask = (mask - mask.min()) / (mask.max() - mask.min())
            scores.append(sum(net(images * mask * part)[0, 2] for part in parts) / len(parts))
    w = torch.stack(scores).softmax(0) if weights == "softmax" else torch.stack(scores) - blank
    watch = RecordInputs(net)
    default_layer(watch, images)  # a separate pass
    check_once(watch, images)
    watch.inputs.clear()
    found = method(watch, images, 2, layer="net.layer2", channels=4, weights=weights, relu=False, **quiet, **options)
    torch.testing.assert_close(found[0], torch.einsum("k,khw->hw", w, a), rtol=1e-9, atol=1e-11)
    repeats = options.get("samples", options.get("steps", 1))
    # One row is a new profile, because the recorded inputs are a changed attribute of the network.
    assert sum(len(x) for x in watch.inputs) <= 4 * repeats + 4


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


def test_ss_cam_without_noise_is_score_cam_and_samples_do_not_depend_on_the_batch_size():
    net, images = residual(), random_images()
    plain = score_cam(net, images, CLASSES)
    torch.testing.assert_close(ss_cam(net, images, CLASSES, samples=3, sigma=0.0), plain, rtol=1e-9, atol=1e-11)
    noisy = ss_cam(net, images, CLASSES, samples=3, seed=1)
    assert rel(noisy, plain) > 1e-2
    for size in (1, 4, 100):
        found = ss_cam(net, images, CLASSES, samples=3, seed=1, batch_size=size)
        torch.testing.assert_close(found, noisy, rtol=1e-9, atol=1e-11)


# Peers, by rank


def resnet():
    import torchvision

    return settle(torchvision.models.resnet18(weights=None))


def test_score_cam_agrees_with_torchcam_by_rank():
    """torchcam normalizes before it upsamples; masks differ a little, ranks hardly."""
    torchcam = pytest.importorskip("torchcam.methods")
    net, images = resnet(), torch.randn(1, 3, 48, 64, generator=torch.Generator().manual_seed(0))
    with torchcam.ScoreCAM(net, "layer1", input_shape=(3, 48, 64)) as extractor:
        expected = extractor(3, net(images), normalized=False)[0]
    ours = score_cam(net, images, 3, layer="layer1")
    assert rank_correlation(ours, expected) > 0.999
    assert rel(ours, expected) < 0.02


def test_score_cam_in_bfloat16_keeps_the_ranks():
    net, images = resnet(), torch.randn(1, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    full = score_cam(net, images, 3, layer="layer2", channels=32)
    half = score_cam(net, images, 3, layer="layer2", channels=32, precision="bf16")
    assert rank_correlation(half, full) > 0.999
