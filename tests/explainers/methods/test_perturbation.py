"""Properties that all perturbation methods share: constants, stopping, budget, chunks, masks and baselines."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from explainers import METHODS, BadOption, Unit, explain
from explainers.perturbation.segments import grid
from tests.support.calls import call, small
from tests.support.nets import Weighted, curved, random_images, residual, settle

FAMILY = [name for name, method in METHODS.items() if method.family == "perturbation"]
PARTS = ["feature_ablation", "lime", "kernel_shap", "shapley_sampling"]
CLASSES = [2, 0, 5]

each = pytest.mark.parametrize("name", FAMILY)
each_of_parts = pytest.mark.parametrize("name", PARTS)


def options(name):
    """Grids instead of superpixels, and few samples: what is tried here does not depend on them."""
    few = {"masks": (3, 4), "samples": 12, "cells": 3}
    return small(name) | {key: value for key, value in few.items() if key in METHODS[name].options}


class Shifted(nn.Module):
    """Another network's logits, each larger by the same number."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.net, self.by = curved(), by

    def forward(self, x):
        return self.net(x) + self.by


class ConstantScores(nn.Module):
    """Scores that do not depend on the image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3, padding=1).double()
        self.scores = nn.Parameter(torch.tensor([0.3, -2.0, 5.0, 1.0, 0.0, 0.5], dtype=torch.float64))

    def forward(self, x):
        return self.scores + 0 * self.layer(x).sum((1, 2, 3))[:, None]


def test_the_family_has_all_its_methods():
    assert set(FAMILY) >= {
        *("occlusion", "feature_ablation", "rise", "mc_rise", "d_rise", "lime", "kernel_shap", "shapley_sampling"),
        *("extremal_perturbation", "sobol", "hsic"),
    }


@each
def test_a_constant_added_to_the_logits_changes_no_map(name):
    """Methods that divide by a score, or weight masks by it, change with a class's bias."""
    x = random_images()
    expected = call(name, curved(), x, CLASSES, **options(name))
    for by in (100.0, -7.0):
        found = call(name, Shifted(by).eval(), x, CLASSES, **options(name))
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-10)
    assert expected.flatten(1).std(1).min() > 0


@each
def test_a_constant_image_gives_finite_maps(name):
    x = torch.full((2, 3, 12, 16), 0.4, dtype=torch.float64)
    assert call(name, curved(), x, [1, 2], **options(name)).isfinite().all()


@each
def test_an_image_equal_to_its_baseline_gives_zeros(name):
    if "baseline" not in METHODS[name].options:
        pytest.skip("its colors cover")
    x = torch.full((2, 3, 12, 16), 0.4, dtype=torch.float64)
    found = call(name, curved(), x, [1, 2], baseline=0.4, **options(name))
    assert not found.isnan().any() and found.abs().max() < 1e-12


@each
def test_a_constant_score_gives_zeros(name):
    found = call(name, ConstantScores().eval(), random_images(2), [1, 2], **options(name))
    assert not found.isnan().any() and found.abs().max() < 1e-12


@pytest.mark.parametrize("name", ["lime", "sobol", "hsic", "extremal_perturbation"])
def test_a_constant_score_is_reported(name):
    (first,) = explain(name, ConstantScores().eval(), random_images(1), 1, **options(name)).findings
    assert first[0].code in ("no_effect", "no_gradient") and "score" in first[0].sentence


@each
def test_progress_refines_to_the_result(name):
    """The last partial map is the result; fractions rise to 1; every map has the result's shape."""
    seen = []
    found = call(name, curved(), random_images(2), [1, 2], batch_size=5, progress=seen.append, **options(name))
    assert torch.equal(seen[-1].map, found) and seen[-1].fraction == 1
    assert all(a.fraction < b.fraction for a, b in itertools.pairwise(seen))
    assert all(each.map.shape == found.shape and each.map.isfinite().all() for each in seen)


