"""RISE and its variants: the exact expectation over all masks, colors, detectors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import METHODS, BadOption, BoxScores, d_rise, explain, mc_rise, rise
from tests.support.nets import curved, random_images


class Product(nn.Module):
    """The product of two pixels, and a single third one."""

    def forward(self, x):
        return torch.stack([x[:, 0, 0, 0] * x[:, 0, 3, 3], x[:, 0, 1, 2]], 1)


class Detector(nn.Module):
    """Two boxes per image, scored by the brightness inside; the second one has another label."""

    def forward(self, x):
        boxes = torch.tensor([[2.0, 2.0, 6.0, 6.0], [10.0, 6.0, 15.0, 11.0]], dtype=x.dtype)
        scores = torch.stack([x[:, :, 2:6, 2:6].mean((1, 2, 3)), x[:, :, 6:11, 10:15].mean((1, 2, 3))], 1)
        return [{"boxes": boxes, "scores": each, "labels": torch.tensor([1, 7])} for each in scores]


def test_d_rise_localizes_each_detection():
    """Each of two boxes in one image has its own map."""
    x = torch.ones(1, 3, 12, 16, dtype=torch.float64)
    for box, label, inside in (([2, 2, 6, 6], 1, (4, 4)), ([10, 6, 15, 11], 7, (8, 12))):
        target = BoxScores(torch.tensor([box]).double(), (label,), overlap=0)
        found = d_rise(Detector(), x, target, samples=600, cells=8)[0]
        top, left, bottom, right = box[1] - 1, box[0] - 1, box[3], box[2]
        y, z = divmod(int(found.argmax()), 16)
        assert top <= y <= bottom and left <= z <= right and found[inside] > 0.7 * found.max()


def test_d_rise_without_a_target_explains_the_best_detection():
    found = explain("d_rise", Detector(), torch.ones(1, 3, 12, 16).double(), samples=4)
    assert found.findings[0][0].code == "best_detection"


def test_d_rise_is_offered_for_detectors():
    torchvision = pytest.importorskip("torchvision")
    for name in ("fasterrcnn_mobilenet_v3_large_320_fpn", "retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large"):
        with torch.device("meta"):
            net = torchvision.models.get_model(name, weights=None, weights_backbone=None)
        assert METHODS["d_rise"].applies(net) is None and METHODS["d_rise"].applies(nn.DataParallel(net)) is None


def test_d_rise_is_offered_for_lists_of_boxes_but_accepts_classifiers():
    assert "Use rise" in METHODS["d_rise"].applies(curved())
    assert METHODS["d_rise"].applies(Detector()) is None
    assert d_rise(curved(), random_images(1), 1, samples=4).isfinite().all()


def test_mc_rise_without_a_color_is_the_mean_of_all():
    net, x = curved(), random_images(2)
    alone = [mc_rise(net, x, 1, samples=30, color=k) for k in range(5)]
    torch.testing.assert_close(mc_rise(net, x, 1, samples=30), torch.stack(alone).mean(0), rtol=1e-9, atol=1e-12)


def test_mc_rise_takes_colors_in_the_models_units():
    """With black as the only color a cell is either visible or black: the masking of RISE."""
    x = torch.ones(1, 1, 4, 4, dtype=torch.float64)
    black = mc_rise(Product(), x, 1, samples=3000, cells=2, colors=torch.zeros(1, 1))
    seen = rise(Product(), x, 1, samples=3000, cells=2)
    # Mean score with the cell visible minus with it masked; RISE subtracts the mean of both, half of it at p = 1/2.
    torch.testing.assert_close(black / 2, seen, rtol=0, atol=0.03)
    assert seen.max() > 0.1


def test_mc_rise_with_one_channel_has_dark_and_light_and_refuses_other_shapes():
    x = torch.rand(1, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert mc_rise(Product(), x, 0, samples=20, color=1).isfinite().all()
    with pytest.raises(BadOption, match="color=2"):
        mc_rise(Product(), x, 0, samples=20, color=2)

    for colors in (torch.zeros(2), torch.zeros(2, 4), torch.zeros(0, 3)):
        with pytest.raises(BadOption, match="colors"):
            mc_rise(curved(), random_images(1), 1, samples=4, colors=colors)
