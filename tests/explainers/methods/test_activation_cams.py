"""CAM under linear heads, principal-component CAMs, FEM, matrix factorization."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

import explainers
from explainers import UnsupportedModel, cam, eigen_cam, eigen_grad_cam, feature_factors, kpca_cam, seg_eigen_cam
from explainers.methods.cams.activation_cams import principal_component
from explainers.methods.cams.nmf import factors_of
from tests.support.nets import Activated, curved, plain, random_images, rel, settle
from tests.support.oracles.cams import with_sign_of

CLASSES = [2, 0, 5]


# CAM


def with_head(head):
    """The body of `plain` under any head."""
    return settle(nn.Sequential(OrderedDict(body=plain()[:4], head=head)).double())


def heads():
    pool = lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())  # noqa: E731
    return {
        "hidden layer": nn.Sequential(pool(), nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 7)),
        "smooth hidden layer": nn.Sequential(pool(), nn.Linear(8, 8), nn.Hardswish(), nn.Linear(8, 7)),
        "layer norm": nn.Sequential(pool(), nn.LayerNorm(8), nn.Linear(8, 7)),
        "places": nn.Sequential(nn.Flatten(), nn.Linear(8 * 48, 7)),
        "maximum": nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 7)),
        "late activation": nn.Sequential(nn.Hardtanh(), pool(), nn.Linear(8, 7)),
    }


def test_cam_refuses_nonlinear_heads_with_the_reason():
    for head in heads().values():
        net = with_head(head)
        with pytest.raises(UnsupportedModel, match=r"'body'.* gradient (differs|depends).*hires_cam"):
            cam(net, random_images(), CLASSES, layer="body")


def test_cam_detects_a_nonlinear_head_despite_tiny_activations():
    """Near zero every smooth head is linear within float32 rounding."""
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8), nn.Hardswish(), nn.Linear(8, 7))
    net = with_head(head).float()
    net.head[2].bias.data.zero_()
    for parameter in net.body[2].parameters():
        parameter.data *= 1e-9
    with pytest.raises(UnsupportedModel, match="depends on the activations"):
        cam(net, random_images().float(), CLASSES, layer="body")


def test_cam_accepts_a_head_of_one_by_one_convolutions_and_reads_the_pooled_layer():
    """Pooling and the linear layer commute; SqueezeNet has a ReLU between them."""
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    images = random_images()
    net = with_head(nn.Sequential(nn.Dropout(0.5), nn.Conv2d(8, 7, 1), *pool))
    a = net.body(images).detach()
    expected = torch.einsum("nk,nkhw->nhw", net.head[1].weight[CLASSES, :, 0, 0].detach(), a)
    torch.testing.assert_close(cam(net, images, CLASSES, layer="body"), expected, rtol=1e-12, atol=1e-14)
    net = with_head(nn.Sequential(nn.Conv2d(8, 7, 1), nn.ReLU(), *pool))
    e = explainers.explain("cam", net, images, CLASSES)
    assert e.layer == "head.1"
    torch.testing.assert_close(e.raw, net.head[:2](net.body(images))[range(3), CLASSES].detach())


def test_cam_refuses_a_probability_and_accepts_a_contrast():
    net, images = plain(), random_images()
    with pytest.raises(UnsupportedModel, match="depends on the activations"):
        cam(net, images, explainers.Probability(CLASSES), layer="relu2")
    both = cam(net, images, 3, layer="relu2") - cam(net, images, 1, layer="relu2")
    torch.testing.assert_close(cam(net, images, explainers.Contrast(3, 1), layer="relu2"), both)


# Principal components


def with_permuted_channels(net: nn.Sequential, order: list[int]) -> nn.Sequential:
    """The same network with the channels of `relu2` in another order."""
    other = plain()
    other.load_state_dict(net.state_dict())
    for tensor in (other.conv2.weight, other.conv2.bias):
        tensor.data = tensor.data[order]
    other.head.weight.data = other.head.weight.data[:, order]
    return other


@pytest.mark.parametrize("method", [eigen_cam, eigen_grad_cam, seg_eigen_cam, kpca_cam], ids=lambda m: m.__name__)
def test_p40_the_sign_depends_on_neither_channel_order_nor_batch(method):
    """The sign of a map is invariant to the order of channels and to the rest of the batch."""
    net, images = plain(), random_images(6)
    maps = method(net, images, 1, layer="relu2")
    for order in ([7, 6, 5, 4, 3, 2, 1, 0], [3, 1, 7, 0, 2, 6, 5, 4]):
        torch.testing.assert_close(
            method(with_permuted_channels(net, order), images, 1, layer="relu2"), maps, rtol=1e-8, atol=1e-10
        )
    for n in range(6):
        torch.testing.assert_close(method(net, images[n : n + 1], 1, layer="relu2")[0], maps[n], rtol=1e-8, atol=1e-10)


def test_sign_of_a_component_uncorrelated_with_activation():
    wave = torch.tensor([[1.0, -3.0], [1.0, 1.0]], dtype=torch.float64)
    found = principal_component(torch.stack([wave, -wave]))
    assert found[0, 1] == found.max() > 0


def test_components_of_constant_activations_are_zero():
    net = nn.Sequential(nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.full((1, 3, 4, 5), 0.7, dtype=torch.float64)
    for method in (eigen_cam, eigen_grad_cam, seg_eigen_cam, kpca_cam):
        assert method(net, x, 0, layer="0").abs().max() < 1e-12, method.__name__


def test_kpca_cam_power_iteration_equals_the_eigendecomposition():
    """Above 800 cells the eigenvector is found by power iteration, which draws no global random numbers."""
    net, images = plain(), random_images(1, 3, 28, 32)
    planes = net[:2](images)[0].detach()
    state = torch.get_rng_state()

    found = kpca_cam(net, images, layer="relu1")[0]

    assert torch.equal(torch.get_rng_state(), state)
    rows = planes.flatten(1).T
    rows = rows - rows.mean(0)
    alike = torch.tanh(rows @ rows.T / 6 + 1)
    alike = alike - alike.mean(0) - alike.mean(1, keepdim=True) + alike.mean()
    values, vectors = torch.linalg.eigh(alike)
    expected = with_sign_of((vectors[:, -1] * values[-1].sqrt()).view(28, 32), planes.sum(0))
    assert len(alike) > 800 and rel(found, expected) < 1e-6


def test_kpca_cam_refuses_a_kernel_matrix_too_large_for_memory():
    with pytest.raises(explainers.BadOption, match=r"90x100.*eigen_cam"):
        kpca_cam(plain(), random_images(1, 3, 90, 100), layer="relu1")


# FEM


# Factors


def test_nmf_recovers_known_factors():
    """Three factors with disjoint supports and channels are recovered, the largest first."""
    places = torch.zeros(3, 4, 6, dtype=torch.float64)
    places[0, :2, :3], places[1, 2:, :3], places[2, :, 4:] = 1.0, 4.0, 2.0
    directions = torch.tensor([[1.0, 2, 0, 0, 0], [0, 0, 3, 1, 0], [0, 0, 0, 0, 2]], dtype=torch.float64)
    planes = torch.einsum("fhw,fk->khw", places, directions)
    maps, found = factors_of(planes, 3, seed=0)
    torch.testing.assert_close(torch.einsum("fhw,fk->khw", maps, found), planes, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3, dtype=torch.float64))
    sizes = maps.flatten(1).norm(dim=1)
    assert (sizes[:-1] >= sizes[1:]).all()
    torch.testing.assert_close(found[0], torch.tensor([0, 0, 3, 1, 0.0]).double() / 10**0.5, rtol=1e-3, atol=1e-3)


def test_factor_effects_plus_residual_are_the_logit_without_bias():
    net, images = plain(), random_images()
    logits = net(images)[range(3), CLASSES].detach() - net.head.bias[CLASSES].detach()
    found = feature_factors(net, images, CLASSES, layer="relu2", components=3)
    torch.testing.assert_close(found.effects.sum(1) + found.rest, logits, rtol=1e-10, atol=1e-12)
    # Under a pooled linear head a factor's effect is its mean times w · direction.
    weights = torch.einsum("nk,nfk->nf", net.head.weight[CLASSES].detach(), found.directions)
    torch.testing.assert_close(found.effects, found.maps.mean((2, 3)) * weights, rtol=1e-10, atol=1e-12)


def test_factors_of_a_layer_with_negative_values():
    net, images = curved(), random_images(2)
    a = explainers.feature_maps(net, images, layer="conv2")
    assert (a < 0).any()
    found = feature_factors(net, images, 1, layer="conv2", components=8)
    fit = torch.einsum("nfhw,nfk->nkhw", found.maps, found.directions) + a.amin((2, 3), keepdim=True).clamp(max=0)
    assert rel(fit, a) < 0.1
    assert torch.equal(explainers.deep_feature_factorization(net, images, layer="conv2", components=8), found.maps)


def test_factors_of_an_all_zero_layer_are_zero():
    found = feature_factors(Activated(nn.ReLU()).eval(), torch.full((1, 3, 6, 8), -1e3), 1, layer="act#0", components=2)
    assert tuple(found.maps.shape) == (1, 2, 6, 8) and found.maps.isfinite().all() and found.directions.isfinite().all()
    assert not any(part.any() for part in factors_of(torch.zeros(4, 3, 5), 2, 0))
