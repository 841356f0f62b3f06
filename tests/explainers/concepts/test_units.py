"""The index of units compared with a search over all cells of all images, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from explainers import BadImages, BadOption, LayerNotFound, NoSpatialOutput, WrongType, list_layers
from explainers.concepts.units import UnitIndex, index_units
from explainers.methods.features import channel_contributions, channel_effects, feature_maps
from tests.support.deciding_nets import AutoCrop
from tests.support.dense_nets import Detection, Segmentation
from tests.support.nets import plain, random_images, residual
from tests.support.token_nets import plain_vit
from tests.support.traces import nothing_left

NETS = [(plain, "relu2"), (plain, "conv1"), (residual, None), (plain_vit, "blocks.0")]


def images_of(net: nn.Module, count: int) -> Tensor:
    height, width = (48, 64) if "ViT" in type(net).__name__ else (12, 16)
    return random_images(count, height=height, width=width).to(next(net.parameters()).dtype)


def layer_of(net: nn.Module, images: Tensor, name: str | None) -> str:
    return name or [each.name for each in list_layers(net, images, spatial=True) if each.stage][-1]


def same(a: UnitIndex, b: UnitIndex) -> bool:
    def values(index: UnitIndex) -> list[Tensor]:
        found = []
        for units in index.layers.values():
            found += [units.mean, units.sparsity, units.lowest]
            for top in filter(None, (units.top, units.effects)):
                found += [top.values, top.means, top.images, top.cells, top.boxes]
        return found

    return (a.count, a.skipped, list(a.layers)) == (b.count, b.skipped, list(b.layers)) and all(
        torch.allclose(x.double(), y.double(), rtol=1e-9, atol=1e-12) for x, y in zip(values(a), values(b), strict=True)
    )


@pytest.mark.parametrize(("make", "name"), NETS)
def test_the_index_is_that_of_a_search_over_all_images(make, name):
    net = make().double()
    images = images_of(net, 7)
    layer = layer_of(net, images, name)
    with nothing_left(net, images):
        index = index_units(net, images, layer, top=3, batch_size=2)
    maps, units = feature_maps(net, images, layer=layer), index.layers[layer]
    listed = next(each for each in list_layers(net, images) if each.name == layer)
    count, k, h, w = maps.shape
    assert (index.count, units.count, units.grid) == (7, 7, (h, w))
    assert torch.allclose(units.mean, maps.mean((0, 2, 3)))
    assert torch.allclose(units.sparsity, (maps.amax((2, 3)) <= 0).double().mean(0))
    assert torch.equal(units.dead, maps.amax((0, 2, 3)) == maps.amin((0, 2, 3)))
    for channel in range(k):
        cells = [(-float(maps[n, channel].max()), n, int(maps[n, channel].argmax())) for n in range(count)]
        for place, (value, n, cell) in enumerate(sorted(cells)[:3]):
            assert units.top.values[channel, place] == pytest.approx(-value)
            assert (int(units.top.images[channel, place]), divmod(cell, w)) == (
                n,
                tuple(units.top.cells[channel, place].tolist()),
            )
        left, top, right, bottom = listed.receptive_field(divmod(sorted(cells)[0][2], w))
        box = torch.tensor(
            [left / images.shape[3], top / images.shape[2], right / images.shape[3]], dtype=torch.float64
        )
        assert torch.allclose(units.top.boxes[channel, 0, :3], box)
        assert float(units.top.boxes[channel, 0, 3]) == pytest.approx(bottom / images.shape[2])


def test_batches_merging_and_order_do_not_matter():
    net, images = plain(), images_of(plain(), 9)
    images[5] = images[2]  # equal values, of which the lower position comes first
    whole = index_units(net, images, ["conv1", "relu2"], top=4)
    assert whole.layers["conv1"].top.values.shape == (6, 4)
    parts = [(images[[n]], [n]) for n in (6, 0, 5, 8, 2, 1, 4, 3, 7)]
    assert same(whole, index_units(net, iter(parts), ["conv1", "relu2"], top=4))
    halves = [index_units(net, parts[start : start + 5], ["conv1", "relu2"], top=4) for start in (0, 5)]
    assert same(whole, halves[0] | halves[1]) and same(whole, halves[1] | halves[0])
    equal = whole.layers["conv1"].top.images.tolist()
    both = [row for row in equal if 2 in row and 5 in row]
    assert both and all(row.index(5) == row.index(2) + 1 for row in both)


def test_saturated_values_are_ordered_by_their_means():
    """Oracle: after a ReLU6, all peaks are 6, and the number of cells that reach it decides."""
    net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    nn.init.constant_(net[0].weight, 10)
    images = torch.zeros(5, 1, 3, 4).double()
    for image, cells in enumerate((1, 3, 12, 3, 2)):
        images[image].view(-1)[:cells] = 1
    for size in (1, 5):
        top = index_units(net.eval(), images, "1", top=4, batch_size=size).layers["1"].top
        assert top.images.tolist() == [[2, 1, 3, 4]] and top.values.unique().tolist() == [6]
        assert torch.allclose(top.means, torch.tensor([[12, 3, 3, 2]]).double() / 2)


def test_effects_are_exact_before_a_linear_head_and_estimates_elsewhere():
    net, images = plain(), images_of(plain(), 6)
    for target in (3, "predicted"):
        chosen = None if target == "predicted" else target
        index = index_units(net, images, ["conv1", "relu2"], top=6, effects=target, batch_size=4)
        exact = channel_effects(net, images, chosen, layer="relu2")
        estimates = channel_contributions(net, images, chosen, layer="conv1")
        for name, oracle in (("relu2", exact), ("conv1", estimates)):
            found = index.layers[name].effects
            values, order = oracle.T.sort(dim=1, descending=True, stable=True)
            assert torch.allclose(found.values, values, atol=1e-9)
            assert torch.allclose(oracle.T.gather(1, found.images), oracle.T.gather(1, order), atol=1e-9)
    assert index_units(net, images, "relu2").layers["relu2"].effects is None


def test_progress_stops_and_gives_what_name_units_needs():
    net, images, seen = plain(), images_of(plain(), 6), []
    stopped = index_units(
        net, images, "relu2", batch_size=2, progress=lambda batch: seen.append(batch) or len(seen) < 2
    )
    rest = index_units(net, [(images[4:], [4, 5])], "relu2")
    assert stopped.count == 4 and same(stopped | rest, index_units(net, images, "relu2"))
    peaks = torch.cat([batch.peaks["relu2"] for batch in seen])
    means = torch.cat([batch.means["relu2"] for batch in seen])
    maps = feature_maps(net, images[:4], layer="relu2")
    assert torch.allclose(peaks, maps.amax((2, 3))) and torch.allclose(means, maps.mean((2, 3)))
    assert torch.cat([batch.positions for batch in seen]).tolist() == [0, 1, 2, 3]


def test_images_that_are_not_finite_are_skipped():
    net, images = plain(), images_of(plain(), 5)
    good = index_units(net, [(images[[0, 2, 4]], [0, 2, 4])], "relu2")
    images[1, 0, 0, 0], images[3] = torch.nan, 1e308  # whose activations overflow
    found = index_units(net, images, "relu2", batch_size=2)
    assert (found.count, found.skipped) == (3, 2)
    assert torch.equal(found.layers["relu2"].top.images, good.layers["relu2"].top.images)
    with pytest.raises(BadImages, match="finite"):
        index_units(net, torch.full_like(images, torch.nan), "relu2")


def test_dead_channels_and_one_image():
    net, images = plain(), images_of(plain(), 1)
    with torch.no_grad():
        net.conv2.weight[3], net.conv2.bias[3] = 0, -1
    units = index_units(net, images, "relu2").layers["relu2"]
    assert units.top.values.shape == (8, 1)
    assert bool(units.dead[3]) and float(units.sparsity[3]) == 1 and int(units.dead.sum()) < 8


def test_segmentation_networks_detectors_and_networks_that_crop():
    for net, size in ((Segmentation(), 64), (Detection(), 64), (AutoCrop(), 64)):
        net = net.eval()
        images = torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(0))
        images = images.to(next(net.parameters()).dtype)
        layer = layer_of(net, images[:1], None)
        units = index_units(net, images, layer).layers[layer]
        alone = torch.stack([feature_maps(net, image[None], layer=layer)[0].amax((1, 2)) for image in images], 1)
        assert torch.allclose(units.top.values, alone.sort(dim=1, descending=True)[0], atol=1e-5)
        assert bool((units.top.boxes[..., 2:] >= units.top.boxes[..., :2]).all())


class Views(nn.Sequential):
    """Reads its images by `view`, which channels-last images do not have, and overwrites them."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.view(len(images), -1).mul_(2).view(images.shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_networks_that_view_and_overwrite_their_images(dtype):
    net = (
        Views(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).to(dtype).eval()
    )
    images = random_images(5).to(dtype)
    given = images.clone()
    units = index_units(net, images, "2", top=5, batch_size=2).layers["2"]
    peaks = feature_maps(net, given, layer="2").amax((2, 3))
    assert torch.equal(images, given)
    assert torch.allclose(units.top.values, peaks.T.sort(dim=1, descending=True)[0], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": []}, BadImages, "no image"),
        ({"images": "photos"}, WrongType, "tensor"),
        ({"images": [[1, 2]]}, WrongType, "batch"),
        ({"images": torch.zeros(2, 3, 12)}, BadImages, "shape"),
        ({"images": [torch.zeros(1, 3, 8, 8).double(), torch.zeros(1, 3, 9, 8).double()]}, BadImages, "one size"),
        ({"images": [(torch.zeros(2, 3, 8, 8).double(), [1])]}, BadImages, "positions"),
        ({"layers": []}, WrongType, "layers"),
        ({"layers": "relu9"}, LayerNotFound, "relu2"),
        ({"layers": "head"}, NoSpatialOutput, "head"),
        ({"top": 0}, BadOption, "top=0"),
        ({"effects": "cat"}, BadOption, "cat"),
        ({"effects": [1, 2]}, BadOption, "effects"),
        ({"tops": 3}, BadOption, "tops"),
    ],
)
def test_wrong_uses_are_refused(change, error, message):
    given = {"images": torch.zeros(2, 3, 8, 8).double(), "layers": "relu2"} | change
    with pytest.raises(error, match=message):
        index_units(plain(), **given)


def test_indices_of_other_layers_or_the_same_images_are_not_merged():
    net, images = plain(), images_of(plain(), 4)
    one = index_units(net, images[:2], "relu2")
    for other in (index_units(net, images[2:], "conv1"), index_units(net, [(images[2:], [2, 3])], "relu2", top=2)):
        with pytest.raises(BadOption, match="merge"):
            one | other
    with pytest.raises(BadOption, match="position"):
        one | index_units(net, images[2:], "relu2")
    with pytest.raises(BadOption, match="with effects"):
        one | index_units(net, [(images[2:], [2, 3])], "relu2", effects=1)
