"""Gradient CAMs and their variants: identities, the Hessian term, references; masks of Score-CAM and its variants."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

import explainers
from explainers import BadTarget, explain, finer_cam, grad_cam, grad_cam_pp, is_cam, shapley_cam, smooth_grad_cam_pp
from explainers.maps.resize import rank_correlation, reduce_channels
from explainers.methods.cams.channel_groups import group_channels
from tests.support import nets
from tests.support.calls import codes
from tests.support.nets import ClassToken, Residual, act_grad, curved, plain, random_images, rel, residual, settle
from tests.support.oracles import drops_by_hand
from tests.support.oracles.cams import mask_weighted_cam, rest, second_order, smooth_plus_plus

CLASSES = [2, 0, 5]


def test_the_relu_option_clamps_the_signed_map():
    net, images = residual(), random_images(4)
    for method in (grad_cam, grad_cam_pp, explainers.layer_cam, explainers.xgrad_cam, explainers.ablation_cam):
        signed = method(net, images, 2, layer="layer2.bn2", relu=False)
        for options in ({}, {"relu": True}):
            assert torch.equal(method(net, images, 2, layer="layer2.bn2", **options), signed.relu()), method
        assert signed.min() < 0


def test_xgrad_cam_is_finite_if_activations_sum_to_zero():
    net = nn.Sequential(nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 1, bias=False)).double()
    net[3].weight.data.fill_(6.0)
    x = torch.zeros(1, 2, 2, 3, dtype=torch.float64)
    x[0, 1] = 1.0
    assert torch.equal(explainers.xgrad_cam(net, x, 0, layer="0"), x[:, 1]), "the dead channel weighs nothing"


@pytest.mark.parametrize("shape", [lambda x: (x.shape[0], 8, -1), lambda x: (-1, 8, 48)])
def test_channel_effects_with_a_suffix_that_reshapes_the_batch(shape):
    """To the number of images or of rows: otherwise the copies of an image could be read as one image."""
    suffix = {"first": plain()[:4], "head": nn.Linear(8, 5)}
    net = settle(nets.Written(lambda net, x: net.head(net.first(x).reshape(*shape(x)).mean(2)), **suffix).double())
    images = random_images()
    expected, _ = drops_by_hand(net, net.first.relu2, images, [1, 2, 3])
    actual = explainers.channel_effects(net, images, [1, 2, 3], layer="first.relu2")
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_the_runner_ups_map_equals_a_separate_call():
    """Oracle: a separate call for the runner-up, of a network whose classes differ little."""
    net, images = residual(), random_images(1)
    net.fc.weight.data = net.fc.weight.data[:1] + 0.02 * net.fc.weight.data
    second = int(net(images).topk(2).indices[0, 1])
    for name in ("layer_cam", "saliency", "lrp"):
        method = explainers.METHODS[name]
        signed = {"relu": False} if method.relu is not None else {}
        maps = [method(net, images, target, **signed) for target in (None, second)]
        maps = [reduce_channels(each, method.reduce) if each.ndim == 4 else each for each in maps]
        (told,) = [each for each in explain(name, net, images).findings[0] if each.code == "class_insensitive"]
        expected = {"correlation": pytest.approx(float(rank_correlation(*maps))), "runner_up": second}
        assert told.facts == expected and "Contrast" in told.sentence and not torch.equal(*maps), name
    for other in (explain("saliency", residual(), images, 1), explain("saliency", net, images, compare=False)):
        assert "class_insensitive" not in codes(other)


# Smooth Grad-CAM++


def test_p32_activations_are_the_clean_ones_and_gradients_are_means():
    """torchcam uses the activations and the gradient of the last noisy sample, as this by hand. See also the oracle."""
    net, images = curved(), random_images(1)
    actual = smooth_grad_cam_pp(net, images, 2, layer="act2", samples=3, sigma=0.2, seed=3)
    torch.testing.assert_close(actual, smooth_plus_plus(net, images, [2]), rtol=1e-9, atol=1e-12)
    for wrong in ("activation", "gradient"):
        assert rel(actual, smooth_plus_plus(net, images, [2], of_last=wrong)) > 0.02, "as in torchcam"


def test_smooth_grad_cam_pp_uses_the_clean_images_class_for_noisy_copies():
    net, images = curved(), random_images(6)
    named = smooth_grad_cam_pp(net, images, nets.top(net, images), layer="act2", samples=4, sigma=1.0)
    assert torch.equal(smooth_grad_cam_pp(net, images, layer="act2", samples=4, sigma=1.0), named)


def test_smooth_grad_cam_pp_without_effect_of_noise_is_a_finding():
    """Before pooling and a linear head the gradient is constant: the head's weights."""
    net, images = residual(), random_images()
    e = explain("smooth_grad_cam_pp", net, images, CLASSES, samples=3)
    torch.testing.assert_close(e.map, grad_cam_pp(net, images, CLASSES))
    assert all(found[0].code == "unmoved_by_noise" for found in e.findings)
    earlier = explain("smooth_grad_cam_pp", net, images, CLASSES, layer="layer1", samples=3)
    assert not any(each.code == "unmoved_by_noise" for found in earlier.findings for each in found)


