"""Networks that crop, pad, flip, shift or shuffle their input: maps are placed where the object is, or refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

import explainers
from explainers import NoSpatialOutput, evaluate, explain, feature_maps, full_gradients, grad_cam, list_layers, sweep
from explainers.layers.flow.positions import even
from explainers.layers.placement import Placement
from explainers.maps.resize import resize

SIZE, OBJECT = 64, (30.0, 22.0)
"""The image's side, and the center of the object: 6 x 6 bright pixels."""

Change = Callable[[Tensor], Tensor]


class Changed(nn.Module):
    """Two convolutions with positive weights after a change of the input."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change
        self.first, self.second = (nn.Conv2d(3, 3, 3, 2, 1, bias=False) for _ in range(2))
        generator = torch.Generator().manual_seed(0)
        for conv in (self.first, self.second):
            conv.weight.data = torch.rand(conv.weight.shape, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.change(x))).mean((2, 3))


def bright(center: tuple[float, float] = OBJECT) -> Tensor:
    images = torch.zeros(1, 3, SIZE, SIZE)
    row, column = (int(each) for each in center)
    images[:, :, row - 3 : row + 3, column - 3 : column + 3] = 1
    return images


def center_of(heat: Tensor) -> tuple[float, float]:
    """The center of mass of a map [h, w], in pixels of the image."""
    large = resize(heat[None].relu(), (SIZE, SIZE))[0].double()
    at = torch.arange(SIZE) + 0.5
    return float((large.sum(1) * at).sum() / large.sum()), float((large.sum(0) * at).sum() / large.sum())


def zoom(x: Tensor) -> Tensor:
    theta = torch.tensor([[0.6, 0, 0.2], [0, 0.7, -0.1]]).expand(len(x), 2, 3)
    return F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False)


def canvas(x: Tensor) -> Tensor:
    large = x.new_zeros(len(x), 3, 80, 96)
    large[:, :, 8:72, 30:94] = x
    return large


def shifted_in_place(x: Tensor) -> Tensor:
    moved = torch.empty_like(x)
    moved[..., :20], moved[..., 20:] = x[..., 44:], x[..., :44]
    return moved


def filtered(factor: Change, x: Tensor) -> Tensor:
    """The image after its spectrum [.., 64, 33] is multiplied by a factor of the frequencies of its columns."""
    return torch.fft.irfft2(torch.fft.rfft2(x) * factor(torch.arange(33) / SIZE), s=x.shape[-2:])


def convolved_spectrum(x: Tensor) -> Tensor:
    """A convolution of the real and imaginary parts of the spectrum, which leaves them as they are."""
    spectrum = torch.fft.rfft2(x)
    parts = F.conv2d(torch.cat([spectrum.real, spectrum.imag], 1), torch.eye(6)[..., None, None])
    return torch.fft.irfft2(torch.complex(*parts.chunk(2, 1)), s=x.shape[-2:])


@torch.library.custom_op("explainers_test::mirror", mutates_args=())
def mirror(x: Tensor) -> Tensor:
    """An operation of another package."""
    return x.flip(-1)


mirror.register_autograd(lambda context, gradient: gradient.flip(-1))


def mirrored_in_place(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :, 1::2] = x[:, :, 1::2].flip(-1)
    return x


def written(x: Tensor) -> Tensor:
    canvas = x.new_zeros(x.shape)
    canvas[..., torch.arange(63, -1, -1)] = x
    return canvas


def joined_tiles(x: Tensor) -> Tensor:
    """Four tiles as a batch, joined after it."""
    tiles = torch.cat([x[:, :, :32, :32], x[:, :, :32, 32:], x[:, :, 32:, :32], x[:, :, 32:, 32:]])
    a, b, c, d = (tiles * 2).chunk(4)
    return torch.cat([torch.cat([a, b], 3), torch.cat([c, d], 3)], 2)


COSINES = torch.cos(torch.pi / SIZE * (torch.arange(64.0)[:, None] + 0.5) * torch.arange(64.0))

CHANGES: dict[str, Change] = {
    "center crop": lambda x: x[:, :, 16:48, 16:48],
    "corner crop": lambda x: x[:, :, 20:, :40],
    "flip": lambda x: x.flip(-1),
    "flip both": lambda x: x.flip((2, 3)),
    "flip by index": lambda x: x[:, :, torch.arange(63, -1, -1)],
    "roll": lambda x: x.roll((20, 12), (2, 3)),
    "roll, not by whole cells": lambda x: x.roll((19, 13), (2, 3)),
    "roll by concatenation": lambda x: torch.cat([x[..., 20:], x[..., :20]], -1),
    "roll in place": shifted_in_place,
    "pad": lambda x: F.pad(x, (12, 12, 12, 12)),
    "pad below": lambda x: F.pad(x, (0, 27, 0, 31)),
    "reflected borders": lambda x: F.pad(x, (11, 3, 7, 9), mode="reflect"),
    "circular borders": lambda x: F.pad(x, (11, 3, 7, 9), mode="circular"),
    "canvas": canvas,
    "letterbox": lambda x: F.pad(F.interpolate(x, (48, 32), mode="bilinear"), (32, 0, 0, 16)),
    "zoom": zoom,
    "every second pixel": lambda x: x[:, :, ::2, 1::2],
    "Fourier transform and back": lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2, s=x.shape[-2:]),
    "Fourier transform, convolution and back": convolved_spectrum,
    "low frequencies": lambda x: filtered(lambda k: torch.exp(-20 * k**2), x),
    "unfolded and folded": lambda x: F.fold(F.unfold(x, 8, stride=8), (SIZE, SIZE), 8, stride=8),
    "even and odd columns": lambda x: torch.cat([x[..., ::2], x[..., 1::2]], -1),
    "mosaic": lambda x: torch.cat([torch.cat([x, x], 3)] * 2, 2),
    "borders without light": lambda x: torch.where(x < 0, 0, x).index_fill(3, torch.arange(9), 0),
    "crop in patches": lambda x: x[:, :, 20:52, 8:40].unflatten(2, (16, 2)).mean(3),
    "windows and back": lambda x: x.roll(5, 2).unfold(2, 8, 8).movedim(-1, 3).flatten(2, 3).roll(-5, 2),
}
"""Changes whose result has a place in the image. Of the circular borders, the object is not in the repeated part."""

FULL_SIZE = ("full_grad", "refine_cam")
METHODS = ("grad_cam", "score_cam", "eigen_cam", "ablation_cam", "layer_integrated_gradients", "sess", *FULL_SIZE)


@pytest.mark.parametrize("name", CHANGES)
def test_maps_are_at_the_object(name: str):
    """Each map has its center of mass at the object, to a cell: convolutions shift it by half a cell."""
    net, x = Changed(CHANGES[name]).eval(), bright()
    layer = second_layer(net)
    for method in METHODS:
        at = {} if method in FULL_SIZE else {"layer": "second"}
        center = center_of(explain(method, net, x, 0, compare=False, **at).map[0])
        limits = (4, 4) if method in FULL_SIZE else layer.stride
        assert all(abs(a - b) < most for a, b, most in zip(center, OBJECT, limits, strict=True)), (method, center)
    # Inside the image, a cell's center is the center of its receptive field, to half a cell.
    rows, columns = layer.centers
    compared = 0
    for row in range(2, layer.grid[0] - 2, 3):
        column = min(row, layer.grid[1] - 3)
        left, top, right, bottom = layer.receptive_field((row, column))
        if min(left, top) > 0 and max(right, bottom) < SIZE and max(right - left, bottom - top) < 30:
            assert abs((top + bottom) / 2 - rows[row]) <= layer.stride[0] / 2 + 0.5
            assert abs((left + right) / 2 - columns[column]) <= layer.stride[1] / 2 + 0.5
            compared += 1
    # The other fields reach the borders, or are the whole image.
    assert compared or "Fourier" in name or name in ("letterbox", "low frequencies", "zoom", "crop in patches")


def second_layer(net: nn.Module) -> explainers.Layer:
    return {each.name: each for each in list_layers(net, bright())}["second"]


def test_offset_stride_and_direction():
    plain, crop, flip = (
        second_layer(Changed(each).eval()) for each in (lambda x: x, CHANGES["center crop"], CHANGES["flip"])
    )
    assert (plain.offset, plain.stride, plain.direction) == ((2, 2), (4, 4), (1, 1))
    assert (crop.grid, crop.offset, crop.stride, crop.direction) == ((8, 8), (18, 18), (4, 4), (1, 1))
    assert (flip.offset, flip.stride, flip.direction) == ((2, 62), (4, 4), (1, -1))
    assert second_layer(Changed(CHANGES["roll"]).eval()).stride == (4, 4)
    assert second_layer(Changed(CHANGES["every second pixel"]).eval()).stride == (8, 8)
    assert pickle.loads(pickle.dumps(flip.centers)) == flip.centers


REFUSED: dict[str, tuple[str, Change]] = {
    "sorted pixels": ("sort", lambda x: x.sort(-1).values),
    "rows by brightness": ("index", lambda x: x[:, :, x.mean((0, 1, 3)).argsort()]),
    "gathered": ("gather", lambda x: x.gather(2, x.argsort(2))),
    "spectrum": ("Fourier", lambda x: torch.fft.fft2(x).abs()),
    "spatial transformer": (
        "grid_sample",
        lambda x: F.grid_sample(
            x, F.affine_grid(torch.eye(2, 3)[None] * (1 + x.mean()), x.shape, align_corners=False), align_corners=False
        ),
    ),
    "phase ramp": ("filter", lambda x: filtered(lambda k: torch.exp(-2j * torch.pi * 20 * k), x)),
    "conjugate": ("filter", lambda x: torch.fft.ifft2(torch.fft.fft2(x).conj()).real),
    "cosine transform": ("matrix product", lambda x: COSINES.T @ x @ COSINES),
    "quarter turn": ("shape", lambda x: x.rot90(1, (2, 3))),
    "shuffled columns": ("permutation", lambda x: x[..., torch.arange(64) * 23 % 64]),
    "mirrored in place": ("different positions", mirrored_in_place),
    "written by index": ("index_put", written),
    "mirrored windows": ("index", lambda x: F.fold(F.unfold(x, 8, stride=8).flip(-1), (64, 64), 8, stride=8)),
    "tiles as a batch": ("different positions", joined_tiles),
    "mean of tiles": ("tiles", lambda x: x.unflatten(2, (4, 16)).mean(2)),
    "unknown operation": ("mirror", lambda x: mirror(x)),
    "symmetric": ("sum of different positions", lambda x: x + x.flip(-1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_cells_without_a_position_are_refused_by_the_name_of_the_operation(name: str):
    words, change = REFUSED[name]
    net, x = Changed(change).eval(), bright() + torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    with pytest.raises(NoSpatialOutput, match=words):
        grad_cam(net, x, 0, layer="second")
    with pytest.raises(NoSpatialOutput, match=words):
        grad_cam(net, x, 0)
    assert explainers.saliency(net, x, 0).shape == x.shape


def test_partial_maps_sweeps_and_metrics_are_placed():
    net, x = Changed(CHANGES["flip"]).eval(), bright()
    expected = explain("score_cam", net, x, 0, layer="second", compare=False).map
    partial: list[Tensor] = []
    kept = explain("score_cam", net, x, 0, layer="second", compare=False, batch_size=1,
                   progress=lambda step: partial.append(step.map))  # fmt: skip
    assert torch.equal(partial[-1], kept.map) and torch.equal(kept.map, expected)
    assert torch.equal(sweep("grad_cam", net, x, 0, layers=["second"])["second"], grad_cam(net, x, 0, layer="second"))
    raw = explain("hires_cam", net, x, 0, layer="second")
    assert raw.raw.shape == raw.map.shape and torch.equal(raw.raw.relu(), raw.map)
    # Deleting the most important pixels first deletes the object, so the score falls at once.
    cam = grad_cam(net, x, 0, layer="second")
    options = {"target": 0, "metrics": ("deletion",), "baseline": "mean", "score": "logit"}
    found, wrong = (evaluate(net, x, heat, **options).to_rows()[0]["value"] for heat in (cam, cam.flip(-1)))
    assert found < wrong


def test_layer_attributions_keep_their_sum():
    net, x = Changed(CHANGES["letterbox"]).eval(), bright()
    explanation = explain("layer_integrated_gradients", net, x, 0, layer="second")
    assert explanation.raw.sum() == pytest.approx(explanation.statistics[0]["promised_sum"], rel=1e-4)
    assert not [each for each in explanation.findings[0] if each.code == "completeness_gap"]


def test_signed_full_grad_keeps_its_sum():
    """Also of cells in the network's padding, which are spread over the nearest pixels."""
    net = Changed(CHANGES["pad"])
    net.second = nn.Conv2d(3, 3, 3, 2, 1)
    net.eval()
    parts = full_gradients(net, bright(), 0)
    heat = explainers.full_grad(net, bright(), 0, magnitude=False)
    assert heat.sum() == pytest.approx(float(parts.scores - parts.elsewhere), rel=1e-4)


