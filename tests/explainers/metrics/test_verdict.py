"""The verdict on a map: its rules, the tests behind it, and the stability of sampled maps."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn

import explainers
from explainers.metrics.comparison import EXACT, SAMPLES, holm, random_map_test, sign_flip_test, smallest_p
from explainers.students_t import t_quantile, t_tail
from explainers.verdict.facts import Facts, has_preference
from explainers.verdict.rules import CLAUSES, RULES, judge_facts
from tests.support.nets import Written, curved, random_images

LEVEL, BETTER, WORSE = (dict.fromkeys(("random", "edge", "center"), word) for word in ("level", "better", "worse"))
BLOB = "a centered blob"
CODES = [rule.code for rule in RULES]

SITUATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "control": ({"is_control": True}, "This control map does not use the network."),
    "planes": ({"has_planes": True}, "The method returns several maps, which are not judged."),
    "not_finite": ({"is_finite": False}, "The map is not finite, so it cannot be interpreted."),
    "constant": ({"range": (2.0, 2.0)}, "The map has the same value everywhere, so it shows no position."),
    "nothing_positive": ({"range": (-2.0, 0.0)}, "The map has no positive values."),
    "too_small": (
        {"total": 2e-6, "score": 10.1, "comparisons": {"insertion": BETTER}},
        "Too small to interpret: its values add up to 2e-06 logit, less than 0.01% of the score (10.1).",
    ),
    "noise": (
        {"done": 29, "planned": 960, "samples": "random masks", "stability": 0.12},
        "After 3% of the random masks, the map is mostly noise: two halves of them agree with a correlation of 0.12.",
    ),
    "stopped": (
        {"done": 480, "planned": 960, "samples": "random masks", "stability": 0.84},
        "Stopped after 50% of the random masks; two halves of them agree with a correlation of 0.84.",
    ),
    "no_preference": (
        {"probabilities": (0.001,) * 1000, "comparisons": {"insertion": BETTER}},
        "The top class has 0.1%, and each of 1,000 equal classes would have 0.1%, so the network has no preference.",
    ),
    "better": (
        {"comparisons": {"deletion": LEVEL, "insertion": BETTER}, "correlation": 0.1, "depends_on_weights": True},
        f"Better than random maps, edge maps and {BLOB} by insertion; depends on the class and the weights.",
    ),
    "partly": (
        {"comparisons": {"deletion": LEVEL, "insertion": LEVEL | {"random": "better"}}, "depends_on_weights": False},
        f"Better than random maps by insertion, not than edge maps or {BLOB}; hardly depends on the weights.",
    ),
    "few_images": (
        {"comparisons": {"deletion": dict.fromkeys(LEVEL, "few")}},
        f"Too few images to compare with random maps, edge maps and {BLOB}.",
    ),
    "worse": (
        {"comparisons": {"deletion": LEVEL | {"edge": "worse"}}, "reads_class": False},
        f"Not better than random maps or {BLOB}, worse than edge maps; is the same for every class.",
    ),
    "not_better": ({"comparisons": {"deletion": LEVEL}}, f"Not better than random maps, edge maps or {BLOB}."),
    "doubtful": (
        {"caution": f"On a network, its maps were no better than {BLOB}. Use Grad-CAM instead."},
        f"Not compared with controls; on a network, its maps were no better than {BLOB}.",
    ),
    "untested": ({"correlation": 0.995}, "Not compared with controls; hardly depends on the class."),
}


def test_each_rule_says_its_sentence() -> None:
    assert list(SITUATIONS) == CODES
    for code, (facts, sentence) in SITUATIONS.items():
        found = judge_facts(Facts(**facts))
        assert (found.code, found.sentence) == (code, sentence)
        assert found.follows_tests == (code in CODES[CODES.index("better") :])
        assert found.shows_position == (code == "better"), "not even without a test, if it hardly depends on the class"
    assert judge_facts(Facts()).shows_position and not judge_facts(Facts()).is_evidence


def test_each_clause_follows_from_the_results() -> None:
    both = {"deletion": WORSE | {"random": "better"}, "insertion": BETTER | {"edge": "unknown"}}
    said = [
        judge_facts(Facts(comparisons=both)).sentence,
        judge_facts(Facts(comparisons={"deletion": LEVEL | {"random": "better", "edge": "few"}})).sentence,
        judge_facts(Facts(comparisons={"deletion": LEVEL | {"edge": "unknown"}}, correlation=0.7)).sentence,
        *(sentence for _, sentence in SITUATIONS.values()),
    ]
    divided = f"better and worse than {BLOB}, depending on the metric."
    assert said[0] == f"Better than random maps, worse than edge maps by deletion, {divided}"
    for _, words in CLAUSES.values():
        start = words.partition(" {")[0]
        assert any(start in each or start[:1].upper() + start[1:] in each for each in said), words


def test_a_preference_is_more_than_equal_classes() -> None:
    equal, nan = [0.998 / 999] * 999, float("nan")
    cases: list[tuple[tuple[float, ...], bool, bool | None]] = [
        ((0.61, 0.39), True, True),
        ((0.59, 0.41), True, False),
        ((0.02, *equal), True, True),
        ((0.5, 0.45, 0.55), False, False),
        ((0.5, 0.02, 0.55), False, True),
        ((0.95,), False, True),
        ((), True, None),
        ((nan, 0.5), True, None),
        ((1.0, 0.0), True, True),
        ((0.0, 0.0), True, False),
    ]
    for probabilities, exclusive, prefers in cases:
        assert has_preference(probabilities, exclusive) is prefers, probabilities[:3]


def test_a_share_of_the_score_decides_what_is_too_small() -> None:
    assert judge_facts(Facts(total=0.99e-3, score=-10.0)).code == "too_small"
    assert judge_facts(Facts(total=1.01e-3, score=-10.0)).code == "untested"
    assert judge_facts(Facts(total=0.0, score=0.0)).code == "untested", "without a score there is no share"


def bright(noise: float) -> nn.Module:
    """The score of class 0 is the mean of the left half; `noise` is added, which differs between images."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        own = x[..., : x.shape[-1] // 2].mean((1, 2, 3))
        chance = (1e4 * x.flatten(1).sum(1)).sin() * noise
        return torch.stack([10 * own + chance, 1 - own], 1)

    return Written(forward).eval()


