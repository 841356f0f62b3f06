"""Rows P19 to P39 of the peers' pitfalls that concern our methods: units, missing warnings, wrong values."""

from __future__ import annotations

import pytest
import torch
import torchvision
from PIL import Image
from torch import nn

from explainers import (
    METHODS,
    Logit,
    Probability,
    ablation_cam,
    channel_effects,
    explain,
    feature_maps,
    grad_cam,
    grad_cam_pp,
    grad_cam_sweep,
    guided_grad_cam,
    hires_cam,
    layer_cam,
    overlay,
    saliency,
    xgrad_cam,
)
from tests.support.calls import CLASSY, MAPS, NAMES, call
from tests.support.nets import (
    Residual,
    Uniform,
    act_grad,
    cam_by_hand,
    curved,
    plain,
    random_images,
    rel,
    residual,
    settle,
)

pytestmark = pytest.mark.sample


def codes(explanation, index=0):
    return [finding.code for finding in explanation.findings[index]]


def resnet(seed=0):
    return settle(torchvision.models.resnet18(weights=None), seed)


def noise_images(n=2, height=64, width=96, seed=0):
    return torch.randn(n, 3, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "method",
    [grad_cam, hires_cam, layer_cam, xgrad_cam, ablation_cam, channel_effects, saliency],
    ids=lambda m: m.__name__,
)
def test_p19_a_head_scaled_by_a_thousand_scales_the_map(method):
    net, x = residual(), random_images()
    first = method(net, x, 2)
    net.fc.weight.data *= 1000
    net.fc.bias.data *= 1000
    torch.testing.assert_close(method(net, x, 2), first * 1000, rtol=1e-8, atol=1e-9)
    assert first.any()


def test_p19_maps_of_a_batch_share_one_scale():
    """Images can be compared with each other: no normalization per image."""
    net, x = plain(), random_images()
    both = grad_cam(net, x, 1, relu=False)
    assert torch.equal(both[:1], grad_cam(net, x[:1], 1, relu=False))
    assert both.amax((1, 2)).unique().numel() == 3


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
    assert finding.sentence and isinstance(finding.remedy, dict)


def test_p21_the_remedy_gives_a_nonzero_map():
    x = torch.ones(1, 1, 2, 2)
    x[0, 0, 0, 0] = 3.0
    first = explain("grad_cam", Uniform(), x, 1, layer="conv")
    (finding,) = [f for f in first.findings[0] if f.code == "nothing_positive"]
    again = explain(
        **({"method": "grad_cam", "model": Uniform(), "images": x, "target": 1, "layer": "conv"} | finding.remedy)
    )
    assert again.map.any()


def test_p21_guided_grad_cam_is_zero_only_where_grad_cam_is():
    net, x = residual(), random_images(8)
    for c in range(7):
        blank = grad_cam(net, x, c, layer="layer2").flatten(1).eq(0).all(1)
        assert torch.equal(guided_grad_cam(net, x, c, layer="layer2").flatten(1).eq(0).all(1), blank)


def test_p22_a_map_of_one_cell_has_its_value():
    net, x = resnet(), noise_images(2, 32, 32)
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


@pytest.mark.parametrize("name", NAMES)
def test_p24_a_nan_in_the_input_is_refused_with_its_position(name):
    x = random_images()
    x[:, 2, 3, 4] = float("nan")
    with pytest.raises(ValueError, match="nan.*0.*2.*3.*4"):
        call(name, residual(), x)


@pytest.mark.parametrize("name", [name for name in MAPS if METHODS[name].family != "control"])
def test_p24_a_nan_in_the_model_gives_no_clean_looking_map(name):
    net, x = residual(), random_images()
    net.fc.weight.data[2, 1] = float("nan")
    net.layer2.bn2.weight.data[1] = float("nan")
    try:
        e = explain(name, net, x, 2)
    except ValueError as refusal:
        assert "nan" in str(refusal).lower() or "finite" in str(refusal).lower()
    else:
        assert not e.raw.isfinite().all()
        assert "non_finite" in codes(e)


@pytest.mark.parametrize("name", CLASSY)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_p25_any_length_mismatch_is_refused(name, count):
    with pytest.raises(ValueError, match=f"{count}.*4|{count} class"):
        call(name, residual(), random_images(4), [1] * count)


@pytest.mark.parametrize("name", CLASSY)
def test_p26_int_list_tensor_and_callable_are_accepted(name):
    net, x = residual(), random_images(2)
    first = call(name, net, x, 3)
    for target in ([3, 3], torch.tensor([3, 3]), lambda scores: scores[:, 3]):
        torch.testing.assert_close(call(name, net, x, target), first)


@pytest.mark.parametrize("name", CLASSY)
@pytest.mark.parametrize(
    "target", [-1, [0, -1, 2], True, [True, False, True], torch.tensor([True, False, True]), torch.tensor([-1, 0, 1])]
)
def test_p27_negative_and_bool_classes_are_refused(name, target):
    with pytest.raises((ValueError, TypeError)):
        call(name, residual(), random_images(), target)


def test_p28_opacity_zero_is_the_photo_and_a_blank_map_draws_nothing_bright():
    grey = Image.new("RGB", (24, 16), (51, 51, 51))
    blank = torch.zeros(4, 6)
    assert overlay(grey, blank, opacity=0).tobytes() == grey.tobytes()
    assert overlay(grey, torch.rand(4, 6), opacity=0).tobytes() == grey.tobytes()
    shown = torch.frombuffer(bytearray(overlay(grey, blank, opacity=0.5).tobytes()), dtype=torch.uint8)
    assert shown.max() <= 60, "nothing brighter than the photo"


