"""LIME, Shapley values, Sobol and HSIC indices, responsibilities: closed forms, enumeration, brute force."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from torch import nn

from explainers import Contrast, MaskScores, Unit, explain, feature_ablation, kernel_shap, lime, rex, shapley_sampling
from tests.support.nets import Weighted, Written, curved, random_images, settle
from tests.support.oracles.masks import shapley_by_hand, shapley_map

CLASSES = [2, 0, 5]


def corners(scale: float) -> nn.Module:
    """A linear model on 4 pixels, in any unit of the score."""
    weights = scale * torch.tensor([[1.0, 2.0, -3.0, 4.0], [-1.0, -2.0, 3.0, -4.0]], dtype=torch.float64)
    return Written(lambda _, x: x.flatten(1) @ weights.T)


def pairs(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Sums of products of cells: no interaction has more than two of them."""
    cells = x.mean(1).reshape(-1, 4, 3, 4, 4).mean((2, 4)).flatten(1)
    weights = torch.linspace(-1, 2, 16, dtype=x.dtype)
    return torch.stack([(cells * cells.roll(3, 1) * weights).sum(1) + (cells * weights).sum(1), cells.sum(1)], 1)


def test_p103_lime_is_exact_on_a_linear_model_at_every_scale():
    """captum's lasso shrinks the coefficients, and at 0.01 gives 0, 0, 0, 0 without a warning."""
    x = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    for scale, samples in ((1.0, 1000), (0.01, 1000), (1e-6, 12), (300.0, 12)):
        expected = scale * torch.tensor([[[1.0, 2.0], [-3.0, 4.0]]], dtype=torch.float64)
        found = lime(corners(scale), x, 0, masks=(2, 2), samples=samples)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


def test_lime_ridge_shrinkage_does_not_depend_on_the_units_of_the_score():
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images(1)
    plain, shrunk = (lime(net, x, 1, masks=(2, 3), ridge=ridge) for ridge in (0.0, 1.0))
    assert 0.2 < float(shrunk.norm() / plain.norm()) < 0.8
    net.fc.weight.data *= 1000
    net.fc.bias.data *= 1000
    torch.testing.assert_close(lime(net, x, 1, masks=(2, 3), ridge=1.0), 1000 * shrunk, rtol=1e-9, atol=1e-9)


def test_p102_shapley_values_are_exact_if_all_coalitions_are_evaluated():
    """4 features, 16 evaluations; captum draws 25 and is 20% off."""
    net, x = curved(), random_images()
    expected = shapley_map(net, x, CLASSES, 2, 2)
    for method in (kernel_shap, shapley_sampling):
        torch.testing.assert_close(method(net, x, CLASSES, masks=(2, 2)), expected, rtol=1e-9, atol=1e-12)
    for method in (kernel_shap, lime):  # 16 samples are enough, so no seed has an effect
        assert torch.equal(*(method(net, x, CLASSES, masks=(2, 2), samples=16, seed=seed) for seed in (0, 1)))
    # 13 permutations of 5 steps cost 65 evaluations, all coalitions but two 62.
    found = shapley_sampling(net, x, CLASSES, masks=(2, 3), samples=13)
    torch.testing.assert_close(found, shapley_map(net, x, CLASSES), rtol=1e-9, atol=1e-12)


def test_shapley_values_are_exact_for_every_number_of_parts():
    """With all coalitions; the values sum to the score minus the score of the baseline."""
    for count in range(2, 13):
        weights = torch.arange(1, count + 1).double()
        net = Written(lambda _, x, weights=weights: (x.flatten(1) @ weights).sin()[:, None] * torch.tensor([1.0, -1]))
        expected = shapley_by_hand(lambda shown: math.sin(sum(part + 1 for part in shown)), count)
        for method, samples in ((kernel_shap, 2**count), (shapley_sampling, 1000)):
            x = torch.ones(1, 1, 1, count, dtype=torch.float64)
            found = method(net, x, 0, masks=(1, count), samples=samples, baseline=0.0).flatten()
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
            assert float(found.sum()) == pytest.approx(math.sin(count * (count + 1) / 2), rel=1e-12, abs=1e-14)


def test_kernel_shap_with_paired_coalitions_is_exact_for_pairwise_interactions():
    """Covert and Lee 2021: with each coalition its complement, a game without third-order interactions has no error."""
    x = random_images(1)
    found = kernel_shap(Written(pairs), x, 0, masks=(4, 4), samples=400)
    exact = shapley_sampling(Written(pairs), x, 0, masks=(4, 4), samples=2)
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-11)


def test_feature_ablation_with_overlapping_masks():
    """Each mask's score drop divided by its weight; where two overlap their values add."""
    net, x = settle(Weighted((1, 2, 2), 2).double()), random_images(1, 1, 2, 2)
    masks = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[0.5, 0.0], [0.5, 0.0]]])
    terms = (net.fc.weight[1].view(2, 2) * x[0, 0]).detach()
    first, second = terms[0].sum() / 2, (terms[:, 0] / 2).sum() / 1
    expected = torch.stack([torch.stack([first + second / 2, first]), torch.stack([second / 2, 0 * first])])
    torch.testing.assert_close(feature_ablation(net, x, 1, masks=masks)[0], expected, rtol=1e-9, atol=1e-12)


