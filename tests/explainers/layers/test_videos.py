"""Layers of networks for videos and volumes [N, C, T, H, W]: time is an axis like height and width.

test_geometry.py shows where their maps are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import video

import explainers
from explainers import NoSpatialOutput, UnsupportedModel, default_layer, grad_cam, list_layers
from tests.support.nets import Written


def test_receptive_fields_have_three_axes() -> None:
    net = nn.Sequential(nn.Conv3d(1, 1, (1, 3, 5)), nn.Conv3d(1, 1, 3, (2, 1, 1))).eval()
    layers = list_layers(net, torch.zeros(1, 1, 8, 10, 12))
    assert (layers[1].grid, layers[1].layout) == ((3, 6, 6), "NCTHW")
    assert layers[0].receptive_field((2, 3, 4)) == (4, 3, 2, 9, 6, 3), "left, top, start, right, bottom, end"
    assert layers[1].receptive_field((1, 0, 0)) == (0, 0, 2, 7, 5, 5)
    with pytest.raises(explainers.BadOption, match=r"Pass \(frame, row, column\) from \(0, 0, 0\) to \(2, 5, 5\)"):
        layers[1].receptive_field((0, 0))


FRAMES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "video first": lambda f, x: f(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(x), -1)).mean(1),
    "frame first": lambda f, x: f(x.permute(2, 0, 1, 3, 4).flatten(0, 1)).unflatten(0, (-1, len(x))).mean(0),
    "loop": lambda f, x: torch.stack([f(frame) for frame in x.unbind(2)]).mean(0),
    "slice": lambda f, x: f(x[:, :, 2:3].squeeze(2)),
    "two frames": lambda f, x: f(x[:, :, 2:4].mean(2)),
    "mean": lambda f, x: f(x.mean(2)),
}
CLIPS = torch.randn(2, 3, 6, 8, 12, generator=torch.Generator().manual_seed(0))


def per_frame(how: str) -> nn.Module:
    """A convolution on images, applied to the frames of videos in different ways."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return self.head(FRAMES[how](lambda images: self.convolution(images).relu().mean((2, 3)), x))

    return Written(forward, convolution=nn.Conv2d(3, 6, 3, 2, 1), head=nn.Linear(6, 4)).eval()


def test_frames_in_the_batch_are_the_time_of_the_map() -> None:
    net = per_frame("video first")
    layer = list_layers(net, CLIPS, spatial=True)[0]
    assert (layer.name, layer.shape, layer.grid, layer.frames) == ("convolution", (6, 6, 4, 6), (6, 4, 6), 6)
    a = net.convolution(CLIPS.transpose(1, 2).flatten(0, 1)).detach().requires_grad_()
    scores = net.head(a.relu().mean((2, 3)).unflatten(0, (2, 6)).mean(1))
    (g,) = torch.autograd.grad(scores[:, 1].sum(), a)
    a, g = (each.detach().unflatten(0, (2, 6)).transpose(1, 2) for each in (a, g))
    torch.testing.assert_close(grad_cam(net, CLIPS, 1, relu=False), (g.mean((2, 3, 4), keepdim=True) * a).sum(1))
    with pytest.raises(UnsupportedModel, match="'convolution' runs on the 6 frames of a video one by one"):
        explainers.ablation_cam(net, CLIPS, 1)


def test_layers_without_a_known_time_are_refused_and_after_the_mean_have_one_cell() -> None:
    for how in ("frame first", "loop", "slice", "two frames"):
        with pytest.raises(NoSpatialOutput):
            grad_cam(per_frame(how), CLIPS, 1)
        assert explainers.saliency(per_frame(how), CLIPS, 1).shape == CLIPS.shape
    net = per_frame("mean")
    alone = nn.Sequential(net.convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), net.head)
    images = grad_cam(alone, CLIPS.mean(2), 1, layer="0")
    torch.testing.assert_close(grad_cam(net, CLIPS, 1, layer="convolution"), images[:, None])


def small_resnet() -> nn.Module:
    """r3d_18 with one block for each stage, and a stride in time in the later ones."""
    parts = video.resnet.BasicBlock, [video.resnet.Conv3DSimple] * 4, [1] * 4, video.resnet.BasicStem
    return video.resnet.VideoResNet(*parts, num_classes=5)


def small_swin() -> nn.Module:
    return video.SwinTransformer3d([2, 4, 4], 24, [2, 2], [2, 3], [2, 4, 4], num_classes=5)


@pytest.mark.parametrize(
    ("build", "layer", "grid", "layout"),
    [(small_resnet, "layer3", (2, 6, 8), "NCTHW"), (small_swin, "norm", (4, 6, 8), "NTHWC")],
)
def test_networks_of_torchvision(build, layer, grid, layout) -> None:
    torch.manual_seed(0)
    net, clips = build().eval(), torch.randn(1, 3, 8, 48, 64)
    found = next(each for each in list_layers(net, clips) if each.name == layer)
    assert default_layer(net, clips) == layer and (found.grid, found.layout) == (grid, layout) and found.stage
    with explainers.capture(net, [layer], gradients=True) as seen:
        net(clips)[0, 2].backward()
    a, g = seen.outputs[layer], seen.gradients[layer]
    a, g = (each if layout == "NCTHW" else each.movedim(-1, 1) for each in (a, g))
    expected = (g.mean((2, 3, 4), keepdim=True) * a).sum(1)
    torch.testing.assert_close(grad_cam(net, clips, 2, relu=False), expected, rtol=1e-4, atol=1e-6)


def test_tokens_that_run_over_the_frames_first() -> None:
    """Tokens of each position in all frames, one position after the other, after a class token."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        cells = self.patches(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(x), -1))
        tokens = cells.permute(0, 3, 4, 1, 2).flatten(1, 3)
        tokens = self.mix(torch.cat([torch.zeros(len(x), 1, 4), tokens], 1)).relu()
        return self.head(tokens.mean(1))

    net = Written(forward, patches=nn.Conv2d(1, 4, 8, 8), mix=nn.Linear(4, 4), head=nn.Linear(4, 3)).eval()
    clips = torch.rand(2, 1, 32, 48, 64, generator=torch.Generator().manual_seed(0))
    layer = next(layer for layer in list_layers(net, clips) if layer.name == "mix")
    assert (layer.grid, layer.layout, layer.extra_tokens, layer.frames) == ((32, 6, 8), "tokens", 1, 1)
    maps = explainers.feature_maps(net, clips, layer="mix")
    expected = net.mix(net.patches(clips.transpose(1, 2).flatten(0, 1)).movedim(1, -1)).detach()
    torch.testing.assert_close(maps, expected.unflatten(0, (2, 32)).movedim(-1, 1))
    found = explainers.ablation_cam(net, clips, 1, layer="mix", relu=False)
    assert found.shape == (2, 32, 6, 8) and not torch.equal(found[0], found[1])
