"""Layers per call: names, order, grids, layouts, and as objects."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import explainers
from explainers import METHODS, capture, default_layer, feature_maps, grad_cam, list_layers
from explainers.errors import LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
from tests.support.nets import Twice, Written, random_images, residual, settle
from tests.support.traces import Marker, graphs_alive, nothing_left, tensors_alive

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


def test_listing_has_no_side_effects_and_works_in_every_mode():
    net = residual()
    expected = [layer.name for layer in list_layers(net, IMAGES)]
    for training in (False, True):
        net.train(training)
        with nothing_left(net, IMAGES), torch.inference_mode(not training):
            assert [layer.name for layer in list_layers(net, IMAGES)] == expected
    net = residual()
    net.fuse.light(RuntimeError("lit"))
    with nothing_left(net, IMAGES), pytest.raises(RuntimeError, match="lit"):
        list_layers(net, IMAGES)


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