# ShapleyCAM


def test_p41_zero_hessian_of_a_relu_logit_is_a_finding():
    net, images = residual(), random_images()
    e = explain("shapley_cam", net, images, CLASSES, layer="layer1", score="logit")
    torch.testing.assert_close(e.raw, nets.cam_by_hand(net, net.layer1, images, CLASSES), rtol=1e-10, atol=1e-13)
    for found in e.findings:
        (told,) = [each for each in found if each.code == "no_curvature"]
        assert told.remedy == {"score": "rest"} and "Grad-CAM" in told.sentence
    remedy = explain("shapley_cam", net, images, CLASSES, layer="layer1", **told.remedy)
    assert not any(each.code == "no_curvature" for found in remedy.findings for each in found)


def test_shapley_cam_through_attention():
    """Fused attention has no second derivative; the decomposed attention has one and is the same function."""
    net, images = settle(ClassToken().double()), random_images(2, 3, 32, 128)
    pair = second_order(net, net.blocks[0], images, rest([1, 1]))
    a, g = (each[:, 1:].transpose(1, 2).unflatten(2, (2, 8)) for each in pair)
    actual = shapley_cam(net, images, 1, layer="blocks.0", relu=False)
    torch.testing.assert_close(actual, (g.mean((2, 3), keepdim=True) * a).sum(1), rtol=1e-5, atol=1e-8)


def test_shapley_cam_leaves_probability_targets_unchanged():
    net, images = curved(), random_images()
    expected = shapley_cam(net, images, CLASSES, layer="act2", score="probability")
    torch.testing.assert_close(shapley_cam(net, images, explainers.Probability(CLASSES), layer="act2"), expected)


# Finer-CAM


def test_p42_likely_weighting_is_by_probability_with_its_gradient():
    net, images = curved(), random_images(1)
    scores = net(images).detach()[0]
    near = (scores - scores[2]).abs().argsort()[1:4].tolist()

    def weighted(out):
        p = out.softmax(1)[:, near]
        return (p * (out[:, 2:3] - 1.5 * out[:, near])).sum(1) / p.sum(1)

    expected = grad_cam(net, images, weighted, layer="act2", relu=False)
    options = {"weighting": "likely", "strength": 1.5}
    actual = finer_cam(net, images, 2, layer="act2", relu=False, **options)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-13)
    assert rel(finer_cam(net, images, 2, layer="act2", relu=False, strength=1.5), expected) > 0.01


def test_finer_cam_uses_at_most_the_other_classes_as_references():
    net, images = settle(Residual(classes=2).double()), random_images()
    against = grad_cam(net, images, lambda s: s[:, 1] - 0.6 * s[:, 0])
    torch.testing.assert_close(finer_cam(net, images, 1, references=9), against)


