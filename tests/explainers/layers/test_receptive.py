"""Receptive fields: published sizes, and brute force over every input pixel with positive weights."""

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
from explainers.layers import receptive
from explainers.layers.center_fields import center_fields
from explainers.layers.lookup import layer_layout
from explainers.network.eval_view import eval_view
from tests.support.nets import settle


def receptive_field(
    model: nn.Module, images: Tensor, layer: str | nn.Module | None, cell: tuple[int, int]
) -> tuple[int, int, int, int]:
    view = eval_view(model)
    return receptive.receptive_field(view.network, images, layer_layout(view, images, layer), cell)


def stride(model: nn.Module, images: Tensor, layer: str | nn.Module | None) -> tuple[float, float]:
    view = eval_view(model)
    return receptive.stride(view.network, images, layer_layout(view, images, layer))


def field_by_brute_force(
    model: nn.Module, layer: nn.Module, size: tuple[int, int], cell: tuple[int, int]
) -> tuple[int, ...]:
    """One image per pixel, with only that pixel nonzero; weights are positive, so every cell that reads it grows."""
    for name, parameter in model.named_parameters():
        parameter.data = torch.full_like(parameter, 0.0 if name.endswith("bias") else 1.0)
    height, width = size
    lit = torch.eye(height * width, dtype=torch.float64).view(-1, 1, height, width).repeat(1, 2, 1, 1)
    box: list[Tensor] = []
    handle = layer.register_forward_hook(lambda m, i, o: box.append(o.detach().clone()))
    with torch.no_grad():
        model(torch.cat([lit, torch.zeros_like(lit[:1])]))
    handle.remove()
    values = box[0][:, :, cell[0], cell[1]]
    seen = (values[:-1] != values[-1]).any(1).view(height, width)
    rows, columns = seen.any(1).nonzero().flatten(), seen.any(0).nonzero().flatten()
    if not len(rows):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


