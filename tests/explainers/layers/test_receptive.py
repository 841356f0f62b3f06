"""Receptive fields: published sizes, fields by hand, and brute force over every input pixel with positive weights."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from explainers import list_layers
from explainers.call.current import eval_view
from explainers.call.layers import layer_layout
from explainers.call.view import EvalView
from explainers.layers import receptive
from explainers.layers.center_fields import center_fields
from explainers.layers.layout import LayerLayout
from tests.support.nets import Written

Cell = tuple[int, int]
conv = nn.Conv2d


def layout(model: nn.Module, images: Tensor, layer: str) -> tuple[EvalView, LayerLayout]:
    view = eval_view(model)
    return view, layer_layout(view, images, layer)


def field(model: nn.Module, images: Tensor, layer: str, cell: Cell) -> tuple[int, ...]:
    view, at = layout(model, images, layer)
    return receptive.receptive_field(view.network, images, at, cell)


def sequence(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules).eval()


def branches() -> nn.Module:
    """Inception-like: wide and dilated branches, concatenated; an in-place addition; a functional and a reused ReLU."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = torch.cat([self.wide(x), self.far(x)], 1)
        y = torch.relu_(y)
        y += x
        return self.last(self.mix(y).relu())

    return Written(
        forward,
        stem=conv(2, 4, (3, 2), stride=(2, 1), padding=(1, 0)),
        wide=conv(4, 2, (1, 5), padding=(0, 2), groups=2),
        far=conv(4, 2, 3, padding="same", dilation=(2, 3)),
        mix=conv(4, 4, 1),
        last=conv(4, 4, 3, stride=2),
    ).eval()


POOLED = Written(lambda _, x: F.max_pool2d(x, 3, 2, padding=1, return_indices=True)[0])
"""A max pool that returns the indices of its winners, as in a SegNet."""


CHAINS = {
    "stride and padding": sequence(conv(2, 3, 3, stride=2, padding=1), nn.ReLU(inplace=True), conv(3, 2, 3)),
    "max-pool": sequence(conv(2, 2, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), nn.ReLU(), conv(2, 2, 2)),
    "max-pool, ceil": sequence(nn.MaxPool2d(3, 2, ceil_mode=True), conv(2, 2, 1)),
    "max-pool, dilated": sequence(conv(2, 2, 3), nn.MaxPool2d(2, 2, dilation=3, ceil_mode=True)),
    "dilation": sequence(conv(2, 2, 3, dilation=2, padding=2), nn.Hardtanh(), conv(2, 2, 3, dilation=(1, 3))),
    "same, even": sequence(conv(2, 2, (2, 4), padding="same"), conv(2, 2, 1)),
    "adaptive": sequence(conv(2, 2, 3), nn.AdaptiveAvgPool2d((3, 2))),
    "max-pool with indices": sequence(conv(2, 2, 3, padding=1), POOLED, conv(2, 2, 2)),
    "adaptive max": sequence(conv(2, 2, 3), nn.AdaptiveMaxPool2d((3, 2))),
    "transposed": sequence(conv(2, 2, 3, stride=2), nn.ConvTranspose2d(2, 2, 3, stride=2, output_padding=1)),
    "upsampled": sequence(conv(2, 2, 3, stride=3), nn.Upsample(scale_factor=2)),
    "branches": branches(),
}


def field_by_brute_force(model: nn.Module, size: tuple[int, int], cell: Cell) -> tuple[int, ...]:
    """One image per pixel, with only that pixel nonzero; weights are positive, so every cell that reads it grows."""
    for name, parameter in model.named_parameters():
        parameter.data = torch.full_like(parameter, 0.0 if name.endswith("bias") else 1.0)
    height, width = size
    lit = torch.eye(height * width).view(-1, 1, height, width).repeat(1, 2, 1, 1)
    with torch.no_grad():
        values = model(torch.cat([lit, torch.zeros_like(lit[:1])]))[:, :, cell[0], cell[1]]
    seen = (values[:-1] != values[-1]).any(1).view(height, width)
    rows, columns = seen.any(1).nonzero().flatten(), seen.any(0).nonzero().flatten()
    return (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1) if len(rows) else (0, 0, 0, 0)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CHAINS)
