"""The meaning of an output's axes: views, windows, concatenations, and networks that permute back and forth."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from explainers import channel_effects, default_layer, explain, feature_maps, grad_cam, list_layers
from explainers.layers.flow.axes import OTHER, Axis, Factor, concatenate_axes, full_axis, reshape_axes, slice_axis
from explainers.layers.flow.dataflow import Dataflow
from explainers.layers.flow.operation import Reads
from explainers.layers.flow.positions import even
from tests.support.nets import act_grad, random_images, settle

H, W = full_axis("H", 6), full_axis("W", 8)


def test_windows_split_and_merged_again_are_the_image():
    """Swin windows by hand: six windows of 2 x 4 and back; in another order they are not a grid."""
    axes = (OTHER, H, W, OTHER)
    cut = reshape_axes(axes, (1, 6, 8, 5), (1, 3, 2, 2, 4, 5))
    assert cut[1:5] == (
        Axis((Factor("H", 3, 2),)), Axis((Factor("H", 2, 1),)), Axis((Factor("W", 2, 4),)), Axis((Factor("W", 4, 1),)),
    )  # fmt: skip
    windows = reshape_axes((cut[0], cut[1], cut[3], cut[2], cut[4], cut[5]), (1, 3, 2, 2, 4, 5), (6, 8, 5))
    assert [f.kind for f in windows[0].factors] == ["H", "W"] and windows[0].stride("H") == 2
    apart = reshape_axes(windows, (6, 8, 5), (1, 3, 2, 2, 4, 5))
    assert (
        reshape_axes((apart[0], apart[1], apart[3], apart[2], apart[4], apart[5]), (1, 3, 2, 2, 4, 5), (1, 6, 8, 5))
        == axes
    )
    wrong = reshape_axes(apart, (1, 3, 2, 2, 4, 5), (1, 6, 8, 5))
    assert wrong[1] != H and wrong[2] != W


SCRAMBLED = Axis(lost="a reshape across height and width")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((1, 6, 8, 5), (1, 48, 5), (OTHER, Axis((Factor("H", 6), Factor("W", 8))), OTHER)),
        ((1, 6, 8, 5), (48, 5), (Axis((Factor("H", 6), Factor("W", 8))), OTHER)),
        ((1, 6, 8, 5), (1, 6, 40), (OTHER, H, Axis((Factor("W", 8), Factor("", 5, 0))))),
        ((1, 6, 8, 5), (1, 6, 8, 1, 5), (OTHER, H, W, OTHER, OTHER)),
        ((1, 6, 8, 5), (1, 16, 15), (OTHER, SCRAMBLED, SCRAMBLED)),  # 6 rows cannot be split into 16
    ],
)
def test_views_join_and_cut_axes(old, new, expected):
    assert reshape_axes((OTHER, H, W, OTHER), old, new) == expected


def test_slices_drop_extra_tokens_and_subsample_rows():
    tokens = Axis((Factor("H", 6), Factor("W", 8)), before=2)
    assert slice_axis(tokens, 50, 2, 48, 1) == Axis(tokens.factors)
    assert slice_axis(tokens, 50, 1, 49, 1).before == 1
    assert slice_axis(tokens, 50, 0, 1, 1) == OTHER and slice_axis(tokens, 50, 3, 20, 1) == OTHER
    assert slice_axis(H, 6, 0, 3, 2) == Axis((Factor("H", 3, 2),))


def test_concatenation_puts_tokens_before_or_after():
    patches = Axis((Factor("H", 6), Factor("W", 8)))
    assert concatenate_axes([(OTHER, 2), (patches, 48), (OTHER, 1)]) == Axis(patches.factors, 2, 1)
    assert concatenate_axes([(H, 6), (H, 6)]) == full_axis("H", 12)
    assert concatenate_axes([(patches, 48), (patches, 48)]) == OTHER


def test_a_write_into_part_of_a_tensor_changes_the_whole():
    """As in detectors: images are copied into a larger batch of zeros."""
    image = torch.randn(1, 3, 6, 8)
    with Dataflow(image) as flow:
        batch = torch.zeros(1, 3, 8, 12)
        batch[:, :, :6, :8].copy_(image)
        copied = batch * 2
    value = flow.value(copied)
    rows, columns = even(6).pad(0, 2), even(8).pad(0, 4)
    assert value is not None and value.axes[2:] == (full_axis("H", 8, rows), full_axis("W", 12, columns))


def test_reused_memory_has_no_axes():
    image = torch.randn(1, 3, 6, 8)
    with Dataflow(image) as flow:
        for _ in range(50):
            made = image * 2
            assert flow.value(made) is not None
            del made
            constant = torch.ones(1, 3, 6, 8)
            assert flow.value(constant) is None
            del constant


def test_dominators_are_the_nodes_that_all_paths_pass():
    image = torch.randn(1, 3, 6, 8)
    with Dataflow(image) as flow:
        a = image * 2
        b = a.relu()
        c = b + a
        d = c.tanh()
    nodes = [flow.value(t).node for t in (image, a, b, c, d)]
    passed = flow.graph.nodes_on_all_paths(nodes[-1])
    assert [node in passed for node in nodes] == [True, True, False, True, True]


def test_only_the_class_token_is_used_after_the_last_attention():
    image = torch.randn(1, 4, 2, 3)
    weight = torch.randn(4, 4)
    with Dataflow(image) as flow:
        tokens = torch.cat([torch.ones(1, 1, 4), image.flatten(2).mT], dim=1)
        mixed = (tokens @ tokens.mT).softmax(-1) @ tokens
        after = F.layer_norm(mixed @ weight, (4,))
        score = after[:, 0].sum(1)
    reads = flow.graph.reads(flow.value(score).node)
    assert reads[flow.value(tokens).node] == Reads.ALL
    assert reads[flow.value(mixed).node] == reads[flow.value(after).node] == Reads.EXTRA


def test_parts_of_a_split_are_tracked_separately():
    """As in CvT: class token and patches are split, and the score only uses the former."""
    image = torch.randn(1, 4, 2, 3)
    with Dataflow(image) as flow:
        tokens = torch.cat([torch.ones(1, 1, 4), image.flatten(2).mT], dim=1).tanh()
        token, patches = tokens.split([1, 6], 1)
        score, other = token.sum(), patches.sum()
    assert flow.graph.reads(flow.value(score).node)[flow.value(tokens).node] == Reads.EXTRA
    assert flow.graph.reads(flow.value(other).node)[flow.value(tokens).node] == Reads.ALL
    assert flow.value(patches).axes[1] == Axis((Factor("H", 2, 1, even(2)), Factor("W", 3, 1, even(3))))


class Tokens(nn.Module):
    """Patches as tokens in two blocks; the class token is first or last, and read by the head or not."""

    def __init__(self, is_first: bool, reads: str) -> None:
        super().__init__()
        self.token_at, self.reads = (0 if is_first else -1), reads
        self.patches = slice(1, None) if is_first else slice(0, -1)
        self.patch, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.ones(1, 1, 8))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.attns = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))
        self.blocks = nn.ModuleList(nn.Identity() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.token.expand(len(x), -1, -1), self.patch(x).flatten(2).mT]
        x = torch.cat(parts if self.token_at == 0 else parts[::-1], 1)
        for norm, attn, block in zip(self.norms, self.attns, self.blocks, strict=True):
            y = norm(x)
            x = block(x + attn(y, y, y, need_weights=False)[0])
        x = self.norm(x)
        return self.head(x[:, self.token_at] if self.reads == "class" else x[:, self.patches].mean(1))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("reads", "expected"), [("class", "norms.1"), ("patches", "norm")])
def test_the_default_is_the_last_layer_whose_patches_are_read(is_first, reads, expected):
    net, x = settle(Tokens(is_first, reads).double()), random_images(2, 3, 16, 24)
    layer = next(layer for layer in list_layers(net, x) if layer.name == expected)

    assert default_layer(net, x) == expected and layer.grid == (4, 6) and layer.extra_tokens == is_first
    a, g, _ = act_grad(net, net.get_submodule(expected), x, [1, 2])
    a, g = (each[:, net.patches].mT.unflatten(2, (4, 6)) for each in (a, g))
    assert g.any()
    found = grad_cam(net, x, [1, 2], relu=False)
    torch.testing.assert_close(found, (g.mean((2, 3), keepdim=True) * a).sum(1), rtol=1e-8, atol=1e-12)
    if reads == "class":
        e = explain("grad_cam", net, x, [1, 2], layer="norm")
        assert e.layer == expected and torch.equal(e.raw, found)


class Early(nn.Module):
    """A backbone of three stages, all of which the head uses: only the stem is on every path."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict(
            {f"stage{i}": nn.Conv2d(8 if i else 3, 8, 3, 2, 1) for i in range(3)}
            | {"stage3": nn.Conv2d(8, 32, 3, 2, 1)}
        )
        self.sides = nn.ModuleList(nn.Conv2d(width, 5, 1) for width in (8, 8, 32))

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for stage in self.backbone.values():
            x = stage(x).relu()
            found.append(x)
        return sum(side(each).mean((2, 3)) for side, each in zip(self.sides, found[1:], strict=True))