@each
def test_stopped_early_it_is_the_map_so_far(name):
    """Returning False ends within one batch, with the map that the progress call saw."""
    seen = []

    def stop(partial):
        seen.append(partial)
        return len(seen) < 2

    found = call(name, curved(), random_images(2), [1, 2], batch_size=3, progress=stop, **options(name))
    assert len(seen) == 2 and torch.equal(seen[-1].map, found) and seen[-1].fraction < 1


@each
def test_an_exception_in_progress_ends_the_call(name):
    def stop(partial):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(name, curved(), random_images(1), 1, batch_size=3, progress=stop, **options(name))


@each
def test_a_budget_keeps_the_best_map_so_far(name):
    seen = []
    found = call(name, curved(), random_images(1), 1, batch_size=3, budget=1e-9, progress=seen.append, **options(name))
    assert len(seen) == 1 and torch.equal(seen[0].map, found)


@each
@pytest.mark.parametrize("size", [1, 7])
def test_p97_same_seed_same_map_for_every_chunk_size_and_batch(name, size):
    net, x = curved(), random_images()
    expected = call(name, net, x, CLASSES, **options(name))
    found = call(name, net, x, CLASSES, batch_size=size, **options(name))
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-11)
    alone = call(name, net, x[1:2], CLASSES[1:2], **options(name))
    torch.testing.assert_close(alone, expected[1:2], rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in FAMILY if "samples" in METHODS[name].options])
def test_p97_another_seed_is_another_map_and_no_global_generator_is_used(name):
    net, x = curved(), random_images(1)
    before = torch.get_rng_state()
    more = {"masks": (6, 8)} if "masks" in METHODS[name].options else {}
    first = call(name, net, x, 1, **(options(name) | more), seed=1)
    second = call(name, net, x, 1, **(options(name) | more), seed=2)
    assert not torch.allclose(first, second) and torch.equal(torch.get_rng_state(), before)


@each_of_parts
def test_p101_values_are_per_pixel_for_parts_of_all_sizes(name):
    """On a linear model each pixel has its part's terms over the part's area, so the map sums to the difference."""
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images()
    labels = torch.zeros(12, 16).long()
    labels[2:5, 3:9], labels[0, 0], labels[7:, 10:] = 1, 2, 3
    terms = (net.fc.weight[CLASSES].view_as(x) * (x - 0.3)).sum(1).detach()

    found = (
        call(name, net, x, CLASSES, masks=labels, samples=200, baseline=0.3)
        if name != "feature_ablation"
        else call(name, net, x, CLASSES, masks=labels, baseline=0.3)
    )

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


@each_of_parts
def test_impossible_masks_are_refused(name):
    for given in ("superpixel", 0, torch.zeros(2, 5, 5), torch.full((1, 12, 16), 2.0)):
        with pytest.raises(BadOption, match=r"masks|grid"):
            call(name, curved(), random_images(1), 1, masks=given)


@each
def test_impossible_options_are_refused(name):
    wrong = {"samples": 0, "cells": 1, "steps": 0, "p": 1.5, "area": 0, "ridge": -1, "kernel_width": 0, "baseline": "x"}
    wrong |= {"batch_size": 0, "budget": 0, "precision": "half"}
    for option, value in wrong.items():
        if option in METHODS[name].options or option in ("batch_size", "budget"):
            with pytest.raises(BadOption, match=option):
                call(name, curved(), random_images(1), 1, **{option: value})


@each
def test_bf16_stays_near_float32(name):
    """On a tiny net bf16 gives nearly the same values."""
    net, x = residual().float(), random_images(2).float()
    few = options(name) | ({"steps": 3} if "steps" in METHODS[name].options else {})
    full = call(name, net, x, [1, 2], **few)
    coarse = call(name, net, x, [1, 2], precision="bf16", **few)
    assert coarse.dtype == torch.float32
    assert (coarse - full).norm() < 0.15 * full.norm()


@each
def test_a_unit_may_be_the_target(name):
    """Why did a channel fire? The forward pass ends there."""
    found = call(name, curved(), random_images(1), Unit("act2", 3, at=(1, 2)), **options(name))
    assert found.shape == (1, 12, 16) and found.isfinite().all() and found.std() > 0