def test_field_equals_brute_force(name):
    """Oracle: brute force over every pixel of an 11 x 14 image, at the borders and inside."""
    model, images = CHAINS[name], torch.zeros(2, 2, 11, 14)
    layer = list(model.named_children())[-1][0]
    rows, columns = model(images).shape[2:]
    for cell in ((0, 0), (rows // 2, columns // 2), (rows - 1, columns - 1)):
        assert field(model, images, layer, cell) == field_by_brute_force(model, (11, 14), cell)
    for beyond in ((rows, 0), (0, columns), (0, -1)):
        with pytest.raises(ValueError, match="outside"):
            field(model, images, layer, beyond)


@functools.cache
def zoo(name: str) -> nn.Module:
    """A torchvision network: two with their published layers, and two with few and narrow ones."""
    models = torchvision.models
    if name == "vgg11":  # the convolutions; its head takes a second to create
        return models.vgg.make_layers(models.vgg.cfgs["A"]).eval()
    if name == "swin":
        return models.SwinTransformer([4, 4], 8, [2, 2], [2, 2], [7, 7], num_classes=3).eval()
    if name == "shufflenet":
        return models.ShuffleNetV2([1, 1, 1], [8, 8, 16, 16, 16], num_classes=3).eval()
    return models.get_model(name, weights=None).eval()


def added() -> nn.Module:
    """`near` reads one pixel; what is added to its output afterwards reads five."""
    near, far = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 5, padding=2)
    return Written(lambda self, x: self.near(x).add_(self.far(x)), near=near, far=far)


def between(function: Callable[[Tensor], Tensor], size: int = 3, stride: int = 1) -> nn.Module:
    """A function between two convolutions; with weights of zero, since the field follows from the architecture."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return self.out(function(self.mix(self.conv(x).movedim(1, -1)).movedim(-1, 1)))

    net = Written(forward, conv=nn.Conv2d(3, 4, size, stride), mix=nn.Linear(4, 4), out=nn.Conv2d(4, 4, 1))
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    return net


def attend_to_earlier(x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    tokens = F.scaled_dot_product_attention(tokens, tokens, tokens, is_causal=True)
    return tokens.transpose(1, 2).unflatten(2, x.shape[2:])


def gate(x: Tensor) -> Tensor:
    return x * F.adaptive_avg_pool2d(x, 1).sigmoid()


BLOCK = "encoder.layers.encoder_layer_0"
WHOLE = (0, 0, 12, 10)


@pytest.mark.parametrize(
    ("make", "size", "layer", "cell", "expected"),
    [
        # Sizes as published, r = 1 + sum (k - 1) * product of earlier strides (Araujo et al. 2019): 43, 99 and 30.
        (lambda: zoo("resnet18"), (96, 96), "layer1", (12, 12), (27, 27, 70, 70)),
        (lambda: zoo("resnet18"), (192, 192), "layer2", (12, 12), (47, 47, 146, 146)),
        (lambda: zoo("vgg11"), (64, 64), "10", (4, 4), (21, 21, 51, 51)),
        (added, (9, 9), "near", (4, 3), (3, 4, 4, 5)),
        (lambda: between(torch.relu), (9, 9), "out", (4, 3), (3, 4, 6, 7)),
        # Statistics and gates read every pixel; before them the field is the convolution's own 3 x 3.
        (lambda: between(gate), (10, 12), "conv", (2, 3), (3, 2, 6, 5)),
        (lambda: between(gate), (10, 12), "out", (2, 3), WHOLE),
        (lambda: between(lambda x: F.group_norm(x, 2)), (10, 12), "out", (2, 3), WHOLE),
        (lambda: between(F.instance_norm), (10, 12), "out", (2, 3), WHOLE),
        # Each of four patches may read only earlier ones.
        (lambda: between(attend_to_earlier, 2, 2), (2, 8), "out", (0, 2), (0, 0, 6, 2)),
        # Patches of 4 px, windows of 7. Shifted by 3 cells the window covers rows and columns 3 to 9, hence whole
        # windows 0 and 1.
        (lambda: zoo("swin"), (112, 112), "features.0", (9, 5), (20, 36, 24, 40)),
        (lambda: zoo("swin"), (112, 112), "features.1.0", (9, 5), (0, 28, 28, 56)),
        (lambda: zoo("swin"), (112, 112), "features.1.1", (9, 5), (0, 0, 56, 56)),
        (lambda: transformer(), (64, 64), "conv_proj", (1, 2), (32, 16, 48, 32)),
        (lambda: transformer(), (64, 64), BLOCK, (1, 2), (0, 0, 64, 64)),
        (lambda: transformer(), (64, 64), f"{BLOCK}.ln_1", (1, 2), (32, 16, 48, 32)),
    ],
)
def test_fields_by_hand(make, size, layer, cell, expected):
    assert field(make().eval(), torch.zeros(1, 3, *size), layer, cell) == expected


def transformer() -> nn.Module:
    return torchvision.models.VisionTransformer(64, 16, 2, 2, 16, 16)


@pytest.mark.parametrize("layer", ["features.1.1", "features.3"])
def test_fields_of_all_cells_equal_those_of_each_cell(layer):
    """Windows move in steps, borders clip; channels are last, and gradients may be disabled."""
    images, cells = torch.zeros(1, 3, 112, 84), [(0, 0), (5, 3), (9, 8), (13, 9)]
    view, at = layout(zoo("swin"), images, layer)
    expected = [field(zoo("swin"), images, layer, cell) for cell in cells]
    with torch.no_grad():
        rows, columns = receptive.receptive_fields(view.network, images, at)
        assert field(zoo("swin"), images, layer, cells[1]) == expected[1]
    assert [(columns[c][0], rows[r][0], columns[c][1], rows[r][1]) for r, c in cells] == expected
    assert receptive.receptive_fields(view.network, images, at, seconds=0) is None


def test_time_that_other_processes_use_does_not_count():
    """A busy machine must not turn a known receptive field into an unknown one, which the page would then cache."""
    network, images = sequence(nn.Conv2d(3, 4, 3, padding=1)), torch.zeros(1, 3, 8, 8)
    network.register_forward_hook(lambda *_: time.sleep(0.3))
    view, at = layout(network, images, "0")
    assert receptive.receptive_fields(view.network, images, at, seconds=0.3) is not None


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_central_fields_are_those_of_single_layers() -> None:
    """They share their work between layers that depend on the same values of an earlier one."""
    for model in (*CHAINS.values(), zoo("shufflenet")):
        is_chain = model in CHAINS.values()
        images = torch.zeros(1, 2, 11, 14) if is_chain else torch.zeros(1, 3, 48, 64)
        layers = [layer for layer in list_layers(model, images) if layer.grid is not None]
        view = eval_view(model)
        layouts = [layer_layout(view, images, layer.name) for layer in layers]
        boxes = center_fields(view.network, images, layouts)
        for layer, at, box in list(zip(layers, layouts, boxes, strict=True))[:: 1 if is_chain else 3]:
            rows, columns = layer.grid or (0, 0)
            center = (rows - 1) // 2, (columns - 1) // 2
            assert box == receptive.receptive_field(view.network, images, at, center), layer
    # A layer that runs twice, or has no grid, has None.
    twice, images = nn.Conv2d(4, 4, 3, padding=1), torch.zeros(1, 3, 18, 18)
    model = sequence(nn.Conv2d(3, 4, 5, 2), twice, nn.ReLU(), twice, nn.Flatten(), nn.Linear(196, 2))
    view, at = layout(model, images, "0")
    layouts = [at, layer_layout(view, images, "2"), replace(at, name="1"), replace(at, name="5")]
    found = center_fields(view.network, images, layouts)
    assert found == [(6, 6, 11, 11), field(model, images, "2", (3, 3)), None, None]
