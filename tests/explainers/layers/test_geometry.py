"""Networks that crop, pad, flip, shift or shuffle their input: maps are placed where the object is, or refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import explainers
from explainers import NoSpatialOutput, explain, full_gradients, grad_cam, list_layers, overlay
from explainers.explanation.figures import figures
from explainers.layers.flow.positions import even
from explainers.maps.resize import resize
from explainers.placement import Placement

SIZE, OBJECT = 64, (30.0, 22.0)
"""The image's side, and the center of the object: 6 x 6 bright pixels."""
VIDEO, MOVING = (32, 48, 64), (11.0, 34.0, 22.0)
"""Frames, height and width, and the center of an object in a video."""

Change = Callable[[Tensor], Tensor]


class Changed(nn.Module):
    """Two convolutions with positive weights after a change; of videos, the second has no stride in time."""

    def __init__(self, change: Change, video: bool = False) -> None:
        super().__init__()
        self.change, kind, later = change, (nn.Conv2d, nn.Conv3d)[video], ((2, 2), (1, 2, 2))[video]
        self.first, self.second = (kind(3, 3, 3, stride, 1, bias=False) for stride in (2, later))
        generator = torch.Generator().manual_seed(0)
        for conv in (self.first, self.second):
            conv.weight.data = torch.rand(conv.weight.shape, generator=generator)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.change(x))).flatten(2).mean(2)


def bright(size: tuple[int, ...] = (SIZE, SIZE), center: tuple[float, ...] = OBJECT) -> Tensor:
    images = torch.zeros(1, 3, *size)
    images[(..., *(slice(int(at) - 3, int(at) + 3) for at in center))] = 1
    return images


def center_of(heat: Tensor, size: tuple[int, ...] = (SIZE, SIZE)) -> list[float]:
    """The center of mass of a map, in pixels of the image, or frames and pixels of the video."""
    large = resize(heat[None].relu(), size)[0].double()
    lines = [large.sum([d for d in range(len(size)) if d != axis]) for axis in range(len(size))]
    return [float((line * (torch.arange(len(line)) + 0.5)).sum() / line.sum()) for line in lines]


def second_layer(net: nn.Module, x: Tensor) -> explainers.Layer:
    return next(each for each in list_layers(net, x) if each.name == "second")


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


def deformed(x: Tensor, offsets: Tensor) -> Tensor:
    offsets = offsets.expand(len(x), 2, *x.shape[2:])
    return torchvision.ops.deform_conv2d(x, offsets, torch.eye(3)[:, :, None, None])


COSINES = torch.cos(torch.pi / SIZE * (torch.arange(64.0)[:, None] + 0.5) * torch.arange(64.0))

CHANGES: dict[str, Change] = {
    "center crop": lambda x: x[:, :, 16:48, 16:48],
    "corner crop": lambda x: x[:, :, 20:, :40],
    "flip": lambda x: x.flip(-1),
    "flip by index": lambda x: x[:, :, torch.arange(63, -1, -1)],
    "roll": lambda x: x.roll((20, 12), (2, 3)),
    "roll by concatenation": lambda x: torch.cat([x[..., 20:], x[..., :20]], -1),
    "roll in place": shifted_in_place,
    "pad": lambda x: F.pad(x, (12, 12, 12, 12)),
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
    "borders without light": lambda x: torch.where(x < 0, 0, x).index_fill(3, torch.arange(9), 0),
    "images written to rows": lambda x: x.new_zeros(x.shape).index_copy(0, torch.arange(len(x)), x),
    "crop in patches": lambda x: x[:, :, 20:52, 8:40].unflatten(2, (16, 2)).mean(3),
    "constant offsets": lambda x: deformed(x, torch.tensor([8.0, -6.0]).view(1, 2, 1, 1)),
    "quarter turn of a transposed image": lambda x: x.mT.rot90(1, (2, 3)),
    "three quarter turns": lambda x: x.rot90(3, (2, 3)).mT.rot90(2, (2, 3)),
    "average pool": lambda x: F.avg_pool2d(x, 13, 1),
    "max pools": lambda x: F.max_pool2d(F.max_pool2d(x, 11, 1), 4, 1, 0, 3),
    "columns one by one": lambda x: torch.cat([x[..., k : k + 1] for k in range(8, 64)], -1),
    "flipped pixels in blocks": lambda x: F.pixel_shuffle(F.pixel_unshuffle(x.flip(-1), 4)[:, :12], 2),
    "crop of repeated pixels": lambda x: x[:, :, 20:, :40].repeat_interleave(2, 2).repeat_interleave(3, 3),
    "repeated pixels, mirrored": lambda x: x.repeat_interleave(2, 3).flip(3),
    "shifted blocks of rows": lambda x: x.unflatten(2, (32, 2)).mean(3).roll(6, 2),
    "windows and back": lambda x: x.roll(5, 2).unfold(2, 8, 8).movedim(-1, 3).flatten(2, 3).roll(-5, 2),
}
"""Changes whose result has a place in the image. Of the circular borders, the object is not in the repeated part."""

