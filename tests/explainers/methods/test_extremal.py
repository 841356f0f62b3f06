"""Extremal perturbation: position and area of the mask, invariance to the scale of the score, failures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import explain, extremal_perturbation
from explainers.methods.perturbation.kept_parts import KeptParts
from explainers.passes.run import open_run
from explainers.perturbation.baselines import baseline_of, levels_of
from tests.support.nets import random_images


class Square(nn.Module):
    """The score depends only on one square of the image."""

    def __init__(self, top=6, left=12, side=8, scale=1.0) -> None:
        super().__init__()
        self.box, self.scale = (slice(top, top + side), slice(left, left + side)), scale

    def forward(self, x):
        score = 5 * x[(..., *self.box)].mean((1, 2, 3)).tanh() * self.scale
        return torch.stack([score, -score], 1)


def bright(n=1):
    return random_images(n, 3, 24, 32).abs() + 0.5


def test_the_mask_covers_the_square_that_the_score_depends_on():
    """Also in corners, where a disc lies partly outside the image."""
    for top, left in ((6, 12), (0, 0), (16, 24)):
        found = extremal_perturbation(Square(top, left), bright(), 0, area=64 / 768, baseline="zeros", steps=80)[0]
        inside = found[top : top + 8, left : left + 8]
        assert inside.mean() > 0.8 and inside.sum() > 0.6 * found.sum()
        assert found.mean() == pytest.approx(64 / 768, abs=0.05)


def test_the_mask_is_invariant_to_the_scale_of_the_score():
    x = bright()
    expected = extremal_perturbation(Square(), x, 0, steps=8)
    for scale in (1000.0, 1e-5):
        found = extremal_perturbation(Square(scale=scale), x, 0, steps=8)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_without_gradient_the_mask_is_blank_with_a_finding():
    x = bright()
    x[:, :, 6:14, 12:20] = 0
    explained = explain("extremal_perturbation", Square(), x, 0, baseline="zeros", steps=5)
    assert not explained.map.any() and explained.findings[0][0].code == "no_gradient"


def test_a_failed_search_is_reported():
    """Oracle: the score decreases in every pixel, so one step from the full mask stays below the baseline's score."""

    class Against(torch.nn.Module):
        def forward(self, x):
            return -x.sum((1, 2, 3))[:, None].repeat(1, 2)

    x = bright()
    found = explain("extremal_perturbation", Against(), x, 0, baseline="zeros", steps=1)
    well = explain("extremal_perturbation", Square(), x, 0, baseline="zeros", steps=5)

    (told,) = [each.sentence for each in found.findings[0] if each.code == "search_failed"]
    assert "not more than the baseline alone (0)" in told
    assert "search_failed" not in [each.code for each in well.findings[0]]


def test_a_part_worse_than_a_control_is_reported():
    """The score counts scattered dots, of which no disc holds as many as the part at edges."""

    class Dots(nn.Module):
        def forward(self, x):
            score = x[:, :, ::6, ::6].sum((1, 2, 3)).clamp(min=0.0) ** 2
            return torch.stack([score, -score], 1)

    x = torch.zeros(1, 3, 48, 48)
    x[:, :, ::6, ::6] = x[:, :, ::6, 1::6] = 5
    found = explain("extremal_perturbation", Dots(), x, 0, area=0.4, baseline="zeros", steps=1)
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
    with open_run(Square(), x, 0) as run:
        run.scoring.score_inputs()
        kept = KeptParts(run, levels, 0.1)
        for mask, expected in ((1.0, x), (0.0, levels[0]), (2.5 / 7, (levels[2] + levels[3]) / 2)):
            faded, slope = kept.fade(torch.full_like(x[:, 0], mask), [0])
            torch.testing.assert_close(faded, expected)
        torch.testing.assert_close(slope, 7 * (levels[3] - levels[2]))