def test_feature_maps_are_placed_and_ordinary_networks_are_not_touched():
    x = bright()
    plain, flipped, cropped = (
        Changed(change).eval() for change in (lambda x: x, CHANGES["flip"], CHANGES["center crop"])
    )
    assert torch.equal(feature_maps(plain, x, layer="second"), plain.second(plain.first(x)))
    assert torch.equal(feature_maps(flipped, x, layer="second"), flipped.second(flipped.first(x.flip(-1))).flip(-1))
    own = cropped.second(cropped.first(x[:, :, 16:48, 16:48]))
    assert torch.equal(feature_maps(cropped, x, layer="second"), F.pad(own, (4, 4, 4, 4)))


def test_placement_by_hand():
    maps = torch.tensor([[[1.0, 2.0, 3.0]]])
    assert Placement(((2.0,), (10.0, 6.0, 2.0)), (4, 12)).place(maps).tolist() == [[[3, 2, 1]]]
    assert Placement(((2.0,), (-2.0, 2.0, 6.0)), (4, 8)).place(maps).tolist() == [[[2, 3]]]  # one cell in the padding
    assert Placement(((2.0,), (6.0, 10.0, 2.0)), (4, 12)).place(maps).tolist() == [[[3, 1, 2]]]
    # Centers 4, 8 and 12 of 16 pixels: a grid of 2-pixel cells with centers 1, 3, 5, ..., linear in between.
    placed = Placement(((8.0,), (4.0, 8.0, 12.0)), (16, 16)).place(maps)[0, 0]
    assert placed.tolist() == [0, 1, 1.25, 1.75, 2.25, 2.75, 3, 0]
    rows, columns = Placement(((2.0,), (6.0, 10.0)), (4, 12)).sources()
    assert rows == [0] and columns == [None, 0, 1]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "count", "expected"),
    [
        (3, 1, 1, 8, even(8).at),
        (3, 2, 1, 4, even(4, 8).at),  # covers the input, by convention
        (3, 1, 0, 6, tuple(i + 1.5 for i in range(6))),  # a border of one pixel is lost
        (4, 4, 0, 2, even(2, 8).at),
        (2, 2, 2, 6, tuple(2 * i - 1.0 for i in range(6))),  # one cell of padding at each end
    ],
)
def test_windows_of_an_axis_of_eight_pixels(kernel, stride, padding, count, expected):
    assert even(8).windows(count, kernel, stride, padding, 1).at == expected


