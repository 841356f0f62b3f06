"""Properties that all perturbation methods share: constants, stopping, budget, chunks, masks and baselines."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import METHODS, BadOption, Unit, explain
from explainers.perturbation.segments import grid
from tests.support.calls import call, small
from tests.support.nets import Weighted, curved, random_images, settle

FAMILY = [name for name, method in METHODS.items() if method.family == "perturbation"]
PARTS = ["feature_ablation", "lime", "kernel_shap", "shapley_sampling"]
CLASSES = [2, 0, 5]

each_of_parts = pytest.mark.parametrize("name", PARTS)


def options(name):
    """Grids instead of superpixels, and few samples: what is tried here does not depend on them."""
    few = {"masks": (3, 4), "samples": 12, "cells": 3}
    return small(name) | {key: value for key, value in few.items() if key in METHODS[name].options}


class ConstantScores(nn.Module):
    """Scores that do not depend on the image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3, padding=1).double()
        self.scores = nn.Parameter(torch.tensor([0.3, -2.0, 5.0, 1.0, 0.0, 0.5], dtype=torch.float64))

    def forward(self, x):
        return self.scores + 0 * self.layer(x).sum((1, 2, 3))[:, None]


def test_nothing_to_see_gives_finite_maps_and_zeros():
    """A constant image, an image equal to its baseline, and a score that does not depend on the image."""
    x = torch.full((2, 3, 12, 16), 0.4, dtype=torch.float64)
    for name in FAMILY:
        assert call(name, curved(), x, [1, 2], **options(name)).isfinite().all(), name
        blank = [call(name, ConstantScores().eval(), random_images(2), [1, 2], **options(name))]
        if "baseline" in METHODS[name].options:
            blank.append(call(name, curved(), x, [1, 2], baseline=0.4, **options(name)))
        assert all(not each.isnan().any() and each.abs().max() < 1e-12 for each in blank), name


def test_a_constant_score_is_reported():
    for name in ("lime", "sobol", "hsic", "extremal_perturbation"):
        (first,) = explain(name, ConstantScores().eval(), random_images(1), 1, **options(name)).findings
        assert first[0].code in ("no_effect", "no_gradient") and "score" in first[0].sentence, name


@each_of_parts
def test_p101_values_are_per_pixel_for_parts_of_all_sizes(name):
    """On a linear model each pixel has its part's terms over the part's area, so the map sums to the difference."""
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images()
    labels = torch.zeros(12, 16).long()
    labels[2:5, 3:9], labels[0, 0], labels[7:, 10:] = 1, 2, 3
    terms = (net.fc.weight[CLASSES].view_as(x) * (x - 0.3)).sum(1).detach()

    few = {"samples": 200} if "samples" in METHODS[name].options else {}
    found = call(name, net, x, CLASSES, masks=labels, baseline=0.3, **few)

    for part in range(4):
        here = labels == part
        expected = terms[:, here].mean(1, keepdim=True).expand(-1, int(here.sum()))
        torch.testing.assert_close(found[:, here], expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.sum((1, 2)), terms.sum((1, 2)), rtol=1e-3, atol=1e-4)


@each_of_parts
def test_p104_masks_of_any_strides(name):
    net, x = curved(), random_images(2)
    labels = (torch.arange(12) // 3)[:, None].expand(12, 16)
    masks = torch.stack([labels == part for part in range(4)])
    few = {"samples": 40} if "samples" in METHODS[name].options else {}
    expected = call(name, net, x, [1, 2], masks=labels.contiguous(), **few)
    for given in (labels, labels[None].expand(2, 12, 16), masks, masks[None].expand(2, 4, 12, 16), (4, 1)):
        torch.testing.assert_close(call(name, net, x, [1, 2], masks=given, **few), expected, rtol=1e-9, atol=1e-12)
    turned = masks.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    torch.testing.assert_close(call(name, net, x, [1, 2], masks=turned, **few), expected, rtol=1e-9, atol=1e-12)


@each_of_parts
def test_images_may_have_different_numbers_of_parts(name):
    """Also the fewest possible: one part has the whole difference."""
    net, x = curved(), random_images(3)
    labels = torch.stack([grid(12, 16, 1, 1), grid(12, 16, 3, 4), grid(12, 16, 1, 2)])
    few = {"samples": 30} if "samples" in METHODS[name].options else {}
    together = call(name, net, x, CLASSES, masks=labels, **few)
    for n in range(3):
        alone = call(name, net, x[n : n + 1], CLASSES[n : n + 1], masks=labels[n], **few)
        torch.testing.assert_close(together[n : n + 1], alone, rtol=1e-9, atol=1e-12)
    lost = (net(x[:1]) - net(torch.zeros_like(x[:1])))[0, CLASSES[0]].detach()
    torch.testing.assert_close(together[0], (lost / 192).expand(12, 16), rtol=1e-3, atol=1e-9)


def test_impossible_masks_are_refused():
    for given in ("superpixel", 0, torch.zeros(2, 5, 5), torch.full((1, 12, 16), 2.0)):
        for name in PARTS:
            with pytest.raises(BadOption, match=r"masks|grid"):
                call(name, curved(), random_images(1), 1, masks=given)


def test_a_unit_may_be_the_target():
    """Why did a channel fire? The forward pass ends there."""
    for name in FAMILY:
        found = call(name, curved(), random_images(1), Unit("act2", 3, at=(1, 2)), **options(name))
        assert found.shape == (1, 12, 16) and found.isfinite().all() and found.std() > 0, name
