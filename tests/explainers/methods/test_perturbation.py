"""Perturbation methods: what they share, masks and superpixels, RISE, extremal perturbation, ViT-CX."""

from __future__ import annotations

import pytest
import torch
from scipy import ndimage
from torch import nn

import explainers
from explainers import METHODS, BadOption, d_rise, explain, extremal_perturbation, mc_rise, occlusion, rise, vit_cx
from explainers.call.run import open_run
from explainers.methods.perturbation.extremal import KeptParts
from explainers.perturbation.baselines import baseline_of, levels_of
from explainers.perturbation.segments import Parts, grid, parts_of, superpixels
from tests.support.calls import call, small
from tests.support.nets import ClassToken, Weighted, Written, curved, random_images, settle

FAMILY = [name for name, method in METHODS.items() if method.family == "perturbation"]
PARTS = ["feature_ablation", "lime", "kernel_shap", "shapley_sampling"]
CLASSES = [2, 0, 5]

each_of_parts = pytest.mark.parametrize("name", PARTS)


def options(name):
    """Grids instead of superpixels, and few samples: what is tried here does not depend on them."""
    few = {"masks": (3, 4), "samples": 12, "cells": 3}
    return small(name) | {key: value for key, value in few.items() if key in METHODS[name].options}


def constant_scores() -> nn.Module:
    """Scores that do not depend on the image."""
    scores = torch.tensor([0.3, -2.0, 5.0, 1.0, 0.0, 0.5], dtype=torch.float64)
    layer = nn.Conv2d(3, 2, 3, padding=1).double()
    return Written(lambda self, x: scores + 0 * self.layer(x).sum((1, 2, 3))[:, None], layer=layer).eval()


def test_nothing_to_see_gives_finite_maps_and_zeros():
    """A constant image, an image equal to its baseline, and a score that does not depend on the image."""
    x = torch.full((2, 3, 12, 16), 0.4, dtype=torch.float64)
    for name in FAMILY:
        assert call(name, curved(), x, [1, 2], **options(name)).isfinite().all(), name
        blank = [call(name, constant_scores(), random_images(2), [1, 2], **options(name))]
        if "baseline" in METHODS[name].options:
            blank.append(call(name, curved(), x, [1, 2], baseline=0.4, **options(name)))
        assert all(not each.isnan().any() and each.abs().max() < 1e-12 for each in blank), name


def test_a_constant_score_is_reported():
    for name in ("lime", "sobol", "hsic", "extremal_perturbation"):
        (first,) = explain(name, constant_scores(), random_images(1), 1, **options(name)).findings
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
    """Labels may have gaps. Also the fewest possible parts: one has the whole difference."""
    net, x = curved(), random_images(3)
    labels = torch.stack([grid(12, 16, 1, 1), 7 * grid(12, 16, 3, 4) - 3, grid(12, 16, 1, 2)])
    few = {"samples": 30} if "samples" in METHODS[name].options else {}
    together = call(name, net, x, CLASSES, masks=labels, **few)
    for n in range(3):
        alone = call(name, net, x[n : n + 1], CLASSES[n : n + 1], masks=labels[n], **few)
        torch.testing.assert_close(together[n : n + 1], alone, rtol=1e-9, atol=1e-12)
    lost = (net(x[:1]) - net(torch.zeros_like(x[:1])))[0, CLASSES[0]].detach()
    torch.testing.assert_close(together[0], (lost / 192).expand(12, 16), rtol=1e-3, atol=1e-9)


PRODUCT = Written(lambda _, x: torch.stack([x[:, 0, 0, 0] * x[:, 0, 3, 3], x[:, 0, 1, 2]], 1))
"""The product of two pixels, and a single third one."""


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
        target = explainers.BoxScores(torch.tensor([box]).double(), (label,), overlap=0)
        found = d_rise(Detector(), x, target, samples=600, cells=8)[0]
        top, left, bottom, right = box[1] - 1, box[0] - 1, box[3], box[2]
        y, z = divmod(int(found.argmax()), 16)
        assert top <= y <= bottom and left <= z <= right and found[inside] > 0.7 * found.max()


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
    black = mc_rise(PRODUCT, x, 1, samples=3000, cells=2, colors=torch.zeros(1, 1))
    seen = rise(PRODUCT, x, 1, samples=3000, cells=2)
    # Mean score with the cell visible minus with it masked; RISE subtracts the mean of both, half of it at p = 1/2.
    torch.testing.assert_close(black / 2, seen, rtol=0, atol=0.03)
    assert seen.max() > 0.1


