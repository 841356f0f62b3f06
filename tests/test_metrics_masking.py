"""Deletion and insertion: by hand, against a loop, and the optimal map of a linear model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import evaluate
from explainers.metrics.formulas.masking import area
from explainers.metrics.metric import ranks


class Linear(nn.Module):
    """Two classes of 12 x 12 images: the sum of w x, and zero; in float64."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(1, 12, 12, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        score = (x * self.weight).sum((1, 2, 3))
        return torch.stack([score, torch.zeros_like(score)], 1)


IMAGES = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
BASELINE = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.fixture
def model() -> nn.Module:
    return Linear().eval()


def measured(model: nn.Module, maps: Tensor, images: Tensor = IMAGES, baseline: Tensor = BASELINE, **options):
    settings = {"score": "logit", "steps": 12, "controls": False} | options
    return evaluate(model, images, maps, target=0, baseline=baseline, **settings)


def test_areas_by_hand():
    """Pixels of 4, 3, 2, 1, sum 10: deletion leaves 6, 3, 1, 0, insertion restores 4, 7, 9, 10."""

    class Total(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum((1, 2, 3))[:, None]

    image = torch.tensor([[[[1.0, 3.0], [4.0, 2.0]]]])
    found = measured(Total(), image[:, 0], image, torch.zeros(1, 1, 2, 2), steps=4)
    assert found.curves["deletion"].tolist() == [[10, 6, 3, 1, 0]]
    assert found.curves["insertion"].tolist() == [[0, 4, 7, 9, 10]]
    assert found.values["deletion"].item() == pytest.approx((10 / 2 + 6 + 3 + 1) / 4)
    assert found.values["insertion"].item() == pytest.approx((4 + 7 + 9 + 10 / 2) / 4)
    lowest_first = measured(Total(), -image[:, 0], image, torch.zeros(1, 1, 2, 2), steps=4)
    assert lowest_first.curves["deletion"].tolist() == [[10, 9, 7, 4, 0]]
    assert lowest_first.curves["insertion"].tolist() == [[0, 1, 3, 6, 10]]


@pytest.mark.parametrize("score", ["probability", "logit"])
@pytest.mark.parametrize("steps", [7, 12])
def test_curves_equal_a_loop_over_the_exact_top_pixels(model, score, steps):
    """A second, slow implementation: sort the pixels, replace them one by one, stop at floor(k n / s)."""
    maps = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = measured(model, maps, score=score, steps=steps)
    for n in range(3):
        order = sorted(range(144), key=lambda pixel: -float(maps[n].flatten()[pixel]))
        for k in range(steps + 1):
            removed, shown = IMAGES[n].clone(), BASELINE[n].clone()
            for pixel in order[: k * 144 // steps]:
                row, column = divmod(pixel, 12)
                removed[:, row, column] = BASELINE[n, :, row, column]
                shown[:, row, column] = IMAGES[n, :, row, column]
            logits = model(torch.stack([removed, shown]))
            expected = (logits.softmax(1) if score == "probability" else logits)[:, 0].tolist()
            assert found.curves["deletion"][n, k].item() == pytest.approx(expected[0], abs=1e-12)
            assert found.curves["insertion"][n, k].item() == pytest.approx(expected[1], abs=1e-12)


def test_contributions_of_a_linear_model_win_against_100_random_maps(model):
    """Closed form: after k pixels, no order inserts more than the k largest of w (x - baseline)."""
    contributions = (model.weight * (IMAGES - BASELINE))[:, 0].detach()
    best = measured(model, contributions)
    generator = torch.Generator().manual_seed(4)
    for _ in range(100):
        other = measured(model, torch.rand(3, 12, 12, generator=generator))
        assert bool((best.values["insertion"] > other.values["insertion"]).all())
        assert bool((best.values["deletion"] < other.values["deletion"]).all())
    ordered = contributions.flatten(1).sort(descending=True).values
    cumulative = torch.cat([torch.zeros(3, 1, dtype=torch.float64), ordered.cumsum(1)], 1)[:, ::12]
    low = model(BASELINE)[:, 0].detach()
    expected = low + torch.trapezoid(cumulative, dx=1 / 12)
    torch.testing.assert_close(best.values["insertion"], expected, rtol=1e-12, atol=1e-12)


def test_ties_are_ranked_in_random_order():
    places = ranks(torch.zeros(40, 40)).double()
    assert torch.equal(places.flatten().sort().values, torch.arange(1600).double())
    assert abs(float(places[:20].mean() - places[20:].mean())) < 60
    assert torch.equal(places, ranks(torch.zeros(40, 40)).double())
    assert not torch.equal(places, ranks(torch.zeros(40, 40), seed=1).double())
    heat = torch.zeros(40, 40)
    heat[30, 7] = 1.0
    assert ranks(heat)[30, 7] == 0


def test_area_is_the_trapezoidal_rule():
    assert area(torch.tensor([1.0, 0.0, 4.0])).item() == pytest.approx((0.5 + 2.0) / 2)


def test_both_metrics_are_in_the_table():
    assert list(explainers.METRICS)[:2] == ["deletion", "insertion"]
    assert [each.higher for each in list(explainers.METRICS.values())[:2]] == [False, True]