def test_the_default_is_the_backbones_last_stage_if_the_head_uses_several_scales():
    net, x = settle(Early().double()), random_images(1, 3, 64, 96)
    assert default_layer(net, x) == "backbone.stage3"


def test_the_default_skips_grids_below_four_by_four():
    net = nn.Sequential(*(nn.Sequential(nn.Conv2d(3 if i == 0 else 6, 6, 3, 2, 1), nn.ReLU()) for i in range(4)))
    net = settle(nn.Sequential(net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)).double())
    grids = {layer.name: layer.grid for layer in list_layers(net, random_images(1, 3, 32, 48))}

    assert grids["0.3"] == (2, 3) and grids["0.2"] == (4, 6)
    assert (
        default_layer(net, random_images(1, 3, 32, 48)) == "0.2"
        and default_layer(net, random_images(1, 3, 64, 96)) == "0"
    )
    assert default_layer(net, random_images(1, 3, 4, 7)) == "0.1", "no grid of 4 x 4: the last one larger than 1 x 1"


class Wrapped(nn.Module):
    """A residual block as Hugging Face writes them: a tuple of the hidden state and None, or a dict of it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.conv, self.form = nn.Conv2d(6, 6, 3, 1, 1), form

    def forward(self, x: Tensor) -> object:
        x = x + self.conv(x).relu()
        return {"tuple": (x, None), "list": [x], "dict": {"hidden": x, "attentions": None}}[self.form]


class WrappedNet(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Conv2d(3, 6, 3, 2, 1), Wrapped(form), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        found = self.block(self.stem(x))
        return self.head((found["hidden"] if isinstance(found, dict) else found[0]).mean((2, 3)))


@pytest.mark.parametrize("form", ["tuple", "list", "dict"])
def test_a_layer_that_gives_one_tensor_in_a_tuple_is_that_tensor(form):
    """Oracle: the same network with the head at the block's output."""
    net, x = settle(WrappedNet(form).double()), random_images(2, 3, 16, 24)
    stem = net.stem(x)
    a = (stem + net.block.conv(stem).relu()).detach()
    g = (net.head.weight[[1, 2]] / (8 * 12))[:, :, None, None].expand_as(a)

    assert default_layer(net, x) == "block"
    torch.testing.assert_close(grad_cam(net, x, [1, 2], relu=False), (g.mean((2, 3), keepdim=True) * a).sum(1))
    torch.testing.assert_close(feature_maps(net, x, layer="block"), a)
    without = a.clone()
    without[:, 3] = 0
    lost = (net(x) - net.head(without.mean((2, 3))))[[0, 1], [1, 2]]
    torch.testing.assert_close(channel_effects(net, x, [1, 2], layer="block")[:, 3], lost.detach())


