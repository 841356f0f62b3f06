"""ReX: responsibilities by the definition, sufficient parts of planted objects, and what it refuses."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import nn

from explainers import Contrast, Logit, MaskScores, Probability, Unit, explain, rex
from tests.support.nets import curved, random_images

WHITE = torch.ones(1, 1, 2, 2, dtype=torch.float64)


class Decision(nn.Module):
    """Class 1 if a function of the visibility of the four pixels of a white image is true, else class 0."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        score = torch.tensor([float(self.function(*row)) for row in (x[:, 0].flatten(1) > 0.5).tolist()]).to(x)
        return torch.stack([torch.full_like(score, 0.5), score, score - 9], 1)


def quadrants(function):
    """The responsibilities of the four pixels; they are the only partition of 2 x 2 pixels."""
    return rex(Decision(function), WHITE, samples=1, steps=1)[0].flatten().tolist()


def test_responsibility_by_brute_force_over_random_decisions():
    """Chockler and Halpern: 1 / (1 + k), where hiding k other parts makes this one necessary, and no fewer do."""
    numbers = random.Random(0)
    for _ in range(20):
        table = {shown: numbers.random() < 0.5 for shown in itertools.product([False, True], repeat=4)}
        table[(True,) * 4] = True
        expected = []
        for part in range(4):
            sizes = [
                shown.count(False)
                for shown in table
                if shown[part] and table[shown] and not table[(*shown[:part], False, *shown[part + 1 :])]
            ]
            expected.append(1 / (1 + min(sizes)) if sizes else 0)
        assert quadrants(lambda *shown, table=table: table[shown]) == pytest.approx(expected, abs=1e-15)


def test_forms_of_a_class_are_the_same():
    net, image = Decision(lambda a, b, c, d: a and (b or c)), WHITE.expand(2, 1, 2, 2)
    expected = rex(net, image, samples=3, steps=2)
    for form in (1, [1, 1], Logit(1), Probability(1), lambda scores: scores[:, 1]):
        assert torch.equal(rex(net, image, form, samples=3, steps=2), expected)


def test_a_baseline_that_keeps_the_class_is_reported():
    for baseline, suffices in (("mean", True), (1.0, True), (0.0, False)):
        found = explain("rex", Decision(lambda a, b, c, d: a and b), WHITE, baseline=baseline, samples=1, steps=1)
        assert found.map.any() != suffices
        assert ("baseline_suffices" in {each.code for each in found.findings[0]}) == suffices


def test_equal_scores_do_not_keep_a_class():
    """A network without biases gives a black image equal scores, which do not predict class 0."""

    class Linear(nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0, 0, 0], -x[:, 0, 0, 0]], 1)

    assert rex(Linear(), WHITE, samples=1, steps=1)[0].tolist() == [[1, 0], [0, 0]]


class Values(nn.Module):
    """Another output for the same decision: one value per image, or a class map."""

    def __init__(self, dense: bool) -> None:
        super().__init__()
        self.decision, self.dense = Decision(lambda a, b, c, d: a and (b or c)), dense

    def forward(self, x):
        score = self.decision(x)[:, 1:2] * 3 - 7
        return torch.cat([score, score.cos()], 1)[:, :, None, None].expand(-1, -1, 4, 4) if self.dense else score


OTHER_TARGETS = [
    (Values(dense=False), None),
    (Values(dense=False), lambda values: values[:, 0]),
    (Values(dense=True), MaskScores(torch.ones(4, 4), 0)),
    (Values(dense=True), lambda maps: maps[:, 0].mean((1, 2))),
    (Values(dense=False), Unit("decision", 1)),
    (Decision(lambda a, b, c, d: a and (b or c)), 2),
    (Decision(lambda a, b, c, d: a and (b or c)), Contrast(2, 0)),
    (Decision(lambda a, b, c, d: not (a and (b or c))), 1),
]


def test_another_target_is_kept_if_its_score_is_nearer_to_that_of_the_image():
    """The paper has decisions of classifiers only; here the score has two values, so that both are the same."""
    for net, target in OTHER_TARGETS:
        found = explain("rex", net, WHITE, target, samples=1, steps=1)
        assert found.map[0].flatten().tolist() == [1, 1 / 2, 1 / 2, 0], target
        assert "baseline_suffices" not in {each.code for each in found.findings[0]}


def test_the_highest_score_is_not_a_class():
    """It equals the score of class 1 for the image, which a alone keeps as the prediction."""
    net = Decision(lambda a, b, c, d: 2 if a and b else 0.6 * a)
    assert rex(net, WHITE, 1, samples=1, steps=1)[0].flatten().tolist() == [1, 0, 0, 0]
    assert rex(net, WHITE, lambda scores: scores.amax(1), samples=1, steps=1)[0].flatten().tolist() == [1, 1, 0, 0]


def test_rounding_is_not_a_score():
    """The values of image and baseline differ in the last digit."""

    class Constant(nn.Module):
        def forward(self, x):
            return 1 + 2.5e-16 * x.mean((1, 2, 3))[:, None]

    found = explain("rex", Constant(), WHITE)
    assert not found.map.any() and "baseline_suffices" in {each.code for each in found.findings[0]}


class First(nn.Module):
    """The score of class 1 is the first pixel."""

    def forward(self, x):
        return torch.stack([torch.full_like(x[:, 0, 0, 0], 0.5), x[:, 0, 0, 0]], 1)


def test_images_smaller_than_four_parts():
    """Only the first pixel counts: each partition ends at it, and does not split it again."""
    for size in ((1, 1), (1, 5), (3, 1), (2, 3)):
        result = explain("rex", First(), torch.ones(2, 1, *size), samples=5, steps=9, batch_size=75)
        found = result.map
        assert found.shape == (2, *size) and found[0].argmax() == 0 and 1 <= found[0, 0, 0] <= max(size)
        assert result.is_complete and result.done == result.total < 5 * 9 * 15
        assert torch.equal(found[0], found[1])


def test_scores_that_are_not_finite_give_no_map():
    """Otherwise no score is higher than NaN, and the class would be kept."""

    class Broken(nn.Module):
        def __init__(self, column):
            super().__init__()
            self.column = column

        def forward(self, x):
            seen = x.mean((1, 2, 3))
            scores = torch.stack([torch.full_like(seen, 0.5), seen], 1)
            scores[:, self.column] = torch.where((seen > 0) & (seen < 0.3), torch.nan, scores[:, self.column])
            return scores

    for column in (0, 1):
        assert rex(Broken(column), torch.ones(1, 1, 4, 4), 1).isnan().all()


def test_stopped_after_three_percent_the_map_is_that_of_the_first_steps():
    """All partitions take a step before the next one: 20 partitions of one step are 300 of 9,000 samples."""
    net, images = curved(), random_images(2)
    found = explain("rex", net, images, 1, steps=30, batch_size=100, progress=lambda step: step.fraction < 0.03)
    assert (found.done, found.total) == (300, 9000) and not found.is_complete
    torch.testing.assert_close(found.map, rex(net, images, 1, steps=1))
