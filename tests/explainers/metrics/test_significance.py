"""The tests behind the verdicts and the stars: sign flips, Student's t of one image, Holm's correction."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats

from benchmarks.metrics import stars
from explainers.metrics.significance import EXACT, SAMPLES, holm, random_map_test, sign_flip_test, smallest_p
from explainers.students_t import t_quantile, t_tail


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_sign_flip_test_counts_all_signs():
    """Oracles: all choices of signs; of many normal values, scipy's t-test, to the error of the samples."""
    for count, seed in itertools.product((2, 3, 7, 11), range(3)):
        values = torch.randn(count, generator=generator(seed), dtype=torch.float64) + 0.5
        sums = [abs(float((values * torch.tensor(signs)).sum())) for signs in itertools.product((-1, 1), repeat=count)]
        expected = sum(each >= abs(float(values.sum())) - 1e-9 for each in sums) / len(sums)
        assert sign_flip_test(values) == sign_flip_test(-values) == pytest.approx(expected)
    for seed in range(4):
        values = torch.randn(60, generator=generator(seed), dtype=torch.float64) + 0.25
        expected = float(stats.ttest_1samp(values.numpy(), 0).pvalue)
        assert sign_flip_test(values) == pytest.approx(expected, rel=0.2, abs=0.002)


def test_the_sign_flip_test_at_its_limits():
    assert math.isnan(sign_flip_test(torch.tensor([1.0]))) and math.isnan(sign_flip_test(torch.tensor([])))
    assert sign_flip_test(torch.zeros(4)) == 1.0 and sign_flip_test(torch.zeros(40)) == 1.0
    for count in (2, 5, 6, EXACT):
        assert sign_flip_test(torch.full((count,), 0.1)) == 2 ** (1 - count) == smallest_p(count)
    assert sign_flip_test(torch.ones(50)) == smallest_p(50) == 1 / (SAMPLES + 1)
    sparse = torch.zeros(50)
    sparse[:3] = 0.1
    assert sign_flip_test(sparse) == 1 / 4, "zeros do not count"
    before = torch.get_rng_state()
    values = torch.randn(30, generator=generator()) + 0.3
    assert sign_flip_test(values) == sign_flip_test(values)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_tails_are_those_of_students_distribution():
    for freedom in (1, 2, 3, 4, 7, 30):
        for t in (0.0, 0.3, 1.0, 4.0, 30.0):
            expected = pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9, abs=1e-12)
            assert t_tail(t, freedom) == t_tail(-t, freedom) == expected
        for level in (0.5, 0.95, 0.999):
            assert t_quantile(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-8)


def test_one_image_at_its_limits():
    equal = torch.full((8,), 0.5)
    assert random_map_test(0.3, equal, is_mean=True) == 1 / 5 and random_map_test(0.0, equal, is_mean=True) == 1.0
    noisy = equal + 1e-8 * torch.randn(8, generator=generator()).float()
    assert random_map_test(1e-7, noisy, is_mean=True, rounding=1e-6) == 1.0
    assert random_map_test(0.3, noisy, is_mean=True, rounding=1e-6) == 1 / 5, "the spread is rounding"
    for wrong in (equal[:2], equal[:0], torch.full((8,), math.nan)):
        assert math.isnan(random_map_test(0.3, wrong, is_mean=True))
    assert math.isnan(random_map_test(math.nan, noisy, is_mean=True))


def test_holm_adjusts_for_the_number_of_comparisons():
    """Oracle: the definition, by hand."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.04, math.nan, 0.01])[::2] == pytest.approx([0.04, 0.02]) and math.isnan(holm([math.nan])[0])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == [] and holm([0.2]) == [0.2]


def test_a_star_requires_all_controls_and_the_better_side():
    """Twelve images: with fewer, no difference passes the sign-flip test after the correction."""
    values = {str(k): 5.0 + k % 3 for k in range(12)}
    low, high = ({photo: value - shift for photo, value in values.items()} for shift in (4.0, -4.0))
    unsure = {photo: (12.0 if k % 2 else 0.0) for k, photo in enumerate(values)}

    def starred(metric: str, *controls: dict[str, float]) -> bool:
        numbers = {"map": {metric: values}}
        numbers |= {name: {metric: each} for name, each in zip(("random", "edge", "center"), controls, strict=True)}
        return stars(numbers, ["map"], [metric]) == {("map", metric)}

    assert starred("insertion", low, low, low) and not starred("deletion", low, low, low)
    assert starred("deletion", high, high, high) and not starred("insertion", low, high, low)
    assert starred("sparseness", high, high, high) and not starred("sparseness", low, high, low)
    assert not starred("insertion", low, low, unsure), "not sure"