class TwoHeads(nn.Module):
    """As in LR-ASPP: class maps of two scales are added; the features before them are not logits."""

    def __init__(self, features: bool = False) -> None:
        super().__init__()
        self.low, self.high = nn.Conv2d(3, 8, 3, 2, 1), nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.low_classes, self.high_classes, self.features = nn.Conv2d(8, 4, 1), nn.Conv2d(16, 4, 1), features

    def forward(self, x: Tensor) -> Tensor:
        low = self.low(x)
        high = self.high(low)
        if self.features:
            return high
        return self.low_classes(low) + F.interpolate(self.high_classes(high), low.shape[-2:])


@pytest.mark.parametrize("features", [False, True])
def test_features_are_a_default_layer_and_class_maps_are_not(features):
    net, x = settle(TwoHeads(features).double()), random_images(1, 3, 32, 48)
    assert default_layer(net, x) == "high"
    target = (lambda output: output.mean((1, 2, 3))) if features else (lambda output: output[:, 1].mean((1, 2)))
    codes = [finding.code for finding in explain("grad_cam", net, x, target).findings[0]]
    assert ("bypass" in codes) is not features


FRESH = """
import sys, torch
network = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
images = torch.rand(1, 3, 24, 32)
network(images.clone().requires_grad_()).sum().backward()
before = set(sys.modules)
import explainers
explainers.grad_cam(network, images, 0)
print(sorted({"torch._dynamo", "numpy"} & (set(sys.modules) - before)))
"""