def test_padding_for_a_convolution_is_not_a_shift():
    """TensorFlow's padding of a strided convolution, one pixel at the right, as a separate operation."""
    assert even(8).pad(0, 1).windows(4, 3, 2, 0, 1).at == even(4, 8).at
    assert even(8).pad(1, 2).windows(4, 5, 2, 0, 1).at == even(4, 8).at
    assert even(9).pad(0, 7).windows(2, 8, 8, 0, 1).at == (4.0, 12.0)


class Shifted(nn.Module):
    """A deformable convolution whose constant offsets move all of its windows."""

    def __init__(self, offsets):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3, 1, 1))
        self.offsets, self.conv, self.head = offsets, nn.Conv2d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, x):
        offsets = self.offsets.expand(len(x), 2, *x.shape[2:])
        x = torchvision.ops.deform_conv2d(x, offsets, self.weight).relu()
        return self.head(self.conv(x).relu().mean((2, 3)))


@pytest.mark.parametrize("offset", [(8.0, 8.0), (0.0, -6.0), (0.0, 0.0)])
def test_constant_offsets_of_a_deformable_convolution_move_its_cells(offset):
    torch.manual_seed(0)
    net = Shifted(torch.tensor(offset).view(1, 2, 1, 1)).eval()
    image = torch.zeros(1, 3, 32, 48)
    image[:, :, 20:24, 28:32] = 3.0

    heat = explainers.feature_maps(net, image, layer="conv").var(1)[0]
    bright = heat > heat.max() / 2

    assert bright.any(1).nonzero().flatten().tolist() == [20, 21, 22, 23]
    assert bright.any(0).nonzero().flatten().tolist() == [28, 29, 30, 31]


def test_offsets_that_differ_within_a_row_leave_no_positions():
    net = Shifted(torch.randn(1, 2, 32, 48, generator=torch.Generator().manual_seed(0)) * 5).eval()

    with pytest.raises(NoSpatialOutput, match="deform_conv2d"):
        explainers.grad_cam(net, torch.randn(1, 3, 32, 48), 1, layer="conv")