def test_mc_rise_with_one_channel_has_dark_and_light_and_refuses_other_shapes():
    x = torch.rand(1, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert mc_rise(PRODUCT, x, 0, samples=20, color=1).isfinite().all()
    with pytest.raises(BadOption, match="color=2"):
        mc_rise(PRODUCT, x, 0, samples=20, color=2)

    for colors in (torch.zeros(2), torch.zeros(2, 4), torch.zeros(0, 3)):
        with pytest.raises(BadOption, match="colors"):
            mc_rise(curved(), random_images(1), 1, samples=4, colors=colors)


def square(top=6, left=12, side=8, scale=1.0):
    """The score depends only on one square of the image."""
    box = (..., slice(top, top + side), slice(left, left + side))
    return Written(lambda _, x: 5 * scale * x[box].mean((1, 2, 3)).tanh()[:, None] * torch.tensor([1, -1]))


def bright(n=1):
    return random_images(n, 3, 24, 32).abs() + 0.5


def test_the_mask_covers_the_square_that_the_score_depends_on():
    """Also in corners, where a disc lies partly outside the image."""
    for top, left in ((6, 12), (0, 0), (16, 24)):
        found = extremal_perturbation(square(top, left), bright(), 0, area=64 / 768, baseline="zeros", steps=80)[0]
        inside = found[top : top + 8, left : left + 8]
        assert inside.mean() > 0.8 and inside.sum() > 0.6 * found.sum()
        assert found.mean() == pytest.approx(64 / 768, abs=0.05)


def test_the_mask_is_invariant_to_the_scale_of_the_score():
    x = bright()
    expected = extremal_perturbation(square(), x, 0, steps=8)
    for scale in (1000.0, 1e-5):
        found = extremal_perturbation(square(scale=scale), x, 0, steps=8)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_a_failed_search_is_reported():
    """Oracle: the score decreases in every pixel, so one step from the full mask stays below the baseline's score."""

    against = Written(lambda _, x: -x.sum((1, 2, 3))[:, None].repeat(1, 2))
    x = bright()
    found = explain("extremal_perturbation", against, x, 0, baseline="zeros", steps=1)
    well = explain("extremal_perturbation", square(), x, 0, baseline="zeros", steps=5)

    (told,) = [each.sentence for each in found.findings[0] if each.code == "search_failed"]
    assert "not more than the baseline alone (0)" in told
    assert "search_failed" not in [each.code for each in well.findings[0]]


def test_a_part_worse_than_a_control_is_reported():
    """The score counts scattered dots, of which no disc holds as many as the part at edges."""

    dots = Written(lambda _, x: x[:, :, ::6, ::6].sum((1, 2, 3)).clamp(min=0.0)[:, None] ** 2 * torch.tensor([1, -1]))
    x = torch.zeros(1, 3, 48, 48)
    x[:, :, ::6, ::6] = x[:, :, ::6, 1::6] = 5
    found = explain("extremal_perturbation", dots, x, 0, area=0.4, baseline="zeros", steps=1)
    (told,) = [each for each in found.findings[0] if each.code == "search_failed"]
    assert "equally large part at edges" in told.sentence and told.facts["other"] > told.facts["score"]


def test_values_between_0_and_1_are_weaker_blurs():
    """Eight degrees of blur, linear in between; a mask of 1 is the image and a mask of 0 the usual baseline."""
    x = bright()
    levels = levels_of(x, "blur")
    assert levels.shape == (8, *x.shape) and torch.equal(levels[-1], x)
    torch.testing.assert_close(levels[0], baseline_of(x, "blur"))
    slopes = [float(level.diff(dim=-1).abs().sum()) for level in levels]
    assert slopes == sorted(slopes)
    with open_run(square(), x, 0) as run:
        run.scoring.score_inputs()
        kept = KeptParts(run, levels, 0.1)
        for mask, expected in ((1.0, x), (0.0, levels[0]), (2.5 / 7, (levels[2] + levels[3]) / 2)):
            faded, slope = kept.fade(torch.full_like(x[:, 0], mask), [0])
            torch.testing.assert_close(faded, expected)
        torch.testing.assert_close(slope, 7 * (levels[3] - levels[2]))


def test_constant_channels_give_a_blank_map():
    net = curved()
    net.act2 = nn.Threshold(10.0, 1.0)
    assert not vit_cx(net, random_images(1), 2, layer="act2").any()


def test_the_default_layer_of_a_transformer_is_the_input_of_its_last_attention():
    net, x = settle(ClassToken().double()), random_images(2, 3, 32, 128)
    found = vit_cx(net, x, [1, 2])
    assert found.shape == (2, 32, 128) and found.any()


# Occlusion that is stopped early, and masks


def test_a_partial_map_contains_the_evaluated_windows():
    """Stopped early: pixels of evaluated windows have their value, the others are zero."""
    linear, x = settle(Weighted((3, 12, 16), 6).double()), random_images(1)
    full = occlusion(linear, x, 1, window=4, stride=4)
    found = occlusion(linear, x, 1, window=4, stride=4, batch_size=1, progress=lambda partial: partial.done < 3)
    tried = found != 0
    assert 0 < tried.sum() < tried.numel()
    torch.testing.assert_close(found[tried], full[tried])


# Grids, superpixels and masks


def connected_pieces(labels):
    """Number of 4-connected pieces of each label."""
    return {label: ndimage.label(labels.numpy() == label)[1] for label in labels.unique().tolist()}


def test_grid_by_hand():
    assert grid(3, 5, 2, 2).tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [2, 2, 2, 3, 3]]
    assert torch.equal(grid(4, 6, 4, 6).flatten(), torch.arange(24))
    sizes = torch.bincount(grid(7, 16, 3, 5).flatten())
    assert len(sizes) == 15 and sizes.min() >= 2 * 3 and sizes.max() <= 3 * 4


