"""Descriptions of networks compared with numbers by hand and with torch's own counter of operations."""

from __future__ import annotations

import csv
import io

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from explainers import UnsupportedModel, describe
from tests.support.nets import plain, random_images
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
    """The tied layer counts once. Of each layer: parameters, multiply-adds, receptive field."""
    net = Small().eval()
    net.conv.bias.requires_grad_(False)
    x = random_images(2, height=12, width=16).float()
    with nothing_left(net, x):
        found = describe(net, x)
    assert {each.name: (each.parameters, each.multiply_adds, each.receptive_field) for each in found.layers} == {
        "conv": (4 * 27 + 4, 4 * 6 * 8 * 27, (3, 3)),
        "depthwise": (4 * 9, 4 * 6 * 8 * 9, (7, 7)),
        "up": (4 * 2 * 4 + 2, 4 * 6 * 8 * (2 * 2 * 2), found.layers[2].receptive_field),
        "head": (2 * 5 + 5, 10, None),
    }
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


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).mT
        return self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1)


def test_attention_is_counted_by_hand():
    """Fused, and one operation after another, as torch runs it if the module has a hook."""
    net = Attention().eval()
    tokens, width = 4 * 6, 8
    expected = tokens * width * 4 * width + 2 * tokens**2 * width  # queries, keys, values, projection; two products
    for _ in range(2):
        found = {layer.name: layer for layer in describe(net, torch.zeros(1, 3, 16, 24), receptive_fields=False).layers}
        assert found["attention"].multiply_adds == expected
        net.attention.register_forward_hook(lambda *_: None)


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


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "swin_v2_t"])
def test_multiply_adds_are_those_of_torchs_counter(name):
    net, images = pytest.importorskip("torchvision").models.get_model(name).eval(), torch.zeros(1, 3, 64, 64)
    found = describe(net, images, receptive_fields=False)
    with FlopCounterMode(display=False) as counter:
        net(images)
    assert found.multiply_adds == pytest.approx(counter.get_total_flops() / 2, rel=1e-3)