class Branches(nn.Module):
    """Inception-like: wide and dilated branches, concatenated; an in-place addition; a functional and a reused ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0))
        self.wide = nn.Conv2d(4, 2, (1, 5), padding=(0, 2), groups=2)
        self.far = nn.Conv2d(4, 2, 3, padding="same", dilation=(2, 3))
        self.mix = nn.Conv2d(4, 4, 1)
        self.last = nn.Conv2d(4, 4, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = torch.cat([self.wide(x), self.far(x)], 1)
        y = torch.relu_(y)
        y += x
        return self.last(self.mix(y).relu())


def plain(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules)


CHAINS = {
    "stride and padding": plain(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(inplace=True), nn.Conv2d(3, 2, 3)),
    "max-pool": plain(nn.Conv2d(2, 2, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 2)),
    "max-pool, ceil": plain(nn.MaxPool2d(3, 2, ceil_mode=True), nn.Conv2d(2, 2, 1)),
    "max-pool, dilated": plain(nn.Conv2d(2, 2, 3), nn.MaxPool2d(2, 2, dilation=3, ceil_mode=True)),
    "average and norm": plain(nn.AvgPool2d(2, ceil_mode=True), nn.BatchNorm2d(2), nn.SiLU(), nn.Conv2d(2, 2, (1, 3))),
    "dilation": plain(nn.Conv2d(2, 2, 3, dilation=2, padding=2), nn.Hardtanh(), nn.Conv2d(2, 2, 3, dilation=(1, 3))),
    "same, even": plain(nn.Conv2d(2, 2, (2, 4), padding="same"), nn.Conv2d(2, 2, 1)),
    "adaptive": plain(nn.Conv2d(2, 2, 3), nn.AdaptiveAvgPool2d((3, 2))),
    "adaptive max": plain(nn.Conv2d(2, 2, 3), nn.AdaptiveMaxPool2d((3, 2))),
    "transposed": plain(nn.Conv2d(2, 2, 3, stride=2), nn.ConvTranspose2d(2, 2, 3, stride=2, output_padding=1)),
    "upsampled": plain(nn.Conv2d(2, 2, 3, stride=3), nn.Upsample(scale_factor=2)),
    "branches": Branches(),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("where", ["corner", "middle", "end"])
def test_field_equals_brute_force(name, where):
    """Oracle: brute force over every pixel of an 11 x 14 image, at the borders and inside."""
    model = CHAINS[name].double().eval()
    layer = list(model.named_children())[-1][0]
    with torch.no_grad():
        grid = model(torch.zeros(1, 2, 11, 14, dtype=torch.float64)).shape[2:]
    cell = {"corner": (0, 0), "middle": (grid[0] // 2, grid[1] // 2), "end": (grid[0] - 1, grid[1] - 1)}[where]

    actual = receptive_field(model, torch.randn(2, 2, 11, 14, dtype=torch.float64), layer, cell)

    assert actual == field_by_brute_force(model, model.get_submodule(layer), (11, 14), cell)
    for beyond in ((grid[0], 0), (0, grid[1])):
        with pytest.raises(ValueError, match="outside"):
            receptive_field(model, torch.zeros(1, 2, 11, 14, dtype=torch.float64), layer, beyond)


@functools.cache
def zoo(name: str) -> nn.Module:
    """A torchvision network; for a VGG only the convolutions, since its head takes a second to create."""
    models = torchvision.models
    if name.startswith("vgg"):
        return models.vgg.make_layers(models.vgg.cfgs[{"vgg11": "A", "vgg16": "D"}[name]]).eval()
    return models.get_model(name, weights=None).eval()


@pytest.mark.parametrize(
    ("name", "layer", "side", "size", "step"),
    [
        ("resnet18", "layer1", 96, 43, 4),
        ("resnet18", "layer2", 192, 99, 8),
        ("squeezenet1_1", "features.4", 96, 23, 4),
        ("vgg11", "10", 64, 30, 8),
    ],
)
def test_sizes_as_published(name, layer, side, size, step):
    """Oracle: r = 1 + sum (k - 1) * product of earlier strides (Araujo et al. 2019), by hand."""
    model, images = zoo(name), torch.zeros(1, 3, side, side)
    grid = next(each.grid for each in list_layers(model, images) if each.name == layer)
    cell = grid[0] // 2, grid[1] // 2
    left, top, right, bottom = receptive_field(model, images, layer, cell)

    assert (right - left, bottom - top) == (size, size)
    assert stride(model, images, layer) == (step, step)
    # 97 px over 25 cells are 3.9 px a cell; the cells still are 4 apart, the product of the strides.
    assert (name, layer) != ("resnet18", "layer1") or stride(model, torch.zeros(1, 3, 97, 129), layer) == (step, step)


def test_field_of_a_corner_is_cut_at_the_border():
    """By hand: VGG's 196 px extend 90 px beyond the first cell's 16 on either side; the left ones are clipped."""
    left, top, right, bottom = receptive_field(zoo("vgg16"), torch.zeros(1, 3, 112, 96), "29", (0, 0))

    assert (left, top, right, bottom) == (0, 0, 96, 106)


def test_later_in_place_additions_are_not_the_layers_own():
    """`near` reads one pixel; what is added to its output afterwards reads five."""

    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.near, self.far = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 5, padding=2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.near(x)
            y += self.far(x)
            return y

    assert receptive_field(Added(), torch.zeros(1, 3, 9, 9), "near", (4, 3)) == (3, 4, 4, 5)


class SqueezeExcitation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.gate = plain(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 1), nn.Hardsigmoid())
        self.out = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.out(x * self.gate(x))


@pytest.mark.parametrize(
    "model",
    [
        SqueezeExcitation(),
        plain(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1)),
        plain(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.Conv2d(4, 4, 1)),
    ],
    ids=["excitation", "group norm", "instance norm"],
)
def test_global_statistics_have_the_whole_image_as_field(model):
    """Their statistics read every pixel; before them the field is the convolution's own 3 x 3."""
    images = torch.zeros(1, 3, 10, 12)
    names = [name for name, _ in model.named_children()]

    assert receptive_field(model.eval(), images, names[0], (2, 3)) == (3, 2, 6, 5)
    assert receptive_field(model.eval(), images, names[-1], (2, 3)) == (0, 0, 12, 10)


def test_field_of_window_attention_is_that_of_its_windows():
    """By hand: patches of 4 px, windows of 7: the first block's field is its window's 28 px, the shifted one's more."""
    swin = zoo("swin_t")
    images = torch.zeros(1, 3, 112, 112)

    assert receptive_field(swin, images, "features.0", (9, 5)) == (20, 36, 24, 40)
    assert receptive_field(swin, images, "features.1.0", (9, 5)) == (0, 28, 28, 56)
    # Shifted by 3 cells the window covers rows 3..9 and columns 3..9 of the grid, hence whole windows 0 and 1.
    assert receptive_field(swin, images, "features.1.1", (9, 5)) == (0, 0, 56, 56)


