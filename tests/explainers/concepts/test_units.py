"""The index of units compared with a search over all cells of all images, in float64, and their names."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from explainers import BadImages, BadOption, list_layers
from explainers.concepts.names import auc_intervals, name_units
from explainers.concepts.units import UnitIndex, index_units
from explainers.methods.features import channel_contributions, channel_effects, feature_maps
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
    with pytest.raises(BadImages, match=r"shape \(3, .*\[N, C, H, W\]"):
        index_units(net, images[0], "relu2")


def test_dead_channels_and_one_image():
    net, images = plain(), images_of(plain(), 1)
    with torch.no_grad():
        net.conv2.weight[3], net.conv2.bias[3] = 0, -1
    units = index_units(net, images, "relu2").layers["relu2"]
    assert units.top.values.shape == (8, 1)
    assert bool(units.dead[3]) and float(units.sparsity[3]) == 1 and int(units.dead.sum()) < 8


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


# Names of units


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("step", [0.0, 0.5, 3.0])
def test_the_auc_and_its_interval_are_those_of_all_pairs(step):
    """With `step`, values are rounded, so that many are equal."""
    values, has = draw(41), draw(3, 41, seed=1) > 0.3
    values[has[0]] += 1
    values = (values / step).round() * step if step else values
    found = auc_intervals(values, has)
    for name in range(3):
        ones, zeros = values[has[name]], values[~has[name]]
        wins = (ones[:, None] > zeros).double() + 0.5 * (ones[:, None] == zeros).double()
        auc, of_ones, of_zeros = float(wins.mean()), wins.mean(1), wins.mean(0)
        deviation = math.sqrt(float(of_ones.var()) / len(ones) + float(of_zeros.var()) / len(zeros))
        assert float(found[0][name]) == pytest.approx(auc, abs=1e-12)
        assert float(found[1][name]) == pytest.approx(max(0, auc - 1.959964 * deviation), abs=1e-9)
        assert float(found[2][name]) == pytest.approx(min(1, auc + 1.959964 * deviation), abs=1e-9)


def test_planted_concepts_are_named_and_others_are_not():
    labels = [["cat", "animal"], ["dog", "animal"], ["car"], ["cup"]] * 40
    cat, animal = (torch.tensor([name in each for each in labels]).double() for name in ("cat", "animal"))
    activations = 0.5 * draw(160, 4)
    activations[:, 0] += 3 * cat
    activations[:, 1] += 3 * animal
    activations[:, 2] += 0.3 * cat  # too weak
    names = name_units(activations, labels)
    assert [each and each.name for each in names] == ["cat", "animal", None, None]
    assert (names[0].count, names[0].others) == (20, 60)
    assert 0.85 <= names[0].low <= names[0].auc <= names[0].high <= 1 and f"{names[0].auc:.2f}" in str(names[0])
    weak = name_units(activations, labels, least=0.5)[2]
    assert weak is None or weak.auc < 0.85


def test_the_number_is_from_images_that_did_not_propose_the_name():
    """A unit responds to another label in each part: the first proposes, the second only gives the number."""
    labels, held_out = ["cat", "dog", "car", "cup"] * 50, torch.arange(200) >= 100
    activations = draw(200, 1)
    activations[:100, 0] += torch.tensor([5.0 * (label == "cup") for label in labels[:100]])
    activations[100:, 0] += torch.tensor([20.0 * (label == "cat") for label in labels[100:]])
    for test, name in ((held_out, "cup"), (~held_out, "cat")):
        assert name_units(activations, labels, held_out=test) == [None]
        found = name_units(activations, labels, held_out=test, least=0.0)[0]
        assert found.name == name and found.auc < 0.7


def test_images_without_a_known_label_are_not_used():
    labels = ["cat", "dog"] * 30
    activations = torch.tensor([[float(label == "cat")] for label in labels]) + 0.01 * draw(60, 1)
    named = name_units(activations, labels)[0]
    unknown = torch.cat([activations, 100 + draw(20, 1)])
    assert name_units(unknown, [*labels, *[None] * 20])[0] == named
    assert name_units(activations, [None] * 60) == [None]
    assert name_units(activations[:8], labels[:8]) == [None]  # too few images for a test
    assert name_units(torch.zeros(60, 1), labels) == [None]  # a dead unit
