"""Layers per call: names, order, grids, layouts, stages, default layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import (
    Layer,
    LayerNotFound,
    LayerRanRepeatedly,
    NoSpatialOutput,
    capture,
    default_layer,
    feature_maps,
    grad_cam,
    list_layers,
)
from tests.support.nets import Twice, random_images, residual, settle
from tests.support.traces import nothing_left


def by_name(layers):
    return {layer.name: layer for layer in layers}


def test_one_entry_per_call_in_call_order():
    net = settle(Twice().double())
    names = [layer.name for layer in list_layers(net, random_images())]
    assert names == ["stem", "relu#0", "conv#0", "relu#1", "conv#1", "relu#2", "fc"]


def test_entries_have_kind_shape_grid_and_layout():
    layers = by_name(list_layers(residual(), random_images()))
    assert isinstance(layers["conv1"], Layer)
    assert layers["conv1"].kind == "Conv2d" and layers["conv1"].grid == (12, 16) and layers["conv1"].layout == "NCHW"
    assert layers["layer2"].kind == "Block" and layers["layer2"].grid == (6, 8)
    assert tuple(layers["layer2"].shape)[1:] == (6, 6, 8)
    assert layers["fc"].grid is None
    assert "layer1.relu#0" in layers and "layer1.relu#1" in layers and "layer1.relu" not in layers
    assert layers["layer2"].extra_tokens == 0
    assert tuple(layers["conv1"].stride) == (1, 1) and tuple(layers["layer2"].stride) == (2, 2)


def test_listing_has_no_side_effects_and_works_in_every_mode():
    net, images = residual(), random_images()
    expected = [layer.name for layer in list_layers(net, images)]
    with nothing_left(net, images):
        list_layers(net, images)
    with torch.inference_mode():
        assert [layer.name for layer in list_layers(net, images)] == expected
    net.train()
    with nothing_left(net, images):
        assert [layer.name for layer in list_layers(net, images)] == expected
    net = residual()
    net.fuse.light(RuntimeError("lit"))
    with nothing_left(net, images), pytest.raises(RuntimeError, match="lit"):
        list_layers(net, images)


def test_spatial_lists_only_layers_with_a_grid():
    spatial = list_layers(residual(), random_images(), spatial=True)
    assert all(layer.grid and layer.grid != (1, 1) for layer in spatial)
    assert {"avgpool", "fc"}.isdisjoint(layer.name for layer in spatial)


def test_same_name_same_tensor_for_capture_and_feature_maps():
    net, images = settle(Twice().double()), random_images()
    names = [layer.name for layer in list_layers(net, images) if layer.grid]
    with capture(net, names) as seen:
        net(images)
    for name in names:
        torch.testing.assert_close(feature_maps(net, images, layer=name), seen.outputs[name])


def test_names_of_layers_that_do_not_run_once_are_refused():
    twice, net = settle(Twice().double()), residual()
    net.spare = nn.Conv2d(1, 1, 1)
    for model, layer, error, words in (
        (twice, "conv", LayerRanRepeatedly, "conv#0.*conv#1"),
        (twice, "conv#2", LayerNotFound, "conv#2"),
        (net, "layer1.relu", LayerRanRepeatedly, "layer1.relu#0"),
        (net, "spare", LayerNotFound, "spare"),
    ):
        for call in (grad_cam, feature_maps):
            with pytest.raises(error, match=words):
                call(model, random_images(), layer=layer)


def test_a_network_without_spatial_layers_is_refused():
    net = settle(nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 16, 5)).double())
    with pytest.raises(NoSpatialOutput, match="saliency"):
        default_layer(net, random_images())
    with pytest.raises(NoSpatialOutput):
        grad_cam(net, random_images())


def test_a_coarse_last_layer_is_not_replaced_by_the_first_convolution():
    """As in NASNet on small images: each cell reads the two cells before it, so no layer in between is on all paths."""

    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.end = nn.Conv2d(3, 4, 3, 1, 1), nn.ReLU()
            self.cells = nn.ModuleList(nn.Conv2d(4, 4, 3, 2, 1) for _ in range(4))
            self.around = nn.ModuleList(nn.Conv2d(4, 4, 5, 4, 2) for _ in range(4))
            self.head = nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = now = self.first(x)
            for cell, around in zip(self.cells, self.around, strict=True):
                after = cell(now)
                other = (
                    around(before) if before.shape[2] > now.shape[2] else around(nn.functional.pad(before, (1,) * 4))
                )
                before, now = now, after + nn.functional.adaptive_avg_pool2d(other, after.shape[2:])
            return self.head(self.end(now).mean((2, 3)))

    net = Skipping().eval()
    assert default_layer(net, torch.randn(1, 3, 48, 48)) == "end"
    assert default_layer(net, torch.randn(1, 3, 128, 128)) == "end"
