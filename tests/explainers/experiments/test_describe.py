"""Descriptions of networks and comparisons of two models, with numbers by hand and torch's own counter."""

from __future__ import annotations

import copy
import csv
import io
import itertools
import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import mobilenet_v3_small

from explainers import UnsupportedModel, compare_models, describe, grad_cam
from explainers.experiments.compare_models import gram_matrix, linear_cka
from explainers.maps.resize import rank_correlation
from tests.support.nets import plain, random_images
from tests.support.token_nets import swin_v2, vit
from tests.support.traces import nothing_left


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.head = nn.Linear(2, 5)
        self.tied = self.head

    def forward(self, images):
        return self.head(self.up(self.depthwise(self.conv(images)).relu()).mean((2, 3)))


def test_numbers_by_hand():
    """The tied layer counts once. Of each layer: parameters and multiply-adds."""
    net = Small().eval()
    net.conv.bias.requires_grad_(False)
    x = random_images(2, height=12, width=16).float()
    with nothing_left(net, x):
        found = describe(net, x)
    assert {each.name: (each.parameters, each.multiply_adds) for each in found.layers} == {
        "conv": (4 * 27 + 4, 4 * 6 * 8 * 27),
        "depthwise": (4 * 9, 4 * 6 * 8 * 9),
        "up": (4 * 2 * 4 + 2, 4 * 6 * 8 * (2 * 2 * 2)),
        "head": (2 * 5 + 5, 10),
    }
    assert [each.receptive_field for each in found.layers if each.name != "up"] == [(3, 3), (7, 7), None]
    conv = found.layers[0]
    assert conv.shape == (1, 4, 6, 8) and conv.output_bytes == 4 * 4 * 6 * 8 and 0 < conv.seconds < found.seconds
    assert found.multiply_adds == sum(layer.multiply_adds for layer in found.layers)
    assert found.parameters == sum(p.numel() for p in net.parameters())
    assert found.trainable == found.parameters - 4 and found.input_shape == (1, 3, 12, 16)


def test_containers_include_their_layers_and_the_sum_is_that_of_the_leaves():
    net = nn.Sequential(plain(classes=4), nn.Linear(4, 3)).eval().float()
    found = describe(net, random_images(1).float())
    inner = [layer for layer in found.layers if layer.name.startswith("0.")]
    outer = next(layer for layer in found.layers if layer.name == "0")
    assert not outer.is_leaf and all(layer.is_leaf for layer in inner)
    assert outer.multiply_adds == sum(layer.multiply_adds for layer in inner) > 0
    assert outer.parameters == sum(layer.parameters for layer in inner)
    assert outer.seconds >= sum(layer.seconds for layer in inner)
    assert found.output_bytes == sum(layer.output_bytes for layer in found.layers if layer.is_leaf)


def test_csv_and_table():
    found = describe(plain().float(), random_images(1).float())
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["name"] for row in rows] == [layer.name for layer in found.layers]
    assert rows[0]["shape"] == "x".join(map(str, found.layers[0].shape))
    assert int(rows[0]["multiply_adds"]) == found.layers[0].multiply_adds
    assert str(found).splitlines()[-1] == repr(found) and f"{found.parameters:,} parameters" in repr(found)
    assert found.to_rows()[0]["kind"] == "Conv2d"
    with pytest.raises(UnsupportedModel):
        describe(torch.jit.script(plain().float()), random_images(1).float())


@pytest.mark.parametrize("make", [mobilenet_v3_small, swin_v2, vit])
def test_multiply_adds_are_those_of_torchs_counter(make):
    net, images = make().float().eval(), torch.zeros(1, 3, 64, 64)
    found = describe(net, images, receptive_fields=False)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # the counter misses fused ones
        net(images)
    assert found.multiply_adds == pytest.approx(counter.get_total_flops() / 2, rel=1e-3)


def images(count: int = 6):
    return random_images(count, height=16, width=16).double()


def test_the_first_changed_layer_is_found():
    net, x = plain(), images(8)
    other = copy.deepcopy(net)
    with nothing_left(net, x):
        same = compare_models(net, other, x)
    assert same.changed == [] and same.first_difference is None and set(same.differences.values()) == {0.0}
    torch.testing.assert_close(same.map_correlations, torch.ones(8).double())
    torch.testing.assert_close(same.similarity.diagonal(), torch.ones(len(same.layers_a)))
    torch.testing.assert_close(same.scores_a, net(x))
    other.conv2.weight.data *= -1
    found = compare_models(net, other, x)
    assert found.first_difference == "conv2" and found.differences["conv1"] == found.differences["relu1"] == 0
    assert compare_models(net, other, x, tolerance=10).first_difference is None


def test_changed_predictions_and_maps_are_those_of_each_model():
    net, other, x = plain(), plain(), images()
    for parameter in other.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    found = compare_models(net, other, x, relu=False)
    a, b = net(x), other(x)
    assert found.changed == (a.argmax(1) != b.argmax(1)).nonzero()[:, 0].tolist()
    maps = [grad_cam(each, x, a.argmax(1), relu=False) for each in (net, other)]
    torch.testing.assert_close(found.maps_a, maps[0])
    torch.testing.assert_close(found.maps_b, maps[1])
    torch.testing.assert_close(found.map_correlations, rank_correlation(*maps))