def test_the_first_map_only_imports_torch():
    """A dispatch mode imports torch._dynamo with its first operation, which took seconds."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


class Segmenter(nn.Module):
    """An encoder, and a head of a 3 x 3 and a 1 x 1 convolution; the output is a map of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        self.classifier = nn.Sequential(nn.Conv2d(8, 32, 3, 1, 1), nn.ReLU(), nn.Dropout(), nn.Conv2d(32, 4, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": F.interpolate(self.classifier(self.backbone(x)), x.shape[-2:], mode="bilinear")}


def test_the_default_of_a_segmentation_network_is_not_its_head():
    net, x = settle(Segmenter().double()), random_images(1, 3, 32, 48)
    assert default_layer(net, x) == "backbone"
    assert [layer.name for layer in list_layers(net, x) if layer.stage] == ["backbone"]


def test_windows_filled_by_padding_are_not_an_image():
    """As in tiny_vit: 4 x 3 cells in one window of 4 x 4 are not the image's; cropping restores it."""

    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.mix, self.out, self.head = (
                nn.Conv2d(3, 6, 8, 8),
                nn.Linear(6, 6),
                nn.ReLU(),
                nn.Linear(6, 5),
            )

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x).permute(0, 2, 3, 1)
            height, width = x.shape[1:3]
            windows = F.pad(x, (0, 0, 0, 4 - width, 0, 4 - height)).flatten(1, 2)
            x = self.out(self.mix(windows).unflatten(1, (4, 4))[:, :height, :width])
            return self.head(x.mean((1, 2)))

    net = settle(Windows().double())
    grids = {
        size: [layer.grid for layer in list_layers(net, random_images(1, 3, *size)) if layer.name in ("mix", "out")]
        for size in ((32, 24), (32, 32))
    }
    assert grids == {(32, 24): [None, (4, 3)], (32, 32): [(4, 4), (4, 4)]}
    assert default_layer(net, random_images(1, 3, 32, 24)) == "out"
