"""A torchvision classifier of each family: default layer, stages, Grad-CAM against the hand computation, saliency."""

from __future__ import annotations

import pytest
import torch
import torchvision.models as zoo

from explainers import default_layer, explain, list_layers, saliency
from tests.support.nets import act_grad, as_maps, rel, settle

NETWORKS = {
    "resnet18": ("layer4", "layer1 layer2 layer3 layer4"),
    "resnext50_32x4d": ("layer4", "layer1 layer2 layer3 layer4"),
    "densenet121": ("features", ""),
    "efficientnet_b0": ("features", ""),
    "mobilenet_v2": ("features", ""),
    "mobilenet_v3_small": ("features", ""),
    "squeezenet1_1": ("features", ""),
    "convnext_tiny": ("features", "features.1 features.3 features.5 features"),
    "regnet_x_400mf": ("trunk_output", ""),
    "shufflenet_v2_x0_5": ("conv5", ""),
    "mnasnet0_5": ("layers", ""),
    "inception_v3": ("Mixed_7c", ""),
    "googlenet": ("inception5b", ""),
    "maxvit_t": ("blocks.3", ""),
    "swin_t": ("norm", "features.1 features.3 features.5"),
    "vit_b_32": ("encoder.layers.encoder_layer_11.ln_1", ""),
}
"""The default layer, and the last layers of its stages where they have names."""
SIZES = {"vit_b_32": (224, 224), "maxvit_t": (224, 224), "inception_v3": (172, 204)}
"""Others are not square, and large enough for a last grid of 4 x 4."""
QUICK = (
    "resnet18",
    "mobilenet_v3_small",
    "squeezenet1_1",
    "shufflenet_v2_x0_5",
    "mnasnet0_5",
    "swin_t",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS])
def test_default_layer_grad_cam_and_saliency(name):
    layer, stages = NETWORKS[name]
    net, size = settle(zoo.get_model(name, weights=None)), SIZES.get(name, (128, 160))
    x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))

    e = explain("grad_cam", net, x)

    layers = {each.name: each for each in list_layers(net, x)}
    assert default_layer(net, x) == e.layer == layer and layers[layer].grid == tuple(e.map.shape[1:]) != (1, 1)
    assert set(stages.split()) <= {each.name for each in layers.values() if each.stage}
    a, g = (as_maps(each, layers[layer]) for each in act_grad(net, net.get_submodule(layer), x, e.target)[:2])
    expected = (g.mean((2, 3), keepdim=True) * a).sum(1)
    assert expected.isfinite().all() and expected.any(), "the seeded network must give something to compare"
    assert rel(e.raw, expected) < 1e-4 and torch.equal(e.map, e.raw.relu())
    slope = saliency(net, x, e.target)
    assert slope.shape == x.shape and slope.isfinite().all() and slope.any()
