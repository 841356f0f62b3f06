"""Layers as objects that are copied and pickled, and layers with complex values."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from explainers import (
    LayerNotFound,
    UnsupportedModel,
    ablation_cam,
    capture,
    default_layer,
    eigen_cam,
    feature_maps,
    grad_cam,
    list_layers,
    occlusion,
    saliency,
)
from tests.support.nets import random_images, residual, settle


@pytest.mark.parametrize("forward", [False, True])
def test_layers_can_be_pickled_and_copied(forward):
    net, images = residual(), random_images()
    layers = list_layers(net, images, **({"forward": lambda x: net(x)} if forward else {}))

    loaded = pickle.loads(pickle.dumps(layers))
    copied = copy.deepcopy(layers)

    assert loaded == copied == layers
    assert copied[0].receptive_field((0, 0)) == layers[0].receptive_field((0, 0))
    with pytest.raises(LayerNotFound, match=r"pickled.*list_layers\(model, images\) again"):
        loaded[0].receptive_field((0, 0))


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft2(x)


class Fourier(nn.Module):
    def __init__(self, real: bool = True) -> None:
        super().__init__()
        self.conv, self.spectrum, self.fc = nn.Conv2d(3, 4, 3, padding=1), Spectrum(), nn.Linear(4, 3)
        self.real = real

    def forward(self, x: Tensor) -> Tensor:
        z = self.spectrum(self.conv(x))
        return self.fc(z.abs().mean((2, 3))) if self.real else z.mean(2)[:, :, 1]


def test_a_layer_with_complex_values_is_refused():
    net, images = settle(Fourier()).double(), random_images(2)
    for method in (grad_cam, eigen_cam, ablation_cam, feature_maps):
        with pytest.raises(UnsupportedModel, match="'spectrum' has complex values.*Choose a layer with real values"):
            method(net, images, 1, layer="spectrum")
    assert default_layer(net, images) == "conv"
    assert saliency(net, images, 1).isfinite().all()
    with capture(net, "spectrum") as captured:
        net(images)
    assert captured.outputs["spectrum"].is_complex()


def test_complex_scores_are_refused_and_a_real_target_is_accepted():
    net, images = settle(Fourier(real=False)).double(), random_images(2)
    with pytest.raises(UnsupportedModel, match="complex values.*a target that is real"):
        occlusion(net, images, 1, window=8, stride=8)
    assert occlusion(net, images, lambda scores: scores.abs()[:, 0], window=8, stride=8).isfinite().all()
