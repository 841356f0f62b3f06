"""Layers per call: names, order, grids, layouts, as objects, and the default layer."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import explainers
from explainers import METHODS, capture, channel_effects, default_layer, explain, feature_maps, grad_cam, list_layers
from explainers.errors import LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
from tests.support.nets import Twice, Written, random_images, residual, settle
from tests.support.traces import Marker, graphs_alive, tensors_alive

IMAGES = random_images()


def test_p53_entries_have_a_name_for_each_call_kind_shape_grid_layout_and_stride():
    names = [layer.name for layer in list_layers(settle(Twice().double()), IMAGES)]
    assert names == ["stem", "relu#0", "conv#0", "relu#1", "conv#1", "relu#2", "fc"]
    layers = {layer.name: layer for layer in list_layers(residual(), IMAGES)}
    first, last = layers["conv1"], layers["layer2"]
    assert (first.kind, first.grid, first.layout, first.stride) == ("Conv2d", (12, 16), "NCHW", (1, 1))
    assert (last.kind, last.grid, last.shape[1:], last.stride) == ("Block", (6, 8), (6, 6, 8), (2, 2))
    assert layers["fc"].grid is None and last.extra_tokens == 0
    assert {"layer1.relu#0", "layer1.relu#1"} <= set(layers) and "layer1.relu" not in layers
    block, *calls = (feature_maps(residual(), IMAGES, layer=f"layer1{call}") for call in ("", ".relu#0", ".relu#1"))
    assert torch.equal(calls[1], block) and not torch.equal(calls[0], block)
    spatial = list_layers(residual(), IMAGES, spatial=True)
    assert all(layer.grid and layer.grid != (1, 1) for layer in spatial)
    assert {"avgpool", "fc"}.isdisjoint(layer.name for layer in spatial)


def test_layers_that_do_not_run_once_or_have_no_grid_are_refused():
    twice, net = settle(Twice().double()), residual()
    net.spare = nn.Conv2d(1, 1, 1)
    flat = settle(nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 16, 5)).double())
    for model, layer, error, words in (
        (twice, "conv", LayerRanRepeatedly, "conv#0.*conv#1"),
        (twice, "conv#2", LayerNotFound, "conv#2"),
        (net, "layer1.relu", LayerRanRepeatedly, "layer1.relu#0"),
        (net, "spare", LayerNotFound, "spare"),
        (flat, None, NoSpatialOutput, "saliency"),
    ):
        for call in (grad_cam, feature_maps):
            with pytest.raises(error, match=words):
                call(model, IMAGES, layer=layer)
    with pytest.raises(NoSpatialOutput, match="saliency"):
        default_layer(flat, IMAGES)


@pytest.mark.parametrize("forward", [False, True])
def test_layers_can_be_pickled_and_copied(forward):
    net = residual()
    layers = list_layers(net, IMAGES, **({"forward": lambda x: net(x)} if forward else {}))
    loaded, copied = pickle.loads(pickle.dumps(layers)), copy.deepcopy(layers)
    assert loaded == copied == layers
    assert copied[0].receptive_field((0, 0)) == layers[0].receptive_field((0, 0))
    with pytest.raises(LayerNotFound, match=r"pickled.*list_layers\(model, images\) again"):
        loaded[0].receptive_field((0, 0))


def fourier(real: bool) -> nn.Module:
    def forward(self, x):
        z = self.spectrum(self.conv(x))
        return self.fc(z.abs().mean((2, 3))) if real else z.mean(2)[:, :, 1]

    spectrum = Written(lambda self, x: torch.fft.fft2(x))
    return settle(Written(forward, conv=nn.Conv2d(3, 4, 3, padding=1), spectrum=spectrum, fc=nn.Linear(4, 3))).double()


def test_complex_layers_and_scores_are_refused_and_a_real_target_is_accepted():
    net = fourier(True)
    for name in ("grad_cam", "eigen_cam", "ablation_cam", "feature_maps"):
        with pytest.raises(UnsupportedModel, match="'spectrum' has complex values.*Choose a layer with real values"):
            METHODS[name](net, IMAGES, 1, layer="spectrum")
    assert default_layer(net, IMAGES) == "conv" and explainers.saliency(net, IMAGES, 1).isfinite().all()
    with capture(net, "spectrum") as captured:
        net(IMAGES)
    assert captured.outputs["spectrum"].is_complex()
    with pytest.raises(UnsupportedModel, match="complex values.*a target that is real"):
        explainers.occlusion(fourier(False), IMAGES, 1, window=8, stride=8)
    found = explainers.occlusion(fourier(False), IMAGES, lambda scores: scores.abs()[:, 0], window=8, stride=8)
    assert found.isfinite().all()


def test_graphs_and_tensors_kept_alive_are_counted():
    """The counters with which other tests find what a call has kept."""
    kept = Marker()(torch.ones(2, requires_grad=True)).sum()
    assert graphs_alive() == 1
    del kept
    assert graphs_alive() == 0
    before, kept = tensors_alive(), [torch.ones(1)]
    assert tensors_alive() == before + len(kept)


# The default layer, and layers that return their tensor in a tuple, a list or a dict


def stem(width: int = 8, stride: int = 2) -> nn.Conv2d:
    return nn.Conv2d(3, width, 3, stride, 1)


def several_scales() -> nn.Module:
    """A backbone of three stages, all of which the head uses: only the stem is on every path."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        found = []
        for stage in self.backbone.values():
            x = stage(x).relu()
            found.append(x)
        return sum(side(each).mean((2, 3)) for side, each in zip(self.sides, found[1:], strict=True))

    stages = {f"stage{i}": nn.Conv2d(8 if i else 3, 32 if i == 3 else 8, 3, 2, 1) for i in range(4)}
    sides = nn.ModuleList(nn.Conv2d(width, 5, 1) for width in (8, 8, 32))
    return Written(forward, backbone=nn.ModuleDict(stages), sides=sides)