VIDEOS: dict[str, Change] = {
    "none": lambda x: x,
    "crop": lambda x: x[:, :, 5:29, 8:, :40],
    "pad": lambda x: F.pad(x, (16, 0, 0, 8, 12, 0)),
    "flip": lambda x: x.flip(2, 4),
    "resized": lambda x: F.interpolate(x[:, :, 4:], (56, 48, 64), mode="trilinear"),
    "pool": lambda x: F.max_pool3d(F.pad(x, (0, 0, 0, 0, 8, 0)), (2, 1, 1)),
    "the other half first": lambda x: torch.cat([x[:, :, 16:], x[:, :, :16]], 2),
}

FULL_SIZE = ("full_grad", "refine_cam")
METHODS = ("grad_cam", "score_cam", "eigen_cam", "ablation_cam", "layer_integrated_gradients", "sess", *FULL_SIZE)


@pytest.mark.parametrize("name", CHANGES)
def test_maps_are_at_the_object(name: str):
    """Each map has its center of mass at the object, to a cell: convolutions shift it by half a cell."""
    net, x = Changed(CHANGES[name]), bright()
    layer = second_layer(net, x)
    for method in METHODS if name == "corner crop" else ("grad_cam", "full_grad"):
        at = {} if method in FULL_SIZE else {"layer": "second"}
        center = center_of(explain(method, net, x, 0, compare=False, **at).placed[0])
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
    whole = ("letterbox", "low frequencies", "zoom", "crop in patches", "constant offsets")
    assert compared or "Fourier" in name or name in whole


@pytest.mark.parametrize("name", VIDEOS)
def test_maps_of_videos_are_at_the_object_in_time_and_space(name: str):
    net, x = Changed(VIDEOS[name], video=True), bright(VIDEO, MOVING)
    placed = explain("grad_cam", net, x, 0, layer="second", compare=False).placed[0]
    assert center_of(placed, VIDEO) == pytest.approx(MOVING, abs=2.1)
    layer = second_layer(net, x)
    activation = net.second(net.first(net.change(x)))[0].sum(0)
    cell = torch.unravel_index(activation.argmax(), activation.shape)
    assert layer.layout == "NCTHW"
    assert [at[int(i)] for at, i in zip(layer.centers, cell, strict=True)] == pytest.approx(MOVING, abs=4)