@pytest.mark.parametrize("layer", ["features.1.1", "features.3"])
def test_fields_of_all_cells_equal_those_of_each_cell(layer):
    """Windows move in steps, borders clip; channels are last, and gradients may be disabled."""
    swin, images = zoo("swin_t"), torch.zeros(1, 3, 112, 84)
    view = eval_view(swin)
    at = layer_layout(view, images, layer)
    expected = [
        receptive_field(swin, images, layer, (row, column)) for row, column in [(0, 0), (5, 3), (9, 8), (13, 9)]
    ]

    with torch.no_grad():
        rows, columns = receptive.receptive_fields(view.network, images, at)
        found = [receptive_field(swin, images, layer, (row, column)) for row, column in [(0, 0), (5, 3)]]

    assert found == expected[:2]
    cells = [(0, 0), (5, 3), (9, 8), (13, 9)]
    assert [(columns[c][0], rows[r][0], columns[c][1], rows[r][1]) for r, c in cells] == expected
    assert receptive.receptive_fields(view.network, images, at, seconds=0) is None


def test_central_fields_of_several_layers_take_one_pass():
    """A layer that runs twice, or has no grid, has None."""
    twice = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(nn.Conv2d(3, 4, 5, 2), twice, nn.ReLU(), twice, nn.Flatten(), nn.Linear(196, 2)).eval()
    images, calls = torch.zeros(1, 3, 18, 18), []
    view = eval_view(model)
    layouts = [layer_layout(view, images, name) for name in ("0", "2")]
    layouts += [replace(layouts[0], name="1"), replace(layouts[0], name="5")]
    hook = model[0].register_forward_hook(lambda *_: calls.append(1))
    try:
        found = center_fields(view.network, images, layouts)
    finally:
        hook.remove()
    assert found == [receptive_field(model, images, name, (3, 3)) for name in ("0", "2")] + [None, None]
    assert found[0] == (6, 6, 11, 11) and len(calls) == 1


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_central_fields_are_those_of_single_layers() -> None:
    """They share their work between layers that depend on the same values of an earlier one."""
    for model in (*CHAINS.values(), zoo("shufflenet_v2_x0_5")):
        is_chain = model in CHAINS.values()
        images = torch.zeros(1, 2, 11, 14) if is_chain else torch.zeros(1, 3, 48, 64)
        view = eval_view(model.float().eval())
        layers = [layer for layer in list_layers(model, images) if layer.grid is not None]
        layouts = [layer_layout(view, images, layer.name) for layer in layers]
        found = center_fields(view.network, images, layouts)
        for layer, layout, box in list(zip(layers, layouts, found, strict=True))[:: 1 if is_chain else 9]:
            rows, columns = layer.grid or (0, 0)
            center = (rows - 1) // 2, (columns - 1) // 2
            assert box == receptive.receptive_field(view.network, images, layout, center), layer