def halving() -> nn.Module:
    """Four stages, each of half the size."""
    net = nn.Sequential(*(nn.Sequential(nn.Conv2d(6 if i else 3, 6, 3, 2, 1), nn.ReLU()) for i in range(4)))
    return nn.Sequential(net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


def segmentation() -> nn.Module:
    """An encoder, and a head of a 3 x 3 and a 1 x 1 convolution; the output is a map of logits."""
    backbone = nn.Sequential(stem(), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
    head = nn.Sequential(nn.Conv2d(8, 32, 3, 1, 1), nn.ReLU(), nn.Dropout(), nn.Conv2d(32, 4, 1))

    def forward(self: nn.Module, x: Tensor) -> dict[str, Tensor]:
        return {"out": F.interpolate(self.classifier(self.backbone(x)), x.shape[-2:], mode="bilinear")}

    return Written(forward, backbone=backbone, classifier=head)


def windows() -> nn.Module:
    """As in tiny_vit: cells in windows of 4 x 4, which padding fills up; cropping restores the image's."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        height, width = x.shape[1:3]
        filled = F.pad(x, (0, 0, 0, 4 - width, 0, 4 - height)).flatten(1, 2)
        x = self.out(self.mix(filled).unflatten(1, (4, 4))[:, :height, :width])
        return self.head(x.mean((1, 2)))

    return Written(forward, stem=nn.Conv2d(3, 6, 8, 8), mix=nn.Linear(6, 6), out=nn.ReLU(), head=nn.Linear(6, 5))


def skipping() -> nn.Module:
    """As in NASNet: each cell reads the two cells before it, so no layer in between is on all paths."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        before = now = self.first(x)
        for cell, around in zip(self.cells, self.around, strict=True):
            after = cell(now)
            other = around(before) if before.shape[2] > now.shape[2] else around(F.pad(before, (1,) * 4))
            before, now = now, after + F.adaptive_avg_pool2d(other, after.shape[2:])
        return self.head(self.end(now).mean((2, 3)))

    cells, around = (nn.ModuleList(nn.Conv2d(4, 4, *each) for _ in range(4)) for each in ((3, 2, 1), (5, 4, 2)))
    parts = {"first": stem(4, 1), "end": nn.ReLU(), "cells": cells, "around": around, "head": nn.Linear(4, 5)}
    return Written(forward, **parts)


@pytest.mark.parametrize(
    ("build", "size", "expected", "grids"),
    [
        (several_scales, (64, 96), "backbone.stage3", {}),
        (halving, (64, 96), "0", {}),
        (halving, (32, 48), "0.2", {"0.3": (2, 3), "0.2": (4, 6)}),  # at least 4 x 4
        (halving, (4, 7), "0.1", {}),  # no grid of 4 x 4: the last one larger than 1 x 1
        (segmentation, (32, 48), "backbone", {}),
        (windows, (32, 24), "out", {"mix": None, "out": (4, 3)}),
        (windows, (32, 32), "out", {"mix": (4, 4), "out": (4, 4)}),
        (skipping, (48, 48), "end", {}),
        (skipping, (128, 128), "end", {}),
    ],
)
def test_the_default_is_the_last_fine_layer_before_the_head(build, size, expected, grids):
    net, x = settle(build().double()), random_images(1, 3, *size)
    layers = list_layers(net, x)
    assert default_layer(net, x) == expected
    assert grids.items() <= {layer.name: layer.grid for layer in layers}.items()
    assert build is not segmentation or [layer.name for layer in layers if layer.stage] == ["backbone"]


@pytest.mark.parametrize("features", [False, True])
def test_features_are_a_default_layer_and_class_maps_are_not(features):
    """As in LR-ASPP: class maps of two scales are added; the features before them are not logits."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        low = self.low(x)
        high = self.high(low)
        return high if features else self.low_classes(low) + F.interpolate(self.high_classes(high), low.shape[-2:])

    high = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
    classes = {"low_classes": nn.Conv2d(8, 4, 1), "high_classes": nn.Conv2d(16, 4, 1)}
    net, x = settle(Written(forward, low=stem(), high=high, **classes).double()), random_images(1, 3, 32, 48)
    assert default_layer(net, x) == "high"
    target = (lambda output: output.mean((1, 2, 3))) if features else (lambda output: output[:, 1].mean((1, 2)))
    codes = [finding.code for finding in explain("grad_cam", net, x, target).findings[0]]
    assert ("bypass" in codes) is not features


FORMS = {"tuple": lambda x: (x, None), "list": lambda x: [x], "dict": lambda x: {"hidden": x, "attentions": None}}


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_that_gives_one_tensor_in_a_tuple_is_that_tensor(form):
    """As Hugging Face writes residual blocks. Oracle: the same network with the head at the block's output."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        found = self.block(self.stem(x))
        return self.head((found["hidden"] if form == "dict" else found[0]).mean((2, 3)))

    block = Written(lambda self, x: FORMS[form](x + self.conv(x).relu()), conv=nn.Conv2d(6, 6, 3, 1, 1))
    net = settle(Written(forward, stem=stem(6), block=block, head=nn.Linear(6, 5)).double())
    x = random_images(2, 3, 16, 24)
    features = net.stem(x)
    a = (features + net.block.conv(features).relu()).detach()
    weights = net.head.weight[[1, 2]].detach()[:, :, None, None] / (8 * 12)

    assert default_layer(net, x) == "block"
    torch.testing.assert_close(grad_cam(net, x, [1, 2], relu=False), (weights * a).sum(1))
    torch.testing.assert_close(feature_maps(net, x, layer="block"), a)
    without = a.clone()
    without[:, 3] = 0
    lost = (net(x) - net.head(without.mean((2, 3))))[[0, 1], [1, 2]]
    torch.testing.assert_close(channel_effects(net, x, [1, 2], layer="block")[:, 3], lost.detach())