def test_other_sizes_and_architectures():
    layers = nn.Conv2d(3, 5, 5, stride=2), nn.ReLU(), nn.Conv2d(5, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    net, other = plain(), nn.Sequential(*layers).double()
    small, large = images(), random_images(6, height=40, width=40).double()
    found = compare_models(net, other, small, images_b=large)
    assert found.differences == {} and found.first_difference is None
    assert found.maps_a.shape == found.maps_b.shape
    assert found.similarity.shape == (len(found.layers_a), len(found.layers_b))


def song(x, y):
    """Unbiased CKA of features [n, p] and [n, q]: Song et al. 2012, equation 5, from its definition, in float64."""

    def hsic(k, m):  # the mean over all quadruples of different images
        i, j, q, r = torch.tensor([*itertools.permutations(range(len(k)), 4)]).T
        return float((k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q])).mean())

    k, m = (each.double() @ each.double().T for each in (x, y))
    return hsic(k, m) / math.sqrt(hsic(k, k) * hsic(m, m))


def random_features(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).double() for size in sizes]


def test_cka_and_its_interval_by_hand():
    x, noise, turn = random_features((8, 5), (8, 2), (5, 5))
    for y in (x[:, :2] + 0.5 * noise, x.flip(0)):
        value, low, high = linear_cka(gram_matrix(x), gram_matrix(y))
        without = [song(*(torch.cat([each[:n], each[n + 1 :]]) for each in (x, y))) for n in range(8)]
        z = torch.tensor(without).double().atanh()
        half = stats.t.ppf(0.975, 7) * float(((z - z.mean()).square().sum() * 7 / 8).sqrt())
        assert value == pytest.approx(song(x, y))
        middle = max(0, math.atanh(value))
        assert (low, high) == pytest.approx((max(0, math.tanh(middle - half)), math.tanh(middle + half)))
    assert value < 0, "unrelated features may have a negative estimate"

    turned = 3 * x @ torch.linalg.qr(turn)[0] + 7
    assert linear_cka(gram_matrix(x), gram_matrix(turned)) == pytest.approx((1, 1, 1))
    assert linear_cka(gram_matrix(x), gram_matrix(x)) == pytest.approx((1, 1, 1))


def test_few_and_equal_images_and_constant_layers_are_not_tested():
    few = compare_models(plain(), plain(), images(7))
    assert few.similarity.isnan().all() and few.similarity_interval.isnan().all()
    assert few.similarity_note.startswith("Not tested: needs at least 8 different images; given: 7.")
    repeated = compare_models(plain(), plain(), images(5).repeat(3, 1, 1, 1))
    assert repeated.similarity.isnan().all() and "given: 15, 5 of them different" in repeated.similarity_note
    once, more = (compare_models(plain(), plain(), x) for x in (images(8), torch.cat([images(8), images(8)[:3]])))
    assert once.similarity_note == "" and float(once.similarity_interval[0, 0, 0]) == pytest.approx(1)
    torch.testing.assert_close(more.similarity, once.similarity)
    torch.testing.assert_close(more.similarity_interval, once.similarity_interval)
    net = plain()
    net.conv1.weight.data.zero_()
    constant = compare_models(net, plain(), images(9))
    assert constant.similarity.isnan().all() and "same output for all images" in constant.similarity_note

    x, y = random_features((9, 4), (9, 4))
    one, two = (torch.zeros(9, 4).double().index_put((torch.arange(k),), x[:k]) for k in (1, 2))
    rounded = torch.full((9, 4), 0.1) + 1e-9 * x.float()
    for features in (torch.full((9, 4), 0.1), rounded, one, two):
        assert all(map(math.isnan, linear_cka(gram_matrix(features), gram_matrix(y))))


def test_reasons_for_maps_without_a_correlation():
    net = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).double()
    x = torch.stack([images()[0], torch.zeros(3, 16, 16).double(), torch.full((3, 16, 16), 0.5).double()])
    zero = copy.deepcopy(net)
    zero[0].weight.data.zero_()
    found = [compare_models(net, other, x, layer="0", relu=False) for other in (copy.deepcopy(net), zero)]
    assert found[0].map_notes == ["", "each map is zero everywhere", "each map has the same value everywhere"]
    assert found[1].map_notes == [
        "the map of B is zero everywhere",
        "each map is zero everywhere",
        "the map of A has the same value everywhere; the map of B is zero everywhere",
    ]
    for each in found:
        assert each.map_correlations.isnan().tolist() == [bool(note) for note in each.map_notes]
        assert all(note in each.display().html for note in each.map_notes)
    assert "1.00 (1 of 3 images)" in repr(found[0]) and "not tested (the map of B is zero" in repr(found[1])
    few = compare_models(net, net, x[:, :, :1, :3], layer="0").map_notes
    assert few == ["not tested: a map has 3 cells, and a rank correlation needs at least 4"] * 3