def test_p29_saliency_keeps_its_sign():
    net, x = curved(), random_images()
    found = saliency(net, x, 1)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    assert found.min() < 0 and torch.equal(found, expected)


def test_p30_grad_cam_pp_is_equation_19():
    """On the row's own network, in float64, by hand; a coefficient that is never applied is off by far."""
    net, x = resnet().double(), noise_images(1, 96, 96).double()
    a, g, _ = act_grad(net, net.layer4, x, [5])
    denominator = 2 * g**2 + a.sum((2, 3), keepdim=True) * g**3
    alpha = torch.where(denominator != 0, g**2 / denominator, 0)
    expected = ((alpha * g.relu()).sum((2, 3), keepdim=True) * a).sum(1).relu()
    assert rel(grad_cam_pp(net, x, 5, layer="layer4"), expected) < 1e-9
    never_applied = ((g**2 * g.relu()).sum((2, 3), keepdim=True) * a).sum(1).relu()
    assert rel(never_applied, expected) > 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_p31_grad_cam_pp_has_no_epsilon(dtype):
    """Gradients of 1e-4 and below: g^2 is 1e-8, where an epsilon of 1e-6 dominates, and g^3 underflows in float16."""
    net, x = plain().double(), random_images()
    net.head.weight.data *= 0.01
    net, x = net.to(dtype), x.to(dtype)
    a, g, _ = act_grad(net, net.relu2, x, [2, 0, 5])
    a, g = a.double(), g.double()
    assert g.abs().median() < 1e-3
    denominator = 2 * g**2 + a.sum((2, 3), keepdim=True) * g**3
    alpha = torch.where(denominator != 0, g**2 / denominator, 0)
    expected = ((alpha * g.relu()).sum((2, 3), keepdim=True) * a).sum(1).relu()
    assert rel(grad_cam_pp(net, x, [2, 0, 5], layer="relu2"), expected) < 1e-5
    with_epsilon = ((g**2 / (denominator + 1e-6) * g.relu()).sum((2, 3), keepdim=True) * a).sum(1).relu()
    assert rel(with_epsilon, expected) > 0.1


def test_p37_ablation_weights_are_drops_also_where_the_score_is_negative():
    net, x = residual(), random_images(6)
    scores = net(x).detach()
    net.fc.bias.data -= scores.max() + 1
    scores = net(x).detach()
    assert (scores < 0).all()
    from tests.support.oracles import drops_by_hand

    drops, a = drops_by_hand(net, net.layer2, x, [2] * 6)
    expected = torch.einsum("nk,nkhw->nhw", drops, a)
    torch.testing.assert_close(ablation_cam(net, x, 2, layer="layer2", relu=False), expected, rtol=1e-9, atol=1e-11)


def test_p38_ablation_of_a_layer_with_negative_values_for_every_chunk():
    """Zero is the baseline, whatever the sign of the layer, and the chunk size plays no part."""
    net, x = residual(), random_images(2)
    from tests.support.oracles import drops_by_hand

    drops, a = drops_by_hand(net, net.layer2.bn2, x, [2, 0])
    assert a.min() < 0
    expected = torch.einsum("nk,nkhw->nhw", drops, a)
    for size in (1, 4, 32):
        torch.testing.assert_close(
            channel_effects(net, x, [2, 0], layer="layer2.bn2", batch_size=size), drops, rtol=1e-9, atol=1e-12
        )
        found = ablation_cam(net, x, [2, 0], layer="layer2.bn2", relu=False, batch_size=size)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_p39_the_order_of_layers_does_not_matter():
    net, x = residual(), random_images()
    forward = grad_cam_sweep(net, x, 1, layers=["layer1", "layer2"])
    backward = grad_cam_sweep(net, x, 1, layers=["layer2", "layer1"])
    assert set(forward) == set(backward) == {"layer1", "layer2"}
    for name in forward:
        assert torch.equal(forward[name], backward[name])
        torch.testing.assert_close(forward[name], grad_cam(net, x, 1, layer=name), rtol=1e-12, atol=1e-15)


def test_p39_sweep_over_layers_with_equal_channel_counts():
    net, x = settle(Residual(width=8).double()), random_images()
    sweep = grad_cam_sweep(net, x, 1, layers=["layer2", "layer1", "conv1"])
    for name, found in sweep.items():
        expected = cam_by_hand(net, net.get_submodule(name), x, [1, 1, 1]).relu()
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


def test_p39_sweep_with_a_skip_around_a_layer_that_returns_its_input():
    """In eval mode Dropout returns its input tensor itself; its gradient must exclude that of the skip connection."""

    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)
            self.drop = nn.Dropout(0.5)
            self.fc = nn.Linear(4, 5)

        def forward(self, x):
            y = self.conv(x)
            return self.fc((y + torch.tanh(self.drop(y))).mean((2, 3)))

    net, x = settle(Skip().double()), random_images()
    sweep = grad_cam_sweep(net, x, 1, layers=["conv", "drop"], relu=False)
    torch.testing.assert_close(sweep["drop"], grad_cam(net, x, 1, layer="drop", relu=False), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(sweep["conv"], grad_cam(net, x, 1, layer="conv", relu=False), rtol=1e-10, atol=1e-14)
    assert not torch.allclose(sweep["drop"], sweep["conv"])


def test_values_do_not_depend_on_the_registry():
    net, x = plain(), random_images()
    assert torch.equal(METHODS["feature_maps"](net, x, layer="conv2"), feature_maps(net, x, layer="conv2"))