@pytest.mark.parametrize(("channels", "count"), [(1, 1), (3, 6), (6, 40)])
def test_superpixels_are_connected_and_numbered_without_gaps(channels, count):
    """Noise is the hardest image: nearly every pixel has another nearest center than its neighbor."""
    labels = superpixels(random_images(2, channels, 24, 30), count)
    assert labels.dtype == torch.long and labels.shape == (2, 24, 30)
    for each in labels:
        pieces = connected_pieces(each)
        assert pieces == dict.fromkeys(range(len(pieces)), 1), "a gap, or a region in pieces"
        assert abs(len(pieces) - count) <= max(2, count // 2)
        first = [int((each.flatten() == label).nonzero()[0]) for label in range(len(pieces))]
        assert first == sorted(first), "labels follow the reading order"


def test_superpixels_of_small_and_long_images():
    for size in ((1, 1), (1, 9), (2, 5), (5, 40)):
        for x in (torch.zeros(1, 3, *size), random_images(1, 3, *size)):
            labels = superpixels(x, 50)
            assert labels.min() == 0 and len(connected_pieces(labels[0])) == int(labels.max()) + 1


def test_superpixels_depend_on_neither_units_nor_precision_nor_batch():
    """Rounding changed their number, and with it all random coalitions: Kernel SHAP differed by more than its size."""
    x = (random_images(3, 3, 20, 28) * 16).round() / 16  # exact in all these units, also in bfloat16
    expected = superpixels(x, 12)
    for same in (x * 64 - 3, x / 1024, x.to(memory_format=torch.channels_last)):
        assert torch.equal(superpixels(same, 12), expected)
    assert torch.equal(torch.cat([superpixels(each[None], 12) for each in x]), expected)
    noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for scaled in (noise, 4 * noise - 2):
        for same in (scaled.bfloat16(), scaled.double()):
            assert torch.equal(superpixels(same), superpixels(scaled))


def test_superpixels_follow_an_edge():
    """Two colors whose border crosses the cells: no region has pixels of both, however faint on a large offset."""
    for offset in (0, 1000):
        image = torch.full((1, 3, 32, 32), float(offset))
        image[:, :, :, 13:] += 1
        labels = superpixels(image, 16)[0]
        left, right = set(labels[:, :13].flatten().tolist()), set(labels[:, 13:].flatten().tolist())
        assert left and right and not left & right


def test_pixels_of_an_absent_part_are_hidden():
    """Three overlapping masks on a row of four pixels; the last pixel belongs to none and is always shown."""
    masks = torch.tensor([[[1.0, 1, 0, 0]], [[0, 1, 1, 0]], [[0, 0.5, 0, 0]]])
    present = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 0], [0, 0, 0]]).bool()
    shown = Parts(3, masks=masks).shown(present)[:, 0]
    torch.testing.assert_close(shown, torch.tensor([[1.0, 1, 1, 1], [0, 0, 1, 1], [1, 0.5, 1, 1], [0, 0, 0, 1]]))


def test_impossible_grids_and_masks_are_refused():
    for rows, columns in ((0, 2), (13, 2), (2, 17)):
        with pytest.raises(BadOption, match="12 x 16"):
            grid(12, 16, rows, columns)
    sizes = ((2, 12, 15), (1, 12, 16), (12, 16), (3, 1, 12, 16))
    values = [torch.full((1, 12, 16), 2.0), torch.full((1, 12, 16), torch.nan), torch.zeros(5, 12, 16).long()]
    for given in (True, 0, (2, 3, 4), (13, 2), 3.5, *map(torch.zeros, sizes), *values):
        with pytest.raises(BadOption):
            parts_of(given, random_images(2))
    with pytest.raises(BadOption, match="'superpixels'"):
        parts_of("superpixel", random_images(1))