def test_offset_stride_and_direction():
    for change, expected in (
        (lambda x: x, ((16, 16), (2, 2), (4, 4), (1, 1))),
        (CHANGES["center crop"], ((8, 8), (18, 18), (4, 4), (1, 1))),
        (CHANGES["flip"], ((16, 16), (2, 62), (4, 4), (1, -1))),
    ):
        layer = second_layer(Changed(change), bright())
        assert (layer.grid, layer.offset, layer.stride, layer.direction) == expected
        assert pickle.loads(pickle.dumps(layer.centers)) == layer.centers
    assert second_layer(Changed(CHANGES["roll"]), bright()).stride == (4, 4)
    assert second_layer(Changed(CHANGES["every second pixel"]), bright()).stride == (8, 8)


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
    "rows of another length": ("reshape", lambda x: x[..., :48].reshape(len(x), 3, 96, 32)),
    "rows of flattened pixels": ("slice", lambda x: x.flatten(2)[..., :2048].unflatten(2, (32, 64))),
    "quarter turn": ("shape", lambda x: x.rot90(1, (2, 3))),
    "zoom of a transposed image": ("shape", lambda x: zoom(x.mT)),
    "windows of a transposed image": ("shape", lambda x: F.fold(F.unfold(x.mT, 8, stride=8), (64, 64), 8, stride=8)),
    "strides of a mirrored image": (
        "as_strided",
        lambda x: x.flip(-1).contiguous().as_strided((len(x), 3, 32, 32), (12288, 4096, 128, 2)),
    ),
    "selected pixels": ("masked_select", lambda x: x.masked_select(x > -1).view_as(x)),
    "diagonal": ("diagonal", lambda x: x[..., None].expand(-1, -1, -1, -1, 64).diagonal(0, 2, 4)),
    "rows of all tiles in turn": ("tiles", lambda x: x.unflatten(2, (4, 16)).transpose(2, 3).flatten(2, 3)),
    "shuffled columns": ("permutation", lambda x: x[..., torch.arange(64) * 23 % 64]),
    "mirrored in place": ("different positions", mirrored_in_place),
    "written by index": ("index_put", written),
    "mirrored windows": ("index", lambda x: F.fold(F.unfold(x, 8, stride=8).flip(-1), (64, 64), 8, stride=8)),
    "tiles as a batch": ("different positions", joined_tiles),
    "mean of tiles": ("tiles", lambda x: x.unflatten(2, (4, 16)).mean(2)),
    "unknown operation": ("mirror", lambda x: mirror(x)),
    "varying offsets": ("deform_conv2d", lambda x: deformed(x, 5 * x[:, :2])),
    "symmetric": ("sum of different positions", lambda x: x + x.flip(-1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_cells_without_a_position_are_refused_by_the_name_of_the_operation(name: str):
    words, change = REFUSED[name]
    net, x = Changed(change), bright() + torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    for layer in ("second", None):
        with pytest.raises(NoSpatialOutput, match=words):
            grad_cam(net, x, 0, layer=layer)
    assert explainers.saliency(net, x, 0).shape == x.shape


def test_pixel_shuffles_of_a_whole_image_cover_it_evenly():
    net = nn.Sequential(nn.PixelUnshuffle(4), nn.Conv2d(48, 8, 1), nn.PixelShuffle(2), nn.Conv2d(2, 3, 3, 1, 1))
    layers = list_layers(net, bright((SIZE, 48)))
    assert [layer.grid for layer in layers[:4]] == [(16, 12), (16, 12), (32, 24), (32, 24)]
    assert not any(layer.placement for layer in layers)
    assert [layer.name for layer in layers if layer.stage] == ["1"], "not a shuffle, nor the scores"


def test_whatever_draws_resizes_or_measures_places_a_map():
    net, x = Changed(CHANGES["flip"]), bright()
    partial: list[explainers.Partial] = []
    report = {"batch_size": 1, "progress": partial.append}
    expected, kept = (explain("score_cam", net, x, 0, layer="second", compare=False, **o) for o in ({}, report))
    assert torch.equal(partial[-1].map, kept.map) and torch.equal(kept.map, expected.map)
    found = explain("grad_cam", net, x, 0, layer="second")
    raw, right = found.map, found.map.flip(-1)
    assert torch.equal(explainers.sweep("grad_cam", net, x, 0, layers=["second"])["second"], raw)
    assert partial[-1].placement == found.placement and torch.equal(found.raw.relu(), raw)
    assert torch.equal(found.placed, right) and torch.equal(explainers.place(raw, found.placement), right)
    photo = Image.new("RGB", (SIZE, SIZE))
    drawn = overlay(photo, right[0]).tobytes()
    assert found.overlay(photo)[0].tobytes() == overlay(photo, raw[0], placement=found.placement).tobytes() == drawn
    assert torch.equal(found.upsample((8, 8)), explainers.resize(right, (8, 8)))
    boxes = explainers.regions(raw[0], (SIZE, SIZE), placement=found.placement)
    assert boxes[0].box == explainers.regions(right[0], (SIZE, SIZE))[0].box
    fused = explainers.fuse([raw, right], placements=[found.placement, None])
    assert torch.equal(fused, right)
    smoothed = explainers.smooth("grad_cam", sigma=0.0, samples=2)(net, x, 0, layer="second")
    assert torch.equal(smoothed.mean, raw) and smoothed.placement == found.placement
    augment = explainers.Augment(flip=True, zoom=0, turn=0, shift=0)
    aligned = explainers.smooth("grad_cam", augment=augment, samples=2)(net, x, 0, layer="second")
    assert aligned.placement is None and center_of(aligned.mean[0]) == pytest.approx(OBJECT, abs=4)
    # Deleting the most important pixels first deletes the object, so the score falls at once.
    options = {"target": 0, "metrics": ("deletion",), "baseline": "mean", "score": "logit"}
    deleted = [explainers.evaluate(net, x, heat, **options).to_rows()[0]["value"] for heat in (found, right, raw)]
    assert deleted[0] == deleted[1] < deleted[2]


def test_maps_of_a_batch_are_drawn_as_those_of_its_images():
    """Some crops start between two cells of the image, so their maps have a finer grid."""

    class CropsByContent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            start = int(x[0, 0, 0, 0] * 8)
            return self.head(self.conv(x[..., start : start + 24]).mean((2, 3)))

    torch.manual_seed(0)
    net, x = CropsByContent().eval(), torch.rand(3, 3, 24, 40)
    x[:, 0, 0, 0] = torch.tensor([0.25, 0.375, 0.5])
    options = {"layer": "conv", "relu": False, "compare": False}
    batch = explain("grad_cam", net, x, 0, **options)
    singles = [explain("grad_cam", net, each[None], 0, **options) for each in x]
    assert [tuple(each.placed.shape[1:]) for each in singles] == [(12, 20), (12, 40), (12, 20)]
    assert torch.equal(batch.upsample((24, 40)), torch.cat([each.upsample((24, 40)) for each in singles]))
    photo = [Image.new("RGB", (40, 24))] * 3
    assert [one.tobytes() for one in batch.overlay(photo)] == [each.overlay(photo[:1])[0].tobytes() for each in singles]
    finest = torch.cat([resize(each.placed, (12, 40)) for each in singles])
    torch.testing.assert_close(batch.placed, finest)
    assert [tuple(one.map.shape) for one in figures(batch)] == [(12, 20), (12, 40), (12, 20)]


def test_a_placement_is_saved_and_kept_for_some_images_of_a_batch(tmp_path: Path):
    found = explain("grad_cam", Changed(CHANGES["center crop"]), torch.cat([bright(), bright() * torch.nan]), 0)
    found.save(str(tmp_path / "map.npz"))
    read = explainers.Explanation.load(str(tmp_path / "map.npz"))
    assert read.placement == found.placement is not None
    assert torch.equal(read.placed[0], found.placed[0]) and found.placed[1].isnan().any()


def test_placed_attributions_keep_their_sum():
    """Also of cells in the network's padding, which are spread over the nearest pixels."""
    explanation = explain("layer_integrated_gradients", Changed(CHANGES["letterbox"]), bright(), 0, layer="second")
    assert explanation.raw.sum() == pytest.approx(explanation.statistics[0]["promised_sum"], rel=1e-4)
    assert not [each for each in explanation.findings[0] if each.code == "completeness_gap"]
    net = Changed(CHANGES["pad"])
    net.second = nn.Conv2d(3, 3, 3, 2, 1)
    parts = full_gradients(net.eval(), bright(), 0)
    heat = explainers.full_grad(net, bright(), 0, magnitude=False)
    assert heat.sum() == pytest.approx(float(parts.scores - parts.elsewhere), rel=1e-4)


def test_placement_by_hand():
    maps = torch.tensor([[[1.0, 2.0, 3.0]]])
    for columns, size, expected in (
        ((10.0, 6.0, 2.0), (4, 12), [3, 2, 1]),
        ((-2.0, 2.0, 6.0), (4, 8), [2, 3]),  # one cell in the padding
        ((6.0, 10.0, 2.0), (4, 12), [3, 1, 2]),
    ):
        assert explainers.place(maps, Placement(((2.0,), columns), size)).tolist() == [[expected]]
    # Centers 4, 8 and 12 of 16 pixels: a grid of 2-pixel cells with centers 1, 3, 5, ..., linear in between.
    placed = explainers.place(maps, Placement(((8.0,), (4.0, 8.0, 12.0)), (16, 16)))[0, 0]
    assert placed.tolist() == [0, 1, 1.25, 1.75, 2.25, 2.75, 3, 0]
    placed = explainers.place(maps, Placement(((8.0,), (2.8, 6.8, 10.8)), (16, 16)))[0, 0]
    assert placed.tolist() == pytest.approx([1, 1.05, 1.55, 2.05, 2.55, 3, 0, 0])
    # Centers that differ by rounding: neither cell is lost.
    twice = Placement(((2.0,), (2.0, 6.0, 6.0 + 1e-9, 10.0)), (4, 12))
    placed = explainers.place(torch.tensor([[[1.0, 2.0, 4.0, 3.0]]]), twice)[0, 0]
    assert placed.tolist() == pytest.approx([1, 1.25, 1.75, 3.75, 3.25, 3])
    rows, columns = Placement(((2.0,), (6.0, 10.0)), (4, 12)).sources()
    assert rows == [0] and columns == [None, 0, 1]


@pytest.mark.parametrize(
    ("axis", "windows", "expected"),
    [
        (even(8), (8, 3, 1, 1), even(8).at),
        (even(8), (4, 3, 2, 1), even(4, 8).at),  # covers the input, by convention
        (even(8), (6, 3, 1, 0), tuple(i + 1.5 for i in range(6))),  # a border of one pixel is lost
        (even(8), (2, 4, 4, 0), even(2, 8).at),
        (even(8), (6, 2, 2, 2), tuple(2 * i - 1.0 for i in range(6))),  # one cell of padding at each end
        # TensorFlow's padding of a strided convolution as a separate operation is not a shift.
        (even(8).pad(0, 1), (4, 3, 2, 0), even(4, 8).at),
        (even(8).pad(1, 2), (4, 5, 2, 0), even(4, 8).at),
        (even(9).pad(0, 7), (2, 8, 8, 0), (4.0, 12.0)),
    ],
)
def test_windows_of_an_axis(axis, windows, expected):
    """Count, kernel, stride and padding of the windows."""
    assert axis.windows(*windows, 1).at == expected