def test_time_that_other_processes_use_does_not_count():
    """A busy machine must not turn a known receptive field into an unknown one, which the page would then cache."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))
    network.register_forward_hook(lambda *_: time.sleep(0.3))
    view, images = eval_view(network), torch.zeros(1, 3, 8, 8)

    assert receptive.receptive_fields(view.network, images, layer_layout(view, images, "0"), seconds=0.3) is not None


def test_field_of_a_vision_transformer_is_all_tokens():
    model = torchvision.models.VisionTransformer(64, 16, 2, 2, 16, 16).eval()
    images = torch.zeros(1, 3, 64, 64)

    assert receptive_field(model, images, "conv_proj", (1, 2)) == (32, 16, 48, 32)
    assert receptive_field(model, images, "encoder.layers.encoder_layer_0", (1, 2)) == (0, 0, 64, 64)
    assert receptive_field(model, images, "encoder.layers.encoder_layer_0.ln_1", (1, 2)) == (32, 16, 48, 32)


def test_masks_of_scaled_dot_product_attention_are_respected():
    """A token that may read only earlier ones: the third patch of a 1 x 4 grid sees three of four."""

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, 4, 2, 2)
            self.out = nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.patch(x).flatten(2).transpose(1, 2)
            tokens = F.scaled_dot_product_attention(tokens, tokens, tokens, is_causal=True)
            return self.out(tokens.transpose(1, 2).unflatten(2, (1, 4)))

    assert receptive_field(Causal().eval(), torch.zeros(1, 3, 2, 8), "out", (0, 2)) == (0, 0, 6, 2)


def test_field_in_every_grad_mode_and_dtype():
    model = plain(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3)).requires_grad_(False)
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            images = torch.full((2, 3, 20, 20), torch.nan, dtype=dtype)
            with context():
                assert receptive_field(model.to(dtype).train(), images, "3", (1, 1)) == (2, 2, 10, 10)
            assert model.training and not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("layer", "cell", "word"),
    [
        ("0", (6, 0), r"\(0, 0\) to \(5, 5\)"),
        ("0", (0, -1), "outside"),
        ("9", (0, 0), "no layer"),
        ("1", (0, 0), "'1#0', '1#1'"),
        ("4", (0, 0), "without height and width"),
    ],
)
def test_wrong_use_is_refused_with_the_remedy(layer, cell, word):
    relu = nn.ReLU()
    model = plain(nn.Conv2d(3, 4, 3), relu, nn.Conv2d(4, 4, 3), relu, nn.Flatten())
    with pytest.raises(ValueError, match=word):
        receptive_field(model, torch.zeros(1, 3, 8, 8), layer, cell)


CNNS = ("resnet18", "squeezenet1_1", "mobilenet_v2", "shufflenet_v2_x0_5", "densenet121", "googlenet", "convnext_tiny")


def supports(net: nn.Module, layers: list[str], x: Tensor) -> Callable[[str, tuple[int, int]], tuple[int, ...]]:
    """Return a function of the box with d A[i, j] / d x != 0, over randomly weighted channels, in one pass."""
    leaf, outputs = x.clone().requires_grad_(), dict[str, Tensor]()

    def keep(name: str) -> Callable[..., Tensor]:
        return lambda module, inputs, output: (outputs.update({name: output}), output.clone())[1]

    handles = [net.get_submodule(each).register_forward_hook(keep(each)) for each in layers]
    net(leaf * 1)
    for handle in handles:
        handle.remove()

    def box(layer: str, cell: tuple[int, int]) -> tuple[int, ...]:
        values = outputs[layer][0, :, cell[0], cell[1]]
        weights = torch.randn(len(values), generator=torch.Generator().manual_seed(1))
        (slope,) = torch.autograd.grad((values * weights).sum(), leaf, retain_graph=True)
        rows, columns = ((slope != 0)[0].any(0).any(1 - k).nonzero().flatten().tolist() for k in (0, 1))
        return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1

    return box


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [CNNS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in CNNS[1:])])
def test_box_contains_what_the_gradient_reaches(name):
    """At the first layer and every stage, in the middle and in a corner; an unclipped box is hardly larger."""
    net, (height, width) = settle(torchvision.models.get_model(name, weights=None)), (128, 160)
    x = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    first, *others = [each for each in list_layers(net, x) if each.layout == "NCHW" and "#" not in each.name]
    layers = [first, *(each for each in others if each.stage)]
    reach = supports(net, [each.name for each in layers], x)
    compared = 0
    for layer in layers:
        for cell in ((0, 0), (layer.grid[0] // 2, layer.grid[1] // 2)):
            box, reached = layer.receptive_field(cell), reach(layer.name, cell)

            left, top, right, bottom = box
            inside = left <= reached[0] and top <= reached[1] and right >= reached[2] and bottom >= reached[3]
            assert inside, (layer.name, cell, box, reached)
            if box != (0, 0, width, height):
                compared += 1
                # Inactive ReLUs and max pooling leave a margin of this image without gradient, but not half of it.
                assert reached[2] - reached[0] > (right - left) / 2 and reached[3] - reached[1] > (bottom - top) / 2
    assert len(layers) >= 4 and compared >= 2, "boxes of the whole image contain everything"


def test_field_does_not_depend_on_weights_of_zero():
    """The field follows from the architecture, not from the weights' values; a Linear over channels included."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.mix, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.mix(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))

    model = Mixed()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)

    assert receptive_field(model, torch.zeros(1, 3, 9, 9), "out", (4, 3)) == (3, 4, 6, 7)