def test_finer_cam_refuses_single_scores_and_probabilities():
    with pytest.raises(BadTarget, match="single score"):
        finer_cam(settle(Residual(classes=1).double()), random_images(), 0)
    with pytest.raises(BadTarget, match="not in logits"):
        finer_cam(residual(), random_images(), explainers.Probability(1))


def test_finer_cam_with_tied_scores_never_references_the_target():
    """Two classes with equal logits: the other one is the reference, never the target itself."""
    net, images = curved(), random_images(1)
    net.head.weight.data[4] = net.head.weight.data[2]
    net.head.bias.data[4] = net.head.bias.data[2]
    for own, other in ((2, 4), (4, 2)):
        expected = grad_cam(net, images, lambda s, a=own, b=other: s[:, a] - 0.5 * s[:, b], layer="act2", relu=False)
        actual = finer_cam(net, images, own, layer="act2", references=1, strength=0.5, relu=False)
        torch.testing.assert_close(actual, expected)


# Layouts


def both_ways():
    """The same activations twice: channels first, then channels last."""
    from torchvision.ops import Permute

    layers = {"body": plain()[:4], "there": Permute([0, 2, 3, 1]), "back": Permute([0, 3, 1, 2]), "act": nn.Tanh()}
    head = {"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "head": nn.Linear(8, 7)}
    return settle(nn.Sequential(OrderedDict(layers | head)).double())


OF_ANY_LAYOUT = [
    name
    for name, each in explainers.METHODS.items()
    if each.takes_layer and each.returns == "grid" and each.family == "cam" and name != "cam"
]


def test_every_cam_is_the_same_for_channels_last_layers_and_reads_tokens_as_a_grid():
    for name in OF_ANY_LAYOUT:
        method = explainers.METHODS[name]
        small = {key: 2 for key in ("samples", "steps") if key in method.options}
        net, images = both_ways(), random_images()
        first, last = (method(net, images, CLASSES, layer=layer, **small) for layer in ("body", "there"))
        torch.testing.assert_close(last, first, rtol=1e-9, atol=1e-11)
        assert tuple(first.shape) == (3, 6, 8) and first.any(), name
        found = method(settle(ClassToken().double()), random_images(2, 3, 32, 128), 1, layer="blocks.0", **small)
        assert tuple(found.shape) == (2, 2, 8) and found.isfinite().all() and found.any(), name


# Score-CAM, SS-CAM and IS-CAM


FAMILY = [(explainers.score_cam, {}), (explainers.ss_cam, {"samples": 2, "sigma": 0.0}), (is_cam, {"steps": 3})]
family = pytest.mark.parametrize(("method", "options"), FAMILY, ids=[m.__name__ for m, _ in FAMILY])


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
    net, images, sizes = residual(), random_images(4), []
    net.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    method(net, images, 1, layer="layer2", batch_size=4, **options)
    assert max(sizes) == 4, "the batch itself and chunks of it, never all channels"


# By hand


def parts_of(method):
    """The masks of one channel with the options of FAMILY, without noise."""
    return lambda mask: [mask * i / 3 for i in (1, 2, 3)] if method is is_cam else [mask]


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
def test_p33_p34_weights_of_each_mask_and_of_the_most_similar_one_by_hand(method, options):
    """Increases are scores minus that of a blank image; a channel has the score of its group's representative.

    Masks are upsampled and then normalized, and those of IS-CAM are i / N of one; torchcam's add up to 5.5.
    """
    net, images = residual(), random_images(1)
    _, leader = group_channels(act_grad(net, net.layer2, images, [2])[0][0], 4)
    assert len(leader.unique()) == 4 < len(leader)
    for weights, channels in (("increase", 6), ("increase", 4), ("softmax", 4)):
        given = {"increase": weights == "increase", "leader": leader if channels == 4 else None}
        expected = mask_weighted_cam(net, images, [2], parts_of(method), **given)
        found = method(net, images, 2, layer="layer2", channels=channels, weights=weights, relu=False, **options)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
        assert weights == "softmax" or (found < 0).any()


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
