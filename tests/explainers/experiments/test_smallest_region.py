"""The smallest region of a map compared with an exhaustive search, and with networks whose answer is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from explainers import BadOption, explain, smallest_region
from explainers.perturbation.baselines import baseline_of
from tests.support.nets import random_images, residual
from tests.support.traces import nothing_left


class Counts(nn.Module):
    """Class 1 if at least `need` pixels of the first channel are 1, else class 0."""

    def __init__(self, need: int) -> None:
        super().__init__()
        self.need = need

    def forward(self, images: Tensor) -> Tensor:
        count = images[:, 0].flatten(1).sum(1)
        return torch.stack([torch.full_like(count, self.need - 0.5), count], 1)


def ramps(n: int = 1) -> Tensor:
    return torch.arange(n * 48.0).reshape(n, 6, 8)


def test_a_network_that_counts_pixels_needs_as_many():
    images = torch.ones(2, 3, 6, 8)
    kept = smallest_region(Counts(17), images, ramps(2), baseline=0.0)
    assert kept.mask.flatten(1).sum(1).tolist() == [17, 17]
    assert bool(kept.mask.flatten(1)[:, -17:].all())  # the highest values are last
    assert kept.classes == [1, 1]
    assert kept.scores.tolist() == [[16.5, 17.0]] * 2
    changed = smallest_region(Counts(17), images, ramps(2), baseline=0.0, goal="change")
    assert changed.mask.flatten(1).sum(1).tolist() == [48 - 16] * 2
    assert changed.scores[0].tolist() == [16.5, 16.0]
    assert changed.passes <= 3 + 6


def test_half_of_the_probability_needs_more_pixels():
    """Oracle: the probability with every number of pixels, of a network with two equal other classes."""

    class Three(Counts):
        def forward(self, images: Tensor) -> Tensor:
            other, own = (0.1 * super().forward(images)).unbind(1)
            return torch.stack([other, other, own], 1)

    images, counts = torch.ones(1, 3, 6, 8), torch.arange(49.0)
    scores = 0.1 * torch.stack([torch.full((49,), 16.5), torch.full((49,), 16.5), counts], 1)
    oracles = {None: scores.softmax(1)[:, 2], "sigmoid": (scores.sigmoid())[:, 2]}
    kept = smallest_region(Three(17), images, ramps(), baseline=0.0)
    assert int(kept.mask.sum()) == 17
    for score, shares in oracles.items():
        half = smallest_region(Three(17), images, ramps(), baseline=0.0, goal="half", score=score)
        need = int((shares >= shares[48] / 2).nonzero()[0])
        assert int(half.mask.sum()) == max(17, need) and half.classes == [2]
        assert need > 17 or score == "sigmoid"
    assert "half of the probability" in repr(half)


def test_goals_that_are_reached_at_once_or_never():
    images = torch.ones(1, 3, 6, 8)
    at_once = smallest_region(Counts(0), images, ramps(), baseline=0.0)  # the baseline alone is class 1
    assert (int(at_once.mask.sum()), bool(at_once.reached)) == (0, True)
    never = smallest_region(Counts(0), images, ramps(), baseline=0.0, goal="change")
    assert (float(never.fraction), bool(never.reached)) == (1.0, False)
    assert "not reached for 1" in repr(never)


@pytest.mark.parametrize("goal", ["keep", "change"])
@pytest.mark.parametrize("baseline", ["blur", "mean", 0.0])
def test_a_region_reaches_the_goal_and_one_pixel_less_does_not(goal, baseline):
    net, images = residual(), random_images(seed=3)
    e = explain("grad_cam", net, images, relu=False)
    with nothing_left(net):
        found = smallest_region(net, images, e, goal=goal, baseline=baseline)
    single = smallest_region(net, images[1:2], e.map[1:2], goal=goal, baseline=baseline)
    assert torch.equal(single.mask[0], found.mask[1])
    cover, values = baseline_of(images, baseline), e.upsample((12, 16))
    shown, hidden = (images, cover) if goal == "keep" else (cover, images)

    def reaches(n, pixels):
        inside = torch.zeros(12 * 16, dtype=torch.bool).index_fill(0, pixels, True).reshape(12, 16)
        same = int(net(torch.where(inside, shown[n], hidden[n])[None]).argmax()) == found.classes[n]
        return same == (goal == "keep")

    for n in range(3):
        count, order = int(found.mask[n].sum()), values[n].flatten().argsort(descending=True, stable=True)
        reached = bool(found.reached[n])
        assert reaches(n, order[:count]) == reached
        assert (count == 0 or not reaches(n, order[: count - 1])) if reached else count == 12 * 16


def test_wrong_uses_are_refused():
    net, images, maps = residual(), torch.rand(2, 3, 12, 16).double(), torch.rand(2, 4, 4)
    for given, options, message in (
        (torch.ones(2, 4, 4), {}, "constant"),
        (torch.full((2, 4, 4), torch.nan), {}, "not finite"),
        (torch.rand(3, 4, 4), {}, "one map"),
        (torch.rand(2, 3, 4, 4), {}, "one map"),
        (1.5, {}, "one map"),
        ("map", {}, "Unknown method 'map'"),
        (maps, {"goal": "remove"}, "goal='remove'"),
        (maps, {"baseline": "sharpen"}, "baseline"),
        (maps, {"goal": "half", "score": "logit"}, "needs probabilities"),
        (maps, {"score": "sofmax"}, "score='sofmax'"),
    ):
        with pytest.raises(BadOption, match=message):
            smallest_region(net, images, given, **options)