FOUR = torch.ones(1, 1, 2, 2, dtype=torch.float64)


def decision(function):
    """Class 1 if a function of the visibility of the four pixels of a white image is true, else class 0."""

    def forward(self, x):
        score = torch.tensor([float(function(*row)) for row in (x[:, 0].flatten(1) > 0.5).tolist()]).to(x)
        return torch.stack([torch.full_like(score, 0.5), score, score - 9], 1)

    return Written(forward)


def quadrants(function):
    """The responsibilities of the four pixels; they are the only partition of 2 x 2 pixels."""
    return rex(decision(function), FOUR, samples=1, steps=1)[0].flatten().tolist()


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


def test_a_baseline_that_keeps_the_class_is_reported():
    for baseline, suffices in (("mean", True), (1.0, True), (0.0, False)):
        found = explain("rex", decision(lambda a, b, c, d: a and b), FOUR, baseline=baseline, samples=1, steps=1)
        assert found.map.any() != suffices
        assert ("baseline_suffices" in {each.code for each in found.findings[0]}) == suffices


def test_equal_scores_do_not_keep_a_class():
    """A network without biases gives a black image equal scores, which do not predict class 0."""

    linear = Written(lambda _, x: torch.stack([x[:, 0, 0, 0], -x[:, 0, 0, 0]], 1))
    assert rex(linear, FOUR, samples=1, steps=1)[0].tolist() == [[1, 0], [0, 0]]


def values(dense):
    """Another output for the same decision: one value per image, or a class map."""

    def forward(self, x):
        score = self.decision(x)[:, 1:2] * 3 - 7
        return torch.cat([score, score.cos()], 1)[:, :, None, None].expand(-1, -1, 4, 4) if dense else score

    return Written(forward, decision=decision(lambda a, b, c, d: a and (b or c)))


OTHER_TARGETS = [
    (values(dense=False), None),
    (values(dense=False), lambda values: values[:, 0]),
    (values(dense=True), MaskScores(torch.ones(4, 4), 0)),
    (values(dense=True), lambda maps: maps[:, 0].mean((1, 2))),
    (values(dense=False), Unit("decision", 1)),
    (decision(lambda a, b, c, d: a and (b or c)), 2),
    (decision(lambda a, b, c, d: a and (b or c)), Contrast(2, 0)),
    (decision(lambda a, b, c, d: not (a and (b or c))), 1),
]


def test_another_target_is_kept_if_its_score_is_nearer_to_that_of_the_image():
    """The paper has decisions of classifiers only; here the score has two values, so that both are the same."""
    for net, target in OTHER_TARGETS:
        found = explain("rex", net, FOUR, target, samples=1, steps=1)
        assert found.map[0].flatten().tolist() == [1, 1 / 2, 1 / 2, 0], target
        assert "baseline_suffices" not in {each.code for each in found.findings[0]}


def test_the_highest_score_is_not_a_class():
    """It equals the score of class 1 for the image, which a alone keeps as the prediction."""
    net = decision(lambda a, b, c, d: 2 if a and b else 0.6 * a)
    assert rex(net, FOUR, 1, samples=1, steps=1)[0].flatten().tolist() == [1, 0, 0, 0]
    assert rex(net, FOUR, lambda scores: scores.amax(1), samples=1, steps=1)[0].flatten().tolist() == [1, 1, 0, 0]


def test_rounding_is_not_a_score():
    """The values of image and baseline differ in the last digit."""

    constant = Written(lambda _, x: 1 + 2.5e-16 * x.mean((1, 2, 3))[:, None])
    found = explain("rex", constant, FOUR)
    assert not found.map.any() and "baseline_suffices" in {each.code for each in found.findings[0]}


FIRST = Written(lambda _, x: torch.stack([torch.full_like(x[:, 0, 0, 0], 0.5), x[:, 0, 0, 0]], 1))
"""The score of class 1 is the first pixel."""


def test_images_smaller_than_four_parts():
    """Only the first pixel counts: each partition ends at it, and does not split it again."""
    for size in ((1, 1), (1, 5), (3, 1), (2, 3)):
        result = explain("rex", FIRST, torch.ones(2, 1, *size), samples=5, steps=9, batch_size=75)
        found = result.map
        assert found.shape == (2, *size) and found[0].argmax() == 0 and 1 <= found[0, 0, 0] <= max(size)
        assert result.is_complete and result.done == result.total < 5 * 9 * 15
        assert torch.equal(found[0], found[1])


def test_scores_that_are_not_finite_give_no_map():
    """Otherwise no score is higher than NaN, and the class would be kept."""

    def forward(net, x):
        seen = x.mean((1, 2, 3))
        scores = torch.stack([torch.full_like(seen, 0.5), seen], 1)
        scores[:, net.column] = torch.where((seen > 0) & (seen < 0.3), torch.nan, scores[:, net.column])
        return scores

    broken = Written(forward)
    for column in (0, 1):
        broken.column = column
        assert rex(broken, torch.ones(1, 1, 4, 4), 1).isnan().all()