def test_halves_of_the_masks_agree_if_the_map_is_not_noise() -> None:
    """The score of the second network is chance, so its complete map is noise; so is the map of one mask."""
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for noise, is_noise in ((0.0, False), (50.0, True)):
        found = explainers.explain("rise", bright(noise), images, 0, samples=256, cells=4)
        assert found.is_complete and [each.code == "noise" for each in found.verdicts] == [is_noise] * 2
    (one,) = explainers.explain("rise", bright(0.0), images[:1], 0, batch_size=1, progress=lambda part: False).verdicts
    assert one.code in ("noise", "too_small", "constant")
    some = explainers.explain("occlusion", bright(0.0), images[:1], 0, batch_size=9, progress=lambda part: False)
    assert some.verdicts[0].code == "stopped"
    assert some.verdicts[0].sentence.endswith("of the samples, and its stability is not known.")


@pytest.mark.parametrize("method", ["rise", "smooth_grad"])
def test_the_stability_does_not_depend_on_the_batch_size(method: str) -> None:
    net, images = curved(), random_images(2)
    options = {"cells": 4} if "rise" in method else {}
    parts = [
        explainers.explain(method, net, images, 0, samples=33, batch_size=size, **options).statistics
        for size in (7, 33)
    ]
    for one, other in zip(*parts, strict=True):
        assert -1 <= one["stability"] <= 1 and one["stability"] == pytest.approx(other["stability"], abs=1e-3)


def test_judge_uses_tests_of_the_same_images() -> None:
    net, images = curved(), random_images(2)
    net.head.weight.data *= 50  # prefers a class
    explanation = explainers.explain("grad_cam", net, images, layer="act2")
    for word, method in (("hardly depends", lambda _, x, __: x[:, 0]), ("depends", lambda *_: torch.randn(2, 9, 9))):
        test = explainers.randomization_test(net, images, method)
        for verdict in explainers.judge(explanation, randomization=test):
            assert verdict.sentence == f"Not compared with controls; {word} on the weights."
    with pytest.raises(explainers.BadImages, match="of 1 images, the explanation of 2"):
        explainers.judge(explanation, explainers.evaluate(net, images[:1], explanation.map[:1], steps=2))


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


def test_a_map_is_noise_if_less_than_half_of_its_variance_is_common_to_its_halves() -> None:
    """The share of the variance of the whole that is not noise is 2r / (1 + r): half of it for r = 1/3."""
    noisy, steady = (math.nan, -0.5, 0.0, 0.33), (None, 0.34, 1.0)
    assert [Facts(stability=r).is_noisy for r in noisy] == [True] * 4
    assert [Facts(stability=r).is_noisy for r in steady] == [False] * 3


def test_the_size_of_a_map_is_its_sum_if_its_values_add_up() -> None:
    """Each value of RISE is a difference of mean scores; those of an unknown method are taken to add up."""
    for method, adds_up in (("rise", False), ("saliency", True)):
        found = explainers.explain(method, curved(), random_images(1), 0)
        assert found.facts(0).adds_up is adds_up
        assert dataclasses.replace(found, method="my_own").facts(0).adds_up
