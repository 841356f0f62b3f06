"""CAM methods on transformers of torchvision and others: layers, grids, axes, patches without gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import explainers
from explainers import default_layer, explain, feature_maps, grad_cam, list_layers
from tests.support.calls import codes
from tests.support.nets import Written, act_grad, as_maps, random_images
from tests.support.oracles.attention import two_blocks
from tests.support.token_nets import conv_next, max_vit, plain_vit, swin_v1, swin_v2, vit

WIDE, NORM = (32, 128), "blocks.1.norm1"
NETWORKS = {
    "vit": (vit, (64, 64), "encoder.layers.encoder_layer_2.ln_1"),
    "swin": (swin_v1, (64, 96), "norm"),
    "swin v2": (swin_v2, (64, 96), "norm"),
    "maxvit": (max_vit, (64, 64), "blocks.1"),
    "convnext": (conv_next, (64, 96), "features"),
    "fused qkv": (lambda: plain_vit(1), WIDE, NORM),
    "softmax written out": (lambda: plain_vit(1, fused=False), WIDE, NORM),
    "registers": (lambda: plain_vit(5), WIDE, NORM),
    "distillation token": (lambda: plain_vit(2, "two"), WIDE, NORM),
    "last token": (lambda: plain_vit(1, is_last=True), WIDE, NORM),
    "patches by reshape": (lambda: plain_vit(1, cut="reshape"), WIDE, NORM),
    "pooled patches": (lambda: plain_vit(0, "patches"), WIDE, "norm"),
    "pooled patches, registers": (lambda: plain_vit(4, "patches"), WIDE, "norm"),
    "eight by two": (lambda: two_blocks((8, 2)), (128, 32), "blocks.1.ln_1"),
    "pooled patches, last token": (lambda: plain_vit(1, "patches", is_last=True), WIDE, "norm"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_p81_p83_p84_default_layer_and_grid_are_inferred(name):
    build, size, expected = NETWORKS[name]
    net, x = build(), random_images(1, 3, *size)
    layers = list_layers(net, x, spatial=True)
    layer = next(each for each in layers if each.name == expected)

    assert default_layer(net, x) == expected
    assert layer.grid[0] * size[1] == layer.grid[1] * size[0], "the grid has the image's proportions"
    a, g = (as_maps(each, layer) for each in act_grad(net, net.get_submodule(expected), x, [1])[:2])
    torch.testing.assert_close(explainers.hires_cam(net, x, 1), (a * g).sum(1), rtol=1e-8, atol=1e-12)
    assert g.any(), "a default layer whose patches do not count would give a blank map"
    if expected == NORM:  # only the class token has a gradient after the last block
        e = explain("layer_cam", net, x, 1, layer="blocks.1", relu=False)
        assert e.layer == expected and e.raw.any() and codes(e)[0] == "token_only_gradient"

    # If one patch of a dark image is bright, an early layer changes most in its cell: rows and columns are the image's.
    early = next(each.name for each in layers if each.grid[0] < 17)
    dark = torch.zeros(1, 3, *size, dtype=torch.float64)
    lit = dark.clone()
    lit[:, :, size[0] // 2 :, : size[1] // 4] = 3.0
    change = (feature_maps(net, lit, layer=early) - feature_maps(net, dark, layer=early)).abs().sum(1)[0]
    height, width = change.shape
    assert change[height // 2 :, : max(width // 4, 1)].mean() > 2 * change[: height // 2, width // 2 :].mean()


def test_p85_channels_last_layers_inside_the_blocks_of_swin_and_convnext():
    for build, name in ((swin_v1, "features.1"), (conv_next, "features.3.1.block.2")):
        net, x = build(), random_images(1, 3, 64, 96)
        a, g, _ = act_grad(net, net.get_submodule(name), x, [5])
        found = grad_cam(net, x, 5, layer=name, relu=False)
        torch.testing.assert_close(found, (g.mean((1, 2), keepdim=True) * a).sum(3), rtol=1e-8, atol=1e-12)


FIRST, LAST = (f"encoder.layers.encoder_layer_{k}" for k in (0, 2))
BEFORE = f"{LAST}.ln_1"


def test_p82_patches_without_gradient_fall_back_to_the_layer_before():
    """Oracle: the map of the layer before, named by hand; the finding contains both names and the remedy."""
    net, x = vit(), random_images(2, 3, 64, 64)
    expected = grad_cam(net, x, [1, 2], layer=BEFORE, relu=False)
    for asked in (LAST, f"{LAST}.ln_2", f"{LAST}.mlp", "encoder.ln", "encoder"):
        _, g, _ = act_grad(net, net.get_submodule(asked), x, [1, 2])
        assert g[:, 1:].abs().max() == 0 and g[:, 0].abs().max() > 0
        e = explain("grad_cam", net, x, [1, 2], layer=asked)
        assert e.layer == BEFORE and torch.equal(e.raw, expected) and e.raw.any()
        for row in e.findings:
            (finding,) = [each for each in row if each.code == "token_only_gradient"]
            assert repr(asked) in finding.sentence and repr(BEFORE) in finding.sentence
            assert finding.remedy == {"layer": BEFORE} and "no_gradient" not in [each.code for each in row]
    assert "token_only_gradient" not in codes(explain("grad_cam", net, x, [1, 2], **finding.remedy))

    # A sweep keeps the requested name; a single image has the map of its batch; other layers are unaffected.
    maps = explainers.grad_cam_sweep(net, x, [1, 2], layers=[LAST, FIRST], relu=False)
    assert list(maps) == [LAST, FIRST]
    torch.testing.assert_close(maps[LAST], expected)
    torch.testing.assert_close(maps[FIRST], grad_cam(net, x, [1, 2], layer=FIRST, relu=False))
    torch.testing.assert_close(maps[LAST][1:], grad_cam(net, x[1:], 2, layer=LAST, relu=False))
    assert "token_only_gradient" not in codes(explain("grad_cam", net, x, 1, layer=FIRST))

    # If the class token has no gradient either, the requested layer is used.
    e = explain("grad_cam", net, x, lambda scores: scores[:, 0] * 0, layer=LAST)
    assert e.layer == LAST and codes(e) == ["no_gradient"]


def test_tokens_split_into_heads_and_windows_are_not_grids():
    """[1, heads, tokens, d] was once mistaken for a channels-last image with a grid of 2 x 17."""
    inside = [each for each in list_layers(plain_vit(1), random_images(1, 3, 32, 128)) if "_norm" in each.name]
    windows = [each for each in list_layers(max_vit(), random_images(1, 3, 64, 64)) if ".attn_layer" in each.name]
    assert inside and windows and not any(each.grid for each in inside + windows)


def test_a_part_of_the_tokens_has_no_grid():
    """Half of them, which need not be whole rows."""
    parts = {"patch": nn.Conv2d(3, 4, 4, 4), "mix": nn.Linear(4, 4), "head": nn.Linear(4, 3)}
    net = Written(lambda net, x: net.head(net.mix(net.patch(x).flatten(2).mT[:, :128]).mean(1)), **parts).double()
    grids = {layer.name: layer.grid for layer in list_layers(net.eval(), random_images(1, 3, 64, 64))}
    assert grids == {"patch": (16, 16), "mix": None, "head": None}
